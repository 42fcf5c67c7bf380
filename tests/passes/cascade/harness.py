"""Running a program before and after the cascade pass, in exact passes and in one pass, on nasty values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loopfuse.backends.reference import Online, run
from loopfuse.ir import Expr, Loop, Program
from loopfuse.passes.base import Options, Outcome
from loopfuse.passes.cascade import cascade
from loopfuse.reader import parse_program
from loopfuse.rewrite import Mapper, walk_program
from loopfuse.verify import verify

Array = np.ndarray[Any, np.dtype[Any]]
WAYS = (Online(1), Online(7), Online(64), Online(1, True), Online(7, True), Online(64, True))
ROWS = ("plain", "masked", "prefix", "inf", "minus", "nan", "equal", "first inf", "first nan")


def cascaded(text: str, numerics: str = "") -> tuple[Program, Outcome]:
    """A program, and what the pass makes of it: verified, and left alone by a second run."""
    if numerics:
        head, _, rest = text.partition("\n")
        text = f"{head}\nnumerics {numerics}\n{rest}"
    program = parse_program(text)
    verify(program)
    outcome = cascade(program, Options())
    verify(outcome.program, ranges=True)
    assert cascade(outcome.program, Options()).program is outcome.program
    assert cascade(shared(program), Options()).program == outcome.program
    return program, outcome


def shared(program: Program) -> Program:
    """The program with equal expressions made one object, as merging and value numbering make them."""
    known: dict[Expr, Expr] = {}
    return Mapper(lambda node: known.setdefault(node, node)).on_program(program)


def folds(program: Program) -> list[list[str]]:
    """The accumulators of each fold, by the names of their monoids."""
    return [[a.monoid for a in s.accs] for s in walk_program(program) if isinstance(s, Loop) and s.accs]


def repaired(program: Program) -> int:
    """How many accumulators have repairs."""
    return sum(a.repair is not None for s in walk_program(program) if isinstance(s, Loop) for a in s.accs)


def rows(rng: np.random.Generator, count: int, extent: int, dtype: Any = np.float64) -> Array:
    """Rows of each sort in `ROWS`."""
    x = (rng.standard_normal((count, extent)) * 3).astype(dtype)
    for i in range(count):
        kind = ROWS[i % len(ROWS)]
        if not extent:
            break
        at = int(rng.integers(extent))
        if kind == "masked":
            x[i] = -np.inf
        elif kind == "prefix":
            x[i, : at + 1] = -np.inf
        elif kind == "inf":
            x[i, at] = np.inf
        elif kind == "minus":
            x[i, at] = -np.inf
        elif kind == "nan":
            x[i, at] = np.nan
        elif kind == "equal":
            x[i] = 2.5
        elif kind == "first inf":
            x[i, 0] = np.inf
        elif kind == "first nan":
            x[i, 0] = np.nan
    return x


def close(found: Array, want: Array, rtol: float, scale: float = 0.0) -> None:
    """Equal but for rounding, NaN and the infinities exactly where they are wanted."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(found[infinite], want[infinite])
    sound = np.isfinite(want)
    far, bound = np.abs(found[sound] - want[sound]), rtol * np.abs(want[sound]) + scale
    assert np.all(far <= bound), (far.max(), bound[np.argmax(far - bound)])


def same(program: Program, after: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], rtol: float = 1e-14,
         scale: float = 0.0) -> dict[str, Array]:  # fmt: skip
    """Run both; the pass's program in all ways. The naive outputs."""
    want = run(program, inputs, sizes, checked=True).outputs
    for way in (None, *WAYS):
        found = run(after, inputs, sizes, online=way, checked=True).outputs
        for name, value in want.items():
            close(found[name], value, rtol, scale)
    return want
