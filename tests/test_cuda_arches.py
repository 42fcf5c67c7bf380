"""Every kernel of every example compiles for every architecture that is supported: without a warning, and without a spill
unless tests/spills.txt says why. It needs NVRTC and no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from cuda_code import WIDE, twice
from gpu_cases import Suite, suites

from loopfuse import devices
from loopfuse.cuda.binary import Binary
from loopfuse.cuda.cache import open_cache
from loopfuse.cuda.compile import compile_program
from loopfuse.cuda.engine import make
from loopfuse.driver import plan_sizes
from loopfuse.emit.code import Code, KernelCode
from loopfuse.ir import Program

DEVICES = {
    "sm_80": devices.A100,
    "sm_86": replace(devices.RTX_4090, name="RTX 3090", arch="sm_86"),
    "sm_89": devices.RTX_4090,
    "sm_90a": devices.H200,
}
EXAMPLES = {s.id.removeprefix("examples/"): s for s in suites() if s.id.startswith("examples/")}
CACHE = open_cache(False)  # a text is compiled once


@cache
def allowed() -> dict[tuple[str, str], int]:
    """The bytes that kernels may spill: program/kernel and architecture to bytes."""
    text = (Path(__file__).parent / "spills.txt").read_text(encoding="utf-8")
    rows = [line.split(maxsplit=3) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert all(len(row) == 4 and row[1] in DEVICES and row[2].isdigit() for row in rows), "a row lacks something"
    return {(name, arch): int(count) for name, arch, count, _ in rows}


def problems(code: Code, binaries: Sequence[Binary]) -> list[str]:
    """What is not as it should be in a compiled program, a line each."""
    found = []
    for kernel, binary in zip(code.kernels, binaries, strict=True):
        name = f"{code.name}/{kernel.name}"
        found += [f"{name} for {binary.arch}: {line}" for line in binary.warnings]
        most = allowed().get((name, binary.arch), 0)
        if binary.spills > most:
            found.append(f"{name} {binary.arch} {binary.spills} spills with {binary.registers} registers: {kernel.why}")
        if kernel.limit and binary.registers > kernel.limit:
            found.append(f"{name} for {binary.arch}: {binary.registers} registers, its plan has {kernel.limit}")
        if kernel.shared > DEVICES[binary.arch].shared or (kernel.cluster > 1 and binary.arch != "sm_90a"):
            found.append(
                f"{name}: {kernel.shared} bytes shared, clusters of {kernel.cluster}: too much for {binary.arch}"
            )
    return found


def assert_compiles(code: Code, arch: str) -> None:
    """Compile a `Code` as it is, and fail on warnings and on spills that are not listed."""
    found = problems(code, compile_program(code, arch, cache=CACHE))
    assert not found, "\n".join(found)


@cache
def finished(suite: Suite) -> tuple[Program, dict[str, int]]:
    """A program after passes, with the sizes that they were told."""
    *_, data = suite.sets(False)
    program = suite.optimised(data.bound).program
    return program, plan_sizes(program) | data.bound.sizes


@pytest.mark.parametrize(("arch", "dynamic"), [*((arch, False) for arch in DEVICES), ("sm_80", True)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_kernel_of_an_example_compiles(name: str, arch: str, dynamic: bool) -> None:
    program, sizes = finished(EXAMPLES[name])
    made = make(program, sizes, DEVICES[arch], arch, dynamic=dynamic, cache=CACHE)
    found = problems(made.code, made.binaries)
    assert not found, "\n".join(found)


def test_warnings_and_spills_are_found() -> None:
    assert_compiles(twice((2, 3)), "sm_86")
    code = twice(())
    warns = KernelCode("w", 'extern "C" __global__ void w() { int unused; }', 32)
    wide = KernelCode("wide", WIDE.replace("void wide", "void __launch_bounds__(1024, 2) wide"), 1024)
    for kernel, what in ((warns, "unused"), (wide, "spills"), (replace(warns, shared=1 << 20), "too much")):
        with pytest.raises(AssertionError, match=what):
            assert_compiles(replace(code, kernels=(kernel,)), "sm_80")
