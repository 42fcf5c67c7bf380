"""Attention, recurrences, dynamic programming, checksums, embeddings, losses."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy import special

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
    integers,
    normal,
    normalise,
    sigmoid,
    softmax,
)  # fmt: skip

CASES: list[Case] = []


# -- 07_attention -----------------------------------------------------------------------------------------------------


def attention(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """Query by query; the key heads are shared by blocks of query heads; `seen` is [queries, keys]."""
    share = q.shape[1] // k.shape[1]
    out = np.empty((*q.shape[:3], v.shape[3]))
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = np.flatnonzero(seen[i])
        p = softmax(k[b, h // share, keys] @ q[b, h, i] / np.sqrt(q.shape[3]))
        out[b, h, i] = p @ v[b, h // share, keys]
    return out


CASES += cases(
    "07_attention.lf", lambda r, v: {n: normal(r, v.B, v.H, v.T, v.D, dtype="f16") for n in "qkv"},
    lambda v: {"o": attention(v.q, v.k, v.v, np.tri(v.T, dtype=bool))}, {"o": "f16"},
    [Draw({"B": 2, "H": 3, "T": 7, "D": 5}), Draw({"B": 1, "H": 1, "T": 1, "D": 1}),
     Draw({"B": 1, "H": 2, "T": 33, "D": 16})],
    tol=F16,
)  # fmt: skip


# -- 09_lstm ----------------------------------------------------------------------------------------------------------


def lstm(v: Values) -> dict[str, Any]:
    h, c, hs = np.zeros((v.B, v.U)), np.zeros((v.B, v.U)), np.zeros((v.T, v.B, v.U))
    for t in range(v.T):
        i, f, g, o = np.split(v.x[t] @ v.wx + h @ v.wh + v.b, 4, axis=1)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hs[t] = h
    return {"hs": hs, "h": h}


CASES += cases(
    "09_lstm.lf",
    lambda r, v: {"x": normal(r, v.T, v.B, v.I), "wx": normal(r, v.I, 4 * v.U, scale=0.3),
                  "wh": normal(r, v.U, 4 * v.U, scale=0.3), "b": normal(r, 4 * v.U)},
    lstm, {"hs": "f32", "h": "f32"},
    [Draw({"T": 5, "B": 3, "I": 4, "U": 7}), Draw({"T": 1, "B": 1, "I": 1, "U": 1}),
     Draw({"T": 0, "B": 2, "I": 3, "U": 2}, note="no-trip"), Draw({"T": 20, "B": 1, "I": 2, "U": 5})],
    tol=Tol(1e-4, 1e-5),
)  # fmt: skip


# -- crc16 ------------------------------------------------------------------------------------------------------------


def crc16(v: Values) -> dict[str, Any]:
    """The CCITT polynomial, reflected, by a table of 256 entries; inverted, bytes swapped."""
    poly = int(v.POLY)
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (poly if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFF
    for byte in v.bytes:
        crc = crc >> 8 ^ table[(crc ^ int(byte)) & 0xFF]
    crc ^= 0xFFFF
    return {"check_sum": (crc << 8 | crc >> 8) & 0xFFFF}


CASES += cases(
    "tasks/crc16.lf", lambda r, v: {"bytes": integers(r, 0, 256, v.N, dtype="u8")}, crc16, {"check_sum": "u16"},
    [Draw({"N": 31}), Draw({"N": 1}), Draw({"N": 0}, note="nothing"), Draw({"N": 5}, {"POLY": 0xA001}),
     Draw({"N": 9}, edit=lambda i: i["bytes"].__setitem__(..., list(b"123456789")), note="known-906e")],
    defaults={"POLY": 0x8408}, tol=EXACT,
)  # fmt: skip


# -- dynamic programming ----------------------------------------------------------------------------------------------


def dtw(v: Values) -> dict[str, Any]:
    """The least cost of aligning two series, by recursion on their prefixes."""
    cost = np.full((v.N + 1, v.M + 1), np.inf)
    cost[0, 0] = 0
    for i in range(v.N):
        for j in range(v.M):
            cost[i + 1, j + 1] = abs(v.a[i] - v.b[j]) + min(cost[i, j], cost[i, j + 1], cost[i + 1, j])
    return {"cost": cost[-1, -1]}


CASES += cases(
    "tasks/dtw.lf", lambda r, v: {"a": normal(r, v.N), "b": normal(r, v.M)}, dtw, {"cost": "f32"},
    [Draw({"N": 11, "M": 7}), Draw({"N": 1, "M": 1}), Draw({"N": 1, "M": 5}), Draw({"N": 6, "M": 1}),
     Draw({"N": 13, "M": 17})],
)  # fmt: skip


def nussinov(v: Values) -> dict[str, Any]:
    """The greatest number of complementary pairs (3 = A + U or C + G) within every interval."""
    seq = [int(s) for s in v.seq]

    @cache
    def best(i: int, j: int) -> int:
        if j <= i:
            return 0
        pair = best(i + 1, j - 1) + (seq[i] + seq[j] == 3 and j - i > 1)
        return max(best(i, j - 1), best(i + 1, j), pair, *(best(i, k) + best(k + 1, j) for k in range(i + 1, j)))

    return {"t": np.array([[best(i, j) for j in range(v.N)] for i in range(v.N)], int).reshape(v.N, v.N)}


CASES += cases(
    "tasks/nussinov.lf", lambda r, v: {"seq": integers(r, 0, 4, v.N)}, nussinov, {"t": "i32"},
    [Draw({"N": 11}), Draw({"N": 1}), Draw({"N": 2}), Draw({"N": 3}),
     Draw({"N": 8}, edit=lambda i: i["seq"].__setitem__(..., 1), note="no-pair")],
    tol=EXACT,
)  # fmt: skip


# -- losses and embeddings --------------------------------------------------------------------------------------------


def cross_entropy(v: Values) -> dict[str, Any]:
    logp = v.z - special.logsumexp(v.z, axis=1, keepdims=True)
    kept = [n for n in range(v.N) if v.lab[n] != v.IGNORE]
    each = [-(1 - v.smooth) * logp[n, v.lab[n]] - v.smooth * logp[n].mean() for n in kept]
    return {"loss": np.float64(sum(each)) / np.float64(len(kept))}


def _ignore(inputs: dict[str, Array]) -> None:
    inputs["lab"][::2] = -100


CASES += cases(
    "tasks/cross_entropy.lf",
    lambda r, v: {"z": normal(r, v.N, v.V, scale=3), "lab": integers(r, 0, v.V, v.N, dtype="i64")},
    cross_entropy, {"loss": "f32"},
    [Draw({"N": 7, "V": 5}), Draw({"N": 1, "V": 1}), Draw({"N": 33, "V": 101}, edit=_ignore, note="ignored"),
     Draw({"N": 3, "V": 4}, edit=lambda i: i["lab"].__setitem__(..., -100), note="all-ignored"),
     Draw({"N": 5, "V": 3}, params={"smooth": 0.0}, edit=_ignore, note="ignored")],
    defaults={"smooth": 0.1, "IGNORE": -100}, tol=Tol(1e-4, 1e-5),
)  # fmt: skip


def embedding_bag(v: Values) -> dict[str, Any]:
    rows = [[v.table[j] for j in ids if j != v.PADDING] for ids in v.ids]
    return {"bag": np.array([np.mean(r, axis=0) if r else np.zeros(v.D) for r in rows]).reshape(v.B, v.D)}


def _pad(inputs: dict[str, Array]) -> None:
    inputs["ids"][:, ::3] = -1
    inputs["ids"][0] = -1


CASES += cases(
    "tasks/embedding_bag.lf",
    lambda r, v: {"table": normal(r, v.V, v.D), "ids": integers(r, 0, v.V, v.B, v.L)},
    embedding_bag, {"bag": "f32"},
    [Draw({"V": 11, "D": 5, "B": 4, "L": 7}, edit=_pad, note="padded"), Draw({"V": 1, "D": 1, "B": 1, "L": 1}),
     Draw({"V": 3, "D": 2, "B": 2, "L": 0}, note="empty-bags"), Draw({"V": 101, "D": 3, "B": 13, "L": 4})],
    defaults={"PADDING": -1},
)  # fmt: skip


def lm_head(v: Values) -> dict[str, Any]:
    def rows(ids: Array) -> Array:
        return np.asarray(v.table[ids])

    h = normalise(rows(v.ids), (-1,), 1e-5) * v.gamma + v.beta
    logits = h @ v.table.T
    picked = np.take_along_axis(logits, v.ids[..., None], -1)[..., 0]
    return {"logits": logits, "loss": np.mean(special.logsumexp(logits, axis=-1) - picked), "g": rows(v.one)}


CASES += cases(
    "tasks/embedding_lm_head.lf",
    lambda r, v: {"table": normal(r, v.V, v.D, dtype="f16"), "ids": integers(r, 0, v.V, v.B, v.T),
                  "one": integers(r, 0, v.V, v.B), "gamma": normal(r, v.D, dtype="f16"),
                  "beta": normal(r, v.D, dtype="f16")},
    lm_head, {"logits": "f16", "loss": "f32", "g": "f16"},
    [Draw({"V": 11, "D": 8, "B": 2, "T": 5}), Draw({"V": 2, "D": 3, "B": 1, "T": 1}),
     Draw({"V": 31, "D": 16, "B": 3, "T": 7})],
    tol=Tol(1e-2, 3e-2), tols={"g": EXACT},
)  # fmt: skip


# -- rope_gqa_window --------------------------------------------------------------------------------------------------


def rotate(x: Array, angle: Array) -> Array:
    """Pairs (d, d + D/2) as complex numbers, turned by `angle` [T, D/2]."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], -1)


