"""Loops in the body of a `seq` loop that run over the same elements, joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from loopfuse.ir import Stmt
from loopfuse.passes.distribute.bands import Pairing
from loopfuse.passes.distribute.units import Dependence, Unit
from loopfuse.rewrite import Fresh, binders, rename, walk


@dataclass(eq=False)
class _Group:
    """Units that become one loop; `names` says which index of the first each index of a member is."""

    units: list[Unit]
    names: dict[int, dict[str, str]] = field(default_factory=dict)


def align(pairing: Pairing) -> list[tuple[Stmt, ...]]:
    """The statements of the units, those joined whose indices are all paired, in an order that keeps dependences.

    Two units may be joined when every value that one takes from the other in the same trip is taken at the same
    element; whole sets of units are joined that are paired through a chain of such values, else neighbours.
    """
    units, order = list(pairing.units), {id(u): n for n, u in enumerate(pairing.units)}
    now = [d for d in pairing.deps if id(d.writer) in order and id(d.reader) in order and d.writer is not d.reader]
    now = [d for d in now if d.trip == 0 or (d.trip is None and order[id(d.writer)] < order[id(d.reader)])]
    groups = [_Group([u], {id(u): {d.id: d.id for d in u.dims}}) for u in units]
    home = {id(u): g for u, g in zip(units, groups, strict=True)}
    for d in sorted(now, key=lambda d: (order[id(d.reader)], order[id(d.writer)])):
        a, b = home[id(d.writer)], home[id(d.reader)]
        joined = _joined(pairing, a, b, d, now) if a is not b else None
        if joined is None:
            continue
        trial = [g for g in groups if g is not a and g is not b] + [joined]
        if _sorted(trial, now, order) is None:
            continue
        groups = trial
        for u in joined.units:
            home[id(u)] = joined
    ordered = _sorted(groups, now, order)
    return [_statements(g, order, pairing.env.fresh) for g in ordered or groups]


def _joined(pairing: Pairing, a: _Group, b: _Group, by: Dependence, now: Sequence[Dependence]) -> _Group | None:
    """Both groups as one, their indices paired by a dependence; None where they cannot be."""
    first, second = a.units[0], b.units[0]
    if not first.dims or len(first.dims) != len(second.dims) or first.loop is None or second.loop is None:
        return None
    mine, theirs = a.names[id(by.writer)], b.names[id(by.reader)]
    table = {theirs[q]: mine[p] for p, q in reversed(by.pairs)}
    if len(table) != len(first.dims) or len(set(table.values())) != len(table):
        return None
    bounds = {d.id: d for d in first.dims}
    if not all(pairing.same(bounds[table[d.id]], d) for d in second.dims):
        return None
    names = a.names | {u: {i: table[n] for i, n in many.items()} for u, many in b.names.items()}
    for d in now:
        if id(d.writer) in names and id(d.reader) in names:
            w, r = names[id(d.writer)], names[id(d.reader)]
            if {n for p, q in d.pairs if (n := w[p]) == r[q]} != set(bounds):
                return None
    return _Group([*a.units, *b.units], names)


def _sorted(groups: Sequence[_Group], now: Sequence[Dependence], order: dict[int, int]) -> list[_Group] | None:
    """The groups in an order that keeps dependences, else by their last units; None where there is a cycle."""
    home = {id(u): g for g in groups for u in g.units}
    before: dict[int, set[int]] = {id(g): set() for g in groups}
    for d in now:
        w, r = home[id(d.writer)], home[id(d.reader)]
        if w is not r:
            before[id(r)].add(id(w))
    left = sorted(groups, key=lambda g: max(order[id(u)] for u in g.units))
    done: list[_Group] = []
    while left:
        ready = next((g for g in left if not before[id(g)] & {id(x) for x in left}), None)
        if ready is None:
            return None
        left.remove(ready)
        done.append(ready)
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
