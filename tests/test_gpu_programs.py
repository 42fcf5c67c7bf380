"""Every program of the tests, run on a GPU and held against the reference, at extents that divide nothing, of 0 and of 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from compiled_checks import check, trouble
from gpu_cases import Data, Suite, suites, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs

from loopfuse import driver
from loopfuse.bind import Bound, Given
from loopfuse.cuda import engine
from loopfuse.diag import Source
from loopfuse.driver import Optimised
from loopfuse.generate import Array

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


def on_gpu(optimised: Optimised, bound: Bound) -> Mapping[str, Array]:
    """The results of the CUDA back end."""
    return driver.execute(optimised, bound, backend="cuda").buffers


@pytest.mark.parametrize("suite", suites(), ids=lambda s: s.id)
def test_program(suite: Suite) -> None:
    check(suite, on_gpu, large=True)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_loop_ir(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    suite = Suite("random", lambda: wrapped(program), lambda lowered, large: iter(()), "none")
    problem = trouble(suite, Data("", Bound(sizes, inputs)), on_gpu)
    assert not problem, problem


def test_a_map_of_more_than_two_to_the_31_elements() -> None:
    """Offsets of elements need 64 bits, also where each element is a byte."""
    count = (1 << 31) + 513
    checked = driver.compile_source(Source("bytes", "input x: i8[N]\noutput y = x + 1\noutput z = y[N - 3:]\n"))
    x = np.resize(np.arange(-128, 127, dtype=np.int8), count)  # 255 values: no period of any power of two
    bound = driver.bind_program(checked.typed, Given({"x": x}, limit=1 << 34))
    optimised = driver.optimise(driver.lower_program(checked.typed), driver.Options(sizes=bound.sizes))
    found = driver.execute(optimised, bound, backend="cuda", limit=1 << 34).outputs
    for start in range(0, count, 1 << 28):
        part = slice(start, start + (1 << 28))
        assert np.array_equal(found["y"][part], x[part] + np.int8(1)), f"from {start}"
    assert np.array_equal(found["z"], x[-3:] + np.int8(1))
