"""Pivots that a row's fold subtracts from its values, and that nothing which leaves the kernel depends on.

A fold in one pass measures a variance about some value of the row, so that partial sums stay small. Where the passes are
exact no such value is needed, and to compute it takes a product of its own. Any number does as well if what is stored stays
the same when the pivot moves: a value then has a coefficient, by how much it moves with it. The pivot's is 1; differences,
sums over the row and quotients by its length are linear; whatever else is made from a value that moves is unknown. A pivot
is finite, as it says itself, so that this is arithmetic of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isfinite

from loopfuse.constants import to_number
from loopfuse.emit.base import Declined
from loopfuse.emit.writer import Target
from loopfuse.ir import Acc, Affine, Const, Expr, Let, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.rewrite import Mapper
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import own, polys, walk

Shift = tuple[Fraction, int]  # how far a value moves with the pivot: a number times a power of the row's length
STILL: Shift = (Fraction(0), 0)


def without_pivot(body: Sequence[Stmt], at: int, extent: Poly, target: Target) -> tuple[Stmt, ...] | Declined:
    """The statements of a row, the loop `at` over its elements, without the folds before that loop."""
    before, after = body[:at], body[at:]
    made = {a.id for s in walk(before) if isinstance(s, Loop) for a in s.accs}
    if not any(isinstance(s, Loop) for s in before):
        return tuple(body)
    if any(isinstance(s, Store) and not s.absorb for s in walk(before)):
        return Declined("something is stored before the products of a row")
    for stmt in before:
        if isinstance(stmt, Let) and _uses((stmt,)) & made:
            made.add(stmt.id)
    used = _uses(after) & made
    if len(used) > 1:
        return Declined("a fold before the products of a row is used as more than a pivot")
    rest = tuple(s for s in before if isinstance(s, Let) and s.id not in made)
    if used:
        (name,) = used
        pivot = next((s.value for s in before if isinstance(s, Let) and s.id == name), None)
        if pivot is None or not _finite(pivot):
            return Declined("a fold before the products of a row feeds no pivot")
        if not _Shifts(extent, target).still(after, name):
            return Declined(f"what is stored depends on `{name}`, which takes a product of its own")
        after = _at_zero(after, name, pivot)
    return live((*rest, *after))


def live(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements without lets that nothing reads."""
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if not isinstance(stmt, Let) or stmt.id in _uses(kept):
            kept.append(stmt)
    return tuple(reversed(kept))


def _uses(body: Sequence[Stmt]) -> set[str]:
    """The names of values in statements."""
    return {n for s in walk(body) for n in (*own(s).names.values, *(m for p in polys(s) for m in p.names))}


def _finite(expr: Expr) -> bool:
    """Whether a value is a number because it says so: `x if isfinite(x) else 0`."""
    if not isinstance(expr, Select) or not isinstance(expr.other, Const):
        return False
    test = expr.cond
    same = isinstance(test, Op) and test.op == "isfinite" and test.args == (expr.then,)
    return same and isfinite(float(to_number(expr.other.bits, expr.other.dtype)))


