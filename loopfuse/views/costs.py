"""What each kernel is estimated to take, and why: operations, bytes, the bound, and what its plan needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from loopfuse.devices import Device
from loopfuse.ir import Kernel, Program
from loopfuse.memory import show_bytes
from loopfuse.schedule.plan import Cost
from loopfuse.views.estimates import Estimate
from loopfuse.views.lines import defined, gutter
from loopfuse.views.tables import amount, microseconds, names, significant, sizes_line, table

HEADER = ("kernel", "schedule", "flops", "bytes", "flop/B", "bound", "blocks", "threads", "shared", "launch", "us")
MOST_SHOWN = 3  # launches of a kernel whose blocks are told apart
UNWRITTEN = "*"  # after a number that is not of the kernel as it is written
UNWRITTEN_MEANS = "* of a schedule that nothing writes yet, and not of the kernel as it is written"


def cost_table(program: Program, found: Mapping[str, Estimate]) -> list[str]:
    """A line a kernel: who writes it, operations, bytes, intensity, bound, the blocks, threads and shared memory of its
    launches (`+` between them), the launches' share of the time, microseconds; then the sum."""
    rows = [_row(k.id, found[k.id]) if k.id in found else (k.id, "(no plan)", *[""] * (len(HEADER) - 2))
            for k in program.kernels]  # fmt: skip
    all_ = [found[k.id] for k in program.kernels if k.id in found]
    if len(all_) > 1:
        costs, star = [e.plan.cost for e in all_], UNWRITTEN * (not all(e.own for e in all_))
        rows.append(("total", "", amount(sum(_flops(c) for c in costs)) + star, show_bytes(sum(c.bytes for c in costs)) + star,
                     "", "", "", "", "", "", microseconds(sum(e.seconds for e in all_) * 1e6) + star))  # fmt: skip
    return table(HEADER, rows, "llrrrlrrrrr", gap=" ")


def _row(kernel: str, found: Estimate) -> tuple[str, ...]:
    cost, star = found.plan.cost, UNWRITTEN * (not found.own)
    share = cost.launch / found.seconds if found.seconds else 0
    each = found.launches
    return (kernel, found.schedule, amount(_flops(cost)) + star, show_bytes(cost.bytes) + star, significant(cost.intensity),
            found.bound, _several(str(e.blocks) for e in each), _several(str(e.threads) for e in each),
            show_bytes(max(e.shared for e in each)) if each else "-", f"{share:.0%}",
            microseconds(found.seconds * 1e6) + star)  # fmt: skip


def _several(words: Iterable[str]) -> str:
    """`528+128`; of many launches the first and their count; once what is the same for all."""
    all_ = [*words]
    if len(set(all_)) <= 1:
        return all_[0] if all_ else "-"
    return "+".join(all_) if len(all_) <= MOST_SHOWN else f"{all_[0]}+.. ({len(all_)})"


def _flops(cost: Cost) -> int:
    return cost.flops + cost.matrix_flops


BOUND = "bound: what takes longest by the model, memory, compute or launches"


def ridge_line(device: Device) -> str:
    """`H200 at its peaks: memory-bound below 14 (fp32), 185 (f16) flop/B`."""
    peaks = [("fp32", device.fp32), *((name, peak) for name, peak in device.matrix.items() if name in ("f16", "tf32"))]
    ridges = ", ".join(f"{significant(device.ridge(peak))} ({name})" for name, peak in peaks)
    return f"{device.name} at its peaks: memory-bound below {ridges} flop/B"


def departures(program: Program, found: Mapping[str, Estimate], device: Device) -> list[str]:
    """A line for each kernel whose bound is not the one that the ridge of the device's peaks would give, with what its time
    goes to instead."""
    lines = []
    for kernel in program.kernels:
        why = _departure(found[kernel.id], device) if kernel.id in found else ""
        if why:
            lines.append(f"{kernel.id} is bound by {found[kernel.id].bound} at "
                         f"{significant(found[kernel.id].plan.cost.intensity)} flop/B: {why}")  # fmt: skip
    return lines


def _departure(found: Estimate, device: Device) -> str:
    cost = found.plan.cost
    dtype = next((d for d in (found.dtype, "f16") if cost.matrix_flops and device.matrix_peak(d)), "")
    peak, unit = (device.matrix_peak(dtype) or device.fp32, dtype) if dtype else (device.fp32, "fp32")
    above = cost.intensity >= device.ridge(peak)
    if found.bound == "memory" and above:
        again, moved = cost.rereads / device.cache_bandwidth, cost.bytes / device.bandwidth
        if again > moved:
            return f"{show_bytes(cost.rereads)} are read again, from the cache"
        return f"it draws {moved / cost.memory:.0%} of the bandwidth"
    if found.bound != "compute" or above:
        return ""
    special, flops = cost.special / device.special, _flops(cost) / peak
    if special > flops:
        return f"its {amount(cost.special)} special functions take longer than the other operations"
    return f"its operations reach {flops / found.compute:.0%} of the peak of {unit}"


def foot(program: Program, found: Mapping[str, Estimate], device: Device, sizes: Mapping[str, int],
         assumed: frozenset[str]) -> list[str]:  # fmt: skip
    """What stands under the table: which numbers are not of the kernels as written, what the bound is, with the device's ridges
    and the kernels that depart from them, the sizes, and each plan's guards."""
    all_own = all(found[k.id].own for k in program.kernels if k.id in found)
    lines = [] if all_own else [UNWRITTEN_MEANS]
    lines += [BOUND, ridge_line(device), *departures(program, found, device)]
    shown = sizes_line(sizes, assumed)
    lines += [shown] * bool(shown)
    for kernel in program.kernels:
        for guard in found[kernel.id].plan.guards if kernel.id in found else ():
            lines.append(
                f"{kernel.id} holds where {guard.text}" + (f"; else {guard.otherwise}" * bool(guard.otherwise))
            )
    return lines


