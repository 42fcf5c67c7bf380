"""Layers against formulas in float64, and where PyTorch can be imported against PyTorch.

PyTorch is no dependency (its wheels are gigabytes): without it, each of its tests is skipped with that reason.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from typing import Any

import pytest
from test_scripts import check_case

from loopfuse.bind import Given
from loopfuse.cuda import engine
from loopfuse.diag import Source
from loopfuse.driver import Options, bind_program, compile_source, execute, lower_program, optimise
from tests.oracles.by_torch import ANSWERS, answer, key
from tests.oracles.core import Case, agrees
from tests.oracles.networks import CASES
from tests.oracles.table import LIBRARY

ASKED = [
    c for c in (*LIBRARY, *CASES) if key(c) in ANSWERS and c.draw.note != "no-step"
]  # torch takes no empty sequence
WHY = "PyTorch is not installed here: its wheels are gigabytes"


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, or the test is skipped."""
    if find_spec("torch") is None:
        pytest.skip(WHY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("torch")


def outputs(case: Case, backend: str, passes: str) -> dict[str, Any]:
    """The outputs of a case on a back end, after passes."""
    typed = compile_source(Source(case.script, case.text), sizes=dict(case.draw.sizes)).typed
    bound = bind_program(typed, Given(case.inputs(), params=case.draw.params))
    program = optimise(lower_program(typed), Options(sizes=bound.sizes), passes)
    return execute(program, bound, backend=backend).outputs


def check(case: Case, got: dict[str, Any], want: dict[str, Any]) -> None:
    """Every output within the case's tolerance."""
    assert set(want) == set(got)
    for name, array in got.items():
        assert not (problem := agrees(array, want[name], case.tolerance(name))), f"{name}: {problem}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_formulas(case: Case) -> None:
    check_case(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_formulas_after_all_passes(case: Case) -> None:
    check(case, outputs(case, "reference", "default"), case.answer(case.inputs()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("case", ASKED, ids=lambda c: c.id)
def test_torch_agrees_with_the_formulas_and_with_us(case: Case, torch: Any) -> None:
    inputs = case.inputs()
    want = answer(torch, case, inputs)
    check(case, case.answer(inputs), want)
    check(case, outputs(case, "reference", "default"), want)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("case", ASKED, ids=lambda c: c.id)
def test_kernels_agree_with_torch(case: Case, torch: Any) -> None:
    if why := engine.usable():
        pytest.skip(why)
    check(case, outputs(case, "cuda", "default"), answer(torch, case, case.inputs()))


def test_torch_is_asked_about_every_layer() -> None:
    assert {key(c) for c in ASKED} == set(ANSWERS)
    assert {key(c) for c in CASES} <= set(ANSWERS)
