"""What reads bytes from outside. A target takes damaged bytes and returns the code of the refusal, or "" where they were
accepted; anything raised but the user's errors is a fault."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse import driver, reader
from loopfuse.bench import rows
from loopfuse.cli import COMMANDS, main
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.record import from_json
from loopfuse.diag import Collector, Diagnostic, Source, UserError, error, render
from loopfuse.dtypes import BF16, BOOL, F32, I64, U8
from loopfuse.files import Place, load
from loopfuse.frontend import lalr
from loopfuse.frontend.check import check_source
from loopfuse.frontend.fmt import format_source
from loopfuse.lock import read_lock
from loopfuse.testing.campaign import load_figures
from loopfuse.testing.saved import load_case
from loopfuse.views import pins
from malformed import seeds
from malformed.damage import BINARY, JSON, TEXT, Damage

OURS = ("internal error", "Traceback", "this is a bug")
NO_ROOM = "no memory"  # what a file that made the process run out of memory is refused with


NAMES = (
    "script",
    "ir",
    "decisions",
    "lock",
    "grammar",
    "record",
    "cache",
    "sealed",
    "npy",
    "npz",
    "safetensors",
    "image",
    "csv",
    "raw",
    "bench",
    "failure",
    "state",
    "command",
)


@dataclass(frozen=True)
class Target:
    """What is damaged (`seeds`), how, and who reads it."""

    seeds: Sequence[bytes]
    ways: Sequence[Damage]
    read: Callable[[bytes, random.Random], str]
    accepts: bool = True  # whether some of what is damaged can be expected to be accepted


def refused(read: Callable[[], object]) -> str:
    """The code of the refusal, whose message can be shown in all its forms."""
    try:
        read()
    except UserError as why:
        for found in why.diagnostics:
            shown(found)
        return why.diagnostics[0].code
    return ""


def shown(found: Diagnostic) -> None:
    text = render(found)
    assert found.code.startswith("LF") and NO_ROOM not in text, text
    json.loads(found.as_json())


def targets(folder: Path) -> dict[str, Target]:
    """All of them by name; each works in a folder of its own."""
    made = {}
    for name, make in _MAKERS.items():
        (folder / name).mkdir(parents=True)
        made[name] = make(folder / name)
    return made


# -- texts ------------------------------------------------------------------------------------------------------------


def _script(folder: Path) -> Target:
    path = folder / "s.lf"

    def read(data: bytes, rng: random.Random) -> str:
        path.write_bytes(data)

        def through() -> None:
            source = driver.read_source(path)
            collector = Collector()
            typed = check_source(source, search=folder, collector=collector)
            assert (typed is None) == bool(collector.errors)
            for found in collector.found:
                shown(found)
            collector.raise_errors()
            assert typed is not None
            driver.lower_program(typed)
            format_source(source.text)

        return refused(through)

    return Target(seeds.scripts(), TEXT, read)


def _text(data: bytes, name: str) -> Source:
    """As the commands read a text."""
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as why:
        raise UserError(error("LF0511", str(why))) from why


def _ir(folder: Path) -> Target:
    def read(data: bytes, rng: random.Random) -> str:
        def through() -> None:
            source = _text(data, "p.lfir")
            with driver.guard("reader"):
                program = reader.parse_program(source.text, source.name)
            driver.verify_text(program)

        return refused(through)

    return Target(seeds.ir(), TEXT, read)


def _decisions(folder: Path) -> Target:
    return Target(
        seeds.decisions(), TEXT, lambda data, _: refused(lambda: pins.read(_text(data, "d.toml").text, "d.toml"))
    )


def _lock(folder: Path) -> Target:
    path = folder / "s.lf.lock"

    def read(data: bytes, rng: random.Random) -> str:
        path.write_bytes(data)
        told: list[Diagnostic] = []
        assert read_lock(path, told.append) is not None
        for found in told:
            shown(found)
        return told[0].code if told else ""

    return Target(seeds.locks(), TEXT, read)


# -- what is kept between runs ----------------------------------------------------------------------------------------


def _sealed_grammar(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def _grammar(folder: Path) -> Target:
    """Tables with a checksum that fits: written by another version, or by someone with intentions."""
    path = folder / "grammar.json"

    def read(data: bytes, rng: random.Random) -> str:
        path.write_bytes(_sealed_grammar(data) if rng.random() < 0.9 else data)
        return "" if lalr._load(path) is not None else "absent"

    return Target(seeds.grammars(), JSON, read)


def _record(folder: Path) -> Target:
    def read(data: bytes, rng: random.Random) -> str:
        try:
            from_json(data.decode("utf-8", "replace"))
        except ValueError:
            return "ValueError"
        return ""

    return Target(seeds.records(), JSON, read)


def _looked_at(folder: Path) -> str:
    """What becomes of a cache: a program or nothing, and the commands say what it is."""
    cache = Cache(folder)
    found = cache.program("cafe")
    for entry in cache.entries():
        cache.explain(entry.key)
    for words in (["ls"], ["ls", "cafe"], ["ls", "--json"]):
        code, out = _run(["cache", *words, "--cache-dir", str(folder)])
        assert code in (0, 1), out
    return "" if found else "absent"


def _cache(folder: Path) -> Target:
    """Files of a cache whose checksums do not fit any more, or the other way round: files that are something else."""
    seeds.cached(folder)
    files = sorted(p for p in folder.rglob("*.*") if p.is_file() and p.suffix in (".json", ".cubin"))
    good = {p: p.read_bytes() for p in files}

    def read(data: bytes, rng: random.Random) -> str:
        path = rng.choice(files)
        path.write_bytes(data)
        result = _looked_at(folder)
        path.write_bytes(good[path])
        return result

    return Target(list(good.values()), BINARY, read, accepts=False)


def _sealed(folder: Path) -> Target:
    """Entries whose checksum fits, and whose content does not."""
    seeds.cached(folder)
    files = sorted(p for p in folder.rglob("*.json"))
    good = {p: p.read_bytes() for p in files}
    bodies = [b"{" + data.partition(b",")[2] for data in good.values()]

    def read(data: bytes, rng: random.Random) -> str:
        path = rng.choice(files)
        body = data if data[:1] == b"{" else b"{" + data
        path.write_bytes(b'{"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:])
        result = _looked_at(folder)
        path.write_bytes(good[path])
        return result

    return Target(bodies, JSON, read)


# -- arrays -----------------------------------------------------------------------------------------------------------


def _arrays(
    extension: str, make: Callable[[], Sequence[bytes]], ways: Sequence[Damage] = BINARY
) -> Callable[[Path], Target]:
    def target(folder: Path) -> Target:
        path = folder / f"x{extension}"

        def read(data: bytes, rng: random.Random) -> str:
            path.write_bytes(data)
            dtype, rank = rng.choice((F32, BF16, BOOL, I64, U8)), rng.randrange(3)
            key = rng.choice(("", ":x", ":w", ":e")) if extension in (".npz", ".safetensors") else ""

            def through() -> None:
                found = load(Place(path.name + key, folder), dtype, rank, "x")
                if isinstance(found, np.ndarray):
                    assert found.nbytes <= 1 << 28
                    found.tobytes()

            return refused(through)

        return Target(make(), ways, read)

    return target


# -- files of the project's own ---------------------------------------------------------------------------------------


def _bench(folder: Path) -> Target:
    path = folder / "found.json"

    def read(data: bytes, rng: random.Random) -> str:
        path.write_bytes(data)

        def through() -> None:
            found = rows.load(path)
            assert all(change.ratio is None or change.ratio > 0 for change in rows.compare(found.values(), found, 0.05))

        return refused(through)

    return Target(seeds.benches(folder), JSON, read)


def _failure(folder: Path) -> Target:
    record = seeds.failures(folder)
    good = record.read_bytes()

    def read(data: bytes, rng: random.Random) -> str:
        record.write_bytes(data)
        result = refused(lambda: load_case(record))
        if not result and rng.random() < 0.3:
            code, out = _run(["fuzz", "--replay", str(record), "--backend", "reference"])
            assert code in (0, 1, 3), out
        return result

    return Target([good], JSON, read)


def _state(folder: Path) -> Target:
    path = folder / "now.json"

    def read(data: bytes, rng: random.Random) -> str:
        path.write_bytes(data)
        return refused(lambda: load_figures(path).share)

    return Target(seeds.states(folder), JSON, read)


# -- command lines ----------------------------------------------------------------------------------------------------

WORDS = ("s.lf", "p.lfir", "x.npy", "d.toml", "found.json", "-", "", "=", "a=b", "x=x.npy", "x=randn", "x=randn(0", "x=const(1e999)",
         "x=randint(0, 99999999999999999999)", "y=out.npy", "y=a/b/out.png", "y=out.xyz", "y=.", "N=8", "N=-1", "N=1e9", "N=2^63",
         "N=2^99999999999", "N=9" + "9" * 5000, "a=1", "a=nan", "a=0x1f", "M=8,N=8", "N", "default", "none", "-fuse", "fuse,cse",
         "y", "e", "lower", "fuse", "lower:fuse", "fuse:lower", "99", "h200", "cuda", "reference", "auto", "LF0304", "LF9999",
         "1e999", "8G", "1e300G", "1e-300", "0", "-1", "5%", "nan", "0.001", "9" * 5000, "x" * 300, "n\nn", "\x1b[31m", "\udcff",
         "\u202egnp", "%s", "{}", "..", "~nobody/x", "x.npy:k", "c.npz:", "\u0663", "N=\u0663")  # fmt: skip
SLOW = {"--time", "--cold", "--min-time", "--sweep", "--jobs", "--gen", "--examples", "--tune"}


def _flags() -> dict[str, list[tuple[str, bool]]]:
    """The options of each command, from its help, and whether a value follows."""
    found = {}
    for command in COMMANDS:
        _, out = _run([command, "--help"])
        usage = " ".join(out.partition("\n\n")[0].split())
        options = re.findall(r"\[(-[\w-]+)( [^\]]+)?\]", usage)
        found[command] = sorted((flag, bool(value)) for flag, value in options if flag not in SLOW | {"-h"})
    return found


def _command(folder: Path) -> Target:
    """Words of a command line, one a line: real options and garbage."""
    text = "input x: f32[M, N]\nparam a: f32 = 2\nlet e = exp(a * x)\noutput y = e / sum(e, axis=1, keepdims=true)\n"
    flags = _flags()
    ends = {"fuzz": ["--examples", "1", "--jobs", "1"], "bench": ["--min-time", "0.001"]}
    keep = {"s.lf": text.encode(), "p.lfir": seeds.ir()[0], "d.toml": seeds.decisions()[0],
            "found.json": seeds.benches(folder)[0]}  # fmt: skip
    buffer = io.BytesIO()
    np.save(buffer, np.ones((3, 4), np.float32))
    keep["x.npy"] = buffer.getvalue()

    def read(data: bytes, rng: random.Random) -> str:
        for name, content in keep.items():
            (folder / name).write_bytes(content)
        command = rng.choice([*COMMANDS, "help", "runn", ""]) if rng.random() < 0.95 else rng.choice(WORDS)
        words = ["s.lf"] * (rng.random() < 0.8)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            kind = rng.random()
            if kind < 0.75:
                flag, valued = rng.choice(flags.get(command) or [("--json", False)])
                words += [flag, rng.choice(WORDS)] if valued != (rng.random() < 0.05) else [flag]
            else:
                words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
        with contextlib.chdir(folder):
            code, out = _run([command, *words, *ends.get(command, [])])
        assert code in (0, 1, 2, 3, 4, 5), (code, [command, *words], out)
        return str(code) if code else ""

    return Target([b"-"], (), read)


def _run(words: list[str]) -> tuple[int, str]:
    """A command in this process: its exit code, and all that it printed."""
    out, stdin = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"output y = 1.0\n"), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code: Any = main(words)
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdin = stdin
    assert not any(word in out.getvalue() for word in OURS), (words, out.getvalue()[-3000:])
    return int(code or 0), out.getvalue()


_MAKERS: Mapping[str, Callable[[Path], Target]] = {
        "script": _script, "ir": _ir, "decisions": _decisions, "lock": _lock, "grammar": _grammar, "record": _record,
        "cache": _cache, "sealed": _sealed, "npy": _arrays(".npy", seeds.npy), "npz": _arrays(".npz", seeds.npz),
        "safetensors": _arrays(".safetensors", seeds.safetensors), "image": _arrays(".png", seeds.images),
        "csv": _arrays(".csv", seeds.texts, TEXT), "raw": _arrays(".raw", seeds.texts), "bench": _bench,
        "failure": _failure, "state": _state, "command": _command,
    }  # fmt: skip
assert tuple(_MAKERS) == NAMES
