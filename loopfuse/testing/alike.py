"""Data of which whole rows are alike: constant or nearly so, zero in several inputs at once, of one element alone, or -inf.

Such rows have no spread, no sum and no norm, and a mask of them leaves nothing: what a script divides by is then zero, or,
where a variance is the difference of two moments, a rounding error of either sign. Random elements hardly ever are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loopfuse import contracts, draws
from loopfuse.bind import Bound, Given
from loopfuse.draws import Draw
from loopfuse.dtypes import DType
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array, Bounds, Request, ends
from loopfuse.testing.choices import Choices

PLAIN = (0, 1, -1, 2, 3, 0.5, 7)
OFTEN, SELDOM = 60, 20  # percent of the sets that have such rows: of a script that somebody wrote, of random programs
ALL = 75  # percent of the sets in which every input has such rows, else one


@dataclass(frozen=True, slots=True)
class Entry:
    """An input that is made up: its elements, the extents of its axes as they are written, and what its domain says."""

    buffer: str
    array: Array
    axes: tuple[str, ...]
    dtype: DType
    bounds: Bounds

    def holds(self, made: Array) -> Array:
        """Which elements lie within the bounds."""
        return holds(made, self.bounds)

    @property
    def zero(self) -> Array:
        """The element of the domain that is nearest to zero."""
        zero = np.zeros((), self.array.dtype)
        if self.dtype.kind == "bool" or self.holds(zero):
            return zero
        return np.asarray(min(ends(self.bounds, self.dtype), key=lambda v: abs(float(v))))


def holds(made: Array, bounds: Bounds) -> Array:
    """Which elements lie within bounds."""
    wide, found = made.astype(np.float64), np.ones(made.shape, bool)
    if bounds.lo is not None:
        found &= wide > bounds.lo if bounds.open_lo else wide >= bounds.lo
    if bounds.hi is not None:
        found &= wide < bounds.hi if bounds.open_hi else wide <= bounds.hi
    return found


Form = Callable[[Sequence[Entry], Choices, np.random.Generator], tuple[dict[str, Array], str]]
Fill = Callable[[Entry], Array]


def alike(typed: TypedProgram, given: Given, draw: Draw, choices: Choices, percent: int) -> Draw:
    """The data, with rows that are alike in so many sets of a hundred. Elements that a domain forbids stay as they were."""
    if not choices.chance(percent):
        return draw
    form = choices.pick(FORMS)
    found = _entries(typed, given, draw.bound)
    if not found:
        return draw
    stream = Request(" rows", (), found[0].dtype, seed=given.seed).stream()
    made, kind = form(found, choices, stream)
    before = draw.bound.inputs
    made = {name: np.asarray(array, order="C") for name, array in made.items()}
    arrays = draws.allowed(typed, draw.bound, {**before, **made})
    if all(arrays[e.buffer].tobytes() == before[e.buffer].tobytes() for e in found):
        return draw
    return Draw(Bound(draw.bound.sizes, arrays), ", ".join(part for part in (draw.kind, kind) if part))


def _entries(typed: TypedProgram, given: Given, bound: Bound) -> list[Entry]:
    """The inputs that are made up and have elements."""
    buffers = {b.id: b for b in typed.buffers}
    return [
        Entry(i.buffer, bound.inputs[i.buffer], tuple(str(p) for p in buffers[i.buffer].shape), i.dtype,
              contracts.bounds_of(typed, i, bound.sizes))
        for i in typed.inputs if i.name not in given.inputs and bound.inputs[i.buffer].size
    ]  # fmt: skip


def _some(found: Sequence[Entry], choices: Choices) -> Sequence[Entry]:
    """All inputs, or one."""
    return found if len(found) == 1 or choices.chance(ALL) else [choices.pick(found)]


# -- constant rows ----------------------------------------------------------------------------------------------------


def constant(found: Sequence[Entry], choices: Choices, stream: np.random.Generator) -> tuple[dict[str, Array], str]:
    """Arrays that are constant along one axis, or wholly; in part nearly, but for the last bit of some elements."""
    axis = choices.pick((-1, None, -1, -2, 0, -1, None))
    chosen = _some(found, choices)
    nearly = choices.chance(50) and any(e.dtype.is_float for e in chosen)
    made: dict[str, Array] = {}
    for entry in chosen:
        rank = entry.array.ndim
        along = axis if axis is None or axis >= 0 else max(0, rank + axis)
        shape = tuple(1 if along in (None, k) else n for k, n in enumerate(entry.array.shape))
        level = np.array(np.broadcast_to(_levels(entry, shape, stream), entry.array.shape), order="C")
        made[entry.buffer] = _shaken(level, stream) if nearly and entry.dtype.is_float else level
    what = "constant arrays" if axis is None else "constant rows"
    return made, f"nearly {what}" if nearly else what


def _levels(entry: Entry, shape: tuple[int, ...], stream: np.random.Generator) -> Array:
    """A value for each row: one of its own elements, a plain one, or one so far from zero that its square takes all the
    digits of the type."""
    own = entry.array
    for axis, extent in enumerate(shape):
        if extent != own.shape[axis]:
            own = np.take(own, [int(stream.integers(own.shape[axis]))], axis)
    pool: Array = np.asarray([False, True])
    if entry.dtype.kind != "bool":
        pool = np.asarray([v for v in PLAIN if entry.dtype.is_float or (v == int(v) and v >= entry.dtype.least)])
    plain = np.asarray(stream.choice(pool, shape)).astype(own.dtype)
    how, far = stream.random(shape), own
    if entry.dtype.is_float:
        digits = entry.dtype.mantissa
        wide = stream.choice((1, -1), shape) * 10 ** stream.uniform(digits / 8, digits / 4, shape)
        far = np.asarray(wide).astype(own.dtype)
        far = np.where(entry.holds(far), far, -far)
    made = np.where(how < 0.5, far, np.where(how < 0.85, own, plain))
    return np.where(entry.holds(made), made, own) if entry.dtype.kind != "bool" else made


def _shaken(level: Array, stream: np.random.Generator) -> Array:
    """The array, with half of its elements the next above or below; zeros stay."""
    how = stream.random(level.shape)
    with np.errstate(all="ignore"):
        up, down = (np.nextafter(level, np.asarray(end, level.dtype)) for end in (np.inf, -np.inf))
        return np.where(level == 0, level, np.where(how < 0.25, up, np.where(how < 0.5, down, level)))


# -- zeros in the same places -----------------------------------------------------------------------------------------


def zeros(found: Sequence[Entry], choices: Choices, stream: np.random.Generator) -> tuple[dict[str, Array], str]:
    """Whole inputs of zeros, or slices along one axis that are zero in all inputs that have it, or single elements that
    are in all inputs of a shape. Where a domain has no zero it is the element next to it; of a bool it is false."""
    return _filled(found, choices, stream, lambda entry: entry.zero, "zeros")


def lowest(found: Sequence[Entry], choices: Choices, stream: np.random.Generator) -> tuple[dict[str, Array], str]:
    """The same with -inf in the place of zeros, in inputs of floats."""
    floats = [e for e in found if e.dtype.is_float]
    return (
        _filled(floats, choices, stream, lambda e: np.asarray(-np.inf, e.array.dtype), "-inf") if floats else ({}, "")
    )


def _filled(found: Sequence[Entry], choices: Choices, stream: np.random.Generator, fill: Fill,
            of: str) -> tuple[dict[str, Array], str]:  # fmt: skip
    how = choices.number(0, 4)
    chosen = _some(found, choices)
    if how == 0:
        return {e.buffer: np.full_like(e.array, fill(e)) for e in chosen}, f"inputs of {of}"
    names = Counter(name for e in chosen for name in dict.fromkeys(e.axes))
    if how == 1 or not names:
        places = {shape: stream.random(shape) < 0.5 for shape in dict.fromkeys(e.array.shape for e in chosen)}
        made = {e.buffer: np.where(places[e.array.shape], fill(e), e.array) for e in chosen}
        return made, f"{of} at the same places"
    name = choices.pick([n for n, _ in names.most_common()])
    extent = next(e.array.shape[e.axes.index(name)] for e in chosen if name in e.axes)
    rows = stream.random(extent) < 0.5
    rows[stream.integers(extent)] = True
    made = {}
    for entry in (e for e in chosen if name in e.axes):
        axis = int(stream.choice([k for k, n in enumerate(entry.axes) if n == name]))
        lying = rows.reshape([-1 if k == axis else 1 for k in range(entry.array.ndim)])
        made[entry.buffer] = np.where(lying, fill(entry), entry.array)
    return made, f"rows of {of}"


def one_hot(found: Sequence[Entry], choices: Choices, stream: np.random.Generator) -> tuple[dict[str, Array], str]:
    """Rows of zeros but for one element, which is what it was, or 1."""
    made: dict[str, Array] = {}
    for entry in _some(found, choices):
        if not entry.array.ndim:
            continue
        axis = choices.pick((-1, 0))
        one = np.ones(entry.array.shape, entry.array.dtype)
        plain = (stream.random(entry.array.shape) < 0.5) | (entry.array == 0)
        kept = np.where(plain & entry.holds(one) if entry.dtype.kind != "bool" else True, one, entry.array)
        extent = entry.array.shape[axis]
        rows = np.moveaxis(entry.array, axis, -1).shape[:-1]
        at = np.moveaxis(np.asarray(stream.integers(extent, size=rows))[..., None] == np.arange(extent), -1, axis)
        made[entry.buffer] = np.where(at, kept, entry.zero)
    return made, "rows of one element"


FORMS: tuple[Form, ...] = (*[constant] * 5, *[zeros] * 4, one_hot, lowest)  # each as likely as it is often here
