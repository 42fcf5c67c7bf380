"""What one kernel does: operations, special functions, and the bytes that it must at least read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from loopfuse.analysis.env import Env
from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Access, Sketch, sketch
from loopfuse.analysis.summary import Work
from loopfuse.ir import Buffer, Kernel


@dataclass(frozen=True, slots=True)
class Counts:
    """A kernel in numbers. `loads` and `stores`: bytes of each device buffer, every element once; `live`: 32-bit
    values that a thread holds at once; `iterations`: of its innermost loops."""

    work: Work
    loads: Mapping[str, int]
    stores: Mapping[str, int]
    live: int
    iterations: int

    @property
    def reads(self) -> int:
        """Bytes read."""
        return sum(self.loads.values())

    @property
    def writes(self) -> int:
        """Bytes written."""
        return sum(self.stores.values())

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.work.all / max(1, self.reads + self.writes)


def counts(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env) -> Counts:
    """What a kernel does, an operation counted once for each value of the indices that it needs.

    A buffer that the kernel writes itself is not read from memory; local buffers are not in memory.
    """
    return of_sketch(sketch(kernel, buffers, env))


def of_sketch(found: Sketch) -> Counts:
    """The same of a sketch."""
    device = {b for b in found.read | found.written if b in found.buffers and found.buffers[b].scope == "device"}
    loads = _bytes(found, [a for a in found.loads if a.buffer in device and a.buffer not in found.written])
    stores = _bytes(found, [a for a in found.stores if a.buffer in device])
    iterations = sum(level.times for level in found.levels[1:] if not level.children)
    return Counts(found.total, loads, stores, found.live, iterations)


def _bytes(found: Sketch, accesses: list[Access]) -> dict[str, int]:
    named = dict.fromkeys(a.buffer for a in accesses)
    return {
        b: union(found, [a for a in accesses if a.buffer == b]) * found.buffers[b].dtype.itemsize for b in named
    }  # fmt: skip


def buffer_bytes(buffer: Buffer, env: Env) -> int:
    """The bytes of a buffer; of one with a window, those of the window, over the whole range of outer indices."""
    if buffer.window is None:
        return prod(max(0, env.value(p)) for p in buffer.shape) * buffer.dtype.itemsize
    total = buffer.dtype.itemsize
    for extent, (lows, highs) in zip(buffer.shape, buffer.window, strict=True):
        sides = [(high - low) for high in highs for low in lows]
        known = [env.value(s) for s in sides if all(n in env.sizes for n in s.names)]
        total *= max(0, min([env.value(extent), *known]))
    return total
