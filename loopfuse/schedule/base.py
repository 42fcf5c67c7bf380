"""What every schedule needs: the question, what it may say, traffic of a tiling, and who sees whose stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from loopfuse.analysis.env import Env
from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Access, Level, Numbers, Sketch
from loopfuse.decisions import Cause
from loopfuse.devices import Device
from loopfuse.diag import Span
from loopfuse.ir import Buffer, Kernel, Let
from loopfuse.schedule.plan import Guard, Plan, Refusal
from loopfuse.sizes import ONE, Poly

MOST_THREAD_REGISTERS = 232
FIXED_REGISTERS = 18  # addresses, indices, the stack of a plain kernel
SECTOR = 32
HELD = 16  # values of one operand that a thread keeps while it runs serially


@dataclass
class Ask:
    """The question: a finished kernel and its surroundings. Everything that several schedules use is made once."""

    kernel: Kernel
    buffers: Mapping[str, Buffer]
    env: Env
    live: frozenset[str]
    sketch: Sketch
    extra: dict[str, int] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The machine."""
        return self.env.device

    @cached_property
    def local(self) -> frozenset[str]:
        """Buffers that need not exist in device memory: written and read here alone."""
        found = self.sketch
        return frozenset(
            b for b in found.written
            if b in self.buffers and b not in self.live
            and (self.buffers[b].scope == "local" or self.buffers[b].role == "temp") and b in found.read
        )  # fmt: skip

    @cached_property
    def own(self) -> frozenset[str]:
        """Buffers in device memory that the kernel both writes and reads."""
        return (self.sketch.written & self.sketch.read) - self.local

    @cached_property
    def loads(self) -> dict[str, list[Access]]:
        """Loads by buffer, from memory (not of what the kernel wrote itself), in textual order."""
        found: dict[str, list[Access]] = defaultdict(list)
        for a in self.sketch.loads:
            if a.buffer not in self.sketch.written:
                found[a.buffer].append(a)
        return dict(found)

    @cached_property
    def stores(self) -> dict[str, list[Access]]:
        """Stores by buffer, of those that reach memory, in textual order."""
        found: dict[str, list[Access]] = defaultdict(list)
        for a in self.sketch.stores:
            if a.buffer not in self.local:
                found[a.buffer].append(a)
        return dict(found)

    @cached_property
    def assumed(self) -> frozenset[str]:
        """The stand-ins that have part in the numbers."""
        named: set[str] = set()
        for level in self.sketch.levels:
            for dim in level.loop.dims if level.loop else ():
                for poly in (*dim.lo, *dim.hi, dim.step):
                    named |= poly.names
        for b in self.sketch.read | self.sketch.written:
            for poly in self.buffers[b].shape if b in self.buffers else ():
                named |= poly.names
        return (self.env.assumed & named) - {s.id for s in self.env.program.sizes if s.origin == "plan"}

    def size(self, buffer: str) -> int:
        """Bytes of an element."""
        return self.buffers[buffer].dtype.itemsize

    def distinct(self, groups: Mapping[str, list[Access]]) -> dict[str, int]:
        """Bytes that are touched of each buffer."""
        return {b: union(self.sketch, accesses) * self.size(b) for b, accesses in groups.items()}

    def uncertain(self, level: Level, *names: str) -> bool:
        """Whether a stand-in has part in the extents of the indices."""
        for at in level.chain():
            for dim in at.loop.dims if at.loop else ():
                if dim.id in names and any(p.names & self.env.assumed for p in (*dim.lo, *dim.hi)):
                    return True
        return False

    def extent_text(self, level: Level, name: str) -> str:
        """The extent of an index in the words of the program."""
        for at in level.chain():
            for dim in at.loop.dims if at.loop else ():
                if dim.id == name:
                    return str(dim.hi[0] - dim.lo[0]) if len(dim.hi) == len(dim.lo) == 1 else str(dim.hi[0])
        return name

    def guard(self, level: Level, name: str, relation: str, limit: int, otherwise: str) -> tuple[Guard, ...]:
        """A guard on the extent of an index, where a stand-in has part in it."""
        if not self.uncertain(level, name):
            return ()
        return (Guard(f"{self.extent_text(level, name)} {relation} {limit}", otherwise),)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Where the kernel's stores come from."""
        found = dict.fromkeys(a.span for a in self.sketch.stores if a.span is not None)
        return tuple(found)[:4]

    @cached_property
    def title(self) -> str:
        """The kernel in the user's words: what it computes."""
        made = [b for b in dict.fromkeys(a.buffer for a in self.sketch.stores) if b not in self.local]
        names = made or list(dict.fromkeys(a.buffer for a in self.sketch.stores))
        shown = ", ".join(f"`{n}`" for n in names[:3])
        return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


