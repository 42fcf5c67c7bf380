"""What a kernel should take, one number for each: of the tiles that it was written with, else of the plan by which it was
written. Fusion decides before anything is written, by the cheapest plan; what is shown afterwards is of the kernel itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loopfuse.analysis.env import environment
from loopfuse.emit.code import Code
from loopfuse.emit.program import EMITTERS
from loopfuse.passes.contract import live_buffers
from loopfuse.schedule import answers
from loopfuse.schedule.plan import Plan
from loopfuse.views.plans import Planned

GENERAL = "general"  # what writes the kernels that nothing else does


@dataclass(frozen=True, slots=True)
class Estimate:
    """The seconds of a kernel of the IR, and the plan that they belong to.

    `of`: its `tiles`, where it was written with some; its `plan`; or `another`, where the plan is of a schedule that nothing
    writes yet, so that the number says what such a kernel would take and not what this one does.
    """

    seconds: float
    plan: Plan
    of: Literal["tiles", "plan", "another"] = "plan"

    @property
    def own(self) -> bool:
        """Whether it is of the kernel as it was written."""
        return self.of != "another"


def estimates(planned: Planned, code: Code | None) -> dict[str, Estimate]:
    """By kernel. `code`: what was written; None where there is none, as for a CPU, and the plans are all that is known."""
    if code is None:
        return {id: Estimate(plan.cost.seconds, plan) for id, plan in planned.plans.items()}
    writers = {k.kernel: k.schedule or GENERAL for k in code.kernels}
    tiles: dict[str, float] = {}
    for function in code.kernels:
        if function.tiling is not None:
            tiles[function.kernel] = tiles.get(function.kernel, 0.0) + function.tiling.seconds
    found: dict[str, Estimate] = {}
    for kernel, plan in planned.plans.items():
        writer, refused = writers.get(kernel, GENERAL), code.refusals.get(kernel, ())
        taken: Plan | None = plan
        if not _took(plan, writer, refused):
            taken = next((p for p in _plans(planned, kernel) if _took(p, writer, refused)), None)
        if kernel in tiles:
            found[kernel] = Estimate(tiles[kernel], taken or plan, "tiles")
        elif taken is not None:
            found[kernel] = Estimate(taken.cost.seconds, taken)
        else:
            found[kernel] = Estimate(plan.cost.seconds, plan, "another")
    return found


def _plans(planned: Planned, kernel: str) -> list[Plan]:
    """All plans of a kernel, the cheapest first."""
    program = planned.program
    known = {name: size for name, size in planned.sizes.items() if name not in planned.assumed}
    env = environment(program, planned.device, known)
    body = next(k for k in program.kernels if k.id == kernel)
    found = answers(body, env.buffers, env, live_buffers(program))
    return sorted((p for p in found if isinstance(p, Plan)), key=lambda p: p.cost.seconds)


def _took(plan: Plan, writer: str, refused: Sequence[str]) -> bool:
    """Whether an emitter wrote a kernel by a plan, if it did by none that is cheaper."""
    if writer == GENERAL:
        return plan.schedule == GENERAL
    return plan.schedule in EMITTERS and not any(why.startswith(f"{plan.schedule}: ") for why in refused)
