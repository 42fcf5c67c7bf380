"""Which values are simpler than others, for data that a person shall read: zeros and ones first, then small integers, numbers
of few digits, and last infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from loopfuse.dtypes import of_numpy
from loopfuse.generate import Array, Bounds, ends

PLAIN = (0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5)
INEXACT = (0.1, 0.3, 0.7, 1.1)  # of few digits, and of all the digits of a binary type
DIGITS = 4
SPECIAL = 1000  # the rank of a value that is not finite, or the other zero


def rank(value: Any) -> int:
    """How plain an element is, 0 for the plainest."""
    number = float(value)
    if not math.isfinite(number):
        return SPECIAL + 1
    if number in PLAIN and not _is_negative_zero(number):
        return PLAIN.index(number)
    if _is_negative_zero(number):
        return SPECIAL
    return len(PLAIN) + len(str(value))


def _is_negative_zero(number: float) -> bool:
    return number == 0 and math.copysign(1, number) < 0


def simpler(value: Any, bounds: Bounds) -> list[Any]:
    """Elements of the same type, within the bounds, that are plainer than one, the plainest first."""
    dtype = np.asarray(value).dtype
    if dtype.kind == "b":
        return [np.False_] if value else []
    number = int(value) if dtype.kind in "iu" else float(value)
    wished: list[Any] = [*PLAIN]
    if math.isfinite(number):
        wished += [math.trunc(number), *(float(f"{number:.{d}e}") for d in range(DIGITS)), number / 2]
        wished += INEXACT if dtype.kind not in "iu" else ()
    if bounds.lo is not None or bounds.hi is not None:
        wished += [*_ends(bounds, dtype)]
        wished += [math.ceil(bounds.lo) + 1 if bounds.lo is not None else math.floor(bounds.hi or 0) - 1]
    found = {
        c.item() if dtype.kind in "iu" else float(c): c for w in wished for c in _cast(w, dtype) if _inside(w, bounds)
    }
    least = rank(value)
    return sorted((c for c in found.values() if rank(c) < least), key=rank)


def _cast(wished: Any, dtype: np.dtype[Any]) -> Iterator[Any]:
    """A number in a type, where it has about that value there."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if wished == int(wished) and info.min <= wished <= info.max:
            yield dtype.type(int(wished))
        return
    with np.errstate(all="ignore"):
        made = np.asarray(wished).astype(dtype)[()]
    if math.isfinite(float(made)):
        yield made


def _inside(number: Any, bounds: Bounds) -> bool:
    low = bounds.lo is None or number > bounds.lo or (number == bounds.lo and not bounds.open_lo)
    return low and (bounds.hi is None or number < bounds.hi or (number == bounds.hi and not bounds.open_hi))


def _ends(bounds: Bounds, dtype: np.dtype[Any]) -> list[Any]:
    kind = of_numpy(dtype)
    return [] if kind is None else ends(bounds, kind).tolist()


def grounds(array: Array, bounds: Bounds) -> list[Any]:
    """Elements that a whole array may be made of: the plainest two of its type within the bounds."""
    if array.dtype.kind == "b":
        return [np.False_, np.True_]
    kept = [c for w in (*PLAIN, *_ends(bounds, array.dtype)) for c in _cast(w, array.dtype) if _inside(w, bounds)]
    return sorted(kept, key=rank)[:2]


def blocks(count: int, most: int) -> Iterator[slice]:
    """Stretches of so many elements, halved again and again as long as there are at most so many of them."""
    length = -(-count // 2)
    while length and -(-count // length) <= most:
        yield from (slice(start, min(count, start + length)) for start in range(0, count, length))
        length //= 2


def shown(array: Array, most: int = 100) -> str:
    """An array in so many characters: as a list, else what most of its elements are and the others with their places."""
    text = _listed(array) if array.size <= most else ""
    if text and len(text) <= most:
        return text
    flat = array.reshape(-1)
    values, counts = np.unique(flat, return_counts=True)
    common = values[int(np.argmax(counts))]
    odd = np.flatnonzero((flat != common) & ~((flat != flat) & (common != common)))
    said = f"{len(flat) - len(odd)} of {len(flat)} elements are {common!s}"
    for number, at in enumerate(odd):
        place = ", ".join(str(int(k)) for k in np.unravel_index(int(at), array.shape))
        more = f", [{place}] = {flat[at]!s}"
        if len(said) + len(more) > most:
            return f"{said}, and {len(odd) - number} others"
        said += more
    return said


def _listed(array: Array) -> str:
    return f"[{', '.join(_listed(part) for part in array)}]" if array.ndim else str(array[()])
