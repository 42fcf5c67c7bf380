"""Rows in shared memory: each thread copies its part of the row there by itself, asynchronously and past its registers, and
reads it back in every loop. Several blocks fit on a multiprocessor, so that the copies of one hide the loops of another."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse.emit.rows_fit import Fit, known_lengths, widths
from loopfuse.emit.rows_shape import Line, Shape, Stream
from loopfuse.emit.rows_write import Rows
from loopfuse.emit.writer import storage
from loopfuse.ir import Acc, Stmt

LEAST_BYTES = 24 << 10  # of a row, from which on it is staged
THREADS = 256  # of a block
RESIDENT = 4  # blocks of a multiprocessor
UNROLLED = 4  # vectors of a loop that are written out
CACHED = 32 << 10  # bytes that all rows share, from which on they should find room in the first-level cache
MOST_HELD = 8  # vectors of an operand that are rather kept in registers then


def early(shape: Shape) -> list[Stream]:
    """The operands of which every row has a part of its own, in the order in which they are needed."""
    return sorted((s for s in shape.streams.values() if s.row and s.stored < 0), key=lambda s: s.first)


def held(shape: Shape, fit: Fit) -> list[Stream]:
    """Operands of a row that are kept in registers all the same: what is left of the shared memory is the first-level
    cache, which serves what all rows share."""
    shared = sum(shape.target.number(s.run.length) or 0 for s in shape.streams.values() if not s.row and s.stored < 0)
    item = max((s.buffer.dtype.itemsize for s in shape.streams.values()), default=4)
    if shared * item < CACHED * fit.blocks:
        return []
    return [s for s in early(shape) if len(s.readers) > 1 and fit.vectors[s.run] <= MOST_HELD]


def staging(shape: Shape) -> Fit | None:
    """How many blocks share a row that is staged; None where that is not worth it, or does not go."""
    lengths = known_lengths(shape)
    streams = early(shape)
    if lengths is None or not streams or any(s.stored >= 0 and s.last >= 0 for s in shape.streams.values()):
        return None
    width = widths(shape)
    if any(width[s.run] * s.buffer.dtype.itemsize < 16 or s.align < 16 for s in streams):
        return None
    device = shape.job.target.device
    size = sum(lengths[s.run] * s.buffer.dtype.itemsize for s in streams)
    rows = shape.target.number(shape.rows)
    if size < LEAST_BYTES or (rows is not None and rows < device.units):
        return None
    blocks, room = 1, (device.shared + 1024) // RESIDENT - 2048
    while blocks < device.cluster and blocks < 8 and size > room * blocks:
        blocks *= 2
    found = Fit(THREADS, blocks, THREADS, 1, width)
    for run, length in lengths.items():
        found.vectors[run] = -(-length // (found.sharing * width[run]))
    return found if staged_bytes(found, streams) <= device.shared - 2048 else None


def staged_bytes(fit: Fit, streams: list[Stream]) -> int:
    """The shared memory of a block."""
    return sum(fit.vectors[s.run] * fit.size * fit.width[s.run] * s.buffer.dtype.itemsize for s in streams)


class Staged(Rows):
    """Statements of a thread whose part of the row is in shared memory."""

    def ahead(self) -> None:
        """Start the copies of the whole row, a group an operand."""
        w = self.w
        self.staged: dict[Stream, str] = {}
        kept = held(self.shape, self.fit)
        self.unroll = "" if kept else str(UNROLLED)
        for stream in kept:
            self.fetch(stream)
        self.streams = [s for s in early(self.shape) if s not in kept]
        self.pending = len(self.streams)
        for stream in self.streams:
            kind, width, count = storage(stream.buffer.dtype), self.fit.width[stream.run], self.fit.vectors[stream.run]
            name = self.staged[stream] = w.names.fresh(f"{stream.buffer.id}.stage")
            at = self.take(count * self.fit.size * 16)
            w.line(f"{kind}* {name} = ({kind}*)(lf_shared + {at}) + threadIdx.x * {width};")
            with self.vectors(stream.run, f"{stream.buffer.id}.at") as (v, p):
                w.line(f"lf_stage16({self.kept_at(stream, v)}, {self.address(stream, p)});")
            w.line("lf_stage_end();")

    def kept_at(self, stream: Stream, v: str) -> str:
        """Where a vector of this thread lies."""
        return f"{self.staged[stream]} + {v} * {self.fit.size * self.fit.width[stream.run]}"

    def packed(self, line: Line, accs: Sequence[Acc], body: Sequence[Stmt]) -> bool:
        """A pass by pairs of elements, once they are there."""
        self.await_(line)
        return super().packed(line, accs, body)

    def sweep(self, line: Line, body: Sequence[Stmt]) -> None:
        """A loop, once what it reads is there."""
        self.await_(line)
        super().sweep(line, body)

    def await_(self, line: Line) -> None:
        """Wait for what a loop reads: a thread for its own copies alone."""
        left = sum(s.first > line.number for s in self.streams)
        if left < self.pending:
            self.pending = left
            self.w.line(f"lf_stage_wait<{left}>();")

    def peek(self, stream: Stream, name: str, p: str) -> str:
        """A vector from shared memory, or one that rows share."""
        if stream not in self.staged:
            return super().peek(stream, name, p)
        assert self.at is not None
        kind, width = storage(stream.buffer.dtype), self.fit.width[stream.run]
        self.w.names.free(name)
        return f"const lf_vec<{kind}, {width}> {name} = lf_peek<{width}, 16>({self.kept_at(stream, self.at.v)});"
