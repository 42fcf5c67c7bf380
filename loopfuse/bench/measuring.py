"""One row of a benchmark: a program on data, run again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from loopfuse import driver
from loopfuse.accelerated import Accelerated
from loopfuse.accelerated import Given as OnDevice
from loopfuse.bench.rows import Row
from loopfuse.bench.work import Work, predicted, work
from loopfuse.bind import Bound
from loopfuse.cuda import engine, measure, timing
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.program import Loaded
from loopfuse.devices import CPU, Device
from loopfuse.lock import Lock
from loopfuse.passes import Options
from loopfuse.views.plans import Planned, plan

LEAST, MOST = 5, 2000  # calls that are timed
SLOW = 1.0  # seconds of a call that is timed but once
METERED = 0.5  # seconds of calls between two looks at the meter


@dataclass(frozen=True)
class Subject:
    """What is timed: a lowered program on data, with a choice of passes, and what that choice is called; `lock`: the tiles
    to take on a GPU."""

    script: str
    lowered: driver.Lowered
    bound: Bound
    passes: str = "default"
    label: str = "default"
    freeze: tuple[str, ...] = ()
    dynamic: bool = False
    limit: int | None = None
    lock: Lock | None = None

    def optimised(self, device: Device) -> driver.Optimised:
        """The program after its passes, for these sizes and this device's costs."""
        frozen = driver.frozen_arrays(self.lowered.typed, self.bound, self.freeze)
        options = Options(device=device, sizes=self.bound.sizes, frozen=frozen)
        return driver.optimise(self.lowered, options, self.passes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes that the script leaves open, which tell rows apart."""
        return {s.id: self.bound.sizes[s.id] for s in self.lowered.typed.sizes if s.origin != "compile"}

    def row(self, backend: str) -> Row:
        """A row without results."""
        return Row(self.script, backend, self.label, self.sizes)


@dataclass(frozen=True, slots=True)
class How:
    """How long to measure (seconds of calls); whether each call finds the caches of the device `cold`; whether to
    compile `anew` as well, without what was compiled before; whether to read the energy meter."""

    seconds: float = 0.3
    cold: bool = True
    anew: bool = False
    energy: bool = True


def measured(subject: Subject, backend: str, how: How) -> Row:
    """The row of a subject. `backend` is `cuda` or `reference`. Raises what running it raises."""
    return _on_cuda(subject, how) if backend == "cuda" else _on_reference(subject, how)


def _with(row: Row, samples: list[float] | tuple[float, ...]) -> Row:
    """The row with the quartiles of its samples."""
    if len(samples) < 2:
        return replace(row, median=samples[0], low=samples[0], high=samples[0], samples=len(samples))
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return replace(row, median=median, low=low, high=high, samples=len(samples))


def _work(subject: Subject, optimised: driver.Optimised, device: Device) -> tuple[Work, Planned]:
    planned = plan(optimised.program, device, subject.bound.sizes, optimised.stages)
    sizes = driver.plan_sizes(optimised.program) | subject.bound.sizes
    return work(optimised.program, planned, device, sizes), planned


# -- the reference ----------------------------------------------------------------------------------------------------


def _on_reference(subject: Subject, how: How) -> Row:
    start = time.perf_counter()
    optimised = subject.optimised(CPU)
    compiling = time.perf_counter() - start
    samples = repeat(lambda: _run(subject, optimised), how.seconds)
    done, _ = _work(subject, optimised, CPU)
    row = replace(subject.row("reference"), device="reference", kernels=len(optimised.program.kernels), bytes=done.bytes,
                  operations=done.operations, compile=compiling)  # fmt: skip
    return _with(row, samples)


def _run(subject: Subject, optimised: driver.Optimised) -> None:
    driver.execute(optimised, subject.bound, backend="reference", limit=subject.limit)


def repeat(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each of some calls, after one that does not count."""
    samples: list[float] = []
    begin = time.perf_counter()
    call()
    least = LEAST if time.perf_counter() - begin < SLOW else 1
    begin = time.perf_counter()
    while len(samples) < least or (time.perf_counter() - begin < seconds and len(samples) < MOST):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


# -- the GPU ----------------------------------------------------------------------------------------------------------


def _on_cuda(subject: Subject, how: How) -> Row:
    gpu = engine.open_engine()
    row = subject.row("cuda")
    program = Accelerated(subject.lowered, subject.passes, subject.freeze, subject.dynamic, lock=subject.lock)
    start = time.perf_counter()
    loaded, _ = program.load(subject.bound, lambda _: subject.optimised(gpu.model))
    row = replace(row, compile=time.perf_counter() - start, cached=program.signatures[-1].found != "compiled")
    row = replace(row, device=gpu.device.name, kernels=sum(1 for _ in loaded.code.launches()))
    call = program.bind(subject.bound, OnDevice({}, {}, bound=True), lambda _: subject.optimised(gpu.model))
    try:
        call()
        call.check()
        row = _timed(row, gpu, call, how)
    finally:
        call.close()
    if how.anew:
        row = replace(row, cold=_cold(subject, gpu), warm=_warm(subject, gpu))
    loaded.close()
    model = gpu.device.describe(measure.load_calibration(gpu.device))
    done, planned = _work(subject, subject.optimised(gpu.model), model)
    return replace(row, bytes=done.bytes, operations=done.operations, roof=done.seconds, bound=done.bound,
                   predicted=predicted(loaded.code, planned))  # fmt: skip


def _timed(row: Row, gpu: engine.Engine, call: Callable[[], object], how: How) -> Row:
    """The row with the times of calls, and their energy."""
    start = time.perf_counter()
    first = timing.time_call(gpu.device, call, reps=LEAST, flush=how.cold)
    each = (time.perf_counter() - start) / LEAST
    count = max(LEAST, min(MOST, int(how.seconds / max(each, 1e-6))))
    more = timing.time_call(gpu.device, call, reps=count, flush=how.cold)
    joules = timing.energy(gpu.device, call, seconds=METERED) if how.energy else None
    return replace(_with(row, more.samples), host=min(first.host, more.host), joules=joules)


def _cold(subject: Subject, gpu: engine.Engine) -> float:
    """Seconds from the lowered program to loaded kernels with nothing compiled before."""
    start = time.perf_counter()
    optimised = subject.optimised(gpu.model)
    other = engine.Engine(gpu.device, Cache(None))
    with driver.guard("cuda"):
        loaded = other.load(optimised.program, subject.bound.sizes, dynamic=subject.dynamic, lock=subject.lock)
    spent = time.perf_counter() - start
    loaded.close()
    return spent


def _warm(subject: Subject, gpu: engine.Engine) -> float | None:
    """Seconds until kernels are loaded that are in the cache on disk; None where they cannot be there."""
    if gpu.cache.problem or subject.freeze:
        return None
    gpu.cache.programs.clear()
    gpu.cache.binaries.clear()
    program = Accelerated(subject.lowered, subject.passes, subject.freeze, subject.dynamic, lock=subject.lock)
    start = time.perf_counter()
    loaded: Loaded = program.load(subject.bound, lambda _: subject.optimised(gpu.model))[0]
    spent = time.perf_counter() - start
    loaded.close()
    return spent if program.signatures[-1].found != "compiled" else None
