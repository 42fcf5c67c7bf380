"""Expression strings as scripts against numexpr: its own table, and every operator at every pair of its kinds.

The tolerance is ULPS units in the last place of the narrowest float type in which something of the expression is
computed. `DIFFERENCES` lists where numexpr's value is not the one to compare with; they are counted.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from loopfuse.agreement import every_pass
from loopfuse.bind import Bound, Given
from loopfuse.diag import Source, UserError
from loopfuse.driver import Lowered, Optimised, bind_program, compile_source, execute, lower_program, optimise
from loopfuse.passes import Options
from tests.oracles.core import Array
from tests.oracles.expressions import (
    Batch,
    Translator,
    Untold,
    batches,
    own_arrays,
    own_expressions,
    random_expressions,
)
from tests.oracles.numexpr_table import AVAILABLE, LEVELS, rows, table, value

if not AVAILABLE:
    pytest.skip("numexpr is not installed: `pip install numexpr` (0.5 MB)", allow_module_level=True)

ULPS = 4
DIFFERENCES = {
    "remainder": "numexpr takes floor(a / b) of the rounded quotient; ours is exact, as NumPy's, with which it is compared",
    "power past the type": "an integer power that does not fit wraps here and in NumPy; numexpr rounds one of long double",
    "type by level": "numexpr gives x ** 0.0 and half powers another type when it optimises; the value is compared",
}
COUNTED = "2.14.2"  # the version for which the counts are stated
FLOATS = ("float", "double")
LARGE, SMALL = 50, 12  # expressions in a script: without fusion, and with it, which searches among all of them


@cache
def _batches(size: int) -> list[Batch]:
    own = [*own_expressions(), *random_expressions(200)]
    return [*table(size)[0], *batches("own", own, own_arrays(), size)[0]]


def _some(size: int, every: int) -> list[Any]:
    """All scripts, each so-manieth of `make test`, the others marked slow."""
    return [pytest.param(b, id=b.id, marks=pytest.mark.slow if k % every else ())
            for k, b in enumerate(_batches(size))]  # fmt: skip


def _lowered(batch: Batch) -> tuple[Lowered, Bound]:
    typed = compile_source(Source(batch.id, batch.text)).typed
    return lower_program(typed), bind_program(typed, Given(dict(batch.arrays)))


def ulps(got: Array, want: Array, narrow: bool) -> Array:
    """The distance in units in the last place of `want`, at least those of f32 if `narrow`; 0 for NaN beside NaN."""
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(want.astype(np.float64)))
        unit = np.maximum(unit, np.spacing(np.abs(want.astype(np.float32)))) if narrow else unit
        gap = np.abs(got.astype(np.longdouble) - want.astype(np.longdouble)) / unit
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0, np.where(np.isnan(gap), np.inf, gap))


def agree(got: Array, want: Array, narrow: bool) -> bool:
    """Whether values agree: integers and bools exactly, floats within ULPS."""
    if got.shape != want.shape:
        return False
    if want.dtype.kind != "f" or got.dtype.kind != "f":
        return np.array_equal(got, want)
    return not (ulps(got, want, narrow) > ULPS).any()


def compare(batch: Batch, outputs: dict[str, Array], seen: Counter[str]) -> list[str]:
    """What is wrong with the outputs of a script, against numexpr at each of its levels; `seen` counts differences."""
    wrong = []
    for k, (expression, ops) in enumerate(zip(batch.expressions, batch.ops, strict=True)):
        for level in LEVELS:
            got, narrow = outputs[f"e{k}"], any(kind == "float" for _, kind in ops)
            want = value(expression, batch.arrays, level)
            if want.dtype != got.dtype and level != "none" and any(op == "**" for op, _ in ops):
                seen["type by level"] += 1
                got, narrow = got.astype(want.dtype), True
            if want.dtype == got.dtype and agree(got, want, narrow):
                continue
            kind = _excused(ops, got)
            if not kind or not agree(got, _by_numpy(expression, batch, got.dtype), narrow):
                wrong.append(f"{expression} ({level}): {got!r}, expected {want!r}")
            seen[kind] += 1
    return wrong


def _excused(ops: frozenset[tuple[str, str]], got: Array) -> str:
    """The kind of difference that may be met among these operations, "" if none."""
    if any(op in ("%", "//") and kind in FLOATS for op, kind in ops):
        return "remainder"
    return "power past the type" if any(op == "**" for op, _ in ops) and got.dtype.kind == "i" else ""


def _by_numpy(expression: str, batch: Batch, dtype: Any) -> Array:
    """NumPy's value, its inputs converted first as numexpr converts them."""
    with np.errstate(all="ignore"):
        wide = {n: a.astype(dtype) if a.dtype != np.bool_ else a for n, a in batch.arrays.items()}
        return np.asarray(eval(expression, {}, wide)).astype(dtype)


