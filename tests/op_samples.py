"""Values that break wrong claims, for the tests of the op table: one list an element type, and comparison by bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from loopfuse import ops
from loopfuse.dtypes import DTYPES, DType
from loopfuse.numerics import Array

ALL_DTYPES = tuple(DTYPES.values())
FLOAT_DTYPES = tuple(d for d in ALL_DTYPES if d.is_float)
INT_DTYPES = tuple(d for d in ALL_DTYPES if d.is_int)


def nasty(dtype: DType) -> Array:
    """Zeros of both signs, infinities, NaN, denormals, extremes, the ends of exactness (2^24 among them), -7."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_int:
        near = [
            0,
            1,
            2,
            3,
            7,
            8,
            15,
            31,
            63,
            100,
            dtype.bits - 1,
            dtype.bits,
            dtype.bits + 1,
            2**24,
            2**24 + 1,
            2**53 + 1,
        ]
        ends = [dtype.least, dtype.least + 1, dtype.greatest, dtype.greatest - 1, dtype.greatest // 2 + 1]
        values = sorted({v for n in (*near, *ends) for v in (n, -n) if dtype.least <= v <= dtype.greatest})
        return np.array(values, dtype=dtype.numpy)
    p, tiny = dtype.mantissa, Fraction(float(ops.from_bits(1, dtype)))
    normal = tiny * 2 ** (p - 1)
    sizes: list[Any] = [
        Fraction(0), tiny, 3 * tiny, normal - tiny, normal, normal + tiny, 1 - Fraction(1, 2**p), Fraction(1),
        1 + Fraction(1, 2 ** (p - 1)), Fraction(1, 2), Fraction(1, 10), Fraction(3, 2), 2, Fraction(5, 2), 3, 7, 100,
        Fraction(355, 113), 88, 104, 2**p - 1, 2**p, 2 ** (p + 1), 2**24, 2**31, 2**63,
        Fraction(ops.greatest(dtype)), Fraction(ops.greatest(dtype)) / 2,
    ]  # fmt: skip
    patterns = {ops.constant(s, dtype) for s in sizes} | {ops.constant(float("inf"), dtype)}
    sign = 1 << (dtype.bits - 1)
    bits = sorted(patterns | {b | sign for b in patterns} | {ops.canonical_nan(dtype)})
    return np.array(bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)


def few(dtype: DType, count: int = 24) -> Array:
    """A part of `nasty`, for triples, which keeps the ends."""
    values = nasty(dtype)
    if len(values) <= count:
        return values
    keep = np.unique(np.linspace(0, len(values) - 1, count).astype(int))
    return values[keep]


def anything(dtype: DType, count: int, seed: int) -> Array:
    """Random bit patterns: every exponent of a float type, NaN too, and every integer."""
    raw = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if dtype.kind == "bool":
        return raw & 1 == 1
    return raw.view(dtype.numpy)


def every16(dtype: DType) -> Array:
    """Every bit pattern of a 16-bit type."""
    return np.arange(65536, dtype=np.uint16).view(dtype.numpy)


def bits_of(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def is_nan(x: Array) -> Array:
    return x != x


def same(a: Array, b: Array) -> Array:
    """Where two arrays agree bit for bit, any NaN agreeing with any."""
    assert a.dtype == b.dtype
    a, b = np.broadcast_arrays(a, b)
    return (bits_of(a) == bits_of(b)) | (is_nan(a) & is_nan(b))


def run(name: str, *args: Array, dtype: DType | None = None) -> Array:
    """An operation by name on arrays; the result's type is the row's."""
    row = ops.OPS[name]
    from_numpy = {d.numpy: d for d in ALL_DTYPES}
    result = dtype or row.result(tuple(from_numpy[np.asarray(a).dtype] for a in args))
    return row.evaluate(args, result)


def ulps(found: Array, exact: Array, dtype: DType) -> Array:
    """The error of a float array in units in the last place of `exact` (f64 or longdouble); 0 where both overflow.

    An exact value past the greatest number counts as that of infinity's place in the last binade.
    """
    wide = found.astype(np.float64).astype(exact.dtype)
    top = ops.spacing(np.asarray(ops.greatest(dtype)), dtype).astype(exact.dtype)
    past = exact.dtype.type(ops.greatest(dtype)) + top
    wide = np.where(np.isinf(wide), np.copysign(past, wide), wide)
    exact_kept = np.where(np.abs(exact) > past, np.copysign(past, exact), exact)
    unit = ops.spacing(np.abs(exact_kept).astype(np.float64), dtype)
    error = np.abs(wide - exact_kept) / unit
    agree = (np.isnan(exact) & np.isnan(wide)) | (wide == exact_kept)
    return np.where(agree, 0.0, np.where(np.isnan(exact) | np.isnan(wide), np.inf, error))
