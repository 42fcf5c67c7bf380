"""Whether there is a driver and a GPU, asked of the driver's library alone: no package is needed, no context is made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
_NONE = (100, 101)  # CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE: a driver that has nothing to drive


@dataclass(frozen=True, slots=True)
class Presence:
    """`library`: the driver's library loads (else `problem` says why not); `version`: the CUDA that it knows, as 13000;
    `status`: what it answers to its start, 0 for well; `devices`: GPUs that this process may use."""

    library: bool
    version: int = 0
    status: int = 0
    devices: int = 0
    problem: str = ""

    @property
    def absent(self) -> bool:
        """There is no GPU here at all, and nothing is broken."""
        return not self.library or self.status in _NONE or (self.status == 0 and self.devices == 0)


def presence() -> Presence:
    """What there is."""
    try:
        library = ctypes.CDLL(LIBRARY)
        version, count = ctypes.c_int(), ctypes.c_int()
        library.cuDriverGetVersion(ctypes.byref(version))
        status = int(library.cuInit(0))
        if status == 0:
            library.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError) as why:
        return Presence(False, problem=str(why))
    return Presence(True, version.value, status, count.value)


def release(version: int) -> str:
    """`13.0` for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"
