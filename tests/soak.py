"""Thousands of compilations in one process, and what they leave: `python tests/soak.py [N]`, or `make soak`.

Random programs go through the front end, the passes and emission; where there is a GPU, through the compiler, loading and a
run too. A line each 500: memory of the process, open files, what the package keeps, and memory of the device.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from functools import _lru_cache_wrapper
from pathlib import Path
from random import Random
from typing import Any

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cuda import engine
from loopfuse.devices import H200
from loopfuse.diag import Source
from loopfuse.emit.program import emit
from loopfuse.testing.choices import Steered
from loopfuse.testing.scripts import script

EVERY = 500


def main() -> int:
    """The soak; the exit code is 1 where the process grew by more than a tenth after the first fifth."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    gpu = not engine.usable()
    figures = []
    start = time.perf_counter()
    for number in range(1, count + 1):
        compile_one(number, gpu)
        if number % min(EVERY, max(count // 5, 1)) == 0:
            figures.append(held(gpu))
            told = ", ".join(f"{name} {value}" for name, value in figures[-1].items())
            print(f"{number} programs, {time.perf_counter() - start:.0f} s: {told}", flush=True)
    first, last = figures[len(figures) // 5], figures[-1]
    grown = [n for n in first if n != "kept" and last[n] > first[n] * 1.1 + 16]
    print(f"grew: {', '.join(grown)}" if grown else "nothing grew")
    return int(bool(grown))


def compile_one(number: int, gpu: bool = False) -> None:
    """One random program, never the same."""
    text = script(Steered(Random(number)), 3) + f"output unique_{number} = {number}.0\n"
    typed = driver.compile_source(Source(f"soak-{number}.lf", text)).typed
    lowered = driver.lower_program(typed)
    done = driver.optimise(lowered)
    emit(done.program, {s.id: s.value or 8 for s in done.program.sizes}, H200)
    if gpu:
        bound = driver.bind_program(typed, Given({}, fill=True, limit=1 << 24))
        driver.execute(done, bound, backend="cuda")


def caches() -> dict[str, int]:
    """Entries of every `functools` cache of the package that has no bound, and of the mappings of its modules."""
    found: dict[str, int] = {}
    for name, module in list(sys.modules.items()):
        if name == "loopfuse" or name.startswith("loopfuse."):
            for key, value in vars(module).items():
                if isinstance(value, _lru_cache_wrapper) and value.cache_parameters()["maxsize"] is None:
                    found[f"{value.__module__}.{key}"] = value.cache_info().currsize
                elif isinstance(value, dict) and key.startswith("_") and not key.startswith("__"):
                    found[f"{name}.{key}"] = len(value)
    return found


def held(gpu: bool = False) -> dict[str, int]:
    """What the process holds now: MiB of memory, open files, entries kept by the package, MiB of the device."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    figures = {"MiB": pages * os.sysconf("SC_PAGE_SIZE") >> 20, "files": len(os.listdir("/proc/self/fd")),
               "kept": sum(caches().values())}  # fmt: skip
    if gpu:
        device: Any = engine.open_engine().device
        device.synchronize()
        device.trim()
        figures["device MiB"] = (device.memory - device.free_memory()) >> 20
    return figures


if __name__ == "__main__":
    sys.exit(main())
