"""The op table: every fact about an operation stands on its row.

A row says what the operation means (`evaluate`), how it is written in the language and in CUDA, which laws it obeys at
which kinds of types, how far an implementation may err, and what it costs. Whoever finds `if op == "maximum"` in
another file has found a missing column.

Laws are exact, bit for bit but for the payload of a NaN: float addition is commutative and not associative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I64, DType
from loopfuse.numerics import Array, dtype_of
from loopfuse.spelling import Spelling, helpers, matches

__all__ = [
    "FUNCTIONS", "INFIX", "MONOIDS", "OPS", "PREFIX", "Homomorphism", "Laws", "Monoid", "OpRow", "Spelling",
    "canonical_nan", "const_text", "constant", "from_bits", "greatest", "helpers", "parse_const", "to_bits",
    "to_number", "vanishes",
]  # fmt: skip

Kinds = tuple[str, ...]
Values = tuple[tuple[Kinds, str], ...]
Slopes = Callable[..., tuple[Array, ...]]
Numerics = Literal["strict", "default", "fast"]

BOOLS: Kinds = ("bool",)
INTS: Kinds = ("uint", "int")
FLOATS: Kinds = ("float",)
NUMS: Kinds = INTS + FLOATS
BITS: Kinds = BOOLS + INTS
ALL: Kinds = BOOLS + NUMS


@dataclass(frozen=True, slots=True)
class Laws:
    """What an operation obeys, by the kind of its operands. Values are named: `0`, `-0.0`, `least`, `ones`, ...

    `idempotent` is f(f(x)) = f(x) of one operand and op(x, x) = x of two; `identity` is op(x, e) = x, on both sides
    if commutative; `absorbing` is op(x, z) = z, likewise; `cancels` is op(x, x) = value; `distributes` names the
    operations that this one distributes over.
    """

    commutative: Kinds = ()
    associative: Kinds = ()
    idempotent: Kinds = ()
    involution: Kinds = ()
    identity: Values = ()
    absorbing: Values = ()
    cancels: Values = ()
    distributes: tuple[tuple[str, Kinds], ...] = ()


@dataclass(frozen=True, slots=True)
class Homomorphism:
    """`f(a source b) = f(a) image f(b)`: exact at integers and bools, but for rounding at floats.

    With `undo_source` and `undo_image` the inverses: `f(a - b) = f(a) / f(b)`. At `pole` the image has no inverse.
    """

    source: str
    image: str
    undo_source: str | None = None
    undo_image: str | None = None
    pole: float | None = None
    kinds: Kinds = FLOATS


@dataclass(frozen=True, slots=True)
class OpRow:
    """An operation.

    `kinds` are those that the operands' common type may have; `operands`: `common` (all of one type), `cond` (a bool,
    the rest of one type), `shift` (as common: the count has the value's type). `gives`: the operands' type, bool, or
    `explicit` (the type is stated: casts). `surface` is the function's name in the language, `infix` or `prefix` its
    symbol, `precedence` as in the language (1 loosest). `complement` is the operation that gives `not` of this one,
    `swapped` the one with the operands exchanged, `inverse` the function that undoes this one on its domain.
    `switches`: the result jumps where the operands vary smoothly. `domain`: an interval an operand for random tests.
    """

    name: str
    arity: int
    doc: str
    kinds: Kinds
    function: Callable[[tuple[Array, ...], DType], Array]
    surface: str | None = None
    infix: str | None = None
    prefix: str | None = None
    precedence: int | None = None
    operands: Literal["common", "cond", "shift"] = "common"
    gives: Literal["same", "bool", "explicit"] = "same"
    laws: Laws = Laws()
    homomorphisms: tuple[Homomorphism, ...] = ()
    inverse: str | None = None
    complement: tuple[str, Kinds] | None = None
    swapped: str | None = None
    reference_ulp: float = 0.0
    cuda: tuple[Spelling, ...] = ()
    flops: int = 1
    special: int = 0
    domain: tuple[tuple[float, float], ...] = ((-4.0, 4.0), (-4.0, 4.0), (-4.0, 4.0))
    slope: Slopes | None = None
    scale: Callable[..., Array] | None = None
    switches: bool = False

    # -- types --------------------------------------------------------------------------------------------------------

    def operand(self, dtypes: Sequence[DType]) -> DType:
        """The common type of the operands, a condition aside."""
        return dtypes[-1]

    def result(self, dtypes: tuple[DType, ...]) -> DType:
        """The result's type.

        Raises:
            CompilerError: the row's type is explicit, or the operands are ill-typed.
        """
        if self.gives == "explicit":
            raise CompilerError("ops", f"the type of `{self.name}` is stated, not derived")
        result = BOOL if self.gives == "bool" else dtypes[-1]
        problem = self.problem(dtypes, result)
        if problem:
            raise CompilerError("ops", problem)
        return result

    def problem(self, dtypes: Sequence[DType], result: DType) -> str | None:
        """Why `self` may not be applied to operands of these types to give `result`, or None where it may."""
        if len(dtypes) != self.arity:
            return f"`{self.name}` takes {self.arity} operands, not {len(dtypes)}"
        common = dtypes[-1]
        if self.operands == "cond" and dtypes[0] != BOOL:
            return f"the condition of `{self.name}` is {dtypes[0]}, not bool"
        if any(d != common for d in dtypes[self.operands == "cond" :]):
            return f"the operands of `{self.name}` differ in type: {', '.join(map(str, dtypes))}"
        if common.kind not in self.kinds:
            return f"`{self.name}` is not defined for {common}"
        if self.gives == "explicit":
            if self.name == "bits" and (result.bits != common.bits or result == BOOL):
                return f"`bits` cannot read {common} as {result}: the widths differ"
            return None
        wanted = BOOL if self.gives == "bool" else common
        return None if result == wanted else f"`{self.name}` of {common} gives {wanted}, not {result}"

    # -- meaning ------------------------------------------------------------------------------------------------------

    def evaluate(self, args: Sequence[Array], dtype: DType) -> Array:
        """The operation on arrays of the declared types, broadcast; `dtype` is the result's type."""
        with np.errstate(all="ignore"):
            return self.function(tuple(np.asarray(a) for a in args), dtype)

    def slopes(self, args: Sequence[Array], result: Array) -> tuple[Array, ...]:
        """The magnitudes of the partial derivatives at a point, for f64 or longdouble operands.

        They may be infinite, or NaN where the result is no number. A condition's slope is 0. Zero off the switches of
        an operation that is constant there.
        """
        shape = np.broadcast_shapes(*(np.shape(a) for a in args))
        with np.errstate(all="ignore"):
            found = self.slope(*args, result) if self.slope else tuple(0.0 for _ in args)
            return tuple(np.broadcast_to(np.abs(np.asarray(s, dtype=np.asarray(result).dtype)), shape) for s in found)

    # -- laws ---------------------------------------------------------------------------------------------------------

    def law(self, name: str, dtype: DType) -> bool:
        """Whether the operation is `commutative`, `associative`, `idempotent` or an `involution` at a type."""
        kinds: Kinds = getattr(self.laws, name)
        return dtype.kind in kinds

    def value(self, name: str, dtype: DType) -> Any:
        """The `identity`, the `absorbing` value or the value of `cancels` at a type, a NumPy scalar, or None."""
        values: Values = getattr(self.laws, name)
        for kinds, value in values:
            if dtype.kind in kinds:
                return _named(value, BOOL if name == "cancels" and self.gives == "bool" else dtype)
        return None

    # -- errors and cost ----------------------------------------------------------------------------------------------

    def ulp(self, dtype: DType, mode: Numerics = "default") -> float:
        """A bound on the error of the reference and of compiled code, in units in the last place of result `dtype`."""
        if not dtype.is_float:
            return 0.0
        wide = F32 if dtype in (F16, BF16) else dtype
        bound = max(self.reference_ulp, self.spell(wide, mode).ulp if self.cuda else 0.0)
        if wide == dtype or bound == 0.0:
            return bound
        return 0.5 + bound * 2.0 ** (dtype.mantissa - wide.mantissa)

    def rounding(self, args: Sequence[Array], result: Array, dtype: DType, mode: Numerics = "default") -> Array:
        """A bound on the absolute error made at a point by rounding to `dtype`, operands taken as exact (f64)."""
        ulps = self.ulp(dtype, mode)
        with np.errstate(all="ignore"):
            size = np.abs(self.scale(*args, result) if self.scale else np.asarray(result, dtype=np.float64))
            return np.asarray(ulps * spacing(size, dtype))

    def spell(self, dtype: DType, mode: Numerics = "default") -> Spelling:
        """The CUDA spelling for operands of a type; an approximate one only in `fast`."""
        fitting = [s for s in self.cuda if matches(s, dtype) and (mode == "fast" or not s.approx)]
        if not fitting:
            raise CompilerError("ops", f"`{self.name}` has no CUDA spelling for {dtype}")
        return max(fitting, key=lambda s: (s.approx, matches(s, dtype)))

    def approximations(self, dtype: DType) -> tuple[Spelling, ...]:
        """The approximate CUDA spellings at a type, to be used where their error does not matter."""
        return tuple(s for s in self.cuda if s.approx and matches(s, dtype))


def spacing(size: Array, dtype: DType) -> Array:
    """The distance between neighbours of a float type at magnitude `size` (f64), below the least normal that there."""
    fraction = dtype.mantissa - 1
    least = 2 - (1 << (dtype.bits - dtype.mantissa - 1))
    _, exponent = np.frexp(np.asarray(size, dtype=np.float64))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, least) - fraction))


