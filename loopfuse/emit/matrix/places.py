"""Which tiles a block of a warpgroup kernel takes, and where they stand in the result."""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

from loopfuse.emit.code import ceil_div
from loopfuse.emit.matrix.forms import steps
from loopfuse.emit.matrix.results import Results
from loopfuse.sizes import Poly

GROUP = 16  # rows of tiles that are gone through together, so that what they share stays in the second-level cache


class Places(Results):
    """Text that counts tiles and finds their coordinates."""

    down = across = tiles = trips = since = ""

    def tiling(self) -> None:
        """How many tiles there are."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        self.down, self.across, self.tiles, self.trips = n("down"), n("across"), n("tiles"), n("trips")
        w.line(f"const int {self.down} = {w.poly(ceil_div(whole.rows.extent, form.rows))};")
        w.line(f"const int {self.across} = {w.poly(self.columns_of_tiles())};")
        batch = " * ".join(w.poly(a.extent) for a in whole.batch)
        w.line(
            f"[[maybe_unused]] const int {self.tiles} = {self.down} * {self.across}{f' * {batch}' if batch else ''};"
        )
        if form.split == 1:
            w.line(f"const int {self.trips} = {w.poly(steps(whole, form))};")
            return
        self.rank, self.since, each = n("rank"), n("since"), n("each")
        w.line(f"const int {self.rank} = lf_cluster_rank();")
        w.line(f"const int {each} = {w.poly((steps(whole, form) + (form.split - 1)) // form.split)};")
        w.line(f"const int {self.since} = {self.rank} * {each};")
        w.line(f"const int {self.trips} = lf_least<int>({each}, {w.poly(steps(whole, form))} - {self.since});")

    def each_tile(self, tile: str) -> AbstractContextManager[None]:
        """The tiles of a block: one alone where blocks share its sum, as the ring then serves to exchange parts."""
        if self.form.split == 1:
            return self.w.block(f"for (int {tile} = blockIdx.x; {tile} < {self.tiles}; {tile} += gridDim.x)")
        return self.w.block(f"for (int {tile} = blockIdx.x / {self.form.split}, once = 1; once; once = 0)")

    def place(self, tile: str) -> None:
        """The coordinates of a tile: groups of tile rows, in each column by column."""
        w, form = self.w, self.form
        n = w.names.fresh
        self.row, self.col = n("row.0"), n("col.0")
        at, wide, size = n("at"), n("first"), n("size")
        w.line(f"const int {at} = {tile} % ({self.down} * {self.across});")
        w.line(f"const int {wide} = {at} / ({GROUP} * {self.across}) * {GROUP};")
        w.line(f"const int {size} = lf_least<int>({self.down} - {wide}, {GROUP});")
        inner = f"({at} - {wide} * {self.across})"
        w.line(f"const int {self.row} = ({wide} + {inner} % {size}) * {form.rows};")
        self.place_column(f"{inner} / {size}")
        self.place_in_batch(tile)

    def place_column(self, column: str) -> None:
        """The first column of a tile, by the number of its column of tiles."""
        self.w.line(f"const int {self.col} = {column} * {self.form.columns};")

    def place_in_batch(self, tile: str) -> None:
        """The coordinates of a tile along the batch."""
        w, whole, n = self.w, self.whole, self.w.names.fresh
        self.points: list[str] = []
        rest = f"{tile} / ({self.down} * {self.across})"
        for number, axis in enumerate(whole.batch):
            below = " * ".join(w.poly(a.extent) for a in whole.batch[number + 1 :])
            point = n("point")
            text = f"{rest} / ({below})" if below else rest
            w.line(f"const int {point} = {text}{f' % {w.poly(axis.extent)}' if number else ''};")
            self.points.append(point)

    def free(self) -> None:
        """Names of a tile's coordinates."""
        for name in (self.row, self.col, *self.points):
            self.w.names.free(name)

    def count(self) -> Poly:
        """How many tiles there are."""
        down = ceil_div(self.whole.rows.extent, self.form.rows)
        return prod((a.extent for a in self.whole.batch), start=down * self.columns_of_tiles())

    def columns_of_tiles(self) -> Poly:
        """How many there are along the columns."""
        return ceil_div(self.whole.cols.extent, self.form.columns)
