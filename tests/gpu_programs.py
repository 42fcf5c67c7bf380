"""Programs of hand-written kernels, for tests of the runtime on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from loopfuse.cuda.compile import compile_program
from loopfuse.cuda.context import Device
from loopfuse.cuda.program import Loaded
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I8, I64, DType
from loopfuse.emit.code import (
    FAULTS,
    ONE,
    ZERO,
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
    ceil_div,
    grid,
)
from loopfuse.ir import Buffer
from loopfuse.sizes import Poly

N, T, A, B, C = (Poly.of(name) for name in "NTABC")


@dataclass(frozen=True)
class Given:
    """A program and its buffers."""

    code: Code
    buffers: tuple[Buffer, ...]


def load(device: Device, given: Given) -> Loaded:
    """Compile and load."""
    return Loaded(device, given.code, compile_program(given.code, device.arch), given.buffers)


def vector(id: str, count: Poly | int = N, dtype: DType = F32) -> Buffer:
    return Buffer(id, dtype, (Poly.of(count),))


def kernel(name: str, arguments: str, body: str, **rest: int) -> KernelCode:
    cluster = f"__cluster_dims__({rest['cluster']}, 1, 1) " if rest.get("cluster", 1) > 1 else ""
    text = f'extern "C" __global__ void {cluster}{name}({arguments}) {{\n{body}\n}}\n'
    return KernelCode(name, text, rest.pop("threads", 256), **rest)


AT = "  int i = blockIdx.x * blockDim.x + threadIdx.x;"
BLOCKS = grid(ceil_div(N, 256))

_axpy = kernel("axpy", "float* z, const float* x, const float* y, long long n, float s",
               f"{AT}\n  if (i < n) z[i] = __fadd_rn(__fmul_rn(s, x[i]), y[i]);")  # fmt: skip


def _step(to: str, x: str) -> Launch:
    return Launch("axpy", BLOCKS, (Pointer(to), Pointer(x), Pointer("y"), Number(N, 64), Param("s", F32)))


# z = s * (s * x + y) + y, by way of a temporary
TWICE = Given(
    Code("twice", "", (_axpy,), (_step("t", "x"), _step("z", "t")), (Memory("t", N * 4),), ("x", "y"), ("s",), ("z",),
         ("N",)),
    (vector("x"), vector("y"), vector("z")),
)  # fmt: skip

SCALE = Given(
    Code("scale", "", (kernel("scale", "float* z, const float* x, int n", f"{AT}\n  if (i < n) z[i] = 2 * x[i];"),),
         (Launch("scale", BLOCKS, (Pointer("z"), Pointer("x"), Number(N, 32))),), (), ("x",), (), ("z",), ("N",)),
    (vector("x"), vector("z")),
)  # fmt: skip

# T launches, each of which adds one
MANY = Given(
    Code("many", "", (kernel("more", "float* z, int by", "  z[0] += by;", threads=1),),
         (Fill("z"), Repeat("i", ZERO, T, ONE,
                            (Launch("more", grid(1), (Pointer("z"), Number(Poly.of("i") - Poly.of("i") + 1, 32))),))),
         (), (), (), ("z",), ("T",)),
    (vector("z", 1),),
)  # fmt: skip

EDGES = Given(
    Code("edges", "", (kernel(
        "edges", "double* z, unsigned short h, unsigned short b, double d, long long q, signed char c, bool t, int m, "
        "long long n",
        """  float half, brain = __uint_as_float((unsigned int)b << 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(half) : "h"(h));
  z[0] = half; z[1] = brain; z[2] = d; z[3] = (double)q; z[4] = c; z[5] = t; z[6] = m; z[7] = (double)n;""",
        threads=1),),
        (Launch("edges", grid(1), (Pointer("z"), Param("h", F16), Param("b", BF16), Param("d", F64), Param("q", I64),
                                   Param("c", I8), Param("t", BOOL), Number(Poly.of(-1), 32), Number(Poly.of(-2), 64))),),
        (), (), ("h", "b", "d", "q", "c", "t"), ("z",)),
    (vector("z", 8, F64),),
)  # fmt: skip

SHARED = Given(
    Code("shared", "", (kernel("shared", "float* z", """  extern __shared__ __align__(16) unsigned char lf_shared[];
  float* s = (float*)lf_shared;
  for (int k = threadIdx.x; k < 50000; k += blockDim.x) s[k] = 1;
  __syncthreads();
  if (threadIdx.x == 0) { float sum = 0; for (int k = 0; k < 50000; ++k) sum += s[k]; z[0] = sum; }""",
                                shared=200_000),),
         (Launch("shared", grid(1), (Pointer("z"),)),), (), (), (), ("z",)),
    (vector("z", 1),),
)  # fmt: skip


def _cluster(blocks: int) -> Given:
    """Each block writes its rank in the cluster, by the memory of the block before it."""
    made = kernel("ranks", "float* z", """  extern __shared__ __align__(16) unsigned char lf_shared[];
  unsigned int rank, size, far;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  unsigned int here = (unsigned int)__cvta_generic_to_shared(lf_shared);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(here), "r"((rank + 1) % size));
  if (threadIdx.x == 0)
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(far), "r"((rank + 1) % size) : "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;\\n\\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0) z[blockIdx.x] = *(unsigned int*)lf_shared;""", cluster=blocks, shared=1024, threads=64)  # fmt: skip
    launch = Launch("ranks", grid(2 * blocks), (Pointer("z"),))
    return Given(Code("ranks", "", (made,), (launch,), (), (), (), ("z",)), (vector("z", 2 * blocks),))


