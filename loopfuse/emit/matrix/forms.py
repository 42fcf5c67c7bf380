"""How a warpgroup kernel is laid out: its tile, what a stage of its ring holds, what its shared memory holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from loopfuse.dtypes import BF16, F16, F32, I8, DType
from loopfuse.emit.base import Declined
from loopfuse.emit.matrix.shape import Contraction, Side
from loopfuse.sizes import ONE, Poly

ROW = 128  # bytes of a row of a tile in shared memory: the width of the swizzle
PANEL = 8192  # bytes of 64 such rows
SLOT = 8192  # bytes of a tile of 64 rows on its way in or out
MOST_STAGES = 8
TYPES: dict[DType, str] = {BF16: "bf16", F16: "f16", F32: "tf32", I8: "i8"}
Major = Literal["k", "mn"]
How = Callable[[Contraction, Side, bool], "Major | Declined"]
EXACT = "`pragma tf32`, or `numerics fast`, would round their operands to tf32"


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of the ring: which side, how it lies, and where its tile is in a stage."""

    side: Side
    major: Major
    rows: int  # of the tile
    offset: int  # in a stage

    @property
    def bytes(self) -> int:
        """Of its tile."""
        return self.rows * ROW


@dataclass(frozen=True, slots=True)
class Form:
    """A tile of `rows` x `columns` of each product by `consumers` warpgroups, which take turns where `pingpong`.

    `blocks`: how many tiles of 64 rows a consumer has; `depth`: elements of the sum that a stage holds; `slots`: tiles of
    64 x 64 of a consumer on their way in or out. `split`: blocks of a cluster that share the sum of a tile; `makers`:
    warpgroups that bring the operands.
    """

    rows: int
    columns: int
    consumers: int
    pingpong: bool
    stages: int
    slots: int
    depth: int
    kind: str
    split: int = 1
    makers: int = 1

    @property
    def blocks(self) -> int:
        """Tiles of 64 rows that a consumer has."""
        return self.rows // 64 // (1 if self.pingpong else self.consumers)

    @property
    def threads(self) -> int:
        """Of a block: the warpgroups that bring operands, and the consumers."""
        return 128 * (self.makers + self.consumers)


def untaken(whole: Contraction) -> Declined:
    """Why the matrix units do not take products of such types."""
    sides = [s for u in whole.units for s in (u.a, u.b)]
    types = list(dict.fromkeys(s.dtype.name for s in sides))
    if types == ["f32"]:
        return Declined("products of f32 stay at f32", EXACT)
    made = next((s for s in sides if s.value is not None), None)
    if made is not None and len(types) > 1:
        return Declined(f"the operand over `{made.buffer.id}` is computed in {made.dtype.name}",
                        "a cast of it to the other one's type would lift it")  # fmt: skip
    return Declined(f"there are kernels for bf16, f16, i8 and tf32, and none for {' by '.join(types)}",
                    "operands of one of those types would lift it")  # fmt: skip


def major(whole: Contraction, side: Side, left: bool) -> Major | Declined:
    """Along what an operand lies side by side, or why its tiles cannot be copied or multiplied. Left ones of 32 bits may lie
    along the rows: they go through registers."""
    name = f"`{side.buffer.id}`"
    if side.value is not None:
        return Declined(f"the operand over {name} is computed on its way",
                        "a definition of its own for it, kept by `pragma materialize`, would lift it")  # fmt: skip
    item = side.buffer.dtype.itemsize
    apart = 16 // item
    if side.depth[-1] == ONE:
        found: Major = "k"
        others = (side.row, *side.depth[:-1], *side.batch)
    elif side.row == ONE:
        found = "mn"
        others = (*side.depth, *side.batch)
        if item != 2 and not (left and item == 4):
            return Declined(f"{name} lies along the result, which wgmma takes of 16-bit types only",
                            "its transpose would lift it")  # fmt: skip
    else:
        return Declined(f"{name} lies along neither the sum nor the result", "a copy in that order would lift it")
    if any(c < 0 for p in others for _, c in p.terms):
        return Declined(f"{name} is read backwards", "a copy in order would lift it")
    if any(whole.divisor(p) % apart for p in others):
        return Declined(f"the rows of {name} are not a multiple of 16 bytes apart", _padded(whole, side, apart))
    if whole.divisor(side.start) % apart:
        return Declined(f"{name} is read from an element on that is not at a multiple of 16 bytes",
                        f"a slice from a multiple of {apart} elements on would lift it")  # fmt: skip
    if 2 + len(side.depth) - 1 + len(side.batch) > 5:
        return Declined(f"{name} has more axes than a tile map")
    return found


def _padded(whole: Contraction, side: Side, apart: int) -> str:
    """What would set the rows of an array 16 bytes apart, or a multiple of that."""
    row = side.buffer.shape[-1]
    known = whole.job.target.number(row)
    if whole.divisor(row) % apart == 0:
        return "a contiguous copy of what is read would lift it"
    if known is not None:
        return f"they have {known} elements; rows padded to {-(-known // apart) * apart} would lift it"
    return f"`require {row} % {apart} == 0`, or an array with padded rows, would lift it"


def operands(whole: Contraction, rows: int, columns: int, computed: How | None = None,
             ) -> tuple[list[Operand], list[tuple[int, int]]] | Declined:  # fmt: skip
    """The distinct operands of a stage, and for each product which two it takes. `computed`: how those lie that are computed
    on their way, where the kernel does that."""
    found: dict[tuple[Side, bool], int] = {}
    ring: list[Operand] = []
    pairs: list[tuple[int, int]] = []
    wrong: list[Declined] = []
    for unit in whole.units:
        pair: list[int] = []
        for side, left in ((unit.a, True), (unit.b, False)):
            key = (side, left)
            if key not in found:
                how = (computed if computed and side.value is not None else major)(whole, side, left)
                if isinstance(how, Declined):
                    wrong += [how] * (how not in wrong)
                    continue
                found[key] = len(ring)
                offset = ring[-1].offset + ring[-1].bytes if ring else 0
                count = rows if left else columns
                if how == "mn":  # which comes by panels of 64
                    count = -(-count // 64) * 64
                ring.append(Operand(side, how, count, offset))
            pair.append(found[key])
        if not wrong:
            pairs.append((pair[0], pair[1]))
    return replace(wrong[0], others=tuple(wrong[1:])) if wrong else (ring, pairs)


def steps(whole: Contraction, form: Form) -> Poly:
    """How many stages a tile takes."""
    total = (whole.depth[-1].extent + (form.depth - 1)) // form.depth
    for axis in whole.depth[:-1]:
        total = total * axis.extent
    return total
