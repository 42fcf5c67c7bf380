"""Monoids on tracked values: what a reduction in any order may make of terms that are themselves in error.

Which rule applies follows from the row of the monoid's operation. A rounding one whose slopes are 1 (a sum) adds up
errors, and rounds once for each term but one by at most the unit roundoff of all magnitudes together. Another rounding
one (a product) follows its operation's own rule. One that does not round picks an operand and errs as the operands do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loopfuse.backends.reference.propagate import operation, picked, traits
from loopfuse.backends.reference.tracked import Tracked, any_of, settle, wide_type
from loopfuse.backends.reference.tree import Node
from loopfuse.constants import greatest
from loopfuse.dtypes import F32, F64, DType
from loopfuse.ir import Const, Op
from loopfuse.numerics import Array
from loopfuse.oprow import Numerics
from loopfuse.ops import MONOIDS, NOWHERE, OPS, Monoid

Parts = tuple[Array, ...]
# Of both operands of a product: the matrix units drop all bits of an f32 but the 11 of tf32, less than 2^-10 of it.
_SHORT_MANTISSA = 2.0**-9


def reducer(monoid: str, dtype: DType, term: bool, square: bool, mode: Numerics, short: bool) -> Any:
    """The reducer of a monoid for terms of a type. `term`: they are products of a contraction, which in f32 may be
    computed with `short` operands; `square`: they are squares."""
    row = MONOIDS[monoid]
    if row.positional:
        return Positional(row, dtype)
    if row.rounds(dtype) and traits(row.op).mild:
        shortened = _SHORT_MANTISSA if short and term and dtype == F32 else 0.0
        return Additive(row, dtype, term and mode != "strict", square and mode != "strict", shortened)
    return Pairwise(row, dtype, mode)


def _lifted(value: Tracked) -> Parts:
    parts, shape = (value.value, value.shadow, value.error, value.unsure), np.shape(value.value)
    return tuple(np.broadcast_to(part, shape) for part in parts)


class Base:
    """What the reducers share: the monoid, its types, and the place of the doubts among a node's parts."""

    ufunc: np.ufunc | None = None
    place = 3

    def __init__(self, row: Monoid, dtype: DType) -> None:
        self.row, self.terms = row, dtype
        self.rounds = row.rounds(dtype)
        self.dtype = row.result(dtype)
        self.start = np.asarray(row.identity(dtype))
        self.wide = wide_type(dtype) if dtype.is_float else self.start.dtype
        self.identity: Node = (self.start, self.start.astype(self.wide), np.zeros(()), np.zeros((), dtype=bool))

    def doubted(self, node: Node, doubt: Array) -> Node:
        """The node, undecided also where `doubt` holds."""
        parts = list(node)
        parts[self.place] = parts[self.place] | doubt
        return tuple(parts)

    def joined(self, a: Array, b: Array, dtype: DType) -> Array:
        """The operation on plain or wide values."""
        return np.asarray(OPS[self.row.op].function((a, b), dtype))

    def finish(self, node: Node) -> Tracked:
        """The final value of a node."""
        raise AssertionError

    def along(self, block: Node, shape: tuple[int, ...]) -> Tracked:
        """A block of complete nodes as a value of a shape."""
        return self.finish(tuple(part.reshape(shape) for part in block))


class Additive(Base):
    """Sums of floats. Parts: value, shadow, error, doubt, magnitude, count, whether all terms are exact integers."""

    def __init__(self, row: Monoid, dtype: DType, drops: bool, square: bool, shortened: float) -> None:
        super().__init__(row, dtype)
        self._drops, self._square, self._shortened = drops, square, shortened
        self.identity = (*self.identity, np.zeros(()), np.zeros((), dtype=np.int64), np.ones((), dtype=bool))

    def lift(self, value: Tracked, at: Tracked | None) -> Node:
        """Terms as nodes."""
        if self._drops and value.dropped is not None:
            value = Tracked(value.dtype, value.value, value.shadow, value.bound, value.unsure | value.dropped)
        size = np.abs(value.shadow).astype(np.float64)
        error = value.error + self._shortened * size if self._shortened else value.error
        whole = (error == 0) & (np.rint(size) == size)
        return value.value, value.shadow, error, value.unsure, size, np.ones((), dtype=np.int64), whole

    def combine(self, left: Node, right: Node) -> Node:
        """Two nodes joined."""
        value = self.joined(left[0], right[0], self.terms)
        shadow = self.joined(left[1], right[1], F64)
        return (value, shadow, left[2] + right[2], left[3] | right[3], left[4] + right[4], left[5] + right[5],
                left[6] & right[6])  # fmt: skip

    def finish(self, node: Node) -> Tracked:
        """The final value: each addition but the first rounds, whatever the order."""
        value, shadow, error, doubt, size, count, whole = (
            self.identity if node is None else self.combine(self.identity, node)
        )
        # Whole numbers add up without rounding, in any order; but squares may be added about another centre than the program's.
        exact = whole & (size <= 2.0**self.terms.mantissa) & (not self._square)
        rounding = np.maximum(count - 1, 0) * self.terms.unit_roundoff * (size + error)
        error = error + np.where(exact, 0.0, rounding)
        # Some order may overflow on the way although the sum itself does not.
        doubt = doubt | (np.isfinite(shadow) & (size + error > greatest(self.terms)))
        return settle(self.terms, value, shadow, error if np.any(error) else None, any_of(np.asarray(doubt)))


