"""What emission gives: the text of kernels, and how they are launched. Pure data, no driver needed to make or print it.

A `Code` is one program for one signature. Memory is named: the program's own buffers by their ids, and scratch. Whatever
depends on sizes is a `Poly` over the names in `Code.sizes` (none where all sizes are known), and inside a `Repeat` also
over its index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loopfuse.diag import Span
from loopfuse.dtypes import DType
from loopfuse.sizes import ONE, ZERO, Poly


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument: the address of a memory (a buffer of the program, a scratch, or `FAULTS`)."""

    memory: str


@dataclass(frozen=True, slots=True)
class Number:
    """An argument: an integer that depends on sizes, passed as `int` (bits 32) or `long long` (64)."""

    value: Poly
    bits: int = 64


@dataclass(frozen=True, slots=True)
class Param:
    """An argument: a scalar param of the program by its buffer's id, passed by value in its C type.

    f16 and bf16 are passed as the bits, `unsigned short`.
    """

    buffer: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class TileMap:
    """An argument by value: how tiles of a memory are copied to and from shared memory (`CUtensorMap`).

    The array starts at element `start` of the memory. `extents` of its axes, innermost first (2 to 5 of them); `steps`:
    elements between neighbours along each axis but the innermost, where they lie side by side. `box`: extents of a tile.
    `swizzle`: bytes of the pattern, 128, 64, 32 or 0. What a tile has outside the array is read as zero and not written,
    but for the last 16 bytes of a row: hardware writes all of them.
    """

    memory: str
    dtype: DType
    start: Poly
    extents: tuple[Poly, ...]
    steps: tuple[Poly, ...]
    box: tuple[int, ...]
    swizzle: int = 128


