"""What both interpreters must agree on: hulls, places in a reduction, and which absorptions are dense.

*Hull.* A dim whose bounds vary over outer indices is iterated over one range that holds all of them: from the greatest
of the least lows to the least of the greatest highs, each bound taken over the hulls of the outer par indices and at
the current value of the seq indices. Iterations outside their own bounds are empty places. A dim is *loose* when no
hull is known beforehand: its bounds depend on data, or on a loose index, or it has a step and a varying start. It then
starts at its own first element.

*Places.* The places of a scalar accumulator are the iterations of its loop and of the loops between it and the
absorption, flattened, the innermost dim fastest. Where a loose dim, or a seq loop, makes their number unknown (loose:
but for the first dim of the fold, whose end does not matter), only the iterations that are performed count.

*Dense.* An absorption into an accumulator with a shape is dense when every subscript is `c*i + rest` or `rest`, with a
constant c, an index i of the fold's own nest that occurs in no other subscript, and a rest of sizes and seq indices
around. Each element
then has a tree of its own, over the indices that occur in no subscript. Any other absorption is a *scatter*: a left
fold in the order of the iterations. A mode on a subscript makes it a scatter, and so does an unknown number of places.
Several absorptions into one accumulator are reduced apart and joined in textual order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopfuse.diag import CompilerError
from loopfuse.ir import Affine, Dim, Expr, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.rewrite import exprs, polys, subexprs
from loopfuse.sizes import Poly, Quot

Range = tuple[int, int]


def interval(poly: Poly, ranges: Mapping[str, Range]) -> Range:
    """Inclusive bounds of a polynomial whose names lie in inclusive ranges; tight where no name occurs twice."""
    low = high = 0
    for monomial, coefficient in poly.terms:
        a = b = coefficient
        for atom in monomial:
            if isinstance(atom, str):
                c, d = ranges[atom]
            else:
                c, d = _quotient(interval(atom.num, ranges), interval(atom.den, ranges))
            corners = (a * c, a * d, b * c, b * d)
            a, b = min(corners), max(corners)
        low, high = low + a, high + b
    return low, high


def _quotient(num: Range, den: Range) -> Range:
    dens = {d for d in (*den, -1, 1) if d and den[0] <= d <= den[1]}
    found = [n // d for n in num for d in dens]
    if den[0] <= 0 <= den[1]:
        found.append(0)
    return min(found), max(found)


def steps(start: int, stop: int, step: int) -> int:
    """How many iterations `start, start + step, ...` has below `stop`."""
    return max(0, -((start - stop) // step))


@dataclass(frozen=True)
class Bound:
    """A dim with sizes and affine lets put in: what it iterates over."""

    id: str
    lo: tuple[Poly, ...]
    hi: tuple[Poly, ...]
    step: int
    loose: bool


@dataclass(frozen=True)
class Names:
    """What is known of names at a point of a kernel.

    `affine`: lets that are polynomials of other names. `aligned`: the indices that are not loose; every other name is
    data. `axes`: the par indices.
    """

    sizes: Mapping[str, int]
    affine: Mapping[str, Poly] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()
    axes: frozenset[str] = frozenset()

    def fold(self, poly: Poly) -> Poly:
        """The polynomial with the values of sizes and with affine lets put in."""
        return poly.subs(self.sizes).subs(self.affine) if poly.terms else poly

    def after(self, stmt: Stmt) -> Names:
        """What is known after a statement of the same block."""
        if isinstance(stmt, Let):
            if isinstance(stmt.value, Affine):
                return replace(self, affine={**self.affine, stmt.id: self.fold(stmt.value.poly)})
            return self._data(stmt.id)
        names = self
        if isinstance(stmt, Loop):
            for acc in stmt.accs:
                names = names._data(acc.id)
        return names

    def _data(self, name: str) -> Names:
        """A name is data, whatever it meant before."""
        if name not in self.affine and name not in self.aligned and name not in self.axes:
            return self
        affine = {k: v for k, v in self.affine.items() if k != name}
        return replace(self, affine=affine, aligned=self.aligned - {name}, axes=self.axes - {name})

    def inside(self, loop: Loop) -> tuple[Names, tuple[Bound, ...]]:
        """What is known in a loop's body, and its dims."""
        names, bounds = self, []
        for dim in loop.dims:
            bound = names._bound(dim)
            bounds.append(bound)
            names = names._data(dim.id)
            axes = names.axes if loop.order == "seq" else names.axes | {dim.id}
            names = replace(names, axes=axes, aligned=names.aligned | ({dim.id} if not bound.loose else frozenset()))
        for acc in loop.accs:
            names = names._data(acc.id)
        return names, tuple(bounds)

    def _bound(self, dim: Dim) -> Bound:
        step = self.fold(dim.step)
        if not step.is_const or step.constant <= 0:
            raise CompilerError("reference", f"the step `{dim.step}` of `{dim.id}` is not a positive number")
        lo = tuple(dict.fromkeys(self.fold(p) for p in dim.lo))
        hi = tuple(dict.fromkeys(self.fold(p) for p in dim.hi))
        used = frozenset[str]().union(*(p.names for p in (*lo, *hi)))
        varies = any(p.names & self.axes for p in lo)
        return Bound(dim.id, lo, hi, step.constant, bool(used - self.aligned) or (step.constant != 1 and varies))


