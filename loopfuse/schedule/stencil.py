"""Stencil: tiles of a size that the plan chooses; what a tile needs beyond its rim is computed again."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from loopfuse.analysis.sketch import sketch
from loopfuse.schedule.base import (
    FIXED_REGISTERS,
    MOST_THREAD_REGISTERS,
    Ask,
    agree,
    band,
    local_bytes,
    out_of_registers,
    par_chain,
    refuse,
    traffic,
)
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import barrier, no_band, ordered, span_of

NAME = "stencil"
THREADS = 256
MOST_NESTED = 256
TILES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((256,), (512,), (1024,), (2048,), (128,)),
    2: ((32, 64), (16, 64), (32, 32), (64, 64), (16, 128), (32, 128), (8, 64), (64, 128)),
    3: ((8, 8, 32), (4, 16, 32), (8, 16, 32), (4, 8, 64), (8, 8, 8)),
}


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with the cheapest tile, or why not."""
    plan_sizes = {s.id for s in ask.env.program.sizes if s.origin == "plan"}
    top = band(ask.sketch)
    chain = par_chain(top) if top is not None else []
    if not chain:
        return no_band(NAME, ask)
    steps = [(d.id, name) for level in chain if level.loop for d in level.loop.dims
             for name in [d.step.name] if name in plan_sizes]  # fmt: skip
    if not steps:
        return refuse(NAME, 0, "shape", f"{ask.title}: there is no tile whose size is to be chosen", ask)
    origin = next(level for level in chain if any(i in level.trips for i, _ in steps))
    late = next((level for level in origin.below() if level.kind in ("seq", "prefix")), None)
    if late is not None:
        return ordered(NAME, 1, ask, late)
    for level in origin.below():
        if level.parent is not None and level.parent.kind == "fold" and level.size > MOST_NESTED:
            return refuse(NAME, 1, "nested", f"{ask.title}: a loop of {level.size} at each point of the tile", ask,
                          span=span_of(level), needed=level.size, limit=MOST_NESTED, unit="trips")  # fmt: skip
    clash = agree(ask, [i for i, _ in steps], ask.own)
    if clash is not None:
        return barrier(NAME, 2, ask, clash)
    live = ask.sketch.live
    if live + FIXED_REGISTERS > MOST_THREAD_REGISTERS:
        return out_of_registers(NAME, 3, ask, live, MOST_THREAD_REGISTERS)
    return _choose(ask, [name for _, name in steps])


def _choose(ask: Ask, names: list[str]) -> Plan | Refusal:
    best: Plan | None = None
    least: int | None = None
    distinct = list(dict.fromkeys(names))
    for values in TILES.get(len(distinct), ((16,) * len(distinct),)):
        tiles = dict(zip(distinct, values, strict=True))
        there = replace(ask, sketch=sketch(ask.kernel, ask.buffers, ask.env, tiles))
        found = _plan(there, tiles)
        if isinstance(found, int):
            least = found if least is None else min(least, found)
        elif best is None or found.cost.seconds < best.cost.seconds:
            best = found
    if best is not None:
        return best
    return refuse(
        NAME, 4, "shared", f"{ask.title}: even the least tile keeps {least} bytes on chip; a block holds "
        f"{ask.device.shared}", ask, needed=least, limit=ask.device.shared, unit="bytes",
    )  # fmt: skip


def _plan(ask: Ask, tiles: dict[str, int]) -> Plan | int:
    """The plan with these tiles, or the bytes that do not fit."""
    found = ask.sketch
    chain = par_chain(found.root.children[0])
    origin = chain[-1] if not any(d.step.name in tiles for level in chain[:-1] if level.loop for d in level.loop.dims) \
        else next(level for level in chain if level.loop and any(d.step.name in tiles for d in level.loop.dims))  # fmt: skip
    one = dict.fromkeys(origin.extents, 1)
    held = local_bytes(ask, ask.local, one)
    if held + 1024 > ask.device.shared:
        return held
    blocks = prod(origin.extents.values())
    inner = [i for level in origin.below() for i in level.trips]
    lanes = [level.loop.dims[-1].id for level in origin.children if level.loop and level.kind == "par"]
    moved = traffic(ask, one, blocks, lanes or inner[-1:], ())
    result = cost(ask.device, Load(
        moved.reads, moved.writes, moved.rereads * 0.5, found.total, local=_through_shared(ask), blocks=blocks,
        threads=THREADS, registers=min(255, FIXED_REGISTERS + 2 * found.live), shared=held + 1024, ahead=48.0,
    ))  # fmt: skip
    roles: dict[str, Role] = dict.fromkeys(origin.extents, "grid")
    for level in origin.below():
        roles.update(dict.fromkeys(level.trips, "block" if level.kind == "par" else "serial"))
    return Plan(
        NAME, roles, (Launch("main", blocks, THREADS),), result, tiles=dict(tiles),
        folds={a.id: "exact: serial" for level in found.levels for a in level.accs},
        place=dict.fromkeys(sorted(ask.local), "shared"), assumed=ask.assumed,
    )  # fmt: skip


def _through_shared(ask: Ask) -> float:
    """Bytes between threads and shared memory: what local buffers are read and written."""
    found = ask.sketch
    return float(sum(a.level.times * ask.size(a.buffer) for a in (*found.loads, *found.stores)
                     if a.buffer in ask.local))  # fmt: skip
