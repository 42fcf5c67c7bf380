"""What a GPU can do, measured on it: the figures of `loopfuse.devices.Device`, kept for later processes."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from loopfuse import devices
from loopfuse.cuda.calls import Driver
from loopfuse.cuda.context import Device
from loopfuse.cuda.helpers import kernel, launch
from loopfuse.cuda.pool import Block
from loopfuse.frontend.lalr import cache_folder
from loopfuse.outside import read_json, read_private

THREADS, WAVES, UNROLLED = 256, 8, 64  # of the kernels that keep arithmetic units busy
ROUNDS = 4000
SAMPLES = 5
MOST_OF_FILE, MOST_VALUE = 1 << 20, 1e30
FIELDS = ("bandwidth", "cache_bandwidth", "latency", "fp32", "fp64", "special", "integer", "launch", "graph_launch")


def measure(device: Device, told: Callable[[str], None] = lambda name: None) -> dict[str, float]:
    """Measured values for `loopfuse.devices.device`: bandwidths in bytes, rates in operations a second, times in seconds.

    It takes a second or two and an eighth of the device's memory; `told` hears what comes next. Raises `MachineError`
    where there is no compiler, `UserError` LF0509 where there is no memory.
    """
    with device.active("measuring") as driver:
        works: dict[str, Callable[[], float]] = {
            "bandwidth": lambda: max(copies(device).values()),
            "cache_bandwidth": lambda: _cache(device, driver),
            "latency": lambda: _latency(device, driver),
            "fp32": lambda: 2 * _rate(device, driver, "lf_fma", 1.0001, 0.5),
            "fp64": lambda: 2 * _rate(device, driver, "lf_fma64", 0x3FF0000000000001, 0),
            "special": lambda: _rate(device, driver, "lf_special"),
            "integer": lambda: _rate(device, driver, "lf_integer", 3),
            "launch": lambda: _launch(device, driver),
            "graph_launch": lambda: _graph(device, driver),
        }
        found: dict[str, float] = {}
        for name, work in works.items():
            told(name)
            found[name] = work()
        device.pool.trim()
    return found


def copies(device: Device) -> dict[str, float]:
    """Bytes a second, read and written, of a copy by a kernel and by the driver."""
    with device.active("measuring") as driver:
        count = min(2 << 30, device.memory // 16) // 4096 * 4096
        source, target = device.take(count, 0), device.take(count, 0)
        driver.fill(source.pointer, 1, count, 0)
        copy, vectors = kernel(device, "lf_copy"), count // 16

        def by_kernel() -> None:
            launch(driver, copy, -(-vectors // 1024), THREADS, 0, target.pointer, source.pointer, vectors)

        def by_driver() -> None:
            driver.copy(target.pointer, source.pointer, count, 0)

        return {"kernel": 2 * count / seconds(driver, by_kernel), "driver": 2 * count / seconds(driver, by_driver)}


def seconds(driver: Driver, call: Callable[[], None]) -> float:
    """The median time of some work on the default stream, after one call that does not count."""
    first, last = driver.event(), driver.event()
    samples: list[float] = []
    try:
        call()
        for _ in range(SAMPLES):
            driver.record(first, 0)
            call()
            driver.record(last, 0)
            driver.synchronize(0)
            samples.append(driver.elapsed(first, last))
    finally:
        driver.drop_event(first)
        driver.drop_event(last)
    return statistics.median(samples)


def _rate(device: Device, driver: Driver, name: str, *arguments: int | float) -> float:
    """Operations a second of a kernel whose threads each make `UNROLLED` a round."""
    function, out, blocks = kernel(device, name), _small(device), device.units * WAVES
    rounds = ROUNDS if name != "lf_fma64" or device.describe().fp64 > 1e13 else ROUNDS // 16
    spent = seconds(driver, lambda: launch(driver, function, blocks, THREADS, 0, out.pointer, *arguments, rounds))
    return blocks * THREADS * UNROLLED * rounds / spent


def _cache(device: Device, driver: Driver) -> float:
    function, out = kernel(device, "lf_reread"), _small(device)
    count, times = max(1 << 20, device.cache // 4) // 16 * 16, 40
    source = device.take(count, 0)
    spent = seconds(driver, lambda: launch(driver, function, device.units * WAVES, THREADS, 0, out.pointer,
                                           source.pointer, count // 16, times))  # fmt: skip
    return count * times / spent


def _latency(device: Device, driver: Driver) -> float:
    out, times = _small(device), 20_000
    count = min(1 << 28, device.memory // 64) // 4
    source = device.take(4 * count, 0)
    step = 1_048_583 % count  # a prime, four mebibytes on: each sample goes on where the last one ended
    driver.fill(out.pointer, 0, 4, 0)
    launch(driver, kernel(device, "lf_chain"), -(-count // THREADS), THREADS, 0, source.pointer, count, step)
    walk = kernel(device, "lf_walk")
    return seconds(driver, lambda: launch(driver, walk, 1, 1, 0, out.pointer, source.pointer, times)) / times


def _launch(device: Device, driver: Driver, count: int = 2000) -> float:
    """Seconds from one launch to the next where the host makes each."""
    run = driver.launcher(kernel(device, "lf_nothing"), (1, 1, 1), 32, 0, 0, 0)
    for _ in range(100):
        run()
    driver.synchronize(0)
    start = time.perf_counter()
    for _ in range(count):
        run()
    driver.synchronize(0)
    return (time.perf_counter() - start) / count


def _graph(device: Device, driver: Driver, count: int = 500) -> float:
    """Seconds from one launch to the next inside a graph."""
    graph = driver.graph()
    try:
        for _ in range(count):
            graph.add_launch(kernel(device, "lf_nothing"), (1, 1, 1), 32, 0, 0)
        graph.instantiate()
        return seconds(driver, graph.launcher(0)) / count
    finally:
        driver.synchronize(0)
        graph.close()


def _small(device: Device) -> Block:
    return device.take(256, 0)


# -- kept between processes -------------------------------------------------------------------------------------------


def calibration_file() -> Path | None:
    """Where measured values are kept; None where there is no home folder."""
    folder = cache_folder()
    return folder / "calibration.json" if folder else None


def load_calibration(device: Device) -> dict[str, float]:
    """What was measured on this very device before; nothing where nothing was, or what is there cannot be used."""
    entry = _read().get(f"{device.name} {device.uuid}")
    values = entry.get("measured") if isinstance(entry, dict) else None
    return usable(values) if isinstance(values, dict) else {}


def usable(values: Mapping[Any, Any]) -> dict[str, float]:
    """The values that a device has, as far as they are positive numbers."""
    known = {f.name for f in fields(devices.Device)} & set(FIELDS)
    return {str(k): float(v) for k, v in values.items()
            if k in known and isinstance(v, int | float) and 0 < v < MOST_VALUE}  # fmt: skip


def store_calibration(device: Device, measured: Mapping[str, float]) -> Path | None:
    """Keep measured values for later processes. Returns the file, or None where it cannot be written."""
    path = calibration_file()
    if path is None:
        return None
    entries = _read() | {f"{device.name} {device.uuid}": {"measured": usable(measured), "time": int(time.time())}}
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".calibration")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        return None
    return path


def _read() -> dict[str, Any]:
    path = calibration_file()
    try:
        found = read_json(read_private(path, MOST_OF_FILE) or b"{}") if path else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
