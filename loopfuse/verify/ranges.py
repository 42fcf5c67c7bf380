"""Invariants that need proofs: accesses in range, and inside the windows of their buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loopfuse.dtypes import BOOL
from loopfuse.ir import Acc, Affine, Expr, Let, Loop, Mode, Op, Ref, Store
from loopfuse.printer import print_expr
from loopfuse.prove import Facts, guarded_loads, judge
from loopfuse.rewrite import subexprs
from loopfuse.sizes import ZERO, Poly
from loopfuse.verify.layout import Frame, Layout, Site, site_exprs
from loopfuse.verify.memory import FOLLOWED, Memory

Problem = tuple[str, Site | None]


@dataclass(slots=True)
class Guarded:
    """An access with the facts that hold where it happens, the guards around it included."""

    buffer: str
    subs: tuple[Expr, ...]
    modes: tuple[Mode | None, ...]
    site: Site
    facts: Facts


@dataclass
class _Walk:
    """The facts at the statement that is looked at."""

    v: Layout
    facts: Facts
    around: list[tuple[int, Facts]] = field(default_factory=list)
    positions: dict[str, tuple[tuple[Poly, ...], tuple[Poly, ...]]] = field(default_factory=dict)
    never: int = -1  # up to this position nothing runs

    def guarded(self) -> Iterator[Guarded]:
        """Every access that may happen, in textual order."""
        for access in self._all():
            if access.site.position > self.never:
                yield access

    def _all(self) -> Iterator[Guarded]:
        for site in self.v.sites:
            self._leave(site.position)
            stmt = site.stmt
            if isinstance(stmt, Loop):
                if any(_empty(lo - hi) for d in stmt.dims for lo in d.lo for hi in d.hi):
                    self.never = max(self.never, site.own.end if site.own else site.position)
                self.around.append((site.own.end if site.own else site.position, self.facts))
                for d in stmt.dims:
                    self.facts = self.facts.index(d.id, d.lo, d.hi, d.step)
            for root in site_exprs(site):
                for load, known in guarded_loads(root, self.facts):
                    yield Guarded(load.buffer, load.subs, load.modes, site, known)
            if isinstance(stmt, Let):
                if stmt.value.dtype.is_int or stmt.value.dtype == BOOL:
                    self.facts = self.facts.let(stmt.id, stmt.value)
            elif isinstance(stmt, Loop):
                if stmt.where is not None:
                    self.facts = self.facts.assume(stmt.where)
            else:
                yield Guarded(stmt.buffer, stmt.subs, stmt.modes or (None,) * len(stmt.subs), site, self.facts)
                self._learn(stmt, site)

    def _leave(self, position: int) -> None:
        """Forget what was known inside the loops that are over; keep what they found."""
        while self.around and self.around[-1][0] < position:
            end, self.facts = self.around.pop()
            for id in [id for id in self.positions if self._over(id, end)]:
                bounds = self.positions.pop(id)
                self.facts = self.facts.ref_range(id, *bounds).value_range(
                    id, *bounds
                )  # of one, or of an array of them

    def _over(self, id: str, end: int) -> bool:
        return any(d.until == end for d in self.v.scopes[id])

    def _learn(self, stmt: Store, site: Site) -> None:
        """What a store says of later reads: the range of an argmax's position, the definition of a mask or integer."""
        target = self.v.visible(stmt.buffer, site.position)
        if target is None:
            return
        if isinstance(target.node, Acc):
            if stmt.at is not None and target.frame is not None and len(self.v.absorbs[stmt.buffer]) == 1:
                self.positions[stmt.buffer] = self.facts.bounds(stmt.at, self._outside(target.frame))
        elif (target.dtype.is_int or target.dtype == BOOL) and len(self.v.stores[stmt.buffer]) == 1:
            indices = tuple(n for s in stmt.subs if isinstance(s, Affine) and (n := s.poly.name) is not None)
            if len(set(indices)) == len(stmt.subs) and self._closed(stmt.value, indices):
                self.facts = self.facts.define(stmt.buffer, indices, stmt.value)
                self.around = [(end, outer.define(stmt.buffer, indices, stmt.value)) for end, outer in self.around]

    def _outside(self, frame: Frame) -> frozenset[str]:
        """The sizes, and the indices of the loops around a loop."""
        outer = {d.id for f in frame.chain()[:-1] for d in f.loop.dims}
        return frozenset(outer | {s.id for s in self.v.program.sizes})

    def _closed(self, value: Expr, indices: tuple[str, ...]) -> bool:
        """Whether a value mentions, beside arrays, only sizes and the given indices."""
        known = {s.id for s in self.v.program.sizes}.union(indices)
        return not any(
            isinstance(node, Ref) or (isinstance(node, Affine) and not node.poly.names <= known)
            for node in subexprs(value)
        )


