"""Finished kernels written by hand, as the fused forms of loop-ir.md section 2 and its relatives stand."""

from __future__ import annotations

from loopfuse.ir import Program
from loopfuse.reader import parse_program

TEXTS: dict[str, str] = {}

TEXTS["chain"] = """
program chain(N)
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par i < N
    a = x[i] * 1.5f32 + 0.25f32
    b = tanh(a)
    y[i] = b * a
"""

TEXTS["softmax"] = """
program softmax(M, N)
buf x: f32[M, N] in
buf e: f32[M, N] local window [i:i + 1, 0:N]
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      m <- x[i, j]
    fold j < N
      acc l: f32 sum
      e.1 = exp(x[i, j] - m)
      e[i, j] = e.1
      l <- e.1
    par j < N
      y[i, j] = e[i, j] / l
"""

TEXTS["softmax online"] = """
program softmax(M, N)
buf x: f32[M, N] in
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      s = x[i, j]
      m <- s
      l <- exp(s - (0.0f32 if m == -inf:f32 else m))
    par j < N
      y[i, j] = exp(x[i, j] - m) / l
"""

TEXTS["layernorm"] = """
program layernorm(M, D)
buf eps: f32 param
buf x: f32[M, D] in
buf r: f32[M, D] in
buf g: f32[D] in
buf b: f32[D] in
buf h: f32[M, D] out
buf y: f32[M, D] out
kernel k1
  par i < M
    fold j < D
      acc s: f32 sum
      h.1 = x[i, j] + r[i, j]
      h[i, j] = h.1
      s <- h.1
    mu = s / f32({D})
    fold j < D
      acc q: f32 sum
      d.1 = h[i, j] - mu
      q <- d.1 * d.1
    rs = rsqrt(q / f32({D}) + eps[])
    par j < D
      y[i, j] = (h[i, j] - mu) * rs * g[j] + b[j]
"""

TEXTS["attention"] = """
program attention(B, S, D)
buf q: f16[B, S, D] in
buf k: f16[B, S, D] in
buf v: f16[B, S, D] in
buf ctx: f16[B, S, D] out
kernel k1
  par n < B, i < S
    fold j < S
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      acc o: f32[D] sum repair self * exp(m.old - m.new) if m.old != m.new else self
      fold d < D
        acc s: f32 sum
        s <- f32(q[n, i, d]) * f32(k[n, j, d])
      z = s * 0.125f32 if {j} <= {i} else -inf:f32
      m <- z
      p = exp(z - (0.0f32 if m == -inf:f32 else m))
      l <- p
      par d < D
        o[d] <- p * f32(v[n, j, d])
    l.1 = nan:f32 if m == -inf:f32 else l
    par d < D
      ctx[n, i, d] = f16(o[d] / l.1)
"""

TEXTS["linear gelu colsum"] = """
program linear(M, N, K)
buf A: f16[M, K] in
buf B: f16[K, N] in
buf bias: f32[N] in
buf y: f16[M, N] out
buf colsum: f32[N] out
kernel k1
  par j < N
    fold i < M
      acc cs: f32 sum
      fold k < K
        acc a: f32 sum
        a <- f32(A[i, k]) * f32(B[k, j])
      z = a + bias[j]
      y.1 = 0.5f32 * z * (1.0f32 + erf(z * 0.70710677f32))
      y[i, j] = f16(y.1)
      cs <- y.1
    colsum[j] = cs
"""

TEXTS["linear gelu"] = """
program linear(M, N, K)
buf A: f16[M, K] in
buf B: f16[K, N] in
buf bias: f32[N] in
buf y: f16[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc a: f32 sum
      a <- f32(A[i, k]) * f32(B[k, j])
    z = a + bias[j]
    y[i, j] = f16(0.5f32 * z * (1.0f32 + erf(z * 0.70710677f32)))
"""

TEXTS["linear layernorm"] = """
program linear(M, N, K)
buf A: f16[M, K] in
buf B: f16[K, N] in
buf bias: f32[N] in
buf h: f32[M, N] local window [i:i + 1, 0:N]
buf y: f16[M, N] out
kernel k1
  par i < M
    fold j < N
      acc t: f32 sum
      fold k < K
        acc a: f32 sum
        a <- f32(A[i, k]) * f32(B[k, j])
      h.1 = a + bias[j]
      h[i, j] = h.1
      t <- h.1
    mu = t / f32({N})
    fold j < N
      acc q: f32 sum
      d = h[i, j] - mu
      q <- d * d
    rs = rsqrt(q / f32({N}))
    par j < N
      y[i, j] = f16((h[i, j] - mu) * rs)
"""

