"""Contractions: which instructions, which tile, and the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loopfuse.emit.base import Declined, Emitted, Job, Tiles
from loopfuse.emit.matrix import made, warp_forms, warpgroup
from loopfuse.emit.matrix.forms import MOST_STAGES, ROW, SLOT, TYPES, Form, Operand, operands, steps, untaken
from loopfuse.emit.matrix.fragments import MOST_REGISTERS, Fragments, registers, turned, turns
from loopfuse.emit.matrix.leaves import Leaves, leaves
from loopfuse.emit.matrix.nests import nests
from loopfuse.emit.matrix.row_kernel import by_rows
from loopfuse.emit.matrix.segments import Segments, ringed, room, unlike
from loopfuse.emit.matrix.shape import Contraction, parse
from loopfuse.emit.matrix.threads import by_threads
from loopfuse.emit.matrix.tiling import warpgroup_time
from loopfuse.emit.matrix.warps import by_warps
from loopfuse.schedule.tiles import SPLITS, WARPGROUP

BARRIERS = 256  # bytes of shared memory for barriers
JOINING = 4096  # the most that a consumer needs to join states of a fold
LEAST_STAGES = 2


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile of each product, whether consumers take turns, how many tiles of 64 x 64 each has on its way, and how many
    blocks share the sum of a tile."""

    rows: int
    columns: int
    pingpong: bool
    slots: int
    split: int = 1

    @property
    def name(self) -> str:
        """As lock files have it."""
        shared = f" split={self.split}" if self.split > 1 else ""
        return f"wgmma {self.rows}x{self.columns}{' pingpong' * self.pingpong} slots={self.slots}{shared}"


def emit(job: Job) -> Emitted | Declined:
    """A kernel for a plan of the contraction schedule, or why it is left to the general emitter."""
    whole = parse(job)
    if isinstance(whole, Declined):
        row = by_rows(job)
        if isinstance(row, Emitted):
            return row
        apart = nests(job)
        return by_nests(job, apart) if apart else Declined("; ".join(dict.fromkeys((whole.why, row.why))))
    reasons: dict[str, list[str]] = {}  # each with the paths that it is the reason of
    for name, way in (("wgmma", by_warpgroups), ("mma.sync", by_warps), ("ordinary units", by_threads)):
        found = way(whole)
        if isinstance(found, Emitted):
            return replace(found, notes=() if job.tiles.wanted else _told(reasons), tile=job.tiles.taken)
        for said in found.said:
            reasons.setdefault(said, []).append(name)
    first, *others = _told(reasons)
    return Declined(first, others=tuple(map(Declined, others)))


def offers(job: Job) -> list[str]:
    """The names of all tiles that the ways have for a kernel, whether they fit or not: the fastest way's first, and of each
    way the best first. None for kernels that are no products, or that keep whole rows on chip."""
    job = replace(job, tiles=Tiles("none of them"))
    whole = parse(job)
    if isinstance(whole, Declined):
        if apart := nests(job):
            by_segments(job, apart)
    else:
        for way in (by_warpgroups, by_warps, by_threads):
            way(whole)
    return job.tiles.offered


def _told(reasons: dict[str, list[str]]) -> tuple[str, ...]:
    return tuple(f"{' and '.join(names)}: {why}" for why, names in reasons.items())


def by_nests(job: Job, apart: Sequence[Job]) -> Emitted | Declined:
    """Nests of products: in one kernel where they go together, else each by itself."""
    together = by_segments(job, apart)
    if isinstance(together, Emitted):
        return together
    found: list[Emitted] = []
    for nest in apart:
        one = emit(nest)
        if isinstance(one, Declined):
            return one
        found.append(one)
    notes = [f"one launch: {why}" for why in together.said]
    return Emitted(
        tuple(k for x in found for k in x.kernels), tuple(s for x in found for s in x.steps),
        tuple(m for x in found for m in x.memory), frozenset(b for x in found for b in x.aligned),
        tuple(dict.fromkeys((*notes, *(n for x in found for n in x.notes)))),
    )  # fmt: skip


def by_segments(job: Job, apart: Sequence[Job]) -> Emitted | Declined:
    """Nests of products of one left operand in one kernel, where there are products of warpgroups."""
    wholes: list[Contraction] = []
    kind = ""
    for nest in apart:
        whole = parse(nest)
        if isinstance(whole, Declined):
            return whole
        found = instructions(whole)
        if isinstance(found, Declined):
            return found
        kind, whole.job = found, job
        wholes.append(whole)
    parts = [leaves(whole) for whole in wholes]
    why = unlike(wholes, parts)
    if why is not None:
        return why
    for choice in job.tiles.among(choices(wholes[0], parts[0], wholes[1:]), lambda c: c.name):
        ring = ringed(wholes, choice.rows, choice.columns)
        if isinstance(ring, Declined):
            return ring
        if choice.split > 1:
            continue
        sides = {"rows": choice.rows, "cols": choice.columns}
        form = fitted(wholes[0], max(parts, key=lambda p: room(p, sides)), choice, ring[:2], kind)
        if form is not None:
            kernel = Segments(wholes, parts, form, ring, job.name)
            return replace(warpgroup.emitted(kernel, kernel.write()), tile=job.tiles.taken)
    return Declined("no tile fits the shared memory")


