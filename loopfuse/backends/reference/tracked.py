"""Values with error bounds: the bounded domain, its values and their storage.

A tracked value holds the element of the declared type that the reference computes; beside it, for floats, a *shadow*
computed in a wider type (f64; extended precision for f64), and a bound on the distance that the result of a correct
compiled program may have from the shadow; and where it is undecided, because both outcomes of a switch are admissible.
Integers and bools are exact unless undecided.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loopfuse.backends.reference.domain import Cells, strides_of
from loopfuse.constants import greatest
from loopfuse.dtypes import F64, DType
from loopfuse.numerics import Array
from loopfuse.oprow import spacing, steps

WIDE = np.dtype(np.longdouble)


def wide_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of the shadow of a float type."""
    return WIDE if dtype == F64 else np.dtype(np.float64)


class Tracked:
    """Arrays that broadcast to one another. `bound` None: exact; `doubt` None: decided everywhere.

    `dropped` marks products of an exact zero and a number that is not finite, which a contraction may leave out.
    """

    __slots__ = ("_shadow", "bound", "doubt", "dropped", "dtype", "value")

    def __init__(self, dtype: DType, value: Array, shadow: Array | None = None, bound: Array | None = None,
                 doubt: Array | None = None, dropped: Array | None = None) -> None:  # fmt: skip
        self.dtype, self.value, self._shadow = dtype, value, shadow
        self.bound, self.doubt, self.dropped = bound, doubt, dropped

    @property
    def shadow(self) -> Array:
        """The wide value; for integers and bools the value itself."""
        if self._shadow is None:
            self._shadow = self.value.astype(wide_type(self.dtype)) if self.dtype.is_float else self.value
        return self._shadow

    @property
    def error(self) -> Array:
        """The bound as an array."""
        return np.zeros(()) if self.bound is None else self.bound

    @property
    def unsure(self) -> Array:
        """The doubt as an array."""
        return np.zeros((), dtype=bool) if self.doubt is None else self.doubt


def either(a: Array | None, b: Array | None) -> Array | None:
    """Where one of two doubts holds."""
    return b if a is None else a if b is None else a | b


def any_of(doubt: Array | None) -> Array | None:
    """The doubt, or None where it holds nowhere."""
    return doubt if doubt is not None and doubt.any() else None


def settle(dtype: DType, value: Array, shadow: Array, bound: Array | None, doubt: Array | None,
           final: bool = False) -> Tracked:  # fmt: skip
    """A float result: what is not finite is exact where value and shadow agree on it, undecided where they do not.

    So is a value that may overflow within its bound, and one that overflows at its own width only; unless no compiled
    program has the value in a wider type (`final`): then what must overflow is the infinity that it becomes.
    """
    if shadow.size == 0:
        return Tracked(dtype, value, shadow, None, any_of(doubt))
    most, slip = float(np.abs(shadow).max()), 0.0 if bound is None else float(np.max(bound))
    if most + slip <= greatest(dtype) and np.isfinite(value).all():
        return Tracked(dtype, value, shadow, bound if slip else None, any_of(doubt))
    if final:
        shadow = _overflown(dtype, shadow, bound)
    wide = value.astype(shadow.dtype)
    finite = np.isfinite(shadow) & np.isfinite(wide)
    if not finite.all():
        same = (wide == shadow) | (np.isnan(wide) & np.isnan(shadow))
        doubt = either(doubt, ~finite & ~same)
    if bound is not None:
        largest = greatest(dtype)
        loose = finite & ~(np.abs(shadow) + bound <= largest)
        doubt = either(doubt, loose)
        bound = np.where(finite & ~loose, bound, 0.0).astype(np.float64)
        if not bound.any():
            bound = None
    return Tracked(dtype, value, shadow, bound, any_of(doubt))


