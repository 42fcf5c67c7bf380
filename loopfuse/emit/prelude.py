"""The functions that emitted kernels call beside those of the op table: memory, shuffles, barriers, boundaries, states.

Inline PTX stands here and in `spelling` only, so that whatever runs kernels elsewhere replaces these few definitions.
"""

from __future__ import annotations

import re

from loopfuse.emit.approx import FUNCTIONS as NEAR
from loopfuse.emit.matrix.primitives import PRIMITIVES as MATRIX
from loopfuse.emit.matrix.primitives import warpgroup
from loopfuse.emit.updates import UPDATES
from loopfuse.emit.vectors import VECTORS
from loopfuse.spelling import HELPERS

_I = "__device__ __forceinline__ "
_SHUFFLE = """template <class T> __device__ __forceinline__ T NAME(T x, int k) {
  if constexpr (sizeof(T) == 8) {
    union { T v; unsigned int w[2]; } u;
    u.v = x;
    u.w[0] = CALL(0xffffffffu, u.w[0], k);
    u.w[1] = CALL(0xffffffffu, u.w[1], k);
    return u.v;
  } else if constexpr (sizeof(T) == 4) {
    return CALL(0xffffffffu, x, k);
  } else {
    return (T)CALL(0xffffffffu, (unsigned int)x, k);
  }
}"""


def _shuffle(name: str, call: str) -> str:
    return _SHUFFLE.replace("NAME", name).replace("CALL", call)


