"""How many threads share a row, and what each keeps of it in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd

from loopfuse.emit.rows_shape import Run, Shape, Stream, multiple
from loopfuse.sizes import Poly

WARP = 32
TOGETHER = 128  # threads of a block that takes several rows
MOST_VECTORS = 4  # vectors of a stream that a thread loads at once, where more threads can share the row
STREAM_VECTORS_MANY = 2  # the same where there are more than two operands
STREAM_THREADS = 256  # threads of a block that reads a long row from memory
WARP_WORDS = 24  # 32-bit words of a row that a thread of a warp keeps; above, several warps share the row
BLOCK_WORDS = 64  # the same for a thread of a block
MOST_BLOCK = 256  # threads of a block, while more blocks can share the row
LARGEST_BLOCK = 1024
PORTABLE_CLUSTER = 8
MOST_ELEMENTS = 64  # of a row that a thread goes through without a loop
FEW_ELEMENTS = 16  # a thread, where there are few rows: more are shared with another block
EXTRA_REGISTERS = 30  # beside the row: addresses, accumulators, an element in the making
LANES_TARGET = 8  # threads side by side on a row, for accesses of whole cache lines


@dataclass(eq=False)
class Fit:
    """`threads` of each of `blocks` share a row; a block of `size` threads takes `together` rows.

    `width`: elements of a vector along each run; `vectors`: how many of them a thread takes.
    """

    threads: int
    blocks: int
    size: int
    together: int
    width: dict[Run, int]
    vectors: dict[Run, int] = field(default_factory=dict)
    words: int = 0

    @property
    def sharing(self) -> int:
        """Threads that share a row."""
        return self.threads * self.blocks


def widths(shape: Shape) -> dict[Run, int]:
    """For each run the elements of a vector: as many as the streams along it allow."""
    return {run: _width(shape, run) for run in shape.runs}


def _width(shape: Shape, run: Run) -> int:
    streams = [s for s in shape.of(run) if s.row or s.stored >= 0] or shape.of(run)
    width = 16 // max((s.buffer.dtype.itemsize for s in streams), default=4)
    best: dict[str, int] = {}  # what the best aligned access to a buffer allows; the others come in pieces
    for s in streams:
        best[s.buffer.id] = max(best.get(s.buffer.id, 1), max(1, s.align // s.buffer.dtype.itemsize))
    width = min([width, *best.values()])
    lengths = [run.length, *(s.span for s in shape.of(run))]
    return gcd(width, *(multiple(shape, p) for p in lengths))


def fits(shape: Shape, lengths: dict[Run, int], kept: Sequence[int] = ()) -> Iterator[Fit]:
    """Ways to keep a row in registers, from few threads a row to many.

    A value of each element stays from the loops with the numbers `kept` on.
    """
    width = widths(shape)
    rows = shape.target.number(shape.rows)
    device = shape.job.target.device
    for threads, blocks in _ladder(device.cluster):
        found = Fit(threads, blocks, max(threads, TOGETHER), max(1, TOGETHER // threads), width)
        if threads > WARP:
            found.size, found.together = threads, 1
        elif rows is not None and rows < device.units * found.together * 2:  # few rows: more multiprocessors
            found.size = max(WARP, threads)
            found.together = found.size // threads
        for run, length in lengths.items():
            found.vectors[run] = -(-length // (found.sharing * width[run]))
        found.words = words(shape, found, kept)
        yield found


def _ladder(cluster: int) -> Iterator[tuple[int, int]]:
    threads = 1
    while threads <= MOST_BLOCK:
        yield threads, 1
        threads *= 2
    if cluster < 2:
        yield LARGEST_BLOCK, 1
    blocks = 2
    while blocks <= cluster:
        if blocks == 2 * PORTABLE_CLUSTER:
            yield LARGEST_BLOCK, PORTABLE_CLUSTER
        yield MOST_BLOCK, blocks
        blocks *= 2


def choose(shape: Shape, lengths: dict[Run, int], kept: Sequence[int] = ()) -> Fit | None:
    """The first way that fits, with enough vectors at once and enough threads side by side."""
    longest = max(lengths, key=lambda run: lengths[run])
    budget = shape.job.budget - EXTRA_REGISTERS
    rows = shape.target.number(shape.rows)
    units = shape.job.target.device.units
    for fit in fits(shape, lengths, kept):
        vectors, width = fit.vectors[longest], fit.width[longest]
        limit = WARP_WORDS if fit.threads <= WARP else BLOCK_WORDS
        if fit.size > MOST_BLOCK:
            limit = min(limit, 64 - EXTRA_REGISTERS)
        if fit.words > min(limit, budget) or vectors * width > MOST_ELEMENTS:
            continue
        if fit.threads < LANES_TARGET and vectors > 1:
            continue
        if fit.threads < WARP and vectors > MOST_VECTORS:
            continue
        few = rows is not None and rows * fit.blocks < units and fit.threads >= WARP
        worth = 2 if fit.threads < MOST_BLOCK else FEW_ELEMENTS
        if few and vectors * width >= worth and vectors > 1:
            continue
        return fit
    return None


def streaming(shape: Shape) -> Fit:
    """How many threads share a row that is read from memory."""
    width = widths(shape)
    rows, device = about(shape, shape.rows), shape.job.target.device
    longest = max(shape.runs, key=lambda run: about(shape, run.length))
    vectors = about(shape, longest.length) // width[longest]
    threads = WARP
    while threads < STREAM_THREADS and threads * MOST_VECTORS * 2 <= vectors:
        threads *= 2
    blocks, least = 1, MOST_VECTORS * max(1, 2 * WARP // threads)  # vectors of a thread that more blocks leave
    while blocks * 2 <= device.cluster and rows * blocks < device.units and threads * blocks * 2 * least <= vectors:
        blocks *= 2
    if blocks > 1:
        threads = max(threads, 2 * WARP)
    together = TOGETHER // threads if threads <= WARP and blocks == 1 else 1
    return Fit(threads, blocks, threads * together, together, width)


def words(shape: Shape, fit: Fit, kept: Sequence[int]) -> int:
    """The most 32-bit words of a row that a thread holds at once: streams from where they are loaded to their last use."""
    most = 0
    main = max(fit.vectors[run] * fit.width[run] for run in fit.vectors)
    for line in shape.lines.values():
        held = 0.0
        for s in shape.streams.values():
            until = max(s.last, s.stored)
            since = s.stored if s.stored >= 0 else 0 if s.row else line.number
            mine = since <= line.number <= until and (s.row or s.first <= line.number)
            held += _words(s, fit) * (1.0 if s.row or s.stored >= 0 else 0.5) if mine else 0.0
        before = sum(home < line.number for home in kept)
        most = max(most, int(held) + before * main, (before + kept.count(line.number)) * main)
    return most


def _words(s: Stream, fit: Fit) -> float:
    if s.stored >= 0 and s.last < 0:  # written at once
        return 0.0
    return fit.vectors[s.run] * max(1.0, fit.width[s.run] * s.buffer.dtype.itemsize / 4)


def known_lengths(shape: Shape) -> dict[Run, int] | None:
    """The length of each run, where all are numbers."""
    found = {run: shape.target.number(run.length) for run in shape.runs}
    if any(n is None for n in found.values()):
        return None
    return {run: n for run, n in found.items() if n is not None}


def about(shape: Shape, poly: Poly) -> int:
    """About how large a polynomial is, with stand-ins for what is not known."""
    return int(max(0, shape.job.ask.sketch.value(shape.target.poly(poly))))
