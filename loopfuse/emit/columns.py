"""Column: reductions whose partial results meet in a finish.

Of a reduction over everything, or along rows, a block's threads lie along the reduction (`Along`): each takes vectors of
it. Of a reduction of columns (`Across`) each thread owns adjacent columns, in a vector, and the rows of a block's share
lie over its row lanes. In both a thread holds partial states, the block joins them by halves, and where the reduction is
split, states go through scratch to a finish, which joins them in the order of the splits and goes on with what follows.
"""

from __future__ import annotations

from contextlib import ExitStack

from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import KernelCode, Launch, ceil_div, grid
from loopfuse.emit.fetching import Accesses, size_of
from loopfuse.emit.merging import aliases
from loopfuse.emit.partials import States, scoped, tree, unrolled
from loopfuse.emit.reductions import COLUMN_LANES, THREADS, Nest, Reduction, extent_of, factor, nest_of, power, thread
from loopfuse.emit.serial import Serial
from loopfuse.emit.strips import Element, Lane, Span, Strip, constants
from loopfuse.emit.writer import Writer, c_type, state_bytes
from loopfuse.ir import Loop
from loopfuse.sizes import ONE

BLOCKS = 4  # a multiprocessor
ALONG_BYTES, ACROSS_BYTES = 64, 128  # of a stream that a thread has in flight
MOST_ROWS = 16
PARTIALS = 4  # independent states of a thread, so that additions do not wait for one another


def emit(job: Job) -> Emitted | Declined:
    """The kernels of a `column` plan."""
    found = nest_of(job)
    if isinstance(found, Declined):
        return found
    made = Across(job, found) if found.vector else Along(job, found)
    return made.emit()


