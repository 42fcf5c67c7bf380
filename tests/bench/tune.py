"""Times variants of how kernels are written: constants of the emitters, and the text of the functions that they call.

    python tests/bench/tune.py --only ew_chain,sumsq 'maps.MOST_VECTORS=1,2,4' 'text:st.global.cs=st.global' ...

Each argument is a line of variants, and every combination of one choice from each line is timed: `module.NAME=a,b`, a
constant of `loopfuse.emit` (of another package by its whole name, `loopfuse.schedule.tiles.NAME`), or
`text:old=>new|old=>new`, a replacement in what is compiled (an empty one leaves it as it is). Results are not checked;
peers.py does that.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import loopfuse_adapter
import torch
from peers import make
from timing import Clock
from workloads import WORKLOADS, Workload

from loopfuse import driver
from loopfuse.cuda import engine as engines
from loopfuse.cuda.bound import bind
from loopfuse.cuda.compile import compile_program, complaints
from loopfuse.cuda.program import Loaded
from loopfuse.emit.program import emit
from loopfuse.passes import Options

Choice = tuple[str, Callable[[], Any], str]  # its name; what sets it, and gives what was there; replacements of text


def choices(line: str) -> list[tuple[str, str, str]]:
    """The choices of a line: kind or constant, value, and how it is shown."""
    if line.startswith("text:"):
        return [("text", part, part or "as it is") for part in line[5:].split("|")]
    name, values = line.split("=", 1)
    return [(name, value, f"{name.rsplit('.', 1)[1]}={value}") for value in values.split(",")]


@contextmanager
def constants(chosen: tuple[tuple[str, str, str], ...]) -> Iterator[None]:
    """The constants of a combination, for the block."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for name, value, _ in chosen:
            if name != "text":
                home, constant = name.rsplit(".", 1)
                module = importlib.import_module(home if home.startswith("loopfuse.") else f"loopfuse.emit.{home}")
                before.append((module, constant, getattr(module, constant)))
                setattr(module, constant, int(value))
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def optimised(workload: Workload) -> tuple[driver.Optimised, dict[str, int]]:
    """The workload's program after the passes, and its sizes."""
    typed = driver.compile_source(driver.read_source(workload.path)).typed
    sizes = workload.sizes(typed)
    return driver.optimise(driver.lower_program(typed), Options(sizes=sizes)), sizes


def run(workload: Workload, lines: list[str], clock: Clock, floor: float) -> None:
    """Time the combinations of a workload."""
    inputs, outputs = make(workload)
    engine, model = engines.open_engine(), loopfuse_adapter.model(workload.through)
    found, sizes = optimised(workload)
    ends = [b.id for b in found.program.buffers if b.role == "out"]
    out = dict(zip(ends, outputs.values(), strict=True))
    for chosen in itertools.product(*map(choices, lines)):
        shown = " ".join(what for _, _, what in chosen)
        try:
            with constants(chosen):
                code = emit(found.program, sizes, model)
            for name, value, _ in chosen:
                if name == "text" and value:
                    old, new = value.split("=>")
                    code = replace(code, prelude=code.prelude.replace(old, new))
                    code = replace(code, kernels=tuple(replace(k, text=k.text.replace(old, new)) for k in code.kernels))
            binaries = compile_program(code, engine.device.arch, cache=engine.cache)
            loaded = Loaded(engine.device, code, binaries, found.program.buffers)
            call = bind(loaded, {n: inputs[n] for n in code.inputs}, {}, sizes, out)
            times = sorted(clock.samples(call))
            ms = times[len(times) // 2]
            made = ", ".join(
                f"{k.threads}t {b.registers}r {k.shared}s" for k, b in zip(code.kernels, binaries, strict=True)
            )
            bad = "; ".join(complaints(code, binaries).values())
            print(f"{workload.name:30s} {shown:60s} {ms:8.4f} ms  {floor / ms * 1e3:6.3f}  [{made}] {bad}", flush=True)
            call.close()
            loaded.close()
        except Exception as why:  # the next one may do
            print(f"{workload.name:30s} {shown:60s} {type(why).__name__}: {str(why)[:150]}", flush=True)


def main() -> None:
    """Time what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--gbps", type=float, default=4275.0, help="of a copy")
    parser.add_argument("--tflops", type=float, default=790.0, help="of a large product of bf16 matrices")
    parser.add_argument("lines", nargs="*")
    given = parser.parse_args()
    clock = Clock(0.1)
    for name, workload in WORKLOADS.items():
        if any(name.startswith(p) for p in given.only.split(",")):
            run(workload, given.lines, clock, workload.floor(given.gbps * 1e9, given.tflops * 1e12))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
