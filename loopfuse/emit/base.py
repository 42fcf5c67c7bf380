"""What an emitter of one schedule is given and gives: a job, and kernels with their launches, or why it declines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

from loopfuse.emit.code import KernelCode, Memory, Step
from loopfuse.emit.reach import Reach, reach
from loopfuse.emit.writer import Faults, Target, Writer
from loopfuse.ir import Buffer, Kernel
from loopfuse.schedule.base import Ask
from loopfuse.schedule.plan import Plan
from loopfuse.sizes import ONE

T = TypeVar("T")
MOST_NARROW = 2**31 - 2**21  # what an `int` may count up to, with room for a step of a whole grid past the end


@dataclass(frozen=True, slots=True)
class Emitted:
    """Kernels, the steps that launch them, and the scratch they need. `aligned`: buffers read or written in vectors of
    16 bytes from their start. `notes`: why the emitter did not write something faster. `tile`: the name of the tile, where
    there was a choice."""

    kernels: tuple[KernelCode, ...]
    steps: tuple[Step, ...]
    memory: tuple[Memory, ...] = ()
    aligned: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    tile: str = ""


@dataclass(frozen=True, slots=True)
class Declined:
    """Why an emitter does not take a kernel that its schedule accepted; `lift`: what would change that, a sentence.
    `others`: further reasons that hold at the same time."""

    why: str
    lift: str = ""
    others: tuple[Declined, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        """Each reason with what would lift it."""
        return tuple(f"{d.why}; {d.lift}" if d.lift else d.why for d in (self, *self.others))


@dataclass
class Tiles:
    """Which of its tiles a kernel gets: the one named `wanted`, or without a name the first that fits.

    `offered`: the names of those that there were, each path's best first by its model; `taken`: the last one tried.
    """

    wanted: str = ""
    offered: list[str] = field(default_factory=list)
    taken: str = ""

    def among(self, tiles: Iterable[T], name: Callable[[T], str]) -> Iterator[T]:
        """Those of a path's tiles that may be tried, in their order."""
        found = [(name(tile), tile) for tile in tiles]
        self.offered += [text for text, _ in found]
        for text, tile in found:
            if self.wanted in ("", text):
                self.taken = text
                yield tile


@dataclass
class Job:
    """A kernel to be written by the emitter of the plan's schedule.

    `ask` is what the schedule was asked (its sketch, which buffers stay on chip); `name` the stem of function names,
    unique in the program; `budget` the most registers a thread may take, less after a spill.
    """

    kernel: Kernel
    plan: Plan
    ask: Ask
    target: Target
    faults: Faults
    name: str
    budget: int = 255
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    tiles: Tiles = field(default_factory=Tiles)

    def writer(self) -> Writer:
        """A writer for one function."""
        return Writer(self.target, self.buffers, self.faults, self.wide)

    @cached_property
    def reach(self) -> Reach:
        """How far index arithmetic reaches."""
        return reach(self.target, self.kernel.body)

    @cached_property
    def wide(self) -> bool:
        """Whether indices need 64 bits: an array of the kernel has, or may have, too many elements for 31, or what is computed
        with indices may not fit."""
        named = self.ask.sketch.written | self.ask.sketch.read
        if any(too_many(self.target, self.buffers[b]) for b in named if b in self.buffers):
            return True
        return self.reach.values is None or self.reach.values > MOST_NARROW


def too_many(target: Target, buffer: Buffer) -> bool:
    """Whether an array may have more elements than an `int` counts, or an axis more; unknown sizes may be any."""
    count = target.number(prod(buffer.shape, start=ONE))
    return count is None or count > MOST_NARROW


Emitter = Callable[[Job], Emitted | Declined]
