"""The standard library, every function in f16, f32 and f64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import ndimage, special

from tests.oracles.core import (
    EXACT,
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
    uniform,
)  # fmt: skip
from tests.oracles.sequences import attention, rotate

CASES: list[Case] = []
TOLS = {"f16": Tol(4e-3, 4e-3), "f32": Tol(3e-5, 3e-5), "f64": Tol(1e-11, 1e-11)}
WIDE = {"f16": "f32", "f32": "f32", "f64": "f64"}


def library(name: str, source: str, make: Callable[[Rng, Values, str], dict[str, Array]],
            expected: Callable[[Values], dict[str, Any]], outputs: Mapping[str, str], draws: list[Draw],
            **rest: Any) -> None:  # fmt: skip
    """Cases of `source` with F replaced by f16, f32 and f64. Among the outputs, F is that type, W the wide one."""
    for dtype in ("f16", "f32", "f64"):
        wide = WIDE[dtype]
        named = {k: {"F": dtype, "W": wide}.get(v, v) for k, v in outputs.items()}
        tols = {k: EXACT if v[0] in "biu" else TOLS[dtype] for k, v in named.items()}

        def inputs(r: Rng, v: Values, dtype: str = dtype) -> dict[str, Array]:
            return make(r, v, dtype)

        CASES.extend(cases(f"lib/{name}_{dtype}.lf", inputs, expected, named, draws, tols=tols,
                           source=source.replace("F[", f"{dtype}[").strip() + "\n", **rest))  # fmt: skip


# -- nn: activations --------------------------------------------------------------------------------------------------


def activations(v: Values) -> dict[str, Any]:
    x = v.x
    return {
        "r": np.maximum(x, 0), "s": special.expit(x), "u": x * special.expit(x), "p": np.logaddexp(x, 0), "g": x * special.ndtr(x),
        "t": x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), "n": np.maximum(v.k, 0),
    }  # fmt: skip


library(
    "activations",
    """
import nn
input x: F[N, M]
input k: i8[M]
output r = nn.relu(x)
output s = nn.sigmoid(x)
output u = nn.silu(x)
output p = nn.softplus(x)
output g = nn.gelu(x)
output t = nn.gelu_tanh(x)
output n = nn.relu(k)
""",
    lambda r, v, f: {"x": normal(r, v.N, v.M, dtype=f, scale=3), "k": integers(r, -128, 128, v.M, dtype="i8")},
    activations,
    {**dict.fromkeys("rsupgt", "F"), "n": "i8"},
    [Draw({"N": 5, "M": 7}), Draw({"N": 1, "M": 1}),
     Draw({"N": 2, "M": 3}, edit=lambda i: i["x"].__setitem__(0, [60.0, -60.0, 0.0]), note="saturated")],
)  # fmt: skip


# -- nn: along an axis ------------------------------------------------------------------------------------------------

library(
    "softmaxes",
    """
import nn
input x: F[A, B, C]
output s = nn.softmax(x)
output m = nn.softmax(x, axis=1)
output l = nn.logsumexp(x)
output z = nn.logsumexp(x, axis=0)
output p = nn.log_softmax(x)
output q = nn.log_softmax(x, axis=1)
""",
    lambda r, v, f: {"x": normal(r, v.A, v.B, v.C, dtype=f, scale=5)},
    lambda v: {
        "s": softmax(v.x),
        "m": softmax(v.x, 1),
        "l": special.logsumexp(v.x, axis=-1),
        "z": special.logsumexp(v.x, axis=0),
        "p": special.log_softmax(v.x, axis=-1),
        "q": special.log_softmax(v.x, axis=1),
    },
    dict.fromkeys("smlzpq", "F"),
    [Draw({"A": 2, "B": 3, "C": 7}), Draw({"A": 1, "B": 1, "C": 1}),
     Draw({"A": 2, "B": 1, "C": 5}, edit=lambda i: i["x"].__setitem__((0, 0), [-np.inf, 1, 2, 2, -np.inf]),
          note="some-minus-infinite")],
)  # fmt: skip

library(
    "logsumexp_infinite",
    """
