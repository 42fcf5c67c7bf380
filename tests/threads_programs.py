"""Finished contractions, by hand: what kernels on the ordinary units must cope with, one thing at a time."""

from __future__ import annotations

TEXTS: dict[str, str] = {}

TEXTS["matmul"] = """
program matmul(M, N, K)
buf a: f32[M, K] in
buf b: f32[K, N] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- a[i, k] * b[k, j]
    o[i, j] = s
"""

TEXTS["turned"] = """
program turned(M, N, K)
buf a: f32[K, M] in
buf b: f32[N, K] in
buf o: f32[N, M] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- a[k, i] * b[j, k]
    o[j, i] = s
"""

TEXTS["linear gelu"] = """
program linear(M, N, K)
buf a: f32[M, K] in
buf b: f32[K, N] in
buf c: f32[N] in
buf r: f32[M] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- a[i, k] * b[k, j]
    z = s + c[j]
    y = 0.5f32 * z * (1.0f32 + erf(z * 0.70710677f32))
    o[i, j] = y * r[i]
"""

TEXTS["einsum"] = """
program einsum(B, M, N, K, L)
buf a: f32[B, K, M, L] in
buf b: f32[L, B, N, K] in
buf o: f32[M, B, N] out
kernel k1
  par n < B, i < M, j < N
    fold k < K, l < L
      acc s: f32 sum
      s <- a[n, k, i, l] * b[l, n, j, k]
    o[i, n, j] = s
"""

TEXTS["batches"] = """
program batches(B, H, M, N, K)
buf a: f32[B, M, H, K] in
buf b: f32[B, N, H, K] in
buf c: f32[B, H] in
buf o: f32[B, H, M, N] out
kernel k1
  par n < B, h < H
    t = c[n, h] * 2.0f32
    par i < M, j < N
      fold k < K
        acc s: f32 sum
        s <- a[n, i, h, k] * b[n, j, h, k]
      o[n, h, i, j] = s * t
"""

TEXTS["views"] = """
program views(M, N, K)
buf a: f32[2*M + 3, K + 5] in
buf b: f32[3*K + 1, N + 2] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- a[2*i + 1, K - k + 3] * b[3*k + 1, N - j]
    o[i, j] = s
"""

TEXTS["aligned views"] = """
program views(M, N, K)
buf a: f32[M, 2*K] in
buf b: f32[2*N, K] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- a[i, k + K] * b[2*j, k]
    o[i, j] = s
"""

TEXTS["doubles"] = """
program doubles(M, N, K)
buf a: f64[M, K] in
buf b: f64[K, N] in
buf o: f64[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f64 sum
      s <- a[i, k] * b[k, j]
    o[i, j] = s - 1.0f64
"""

TEXTS["integers"] = """
program integers(M, N, K)
buf a: i32[M, K] in
buf b: i32[K, N] in
buf u: u32[M, K] in
buf o: i32[M, N] out
buf p: i64[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: i32 sum
      acc t: i64 sum
      s <- a[i, k] * b[k, j]
      t <- i64(u[i, k]) * i64(b[k, j])
    o[i, j] = s
    p[i, j] = t
"""

TEXTS["bytes"] = """
program bytes(M, N, K)
buf a: i8[M, K] in
buf b: i8[N, K] in
buf o: i32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: i32 sum
      s <- i32(a[i, k]) * i32(b[j, k])
    o[i, j] = s
"""

TEXTS["scaled bytes"] = """
program scaled(M, N, K)
buf a: f32[M, K] in
buf w: i8[K, N] in
buf g: f32[N] in
buf z: f32[K] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      q = f32(w[k, j]) * g[j]
      s <- a[i, k] * (q - z[k])
    o[i, j] = s
"""

TEXTS["prologue"] = """
program prologue(M, N, K)
buf a: bf16[M, K] in
buf m: f32[M] in
buf g: f32[K] in
buf b: f32[N, K] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      x = exp(f32(a[i, k]) - m[i]) * g[k]
      s <- x * b[j, k]
    o[i, j] = s
"""

