"""Maps: every thread computes some elements of a parallel band, adjacent ones in vectors of 16 bytes.

The rule for what memory bounds (about 23 KB in flight a multiprocessor): all loads of a thread are issued before the first
use; two vectors of one operand, or one of each of several, are enough where many threads are resident, as was measured. What
lies otherwise in memory than the output goes through a tile in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from loopfuse.analysis.sketch import Level
from loopfuse.dtypes import F64
from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import Launch, grid
from loopfuse.emit.maps_access import Access, Axis, Study
from loopfuse.emit.maps_form import Form, Shape
from loopfuse.emit.maps_operands import Operands, registers
from loopfuse.emit.maps_plain import Plain
from loopfuse.emit.maps_tile import Tile, Turn, turn
from loopfuse.emit.straight import straightened
from loopfuse.ir import Let, Op, Store
from loopfuse.ops import OPS
from loopfuse.schedule.base import band, par_chain
from loopfuse.sizes import ZERO, Poly
from loopfuse.walking import own

THREADS, FEWEST = 256, 64
SPREAD = 64  # threads a multiprocessor below which vectors are narrower
MOST_VECTORS, MOST_ELEMENTS = 2, 8  # a thread and operand, the second where elements are taken by themselves
STREAMS = 2  # operands that come from memory, from which on one vector of each is enough in flight
MOST_HELD = 44  # registers for loaded operands and values of the body
MOST_WORK = 1100  # operations that are written out for one thread, for the sake of the compiler
RESIDENT, ALL_REGISTERS = 1024, 255  # threads of a multiprocessor, which then have 64 registers each
HEAVY = 25  # operations of a function from which on it may need many registers
BLOCKS = 4  # a multiprocessor, below which threads take fewer vectors
MOST_IDLE = 8  # one thread in so many may be idle where a row is not a whole number of blocks


def emit(job: Job) -> Emitted | Declined:
    """Kernels for a map: one, or none where the band is empty."""
    study = _study(job)
    if isinstance(study, Declined):
        return study
    accesses = study.accesses()
    if any(a.extent == ZERO for a in study.axes):
        return Emitted((), ())
    axes = study.order(accesses)
    operands = _operands(study, axes, accesses)
    if not study.positive([g.extent for g in operands.groups]):
        return Declined("the band may have several negative extents")
    turned = turn(study, operands)
    if turned is not None:
        return _tiled(study, operands, turned)
    return _plain(study, operands)


def _study(job: Job) -> Study | Declined:
    top = band(job.ask.sketch)
    if top is None or not par_chain(top):
        return Declined("there is no band of parallel loops")
    if job.ask.local or job.ask.own or len(job.ask.sketch.levels) > 1 + len(par_chain(top)):
        straight = straightened(job)
        if straight is None:
            return Declined("loops inside the band that are not a few steps, or an array between its threads")
        job, top = straight, band(straight.ask.sketch)
    chain = par_chain(top) if top is not None else []
    body = _flat(job, chain)
    if body is None or job.ask.local or job.ask.own:
        return Declined("statements beside the band, or an array that is written and read")
    study = Study(job, chain, body)
    return study if study.sound else Declined("bounds of the band that depend on its indices")


def _flat(job: Job, chain: Sequence[Level]) -> list[Let | Store] | None:
    """The statements of a band in order, those of outer loops among them; None with loops in them."""
    found: list[Let | Store] = []
    loops = {id(level.loop) for level in chain}
    pending = list(reversed(job.kernel.body))
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, Let | Store):
            found.append(stmt)
        elif id(stmt) in loops:
            pending += reversed(stmt.body)
        else:
            return None
    return found


def _operands(study: Study, axes: Sequence[Axis], accesses: Sequence[Access]) -> Operands:
    """The operands on the groups that let most elements be moved in vectors."""
    strict = Operands(study, study.groups(axes, accesses), accesses)
    if len(strict.groups) <= 1 or strict.width() > 1:
        return strict
    large = [a for a in accesses if not _small(study, a)]
    loose = Operands(study, study.groups(axes, large), accesses)
    return loose if loose.width() > 1 else strict


def _small(study: Study, access: Access) -> bool:
    if isinstance(access.node, Store):
        return False
    return prod((study.number(a.extent) for a in study.axes if a.id in access.depends), start=1) * 8 <= study.elements


# -- shapes -----------------------------------------------------------------------------------------------------------


def _plain(study: Study, operands: Operands) -> Emitted:
    shape = _shape(study, operands)
    form = Plain(study, operands, shape, _cached(study))
    blocks = form.write()
    return finished(study, form, shape.threads, blocks, _title(shape))


def _tiled(study: Study, operands: Operands, turned: Turn) -> Emitted:
    form = Tile(study, operands, turned, _cached(study))
    blocks = form.write()
    names = ", ".join(dict.fromkeys(o.access.node.buffer for o in form.turned))
    why = f"tiles of {turned.down} by {turned.across} elements, {names} turned in shared memory"
    return finished(study, form, form.shape.threads, blocks, why)


def finished(study: Study, form: Form, threads: int, blocks: Poly, why: str) -> Emitted:
    """The kernel and its launch."""
    job = study.job
    spans = tuple(dict.fromkeys(s.span for s in study.body if s.span is not None))[:4]
    name = f"{job.name}_map"
    kernel = form.w.function(name, threads, blocks=_resident(study, form, threads), head=[f"{job.kernel.id}: {why}"], kernel=job.kernel.id, schedule="map",
                             why=why, spans=spans)  # fmt: skip
    vectors = [*form.made, *(form.turned if isinstance(form, Tile) else [])]
    aligned = frozenset(o.access.buffer.id for o in vectors if o.piece > o.access.size)
    return Emitted((kernel,), (Launch(name, grid(study.target.poly(blocks)), form.w.arguments),), (), aligned)


def _resident(study: Study, form: Form, threads: int) -> int:
    """How many blocks a multiprocessor is to hold, 0 where that is left open.

    ptxas takes as few registers as it can unless it is told how many there are, and then it moves loads behind the use of
    others. Told that 64 will do, it issues all of them first. A large body may need more, and nothing is said.
    """
    heavy = any(isinstance(n, Op) and (OPS[n.op].flops >= HEAVY or (n.dtype == F64 and OPS[n.op].special))
                for stmt in study.body for n in own(stmt).nodes)  # fmt: skip
    if heavy or study.job.budget < ALL_REGISTERS or form.registers + study.job.ask.sketch.live > MOST_HELD:
        return 0
    return max(1, RESIDENT // threads)


def _title(shape: Shape) -> str:
    each = "an element" if shape.width == 1 else f"{shape.width} adjacent elements"
    return f"a thread takes {shape.vectors} times {each}" if shape.vectors > 1 else f"a thread takes {each}"


def _cached(study: Study) -> frozenset[str]:
    """Outputs that may be read again from the cache: those of no more than half of it."""
    half = study.target.device.cache // 2
    return frozenset(
        b for b in study.job.ask.stores if study.job.ask.sketch.elements(b) * study.job.ask.size(b) <= half
    )


def _shape(study: Study, operands: Operands) -> Shape:
    width, units = operands.width(), study.target.device.units
    while width > 1 and (study.elements < width * SPREAD * units or _work(study) * width > MOST_WORK):
        width //= 2
    if not operands.groups:
        return Shape("flat", 1, 1, 32)
    inner, outer = operands.groups[-1], operands.groups[:-1]
    columns = -(-study.number(inner.extent) // width)
    rows = prod(study.number(g.extent) for g in outer)
    threads, vectors = _amount(study, operands, width, rows * columns)
    if not outer:
        return Shape("flat", width, vectors, threads)
    known = all(study.target.number(g.extent) is not None for g in operands.groups)
    if known:
        across, down = _patch(columns, threads)
        idle = -(-columns // across) * across - columns
        patch = down * vectors
        if idle * MOST_IDLE <= columns and (rows % patch == 0 or rows >= MOST_IDLE * patch):
            return Shape("rows", width, vectors, across, down)
    return Shape("decoded", width, vectors, threads)


def _work(study: Study) -> int:
    """Operations for an element."""
    return sum(OPS[n.op].flops for stmt in study.body for n in own(stmt).nodes if isinstance(n, Op))


def _patch(columns: int, threads: int) -> tuple[int, int]:
    """Threads across and down a patch."""
    if columns <= threads:
        return columns, max(1, threads // columns)
    chunks = -(-columns // threads)
    return min(threads, (-(-columns // chunks) + 31) // 32 * 32), 1


def _amount(study: Study, operands: Operands, width: int, total: int) -> tuple[int, int]:
    """Threads a block and vectors a thread."""
    held = registers(operands.made(width), width, len(operands.groups))
    work = _work(study) * width
    vectors, units = MOST_VECTORS if width > 1 else MOST_ELEMENTS, study.target.device.units
    if width > 1 and sum(o.kind == "vector" and o.stream and not o.store for o in operands.made(width)) >= STREAMS:
        vectors = 1
    while vectors > 1 and (held * vectors + study.job.ask.sketch.live > MOST_HELD or work * vectors > MOST_WORK):
        vectors //= 2
    while vectors > 1 and (total < THREADS * vectors * units * BLOCKS or study.job.budget < ALL_REGISTERS):
        vectors //= 2
    threads = THREADS
    while threads > FEWEST and total < threads * units:
        threads //= 2
    return threads, vectors