import nn
input x: F[N, M]
output l = nn.logsumexp(x)
""",
    lambda r, v, f: {"x": normal(r, v.N, v.M, dtype=f)},
    lambda v: {"l": np.logaddexp.reduce(v.x, axis=1)},
    {"l": "F"},
    [Draw({"N": 3, "M": 4}, edit=lambda i: i["x"].__setitem__(slice(0, 2), [[-np.inf] * 4, [np.inf, 1, -np.inf, 2]]),
          note="infinite-rows")],
)  # fmt: skip


# -- nn: normalisation ------------------------------------------------------------------------------------------------


def norms(v: Values) -> dict[str, Any]:
    rms = v.x / np.sqrt(np.mean(v.x**2, -1, keepdims=True) + 1e-6) * v.g
    return {"l": normalise(v.x, (-1,), 1e-5) * v.g + v.b, "r": rms, "v": normalise(v.x[0, 0], (-1,), 1e-2) * v.g + v.b}


library(
    "norms",
    """
import nn
input x: F[A, B, D]
input g: F[D]
input b: F[D]
require A >= 1 and B >= 1
output l = nn.layernorm(x, g, b)
output r = nn.rmsnorm(x, g)
output v = nn.layernorm(x[0, 0], g, b, eps=1e-2)
""",
    lambda r, v, f: {"x": normal(r, v.A, v.B, v.D, dtype=f, scale=2), **{k: normal(r, v.D, dtype=f) for k in "gb"}},
    norms,
    {"l": "F", "r": "F", "v": "F"},
    [Draw({"A": 2, "B": 3, "D": 13}), Draw({"A": 1, "B": 1, "D": 2}), Draw({"A": 1, "B": 2, "D": 64})],
)  # fmt: skip


def batchnorms(v: Values) -> dict[str, Any]:
    channel, axes = (1, v.C, 1, 1), (0, 2, 3)

    def scaled(z: Array) -> Array:
        return np.asarray(z * v.g.reshape(channel) + v.b.reshape(channel))

    given = (v.x - v.m.reshape(channel)) / np.sqrt(v.s.reshape(channel) + 1e-5)
    return {
        "y": scaled(given), "t": scaled(normalise(v.x, axes, 1e-5)), "mu": v.x.mean(axes), "va": v.x.var(axes),
        "m1": 0.75 * v.m + 0.25 * v.x.mean(axes), "s1": 0.75 * v.s + 0.25 * v.x.var(axes, ddof=1),
        "gn": group_norm(v.x, v.g, v.b, 2),
    }  # fmt: skip


library(
    "batchnorms",
    """
import nn
input x: F[N, C, H, W]
input g: F[C]
input b: F[C]
input m: F[C]
input s: F[C] where s >= 0
require N * H * W >= 2 and C % 2 == 0
let (mean, var) = nn.batch_stats(x)
let (train, new_m, new_s) = nn.batchnorm_train(x, g, b, m, s, momentum=0.25)
output y = nn.batchnorm(x, g, b, m, s)
output t = train
output mu = mean
output va = var
output m1 = new_m
output s1 = new_s
output gn = nn.group_norm(x, g, b, 2)
""",
    lambda r, v, f: {"x": normal(r, v.N, v.C, v.H, v.W, dtype=f), **{k: normal(r, v.C, dtype=f) for k in "gbm"},
                     "s": uniform(r, v.C, lo=0.5, hi=2, dtype=f)},
    batchnorms,
    {"y": "F", "t": "F", "mu": "W", "va": "W", "m1": "W", "s1": "W", "gn": "F"},
    [Draw({"N": 2, "C": 4, "H": 3, "W": 5}), Draw({"N": 1, "C": 2, "H": 2, "W": 1})],
)  # fmt: skip


# -- nn: layers -------------------------------------------------------------------------------------------------------

library(
    "linears",
    """
import nn
input x: F[A, B, I]
input w: F[I, O]
input b: F[O]
require A >= 1 and B >= 1
output y = nn.linear(x, w, b)
output z = nn.linear(x[0, 0], w, b)
""",
    lambda r, v, f: {"x": normal(r, v.A, v.B, v.I, dtype=f), "w": normal(r, v.I, v.O, dtype=f),
                     "b": normal(r, v.O, dtype=f)},
    lambda v: {"y": v.x @ v.w + v.b, "z": v.x[0, 0] @ v.w + v.b},
    {"y": "F", "z": "F"},
    [Draw({"A": 2, "B": 3, "I": 7, "O": 5}), Draw({"A": 1, "B": 1, "I": 1, "O": 1})],
)  # fmt: skip


def convs(v: Values) -> dict[str, Any]:
    return {
        "p": correlate(v.x, v.w), "q": correlate(v.x, v.w, stride=2, pad=2, dilation=2),
        "g": correlate(v.x, v.wg, stride=1, pad=1, groups=2),
        "l": correlate(v.x[:, :, 0], v.w[:, :, 0]), "m": correlate(v.x[:, :, 0], v.wg[:, :, 0], 3, 2, 1, 2),
    }  # fmt: skip


library(
    "convs",
    """