def kernel_view(program: Program, kernel: Kernel, found: Estimate | None, workspace: int | None = None) -> list[str]:
    """One kernel: what it computes, its plan, and its estimate. Of one that was written, tiles, launches and registers are
    left to the view of what was written (`emitted.emitters`). `workspace`: the scratch of the code, in bytes; None: the plan's."""
    marks = gutter(program)
    spans = sorted(
        {int(n) for b in program.buffers if b.id in defined(kernel) and (n := marks.number(b.span)).isdigit()}
    )
    rows = [("kernel", kernel.id), ("computes", names(defined(kernel), 12)),
            ("lines", ", ".join(map(str, spans)) or "-")]  # fmt: skip
    if found is None:
        return table((), [*rows, ("plan", "none")])
    plan, cost = found.plan, found.plan.cost
    planned = [
        ("places", _pairs(plan.place)), ("tiles", _pairs(plan.tiles)), ("path", plan.path or "-"),
        ("launches", ", ".join(f"{la.what}: {la.blocks} blocks of {la.threads}" for la in plan.launches)),
        ("shared", show_bytes(cost.shared)), ("registers", f"{cost.registers} a thread; occupancy {cost.occupancy:.0%}"),
    ]  # fmt: skip
    timed = "" if found.own else f" by {plan.schedule}"
    again = f"{show_bytes(cost.rereads)} read again{' as planned' * ('tiles of' in found.planned)}"
    rows += [("schedule", _schedule(found)), *([("planned", found.planned)] if found.planned else []),
             ("roles", _pairs(plan.roles)), ("folds", _pairs(plan.folds)),
             *([] if found.written else planned),
             *([(plan.burdened, plan.burden)] if plan.burden else []),
             ("workspace", show_bytes(plan.workspace if workspace is None else workspace)),
             ("memory", f"{show_bytes(cost.reads)} read, {show_bytes(cost.writes)} written, {again}{timed}: "
                        f"{microseconds(cost.memory * 1e6)} us"),
             ("compute", f"{amount(cost.flops)} operations, {amount(cost.matrix_flops)} in matrix units, "
                         f"{amount(cost.special)} special{timed}: {microseconds(found.compute * 1e6)} us"),
             ("launch", _launch(found)), ("estimate", _estimate(found)),
             ("rounding", "; ".join(plan.rounding) or "as the exact tree"),
             ("guards", "; ".join(g.text + (f" (else {g.otherwise})" if g.otherwise else "") for g in plan.guards) or "-"),
             ("assumed", ", ".join(sorted(plan.assumed)) or "-")]  # fmt: skip
    if found.of == "nothing":
        rows = [row for row in rows if row[0] in ("kernel", "computes", "lines", "estimate")]
    return table((), rows)


def _launch(found: Estimate) -> str:
    """What launching takes by the plan, and how many launches there are, where that is another number."""
    us = f"{microseconds(found.plan.cost.launch * 1e6)} us"
    mine = sum(one.times for one in found.launches if one.blocks)
    planned = sum(one.times for one in found.plan.launches)
    if not found.written or not found.own or mine == planned:
        return us
    return f"{us}, planned for {_times(planned)}; it is written with {mine}"


def _times(count: int) -> str:
    return "one launch" if count == 1 else f"{count} launches"


def _schedule(found: Estimate) -> str:
    """What the kernel is written by, and what it was planned for where that is another."""
    if found.own:
        return found.plan.schedule
    return (
        f"{found.schedule}; planned for {found.plan.schedule}, which nothing writes yet: what follows is of that plan"
    )


def _estimate(found: Estimate) -> str:
    us = f"{microseconds(found.seconds * 1e6)} us"
    if found.of == "nothing":
        return "nothing to do: for these sizes no element of it is computed, and nothing is launched"
    if found.of == "tiles":
        return f"{us}, by its tiles, bound by {found.bound}"
    if found.own:
        return f"{us}, bound by {found.bound}"
    return f"{us}, bound by {found.bound}, if {found.plan.schedule} wrote it; as written it has no estimate"


def _pairs(found: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in found.items()) or "-"


def as_record(kernel: str, found: Estimate) -> dict[str, Any]:
    """The JSON form of a kernel's plan and estimate. `launches` are those of the code, where there is some; what the model
    took for the time stands in `model`."""
    plan, cost = found.plan, found.plan.cost
    return {
        "kernel": kernel, "schedule": plan.schedule, "flops": cost.flops, "matrix_flops": cost.matrix_flops,
        "special": cost.special, "reads": cost.reads, "writes": cost.writes, "rereads": cost.rereads, "bytes": cost.bytes,
        "intensity": cost.intensity, "bound": found.bound, "launch_us": cost.launch * 1e6,
        "us": found.seconds * 1e6, "of": found.of, "guards": [g.text for g in plan.guards], "assumed": sorted(plan.assumed),
        "folds": dict(plan.folds), "roles": dict(plan.roles), "rounding": list(plan.rounding), "written": found.written,
        "planned": found.planned,
        "launches": [{**asdict(one), "grid": list(one.grid), "blocks": one.blocks} for one in found.launches],
        "model": {"registers": cost.registers, "shared": cost.shared, "occupancy": cost.occupancy, "in_flight": cost.in_flight,
                  "tiles": dict(plan.tiles), "place": dict(plan.place)},
    }  # fmt: skip
