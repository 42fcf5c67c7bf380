"""Layers in more settings than the library's own cases: convolutions over a grid of settings, and recurrences over time.

The answers are formulas in float64 here; `by_torch` has PyTorch's for the same scripts.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.oracles.core import Array, Case, Draw, Tol, Values, cases, normal, sigmoid

CASES: list[Case] = []
TOL = Tol(3e-5, 3e-5)

# -- convolutions -----------------------------------------------------------------------------------------------------

CONV = """
import nn
input x: f32[N, C, H, W]
input w: f32[O, C // {groups}, R, S]
require C % {groups} == 0 and O % {groups} == 0
output y = nn.conv2d(x, w, stride={stride}, pad={pad}, dilation={dilation}, groups={groups})
"""
# Stride, padding, dilation, groups: every pair of values of two of them occurs.
SETTINGS = [
    (1, 0, 1, 1), (2, 1, 1, 1), (3, 2, 2, 1), (1, 1, 2, 2), (2, 2, 1, 2), (3, 0, 1, 2), (1, 2, 1, 4), (2, 0, 2, 4),
    (3, 1, 1, 4), (2, 3, 2, 2), (1, 3, 1, 1), (3, 3, 1, 4),
]  # fmt: skip


def conv(setting: tuple[int, int, int, int]) -> Any:
    """Element by element, from the definition; what lies outside the image is left out."""
    stride, pad, dilation, groups = setting

    def answer(v: Values) -> dict[str, Any]:
        (n, _, h, w), (o, part, r, s) = v.x.shape, v.w.shape
        high = (h + 2 * pad - dilation * (r - 1) - 1) // stride + 1
        wide = (w + 2 * pad - dilation * (s - 1) - 1) // stride + 1
        y = np.zeros((n, o, high, wide))
        for to, i, j, a, b in itertools.product(range(o), range(high), range(wide), range(r), range(s)):
            p, q = stride * i + dilation * a - pad, stride * j + dilation * b - pad
            if 0 <= p < h and 0 <= q < w:
                start = to // (o // groups) * part
                y[:, to, i, j] += v.x[:, start : start + part, p, q] @ v.w[to, :, a, b]
        return {"y": y}

    return answer


for _setting in SETTINGS:
    _names = dict(zip(("stride", "pad", "dilation", "groups"), _setting, strict=True))
    CASES += cases(
        "net/conv_" + "_".join(map(str, _setting)) + ".lf",
        lambda r, v, g=_setting[3]: {"x": normal(r, v.N, v.C, v.H, v.W), "w": normal(r, v.O, v.C // g, v.R, v.S)},  # type: ignore[misc]
        conv(_setting), {"y": "f32"},
        [Draw({"N": 2, "C": 4, "O": 8, "H": 9, "W": 7, "R": 3, "S": 2}),
         Draw({"N": 1, "C": 4, "O": 4, "H": 5, "W": 6, "R": 1, "S": 3})],
        source=CONV.format(**_names), tol=TOL,
    )  # fmt: skip

# -- recurrences over time --------------------------------------------------------------------------------------------

LSTM = """
import nn
input x: f32[T, B, I]
input w0: f32[I, 4 * U]
input u0: f32[U, 4 * U]
input b0: f32[4 * U]
input w1: f32[U, 4 * U]
input u1: f32[U, 4 * U]
input b1: f32[4 * U]
scan t in 0..T carry (h = zeros(f32, B, U), c = zeros(f32, B, U), g = zeros(f32, B, U), d = zeros(f32, B, U)) {
  let (h1, c1) = nn.lstm_cell(x[t], h, c, w0, u0, b0)
  let (g1, d1) = nn.lstm_cell(h1, g, d, w1, u1, b1)
  next h = h1
  next c = c1
  next g = g1
  next d = d1
  emit y = g1
}
output y
output h0 = h
output c0 = c
output c1 = d
"""


def lstm_layer(x: Array, w: Array, u: Array, b: Array) -> tuple[Array, Array, Array]:
    """All hidden states, and the last hidden and cell state, from zeros; gates in the order i, f, g, o."""
    h = c = np.zeros((x.shape[1], len(u)))
    states = []
    for step in x:
        i, f, g, o = np.split(step @ w + h @ u + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states).reshape(len(x), *h.shape), h, c


def lstm(v: Values) -> dict[str, Any]:
    first, h0, c0 = lstm_layer(v.x, v.w0, v.u0, v.b0)
    y, _, c1 = lstm_layer(first, v.w1, v.u1, v.b1)
    return {"y": y, "h0": h0, "c0": c0, "c1": c1}


CASES += cases(
    "net/lstm.lf",
    lambda r, v: {"x": normal(r, v.T, v.B, v.I),
                  **{f"{k}{n}": normal(r, *rows, 4 * v.U, scale=0.4) for n in (0, 1)
                     for k, rows in (("w", (v.U if n else v.I,)), ("u", (v.U,)), ("b", ()))}},
    lstm, dict.fromkeys(("y", "h0", "c0", "c1"), "f32"),
    [Draw({"T": 6, "B": 3, "I": 5, "U": 4}), Draw({"T": 1, "B": 1, "I": 1, "U": 1}),
     Draw({"T": 0, "B": 2, "I": 2, "U": 3}, note="no-step")],
    source=LSTM, tol=TOL,
)  # fmt: skip

GRU = """
import nn
input x: f32[T, B, I]
input w: f32[I, 3 * U]
input u: f32[U, 3 * U]
input b: f32[3 * U]
input d: f32[3 * U]
scan t in 0..T carry (h = zeros(f32, B, U)) {
  let h1 = nn.gru_cell(x[t], h, w, u, b, d)
  next h = h1
  emit y = h1
}
output y
"""


def gru(v: Values) -> dict[str, Any]:
    h, states = np.zeros((v.B, v.U)), []
    for step in v.x:
        (rx, zx, nx), (rh, zh, nh) = np.split(step @ v.w + v.b, 3, axis=1), np.split(h @ v.u + v.d, 3, axis=1)
        z = sigmoid(zx + zh)
        h = z * h + (1 - z) * np.tanh(nx + sigmoid(rx + rh) * nh)
        states.append(h)
    return {"y": np.array(states)}


CASES += cases(
    "net/gru.lf",
    lambda r, v: {"x": normal(r, v.T, v.B, v.I), "w": normal(r, v.I, 3 * v.U, scale=0.4),
                  "u": normal(r, v.U, 3 * v.U, scale=0.4), **{k: normal(r, 3 * v.U, scale=0.4) for k in "bd"}},
    gru, {"y": "f32"}, [Draw({"T": 6, "B": 3, "I": 5, "U": 4}), Draw({"T": 1, "B": 1, "I": 1, "U": 1})],
    source=GRU, tol=TOL,
)  # fmt: skip
