"""Programs restated from public reports, against the values that the reports state: without passes, after every pass,
and as emitted kernels that the emulator runs. On a GPU: test_gpu_reports.py.

Results are held against the stated values themselves, so that a mistake which all paths share shows.
"""

from __future__ import annotations

import pytest
from emulator import available, build
from report_cases import (
    CASES,
    HEAVY,
    HEAVY_BYTES,
    LIGHT,
    LONG,
    MODES,
    REPORTS,
    RESTATED,
    STATEMENTS,
    Ready,
    array,
    in_order,
    inputs_of,
    ready,
    stated,
)

from loopfuse import driver
from loopfuse.agreement import every_pass
from loopfuse.backends.reference import run
from loopfuse.bind import Given
from loopfuse.devices import H200
from loopfuse.diag import Source, UserError
from loopfuse.driver import Optimised, compile_source, lower_program, plan_sizes
from loopfuse.emit.program import emit
from loopfuse.generate import Array
from loopfuse.memory import free_memory
from loopfuse.passes import Options

# Of the kernels, which a C++ compiler takes a second each for, one a kind of trap is of `make test`.
EMULATED = {"s10_fma_cancel", "s15_pow2_strength_reduction", "s34_divide_by_own_max"}


def marked(quick: set[str]) -> list[object]:
    """The ids as parameters, those that are not quick marked slow."""
    return [pytest.param(id, marks=() if id in quick else pytest.mark.slow) for id in LIGHT]


# Nothing of the 3000 statements depends on the numerics, and they take minutes.
REFERENCE = [
    pytest.param(id, mode, marks=pytest.mark.slow if id in LONG else ())
    for id in LIGHT
    for mode in MODES
    if id != STATEMENTS or mode == "strict"
]


# -- the table --------------------------------------------------------------------------------------------------------


def test_every_report_is_written_or_explained() -> None:
    written = {id.split(".")[0] for id in REPORTS}
    assert written.isdisjoint(RESTATED["not_said"])
    assert written | RESTATED["not_said"].keys() == CASES.keys()
    assert all(len(why) > 20 for why in RESTATED["not_said"].values())


def test_what_is_restated_is_a_case_with_a_reason() -> None:
    for group in ("refused", "faults", "tolerance"):
        for id, entry in RESTATED[group].items():
            assert id in CASES and len(entry["why"]) > 20, id
    assert {m for e in RESTATED["tolerance"].values() for m in e["modes"]} <= set(MODES)


@pytest.mark.parametrize("id", RESTATED["refused"])
def test_the_literal_form_is_refused(id: str) -> None:
    entry = RESTATED["refused"][id]
    with pytest.raises(UserError) as told:
        compile_source(Source(id, entry["script"]))
    assert {d.code for d in told.value.diagnostics} == {entry["code"]}


@pytest.mark.parametrize("id", RESTATED["faults"])
def test_the_literal_form_is_a_fault(id: str) -> None:
    entry = RESTATED["faults"][id]
    made = lower_program(compile_source(Source(id, entry["script"])).typed)
    bound = driver.bind_program(made.typed, Given(inputs_of(CASES[id])))
    with pytest.raises(UserError) as told:
        driver.execute(made, bound, backend="reference")
    assert {d.code for d in told.value.diagnostics} == {entry["code"]}


# -- the reference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("id", "mode"), REFERENCE)
def test_stated_value_without_passes(id: str, mode: str) -> None:
    made = ready(id, mode)
    outputs = driver.execute(made.lowered, made.bound, backend="reference").outputs
    assert not (problem := stated(made, list(outputs.values()))), problem


@pytest.mark.parametrize(("id", "mode"), REFERENCE)
def test_stated_value_after_every_pass(id: str, mode: str) -> None:
    """Also the same bits as before where a pass does not round, else within the bound derived from the lowered program."""
    made = ready(id, mode)
    for row in every_pass(made.lowered, made.bound):
        assert row.agrees and row.stage is not None, f"{row.name}: {row.verdict.problem}"
        if not row.stage.changed:
            continue
        program = row.stage.program
        found = run(program, made.arrays(), plan_sizes(program) | made.bound.sizes).outputs
        assert not (problem := stated(made, in_order(made, program, found))), f"{row.name}: {problem}"


def test_a_wrong_value_is_told() -> None:
    """The values that the faulty compilers gave are none of the stated ones."""
    faulty = {id: case for id, case in CASES.items() if case.get("buggy_value")}
    assert len(faulty) > 30
    for id, case in faulty.items():
        made = ready(id, "strict")
        right, wrong = ([array(e) for e in case[key]] for key in ("expected", "buggy_value"))
        assert not stated(made, right), id
        assert stated(made, wrong), id


@pytest.mark.slow
@pytest.mark.parametrize("id", sorted(HEAVY))
def test_heavy(id: str) -> None:
    if free_memory() < HEAVY_BYTES:
        pytest.skip(f"it needs {HEAVY_BYTES >> 30} GiB of free memory")
    made = ready(id, "strict")
    optimised = driver.optimise(made.lowered, Options(sizes=made.bound.sizes))
    for program in (made.lowered, optimised):
        outputs = driver.execute(program, made.bound, backend="reference").outputs
        assert not (problem := stated(made, list(outputs.values()))), problem


# -- kernels on the CPU -----------------------------------------------------------------------------------------------


def emulate(made: Ready, optimised: Optimised) -> list[Array]:
    """The outputs of the emitted kernels, in several orders of threads; with products and sums contracted where the mode
    allows it."""
    program, bound = optimised.program, made.bound
    code = emit(program, bound.sizes, H200)
    sizes, arrays = plan_sizes(program) | bound.sizes, driver.run_inputs(optimised, bound)
    outputs = {b.id: (b.dtype, [int(p.value(sizes)) for p in b.shape]) for b in program.buffers if b.role == "out"}
    kernels = build(code, contract=made.mode != "strict")
    found = kernels.check({id: arrays[id] for id in code.inputs}, {id: arrays[id] for id in code.params},
                          {name: sizes[name] for name in code.sizes}, outputs)  # fmt: skip
    assert not kernels.faults.any()
    return in_order(made, program, found)


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", marked(EMULATED))
def test_stated_value_of_emulated_kernels(id: str, mode: str) -> None:
    made = ready(id, mode)
    for passes in ("default",) if id == STATEMENTS else ("none", "default"):
        optimised = driver.optimise(made.lowered, Options(sizes=made.bound.sizes), passes)
        assert not (problem := stated(made, emulate(made, optimised))), f"passes {passes}: {problem}"
