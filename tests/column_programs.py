"""Kernels that are reductions over everything, along rows, and of columns, in all their forms."""

from __future__ import annotations

TEXTS: dict[str, str] = {}

TEXTS["many"] = """
program many(N)
buf x: f16[N] in
buf y: i8[N] in
buf a: i64 out
buf b: f32 out
buf c: i64 out
buf d: bool out
buf e: f32 out
buf z: f32[N] out
kernel k1
  fold i < N
    acc m: f16 argmax
    acc s: f32 sum
    acc t: i64 sum
    acc any: bool any
    acc p: f16 min
    v = x[i]
    m <- v at {i}
    s <- f32(v) * f32(v)
    t <- i64(y[i])
    any <- v > 2.0f16
    p <- v
    z[i] = f32(v) + 1.0f32
  a[] = m
  k = s * 2.0f32
  b[] = k + f32(p)
  c[] = t
  d[] = any
  e[] = k
"""

TEXTS["two dims"] = """
program two(M, N)
buf x: f32[M, N] in
buf y: f32[N] in
buf a: f32 out
buf q: i64 out
kernel k1
  fold i < M, j < N
    acc s: f32 sum
    acc m: f32 argmin
    s <- x[i, j] * y[j]
    m <- x[i, j] at {i*N + j}
  a[] = s
  q[] = m
"""

TEXTS["variance all"] = """
program var(N)
buf x: f32[N] in
buf v: f32 out
buf mu: f32 out
kernel k1
  c.1 = x[0] if {N} > {0} else 0.0f32
  fold i < N
    acc s: f32 sum
    acc n: i64 sum
    acc q: f32 sum repair self + f32(n.old) * ((s.old / f32(n.old) - s.new / f32(n.new)) * (s.old / f32(n.old) - s.new / f32(n.new))) if n.old != 0i64 else self
    d = x[i] - c.1
    s <- d
    n <- 1i64
    m = s / f32(n)
    e = d - m
    q <- e * e
  v[] = q / f32({N})
  mu[] = s / f32({N}) + c.1
"""

TEXTS["variance rows"] = """
program var(M, N)
buf x: f16[M, N] in
buf v: f32[M] out
buf mu: f32[M] out
kernel k1
  par r < M
    c.1 = f32(x[r, 0]) if {N} > {0} else 0.0f32
    fold i < N
      acc s: f32 sum
      acc n: i64 sum
      acc q: f32 sum repair self + f32(n.old) * ((s.old / f32(n.old) - s.new / f32(n.new)) * (s.old / f32(n.old) - s.new / f32(n.new))) if n.old != 0i64 else self
      d = f32(x[r, i]) - c.1
      s <- d
      n <- 1i64
      m = s / f32(n)
      e = d - m
      q <- e * e
    v[r] = q / f32({N})
    mu[r] = s / f32({N}) + c.1
"""

TEXTS["variance cols"] = """
program var(M, N)
buf x: f32[M, N] in
buf v: f32[N] out
buf mu: f32[N] out
kernel k1
  par r < N
    c.1 = x[0, r] if {M} > {0} else 0.0f32
    fold i < M
      acc s: f32 sum
      acc n: i64 sum
      acc q: f32 sum repair self + f32(n.old) * ((s.old / f32(n.old) - s.new / f32(n.new)) * (s.old / f32(n.old) - s.new / f32(n.new))) if n.old != 0i64 else self
      d = x[i, r] - c.1
      s <- d
      n <- 1i64
      m = s / f32(n)
      e = d - m
      q <- e * e
    v[r] = q / f32({M})
    mu[r] = s / f32({M}) + c.1
"""

TEXTS["logsumexp cols"] = """
program lse(B, M, N)
buf x: bf16[B, M, N] in
buf y: f32[B, N] out
buf z: f32[B, M, N] out
buf o: i64[B, N] out
kernel k1
  par b < B, r < N
    fold i < M
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      acc am: bf16 argmax
      s = f32(x[b, i, r])
      z[b, i, r] = s * 2.0f32
      m <- s
      l <- exp(s - (0.0f32 if m == -inf:f32 else m))
      am <- x[b, i, r] at {i}
    y[b, r] = m + log(l)
    o[b, r] = am
"""

