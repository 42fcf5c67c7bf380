"""How calls are timed on a GPU, in PyTorch's stream. Everything here works for a peer as for loopfuse."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

Call = Callable[[], object]
SPIN = 2_000_000  # clock ticks, about a millisecond: the host is done launching when the GPU begins
SHORT = 400_000  # the same for calls in turns, where a long pause would let the device cool: work that goes on has none
FLUSHED = 1 << 28  # bytes written before each call, several times the L2
HEAT = 1.0  # seconds of work before calls are compared
PRODUCT = 8192  # extent of the square matrices whose product says what the matrix units reach


@dataclass
class Timing:
    """Times of one way to compute a workload; None where it was not measured.

    `samples`: GPU milliseconds of single calls with a cold L2. `loop_ms`: wall time a call, back to back. `host_us`: the
    same in microseconds for calls that do not wait. `first_ms`, `cached_ms`: the first call, without and with the program
    in a cache on disk. `problem`: why there is no result, or what is wrong with it.
    """

    samples: list[float] = field(default_factory=list)
    loop_ms: float | None = None
    host_us: float | None = None
    first_ms: float | None = None
    cached_ms: float | None = None
    error: float | None = None
    problem: str = ""

    @property
    def ms(self) -> float | None:
        """The median."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def spread(self) -> float:
        """Half of the samples lie within so much of the median, as a fraction of it."""
        if len(self.samples) < 4:
            return 0.0
        low, middle, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2 / middle


def wall_ms(call: Call, wait: Callable[[], object] = torch.cuda.synchronize) -> float:
    """Milliseconds of one call, until its result is there."""
    wait()
    start = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - start) * 1e3


class Clock:
    """Times calls; `seconds` is about what one measurement may take."""

    def __init__(self, seconds: float = 0.3) -> None:
        self.seconds = seconds
        self._flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")

    def samples(self, call: Call) -> list[float]:
        """GPU milliseconds of single calls: events around each, queued behind a spin, the L2 flushed before."""
        for _ in range(3):
            call()
        repeats = self._repeats(wall_ms(call) + 1.2, 7, 50)
        return [self._sample(call) for _ in range(repeats)]

    def rounds(self, calls: Mapping[str, Call]) -> dict[str, list[float]]:
        """`samples` of several calls in turns, forth and back, so that heat and power favour none of them.

        The device is to be as warm, and its clocks as low, as work that goes on leaves it: before the samples the calls run
        back to back for a while, and the pause before each is short.
        """
        start = time.perf_counter()
        while time.perf_counter() - start < HEAT:
            for call in [*calls.values()] * 3:
                call()
            torch.cuda.synchronize()
        repeats = self._repeats(sum(wall_ms(call) + 0.4 for call in calls.values()) / max(len(calls), 1), 20, 60)
        found: dict[str, list[float]] = {who: [] for who in calls}
        order = list(calls)
        for _ in range(repeats):
            for who in order:
                found[who].append(self._sample(calls[who], SHORT))
            order.reverse()
        return found

    def _sample(self, call: Call, spin: int = SPIN) -> float:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        torch.cuda._sleep(spin)
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after))

    def host_us(self, call: Call) -> float:
        """Microseconds a call takes the host; that of the GPU where it takes longer."""
        estimate = wall_ms(call)
        repeats = self._repeats(estimate * 6, 5, 400)
        for _ in range(min(repeats, 50)):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / repeats * 1e6

    def loop_ms(self, call: Call, wait: Callable[[object], object]) -> float:
        """Milliseconds of wall time a call, back to back: the median of five rounds."""
        return self.loops({"": (call, wait)})[""]

    def loops(self, calls: Mapping[str, tuple[Call, Callable[[object], object]]]) -> dict[str, float]:
        """`loop_ms` of several calls, their rounds in turns."""
        repeats = {}
        for who, (call, wait) in calls.items():
            wait(call())
            start = time.perf_counter()
            wait(call())
            repeats[who] = self._repeats((time.perf_counter() - start) * 1e3 * 5, 5, 100)
        found: dict[str, list[float]] = {who: [] for who in calls}
        for _ in range(5):
            for who, (call, wait) in calls.items():
                start = time.perf_counter()
                for _ in range(repeats[who]):
                    last = call()
                wait(last)
                found[who].append((time.perf_counter() - start) / repeats[who] * 1e3)
        return {who: statistics.median(taken) for who, taken in found.items()}

    def copy_bandwidth(self) -> float:
        """Gigabytes a second of a large copy on the device, reading and writing counted."""
        source = torch.empty(1 << 31, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        return 2 * source.numel() / statistics.median(self.samples(lambda: target.copy_(source))) / 1e6

    def matrix_peak(self) -> float:
        """Operations a second of a large product of bf16 matrices."""
        a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda").bfloat16() for _ in range(2))
        return 2e3 * PRODUCT**3 / statistics.median(self.samples(lambda: a @ b))

    def _repeats(self, ms: float, least: int, most: int) -> int:
        return max(least, min(most, int(self.seconds * 1e3 / max(ms, 1e-4))))
