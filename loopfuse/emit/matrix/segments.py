"""Several nests in one warpgroup kernel: products of one left operand whose results have different columns (queries, keys and
values of one `x`), tile after tile.

Tiles are counted over the columns of all nests, so that those that share rows of the left operand are near one another. Which
nest a tile is of follows from its column: the producer takes the right operand's map by it, and the consumers what comes
after the sums. The ring and the main loop are those of one nest, and are there once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from loopfuse.emit.base import Declined
from loopfuse.emit.code import Tiling, ceil_div
from loopfuse.emit.matrix.epilogue import Epilogue
from loopfuse.emit.matrix.forms import Form, Operand, operands
from loopfuse.emit.matrix.leaves import Flat, Leaves
from loopfuse.emit.matrix.results import followed
from loopfuse.emit.matrix.shape import Contraction, Unit
from loopfuse.emit.matrix.tiling import warpgroups
from loopfuse.emit.matrix.warpgroup import Kernel
from loopfuse.ir import Store
from loopfuse.sizes import ZERO, Poly
from loopfuse.walking import expr_names


@dataclass(eq=False)
class Segment:
    """A nest: its parts, and while the kernel is written its map, what leaves as tiles, and what writes its elements."""

    whole: Contraction
    leaves: Leaves
    right: Operand
    map: str = ""
    staged: list[tuple[Store, Flat]] = field(default_factory=list)
    out_maps: list[str] = field(default_factory=list)
    epilogue: Epilogue | None = None


def unlike(wholes: Sequence[Contraction], parts: Sequence[Leaves]) -> Declined | None:
    """Why nests are not products of one left operand that one kernel can take in turn, or None."""
    first = wholes[0]
    if any(len(w.units) != 1 for w in wholes):
        return Declined("a nest of several products beside another nest")
    if any(w.ride is not None for w in wholes):
        return Declined("a fold over the results of one nest beside another nest")
    (one,) = first.units
    for whole in wholes[1:]:
        (unit,) = whole.units
        if unit.a != one.a or whole.rows.extent != first.rows.extent:
            return Declined("the nests have different left operands")
        if [a.extent for a in whole.depth] != [a.extent for a in first.depth]:
            return Declined("the nests have sums of different lengths")
        if [a.extent for a in whole.batch] != [a.extent for a in first.batch]:
            return Declined("the nests have different batches")
        if followed(unit.b.batch) != followed(one.b.batch) or unit.b.dtype != one.b.dtype:
            return Declined("the nests have right operands of different kinds")
    for whole, found in zip(wholes, parts, strict=True):
        for load in found.loads():
            names = expr_names(load).values
            if names & {*whole.rows.names} and names & {*whole.cols.names}:
                return Declined(f"`{load.buffer}` is read for every element of the result of one nest")
    return None


def ringed(wholes: Sequence[Contraction], rows: int, columns: int) -> list[Operand] | Declined:
    """What a stage holds, and after that the right operands of the other nests, which come to the same place."""
    ring: list[Operand] = []
    for whole in wholes:
        found = operands(whole, rows, columns)
        if isinstance(found, Declined):
            return found
        (left, right), _ = found
        ring += [right] if ring else [left, right]
    if any(o.major != ring[1].major for o in ring[2:]):
        return Declined("one right operand lies along the sum, and another one along the result",
                        "one of them transposed would lift it")  # fmt: skip
    return ring


class Segments(Kernel):
    """The text of a kernel of several nests. What is said of results is said of the nest that it is `about`, or of all."""

    def __init__(self, wholes: Sequence[Contraction], leaves: Sequence[Leaves], form: Form, ring: list[Operand],
                 name: str) -> None:  # fmt: skip
        super().__init__(wholes[0], leaves[0], form, ring[:2], [(0, 1)], name)
        self.segments = [Segment(w, x, o) for w, x, o in zip(wholes, leaves, ring[1:], strict=True)]
        self.of = f" of {len(wholes)} products in turn"
        self.inside = False
        self.segment = self.column = self.sums = ""
        self.begins: list[str] = []  # by nest: its first column of tiles

    # -- what a nest has of its own -----------------------------------------------------------------------------------

    def about(self, segment: Segment) -> None:
        """What follows is about one nest."""
        self.whole, self.leaves = segment.whole, segment.leaves
        self.staged, self.out_maps = segment.staged, segment.out_maps
        if segment.epilogue is not None:
            self.epilogue = segment.epilogue
        self.acc = {u.acc.id: self.sums for u in segment.whole.units}

    def about_all(self) -> None:
        """What follows is about all nests."""
        self.about(self.segments[0])
        self.staged = [s for x in self.segments for s in x.staged]

    @contextmanager
    def within(self, segment: Segment, test: str) -> Iterator[None]:
        """Text for the tiles of one nest alone."""
        self.about(segment)
        self.inside = True
        with self.w.block(test), self.within_batch():
            super().tops()
            yield
        self.inside = False
        self.about_all()

    def tops(self) -> None:
        """Each nest has its own, where it is alone."""

    def sides(self) -> tuple[str, ...]:
        """The sides of which a consumer keeps values: of one nest, or of any."""
        if self.inside:
            return super().sides()
        return tuple(side for side in ("rows", "cols") if any(x.leaves.kept[side] for x in self.segments))

    def units(self) -> tuple[Unit, ...]:
        """The products of all nests."""
        return tuple(u for x in self.segments for u in x.whole.units)

    def stores(self) -> list[Store]:
        """The outputs of all nests."""
        return [s for x in self.segments for s in x.leaves.stores]

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """Which outputs go as tiles."""
        for segment in self.segments:
            self.about(segment)
            super().choose()
        self.about_all()

    def all_maps(self) -> None:
        """The maps of all nests: the left operand has one."""
        left = self.operand_map(self.ring[0], True)
        for segment in self.segments:
            self.about(segment)
            segment.map = self.operand_map(segment.right, False)
        for segment in self.segments:
            self.about(segment)
            segment.out_maps += [self.flat_map(s.buffer, f, f"{s.buffer}.tiles") for s, f in segment.staged]
        self.maps = [left, *(x.map for x in self.segments)]
        self.about_all()

    def reserve(self, base: str) -> int:
        """Room for values of one side: a consumer has those of one nest at a time."""
        form = self.form
        sides = {"rows": form.rows, "cols": form.columns}
        most = max(room(x.leaves, sides) for x in self.segments)
        mine = f"{base} + {self.mine} * {most}" if form.consumers > 1 else base
        for segment in self.segments:
            self.about(segment)
            segment.epilogue = self.elements()
            segment.epilogue.reserve(mine, 1, "")
        self.about_all()
        return most * form.consumers

    def record(self) -> Tiling:
        """The record of its tiles."""
        nests = self.segments
        joined = Leaves(
            nests[0].whole, {s: [y for x in nests for y in x.leaves.side[s]] for s in ("rows", "cols")},
            {s: [y for x in nests for y in x.leaves.kept[s]] for s in ("rows", "cols")},
            [y for x in nests for y in x.leaves.body],
        )  # fmt: skip
        return warpgroups(self.whole, joined, self.form, self.through, self.results, (),
                          [s.buffer for s, _ in self.staged], beside=[x.whole for x in nests[1:]])  # fmt: skip

    # -- tiles --------------------------------------------------------------------------------------------------------

    def columns_of_tiles(self) -> Poly:
        """Of all nests, one after another."""
        return self.columns_before(len(self.segments))

    def columns_before(self, number: int) -> Poly:
        """Columns of tiles of the first nests."""
        each = (ceil_div(x.whole.cols.extent, self.form.columns) for x in self.segments[:number])
        return sum(each, start=ZERO)

    def tiling(self) -> None:
        """How many tiles there are, and where each nest begins."""
        super().tiling()
        for number in range(len(self.segments)):
            self.begins.append(self.w.names.fresh("begin") if number else "0")
            if number:
                self.w.line(f"const int {self.begins[-1]} = {self.w.poly(self.columns_before(number))};")

    def place_column(self, column: str) -> None:
        """The nest of a tile, and the first column there."""
        w, later = self.w, self.begins[1:]
        self.column, self.segment = w.names.fresh("column"), w.names.fresh("segment")
        w.line(f"const int {self.column} = {column};")
        w.line(f"const int {self.segment} = {' + '.join(f'({self.column} >= {x})' for x in later)};")
        begin = self.by_segment(self.begins)
        w.line(f"const int {self.col} = ({self.column} - ({begin})) * {self.form.columns};")

    def by_segment(self, texts: Sequence[str]) -> str:
        """One of the texts, by the nest of the tile."""
        *firsts, last = texts
        return " : ".join([*(f"{self.segment} == {k} ? {text}" for k, text in enumerate(firsts)), last])

    def free(self) -> None:
        """Names of a tile's coordinates."""
        super().free()
        for name in (self.column, self.segment):
            self.w.names.free(name)

    def sources(self) -> list[str]:
        """Addresses of the maps by which the operands of a tile come."""
        right = self.w.names.fresh("right")
        texts = [f"&{x.map}" for x in self.segments]
        self.w.line(f"const lf_map* const {right} = {self.by_segment(texts)};")
        return [f"&{self.maps[0]}", right]

    # -- the consumers ------------------------------------------------------------------------------------------------

    def one_tile(self) -> None:
        """A tile of a consumer: its products, and what becomes of them."""
        self.ahead()
        self.products()
        self.results_out()

    def loop(self, lag: int) -> None:
        """The loop over the stages of a tile, of whichever nest."""
        (self.sums,) = self.acc.values()
        super().loop(lag)

    def one_sided(self) -> None:
        """Values of one side, once nobody reads those of the tile before."""
        if not self.sides():
            return
        self.w.line(self.sync())
        for number, segment in enumerate(self.segments):
            if any(segment.leaves.kept.values()):
                with self.within(segment, f"if ({self.segment} == {number})"):
                    self.epilogue.one_sided(self.thread, 128, self.sides())

    def results_out(self) -> None:
        """The results of a tile, as its nest has them."""
        last = len(self.segments) - 1
        for number, segment in enumerate(self.segments):
            test = "" if number == last else f"if ({self.segment} == {number})"
            with self.within(segment, f"else {test}".rstrip() if number else test):
                super().results_out()


def room(leaves: Leaves, sides: Mapping[str, int]) -> int:
    """Bytes of the values of one side of a tile."""
    return sum(-(-sides[side] * x.bytes // 16) * 16 for side, kept in leaves.kept.items() for x in kept)
