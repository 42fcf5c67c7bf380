"""How many elements the accesses of a kernel touch, over any part of the range of its indices.

An affine access touches a box. The boxes of several accesses to one buffer are joined where they overlap (a stencil's
taps, one map in two loops) and added where they do not (the four gates of an LSTM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, prod

from loopfuse.analysis.sketch import Access, Axis, Sketch

Box = tuple[tuple[float, float], ...]


def axis_count(axis: Axis, extents: Mapping[str, int], extent: int) -> tuple[int, float]:
    """How many values a subscript takes, and how far they reach."""
    if not axis.factors:
        return 1, 0.0
    reach, values = 0.0, 1
    for name, factor in axis.factors:
        n = extents.get(name, 1)
        reach += abs(factor) * (n - 1)
        values *= n
    if axis.loose and any(f == 0.0 for _, f in axis.factors):
        reach = float(values)
    elif axis.loose:
        reach = max(reach, 0.0 if values == 1 else reach)
    return max(1, min(extent, values, ceil(reach) + 1)), min(reach, float(extent - 1))


def _region(access: Access, extents: Mapping[str, int], shape: tuple[int, ...]) -> tuple[Box, int]:
    """The box that an access stays in, and how many elements of it are touched."""
    lows, whole = access.level.lows, 1
    sides = []
    for axis, n in zip(access.axes, shape, strict=True):
        count, reach = axis_count(axis, extents, n)
        whole *= count
        lo = 0.0
        if not axis.loose:
            lo = float(axis.const)
            for name, factor in axis.factors:
                start = lows.get(name, 0)
                lo += factor * start if factor >= 0 else factor * (start + extents.get(name, 1) - 1)
        sides.append((lo, lo + reach))
    most = 1
    for i in access.indices:
        most *= extents.get(i, 1)
    return tuple(sides), max(1, min(whole, most))


def union(found: Sketch, accesses: Iterable[Access], extents: Mapping[str, int] | None = None) -> int:
    """How many elements of one buffer the accesses touch together; `extents` None: over all their iterations."""
    accesses = list(accesses)
    key = (tuple(map(id, accesses)), None if extents is None else tuple(extents.items()))
    known = found.unions.get(key)
    if known is None:
        known = found.unions[key] = _union(found, accesses, extents), accesses
    return known[0]


def _union(found: Sketch, accesses: list[Access], extents: Mapping[str, int] | None) -> int:
    parts: list[tuple[Box, int]] = []
    buffer = ""
    for access in accesses:
        buffer = access.buffer
        box, count = _region(access, _ranges(access, extents), found.shape(buffer))
        for k, (other, theirs) in enumerate(parts):
            if _overlap(box, other):
                hull = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(box, other, strict=True))
                bigger, most = (box, count) if count >= theirs else (other, theirs)
                parts[k] = (hull, ceil(most * _volume(hull) / max(1.0, _volume(bigger))))
                break
        else:
            parts.append((box, count))
    if not parts:
        return 0
    return min(max(1, found.elements(buffer)), sum(n for _, n in parts))


def _ranges(access: Access, extents: Mapping[str, int] | None) -> Mapping[str, int]:
    """How many values each index takes: as `extents` says, else all; an index whose bounds follow one that is held
    keeps to its trips."""
    level = access.level
    if extents is None:
        return level.spans
    found = {}
    for i in access.indices:
        if i in extents:
            found[i] = extents[i]
        elif i in level.follows and level.follows[i] & extents.keys():
            found[i] = level.extents[i]
        else:
            found[i] = level.spans.get(i, 1)
    return found


def _volume(box: Box) -> float:
    return prod(hi - lo + 1 for lo, hi in box)


def _overlap(a: Box, b: Box) -> bool:
    for (lo, hi), (low, high) in zip(a, b, strict=True):
        if min(hi, high) - max(lo, low) + 1 < 0.5 * (min(hi - lo, high - low) + 1):
            return False
    return True
