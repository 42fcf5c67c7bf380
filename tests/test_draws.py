"""Several sets of made-up data."""

from __future__ import annotations

import numpy as np

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.diag import Source
from loopfuse.draws import Draw, draws, sizes_of


def drawn(script: str, given: Given | None = None) -> tuple[Draw, ...]:
    return draws(driver.compile_source(Source("s.lf", script)).typed, given or Given({}))


def test_each_set_has_what_it_is_for() -> None:
    plain, mild, special, equal, equal_special, ones = drawn(
        "input x: f32[M, N]\ninput k: i32[N]\noutput y[i, j] = x[i, j] * f32(k[j])\n"
    )
    assert plain.bound.sizes["M"] != plain.bound.sizes["N"]
    assert np.isfinite(plain.bound.inputs["x"]).all()
    x, k = mild.bound.inputs["x"], mild.bound.inputs["k"]
    assert (x == 0).any() and len(np.unique(x)) < x.size and (k < 0).any()
    assert np.all(special.bound.inputs["x"][0] == -np.inf)
    assert special.bound.inputs["k"] is plain.bound.inputs["k"]
    assert equal.bound.sizes == equal_special.bound.sizes == {"M": 9, "N": 9}
    row = equal_special.bound.inputs["x"][0]
    assert np.all(row[:6] == -np.inf) and np.isfinite(row[6:]).all()
    assert ones.bound.sizes == {"M": 1, "N": 1}
    assert len(sizes_of((plain, mild, special, equal, equal_special, ones))) == 3


def test_what_is_given_stays() -> None:
    script = "input x: f32[M, N]\ninput w: f32[N]\noutput y[i, j] = x[i, j] * w[j]\n"
    x, w = np.ones((3, 2), np.float32), np.ones(2, np.float32)
    assert len(drawn(script, Given({"x": x, "w": w}))) == 1
    for one in drawn(script, Given({"x": x})):
        assert one.bound.inputs["x"] is x
        assert one.bound.sizes == {"M": 3, "N": 2}


def test_domains_and_requirements_hold() -> None:
    script = """input x: f32[M, N] where x > 0
require M > N
output y[i, j] = log(x[i, j])
"""
    found = drawn(script)
    assert len(found) > 1
    for one in found:
        assert one.bound.sizes["M"] > one.bound.sizes["N"]
        assert np.all(one.bound.inputs["x"] > 0)


def test_sizes_of_none_are_the_last_choice() -> None:
    """A multiple of 64 is 64 and not 0, which would show nothing."""
    (first, *_) = drawn("input x: f32[M]\nsize H = 64\nrequire M % H == 0\noutput y = x + 1\n")
    assert first.bound.sizes["M"] == 64