Schedule = Callable[[Ask], Plan | Refusal]


def refuse(name: str, passed: int, code: str, message: str, ask: Ask, *, detail: str = "", lift: str = "",
           span: Span | None = None, needed: float | None = None, limit: float | None = None,
           unit: str = "") -> Refusal:  # fmt: skip
    """A refusal; `passed` is how many checks went well before."""
    spans = (span,) if span is not None else ask.spans
    return Refusal(name, Cause(code, message, detail, lift, spans, needed, limit, unit), passed)


def out_of_registers(name: str, passed: int, ask: Ask, needed: int, limit: int, what: str = "values") -> Refusal:
    """The refusal of a body that holds too much at once."""
    return refuse(
        name, passed, "registers",
        f"the group {ask.title} holds {needed} live {what} a thread; the limit is {limit} registers", ask,
        lift="keep some of it apart: `pragma materialize(...)` on a value in the middle",
        needed=needed, limit=limit, unit="registers",
    )  # fmt: skip


# -- structure --------------------------------------------------------------------------------------------------------


def band(found: Sketch) -> Level | None:
    """The one outermost loop, where the kernel is one loop and lets; else None."""
    loops = found.root.children
    only_lets = all(isinstance(s, Let) for s in found.kernel.body if s is not (loops[0].loop if loops else None))
    return loops[0] if len(loops) == 1 and only_lets else None


def par_chain(level: Level) -> list[Level]:
    """The par loops that hold nothing but lets and the next par loop, from `level` inward."""
    found = []
    at: Level | None = level
    while at is not None and at.kind == "par" and at.loop is not None and at.loop.where is None:
        found.append(at)
        inner = [s for s in at.loop.body if not isinstance(s, Let)]
        at = at.children[0] if len(inner) == 1 and at.children else None
    return found


def product(extents: Mapping[str, int], names: Collection[str]) -> int:
    """The product of the extents of the indices."""
    return prod(extents[n] for n in names if n in extents)


# -- who sees whose stores --------------------------------------------------------------------------------------------


def agree(ask: Ask, grid: Collection[str], buffers: Collection[str]) -> tuple[str, Access, Access] | None:
    """L12: accesses of buffers that are written and read here must name one block by every grid index.

    None where they do; else the buffer, and a store and a load that different blocks may do.
    """
    found = ask.sketch
    for b in sorted(buffers, key=lambda b: next(k for k, a in enumerate(found.stores) if a.buffer == b)):
        writes = [a for a in found.stores if a.buffer == b]
        reads = [a for a in found.loads if a.buffer == b]
        for w in writes:
            for r in reads:
                levels = (w.level, r.level)
                here = [g for g in grid if not all(_single(v, g) for v in levels if g in v.extents)]
                if not _never_meet(w, r) and not all(_same_block(ask, w, r, g) for g in here):
                    return b, w, r
    return None


def _never_meet(w: Access, r: Access) -> bool:
    """Whether a subscript that no loop of the kernel moves is another one in the two accesses."""
    for p, q, mode in zip(w.polys, r.polys, r.modes, strict=True):
        if p is not None and q is not None and mode is None and (gap := p - q).is_const and gap.constant:
            moving = w.level.extents.keys() | r.level.extents.keys()
            if not (p.names | q.names) & moving:
                return True
    return False


def _single(level: Level, index: str) -> bool:
    """Whether an index takes one value only, at any size."""
    for at in level.chain():
        for dim in at.loop.dims if at.loop else ():
            if dim.id == index:
                return len(dim.lo) == len(dim.hi) == 1 and dim.hi[0] - dim.lo[0] == ONE
    return False


def _same_block(ask: Ask, w: Access, r: Access, index: str) -> bool:
    """Whether equal elements imply equal values of the index: some subscript is the same in it, and the rest of that
    subscript stays below its factor."""
    for p, q, mode in zip(w.polys, r.polys, r.modes, strict=True):
        if p is None or q is None or mode is not None or p.degree(index) != 1 or q.degree(index) != 1:
            continue
        factor = p.coefficient(index)
        if factor != q.coefficient(index):
            continue
        rest, other = p - factor * Poly.of(index), q - factor * Poly.of(index)
        if rest == other and not rest.names & w.level.extents.keys():
            return True
        size = abs(ask.sketch.value(factor)) if not factor.names & w.level.extents.keys() else 0
        if all(lo >= 0 and hi < size for lo, hi in (_range(ask, rest, w), _range(ask, other, r))):
            return True
    return False


