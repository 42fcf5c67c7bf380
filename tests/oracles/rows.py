"""Elementwise programs, row statistics and linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from tests.oracles.core import (
    F16,
    Array,
    Case,
    Draw,
    Rng,
    Tol,
    Values,
    cases,
    integers,
    normal,
    normalise,
    sigmoid,
    softmax,
    uniform,
)  # fmt: skip

CASES: list[Case] = []


def _put(name: str, *values: float) -> Any:
    """An edit that overwrites the first elements of an input."""

    def edit(inputs: dict[str, Array]) -> None:
        inputs[name].reshape(-1)[: len(values)] = values

    return edit


# -- 01_chain ---------------------------------------------------------------------------------------------------------


def chain(v: Values) -> dict[str, Any]:
    t = v.a * v.x + v.b
    return {"y": np.minimum(np.maximum(t, 0), 6) * np.tanh(v.x) / 6}


CASES += cases(
    "01_chain.lf", lambda r, v: {"x": normal(r, v.N, scale=3)}, chain, {"y": "f32"},
    [Draw({"N": 1000}), Draw({"N": 1}), Draw({"N": 0}), Draw({"N": 31}, params={"a": -2.0, "b": 0.5}),
     Draw({"N": 11}, edit=_put("x", np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, 1e-40), note="special")],
    defaults={"a": 1.5, "b": -0.25},
)  # fmt: skip


# -- 02_gate ----------------------------------------------------------------------------------------------------------


def gate(v: Values) -> dict[str, Any]:
    s = sigmoid(v.gate)
    return {"y": v.x * s + v.skip * (1 - s)}


CASES += cases(
    "02_gate.lf",
    lambda r, v: {k: normal(r, v.B, v.D) for k in ("x", "gate", "skip")},
    gate,
    {"y": "f32"},
    [Draw({"B": 5, "D": 7}), Draw({"B": 1, "D": 1}), Draw({"B": 13, "D": 64}),
     Draw({"B": 2, "D": 3}, edit=_put("gate", 90.0, -90.0, 30.0, -30.0, 0.0), note="saturated")],
)  # fmt: skip


# -- 03_linear_gelu ---------------------------------------------------------------------------------------------------


def linear_gelu(v: Values) -> dict[str, Any]:
    z = v.x @ v.w + v.b
    return {"y": z * special.ndtr(z)}


CASES += cases(
    "03_linear_gelu.lf",
    lambda r, v: {"x": normal(r, v.B, v.I), "w": normal(r, v.I, v.O), "b": normal(r, v.O)},
    linear_gelu,
    {"y": "f32"},
    [Draw({"B": 5, "I": 7, "O": 3}), Draw({"B": 1, "I": 1, "O": 1}), Draw({"B": 17, "I": 65, "O": 33}),
     Draw({"B": 3, "I": 0, "O": 2}, note="nothing-to-sum")],
    tol=Tol(2e-5, 1e-4),
)  # fmt: skip


# -- 05_layernorm -----------------------------------------------------------------------------------------------------


def layernorm(v: Values) -> dict[str, Any]:
    h = v.x + v.res
    return {"h": h, "y": normalise(h, (-1,), 1e-5) * v.g + v.b}


CASES += cases(
    "05_layernorm.lf",
    lambda r, v: {"x": normal(r, v.B, v.T, v.D), "res": normal(r, v.B, v.T, v.D) + np.float32(3), "g": normal(r, v.D),
                  "b": normal(r, v.D)},
    layernorm,
    {"h": "f32", "y": "f32"},
    [Draw({"B": 2, "T": 3, "D": 13}), Draw({"B": 1, "T": 1, "D": 1}), Draw({"B": 3, "T": 5, "D": 128}),
     Draw({"B": 1, "T": 2, "D": 64}, edit=lambda i: i["res"].__iadd__(np.float32(1000)), note="far-mean")],
    tol=Tol(1e-3, 1e-3),
)  # fmt: skip


# -- 06_softmax -------------------------------------------------------------------------------------------------------

CASES += cases(
    "06_softmax.lf",
    lambda r, v: {"x": normal(r, v.B, v.N, scale=4)},
    lambda v: {"p": softmax(v.x)},
    {"p": "f32"},
    [Draw({"B": 5, "N": 7}), Draw({"B": 1, "N": 1}), Draw({"B": 3, "N": 1000}), Draw({"B": 0, "N": 4}),
     Draw({"B": 2, "N": 4}, edit=_put("x", 1e4, 1e4, -1e4, -np.inf, 88.0, 89.0), note="ties-and-large")],
)  # fmt: skip


# -- 08_moments -------------------------------------------------------------------------------------------------------


def moments(v: Values) -> dict[str, Any]:
    mu, var = (
        np.sum(v.x, 0) / np.float64(v.N),
        np.sum((v.x - np.sum(v.x, 0) / np.float64(v.N)) ** 2, 0) / np.float64(v.N),
    )
    return {"mu": mu, "var": var, "z": (v.x - mu) / np.sqrt(var + 1e-6)}


CASES += cases(
    "08_moments.lf",
    lambda r, v: {"x": normal(r, v.N, v.C) + np.float32(2)},
    moments,
    {"mu": "f32", "var": "f32", "z": "f32"},
    [Draw({"N": 100, "C": 3}), Draw({"N": 1, "C": 5}), Draw({"N": 257, "C": 1}),
     Draw({"N": 0, "C": 2}, note="nothing")],
    tol=Tol(1e-4, 1e-4),
)  # fmt: skip


# -- 13_nbody ---------------------------------------------------------------------------------------------------------


def nbody(v: Values) -> dict[str, Any]:
    acc = np.zeros_like(v.p)
    for i in range(v.N):
        for j in range(v.N):
            d = v.p[j] - v.p[i]
            acc[i] += v.m[j] * d / (d @ d + v.soft**2) ** 1.5
    return {"acc": acc}


CASES += cases(
    "13_nbody.lf", lambda r, v: {"p": normal(r, v.N, 3), "m": uniform(r, v.N, lo=0.5, hi=2)}, nbody, {"acc": "f32"},
    [Draw({"N": 17}), Draw({"N": 1}), Draw({"N": 2}, params={"soft": 0.5}), Draw({"N": 40}, params={"soft": 0.1})],
    defaults={"soft": 1e-3}, tol=Tol(1e-4, 1e-3),
)  # fmt: skip


# -- finance and densities --------------------------------------------------------------------------------------------


def black_scholes(v: Values) -> dict[str, Any]:
    d1 = (np.log(v.s / v.k) + (v.r + v.vol**2 / 2) * v.t) / (v.vol * np.sqrt(v.t))
    d2 = d1 - v.vol * np.sqrt(v.t)
    discounted = v.k * np.exp(-v.r * v.t)
    return {"call": v.s * special.ndtr(d1) - discounted * special.ndtr(d2),
            "put": discounted * special.ndtr(-d2) - v.s * special.ndtr(-d1)}  # fmt: skip


CASES += cases(
    "tasks/black_scholes.lf",
    lambda r, v: {"s": uniform(r, v.N, lo=5, hi=30), "k": uniform(r, v.N, lo=5, hi=30),
                  "t": uniform(r, v.N, lo=0.25, hi=5)},
    black_scholes, {"call": "f32", "put": "f32"},
    [Draw({"N": 100}), Draw({"N": 1}), Draw({"N": 31}, params={"r": 0.05, "vol": 0.1})],
    defaults={"r": 0.02, "vol": 0.3}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


def kde(v: Values) -> dict[str, Any]:
    z = (v.at[:, None] - v.data[None, :]) / v.h
    return {"p": np.mean(np.exp(-z * z / 2) / np.sqrt(2 * np.pi), axis=1) / v.h}


CASES += cases(
    "tasks/kde.lf", lambda r, v: {"data": normal(r, v.N), "at": normal(r, v.Q)}, kde, {"p": "f32"},
    [Draw({"N": 50, "Q": 7}), Draw({"N": 1, "Q": 1}), Draw({"N": 301, "Q": 13}, params={"h": 0.1})],
    defaults={"h": 0.3}, tol=Tol(1e-4, 1e-6),
)  # fmt: skip


# -- a linear layer and what follows ----------------------------------------------------------------------------------


def rownorm_gate(v: Values) -> dict[str, Any]:
    t = v.x @ v.w.T + v.b
    return {"z": (normalise(t, (1,), v.eps) + v.y) * v.y}


CASES += cases(
    "tasks/linear_rownorm_residual_gate.lf",
    lambda r, v: {"x": normal(r, v.B, v.I), "w": normal(r, v.O, v.I), "b": normal(r, v.O), "y": normal(r, v.B, v.O)},
    rownorm_gate, {"z": "f32"},
    [Draw({"B": 5, "I": 7, "O": 11}), Draw({"B": 1, "I": 1, "O": 2}), Draw({"B": 9, "I": 33, "O": 65})],
    defaults={"eps": 1e-5}, tol=Tol(1e-4, 2e-4),
)  # fmt: skip


def groupnorm_min(v: Values) -> dict[str, Any]:
    z = v.x @ v.w.T + v.b
    u = normalise(z.reshape(v.B, v.G, v.K), (2,), v.eps).reshape(v.B, -1) * v.gamma + v.beta
    return {"y": u.min(1).reshape(1, 1, v.B, 1) + v.bias.reshape(1, -1, 1, 1)}


def _groupnorm_min(r: Rng, v: Values) -> dict[str, Array]:
    o = v.G * v.K
    made = {"x": normal(r, v.B, v.I), "w": normal(r, o, v.I), "bias": normal(r, 1, o, 1, 1)}
    return {**made, **{k: normal(r, o) for k in ("b", "gamma", "beta")}}


CASES += cases(
    "tasks/gemm_groupnorm_min_bias.lf", _groupnorm_min, groupnorm_min, {"y": "f32"},
    [Draw({"B": 3, "I": 5, "K": 4}, {"G": 6}), Draw({"B": 1, "I": 1, "K": 2}, {"G": 1}),
     Draw({"B": 2, "I": 3, "K": 2})],
    defaults={"G": 512, "eps": 1e-5}, tol=Tol(1e-3, 1e-3),
)  # fmt: skip


def logsumexp_mish(v: Values) -> dict[str, Any]:
    u = np.clip(2 * v.scale * (v.x @ v.w.T + v.b), v.lo, v.hi)
    top = special.logsumexp(u, axis=1, keepdims=True)
    return {"y": top * top * np.tanh(np.log1p(np.exp(-np.abs(top))) + np.maximum(top, 0))}


CASES += cases(
    "tasks/gemm_logsumexp_mish.lf",
    lambda r, v: {"x": normal(r, v.B, v.I), "w": normal(r, v.O, v.I), "b": normal(r, v.O)},
    logsumexp_mish, {"y": "f32"},
    [Draw({"B": 5, "I": 7, "O": 3}), Draw({"B": 1, "I": 1, "O": 1}), Draw({"B": 4, "I": 32, "O": 129}),
     Draw({"B": 3, "I": 4, "O": 5}, params={"scale": 0.5, "lo": -1.0, "hi": 1.0})],
    defaults={"scale": 2.0, "lo": -10.0, "hi": 10.0}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


def int8_gemm(v: Values) -> dict[str, Any]:
    w = (v.q - np.repeat(v.zero, v.GS, axis=1)) * np.repeat(v.scale, v.GS, axis=1)
    return {"y": v.x @ w.T}


CASES += cases(
    "tasks/int8_group_gemm.lf",
    lambda r, v: {"x": normal(r, v.M, v.K, dtype="f16"), "q": integers(r, -128, 128, v.N, v.K, dtype="i8"),
                  "scale": uniform(r, v.N, v.K // v.GS, lo=0.005, hi=0.02, dtype="f16"),
                  "zero": integers(r, -8, 8, v.N, v.K // v.GS, dtype="i8")},
    int8_gemm, {"y": "f16"},
    [Draw({"M": 3, "K": 12, "N": 5}, {"GS": 4}), Draw({"M": 1, "K": 256, "N": 2}),
     Draw({"M": 7, "K": 3, "N": 1}, {"GS": 1})],
    defaults={"GS": 128}, tol=F16,
)  # fmt: skip
