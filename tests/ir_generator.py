"""The pieces of which random loop IR is made: declarations, expressions in range by construction, folds and nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from loopfuse.dtypes import BOOL, DTYPES, I64, DType
from loopfuse.ir import (
    Acc,
    Affine,
    Buffer,
    Const,
    Dim,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Mode,
    Op,
    Order,
    Ref,
    Role,
    Select,
    Size,
    Stmt,
    Store,
)
from loopfuse.ops import MONOIDS, OPS, constant, parse_const
from loopfuse.sizes import ZERO, Poly

T = TypeVar("T")
FLOATS = [d for d in DTYPES.values() if d.is_float]
INTS = [d for d in DTYPES.values() if d.is_int]
ALL = list(DTYPES.values())
# Rows that look at the sign of a NaN, or are made by hand below.
BY_HAND = {"cast", "bits", "where", "copysign"}
SPECIALS = ["0.0", "-0.0", "1.0", "-1.5", "2.5", "inf", "-inf", "nan", "1e-8", "3e4"]


@lru_cache
def _numbers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def affine(value: int | str | Poly) -> Affine:
    """An index expression."""
    return Affine(Poly.of(value))


def op(name: str, *args: Expr) -> Op:
    """An operation with the type that its row gives."""
    return Op(name, args, OPS[name].result(tuple(a.dtype for a in args)))


def cast(value: Expr, dtype: DType, implied: bool = False) -> Expr:
    """A conversion, where one is needed."""
    return value if value.dtype == dtype else Op("cast", (value,), dtype, implied)


def const(value: int | float | bool, dtype: DType) -> Const:
    """A number as a constant."""
    return Const(constant(value, dtype), dtype)


@dataclass(frozen=True)
class Index:
    """A loop index whose values lie in `0 .. within`."""

    id: str
    within: Poly


@dataclass
class Scope:
    """What an expression may mention: values, indices, and arrays with their shapes."""

    values: list[Ref] = field(default_factory=list)
    indices: list[Index] = field(default_factory=list)
    arrays: list[Buffer] = field(default_factory=list)

    def under(self, *indices: Index) -> Scope:
        """Inside a loop."""
        return Scope(list(self.values), [*self.indices, *indices], list(self.arrays))


class Gen:
    """Draws a program, declaration by declaration and kernel by kernel."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.sizes: list[Size] = []
        self.buffers: list[Buffer] = []
        self.done: list[Buffer] = []
        self.kernels: list[Kernel] = []
        self.count = 0

    # -- choices ------------------------------------------------------------------------------------------------------

    def choice(self, items: Sequence[T]) -> T:
        """One of some things."""
        return items[self.number(0, len(items) - 1)]

    def chance(self, one_in: int = 2) -> bool:
        """True once in a while."""
        return self.number(0, one_in - 1) == one_in - 1

    def number(self, low: int, high: int) -> int:
        """A whole number, bounds included."""
        return low if low == high else int(self.draw(_numbers(low, high)))

    def id(self, stem: str) -> str:
        """A new id."""
        self.count += 1
        return f"{stem}.{self.count}" if self.count % 3 else f"{stem}{self.count}"

    # -- declarations -------------------------------------------------------------------------------------------------

    def declare_sizes(self) -> None:
        """A few sizes of all origins but `plan`."""
        for id in ("M", "N", "η")[: self.number(1, 3)]:
            self.sizes.append(Size(id, least=self.number(0, 1), multiple=self.choice([1, 1, 1, 2])))
        if self.chance(3):
            self.sizes.append(Size("R", "compile", 1, value=2))
        if self.chance(3):
            self.sizes.append(Size("p", "param", self.choice([0, -3, None]), dtype=self.choice([I64, DTYPES["i8"]])))

    def least(self, poly: Poly) -> int:
        """A bound from below of an extent, from the sizes' declarations."""
        env = {s.id: s.value if s.value is not None else s.least or 0 for s in self.sizes}
        return int(poly.value(env))

    def extent(self, least: int = 0) -> Poly:
        """The extent of an axis."""
        found = [Poly.of(n) for n in (0, 1, 1, 2, 3) if n >= least]
        found += [Poly.of(s.id) for s in self.sizes if s.origin in ("shape", "compile")] * 3
        found += [Poly.of(s.id) + 1 for s in self.sizes if s.origin == "shape"]
        return self.choice([p for p in found if self.least(p) >= least])

    def buffer(self, dtype: DType, shape: tuple[Poly, ...], role: Role = "temp", **more: Any) -> Buffer:
        """A new declaration."""
        made = Buffer(self.id("σ" if self.count % 5 == 0 else "b"), dtype, shape, role, **more)
        self.buffers.append(made)
        return made

    def declare_inputs(self) -> None:
        """Inputs, params and frozen arrays, some with a known range."""
        for _ in range(self.number(1, 3)):
            shape = tuple(self.extent() for _ in range(self.number(0, 3)))
            self.done.append(self.buffer(self.choice(ALL), shape, self.choice(["in", "in", "frozen"])))
        if self.chance():
            self.done.append(self.buffer(self.choice(FLOATS), (), "param"))
        if self.chance():
            top = self.extent(1)
            shape = (self.extent(),)
            bounds = ((ZERO,), (top - 1, Poly.of(100)))
            self.done.append(self.buffer(self.choice([DTYPES["u8"], DTYPES["i32"]]), shape, "in", range=bounds))

    # -- expressions --------------------------------------------------------------------------------------------------

    def expr(self, dtype: DType, scope: Scope, depth: int = 2) -> Expr:
        """A value of a type."""
        if depth <= 0 or self.chance(4):
            return self.leaf(dtype, scope)
        kind = self.number(0, 9)
        if kind == 0:
            return Select(self.expr(BOOL, scope, depth - 1), self.expr(dtype, scope, depth - 1),
                          self.expr(dtype, scope, depth - 1))  # fmt: skip
        if kind == 1:
            return cast(self.expr(self.choice(ALL), scope, depth - 1), dtype, self.chance())
        if kind == 2:
            return self.guarded(dtype, scope)
        if kind == 3 and dtype != BOOL:
            return self.peculiar(dtype, scope)
        rows = [r for r in OPS.values() if r.name not in BY_HAND]
        if dtype == BOOL:
            row = self.choice([r for r in rows if r.gives == "bool" or "bool" in r.kinds])
            of = self.choice([d for d in ALL if d.kind in row.kinds]) if row.gives == "bool" else BOOL
        else:
            row, of = self.choice([r for r in rows if r.gives == "same" and dtype.kind in r.kinds]), dtype
        if self.chance(8):
            return Op("where", (self.expr(BOOL, scope, 0), self.leaf(dtype, scope), self.leaf(dtype, scope)), dtype)
        return op(row.name, *(self.expr(of, scope, depth - 1) for _ in range(row.arity)))

    def peculiar(self, dtype: DType, scope: Scope) -> Expr:
        """Operations that see the bits of floats: on what was not computed."""
        if dtype.is_float and self.chance():
            return op("copysign", self.leaf(dtype, scope), self.literal(dtype))
        of = self.choice([d for d in ALL if d.bits == dtype.bits and d != BOOL])
        return Op("bits", (self.literal(of),), dtype)

    def literal(self, dtype: DType) -> Const:
        """A constant."""
        if dtype == BOOL:
            return Const(self.number(0, 1), BOOL)
        if dtype.is_int:
            ends = [dtype.least, dtype.greatest, 0, 1, 2, 7]
            return const(self.choice(ends), dtype)
        if self.chance(12):
            return Const(parse_const("nan", dtype) | 1, dtype)
        return Const(parse_const(self.choice(SPECIALS), dtype), dtype)

    def leaf(self, dtype: DType, scope: Scope) -> Expr:
        """A constant, a name, or a load."""
        refs: list[Expr] = [r for r in scope.values if r.dtype == dtype]
        if refs and self.chance():
            return self.choice(refs)
        arrays = [b for b in scope.arrays if b.dtype == dtype]
        if not arrays and scope.arrays and self.chance():
            found = self.load(self.choice(scope.arrays), scope)
            return cast(found, dtype) if found is not None else self.literal(dtype)
        if arrays and not self.chance(3):
            found = self.load(self.choice(arrays), scope)
            if found is not None:
                return found
        if dtype == I64 and self.chance():
            return Affine(self.poly(scope))
        return self.literal(dtype)

    def poly(self, scope: Scope) -> Poly:
        """An index expression of any value."""
        names = [i.id for i in scope.indices] + [s.id for s in self.sizes]
        names += [r.id for r in scope.values if r.dtype in (I64, DTYPES["i8"]) and r.id.startswith("k")]
        total = Poly.of(self.number(-2, 2))
        for _ in range(self.number(1, 2)):
            total = total + Poly.of(self.choice(names)) * self.choice([1, 1, -1, 2])
        return self.choice([total, total, total // 2, total % 3])

    def load(self, array: Buffer, scope: Scope) -> Expr | None:
        """An element, in range; None where the array may have none."""
        subs: list[Expr] = []
        modes: list[Mode | None] = []
        for extent in array.shape:
            found = self.subscript(array, extent, scope)
            if found is None:
                return None
            subs.append(found[0])
            modes.append(found[1])
        return Load(array.id, tuple(subs), tuple(modes), array.dtype)

    def subscript(self, array: Buffer, extent: Poly, scope: Scope) -> tuple[Expr, Mode | None] | None:
        """A subscript and its mode on an axis."""
        fitting = [i for i in scope.indices if i.within == extent]
        if fitting and not self.chance(4):
            index = Poly.of(self.choice(fitting).id)
            return Affine(index if not self.chance(4) else extent - 1 - index), None
        if self.least(extent) < 1 or self.chance(6):
            fill = Mode("constant", self.literal(array.dtype))
            return Affine(self.poly(scope)), fill if self.chance(2) else Mode("checked")
        kind = self.number(0, 4)
        if kind == 0:
            return affine(self.number(0, self.least(extent) - 1)), None
        if kind == 1:
            return op("mod", self.expr(I64, scope, 1), Affine(extent)), None
        if kind == 2:
            return op("clip", self.expr(I64, scope, 1), affine(0), Affine(extent - 1)), None
        return Affine(self.poly(scope)), Mode(self.choice(["edge", "wrap", "reflect", "symmetric"]))

    def guarded(self, dtype: DType, scope: Scope) -> Expr:
        """A load that a lazy select keeps in range."""
        vectors = [b for b in scope.arrays if len(b.shape) == 1]
        if not vectors:
            return self.leaf(dtype, scope)
        array, at = self.choice(vectors), self.poly(scope)
        inside = op("and", op("le", affine(0), Affine(at)), op("lt", Affine(at), Affine(array.shape[0])))
        read = cast(Load(array.id, (Affine(at),), (None,), array.dtype), dtype)
        return Select(inside, read, self.leaf(dtype, scope))

    # -- statements ---------------------------------------------------------------------------------------------------

    def lets(self, scope: Scope) -> list[Stmt]:
        """A few lets; an integer one may be used in index expressions."""
        made: list[Stmt] = []
        for _ in range(self.number(0, 2)):
            if self.chance(3):
                value: Expr = op("clip", self.expr(I64, scope, 1), const(0, I64), const(3, I64))
                made.append(Let(self.id("k"), self.choice([value, cast(value, DTYPES["i8"])])))
            else:
                made.append(Let(self.id("e"), self.expr(self.choice(ALL), scope)))
            last = made[-1]
            assert isinstance(last, Let)
            scope.values.append(Ref(last.id, last.value.dtype))
        return made

    def dims(self, shape: Sequence[Poly]) -> tuple[list[Dim], list[Index]]:
        """New indices over whole axes."""
        ids = [self.id(self.choice(["i", "j"])) for _ in shape]
        return [Dim(id, (ZERO,), (e,)) for id, e in zip(ids, shape, strict=True)], [
            Index(id, e) for id, e in zip(ids, shape, strict=True)
        ]

    def nest(self, dims: Sequence[Dim], body: list[Stmt]) -> list[Stmt]:
        """Par loops over some dims, cut into bands at random."""
        if not dims:
            return body
        cut = self.number(1, len(dims))
        return [Loop(tuple(dims[:cut]), tuple(self.nest(dims[cut:], body)))]

    def fold_dims(self, scope: Scope) -> tuple[list[Dim], list[Index]]:
        """Dims to fold over: whole axes, parts of them, with steps, or up to an outer index."""
        dims, indices = self.dims([self.extent() for _ in range(self.number(1, 2))])
        extent = indices[-1].within
        kind = self.number(0, 5)
        if kind == 0:
            dims[-1] = replace(dims[-1], step=Poly.of(2))
        elif kind == 1:
            dims[-1] = replace(dims[-1], lo=(ZERO, Poly.of(self.number(-1, 2))), hi=(extent, Poly.of(3)))
        elif kind == 2 and scope.indices:
            dims[-1] = replace(dims[-1], hi=(extent, Poly.of(self.choice(scope.indices).id) + 1))
        elif kind == 3:
            counts = [r.id for r in scope.values if r.id.startswith("k")]
            if counts:
                dims[-1] = replace(dims[-1], lo=(Poly.of(self.choice(counts)),))
        return dims, indices

    def fold(self, scope: Scope, order: Order = "par") -> tuple[list[Stmt], list[Ref]]:
        """A fold with several accumulators, and refs to their final values, which are added to the scope."""
        dims, indices = self.fold_dims(scope)
        inner = scope.under(*indices)
        where = self.expr(BOOL, inner, 1) if self.chance(4) else None
        body, accs, finals = self.lets(inner), [], []
        for _ in range(self.number(1, 3)):
            monoid = MONOIDS[self.choice(list(MONOIDS))]
            kinds = tuple(d for d in ALL if d.kind in monoid.kinds and not (d == BOOL and monoid.name == "sum"))
            dtype = self.choice(kinds)
            acc = Acc(self.id("a"), monoid.name, dtype)
            at = self.position(indices) if monoid.positional else None
            accs.append(acc)
            body.append(Store(acc.id, (), self.expr(dtype, inner), True, at))
            finals.append(Ref(acc.id, monoid.result(dtype)))
        scope.values += finals
        return [Loop(tuple(dims), tuple(body), order, tuple(accs), where)], finals

    def position(self, indices: Sequence[Index]) -> Expr:
        """A position of an argmax: the flat index."""
        total = ZERO
        for index in indices:
            total = total * index.within + Poly.of(index.id)
        return Affine(total)

    def put(self, target: Buffer, subs: Sequence[Expr], scope: Scope) -> list[Stmt]:
        """Perhaps lets and a fold, then a store."""
        made = self.lets(scope)
        if self.chance(3):
            made += self.fold(scope)[0]
        return [*made, Store(target.id, tuple(subs), self.expr(target.dtype, scope))]

    def all_indices(self, indices: Sequence[Index]) -> list[Expr]:
        """The indices themselves, as subscripts."""
        return [affine(i.id) for i in indices]

    def scope(self) -> Scope:
        """What a kernel may read: all that is complete."""
        return Scope(arrays=list(self.done))
