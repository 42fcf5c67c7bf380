"""Filters of signals and images at every border, transforms, and special functions, as SciPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import fft, ndimage, signal, special

from tests.oracles.core import EXACT, F64, Array, Case, Draw, Tol, Values, cases, integers, normal, uniform

CASES: list[Case] = []
# The language's view of a border, and what SciPy calls the same.
BORDERS = {"edge(x)": "nearest", "constant(x, 2.5)": "constant", "wrap(x)": "wrap", "reflect(x)": "mirror",
           "symmetric(x)": "reflect"}  # fmt: skip

# -- images: every filter at every border -----------------------------------------------------------------------------

FILTERS = """
fn correlate(v, w: f64[R, S], h, k) {
  let y[i in 0..h, j in 0..k] = sum(w[p, q] * v[i + p - R // 2, j + q - S // 2] for p, q)
  return y
}
fn convolve(v, w: f64[R, S], h, k) {
  let y[i in 0..h, j in 0..k] = sum(w[p, q] * v[i - p + R // 2, j - q + S // 2] for p, q)
  return y
}
fn uniform(v, h, k) {
  let y[i in 0..h, j in 0..k] = mean(v[i + p - 1, j + q - 2] for p in 0..3, q in 0..5)
  return y
}
fn greatest(v, h, k) {
  let y[i in 0..h, j in 0..k] = max(v[i + p - 1, j + q - 1] for p in 0..3, q in 0..3)
  return y
}
fn least(v, h, k) {
  let y[i in 0..h, j in 0..k] = min(v[i + p - 2, j + q - 1] for p in 0..4, q in 0..2)
  return y
}
fn median(v, h, k) {
  let near[i in 0..h, j in 0..k, n in 0..9] = v[i + n // 3 - 1, j + n % 3 - 1]
  let y[i, j] = min(near[i, j, n] for n if sum(near[i, j, m] <= near[i, j, n] for m) >= 5)
  return y
}
fn laplace(v, h, k) {
  let y[i in 0..h, j in 0..k] = v[i - 1, j] + v[i + 1, j] + v[i, j - 1] + v[i, j + 1] - 4 * v[i, j]
  return y
}
fn prewitt(v, h, k) {
  let y[i in 0..h, j in 0..k] = sum(v[i + p - 1, j + 1] - v[i + p - 1, j - 1] for p in 0..3)
  return y
}
input x: f64[H, W]
input w: f64[R, S]
require H >= 1 and W >= 1
let v = BORDER
output cor = correlate(v, w, H, W)
output con = convolve(v, w, H, W)
output uni = uniform(v, H, W)
output top = greatest(v, H, W)
output low = least(v, H, W)
output med = median(v, H, W)
output lap = laplace(v, H, W)
output pre = prewitt(v, H, W)
"""


def filters(mode: str) -> Any:
    """SciPy's filters at one of its borders."""

    def answer(v: Values) -> dict[str, Any]:
        x, how = v.x, {"mode": mode, "cval": 2.5}
        return {
            "cor": ndimage.correlate(x, v.w, **how), "con": ndimage.convolve(x, v.w, **how),
            "uni": ndimage.uniform_filter(x, (3, 5), **how), "top": ndimage.maximum_filter(x, 3, **how),
            "low": ndimage.minimum_filter(x, (4, 2), **how), "med": ndimage.median_filter(x, 3, **how),
            "lap": ndimage.laplace(x, **how),
            "pre": ndimage.correlate(x, np.array([[-1.0, 0, 1]] * 3), **how),
        }  # fmt: skip

    return answer


for _view, _mode in BORDERS.items():
    CASES += cases(
        f"filter/{_mode}.lf", lambda r, v: {"x": normal(r, v.H, v.W, dtype="f64"), "w": normal(r, v.R, v.S, dtype="f64")},
        filters(_mode), dict.fromkeys(("cor", "con", "uni", "top", "low", "med", "lap", "pre"), "f64"),
        [Draw({"H": 9, "W": 7, "R": 3, "S": 5}), Draw({"H": 5, "W": 6, "R": 4, "S": 2}, note="even"),
         Draw({"H": 2, "W": 1, "R": 5, "S": 3}, note="smaller-than-the-kernel")],
        source=FILTERS.replace("BORDER", _view), tol=F64, tols=dict.fromkeys(("top", "low", "med"), EXACT),
    )  # fmt: skip

# Positions between elements, at order 0 and 1, far outside too.
SAMPLES = """
input x: f64[H, W]
input r: f64[N] where -50 < r < 50
input c: f64[N] where -50 < c < 50
require H >= 1 and W >= 1
fn at(v, p, q, n) {
  let i[k in 0..n] = i32(floor(p[k]))
  let j[k in 0..n] = i32(floor(q[k]))
  let f[k in 0..n] = p[k] - floor(p[k])
  let g[k in 0..n] = q[k] - floor(q[k])
  let y[k in 0..n] = (1 - f[k]) * ((1 - g[k]) * v[i[k], j[k]] + g[k] * v[i[k], j[k] + 1])
                     + f[k] * ((1 - g[k]) * v[i[k] + 1, j[k]] + g[k] * v[i[k] + 1, j[k] + 1])
  return y
}
output a = at(edge(x), r, c, N)
output b = at(reflect(x), r, c, N)
output d = at(wrap(x), r, c, N)
output e = at(symmetric(x), r, c, N)
"""


def samples(v: Values) -> dict[str, Any]:
    def at(mode: str) -> Array:
        return np.asarray(ndimage.map_coordinates(v.x, [v.r, v.c], order=1, mode=mode))

    return {"a": at("nearest"), "b": at("mirror"), "d": at("grid-wrap"), "e": at("reflect")}


CASES += cases(
    "filter/samples.lf",
    lambda r, v: {"x": normal(r, v.H, v.W, dtype="f64"), "r": uniform(r, v.N, lo=-20, hi=20, dtype="f64"),
                  "c": uniform(r, v.N, lo=-20, hi=20, dtype="f64")},
    samples, dict.fromkeys("abde", "f64"), [Draw({"H": 5, "W": 7, "N": 40}), Draw({"H": 2, "W": 3, "N": 20})],
    source=SAMPLES, tol=Tol(1e-9, 1e-9),
)  # fmt: skip

# -- signals ----------------------------------------------------------------------------------------------------------

SIGNALS = """
input x: f64[N]
input h: f64[K]
input b: f64[3]
input a: f64[3] where a > -1
require N >= 2 and K >= 1 and N >= K
let zeros_outside = constant(x, 0)
output full[i in 0..N + K - 1] = sum(h[k] * zeros_outside[i - k] for k)
output same[i in 0..N] = sum(h[k] * zeros_outside[i + (K - 1) // 2 - k] for k)
output valid[i in 0..N - K + 1] = sum(h[k] * x[i + K - 1 - k] for k)
output corr[i in 0..N - K + 1] = sum(h[k] * x[i + k] for k)
output up[i in 0..3 * (N - 1) + K] = sum(h[k] * x[(i - k) // 3] for k if (i - k) % 3 == 0 and 0 <= i - k <= 3 * (N - 1))
scan t in 0..N carry (s1: f64 = 0, s2: f64 = 0) {
  let y = b[0] * x[t] + s1
  next s1 = b[1] * x[t] - a[1] * y + s2
  next s2 = b[2] * x[t] - a[2] * y
  emit iir = y
}
output iir
let middle = (N - 1) / 2
let slope = sum((i - middle) * x[i] for i) / sum((1f64 * i - middle) ** 2 for i in 0..N)
output trend[i] = x[i] - mean(x) - slope * (i - middle)
output re[k in 0..N // 2 + 1] = sum(x[i] * cos(2 * pi * ((i * k) % N) / N) for i)
output im[k in 0..N // 2 + 1] = -sum(x[i] * sin(2 * pi * ((i * k) % N) / N) for i)
output dct[k in 0..N] = 2 * sum(x[i] * cos(pi * k * (2 * i + 1) / (2 * N)) for i)
"""


def signals(v: Values) -> dict[str, Any]:
    x, h = v.x, v.h
    spectrum = fft.rfft(x)
    return {
        "full": signal.convolve(x, h, "full", method="direct"), "same": signal.convolve(x, h, "same", method="direct"),
        "valid": signal.convolve(x, h, "valid", method="direct"),
        "corr": signal.correlate(x, h, "valid", method="direct"), "up": signal.upfirdn(h, x, up=3),
        "iir": signal.lfilter(v.b, v.a, x), "trend": signal.detrend(x), "re": spectrum.real, "im": spectrum.imag,
        "dct": fft.dct(x, 2),
    }  # fmt: skip


CASES += cases(
    "filter/signals.lf",
    lambda r, v: {"x": normal(r, v.N, dtype="f64"), "h": normal(r, v.K, dtype="f64"), "b": normal(r, 3, dtype="f64"),
                  "a": np.array([1.0, -0.4, 0.3])},
    signals, dict.fromkeys(("full", "same", "valid", "corr", "up", "iir", "trend", "re", "im", "dct"), "f64"),
    [Draw({"N": 24, "K": 5}), Draw({"N": 7, "K": 4}), Draw({"N": 2, "K": 1})], source=SIGNALS, tol=F64,
)  # fmt: skip

DISTANCES = """
input m: bool[H, W]
require H >= 1 and W >= 1
output edt[i in 0..H, j in 0..W] = sqrt(f64(min((i - p) * (i - p) + (j - q) * (j - q) for p, q if not m[p, q])))
output taxi[i in 0..H, j in 0..W] = min(abs(i - p) + abs(j - q) for p, q if not m[p, q])
output grown[i in 0..H, j in 0..W] = any(constant(m, false)[i + p - 1, j + q - 1] for p in 0..3, q in 0..3)
output worn[i in 0..H, j in 0..W] = all(constant(m, false)[i + p - 1, j + q - 1] for p in 0..3, q in 0..3)
"""


def distances(v: Values) -> dict[str, Any]:
    m, square = v.m, np.ones((3, 3), bool)
    return {"edt": ndimage.distance_transform_edt(m), "taxi": ndimage.distance_transform_cdt(m, "taxicab").astype(int),
            "grown": ndimage.binary_dilation(m, square).astype(int),
            "worn": ndimage.binary_erosion(m, square).astype(int)}  # fmt: skip


def _a_hole(inputs: dict[str, Array]) -> None:
    inputs["m"][0, 0] = False


CASES += cases(
    "filter/distances.lf", lambda r, v: {"m": integers(r, 0, 4, v.H, v.W, dtype="u8") > 0}, distances,
    {"edt": "f64", "taxi": "i64", "grown": "bool", "worn": "bool"},
    [Draw({"H": 7, "W": 9}, edit=_a_hole), Draw({"H": 1, "W": 5}, edit=_a_hole)], source=DISTANCES, tol=F64,
)  # fmt: skip

# -- special functions ------------------------------------------------------------------------------------------------

SPECIAL = """
input x: F[N]
input y: F[N] where 0 < y < 1
output erf_ = erf(x)
output erfc_ = erfc(x)
output cbrt_ = cbrt(x)
output exp2_ = exp2(x)
output expm1_ = expm1(x)
output log1p_ = log1p(abs(x))
output expit = sigmoid(x)
output logit = log(y) - log1p(-y)
output ndtr = 0.5 * erfc(-x * rsqrt(x.dtype(2)))
output entr = -y * log(y)
output rel = y * log(y / (1 - y))
output xlogy = 0 if x == 0 else x * log(y)
output log_expit = minimum(x, 0) - log1p(exp(-abs(x)))
output softplus = logaddexp(x, 0)
output huber = 0.5 * x * x if abs(x) <= 1 else abs(x) - 0.5
output pseudo = sqrt(1 + x * x) - 1
output boxcox = expm1(0.5 * log(y)) / 0.5
output sinc = 1 if x == 0 else sin(x.dtype(pi) * x) / (x.dtype(pi) * x)
output lse = logsumexp(x)
output soft = exp(x - logsumexp(x))
"""


def specials(v: Values) -> dict[str, Any]:
    x, y = v.x, v.y
    return {
        "erf_": special.erf(x), "erfc_": special.erfc(x), "cbrt_": special.cbrt(x), "exp2_": special.exp2(x),
        "expm1_": special.expm1(x), "log1p_": special.log1p(np.abs(x)), "expit": special.expit(x),
        "logit": special.logit(y), "ndtr": special.ndtr(x), "entr": special.entr(y), "rel": special.rel_entr(y, 1 - y),
        "xlogy": special.xlogy(x, y), "log_expit": special.log_expit(x), "softplus": special.softplus(x),
        "huber": special.huber(1, x), "pseudo": special.pseudo_huber(1, x), "boxcox": special.boxcox(y, 0.5),
        "sinc": np.sinc(x), "lse": special.logsumexp(x), "soft": special.softmax(x),
    }  # fmt: skip


def _near_nothing(inputs: dict[str, Array]) -> None:
    """Elements at and near zero, and large ones, where careless formulas lose everything."""
    inputs["x"][:6] = [0.0, 1e-5, -1e-5, 9.0, -9.0, 1e-3]


for _dtype, _tol in (("f32", Tol(3e-5, 3e-6)), ("f64", Tol(1e-10, 1e-13))):
    CASES += cases(
        f"special/functions_{_dtype}.lf",
        lambda r, v, f=_dtype: {"x": normal(r, v.N, dtype=f, scale=3), "y": uniform(r, v.N, lo=0.02, hi=0.98, dtype=f)},  # type: ignore[misc]
        specials,
        dict.fromkeys(("erf_", "erfc_", "cbrt_", "exp2_", "expm1_", "log1p_", "expit", "logit", "ndtr", "entr", "rel",
                       "xlogy", "log_expit", "softplus", "huber", "pseudo", "boxcox", "sinc", "lse", "soft"), _dtype),
        [Draw({"N": 200}, edit=_near_nothing), Draw({"N": 1})], source=SPECIAL.replace("F[", f"{_dtype}["), tol=_tol,
    )  # fmt: skip

# Recurrences, series and integrals: functions that the language has not, computed in f64 and rounded to f32.
SERIES = """
input x: f32[N] where -1 < x < 1
input z: f32[N] where 0.5 < z < 20
let u = f64(x)
let w = f64(z)
size D = 6
scan n in 1..D carry (p0 = u * 0 + 1, p1 = u) {
  next p0 = p1
  next p1 = ((2 * n + 1) * u * p1 - n * p0) / (n + 1)
}
scan n in 1..D carry (t0 = u * 0 + 1, t1 = u) {
  next t0 = t1
  next t1 = 2 * u * t1 - t0
}
scan n in 1..D carry (h0 = u * 0 + 1, h1 = 2 * u) {
  next h0 = h1
  next h1 = 2 * u * h1 - 2 * n * h0
}
let shifted[i] = w[i] + 8
let r[i] = 1 / (shifted[i] * shifted[i])
let stirling[i] = (shifted[i] - 0.5) * log(shifted[i]) - shifted[i] + 0.5 * log(2 * pi)
                  + (1f64 / 12 - r[i] * (1f64 / 360 - r[i] * (1f64 / 1260 - r[i] / 1680))) / shifted[i]
let climb[i] = sum(log(w[i] + k) for k in 0..8)
scan n in 0..5 carry (a = u * 0 + 1, g = sqrt(1 - u * u)) {
  next a = (a + g) / 2
  next g = sqrt(a * g)
}
output legendre = f32(p1)
output chebyshev = f32(t1)
output hermite = f32(h1)
output gammaln = f32(stirling - climb)
output gamma = f32(exp(stirling - climb))
output ellipk = f32(pi / (2 * a))
output j0[i] = f32(mean(cos(w[i] * sin(1f64 * pi * (k + 0.5) / 48)) for k in 0..48))
output i0[i] = f32(mean(exp(2 * u[i] * cos(1f64 * pi * (k + 0.5) / 32)) for k in 0..32))
output digamma[i] = f32(log(shifted[i]) - 0.5 / shifted[i] - r[i] * (1f64 / 12 - r[i] * (1f64 / 120 - r[i] / 252))
                        - sum(1 / (w[i] + k) for k in 0..8))
"""


def series(v: Values) -> dict[str, Any]:
    x, z, d = v.x, v.z, v.D
    return {
        "legendre": special.eval_legendre(d, x), "chebyshev": special.eval_chebyt(d, x),
        "hermite": special.eval_hermite(d, x), "gammaln": special.gammaln(z), "gamma": special.gamma(z),
        "ellipk": special.ellipk(x * x), "j0": special.j0(z), "i0": special.i0(2 * x), "digamma": special.digamma(z),
    }  # fmt: skip


CASES += cases(
    "special/series.lf",
    lambda r, v: {"x": uniform(r, v.N, lo=-0.95, hi=0.95), "z": uniform(r, v.N, lo=0.6, hi=19)}, series,
    dict.fromkeys(("legendre", "chebyshev", "hermite", "gammaln", "gamma", "ellipk", "j0", "i0", "digamma"), "f32"),
    [Draw({"N": 60}), Draw({"N": 1}), Draw({"N": 11}, {"D": 3})], defaults={"D": 6}, source=SERIES, tol=Tol(2e-6, 2e-6),
)  # fmt: skip
