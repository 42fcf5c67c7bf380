"""The op table: every fact about an operation stands on its row.

A row says what the operation means (`evaluate`), how it is written in the language and in CUDA, which laws it obeys at
which kinds of types, how far an implementation may err, and what it costs; `oprow` says what each column is. Whoever
finds `if op == "maximum"` in another file has found a missing column. docs/ops.md is made from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse import numerics, special
from loopfuse.constants import (
    canonical_nan,
    const_text,
    constant,
    from_bits,
    greatest,
    parse_const,
    to_bits,
    to_number,
    vanishes,
)
from loopfuse.diag import CompilerError
from loopfuse.dtypes import BF16, BOOL, I64, DType
from loopfuse.numerics import Array, dtype_of
from loopfuse.oprow import Function, Homomorphism, Kinds, Laws, Numerics, OpRow, Values, named_value, spacing
from loopfuse.spelling import C_TYPES, Spelling, helpers

__all__ = [
    "C_TYPES", "FUNCTIONS", "INFIX", "MONOIDS", "NOWHERE", "OPS", "PREFIX", "Homomorphism", "Laws", "Monoid",
    "Numerics", "OpRow", "Spelling", "State", "canonical_nan", "const_text", "constant", "from_bits", "greatest",
    "helpers", "parse_const", "spacing", "to_bits", "to_number", "vanishes",
]  # fmt: skip

BOOLS: Kinds = ("bool",)
INTS: Kinds = ("uint", "int")
FLOATS: Kinds = ("float",)
NUMS: Kinds = INTS + FLOATS
BITS: Kinds = BOOLS + INTS
ALL: Kinds = BOOLS + NUMS


# -- meanings ---------------------------------------------------------------------------------------------------------


def _plain(ufunc: Callable[..., Any]) -> Function:
    """A function that is exact at every type, and for bf16 in f32."""

    def at_dtype(args: tuple[Array, ...], dtype: DType) -> Array:
        if any(a.dtype == BF16.numpy for a in args):
            args = tuple(a.astype(np.float32) if a.dtype == BF16.numpy else a for a in args)
        return np.asarray(np.asarray(ufunc(*args)).astype(dtype.numpy))

    return at_dtype


def _split(ints: Callable[..., Any], floats: Function) -> Function:
    """One meaning for integers and another for floats."""
    return lambda args, dtype: floats(args, dtype) if dtype.is_float else np.asarray(ints(*args))


_math = numerics.on_floats
_arith = numerics.float_arithmetic


def _where(args: tuple[Array, ...], dtype: DType) -> Array:
    return np.asarray(np.where(*args), dtype=dtype.numpy)


def _fma(args: tuple[Array, ...], dtype: DType) -> Array:
    return numerics.fma(args[0], args[1], args[2], dtype)


def _clip(x: Array, low: Array, high: Array) -> Array:
    return numerics.minimum(numerics.maximum(x, low), high)


# -- slopes -----------------------------------------------------------------------------------------------------------


def _ones(*values: Array) -> tuple[Any, ...]:
    return (1.0,) * (len(values) - 1)


def _pow_slopes(a: Array, b: Array, r: Array) -> tuple[Any, ...]:
    zero = np.where(b == 0, 0.0, b * np.power(a, b - 1))
    return zero, np.where(r == 0, 0.0, r * np.log(np.abs(a)))


def _atan2_slopes(y: Array, x: Array, r: Array) -> tuple[Any, ...]:
    size = np.hypot(x, y)
    return x / size / size, y / size / size


def _greatest_operand(a: Array, b: Array, r: Array) -> Array:
    return np.maximum(np.abs(r), np.maximum(np.abs(a), np.abs(b)))


# -- how rows are written ---------------------------------------------------------------------------------------------

ROUNDED = 0.5


def _int(text: str) -> tuple[Spelling, ...]:
    return Spelling("int", text), Spelling("uint", text)


def _wrapping(symbol: str) -> tuple[Spelling, ...]:
    """Signed overflow is undefined in C: integers are added and multiplied as unsigned ones of 32 bits or more."""
    text = "({W}){0} " + symbol + " ({W}){1}"
    return *_int(f"({{T}})({text})"), Spelling("i16", f"lf_wrap16({text})")


def _float(text: str, ulp: float = 0.0, ulp64: float | None = None) -> tuple[Spelling, ...]:
    """The same text at f32 and f64, but for the `f` that ends the names of CUDA's functions on float."""
    return (
        Spelling("f32", text.replace("#", "f"), ulp),
        Spelling("f64", text.replace("#", ""), ulp if ulp64 is None else ulp64),
    )


