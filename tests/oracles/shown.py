"""The programs of examples/: those that are also test scripts take the same oracle, the others have their own here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage, signal, special

from tests.oracles import images, rows, sequences, tables
from tests.oracles.core import (
    EXACT,
    GREY,
    ROOT,
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
    uniform,
)  # fmt: skip
from tests.oracles.sequences import attention, rotate

# The thirteen: the same programs, but for the size of the blur and the files.
OTHER = {"10_blur": {"R": 6}}
CASES: list[Case] = [
    replace(c, script=c.script.replace("tests/scripts", "examples"),
            defaults={**c.defaults, **OTHER.get(c.script[14:-3], {})})
    for c in (*rows.CASES, *images.CASES, *sequences.CASES, *tables.CASES)
    if c.script[14:16].isdigit()
]  # fmt: skip


def photo(name: str) -> Array:
    """A picture of examples/data as u8."""
    with Image.open(ROOT / "examples" / "data" / name) as image:
        return np.array(image)


# -- 10 and 11, on the photographs ------------------------------------------------------------------------------------


def photo_blur(v: Values) -> dict[str, Any]:
    """SciPy's own Gaussian filter, cut off at R."""
    soft = ndimage.gaussian_filter(v.img / 255, v.sigma, radius=v.R, mode="nearest", axes=(0, 1))
    return {"out": np.rint(soft * 255).astype(int)}


def _photo_blur(name: str, draw: Draw) -> list[Case]:
    return cases("examples/10_blur.lf", lambda r, v: {"img": photo(name)}, photo_blur, {"out": "u8"}, [draw],
                 defaults={"R": 6, "sigma": 1.5}, tol=GREY)  # fmt: skip


CASES += _photo_blur("astronaut.png", Draw({"H": 256, "W": 256}, note="astronaut"))
CASES += _photo_blur("coffee.png", Draw({"H": 200, "W": 300}, {"R": 12}, {"sigma": 4.0}, note="coffee"))

CASES += cases("examples/11_histeq.lf", lambda r, v: {"img": photo("clock.png")}, images.histeq, {"eq": "u8"},
               [Draw({"H": 300, "W": 400}, note="clock")], tol=GREY)  # fmt: skip


# -- 14_resnet_block --------------------------------------------------------------------------------------------------


def resnet(v: Values) -> dict[str, Any]:
    def scaled(w: Array) -> Array:
        return np.asarray((v.s1 * w).astype(np.float16).astype(np.float64))

    return sequences.resnet_block(Values({**v, **{k: scaled(v[k]) for k in ("w1", "w2", "ws")}}))


CASES += cases(
    "examples/14_resnet_block.lf",
    lambda r, v: {"x": normal(r, v.N, 64, v.H, v.W, dtype="f16"), "w1": normal(r, 128, 64, 3, 3, dtype="f16"),
                  "w2": normal(r, 128, 4, 3, 3, dtype="f16"), "ws": normal(r, 128, 64, 1, 1, dtype="f16"),
                  "wc": normal(r, 128, v.K, dtype="f16", scale=0.1),
                  "label": integers(r, 0, v.K, v.N, dtype="i64")},
    resnet, {"z": "f16", "loss": "f32"},
    [Draw({"N": 2, "H": 4, "W": 3, "K": 5}), Draw({"N": 1, "H": 2, "W": 5, "K": 2})],
    defaults={"s1": 0.04}, tol=Tol(1e-2, 1e-2),
)  # fmt: skip


# -- 15_transformer_ffn -----------------------------------------------------------------------------------------------


def ffn(v: Values) -> dict[str, Any]:
    z = (normalise(v.x, (-1,), 1e-5) * v.gamma + v.beta) @ v.w1 + v.b1
    return {"y": v.x + (z * special.ndtr(z)) @ v.w2 + v.b2}


CASES += cases(
    "examples/15_transformer_ffn.lf",
    lambda r, v: {"x": normal(r, v.B, v.T, v.D), **{k: normal(r, v.D) for k in ("gamma", "beta", "b2")},
                  "w1": normal(r, v.D, v.F, scale=0.3), "b1": normal(r, v.F), "w2": normal(r, v.F, v.D, scale=0.3)},
    ffn, {"y": "f32"}, [Draw({"B": 2, "T": 3, "D": 8, "F": 13}), Draw({"B": 1, "T": 1, "D": 2, "F": 1})],
    tol=Tol(1e-4, 1e-4),
)  # fmt: skip


# -- 16_multi_head_attention ------------------------------------------------------------------------------------------


