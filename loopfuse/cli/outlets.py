"""What a command prints to: readers that go away, and disks that are full, are told nowhere else."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TextIO, cast


class Outlet:
    """A stream whose reader may go away (`| head`): what is written from then on is dropped, and the command goes on as if it
    were read, so that its files and its exit code are those that it has without a reader that stops early."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or drop it; the number of its characters."""
        self._tried(lambda: self._stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what was written."""
        self._tried(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _tried(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:
            _to_nowhere(self._stream)  # what the stream holds back goes there too, when Python ends


def _to_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def is_full(why: BaseException) -> bool:
    """Whether a print failed for want of space: errors with files of a name are told by who opens them."""
    return isinstance(why, OSError) and why.filename is None and why.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT)


def guarded(action: Callable[[], int], unwritten: int) -> int:
    """The exit code of an action that prints; `unwritten` where a disk is full."""
    kept = sys.stdout, sys.stderr
    for stream in kept:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    out, err = ((cast(TextIO, Outlet(s)) if s is not None else None) for s in kept)  # None: closed by the caller
    sys.stdout, sys.stderr = out, err
    try:
        try:
            return action()
        finally:
            if out is not None:
                out.flush()
    except OSError as why:
        if not is_full(why):
            raise
        with suppress(OSError):
            print(f"loopfuse: the results cannot be written: {why.strerror}", file=err)
        for stream in kept:
            with suppress(OSError, AttributeError):
                stream.flush()
        _to_nowhere(kept[0])  # Python would complain once more when it ends
        return unwritten
    finally:
        sys.stdout, sys.stderr = kept
