"""Every exact spelling of the op table against the reference, bit for bit, as C++ on the CPU; the others near it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from emulator import Emulated, available, build
from op_samples import ALL_DTYPES, anything, few, nasty, same, ulps
from test_device_ops import held, operand_types

from loopfuse import ops
from loopfuse.dtypes import BF16, BOOL, F16, F64, DType
from loopfuse.emit.code import Code, KernelCode, Launch, Number, Pointer, ceil_div, grid
from loopfuse.numerics import Array
from loopfuse.oprow import OpRow
from loopfuse.sizes import Poly
from loopfuse.spelling import C_TYPES, helpers

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler (g++, c++, clang++, or $CXX) is installed")

ROWS = tuple(ops.OPS.values())
RANDOM = 500


@cache
def applications() -> list[tuple[OpRow, DType, DType]]:
    """Every row at every operand type and result type."""
    return [
        (row, dtype, result)
        for row in ROWS
        for dtype in ALL_DTYPES
        for result in ALL_DTYPES
        if dtype.kind in row.kinds and row.problem(operand_types(row, dtype), result) is None
    ]


@cache
def machine() -> Emulated:
    """One kernel that does any of the applications."""
    cases = []
    for n, (row, dtype, result) in enumerate(applications()):
        operands = [f"((const {C_TYPES[d.name]}*)a{k})[i]" for k, d in enumerate(operand_types(row, dtype))]
        text = row.spell(dtype, "default", result).format(operands, dtype, result)
        cases.append(f"  case {n}: (({C_TYPES[result.name]}*)out)[i] = {text}; break;")
    body = "\n".join(cases)
    text = (
        'extern "C" __global__ void apply(int which, const void* a0, const void* a1, const void* a2, void* out, int n) '
        "{\n  int i = blockIdx.x * 256 + threadIdx.x;\n  if (i < n) switch (which) {\n" + body + "\n  }\n}"
    )
    n = Poly.of("n")
    arguments = (Number(Poly.of("which"), 32), *(Pointer(p) for p in ("a0", "a1", "a2", "out")), Number(n, 32))
    return build(
        Code("ops", "\n".join(helpers(text)), (KernelCode("apply", text, 256),),
             (Launch("apply", grid(ceil_div(n, 256)), arguments),), (), ("a0", "a1", "a2"), (), ("out",),
             ("which", "n"))
    )  # fmt: skip


def arguments(row: OpRow, dtype: DType) -> list[Array]:
    """Every combination of sample values, then random bits, then random numbers of the row's domain."""
    rng = np.random.default_rng(11)
    types = operand_types(row, dtype)
    mesh = np.meshgrid(*((few if row.arity == 3 and d != BOOL else nasty)(d) for d in types), indexing="ij")
    args = []
    for n, d in enumerate(types):
        parts = [mesh[n].ravel(), anything(d, RANDOM, n + 1)]
        if d.is_float:
            parts.append(rng.uniform(*row.domain[n], RANDOM).astype(d.numpy))
        args.append(np.concatenate(parts))
    return [a[: min(map(len, args))] for a in args]


def found(which: int, args: list[Array], result: DType) -> Array:
    dtype = np.dtype(np.float32) if result in (F16, BF16) else result.numpy
    inputs = {f"a{k}": held(args[min(k, len(args) - 1)]) for k in range(3)}
    sizes = {"which": which, "n": args[0].size}
    return machine().run(inputs, {}, sizes, {"out": (dtype, args[0].shape)})["out"].astype(result.numpy)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_the_spellings_mean_what_the_reference_does(row: OpRow) -> None:
    for which, (candidate, dtype, result) in enumerate(applications()):
        if candidate is row:
            with np.errstate(all="ignore"):
                check(row, dtype, result, which)


def check(row: OpRow, dtype: DType, result: DType, which: int) -> None:
    args = arguments(row, dtype)
    expected, got = row.evaluate(args, result), found(which, args, result)
    what = f"{row.name} {dtype} -> {result}"
    bound = row.ulp(result)
    if bound == 0.0:
        wrong = np.flatnonzero(~same(got, expected))
        assert wrong.size == 0, (what, [a[wrong[0]] for a in args], got[wrong[0]], expected[wrong[0]])
        return
    wide = [a.astype(np.float64) if a.dtype != bool else a for a in args]
    fine = result == F64 or row.gives == "explicit"
    exact = (expected if fine else row.evaluate(wide, F64)).astype(np.float64)
    if row.scale is None:
        error, bound = ulps(got, exact, result), bound + (row.reference_ulp if fine else 1e-3)
    else:
        near = np.abs(got.astype(np.float64) - exact) / row.rounding(wide, exact, result)
        error = np.where(same(got, expected), 0.0, near)
        bound = 1.0 + row.reference_ulp * fine
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= bound, (what, error[worst], [a[worst] for a in args], got[worst], exact[worst])
