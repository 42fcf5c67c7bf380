"""Steps: a recurrence whose steps are too large for a block: at each step the nests inside are launched in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loopfuse.analysis.sketch import Level, sketch
from loopfuse.ir import Buffer, Kernel, Let, Loop, Stmt
from loopfuse.rewrite import free_names
from loopfuse.schedule.base import Ask, refuse
from loopfuse.schedule.plan import Cost, Plan, Refusal, Role
from loopfuse.schedule.refusals import span_of

NAME = "steps"
Answer = Callable[[Ask], Plan | Refusal]


def accept(ask: Ask, inner: Answer) -> Plan | Refusal:
    """A plan with launches at each step, or why not; `inner` is what takes one step's nests."""
    if all(level.kind != "seq" for level in ask.sketch.levels):
        return refuse(NAME, 0, "shape", f"{ask.title}: nothing follows in order", ask)
    spread = _inside_out(ask.kernel)
    tops = ask.sketch.root.children if spread is None else ask.sketch.root.children[0].children
    seqs = [level for level in tops if level.kind == "seq"]
    if not seqs:
        return refuse(NAME, 0, "shape", f"{ask.title}: nothing follows in order", ask)
    if (len(tops) > 1 and spread is None) or len(seqs) > 1 or any(level.kind == "seq" for level in seqs[0].below()):
        return refuse(
            NAME, 1, "recurrence", f"{ask.title}: a recurrence and what stands beside it cannot share launches", ask,
            span=span_of(seqs[0]), lift="kernels of their own",
        )  # fmt: skip
    seq = seqs[0]
    plans: list[tuple[Plan, int]] = []
    body = ask.kernel.body if spread is None else spread
    recurrence = next(stmt for stmt in body if isinstance(stmt, Loop) and stmt.order == "seq")
    beside = [((stmt,), 1) for stmt in body if stmt is not recurrence]
    for nest, times in (*beside, *((nest, seq.size) for nest in _nests(recurrence))):
        found = _answer(ask, seq, nest, inner)
        if isinstance(found, Refusal):
            return replace(found, schedule=NAME, passed=2)
        plans.append((found, times))
    return _plan(ask, seq, plans)


def _inside_out(kernel: Kernel) -> tuple[Stmt, ...] | None:
    """A parallel loop around a recurrence as a recurrence around parallel loops, where only arrays and pure values pass
    between the statements of its body; None for any other kernel."""
    around = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(around, Loop) or around.order != "par" or around.accs or around.where:
        return None
    if sum(isinstance(s, Loop) and s.order == "seq" for s in around.body) != 1:
        return None

    def spread(body: tuple[Stmt, ...]) -> tuple[Stmt, ...] | None:
        lets: list[Let] = []
        made: list[Stmt] = []
        passing: set[str] = set()
        for stmt in body:
            if passing and passing & free_names((stmt,)).values:
                return None
            if isinstance(stmt, Let):
                lets.append(stmt)
                continue
            if isinstance(stmt, Loop) and stmt.order == "seq":
                inner = spread(stmt.body)
                if inner is None or lets:
                    return None
                made.append(replace(stmt, body=inner))
            else:
                made.append(replace(around, body=(*lets, stmt)))
            passing.update(acc.id for acc in (stmt.accs if isinstance(stmt, Loop) else ()))
        return tuple(made)

    return spread(around.body)


def _nests(seq: Loop) -> list[tuple[Stmt, ...]]:
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


def _answer(ask: Ask, seq: Level, body: tuple[Stmt, ...], inner: Answer) -> Plan | Refusal:
    """What takes one step's nest; kernels that hold the same nest in the same surroundings ask but once."""
    here = {i: ask.sketch.numbers[i] for i in seq.trips}
    kept = {id: replace(b, scope="device", window=None) if b.window or b.scope == "local" else b
            for id, b in ask.buffers.items()}  # fmt: skip
    around = (ask.env.program, {**ask.env.sizes, **here}, kept, ask.live | frozenset(kept))
    known: list[tuple[Any, Plan | Refusal]] = ask.env.answers.setdefault(body, [])
    for other, answer in known:
        if other[0] is around[0] and other[1:] == around[1:]:
            return answer
    answer = inner(_alone(ask, here, kept, body))
    known.append((around, answer))
    return answer


def _alone(ask: Ask, here: dict[str, int], kept: dict[str, Buffer], body: tuple[Stmt, ...]) -> Ask:
    """The question of one step's nest: the recurrence's index stands at its middle, and all buffers are in memory."""
    env = replace(ask.env, sizes={**ask.env.sizes, **here}, buffers={**ask.env.buffers, **kept})
    kernel = Kernel(ask.kernel.id, body, span=ask.kernel.span)
    return Ask(kernel, kept, env, ask.live | frozenset(kept), sketch(kernel, kept, env))


def _plan(ask: Ask, seq: Level, plans: list[tuple[Plan, int]]) -> Plan:
    device = ask.device
    costs = [(p.cost, times) for p, times in plans]
    reads = sum(ask.distinct(ask.loads).values())
    writes = sum(ask.distinct(ask.stores).values())
    moved = sum((c.reads + c.writes + c.rereads) * n for c, n in costs)
    launches = sum(launch.times * n for p, n in plans for launch in p.launches)
    each = [c for c, _ in costs]
    total = Cost(
        sum(c.seconds * n for c, n in costs), reads, writes, max(0, moved - reads - writes),
        sum(c.flops * n for c, n in costs), sum(c.matrix_flops * n for c, n in costs), sum(c.special * n for c, n in costs),
        sum(c.memory * n for c, n in costs), sum(c.compute * n for c, n in costs), launches * device.graph_launch,
        max(c.registers for c in each), max(c.shared for c in each), min(c.occupancy for c in each),
        min(c.in_flight for c in each),
    )  # fmt: skip
    roles: dict[str, Role] = dict.fromkeys(seq.trips, "serial")
    folds: dict[str, str] = {}
    for p, _ in plans:
        roles.update(p.roles)
        folds.update(p.folds)
    main = tuple(replace(launch, times=launch.times * n) for p, n in plans for launch in p.launches)
    return Plan(
        NAME, roles, main, total, folds=folds, path=", ".join(dict.fromkeys(p.path for p, _ in plans if p.path)),
        tiles={"launches a step": sum(launch.times for p, n in plans if n > 1 for launch in p.launches)},
        assumed=ask.assumed, guards=tuple(dict.fromkeys(g for p, _ in plans for g in p.guards)),
        rounding=tuple(dict.fromkeys(r for p, _ in plans for r in p.rounding)),
    )  # fmt: skip
