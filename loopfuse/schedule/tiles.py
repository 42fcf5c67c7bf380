"""Tiles of matrix products: which there are for an instruction family, what they hold, and how long they take.

The constants for 16-bit types are measured on an H200: a tile of a cooperative pair of warpgroups pays its epilogue in
the open, one of a ping-pong pair hides most of it behind the other's main loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopfuse.devices import Device

KEEPS = 1.1  # of the peak of whole products, the rate of the main loop by itself
CLOCKS_A_LANE = 256  # operations a clock of a multiprocessor in fp32: 128 multiply-adds
# Of the rate, where an operand is computed and passes through registers; a second one costs as much again as of mma.sync.
THROUGH = {"wgmma": 0.6, "mma.sync": 0.85}
MOST_ACCUMULATORS = 200  # of the 232 registers of a consumer's thread


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x `columns` of the result by `consumers` warpgroups; `open` clocks of epilogue that nothing hides."""

    rows: int
    columns: int
    consumers: int
    pingpong: bool
    open: int
    rate: float = 1.0

    def accumulators(self, each: int) -> int:
        """Registers a thread of the results, `each` accumulators an element."""
        threads = 128 * (1 if self.pingpong else self.consumers)
        return -(-self.rows * self.columns * each // threads)


# Consumers that share a tile, and that take turns: what `warpgroup_clocks` knows the times of.
WARPGROUP = (
    Tile(128, 256, 2, False, 0), Tile(128, 192, 2, False, 0), Tile(256, 128, 2, False, 0), Tile(128, 128, 2, False, 0),
    Tile(128, 64, 2, False, 0), Tile(64, 256, 1, False, 0), Tile(64, 128, 1, False, 0), Tile(64, 64, 1, False, 0),
    Tile(64, 32, 1, False, 0), Tile(64, 16, 1, False, 0), Tile(64, 8, 1, False, 0),
    Tile(128, 192, 2, True, 0), Tile(128, 128, 2, True, 0), Tile(128, 64, 2, True, 0),
)  # fmt: skip
ROW = 128  # bytes along the sum that a stage of such a tile holds
PANEL = 64  # columns that leave as one tile; where consumers take turns, each leaves by such tiles
MOST_SHARED_OUT = 128  # registers of results of a thread, of which each of several products has its part
START = 4000  # clocks before the first product and after the last tile
OPEN = 4000  # clocks of a tile that no product hides
HANDED = 1000  # the same where another consumer multiplies meanwhile
EXCHANGE = 15000  # clocks to exchange parts in a cluster
HIDDEN = 0.85  # of a stage's products, beside which threads make operands
FEED = 56.0  # bytes a clock of a multiprocessor from the second-level cache
SPLITS = (1, 2, 4)  # blocks of a cluster that may share a sum
# Kernels that hold whole rows: their tiles, and the clocks of what follows the products beside `OPEN`, in all and for each
# consumer of 64 rows. Of the multiprocessors those that clusters of more than two blocks reach: the rest of each part of the
# device is too few for one. An H200 of 132 holds 30 clusters of four such blocks; one more would wait for all others.
ROW_TILES = ((192, 256), (128, 256), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64))
SWEEPS = (-1100, 2400)
REACHED = (10, 11)
WARP = (
    Tile(128, 128, 2, False, 4500, 0.9), Tile(128, 64, 2, False, 3500, 0.8), Tile(64, 64, 1, False, 3000, 0.6),
    Tile(64, 32, 1, False, 2500, 0.4), Tile(16, 128, 1, False, 2500, 0.3),
)  # fmt: skip
# Of f64 on matrix units: endings as on the ordinary ones, which have the same epilogue; rates are not measured.
DOUBLES = (
    Tile(128, 128, 2, False, 2500, 0.9), Tile(128, 64, 2, False, 2200, 0.85), Tile(64, 64, 1, False, 2000, 0.8),
    Tile(64, 32, 1, False, 1800, 0.65), Tile(32, 32, 1, False, 1500, 0.45),
)  # fmt: skip
# The tiles that kernels of the ordinary units have, with their rates.
PLAIN = (
    Tile(128, 128, 2, False, 2500), Tile(128, 64, 2, False, 2200, 0.9), Tile(64, 128, 2, False, 2200, 0.9),
    Tile(64, 64, 1, False, 2000, 0.75), Tile(128, 32, 2, False, 2000, 0.75), Tile(32, 128, 2, False, 2000, 0.65),
    Tile(128, 16, 2, False, 1800, 0.5), Tile(16, 128, 2, False, 1800, 0.5),
    Tile(32, 32, 1, False, 1500, 0.4),
)  # fmt: skip


