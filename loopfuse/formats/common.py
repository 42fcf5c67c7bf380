"""What the formats share: the exception they raise and the check of sizes before memory is allocated."""

from __future__ import annotations

import difflib
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from loopfuse.memory import default_limit, show_bytes

Array = np.ndarray[Any, np.dtype[Any]]


class BadFile(Exception):
    """A file that cannot be read or written as asked; `files` adds its name and the place that named it."""

    def __init__(self, code: str, message: str, fix: str | None = None, note: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.fix, self.note = code, message, fix, note


_FILTERS = threading.Lock()


@contextmanager
def unheard() -> Iterator[None]:
    """Without Python's warnings. Its filters belong to the whole process: two threads that change and restore them in turn
    would leave them changed."""
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_size(count: int) -> None:
    """Refuse to read `count` bytes where there is no room for them."""
    limit = default_limit()
    if count > limit:
        raise BadFile("LF0509", f"needs {show_bytes(count)} of memory, and {show_bytes(limit)} may be used")


def choose_key(keys: Iterable[str], key: str | None, name: str | None, what: str) -> str:
    """The array of a container that is meant: `key`, or the only one, or the one called like the input."""
    found = list(keys)
    if key is None:
        if len(found) == 1:
            return found[0]
        if name in found:
            return str(name)
        raise BadFile("LF0514", f"holds {len(found)} {what}: say which", note=listing(found))
    if key in found:
        return key
    near = difflib.get_close_matches(key, found, 1)
    raise BadFile("LF0514", f"holds no `{key}`", fix=f"did you mean `{near[0]}`?" if near else None,
                  note=listing(found))  # fmt: skip


def listing(names: list[str]) -> str:
    """The first names, for a note."""
    shown = ", ".join(names[:8])
    return f"it holds {shown}{f' and {len(names) - 8} more' if len(names) > 8 else ''}" if names else "it holds nothing"