TEXTS["masks"] = """
program masks(M, N, K)
buf a: f32[M, K] in
buf b: f32[K, N] in
buf keep: bool[K] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      x = a[i, k] if {k} <= {i} else 0.0f32
      y = b[k, j] if keep[k] else 0.25f32
      s <- x * y
    o[i, j] = s
"""

TEXTS["halves"] = """
program halves(M, N, K)
buf a: bf16[M, K] in
buf b: f16[K, N] in
buf o: f16[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- f32(a[i, k]) * f32(b[k, j])
    o[i, j] = f16(s)
"""

TEXTS["dual"] = """
program dual(M, N, K)
buf a: f32[M, K] in
buf b: f32[K, N] in
buf c: f32[N, K] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      acc t: f32 sum
      s <- a[i, k] * b[k, j]
      t <- a[i, k] * c[j, k]
    o[i, j] = s / (1.0f32 + exp(-s)) * t
"""

TEXTS["column sums"] = """
program sums(M, N, K)
buf a: f32[M, K] in
buf b: f32[K, N] in
buf c: f32[N] in
buf o: f32[M, N] out
buf p: f32[N] out
kernel k1
  par j < N
    fold i < M
      acc p.1: f32 sum
      fold k < K
        acc s: f32 sum
        s <- a[i, k] * b[k, j]
      z = s + c[j]
      o[i, j] = z
      p.1 <- z
    p[j] = p.1 * c[j]
"""

TEXTS["row best"] = """
program best(B, M, N, K)
buf a: f32[B, M, K] in
buf b: f32[B, N, K] in
buf r: f32[M] in
buf p: f32[B, M] out
buf q: i64[B, M] out
kernel k1
  par n < B, i < M
    scale = r[i]
    fold j < N
      acc top: f32 max
      acc at: f32 argmax
      fold k < K
        acc s: f32 sum
        s <- a[n, i, k] * b[n, j, k]
      z = s * scale
      top <- z
      at <- z at {j}
    p[n, i] = top + scale
    q[n, i] = at
"""

TEXTS["factors"] = """
program factors(M, N, K)
buf a: bf16[M, K] in
buf b: f32[K, N] in
buf g: f32[K] in
buf h: f32[M] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      t = h[i]
      u = f32(a[i, k])
      s <- u * g[k] * b[k, j] * t
    o[i, j] = s
"""

TEXTS["convolution"] = """
program convolution(B, N, C, H, W)
buf x: f32[B, C, H, W] in
buf w: f32[N, C, 3, 3] in
buf g: f32[N] in
buf y: f32[B, N, H, W] out
kernel k1
  par n < B, o < N, i < H, j < W
    fold c < C, r < 3, s < 3
      acc t: f32 sum
      t <- x[n, c, i + r - 1 ~constant 0.0f32, j + s - 1 ~constant 0.0f32] * w[o, c, r, s]
    y[n, o, i, j] = maximum(t * g[o] + x[n, 0, i, j], 0.0f32)
"""

TEXTS["heads"] = """
program heads(B, T, M)
require {M % 4} == {0}
buf o: f16[B, 4, T, M // 4] in
buf w: f16[M, M] in
buf y: f16[B, T, M] out
kernel k1
  par i < B, j < T, k < M
    fold l < M
      acc s: f32 sum
      s <- f32(o[i, l // (M // 4), j, -(M // 4)*(l // (M // 4)) + l]) * f32(w[l, k])
    y[i, j, k] = f16(s)
"""

TEXTS["gathered"] = """
program gathered(M, N, K)
buf a: f32[M, K] in
buf e: f32[N, K] in
buf at: i64[N] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc s: f32 sum
      s <- a[i, k] * e[at[j] ~edge, k]
    o[i, j] = s
"""
