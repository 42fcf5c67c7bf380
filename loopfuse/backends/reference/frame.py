"""The state of a vectorised run: where the loops stand, what the names hold, which elements count.

Every par or prefix index is an axis of the arrays, a seq index is a number. The axes of an inner loop stand before
those of the outer ones, so that NumPy's broadcasting, which aligns last axes, lets a value that varies with outer
indices only meet one that varies with inner ones. An axis is named by its place from the end: -1 is the last dim of
the outermost loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from loopfuse.diag import Span
from loopfuse.numerics import Array


@dataclass(frozen=True, slots=True)
class Stray:
    """A subscript outside: which of an access, its value, and the extent of its axis."""

    axis: int
    value: int
    extent: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A checked access that went outside its axis: which buffer, where in the source, how many times, and the `first` subscript
    that was outside (None where nothing tells, as after a run on a GPU)."""

    span: Span | None
    buffer: str
    count: int
    first: Stray | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """A loop index in scope. `axis` is None for a seq index; a loose one starts at an array of its own values."""

    slot: int
    axis: int | None
    step: int
    loose: bool = False


class Mask:
    """The iterations that count: `cond` (or its opposite) and those that `outer` lets through. Made when asked for."""

    __slots__ = ("_array", "_cond", "_invert", "_outer")

    def __init__(self, outer: Mask | None, cond: Array, invert: bool = False) -> None:
        self._outer, self._cond, self._invert = outer, cond, invert
        self._array: Array | None = None

    def array(self) -> Array:
        """The mask as an array that broadcasts to the axes."""
        if self._array is None:
            own = np.logical_not(self._cond) if self._invert else self._cond
            self._array = np.asarray(own if self._outer is None else self._outer.array() & own)
        return self._array


class Frame:
    """The run-time state; lists are indexed by the slots that compilation gave out.

    `start`, `last`, `count` describe the box of each index being evaluated, `low` and `high` the hull it is part of, in
    which the box begins after `place` iterations. `elements` is the number of elements of `shape`.
    `doubt` marks iterations of which it is undecided whether they are performed.
    """

    __slots__ = (
        "axes", "count", "doubt", "elements", "faults", "high", "last", "limit", "low", "mask", "place", "quiet", "report",
        "shape", "start", "states", "stores", "values",
    )  # fmt: skip

    def __init__(self, indices: int, values: int, stores: int, limit: int) -> None:
        self.start: list[Any] = [0] * indices
        self.last: list[int] = [0] * indices
        self.count: list[int] = [0] * indices
        self.place: list[int] = [0] * indices
        self.low: list[int] = [0] * indices
        self.high: list[int] = [0] * indices
        self.axes: list[Array | None] = [None] * indices
        self.values: list[Any] = [None] * values
        self.states: list[Any] = [None] * values
        self.stores: list[Any] = [None] * stores
        self.shape: tuple[int, ...] = ()
        self.elements = 1
        self.limit = limit
        self.mask: Mask | None = None
        self.doubt: Array | None = None
        self.quiet = False
        self.faults: dict[tuple[int, str], Fault] = {}
        self.report: Callable[[float], None] | None = None

    def axis(self, index: Index) -> Any:
        """The values of an index: a number for a seq index, an array along its axis for any other."""
        if index.axis is None:
            return self.start[index.slot]
        found = self.axes[index.slot]
        if found is None:
            found = self.start[index.slot] + ramp(self.count[index.slot], index.step, index.axis)
            self.axes[index.slot] = found
        return found

    def fault(self, span: Span | None, buffer: str, count: int, first: Stray) -> None:
        """Note `count` accesses outside, and the first subscript that is."""
        if count and not self.quiet:
            before = self.faults.get((id(span), buffer)) or Fault(span, buffer, 0, first)
            self.faults[id(span), buffer] = Fault(span, buffer, before.count + count, before.first)


def ramp(count: int, step: int, axis: int) -> Array:
    """`0, step, 2*step, ...` along an axis, counted from the end; not to be written to."""
    return _short_ramp(count, step, axis) if count <= 4096 else _ramp(count, step, axis)


def _ramp(count: int, step: int, axis: int) -> Array:
    made = np.arange(0, count * step, step, dtype=np.int64).reshape((count,) + (1,) * (-axis - 1))
    made.setflags(write=False)
    return made


_short_ramp = lru_cache(maxsize=512)(_ramp)
