"""The tiles of kernels that hold whole rows: which there are, which is the fastest, how its shared memory is laid out."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from loopfuse.emit.matrix.forms import MOST_STAGES, ROW, SLOT, Form, Operand
from loopfuse.emit.matrix.row_shape import RowForm
from loopfuse.emit.matrix.tiling import warpgroup_time
from loopfuse.emit.rows_join import LEAST_SENT
from loopfuse.emit.writer import state_bytes, state_type
from loopfuse.ir import Acc
from loopfuse.schedule.tiles import ROW_TILES, Tile, followed_by, held_at_once
from loopfuse.sizes import ONE, Poly

BARRIERS = 256  # bytes of shared memory for barriers
LEAST_STAGES = 2
MOST_SLOTS = 4  # tiles of 64 x 64 of a consumer on their way
ROWS = 64  # of a consumer


def tiles(form: RowForm, width: int) -> list[tuple[int, int]]:
    """Tiles whose cluster holds a row: the fastest by the model first, the plan's before one that is as fast."""
    job, each = form.whole.job, len(form.whole.units)
    planned = (job.plan.tiles.get("rows", 128), job.plan.tiles.get("columns", 256))
    found: list[tuple[int, int]] = []
    most = max(1, job.target.device.cluster)
    for rows, columns in (planned, *((r, c // each // 8 * 8) for r, c in ROW_TILES)):
        if rows not in (ROWS, 2 * ROWS, 3 * ROWS) or columns % 8 or not 8 <= columns * each <= 256:
            continue
        narrow = columns * each <= 128 or job.budget == 255
        if -(-width // columns) <= most and narrow and (rows, columns) not in found:
            found.append((rows, columns))
    return sorted(found, key=lambda tile: clocks(form, tile[0], tile[1], -(-width // tile[1])))


def clocks(form: RowForm, rows: int, columns: int, cluster: int) -> float:
    """About how long a tile takes to go through all rows, in clocks."""
    whole = form.whole
    tile = Tile(rows, columns * len(whole.units), rows // ROWS, False, followed_by(rows // ROWS))
    return warpgroup_time(whole, tile, room=clusters(form, rows, cluster, whole.number) * cluster)


def clusters(form: RowForm, rows: int, cluster: int, number: Callable[[Poly], int | None]) -> int:
    """How many clusters there are: as many as the device holds, fewer where all then have as many tiles."""
    whole = form.whole
    room = held_at_once(whole.job.target.device.units, cluster)
    extents = ((whole.rows.extent + (rows - 1)) // rows, *(a.extent for a in whole.batch))
    count = number(prod(extents, start=ONE))
    return room if count is None else -(-count // -(-count // room)) if count > 0 else 0


def layout(form: RowForm, rows: int, columns: int, cluster: int, ring: list[Operand], kind: str) -> Form | None:
    """The layout of a tile with as many stages as there is room for; None where that is too little."""
    consumers = rows // ROWS
    sides = {"rows": rows, "cols": columns}
    beside = BARRIERS + consumers * 2 * exchanged(form, cluster)
    for side, kept in form.parts.kept.items():
        copies = 1 if side in shared(form) else consumers
        beside += sum(-(-sides[side] * leaf.bytes * copies // 16) * 16 for leaf in kept)
    depth = ROW // ring[0].side.dtype.itemsize
    stage = sum(o.bytes for o in ring)
    room = form.whole.job.target.device.shared - beside
    stages = min(MOST_STAGES, (room - consumers * 2 * SLOT) // stage)
    slots = min(MOST_SLOTS, (room - stages * stage) // (consumers * SLOT))
    if stages < LEAST_STAGES:
        return None
    return Form(rows, columns, consumers, False, stages, slots, depth, kind)


def shared(form: RowForm) -> tuple[str, ...]:
    """The sides whose values all tiles of a block share: its columns are always the same."""
    return () if form.whole.batch else ("cols",)


def exchanged(form: RowForm, cluster: int) -> int:
    """Bytes that a consumer has for the partial states of a join."""
    if cluster == 1:
        return 0
    return max((sum(cluster * ROWS * sent(a)[1] for a in s.accs) for s in form.sections), default=0)


def sent(acc: Acc) -> tuple[str, int]:
    """The type of a partial state that is sent, and its bytes."""
    item = state_bytes(acc.monoid, acc.dtype)
    return ("int", LEAST_SENT) if item < LEAST_SENT else (state_type(acc.monoid, acc.dtype), item)
