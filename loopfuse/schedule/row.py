"""Row: a group of threads, a block or a cluster takes a row; inner loops follow one another over it on chip."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Access, Level
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
from loopfuse.schedule.plan import Guard, Launch, Plan, Refusal, Role
from loopfuse.schedule.refusals import barrier, no_band, ordered, span_of

NAME = "row"
MOST_NESTED = 64  # trips of a loop inside the loops over a row: a thread runs it serially
REGISTER_BYTES = 256  # of a row that one thread keeps in registers
EASY = 64 << 10  # bytes of a row that a block holds so that two others fit beside it on its multiprocessor
SPREAD = 8  # blocks of a cluster, beyond which rows are spread only where they do not fit
# Elements of a row up to which so many threads share it.
GROUPS = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128), (1 << 60, 256))


@dataclass(frozen=True, slots=True)
class Held:
    """What of a row stays on chip: bytes of local buffers and of inputs that are read again, and their names."""

    locals: int
    inputs: int
    again: dict[str, int]
    cluster: int
    kept: bool


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with rows on chip, or why not."""
    top = band(ask.sketch)
    chain = par_chain(top) if top is not None else []
    if not chain:
        return no_band(NAME, ask)
    rows = chain[-1]
    if not rows.children:
        if len(chain) < 2 and len(chain[0].trips) < 2:
            return refuse(NAME, 1, "shape", f"{ask.title}: there is no loop over a row", ask)
        return refuse(NAME, 1, "shape", f"{ask.title}: every index is parallel; there is no loop over a row", ask)
    late = next((level for level in rows.below() if level.kind == "seq"), None)
    if late is not None:
        return ordered(NAME, 1, ask, late)
    grid = list(rows.extents)
    clash = agree(ask, grid, ask.own | ask.local)
    if clash is not None:
        return barrier(NAME, 2, ask, clash)
    for inner in rows.children:
        for nested in inner.below():
            if nested.times // inner.times > MOST_NESTED:
                return refuse(
                    NAME, 3, "nested", f"{ask.title}: a loop of {nested.size} inside the loop over the row is a "
                    "matrix product or a table, which a row schedule would do element by element", ask,
                    span=span_of(nested), needed=nested.size, limit=MOST_NESTED, unit="trips",
                )  # fmt: skip
    arrays = sum(prod(ask.sketch.value(p) for p in a.shape) for inner in rows.below() for a in inner.accs if a.shape)
    if arrays + ask.sketch.live + FIXED_REGISTERS > MOST_THREAD_REGISTERS:
        return out_of_registers(NAME, 4, ask, arrays + ask.sketch.live, MOST_THREAD_REGISTERS)
    held = _held(ask, rows)
    most = ask.device.shared * _clusters(ask)
    if held.locals > most:
        return refuse(
            NAME, 5, "shared", f"a row of {_row_names(ask)} takes {held.locals} bytes; a cluster of blocks holds "
            f"{most}", ask, lift="store it in memory: `pragma materialize(...)`", needed=held.locals, limit=most,
            unit="bytes",
        )  # fmt: skip
    return _plan(ask, rows, held, arrays)


def _clusters(ask: Ask) -> int:
    return max(1, ask.device.cluster)


def _row_names(ask: Ask) -> str:
    return ", ".join(f"`{b}`" for b in sorted(ask.local)) or "the inputs"


def readers(rows: Level, accesses: list[Access]) -> int:
    """In how many of the loops over the row the accesses happen."""
    return len({k for k, inner in enumerate(rows.children) for a in accesses if a.level.within(inner)})


