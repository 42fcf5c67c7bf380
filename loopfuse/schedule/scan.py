"""Scan: iterations that follow one another run inside one kernel; what they carry stays in registers or on chip.

Indices that every carried value is written and read at alike are lanes, spread over the grid. The others meet at each
step inside a block, behind a barrier; where a step is too large for a block, the whole grid would have to wait.
"""

from __future__ import annotations

from math import prod

from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Access, Level
from loopfuse.schedule.base import (
    FIXED_REGISTERS,
    MOST_THREAD_REGISTERS,
    Ask,
    local_bytes,
    out_of_registers,
    par_chain,
    refuse,
    traffic,
)
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import span_of, subscript

NAME = "scan"
THREADS = 256
MOST_STEP = 8192  # elements of one step that a block computes
BARRIER = 4.0e-8  # seconds, within a block
LOOKBACK = 1.15  # of the time of a copy that a prefix over the grid takes

Node = tuple[int, object]


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with lanes and steps, or why not."""
    found = ask.sketch
    ordered = [level for level in found.levels[1:] if level.kind == "seq"]
    if not ordered:
        return _prefix(ask)
    outer = [level for level in ordered if not any(level is not o and level.within(o) for o in ordered)]
    if len(outer) > 1 or len(outer) != len(ordered):
        return refuse(NAME, 1, "recurrence", f"{ask.title}: more than one recurrence", ask, span=span_of(outer[1])
                      if len(outer) > 1 else None)  # fmt: skip
    seq = outer[0]
    if any(level.kind != "par" for level in seq.chain()[:-1]):
        return refuse(NAME, 1, "recurrence", f"{ask.title}: a recurrence inside a reduction", ask, span=span_of(seq))
    lanes = _Lanes(ask, seq)
    widest = max((lanes.step(nest) for nest in _nests(seq)), default=1)
    if widest > MOST_STEP:
        return _too_wide(ask, seq, lanes, widest)
    if found.live + FIXED_REGISTERS > MOST_THREAD_REGISTERS:
        return out_of_registers(NAME, 3, ask, found.live, MOST_THREAD_REGISTERS)
    return _plan(ask, seq, lanes, widest)


def _nests(seq: Level) -> list[Level]:
    return [c for c in seq.children if c.kind in ("par", "fold")] or [seq]


class _Lanes:
    """Which indices are lanes: classes of axes of carried buffers and of the parallel indices that stand in them."""

    def __init__(self, ask: Ask, seq: Level) -> None:
        self.ask, self.seq = ask, seq
        self.parent: dict[Node, Node] = {}
        self.broken: set[Node] = set()
        self.why: Access | None = None
        found = ask.sketch
        carried = found.written & found.read
        for a in (*found.stores, *found.loads):
            if a.buffer in carried:
                self._access(a)
        for level in found.levels[1:]:
            if level.kind in ("fold", "prefix"):
                for i in level.trips:
                    self._break((id(level), i), None)

    def _access(self, a: Access) -> None:
        inner = {i: level for level in a.level.chain() for i in level.trips if level.kind != "seq"}
        met: set[str] = set()
        for axis, poly in enumerate(a.polys):
            here = [i for i in (poly.names if poly is not None else a.indices) if i in inner]
            if not here:
                continue
            node = (0, (a.buffer, axis))
            plain = poly is not None and len(here) == 1 and a.modes[axis] is None and poly.name == here[0]
            for i in here:
                self._join(node, (id(inner[i]), i))
                met.add(i)
            if not plain:
                self._break(node, a)
        for i, level in inner.items():
            if i not in met and level.kind == "par":
                self._break((id(level), i), a)

    def _find(self, node: Node) -> Node:
        while self.parent.setdefault(node, node) != node:
            node = self.parent[node]
        return node

    def _join(self, a: Node, b: Node) -> None:
        a, b = self._find(a), self._find(b)
        if a != b:
            self.parent[b] = a
            if b in self.broken:
                self.broken.add(a)

    def _break(self, node: Node, access: Access | None) -> None:
        self.broken.add(self._find(node))
        if access is not None and self.why is None and access.level.within(self.seq):
            self.why = access

    def free(self, level: Level, index: str) -> bool:
        """Whether an index is a lane."""
        return level.kind == "par" and self._find((id(level), index)) not in self.broken

    def lanes(self, nest: Level) -> int:
        """How many lanes a nest has, those round the recurrence included."""
        levels = [*nest.chain(), *nest.below()]
        return prod(level.trips[i] for level in levels for i in level.trips if self.free(level, i))

    def step(self, nest: Level) -> int:
        """How many elements a nest computes for each lane at each step."""
        levels = [level for level in [*nest.chain(), *nest.below()] if level.within(self.seq) and level.kind == "par"]
        return prod(level.trips[i] for level in levels for i in level.trips if not self.free(level, i))


def _too_wide(ask: Ask, seq: Level, lanes: _Lanes, widest: int) -> Refusal:
    index = next(iter(seq.trips))
    read = subscript(lanes.why) if lanes.why is not None else ask.title
    return refuse(
        NAME, 2, "recurrence", f"each step of `{index}` needs values that other elements computed in the step before, "
        f"over {widest} elements; a block computes {MOST_STEP} a step, and blocks do not wait for one another", ask,
        detail=f"read as {read}", lift="a launch for each step", span=span_of(seq), needed=widest, limit=MOST_STEP,
        unit="elements a step",
    )  # fmt: skip


def _plan(ask: Ask, seq: Level, lanes: _Lanes, widest: int) -> Plan:
    found, device = ask.sketch, ask.device
    nests = _nests(seq)
    count = max(1, max(lanes.lanes(nest) for nest in nests))
    trips = seq.size
    meets = widest > 1
    together = max(1, min(count // device.units, MOST_STEP // widest)) if meets else THREADS
    blocks = -(-count // together)
    threads = min(1024, max(64, widest)) if meets else THREADS
    free = {i for nest in nests for level in [*nest.chain(), *nest.below()] for i in level.trips
            if lanes.free(level, i)}  # fmt: skip
    tile = dict.fromkeys(free, 1)
    moved = traffic(ask, tile if meets else dict.fromkeys(free, 1), blocks if meets else 1, sorted(free), ())
    rereads = 0.0
    if meets:
        for b, accesses in ask.loads.items():
            again = [a for a in accesses if a.level.within(seq) and not a.indices & seq.trips.keys()]
            if again:
                rereads += blocks * (trips - 1) * union(found, again, tile) * ask.size(b)
    state = local_bytes(ask, ask.local, {**tile, **dict.fromkeys(seq.trips, 2)})
    phases = len(nests)
    fed = any(a.level.within(seq) for accesses in ask.loads.values() for a in accesses)
    step = (BARRIER * phases + device.latency * 0.5 * fed) if meets else device.latency * (0.15 if fed else 0.02)
    result = cost(device, Load(
        moved.reads, moved.writes, rereads, found.total, blocks=blocks, threads=threads, least=trips * step,
        registers=min(255, FIXED_REGISTERS + found.live + 8), shared=min(device.shared, 1024 + state * meets * together),
        ahead=32.0,
    ))  # fmt: skip
    roles: dict[str, Role] = {}
    for level in found.levels[1:]:
        for i in level.trips:
            serial = level.kind != "par" or level is seq
            roles[i] = "serial" if serial else "grid" if lanes.free(level, i) else "block"
    return Plan(
        NAME, roles, (Launch("main", blocks, threads),), result, tiles={"lanes": together},
        folds={a.id: "exact: serial, block" for level in found.levels for a in level.accs},
        place=dict.fromkeys(sorted(ask.local), "shared" if meets else "register"), assumed=ask.assumed,
    )  # fmt: skip


def _prefix(ask: Ask) -> Plan | Refusal:
    """Running folds over everything, with nothing beside them: decoupled look-back over blocks."""
    found = ask.sketch
    tops = found.root.children
    if not any(level.kind == "prefix" for level in found.levels[1:]):
        return refuse(NAME, 0, "shape", f"{ask.title}: nothing follows in order", ask)
    chain = par_chain(tops[0]) if tops else []
    place = chain[-1] if chain else found.root
    if len(tops) != 1 or len(place.children) != 1 or place.children[0].kind != "prefix" or place.children[0].children:
        return refuse(NAME, 1, "barrier", f"{ask.title}: a running fold beside other loops", ask,
                      lift="kernels of their own")  # fmt: skip
    prefix = place.children[0]
    rows = prod(place.extents.values())
    blocks = max(1, rows * -(-prefix.size // (THREADS * 8)))
    moved = traffic(ask, {}, 1, list(prefix.trips)[-1:], ())
    result = cost(ask.device, Load(
        moved.reads * LOOKBACK, moved.writes * LOOKBACK, 32.0 * blocks, found.total, blocks=blocks, threads=THREADS,
        registers=min(255, FIXED_REGISTERS + found.live + 16), ahead=32.0, least=2 * ask.device.latency,
    ))  # fmt: skip
    roles: dict[str, Role] = {**dict.fromkeys(place.extents, "grid"), **dict.fromkeys(prefix.trips, "split")}
    return Plan(
        NAME, roles, (Launch("main", blocks, THREADS),), result, tiles={"items a thread": 8},
        folds={a.id: "exact: vector, lanes, block, look-back" for a in prefix.accs}, workspace=32 * blocks,
        assumed=ask.assumed,
    )  # fmt: skip
