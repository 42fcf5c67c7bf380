"""Schedules: whether, and how, one finished kernel can be run. All are asked; the cheapest acceptance wins."""

from __future__ import annotations

from collections.abc import Mapping

from loopfuse.analysis.env import Env
from loopfuse.analysis.sketch import sketch
from loopfuse.ir import Buffer, Kernel
from loopfuse.schedule import (
    block,
    column,
    contraction,
    general,
    mapping,
    row,
    scan,
    scatter,
    stencil,
    steps,
    stream,
)
from loopfuse.schedule.base import Ask, Schedule
from loopfuse.schedule.plan import Plan, Refusal

__all__ = ["SCHEDULES", "accepts", "answers", "refusals"]


def _steps(ask: Ask) -> Plan | Refusal:
    return steps.accept(ask, _best)


SCHEDULES: dict[str, Schedule] = {
    "map": mapping.accept,
    "row": row.accept,
    "column": column.accept,
    "contraction": contraction.accept,
    "stream": stream.accept,
    "stencil": stencil.accept,
    "scan": scan.accept,
    "steps": _steps,
    "scatter": scatter.accept,
    "block": block.accept,
    "general": general.accept,
}
FALLBACK = general.NAME  # asked only where no other accepts


def answers(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, live: frozenset[str]) -> list[Plan | Refusal]:
    """What every schedule says of a finished kernel, in the order of the table."""
    ask = Ask(kernel, buffers, env, live, sketch(kernel, buffers, env))
    return [schedule(ask) for schedule in SCHEDULES.values()]


def accepts(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, live: frozenset[str]) -> Plan | Refusal:
    """The cheapest plan for a finished kernel (one after merging, cascading and contraction), or the refusal that came
    farthest.

    `live` are the buffers that must be in device memory after it. Pure and blind to names.
    """
    return _best(Ask(kernel, buffers, env, live, sketch(kernel, buffers, env)))


def _best(ask: Ask) -> Plan | Refusal:
    best: Plan | None = None
    farthest: Refusal | None = None
    for name, schedule in SCHEDULES.items():
        if name == FALLBACK and best is not None:
            break
        found = schedule(ask)
        if isinstance(found, Refusal):
            if farthest is None or found.passed > farthest.passed:
                farthest = found
        elif best is None or found.cost.seconds < best.cost.seconds:
            best = found
    if best is not None:
        return best
    assert farthest is not None
    return farthest


def refusals(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, live: frozenset[str]) -> tuple[Refusal, ...]:
    """Why each schedule that does not take the kernel refuses it, the farthest first."""
    found = [a for a in answers(kernel, buffers, env, live) if isinstance(a, Refusal)]
    return tuple(sorted(found, key=lambda r: -r.passed))
