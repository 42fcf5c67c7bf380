"""Map: a thread computes elements of a band of parallel indices; folds inside run serially, their operands from the
cache."""

from __future__ import annotations

from math import prod

from loopfuse.analysis.sketch import Level
from loopfuse.schedule.base import (
    FIXED_REGISTERS,
    MOST_THREAD_REGISTERS,
    Ask,
    Traffic,
    agree,
    band,
    instructions,
    local_bytes,
    out_of_registers,
    par_chain,
    refuse,
    traffic,
)
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import barrier, no_band, ordered

NAME = "map"
THREADS = 256
MOST_LOCAL = 32  # elements that a thread may keep in an array of registers
BLOCKED = 4  # rows that a thread takes together, so that what it streams from the cache serves all of them


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with a thread for some elements, or why not."""
    top = band(ask.sketch)
    chain = par_chain(top) if top is not None else []
    if not chain:
        return no_band(NAME, ask)
    inner = list(chain[-1].below())
    late = next((level for level in inner if level.kind in ("seq", "prefix")), None)
    if late is not None:
        return ordered(NAME, 1, ask, late)
    grid = [d.id for level in chain if level.loop for d in level.loop.dims]
    clash = agree(ask, grid, ask.own | ask.local)
    if clash is not None:
        return barrier(NAME, 2, ask, clash)
    held = local_bytes(ask, ask.local, dict.fromkeys(grid, 1)) // 4 + _arrays(ask, inner)
    if held > MOST_LOCAL:
        return refuse(
            NAME, 3, "registers", f"a thread that computes {ask.title} would hold {held} elements; it can hold "
            f"{MOST_LOCAL}", ask, needed=held, limit=MOST_LOCAL, unit="elements",
        )  # fmt: skip
    live = ask.sketch.live + held
    if live + FIXED_REGISTERS > MOST_THREAD_REGISTERS:
        return out_of_registers(NAME, 4, ask, live, MOST_THREAD_REGISTERS)
    return plan(ask, NAME, chain, inner, live)


def _arrays(ask: Ask, inner: list[Level]) -> int:
    return sum(prod(ask.sketch.value(p) for p in a.shape) for level in inner for a in level.accs if a.shape)


def plan(ask: Ask, name: str, chain: list[Level], inner: list[Level], live: int, spilled: float = 0.0) -> Plan:
    """The plan; the general schedule makes it too, with what spills."""
    found = ask.sketch
    extents = chain[-1].extents
    grid = list(extents)
    elements = prod(extents.values())
    serial = max((level.times // chain[-1].times for level in inner), default=1)
    moved = _moved(ask, extents, grid, serial)
    vector = max(1, 16 // moved.widest) if serial == 1 else 1
    each = vector * (4 if moved.streams < 4 else 2) if serial == 1 else BLOCKED
    while each > 1 and (FIXED_REGISTERS + live + moved.streams * each > 128 or elements < each * THREADS * 132):
        each //= 2
    registers = FIXED_REGISTERS + live + moved.streams * (each - 1)
    blocks = -(-elements // (THREADS * each))
    result = cost(ask.device, Load(
        moved.reads, moved.writes, moved.rereads + spilled, found.total,
        local=instructions(ask, BLOCKED) if serial > 1 else 0.0, blocks=blocks, threads=THREADS,
        registers=min(255, registers), ahead=moved.streams * each * moved.widest if serial == 1 else 32.0,
    ))  # fmt: skip
    roles: dict[str, Role] = dict.fromkeys(grid, "grid")
    roles[grid[-1]] = "vector" if vector > 1 else "lane"
    folds = {}
    for level in inner:
        roles.update(dict.fromkeys(level.trips, "serial"))
        for acc in level.accs:
            folds[acc.id] = "online(1)" if acc.repair is not None else "exact"
    return Plan(
        name, roles, (Launch("main", blocks, THREADS),), result, tiles={grid[-1]: each}, folds=folds,
        place=dict.fromkeys(sorted(ask.local), "register"), assumed=ask.assumed,
        rounding=("online folds",) if "online(1)" in folds.values() else (),
    )  # fmt: skip


def _moved(ask: Ask, extents: dict[str, int], grid: list[str], serial: int) -> Traffic:
    """Traffic of blocks that are wide along the last index, and, where loads run across it, square."""
    last = next((g for g in reversed(grid) if extents[g] > 1), grid[-1])
    tile = dict.fromkeys(grid, 1)
    tile[last] = min(extents[last], THREADS)
    room = THREADS // tile[last] * (BLOCKED if serial > 1 else 16)
    for g in reversed([g for g in grid if g != last]):
        tile[g] = min(extents[g], room)
        room //= tile[g]
    blocks = prod(-(-extents[g] // tile[g]) for g in grid)
    lanes = [last] if extents[last] >= 32 else [g for g in grid if tile[g] > 1]
    return traffic(ask, tile, blocks, lanes, grid)
