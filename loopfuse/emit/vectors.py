"""Functions for kernels that move several elements at once: a vector in registers, read and written in pieces of 16 bytes
or less, whole or in part.

`lf_read` and `lf_write` are for streams that nobody reads again soon, `lf_peek` and `lf_leave` for what the caches should
keep. A piece is `B` bytes, and the address a multiple of it.
"""

from __future__ import annotations

_HEAD = "template <int N, int B, class T> __device__ __forceinline__ "
_PIECES = "constexpr int count = (int)(N * sizeof(T)) / B, words = B / 4;"


def _moved(name: str, head: str, sixteen: str, eight: str, four: str, rest: str, tail: str) -> str:
    """A function that moves a vector piece by piece, `k` being the piece; pieces below 4 bytes are elements."""
    return f"""{head} {{
  {_PIECES}
{tail.split("|", maxsplit=1)[0]}  if constexpr (B >= 4) {{
#pragma unroll
    for (int k = 0; k < count; ++k) {{
      if constexpr (B == 16) {{ {sixteen} }}
      else if constexpr (B == 8) {{ {eight} }}
      else {{ {four} }}
    }}
  }} else {{
#pragma unroll
    for (int k = 0; k < N; ++k) {{ {rest} }}
  }}
{tail.split("|")[1]}}}"""


def _reading(name: str, load: str) -> str:
    one = load.format(16), load.format(8), load.format(4)
    return _moved(
        name,
        f"{_HEAD}lf_vec<T, N> {name}(const T* p)",
        f"uint4 q = {one[0]}; r.w[k * words] = q.x; r.w[k * words + 1] = q.y; "
        "r.w[k * words + 2] = q.z; r.w[k * words + 3] = q.w;",
        f"uint2 q = {one[1]}; r.w[k * words] = q.x; r.w[k * words + 1] = q.y;",
        f"r.w[k] = {one[2]};",
        "r.v[k] = p[k];",
        "  lf_vec<T, N> r;\n|  return r;\n",
    )


def _writing(name: str, store: str) -> str:
    return _moved(
        name,
        "template <int B, int N, class T> __device__ __forceinline__ void " + name + "(T* p, const lf_vec<T, N>& x)",
        store.format(16, "make_uint4(x.w[k * words], x.w[k * words + 1], x.w[k * words + 2], x.w[k * words + 3])"),
        store.format(8, "make_uint2(x.w[k * words], x.w[k * words + 1])"),
        store.format(4, "x.w[k]"),
        "p[k] = x.v[k];",
        "|",
    )


VECTORS: dict[str, str] = {
    # N elements of a C type in memory; the words are those that memory instructions move.
    "lf_vec": "template <class T, int N> union lf_vec { T v[N]; unsigned int w[(N * sizeof(T) + 3) / 4]; };",
    # The same as one object that memory instructions move whole.
    "lf_pack": "template <class T, int N> struct __align__(N * sizeof(T)) lf_pack { T v[N]; };",
    "lf_read": _reading("lf_read", "lf_load{0}((const char*)p + k * B)"),
    "lf_peek": _reading("lf_peek", "lf_peek{0}((const char*)p + k * B)"),
    "lf_peek16": "__device__ __forceinline__ uint4 lf_peek16(const void* p) { return *(const uint4*)p; }",
    "lf_peek8": "__device__ __forceinline__ uint2 lf_peek8(const void* p) { return *(const uint2*)p; }",
    "lf_peek4": "__device__ __forceinline__ unsigned int lf_peek4(const void* p) { return *(const unsigned int*)p; }",
    "lf_write": _writing("lf_write", "lf_store{0}((char*)p + k * B, {1});"),
    "lf_leave": _writing("lf_leave", "lf_leave{0}((char*)p + k * B, {1});"),
    "lf_leave16": "__device__ __forceinline__ void lf_leave16(void* p, uint4 x) { *(uint4*)p = x; }",
    "lf_leave8": "__device__ __forceinline__ void lf_leave8(void* p, uint2 x) { *(uint2*)p = x; }",
    "lf_leave4": "__device__ __forceinline__ void lf_leave4(void* p, unsigned int x) { *(unsigned int*)p = x; }",
    # The first `left` elements only, where that is fewer than N.
    "lf_read_part": """template <int N, class T> __device__ __forceinline__ lf_vec<T, N> lf_read_part(const T* p, int left) {
  lf_vec<T, N> r;
#pragma unroll
  for (int k = 0; k < N; ++k) r.v[k] = k < left ? p[k] : (T)0;
  return r;
}""",
    "lf_write_part": """template <int N, class T> __device__ __forceinline__ void lf_write_part(T* p, const lf_vec<T, N>& x, int left) {
#pragma unroll
  for (int k = 0; k < N; ++k) if (k < left) p[k] = x.v[k];
}""",
    # Floats rounded to 16 bits, two an instruction.
    "lf_pack_f16": """template <int N> __device__ __forceinline__ lf_vec<unsigned short, N> lf_pack_f16(const lf_vec<float, N>& x) {
  lf_vec<unsigned short, N> r;
#pragma unroll
  for (int k = 0; k < N / 2; ++k) r.w[k] = lf_f16x2(x.v[2 * k], x.v[2 * k + 1]);
  return r;
}""",
    "lf_pack_bf16": """template <int N> __device__ __forceinline__ lf_vec<unsigned short, N> lf_pack_bf16(const lf_vec<float, N>& x) {
  lf_vec<unsigned short, N> r;
#pragma unroll
  for (int k = 0; k < N / 2; ++k) r.w[k] = lf_bf16x2(x.v[2 * k], x.v[2 * k + 1]);
  return r;
}""",
    # An element of a vector of bf16, by one instruction from the word that holds it.
    "lf_bf16_at": """template <int N> __device__ __forceinline__ float lf_bf16_at(const lf_vec<unsigned short, N>& x, int k) {
  return __uint_as_float(k & 1 ? x.w[k / 2] & 0xffff0000u : x.w[k / 2] << 16);
}""",
    "lf_f16x2": """__device__ __forceinline__ unsigned int lf_f16x2(float low, float high) {
  unsigned int r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}""",
    "lf_bf16x2": """__device__ __forceinline__ unsigned int lf_bf16x2(float low, float high) {
  unsigned int r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}""",
}  # fmt: skip
