"""The oracles alone, without the compiler: every one runs, and gives what the script declares."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

from tests.oracles.core import DTYPES, ROOT, Case, Tol, agrees, correlate, declared_inputs, declared_outputs
from tests.oracles.table import CASES, EXAMPLES, SCRIPTS


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_inputs_are_as_declared(case: Case) -> None:
    declared, inputs, scope = declared_inputs(case.text), case.inputs(), dict(case.settings())
    assert set(inputs) == set(declared)
    for name, array in inputs.items():
        dtype, dims = declared[name]
        assert array.dtype == DTYPES[dtype], name
        assert array.shape == tuple(eval(dim, {}, scope) for dim in dims.split(",") if dim), name


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_answers_name_every_output(case: Case) -> None:
    answer = case.answer(case.inputs())
    assert set(answer) == set(case.outputs)
    assert list(case.outputs) == declared_outputs(case.text)
    for name, array in answer.items():
        kind = DTYPES[case.outputs[name]].kind
        assert array.dtype == np.float64 if kind in "fV" else array.dtype.kind in "iu", name


def test_every_script_and_example_has_an_oracle() -> None:
    written = {str(p.relative_to(ROOT)) for p in (ROOT / "tests" / "scripts").rglob("*.lf")}
    assert written == {c.script for c in SCRIPTS}
    assert {f"examples/{p.name}" for p in (ROOT / "examples").glob("*.lf")} == {c.script for c in EXAMPLES}


def test_every_script_meets_several_sizes() -> None:
    draws: dict[str, int] = {}
    for case in CASES:
        draws[case.script] = draws.get(case.script, 0) + 1
    single = {name for name, count in draws.items() if count < 2}
    assert all("logsumexp_infinite" in name for name in single)


def test_the_same_case_draws_the_same_inputs() -> None:
    for case in SCRIPTS[::17]:
        first, second = case.inputs(), case.inputs()
        assert all(np.array_equal(first[k], second[k], equal_nan=first[k].dtype.kind == "f") for k in first)


def test_correlate_is_scipys() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((4, 3, 3, 2))
    want = np.stack([[sum(signal.correlate(c, k, "valid") for c, k in zip(image, kernel, strict=True)) for kernel in w]
                     for image in x])  # fmt: skip
    np.testing.assert_allclose(correlate(x, w), want, atol=1e-12)
    np.testing.assert_allclose(correlate(x, w, stride=2), want[:, :, ::2, ::2], atol=1e-12)
    spread = np.zeros((4, 3, 5, 3))
    spread[:, :, ::2, ::2] = w
    np.testing.assert_allclose(correlate(x, w, dilation=2), correlate(x, spread), atol=1e-12)


def test_crc16_of_the_check_string_is_the_published_one() -> None:
    (case,) = (c for c in SCRIPTS if c.draw.note == "known-906e")
    assert int(case.answer(case.inputs())["check_sum"]) == 0x6E90  # 0x906E, bytes swapped


def test_agreement_can_fail() -> None:
    want = np.array([1.0, 2.0, np.nan])
    assert agrees(np.array([1.0, 2.0, np.nan]), want, Tol(0, 0)) is None
    assert agrees(np.array([1.0, 2.1, np.nan]), want, Tol(1e-3, 0)) is not None
    assert agrees(np.array([1.0, 2.0, 3.0]), want, Tol(1e-3, 0)) is not None
    assert agrees(np.array([1.0, 2.0]), want, Tol(1e-3, 0)) is not None
    many = np.arange(100.0)
    off = many + np.eye(1, 100)[0]
    assert agrees(off, many, Tol(0, 0, odd=0.02, most=1)) is None
    assert agrees(off, many, Tol(0, 0, odd=0.02, most=0.5)) is not None
    assert agrees(off, many, Tol(0, 0, odd=0.001)) is not None
