"""What the management library tells of a GPU: energy, power and clock, where it answers."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SM = 1  # the clock of the multiprocessors


class Meter:
    """The meters of one GPU, by the uuid of its `Device` (32 hexadecimal digits). What does not answer is None."""

    def __init__(self, uuid: str) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p()
        if self._library is not None:
            name = f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}".encode()
            if self._library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)):
                self._library = None

    def energy(self) -> float | None:
        """Joules since the driver was loaded; it counts in steps of some tens of milliseconds."""
        found = self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())
        return None if found is None else found * 1e-3

    def power(self) -> float | None:
        """Watts at present."""
        found = self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint())
        return None if found is None else found * 1e-3

    def clock(self) -> float | None:
        """Cycles a second of the multiprocessors at present."""
        found = self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint(), _SM)
        return None if found is None else found * 1e6

    def _ask(self, function: str, into: Any, *arguments: int) -> int | None:
        if self._library is None:
            return None
        try:
            status = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(into))
        except AttributeError:  # a library that does not know it
            return None
        return None if status else int(into.value)


@cache
def _library() -> Any:
    """The library, ready to use, or None. It is never let go: it costs nothing to keep."""
    try:
        library = ctypes.CDLL(LIBRARY)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None
