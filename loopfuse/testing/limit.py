"""Limits of time for what runs in the main thread of a process: of the processor's, and by the clock on the wall."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FAR = 1e8  # seconds, three years, from which on nothing is limited
AGAIN = 1.0  # seconds until it is said once more, where a call back from C has lost the first time


class TooLong(BaseException):
    """What was limited did not end in time. No handler of errors stops it."""


class TimeUp(BaseException):
    """The time of all is over, whatever runs."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the body once it has taken so long, in seconds of the processor: how busy the machine is, is no matter.

    Where there are no timers (another thread than the main one, a system without them) the body runs as long as it takes;
    so does a call that waits, or does not come back to Python.
    """
    if not _has_timers():
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


@contextmanager
def until(end: float) -> Iterator[None]:
    """Raise `TimeUp` in the body at a time of `time.time()`, which processes share. Where there are no timers, as for
    `limited`, only before the body."""
    left = end - time.time()
    if left <= 0:
        raise TimeUp
    if left > FAR or not _has_timers():
        yield
        return
    inside = True

    def ring(*_: Any) -> None:
        if inside:
            raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, left, AGAIN)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _has_timers() -> bool:
    return threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
