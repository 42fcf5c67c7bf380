"""Convolutions, normalisation of images, pooling, resampling, filters."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage, special

from tests.oracles.core import (
    GREY,
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
    uniform,
)  # fmt: skip

CASES: list[Case] = []
LOOSE = Tol(1e-3, 1e-3)


def max_windows(x: Array, size: int) -> Array:
    """The greatest element of each size x size tile; a remainder is dropped."""
    n, c, h, w = x.shape
    cut = x[:, :, : h // size * size, : w // size * size]
    return np.asarray(cut.reshape(n, c, h // size, size, w // size, size).max((3, 5)))


def _conv_inputs(*channels: str) -> Any:
    """x, w and the named vectors over the output channels."""

    def make(r: Rng, v: Values) -> dict[str, Array]:
        made = {"x": normal(r, v.N, v.C, v.H, v.W), "w": normal(r, v.O, v.C, v.get("R", 3), v.get("S", 3))}
        return {**made, **{k: normal(r, v.O) for k in channels}}

    return make


# -- 04_conv_bn_relu --------------------------------------------------------------------------------------------------


def conv_bn_relu(v: Values) -> dict[str, Any]:
    padded = np.pad(v.x, [(0, 0), (0, 0), (v.R // 2,) * 2, (v.S // 2,) * 2])
    channel = (1, v.C, 1, 1)
    conv = correlate(padded, v.w) - v.mean.reshape(channel)
    y = conv / np.sqrt(v.var + v.eps).reshape(channel) * v.gamma.reshape(channel) + v.beta.reshape(channel)
    return {"y": np.maximum(y + v.x, 0)}


CASES += cases(
    "04_conv_bn_relu.lf",
    lambda r, v: {"x": normal(r, v.N, v.C, v.H, v.W), "w": normal(r, v.C, v.C, v.R, v.S),
                  **{k: normal(r, v.C) for k in ("gamma", "beta", "mean")}, "var": uniform(r, v.C, lo=0.5, hi=2)},
    conv_bn_relu, {"y": "f32"},
    [Draw({"N": 2, "C": 3, "H": 5, "W": 7, "R": 3, "S": 5}), Draw({"N": 1, "C": 1, "H": 1, "W": 1, "R": 1, "S": 1}),
     Draw({"N": 1, "C": 2, "H": 2, "W": 1, "R": 7, "S": 3}, note="kernel-larger-than-image"),
     Draw({"N": 3, "C": 4, "H": 11, "W": 4, "R": 1, "S": 3})],
    defaults={"eps": 1e-5}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


# -- valid convolutions and a normalisation ---------------------------------------------------------------------------


def conv_groupnorm_maxpool(v: Values) -> dict[str, Any]:
    y = correlate(v.x, v.w) + v.b.reshape(1, -1, 1, 1)
    t = group_norm(y, v.gamma, v.beta, v.G, v.eps) * v.scale[None]
    return {"out": np.clip(max_windows(t, v.P), 0, 1)}


CASES += cases(
    "tasks/conv_groupnorm_maxpool.lf",
    lambda r, v: {**_conv_inputs("b", "gamma", "beta")(r, v), "scale": normal(r, v.O, 1, 1)},
    conv_groupnorm_maxpool, {"out": "f32"},
    [Draw({"N": 2, "C": 3, "H": 11, "W": 7, "O": 6, "R": 3, "S": 2}, {"G": 2, "P": 2}),
     Draw({"N": 1, "C": 1, "H": 6, "W": 9, "O": 16, "R": 3, "S": 3}),
     Draw({"N": 1, "C": 2, "H": 4, "W": 4, "O": 16, "R": 2, "S": 1}, note="no-window-fits"),
     Draw({"N": 2, "C": 1, "H": 5, "W": 5, "O": 3, "R": 1, "S": 1}, {"G": 3, "P": 1})],
    defaults={"G": 16, "P": 4, "eps": 1e-5}, tol=LOOSE,
)  # fmt: skip


def conv_groupnorm_lse(v: Values) -> dict[str, Any]:
    y = correlate(v.x, v.w) + v.b.reshape(1, -1, 1, 1)
    t = np.tanh(group_norm(y, v.gamma, v.beta, 16))
    return {"out": special.logsumexp(y + v.alpha * t * np.clip(t + 3, 0, 6) / 6, axis=1, keepdims=True)}


CASES += cases(
    "tasks/conv_groupnorm_residual_lse.lf", _conv_inputs("b", "gamma", "beta"), conv_groupnorm_lse, {"out": "f32"},
    [Draw({"N": 2, "C": 3, "H": 7, "W": 5, "O": 32}), Draw({"N": 1, "C": 1, "H": 4, "W": 3, "O": 16}),
     Draw({"N": 1, "C": 2, "H": 5, "W": 5, "O": 16}, params={"alpha": -0.5})],
    defaults={"alpha": 1.0}, tol=LOOSE,
)  # fmt: skip


def conv_instnorm(v: Values) -> dict[str, Any]:
    y = correlate(v.x, v.w) + v.b.reshape(1, -1, 1, 1)
    return {"z": normalise(y, (2, 3), v.eps) / v.divide_by}


CASES += cases(
    "tasks/conv_instnorm_divide.lf", _conv_inputs("b"), conv_instnorm, {"z": "f32"},
    [Draw({"N": 2, "C": 3, "H": 7, "W": 5, "O": 4, "R": 3, "S": 2}),
     Draw({"N": 1, "C": 1, "H": 4, "W": 3, "O": 1, "R": 1, "S": 1}, params={"divide_by": -4.0}),
     Draw({"N": 1, "C": 5, "H": 13, "W": 11, "O": 2, "R": 5, "S": 3})],
    defaults={"divide_by": 2.0, "eps": 1e-5}, tol=LOOSE,
)  # fmt: skip

CASES += cases(
    "tasks/derived_size.lf", _conv_inputs("b"),
    lambda v: {"p": max_windows(correlate(v.x, v.w) + v.b.reshape(1, -1, 1, 1), v.P)}, {"p": "f32"},
    [Draw({"N": 1, "C": 2, "H": 11, "W": 10, "O": 3, "R": 3, "S": 2}),
     Draw({"N": 2, "C": 1, "H": 3, "W": 5, "O": 1, "R": 1, "S": 2}, {"P": 1}),
     Draw({"N": 1, "C": 3, "H": 8, "W": 7, "O": 2, "R": 2, "S": 3}, {"P": 3})],
    defaults={"P": 4}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


# -- strides, groups, transposed --------------------------------------------------------------------------------------

CASES += cases(
    "tasks/depthwise_conv.lf",
    lambda r, v: {"x": normal(r, v.N, v.C, v.H, v.W), "w": normal(r, v.C, 3, 3)},
    lambda v: {"y": correlate(v.x, v.w[:, None], stride=v.ST, groups=v.C)}, {"y": "f32"},
    [Draw({"N": 2, "C": 3, "H": 8, "W": 5}), Draw({"N": 1, "C": 1, "H": 3, "W": 3}),
     Draw({"N": 1, "C": 2, "H": 7, "W": 11}, {"ST": 3}), Draw({"N": 1, "C": 1, "H": 4, "W": 6}, {"ST": 1})],
    defaults={"ST": 2}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip

CASES += cases(
    "tasks/grouped_strided_conv.lf",
    lambda r, v: {"x": normal(r, v.N, v.G * v.CG, v.H, v.W), "w": normal(r, v.G * v.OG, v.CG, v.R, v.S)},
    lambda v: {"y": correlate(v.x, v.w, v.ST, v.PAD, v.DIL, v.G)}, {"y": "f32"},
    [Draw({"N": 2, "CG": 2, "OG": 3, "H": 7, "W": 6, "R": 3, "S": 3}),
     Draw({"N": 1, "CG": 3, "OG": 1, "H": 9, "W": 11, "R": 3, "S": 2}, {"G": 2, "ST": 3, "PAD": 2, "DIL": 2}),
     Draw({"N": 1, "CG": 1, "OG": 1, "H": 1, "W": 1, "R": 1, "S": 1}, {"G": 1, "ST": 1, "PAD": 0}),
     Draw({"N": 1, "CG": 1, "OG": 2, "H": 2, "W": 2, "R": 4, "S": 4}, {"G": 3, "ST": 1, "PAD": 1})],
    defaults={"G": 4, "ST": 2, "PAD": 1, "DIL": 1}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


def convtranspose(v: Values) -> dict[str, Any]:
    """Every input element spreads its kernel over the output; then the padding is cut off."""
    full = np.zeros((v.N, v.O, (v.H - 1) * v.ST + v.R + v.OP, (v.W - 1) * v.ST + v.S + v.OP))
    for h in range(v.H):
        for w in range(v.W):
            patch = np.einsum("nc,cors->nors", v.x[:, :, h, w], v.w)
            full[:, :, h * v.ST : h * v.ST + v.R, w * v.ST : w * v.ST + v.S] += patch
    y = full[:, :, v.PAD : full.shape[2] - v.PAD, v.PAD : full.shape[3] - v.PAD]
    t = np.clip(y + v.bias.reshape(1, -1, 1, 1), 0, 1)
    return {"out": np.clip(t * v.k, 0, 1) / v.k}


CASES += cases(
    "tasks/convtranspose_clamp.lf",
    lambda r, v: {"x": normal(r, v.N, v.C, v.H, v.W), "w": normal(r, v.C, v.O, v.R, v.S), "bias": normal(r, v.O)},
    convtranspose, {"out": "f32"},
    [Draw({"N": 2, "C": 3, "H": 4, "W": 5, "O": 2, "R": 3, "S": 3}),
     Draw({"N": 1, "C": 1, "H": 1, "W": 1, "O": 1, "R": 3, "S": 2}),
     Draw({"N": 1, "C": 2, "H": 3, "W": 4, "O": 3, "R": 4, "S": 5}, {"ST": 3, "PAD": 0, "OP": 2}, {"k": 0.5})],
    defaults={"ST": 2, "PAD": 1, "OP": 1, "k": 2.0}, tol=Tol(1e-4, 1e-4),
)  # fmt: skip


# -- batchnorm_train --------------------------------------------------------------------------------------------------


def batchnorm_train(v: Values) -> dict[str, Any]:
    axes, m = (0, 2, 3), v.momentum
    channel = (1, v.C, 1, 1)
    y = normalise(v.x, axes, v.eps) * v.gamma.reshape(channel) + v.beta.reshape(channel)
    return {"y": y, "new_mean": v.run_mean + m * (v.x.mean(axes) - v.run_mean),
            "new_var": v.run_var + m * (v.x.var(axes, ddof=1) - v.run_var)}  # fmt: skip


CASES += cases(
    "tasks/batchnorm_train.lf",
    lambda r, v: {"x": normal(r, v.N, v.C, v.H, v.W) + np.float32(5), "run_var": uniform(r, v.C),
                  **{k: normal(r, v.C) for k in ("gamma", "beta", "run_mean")}},
    batchnorm_train, {"y": "f32", "new_mean": "f32", "new_var": "f32"},
    [Draw({"N": 3, "C": 2, "H": 5, "W": 4}), Draw({"N": 2, "C": 3, "H": 1, "W": 1}),
     Draw({"N": 1, "C": 1, "H": 17, "W": 13}, params={"momentum": 0.5})],
    defaults={"momentum": 0.1, "eps": 1e-5}, tol=LOOSE,
)  # fmt: skip


# -- photographs ------------------------------------------------------------------------------------------------------


def blur(v: Values) -> dict[str, Any]:
    taps = np.exp(-(np.arange(-v.R, v.R + 1.0) ** 2) / (2 * v.sigma**2))
    taps /= taps.sum()
    rows = ndimage.correlate1d(v.img / 255, taps, axis=1, mode="nearest")
    return {"out": np.rint(np.clip(ndimage.correlate1d(rows, taps, axis=0, mode="nearest"), 0, 1) * 255).astype(int)}


CASES += cases(
    "10_blur.lf", lambda r, v: {"img": integers(r, 0, 256, v.H, v.W, 3, dtype="u8")}, blur, {"out": "u8"},
    [Draw({"H": 20, "W": 31}), Draw({"H": 1, "W": 1}), Draw({"H": 2, "W": 3}, note="smaller-than-the-kernel"),
     Draw({"H": 9, "W": 13}, {"R": 1}, {"sigma": 0.5}), Draw({"H": 5, "W": 7}, {"R": 0})],
    defaults={"R": 4, "sigma": 1.5}, tol=GREY,
)  # fmt: skip


def histeq(v: Values) -> dict[str, Any]:
    flat = np.sort(v.img.reshape(-1))
    ranks = np.searchsorted(flat, v.img, side="right")
    return {"eq": np.rint(255 * ranks / flat.size).astype(int)}


CASES += cases(
    "11_histeq.lf", lambda r, v: {"img": integers(r, 40, 90, v.H, v.W, dtype="u8")}, histeq, {"eq": "u8"},
    [Draw({"H": 20, "W": 31}), Draw({"H": 1, "W": 1}), Draw({"H": 1, "W": 2}, note="tie"),
     Draw({"H": 3, "W": 4}, edit=lambda i: i["img"].__setitem__(..., 255), note="one-level"),
     Draw({"H": 2, "W": 2}, edit=lambda i: i["img"].__setitem__(..., [[0, 0], [0, 255]]), note="both-ends")],
    tol=Tol(0, 0),
)  # fmt: skip


def bilinear(v: Values) -> dict[str, Any]:
    rows = np.clip((np.arange(v.HO) + 0.5) * v.H / v.HO - 0.5, 0, v.H - 1)
    cols = np.clip((np.arange(v.WO) + 0.5) * v.W / v.WO - 0.5, 0, v.W - 1)
    at = np.meshgrid(rows, cols, indexing="ij")
    planes = [ndimage.map_coordinates(v.img[..., c].astype(float), at, order=1, mode="nearest") for c in range(3)]
    return {"small": np.rint(np.stack(planes, -1)).astype(int)}


CASES += cases(
    "tasks/bilinear_resize.lf", lambda r, v: {"img": integers(r, 0, 256, v.H, v.W, 3, dtype="u8")}, bilinear,
    {"small": "u8"},
    [Draw({"H": 13, "W": 17}, {"HO": 5, "WO": 7}), Draw({"H": 3, "W": 2}, {"HO": 11, "WO": 9}),
     Draw({"H": 1, "W": 1}, {"HO": 2, "WO": 3}), Draw({"H": 4, "W": 6}, {"HO": 4, "WO": 6}, note="same-size"),
     Draw({"H": 5, "W": 3}, {"HO": 1, "WO": 1})],
    defaults={"HO": 224, "WO": 224}, tol=GREY,
)  # fmt: skip


def unsharp(v: Values) -> dict[str, Any]:
    taps = np.exp(-(np.arange(-v.R, v.R + 1.0) ** 2) / (2 * v.sigma**2))
    taps /= taps.sum()
    soft = v.img
    for axis in (0, 1):
        soft = ndimage.correlate1d(soft, taps, axis=axis, mode="mirror")
    return {"out": np.clip(v.img + v.amount * (v.img - soft), 0, 1)}


CASES += cases(
    "tasks/unsharp.lf", lambda r, v: {"img": uniform(r, v.H, v.W)}, unsharp, {"out": "f32"},
    [Draw({"H": 13, "W": 17}), Draw({"H": 6, "W": 6}), Draw({"H": 3, "W": 5}, {"R": 2}, {"sigma": 0.7}),
     Draw({"H": 1, "W": 1}, {"R": 0}, {"amount": 3.0})],
    defaults={"R": 5, "sigma": 2.0, "amount": 1.5},
)  # fmt: skip


def mandelbrot(v: Values) -> dict[str, Any]:
    """How many steps a point stays within radius 2, the point itself counted, at most ITERS."""
    c = np.linspace(v.x0, v.x1, v.W)[None, :] + 1j * np.linspace(v.y0, v.y1, v.H)[:, None]
    z, n = np.zeros_like(c), np.zeros(c.shape, int)
    for _ in range(v.ITERS):
        inside = z.real**2 + z.imag**2 <= 4
        n[inside] += 1
        z[inside] = z[inside] ** 2 + c[inside]
    return {"n": n}


CASES += cases(
    "tasks/mandelbrot.lf", lambda r, v: {}, mandelbrot, {"n": "i32"},
    [Draw(sizes={"H": 24, "W": 37, "ITERS": 20}), Draw(sizes={"H": 2, "W": 2, "ITERS": 1}),
     Draw(sizes={"H": 11, "W": 13, "ITERS": 40}, params={"x0": -0.8, "x1": -0.7, "y0": 0.05, "y1": 0.15})],
    defaults={"H": 480, "W": 640, "ITERS": 100, "x0": -2.0, "x1": 1.0, "y0": -1.0, "y1": 1.0},
    tol=Tol(0, 0, odd=0.03),
)  # fmt: skip
