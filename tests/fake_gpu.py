"""A GPU that is none: its memory is the host's, and its kernels are Python functions. What the runtime does with a
driver is tested on it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from loopfuse.cuda.calls import TILE_MAP_BYTES, DriverError, OutOfMemory
from loopfuse.dtypes import DTYPES, DType

Kernel = Callable[..., None]  # takes the grid, then the raw 64-bit value of each argument, or the bytes of a tile map


def cells(pointer: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Memory as an array."""
    size = count * np.dtype(dtype).itemsize
    data = (ctypes.c_char * size).from_address(pointer)
    return np.frombuffer(data, dtype, count)


def floats(n: int, start: float = 0.0) -> Any:
    return np.arange(n, dtype=np.float32) + np.float32(start)


class Interface:
    """An array of another library."""

    def __init__(self, array: Any, pointer: int | None = None, **changes: Any) -> None:
        self.array = array
        at = array.__array_interface__
        self.told = {"shape": array.shape, "typestr": array.dtype.str, "version": 3, "strides": at["strides"],
                     "data": (at["data"][0] if pointer is None else pointer, False), **changes}  # fmt: skip

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told


class FakeMap(NamedTuple):
    """What a tile map of the fake says; `steps` in bytes."""

    address: int
    dtype: DType
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    LAYOUT = struct.Struct("<8sQ5Q4Q5HB3x")

    def encoded(self) -> bytes:
        """The 128 bytes."""
        rank = len(self.extents)
        filled = [*self.extents, *[0] * (5 - rank), *self.steps, *[0] * (5 - rank), *self.box, *[0] * (5 - rank)]
        told = self.LAYOUT.pack(self.dtype.name.encode(), self.address, *filled, self.swizzle)
        return told.ljust(TILE_MAP_BYTES, b"!")

    @classmethod
    def decoded(cls, held: bytes) -> FakeMap:
        """What the 128 bytes say."""
        assert held[cls.LAYOUT.size :] == b"!" * (TILE_MAP_BYTES - cls.LAYOUT.size), "this is no tile map"
        name, address, *rest, swizzle = cls.LAYOUT.unpack(held[: cls.LAYOUT.size])
        rank = sum(e > 0 for e in rest[:5])
        extents, steps, box = rest[:rank], rest[5 : 4 + rank], rest[9 : 9 + rank]
        return cls(address, DTYPES[name.rstrip(b"\0").decode()], tuple(extents), tuple(steps), tuple(box), swizzle)

    def array(self) -> np.ndarray[Any, Any]:
        """The array in memory, outermost axis first; not to be written where its steps overlap."""
        size = sum((e - 1) * s for e, s in zip(self.extents[1:], self.steps, strict=True)) // self.dtype.itemsize
        flat = cells(self.address, size + self.extents[0], self.dtype.numpy)
        return np.lib.stride_tricks.as_strided(flat, self.extents[::-1], (*self.steps[::-1], self.dtype.itemsize))


