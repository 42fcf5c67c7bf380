"""Small programs that each stand for a corner of the language, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import loopfuse as lf
from loopfuse.agreement import every_pass
from loopfuse.bind import Given
from loopfuse.diag import Source
from loopfuse.driver import bind_program, compile_source, lower_program

RNG = np.random.default_rng(11)
X = RNG.normal(size=(5, 7)).astype(np.float32)
V = RNG.normal(size=7).astype(np.float32)
H = V.astype(np.float16)
D = V.astype(np.float64)
KEYS = np.array([1, 2, 2, 5, 1, 0, 0], np.uint8)
WORDS = np.arange(5, dtype=np.uint32)
Array = np.ndarray[Any, Any]

SOFT = "fn soft(z: f32[D]) {\n let e = exp(z - max(z))\n return e / sum(e)\n}\n"


def hashed() -> np.uint32:
    state = 0
    for word in WORDS:
        state = ((state ^ int(word)) * 16777619) & 0xFFFFFFFF
    return np.uint32(state)


def shifted(mode: str, **more: Any) -> Array:
    padded = np.pad(V, 9, mode, **more)  # type: ignore[call-overload]
    result: Array = padded[7:14] + 2 * padded[12:19]
    return result


CASES: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "scan in reverse": (
        "input x: f32[N]\nscan t in 0..N by -1 carry (s = 0.0) { next s = s + x[t] emit r = s }\noutput s\noutput r",
        {"x": V},
        [V[::-1].cumsum()[-1], np.append(V[::-1].cumsum()[::-1][1:], np.float32(0))],
    ),
    "scan by two": (
        "input x: f32[N]\nrequire N >= 1\nscan t in 1..N by 2 carry (s = 0.0) { next s = s + x[t] emit r = x[t] }\noutput s\noutput r",
        {"x": V},
        [V[1::2].sum(), V[1::2]],
    ),
    "scan by minus two": (
        "input x: f32[N]\nrequire N >= 1\nscan t in 1..N by -2 carry (s = 0.0) { next s = s * 2 + x[t] emit r = x[t] }\noutput s\noutput r",
        {"x": V},
        [np.float32((V[5] * 2 + V[3]) * 2 + V[1]), V[1::2]],
    ),
    "array function at an index": (
        SOFT + "input x: f32[N, M]\nrequire M >= 1\noutput y[i, j] = soft(x[i])[j]",
        {"x": X},
        [special.softmax(X, 1)],
    ),
    "scalar function of a sum": (
        "fn gelu(z) = 0.5 * z * (1 + erf(z * 0.7071067811865476))\ninput x: f32[N, M]\noutput y[i, j] = gelu(sum(x[i, k] for k) * x[i, j])",
        {"x": X},
        [
            (lambda z: 0.5 * z * (1 + special.erf(z / np.sqrt(2))))(
                (X.sum(1, keepdims=True) * X).astype(np.float64)
            ).astype(np.float32)
        ],
    ),
    "array function in a lazy arm": (
        SOFT + "input x: f32[N, M]\nrequire M >= 1\nscan t in 0..N carry (s = zeros(f32, M)) {\n"
        "  let p = soft(x[t - 1]) if t > 0 else x[t]\n  next s = s + p\n}\noutput s",
        {"x": X},
        [special.softmax(X[:-1], 1).sum(0) + X[0]],
    ),
    "filters in one another": (
        "input x: f32[N]\noutput y[i in 0..N] = sum(sum(x[k + j] for j in 0..i) for k in 0..N if k + i < N) if i > 0 else 0",
        {"x": V},
        [np.array([0] + [sum(V[k : k + i].sum() for k in range(7) if k + i < 7) for i in range(1, 7)], np.float32)],
    ),
    "a ragged range": (
        "input x: f32[N]\noutput y[i in 0..N] = max(x[j] for j in 0..i + 1)",
        {"x": V},
        [np.maximum.accumulate(V)],
    ),
    "bounds read from data": (
        "input ptr: i32[N + 1]\ninput v: f32[E]\noutput y[i in 0..N] = sum(v[k] for k in ptr[i]..ptr[i + 1])",
        {"ptr": np.array([0, 2, 2, 7], np.int32), "v": V},
        [np.array([V[0:2].sum(), 0, V[2:7].sum()], np.float32)],
    ),
    "mean under a filter": ("input x: f32[N]\noutput y = mean(x[j] for j if x[j] > 0)", {"x": V}, [V[V > 0].mean()]),
    "logsumexp of products": (
        "input x: f32[N, M]\nrequire N >= 1\noutput y[i] = logsumexp(sum(x[i, k] * x[j, k] for k) for j)",
        {"x": X},
        [special.logsumexp(X @ X.T, 1).astype(np.float32)],
    ),
    "logsumexp of what is infinite": (
        "input x: f32[N, M]\nrequire M >= 1\noutput y[i] = logsumexp(x[i, j] for j)",
        {"x": np.array([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 2]], np.float32)},
        [np.array([-np.inf, np.inf, 2], np.float32)],
    ),
    "a sum of one term": (
        "input x: f32[N]\nrequire N >= 1\noutput y = sum(x[k] * 2 for k in 0..1)",
        {"x": V},
        [V[0] * 2],
    ),
    "past the ends of a constant array": (
        "input x: f32[N]\nlet c[i in 0..N] = f32(2)\noutput y[i in 0..N] = constant(c, 5)[i - 1] + x[i]",
        {"x": V},
        [V + np.array([5, 2, 2, 2, 2, 2, 2], np.float32)],
    ),
    "a constant and then another part": (
        "input x: f32[N]\nlet t = concat(ones(f32, N), x)\noutput y = t * t + t",
        {"x": V},
        [np.append(np.full(7, 2, np.float32), V * V + V)],
    ),
    "zeros keep their signs": (
        "input x: f32[N]\noutput y = 1 / (x + 0.0)\noutput z = 1 / (x - 0.0)",
        {"x": np.array([-0.0, 0.0, 4.0], np.float32)},
        [np.array([np.inf, np.inf, 0.25], np.float32), np.array([-np.inf, np.inf, 0.25], np.float32)],
    ),
    "two parts of two definitions": (
        "input x: f32[N]\nlet a[i in 0..N] = exp(x[i])\nlet b[i in 0..N] = sin(x[i])\noutput y = concat(a, b)",
        {"x": V},
        [np.append(np.exp(V), np.sin(V))],
    ),
    "NaN is not itself": (
        "input x: f32[N]\noutput y = x == x\noutput z = x != x",
        {"x": np.array([np.nan, 1], np.float32)},
        [np.array([False, True]), np.array([True, False])],
    ),
    "neither less nor greater than NaN": (
        "input x: f32[N]\noutput y = not (x < 1)\noutput z = not (x >= 1)",
        {"x": np.array([np.nan, 1, 0], np.float32)},
        [np.array([True, True, False]), np.array([True, False, True])],
    ),
    "a named number keeps its precision": (
        "input h: f64[N]\nlet c = 1 / 3\noutput y = h * c + pi",
        {"h": D},
        [D / 3 + np.pi],
    ),
    "a varying number beside f16": (
        "input h: f16[N]\noutput y[i] = h[i] * sin(2 * pi * i / N)",
        {"h": H},
        [H * np.sin(2 * np.pi * np.arange(7) / 7).astype(np.float16)],
    ),
    "f16 sums overflow only at the end": (
        "input h: f16[N]\noutput y = sum(h)\noutput z = sum(h, dtype=f32)",
        {"h": np.ones(70000, np.float16)},
        [np.float16(np.inf), np.float32(70000)],
    ),
    "i8 wraps at every step": (
        "input a: i8[N]\noutput y = a * a + a",
        {"a": np.array([100, -128, 7], np.int8)},
        [np.array([10000 + 100, 16384 - 128, 56]).astype(np.int8)],
    ),
    "two updates of one scatter": (
        "input k: u8[N]\ninput x: f32[N]\naccum h: f32[256] = 1 for i { h[k[i]] += x[i] h[0] += 1 }\noutput h",
        {"k": KEYS, "x": V},
        [(np.bincount(KEYS, V, 256) + 1 + 7 * (np.arange(256) == 0)).astype(np.float32)],
    ),
    "a scatter of maxima under a filter": (
        "input k: u8[N]\ninput x: f32[N]\naccum h: f32[4] = -inf for i if k[i] < 4 { h[k[i]] max= x[i] }\noutput h",
        {"k": KEYS, "x": V},
        [np.array([max(V[5], V[6]), max(V[0], V[4]), max(V[2], V[1]), -np.inf], np.float32)],
    ),
    "a function of a boundary view": (
        "input x: f32[N]\nfn st(v, n) = [v[i - 2] + 2 * v[i + 3] for i in 0..n]\nrequire N >= 1\noutput a = st(reflect(x), N)\n"
        "output b = st(wrap(x), N)\noutput c = st(constant(x, -1), N)\noutput d = st(symmetric(x), N)\noutput e = st(edge(x), N)",
        {"x": V},
        [
            shifted("reflect"),
            shifted("wrap"),
            shifted("constant", constant_values=-1),
            shifted("symmetric"),
            shifted("edge"),
        ],
    ),
    "inputs without axes": (
        "input s: f32\ninput x: f32[N]\noutput y = x * s\noutput z = s + 1",
        {"x": V, "s": np.float32(2)},
        [V * 2, np.float32(3)],
    ),
    "an input as an output": ("input x: f32[N]\noutput x\noutput y = x", {"x": V}, [V, V]),
    "numbers as outputs": (
        "input x: f32[N]\noutput a = N * 2\noutput b = 1 / N\noutput c: f16 = 2.5\noutput d = x.shape[0]",
        {"x": V},
        [np.int64(14), np.float32(1 / 7), np.float16(2.5), np.int64(7)],
    ),
    "a hash in u32": (
        "input k: u32[N]\nscan t carry (s: u32 = 0) { next s = (s ^ k[t]) * 16777619 }\noutput s",
        {"k": WORDS},
        [hashed()],
    ),
    "bf16": (
        "input x: f32[N]\noutput y = f32(bf16(x) * bf16(2.0))",
        {"x": V},
        [V.astype(ml_dtypes.bfloat16).astype(np.float32) * 2],
    ),
    "two returned values": (
        "fn f(a) {\n let m = mean(a)\n return m, a - m\n}\ninput x: f32[N]\nlet (m, d) = f(x)\noutput m\noutput d",
        {"x": V},
        [V.mean(), V - V.mean()],
    ),
    "a definition again": ("input x: f32[N]\nlet y = x + 1\nlet y = y * 2\noutput y", {"x": V}, [(V + 1) * 2]),
    "a product over nothing": (
        "input a: f32[M, K]\ninput b: f32[K, N]\noutput y = a @ b",
        {"a": np.zeros((3, 0), np.float32), "b": np.zeros((0, 2), np.float32)},
        [np.zeros((3, 2), np.float32)],
    ),
    "floats over nothing": (
        "input a: f32[M]\noutput y = exp(a)\noutput s = sum(a)\noutput m = mean(a)\noutput p = prod(a)\noutput l = logsumexp(a[i] for i if a[i] > 0)",
        {"a": np.zeros(0, np.float32)},
        [np.zeros(0, np.float32), np.float32(0), np.float32(np.nan), np.float32(1), np.float32(-np.inf)],
    ),
    "conditions over nothing": (
        "input a: bool[M]\noutput y = all(a)\noutput z = any(a)\noutput p = sum(a)",
        {"a": np.zeros(0, bool)},
        [np.True_, np.False_, np.int64(0)],
    ),
    "NaN wins": (
        "input a: f32[M]\nrequire M >= 1\noutput y = argmax(a)\noutput z = argmin(a)\noutput m = max(a)",
        {"a": np.array([1, 2, np.nan, 5, np.nan], np.float32)},
        [np.int64(2), np.int64(2), np.float32(np.nan)],
    ),
    "the first of ties": (
        "input a: i32[M]\nrequire M >= 2\noutput y = argmax(a)\noutput z = argmin(a[k] for k in 1..M)",
        {"a": np.array([1, 0, 7, 0, 7], np.int32)},
        [np.int64(2), np.int64(1)],
    ),
    "params": (
        "input x: f32[N]\nparam flag: bool = true\nparam n: u8 = 3\noutput y[i] = x[i] if flag else 0\noutput z = f32(n) * x",
        {"x": V},
        [V, V * 3],
    ),
    "the type of an element": ("input x: f32[N]\nlet y[i]: f16 = f16(x[i])\noutput y", {"x": V}, [H]),
    "a named mask guards": (
        "input x: f32[N]\nlet ok[i] = i > 0 and x[i] > 0\noutput y[i] = x[i - 1] if ok[i] else 0",
        {"x": V},
        [np.where((np.arange(7) > 0) & (V > 0), np.roll(V, 1), 0).astype(np.float32)],
    ),
    "a cumulative sum at an index": (
        "input x: f32[N, M]\nfn last(z: f32[D]) {\n let c = cumsum(z)\n return c[D - 1]\n}\nrequire M >= 1\noutput y[i] = last(x[i])",
        {"x": X},
        [X.sum(1)],
    ),
    "an array made at an index": (
        "input x: f32[N, M]\noutput y[i] = sum([x[i, j] * 2 for j])",
        {"x": X},
        [X.sum(1) * 2],
    ),
    "names that other languages keep": (
        "input int: f32[for_, threadIdx]\ninput σ: f32[threadIdx]\nparam __x: f32 = 2\nlet class = int * σ\n"
        "let lambda[i, j] = class[i, j] + __x\noutput double[float_, char] = lambda[float_, char]\noutput out = double",
        {"int": X, "σ": V},
        [X * V + 2, X * V + 2],
    ),
    "integer division": (
        "input a: i32[N]\ninput b: i32[N]\noutput q = a // b\noutput r = a % b",
        {"a": np.array([-7, 5, 7], np.int32), "b": np.array([2, 0, 2], np.int32)},
        [np.array([-4, 0, 3], np.int32), np.array([1, 0, 1], np.int32)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_program(name: str) -> None:
    text, arrays, want = CASES[name]
    result = lf.run(text, **arrays)
    got = [result] if len(want) == 1 else [result[k] for k in range(len(want))]
    for a, b in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.dtype.kind == "f":
            tolerance = 2e-3 if b.dtype == np.float16 else 1e-5 if b.dtype == np.float32 else 1e-14
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_after_every_pass(name: str) -> None:
    """Verified, and the same results, after each pass."""
    text, arrays, _ = CASES[name]
    typed = compile_source(Source(name, text)).typed
    named = {i.name for i in typed.inputs}
    given = Given({k: v for k, v in arrays.items() if k in named}, {k: v for k, v in arrays.items() if k not in named})
    for row in every_pass(lower_program(typed), bind_program(typed, given)):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"