def _overflown(dtype: DType, shadow: Array, bound: Array | None) -> Array:
    """The shadow, infinite where it rounds to no number, whatever its error; the middle is rounded up, to even."""
    edge = greatest(dtype) + half_step(np.asarray(greatest(dtype)), dtype)
    past = np.abs(shadow) - (0.0 if bound is None else bound) >= edge
    return np.asarray(np.where(past, np.copysign(np.inf, shadow), shadow), dtype=shadow.dtype)


def half_step(size: Array, dtype: DType) -> Array:
    """Half the distance between neighbours of a float type at a magnitude."""
    return steps(0.5, np.abs(size), dtype)


# -- storage ----------------------------------------------------------------------------------------------------------


class TrackedStorage:
    """A buffer of tracked elements. Shadows, bounds and doubts are kept from the first that is not trivial on.

    `slack`: units in the last place that a compiled program may be off more when it stores a value that is not exact.
    """

    __slots__ = (
        "_slack", "cells", "doubts", "dtype", "errors", "modulus", "origin", "shadows", "shape", "strides", "windowed",
        "written",
    )  # fmt: skip

    def __init__(self, dtype: DType, array: Array, rank: int | None = None, slack: float = 0.0) -> None:
        self._slack = slack
        self.dtype, self.shape, self.strides = dtype, array.shape, strides_of(array.shape)
        self.origin = self.modulus = (0,) * (array.ndim if rank is None else rank)
        self.windowed = False
        self.written: Array | None = None
        self.cells = Cells(array)
        self.shadows: Cells | None = None
        self.errors: Cells | None = None
        self.doubts: Cells | None = None

    def _prepare(self, value: Tracked) -> None:
        """Make room for the parts that a value brings."""
        if value.bound is not None and self.shadows is None:
            self.shadows = Cells(self.cells.flat.astype(wide_type(self.dtype)))
            self.errors = Cells(np.zeros(self.cells.flat.shape))
        if value.doubt is not None and self.doubts is None:
            self.doubts = Cells(np.zeros(self.cells.flat.shape, dtype=bool))

    def _parts(self, value: Tracked) -> list[tuple[Cells, Array]]:
        self._prepare(value)
        parts = [(self.cells, value.value)]
        if self.shadows is not None and self.errors is not None:
            error = value.error
            if self._slack and value.bound is not None:
                error = error + np.where(error > 0, self._slack * spacing(np.abs(value.shadow), self.dtype), 0.0)
            parts += [(self.shadows, value.shadow), (self.errors, error)]
        if self.doubts is not None:
            parts.append((self.doubts, value.unsure))
        return parts

    def view(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Tracked:
        """The elements at a regular pattern, without a copy."""
        found = [None if c is None else c.view(shape, offset, strides) for c in self._cells()]
        return self._value(found)

    def take(self, at: Array) -> Tracked:
        """The elements at flat positions."""
        return self._value([None if c is None else np.asarray(c.flat.take(at)) for c in self._cells()])

    def _cells(self) -> tuple[Cells | None, ...]:
        return self.cells, self.shadows, self.errors, self.doubts

    def _value(self, parts: list[Array | None]) -> Tracked:
        value, shadow, bound, doubt = parts
        assert value is not None
        if bound is not None and not bound.any():
            bound = shadow = None
        return Tracked(self.dtype, value, shadow, bound, any_of(doubt))

    def assign(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...], value: Tracked,
               where: Array | None) -> None:  # fmt: skip
        """Write to a regular pattern."""
        for cells, part in self._parts(value):
            cells.assign(cells.view(shape, offset, strides), part, where)

    def put(self, at: Array, value: Tracked, shape: tuple[int, ...], where: Array | None) -> None:
        """Write to flat positions of that shape."""
        for cells, part in self._parts(value):
            cells.put(at, part, shape, where)

    def whole(self) -> Tracked:
        """All elements, in the buffer's shape."""
        parts = [None if c is None else c.flat.reshape(self.shape) for c in self._cells()]
        value, shadow, bound, doubt = parts
        assert value is not None
        return Tracked(self.dtype, value, shadow, bound, doubt)
