"""How operations are written in CUDA C: spellings with their errors, and the small functions that some call.

A spelling is a template: `{0}` `{1}` `{2}` are the operands, `{T}` the C type of the result, `{W}` an unsigned type of
at least 32 bits in which the operands' integer arithmetic wraps. An f16 or bf16 value is held in a C float, which is
exact: such operands take the spelling for f32, and whoever emits code rounds the result to its type. Nothing here
needs a header. Integers of less than 32 bits are held in their own C type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from loopfuse.dtypes import BF16, F16, DType

C_TYPES = {
    "bool": "bool", "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned int", "u64": "unsigned long long",
    "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long", "f16": "float", "bf16": "float",
    "f32": "float", "f64": "double",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spelling:
    """A CUDA expression for an operation on operands of the types that `target` names: a dtype, a kind, or `any`.

    `ulp` bounds the error in units in the last place of the exact result (0: exact, 0.5: correctly rounded), plus
    `growth` for each unit of the operand's magnitude up to `oprow.MOST_GROWTH`, and `absolute` comes on top; they hold
    for operands within `domain`. An `approx` spelling is for the fast mode, or for where its error is seen not to
    matter; `flushes` says that it takes denormals for zero. With `result`, the spelling is for that result type only.
    """

    target: str
    text: str
    ulp: float = 0.0
    approx: bool = False
    growth: float = 0.0
    absolute: float = 0.0
    domain: tuple[float, float] = (-inf, inf)
    flushes: bool = False
    result: str | None = None

    @staticmethod
    def everywhere() -> tuple[float, float]:
        """The domain of a spelling that serves for every operand."""
        return (-inf, inf)

    def format(self, args: Sequence[str], operand: DType, result: DType) -> str:
        """The expression over `args`, C expressions of the operands' type."""
        wide = "unsigned long long" if operand.bits == 64 else "unsigned int"
        return self.text.format(*args, T=C_TYPES[result.name], W=wide)

    def rank(self, operand: DType, result: DType | None = None) -> int:
        """How well this fits: 0 not at all; more for the very dtype than for f32 in its place, its kind, or `any`."""
        if self.result and (result is None or result.name != self.result):
            return 0
        stand_in = "f32" if operand in (F16, BF16) else operand.name
        order = ("any", operand.kind, stand_in, operand.name)
        fit = max((n + 1 for n, name in enumerate(order) if name == self.target), default=0)
        return fit + len(order) if fit and self.result else fit


def helpers(text: str) -> list[str]:
    """The definitions that CUDA text needs, each after those that it calls itself."""
    found: dict[str, str] = {}

    def need(source: str, inside: str) -> None:
        for name in re.findall(r"\blf_\w+", source):
            if name != inside and name not in found:
                need(HELPERS[name], name)
                found[name] = HELPERS[name]

    need(text, "")
    return list(found.values())


# -- the functions ----------------------------------------------------------------------------------------------------


def _both(text: str) -> str:
    """A definition at float and at double; `#` ends the name of a library function and the text of a constant."""
    single = text.replace("REAL", "float").replace("#", "f")
    return single + "\n" + text.replace("REAL", "double").replace("#", "")


def _saturating(result: str, low: str, high: str) -> str:
    """A cast to an integer type too narrow for an instruction: clamped in float, where its ends are exact."""
    return (
        f"template <> __device__ __forceinline__ {result} lf_cast<{result}>(float x) "
        f"{{ return ({result})__float2int_rz(x != x ? 0.0f : fminf(fmaxf(x, {low}), {high})); }}\n"
        f"template <> __device__ __forceinline__ {result} lf_cast<{result}>(double x) "
        f"{{ return ({result})__double2int_rz(x != x ? 0.0 : fmin(fmax(x, {low[:-1]}), {high[:-1]})); }}"
    )


def _converting(result: str, name: str) -> str:
    """A cast to an integer type by an instruction that saturates, but for NaN."""
    return (
        f"template <> __device__ __forceinline__ {result} lf_cast<{result}>(float x) "
        f"{{ return x != x ? ({result})0 : __float2{name}_rz(x); }}\n"
        f"template <> __device__ __forceinline__ {result} lf_cast<{result}>(double x) "
        f"{{ return x != x ? ({result})0 : __double2{name}_rz(x); }}"
    )


