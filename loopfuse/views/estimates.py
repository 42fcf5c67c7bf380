"""What a kernel should take, one number for each: of the tiles that it was written with, else of the plan by which it was
written. Fusion decides before anything is written, by the cheapest plan; what is shown afterwards is of the kernel itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from loopfuse.emit.code import Code
from loopfuse.emit.program import EMITTERS, NO_COST
from loopfuse.schedule.model import OVERLAP
from loopfuse.schedule.plan import Plan
from loopfuse.views import empty, written
from loopfuse.views.launches import Launched, idle, launches, planned_launches
from loopfuse.views.plans import Planned

GENERAL = "general"  # what writes the kernels that nothing else does
Bound = Literal["memory", "compute", "launch", "nothing"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The seconds of a kernel of the IR, the plan that they belong to, and how it is launched.

    `of`: its `tiles`, where it was written with some; its `plan`; `another`, where the plan is of a schedule that nothing
    writes yet, so that the number says what such a kernel would take and not what this one does; or `nothing`, where the
    sizes leave it nothing to do and it is not launched. `plan` has the roles, trees, rounding and operations of the code where
    there is code; what of it was planned otherwise stands in `planned`, in words. `plans` are all that were possible, the
    cheapest first. `written`: whether there is code, whose launches these are; else they are the plan's. `dtype`: of the matrix
    units' operands, where they are used.
    """

    seconds: float
    plan: Plan
    of: Literal["tiles", "plan", "another", "nothing"] = "plan"
    launches: tuple[Launched, ...] = ()
    plans: tuple[Plan, ...] = ()
    writer: str = ""
    written: bool = False
    planned: str = ""
    dtype: str = ""

    @property
    def own(self) -> bool:
        """Whether it is of the kernel as it was written."""
        return self.of != "another"

    @property
    def schedule(self) -> str:
        """The schedule by which the kernel is written; the plan's, where nothing was written."""
        return self.plan.schedule if self.own or not self.writer else self.writer

    @property
    def compute(self) -> float:
        """The seconds of the arithmetic: of tiles what is left of their time beside memory's."""
        cost = self.plan.cost
        if self.of != "tiles":
            return cost.compute
        rest = max(0.0, self.seconds - cost.launch)
        if rest > (1 + OVERLAP) * cost.memory:
            return rest - OVERLAP * cost.memory
        return max(0.0, (rest - cost.memory) / OVERLAP)

    @property
    def bound(self) -> Bound:
        """What the time goes to."""
        if self.of == "nothing":
            return "nothing"
        cost = self.plan.cost
        if cost.launch >= max(cost.memory, self.compute):
            return "launch"
        return "memory" if cost.memory >= self.compute else "compute"


def estimates(planned: Planned, code: Code | None) -> dict[str, Estimate]:
    """By kernel. `code`: what was written; None where there is none, as for a CPU, and the plans are all that is known."""
    if code is None:
        plain = {id: Estimate(p.cost.seconds, p, launches=planned_launches(p)) for id, p in planned.plans.items()}
        return {id: _real(planned, id, one) for id, one in plain.items()}
    writers = {k.kernel: k.schedule or GENERAL for k in code.kernels}
    launched = launches(code, planned.sizes)
    tiles: dict[str, float] = {}
    for function in code.kernels:
        if function.tiling is not None:
            tiles[function.kernel] = tiles.get(function.kernel, 0.0) + function.tiling.seconds
    found: dict[str, Estimate] = {}
    for kernel, plan in planned.plans.items():
        writer, refused = writers.get(kernel, GENERAL), code.refusals.get(kernel, ())
        plans = planned.possible[kernel]
        taken = next((p for p in plans if _took(p, writer, refused)), None)
        if kernel in tiles:
            made = Estimate(tiles[kernel], taken or plan, "tiles")
        elif taken is not None:
            made = Estimate(taken.cost.seconds, taken)
        else:
            made = Estimate(plan.cost.seconds, plan, "another")
        mine = launched.get(kernel, ())
        made = replace(made, launches=mine, plans=plans, writer=writers.get(kernel, ""), written=True)
        found[kernel] = _nothing(made) if idle(mine) else _written(_real(planned, kernel, made), code, kernel)
    return found


def _written(made: Estimate, code: Code, kernel: str) -> Estimate:
    """The estimate with the plan as the code has it, where the code follows the plan at all."""
    if not made.own or made.of == "nothing":
        return made
    functions = [f for f in code.kernels if f.kernel == kernel]
    dtype = next((f.tiling.dtype for f in functions if f.tiling is not None and f.tiling.matrix), "")
    plan = written.as_written(made.plan, functions)
    return replace(made, plan=plan, planned=written.planned(made.plan, code, kernel), dtype=dtype)


def _real(planned: Planned, kernel: str, made: Estimate) -> Estimate:
    """The estimate without what the sizes leave out: the model takes every loop to run once at least."""
    body = next(k for k in planned.program.kernels if k.id == kernel)
    cost = empty.cost(planned.program, body, planned.numbers, made.plan.cost)
    if cost is None and not made.written:
        return replace(_nothing(made), launches=())
    if cost is None:  # what is launched finds no element
        launch = made.plan.cost.launch
        made = replace(made, of="plan", seconds=launch)
        cost = replace(NO_COST, seconds=launch, launch=launch)
    return made if cost is made.plan.cost else replace(made, plan=replace(made.plan, cost=cost))


def _nothing(made: Estimate) -> Estimate:
    return replace(made, seconds=0.0, of="nothing", plan=replace(made.plan, cost=NO_COST, workspace=0))


def _took(plan: Plan, writer: str, refused: Sequence[str]) -> bool:
    """Whether an emitter wrote a kernel by a plan, if it did by none that is cheaper."""
    if writer == GENERAL:
        return plan.schedule == GENERAL
    return plan.schedule in EMITTERS and not any(why.startswith(f"{plan.schedule}: ") for why in refused)


@dataclass(frozen=True, slots=True)
class Reckoned:
    """A program with its plans and the estimate of each kernel, by id: what every view of its costs is made of. `trials`: what
    was written to see what another schedule would make of it, by that schedule, None where nothing came of it."""

    planned: Planned
    each: dict[str, Estimate]
    trials: dict[str, Code | None] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all kernels, one after another."""
        return sum(one.seconds for one in self.each.values())

    @property
    def bytes(self) -> int:
        """Traffic with device memory."""
        return sum(one.plan.cost.bytes for one in self.each.values())

    @property
    def own(self) -> bool:
        """Whether each estimate is of the kernel as it is written."""
        return all(one.own for one in self.each.values())


def reckon(planned: Planned, code: Code | None) -> Reckoned:
    """The estimates of a program's kernels; `code` as of `estimates`."""
    return Reckoned(planned, estimates(planned, code))
