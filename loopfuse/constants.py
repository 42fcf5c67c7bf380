"""Constants as bits: exact conversion from numbers and text, and text that reads back to the same bits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from loopfuse.dtypes import DType

_QUIET = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8000000000000}


def to_bits(value: Any, dtype: DType) -> int:
    """The bits of a NumPy scalar (or rank-0 array) that already has the NumPy type of `dtype`."""
    array = np.asarray(value)
    if array.dtype != dtype.numpy or array.shape != ():
        raise TypeError(f"expected a scalar of {dtype}, not {array.dtype}{list(array.shape)}")
    return int(array.reshape(1).view(f"u{dtype.itemsize}")[0])


def from_bits(bits: int, dtype: DType) -> Any:
    """The NumPy scalar with these bits, a NaN's payload included."""
    if not 0 <= bits < 1 << (8 * dtype.itemsize):
        raise ValueError(f"{bits:#x} has more than {dtype.bits} bits")
    return np.array([bits], dtype=f"u{dtype.itemsize}").view(dtype.numpy)[0]


def to_number(bits: int, dtype: DType) -> int | float | bool:
    """The value as a Python number, exactly; a NaN's payload is lost."""
    if dtype.is_float:
        return float(from_bits(bits, dtype))
    if dtype.kind == "bool":
        return bool(bits)
    return bits - (1 << dtype.bits) if bits > dtype.greatest else bits


def constant(value: int | float | bool | Fraction, dtype: DType) -> int:
    """The bits of a number in `dtype`, rounded once to nearest even; too large a number becomes infinite.

    Raises:
        ValueError: an integer type or bool does not hold the number exactly.
    """
    if dtype.kind == "bool":
        if value not in (0, 1):
            raise ValueError(f"{value} is neither true nor false")
        return int(value)
    if dtype.is_int:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} does not fit {dtype}")
        if value != int(value) or not dtype.least <= value <= dtype.greatest:
            raise ValueError(f"{value} does not fit {dtype}")
        return int(value) & ((1 << dtype.bits) - 1)
    if isinstance(value, float) and not math.isfinite(value):
        return canonical_nan(dtype) if math.isnan(value) else _infinity(dtype) | _sign(dtype, value < 0)
    return _round(abs(Fraction(value)), dtype) | _sign(
        dtype, value < 0 or (isinstance(value, float) and math.copysign(1.0, value) < 0)
    )


def canonical_nan(dtype: DType) -> int:
    """The bits of the quiet NaN without a payload."""
    return _QUIET[dtype.name]


def greatest(dtype: DType) -> float:
    """The greatest finite number of a float type."""
    return float(from_bits(_infinity(dtype) - 1, dtype))


def vanishes(value: int | float | Fraction, dtype: DType) -> bool:
    """Whether a number that is not 0 rounds to 0 in a float type."""
    return dtype.is_float and value != 0 and math.isfinite(value) and _round(abs(Fraction(value)), dtype) == 0


def _infinity(dtype: DType) -> int:
    """All exponent bits set: the bits above the fraction, without the sign."""
    fraction = dtype.mantissa - 1
    return (1 << (dtype.bits - 1)) - (1 << fraction)


def _sign(dtype: DType, negative: bool) -> int:
    return 1 << (dtype.bits - 1) if negative else 0


def _round(value: Fraction, dtype: DType) -> int:
    """The bits of a non-negative number, rounded to nearest even; those of infinity or more when it is too large."""
    if value == 0:
        return 0
    fraction = dtype.mantissa - 1
    bias = (1 << (dtype.bits - dtype.mantissa - 1)) - 1
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    if exponent > bias:
        return _infinity(dtype)
    unit = max(exponent, 1 - bias) - fraction
    units = round(value / Fraction(2) ** unit)  # Python rounds a half to even
    # Counting units from the least exponent upward makes bits: a carry out of the fraction moves the exponent.
    return units + ((unit + fraction + bias - 1) << fraction)


def const_text(bits: int, dtype: DType) -> str:
    """The constant as text: `true`, `-7`, `0.1`, `-inf`, `nan`, `nan:0x7fc00001`; `parse_const` gives the bits back."""
    if dtype.kind == "bool":
        return "true" if bits else "false"
    value = to_number(bits, dtype)
    if dtype.is_int:
        return str(value)
    if math.isnan(value):
        return "nan" if bits == canonical_nan(dtype) else f"nan:{bits:#x}"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e16:
        return f"{'-' if math.copysign(1.0, value) < 0 else ''}{abs(int(value))}.0"
    size = abs(value)
    texts = (f"{size:.{digits}g}" for digits in range(1, 18))
    text = next(t for t in texts if constant(_exact(t), dtype) | _sign(dtype, value < 0) == bits)
    return ("-" if value < 0 else "") + (text if "." in text or "e" in text else text + ".0")


def parse_const(text: str, dtype: DType) -> int:
    """The bits of a constant written as by `const_text`, or as any decimal, or hexadecimal (`0x1.8p-3`), literal.

    Decimals are rounded once, from their exact value.

    Raises:
        ValueError: the text is no constant of this type, or a number too large for it.
    """
    text = text.strip().replace("_", "")
    if dtype.kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return int(text == "true")
    body, negative = (text[1:], True) if text.startswith("-") else (text, False)
    if dtype.is_int:
        size = int(body, 0) if body[:2].lower() in ("0x", "0b", "0o") else int(body)
        return constant(-size if negative else size, dtype)
    if body.startswith("nan:"):
        return _payload(int(body[4:], 16), dtype)
    if body == "nan":
        return canonical_nan(dtype) | _sign(dtype, negative)
    if body == "inf":
        return _infinity(dtype) | _sign(dtype, negative)
    size = constant(_exact(body), dtype)
    if size == _infinity(dtype):
        raise ValueError(f"{text} does not fit {dtype}: its greatest number is {greatest(dtype):g}")
    return size | _sign(dtype, negative)


def _payload(bits: int, dtype: DType) -> int:
    if not _infinity(dtype) < bits & ~_sign(dtype, True) < 1 << (dtype.bits - 1) or bits >= 1 << dtype.bits:
        raise ValueError(f"{bits:#x} are not the bits of a NaN of {dtype}")
    return bits


def _exact(text: str) -> Fraction:
    """The exact value of an unsigned decimal or hexadecimal literal."""
    if text[:2].lower() != "0x":
        if not text[:1].isdigit() and not text.startswith("."):
            raise ValueError(f"{text!r} is no number")
        mantissa, _, exponent = text.lower().partition("e")
        whole, _, part = mantissa.partition(".")
        return Fraction(int(whole + part), 10 ** len(part)) * Fraction(10) ** _power(exponent or "0")
    mantissa, _, exponent = text[2:].lower().partition("p")
    whole, _, part = mantissa.partition(".")
    return Fraction(int(whole + part, 16), 16 ** len(part)) * Fraction(2) ** _power(exponent or "0")


def _power(text: str) -> int:
    """An exponent; one past every float type's range is as good as a hundred times larger, and cheaper."""
    return max(-20000, min(20000, int(text)))
