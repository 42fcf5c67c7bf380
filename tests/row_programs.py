"""Finished kernels over rows, by hand: what row kernels must cope with, one thing at a time."""

from __future__ import annotations

TEXTS: dict[str, str] = {}

TEXTS["argmax"] = """
program argmax(M, N)
buf x: f32[M, N] in
buf p: i64[M] out
buf m: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc a: f32 argmax
      acc b: f32 max
      a <- x[i, j] at {j}
      b <- x[i, j]
    p[i] = a
    m[i] = b
"""

TEXTS["triangle"] = """
program triangle(N)
buf x: f32[N, N] in
buf y: f32[N, N] out
kernel k1
  par i < N
    fold j < i + 1
      acc s: f32 sum
      s <- x[i, j]
    par k < N
      y[i, k] = x[i, k] * s if {k} <= {i} else 0.0f32
"""

TEXTS["where"] = """
program masked(M, N)
buf x: f16[M, N] in
buf keep: bool[M, N] in
buf y: f16[M, N] out
buf n: i64[M] out
kernel k1
  par i < M
    fold j < N where keep[i, j]
      acc s: f32 sum
      acc c: i64 sum
      s <- f32(x[i, j])
      c <- 1i64
    t = s / f32(c)
    par k < N
      y[i, k] = f16(f32(x[i, k]) - t if keep[i, k] else 0.0f32)
    n[i] = c
"""

TEXTS["local row"] = """
program local_row(M, N)
buf x: bf16[M, N] in
buf e: f32[M, N] local window [i:i + 1, 0:N]
buf y: bf16[M, N] out
buf h: bf16[M, N] out
kernel k1
  par i < M
    fold j < N
      acc m: bf16 max
      m <- x[i, j]
    fold k < N
      acc l: f32 sum
      e.1 = exp(f32(x[i, k]) - f32(m))
      e[i, k] = e.1
      l <- e.1
    par n < N
      h[i, n] = bf16(e[i, n] * 0.5f32)
      y[i, n] = bf16(e[i, n] / l) + h[i, n]
"""

TEXTS["own"] = """
program own(M, N)
buf x: f32[M, N] in
buf r: f16[M, N] in
buf h: f16[M, N] out
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc s: f32 sum
      h[i, j] = f16(x[i, j] + f32(r[i, j]))
      s <- f32(h[i, j])
    mu = s / f32({N})
    fold k < N
      acc q: f32 sum
      d = f32(h[i, k]) - mu
      q <- d * d
    par n < N
      y[i, n] = (f32(h[i, n]) - mu) / sqrt(q + 1.0f32)
"""

TEXTS["array"] = """
program moments(M, N)
buf x: f32[M, N] in
buf y: f32[M, 3] out
kernel k1
  par i < M
    fold j < N
      acc s: f32[3] sum
      z = x[i, j]
      par a < 3
        s[a] <- z * f32({a + 1})
    par b < 3
      y[i, b] = s[b]
"""

TEXTS["nested"] = """
program nested(M, N)
buf x: f32[M, N, 3] in
buf w: f32[3] in
buf y: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      fold c < 3
        acc d: f32 sum
        d <- x[i, j, c] * w[c]
      m <- d
    y[i] = m
"""

TEXTS["two dims"] = """
program two_dims(M, C, L)
buf x: f32[M, C, L] in
buf y: f32[M, C, L] out
kernel k1
  par i < M
    fold c < C, l < L
      acc s: f32 sum
      s <- x[i, c, l]
    par c.1 < C, l.1 < L
      y[i, c.1, l.1] = x[i, c.1, l.1] - s * f32({c.1})
"""

TEXTS["two operands"] = """
program two_operands(A, B, N)
buf x: f32[A, B, N] in
buf r: f32[A, B, N] in
buf y: f32[A, B, N] out
buf z: f32[A, B] out
kernel k1
  par a < A
    h = f32({a})
    par b in 1 .. B + 1
      fold j < N
        acc s: f32 sum
        s <- x[a, b - 1, j] * h
      fold k < N
        acc t: f32 sum
        t <- r[a, b - 1, k] * s
      par n < N
        y[a, b - 1, n] = r[a, b - 1, n] - t
      z[a, b - 1] = s
"""

TEXTS["channels"] = """
program channels(N, C, L)
buf x: f16[N, C, L] in
buf g: f32[C] in
buf y: f16[N, C, L] out
kernel k1
  par c < C
    fold n < N, l < L
      acc s: f32 sum
      acc q: f32 sum
      v = f32(x[n, c, l])
      s <- v
      q <- v * v
    m = s / f32({L*N})
    par n.1 < N, l.1 < L
      y[n.1, c, l.1] = f16((f32(x[n.1, c, l.1]) - m) * g[c] + q)
"""