def _lib(name: str, ulp32: int, ulp64: int) -> tuple[Spelling, ...]:
    """A function of CUDA's library with the errors of its manual, which counts from the correctly rounded result."""
    return _float(name + "#({0})", ulp32 + ROUNDED, ulp64 + ROUNDED)


def _fast(text: str, ulp: float, **more: Any) -> Spelling:
    return Spelling("f32", text, ulp, approx=True, **more)


def _any(text: str, ulp: float = 0.0) -> tuple[Spelling, ...]:
    return (Spelling("any", text, ulp),)


def _function(name: str, doc: str, meaning: Callable[..., Any], cuda: tuple[Spelling, ...],
              domain: tuple[float, float], slope: Callable[[Array, Array], Any], cost: tuple[int, int] = (20, 1),
              ulp: float = 2.0, **more: Any) -> OpRow:  # fmt: skip
    """A real function of one operand; `slope` is of the operand and the result, `cost` is flops and special slots."""
    return OpRow(name, 1, doc, FLOATS, _math(meaning), surface=name, cuda=cuda, domain=(domain,),
                 slope=lambda x, r: (slope(x, r),), flops=cost[0], special=cost[1], reference_ulp=ulp,
                 **more)  # fmt: skip


def _integral(name: str, doc: str, meaning: Callable[..., Any], spelled: str) -> OpRow:
    return OpRow(name, 1, doc, FLOATS, _plain(meaning), surface=name, laws=Laws(idempotent=FLOATS),
                 cuda=_float(spelled + "#({0})"), domain=((-1e6, 1e6),), switches=True)  # fmt: skip


def _comparison(name: str, symbol: str, doc: str, meaning: Callable[..., Any], complement: tuple[str, Kinds],
                swapped: str, laws: Laws, kinds: Kinds = NUMS) -> OpRow:  # fmt: skip
    return OpRow(name, 2, doc, kinds, _plain(meaning), infix=symbol, precedence=5, gives="bool", laws=laws,
                 complement=complement, swapped=swapped, cuda=_any("({0} " + symbol + " {1})"),
                 switches=True)  # fmt: skip


def _test(name: str, doc: str, meaning: Callable[..., Any]) -> OpRow:
    return OpRow(name, 1, doc, FLOATS, _plain(meaning), surface=name, gives="bool",
                 cuda=_float("lf_" + name + "({0})"), switches=True)  # fmt: skip


def _bitwise(name: str, symbol: str, doc: str, precedence: int, meaning: Callable[..., Any], spelled: str,
             laws: Laws, kinds: Kinds = BITS, lazy: bool = False) -> OpRow:  # fmt: skip
    return OpRow(name, 2, doc, kinds, _plain(meaning), infix=symbol, precedence=precedence, laws=laws,
                 cuda=_any(spelled), lazy=lazy)  # fmt: skip


def _lattice(kinds: Kinds, identity: str, absorbing: str, *over: str) -> Laws:
    return Laws(commutative=kinds, associative=kinds, idempotent=kinds, identity=((kinds, identity),),
                absorbing=((kinds, absorbing),), distributes=tuple((name, kinds) for name in over))  # fmt: skip


def _inverts(source: str, image: str, undo_source: str, undo_image: str, pole: float) -> tuple[Homomorphism, ...]:
    return (Homomorphism(source, image, undo_source, undo_image, pole),)


# A float made of 64 bits and then rounded to 16 would be rounded twice.
_CAST_TO_16 = tuple(
    Spelling(target, f"lf_odd({conversion}{{0}})", ROUNDED, result=result)
    for result in ("f16", "bf16")
    for target, conversion in (("f64", ""), ("u64", ""), ("i64", ""), ("u32", "(long long)"), ("i32", "(long long)"))
)
_CAST_TO_I16 = tuple(
    Spelling(source, "lf_wrap16((unsigned int){0})", ROUNDED, result="i16")
    for source in ("i32", "i64", "u16", "u32", "u64")
)
_BITS_OF_FLOATS = (
    *(Spelling(name, f"lf_bits<{{T}}>(lf_{name}_bits({{0}}))") for name in ("f16", "bf16", "f32", "f64")),
    Spelling("any", "lf_f16_value({0})", result="f16"),
    Spelling("any", "lf_bf16_value({0})", result="bf16"),
    Spelling("bf16", "lf_f16_value(lf_bf16_bits({0}))", result="f16"),
    Spelling("f16", "lf_bf16_value(lf_f16_bits({0}))", result="bf16"),
    *(Spelling(name, "{0}", result=name) for name in ("f16", "bf16")),
)

