"""Regions: the part of an array that the tile of a consumer reaches, as greatest of lows and least of highs.

A bound is a polynomial over sizes, indices of tiles, and indices of loops that all stages share. Regions are hulls:
every element that is read lies inside, and at most some others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loopfuse.ir import Dim, Mode
from loopfuse.prove import Facts
from loopfuse.sizes import ZERO, Poly

MOST_BOUNDS = 8


@dataclass(frozen=True, slots=True)
class Region:
    """From the greatest of `lo` up to, not including, the least of `hi`."""

    lo: tuple[Poly, ...]
    hi: tuple[Poly, ...]

    def moved(self, by: Poly) -> Region:
        """The region with all bounds moved."""
        return Region(tuple(p + by for p in self.lo), tuple(p + by for p in self.hi))


def image(poly: Poly, around: Mapping[str, Region], inner: Iterable[Dim]) -> Region | None:
    """The values of a polynomial over the regions of its indices; None where it is not linear in them."""
    ranges = dict(around) | {d.id: Region(d.lo, d.hi) for d in inner}
    lows: tuple[Poly, ...] = (poly,)
    highs = lows
    for name in reversed(list(ranges)):
        reach = ranges[name]
        first, last = reach.lo, tuple(p - 1 for p in reach.hi)
        low = _put(lows, name, first, last)
        high = _put(highs, name, last, first)
        if low is None or high is None:
            return None
        lows, highs = low, high
    return Region(strongest(lows, True), strongest(tuple(p + 1 for p in highs), False))


def _put(
    polys: tuple[Poly, ...], name: str, rising: tuple[Poly, ...], falling: tuple[Poly, ...]
) -> tuple[Poly, ...] | None:
    """The polynomials with bounds in place of an index, by the sign of its factor."""
    made: list[Poly] = []
    for poly in polys:
        if name not in poly.names:
            made.append(poly)
            continue
        if poly.degree(name) != 1 or any(name in q.num.names | q.den.names for q in poly.quotients()):
            return None
        factor = poly.coefficient(name)
        if not factor.is_const:
            return None
        made += [poly.subs({name: p}) for p in (rising if factor.constant > 0 else falling)]
    return tuple(dict.fromkeys(made))[:MOST_BOUNDS]


def through_mode(
    poly: Poly, mode: Mode | None, index: str | None, inner: Iterable[Dim], facts: Facts
) -> tuple[Poly, Poly] | None:
    """The least and the greatest subscript to count with, around an index that stays inside the array; None where that
    cannot be said.

    A clamped subscript lies between itself and the index; a mirrored one as far on the other side at most.
    """
    if mode is None or mode.kind == "constant":
        return poly, poly
    if mode.kind == "wrap" or index is None or poly.degree(index) != 1:
        return None
    at = Poly.of(index)
    reach = image(poly - at, {}, inner)
    if reach is None or len(reach.lo) != 1 or len(reach.hi) != 1:
        return None
    low, high = reach.lo[0], reach.hi[0] - 1
    low, high = (ZERO if facts.nonneg(low) else low), (ZERO if facts.nonneg(-high) else high)
    if not facts.nonneg(-low) or not facts.nonneg(high):
        return None
    if mode.kind == "edge":
        return at + low, at + high
    far = high if facts.nonneg(high + low) else -low if facts.nonneg(-low - high) else None
    return None if far is None else (at - far, at + far)


def union(a: Region, b: Region) -> Region:
    """A region around both: bounds of one kind are compared, the others dropped (the array's own come later)."""
    return Region(_meet(a.lo, b.lo, min), _meet(a.hi, b.hi, max))


def _meet(a: tuple[Poly, ...], b: tuple[Poly, ...], best: Callable[[int, int], int]) -> tuple[Poly, ...]:
    made: list[Poly] = []
    for p in a:
        for q in b:
            gap = q - p
            if gap.is_const:
                made.append(p + best(gap.constant, 0))
                break
    return tuple(made)


def clipped(region: Region, dim: Dim, less: Callable[[Poly, Poly], bool]) -> Region:
    """The part of the region inside the bounds of the whole; `less(a, b)` says whether a <= b is known."""
    lo, hi = list(strongest((*dim.lo, *region.lo), True)), list(strongest((*dim.hi, *region.hi), False))
    for p in tuple(lo):
        if any(q is not p and less(p, q) for q in lo):
            lo.remove(p)
    for p in tuple(hi):
        if any(q is not p and less(q, p) for q in hi):
            hi.remove(p)
    return Region(tuple(lo), tuple(hi))


def strongest(polys: tuple[Poly, ...], greatest: bool) -> tuple[Poly, ...]:
    """Of bounds that differ by constants the one that counts."""
    kept: list[Poly] = []
    for poly in polys:
        for k, other in enumerate(kept):
            gap = poly - other
            if gap.is_const:
                if (gap.constant > 0) == greatest:
                    kept[k] = poly
                break
        else:
            kept.append(poly)
    return tuple(kept)
