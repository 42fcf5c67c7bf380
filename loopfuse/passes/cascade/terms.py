"""What becomes of an accumulator whose terms read results of earlier folds, when it joins their loop.

*Defer*: an outer factor h(D) multiplies the accumulator after the loop. *Rescale*: an exponential is kept relative to
the running maximum m; where m moves, the partial value is multiplied by f(m.old - m.new). The maximum bounds the
argument, so that nothing overflows on the way. *Shifted moments*: differences from a result are taken from a pivot, the
first element's value, and the square of a difference from the mean is repaired by Chan's rule. *Bound of a sum*: the
maximum of g + h(D) is the maximum of g, plus h(D). The cases follow from the parts that `algebra` finds.

Note: where results are not finite. A running maximum of -inf is replaced by 0 in the argument of the exponential (an
element of -inf then gives 0, not NaN), and after the loop the value is NaN where the maximum stayed -inf, as in the
naive program; but not if no element took part, so that the condition for this is kept, or recorded by an accumulator
of its own. A pivot that is infinite or NaN is replaced by 0: the differences are then those of the naive program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from loopfuse.analysis.algebra import (
    RESULT,
    Centre,
    Inseparable,
    Part,
    Piece,
    Power,
    Terms,
    arithmetic,
    arms,
    evaluate,
    is_negation,
    is_number,
    number,
    over,
    plus,
    times,
)
from loopfuse.dtypes import BOOL, I64
from loopfuse.ir import Acc, Const, Expr, Let, Op, Ref, Select, Store
from loopfuse.ops import MONOIDS, OPS
from loopfuse.passes.cascade.shared import Offset, Shared, direction
from loopfuse.rewrite import children, expr_names, map_expr

Reader = Callable[[Acc], Expr]


@dataclass
class Rewritten:
    """An accumulator in its new loop: `lets` and `absorbs` stand where it absorbed; `value` is its final value, given
    how accumulators are read; `how` says what was done (nothing: the term is independent)."""

    accs: list[Acc] = field(default_factory=list)
    lets: list[Let] = field(default_factory=list)
    absorbs: list[Store] = field(default_factory=list)
    value: Callable[[Reader], Expr] | None = None
    how: list[str] = field(default_factory=list)
    rounds: bool = False


def is_sum(acc: Acc) -> bool:
    """Whether the accumulator adds floats."""
    return acc.dtype.is_float and OPS[MONOIDS[acc.monoid].op].arithmetic == "sum"


class Rewriter:
    """Rewrites the accumulators of one fold for the loop that it joins."""

    def __init__(self, terms: Terms, shared: Shared, strict: bool) -> None:
        self.terms, self.shared, self.strict = terms, shared, strict

    def rewrite(self, acc: Acc, store: Store) -> Rewritten:
        """The accumulator as part of the common loop.

        Raises:
            Inseparable: its term cannot be taken apart, or not without loss.
        """
        made = Rewritten()
        if store.at is not None and self.terms.side(store.at) & RESULT:
            raise Inseparable(store.at, "which is a position")
        if not self.terms.side(store.value) & RESULT:
            made.accs, made.absorbs = [acc], [store]
            return made
        if acc.repair is not None:
            raise Inseparable(store.value, "and follows another accumulator already")
        if direction(acc):
            self._bound(acc, store, made)
        elif is_sum(acc):
            parts = self.terms.split(store.value)
            if acc.shape and (len(parts) > 1 or any(p.centres for p in parts)):
                raise Inseparable(store.value, "where several arrays would have to be summed in place of one")
            for part in parts:
                self._part(acc, store, part, len(parts) == 1, made)
        else:
            raise Inseparable(store.value, f"and a {MONOIDS[acc.monoid].name} cannot be taken of its parts")
        return made

    def _inexact(self, node: Expr, what: str) -> None:
        if self.strict:
            raise Inseparable(node, f"and {what} changes rounding, which `numerics strict` forbids")

    def _absorb(self, made: Rewritten, acc: Acc, value: Expr, store: Store) -> None:
        made.accs.append(acc)
        subs, modes = (store.subs, store.modes) if acc.shape else ((), ())
        made.absorbs.append(Store(acc.id, subs, value, True, None, modes, span=store.span))

    # -- bounds of sums -----------------------------------------------------------------------------------------------

    def _bound(self, acc: Acc, store: Store, made: Rewritten) -> None:
        node = store.value
        while isinstance(node, Ref) and node.id in self.terms.lets:
            node = self.terms.lets[node.id]
        kind = arithmetic(node)
        if kind not in ("sum", "difference") or not isinstance(node, Op):
            raise Inseparable(node, "which is no sum of a function of the element and one of the {result}")
        a, b = node.args
        sides = [self.terms.side(x) for x in (a, b)]
        if sides.count(RESULT) != 1 or 3 in sides:
            raise Inseparable(node, "which is no sum of a function of the element and one of the {result}")
        first = sides[0] != RESULT
        element, result = (a, b) if first else (b, a)
        flipped = not first and kind == "difference"
        monoid = _opposite(acc) if flipped else acc.monoid
        inner = Acc(acc.id, monoid, acc.dtype, acc.shape, span=acc.span)
        self._absorb(made, inner, element, store)
        ends = 1 if direction(acc) > 0 else -1
        far = number(float("-inf") * (direction(inner)), acc.dtype)
        reach = number(float("inf") * ends * (1 if first is False or kind == "sum" else -1), acc.dtype)
        lost = Acc(self.shared.fresh(acc.id), "any", BOOL, acc.shape)
        self._absorb(made, lost, Op("eq", (element, far), BOOL), store)
        ran = self.shared.executed()
        nan, start = number(float("nan"), acc.dtype), number(float("-inf") * direction(acc), acc.dtype)

        def value(read: Reader) -> Expr:
            args = (read(inner), result) if first else (result, read(inner))
            meet = Op("and", (Op("eq", (result, reach), BOOL), read(lost)), BOOL)
            whole: Expr = Select(meet, nan, replace(node, args=args))
            return whole if ran is None else Select(ran, whole, start)

        made.value = value
        made.how.append("the result of the earlier fold is added to it after the loop")

    # -- parts of sums ------------------------------------------------------------------------------------------------

    def _part(self, acc: Acc, store: Store, part: Part, alone: bool, made: Rewritten) -> None:
        """Add the accumulators and the final value of a summand."""
        mine = acc if alone else replace(acc, id=self.shared.fresh(acc.id))
        if len(part.centres) == 2:
            value = self._square(mine, store, part, made)
        elif part.centres:
            value = self._difference(mine, store, part, made)
        elif part.powers:
            value = self._exponential(mine, store, part, made)
        else:
            value = self._plain(mine, store, part, part.expr, made)
        before = made.value
        if before is None:
            made.value = value
        else:
            first = before
            made.value = lambda read: plus(first(read), value(read))

    def _plain(self, acc: Acc, store: Store, part: Part, expr: Expr | None, made: Rewritten,
               outer: tuple[tuple[Expr, bool], ...] = (), hole: Expr | None = None) -> Callable[[Reader], Expr]:  # fmt: skip
        """An accumulator of `expr`; the outer factors multiply it after the loop, and where `hole` holds it is NaN."""
        outer = part.outer + outer
        if outer:
            self._inexact(store.value, "to multiply after the sum")
            made.rounds = True
            made.how.append("factors that depend on results of earlier folds multiply it after the loop")
        self._absorb(made, acc, number(1, acc.dtype) if expr is None else expr, store)
        some = self._took_part(acc, store, part, made) if outer or hole is not None else None
        ran = self.shared.executed() if part.wide or part.open else None

        def value(read: Reader) -> Expr:
            found = read(acc)
            counted = some(read) if some is not None else None
            done = ran if part.wide else counted
            if hole is not None and not any(self._nan_where(factor, hole) for factor, _ in outer):
                took = ran if part.open else counted
                lost = hole if took is None or (outer and took == done) else Op("and", (took, hole), BOOL)
                found = Select(lost, number(float("nan"), acc.dtype), found)
            for factor, divides in outer:
                found = over(found, factor) if divides else times(found, factor) or found
            return found if done is None or not outer else Select(done, found, number(0, acc.dtype))

        return value

    def _nan_where(self, factor: Expr, hole: Expr) -> bool:
        """Whether a factor is NaN wherever the condition holds, and so makes the product NaN."""
        value = self.terms.lets.get(factor.id) if isinstance(factor, Ref) else None
        if not isinstance(value, Select) or not isinstance(value.then, Const):
            return False
        return value.then == number(float("nan"), value.dtype) and hole in (value.cond, *children(value.cond))

    def _took_part(self, acc: Acc, store: Store, part: Part, made: Rewritten) -> Callable[[Reader], Expr] | None:
        """Whether any element took part in the sum; None where one surely did."""
        if not part.conds or (part.open and part.wide):
            ran = self.shared.executed()
            return None if ran is None else lambda read: ran
        some = Acc(self.shared.fresh(acc.id), "any", BOOL, acc.shape)
        cond = part.conds[0]
        for more in part.conds[1:]:
            cond = Op("and", (cond, more), BOOL)
        self._absorb(made, some, cond, store)
        return lambda read: read(some)

    # -- exponentials -------------------------------------------------------------------------------------------------

    def _exponential(self, acc: Acc, store: Store, part: Part, made: Rewritten) -> Callable[[Reader], Expr]:
        power = part.powers[0]
        conds = () if part.open else part.conds
        peak, rest = self._peak(power, conds)
        if any(self._peak(other, conds)[0] is None for other in part.powers[1:]):
            peak = None
        if peak is None:
            raise Inseparable(power.node, "which may overflow: the {result} is no bound of its argument")
        piece, source, guarded = peak
        pole = number(float("-inf") * direction(source), source.dtype)
        whole = self.shared.over_accs(piece.value)
        running: Expr = self.shared.inside(piece.value)
        if guarded:
            running = Select(Op("eq", (running, pole), BOOL), number(0, running.dtype), running)
        table: dict[Expr, Expr] = {}
        for each in part.powers:
            assert isinstance(each.node, Op)
            written = self.terms.open(each.node.args[0])
            argument = swap(written, {piece.value: running})
            if rest or argument == written != running:
                argument = _sum_of([*each.element, replace(piece, value=running)])
            value = Op(each.node.op, (argument,), each.node.dtype, span=each.node.span)
            if part.lazy:
                table[each.node] = value
            else:
                name = self.shared.fresh("p")
                made.lets.append(Let(name, value, span=each.node.span))
                table[each.node] = Ref(name, value.dtype)
        assert part.expr is not None
        old, new = (_renamed(whole, when) for when in ("old", "new"))
        change = (replace(piece, value=old), replace(piece, value=new, sign=-piece.sign))
        node = power.node
        assert isinstance(node, Op)
        moved = Op(node.op, (_sum_of([replace(c, sign=-c.sign) for c in change]),), node.dtype)
        mine = Ref("self", acc.dtype)
        if node.dtype != acc.dtype:
            raise Inseparable(node, f"which is {node.dtype} and summed in {acc.dtype}")
        scaled = Op(power.law.image, (mine, moved), acc.dtype)
        moves: Expr = Op("ne", (old, new), BOOL)
        if whole != Ref(source.id, source.dtype):  # a bound that is clamped at the pole may fall when it leaves it
            started = Op("ne", (_renamed(Ref(source.id, source.dtype), "old"), pole), BOOL)
            moves = Op("and", (moves, started), BOOL)
        repaired = replace(acc, repair=Select(moves, scaled, mine))
        hole = Op("eq", (Ref(source.id, source.dtype), pole), BOOL) if guarded else None
        made.how.append(f"it is kept relative to the running {MONOIDS[source.monoid].name}")
        made.rounds = True
        return self._plain(repaired, store, part, swap(part.expr, table), made,
                           tuple(_factor(power, p) for p in rest), hole)  # fmt: skip

    def _peak(self, power: Power, conds: tuple[Expr, ...]) -> tuple[tuple[Piece, Acc, bool] | None, list[Piece]]:
        """The piece of a result that bounds the argument, the accumulator that it follows, whether it can be at the
        pole; and the other pieces."""
        found: tuple[Piece, Acc, bool] | None = None
        rest: list[Piece] = []
        todo = list(power.result)
        while todo:
            piece = todo.pop(0)
            source = self._follows(piece.value)
            if source is not None and found is None and self._bounded(power, piece, source[0], conds):
                found = piece, *source
                continue
            value = piece.value
            while isinstance(value, Ref) and value.id in self.terms.lets:
                value = self.terms.lets[value.id]
            kind = arithmetic(value)
            if isinstance(value, Op) and kind in ("sum", "difference"):
                second = -piece.sign if kind == "difference" else piece.sign
                todo = [replace(piece, value=value.args[0]), replace(piece, value=value.args[1], sign=second), *todo]
            elif isinstance(value, Op) and is_negation(value):
                todo.insert(0, replace(piece, value=value.args[0], sign=-piece.sign))
            elif self.terms.side(value) == RESULT:
                inner = isinstance(value, Op) and isinstance(power.node, Op) and value.op == OPS[power.node.op].inverse
                rest.append(replace(piece, value=value) if inner else piece)
        return found, rest

    def _follows(self, value: Expr) -> tuple[Acc, bool] | None:
        """The maximum or minimum that a result equals, but for a constant put in where it is not finite; and whether
        the result can then be the pole."""
        whole = self.terms.expand(value)
        if isinstance(whole, Ref):
            acc = self.shared.earlier.get(whole.id)
            return (acc, True) if acc is not None and direction(acc) and not acc.shape else None
        choice = arms(whole) if whole is not None else None
        if choice is None:
            return None
        cond, then, other = choice
        ref, fallback = (then, other) if isinstance(other, Const) else (other, then)
        if not (isinstance(ref, Ref) and isinstance(fallback, Const)):
            return None
        found = self._follows(ref)
        if found is None or expr_names(cond).all != {found[0].id}:
            return None
        at_pole = evaluate(cond, {ref.id: ref.dtype.numpy.type(float("-inf") * direction(found[0]))})
        takes = then if at_pole else other
        return (found[0], takes is ref) if at_pole is not None else None

    def _bounded(self, power: Power, piece: Piece, source: Acc, conds: tuple[Expr, ...]) -> bool:
        """Whether the argument is greatest, and the same for all elements, where the element is the maximum's."""
        sign = piece.sign * direction(source)
        for factor, _ in piece.scale:
            whole = self.terms.expand(factor)
            if not isinstance(whole, Const) or is_number(whole, 0):
                return False
            sign = sign if not whole.bits >> (whole.dtype.bits - 1) else -sign
        if sign != -1:
            return False
        for candidate in self.shared.bounds(source, conds):
            total = self.terms.monomials([*power.element, replace(piece, value=candidate)])
            if total is not None and not total:
                return True
        return False

    # -- moments ------------------------------------------------------------------------------------------------------

    def _difference(self, acc: Acc, store: Store, part: Part, made: Rewritten) -> Callable[[Reader], Expr]:
        """A sum of (x - D) w: that of (x - c) w, less D - c times the sum of w."""
        self._inexact(store.value, "to sum differences from a pivot")
        centre = part.centres[0]
        pivot = self.shared.pivot(centre.element)
        assert part.expr is not None
        shifted = swap(part.expr, {centre.node: _signed(plus(centre.element, pivot, True), centre.sign)})
        weight = swap(part.expr, {centre.node: number(centre.sign, acc.dtype)})
        weights = replace(acc, id=self.shared.fresh(acc.id))
        self._absorb(made, weights, weight, store)
        made.how.append("it is summed about a pivot")
        made.rounds = True
        inner = self._plain(acc, store, replace(part, outer=()), shifted, made)
        endless = Op("isinf", (centre.result,), BOOL) if self._of_same(centre) else None

        def raw(read: Reader) -> Expr:
            shift = plus(centre.result, pivot, True)
            whole = plus(inner(read), times(shift, read(weights)) or shift, True)
            return whole if endless is None else Select(endless, number(float("nan"), acc.dtype), whole)

        return self._times(acc, store, part, raw, made)

    def _of_same(self, centre: Centre) -> bool:
        """Whether the result is made of the same elements: where it is infinite, one of the differences is NaN."""
        whole, mine = self.terms.expand(centre.result), self.terms.expand(centre.element)
        names = expr_names(whole).values if whole is not None else frozenset()
        known = [e for n in names for e in self.shared.absorbed.get(n, [])]
        return any(self.terms.expand(e) == mine for e in known) or self.shared.known(whole, centre.element) is not None

    def _times(self, acc: Acc, store: Store, part: Part, raw: Callable[[Reader], Expr],
               made: Rewritten) -> Callable[[Reader], Expr]:  # fmt: skip
        """The value with the outer factors of the part."""
        some = self._took_part(acc, store, part, made)
        if part.wide:
            ran = self.shared.executed()
            some = None if ran is None else lambda read: ran

        def value(read: Reader) -> Expr:
            found = raw(read)
            for factor, divides in part.outer:
                found = over(found, factor) if divides else times(found, factor) or found
            return found if some is None else Select(some(read), found, number(0, acc.dtype))

        return value

    def _square(self, acc: Acc, store: Store, part: Part, made: Rewritten) -> Callable[[Reader], Expr]:
        """A sum of (x - mean x) (y - mean y), by Chan's rule."""
        self._inexact(store.value, "to merge squares of deviations")
        a, b = part.centres
        wanted = times(a.node, b.node)
        if part.expr != wanted or part.lazy:
            raise Inseparable(store.value, "and squares of deviations are merged only where all weigh the same")
        offsets = [self._mean(c) for c in (a, b)]
        count = self.shared.count()
        deviations, moves = [], []
        for centre, offset in zip((a, b), offsets, strict=True):
            n: Expr = Op("cast", (Ref(count.id, I64),), offset.dtype)
            name, at = self.shared.fresh("d"), self.shared.fresh("mu")
            here = Ref(offset.shifted, offset.dtype)
            made.lets.append(Let(at, over(Ref(offset.acc, offset.dtype), n)))
            made.lets.append(Let(name, plus(here, Ref(at, offset.dtype), True), span=centre.node.span))
            deviations.append(_signed(Ref(name, offset.dtype), centre.sign))
            old, new = (
                over(Ref(f"{offset.acc}.{when}", offset.dtype),
                     Op("cast", (Ref(f"{count.id}.{when}", I64),), offset.dtype)) for when in ("old", "new")
            )  # fmt: skip
            moves.append(_signed(plus(old, new, True), centre.sign))
            if a == b:
                deviations, moves = deviations * 2, moves * 2
                break
        mine, before = Ref("self", acc.dtype), Ref(f"{count.id}.old", I64)
        weight = Op("cast", (before,), acc.dtype)
        square = Op("mul", (moves[0], moves[1]), acc.dtype)
        chan = plus(mine, Op("mul", (weight, square), acc.dtype))
        repair = Select(Op("ne", (before, number(0, I64)), BOOL), chan, mine)
        made.how.append("it is merged as a moment about the mean, from a pivot")
        made.rounds = True
        term = Op("mul", (deviations[0], deviations[1]), acc.dtype, span=store.value.span)
        return self._plain(replace(acc, repair=repair), store, part, term, made)

    def _mean(self, centre: Centre) -> Offset:
        """The sum of which the centre's result is the mean, about a pivot."""
        whole = self.terms.expand(centre.result)
        wrong = Inseparable(centre.node, "which is no deviation from the mean of the same elements")
        kind = arithmetic(whole) if whole is not None else None
        if not isinstance(whole, Op) or kind not in ("quotient", "product"):
            raise wrong
        if not self.shared.counts(whole.args[1], inverse=kind == "product"):
            raise wrong
        known = self.shared.known(whole.args[0], centre.element)
        if known is not None:
            return known
        source = self.shared.earlier.get(whole.args[0].id) if isinstance(whole.args[0], Ref) else None
        if source is None or source.shape or not is_sum(source):
            raise wrong
        absorbed = self.shared.absorbed.get(source.id, [])
        mine = self.terms.expand(centre.element)
        if len(absorbed) != 1 or mine is None or self.terms.expand(absorbed[0]) != mine:
            raise wrong
        return self.shared.offset(source.id)


