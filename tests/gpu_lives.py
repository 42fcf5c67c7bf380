"""Processes that end in several ways with a context open: `python gpu_lives.py ends|forks|breaks`."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import warnings

import numpy as np
from gpu_programs import BROKEN, TWICE, load

from loopfuse.cuda.bound import bind
from loopfuse.cuda.context import open_device
from loopfuse.diag import LoopfuseError

KEPT: list[object] = []


def alive() -> tuple[object, ...]:
    """A device with a program, a bound call and a result."""
    device = open_device()
    program = load(device, TWICE)
    x = np.ones(8, np.float32)
    bound = bind(program, {"x": x, "y": x}, {"s": 1.0}, {"N": 8}, how="graph")
    return device, program, bound, program.call({"x": x, "y": x}, {"s": 1.0}, {"N": 8})["z"], bound()


def ends() -> None:
    KEPT.extend(alive())
    print("done")


def told(use: object) -> None:
    """Print what a use of the GPU raises."""
    try:
        use()  # type: ignore[operator]
        print("no error")
    except LoopfuseError as why:
        print(type(why).__name__, why, flush=True)


def child(kept: list[object]) -> None:
    """In a forked process: everything says the same, and going away is quiet."""
    told(open_device)
    told(kept[2])
    told(kept[3].numpy)  # type: ignore[attr-defined]
    kept.clear()
    gc.collect()


def forks() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which a driver has
    KEPT.extend(alive())
    device, z = KEPT[0], KEPT[3]
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=child, args=(KEPT,))
    process.start()
    process.join()
    pid = os.fork()
    if not pid:
        KEPT.clear()
        sys.exit(0)  # the whole way out, with what runs at exit
    _, status = os.waitpid(pid, 0)
    print("child ended", process.exitcode or os.waitstatus_to_exitcode(status))
    device.synchronize()  # type: ignore[attr-defined]
    print("parent goes on", z.numpy()[0])  # type: ignore[attr-defined]


def breaks() -> None:
    KEPT.extend(alive())
    program = load(open_device(), BROKEN)
    told(lambda: program.call({}, to_host=True))
    told(lambda: program.call({}, to_host=True))
    told(KEPT[2])


if __name__ == "__main__":
    {"ends": ends, "forks": forks, "breaks": breaks}[sys.argv[1]]()
