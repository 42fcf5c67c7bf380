"""NumPy's validation tables of elementary functions, as they lie in the installed package: some 700 correctly rounded
results a function and type.

A row is a type, the bits of an operand, those of the correctly rounded result, and the error that NumPy allows itself,
which is not used: what is allowed here is what the op table claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from op_samples import ulps

from loopfuse import ops
from loopfuse.dtypes import F32, F64, DType
from loopfuse.numerics import Array
from loopfuse.oprow import Numerics

FOLDER = Path(np.__file__).parent / "_core" / "tests" / "data"
TYPES = {"np.float32": F32, "np.float64": F64}
# NumPy's names of functions that the language has under others
NAMES = {"arccos": "acos", "arcsin": "asin", "arctan": "atan"}

# What the language has no operation for, written with those that it has: their results are held against the derived
# bound, since nothing else is claimed of them. `T` is the type; past LARGE the square of x would lose x or overflow.
FORMULAS = {
    "arcsinh": """let a = abs(x)
let t = minimum(a, LARGE)
let near = log1p(t + t * t / (1 + sqrt(1 + t * t)))
let far = log(maximum(a, 1)) + 0.6931471805599453
output y = copysign(near if a < LARGE else far, x)
""",
    "arccosh": """let t = minimum(x, LARGE) - 1
let near = log1p(t + sqrt(t) * sqrt(t + 2))
let far = log(maximum(x, 1)) + 0.6931471805599453
output y = near if not (x >= LARGE) else far
""",
    "arctanh": """let a = abs(x)
output y = copysign(0.5 * log1p(2 * a / (1 - a)), x)
""",
}
LARGE = {"f32": "1e4", "f64": "1e8"}  # from where on 1 + t * t is t * t

# Rows that are not correctly rounded, by function, type and operand: log(1 - 2^-23), log(0.7930513). The exact results
# lie just past the middle of two numbers, which a longdouble shows.
WRONG_ROWS = {("log", "f32"): (0x3F7FFFFE, 0x3F4B0569)}


@dataclass(frozen=True)
class Table:
    """The rows of a function at a type: operands and correctly rounded results."""

    name: str
    dtype: DType
    x: Array
    y: Array

    @property
    def id(self) -> str:
        """For the names of tests."""
        return f"{self.name}-{self.dtype}"

    @property
    def op(self) -> str:
        """The operation's name in the language."""
        return NAMES.get(self.name, self.name)

    def script(self, mode: str) -> str:
        """The function of all operands as a script."""
        body = FORMULAS.get(self.name, f"output y = {self.op}(x)\n").replace("LARGE", LARGE[self.dtype.name])
        return f"numerics {mode}\ninput x: {self.dtype}[{self.x.size}]\n{body}"

    def excess(self, found: Array, mode: Numerics = "default") -> tuple[Array, Array]:
        """The error of each result in units in the last place, and the same as a part of what the op table allows: past
        1 it is more than is claimed.

        The exact result may be half a unit from the table's, to either side. An infinity is where another is; what
        rounds to an infinity may be the greatest number.
        """
        with np.errstate(all="ignore"):
            wide = self.y.astype(np.float64)
            finite = np.isfinite(wide)
            row = ops.OPS[self.op]
            error = ulps(found, self.y.astype(np.longdouble), self.dtype)
            unit = ops.spacing(np.where(finite, np.abs(wide), ops.greatest(self.dtype)), self.dtype)
            value = np.where(finite, wide, np.copysign(ops.greatest(self.dtype), wide))
            claim = row.rounding([self.x.astype(np.float64)], value, self.dtype, mode)
            part = np.where(error == 0, 0.0, error / (claim / unit + 0.5))
            return error, np.asarray(np.where(np.isnan(part), np.inf, part))


@cache
def tables() -> tuple[Table, ...]:
    """Every table, in the order of the files."""
    found = []
    for path in sorted(FOLDER.glob("umath-validation-set-*.csv")):
        rows = [line.split(",") for line in path.read_text("utf-8").splitlines() if line.startswith("np.")]
        for name, dtype in TYPES.items():
            bits = np.array(
                [[int(cell, 16) for cell in row[1:3]] for row in rows if row[0] == name], dtype=f"u{dtype.itemsize}"
            )
            x, y = (np.ascontiguousarray(column).view(dtype.numpy) for column in bits.T)
            found.append(Table(path.stem.rsplit("-", 1)[1], dtype, x, y))
    return tuple(found)


def of_operations() -> tuple[Table, ...]:
    """The tables of functions that are operations."""
    return tuple(t for t in tables() if t.name not in FORMULAS)


def bits(x: Array) -> Any:
    """The bits of floats."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
