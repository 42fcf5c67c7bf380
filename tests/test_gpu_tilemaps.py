"""Tile maps on a GPU: a hand-written kernel copies tiles by them. What it reads outside the array is zero, what lies outside
is not written (but for the last 16 bytes of a row), and replays follow their arrays."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import pytest
from gpu_programs import Given, load

from loopfuse.cuda.arrays import to_device
from loopfuse.cuda.bound import bind
from loopfuse.cuda.context import Device, open_device
from loopfuse.dtypes import BF16, F32, F64, I8, U8, DType
from loopfuse.emit.code import ZERO, Code, Fill, KernelCode, Launch, Number, Pointer, TileMap, ceil_div, grid
from loopfuse.emit.prelude import functions
from loopfuse.ir import Buffer
from loopfuse.sizes import Poly

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # what other libraries warn of is theirs
M, N, S = (Poly.of(name) for name in "MNS")
ROWS, ROW = 8, 128  # of a tile, and bytes of each
PITCH = ceil_div(N, 16) * 16  # elements of a row in memory

# Copies the tile at (column - shift, row - shift) to (column, row), and all of it to where it can be looked at.
TEXT = """\
extern "C" __global__ void __launch_bounds__(64) copy_tiles(const __grid_constant__ lf_map to, unsigned char* seen,
                                                            const __grid_constant__ lf_map of, int shift) {
  extern __shared__ __align__(1024) unsigned char lf_shared[];
  unsigned long long* bar = (unsigned long long*)(lf_shared + 1024);
  int column = blockIdx.x * COLUMNS, row = blockIdx.y * 8;
  if (threadIdx.x == 0) {
    lf_bar_init(bar, 1);
    lf_bar_ready();
    lf_tile_prefetch(&of);
    lf_bar_expect(bar, 1024);
    lf_tile_load2(lf_shared, &of, bar, column - shift, row - shift);
  }
  __syncthreads();
  lf_bar_wait(bar, 0);
  seen += 1024 * ((long long)blockIdx.y * gridDim.x + blockIdx.x);
  for (int k = threadIdx.x; k < 1024; k += 64) seen[k] = lf_shared[k];
  if (threadIdx.x == 0) {
    lf_tile_store2(&to, lf_shared, column, row);
    lf_tile_store_end();
    lf_tile_store_read<0>();
  }
}
"""


def program(dtype: DType, swizzle: int, step: Poly = PITCH) -> Given:
    """`z` from `x`, of M rows of N elements each; rows of `x` begin `step` elements apart. Bytes of z that are not written
    are 255."""
    columns = ROW // dtype.itemsize
    kernel = KernelCode("copy_tiles", TEXT.replace("COLUMNS", str(columns)), 64, 1024 + 8)
    x = TileMap("x", dtype, ZERO, (N, M), (step,), (columns, ROWS), swizzle)
    z = TileMap("z", dtype, ZERO, (N, M), (PITCH,), (columns, ROWS), swizzle)
    across, down = ceil_div(N, columns), ceil_div(M, ROWS)
    launch = Launch("copy_tiles", grid(across, down), (z, Pointer("seen"), x, Number(S, 32)))
    code = Code("tiles", "\n".join(functions(kernel.text)), (kernel,), (Fill("z", 255), launch), (), ("x",), (),
                ("z", "seen"), ("M", "N", "S"), frozenset({"x", "z"}))  # fmt: skip
    buffers = (
        Buffer("x", dtype, (M, PITCH)),
        Buffer("z", dtype, (M, PITCH)),
        Buffer("seen", U8, (down, across, Poly.of(ROWS), Poly.of(ROW))),
    )
    return Given(code, buffers)


def numbers(m: int, n: int, dtype: DType, seed: int = 0) -> Any:
    """M rows of N in rows of a multiple of 16; what is outside of N is not zero."""
    pitch = -(-n // 16) * 16
    return np.random.default_rng(seed).integers(1, 100, (m, pitch)).astype(dtype.numpy)


def expected(x: Any, n: int, shift: int, dtype: DType, swizzle: int) -> tuple[Any, Any]:
    """The bytes of `z` and of the tiles, of rows that lie apart."""
    m, columns = len(x), ROW // dtype.itemsize
    down, across = -(-m // ROWS), -(-n // columns)
    whole = np.zeros((down * ROWS + shift, across * columns + shift), dtype.numpy)
    whole[shift : shift + m, shift : shift + n] = x[:, :n]
    whole = np.ascontiguousarray(whole[: down * ROWS, : across * columns])
    z = (
        np.frombuffer(b"\xff" * (m * -(-n // 16) * 16 * dtype.itemsize), dtype.numpy)
        .reshape(m, -(-n // 16) * 16)
        .copy()
    )
    z[:, :n] = whole[:m, :n]
    apart = 16 // dtype.itemsize  # of the last 16 bytes of a row all are written
    end = min(-(-n // apart) * apart, whole.shape[1])
    z[:, n:end] = whole[:m, n:end]
    seen = whole.view(np.uint8).reshape(down, ROWS, across, 8, ROW // 8).transpose(0, 2, 1, 3, 4)
    if swizzle:
        chunks = np.arange(8)[None, :] ^ np.arange(ROWS)[:, None]
        seen = np.take_along_axis(seen, chunks[None, None, :, :, None], 3)
    return z.view(np.uint8), seen.reshape(down, across, ROWS, ROW)


@pytest.fixture(scope="module")
def device() -> Device:
    made = open_device()
    if made.capability < (9, 0):
        pytest.skip("tile maps need compute capability 9.0")
    return made


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("dtype", [I8, BF16, F32, F64], ids=str)
def test_tiles_are_filled_with_zeros_and_clipped(device: Device, dtype: DType, swizzle: int) -> None:
    loaded = load(device, program(dtype, swizzle))
    apart = 16 // dtype.itemsize  # a tile starts at a multiple of 16 bytes along a row, or the instruction is illegal
    for m, n, shift in ((13, 35, 0), (1, 1, 0), (16, 128, 0), (17, 131, apart), (7, 300, 2 * apart), (20, 16, apart)):
        x = numbers(m, n, dtype)
        found = loaded.call({"x": x}, sizes={"M": m, "N": n, "S": shift}, to_host=True)
        z, seen = expected(x, n, shift, dtype, swizzle)
        np.testing.assert_array_equal(found["seen"], seen, f"{m} x {n}")
        np.testing.assert_array_equal(found["z"].view(np.uint8), z, f"{m} x {n}")


@pytest.mark.parametrize("how", ["graph", "direct"])
def test_replays_follow_arrays(device: Device, how: Any) -> None:
    m, n = 13, 35
    first, second = numbers(m, n, F32, 1), numbers(m, n, F32, 2)
    other = to_device(device, second)
    bound = bind(load(device, program(F32, 128)), {"x": first}, sizes={"M": m, "N": n, "S": 0}, how=how)
    assert bound.kind == how
    before = bound()["z"]
    np.testing.assert_array_equal(before.numpy().view(np.uint8), expected(first, n, 0, F32, 128)[0])
    bound.rebind(x=other)
    np.testing.assert_array_equal(bound()["z"].numpy().view(np.uint8), expected(second, n, 0, F32, 128)[0])
    target = to_device(device, np.zeros_like(first))
    bound.rebind(out={"z": target}, x=first)
    kept = before.numpy()
    for _ in range(20):
        bound()
    np.testing.assert_array_equal(target.numpy().view(np.uint8), expected(first, n, 0, F32, 128)[0])
    np.testing.assert_array_equal(before.numpy().view(np.uint8), kept.view(np.uint8))


def test_rows_may_overlap(device: Device) -> None:
    m, n = 20, 40
    x = numbers(m, n, F32)
    found = load(device, program(F32, 128, Poly.of(4))).call({"x": x}, sizes={"M": m, "N": n, "S": 0}, to_host=True)
    windows = np.lib.stride_tricks.sliding_window_view(x.reshape(-1), n)[::4][:m]
    z, seen = expected(windows, n, 0, F32, 128)
    np.testing.assert_array_equal(found["seen"], seen)
    np.testing.assert_array_equal(found["z"].view(np.uint8), z)


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0), (0, 0)])
def test_arrays_without_elements(device: Device, m: int, n: int) -> None:
    found = load(device, program(F32, 128)).call(
        {"x": numbers(m, n, F32)}, sizes={"M": m, "N": n, "S": 0}, to_host=True
    )
    assert found["z"].shape == (m, -(-n // 16) * 16)


def test_encoding_costs_the_host_little(device: Device) -> None:
    run = device.driver.tile_map(F32, (35, 13), (192,), (32, 8), 128)
    with device.active():
        run(256)
        begin = perf_counter()
        for n in range(1, 1001):
            run(256 * n)
        each = (perf_counter() - begin) / 1000
    print(f"encoding a tile map: {each * 1e6:.2f} us")
    assert each < 20e-6
