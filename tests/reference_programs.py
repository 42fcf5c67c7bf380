"""Programs of well-known kinds with what independent NumPy says of them, and the odd ones of `reference_odd`."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference_odd import ODD, RNG, Array, Case, normal

from loopfuse.reader import parse_program

__all__ = ["ODD", "PROGRAMS", "Case"]
F = np.float32


def case(name: str, text: str, sizes: dict[str, int], inputs: dict[str, Array], rtol: float = 1e-5, **out: Any) -> Case:
    """A case with expected outputs, given in their own types."""
    program = parse_program(text)
    types = {b.id: b.dtype.numpy for b in program.buffers}
    return Case(name, program, sizes, inputs, {k: np.asarray(v, dtype=types[k]) for k, v in out.items()}, rtol)


def softmax() -> Case:
    x = normal(5, 37)
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    text = """program softmax(M, N)
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
  par i < M, j < N
    y[i, j] = e[i, j] / l[i]
"""
    return case("softmax", text, {"M": 5, "N": 37}, {"x": x}, y=e / e.sum(1, keepdims=True))


def layernorm() -> Case:
    x, r, g, b = normal(6, 41), normal(6, 41), normal(41), normal(41)
    h = x.astype(float) + r
    y = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5) * g + b
    text = """program layernorm(M, D)
buf x: f32[M, D] in
buf r: f32[M, D] in
buf g: f32[D] in
buf b: f32[D] in
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
    inputs = {"x": x, "r": r, "g": g, "b": b, "eps": np.asarray(1e-5, dtype=F)}
    return case("layernorm and residual", text, {"M": 6, "D": 41}, inputs, h=h, y=y)


def attention() -> Case:
    q, k, v = (normal(23, 5) for _ in range(3))
    s = q.astype(float) @ k.T / 2
    s[np.triu_indices(23, 1)] = -np.inf
    p = np.exp(s - s.max(1, keepdims=True))
    text = """program attention(S, D)
buf q: f32[S, D] in
buf k: f32[S, D] in
buf v: f32[S, D] in
buf out: f32[S, D] out
kernel k1
  par i < S
    fold j < i + 1
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new)
      acc o: f32[D] sum repair self * exp(m.old - m.new)
      fold d < D
        acc s: f32 sum
        s <- q[i, d] * k[j, d]
      z = s * 0.5f32
      m <- z
      p = exp(z - m)
      l <- p
      par d < D
        o[d] <- p * v[j, d]
    par d < D
      out[i, d] = o[d] / l
"""
    want = (p / p.sum(1, keepdims=True)) @ v
    return case("causal attention", text, {"S": 23, "D": 5}, {"q": q, "k": k, "v": v}, out=want)


def convolution() -> Case:
    x, w = normal(2, 7, 6, 3), normal(3, 3, 3, 4)
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = sum(np.einsum("nhwc,co->nhwo", padded[:, r : r + 7, s : s + 6], w[r, s]) for r in range(3) for s in range(3))
    text = """program conv(B, H, W, C, K)
buf x: f32[B, H, W, C] in
buf w: f32[3, 3, C, K] in
buf y: f32[B, H, W, K] out
par n < B, h < H, v < W, o < K
  fold r < 3, s < 3, c < C
    acc a: f32 sum
    a <- x[n, h + r - 1 ~constant 0.0f32, v + s - 1 ~constant 0.0f32, c] * w[r, s, c, o]
  y[n, h, v, o] = a
"""
    return case("convolution", text, {"B": 2, "H": 7, "W": 6, "C": 3, "K": 4}, {"x": x, "w": w}, y=want)


def boundary(mode: str, extent: int) -> Case:
    reach = 2 * extent + 3
    x = np.arange(1, extent + 1, dtype=np.int32)
    pads = {"constant": {"constant_values": 9}}.get(mode, {})
    want = np.pad(x, reach, mode=mode, **pads)  # type: ignore[call-overload]
    spelled = "constant 9i32" if mode == "constant" else mode
    text = f"""program pad(N, R)
buf x: i32[N] in
buf y: i32[N + 2*R] out
buf z: i32[N + 2*R] out
kernel k
  par i < N + 2*R
    y[i] = x[i - R ~{spelled}]
    z[i] = x[{{i}} - {{R}} ~{spelled}]
"""
    sizes = {"N": extent, "R": reach}
    return case(f"{mode} {extent}", text, sizes, {"x": x}, y=want, z=want)