def multi_head(v: Values) -> dict[str, Any]:
    """Head by head: head n owns columns n*W to (n+1)*W of the projections."""
    width, seen = v.M // v.HEADS, np.tri(v.T, dtype=bool)
    q, k, u = (v.x @ w / np.sqrt(v.M) for w in (v.wq, v.wk, v.wv))
    heads = []
    for n in range(v.HEADS):
        s = slice(n * width, (n + 1) * width)
        heads.append(attention(q[:, None, :, s], k[:, None, :, s], u[:, None, :, s], seen)[:, 0])
    return {"y": np.concatenate(heads, -1) @ v.wo}


CASES += cases(
    "examples/16_multi_head_attention.lf",
    lambda r, v: {"x": normal(r, v.B, v.T, v.M), **{k: normal(r, v.M, v.M) for k in ("wq", "wk", "wv", "wo")}},
    multi_head, {"y": "f32"},
    [Draw({"B": 2, "T": 5, "M": 12}), Draw({"B": 1, "T": 1, "M": 2}, {"HEADS": 1}),
     Draw({"B": 1, "T": 7, "M": 6}, {"HEADS": 3})],
    defaults={"HEADS": 4}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


# -- 17_gru -----------------------------------------------------------------------------------------------------------


def gru(v: Values) -> dict[str, Any]:
    h, hs = np.zeros((v.B, v.U)), np.zeros((v.T, v.B, v.U))
    for t in range(v.T):
        rx, ux, nx = np.split(v.x[t] @ v.wx + v.bx, 3, axis=1)
        rh, uh, nh = np.split(h @ v.wh + v.bh, 3, axis=1)
        u = sigmoid(ux + uh)
        h = u * h + (1 - u) * np.tanh(nx + sigmoid(rx + rh) * nh)
        hs[t] = h
    return {"hs": hs, "h": h}


CASES += cases(
    "examples/17_gru.lf",
    lambda r, v: {"x": normal(r, v.T, v.B, v.I), "wx": normal(r, v.I, 3 * v.U, scale=0.4),
                  "wh": normal(r, v.U, 3 * v.U, scale=0.4), "bx": normal(r, 3 * v.U), "bh": normal(r, 3 * v.U)},
    gru, {"hs": "f32", "h": "f32"},
    [Draw({"T": 5, "B": 3, "I": 4, "U": 7}), Draw({"T": 0, "B": 2, "I": 1, "U": 1}, note="no-trip"),
     Draw({"T": 1, "B": 1, "I": 1, "U": 1})],
    tol=Tol(1e-4, 1e-5),
)  # fmt: skip

CASES += [
    replace(c, script="examples/18_cross_entropy.lf")
    for c in sequences.CASES
    if c.script == "tests/scripts/tasks/cross_entropy.lf"
]


# -- 19 to 21 ---------------------------------------------------------------------------------------------------------


def colsum(v: Values) -> dict[str, Any]:
    y = np.maximum(v.x @ v.w + v.b, 0)
    return {"y": y, "total": y.sum(0)}


CASES += cases(
    "examples/19_matmul_colsum.lf",
    lambda r, v: {"x": normal(r, v.M, v.K), "w": normal(r, v.K, v.N), "b": normal(r, v.N)}, colsum,
    {"y": "f32", "total": "f32"},
    [Draw({"M": 7, "K": 5, "N": 3}), Draw({"M": 1, "K": 1, "N": 1}), Draw({"M": 33, "K": 64, "N": 17}),
     Draw({"M": 0, "K": 2, "N": 3}, note="no-row")],
    tol=Tol(1e-4, 1e-4),
)  # fmt: skip


def heat(v: Values) -> dict[str, Any]:
    star = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
    u, change = v.plate.copy(), []
    for _ in range(v.STEPS):
        new = u.copy()
        if min(u.shape) > 2:
            new[1:-1, 1:-1] += v.rate * signal.convolve2d(u, star, mode="valid")
        change.append(np.abs(new - u).max())
        u = new
    return {"u": u, "change": np.array(change)}


CASES += cases(
    "examples/20_heat.lf", lambda r, v: {"plate": uniform(r, v.H, v.W)}, heat, {"u": "f32", "change": "f32"},
    [Draw({"H": 7, "W": 5}), Draw({"H": 1, "W": 1}, {"STEPS": 2}), Draw({"H": 2, "W": 9}, {"STEPS": 3}),
     Draw({"H": 11, "W": 13}, {"STEPS": 7}, {"rate": 0.1})],
    defaults={"STEPS": 50, "rate": 0.25},
)  # fmt: skip


def rope(v: Values) -> dict[str, Any]:
    angle = (v.start + np.arange(v.T))[:, None] / v.theta ** (2 * np.arange(v.D // 2) / v.D)
    return {"qr": rotate(v.q, angle), "kr": rotate(v.k, angle)}


CASES += cases(
    "examples/21_rope.lf",
    lambda r, v: {k: normal(r, v.B, v.H, v.T, v.D, dtype="f16") for k in "qk"}, rope, {"qr": "f16", "kr": "f16"},
    [Draw({"B": 2, "H": 3, "T": 5, "D": 8}), Draw({"B": 1, "H": 1, "T": 1, "D": 2}, params={"start": 77}),
     Draw({"B": 1, "H": 1, "T": 3, "D": 6}, params={"start": 9, "theta": 100.0})],
    defaults={"start": 0, "theta": 10000.0}, tol=Tol(4e-3, 4e-3),
)  # fmt: skip


# -- 22_cross_correlation ---------------------------------------------------------------------------------------------


def cross_correlation(v: Values) -> dict[str, Any]:
    a, b = v.a - v.a.mean(), v.b - v.b.mean()
    padded = np.pad(signal.correlate(b, a, mode="full"), v.LAGS + v.N + v.M)
    zero = v.LAGS + v.N + v.M + v.N - 1  # where lag 0 lies
    r = padded[zero - v.LAGS : zero + v.LAGS + 1] / np.sqrt((a @ a) * (b @ b))
    return {"r": r, "best": int(np.argmax(r)) - v.LAGS}


def sunspots(r: Rng, v: Values) -> dict[str, Array]:
    with np.load(ROOT / "examples" / "data" / "sunspots.npz") as data:
        return {"a": data["early"], "b": data["late"]}


SIGNALS: dict[str, Any] = {
    "outputs": {"r": "f32", "best": "i64"},
    "defaults": {"LAGS": 20},
    "tol": Tol(1e-4, 1e-5),
    "tols": {"best": EXACT},
}
CASES += cases(
    "examples/22_cross_correlation.lf", lambda r, v: {"a": normal(r, v.N), "b": normal(r, v.M)}, cross_correlation,
    draws=[Draw({"N": 31, "M": 17}), Draw({"N": 5, "M": 8}, {"LAGS": 2}),
           Draw({"N": 3, "M": 2}, {"LAGS": 7})], **SIGNALS,
)  # fmt: skip
CASES += cases("examples/22_cross_correlation.lf", sunspots, cross_correlation,
               draws=[Draw({"N": 155, "M": 154}, note="sunspots")], **SIGNALS)  # fmt: skip


# -- 23_mandelbrot ----------------------------------------------------------------------------------------------------


def mandelbrot(v: Values) -> dict[str, Any]:
    steps = images.mandelbrot(Values({**v, "x0": -2.25, "x1": 0.75, "y0": -1.0, "y1": 1.0}))["n"]
    return {"picture": 255 - steps * 255 // v.ITERS}


CASES += cases(
    "examples/23_mandelbrot.lf", lambda r, v: {}, mandelbrot, {"picture": "u8"},
    [Draw(sizes={"H": 24, "W": 37, "ITERS": 20}), Draw(sizes={"H": 3, "W": 2, "ITERS": 5})],
    defaults={"H": 240, "W": 360, "ITERS": 64}, tol=Tol(0, 0, odd=0.05),
)  # fmt: skip


# -- 24_edges ---------------------------------------------------------------------------------------------------------


def edges(v: Values) -> dict[str, Any]:
    grey = v.img @ np.array([0.299, 0.587, 0.114]) / 255
    soft = ndimage.gaussian_filter(grey, v.sigma, radius=4, mode="mirror")
    slope = np.hypot(ndimage.sobel(soft, axis=0, mode="mirror"), ndimage.sobel(soft, axis=1, mode="mirror")) / 8
    return {"out": np.rint(255 * np.clip(8 * slope, 0, 1)).astype(int)}


CASES += cases("examples/24_edges.lf", lambda r, v: {"img": photo("coffee.png")}, edges, {"out": "u8"},
               [Draw({"H": 200, "W": 300}, note="coffee")], defaults={"sigma": 1.5}, tol=GREY)  # fmt: skip
CASES += cases("examples/24_edges.lf", lambda r, v: {"img": integers(r, 0, 256, v.H, v.W, 3, dtype="u8")}, edges,
               {"out": "u8"}, [Draw({"H": 7, "W": 5}, params={"sigma": 0.8}), Draw({"H": 1, "W": 3})],
               defaults={"sigma": 1.5}, tol=Tol(0, 0, 0.1, 1))  # fmt: skip
