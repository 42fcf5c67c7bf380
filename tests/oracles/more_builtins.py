"""Boundary views, products, scatters, ranges read from data, and programs in integers: a hash and an FFT."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.core import EXACT, F64, Array, Case, Draw, Rng, Tol, Values, cases, integers, normal

CASES: list[Case] = []


# -- boundary views ---------------------------------------------------------------------------------------------------

VIEWS = """
fn window(v, lo) {
  let y[i in 0..15] = v[i + lo, i + lo]
  return y
}
input x: f32[N, M]
require N >= 1 and M >= 1
output a = window(edge(x), -7)
output b = window(constant(x, 9), -7)
output c = window(wrap(x), -7)
output d = window(reflect(x), -7)
output e = window(symmetric(x), -7)
output f[i, j in 0..M] = edge(x)[i, j - 1] + wrap(x)[i, j + 1]
"""


def views(v: Values) -> dict[str, Any]:
    """NumPy pads; a diagonal of the padded array is read."""

    def padded(mode: str, **more: Any) -> Array:
        wide = np.pad(v.x, 40, mode=mode, **more)  # type: ignore[call-overload]
        return np.array([wide[40 + i - 7, 40 + i - 7] for i in range(15)])

    left, right = np.pad(v.x, ((0, 0), (1, 0)), mode="edge")[:, :-1], np.roll(v.x, -1, 1)
    return {"a": padded("edge"), "b": padded("constant", constant_values=9), "c": padded("wrap"), "d": padded("reflect"),
            "e": padded("symmetric"), "f": left + right}  # fmt: skip


CASES += cases(
    "builtin/views.lf", lambda r, v: {"x": normal(r, v.N, v.M)}, views, dict.fromkeys("abcdef", "f32"),
    [Draw({"N": 4, "M": 3}), Draw({"N": 1, "M": 2}), Draw({"N": 1, "M": 1}), Draw({"N": 30, "M": 7})],
    source=VIEWS, tol=Tol(1e-6, 1e-6),
)  # fmt: skip


# -- products ---------------------------------------------------------------------------------------------------------

PRODUCTS = """
input a: f64[B, I, K]
input b: f64[K, J]
input u: f64[K]
input n: i8[I, K]
output mm = a @ b
output mv = a @ u
output vm = u @ b
output vv = u @ u
output bat = a @ a.mT
output dt = dot(b.T, u)
output ot = outer(u, b[:, 0])
output es = einsum("bik,kj,k->ij", a, b, u)
output tr = einsum("bik->kb", a)
output wi = n @ n.T
require J >= 1
"""

CASES += cases(
    "builtin/products.lf",
    lambda r, v: {"a": normal(r, v.B, v.I, v.K, dtype="f64"), "b": normal(r, v.K, v.J, dtype="f64"),
                  "u": normal(r, v.K, dtype="f64"), "n": integers(r, -128, 128, v.I, v.K, dtype="i8")},
    lambda v: {"mm": v.a @ v.b, "mv": v.a @ v.u, "vm": v.u @ v.b, "vv": v.u @ v.u, "bat": v.a @ np.swapaxes(v.a, 1, 2),
               "dt": v.b.T @ v.u, "ot": np.outer(v.u, v.b[:, 0]), "es": np.einsum("bik,kj,k->ij", v.a, v.b, v.u),
               "tr": v.a.sum(1).T, "wi": ((v.n @ v.n.T + 128) % 256 - 128)},
    {**dict.fromkeys(("mm", "mv", "vm", "vv", "bat", "dt", "ot", "es", "tr"), "f64"), "wi": "i8"},
    [Draw({"B": 2, "I": 3, "K": 5, "J": 4}), Draw({"B": 1, "I": 1, "K": 1, "J": 1}),
     Draw({"B": 2, "I": 2, "K": 0, "J": 3}, note="nothing-to-sum")],
    source=PRODUCTS, tol=F64,
)  # fmt: skip


# -- scatters ---------------------------------------------------------------------------------------------------------

SCATTERS = """
input k: i32[N] where 0 <= k < M
input x: f32[N]
input c: u16[N]
input start: f32[M]
accum a: f32[M] = 0 for i { a[k[i]] += x[i] }
accum b: f32[M] = start for i if x[i] > 0 { b[k[i]] += x[i] }
accum d: f32[M] = 1 for i { d[k[i]] *= x[i] }
accum e: f32[M] = -inf for i { e[k[i]] max= x[i] }
accum f: f32[M] = inf for i { f[k[i]] min= x[i] }
accum g: u16[M] = 0 for i { g[k[i]] |= c[i] }
accum h: u16[M] = 0xffff for i { h[k[i]] &= c[i] }
accum p: u16[M] = 0 for i { p[k[i]] ^= c[i] }
accum q: u8[M, 2] = 250 for i { q[k[i], 0] += 1  q[k[i], i % 2] += 2 }
output a
output b
output d
output e
output f
output g
output h
output p
output q
"""


def scatters(v: Values) -> dict[str, Any]:
    a, b, d = np.zeros(v.M), v.start.copy(), np.ones(v.M)
    e, f, q = np.full(v.M, -np.inf), np.full(v.M, np.inf), np.full((v.M, 2), 250)
    g, h, p = (np.full(v.M, n, int) for n in (0, 0xFFFF, 0))
    for i, t in enumerate(v.k):
        a[t] += v.x[i]
        b[t] += max(v.x[i], 0)
        d[t] *= v.x[i]
        e[t], f[t] = max(e[t], v.x[i]), min(f[t], v.x[i])
        g[t], h[t], p[t] = g[t] | v.c[i], h[t] & v.c[i], p[t] ^ v.c[i]
        q[t, 0] += 1
        q[t, i % 2] += 2
    return {"a": a, "b": b, "d": d, "e": e, "f": f, "g": g, "h": h, "p": p, "q": q % 256}


CASES += cases(
    "builtin/scatters.lf",
    lambda r, v: {"k": integers(r, 0, max(v.M, 1), v.N), "x": normal(r, v.N), "c": integers(r, 0, 2**16, v.N, dtype="u16"),
                  "start": normal(r, v.M)},
    scatters, {**dict.fromkeys("abdef", "f32"), **dict.fromkeys("ghp", "u16"), "q": "u8"},
    [Draw({"N": 50, "M": 7}), Draw({"N": 0, "M": 3}), Draw({"N": 31, "M": 1})], source=SCATTERS, tol=Tol(2e-5, 2e-6),
)  # fmt: skip


# -- ranges read from data --------------------------------------------------------------------------------------------

SPARSE = """
input ptr: i32[R + 1] where 0 <= ptr <= Z
input col: i32[Z] where 0 <= col < C
input val: f32[Z]
input x: f32[C]
input length: i32[B] where 0 <= length <= L
input rows: f32[B, L]
output y[r in 0..R] = sum(val[k] * x[col[k]] for k in ptr[r]..ptr[r + 1])
output ragged[b] = sum(rows[b, k] for k in 0..length[b])
"""


def sparse(v: Values) -> dict[str, Any]:
    dense = np.zeros((v.R, v.C))
    for r in range(v.R):
        for k in range(v.ptr[r], v.ptr[r + 1]):
            dense[r, v.col[k]] += v.val[k]
    return {"y": dense @ v.x, "ragged": np.array([row[:n].sum() for row, n in zip(v.rows, v.length, strict=True)])}


def _sparse(r: Rng, v: Values) -> dict[str, Array]:
    ptr = np.sort(integers(r, 0, v.Z + 1, v.R + 1))
    return {"ptr": ptr, "col": integers(r, 0, v.C, v.Z), "val": normal(r, v.Z), "x": normal(r, v.C),
            "length": integers(r, 0, v.L + 1, v.B), "rows": normal(r, v.B, v.L)}  # fmt: skip


CASES += cases(
    "builtin/sparse.lf", _sparse, sparse, {"y": "f32", "ragged": "f32"},
    [Draw({"R": 7, "Z": 30, "C": 5, "B": 6, "L": 9}), Draw({"R": 1, "Z": 1, "C": 1, "B": 1, "L": 1}),
     Draw({"R": 3, "Z": 0, "C": 2, "B": 2, "L": 0}, note="nothing")],
    source=SPARSE, tol=Tol(2e-5, 2e-5),
)  # fmt: skip


# -- bits -------------------------------------------------------------------------------------------------------------

HASH = """
# Numbers from 0 to 1 without a generator: the counter, hashed (the finaliser of MurmurHash3).
size N = 100
param seed: u32 = 7
let k[i in 0..N] = u32(i) ^ seed * 0x9e3779b9
let a = (k ^ (k >> 16)) * 0x85ebca6b
let b = (a ^ (a >> 13)) * 0xc2b2ae35
let c = b ^ (b >> 16)
output c
output u = f32(c >> 8) * 5.9604645e-08
output back = bits(bits(c, f32), u32)
"""


def murmur(v: Values) -> dict[str, Any]:
    found = []
    for i in range(v.N):
        h = i ^ int(v.seed) * 0x9E3779B9 & 0xFFFFFFFF
        h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        found.append(h ^ h >> 16)
    c = np.array(found, np.int64)
    return {"c": c, "u": (c >> 8) / 2.0**24, "back": c}


CASES += cases(
    "builtin/hash.lf", lambda r, v: {}, murmur, {"c": "u32", "u": "f32", "back": "u32"},
    [Draw(sizes={"N": 33}), Draw(sizes={"N": 5}, params={"seed": 2**32 - 1})], defaults={"N": 100, "seed": 7},
    source=HASH, tol=EXACT, tols={"u": Tol(1e-6, 0)},
)  # fmt: skip

FFT = """
# A radix-2 FFT of 2**L points, decimation in time: every stage gathers from the whole array.
input re: f64[N]
input im: f64[N]
size L = 4
require N == 2 ** L, "N must be 2**L"
let place[i in 0..N] = sum(((i >> b) & 1) << (L - 1 - b) for b in 0..L)
scan s in 0..L carry (xr = re[place], xi = im[place]) {
  let low[i in 0..N] = i & ~(1 << s)
  let high[i in 0..N] = i | (1 << s)
  let angle[i in 0..N] = -pi * f64(i % (1 << s)) / f64(1 << s)
  let side[i in 0..N] = -1f64 if (i >> s) & 1 == 1 else 1
  let wr[i] = side[i] * (cos(angle[i]) * xr[high[i]] - sin(angle[i]) * xi[high[i]])
  let wi[i] = side[i] * (cos(angle[i]) * xi[high[i]] + sin(angle[i]) * xr[high[i]])
  next xr = xr[low] + wr
  next xi = xi[low] + wi
}
output xr
output xi
"""


def fft(v: Values) -> dict[str, Any]:
    z = np.fft.fft(v.re + 1j * v.im)
    return {"xr": z.real, "xi": z.imag}


CASES += cases(
    "builtin/fft.lf", lambda r, v: {"re": normal(r, v.N, dtype="f64"), "im": normal(r, v.N, dtype="f64")}, fft,
    {"xr": "f64", "xi": "f64"},
    [Draw({"N": 16}), Draw({"N": 1}, {"L": 0}), Draw({"N": 64}, {"L": 6})], defaults={"L": 4}, source=FFT,
    tol=Tol(1e-10, 1e-12),
)  # fmt: skip