def equalisation() -> Case:
    img = RNG.integers(0, 256, (19, 23)).astype(np.uint8)
    cdf = np.cumsum(np.bincount(img.ravel(), minlength=256))
    lut = np.round(255 * cdf / img.size).astype(np.uint8)
    text = """program histeq(H, W)
buf img: u8[H, W] in
buf cdf: i64[256] out
buf lut: u8[256] out
buf eq: u8[H, W] out
kernel k1
  fold y < H, x < W
    acc hist: i32[256] sum
    hist[i64(img[y, x])] <- 1i32
  prefix b < 256
    acc s: i64 sum
    s <- i64(hist[b])
    cdf[b] = s
  par b < 256
    lut[b] = u8(round(255.0f64 * f64(cdf[b]) / f64({H*W})))
kernel k2
  par y < H, x < W
    eq[y, x] = lut[i64(img[y, x])]
"""
    return case("histogram equalisation", text, {"H": 19, "W": 23}, {"img": img}, cdf=cdf, lut=lut, eq=lut[img])


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def lstm() -> Case:
    gx, wh = normal(9, 2, 12), normal(3, 12) * F(0.3)
    h, c, hs = np.zeros((2, 3)), np.zeros((2, 3)), []
    for t in range(9):
        i, f, g, o = np.split(gx[t] + h @ wh, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hs.append(h)
    text = """program lstm(T, B, U)
buf gx: f32[T, B, 4*U] in
buf wh: f32[U, 4*U] in
buf z: f32[T, B, 4*U] local window [t:t + 1, 0:B, 0:4*U]
buf h: f32[T + 1, B, U] local window [t:t + 2, 0:B, 0:U]
buf c: f32[T + 1, B, U] local window [t:t + 2, 0:B, 0:U]
buf hs: f32[T, B, U] out
buf last: f32[B, U] out
kernel k1
  par n < B, u < U
    h[0, n, u] = 0.0f32
    c[0, n, u] = 0.0f32
  seq t < T
    par n < B, v < 4*U
      fold k < U
        acc a: f32 sum
        a <- h[t, n, k] * wh[k, v]
      z[t, n, v] = gx[t, n, v] + a
    par n < B, u < U
      c.1 = sigmoid(z[t, n, U + u]) * c[t, n, u] + sigmoid(z[t, n, u]) * tanh(z[t, n, 2*U + u])
      c[t + 1, n, u] = c.1
      h.1 = sigmoid(z[t, n, 3*U + u]) * tanh(c.1)
      h[t + 1, n, u] = h.1
      hs[t, n, u] = h.1
  par n < B, u < U
    last[n, u] = h[T, n, u]
"""
    return case("lstm", text, {"T": 9, "B": 2, "U": 3}, {"gx": gx, "wh": wh}, 1e-4, hs=np.array(hs), last=h)


def triangular() -> Case:
    a, b = normal(12, 12) + 4 * np.eye(12, dtype=F), normal(12)
    x = np.linalg.solve(np.tril(a.astype(float)), b)
    text = """program trisolv(N)
buf l: f32[N, N] in
buf b: f32[N] in
buf x: f32[N] out
buf s: f32[N] out
kernel k1
  seq i < N
    fold k < i
      acc d: f32 sum
      d <- l[i, k] * x[k]
    x[i] = (b[i] - d) / l[i, i]
  par i < N
    fold j in i .. N
      acc t: f32 sum
      t <- l[i, j]
    s[i] = t
"""
    upper = np.triu(a.astype(float)).sum(1)
    return case("triangles", text, {"N": 12}, {"l": a, "b": b}, 1e-4, x=x, s=upper)


def positions() -> Case:
    x = RNG.integers(0, 3, (40, 11)).astype(F)
    x[5, 4], x[6, 3], x[6, 8], x[7, :] = np.nan, np.nan, np.inf, -np.inf
    text = """program arg(N, M)
buf x: f32[N, M] in
buf hi: i64[N] out
buf lo: i64[N] out
buf flat: i64 out
kernel k1
  par i < N
    fold j < M
      acc a: f32 argmax
      acc b: f32 argmin
      a <- x[i, j] at {j}
      b <- x[i, j] at {j}
    hi[i] = a
    lo[i] = b
kernel k2
  fold i < N, j < M
    acc a: f32 argmin
    a <- x[i, j] at {i*M + j}
  flat[] = a
"""
    sizes = {"N": 40, "M": 11}
    return case("argmax", text, sizes, {"x": x}, hi=x.argmax(1), lo=x.argmin(1), flat=x.argmin())


def empties() -> Case:
    text = """program empty(N, M)
buf x: f32[N, M] in
buf y: f32[M, 2] out
buf t: i32[M] out
buf b: bool[M] out
buf z: f32[N] out
kernel k1
  par j < M
    fold i < N
      acc s: f32 sum
      acc p: i32 prod
      acc m: f32 max
      acc a: bool all
      s <- x[i, j]
      p <- i32(x[i, j])
      m <- x[i, j]
      a <- x[i, j] > 0.0f32
    y[j, 0] = s
    y[j, 1] = m
    t[j] = p
    b[j] = a
  par i < N
    z[i] = x[i, 0]
"""
    y = np.array([[0, -np.inf]] * 3, dtype=F)
    return case("no iterations", text, {"N": 0, "M": 3}, {"x": np.zeros((0, 3), dtype=F)}, y=y, t=np.ones(3),
                b=np.ones(3, dtype=bool), z=np.zeros(0))  # fmt: skip


def integers() -> Case:
    a = RNG.integers(-128, 128, 60).astype(np.int8)
    b = RNG.integers(-3, 4, 60).astype(np.int8)
    with np.errstate(all="ignore"):
        product = (a * b).astype(np.int8)
    quotient = [
        np.int8(0) if q == 0 else np.int8((int(p) // int(q) + 128) % 256 - 128) for p, q in zip(a, b, strict=True)
    ]
    text = """program ints(N)
buf a: i8[N] in
buf b: i8[N] in
buf p: i8[N] out
buf q: i8[N] out
buf s: i8 out
buf c: u8[N] out
kernel k
  par i < N
    p[i] = a[i] * b[i]
    q[i] = a[i] // b[i]
    c[i] = u8(f32(a[i]) * 3.0f32)
  fold i < N
    acc t: i8 sum
    t <- a[i]
  s[] = t
"""
    clipped = np.clip(a.astype(float) * 3, 0, 255)
    return case("integers wrap, floats saturate", text, {"N": 60}, {"a": a, "b": b}, p=product, q=np.array(quotient),
                s=a.sum(dtype=np.int8), c=clipped)  # fmt: skip


def running() -> Case:
    x = normal(300)
    text = """program cum(N)
buf x: f32[N] in
buf s: f64[N] out
buf m: f32[N] out
buf a: i64[N] out
buf n: i64[N] out
kernel k
  prefix i < N
    acc c: f64 sum
    acc g: f32 max
    acc at: f32 argmax
    acc k: i64 sum
    c <- f64(x[i])
    g <- x[i]
    at <- x[i] at {i}
    k <- 1i64 if x[i] > 0.0f32 else 0i64
    s[i] = c
    m[i] = g
    a[i] = at
    n[i] = k
"""
    best = np.maximum.accumulate(x)
    at = [int(np.argmax(x[: k + 1])) for k in range(300)]
    return case("running values", text, {"N": 300}, {"x": x}, 1e-12, s=np.cumsum(x.astype(float)), m=best, a=at,
                n=np.cumsum(x > 0))  # fmt: skip


def gather() -> Case:
    table, at = normal(9, 4), RNG.integers(0, 9, (3, 5)).astype(np.int32)
    text = """program take(V, D, N, M)
buf w: f32[V, D] in
buf at: i32[N, M] in
buf y: f32[N, M, D] out
buf z: f32[N, D] out
kernel k
  par i < N, j < M, d < D
    y[i, j, d] = w[i64(at[i, j]), D - 1 - d]
  par i < N, d < D
    fold j < M where at[i, j] % 2i32 == 0i32
      acc s: f32 sum
      s <- w[i64(at[i, j]), d]
    z[i, d] = s
"""
    bag = np.where((at % 2 == 0)[..., None], table[at], 0).sum(1)
    sizes = {"V": 9, "D": 4, "N": 3, "M": 5}
    return case("gather", text, sizes, {"w": table, "at": at}, y=table[at][..., ::-1], z=bag)


PROGRAMS = [
    softmax(), layernorm(), attention(), convolution(), equalisation(), lstm(), triangular(), positions(), empties(),
    integers(), running(), gather(),
    *(boundary(m, n) for m in ("edge", "constant", "wrap", "reflect", "symmetric") for n in (1, 2, 5)),
]  # fmt: skip
