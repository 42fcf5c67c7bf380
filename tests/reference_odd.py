"""Programs with unusual structure, for comparing the two reference interpreters: each names what it is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loopfuse.ir import Program
from loopfuse.reader import parse_program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A program with its inputs, and what independent NumPy says of its outputs."""

    name: str
    program: Program
    sizes: dict[str, int]
    inputs: dict[str, Array]
    expected: dict[str, Array] = field(default_factory=dict)
    rtol: float = 1e-5


RNG = np.random.default_rng(3)
X = RNG.standard_normal((13, 17)).astype(np.float32)
HOLES = np.where(RNG.random((13, 17)) < 0.1, np.nan, X).astype(np.float32)
PTR = np.array([0, 3, 3, 10, 11, 30], dtype=np.int32)
NM = {"N": 13, "M": 17}


def odd(name: str, text: str, sizes: dict[str, int], **inputs: Array) -> Case:
    """A case without an expected result."""
    return Case(name, parse_program(text), sizes, inputs)


def normal(*shape: int) -> Array:
    """Random f32 numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


ODD = [
    odd(
        "ragged sums with a hull",
        """program t(N, M)
buf x: f32[N, M] in
buf y: f32[N] out
buf z: f32 out
kernel a
  par i < N
    fold j in i + 1 .. M
      acc s: f32 sum
      s <- x[i, j]
    y[i] = s
kernel b
  fold i < N, j in i .. min(M, i + 5)
    acc s: f32 sum
    s <- x[i, j] * x[i, 0]
  z[] = s
""",
        NM,
        x=X,
    ),
    odd(
        "bounds from data, alone, in an inner loop, and beside others",
        """program t(R, N)
buf ptr: i32[R + 1] in
buf v: f32[N] in
buf y: f32[R] out
buf z: f32 out
buf w: f32 out
buf a: i64[R] out
kernel k1
  par i < R
    lo = i64(ptr[i])
    hi = i64(ptr[i + 1])
    fold k in lo .. hi
      acc s: f32 sum
      s <- v[k]
    y[i] = s
    fold k in lo .. hi step 2
      acc m: f32 argmax
      m <- v[k] at {k}
    a[i] = m
kernel k2
  fold i < R
    acc s: f32 sum
    lo = i64(ptr[i])
    hi = i64(ptr[i + 1])
    par k in lo .. hi
      s <- v[k]
  z[] = s
kernel k3
  fold i < R
    acc s: f32 sum
    acc t: f32[4] sum
    lo = i64(ptr[i])
    hi = i64(ptr[i + 1])
    par k in lo .. hi, c < 3
      s <- v[k] * f32({c})
      t[c + 1] <- v[k]
  w[] = s + t[1] + t[3]
""",
        {"R": 5, "N": 40},
        ptr=PTR,
        v=normal(40),
    ),
    odd(
        "absorptions inside a seq loop",
        """program t(N, M)
buf x: f32[N, M] in
buf h: f32[N, M + 1] local window [i:i+1, t:t+2]
buf z: f32 out
buf o: f32[M] out
kernel k
  fold i < N
    acc s: f32 sum
    acc p: f32[M] sum
    h[i, 0] = 0.0f32
    seq t < M
      g = h[i, t] * 0.5f32 + x[i, t]
      h[i, t + 1] = g
      s <- g
      p[t] <- g * 3.0f32
  z[] = s
  par t < M
    o[t] = p[t]
""",
        NM,
        x=X,
    ),
    odd(
        "a prefix loop with an array and nested absorptions",
        """program t(N, M)
buf e: i64[N] in
buf x: f32[N, M] in
buf pos: f32[N] out
buf y: f32[N] out
buf c: f32[5] out
kernel k
  prefix n < N
    acc c0: f32[5] sum
    acc s: f32 sum
    acc mx: f32 argmax
    c0[e[n]] <- x[n, 0]
    pos[n] = c0[e[n]]
    par m < M
      s <- x[n, m]
      mx <- x[n, m] at {n*M + m}
    y[n] = s + f32(mx)
  par q < 5
    c[q] = c0[q]
