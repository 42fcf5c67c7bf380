"""Contraction: tiles of matrix products with a prologue on their operands and an epilogue on their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Access, Level
from loopfuse.analysis.summary import Work, summary
from loopfuse.rewrite import exprs, walk
from loopfuse.schedule.base import Ask, agree, refuse
from loopfuse.schedule.held import unheld
from loopfuse.schedule.model import Load, arithmetic, cost
from loopfuse.schedule.plan import Cost, Guard, Launch, Plan, Refusal, Role
from loopfuse.schedule.products import Product, loads_in, products, unworthy, waits
from loopfuse.schedule.prologues import prologues
from loopfuse.schedule.refusals import barrier, no_band, ordered, span_of
from loopfuse.schedule.segments import nests, one_by_one, untaken
from loopfuse.schedule.shapes import Shape
from loopfuse.schedule.tiles import (
    MOST_ACCUMULATORS,
    SPLITS,
    WARPGROUP,
    Path,
    Tile,
    held_at_once,
    path,
    plain,
    row_tiles,
    taken,
    tile_seconds,
)

NAME = "contraction"
MOST_NESTED = 32  # trips of a loop in the epilogue that is not over the row
CACHED = 0.65  # of the bytes that tiles ask of the cache: neighbours ask together
WIDEST = 256  # columns of a tile


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with tiles, or why not."""
    units = products(ask)
    if not units:
        if small := unworthy(ask):
            return refuse(NAME, 0, "product", f"{ask.title}: {small[0]}", ask, lift=small[1])
        return refuse(NAME, 0, "product", f"{ask.title}: there is no sum of products of two operands that a tile "
                      "could take", ask)  # fmt: skip
    shape = _shape(ask, units)
    if isinstance(shape, Refusal):
        return shape
    tf32 = ask.env.program.numerics == "fast" or any(
        d.kind == "pragma" and d.text.split("(")[0].strip() == "tf32" for d in ask.env.program.directives
    )
    first = shape.first
    if shape.row is not None:
        shape.before = [level for level in shape.before if not _pivot(ask, first, level)]
    shape.prologues = prologues(ask, shape.segments, shape.before)
    types = first.a.dtype, first.b.dtype
    strict = ask.env.program.numerics == "strict"
    free = None if first.pair else path(ask.device, *types, tf32, strict=strict)
    how = (
        plain(ask.device, types[0]) if first.pair else path(ask.device, *types, tf32, shape.prologues.operands, strict)
    )
    why = unheld(ask, shape.segments, how) if shape.row is not None else None
    if why is not None:
        return refuse(NAME, 5, "row", f"{ask.title}: what follows the product needs its whole row, and {why}", ask,
                      lift="a kernel of its own for what follows")  # fmt: skip
    turns = len(shape.apart) > 1 and ask.device.kind != "cpu"
    if turns and (why := untaken(ask, units, how)):
        return one_by_one(ask, [accept(nest) for nest in nests(ask)], why) or refuse(
            NAME, 5, "nests", f"{ask.title}: its products have nests of their own, and {why}", ask,
            span=span_of(shape.apart[1][0].owner), lift="a kernel for each of them",
        )  # fmt: skip
    if turns:
        shape = replace(shape, segments=[[u] for u in units], turns=True)
    return _choose(ask, shape, how, free)


# -- structure --------------------------------------------------------------------------------------------------------