_LN2, _LN10, _TWO_BY_ROOT_PI = float(np.log(2.0)), float(np.log(10.0)), float(2.0 / np.sqrt(np.pi))
_SUM_TO_PRODUCT = _inverts("add", "mul", "sub", "div", -np.inf)
_PRODUCT_TO_SUM = _inverts("mul", "add", "div", "sub", 0.0)


# -- the rows: arithmetic ---------------------------------------------------------------------------------------------

_ARITHMETIC = (
    OpRow(
        "add", 2, "Sum; integers wrap.", NUMS, _split(np.add, _arith(np.add)), infix="+", precedence=10,
        laws=Laws(commutative=NUMS, associative=INTS, identity=((INTS, "0"), (FLOATS, "-0.0"))),
        cuda=(*_wrapping("+"), *_float("({0} + {1})", ROUNDED)), reference_ulp=ROUNDED, slope=_ones,
        arithmetic="sum",
    ),
    OpRow(
        "sub", 2, "Difference; integers wrap.", NUMS, _split(np.subtract, _arith(np.subtract)), infix="-",
        precedence=10, laws=Laws(identity=((INTS, "0"), (FLOATS, "0.0")), cancels=((INTS, "0"),)),
        cuda=(*_wrapping("-"), *_float("({0} - {1})", ROUNDED)), reference_ulp=ROUNDED, slope=_ones,
        arithmetic="difference",
    ),
    OpRow(
        "mul", 2, "Product; integers wrap.", NUMS, _split(np.multiply, _arith(np.multiply)), infix="*", precedence=11,
        laws=Laws(commutative=NUMS, associative=INTS, identity=((INTS, "1"), (FLOATS, "1.0")),
                  absorbing=((INTS, "0"),), distributes=(("add", INTS), ("sub", INTS))),
        cuda=(*_wrapping("*"), *_float("({0} * {1})", ROUNDED)), reference_ulp=ROUNDED, slope=lambda a, b, r: (b, a),
        arithmetic="product",
    ),
    OpRow(
        "div", 2, "Quotient of floats, IEEE 754.", FLOATS, _arith(np.divide), infix="/", precedence=11,
        laws=Laws(identity=((FLOATS, "1.0"),)),
        cuda=(*_float("({0} / {1})", ROUNDED), _fast("lf_div_approx({0}, {1})", 2.5)), reference_ulp=ROUNDED,
        flops=8, special=1, slope=lambda a, b, r: (1.0 / b, r / b), arithmetic="quotient",
    ),
    OpRow(
        "floordiv", 2, "Quotient rounded toward minus infinity; integers: `x // 0` is 0, `INT_MIN // -1` wraps.", NUMS,
        _split(numerics.int_floordiv, _math(numerics.float_floordiv)), infix="//", precedence=11,
        laws=Laws(identity=((INTS, "1"),), absorbing=((INTS, "0"),)),
        cuda=(*_int("lf_floordiv<{T}, {W}>({0}, {1})"), *_float("lf_ffloordiv({0}, {1})", ROUNDED, 2.0)),
        reference_ulp=0.51, flops=12, switches=True,
    ),
    OpRow(
        "mod", 2, "Remainder of `//`, with the sign of the divisor; integers: `x % 0` is 0.", NUMS,
        _split(numerics.int_mod, _math(np.remainder)), infix="%", precedence=11,
        laws=Laws(absorbing=((INTS, "0"),), cancels=((INTS, "0"),)),
        cuda=(*_int("lf_mod<{T}, {W}>({0}, {1})"), *_float("lf_fmod({0}, {1})", ROUNDED)), reference_ulp=ROUNDED,
        flops=12, slope=lambda a, b, r: (1.0, np.floor(a / b)), switches=True, piece=lambda a, b: np.floor(a / b),
    ),
    OpRow(
        "pow", 2, "Power; integers wrap, and a negative power of them is rounded toward zero (`0 ** -1` is 0).", NUMS,
        _split(numerics.int_pow, _math(special.power)), infix="**", precedence=13,
        laws=Laws(identity=((INTS, "1"), (FLOATS, "1.0"))),
        cuda=(*_int("lf_pow<{T}, {W}>({0}, {1})"), *_float("pow#({0}, {1})", 4.5, 2.5)), reference_ulp=2.0,
        flops=30, special=2, domain=((0.01, 50.0), (-8.0, 8.0)), slope=_pow_slopes, arithmetic="power", steady=1,
    ),
    OpRow(
        "neg", 1, "Negation; integers wrap.", NUMS, _plain(np.negative), prefix="-", precedence=12,
        laws=Laws(involution=NUMS), inverse="neg", cuda=(*_int("lf_neg<{T}, {W}>({0})"), *_float("(-{0})")),
        homomorphisms=(Homomorphism("add", "add", "sub", "sub", kinds=NUMS), Homomorphism("maximum", "minimum"),
                       Homomorphism("minimum", "maximum")),
        slope=_ones,
    ),
    OpRow(
        "fma", 3, "`a * b + c`, rounded once.", FLOATS, _fma, surface="fma", reference_ulp=ROUNDED, flops=2,
        cuda=_float("fma#({0}, {1}, {2})", ROUNDED), slope=lambda a, b, c, r: (b, a, 1.0),
    ),
    OpRow(
        "abs", 1, "Magnitude; that of INT_MIN wraps.", NUMS, _plain(np.abs), surface="abs", slope=_ones,
        laws=Laws(idempotent=NUMS, involution=("uint",)), homomorphisms=(Homomorphism("mul", "mul"),),
        cuda=(Spelling("uint", "{0}"), Spelling("int", "lf_abs<{T}, {W}>({0})"), *_float("fabs#({0})")),
    ),
    OpRow(
        "sign", 1, "-1, 0 or 1; NaN for NaN, and +0.0 for -0.0.", NUMS, _plain(np.sign), surface="sign",
        laws=Laws(idempotent=NUMS), cuda=(*_int("lf_sign<{T}>({0})"), *_float("lf_fsign({0})")), switches=True,
    ),
    OpRow(
        "copysign", 2, "The magnitude of the first with the sign of the second.", FLOATS, _plain(np.copysign),
        surface="copysign", laws=Laws(associative=FLOATS, idempotent=FLOATS), cuda=_float("copysign#({0}, {1})"),
        slope=lambda a, b, r: (1.0, 0.0), switches=True, reads_sign=1,
    ),
    OpRow(
        "minimum", 2, "The lesser; NaN if either is; -0.0 is less than +0.0.", NUMS, _plain(numerics.minimum),
        surface="minimum", slope=_ones,
        laws=Laws(commutative=NUMS, associative=NUMS, idempotent=NUMS, absorbing=((INTS, "least"),),
                  identity=((INTS, "greatest"), (FLOATS, "inf")), distributes=(("maximum", NUMS),)),
        cuda=(*_int("lf_min<{T}>({0}, {1})"), *_float("lf_fmin({0}, {1})")),
    ),
    OpRow(
        "maximum", 2, "The greater; NaN if either is; +0.0 is greater than -0.0.", NUMS, _plain(numerics.maximum),
        surface="maximum", slope=_ones,
        laws=Laws(commutative=NUMS, associative=NUMS, idempotent=NUMS, absorbing=((INTS, "greatest"),),
                  identity=((INTS, "least"), (FLOATS, "-inf")), distributes=(("minimum", NUMS),)),
        cuda=(*_int("lf_max<{T}>({0}, {1})"), *_float("lf_fmax({0}, {1})")),
    ),
    OpRow(
        "clip", 3, "`minimum(maximum(x, low), high)`.", NUMS, _plain(_clip), surface="clip", flops=2, slope=_ones,
        cuda=(*_int("lf_min<{T}>(lf_max<{T}>({0}, {1}), {2})"), *_float("lf_fmin(lf_fmax({0}, {1}), {2})")),
    ),
    _integral("floor", "The greatest integer not above.", np.floor, "floor"),
    _integral("ceil", "The least integer not below.", np.ceil, "ceil"),
    _integral("round", "The nearest integer, of two the even one.", np.rint, "rint"),
    _integral("trunc", "The integer next toward zero.", np.trunc, "trunc"),
)  # fmt: skip