TEXTS["gemv"] = """
program gemv(K, N)
buf a: f16[K] in
buf w: f16[K, N] in
buf c: f16[N] in
buf o: f16[N] out
kernel k1
  par j < N
    fold k < K
      acc dot: f32 sum
      dot <- f32(a[k]) * f32(w[k, j])
    o[j] = f16(maximum(dot + f32(c[j]), 0.0f32))
"""

TEXTS["rank3"] = """
program r3(A, B, C)
buf x: f32[A, B, C] in
buf y: i32[A, C] in
buf s: f32[B] out
buf t: f32[C] out
buf u: i64[C] out
kernel k1
  par b < B
    fold a < A, c < C
      acc p: f32 sum
      p <- x[a, b, c]
    s[b] = p
kernel k2
  par c < C
    fold a < A, b < B
      acc p: f32 max
      acc q: i64 sum
      p <- x[a, b, c]
      q <- i64(y[a, c])
    t[c] = p
    u[c] = q
"""

TEXTS["triangle"] = """
program tri(M, N)
buf x: f32[M, N] in
buf t: f32[N] out
kernel k1
  par c < N
    fold a in max(0, c - 3) .. min(M, c + 40)
      acc p: f32 sum
      p <- x[a, c]
    t[c] = p
"""

TEXTS["edges"] = """
program edges(M, N)
buf x: f32[M, N] in
buf t: f32[N] out
buf h: f32[M, N] out
kernel k1
  par c < N
    fold a < M
      acc p: f32 sum
      acc g: f32 max
      v = x[a - 1 ~edge, c] + x[a, c] + x[a + 1 ~constant 0.0f32, c]
      h[a, c] = v
      p <- v
      g <- v
    t[c] = p - g
"""

TEXTS["nested"] = """
program nested(M, N)
buf x: f32[M, N] in
buf w: f32[7] in
buf t: f32[N] out
kernel k1
  par c < N
    fold a < M
      acc p: f32 sum
      fold k < 7
        acc q: f32 sum
        q <- x[a, c] * w[k]
      p <- q * q
    t[c] = p
"""

TEXTS["two folds"] = """
program folds(M, K, N)
buf x: f32[M, N] in
buf y: f64[K, N] in
buf s: f32[N] out
buf t: f64[N] out
kernel k1
  par c < N
    fold a < M
      acc p: f32 sum
      p <- x[a, c]
    fold b < K
      acc q: f64 sum
      q <- y[b, c]
    s[c] = p
    t[c] = q + f64(p)
"""

TEXTS["flat"] = """
program flat(M, N)
buf x: f32[M, N] in
buf y: f32[M, N] in
buf z: f32[M, N] out
buf a: f32 out
buf q: i64 out
kernel k1
  fold i < M, j < N
    acc s: f32 sum
    acc m: f32 argmin
    v = x[i, j] * y[i, j]
    z[i, j] = v
    s <- v
    m <- x[i, j] at {i*N + j}
  a[] = s
  q[] = m
"""

TEXTS["cols"] = """
program cols(M, N, K)
buf x: f32[M, N, K] in
buf z: f32[N, K] out
kernel k1
  par j < N, k < K
    fold i < M
      acc s: f32 sum
      s <- x[i, j, k]
    z[j, k] = s
"""

TEXTS["mid"] = """
program mid(A, M, N, K)
buf x: f16[A, M, N, K] in
buf z: f32[N, K] out
buf n: f32[N, K] out
kernel k1
  par j < N, k < K
    fold a < A, i < M
      acc s: f32 sum
      s <- f32(x[a, i, j, k])
    z[j, k] = s
    n[j, k] = s * f32({k})
"""

TEXTS["where"] = """
program masked(M, N)
buf x: f32[M, N] in
buf a: f32 out
buf n: i64 out
kernel k1
  fold i < M, j < min(N, i + 1) where x[i, j] > 0.0f32
    acc s: f32 sum
    acc c: i64 sum
    s <- x[i, j]
    c <- 1i64
  a[] = s
  n[] = c
"""

TEXTS["softmax cols"] = """
program softmax(M, N)
buf x: f32[M, N] in
buf y: f32[M, N] out
kernel k1
  par j < N
    fold i < M
      acc m: f32 max
      m <- x[i, j]
    fold i < M
      acc l: f32 sum
      l <- exp(x[i, j] - m)
    k = 1.0f32 / l
    par i < M
      y[i, j] = exp(x[i, j] - m) * k
"""

