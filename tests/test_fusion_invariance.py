"""Kernels and decisions depend on what a script computes: not on the order of independent statements, not on names."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from loopfuse import driver
from loopfuse.diag import Source
from loopfuse.passes.base import Options

FAST = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking would compile for minutes
SIZES = {"M": 2048, "N": 1024}
HEAD = "input x: f32[M, N]\ninput w: f32[N, N]\ninput g: f32[N]\n"
# A statement by the kinds of what it reads and makes: m a matrix, r a value a row, c a value a column.
FORMS: tuple[tuple[str, str, str], ...] = (
    ("m", "m", "exp({0})"), ("m", "mm", "{0} * {1} + 1"), ("m", "m", "{0} @ w"),
    ("r", "m", "sum({0}, axis=1)"), ("r", "m", "max({0}, axis=1)"), ("c", "m", "sum({0}, axis=0)"),
    ("m", "mr", "reshape({0} - reshape({1}, M, 1), M, N)"), ("m", "mc", "{0} * {1}"), ("r", "rr", "{0} / ({1} + 2)"),
    ("c", "c", "tanh({0})"), ("m", "m", "maximum({0}, 0)"),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A statement: the number of what it defines, the numbers that it reads, its kind and form."""

    target: int
    reads: tuple[int, ...]
    kind: str
    form: str


@st.composite
def scripts(draw: st.DrawFn) -> list[Line]:
    """Random graphs of array statements; 0 is the input `x` and 1 the input `g`."""
    kinds = {0: "m", 1: "c"}
    lines: list[Line] = []
    for target in range(2, 2 + draw(st.integers(2, 7))):
        kind, wants, form = draw(st.sampled_from(FORMS))
        pools = [[n for n, k in kinds.items() if k == want] for want in wants]
        if not all(pools):
            continue
        reads = tuple(draw(st.sampled_from(pool)) for pool in pools)
        lines.append(Line(target, reads, kind, form))
        kinds[target] = kind
    return lines


def text(lines: list[Line], names: dict[int, str]) -> str:
    """The script; what nothing reads is an output."""
    read = {n for line in lines for n in line.reads}
    body = ""
    for line in lines:
        word = "let" if line.target in read else "output"
        body += f"{word} {names[line.target]} = {line.form.format(*(names[n] for n in line.reads))}\n"
    return HEAD + body


def shuffled(lines: list[Line], seed: int) -> list[Line]:
    """Another order in which everything is defined before it is read."""
    rng, left, known, made = random.Random(seed), list(lines), {0, 1}, []
    while left:
        ready = [line for line in left if known.issuperset(line.reads)]
        line = rng.choice(ready)
        left.remove(line)
        known.add(line.target)
        made.append(line)
    return made


def outcome(source: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """What was made of a script, told without names: each kernel's plan, and every decision."""
    checked = driver.compile_source(Source("s.lf", source))
    made = driver.optimise(driver.lower_program(checked.typed), Options(sizes=SIZES))
    plans = next(s.notes["plans"] for s in made.stages if s.name == "fuse")
    kernels = sorted((p.schedule, p.path, round(p.cost.seconds * 1e9), len(p.launches)) for p in plans.values())
    decisions = sorted(
        (d.verdict, d.kind, d.cause.code if d.cause else "", *sorted((len(d.a), len(d.b))), d.saved, round(d.before, 3))
        for d in made.decisions
    )
    return kernels, decisions


def plain(lines: list[Line]) -> dict[int, str]:
    return {0: "x", 1: "g"} | {line.target: f"v{line.target}" for line in lines}


@settings(max_examples=10, deadline=None, phases=FAST)
@given(lines=scripts(), seed=st.integers(0, 1000))
def test_the_order_of_independent_statements_does_not_matter(lines: list[Line], seed: int) -> None:
    if lines:
        names = plain(lines)
        assert outcome(text(lines, names)) == outcome(text(shuffled(lines, seed), names))


@settings(max_examples=10, deadline=None, phases=FAST)
@given(lines=scripts(), seed=st.integers(0, 1000))
def test_names_do_not_matter(lines: list[Line], seed: int) -> None:
    if lines:
        names = plain(lines)
        words = [f"{a}{b}" for a in "zqkaehm" for b in "wuybtd"]
        random.Random(seed).shuffle(words)
        other = {0: "x", 1: "g"} | {line.target: words[n] for n, line in enumerate(lines)}
        assert outcome(text(lines, names)) == outcome(text(lines, other))
