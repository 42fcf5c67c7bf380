"""Every spelling of the op table run on a GPU against the reference, within the errors that the table promises.

Skipped where there is no GPU. Exact rows must agree bit for bit; the functions of one f32 operand are swept over all
2^32 numbers against double precision on the device.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from op_samples import ALL_DTYPES, anything, few, nasty, same, ulps

from loopfuse import ops
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, DType
from loopfuse.numerics import Array
from loopfuse.oprow import MOST_GROWTH, OpRow
from loopfuse.spelling import C_TYPES, Spelling, helpers

ROWS = tuple(ops.OPS.values())
RANDOM = 20000


class Device:
    """The first GPU, driven through cuda-bindings."""

    def __init__(self, nvrtc: Any, driver: Any) -> None:
        self.nvrtc, self.driver = nvrtc, driver
        self.call(driver.cuInit, 0)
        device = self.call(driver.cuDeviceGet, 0)
        self.call(driver.cuCtxSetCurrent, self.call(driver.cuDevicePrimaryCtxRetain, device))
        major, minor = (
            self.call(driver.cuDeviceGetAttribute, getattr(driver.CUdevice_attribute, name), device)
            for name in ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR")
        )
        self.arch = f"sm_{major}{minor}"

    @staticmethod
    def call(function: Callable[..., Any], *args: Any) -> Any:
        error, *rest = function(*args)
        if int(error):
            raise RuntimeError(f"{function.__name__}: {error}")
        return rest[0] if rest else None

    def module(self, source: str) -> Any:
        """Compiled, with denormals kept and without contraction."""
        program = self.call(self.nvrtc.nvrtcCreateProgram, source.encode(), b"ops.cu", 0, [], [])
        options = [f"--gpu-architecture={self.arch}".encode(), b"--std=c++17", b"--fmad=false"]
        self.call(self.nvrtc.nvrtcCompileProgram, program, len(options), options)
        cubin = bytes(self.call(self.nvrtc.nvrtcGetCUBINSize, program))
        self.call(self.nvrtc.nvrtcGetCUBIN, program, cubin)
        return self.call(self.driver.cuModuleLoadData, cubin)

    def run(self, module: Any, name: str, inputs: list[Array], out: Array, blocks: int) -> Array:
        """`name(inputs..., out, length of out)`, 256 threads a block; `out` is filled."""
        kernel = self.call(self.driver.cuModuleGetFunction, module, name.encode())
        pointers = []
        for array in [*inputs, out]:
            pointer = self.call(self.driver.cuMemAlloc, max(array.nbytes, 1))
            self.call(self.driver.cuMemcpyHtoD, pointer, np.ascontiguousarray(array).ctypes.data, array.nbytes)
            pointers.append(pointer)
        values = (*(int(p) for p in pointers), out.size)
        types = (*(ctypes.c_void_p for _ in pointers), ctypes.c_longlong)
        self.call(self.driver.cuLaunchKernel, kernel, blocks, 1, 1, 256, 1, 1, 0, 0, (values, types), 0)
        self.call(self.driver.cuCtxSynchronize)
        self.call(self.driver.cuMemcpyDtoH, out.ctypes.data, pointers[-1], out.nbytes)
        for pointer in pointers:
            self.call(self.driver.cuMemFree, pointer)
        return out


pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Device:
    try:
        nvrtc, driver = (importlib.import_module(f"cuda.bindings.{name}") for name in ("nvrtc", "driver"))
        return Device(nvrtc, driver)
    except (ImportError, RuntimeError) as problem:
        pytest.skip(f"no GPU here: {problem}")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def operand_types(row: OpRow, dtype: DType) -> tuple[DType, ...]:
    return tuple(BOOL if row.operands == "cond" and n == 0 else dtype for n in range(row.arity))


def applications(row: OpRow) -> list[tuple[DType, DType, ops.Numerics]]:
    found: list[tuple[DType, DType, ops.Numerics]] = []
    for dtype in ALL_DTYPES:
        for result in ALL_DTYPES:
            if dtype.kind in row.kinds and row.problem(operand_types(row, dtype), result) is None:
                found.append((dtype, result, "default"))
                if row.spell(dtype, "fast", result).approx:
                    found.append((dtype, result, "fast"))
    return found


def arguments(row: OpRow, dtype: DType) -> list[Array]:
    """Every combination of sample values, then random bits, then random numbers of the row's domain."""
    rng = np.random.default_rng(11)
    types = operand_types(row, dtype)
    pick = few if row.arity == 3 else nasty
    mesh = np.meshgrid(*(pick(d) if d != BOOL else nasty(d) for d in types), indexing="ij")
    args = []
    for n, d in enumerate(types):
        parts = [mesh[n].ravel(), anything(d, RANDOM, n + 1)]
        if d.is_float:
            parts.append(rng.uniform(*row.domain[n], RANDOM).astype(d.numpy))
        args.append(np.concatenate(parts))
    return args if all(d.is_float for d in types) else [a[: min(map(len, args))] for a in args]


