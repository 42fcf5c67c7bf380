"""Programs as emission gives them, written by hand: for tests of compiling, keeping and launching."""

from __future__ import annotations

from dataclasses import replace

from loopfuse.diag import Source, Span
from loopfuse.dtypes import BF16, F32
from loopfuse.emit.code import (
    FAULTS,
    Code,
    Fault,
    Fill,
    KernelCode,
    Launch,
    Memory,
    Number,
    Param,
    Pointer,
    Repeat,
    TileMap,
    Tiling,
    ceil_div,
    grid,
)
from loopfuse.emit.prelude import PRIMITIVES
from loopfuse.sizes import ONE, ZERO, Poly

SCRIPT = Source("twice.lf", "input x: f32[N]\noutput y = 2 * x\n")
N, T = Poly.of("N"), Poly.of("T")

TWICE = """\
// {name}[i] = {factor} * x[i]
extern "C" __global__ void __launch_bounds__(256) {name}(float* {name}_out, const float* x, int N) {{
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < N) {name}_out[i] = {factor}.0f * x[i];
}}
"""
# A table a thread, read at computed places: as much stack as its size.
TABLE = """\
extern "C" __global__ void table(float* y, const int* x, int n) {
  __shared__ float seen[32];
  float t[64];
  for (int k = 0; k < 64; k++) t[k] = y[k * n];
  for (int k = 0; k < n; k++) t[x[k] & 63] += (float)k;
  seen[threadIdx.x & 31] = t[x[n] & 63];
  __syncthreads();
  y[threadIdx.x] = seen[(threadIdx.x + 1) & 31];
}
"""
# Sixty-four values that live at once.
WIDE = """\
extern "C" __global__ void wide(float* y, const float* x, int n) {
  float a[64];
#pragma unroll
  for (int k = 0; k < 64; k++) a[k] = x[k * n + threadIdx.x];
  for (int r = 0; r < n; r++) {
#pragma unroll
    for (int k = 0; k < 64; k++) a[k] = a[k] * a[(k + 1) & 63] + a[(k + 7) & 63];
  }
#pragma unroll
  for (int k = 0; k < 64; k++) y[k * n + threadIdx.x] = a[k];
}
"""


def twice(factors: tuple[int, ...] = (2,), name: str = "twice") -> Code:
    """A kernel for each factor, all of the same input."""
    kernels = tuple(
        KernelCode(f"k{f}", TWICE.format(name=f"k{f}", factor=f), 256, kernel=f"k{f}", schedule="map",
                   why=f"y{f}[i] = {f} x[i], a thread an element", spans=(Span(SCRIPT, 16, 32),))
        for f in factors
    )  # fmt: skip
    steps = tuple(
        Launch(f"k{f}", grid(ceil_div(N, 256)), (Pointer(f"y{f}"), Pointer("x"), Number(N, 32))) for f in factors
    )
    return Code(name, PRIMITIVES["lf_sync"], kernels, steps, (), ("x",), (), tuple(f"y{f}" for f in factors), ("N",))


def everything() -> Code:
    """Whatever a `Code` can hold; not to be run."""
    first, second = twice((2, 3)).kernels
    tiling = Tiling("wgmma bf16", "bf16", True, 128, 192, "2 warpgroups", 4, 64, 192, 99, 66, 64, 1.5e-4, 1 << 40, 7, 2, True, 2,
                    main=0.1, epilogue=1000.0, comes=("r",), goes=("o", "p"), folds=("m",))  # fmt: skip
    second = replace(second, tiling=tiling)
    odd = (N * N * 3 - N // 5 + (N + 1) // T - (1 << 70), ONE, ZERO)
    loop = Repeat("s", ZERO, T, ONE, (
        Launch("k2", odd, (Pointer("x"), Number(Poly.of("s") + 1), Param("eps", BF16), Param("scale", F32))),
        Repeat("r", ONE, Poly.of("s"), Poly.of(2), (Fill("t", 255),)),
        Launch("k3", grid(N, T), (TileMap("x", BF16, Poly.of("s") * N, (N, ceil_div(T, 3)), (N // 8 * 8,), (64, 128)),
                                  TileMap("t", F32, ZERO, (ONE, N, T), (4 * N, N * T), (16, 8, 1), 64))),
    ))  # fmt: skip
    return Code(
        "everything", "// \u00fcber\n", (first, second), (Fill(FAULTS), loop), (Memory("t", 4 * N), Memory("u", ONE, True)),
        ("x", "w"), ("eps", "scale"), ("y",), ("N", "T"), frozenset({"x", "w"}),
        (Fault(0, "x", Span(SCRIPT, 0, 5)), Fault(1, "w")), False, {"k2": ("row: no reduction", "column: none"), "k3": ()},
    )  # fmt: skip
