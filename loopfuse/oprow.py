"""What a row of the op table is: the facts that an operation has, and the questions that they answer.

Laws are exact, bit for bit but for the payload of a NaN: float addition is commutative and not associative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from loopfuse.constants import constant, from_bits, greatest, parse_const
from loopfuse.diag import CompilerError
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, DType
from loopfuse.numerics import Array
from loopfuse.spelling import Spelling

Kinds = tuple[str, ...]
Values = tuple[tuple[Kinds, str], ...]
Slopes = Callable[..., tuple[Any, ...]]
Function = Callable[[tuple[Array, ...], DType], Array]
Numerics = Literal["strict", "default", "fast"]
LEAST = 2.0**-1074  # the least positive f64
Law = Literal["commutative", "associative", "idempotent", "involution"]
# Functions whose error grows with their operand are at their limits in f32 from here on: the error grows no more, and
# that of an infinite operand is none.
MOST_GROWTH = 256.0


@dataclass(frozen=True, slots=True)
class Laws:
    """What an operation obeys, by the kind of its operands. Values are named: `0`, `-0.0`, `least`, `ones`, ...

    `idempotent` is f(f(x)) = f(x) of one operand and op(x, x) = x of two; `involution` f(f(x)) = x; `identity`
    op(x, e) = x, on both sides if commutative; `absorbing` op(x, z) = z, likewise; `cancels` op(x, x) = value;
    `distributes` names the operations that this one distributes over, from the left.
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
    """`f(a source b) = f(a) image f(b)`: exact at bools and integers, at floats but for rounding, over f's domain.

    With inverses, `f(a undo_source b) = f(a) undo_image f(b)`; at the argument `pole` f's value has no inverse.
    """

    source: str
    image: str
    undo_source: str | None = None
    undo_image: str | None = None
    pole: float | None = None
    kinds: Kinds = ("float",)