class _Shifts:
    """How far each value of a row moves with the pivot."""

    def __init__(self, extent: Poly, target: Target) -> None:
        self.extent, self.target = target.poly(extent), target
        self.known: dict[str, Shift | None] = {}
        self.counts: set[str] = set()  # names of values that are the row's length
        self.sums: set[str] = set()
        self.fine = True

    def still(self, body: Sequence[Stmt], pivot: str) -> bool:
        """Whether nothing that is stored moves."""
        self.known[pivot] = (Fraction(1), 0)
        self._body(body, over=False)
        return self.fine

    def _body(self, body: Sequence[Stmt], over: bool) -> None:
        for stmt in body:
            if isinstance(stmt, Let):
                self.known[stmt.id] = self._of(stmt.value)
                if self._count(stmt.value):
                    self.counts.add(stmt.id)
            elif isinstance(stmt, Loop):
                self.sums |= {a.id for a in stmt.accs if a.monoid == "sum" and not a.shape}
                self._body(stmt.body, self._whole(stmt))
            elif stmt.absorb:
                self._absorbed(stmt, over)
            else:
                self.fine &= all(self._of(e) == STILL for e in (stmt.value, *stmt.subs))

    def _whole(self, loop: Loop) -> bool:
        """Whether a loop goes over the row, each element once."""
        count = ONE
        for dim in loop.dims:
            if len(dim.lo) != 1 or len(dim.hi) != 1 or dim.step != ONE:
                return False
            count = count * (dim.hi[0] - dim.lo[0])
        return loop.where is None and self.target.poly(count) == self.extent

    def _absorbed(self, stmt: Store, over: bool) -> None:
        """What an accumulator moves by: a sum over the row by its length times the term."""
        term = self._of(stmt.value)
        at = self._of(stmt.at) if stmt.at is not None else STILL
        known = self.known.get(stmt.buffer, STILL)
        self.known[stmt.buffer] = None
        if term == at == STILL and known == STILL:
            self.known[stmt.buffer] = STILL
        elif term is not None and over and known == STILL and stmt.buffer in self.sums:
            self.known[stmt.buffer] = (term[0], term[1] + 1)
        if (
            over
            and stmt.buffer in self.sums
            and isinstance(stmt.value, Const)
            and to_number(stmt.value.bits, stmt.value.dtype) == 1
        ):
            self.counts.add(stmt.buffer)

    def _count(self, expr: Expr) -> bool:
        """Whether a value is the row's length."""
        while isinstance(expr, Op) and expr.op == "cast" and expr.dtype.kind in ("int", "float"):
            expr = expr.args[0]
        if isinstance(expr, Affine):
            return self.target.poly(expr.poly) == self.extent
        return isinstance(expr, Ref) and expr.id in self.counts

    def _of(self, expr: Expr) -> Shift | None:
        """How far a value moves; None where it is not known."""
        if isinstance(expr, Ref):
            return self.known.get(expr.id, STILL)
        below = [self._of(e) for e in _operands(expr)]
        if all(s == STILL for s in below):
            return STILL
        if not isinstance(expr, Op) or any(s is None for s in below):
            return None
        shifts = [s for s in below if s is not None]
        if expr.op == "neg":
            return -shifts[0][0], shifts[0][1]
        if expr.op in ("add", "sub"):
            return _sum(shifts[0], shifts[1], 1 if expr.op == "add" else -1)
        if expr.op == "div" and self._count(expr.args[1]):
            return shifts[0][0], shifts[0][1] - 1
        if expr.op == "cast" and expr.dtype.is_float and expr.dtype.bits >= expr.args[0].dtype.bits:
            return shifts[0]
        return None


def _operands(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Select):
        return (expr.cond, expr.then, expr.other)
    return () if isinstance(expr, Const | Affine | Ref) else expr.subs


def _sum(one: Shift, two: Shift, sign: int) -> Shift | None:
    if two[0] == 0:
        return one
    if one[0] == 0:
        return sign * two[0], two[1]
    if one[1] != two[1]:
        return None
    total = one[0] + sign * two[0]
    return (total, one[1]) if total else STILL


def _at_zero(body: Sequence[Stmt], name: str, pivot: Expr) -> tuple[Stmt, ...]:
    """The statements with the pivot at zero, and without the sums that then are the same as others."""
    zero = Const(0, pivot.dtype)

    def step(node: Expr) -> Expr:
        if isinstance(node, Ref) and node.id == name:
            return zero
        return node.args[0] if isinstance(node, Op) and node.op == "sub" and node.args[1] == zero else node

    made = Mapper(step).on_body(tuple(body))
    copies = {s.id: s.value for s in walk(made) if isinstance(s, Let) and isinstance(s.value, Ref)}
    made = _replaced(made, copies)
    twins: dict[str, Expr] = {}
    for loop in (s for s in made if isinstance(s, Loop)):
        seen: dict[tuple[object, ...], Acc] = {}
        for acc in loop.accs:
            terms = [s for s in loop.body if isinstance(s, Store) and s.absorb and s.buffer == acc.id]
            if acc.shape or len(terms) != 1:
                continue
            first = seen.setdefault((acc.monoid, acc.dtype, terms[0].value, terms[0].at), acc)
            if first is not acc and first.repair is None:
                twins[acc.id] = Ref(first.id, acc.dtype)
    return _replaced(made, twins)


def _replaced(body: tuple[Stmt, ...], names: Mapping[str, Expr]) -> tuple[Stmt, ...]:
    """The statements with other values for lets and accumulators, whose own definitions go."""

    def node(expr: Expr) -> Expr:
        while isinstance(expr, Ref) and expr.id in names:
            expr = names[expr.id]
        return expr

    def stmt(found: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(found, Let) and found.id in names:
            return ()
        if isinstance(found, Store) and found.absorb and found.buffer in names:
            return ()
        if isinstance(found, Loop) and any(a.id in names for a in found.accs):
            accs = tuple(a for a in found.accs if a.id not in names)
            return Loop(found.dims, found.body, found.order, accs, found.where, span=found.span)
        return found

    return Mapper(expr=node, stmt=stmt).on_body(body)


__all__ = ["live", "without_pivot"]
