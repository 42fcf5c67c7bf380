"""Every pass of the pipeline on real and random programs: valid, the same results, nothing to do the second time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import ROOT, SCRIPTS, lowered_script
from scalar_runs import arrays

from loopfuse.agreement import every_pass
from loopfuse.bind import Bound, Given
from loopfuse.devices import PRESETS
from loopfuse.diag import Source
from loopfuse.driver import Lowered, bind_program, compile_source, lower_program
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import TypedProgram
from loopfuse.ir import Program
from loopfuse.passes import PIPELINE, Options, Pass
from loopfuse.passes.manager import run_pass, run_passes
from tests.oracles.core import ROOT as TOP
from tests.oracles.core import Case
from tests.oracles.table import CASES
from tests.test_lower_random import Maker, random_array

QUICK = [p for p in SCRIPTS if p.parent.name == "scripts"]
PATTERNS = sorted((ROOT / "fusion").glob("*.lf"))
TASKS = [p for p in sorted((ROOT / "scripts" / "tasks").glob("*.lf")) if p.stem != "nn"]  # a module
NOTHING = TypedProgram("p", (), (), (), (), (), (), ())
MOST = 60_000  # elements of all inputs of a case of the full sweep


def check(lowered: Lowered, bound: Bound, options: Options | None = None, passes: str | Iterable[Pass] = "default", *,
          ranges: bool = True, numerics: str = "") -> None:  # fmt: skip
    """Every pass gives a valid program with the results of the lowered one."""
    lowered = replace(lowered, program=replace(lowered.program, numerics=numerics or lowered.program.numerics))
    for row in every_pass(lowered, bound, passes, options, ranges=ranges):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_scripts_agree_after_every_pass(path: Path) -> None:
    check(*lowered_script(path))


@pytest.mark.parametrize("path", PATTERNS, ids=lambda p: p.stem)
def test_patterns_agree_after_every_pass(path: Path) -> None:
    """The sizes that fusion assumes are large, so that its decisions are not those of the data's small sizes."""
    check(*lowered_script(path), Options(), ranges=False)


@pytest.mark.parametrize("small", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["assumed", "small"])
@pytest.mark.parametrize("path", TASKS, ids=lambda p: p.stem)
def test_tasks_stay_valid_after_every_pass(path: Path, small: bool) -> None:
    """At sizes that fusion assumes, and at small ones, where it decides otherwise; their results are for the slow tests."""
    typed = compile_source(Source(path.name, path.read_text("utf-8")), search=path.parent).typed
    program = lower_program(typed).program
    rng = Random(path.stem)
    sizes = {s.id: rng.choice([1, 2, 3, 5, 9, 16]) for s in program.sizes if s.value is None} if small else {}
    run_passes(program, PIPELINE, Options(sizes=sizes))


RECURRENCES = """input x: f32[T, N]
input y: f32[T, N]
scan t in 0..T carry (h = zeros(f32, N)) { next h = h * 0.5 + x[t] }
scan t in 0..T carry (g = zeros(f32, N)) {
  let u[i] = exp(y[t, i] * x[t, i])
  next g = g * 0.25 + u
}
output o = h + g
"""


def test_recurrences_that_become_one_agree() -> None:
    typed = compile_source(Source("two", RECURRENCES)).typed
    check(lower_program(typed), bind_program(typed, Given({}, dims={"T": 5, "N": 3}, fill=True)))


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["default", "strict", "fast"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_cases_agree_after_every_pass(case: Case, numerics: str) -> None:
    """At the sizes of the data, and at those that fusion assumes; for an accelerator, and for a processor."""
    folder = (TOP / case.script).parent if (TOP / case.script).exists() else None
    typed = compile_source(Source(case.script, case.text), sizes=dict(case.draw.sizes), search=folder).typed
    bound = bind_program(typed, Given(case.inputs(), params=case.draw.params))
    if sum(a.size for a in bound.inputs.values()) > MOST:
        pytest.skip("a photograph: too large for derived bounds")
    for options in (Options(sizes=bound.sizes), Options(device=PRESETS["cpu"], exhaustive=False, seed=1)):
        check(lower_program(typed), bound, options, numerics=numerics)


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
    check(Lowered(NOTHING, program, ()), Bound(sizes, inputs), None, (p,), ranges=False)


def choices(data: st.DataObject, sizes: dict[str, int]) -> Options:
    """What a caller may ask for: each makes fusion decide otherwise."""
    return Options(
        device=PRESETS[data.draw(st.sampled_from(sorted(PRESETS)))],
        sizes=sizes if data.draw(st.booleans()) else {},
        specialise=sizes if data.draw(st.booleans()) else {},
        decide_max=data.draw(st.none() | st.integers(0, 5)),
        exhaustive=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 3)),
    )


@settings(max_examples=15)
@given(program=ir_programs(), data=st.data())
def test_the_pipeline_on_random_programs(program: Program, data: st.DataObject) -> None:
    sizes, inputs = data.draw(ir_inputs(program))
    check(Lowered(NOTHING, program, ()), Bound(sizes, inputs), choices(data, dict(sizes)), ranges=False)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.tuples(*[st.integers(0, 3)] * 3), st.data())
def test_the_pipeline_on_random_definitions(rng: Random, extents: tuple[int, int, int], data: st.DataObject) -> None:
    """Programs as scripts make them: several definitions, shared parts, conditions, reductions, recurrences."""
    typed = Maker(rng).program()
    sizes = dict(zip("NML", extents, strict=True))
    inputs = {k: np.asarray(v) for k, v in arrays(typed.buffers, sizes, random_array).items()}
    numerics = data.draw(st.sampled_from(["default", "strict", "fast"]))
    check(Lowered(NOTHING, lower(typed), ()), Bound(sizes, inputs), choices(data, sizes), numerics=numerics)
