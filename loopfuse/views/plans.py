"""The plans of a program's kernels, asked of the schedules with a device and numbers for the sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loopfuse.analysis.env import environment
from loopfuse.devices import Device
from loopfuse.ir import Program
from loopfuse.passes.contract import live_buffers
from loopfuse.passes.manager import Stage
from loopfuse.schedule import FALLBACK, answers
from loopfuse.schedule.plan import Plan, Refusal


@dataclass(frozen=True, slots=True)
class Planned:
    """A program's kernels with their plans or refusals by id, and the numbers that these are for.

    `plans` are the cheapest, `possible` all that there are, the cheapest first. `sizes` are those of arrays and the script,
    with the names of those that are `assumed`; `numbers` has the extents of tiles too, which a plan chooses.
    """

    program: Program
    device: Device
    plans: dict[str, Plan]
    refusals: dict[str, Refusal]
    sizes: dict[str, int]
    assumed: frozenset[str]
    possible: dict[str, tuple[Plan, ...]]
    numbers: dict[str, int]

    @property
    def us(self) -> float:
        """The estimated microseconds of all kernels, one after the other."""
        return sum(plan.cost.seconds for plan in self.plans.values()) * 1e6

    @property
    def used(self) -> frozenset[str]:
        """The assumed sizes that had part in a number."""
        return self.assumed & frozenset(n for plan in self.plans.values() for n in plan.assumed)


def decided(stages: Iterable[Stage]) -> dict[str, Plan]:
    """The plans by kernel that fusion decided with, from what the passes left behind."""
    found: dict[str, Plan] = {}
    for stage in stages:
        found.update(stage.notes.get("plans", {}))
    return found


def plan(program: Program, device: Device, known: Mapping[str, int], stages: Iterable[Stage] = ()) -> Planned:
    """A plan for every kernel: the cheapest that the schedules answer for the kernel as it now is; where none takes it, the one
    that a stage decided with, if any."""
    had = decided(stages)
    env = environment(program, device, known)
    plans: dict[str, Plan] = {}
    refusals: dict[str, Refusal] = {}
    possible: dict[str, tuple[Plan, ...]] = {}
    live = live_buffers(program)
    for kernel in program.kernels:
        found = answers(kernel, env.buffers, env, live)
        possible[kernel.id] = tuple(sorted((p for p in found if isinstance(p, Plan)), key=lambda p: p.cost.seconds))
        best = next((p for p in possible[kernel.id] if p.schedule != FALLBACK), None)
        best = best or next(iter(possible[kernel.id]), None) or had.get(kernel.id)
        if best is not None:
            plans[kernel.id] = best
        else:
            refusals[kernel.id] = max((r for r in found if isinstance(r, Refusal)), key=lambda r: r.passed)
    chosen = {s.id for s in program.sizes if s.origin == "plan"}
    sizes = {s.id: env.sizes[s.id] for s in program.sizes if s.id in env.sizes and s.id not in chosen}
    return Planned(program, device, plans, refusals, sizes, env.assumed - chosen, possible, dict(env.sizes))
