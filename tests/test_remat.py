"""Rematerialising: a cheap value is computed again where a later loop reads it, and no bit changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from kernel_checks import cases, check_same_results, text_of

from loopfuse.analysis.env import environment
from loopfuse.ir import Kernel, Program
from loopfuse.passes.base import Options
from loopfuse.passes.contract import contract, live_buffers, without_unused
from loopfuse.passes.moving import CHEAP, cost
from loopfuse.passes.remat import rematerialise
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.verify import verify

CASES = Path(__file__).parent / "passes" / "remat"


def rematerialised(program: Program, ranges: bool = False) -> Program:
    verify(program, ranges)
    env = environment(program)
    live = live_buffers(program)
    made = without_unused(replace(program, kernels=tuple(rematerialise(k, env, live) for k in program.kernels)))
    verify(made, ranges)
    return made


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_cases(path: Path) -> None:
    before, after = text_of(path)
    assert print_program(rematerialised(parse_program(before), True)) == after


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_cases_keep_their_results(path: Path) -> None:
    before = parse_program(text_of(path)[0])
    made = rematerialised(before)
    check_same_results(before, made)
    check_same_results(before, contract(made, Options()).program)


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_a_second_time_changes_nothing(path: Path) -> None:
    made = rematerialised(parse_program(text_of(path)[0]))
    env = environment(made)
    for kernel in made.kernels:
        assert rematerialise(kernel, env, live_buffers(made)) is kernel


def joined(program: Program) -> Program:
    """All kernels as one: a kernel runs its statements in order."""
    return replace(program, kernels=(Kernel("all", tuple(s for k in program.kernels for s in k.body)),))


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_random_programs(data: st.DataObject) -> None:
    program = joined(data.draw(ir_programs()))
    made = rematerialised(program)
    sizes, inputs = data.draw(ir_inputs(program))
    check_same_results(program, made, sizes, inputs)
    check_same_results(program, contract(made, Options()).program, sizes, inputs)


def test_live_buffers_keep_their_loads() -> None:
    program = parse_program(text_of(CASES / "chain.ir")[0])
    env = environment(program)
    kernel = program.kernels[0]
    kept = rematerialise(kernel, env, frozenset({"a", "b", "s", "y"}))
    loads = print_program(replace(program, kernels=(kept,)))
    assert "a[i] = " in loads and "s.0 <- b[i] + a[i]" in loads


def test_what_is_cheap() -> None:
    program = parse_program(
        "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k\n  par i < N\n    y[i] = exp(x[i] - 1.0f32)\n"
    )
    value = program.kernels[0].body[0].body[0].value  # type: ignore[union-attr]
    assert 0 < cost(value) <= CHEAP