class Along(Reduction):
    """Threads along the reduction; a block, or several of them, a column."""

    shared = 0  # bytes of shared memory that are taken before the block's states

    def main(self) -> tuple[KernelCode, Launch]:
        """The kernel that reads everything."""
        w = self.writer()
        strips = [self.shape(fold) for fold in self.nest.folds]
        if self.split:
            tiles = max(-(-self.count(f) // (THREADS * lanes * rows))
                        for f, (_, lanes, rows) in zip(self.nest.folds, strips, strict=True))  # fmt: skip
            self.parts = max(2, min(BLOCKS * self.device.units // self.columns, tiles))
        with ExitStack() as scope:
            if self.nest.dims:
                column = w.names.fresh("column")
                scope.enter_context(constants(w, [(column, f"({w.index})blockIdx.x")]))
                scope.enter_context(self.settle(w, column, 1))
            for let in self.needed(self.nest.folds):
                Serial(w, self.job.name).let(let)
            done = [self.fold(w, fold, *shape) for fold, shape in zip(self.nest.folds, strips, strict=True)]
            with w.block("if (threadIdx.x == 0)"):
                if self.split:
                    at = "blockIdx.y"
                    if self.width != ONE:
                        at = f"({w.index})blockIdx.y * {w.poly(self.width)} + {column}"
                    self.leave(w, done, at, "0")
                else:
                    self.follow(w, done, "0")
        lanes, rows = strips[0][1:]
        why = f"reductions along rows in {_parts(self.parts)}, {lanes} elements in a vector, {rows} vectors at a time"
        made = self.function(w, "", THREADS, why)
        return made, Launch(made.name, grid(self.width, self.parts), w.arguments)

    def shape(self, fold: Loop) -> tuple[Accesses, int, int]:
        """How the strips of a fold are: its accesses, lanes and rows."""
        loop, dims = self.inner(fold)
        found = Accesses(self.job, loop, self.nest.dims, dims, dims[-1])
        lanes = found.lanes(None if len(dims) == 1 else extent_of(self.job, dims[-1]) or ONE)
        rows = found.rows(lanes, MOST_ROWS, ALONG_BYTES, size_of(loop.body))
        blocks = -(-self.device.units // self.columns)
        while rows > 1 and self.count(fold) < THREADS * lanes * rows * blocks:
            rows //= 2
        return found, lanes, rows

    def fold(self, w: Writer, fold: Loop, accesses: Accesses, lanes: int, rows: int) -> States:
        """The part of a block of one fold, joined."""
        loop, dims = self.inner(fold)
        w.comment(f"the fold over {', '.join(d.id for d in fold.dims)}: tiles of {THREADS} x {lanes} x {rows}")
        span = Span(w, dims)
        accs = [a for a in fold.accs if not a.shape]
        size = sum(state_bytes(a.monoid, a.dtype) for a in accs)
        partials = min(PARTIALS, rows) if accs and all(a.repair is None for a in accs) else 1
        while partials > 1 and partials * size > 64:
            partials //= 2
        states = States(w, accs, partials)
        states.declare()
        element = self.element(w)
        fetches, writes = accesses.fetches(lanes), accesses.writes(lanes)
        self.aligned |= {f.load.buffer for f in fetches if f.kind == "vector"} | {x.store.buffer for x in writes}
        lane = Lane(dims[-1].id, w.names.fresh(f"{dims[-1].id}.first"), lanes, False) if lanes > 1 else None
        strip = Strip(w, element, loop, span, rows, str(THREADS * lanes), lane, None, "row", fetches, writes)
        rest_rows = min(MOST_ROWS, rows * lanes)
        rest = Strip(w, element, loop, span, rest_rows, str(THREADS), None, None, "row", accesses.fetches(1))
        self.tiles(w, span, strip, rest, states, THREADS * lanes * rows)
        found = states.first()
        tree(found, THREADS, 1, self.shared)
        return found

    def element(self, w: Writer) -> Element:
        """What writes the statements at one element."""
        return Element(w, self.job.name)

    def tiles(self, w: Writer, span: Span, strip: Strip, rest: Strip, states: States, tile: int) -> None:
        """Whole tiles in turn, and what is left by the block whose turn would be next."""
        part = "(int)blockIdx.y" if self.parts > 1 else "0"
        known = span.known
        tiles = str(known // tile) if known is not None else w.names.fresh("tiles")
        if known is None:
            w.line(f"const {w.index} {tiles} = {factor(span.total)} / {tile};")
        lanes = f" * {strip.lanes}" if strip.lanes > 1 else ""
        if known is None or known >= tile:
            with scoped(w, "tile") as t, scoped(w, "start") as start, \
                    w.block(f"for ({w.index} {t} = {part}; {t} < {tiles}; {t} += {self.parts})"):  # fmt: skip
                w.line(f"const {w.index} {start} = {t} * {tile} + ({w.index})threadIdx.x{lanes};")
                self.absorb(strip, states, start)
        if known is not None and known % tile == 0:
            return
        turn = f"{tiles} % {self.parts}" if known is None else str(known // tile % self.parts)
        with w.block(f"if ({part} == {turn})" if self.parts > 1 else ""), scoped(w, "start") as start:
            head = f"for ({w.index} {start} = {tiles} * {tile} + ({w.index})threadIdx.x; {start} < {span.total}; "
            with w.block(f"{head}{start} += {THREADS * rest.rows})"):
                self.absorb(rest, states, start, span.total)


class Across(Reduction):
    """A thread a group of adjacent columns, row lanes beside one another in a block."""

    def __init__(self, job: Job, nest: Nest) -> None:
        super().__init__(job, nest)
        self.dim = nest.dims[-1]
        self.accesses = []
        for fold in nest.folds:
            loop, dims = self.inner(fold)
            self.accesses.append(Accesses(job, loop, (*nest.dims,), dims, self.dim))
        bound = any(self.dim.id in p.names for f in nest.folds for d in f.dims for p in (*d.lo, *d.hi, d.step))
        extent = extent_of(job, self.dim) or ONE
        self.lanes = 1 if bound else min(a.lanes(extent) for a in self.accesses)
        self.rows = min(a.rows(self.lanes, MOST_ROWS, ACROSS_BYTES, size_of(f.body))
                        for a, f in zip(self.accesses, nest.folds, strict=True))  # fmt: skip
        threads = -(-self.columns // self.lanes)
        self.side = min(COLUMN_LANES, power(threads))
        while self.side < THREADS and self.side < threads and self.points < THREADS // self.side * self.rows:
            self.side *= 2
        self.groups = -(-threads // self.side)
        if self.split:
            wanted = BLOCKS * self.device.units // self.groups
            self.parts = max(2, min(wanted, self.points // (THREADS // self.side * self.rows)))

    def main(self) -> tuple[KernelCode, Launch]:
        """The kernel that reads everything."""
        w = self.writer()
        w.comment(f"a thread takes {self.lanes} adjacent columns, and every {THREADS // self.side}th row of its share")
        column, live = self.column(w, self.side, self.lanes)
        with self.settle(w, column, self.lanes) as first:
            values = self.before(w, first)
            done = [
                self.fold(w, fold, a, first, live, values)
                for fold, a in zip(self.nest.folds, self.accesses, strict=True)
            ]
            with w.block(self.owner(self.side, THREADS, live)), unrolled(w, "v", self.lanes) as v:
                if self.split:
                    more = f" + {v}" if self.lanes > 1 else ""
                    at = f"({w.index})blockIdx.y * {w.poly(self.width)} + {column}{more}"
                    self.leave(w, done, at, v)
                else:
                    index = [(w.names(self.dim.id), f"{first} + {v}")] if self.lanes > 1 else []
                    with constants(w, index):
                        self.follow(w, done, v)
        why = f"reductions of columns, {self.lanes} a thread, {self.rows} rows at a time, in {_parts(self.parts)}"
        made = self.function(w, "", THREADS, why)
        count = ceil_div(self.width, self.side * self.lanes)
        return made, Launch(made.name, grid(count, self.parts), w.arguments)

    def before(self, w: Writer, first: str) -> dict[str, str]:
        """Lets before the folds: variables, or arrays over the lanes, whose names are returned."""
        lets = self.needed(self.nest.folds)
        if self.lanes == 1:
            for let in lets:
                Serial(w, self.job.name).let(let)
            return {}
        varying = [s for s in lets if self.dim.id in self.deps.get(s.id, frozenset())]
        for let in lets:
            if let not in varying:
                Serial(w, self.job.name).let(let)
        found = {s.id: w.names.fresh(f"{s.id}.v") for s in varying}
        for let in varying:
            w.line(f"{c_type(let.value.dtype)} {found[let.id]}[{self.lanes}];")
        if varying:
            with unrolled(w, "v", self.lanes) as v:
                texts = {id: f"{name}[{v}]" for id, name in found.items()}
                with constants(w, [(w.names(self.dim.id), f"{first} + {v}")]), aliases(w, texts):
                    for let in varying:
                        w.line(f"{found[let.id]}[{v}] = {w.expr(let.value)};", let.span)
        return found

    def fold(self, w: Writer, fold: Loop, accesses: Accesses, first: str, live: str, values: dict[str, str]) -> States:
        """The rows of a block's share of one fold, joined."""
        loop, dims = self.inner(fold)
        w.comment(f"the fold over {', '.join(d.id for d in fold.dims)}")
        span = Span(w, dims)
        states = States(w, fold.accs, self.lanes, self.uniform(fold))
        states.declare()
        element = Element(w, self.job.name)
        fetches, writes = accesses.fetches(self.lanes), accesses.writes(self.lanes)
        self.aligned |= {f.load.buffer for f in fetches if f.kind == "vector"} | {x.store.buffer for x in writes}
        lane = Lane(self.dim.id, first, self.lanes, True) if self.lanes > 1 else None
        lanes = THREADS // self.side
        strip = Strip(w, element, loop, span, self.rows, str(lanes), lane, None, "lane", fetches, writes,
                      lambda v: {id: f"{name}[{v}]" for id, name in values.items()})  # fmt: skip
        self.share(w, span, strip, states, live, lanes)
        tree(states, THREADS, self.side)
        return states

    def share(self, w: Writer, span: Span, strip: Strip, states: States, live: str, lanes: int) -> None:
        """A thread's rows of its block's share: whole strips, then what is left."""
        start, end = w.names.fresh("row"), w.names.fresh("end")
        row = thread("/", self.side, THREADS)
        total, known, even = span.total, span.known, lanes * self.rows
        if self.parts == 1:
            w.line(f"{w.index} {start} = {row};")
            w.line(f"const {w.index} {end} = {f'{live} ? {total} : 0' if live else total};")
            whole = known is not None and known % even == 0
        else:
            per = self.parts * lanes
            if known is not None:
                count = -(-known // per) * lanes
                share = w._integer(count)
                whole = count % even == 0 and known % count in (0, *range(even, count, even))
            else:
                share, whole = w.names.fresh("share"), False
                w.line(f"const {w.index} {share} = ({factor(total)} + {per - 1}) / {per} * {lanes};")
            w.line(f"{w.index} {start} = ({w.index})blockIdx.y * {share} + {row};")
            last = f"lf_least<{w.index}>({total}, (({w.index})blockIdx.y + 1) * {share})"
            w.line(f"const {w.index} {end} = {f'{live} ? {last} : 0' if live else last};")
        ahead = (self.rows - 1) * lanes
        head = f"for (; {start}{f' + {ahead}' if ahead else ''} < {end}; {start} += {even})"
        with w.block(head):
            self.absorb(strip, states, start)
        if not whole and self.rows > 1:
            with w.block(f"if ({start} < {end})"):
                self.absorb(strip, states, start, end)

    def uniform(self, fold: Loop) -> set[str]:
        """Accumulators that are the same in all columns of a thread."""
        if fold.where is not None or self.lanes == 1:
            return set()
        plain = {id(s) for s in fold.body}
        found = {a.id for a in fold.accs}
        for term in self.job.ask.sketch.terms:
            if self.dim.id in term.indices or id(term.store) not in plain:
                found.discard(term.acc.id)
        return found


def _parts(count: int) -> str:
    return f"{count} parts" if count > 1 else "one part"


__all__ = ["Across", "Along", "emit"]
