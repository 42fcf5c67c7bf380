"""What a contraction kernel is round its products."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from loopfuse.analysis.sketch import Level
from loopfuse.schedule.products import Product
from loopfuse.schedule.prologues import Prologues
from loopfuse.schedule.tiles import Tile


@dataclass
class Shape:
    """What the kernel is around its products. `segments`: the products of one fold, which share their left operand.

    `trunk`: the innermost loop that holds every product; `row`: whole rows of the result, of `width` elements, must be
    on chip at once (`turned`: they run along `m`);
    `rows_folded`, `columns_folded`: the epilogue reduces along the row, along the columns. `prologues`: what is computed
    on the way into the products. `turns`: nests are taken in turn by one launch, and each segment has one product.
    """

    segments: list[list[Product]]
    trunk: Level
    row: Level | None = None
    rows_folded: bool = False
    columns_folded: bool = False
    width: int = 0
    turned: bool = False
    before: list[Level] = field(default_factory=list)
    after: list[Level] = field(default_factory=list)
    prologues: Prologues = Prologues((), 0)
    turns: bool = False

    @property
    def first(self) -> Product:
        """The first product."""
        return self.segments[0][0]

    @cached_property
    def blocks(self) -> dict[int, int]:
        """How many results of one element each block of statements with products in it holds at once."""
        count: dict[int, int] = {}
        for segment in self.segments:
            block = id(segment[0].owner.parent)
            count[block] = count.get(block, 0) + len(segment)
        return count

    @cached_property
    def apart(self) -> list[list[Product]]:
        """The first segment of each block of statements: a tile of it is the tile of those that follow there. Of nests in turn
        every one."""
        if self.turns:
            return self.segments
        return list({id(s[0].owner.parent): s for s in reversed(self.segments)}.values())[::-1]

    @property
    def held(self) -> int:
        """The most results of one element that a tile holds at once."""
        return 1 if self.turns else max(self.blocks.values())

    def own(self, segment: list[Product], tile: Tile) -> Tile:
        """The tile as a segment with fewer results than others has it: so much wider."""
        wider = 1 if self.turns else self.held // self.blocks[id(segment[0].owner.parent)]
        return tile if wider == 1 else replace(tile, columns=tile.columns * wider)