TEXTS["types"] = """
program types(M, N)
buf a: i8[M, N] in
buf b: f64[M, N] in
buf c: u16[N] in
buf s: i64[M] out
buf y: f64[M, N] out
buf z: i8[M, N] out
kernel k1
  par i < M
    fold j < N
      acc t: i64 sum
      acc m: f64 min
      t <- i64(a[i, j])
      m <- b[i, j]
    s[i] = t
    par k < N
      y[i, k] = b[i, k] - m * f64(c[k])
      z[i, k] = a[i, k] + 1i8
"""

TEXTS["shifted"] = """
program shifted(M, N)
require {N} >= {2} "two"
buf x: f32[M, N] in
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N - 1
      acc s: f32 sum
      s <- x[i, j + 1] - x[i, j]
    par k < N
      y[i, k] = x[i, k] - x[i, k - 1 ~edge] + s + (x[i, k + 1] if {k + 1} < {N} else 0.0f32)
"""

TEXTS["offset"] = """
program offset(M, N)
buf x: bf16[M, 2*N + 8] in
buf y: bf16[M, N] out
kernel k1
  par i < M
    fold j < N
      acc m: bf16 max
      m <- maximum(x[i, j], x[i, N + j + 8])
    par k < N
      y[i, k] = x[i, k + 8] - m
"""

TEXTS["reversed"] = """
program reversed_row(M, N)
buf x: f32[M, N] in
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc s: f32 sum
      s <- x[i, N - j - 1] * f32({j})
    par k < N
      y[i, N - k - 1] = x[i, k] + s
"""

TEXTS["gather"] = """
program gather(M, N)
buf x: f32[M, N] in
buf t: i64[N] in range 0 .. N - 1
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc s: f32 sum
      s <- x[i, t[j]]
    par k < N
      y[i, k] = s - x[i, t[k]]
"""

TEXTS["any and bits"] = """
program bits(M, N)
buf x: i32[M, N] in
buf a: bool[M] out
buf b: bool[M] out
buf c: i32[M] out
kernel k1
  par i < M
    fold j < N
      acc any: bool any
      acc all: bool all
      acc xor: i32 bitxor
      any <- x[i, j] > 1i32
      all <- x[i, j] < 3i32
      xor <- x[i, j]
    a[i] = any
    b[i] = all
    c[i] = xor
"""

TEXTS["tall"] = """
program tall(A, B, N)
buf x: f32[A, B, N] in
buf y: f32[B, A] out
kernel k1
  par a < A
    f = f32({a})
    par b < B
      fold j < N
        acc s: f32 sum
        s <- x[a, b, j]
      y[b, a] = s + f
"""

TEXTS["dot"] = """
program dot(M, K)
buf a: f16[M, K] in
buf v: f16[K] in
buf y: f16[M] out
kernel k1
  par i < M
    fold k < K
      acc d: f32 sum
      d <- f32(a[i, k]) * f32(v[k])
    y[i] = f16(maximum(d, 0.0f32))
"""

TEXTS["lengths"] = """
program lengths(M, N, K)
buf x: f32[M, N] in
buf z: f32[M, K] in
buf y: f32[M, K] out
kernel k1
  par i < M
    fold j < N
      acc s: f32 sum
      s <- x[i, j]
    par k < K
      y[i, k] = z[i, k] * s
"""

TEXTS["other order"] = """
program other_order(M, N)
buf x: f32[M, N] in
buf y: f32[N, M] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      m <- x[i, j]
    par k < N
      y[k, i] = x[i, k] - m
"""

TEXTS["two softmaxes"] = """
program two_softmaxes(M, N)
buf x: f16[M, N] in
buf o: f16[M, N] out
buf e: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc max: f32 max
      acc sum: f32 sum repair self * exp(max.old - max.new) if max.old != max.new else self
      z.1 = f32(x[i, j])
      max <- z.1
      p.1 = exp(z.1 - (0.0f32 if max == -inf:f32 else max))
      sum <- p.1
    sum.2 = nan:f32 if max == -inf:f32 else sum
    par j.2 < N
      z.3 = f32(x[i, j.2])
      e.2 = exp(z.3 - max)
      o[i, j.2] = f16(e.2 / sum.2)
      e[i, j.2] = exp(z.3 - max)
"""

# Every maximum is below zero, every minimum above: nothing may start at zero.
TEXTS["extremes"] = """
program extremes(M, N)
buf x: f32[M, N] in
buf a: f32[M] out
buf b: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      acc k: f32 min
      v = abs(x[i, j])
      m <- -1.0f32 - v
      k <- v + 1.0f32
    a[i] = m
    b[i] = k
"""
