"""Rows that are read from memory loop by loop, because they are longer than what registers hold, are read by one loop
only, or have a length that is not known.

A thread takes a batch of its vectors at a time. Where every accumulator that waits for another has a repair, a fold is one
pass: a batch first moves the accumulators that others depend on, then those are repaired and absorb the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loopfuse.emit.merging import aliases, value
from loopfuse.emit.rows_fit import MOST_VECTORS, STREAM_VECTORS_MANY, Fit
from loopfuse.emit.rows_shape import Line, Run, Shape, Stream
from loopfuse.emit.rows_vectors import Part
from loopfuse.emit.rows_write import Rows, counted
from loopfuse.emit.slices import levels, prune
from loopfuse.emit.writer import Writer, c_type, state_type
from loopfuse.ir import Acc, Loop, Stmt, Store
from loopfuse.walking import expr_names


class Streams(Rows):
    """Statements of a thread that shares a row with others, the row in memory."""

    def __init__(self, writer: Writer, shape: Shape, fit: Fit) -> None:
        super().__init__(writer, shape, fit)
        streams = sum(s.row and s.stored < 0 for s in shape.streams.values())
        self.most = MOST_VECTORS if streams <= 2 else STREAM_VECTORS_MANY

    def ahead(self) -> None:
        """Nothing is loaded before it is used."""

    def keeps(self, stream: Stream) -> bool:
        """Whether a stored vector is read again by the same loop; others read it from memory."""
        return stream.stored in stream.readers

    def loop_over(self, loop: Loop) -> None:
        """A loop without accumulators."""
        line = self.shape.lines[id(loop)]
        for _ in self.parts(line.run):
            self.load(line)
            self.sweep(line, self.hoist(line, loop.body))

    def row_fold(self, loop: Loop) -> None:
        """A fold, in one pass where repairs allow it."""
        line, level = self.shape.lines[id(loop)], levels(loop)
        self.declare(loop.accs)
        counts = counted(line)
        if online(loop):
            for part in self.parts(line.run):
                self.load(line)
                self.batch(line, level, counts, part)
            self.join(loop.accs)
            return
        self.totals(line, counts)
        for number in range(1 + max(level.values())):
            mine = [a for a in loop.accs if level[a.id] == number and a.id not in counts]
            body = prune(loop.body, {a.id for a in mine}, stores=number == 0)
            if body:
                body = tuple(self.hoist(line, body))
                for _ in self.parts(line.run):
                    self.load(line, body)
                    self.sweep(line, body)
                self.join_exact(mine)

    def batch(self, line: Line, level: dict[str, int], counts: dict[str, int], part: Part) -> None:
        """A part of the row into running states."""
        loop, w = line.loop, self.w
        asked = {n for a in loop.accs if a.repair is not None for n in expr_names(a.repair).values}
        old: dict[str, str] = {}
        for acc in loop.accs:
            name = w.names(acc.id)
            if f"{acc.id}.old" in asked:
                old[acc.id] = w.names.fresh(f"{acc.id}.old")
                w.line(f"const {state_type(acc.monoid, acc.dtype)} {old[acc.id]} = {name};")
        for acc in loop.accs:
            if acc.id in counts:
                self.tally(acc, line.run, counts[acc.id], part)
        hoisted = set(self.hoisted)
        for number in range(1 + max(level.values())):
            mine = [a for a in loop.accs if level[a.id] == number and a.id not in counts]
            body = prune(loop.body, {a.id for a in mine}, stores=number == 0)
            for acc in mine:
                if acc.repair is not None:
                    self.repair(loop, acc, old)
            if body:
                self.sweep(line, self.hoist(line, body))
        self.hoisted = hoisted
        for name in old.values():
            w.names.free(name)

    def repair(self, loop: Loop, acc: Acc, old: dict[str, str]) -> None:
        """An accumulator brought to what those that it depends on are now."""
        w, name = self.w, self.w.names(acc.id)
        named = {"self": name}
        for other in loop.accs:
            if other.id in old:
                named[f"{other.id}.old"] = value(other, old[other.id])
                named[f"{other.id}.new"] = value(other, w.names(other.id))
        assert acc.repair is not None
        with aliases(w, named):
            w.line(f"{name} = {w.expr(acc.repair)};")

    def tally(self, acc: Acc, run: Run, step: int, part: Part) -> None:
        """A constant for each element of the part."""
        w, name, kind = self.w, self.w.names(acc.id), c_type(acc.dtype)
        each = self.fit.width[run] * step
        if part.full:
            w.line(f"{name} = ({kind})({name} + {part.count * each});")
            return
        with self.vectors(run, "at"):
            w.line(f"{name} = ({kind})({name} + {each});")

    # -- parts --------------------------------------------------------------------------------------------------------

    def load(self, line: Line, body: Sequence[Stmt] | None = None) -> None:
        """The part's vectors of the operands that the loop reads."""
        for stream in sorted(self.shape.of(line.run), key=lambda s: s.order):
            if line.number in stream.readers and stream.stored != line.number and stream.row:
                self.fetch(stream)

    def parts(self, run: Run) -> Iterator[Part]:
        """The parts of a run: as many full ones as there are, in a loop, then what is left."""
        w, step = self.w, self.fit.sharing * self.fit.width[run]
        length = w.target.number(run.length)
        most = self.most
        if length is not None:
            most = max(1, min(most, length // step))
            full, rest = divmod(length, step * most)
            if full:
                yield from self._loop("0", str(full * step * most), step * most, Part("", most, True))
            if rest:
                yield from self._once(Part(str(full * step * most) if full else "", -(-rest // step), rest % step == 0))
            return
        whole = w.names.fresh("whole")
        text = w.poly(run.length)
        w.line(f"const {w.index} {whole} = {text} / {step * most} * {step * most};")
        yield from self._loop("0", whole, step * most, Part("", most, True))
        yield from self._loop(whole, text, step * most, Part("", most, False, False))

    def _loop(self, start: str, stop: str, step: int, part: Part) -> Iterator[Part]:
        base = self.w.names.fresh("base")
        with self.w.block(f"for ({self.w.index} {base} = {start}; {base} < {stop}; {base} += {step})"):
            self.part = Part(base, part.count, part.full, part.last)
            with self._fresh():
                yield self.part
            self.part = None
        self.w.names.free(base)

    def _once(self, part: Part) -> Iterator[Part]:
        with self.w.block(""):
            self.part = part
            with self._fresh():
                yield part
            self.part = None

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """What is loaded and named for a part is forgotten after it."""
        fetched, hoisted = set(self.fetched), set(self.hoisted)
        yield
        for stream in self.fetched - fetched:
            self.w.names.free(stream.name)
        self.fetched, self.hoisted = fetched, hoisted


def online(loop: Loop) -> bool:
    """Whether every accumulator that waits for another has a repair."""
    level = levels(loop)
    return any(level.values()) and all(a.repair is not None or not level[a.id] for a in loop.accs)


def once(shape: Shape) -> bool:
    """Whether each operand of a row is read by one loop, in one pass."""
    for stmt in shape.body:
        if isinstance(stmt, Loop) and stmt.accs and any(levels(stmt).values()) and not online(stmt):
            return False
    return all(len(s.readers) <= 1 and (s.stored < 0 or not s.readers) for s in shape.streams.values() if s.row)


def streamable(shape: Shape) -> str:
    """Why a row cannot go through memory, or ""."""
    local = shape.job.ask.local
    for s in shape.streams.values():
        if s.buffer.id in local:
            return f"`{s.buffer.id}` is kept for later, and a row of it does not fit in registers"
    for stmt in shape.body:
        if isinstance(stmt, Loop) and id(stmt) in shape.lines:
            inside = [a.id for a in stmt.accs if a.shape and a.repair is not None]
            if inside:
                return f"the array accumulator `{inside[0]}` has a repair"
    return ""


__all__ = ["Store", "Streams", "once", "online", "streamable"]
