"""Jobs for the nests of a kernel: products of one array that became one kernel, and are no nest of several products, as their
results have different columns."""

from __future__ import annotations

from dataclasses import replace

from loopfuse.emit.base import Job, Tiles
from loopfuse.schedule import contraction, segments
from loopfuse.schedule.plan import Plan


def nests(job: Job) -> tuple[Job, ...]:
    """A job for each nest of products, in their order and under names of their own; none where there is one alone, or where
    the schedule of contractions does not take each of them."""
    found: list[Job] = []
    for number, ask in enumerate(segments.nests(job.ask)):
        plan = contraction.accept(ask)
        if not isinstance(plan, Plan):
            return ()
        found.append(replace(job, kernel=ask.kernel, plan=plan, ask=ask, name=f"{job.name}_{number}", tiles=Tiles()))
    return tuple(found)