def _named(value: str, dtype: DType) -> Any:
    if value == "least":
        return from_bits(constant(dtype.least, dtype), dtype)
    if value == "greatest":
        return from_bits(constant(dtype.greatest, dtype), dtype)
    if value == "ones":
        return from_bits((1 << dtype.bits) - 1, dtype)
    if dtype == BOOL:
        return np.bool_(value in ("true", "1"))
    return from_bits(parse_const(value, dtype), dtype)


# -- meanings ---------------------------------------------------------------------------------------------------------

Function = Callable[[tuple[Array, ...], DType], Array]


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


def _clip(x: Array, low: Array, high: Array) -> Array:
    return numerics.minimum(numerics.maximum(x, low), high)


# -- slopes -----------------------------------------------------------------------------------------------------------


def _ones(*values: Array) -> tuple[Any, ...]:
    return (1.0,) * (len(values) - 1)


def _mod_slopes(a: Array, b: Array, r: Array) -> tuple[Any, ...]:
    return 1.0, np.floor(a / b)


def _pow_slopes(a: Array, b: Array, r: Array) -> tuple[Any, ...]:
    zero = np.where(b == 0, 0.0, b * np.power(a, b - 1))
    return zero, np.where(r == 0, 0.0, r * np.log(np.abs(a)))


