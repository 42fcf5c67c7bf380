"""The meaning of operations against plain Python, with exact integers and fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from op_samples import ALL_DTYPES, FLOAT_DTYPES, INT_DTYPES, anything, few, nasty, run, same

from loopfuse import numerics, ops
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from loopfuse.numerics import Array


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def scalars(dtype: DType, bits: list[int]) -> Array:
    return np.array(bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)


# -- integers ---------------------------------------------------------------------------------------------------------


def power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return 0 if a == 0 else int(Fraction(a) ** max(b, -64 + (b % 2)))


INTEGER: dict[str, Callable[[int, int, int], Any]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul": lambda a, b, w: a * b,
    "floordiv": lambda a, b, w: a // b if b else 0,
    "mod": lambda a, b, w: a % b if b else 0,
    "pow": lambda a, b, w: power(a, b),
    "minimum": lambda a, b, w: min(a, b),
    "maximum": lambda a, b, w: max(a, b),
    "bitand": lambda a, b, w: a & b,
    "bitor": lambda a, b, w: a | b,
    "bitxor": lambda a, b, w: a ^ b,
    "shl": lambda a, b, w: a << b if 0 <= b < w else 0,
    "shr": lambda a, b, w: a >> b if 0 <= b < w else (-1 if a < 0 else 0),
    "eq": lambda a, b, w: a == b,
    "ne": lambda a, b, w: a != b,
    "lt": lambda a, b, w: a < b,
    "le": lambda a, b, w: a <= b,
    "gt": lambda a, b, w: a > b,
    "ge": lambda a, b, w: a >= b,
}
INTEGER_UNARY: dict[str, Callable[[int, int], int]] = {
    "neg": lambda a, w: -a,
    "abs": lambda a, w: abs(a),
    "sign": lambda a, w: (a > 0) - (a < 0),
    "invert": lambda a, w: ~a,
    "popcount": lambda a, w: (a & ((1 << w) - 1)).bit_count(),
}


def wrapped(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.greatest else value


@pytest.mark.parametrize("dtype", INT_DTYPES, ids=str)
def test_integers_against_python(dtype: DType) -> None:
    x = np.concatenate([nasty(dtype), anything(dtype, 20, 3)])
    pairs = [(int(a), int(b)) for a, b in product(x, x)]
    for name, meaning in INTEGER.items():
        found = run(name, x[:, None], x[None]).ravel()
        if found.dtype == bool:
            expected = np.array([meaning(a, b, dtype.bits) for a, b in pairs])
        else:
            expected = np.array([wrapped(meaning(a, b, dtype.bits), dtype) for a, b in pairs], dtype=dtype.numpy)
        wrong = np.flatnonzero(found != expected)
        assert wrong.size == 0, (name, pairs[wrong[0]], found[wrong[0]], expected[wrong[0]])
    for name, single in INTEGER_UNARY.items():
        expected = np.array([wrapped(single(int(a), dtype.bits), dtype) for a in x], dtype=dtype.numpy)
        assert (run(name, x) == expected).all(), name
    low, high = few(dtype, 8)[None, :, None], few(dtype, 8)[None, None]
    clipped = run("clip", x[:, None, None], low, high).ravel()
    triples = product(x, few(dtype, 8), few(dtype, 8))
    assert clipped.tolist() == [min(max(int(a), int(b)), int(c)) for a, b, c in triples]


def test_well_known_integer_results() -> None:
    def i32(*values: int) -> list[Array]:
        return [np.asarray(v, dtype=np.int32) for v in values]

    assert run("floordiv", *i32(-7, 2)) == -4 and run("mod", *i32(-7, 2)) == 1 and run("mod", *i32(7, -2)) == -1
    assert run("floordiv", *i32(5, 0)) == 0 and run("mod", *i32(5, 0)) == 0
    assert run("floordiv", *i32(-(2**31), -1)) == -(2**31) and run("mod", *i32(-(2**31), -1)) == 0
    assert run("abs", *i32(-(2**31))) == -(2**31)
    assert run("pow", *i32(2, -1)) == 0 and run("pow", *i32(-1, -3)) == -1 and run("pow", *i32(0, -1)) == 0
    assert run("pow", *i32(0, 0)) == 1
    assert run("shl", *i32(1, 32)) == 0 and run("shr", *i32(-8, 99)) == -1 and run("shr", *i32(-8, -1)) == -1


def test_logic_on_bools() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    for name in ("and", "bitand"):
        assert run(name, x, y).tolist() == [False, False, False, True]
    for name in ("or", "bitor"):
        assert run(name, x, y).tolist() == [False, True, True, True]
    assert run("bitxor", x, y).tolist() == run("ne", x, y).tolist() == [False, True, True, False]
    assert run("not", x).tolist() == run("invert", x).tolist() == [True, True, False, False]


# -- float arithmetic, exactly ----------------------------------------------------------------------------------------


def rounded(exact: Fraction, like: float, dtype: DType) -> int:
    """The bits of an exact result; `like` has the sign of a zero."""
    bits = ops.constant(abs(exact), dtype)
    negative = exact < 0 or (exact == 0 and math.copysign(1.0, like) < 0)
    return bits | (1 << (dtype.bits - 1) if negative else 0)


def finite(*values: float) -> bool:
    return all(math.isfinite(v) for v in values)


EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_float_arithmetic_is_correctly_rounded(name: str, dtype: DType) -> None:
    """Against fractions; where an operand is not finite, or a divisor 0, against IEEE 754 as f64 does it."""
    x, y = nasty(dtype), np.concatenate([nasty(dtype), anything(dtype, 20, 8)])
    found = run(name, x[:, None], y[None])
    wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name](
        x.astype(np.float64)[:, None], y.astype(np.float64)[None]
    )
    for (n, a), (m, b) in product(enumerate(x.astype(np.float64)), enumerate(y.astype(np.float64))):
        if finite(a, b) and not (name == "div" and b == 0):
            exact = EXACT[name](Fraction(float(a)), Fraction(float(b)))
            expected = scalars(dtype, [rounded(exact, float(wide[n, m]), dtype)])
        else:
            expected = wide[n, m : m + 1].astype(dtype.numpy)
        assert same(found[n, m : m + 1], expected).all(), (name, a, b, found[n, m])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_square_root_is_correctly_rounded(dtype: DType) -> None:
    x = np.abs(np.concatenate([nasty(dtype), anything(dtype, 200, 8)]))
    x = x[np.isfinite(x.astype(np.float64)) & (x > 0)]
    for a, r in zip(x, run("sqrt", x), strict=True):
        bits = ops.to_bits(r, dtype)
        below, above = (Fraction(float(ops.from_bits(bits + s, dtype))) for s in (-1, 1))
        middle, exact = Fraction(float(r)), Fraction(float(a))
        assert ((below + middle) / 2) ** 2 <= exact <= ((middle + above) / 2) ** 2
    assert same(run("sqrt", scalars(F32, [1 << 31])), scalars(F32, [1 << 31])).all()
    assert np.isnan(run("sqrt", np.asarray(-1.0)))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    v = few(dtype, 14)
    a, b, c = (g.ravel() for g in np.meshgrid(v, v, v))
    near = rng.normal(size=600).astype(dtype.numpy), rng.normal(size=600).astype(dtype.numpy)
    cancel = (-(near[0].astype(np.float64) * near[1].astype(np.float64))).astype(dtype.numpy)
    wild = [anything(dtype, 300, s) for s in (4, 5, 6)]
    a, b, c = (np.concatenate(p) for p in ((a, near[0], wild[0]), (b, near[1], wild[1]), (c, cancel, wild[2])))
    found = run("fma", a, b, c)
    for x, y, z, r in zip(*(w.astype(np.float64).tolist() for w in (a, b, c)), found, strict=True):
        if finite(x, y, z):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            expected = scalars(dtype, [rounded(exact, x * y + z if x == 0 or y == 0 else 0.0, dtype)])
        elif finite(x, y):
            expected = np.array([z]).astype(dtype.numpy)
        else:
            expected = (np.array([x]) * y + z).astype(dtype.numpy)
        assert same(np.asarray([r]), expected).all(), (x, y, z, r)


def test_fma_in_the_cases_that_tempt_to_round_twice() -> None:
    tiny = 2.0**-1074
    cases = [(1 + 2.0**-30, 1 + 2.0**-30, -1.0), (2.0**-600, 2.0**-600, tiny), (2.0**-540, -(2.0**-540), 0.0),
             (2.0**600, 2.0**600, -math.inf), (1.5 * 2.0**-538, 2.0**-536, tiny), (2.0**512, 2.0**511, -(2.0**1023)),
             (1 - 2.0**-53, 1 + 2.0**-52, -1.0), (3.0, 2.0**-1074, -(2.0**-1073)), (1.0, 1.0, -1.0)]  # fmt: skip
    for a, b, c in cases:
        found = float(run("fma", *(np.asarray(v) for v in (a, b, c))))
        if finite(a, b, c):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            assert ops.to_bits(np.float64(found), F64) == rounded(exact, 0.0, F64)
        else:
            assert found == c
    assert math.copysign(1.0, float(run("fma", *(np.asarray(v) for v in (-(2.0**-540), 2.0**-540, 0.0))))) == -1.0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_remainder_and_floor_quotient(dtype: DType) -> None:
    """Exact remainders, rounded once; quotients within their promise, and exact while they are small integers."""
    x = np.concatenate([few(dtype, 30), anything(dtype, 25, 1)])
    rest, quotient = run("mod", x[:, None], x[None]), run("floordiv", x[:, None], x[None])
    values = x.astype(np.float64).tolist()
    for (n, a), (m, b) in product(enumerate(values), enumerate(values)):
        if not finite(a, b) or b == 0:  # as NumPy has it
            pair = np.array([a]), np.array([b])
            assert same(rest[n : n + 1, m], np.remainder(*pair).astype(dtype.numpy)).all(), (a, b)
            assert same(quotient[n : n + 1, m], np.floor_divide(*pair).astype(dtype.numpy)).all(), (a, b)
            continue
        floor = Fraction(a) // Fraction(b)
        exact = Fraction(a) - floor * Fraction(b)
        assert same(rest[n : n + 1, m], scalars(dtype, [rounded(exact, b, dtype)])).all(), (a, b)
        if abs(floor) < 2**dtype.mantissa:
            assert float(quotient[n, m]) == floor, (a, b)
        else:
            assert same(quotient[n : n + 1, m], scalars(dtype, [rounded(floor, 0.0, dtype)])).all(), (a, b)
    assert (
        np.isnan(run("mod", np.asarray(1.0), np.asarray(0.0)))
        and run("mod", np.asarray(-1.0), np.asarray(np.inf)) == np.inf
    )
    assert run("floordiv", np.asarray(1.0), np.asarray(0.0)) == np.inf
    assert run("floordiv", np.asarray(1.0), np.asarray(0.1)) == 9.0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_minimum_and_maximum(dtype: DType) -> None:
    x = nasty(dtype)
    for name, pick in (("minimum", min), ("maximum", max)):
        found = run(name, x[:, None], x[None])
        for (n, a), (m, b) in product(enumerate(x.astype(np.float64)), enumerate(x.astype(np.float64))):
            if a != a or b != b:
                assert found[n, m] != found[n, m]
            else:
                best = pick((a, math.copysign(1.0, a), n), (b, math.copysign(1.0, b), m))
                assert same(found[n : n + 1, m], x[best[2] : best[2] + 1]).all()
    low, high = np.asarray(np.nan), np.asarray(1.0)
    assert np.isnan(run("clip", np.asarray(0.0), low, high)) and np.isnan(run("clip", low, np.asarray(0.0), high))
    assert run("clip", np.asarray(5.0), np.asarray(0.0), high) == 1.0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_roundings_signs_and_comparisons(dtype: DType) -> None:
    x = np.concatenate([nasty(dtype), np.arange(-8, 8, dtype=np.float64).astype(dtype.numpy) / dtype.numpy.type(2)])
    whole: dict[str, Callable[[float], int]] = {
        "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round,
    }  # fmt: skip
    for name, meaning in whole.items():
        for a, r in zip(x.astype(np.float64).tolist(), run(name, x), strict=True):
            expected = math.copysign(meaning(a), a) if finite(a) else a
            assert same(np.asarray([r]), np.array([expected]).astype(dtype.numpy)).all(), (name, a)
    for a, s in zip(x.astype(np.float64).tolist(), run("sign", x).astype(np.float64), strict=True):
        assert (s != s) if a != a else (s == (a > 0) - (a < 0) and math.copysign(1, s) == (1 if a >= 0 else -1))
    pairs = list(product(x.astype(np.float64).tolist(), repeat=2))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        assert run(name, x[:, None], x[None]).ravel().tolist() == [INTEGER[name](a, b, 0) for a, b in pairs]
    for name, test in (("isnan", math.isnan), ("isinf", math.isinf), ("isfinite", math.isfinite)):
        assert run(name, x).tolist() == [test(a) for a in x.astype(np.float64).tolist()]
    signs = run("copysign", x[:, None], x[None]).astype(np.float64).ravel()
    assert [math.copysign(1.0, s) for s in signs] == [math.copysign(1.0, b) for _, b in pairs]


# -- casts and bits ---------------------------------------------------------------------------------------------------


def converted(x: Any, source: DType, dtype: DType) -> Array:
    """A scalar converted in plain Python."""
    number = float(x) if source.is_float else int(x)
    if dtype.kind == "bool":
        return np.array([number != 0])
    if dtype.is_int:
        if source.is_float:
            if number != number:
                number = 0
            elif math.isinf(number):
                number = dtype.greatest if number > 0 else dtype.least
            number = min(max(int(number), dtype.least), dtype.greatest)
        return np.array([wrapped(int(number), dtype)], dtype=dtype.numpy)
    if source.is_float and not math.isfinite(number):
        return np.array([number]).astype(dtype.numpy)
    return scalars(dtype, [rounded(Fraction(number), float(number) if source.is_float else 0.0, dtype)])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
def test_casts(source: DType, dtype: DType) -> None:
    x = np.concatenate([nasty(source), anything(source, 120, 2)])
    if source.is_float:
        with np.errstate(over="ignore"):
            ends = [v + d for t in INT_DTYPES for v in (t.least, t.greatest) for d in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)]
            x = np.concatenate([x, np.array(ends, dtype=np.float64).astype(source.numpy)])
    found = run("cast", x, dtype=dtype)
    expected = np.concatenate([converted(v, source, dtype) for v in x])
    assert same(found, expected).all(), [(v, f) for v, f, e in zip(x, found, expected, strict=True) if f != e][:3]


def test_casts_round_once() -> None:
    """Values that a detour through f32 would round the wrong way."""
    beyond_half = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 2.0**-8])
    assert run("cast", beyond_half, dtype=BF16).astype(np.float64).tolist() == [1 + 2.0**-7, 1.0, 1.0]
    assert run("cast", np.array([1 + 2.0**-11 + 2.0**-40]), dtype=F16).astype(np.float64) == 1 + 2.0**-10
    big = np.array([2**62 + 2**54 + 1, -(2**62) - 2**54 - 1, 2**62 + 2**54], dtype=np.int64)
    assert run("cast", big, dtype=BF16).astype(np.float64).tolist() == [
        2.0**62 + 2.0**55,
        -(2.0**62) - 2.0**55,
        2.0**62,
    ]


def test_casts_that_numpy_and_c_get_differently() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 300.0, -1.0, 1e20, -1e20, 254.9, -0.9])
    assert run("cast", x, dtype=U8).tolist() == [0, 255, 0, 255, 0, 255, 0, 254, 0]
    assert run("cast", x, dtype=I32).tolist()[:3] == [0, 2**31 - 1, -(2**31)]
    assert run("cast", x, dtype=I64).tolist()[5:7] == [2**63 - 1, -(2**63)]
    assert run("cast", x, dtype=U64).tolist()[5:7] == [2**64 - 1, 0]
    assert run("cast", np.array([np.nan, 0.0, -0.0, 1e-300]), dtype=BOOL).tolist() == [True, False, False, True]


def test_bits() -> None:
    one = np.array([1.0, -0.0, np.inf], dtype=np.float32)
    assert run("bits", one, dtype=U32).tolist() == [0x3F800000, 0x80000000, 0x7F800000]
    assert run("bits", run("bits", one, dtype=I32), dtype=F32).tolist() == one.tolist()
    assert run("bits", np.array([-1], dtype=np.int8), dtype=U8).tolist() == [255]
    assert run("bits", np.array([0x3F80], dtype=np.uint16), dtype=BF16).astype(np.float64) == 1.0
    assert run("bits", np.array([0x3C00], dtype=np.int16), dtype=F16) == 1.0
    for dtype, whole in ((F16, U16), (BF16, I16), (F32, U32), (F64, I64)):
        odd = scalars(dtype, [ops.canonical_nan(dtype) | 1 | 1 << (dtype.bits - 1)])
        assert run("bits", odd, dtype=whole) == ops.canonical_nan(dtype)
    grid = np.arange(6, dtype=np.float64).reshape(2, 3).T
    assert (run("bits", grid, dtype=U64) == np.ascontiguousarray(grid).view(np.uint64)).all()
    assert run("bits", np.asarray(1.0), dtype=I64).shape == ()
    assert run("bits", np.array([1, 2], dtype=np.int8), dtype=I8).tolist() == [1, 2]


def test_narrow_against_fractions() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(size=200), anything(F64, 400, 7), nasty(F64), 2.0 ** rng.uniform(-160, 140, 400)])
    for dtype in (F16, BF16, F32):
        half = np.concatenate([x, numerics.widen(anything(dtype, 100, 3)) * (1 + 2.0**-(dtype.mantissa))])
        expected = np.concatenate([converted(v, F64, dtype) for v in half])
        assert same(numerics.narrow(half, dtype), expected).all()


def test_an_array_of_a_foreign_type_is_refused() -> None:
    with pytest.raises(TypeError):
        numerics.dtype_of(np.zeros(2, dtype=np.complex128))
