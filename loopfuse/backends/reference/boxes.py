"""Loops cut into boxes: how many iterations are evaluated at once, so that arrays stay small. Never a matter of bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product

from loopfuse.backends.reference.places import Link, Names, Plan, Range, hull, plan
from loopfuse.ir import Loop, Stmt, Store
from loopfuse.rewrite import walk

# Elements of a temporary: a few of them should fit the processor's caches.
AT_ONCE = 1 << 17
# How much of an inner loop is evaluated at once when the outer ones are cut.
INNER = 64

Box = tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)
def _cached(counts: tuple[int, ...], most: int) -> tuple[Box, ...]:
    return tuple(_boxes(counts, most))


def boxes(counts: tuple[int, ...], most: int) -> Iterator[Box] | tuple[Box, ...]:
    """Cut iterations into boxes of at most `most`, each contiguous in the order of the loop; `(first, count)` a dim."""
    total = 1
    for count in counts:
        total *= count
    if total <= most:
        return (tuple([(0, count) for count in counts]),)
    return _cached(counts, most) if total // most < 64 else _boxes(counts, most)


def _boxes(counts: tuple[int, ...], most: int) -> Iterator[Box]:
    inner, cut = 1, len(counts) - 1
    while cut > 0 and inner * counts[cut] <= most:
        inner *= counts[cut]
        cut -= 1
    size = max(1, most // inner)
    if size > 16:
        size -= size % 16
    tail = tuple((0, count) for count in counts[cut + 1 :])
    for lead in product(*(range(count) for count in counts[:cut])):
        head = tuple((at, 1) for at in lead)
        for first in range(0, counts[cut], size):
            yield (*head, (first, min(size, counts[cut] - first)), *tail)


# -- what a loop's absorptions ask for --------------------------------------------------------------------------------


class Demands:
    """How a loop may be cut. `unit`: step by step. `whole`: only where all indices `above` stand still, or never."""

    def __init__(self) -> None:
        self.unit = False
        self.whole = False
        self.never = False
        self.above: set[str] = set()
        self.width = 1


def demands(loop: Loop, names: Names, links: tuple[Link, ...], homes: Mapping[str, int]) -> Demands:
    """What the absorptions inside a loop ask of it.

    `links` are the loops around, `names` what is known before it; `homes` gives the place in `links` of the loop that
    has an accumulator.
    """
    found = Demands()
    place = len(links)
    inside, bounds = names.inside(loop)
    here = (*links, Link(loop, bounds))
    own = {**homes, **{a.id: place for a in loop.accs}}
    for stmt, at, chain, homes_there in _absorptions(loop.body, inside, here, own):
        home = homes_there[stmt.buffer]
        how = plan(stmt, at, chain[home:])
        if how.compact and place < _last_unknown(chain, home, how):
            found.unit = True
        if home < place:
            found.whole = True
            found.never |= any(b.id in (how.kept or ()) for b in bounds)
            found.above |= {b.id for link in chain[home:place] for b in link.bounds if link.loop.order != "seq"}
        if home == place and loop.order == "prefix" and not simple(loop):
            found.unit = True
    found.width = _width(loop.body, inside, here, own)
    return found


def simple(loop: Loop) -> bool:
    """Whether the accumulators of a prefix loop are scalars that its own statements absorb into."""
    mine = {a.id for a in loop.accs}
    inner = (s for stmt in loop.body if isinstance(stmt, Loop) for s in walk(stmt.body))
    nested = any(isinstance(s, Store) and s.absorb and s.buffer in mine for s in inner)
    direct = [s.buffer for s in loop.body if isinstance(s, Store) and s.absorb]
    return not nested and not any(a.shape for a in loop.accs) and len(set(direct)) == len(direct)


def _absorptions(body: tuple[Stmt, ...], names: Names, links: tuple[Link, ...],
                 homes: Mapping[str, int]) -> Iterator[tuple[Store, Names, tuple[Link, ...], Mapping[str, int]]]:  # fmt: skip
    for stmt in body:
        if isinstance(stmt, Store):
            if stmt.absorb:
                yield stmt, names, links, homes
        elif isinstance(stmt, Loop):
            inside, bounds = names.inside(stmt)
            own = {**homes, **{a.id: len(links) for a in stmt.accs}}
            yield from _absorptions(stmt.body, inside, (*links, Link(stmt, bounds)), own)
        names = names.after(stmt)


def _last_unknown(chain: tuple[Link, ...], home: int, how: Plan) -> int:
    """The deepest loop of a compact absorption whose number of iterations is not known beforehand."""
    last, first = home, how.reduced[0] if how.reduced else None
    for place in range(home, len(chain)):
        link = chain[place]
        if link.loop.order == "seq" or any(b.loose and b.id != first for b in link.bounds):
            last = place
    return last


def _width(body: tuple[Stmt, ...], names: Names, links: tuple[Link, ...], homes: Mapping[str, int]) -> int:
    """How many iterations of the loops in `body` will be evaluated at once for one of the loops around, roughly."""
    widest = 1
    for stmt in body:
        if isinstance(stmt, Loop):
            _, bounds = names.inside(stmt)
            asked = demands(stmt, names, links, homes)
            size = 1
            if stmt.order != "seq" and not asked.unit:
                size = _extent((*links, Link(stmt, bounds)))
                size = size if asked.whole else min(size, INNER)
            widest = max(widest, size * asked.width)
        names = names.after(stmt)
    return widest


def _extent(links: tuple[Link, ...]) -> int:
    """The number of iterations of the innermost loop, at most; a guess where data decide."""
    ranges: dict[str, Range] = {}
    size = 1
    for link in links:
        size = 1
        for bound in link.bounds:
            count = INNER
            if not bound.loose and all(p.names <= ranges.keys() for p in (*bound.lo, *bound.hi)):
                start, count = hull(bound, ranges)
                ranges[bound.id] = (start, start + max(0, count - 1) * bound.step)
            size *= max(1, count)
    return size