def _empty(gap: Poly) -> bool:
    return gap.is_const and gap.constant >= 0


def _shown(sub: Expr) -> str:
    return str(sub.poly) if isinstance(sub, Affine) else print_expr(sub)


def _walk(memory: Memory) -> _Walk:
    facts = memory.base
    for b in memory.v.program.buffers:
        if b.range is not None:
            facts = facts.value_range(b.id, *b.range)
    return _Walk(memory.v, facts)


def in_range(memory: Memory) -> Iterator[Problem]:
    """A subscript without a mode is proved to be within its axis, from what holds where the access happens."""
    for access in _walk(memory).guarded():
        target = memory.v.visible(access.buffer, access.site.inside)
        if target is None:
            continue
        for axis, (sub, mode, extent) in enumerate(zip(access.subs, access.modes, target.shape, strict=True)):
            if mode is None and judge(access.facts, sub, extent).verdict != "proved":
                yield f"`{_shown(sub)}` may be outside axis {axis} of `{access.buffer}`", access.site


def in_window(memory: Memory) -> Iterator[Problem]:
    """An access, its mode applied, is within the window that its buffer has there.

    Before and after the loop of a sliding window it is within the first and the last one, which is not checked.
    """
    windows = {b.id: b for b in memory.v.program.buffers if b.window is not None}
    if not windows:
        return
    for access in _walk(memory).guarded():
        buffer = windows.get(access.buffer)
        if buffer is None or buffer.window is None:
            continue
        for axis, (low, high) in enumerate(buffer.window):
            names = set().union(*(p.names for p in (*low, *high))) - memory.sizes
            if any(memory.v.visible(n, access.site.inside) is None for n in names):
                continue
            extent = buffer.shape[axis]
            for known, place in _places(access, axis, extent):
                # An element that is touched is one of the array, so bounds outside the array hold by themselves.
                if not all(known.nonneg(-p) or (place is not None and known.nonneg(place - p)) for p in low) or not all(
                    known.nonneg(p - extent) or (place is not None and known.nonneg(p - 1 - place)) for p in high
                ):
                    text = _shown(access.subs[axis])
                    yield f"`{text}` may be outside the window of axis {axis} of `{buffer.id}`", access.site
                    break


def _places(access: Guarded, axis: int, extent: Poly) -> Iterator[tuple[Facts, Poly | None]]:
    """Where an access lands on an axis, case by case, each with what holds in that case.

    None: anywhere on the axis, where it is mirrored or wrapped more than once.
    """
    poly, mode = access.facts.poly(access.subs[axis]), access.modes[axis]
    if poly is None:
        poly = Poly.of("?")
    if mode is None:
        yield access.facts, poly
        return
    below = Op("lt", (Affine(poly), Affine(ZERO)), BOOL)
    above = Op("ge", (Affine(poly), Affine(extent)), BOOL)
    inside = access.facts.assume(below, False).assume(above, False)
    yield inside, poly
    if mode.kind in FOLLOWED:
        return
    images = {
        "edge": (ZERO, extent - 1),
        "wrap": (poly + extent, poly - extent),
        "reflect": (-poly, 2 * extent - 2 - poly),
        "symmetric": (-poly - 1, 2 * extent - 1 - poly),
    }[mode.kind]
    for case, never, image in zip((below, above), (poly, extent - 1 - poly), images, strict=True):
        if access.facts.nonneg(never):
            continue
        known = access.facts.assume(case)
        if mode.kind == "edge":
            yield known, image
            continue
        beyond = (case is below) != (mode.kind == "wrap")  # the side at which an image may be outside again
        room = extent - 1 - image if beyond else image
        if known.nonneg(room):
            yield known, image
            continue
        once = Op("ge", (Affine(room), Affine(ZERO)), BOOL)
        yield known.assume(once), image
        yield known.assume(once, False), None