# -- the rows: functions of real numbers ------------------------------------------------------------------------------

_FUNCTIONS = (
    _function(
        "sqrt", "Square root, correctly rounded.", np.sqrt,
        (*_float("sqrt#({0})", ROUNDED), _fast("lf_sqrt_approx({0})", 2.0)), (0.0, 1e6), lambda x, r: 0.5 / r,
        (8, 1), ROUNDED, homomorphisms=(Homomorphism("mul", "mul"),),
    ),
    _function(
        "rsqrt", "`1 / sqrt(x)`.", lambda x: 1.0 / np.sqrt(x), _lib("rsqrt", 2, 1), (1e-6, 1e6),
        lambda x, r: 0.5 * r / x, (2, 1), 1.5,
    ),
    _function(
        "cbrt", "Cube root, of negative numbers too.", special.cbrt, _lib("cbrt", 1, 1), (-1e6, 1e6),
        lambda x, r: 1.0 / (3.0 * r * r), (20, 2), 1.0,
    ),
    _function(
        "exp", "e to the power x.", np.exp,
        (*_lib("exp", 2, 1), _fast("__expf({0})", 2.5, growth=1.173, flushes=True)), (-80.0, 80.0), lambda x, r: r,
        (8, 1), homomorphisms=_SUM_TO_PRODUCT, inverse="log",
    ),
    _function(
        "exp2", "2 to the power x.", np.exp2, (*_lib("exp2", 2, 1), _fast("lf_exp2_approx({0})", 3.0, flushes=True)),
        (-120.0, 120.0), lambda x, r: r * _LN2, (4, 1), homomorphisms=_SUM_TO_PRODUCT, inverse="log2",
    ),
    _function(
        "expm1", "`exp(x) - 1`, accurate near 0.", np.expm1, _lib("expm1", 1, 1), (-10.0, 80.0),
        lambda x, r: r + 1.0, (14, 1), inverse="log1p",
    ),
    _function(
        "log", "Natural logarithm.", np.log,
        (*_lib("log", 1, 1), _fast("__logf({0})", 3.5, absolute=2.0**-21.41)), (1e-6, 1e6), lambda x, r: 1.0 / x,
        (14, 0), homomorphisms=_PRODUCT_TO_SUM, inverse="exp",
    ),
    _function(
        "log2", "Logarithm to base 2.", np.log2,
        (*_lib("log2", 1, 1), _fast("__log2f({0})", 2.5, absolute=2.0**-22)), (1e-6, 1e6),
        lambda x, r: 1.0 / (_LN2 * x), (14, 0), homomorphisms=_PRODUCT_TO_SUM, inverse="exp2",
    ),
    _function(
        "log10", "Logarithm to base 10.", np.log10,
        (*_lib("log10", 2, 1), _fast("__log10f({0})", 2.5, absolute=2.0**-24)), (1e-6, 1e6),
        lambda x, r: 1.0 / (_LN10 * x), (16, 0), homomorphisms=_PRODUCT_TO_SUM,
    ),
    _function(
        "log1p", "`log(1 + x)`, accurate near 0.", np.log1p, _lib("log1p", 1, 1), (-0.99, 1e6),
        lambda x, r: 1.0 / (1.0 + x), (16, 0), inverse="expm1",
    ),
    _function(
        "sin", "Sine of radians.", np.sin,
        (*_lib("sin", 2, 2), _fast("__sinf({0})", ROUNDED, absolute=2.0**-21.41, domain=(-np.pi, np.pi))),
        (-100.0, 100.0), lambda x, r: np.cos(x),
    ),
    _function(
        "cos", "Cosine of radians.", np.cos,
        (*_lib("cos", 2, 2), _fast("__cosf({0})", ROUNDED, absolute=2.0**-21.19, domain=(-np.pi, np.pi))),
        (-100.0, 100.0), lambda x, r: np.sin(x),
    ),
    _function(
        "tan", "Tangent of radians.", np.tan, _lib("tan", 4, 2), (-100.0, 100.0), lambda x, r: 1.0 + r * r, (30, 1),
    ),
    _function(
        "asin", "Arc sine.", np.arcsin, _lib("asin", 2, 2), (-1.0, 1.0),
        lambda x, r: 1.0 / np.sqrt((1.0 - x) * (1.0 + x)),
    ),
    _function(
        "acos", "Arc cosine.", np.arccos, _lib("acos", 2, 2), (-1.0, 1.0),
        lambda x, r: 1.0 / np.sqrt((1.0 - x) * (1.0 + x)),
    ),
    _function(
        "atan", "Arc tangent.", np.arctan, _lib("atan", 2, 2), (-100.0, 100.0), lambda x, r: 1.0 / (1.0 + x * x),
    ),
    OpRow(
        "atan2", 2, "The angle of the point (x, y), given y and x.", FLOATS, _math(np.arctan2), surface="atan2",
        cuda=_float("atan2#({0}, {1})", 3.5, 2.5), reference_ulp=2.0, flops=30, special=1, slope=_atan2_slopes,
        switches=True,
    ),
    _function("sinh", "Hyperbolic sine.", np.sinh, _lib("sinh", 3, 2), (-80.0, 80.0), lambda x, r: np.cosh(x),
              ulp=2.5),
    _function(
        "cosh", "Hyperbolic cosine.", np.cosh, _lib("cosh", 2, 1), (-80.0, 80.0), lambda x, r: np.sinh(x), (16, 1),
    ),
    _function(
        "tanh", "Hyperbolic tangent.", np.tanh, (*_lib("tanh", 2, 2), _fast("lf_tanh_approx({0})", 8192.0)),
        (-10.0, 10.0), lambda x, r: (1.0 - r) * (1.0 + r), (14, 2),
    ),
    _function(
        "erf", "The error function.", special.erf, _lib("erf", 2, 2), (-5.0, 5.0),
        lambda x, r: _TWO_BY_ROOT_PI * np.exp(-x * x), (20, 1), 1.5,
    ),
    _function(
        "erfc", "`1 - erf(x)`, accurate where it is small.", special.erfc, _lib("erfc", 4, 5), (-5.0, 9.0),
        lambda x, r: _TWO_BY_ROOT_PI * np.exp(-x * x), (25, 2), 4.0,
    ),
    _function(
        "sigmoid", "`1 / (1 + exp(-x))`.", special.sigmoid,
        (*_float("lf_sigmoid({0})", 4.0), _fast("lf_sigmoid_approx({0})", 5.0, growth=1.2, flushes=True)),
        (-80.0, 80.0), lambda x, r: r * (1.0 - r), (12, 2), 2.5,
    ),
    OpRow(
        "logaddexp", 2, "`log(exp(a) + exp(b))` without overflow.", FLOATS, _math(np.logaddexp), surface="logaddexp",
        laws=Laws(commutative=FLOATS), cuda=_float("lf_logaddexp({0}, {1})", 6.0), reference_ulp=3.0, flops=30,
        special=2, slope=lambda a, b, r: (np.exp(a - r), np.exp(b - r)), scale=_greatest_operand,
    ),
)  # fmt: skip