def _shape(ask: Ask, units: list[Product]) -> Shape | Refusal:
    found = ask.sketch
    owners = list(dict.fromkeys(u.owner for u in units))
    if len(found.root.children) > 1:
        return no_band(NAME, ask)
    trunk = _trunk(owners)
    for owner in owners:
        for level in owner.chain():
            if level.kind not in ("par", "fold"):
                return ordered(NAME, 1, ask, level)
    segments = [[u for u in units if u.owner is o] for o in owners]
    chained = _chained(ask, segments)
    if chained is not None:
        return chained
    shape = Shape(segments, trunk)
    shape.columns_folded = any({*u.m, *u.batch} & u.riding for u in units)
    shape.rows_folded = any(set(u.n) & u.riding for u in units)
    wrong = _surroundings(ask, shape)
    if wrong is not None:
        return wrong
    for segment in segments:
        if set(segment[0].m) != set(shape.first.m) and segment[0].extent(segment[0].m) != shape.first.extent(
            shape.first.m
        ):
            return refuse(
                NAME, 3, "rows", f"{ask.title}: the products have different rows, so that no tile serves both", ask,
                span=span_of(segment[0].owner),
            )  # fmt: skip
    grid = [i for level in trunk.chain() if level.kind == "par" for i in level.trips]
    inner = [i for i in shape.first.term.level.extents if i in (*shape.first.m, *shape.first.n, *shape.first.batch)]
    clash = agree(ask, grid, ask.own | ask.local) or (
        agree(ask, [i for i in inner if i in trunk.extents], ask.own) if shape.row is None else None
    )
    if clash is not None:
        return barrier(NAME, 4, ask, clash)
    return shape


def _trunk(owners: Sequence[Level]) -> Level:
    """The innermost loop round all the products (the loop round the fold, for a single one)."""
    chains = [o.chain()[:-1] for o in owners]
    common = [levels[0] for levels in zip(*chains, strict=False) if all(x is levels[0] for x in levels)]
    return common[-1] if common else owners[0]


def _chained(ask: Ask, segments: list[list[Product]]) -> Refusal | None:
    """A product whose operand needs the result of another one."""
    found = ask.sketch
    made: set[str] = set()
    for segment in segments:
        for u in segment:
            behind = u.a.names | u.b.names | u.a.buffers | u.b.buffers
            if behind & made or (u.a.buffers | u.b.buffers) & found.written:
                return refuse(
                    NAME, 2, "chain", f"{ask.title}: an operand of one product is computed from another one's result, "
                    "whose whole row a tile does not hold", ask, span=span_of(u.owner),
                    lift="the intermediate in memory, or a reduction that can run along",
                )  # fmt: skip
            if u.term.acc.repair is not None:
                return refuse(
                    NAME, 2, "chain", f"{ask.title}: the sum is rescaled as it grows, so its range cannot be cut into "
                    "tiles of a product", ask, span=span_of(u.owner),
                )  # fmt: skip
        made |= {u.term.acc.id for u in segment}
    late = waits(found, [s[0].owner for s in segments], [{u.term.acc.id for u in s} for s in segments])
    if late is not None:
        return refuse(
            NAME, 2, "chain", f"{ask.title}: one product and what follows it wait for the whole row of another one", ask,
            span=span_of(late), lift="two kernels",
        )  # fmt: skip
    return None


def _surroundings(ask: Ask, shape: Shape) -> Refusal | None:
    """Sort the loops round, before and after the products."""
    found = ask.sketch
    owners = [s[0].owner for s in shape.segments]
    first = shape.first
    for level in found.levels[1:]:
        if any(o.within(level) for o in owners):
            if level.kind == "fold" and level not in owners:
                shape.rows_folded |= bool(set(level.trips) & set(first.n))
                shape.columns_folded |= bool(set(level.trips) & {*first.m, *first.batch})
            continue
        if any(level.within(o) for o in owners):
            if level.kind != "par":
                return refuse(NAME, 2, "nested", f"{ask.title}: a reduction inside the sum of products", ask,
                              span=span_of(level))  # fmt: skip
            continue
        if level.parent is not None and level.parent in (*shape.before, *shape.after):
            if level.size > MOST_NESTED:
                return _too_deep(ask, level)
            continue
        if level.kind in ("seq", "prefix"):
            return ordered(NAME, 2, ask, level)
        if level.end <= min(o.start for o in owners):
            shape.before.append(level)
        elif level.size <= MOST_NESTED and level.parent is not shape.trunk:
            continue
        else:
            shape.after.append(level)
    return _rows(ask, shape, owners)


def _pivot(ask: Ask, u: Product, level: Level) -> bool:
    """Whether a loop before a product computes an element of its result: passes over a row on chip need no pivot."""
    read = {a.buffer for a in loads_in(ask.sketch, level) if a.buffer in ask.loads}
    return bool(read) and read <= u.a.buffers | u.b.buffers


