"""Runs loop IR one element at a time, in any order that its loops allow, and notes what no valid program does.

Noted are: a read of an element that is not written, or is outside its array or window; a second write; a write outside;
a name that means nothing. The verifier must have refused a program for which anything is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from loopfuse.dtypes import DType
from loopfuse.ir import (
    Acc,
    Affine,
    Buffer,
    Const,
    Dim,
    Expr,
    Let,
    Load,
    Loop,
    Mode,
    Op,
    Program,
    Ref,
    Select,
    Stmt,
    Store,
)
from loopfuse.ops import MONOIDS, NOWHERE, OPS, from_bits

Order = Callable[[list[Any]], list[Any]]
Place = tuple[int, ...]


class Noted(Exception):
    """Something that a valid program does not do."""


def land(mode: Mode | None, at: int, extent: int) -> int | None:
    """Where a subscript lands on an axis; None where nothing is read."""
    if 0 <= at < extent or mode is None:
        return at
    if mode.kind in ("constant", "checked"):
        return None
    if extent < 1:
        raise Noted("a mode on an axis of extent 0")
    if mode.kind == "edge":
        return min(max(at, 0), extent - 1)
    if mode.kind == "wrap":
        return at % extent
    if mode.kind == "symmetric":
        return min(at % (2 * extent), 2 * extent - 1 - at % (2 * extent))
    period = max(2 * extent - 2, 1)
    return min(at % period, period - at % period) if extent > 1 else 0


class Tracker:
    """One run."""

    def __init__(self, program: Program, sizes: Mapping[str, int], arrays: Mapping[str, Any], order: Order) -> None:
        self.order, self.env = order, dict[str, Any](sizes)
        self.arrays: dict[str, Buffer | Acc] = {b.id: b for b in program.buffers}
        self.cells: dict[tuple[str, Place, Place], Any] = {}
        self.states: dict[tuple[str, Place], tuple[Any, ...]] = {}
        self.own = {b.id: self.private(program, b) for b in program.buffers}
        for id, array in arrays.items():
            for at in np.ndindex(array.shape):
                self.cells[id, (), at] = array[at]

    @staticmethod
    def private(program: Program, buffer: Buffer) -> tuple[str, ...]:
        """The indices, not of `seq` loops, that a window names: each iteration has elements of its own."""
        named = {n for side in buffer.window or () for bound in side for p in bound for n in p.names}
        found: set[str] = set()
        stack: list[Stmt] = [s for k in program.kernels for s in k.body]
        while stack:
            stmt = stack.pop()
            if isinstance(stmt, Loop):
                stack += stmt.body
                found |= {d.id for d in stmt.dims if stmt.order != "seq"} & named
        return tuple(sorted(found))

    # -- values -------------------------------------------------------------------------------------------------------

    def value(self, e: Expr) -> Any:
        """The value of an expression, lazily."""
        if isinstance(e, Const):
            return from_bits(e.bits, e.dtype)
        if isinstance(e, Affine):
            return np.int64(((int(e.poly.value(self.env)) + (1 << 63)) % (1 << 64)) - (1 << 63))
        if isinstance(e, Ref):
            if e.id not in self.env:
                raise Noted(f"`{e.id}` means nothing")
            return self.env[e.id]
        if isinstance(e, Select):
            return self.value(e.then if self.value(e.cond) else e.other)
        if isinstance(e, Load):
            return self.load(e)
        assert isinstance(e, Op)
        if e.op in ("and", "or"):
            left = self.value(e.args[0])
            return left if bool(left) == (e.op == "or") else self.value(e.args[1])
        return OPS[e.op].evaluate([self.value(a) for a in e.args], e.dtype)[()]

    def place(self, id: str, subs: Sequence[Expr], modes: Sequence[Mode | None]) -> tuple[Place, Mode | None]:
        """The element that an access touches, or a mode under which it touches none."""
        at = []
        for axis, extent in enumerate(self.arrays[id].shape):
            n = int(extent.value(self.env))
            found = land(modes[axis], int(self.value(subs[axis])), n)
            if found is None:
                return (), modes[axis]
            if not 0 <= found < n:
                raise Noted(f"`{id}` has no element {found} on axis {axis}")
            at.append(found)
        window = getattr(self.arrays[id], "window", None) or ()
        for k, (low, high) in zip(at, window, strict=False):
            if all(n in self.env for p in (*low, *high) for n in p.names) and not (
                max(p.value(self.env) for p in low) <= k < min(p.value(self.env) for p in high)
            ):
                raise Noted(f"{at} is outside the window of `{id}`")
        return tuple(at), None

    def incarnation(self, id: str) -> Place:
        """The iterations whose elements these are."""
        names = self.own.get(id, ())
        if any(n not in self.env for n in names):
            raise Noted(f"`{id}` does not exist here")
        return tuple(int(self.env[n]) for n in names)

    def load(self, e: Load) -> Any:
        """An element."""
        at, outside = self.place(e.buffer, e.subs, e.modes)
        if outside is not None:
            return from_bits(outside.fill.bits, e.dtype) if outside.fill else e.dtype.numpy.type(0)
        if isinstance(self.arrays[e.buffer], Acc):
            return self.final(e.buffer, at)
        key = (e.buffer, self.incarnation(e.buffer), at)
        if key not in self.cells:
            raise Noted(f"`{e.buffer}{list(at)}` is read and was not written")
        return self.cells[key]

    # -- statements ---------------------------------------------------------------------------------------------------

    def store(self, stmt: Store) -> None:
        """A write, or an absorption."""
        modes = stmt.modes or (None,) * len(stmt.subs)
        value = self.value(stmt.value)
        at, outside = self.place(stmt.buffer, stmt.subs, modes)
        if outside is not None:
            return
        if stmt.absorb:
            acc = self.arrays[stmt.buffer]
            state: tuple[Any, ...] = (value,) if stmt.at is None else (value, np.int64(self.value(stmt.at)))
            key = (stmt.buffer, at)
            assert isinstance(acc, Acc)
            self.states[key] = MONOIDS[acc.monoid].combine(self.states[key], state, acc.dtype)
            if not at:
                self.env[stmt.buffer] = self.final(stmt.buffer, ())
            return
        cell = (stmt.buffer, self.incarnation(stmt.buffer), at)
        if cell in self.cells:
            raise Noted(f"`{stmt.buffer}{list(at)}` is written twice")
        self.cells[cell] = value

    def final(self, id: str, at: Place) -> Any:
        """The value of an accumulator."""
        acc = self.arrays[id]
        result: DType = MONOIDS[acc.monoid].result(acc.dtype)  # type: ignore[union-attr]
        return np.asarray(self.states[id, at][-1]).astype(result.numpy)[()]

    def points(self, dims: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
        """The iterations, in order."""
        ranges = []
        for d in dims:
            lo, hi = max(p.value(self.env) for p in d.lo), min(p.value(self.env) for p in d.hi)
            ranges.append(range(int(lo), int(hi), int(d.step.value(self.env))))
        yield from product(*ranges)

    def loop(self, stmt: Loop) -> None:
        """All iterations, a par loop's in any order."""
        for acc in stmt.accs:
            self.arrays[acc.id] = acc
            identity = MONOIDS[acc.monoid].identity(acc.dtype)
            start = (identity, np.int64(NOWHERE)) if MONOIDS[acc.monoid].positional else (identity,)
            for at in np.ndindex(tuple(int(p.value(self.env)) for p in acc.shape)):
                self.states[acc.id, at] = start
            self.env[acc.id] = self.final(acc.id, ()) if not acc.shape else None
        points = list(self.points(stmt.dims))
        for point in self.order(points) if stmt.order == "par" else points:
            for d, k in zip(stmt.dims, point, strict=True):
                self.env[d.id] = k
            if stmt.where is None or self.value(stmt.where):
                self.block(stmt.body)
        for d in stmt.dims:
            self.env.pop(d.id, None)

    def block(self, body: Sequence[Stmt]) -> None:
        """Statements one after the other."""
        for stmt in body:
            if isinstance(stmt, Let):
                self.env[stmt.id] = self.value(stmt.value)
            elif isinstance(stmt, Store):
                self.store(stmt)
            else:
                self.loop(stmt)


def track(program: Program, sizes: Mapping[str, int], arrays: Mapping[str, Any], order: Order) -> str | None:
    """What is noted in a run, or None."""
    tracker = Tracker(program, sizes, arrays, order)
    try:
        for kernel in program.kernels:
            tracker.block(kernel.body)
    except Noted as noted:
        return str(noted)
    return None
