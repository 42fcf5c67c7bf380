"""Joining two folds of one block into one loop.

The later fold's statements follow the earlier fold's in a common body. What stands between the two goes before the
loop where it does not depend on the earlier fold, and after it otherwise. Loads of what the body has just stored become
references; statements that both folds compute alike are computed once. Stores that depend on results go to a loop of
their own, after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from loopfuse.analysis.algebra import ELEMENT, FREE, RESULT, Inseparable, Terms
from loopfuse.analysis.env import Env
from loopfuse.ir import Acc, Affine, Const, Expr, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.passes.cascade import afterwards
from loopfuse.passes.cascade.shared import Shared, wanted
from loopfuse.passes.cascade.terms import Rewriter, Rewritten
from loopfuse.prove import Facts
from loopfuse.rewrite import (
    Mapper,
    Substitution,
    binders,
    expr_names,
    exprs,
    free_names,
    polys,
    rename,
    subexprs,
    walk,
)
from loopfuse.sizes import Poly


@dataclass(frozen=True, slots=True)
class Joined:
    """The block after two folds became one; `how` says what was done to each accumulator of the later one."""

    stmts: tuple[Stmt, ...]
    how: tuple[tuple[Acc, str], ...]
    rounds: bool


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why two folds stay apart: the accumulator and the part of its term at fault, and the reason in words."""

    acc: Acc
    node: Expr | None
    why: str
    earlier: Acc


def aligned(a: Loop, b: Loop) -> dict[str, str] | None:
    """The indices of `b` as those of `a`, where both loops iterate over the same places; else None."""
    if a.order != "par" or b.order != "par" or len(a.dims) != len(b.dims):
        return None
    names = {y.id: x.id for x, y in zip(a.dims, b.dims, strict=True)}
    table = {old: Poly.of(new) for old, new in names.items() if old != new}
    for x, y in zip(a.dims, b.dims, strict=True):
        lo, hi = ({p.subs(table) for p in bounds} for bounds in (y.lo, y.hi))
        if set(x.lo) != lo or set(x.hi) != hi or x.step != y.step:
            return None
    if (a.where is None) != (b.where is None):
        return None
    if a.where is not None and b.where is not None and Substitution(indices=table).expr(b.where) != a.where:
        return None
    return {old: new for old, new in names.items() if old != new}