def _range(ask: Ask, poly: Poly, access: Access) -> tuple[int, int]:
    """The least and the greatest value of a polynomial over the loops round an access, in numbers."""
    level, numbers = access.level, dict(ask.sketch.numbers)
    ends = []
    for upper in (False, True):
        for name in poly.names & level.extents.keys():
            rising = ask.sketch.value(poly.coefficient(name)) >= 0 if poly.degree(name) == 1 else True
            numbers[name] = level.lows[name] + (level.extents[name] - 1 if rising == upper else 0)
        ends.append(int(poly.value(Numbers(numbers))))
    return min(ends), max(ends)


# -- traffic ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read from and written to memory, and bytes that come again from the cache. `streams`: operands that are
    not small."""

    reads: float
    writes: float
    rereads: float
    streams: int
    widest: int


def coalescing(ask: Ask, access: Access, lanes: Collection[str], grid: Collection[str]) -> float:
    """How many times more bytes an access moves than it needs, for threads side by side along `lanes`.

    A strided access whose contiguous index is on the grid too goes through a tile in shared memory.
    """
    shape = ask.sketch.shape(access.buffer)
    item = ask.size(access.buffer)
    if not access.indices & set(lanes):
        return 1.0
    last = next((k for k in range(len(shape) - 1, -1, -1) if shape[k] > 1), None)
    if last is None:
        return 1.0
    axis = access.axes[last]
    if access.polys[last] is None:
        return max(1.0, SECTOR / item)
    unit = {n for n, f in axis.factors if abs(f) <= 1.0}
    if unit & set(lanes):
        moved = any(access.polys[k] is None and set(lanes) & access.indices for k in range(last))
        return max(1.0, SECTOR / item) if moved else 1.0
    if unit & set(grid):
        return 1.15
    worst = max(1.0, SECTOR / item)
    if unit:
        return min(2.0, worst)
    steps = [abs(f) for n, f in axis.factors if n in lanes]
    return min(worst, max(1.0, min(steps))) if steps else worst


def traffic(ask: Ask, tile: Mapping[str, int], blocks: int, lanes: Collection[str], grid: Collection[str]) -> Traffic:
    """The traffic of blocks that each take `tile` consecutive values of some indices and all values of the others."""
    found, cache = ask.sketch, ask.device.cache
    reads = writes = rereads = 0.0
    streams, widest = 0, 1
    outputs = max((found.elements(b) for b in ask.stores), default=1)
    for b, accesses in ask.loads.items():
        size, factor = ask.size(b), max(coalescing(ask, a, lanes, grid) for a in accesses)
        whole = union(found, accesses) * size
        again = max(0.0, float(union(found, accesses, tile)) * size * blocks - whole)
        reads += whole * (factor if whole > cache // 4 else min(factor, 1.15))
        if whole > cache:
            missed = min(1.0, max(0.0, whole - cache) / whole) if again > whole and _scattered(accesses) else 0.0
            reads += again * missed
            again *= 1 - missed
        rereads += again
        if whole * 4 >= outputs * size:
            streams, widest = streams + 1, max(widest, size)
    for b, accesses in ask.stores.items():
        size = ask.size(b)
        factor = max(coalescing(ask, a, lanes, grid) for a in accesses)
        writes += union(found, accesses) * size * factor
        widest = max(widest, size)
    return Traffic(reads, writes, rereads, max(1, streams), widest)


def _scattered(accesses: list[Access]) -> bool:
    return any(a.gathered for a in accesses)


def local_bytes(ask: Ask, names: Collection[str], fixed: Mapping[str, int]) -> int:
    """Bytes of the local buffers that exist at once while the indices in `fixed` take so many values."""
    found = ask.sketch
    total = 0
    for b in names:
        accesses = [a for a in (*found.stores, *found.loads) if a.buffer == b]
        total += union(found, accesses, fixed) * ask.size(b)
    return total


def instructions(ask: Ask, shared: int = 1) -> float:
    """Bytes that loads move between threads and the first-level cache.

    A value that few serial iterations tell apart is held in registers; one load serves `shared` uses of a value that
    does not follow the band's last index.
    """
    total = 0.0
    for a in ask.sketch.loads:
        chain = a.level.chain()
        lane = next(reversed(chain[0].trips), "") if chain else ""
        band_ = [level for level in chain if level.kind == "par"]
        serial = {i: n for level in chain if level not in band_ for i, n in level.trips.items()}
        follows = prod(n for i, n in serial.items() if i in a.indices)
        times = a.level.times // prod(serial.values()) * follows if follows <= HELD else a.level.times
        size = ask.size(a.buffer) if a.buffer in ask.buffers else 4
        total += times / (1 if lane in a.indices else shared) * max(4, size)
    return total