def taken(tile: Tile, each: int) -> bool:
    """Whether kernels of warpgroups have a tile of `each` products together."""
    if tile.columns % ((PANEL if tile.pingpong else 8) * each):
        return False
    return each == 1 or tile.accumulators(1) <= MOST_SHARED_OUT


def followed_by(consumers: int) -> int:
    """Clocks of a tile for its sweeps over whole rows."""
    return SWEEPS[0] + SWEEPS[1] * consumers


def held_at_once(units: int, blocks: int) -> int:
    """How many clusters of so many blocks a device of `units` multiprocessors holds at once."""
    reached = units * REACHED[0] // REACHED[1] if blocks > 2 else units
    return max(1, reached // blocks)


def row_tiles(turned: bool) -> tuple[Tile, ...]:
    """The tiles of kernels that hold whole rows; `turned`: rows that run along the rows of the product."""
    sides = [(r, c, r // 64) for r, c in ROW_TILES]
    return tuple(Tile(c if turned else r, r if turned else c, n, False, followed_by(n)) for r, c, n in sides)


@dataclass(frozen=True, slots=True)
class Path:
    """An instruction family: its name, the bytes of an element as staged, its rate, its tiles."""

    name: str
    dtype: str
    item: int
    peak: float
    tiles: tuple[Tile, ...]
    depth: int  # of the sum that one stage of the pipeline holds

    def stages(self, device: Device, tile: Tile, sides: int) -> int:
        """How many stages of operands fit in shared memory; `sides` right operands share one left."""
        left = tile.rows * self.depth * self.item
        right = tile.columns * self.depth * self.item
        room = device.shared - (18 << 10) if device.kind != "cpu" else device.shared
        return min(6, room // (left + right * max(1, sides)))


def faster(device: Device) -> bool:
    """Whether the matrix units multiply f64 faster than the ordinary ones."""
    return (device.matrix_peak("f64") or 0.0) > device.fp64


def path(device: Device, a: str, b: str, tf32: bool, computed: int = 0, strict: bool = False) -> Path:
    """The instruction family for operands of two types; `computed`: so many are not copied to shared memory as they lie in
    memory, but made of what was loaded, so that no bulk copy and no warpgroup's instruction can take them. `strict`: each
    product is rounded before it is added, which the matrix units do of f64 in one (those of 16 bits are exact in f32)."""
    warpgroup = device.arch.startswith("sm_9")
    family, tiles = ("wgmma", WARPGROUP) if warpgroup else ("mma.sync", WARP)
    second = THROUGH["mma.sync"] ** max(0, computed - 1)
    keeps = KEEPS * (THROUGH[family] * second if computed else 1.0)
    if computed:
        family, tiles = "mma.sync", WARP
    if a == b and a in ("f16", "bf16", "i8"):
        peak = device.matrix_peak(a)
        if peak is not None:
            return Path(family, a, 1 if a == "i8" else 2, peak * keeps, tiles, 64)
    if a == b == "f32" and tf32 and device.matrix_peak("tf32") is not None:
        return Path(f"{family} tf32", "tf32", 4, (device.matrix_peak("tf32") or 0.0) * keeps, tiles, 32)
    if a == b == "f64" and not strict and faster(device):
        keeps = KEEPS * THROUGH["mma.sync"] ** computed
        return Path("mma.sync", "f64", 8, (device.matrix_peak("f64") or 0.0) * keeps, DOUBLES, 16)
    return plain(device, "i32" if a[0] in "iu" and b[0] in "iu" else "f64" if "f64" in (a, b) else "f32")


def plain(device: Device, dtype: str) -> Path:
    """The ordinary units, for a type or what it widens to."""
    if dtype[0] in "iu":
        return Path("fma", dtype, 4, device.integer * 0.85, PLAIN, 32)
    if dtype == "f64":
        return Path("fma", "f64", 8, device.fp64 * 0.85, PLAIN, 16)
    return Path("fma", "f32", 4, device.fp32 * 0.87, PLAIN, 32)


def clock(device: Device) -> float:
    """Clocks a second, from the peak in fp32."""
    return device.fp32 / device.units / CLOCKS_A_LANE if device.kind != "cpu" else 3e9


def matrix_clock(device: Device, how: Path, clocks: float) -> float:
    """Clocks a second at which a multiprocessor reaches the rate of a path, where it takes 128 bytes of the sums of 64 x 64
    results in `clocks`."""
    return how.peak / device.units * clocks / (2 * 64 * 64 * ROW / how.item)


def stage_clocks(tile: Tile, sides: int, made: float = 0.0) -> float:
    """Clocks of a stage of a tile: of its products, or of its operands on their way, `sides` left ones and a right one;
    `made`: of those that threads compute, which the products hide in part."""
    plain = max(tile.rows * tile.columns / 32, (tile.rows * sides + tile.columns) * ROW / FEED)
    return max(plain, HIDDEN * plain + made) if made else plain


def warpgroup_clocks(units: int, tile: Tile, sides: int, trips: int, tiles: int, split: int = 1,
                     made: float = 0.0) -> float:  # fmt: skip
    """Clocks that `tiles` tiles take whose sums are `trips` stages long, measured on an H200. `tile.columns` are those of
    all products together, `sides` the left operands; `split` blocks share a sum; `made`: as of a stage."""
    trips = -(-trips // split)
    step = stage_clocks(tile, sides, made)
    waves = -(-tiles * split // units)
    if tile.pingpong:
        turns = waves * (trips * step + HANDED)
        return START + OPEN + turns if waves > 1 else START + 1.01 * (trips * step + OPEN)
    return START + waves * (trips * step + OPEN + tile.open + (EXCHANGE if split > 1 else 0))


def tile_seconds(device: Device, how: Path, tile: Tile, each: int, depth: int, blocks: int, split: int = 1,
                 room: int = 0) -> float:  # fmt: skip
    """How long `blocks` tiles take whose sums are `depth` long, with `each` accumulators an element, in waves;
    `split`: so many blocks share the sum of a tile; `room`: tiles at once, where that is not one a multiprocessor."""
    if how.name.startswith("wgmma") and how.tiles is WARPGROUP:
        wide = Tile(tile.rows, tile.columns * each, tile.consumers, tile.pingpong, tile.open)
        trips = -(-depth * how.item // ROW)
        found = warpgroup_clocks(room or device.units, wide, 1, trips, -(-blocks // split), split)
        return found / matrix_clock(device, how, 64 * 64 / 32)
    depth = -(-depth // split)
    padded = -(-depth // 16) * 16
    main = 2.0 * tile.rows * tile.columns * each * padded / (how.peak / device.units * tile.rate)
    ending = tile.open / clock(device) if device.kind != "cpu" else 0.0
    waves = -(-blocks // device.units)
    if tile.pingpong:
        return waves * main + min(waves, 2) * ending + max(0, waves - 2) * ending * 0.3
    return waves * (main + ending)
