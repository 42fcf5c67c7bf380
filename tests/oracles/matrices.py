"""Linear algebra and stencils, mostly PolyBench, in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from tests.oracles.core import F64, Array, Case, Draw, Rng, Tol, Values, cases, normal

CASES: list[Case] = []


def spd(r: Rng, n: int) -> Array:
    """A symmetric matrix with all eigenvalues at least 1."""
    a = r.standard_normal((n, n))
    return np.asarray(a @ a.T + np.eye(n))


def dominant(r: Rng, n: int) -> Array:
    """A matrix whose diagonal outweighs its rows, so that no pivot is small."""
    a = r.standard_normal((n, n))
    return np.asarray(a + np.diag(np.abs(a).sum(1) + 1))


SQUARES = [Draw({"N": 7}), Draw({"N": 1}), Draw({"N": 2}), Draw({"N": 20})]

CASES += cases("tasks/cholesky.lf", lambda r, v: {"a0": spd(r, v.N)}, lambda v: {"l": np.linalg.cholesky(v.a0)},
               {"l": "f64"}, SQUARES, tol=F64)  # fmt: skip


def lu(v: Values) -> dict[str, Any]:
    """Doolittle's scheme, row by row; L below the diagonal and U above share one matrix."""
    n = v.N
    low, up = np.eye(n), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            rest = v.a0[i, j] - low[i, : min(i, j)] @ up[: min(i, j), j]
            if i > j:
                low[i, j] = rest / up[j, j]
            else:
                up[i, j] = rest
    return {"a": np.tril(low, -1) + up}


CASES += cases("tasks/lu.lf", lambda r, v: {"a0": dominant(r, v.N)}, lu, {"a": "f64"}, SQUARES, tol=F64)

CASES += cases(
    "tasks/trisolv.lf",
    lambda r, v: {"l": np.asarray(np.tril(r.standard_normal((v.N, v.N))) + 3 * np.eye(v.N)
                                  + np.triu(np.full((v.N, v.N), np.nan), 1)), "b": normal(r, v.N, dtype="f64")},
    lambda v: {"x": linalg.solve_triangular(np.tril(v.l), v.b, lower=True)}, {"x": "f64"}, SQUARES, tol=F64,
)  # fmt: skip


def gramschmidt(v: Values) -> dict[str, Any]:
    q, r = np.linalg.qr(v.a0)
    sign = np.where(np.diag(r) < 0, -1.0, 1.0)
    return {"q": q * sign, "r": np.triu(r * sign[:, None])}


CASES += cases(
    "tasks/gramschmidt.lf", lambda r, v: {"a0": np.asarray(r.standard_normal((v.M, v.N)) + 3 * np.eye(v.M, v.N))},
    gramschmidt, {"q": "f64", "r": "f64"},
    [Draw({"M": 7, "N": 5}), Draw({"M": 1, "N": 1}), Draw({"M": 13, "N": 3})], tol=Tol(1e-8, 1e-8),
)  # fmt: skip

CASES += cases(
    "tasks/covariance.lf", lambda r, v: {"data": normal(r, v.N, v.M, dtype="f64")},
    lambda v: {"cov": np.atleast_2d(np.cov(v.data, rowvar=False))}, {"cov": "f64"},
    [Draw({"N": 11, "M": 5}), Draw({"N": 2, "M": 1}), Draw({"N": 31, "M": 7}),
     Draw({"N": 9, "M": 3}, edit=lambda i: i["data"].__iadd__(1e8), note="far-mean")],
    tol=Tol(1e-6, 1e-6),
)  # fmt: skip

CASES += cases(
    "tasks/doitgen.lf",
    lambda r, v: {"a": normal(r, v.NR, v.NQ, v.NP, dtype="f64"), "c4": normal(r, v.NP, v.NP, dtype="f64")},
    lambda v: {"a1": np.einsum("rqs,sp->rqp", v.a, v.c4)}, {"a1": "f64"},
    [Draw({"NR": 3, "NQ": 4, "NP": 5}), Draw({"NR": 1, "NQ": 1, "NP": 1}), Draw({"NR": 2, "NQ": 7, "NP": 11})], tol=F64,
)  # fmt: skip


def pca(v: Values) -> dict[str, Any]:
    values, vectors = np.linalg.eigh(np.cov(v.x, rowvar=False))
    first = vectors[:, -1] * np.sign(vectors[:, -1] @ v.v0)
    return {"v": first, "lam": values[-1]}


CASES += cases(
    "tasks/pca_power.lf",
    lambda r, v: {"x": np.asarray(r.standard_normal((v.N, v.D)) * (4.0 ** -np.arange(v.D)) * 5), "v0": np.ones(v.D)},
    pca, {"v": "f64", "lam": "f64"},
    [Draw({"N": 40, "D": 4}), Draw({"N": 7, "D": 2}), Draw({"N": 50, "D": 5}, {"ITERS": 80})],
    defaults={"ITERS": 50}, tol=Tol(1e-8, 1e-8),
)  # fmt: skip


# -- stencils ---------------------------------------------------------------------------------------------------------


def jacobi(v: Values) -> dict[str, Any]:
    a, b = v.a0.copy(), v.b0.copy()
    for _ in range(1, v.TSTEPS):
        for source, target in ((a, b), (b, a)):
            target[1:-1, 1:-1] = 0.2 * (source[1:-1, 1:-1] + source[1:-1, :-2] + source[1:-1, 2:]
                                        + source[2:, 1:-1] + source[:-2, 1:-1])  # fmt: skip
    return {"a": a, "b": b}


CASES += cases(
    "tasks/jacobi_2d.lf",
    lambda r, v: {"a0": normal(r, v.N, v.N, dtype="f64"), "b0": normal(r, v.N, v.N, dtype="f64")},
    jacobi, {"a": "f64", "b": "f64"},
    [Draw({"N": 7}, {"TSTEPS": 5}), Draw({"N": 1}, {"TSTEPS": 3}), Draw({"N": 2}, {"TSTEPS": 3}), Draw({"N": 3}),
     Draw({"N": 5}, {"TSTEPS": 1}, note="no-step")],
    defaults={"TSTEPS": 100}, tol=F64,
)  # fmt: skip


def fdtd(v: Values) -> dict[str, Any]:
    ex, ey, hz = v.ex0.copy(), v.ey0.copy(), v.hz0.copy()
    for source in v.fict:
        ey[0, :] = source
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return {"ex": ex, "ey": ey, "hz": hz}


CASES += cases(
    "tasks/fdtd_2d.lf",
    lambda r, v: {**{k: normal(r, v.NX, v.NY, dtype="f64") for k in ("ex0", "ey0", "hz0")},
                  "fict": normal(r, v.T, dtype="f64")},
    fdtd, {"ex": "f64", "ey": "f64", "hz": "f64"},
    [Draw({"NX": 5, "NY": 7, "T": 6}), Draw({"NX": 1, "NY": 1, "T": 2}), Draw({"NX": 4, "NY": 1, "T": 3}),
     Draw({"NX": 3, "NY": 3, "T": 0}, note="no-step")],
    tol=F64,
)  # fmt: skip
