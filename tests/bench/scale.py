"""How the compiler scales: long scripts, deep chains, many inputs, start-up. `make bench` prints the table.

Sizes of scripts, not of data: every program here runs on a few elements.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loopfuse.diag import Source
from loopfuse.driver import Clock, compile_source, lower_program


def statements(count: int) -> str:
    """A script of `count` definitions, each an elementwise expression of the one before."""
    lines = ["input x: f32[N]", "let t0 = x"]
    lines += [f"let t{k} = t{k - 1} * {1 + k % 7} + x if t{k - 1} > {k % 5} else t{k - 1} - 1" for k in range(1, count)]
    return "\n".join([*lines, f"output y = t{count - 1}", ""])


def chain(count: int) -> str:
    """One expression of `count` operations."""
    return f"input x: f32[N]\noutput y = x{''.join(f' + {k % 9 + 1}' for k in range(count))}\n"


def inputs(count: int) -> str:
    """A program of `count` inputs."""
    lines = [f"input x{k}: f32[N, D{k % 10}]" for k in range(count)]
    return "\n".join([*lines, "output y = " + " + ".join(f"sum(x{k})" for k in range(count)), ""])


def stages(text: str) -> dict[str, float]:
    """Seconds by stage of compiling a script."""
    clock = Clock()
    checked = compile_source(Source("bench.lf", text), clock=clock)
    lower_program(checked.typed, clock=clock)
    return clock.stages


def best(action: Callable[[], object], times: int = 5) -> float:
    """The least seconds of several runs."""
    found: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return min(found)


def command(*words: str) -> Callable[[], object]:
    """A run of the command line in a process of its own, with Python's bytecode cache as an installed package has it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run([sys.executable, "-m", "loopfuse", *words], check=True, capture_output=True, env=env)


def main() -> None:
    """Measure and print."""
    stages(statements(3))  # the parse tables are in their cache from here on
    print(f"{'program':<28}{'check':>10}{'lower':>10}{'verify':>10}{'total':>10}")
    for name, text in (("100 statements", statements(100)), ("1,000 statements", statements(1000)),
                       ("chain of 1,000 operations", chain(1000)), ("chain of 10,000 operations", chain(10_000)),
                       ("60 inputs", inputs(60)), ("600 inputs", inputs(600))):  # fmt: skip
        found = stages(text)
        cells = "".join(f"{found[stage] * 1e3:>7.0f} ms" for stage in ("check", "lower", "verify"))
        print(f"{name:<28}{cells}{sum(found.values()) * 1e3:>7.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "small.lf"
        script.write_text("input x: f32[N]\noutput y = tanh(x) * 2\n", encoding="utf-8")
        for words in (["--version"], ["run", str(script), "x=randn", "--dims", "N=8"]):
            name = f"loopfuse {words[0]}{' (small script)' if len(words) > 1 else ''}"
            print(f"{name:<28}{best(command(*words)) * 1e3:>37.0f} ms")


if __name__ == "__main__":
    main()
