"""Device memory that is used again: allocating costs microseconds, and freeing waits for the device.

A block belongs to the stream that it was taken for, and is given again for that stream alone: what is launched later on
a stream comes after all that used the block before. A block that other libraries saw (`shared`) may be in use on a
stream of theirs when it comes back, so that it rests until the next time that the device is known to be idle.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from loopfuse.cuda.calls import Driver, OutOfMemory

SMALL, LARGE = 512, 2 << 20  # sizes are rounded up to a multiple of the first below the second, else of the second
KEPT = 4  # a fourth of the device's memory may lie unused


class Block:
    """Device memory: `pointer` (0 where there are no bytes) and `bytes`. It goes back to the pool when it is dropped."""

    __slots__ = ("_back", "bytes", "pointer", "rounded", "shared", "stream")

    def __init__(self, pointer: int, count: int, rounded: int, stream: int, back: Callable[[Block], None]) -> None:
        self.pointer, self.bytes, self.rounded, self.stream = pointer, count, rounded, stream
        self.shared = False
        self._back = back

    def __del__(self) -> None:
        self._back(self)


def rounded(count: int) -> int:
    """The bytes that are allocated for a wish."""
    step = SMALL if count <= LARGE else LARGE
    return -(-count // step) * step


Key = tuple[int, int]  # a stream and bytes


class Pool:
    """The memory of a device. Any thread may use it; `driver.enter` is the caller's."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.RLock()
        self._returned: deque[tuple[int, int, int, bool]] = deque()  # by finalisers, which may run at any point
        self._free: OrderedDict[Key, list[int]] = OrderedDict()
        self._resting: list[tuple[int, int]] = []
        self.used = self.unused = 0
        self.closed = False

    def take(self, count: int, stream: int) -> Block:
        """A block of at least that many bytes for a stream. Raises `OutOfMemory` when even freeing all does not help."""
        if count <= 0:
            return Block(0, 0, 0, stream, self._back)
        size = rounded(count)
        with self._lock:
            self._drain()
            found = self._free.get((stream, size))
            if found:
                pointer = found.pop()
                self.unused -= size
            else:
                pointer = self._allocate(size)
            self.used += size
        return Block(pointer, count, size, stream, self._back)

    def _allocate(self, size: int) -> int:
        try:
            return self._driver.alloc(size)
        except OutOfMemory:
            gc.collect()  # arrays in cycles
            self.trim()
            return self._driver.alloc(size)

    def _back(self, block: Block) -> None:
        """Called as a block dies, perhaps in the midst of another call of this pool."""
        if block.pointer and not self.closed:
            self._returned.append((block.pointer, block.rounded, block.stream, block.shared))

    def _drain(self) -> None:
        """Sort what came back."""
        while self._returned:
            pointer, size, stream, shared = self._returned.popleft()
            self.used -= size
            self.unused += size
            if shared:
                self._resting.append((pointer, size))
            else:
                self._free.setdefault((stream, size), []).append(pointer)
                self._free.move_to_end((stream, size))
        most = self._driver.memory // KEPT
        if self.unused > most:
            self._forget(most // 2)

    def _forget(self, most: int) -> None:
        """Free what was not used for longest, until no more than `most` bytes lie unused."""
        for pointer, size in self._resting:
            self._release(pointer, size)
        self._resting.clear()
        while self.unused > most and self._free:
            (_, size), pointers = self._free.popitem(last=False)
            for pointer in pointers:
                self._release(pointer, size)

    def _release(self, pointer: int, size: int) -> None:
        self.unused -= size
        self._driver.free(pointer)

    def trim(self) -> None:
        """Free all that is not in use, once the device is done with it."""
        with self._lock:
            self._drain()
            self._driver.synchronize()
            self._forget(0)

    def abandon(self) -> None:
        """Forget everything: the device cannot be reached."""
        self.closed = True
        self._lock = threading.RLock()  # a fork may have left it locked
