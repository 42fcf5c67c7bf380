"""Reductions whose threads lie along them: over everything, or along rows that are few and long."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

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
from loopfuse.emit.team import flat
from loopfuse.emit.writer import Writer, state_bytes
from loopfuse.ir import Dim, Loop
from loopfuse.sizes import ONE

ALONG_BYTES = 64  # of a stream that a thread has in flight
REPAIRED_BYTES = 128  # the same where batches are joined: a longer batch is joined less often
PARTIALS = 4  # independent states of a thread, so that additions do not wait for one another


class Along(Reduction):
    """Threads along the reduction; a block, or several of them, a column."""

    shared = 0  # bytes of shared memory that are taken before the block's states

    def main(self) -> tuple[KernelCode, Launch]:
        """The kernel that reads everything."""
        w = self.writer()
        strips = [self.shape(fold) for fold in self.nest.folds]
        if self.split:
            turns = max(self.turns_in(f, lanes * rows)
                        for f, (_, lanes, rows) in zip(self.nest.folds, strips, strict=True))  # fmt: skip
            self.parts = max(2, min(BLOCKS * self.device.units // self.columns, turns))
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

    def around(self, fold: Loop) -> tuple[tuple[Dim, ...], Loop]:
        """The leading dims of a fold where others depend on them, and the fold over those others: a block goes through
        the points of the first, its threads lie along the others."""
        parts = flat(fold.dims)
        return (parts.dims, replace(fold, dims=parts.rest)) if parts.rest else ((), fold)

    def turns_in(self, fold: Loop, elements: int) -> int:
        """How many turns blocks take in a fold, a thread taking so many elements in one."""
        outer, _ = self.around(fold)
        return self.count(fold) if outer else -(-self.count(fold) // (THREADS * elements))

    def shape(self, fold: Loop) -> tuple[Accesses, int, int]:
        """How the strips of a fold are: its accesses, lanes and rows."""
        outer, fold = self.around(fold)
        loop, dims = self.inner(fold)
        found = Accesses(self.job, loop, (*self.nest.dims, *outer), dims, dims[-1])
        lanes = found.lanes(None if len(dims) == 1 else extent_of(self.job, dims[-1]) or ONE)
        ahead = REPAIRED_BYTES if any(a.repair for a in fold.accs) else ALONG_BYTES
        rows = found.rows(lanes, MOST_ROWS, ahead, size_of(loop.body))
        blocks = 1 if outer else -(-self.device.units // self.columns)
        while rows > 1 and self.count(fold) < THREADS * lanes * rows * blocks:
            rows //= 2
        self.held = max(self.held, found.held(lanes, rows, self.wide) + self.registers(fold, 1))
        return found, lanes, rows

    def fold(self, w: Writer, fold: Loop, accesses: Accesses, lanes: int, rows: int) -> States:
        """The part of a block of one fold, joined."""
        w.comment(f"the fold over {', '.join(d.id for d in fold.dims)}: tiles of {THREADS} x {lanes} x {rows}")
        outer, fold = self.around(fold)
        accs = [a for a in fold.accs if not a.shape]
        size = sum(state_bytes(a.monoid, a.dtype) for a in accs)
        partials = min(PARTIALS, rows) if accs and all(a.repair is None for a in accs) else 1
        while partials > 1 and partials * size > 64:
            partials //= 2
        states = States(w, accs, partials)
        states.declare()
        part = "(int)blockIdx.y" if self.parts > 1 else "0"
        with ExitStack() as stack:
            if outer:
                span = Span(w, outer)
                turn = stack.enter_context(scoped(w, "turn"))
                head = f"for ({w.index} {turn} = {part}; {turn} < {span.total}; {turn} += {self.parts})"
                stack.enter_context(w.block(head))
                stack.enter_context(span.settle(turn))
            self.strips(w, fold, accesses, lanes, rows, states, "" if outer or self.parts == 1 else part)
        found = states.first()
        tree(found, THREADS, 1, self.shared)
        return found

    def strips(self, w: Writer, fold: Loop, accesses: Accesses, lanes: int, rows: int, states: States,
               part: str) -> None:  # fmt: skip
        """The elements of a fold, by the block alone or (`part`) by all parts in turn."""
        loop, dims = self.inner(fold)
        element, span = self.element(w), Span(w, dims)
        fetches, writes = accesses.fetches(lanes), accesses.writes(lanes)
        self.aligned |= {f.load.buffer for f in fetches if f.kind == "vector"} | {x.store.buffer for x in writes}
        lane = Lane(dims[-1].id, w.names.fresh(f"{dims[-1].id}.first"), lanes, False) if lanes > 1 else None
        strip = Strip(w, element, loop, span, rows, str(THREADS * lanes), lane, None, "row", fetches, writes)
        rest_rows = min(MOST_ROWS, rows * lanes)
        rest = Strip(w, element, loop, span, rest_rows, str(THREADS), None, None, "row", accesses.fetches(1))
        strip.rising = rest.rising = accesses.around == self.nest.dims
        self.tiles(w, span, strip, rest, states, part)

    def element(self, w: Writer) -> Element:
        """What writes the statements at one element."""
        return Element(w, self.job.name)

    def tiles(self, w: Writer, span: Span, strip: Strip, rest: Strip, states: States, part: str) -> None:
        """Whole tiles in turn, and what is left by the block whose turn would be next."""
        known, tile = span.known, THREADS * strip.lanes * strip.rows
        parts = self.parts if part else 1
        tiles = str(known // tile) if known is not None else w.names.fresh("tiles")
        if known is None:
            w.line(f"const {w.index} {tiles} = {factor(span.total)} / {tile};")
        lanes = f" * {strip.lanes}" if strip.lanes > 1 else ""
        if known is None or known >= tile:
            with scoped(w, "tile") as t, scoped(w, "start") as start:
                head = f"for ({w.index} {t} = {part or '0'}; {t} < {tiles}; {t} += {parts})"
                with w.block(head):
                    w.line(f"const {w.index} {start} = {t} * {tile} + ({w.index})threadIdx.x{lanes};")
                    self.absorb(strip, states, start)
        if known is not None and known % tile == 0:
            return
        turn = f"{tiles} % {parts}" if known is None else str(known // tile % parts)
        with w.block(f"if ({part} == {turn})" if part else ""), scoped(w, "start") as start:
            head = f"for ({w.index} {start} = ({w.index}){tiles} * {tile} + ({w.index})threadIdx.x; {start} < {span.total}; "
            with w.block(f"{head}{start} += {THREADS * rest.rows})"):
                self.absorb(rest, states, start, span.total)


__all__ = ["Along"]
