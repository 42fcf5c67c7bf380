"""The meaning of the elementary operations on elements, in NumPy, exact to the bit.

Every function takes arrays of the declared types (of rank 0 too), broadcasts, and gives an array. Integers wrap at
their width, `//` and `%` floor and give 0 for a divisor 0, casts from float saturate, and everything that rounds,
rounds once at its own type: f16 and bf16 are computed in a wider type and rounded from there, which `narrow` does
without a second rounding. The callers silence NumPy's warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from loopfuse.constants import canonical_nan
from loopfuse.dtypes import BF16, F16, F32, F64, DType, of_numpy

Array = np.ndarray[Any, np.dtype[Any]]


def dtype_of(x: Array) -> DType:
    """The element type of an array.

    Raises:
        TypeError: the language has no such type.
    """
    dtype = of_numpy(x.dtype)
    if dtype is None:
        raise TypeError(f"no element type for {x.dtype}")
    return dtype


# -- rounding between float types -------------------------------------------------------------------------------------


def widen(x: Array) -> Array:
    """A float array as f64, exactly."""
    return x.astype(np.float64)


def narrow(x: Array, dtype: DType) -> Array:
    """An f64 array rounded once, to nearest even, to a float type."""
    if dtype == F64:
        return x
    if dtype != BF16:
        return x.astype(dtype.numpy)
    return to_odd(x).astype(BF16.numpy)


def to_odd(x: Array) -> Array:
    """An f64 array as f32, inexact values rounded to the neighbour with an odd last bit.

    Rounding the result again to 22 bits or fewer is then the same as rounding `x` once (Boldo and Melquiond 2008).
    """
    near = x.astype(np.float32)
    wide = near.astype(np.float64)
    bits = near.view(np.uint32)
    wrong = (wide != x) & (bits & 1 == 0) & ~np.isnan(x)
    outward = np.abs(x) > np.abs(wide)
    step = np.where(outward, np.uint32(1), np.uint32(0xFFFFFFFF))
    return np.asarray(np.where(wrong, bits + step, bits).astype(np.uint32)).view(np.float32)


def on_floats(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function on f64 arrays as one on a float type: computed in f64 and rounded once."""

    def at_dtype(args: tuple[Array, ...], dtype: DType) -> Array:
        return narrow(np.asarray(function(*(widen(a) for a in args))), dtype)

    return at_dtype


# -- casts and bits ---------------------------------------------------------------------------------------------------


def cast(x: Array, dtype: DType) -> Array:
    """`x` as `dtype`: integers wrap, floats round to nearest even, float to integer truncates and saturates (NaN: 0).

    To bool is `x != 0`, so that a NaN is true.
    """
    source = dtype_of(x)
    if source == dtype:
        return x
    if dtype.kind == "bool":
        return np.asarray(x.astype(np.float32) != 0 if source == BF16 else x != 0)
    if dtype.is_int:
        return _saturate(widen(x), dtype) if source.is_float else x.astype(dtype.numpy)
    if source.is_float:
        return narrow(widen(x), dtype)
    if dtype in (F32, F64) or source.bits <= 32:
        return x.astype(dtype.numpy) if dtype in (F32, F64) else narrow(x.astype(np.float64), dtype)
    return narrow(_sticky(x, source), dtype)


def _saturate(x: Array, dtype: DType) -> Array:
    """Truncated toward zero; outside the type's range its end, and 0 for NaN."""
    high = x >= 2.0 ** (dtype.bits - (dtype.kind == "int"))
    low = x <= float(dtype.least) - 1.0 if dtype.bits < 64 else x < float(dtype.least)
    if dtype.kind == "uint":
        low = x <= -1.0
    inside = np.trunc(np.where(high | low | np.isnan(x), 0.0, x)).astype(dtype.numpy)
    ends = np.where(high, dtype.numpy.type(dtype.greatest), inside)
    return np.asarray(np.where(low, dtype.numpy.type(dtype.least), ends), dtype=dtype.numpy)


def _sticky(x: Array, source: DType) -> Array:
    """64-bit integers as f64, rounded to odd, so that a later rounding to 51 bits or fewer is the only one."""
    negative = x < 0 if source.kind == "int" else np.zeros_like(x, dtype=bool)
    size = x.view(np.uint64)
    size = np.where(negative, np.uint64(0) - size, size)
    kept = (size >> np.uint64(12)) | ((size & np.uint64(0xFFF)) != 0)
    large = kept.astype(np.float64) * 4096.0
    wide = np.where(size < np.uint64(1 << 53), size.astype(np.float64), large)
    return np.asarray(np.where(negative, -wide, wide))


