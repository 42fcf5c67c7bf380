"""Scatters, gathers, nearest neighbours, sorting by counting, modules."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from tests.oracles import images
from tests.oracles.core import (
    EXACT,
    F16,
    Array,
    Case,
    Draw,
    Rng,
    Tol,
    Values,
    cases,
    correlate,
    group_norm,
    integers,
    normal,
    normalise,
    sigmoid,
    softmax,
)  # fmt: skip

CASES: list[Case] = []


# -- 12_kmeans --------------------------------------------------------------------------------------------------------


def kmeans(v: Values) -> dict[str, Any]:
    cent = v.init.copy()
    for _ in range(v.ITERS):
        groups: list[list[Array]] = [[] for _ in range(v.K)]
        for p in v.pts:
            groups[int(np.argmin([np.sum((p - c) ** 2) for c in cent]))].append(p)
        cent = np.array([np.mean(g, axis=0) if g else c for g, c in zip(groups, cent, strict=True)])
    return {"cent": cent}


def _clusters(r: Rng, v: Values) -> dict[str, Array]:
    """Blobs far apart, so that no label hangs on a rounding; the start lies near the centres."""
    centres = 100.0 * np.arange(v.K)[:, None] + np.zeros((1, v.D))
    pts = centres[r.integers(0, v.K, v.N)] + r.integers(-9, 10, (v.N, v.D))
    return {"pts": pts.astype(np.float32), "init": (centres + 7).astype(np.float32)}


def _lonely(inputs: dict[str, Array]) -> None:
    inputs["init"][-1] = 1e4


def _twins(inputs: dict[str, Array]) -> None:
    inputs["init"][:] = inputs["init"][0]


CASES += cases(
    "12_kmeans.lf", _clusters, kmeans, {"cent": "f32"},
    [Draw({"N": 50, "D": 2, "K": 3}), Draw({"N": 1, "D": 1, "K": 1}), Draw({"N": 31, "D": 3, "K": 5}, {"ITERS": 2}),
     Draw({"N": 20, "D": 2, "K": 4}, edit=_lonely, note="empty-cluster"),
     Draw({"N": 12, "D": 2, "K": 3}, {"ITERS": 1}, edit=_twins, note="ties-go-to-the-first"),
     Draw({"N": 5, "D": 2, "K": 2}, {"ITERS": 0}, note="no-round")],
    defaults={"ITERS": 5},
)  # fmt: skip


# -- knn --------------------------------------------------------------------------------------------------------------


def knn(v: Values) -> dict[str, Any]:
    d2 = ((v.qs[:, None] - v.pts[None]) ** 2).sum(-1)
    near = np.argsort(d2, axis=1, kind="stable")[:, : v.K]
    votes = [np.bincount(v.lab[row], minlength=v.C) for row in near]
    return {"cls": np.array([int(np.argmax(x)) for x in votes], int), "near": near.T}


CASES += cases(
    "tasks/knn.lf",
    lambda r, v: {"pts": integers(r, -9, 10, v.N, v.D).astype(np.float32), "lab": integers(r, 0, v.C, v.N),
                  "qs": integers(r, -9, 10, v.Q, v.D).astype(np.float32)},
    knn, {"cls": "i64", "near": "i64"},
    [Draw({"N": 40, "D": 3, "Q": 7}), Draw({"N": 5, "D": 1, "Q": 1}), Draw({"N": 9, "D": 2, "Q": 4}, {"K": 3, "C": 2}),
     Draw({"N": 6, "D": 2, "Q": 3}, edit=lambda i: i["pts"].__setitem__(..., 1), note="all-tied")],
    defaults={"K": 5, "C": 10}, tol=EXACT,
)  # fmt: skip


# -- compaction and sorting -------------------------------------------------------------------------------------------


def compaction(v: Values) -> dict[str, Any]:
    kept = v.x[v.x > v.cut]
    return {"out": np.concatenate([kept, np.zeros(v.N - len(kept))]), "count": len(kept)}


CASES += cases(
    "tasks/compaction.lf", lambda r, v: {"x": normal(r, v.N)}, compaction, {"out": "f32", "count": "i64"},
    [Draw({"N": 31}), Draw({"N": 1}), Draw({"N": 0}), Draw({"N": 13}, params={"cut": 9.0}, note="none"),
     Draw({"N": 13}, params={"cut": -9.0}, note="all"),
     Draw({"N": 5}, edit=lambda i: i["x"].__setitem__(slice(0, 3), [np.nan, np.inf, 0.0]), note="special")],
    defaults={"cut": 0.0}, tol=EXACT,
)  # fmt: skip

CASES += cases(
    "tasks/rank_sort.lf", lambda r, v: {"x": normal(r, v.B, v.N)}, lambda v: {"y": np.sort(v.x, axis=1)}, {"y": "f32"},
    [Draw({"B": 3, "N": 11}), Draw({"B": 1, "N": 1}), Draw({"B": 2, "N": 0}),
     Draw({"B": 2, "N": 9}, edit=lambda i: np.rint(i["x"], out=i["x"]), note="ties"),
     Draw({"B": 1, "N": 4}, edit=lambda i: i["x"].__setitem__(0, [np.inf, 1, -np.inf, 1]), note="infinite")],
    tol=EXACT,
)  # fmt: skip


# -- moe_dispatch -----------------------------------------------------------------------------------------------------


def moe(v: Values) -> dict[str, Any]:
    """A token counts where fewer than CAP tokens before it chose the same expert."""
    z = np.zeros((v.N, v.D))
    for n in range(v.N):
        if np.count_nonzero(v.e[:n] == v.e[n]) < v.CAP:
            z[n] = np.tanh(v.x[n])
    return {"z": z}


CASES += cases(
    "tasks/moe_dispatch.lf",
    lambda r, v: {"x": normal(r, v.N, v.D), "e": integers(r, 0, v.E, v.N)}, moe, {"z": "f32"},
    [Draw({"N": 40, "D": 3}, {"E": 3, "CAP": 5}), Draw({"N": 1, "D": 1}), Draw({"N": 17, "D": 2}),
     Draw({"N": 9, "D": 2}, {"E": 1, "CAP": 1})],
    defaults={"E": 8, "CAP": 64},
)  # fmt: skip


# -- features ---------------------------------------------------------------------------------------------------------


def features(v: Values) -> dict[str, Any]:
    a = np.stack([v.x[..., : v.H // 2 * 2 : 2], v.x[..., 1::2]]).max(0)
    for _ in range(v.steps):
        a = a / 2 + 1
    parity = np.zeros(16, np.int64)
    for code in v.codes:
        parity[code % 16] ^= code
    return {"μ": v.x.mean((0, 2, 3)), "a": a, "parity": parity, "last": 2 * a}


CASES += cases(
    "tasks/features.lf",
    lambda r, v: {"x": normal(r, v.B, v.N, v.C, v.H), "codes": integers(r, 0, 2**32, v.M, dtype="u32")},
    features, {"μ": "f32", "a": "f32", "parity": "u32", "last": "f32"},
    [Draw({"B": 2, "N": 3, "C": 5, "H": 7, "M": 41}), Draw({"B": 1, "N": 1, "C": 1, "H": 2, "M": 0}),
     Draw({"B": 1, "N": 2, "C": 1, "H": 4, "M": 1}, params={"steps": 0}),
     Draw({"B": 1, "N": 1, "C": 2, "H": 5, "M": 7}, params={"steps": 40})],
    defaults={"steps": 3},
)  # fmt: skip

# -- nn.lf, a module of its own ----------------------------------------------------------------------------------------

# The module has no output, so another script imports it, from its folder.
MODULE = """
import "nn.lf" as lib
input x: f32[N, C, H, W]
input w: f16[O, C, R, S]
input g: f32[C]
input b: f32[C]
input ids: i32[N] where 0 <= ids < N
require N >= 1 and C >= 1 and H >= 2 and W >= 2
let (mu, v) = lib.moments(x)
output mean = mu
output var = v
output act = lib.gelu(lib.relu(x)) + lib.sigmoid(x)
output p = lib.softmax(x, axis=1)
output n = lib.layernorm(transpose(x, 0, 2, 3, 1), g, b)
output y = lib.conv2d(f16(x), w, pad=1)
output m = lib.max_pool2d(x, 2)
output q = lib.group_norm(x, g, b, 1)
output rows = lib.embedding(x[:, 0, 0], ids)
output loss = lib.cross_entropy(x[:, 0, 0], ids % 2)
"""


def module(v: Values) -> dict[str, Any]:
    e = special.log_softmax(v.x[:, 0, 0], axis=-1)
    relu = np.maximum(v.x, 0)
    return {
        "mean": v.x.mean((0, 2, 3)), "var": v.x.var((0, 2, 3)), "act": relu * special.ndtr(relu) + sigmoid(v.x),
        "p": softmax(v.x, 1), "n": normalise(np.moveaxis(v.x, 1, -1), (-1,), 1e-5) * v.g + v.b,
        "y": correlate(v.x.astype(np.float16).astype(float), v.w, pad=1), "m": images.max_windows(v.x, 2), "q": group_norm(v.x, v.g, v.b, 1),
        "rows": v.x[:, 0, 0][v.ids], "loss": -e[np.arange(v.N), v.ids % 2].mean(),
    }  # fmt: skip


CASES += cases(
    "tasks/nn.lf",
    lambda r, v: {"x": normal(r, v.N, v.C, v.H, v.W), "w": normal(r, v.O, v.C, v.R, v.S, dtype="f16"),
                  "g": normal(r, v.C), "b": normal(r, v.C), "ids": integers(r, 0, v.N, v.N)},
    module,
    {**dict.fromkeys(("mean", "var", "act", "p", "n"), "f32"), "y": "f16",
     **dict.fromkeys(("m", "q", "rows", "loss"), "f32")},
    [Draw({"N": 2, "C": 3, "H": 5, "W": 4, "O": 2, "R": 3, "S": 3}), Draw({"N": 1, "C": 1, "H": 2, "W": 2, "O": 1, "R": 1, "S": 2})],
    source=MODULE, tol=Tol(2e-4, 2e-4), tols={"y": F16},
)  # fmt: skip
