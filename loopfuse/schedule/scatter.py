"""Scatter: a fold into an array at computed subscripts: a private copy a block where it fits, atomics or a sort else.

What follows the fold at its level runs in the last block that finishes, so it must be small; a copy of the array is
free, for the array is then written in place.
"""

from __future__ import annotations

from math import prod

from loopfuse.analysis.sketch import Level, Term
from loopfuse.ir import Load as LoadNode
from loopfuse.ir import Store
from loopfuse.schedule.base import Ask, agree, par_chain, refuse, traffic
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import barrier, ordered, span_of

NAME = "scatter"
THREADS = 256
MOST_AFTER = 8192  # iterations that the last block runs by itself
ATOMIC = 32  # bytes of the cache that an update takes
PASSES = 10  # over keys and values, of a sort and a segmented sum


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with private copies, atomics or a sort, or why not."""
    found = ask.sketch
    tables = [t for t in found.terms if t.acc.shape and t.level is t.owner]
    if not tables:
        return refuse(NAME, 0, "shape", f"{ask.title}: nothing is absorbed at computed subscripts", ask)
    chain = par_chain(found.root.children[0]) if len(found.root.children) == 1 else []
    place = chain[-1] if chain else found.root
    folds = list(dict.fromkeys(t.owner for t in tables))
    late = next((level for level in found.levels[1:] if level.kind == "seq"), None)
    if late is not None:
        return ordered(NAME, 1, ask, late)
    if any(f.parent is not place for f in folds) or folds[0] is not place.children[0]:
        return refuse(
            NAME, 1, "barrier", f"{ask.title}: the array is complete only when every block is done, and something "
            "stands before or round its fold", ask, span=span_of(folds[0]),
        )  # fmt: skip
    clash = agree(ask, list(place.extents), ask.own | ask.local) if chain else None
    if clash is not None:
        return barrier(NAME, 2, ask, clash)
    after = [c for c in place.children if c not in folds]
    for level in after:
        work = sum(inner.size for inner in (level, *level.below()))
        if work > MOST_AFTER and not _copies(level, {t.acc.id for t in tables}):
            return refuse(
                NAME, 3, "barrier", f"{ask.title}: what follows the scatter runs in the last block, and takes {work} "
                f"iterations; it may take {MOST_AFTER}", ask, span=span_of(level), needed=work, limit=MOST_AFTER,
                unit="iterations", lift="a kernel of its own",
            )  # fmt: skip
    return _plan(ask, place, folds, after, tables)


def _copies(level: Level, tables: set[str]) -> bool:
    """Whether a loop only stores the array."""
    return level.kind == "par" and all(
        isinstance(s, Store) and isinstance(s.value, LoadNode) and s.value.buffer in tables for s in level.body
    )


def _plan(ask: Ask, place: Level, folds: list[Level], after: list[Level], tables: list[Term]) -> Plan:
    found, device = ask.sketch, ask.device
    size = sum(prod(found.value(p) for p in t.acc.shape) * t.acc.dtype.itemsize for t in tables)
    updates = sum(t.level.times for t in tables)
    private = size <= device.shared // 2
    rounds = any(t.acc.dtype.is_float and t.acc.monoid in ("sum", "prod") for t in tables)
    lanes = [n for f in folds for n in list(f.trips)[-1:]]
    moved = traffic(ask, {}, 1, lanes, ())
    reads, writes, rereads, local = moved.reads, moved.writes, moved.rereads, 0.0
    launches = 1
    if private:
        local = 8.0 * updates
        rereads += size * min(device.units * 4, max(1, updates // 4096))
        how = "private copies, block, workspace"
    elif not rounds or ask.env.program.numerics == "fast":
        rereads += updates * ATOMIC
        how = "atomics"
    else:
        reads += PASSES * updates * 8
        launches = PASSES
        how = "sort by key, segments"
    small = sum(inner.size for c in after for inner in (c, *c.below()))
    chained = len(after) if small <= MOST_AFTER else 0
    blocks = max(1, min(device.units * 4, updates // 2048))
    result = cost(device, Load(
        reads, writes, rereads, found.total, local=local, blocks=blocks, threads=THREADS, launches=launches,
        registers=min(255, 24 + found.live), shared=1024 + (size if private else 0), ahead=64.0,
        least=device.latency * (2 + chained),
    ))  # fmt: skip
    roles: dict[str, Role] = {i: "serial" for level in found.levels[1:] for i in level.trips}
    roles.update(dict.fromkeys(place.extents, "grid"))
    for f in folds:
        roles.update(dict.fromkeys(f.trips, "split"))
    main = (Launch("main", blocks, THREADS),) + (Launch("finish", blocks, THREADS, launches - 1),) * (launches > 1)
    return Plan(
        NAME, roles, main, result, folds={t.acc.id: how for t in tables},
        place={**{t.acc.id: "shared" if private else "workspace" for t in tables},
               **dict.fromkeys(sorted(ask.local), "shared")},
        workspace=size * blocks if private else updates * 16 * (how[0] == "s"), assumed=ask.assumed,
        rounding=("order of float updates",) if how == "atomics" and rounds else (),
    )  # fmt: skip
