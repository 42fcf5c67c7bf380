"""Vectors of a row in a thread's registers: read ahead or from a cache, made element by element, written, kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from loopfuse.dtypes import BF16
from loopfuse.emit.base import MOST_NARROW
from loopfuse.emit.rows_fit import Fit
from loopfuse.emit.rows_join import Joins
from loopfuse.emit.rows_keep import KEPT
from loopfuse.emit.rows_shape import Line, Run, Shape, Stream
from loopfuse.emit.writer import HALVES, Place, Writer, storage
from loopfuse.ir import Let, Load, Store


@dataclass(eq=False)
class At:
    """Where a thread stands: in vector `v` of a run, at element `k` of it; `p` is the first position of the vector."""

    line: Line
    v: str
    k: str
    p: str
    peeked: dict[Stream, str]
    put: dict[Stream, str]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run that starts at `base`: `count` vectors a thread. `full`: all of them lie within the run; `last`:
    only the last one may not."""

    base: str
    count: int
    full: bool
    last: bool = True


class Vectors(Joins):
    """Statements of a thread that holds vectors of a row."""

    unroll = ""  # vectors of a loop that are written out; "": all

    def __init__(self, writer: Writer, shape: Shape, fit: Fit) -> None:
        super().__init__(writer, fit)
        self.shape = shape
        self.at: At | None = None
        self.part: Part | None = None
        self.fetched: set[Stream] = set()
        self.used: set[Stream] = set()
        self.lane = self.live = ""
        self.before: list[str] = []  # lines that a statement of the row wants before it
        self.nested = 0
        self.hoisted: set[str] = set()
        self.kept: dict[str, str] = {}  # arrays of kept values, by the let; "" where not yet written
        self.inverses: dict[str, tuple[str, str]] = {}
        writer.hook = self.loaded

    @property
    def leader(self) -> str:
        """The condition of the one thread that stores what a row has once."""
        return f"{self.lane} == 0" + (f" && {self.live}" if self.live else "")

    def fetch(self, stream: Stream) -> None:
        """The thread's part of an operand into registers."""
        width = self.fit.width[stream.run]
        count = self.part.count if self.part else self.fit.vectors[stream.run]
        if count == 0:
            return
        stream.name = self.w.names.fresh(f"{stream.buffer.id}.row")
        self.fetched.add(stream)
        self.w.line(f"lf_vec<{storage(stream.buffer.dtype)}, {width}> {stream.name}[{count}];")
        with self.vectors(stream.run, f"{stream.buffer.id}.at") as (v, p):
            read = "lf_read" if stream.stored < 0 else "lf_peek"  # of what this kernel writes there may be an old copy
            self.w.line(f"{stream.name}[{v}] = {read}<{width}, {self.piece(stream)}>({self.address(stream, p)});")

    def piece(self, stream: Stream) -> int:
        """Bytes that are moved at once."""
        return min(stream.align, 16, self.fit.width[stream.run] * stream.buffer.dtype.itemsize)

    @contextmanager
    def vectors(self, run: Run, stem: str) -> Iterator[tuple[str, str]]:
        """A loop over the thread's vectors of a run (or of a part of it): the vector's number, and its first position."""
        w, width, sharing = self.w, self.fit.width[run], self.fit.sharing
        part = self.part or Part("", self.fit.vectors[run], self.exact(run))
        length = w.target.number(run.length)
        kind = "int" if length is not None and length <= MOST_NARROW else w.index
        v, p = w.names.fresh("v"), w.names.fresh(stem)
        w.line(f"#pragma unroll {self.unroll}".rstrip())
        with w.block(f"for (int {v} = 0; {v} < {part.count}; ++{v})"), ExitStack() as stack:
            place = f"({v} * {sharing} + {self.lane}) * {width}" if sharing > 1 else f"{v} * {width}"
            declared = len(w.lines)
            w.line(f"const {kind} {p} = {part.base} + {place};" if part.base else f"const {kind} {p} = {place};")
            if not part.full:
                sure = f"{v} < {part.count - 1} || " if part.count > 1 and part.last else ""
                stack.enter_context(w.block(f"if ({sure}{p} < {w.poly(run.length)})"))
            yield v, p
            if not used(p, w.lines[declared + 1 :]):
                del w.lines[declared]
        w.names.free(v)
        w.names.free(p)

    def exact(self, run: Run) -> bool:
        """Whether the threads' vectors cover a run and nothing past it."""
        return self.w.target.number(run.length) == self.fit.vectors[run] * self.fit.sharing * self.fit.width[run]

    def address(self, stream: Stream, p: str) -> str:
        """Where a vector of an operand starts."""
        w = self.w
        pointer = w.place(stream.buffer.id, stream.stored >= 0).pointer
        if stream.whole:
            lows = {f"#{n}": low for n, low in enumerate(stream.run.lows)}
            base = w.poly(stream.offset.subs(lows))
            return f"{pointer} + {p}" if base == "0" else f"{pointer} + ({base} + {p})"
        counts = [w.poly(c) for c in stream.run.counts]
        for n, text in enumerate(digits(p, counts)):
            low = w.poly(stream.run.lows[n])
            w.alias[f"#{n}"] = f"({text})" if low == "0" else f"({low} + {text})"
        return f"{pointer} + {w.poly(stream.offset)}"

    def loaded(self, load: Load) -> str | None:
        """An element that is in registers already."""
        at = self.at
        if at is not None and load.buffer.startswith(KEPT):
            return f"{self.kept[load.buffer.removeprefix(KEPT)]}[{at.v}].v[{at.k}]"
        stream = self.shape.find(load, at.line) if at is not None else None
        if at is None or stream is None:
            return None
        place = Place("", (), stream.buffer.dtype)
        if stream in at.put:
            text = f"{at.put[stream]}.v[{at.k}]"
            return f"lf_round_{stream.buffer.dtype}({text})" if self.held(stream) == "float" != storage(
                stream.buffer.dtype
            ) else self.w.fetched(text, place)  # fmt: skip
        if stream in self.fetched:
            return self.element(stream, f"{stream.name}[{at.v}]")
        name = at.peeked.get(stream)
        if name is None:
            name = at.peeked[stream] = self.w.names.fresh(f"{stream.buffer.id}.part")
        return self.element(stream, name)

    def element(self, stream: Stream, vector: str) -> str:
        """The value of the element that the thread stands at, in a vector."""
        assert self.at is not None
        if stream.buffer.dtype == BF16 and self.fit.width[stream.run] > 1:
            return f"lf_bf16_at({vector}, {self.at.k})"
        return self.w.fetched(f"{vector}.v[{self.at.k}]", Place("", (), stream.buffer.dtype))

    def peek(self, stream: Stream, name: str, p: str) -> str:
        """A vector that rows share, from a cache."""
        kind, width = storage(stream.buffer.dtype), self.fit.width[stream.run]
        self.w.names.free(name)
        return (
            f"const lf_vec<{kind}, {width}> {name} = lf_peek<{width}, {self.piece(stream)}>({self.address(stream, p)});"
        )

    def keeps(self, stream: Stream) -> bool:
        """Whether a stored vector stays in registers for later loops."""
        return stream.last >= 0

    def held(self, stream: Stream) -> str:
        """The C type of the elements of a vector in the making: 16-bit floats are rounded by the pair."""
        return (
            "float"
            if stream.buffer.dtype in HALVES and self.fit.width[stream.run] > 1
            else storage(stream.buffer.dtype)
        )

    def let(self, stmt: Let) -> None:
        """A name for a value, which a later loop may find again."""
        super().let(stmt)
        if self.at is not None and stmt.id in self.kept:
            self.w.line(f"{self.kept[stmt.id]}[{self.at.v}].v[{self.at.k}] = {self.w.names(stmt.id)};")

    def store(self, stmt: Store) -> None:
        """A write of an element, into a vector in the making or to memory; or an absorption."""
        at = self.at
        if stmt.absorb or at is None:
            if at is None and not stmt.absorb:
                with self.w.block(f"if ({self.leader})"):
                    super().store(stmt)
                return
            super().store(stmt)
            return
        stream = self.shape.find(stmt, at.line) if not self.nested else None
        if stream is None or stream.stored != at.line.number:
            with ExitStack() as stack:
                if self.live:
                    stack.enter_context(self.w.block(f"if ({self.live})"))
                super().store(stmt)
            return
        name = at.put[stream] = self.w.names.fresh(f"{stream.buffer.id}.made")
        place = Place("", (), stream.buffer.dtype)
        value = self.w.expr(stmt.value)
        wide = self.held(stream) != storage(stream.buffer.dtype)
        text = self.w.unrounded(value, place) if wide else self.w.kept(value, place)
        self.w.line(f"{name}.v[{at.k}] = {text};", stmt.span)

    def put(self, stream: Stream, name: str) -> None:
        """A finished vector to memory, or to where later loops find it."""
        w, at = self.w, self.at
        assert at is not None
        dtype = stream.buffer.dtype
        text = f"lf_pack_{dtype}({name})" if self.held(stream) != storage(dtype) else name
        if self.keeps(stream):
            w.line(f"{stream.name}[{at.v}] = {text};")
            text = f"{stream.name}[{at.v}]"
        if stream.buffer.id not in self.shape.job.ask.local:
            test = f"if ({self.live}) " if self.live else ""
            w.line(f"{test}lf_leave<{self.piece(stream)}>({self.address(stream, at.p)}, {text});")
        w.names.free(name)


def used(name: str, lines: Sequence[str]) -> bool:
    """Whether a variable occurs in lines of C."""
    return any(re.search(rf"(?<![.\w]){name}\b", line) for line in lines)


def digits(number: str, counts: Sequence[str]) -> list[str]:
    """The digits of a number in mixed radix, the last one the fastest."""
    found, divisor = [], ""
    for n, count in reversed(list(enumerate(counts))):
        text = f"({number}) / ({divisor})" if divisor else number
        found.append(f"{text if not divisor else f'({text})'} % {count}" if n else text)
        divisor = f"{divisor} * {count}" if divisor else count
        number = number if number.isidentifier() or number.startswith("(") else f"({number})"
    return found[::-1]
