"""Functions of real numbers against extended precision, decimal series and SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.special
from op_samples import FLOAT_DTYPES, anything, every16, nasty, run, same, ulps

from loopfuse import numerics, ops, special
from loopfuse.dtypes import BF16, F16, F64, DType
from loopfuse.numerics import Array

EXTENDED = np.finfo(np.longdouble).nmant >= 63
LONG = np.longdouble


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def long_sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, LONG(1), small) / (LONG(1) + small))


LIBRARY: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: LONG(1) / np.sqrt(x), "cbrt": np.cbrt, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "sigmoid": long_sigmoid, "atan2": np.arctan2, "logaddexp": np.logaddexp, "pow": np.power,
}  # fmt: skip


@pytest.mark.skipif(not EXTENDED, reason="no extended precision here")
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("name", LIBRARY)
def test_functions_against_extended_precision(name: str, dtype: DType) -> None:
    """The whole range of each type in 64-bit significands: 16-bit types and f32 nearly correct, f64 as promised."""
    row = ops.OPS[name]
    rng = np.random.default_rng(1)
    args = []
    for n in range(row.arity):
        calm = rng.uniform(*row.domain[n], 4000).astype(dtype.numpy)
        args.append(np.concatenate([nasty(dtype), anything(dtype, 2000, n), calm]))
    if name == "pow":  # the C library's extended pow is wrong at an infinite base
        args = [a[np.isfinite(args[0].astype(np.float64))] for a in args]
    found = row.evaluate(args, dtype)
    wide = [numerics.widen(a).astype(LONG) for a in args]
    exact = LIBRARY[name](*wide)
    error = ulps(found, exact, dtype)
    if row.scale:
        unit = ops.spacing(np.abs(row.scale(*wide, exact)).astype(np.float64), dtype)
        error = error * np.fmin(ops.spacing(np.abs(exact).astype(np.float64), dtype) / unit, 1.0)
    bound = row.reference_ulp if dtype == F64 else min(0.501, row.ulp(dtype))
    assert error.max() <= bound, [(a[error.argmax()], found[error.argmax()]) for a in args]
    assert bound <= row.ulp(dtype)


def test_special_points() -> None:
    inf, nan = math.inf, math.nan
    points = {
        "exp": [(-inf, 0.0), (inf, inf), (0.0, 1.0)], "log": [(0.0, -inf), (-0.0, -inf), (-1.0, nan), (inf, inf)],
        "log1p": [(-1.0, -inf), (-0.0, -0.0)], "expm1": [(-0.0, -0.0), (-inf, -1.0)], "cbrt": [(-0.0, -0.0), (-8.0, -2.0)],
        "rsqrt": [(0.0, inf), (-0.0, -inf), (inf, 0.0), (-1.0, nan)], "sin": [(-0.0, -0.0), (inf, nan)],
        "tanh": [(inf, 1.0), (-0.0, -0.0)], "erf": [(inf, 1.0), (-inf, -1.0), (-0.0, -0.0), (nan, nan)],
        "erfc": [(inf, 0.0), (-inf, 2.0), (0.0, 1.0), (nan, nan)], "sigmoid": [(inf, 1.0), (-inf, 0.0), (0.0, 0.5), (nan, nan)],
        "atan": [(inf, math.pi / 2)], "asin": [(1.0, math.pi / 2), (2.0, nan)], "cosh": [(-inf, inf)],
    }  # fmt: skip
    for name, cases in points.items():
        for x, y in cases:
            assert same(run(name, np.asarray(x)), np.asarray(y)).all(), (name, x)
    pairs = {
        "pow": [(-8.0, 1 / 3, nan), (0.0, -1.0, inf), (-0.0, -1.0, -inf), (1.0, nan, 1.0), (nan, 0.0, 1.0),
                (-inf, 0.5, inf), (-0.0, 0.5, 0.0), (-2.0, 3.0, -8.0), (2.0, -1074.0, 5e-324)],
        "atan2": [(0.0, -1.0, math.pi), (-0.0, -1.0, -math.pi), (1.0, 0.0, math.pi / 2), (inf, inf, math.pi / 4)],
        "logaddexp": [(-inf, -inf, -inf), (inf, inf, inf), (inf, -inf, inf), (nan, 0.0, nan), (-inf, 3.0, 3.0)],
    }  # fmt: skip
    for name, triples in pairs.items():
        for a, b, y in triples:
            assert same(run(name, np.asarray(a), np.asarray(b)), np.asarray(y)).all(), (name, a, b)
    # A power is a power: the half power of -0.0 and -inf differs from the square root.
    assert np.isnan(run("sqrt", np.asarray(-inf)))


def test_a_single_exponent_is_like_any_other() -> None:
    x = np.concatenate([nasty(F64), np.random.default_rng(7).uniform(0, 50, 3000)])
    for exponent in (0.5, 2.0, -1.0, 1.0, 0.0, 3.0, -0.5):
        each = run("pow", x, np.full_like(x, exponent))
        assert same(run("pow", x, np.asarray(exponent)), each).all()
        assert same(run("pow", x, np.array([exponent])), each).all()
        assert same(run("pow", x[:1], np.array([exponent])), each[:1]).all()
    assert run("pow", np.zeros(0), np.zeros(0)).shape == (0,)


def decimal_erf(x: float, complement: bool) -> Fraction:
    """erf or its complement by the power series, with digits enough for what cancels."""
    with localcontext() as context:
        context.prec = 60 + int(x * x)
        z = Decimal(x)
        term = total = z
        n = 0
        while abs(term) > Decimal(10) ** -(context.prec + 5) * abs(total):
            n += 1
            term = -term * z * z / n
            total += term / (2 * n + 1)
        value = 2 * total / decimal_pi().sqrt()
        return Fraction(1 - value) if complement else Fraction(value)


def decimal_pi() -> Decimal:
    """By Machin's formula, at the context's precision."""

    def arctan_of_one_by(n: int) -> Decimal:
        power = total = Decimal(1) / n
        k = 1
        while power:
            power = -power / (n * n)
            k += 2
            step = power / k
            if total + step == total:
                return total
            total += step
        return total

    return 4 * (4 * arctan_of_one_by(5) - arctan_of_one_by(239))


def error_in_ulps(found: float, exact: Fraction) -> float:
    return float(abs(Fraction(found) - exact) / Fraction(math.ulp(float(exact))))


def test_erf_against_its_series() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(0, 1.2, 150), rng.uniform(0, 6, 60), [1.0, np.nextafter(1.0, 0), 0.95, 0.97, 1e-3]])
    worst = max(error_in_ulps(float(v), decimal_erf(float(a), False)) for a, v in zip(x, special.erf(x), strict=True))
    assert worst <= ops.OPS["erf"].reference_ulp
    tiny = np.array([5e-324, 1e-310, 2.3e-308, 1e-160])
    expected = [float(Fraction(v) * Fraction(2 / math.sqrt(math.pi))) for v in tiny.tolist()]
    assert (np.abs(special.erf(tiny) - expected) <= np.spacing(tiny)).all()
    assert (special.erf(-x) == -special.erf(x)).all()


def test_erfc_against_its_series() -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(0, 1, 80), rng.uniform(0.4, 6, 80), rng.uniform(6, 27.2, 14), [0.5, 26.5, 27.0]])
    worst = max(error_in_ulps(float(v), decimal_erf(float(a), True)) for a, v in zip(x, special.erfc(x), strict=True))
    assert worst <= ops.OPS["erfc"].reference_ulp
    below = -x[x < 6]
    worst = max(
        error_in_ulps(float(v), 1 + decimal_erf(float(-a), False))
        for a, v in zip(below, special.erfc(below), strict=True)
    )
    assert worst <= 1.0


def test_erf_against_scipy() -> None:
    x = np.random.default_rng(6).normal(size=20000) * 3
    assert ulps(run("erf", x), scipy.special.erf(x), F64).max() <= 4.0
    assert ulps(run("erfc", x), scipy.special.erfc(x), F64).max() <= 500.0  # theirs errs by 300 where it is small
    for dtype in (F16, BF16):
        y = every16(dtype)
        y = y[np.isfinite(numerics.widen(y))]
        for name, other in (("erf", scipy.special.erf), ("erfc", scipy.special.erfc)):
            assert ulps(run(name, y), other(numerics.widen(y)), dtype).max() <= 0.501


def test_erf_of_scalars_and_grids() -> None:
    for function in (special.erf, special.erfc, special.sigmoid, special.cbrt):
        grid = np.linspace(-3, 3, 12).reshape(3, 4)[:, ::2]
        each = np.array([[function(np.asarray(v)) for v in row] for row in grid])
        assert (function(grid) == each).all() and function(np.asarray(0.3)).shape == ()
