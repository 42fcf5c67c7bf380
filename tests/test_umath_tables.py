"""NumPy's validation tables through the reference, the passes and the derived bounds. On a GPU: test_gpu_tables.py.

What a compiled program may be off is what the op table claims of each function, type and mode; the tables, which are not
ours, say whether the reference keeps to it, and whether a correctly rounded result is always one that is admitted.
"""

from __future__ import annotations

import numpy as np
import pytest
from umath_tables import FORMULAS, WRONG_ROWS, Table, bits, of_operations, tables

from loopfuse import driver, ops
from loopfuse.agreement import every_pass
from loopfuse.backends.reference import Bounded, run_bounded
from loopfuse.bind import Bound, Given
from loopfuse.diag import Source
from loopfuse.driver import Lowered, compile_source, lower_program, plan_sizes
from loopfuse.generate import Array
from loopfuse.passes import Options

FEW_UNDECIDED = 3  # rows of a table: next to where the result overflows, or where it begins to be one
EVERY = {t.id: t for t in tables()}
# The modes differ in what they allow, and little in what the passes do with one function.
MODES = [pytest.param(m, marks=() if m == "default" else pytest.mark.slow) for m in ("strict", "default", "fast")]


def compiled(table: Table, mode: str) -> tuple[Lowered, Bound]:
    """The table's function as a program, with the operands as its input."""
    made = lower_program(compile_source(Source(table.id, table.script(mode))).typed)
    return made, driver.bind_program(made.typed, Given({"x": table.x}))


def result(made: Lowered, bound: Bound, passes: str = "none", options: Options | None = None) -> Array:
    """The one output by the reference."""
    optimised = driver.optimise(made, options or Options(sizes=bound.sizes), passes)
    (found,) = driver.execute(optimised, bound, backend="reference").outputs.values()
    return found


def same(a: Array, b: Array) -> Array:
    """Where two arrays have the same bits, any NaN being as good as another."""
    return np.asarray((bits(a) == bits(b)) | (np.isnan(a) & np.isnan(b)))


def test_every_table_is_used() -> None:
    """A function that NumPy adds is an operation, or is written as one in the language."""
    assert len(EVERY) == 40 and sum(t.x.size for t in EVERY.values()) > 26_000
    assert all(t.op in ops.OPS or t.name in FORMULAS for t in EVERY.values())
    assert sum(t.x.size for t in of_operations()) > 22_000


@pytest.mark.parametrize("table", of_operations(), ids=lambda t: t.id)
def test_the_reference_errs_by_no_more_than_is_claimed(table: Table) -> None:
    """For f32, which is rounded once from f64, it is the table's own bits, but where the table is not right."""
    found = ops.OPS[table.op].evaluate([table.x], table.dtype)
    error, part = table.excess(found)
    assert part.max() <= 1, (table.x[int(np.argmax(part))], error.max())
    zeros = table.y == 0
    assert np.array_equal(np.signbit(found[zeros]), np.signbit(table.y[zeros]))
    if table.dtype.name == "f32":
        wrong = np.flatnonzero(~same(found, table.y))
        assert {int(b) for b in bits(table.x)[wrong]} == set(WRONG_ROWS.get((table.op, table.dtype.name), ()))


@pytest.mark.parametrize(("name", "dtype"), WRONG_ROWS)
def test_rows_that_are_not_correctly_rounded(name: str, dtype: str) -> None:
    """A longdouble is nearer to the reference's number than to the table's."""
    table = EVERY[f"{name}-{dtype}"]
    for operand in WRONG_ROWS[name, dtype]:
        (at,) = np.unique(bits(table.x), return_index=True)[1][np.unique(bits(table.x)) == operand]
        exact = np.log(table.x[at].astype(np.longdouble))
        found = ops.OPS[name].evaluate([table.x[at]], table.dtype)
        assert abs(found - exact) < abs(table.y[at] - exact)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table", EVERY.values(), ids=lambda t: t.id)
def test_passes_keep_every_row(table: Table, mode: str) -> None:
    made, bound = compiled(table, mode)
    for row in every_pass(made, bound):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"


@pytest.mark.parametrize("table", EVERY.values(), ids=lambda t: t.id)
def test_what_is_computed_while_compiling_has_the_same_bits(table: Table) -> None:
    """The operands as a constant: the passes compute the whole result."""
    made, bound = compiled(table, "strict")
    plain = result(made, bound)
    frozen = driver.frozen_arrays(made.typed, bound, ("x",))
    optimised = driver.optimise(made, Options(sizes=bound.sizes, frozen=frozen))
    assert not any(b.role == "in" for b in optimised.program.buffers)
    (found,) = driver.execute(optimised, bound, backend="reference").outputs.values()
    assert np.all(same(plain, found))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table", EVERY.values(), ids=lambda t: t.id)
def test_a_correctly_rounded_result_is_within_the_derived_bound(table: Table, mode: str) -> None:
    """Also of the functions that take several operations; of these it is within a few units in the last place."""
    made, bound = compiled(table, mode)
    (bounded,) = bounds(made, bound)
    value, finite = bounded.value, np.isfinite(bounded.value)
    with np.errstate(all="ignore"):
        off = np.abs(table.y.astype(np.longdouble) - bounded.shadow)
        unit = ops.spacing(np.where(finite, np.abs(table.y.astype(np.float64)), 1.0), table.dtype)
        near = off <= bounded.bound + 0.5 * unit
        alike = (table.y == value) | (np.isnan(table.y) & np.isnan(value))
    wrong = np.where(finite, ~near, ~alike) & ~bounded.undecided
    assert not wrong.any(), [
        (table.x[k], table.y[k], value[k], bounded.bound[k] / unit[k]) for k in np.flatnonzero(wrong)[:3]
    ]
    assert np.count_nonzero(bounded.undecided) <= FEW_UNDECIDED


def bounds(made: Lowered, bound: Bound) -> list[Bounded]:
    """The outputs with their bounds."""
    p = made.program
    arrays = {b.id: bound.inputs[b.id] for b in p.buffers if b.role == "in"}
    return list(run_bounded(p, arrays, plan_sizes(p) | bound.sizes).values())


@pytest.mark.parametrize("table", of_operations(), ids=lambda t: t.id)
def test_an_error_past_the_claim_is_seen(table: Table) -> None:
    wrong = table.y
    for _ in range(int(ops.OPS[table.op].ulp(table.dtype)) + 2):
        wrong = np.nextafter(wrong, wrong.dtype.type(np.inf))
    _, part = table.excess(wrong)
    assert part.max() > 1 and np.count_nonzero(part > 1) > table.x.size // 4
    assert not np.any(table.excess(table.y)[0])
