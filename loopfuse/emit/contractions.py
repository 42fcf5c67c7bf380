"""Contractions: which instructions, which tile, and the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.matrix import warpgroup
from loopfuse.emit.matrix.forms import MOST_STAGES, ROW, SLOT, TYPES, Form, operands
from loopfuse.emit.matrix.leaves import Leaves, leaves
from loopfuse.emit.matrix.shape import Contraction, parse
from loopfuse.emit.matrix.warps import by_warps

BARRIERS = 256  # bytes of shared memory for barriers
JOINING = 4096  # the most that a consumer needs to join states of a fold
LEAST_STAGES = 2


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile of each product, whether consumers take turns, and how many tiles of 64 x 64 each has on its way."""

    rows: int
    columns: int
    pingpong: bool
    slots: int


def emit(job: Job) -> Emitted | Declined:
    """A kernel for a plan of the contraction schedule, or why it is left to the general emitter."""
    whole = parse(job)
    if isinstance(whole, Declined):
        return whole
    reasons: dict[str, None] = {}
    for way in (by_warpgroups, by_warps):
        found = way(whole)
        if isinstance(found, Emitted):
            return found
        reasons[found.why] = None
    return Declined("; ".join(reasons))


def by_warpgroups(whole: Contraction) -> Emitted | Declined:
    """By products of warpgroups, where the device has them and the operands lie so that tiles of them can be copied."""
    job = whole.job
    if not job.target.device.arch.startswith("sm_90"):
        return Declined("the device has no warpgroup products")
    dtypes = {s.dtype for u in whole.units for s in (u.a, u.b)}
    (dtype, *more) = dtypes
    if more or dtype not in TYPES:
        return Declined("the matrix units take no products of these types")
    kind = TYPES[dtype]
    if kind == "tf32" and "tf32" not in job.plan.path:
        return Declined("products of f32 stay at f32: neither `pragma tf32` nor `fast` allows less")
    parts = leaves(whole)
    why = Declined("no tile fits the shared memory")
    for choice in choices(whole, parts):
        found = operands(whole, choice.rows, choice.columns)
        if isinstance(found, Declined):
            return found
        ring, pairs = found
        consumers = 2 if choice.pingpong or choice.rows >= 128 else 1
        stage = sum(o.bytes for o in ring)
        sides = {"rows": choice.rows, "cols": choice.columns}
        beside = sum(
            -(-sides[side] * x.bytes * consumers // 16) * 16 for side, kept in parts.kept.items() for x in kept
        )
        beside += BARRIERS + (consumers * JOINING if whole.ride is not None else 0)
        room = job.target.device.shared - beside - consumers * choice.slots * SLOT
        stages = min(MOST_STAGES, room // stage)
        if stages < LEAST_STAGES:
            continue
        form = Form(
            choice.rows, choice.columns, consumers, choice.pingpong, stages, choice.slots, ROW // dtype.itemsize, kind
        )
        kernel = warpgroup.Kernel(whole, parts, form, ring, pairs, job.name)
        return warpgroup.emitted(kernel, kernel.write())
    return why


def choices(whole: Contraction, parts: Leaves) -> Iterator[Choice]:
    """Tiles, the best first."""
    plan, each = whole.job.plan, len(whole.units)
    rows, columns = plan.tiles.get("rows", 128), plan.tiles.get("columns", 128)
    pingpong = "ping-pong" in plan.path
    residual = any(parts.flat(load) is not None for load in parts.loads())
    if pingpong and columns * each > 128 and (residual or whole.job.budget < 255):
        columns = 128 // each
    if rows % 64 == 0 and columns % 8 == 0:
        slots = 2 if not pingpong else 4 if rows * columns * each <= 128 * 128 else 3
        yield Choice(rows, columns, pingpong, slots)
    yield Choice(128, 128 // each, True, 4)
