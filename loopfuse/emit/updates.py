"""Functions by which threads update elements of one array at once (by atomic instructions, in turn, or exactly) and join
states."""

from __future__ import annotations

WORDS = 10  # of an exact sum: nine digits of 32 bits with room for carries, and what is not finite
_I = "__device__ __forceinline__ "


def _later(name: str, unless: str) -> str:
    """A value at a position after all that a state holds. No position yet shows in its upper half."""
    return f"""template <class T> __device__ __forceinline__ lf_best<T> {name}(lf_best<T> a, T value, long long at) {{
  const bool take = (!(value {unless} a.value) && a.value == a.value) || (int)(a.at >> 32) == 0x7fffffff;
  lf_best<T> r = {{take ? value : a.value, take ? at : a.at}};
  return r;
}}"""


UPDATES: dict[str, str] = {
    # The inverse of a count, within a unit in the last place, without the cases of a division; of zero it is no number.
    "lf_inverse": _I + """float lf_inverse(float n) {
  const float r = lf_rcp_approx(n);
  return fmaf(fmaf(-n, r, 1.0f), r, r);
}""",
    "lf_argmax_later": _later("lf_argmax_later", "<="),
    "lf_argmin_later": _later("lf_argmin_later", ">="),
    # An element of 4 or 8 bytes becomes `join` of what it was; for joins whose order does not matter.
    "lf_update": """template <class T, class F> __device__ __forceinline__ void lf_update(T* p, F join) {
  if constexpr (sizeof(T) == 8) {
    unsigned long long seen, was = *(unsigned long long*)p;
    do {
      seen = was;
      const unsigned long long made = lf_bits<unsigned long long>(join(lf_bits<T>(seen)));
      if (made == seen) return;
      was = atomicCAS((unsigned long long*)p, seen, made);
    } while (was != seen);
  } else {
    unsigned int seen, was = *(unsigned int*)p;
    do {
      seen = was;
      const unsigned int made = lf_bits<unsigned int>(join(lf_bits<T>(seen)));
      if (made == seen) return;
      was = atomicCAS((unsigned int*)p, seen, made);
    } while (was != seen);
  }
}""",
    # A value of each lane into a table of the warp: lanes with one key go in the order of their numbers. A negative key
    # is none. All lanes take part.
    "lf_in_turn": """template <class T, class F> __device__ __forceinline__ void lf_in_turn(T* table, int key, T value, F join) {
  const int lane = threadIdx.x % 32;
  int turn = 0;
#pragma unroll 4
  for (int d = 1; d < 32; ++d) {
    const int other = lf_shfl_up(key, d);
    turn += lane >= d && other == key;
  }
  if (key < 0) turn = 0;
  int last = turn;
#pragma unroll 1
  for (int d = 16; d > 0; d >>= 1) {
    const int other = lf_shfl_xor(last, d);
    last = other > last ? other : last;
  }
  for (int k = 0; k <= last; ++k) {
    if (k == turn && key >= 0) table[key] = join(table[key], value);
    lf_syncwarp();
  }
}""",
    # Sums of floats in any order, the same bits in each: a float is added to the words of a number of 288 bits.
    "lf_exact_add": _I + """void lf_exact_add(long long* words, float x) {
  const unsigned int bits = __float_as_uint(x), e = bits >> 23 & 255u;
  unsigned long long* p = (unsigned long long*)words;
  if (e == 255u) {
    atomicOr(p + 9, bits & 0x7fffffu ? 1ull : bits >> 31 ? 4ull : 2ull);
    return;
  }
  const unsigned int at = e ? e - 1u : 0u;
  const unsigned long long m = (unsigned long long)((bits & 0x7fffffu) | (e ? 0x800000u : 0u)) << (at & 31u);
  const unsigned long long low = m & 0xffffffffull, high = m >> 32;
  if (low) atomicAdd(p + (at >> 5), bits >> 31 ? 0ull - low : low);
  if (high) atomicAdd(p + (at >> 5) + 1, bits >> 31 ? 0ull - high : high);
}""",
    # What such a number is as a float.
    "lf_exact_value": _I + """float lf_exact_value(const long long* words) {
  const long long odd = words[9];
  if (odd) return odd & 1 || odd == 6 ? __int_as_float(0x7fc00000) : __int_as_float(odd & 2 ? 0x7f800000 : 0xff800000);
  long long top = 0;
  for (int k = 0; k < 9; ++k) top = (top + words[k]) >> 32;
  const bool less = top < 0;
  long long carry = 0;
  double value = 0.0, scale = ldexp(1.0, -149);
  for (int k = 0; k < 9; ++k, scale *= 4294967296.0) {
    carry += less ? -words[k] : words[k];
    value += (double)(carry & 0xffffffffll) * scale;
    carry >>= 32;
  }
  value += (double)carry * scale;
  return (float)(less ? -value : value);
}""",
    # Whether this block is the last one to say that it is done; what the others wrote before is then seen. `flag`: room
    # in shared memory.
    "lf_last_block": _I + """bool lf_last_block(unsigned int* done, unsigned int blocks, int* flag) {
  __threadfence();
  lf_sync();
  if (threadIdx.x == 0) {
    *flag = atomicAdd(done, 1u) == blocks - 1u;
    if (*flag) *done = 0u;
  }
  lf_sync();
  __threadfence();
  return *flag;
}""",
}  # fmt: skip
