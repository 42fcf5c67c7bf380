"""PolyBench's kernels from their definitions: plain loops that set elements in place, in the order of the definition.

The scripts lie in tests/polybench; nine of the thirty are among the tasks in tests/scripts. `SEQUENTIAL` says of each
kernel that has a recurrence in what order its scans run, and how it would be written without a scan, which the
language refuses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.oracles.core import F64, Array, Case, Draw, Rng, Tol, Values, cases, integers, normal, uniform
from tests.oracles.matrices import dominant

CASES: list[Case] = []
# Stated in the tasks of tests/scripts, with oracles in matrices.py and sequences.py.
AMONG_TASKS = ("cholesky", "covariance", "doitgen", "fdtd_2d", "gramschmidt", "jacobi_2d", "lu", "nussinov", "trisolv")
SCALARS = {"alpha": 1.5, "beta": 1.25}


def kernel(name: str, inputs: Mapping[str, str], expected: Callable[[Values], dict[str, Any]], outputs: str,
           draws: list[Draw], *, make: Callable[[Rng, Values], dict[str, Array]] | None = None, dtype: str = "f64",
           defaults: Mapping[str, float] | None = None, tol: Tol = F64) -> None:  # fmt: skip
    """Cases of one kernel. `inputs`: name to dims, drawn from the normal distribution where `make` does not draw."""

    def drawn(r: Rng, v: Values) -> dict[str, Array]:
        return {k: normal(r, *(v[d] for d in dims.split()), dtype="f64") for k, dims in inputs.items()}

    CASES.extend(cases(f"tests/polybench/{name}.lf", make or drawn, expected, dict.fromkeys(outputs.split(), dtype), draws,
                       defaults=SCALARS if defaults is None else defaults, tol=tol))  # fmt: skip


def dims(names: str, *extents: tuple[int, ...], **sizes: int) -> list[Draw]:
    """A draw for every tuple of extents."""
    return [Draw(dict(zip(names.split(), row, strict=True)), sizes) for row in extents]


def product(a: Array, b: Array) -> Array:
    """The matrix product, element by element."""
    c = np.zeros((len(a), b.shape[1]))
    for i, j, k in itertools.product(range(len(a)), range(b.shape[1]), range(len(b))):
        c[i, j] += a[i, k] * b[k, j]
    return c


# -- products ---------------------------------------------------------------------------------------------------------

kernel("gemm", {"a": "NI NK", "b": "NK NJ", "c": "NI NJ"},
       lambda v: {"out": v.alpha * product(v.a, v.b) + v.beta * v.c}, "out",
       dims("NI NJ NK", (5, 7, 3), (1, 1, 1), (4, 2, 0), (9, 8, 11)))  # fmt: skip
kernel("2mm", {"a": "NI NK", "b": "NK NJ", "c": "NJ NL", "d": "NI NL"},
       lambda v: {"out": v.alpha * product(product(v.a, v.b), v.c) + v.beta * v.d}, "out",
       dims("NI NJ NK NL", (5, 7, 3, 4), (1, 1, 1, 1), (6, 2, 9, 5)))  # fmt: skip
kernel("3mm", {"a": "NI NK", "b": "NK NJ", "c": "NJ NM", "d": "NM NL"},
       lambda v: {"g": product(product(v.a, v.b), product(v.c, v.d))}, "g",
       dims("NI NJ NK NL NM", (5, 7, 3, 4, 6), (1, 1, 1, 1, 1), (2, 9, 5, 3, 8)))  # fmt: skip
kernel("atax", {"a": "M N", "x": "N"},
       lambda v: {"y": product(v.a.T, product(v.a, v.x[:, None]))[:, 0]}, "y",
       dims("M N", (5, 7), (1, 1), (12, 3)))  # fmt: skip
kernel("bicg", {"a": "N M", "p": "M", "r": "N"},
       lambda v: {"s": product(v.a.T, v.r[:, None])[:, 0], "q": product(v.a, v.p[:, None])[:, 0]}, "s q",
       dims("N M", (5, 7), (1, 1), (12, 3)))  # fmt: skip
kernel("mvt", {"a": "N N", **dict.fromkeys(("x1", "x2", "y1", "y2"), "N")},
       lambda v: {"z1": v.x1 + product(v.a, v.y1[:, None])[:, 0], "z2": v.x2 + product(v.a.T, v.y2[:, None])[:, 0]},
       "z1 z2", dims("N", (7,), (1,), (13,)))  # fmt: skip


def gemver(v: Values) -> dict[str, Any]:
    n = v.N
    a, x, w = v.a0.copy(), np.zeros(n), np.zeros(n)
    for i, j in itertools.product(range(n), repeat=2):
        a[i, j] += v.u1[i] * v.v1[j] + v.u2[i] * v.v2[j]
    for i, j in itertools.product(range(n), repeat=2):
        x[i] += v.beta * a[j, i] * v.y[j]
    x += v.z
    for i, j in itertools.product(range(n), repeat=2):
        w[i] += v.alpha * a[i, j] * x[j]
    return {"a": a, "x": x, "w": w}


kernel("gemver", {"a0": "N N", **dict.fromkeys(("u1", "v1", "u2", "v2", "y", "z"), "N")}, gemver, "a x w",
       dims("N", (7,), (1,), (13,)))  # fmt: skip
kernel("gesummv", {"a": "N N", "b": "N N", "x": "N"},
       lambda v: {"y": product(v.alpha * v.a + v.beta * v.b, v.x[:, None])[:, 0]}, "y",
       dims("N", (7,), (1,), (13,)))  # fmt: skip


def symm(v: Values) -> dict[str, Any]:
    """Element by element, as an update of two places by each element of the triangle."""
    c = v.c.copy()
    for i, j in itertools.product(range(v.M), range(v.N)):
        below = 0.0
        for k in range(i):
            c[k, j] += v.alpha * v.b[i, j] * v.a[i, k]
            below += v.b[k, j] * v.a[i, k]
        c[i, j] = v.beta * c[i, j] + v.alpha * v.b[i, j] * v.a[i, i] + v.alpha * below
    return {"out": c}


kernel("symm", {}, symm, "out", dims("M N", (7, 5), (1, 1), (10, 3)),
       make=lambda r, v: {"a": np.asarray(np.tril(r.standard_normal((v.M, v.M))) + np.triu(np.full((v.M, v.M), np.nan), 1)),
                          "b": normal(r, v.M, v.N, dtype="f64"), "c": normal(r, v.M, v.N, dtype="f64")})  # fmt: skip


def syrk(v: Values) -> dict[str, Any]:
    c = v.c.copy()
    for i in range(v.N):
        for j in range(i + 1):
            c[i, j] = v.beta * c[i, j] + v.alpha * math.fsum(v.a[i, k] * v.a[j, k] for k in range(v.M))
    return {"out": c}


def syr2k(v: Values) -> dict[str, Any]:
    c = v.c.copy()
    for i in range(v.N):
        for j in range(i + 1):
            c[i, j] *= v.beta
            for k in range(v.M):
                c[i, j] += v.a[j, k] * v.alpha * v.b[i, k] + v.b[j, k] * v.alpha * v.a[i, k]
    return {"out": c}


kernel("syrk", {"a": "N M", "c": "N N"}, syrk, "out", dims("N M", (7, 5), (1, 1), (10, 3)))
kernel("syr2k", {"a": "N M", "b": "N M", "c": "N N"}, syr2k, "out", dims("N M", (7, 5), (1, 1), (10, 3)))


def trmm(v: Values) -> dict[str, Any]:
    b = v.b.copy()
    for i, j in itertools.product(range(v.M), range(v.N)):
        for k in range(i + 1, v.M):
            b[i, j] += v.a[k, i] * b[k, j]
        b[i, j] *= v.alpha
    return {"out": b}


kernel("trmm", {"a": "M M", "b": "M N"}, trmm, "out", dims("M N", (7, 5), (1, 1), (10, 3)))


def correlation(v: Values) -> dict[str, Any]:
    columns = []
    for column in v.data.T.tolist():
        mu = math.fsum(column) / v.N
        spread = math.sqrt(math.fsum((x - mu) ** 2 for x in column) / v.N)
        spread = 1.0 if spread <= v.eps else spread
        columns.append([(x - mu) / (math.sqrt(v.N) * spread) for x in column])
    corr = [[math.fsum(x * y for x, y in zip(a, b, strict=True)) for b in columns] for a in columns]
    np.fill_diagonal(made := np.array(corr), 1.0)
    return {"corr": made}


kernel("correlation", {"data": "N M"}, correlation, "corr", [
    *dims("N M", (11, 5), (1, 1), (30, 4)),
    Draw({"N": 9, "M": 3}, edit=lambda i: i["data"].__setitem__((slice(None), 1), 0.25), note="flat-column"),
], defaults={"eps": 0.125})  # fmt: skip


# -- stencils ---------------------------------------------------------------------------------------------------------


def jacobi_1d(v: Values) -> dict[str, Any]:
    a, b = v.a0.copy(), v.b0.copy()
    for _ in range(v.TSTEPS):
        for x, y in ((a, b), (b, a)):
            for i in range(1, v.N - 1):
                y[i] = 0.33333 * (x[i - 1] + x[i] + x[i + 1])
    return {"a": a, "b": b}


def heat_3d(v: Values) -> dict[str, Any]:
    a, b = v.a0.copy(), v.b0.copy()
    inner = range(1, v.N - 1)
    steps = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    for _ in range(v.TSTEPS):
        for x, y in ((a, b), (b, a)):
            for i, j, k in itertools.product(inner, repeat=3):
                bends = (x[i + p, j + q, k + s] - 2 * x[i, j, k] + x[i - p, j - q, k - s] for p, q, s in steps)
                y[i, j, k] = x[i, j, k] + sum(0.125 * bend for bend in bends)
    return {"a": a, "b": b}


def seidel_2d(v: Values) -> dict[str, Any]:
    a = v.a0.copy()
    for _, i, j in itertools.product(range(v.TSTEPS), range(1, v.N - 1), range(1, v.N - 1)):
        a[i, j] = a[i - 1 : i + 2, j - 1 : j + 2].sum() / 9
    return {"a": a}


STEPS = {"TSTEPS": 20}
kernel("jacobi_1d", {"a0": "N", "b0": "N"}, jacobi_1d, "a b",
       [*dims("N", (9,), (1,), (2,), TSTEPS=3), *dims("N", (30,))], defaults=STEPS)  # fmt: skip
kernel("heat_3d", {"a0": "N N N", "b0": "N N N"}, heat_3d, "a b",
       dims("N", (6,), (1,), (3,), TSTEPS=3), defaults=STEPS)  # fmt: skip
kernel("seidel_2d", {"a0": "N N"}, seidel_2d, "a",
       [*dims("N", (7,), (2,), (3,), (4,), TSTEPS=3), *dims("N", (5,))], defaults=STEPS)  # fmt: skip


def adi(v: Values) -> dict[str, Any]:
    """Each half step solves its tridiagonal systems by Thomas's elimination."""
    n, steps = v.N, v.TSTEPS
    u, w = v.u0.copy(), v.u0.copy()
    mul1, mul2 = 2 * n * n / steps, n * n / steps
    a, d = -mul1 / 2, -mul2 / 2
    for _ in range(steps):
        for x, y, lo, off in ((u.T, w.T, a, d), (w, u, d, a)):  # y: line i along axis 1
            for i in range(1, n - 1):
                p, q = np.zeros(n), np.zeros(n)
                y[i, 0] = y[i, n - 1] = q[0] = 1.0
                for j in range(1, n - 1):
                    pivot = lo * p[j - 1] + 1 - 2 * lo
                    p[j] = -lo / pivot
                    known = -off * x[i - 1, j] + (1 + 2 * off) * x[i, j] - off * x[i + 1, j]
                    q[j] = (known - lo * q[j - 1]) / pivot
                for j in range(n - 2, 0, -1):
                    y[i, j] = p[j] * y[i, j + 1] + q[j]
    return {"u": u, "v": w}


