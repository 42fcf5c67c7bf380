"""The programs of the tests as emitted kernels, run on the CPU by the emulator: small data, no GPU.

Each runs with its threads in several orders, which must give the same bits; what is read unwritten, or outside, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from compiled_checks import check, trouble
from emulator import available, build
from gpu_cases import Data, Suite, suites, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs

from loopfuse import driver
from loopfuse.bind import Bound
from loopfuse.devices import H200, Device
from loopfuse.diag import UserError, error
from loopfuse.driver import Optimised
from loopfuse.emit.program import emit
from loopfuse.generate import Array

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


FEW_UNITS = replace(H200, units=3)  # so that few blocks are many: a kernel for a large GPU sees few of everything here


def run(optimised: Optimised, bound: Bound, device: Device = H200, only: str | None = None, dynamic: bool = False,
        ) -> Mapping[str, Array]:  # fmt: skip
    """The results of the emitted kernels."""
    program = optimised.program
    code = emit(program, bound.sizes, device, only=only, dynamic=dynamic)
    arrays = driver.run_inputs(optimised, bound)
    sizes = driver.plan_sizes(program) | bound.sizes
    outputs = {b.id: (b.dtype, [int(p.value(sizes)) for p in b.shape]) for b in program.buffers if b.role == "out"}
    emulated = build(code)
    found = emulated.check({id: arrays[id] for id in code.inputs}, {id: arrays[id] for id in code.params},
                           {name: sizes[name] for name in code.sizes}, outputs)  # fmt: skip
    if emulated.faults.any():
        raise UserError(error("LF0704", "an access went outside its array"))
    return found


def run_general(optimised: Optimised, bound: Bound) -> Mapping[str, Array]:
    """The results of the general kernels, for sizes that are told at the call."""
    return run(optimised, bound, FEW_UNITS, "general", True)


def run_small(optimised: Optimised, bound: Bound) -> Mapping[str, Array]:
    """The results of kernels that are made for a device with few multiprocessors."""
    return run(optimised, bound, FEW_UNITS)


# What `make test` runs; the rest takes the better part of an hour, and belongs to `make test-all`.
QUICK = {"scripts", "peers", "programs", "finished"}


def marked(quick: set[str]) -> list[Any]:
    """All suites, those of other groups marked slow."""
    return [pytest.param(s, id=s.id, marks=() if s.id.split("/")[0] in quick else pytest.mark.slow) for s in suites()]


@pytest.mark.parametrize("suite", marked(QUICK))
def test_program(suite: Suite) -> None:
    """Kernels for the sizes at hand: for a large device, and on the last data for a small one too."""
    check(suite, run, large=False, twice=False)
    check(suite, run_small, large=False, first=-1, twice=False)


def test_a_filter_reads_a_row_that_was_kept() -> None:
    """What a condition reads of the row was made, and then neither stored nor found again."""
    suite = next(s for s in suites() if s.id == "regressions/regression-filter-by-a-kept-row")
    check(suite, run, large=False, first=-1, twice=False)


@pytest.mark.parametrize("suite", marked({"scripts", "finished", "reference"}))
def test_general_kernels(suite: Suite) -> None:
    """The plain kernels, whose sizes are told at the call."""
    check(suite, run_general, large=False, twice=False)


@pytest.mark.parametrize("device", [H200, FEW_UNITS], ids=["H200", "small"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_loop_ir(device: Device, data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    suite = Suite("random", lambda: wrapped(program), lambda lowered, large: iter(()), "none")

    def on_device(optimised: Optimised, bound: Bound) -> Mapping[str, Array]:
        return run(optimised, bound, device)

    problem = trouble(suite, Data("", Bound(sizes, inputs)), on_device, twice=False)
    assert not problem, problem
