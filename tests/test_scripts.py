"""Every script, library function and example, compiled and run by the reference, against its independent oracle."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from loopfuse.backends.reference import agrees as outside
from loopfuse.backends.reference import run_bounded
from loopfuse.bind import Bound, Given
from loopfuse.diag import Source
from loopfuse.driver import Checked, Lowered, bind_program, compile_source, execute, lower_program
from tests.oracles.core import DTYPES, ROOT, Case, agrees
from tests.oracles.table import BUILTINS, EXAMPLES, LIBRARY, SCRIPTS

Array = np.ndarray[Any, Any]

# Bounds cost several times the run: outputs with more elements (photographs) are held to their tolerance alone.
LARGEST = 20_000


@cache
def _compiled(script: str, text: str, sizes: tuple[tuple[str, int], ...]) -> tuple[Checked, Lowered]:
    folder = (ROOT / script).parent if (ROOT / script).exists() else None
    checked = compile_source(Source(script, text), sizes=dict(sizes), search=folder)
    return checked, lower_program(checked.typed)


def check_case(case: Case) -> None:
    """Runs a case by the reference; fails where an output is off its oracle, or either is outside the derived bound."""
    checked, lowered = _compiled(case.script, case.text, tuple(case.draw.sizes.items()))
    inputs = case.inputs()
    bound = bind_program(checked.typed, Given(inputs, params=case.draw.params))
    got = execute(lowered, bound, backend="reference").outputs
    with np.errstate(all="ignore"):
        want = {name: np.asarray(value) for name, value in case.answer(inputs).items()}
    assert list(got) == list(case.outputs)
    wrong = []
    for name, array in got.items():
        if array.dtype != DTYPES[case.outputs[name]]:
            wrong.append(f"{name}: {array.dtype}, expected {case.outputs[name]}")
        elif problem := agrees(array, want[name], case.tolerance(name)):
            wrong.append(f"{name}: {problem}")
    if max(array.size for array in got.values()) <= LARGEST:
        wrong += _outside_bounds(checked, lowered, bound, got, want)
    assert not wrong, "; ".join(wrong)


def _outside_bounds(
    checked: Checked, lowered: Lowered, bound: Bound, got: dict[str, Array], want: dict[str, Array]
) -> list[str]:
    """The outputs of which the reference or the oracle lies outside the derived bound somewhere."""
    bounds = run_bounded(lowered.program, bound.inputs, bound.sizes)
    found = []
    for name, bounded in zip(got, bounds.values(), strict=True):
        with np.errstate(all="ignore"):
            answer = want[name].astype(bounded.value.dtype)
        for who, array in (("reference", got[name]), ("oracle", answer)):
            if mismatch := outside(bounded, array):
                found.append(f"{name}, {who}: {mismatch}")
    return found


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda c: c.id)
def test_script(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", LIBRARY, ids=lambda c: c.id)
def test_library(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", BUILTINS, ids=lambda c: c.id)
def test_builtin(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda c: c.id)
def test_example(case: Case) -> None:
    check_case(case)


def test_a_wrong_answer_is_found() -> None:
    (case,) = (c for c in SCRIPTS if c.id == "01_chain-N1000")
    inputs = case.inputs()
    want = case.answer(inputs)["y"]
    assert agrees((want * 1.001).astype(np.float32), want, case.tol) is not None