Argument = Pointer | Number | Param | TileMap
FAULTS = "faults"  # the memory of the fault counters, an unsigned 32-bit count a site


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a contraction kernel takes its products tile by tile, for a reader. Its counts and times are those of the sizes
    that it was planned for.

    `path`: the instructions, on operands of `dtype`; `matrix`: whether they are the matrix units'. A block takes a tile of
    `rows` x `columns` of each of `products` products, `crew` says with whom: its parts share a tile, or take `turns` with
    tiles of their own. `stages` of `depth` elements of the sum are in shared memory, and `slots` tiles of 64 x 64 of each
    warpgroup on their way in or out; a thread has `results` registers of sums. `split`: blocks that share the sum of a
    tile; `cluster`: blocks that hold a row; `resident`: blocks of a multiprocessor.

    There are `tiles` (or parts of them, which a second kernel adds), each `trips` stages long, `at_once` of which are computed
    at a time. `main` and `epilogue`: clocks of a tile with its products, and of what follows them and nothing hides (None:
    not reckoned). `seconds`: what the kernel should take, with `operations` of products and `bytes` of device memory.

    `comes` and `goes`: arrays that are copied as tiles; `reads` and `writes`: element by element; `once`: those of which
    a tile takes a value a row or a column; `folds`: what is reduced along the way. `nests`: tiles of each of several nests
    that one launch takes in turn, which together are `tiles`.
    """

    path: str
    dtype: str
    matrix: bool
    rows: int
    columns: int
    crew: str
    stages: int
    depth: int
    results: int
    tiles: int
    at_once: int
    trips: int
    seconds: float
    operations: int
    bytes: int
    products: int = 1
    turns: bool = False
    slots: int = 0
    split: int = 1
    cluster: int = 1
    resident: int = 1
    main: float | None = None
    epilogue: float | None = None
    comes: tuple[str, ...] = ()
    goes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    folds: tuple[str, ...] = ()
    nests: tuple[int, ...] = ()

    @property
    def waves(self) -> int:
        """How many tiles the busiest multiprocessor, or place on one, takes one after another."""
        return -(-self.tiles // max(1, self.at_once))

    @property
    def last(self) -> float:
        """How full the last wave is, from 0 to 1."""
        return (self.tiles - (self.waves - 1) * self.at_once) / max(1, self.at_once) if self.waves else 0.0


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A `__global__` function: `text` is its definition (with what functions it alone needs), without the prelude.

    `threads` a block, `shared` bytes of dynamic shared memory, `cluster` blocks a cluster. `kernel` is the IR kernel,
    `schedule` what made it, `why` one line for a reader: what is computed and how. `spans`: the source it comes from.
    `limit` is the most registers a thread may take for the plan to hold (0: whatever fits), `spills` how many bytes of
    them it may keep in memory: where that was measured to be faster than a smaller tile. `tiling`: of a contraction.
    """

    name: str
    text: str
    threads: int
    shared: int = 0
    cluster: int = 1
    kernel: str = ""
    schedule: str = ""
    why: str = ""
    limit: int = 0
    spills: int = 0
    spans: tuple[Span, ...] = ()
    tiling: Tiling | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel; `grid` in blocks (x, y, z), clusters counted as their blocks. No block: not launched."""

    kernel: str
    grid: tuple[Poly, Poly, Poly]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """All bytes of a memory are set to `byte`."""

    memory: str
    byte: int = 0


@dataclass(frozen=True, slots=True)
class Repeat:
    """The steps, in order, for each value of an index from `lo` to below `hi`."""

    index: str
    lo: Poly
    hi: Poly
    step: Poly
    body: tuple[Step, ...]


Step = Launch | Fill | Repeat


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory that a program needs beside inputs and outputs: a temporary or scratch, in bytes.

    `zeroed` memory is zero before the first call; kernels leave it zero again. Other memory has no content at the start.
    """

    id: str
    bytes: Poly
    zeroed: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A subscript that is checked at run time: its counter, the array, and where it stands."""

    counter: int
    buffer: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tile of a kernel of the IR that has a choice: its name, and the name of the one that the model of its time takes.
    `digest` names what the kernel computes. `wanted`: the tile that a lock file asks for, "" for none; `why` it was not
    taken, and then `offered`, the names of those that there are, each way's best first."""

    kernel: str
    digest: str
    tile: str
    model: str
    wanted: str = ""
    why: str = ""
    offered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """A program's CUDA C and its launches.

    `prelude` comes before each kernel's text in its own translation unit. `inputs`, `params` and `outputs` are buffer
    ids in the program's order (frozen arrays are inputs). `sizes` are the names that are settled at each call.
    `aligned`: buffers whose address must be a multiple of 16 bytes. `contract`: multiply-add contraction is allowed.
    `refusals` says of each IR kernel why a faster schedule did not take it, `chosen` which tile it has of several.
    """

    name: str
    prelude: str
    kernels: tuple[KernelCode, ...]
    steps: tuple[Step, ...]
    memory: tuple[Memory, ...]
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    aligned: frozenset[str] = frozenset()
    faults: tuple[Fault, ...] = ()
    contract: bool = True
    refusals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chosen: tuple[Chosen, ...] = ()

    def source(self, kernel: KernelCode) -> str:
        """The whole translation unit of a kernel."""
        return f"{self.prelude}\n{kernel.text}"

    def launches(self) -> Iterator[Launch]:
        """The launches in order, those of a `Repeat` once."""
        pending = list(reversed(self.steps))
        while pending:
            step = pending.pop()
            if isinstance(step, Repeat):
                pending.extend(reversed(step.body))
            elif isinstance(step, Launch):
                yield step


def grid(x: Poly | int, y: Poly | int = ONE, z: Poly | int = ONE) -> tuple[Poly, Poly, Poly]:
    """The three extents of a grid."""
    return Poly.of(x), Poly.of(y), Poly.of(z)


def ceil_div(value: Poly, by: int) -> Poly:
    """`value / by`, rounded up."""
    return (value + (by - 1)) // by if by != 1 else value


__all__ = [
    "FAULTS", "ONE", "ZERO", "Argument", "Chosen", "Code", "Fault", "Fill", "KernelCode", "Launch", "Memory", "Number", "Param",
    "Pointer", "Repeat", "Step", "TileMap", "Tiling", "ceil_div", "grid",
]  # fmt: skip
