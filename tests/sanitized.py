"""A plugin of pytest for runs under compute-sanitizer: which of the tests, and what initcheck must be told.

`LF_SHARD=K/N`: every Nth test from the Kth; `LF_SECONDS`: none begins after so many. What has run is listed on standard
output, a line each. Under initcheck (`LF_PRESET=1`), memory that a kernel writes by copies of tiles is set before it is launched:
the tool does not see what the hardware copies, and would take it for never written. That such kernels write all of it is what
tests of poisoned outputs hold.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest

from loopfuse.cuda import bound, program
from loopfuse.cuda.commands import Commands
from loopfuse.cuda.launch import Plan

START = time.monotonic()
POISON = 0xFF  # a NaN in every float type


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of this shard, in an order that mixes them."""
    shard, _, of = os.environ.get("LF_SHARD", "0/1").partition("/")
    items.sort(key=lambda item: item.nodeid)
    random.Random(7).shuffle(items)
    items[:] = items[int(shard) :: int(of)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test begins after the time given."""
    if time.monotonic() - START > float(os.environ.get("LF_SECONDS", "inf")):
        pytest.skip("the time is over")
    print(f"\n@@ {item.nodeid}", flush=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line for each test that ran."""
    if report.when == "call" and not report.skipped:
        print(f"\n@@ {'passed' if report.passed else 'FAILED'} {report.nodeid}", flush=True)


def targets(plan: Plan) -> set[str]:
    """Memory that a kernel of a plan writes by copies of tiles."""
    return {name for kernel in plan.code.kernels if kernel.tiling for name in kernel.tiling.goes if name in plan.bytes}


def preset(lane: program.Lane, pointers: Mapping[str, int]) -> None:
    """Set what copies of tiles will write."""
    for memory in targets(lane.plan):
        address, count = pointers.get(memory, lane.places.get(memory)), lane.plan.bytes[memory]
        if address and count:
            lane.target.driver.fill(address, POISON, count, lane.stream)


class Preset:
    """The commands of a lane, which set that memory for every set of arrays that they are to use."""

    def __init__(self, commands: Commands, lane: program.Lane) -> None:
        self._commands, self._lane = commands, lane

    def use(self, pointers: Mapping[str, int], params: Mapping[str, Any]) -> None:
        """As of the commands."""
        preset(self._lane, pointers)
        self._commands.use(pointers, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._commands, name)


if os.environ.get("LF_PRESET"):
    _lane, _bound = program.Lane.__init__, bound.Bound.__init__

    def _new_lane(self: program.Lane, *args: Any) -> None:
        _lane(self, *args)
        self.commands = Preset(self.commands, self)

    def _new_bound(self: bound.Bound, of: Any, lane: program.Lane, prepared: Any, *args: Any) -> None:
        _bound(self, of, lane, prepared, *args)
        preset(lane, prepared.pointers)

    program.Lane.__init__ = _new_lane  # type: ignore[method-assign]
    bound.Bound.__init__ = _new_bound  # type: ignore[method-assign]
