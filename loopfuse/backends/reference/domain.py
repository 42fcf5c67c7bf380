"""What a value is: the interpreter's loops and subscripts work on any `Domain`; `Plain` computes with arrays.

The bounded domain (`tracked.py`) carries beside each value a wider one and an error bound through the same program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from loopfuse.backends.reference.tree import Node
from loopfuse.constants import from_bits
from loopfuse.dtypes import DType
from loopfuse.ir import Op
from loopfuse.numerics import Array
from loopfuse.ops import MONOIDS, NOWHERE, OPS

Value = Any


class Reducer(Protocol):
    """A monoid at a type, on the nodes of a domain.

    `rounds`: the order of combination matters. `dtype` is the final value's. `ufunc`: what may be the operation in
    NumPy, to be tried and checked.
    """

    rounds: bool
    identity: Node
    dtype: DType
    ufunc: np.ufunc | None

    def lift(self, value: Value, at: Value | None) -> Node:
        """One term, or an array of terms, as a node."""

    def combine(self, left: Node, right: Node) -> Node:
        """Two nodes joined, the left one earlier."""

    def finish(self, node: Node) -> Value:
        """The final value of a node that holds all terms (None: none)."""

    def along(self, block: Node, shape: tuple[int, ...]) -> Value:
        """A block of complete nodes as a value of a shape."""

    def doubted(self, node: Node, doubt: Array) -> Node:
        """The node, undecided also where `doubt` holds."""


class Storage(Protocol):
    """The elements of a buffer, C-contiguous; offsets, strides and flat positions count elements.

    `origin` is the coordinate of the first element on each axis, `modulus` the length after which an axis repeats (0:
    never), `windowed` whether either is not 0 somewhere. `written` marks the elements that may be read, where watched.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    origin: tuple[int, ...]
    modulus: tuple[int, ...]
    written: Array | None
    windowed: bool

    def view(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Value:
        """The elements at a regular pattern, without a copy."""

    def assign(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...], value: Value,
               where: Array | None) -> None:  # fmt: skip
        """Write to a regular pattern."""

    def take(self, at: Array) -> Value:
        """The elements at flat positions."""

    def put(self, at: Array, value: Value, shape: tuple[int, ...], where: Array | None) -> None:
        """Write `value`, broadcast to `shape`, to flat positions of that shape."""