class FakeGraph:
    """Copies what arguments hold when it is told, as CUDA does."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver, self.ready, self.closed = driver, False, False
        self.nodes: list[list[Any]] = []

    def add_launch(self, function: Any, grid: Any, threads: int, shared: int, parameters: int) -> int:
        assert not self.ready
        self.nodes.append([function, grid, threads, shared, self.driver.read(function, parameters)])
        return len(self.nodes) - 1

    def add_fill(self, pointer: int, byte: int, count: int) -> int:
        assert not self.ready
        self.nodes.append([pointer, byte, count])
        return len(self.nodes) - 1

    def instantiate(self) -> None:
        self.ready = True

    def set_launch(self, node: int, parameters: int) -> None:
        self.driver.log.append(("set", node))
        self.nodes[node][4] = self.driver.read(self.nodes[node][0], parameters)

    def set_fill(self, node: int, pointer: int) -> None:
        self.driver.log.append(("set", node))
        self.nodes[node][0] = pointer

    def launcher(self, stream: int) -> Callable[[], None]:
        def run() -> None:
            assert not self.closed
            self.driver.log.append(("graph", stream))
            for node in self.nodes:
                if len(node) == 3:
                    self.driver.fill(*node, stream)
                else:
                    self.driver.start(node[0], node[1], node[2], node[3], stream, node[4])

        return run

    def close(self) -> None:
        self.closed = True
        self.driver.graphs.discard(id(self))


class FakeDriver:
    """See `loopfuse.cuda.calls.Driver`. `kernels` maps names to functions; `log` is what was asked for."""

    def __init__(self, kernels: dict[str, Kernel] | None = None, memory: int = 1 << 24, ordinal: int = 0,
                 name: str = "NVIDIA H200") -> None:  # fmt: skip
        self.ordinal, self.name, self.uuid, self.capability, self.memory = ordinal, name, "f" * 32, (9, 0), memory
        self.kernels = dict(kernels or {})
        self.log: list[tuple[Any, ...]] = []
        self.live: dict[int, tuple[Any, int]] = {}
        self.modules: set[int] = set()
        self.graphs: set[int] = set()
        self.events = 0
        self.abandoned = False
        self.fail: dict[str, str] = {}  # the next call of this name fails with this error
        self.counter = 0

    # -- what tests look at --------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        return sum(count for _, count in self.live.values())

    def names(self, kind: str) -> list[Any]:
        return [entry[1] for entry in self.log if entry[0] == kind]

    def read(self, function: Any, parameters: int) -> list[Any]:
        """The values behind an array of addresses; what a kernel declares as `bytes` is a tile map."""
        kernel = self.kernels[function[0]]
        count = kernel.__code__.co_argcount - 1
        addresses = [int(a) for a in cells(parameters, count, np.uint64)] if count else []
        maps = [kernel.__annotations__.get(name) in ("bytes", bytes) for name in kernel.__code__.co_varnames[1:]]
        return [
            cells(a, TILE_MAP_BYTES, np.uint8).tobytes() if is_map else int(cells(a, 1, np.uint64)[0])
            for a, is_map in zip(addresses, maps, strict=False)
        ]

    def start(self, function: Any, grid: Any, threads: int, shared: int, stream: int, values: list[Any]) -> None:
        self._called("launch", function[0], grid, threads, shared, stream)
        self.kernels[function[0]](grid, *values)

    def _called(self, call: str, *told: Any) -> None:
        assert not self.abandoned, f"{call} of a device that was left"
        if call in self.fail:
            name = self.fail.pop(call)
            raise (OutOfMemory if "MEMORY" in name else DriverError)(call, name)
        self.log.append((call, *told))

    # -- the driver ----------------------------------------------------------------------------------------------------

    def attribute(self, name: str) -> int:
        return {"MULTIPROCESSOR_COUNT": 132, "L2_CACHE_SIZE": 60 << 20, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
                "GLOBAL_MEMORY_BUS_WIDTH": 6144, "MEMORY_CLOCK_RATE": 3201000}.get(name, -1)  # fmt: skip

    def enter(self) -> bool:
        self.depth = getattr(self, "depth", 0) + 1
        return True

    def leave(self) -> None:
        self.depth -= 1

    def alloc(self, count: int) -> int:
        self._called("alloc", count)
        if self.used + count > self.memory:
            raise OutOfMemory("alloc", "CUDA_ERROR_OUT_OF_MEMORY")
        data = np.full(count + 256, 0xAB, np.uint8)
        pointer = -(-int(data.ctypes.data) // 256) * 256
        self.live[pointer] = data, count
        return pointer

    def free(self, pointer: int) -> None:
        self._called("free", pointer)
        del self.live[pointer]

    def memory_info(self) -> tuple[int, int]:
        return self.memory - self.used, self.memory

    def fill(self, pointer: int, byte: int, count: int, stream: int) -> None:
        self._called("fill", pointer, byte, count, stream)
        cells(pointer, count, np.uint8)[:] = byte

    def upload(self, pointer: int, array: Any, stream: int) -> None:
        self._called("upload", array.nbytes, stream)
        if array.nbytes:
            ctypes.memmove(pointer, array.ctypes.data, array.nbytes)

    def download(self, array: Any, pointer: int, stream: int) -> None:
        self._called("download", array.nbytes, stream)
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, pointer, array.nbytes)

    def copy(self, target: int, source: int, count: int, stream: int) -> None:
        self._called("copy", count, stream)
        ctypes.memmove(target, source, count)

    def load(self, binary: bytes) -> int:
        self._called("load", binary)
        self.counter += 1
        self.modules.add(self.counter)
        return self.counter

    def unload(self, module: int) -> None:
        self._called("unload", module)
        self.modules.remove(module)

    def function(self, module: int, name: str, shared: int, cluster: int) -> tuple[str, int, int]:
        self._called("function", name, shared, cluster)
        assert name in self.kernels
        return name, shared, cluster

    def launcher(self, function: Any, grid: Any, threads: int, shared: int, stream: int, parameters: int,
                 ) -> Callable[[], None]:  # fmt: skip
        return lambda: self.start(function, grid, threads, shared, stream, self.read(function, parameters))

    def tile_map(self, dtype: DType, extents: Any, steps: Any, box: Any, swizzle: int) -> Callable[[int], bytes]:
        def encode(address: int) -> bytes:
            self._called("tile_map", address, tuple(extents))
            return FakeMap(address, dtype, tuple(extents), tuple(steps), tuple(box), swizzle).encoded()

        return encode

    def graph(self) -> FakeGraph:
        made = FakeGraph(self)
        self.graphs.add(id(made))
        return made

    def event(self) -> int:
        self.events += 1
        return self.events

    def record(self, event: int, stream: int) -> None:
        self._called("record", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._called("wait", stream, event)

    def elapsed(self, start: int, end: int) -> float:
        return 1e-3

    def drop_event(self, event: int) -> None:
        pass

    def synchronize(self, stream: int | None = None) -> None:
        self._called("synchronize", stream)

    def abandon(self) -> None:
        self.abandoned = True

    def close(self) -> None:
        self.live.clear()
