"""Constants as bits: exact rounding, and text that reads back to the same bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_samples import ALL_DTYPES, FLOAT_DTYPES, INT_DTYPES, anything, bits_of, nasty

from loopfuse import ops
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I8, I64, U8, U64, DType


def value(bits: int, dtype: DType) -> Fraction:
    return Fraction(float(ops.from_bits(bits, dtype)))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_bits_of_scalars(dtype: DType) -> None:
    for x in np.concatenate([nasty(dtype), anything(dtype, 50, 1)]):
        bits = ops.to_bits(x, dtype)
        again = ops.from_bits(bits, dtype)
        assert again.dtype == dtype.numpy and ops.to_bits(again, dtype) == bits
        assert ops.to_bits(np.asarray(x), dtype) == bits == int(bits_of(np.asarray([x]))[0])


def test_bits_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError):
        ops.to_bits(np.float32(1), F64)
    with pytest.raises(TypeError):
        ops.to_bits(np.zeros(1, np.float32), F32)
    with pytest.raises(ValueError):
        ops.from_bits(256, U8)
    with pytest.raises(ValueError):
        ops.from_bits(-1, U8)


def test_signalling_nan_survives() -> None:
    for dtype in FLOAT_DTYPES:
        bits = ops.canonical_nan(dtype) - 1
        assert ops.to_bits(ops.from_bits(bits, dtype), dtype) == bits
        assert ops.const_text(bits, dtype) == f"nan:{bits:#x}"


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@settings(max_examples=60, deadline=None)
@given(
    number=st.fractions() | st.floats(allow_nan=False, allow_infinity=False).map(Fraction), scale=st.integers(-160, 160)
)
def test_constant_rounds_to_the_nearest(dtype: DType, number: Fraction, scale: int) -> None:
    """No neighbour is nearer, and of two equally near the even one is taken."""
    exact = abs(number) * Fraction(2) ** scale
    bits = ops.constant(exact, dtype)
    infinity = ops.constant(float("inf"), dtype)
    top = value(infinity - 1, dtype)
    if bits == infinity:
        assert exact >= top + (top - value(infinity - 2, dtype)) / 2
        return
    error = abs(value(bits, dtype) - exact)
    for other in (bits - 1, bits + 1):
        if 0 <= other < infinity:
            distance = abs(value(other, dtype) - exact)
            assert error < distance or (error == distance and bits % 2 == 0)
    assert ops.constant(-exact, dtype) == (bits | 1 << (dtype.bits - 1) if exact else 0)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_constant_of_what_is_held_exactly(dtype: DType) -> None:
    for x in nasty(dtype):
        if x == x:
            number = float(x) if dtype.is_float else int(x)
            assert ops.constant(number, dtype) == ops.to_bits(x, dtype)
            assert ops.to_number(ops.to_bits(x, dtype), dtype) == number


def test_constant_against_numpy() -> None:
    rng = np.random.default_rng(0)
    for x in [*rng.normal(size=300), *(10.0 ** rng.uniform(-50, 40, 300)), *(10.0 ** rng.uniform(-9, 5, 300))]:
        with np.errstate(all="ignore"):
            assert ops.constant(float(x), F32) == ops.to_bits(np.float32(x), F32)
            assert ops.constant(float(x), F16) == ops.to_bits(np.float64(x).astype(np.float16), F16)
        assert ops.constant(float(x), F64) == ops.to_bits(np.float64(x), F64)


def test_constants_that_do_not_fit() -> None:
    for number, dtype in ((300, U8), (-1, U8), (128, I8), (1 << 64, U64), (0.5, I64), (math.inf, I64), (2, BOOL)):
        with pytest.raises(ValueError):
            ops.constant(number, dtype)
    assert ops.constant(1e10, F16) == ops.constant(math.inf, F16)
    assert ops.constant(-(10**400), F64) == ops.constant(-math.inf, F64)
    assert ops.constant(-0.0, F32) == 1 << 31 and ops.constant(math.nan, F32) == 0x7FC00000
    assert ops.vanishes(1e-9, F16) and not ops.vanishes(1e-9, F32) and not ops.vanishes(0.0, F16)
    assert not ops.vanishes(math.nan, F16) and not ops.vanishes(1, I64)
    assert ops.greatest(F16) == 65504 and ops.greatest(BF16) == float(ops.from_bits(0x7F7F, BF16))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_text_reads_back_to_the_same_bits(dtype: DType) -> None:
    for x in np.concatenate([nasty(dtype), anything(dtype, 400, 2)]):
        bits = ops.to_bits(x, dtype)
        assert ops.parse_const(ops.const_text(bits, dtype), dtype) == bits


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_16_bit_constant_reads_back(dtype: DType) -> None:
    seen = set()
    for bits in range(0, 65536, 17):
        text = ops.const_text(bits, dtype)
        assert ops.parse_const(text, dtype) == bits
        seen.add(text)
    assert len(seen) == len(range(0, 65536, 17))


def test_how_constants_look() -> None:
    def text(number: float, dtype: DType) -> str:
        return ops.const_text(ops.constant(number, dtype), dtype)

    assert [text(v, F32) for v in (0.1, -0.0, 1, 1e10, 16777216, 1e-45)] == [
        "0.1", "-0.0", "1.0", "10000000000.0", "16777216.0", "1e-45",
    ]  # fmt: skip
    assert [text(v, BF16) for v in (0.1, 3.140625, 1e38)] == ["0.1", "3.14", "1e+38"]
    assert [text(v, F16) for v in (0.1, 65504, 6e-8)] == ["0.1", "65504.0", "6e-08"]
    assert text(0.1, F64) == "0.1" and text(1 / 3, F64) == repr(1 / 3)
    assert [text(v, F64) for v in (math.inf, -math.inf, math.nan)] == ["inf", "-inf", "nan"]
    assert ops.const_text(0x7FC00001, F32) == "nan:0x7fc00001" and ops.const_text(0xFFC00000, F32) == "nan:0xffc00000"
    assert text(-128, I8) == "-128" and text(255, U8) == "255"
    assert ops.const_text(1, BOOL) == "true" and ops.const_text(0, BOOL) == "false"


def test_literals_of_other_forms() -> None:
    assert ops.parse_const("0x1.8p-3", F32) == ops.constant(0.1875, F32)
    assert ops.parse_const("-0x1p4", F64) == ops.constant(-16, F64)
    assert ops.parse_const("0x1p-149", F32) == 1
    assert ops.parse_const("1_000", I64) == 1000 and ops.parse_const("-0xff", I64) == ops.constant(-255, I64)
    assert ops.parse_const("5.", F32) == ops.parse_const(".5e1", F32) == ops.constant(5, F32)
    assert ops.parse_const("1e-999999999", F64) == 0
    # The nearest f64 is a tie of f32, which would then round the other way.
    assert ops.parse_const("1.00000005960464477540", F32) == ops.constant(1, F32) + 1
    assert ops.parse_const("-nan", F32) == 0xFFC00000


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("1e99", F32), ("1e999999999", F64), ("abc", F32), ("", F64), ("nan:0x1", F32), ("nan:0x1ffffffff", F32),
     ("nan:0x7f800000", F32), ("256", U8), ("-1", U64), ("1.5", I64), ("1", BOOL), ("1e5e5", F32), ("+1", F32),
     ("infinity", F32), ("0x", F32)],
)  # fmt: skip
def test_text_that_is_no_constant(text: str, dtype: DType) -> None:
    with pytest.raises(ValueError):
        ops.parse_const(text, dtype)


def test_integers_at_their_ends() -> None:
    for dtype in INT_DTYPES:
        for number in (dtype.least, dtype.greatest):
            bits = ops.constant(number, dtype)
            assert ops.to_number(bits, dtype) == number and ops.const_text(bits, dtype) == str(number)
