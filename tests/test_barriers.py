"""Barriers hold in what the compiler makes of kernels: what one thread leaves in memory is read by the others after them.

It needs NVRTC, which PyPI has, and no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from loopfuse import driver
from loopfuse.cuda.compile import compile_ptx
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit
from loopfuse.passes import Options

TESTS = Path(__file__).parent
ACCESS = re.compile(r"\b(?P<what>ld|st)\.(?:volatile\.)?global\.\w+\s[^\[]*(?P<where>\[[^\]]+\])")  # not those by `.nc`
ENDS = re.compile(r"\bbra\b|^\$\w+:", re.MULTILINE)
WRITTEN = re.compile(r"(?<=[(,] )(\w+\* )(?=\w)|(?<=\()(\w+\* )(?=\w)")
# Loops of one or two iterations: they unroll, and what was a loop is one stretch of code with barriers in it.
SCRIPTS: Mapping[str, Mapping[str, int]] = {
    "regressions/regression-what-one-thread-leaves.lf": {},
    "regressions/regression-argmax-of-what-a-scan-emits.lf": {"N": 3},
    "scripts/tasks/crc16.lf": {"N": 1},
    "scripts/tasks/dtw.lf": {"N": 2, "M": 2},
}


def code_of(script: str, sizes: Mapping[str, int]) -> Code:
    lowered = driver.lower_program(driver.compile_source(driver.read_source(TESTS / script)).typed)
    return emit(driver.optimise(lowered, Options(sizes=sizes)).program, dict(sizes))


def too_early(ptx: str) -> Iterator[str]:
    """Places that are written in one arm and read in another with no barrier between: threads that did not write them read
    what was there before."""
    for stretch in re.split(r"\bbar\.sync\b.*", ptx):
        reads: list[set[str]] = []
        writes: list[set[str]] = []
        for arm in ENDS.split(stretch):
            found = [(m["what"], m["where"]) for m in ACCESS.finditer(arm)]
            reads.append({where for what, where in found if what == "ld"})
            writes.append({where for what, where in found if what == "st"})
        for at, read in enumerate(reads):
            yield from (where for other, wrote in enumerate(writes) if other != at for where in sorted(read & wrote))


def ptx_of(code: Code, restricted: bool = False) -> Iterator[str]:
    for kernel in code.kernels:
        text = code.source(kernel)
        if restricted:
            head = text.index(f"{kernel.name}(")
            text = text[:head] + WRITTEN.sub(lambda m: f"{m[0]}__restrict__ ", text[head:], count=9)
        yield compile_ptx(text, kernel.name, "sm_90a", contract=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_is_read_before_a_barrier(script: str) -> None:
    code = code_of(script, SCRIPTS[script])
    assert [where for ptx in ptx_of(code) for where in too_early(ptx)] == []


def test_a_restricted_pointer_is_read_before_a_barrier() -> None:
    """What the test above would find: the compiler moves loads over barriers where a pointer promises to be the only one."""
    code = code_of("regressions/regression-what-one-thread-leaves.lf", {})
    assert [where for ptx in ptx_of(code, restricted=True) for where in too_early(ptx)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_only_what_is_never_written_is_restricted(script: str) -> None:
    code = code_of(script, SCRIPTS[script])
    for kernel in code.kernels:
        for pointer in re.findall(r"[\w ]+\*[\w ]*", re.search(rf"{kernel.name}\((.*?)\) {{", kernel.text)[1]):  # type: ignore[index]
            assert pointer.strip().startswith("const ") == ("__restrict__" in pointer), pointer
