"""numexpr's own table of expression strings, read from the package that is installed, and its values.

The table stands in numexpr's test module: lists of strings, and one comprehension over them. The module is read as text
and only these statements are run: importing it would define its tests, and marks that are not ours.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracles.core import Array
from tests.oracles.expressions import Batch, batches

AVAILABLE = find_spec("numexpr") is not None
COUNT = 100  # elements of a vector, as in numexpr's tests
LEVELS = ("none", "moderate", "aggressive")
# What numexpr's tests vary beside the string: the type of all variables, and which of them is a scalar.
TYPES = {"int": int, "float32": np.float32, "float64": np.float64, "complex": complex}
SCALARS = {0: "vectors", 1: "a-scalar", 2: "b-scalar"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of numexpr's table."""

    expression: str
    scalar: int
    dtype: str
    level: str


@cache
def rows() -> tuple[Row, ...]:
    """All rows, repeated ones too."""
    spec = find_spec("numexpr.tests")
    assert spec is not None and spec.origin is not None
    body = ast.parse((Path(spec.origin).parent / "test_numexpr.py").read_text(encoding="utf-8")).body
    at = next(k for k, s in enumerate(body) if isinstance(s, ast.FunctionDef) and s.name == "test_expressions")
    function = body[at]
    assert isinstance(function, ast.FunctionDef) and isinstance(function.decorator_list[0], ast.Call)
    first = next(k for k, s in enumerate(body) if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "tests")
    lists = [s for s in body[first:at] if isinstance(s, (ast.Assign, ast.For, ast.Expr))]
    scope: dict[str, Any] = {"np": np, "double": np.float64}
    exec(compile(ast.Module(lists, []), "numexpr's table", "exec"), scope)
    made = eval(compile(ast.Expression(function.decorator_list[0].args[1]), "numexpr's rows", "eval"), scope)
    names = {t: n for n, t in TYPES.items()}
    return tuple(Row(e, scalar, names[dtype], level) for e, scalar, dtype, level, _, _ in made)


def arrays(dtype: str, scalar: int) -> dict[str, Array]:
    """The variables as numexpr's test makes them: even numbers, zeros, hundredths, and the numbers from 0."""
    kind = TYPES[dtype]
    count = np.arange(COUNT, dtype=kind)
    found: dict[str, Any] = {"a": np.arange(2 * COUNT, dtype=kind)[::2], "a2": np.zeros((COUNT, COUNT), kind),
                             "b": count / COUNT, "c": count, "d": count, "e": count}  # fmt: skip
    if scalar:
        name = "ab"[scalar - 1]
        found[name] = found[name][COUNT // 2]
    return {name: np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value) for name, value in found.items()}


def table(size: int = 50) -> tuple[list[Batch], dict[str, list[Row]]]:
    """Scripts for the whole table, and the rows that cannot be said, by what is missing."""
    made: list[Batch] = []
    missing: dict[str, list[Row]] = {}
    for dtype in TYPES:
        for scalar, told in SCALARS.items():
            here = [r for r in rows() if r.dtype == dtype and r.scalar == scalar]
            if dtype == "complex":
                missing.setdefault("complex numbers", []).extend(here)
                continue
            strings = list(dict.fromkeys(r.expression for r in here))
            found, untold = batches(f"{dtype}-{told}", strings, arrays(dtype, scalar), size)
            made += found
            for row in here:
                if row.expression in untold:
                    missing.setdefault(untold[row.expression], []).append(row)
    return made, missing


def value(expression: str, variables: Mapping[str, Array], level: str) -> Array:
    """What numexpr gives. `level` is one of its levels of optimisation."""
    import numexpr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(numexpr.evaluate(expression, local_dict=dict(variables), global_dict={}, optimization=level))