def held(x: Array) -> Array:
    """As the device holds it: 16-bit floats in f32."""
    return x.astype(np.float32) if x.dtype in (F16.numpy, BF16.numpy) else x


def source(row: OpRow) -> str:
    kernels, texts = [], []
    for n, (dtype, result, mode) in enumerate(applications(row)):
        types = operand_types(row, dtype)
        text = row.spell(dtype, mode, result).format([f"a{k}[i]" for k in range(row.arity)], dtype, result)
        args = ", ".join(f"const {C_TYPES[d.name]}* a{k}" for k, d in enumerate(types))
        kernels.append(
            f'extern "C" __global__ void k{n}({args}, {C_TYPES[result.name]}* out, long long length) {{\n'
            f"  long long i = blockIdx.x * 256ll + threadIdx.x;\n  if (i < length) out[i] = {text};\n}}"
        )
        texts.append(text)
    return "\n".join([*helpers("\n".join(texts)), *kernels])


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_the_device_agrees_with_the_reference(row: OpRow, device: Device) -> None:
    module = device.module(source(row))
    for n, (dtype, result, mode) in enumerate(applications(row)):
        args = arguments(row, dtype)
        out = np.zeros(args[0].size, dtype=np.float32 if result in (F16, BF16) else result.numpy)
        found = device.run(module, f"k{n}", [held(a) for a in args], out, -(-out.size // 256)).astype(result.numpy)
        expected = row.evaluate(args, result)
        what = f"{row.name} of {dtype} to {result} in {mode}"
        if row.ulp(result, mode) == 0:
            wrong = np.flatnonzero(~same(found, expected))
            assert wrong.size == 0, (what, [a[wrong[0]] for a in args], found[wrong[0]], expected[wrong[0]])
            continue
        wide = [a.astype(np.float64) if a.dtype != bool else a for a in args]
        fine = result == F64 or row.gives == "explicit"
        exact = (expected if fine else row.evaluate(wide, F64)).astype(np.float64)
        if mode == "default" and row.scale is None:
            # The reference in f64 is not exact itself, and the f64 behind a 16-bit result is.
            bound = row.ulp(result) + (row.reference_ulp if fine else 1e-3)
            error = ulps(found, exact, result)
        else:
            edge = ops.greatest(result) * 0.99
            past = (np.abs(exact) >= edge) & (np.abs(found.astype(np.float64)) >= edge)
            near = np.abs(found.astype(np.float64) - exact) / row.rounding(wide, exact, result, mode)
            error, bound = np.where(past | same(found, expected), 0.0, near), 1.0 + row.reference_ulp * fine
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        assert error[worst] <= bound, (what, error[worst], [a[worst] for a in args], found[worst])


def sweep(text: str, double: str, spelling: Spelling) -> str:
    """A kernel for the greatest error over all f32 numbers, in ulps beyond what `spelling` grants otherwise."""
    low, high = (f"{v!r}" if math.isfinite(v) else f"{math.copysign(1, v)} / 0.0" for v in spelling.domain)
    lost = 2.0**-126 if spelling.flushes else 0.0
    growth = f" - {spelling.growth!r} * fmin(fabs((double)x), {MOST_GROWTH!r})" if spelling.growth else ""
    return (
        "\n".join(helpers(text + double))
        + f"""
extern "C" __global__ void sweep(double* out, long long length) {{
  const double past = {2.0**128!r};
  long long thread = blockIdx.x * 256ll + threadIdx.x;
  double worst = 0;
  for (unsigned long long bits = thread; bits < 1ull << 32; bits += length) {{
    float x = __uint_as_float((unsigned int)bits);
    if (!(x >= {low} && x <= {high})) continue;
    double exact = {double}, found = {text};
    if (exact != exact && found != found) continue;
    if (fabs(exact) >= past) exact = copysign(past, exact);
    if (fabs(found) >= past) found = copysign(past, found);
    int exponent = exact == 0 ? -126 : ilogb(exact);
    double unit = ldexp(1.0, (exponent < -126 ? -126 : exponent > 127 ? 127 : exponent) - 23);
    double error = (fabs(found - exact) - {spelling.absolute!r} - {lost!r}) / unit{growth};
    if (!(error <= worst)) worst = error == error ? error : 1e300;
  }}
  out[thread] = worst;
}}"""
    )


@pytest.mark.parametrize(
    ("row", "spelling"),
    [
        pytest.param(row, s, id=s.text)
        for row in ROWS
        if row.arity == 1 and row.kinds == ("float",) and row.gives == "same"
        for s in row.cuda
        if s.target == "f32"
    ],
)
def test_every_f32_number(row: OpRow, spelling: Spelling, device: Device) -> None:
    double = row.spell(F64).format(["(double)x"], F64, F64)
    module = device.module(sweep(spelling.format(["x"], F32, F32), double, spelling))
    blocks = 1056
    worst = device.run(module, "sweep", [], np.zeros(blocks * 256), blocks).max()
    assert worst <= spelling.ulp, f"{row.name}: {worst} ulp"
