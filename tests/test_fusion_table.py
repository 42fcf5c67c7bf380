"""The patterns that must fuse, from plain source: kernels, what stays in memory, what is read how often.

Each file of tests/fusion is a script and, on lines that begin with `#!`, what must hold: `dims` (one line for each set of
sizes; without sizes it is tried too), `freeze` (inputs that are constant), `kernels`, `launches`, `materialized` (arrays
between kernels, at most so many), `reads once` (what is read from memory is the inputs, once each), `no temp of size`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopfuse import driver
from loopfuse.analysis.env import environment
from loopfuse.cli.arguments import script_folder
from loopfuse.passes.base import Options
from loopfuse.schedule.plan import Plan
from loopfuse.sizes import Poly

FOLDER = Path(__file__).parent / "fusion"
SLACK = 1.08  # of the bytes of the inputs: halos, partial sums and tables are read beside them


def rules(path: Path) -> list[list[str]]:
    """The words of the expectations."""
    return [line[2:].split() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#!")]


def cases() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.lf")):
        dims = [words[1] for words in rules(path) if words[0] == "dims"]
        frozen = any(words[0] == "freeze" for words in rules(path))  # only an array of some size can be frozen
        for text in dims if frozen else ("", *dims):
            yield pytest.param(path, text, id=f"{path.stem}-{text or 'symbolic'}")


def compiled(path: Path, dims: str) -> driver.Optimised:
    source = driver.read_source(path)
    checked = driver.compile_source(source, search=script_folder(source))
    sizes = {k: int(v) for k, v in (pair.split("=") for pair in dims.split(",") if pair)}
    frozen: dict[str, Any] = {}
    for words in rules(path):
        if words[0] == "freeze" and sizes:
            numbers = sizes | {s.id: s.value for s in checked.typed.sizes if s.value is not None}
            for buffer in checked.typed.buffers:
                if buffer.id in words[1].split(","):
                    shape = tuple(int(p.value(numbers)) for p in buffer.shape)
                    frozen[buffer.id] = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(buffer.dtype.numpy)
    specialise = sizes if frozen else {}
    return driver.optimise(
        driver.lower_program(checked.typed), Options(sizes=sizes, frozen=frozen, specialise=specialise)
    )


def plans(made: driver.Optimised) -> dict[str, Plan]:
    found: dict[str, Plan] = {}
    for stage in made.stages:
        found = dict(stage.notes.get("plans", found))
    return found


def holds(relation: list[str], value: int) -> bool:
    operator, limit = ("==", relation[0]) if len(relation) == 1 else relation
    return value <= int(limit) if operator == "<=" else value == int(limit)


@pytest.mark.parametrize(("path", "dims"), list(cases()))
def test_pattern(path: Path, dims: str) -> None:
    made = compiled(path, dims)
    program, found = made.program, plans(made)
    env = environment(program, sizes={k: int(v) for k, v in (p.split("=") for p in dims.split(",") if p)})
    assert {k.id for k in program.kernels} == found.keys(), "a kernel has no plan"
    temps = [b for b in program.buffers if b.role == "temp" and b.scope == "device"]
    for words in rules(path):
        what = " ".join(words)
        if words[0] == "kernels":
            assert holds(words[1:], len(program.kernels)), what
        elif words[0] == "launches":
            assert holds(words[1:], sum(len(p.launches) for p in found.values())), what
        elif words[0] == "materialized":
            limit = ["0"] if words[1] == "none" else words[1:]
            assert holds(limit, len(temps)), f"{what}: {[b.id for b in temps]}"
        elif what == "reads once":
            given = sum(b.dtype.itemsize * prod(env.value(p) for p in b.shape) for b in program.buffers
                        if b.role in ("in", "frozen", "param"))  # fmt: skip
            read = sum(p.cost.reads for p in found.values())
            partials = sum(p.workspace for p in found.values())
            assert read <= SLACK * given + partials + 4096, f"{read} bytes are read of {given}"
        elif what.startswith("no temp of size"):
            size = np.prod([int(env.value(Poly.of(n))) for n in re.findall(r"\w+", words[-1])])
            assert all(prod(env.value(p) for p in b.shape) < size for b in temps), what
        else:
            assert words[0] in ("dims", "freeze"), f"unknown expectation {what}"