def _atan2_slopes(y: Array, x: Array, r: Array) -> tuple[Any, ...]:
    size = np.hypot(x, y)
    return x / size / size, y / size / size


def _share(a: Array, b: Array, r: Array) -> tuple[Any, ...]:
    return np.exp(a - r), np.exp(b - r)


def _greatest_operand(a: Array, b: Array, r: Array) -> Array:
    return np.maximum(np.abs(r), np.maximum(np.abs(a), np.abs(b)))


# -- the rows ---------------------------------------------------------------------------------------------------------

_LIB = "f32 f64"
EXACT = 0.0
ROUNDED = 0.5


def _int(text: str) -> tuple[Spelling, ...]:
    return Spelling("int", text), Spelling("uint", text)


def _float(text: str, ulp: float = 0.0) -> tuple[Spelling, ...]:
    return Spelling("f32", text.replace("#", "f"), ulp), Spelling("f64", text.replace("#", ""), ulp)


def _lib(name: str, ulp32: float, ulp64: float, *more: Spelling) -> tuple[Spelling, ...]:
    """A function of CUDA's math library, of one operand."""
    return Spelling("f32", name + "f({0})", ulp32), Spelling("f64", name + "({0})", ulp64), *more


def _fast(text: str, ulp: float, absolute: float = 0.0, low: float = -np.inf, high: float = np.inf) -> Spelling:
    return Spelling("f32", text, ulp, True, absolute, (low, high), True)


_WRAP = "({{T}})(({{W}}){{0}} {} ({{W}}){{1}})"


