"""Why a kernel was not written another way: plans that would take longer, and ways to multiply that were not even tried, since
something else than a contraction took the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopfuse.diag import CompilerError
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit
from loopfuse.schedule.contraction import NAME
from loopfuse.views import tilings
from loopfuse.views.estimates import GENERAL, Estimate, Reckoned
from loopfuse.views.tables import microseconds


def untried(code: Code, known: Mapping[str, int], found: Reckoned, kernel: str) -> Iterator[str]:
    """Of a kernel of the IR the plans that no emitter was asked about, each with what it would take. `code` was written of
    the program, for the sizes `known`. For products also why they would not be taken faster: each reason as of emission."""
    estimate = found.each[kernel]
    told = {why.partition(": ")[0] for why in code.refusals.get(kernel, ())}
    mine = estimate.plan.schedule if estimate.own else ""
    for plan in estimate.plans:
        if plan.schedule in (mine, GENERAL, *told):
            continue
        if plan.schedule == NAME:
            yield from _multiplied(code, known, found, kernel, plan.cost.seconds)
        else:
            yield _slower(plan.schedule, plan.cost.seconds, estimate)


def _slower(what: str, seconds: float, estimate: Estimate) -> str:
    takes = f"{microseconds(estimate.seconds * 1e6)} us, bound by {estimate.bound}"
    return f"{what}: it would take {microseconds(seconds * 1e6)} us, and {estimate.schedule} takes {takes}"


def _multiplied(code: Code, known: Mapping[str, int], found: Reckoned, kernel: str, seconds: float) -> Iterator[str]:
    """What the kernel would be as a contraction, which is written on trial."""
    planned, dynamic = found.planned, any(name in code.sizes for name in known)
    try:
        trial = emit(planned.program, known, planned.device, dynamic=dynamic, only=NAME)
    except CompilerError:  # of another kernel, which the code at hand has not as a contraction
        yield _slower(NAME, seconds, found.each[kernel])
        return
    tiled = tilings.found(trial, kernel)
    if tiled:
        paths = ", ".join(dict.fromkeys(t.path for t in tiled))
        yield _slower(f"{NAME} by {paths}", sum(t.seconds for t in tiled), found.each[kernel])
        yield from (f"{NAME} by {why}" for why in tilings.declined(trial, kernel))
    else:
        yield from (why for why in trial.refusals.get(kernel, ()) if why.startswith(f"{NAME}: "))
