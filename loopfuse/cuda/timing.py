"""How long work takes on the GPU, and what it costs the host.

GPU time is that between two events round one call, which waits behind a pause so that what the host does is hidden, with
the caches overwritten before each. Host time is that of a loop of calls that do not wait: the least that a caller sees.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopfuse.cuda.calls import Driver
from loopfuse.cuda.context import Device
from loopfuse.cuda.helpers import kernel, launch
from loopfuse.cuda.nvml import Meter
from loopfuse.diag import MachineError

PAUSE = 2_000_000  # cycles, about a millisecond
FLUSH = 256 << 20
WARM, LEAST, MOST, BUDGET = 3, 7, 50, 0.3  # calls before it counts; samples; seconds for all of them
HOST_MOST, HOST_BUDGET = 200, 0.05

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each timed call on the GPU, in order; `host`: seconds a call in a loop of calls that is waited for at its
    end; `submit`: those that the host is busy with each (waiting, too, where the device's queue is full)."""

    samples: tuple[float, ...]
    host: float
    submit: float

    @property
    def median(self) -> float:
        """Seconds on the GPU."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, in seconds."""
        return spread(self.samples)


def spread(samples: Sequence[float]) -> float:
    """The distance between the quartiles of some times; of few, between the ends."""
    if len(samples) < 4:
        return max(samples) - min(samples)
    low, _, high = statistics.quantiles(samples, n=4)
    return high - low


def time_call(device: Device, call: Call, *, stream: int = 0, reps: int | None = None, flush: bool = True) -> Timing:
    """The time of work that `call` puts on a stream without waiting. `reps`: samples (None: what 0.3 s allow, from 7 to
    50)."""
    with device.active("timing") as driver:
        for _ in range(WARM):
            call()
        driver.synchronize(stream)
        start = time.perf_counter()
        call()
        driver.synchronize(stream)
        about = max(time.perf_counter() - start, 1e-6)
        count = reps or max(LEAST, min(MOST, int(BUDGET / about)))
        (samples,) = _samples(device, driver, [call], stream, count, flush)
        return Timing(samples, *_host(driver, call, stream, about))


def time_in_turns(device: Device, calls: Sequence[Call], *, stream: int = 0, budget: float = BUDGET,
                  flush: bool = True) -> list[tuple[float, ...]]:  # fmt: skip
    """Seconds of each of several calls on the GPU, which take turns: what one draws of power moves the clock of the next, so
    that calls which are timed one after another cannot be compared. The order turns round from round to round.

    As many rounds as take about `budget` seconds, from 7 to 50.
    """
    with device.active("timing") as driver:
        for call in calls:
            for _ in range(WARM):
                call()
        driver.synchronize(stream)
        start = time.perf_counter()
        _samples(device, driver, calls, stream, 1, flush)
        about = max(time.perf_counter() - start, 1e-6)
        return _samples(device, driver, calls, stream, max(LEAST, min(MOST, int(budget / about))), flush)


def _samples(device: Device, driver: Driver, calls: Sequence[Call], stream: int, count: int, flush: bool,
             ) -> list[tuple[float, ...]]:  # fmt: skip
    spin = None
    with contextlib.suppress(MachineError):  # without a compiler the host's time is part of what is measured
        spin = kernel(device, "lf_spin")
    waste = device.take(min(FLUSH, device.memory // 8), stream) if flush else None
    first, last = driver.event(), driver.event()
    samples: list[list[float]] = [[] for _ in calls]
    turns = list(zip(calls, samples, strict=True))
    try:
        for number in range(count):
            for call, found in turns if number % 2 == 0 else reversed(turns):
                if waste is not None:
                    driver.fill(waste.pointer, 0, waste.bytes, stream)
                if spin is not None:
                    launch(driver, spin, 1, 1, stream, PAUSE)
                driver.record(first, stream)
                call()
                driver.record(last, stream)
                driver.synchronize(stream)
                found.append(driver.elapsed(first, last))
    finally:
        driver.drop_event(first)
        driver.drop_event(last)
    return [tuple(found) for found in samples]


def _host(driver: Driver, call: Call, stream: int, about: float) -> tuple[float, float]:
    count = max(3, min(HOST_MOST, int(HOST_BUDGET / about)))
    driver.synchronize(stream)
    start = time.perf_counter()
    for _ in range(count):
        call()
    submitted = time.perf_counter() - start
    driver.synchronize(stream)
    return (time.perf_counter() - start) / count, submitted / count


def energy(device: Device, call: Call, *, stream: int = 0, seconds: float = 0.5) -> float | None:
    """Joules of a call, from as many as fill some time; None where the device does not count them."""
    meter = Meter(device.uuid)
    with device.active("timing") as driver:
        driver.synchronize(stream)
        before, start, count = meter.energy(), time.perf_counter(), 0
        while before is not None and time.perf_counter() - start < seconds:
            for _ in range(10):
                call()
            count += 10
            driver.synchronize(stream)
        after = meter.energy()
    return None if before is None or after is None else (after - before) / count
