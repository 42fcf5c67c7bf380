"""Short ways to write typed programs by hand: `x[i, k] * w[k, j]` with operators, and declarations from a few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopfuse.dtypes import BOOL, F32, I64, DType
from loopfuse.frontend.typed import Define, Fold, Input, Output, Stmt, TypedProgram
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Interval, Load, Mode, Op, Ref, Role, Select, Size
from loopfuse.ops import INFIX, parse_const
from loopfuse.sizes import ONE, ZERO, Poly


@dataclass(frozen=True)
class T:
    """A term with operators."""

    e: Expr

    def _op(self, symbol: str, other: T | Poly | float) -> T:
        row = INFIX[symbol]
        right = term(other, self.e.dtype)
        return T(Op(row.name, (self.e, right.e), row.result((self.e.dtype, right.e.dtype))))

    def __add__(self, other: T | float) -> T:
        return self._op("+", other)

    def __sub__(self, other: T | float) -> T:
        return self._op("-", other)

    def __mul__(self, other: T | float) -> T:
        return self._op("*", other)

    def __truediv__(self, other: T | float) -> T:
        return self._op("/", other)

    def __lt__(self, other: T | float) -> T:
        return self._op("<", other)

    def __gt__(self, other: T | float) -> T:
        return self._op(">", other)

    def __ge__(self, other: T | float) -> T:
        return self._op(">=", other)

    def __le__(self, other: T | float) -> T:
        return self._op("<=", other)

    def equals(self, other: T | Poly | float) -> T:
        """`self == other`."""
        return self._op("==", other)

    def both(self, other: T) -> T:
        """`self and other`."""
        return self._op("and", other)

    def if_(self, cond: T, other: T | float) -> T:
        """`self if cond else other`."""
        return T(Select(cond.e, self.e, term(other, self.e.dtype).e))


def term(value: T | Poly | float | int, dtype: DType = F32) -> T:
    """A constant of a type, an exact integer for a polynomial, or a term itself."""
    if isinstance(value, T):
        return value
    if isinstance(value, Poly):
        return T(Affine(value))
    if dtype == BOOL:
        return T(Const(int(value), BOOL))
    if dtype == I64 and isinstance(value, int):
        return T(Affine(Poly.of(value)))
    return T(Const(parse_const(repr(float(value)) if dtype.is_float else str(value), dtype), dtype))


def fn(name: str, *args: T) -> T:
    """An operation by its name, on operands of one type."""
    return T(Op(name, tuple(a.e for a in args), args[-1].e.dtype))


def cast(value: T, dtype: DType) -> T:
    return T(Op("cast", (value.e,), dtype))


@dataclass(frozen=True)
class A:
    """A buffer to be loaded from."""

    id: str
    dtype: DType = F32

    def __getitem__(self, subs: object) -> T:
        given = subs if isinstance(subs, tuple) else (subs,)
        exprs, modes = [], []
        for sub in given:
            sub, mode = sub if isinstance(sub, tuple) else (sub, None)
            exprs.append(term(sub, I64).e)
            modes.append(mode)
        return T(Load(self.id, tuple(exprs), tuple(modes), self.dtype))


ZERO_FILL = Mode("constant", Const(0, F32))
CHECKED = Mode("checked")


def names(text: str) -> tuple[Poly, ...]:
    """Several names as polynomials."""
    return tuple(Poly.of(n) for n in text.split())


def dim(id: Poly | str, hi: Poly | int, lo: Poly | int = 0) -> Dim:
    return Dim(str(id), (Poly.of(lo),), (Poly.of(hi),))


def ref(id: str, dtype: DType = F32) -> T:
    return T(Ref(id, dtype))


def fold(id: str, monoid: str, dims: Dim | Sequence[Dim], value: T, where: T | None = None, guard: T | None = None,
         at: T | Poly | None = None) -> Fold:  # fmt: skip
    ranges = (dims,) if isinstance(dims, Dim) else tuple(dims)
    where_e, guard_e, at_e = (None if x is None else term(x).e for x in (where, guard, at))
    return Fold(id, monoid, value.e.dtype, ranges, value.e, where_e, guard_e, at_e)


def define(buffer: str, dims: Iterable[Dim], value: T, *folds: Fold, lead: Sequence[Poly] = ()) -> Define:
    """`par dims: buffer[lead, dims] = value`."""
    ranges = tuple(dims)
    subs = tuple(Affine(p) for p in (*lead, *(Poly.of(d.id) for d in ranges)))
    return Define(buffer, ranges, subs, value.e, folds)


def buf(id: str, *shape: Poly | int, role: Role = "temp", dtype: DType = F32, trips: Sequence[tuple[Poly, int]] = (),
        range: Interval | None = None) -> Buffer:  # fmt: skip
    """A buffer; `trips` are the windows of its leading axes: the trip index and the width."""
    extents = tuple(Poly.of(p) for p in shape)
    window: tuple[Interval, ...] | None = None
    if trips:
        lead = tuple(((s,), (s + width,)) for s, width in trips)
        window = (*lead, *(((ZERO,), (p,)) for p in extents[len(lead) :]))
    return Buffer(id, dtype, extents, role, window=window, range=range)


def program(sizes: str, buffers: Sequence[Buffer], body: Sequence[Stmt], outputs: str, least: int = 0,
            more: Sequence[Size] = ()) -> TypedProgram:  # fmt: skip
    """A typed program; sizes and outputs are named in a string."""
    declared = (*(Size(n, least=least) for n in sizes.split()), *more)
    inputs = tuple(Input(b.id, b.id, b.dtype) for b in buffers if b.role == "in")
    results = tuple(Output(n, n) for n in outputs.split())
    return TypedProgram("test", declared, inputs, (), results, tuple(buffers), tuple(body), ())


__all__ = [
    "CHECKED",
    "ONE",
    "ZERO_FILL",
    "A",
    "T",
    "buf",
    "cast",
    "define",
    "dim",
    "fn",
    "fold",
    "names",
    "program",
    "ref",
    "term",
]