class Pairwise(Base):
    """Every other monoid on values. Parts: value, shadow, error, doubt."""

    def __init__(self, row: Monoid, dtype: DType, mode: Numerics) -> None:
        super().__init__(row, dtype)
        self._apply = operation(Op(row.op, (Const(0, dtype), Const(0, dtype)), dtype), mode, ordered=False)
        self._picks = dtype.is_float and not self.rounds

    def lift(self, value: Tracked, at: Tracked | None) -> Node:
        """Terms as nodes."""
        return _lifted(value)

    def _tracked(self, node: Node) -> Tracked:
        value, shadow, error, doubt = node
        floating = self.terms.is_float
        return Tracked(self.terms, value, shadow if floating else None,
                       error if floating and np.any(error) else None, any_of(np.asarray(doubt)))  # fmt: skip

    def combine(self, left: Node, right: Node) -> Node:
        """Two nodes joined."""
        if not self._picks:
            return _lifted(self._apply((self._tracked(left), self._tracked(right))))
        value = self.joined(left[0], right[0], self.terms)
        shadow = self.joined(left[1], right[1], F64).astype(self.wide)
        error = picked(OPS[self.row.op], (left[1], right[1]), (left[2], right[2]))
        return value, shadow, error, left[3] | right[3]

    def finish(self, node: Node) -> Tracked:
        """The final value."""
        found = self._tracked(self.identity if node is None else self.combine(self.identity, node))
        if not self.terms.is_float:
            return found
        return settle(self.terms, found.value, found.shadow, found.bound, found.doubt)


class Positional(Base):
    """argmax and argmin. Parts: value, position, key (greatest is best), error, doubt, and the greatest keys that a
    position not chosen may have: among those in error, and among the exact ones."""

    place = 4

    def __init__(self, row: Monoid, dtype: DType) -> None:
        super().__init__(row, dtype)
        up = OPS[row.op].function((np.asarray(1.0), np.asarray(0.0)), F64)
        self._sign = 1.0 if bool(up) else -1.0
        none, zero = np.asarray(-np.inf), np.zeros(())
        self.identity = (self.start, np.asarray(NOWHERE), none, zero, np.zeros((), dtype=bool), none, none)

    def lift(self, value: Tracked, at: Tracked | None) -> Node:
        """Terms as nodes."""
        assert at is not None
        key = np.asarray(self._sign * value.shadow.astype(np.float64))
        none = np.asarray(-np.inf)
        return value.value, at.value, key, value.error, value.unsure | at.unsure, none, none

    def combine(self, left: Node, right: Node) -> Node:
        """Two nodes joined: the better one, and what the other could have been."""
        value, at = self.row.combine((left[0], left[1]), (right[0], right[1]), self.terms)
        took = (at == right[1]) & (at != left[1])
        key, error = np.where(took, right[2], left[2]), np.where(took, right[3], left[3])
        other, slip = np.where(took, left[2], right[2]), np.where(took, left[3], right[3])
        moving = np.fmax(np.fmax(left[5], right[5]), np.where(slip > 0, other + slip, -np.inf))
        still = np.fmax(np.fmax(left[6], right[6]), np.where(slip > 0, -np.inf, other))
        return value, at, key, error, left[4] | right[4], moving, still

    def finish(self, node: Node) -> Tracked:
        """The best position, undecided where another could be."""
        _, at, key, error, doubt, moving, still = self.identity if node is None else self.combine(self.identity, node)
        doubt = doubt | (moving >= key - error) | ((error > 0) & (still >= key - error))
        return Tracked(self.dtype, np.asarray(at), None, None, any_of(np.asarray(doubt)))
