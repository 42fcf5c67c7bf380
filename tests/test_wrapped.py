"""Integers of 16 bits wrap in what the compiler makes of kernels, and by assemblers that take a negated one for sign extended.

It needs NVRTC, which PyPI has, and no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from loopfuse import driver
from loopfuse.cuda.compile import compile_ptx
from loopfuse.emit.program import emit
from loopfuse.passes import Options

SCRIPT = Path(__file__).parent / "regressions/regression-the-least-i16-negated.lf"
NARROW = re.compile(r"\b(?:neg|abs)\.s16\b.*")


def ptx_of(optimised: bool = True, plain: bool = False) -> Iterator[str]:
    """What NVRTC makes of the kernels; `plain`: with 16 bits cut off as C does it."""
    lowered = driver.lower_program(driver.compile_source(driver.read_source(SCRIPT)).typed)
    program = driver.optimise(lowered, Options(sizes={"N": 3})).program if optimised else lowered.program
    code = emit(program, {"N": 3})
    for kernel in code.kernels:
        text = code.source(kernel)
        if plain:
            body = 'asm("bfe.s32 %0, %1, 0, 16;" : "=r"(r) : "r"(a));'
            assert body in text
            text = text.replace(body, "r = (short)a;")
        yield compile_ptx(text, kernel.name, "sm_90a", contract=True)


def test_no_negated_16_bits_reach_the_assembler() -> None:
    for optimised in (True, False):
        assert [m for ptx in ptx_of(optimised) for m in NARROW.findall(ptx)] == []


def test_they_would_as_c_has_it() -> None:
    assert [m for ptx in ptx_of(plain=True) for m in NARROW.findall(ptx)]
