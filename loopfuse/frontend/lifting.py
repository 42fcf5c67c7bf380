"""What lifting a fold out of a nest takes: an array for its values, and reads that are safe without the loops it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopfuse.dtypes import BOOL
from loopfuse.frontend.terms import Node, Part, Terms
from loopfuse.ir import Affine, Buffer, Dim, Interval, Load, Op, Require, Size
from loopfuse.prove import Facts
from loopfuse.rewrite import Fresh, subexprs
from loopfuse.sizes import ONE, ZERO, Poly

Reads = tuple[Sequence[Node], Sequence[Dim]]


@dataclass
class World:
    """What the nests of a program share: its declarations, fresh ids, and the arrays that lifting adds."""

    sizes: dict[str, Size]
    requires: tuple[Require, ...]
    buffers: dict[str, Buffer]
    fresh: Fresh
    claimed: set[str] = field(default_factory=set)
    mentioned: set[str] = field(default_factory=set)
    known: Facts | None = None

    def facts(self, dims: Sequence[Dim]) -> Facts:
        """What holds inside loops over these indices, outer ones first."""
        if self.known is None:
            facts = Facts.empty()
            for s in self.sizes.values():
                facts = facts.size(s.id, s.least, s.multiple, s.value)
            for r in self.requires:
                facts = facts.assume(r.cond)
            for b in self.buffers.values():
                if b.range is not None:
                    facts = facts.value_range(b.id, *b.range)
            self.known = facts
        found = self.known
        for d in dims:
            found = found.index(d.id, d.lo, d.hi, d.step)
        return found

    def claim(self, id: str) -> str:
        """An id for an accumulator: its own, or if that is in use another."""
        name = self.fresh(id) if id in self.claimed else id
        self.claimed.add(name)
        return name


# -- arrays of lifted values ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """An index as an axis of an array: the index of its first element, and its extent."""

    first: Poly
    extent: Poly


def axes(world: World, trips: Sequence[Dim], dims: Sequence[Dim], own: Sequence[Dim]) -> list[Axis] | None:
    """The axes of an array over the trips of scans and some indices, or None where it would have no shape in sizes.

    `own` are the indices of the statement, whose extents are known not to be negative.
    """
    facts: Facts | None = None
    found = []
    for d in (*trips, *dims):
        lows, highs = _plain(world, d.lo), _plain(world, d.hi)
        if lows is None or highs is None:
            facts = facts or world.facts((*trips, *dims))
            low, high = facts.bounds(Affine(Poly.of(d.id)), frozenset(world.sizes))
            lows = lows or (low[0] if low else None)
            highs = highs or (high[0] + 1 if high else None)
        if d.step != ONE or lows is None or highs is None:
            return None
        axis = Axis(lows, highs - lows)
        if not any(d is o for o in (*trips, *own)) and not world.facts(()).nonneg(axis.extent):
            return None
        found.append(axis)
    return found


def _plain(world: World, bounds: tuple[Poly, ...]) -> Poly | None:
    """The bound, where it is one of sizes alone."""
    return bounds[0] if len(bounds) == 1 and all(n in world.sizes for n in bounds[0].names) else None


def declare(world: World, name: str, value: Node, trips: Sequence[Dim], shape: list[Axis], part: Part | None) -> Buffer:
    """A new array for a lifted value, of the fold `part` where it is one."""
    window: tuple[Interval, ...] | None = None
    if trips:
        window = (
            *(((Poly.of(t.id),), (Poly.of(t.id) + 1,)) for t in trips),
            *(((ZERO,), (axis.extent,)) for axis in shape[len(trips) :]),
        )
    bounds: Interval | None = None
    if part is not None and part.guard is None and part.where is None and value.expr.dtype.is_int:
        found = part.fold.at or (part.fold.value if part.fold.monoid in ("max", "min") else None)
        if found is not None:
            low, high = world.facts((*trips, *part.fold.dims)).bounds(found, frozenset(world.sizes))
            bounds = (low, high) if low or high else None
    extents = tuple(axis.extent for axis in shape)
    buffer = Buffer(name, value.expr.dtype, extents, window=window, range=bounds, span=value.expr.span)
    world.buffers[name] = buffer
    world.mentioned.update(*(p.names for p in extents))
    return buffer


# -- reads of folds that leave loops ----------------------------------------------------------------------------------


def nonempty(
    world: World, terms: Terms, reads: Sequence[Reads], left: Sequence[Dim], around: Sequence[Dim]
) -> Node | None:
    """The condition that loops that terms leave are not empty, if their loads may need it.

    `reads` are the terms with the indices around them: `around`, those that are kept, and further ones inside.
    """
    doubtful = [names for roots, dims in reads for names in _unproved(world, roots, dims)] if left else []
    if not doubtful:
        return None
    inside, facts = {d.id for d in around}, world.facts(around)
    cond: Node | None = None
    for d in left:
        names = frozenset[str]().union(*(p.names for p in (*d.lo, *d.hi)))
        told = all(n in world.sizes or n in inside for n in names)
        if not told or not any(names & mentioned for mentioned in doubtful):
            continue
        for lo in d.lo:
            for hi in d.hi:
                if not facts.nonneg(hi - lo - 1):
                    more = Op("lt", (Affine(lo), Affine(hi)), BOOL, span=d.span)
                    cond = terms.both(cond, terms.node(more))
    return cond


def reads_of(part: Part, around: Sequence[Dim]) -> list[Reads]:
    """The terms of a fold with the indices around them. The folds in it are left out: they have their own conditions."""
    own = [n for n in (part.value, part.where, part.at) if n is not None]
    before = [n for _, n in part.lets] if part.guard is None else [part.guard, *(n for _, n in part.lets)]
    return [(own, (*around, *part.fold.dims)), (before, around)]


def _unproved(world: World, roots: Sequence[Node], dims: Sequence[Dim]) -> list[frozenset[str]]:
    """The names in subscripts, and their extents, that are not in range by the bounds of these indices."""
    known = {d.id: d for d in dims}
    facts: Facts | None = None
    found = []
    for load in subexprs(*(n.expr for n in roots)):
        if not isinstance(load, Load) or load.buffer not in world.buffers:
            continue
        for sub, mode, extent in zip(load.subs, load.modes, world.buffers[load.buffer].shape, strict=True):
            poly = sub.poly if isinstance(sub, Affine) else None
            if mode is not None or (poly is not None and plainly(known, poly, extent)):
                continue
            facts = facts or world.facts(dims)
            if poly is None or not (facts.nonneg(poly) and facts.nonneg(extent - 1 - poly)):
                found.append(extent.names | (poly.names if poly is not None else frozenset()))
    return found


def plainly(known: dict[str, Dim], sub: Poly, extent: Poly) -> bool:
    """Whether `index + c` is in range by the bounds of the index alone."""
    alone = known.get(sub.name) if sub.name is not None else None
    if alone is not None and alone.lo == (ZERO,) and extent in alone.hi:
        return True
    for name in sub.names:
        dim = known.get(name)
        if dim is None:
            continue
        rest = sub - Poly.of(name)
        lows, gaps = [p + rest for p in dim.lo], [extent - p - rest for p in dim.hi]
        return any(p.is_const and p.constant >= 0 for p in lows) and any(p.is_const and p.constant >= 0 for p in gaps)
    return sub.is_const and extent.is_const and 0 <= sub.constant < extent.constant
