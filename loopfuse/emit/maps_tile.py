"""The text of a map kernel whose operands lie across each other: what is adjacent along another index than the output's
goes through a tile in shared memory.

A thread reads four vectors of four elements, a square, turns it in registers and leaves it in the tile as vectors along
the other index; so both sides move vectors, in global memory and in the tile. The place of a vector in its row of the tile
is swizzled, so that neither side meets a bank twice. The rest of the kernel takes vectors of four along the last group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd, prod

from loopfuse.emit.maps_access import SMALL, Group, Study
from loopfuse.emit.maps_form import Form, Given, Shape
from loopfuse.emit.maps_operands import PIECE, Operand, Operands
from loopfuse.emit.writer import HALVES, storage
from loopfuse.sizes import ONE, Poly

SIDE = 4  # elements of a vector, and vectors of a square
THREADS = 256
ELEMENTS, SQUARE = SIDE * SIDE * THREADS, 64  # of a tile, and its side where both extents are no less
LEAST = 16  # extent of the other index from which on a tile is worth it
MOST_TILES = 6
AT_ONCE = 2  # operands that wait in registers together
SPAN = 4  # rows of tiles that blocks go through together, so that both sides stay on few pages of memory


@dataclass(frozen=True, slots=True)
class Turn:
    """Tiles of `down` by `across` elements along the group `other` and the last group."""

    other: Group
    down: int
    across: int

    @property
    def units(self) -> int:
        """Vectors of a row of the tile."""
        return self.across // SIDE


def turn(study: Study, operands: Operands) -> Turn | None:
    """The tiles that large operands across the last group ask for, if there are such."""
    if len(operands.groups) < 2:
        return None
    best: tuple[int, Group] | None = None
    for group in operands.groups[:-1]:
        weight = sum(_count(study, o) * o.access.size for o in across(study, operands, group))
        if weight and (best is None or weight > best[0]):
            best = weight, group
    if best is None:
        return None
    rows, columns = study.number(best[1].extent), study.number(operands.groups[-1].extent)
    if min(rows, columns) < LEAST:
        return None
    wide = min(SQUARE, _power(columns))
    wide = ELEMENTS // min(SQUARE, _power(rows)) if wide == SQUARE else wide
    return Turn(best[1], ELEMENTS // wide, wide)


def _power(value: int) -> int:
    return 1 << (value - 1).bit_length()


def across(study: Study, operands: Operands, group: Group) -> list[Operand]:
    """Large operands whose elements are adjacent along a group that is not the last."""
    return [
        o for o in operands.made(SIDE)
        if o.kind == "element" and not o.access.guarded and o.offset is not None
        and o.offset.coefficient(group.atom) == ONE and (o.store or _count(study, o) * SMALL >= study.elements)
    ]  # fmt: skip


def _count(study: Study, operand: Operand) -> int:
    return prod(study.number(a.extent) for a in study.axes if a.id in operand.access.depends)


class Tile(Form):
    """The writing of one function with tiles."""

    def __init__(self, study: Study, operands: Operands, turn: Turn, cached: frozenset[str]) -> None:
        super().__init__(study, operands, Shape("rows", SIDE, SIDE, THREADS), cached)
        self.turn = turn
        found = across(study, operands, turn.other)
        kept = {o.access.key: o for o in found[:MOST_TILES]}
        self.turned = [replace(o, piece=self.piece(o)) for o in kept.values()]
        self.made = [o for o in self.made if o.access.key not in kept or o.store != kept[o.access.key].store]
        self.names |= {id(o): self._name(o) for o in self.turned}
        self.tiles = {id(o): self.w.names.fresh(f"{o.access.node.buffer}.tile") for o in self.turned}
        self.loads = [o for o in self.turned if not o.store]
        self.stores = [o for o in self.turned if o.store]
        self.packed += self.stores

    @property
    def registers(self) -> float:
        """Registers for the operands that a thread loads before their use, those of two turned ones at most."""
        turned = sorted((max(1.0, o.words * SIDE) * SIDE for o in self.loads), reverse=True)[:AT_ONCE]
        return sum(turned) + (super().registers if len(self.ahead_of_all()) else 0)

    def ahead_of_all(self) -> list[Operand]:
        """Operands that are not turned and are loaded for all vectors of the thread at once: if they are few."""
        direct = [o for o in self.made if not o.store and o.stage is not None]
        return direct if sum(len(o.needs) == len(self.groups) for o in direct) <= AT_ONCE else []

    def piece(self, operand: Operand) -> int:
        """The bytes of a piece along the other group."""
        assert operand.offset is not None
        found = self.study.divisor(operand.offset - Poly.of(self.turn.other.atom))
        return min(PIECE, (gcd(SIDE, found) if found else SIDE) * operand.access.size)

    # -- the whole ----------------------------------------------------------------------------------------------------

    def write(self) -> Poly:
        """The body of the function; gives the number of blocks."""
        w, inner, other = self.w, self.groups[-1], self.turn.other
        self.rest = [g for g in self.groups[:-1] if g is not other]
        rows, columns = self.count_of(other, self.turn.down), self.count_of(inner, self.turn.across)
        self.top, self.left, self.row, self.column = (w.names.fresh(n) for n in ("top", "left", "row", "column"))
        self.turned_row, self.turned_column = w.names.fresh("turned"), w.names.fresh("side")
        self.corner(rows, columns)
        self.declare_tiles()
        per, units = self.turn.down // SIDE, self.turn.units
        w.line(f"const int {self.turned_row} = threadIdx.x % {per}u * {SIDE}, "
               f"{self.turned_column} = threadIdx.x / {per}u * {SIDE};")  # fmt: skip
        w.line(f"const {w.index} {self.column} = {self.left} + (int)(threadIdx.x % {units}u) * {SIDE};")
        tests = [f"{start} + {step} <= {w.poly(group.extent)}"
                 for start, step, group in ((self.top, self.turn.down, other), (self.left, self.turn.across, inner))
                 if self.uneven(group.extent, step)]  # fmt: skip
        self.branch(tests, self.whole, self.edge)
        return rows * columns * prod((g.extent for g in self.rest), start=ONE)

    def count_of(self, group: Group, step: int) -> Poly:
        """Tiles along a group."""
        return self.study.target.poly((group.extent + (step - 1)) // step)

    def put(self, operand: Operand) -> None:
        """An output's vector to memory, or to its tile."""
        if operand not in self.stores:
            super().put(operand)
            return
        dtype = operand.access.buffer.dtype
        value = self.names[id(operand)]
        value = f"lf_pack_{dtype}({value})" if dtype in HALVES else value
        self.w.line(f"lf_leave<{min(PIECE, SIDE * dtype.itemsize)}>({self.mine(operand)}, {value});")

    def corner(self, rows: Poly, columns: Poly) -> None:
        """Which tile the block takes: a few rows of tiles are gone through column by column."""
        w = self.w
        known = self.study.target.number(rows)
        span = gcd(SPAN, known) if known else 1
        unsigned, tile, tall = f"unsigned {w.index}", w.names.fresh("tile"), w.poly(columns)
        w.line(f"const {unsigned} {tile} = blockIdx.x;")
        down, along = f"{tile} / {tall}", f"{tile} % {tall}"
        if span > 1:
            patch = f"({span} * {tall})"
            down, along = f"{tile} / {patch} * {span} + {tile} % {span}", f"{tile} % {patch} / {span}"
        if self.rest:
            batch = w.names.fresh("batch")
            plane = w.poly(self.study.target.poly(rows * columns))
            w.line(f"const {w.index} {batch} = {tile} / ({unsigned}){plane};")
            for _, line in self.split(batch, self.rest):
                w.line(line)
            down = f"{tile} % ({unsigned}){plane} / {tall}" if span == 1 else (
                f"{tile} % ({unsigned}){plane} / {patch} * {span} + {tile} % {span}")  # fmt: skip
        w.line(f"const {w.index} {self.top} = ({w.index})({down}) * {self.turn.down};")
        w.line(f"const {w.index} {self.left} = ({w.index})({along}) * {self.turn.across};")

    def declare_tiles(self) -> None:
        """The tiles in shared memory."""
        for operand in self.turned:
            kind = storage(operand.access.buffer.dtype)
            start = f"lf_shared + {self.w.shared}" if self.w.shared else "lf_shared"
            self.w.line(f"{kind}* {self.tiles[id(operand)]} = ({kind}*)({start});")
            self.w.shared += self.turn.down * self.turn.across * operand.access.size

    def unit(self, operand: Operand, row: str, unit: str) -> str:
        """The address of a vector in a tile."""
        units = self.turn.units
        return f"{self.tiles[id(operand)]} + ({row} * {units} + (({unit}) ^ ({row}) / {SIDE} % {units})) * {SIDE}"

    # -- blocks -------------------------------------------------------------------------------------------------------

    def whole(self) -> None:
        """A whole tile."""
        w = self.w
        direct = [o for o in self.made if not o.store and o.stage is not None]
        ahead = self.ahead_of_all()
        batches = [self.loads[k : k + AT_ONCE] for k in range(0, len(self.loads), AT_ONCE)]
        for number, batch in enumerate(batches):
            self.fetch(batch, self.aside, None)
            if number == len(batches) - 1 or not batches:
                self.ahead(ahead, self.coordinates)
            self.turn_in(batch)
        if not batches:
            self.ahead(ahead, self.coordinates)
        else:
            w.line("lf_sync();")
        with self.unrolled("u", SIDE):
            given = self.coordinates("u")

            def inside() -> None:
                self.load_all([], [o for o in direct if o not in ahead])
                self.from_tiles()
                self.body()

            self.scoped(given, inside)
        self.turn_out(None)

    def edge(self) -> None:
        """A tile that is cut."""
        w = self.w
        rows, columns = w.poly(self.turn.other.extent), w.poly(self.groups[-1].extent)
        for operand in self.loads:
            self.fetch([operand], self.aside, (rows, columns))
            self.turn_in([operand])
        if self.loads:
            w.line("lf_sync();")
        with w.block(f"for (int u = 0; u < {SIDE}; ++u)"):
            given = self.coordinates("u")
            self.part = f"(int)lf_least<{w.index}>({SIDE}, {columns} - {self.column})"

            def inside() -> None:
                with w.block(f"if ({self.row} < {rows} && {self.column} < {columns})"):
                    self.load_all([], [o for o in self.made if not o.store and o.stage is not None])
                    self.from_tiles()
                    self.body()

            self.scoped(given, inside)
            self.part = ""
        self.turn_out((rows, columns))

    def coordinates(self, u: str) -> Given:
        """The place of a thread's vector."""
        w, step = self.w, THREADS // self.turn.units
        self.place(self.turn.other, self.row)
        self.place(self.groups[-1], self.column)
        text = f"{self.top} + (int)(threadIdx.x / {self.turn.units}u) + {u} * {step}"
        return [(self.row, f"const {w.index} {self.row} = {text};")]

    def aside(self, k: str) -> None:
        """The place of a thread's vector along the other group."""
        self.place(self.turn.other, f"({self.top} + {self.turned_row})")
        self.place(self.groups[-1], f"({self.left} + {self.turned_column} + {k})")

    # -- moves --------------------------------------------------------------------------------------------------------

    def fetch(self, operands: list[Operand], place: Callable[[str], None], cut: tuple[str, str] | None) -> None:
        """Squares of operands into registers; `cut`: the extents, where the tile is cut."""
        w = self.w
        for operand in operands:
            w.line(f"lf_vec<{storage(operand.access.buffer.dtype)}, {SIDE}> {self.names[id(operand)]}[{SIDE}];")
        with self.unrolled("k", SIDE):
            place("k")
            for operand in operands:
                at = w.place(operand.access.node.buffer, False)
                how = "lf_read" if operand.piece == min(PIECE, SIDE * operand.access.size) else "lf_peek"
                text = f"{how}<{SIDE}, {operand.piece}>({self.address(operand, at)})"
                if cut is not None:
                    text = f"lf_read_part<{SIDE}>({self.address(operand, at)}, {self.remaining(cut)})"
                w.line(f"{self.names[id(operand)]}[k] = {text};", operand.access.node.span)

    def remaining(self, cut: tuple[str, str]) -> str:
        """How many elements of a vector along the other group there are in a cut tile."""
        down, along = self.at[self.turn.other.atom], self.at[self.groups[-1].atom]
        return f"{along} < {cut[1]} ? (int)lf_least<{self.w.index}>({SIDE}, {cut[0]} - {down}) : 0"

    def turn_in(self, operands: list[Operand]) -> None:
        """Squares in registers, turned, into the tiles."""
        w = self.w
        for operand in operands:
            dtype, name = operand.access.buffer.dtype, self.names[id(operand)]
            turned = w.names.fresh(f"{operand.access.node.buffer}.turned")
            with self.unrolled("e", SIDE):
                w.line(f"lf_vec<{storage(dtype)}, {SIDE}> {turned};")
                w.line("#pragma unroll")
                w.line(f"for (int k = 0; k < {SIDE}; ++k) {turned}.v[k] = {name}[k].v[e];")
                unit = self.unit(operand, f"({self.turned_row} + e)", f"{self.turned_column} / {SIDE}")
                w.line(f"lf_leave<{min(PIECE, SIDE * dtype.itemsize)}>({unit}, {turned});")

    def from_tiles(self) -> None:
        """Vectors of turned operands, where the body finds them."""
        w = self.w
        for operand in self.loads:
            dtype = operand.access.buffer.dtype
            name = w.names.fresh(f"{operand.access.node.buffer}_")
            w.line(f"const lf_vec<{storage(dtype)}, {SIDE}> {name} = {self.peek(operand)};")
            place = w.place(operand.access.node.buffer, False)
            self.texts[operand.access.key] = w.fetched(f"{name}.v[e]", place)

    def peek(self, operand: Operand) -> str:
        """The thread's vector in a tile."""
        size = min(PIECE, SIDE * operand.access.size)
        return f"lf_peek<{SIDE}, {size}>({self.mine(operand)})"

    def mine(self, operand: Operand) -> str:
        """The address of the thread's vector in a tile."""
        return self.unit(operand, f"(int)({self.row} - {self.top})", f"(int)({self.column} - {self.left}) / {SIDE}")

    def turn_out(self, cut: tuple[str, str] | None) -> None:
        """Tiles of outputs to memory."""
        if not self.stores:
            return
        w = self.w
        w.line("lf_sync();")
        for operand in self.stores:
            dtype, size = operand.access.buffer.dtype, min(PIECE, SIDE * operand.access.size)
            place, held = w.place(operand.access.node.buffer, True), w.names.fresh(f"{operand.access.node.buffer}.held")
            kind = f"lf_vec<{storage(dtype)}, {SIDE}>"
            w.line(f"{kind} {held}[{SIDE}];")
            w.line("#pragma unroll")
            unit = self.unit(operand, f"({self.turned_row} + e)", f"{self.turned_column} / {SIDE}")
            w.line(f"for (int e = 0; e < {SIDE}; ++e) {held}[e] = lf_peek<{SIDE}, {size}>({unit});")
            with self.unrolled("k", SIDE):
                self.aside("k")
                turned = w.names.fresh(f"{operand.access.node.buffer}.turned")
                w.line(f"{kind} {turned};")
                w.line("#pragma unroll")
                w.line(f"for (int e = 0; e < {SIDE}; ++e) {turned}.v[e] = {held}[e].v[k];")
                at = self.address(operand, place)
                if cut is not None:
                    w.line(f"lf_write_part<{SIDE}>({at}, {turned}, {self.remaining(cut)});")
                else:
                    how = "lf_leave" if operand.access.buffer.id in self.cached else "lf_write"
                    w.line(f"{how}<{operand.piece}>({at}, {turned});")
