"""Reductions whose threads lie along them: over everything, or along rows that are few and long."""

from __future__ import annotations

from contextlib import ExitStack

from loopfuse.emit.code import KernelCode, Launch, grid
from loopfuse.emit.fetching import Accesses, size_of
from loopfuse.emit.partials import States, scoped, tree
from loopfuse.emit.reductions import (
    BLOCKS,
    MOST_ROWS,
    THREADS,
    Reduction,
    extent_of,
    factor,
    told,
)
from loopfuse.emit.serial import Serial
from loopfuse.emit.strips import Element, Lane, Span, Strip, constants
from loopfuse.emit.writer import Writer, state_bytes
from loopfuse.ir import Loop
from loopfuse.sizes import ONE

ALONG_BYTES = 64  # of a stream that a thread has in flight
PARTIALS = 4  # independent states of a thread, so that additions do not wait for one another


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
        why = f"reductions along rows in {told(self.parts)}, {lanes} elements in a vector, {rows} vectors at a time"
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
        self.held = max(self.held, found.held(lanes, rows, self.wide) + self.registers(fold, 1))
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


__all__ = ["Along"]
