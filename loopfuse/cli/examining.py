"""What `loopfuse doctor` finds out about the GPU side: driver, compiler, context, kernels that run, cache, roofs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loopfuse import devices, driver
from loopfuse.bind import Given
from loopfuse.cuda import helpers, measure
from loopfuse.cuda.cache import Cache, open_cache
from loopfuse.cuda.compile import compile_kernel
from loopfuse.cuda.context import open_device
from loopfuse.cuda.nvidia import LEAST_DRIVER
from loopfuse.cuda.nvml import Meter
from loopfuse.cuda.presence import Presence, presence, release
from loopfuse.cuda.toolchain import INSTALL, find_compiler, find_tool
from loopfuse.diag import LoopfuseError, MachineError, Source
from loopfuse.dtypes import DTYPES
from loopfuse.memory import show_bytes
from loopfuse.views.tables import duration, significant

COUNT = 1000  # elements of a test, which no vector divides
TESTS = {"test kernel": "f32", "bf16": "bf16"}
# What the cost model takes from a measurement: name, unit, what one unit is.
ROOFS = (
    ("bandwidth", "copy bandwidth", "TB/s", 1e12), ("cache_bandwidth", "cache bandwidth", "TB/s", 1e12),
    ("latency", "memory latency", "ns", 1e-9), ("fp32", "f32 arithmetic", "TFLOP/s", 1e12),
    ("fp64", "f64 arithmetic", "TFLOP/s", 1e12), ("special", "exp, rsqrt, ..", "Tops/s", 1e12),
    ("integer", "integer arithmetic", "Tops/s", 1e12), ("launch", "a launch", "us", 1e-6),
    ("graph_launch", "a launch in a graph", "us", 1e-6),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report; `ok` is None for what is absent and not needed."""

    subject: str
    value: str
    ok: bool | None = True


def findings(measuring: bool, told: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """The GPU side, a finding at a time. With `measuring` the device is measured and the figures kept."""
    there = presence()
    yield _driver(there)
    compiling = _compiler(there)
    yield compiling
    yield _tool("nvcc", "compiles where NVRTC is not installed")
    yield _tool("nvdisasm", "for `ir --emit sass`")
    if there.absent:
        if measuring:
            yield Finding("measure", "there is no GPU to measure", False)
    elif there.status == 0:
        yield from _device(compiling.ok is True, measuring, told)
    yield _cache(open_cache())


def _driver(there: Presence) -> Finding:
    if not there.library:
        return Finding("GPU driver", "no libcuda (programs run on the reference interpreter)", None)
    if there.absent:
        return Finding("GPU driver", f"CUDA {release(there.version)}, and no GPU that this process may use", None)
    if there.status:
        return Finding("GPU driver", f"it does not start (error {there.status}): see nvidia-smi", False)
    if there.version < LEAST_DRIVER:
        return Finding("GPU driver", f"CUDA {release(there.version)}, and {release(LEAST_DRIVER)} is needed: install "
                       "driver 580 or later", False)  # fmt: skip
    return Finding("GPU driver", f"CUDA {release(there.version)}, GPUs: {there.devices}")


def _compiler(there: Presence) -> Finding:
    """The compiler, tried on a small kernel; it is needed where there is a GPU."""
    needed = None if there.absent else False
    try:
        compiler = find_compiler()
        start = time.perf_counter()
        compile_kernel(helpers.TEXTS["lf_nothing"], "lf_nothing", "sm_80", contract=True)
    except MachineError as why:
        return Finding("CUDA compiler", f"{why}", needed)
    except LoopfuseError as why:
        return Finding("CUDA compiler", f"it compiles nothing: {str(why).splitlines()[0]}; {INSTALL}", needed)
    took = duration(time.perf_counter() - start)
    newest = f"up to sm_{max(compiler.archs)}" if compiler.archs else "for any GPU"
    return Finding("CUDA compiler", f"{compiler.version}, {newest}; an empty kernel takes {took}")


def _tool(name: str, why: str) -> Finding:
    path = find_tool(name)
    return Finding(name, path or f"not found (optional: {why})", True if path else None)


# -- the device -------------------------------------------------------------------------------------------------------


def _device(compiles: bool, measuring: bool, told: Callable[[str], None]) -> Iterator[Finding]:
    try:
        device = open_device()
    except LoopfuseError as why:
        yield Finding("GPU context", str(why), False)
        return
    yield Finding("GPU context", f"{device.name}, {device.arch}, {show_bytes(device.memory)}, "
                  f"{device.units} multiprocessors")  # fmt: skip
    if compiles:
        for subject, dtype in TESTS.items():
            yield _test(subject, dtype)
    energy = Meter(device.uuid).energy()
    yield Finding("energy meter", "answers" if energy is not None else "does not answer (optional)",
                  True if energy is not None else None)  # fmt: skip
    if measuring and compiles:
        try:
            path = measure.store_calibration(device, measure.measure(device, told))
        except LoopfuseError as why:
            yield Finding("measure", str(why), False)
        else:
            yield Finding("measure", f"kept in {path}" if path else "measured, and there is no folder to keep it in",
                          True if path else None)  # fmt: skip
    yield from _roofs(device.describe(), measure.load_calibration(device))


def _test(subject: str, dtype: str) -> Finding:
    """A program that is compiled and run, its results checked to the last bit."""
    text = f"input x: {dtype}[N]\noutput y = x * 2 + 1\noutput s = max(y)\n"
    x = (np.arange(COUNT) % 100).astype(DTYPES[dtype].numpy)
    start = time.perf_counter()
    try:
        typed = driver.compile_source(Source(f"<{subject}>", text)).typed
        found = driver.run_program(typed, Given({"x": x}), backend="cuda").outputs
        expected = driver.run_program(typed, Given({"x": x}), backend="reference").outputs
    except LoopfuseError as why:
        return Finding(subject, str(why).strip().splitlines()[0], False)
    if any(not np.array_equal(found[name], expected[name]) for name in expected):
        return Finding(subject, f"it runs on the GPU, and its results in {dtype} are wrong", False)
    return Finding(subject, f"right, in {duration(time.perf_counter() - start)} with what compiling took")


def _roofs(preset: devices.Device, measured: Mapping[str, float]) -> Iterator[Finding]:
    """What the cost model reckons with, and what was measured."""
    for name, words, unit, scale in ROOFS:
        had = f"{significant(getattr(preset, name) / scale)} {unit} by the preset"
        if name in measured:
            value = measured[name]
            yield Finding(words, f"{significant(value / scale)} {unit} measured, {had}")
        else:
            yield Finding(words, f"{had}; `loopfuse doctor --measure` measures it", None)


def _cache(cache: Cache) -> Finding:
    """What is compiled already, and whether more can be kept."""
    folder: Path | None = cache.folder
    entries = cache.entries()
    if cache.problem or folder is None:
        return Finding(
            "compiled", f"{cache.problem or 'there is no folder'}: everything is compiled once a process", None
        )
    size = show_bytes(sum(entry.bytes for entry in entries))
    return Finding(
        "compiled", f"{len(entries)} programs and kernels, {size} of {show_bytes(cache.most_bytes)}, in {folder}"
    )