TEXTS["swiglu"] = """
program swiglu(M, N, K)
buf x: bf16[M, K] in
buf w1: bf16[K, N] in
buf w2: bf16[K, N] in
buf y: bf16[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc a: f32 sum
      acc b: f32 sum
      x.1 = f32(x[i, k])
      a <- x.1 * f32(w1[k, j])
      b <- x.1 * f32(w2[k, j])
    y[i, j] = bf16(a / (1.0f32 + exp(-a)) * b)
"""

TEXTS["qkv"] = """
program qkv(M, N, L, K)
buf x: f16[M, K] in
buf wq: f16[K, N] in
buf wk: f16[K, L] in
buf wv: f16[K, L] in
buf q: f16[M, N] out
buf k: f16[M, L] out
buf v: f16[M, L] out
kernel k1
  par i < M
    par j < N
      fold c < K
        acc s: f32 sum
        s <- f32(x[i, c]) * f32(wq[c, j])
      q[i, j] = f16(s)
    par j < L
      fold c < K
        acc s.1: f32 sum
        s.1 <- f32(x[i, c]) * f32(wk[c, j])
      k[i, j] = f16(s.1)
    par j < L
      fold c < K
        acc s.2: f32 sum
        s.2 <- f32(x[i, c]) * f32(wv[c, j])
      v[i, j] = f16(s.2)
"""

TEXTS["rmsnorm linear"] = """
program rms(M, N, K)
buf x: bf16[M, K] in
buf g: bf16[K] in
buf w: bf16[K, N] in
buf y: bf16[M, N] out
kernel k1
  par i < M
    fold k < K
      acc ss: f32 sum
      acc a: f32[N] sum
      x.1 = f32(x[i, k])
      ss <- x.1 * x.1
      par n < N
        a[n] <- x.1 * f32(g[k]) * f32(w[k, n])
    r = rsqrt(ss / f32({K}) + 1e-6f32)
    par n < N
      y[i, n] = bf16(a[n] * r)
"""

TEXTS["rmsnorm then linear"] = """
program rms(M, N, K)
buf x: bf16[M, K] in
buf g: bf16[K] in
buf w: bf16[K, N] in
buf y: bf16[M, N] out
kernel k1
  par i < M
    fold k < K
      acc ss: f32 sum
      x.1 = f32(x[i, k])
      ss <- x.1 * x.1
    r = rsqrt(ss / f32({K}) + 1e-6f32)
    par n < N
      fold k < K
        acc a: f32 sum
        a <- f32(x[i, k]) * r * f32(g[k]) * f32(w[k, n])
      y[i, n] = bf16(a)
"""

TEXTS["conv"] = """
program conv(B, H, W, C, K)
buf img: bf16[B, H, W, C] in
buf w: bf16[3, 3, C, K] in
buf sc: f32[K] in
buf sh: f32[K] in
buf res: bf16[B, H, W, K] in
buf act: bf16[B, H, W, K] out
kernel k1
  par n < B, y < H, x < W, o < K
    fold u < 3, v < 3, c < C
      acc a: f32 sum
      a <- f32(img[n, y + u - 1 ~constant 0.0bf16, x + v - 1 ~constant 0.0bf16, c]) * f32(w[u, v, c, o])
    t = a * sc[o] + sh[o]
    act[n, y, x, o] = bf16(maximum(t + f32(res[n, y, x, o]), 0.0f32))
"""

TEXTS["conv statistics"] = """
program conv(B, H, W, C, K)
buf img: bf16[B, H, W, C] in
buf w: bf16[3, 3, C, K] in
buf y: bf16[B, H, W, K] out
buf mean: f32[K] out
buf var: f32[K] out
kernel k1
  par o < K
    fold n < B, i < H, j < W
      acc s: f32 sum
      acc q: f32 sum
      fold u < 3, v < 3, c < C
        acc a: f32 sum
        a <- f32(img[n, i + u - 1 ~constant 0.0bf16, j + v - 1 ~constant 0.0bf16, c]) * f32(w[u, v, c, o])
      y[n, i, j, o] = bf16(a)
      s <- a
      q <- a * a
    mean[o] = s
    var[o] = q
"""

