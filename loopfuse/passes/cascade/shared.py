"""What the accumulators of a common loop share: the accumulators before them, a count, pivots, the first element."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loopfuse.analysis.algebra import RESULT, Inseparable, Terms, arms, is_number, number, plus
from loopfuse.constants import to_number
from loopfuse.dtypes import BOOL, F64, I64, DType
from loopfuse.ir import Acc, Affine, Const, Expr, Let, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.ops import MONOIDS, OPS
from loopfuse.rewrite import Substitution, binders, expr_names, free_names, map_expr, rename, walk
from loopfuse.sizes import ONE, Poly


def direction(acc: Acc) -> int:
    """1 for a maximum, -1 for a minimum of floats, 0 for any other accumulator."""
    row = OPS[MONOIDS[acc.monoid].op]
    if MONOIDS[acc.monoid].positional or not acc.dtype.is_float or not row.law("idempotent", acc.dtype):
        return 0
    return 1 if float(row.evaluate((np.asarray(1.0), np.asarray(2.0)), F64)) == 2 else -1


@dataclass(frozen=True, slots=True)
class Offset:
    """A sum taken about a pivot: the accumulator that replaces it, and the let that holds the element's offset."""

    acc: str
    shifted: str
    pivot: Ref
    dtype: DType


@dataclass
class Shared:
    """The loop under construction.

    `loop` is the earlier fold, whose dims all agree on; `earlier` are its accumulators, `absorbed` what they absorb
    once an iteration; `inner` are the statements of the common body from which elements are computed. What is asked
    for is collected: `accs` and `absorbs` join the loop, `heads` open the part of the later fold, `pre` come before
    the loop, `offsets` replace sums of the earlier fold.
    """

    loop: Loop
    terms: Terms
    fresh: Callable[[str], str]
    proved: Callable[[Poly], bool]
    inner: tuple[Stmt, ...]
    earlier: dict[str, Acc] = field(default_factory=dict)
    absorbed: dict[str, list[Expr]] = field(default_factory=dict)
    accs: list[Acc] = field(default_factory=list)
    absorbs: list[Store] = field(default_factory=list)
    heads: list[Let] = field(default_factory=list)
    pre: list[Stmt] = field(default_factory=list)
    offsets: dict[str, Offset] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()  # sums with an offset that are wanted themselves, and kept beside it
    copies: dict[str, Ref] = field(default_factory=dict)
    pivots: dict[Expr, Ref] = field(default_factory=dict)
    ran: Expr | None = None

    # -- iterations ---------------------------------------------------------------------------------------------------

    def executed(self) -> Expr | None:
        """A condition that holds after the loop where it had an iteration; None where it always has one."""
        mine = {d.id for d in self.loop.dims}
        gaps = [h - low for d in self.loop.dims for h in d.hi for low in d.lo]
        if self.loop.where is None and not any(g.names & mine for g in gaps):
            open_gaps = [g for g in gaps if not self.proved(g - 1)]
            cond: Expr | None = None
            for gap in open_gaps:
                more = Op("gt", (Affine(gap), Affine(Poly.of(0))), BOOL)
                cond = more if cond is None else Op("and", (cond, more), BOOL)
            return cond
        if self.ran is None:
            acc = Acc(self.fresh("ran"), "any", BOOL)
            self.accs.append(acc)
            self.absorbs.append(Store(acc.id, (), number(1, BOOL), True))
            self.ran = Ref(acc.id, BOOL)
        return self.ran

    def counter(self) -> Acc | None:
        """The accumulator that counts iterations, if there is one."""
        for acc in (*self.earlier.values(), *self.accs):
            terms = self.absorbed.get(acc.id, [])
            if acc.dtype == I64 and MONOIDS[acc.monoid].name == "sum" and len(terms) == 1 and is_number(terms[0], 1):
                return acc
        return None

    def count(self) -> Acc:
        """The accumulator that counts iterations."""
        known = self.counter()
        if known is not None:
            return known
        acc = Acc(self.fresh("n"), "sum", I64)
        self.accs.append(acc)
        self.absorbs.append(Store(acc.id, (), number(1, I64), True))
        self.absorbed[acc.id] = [number(1, I64)]
        return acc

    def counts(self, expr: Expr, inverse: bool) -> bool:
        """Whether a free expression is the number of iterations as a float, or its exact inverse."""
        extent = ONE
        for dim in self.loop.dims:
            if len(dim.lo) != 1 or len(dim.hi) != 1 or dim.step != ONE:
                return False
            extent = extent * (dim.hi[0] - dim.lo[0])
        if self.loop.where is not None or extent.names & {d.id for d in self.loop.dims}:
            return False
        if isinstance(expr, Const):
            value = float(to_number(expr.bits, expr.dtype))
            return extent.is_const and (value * extent.constant == 1.0 if inverse else value == extent.constant)
        while isinstance(expr, Op) and OPS[expr.op].gives == "explicit":
            expr = expr.args[0]
        return not inverse and isinstance(expr, Affine) and self.proved_equal(expr.poly, extent)

    def proved_equal(self, a: Poly, b: Poly) -> bool:
        """Whether two polynomials are the same number."""
        return a == b or (self.proved(a - b) and self.proved(b - a))

    # -- bounds -------------------------------------------------------------------------------------------------------

    def bounds(self, acc: Acc, conds: tuple[Expr, ...]) -> Iterator[Expr]:
        """Expressions of the element that a maximum (minimum) is never below (above) in an iteration where the
        conditions hold."""
        op, todo = MONOIDS[acc.monoid].op, list(self.absorbed.get(acc.id, []))
        start = float("-inf") * direction(acc)
        while todo:
            expr = todo.pop()
            yield expr
            while isinstance(expr, Ref) and expr.id in self.terms.lets:
                expr = self.terms.lets[expr.id]
            choice = arms(expr)
            if isinstance(expr, Op) and expr.op == op:
                todo += expr.args
            elif choice is not None and choice[0] in conds and is_number(choice[2], start):
                todo.append(choice[1])

    # -- results ------------------------------------------------------------------------------------------------------

    def over_accs(self, value: Expr) -> Expr:
        """A result as an expression over scalar accumulators of the loop and constants, as a repair may hold."""
        whole = self.terms.expand(value)
        if whole is None:
            raise Inseparable(value, "and the term is too long to take apart")
        names = expr_names(whole)
        if names.loads or not names.values <= {a.id for a in self.earlier.values() if not a.shape}:
            raise Inseparable(value, "which a repair cannot compute")
        return whole

    def inside(self, value: Expr) -> Expr:
        """A result as the loop's body may name it: lets from after the earlier fold are computed again."""

        def one(node: Expr) -> Expr:
            if not isinstance(node, Ref) or node.id in self.earlier or not self.terms.side(node) & RESULT:
                return node
            if node.id not in self.copies:
                if node.id not in self.terms.lets:
                    raise Inseparable(value, "which is known only after another loop")
                made = Ref(self.fresh(node.id), node.dtype)
                self.heads.append(Let(made.id, self.inside(self.terms.lets[node.id])))
                self.copies[node.id] = made
            return self.copies[node.id]

        return map_expr(value, one)

    # -- the first element --------------------------------------------------------------------------------------------

    def pivot(self, element: Expr) -> Ref:
        """The value of an element in the first iteration, or 0 where that is not finite; computed before the loop."""
        whole = self.terms.expand(element) or element
        if whole in self.pivots:
            return self.pivots[whole]
        any_at_all = self.executed()
        if any_at_all is self.ran is not None or any(len(d.lo) != 1 for d in self.loop.dims):
            raise Inseparable(element, "and there may be no first element to measure from")
        needed = _slice(self.inner, element)
        stored = {s.buffer for s in walk(self.inner) if isinstance(s, Store) and not s.absorb}
        known = list(dict.fromkeys(n for t in walk(needed) for n in binders(t)))
        used = expr_names(element).all | free_names(needed).all
        if used & stored:
            raise Inseparable(element, "and the loop itself stores what the element is made of")
        inside = {n for s in self.inner if isinstance(s, Loop) for t in walk((s,)) for n in binders(t)}
        inside -= {a.id for s in self.inner if isinstance(s, Loop) for a in s.accs}
        if expr_names(element).all & inside:
            raise Inseparable(element, "which varies along another loop, too")
        names = {n: self.fresh(n) for n in known}
        starts: dict[str, Poly] = {}
        for dim in self.loop.dims:
            starts[dim.id] = dim.lo[0].subs(starts)
        dtype = element.dtype
        if isinstance(element, Ref) and element.id in names:
            body, at = rename(needed, names), Ref(names[element.id], dtype)
        else:
            at = Ref(self.fresh("c"), dtype)
            body = rename((*needed, Let(at.id, element)), names)
        if any_at_all is not None:
            body = tuple(_guarded(s, any_at_all) for s in body)
        self.pre += Substitution(indices=starts).body(body)
        name = self.fresh("c")
        finite = Op("isfinite", (at,), BOOL)
        self.pre.append(Let(name, Select(finite, at, number(0, dtype))))
        self.pivots[whole] = Ref(name, dtype)
        return self.pivots[whole]

    def offset(self, source: str) -> Offset:
        """The sum of that name of the earlier fold, taken about a pivot instead."""
        if source not in self.offsets:
            acc, element = self.earlier[source], self.absorbed[source][0]
            if source in free_names(self.loop.body).values or any(
                a.repair is not None and f"{source}.old" in expr_names(a.repair).values for a in self.loop.accs
            ):
                raise Inseparable(element, "and the sum is read while it runs")
            pivot = self.pivot(element)
            self.offsets[source] = Offset(self.fresh(source), self.fresh("d"), pivot, acc.dtype)
        return self.offsets[source]

    def known(self, whole: Expr | None, element: Expr) -> Offset | None:
        """The sum about a pivot that a value is, where an earlier cascade has made one of the element's."""
        if isinstance(whole, Ref):
            return self.beside(whole, element)
        if whole is None or not isinstance(whole, Op) or OPS[whole.op].arithmetic not in ("sum", "quotient"):
            return None
        if OPS[whole.op].arithmetic == "quotient":
            return self.known(whole.args[0], element)
        source = whole.args[0]
        terms = self.absorbed.get(source.id, []) if isinstance(source, Ref) else []
        if not isinstance(source, Ref) or len(terms) != 1 or not isinstance(terms[0], Ref):
            return None
        made = self.terms.lets.get(terms[0].id)
        if not isinstance(made, Op) or OPS[made.op].arithmetic != "difference" or self.terms.side(made.args[1]):
            return None
        pivot, count = made.args[1], self.counter()
        if count is None:
            return None
        n = Op("cast", (Ref(count.id, I64),), source.dtype)
        back = plus(source, Op("mul", (n, pivot), source.dtype))
        mine = self.terms.expand(element)
        if not isinstance(pivot, Ref) or whole != self.terms.expand(back) or self.terms.expand(made.args[0]) != mine:
            return None
        return Offset(source.id, terms[0].id, pivot, source.dtype)

    def beside(self, source: Ref, element: Expr) -> Offset | None:
        """The sum about a pivot that stands beside a sum of the element."""
        mine, terms = self.terms.expand(element), self.absorbed.get(source.id, [])
        if len(terms) != 1 or self.terms.expand(terms[0]) != mine or self.counter() is None:
            return None
        for acc in self.earlier.values():
            shifted = self.absorbed.get(acc.id, [])
            if acc.shape or acc.dtype != source.dtype or len(shifted) != 1 or not isinstance(shifted[0], Ref):
                continue
            made = self.terms.lets.get(shifted[0].id)
            if not isinstance(made, Op) or OPS[made.op].arithmetic != "difference" or self.terms.side(made.args[1]):
                continue
            if isinstance(made.args[1], Ref) and self.terms.expand(made.args[0]) == mine and acc.monoid == "sum":
                return Offset(acc.id, shifted[0].id, made.args[1], acc.dtype)
        return None

    def shift(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        """The earlier fold's statements, with the sums that have offsets replaced."""
        for stmt in body:
            offset = self.offsets.get(stmt.buffer) if isinstance(stmt, Store) and stmt.absorb else None
            if offset is None or not isinstance(stmt, Store):
                yield stmt
                continue
            if stmt.buffer in self.plain:
                yield stmt
            yield Let(offset.shifted, plus(stmt.value, offset.pivot, True), span=stmt.span)
            yield replace(stmt, buffer=offset.acc, value=Ref(offset.shifted, offset.dtype))

    def shifted_accs(self) -> Iterator[Acc]:
        """The earlier fold's accumulators, likewise."""
        for acc in self.loop.accs:
            offset = self.offsets.get(acc.id)
            if offset is None or acc.id in self.plain:
                yield acc
            if offset is not None:
                yield replace(acc, id=offset.acc)

    def sums(self) -> Iterator[tuple[str, Expr]]:
        """The values of the sums that were replaced."""
        for name, offset in self.offsets.items():
            if name in self.plain:
                continue
            n = Op("cast", (Ref(self.count().id, I64),), offset.dtype)
            yield name, plus(Ref(offset.acc, offset.dtype), Op("mul", (n, offset.pivot), offset.dtype))


def _guarded(stmt: Stmt, cond: Expr) -> Stmt:
    """A let or an inner fold that reads only where the condition holds, and is zero elsewhere."""
    if isinstance(stmt, Loop):
        where = cond if stmt.where is None else Op("and", (cond, stmt.where), BOOL)
        return replace(stmt, where=where)
    if isinstance(stmt, Let) and expr_names(stmt.value).loads:
        return replace(stmt, value=Select(cond, stmt.value, number(0, stmt.value.dtype)))
    return stmt


def _slice(body: tuple[Stmt, ...], root: Expr) -> tuple[Stmt, ...]:
    """The statements of a body that an expression needs: lets, and inner folds without their stores."""
    needed = set(expr_names(root).all)
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if not needed.intersection(binders(stmt)) or isinstance(stmt, Store):
            continue
        if isinstance(stmt, Loop):
            stmt = _absorbing(stmt, needed)
        kept.append(stmt)
        needed |= free_names((stmt,)).all
    return tuple(reversed(kept))


def _absorbing(loop: Loop, needed: set[str]) -> Loop:
    """A fold with its stores, and accumulators that are not needed, left out."""
    accs = tuple(a for a in loop.accs if a.id in needed or any(b.repair is not None for b in loop.accs))
    kept = {a.id for a in accs}

    def prune(body: tuple[Stmt, ...], known: frozenset[str]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Store):
                if stmt.absorb and stmt.buffer in known:
                    made.append(stmt)
            elif isinstance(stmt, Loop):
                made.append(replace(stmt, body=prune(stmt.body, known | {a.id for a in stmt.accs})))
            else:
                made.append(stmt)
        return tuple(made)

    return replace(loop, accs=accs, body=prune(loop.body, frozenset(kept)))


def wanted(between: Sequence[Stmt], rest: Sequence[Stmt]) -> set[str]:
    """The names that statements need, directly or through the lets that stand before them."""
    needed = set(free_names(rest).all)
    for stmt in reversed(between):
        if not isinstance(stmt, Let) or stmt.id in needed:
            needed |= free_names((stmt,)).all
    return needed
