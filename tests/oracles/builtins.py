"""The built-in functions, views, casts, integers and scatters, a small script for each family."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from tests.oracles.core import EXACT, Array, Case, Draw, Rng, Tol, Values, cases, integers, normal, uniform

CASES: list[Case] = []
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 0.5, -0.5, 1.5, -2.5]


def _special(inputs: dict[str, Array]) -> None:
    inputs["x"][:] = SPECIAL


# -- shapes -----------------------------------------------------------------------------------------------------------

SHAPES = """
input x: f32[N, M]
input v: f32[N]
input k: i32[L] where 0 <= k < N
require N >= 1 and M >= 1
output a = reshape(x, M, N)
output b = transpose(x[None], 2, 0, 1)
output c = swapaxes(x, 0, 1) + x.T + x.mT
output d = squeeze(expand_dims(x, 1), axis=1)
output e = broadcast_to(v[:, None], 2, N, 3)
output f = concat(x, 2 * x, axis=1)
output g = stack(v, v + 1, v + 2)
output h = pad(x, ((1, 2), (0, 3)), value=7)
output i = pad(v, (2, 1), mode="reflect")
output j = flip(x) + flip(flip(x, axis=0), axis=1)
output l = roll(x, 2, axis=1)
output m = roll(v, -1)
output n = tile(v, 3)
output o = tile(x, 2, 2)
output p = repeat(x, 3, axis=0)
output q = tril(x, k=-1) + triu(x, k=1)
output r = diagonal(x[:, 0:1] * v)
output s = take(x, k, axis=0) + x[k]
output t = one_hot(k, N)
output u = x[::-1, ::2]
output w = x[-1, 1:] + x[0, :-1]
output y = reshape(x, -1)
"""


def shapes(v: Values) -> dict[str, Any]:
    x, k = v.x, v.k
    return {
        "a": x.reshape(v.M, v.N), "b": np.transpose(x[None], (2, 0, 1)), "c": x.T * 3, "d": x,
        "e": np.broadcast_to(v.v[:, None], (2, v.N, 3)), "f": np.concatenate([x, 2 * x], 1),
        "g": np.stack([v.v, v.v + 1, v.v + 2]), "h": np.pad(x, ((1, 2), (0, 3)), constant_values=7),
        "i": np.pad(v.v, (2, 1), mode="reflect"), "j": 2 * x[::-1, ::-1], "l": np.roll(x, 2, 1), "m": np.roll(v.v, -1),
        "n": np.tile(v.v, 3), "o": np.tile(x, (2, 2)), "p": np.repeat(x, 3, 0), "q": np.tril(x, -1) + np.triu(x, 1),
        "r": x[:, 0] * v.v, "s": 2 * x[k], "t": np.eye(v.N)[k], "u": x[::-1, ::2], "w": x[-1, 1:] + x[0, :-1],
        "y": x.ravel(),
    }  # fmt: skip


CASES += cases(
    "builtin/shapes.lf",
    lambda r, v: {"x": normal(r, v.N, v.M), "v": normal(r, v.N), "k": integers(r, 0, v.N, v.L)},
    shapes, dict.fromkeys("abcdefghijlmnopqrstuwy", "f32"),
    [Draw({"N": 5, "M": 5, "L": 7}), Draw({"N": 2, "M": 2, "L": 0}), Draw({"N": 1, "M": 1, "L": 2})],
    source=SHAPES, tol=Tol(1e-6, 1e-6),
)  # fmt: skip


# -- element by element -----------------------------------------------------------------------------------------------

# Name in the language, the same function in NumPy or SciPy, and the interval where it is sampled.
UNARY: dict[str, tuple[Any, float, float]] = {
    "abs": (np.abs, -5, 5), "sign": (np.sign, -5, 5), "floor": (np.floor, -5, 5), "ceil": (np.ceil, -5, 5),
    "round": (np.rint, -5, 5), "trunc": (np.trunc, -5, 5), "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9), "cbrt": (np.cbrt, -9, 9), "exp": (np.exp, -9, 9), "exp2": (np.exp2, -9, 9),
    "expm1": (np.expm1, -2, 2), "log": (np.log, 0.1, 9), "log2": (np.log2, 0.1, 9), "log10": (np.log10, 0.1, 9),
    "log1p": (np.log1p, -0.9, 9), "sin": (np.sin, -9, 9), "cos": (np.cos, -9, 9), "tan": (np.tan, -1, 1),
    "asin": (np.arcsin, -1, 1), "acos": (np.arccos, -1, 1), "atan": (np.arctan, -9, 9), "sinh": (np.sinh, -5, 5),
    "cosh": (np.cosh, -5, 5), "tanh": (np.tanh, -5, 5), "erf": (special.erf, -3, 3), "erfc": (special.erfc, -3, 3),
    "sigmoid": (special.expit, -9, 9),
}  # fmt: skip
ELEMENTWISE = "input x: f32[N]\ninput y: f32[N]\n" + "".join(
    f"output {name}_ = {name}({lo!r} + {hi - lo!r} * x)\n" for name, (_, lo, hi) in UNARY.items()
) + """
output minimum_ = minimum(x, y)
output maximum_ = maximum(x, y)
output clip_ = clip(x, 0.25, 0.75)
output fma_ = fma(x, y, x)
output copysign_ = copysign(x, y - 0.5)
output atan2_ = atan2(x - 0.5, y - 0.5)
output logaddexp_ = logaddexp(x, y)
output where_ = where(x < y, x, y * y)
output lazy_ = x / y if y > 0.5 else y ** 2
output close_ = close(x, y, rtol=0, atol=0.25)
output logic_ = not (x < 0.5 and y < 0.5) or 0.1 < x <= 0.2
"""  # fmt: skip


def elementwise(v: Values) -> dict[str, Any]:
    x, y = v.x, v.y
    answers = {f"{name}_": f(np.float32(lo) + np.float32(hi - lo) * x) for name, (f, lo, hi) in UNARY.items()}
    return answers | {
        "minimum_": np.minimum(x, y), "maximum_": np.maximum(x, y), "clip_": np.clip(x, 0.25, 0.75), "fma_": x * y + x,
        "copysign_": np.copysign(x, y - 0.5), "atan2_": np.arctan2(x - 0.5, y - 0.5), "logaddexp_": np.logaddexp(x, y),
        "where_": np.where(x < y, x, y * y), "lazy_": np.where(y > 0.5, x / y, y**2),
        "close_": (np.abs(x - y) <= 0.25).astype(int),
        "logic_": (~((x < 0.5) & (y < 0.5)) | ((np.float32(0.1) < x) & (x <= np.float32(0.2)))).astype(int),
    }  # fmt: skip


CASES += cases(
    "builtin/elementwise.lf", lambda r, v: {"x": uniform(r, v.N), "y": uniform(r, v.N)}, elementwise,
    {**{f"{n}_": "f32" for n in (*UNARY, "minimum", "maximum", "clip", "fma", "copysign", "atan2", "logaddexp", "where",
                                 "lazy")}, "close_": "bool", "logic_": "bool"},
    [Draw({"N": 200}), Draw({"N": 1}), Draw({"N": 0})], source=ELEMENTWISE,
    tol=Tol(1e-5, 3e-6), tols={f"{n}_": Tol(0, 0, odd=0.02) for n in ("floor", "ceil", "round", "trunc", "sign", "close")},
)  # fmt: skip

SPECIALS = """
input x: f32[N]
output big = maximum(x, 0)
output small = minimum(x, 0)
output cut = clip(x, -1, 1)
output root = sqrt(x)
output loga = log(x)
output e = exp(x)
output rounded = round(x)
output nans = isnan(x)
output infs = isinf(x)
output finite = isfinite(x)
output whole = i32(x)
output byte = u8(x)
output tiny = i8(x)
output wide = i64(x)
output half = f32(f16(x))
output brain = f32(bf16(x))
output inverse = 1 / x
output same = x == x
output top = max(x[i] for i if x[i] == x[i])
output at = argmax(x)
"""


def specials(v: Values) -> dict[str, Any]:
    def cast(least: int, most: int) -> Array:
        return np.array([0 if np.isnan(e) else int(min(max(e, least), most)) for e in v.x.tolist()], object).astype(
            np.int64
        )

    x = v.x
    return {
        "big": np.maximum(x, 0), "small": np.minimum(x, 0), "cut": np.clip(x, -1, 1), "root": np.sqrt(x),
        "loga": np.log(x), "e": np.exp(x).astype(np.float32).astype(np.float64), "rounded": np.rint(x),
        "nans": np.isnan(x).astype(int), "infs": np.isinf(x).astype(int), "finite": np.isfinite(x).astype(int),
        "whole": cast(-(2**31), 2**31 - 1), "byte": cast(0, 255), "tiny": cast(-128, 127),
        "wide": cast(-(2**63), 2**63 - 1), "half": x.astype(np.float16).astype(np.float64),
        "brain": x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64),
        "inverse": (np.float32(1) / x.astype(np.float32)).astype(np.float64), "same": (x == x).astype(int),
        "top": np.float64(np.nanmax(x)), "at": int(np.argmax(x)),
    }  # fmt: skip


CASES += cases(
    "builtin/specials.lf", lambda r, v: {"x": normal(r, v.N)}, specials,
    {**dict.fromkeys(("big", "small", "cut", "root", "loga", "e", "rounded"), "f32"),
     **dict.fromkeys(("nans", "infs", "finite"), "bool"), "whole": "i32", "byte": "u8", "tiny": "i8", "wide": "i64",
     **dict.fromkeys(("half", "brain", "inverse"), "f32"), "same": "bool", "top": "f32", "at": "i64"},
    [Draw({"N": len(SPECIAL)}, edit=_special, note="special"), Draw({"N": 5})], source=SPECIALS, tol=Tol(1e-6, 1e-7),
)  # fmt: skip


# -- integers ---------------------------------------------------------------------------------------------------------

INTEGERS = """
input a: T[N]
input b: T[N]
input s: T[N]
output add = a + b
output sub = a - b
output mul = a * b
output div = a // b
output mod = a % b
output neg = -a
output and_ = a & b
output or_ = a | b
output xor_ = a ^ b
output inv = ~a
output left = a << s
output right = a >> s
output pop = popcount(a)
output cube = a ** 3
output low = u8(a)
output mag = abs(a)
output least = minimum(a, b)
output total = sum(a)
output prod_ = prod(a[i] for i)
"""


def _wrap(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def whole(bits: int, signed: bool) -> Any:
    """Exact answers in Python integers, wrapped at the width."""

    def answer(v: Values) -> dict[str, Any]:
        a, b, s = ([int(e) for e in v[n]] for n in ("a", "b", "s"))

        def each(f: Any, wide: int = bits, sign: bool = signed) -> Array:
            kind = np.int64 if sign or wide < 64 else np.uint64
            return np.array([_wrap(f(*p), wide, sign) for p in zip(a, b, s, strict=True)], kind)

        def shifted(x: int, n: int) -> int:
            return x >> n if 0 <= n < bits else (-1 if x < 0 else 0)

        total, product = sum(a), 1
        for e in a:
            product *= e
        big = np.int64 if signed else np.uint64
        return {
            "add": each(lambda a, b, s: a + b), "sub": each(lambda a, b, s: a - b), "mul": each(lambda a, b, s: a * b),
            "div": each(lambda a, b, s: a // b if b else 0), "mod": each(lambda a, b, s: a % b if b else 0),
            "neg": each(lambda a, b, s: -a), "and_": each(lambda a, b, s: a & b), "or_": each(lambda a, b, s: a | b),
            "xor_": each(lambda a, b, s: a ^ b), "inv": each(lambda a, b, s: ~a),
            "left": each(lambda a, b, s: a << s if 0 <= s < bits else 0), "right": each(lambda a, b, s: shifted(a, s)),
            "pop": each(lambda a, b, s: (a & ((1 << bits) - 1)).bit_count()), "cube": each(lambda a, b, s: a**3),
            "low": each(lambda a, b, s: a, 8, False), "mag": each(lambda a, b, s: abs(a)),
            "least": each(lambda a, b, s: min(a, b)), "total": big(_wrap(total, 64, signed)),
            "prod_": big(_wrap(product, 64, signed)),
        }  # fmt: skip

    return answer


def _integers(name: str) -> None:
    bits, signed = int(name[1:]), name[0] == "i"
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)

    def make(r: Rng, v: Values) -> dict[str, Array]:
        def draw() -> list[int]:
            return [least + int(r.integers(0, 1 << 62)) * 4 % (most - least + 1) for _ in range(v.N)]

        a, b = draw(), draw()
        edges = [(least, -1 if signed else most), (most, 0), (7, 2), (least, 0), (most, most)]
        for n, (x, y) in enumerate(edges[: v.N]):
            a[n], b[n] = x, y
        made = {"a": a, "b": b, "s": [int(e) for e in r.integers(0, bits + 9, v.N)]}
        return {k: np.array(e, object).astype(f"{'' if signed else 'u'}int{bits}") for k, e in made.items()}

    wide = "i64" if signed else "u64"
    names = ["add", "sub", "mul", "div", "mod", "neg", "and_", "or_", "xor_", "inv", "left", "right", "pop", "cube"]
    outputs = {**dict.fromkeys(names, name), "low": "u8", "mag": name, "least": name, "total": wide, "prod_": wide}
    CASES.extend(cases(f"builtin/integers_{name}.lf", make, whole(bits, signed), outputs,
                       [Draw({"N": 40}), Draw({"N": 1})], source=INTEGERS.replace("T[", f"{name}["), tol=EXACT))  # fmt: skip


for _name in ("i8", "u8", "i32", "u32", "i64", "u64"):
    _integers(_name)


# -- reductions -------------------------------------------------------------------------------------------------------

REDUCTIONS = """
input x: f32[A, B, C]
input k: i8[A, B]
input h: f16[A, C]
output a = sum(x)
output b = sum(x, axis=(0, 2), keepdims=true)
output c = prod(x, axis=1)
output d = max(x, axis=-1)
output e = min(x, axis=0)
output f = mean(x, axis=(1, 2))
output g = any(x > 1, axis=1)
output i = all(x > -1)
output j = argmax(x, axis=2)
output l = argmin(x)
output m = logsumexp(x, axis=0)
output n = count_nonzero(k, axis=0)
output o = norm(x[0])
output p = var(x, axis=1, ddof=1)
output q = std(x, axis=2)
output r = sum(k, axis=1)
output s = sum(x > 0)
output t = sum(h, axis=1)
output u = sum(x, dtype=f64)
output v = max(k)
output w = cumsum(x, axis=1)
output y = cumprod(x[:, 0], axis=0)
output z = cummax(k, axis=0)
output aa = cummin(x, axis=2)
output bb = sum(x[ia, ib, ic] for ia, ib in 0..B by 2, ic if x[ia, ib, ic] > 0)
output cc = argmax(x[0, 0, ic] for ic)
require A >= 1 and B >= 2 and C >= 1
"""


def reductions(v: Values) -> dict[str, Any]:
    x, k = v.x, v.k
    return {
        "a": x.sum(), "b": x.sum((0, 2), keepdims=True), "c": x.prod(1), "d": x.max(-1), "e": x.min(0),
        "f": x.mean((1, 2)), "g": (x > 1).any(1).astype(int), "i": int((x > -1).all()), "j": x.argmax(2),
        "l": int(x.argmin()), "m": special.logsumexp(x, axis=0), "n": np.count_nonzero(k, axis=0),
        "o": np.sqrt((x[0] ** 2).sum()), "p": x.var(1, ddof=1), "q": x.std(2), "r": k.sum(1), "s": int((x > 0).sum()),
        "t": v.h.sum(1), "u": x.sum(), "v": k.max(), "w": x.cumsum(1), "y": x[:, 0].cumprod(0),
        "z": np.maximum.accumulate(k, 0), "aa": np.minimum.accumulate(x, 2),
        "bb": np.where(x[:, ::2] > 0, x[:, ::2], 0).sum(), "cc": int(x[0, 0].argmax()),
    }  # fmt: skip


CASES += cases(
    "builtin/reductions.lf",
    lambda r, v: {"x": normal(r, v.A, v.B, v.C), "k": integers(r, -128, 128, v.A, v.B, dtype="i8"),
                  "h": normal(r, v.A, v.C, dtype="f16")},
    reductions,
    {**dict.fromkeys("abcdef", "f32"), "g": "bool", "i": "bool", "j": "i64", "l": "i64", "m": "f32", "n": "i64",
     **dict.fromkeys("opq", "f32"), "r": "i64", "s": "i64", "t": "f16", "u": "f64", "v": "i8", "w": "f32", "y": "f32",
     "z": "i8", "aa": "f32", "bb": "f32", "cc": "i64"},
    [Draw({"A": 3, "B": 5, "C": 7}), Draw({"A": 1, "B": 2, "C": 1}), Draw({"A": 11, "B": 2, "C": 13})],
    source=REDUCTIONS, tol=Tol(2e-5, 2e-5), tols={"t": Tol(2e-3, 2e-3)},
)  # fmt: skip

EMPTY = """
input x: f32[N, M]
output a = sum(x, axis=0)
output b = prod(x, axis=0)
output c = mean(x, axis=0)
output d = any(x > 0, axis=0)
output e = all(x > 0, axis=0)
output f = logsumexp(x, axis=0)
output g[j] = max(x[i, j] for i if false)
output h[j] = min(i for i in 0..M if i > M + j)
"""
CASES += cases(
    "builtin/empty.lf", lambda r, v: {"x": normal(r, v.N, v.M)},
    lambda v: {"a": np.zeros(v.M), "b": np.ones(v.M), "c": np.full(v.M, np.nan), "d": np.zeros(v.M, int),
               "e": np.ones(v.M, int), "f": np.full(v.M, -np.inf), "g": np.full(v.M, -np.inf),
               "h": np.full(v.M, 2**63 - 1)},
    {"a": "f32", "b": "f32", "c": "f32", "d": "bool", "e": "bool", "f": "f32", "g": "f32", "h": "i64"},
    [Draw({"N": 0, "M": 3}), Draw({"N": 0, "M": 0})], source=EMPTY.replace("output h[j] =", "output h[j in 0..M] ="),
    tol=EXACT,
)  # fmt: skip