TEXTS["ffn"] = """
program ffn(M, K, F, D)
buf x: bf16[M, K] in
buf w1: bf16[K, F] in
buf w2: bf16[F, D] in
buf y: bf16[M, D] out
kernel k1
  par i < M
    fold f < F
      acc o: f32[D] sum
      fold k < K
        acc a: f32 sum
        a <- f32(x[i, k]) * f32(w1[k, f])
      g = a / (1.0f32 + exp(-a))
      par d < D
        o[d] <- g * f32(w2[f, d])
    par d < D
      y[i, d] = bf16(o[d])
"""

TEXTS["blur"] = """
program blur(H, W, TY, TX)
size TY plan >= 1
size TX plan >= 1
buf img: f32[H, W] in
buf t: f32[H, W] local window [max(0, y0 - 1):min(H, y0 + TY + 1), x0:min(W, x0 + TX)]
buf pix: f32[H, W] out
kernel k1
  par y0 < H step TY, x0 < W step TX
    par y in max(0, y0 - 1) .. min(H, y0 + TY + 1), x in x0 .. min(W, x0 + TX)
      t[y, x] = (img[y, x - 1 ~edge] + img[y, x] + img[y, x + 1 ~edge]) / 3.0f32
    par y in y0 .. min(H, y0 + TY), x in x0 .. min(W, x0 + TX)
      pix[y, x] = (t[y - 1 ~edge, x] + t[y, x] + t[y + 1 ~edge, x]) / 3.0f32
"""

TEXTS["lstm"] = """
program lstm(T, B, U)
buf gx: f32[T, B, 4*U] in
buf wh: f32[U, 4*U] in
buf h: f32[T + 1, B, U] out
buf c: f32[T + 1, B, U] local window [t:t + 2, 0:B, 0:U]
kernel k1
  par n < B, u < U
    h[0, n, u] = 0.0f32
    c[0, n, u] = 0.0f32
  seq t < T
    par n < B, u < U
      fold k < U
        acc a0: f32 sum
        acc a1: f32 sum
        acc a2: f32 sum
        hk = h[t, n, k]
        a0 <- hk * wh[k, u]
        a1 <- hk * wh[k, U + u]
        a2 <- hk * wh[k, 2*U + u]
      c.1 = tanh(gx[t, n, U + u] + a1) * c[t, n, u] + tanh(gx[t, n, u] + a0)
      c[t + 1, n, u] = c.1
      h[t + 1, n, u] = tanh(gx[t, n, 2*U + u] + a2) * tanh(c.1)
"""

TEXTS["histogram"] = """
program histeq(H, W)
buf img: u8[H, W] in
buf hist: i32[256] local
buf cdf: i64[256] local
buf lut: u8[256] out
kernel k1
  fold y < H, x < W
    acc hist.acc: i32[256] sum
    hist.acc[i64(img[y, x])] <- 1i32
  par i < 256
    hist[i] = hist.acc[i]
  prefix b < 256
    acc s: i64 sum
    s <- i64(hist[b])
    cdf[b] = s
  par v < 256
    lut[v] = u8(round(255.0f32 * f32(cdf[v]) / f32({H*W})))
"""

TEXTS["moments"] = """
program moments(N, C)
buf x: f32[N, C] in
buf mu: f32[C] out
buf var: f32[C] out
kernel k1
  par c < C
    fold n < N
      acc s: f32 sum
      acc q: f32 sum
      x.1 = x[n, c]
      s <- x.1
      q <- x.1 * x.1
    mu[c] = s
    var[c] = q
"""

TEXTS["sumsq"] = """
program sumsq(N)
buf x: f32[N] in
buf y: f32 out
kernel k1
  fold i < N
    acc s: f32 sum
    x.1 = x[i]
    s <- x.1 * x.1
  y[] = s
"""

TEXTS["nearest"] = """
program nearest(M, N)
buf x: f32[M, 3] in
buf y: f32[N, 3] in
buf z: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 min
      fold d < 3
        acc s: f32 sum
        t = x[i, d] - y[j, d]
        s <- t * t
      m <- s
    z[i] = m
"""

TEXTS["cross entropy"] = """
program ce(M, V)
buf x: bf16[M, V] in
buf lab: i64[M] in range 0 .. V - 1
buf y: f32[M] out
kernel k1
  par i < M
    fold j < V
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      s = f32(x[i, j])
      m <- s
      l <- exp(s - (0.0f32 if m == -inf:f32 else m))
    y[i] = log(l) + m - f32(x[i, lab[i]])
"""


def program(name: str) -> Program:
    """A program by its name."""
    return parse_program(TEXTS[name].lstrip("\n"), name)
