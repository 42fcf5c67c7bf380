"""How much memory there is, and how a number of bytes is written for people."""

from __future__ import annotations

import os
import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


MOST_BYTES = 1 << 63


def show_bytes(count: int) -> str:
    """`1536` as `1.5 KiB`; powers of 1024."""
    if count < 1024:
        return f"{count} B"
    units = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    step = min((count.bit_length() - 1) // 10, len(units))
    value = count / (1 << (10 * step))
    return f"{value:.3g} {units[step - 1]}" if value < 1000 else f"{value:.0f} {units[step - 1]}"


def parse_bytes(text: str) -> int | None:
    """`8G`, `512MiB`, `1e9`, `100` as a number of bytes (powers of 1024), or None where it is not one."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        return None
    count = float(match[1]) * _UNITS[match[2]]
    return int(count) if count < MOST_BYTES else None


def default_limit() -> int:
    """What a run may allocate unless told otherwise: four fifths of what is free now, at least 256 MiB."""
    return max(free_memory() * 4 // 5, 256 << 20)


def free_memory() -> int:
    """Bytes that can be allocated without swapping; half the physical memory where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return 4 << 30