class Domain(Protocol):
    """How constants, operations, choices and reductions act on values."""

    tracks: bool

    def constant(self, bits: int, dtype: DType) -> Value:
        """A constant."""

    def integers(self, numbers: Any) -> Value:
        """Exact i64 numbers."""

    def operation(self, node: Op) -> Callable[[tuple[Value, ...]], Value]:
        """An operation, ready to be applied."""

    def choose(self, cond: Value, then: Value, other: Value, dtype: DType) -> Value:
        """`then` where `cond` holds, else `other`."""

    def patch(self, value: Value, keep: Array, fill: Value, dtype: DType) -> Value:
        """`value` where `keep` holds, else `fill`."""

    def truth(self, cond: Value) -> Array:
        """A bool value as an array."""

    def doubt(self, value: Value) -> Array | None:
        """Where the value is undecided."""

    def indices(self, value: Value) -> Array:
        """An integer value as i64."""

    def tainted(self, value: Value, doubt: Array | None) -> Value:
        """The value, undecided also where `doubt` holds."""

    def copy(self, value: Value) -> Value:
        """The value apart from the storage it may be a view of."""

    def storage(self, dtype: DType, shape: tuple[int, ...]) -> Storage:
        """A buffer of zeros."""

    def given(self, dtype: DType, array: Array) -> Storage:
        """A buffer with the elements of a C-contiguous array."""

    def array(self, value: Value, dtype: DType, shape: tuple[int, ...], batch: tuple[int, ...]) -> Storage:
        """A buffer of `shape + batch` with the elements of a value of that shape."""

    def reducer(self, monoid: str, dtype: DType, term: bool, square: bool = False) -> Reducer:
        """A monoid for terms of type `dtype`; `term`: the terms are products that the monoid's operation takes up; `square`:
        they are squares."""


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in elements."""
    strides, size = [], 1
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


class Cells:
    """One flat array, seen through patterns."""

    __slots__ = ("dtype", "flat", "item", "raw")

    def __init__(self, array: Array) -> None:
        self.flat = array.reshape(-1)
        self.dtype = array.dtype
        self.item = array.dtype.itemsize
        # A view as bytes: ml_dtypes have no buffer of their own.
        self.raw = self.flat.view(np.uint8)

    def view(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Array:
        """The elements at a regular pattern."""
        item = self.item
        return np.ndarray(shape, self.dtype, self.raw, offset * item, tuple([s * item for s in strides]))

    def assign(self, view: Array, value: Any, where: Array | None) -> None:
        """Write to a view."""
        if where is None:
            view[...] = value
        else:
            np.copyto(view, value, where=where)

    def put(self, at: Array, value: Any, shape: tuple[int, ...], where: Array | None) -> None:
        """Write to flat positions; later ones win."""
        at, value = np.broadcast_to(at, shape), np.broadcast_to(value, shape)
        if where is not None:
            where = np.broadcast_to(where, shape)
            at, value = at[where], value[where]
        self.flat[at] = value


class PlainStorage:
    """A buffer of plain elements."""

    __slots__ = ("cells", "modulus", "origin", "shape", "strides", "windowed", "written")

    def __init__(self, array: Array, rank: int | None = None) -> None:
        self.shape = array.shape
        self.strides = strides_of(array.shape)
        self.origin = self.modulus = (0,) * (array.ndim if rank is None else rank)
        self.written: Array | None = None
        self.windowed = False
        self.cells = Cells(array)

    def view(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Value:
        """The elements at a regular pattern, without a copy."""
        return self.cells.view(shape, offset, strides)

    def assign(self, shape: tuple[int, ...], offset: int, strides: tuple[int, ...], value: Value,
               where: Array | None) -> None:  # fmt: skip
        """Write to a regular pattern."""
        self.cells.assign(self.cells.view(shape, offset, strides), value, where)

    def take(self, at: Array) -> Value:
        """The elements at flat positions."""
        return np.asarray(self.cells.flat.take(at))

    def put(self, at: Array, value: Value, shape: tuple[int, ...], where: Array | None) -> None:
        """Write to flat positions of that shape."""
        self.cells.put(at, value, shape, where)


class PlainReducer:
    """A monoid on arrays; where it has positions, on pairs of value and position."""

    def __init__(self, monoid: str, dtype: DType) -> None:
        row = MONOIDS[monoid]
        self.rounds = row.rounds(dtype)
        self.dtype = row.result(dtype)
        start = np.asarray(row.identity(dtype))
        self.identity: Node = start
        ufunc = getattr(np, row.op, None)
        self.ufunc = ufunc if isinstance(ufunc, np.ufunc) else None
        function = OPS[row.op].function
        self.combine: Callable[[Node, Node], Node] = lambda left, right: function((left, right), dtype)
        if row.positional:
            self.identity = (start, np.asarray(NOWHERE))
            self.combine = lambda left, right: row.combine(left, right, dtype)

    def lift(self, value: Value, at: Value | None) -> Node:
        """One term, or an array of terms, as a node."""
        return value if at is None else (value, at)

    def finish(self, node: Node) -> Value:
        """The final value: the start joined with all terms."""
        found = self.identity if node is None else self.combine(self.identity, node)
        return found[1] if isinstance(found, tuple) else np.asarray(found)

    def along(self, block: Node, shape: tuple[int, ...]) -> Value:
        """A block of complete nodes as a value of a shape."""
        return (block[1] if isinstance(block, tuple) else block).reshape(shape)

    def doubted(self, node: Node, doubt: Array) -> Node:
        """The node itself."""
        return node


class Plain:
    """Values are arrays of the declared types."""

    tracks = False

    def constant(self, bits: int, dtype: DType) -> Value:
        """A constant."""
        made = np.asarray(from_bits(bits, dtype))
        made.setflags(write=False)
        return made

    def integers(self, numbers: Any) -> Value:
        """Exact i64 numbers."""
        return np.asarray(numbers, dtype=np.int64)

    def operation(self, node: Op) -> Callable[[tuple[Value, ...]], Value]:
        """An operation, ready to be applied."""
        function, dtype = OPS[node.op].function, node.dtype
        return lambda args: function(args, dtype)

    def choose(self, cond: Value, then: Value, other: Value, dtype: DType) -> Value:
        """`then` where `cond` holds, else `other`."""
        return np.where(cond, then, other)

    def patch(self, value: Value, keep: Array, fill: Value, dtype: DType) -> Value:
        """`value` where `keep` holds, else `fill`."""
        return np.where(keep, value, fill)

    def truth(self, cond: Value) -> Array:
        """A bool value as an array."""
        return np.asarray(cond)

    def doubt(self, value: Value) -> Array | None:
        """Nothing is undecided."""
        return None

    def indices(self, value: Value) -> Array:
        """An integer value as i64."""
        return np.asarray(value).astype(np.int64, copy=False)

    def tainted(self, value: Value, doubt: Array | None) -> Value:
        """The value itself."""
        return value

    def copy(self, value: Value) -> Value:
        """The value apart from the storage it may be a view of."""
        return np.array(value)

    def storage(self, dtype: DType, shape: tuple[int, ...]) -> Storage:
        """A buffer of zeros."""
        return PlainStorage(np.zeros(shape, dtype=dtype.numpy))

    def given(self, dtype: DType, array: Array) -> Storage:
        """A buffer with the elements of a C-contiguous array."""
        return PlainStorage(array)

    def array(self, value: Value, dtype: DType, shape: tuple[int, ...], batch: tuple[int, ...]) -> Storage:
        """A buffer with the elements of a value."""
        made = np.empty(shape + batch, dtype=dtype.numpy)
        made[...] = value
        return PlainStorage(made, len(shape))

    def reducer(self, monoid: str, dtype: DType, term: bool, square: bool = False) -> Reducer:
        """A monoid for terms of type `dtype`."""
        return PlainReducer(monoid, dtype)