def _arithmetic() -> tuple[OpRow, ...]:
    return (
        OpRow(
            "add", 2, "Sum; integers wrap.", NUMS, _split(np.add, _arith(np.add)), infix="+", precedence=10,
            laws=Laws(commutative=NUMS, associative=INTS, identity=((INTS, "0"), (FLOATS, "-0.0"))),
            cuda=(*_int(_WRAP.format("+")), *_float("({0} + {1})", ROUNDED)), reference_ulp=ROUNDED, slope=_ones,
        ),
        OpRow(
            "sub", 2, "Difference; integers wrap.", NUMS, _split(np.subtract, _arith(np.subtract)), infix="-",
            precedence=10, laws=Laws(identity=((INTS, "0"), (FLOATS, "0.0")), cancels=((INTS, "0"),)),
            cuda=(*_int(_WRAP.format("-")), *_float("({0} - {1})", ROUNDED)), reference_ulp=ROUNDED, slope=_ones,
        ),
        OpRow(
            "mul", 2, "Product; integers wrap.", NUMS, _split(np.multiply, _arith(np.multiply)), infix="*",
            precedence=11,
            laws=Laws(commutative=NUMS, associative=INTS, identity=((INTS, "1"), (FLOATS, "1.0")),
                      absorbing=((INTS, "0"),), distributes=(("add", INTS), ("sub", INTS))),
            cuda=(*_int(_WRAP.format("*")), *_float("({0} * {1})", ROUNDED)), reference_ulp=ROUNDED,
            slope=lambda a, b, r: (b, a),
        ),
        OpRow(
            "div", 2, "Quotient of floats, IEEE 754.", FLOATS, _arith(np.divide), infix="/", precedence=11,
            laws=Laws(identity=((FLOATS, "1.0"),)),
            cuda=(*_float("({0} / {1})", ROUNDED), _fast("__fdividef({0}, {1})", 2.0, low=-(2.0**126), high=2.0**126)),
            reference_ulp=ROUNDED, flops=8, special=1, slope=lambda a, b, r: (1.0 / b, r / b),
        ),
        OpRow(
            "floordiv", 2, "Quotient rounded toward minus infinity; integers: `x // 0` is 0, `INT_MIN // -1` wraps.",
            NUMS, _split(numerics.int_floordiv, _math(np.floor_divide)), infix="//", precedence=11,
            laws=Laws(identity=((INTS, "1"),), absorbing=((INTS, "0"),)),
            cuda=(*_int("lf_floordiv<{T}>({0}, {1})"), *_float("lf_floordiv({0}, {1})", 2.0)), reference_ulp=2.0,
            flops=12, switches=True,
        ),
        OpRow(
            "mod", 2, "Remainder of `//`, with the sign of the divisor; integers: `x % 0` is 0.", NUMS,
            _split(numerics.int_mod, _math(np.remainder)), infix="%", precedence=11,
            laws=Laws(absorbing=((INTS, "0"),), cancels=((INTS, "0"),)),
            cuda=(*_int("lf_mod<{T}>({0}, {1})"), *_float("lf_mod({0}, {1})", ROUNDED)), reference_ulp=ROUNDED,
            flops=12, slope=_mod_slopes, switches=True,
        ),
        OpRow(
            "pow", 2, "Power; integers wrap, and a negative power of them is rounded toward zero (`0 ** -1` is 0).",
            NUMS, _split(numerics.int_pow, _math(np.power)), infix="**", precedence=13,
            laws=Laws(identity=((INTS, "1"), (FLOATS, "1.0"))),
            cuda=(*_int("lf_pow<{T}>({0}, {1})"), Spelling("f32", "powf({0}, {1})", 4.0),
                  Spelling("f64", "pow({0}, {1})", 2.0)),
            reference_ulp=1.0, flops=30, special=2, domain=((0.01, 50.0), (-8.0, 8.0)), slope=_pow_slopes,
        ),
        OpRow(
            "neg", 1, "Negation; integers wrap.", NUMS, _plain(np.negative), prefix="-", precedence=12,
            laws=Laws(involution=NUMS),
            homomorphisms=(Homomorphism("add", "add", "sub", "sub", kinds=NUMS),
                           Homomorphism("maximum", "minimum"), Homomorphism("minimum", "maximum")),
            inverse="neg", cuda=(*_int("({T})(({W})0 - ({W}){0})"), *_float("(-{0})")), slope=_ones,
        ),
        OpRow(
            "fma", 3, "`a * b + c`, rounded once.", FLOATS, lambda args, dtype: numerics.fma(*args, dtype),
            surface="fma", cuda=_float("fma#({0}, {1}, {2})", ROUNDED), reference_ulp=ROUNDED, flops=2,
            slope=lambda a, b, c, r: (b, a, 1.0),
        ),
        OpRow(
            "abs", 1, "Magnitude; that of INT_MIN wraps.", NUMS, _plain(np.abs), surface="abs",
            laws=Laws(idempotent=NUMS), homomorphisms=(Homomorphism("mul", "mul", kinds=FLOATS),),
            cuda=(Spelling("uint", "{0}"), Spelling("int", "lf_abs<{T}>({0})"), *_float("fabs#({0})")), slope=_ones,
        ),
        OpRow(
            "sign", 1, "-1, 0 or 1; NaN for NaN, and +0.0 for -0.0.", NUMS, _plain(np.sign), surface="sign",
            laws=Laws(idempotent=NUMS), cuda=(*_int("lf_sign<{T}>({0})"), *_float("lf_sign({0})")), switches=True,
        ),
        OpRow(
            "copysign", 2, "The magnitude of the first with the sign of the second.", FLOATS, _plain(np.copysign),
            surface="copysign", laws=Laws(idempotent=FLOATS), cuda=_float("copysign#({0}, {1})"),
            slope=lambda a, b, r: (1.0, 0.0), switches=True,
        ),
        OpRow(
            "minimum", 2, "The lesser; NaN if either is; -0.0 is less than +0.0.", NUMS, _plain(numerics.minimum),
            surface="minimum",
            laws=Laws(commutative=NUMS, associative=NUMS, idempotent=NUMS,
                      identity=((INTS, "greatest"), (FLOATS, "inf")), absorbing=((INTS, "least"),)),
            cuda=(*_int("lf_min<{T}>({0}, {1})"), *_float("lf_min({0}, {1})")), slope=_ones,
        ),
        OpRow(
            "maximum", 2, "The greater; NaN if either is; +0.0 is greater than -0.0.", NUMS, _plain(numerics.maximum),
            surface="maximum",
            laws=Laws(commutative=NUMS, associative=NUMS, idempotent=NUMS,
                      identity=((INTS, "least"), (FLOATS, "-inf")), absorbing=((INTS, "greatest"),)),
            cuda=(*_int("lf_max<{T}>({0}, {1})"), *_float("lf_max({0}, {1})")), slope=_ones,
        ),
        OpRow(
            "clip", 3, "`minimum(maximum(x, low), high)`.", NUMS, _plain(_clip), surface="clip",
            cuda=(*_int("lf_min<{T}>(lf_max<{T}>({0}, {1}), {2})"), *_float("lf_min(lf_max({0}, {1}), {2})")),
            flops=2, slope=_ones,
        ),
    )  # fmt: skip


