"""Programs as merging and rematerialisation leave them, whose folds must become one."""

from __future__ import annotations

SOFTMAX = """program softmax(M, N)
buf x: f64[M, N] in
buf y: f64[M, N] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    fold j.1 < N
      acc l: f64 sum
      e = exp(x[i, j.1] - m)
      l <- e
    par j.2 < N
      y[i, j.2] = exp(x[i, j.2] - m) / l
"""
LOGSUMEXP = """program logsumexp(M, N)
buf x: f64[M, N] in
buf m.1: f64[M] out
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    m.1[i] = m
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - m.1[i])
    y[i] = m.1[i] + log(l)
"""
GUARDED = """program guarded(M, N)
buf x: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    b = where(isfinite(m), m, 0.0f64)
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - b)
    y[i] = b + log(l)
"""
SOFTMIN = """program softmin(M, N)
buf x: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 min
      m <- -x[i, j]
    fold j.1 < N
      acc l: f64 sum
      l <- exp2((m + x[i, j.1]) * 1.5f64)
    y[i] = l
"""
TWO_VALUES = """program two(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- maximum(x[i, j], x[i, j] * 0.5f64)
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - m) + exp(x[i, j.1] * 0.5f64 - m)
    y[i] = l
"""
WEIGHTED = """program weighted(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    fold j.1 < N
      acc l: f64 sum
      e = exp(x[i, j.1] - m)
      l <- e
    fold j.2 < N
      acc o: f64 sum
      p = exp(x[i, j.2] - m) / l
      o <- p * w[i, j.2]
    y[i] = o
"""
BY_LOG = """program by_log(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - m)
    lse = m + log(l)
    fold j.2 < N
      acc o: f64 sum
      o <- exp(x[i, j.2] - lse) * w[i, j.2]
    y[i] = o
"""
SHIFTED_MAX = """program shifted(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
buf z: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 sum
      m <- x[i, j]
    fold j.1 < N
      acc t: f64 max
      t <- x[i, j.1] - m
    fold j.2 < N
      acc u: f64 max
      u <- m - x[i, j.2]
    y[i] = t
    z[i] = u
"""
RMS = """program rms(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc s: f64 sum
      s <- x[i, j] * x[i, j]
    r = rsqrt(s / f64({N}) + 0.0009765625f64)
    fold j.1 < N
      acc o: f64 sum
      o <- x[i, j.1] * r * w[i, j.1]
    y[i] = o
"""
VARIANCE = """program variance(M, N)
buf x: f64[M, N] in
buf mu.1: f64[M] out
buf v: f64[M] out
kernel k
  par i < M
    fold j < N
      acc s: f64 sum
      s <- x[i, j]
    mu = s / f64'({N})
    mu.1[i] = mu
    fold j.1 < N
      acc q: f64 sum
      q <- (x[i, j.1] - mu) ** 2.0f64
    v[i] = q / f64'({N})
"""
LAYERNORM_DOT = """program layernorm_dot(M, N)
buf x: f64[M, N] in
buf g: f64[N] in
buf b: f64[N] in
buf h: f64[M, N] out
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc s: f64 sum
      h.1 = x[i, j] * 2.0f64
      h[i, j] = h.1
      s <- h.1
    mu = s / f64'({N})
    fold j.1 < N
      acc q: f64 sum
      d = h[i, j.1] - mu
      q <- d * d
    r = rsqrt(q / f64'({N}) + 0.0009765625f64)
    fold j.2 < N
      acc o: f64 sum
      z = (h[i, j.2] - mu) * r * g[j.2] + b[j.2]
      o <- z * g[j.2]
    y[i] = o
"""
COVARIANCE = """program covariance(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc s: f64 sum
      acc t: f64 sum
      s <- x[i, j]
      t <- w[i, j]
    fold j.1 < N
      acc q: f64 sum
      q <- (x[i, j.1] - s / f64'({N})) * (w[i, j.1] - t / f64'({N}))
    y[i] = q / f64'({N})
"""
CROSS_ENTROPY = """program entropy(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf lab: i64[M] in range 0 .. N - 1
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - m)
    lse = m + log(l)
    fold j.2 < N
      acc t: f64 sum
      t <- x[i, j.2] if {j.2} == lab[i] else 0.0f64
    y[i] = lse - t
"""
SOFT_LABELS = """program soft_labels(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - m)
    fold j.2 < N
      acc t: f64 sum
      t <- w[i, j.2] * (x[i, j.2] - m - log(l))
    y[i] = -t
"""
MASKED_TERM = """program masked(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j] if w[i, j] > 0.0f64 else -inf:f64
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[i, j.1] - m) if w[i, j.1] > 0.0f64 else 0.0f64
    y[i] = l
"""
ATTENTION = """program attention(S, D)
buf q: f64[S, D] in
buf k: f64[S, D] in
buf v: f64[S, D] in
buf z: f64[S, S]
buf out: f64[S, D] out
kernel k1
  par i < S
    fold j < S
      acc m: f64 max
      fold d < D
        acc s: f64 sum
        s <- q[i, d] * k[j, d]
      z.1 = MASK
      z[i, j] = z.1
      m <- z.1
    fold j.1 < S
      acc l: f64 sum
      p = exp(z[i, j.1] - m)
      l <- p
    par e < D
      fold j.2 < S
        acc o: f64 sum
        p.1 = exp(z[i, j.2] - m) / l
        o <- p.1 * v[j.2, e]
      out[i, e] = o
"""
MASKS = {
    "plain": "s * 0.5f64",
    "causal": "s * 0.5f64 if {j} <= {i} else -inf:f64",
    "never the first": "where({j} > {0}, s, -inf:f64)",
    "alibi": "s * 0.5f64 - f64(abs({i - j})) * 0.25f64",
    "softcap": "tanh(s * 0.5f64) * 3.0f64",
    "window": "s if {i - j} < {3} and {j - i} < {2} else -inf:f64",
    "nothing": "s if {j} < {i - 4} else -inf:f64",
}
ROWWISE = {
    "softmax": (SOFTMAX, 1, 1), "logsumexp": (LOGSUMEXP, 1, 1), "guarded": (GUARDED, 1, 1), "softmin": (SOFTMIN, 1, 1),
    "two values": (TWO_VALUES, 1, 1), "weighted": (WEIGHTED, 1, 2), "by log": (BY_LOG, 1, 2),
    "shifted maximum": (SHIFTED_MAX, 1, 0), "rms": (RMS, 1, 0), "variance": (VARIANCE, 1, 1),
    "layernorm": (LAYERNORM_DOT, 1, 1), "covariance": (COVARIANCE, 1, 1), "cross entropy": (CROSS_ENTROPY, 1, 1),
    "soft labels": (SOFT_LABELS, 1, 1), "masked term": (MASKED_TERM, 1, 1),
}  # fmt: skip
