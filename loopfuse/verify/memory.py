"""The accesses of a program with the facts around them, and which loop indices an access determines.

An axis `a*i + c` fixes `i` when `a` is not zero and everything else in it is fixed; an axis such as `h*D + d` fixes
both where the digits do not overlap; a quotient and its remainder on two axes fix what they are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import gcd

from loopfuse.ir import Buffer, Dim
from loopfuse.prove import Facts
from loopfuse.sizes import Poly, Quot
from loopfuse.verify.layout import Access, Frame, Layout

MOST_DIGITS = 5
FOLLOWED = ("constant", "checked")  # modes under which an element, if it is touched at all, is the subscript's own


@dataclass
class Memory:
    """A layout with what is known of its sizes and indices; facts are made only where a question needs them."""

    v: Layout
    base: Facts
    facts: dict[int, Facts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = {s.id for s in self.v.program.sizes}

    def at(self, frame: Frame | None) -> Facts:
        """What is known inside a loop: the sizes, and the ranges of the indices around."""
        if frame is None:
            return self.base
        if id(frame) not in self.facts:
            known = self.base
            for f in frame.chain():
                found = self.facts.get(id(f))
                if found is None:
                    found = known
                    for d in f.loop.dims:
                        found = found.index(d.id, d.lo, d.hi, d.step)
                    self.facts[id(f)] = found
                known = found
        return self.facts[id(frame)]

    def nonneg(self, poly: Poly, frame: Frame | None = None) -> bool:
        """Whether `poly >= 0` is proved inside a loop."""
        return poly.constant >= 0 if poly.is_const else self.at(frame).nonneg(poly)


def dims(frame: Frame | None) -> dict[str, Dim]:
    """The indices of the loops around, outermost first."""
    return {d.id: d for f in (frame.chain() if frame else ()) for d in f.loop.dims}


def private(buffer: Buffer, frame: Frame | None) -> set[str]:
    """The indices of which each iteration has an incarnation of its own: those that the window names, but of `seq`."""
    named: set[str] = set()
    for low, high in buffer.window or ():
        named.update(*(p.names for p in (*low, *high)))
    return {d.id for f in (frame.chain() if frame else ()) if f.loop.order != "seq" for d in f.loop.dims} & named


# -- which indices an access determines -------------------------------------------------------------------------------


def fixed(memory: Memory, frame: Frame | None, axes: Iterable[Poly], moving: dict[str, Dim]) -> set[str]:
    """The indices of `moving` whose values follow from the values of the axes (and from the names not in `moving`)."""
    rows = list(axes)
    known = {name for row in rows if (name := row.name) in moving}
    if len(known) < len(moving):
        rows += _recombined(rows)
        known = _solve(memory, frame, rows, moving, known)
    if len(known) < len(moving):
        single = {n for n, d in moving.items() if n not in known and _one_trip(memory, frame, d)}
        if single:
            known = _solve(memory, frame, rows, moving, known | single)
    return known


def _recombined(rows: list[Poly]) -> list[Poly]:
    """What a quotient `n // d` on one axis and its remainder `n - d*(n // d)` on another are made of: n."""
    found = []
    for row in rows:
        atom = row.terms[0][0][0] if len(row.terms) == 1 and row.terms[0][1] == 1 and row.terms[0][0] else None
        if isinstance(atom, Quot) and len(row.terms[0][0]) == 1:
            found += [other + row * atom.den for other in rows if other is not row]
    return found


def _solve(memory: Memory, frame: Frame | None, rows: list[Poly], moving: dict[str, Dim], start: set[str]) -> set[str]:
    """Add to the known indices what the rows determine, until nothing is added.

    Indices around that are not in question are known from the start: a tile that one of them is in is too.
    """
    known = set(start)
    around = dims(frame) | moving
    progress = True
    while progress and len(known) < len(moving):
        progress = False
        for row in rows:
            live = {n: moving[n] for n in row.names if n in moving and n not in known}
            if live and _settled(memory, row, moving, known) and _digits(memory, frame, row, live, moving, known):
                known |= live.keys()
                progress = True
        for name, dim in moving.items():
            if name not in known and any(
                _tiles(memory, frame, dim, d) for z, d in around.items() if z in known or z not in moving
            ):
                known.add(name)
                progress = True
    return known


def _tiles(memory: Memory, frame: Frame | None, outer: Dim, inner: Dim) -> bool:
    """Whether the inner index runs within one step of the outer one, so that it determines it."""
    start = Poly.of(outer.id)
    for low in inner.lo:
        offset = low - start
        if outer.id in offset.names or not offset.names <= memory.sizes:
            continue
        if any(memory.nonneg(start + offset + outer.step - high, frame) for high in inner.hi):
            return all(p.names <= memory.sizes for p in (*outer.lo, outer.step))
    return False


def _one_trip(memory: Memory, frame: Frame | None, dim: Dim) -> bool:
    return any(memory.nonneg(low + dim.step - high, frame) for low in dim.lo for high in dim.hi)


def _settled(memory: Memory, row: Poly, moving: dict[str, Dim], known: set[str]) -> bool:
    """Whether every integer let in the row is constant once the known indices are."""
    for name in row.names:
        found = memory.v.scopes.get(name)
        if name in moving or not found or found[0].kind != "let":
            continue
        if any(n in moving and n not in known for n in dims(found[0].frame)):
            return False
    return True


def _digits(
    memory: Memory, frame: Frame | None, row: Poly, live: dict[str, Dim], moving: dict[str, Dim], known: set[str]
) -> bool:
    """Whether the value of the row determines all the live indices, each of which must occur linearly."""
    places: list[tuple[Poly, Poly]] = []
    inside = {name for q in row.quotients() for name in q.num.names | q.den.names}
    for name, dim in live.items():
        factor = row.coefficient(name) if row.degree(name) == 1 and name not in inside else None
        if factor is None or factor.names & live.keys():
            return False
        if not memory.nonneg(factor - 1, frame):
            factor = -factor
            if not memory.nonneg(factor - 1, frame):
                return False
        low, high = dim.lo[0], dim.hi[0]
        if len(live) > 1 and any(n in moving and n not in known for n in low.names | high.names):
            return False
        places.append((factor * dim.step, factor * (high - 1 - low)))
    if len(places) == 1:
        return True
    return len(places) <= MOST_DIGITS and any(_ordered(memory, frame, order) for order in permutations(places))


def _ordered(memory: Memory, frame: Frame | None, places: Sequence[tuple[Poly, Poly]]) -> bool:
    """Whether each place value exceeds all that the smaller places can add up to."""
    below = Poly.of(0)
    for place, reach in places:
        if not memory.nonneg(place - below - 1, frame):
            return False
        below = below + reach
    return True


# -- disjoint accesses ------------------------------------------------------------------------------------------------


def hull(memory: Memory, poly: Poly, frame: Frame | None) -> tuple[Poly | None, Poly | None]:
    """Inclusive bounds of a subscript over all iterations of the loops around, in sizes; None where unknown."""
    low: Poly | None = poly
    high: Poly | None = poly
    if not poly.names <= memory.sizes:
        for name, d in reversed(dims(frame).items()):
            low = _extreme(memory, frame, low, name, d, -1)
            high = _extreme(memory, frame, high, name, d, 1)
    return (low if low is not None and low.names <= memory.sizes else None,
            high if high is not None and high.names <= memory.sizes else None)  # fmt: skip


def _extreme(memory: Memory, frame: Frame | None, poly: Poly | None, name: str, dim: Dim, side: int) -> Poly | None:
    """A bound from below (side -1) or above (side 1), free of an index in which the polynomial must be linear."""
    if poly is None or name not in poly.names:
        return poly
    if poly.degree(name) != 1 or any(name in q.num.names or name in q.den.names for q in poly.quotients()):
        return None
    factor = poly.coefficient(name)
    if memory.nonneg(factor, frame):
        rising = True
    elif memory.nonneg(-factor, frame):
        rising = False
    else:
        return None
    bounds = [p - 1 for p in dim.hi] if rising == (side > 0) else list(dim.lo)
    best = next((p for p in bounds if p.names <= memory.sizes), bounds[0])
    return poly.subs({name: best})


def disjoint(memory: Memory, a: Access, b: Access) -> bool:
    """Whether no iteration of `a` (whose modes count) touches an element that an iteration of `b` touches."""
    for p, q, mode in zip(a.polys, b.polys, a.modes, strict=True):
        if p is None or q is None or (mode is not None and mode.kind not in FOLLOWED):
            continue
        if _residues_differ(p, q):
            return True
        (low_p, high_p), (low_q, high_q) = hull(memory, p, a.frame), hull(memory, q, b.frame)
        for low, high in ((low_p, high_q), (low_q, high_p)):
            if low is not None and high is not None and memory.nonneg(low - high - 1):
                return True
    return False


def _residues_differ(p: Poly, q: Poly) -> bool:
    """Whether the two polynomials, whatever their names stand for, differ modulo the divisor of all coefficients."""
    factors = [abs(c) for poly in (p, q) for m, c in poly.terms if m]
    divisor = gcd(*factors) if factors else 0
    gap = p.constant - q.constant
    return gap % divisor != 0 if divisor else gap != 0
