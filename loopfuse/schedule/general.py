"""General: a correct and slow way for a program as it was lowered, so that what was not fused always has a plan.

It takes a single nest (one definition) and a fold into an array with the copy that follows it. Nothing fused is taken:
what no other schedule takes should not be one kernel.
"""

from __future__ import annotations

from math import prod

from loopfuse.analysis.sketch import Level
from loopfuse.schedule.base import Ask, instructions, par_chain, refuse
from loopfuse.schedule.column import passes
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import ordered

NAME = "general"
THREADS = 256


def accept(ask: Ask) -> Plan | Refusal:
    """A plan for a nest as lowered, or why not."""
    found = ask.sketch
    tops = found.root.children
    late = next((level for level in found.levels[1:] if level.kind == "seq"), None)
    if late is not None:
        return ordered(NAME, 0, ask, late)
    made = {a.buffer for a in found.stores}
    accs = [a for level in found.levels for a in level.accs]
    tables = {a.id for a in accs if a.shape}
    waits = len(tops) > 1 and (passes(ask, found.root) > 1 if not tables else any(t.kind == "fold" for t in tops[1:]))
    if len(made) > 1 or ask.local or waits or any(a.repair is not None for a in accs) or _streams(ask):
        return refuse(NAME, 0, "group", f"{ask.title}: no schedule takes these together", ask)
    return _nest(ask, tops)


def _streams(ask: Ask) -> bool:
    """Whether a fold feeds an array along a loop of its own: no program is lowered so."""
    return any(t.acc.shape and t.level is not t.owner for t in ask.sketch.terms)


def _nest(ask: Ask, tops: list[Level]) -> Plan:
    """One definition: a thread an element of its parallel band, or blocks over its fold."""
    found = ask.sketch
    chain = par_chain(tops[0]) if len(tops) == 1 else []
    elements = prod(chain[-1].extents.values()) if chain else 1
    total = max((level.times for level in found.levels), default=1)
    ordered = any(level.kind in ("seq", "prefix") for level in found.levels[1:])
    parallel = elements if chain or ordered else max(1, total // 64)
    reads, writes = sum(ask.distinct(ask.loads).values()), sum(ask.distinct(ask.stores).values())
    touched = instructions(ask)
    blocks = max(1, min(-(-parallel // THREADS), 1 << 20))
    steps = max(1, total // max(1, parallel))
    result = cost(ask.device, Load(
        reads * 2, writes, max(0.0, touched - reads) * 2, found.total, local=2 * touched, blocks=blocks,
        threads=min(THREADS, max(32, parallel)), registers=min(255, 24 + found.live),
        least=steps * ask.device.latency * (0.5 if ordered else 0.0), ahead=16.0, launches=len(tops) or 1,
    ))  # fmt: skip
    roles: dict[str, Role] = {i: "serial" for level in found.levels[1:] for i in level.trips}
    if chain:
        roles.update(dict.fromkeys(chain[-1].extents, "grid"))
    folds = {a.id: "exact: serial" for level in found.levels for a in level.accs}
    launches = tuple(Launch("main" if k == 0 else "finish", blocks, THREADS) for k in range(max(1, len(tops))))
    return Plan(NAME, roles, launches, result, folds=folds, assumed=ask.assumed)
