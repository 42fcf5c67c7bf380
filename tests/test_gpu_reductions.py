"""Reductions and scatters on a GPU at sizes that fill it, held against NumPy; the same bits twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cuda import engine
from loopfuse.diag import Source

pytestmark = pytest.mark.gpu
LIMIT = 1 << 34


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


def results(text: str, **inputs: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a script; fails where a second run has other bits."""
    checked = driver.compile_source(Source("reductions", text))
    bound = driver.bind_program(checked.typed, Given(inputs, limit=LIMIT))
    optimised = driver.optimise(driver.lower_program(checked.typed), driver.Options(sizes=bound.sizes))
    first, second = (driver.execute(optimised, bound, backend="cuda", limit=LIMIT).outputs for _ in range(2))
    for name, array in first.items():
        assert np.asarray(array).tobytes() == np.asarray(second[name]).tobytes(), name
    return dict(first)


@pytest.mark.parametrize("count", [1 << 26, (1 << 26) + 12345])
def test_everything_at_once(count: int) -> None:
    x = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    x[count // 3] = x[count // 2] = 9.0
    found = results("input x: f32[N]\noutput s = sum(x * x)\noutput m = argmax(x)\noutput v = var(x + 1e4)\n", x=x)
    assert found["m"] == count // 3
    np.testing.assert_allclose(found["s"], np.square(x, dtype=np.float64).sum(), rtol=1e-6)
    shifted = (x + np.float32(1e4)).astype(np.float64)
    np.testing.assert_allclose(found["v"], shifted.var(), rtol=1e-5)


@pytest.mark.parametrize("shape", [(131072, 512), (100003, 257), (77, 100003)])
def test_columns(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32) + np.float32(1e4)
    text = "input x: f32[M, N]\noutput v = var(x, axis=0)\noutput m = max(x, axis=0)\noutput p = argmin(x, axis=0)\n"
    found = results(text, x=x)
    np.testing.assert_array_equal(found["m"], x.max(0))
    np.testing.assert_array_equal(found["p"], x.argmin(0))
    np.testing.assert_allclose(found["v"], x.astype(np.float64).var(0), rtol=1e-4)


def test_softmax_of_columns() -> None:
    x = np.random.default_rng(3).standard_normal((3001, 1024)).astype(np.float32) * 4
    found = results("import nn\ninput x: f32[M, N]\noutput y = nn.softmax(x, axis=0)\n", x=x)
    e = np.exp(x.astype(np.float64) - x.max(0))
    np.testing.assert_allclose(found["y"], e / e.sum(0), rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("bins", [100, 5000, 3_000_000])
def test_segments(bins: int) -> None:
    """Tables in shared memory, a turn a lane; and exact sums in device memory."""
    rng = np.random.default_rng(4)
    key, x = rng.integers(0, bins, 1 << 24).astype(np.int32), rng.standard_normal(1 << 24).astype(np.float32)
    text = (
        f"input key: i32[N] where 0 <= key < {bins}\ninput x: f32[N]\n"
        f"accum s: f32[{bins}] = 0 for i in 0..N {{ s[key[i]] += x[i] }}\n"
        f"accum c: i32[{bins}] = 0 for i in 0..N {{ c[key[i]] += 1 }}\noutput s\noutput c\n"
    )
    found = results(text, key=key, x=x)
    np.testing.assert_array_equal(found["c"], np.bincount(key, minlength=bins))
    exact = np.bincount(key, x.astype(np.float64), minlength=bins)
    size = np.bincount(key, np.abs(x).astype(np.float64), minlength=bins)
    assert (np.abs(found["s"] - exact) <= size * 2e-5).all()


def test_more_than_two_to_the_31_elements() -> None:
    count = (1 << 31) + 4099
    x = np.ones(count, np.int8)
    x[-2] = 3
    found = results("input x: i8[N]\noutput s = sum(x)\noutput m = argmax(x)\n", x=x)
    assert found["s"] == count + 2 and found["m"] == count - 2
