"""The few calls of a GPU driver that the rest of this package makes. `nvidia` makes them for real, tests with a fake.

Addresses, streams and byte counts are ints; functions, modules, events and graphs are handles of the driver's own kind.
A stream is 0 (the default), 1 (the same, by its explicit name), 2 (the default of a thread) or a handle. Every call but
`push` needs the device's context to be current on the calling thread: `enter` makes it so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from loopfuse.diag import MachineError
from loopfuse.dtypes import DType

Handle = Any
Array = np.ndarray[Any, Any]
Grid = tuple[int, int, int]
TILE_MAP_BYTES = 128

# What a context does not survive: every later call fails with the same error.
STICKY = frozenset({
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ECC_UNCORRECTABLE",
})  # fmt: skip


class DriverError(Exception):
    """A call of the driver failed: `call`, and the name of its error, `CUDA_ERROR_...`."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call, self.name = call, name

    @property
    def sticky(self) -> bool:
        """Whether the context is lost."""
        return self.name in STICKY


class OutOfMemory(DriverError):
    """There is not enough memory on the device."""


class Graph(Protocol):
    """Launches and fills, each after the one before it, that are started by one call."""

    def add_launch(self, function: Handle, grid: Grid, threads: int, shared: int, parameters: int) -> Handle:
        """Add a launch, see `Driver.launcher`; what its arguments hold is read now. Returns its node."""

    def add_fill(self, pointer: int, byte: int, count: int) -> Handle:
        """Add a fill. Returns its node."""

    def instantiate(self) -> None:
        """Make it ready to run; nothing can be added afterwards."""

    def set_launch(self, node: Handle, parameters: int) -> None:
        """Read the arguments of a launch anew; runs that have begun keep theirs."""

    def set_fill(self, node: Handle, pointer: int) -> None:
        """Fill other memory."""

    def launcher(self, stream: int) -> Callable[[], None]:
        """What starts it on a stream."""

    def close(self) -> None:
        """Release it."""


class Driver(Protocol):
    """A device and its primary context."""

    ordinal: int
    name: str
    uuid: str
    capability: tuple[int, int]
    memory: int

    def attribute(self, name: str) -> int:
        """A device attribute by its name in the CUDA driver, without the prefix; -1 where it is not known."""

    def enter(self) -> bool:
        """Make the context current. True: another was, and `leave` must be called."""

    def leave(self) -> None:
        """Give back the context that was current before `enter`."""

    def alloc(self, count: int) -> int:
        """Device memory of that many bytes, at least one. Raises `OutOfMemory`."""

    def free(self, pointer: int) -> None:
        """Free what `alloc` gave, once the device no longer uses it."""

    def memory_info(self) -> tuple[int, int]:
        """Bytes that are free, and all."""

    def fill(self, pointer: int, byte: int, count: int, stream: int) -> None:
        """Set bytes."""

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a contiguous array to the device; the array may be changed once this returns."""

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy to a contiguous array what the stream left on the device, and wait for it."""

    def copy(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes on the device."""

    def load(self, binary: bytes) -> Handle:
        """Load a module."""

    def unload(self, module: Handle) -> None:
        """Unload a module that no launch uses any more."""

    def function(self, module: Handle, name: str, shared: int, cluster: int) -> Handle:
        """A kernel of a module, allowed that much dynamic shared memory and so many blocks a cluster."""

    def launcher(self, function: Handle, grid: Grid, threads: int, shared: int, stream: int, parameters: int,
                 ) -> Callable[[], None]:  # fmt: skip
        """What launches a kernel. `parameters`: the address of an array of addresses, one an argument."""

    def tile_map(self, dtype: DType, extents: Sequence[int], steps: Sequence[int], box: Sequence[int], swizzle: int,
                 ) -> Callable[[int], bytes]:  # fmt: skip
        """What encodes, for the address where the array starts, how its tiles are copied: the `TILE_MAP_BYTES` of a
        `CUtensorMap`.

        `extents` and `steps` as of `emit.code.TileMap`, the steps in bytes. What it gives raises `DriverError` for a map
        that the driver refuses. One thread at a time may use it.
        """

    def graph(self) -> Graph:
        """A new graph."""

    def event(self) -> Handle:
        """A new event that keeps the time."""

    def record(self, event: Handle, stream: int) -> None:
        """The event is when all that the stream was given until now is done."""

    def wait(self, stream: int, event: Handle) -> None:
        """What the stream is given from now on comes after the event."""

    def elapsed(self, start: Handle, end: Handle) -> float:
        """Seconds between two events that have been reached."""

    def drop_event(self, event: Handle) -> None:
        """Release an event."""

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or for all."""

    def abandon(self) -> None:
        """Nothing may reach the device any more, not even to clean up: this is the child of a fork, or the context is
        lost. Every later call raises `DriverError`, except those that release, which do nothing."""

    def close(self) -> None:
        """Free all memory and let the context go. The last call."""


def no_context_after_fork() -> MachineError:
    """What a child process is told."""
    return MachineError(
        "a CUDA context does not survive a fork: start the process with the `spawn` method "
        '(multiprocessing.get_context("spawn")), or use the GPU in the child alone'
    )
