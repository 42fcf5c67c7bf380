"""What the tests of lowering ask of a program."""

from __future__ import annotations

import numpy as np
from scalar_runs import arrays, run_ir, run_typed
from typed_terms import T, buf, define, dim, names, program

from loopfuse.backends import reference
from loopfuse.dtypes import I64, DType
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import TypedProgram
from loopfuse.ir import Let, Program
from loopfuse.rewrite import children, exprs, subexprs, walk_program
from loopfuse.verify import violations

N, i = names("N i")


def random_array(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + 7)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def check_results(p: TypedProgram, sizes: dict[str, int]) -> None:
    """The lowered program gives the bits that the typed one defines."""
    inputs = arrays(p.buffers, sizes, random_array)
    r = lower(p)
    wanted, found = run_typed(p, inputs, sizes), run_ir(r, inputs, sizes)
    assert len(wanted) == len(found)
    for name, array in reference.run(r, inputs, sizes, checked=True).outputs.items():
        np.testing.assert_allclose(array, found[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for (name, a), b in zip(wanted.items(), found.values(), strict=True):
        if a.shape == b.shape:
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_array_equal(a[-1], b, err_msg=name)  # a carry: its final value


def check_valid(r: Program) -> None:
    assert [str(v) for v in violations(r, ranges=True)] == []


def single(value: T) -> TypedProgram:
    """`y[i] = value` over x[N], c[N]."""
    buffers = [buf("x", N, role="in"), buf("c", N, role="in"), buf("g", N, role="in", dtype=I64), buf("y", N)]
    return program("N", buffers, [define("y", [dim(i, N)], value)], "y")


def depth(r: Program) -> int:
    levels: dict[int, int] = {}
    for s in walk_program(r):
        for e in subexprs(*exprs(s)):
            levels[id(e)] = 1 + max((levels[id(c)] for c in children(e)), default=0)
    return max(levels.values())


def written_size(r: Program) -> int:
    """Nodes of the program as text, every expression a tree."""
    total, sizes = 0, {}
    for s in walk_program(r):
        roots = list(exprs(s))
        for e in subexprs(*roots):
            sizes[id(e)] = 1 + sum(sizes[id(c)] for c in children(e))
        total += sum(sizes[id(e)] for e in roots)
    return total


def lets(r: Program) -> list[Let]:
    return [s for s in walk_program(r) if isinstance(s, Let)]