def _roundings() -> tuple[OpRow, ...]:
    def row(name: str, doc: str, function: Callable[..., Any], spelled: str) -> OpRow:
        return OpRow(name, 1, doc, FLOATS, _plain(function), surface=name, laws=Laws(idempotent=FLOATS),
                     cuda=_float(spelled + "#({0})"), domain=((-1e6, 1e6),), switches=True)  # fmt: skip

    return (
        row("floor", "The greatest integer not above.", np.floor, "floor"),
        row("ceil", "The least integer not below.", np.ceil, "ceil"),
        row("round", "The nearest integer, of two the even one.", np.rint, "rint"),
        row("trunc", "The integer next toward zero.", np.trunc, "trunc"),
    )


def _functions() -> tuple[OpRow, ...]:
    def row(name: str, doc: str, function: Callable[..., Any], cuda: tuple[Spelling, ...],
            domain: tuple[float, float], slope: Slopes, flops: int = 8, special: int = 1, ulp: float = 1.0,
            **more: Any) -> OpRow:  # fmt: skip
        return OpRow(name, 1, doc, FLOATS, _math(function), surface=name, cuda=cuda, domain=(domain,), slope=slope,
                     flops=flops, special=special, reference_ulp=ulp, **more)  # fmt: skip

    def turns(source: str, image: str, undo: str, over: str, pole: float) -> tuple[Homomorphism, ...]:
        return (Homomorphism(source, image, undo, over, pole),)

    ln2, ln10, root = np.log(2.0), np.log(10.0), 2.0 / np.sqrt(np.pi)
    return (
        row("sqrt", "Square root, correctly rounded.", np.sqrt,
            (*_float("sqrt#({0})", ROUNDED), _fast("lf_sqrt_approx({0})", 1.0)), (0.0, 1e6), lambda x, r: (0.5 / r,),
            ulp=ROUNDED, homomorphisms=(Homomorphism("mul", "mul"),)),
        row("rsqrt", "`1 / sqrt(x)`.", lambda x: 1.0 / np.sqrt(x),
            _lib("rsqrt", 2.0, 1.0, _fast("lf_rsqrt_approx({0})", 2.0)), (1e-6, 1e6), lambda x, r: (0.5 * r / x,),
            flops=2, ulp=1.5),
        row("cbrt", "Cube root, of negative numbers too.", np.cbrt, _lib("cbrt", 1.0, 1.0), (-1e6, 1e6),
            lambda x, r: (1.0 / (3.0 * r * r),), flops=20, special=2),
        row("exp", "e to the power x.", np.exp,
            _lib("exp", 2.0, 1.0, _fast("__expf({0})", 4.0, low=-2.0, high=2.0)), (-80.0, 80.0), lambda x, r: (r,),
            homomorphisms=turns("add", "mul", "sub", "div", -np.inf), inverse="log"),
        row("exp2", "2 to the power x.", np.exp2, _lib("exp2", 2.0, 1.0, _fast("lf_exp2_approx({0})", 2.0)),
            (-120.0, 120.0), lambda x, r: (r * ln2,), flops=2,
            homomorphisms=turns("add", "mul", "sub", "div", -np.inf), inverse="log2"),
        row("expm1", "`exp(x) - 1`, accurate near 0.", np.expm1, _lib("expm1", 1.0, 1.0), (-10.0, 80.0),
            lambda x, r: (r + 1.0,), flops=14, inverse="log1p"),
        row("log", "Natural logarithm.", np.log,
            _lib("log", 1.0, 1.0, _fast("__logf({0})", 3.0, 2.0**-21.41)), (1e-6, 1e6), lambda x, r: (1.0 / x,),
            homomorphisms=turns("mul", "add", "div", "sub", 0.0), inverse="exp", flops=14),
        row("log2", "Logarithm to base 2.", np.log2,
            _lib("log2", 1.0, 1.0, _fast("__log2f({0})", 2.0, 2.0**-22)), (1e-6, 1e6),
            lambda x, r: (1.0 / (ln2 * x),), homomorphisms=turns("mul", "add", "div", "sub", 0.0), inverse="exp2",
            flops=14),
        row("log10", "Logarithm to base 10.", np.log10, _lib("log10", 2.0, 1.0), (1e-6, 1e6),
            lambda x, r: (1.0 / (ln10 * x),), homomorphisms=turns("mul", "add", "div", "sub", 0.0), flops=16),
        row("log1p", "`log(1 + x)`, accurate near 0.", np.log1p, _lib("log1p", 1.0, 1.0), (-0.99, 1e6),
            lambda x, r: (1.0 / (1.0 + x),), flops=16, inverse="expm1"),
        row("sin", "Sine of radians.", np.sin, _lib("sin", 2.0, 2.0), (-100.0, 100.0), lambda x, r: (np.cos(x),),
            flops=20),
        row("cos", "Cosine of radians.", np.cos, _lib("cos", 2.0, 2.0), (-100.0, 100.0), lambda x, r: (np.sin(x),),
            flops=20),
        row("tan", "Tangent of radians.", np.tan, _lib("tan", 4.0, 2.0), (-100.0, 100.0),
            lambda x, r: (1.0 + r * r,), flops=30),
        row("asin", "Arc sine.", np.arcsin, _lib("asin", 2.0, 2.0), (-1.0, 1.0),
            lambda x, r: (1.0 / np.sqrt((1.0 - x) * (1.0 + x)),), flops=20),
        row("acos", "Arc cosine.", np.arccos, _lib("acos", 2.0, 2.0), (-1.0, 1.0),
            lambda x, r: (1.0 / np.sqrt((1.0 - x) * (1.0 + x)),), flops=20),
        row("atan", "Arc tangent.", np.arctan, _lib("atan", 2.0, 2.0), (-100.0, 100.0),
            lambda x, r: (1.0 / (1.0 + x * x),), flops=20),
        row("sinh", "Hyperbolic sine.", np.sinh, _lib("sinh", 3.0, 2.0), (-80.0, 80.0), lambda x, r: (np.cosh(x),),
            flops=20),
        row("cosh", "Hyperbolic cosine.", np.cosh, _lib("cosh", 2.0, 1.0), (-80.0, 80.0), lambda x, r: (np.sinh(x),),
            flops=16),
        row("tanh", "Hyperbolic tangent.", np.tanh,
            _lib("tanh", 2.0, 2.0, _fast("lf_tanh_approx({0})", 8192.0)), (-10.0, 10.0),
            lambda x, r: ((1.0 - r) * (1.0 + r),), flops=14, special=2),
        row("erf", "The error function.", special.erf, _lib("erf", 2.0, 2.0), (-5.0, 5.0),
            lambda x, r: (root * np.exp(-x * x),), flops=20, ulp=2.0),
        row("erfc", "`1 - erf(x)`, accurate where it is small.", special.erfc, _lib("erfc", 4.0, 5.0), (-5.0, 9.0),
            lambda x, r: (root * np.exp(-x * x),), flops=25, special=2, ulp=4.0),
        row("sigmoid", "`1 / (1 + exp(-x))`.", special.sigmoid,
            (*_float("lf_sigmoid({0})", 4.0), _fast("lf_sigmoid_approx({0})", 8.0)), (-80.0, 80.0),
            lambda x, r: (r * (1.0 - r),), flops=12, special=2, ulp=2.0),
        OpRow(
            "atan2", 2, "The angle of the point (x, y), given y and x.", FLOATS, _math(np.arctan2), surface="atan2",
            cuda=(Spelling("f32", "atan2f({0}, {1})", 3.0), Spelling("f64", "atan2({0}, {1})", 2.0)),
            reference_ulp=1.0, flops=30, special=1, slope=_atan2_slopes, switches=True,
        ),
        OpRow(
            "logaddexp", 2, "`log(exp(a) + exp(b))` without overflow.", FLOATS, _math(np.logaddexp),
            surface="logaddexp", laws=Laws(commutative=FLOATS), cuda=_float("lf_logaddexp({0}, {1})", 4.0),
            reference_ulp=2.0, flops=30, special=2, slope=_share, scale=_greatest_operand,
        ),
    )  # fmt: skip


