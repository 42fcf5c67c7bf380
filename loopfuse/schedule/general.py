"""General: a correct and slow way for a program as it was lowered, so that what was not fused always has a plan.

It takes a single nest (one definition), a recurrence as a launch for each of its nests at each step, and a fold into an
array with what follows it. Nothing fused is taken: what no other schedule takes should not be one kernel.
"""

from __future__ import annotations

from math import prod

from loopfuse.analysis.sketch import Access, Level
from loopfuse.analysis.summary import Work
from loopfuse.schedule.base import Ask, instructions, par_chain, refuse
from loopfuse.schedule.column import passes
from loopfuse.schedule.footprint import union
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role

NAME = "general"
THREADS = 256


def accept(ask: Ask) -> Plan | Refusal:
    """A plan for a nest as lowered, or why not."""
    found = ask.sketch
    tops = found.root.children
    seqs = [level for level in tops if level.kind == "seq"]
    if seqs:
        if len(tops) == 1 and not [level for level in seqs[0].below() if level.kind == "seq"]:
            return _steps(ask, seqs[0])
        return refuse(
            NAME, 1, "recurrence", f"{ask.title}: a recurrence and what stands beside it cannot share launches", ask,
            span=seqs[0].loop.span if seqs[0].loop else None, lift="kernels of their own",
        )  # fmt: skip
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


def _steps(ask: Ask, seq: Level) -> Plan:
    """A recurrence: at each step a launch for each nest inside."""
    found, device = ask.sketch, ask.device
    trips = seq.size
    nests = max(1, len(seq.children))
    seconds = 0.0
    rereads = 0.0
    work = Work()
    for nest in seq.children or [seq]:
        loads = [a for a in found.loads if a.level.within(nest)]
        stores = [a for a in found.stores if a.level.within(nest)]
        fixed = dict.fromkeys(seq.trips, 1)
        moved = _bytes(ask, loads, fixed), _bytes(ask, stores, fixed)
        parallel = nest.size if nest.kind == "par" else max(1, nest.size // 64)
        again = sum(a.level.times // trips * max(4, a.dtype.itemsize) for a in loads)
        mine = Work()
        for needs, level, done in found.work:
            if level.within(nest):
                mine += done * (prod(n for i, n in level.extents.items() if i in needs or i in seq.trips) // trips or 1)
        one = cost(device, Load(
            0.0, 0.0, moved[0] + moved[1], mine, local=again, blocks=max(1, parallel // THREADS), threads=THREADS,
            registers=min(255, 24 + found.live), least=device.latency, ahead=32.0,
        ))  # fmt: skip
        seconds += one.seconds * trips
        rereads += sum(moved) * trips
        work += mine * trips
    reads, writes = float(sum(ask.distinct(ask.loads).values())), float(sum(ask.distinct(ask.stores).values()))
    whole = cost(device, Load(reads, writes, rereads, work, launches=trips * nests, least=seconds - trips * nests
                              * device.graph_launch, registers=min(255, 24 + found.live), blocks=device.units))  # fmt: skip
    roles: dict[str, Role] = {i: "serial" for level in found.levels[1:] for i in level.trips}
    for nest in seq.children:
        if nest.kind == "par":
            roles.update(dict.fromkeys(nest.trips, "grid"))
    launches = tuple(Launch("main", max(1, nest.size // THREADS), THREADS, trips) for nest in seq.children or [seq])
    return Plan(NAME, roles, launches, whole, folds={a.id: "exact" for v in found.levels for a in v.accs},
                assumed=ask.assumed)  # fmt: skip


def _bytes(ask: Ask, accesses: list[Access], fixed: dict[str, int]) -> float:
    total = 0.0
    for b in dict.fromkeys(a.buffer for a in accesses):
        if b in ask.buffers:
            total += union(ask.sketch, [a for a in accesses if a.buffer == b], fixed) * ask.size(b)
    return total
