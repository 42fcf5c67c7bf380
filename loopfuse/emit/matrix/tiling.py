"""What a contraction kernel is, told as a record: its tiles, how many there are, what passes in and out, what it should take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from loopfuse.dtypes import F64, DType
from loopfuse.emit.code import Tiling
from loopfuse.emit.matrix.forms import ROW, Form
from loopfuse.emit.matrix.leaves import Leaves
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.ir import Let, Load, Store
from loopfuse.schedule.model import with_products
from loopfuse.schedule.tiles import (
    EXCHANGE,
    HANDED,
    OPEN,
    WARP,
    Tile,
    matrix_clock,
    path,
    stage_clocks,
    warpgroup_clocks,
)
from loopfuse.walking import subexprs

# Clocks for 64 elements of a computed operand, and for each byte that one is computed from: measured on an H200, of bytes to bf16
# and of a maximum of bf16, in tiles of 128 x 128 to 256 x 128.
MADE = (2.1, 2.3)
STAGE = 64 * 64 / 32  # clocks of 64 x 64 results and 128 bytes of their sums, by warpgroup products


def tiles_of(whole: Contraction, rows: int, columns: int) -> int:
    """How many tiles there are, by stand-ins for sizes that are not known."""
    count = -(-whole.number(whole.rows.extent) // rows) * -(-whole.number(whole.cols.extent) // columns)
    for axis in whole.batch:
        count *= whole.number(axis.extent)
    return count


def trips_of(whole: Contraction, depth: int) -> int:
    """How many stages of `depth` a sum takes, by the same."""
    count = -(-whole.number(whole.depth[-1].extent) // depth)
    for axis in whole.depth[:-1]:
        count *= whole.number(axis.extent)
    return count


def warpgroup_time(whole: Contraction, tile: Tile, split: int = 1, room: int = 0,
                   beside: Sequence[Contraction] = ()) -> float:  # fmt: skip
    """About how many clocks a tile takes to go through the whole. `tile.columns` are those of all products; `room`: tiles
    that are computed at once, where that is not one a multiprocessor; `beside`: nests whose tiles the kernel takes too."""
    units = room or whole.job.target.device.units
    tiles = sum(tiles_of(x, tile.rows, tile.columns // len(whole.units)) for x in (whole, *beside))
    trips = trips_of(whole, ROW // whole.units[0].a.dtype.itemsize)
    return warpgroup_clocks(units, tile, _lefts(whole), trips, tiles, split, making(whole, tile))


def making(whole: Contraction, tile: Tile) -> float:
    """Clocks of a stage for the operands that threads compute."""
    sides = {(u.a, tile.rows) for u in whole.units} | {(u.b, tile.columns // len(whole.units)) for u in whole.units}
    found = 0.0
    for side, rows in sides:
        if side.value is not None:
            loads = {e for e in subexprs(side.value) if isinstance(e, Load)}
            read = sum(whole.job.buffers[e.buffer].dtype.itemsize for e in loads)
            found += rows * (MADE[0] + MADE[1] * read)
    return found


def clock(whole: Contraction, dtype: DType, clocks: float = STAGE, *, warps: bool = False) -> float:
    """Clocks a second of a path on the matrix units, of which 64 x 64 results and 128 bytes of their sums take `clocks`.
    `warps`: that it is the path of warps, where the device may have a faster one."""
    device = whole.job.target.device
    slower = warps and device.arch.startswith("sm_9") and dtype != F64
    how = path(device, dtype.name, dtype.name, True, slower)
    return matrix_clock(device, how, clocks) * (WARP[0].rate if warps else 1.0)


def described(whole: Contraction, leaves: Leaves, products: float, made: Tiling) -> Tiling:
    """The record with what all kernels have: what `products` seconds come to, and the arrays of an element."""
    cost = whole.job.plan.cost
    sides = [e for side in leaves.side for e in (*leaves.side[side], *(Let("", x.value) for x in leaves.kept[side]))]
    once = {e.buffer for let in sides for e in subexprs(let.value) if isinstance(e, Load)}
    return replace(
        made, seconds=with_products(cost, products), operations=cost.matrix_flops, bytes=cost.bytes, products=len(whole.units),
        reads=_named(e.buffer for e in leaves.loads() if e.buffer not in made.comes),
        writes=_named(s.buffer for s in leaves.stores if s.buffer not in made.goes),
        once=_named(b for b in whole.job.buffers if b in once),
        folds=tuple(a.id for a in whole.ride.loop.accs) if whole.ride is not None else made.folds,
    )  # fmt: skip


def warpgroups(whole: Contraction, leaves: Leaves, form: Form, how: str, results: int, comes: Iterable[str],
               goes: Iterable[str], cluster: int = 1, room: int = 0, sweeps: int = 0,
               beside: Sequence[Contraction] = ()) -> Tiling:  # fmt: skip
    """The record of a kernel of warpgroup products. `how`: how operands come, where not as usual; `room`, `beside` as above;
    `sweeps`: clocks of a tile for what follows whole rows."""
    dtype = whole.units[0].a.dtype
    tile = Tile(form.rows, form.columns * len(whole.units), form.consumers, form.pingpong, sweeps)
    each = tuple(tiles_of(x, form.rows, form.columns) for x in (whole, *beside))
    trips, tiles = trips_of(whole, form.depth), sum(each)
    at_once = room or max(1, whole.job.target.device.units // form.split)
    hidden = form.pingpong and tiles > at_once
    after = HANDED if hidden else OPEN + sweeps + (EXCHANGE if form.split > 1 else 0)
    made = Tiling(
        f"wgmma {form.kind}{how}", form.kind, True, form.rows, form.columns,
        f"{form.consumers} warpgroups" if form.consumers > 1 else "a warpgroup", form.stages, form.depth, results, tiles,
        at_once, trips, 0.0, 0, 0, turns=form.pingpong, slots=form.slots if comes or goes else 0, split=form.split,
        cluster=cluster, main=-(-trips // form.split) * stage_clocks(tile, _lefts(whole), making(whole, tile)), epilogue=float(after),
        comes=_named(comes), goes=_named(goes), nests=each if beside else (),
    )  # fmt: skip
    seconds = warpgroup_time(whole, tile, form.split, room, beside) / clock(whole, dtype)
    return described(whole, leaves, seconds, made)


def of_rows(leaves: Leaves, body: Iterable[Let | Store]) -> Leaves:
    """The leaves with the statements of all sweeps."""
    return replace(leaves, body=list(body))


def _lefts(whole: Contraction) -> int:
    return len({u.a for u in whole.units})


def _named(buffers: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(buffers))