def _comparisons() -> tuple[OpRow, ...]:
    def row(name: str, symbol: str, doc: str, function: Callable[..., Any], complement: tuple[str, Kinds],
            swapped: str, laws: Laws, kinds: Kinds = NUMS) -> OpRow:  # fmt: skip
        return OpRow(name, 2, doc, kinds, _plain(function), infix=symbol, precedence=5, gives="bool", laws=laws,
                     complement=complement, swapped=swapped, cuda=(Spelling("any", f"({{0}} {symbol} {{1}})"),),
                     switches=True)  # fmt: skip

    def same(value: str) -> Values:
        return ((INTS, value),)

    return (
        row("eq", "==", "Equal; false with NaN.", np.equal, ("ne", ALL), "eq",
            Laws(commutative=ALL, associative=BOOLS, identity=((BOOLS, "true"),), cancels=((BITS, "true"),)), ALL),
        row("ne", "!=", "Not equal; true with NaN.", np.not_equal, ("eq", ALL), "ne",
            Laws(commutative=ALL, associative=BOOLS, identity=((BOOLS, "false"),), cancels=((BITS, "false"),)), ALL),
        row("lt", "<", "Less.", np.less, ("ge", INTS), "gt", Laws(cancels=((NUMS, "false"),))),
        row("le", "<=", "Less or equal.", np.less_equal, ("gt", INTS), "ge", Laws(cancels=same("true"))),
        row("gt", ">", "Greater.", np.greater, ("le", INTS), "lt", Laws(cancels=((NUMS, "false"),))),
        row("ge", ">=", "Greater or equal.", np.greater_equal, ("lt", INTS), "le", Laws(cancels=same("true"))),
    )  # fmt: skip


