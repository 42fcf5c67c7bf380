"""Schedules: whether, and how, one finished kernel can be run. All are asked; the cheapest acceptance wins."""

from __future__ import annotations

from collections.abc import Mapping

from loopfuse.analysis.env import Env
from loopfuse.analysis.sketch import sketch
from loopfuse.ir import Buffer, Kernel
from loopfuse.schedule import column, contraction, general, mapping, row
from loopfuse.schedule.base import Ask, Schedule
from loopfuse.schedule.plan import Plan, Refusal

__all__ = ["SCHEDULES", "accepts", "answers", "refusals"]

SCHEDULES: dict[str, Schedule] = {
    "map": mapping.accept,
    "row": row.accept,
    "column": column.accept,
    "contraction": contraction.accept,
    "general": general.accept,
}


def answers(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, live: frozenset[str]) -> list[Plan | Refusal]:
    """What every schedule says of a finished kernel, in the order of the table."""
    ask = Ask(kernel, buffers, env, live, sketch(kernel, buffers, env))
    return [schedule(ask) for schedule in SCHEDULES.values()]


def accepts(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, live: frozenset[str]) -> Plan | Refusal:
    """The cheapest plan for a finished kernel (one after merging, cascading and contraction), or the refusal that came
    farthest.

    `live` are the buffers that must be in device memory after it. Pure and blind to names.
    """
    found = answers(kernel, buffers, env, live)
    plans = [a for a in found if isinstance(a, Plan)]
    special = [p for p in plans if p.schedule != general.NAME]
    if plans:
        return min(special or plans, key=lambda p: (p.cost.seconds, len(p.launches)))
    return max((a for a in found if isinstance(a, Refusal)), key=lambda r: r.passed)


def refusals(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, live: frozenset[str]) -> tuple[Refusal, ...]:
    """Why each schedule that does not take the kernel refuses it, the farthest first."""
    found = [a for a in answers(kernel, buffers, env, live) if isinstance(a, Refusal)]
    return tuple(sorted(found, key=lambda r: -r.passed))
