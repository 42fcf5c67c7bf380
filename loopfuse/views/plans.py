"""The plans of a program's kernels, asked of the schedules with a device and numbers for the sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loopfuse.analysis.env import environment
from loopfuse.devices import Device
from loopfuse.ir import Program
from loopfuse.passes.contract import live_buffers
from loopfuse.passes.manager import Stage
from loopfuse.schedule import accepts
from loopfuse.schedule.plan import Plan, Refusal


@dataclass(frozen=True, slots=True)
class Planned:
    """A program's kernels with their plans or refusals by id, and the numbers that these are for."""

    program: Program
    device: Device
    plans: dict[str, Plan]
    refusals: dict[str, Refusal]
    sizes: dict[str, int]
    assumed: frozenset[str]

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
    """A plan for every kernel: the one that a stage decided with, else what the schedules answer."""
    had = decided(stages)
    env = environment(program, device, known)
    plans: dict[str, Plan] = {}
    refusals: dict[str, Refusal] = {}
    live = live_buffers(program)
    for kernel in program.kernels:
        answer = had.get(kernel.id) or accepts(kernel, env.buffers, env, live)
        if isinstance(answer, Plan):
            plans[kernel.id] = answer
        else:
            refusals[kernel.id] = answer
    sizes = {s.id: env.sizes[s.id] for s in program.sizes if s.id in env.sizes}
    return Planned(program, device, plans, refusals, sizes, env.assumed)