def rope_gqa_window(v: Values) -> dict[str, Any]:
    angle = (v.start + np.arange(v.T))[:, None] / v.theta ** (2 * np.arange(v.D // 2) / v.D)
    kn, vn = v.kc.copy(), v.vc.copy()
    kn[:, :, v.start : v.start + v.T] = rotate(v.k, angle)
    vn[:, :, v.start : v.start + v.T] = v.v
    here, there = v.start + np.arange(v.T)[:, None], np.arange(v.S)[None, :]
    seen = (there <= here) & (here - there < v.WIN)
    return {"o": attention(rotate(v.q, angle), kn, vn, seen), "kn": kn, "vn": vn}


def _rope(r: Rng, v: Values) -> dict[str, Array]:
    made = {"q": normal(r, v.B, v.HQ, v.T, v.D, dtype="f16")}
    made |= {n: normal(r, v.B, v.HK, v.T, v.D, dtype="f16") for n in ("k", "v")}
    return made | {n: normal(r, v.B, v.HK, v.S, v.D, dtype="f16") for n in ("kc", "vc")}


CASES += cases(
    "tasks/rope_gqa_window.lf", _rope, rope_gqa_window, {"o": "f16", "kn": "f16", "vn": "f16"},
    [Draw({"B": 2, "HQ": 6, "HK": 2, "T": 3, "S": 11, "D": 4}, {"WIN": 3}, {"start": 5}),
     Draw({"B": 1, "HQ": 1, "HK": 1, "T": 1, "S": 1, "D": 2}),
     Draw({"B": 1, "HQ": 4, "HK": 4, "T": 7, "S": 7, "D": 8}, params={"theta": 100.0}),
     Draw({"B": 1, "HQ": 2, "HK": 1, "T": 4, "S": 9, "D": 6}, {"WIN": 1}, {"start": 2}, note="only-itself")],
    defaults={"WIN": 4096, "start": 0, "theta": 10000.0}, tol=Tol(1e-2, 1e-2), tols={"vn": EXACT},
)  # fmt: skip


# -- resnet_block -----------------------------------------------------------------------------------------------------


def resnet_block(v: Values) -> dict[str, Any]:
    a = np.maximum(correlate(v.x, v.w1, stride=2, pad=1), 0)
    y = np.maximum(correlate(a, v.w2, pad=1, groups=32) + correlate(v.x, v.ws, stride=2), 0)
    z = y.mean((2, 3)) @ v.wc
    return {"z": z, "loss": np.mean(special.logsumexp(z, axis=1) - z[np.arange(v.N), v.label])}


CASES += cases(
    "tasks/resnet_block.lf",
    lambda r, v: {"x": normal(r, v.N, 64, v.H, v.W, dtype="f16"),
                  "w1": normal(r, 128, 64, 3, 3, dtype="f16", scale=0.04),
                  "w2": normal(r, 128, 4, 3, 3, dtype="f16", scale=0.1),
                  "ws": normal(r, 128, 64, 1, 1, dtype="f16", scale=0.1),
                  "wc": normal(r, 128, v.K, dtype="f16", scale=0.1), "label": integers(r, 0, v.K, v.N, dtype="i64")},
    resnet_block, {"z": "f16", "loss": "f32"},
    [Draw({"N": 2, "H": 5, "W": 4, "K": 3}), Draw({"N": 1, "H": 2, "W": 2, "K": 1})],
    tol=Tol(1e-2, 1e-2),
)  # fmt: skip
