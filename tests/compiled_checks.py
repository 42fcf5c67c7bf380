"""What the tests of a compiled back end ask of a program: results within the derived bound, faults told, the same bits twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_cases import Data, Judge, Suite

from loopfuse.bind import Bound
from loopfuse.diag import UserError
from loopfuse.driver import Optimised
from loopfuse.generate import Array

# Runs a program, and gives the arrays of its outputs in order; `UserError` LF0704 where an access leaves its array.
Runner = Callable[[Optimised, Bound], Mapping[str, Array]]


def check(suite: Suite, run: Runner, large: bool, first: int = 0, twice: bool = True) -> None:
    """Every set of data of a suite from the `first` on; fails where there is none."""
    sets = suite.sets(large)
    assert sets, "the script accepted no data"
    for data in sets[first:]:
        problem = trouble(suite, data, run, twice)
        assert not problem, f"{data.note}: {problem}"


def trouble(suite: Suite, data: Data, run: Runner, twice: bool = True) -> str:
    """What is wrong on one set of data, "" where nothing is."""
    optimised, judge = suite.optimised(data.bound), Judge(suite.lowered, data.bound)
    try:
        first = dict(run(optimised, data.bound))
    except UserError as told:
        if {d.code for d in told.diagnostics} != {"LF0704"}:
            raise
        return "" if judge.faults() else f"a fault that there is not: {told}"
    if judge.faults():
        return "an access went outside its array, and nothing was told"
    if problem := judge.verdict(first):
        return problem
    second = run(optimised, data.bound) if twice else first
    for name, array in first.items():
        if array.tobytes() != second[name].tobytes():
            return f"`{name}` has other bits in a second run"
    return ""
