"""What the tests of passes ask: that a pass keeps what a program means, and the program valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse import driver
from loopfuse.backends.reference import Result, run
from loopfuse.bind import Bound, Given
from loopfuse.ir import Program
from loopfuse.passes import Options, Pass, Stage
from loopfuse.passes.manager import run_pass
from loopfuse.printer import print_program
from loopfuse.reader import parse_program

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parent
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.lf")), *sorted((ROOT.parent / "examples").glob("*.lf"))]


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the bit, all NaNs being one."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = np.dtype(f"u{a.dtype.itemsize}")
    nan = (a != a) & (b != b)
    return bool(np.all((np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)) | nan))


def text(program: str) -> Program:
    """A program from IR text, which must be valid."""
    parsed = parse_program(program)
    driver.verify_program(parsed, "test")
    return parsed


def apply(p: Pass, program: Program | str, **options: Any) -> Stage:
    """Run one pass; its result must be valid, every access in range."""
    given = text(program) if isinstance(program, str) else program
    return run_pass(p, given, Options(**options), ranges=True)


def shown(program: Program) -> str:
    """The text of a program, without the lines of declarations."""
    lines = print_program(program).splitlines()
    return "\n".join(line for line in lines if line.startswith((" ", "kernel"))) + "\n"


def assert_keeps_bits(p: Pass, program: Program, sizes: Mapping[str, int], inputs: Mapping[str, Array],
                      **options: Any) -> Stage:  # fmt: skip
    """The pass gives a valid program with the same outputs, to the bit, and changes nothing the second time."""
    before = run(program, inputs, sizes)
    stage = run_pass(p, program, Options(**options))
    assert_same(before, run(stage.program, inputs, sizes))
    again = run_pass(p, stage.program, Options(**options))
    assert again.program is stage.program, print_program(again.program)
    return stage


def assert_same(before: Result, after: Result) -> None:
    """The same outputs to the bit, and the same faults."""
    assert before.outputs.keys() == after.outputs.keys()
    for name, array in before.outputs.items():
        assert same_bits(array, after.outputs[name]), name
    assert {f.buffer for f in before.faults} == {f.buffer for f in after.faults}


def lowered_script(path: Path) -> tuple[driver.Lowered, Bound]:
    """A script lowered, and made-up small data for it."""
    checked = driver.compile_source(driver.read_source(path), search=path.parent)
    bound = driver.bind_program(checked.typed, Given({}, fill=True))
    return driver.lower_program(checked.typed), bound


def with_values(program: Program, sizes: Mapping[str, int]) -> Program:
    """The program specialised by declaration."""
    return replace(program, sizes=tuple(replace(s, value=sizes.get(s.id, s.value)) for s in program.sizes))
