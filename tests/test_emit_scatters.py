"""Scatter plans as kernels: tables of blocks and of warps, arrays in device memory, exact sums; what follows them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from math import fsum

import numpy as np
import pytest
from emulator import available, build
from gpu_cases import Judge, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import inputs_for
from scatter_programs import TEXTS
from schedule_programs import TEXTS as FINISHED

from loopfuse.bind import Bound
from loopfuse.devices import H200
from loopfuse.emit.code import Code, Fill, Launch
from loopfuse.emit.program import emit
from loopfuse.reader import parse_program

SMALL = replace(H200, units=2)
EMULATED = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

# Extents, in the order of the sizes; the last size of `segments` and the others is that of the arrays.
EXTENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "histogram": ((1, 1), (5, 7), (100, 128), (300, 333)),
    "segments": ((1, 1), (1000, 5), (20000, 300), (20000, 60000)),
    "other monoids": ((1, 1), (1000, 5), (20000, 300)),
    "guarded": ((1, 1, 5), (20, 50, 5), (100, 200, 300), (100, 200, 60000)),
}
CASES = [(name, extents, dynamic) for name, all_ in EXTENTS.items() for k, extents in enumerate(all_)
         for dynamic in ((False, True) if k == len(all_) - 1 and name != "other monoids" else (False,))]  # fmt: skip


def made(name: str, extents: tuple[int, ...], dynamic: bool = False) -> tuple[Code, Bound]:
    """The code for a program, and data on which all subscripts are in range."""
    program = parse_program(TEXTS.get(name) or FINISHED[name])
    sizes = {s.id: n for s, n in zip(program.sizes, extents, strict=True)}
    arrays = inputs_for(program, sizes)
    if name == "guarded":
        arrays["key"] = np.minimum(arrays["key"], sizes["K"] - 2).astype(np.int32)
    return emit(program, sizes, SMALL, only="scatter", dynamic=dynamic), Bound(sizes, arrays)


@EMULATED
@pytest.mark.parametrize(("name", "extents", "dynamic"), CASES)
def test_values(name: str, extents: tuple[int, ...], dynamic: bool) -> None:
    """Within the derived bound, the same bits in every order of threads and blocks."""
    program = parse_program(TEXTS.get(name) or FINISHED[name])
    code, bound = made(name, extents, dynamic)
    assert code.kernels[0].schedule == "scatter", code.refusals
    outputs = {
        b.id: (b.dtype, [int(p.value(bound.sizes)) for p in b.shape]) for b in program.buffers if b.role == "out"
    }
    inputs = {id: bound.inputs[id] for id in code.inputs}
    found = build(code).check(inputs, {}, {n: bound.sizes[n] for n in code.sizes}, outputs)
    assert not (problem := Judge(wrapped(program), bound).verdict(found)), problem


def test_one_launch() -> None:
    """Small arrays: the last block goes on with the rest, and leaves the total and the count of blocks at zero."""
    code, _ = made("histogram", (300, 333))
    assert [type(s) for s in code.steps] == [Launch]
    assert {m.id.rpartition(".")[2] for m in code.memory if m.zeroed} == {"total", "done"}


def test_large_arrays() -> None:
    """Arrays in device memory start at their identities; sums of floats are exact, so that their order is free."""
    code, _ = made("segments", (20000, 60000))
    assert isinstance(code.steps[0], Fill) and "lf_exact_add" in code.kernels[0].text
    assert "atomicAdd(&" not in code.kernels[0].text


EXACT = """
program one(N)
buf x: f32[N] in
buf key: i32[N] in range 0 .. 59999
buf s: f32[60000] out
kernel k1
  fold i < N
    acc sum: f32[60000] sum
    sum[i64(key[i])] <- x[i]
  par j < 60000
    s[j] = sum[j]
"""


@EMULATED
@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(width=32), max_size=400))
def test_exact_sums(values: list[float]) -> None:
    """An exact sum is the sum of all values, rounded once; what is not finite is what IEEE says."""
    program = parse_program(EXACT)
    x = np.array(values, np.float32)
    key = (np.arange(len(values)) % 3).astype(np.int32)
    code = emit(program, {"N": len(values)}, SMALL, only="scatter")
    found = build(code).run({"x": x, "key": key}, outputs={"s": (np.float32, (60000,))})["s"]
    for k in range(3):
        mine = x[key == k]
        with np.errstate(all="ignore"):
            if np.isfinite(mine).all():
                assert found[k] == np.float32(fsum(mine.tolist()))
            else:
                np.testing.assert_equal(found[k], mine.sum(dtype=np.float64).astype(np.float32))


@pytest.mark.skipif(importlib.util.find_spec("cuda.bindings") is None, reason="there is no NVRTC")
@pytest.mark.parametrize(("name", "extents", "dynamic"), [c for c in CASES if c[1][0] > 99])
def test_compiles(name: str, extents: tuple[int, ...], dynamic: bool) -> None:
    """No spills, no warnings."""
    from loopfuse.cuda.compile import compile_kernel

    code, _ = made(name, extents, dynamic)
    for kernel in code.kernels:
        binary = compile_kernel(code.source(kernel), kernel.name, "sm_80", contract=True)
        assert not binary.spills and not binary.warnings, (kernel.name, binary.warnings, binary.registers)
