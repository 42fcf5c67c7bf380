"""Reductions of columns: a thread owns adjacent columns, and takes rows of them."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse.emit.base import Job
from loopfuse.emit.code import KernelCode, Launch, ceil_div, grid
from loopfuse.emit.fetching import Accesses, size_of
from loopfuse.emit.merging import aliases
from loopfuse.emit.partials import States, tree, unrolled
from loopfuse.emit.reductions import (
    BLOCKS,
    COLUMN_LANES,
    MOST_ROWS,
    THREADS,
    Nest,
    Reduction,
    extent_of,
    factor,
    power,
    thread,
    told,
)
from loopfuse.emit.serial import Serial
from loopfuse.emit.strips import Element, Lane, Names, Span, Strip, Values, constants
from loopfuse.emit.writer import Writer, c_type
from loopfuse.ir import Let, Loop
from loopfuse.sizes import ONE

ACROSS_BYTES = 64  # of a stream that a thread has in flight
REPAIRED_LANES = 2  # columns of a thread where states are repaired: more rows are a batch then, which costs divisions


class Across(Reduction):
    """A thread a group of adjacent columns, row lanes beside one another in a block."""

    shared = 0  # bytes of shared memory that are taken before the block's states

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
        repaired = any(a.repair is not None for f in nest.folds for a in f.accs)
        if repaired:
            self.lanes = min(self.lanes, REPAIRED_LANES)
        self.rows = min(a.rows(self.lanes, MOST_ROWS, ACROSS_BYTES, size_of(f.body))
                        for a, f in zip(self.accesses, nest.folds, strict=True))  # fmt: skip
        self.held = max(a.held(self.lanes, self.rows, self.wide) + self.registers(f, self.lanes)
                        for a, f in zip(self.accesses, nest.folds, strict=True))  # fmt: skip
        threads = -(-self.columns // self.lanes)
        self.side = min(COLUMN_LANES, power(threads))
        while (
            not nest.whole
            and self.side < THREADS
            and self.side < threads
            and self.points < THREADS // self.side * self.rows
        ):
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
            texts = self.before(w, self.needed(self.nest.folds), first)

            def values(v: str) -> Names:
                return {id: f"{name}[{v}]" for id, name in texts.items()}

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
        why = f"reductions of columns, {self.lanes} a thread, {self.rows} rows at a time, in {told(self.parts)}"
        made = self.function(w, "", THREADS, why)
        count = ceil_div(self.width, self.side * self.lanes)
        return made, Launch(made.name, grid(count, self.parts), w.arguments)

    def before(self, w: Writer, lets: Sequence[Let], first: str, values: Values = lambda v: {}) -> dict[str, str]:
        """Lets as variables, or as arrays over the lanes, whose names are returned. `values`: what differs by lane."""
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
                texts = {**values(v), **{id: f"{name}[{v}]" for id, name in found.items()}}
                with constants(w, [(w.names(self.dim.id), f"{first} + {v}")]), aliases(w, texts):
                    for let in varying:
                        w.line(f"{found[let.id]}[{v}] = {w.expr(let.value)};", let.span)
        return found

    def fold(self, w: Writer, fold: Loop, accesses: Accesses, first: str, live: str, values: Values) -> States:
        """The rows of a block's share of one fold, joined."""
        w.comment(f"the fold over {', '.join(d.id for d in fold.dims)}")
        states = States(w, fold.accs, self.lanes, self.uniform(fold))
        states.declare()
        strip = self.strip(w, fold, accesses, first, values)
        self.share(w, strip, states, live)
        tree(states, THREADS, self.side, self.shared)
        return states

    def strip(self, w: Writer, loop: Loop, accesses: Accesses, first: str, values: Values) -> Strip:
        """The strips of a loop."""
        loop, dims = self.inner(loop)
        fetches, writes = accesses.fetches(self.lanes), accesses.writes(self.lanes)
        self.aligned |= {f.load.buffer for f in fetches if f.kind == "vector"} | {x.store.buffer for x in writes}
        lane = Lane(self.dim.id, first, self.lanes, True) if self.lanes > 1 else None
        return Strip(w, Element(w, self.job.name), loop, Span(w, dims), self.rows, str(THREADS // self.side), lane, None,
                     "lane", fetches, writes, values)  # fmt: skip

    def share(self, w: Writer, strip: Strip, states: States | None, live: str) -> None:
        """A thread's rows of its block's share: whole strips, then what is left."""
        start, end = w.names.fresh("row"), w.names.fresh("end")
        row, lanes = thread("/", self.side, THREADS), THREADS // self.side
        total, known, even = strip.span.total, strip.span.known, lanes * self.rows
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


__all__ = ["Across"]
