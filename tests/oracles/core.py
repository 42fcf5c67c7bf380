"""What a case is, and the helpers that the oracles share.

An oracle is an answer computed from the mathematics, in float64 and Python integers, with NumPy and SciPy and nothing
of this package. A case is one script, one draw of its extents, and the oracle of that script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Rng = np.random.Generator
ROOT = Path(__file__).resolve().parents[2]

DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_), "bf16": np.dtype(ml_dtypes.bfloat16),
    **{f"{kind[0]}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}  # fmt: skip


class Values(dict[str, Any]):
    """Inputs, extents, sizes and params by name: `v.x`, `v.N`, `v.eps`. Float inputs are widened to float64."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, slots=True)
class Tol:
    """When an output agrees, where no derived bound is at hand.

    At most the fraction `odd` of the elements may lie outside `atol + rtol * abs(want)`, and those by at most `most`.
    """

    rtol: float = 2e-5
    atol: float = 2e-5
    odd: float = 0.0
    most: float = np.inf


F16 = Tol(4e-3, 4e-3)
F64 = Tol(1e-9, 1e-10)
EXACT = Tol(0.0, 0.0)
GREY = Tol(0.0, 0.0, 0.02, 1.0)  # a rounded pixel: now and then one level off


@dataclass(frozen=True, slots=True)
class Draw:
    """Extents, `-D` sizes and params of one case; `edit` changes the inputs in place to reach an edge."""

    dims: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, float] = field(default_factory=dict)
    edit: Callable[[dict[str, Array]], object] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One script, one draw, one oracle.

    `script` is a path from the root of the repository; where `source` is set, it only names that text. `make` draws
    the inputs; `expected` gives the outputs, each with the element type that `outputs` names, in float64 or integers.
    `defaults` are the sizes and params as the script has them.
    """

    script: str
    make: Callable[[Rng, Values], dict[str, Array]]
    expected: Callable[[Values], dict[str, Any]]
    outputs: Mapping[str, str]
    draw: Draw = field(default_factory=Draw)
    defaults: Mapping[str, float] = field(default_factory=dict)
    tol: Tol = field(default_factory=Tol)
    tols: Mapping[str, Tol] = field(default_factory=dict)
    source: str | None = None

    @property
    def id(self) -> str:
        """A name for a test."""
        parts = [f"{k}{v}" for k, v in (*self.draw.dims.items(), *self.draw.sizes.items(), *self.draw.params.items())]
        return "-".join([Path(self.script).stem, *parts, *([self.draw.note] if self.draw.note else [])])

    @property
    def text(self) -> str:
        """The script's text."""
        return self.source if self.source is not None else (ROOT / self.script).read_text(encoding="utf-8")

    def settings(self) -> Values:
        """Extents, sizes and params; a float param as f32 holds it."""
        merged = {**self.defaults, **self.draw.dims, **self.draw.sizes, **self.draw.params}
        return Values({k: float(np.float32(v)) if isinstance(v, float) else v for k, v in merged.items()})

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """The inputs, in their declared types."""
        made = self.make(np.random.default_rng([seed, len(self.id)]), self.settings())
        if self.draw.edit is not None:
            self.draw.edit(made)
        return made

    def answer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The expected outputs, in float64 or integers."""
        with np.errstate(all="ignore"):
            values = Values({**self.settings(), **{k: widen(v) for k, v in inputs.items()}})
            return {k: np.asarray(v) for k, v in self.expected(values).items()}

    def tolerance(self, output: str) -> Tol:
        """The fallback tolerance of one output."""
        return self.tols.get(output, self.tol)


def cases(script: str, make: Callable[[Rng, Values], dict[str, Array]], expected: Callable[[Values], dict[str, Any]],
          outputs: Mapping[str, str], draws: Iterable[Draw], **rest: Any) -> list[Case]:  # fmt: skip
    """One case for each draw. A script without a slash lies in tests/scripts."""
    path = script if "/" in script and not script.startswith("tasks/") else f"tests/scripts/{script}"
    return [Case(path, make, expected, outputs, draw, **rest) for draw in draws]


def widen(array: Array) -> Array:
    """Floats as float64, integers as int64 (uint64 stays)."""
    if array.dtype.kind in "fV" or array.dtype == DTYPES["bf16"]:
        return array.astype(np.float64)
    return array if array.dtype in (np.bool_, np.uint64) else array.astype(np.int64)


def agrees(got: Array, want: Array, tol: Tol) -> str | None:
    """None where `got` agrees with `want` within `tol`, else what is wrong."""
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    a, b = widen(np.asarray(got)), widen(want)
    with np.errstate(all="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
        same = (a == b) | (np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else False)
        far = ~same & ~(difference <= tol.atol + tol.rtol * np.abs(b))
    if not far.any():
        return None
    worst = tuple(
        int(i)
        for i in np.unravel_index(int(np.argmax(np.where(far, np.nan_to_num(difference, nan=np.inf), -1))), far.shape)
    )
    told = f"{int(far.sum())} of {far.size} differ, worst at {list(worst)}: {a[worst]} for {b[worst]}"
    if far.mean() > tol.odd or not (difference[far] <= tol.most).all():
        return told
    return None


# -- inputs -----------------------------------------------------------------------------------------------------------


def normal(rng: Rng, *shape: int, dtype: str = "f32", scale: float = 1.0) -> Array:
    """Normal numbers of standard deviation `scale`."""
    return np.asarray(rng.standard_normal(shape) * scale).astype(DTYPES[dtype])


def uniform(rng: Rng, *shape: int, lo: float = 0.0, hi: float = 1.0, dtype: str = "f32") -> Array:
    """Evenly spread numbers."""
    return np.asarray(rng.uniform(lo, hi, shape)).astype(DTYPES[dtype])


def integers(rng: Rng, lo: int, hi: int, *shape: int, dtype: str = "i32") -> Array:
    """Integers from `lo` up to, not including, `hi`."""
    return np.asarray(rng.integers(lo, hi, shape)).astype(DTYPES[dtype])


# -- mathematics that several oracles need ----------------------------------------------------------------------------


def correlate(x: Array, w: Array, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1) -> Array:
    """Grouped cross-correlation over all axes of `x` after batch and channels, zeros outside."""
    axes = x.ndim - 2
    padded = np.pad(x, [(0, 0), (0, 0)] + [(pad, pad)] * axes)
    reach = tuple(dilation * (k - 1) + 1 for k in w.shape[2:])
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + axes)))
    view = view[(slice(None), slice(None), *[slice(None, None, stride)] * axes, *[slice(None, None, dilation)] * axes)]
    parts = []
    for xg, wg in zip(np.split(view, groups, axis=1), np.split(w, groups, axis=0), strict=True):
        taps = list(range(2 + axes, 2 + 2 * axes))
        parts.append(np.tensordot(xg, wg, axes=([1, *taps], list(range(1, w.ndim)))))
    return np.asarray(np.moveaxis(np.concatenate(parts, axis=-1), -1, 1))


def normalise(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) over `axes`."""
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps))


def group_norm(x: Array, gamma: Array, beta: Array, groups: int, eps: float = 1e-5) -> Array:
    """Normalised over the channels of a group and all positions, then a scale and a shift for each channel."""
    n, c = x.shape[:2]
    flat = normalise(x.reshape(n, groups, -1), (2,), eps).reshape(x.shape)
    channel = (1, c, *[1] * (x.ndim - 2))
    return flat * gamma.reshape(channel) + beta.reshape(channel)


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x))."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


# -- what a script declares, read without the compiler ----------------------------------------------------------------


def declared_inputs(text: str) -> dict[str, tuple[str, str]]:
    """Name to (element type, dims as written) of the `input` statements of a script."""
    plain = re.sub(r"#[^\n]*", "", text)
    found = re.findall(r"^\s*input\s+(\w+)\s*:\s*(\w+)(?:\[([^\]]*)\])?", plain, re.MULTILINE)
    return {name: (dtype, dims) for name, dtype, dims in found}


def declared_outputs(text: str) -> list[str]:
    """Names of the `output` statements of a script, in order."""
    return re.findall(r"^\s*output\s+(\w+)", re.sub(r"#[^\n]*", "", text), re.MULTILINE)
