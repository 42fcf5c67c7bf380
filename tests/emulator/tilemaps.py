"""Tile maps as the emulator passes them to kernels, with what the encoder of a driver refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable

from emulator.building import EmulatorError
from loopfuse.emit.code import TileMap
from loopfuse.sizes import Poly

MARK = 0x711E3A9  # tiles.hpp knows a map by it


def encoded(a: TileMap, address: int, value: Callable[[Poly], int]) -> bytes:
    """The 128 bytes of a map of the memory at `address`; `value` gives that of a size. The layout is tiles.hpp's.

    Raises:
        EmulatorError: the encoder would refuse it.
    """
    item = a.dtype.numpy.itemsize
    rank = len(a.extents)
    extents = [value(p) for p in a.extents]
    steps = [value(p) * item for p in a.steps]
    base = address + value(a.start) * item
    row = a.box[0] * item if a.box else 0

    def need(truth: bool, what: str) -> None:
        if not truth:
            raise EmulatorError(f"a tile map of `{a.memory}`: {what}")

    need(2 <= rank <= 5 and len(a.steps) == rank - 1 and len(a.box) == rank, f"{rank} axes, and their steps and box")
    need(base % 16 == 0, f"it starts {base % 16} bytes off a multiple of 16")
    need(all(0 <= n < 1 << 32 for n in extents), f"extents {extents}")
    need(all(s % 16 == 0 and 0 <= s < 1 << 40 for s in steps), f"steps of {steps} bytes, not multiples of 16")
    need(all(1 <= n <= 256 for n in a.box), f"a tile of {a.box}; up to 256 elements along an axis")
    need(row % 16 == 0, f"rows of a tile of {row} bytes, not a multiple of 16")
    need(a.swizzle in (0, 32, 64, 128), f"a pattern of {a.swizzle} bytes")
    need(a.swizzle == 0 or row == a.swizzle, f"rows of a tile of {row} bytes with a pattern of {a.swizzle}")
    fill = [0] * (5 - rank)
    return struct.pack(
        "<QBBBBI5q4q5Q", base, rank, item, a.swizzle, 0, MARK, *extents, *fill, *steps, *fill, *a.box, *fill
    )
