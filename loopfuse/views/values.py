"""One line about an array, and its values as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopfuse.dtypes import of_numpy
from loopfuse.generate import Array


def summarize(array: Array) -> dict[str, Any]:
    """Type, shape, least, greatest, mean (all three without NaN; None where there is nothing), NaNs and elements."""
    dtype = of_numpy(array.dtype)
    flat = np.asarray(array).reshape(-1)
    nan = 0
    if dtype is not None and dtype.is_float:
        missing = np.isnan(flat)
        nan = int(np.count_nonzero(missing))
        flat = flat[~missing] if nan else flat
    facts: dict[str, Any] = {"dtype": str(dtype), "shape": list(array.shape), "min": None, "max": None, "mean": None}
    if flat.size:
        with np.errstate(all="ignore"):
            facts |= {"min": flat.min().item(), "max": flat.max().item(), "mean": float(flat.mean(dtype=np.float64))}
    return {**facts, "nan": nan, "count": int(array.size)}


def describe(facts: dict[str, Any]) -> str:
    """The line: `f32[4, 8]  min 0.012  max 0.61  mean 0.125  nan 0  count 32`."""
    shape = f"[{', '.join(map(str, facts['shape']))}]" if facts["shape"] else ""
    values = "  ".join(f"{key} {number(facts[key])}" for key in ("min", "max", "mean"))
    return f"{facts['dtype']}{shape}  {values}  nan {facts['nan']}  count {facts['count']}"


def number(value: object) -> str:
    """A number in at most six significant digits, as the language writes it; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def show_values(array: Array, full: bool, width: int = 100) -> str:
    """The values in lines of a width; the middle of a large array is left out unless `full`."""
    threshold = array.size + 1 if full else 1000
    return np.array2string(array, threshold=threshold, max_line_width=width, separator=", ")


def short_values(array: Array) -> Any:
    """Nested lists of Python numbers, a float by the fewest digits that its type tells it by: 0.1 of an f32 0.1."""
    if array.ndim:
        return [short_values(np.asarray(part)) for part in array]
    return array.item() if array.dtype.kind in "biu" else float(str(array[()]))


def plain_values(array: Array) -> Any:
    """Nested lists of Python numbers, exact."""
    dtype = of_numpy(array.dtype)
    return (array.astype(np.float64) if dtype is not None and dtype.is_float else array).tolist()