def _held(ask: Ask, rows: Level) -> Held:
    one = dict.fromkeys(rows.extents, 1)
    spread = [b for b in ask.local if union(ask.sketch, [a for a in ask.sketch.stores if a.buffer == b], one) > 1]
    locals_ = local_bytes(ask, spread, one)
    again = {b: readers(rows, accesses) for b, accesses in ask.loads.items()}
    again |= {b: 1 + readers(rows, [a for a in ask.sketch.loads if a.buffer == b]) for b in ask.own}
    kept = {b: n for b, n in again.items() if n > 1}
    inputs = sum(
        union(ask.sketch, [a for a in ask.sketch.loads if a.buffer == b], one) * ask.size(b)
        for b in kept
        if _by_row(ask, b, rows)
    )
    room, cluster = ask.device.shared, 1
    while cluster < min(SPREAD, _clusters(ask)) and locals_ + inputs > EASY * cluster:
        cluster *= 2
    while cluster < _clusters(ask) and locals_ + inputs > room * cluster:
        cluster *= 2
    if locals_ + inputs > room * cluster:  # the inputs are read again
        cluster = max(1, min(_clusters(ask), -(-locals_ // room)))
        return Held(locals_, 0, kept, cluster, False)
    return Held(locals_, inputs, kept, cluster, True)


def _by_row(ask: Ask, buffer: str, rows: Level) -> bool:
    """Whether each row has its own part of the buffer."""
    return any(a.indices & rows.extents.keys() for a in ask.sketch.loads if a.buffer == buffer)


def _plan(ask: Ask, rows: Level, held: Held, arrays: int) -> Plan:
    found, device = ask.sketch, ask.device
    grid = list(rows.extents)
    count = prod(rows.extents.values())
    length = max(inner.size for inner in rows.children)
    lanes = [d.id for inner in rows.children for d in (inner.loop.dims[-1:] if inner.loop else ())]
    group = next(g for limit, g in GROUPS if length <= limit)
    threads = max(256, group)
    together = max(1, threads // group) if not held.cluster > 1 else 1
    row_bytes = held.locals + held.inputs
    moved = traffic(ask, _tile(rows, together), -(-count // together), lanes, ())
    reads, rereads = moved.reads, moved.rereads
    if not held.kept:
        for b, times in held.again.items():
            whole = union(found, [a for a in found.loads if a.buffer == b]) * ask.size(b)
            row = whole / max(1, count) if _by_row(ask, b, rows) else 0.0
            if row * device.units * 2 > device.cache:
                reads += whole * (times - 1)
            else:
                rereads += whole * (times - 1)
    each = -(-length // group)
    in_registers = row_bytes <= group * REGISTER_BYTES * held.cluster
    kept_registers = row_bytes // (group * 4 * held.cluster) if in_registers else 0
    registers = min(255, FIXED_REGISTERS + found.live + arrays + kept_registers + 4)
    shared = 1024 + (0 if in_registers else row_bytes * together // held.cluster)
    blocks = -(-count // together) * held.cluster
    waves = 1.0 if held.cluster == 1 else 1.05
    result = cost(device, Load(
        reads * waves, moved.writes * waves, rereads, found.total, blocks=blocks, threads=threads,
        registers=registers, shared=min(shared, device.shared),
        ahead=min(128.0, max(4.0, each * moved.widest * moved.streams)),
    ))  # fmt: skip
    return Plan(
        NAME, _roles(rows, group), (Launch("main", blocks, threads),), result,
        tiles={**dict.fromkeys(grid, 1), "rows": together, "threads a row": group, "cluster": held.cluster},
        folds=_folds(rows, group, held.cluster), place=_place(ask, in_registers, held),
        guards=_guards(ask, rows, held), rounding=_rounding(rows), assumed=ask.assumed,
    )  # fmt: skip


def _tile(rows: Level, together: int) -> dict[str, int]:
    tile = dict.fromkeys(rows.extents, 1)
    last = list(rows.extents)[-1]
    tile[last] = min(rows.extents[last], together)
    return tile


def _roles(rows: Level, group: int) -> dict[str, Role]:
    roles: dict[str, Role] = dict.fromkeys(rows.extents, "grid")
    for inner in rows.children:
        roles.update(dict.fromkeys(inner.trips, "lane" if group <= 32 else "block"))
        for nested in inner.below():
            roles.update(dict.fromkeys(nested.trips, "serial"))
    return roles


def _folds(rows: Level, group: int, cluster: int) -> dict[str, str]:
    tree = "vector, lanes" + (", block" if group > 32 else "") + (", cluster" if cluster > 1 else "")
    found = {}
    for level in rows.below():
        for acc in level.accs:
            kind = "online(1)" if acc.repair is not None else "exact"
            found[acc.id] = f"{kind}: {tree}" if level in rows.children else f"{kind}: serial"
    return found


def _place(ask: Ask, in_registers: bool, held: Held) -> dict[str, str]:
    where = "register" if in_registers else "distributed" if held.cluster > 1 else "shared"
    place = dict.fromkeys(sorted(ask.local), where)
    if held.kept:
        place.update(dict.fromkeys(sorted(held.again), where))
    return place


def _guards(ask: Ask, rows: Level, held: Held) -> tuple[Guard, ...]:
    """Where the row fits only because of a stand-in."""
    if not held.locals:
        return ()
    inner = max(rows.children, key=lambda level: level.size)
    name = next(iter(inner.trips))
    if not ask.uncertain(inner, name):
        return ()
    limit = ask.device.shared * _clusters(ask) * inner.trips[name] // max(1, held.locals)
    return ask.guard(inner, name, "<=", limit, "the loops of the row apart, through memory")


def _rounding(rows: Level) -> tuple[str, ...]:
    return ("online folds",) if any(a.repair is not None for level in rows.below() for a in level.accs) else ()
