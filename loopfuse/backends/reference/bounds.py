"""Derived tolerance: a program's outputs with the error that a correct compiled version of it may have.

The bound is first-order and covers: the rounding of each operation at its own type (or wider: implied roundings of f16
and bf16 may be dropped), each function's own error, multiply-add contraction, reductions in any order, and approximate
functions that `default` allows where they stay under a quarter unit in the last place of what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from loopfuse.backends.reference.domain import Reducer, Storage
from loopfuse.backends.reference.propagate import choose, operation
from loopfuse.backends.reference.reducers import reducer
from loopfuse.backends.reference.scope import Shared
from loopfuse.backends.reference.tracked import Tracked, TrackedStorage, either, wide_type
from loopfuse.backends.reference.vector import execute
from loopfuse.constants import from_bits
from loopfuse.dtypes import BOOL, I64, DType, of_numpy
from loopfuse.ir import Op, Program
from loopfuse.numerics import Array
from loopfuse.oprow import Numerics


@dataclass(frozen=True)
class Bounded:
    """An output and what may be off.

    `value`: at the declared type, as `run` gives it. `shadow`: f64, or longdouble for f64; for integers and bools the
    value itself. `bound`: the greatest distance from the shadow that a correct program's result may have (0 for
    integers and bools). `undecided`: elements of which nothing can be said. All have the output's shape.
    """

    value: Array
    shadow: Array
    bound: Array
    undecided: Array


@dataclass(frozen=True)
class Mismatch:
    """The first element that is outside its bound, how many are, and how many were skipped as undecided."""

    index: tuple[int, ...]
    found: Any
    value: Any
    shadow: Any
    bound: float
    wrong: int
    undecided: int


class Bounds:
    """The domain of tracked values. `short`: contractions of f32 may use operands with a shorter mantissa."""

    tracks = True

    def __init__(self, mode: Numerics, short: bool) -> None:
        self._mode, self._short = mode, short
        self._slack = 0.0 if mode == "strict" else 0.25

    def constant(self, bits: int, dtype: DType) -> Tracked:
        """A constant."""
        return Tracked(dtype, np.asarray(from_bits(bits, dtype)))

    def integers(self, numbers: Any) -> Tracked:
        """Exact i64 numbers."""
        return Tracked(I64, np.asarray(numbers, dtype=np.int64))

    def operation(self, node: Op) -> Callable[[tuple[Tracked, ...]], Tracked]:
        """An operation, ready to be applied."""
        return operation(node, self._mode)

    def choose(self, cond: Tracked, then: Tracked, other: Tracked, dtype: DType) -> Tracked:
        """`then` where `cond` holds, else `other`."""
        return choose(cond, then, other)

    def patch(self, value: Tracked, keep: Array, fill: Tracked, dtype: DType) -> Tracked:
        """`value` where `keep` holds, else `fill`."""
        return choose(Tracked(BOOL, keep), value, fill)

    def truth(self, cond: Tracked) -> Array:
        """A bool value as an array."""
        return np.asarray(cond.value)

    def doubt(self, value: Tracked) -> Array | None:
        """Where the value is undecided."""
        return value.doubt

    def indices(self, value: Tracked) -> Array:
        """An integer value as i64."""
        return np.asarray(value.value).astype(np.int64, copy=False)

    def tainted(self, value: Tracked, doubt: Array | None) -> Tracked:
        """The value, undecided also where `doubt` holds."""
        if doubt is None or not doubt.any():
            return value
        shadow = value.shadow if value.bound is not None else None
        return Tracked(value.dtype, value.value, shadow, value.bound, either(value.doubt, doubt))

    def copy(self, value: Tracked) -> Tracked:
        """The value apart from the storage it may be a view of."""
        bound = None if value.bound is None else np.array(value.bound)
        shadow = None if value.bound is None else np.array(value.shadow)
        doubt = None if value.doubt is None else np.array(value.doubt)
        return Tracked(value.dtype, np.array(value.value), shadow, bound, doubt)

    def storage(self, dtype: DType, shape: tuple[int, ...]) -> Storage:
        """A buffer of zeros."""
        return TrackedStorage(dtype, np.zeros(shape, dtype=dtype.numpy), None, self._slack)

    def given(self, dtype: DType, array: Array) -> Storage:
        """A buffer with the elements of a C-contiguous array."""
        return TrackedStorage(dtype, array)

    def array(self, value: Tracked, dtype: DType, shape: tuple[int, ...], batch: tuple[int, ...]) -> Storage:
        """A buffer with the elements of a value."""
        full = shape + batch
        made = TrackedStorage(dtype, np.zeros(full, dtype=dtype.numpy), len(shape))
        made.assign(full, 0, made.strides, value, None)
        return made

    def reducer(self, monoid: str, dtype: DType, term: bool, square: bool = False) -> Reducer:
        """A monoid for terms of type `dtype`."""
        return cast(Reducer, reducer(monoid, dtype, term, square, self._mode, self._short))


def run_bounded(program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], *,
                limit: int = 1 << 30) -> dict[str, Bounded]:  # fmt: skip
    """Run a program and bound the error of each output's elements; arguments as for `run`.

    Raises:
        CompilerError: inputs do not fit the program.
    """
    mode = cast(Numerics, program.numerics)
    short = mode == "fast" or any(
        d.kind == "pragma" and d.text.split("(")[0].strip() == "tf32" for d in program.directives
    )
    stores, _ = execute(program, inputs, sizes, Shared(Bounds(mode, short)), limit // 8, None)
    with np.errstate(all="ignore"):
        return {b.id: _bounded(stores[b.id].whole()) for b in program.buffers if b.role == "out"}


def _bounded(found: Tracked) -> Bounded:
    shape = found.value.shape
    bound = np.broadcast_to(found.error, shape).astype(np.float64)
    return Bounded(found.value, np.asarray(found.shadow), bound, np.array(np.broadcast_to(found.unsure, shape)))


def vague(bounded: Bounded) -> int:
    """How many elements have a bound that says nothing: they are decided, and yet any number of the size that the output's
    values have would be admitted, and more. The program is ill-conditioned there."""
    dtype = of_numpy(bounded.value.dtype)
    if dtype is None or not dtype.is_float:
        return 0
    with np.errstate(all="ignore"):
        size = np.abs(bounded.value.astype(np.float64))
    known = np.isfinite(size) & ~bounded.undecided
    most = max(float(np.max(size, where=known, initial=0.0)), 2.0 ** (2 - (1 << (dtype.bits - dtype.mantissa - 1))))
    return int(np.count_nonzero(known & (bounded.bound >= most)))


def agrees(bounded: Bounded, array: Array) -> Mismatch | None:
    """The first element of `array` that is outside its bound, or None where none is.

    A NaN agrees with a NaN only, an infinity with the same infinity; undecided elements are skipped.

    Raises:
        ValueError: the array's shape or type is not the output's.
    """
    if array.shape != bounded.value.shape or array.dtype != bounded.value.dtype:
        raise ValueError(f"{array.dtype}{list(array.shape)} is not {bounded.value.dtype}{list(bounded.value.shape)}")
    dtype = of_numpy(bounded.value.dtype)
    if dtype is not None and dtype.is_float:
        with np.errstate(all="ignore"):
            found, value = array.astype(wide_type(dtype)), bounded.value.astype(wide_type(dtype))
            near = np.abs(found - bounded.shadow) <= bounded.bound
        same = (found == value) | (np.isnan(found) & np.isnan(value))
        right = np.where(np.isfinite(value), near, same)
    else:
        right = array == bounded.value
    wrong = ~(right | bounded.undecided)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return Mismatch(at, array[at], bounded.value[at], bounded.shadow[at], float(bounded.bound[at]),
                    int(np.count_nonzero(wrong)), int(np.count_nonzero(bounded.undecided)))  # fmt: skip
