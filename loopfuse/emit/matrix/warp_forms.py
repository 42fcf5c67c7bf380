"""How a kernel of warp products is laid out: its tile and warps, how operands come, where a thread copies to and from.

A stage holds 128 bytes of the sum of every row of a tile, in one of two arrangements. `Lies` "k": rows of 128 bytes along
the sum. "mn" (16-bit types, which `ldmatrix` transposes, and doubles, which are read one by one): panels of 128 bytes along
the result, a row for each element of the sum. "turned": an operand that does not lie along the sum is stored as "k" all the
same, element by element. The 16-byte chunks of a row stand in the order of `chunk ^ row % 8`, so that neither the copies nor
the reads of eight rows meet in a bank. A read of doubles takes two chunks of each of four rows: for them the bits of `row % 8`
are turned by one, so that four rows in sequence differ by pairs of chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from loopfuse.dtypes import BF16, F16, F32, F64, I8, DType
from loopfuse.emit.base import Declined, Job
from loopfuse.emit.matrix.forms import untaken
from loopfuse.emit.matrix.shape import Contraction, Side
from loopfuse.emit.matrix.threads_form import JOIN, LEAST_STEPS, PARTS
from loopfuse.emit.matrix.tiling import clock, tiles_of, trips_of
from loopfuse.emit.writer import HALVES
from loopfuse.ir import Affine, Load
from loopfuse.sizes import ONE
from loopfuse.walking import subexprs

ROW = 128  # bytes of a row in shared memory
CHUNK = 16
STEPS = 4  # instructions along the sum that a stage holds: 32 bytes each
MOST_STAGES = 4
MOST_EXACT = 2**17 - 1  # products of i8 whose sum an i32 holds
MOST_RESULTS = 128  # registers of results of a thread
SPILLED = (255, 190)  # registers to plan for below which half as many results are taken, and half of those
RATE = 80.0  # results and 32 bytes of their sums that a multiprocessor takes a clock
DOUBLE_RATE = 16.0  # the same of f64, before sm_90; twice that since
ENDING = 5000.0  # clocks for the rest of a tile
TYPES: dict[str, DType] = {"bf16": BF16, "f16": F16, "tf32": F32, "i8": I8, "f64": F64}
Lies = Literal["k", "mn", "turned"]


@dataclass(frozen=True, slots=True)
class Form:
    """A tile of `rows` x `columns` of each product, by `down` x `across` warps; `blocks` of them share a multiprocessor.
    Sums are cut into `parts`, each of which is a tile of its own."""

    rows: int
    columns: int
    down: int
    across: int
    blocks: int
    rate: float
    stages: int = 0
    words: int = 1  # registers of a result
    parts: int = 1

    @property
    def name(self) -> str:
        """As lock files have it."""
        cut = f" parts={self.parts}" * (self.parts > 1)
        return f"mma.sync {self.rows}x{self.columns} warps={self.down}x{self.across}{cut}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.down * self.across

    @property
    def high(self) -> int:
        """Rows of a warp."""
        return self.rows // self.down

    @property
    def wide(self) -> int:
        """Columns of a warp."""
        return self.columns // self.across

    def results(self, each: int) -> int:
        """Registers of results of a thread."""
        return self.high * self.wide // 32 * each * self.words


# By how much a warp reads from shared memory: 64 x 64 results take half the reads of 32 x 32.
FORMS = (
    Form(128, 256, 2, 4, 1, 1.0), Form(128, 128, 2, 2, 2, 0.95), Form(128, 128, 2, 4, 1, 0.8), Form(128, 64, 2, 2, 2, 0.75),
    Form(64, 128, 2, 2, 2, 0.75), Form(64, 64, 2, 2, 2, 0.55),
)  # fmt: skip
# The same for f64, whose products take so long that reads and barriers seldom show: not measured.
DOUBLES = (
    Form(128, 128, 2, 4, 1, 0.95, words=2), Form(128, 64, 2, 2, 2, 0.95, words=2), Form(128, 64, 4, 2, 1, 0.9, words=2),
    Form(64, 64, 2, 2, 2, 0.9, words=2), Form(64, 32, 2, 2, 2, 0.7, words=2), Form(32, 32, 2, 2, 2, 0.5, words=2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk that a thread copies: rows and elements of the sum past its first chunk's, and bytes in shared memory past
    it: `more` to be added, `turn` to be XORed."""

    row: int
    depth: int
    more: int
    turn: int


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a stage. `width`: bytes that are copied at once without registers, 0 where elements pass through."""

    side: Side
    left: bool
    lies: Lies
    width: int
    rows: int
    offset: int
    item: int  # bytes of an element in shared memory

    @property
    def bytes(self) -> int:
        """Of its tile."""
        return self.rows * ROW

    @property
    def each(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.item

    @property
    def depth(self) -> int:
        """Elements of the sum in a stage."""
        return ROW // self.item

    def order(self, row: str) -> str:
        """What the chunks of a row are XORed with, in C."""
        return f"({row} * 2 % 8 + {row} / 4 % 2)" if self.item == 8 else f"{row} % 8"

    @property
    def flat(self) -> bool:
        """Whether an operand is copied as it lies in memory, chunk by chunk or in parts of a chunk."""
        return self.width > 0 and self.lies != "turned" and not (self.lies == "k" and self.side.depth[-1] != ONE)

    def first(self, thread: str, threads: int) -> tuple[str, str, str, str]:
        """A thread's first chunk, in C: its row in the tile, its element of the sum, its place in bytes without the order
        of chunks, and that order."""
        if self.lies == "k":
            row, chunk = f"{thread} / 8", f"{thread} % 8"
            return row, f"{thread} % 8 * {self.each}", f"{thread} / 8 * {ROW}", f"(({chunk}) ^ {self.order(row)}) << 4"
        if self.lies == "mn":
            deep, chunk = f"{thread} / 8", f"{thread} % 8"
            turn = f"(({chunk}) ^ {self.order(deep)}) << 4"
            if threads <= 8 * self.depth:
                return f"{thread} % 8 * {self.each}", deep, f"{thread} / 8 * {ROW}", turn
            row = f"{thread} / {8 * self.depth} * {self.depth} + {thread} % 8 * {self.each}"
            return row, f"{deep} % {self.depth}", f"{thread} / 8 * {ROW}", turn
        if self.rows >= threads:
            return thread, "0", f"{thread} * {ROW}", f"{self.order(thread)} << 4"
        row, chunk = f"{thread} % {self.rows}", f"{thread} / {self.rows}"
        turn = f"(({chunk}) ^ {self.order(thread)}) << 4"
        return row, f"{chunk} * {self.each}", f"{thread} % {self.rows} * {ROW}", turn

    def pieces(self, threads: int) -> Iterator[Piece]:
        """What a thread copies of a stage."""
        for i in range(self.rows * 8 // threads):
            if self.lies == "k":
                rows = i * threads // 8
                yield Piece(rows, 0, rows * ROW, 0)
            elif self.lies == "mn":
                at = i * threads // 8
                panel, depth = divmod(at, self.depth)  # a panel is as wide as a stage is deep
                yield Piece(panel * self.depth, depth, at * ROW, 0)
            else:
                chunk, row = divmod(i * threads, self.rows)
                yield Piece(row, chunk * self.each, row * ROW, chunk << 4)


def kind(whole: Contraction) -> str | Declined:
    """The type that the plan multiplies, as instructions call it."""
    words = whole.job.plan.path.split()
    found = next((name for name in TYPES if name in words), None)
    if found is None or "fma" in words:
        return _doubles(whole) or untaken(whole)
    longest = whole.job.target.number(prod((a.extent for a in whole.depth), start=ONE))
    exact = longest is not None and longest <= MOST_EXACT
    for unit in whole.units:
        dtype = unit.acc.dtype
        if found == "i8" and not (dtype.is_int and (dtype.bits == 32 or (dtype.bits == 64 and exact))):
            return Declined(f"the matrix units keep sums of i8 in i32, which may not hold these of {dtype}",
                            "a sum in i32 would lift it")  # fmt: skip
        if found not in ("i8", "f64") and not (dtype.is_float and dtype.bits <= 32):
            return Declined(
                f"the matrix units keep sums of {found} in f32, not in {dtype}", "a sum in f32 would lift it"
            )
    return found


def _doubles(whole: Contraction) -> Declined | None:
    """Why the plan keeps products of f64 on the ordinary units; None for other types."""
    job = whole.job
    if any(s.dtype != F64 for u in whole.units for s in (u.a, u.b)):
        return None
    if job.target.numerics == "strict":
        return Declined("strict numerics round products of f64 before they are added, and the matrix units do not",
                        "`numerics default` would lift it")  # fmt: skip
    return Declined("the matrix units of the device are no faster in f64 than the ordinary ones")


def tall(arch: str) -> bool:
    """Whether one instruction multiplies 16 rows of doubles (m16n8k4, sm_90 and later) or 8 (m8n8k4)."""
    number = arch.removeprefix("sm_").rstrip("af")
    return number.isdigit() and int(number) >= 90


def operands(whole: Contraction, form: Form, name: str) -> tuple[list[Operand], list[tuple[int, int]]] | Declined:
    """The distinct operands of a stage, and for each product which two it takes."""
    ring: list[Operand] = []
    pairs: list[tuple[int, int]] = []
    dtype = TYPES[name]
    for unit in whole.units:
        pair: list[int] = []
        for side, left in ((unit.a, True), (unit.b, False)):
            at = next((k for k, o in enumerate(ring) if o.side == side and o.left == left), None)
            if at is None:
                said = any(f"rounded to {name}" in text for text in whole.job.plan.rounding)
                rounds = said and whole.job.target.numerics == "fast"  # the bound of results has no room for it else
                if side.dtype != dtype and not (side.value is not None and side.dtype == F32 and rounds):
                    return Declined(f"an operand is of {side.dtype}, and may not be rounded to {name}")
                how, width = lies(whole, side, dtype, left)
                offset = ring[-1].offset + ring[-1].bytes if ring else 0
                at = len(ring)
                rows = form.rows if left else form.columns
                ring.append(Operand(side, left, how, width, rows, offset, dtype.itemsize))
            pair.append(at)
        pairs.append((pair[0], pair[1]))
    return ring, pairs


def lies(whole: Contraction, side: Side, dtype: DType, left: bool) -> tuple[Lies, int]:
    """How an operand is stored, and how many of its bytes are copied at once."""
    across: Lies = "mn" if dtype.itemsize in (2, 8) else "turned"
    axis = whole.rows if left else whole.cols
    if side.value is not None:
        load = next(e for e in subexprs(side.value) if isinstance(e, Load) and e.buffer == side.buffer.id)
        last = load.subs[-1] if load.subs else None
        names = last.poly.names if isinstance(last, Affine) else frozenset()
        return (across if names & set(axis.names) else "k"), 0
    item = dtype.itemsize
    if side.depth[-1] == ONE:
        apart = (side.start, side.row, *side.depth[:-1], *side.batch, whole.depth[-1].extent)
    elif side.row == ONE and across == "mn":
        apart = (side.start, *side.depth, *side.batch, axis.extent)
    else:
        return ("turned" if side.row == ONE else "k"), (item if item >= 4 else 0)
    step = [whole.divisor(p) * item for p in apart]
    width = next((w for w in (16, 8, 4) if w >= item and all(s % w == 0 for s in step)), 0)
    return ("k" if side.depth[-1] == ONE else "mn"), width


def turns(whole: Contraction, form: Form) -> int:
    """How many tiles the busiest multiprocessor has, by stand-ins for sizes that are not known."""
    return -(-tiles_of(whole, form.rows, form.columns) * form.parts // whole.job.target.device.units)


def rate(whole: Contraction, name: str) -> float:
    """`RATE` of a type on the device."""
    if name != "f64":
        return RATE
    return DOUBLE_RATE * (2 if tall(whole.job.target.device.arch) else 1)


def hertz(whole: Contraction, name: str) -> float:
    """Clocks a second by which `clocks` counts."""
    return clock(whole, TYPES[name], 64 * 64 * STEPS / rate(whole, name), warps=True)


def trips(whole: Contraction, form: Form, name: str) -> int:
    """How many stages a tile takes, by the same stand-ins."""
    return -(-trips_of(whole, ROW // TYPES[name].itemsize) // form.parts)


def main_clocks(whole: Contraction, form: Form, name: str) -> float:
    """About how long the products of a tile take a multiprocessor."""
    alone = 0.75 if turns(whole, form) < form.blocks else 1.0  # four warps by themselves wait more
    work = form.rows * form.columns * len(whole.units) * trips(whole, form, name) * STEPS
    return work / (rate(whole, name) * form.rate * alone)


def clocks(whole: Contraction, form: Form, name: str) -> float:
    """About how long the busiest multiprocessor takes."""
    count = turns(whole, form)
    found = count * main_clocks(whole, form, name) + ENDING * -(-count // form.blocks)
    if form.parts == 1:
        return found
    results = tiles_of(whole, 1, 1) * sum(u.acc.dtype.itemsize for u in whole.units)
    return found + hertz(whole, name) * (JOIN + 2 * form.parts * results / whole.job.target.device.bandwidth)


def cuts(whole: Contraction, form: Form, name: str) -> list[int]:
    """Into how many parts sums may be cut: none where something rides along, or where tiles are enough."""
    if whole.ride is not None or any(u.acc.dtype in HALVES for u in whole.units):
        return [1]
    most = 2 * whole.job.target.device.units // max(1, tiles_of(whole, form.rows, form.columns))
    steps = trips(whole, form, name)
    return [p for p in PARTS if p == 1 or (p <= most and steps >= p * LEAST_STEPS)]


def most_results(job: Job) -> int:
    """Registers of results that a thread may have: fewer each time that more have spilled."""
    return MOST_RESULTS >> sum(job.budget < enough for enough in SPILLED)


def choices(whole: Contraction, name: str) -> list[Form]:
    """Tiles, the best first, by how long the busiest multiprocessor takes."""
    each = len(whole.units)
    most = most_results(whole.job)
    found: list[tuple[float, Form]] = []
    for form in DOUBLES if name == "f64" else FORMS:
        if form.results(each) > most:
            continue
        for parts in cuts(whole, form, name):
            cut = replace(form, parts=parts)
            found.append((clocks(whole, cut, name), cut))
    return [form for _, form in sorted(found, key=lambda x: x[0])]