""",
        NM,
        x=X,
        e=RNG.integers(0, 5, 13),
    ),
    odd(
        "running sums and positions in every row",
        """program t(N, M)
buf x: f32[N, M] in
buf y: f32[N, M] out
buf a: i64[N, M] out
par i < N
  prefix j < M
    acc s: f32 sum
    acc g: f32 argmin
    s <- x[i, j]
    g <- x[i, j] at {j}
    y[i, j] = s
    a[i, j] = g
""",
        NM,
        x=HOLES,
    ),
    odd(
        "accumulators that read others",
        """program t(N, M)
buf x: f32[N, M] in
buf y: f32[N] out
buf v: f32[N] out
buf q: f32[M] out
buf h: f32[N, M] out
kernel k
  par i < N
    fold j < M
      acc n: i64 sum
      acc s: f32 sum
      acc q0: f32 sum repair self
      h.1 = x[i, j] * 2.0f32
      h[i, j] = h.1
      n <- 1i64
      s <- h.1
      mu = s / f32(n)
      d = h.1 - mu
      q0 <- d * d
    y[i] = s
    v[i] = q0
kernel k2
  par j < M
    fold i < N
      acc m: f32 max
      acc l: f32 sum repair self
      fold jj < M
        acc w: f32 sum
        w <- x[i, jj] - m
      m <- x[i, j]
      l <- w
    q[j] = l
""",
        NM,
        x=X,
    ),
    odd(
        "computed targets, checked, filtered, and overlapping ones",
        """program t(N, M)
buf x: f32[N, M] in
buf k: i32[N, M] in
buf y: f32[7] out
buf z: f32[N, 7] out
buf m: i64[7] out
buf c: f32[31] out
kernel a
  fold i < N, j < M
    acc s: f32[7] sum
    acc g: f32[7] argmax
    s[i64(k[i, j]) ~checked] <- x[i, j]
    s[{i} % 7i64] <- x[i, 0] * 0.1f32
    g[i64(k[i, j]) ~checked] <- x[i, j] at {i*M + j}
  par q < 7
    y[q] = s[q]
    m[q] = g[q]
kernel b
  par i < N
    fold j < M where x[i, j] > 0.0f32
      acc s: f32[7] prod
      s[i64(k[i, j]) ~checked] <- x[i, j]
    par q < 7
      z[i, q] = s[q]
kernel c
  fold i < N, j < M
    acc s: f32[N + M + 1] sum
    s[i + j] <- x[i, j]
  par q < N + M + 1
    c[q] = s[q]
""",
        NM,
        x=X,
        k=RNG.integers(-2, 9, (13, 17)).astype(np.int32),
    ),
    odd(
        "overlapping windows",
        """program t(H, W, T, U)
size T plan >= 1
size U plan >= 1
buf img: f32[H, W] in
buf t: f32[H, W] local window [max(0, y0 - 1):min(H, y0 + T + 1), x0:min(W, x0 + U)]
buf o: f32[H, W] out
kernel k
  par y0 < H step T, x0 < W step U
    par y in max(0, y0 - 1) .. min(H, y0 + T + 1), x in x0 .. min(W, x0 + U)
      t[y, x] = img[y, x - 1 ~edge] + img[y, x] + img[y, x + 1 ~edge]
    par y in y0 .. min(H, y0 + T), x in x0 .. min(W, x0 + U)
      o[y, x] = t[y - 1 ~edge, x] + t[y, x] + t[y + 1 ~edge, x]
""",
        {"H": 13, "W": 17, "T": 4, "U": 5},
        img=X,
    ),
    odd(
        "a row that lives on chip",
        """program t(N, M)