kernel("adi", {"u0": "N N"}, adi, "u v", [*dims("N", (7,), (2,), (3,), TSTEPS=2), *dims("N", (10,))],
       defaults={"TSTEPS": 5})  # fmt: skip


# -- in order ---------------------------------------------------------------------------------------------------------


def ludcmp(v: Values) -> dict[str, Any]:
    n, a = v.N, v.a0.copy()
    for i, j in itertools.product(range(n), repeat=2):
        a[i, j] -= a[i, : min(i, j)] @ a[: min(i, j), j]
        if j < i:
            a[i, j] /= a[j, j]
    y, x = np.zeros(n), np.zeros(n)
    for i in range(n):
        y[i] = v.b[i] - a[i, :i] @ y[:i]
    for i in reversed(range(n)):
        x[i] = (y[i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return {"x": x, "y": y, "a": a}


kernel("ludcmp", {}, ludcmp, "x y a", dims("N", (7,), (1,), (2,), (15,)),
       make=lambda r, v: {"a0": dominant(r, v.N), "b": normal(r, v.N, dtype="f64")})  # fmt: skip


def durbin(v: Values) -> dict[str, Any]:
    """The Toeplitz system solved as such, not by the recursion."""
    first = np.concatenate([[1.0], v.r[:-1]])
    matrix = np.array([[first[abs(i - j)] for j in range(v.N)] for i in range(v.N)])
    return {"y": np.linalg.solve(matrix, -v.r)}


kernel("durbin", {}, durbin, "y", dims("N", (7,), (1,), (2,), (15,)),
       make=lambda r, v: {"r": np.asarray(0.6 ** np.arange(1, v.N + 1) * r.uniform(0.5, 1, v.N))}, defaults={})  # fmt: skip


def deriche(v: Values) -> dict[str, Any]:
    e = math.exp(-v.alpha)
    k = (1 - e) ** 2 / (1 + 2 * v.alpha * e - math.exp(2 * v.alpha))
    forward, backward = (k, k * e * (v.alpha - 1)), (k * e * (v.alpha + 1), -k * e * e)
    b1, b2 = 2.0**-v.alpha, -e * e

    def smooth(line: list[float]) -> Array:
        n = len(line)
        y, z = np.zeros(n), np.zeros(n)
        for j in range(n):
            y[j] = forward[0] * line[j]
            y[j] += forward[1] * line[j - 1] + b1 * y[j - 1] if j > 0 else 0
            y[j] += b2 * y[j - 2] if j > 1 else 0
        for j in reversed(range(n)):
            z[j] = backward[0] * line[j + 1] + b1 * z[j + 1] if j < n - 1 else 0
            z[j] += backward[1] * line[j + 2] + b2 * z[j + 2] if j < n - 2 else 0
        return y + z

    rows = np.array([smooth(line) for line in v.img.tolist()]).reshape(v.img.shape)
    return {"out": np.array([smooth(line) for line in rows.T.tolist()]).reshape(rows.T.shape).T}


kernel("deriche", {}, deriche, "out", dims("W H", (5, 9), (1, 1), (12, 7)), dtype="f32", tol=Tol(2e-4, 2e-4),
       make=lambda r, v: {"img": uniform(r, v.W, v.H)}, defaults={"alpha": 0.25})  # fmt: skip


def floyd_warshall(v: Values) -> dict[str, Any]:
    path = v.w.copy()
    for k, i, j in itertools.product(range(v.N), repeat=3):
        path[i, j] = min(path[i, j], path[i, k] + path[k, j])
    return {"path": path}


kernel("floyd_warshall", {}, floyd_warshall, "path", dims("N", (7,), (1,), (13,)), dtype="i32",
       make=lambda r, v: {"w": integers(r, 1, 1000, v.N, v.N)}, defaults={}, tol=Tol(0, 0))  # fmt: skip


# -- what has an order ------------------------------------------------------------------------------------------------

# Kernel: (how the scans run, a line that states the recurrence without one).
SEQUENTIAL: dict[str, tuple[str, str]] = {
    "seidel_2d": ("steps, rows and columns one after another; nothing is parallel",
                  "let y[i, j] = (y[i - 1, j] + y[i, j - 1] + a[i, j]) / 3 if i > 0 and j > 0 else a[i, j]"),
    "adi": ("elements of a line in order, there and back; lines are parallel",
            "let y[i, j] = a[i, j] + 2 * y[i, j - 1] if j > 0 else 1"),
    "cholesky": ("columns in order; the elements of a column are parallel",
                 "let y[i, j] = a[i, j] - sum(y[i, k] * y[j, k] for k in 0..j)"),
    "lu": ("pivots in order; the block that each updates is parallel",
           "let y[i, j] = a[i, j] - sum(y[i, k] * y[k, j] for k in 0..minimum(i, j))"),
    "ludcmp": ("as lu; then the rows of the two substitutions, one by one",
               "let y[i, j] = a[i, j] - sum(y[i, k] * y[k, j] for k in 0..j)"),
    "trisolv": ("rows in order; each is a parallel sum",
                "let y[i, j] = a[i, j] - sum(a[i, k] * y[k, j] for k in 0..i)"),
    "durbin": ("orders one by one; the elements that each mends are parallel",
               "let y[i, j] = y[i - 1, j] + a[i, j] * y[i - 1, i - j] if i > 0 and j <= i else a[i, j]"),
    "gramschmidt": ("columns in order; those to their right are parallel",
                    "let y[i, j] = a[i, j] - sum(y[i, k] * y[k, j] for k in 0..j)"),
    "deriche": ("elements of a line in order, there and back; lines are parallel",
                "let y[i, j] = a[i, j] + 0.5 * y[i, j - 1] if j > 0 else a[i, j]"),
    "floyd_warshall": ("intermediate nodes in order; all pairs are parallel",
                       "let y[i, j] = minimum(a[i, j], min(y[i, k] + y[k, j] for k in 0..N))"),
    "nussinov": ("diagonals in order; the intervals of one length are parallel",
                 "let y[i, j] = maximum(y[i, j - 1], y[i + 1, j]) if i < j else a[i, j]"),
    "jacobi_1d": ("steps in order; the elements of a sweep are parallel",
                  "let y[i, j] = y[i - 1, j] + y[i - 1, j + 1] if i > 0 and j + 1 < N else a[i, j]"),
    "jacobi_2d": ("steps in order; the elements of a sweep are parallel",
                  "let y[i, j] = y[i - 1, j] + y[i - 1, j] if i > 0 else a[i, j]"),
    "heat_3d": ("steps in order; the elements of a sweep are parallel",
                "let y[i, j] = y[i - 1, j] * 0.125 if i > 0 else a[i, j]"),
    "fdtd_2d": ("steps in order; the elements of a field are parallel",
                "let y[i, j] = y[i - 1, j] - 0.5 * a[i, j] if i > 0 else a[i, j]"),
}  # fmt: skip