# -- the rows: comparisons, logic, bits, conversions ------------------------------------------------------------------

_LOGIC = (
    _comparison(
        "eq", "==", "Equal; false with NaN.", np.equal, ("ne", ALL), "eq",
        Laws(commutative=ALL, associative=BOOLS, identity=((BOOLS, "true"),), cancels=((BITS, "true"),)), ALL,
    ),
    _comparison(
        "ne", "!=", "Not equal; true with NaN.", np.not_equal, ("eq", ALL), "ne",
        Laws(commutative=ALL, associative=BOOLS, identity=((BOOLS, "false"),), cancels=((BITS, "false"),)), ALL,
    ),
    _comparison("lt", "<", "Less.", np.less, ("ge", INTS), "gt", Laws(cancels=((NUMS, "false"),))),
    _comparison("le", "<=", "Less or equal.", np.less_equal, ("gt", INTS), "ge", Laws(cancels=((INTS, "true"),))),
    _comparison("gt", ">", "Greater.", np.greater, ("le", INTS), "lt", Laws(cancels=((NUMS, "false"),))),
    _comparison("ge", ">=", "Greater or equal.", np.greater_equal, ("lt", INTS), "le",
                Laws(cancels=((INTS, "true"),))),
    _test("isnan", "Whether not a number.", np.isnan),
    _test("isinf", "Whether infinite.", np.isinf),
    _test("isfinite", "Whether neither infinite nor NaN.", np.isfinite),
    _bitwise(
        "and", "and", "Both; the right operand reads nothing where the left is false.", 3, np.logical_and,
        "({0} && {1})", _lattice(BOOLS, "true", "false", "or"), BOOLS, lazy=True,
    ),
    _bitwise(
        "or", "or", "Either; the right operand reads nothing where the left is true.", 2, np.logical_or,
        "({0} || {1})", _lattice(BOOLS, "false", "true", "and"), BOOLS, lazy=True,
    ),
    OpRow(
        "not", 1, "The opposite.", BOOLS, _plain(np.logical_not), prefix="not", precedence=4,
        laws=Laws(involution=BOOLS), inverse="not", cuda=_any("(!{0})"),
        homomorphisms=(Homomorphism("and", "or", kinds=BOOLS), Homomorphism("or", "and", kinds=BOOLS)),
    ),
    _bitwise(
        "bitand", "&", "Bits set in both.", 8, np.bitwise_and, "({T})({0} & {1})",
        _lattice(BITS, "ones", "0", "bitor", "bitxor"),
    ),
    _bitwise(
        "bitor", "|", "Bits set in either.", 6, np.bitwise_or, "({T})({0} | {1})",
        _lattice(BITS, "0", "ones", "bitand"),
    ),
    _bitwise(
        "bitxor", "^", "Bits set in one only.", 7, np.bitwise_xor, "({T})({0} ^ {1})",
        Laws(commutative=BITS, associative=BITS, identity=((BITS, "0"),), cancels=((BITS, "0"),)),
    ),
    OpRow(
        "invert", 1, "All bits flipped; of bool the opposite.", BITS, _plain(np.invert), prefix="~", precedence=12,
        laws=Laws(involution=BITS), inverse="invert", cuda=(Spelling("bool", "(!{0})"), *_int("({T})(~{0})")),
        homomorphisms=(Homomorphism("bitand", "bitor", kinds=BITS), Homomorphism("bitor", "bitand", kinds=BITS)),
    ),
    OpRow(
        "shl", 2, "Shift left; 0 for a count that is negative or at least the width.", INTS,
        _plain(numerics.shift_left), infix="<<", precedence=9, operands="shift", laws=Laws(identity=((INTS, "0"),)),
        cuda=_int("lf_shl<{T}, {W}>({0}, {1})"),
    ),
    OpRow(
        "shr", 2, "Shift right with the sign; 0 or -1 for a count that is negative or at least the width.", INTS,
        _plain(numerics.shift_right), infix=">>", precedence=9, operands="shift", laws=Laws(identity=((INTS, "0"),)),
        cuda=_int("lf_shr<{T}, {W}>({0}, {1})"),
    ),
    OpRow(
        "popcount", 1, "The number of bits set, in the operand's type.", INTS, _plain(numerics.popcount),
        surface="popcount", cuda=_int("lf_popcount<{T}, {W}>({0})"),
    ),
    OpRow(
        "where", 3, "The second where the condition holds, else the third; both are evaluated.", ALL, _where,
        surface="where", operands="cond", cuda=_any("({0} ? {1} : {2})"),
        slope=lambda c, a, b, r: (0.0, np.where(c, 1.0, 0.0), np.where(c, 0.0, 1.0)),
    ),
    OpRow(
        "cast", 1, "Conversion: integers wrap, floats round; float to integer truncates and saturates, NaN is 0.",
        ALL, lambda args, dtype: numerics.cast(args[0], dtype), gives="explicit", reference_ulp=ROUNDED,
        cuda=(*_any("(({T}){0})", ROUNDED), *_float("lf_cast<{T}>({0})", ROUNDED), *_CAST_TO_16, *_CAST_TO_I16), slope=_ones,
        switches=True,
    ),
    OpRow(
        "bits", 1, "The bits read as another type of the same width; those of every NaN are the canonical one's.", NUMS,
        lambda args, dtype: numerics.bits(args[0], dtype), surface="bits", gives="explicit", switches=True,
        cuda=(*_any("lf_bits<{T}>({0})"), *_BITS_OF_FLOATS),
    ),
)  # fmt: skip