buf x: f32[N, M] in
buf e: f32[N, M] local window [i:i+1, 0:M]
buf y: f32[N, M] out
kernel k
  par i < N
    fold j < M
      acc l: f32 sum
      e.1 = exp(x[i, j])
      e[i, j] = e.1
      l <- e.1
    par j < M
      y[i, j] = e[i, j] / l
""",
        NM,
        x=X,
    ),
    odd(
        "elements found by index, reversed, ragged, strided",
        """program t(N, M)
buf x: f32[N, M] in
buf y: f32[M] out
buf z: f32[M, N] out
buf w: f32[N, M] out
kernel a
  fold n < N, k < M
    acc s: f32[M] sum
    s[M - 1 - k] <- x[n, k]
  par k < M
    y[k] = s[k]
kernel b
  fold n < N
    acc s: f32[M, N] sum
    par k < M, q in n .. N
      s[k, q] <- x[n, k] * x[q, k]
  par k < M, q < N
    z[k, q] = s[k, q]
kernel c
  par q < N
    fold n < N step 2
      acc s: f32[M] max
      par k in 3 .. M step 3
        s[k] <- x[n, k] * x[q, k]
    par k < M
      w[q, k] = s[k]
""",
        NM,
        x=X,
    ),
    odd(
        "carries of two steps",
        """program lstm(T, B, U)
buf gx: f32[T, B, 2*U] in
buf wh: f32[U, 2*U] in
buf h: f32[T + 1, B, U] local window [t:t + 2, 0:B, 0:U]
buf c: f32[T + 1, B, U] local window [t:t + 2, 0:B, 0:U]
buf hs: f32[T, B, U] out
buf hl: f32[B, U] out
kernel k0
  par n < B, u < U
    h[0, n, u] = 0.0f32
    c[0, n, u] = 1.0f32
  seq t < T
    par n < B, u < U
      fold k < U
        acc a0: f32 sum
        acc a1: f32 sum
        hk = h[t, n, k]
        a0 <- hk * wh[k, u]
        a1 <- hk * wh[k, U + u]
      c.1 = sigmoid(gx[t, n, u] + a0) * c[t, n, u] + tanh(gx[t, n, U + u] + a1)
      c[t + 1, n, u] = c.1
      h[t + 1, n, u] = tanh(c.1)
      hs[t, n, u] = tanh(c.1)
kernel k1
  par n < B, u < U
    hl[n, u] = h[T, n, u]
""",
        {"T": 6, "B": 3, "U": 4},
        gx=normal(6, 3, 8),
        wh=normal(4, 8),
    ),
    odd(
        "a seq loop in a seq loop",
        """program dtw(N, M)
buf a: f32[N] in
buf b: f32[M] in
buf p: f32[N + 1, M] local window [i:i + 2, 0:M]
buf l: f32[N, M + 1] local window [i:i+1, j:j + 2]
buf out: f32[M] out
kernel k
  par j < M
    p[0, j] = inf:f32
  seq i < N
    l[i, 0] = inf:f32
    seq j < M
      up = p[i, j]
      diag = p[i, j - 1] if {j} > {0} else (0.0f32 if {i} == {0} else inf:f32)
      c = abs(a[i] - b[j]) + minimum(minimum(up, l[i, j]), diag)
      l[i, j + 1] = c
      p[i + 1, j] = c
  par j < M
    out[j] = p[N, j]
""",
        {"N": 7, "M": 9},
        a=normal(7),
        b=normal(9),
    ),
    odd(
        "seq bounds that vary over rows",
        """program t(N, M)
buf x: f32[N, M] in
buf h: f32[N, M + 1]
buf y: f32[N] out
kernel k
  par i < N
    h[i, 0] = 0.0f32
    seq t in max(0, i - 3) .. min(M, i + 2)
      where_ok = x[i, t]
      h[i, t + 1] = (h[i, t] if {t} > {i - 3} and {t} > 0i64 else 0.0f32) + where_ok
    y[i] = h[i, minimum({M}, {i + 2})]
""",
        NM,
        x=X,
    ),
]
