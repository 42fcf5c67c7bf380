"""Chains of folds over rows, and attention: one loop each, the naive program's results in every way of running."""

from __future__ import annotations

import numpy as np
import pytest
from cases import ATTENTION, MASKS, ROWWISE, VARIANCE
from harness import WAYS, cascaded, close, folds, repaired, rows, same

from loopfuse.backends.reference import run

EXTENTS = (0, 1, 2, 70)


@pytest.mark.parametrize("name", ROWWISE)
def test_a_chain_of_folds_becomes_one(name: str) -> None:
    text, count, repairs = ROWWISE[name]
    program, outcome = cascaded(text)
    assert len(folds(outcome.program)) == count
    assert repaired(outcome.program) == repairs
    assert outcome.remarks
    assert all(not r.missed for r in outcome.remarks)
    rng = np.random.default_rng(3)
    for extent in EXTENTS:
        if not extent and program.requires:
            continue
        given = {
            "x": rows(rng, 18, extent), "w": rng.standard_normal((18, extent)), "g": rng.standard_normal(extent),
            "b": rng.standard_normal(extent), "lab": rng.integers(0, max(extent, 1), 18),
        }  # fmt: skip
        inputs = {b.id: given[b.id] for b in program.buffers if b.role == "in"}
        same(program, outcome.program, inputs, {"M": 18, "N": extent}, 1e-13, 1e-13)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("extent", [0, 1, 5, 70])
def test_attention_is_one_pass(mask: str, extent: int) -> None:
    program, outcome = cascaded(ATTENTION.replace("MASK", MASKS[mask]))
    assert sorted(folds(outcome.program)) == [["max", "sum", "sum"], ["sum"]]
    assert "z" not in {b.id for b in outcome.program.buffers}
    rng = np.random.default_rng(extent)
    q, k, v = (rng.standard_normal((extent, 4)) for _ in range(3))
    if extent > 9:
        k[0, 0], q[3], q[9] = -np.inf, np.inf, np.nan
    same(program, outcome.program, {"q": q, "k": k, "v": v}, {"S": extent, "D": 4}, 1e-13, 1e-14)


def test_attention_to_fourteen_digits() -> None:
    program, outcome = cascaded(ATTENTION.replace("MASK", MASKS["plain"]))
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((301, 8)) for _ in range(2))
    inputs = {"q": q, "k": k, "v": rng.random((301, 8)) + 0.5}
    same(program, outcome.program, inputs, {"S": 301, "D": 8}, 1e-14)


def test_variance_far_from_zero_keeps_its_digits() -> None:
    _, outcome = cascaded(VARIANCE.replace("f64", "f32"))
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((8, 4099)) + 1e4).astype(np.float32)
    want = x.astype(np.float64).var(1)
    for way in (None, *WAYS):
        found = run(outcome.program, {"x": x}, {"M": 8, "N": 4099}, online=way).outputs["v"]
        steps = 1 if way is None or way.split else 4099 / way.block  # a left fold of so many additions in f32
        close(found.astype(np.float64), want, 2e-7 + steps * 5e-9)


def test_strict_keeps_bits_in_exact_passes() -> None:
    rng = np.random.default_rng(5)
    for name, (text, count, _) in ROWWISE.items():
        program, outcome = cascaded(text, "strict")
        if name in ("softmax", "logsumexp", "guarded", "softmin", "masked term", "shifted maximum", "two values"):
            assert len(folds(outcome.program)) == count, name
        else:
            assert any(r.missed and "strict" in r.text for r in outcome.remarks) or name == "cross entropy"
        given = {"x": rows(rng, 18, 33), "w": rng.standard_normal((18, 33)), "g": rng.standard_normal(33),
                 "b": rng.standard_normal(33), "lab": rng.integers(0, 33, 18)}  # fmt: skip
        inputs = {b.id: given[b.id] for b in program.buffers if b.role == "in"}
        want = run(program, inputs, {"M": 18, "N": 33}).outputs
        found = run(outcome.program, inputs, {"M": 18, "N": 33}).outputs
        for key, value in want.items():
            np.testing.assert_array_equal(found[key], value, err_msg=name)
