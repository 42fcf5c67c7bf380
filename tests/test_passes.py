"""Every pass of the pipeline on real and random programs: valid, the same results, nothing to do the second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import SCRIPTS, lowered_script

from loopfuse.agreement import every_pass
from loopfuse.bind import Bound
from loopfuse.driver import Lowered
from loopfuse.frontend.typed import TypedProgram
from loopfuse.ir import Program
from loopfuse.passes import PIPELINE, Options, Pass
from loopfuse.passes.manager import run_pass, run_passes

QUICK = [p for p in SCRIPTS if p.parent.name == "scripts"]
NOTHING = TypedProgram("p", (), (), (), (), (), (), ())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_scripts_agree_after_every_pass(path: Path) -> None:
    lowered, bound = lowered_script(path)
    for row in every_pass(lowered, bound):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"


@pytest.mark.parametrize("path", QUICK, ids=lambda p: p.stem)
def test_passes_change_nothing_the_second_time(path: Path) -> None:
    lowered, bound = lowered_script(path)
    options = Options(sizes=bound.sizes)
    program = lowered.program
    for p in PIPELINE:
        program = run_pass(p, program, options, verify=False).program
        assert run_pass(p, program, options, verify=False).program is program, p.name


@pytest.mark.parametrize("path", QUICK, ids=lambda p: p.stem)
def test_passes_are_deterministic(path: Path) -> None:
    lowered, bound = lowered_script(path)
    options = Options(sizes=bound.sizes)
    once, twice = (run_passes(lowered.program, PIPELINE, options, verify=False) for _ in range(2))
    assert [s.program for s in once] == [s.program for s in twice]


@pytest.mark.parametrize("p", PIPELINE, ids=lambda p: p.name)
@settings(max_examples=8)
@given(program=ir_programs(), data=st.data())
def test_a_single_pass_on_random_programs(p: Pass, program: Program, data: st.DataObject) -> None:
    sizes, inputs = data.draw(ir_inputs(program))
    for row in every_pass(Lowered(NOTHING, program, ()), Bound(sizes, inputs), (p,), ranges=False):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"


@settings(max_examples=15)
@given(program=ir_programs(), data=st.data())
def test_the_pipeline_on_random_programs(program: Program, data: st.DataObject) -> None:
    sizes, inputs = data.draw(ir_inputs(program))
    for row in every_pass(Lowered(NOTHING, program, ()), Bound(sizes, inputs), ranges=False):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"
