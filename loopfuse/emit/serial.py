"""Statements that one thread executes in order. Folds are exact: an accumulator that waits for another takes a pass of
its own, so that repairs are not needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod

from loopfuse.dtypes import I64
from loopfuse.emit.code import Memory
from loopfuse.emit.slices import levels, prune
from loopfuse.emit.writer import Place, Writer, c_type, state_bytes, state_type
from loopfuse.ir import Acc, Dim, Expr, Let, Loop, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.sizes import ONE, Poly

MOST_PRIVATE = 1024  # bytes of an array that a thread keeps in its own local memory


class Serial:
    """Statements by one thread, written with a `Writer`.

    `slot`, where set, is an expression that tells the threads of a launch of `slots` threads apart: arrays too large for
    a thread's local memory then live in scratch, a part a slot. `memory` gathers that scratch.
    """

    def __init__(self, writer: Writer, prefix: str = "", slot: str = "", slots: int = 0) -> None:
        self.w, self.prefix, self.slot, self.slots = writer, prefix, slot, slots
        self.memory: list[Memory] = []
        self.accs: dict[str, Acc] = {}

    # -- statements ---------------------------------------------------------------------------------------------------

    def serial(self, body: Sequence[Stmt]) -> None:
        """The statements in order."""
        for stmt in body:
            if isinstance(stmt, Let):
                self.let(stmt)
            elif isinstance(stmt, Store):
                self.store(stmt)
            elif stmt.order == "prefix":
                self.prefix_loop(stmt)
            elif stmt.accs:
                self.fold(stmt)
            else:
                self.loop(stmt, stmt.body)

    def let(self, stmt: Let) -> None:
        """A name for a value."""
        value = self.w.expr(stmt.value)
        self.w.alias.pop(stmt.id, None)
        self.w.line(f"const {c_type(stmt.value.dtype)} {self.w.names(stmt.id)} = {value};", stmt.span)

    def store(self, stmt: Store) -> None:
        """A write, or an absorption into an accumulator."""
        if stmt.absorb:
            self.absorb(stmt)
            return
        place = self.w.place(stmt.buffer, True)
        subs, guards = self.w.subscripts(stmt.subs, stmt.modes, place, stmt, stmt.buffer)
        value = self.w.kept(self.w.expr(stmt.value), place)
        test = " && ".join(c for c, _ in guards)
        text = f"{place.pointer}[{self.w.flat(subs, place)}] = {value};"
        self.w.line(f"if ({test}) {text}" if test else text, stmt.span)

    def absorb(self, stmt: Store) -> None:
        """A value into an accumulator: a variable, or an element of an array."""
        acc = self.accs[stmt.buffer]
        value = self.w.expr(stmt.value)
        if stmt.at is not None:
            value = f"{state_type(acc.monoid, acc.dtype)}{{{value}, {self.position(stmt.at)}}}"
        if not acc.shape:
            name = self.w.names(acc.id)
            self.w.line(f"{name} = {self.w.combine(acc.monoid, acc.dtype, name, value)};", stmt.span)
            return
        place = self.w.places[acc.id]
        subs, guards = self.w.subscripts(stmt.subs, stmt.modes, place, stmt, stmt.buffer)
        element = f"{place.pointer}[{self.w.flat(subs, place)}]"
        self.update(acc, element, value, " && ".join(c for c, _ in guards), stmt)

    def position(self, at: Expr) -> str:
        """The position that argmax or argmin absorbs, an i64."""
        text = self.w.expr(at)
        return text if at.dtype == I64 else f"(long long){text}"

    def update(self, acc: Acc, element: str, value: str, test: str, stmt: Store) -> None:
        """A value into an element of an array that this thread alone writes."""
        text = f"{element} = {self.w.combine(acc.monoid, acc.dtype, element, value)};"
        self.w.line(f"if ({test}) {text}" if test else text, stmt.span)

    # -- loops --------------------------------------------------------------------------------------------------------

    def loop(self, loop: Loop, body: Sequence[Stmt]) -> None:
        """The iterations one after another."""
        with ExitStack() as stack:
            for dim in loop.dims:
                stack.enter_context(self.w.block(self.header(dim), loop.span))
            if loop.where is not None:
                stack.enter_context(self.w.block(f"if ({self.w.expr(loop.where)})"))
            self.serial(body)

    def header(self, dim: Dim) -> str:
        """The head of a C loop over a dim."""
        low, high = self.w.extent(dim.lo, dim.hi)
        name = self.w.names(dim.id)
        step = f"{name} += {self.w.poly(dim.step)}" if dim.step != ONE else f"++{name}"
        return f"for ({self.w.index} {name} = {low}; {name} < {high}; {step})"

    def declare(self, accs: Sequence[Acc]) -> None:
        """Accumulators at their identities."""
        for acc in accs:
            self.accs[acc.id] = acc
            if acc.shape:
                self.w.places[acc.id] = self.array(acc)
                continue
            kind = state_type(acc.monoid, acc.dtype)
            self.w.line(f"{kind} {self.w.names(acc.id)} = {self.w.identity(acc.monoid, acc.dtype)};")
            if MONOIDS[acc.monoid].positional:
                self.w.alias[acc.id] = f"{self.w.names(acc.id)}.at"

    def fold(self, loop: Loop) -> None:
        """A fold in as many passes as its accumulators need."""
        self.declare(loop.accs)
        for body in passes(loop):
            self.loop(loop, body)

    def prefix_loop(self, loop: Loop) -> None:
        """A fold in order, whose running value may be read."""
        self.declare(loop.accs)
        self.loop(loop, loop.body)

    # -- arrays -------------------------------------------------------------------------------------------------------

    def array(self, acc: Acc) -> Place:
        """Room for an array accumulator of this thread, at its identity."""
        kind, count = state_type(acc.monoid, acc.dtype), self.count(acc.shape)
        name = self.w.names.fresh(acc.id)
        place = Place(name, acc.shape, acc.dtype, raw=True, positional=MONOIDS[acc.monoid].positional)
        number = self.w.target.number(count)
        if number is not None and (number * state_bytes(acc.monoid, acc.dtype) <= MOST_PRIVATE or not self.slot):
            self.w.line(f"{kind} {name}[{max(1, number)}];")
        else:
            self.scratch(acc, kind, name, count, self.slot, self.slots)
        k = self.w.names.fresh("k")
        start = self.w.identity(acc.monoid, acc.dtype)
        self.w.line(f"for (int {k} = 0; {k} < {self.w.poly(count)}; ++{k}) {name}[{k}] = {start};")
        return place

    def scratch(self, acc: Acc, kind: str, name: str, count: Poly, slot: str, slots: int) -> None:
        """A pointer to an array's part of scratch memory, a part a slot."""
        id = f"{self.prefix}.{acc.id}"
        self.memory.append(Memory(id, count * (state_bytes(acc.monoid, acc.dtype) * slots)))
        base = self.w.pointer(id, kind, write=True, name=f"{acc.id}.scratch")
        self.w.line(f"{kind}* {name} = {base} + (long long){slot} * {self.w.poly(count)};")

    def count(self, shape: Sequence[Poly]) -> Poly:
        """The number of elements."""
        return self.w.target.poly(prod(shape, start=ONE))


def passes(loop: Loop) -> list[tuple[Stmt, ...]]:
    """The bodies of the passes over a fold, in order; plain stores happen in the first."""
    level = levels(loop)
    count = 1 + max(level.values(), default=0)
    if count == 1:
        return [loop.body]
    of = [{a for a, n in level.items() if n == k} for k in range(count)]
    return [prune(loop.body, of[k], stores=k == 0, mine=level) for k in range(count)]
