"""A limit of processor time for what runs in the main thread of a process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(BaseException):
    """What was limited did not end in time. No handler of errors stops it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the body once it has taken so long, in seconds of the processor: how busy the machine is, is no matter.

    Where there are no timers (another thread than the main one, a system without them) the body runs as long as it takes;
    so does a call that waits, or does not come back to Python.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, ring)
    left, again = signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left, again)
        signal.signal(signal.SIGPROF, before)
