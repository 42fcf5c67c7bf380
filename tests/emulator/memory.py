"""Memory for kernels with nothing mapped next to it, so that an access outside is noticed."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
GUARD = 1 << 20  # bytes without access on either side
CANARY = 0xC7
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Region:
    """`size` bytes whose end (or, `low`, start) lies at a guard, up to what `alignment` asks; else a canary is there."""

    def __init__(self, name: str, size: int, alignment: int, low: bool = False) -> None:
        self.name, self.size = name, size
        self._body = max(-(-(size + alignment) // PAGE), 1) * PAGE
        self._base: int | None = _libc.mmap(
            None, self._body + 2 * GUARD, 0, mmap.MAP_PRIVATE | mmap.MAP_ANON | 0x4000, -1, 0
        )
        if self._base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no memory for {name}, {size} bytes")
        first = int(self._base or 0) + GUARD
        self.protect(mmap.PROT_READ | mmap.PROT_WRITE)
        self.address = first if low else (first + self._body - size) // alignment * alignment
        self._all = self._view(first, self._body)
        self.bytes = self._view(self.address, size)
        before = self.address - first
        self._outside = (self._all[:before], self._all[before + size :])
        for part in self._outside:
            part[:] = CANARY

    @staticmethod
    def _view(address: int, size: int) -> Bytes:
        return np.frombuffer(memoryview((ctypes.c_ubyte * size).from_address(address)), dtype=np.uint8)

    def protect(self, access: int) -> None:
        """Set what may be done with the memory."""
        _libc.mprotect(int(self._base or 0) + GUARD, self._body, access)

    def intact(self) -> bool:
        """Whether nothing was written around it."""
        return all(bool((part == CANARY).all()) for part in self._outside)

    def where(self, address: int) -> str | None:
        """How an address lies to this memory, or None where it is far off."""
        offset = address - self.address
        if not -GUARD - PAGE <= offset < self.size + GUARD + PAGE:
            return None
        place = f"at byte {offset}"
        if offset < 0:
            place = f"{-offset} bytes before the start"
        elif offset >= self.size:
            place = f"{offset - self.size} bytes past the end"
        return f"{place} of `{self.name}`, which has {self.size} bytes"

    def free(self) -> None:
        """Give it back."""
        if self._base is not None:
            _libc.munmap(self._base, self._body + 2 * GUARD)
            self._base = None