def _load(width: int, vector: str, registers: str) -> str:
    """A read of `width` bytes that other blocks do not write meanwhile.

    Without a hint that the first-level cache need not keep it: that costs a tenth of the bandwidth on an H200.
    """
    count = max(1, width // 4)
    out = ", ".join(f'"=r"(r.{c})' for c in registers) if count > 1 else '"=r"(r)'
    slots = ", ".join(f"%{n}" for n in range(count))
    shape = f".v{count}" if count > 1 else ""
    target = "{" + slots + "}" if count > 1 else slots
    return (
        f"{_I}{vector} lf_load{width}(const void* p) {{\n  {vector} r;\n"
        f'  asm volatile("ld.global.nc{shape}.u32 {target}, [%{count}];" : {out} : "l"(p));\n'
        "  return r;\n}"
    )


def _store(width: int, vector: str, registers: str) -> str:
    """A write of `width` bytes that is not read again soon."""
    count = max(1, width // 4)
    values = ", ".join(f'"r"(r.{c})' for c in registers) if count > 1 else '"r"(r)'
    slots = ", ".join(f"%{n + 1}" for n in range(count))
    shape = f".v{count}" if count > 1 else ""
    source = "{" + slots + "}" if count > 1 else slots
    return (
        f"{_I}void lf_store{width}(void* p, {vector} r) {{\n"
        f'  asm volatile("st.global.cs{shape}.u32 [%0], {source};" :: "l"(p), {values} : "memory");\n}}'
    )


PRIMITIVES: dict[str, str] = {
    "lf_load16": _load(16, "uint4", "xyzw"),
    "lf_load8": _load(8, "uint2", "xy"),
    "lf_load4": _load(4, "unsigned int", ""),
    "lf_store16": _store(16, "uint4", "xyzw"),
    "lf_store8": _store(8, "uint2", "xy"),
    "lf_store4": _store(4, "unsigned int", ""),
    # Copies to shared memory that pass by the registers; a thread waits until all but N groups of its own are done.
    "lf_stage16": _I + """void lf_stage16(void* to, const void* from) {
  unsigned int at;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
}""",
    # Vectors in registers that the compiler takes for new ones, so that it keeps no values made from them.
    "lf_again": """template <class V, int N> __device__ __forceinline__ void lf_again(V (&x)[N]) {
#pragma unroll
  for (int v = 0; v < N; ++v) {
#pragma unroll
    for (int q = 0; q < (int)sizeof(V) / 4; ++q) asm volatile("" : "+r"(x[v].w[q]));
  }
}""",
    "lf_stage_end": _I + """void lf_stage_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }""",
    "lf_stage_wait": """template <int N> __device__ __forceinline__ void lf_stage_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}""",
    # Pairs of 16-bit floats; a NaN goes through.
    **{f"lf_{which}_{kind}x2": _I + f"""unsigned int lf_{which}_{kind}x2(unsigned int a, unsigned int b) {{
  unsigned int r;
  asm("{which}.NaN.{kind}x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}}""" for which in ("max", "min") for kind in ("f16", "bf16")},
    "lf_sync": _I + "void lf_sync() { __syncthreads(); }",
    "lf_syncwarp": _I + "void lf_syncwarp() { __syncwarp(); }",
    "lf_shfl_xor": _shuffle("lf_shfl_xor", "__shfl_xor_sync"),
    "lf_shfl": _shuffle("lf_shfl", "__shfl_sync"),
    "lf_shfl_up": _shuffle("lf_shfl_up", "__shfl_up_sync"),
    "lf_shfl_down": _shuffle("lf_shfl_down", "__shfl_down_sync"),
    "lf_cluster_rank": _I + """unsigned int lf_cluster_rank() {
  unsigned int r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}""",
    "lf_cluster_sync": _I + """void lf_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\\n\\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}""",
    # Without the wait for the memory accesses before it, copies in flight among them.
    "lf_cluster_meet": _I + """void lf_cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\\n\\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}""",
    # The same place in the shared memory of another block of the cluster, as an ordinary pointer.
    "lf_cluster_at": """template <class T> __device__ __forceinline__ T* lf_cluster_at(T* p, unsigned int rank) {
  unsigned long long r;
  asm("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"((unsigned long long)p), "r"(rank));
  return (T*)r;
}""",
    # Subscripts outside an axis of n elements, by the modes of a boundary. An axis without elements has no reads.
    "lf_edge": "template <class T> __device__ __forceinline__ T lf_edge(T i, T n) "
    "{ return i < 0 ? (T)0 : i < n ? i : n - 1; }",
    "lf_wrap": "template <class T> __device__ __forceinline__ T lf_wrap(T i, T n) "
    "{ if (i >= 0 && i < n) return i; T r = i % n; return r < 0 ? r + n : r; }",
    "lf_reflect": """template <class T> __device__ __forceinline__ T lf_reflect(T i, T n) {
  if (i >= 0 && i < n) return i;
  if (n == 1) return 0;
  T p = 2 * (n - 1), r = i % p;
  if (r < 0) r += p;
  return r < n ? r : p - r;
}""",
    "lf_symmetric": """template <class T> __device__ __forceinline__ T lf_symmetric(T i, T n) {
  if (i >= 0 && i < n) return i;
  T p = 2 * n, r = i % p;
  if (r < 0) r += p;
  return r < n ? r : p - 1 - r;
}""",
    "lf_inside": "template <class T> __device__ __forceinline__ bool lf_inside(T i, T n) { return i >= 0 && i < n; }",
    # Counts an access that is not performed; always false.
    "lf_fault": _I + "bool lf_fault(unsigned int* counters, int k) { atomicAdd(counters + k, 1u); return false; }",
    "lf_least": "template <class T> __device__ __forceinline__ T lf_least(T a, T b) { return b < a ? b : a; }",
    "lf_greatest": "template <class T> __device__ __forceinline__ T lf_greatest(T a, T b) { return b > a ? b : a; }",
    # Index division that rounds down; the divisor is positive.
    "lf_down": "template <class T> __device__ __forceinline__ T lf_down(T a, T b) "
    "{ T q = a / b; return q - (a % b < 0); }",
    # The state of argmax and argmin: a value and its position; no position yet is the greatest integer.
    "lf_best": """template <class T> struct lf_best { T value; long long at; };
template <class T> __device__ __forceinline__ lf_best<T> lf_shfl_xor(lf_best<T> x, int k) {
  lf_best<T> r = {lf_shfl_xor(x.value, k), lf_shfl_xor(x.at, k)};
  return r;
}
template <class T> __device__ __forceinline__ lf_best<T> lf_shfl(lf_best<T> x, int k) {
  lf_best<T> r = {lf_shfl(x.value, k), lf_shfl(x.at, k)};
  return r;
}
template <class T> __device__ __forceinline__ lf_best<T> lf_shfl_down(lf_best<T> x, int k) {
  lf_best<T> r = {lf_shfl_down(x.value, k), lf_shfl_down(x.at, k)};
  return r;
}""",
    "lf_argmax": """template <class T> __device__ __forceinline__ lf_best<T> lf_argmax(lf_best<T> a, lf_best<T> b) {
  bool na = a.value != a.value, nb = b.value != b.value;
  bool better = nb ? !na : !na && b.value > a.value, equal = nb ? na : b.value == a.value;
  return better || (equal && b.at < a.at) ? b : a;
}""",
    "lf_argmin": """template <class T> __device__ __forceinline__ lf_best<T> lf_argmin(lf_best<T> a, lf_best<T> b) {
  bool na = a.value != a.value, nb = b.value != b.value;
  bool better = nb ? !na : !na && b.value < a.value, equal = nb ? na : b.value == a.value;
  return better || (equal && b.at < a.at) ? b : a;
}""",
    # By the conversion of pairs, which is the fast one; of a NaN it makes a NaN.
    "lf_round_f16": _I + "float lf_round_f16(float x) { return lf_f16_value((unsigned short)lf_f16x2(x, 0.0f)); }",
    "lf_round_bf16": _I + "float lf_round_bf16(float x) { return __uint_as_float(lf_bf16x2(0.0f, x)); }",
}  # fmt: skip

FUNCTIONS = HELPERS | PRIMITIVES | VECTORS | NEAR | UPDATES | MATRIX


def functions(text: str, table: dict[str, str] | None = None) -> list[str]:
    """The definitions that CUDA text needs, each after those that it calls itself. `table`: other definitions."""
    known = FUNCTIONS if table is None else table
    found: dict[str, str] = {}

    def need(source: str, inside: str) -> None:
        for name in re.findall(r"\blf_\w+", source):
            if name == inside or name in found:
                continue
            definition = known.get(name) or (warpgroup(name) if table is None else None)
            if definition is not None:
                need(definition, name)
                found[name] = definition

    need(text, "")
    return list(found.values())
