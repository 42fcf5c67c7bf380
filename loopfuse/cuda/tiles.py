"""Tile maps as arguments: what the driver encodes into 128 bytes, for known sizes, and where those bytes stand.

A map holds the address of its memory: it is encoded anew whenever that changes, and never else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loopfuse.cuda.calls import TILE_MAP_BYTES, Driver, DriverError
from loopfuse.diag import CompilerError
from loopfuse.dtypes import DType
from loopfuse.emit.code import TileMap

UNIT = 16  # bytes: addresses, steps and the rows of a tile are multiples
MOST_STEP = 1 << 40  # bytes, exclusive
MOST_EXTENT = 1 << 32
MOST_BOX = 256
SWIZZLES = (0, 32, 64, 128)
ALIGNMENT = 128  # of a map in memory: 64 by the ABI, and 128 since CUDA 13
KEPT = 16  # addresses of a memory for which a map is kept
REFUSED = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_SUPPORTED")


@dataclass(frozen=True, slots=True)
class Tiles:
    """A `TileMap` with all sizes known, in elements. `kernel` is the first that takes it.

    `empty`: the array has no elements, and nothing is read or written; what stands here then is any map that can be
    encoded.
    """

    memory: str
    dtype: DType
    start: int
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    empty: bool = False
    kernel: str = field(default="", compare=False)

    @property
    def bytes_between(self) -> tuple[int, ...]:
        """The steps in bytes."""
        return tuple(step * self.dtype.itemsize for step in self.steps)

    def refusal(self, why: str) -> CompilerError:
        """The error that the compiler asked for what cannot be."""
        return CompilerError(
            "cuda", f"`{self.kernel}` cannot copy tiles of `{self.memory}`: {why} ({self.dtype} from element {self.start}, "
                    f"extents {list(self.extents)}, steps {list(self.steps)}, tiles {list(self.box)}, swizzle {self.swizzle})"
        )  # fmt: skip


def tiles(map: TileMap, env: Mapping[str, int], kernel: str = "") -> Tiles:
    """A tile map for known sizes. Raises `CompilerError` for one that no GPU takes."""
    start, *numbers = (int(p.value(env)) for p in (map.start, *map.extents, *map.steps))
    extents, steps = tuple(numbers[: len(map.extents)]), tuple(numbers[len(map.extents) :])
    found = Tiles(map.memory, map.dtype, start, extents, steps, map.box, map.swizzle, kernel=kernel)
    if min(extents, default=0) <= 0:  # steps that follow from an extent of zero are no more than it
        extents = tuple(max(1, e) for e in extents)
        unit = UNIT // min(UNIT, map.dtype.itemsize)
        steps = tuple(unit for _ in steps)
        found = Tiles(map.memory, map.dtype, 0, extents, steps, map.box, map.swizzle, True, kernel)
    _check(found)
    return found


def _check(t: Tiles) -> None:
    rank, row = len(t.extents), (t.box[0] if t.box else 0) * t.dtype.itemsize
    if not 2 <= rank <= 5 or len(t.steps) != rank - 1 or len(t.box) != rank:
        raise t.refusal("a map has 2 to 5 axes, a step for each but the innermost, and an extent of a tile for each")
    if max(t.extents) > MOST_EXTENT:
        raise t.refusal(f"no extent may be more than {MOST_EXTENT}")
    if any(step % UNIT or not 0 <= step < MOST_STEP for step in t.bytes_between):
        raise t.refusal(f"steps must be multiples of {UNIT} bytes, from 0 to below {MOST_STEP}")
    if any(not 1 <= extent <= MOST_BOX for extent in t.box):
        raise t.refusal(f"extents of a tile must be 1 to {MOST_BOX}")
    if t.swizzle not in SWIZZLES or (t.swizzle and row > t.swizzle):
        raise t.refusal(f"the swizzle must be one of {SWIZZLES} bytes, and at least a row of a tile, which has {row}")
    if row % UNIT:
        raise t.refusal(f"a row of a tile has {row} bytes, and must have a multiple of {UNIT}")


class Maps:
    """Maps in memory, not yet encoded. `addresses` says where each lies."""

    def __init__(self, found: Sequence[Tiles], driver: Driver) -> None:
        self._bytes = np.zeros(len(found) * TILE_MAP_BYTES + ALIGNMENT, np.uint8)
        begin = int(self._bytes.ctypes.data)
        first = -(-begin // ALIGNMENT) * ALIGNMENT
        self.addresses = [first + TILE_MAP_BYTES * number for number in range(len(found))]
        self._over: dict[str, list[_Map]] = {}
        self._now: dict[str, int] = {}
        held = self._bytes.data
        for t, address in zip(found, self.addresses, strict=True):
            place = held[address - begin : address - begin + TILE_MAP_BYTES]
            self._over.setdefault(t.memory, []).append(_Map(t, place, driver))

    def point(self, memory: str, address: int) -> bool:
        """Encode every map over a memory for its address; False where there is none.

        Raises `CompilerError` for an address that a map cannot have.
        """
        over = self._over.get(memory)
        if over is None:
            return False
        if self._now.get(memory) != address:
            self._now.pop(memory, None)
            for map in over:
                map.write(address)
            self._now[memory] = address
        return True


class _Map:
    """A map in memory of the host, and what it was for the last addresses of its own memory."""

    def __init__(self, found: Tiles, place: memoryview, driver: Driver) -> None:
        self.tiles, self._place = found, place
        self._known: dict[int, bytes] = {}
        self._encode: Callable[[int], bytes] = driver.tile_map(found.dtype, found.extents, found.bytes_between, found.box,
                                                               found.swizzle)  # fmt: skip

    def write(self, address: int) -> None:
        encoded = self._known.get(address)
        if encoded is None:
            encoded = self._encoded(address)
            if len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
            self._known[address] = encoded
        self._place[:] = encoded

    def _encoded(self, address: int) -> bytes:
        t = self.tiles
        begin = address + t.start * t.dtype.itemsize
        if t.empty:  # memory of no bytes may lie anywhere
            begin = max(UNIT, begin // UNIT * UNIT)
        if begin % UNIT:
            raise t.refusal(f"it lies at {begin:#x}, and must on a multiple of {UNIT} bytes")
        try:
            return self._encode(begin)
        except DriverError as why:
            if why.name not in REFUSED:
                raise
            raise t.refusal(f"the driver refuses with {why.name}, at {begin:#x}") from why