def bits(x: Array, dtype: DType) -> Array:
    """The bits of `x` read as another type of the same width; every NaN reads as the canonical one.

    What payload and sign a computed NaN has differs from machine to machine.
    """
    if x.dtype == dtype.numpy:
        return x
    source = dtype_of(x)
    raw = np.ascontiguousarray(x).reshape(x.shape).view(f"u{source.itemsize}")
    if source.is_float:
        raw = np.where(x != x, raw.dtype.type(canonical_nan(source)), raw)
    return np.asarray(raw).view(dtype.numpy)


# -- integers ---------------------------------------------------------------------------------------------------------


def unsigned(x: Array) -> Array:
    """The bits of an integer array as unsigned numbers."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def int_floordiv(a: Array, b: Array) -> Array:
    """Quotient rounded toward minus infinity; 0 for a divisor 0, and INT_MIN for INT_MIN // -1."""
    zero = b == 0
    minus = b == -1 if b.dtype.kind == "i" else zero
    quotient = np.floor_divide(a, np.where(zero | minus, b.dtype.type(1), b))
    return np.asarray(np.where(zero, a.dtype.type(0), np.where(minus, np.negative(a), quotient)), dtype=a.dtype)


def int_mod(a: Array, b: Array) -> Array:
    """`a - b * (a // b)`, with the sign of `b`; 0 for a divisor 0."""
    zero = b == 0
    minus = b == -1 if b.dtype.kind == "i" else zero
    rest = np.remainder(a, np.where(zero | minus, b.dtype.type(1), b))
    return np.asarray(np.where(zero | minus, a.dtype.type(0), rest), dtype=a.dtype)


def int_pow(a: Array, b: Array) -> Array:
    """`a ** b`, wrapping. A negative power is the exact value rounded toward zero, 0 for the base 0."""
    a, b = np.broadcast_arrays(a, b)
    one = a.dtype.type(1)
    negative = b < 0
    power = unsigned(np.where(negative, b.dtype.type(0), b).astype(b.dtype))
    result, square = np.ones_like(a), a.copy()
    while power.any():
        result = np.where(power & 1 == 1, result * square, result).astype(a.dtype)
        square = (square * square).astype(a.dtype)
        power = power >> power.dtype.type(1)
    if a.dtype.kind == "i":
        sign = np.where(b & 1 == 1, a, one)
        inverse = np.where(a == 1, one, np.where(a == -1, sign, a.dtype.type(0)))
        result = np.where(negative, inverse, result)
    return np.asarray(result, dtype=a.dtype)


def shift_left(a: Array, b: Array) -> Array:
    """`a << b`; 0 when the count is negative or at least the width."""
    width = 8 * a.dtype.itemsize
    past = unsigned(b) >= width
    shifted = np.left_shift(a, np.where(past, b.dtype.type(0), b).astype(a.dtype))
    return np.asarray(np.where(past, a.dtype.type(0), shifted), dtype=a.dtype)


def shift_right(a: Array, b: Array) -> Array:
    """`a >> b`, keeping the sign; when the count is negative or at least the width, 0 or -1 by the sign."""
    width = 8 * a.dtype.itemsize
    past = unsigned(b) >= width
    last = b.dtype.type(width - 1)
    shifted = np.right_shift(a, np.where(past, last, b).astype(a.dtype))
    if a.dtype.kind == "u":
        shifted = np.where(past, a.dtype.type(0), shifted)
    return np.asarray(shifted, dtype=a.dtype)


def popcount(x: Array) -> Array:
    """The number of bits set, in the type of `x`."""
    return np.bitwise_count(unsigned(x)).astype(x.dtype)


# -- floats -----------------------------------------------------------------------------------------------------------


def maximum(a: Array, b: Array) -> Array:
    """The greater; NaN if either is; +0.0 is greater than -0.0."""
    greater = np.maximum(a, b)
    if a.dtype.kind != "f":
        return np.asarray(greater)
    return np.asarray(np.where((a == 0) & (b == 0), a + b, greater), dtype=a.dtype)


