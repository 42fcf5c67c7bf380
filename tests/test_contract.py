"""Contracting: what one kernel keeps to itself shrinks to what exists at a time, and no bit changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from kernel_checks import cases, check_same_results, text_of

from loopfuse.diag import CompilerError
from loopfuse.ir import Program
from loopfuse.passes.base import Options, Steps
from loopfuse.passes.contract import contract, pinned
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.verify import verify

CASES = Path(__file__).parent / "passes" / "contract"


def contracted(program: Program) -> Program:
    verify(program)
    made = contract(program, Options()).program
    verify(made)
    return made


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_cases(path: Path) -> None:
    before, after = text_of(path)
    found = contract(parse_program(before), Options())
    verify(found.program, ranges=True)
    remarks = "".join(f"; {r.text}\n" for r in found.remarks)
    assert print_program(found.program) + remarks == after, "to accept: write the text below the line of dashes"


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_cases_keep_their_results(path: Path) -> None:
    before = parse_program(text_of(path)[0])
    check_same_results(before, contract(before, Options()).program)


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    made = contracted(program)
    assert contract(made, Options()).program is made
    sizes, inputs = data.draw(ir_inputs(program))
    check_same_results(program, made, sizes, inputs)


def test_nothing_to_do_is_the_same_object() -> None:
    program = parse_program(
        "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k\n  par i < N\n    y[i] = x[i]\n"
    )
    assert contract(program, Options()).program is program


SHARED = """
program p(N)
buf x: f32[N] in
buf t: f32[N]
buf u: f32[N]
buf y: f32[N] out
kernel k
  par i < N
    t[i] = x[i] + 1.0f32
    u[i] = t[i] * 2.0f32
kernel l
  par i < N
    y[i] = u[i]
"""


def test_a_buffer_that_another_kernel_reads_stays() -> None:
    made = contracted(parse_program(SHARED))
    assert [b.id for b in made.buffers] == ["x", "u", "y"]
    assert made.buffers[1].scope == "device"


def test_a_pinned_buffer_stays() -> None:
    program = parse_program(SHARED.replace("buf x", "pragma materialize(t)\nbuf x"))
    assert pinned(program) == {"t"}
    made = contracted(program)
    assert [b.id for b in made.buffers] == ["x", "t", "u", "y"]


def test_each_buffer_is_a_step() -> None:
    program = parse_program(SHARED)
    steps = Steps(0)
    assert [b.id for b in contract(program, Options(steps={"contract": steps})).program.buffers] == ["x", "t", "u", "y"]
    assert not steps.log


def test_windows_are_watched() -> None:
    """The interpreter refuses a window that the accesses leave: so that the runs above mean something."""
    made = contract(parse_program(text_of(CASES / "scan.ir")[0]), Options()).program
    text = print_program(made)
    assert "window [t:t + 2, 0:N]" in text
    wrong = parse_program(text.replace("window [t:t + 2, 0:N]", "window [t:t + 1, 0:N]"))
    with pytest.raises(CompilerError, match="window"):
        check_same_results(wrong, wrong)


DEAD = """
program dead(N)
buf x: f32[N] in
buf t: f32[N]
buf u: f32[N]
buf y: f32[N] out
kernel a
  par i < N
    t[i] = x[i]
kernel b
  par i < N
    u[i] = t[i]
kernel c
  par i < N
    y[i] = x[i]
"""


def test_a_reader_that_goes_frees_what_it_reads() -> None:
    made = contracted(parse_program(DEAD))
    assert [k.id for k in made.kernels] == ["c"]
    assert [b.id for b in made.buffers] == ["x", "y"]
