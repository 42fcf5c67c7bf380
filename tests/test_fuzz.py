"""Scripts with tokens dropped, doubled, exchanged or replaced: messages or programs, never a traceback.

What still compiles is run on made-up data: then it gives results, or a message of its own.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from loopfuse.bind import Given
from loopfuse.diag import Collector, Source, UserError, render
from loopfuse.driver import bind_program, execute, lower_program
from loopfuse.frontend.check import check_source

ROOT = Path(__file__).parent.parent
FILES = [p for d in ("tests/scripts", "examples", "loopfuse/lib") for p in sorted((ROOT / d).rglob("*.lf"))]
TOKEN = re.compile(r"\s+|#[^\n]*|\w+|[^\w\s]")
TEXTS = {p: TOKEN.findall(p.read_text("utf-8")) for p in FILES}
WORDS = sorted({t for tokens in TEXTS.values() for t in tokens if t.strip() and not t.startswith("#")})
SIGNS = list("+-*/%<>&|^@")


def rough(tokens: list[str], places: list[int], rng: random.Random) -> None:
    """Drop, double, exchange or replace tokens: most of these no longer parse."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        i, j = rng.choice(places), rng.choice(places)
        match rng.randrange(4):
            case 0:
                tokens[i] = ""
            case 1:
                tokens[i] += f" {tokens[i]}"
            case 2:
                tokens[i], tokens[j] = tokens[j], tokens[i]
            case _:
                tokens[i] = rng.choice(WORDS)


def fine(tokens: list[str], places: list[int], rng: random.Random) -> None:
    """Replace names by names, numbers by numbers, operators by operators: most of these parse."""
    names = [i for i in places if tokens[i][0].isalpha()]
    numbers = [i for i in places if tokens[i].isdigit()]
    signs = [i for i in places if tokens[i] in SIGNS]
    for _ in range(rng.choice([1, 1, 2])):
        group, others = rng.choice(
            [(names, WORDS), (names, WORDS), (numbers, ["0", "1", "2", "7", "N"]), (signs, SIGNS)]
        )
        if group:
            tokens[rng.choice(group)] = tokens[rng.choice(group)] if rng.random() < 0.8 else rng.choice(others)


def broken(rng: random.Random) -> tuple[Path, str]:
    path = rng.choice(FILES)
    tokens = list(TEXTS[path])
    places = [i for i, t in enumerate(tokens) if t.strip() and not t.startswith("#")]
    (rough if rng.random() < 0.3 else fine)(tokens, places, rng)
    return path, "".join(tokens)


def examine(rng: random.Random) -> bool:
    """Compile one broken script, and run it if it compiles; whether it did."""
    path, text = broken(rng)
    collector = Collector()
    typed = check_source(Source(path.name, text), search=path.parent, collector=collector)
    assert (typed is None) == bool(collector.errors), text
    assert all(render(d) for d in collector.found)
    if typed is None:
        return False
    try:
        lowered = lower_program(typed)
        bound = bind_program(typed, Given({}, fill=True, limit=1 << 24))
        if max(bound.sizes.values(), default=0) <= 64:
            execute(lowered, bound, backend="reference", limit=1 << 24)
    except UserError as problem:
        assert all(d.code.startswith(("LF05", "LF06", "LF07")) for d in problem.diagnostics), (text, problem)
    return True


@pytest.mark.parametrize("seed", range(8))
def test_broken_scripts(seed: int) -> None:
    rng = random.Random(seed)
    assert sum(examine(rng) for _ in range(60)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_broken_scripts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        examine(rng)


def test_random_bytes() -> None:
    rng = random.Random(5)
    for _ in range(300):
        text = bytes(rng.randrange(256) for _ in range(rng.randrange(80))).decode("utf-8", "replace")
        collector = Collector()
        assert check_source(Source("bytes.lf", text), collector=collector) is None
        assert collector.errors
