"""Temporaries in one allocation: what is never needed at the same time may lie in the same place.

A memory lives from the first step that names it to the last. A step of the outermost level is one moment, so that what a
`Repeat` touches lives through all of it: its iterations may hand values on. What must stay zero between calls lives
always, and lies at the start, where one fill sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loopfuse.emit.code import FAULTS, Fill, Launch, Memory, Pointer, Repeat, Step, TileMap

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Interval:
    """A memory of `bytes` that is needed from step `first` to step `last`, both included."""

    id: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each memory lies: `offsets` in bytes into an allocation of `bytes`, whose first `zeroed` are zero."""

    offsets: dict[str, int]
    bytes: int
    zeroed: int


def arena(steps: Sequence[Step], memory: Iterable[Memory], sizes: Mapping[str, int], faults: int = 0) -> Arena:
    """Pack the memory of a program for known sizes, and `faults` bytes of fault counters. What no step names gets no
    place."""
    lives = lifetimes(steps)
    offsets: dict[str, int] = {}
    zeroed = 0
    always = [(m.id, int(m.bytes.value(sizes))) for m in memory if m.zeroed and m.id in lives and m.id != FAULTS]
    for id, count in [*([(FAULTS, faults)] if faults else []), *always]:
        offsets[id] = zeroed
        zeroed += aligned(count)
    others = [Interval(m.id, int(m.bytes.value(sizes)), *lives[m.id]) for m in memory
              if not m.zeroed and m.id in lives and m.id != FAULTS]  # fmt: skip
    packed, total = pack(others)
    offsets |= {id: zeroed + at for id, at in packed.items()}
    return Arena(offsets, zeroed + total, zeroed)


def lifetimes(steps: Sequence[Step]) -> dict[str, tuple[int, int]]:
    """The first and the last outermost step that names each memory."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(steps):
        for id in named(step):
            found[id] = (found.get(id, (number, number))[0], number)
    return found


def named(step: Step) -> set[str]:
    """The memories that a step names."""
    if isinstance(step, Repeat):
        return {id for inner in step.body for id in named(inner)}
    if isinstance(step, Fill):
        return {step.memory}
    assert isinstance(step, Launch)
    return {a.memory for a in step.arguments if isinstance(a, Pointer | TileMap)}


def pack(intervals: Iterable[Interval]) -> tuple[dict[str, int], int]:
    """Offsets such that what overlaps in time does not overlap in space, and the bytes of it all.

    The largest first, each into the smallest gap that holds it between those that live when it does.
    """
    placed: list[tuple[int, int, Interval]] = []
    for interval in sorted(intervals, key=lambda i: (-i.bytes, i.first, i.id)):
        size = aligned(interval.bytes)
        others = sorted((at, end) for at, end, o in placed if o.first <= interval.last and interval.first <= o.last)
        at = _best(others, size)
        placed.append((at, at + size, interval))
    return {i.id: at for at, _, i in placed}, max((end for _, end, _ in placed), default=0)


def _best(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that holds `size` bytes, or the end of all."""
    best: tuple[int, int] | None = None
    reached = 0
    for at, end in taken:
        gap = at - reached
        if gap >= size and (best is None or gap < best[0]):
            best = gap, reached
        reached = max(reached, end)
    return reached if best is None else best[1]


def aligned(count: int) -> int:
    """Rounded up, so that what follows begins on a boundary."""
    return -(-max(0, count) // ALIGNMENT) * ALIGNMENT
