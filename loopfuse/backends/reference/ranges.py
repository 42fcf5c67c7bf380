"""What the dims of a loop iterate over at run time: hulls, the part of a hull that a box needs, and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse.backends.reference.boxes import Box
from loopfuse.backends.reference.frame import Frame, Index
from loopfuse.backends.reference.places import Bound, steps
from loopfuse.backends.reference.scope import Number, Scope, Spread, number, spread
from loopfuse.numerics import Array
from loopfuse.sizes import Poly


@dataclass(frozen=True, slots=True)
class _Limit:
    """One of several lows or highs: its value, its bounds over boxes (none for a loose dim), whether it varies."""

    value: Number
    spread: Spread | None
    varies: bool


class Range:
    """A dim at run time. With `trim` the ends that no iteration of the box needs are cut off."""

    def __init__(self, bound: Bound, index: Index, scope: Scope, trim: bool) -> None:
        self.index, self._trim, self.loose = index, trim, bound.loose
        self._lo = [_limit(p, bound, scope) for p in bound.lo]
        self._hi = [_limit(p, bound, scope) for p in bound.hi]
        self._fixed: tuple[int, int] | None = None
        if all(p.is_const for p in (*bound.lo, *bound.hi)):
            start, stop = max(p.constant for p in bound.lo), min(p.constant for p in bound.hi)
            self._fixed = (start, steps(start, stop, bound.step))
        self.varies = [] if self._fixed else [(x, True) for x in self._lo if x.varies] + [
            (x, False) for x in self._hi if x.varies]  # fmt: skip

    def enter(self, f: Frame) -> tuple[Any, int]:
        """The first value and the number of iterations to evaluate; notes the hull in the frame."""
        slot, step = self.index.slot, self.index.step
        if self._fixed:
            start, count = self._fixed
            f.low[slot], f.high[slot] = start, start + max(0, count - 1) * step
            return start, count
        if self.loose:
            return self._enter_loose(f)
        start = max([x.spread(f.low, f.high)[0] for x in self._lo if x.spread])
        stop = min([x.spread(f.low, f.high)[1] for x in self._hi if x.spread])
        f.low[slot], f.high[slot] = start, start + max(0, steps(start, stop, step) - 1) * step
        if self._trim and self.varies:
            stop = min([x.spread(f.start, f.last)[1] for x in self._hi if x.spread])
            least = max([x.spread(f.start, f.last)[0] for x in self._lo if x.spread])
            start += max(0, least - start) // step * step
        return start, steps(start, stop, step)

    def _enter_loose(self, f: Frame) -> tuple[Any, int]:
        slot, step = self.index.slot, self.index.step
        start, stop = self._lo[0].value(f), self._hi[0].value(f)
        for limit in self._lo[1:]:
            start = np.maximum(start, limit.value(f))
        for limit in self._hi[1:]:
            stop = np.minimum(stop, limit.value(f))
        lengths = np.asarray(-((np.asarray(start, dtype=np.int64) - stop) // step))
        if f.mask is not None:
            lengths = np.where(f.mask.array(), lengths, 0)
        count = max(0, int(lengths.max())) if lengths.size else 0
        f.low[slot], f.high[slot] = int(np.min(start)), int(np.max(start)) + max(0, count - 1) * step
        return np.asarray(start, dtype=np.int64), count

    def place(self, f: Frame, start: Any, first: int, count: int) -> None:
        """Set the frame to `count` iterations, after the first `first`, of those that begin at `start`."""
        slot, step = self.index.slot, self.index.step
        begin = start + first * step
        f.start[slot], f.count[slot], f.axes[slot] = begin, count, None
        if self.loose:
            f.last[slot], f.place[slot] = f.high[slot], first
        else:
            f.last[slot], f.place[slot] = begin + (count - 1) * step, (begin - f.low[slot]) // step

    def mask(self, f: Frame) -> Array | None:
        """Which iterations of the box are within the dim's own bounds; None for all."""
        found: Array | None = None
        slot = self.index.slot
        for limit, low in self.varies:
            if limit.spread is not None:
                least, most = limit.spread(f.start, f.last)
                if (f.start[slot] >= most) if low else (f.last[slot] < least):
                    continue
            elif low:
                continue
            at, edge = f.axis(self.index), limit.value(f)
            part = at >= edge if low else at < edge
            found = part if found is None else found & part
        return found


def _limit(poly: Poly, bound: Bound, scope: Scope) -> _Limit:
    axes = poly.names & scope.names.axes
    return _Limit(number(poly, scope), None if bound.loose else spread(poly, scope), bool(axes) or bound.loose)


def masked(f: Frame, ranges: list[Range]) -> Array | None:
    """Which iterations of the box are within all bounds; None for all."""
    found: Array | None = None
    for r in ranges:
        part = r.mask(f)
        if part is not None:
            found = part if found is None else found & part
    return None if found is None or found.all() else found


def set_box(f: Frame, ranges: list[Range], starts: list[Any], box: Box, outer: tuple[int, ...], around: int) -> None:
    """Set the frame to a box of a loop whose surroundings have the shape `outer` and `around` elements."""
    size = 1
    for r, start, (first, count) in zip(ranges, starts, box, strict=True):
        r.place(f, start, first, count)
        size *= count
    f.shape = (*[count for _, count in box], *outer)
    f.elements = around * size
