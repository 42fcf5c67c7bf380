"""Mappings that are kept small: what was put in first leaves when there are too many. Several threads may put."""

from __future__ import annotations

import threading
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
_LOCK = threading.Lock()


def keep_few(held: dict[K, V], key: K, value: V, most: int) -> None:
    """Put an entry into a mapping of at most `most`. Reading needs no lock."""
    with _LOCK:
        held[key] = value
        while len(held) > most:
            del held[next(iter(held))]
