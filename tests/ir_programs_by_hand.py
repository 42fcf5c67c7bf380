"""Programs of the loop IR as lowering and fusion make them, in the very text that the printer gives."""

PROGRAMS: dict[str, str] = {}

PROGRAMS["softmax lowered"] = """\
program softmax(M, N)
buf x: f32[M, N] in
buf m: f32[M]
buf e: f32[M, N]
buf l: f32[M]
buf y: f32[M, N] out
kernel k1
  par i < M
    fold j < N
      acc m.0: f32 max
      m.0 <- x[i, j]
    m[i] = m.0
kernel k2
  par i < M, j < N
    e[i, j] = exp(x[i, j] - m[i])
kernel k3
  par i < M
    fold j < N
      acc l.0: f32 sum
      l.0 <- e[i, j]
    l[i] = l.0
kernel k4
  par i < M, j < N
    y[i, j] = e[i, j] / l[i]
"""

PROGRAMS["softmax fused"] = """\
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

PROGRAMS["softmax in one pass"] = """\
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
    l.1 = nan:f32 if m == -inf:f32 else l
    par j < N
      y[i, j] = exp(x[i, j] - m) / l.1
"""

PROGRAMS["layernorm and residual"] = """\
program layernorm(M, D)
buf x: f32[M, D] in
buf r: f32[M, D] in
buf g: f32[D] frozen
buf b: f32[D] frozen
buf eps: f32 param
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

PROGRAMS["causal attention"] = """\
program attention(S, D)
buf q: f32[S, D] in
buf k: f32[S, D] in
buf v: f32[S, D] in
buf scale: f32 param
buf out: f32[S, D] out
kernel k1
  par i < S
    fold j < S
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      acc o: f32[D] sum repair self * exp(m.old - m.new) if m.old != m.new else self
      fold d < D
        acc s: f32 sum
        s <- q[i, d] * k[j, d]
      z = s * scale[] if {j} <= {i} else -inf:f32
      m <- z
      p = exp(z - (0.0f32 if m == -inf:f32 else m))
      l <- p
      par d < D
        o[d] <- p * v[j, d]
    l.1 = nan:f32 if m == -inf:f32 else l
    par d < D
      out[i, d] = o[d] / l.1
"""

PROGRAMS["matmul and column sum"] = """\
program gemm(M, N, K)
buf A: f16[M, K] in
buf B: f16[K, N] in
buf bias: f32[N] in
buf y: f32[M, N] out
buf colsum: f32[N] out
kernel k1
  par j < N
    fold i < M
      acc cs: f32 sum
      fold k < K
        acc a: f32 sum
        a <- f32'(A[i, k]) * f32'(B[k, j])
      z = a + bias[j]
      y.1 = 0.5f32 * z * (1.0f32 + erf(z * 0.70710677f32))
      y[i, j] = y.1
      cs <- y.1
    colsum[j] = cs
"""

PROGRAMS["convolution"] = """\
program conv(B, H, W, C, K)
buf in: f32[B, H, W, C] in
buf w: f32[3, 3, C, K] in
buf sc: f32[K] in
buf sh: f32[K] in
buf res: f32[B, H, W, K] in
buf out: f32[B, H, W, K] out
kernel k1
  par n < B, y < H, x < W, o < K
    fold u < 3, v < 3, c < C
      acc a: f32 sum
      a <- in[n, u + y - 1 ~constant 0.0f32, v + x - 1 ~constant 0.0f32, c] * w[u, v, c, o]
    t = a * sc[o] + sh[o]
    out[n, y, x, o] = maximum(t + res[n, y, x, o], 0.0f32)
"""

PROGRAMS["blur by halo"] = """\
program blur(H, W, TY, TX)
size TY plan >= 1
size TX plan >= 1
buf img: f32[H, W] in
buf t: f32[H, W] local window [max(0, y0 - 1):min(H, TY + y0 + 1), x0:min(W, TX + x0)]
buf out: f32[H, W] out
kernel k1
  par y0 < H step TY, x0 < W step TX
    par y in max(0, y0 - 1) .. min(H, TY + y0 + 1), x in x0 .. min(W, TX + x0)
      t[y, x] = (img[y, x - 1 ~edge] + img[y, x] + img[y, x + 1 ~edge]) / 3.0f32
    par y in y0 .. min(H, TY + y0), x in x0 .. min(W, TX + x0)
      out[y, x] = (t[y - 1 ~edge, x] + t[y, x] + t[y + 1 ~edge, x]) / 3.0f32
"""

PROGRAMS["recurrence"] = """\
program lstm(T, B, I, U)
buf x: f32[T, B, I] in
buf wx: f32[I, 2*U] in
buf wh: f32[U, 2*U] in
buf b: f32[2*U] in
buf h0: f32[B, U] in
buf gx: f32[T, B, 2*U]
buf h: f32[T + 1, B, U] window [t:t + 2, 0:B, 0:U]
buf c: f32[T + 1, B, U] window [t:t + 2, 0:B, 0:U]
buf hs: f32[T, B, U] out
buf last: f32[B, U] out
kernel k1
  par t < T, n < B, u < 2*U
    fold k < I
      acc a: f32 sum
      a <- x[t, n, k] * wx[k, u]
    gx[t, n, u] = a + b[u]
kernel k2
  par n < B, u < U
    h[0, n, u] = h0[n, u]
    c[0, n, u] = 0.0f32
  seq t < T
    par n < B, u < U
      fold k < U
        acc a0: f32 sum
        acc a1: f32 sum
        hk = h[t, n, k]
        a0 <- hk * wh[k, u]
        a1 <- hk * wh[k, U + u]
      c.1 = sigmoid(gx[t, n, U + u] + a1) * c[t, n, u] + sigmoid(gx[t, n, u] + a0)
      c[t + 1, n, u] = c.1
      h.1 = tanh(c.1)
      h[t + 1, n, u] = h.1
      hs[t, n, u] = h.1
  par n < B, u < U
    last[n, u] = h[T, n, u]
"""

PROGRAMS["histogram equalisation"] = """\
program equalise(H, W)
size H shape >= 1
size W shape >= 1
buf img: u8[H, W] in
buf cdf: i64[256]
buf out: u8[H, W] out
kernel k1
  fold y < H, x < W
    acc hist: u32[256] sum
    hist[i64(img[y, x])] <- 1u32
  prefix b < 256
    acc s: i64 sum
    s <- i64(hist[b])
    cdf[b] = s
  fold b < 256 where cdf[b] > 0i64
    acc lo: i64 min
    lo <- cdf[b]
  par y < H, x < W
    out[y, x] = u8(255i64 * (cdf[i64(img[y, x])] - lo) // maximum({H*W} - lo, 1i64))
"""

PROGRAMS["the best position"] = """\
program nearest(N, M)
size M shape >= 1
buf a: f64[N, M] in
buf w: bf16[M] in
buf y: bf16[N] out
kernel k1
  par i < N
    fold j < M
      acc best: f64 argmin
      best <- abs(a[i, j]) at {j}
    y[i] = w[$best ~checked]
"""
