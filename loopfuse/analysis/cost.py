"""What a whole program moves and holds: bytes of traffic with device memory, and the peak of its temporaries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from loopfuse.analysis.counts import Counts, buffer_bytes, counts
from loopfuse.analysis.env import Env
from loopfuse.ir import Program
from loopfuse.rewrite import free_names

__all__ = ["Counts", "Memory", "counts", "memory", "peak_memory", "traffic"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes read and written by all kernels, the most bytes of temporaries at once, of all temporaries together, and
    of the inputs, params and outputs."""

    reads: int
    writes: int
    peak: int
    temporaries: int
    fixed: int

    @property
    def traffic(self) -> int:
        """Bytes moved."""
        return self.reads + self.writes


def memory(program: Program, env: Env) -> Memory:
    """The program in bytes; `env` gives the numbers of its sizes."""
    buffers = {b.id: b for b in program.buffers}
    reads = writes = 0
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, kernel in enumerate(program.kernels):
        found = counts(kernel, buffers, env)
        reads, writes = reads + found.reads, writes + found.writes
        names = free_names(kernel.body)
        for name in names.loads | names.stores:
            if name in buffers and buffers[name].role == "temp" and buffers[name].scope == "device":
                first.setdefault(name, number)
                last[name] = number
    changes = [0] * (len(program.kernels) + 1)
    for name, number in first.items():
        changes[number] += buffer_bytes(buffers[name], env)
        changes[last[name] + 1] -= buffer_bytes(buffers[name], env)
    peak = max(accumulate(changes))
    fixed = sum(buffer_bytes(b, env) for b in program.buffers if b.role != "temp")
    return Memory(reads, writes, peak, sum(buffer_bytes(buffers[n], env) for n in first), fixed)


def traffic(program: Program, env: Env) -> int:
    """Bytes that the whole program moves between device memory and the chip, every element once a kernel."""
    return memory(program, env).traffic


def peak_memory(program: Program, env: Env) -> int:
    """The most bytes of temporaries in device memory at once; each lives from its first kernel to its last."""
    return memory(program, env).peak
