"""Loops in the body of a `seq` loop that run over the same elements, joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from loopfuse.ir import Stmt
from loopfuse.passes.distribute.bands import Pairing
from loopfuse.passes.distribute.units import Dependence, Unit
from loopfuse.rewrite import Fresh, binders, rename, walk


@dataclass(eq=False)
class _Group:
    """Units that become one loop; `names` says which index of the first each index of a member is."""

    units: list[Unit]
    names: dict[int, dict[str, str]]
    last: int
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


def align(pairing: Pairing) -> list[tuple[Stmt, ...]]:
    """The statements of the units, those joined whose indices are all paired, in an order that keeps dependences.

    Two units may be joined when every value that one takes from the other in the same trip is taken at the same
    element; whole sets of units are joined that are paired through a chain of such values.
    """
    return _Alignment(pairing).blocks()


class _Alignment:
    """Groups of units, a graph of what they take from one another in one trip, which stays without cycles."""

    def __init__(self, pairing: Pairing) -> None:
        self.pairing = pairing
        self.order = order = {id(u): n for n, u in enumerate(pairing.units)}
        self.now = [d for d in pairing.deps if self._same_trip(d)]
        self.groups = {n: _Group([u], {id(u): {d.id: d.id for d in u.dims}}, n) for n, u in enumerate(pairing.units)}
        self.home = dict(order)
        for d in self.now:
            w, r = order[id(d.writer)], order[id(d.reader)]
            self.groups[w].after.add(r)
            self.groups[r].before.add(w)

    def _same_trip(self, d: Dependence) -> bool:
        """Whether the value may be taken in the trip in which it is made."""
        order = self.order
        if id(d.writer) not in order or id(d.reader) not in order or d.writer is d.reader:
            return False
        return d.trip == 0 or (d.trip is None and order[id(d.writer)] < order[id(d.reader)])

    def blocks(self) -> list[tuple[Stmt, ...]]:
        """Join what may be joined, and give the statements."""
        order = self.order
        for d in sorted(self.now, key=lambda d: (order[id(d.reader)], order[id(d.writer)])):
            a, b = self.home[id(d.writer)], self.home[id(d.reader)]
            if a == b:
                continue
            names = self._names(self.groups[a], self.groups[b], d)
            if names is not None and not self._around(a, b) and not self._around(b, a):
                self._join(a, b, names)
        return [_statements(g, order, self.pairing.env.fresh) for g in self._sorted()]

    def _names(self, a: _Group, b: _Group, by: Dependence) -> dict[int, dict[str, str]] | None:
        """What the indices of the members of `b` are in `a`, paired by a dependence; None where they do not fit."""
        first, second = a.units[0], b.units[0]
        if not first.dims or len(first.dims) != len(second.dims):
            return None
        mine, theirs = a.names[id(by.writer)], b.names[id(by.reader)]
        table = {theirs[q]: mine[p] for p, q in reversed(by.pairs)}
        if len(table) != len(first.dims) or len(set(table.values())) != len(table):
            return None
        bounds = {d.id: d for d in first.dims}
        if not all(self.pairing.same(bounds[table[d.id]], d) for d in second.dims):
            return None
        names = {u: {i: table[n] for i, n in many.items()} for u, many in b.names.items()}
        for d in (d for u in b.units for d in self.pairing.touching[id(u)] if self._same_trip(d)):
            w, r = (names.get(id(u)) or a.names.get(id(u)) for u in (d.writer, d.reader))
            if w is not None and r is not None and {n for p, q in d.pairs if (n := w[p]) == r[q]} != set(bounds):
                return None
        return names

    def _around(self, a: int, b: int) -> bool:
        """Whether something takes from `a` what `b` needs of it: then both cannot be one."""
        seen, stack = set[int](), [g for g in self.groups[a].after if g != b]
        last = self.groups[b].last
        while stack:
            at = stack.pop()
            if at == b:
                return True
            if at not in seen and min(self.order[id(u)] for u in self.groups[at].units) <= last:
                seen.add(at)
                stack.extend(self.groups[at].after)
        return False

    def _join(self, a: int, b: int, names: dict[int, dict[str, str]]) -> None:
        one, two = self.groups[a], self.groups.pop(b)
        one.units += two.units
        one.names |= names
        one.last = max(one.last, two.last)
        for unit in two.units:
            self.home[id(unit)] = a
        for g in two.after | two.before:
            other = self.groups.get(g)
            if other is not None:
                other.before, other.after = ({a if x == b else x for x in s} for s in (other.before, other.after))
        one.before = (one.before | two.before) - {a, b}
        one.after = (one.after | two.after) - {a, b}

    def _sorted(self) -> list[_Group]:
        """The groups in an order that keeps dependences, else by their last units."""
        waiting = {n: len(g.before) for n, g in self.groups.items()}
        ready = [(self.groups[n].last, n) for n, count in waiting.items() if not count]
        heapify(ready)
        done: list[_Group] = []
        while ready:
            group = self.groups[heappop(ready)[1]]
            done.append(group)
            for n in group.after:
                waiting[n] -= 1
                if not waiting[n]:
                    heappush(ready, (self.groups[n].last, n))
        return done


def _statements(group: _Group, order: dict[int, int], fresh: Fresh) -> tuple[Stmt, ...]:
    """A group as one loop, over the indices of its first unit."""
    first = group.units[0].loop
    if first is None or len(group.units) == 1:
        return group.units[0].stmts
    indices = {d.id for d in first.dims}
    body: list[Stmt] = []
    for unit in sorted(group.units, key=lambda u: order[id(u)]):
        loop = unit.loop
        assert loop is not None
        names = {i: n for i, n in group.names[id(unit)].items() if i != n}
        clash = sorted(bound(loop.body) & indices) if unit is not group.units[0] else []
        body += renamed(loop.body, names | {name: fresh(name) for name in clash})
    return (replace(first, body=tuple(body)),)


def renamed(body: tuple[Stmt, ...], names: dict[str, str]) -> tuple[Stmt, ...]:
    """The body with other names for indices that are bound around it."""
    return rename(body, names) if names else body


def bound(stmts: Sequence[Stmt]) -> set[str]:
    """The ids that statements define."""
    return {name for stmt in walk(stmts) for name in binders(stmt)}
