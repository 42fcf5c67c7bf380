"""Steps: a recurrence whose steps are too large for a block: at each step the nests inside are launched in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopfuse.analysis.sketch import Level, sketch
from loopfuse.ir import Kernel, Let, Loop, Stmt
from loopfuse.schedule.base import Ask, refuse
from loopfuse.schedule.plan import Cost, Plan, Refusal, Role
from loopfuse.schedule.refusals import span_of

NAME = "steps"
Answer = Callable[[Ask], Plan | Refusal]


def accept(ask: Ask, inner: Answer) -> Plan | Refusal:
    """A plan with launches at each step, or why not; `inner` is what takes one step's nests."""
    tops = ask.sketch.root.children
    seqs = [level for level in tops if level.kind == "seq"]
    if not seqs:
        return refuse(NAME, 0, "shape", f"{ask.title}: nothing follows in order", ask)
    if len(tops) > 1 or any(level.kind == "seq" for level in seqs[0].below()):
        return refuse(
            NAME, 1, "recurrence", f"{ask.title}: a recurrence and what stands beside it cannot share launches", ask,
            span=span_of(seqs[0]), lift="kernels of their own",
        )  # fmt: skip
    seq = seqs[0]
    plans: list[Plan] = []
    for nest in _nests(seq):
        found = inner(_alone(ask, seq, nest))
        if isinstance(found, Refusal):
            return replace(found, schedule=NAME, passed=2)
        plans.append(found)
    return _plan(ask, seq, plans)


def _nests(seq: Level) -> list[tuple[Stmt, ...]]:
    """The statements of each launch: a loop with the lets before it; stores outside loops go with the last."""
    found: list[list[Stmt]] = [[]]
    lets: list[Let] = []
    for stmt in seq.body:
        if isinstance(stmt, Let):
            lets.append(stmt)
        elif isinstance(stmt, Loop):
            found.append([*lets, stmt])
        else:
            found[-1] += [*[let for let in lets if let not in found[-1]], stmt]
    return [tuple(nest) for nest in found if nest]


def _alone(ask: Ask, seq: Level, body: tuple[Stmt, ...]) -> Ask:
    """The question of one step's nest: the recurrence's index stands at its middle, and all buffers are in memory."""
    here = {i: ask.sketch.numbers[i] for i in seq.trips}
    kept = {id: replace(b, scope="device", window=None) if b.window or b.scope == "local" else b
            for id, b in ask.buffers.items()}  # fmt: skip
    env = replace(ask.env, sizes={**ask.env.sizes, **here}, buffers={**ask.env.buffers, **kept})
    kernel = Kernel(ask.kernel.id, body, span=ask.kernel.span)
    return Ask(kernel, kept, env, ask.live | frozenset(kept), sketch(kernel, kept, env))


def _plan(ask: Ask, seq: Level, plans: list[Plan]) -> Plan:
    trips, device = seq.size, ask.device
    costs = [p.cost for p in plans]
    reads = sum(ask.distinct(ask.loads).values())
    writes = sum(ask.distinct(ask.stores).values())
    moved = sum(c.reads + c.writes + c.rereads for c in costs) * trips
    launches = sum(launch.times for p in plans for launch in p.launches) * trips
    seconds = sum(c.seconds for c in costs) * trips
    total = Cost(
        seconds, reads, writes, max(0, moved - reads - writes), sum(c.flops for c in costs) * trips,
        sum(c.matrix_flops for c in costs) * trips, sum(c.special for c in costs) * trips,
        sum(c.memory for c in costs) * trips, sum(c.compute for c in costs) * trips, launches * device.graph_launch,
        max(c.registers for c in costs), max(c.shared for c in costs), min(c.occupancy for c in costs),
        min(c.in_flight for c in costs),
    )  # fmt: skip
    roles: dict[str, Role] = dict.fromkeys(seq.trips, "serial")
    folds: dict[str, str] = {}
    for p in plans:
        roles.update(p.roles)
        folds.update(p.folds)
    main = tuple(replace(launch, times=launch.times * trips) for p in plans for launch in p.launches)
    return Plan(
        NAME, roles, main, total, folds=folds, path=", ".join(dict.fromkeys(p.path for p in plans if p.path)),
        tiles={"launches a step": launches // trips}, assumed=ask.assumed,
        guards=tuple(dict.fromkeys(g for p in plans for g in p.guards)),
        rounding=tuple(dict.fromkeys(r for p in plans for r in p.rounding)),
    )  # fmt: skip
