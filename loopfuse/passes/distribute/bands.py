"""Indices over which the trips of a `seq` loop are independent of one another, and units that run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopfuse.analysis.env import Env
from loopfuse.ir import Dim
from loopfuse.passes.distribute.units import Dependence, Scan, Unit

Class = dict[int, str]


@dataclass
class Pairing:
    """The dependences between some units, for questions about their indices."""

    found: Scan
    env: Env
    units: Sequence[Unit]
    deps: Sequence[Dependence]
    touching: dict[int, list[Dependence]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.touching = {id(u): [] for u in self.units}
        for d in self.deps:
            for unit in dict.fromkeys((id(d.writer), id(d.reader))):
                if unit in self.touching:
                    self.touching[unit].append(d)

    def bands(self) -> list[Class]:
        """For every common index the index of each unit (by `id`): all dependences have distance 0 in it.

        Indices are paired through subscripts alone, never by equal extents.
        """
        first = self.units[0]
        found: list[Class] = []
        for dim in first.dims:
            classes = self.spread(first, dim.id)
            if classes is not None and len(classes) == len(self.units) and not _overlap(classes, found):
                found.append(classes)
        return found

    def spread(self, start: Unit, index: str) -> Class | None:
        """The indices that an index of one unit is paired with, in all units that it reaches; None if one has none."""
        classes: Class = {id(start): index}
        units = {id(u): u for u in self.units}
        stack = [id(start)]
        while stack:
            at = stack.pop()
            for d in self.touching[at]:
                for mine, other, flip in ((d.writer, d.reader, False), (d.reader, d.writer, True)):
                    if id(mine) != at or id(other) not in units:
                        continue
                    partners = [q if not flip else p for p, q in d.pairs if (p if not flip else q) == classes[at]]
                    if id(other) in classes:
                        if classes[id(other)] not in partners:
                            return None
                    elif not partners:
                        return None
                    else:
                        classes[id(other)] = partners[0]
                        stack.append(id(other))
        return classes if self._alike([self._dim(units[u], i) for u, i in classes.items()]) else None

    def _dim(self, unit: Unit, index: str) -> Dim:
        return next(d for d in unit.dims if d.id == index)

    def _alike(self, dims: Sequence[Dim]) -> bool:
        """Whether the bounds are equal, and do not move with the trips."""
        first = dims[0]
        if self.found.trip.id in set().union(*(p.names for p in (*first.lo, *first.hi, first.step))):
            return False
        return all(self.same(first, d) for d in dims[1:])

    def same(self, a: Dim, b: Dim) -> bool:
        """Whether two indices have the same bounds and steps."""
        sides = ((a.lo, b.lo), (a.hi, b.hi), ((a.step,), (b.step,)))
        return all(
            len(x) == len(y) and all(p == q or self.env.facts.zero(p - q) for p, q in zip(x, y, strict=True))
            for x, y in sides
        )


def _overlap(classes: Class, found: Sequence[Class]) -> bool:
    return any(not classes.items().isdisjoint(other.items()) for other in found)


def connected(units: Sequence[Unit], deps: Sequence[Dependence]) -> list[list[Unit]]:
    """The units in sets between which there is no dependence, in order of their first units."""
    group = {id(u): n for n, u in enumerate(units)}
    members: dict[int, list[Unit]] = {n: [u] for n, u in enumerate(units)}
    for d in deps:
        a, b = group.get(id(d.writer)), group.get(id(d.reader))
        if a is None or b is None or a == b:
            continue
        keep, gone = min(a, b), max(a, b)
        for u in members.pop(gone):
            group[id(u)] = keep
            members[keep].append(u)
    order = {id(u): n for n, u in enumerate(units)}
    return [sorted(members[n], key=lambda u: order[id(u)]) for n in sorted(members)]