OPS: dict[str, OpRow] = {row.name: row for row in (*_ARITHMETIC, *_FUNCTIONS, *_LOGIC)}
FUNCTIONS: dict[str, OpRow] = {row.surface: row for row in OPS.values() if row.surface}
INFIX: dict[str, OpRow] = {row.infix: row for row in OPS.values() if row.infix}
PREFIX: dict[str, OpRow] = {row.prefix: row for row in OPS.values() if row.prefix}


# -- the table of monoids ---------------------------------------------------------------------------------------------

State = tuple[Array, ...]
NOWHERE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Monoid:
    """A way to reduce: `op` is the operation that combines (for argmax and argmin, the one that says `better`).

    A state is `(value,)`, or `(value, position)` where `positional`. `update` is the symbol in a scatter, or None.
    """

    name: str
    doc: str
    op: str
    kinds: Kinds
    start: Values
    update: str | None = None
    positional: bool = False
    widens: bool = False

    def identity(self, dtype: DType) -> Any:
        """The NumPy scalar that an accumulator of type `dtype` starts at; a position starts at `NOWHERE`."""
        for kinds, value in self.start:
            if dtype.kind in kinds:
                return named_value(value, dtype)
        raise CompilerError("ops", f"`{self.name}` is not defined for {dtype}")

    def accumulator(self, dtype: DType) -> DType:
        """The type in which values of type `dtype` accumulate."""
        return dtype.accumulator if self.widens else dtype

    def result(self, dtype: DType) -> DType:
        """The type of the accumulator's final value, for an accumulator of type `dtype`."""
        return I64 if self.positional else dtype

    def rounds(self, dtype: DType) -> bool:
        """Whether the order of combination may change the bits, for an accumulator of type `dtype`."""
        return dtype.is_float and not OPS[self.op].law("associative", dtype) and not self.positional

    def combine(self, left: State, right: State, dtype: DType) -> State:
        """The states joined; `left` holds the earlier elements. `dtype` is the accumulator's type."""
        if not self.positional:
            return (OPS[self.op].evaluate((left[0], right[0]), dtype),)
        (a, at_a), (b, at_b) = left, right
        nan_a, nan_b = (_is_nan(v) for v in (a, b))
        better = np.where(nan_b, ~nan_a, ~nan_a & OPS[self.op].evaluate((b, a), BOOL))
        equal = np.where(nan_b, nan_a, OPS["eq"].evaluate((a, b), BOOL))
        take = better | (equal & (at_b < at_a))
        return (
            np.asarray(np.where(take, b, a), dtype=dtype.numpy),
            np.asarray(np.where(take, at_b, at_a), dtype=np.int64),
        )