def control(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that decide whether and where a loop or store acts."""
    if isinstance(stmt, Loop):
        where = () if stmt.where is None else (stmt.where,)
        return (*where, *(Affine(p) for p in polys(stmt)))
    return stmt.subs if isinstance(stmt, Store) else ()


@dataclass
class Joiner:
    """Joins two folds of a block; `around` are the loops around it."""

    env: Env
    around: tuple[Loop, ...]
    strict: bool
    facts: Facts | None = None
    sides: dict[str, int] = field(default_factory=dict)
    lets: dict[str, Expr] = field(default_factory=dict)

    def proved(self, poly: Poly) -> bool:
        """Whether a polynomial is never negative here."""
        if poly.is_const:
            return poly.constant >= 0
        if poly.names <= self.env.sizes.keys():
            return self.env.facts.nonneg(poly)
        return self.known().nonneg(poly)

    def known(self) -> Facts:
        """What holds around the block."""
        if self.facts is None:
            facts = self.env.facts
            for loop in self.around:
                for dim in loop.dims:
                    facts = facts.index(dim.id, dim.lo, dim.hi, dim.step)
            self.facts = facts
        return self.facts

    def join(self, stmts: tuple[Stmt, ...], first: int, second: int) -> Joined | Obstacle:
        """The block with the fold at `second` joined to the one at `first`."""
        a, b = stmts[first], stmts[second]
        assert isinstance(a, Loop) and isinstance(b, Loop)
        names = aligned(a, b)
        assert names is not None
        before, after, tainted = _part(stmts[first + 1 : second], a)
        self.sides, self.lets = {}, {}
        body = rename(b.body, names) if names else b.body
        own, body = self._forward(a, after, body)
        stuck = free_names(body).loads & (tainted - {acc.id for acc in a.accs})
        stuck -= {n for s in after for n in binders(s)}
        if stuck:
            name = _first(body, stuck)
            if name in free_names((a,)).stores:
                return Obstacle(b.accs[0], None, f"it reads other elements of `{name}` than the one at hand", a.accs[0])
            return Obstacle(b.accs[0], None, f"it reads `{name}`, which a loop between the two computes", a.accs[0])
        body = _common(own, body)
        terms = self._terms(a, own, after, body)
        shared = Shared(a, terms, self.env.fresh, self.proved, (*own, *body), {x.id: x for x in a.accs},
                        _absorbed(own, a.accs))  # fmt: skip
        try:
            return self._build(stmts, first, second, (before, after), own, body, shared)
        except _Stop as stop:
            return Obstacle(stop.acc, stop.node, stop.why, _source(stop.node, terms, a))

    # -- preparing ----------------------------------------------------------------------------------------------------

    def _forward(self, a: Loop, after: list[Stmt], body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """The two bodies, where loads of elements that the first one or the statements after it store are references."""
        wanted = {(n.buffer, n.subs) for s in walk(body) for e in exprs(s) for n in subexprs(e) if isinstance(n, Load)}
        known: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        own: list[Stmt] = []
        for stmt in a.body:
            if isinstance(stmt, Store) and not stmt.absorb and (stmt.buffer, stmt.subs) in wanted:
                if not isinstance(stmt.value, Ref | Const):
                    let = Let(self.env.fresh(stmt.buffer), stmt.value, span=stmt.span)
                    own.append(let)
                    stmt = replace(stmt, value=Ref(let.id, let.value.dtype))
                known[stmt.buffer, stmt.subs] = stmt.value
            own.append(stmt)
        for stmt in after:
            if isinstance(stmt, Store):
                known[stmt.buffer, stmt.subs] = stmt.value

        def on_expr(node: Expr) -> Expr:
            return known.get((node.buffer, node.subs), node) if isinstance(node, Load) else node

        return tuple(own), Mapper(on_expr).on_body(body) if known else body

    def _terms(self, a: Loop, own: tuple[Stmt, ...], after: list[Stmt], body: tuple[Stmt, ...]) -> Terms:
        """The sides of all names."""
        sides, lets = self.sides, self.lets
        terms = Terms(lets, sides)
        for acc in a.accs:
            sides[acc.id] = RESULT
        for dim in a.dims:
            sides[dim.id] = ELEMENT
        fixed = frozenset(acc.id for acc in a.accs)
        self._scan(own, terms, FREE, fixed)
        for stmt in after:
            for name in binders(stmt):
                sides[name] = RESULT
            if isinstance(stmt, Let):
                lets[stmt.id] = stmt.value
        self._scan(body, terms, FREE, fixed)
        terms.memo.clear()  # in an inner fold an accumulator may have been asked for too early
        self._scan(body, terms, FREE, fixed)
        terms.memo.clear()
        return terms

    def _scan(self, body: Iterable[Stmt], terms: Terms, around: int, fixed: frozenset[str]) -> None:
        """Learn the sides of what a body defines; no name may be asked for before its side is settled."""
        sides = self.sides
        for stmt in body:
            if isinstance(stmt, Let):
                sides[stmt.id] = terms.side(stmt.value) | around
                self.lets[stmt.id] = stmt.value
            elif isinstance(stmt, Store):
                if stmt.absorb and stmt.buffer not in fixed:
                    found = around | terms.side(stmt.value)
                    for sub in stmt.subs:
                        found |= terms.side(sub)
                    sides[stmt.buffer] = sides.get(stmt.buffer, FREE) | found
            else:
                inner = around
                for expr in control(stmt):
                    inner |= terms.side(expr) & RESULT
                for dim in stmt.dims:
                    sides[dim.id] = ELEMENT | inner
                for acc in stmt.accs:
                    sides[acc.id] = inner
                self._scan(stmt.body, terms, inner, fixed)

    # -- building -----------------------------------------------------------------------------------------------------

    def _build(self, stmts: tuple[Stmt, ...], first: int, second: int, between: tuple[list[Stmt], list[Stmt]],
               own: tuple[Stmt, ...], body: tuple[Stmt, ...], shared: Shared) -> Joined:  # fmt: skip
        a, b = stmts[first], stmts[second]
        assert isinstance(a, Loop) and isinstance(b, Loop)
        before, after = between
        made: dict[str, Rewritten] = {}
        rewriter = Rewriter(shared.terms, shared, self.strict)
        accs = {acc.id: acc for acc in b.accs}
        late: list[Store] = []
        kept, hoisted = self._body(body, accs, made, rewriter, late, ())
        assert not hoisted
        new_accs = [x for acc in b.accs for x in (made[acc.id].accs if acc.id in made else [acc])]
        rest: tuple[Stmt, ...] = (*self._late(b, late, body), *stmts[second + 1 :])
        shared.plain = frozenset(shared.offsets.keys() & wanted(after, rest))
        inner = (*shared.shift(own), *shared.absorbs, *shared.heads, *kept)
        merged = replace(a, accs=(*shared.shifted_accs(), *shared.accs, *new_accs), body=_used(inner))
        ends = [Let(self.env.fresh(name), value) for name, value in shared.sums()]
        replaced = [name for name in shared.offsets if name not in shared.plain]
        sums: dict[str, Expr] = {n: Ref(let.id, let.value.dtype) for n, let in zip(replaced, ends, strict=True)}
        finals, table, readers = self._values(accs, made, sums)
        rest = afterwards.reading(_substituted(rest, table), readers)
        pre = tuple(shared.pre)
        carried, names = afterwards.carried((*own, *body), self.sides, (*finals, *rest), self.env.fresh)
        if names is None:
            acc = b.accs[0]
            raise _Stop(acc, Ref(acc.id, acc.dtype), "which follows a fold inside the loop")
        if names:
            finals, rest = [s for s in rename(tuple(finals), names) if isinstance(s, Let)], rename(rest, names)
        self._refuse_stuck(b, (*carried, *finals))
        tail = (*ends, *_substituted((*after, *carried), sums), *finals, *rest)
        how = tuple((acc, "; ".join(dict.fromkeys(made[n].how))) for n, acc in accs.items() if n in made)
        rounds = any(m.rounds for m in made.values())
        if not pre:
            return Joined((*stmts[:first], *before, merged, *tail), how, rounds)
        known = (*stmts[:first], *before)
        return Joined((*known, *_common(known, (*pre, merged, *tail))), how, rounds)

    def _refuse_stuck(self, b: Loop, after: tuple[Stmt, ...]) -> None:
        """Stop where a factor that multiplies a sum after the loop reads what is in range only where the loop runs."""
        outside = self.known()
        for loop in self.around:
            outside = outside if loop.where is None else outside.assume(loop.where)
        inside = outside
        for dim in b.dims:
            inside = inside.index(dim.id, dim.lo, dim.hi, dim.step)
        inside = inside if b.where is None else inside.assume(b.where)
        load = afterwards.stuck(after, outside, inside, self.env.buffers)
        if load is not None:
            raise _Stop(b.accs[0], load, "which is in range only where the loop runs")

    def _values(self, accs: dict[str, Acc], made: dict[str, Rewritten], sums: dict[str, Expr]
                ) -> tuple[list[Let], dict[str, Expr], dict[str, Callable[[Load], Expr]]]:  # fmt: skip
        """Lets for the final values of scalars, what their names become, and how arrays are read."""
        lets: list[Let] = []
        table: dict[str, Expr] = dict(sums)
        readers: dict[str, Callable[[Load], Expr]] = {}
        for name, acc in accs.items():
            value = made[name].value if name in made else None
            if value is None:
                continue
            if acc.shape:
                readers[name] = afterwards.array_reader(value, sums)
                continue
            expr = value(lambda x: Ref(x.id, MONOIDS[x.monoid].result(x.dtype)))
            if expr == Ref(name, acc.dtype):
                continue
            let = Let(self.env.fresh(name), Substitution(sums).expr(expr) if sums else expr, span=acc.span)
            lets.append(let)
            table[name] = Ref(let.id, acc.dtype)
        return lets, table, readers

    def _body(self, body: tuple[Stmt, ...], accs: dict[str, Acc], made: dict[str, Rewritten], rewriter: Rewriter,
              late: list[Store], inside: tuple[Loop, ...]) -> tuple[list[Stmt], list[Let]]:  # fmt: skip
        """The later fold's statements in the common loop; lets that need nothing of the loop around come second."""
        side = rewriter.terms.side
        kept: list[Stmt] = []
        hoisted: list[Let] = []
        for stmt in body:
            if any(side(c) & RESULT for c in control(stmt)):
                acc = next(iter(accs.values()))
                raise _Stop(
                    acc,
                    next(c for c in control(stmt) if side(c) & RESULT),
                    "which is a bound, a condition or a subscript",
                )
            if isinstance(stmt, Let):
                if not rewriter.terms.sides[stmt.id] & RESULT:
                    kept.append(stmt)
            elif isinstance(stmt, Loop):
                inner, lets = self._body(stmt.body, accs, made, rewriter, late, (*inside, stmt))
                kept += lets
                if any(not isinstance(s, Let) for s in inner):
                    kept.append(replace(stmt, body=tuple(inner)))
            elif stmt.buffer in accs:
                found = self._absorb(stmt, accs, made, rewriter)
                kept += [*found.lets, *found.absorbs]
            elif not side(stmt.value) & RESULT:
                kept.append(stmt)
            elif _lasting(stmt, inside):
                late.append(stmt)
        if not inside:
            return kept, []
        bound = set(binders(inside[-1])) | {n for s in kept if not isinstance(s, Let) for n in binders(s)}
        staying: list[Stmt] = []
        for stmt in kept:
            loads = isinstance(stmt, Let) and any(isinstance(n, Load) for n in subexprs(stmt.value))
            if isinstance(stmt, Let) and not loads and not expr_names(stmt.value).all & bound:
                hoisted.append(stmt)
            else:
                bound.update(binders(stmt))
                staying.append(stmt)
        return staying, hoisted

    def _absorb(self, stmt: Store, accs: dict[str, Acc], made: dict[str, Rewritten], rewriter: Rewriter) -> Rewritten:
        """An absorption, rewritten; all absorptions into one accumulator must be alike or independent."""
        acc = accs[stmt.buffer]
        try:
            found = rewriter.rewrite(acc, stmt)
        except Inseparable as stop:
            raise _Stop(acc, stop.node, stop.why) from None
        known = made.get(acc.id)
        if known is not None and (known.value is not None or found.value is not None or found.accs != known.accs):
            raise _Stop(acc, stmt.value, "beside other terms that it absorbs")
        made[acc.id] = found
        if found.value is not None and any(x.repair is not None for x in accs.values()):
            raise _Stop(acc, stmt.value, "while others follow it already")
        return found

    def _late(self, b: Loop, late: list[Store], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The loop of the stores that depend on results, and of absorptions into accumulators around: the later fold
        without its own."""
        if not late:
            return ()
        own = {acc.id for s in walk((b,)) if isinstance(s, Loop) for acc in s.accs}
        places = [id(s) for s in walk(body) if isinstance(s, Store) and s.buffer not in own]
        stores = [s for s in walk(b.body) if isinstance(s, Store) and s.buffer not in own]
        inner = _only(b.body, {id(stores[places.index(id(s))]) for s in late})
        names = {n: self.env.fresh(n) for n in dict.fromkeys(n for s in walk(inner) for n in binders(s))}
        return (replace(b, accs=(), body=rename(inner, names)),)


def _lasting(store: Store, inside: tuple[Loop, ...]) -> bool:
    """Whether a store outlasts the fold's iteration: one to a buffer, or into an accumulator of a loop around the fold."""
    return not any(acc.id == store.buffer for loop in inside for acc in loop.accs)


class _Stop(Exception):
    def __init__(self, acc: Acc, node: Expr, why: str) -> None:
        super().__init__(why)
        self.acc, self.node, self.why = acc, node, why


def _part(between: tuple[Stmt, ...], a: Loop) -> tuple[list[Stmt], list[Stmt], set[str]]:
    """The statements between the folds that go before and after the common loop; the names that depend on the first."""
    tainted = {acc.id for acc in a.accs} | free_names((a,)).stores
    before: list[Stmt] = []
    after: list[Stmt] = []
    for stmt in between:
        names = free_names((stmt,))
        if names.all & tainted:
            after.append(stmt)
            tainted |= names.stores | set(binders(stmt))
        else:
            before.append(stmt)
    return before, after, tainted


def _first(body: tuple[Stmt, ...], names: set[str] | frozenset[str]) -> str:
    """The first of the arrays that the body reads."""
    return next(n.buffer for s in walk(body) for e in exprs(s) for n in subexprs(e)
                if isinstance(n, Load) and n.buffer in names)  # fmt: skip


def _absorbed(body: tuple[Stmt, ...], accs: tuple[Acc, ...]) -> dict[str, list[Expr]]:
    """What the scalar accumulators absorb once an iteration; none that an inner loop absorbs into."""
    found: dict[str, list[Expr]] = {a.id: [] for a in accs if not a.shape}
    for stmt in body:
        if isinstance(stmt, Store) and stmt.absorb and stmt.buffer in found:
            found[stmt.buffer].append(stmt.value)
        elif isinstance(stmt, Loop):
            for inner in walk(stmt.body):
                if isinstance(inner, Store):
                    found.pop(inner.buffer, None)
    return found


def _common(own: tuple[Stmt, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The later body without the lets and inner folds that the earlier one computes alike."""
    lets: dict[Expr, str] = {}
    for s in own:
        if isinstance(s, Let):
            lets.setdefault(s.value, s.id)
    folds = [s for s in own if isinstance(s, Loop) and _is_pure(s)]
    table: dict[str, Expr] = {}
    made: list[Stmt] = []
    for stmt in body:
        if table:
            stmt = Substitution(table).body((stmt,))[0]
        if isinstance(stmt, Let) and stmt.value in lets:
            table[stmt.id] = Ref(lets[stmt.value], stmt.value.dtype)
            continue
        if isinstance(stmt, Loop) and _is_pure(stmt):
            twin = next((f for f in folds if _renamed(stmt, f) == f), None)
            if twin is not None:
                table |= {x.id: Ref(y.id, MONOIDS[y.monoid].result(y.dtype))
                          for x, y in zip(stmt.accs, twin.accs, strict=True)}  # fmt: skip
                continue
        made.append(stmt)
    return tuple(made)


def _is_pure(loop: Loop) -> bool:
    """Whether a loop only computes scalar accumulators."""
    return bool(loop.accs) and all(not a.shape for a in loop.accs) and all(
        not isinstance(s, Store) or s.absorb for s in walk((loop,)))  # fmt: skip


def _renamed(loop: Loop, like: Loop) -> Stmt | None:
    """The loop with the ids of another one of the same form."""
    mine, other = ([n for s in walk((x,)) for n in binders(s)] for x in (loop, like))
    if len(mine) != len(other):
        return None
    names = {a: b for a, b in zip(mine, other, strict=True) if a != b}
    return rename((loop,), names)[0] if names else loop


def _used(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body without lets that nothing uses, and with equal lets of one block made one."""
    table: dict[str, Expr] = {}
    seen: dict[Expr, str] = {}
    made: list[Stmt] = []
    for stmt in body:
        if table:
            stmt = Substitution(table).body((stmt,))[0]
        if isinstance(stmt, Let):
            if stmt.value in seen:
                table[stmt.id] = Ref(seen[stmt.value], stmt.value.dtype)
                continue
            seen[stmt.value] = stmt.id
        made.append(stmt)
    kept: list[Stmt] = []
    needed: set[str] = set()
    for stmt in reversed(made):
        if isinstance(stmt, Let) and stmt.id not in needed:
            continue
        if isinstance(stmt, Loop) and _is_pure(stmt) and not needed.intersection(a.id for a in stmt.accs):
            continue
        if isinstance(stmt, Loop):
            inner = _used(stmt.body)
            stmt = stmt if inner == stmt.body else replace(stmt, body=inner)
        needed |= free_names((stmt,)).all
        kept.append(stmt)
    return tuple(reversed(kept))


def _only(body: tuple[Stmt, ...], chosen: set[int]) -> tuple[Stmt, ...]:
    """The chosen stores and what they need."""
    kept: list[Stmt] = []
    needed: set[str] = set()
    for stmt in reversed(body):
        if isinstance(stmt, Loop):
            if _is_pure(stmt):
                if not needed.intersection(a.id for a in stmt.accs):
                    continue
            else:
                inner = _only(stmt.body, chosen)
                if not inner:
                    continue
                stmt = replace(stmt, body=inner)
        elif isinstance(stmt, Let):
            if stmt.id not in needed:
                continue
        elif id(stmt) not in chosen:
            continue
        kept.append(stmt)
        needed |= free_names((stmt,)).all
    return tuple(reversed(kept))


def _source(node: Expr, terms: Terms, a: Loop) -> Acc:
    """The accumulator of the earlier fold that an expression reads."""
    whole = terms.expand(node)
    names = expr_names(node if whole is None else whole).all
    return next((acc for acc in a.accs if acc.id in names), a.accs[0])


def _substituted(stmts: tuple[Stmt, ...], table: dict[str, Expr]) -> tuple[Stmt, ...]:
    return Substitution(table).body(stmts) if table and stmts else stmts
