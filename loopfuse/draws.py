"""Several sets of made-up data for one program, each for mistakes that the others would not show.

Beside ordinary numbers: small numbers with ties, zeros of both signs and negative integers; infinities and NaN, whole
rows of them too; extents that are all equal, and extents of 1. What the caller gives stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, nan, prod
from typing import Any

import numpy as np

from loopfuse import contracts
from loopfuse.bind import Bound, Given, bind, unsettled
from loopfuse.diag import UserError
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array, Request

MOST_ELEMENTS = 1 << 18  # of all inputs, for more than one set of the caller's sizes
MOST_STEPS = 1 << 14  # the product of all sizes that are made equal
EQUAL = (9, 7, 5, 3, 2)  # odd first, and more than the steps of a block (see `agreement.WAYS`)
MILD = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -7.0, 8.0)
WHOLE = (0, 1, -1, 2, -2, 3, -3, 7, -7, -8, 8, -9, 17)


Maker = Callable[[Array, np.random.Generator, int], Array]


@dataclass(frozen=True, slots=True)
class Draw:
    """A set of data: what it is made of, in words (empty for the caller's own or ordinary numbers)."""

    bound: Bound
    kind: str = ""


def draws(typed: TypedProgram, given: Given) -> tuple[Draw, ...]:
    """The data to try a program on, first that of `bind` with the missing made up; one alone where nothing is missing.

    Raises `UserError` as `bind` does for the first; others that the script's requirements forbid are left out.
    """
    first = bind(typed, replace(given, fill=True))
    found = [Draw(first)]
    if _elements(first) <= MOST_ELEMENTS:
        found += revalued(typed, given, first, 0, (mild, special))
    free = unsettled(typed, given)
    for extents, kind in ((EQUAL, "equal extents"), ((1,), "extents of 1")):
        other = _sized(typed, given, free, extents) if free else None
        if other is not None and all(other.sizes != d.bound.sizes for d in found):
            found.append(Draw(other, kind))
            if extents is EQUAL:
                found += [Draw(d.bound, f"{kind}, {d.kind}") for d in revalued(typed, given, other, 1, (special,))]
    return tuple(found)


def _elements(bound: Bound) -> int:
    return sum(a.size for a in bound.inputs.values())


def _sized(typed: TypedProgram, given: Given, free: Sequence[str], extents: Sequence[int]) -> Bound | None:
    """Data of which all sizes that are free (but for one, where need be) have one of the extents, or the next that their
    declarations allow."""
    table = {s.id: s for s in typed.sizes}
    for extent in extents:
        values = {}
        for name in free:
            size = table[name]
            values[name] = -(-max(extent, size.least or 0) // size.multiple) * size.multiple
        if extent > 2 and prod(values.values()) > MOST_STEPS:
            continue
        for left in (None, *free) if len(free) > 2 else (None,):
            dims = {**given.dims, **{n: v for n, v in values.items() if n != left}}
            with suppress(UserError):
                return bind(typed, replace(given, dims=dims, fill=True))
    return None


def revalued(typed: TypedProgram, given: Given, base: Bound, turn: int, makers: Sequence[Maker]) -> list[Draw]:
    """The base with other values in what was made up, by each maker; `turn` and an input's place say what its first row
    is. Elements that a domain forbids stay those of the base."""
    made = [i for i in typed.inputs if i.name not in given.inputs and base.inputs[i.buffer].size]
    dtypes = {b.id: b.dtype for b in typed.buffers}
    found: list[Draw] = []
    for maker in makers:
        arrays = dict(base.inputs)
        for number, entry in enumerate(made):
            old = arrays[entry.buffer]
            stream = Request(entry.name, old.shape, dtypes[entry.buffer], seed=given.seed + 1).stream()
            arrays[entry.buffer] = maker(old, stream, turn + 3 * number)
        arrays = allowed(typed, base, arrays)
        if any(arrays[i.buffer] is not base.inputs[i.buffer] for i in made):
            found.append(Draw(Bound(base.sizes, arrays), KINDS.get(maker, "")))
    return found


def allowed(typed: TypedProgram, base: Bound, arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays with the base's elements where others would break a domain; all of the base's where that is not
    enough."""
    inputs = {i.name: i.buffer for i in typed.inputs}
    for check, holds in contracts.domain_masks(typed, base.sizes, arrays):
        id = inputs.get(check.domain_of or "")
        if id is None or holds.all():
            continue
        new, old = arrays[id], base.inputs[id]
        arrays[id] = np.where(holds, new, old) if holds.shape == new.shape else old
    held = all(holds.all() for _, holds in contracts.domain_masks(typed, base.sizes, arrays))
    return arrays if held else dict(base.inputs)


def mild(old: Array, stream: np.random.Generator, turn: int) -> Array:
    """Numbers of few values, so that many are equal; of integers negative ones too."""
    if old.dtype.kind == "b":
        return old
    pool = np.asarray(MILD).astype(old.dtype) if _is_float(old) else _integers(old.dtype)
    made = np.asarray(stream.choice(pool, old.shape))
    if old.dtype.kind == "i" and made.size:
        made.flat[0] = -7  # odd and negative, however few elements there are
    return made


def _integers(dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    values = [v for v in WHOLE if info.min <= v <= info.max]
    return np.asarray([*values, info.max, info.min] if info.bits > 8 else values, dtype)


def special(old: Array, stream: np.random.Generator, turn: int) -> Array:
    """Floats with infinities and NaN; a row is the last axis."""
    if not _is_float(old):
        return old
    made = np.array(old, order="C", copy=True)
    rows = made.reshape(-1, made.shape[-1]) if made.ndim else made.reshape(1, 1)
    for number, row in enumerate(rows):
        _row(row, (number + turn) % 7, stream)
    return made


def _row(row: Array, how: int, stream: np.random.Generator) -> None:
    """Write over a row: all -inf; -inf at its start; a few special elements; nothing; zeros of both signs; one huge."""
    at = int(stream.integers(row.size))
    if how == 0:
        row[:] = -inf
    elif how == 1:
        row[: -(-2 * row.size // 3)] = -inf
    elif how == 2:
        row[at] = inf
    elif how == 4:
        row[:] = np.asarray(stream.choice((0.0, -0.0), row.size), row.dtype)
    elif how == 5:
        row[at] = nan
    elif how == 6:
        row[at] = -inf


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"


KINDS: dict[Maker, str] = {mild: "small numbers, ties, zeros of both signs", special: "infinities and NaN"}


def told(draw: Draw) -> str:
    """A set of data in words: `N = 9, M = 9, with equal extents`."""
    sizes = ", ".join(f"{name} = {value}" for name, value in draw.bound.sizes.items())
    return ", with ".join(part for part in (sizes, draw.kind) if part)


def sizes_of(data: Sequence[Draw]) -> tuple[Mapping[str, int], ...]:
    """The sizes of the sets, each once."""
    found: list[Mapping[str, int]] = []
    for draw in data:
        if draw.bound.sizes not in found:
            found.append(draw.bound.sizes)
    return tuple(found)
