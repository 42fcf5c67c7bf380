"""Column: blocks own groups of elements of the band and split the folded range; partials meet in a finish.

Without a band it is a full reduction. Several folds that do not need one another's results are one pass; folds that do
are passes of a block that owns its columns whole, without a split.
"""

from __future__ import annotations

from math import prod

from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Level
from loopfuse.analysis.summary import summary
from loopfuse.ir import Let, Loop, Store
from loopfuse.rewrite import exprs
from loopfuse.schedule.base import (
    FIXED_REGISTERS,
    MOST_THREAD_REGISTERS,
    Ask,
    agree,
    local_bytes,
    out_of_registers,
    par_chain,
    refuse,
    traffic,
)
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import barrier, no_band, ordered, span_of

NAME = "column"
THREADS = 256
COLUMNS = 8  # adjacent columns that a thread owns
MOST_NESTED = 64
MOST_ARRAY = 64


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with partials, or why not."""
    found = ask.sketch
    chain = par_chain(found.root.children[0]) if len(found.root.children) == 1 else []
    place = chain[-1] if chain else found.root
    folds = [c for c in place.children if c.kind == "fold"]
    if not folds:
        return refuse(NAME, 0, "shape", f"{ask.title}: there is no reduction over a whole index", ask)
    late = next((level for level in place.below() if level.kind in ("seq", "prefix")), None)
    if late is not None:
        return ordered(NAME, 1, ask, late)
    others = [c for c in place.children if c.kind != "fold"]
    if others and not chain:
        return no_band(NAME, ask)
    if any(a.shape for level in place.below() for a in level.accs):
        return refuse(NAME, 1, "array", f"{ask.title}: a reduction into an array needs another schedule", ask)
    for fold in folds:
        for nested in fold.below():
            if nested.times // fold.times > MOST_NESTED:
                return refuse(
                    NAME, 2, "nested", f"{ask.title}: a loop of {nested.size} inside the reduction is a product of "
                    "matrices, which this schedule would do element by element", ask, span=span_of(nested),
                    needed=nested.size, limit=MOST_NESTED, unit="trips",
                )  # fmt: skip
    grid = list(place.extents)
    clash = agree(ask, grid, ask.own | ask.local)
    if clash is not None:
        return barrier(NAME, 3, ask, clash)
    needed = passes(ask, place)
    if needed > 1 and not chain:
        return refuse(
            NAME, 3, "barrier", f"{ask.title}: a reduction over everything needs the result of another one, and "
            "blocks do not wait for one another", ask, lift="two kernels",
        )  # fmt: skip
    if found.live + FIXED_REGISTERS > MOST_THREAD_REGISTERS:
        return out_of_registers(NAME, 4, ask, found.live, MOST_THREAD_REGISTERS)
    whole = needed > 1 or bool(others) or bool(ask.local)
    if whole and not _lanes(ask, place, folds)[1]:
        return refuse(NAME, 4, "shape", f"{ask.title}: the rows lie along the reduction, not across it", ask)
    return _plan(ask, place, folds, whole, max(needed, len(place.children) if others else needed))


def passes(ask: Ask, place: Level) -> int:
    """How many folds in a row need the result of the one before."""
    depth: dict[str, int] = {}
    most = 1
    for stmt in place.body if place.loop else ask.kernel.body:
        names: set[str] = set()
        if isinstance(stmt, Loop):
            stack: list[Loop] = [stmt]
            while stack:
                loop = stack.pop()
                for s in loop.body:
                    names |= {n for e in exprs(s) for n in summary(e).names}
                    if isinstance(s, Loop):
                        stack.append(s)
            level = 1 + max((depth.get(n, 0) for n in names), default=0)
            for acc in stmt.accs:
                depth[acc.id] = level
            for s in stmt.body:
                if isinstance(s, Store) and not s.absorb:
                    depth[s.buffer] = level
            most = max(most, level)
        elif isinstance(stmt, Let):
            depth[stmt.id] = max((depth.get(n, 0) for n in summary(stmt.value).names), default=0)
        else:
            depth[stmt.buffer] = max((depth.get(n, 0) for e in exprs(stmt) for n in summary(e).names), default=0)
    return most


def _plan(ask: Ask, place: Level, folds: list[Level], whole: bool, needed: int) -> Plan | Refusal:
    found, device = ask.sketch, ask.device
    extents = place.extents
    width = prod(extents.values())
    depth = max(f.size for f in folds)
    grid = list(extents)
    lanes, along = _lanes(ask, place, folds)
    owned = min(width, 32 * COLUMNS if along else 1)
    groups = -(-width // owned)
    split = 1
    if not whole:
        wanted = 4 * device.units
        least = THREADS if not along else 64
        split = max(1, min(-(-wanted // groups), depth // least))
    blocks = groups * split
    tile = dict.fromkeys(grid, 1)
    if grid and along:
        tile[lanes[0]] = min(extents[lanes[0]], owned)
    moved = traffic(ask, tile, groups, lanes, grid)
    reads, rereads = moved.reads, moved.rereads
    held = local_bytes(ask, ask.local, tile)
    if held > device.shared:
        return refuse(
            NAME, 5, "shared", f"{ask.title}: the columns of a block take {held} bytes; a block holds {device.shared}",
            ask, needed=held, limit=device.shared, unit="bytes",
        )  # fmt: skip
    rereads += sum(union(found, [a for a in found.loads if a.buffer == b]) * ask.size(b) for b in ask.own)
    if whole:
        again, far = _again(ask, place, tile)
        if held + again > device.shared:
            if far * min(blocks, device.units) > device.cache:
                reads += moved.reads * (needed - 1)
            else:
                rereads += moved.reads * (needed - 1)
        held += again if held + again <= device.shared else 0
    accs = [a for f in folds for a in f.accs]
    workspace = split * width * sum(a.dtype.itemsize * (2 if a.monoid.startswith("arg") else 1) for a in accs)
    workspace = workspace if split > 1 else 0
    result = cost(device, Load(
        reads, moved.writes, rereads + 2 * workspace, found.total, blocks=blocks, threads=THREADS,
        registers=min(255, FIXED_REGISTERS + found.live * 2), launches=2 if split > 1 else 1,
        shared=min(device.shared, 2048 + held), ahead=64.0 if depth >= 4 else 16.0,
    ))  # fmt: skip
    roles = _roles(place, folds, lanes[0] if along else None, split)
    tree = "serial, block" if along else "vector, lanes, block"
    launches: tuple[Launch, ...] = (Launch("main", blocks, THREADS),)
    if split > 1:
        launches = (*launches, Launch("finish", max(1, -(-width // THREADS)), THREADS))
    return Plan(
        NAME, roles, launches, result, tiles={**tile, "split": split},
        folds={a.id: f"{'online(1)' if a.repair is not None else 'exact'}: {tree}{', workspace' if split > 1 else ''}"
               for a in accs},
        place=dict.fromkeys(sorted(ask.local), "shared"), workspace=workspace, assumed=ask.assumed,
        rounding=(("online folds",) if any(a.repair is not None for a in accs) else ()),
    )  # fmt: skip


def _roles(place: Level, folds: list[Level], vector: str | None, split: int) -> dict[str, Role]:
    roles: dict[str, Role] = dict.fromkeys(place.extents, "grid")
    if vector is not None:
        roles[vector] = "vector"
    for f in place.children:
        roles.update(dict.fromkeys(f.trips, "split" if split > 1 and f in folds else "block"))
        for nested in f.below():
            roles.update(dict.fromkeys(nested.trips, "serial"))
    return roles


def _again(ask: Ask, place: Level, tile: dict[str, int]) -> tuple[int, int]:
    """Bytes that a block reads more than once, were they kept."""
    total = 0
    for b, accesses in ask.loads.items():
        if len({k for k, c in enumerate(place.children) for a in accesses if a.level.within(c)}) > 1:
            total += union(ask.sketch, accesses, tile) * ask.size(b)
    return total, total


def _lanes(ask: Ask, place: Level, folds: list[Level]) -> tuple[list[str], bool]:
    """The index along which neighbouring threads read neighbouring elements, and whether it is one of the band's."""
    votes: dict[str, int] = {}
    for accesses in ask.loads.values():
        for a in accesses:
            if not a.axes or a.level is place:
                continue
            shape = ask.sketch.shape(a.buffer)
            last = next((k for k in range(len(shape) - 1, -1, -1) if shape[k] > 1), len(shape) - 1)
            for n, f in a.axes[last].factors:
                if abs(f) == 1.0:
                    votes[n] = votes.get(n, 0) + a.level.times
    band = [i for i in place.extents if place.extents[i] > 1]
    inner = [n for f in folds for n in f.trips]
    best = max(votes, key=lambda n: (votes[n], n in band), default=None)
    if best is not None and best in band:
        return [best], True
    return ([inner[-1]] if inner else [best] if best else []), False