def _is_nan(x: Array) -> Array:
    return OPS["isnan"].evaluate((x,), BOOL) if dtype_of(np.asarray(x)).is_float else np.zeros(np.shape(x), dtype=bool)


_LEAST: Values = ((INTS, "least"), (FLOATS, "-inf"))
_GREATEST: Values = ((INTS, "greatest"), (FLOATS, "inf"))
_ZERO: Values = ((BITS, "0"), (FLOATS, "0.0"))

MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", "Sum; floats start at +0.0.", "add", ALL, _ZERO, "+=", widens=True),
        Monoid("prod", "Product.", "mul", NUMS, ((INTS, "1"), (FLOATS, "1.0")), "*=", widens=True),
        Monoid("max", "The greatest; NaN if any is.", "maximum", NUMS, _LEAST, "max="),
        Monoid("min", "The least; NaN if any is.", "minimum", NUMS, _GREATEST, "min="),
        Monoid("any", "Whether one holds.", "or", BOOLS, ((BOOLS, "false"),)),
        Monoid("all", "Whether every one holds.", "and", BOOLS, ((BOOLS, "true"),)),
        Monoid("argmax", "The first position of the greatest, a NaN being greatest.", "gt", NUMS, _LEAST,
               positional=True),
        Monoid("argmin", "The first position of the least, a NaN being least.", "lt", NUMS, _GREATEST,
               positional=True),
        Monoid("bitor", "Bits set in one.", "bitor", BITS, ((BITS, "0"),), "|="),
        Monoid("bitand", "Bits set in all.", "bitand", BITS, ((BITS, "ones"),), "&="),
        Monoid("bitxor", "Bits set in an odd number.", "bitxor", BITS, ((BITS, "0"),), "^="),
    )
}  # fmt: skip
