"""The programs of public reports on a GPU, against the values that the reports state: fused and unfused, in every mode."""

from __future__ import annotations

import pytest
from report_cases import HEAVY, HEAVY_BYTES, LIGHT, MODES, STATEMENTS, ready, stated

from loopfuse import driver
from loopfuse.cuda import engine
from loopfuse.memory import free_memory
from loopfuse.passes import Options

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


def trouble(id: str, mode: str, passes: str) -> str:
    """What is wrong with the kernels of a report beside the stated values, "" for nothing."""
    made = ready(id, mode)
    optimised = driver.optimise(made.lowered, Options(sizes=made.bound.sizes), passes)
    found = driver.execute(optimised, made.bound, backend="cuda").outputs
    return stated(made, list(found.values()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id", LIGHT)
def test_stated_value(id: str, mode: str) -> None:
    for passes in ("default",) if id == STATEMENTS else ("none", "default"):
        assert not (problem := trouble(id, mode, passes)), f"passes {passes}: {problem}"


@pytest.mark.parametrize("id", sorted(HEAVY))
def test_heavy(id: str) -> None:
    """About 5 GB of the device: flat indices past 2^31."""
    if free_memory() < HEAVY_BYTES:
        pytest.skip(f"it needs {HEAVY_BYTES >> 30} GiB of the host's memory for the input")
    assert not (problem := trouble(id, "strict", "default")), problem
