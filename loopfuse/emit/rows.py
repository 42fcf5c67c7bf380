"""Row kernels: a group of threads, a block or a cluster takes a row and keeps it on chip while its loops follow one another.

Where a thread's part of the row fits its registers, everything is read once, before its first use, and folds are exact.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from loopfuse.emit import rows_staged
from loopfuse.emit.approx import Approximations, approximations
from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import Launch, ceil_div, grid
from loopfuse.emit.rows_fit import Fit, choose, known_lengths, streaming
from loopfuse.emit.rows_keep import keep
from loopfuse.emit.rows_shape import Shape, parse, settled
from loopfuse.emit.rows_staged import Staged, staging
from loopfuse.emit.rows_stream import Streams, once, streamable
from loopfuse.emit.rows_write import Rows
from loopfuse.ir import Let, Loop, Store
from loopfuse.sizes import ONE
from loopfuse.walking import walk

MOST_ARRAY = 32  # elements of an array accumulator that a thread keeps in registers


def emit(job: Job) -> Emitted | Declined:
    """A kernel for a plan of the row schedule, or why it is left to the general emitter."""
    shape = parse(job)
    if isinstance(shape, Declined):
        return shape
    for stmt in shape.body:
        for acc in stmt.accs if isinstance(stmt, Loop) else ():
            count = job.target.number(prod(acc.shape, start=ONE))
            if acc.shape and (count is None or count > MOST_ARRAY):
                return Declined(f"the array accumulator `{acc.id}` is too large for registers")
            if acc.shape and acc.repair is not None:
                return Declined(f"the array accumulator `{acc.id}` has a repair")
    return _staged(shape) or _in_registers(shape) or _through_memory(shape)


def _in_registers(shape: Shape) -> Emitted | None:
    """With the row in registers, where it fits and is not read once only."""
    lengths = known_lengths(shape)
    if lengths is None:
        return None
    near = _near(shape)
    found = keep(shape, near)
    kept = settled(shape, found.body) if found.lets else shape
    for option, lets in ((kept, found.lets), (shape, {})) if isinstance(kept, Shape) else ((shape, {}),):
        fit = choose(option, lengths, [line.number for line in lets.values()])
        if fit is not None and (fit.blocks == 1 or not once(shape)):
            rows = Rows(shape.job.writer(), option, fit)
            rows.spelled(near, lets)
            return _emitted(option, fit, rows)
    return None


def _staged(shape: Shape) -> Emitted | None:
    """With the row in shared memory, where it is long and not read once only."""
    fit = None if once(shape) else staging(shape)
    if fit is None:
        return None
    rows = Staged(shape.job.writer(), shape, fit)
    rows.spelled(_near(shape))
    return _emitted(shape, fit, rows)


def _near(shape: Shape) -> Approximations:
    """The approximations that exact passes may use."""
    job = shape.job
    around = [s for b in shape.bands for s in b.body if isinstance(s, Let)]
    exact = [replace(s, accs=tuple(replace(a, repair=None) for a in s.accs)) if isinstance(s, Loop) else s
             for s in shape.body]  # fmt: skip
    return approximations((*shape.tops, *around, *exact), job.buffers, job.target.numerics, job.ask.local)


def _through_memory(shape: Shape) -> Emitted | Declined:
    """With the row in memory, read by every loop."""
    job = shape.job
    why = streamable(shape)
    if why:
        return Declined(why)
    fit = streaming(shape)
    rows = Streams(job.writer(), shape, fit)
    rows.spelled(approximations(job.kernel.body, job.buffers, job.target.numerics, job.ask.local))
    return _emitted(shape, fit, rows)


def _emitted(shape: Shape, fit: Fit, rows: Rows) -> Emitted:
    job = shape.job
    rows.write()
    who = f"{fit.threads} threads" if fit.blocks == 1 else f"{fit.blocks} blocks of {fit.threads} threads"
    what = "through memory" if isinstance(rows, Streams) else "in registers"
    what = "in shared memory" if isinstance(rows, Staged) else what
    why = f"rows by {who} each, {what}"
    spans = tuple(dict.fromkeys(s.span for s in walk(shape.body) if isinstance(s, Store) and s.span is not None))[:4]
    code = rows.w.function(
        job.name, fit.size, cluster=fit.blocks, blocks=rows_staged.RESIDENT if isinstance(rows, Staged) else 0, head=[f"{job.kernel.id}: {why}"], kernel=job.kernel.id, schedule="row",
        why=why, spans=spans,
    )  # fmt: skip
    blocks = ceil_div(shape.rows, fit.together) * fit.blocks
    aligned = frozenset(
        s.buffer.id for s in shape.streams.values()
        if rows.piece(s) > s.buffer.dtype.itemsize and s.buffer.id not in job.ask.local
    )  # fmt: skip
    return Emitted((code,), (Launch(job.name, grid(blocks), rows.w.arguments),), (), aligned)
