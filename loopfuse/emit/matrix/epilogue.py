"""What follows the sums of an element: written once for every arrangement of results over threads.

A thread holds its results by blocks of a few columns. In a block it stands at row `row` and at column `col` of the tile,
and its elements are those of rows `row` and `row + 8`, columns `col + 8 j` and the next one, for each j: the arrangement
of the accumulators of `wgmma` and of `mma.sync` alike (PTX ISA, figures of matrix fragments).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from loopfuse.emit.approx import approximations
from loopfuse.emit.matrix.leaves import Leaf, Leaves
from loopfuse.emit.matrix.shape import Axis, Contraction
from loopfuse.emit.rows_vectors import digits, used
from loopfuse.emit.serial import Serial
from loopfuse.emit.writer import Place, Writer, c_type, state_type
from loopfuse.ir import Acc, Let, Load, Store
from loopfuse.walking import expr_names


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Where a thread stands: its first row and column in the tile (C text), and the columns of the block."""

    row: str
    col: str
    width: int


class Epilogue(Serial):
    """Statements of the threads that share a tile of `extents` by side; `origin`: C texts of its first row and column.

    What the kernel round them says, as texts over `{j}`, `{e}` (which element of a group of four) or `{h}` (which of its
    two rows): `sums`, the result of each accumulator; `packed`, for outputs of 16 bits that leave as tiles, where a pair
    goes; `plain`, for wider ones, where an element goes; `tiles`, for loads that came as tiles, where a pair is; `states`, of
    accumulators that ride along; `before` and `after`, lines round each group of eight columns. `apart`: how far the two
    rows are apart.
    """

    def __init__(self, writer: Writer, leaves: Leaves, extents: Mapping[str, int], apart: int = 8) -> None:
        super().__init__(writer)
        self.leaves, self.extents, self.apart = leaves, extents, apart
        self.origin = ("", "")
        self.sums: dict[str, str] = {}
        self.packed: dict[str, str] = {}
        self.plain: dict[str, str] = {}
        self.tiles: dict[Load, str] = {}
        self.states: dict[str, str] = {}
        self.before: list[str] = []
        self.after: list[str] = []
        self.kept: dict[str, str] = {}  # by value of one side: its array in shared memory
        self.common: tuple[str, ...] = ()  # sides of which all consumers share the values
        self.at: Block | None = None
        self.j = self.e = self.row = self.col = self.inside = ""
        job = leaves.whole.job
        self.w.near = approximations(job.kernel.body, job.buffers, job.target.numerics, job.ask.local)

    @property
    def whole(self) -> Contraction:
        """The contraction."""
        return self.leaves.whole

    # -- values of one side -------------------------------------------------------------------------------------------

    def reserve(self, base: str, copies: int, copy: str) -> int:
        """Room for the values of each side of a tile, `copies` times; bytes. `base`: where it is; `copy`: which one."""
        offset = 0
        for side, found in self.leaves.kept.items():
            many = 1 if side in self.common else copies
            for leaf in found:
                size = self.extents[side] * leaf.bytes
                name = self.kept[leaf.name] = self.w.names.fresh(leaf.name)
                kind = c_type(leaf.value.dtype)
                which = f" + {copy} * {size}" if many > 1 else ""
                self.w.line(f"{kind}* const {name} = ({kind}*)({base} + {offset}{which});")
                offset += -(-size * many // 16) * 16
        return offset

    def one_sided(self, thread: str, threads: int, sides: Iterable[str] = ("rows", "cols")) -> None:
        """Values that follow one side only into shared memory, by the threads of a tile."""
        for side in sides:
            found = self.leaves.kept[side]
            if not found:
                continue
            axis, first = (self.whole.rows, self.origin[0]) if side == "rows" else (self.whole.cols, self.origin[1])
            self._named(axis)
            at = self.w.names.fresh("at")
            limit = self.w.poly(axis.extent)
            with self.w.block(f"for (int {at} = {thread}; {at} < {self.extents[side]}; {at} += {threads})"):
                for leaf in found:
                    self.w.line(f"{c_type(leaf.value.dtype)} {self.w.names(leaf.name)} = 0;")
                with self.w.block(f"if ({first} + {at} < {limit})"):
                    inner, depth = len(self.w.lines), self.w.depth
                    for let in self.leaves.side[side]:
                        if self._needed(side, let):
                            self.let(let)
                    for leaf in found:
                        self.w.line(f"{self.w.names(leaf.name)} = {self.w.expr(leaf.value)};")
                    indices(self.w, axis, f"{first} + {at}", inner, depth)
                for leaf in found:
                    self.w.line(f"{self.kept[leaf.name]}[{at}] = {self.w.names(leaf.name)};")
                    self.w.names.free(self.w.names(leaf.name))
            self.w.names.free(at)

    def _named(self, *axes: Axis) -> None:
        """Names for the loop indices, before text uses them."""
        for axis in axes:
            for name in axis.names:
                self.w.names(name)

    def named(self) -> None:
        """Texts for other values that elements read, once `j` and `e` have names."""

    def _needed(self, side: str, let: Let) -> bool:
        """Whether a value that is kept is made from a let."""
        wanted: set[str] = {n for leaf in self.leaves.kept[side] for n in expr_names(leaf.value).values}
        for other in reversed(self.leaves.side[side]):
            if other.id in wanted:
                wanted |= expr_names(other.value).values
        return let.id in wanted

    # -- elements -----------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """The elements of a block."""
        w, whole = self.w, self.whole
        self.at = block
        j, e = w.names.fresh("j"), w.names.fresh("e")
        self.j, self.e = j, e
        w.hook = self._loaded
        self._named(whole.rows, whole.cols)
        self.named()
        for side, found in self.leaves.kept.items():
            for leaf in found:
                w.alias[leaf.name] = self.leaf(leaf, side)
        w.line("#pragma unroll")
        with w.block(f"for (int {j} = 0; {j} < {block.width // 8}; ++{j})"):
            for line in self.before:
                w.line(line.format(j=j))
            made: dict[str, str] = {}
            for buffer in self.packed:
                made[buffer] = w.names.fresh(f"{buffer}.made")
                w.line(f"float {made[buffer]}[4];")
            w.line("#pragma unroll")
            with w.block(f"for (int {e} = 0; {e} < 4; ++{e})"):
                start, depth = len(w.lines), w.depth
                self.row = w.names.fresh("row")
                self.col = w.names.fresh("col")
                self.inside = self._inside("rows", "cols")
                for unit in (u for u in whole.units if u.acc.id in self.sums):
                    text = self.sums[unit.acc.id].format(j=j, e=e)
                    for factor in unit.outside:
                        text = f"({text} * {w.expr(factor)})"
                    w.line(f"const {c_type(unit.acc.dtype)} {w.names(unit.acc.id)} = {text};")
                for stmt in self.leaves.body:
                    if isinstance(stmt, Let):
                        self.let(stmt)
                    elif stmt.absorb:
                        self._absorb(stmt)
                    elif stmt.buffer in made:
                        value = w.unrounded(w.expr(stmt.value), Place("", (), whole.job.buffers[stmt.buffer].dtype))
                        w.line(f"{made[stmt.buffer]}[{e}] = {value};", stmt.span)
                    elif stmt.buffer in self.plain:
                        to = self.plain[stmt.buffer].format(j=j, e=e)
                        w.line(f"{to} = {w.expr(stmt.value)};", stmt.span)
                    else:
                        with ExitStack() as stack:
                            if self.inside:
                                stack.enter_context(w.block(f"if ({self.inside})"))
                            super().store(stmt)
                self._places(block, start, depth)
            self._pairs(made)
            for line in self.after:
                w.line(line.format(j=j))
        w.hook = None
        for leaf in (x for found in self.leaves.kept.values() for x in found):
            del w.alias[leaf.name]
        for name in (j, e):
            w.names.free(name)
        self.at = None

    def _pairs(self, made: Mapping[str, str]) -> None:
        """The pairs of outputs that leave as tiles, from the four elements of each."""
        for buffer, name in made.items():
            kind = self.whole.job.buffers[buffer].dtype
            for h in range(2):
                to = self.packed[buffer].format(j=self.j, h=h)
                self.w.line(f"{to} = lf_{kind}x2({name}[{2 * h}], {name}[{2 * h + 1}]);")
            self.w.names.free(name)

    def _places(self, block: Block, start: int, depth: int) -> None:
        """The row, the column and the loop indices that the lines from `start` on use."""
        w, whole = self.w, self.whole
        indices(w, whole.cols, self.col, start, depth)
        indices(w, whole.rows, self.row, start, depth)
        place = {
            self.row: f"{self.origin[0]} + {block.row} + {self.e} / 2 * {self.apart}",
            self.col: f"{self.origin[1]} + {block.col} + {self.j} * 8 + {self.e} % 2",
        }
        for name, text in place.items():
            if used(name, w.lines[start:]):
                w.lines.insert(start, "  " * depth + f"const {w.index} {name} = {text};")
            w.names.free(name)

    def _loaded(self, load: Load) -> str | None:
        """An element that came in a tile, or one that is read only where the tile lies inside the result."""
        pair = self.tiles.get(load)
        if pair is not None:
            kind = self.whole.job.buffers[load.buffer].dtype
            word = pair.format(j=self.j, h=f"{self.e} / 2")
            return f"lf_{kind}_value((unsigned short)({self.e} % 2 ? {word} >> 16 : {word}))"
        w = self.w
        w.hook = None
        text = w.load(load)
        w.hook = self._loaded
        return f"({self.inside} ? {text} : {self._nothing(load)})" if self.inside else text

    def _inside(self, *sides: str) -> str:
        """The condition that an element is one of the result, of those sides where tiles may go past it; or empty."""
        tests = []
        for side in sides:
            axis, name = (self.whole.rows, self.row) if side == "rows" else (self.whole.cols, self.col)
            count = self.whole.job.target.number(axis.extent)
            if count is None or count % self.extents[side]:
                tests.append(f"{name} < {self.w.poly(axis.extent)}")
        return " && ".join(tests)

    def _nothing(self, load: Load) -> str:
        return "false" if load.dtype.kind == "bool" else f"({c_type(load.dtype)})0"

    def leaf(self, leaf: Leaf, side: str) -> str:
        """The text of a value that is kept."""
        at = self.at
        assert at is not None
        place = (
            f"{at.row} + {self.e} / 2 * {self.apart}" if side == "rows" else f"{at.col} + {self.j} * 8 + {self.e} % 2"
        )
        return f"{self.kept[leaf.name]}[{place}]"

    def _absorb(self, stmt: Store) -> None:
        """A value into the state of a fold over the rows or the columns."""
        w = self.w
        acc = self.riding(stmt.buffer)
        state = self.states[acc.id].format(j=self.j, e=self.e)
        value = w.expr(stmt.value)
        if stmt.at is not None:
            value = f"{state_type(acc.monoid, acc.dtype)}{{{value}, {self.position(stmt.at)}}}"
        test = self.folded()
        text = f"{state} = {w.combine(acc.monoid, acc.dtype, state, value)};"
        w.line(f"if ({test}) {text}" if test else text, stmt.span)

    def folded(self) -> str:
        """The condition that an element takes part in folds: states of what lies past the other side are not kept."""
        assert self.whole.ride is not None
        return self._inside(self.whole.ride.along)

    def riding(self, name: str) -> Acc:
        """An accumulator of the fold round the products."""
        assert self.whole.ride is not None
        return next(a for a in self.whole.ride.loop.accs if a.id == name)


def indices(w: Writer, axis: Axis, position: str, start: int, depth: int) -> None:
    """Loop indices of an axis from a position on it, where the lines from `start` on use them: put before those."""
    counts = [w.poly(count) for _, _, count in axis.indices]
    whole = position
    found: list[str] = []
    if len(counts) > 1:
        whole = w.names.fresh("position")
    for (name, low, _), text in zip(axis.indices, digits(whole, counts), strict=True):
        low_ = w.poly(low)
        found.append(f"const {w.index} {w.names(name)} = {text if low_ == '0' else f'{low_} + {text}'};")
    kept = [t for t in found if used(t.split(" = ")[0].split()[-1], w.lines[start:])]
    if kept and len(counts) > 1:
        kept.insert(0, f"const {w.index} {whole} = {position};")
    w.lines[start:start] = ["  " * depth + t for t in kept]
    if len(counts) > 1 and not kept:  # else another axis may be taken apart in the same scope
        w.names.free(whole)
