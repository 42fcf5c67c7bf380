"""What each kernel is estimated to take, and why: operations, bytes, the bound, and what its plan needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopfuse.devices import Device
from loopfuse.ir import Kernel, Program
from loopfuse.memory import show_bytes
from loopfuse.schedule.plan import Cost
from loopfuse.views.estimates import Estimate
from loopfuse.views.lines import defined, gutter
from loopfuse.views.tables import amount, microseconds, names, significant, sizes_line, table

HEADER = ("kernel", "schedule", "flops", "bytes", "flop/B", "bound", "regs", "occ", "flight", "launch", "us")


UNWRITTEN = "*"  # after a number that is not of the kernel as it is written


def cost_table(program: Program, found: Mapping[str, Estimate]) -> list[str]:
    """A line a kernel: operations, bytes, intensity, bound, registers, occupancy, bytes in flight a multiprocessor,
    the launch's share of the time, microseconds; then the sum."""
    rows = [_row(k.id, found[k.id]) if k.id in found else (k.id, "(no plan)", *[""] * (len(HEADER) - 2))
            for k in program.kernels]  # fmt: skip
    all_ = [found[k.id] for k in program.kernels if k.id in found]
    if len(all_) > 1:
        costs = [e.plan.cost for e in all_]
        rows.append(("total", "", amount(sum(_flops(c) for c in costs)), show_bytes(sum(c.bytes for c in costs)),
                     "", "", "", "", "", "", microseconds(sum(e.seconds for e in all_) * 1e6) + UNWRITTEN * (not all(e.own for e in all_))))  # fmt: skip
    return table(HEADER, rows, "llrrrlrrrrr", gap=" ")


def _row(kernel: str, found: Estimate) -> tuple[str, ...]:
    cost = found.plan.cost
    share = cost.launch / found.seconds if found.seconds else 0
    return (kernel, found.plan.schedule, amount(_flops(cost)), show_bytes(cost.bytes), significant(cost.intensity), cost.bound,
            str(cost.registers), f"{cost.occupancy:.0%}", show_bytes(cost.in_flight), f"{share:.0%}",
            microseconds(found.seconds * 1e6) + UNWRITTEN * (not found.own))  # fmt: skip


def _flops(cost: Cost) -> int:
    return cost.flops + cost.matrix_flops


def ridge_line(device: Device) -> str:
    """`H200: memory-bound below 14 flop/B (fp32), 185 (f16)`."""
    peaks = [("fp32", device.fp32), *((name, peak) for name, peak in device.matrix.items() if name in ("f16", "tf32"))]
    ridges = ", ".join(f"{significant(device.ridge(peak))} ({name})" for name, peak in peaks)
    return f"{device.name}: memory-bound below {ridges} flop/B"


def foot(program: Program, found: Mapping[str, Estimate], device: Device, sizes: Mapping[str, int],
         assumed: frozenset[str]) -> list[str]:  # fmt: skip
    """What stands under the table: which numbers are not of the kernels as written, the device's ridges, the sizes, and each
    plan's guards."""
    all_own = all(found[k.id].own for k in program.kernels if k.id in found)
    lines = [] if all_own else ["* of a schedule that nothing writes yet, and not of the kernel as it is written"]
    lines.append(ridge_line(device))
    shown = sizes_line(sizes, assumed)
    lines += [shown] * bool(shown)
    for kernel in program.kernels:
        for guard in found[kernel.id].plan.guards if kernel.id in found else ():
            lines.append(
                f"{kernel.id} holds where {guard.text}" + (f"; else {guard.otherwise}" * bool(guard.otherwise))
            )
    return lines


def kernel_view(program: Program, kernel: Kernel, found: Estimate | None) -> list[str]:
    """One kernel: what it computes, its plan, and its estimate. Of one that was written with tiles, what these are is left to
    the view of the tiles."""
    marks = gutter(program)
    spans = sorted(
        {int(n) for b in program.buffers if b.id in defined(kernel) and (n := marks.number(b.span)).isdigit()}
    )
    rows = [("kernel", kernel.id), ("computes", names(defined(kernel), 12)),
            ("lines", ", ".join(map(str, spans)) or "-")]  # fmt: skip
    if found is None:
        return table((), [*rows, ("plan", "none")])
    plan, tiled = found.plan, found.of == "tiles"
    cost = plan.cost
    planned = [
        ("tiles", _pairs(plan.tiles)), ("path", plan.path or "-"),
        ("launches", ", ".join(f"{la.what}: {la.blocks} blocks of {la.threads}" for la in plan.launches)),
        ("shared", show_bytes(cost.shared)), ("registers", f"{cost.registers} a thread; occupancy {cost.occupancy:.0%}"),
    ]  # fmt: skip
    rows += [("schedule", plan.schedule), ("roles", _pairs(plan.roles)), ("folds", _pairs(plan.folds)),
             ("places", _pairs(plan.place)), *([] if tiled else planned),
             *([(plan.burdened, plan.burden)] if plan.burden else []), ("workspace", show_bytes(plan.workspace)),
             ("memory", f"{show_bytes(cost.reads)} read, {show_bytes(cost.writes)} written, "
                        f"{show_bytes(cost.rereads)} read again{_of(cost.memory, tiled)}"),
             ("compute", f"{amount(cost.flops)} operations, {amount(cost.matrix_flops)} in matrix units, "
                         f"{amount(cost.special)} special{_of(cost.compute, tiled)}"),
             ("launch", f"{microseconds(cost.launch * 1e6)} us"), ("estimate", _estimate(found)),
             ("rounding", "; ".join(plan.rounding) or "as the exact tree"),
             ("guards", "; ".join(g.text + (f" (else {g.otherwise})" if g.otherwise else "") for g in plan.guards) or "-"),
             ("assumed", ", ".join(sorted(plan.assumed)) or "-")]  # fmt: skip
    return table((), rows)


def _of(seconds: float, tiled: bool) -> str:
    """The time of one side of a plan's estimate: tiles have one of their own, in which the two are not apart."""
    return "" if tiled else f": {microseconds(seconds * 1e6)} us"


def _estimate(found: Estimate) -> str:
    us = f"{microseconds(found.seconds * 1e6)} us"
    if found.of == "tiles":
        return f"{us}, by its tiles"
    if found.own:
        return f"{us}, bound by {found.plan.cost.bound}"
    return f"{us}, bound by {found.plan.cost.bound}, if {found.plan.schedule} wrote it; as written it has no estimate"


def _pairs(found: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in found.items()) or "-"


def as_record(kernel: str, found: Estimate) -> dict[str, Any]:
    """The JSON form of a kernel's plan and estimate."""
    plan, cost = found.plan, found.plan.cost
    return {
        "kernel": kernel, "schedule": plan.schedule, "flops": cost.flops, "matrix_flops": cost.matrix_flops,
        "special": cost.special, "reads": cost.reads, "writes": cost.writes, "rereads": cost.rereads,
        "intensity": cost.intensity, "bound": cost.bound, "registers": cost.registers, "shared": cost.shared,
        "occupancy": cost.occupancy, "in_flight": cost.in_flight, "launch_us": cost.launch * 1e6,
        "us": found.seconds * 1e6, "of": found.of, "guards": [g.text for g in plan.guards], "assumed": sorted(plan.assumed),
        "tiles": dict(plan.tiles), "folds": dict(plan.folds), "roles": dict(plan.roles), "place": dict(plan.place),
    }  # fmt: skip
