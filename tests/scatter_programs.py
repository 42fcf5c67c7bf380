"""Kernels that reduce into arrays at computed subscripts."""

from __future__ import annotations

TEXTS: dict[str, str] = {}

TEXTS["segments"] = """
program seg(N, K)
buf key: i32[N] in range 0 .. K - 1
buf x: f32[N] in
buf s: f32[K] out
buf t: f32 out
buf m: f32[K] out
kernel k1
  fold i < N
    acc sum: f32[K] sum
    acc all: f32 sum
    acc most: f32[K] max
    k = i64(key[i])
    sum[{k}] <- x[i]
    all <- x[i]
    most[{k}] <- x[i]
  par j < K
    s[j] = sum[j]
  t[] = all
  par j < K
    m[j] = most[j]
"""

TEXTS["other monoids"] = """
program seg(N, K)
buf key: i32[N] in range 0 .. K - 1
buf x: f32[N] in
buf p: i64[K] out
buf c: i64[K] out
buf any: bool[K] out
buf lo: i8[K] out
kernel k1
  fold i < N
    acc best: f32[K] argmax
    acc count: i64[K] sum
    acc pos: bool[K] any
    acc least: i8[K] min
    k = i64(key[i])
    best[{k}] <- x[i] at {i}
    count[{k}] <- 1i64
    pos[{k}] <- x[i] > 1.0f32
    least[{k}] <- i8(x[i])
  par j < K
    p[j] = best[j] if count[j] > 0i64 else -1i64
    c[j] = count[j]
    any[j] = pos[j]
    lo[j] = least[j]
"""

TEXTS["guarded"] = """
program seg(M, N, K)
buf key: i32[M, N] in range 0 .. K - 1
buf x: u8[M, N] in
buf c: u8[K] out
buf d: i64[K] out
buf e: i32 out
kernel k1
  fold i < M, j < N where key[i, j] != 2i32
    acc count: u8[K] sum
    acc total: i64[K] sum
    acc n: i32 sum
    k = i64(key[i, j])
    count[{k}] <- x[i, j]
    total[{k + 1} ~checked] <- i64(x[i, j]) * {i}
    n <- 1i32
  par j < K
    c[j] = count[j]
    d[j] = total[j]
  e[] = n
"""
