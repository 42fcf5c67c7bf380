"""Filters, transforms and special functions against SciPy: by the reference, and after all passes."""

from __future__ import annotations

import pytest

from loopfuse.bind import Given
from loopfuse.diag import Source
from loopfuse.driver import Options, bind_program, compile_source, execute, lower_program, optimise
from tests.oracles.core import DTYPES, Case, agrees
from tests.oracles.signals import BORDERS, CASES


def check(case: Case, passes: str) -> None:
    """The values of a script after passes, within the stated tolerance of SciPy's.

    SciPy's are no closer to the truth than the bounds that are derived from a script, so those are not asked of it.
    """
    typed = compile_source(Source(case.script, case.text), sizes=dict(case.draw.sizes)).typed
    inputs = case.inputs()
    bound = bind_program(typed, Given(inputs, params=case.draw.params))
    made = optimise(lower_program(typed), Options(sizes=bound.sizes), passes)
    got, want = execute(made, bound, backend="reference").outputs, case.answer(inputs)
    assert list(got) == list(case.outputs)
    wrong = [f"{name}: {problem}" for name, array in got.items()
             if (problem := agrees(array, want[name], case.tolerance(name)))]  # fmt: skip
    assert not wrong, "; ".join(wrong)
    assert {name: array.dtype for name, array in got.items()} == {n: DTYPES[d] for n, d in case.outputs.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_as_written(case: Case) -> None:
    check(case, "none")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_after_all_passes(case: Case) -> None:
    check(case, "default")


def test_every_view_has_a_border_of_scipys() -> None:
    assert len(set(BORDERS.values())) == len(BORDERS) == 5
