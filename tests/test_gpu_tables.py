"""NumPy's validation tables on a GPU: each function at each type in each mode, in units in the last place.

`python -m pytest -m gpu -s tests/test_gpu_tables.py` prints the greatest error of each beside what the op table claims.
"""

from __future__ import annotations

import numpy as np
import pytest
from umath_tables import FORMULAS, Table, of_operations, tables

from loopfuse import driver, ops
from loopfuse.backends.reference import agrees, run_bounded
from loopfuse.bind import Given
from loopfuse.cuda import engine
from loopfuse.diag import Source
from loopfuse.driver import compile_source, lower_program, plan_sizes
from loopfuse.generate import Array
from loopfuse.oprow import Numerics
from loopfuse.passes import Options

pytestmark = pytest.mark.gpu

MODES: tuple[Numerics, ...] = ("strict", "default", "fast")


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


def on_gpu(table: Table, mode: str) -> Array:
    """The results of the compiled function, which also lie within the derived bound."""
    made = lower_program(compile_source(Source(table.id, table.script(mode))).typed)
    bound = driver.bind_program(made.typed, Given({"x": table.x}))
    optimised = driver.optimise(made, Options(sizes=bound.sizes))
    (found,) = driver.execute(optimised, bound, backend="cuda").outputs.values()
    inputs = {b.id: bound.inputs[b.id] for b in made.program.buffers if b.role == "in"}
    (bounded,) = run_bounded(made.program, inputs, plan_sizes(made.program) | bound.sizes).values()
    assert (miss := agrees(bounded, found)) is None, miss
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table", of_operations(), ids=lambda t: t.id)
def test_no_row_errs_by_more_than_is_claimed(table: Table, mode: Numerics) -> None:
    found = on_gpu(table, mode)
    error, part = table.excess(found, mode)
    worst = int(np.argmax(part))
    claim = ops.OPS[table.op].ulp(table.dtype, mode)
    print(f"{table.id} {mode}: at most {np.max(error):.3g} ulp of {claim:g} claimed; {table.x.size} rows")
    assert part[worst] <= 1, (table.x[worst], table.y[worst], found[worst], error[worst])
    zeros = table.y == 0
    if mode != "fast":  # which may take denormals for zero
        assert np.array_equal(np.signbit(found[zeros]), np.signbit(table.y[zeros]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("table", [t for t in tables() if t.name in FORMULAS], ids=lambda t: t.id)
def test_functions_of_several_operations(table: Table, mode: str) -> None:
    """Nothing is claimed of them but the derived bound."""
    found = on_gpu(table, mode)
    finite = np.isfinite(table.y) & np.isfinite(found)
    assert np.count_nonzero(finite) > table.x.size // 2