CLUSTER = {blocks: _cluster(blocks) for blocks in (4, 16)}

FAULTY = Given(
    Code("faulty", "", (kernel("faulty", "unsigned int* f, float* z, int n",
                               f"{AT}\n  if (i < n) {{ atomicAdd(f, 1u); atomicAdd(f + 2, 2u); z[i] = 1; }}"),),
         (Launch("faulty", BLOCKS, (Pointer(FAULTS), Pointer("z"), Number(N, 32))),), (), (), (), ("z",), ("N",),
         faults=(Fault(0, "x"), Fault(2, "x"))),
    (vector("z"),),
)  # fmt: skip

# A counter that must be zero before: one kernel counts, the other gives the count and sets it back.
COUNT = Given(
    Code("count", "", (kernel("count", "unsigned int* c", "  atomicAdd(c, 1u);", threads=1),
                       kernel("give", "unsigned int* c, float* z", "  z[0] = *c; *c = 0;", threads=1)),
         (Launch("count", grid(1), (Pointer("c"),)), Launch("give", grid(1), (Pointer("c"), Pointer("z")))),
         (Memory("c", Poly.of(4), zeroed=True),), (), (), ("z",)),
    (vector("z", 1),),
)  # fmt: skip

# A copy of bf16 by vectors of 16 bytes where there are any, which needs addresses on multiples of 16
SUM = Given(
    Code("copy", "", (kernel("copy", "unsigned short* z, const unsigned short* x, int n", f"""{AT}
  if (8 * i + 8 <= n) ((uint4*)z)[i] = ((const uint4*)x)[i];
  else for (int k = 8 * i; k < n; ++k) z[k] = x[k];"""),),
         (Launch("copy", grid(ceil_div(A * B * C, 2048)), (Pointer("z"), Pointer("x"), Number(A * B * C, 32))),), (),
         ("x",), (), ("z",), ("A", "B", "C"), frozenset({"x", "z"})),
    (Buffer("x", BF16, (A, B, C)), Buffer("z", BF16, (A, B, C))),
)  # fmt: skip

BROKEN = Given(
    Code("broken", "", (kernel("broken", "float* z", "  *(volatile float*)16 = 1; z[0] = 1;", threads=1),),
         (Launch("broken", grid(1), (Pointer("z"),)),), (), (), (), ("z",)),
    (vector("z", 1),),
)  # fmt: skip
