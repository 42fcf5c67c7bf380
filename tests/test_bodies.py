"""Sharing and motion in bodies: golden files, random programs, scripts, guards, steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import FOLDER, cases, check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import SCRIPTS, apply, assert_keeps_bits, lowered_script, shown, text

from loopfuse import driver
from loopfuse.ir import Loop
from loopfuse.passes.base import Steps
from loopfuse.passes.bodies import PASS
from loopfuse.passes.cse import PASS as CSE
from loopfuse.passes.distribute import PASS as DISTRIBUTE
from loopfuse.printer import print_program
from loopfuse.rewrite import walk_program

RANDOM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("path", cases("bodies"), ids=lambda p: p.stem)
def test_golden(path: Path, bless: bool) -> None:
    check_golden(PASS, path, bless)


@given(st.data())
@RANDOM
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    stage = assert_keeps_bits(PASS, program, sizes, inputs)
    apply(PASS, stage.program)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts(path: Path) -> None:
    lowered, bound = lowered_script(path)
    program = apply(DISTRIBUTE, apply(CSE, lowered.program).program).program
    assert_keeps_bits(PASS, program, bound.sizes, driver.run_inputs(lowered, bound))
    apply(PASS, program)


def test_every_step_is_valid() -> None:
    program = text((FOLDER / "bodies" / "hoist.ir").read_text().partition("----")[0])
    whole = Steps()
    last = apply(PASS, program, steps={"bodies": whole}).program
    made = [apply(PASS, program, steps={"bodies": Steps(n)}).program for n in range(len(whole.log) + 1)]
    assert print_program(made[-1]) == print_program(last)
    assert "exp(x[i, j]) * exp(x[i, j])" in print_program(made[0])


HEAD = "program p(M, N)\nbuf x: f32[M, N] in\nbuf w: f32[N] in\nbuf k: i32[M] in\nbuf y: f32[M, N] out\nkernel k1\n"


def bodies(body: str) -> str:
    return shown(apply(PASS, HEAD + body).program)


def test_a_guarded_gather_stays() -> None:
    """`w[k[i]]` is in range only where the condition holds."""
    cond = "{0} <= i64(k[i]) and i64(k[i]) < {N}"
    body = f"  par i < M\n    par j < N\n      y[i, j] = x[i, j] + (w[i64(k[i])] if {cond} else 0.0f32)\n"
    lines = bodies(body).splitlines()
    at = next(n for n, line in enumerate(lines) if "w[" in line)
    assert " if " in lines[at]


def test_nothing_leaves_a_condition_without_proof() -> None:
    """`w[i]` exists only where the condition of the loop holds."""
    fold = "    fold j < N where {i} < {N}\n      acc a: f32 sum\n      a <- sqrt(w[i]) * x[i, j]\n"
    lines = bodies("  par i < M\n" + fold + "    par j < N\n      y[i, j] = a\n").splitlines()
    guard, root = (next(n for n, line in enumerate(lines) if word in line) for word in ("where", "sqrt"))
    assert guard < root


def test_nothing_leaves_the_outermost_par_loop() -> None:
    """What every iteration of a kernel needs is the plan's to keep."""
    found = bodies("  par i < M, j < N\n    y[i, j] = x[i, j] * sqrt(f32'({N}))\n")
    assert "sqrt" in found.splitlines()[-1]


def test_a_plain_load_is_not_worth_moving() -> None:
    found = bodies("  par i < N\n    par j < M\n      y[j, i] = x[j, i] + w[i]\n")
    assert found.splitlines()[-1].endswith("x[j, i] + w[i]")


def test_loops_remain_folds() -> None:
    """Moving values changes no loop: as many folds, with as many accumulators."""
    for path in SCRIPTS:
        program = lowered_script(path)[0].program
        found = [
            [len(s.accs) for s in walk_program(p) if isinstance(s, Loop)]
            for p in (program, apply(PASS, program).program)
        ]
        assert found[0] == found[1]