# -- small things -----------------------------------------------------------------------------------------------------


def _opposite(acc: Acc) -> str:
    """The monoid that negation turns this one into: a minimum for a maximum."""
    op = MONOIDS[acc.monoid].op
    for row in OPS.values():
        for law in row.homomorphisms:
            if law.source == op and is_negation(Op(row.name, (Ref("", acc.dtype),), acc.dtype)):
                return next(m.name for m in MONOIDS.values() if m.op == law.image and not m.positional)
    raise Inseparable(Ref(acc.id, acc.dtype), "whose order cannot be turned round")


def _signed(expr: Expr, sign: int) -> Expr:
    return expr if sign > 0 else Op("neg", (expr,), expr.dtype)


def _scaled(piece: Piece) -> Expr:
    value = piece.value
    for factor, inverse in piece.scale:
        value = over(value, factor) if inverse else Op("mul", (value, factor), value.dtype)
    return value


def _sum_of(pieces: list[Piece]) -> Expr:
    """The sum of signed pieces, one that is added first; a scale that all share is applied to their sum."""
    first = pieces[0].scale
    shared = first if first and all(p.scale == first for p in pieces) else ()
    if shared:
        return _scaled(Piece(1, _sum_of([replace(p, scale=()) for p in pieces]), shared))
    ordered = sorted(pieces, key=lambda p: -p.sign)
    total = _signed(_scaled(ordered[0]), ordered[0].sign)
    for piece in ordered[1:]:
        total = plus(total, _scaled(piece), piece.sign < 0)
    return total


def _factor(power: Power, piece: Piece) -> tuple[Expr, bool]:
    """The factor that a piece of the argument is outside: f(piece), or what it is the inverse function of."""
    node = power.node
    assert isinstance(node, Op)
    if not piece.scale and isinstance(piece.value, Op) and OPS[node.op].inverse == piece.value.op:
        return piece.value.args[0], piece.sign < 0
    return Op(node.op, (_scaled(piece),), node.dtype), piece.sign < 0


def _renamed(expr: Expr, when: Literal["old", "new"]) -> Expr:
    return map_expr(expr, lambda n: replace(n, id=f"{n.id}.{when}") if isinstance(n, Ref) else n)


def swap(expr: Expr, table: dict[Expr, Expr]) -> Expr:
    """The expression with nodes replaced by equal ones of a table, and products by one left out."""

    def one(node: Expr) -> Expr:
        found = table.get(node)
        if found is not None:
            return found
        if isinstance(node, Op) and arithmetic(node) == "product":
            return times(node.args[0], node.args[1], node) or number(1, node.dtype)
        return node

    return map_expr(expr, one)