_CAST = "\n".join(
    (
        "template <class T> __device__ __forceinline__ T lf_cast(float x) { return (T)x; }",
        "template <class T> __device__ __forceinline__ T lf_cast(double x) { return (T)x; }",
        _saturating("unsigned char", "0.0f", "255.0f"),
        _saturating("signed char", "-128.0f", "127.0f"),
        _saturating("unsigned short", "0.0f", "65535.0f"),
        _saturating("short", "-32768.0f", "32767.0f"),
        _converting("unsigned int", "uint"),
        _converting("int", "int"),
        _converting("unsigned long long", "ull"),
        _converting("long long", "ll"),
    )
)

_INT = "template <class T, class W> __device__ __forceinline__ T "
_REAL = "__device__ __forceinline__ REAL "
_FLOAT = "__device__ __forceinline__ float "

HELPERS: dict[str, str] = {
    "lf_cast": _CAST,
    # Rounded to odd, so that rounding the float to a 16-bit type is the only rounding that counts.
    "lf_odd": """__device__ __forceinline__ float lf_odd(double x) {
  float r = __double2float_rz(x);
  return (double)r == x || x != x ? r : __int_as_float(__float_as_int(r) | 1);
}
__device__ __forceinline__ float lf_odd(unsigned long long x) {
  float r = __ull2float_rz(x);
  return (unsigned long long)r == x ? r : __int_as_float(__float_as_int(r) | 1);
}
__device__ __forceinline__ float lf_odd(long long x) {
  return x < 0 ? -lf_odd(0ull - (unsigned long long)x) : lf_odd((unsigned long long)x);
}""",
    # Written so that no compiler warns of an unsigned number that is never negative.
    "lf_negative": "template <class T> __device__ __forceinline__ bool lf_negative(T a) "
    "{ return T(-1) < T(1) && ((a >> (8 * sizeof(T) - 1)) & 1); }",
    # The assembler of CUDA 13.0 takes the negation of a 16-bit number, and its magnitude, for sign extended where it is not: the
    # least one becomes 32768 in what follows. So 16 bits of a sum are cut out where no compiler sees 16-bit arithmetic.
    "lf_wrap16": """__device__ __forceinline__ short lf_wrap16(unsigned int a) {
  int r;
  asm("bfe.s32 %0, %1, 0, 16;" : "=r"(r) : "r"(a));
  return (short)r;
}""",
    "lf_neg": _INT + "lf_neg(T a) { return sizeof(T) == 2 && T(-1) < T(1) ? (T)lf_wrap16(0u - (unsigned int)a) : (T)((W)0 - (W)a); }",
    "lf_floordiv": _INT
    + """lf_floordiv(T a, T b) {
  if (b == 0) return 0;
  if (lf_negative(b) && b == T(-1)) return lf_neg<T, W>(a);
  return (T)(a / b - (a % b != 0 && lf_negative(a) != lf_negative(b)));
}""",
    "lf_mod": _INT
    + """lf_mod(T a, T b) {
  if (b == 0 || (lf_negative(b) && b == T(-1))) return 0;
  T r = a % b;
  return (T)(r != 0 && lf_negative(r) != lf_negative(b) ? r + b : r);
}""",
    "lf_pow": _INT
    + """lf_pow(T a, T b) {
  if (lf_negative(b)) return a == T(1) ? T(1) : lf_negative(a) && a == T(-1) ? T(b & 1 ? -1 : 1) : T(0);
  W power = (W)b, square = (W)a, result = 1;
  for (; power; power >>= 1, square *= square) if (power & 1) result *= square;
  return (T)result;
}""",
    "lf_abs": _INT + "lf_abs(T a) { return a < 0 ? lf_neg<T, W>(a) : a; }",
    "lf_sign": "template <class T> __device__ __forceinline__ T lf_sign(T a) { return (T)((a > 0) - lf_negative(a)); }",
    "lf_min": "template <class T> __device__ __forceinline__ T lf_min(T a, T b) { return b < a ? b : a; }",
    "lf_max": "template <class T> __device__ __forceinline__ T lf_max(T a, T b) { return b > a ? b : a; }",
    "lf_shl": _INT + "lf_shl(T a, T b) { return (W)b >= 8 * sizeof(T) ? (T)0 : (T)((W)a << (W)b); }",
    "lf_shr": _INT + "lf_shr(T a, T b) { return (W)b >= 8 * sizeof(T) ? (T)(lf_negative(a) ? -1 : 0) : (T)(a >> b); }",
    "lf_popcount": _INT + """lf_popcount(T a) {
  W bits = (W)a & ((W)~(W)0 >> (8 * (sizeof(W) - sizeof(T))));
  return (T)(sizeof(W) == 8 ? __popcll(bits) : __popc((unsigned int)bits));
}""",
    "lf_ffloordiv": """__device__ __forceinline__ double lf_ffloordiv(double a, double b) {
  if (b == 0.0) return a / b;
  double r = fmod(a, b), q = (a - r) / b;
  if (r != 0.0 && (r < 0.0) != (b < 0.0)) q -= 1.0;
  if (q == 0.0) return copysign(0.0, a / b);
  double n = floor(q);
  return q - n > 0.5 ? n + 1.0 : n;
}
__device__ __forceinline__ float lf_ffloordiv(float a, float b) {
  return (float)lf_ffloordiv((double)a, (double)b);
}""",
    "lf_fmod": _both(_REAL + """lf_fmod(REAL a, REAL b) {
  REAL r = fmod#(a, b);
  if (r == 0) return copysign#(r, b);
  return (r < 0) != (b < 0) ? r + b : r;
}"""),
    "lf_fsign": _both(_REAL + "lf_fsign(REAL x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }"),
    # The NaN forms of the instruction exist for f32 from sm_80 on, and not for f64. Both order -0.0 below +0.0.
    "lf_fmin": _FLOAT + """lf_fmin(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ double lf_fmin(double a, double b) { return a != a ? a : b != b ? b : fmin(a, b); }""",
    "lf_fmax": _FLOAT + """lf_fmax(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ double lf_fmax(double a, double b) { return a != a ? a : b != b ? b : fmax(a, b); }""",
    "lf_isnan": _both("__device__ __forceinline__ bool lf_isnan(REAL x) { return x != x; }"),
    "lf_isinf": _both("__device__ __forceinline__ bool lf_isinf(REAL x) { return x == x && x - x != 0; }"),
    "lf_isfinite": _both("__device__ __forceinline__ bool lf_isfinite(REAL x) { return x - x == 0; }"),
    # The quotient as division makes it, correctly rounded, without its cases: the divisor is in [1, 2].
    "lf_sigmoid": _FLOAT + """lf_sigmoid(float x) {
  float e = expf(-fabsf(x)), d = 1.0f + e, n = x >= 0 ? 1.0f : e, r = lf_rcp_approx(d), q = n * r;
  return fmaf(fmaf(-d, q, n), r, q);
}
__device__ __forceinline__ double lf_sigmoid(double x) {
  double e = exp(-fabs(x));
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}""",
    # Of numbers from 1 on.
    "lf_rcp_approx": _FLOAT + """lf_rcp_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    "lf_logaddexp": _both(_REAL + """lf_logaddexp(REAL a, REAL b) {
  if (a == b) return a + (REAL)0.693147180559945309;
  REAL d = a - b;
  return d > 0 ? a + log1p#(exp#(-d)) : d <= 0 ? b + log1p#(exp#(d)) : d;
}"""),
    "lf_tanh_approx": _FLOAT + """lf_tanh_approx(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    "lf_exp2_approx": _FLOAT + """lf_exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    "lf_sqrt_approx": _FLOAT + """lf_sqrt_approx(float x) {
  float r;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    "lf_div_approx": _FLOAT
    + """lf_div_approx(float a, float b) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}""",
    "lf_sigmoid_approx": _FLOAT + "lf_sigmoid_approx(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }",
    "lf_bits": """template <class T, class S> __device__ __forceinline__ T lf_bits(S x) {
  union { S from; T to; } u;
  u.from = x;
  return u.to;
}""",
    # Every NaN reads as the canonical one: what payload it carries is the machine's affair.
    "lf_f64_bits": "__device__ __forceinline__ long long lf_f64_bits(double x) "
    "{ return x != x ? 0x7ff8000000000000ll : __double_as_longlong(x); }",
    "lf_f32_bits": "__device__ __forceinline__ int lf_f32_bits(float x) "
    "{ return x != x ? 0x7fc00000 : __float_as_int(x); }",
    "lf_f16_bits": """__device__ __forceinline__ unsigned short lf_f16_bits(float x) {
  unsigned short r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return x != x ? (unsigned short)0x7e00 : r;
}""",
    "lf_bf16_bits": """__device__ __forceinline__ unsigned short lf_bf16_bits(float x) {
  unsigned short r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return x != x ? (unsigned short)0x7fc0 : r;
}""",
    "lf_f16_value": _FLOAT + """lf_f16_value(unsigned short x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}""",
    "lf_bf16_value": _FLOAT + """lf_bf16_value(unsigned short x) {
  return __uint_as_float((unsigned int)x << 16);
}""",
}  # fmt: skip
