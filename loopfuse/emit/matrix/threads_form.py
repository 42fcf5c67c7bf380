"""How contractions on the ordinary units are laid out: who has which results, and how operands lie in shared memory.

A block of 256 threads has a tile of each product, a warp a part of it, and a thread of the warp the elements of its rows
`g + 8 h` and columns `2 q + 8 j` and the next one, where g (0 to 7) and q (0 to 3) come from its lane. Operands lie in
shared memory with all rows (or columns) of one step of the sum side by side, in an order in which what a thread needs
comes by vectors of 16 bytes. Of g and q the lanes are chosen so that neighbours ask for the same vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from loopfuse.dtypes import DType
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.writer import c_type

THREADS = 256
VECTOR = 16  # bytes of the widest access
BANKS = 128  # bytes that the banks of shared memory have side by side
BESIDE = 60  # registers of a thread beside its results and operands: addresses, and what is on its way
MANY = 84  # registers of results and operands up to which two blocks share a multiprocessor
MOST_DEPTH = 16
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # into which sums may be cut
LEAST_STEPS = 8  # of a part
JOIN = 3e-6  # seconds that a second kernel takes beside its traffic
ALONE = 0.8  # of the rate, for a block that has a multiprocessor to itself


@dataclass(frozen=True, slots=True)
class Form:
    """`groups` rows and `pairs` pairs of columns a thread, `down` x `across` warps, `depth` elements of the sum a step."""

    groups: int
    pairs: int
    down: int
    across: int
    depth: int = MOST_DEPTH

    def name(self, parts: int) -> str:
        """As lock files have it, for sums cut into so many parts."""
        return f"fma {self.rows}x{self.columns}x{self.depth}" + f" parts={parts}" * (parts > 1)

    @property
    def rows(self) -> int:
        """Of the tile."""
        return 8 * self.groups * self.down

    @property
    def columns(self) -> int:
        """Of the tile."""
        return 8 * self.pairs * self.across

    @property
    def results(self) -> int:
        """Of a thread, for each product."""
        return self.groups * self.pairs * 2

    def held(self, each: int, bytes_: int, wide: int) -> int:
        """Registers of a thread for the results of `each` products, whose sums have `wide` bytes, and for the operands of
        one multiplication, which have `bytes_`."""
        return (self.results * each * wide + (self.groups + 2 * self.pairs * each) * bytes_) // 4


# By the results of a thread. Rates: of the peak, as counted from the instructions of the loop.
FORMS = (
    (Form(8, 4, 2, 4), 0.88), (Form(8, 2, 2, 4), 0.8), (Form(4, 4, 2, 4), 0.8), (Form(4, 2, 2, 4), 0.66),
    (Form(4, 2, 4, 2), 0.66), (Form(2, 4, 1, 8), 0.62), (Form(2, 2, 2, 4), 0.45), (Form(2, 2, 1, 8), 0.45),
    (Form(2, 2, 4, 2), 0.45), (Form(4, 1, 8, 1), 0.4), (Form(2, 1, 2, 4), 0.3),
)  # fmt: skip


def forms(whole: Contraction, bytes_: int, wide: int) -> Iterator[tuple[Form, int, float]]:
    """Tiles, into how many parts sums are cut, and the seconds that all take, the best first; `bytes_` of a value as it is
    kept, `wide` of a sum."""
    each, device = len(whole.units), whole.job.target.device
    rows, columns = whole.number(whole.rows.extent), whole.number(whole.cols.extent)
    batch = prod(whole.number(a.extent) for a in whole.batch)
    depth = MOST_DEPTH if bytes_ == 4 else MOST_DEPTH // 2
    steps = -(-whole.number(whole.depth[-1].extent) // depth) * prod(whole.number(a.extent) for a in whole.depth[:-1])
    adds = (device.fp64 if bytes_ == 8 else device.fp32) / 2 / device.units  # a second, by a multiprocessor
    found: list[tuple[float, int, int, Form]] = []
    for number, (form, rate) in enumerate(FORMS):
        held = form.held(each, bytes_, wide)
        if held + BESIDE > whole.job.budget:
            continue
        tiles = batch * -(-rows // form.rows) * -(-columns // form.columns)
        for parts in PARTS if whole.ride is None else PARTS[:1]:
            if parts > 1 and (steps < parts * LEAST_STEPS or tiles * parts > 2 * device.units):
                break
            waves = tiles * parts / device.units
            blocks = waves if waves > 16 else max(1, -(-tiles * parts // device.units))
            alone = blocks == 1 or held > MANY  # so that nothing hides the barriers
            work = form.rows * form.columns * each * -(-steps // parts) * depth * blocks
            seconds = work / adds / (rate * (ALONE if alone else 1.0))
            if parts > 1:
                seconds += JOIN + 2 * parts * batch * rows * columns * each * wide / device.bandwidth
            found.append((seconds, number, parts, form))
    for seconds, _, parts, form in sorted(found, key=lambda f: f[:3]):
        yield Form(form.groups, form.pairs, form.down, form.across, depth), parts, seconds


@dataclass(frozen=True, slots=True)
class Lay:
    """How an operand of `extent` rows (`left`) or columns lies: vectors of `vector` values of `size` bytes."""

    left: bool
    vector: int
    size: int
    extent: int

    @property
    def pad(self) -> int:
        """Values left out after each 128 bytes, so that those who write at once write to different banks."""
        return VECTOR // self.size

    @property
    def group(self) -> int:
        """Values between such gaps."""
        return BANKS // self.size

    @property
    def pitch(self) -> int:
        """Values from one step of the sum to the next: an odd number of vectors."""
        found = self.extent + -(-self.extent // self.group) * self.pad
        return found + (self.pad if found // self.pad % 2 == 0 else 0)

    @property
    def block(self) -> int:
        """Rows or columns that are put in order among themselves."""
        return 8 * self.vector if self.left else 4 * self.vector

    def order(self, at: str) -> str:
        """Where a row or column comes in the order."""
        n = self.vector
        if self.left:
            return f"{at} / {8 * n} * {8 * n} + {at} % 8 * {n} + {at} / 8 % {n}"
        return f"{at} / 16 * 16 + {at} % 8 / 2 * 4 + {at} / 8 % 2 * 2 + {at} % 2" if n == 4 else at

    def whose(self, at: str) -> str:
        """Which row or column comes there in the order."""
        n = self.vector
        if self.left:
            return f"{at} / {8 * n} * {8 * n} + {at} % {n} * 8 + {at} / {n} % 8"
        return f"{at} / 16 * 16 + {at} % 4 / 2 * 8 + {at} / 4 % 4 * 2 + {at} % 2" if n == 4 else at

    def next(self, q: str) -> str:
        """How far behind a row or column the q-th one after it lies, where up to 16 that are aligned are meant."""
        if self.left:
            return f"{q} % 8 * {self.vector} + {q} / 8"
        return f"{q} / 8 * 2 + {q} % 8 / 2 * 4 + {q} % 2" if self.vector == 4 else q

    def place(self, order: str) -> str:
        """The place of what comes there in the order."""
        return f"{order} + ({order}) / {self.group} * {self.pad}"

    def number(self, order: int) -> int:
        """The same of a number."""
        return order + order // self.group * self.pad


def lay(form: Form, left: bool, size: int) -> Lay:
    """How an operand lies."""
    each = form.groups if left else 2 * form.pairs
    return Lay(left, min(VECTOR // size, each), size, form.rows if left else form.columns)


def kept(dtype: DType, acc: DType) -> tuple[str, int]:
    """The C type in which a value of an operand is kept, and its bytes: the sum's, or integers of 32 bits if they do."""
    if acc.is_float:
        return c_type(acc), acc.itemsize
    if dtype.bits == 64:
        return c_type(dtype), 8
    return ("unsigned int" if dtype.name == "u32" else "int"), 4


def summed(acc: DType) -> tuple[str, int]:
    """The C type of a sum while it grows, and its bytes."""
    if acc.is_float or acc.bits >= 32:
        return c_type(acc), acc.itemsize
    return "int", 4
