"""Row kernels: a group of threads, a block or a cluster takes a row and keeps it on chip while its loops follow one another.

Where a thread's part of the row fits its registers, everything is read once, before its first use, and folds are exact.
"""

from __future__ import annotations

from math import prod

from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import Launch, ceil_div, grid
from loopfuse.emit.rows_fit import Fit, choose, known_lengths, streaming
from loopfuse.emit.rows_shape import Shape, parse
from loopfuse.emit.rows_stream import Streams, once, streamable
from loopfuse.emit.rows_write import Rows
from loopfuse.ir import Loop, Store
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
    lengths = known_lengths(shape)
    fit = choose(shape, lengths, 0) if lengths is not None else None
    if fit is not None and (fit.blocks == 1 or not once(shape)):
        return _emitted(shape, fit, Rows(job.writer(), shape, fit))
    why = streamable(shape)
    if why:
        return Declined(why)
    fit = streaming(shape)
    return _emitted(shape, fit, Streams(job.writer(), shape, fit))


def _emitted(shape: Shape, fit: Fit, rows: Rows) -> Emitted:
    job = shape.job
    rows.write()
    who = f"{fit.threads} threads" if fit.blocks == 1 else f"{fit.blocks} blocks of {fit.threads} threads"
    what = "through memory" if isinstance(rows, Streams) else "in registers"
    why = f"rows by {who} each, {what}"
    spans = tuple(dict.fromkeys(s.span for s in walk(shape.body) if isinstance(s, Store) and s.span is not None))[:4]
    code = rows.w.function(
        job.name, fit.size, cluster=fit.blocks, head=[f"{job.kernel.id}: {why}"], kernel=job.kernel.id, schedule="row",
        why=why, spans=spans,
    )  # fmt: skip
    blocks = ceil_div(shape.rows, fit.together) * fit.blocks
    aligned = frozenset(
        s.buffer.id for s in shape.streams.values()
        if rows.piece(s) > s.buffer.dtype.itemsize and s.buffer.id not in job.ask.local
    )  # fmt: skip
    return Emitted((code,), (Launch(job.name, grid(blocks), rows.w.arguments),), (), aligned)