def hull(bound: Bound, ranges: Mapping[str, Range]) -> tuple[int, int]:
    """First value and number of iterations of a dim that is not loose, over inclusive ranges of the outer names."""
    start = max(interval(p, ranges)[0] for p in bound.lo)
    stop = min(interval(p, ranges)[1] for p in bound.hi)
    return start, steps(start, stop, bound.step)


# -- accumulators -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A loop on the way from a fold to one of its absorptions; the fold's own loop is the first."""

    loop: Loop
    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class Plan:
    """How an absorption finds its element and its place.

    `kept`: for each subscript the index that it follows (None: it varies with none), or None as a whole for a scatter.
    `reduced`: the par indices whose iterations are the places, or for a scatter the order, outermost first.
    `compact`: only performed iterations count as places, and a loop above a seq or loose one goes step by step.
    """

    kept: tuple[str | None, ...] | None
    reduced: tuple[str, ...]
    compact: bool


def plan(store: Store, names: Names, chain: Sequence[Link]) -> Plan:
    """How `store`, an absorption inside the loops of `chain`, is performed; `names` is what is known there."""
    own = frozenset(b.id for link in chain for b in link.bounds)
    kept = _dense(store, names, own)
    taken = frozenset(k for k in kept or () if k)
    serial = frozenset(b.id for link in chain for b in link.bounds if link.loop.order == "seq")
    reduced = [b for link in chain for b in link.bounds if b.id not in taken | serial]
    compact = bool(serial - taken) or any(b.loose for b in reduced[1:])
    if compact and taken:
        return Plan(None, tuple(b.id for link in chain for b in link.bounds if b.id not in serial), True)
    return Plan(kept, tuple(b.id for b in reduced), compact)


def _dense(store: Store, names: Names, own: frozenset[str]) -> tuple[str | None, ...] | None:
    """The index that each subscript follows, or None for a scatter."""
    if any(store.modes):
        return None
    kept: list[str | None] = []
    for sub in store.subs:
        if not isinstance(sub, Affine):
            return None
        poly = names.fold(sub.poly)
        found = poly.names & own
        index = next(iter(found), None)
        if len(found) > 1 or (index is not None and index in kept):
            return None
        if poly.names - names.aligned or (poly.names - found) & names.axes:
            return None
        if any(len(monomial) > 1 or any(isinstance(a, Quot) for a in monomial) for monomial, _ in poly.terms):
            return None
        kept.append(index)
    return tuple(kept)


def reads(roots: Iterable[Expr]) -> frozenset[str]:
    """The names of lets, accumulators and arrays that expressions read."""
    found: set[str] = set()
    for node in subexprs(*roots):
        if isinstance(node, Affine):
            found |= node.poly.names
        elif isinstance(node, Ref):
            found.add(node.id)
        elif isinstance(node, Load):
            found.add(node.buffer)
    return frozenset(found)


def levels(loop: Loop) -> dict[str, int]:
    """The pass in which each accumulator of a fold is computed: after those that its terms read."""
    level = dict.fromkeys((a.id for a in loop.accs), 0)
    for _ in loop.accs:
        before = dict(level)
        _select(loop.body, level, {}, 0, None, frozenset())
        if level == before:
            break
    return level


def only(body: tuple[Stmt, ...], level: dict[str, int], turn: int, again: frozenset[str]) -> tuple[Stmt, ...]:
    """The part of a fold's body that pass `turn` needs: the terms of that level, and stores in the first pass.

    Stores to the buffers `again`, which live in one iteration only, are kept in every pass.
    """
    return _select(body, dict(level), {}, 0, turn, again)


def _select(body: tuple[Stmt, ...], level: dict[str, int], need: dict[str, int], around: int, turn: int | None,
            again: frozenset[str]) -> tuple[Stmt, ...]:  # fmt: skip
    """Note in `need` how many passes the value of each name waits for, raise the levels, and pick what `turn` needs."""
    kept: list[Stmt] = []
    for stmt in body:
        own = around
        for name in reads((*exprs(stmt), *(Affine(p) for p in polys(stmt)))):
            own = max(own, level[name] + 1 if name in level else need.get(name, 0))
        wanted = turn is not None and own <= turn
        if isinstance(stmt, Let):
            need[stmt.id] = own
        elif isinstance(stmt, Store):
            if stmt.absorb and stmt.buffer in level:
                level[stmt.buffer] = max(level[stmt.buffer], own)
                wanted &= level[stmt.buffer] == turn
            elif stmt.absorb and stmt.buffer in need:
                need[stmt.buffer] = max(need[stmt.buffer], own)
            else:  # a store, or the absorption into an accumulator of a loop around: once
                wanted &= turn == 0 or stmt.buffer in again
        else:
            need.update(dict.fromkeys((a.id for a in stmt.accs), 0))
            part = _select(stmt.body, level, need, own, turn, again)
            wanted &= bool(stmt.accs) or any(not isinstance(s, Let) for s in part)
            stmt = replace(stmt, body=part) if part != stmt.body else stmt
        if wanted:
            kept.append(stmt)
    return tuple(kept)
