"""What it takes to compute an operand of a product on its way in, instead of finding it in memory.

Matrix units take operands as they lie in memory. One that is computed is made again in every tile that needs it: a left
operand once for each tile of columns, a right one for each tile of rows. So are sums over a row that must be known before
the product, and sums that ride along with it. All of that takes the ordinary units, in the way of the products, whose
operands then pass through registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from loopfuse.analysis.sketch import Level
from loopfuse.analysis.summary import NONE, Work, summary
from loopfuse.schedule.base import Ask
from loopfuse.schedule.products import Operand, Product
from loopfuse.schedule.tiles import Tile


@dataclass(frozen=True, slots=True)
class Made:
    """Something that tiles compute again: the work of it all done once, and the indices by which tiles share it."""

    what: str
    work: Work
    across: tuple[str, ...]
    of: Product

    def times(self, tile: Tile) -> int:
        """How many tiles compute each part of it."""
        side = tile.columns if self.across == self.of.n else tile.rows
        return -(-self.of.extent(self.across) // side)


@dataclass(frozen=True, slots=True)
class Prologues:
    """What the tiles of a kernel compute before and beside its products. `operands`: how many of the two sides pass through
    registers for it."""

    made: tuple[Made, ...]
    operands: int

    def work(self, tile: Tile) -> Work:
        """The work that it is for all tiles together."""
        return sum((m.work * m.times(tile) for m in self.made), NONE)

    def again(self, tile: Tile) -> int:
        """How many tiles read the rows that are summed before the product."""
        return max((m.times(tile) for m in self.made if m.what == STATISTICS), default=1)

    def said(self, tile: Tile, rate: float, seconds: float) -> str:
        """The sentence for users; `rate`: of the products, a fraction; `seconds`: that it costs in all."""
        parts: dict[str, dict[str, None]] = {}
        for one in self.made:
            count = one.times(tile)
            where = "columns" if one.across == one.of.n else "rows"
            who = f"each of {count} tiles of {where} computes again" if count > 1 else "the tile computes"
            parts.setdefault(who, {})[one.what] = None
        made = ", ".join(f"{who} {' and '.join(whats)}" for who, whats in parts.items())
        slower = f", and the products run at {rate:.2f} of their rate" if rate < 1.0 else ""
        return f"{made}{slower}: {seconds * 1e6:.3g} us"


STATISTICS = "sums over whole rows that the product waits for"
BESIDE = "sums beside the product"


def prologues(ask: Ask, segments: Sequence[Sequence[Product]], before: Iterable[Level]) -> Prologues:
    """What the tiles of a kernel with these products compute again; `before` are the loops before them."""
    made: list[Made] = []
    words: set[str] = set()
    for segment in segments:
        sides: dict[tuple[object, ...], Made] = {}
        for p in segment:
            if p.pair:
                continue
            for side, across, word in ((p.a, p.n, "left"), (p.b, p.m, "right")):
                if side.prologue:
                    named = _named(side)
                    work = side.work * prod(p.term.level.extents[i] for i in side.indices)
                    one = Made(f"the {word} operand{named}", work, across, p)
                    words.add(word)
                    sides.setdefault((word, side.indices, side.buffers, side.names, side.work), one)
        made += sides.values()
        made += _beside(ask, segment)
    operands = len(words) or int(bool(made))  # sums before the product are no part of its loop
    first = segments[0][0]
    sums = [level for top in before for level in (top, *top.below()) if level.kind == "fold"]
    for level in sums:
        work = _done(ask, level)
        over = first.n if set(level.extents) & set(first.m) or not set(level.extents) & set(first.n) else first.m
        made.append(Made(STATISTICS, work, over, first))
    return Prologues(tuple(made), operands)


def _named(side: Operand) -> str:
    """The arrays that an operand is made of, in words."""
    names = [f"`{b}`" for b in side.sources]
    return f" (of {', '.join(names[:-1])}{' and ' * (len(names) > 1)}{names[-1]})" if names else ""


def _beside(ask: Ask, segment: Sequence[Product]) -> list[Made]:
    """Sums in the loop of a product that are not products themselves: they take an operand from its tile."""
    first, products = segment[0], {p.term.acc.id for p in segment}
    found = []
    for term in ask.sketch.terms:
        if term.owner is first.owner and term.acc.id not in products and not first.pair:
            one = sum((work for _, work in summary(term.store.value).groups), Work(flops=1))
            over = first.n if not set(first.n) & term.indices else first.m
            found.append(Made(BESIDE, one * prod(term.level.extents[i] for i in term.indices), over, first))
    return found


def _done(ask: Ask, level: Level) -> Work:
    """All the work in a loop."""
    total = NONE
    for needs, at, work in ask.sketch.work:
        if at is level:
            every = needs.union(*(at.follows[i] for i in needs if i in at.follows)) if at.follows else needs
            total += work * prod(n for i, n in at.extents.items() if i in every)
    return total