import nn
input x: F[N, C, H, W]
input w: F[O, C, R, S]
input wg: F[O, C // 2, R, S]
require C % 2 == 0 and O % 2 == 0 and H >= 1 and R >= 1
output p = nn.conv2d(x, w)
output q = nn.conv2d(x, w, stride=2, pad=2, dilation=2)
output g = nn.conv2d(x, wg, pad=1, groups=2)
output l = nn.conv1d(x[:, :, 0], w[:, :, 0])
output m = nn.conv1d(x[:, :, 0], wg[:, :, 0], stride=3, pad=2, groups=2)
""",
    lambda r, v, f: {"x": normal(r, v.N, v.C, v.H, v.W, dtype=f), "w": normal(r, v.O, v.C, v.R, v.S, dtype=f),
                     "wg": normal(r, v.O, v.C // 2, v.R, v.S, dtype=f)},
    convs,
    dict.fromkeys("pqglm", "F"),
    [Draw({"N": 2, "C": 4, "O": 6, "H": 7, "W": 5, "R": 3, "S": 2}),
     Draw({"N": 1, "C": 2, "O": 2, "H": 3, "W": 4, "R": 1, "S": 1}),
     Draw({"N": 1, "C": 2, "O": 2, "H": 3, "W": 3, "R": 3, "S": 3})],
)  # fmt: skip


def pools(v: Values) -> dict[str, Any]:
    def pool(k: int, stride: int, pad: int, fill: float) -> Array:
        x = np.pad(v.x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=fill)
        tiles = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))
        return tiles[:, :, ::stride, ::stride]

    return {"a": pool(2, 2, 0, 0).max((4, 5)), "b": pool(3, 2, 1, -np.inf).max((4, 5)),
            "c": pool(2, 2, 0, 0).mean((4, 5)), "d": pool(3, 1, 1, 0).mean((4, 5))}  # fmt: skip


library(
    "pools",
    """
import nn
input x: F[N, C, H, W]
require H >= 2 and W >= 2
output a = nn.max_pool2d(x, 2)
output b = nn.max_pool2d(x, 3, stride=2, pad=1)
output c = nn.avg_pool2d(x, 2)
output d = nn.avg_pool2d(x, 3, stride=1, pad=1)
""",
    lambda r, v, f: {"x": normal(r, v.N, v.C, v.H, v.W, dtype=f)},
    pools,
    dict.fromkeys("abcd", "F"),
    [Draw({"N": 2, "C": 3, "H": 7, "W": 5}), Draw({"N": 1, "C": 1, "H": 2, "W": 2}),
     Draw({"N": 1, "C": 1, "H": 4, "W": 9})],
)  # fmt: skip


# -- nn: attention, embedding, loss, cells ----------------------------------------------------------------------------


def attentions(v: Values) -> dict[str, Any]:
    every, tri = np.ones((v.T, v.S), bool), np.tri(v.T, v.S, dtype=bool)
    root = np.sqrt(v.D)
    return {"a": attention(v.q, v.k, v.v, every), "c": attention(v.q, v.k, v.v, tri),
            "s": attention(v.q * root / 2, v.k, v.v, every), "r": rotate(v.q, v.angle)}  # fmt: skip


library(
    "attentions",
    """
import nn
input q: F[B, HQ, T, D]
input k: F[B, HK, S, D]
input v: F[B, HK, S, E]
input angle: F[T, D // 2]
require HQ % HK == 0 and D % 2 == 0 and S >= 1
output a = nn.attention(q, k, v)
output c = nn.attention(q, k, v, mask=nn.causal)
output s = nn.attention(q, k, v, scale=0.5)
output r = nn.rope(q, angle)
""",
    lambda r, v, f: {"q": normal(r, v.B, v.HQ, v.T, v.D, dtype=f), "k": normal(r, v.B, v.HK, v.S, v.D, dtype=f),
                     "v": normal(r, v.B, v.HK, v.S, v.E, dtype=f), "angle": uniform(r, v.T, v.D // 2, hi=6, dtype=f)},
    attentions,
    dict.fromkeys("acsr", "F"),
    [Draw({"B": 2, "HQ": 4, "HK": 2, "T": 3, "S": 5, "D": 6, "E": 7}),
     Draw({"B": 1, "HQ": 1, "HK": 1, "T": 1, "S": 1, "D": 2, "E": 1}),
     Draw({"B": 1, "HQ": 3, "HK": 1, "T": 9, "S": 9, "D": 4, "E": 2})],
)  # fmt: skip


def losses(v: Values) -> dict[str, Any]:
    logp = special.log_softmax(v.z, axis=-1)
    kept = [-logp[n, y] for n, y in enumerate(v.y) if y != -100]
    return {"e": v.z[v.ids], "loss": np.float64(sum(kept)) / np.float64(len(kept))}


library(
    "losses",
    """
import nn
input z: F[N, V]
input y: i32[N] where y == -100 or 0 <= y < V
input ids: u8[A, B] where i32(ids) < N
output e = nn.embedding(z, ids)
output loss = nn.cross_entropy(z, y)
""",
    lambda r, v, f: {"z": normal(r, v.N, v.V, dtype=f), "y": integers(r, 0, v.V, v.N),
                     "ids": integers(r, 0, v.N, v.A, v.B, dtype="u8")},
    losses,
    {"e": "F", "loss": "W"},
    [Draw({"N": 7, "V": 5, "A": 2, "B": 3}), Draw({"N": 1, "V": 1, "A": 1, "B": 1}),
     Draw({"N": 5, "V": 3, "A": 0, "B": 3}, edit=lambda i: i["y"].__setitem__(slice(0, 3), -100), note="ignored"),
     Draw({"N": 2, "V": 3, "A": 1, "B": 1}, edit=lambda i: i["y"].__setitem__(..., -100), note="all-ignored")],
)  # fmt: skip


def cells(v: Values) -> dict[str, Any]:
    i, f, g, o = np.split(v.x @ v.w4 + v.h @ v.u4 + v.b4, 4, axis=1)
    c = sigmoid(f + 1) * v.c + sigmoid(i) * np.tanh(g)
    (rx, ux, nx), (rh, uh, nh) = np.split(v.x @ v.w3 + v.b3, 3, axis=1), np.split(v.h @ v.u3 + v.d3, 3, axis=1)
    u = sigmoid(ux + uh)
    gru = u * v.h + (1 - u) * np.tanh(nx + sigmoid(rx + rh) * nh)
    return {"ho": sigmoid(o) * np.tanh(c), "co": c, "go": gru}


library(
    "cells",
    """
import nn
input x: F[B, I]
input h: F[B, U]
input c: F[B, U]
input w4: F[I, 4 * U]
input u4: F[U, 4 * U]
input b4: F[4 * U]
input w3: F[I, 3 * U]
input u3: F[U, 3 * U]
input b3: F[3 * U]
input d3: F[3 * U]
let (h1, c1) = nn.lstm_cell(x, h, c, w4, u4, b4, forget_bias=1)
output ho = h1
output co = c1
output go = nn.gru_cell(x, h, w3, u3, b3, d3)
""",
    lambda r, v, f: {"x": normal(r, v.B, v.I, dtype=f), **{k: normal(r, v.B, v.U, dtype=f) for k in "hc"},
                     **{f"{k}{n}": normal(r, *s, n * v.U, dtype=f) for n in (3, 4)
                        for k, s in (("w", (v.I,)), ("u", (v.U,)), ("b", ()))}, "d3": normal(r, 3 * v.U, dtype=f)},
    cells,
    {"ho": "F", "co": "F", "go": "F"},
    [Draw({"B": 3, "I": 5, "U": 7}), Draw({"B": 1, "I": 1, "U": 1})],
)  # fmt: skip


# -- stats and linalg -------------------------------------------------------------------------------------------------


def statistics(v: Values) -> dict[str, Any]:
    counts = np.histogram(v.x[0].astype(np.float64), bins=5, range=(-1, 1))[0]
    return {
        "m": v.x.mean(-1), "m0": v.x.mean(0), "va": v.x.var(-1), "v0": v.x.var(0, ddof=1),
        "c": np.atleast_2d(np.cov(v.x, rowvar=False)), "s": normalise(v.x, (-1,), 0), "s0": normalise(v.x, (0,), 1e-3),
        "hi": counts,
    }  # fmt: skip


library(
    "statistics",
    """
import stats
input x: F[N, D]
require N >= 2 and D >= 1
output m = stats.mean(x)
output m0 = stats.mean(x, axis=0)
output va = stats.variance(x)
output v0 = stats.variance(x, axis=0, ddof=1)
output c = stats.covariance(x)
output s = stats.standardize(x)
output s0 = stats.standardize(x, axis=0, eps=1e-3)
output hi = stats.histogram(x[0], 5, lo=-1, hi=1)
""",
    lambda r, v, f: {"x": normal(r, v.N, v.D, dtype=f)},
    statistics,
    {**dict.fromkeys(("m", "m0", "va", "v0", "c", "s", "s0"), "F"), "hi": "i64"},
    [Draw({"N": 5, "D": 7}), Draw({"N": 2, "D": 2}), Draw({"N": 17, "D": 64}),
     Draw({"N": 2, "D": 4}, edit=lambda i: i["x"].__setitem__(0, [-1.0, 1.0, 1.5, 0.0]), note="at-the-ends")],
)  # fmt: skip

library(
    "matrices",
    """
import linalg
input a: F[N, M]
input b: F[M]
input s: F[M, M]
input k: i32[M, M]
output n = linalg.norm(a)
output n0 = linalg.norm(a, axis=0)
output o = linalg.outer(b, b)
output t = linalg.trace(s)
output z = linalg.trace(k)
""",
    lambda r, v, f: {"a": normal(r, v.N, v.M, dtype=f), "b": normal(r, v.M, dtype=f), "s": normal(r, v.M, v.M, dtype=f),
                     "k": integers(r, -(2**31), 2**31, v.M, v.M)},
    lambda v: {"n": np.linalg.norm(v.a, axis=1), "n0": np.linalg.norm(v.a, axis=0), "o": np.outer(v.b, v.b),
               "t": np.trace(v.s), "z": np.trace(v.k)},
    {"n": "F", "n0": "F", "o": "F", "t": "F", "z": "i64"},
    [Draw({"N": 3, "M": 5}), Draw({"N": 1, "M": 1}), Draw({"N": 0, "M": 2}, note="no-row")],
)  # fmt: skip


# -- image ------------------------------------------------------------------------------------------------------------


def pictures(v: Values) -> dict[str, Any]:
    def blurred(sigma: float, radius: int, mode: str) -> Array:
        axes = (v.x.ndim - 2, v.x.ndim - 1)
        return np.asarray(ndimage.gaussian_filter(v.x, sigma, radius=radius, mode=mode, axes=axes))

    slope = [ndimage.sobel(plane, axis=1, mode="mirror") / 8 for plane in v.x]
    rise = [ndimage.sobel(plane, axis=0, mode="mirror") / 8 for plane in v.x]
    rows = np.clip((np.arange(5) + 0.5) * v.H / 5 - 0.5, 0, v.H - 1)
    cols = np.clip((np.arange(4) + 0.5) * v.W / 4 - 0.5, 0, v.W - 1)
    at = np.meshgrid(rows, cols, indexing="ij")
    return {
        "e": blurred(1.5, 2, "nearest"), "k": blurred(0.5, 1, "constant"), "w": blurred(1.0, 2, "wrap"),
        "m": blurred(2.0, 2, "mirror"), "y": blurred(2.0, 2, "reflect"), "dx": np.array(slope), "dy": np.array(rise),
        "r": np.array([ndimage.map_coordinates(p, at, order=1, mode="nearest") for p in v.x]),
    }  # fmt: skip


library(
    "pictures",
    """
import image
input x: F[C, H, W]
require H >= 1 and W >= 1
output e = image.blur(edge(x), 1.5, 2)
output k = image.blur(constant(x, 0), 0.5, 1)
output w = image.blur(wrap(x), 1, 2)
output m = image.blur(reflect(x), 2, 2)
output y = image.blur(symmetric(x), 2, 2)
let (sx, sy) = image.sobel(reflect(x))
output dx = sx
output dy = sy
output r = image.resize(x, 5, 4)
""",
    lambda r, v, f: {"x": uniform(r, v.C, v.H, v.W, dtype=f)},
    pictures,
    dict.fromkeys(("e", "k", "w", "m", "y", "dx", "dy", "r"), "F"),
    [Draw({"C": 3, "H": 11, "W": 7}), Draw({"C": 1, "H": 4, "W": 3}), Draw({"C": 2, "H": 5, "W": 4}),
     Draw({"C": 1, "H": 1, "W": 2}, note="smaller-than-the-kernel")],
)  # fmt: skip
