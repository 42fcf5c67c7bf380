"""The loop IR.

A program declares sizes, buffers and requirements and then lists kernels; a kernel lists statements.

*Values.* Every operation is total and means what its row in the op table says (integers wrap at their width, `//`
and `%` floor, floats are IEEE 754). All conversions are explicit `cast` operations; one with `implied` set was not
written by the user. Index arithmetic is an `Affine`, an exact integer polynomial of type i64. A `Select` is lazy: the
arm not taken reads nothing.

*Loads.* A subscript is in range, or carries a mode that says what happens outside: clip to the `edge`, read the
`constant` fill, `wrap`, `reflect`, `symmetric` (as NumPy's pad), or `checked`: not performed (the value is zero), and
the program reports a fault. A load in the arm of a `Select`, or in a loop with a `where`, is performed only where the
condition holds; everywhere else its range must be provable without that condition.

*Loops.* `par`: the iterations are independent and may run in any order. With accumulators a `par` loop is a *fold*:
`a <- e` absorbs a value into accumulator `a` by its monoid; the order of absorption is free but fixed by the extents
alone, so that the same program gives the same bits. After the loop the accumulator's name is its final value; inside
the loop it may be read only by the terms of later, repaired accumulators. `seq`: iterations run in order. `prefix`: a
fold in order whose stores may read the running value, the current element included. Dims iterate from the greatest of
`lo` to the least of `hi` (exclusive) by `step`; bounds may mention sizes, outer indices and integer lets. Iterations
where `where` is false do nothing.

*Accumulators.* A fold's accumulator starts at its monoid's identity. An accumulator with a shape is an array, absorbed
at subscripts. `argmax` and `argmin` absorb a value `at` a position and yield the position of the first best value, a
NaN being best. Sums of floats absorb products exactly as the term is written.

*Buffers.* Every element of a buffer is written exactly once (in each incarnation of a window) and read only after.
Subscripts are global coordinates; a `window` says which part exists at a point of the enclosing loops and never
changes them. A reading of an accumulator with a shape is a load.

A `Span` on each node says where in the source it comes from; it takes no part in equality.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from loopfuse.diag import Span
from loopfuse.dtypes import I64, DType
from loopfuse.sizes import ONE, Poly

ModeKind = Literal["edge", "constant", "wrap", "reflect", "symmetric", "checked"]
Role = Literal["in", "param", "out", "temp", "frozen"]
Scope = Literal["device", "local"]
Order = Literal["par", "seq", "prefix"]
Origin = Literal["shape", "compile", "param", "plan"]


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


# -- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    """A constant, held by its bits: `0.0` is not `-0.0`, and a NaN keeps its payload."""

    bits: int
    dtype: DType
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Affine:
    """An exact integer polynomial in sizes, integer params, indices and integer lets; type i64."""

    poly: Poly
    span: Span | None = _span()

    @property
    def dtype(self) -> DType:
        """Always i64."""
        return I64


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of a let or of a scalar accumulator whose loop is over (or, in a prefix loop, its running value)."""

    id: str
    dtype: DType
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Mode:
    """What a subscript outside the axis means; `fill` only with `constant`."""

    kind: ModeKind
    fill: Const | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a buffer or of an array accumulator: a subscript and a mode (or None) an axis."""

    buffer: str
    subs: tuple[Expr, ...]
    modes: tuple[Mode | None, ...]
    dtype: DType
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the op table applied; `dtype` is the result's. `implied` marks a cast that the user did not write."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    implied: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Select:
    """`then if cond else other`, lazy."""

    cond: Expr
    then: Expr
    other: Expr
    span: Span | None = _span()

    @property
    def dtype(self) -> DType:
        """The type of both arms."""
        return self.then.dtype


Expr = Const | Affine | Ref | Load | Op | Select


# -- statements -------------------------------------------------------------------------------------------------------


class Kept:
    """Room in a node for what was found of it (`rewrite.own`), which lives as long as it; no part of its value."""

    __slots__ = ("kept",)
    kept: Any


@dataclass(frozen=True, slots=True)
class Let(Kept):
    """A name for a value, in the rest of its block; an integer let may occur in an Affine."""

    id: str
    value: Expr
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Store(Kept):
    """A write of one element, or with `absorb` the absorption of a value into an accumulator of an enclosing loop.

    `at` is the position, only for argmax and argmin. A mode is None or `checked` (outside: dropped, and a fault).
    """

    buffer: str
    subs: tuple[Expr, ...]
    value: Expr
    absorb: bool = False
    at: Expr | None = None
    modes: tuple[Mode | None, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Dim:
    """A loop index: from the greatest of `lo` up to, not including, the least of `hi`."""

    id: str
    lo: tuple[Poly, ...]
    hi: tuple[Poly, ...]
    step: Poly = ONE
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Acc:
    """An accumulator: its monoid's name (a row of the table of monoids), element type, and shape (empty: a scalar).

    `repair`, an expression over `self`, `x.old` and `x.new` of earlier accumulators x, says how a partial value
    changes when those move.
    """

    id: str
    monoid: str
    dtype: DType
    shape: tuple[Poly, ...] = ()
    repair: Expr | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Loop(Kept):
    """A loop over one or several dims, a fold where it has accumulators."""

    dims: tuple[Dim, ...]
    body: tuple[Stmt, ...]
    order: Order = "par"
    accs: tuple[Acc, ...] = ()
    where: Expr | None = None
    span: Span | None = _span()


Stmt = Let | Store | Loop


# -- declarations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernel(Kept):
    """Statements that run as one unit; before fusion, one nest each."""

    id: str
    body: tuple[Stmt, ...]
    span: Span | None = _span()


Interval = tuple[tuple[Poly, ...], tuple[Poly, ...]]


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array in memory.

    `window`: for each axis the interval (greatest of lows, least of highs) that exists, in enclosing indices.
    `range`: inclusive bounds that every element of an integer buffer is known to keep (from its domain or definition).
    """

    id: str
    dtype: DType
    shape: tuple[Poly, ...]
    role: Role = "temp"
    scope: Scope = "device"
    window: tuple[Interval, ...] | None = None
    range: tuple[tuple[Poly, ...], tuple[Poly, ...]] | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic integer, at least `least` and a multiple of `multiple`.

    `shape`: bound by the inputs; `compile`: fixed by the script or the command line (`value`); `param`: an integer
    param of the call, of type `dtype` there; `plan`: chosen by the schedule.
    """

    id: str
    origin: Origin = "shape"
    least: int | None = 0
    multiple: int = 1
    value: int | None = None
    dtype: DType = I64
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Require:
    """A condition on sizes and params that holds whenever the program runs; `implied` by a subscript or written."""

    cond: Expr
    message: str = ""
    implied: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Directive:
    """A `pragma` or an `expect`, as text over the names of definitions."""

    kind: Literal["pragma", "expect"]
    text: str
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; `outputs` are the buffers with role `out`, in the order of their declaration."""

    name: str
    sizes: tuple[Size, ...]
    requires: tuple[Require, ...]
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    directives: tuple[Directive, ...] = ()
    numerics: str = "default"
