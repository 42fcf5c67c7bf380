"""Invariants of memory: every element is written once, and read only after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from math import prod

from loopfuse.ir import Buffer, Dim
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.verify.layout import Access, Definition, Frame, Site
from loopfuse.verify.memory import FOLLOWED, Memory, dims, disjoint, fixed, hull, private

Problem = tuple[str, Site | None]

# -- every element once -----------------------------------------------------------------------------------------------


def written_once(memory: Memory) -> Iterator[Problem]:
    """No two iterations, and no two statements, store to one element of one incarnation of a buffer."""
    for buffer in memory.v.program.buffers:
        stores = memory.v.stores.get(buffer.id, [])
        for store in stores:
            mine = private(buffer, store.frame)
            moving = {n: d for n, d in dims(store.frame).items() if n not in mine}
            free = moving.keys() - fixed(memory, store.frame, [p for p in store.polys if p is not None], moving)
            if free:
                yield f"iterations of `{min(free)}` may store to the same element of `{buffer.id}`", store.site
        for a, b in _candidates(stores):
            if not disjoint(memory, a, b):
                yield f"another statement may have stored to the same element of `{buffer.id}`", b.site


def _candidates(stores: list[Access]) -> Iterator[tuple[Access, Access]]:
    """The pairs of stores that do not differ in a constant subscript."""
    if len(stores) < 2:
        return
    constant = [k for k in range(len(stores[0].polys)) if all((p := s.polys[k]) and p.is_const for s in stores)]
    groups: dict[tuple[int, ...], list[Access]] = defaultdict(list)
    for store in stores:
        groups[tuple(p.constant for k in constant if (p := store.polys[k]) is not None)].append(store)
    for group in groups.values():
        yield from combinations(group, 2)


def covered(memory: Memory) -> Iterator[Problem]:
    """Every element is written: as many are stored, each once, as there are.

    Where that number is not known (a condition, bounds that are data) no first or last element of an axis may be left
    out for certain. Of a buffer that each iteration of a loop has for itself, the window is written.
    """
    for buffer in memory.v.program.buffers:
        stores = memory.v.stores.get(buffer.id, [])
        if not stores:
            continue
        if any(private(buffer, s.frame) for s in stores):
            if len(stores) == 1 and not _fills(memory, buffer, stores[0]):
                yield f"the store may leave out elements of the window of `{buffer.id}`", stores[0].site
            continue
        for store in stores:
            for outer in _cut_tiles(store):
                yield f"the tiles of `{outer}` do not end where its loop does", store.site
        counts = [_count(memory, s) for s in stores]
        known = [c for c in counts if c is not None]
        if len(known) == len(counts):
            missing = prod(buffer.shape, start=ONE) - sum(known, ZERO)
            if not (missing.is_const and missing.constant == 0) and not memory.base.zero(
                _without_empty(memory, missing)
            ):
                yield f"`{buffer.id}` has {missing} more elements than are stored", stores[0].site
            continue
        for axis, extent in enumerate(buffer.shape):
            hulls = [hull(memory, p, s.frame) if (p := s.polys[axis]) is not None else (None, None) for s in stores]
            if all(low is not None and memory.nonneg(low - 1) for low, _ in hulls):
                yield f"no store reaches the first element of axis {axis} of `{buffer.id}`", stores[0].site
            if all(high is not None and memory.nonneg(extent - 2 - high) for _, high in hulls):
                yield f"no store reaches the last element of axis {axis} of `{buffer.id}`", stores[0].site


def _without_empty(memory: Memory, poly: Poly) -> Poly:
    """The polynomial with 0 for the sizes that the requirements leave no other value: then no element is there at all."""
    empty = [n for n in poly.names if memory.nonneg(-Poly.of(n)) and memory.nonneg(Poly.of(n))]
    return poly.subs(dict.fromkeys(empty, ZERO))


def _count(memory: Memory, store: Access) -> Poly | None:
    """How often a store is performed, in sizes; None where it depends on conditions or data.

    A loop that ends before it begins counts as negative; whether it can is for the proof of ranges to say.
    """
    if any(store.modes) or any(f.loop.where is not None for f in (store.frame.chain() if store.frame else ())):
        return None
    around = dims(store.frame)
    tiles = [(y, z) for z in around for y in around if _tiled(around[y], around[z])]
    inner, total = {z for _, z in tiles}, ONE
    for name, dim in around.items():
        if name in inner:
            continue
        if len(dim.lo) != 1 or len(dim.hi) != 1 or not (dim.lo[0].names | dim.hi[0].names) <= memory.sizes:
            return None
        length = dim.hi[0] - dim.lo[0]
        whole = any(y == name for y, _ in tiles)
        total = total * (length if whole or dim.step == ONE else (length + dim.step - 1) // dim.step)
    return total


def _fills(memory: Memory, buffer: Buffer, store: Access) -> bool:
    """Whether a store reaches every element of the window, axis by axis."""
    inner = store.frame
    mine = private(buffer, inner)
    ranging = {n: d for n, d in dims(inner).items() if n not in mine}
    for sub, (lows, highs) in zip(store.polys, buffer.window or (), strict=True):
        moving = [n for n in ranging if sub is not None and n in sub.names]
        if sub is None or len(moving) > 1:
            return False
        first, last = [sub], [sub + 1]
        if moving:
            dim, offset = ranging[moving[0]], sub - Poly.of(moving[0])
            if moving[0] in offset.names or dim.step != ONE:
                return False
            first, last = [p + offset for p in dim.lo], [p + offset for p in dim.hi]
        if not all(any(memory.nonneg(low - p, inner) for low in lows) for p in first):
            return False
        if not all(any(memory.nonneg(p - high, inner) for high in highs) for p in last):
            return False
    return not any(f.loop.where is not None for f in (inner.chain() if inner else ()))


def _tiled(outer: Dim, inner: Dim) -> bool:
    """Whether the inner index runs over one tile of the outer one, the last tile cut: both together over the whole."""
    start = Poly.of(outer.id)
    return inner.lo == (start,) and inner.step == ONE and set(inner.hi) == {*outer.hi, start + outer.step}


def _cut_tiles(store: Access) -> Iterator[str]:
    """The tiled indices around a store whose last tile does not end with the loop."""
    around = dims(store.frame)
    for y, outer in around.items():
        start = Poly.of(y)
        for inner in around.values():
            end = start + outer.step
            if inner.lo == (start,) and end in inner.hi and set(inner.hi) != {end} and not _tiled(outer, inner):
                yield y


def incarnations(memory: Memory) -> Iterator[Problem]:
    """A buffer of which each iteration of a loop has its own is accessed inside that one loop only."""
    for buffer in memory.v.program.buffers:
        named: set[str] = set()
        for low, high in buffer.window or ():
            named.update(*(p.names for p in (*low, *high)))
        for name in sorted(named - memory.sizes):
            found: Definition | None = None
            for access in (*memory.v.stores.get(buffer.id, ()), *memory.v.loads.get(buffer.id, ())):
                here = memory.v.visible(name, access.site.inside)
                if here is not None and here.frame is not None and here.frame.loop.order == "seq":
                    continue
                sliding = here is None and any(
                    d.frame is not None and d.frame.loop.order == "seq" for d in memory.v.scopes.get(name, ())
                )
                if not sliding and (here is None or (found is not None and here is not found)):
                    yield f"`{buffer.id}` is accessed outside the loop of `{name}`", access.site
                found = found or here


# -- reads after writes -----------------------------------------------------------------------------------------------


def read_after_write(memory: Memory) -> Iterator[Problem]:
    """Whatever a load may touch has been stored before: by an earlier statement in the same iteration of the common
    loops, or in an earlier trip of a `seq` loop. Inputs, params and frozen buffers hold values from the start."""
    for buffer in memory.v.program.buffers:
        loads = memory.v.loads.get(buffer.id, [])
        if buffer.role in ("in", "param", "frozen") or not loads:
            continue
        stores = memory.v.stores.get(buffer.id, [])
        if not stores:
            yield f"`{buffer.id}` is read and never written", loads[0].site
            continue
        over = max(_over(s) for s in stores)
        for load in loads:
            if load.site.position > over:
                continue
            for store in stores:
                if not (_before(memory, buffer, store, load) or disjoint(memory, load, store)):
                    yield f"an element of `{buffer.id}` may be read before it is written", load.site
                    break


def _over(access: Access) -> int:
    """The position at which the outermost loop around an access is over."""
    return access.frame.chain()[0].end if access.frame is not None else access.site.position


def _before(memory: Memory, buffer: Buffer, store: Access, load: Access) -> bool:
    """Whether an element that both touch is stored before it is loaded."""
    common = _common(store.frame, load.frame)
    first = store.site.position < load.site.position
    if not common:
        return first
    inner = common[-1]
    around = dims(inner)
    mine = private(buffer, inner)
    axes = [
        p
        for p, q, mode in zip(store.polys, load.polys, load.modes, strict=True)
        if p is not None and p == q and (mode is None or mode.kind in FOLLOWED) and _shared(memory, p, around, inner)
    ]
    equal = fixed(memory, inner, axes, {n: d for n, d in around.items() if n not in mine}) | mine
    for frame in common:
        names = {d.id for d in frame.loop.dims}
        if names <= equal:
            continue
        earlier = _earlier(memory, frame, store, load, equal, inner) if frame.loop.order == "seq" else None
        if earlier is None:
            return False
        if earlier:
            return True
        equal |= names
    return first


def _shared(memory: Memory, poly: Poly, around: dict[str, Dim], inner: Frame) -> bool:
    """Whether all names mean the same for two accesses inside the loop: sizes, its indices, lets from outside."""
    return all(n in around or n in memory.sizes or memory.v.visible(n, inner.start) is not None for n in poly.names)


def _earlier(memory: Memory, frame: Frame, store: Access, load: Access, equal: set[str], inner: Frame) -> bool | None:
    """Whether the store ran in an earlier trip of a seq loop (True), in an earlier or the same one (False), or None."""
    trips = [d.id for d in frame.loop.dims]
    if len(trips) != 1:
        return None
    trip, around, best = trips[0], dims(inner), None
    for p, q, mode in zip(store.polys, load.polys, load.modes, strict=True):
        if p is None or q is None or (mode is not None and mode.kind not in FOLLOWED) or p.degree(trip) != 1:
            continue
        others = p.names - {trip}
        if not _shared(memory, p, around, inner) or any(n in around and n not in equal for n in others):
            continue
        if not memory.nonneg(p.coefficient(trip) - 1, inner):
            continue
        if memory.nonneg(p - q - 1, load.frame):
            return True
        if memory.nonneg(p - q, load.frame):
            best = False
    return best


def _common(a: Frame | None, b: Frame | None) -> list[Frame]:
    """The loops around both accesses, outermost first."""
    left, right = (f.chain() if f else [] for f in (a, b))
    return [x for x, y in zip(left, right, strict=False) if x is y]