@pytest.mark.parametrize("batch", _some(LARGE, 14))
def test_as_written(batch: Batch) -> None:
    """Without passes, and after all but fusion."""
    lowered, bound = _lowered(batch)
    without = optimise(lowered, Options(sizes=bound.sizes), "-fuse")
    for program in (lowered, without):
        outputs = execute(program, bound, backend="reference").outputs
        assert not (wrong := compare(batch, outputs, Counter())), "\n".join(wrong)


@pytest.mark.parametrize("batch", _some(SMALL, 70))
def test_after_all_passes(batch: Batch) -> None:
    lowered, bound = _lowered(batch)
    fused: Optimised = optimise(lowered, Options(sizes=bound.sizes))
    outputs = execute(fused, bound, backend="reference").outputs
    assert not (wrong := compare(batch, outputs, Counter())), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("batch", _batches(SMALL), ids=lambda b: b.id)
def test_after_every_pass(batch: Batch) -> None:
    lowered, bound = _lowered(batch)
    for row in every_pass(lowered, bound):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"


# -- the table as such ------------------------------------------------------------------------------------------------


def test_every_row_is_compared_or_counted() -> None:
    found, missing = table(LARGE)
    compared = {(b.id.rsplit("-", 1)[0], e) for b in found for e in b.expressions}
    left = sum(len(r) for r in missing.values())
    names = {0: "vectors", 1: "a-scalar", 2: "b-scalar"}
    held = sum((f"{r.dtype}-{names[r.scalar]}", r.expression) in compared for r in rows())
    assert held + left == len(rows()) > 5000
    assert set(missing) == {"complex numbers", "negative powers of integers"}
    assert batches("own", [*own_expressions(), *random_expressions(200)], own_arrays())[1] == {}


@pytest.mark.slow
def test_differences_are_those_told() -> None:
    """Each kind that is listed does occur, and so often as docs/trust.md says."""
    import numexpr

    seen: Counter[str] = Counter()
    for batch in _batches(LARGE):
        lowered, bound = _lowered(batch)
        compare(batch, execute(lowered, bound, backend="reference").outputs, seen)
    assert set(seen) == set(DIFFERENCES)
    missing = {why: len(r) for why, r in table(LARGE)[1].items()}
    if numexpr.__version__ == COUNTED:
        assert len(rows()) == 5928
        assert missing == {"complex numbers": 900, "negative powers of integers": 24}
        assert seen == {"remainder": 87, "power past the type": 9, "type by level": 30}


def test_what_numexpr_refuses_is_refused() -> None:
    """Powers of integers whose exponent is a negative number."""
    for text in ("a ** -1", "(a + 1) ** -7", "a ** (2 - 3)"):
        with pytest.raises(ValueError, match="negative integer powers"):
            value(text, {"a": np.arange(3)}, "none")
        with pytest.raises(UserError) as caught:
            compile_source(Source("p", f"input a: i64[N]\noutput y = {text}\n"))
        assert {d.code for d in caught.value.diagnostics} == {"LF0216"}


def test_a_wrong_value_is_found() -> None:
    (batch,) = batches("one", ["a * 3 + b", "a / 7"], {"a": np.arange(5.0), "b": np.ones(5)})[0]
    outputs = {"e0": np.arange(5.0) * 3 + 1, "e1": np.arange(5.0) / 7}
    assert not compare(batch, outputs, Counter())
    outputs["e1"] = np.nextafter(np.nextafter(outputs["e1"], 9), 9) * (1 + 1e-15)
    assert compare(batch, outputs, Counter())
    assert compare(batch, outputs | {"e0": outputs["e0"].astype(np.float32)}, Counter())


def test_the_translator_refuses_what_it_does_not_know() -> None:
    for text in ("a @ a", "conj(a)", "a < 1 < 2", "a[0]", "contains(a, a)", "a if a else a", "a.imag"):
        with pytest.raises(Untold):
            Translator({"a": "double"}).translate(text)
