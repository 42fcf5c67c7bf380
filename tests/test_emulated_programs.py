"""The programs of the tests as emitted kernels, run on the CPU by the emulator: small data, no GPU.

Each runs with its threads in several orders, which must give the same bits; what is read unwritten, or outside, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from compiled_checks import check, trouble
from emulator import available, build
from gpu_cases import Data, Suite, suites, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs

from loopfuse import driver
from loopfuse.bind import Bound
from loopfuse.diag import UserError, error
from loopfuse.driver import Optimised
from loopfuse.emit.program import emit
from loopfuse.generate import Array

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


def run(optimised: Optimised, bound: Bound, only: str | None = None, dynamic: bool = False) -> Mapping[str, Array]:
    """The results of the emitted kernels."""
    program = optimised.program
    code = emit(program, bound.sizes, only=only, dynamic=dynamic)
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
    return run(optimised, bound, "general", True)


@pytest.mark.parametrize("suite", suites(), ids=lambda s: s.id)
def test_program(suite: Suite) -> None:
    check(suite, run, large=False, twice=False)


@pytest.mark.parametrize("suite", suites(), ids=lambda s: s.id)
def test_general_kernels(suite: Suite) -> None:
    check(suite, run_general, large=False, twice=False)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_loop_ir(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    suite = Suite("random", lambda: wrapped(program), lambda lowered, large: iter(()), "none")
    problem = trouble(suite, Data("", Bound(sizes, inputs)), run, twice=False)
    assert not problem, problem
