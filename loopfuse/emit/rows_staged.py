"""Rows in shared memory: each thread copies its part of the row there by itself, asynchronously and past its registers, and
reads it back in every loop. Several blocks fit on a multiprocessor, so that the copies of one hide the loops of another.

Where there are more rows than fit at once, the blocks stay and take rows in turn: a thread that is done with a vector in the
last loop that reads it starts the copy of the same vector of its next row, into the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod

from loopfuse.emit.rows_fit import Fit, known_lengths, widths
from loopfuse.emit.rows_shape import Line, Shape, Stream
from loopfuse.emit.rows_write import Rows, passes
from loopfuse.emit.writer import Writer, storage
from loopfuse.ir import Acc, Stmt
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import own, walk

LEAST_BYTES = 24 << 10  # of a row, from which on it is staged
THREADS = 256  # of a block
RESIDENT = 3  # blocks of a multiprocessor
UNROLLED = 2  # vectors of a loop that are written out
CACHED = 32 << 10  # bytes that all rows share, from which on they should find room in the first-level cache
ROLLING = 1  # whether blocks take rows in turn; 2: also where they keep an operand in registers
FILLED = 100  # percent of the blocks that fit at once, which then take part
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


def rolling(shape: Shape, fit: Fit) -> int:
    """How many rows are worked on at a time where blocks take them in turn; 0 where each row has blocks of its own.

    No more than are resident at once, and no more than it takes to be done in as many turns.
    """
    if (2 if held(shape, fit) else 1) > ROLLING:
        return 0
    device, streams = shape.job.target.device, [s for s in early(shape) if s not in held(shape, fit)]
    fitting = min(RESIDENT, (device.shared + 1024) // (staged_bytes(fit, streams) + 2048), device.threads // fit.size)
    resident = max(1, device.units * max(1, fitting) * FILLED // 100 // fit.blocks)
    rows = shape.target.number(shape.rows)
    if rows is None:
        return resident
    turns = -(-rows // resident)
    return -(-rows // turns) if turns > 1 else 0


def staged_bytes(fit: Fit, streams: list[Stream]) -> int:
    """The shared memory of a block."""
    return sum(fit.vectors[s.run] * fit.size * fit.width[s.run] * s.buffer.dtype.itemsize for s in streams)


class Staged(Rows):
    """Statements of a thread whose part of the row is in shared memory."""

    def __init__(self, writer: Writer, shape: Shape, fit: Fit) -> None:
        super().__init__(writer, shape, fit)
        self.near_by = held(shape, fit)
        self.unroll = "" if self.near_by else str(UNROLLED)
        self.streams = [s for s in early(shape) if s not in self.near_by]
        self.turns = rolling(shape, fit)
        self.staged: dict[Stream, str] = {}
        self.passes = [(line, body) for line in shape.lines.values() for _, body in passes(line)]
        self.unread = {s: sum(s in self.read(*each) for each in self.passes) for s in self.streams}  # passes to come
        self.ending: list[Stream] = []  # operands that the pass being written is the last to read
        self.flying: list[tuple[list[Stream], bool]] = []  # groups of copies, and whether they are of this row
        self.next = ""  # the number of the row after this one

    @property
    def told(self) -> str:
        """Where the row is, for a reader."""
        return "in shared memory" + (f", {self.turns} rows at a time" if self.turns else "")

    @property
    def blocks(self) -> Poly:
        """The blocks of a launch."""
        return Poly.of(self.turns * self.fit.blocks) if self.turns else super().blocks

    def write(self) -> None:
        """The whole body of the function."""
        if not self.turns:
            super().write()
            return
        w, count = self.w, self.w.poly(self.shape.rows)
        for let in self.shape.tops:
            self.let(let)
        self.place_in_row()
        name, first, self.next = self.row_name(), w.names.fresh("first"), w.names.fresh("next")
        w.line(f"const {w.index} {first} = {self.place_in_grid};")
        self.places_of_copies()
        with ExitStack() as stack:
            stack.enter_context(self.of_row(first))
            if w.target.number(self.shape.rows) is None:
                stack.enter_context(w.block(f"if ({first} < {count})"))
            self.copies()
        self.begin()
        with w.block(f"for ({w.index} {name} = {first}; {name} < {count}; {name} += {self.turns})"):
            w.line(f"const {w.index} {self.next} = {name} + {self.turns};")
            self.indices_of(name)
            self.between()
            for stream in self.near_by:
                self.fetch(stream)
            self.turn, self.each = f"{name} / {self.turns}", self.joins()
            if self.each == 1:  # else there is a join between a read of partial states and the next write of them
                self.twin = f"{self.turn} % 2"
            self.row(self.shape.body)
        assert not self.bars or self.joined == self.each
        assert self.flying == [(group, False) for group in self.groups()]  # as it was before the loop

    def ahead(self) -> None:
        """Start the copies of the whole row."""
        for stream in self.near_by:
            self.fetch(stream)
        self.places_of_copies()
        self.copies()

    def places_of_copies(self) -> None:
        """Where each operand's part of this thread lies."""
        for stream in self.streams:
            kind, width, count = storage(stream.buffer.dtype), self.fit.width[stream.run], self.fit.vectors[stream.run]
            name = self.staged[stream] = self.w.names.fresh(f"{stream.buffer.id}.stage")
            at = self.take(count * self.fit.size * 16)
            self.w.line(f"{kind}* {name} = ({kind}*)(lf_shared + {at}) + threadIdx.x * {width};")

    def copies(self) -> None:
        """Start the copies of a row, a group after another."""
        for group in self.groups():
            for stream in group:
                with self.vectors(stream.run, f"{stream.buffer.id}.at") as (v, p):
                    self.copy(stream, v, p)
            self.end(group, True)

    def copy(self, stream: Stream, v: str, p: str) -> None:
        """Start the copy of a vector."""
        self.w.line(f"lf_stage16({self.kept_at(stream, v)}, {self.address(stream, p)});")

    def end(self, group: list[Stream], mine: bool) -> None:
        """The copies started since the last group are one."""
        self.w.line("lf_stage_end();")
        self.flying.append((group, mine))

    def groups(self) -> list[list[Stream]]:
        """The operands in the order of their copies, those together that are waited for together.

        Where rows are taken in turn, the copies of the next row start in the order in which this row's vectors are done with.
        """
        if not self.turns:
            return [[s] for s in self.streams]
        found: list[list[Stream]] = []
        seen: set[Stream] = set()
        for each in reversed(self.passes):
            last = self.read(*each) - seen
            seen |= last
            found.append([s for s in self.streams if s in last])
        return [group for group in reversed(found) if group]

    def kept_at(self, stream: Stream, v: str) -> str:
        """Where a vector of this thread lies."""
        return f"{self.staged[stream]} + {v} * {self.fit.size * self.fit.width[stream.run]}"

    def joins(self) -> int:
        """How often the threads of a row wait for each other."""
        number = self.w.target.number
        folds = [accs for line in self.shape.lines.values() for accs, _ in passes(line)]
        return sum(any(number(prod(a.shape, start=ONE)) != 0 for a in accs) for accs in folds)

    @contextmanager
    def of_row(self, row: str) -> Iterator[None]:
        """What is written is of the row with this number."""
        texts = {dim: text if text == row else f"({text})" for dim, text in self.places(row).items()}
        self.w.alias.update(texts)
        yield
        for dim in texts:
            del self.w.alias[dim]

    # -- passes -------------------------------------------------------------------------------------------------------

    def packed(self, line: Line, accs: Sequence[Acc], body: Sequence[Stmt]) -> bool:
        """A pass by pairs of elements, once they are there."""
        self.arrive(line, body)
        done = super().packed(line, accs, body)
        if done:
            self.leave(line, body)
        return done

    def sweep(self, line: Line, body: Sequence[Stmt]) -> None:
        """A loop, once what it reads is there."""
        self.arrive(line, body)
        super().sweep(line, body)
        self.leave(line, body)

    def read(self, line: Line, body: Sequence[Stmt]) -> set[Stream]:
        """The operands that a pass reads."""
        loads = [load for stmt in (line.loop, *walk(body)) for load in own(stmt).loads]
        return {s for load in loads if (s := self.shape.find(load, line)) is not None}

    def arrive(self, line: Line, body: Sequence[Stmt]) -> None:
        """Wait for what a pass reads: a thread for its own copies alone."""
        needed = self.read(line, body)
        awaited = [n for n, (group, mine) in enumerate(self.flying) if mine and needed.intersection(group)]
        if awaited:
            del self.flying[: awaited[-1] + 1]
            self.w.line(f"lf_stage_wait<{len(self.flying)}>();")
        if self.turns:
            self.ending = [s for s in self.streams if s in needed and self.unread[s] == 1]

    def over(self, line: Line, v: str, p: str) -> None:
        """A vector that no pass reads any more gives its place to that of the next row."""
        if self.ending:
            with self.of_row(self.next), self.w.block(f"if ({self.next} < {self.w.poly(self.shape.rows)})"):
                for stream in self.ending:
                    self.copy(stream, v, p)

    def leave(self, line: Line, body: Sequence[Stmt]) -> None:
        """A pass is over."""
        for stream in self.read(line, body) & self.unread.keys():
            self.unread[stream] -= 1
        if self.ending:
            self.end(self.ending, False)
            self.ending = []

    def peek(self, stream: Stream, name: str, p: str) -> str:
        """A vector from shared memory, or one that rows share."""
        if stream not in self.staged:
            return super().peek(stream, name, p)
        assert self.at is not None
        kind, width = storage(stream.buffer.dtype), self.fit.width[stream.run]
        self.w.names.free(name)
        return f"const lf_vec<{kind}, {width}> {name} = lf_peek<{width}, 16>({self.kept_at(stream, self.at.v)});"