def _logic() -> tuple[OpRow, ...]:
    def test(name: str, doc: str, function: Callable[..., Any]) -> OpRow:
        return OpRow(name, 1, doc, FLOATS, _plain(function), surface=name, gives="bool",
                     cuda=_float(f"lf_{name}({{0}})"), switches=True)  # fmt: skip

    def lattice(name: str, doc: str, symbol: str, precedence: int, function: Callable[..., Any], spelled: str,
                kinds: Kinds, laws: Laws) -> OpRow:  # fmt: skip
        return OpRow(name, 2, doc, kinds, _plain(function), infix=symbol, precedence=precedence, laws=laws,
                     cuda=(Spelling("any", spelled),))  # fmt: skip

    def algebra(kinds: Kinds, identity: str, absorbing: str, over: str) -> Laws:
        return Laws(commutative=kinds, associative=kinds, idempotent=kinds, identity=((kinds, identity),),
                    absorbing=((kinds, absorbing),), distributes=((over, kinds),))  # fmt: skip

    return (
        test("isnan", "Whether not a number.", np.isnan),
        test("isinf", "Whether infinite.", np.isinf),
        test("isfinite", "Whether neither infinite nor NaN.", np.isfinite),
        lattice("and", "Both; the right operand reads nothing where the left is false.", "and", 3, np.logical_and,
                "({0} && {1})", BOOLS, algebra(BOOLS, "ones", "0", "or")),
        lattice("or", "Either; the right operand reads nothing where the left is true.", "or", 2, np.logical_or,
                "({0} || {1})", BOOLS, algebra(BOOLS, "0", "ones", "and")),
        lattice("bitand", "Bits set in both.", "&", 8, np.bitwise_and, "({T})({0} & {1})", BITS,
                algebra(BITS, "ones", "0", "bitor")),
        lattice("bitor", "Bits set in either.", "|", 6, np.bitwise_or, "({T})({0} | {1})", BITS,
                algebra(BITS, "0", "ones", "bitand")),
        lattice("bitxor", "Bits set in one only.", "^", 7, np.bitwise_xor, "({T})({0} ^ {1})", BITS,
                Laws(commutative=BITS, associative=BITS, identity=((BITS, "0"),), cancels=((BITS, "0"),))),
        OpRow("not", 1, "The opposite.", BOOLS, _plain(np.logical_not), prefix="not", precedence=4,
              laws=Laws(involution=BOOLS), inverse="not", cuda=(Spelling("any", "(!{0})"),),
              homomorphisms=(Homomorphism("and", "or", kinds=BOOLS), Homomorphism("or", "and", kinds=BOOLS))),
        OpRow("invert", 1, "All bits flipped; of bool the opposite.", BITS, _plain(np.invert), prefix="~",
              precedence=12, laws=Laws(involution=BITS), inverse="invert",
              cuda=(Spelling("bool", "(!{0})"), *_int("({T})(~{0})")),
              homomorphisms=(Homomorphism("bitand", "bitor", kinds=BITS),
                             Homomorphism("bitor", "bitand", kinds=BITS))),
        OpRow("shl", 2, "Shift left; 0 for a count that is negative or at least the width.", INTS,
              _split(numerics.shift_left, _plain(np.add)), infix="<<", precedence=9, operands="shift",
              laws=Laws(identity=((INTS, "0"),)), cuda=_int("lf_shl<{T}>({0}, {1})")),
        OpRow("shr", 2, "Shift right with the sign; 0 or -1 for a count that is negative or at least the width.", INTS,
              _split(numerics.shift_right, _plain(np.add)), infix=">>", precedence=9, operands="shift",
              laws=Laws(identity=((INTS, "0"),)), cuda=_int("lf_shr<{T}>({0}, {1})")),
        OpRow("popcount", 1, "The number of bits set, in the operand's type.", INTS, _plain(numerics.popcount),
              surface="popcount", cuda=_int("lf_popcount<{T}>({0})")),
    )  # fmt: skip