def instructions(whole: Contraction) -> str | Declined:
    """The type of warpgroup products that take the operands, or why none do."""
    job = whole.job
    if not job.target.device.arch.startswith("sm_90"):
        return Declined("the device has no warpgroup products")
    dtypes = {s.dtype for u in whole.units for s in (u.a, u.b)}
    (dtype, *more) = dtypes
    if more or dtype not in TYPES:
        return untaken(whole)
    kind = TYPES[dtype]
    if kind == "tf32" and "tf32" not in job.plan.path:
        return untaken(whole)
    if kind == "i8" and isinstance(why := warp_forms.kind(whole), Declined):
        return why
    if kind != "i8" and any(u.acc.dtype.bits > 32 for u in whole.units):
        return Declined("the sums are longer than the matrix units'", "a sum in f32 would lift it")
    return kind


def by_warpgroups(whole: Contraction) -> Emitted | Declined:
    """By products of warpgroups, where the device has them and the operands lie so that tiles of them can be copied."""
    job, kind = whole.job, instructions(whole)
    if isinstance(kind, Declined):
        return kind
    if kind == "tf32" and turns(whole):
        whole = turned(whole)
    parts = leaves(whole)
    for choice in job.tiles.among(choices(whole, parts), lambda c: c.name):
        found = operands(whole, choice.rows, choice.columns, made.major)
        if isinstance(found, Declined):
            return found
        ring, pairs = found
        computed = any(o.side.value is not None for o in ring)
        lefts = {a for a, _ in pairs}
        along = {ring[a].major for a in lefts}
        through = kind == "tf32" and "mn" in along  # registers
        if through and len(along) > 1:
            return Declined("one left operand lies along its rows, and another along the sum")
        if (through and choice.pingpong) or (kind == "i8" and choice.split > 1):
            continue
        form = fitted(whole, parts, choice, ring, kind)
        if form is None or (through and registers(form, len(pairs), len(lefts)) > MOST_REGISTERS):
            continue
        if computed:
            form = replace(form, makers=made.MAKERS)
        way = made.Made if computed else Fragments if through else warpgroup.Kernel
        kernel = way(whole, parts, form, ring, pairs, job.name)
        if isinstance(kernel, made.Made) and not kernel.fits():
            continue
        return warpgroup.emitted(kernel, kernel.write())
    return Declined("no tile fits the shared memory")


def fitted(whole: Contraction, parts: Leaves, choice: Choice, ring: list[Operand], kind: str) -> Form | None:
    """The layout of a kernel with a tile, with as many stages as there is room for; None where it does not go."""
    device, depth = whole.job.target.device, ROW // ring[0].side.dtype.itemsize
    consumers = 2 if choice.pingpong or choice.rows >= 128 else 1
    sides = {"rows": choice.rows, "cols": choice.columns}
    beside = sum(-(-sides[side] * x.bytes * consumers // 16) * 16 for side, kept in parts.kept.items() for x in kept)
    beside += BARRIERS + (consumers * JOINING if whole.ride is not None else 0)
    stage = sum(o.bytes for o in ring)
    stages = min(MOST_STAGES, (device.shared - beside - consumers * choice.slots * SLOT) // stage)
    form = Form(
        choice.rows, choice.columns, consumers, choice.pingpong, stages, choice.slots, depth, kind, choice.split
    )
    if stages < LEAST_STAGES:
        return None
    if choice.split > 1:
        total = whole.job.target.number(steps(whole, form))
        exchanged = choice.rows * choice.columns * 4 * len(whole.units)
        even = form.columns % 64 == 0 and form.blocks * (form.columns // 64) % choice.split == 0
        if total is None or (choice.split - 1) * -(-total // choice.split) >= total or not even:
            return None
        if whole.ride is not None or choice.split > device.cluster or exchanged > stages * stage:
            return None
    return form


# -- which tile -------------------------------------------------------------------------------------------------------

MOST_RESULTS = 128  # registers of results a thread, but where nothing else is wanted of it
FEW_RESULTS = 64  # the same where that has spilled, by the registers that are left to plan for
SPILLED = 100


def choices(whole: Contraction, parts: Leaves, beside: Sequence[Contraction] = ()) -> Iterator[Choice]:
    """Tiles, the best first by what they should take. `beside`: nests whose tiles the same kernel takes."""
    each = len(whole.units)
    residual = any(parts.flat(load) is not None for load in parts.loads())
    budget = whole.job.budget
    most = FEW_RESULTS if budget < SPILLED else MOST_RESULTS if budget < 255 or each > 1 else 255
    found: dict[Choice, float] = {}
    for tile in WARPGROUP:
        results = tile.accumulators(1)
        if tile.columns % ((64 if tile.pingpong else 8) * each):
            continue
        if results > most:
            continue
        slots = 2 if not tile.pingpong or (residual and results > MOST_RESULTS) else 4 if results <= MOST_RESULTS else 3
        for split in SPLITS if not tile.pingpong else (1,):
            choice = Choice(tile.rows, tile.columns // each, tile.pingpong, slots, split)
            found[choice] = warpgroup_time(whole, tile, split, beside=beside)
    yield from sorted(found, key=lambda c: found[c])