@dataclass(frozen=True, slots=True)
class OpRow:
    """An operation.

    `kinds` are those that the operands' common type may have; `operands`: `common` (all of one type), `cond` (a bool,
    the rest of one type), `shift` (as common: the count has the value's type). `gives`: the operands' type, bool, or
    `explicit` (the type is stated: casts). `surface` is the function's name in the language, `infix` or `prefix` its
    symbol, `precedence` as in the language (1 loosest). `complement` is the operation that gives `not` of this one,
    at some kinds, `swapped` the one with the operands exchanged, `inverse` the function that undoes this one on its
    domain. `reference_ulp` bounds the error of `evaluate` in f64; `flops` and `special` (slots of the special-function
    unit) are the cost in f32; `domain` is an interval an operand for random tests. `switches`: the result jumps where
    the operands vary smoothly. `scale`: the magnitude whose last place the error is measured in, if not the result's.
    `arithmetic`: what it is in the field of real numbers, whose laws floats keep but for rounding. `lazy`: the operands
    after the first are evaluated only where the first does not settle the result. `reads_sign`: the operand of which only
    the sign matters, which a NaN has not. `steady`: the operand that must be exact for a negative first one to have a
    result, and that a sign. `piece`: on which piece between two jumps operands are, where the jumps are no larger than what lies
    between them and so cannot be told by their size.
    """

    name: str
    arity: int
    doc: str
    kinds: Kinds
    function: Function
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
    arithmetic: Literal["sum", "difference", "product", "quotient", "power"] | None = None
    lazy: bool = False
    reads_sign: int | None = None
    steady: int | None = None
    piece: Callable[..., Array] | None = None

    # -- types --------------------------------------------------------------------------------------------------------

    def result(self, dtypes: Sequence[DType]) -> DType:
        """The result's type.

        Raises:
            CompilerError: the operands are ill-typed, or the row's type is stated and not derived.
        """
        if self.gives == "explicit":
            raise CompilerError("ops", f"the type of `{self.name}` is stated, not derived")
        result = BOOL if self.gives == "bool" else dtypes[-1]
        problem = self.problem(dtypes, result)
        if problem:
            raise CompilerError("ops", problem)
        return result

    def problem(self, dtypes: Sequence[DType], result: DType) -> str | None:
        """Why this may not be applied to operands of these types to give `result`, or None where it may."""
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
            same_width = result.bits == common.bits and result.kind in self.kinds
            return None if self.name == "cast" or same_width else f"`{self.name}` cannot read {common} as {result}"
        wanted = BOOL if self.gives == "bool" else common
        return None if result == wanted else f"`{self.name}` of {common} gives {wanted}, not {result}"

    # -- meaning ------------------------------------------------------------------------------------------------------

    def evaluate(self, args: Sequence[Array], dtype: DType) -> Array:
        """The operation on arrays of the declared types, broadcast; `dtype` is the result's type."""
        with np.errstate(all="ignore"):
            return self.function(tuple(np.asarray(a) for a in args), dtype)

    def jumps(self, operand: DType, result: DType) -> bool:
        """Whether the result jumps where operands of this type vary smoothly; only floats do."""
        if not operand.is_float or (self.gives == "explicit" and self.name == "cast" and result.is_float):
            return False
        return self.switches

    def slopes(self, args: Sequence[Array], result: Array) -> tuple[Array, ...]:
        """The magnitudes of the partial derivatives at a point, for f64 or longdouble operands and result.

        Of an operation that jumps they hold between the jumps. They may be infinite, or NaN where the result is no
        number; the slope of a condition is 0.
        """
        shape = np.broadcast_shapes(*(np.shape(a) for a in args))
        with np.errstate(all="ignore"):
            found = self.slope(*args, result) if self.slope else tuple(0.0 for _ in args)
            return tuple(np.broadcast_to(np.abs(np.asarray(s, dtype=np.asarray(result).dtype)), shape) for s in found)

    # -- laws ---------------------------------------------------------------------------------------------------------

    def law(self, name: Law, dtype: DType) -> bool:
        """Whether the operation obeys a law at operands of a type."""
        kinds: Kinds = getattr(self.laws, name)
        return dtype.kind in kinds

    def value(self, name: Literal["identity", "absorbing", "cancels"], dtype: DType) -> Any:
        """The value that a law names, for operands of a type: a NumPy scalar, or None without the law."""
        values: Values = getattr(self.laws, name)
        result = BOOL if name == "cancels" and self.gives == "bool" else dtype
        return next((named_value(value, result) for kinds, value in values if dtype.kind in kinds), None)

    def distributes_over(self, other: str, dtype: DType) -> bool:
        """Whether `x self (y other z)` is `(x self y) other (x self z)`."""
        return any(name == other and dtype.kind in kinds for name, kinds in self.laws.distributes)

    # -- errors -------------------------------------------------------------------------------------------------------

    def ulp(self, dtype: DType, mode: Numerics = "default") -> float:
        """A bound on the error of the reference and of compiled code for a result of type `dtype`.

        In units in the last place of the exact result (or of `scale`); 0 for an exact operation. An f16 or bf16
        result is a rounded f32 one.
        """
        if not dtype.is_float:
            return 0.0
        wide = F32 if dtype in (F16, BF16) else dtype
        bound = self.spell(wide, mode).ulp
        if wide == F64:
            bound = max(bound, self.reference_ulp)
        if wide == dtype or bound == 0.0:
            return bound
        return 0.5 + bound * 2.0 ** (dtype.mantissa - wide.mantissa)

    def rounding(self, args: Sequence[Array], result: Array, dtype: DType, mode: Numerics = "default") -> Array:
        """A bound on the absolute error made at a point (f64 arrays) by computing in `dtype` and in `mode`.

        It covers the reference, and what the spelling for that mode adds for large operands or absolutely.
        """
        ulps: Any = self.ulp(dtype, mode)
        with np.errstate(all="ignore"):
            size = np.abs(self.scale(*args, result) if self.scale else np.asarray(result, dtype=np.float64))
            if not dtype.is_float:
                return np.zeros(np.shape(size))
            if mode != "fast":
                return steps(ulps, size, dtype)
            spelling = self.spell(dtype, mode)
            reach = sum(np.abs(np.asarray(a, dtype=np.float64)) for a in args) if spelling.growth else 0.0
            extra = spelling.growth * np.minimum(reach, MOST_GROWTH) * spacing(size, F32 if dtype.bits == 16 else dtype)
            flushed = 2.0**-126 if spelling.flushes else 0.0
            return np.asarray(steps(ulps, size, dtype) + extra + spelling.absolute + flushed)

    # -- CUDA ---------------------------------------------------------------------------------------------------------

    def spell(self, dtype: DType, mode: Numerics = "default", result: DType | None = None) -> Spelling:
        """The CUDA spelling for operands of a type; in `fast` an approximate one if it serves for every operand."""
        fitting = [s for s in self.cuda if s.rank(dtype, result)]
        usable = [s for s in fitting if not s.approx or (mode == "fast" and s.domain == Spelling.everywhere())]
        if not usable:
            raise CompilerError("ops", f"`{self.name}` has no CUDA spelling for {dtype}")
        return max(usable, key=lambda s: (s.approx, s.rank(dtype, result)))

    def approximations(self, dtype: DType) -> tuple[Spelling, ...]:
        """The approximate CUDA spellings at a type, for where their error does not matter."""
        return tuple(s for s in self.cuda if s.approx and s.rank(dtype))


def spacing(size: Array, dtype: DType) -> Array:
    """The distance between neighbouring numbers of a float type at magnitude `size` (f64).

    Below the least normal number that of the denormals, past the greatest number that at the greatest; NaN at NaN.
    """
    size = np.asarray(size, dtype=np.float64)
    unknown = np.isnan(size)
    least = 2 - (1 << (dtype.bits - dtype.mantissa - 1))
    _, exponent = np.frexp(np.where(unknown, 1.0, np.clip(size, 2.0**least, greatest(dtype))))
    return np.asarray(np.where(unknown, np.nan, np.ldexp(1.0, exponent - dtype.mantissa)))


def steps(count: float, size: Array, dtype: DType) -> Array:
    """So many distances between neighbours; the least number of f64 where it holds no such part of a denormal's."""
    found = np.asarray(count * spacing(size, dtype))
    return np.where((found == 0) & (count > 0), LEAST, found)


@cache
def named_value(value: str, dtype: DType) -> Any:
    """The NumPy scalar of a type that `value` names: `least`, `greatest`, `ones` (all bits set), or a constant."""
    if value in ("least", "greatest"):
        return from_bits(constant(getattr(dtype, value), dtype), dtype)
    if value == "ones":
        return from_bits((1 << dtype.bits) - 1, dtype)
    if dtype == BOOL:
        return np.bool_(value in ("true", "1"))
    return from_bits(parse_const(value, dtype), dtype)