def _conversions() -> tuple[OpRow, ...]:
    return (
        OpRow(
            "where", 3, "The second where the condition holds, else the third; both are evaluated.", ALL, _where,
            surface="where", operands="cond", cuda=(Spelling("any", "({0} ? {1} : {2})"),),
            slope=lambda c, a, b, r: (0.0, np.where(c, 1.0, 0.0), np.where(c, 0.0, 1.0)), switches=True,
        ),
        OpRow(
            "cast", 1, "Conversion: integers wrap, floats round; float to integer truncates and saturates, NaN is 0.",
            ALL, lambda args, dtype: numerics.cast(args[0], dtype), gives="explicit", reference_ulp=ROUNDED,
            cuda=(Spelling("any", "(({T}){0})", ROUNDED), *_float("lf_cast<{T}>({0})", ROUNDED)),
            slope=_ones, switches=True,
        ),
        OpRow(
            "bits", 1, "The bits read as another type of the same width.", NUMS,
            lambda args, dtype: numerics.bits(args[0], dtype), surface="bits", gives="explicit",
            cuda=(Spelling("any", "lf_bits<{T}>({0})"),), switches=True,
        ),
    )  # fmt: skip


OPS: dict[str, OpRow] = {
    row.name: row
    for group in (_arithmetic(), _roundings(), _functions(), _comparisons(), _logic(), _conversions())
    for row in group
}
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
                return _named(value, dtype)
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
