"""Why a kernel was not written another way: plans that would take longer, and ways to multiply that were not even tried, since
something else than a contraction took the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopfuse.diag import CompilerError
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit
from loopfuse.schedule.contraction import NAME
from loopfuse.schedule.plan import Plan
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
            yield from _multiplied(code, known, found, kernel, plan)
        else:
            yield _planned(plan, estimate)


def _planned(plan: Plan, estimate: Estimate) -> str:
    """Plans are compared with plans, so that one may be less than what the kernel takes as it was written."""
    seconds = plan.cost.seconds
    chosen = next((p.cost.seconds for p in estimate.plans if p.schedule == estimate.schedule), estimate.seconds)
    if not chosen <= seconds < estimate.seconds:
        return _slower(plan.schedule, seconds, estimate)
    return (f"{plan.schedule}: planned at {_us(seconds)}, and {estimate.schedule} at {_us(chosen)}; as written that takes "
            f"{_us(estimate.seconds)}, bound by {estimate.bound}")  # fmt: skip


def _slower(what: str, seconds: float, estimate: Estimate) -> str:
    takes = f"{_us(estimate.seconds)}, bound by {estimate.bound}"
    return f"{what}: it would take {_us(seconds)}, and {estimate.schedule} takes {takes}"


def _us(seconds: float) -> str:
    return f"{microseconds(seconds * 1e6)} us"


def _multiplied(code: Code, known: Mapping[str, int], found: Reckoned, kernel: str, plan: Plan) -> Iterator[str]:
    """What the kernel would be as a contraction, which is written on trial."""
    if NAME not in found.trials:
        found.trials[NAME] = _tried(code, known, found)
    trial = found.trials[NAME]
    if trial is None:
        yield _planned(plan, found.each[kernel])
        return
    tiled = tilings.found(trial, kernel)
    if tiled:
        paths = ", ".join(dict.fromkeys(t.path for t in tiled))
        yield _slower(f"{NAME} by {paths}", sum(t.seconds for t in tiled), found.each[kernel])
        yield from (f"{NAME} by {why}" for why in tilings.declined(trial, kernel))
    else:
        yield from (why for why in trial.refusals.get(kernel, ()) if why.startswith(f"{NAME}: "))


def _tried(code: Code, known: Mapping[str, int], found: Reckoned) -> Code | None:
    """The whole program with contractions alone; None where that cannot be written."""
    planned, dynamic = found.planned, any(name in code.sizes for name in known)
    try:
        return emit(planned.program, known, planned.device, dynamic=dynamic, only=NAME)
    except CompilerError:  # of another kernel, which the code at hand has not as a contraction
        return None