def minimum(a: Array, b: Array) -> Array:
    """The lesser; NaN if either is; -0.0 is less than +0.0."""
    if a.dtype.kind != "f":
        return np.asarray(np.minimum(a, b))
    return np.asarray(np.where((a == 0) & (b == 0), -(-a - b), np.minimum(a, b)), dtype=a.dtype)


def float_floordiv(a: Array, b: Array) -> Array:
    """The floor of the exact quotient of f64 arrays, rounded once; `x // 0` is `x / 0`, `inf // x` NaN, as in NumPy.

    (a - remainder) / b is an integer, which is computed to twice the precision. NumPy's own may be one off from 2**51.
    """
    rest = np.fmod(a, b)
    down = (rest != 0) & ((rest < 0) != (b < 0))
    (fraction, exponent), (divisor, shift) = np.frexp(a), np.frexp(b)
    dividend, missing = two_sum(fraction, -np.ldexp(rest, -exponent))
    high = np.asarray(dividend / divisor)
    product, error = two_product(high, divisor)
    low = ((dividend - product) - error + missing) / divisor
    high, low = (np.ldexp(v, exponent - shift) for v in two_sum(high, low))
    floor = np.where(np.isinf(high), high, high + (low - down))
    floor = np.where(np.isinf(b), np.where(down, -1.0, 0.0), floor)
    floor = np.where(floor == 0, np.copysign(0.0, np.copysign(1.0, a) * np.copysign(1.0, b)), floor)
    return np.asarray(np.where(b == 0, a / b, np.where(np.isnan(rest), np.nan, floor)))


def fma(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """`a * b + c` rounded once."""
    if dtype != F64:
        high, low = two_sum(widen(a) * widen(b), widen(c))
        return narrow(_join_odd(high, low), dtype)
    return _fma64(*(np.asarray(v) for v in np.broadcast_arrays(a, b, c)))


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`a + b` and its rounding error (Knuth); the error is 0 where the sum is not finite."""
    total = np.asarray(a + b)
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    return total, np.asarray(np.where(np.isfinite(total), error, 0.0))


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """`a * b` and its rounding error (Dekker), for f64 of moderate size."""
    product = a * b
    ah, al = _halves(a)
    bh, bl = _halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def _join_odd(high: Array, low: Array) -> Array:
    """`high + low` rounded to odd, where `high` is the rounded sum of the two."""
    view = np.asarray(high).view(np.int64)
    adjust = (low != 0) & (view & 1 == 0)
    outward = (low > 0) == (high > 0)
    return np.asarray(np.where(adjust, view + np.where(outward, 1, -1), view)).view(np.float64)


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """In f64: by error-free transformations where no step can overflow or lose bits, else in rational arithmetic."""
    product = a * b
    product = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), 0.0, product)  # it may overflow, c wins
    result = np.where((c == 0) & (a != 0) & (b != 0), product, product + c)  # a tiny product keeps its sign
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    sizes = [np.abs(v) for v in (a, b, c)]
    finite &= c != 0
    tame = finite & (sizes[2] < 2.0**900) & (sizes[2] > 2.0**-900)
    tame &= (sizes[0] < 2.0**450) & (sizes[1] < 2.0**450) & (sizes[0] > 2.0**-450) & (sizes[1] > 2.0**-450)
    x, y, z = (np.where(tame, v, 1.0) for v in (a, b, c))
    uh, ul = two_product(x, y)
    th, tl = two_sum(z, ul)
    vh, vl = two_sum(uh, th)
    close = vh + _join_odd(*two_sum(tl, vl))
    result = np.where(tame, close, result)
    for at in np.argwhere(finite & ~tame):
        where = tuple(at)
        result[where] = _fma_exact(float(a[where]), float(b[where]), float(c[where]))
    return np.asarray(result)


def _fma_exact(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        size = float(abs(exact))
    except OverflowError:
        size = float("inf")
    return -size if exact < 0 else size


def float_arithmetic(ufunc: Callable[..., Any]) -> Callable[[tuple[Array, ...], DType], Array]:
    """`+ - * /` and square root, correctly rounded at every float type.

    A 16-bit result comes from f64: f32 would round twice where bf16 is subnormal.
    """

    def at_dtype(args: tuple[Array, ...], dtype: DType) -> Array:
        if dtype in (F16, BF16):
            return narrow(np.asarray(ufunc(*(widen(a) for a in args))), dtype)
        return np.asarray(ufunc(*args))

    return at_dtype