def _too_deep(ask: Ask, level: Level) -> Refusal:
    return refuse(
        NAME, 2, "nested", f"{ask.title}: a loop of {level.size} inside a loop that follows the product", ask,
        span=span_of(level), needed=level.size, limit=MOST_NESTED, unit="trips",
    )  # fmt: skip


def _rows(ask: Ask, shape: Shape, owners: list[Level]) -> Refusal | None:
    """Whether whole rows of the result must be on chip, and whether they fit.

    They must where a loop after the products waits for them: what blocks share nothing of is what all the products and
    all such loops stand in.
    """
    arrays = {a.id for o in owners for a in o.accs if a.shape}
    waiting = [level for level in shape.after if not _reads_array(level, arrays) or _again(level)]
    if not waiting:
        return None
    shared = {i for level in owners[0].chain() if all(x.within(level) for x in (*owners, *waiting))
              for i in level.trips}  # fmt: skip
    shape.row = shape.trunk
    for segment in shape.segments:
        u = segment[0]
        if not {*u.m, *u.batch} - shared:
            shape.width += u.extent(u.n)
        elif not {*u.n, *u.batch} - shared:
            shape.width += u.extent(u.m)
            shape.turned = True
        else:
            return refuse(
                NAME, 5, "barrier", f"{ask.title}: what follows waits for the product over all of "
                f"{', '.join(f'`{i}`' for i in (*u.batch, *u.m, *u.n) if i not in shared)}, which many blocks compute",
                ask, span=span_of(waiting[0]), lift="a kernel of its own for what follows",
            )  # fmt: skip
    most = WIDEST * max(1, ask.device.cluster)
    if ask.device.kind == "cpu":
        most = ask.device.shared // 256
    if shape.width > most:
        u = shape.first
        name = (u.m if shape.turned else u.n)[-1]
        return refuse(
            NAME, 5, "row", f"{ask.title}: what follows the product needs its whole row of {shape.width} elements; "
            f"a cluster of blocks holds {most}", ask, needed=shape.width, limit=most, unit="elements",
            detail=f"the row runs along `{name}`", lift=f"{ask.extent_text(u.term.level, name)} <= {most}",
        )  # fmt: skip
    return None


def _reads_array(level: Level, arrays: set[str]) -> bool:
    """Whether a loop reads an array accumulator: it is the epilogue of its tile."""
    return any(load.buffer in arrays for s in walk(level.body) for e in exprs(s) for load in summary(e).loads)


def _again(level: Level) -> bool:
    """Whether a loop after the product reduces."""
    return level.kind == "fold" or any(b.kind == "fold" for b in level.below())


# -- cost -------------------------------------------------------------------------------------------------------------


def _choose(ask: Ask, shape: Shape, how: Path, free: Path | None = None) -> Plan | Refusal:
    """The cheapest tile; `free` is the path that there would be without prologues."""
    best: tuple[float, Cost, Tile, int, int] | None = None
    each, held = max(len(s) for s in shape.segments), shape.held
    fixed = _fixed(ask, shape, how)
    for tile in row_tiles(shape.turned) if shape.row is not None and how.tiles is WARPGROUP else how.tiles:
        columns = tile.columns // held // 8 * 8  # of an instruction
        if columns < 8 or how.stages(ask.device, tile, 1) < 2:
            continue
        if how.tiles is WARPGROUP and shape.row is None and not taken(tile, held):
            continue
        fit = Tile(tile.rows, columns, tile.consumers, tile.pingpong, tile.open, tile.rate)
        if fit.accumulators(held) > MOST_ACCUMULATORS:
            continue
        if shape.row is not None and not _covers(ask, shape, fit):
            continue
        for split in _splits(ask, shape, how, fit):
            seconds = _seconds(ask, shape, how, fit, split)
            seconds += arithmetic(ask.device, shape.prologues.work(fit))
            if best is not None and seconds >= best[0]:
                continue
            found = _cost(ask, shape, how, fit, each, split, seconds, fixed)
            if best is None or found.seconds < best[0]:
                best = (found.seconds, found, fit, each, split)
    if best is None:
        return refuse(
            NAME, 6, "registers", f"{ask.title}: {held} products at once leave no tile that fits the registers and "
            "the shared memory", ask, needed=held * 64, limit=MOST_ACCUMULATORS, unit="registers",
        )  # fmt: skip
    made = _plan(ask, shape, how, best[2], best[3], best[4], best[1])
    if free is None or not shape.prologues.made:
        return made
    return replace(made, burden=_burden(ask, shape, how, free, best[2], each))


