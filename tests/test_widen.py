"""Widening: implied roundings inside a kernel go, declared ones and those of memory stay, and nothing moves in strict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import SEPARATOR, cases, check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from kernel_checks import inputs_for
from pass_checks import apply, same_bits

from loopfuse.backends.reference import agrees, run, run_bounded
from loopfuse.ir import Program
from loopfuse.passes.base import Options, Steps
from loopfuse.passes.widen import PASS, roundings, widen
from loopfuse.reader import parse_program
from loopfuse.verify import verify

FILES = cases("widen")
SIZES = {"N": 37, "M": 5, "T": 6}
Array = np.ndarray[Any, np.dtype[Any]]


def given_program(path: Path) -> Program:
    return parse_program(path.read_text().partition(SEPARATOR)[0])


def check_agrees(before: Program, after: Program, sizes: dict[str, int], inputs: dict[str, Array]) -> int:
    """The results lie within the bound of the program before; how many elements could not be judged."""
    bounded, found = run_bounded(before, inputs, sizes), run(after, inputs, sizes)
    for name, array in found.outputs.items():
        assert agrees(bounded[name], array) is None, name
    return sum(int(np.count_nonzero(b.undecided)) for b in bounded.values())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files(path: Path, bless: bool) -> None:
    check_golden(PASS, path, bless)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_results_stay_within_their_bounds(path: Path) -> None:
    before = given_program(path)
    stage = apply(PASS, before)
    sizes = {s.id: SIZES[s.id] for s in before.sizes}
    inputs = inputs_for(before, sizes)
    check_agrees(before, stage.program, sizes, inputs)
    assert stage.rounds == stage.changed
    assert not apply(PASS, stage.program).changed


def test_fewer_roundings_are_nearer_to_the_truth() -> None:
    before = given_program(next(p for p in FILES if p.stem == "chain"))
    after = apply(PASS, before).program
    inputs = inputs_for(before, SIZES)
    x, g = (inputs[n].astype(float) for n in "xg")
    exact = np.exp((x + g) * g) / 2 + x + g

    def error(program: Program) -> float:
        return float(np.sum(np.abs(run(program, inputs, {"N": 37}).outputs["y"].astype(float) - exact)))

    assert 0 < error(after) < 0.7 * error(before)


def test_declared_casts_still_round() -> None:
    before = given_program(next(p for p in FILES if p.stem == "declared"))
    after = apply(PASS, before).program
    inputs = inputs_for(before, SIZES)
    y = run(after, inputs, {"N": 37}).outputs["y"]
    x = inputs["x"].astype(np.float32)
    rounded = (x * x + x).astype(inputs["x"].dtype).astype(np.float32)
    assert same_bits(y[4:], (rounded + x * x * np.float32(3) + np.maximum(x * x, x))[4:])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_strict_is_left_alone(path: Path) -> None:
    program = replace(given_program(path), numerics="strict")
    assert widen(program, Options()).program is program


def test_a_kernel_may_be_refused() -> None:
    before = given_program(next(p for p in FILES if p.stem == "chain"))
    assert not apply(PASS, before, steps={"widen": Steps(0)}).changed
    assert apply(PASS, before, steps={"widen": Steps(1)}).changed


@given(st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    outcome = widen(program, Options())
    verify(outcome.program)
    assert widen(outcome.program, Options()).program is outcome.program
    if outcome.program is program:
        return
    assert outcome.remarks and all(r.rounds for r in outcome.remarks)
    for before, after in zip(program.kernels, outcome.program.kernels, strict=True):
        assert before is after or roundings(after.body) < roundings(before.body)
    check_agrees(program, outcome.program, sizes, inputs)
