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
from loopfuse.driver import Clock, compile_source, lower_program, optimise, read_source


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


def lets(count: int) -> str:
    """A chain of `count` elementwise operations, a definition each."""
    steps = ("t{} * 1.5", "maximum(t{}, 0.5)", "t{} - x", "t{} + 1", "tanh(t{})")
    lines = [f"let t{k} = {steps[k % len(steps)].format(k - 1)}" for k in range(1, count)]
    return "\n".join(["input x: f32[N]", "let t0 = x", *lines, f"output y = t{count - 1}", ""])


def shared(count: int) -> str:
    """As `lets`, each value used by the three after it."""
    lines = [f"let t{k} = t{k - 1} * 0.5 + t{k - 2} - t{k - 3}" for k in range(3, count)]
    return "\n".join(["input x: f32[N]", "let t0 = x", "let t1 = x + 1", "let t2 = x * 2", *lines,
                      f"output y = t{count - 1}", ""])  # fmt: skip


def wide(count: int) -> str:
    """`count` outputs that read two inputs and nothing of one another."""
    forms = ("exp(x) * {} + y", "maximum(x, {}) - y", "x * y + {}", "tanh(x + {})", "sqrt(abs(x - y * {}))")
    lines = [f"output y{k} = {forms[k % len(forms)].format(k + 1.5)}" for k in range(count)]
    return "\n".join(["input x: f32[N]", "input y: f32[N]", *lines, ""])


def scan(count: int) -> str:
    """A recurrence whose step has `count` definitions."""
    steps = ("t{} * 0.5", "tanh(t{})", "t{} - h", "t{} + x[t]")
    lines = [f"  let t{k} = {steps[k % len(steps)].format(k - 1)}" for k in range(1, count)]
    return "\n".join(["input x: f32[T, N]", "scan t in 0..T carry (h = zeros(f32, N)) {", "  let t0 = h + x[t]", *lines,
                      f"  next h = t{count - 1}", "}", "output h", ""])  # fmt: skip


def passes(source: Source, search: Path | None = None) -> dict[str, float]:
    """Seconds by stage of a script through all passes, each verified."""
    clock = Clock()
    lowered = lower_program(compile_source(source, search=search, clock=clock).typed, clock=clock)
    optimise(lowered, clock=clock)
    return clock.stages


def least(source: Source, search: Path | None = None, times: int = 5) -> dict[str, float]:
    """The stages of the quickest of several runs."""
    return min((passes(source, search) for _ in range(times)), key=lambda found: sum(found.values()))


def through_passes() -> None:
    """The table of whole compilations: the front end (checked, lowered, verified), the passes, and both."""
    print(f"\n{'program':<34}{'front end':>12}{'passes':>10}{'total':>10}")
    root = Path(__file__).parents[2]
    rows: list[tuple[str, dict[str, float]]] = [
        (name, least(Source("bench.lf", text), times=2))
        for name, text in (
            ("chain of 1,000 lets", lets(1000)), ("chain of 4,000 lets", lets(4000)),
            ("1,000 lets, three uses each", shared(1000)), ("4,000 lets, three uses each", shared(4000)),
            ("scan of 300 lets", scan(300)), ("50 outputs of two inputs", wide(50)),
            ("200 outputs of two inputs", wide(200)),
        )
    ]  # fmt: skip
    paths = sorted((root / "tests/scripts").glob("*.lf"))
    paths += [root / "examples/14_resnet_block.lf", root / "examples/16_multi_head_attention.lf",
              root / "tests/fusion/transformer_ffn.lf"]  # fmt: skip
    rows += [(f"{path.parent.name}/{path.stem}", least(read_source(path), path.parent)) for path in paths]
    for name, found in rows:
        front = sum(seconds for stage, seconds in found.items() if stage != "passes")
        print(
            f"{name:<34}{front * 1e3:>9.0f} ms{found['passes'] * 1e3:>7.0f} ms{(front + found['passes']) * 1e3:>7.0f} ms"
        )


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
    through_passes()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "small.lf"
        script.write_text("input x: f32[N]\noutput y = tanh(x) * 2\n", encoding="utf-8")
        for words in (["--version"], ["run", str(script), "x=randn", "--dims", "N=8"]):
            name = f"loopfuse {words[0]}{' (small script)' if len(words) > 1 else ''}"
            print(f"{name:<28}{best(command(*words)) * 1e3:>37.0f} ms")


if __name__ == "__main__":
    main()
