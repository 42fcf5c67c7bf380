"""What each kernel is estimated to take, and why: operations, bytes, the bound, and what its plan needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopfuse.devices import Device
from loopfuse.ir import Kernel, Program
from loopfuse.memory import show_bytes
from loopfuse.schedule.plan import Cost, Plan
from loopfuse.views.lines import defined, gutter
from loopfuse.views.tables import amount, microseconds, names, significant, sizes_line, table

HEADER = ("kernel", "schedule", "flops", "bytes", "flop/B", "bound", "regs", "occ", "flight", "launch", "us")


def cost_table(program: Program, plans: Mapping[str, Plan]) -> list[str]:
    """A line a kernel: operations, bytes, intensity, bound, registers, occupancy, bytes in flight a multiprocessor,
    the launch's share of the time, microseconds; then the sum."""
    rows = [_row(k.id, plans[k.id].schedule, plans[k.id].cost) if k.id in plans else
            (k.id, "(no plan)", *[""] * (len(HEADER) - 2)) for k in program.kernels]  # fmt: skip
    costs = [plans[k.id].cost for k in program.kernels if k.id in plans]
    if len(costs) > 1:
        rows.append(("total", "", amount(sum(_flops(c) for c in costs)), show_bytes(sum(c.bytes for c in costs)),
                     "", "", "", "", "", "", microseconds(sum(c.seconds for c in costs) * 1e6)))  # fmt: skip
    return table(HEADER, rows, "llrrrlrrrrr", gap=" ")


def _row(kernel: str, schedule: str, cost: Cost) -> tuple[str, ...]:
    share = cost.launch / cost.seconds if cost.seconds else 0
    return (kernel, schedule, amount(_flops(cost)), show_bytes(cost.bytes), significant(cost.intensity), cost.bound,
            str(cost.registers), f"{cost.occupancy:.0%}", show_bytes(cost.in_flight), f"{share:.0%}",
            microseconds(cost.seconds * 1e6))  # fmt: skip


def _flops(cost: Cost) -> int:
    return cost.flops + cost.matrix_flops


def ridge_line(device: Device) -> str:
    """`H200: memory-bound below 14 flop/B (fp32), 185 (f16)`."""
    peaks = [("fp32", device.fp32), *((name, peak) for name, peak in device.matrix.items() if name in ("f16", "tf32"))]
    ridges = ", ".join(f"{significant(device.ridge(peak))} ({name})" for name, peak in peaks)
    return f"{device.name}: memory-bound below {ridges} flop/B"


def foot(program: Program, plans: Mapping[str, Plan], device: Device, sizes: Mapping[str, int],
         assumed: frozenset[str]) -> list[str]:  # fmt: skip
    """What stands under the table: the device's ridges, the sizes, and each plan's guards."""
    lines = [ridge_line(device)]
    shown = sizes_line(sizes, assumed)
    lines += [shown] * bool(shown)
    for kernel in program.kernels:
        plan = plans.get(kernel.id)
        for guard in plan.guards if plan else ():
            lines.append(
                f"{kernel.id} holds where {guard.text}" + (f"; else {guard.otherwise}" * bool(guard.otherwise))
            )
    return lines


def kernel_view(program: Program, kernel: Kernel, plan: Plan | None) -> list[str]:
    """One kernel: what it computes, its plan in full, and the two sides of its estimate."""
    marks = gutter(program)
    spans = sorted(
        {int(n) for b in program.buffers if b.id in defined(kernel) and (n := marks.number(b.span)).isdigit()}
    )
    rows = [("kernel", kernel.id), ("computes", names(defined(kernel), 12)),
            ("lines", ", ".join(map(str, spans)) or "-")]  # fmt: skip
    if plan is None:
        return table((), [*rows, ("plan", "none")])
    cost = plan.cost
    rows += [("schedule", plan.schedule), ("roles", _pairs(plan.roles)), ("tiles", _pairs(plan.tiles)),
             ("folds", _pairs(plan.folds)), ("places", _pairs(plan.place)), ("path", plan.path or "-"),
             *([(plan.burdened, plan.burden)] if plan.burden else []),
             ("launches", ", ".join(f"{la.what}: {la.blocks} blocks of {la.threads}" for la in plan.launches)),
             ("workspace", show_bytes(plan.workspace)), ("shared", show_bytes(cost.shared)),
             ("registers", f"{cost.registers} a thread; occupancy {cost.occupancy:.0%}"),
             ("memory", f"{show_bytes(cost.reads)} read, {show_bytes(cost.writes)} written, "
                        f"{show_bytes(cost.rereads)} read again: {microseconds(cost.memory * 1e6)} us"),
             ("compute", f"{amount(cost.flops)} operations, {amount(cost.matrix_flops)} in matrix units, "
                         f"{amount(cost.special)} special: {microseconds(cost.compute * 1e6)} us"),
             ("launch", f"{microseconds(cost.launch * 1e6)} us"),
             ("estimate", f"{microseconds(cost.seconds * 1e6)} us, bound by {cost.bound}"),
             ("rounding", "; ".join(plan.rounding) or "as the exact tree"),
             ("guards", "; ".join(g.text + (f" (else {g.otherwise})" if g.otherwise else "") for g in plan.guards) or "-"),
             ("assumed", ", ".join(sorted(plan.assumed)) or "-")]  # fmt: skip
    return table((), rows)


def _pairs(found: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in found.items()) or "-"


def as_record(kernel: str, plan: Plan) -> dict[str, Any]:
    """The JSON form of a kernel's plan and cost."""
    cost = plan.cost
    return {
        "kernel": kernel, "schedule": plan.schedule, "flops": cost.flops, "matrix_flops": cost.matrix_flops,
        "special": cost.special, "reads": cost.reads, "writes": cost.writes, "rereads": cost.rereads,
        "intensity": cost.intensity, "bound": cost.bound, "registers": cost.registers, "shared": cost.shared,
        "occupancy": cost.occupancy, "in_flight": cost.in_flight, "launch_us": cost.launch * 1e6,
        "us": cost.seconds * 1e6, "guards": [g.text for g in plan.guards], "assumed": sorted(plan.assumed),
        "tiles": dict(plan.tiles), "folds": dict(plan.folds), "roles": dict(plan.roles), "place": dict(plan.place),
    }  # fmt: skip


def total_us(plans: Sequence[Plan]) -> float:
    """The estimated microseconds of several kernels, one after the other."""
    return sum(plan.cost.seconds for plan in plans) * 1e6
