"""Every array function of the language against NumPy, on small arrays of uneven shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import loopfuse as lf

RNG = np.random.default_rng(7)
A = RNG.normal(size=(3, 4)).astype(np.float32)
B = RNG.normal(size=(4, 5)).astype(np.float32)
C = RNG.normal(size=(2, 3, 4)).astype(np.float32)
S = RNG.normal(size=(4, 4)).astype(np.float32)
V = RNG.normal(size=4).astype(np.float32)
K = np.array([2, 0, 3, 3, 1], np.int32)
M = A > 0
DECLARED = """
input a: f32[I, J]
input b: f32[J, L]
input c: f32[G, I, J]
input s: f32[J, J]
input v: f32[J]
input k: i32[P] where 0 <= k < J
input m: bool[I, J]
require I >= 1 and J >= 1 and L >= 1 and G >= 1 and P >= 1
"""

Array = np.ndarray[Any, Any]
CASES: list[tuple[str, Callable[[], Any]]] = [
    ("a.T", lambda: A.T),
    ("c.mT", lambda: C.swapaxes(1, 2)),
    ("transpose(c)", lambda: C.T),
    ("transpose(c, 2, 0, 1)", lambda: C.transpose(2, 0, 1)),
    ("swapaxes(c, 0, -1)", lambda: C.swapaxes(0, -1)),
    ("reshape(c, I, G, J)", lambda: C.reshape(3, 2, 4)),
    ("reshape(c, G * I * J)", lambda: C.reshape(-1)),
    ("reshape(c, G, -1)", lambda: C.reshape(2, -1)),
    ("reshape(reshape(c, -1), J, G, I)", lambda: C.reshape(4, 2, 3)),
    ("reshape(a.T, I, J)", lambda: A.T.reshape(3, 4)),
    ("squeeze(sum(c, axis=1, keepdims=true))", lambda: C.sum(1)),
    ("squeeze(c[:, None], axis=1)", lambda: C),
    ("expand_dims(a, 1)", lambda: A[:, None]),
    ("expand_dims(a, -1)", lambda: A[..., None]),
    ("broadcast_to(v, 2, J)", lambda: np.broadcast_to(V, (2, 4))),
    ("broadcast_to(1.5, 2, J)", lambda: np.full((2, 4), 1.5, np.float32)),
    ("concat(a, b.T, s)", lambda: np.concatenate([A, B.T, S])),
    ("concat(a, m_f, axis=-1)", lambda: np.concatenate([A, M.astype(np.float32)], -1)),
    ("stack(a, a + 1)", lambda: np.stack([A, A + 1])),
    ("stack(a, a + 1, axis=2)", lambda: np.stack([A, A + 1], 2)),
    ("pad(a, 1)", lambda: np.pad(A, 1)),
    ("pad(a, (1, 2), value=-1)", lambda: np.pad(A, (1, 2), constant_values=-1)),
    ("pad(a, ((1, 0), (2, 3)), mode=\"edge\")", lambda: np.pad(A, ((1, 0), (2, 3)), "edge")),
    ("pad(a > 0, 1)", lambda: np.pad(A > 0, 1)),
    ("pad(a > 0, 1, mode=\"edge\")", lambda: np.pad(A > 0, 1, "edge")),
    ("pad(a, 2, mode=\"reflect\")", lambda: np.pad(A, 2, "reflect")),
    ("pad(a, 5, mode=\"symmetric\")", lambda: np.pad(A, 5, "symmetric")),
    ("pad(a + 1, 7, mode=\"wrap\")", lambda: np.pad(A + 1, 7, "wrap")),
    ("flip(a)", lambda: np.flip(A)),
    ("flip(c, axis=1)", lambda: np.flip(C, 1)),
    ("flip(c, axis=(0, 2))", lambda: np.flip(C, (0, 2))),
    ("roll(v, 1)", lambda: np.roll(V, 1)),
    ("roll(a, -5, axis=1)", lambda: np.roll(A, -5, 1)),
    ("tile(v, 3)", lambda: np.tile(V, 3)),
    ("tile(a, 2, 1, 3)", lambda: np.tile(A, (2, 1, 3))),
    ("repeat(v, 3)", lambda: np.repeat(V, 3)),
    ("repeat(a, 2, axis=0)", lambda: np.repeat(A, 2, 0)),
    ("tril(s)", lambda: np.tril(S)),
    ("tril(a, k=-1)", lambda: np.tril(A, -1)),
    ("triu(c, k=1)", lambda: np.triu(C, 1)),
    ("diagonal(s)", lambda: np.diagonal(S)),
    ("one_hot(k, J)", lambda: np.eye(4, dtype=np.float32)[K]),
    ("one_hot(k, J, dtype=i32)", lambda: np.eye(4, dtype=np.int32)[K]),
    ("take(v, k)", lambda: V[K]),
    ("take(a, k, axis=1)", lambda: A[:, K]),
    ("take(c, 1, axis=0)", lambda: C[1]),
    ("a[:, k]", lambda: A[:, K]),
    ("c[1, :, k]", lambda: C[1][:, K]),
    ("iota(5)", lambda: np.arange(5)),
    ("iota(J, dtype=f32)", lambda: np.arange(4, dtype=np.float32)),
    ("zeros(i8, 2, J)", lambda: np.zeros((2, 4), np.int8)),
    ("ones(f16, I)", lambda: np.ones(3, np.float16)),
    ("full(f32, -inf, 2)", lambda: np.full(2, -np.inf, np.float32)),
    ("eye(f32, I)", lambda: np.eye(3, dtype=np.float32)),
    ("a @ b", lambda: A @ B),
    ("v @ b", lambda: V @ B),
    ("a @ v", lambda: A @ V),
    ("v @ v", lambda: V @ V),
    ("c @ b", lambda: C @ B),
    ("c @ s[None]", lambda: C @ S),
    ("i32(a * 10) @ i32(b * 10)", lambda: (A * 10).astype(np.int32) @ (B * 10).astype(np.int32)),
    ("dot(a, b)", lambda: A @ B),
    ("outer(v, a[0])", lambda: np.outer(V, A[0])),
    ("einsum(\"ij,jk->ik\", a, b)", lambda: A @ B),
    ("einsum(\"ij,jk\", a, b)", lambda: A @ B),
    ("einsum(\"gij->ji\", c)", lambda: C.sum(0).T),
    ("einsum(\"ii->i\", s)", lambda: np.diagonal(S)),
    ("einsum(\"ii\", s)", lambda: np.trace(S)),
    ("einsum(\"gij,jk,kl->gil\", c, b, b.T)", lambda: C @ B @ B.T),
    ("sum(c)", lambda: C.sum()),
    ("sum(c, axis=(0, 2))", lambda: C.sum((0, 2))),
    ("sum(m)", lambda: M.sum()),
    ("sum(k)", lambda: K.sum()),
    ("sum(a, dtype=f64)", lambda: A.sum(dtype=np.float64)),
    ("prod(a, axis=-1, keepdims=true)", lambda: A.prod(-1, keepdims=True)),
    ("mean(c, axis=0)", lambda: C.mean(0)),
    ("max(a, axis=0)", lambda: A.max(0)),
    ("min(k)", lambda: K.min()),
    ("any(m, axis=1)", lambda: M.any(1)),
    ("all(m)", lambda: M.all()),
    ("argmax(a, axis=1)", lambda: A.argmax(1)),
    ("argmin(c)", lambda: C.argmin()),
    ("argmax(k)", lambda: K.argmax()),
    ("logsumexp(c, axis=2)", lambda: special.logsumexp(C, 2)),
    ("count_nonzero(m)", lambda: np.count_nonzero(M)),
    ("count_nonzero(k)", lambda: np.count_nonzero(K)),
    ("norm(a)", lambda: np.linalg.norm(A)),
    ("norm(a, axis=1)", lambda: np.linalg.norm(A, axis=1)),
    ("var(a, axis=0)", lambda: A.var(0)),
    ("var(a, ddof=1)", lambda: A.var(ddof=1)),
    ("std(c, axis=(1, 2), keepdims=true)", lambda: C.std((1, 2), keepdims=True)),
    ("cumsum(v)", lambda: V.cumsum()),
    ("cumsum(k)", lambda: K.cumsum()),
    ("cumsum(c, axis=1)", lambda: C.cumsum(1)),
    ("cumprod(a, axis=-1)", lambda: A.cumprod(-1)),
    ("cummax(a, axis=1)", lambda: np.maximum.accumulate(A, 1)),
    ("cummin(v)", lambda: np.minimum.accumulate(V)),
    ("clip(a, -0.5, 0.5)", lambda: A.clip(-0.5, 0.5)),
    ("where(m, a, 0)", lambda: np.where(M, A, 0)),
    ("fma(a, a, 1)", lambda: A * A + 1),
    ("bits(v, u32)", lambda: V.view(np.uint32)),
    ("popcount(bits(v, u32))", lambda: np.bitwise_count(V.view(np.uint32)).astype(np.uint32)),
    ("a[1:, ::2]", lambda: A[1:, ::2]),
    ("a[::-1, -2:]", lambda: A[::-1, -2:]),
    ("a[2::-1, 1:-1]", lambda: A[2::-1, 1:-1]),
    ("c[..., 0]", lambda: C[..., 0]),
    ("c[1, ..., None]", lambda: C[1, ..., None]),
    ("c[-1, -1, -1]", lambda: C[-1, -1, -1]),
    ("a[:, None] * s[None, 1:]", lambda: A[:, None] * S[None, 1:]),
    ("[1, 2, 3]", lambda: np.array([1, 2, 3])),
    ("[[1, 2.5], [v[0], 4]]", lambda: np.array([[1, 2.5], [V[0], 4]], np.float32)),
    ("[a[i, j] * 2 for j, i]", lambda: A.T * 2),
    ("[i * j for i in 0..3, j in 1..3]", lambda: np.outer(np.arange(3), np.arange(1, 3))),
    ("a.shape[1] * 2", lambda: np.int64(8)),
    ("x_of(a)", lambda: A + 3),
    ("close(a, a + 1e-9)", lambda: np.ones((3, 4), bool)),
    ("a if m else -a", lambda: np.abs(A)),
    ("not m and a < 0.5 or m", lambda: ~M & (A < 0.5) | M),
    ("-1 < a <= 0.5", lambda: (A > -1) & (A <= 0.5)),
    ("k // 2 * 2 + k % 2", lambda: K),
    ("(k - 3) // 2", lambda: (K - 3) // 2),
    ("(k - 3) % 2", lambda: (K - 3) % 2),
    ("k << 2 | 1", lambda: K << 2 | 1),
    ("~k ^ k & 3", lambda: ~K ^ K & 3),
    ("2 ** k", lambda: 2**K),
    ("-v ** 2", lambda: -(V**2)),
]  # fmt: skip

HEADER = DECLARED + "fn x_of(x: float[...]) = x + x.ndim + 1\nlet m_f = f32(m)\n"


@pytest.mark.parametrize(("text", "answer"), CASES, ids=[c[0] for c in CASES])
def test_function(text: str, answer: Callable[[], Any]) -> None:
    with np.errstate(all="ignore"):
        want = np.asarray(answer())
    got = np.asarray(lf.run(f"{HEADER}output y = {text}\n", a=A, b=B, c=C, s=S, v=V, k=K, m=M))
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    else:
        np.testing.assert_array_equal(got, want)
