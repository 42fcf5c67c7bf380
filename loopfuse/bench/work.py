"""The least that a program must do, and the time that a device needs for it: its roof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopfuse.bind import buffer_bytes
from loopfuse.devices import Device
from loopfuse.emit.code import Code
from loopfuse.ir import Program
from loopfuse.views.estimates import estimates
from loopfuse.views.plans import Planned


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to move between device memory and the chip, operations, and the least seconds for them. `bound`: what takes
    those seconds."""

    bytes: int
    operations: int
    seconds: float
    bound: str


def work(program: Program, planned: Planned, device: Device, sizes: Mapping[str, int]) -> Work:
    """The work of a program.

    Inputs are read once and outputs written once, or less where the kernels need less of them. Whatever is written and
    read again between is not counted: a program that does so cannot reach its roof.
    """
    held = [b for b in program.buffers if b.role in ("in", "frozen", "out")]
    moved = sum(buffer_bytes(b, sizes) for b in held)
    costs = [plan.cost for plan in planned.plans.values()]
    if len(costs) == len(program.kernels):
        moved = min(moved, sum(cost.bytes for cost in costs))
    flops, matrix = sum(cost.flops for cost in costs), sum(cost.matrix_flops for cost in costs)
    types = {b.dtype.name for b in held}
    peaks = [peak for name in (*types, "tf32" if "f32" in types else "") if (peak := device.matrix_peak(name))]
    times = {
        "memory": moved / device.bandwidth,
        "compute": max(
            flops / (device.fp64 if "f64" in types else device.fp32),
            matrix / max((*peaks, device.fp32)),
            sum(cost.special for cost in costs) / device.special,
        ),
        "launch": device.graph_launch if device.kind == "gpu" else 0.0,
    }
    bound = max(times, key=lambda name: times[name])
    return Work(moved, flops + matrix, times[bound], bound)


def predicted(code: Code, planned: Planned) -> float | None:
    """Seconds that the kernels should take, one after another, as they were written; None where one has no estimate."""
    found = estimates(planned, code)
    if not found or len(found) < len(planned.program.kernels) or not all(e.own for e in found.values()):
        return None
    return sum(e.seconds for e in found.values())
