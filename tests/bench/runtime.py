"""What a call costs the host, on the GPU of this machine: `python tests/bench/runtime.py`.

Programs of 1, 2, 5 and 20 launches of a small kernel are called, replayed as a graph, and launched one by one, each on
arrays of this package and, where it is installed, of PyTorch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu_programs import BLOCKS, Given, kernel, load, vector

from loopfuse.cuda.arrays import to_device
from loopfuse.cuda.bound import bind
from loopfuse.cuda.context import Device, open_device
from loopfuse.cuda.program import Loaded
from loopfuse.emit.code import Code, Launch, Number, Pointer
from loopfuse.sizes import Poly

ELEMENTS = 64 * 256


def chain(length: int) -> Given:
    """As many launches of one kernel, each on the result of the one before."""
    add = kernel("add", "float* z, const float* x, int n", "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                 "  if (i < n) z[i] = x[i] + 1;")  # fmt: skip
    ids = ["x", *["z"] * length]
    steps = tuple(Launch("add", BLOCKS, (Pointer(to), Pointer(of), Number(Poly.of("N"), 32)))
                  for of, to in pairwise(ids))  # fmt: skip
    return Given(Code("chain", "", (add,), steps, (), ("x",), (), ("z",), ("N",)), (vector("x"), vector("z")))


def host(device: Device, call: Callable[[], object], count: int = 300) -> tuple[float, float]:
    """Microseconds that the host is busy with a call, and that a call takes with the wait at the end; the best of 5."""
    best = [1e9, 1e9]
    for _ in range(5):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        busy = time.perf_counter() - start
        device.synchronize()
        best = [min(best[0], busy / count * 1e6), min(best[1], (time.perf_counter() - start) / count * 1e6)]
    return best[0], best[1]


def ways(device: Device, program: Loaded, a: Any, b: Any) -> dict[str, Callable[[], object]]:
    """The calls to time, on an input and an output."""
    sizes = {"N": ELEMENTS}
    bound = bind(program, {"x": a}, {}, sizes, {"z": b}, how="graph")
    swap = [a, b]

    def rebind() -> None:
        swap.reverse()
        bound.rebind(x=swap[0], out={"z": swap[1]})

    return {
        "call": lambda: program.call({"x": a}, {}, sizes),
        "call, out": lambda: program.call({"x": a}, {}, sizes, {"z": b}),
        "graph": bind(program, {"x": a}, {}, sizes, {"z": b}, how="graph"),
        "direct": bind(program, {"x": a}, {}, sizes, {"z": b}, how="direct"),
        "rebind": rebind,
    }


def main() -> None:
    """Print a table."""
    device = open_device()
    zeros = np.zeros(ELEMENTS, np.float32)
    kinds: dict[str, tuple[Any, Any]] = {"own arrays": (to_device(device, zeros), to_device(device, zeros))}
    try:
        import torch

        kinds["torch"] = (torch.zeros(ELEMENTS, device="cuda"), torch.zeros(ELEMENTS, device="cuda"))
    except ImportError:
        pass
    print(f"{device!r}\nmicroseconds of the host a call: busy / with the wait at the end")
    with device.active():
        print(f"{'enter':34s} {host(device, device.driver.enter, 2000)[0]:8.2f}")
    for length in (1, 2, 5, 20):
        program = load(device, chain(length))
        for kind, (a, b) in kinds.items():
            for way, call in ways(device, program, a, b).items():
                busy, whole = host(device, call)
                print(f"{length:3d} launches, {kind:10s} {way:10s} {busy:8.2f} / {whole:8.2f}")


if __name__ == "__main__":
    main()