def _burden(ask: Ask, shape: Shape, how: Path, free: Path, tile: Tile, each: int) -> str:
    """What the prologues of a plan cost, in words."""
    least = min((_seconds(ask, shape, free, t, 1) for t in free.tiles
                 if t.accumulators(each) <= MOST_ACCUMULATORS), default=0.0)  # fmt: skip
    work = arithmetic(ask.device, shape.prologues.work(tile))
    extra = max(work, _seconds(ask, shape, how, tile, 1) + work - least)
    if extra <= 0.0:  # on the ordinary units every operand passes through registers
        return ""
    return shape.prologues.said(tile, how.peak / free.peak, extra)


def _covers(ask: Ask, shape: Shape, tile: Tile) -> bool:
    """Whether a cluster of such tiles holds a whole row."""
    if ask.device.kind == "cpu":
        return True
    return _cluster(shape, tile) <= max(1, ask.device.cluster) and not tile.pingpong


def _cluster(shape: Shape, tile: Tile) -> int:
    """How many blocks hold a whole row."""
    return -(-shape.width // (tile.rows if shape.turned else tile.columns)) if shape.row is not None else 1


def _room(ask: Ask, shape: Shape, tile: Tile) -> int:
    """How many tiles are computed at once where clusters hold rows; 0: one a multiprocessor."""
    if shape.row is None or ask.device.kind == "cpu":
        return 0
    blocks = _cluster(shape, tile)
    return held_at_once(ask.device.units, blocks) * blocks


def _tiles(shape: Shape, segment: list[Product], tile: Tile) -> int:
    u, tile = segment[0], shape.own(segment, tile)
    return u.extent(u.batch) * -(-u.extent(u.m) // tile.rows) * -(-u.extent(u.n) // tile.columns)


def _splits(ask: Ask, shape: Shape, how: Path, tile: Tile) -> list[int]:
    """Ways to cut the sum: only where the tiles leave the device idle and nothing rides along."""
    tiles = sum(_tiles(shape, s, tile) for s in shape.apart)
    depth = shape.first.extent(shape.first.k)
    riding = shape.rows_folded or shape.columns_folded or shape.row is not None or len(shape.segments) > 1
    if riding or tile.pingpong or tiles * 2 > ask.device.units:
        return [1]
    most = SPLITS if how.tiles is WARPGROUP else (1, 2, 4, 8, 16)
    return [s for s in most if s == 1 or (depth // s >= 256 and tiles * s <= 2 * ask.device.units)]


def _spread(names: Sequence[str], extents: dict[str, int], room: int) -> dict[str, int]:
    """A tile over several indices, from the innermost outward."""
    found = {}
    for name in reversed(names):
        found[name] = min(extents[name], max(1, room))
        room = -(-room // found[name])
    return found


@dataclass(frozen=True, slots=True)
class Fixed:
    """What does not depend on the tile: bytes read and written, of the operands alone, of rows read before the
    product; operations outside the products; the loads of each segment by buffer."""

    reads: int
    writes: int
    operands: int
    before: int
    work: Work
    flops: int
    accesses: tuple[tuple[tuple[int, tuple[Access, ...]], ...], ...]


def _fixed(ask: Ask, shape: Shape, how: Path) -> Fixed:
    found = ask.sketch
    reads = ask.distinct(ask.loads)
    operands: frozenset[str] = frozenset().union(*(p.a.buffers | p.b.buffers for s in shape.segments for p in s))
    before = sum(
        union(found, [a]) * ask.size(a.buffer)
        for level in shape.before for a in loads_in(found, level) if a.buffer in ask.loads
    )  # fmt: skip
    flops = sum(p.flops for s in shape.segments for p in s)
    work, integers = found.total, how.dtype[0] in "iu"
    rest = max(0, (work.integers if integers else work.flops + work.doubles) - flops)
    accesses = []
    for segment in shape.segments:
        mine = [a for a in loads_in(found, segment[0].owner) if a.buffer in ask.loads]
        if shape.turns:  # whose fold may be another one's too
            mine = [a for a in mine if a.buffer in segment[0].a.buffers | segment[0].b.buffers]
        names = dict.fromkeys(a.buffer for a in mine)
        accesses.append(tuple((ask.size(b), tuple(a for a in mine if a.buffer == b)) for b in names))
    return Fixed(
        sum(reads.values()), sum(ask.distinct(ask.stores).values()), sum(reads.get(b, 0) for b in operands), before,
        Work(0 if integers else rest, 0, rest if integers else 0, work.special), flops, tuple(accesses),
    )  # fmt: skip


def _window(u: Product, tile: Tile) -> dict[str, int]:
    extents = u.term.level.extents
    return {**dict.fromkeys(u.batch, 1), **_spread(u.m, extents, tile.rows), **_spread(u.n, extents, tile.columns)}


def _cost(ask: Ask, shape: Shape, how: Path, tile: Tile, each: int, split: int, seconds: float, fixed: Fixed) -> Cost:
    found, device = ask.sketch, ask.device
    blocks, asked = sum(_tiles(shape, s, tile) for s in shape.apart) * split, 0.0
    for segment, accesses in zip(shape.segments, fixed.accesses, strict=True):
        tiles = _tiles(shape, segment, tile)
        window = _window(segment[0], shape.own(segment, tile))
        asked += tiles * sum(union(found, mine, window) * size for size, mine in accesses)
    rereads, fed = float(fixed.before * shape.prologues.again(tile)), 0.0
    again = max(0.0, asked - fixed.operands) * CACHED
    if how.tiles is WARPGROUP:  # whose stages are as long as their operands take from the cache
        fed = again
    else:
        rereads += again
    parts = split > 1 and how.tiles is not WARPGROUP  # which a second kernel adds; those of a cluster stay on chip
    launches = 1 + (parts or shape.columns_folded or (shape.rows_folded and shape.row is None))
    stages = max(2, how.stages(device, tile, 1))
    shared = min(device.shared, stages * (tile.rows + tile.columns * each) * how.depth * how.item + 8192)
    return cost(device, Load(
        fixed.reads, fixed.writes, rereads + 2 * _workspace(shape, tile, split if parts else 1), fixed.work, fed=fed,
        matrix=fixed.flops, matrix_seconds=seconds, launches=launches, blocks=max(1, blocks),
        threads=128 * (1 + tile.consumers) if how.name != "fma" else 256,
        registers=min(232, tile.accumulators(each) + 40) if how.name == "fma" else 168, shared=shared, ahead=256.0,
    ))  # fmt: skip


def _seconds(ask: Ask, shape: Shape, how: Path, tile: Tile, split: int) -> float:
    """What the products alone take."""
    if len(shape.segments) == 1:  # whose products share the left operand
        (segment,) = shape.segments
        blocks, depth = _tiles(shape, segment, tile) * split, segment[0].extent(segment[0].k)
        room = _room(ask, shape, tile)
        return tile_seconds(ask.device, how, tile, len(segment), depth, blocks, split, room) * segment[0].each / 2
    if shape.turns:
        u, blocks = shape.first, sum(_tiles(shape, s, tile) for s in shape.segments)
        return tile_seconds(ask.device, how, tile, 1, u.extent(u.k), blocks, split) * u.each / 2
    depths: dict[int, int] = {}  # of the sums of a tile, those that follow one another in its block together
    for segment in shape.segments:
        block = id(segment[0].owner.parent)
        depths[block] = depths.get(block, 0) + len(segment) * segment[0].extent(segment[0].k)
    first = next(iter(depths.values()))
    work = sum(shape.own(s, tile).columns * _tiles(shape, s, tile) * depths[id(s[0].owner.parent)] for s in shape.apart)
    blocks = -(-work * split // (tile.columns * first))  # as if all were of the first one's depth
    return tile_seconds(ask.device, how, tile, 1, first, blocks, split) * shape.first.each / 2


def _workspace(shape: Shape, tile: Tile, split: int) -> int:
    """Bytes of partials between the launches."""
    u = shape.first
    rows, columns = u.extent(u.m) * u.extent(u.batch), u.extent(u.n)
    total = max(4, u.term.acc.dtype.itemsize) * split * rows * columns if split > 1 else 0
    if u.riding & {*u.m, *u.batch}:
        total += u.term.acc.dtype.itemsize * columns * -(-rows // tile.rows)
    folds = [level for level in u.term.level.chain() if level.kind == "fold" and level is not u.owner]
    for level in folds:
        size = sum(a.dtype.itemsize for a in level.accs)
        if set(level.trips) & {*u.m, *u.batch}:
            total += size * columns * -(-rows // tile.rows)
        elif shape.row is None:
            total += size * rows * -(-columns // tile.columns)
    return total


def _plan(ask: Ask, shape: Shape, how: Path, tile: Tile, each: int, split: int, result: Cost) -> Plan:
    u = shape.first
    blocks = sum(_tiles(shape, s, tile) for s in shape.apart) * split
    roles: dict[str, Role] = {}
    for level in ask.sketch.levels[1:]:
        roles.update(dict.fromkeys(level.trips, "register"))
    for segment in shape.segments:
        for p in segment:
            roles.update({**dict.fromkeys((*p.m, *p.n), "block"), **dict.fromkeys(p.batch, "grid"),
                          **dict.fromkeys(p.k, "split" if split > 1 else "serial")})  # fmt: skip
    finish = result.launch > 1.5 * ask.device.graph_launch
    launches: tuple[Launch, ...] = (Launch("main", min(blocks, ask.device.units), 128 * (1 + tile.consumers)),)
    if finish:
        launches = (*launches, Launch("finish", max(1, u.extent(u.n) // 256), 256))
    cluster = _cluster(shape, tile)
    folds = {p.term.acc.id: f"exact: tiles of {how.depth}" + (", workspace" if split > 1 else "")
             for s in shape.segments for p in s}  # fmt: skip
    for level in ask.sketch.levels[1:]:
        for acc in level.accs:
            folds.setdefault(acc.id, "exact: lanes, block" + (", workspace" if finish else ""))
    return Plan(
        NAME, roles, launches, result,
        tiles={"rows": tile.rows, "columns": tile.columns, "split": split, "cluster": cluster, "accumulators": each,
               "stages": how.stages(ask.device, tile, 1)},
        folds=folds, place=dict.fromkeys(sorted(ask.local), "register" if cluster == 1 else "distributed"),
        path=f"{how.name} {how.dtype}{' ping-pong' if tile.pingpong else ''}" if how.name != "fma" else
        f"fma {how.dtype}", workspace=_workspace(shape, tile, 1 if how.tiles is WARPGROUP else split), guards=_guards(ask, shape),
        rounding=_rounding(how, shape, split), assumed=ask.assumed,
    )  # fmt: skip


def _guards(ask: Ask, shape: Shape) -> tuple[Guard, ...]:
    if shape.row is None:
        return ()
    u = shape.first
    row = u.m if shape.turned else u.n
    other = prod(u.term.level.extents[i] for i in row[:-1]) * len(shape.segments)
    limit = WIDEST * max(1, ask.device.cluster) // max(1, other)
    return ask.guard(u.term.level, row[-1], "<=", limit, "what follows the product in a kernel of its own")


def _rounding(how: Path, shape: Shape, split: int) -> tuple[str, ...]:
    said = []
    if "tf32" in how.name:
        said.append("operands rounded to tf32")
    if how.name != "fma" and any(o.rounds for s in shape.segments for p in s for o in (p.a, p.b)):
        said.append(f"operands computed before the product rounded to {how.dtype}")
    if split > 1:
        said.append(f"sum cut into {split}")
    return tuple(said)
