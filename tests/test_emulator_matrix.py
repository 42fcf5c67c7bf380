"""The emulator of kernels: barriers in shared memory, copies of tiles, and the matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator import EmulatorError, available, build

from loopfuse.dtypes import BF16, F16, F32, F64, I8, DType
from loopfuse.emit.code import Argument, Code, KernelCode, Launch, Pointer, TileMap, grid
from loopfuse.emit.prelude import functions
from loopfuse.sizes import ZERO, Poly

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler (g++, c++, clang++, or $CXX) is installed")

ORDERS = ("ascending", "descending", 1, 2)
TYPES: dict[str, tuple[DType, Any]] = {
    "bf16": (BF16, ml_dtypes.bfloat16), "f16": (F16, np.float16), "tf32": (F32, np.float32), "i8": (I8, np.int8)
}  # fmt: skip
HEAD = """extern __shared__ __align__(1024) unsigned char lf_shared[];
  int t = threadIdx.x;
  (void)t;"""


def program(parameters: str, body: str, arguments: Sequence[Argument], inputs: Sequence[str], threads: int = 128,
            shared: int = 0, outputs: Sequence[str] = ("y",), blocks: int = 1) -> Code:  # fmt: skip
    text = f'extern "C" __global__ void __launch_bounds__({threads}) k({parameters}) {{\n  {HEAD if shared else ""}\n{body}\n}}'
    step = Launch("k", grid(blocks), tuple(arguments))
    kernel = KernelCode("k", text, threads, shared)
    aligned = frozenset([*inputs, *outputs])
    return Code("t", "\n".join(functions(text)), (kernel,), (step,), (), tuple(inputs), (), tuple(outputs), (), aligned)


def tile_map(memory: str, dtype: DType, shape: Sequence[int], box: Sequence[int], swizzle: int = 128,
             pitch: int = 0, start: int = 0) -> TileMap:  # fmt: skip
    """Of an array by its shape, outermost first as in NumPy; `box` is innermost first. `pitch`: elements a row."""
    steps = [pitch or shape[-1]]
    for n in shape[-2:0:-1]:
        steps.append(steps[-1] * n)
    where = ZERO + start
    extents = tuple(Poly.of(n) for n in reversed(shape))
    return TileMap(memory, dtype, where, extents, tuple(Poly.of(n) for n in steps), tuple(box), swizzle)


def small(shape: Sequence[int], dtype: Any, seed: int = 1) -> np.ndarray:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, tuple(shape)).astype(dtype)


# -- tiles ------------------------------------------------------------------------------------------------------------


def tile_of(x: np.ndarray, at: Sequence[int], box: Sequence[int]) -> np.ndarray:
    """The tile of an array from `at` on (outermost first), zeros outside."""
    tile = np.zeros(tuple(box), x.dtype)
    index = np.indices(tile.shape)
    places = [index[d] + at[d] for d in range(x.ndim)]
    inside = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(places, x.shape, strict=True)])
    tile[inside] = x[tuple(p[inside] for p in places)]
    return tile


def scattered(tile: np.ndarray, swizzle: int) -> np.ndarray:
    """The bytes of a tile in shared memory."""
    flat = np.ascontiguousarray(tile).reshape(-1).view(np.uint8)
    at = np.arange(flat.size)
    mask = {128: 7, 64: 3, 32: 1, 0: 0}[swizzle]
    found = np.zeros_like(flat)
    found[at ^ ((at >> 7 & mask) << 4)] = flat
    return found


TILES = {
    "swizzled": ((70, 136), (64, 64), (13, 40), 128, np.float16),
    "before the start": ((70, 72), (16, 64), (-5, -9), 128, np.float16),
    "past the end": ((70, 72), (16, 64), (64, 64), 128, np.float16),
    "outside": ((8, 72), (16, 64), (8, 200), 128, np.float16),
    "narrow pattern": ((70, 72), (24, 32), (-3, 60), 64, np.float16),
    "narrowest pattern": ((70, 72), (24, 16), (50, 64), 32, np.float16),
    "dense": ((33, 52), (8, 20), (30, 40), 0, np.float32),
    "doubles": ((33, 18), (24, 16), (-1, 5), 128, np.float64),
    "bytes": ((33, 144), (16, 128), (20, 32), 128, np.int8),
    "three axes": ((5, 9, 72), (3, 4, 64), (-1, 7, 10), 128, np.float16),
    "four axes": ((3, 4, 5, 40), (2, 2, 2, 32), (2, -1, 3, 8), 128, np.float32),
    "five axes": ((2, 3, 4, 5, 16), (2, 2, 1, 3, 16), (1, 2, 3, 3, -8), 0, np.int8),
}


@pytest.mark.parametrize("which", TILES)
def test_tiles_come_and_go(which: str) -> None:
    shape, box, at, swizzle, kind = TILES[which]
    rank, size = len(shape), int(np.prod(box)) * np.dtype(kind).itemsize
    dtype = {2: F16, 4: F32, 8: F64, 1: I8}[np.dtype(kind).itemsize]
    coordinates = ", ".join(str(n) for n in reversed(at))
    body = f"""  unsigned long long* bar = (unsigned long long*)(lf_shared + {size});
  if (t == 0) {{
    lf_tile_prefetch(&x);
    lf_bar_init(bar, 1);
    lf_bar_ready();
    lf_bar_expect(bar, {size});
    lf_tile_load{rank}(lf_shared, &x, bar, {coordinates});
  }}
  lf_sync();
  lf_bar_wait(bar, 0);
  for (int k = t; k < {size}; k += 64) raw[k] = lf_shared[k];
  if (t == 0) {{
    lf_tile_store{rank}(&y, lf_shared, {coordinates});
    lf_tile_store_end();
    lf_tile_store_read<0>();
    lf_tile_store_read<0>();
  }}"""
    inner = tuple(reversed(box))
    c = program(
        "const __grid_constant__ lf_map x, const __grid_constant__ lf_map y, unsigned char* raw", body,
        (tile_map("x", dtype, shape, inner, swizzle), tile_map("y", dtype, shape, inner, swizzle), Pointer("raw")),
        ("x",), 64, size + 8, ("y", "raw"),
    )  # fmt: skip
    x = np.random.default_rng(3).integers(1, 100, shape).astype(kind)
    wanted = {"y": (kind, shape), "raw": (np.uint8, (size,))}
    for order in ORDERS:  # not `check`: what the store leaves out is poison, by the order
        found = build(c).run({"x": x}, {}, {}, wanted, order)
        assert np.array_equal(found["raw"], scattered(tile_of(x, at, box), swizzle))
        inside = np.ix_(*(np.arange(max(a, 0), min(a + b, n)) for a, b, n in zip(at, box, shape, strict=True)))
        assert np.array_equal(found["y"][inside], x[inside])
        left = np.ones(shape, bool)
        left[inside] = False
        poison = found["y"].reshape(-1).view(np.uint8).reshape(*shape, -1)[left]
        assert (poison == {"ascending": 0xFF, "descending": 0x7F}.get(str(order), 0xA5)).all()


# -- products of a warpgroup ------------------------------------------------------------------------------------------


def contraction(kind: str, columns: int, ta: int, tb: int, slabs: int = 2, groups: int = 1) -> Code:
    """`y = a b` of 64 rows a warpgroup; K in slabs of 128 bytes (64 rows where an operand lies MN-major)."""
    dtype, numpy = TYPES[kind]
    item = np.dtype(numpy).itemsize
    deep, rows = 128 // item, 64 * groups
    panels = -(-columns // 64)
    a_bytes, b_bytes = rows * 128, (panels * 8192 if tb else columns * 128)
    b_at, size = a_bytes, a_bytes + -(-b_bytes // 1024) * 1024
    result = "int" if kind == "i8" else "float"

    def load(name: str, to: int, transposed: int, count: int) -> str:
        if not transposed:
            return f"lf_tile_load2(lf_shared + {to}, &{name}, bar, s * {deep}, 0);"
        return " ".join(
            f"lf_tile_load2(lf_shared + {to + 8192 * p}, &{name}, bar, {64 * p}, s * {deep});" for p in range(count)
        )

    a_desc = f"lf_shared + (t / 128) * 8192 + k * {2048 if ta else 32}, 8192, 1024"
    b_desc = f"lf_shared + {b_at} + k * {2048 if tb else 32}, 8192, 1024"
    body = f"""  unsigned long long* bar = (unsigned long long*)(lf_shared + {size});
  {result} d[{columns // 2}];
  if (t == 0) {{ lf_bar_init(bar, 1); lf_bar_ready(); }}
  lf_sync();
  for (int s = 0; s < {slabs}; ++s) {{
    if (t == 0) {{
      lf_bar_expect(bar, {a_bytes + b_bytes});
      {load("a", 0, ta, groups)}
      {load("b", b_at, tb, panels)}
    }}
    lf_bar_wait(bar, s & 1);
    lf_mma_fence();
    for (int k = 0; k < 4; ++k)
      lf_mma_64x{columns}_{kind}_{ta}{tb}(d, lf_mma_desc({a_desc}), lf_mma_desc({b_desc}), s + k > 0);
    lf_mma_end();
    lf_mma_wait<0>();
    lf_sync();
  }}
  for (int j = 0; j < {columns // 8}; ++j)
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 2; ++e)
        y[(t / 32 * 16 + t % 32 / 4 + 8 * h) * {columns} + 8 * j + 2 * (t % 4) + e] = d[4 * j + 2 * h + e];"""
    depth = deep * slabs
    a_map = tile_map("a", dtype, (depth, rows) if ta else (rows, depth), (64, 64) if ta else (deep, rows))
    b_map = tile_map("b", dtype, (depth, columns) if tb else (columns, depth), (64, 64) if tb else (deep, columns))
    return program(
        f"const __grid_constant__ lf_map a, const __grid_constant__ lf_map b, {result}* y", body,
        (a_map, b_map, Pointer("y")), ("a", "b"), 128 * groups, size + 8,
    )  # fmt: skip


PRODUCTS = [
    ("bf16", 64, 0, 0), ("bf16", 8, 1, 1), ("bf16", 192, 0, 1), ("bf16", 256, 1, 0), ("f16", 256, 0, 0),
    ("f16", 64, 1, 1), ("f16", 8, 0, 0), ("tf32", 192, 0, 0), ("tf32", 8, 0, 0), ("i8", 64, 0, 0), ("i8", 256, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "columns", "ta", "tb"), PRODUCTS)
def test_products_of_warpgroups(kind: str, columns: int, ta: int, tb: int) -> None:
    numpy = TYPES[kind][1]
    slabs, groups = 2, 2 if columns == 64 else 1
    depth, rows = 128 // np.dtype(numpy).itemsize * slabs, 64 * groups
    a, b = small((rows, depth), numpy), small((depth, columns), numpy, 2)
    given = {"a": a.T if ta else a, "b": b if tb else b.T}
    result = np.int32 if kind == "i8" else np.float32
    y = build(contraction(kind, columns, ta, tb, slabs, groups)).check(
        given, {}, {}, {"y": (result, (rows, columns))}, ORDERS
    )["y"]
    assert np.array_equal(y, a.astype(result) @ b.astype(result))


def test_operands_overwritten_before_the_wait() -> None:
    c = contraction("bf16", 8, 0, 0)
    k = c.kernels[0]
    old = "    lf_mma_wait<0>();\n    lf_sync();"
    assert old in k.text
    text = k.text.replace(old, "    lf_sync();\n    lf_shared[t * 16] = 0;\n    lf_mma_wait<0>();\n    lf_sync();")
    wrong = replace(c, kernels=(replace(k, text=text),))
    a, b = small((64, 128), ml_dtypes.bfloat16), small((8, 128), ml_dtypes.bfloat16, 2)
    with pytest.raises(EmulatorError, match="depends on the order"):
        build(wrong).check({"a": a, "b": b}, {}, {}, {"y": (np.float32, (64, 8))})


def test_tf32_operands_lose_their_low_bits() -> None:
    a, b = np.full((64, 32), np.float32(1 + 2.0**-11 + 2.0**-9)), np.ones((32, 8), np.float32)
    y = build(contraction("tf32", 8, 0, 0, 1)).check({"a": a, "b": b.T}, {}, {}, {"y": (np.float32, (64, 8))})["y"]
    assert (y == 32 * (1 + 2.0**-9)).all()


# -- a ring of stages -------------------------------------------------------------------------------------------------

RING = """  unsigned long long* full = (unsigned long long*)(lf_shared + 49152);
  unsigned long long* empty = full + 2;
  if (t == 0) {
    for (int s = 0; s < 2; ++s) { lf_bar_init(full + s, 1); lf_bar_init(empty + s, 1); }
    lf_bar_ready();
  }
  lf_sync();
  if (t >= 128) {
    lf_registers_down<24>();
    if (t == 128)
      for (int k = 0; k < 7; ++k) {
        int s = k % 2;
        lf_bar_wait(empty + s, k / 2 % 2 ^ 1);
        lf_bar_expect(full + s, 16384);
        lf_tile_load2(lf_shared + s * 24576, &a, full + s, k * 64, 0);
        lf_tile_load2(lf_shared + s * 24576 + 8192, &b, full + s, k * 64, 0);
      }
    return;
  }
  lf_registers_up<240>();
  float d[32];
  for (int k = 0; k < 7; ++k) {
    int s = k % 2;
    lf_bar_wait(full + s, k / 2 % 2);
    const unsigned char* at = lf_shared + s * 24576;
    lf_mma_fence();
    for (int q = 0; q < 4; ++q)
      lf_mma_64x64_bf16_00(d, lf_mma_desc(at + q * 32, 0, 1024), lf_mma_desc(at + 8192 + q * 32, 0, 1024), k + q > 0);
    lf_mma_end();
    lf_mma_wait<1>();
    if (k && t == 0) lf_bar_arrive(empty + (s ^ 1));
  }
  lf_mma_wait<0>();
  unsigned char* out = lf_shared + 32768;
  if (t == 0) lf_tile_store_read<0>();
  lf_group_sync(1, 128);
  for (int j = 0; j < 4; ++j) {
    int row = t / 32 * 16 + t % 16, chunk = 2 * j + t % 32 / 16;
    lf_store_matrix4(out + row * 128 + (chunk ^ row % 8) * 16, lf_bf16x2(d[8 * j], d[8 * j + 1]),
      lf_bf16x2(d[8 * j + 2], d[8 * j + 3]), lf_bf16x2(d[8 * j + 4], d[8 * j + 5]), lf_bf16x2(d[8 * j + 6], d[8 * j + 7]));
  }
  lf_async_fence();
  lf_group_sync(1, 128);
  if (t == 0) {
    lf_tile_store2(&y, out, 0, 0);
    lf_tile_store_end();
    lf_tile_store_read<0>();
  }"""


def ring(body: str = RING, box: int = 64) -> np.ndarray:
    maps = (tile_map("a", BF16, (64, 448), (64, 64)), tile_map("b", BF16, (64, 448), (64, 64)),
            tile_map("y", BF16, (64, 64), (64, box)))  # fmt: skip
    names = ", ".join(f"const __grid_constant__ lf_map {n}" for n in "aby")
    c = program(names, body, maps, ("a", "b"), 256, 49152 + 64)
    a, b = small((64, 448), ml_dtypes.bfloat16), small((64, 448), ml_dtypes.bfloat16, 2)
    y = build(c).check({"a": a, "b": b}, {}, {}, {"y": (ml_dtypes.bfloat16, (64, 64))}, ORDERS)["y"]
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    assert np.array_equal(y, exact)
    return y


def test_a_ring_of_two_stages() -> None:
    ring()


RELEASE = "    lf_mma_wait<1>();\n    if (k && t == 0) lf_bar_arrive(empty + (s ^ 1));"
# Who passes a barrier too early reads what is not there, or meets the phase after the next.
EARLY = "depends|nobody has waited|not all threads|more than 1 arrivals"
WRONG = {
    "slot released too early": (RELEASE, "    if (t == 0) lf_bar_arrive(empty + s);\n    lf_mma_wait<0>();", EARLY),
    "load not waited for": ("    lf_bar_wait(full + s, k / 2 % 2);\n", "", EARLY),
    "slot not waited for": ("        lf_bar_wait(empty + s, k / 2 % 2 ^ 1);\n", "", EARLY),
    "slot not released": (RELEASE, "lf_mma_wait<1>();", "wait at the barrier at byte 49168 of shared memory, parity 0"),
    "wrong parity": ("full + s, k / 2 % 2)", "full + s, k / 2 % 2 ^ 1)", EARLY),
    "too many bytes": ("full + s, 16384)", "full + s, 16400)", "wait at the barrier at byte 49152"),
    "bytes left over": ("    return;\n", "    if (t == 128) { lf_bar_init(full + 5, 2); lf_bar_expect(full + 5, 64); }\n    return;\n", "left with 64 bytes"),
    "no barrier": ("lf_bar_init(full + s, 1); ", "", "byte 49152 of shared memory is used before lf_bar_init"),
    "barrier not ready": ("    lf_bar_ready();\n", "", "lf_bar_ready"),
    "barrier overwritten": ("  float d[32];", "  float d[32]; full[0] = 1;", "overwritten"),
    "two arrivals": ("if (k && t == 0)", "if (k && t < 2)", EARLY),
    "results not waited for": ("  lf_mma_wait<0>();", "", "lf_mma_wait|depends"),
    "results touched": ("    lf_mma_wait<1>();", "    d[3] += 1; lf_mma_wait<1>();", "changed before lf_mma_wait"),
    "no fence of products": ("    lf_mma_fence();\n", "", "without lf_mma_fence"),
    "not all lanes": ("    lf_mma_end();", "    if (t) lf_mma_end();", "meet at|not all"),
    "other descriptors": ("lf_mma_desc(at + q * 32, 0, 1024)", "lf_mma_desc(at + (t & 1) * 32, 0, 1024)", "other operands in lane 1"),
    "crooked operand": ("lf_mma_desc(at + q * 32, 0, 1024)", "lf_mma_desc(at + 128, 0, 1024)", "multiple of 1024"),
    "misaligned tile": ("lf_shared + s * 24576, &a", "lf_shared + s * 24576 + 64, &a", "byte 64 of shared memory, not a multiple of 128"),
    "tile past shared memory": ("lf_shared + s * 24576, &a", "lf_shared + 45056, &a", "of 8192 bytes at byte 45056 of shared memory, which has 49216"),
    "store not fenced": ("  lf_async_fence();\n", "", "without lf_async_fence"),
    "store not waited for": ("    lf_tile_store_read<0>();\n  }", "  }", "lf_tile_store_read"),
    "store overwritten": ("    lf_tile_store_end();", "    lf_tile_store_end(); out[0] = 1;", "depends"),
    "counts of a barrier": ("  lf_async_fence();\n  lf_group_sync(1, 128);", "  lf_async_fence();\n  lf_group_sync(1, t < 64 ? 128 : 160);", "for 160 threads and for 128|for 128 threads and for 160"),
    "barrier of too many": ("  lf_async_fence();\n  lf_group_sync(1, 128);", "  lf_async_fence();\n  lf_group_sync(1, 160);", "wait at a barrier of some threads"),
    "one warp less": ("    lf_mma_end();", "    if (t < 96) lf_mma_64x64_bf16_00(d, lf_mma_desc(at, 0, 1024), lf_mma_desc(at, 0, 1024), true);\n    lf_mma_end();", "warps of one warpgroup"),
    "registers": ("lf_registers_down<24>", "lf_registers_down<30>", "setmaxnreg to 30 registers"),
    "another map": ("lf_tile_load2(lf_shared + s * 24576, &a", "lf_tile_load2(lf_shared + s * 24576, (const lf_map*)((const char*)&a + 64)", "not a tile map"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_reported(what: str) -> None:
    old, new, report = WRONG[what]
    assert RING.count(old) == 1
    with pytest.raises(EmulatorError, match=report):
        ring(RING.replace(old, new))


def test_maps_that_an_encoder_refuses() -> None:
    body, x = "  if (t == 0) lf_tile_prefetch(&x);", np.zeros((64, 72), np.float16)
    for wrong, report in (
        (tile_map("x", F16, (64, 72), (64, 257)), "256 elements"),
        (tile_map("x", F16, (64, 72), (32, 64)), "pattern"),
        (tile_map("x", F16, (64, 68), (64, 64)), "not multiples of 16"),
        (tile_map("x", F16, (64, 72), (64, 64), start=4), "off a multiple"),
    ):
        with pytest.raises(EmulatorError, match=report):
            c = program("const __grid_constant__ lf_map x", body, (wrong,), ("x",), 32, 16, ())
            build(c).run({"x": x}, {}, {}, {})


def test_maps_need_aligned_memory() -> None:
    c = program("const __grid_constant__ lf_map x", "  if (t == 0) lf_tile_prefetch(&x);",
                (tile_map("x", F16, (64, 72), (64, 64)),), ("x",), 32, 16, ())  # fmt: skip
    x = np.zeros((64, 72), np.float16)
    assert build(c).run({"x": x}, {}, {}, {}) == {}
    with pytest.raises(EmulatorError, match="need not be a multiple of 16"):
        build(replace(c, aligned=frozenset())).run({"x": x}, {}, {}, {})


def test_a_map_of_more_than_there_is() -> None:
    body = """  unsigned long long* bar = (unsigned long long*)(lf_shared + 8192);
  if (t == 0) {
    lf_bar_init(bar, 1);
    lf_bar_ready();
    lf_bar_expect(bar, 8192);
    lf_tile_load2(lf_shared, &x, bar, 0, 32);
  }
  lf_sync();
  lf_bar_wait(bar, 0);"""
    c = program(
        "const __grid_constant__ lf_map x", body, (tile_map("x", F16, (4096, 64), (64, 64)),), ("x",), 32, 8200, ()
    )
    for order in ("ascending", 1):
        with pytest.raises(EmulatorError, match="past the end of `x`"):
            build(c).run({"x": np.zeros((64, 64), np.float16)}, {}, {}, {}, order)


# -- named barriers ---------------------------------------------------------------------------------------------------


def test_one_half_follows_the_other() -> None:
    body = """  int* s = (int*)lf_shared;
  for (int k = 0; k < 3; ++k)
    if (t < 64) {
      if (k) lf_group_sync(2, 128);
      s[t] = x[k * 64 + t];
      lf_group_arrive(1, 128);
    } else {
      lf_group_sync(1, 128);
      y[k * 64 + t - 64] = s[127 - t];
      if (k < 2) lf_group_arrive(2, 128);
    }"""
    x = np.arange(192, dtype=np.int32)
    arguments, wanted = (Pointer("x"), Pointer("y")), {"y": (np.int32, (3, 64))}
    c = program("const int* x, int* y", body, arguments, ("x",), 128, 256)
    assert np.array_equal(build(c).check({"x": x}, {}, {}, wanted, ORDERS)["y"], x.reshape(3, 64)[:, ::-1])
    wrong = body.replace("if (k) lf_group_sync(2, 128);", "")
    with pytest.raises(EmulatorError, match=r"twice|depends"):
        build(program("const int* x, int* y", wrong, arguments, ("x",), 128, 256)).check({"x": x}, {}, {}, wanted)


# -- products of a warp, and matrices in shared memory ----------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_products_of_warps(kind: str) -> None:
    """A is 16 rows of 32 bytes, B 8 columns of 32 bytes: lane l holds bytes 4 (l % 4) and 16 on, of rows l / 4 and 8 on."""
    numpy, result = TYPES[kind][1], np.dtype(np.int32 if kind == "i8" else np.float32)
    depth = 32 // np.dtype(numpy).itemsize
    c_type = "int" if kind == "i8" else "float"
    body = f"""  int g = threadIdx.x / 4, q = threadIdx.x % 4;
  unsigned int u[4], v[2];
  for (int k = 0; k < 4; ++k) u[k] = a[(g + 8 * (k & 1)) * 8 + q + 4 * (k >> 1)];
  for (int k = 0; k < 2; ++k) v[k] = b[g * 8 + q + 4 * k];
  {c_type} d[4] = {{1, 2, 3, 4}};
  lf_mma_16x8_{kind}(d, u, v);
  lf_mma_16x8_{kind}(d, u, v);
  for (int n = 0; n < 4; ++n) y[(g + 8 * (n >> 1)) * 8 + 2 * q + (n & 1)] = d[n];"""
    c = program(f"const unsigned int* a, const unsigned int* b, {c_type}* y", body,
                (Pointer("a"), Pointer("b"), Pointer("y")), ("a", "b"), 32)  # fmt: skip
    a, b = small((16, depth), numpy), small((8, depth), numpy, 2)
    y = build(c).check({"a": a, "b": b}, {}, {}, {"y": (result, (16, 8))}, ORDERS)["y"]
    start = np.tile(np.array([[1, 2], [3, 4]]).repeat(8, 0), (1, 4))
    assert np.array_equal(y, start + 2 * (a.astype(result) @ b.astype(result).T))


@pytest.mark.parametrize("rows", [8, 16])
def test_products_of_doubles(rows: int) -> None:
    """Whose product and sum are rounded once: 1 - 2^-60 is no double, and what -1 leaves of it is one."""
    call = "lf_mma_8x8_f64(d[0], d[1], u[0], v)" if rows == 8 else "lf_mma_16x8_f64(d, u, v)"
    body = f"""  int g = threadIdx.x / 4, q = threadIdx.x % 4;
  double d[4] = {{-1.0, -1.0, -1.0, -1.0}}, u[2], v = b[q * 8 + g];
  for (int h = 0; h < {rows // 8}; ++h) u[h] = a[(g + 8 * h) * 4 + q];
  {call};
  for (int n = 0; n < {rows // 4}; ++n) y[(g + 8 * (n >> 1)) * 8 + 2 * q + (n & 1)] = d[n];"""
    c = program("const double* a, const double* b, double* y", body, (Pointer("a"), Pointer("b"), Pointer("y")),
                ("a", "b"), 32)  # fmt: skip
    a, b = small((rows, 4), np.float64), small((4, 8), np.float64, 2)
    a[-1], b[:, -1] = (1 + 2.0**-30, 0, 0, 0), (1 - 2.0**-30, 0, 0, 0)
    y = build(c).check({"a": a, "b": b}, {}, {}, {"y": (np.float64, (rows, 8))}, ORDERS)["y"]
    assert y[-1, -1] == -(2.0**-60)
    y[-1, -1] = a[-1] @ b[:, -1] - 1
    assert np.array_equal(y, a @ b - 1)


def test_matrices_of_shared_memory() -> None:
    body = """  unsigned short* s = (unsigned short*)lf_shared;
  for (int k = t; k < 256; k += 32) s[k] = x[k];
  lf_syncwarp();
  unsigned int a, b, c, d, e, f, g, h;
  lf_load_matrix4(s + t * 8, a, b, c, d);
  lf_load_matrix4_t(s + t * 8, e, f, g, h);
  y[t] = a; y[32 + t] = b; y[64 + t] = c; y[96 + t] = d;
  y[128 + t] = e; y[160 + t] = f; y[192 + t] = g; y[224 + t] = h;
  lf_syncwarp();
  lf_store_matrix4(s + t * 8, d, c, b, a);
  lf_syncwarp();
  for (int k = t; k < 256; k += 32) back[k] = s[k];"""
    parameters = "const unsigned short* x, unsigned int* y, unsigned short* back"
    c = program(parameters, body, (Pointer("x"), Pointer("y"), Pointer("back")), ("x",), 32, 512, ("y", "back"))
    x = np.arange(256, dtype=np.uint16)
    found = build(c).check({"x": x}, {}, {}, {"y": (np.uint32, (256,)), "back": (np.uint16, (256,))}, ORDERS)
    matrices = x.reshape(4, 8, 8)
    plain, turned = found["y"].view(np.uint16).reshape(2, 4, 8, 8)
    assert np.array_equal(plain, matrices) and np.array_equal(turned, matrices.transpose(0, 2, 1))
    assert np.array_equal(found["back"].reshape(4, 8, 8), matrices[::-1])
    with pytest.raises(EmulatorError, match="not a multiple of 16"):
        wrong = body.replace("lf_load_matrix4(s + t * 8", "lf_load_matrix4(s + t * 4")
        build(program(parameters, wrong, c.steps[0].arguments, ("x",), 32, 512, ("y", "back"))).run(  # type: ignore[union-attr]
            {"x": x}, {}, {}, {"y": (np.uint32, (256,)), "back": (np.uint16, (256,))}
        )


def test_copies_with_zeros() -> None:
    body = """  int* s = (int*)lf_shared;
  if (t < 8) lf_stage16_if(s + t * 4, x + t * 4, t % 3 != 0);
  if (t < 16) lf_stage8_if(s + 32 + t * 2, x + 32 + t * 2, t % 3 != 1);
  lf_stage4_if(s + 64 + t, x + 64 + t, t % 3 != 2);
  lf_stage_end();
  lf_stage_wait<0>();
  lf_sync();
  for (int k = t; k < 96; k += 32) y[k] = s[k];"""
    c = program("const int* x, int* y", body, (Pointer("x"), Pointer("y")), ("x",), 32, 384)
    x = np.arange(1, 97, dtype=np.int32)
    y = build(c).check({"x": x}, {}, {}, {"y": (np.int32, (96,))}, ORDERS)["y"]
    k = np.arange(96)
    kept = np.select([k < 32, k < 64], [k // 4 % 3 != 0, k // 2 % 16 % 3 != 1], k % 32 % 3 != 2)
    assert np.array_equal(y, np.where(kept, x, 0))
