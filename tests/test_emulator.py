"""The emulator of kernels: what CUDA gives, and that it reports what a GPU would leave unsaid."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator import HOST, EmulatorError, available, build, has_ptx
from emulator.host import to_host, waits

from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I8
from loopfuse.emit.code import (
    FAULTS,
    Argument,
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
    Step,
    ceil_div,
    grid,
)
from loopfuse.emit.prelude import FUNCTIONS, functions
from loopfuse.sizes import ONE, ZERO, Poly

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler (g++, c++, clang++, or $CXX) is installed")

N = Poly.of("n")
SHARED = "extern __shared__ __align__(16) unsigned char lf_shared[];"


def kernel(parameters: str, body: str, threads: int = 64, *, name: str = "k", shared: int = 0,
           cluster: int = 1) -> KernelCode:  # fmt: skip
    dims = f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else ""
    head = f'extern "C" __global__ void {dims}__launch_bounds__({threads}) {name}({parameters})'
    return KernelCode(name, f"{head} {{\n{body}\n}}", threads, shared, cluster)


def code(kernels: KernelCode | tuple[KernelCode, ...], steps: tuple[Step, ...], **more: Any) -> Code:
    kernels = kernels if isinstance(kernels, tuple) else (kernels,)
    prelude = "\n".join(functions("\n".join(k.text for k in kernels)))
    fields: dict[str, Any] = {"memory": (), "inputs": ("x",), "params": (), "outputs": ("y",), "sizes": ("n",)}
    return Code("t", prelude, kernels, steps, **(fields | more))


def launch(blocks: Poly | int = 1, *arguments: Argument, name: str = "k") -> Launch:
    return Launch(name, grid(blocks), arguments or (Pointer("x"), Pointer("y"), Number(N, 32)))


def simple(parameters: str, body: str, threads: int = 64, blocks: Poly | int = 1, **more: Any) -> Code:
    """One kernel of `x`, `y` and `n`, launched once."""
    return code(kernel(parameters, body, threads, **more), (launch(blocks),))


FLOATS = "const float* x, float* y, int n"
INTS = "const int* x, int* y, int n"


def on_floats(c: Code, count: int, size: int | None = None, dtype: Any = np.float32, **more: Any) -> np.ndarray:
    x = np.random.default_rng(5).standard_normal(size or count).astype(dtype)
    return build(c).check({"x": x}, {}, {"n": count}, {"y": (dtype, (count,))}, **more)["y"]


# -- the host's definitions -------------------------------------------------------------------------------------------


def test_every_function_with_ptx_has_a_definition_for_the_host() -> None:
    assert {name for name, text in FUNCTIONS.items() if has_ptx(text)} <= HOST.keys()
    assert not any(has_ptx(text) for text in HOST.values())
    host = to_host("\n".join(functions(" ".join(FUNCTIONS))))
    assert not has_ptx(host) and "double lf_fmin(double" in host and host.count(" lf_fmin(float a") == 1


def test_unknown_ptx_is_refused() -> None:
    with pytest.raises(ValueError, match="no HOST definition"):
        to_host('__device__ float lf_new(float x) { asm("ex2 %0;" : "=f"(x)); return x; }')
    with pytest.raises(ValueError, match="no HOST definition"):
        to_host('extern "C" __global__ void k() { asm volatile("bar.sync 0;"); }')
    with pytest.raises(ValueError, match="dynamic"):
        to_host("__global__ void k() { __shared__ float s[32]; }")


def test_barriers_are_seen_through_functions() -> None:
    prelude = to_host("\n".join(functions("lf_shfl_xor lf_sync lf_edge lf_best")))
    assert waits("lf_sync();", prelude) and waits("x += lf_shfl_xor(x, 1);", prelude)
    assert waits("if (__any_sync(0xffffffffu, 1)) return;", "") and not waits("y[lf_edge(i, n)] = 1;", prelude)


# -- threads and memory -----------------------------------------------------------------------------------------------


def test_elements() -> None:
    body = "int i = blockIdx.x * 64 + threadIdx.x; if (i < n) y[i] = lf_fmax(x[i], 0.0f) * 2;"
    c = simple(FLOATS, body, 64, ceil_div(N, 64))
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    found = build(c).run({"x": x}, {}, {"n": 1000}, {"y": (F32, (1000,))})["y"]
    assert np.array_equal(found, np.maximum(x, 0) * 2)
    assert build(c).run({"x": x[:0]}, {}, {"n": 0}, {"y": (F32, (0,))})["y"].shape == (0,)
    assert build(c).check({"x": x[2]}, {}, {"n": 1}, {"y": (F32, ())})["y"] == max(x[2], 0) * 2


def test_grid_in_three_dimensions() -> None:
    body = "int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;\n" \
           "y[b * blockDim.x + threadIdx.x] = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z + 1000 * threadIdx.x;"  # fmt: skip
    c = code(kernel("int* y", body, 3), (Launch("k", grid(4, 3, 2), (Pointer("y"),)),), inputs=(), sizes=())
    y = build(c).check({}, {}, {}, {"y": (np.int32, (2, 3, 4, 3))})["y"]
    z, j, i, t = np.indices((2, 3, 4, 3))
    assert np.array_equal(y, i + 10 * j + 100 * z + 1000 * t)


def test_repeat_fill_and_memory() -> None:
    first = kernel("const float* x, float* s, long long n", "if (threadIdx.x < n) s[threadIdx.x] += x[threadIdx.x];")
    last = kernel("const float* s, float* y, int n", "if (threadIdx.x < n) y[threadIdx.x] = s[threadIdx.x];", name="l")
    steps = (
        Fill("s"),
        Repeat("t", ZERO, Poly.of("m"), Poly.of(2), (launch(1, Pointer("x"), Pointer("s"), Number(N - Poly.of("t"))),)),
        launch(1, Pointer("s"), Pointer("y"), Number(N, 32), name="l"),
    )
    c = code((first, last), steps, memory=(Memory("s", N * 4),), sizes=("n", "m"))
    x = np.arange(1, 11, dtype=np.float32)
    y = build(c).check({"x": x}, {}, {"n": 10, "m": 5}, {"y": (np.float32, (10,))})["y"]
    assert np.array_equal(y, x * [sum(k < 10 - t for t in (0, 2, 4)) for k in range(10)])


def test_params_are_passed_by_value() -> None:
    body = "y[0] = lf_f16_value(a) + lf_bf16_value(b); y[1] = c; y[2] = d ? 1 : 0; y[3] = (double)e;"
    k = kernel("unsigned short a, unsigned short b, double c, bool d, signed char e, double* y", body, 1)

    types = {"a": F16, "b": BF16, "c": F64, "d": BOOL, "e": I8}
    c = code(k, (launch(1, *(Param(n, t) for n, t in types.items()), Pointer("y")),), inputs=(),
             params=tuple(types), sizes=())  # fmt: skip
    params = {"a": np.float16(1.5), "b": np.asarray(2.25, ml_dtypes.bfloat16), "c": 1e-300, "d": True, "e": np.int8(-7)}
    y = build(c).run({}, params, {}, {"y": (np.float64, (4,))})["y"]
    assert list(y) == [3.75, 1e-300, 1, -7]


def test_arguments_must_fit_the_kernel() -> None:
    k = kernel(FLOATS, "")
    with pytest.raises(EmulatorError, match="is passed"):
        on_floats(code(k, (launch(1, Pointer("x"), Pointer("y"), Number(N, 64)),)), 1)
    with pytest.raises(EmulatorError, match="32 bits do not hold"):
        on_floats(code(k, (launch(1, Pointer("x"), Pointer("y"), Number(N * 2**31, 32)),)), 1)
    with pytest.raises(ValueError, match="no sizes"):
        build(code(k, (launch(),))).run({"x": np.zeros(1)}, {}, {}, {"y": (F32, (1,))})
    wrong = KernelCode("k", k.text, 128)
    with pytest.raises(EmulatorError, match="launch_bounds"):
        build(code(wrong, (launch(),)))
    with pytest.raises(EmulatorError, match="cluster"):
        build(code(KernelCode("k", k.text, 64, 0, 2), (launch(2),)))


def test_vectors_and_streams() -> None:
    body = """int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n / 4) { uint4 v = lf_load16(x + 4 * i); v.x += 1; v.w += 3; lf_store16(y + 4 * i, v); }
  for (int k = n / 4 * 4 + i; k < n; k += 1 << 20) lf_store4(y + k, lf_load4(x + k));"""
    c = code(kernel(INTS, body), (launch(2),), aligned=frozenset("xy"))
    x = np.arange(403, dtype=np.int32)
    y = build(c).check({"x": x}, {}, {"n": 403}, {"y": (np.int32, (403,))})["y"]
    assert np.array_equal(y, x + [[1, 0, 0, 3][k % 4] * (k < 400) for k in range(403)])
    careless = code(kernel(INTS, body), (launch(2),))
    with pytest.raises(EmulatorError, match=r"uint4.* off a multiple of 16"):
        build(careless).run({"x": x}, {}, {"n": 403}, {"y": (np.int32, (403,))})


# -- warps, blocks, clusters ------------------------------------------------------------------------------------------

TREE = f"""{SHARED}
  float* s = (float*)lf_shared;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i < n ? x[i] : 0.0f;
  lf_sync();
  for (int k = blockDim.x / 2; k >= 1; k /= 2) {{
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    lf_sync();
  }}
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];"""


def test_shared_tree() -> None:
    c = simple(FLOATS, TREE, 256, 4, shared=1024)
    x = np.arange(1000, dtype=np.float32)
    y = build(c).check({"x": x}, {}, {"n": 1000}, {"y": (np.float32, (4,))})["y"]
    assert np.array_equal(y, np.pad(x, (0, 24)).reshape(4, 256).sum(1))


@pytest.mark.parametrize("threads", [32, 128, 1024])
def test_shuffles(threads: int) -> None:
    body = """int t = threadIdx.x, lane = t & 31; long long a = t; unsigned char b = t; lf_best<float> c = {(float)(t % 7), t};
  for (int m = 16; m; m >>= 1) a += lf_shfl_xor(a, m);
  for (int m = 16; m; m >>= 1) c = lf_argmax(c, lf_shfl_xor(c, m));
  int up = lf_shfl_up(t, 3), down = lf_shfl_down(t, 3), from = lf_shfl(t, 5), odd = lf_shfl_xor(b, 1);
  y[t] = (int)a; y[t + n] = up; y[t + 2 * n] = down; y[t + 3 * n] = from; y[t + 4 * n] = odd; y[t + 5 * n] = (int)c.at;
  y[t + 6 * n] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0); y[t + 7 * n] = __any_sync(0xffffffffu, t == 40);"""
    c = code(kernel("int* y, int n", body, threads), (launch(1, Pointer("y"), Number(N, 32)),), inputs=())
    y = build(c).check({}, {}, {"n": threads}, {"y": (np.int32, (8, threads))})["y"]
    t = np.arange(threads)
    warp, lane = t // 32 * 32, t % 32
    best = np.array([w + int(np.argmax((w + np.arange(32)) % 7)) for w in warp])
    expected = [
        warp * 32 + 496, np.where(lane < 3, t, t - 3), np.where(lane > 28, t, t + 3), warp + 5, (t ^ 1) % 256, best,
        np.full(threads, sum(1 << k for k in range(0, 32, 3))), warp == 32,
    ]  # fmt: skip
    assert np.array_equal(y, np.array(expected))


def test_parts_of_a_warp_and_counting_barriers() -> None:
    body = """int t = threadIdx.x;
  unsigned mask = t < 16 ? 0xffffu : 0xffff0000u;
  int a = t;
  for (int m = 8; m; m >>= 1) a += __shfl_xor_sync(mask, a, m, 16);
  y[t] = a + 1000 * __syncthreads_count(t % 2) + 100000 * __syncthreads_or(t == 3) + 1000000 * __syncthreads_and(t < 5);"""
    c = code(kernel("int* y", body, 32), (launch(1, Pointer("y")),), inputs=())
    y = build(c).check({}, {}, {"n": 1}, {"y": (np.int32, (32,))})["y"]
    assert np.array_equal(y, np.repeat([120, 376], 16) + 116000)


def test_cluster() -> None:
    body = f"""{SHARED}
  float* s = (float*)lf_shared;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = x[i];
  lf_cluster_sync();
  float total = 0;
  for (unsigned r = 0; r < 4; ++r) total += lf_cluster_at(s, r)[threadIdx.x ^ 1];
  y[i] = total + 1000 * lf_cluster_rank();
  lf_cluster_sync();"""
    c = simple(FLOATS, body, 64, 8, shared=256, cluster=4)
    x = np.arange(512, dtype=np.float32)
    y = build(c).check({"x": x}, {}, {"n": 512}, {"y": (np.float32, (8, 64))})["y"]
    total = x.reshape(2, 4, 64).sum(1)[:, np.arange(64) ^ 1]
    assert np.array_equal(y, np.repeat(total, 4, 0) + 1000 * (np.arange(8) % 4)[:, None])
    with pytest.raises(EmulatorError, match="clusters"):
        build(code(c.kernels[0], (launch(6),))).run({"x": x}, {}, {"n": 512}, {"y": (np.float32, (8, 64))})
    early = simple(FLOATS, body.removesuffix("lf_cluster_sync();"), 64, 8, shared=256, cluster=4)
    with pytest.raises(EmulatorError, match=r"has left|depends"):
        build(early).check({"x": x}, {}, {"n": 512}, {"y": (np.float32, (8, 64))})


SENT = f"""{SHARED}
  float* s = (float*)lf_shared;
  long long* w = (long long*)(lf_shared + 256);
  unsigned long long* bar = (unsigned long long*)(lf_shared + 768);
  unsigned t = threadIdx.x, to = lf_cluster_rank() ^ 1;
  if (t == 0) {{ lf_bar_init(bar, 1); lf_bar_ready(); lf_bar_expect(bar, 768); }}
  lf_cluster_meet();
  lf_send(s + t, x[blockIdx.x * 64 + t], bar, to);
  lf_send(w + t, (long long)t << 33, bar, to);
  lf_bar_wait(bar, 0);
  y[blockIdx.x * 64 + t] = s[t ^ 1] + (w[t] >> 33);"""


def test_values_for_another_block() -> None:
    def run(body: str) -> np.ndarray:
        c = simple(FLOATS, body, 64, 4, shared=776, cluster=2)
        return build(c).check({"x": x}, {}, {"n": 256}, {"y": (np.float32, (2, 2, 64))})["y"]

    x = np.arange(256, dtype=np.float32)
    assert np.array_equal(run(SENT), x.reshape(2, 2, 64)[:, ::-1, np.arange(64) ^ 1] + np.arange(64))
    for old, new, report in (
        ("  lf_bar_wait(bar, 0);\n", "", "depends|has left|nobody has waited"),
        ("(w + t,", "((long long*)(lf_shared + 260) + t,", "not a multiple of 8"),
        ("(w + t,", "(w + 65 + t,", "776"),
        (", bar, to)", ", bar, 2)", "of block 2 in a cluster of 2"),
        ("bar, 768", "bar, 760", "more than expected|left with -8 bytes"),
    ):
        assert old in SENT
        with pytest.raises(EmulatorError, match=report):
            run(SENT.replace(old, new))


def test_the_last_block_finishes() -> None:
    body = f"""{SHARED}
  bool* last = (bool*)lf_shared;
  float a = x[blockIdx.x * 32 + threadIdx.x];
  for (int m = 16; m; m >>= 1) a += lf_shfl_xor(a, m);
  if (threadIdx.x == 0) {{
    part[blockIdx.x] = a;
    __threadfence();
    *last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  }}
  lf_sync();
  if (*last && threadIdx.x == 0) {{ float t = 0; for (int k = 0; k < n; ++k) t += part[k]; y[0] = t; }}"""
    k = kernel("const float* x, float* part, unsigned int* count, float* y, int n", body, 32, shared=16)
    step = launch(N, Pointer("x"), Pointer("part"), Pointer("count"), Pointer("y"), Number(N, 32))
    c = code(k, (step, step), memory=(Memory("part", N * 4), Memory("count", ONE * 4, True)))
    x = np.random.default_rng(2).standard_normal(320).astype(np.float32)
    y = build(c).check({"x": x}, {}, {"n": 10}, {"y": (np.float32, (1,))}, orders=("ascending", "descending", 1, 2, 3))
    assert np.allclose(y["y"], x.sum(), rtol=1e-5)
    wrong = code(k, (launch(9, *step.arguments),), memory=c.memory)
    with pytest.raises(EmulatorError, match=r"depends|left zero"):
        build(wrong).check({"x": x}, {}, {"n": 10}, {"y": (np.float32, (1,))})


def test_atomics() -> None:
    body = """int i = blockIdx.x * 64 + threadIdx.x; unsigned v = (unsigned)x[i];
  atomicAdd(y, x[i]); atomicMin(y + 1, x[i]); atomicMax(y + 2, x[i]); atomicOr((unsigned*)y + 3, v);
  atomicAnd((unsigned*)y + 4, v); atomicXor((unsigned*)y + 5, v); atomicAdd((unsigned long long*)(y + 6), (unsigned long long)x[i]);
  unsigned* lock = (unsigned*)y + 8; unsigned old = *lock, seen;
  do { seen = old; old = atomicCAS(lock, seen, seen + 2); } while (old != seen);
  atomicAdd((float*)y + 9, 1.0f); atomicExch(y + 10, 7); atomicSub(y + 11, 1); lf_fault(faults, i & 1);"""
    k = kernel("const int* x, int* y, unsigned int* faults", body)
    c = code(k, (Fill("y"), launch(4, Pointer("x"), Pointer("y"), Pointer(FAULTS))),
             faults=(Fault(0, "x", None), Fault(1, "x", None)), aligned=frozenset("y"))  # fmt: skip
    x = np.random.default_rng(3).integers(-(2**20), 2**20, 256, dtype=np.int32)
    e = build(c)
    y = e.check({"x": x}, {}, {"n": 1}, {"y": (np.int32, (12,))})["y"]
    u = x.astype(np.uint32)
    assert list(y[:4]) == [
        x.sum(dtype=np.int32),
        min(x.min(), 0),
        max(x.max(), 0),
        np.bitwise_or.reduce(u).view(np.int32),
    ]
    assert list(y[4:6]) == [0, np.bitwise_xor.reduce(u).view(np.int32)]
    assert y[6:8].view(np.int64)[0] == x.sum(dtype=np.int64) and y[8] == 512 and y[9:10].view(np.float32)[0] == 256
    assert list(y[10:]) == [7, -256] and list(e.faults) == [128, 128]
    with pytest.raises(EmulatorError, match="no such atomic"):
        build(code(kernel("long long* y", "atomicAdd(y, 1);"), (launch(1, Pointer("y")),)))


# -- what is wrong is reported ----------------------------------------------------------------------------------------

WRONG = {
    "barrier in a branch": ("if (threadIdx.x < 40) lf_sync(); y[threadIdx.x] = 0;", "threads 0-39 wait at a barrier of the block, threads 40-63 have left"),
    "early exit": ("if (threadIdx.x >= 40) return; lf_sync(); y[threadIdx.x] = 0;", "40-63 have left"),
    "shuffle in a branch": ("if (threadIdx.x & 1) y[threadIdx.x] = lf_shfl_xor(x[threadIdx.x], 2); lf_sync();", "__shfl_xor_sync"),
    "shuffle against barrier": ("if (threadIdx.x < 32) lf_sync(); else lf_shfl(x[0], 0); lf_sync();", "wait at a barrier"),
    "other shuffles": ("y[threadIdx.x] = threadIdx.x & 1 ? lf_shfl_up(x[0], 1) : lf_shfl_down(x[0], 1);", "meet at"),
    "lane without a value": ("if (threadIdx.x < 48) y[threadIdx.x] = lf_shfl_down(x[0], 1);", "takes no part"),
    "past the end": ("y[threadIdx.x] = x[threadIdx.x + 1];", r"read 0 bytes past the end of `x`, which has 256"),
    "before the start": ("y[(int)threadIdx.x - 1] = 0;", r"before the start of `y`|around"),
    "far": ("y[threadIdx.x] = x[threadIdx.x + 100000];", "past the end of `x`"),
    "shared": (f"{SHARED} ((float*)lf_shared)[threadIdx.x] = 0; y[threadIdx.x] = 0;", "write at byte 16 of shared memory, which has 16"),
    "input written": ("((float*)x)[threadIdx.x] = 0;", "write at byte 0 of `x`"),
    "division": ("y[threadIdx.x] = 1 / (int)(threadIdx.x - threadIdx.x);", "zero"),
    "overflow": ("y[threadIdx.x] = (n + 2147483600) * 4;", "overflows, in `y"),
    "local array": ("float a[4] = {1, 2, 3, 4}; a[threadIdx.x] = 7; y[threadIdx.x] = a[n & 3];", "local array"),
    "endless": ("while (*(volatile float*)y != 3.0f);", "time allowed"),
    "deep": ("volatile char a[1 << 20]; a[threadIdx.x] = 1; a[0] = 1; lf_sync();", "outside its memory"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_reported(what: str) -> None:
    body, report = WRONG[what]
    c = simple(FLOATS, body, 64, 1, shared=16)
    with pytest.raises(EmulatorError, match=report) as caught:
        for order in ("ascending", "descending", 7):
            x = np.zeros(64, np.float32)
            build(c).run({"x": x}, {}, {"n": 64}, {"y": (np.float32, (64,))}, order, seconds=0.2)
    assert str(caught.value).startswith("k, block" if "around" not in str(caught.value) else "k: ")
    assert on_floats(simple(FLOATS, TREE, 64, 1, shared=256), 1, 64).shape == (1,)  # and what comes next is well


def test_lines_of_scripts_do_not_hide_those_of_kernels() -> None:
    text = f'#line 700 "a.lf"\n{kernel(FLOATS, "y[0] = (n + 2147483647);", 1).text}'
    with pytest.raises(EmulatorError, match="overflows, in `y"):
        on_floats(code(KernelCode("k", text, 1), (launch(),)), 1)


def test_unwritten_locals_are_not_zero() -> None:
    body = "float a[4]; for (int k = 1; k < n; ++k) a[k] = x[k]; y[0] = a[n - 2];"
    found = build(simple(FLOATS, body, 1)).run({"x": np.zeros(2, np.float32)}, {}, {"n": 2}, {"y": (F32, (1,))})
    assert found["y"][0] != 0


@pytest.mark.skipif(
    platform.machine() == "x86_64" and " fma " not in Path("/proc/cpuinfo").read_text(encoding="utf-8"),
    reason="this CPU has no fma",
)
def test_contraction() -> None:
    c = simple(FLOATS, "y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x] - 1.0f;", 64)
    x = (1 + np.arange(64) * 2.0**-20).astype(np.float32)
    wide = x.astype(np.float64) ** 2 - 1
    plain, fused = (build(c, f).run({"x": x}, {}, {"n": 64}, {"y": (F32, (64,))})["y"] for f in (False, True))
    assert np.array_equal(plain, x * x - 1) and np.array_equal(fused, wide.astype(np.float32))


RACES = {
    "two writers": "y[threadIdx.x / 2] = x[threadIdx.x]; y[32 + threadIdx.x / 2] = 0;",
    "no barrier": f"{SHARED} float* s = (float*)lf_shared; s[threadIdx.x] = x[threadIdx.x]; y[threadIdx.x] = s[threadIdx.x ^ 32];",
    "one barrier too few": f"""{SHARED} float* s = (float*)lf_shared; s[threadIdx.x] = x[threadIdx.x]; lf_sync();
  float a = s[threadIdx.x ^ 32]; s[threadIdx.x] = 2 * a; y[threadIdx.x] = a;""",
    "other block's element": "y[threadIdx.x] = x[threadIdx.x]; lf_syncwarp(); y[threadIdx.x ^ 1] = y[threadIdx.x ^ 32];",
    "unwritten element": "if (threadIdx.x != 13) y[threadIdx.x] = x[threadIdx.x];",
    "unwritten shared": f"{SHARED} y[threadIdx.x] = ((float*)lf_shared)[threadIdx.x];",
}


@pytest.mark.parametrize("what", RACES)
def test_races_show(what: str) -> None:
    with pytest.raises(EmulatorError, match=r"depends on the order"):
        on_floats(simple(FLOATS, RACES[what], 64, 1, shared=256), 64)


def test_zeroed_memory_must_be_left_zero() -> None:
    k = kernel("unsigned int* s", "s[threadIdx.x] = threadIdx.x == 3;")
    c = code(k, (launch(1, Pointer("s")),), memory=(Memory("s", Poly.of(256), True),), inputs=(), outputs=())
    with pytest.raises(EmulatorError, match="left zero and is not, at byte 12"):
        build(c).run({}, {}, {"n": 1})


def test_kernels_do_not_see_each_other() -> None:
    """A kernel's own functions may have the names of another's, and a kernel may be called like a C function."""
    own = "__device__ int lf_own(int a) {{ return a + {}; }}\n"
    one, two = (
        KernelCode(name, own.format(n) + kernel("int* y", f"y[{n}] = lf_own(10);", 1, name=name).text, 1)
        for n, name in enumerate(("signal", "memset"))
    )
    steps = tuple(launch(1, Pointer("y"), name=name) for name in ("signal", "memset"))
    found = build(code((one, two), steps, inputs=())).run({}, {}, {"n": 1}, {"y": (np.int32, (2,))})
    assert list(found["y"]) == [10, 11]


# -- conversions ------------------------------------------------------------------------------------------------------


def test_f16_and_bf16_of_every_pattern() -> None:
    body = """int i = blockIdx.x * 256 + threadIdx.x;
  y[i] = lf_f16_value((unsigned short)i); y[i + n] = lf_bf16_value((unsigned short)i);"""
    k = kernel("float* y, int n", body, 256)
    c = code(k, (launch(256, Pointer("y"), Number(N, 32)),), inputs=())
    y = build(c).run({}, {}, {"n": 65536}, {"y": (np.float32, (2, 65536))})["y"]
    raw = np.arange(65536, dtype=np.uint16)
    for found, dtype in zip(y, (np.float16, ml_dtypes.bfloat16), strict=True):
        assert np.array_equal(found, raw.view(dtype).astype(np.float32), equal_nan=True)


def test_f16_and_bf16_of_f32_round_to_even() -> None:
    rng = np.random.default_rng(9)
    near = [np.arange(65536, dtype=np.uint16).view(t).astype(np.float32) for t in (np.float16, ml_dtypes.bfloat16)]
    exact = np.concatenate(near)
    with np.errstate(all="ignore"):
        middle = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
    random = rng.integers(0, 2**32, 100000, dtype=np.uint32).view(np.float32)
    x = np.concatenate(
        [exact, middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0)), random]
    )
    body = "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) { y[i] = lf_f16_bits(x[i]); y[i + n] = lf_bf16_bits(x[i]); }"
    c = simple("const float* x, unsigned short* y, int n", body, 256, ceil_div(N, 256))
    y = build(c).run({"x": x}, {}, {"n": x.size}, {"y": (np.uint16, (2, x.size))})["y"]
    with np.errstate(all="ignore"):
        expected = [x.astype(t) for t in (np.float16, ml_dtypes.bfloat16)]
    for found, wanted, nan in zip(y, expected, (0x7E00, 0x7FC0), strict=True):
        assert np.array_equal(found, np.where(np.isnan(x), nan, wanted.view(np.uint16)))


def test_casts_saturate() -> None:
    names = ("int", "uint", "ll", "ull")
    types = (np.int32, np.uint32, np.int64, np.uint64)
    body = "int i = threadIdx.x;\n" + "\n".join(
        f"if (i < n) {{ a{k}[i] = __double2{name}_rz(x[i]); b{k}[i] = __float2{name}_rn((float)x[i]); }}"
        for k, name in enumerate(names)
    )
    c_names = ("int", "unsigned int", "long long", "unsigned long long")
    outs = ", ".join(f"{t}* {w}{k}" for k, t in enumerate(c_names) for w in "ab")
    pointers = tuple(Pointer(f"{w}{k}") for k in range(4) for w in "ab")
    c = code(kernel(f"const double* x, {outs}, int n", body), (launch(1, Pointer("x"), *pointers, Number(N, 32)),),
             outputs=tuple(p.memory for p in pointers))  # fmt: skip
    x = np.array([0, -0.5, 0.5, 1.5, 2.5, -1.5, 2.0**31, 2.0**31 - 1, -(2.0**31), -(2.0**31) - 1, 2.0**32, 2.0**63,
                  -(2.0**63), 2.0**64, 1e300, -1e300, np.inf, -np.inf, np.nan, 2.0**53 + 2])  # fmt: skip
    shapes = {f"{w}{k}": (t, x.shape) for k, t in enumerate(types) for w in "ab"}
    found = build(c).run({"x": x}, {}, {"n": x.size}, shapes)
    with np.errstate(all="ignore"):
        rounded = {"a": np.trunc(x), "b": np.rint(x.astype(np.float32)).astype(np.float64)}
    for name, (dtype, _) in shapes.items():
        ends = np.iinfo(dtype)
        for got, value in zip(found[name], rounded[name[0]], strict=True):
            if np.isnan(value):
                assert int(got) == (0 if ends.bits == 32 else int(np.array(1 << 63, np.uint64).astype(dtype)))
            else:
                wanted = ends.max if value >= 2.0**65 else ends.min if value <= -(2.0**65) else int(value)
                assert int(got) == min(max(wanted, ends.min), ends.max)
