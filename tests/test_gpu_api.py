"""The Python API on a GPU: arrays of several libraries, outputs that are given, bound calls, kernels for any extents."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import loopfuse as lf

pytestmark = pytest.mark.gpu

SOFTMAX = (
    "input x: f32[M, N]\nlet e = exp(x - max(x, axis=1, keepdims=true))\noutput y = e / sum(e, axis=1, keepdims=true)\n"
)
TWO = "input x: f32[N]\nparam k: f32 = 2.0\noutput a = x * k\noutput b = sum(x)\n"


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_numpy_in_and_out() -> None:
    f = lf.compile(SOFTMAX)
    for shape in ((5, 7), (1, 1), (64, 1031)):
        x = normal(*shape)
        y = f(x, backend="cuda")
        assert isinstance(y, np.ndarray)
        np.testing.assert_allclose(y, softmax(x), rtol=1e-5)
    assert len(f.specialisations) == 3


def test_one_set_of_kernels_for_all_extents() -> None:
    f = lf.compile(SOFTMAX, dynamic=True)
    for shape in ((5, 7), (3, 300), (0, 4), (64, 1031)):
        x = normal(*shape)
        np.testing.assert_allclose(f(x, backend="cuda"), softmax(x) if x.size else x, rtol=1e-5)
    assert len(f.specialisations) == 1


def test_outputs_that_are_given() -> None:
    f, x = lf.compile(TWO), normal(1000)
    a = np.zeros_like(x)
    found = f(x, k=np.float32(3), backend="cuda", out={"a": a})
    assert found.a is a
    np.testing.assert_allclose(a, x * 3)
    np.testing.assert_allclose(found.b, x.sum(dtype=np.float64), rtol=1e-4, atol=1e-4)
    with pytest.raises(lf.Error, match="no output"):
        f(x, backend="cuda", out={"c": a})


def test_tensors_of_pytorch_stay_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    f = lf.compile(SOFTMAX)
    x = torch.randn(33, 517, device="cuda")
    y = torch.full_like(x, float("nan"))
    call = f.bind(x, out=y)
    call()
    torch.testing.assert_close(y, torch.softmax(x, 1))
    x.copy_(torch.randn_like(x))
    call()
    torch.testing.assert_close(y, torch.softmax(x, 1))
    other, result = torch.randn_like(x), torch.empty_like(x)
    call.rebind(x=other, out=result)
    call()
    torch.testing.assert_close(result, torch.softmax(other, 1))
    free = f(x)
    torch.testing.assert_close(torch.from_dlpack(free), torch.softmax(x, 1))


def test_streams_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    f = lf.compile(SOFTMAX)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(256, 4096, device="cuda")
        y = torch.empty_like(x)
        f(x, out=y, stream=stream)
    stream.synchronize()
    torch.testing.assert_close(y, torch.softmax(x, 1))


def test_what_goes_outside_is_told() -> None:
    f = lf.compile("input x: f32[N]\ninput i: i64[M] where 0 <= i < N\noutput y[k] = x[i[k]]\n")
    x = normal(10)
    np.testing.assert_array_equal(f(x, np.array([0, 9, 3]), backend="cuda"), x[[0, 9, 3]])
    with pytest.raises(lf.Error, match="domain"):
        f(x, np.array([0, 10, 3]), backend="cuda")


def test_a_compiled_program_can_be_sent_elsewhere() -> None:
    f, x = lf.compile(SOFTMAX), normal(3, 5)
    f(x, backend="cuda")
    np.testing.assert_allclose(pickle.loads(pickle.dumps(f))(x, backend="cuda"), softmax(x), rtol=1e-5)


def test_the_same_bits_again() -> None:
    f, x = lf.compile(TWO), normal(1 << 20)
    first = f(x, backend="cuda")
    for _ in range(3):
        again = f(x, backend="cuda")
        assert first.b.tobytes() == again.b.tobytes() and first.a.tobytes() == again.a.tobytes()