TEXTS["online softmax cols"] = """
program softmax(B, M, N)
buf x: f16[B, M, N] in
buf y: f16[B, M, N] out
buf z: i64[B, N] out
kernel k1
  par b < B, j < N
    fold i < M
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      acc n: i64 sum
      s = f32(x[b, i, j])
      m <- s
      l <- exp(s - (0.0f32 if m == -inf:f32 else m))
      n <- 1i64
    l.1 = nan:f32 if m == -inf:f32 else l
    z[b, j] = n
    par i < M
      y[b, i, j] = f16(exp(f32(x[b, i, j]) - m) / l.1)
"""

TEXTS["kept"] = """
program kept(B, M, N)
buf x: f32[B, M, N] in
buf e: f32[B, M, N] local window [b:b + 1, 0:M, j:j + 1]
buf h: f32[B, M, N] out
buf y: f32[B, M, N] out
buf p: i64[B, N] out
kernel k1
  par b < B
    t = 2.0f32
    par j < N
      fold i < M
        acc m: f32 max
        acc p.1: f32 argmax
        m <- x[b, i, j]
        p.1 <- x[b, i, j] at {i}
      fold i < M
        acc l: f32 sum
        e.1 = exp(x[b, i, j] - m)
        e[b, i, j] = e.1
        h[b, i, j] = e.1 * t
        l <- e.1
      p[b, j] = p.1
      par i < M
        y[b, i, j] = e[b, M - 1 - i, j] / l + h[b, i, j]
"""

TEXTS["dependent"] = """
program dep(M, K, N)
buf x: f32[M, N] in
buf w: f32[K, N] in
buf q: f32[N] out
kernel k1
  par j < N
    g = w[0, j] if {K} > {0} else 0.0f32
    fold i < M
      acc s: f32 sum
      s <- x[i, j] - g
    mu = s / f32({M})
    fold k < K
      acc t: f32 sum
      t <- (w[k, j] - mu) * (w[k, j] - mu)
    q[j] = t + mu
"""

TEXTS["triangles"] = """
program tri(M, N)
buf x: f32[M, N] in
buf a: f32 out
buf n: i64 out
buf q: i64 out
buf w: f32 out
kernel k1
  fold i < M, j < min(N, i + 1) where x[i, j] > 0.0f32
    acc s: f32 sum
    acc c: i64 sum
    acc p: f32 argmax
    s <- x[i, j]
    c <- 1i64
    p <- x[i, j] at {j}
  fold i < M, k < 3, j in max(0, i - 5*k) .. N
    acc t: f32 sum
    t <- x[i, j]
  a[] = s
  n[] = c
  q[] = p
  w[] = t
"""

# Every maximum is below zero, every minimum above: nothing may start at zero.
TEXTS["extremes"] = """
program extremes(M, N)
buf x: f32[M, N] in
buf a: f32[N] out
buf b: f32[N] out
kernel k1
  par j < N
    fold i < M
      acc m: f32 max
      acc k: f32 min
      v = abs(x[i, j])
      m <- -1.0f32 - v
      k <- v + 1.0f32
    a[j] = m
    b[j] = k
"""

# It begins in the middle of a vector, and positions fall.
TEXTS["from one"] = """
program one(N)
buf x: f32[N] in
buf y: i8[N] in
buf a: f32 out
buf q: i64 out
kernel k1
  fold i in 1 .. N
    acc s: f32 sum
    acc m: i8 argmax
    s <- x[i]
    m <- i8(y[i] > 0i8) at {N - i}
  a[] = s
  q[] = m
"""

# An element is read in the iteration that wrote it.
TEXTS["read back"] = """
program back(N)
buf x: f32[N] in
buf z: f32[N] out
buf a: f32 out
kernel k1
  fold i < N
    acc s: f32 sum
    z[i] = x[i] * 2.0f32
    s <- z[i] * z[i]
  a[] = s
"""

TEXTS["filter of two axes"] = """
program filtered(K, N)
buf s: f32[K] in
buf o: f32[N] in
buf r: f32[K] in
buf u: f32[K, N] out
kernel k1
  par i < K, j < N
    fold k < K where o[j] < r[i]
      acc t: f32 sum
      t <- s[k]
    u[i, j] = t
"""
