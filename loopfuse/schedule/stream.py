"""Stream: a tile of rows stays, the other side streams past it once; a second product takes what the first gives.

The accumulators of the second product live in registers for the whole stream, so their width is limited; scores never
leave the chip. A cascade rescales what was summed whenever a running maximum moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from loopfuse.analysis.footprint import union
from loopfuse.analysis.sketch import Level, Term
from loopfuse.schedule.base import Ask, agree, band, local_bytes, par_chain, refuse
from loopfuse.schedule.masks import share
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Cost, Guard, Launch, Plan, Refusal, Role
from loopfuse.schedule.products import Product, loads_in, product
from loopfuse.schedule.refusals import barrier, no_band, ordered, span_of
from loopfuse.schedule.tiles import Path, path

NAME = "stream"
WIDEST = 256  # columns of the second product that registers hold
MOST_AFTER = 4096
MOST_LOCAL = 1024  # bytes of a row beside the accumulators
CACHED = 0.65
# Consumer warpgroups, and the registers of a thread that scores, weights and results may take together.
BUDGETS = ((2, 196), (3, 128), (4, 80), (1, 196))
BLOCKS = (176, 128, 96, 80, 64, 48, 32, 16)


@dataclass
class Link:
    """The stream: its loop, the products that feed the arrays, the products that make the scores, and their sizes.

    `uncertain`: the width is a stand-in, of a cascade; the plan holds where it is small enough, which a guard says.
    """

    loop: Level
    second: list[Product]
    first: list[Product]
    rows: int
    batch: int
    length: int
    width: int
    depth: int
    uncertain: bool

    @property
    def flops(self) -> int:
        """Operations of all products, as if nothing were masked."""
        return sum(p.flops for p in (*self.first, *self.second))


@dataclass(frozen=True, slots=True)
class Tile:
    """So many warpgroups of 64 rows each, and so many columns of scores at a time."""

    consumers: int
    columns: int
    shared: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 64 * self.consumers


def accept(ask: Ask) -> Plan | Refusal:
    """A plan for two linked products, or why not."""
    top = band(ask.sketch)
    chain = par_chain(top) if top is not None else []
    if not chain:
        return no_band(NAME, ask)
    trunk = chain[-1]
    link = _link(ask, trunk)
    if isinstance(link, Refusal):
        return link
    clash = agree(ask, list(trunk.extents), ask.own | ask.local)
    if clash is not None:
        return barrier(NAME, 3, ask, clash)
    held = local_bytes(ask, ask.local, dict.fromkeys(trunk.extents, 1))
    if held > MOST_LOCAL:
        return refuse(
            NAME, 3, "shared", f"{ask.title}: a row of what is kept beside the stream takes {held} bytes; it may take "
            f"{MOST_LOCAL}", ask, needed=held, limit=MOST_LOCAL, unit="bytes", span=span_of(link.loop),
        )  # fmt: skip
    if link.width > WIDEST and not link.uncertain:
        return _too_wide(ask, link)
    how = _path(ask, link)
    part = share(ask, link.loop) if ask.env.program.numerics != "strict" else 1.0
    asked = _asked(ask, link)
    best: tuple[Cost, Tile] | None = None
    least = 0
    for tile in _candidates(ask, link, how):
        least = tile.shared if not least else min(least, tile.shared)
        if tile.shared <= ask.device.shared:
            found = _cost(ask, link, how, tile, part, asked)
            if best is None or found.seconds < best[0].seconds:
                best = found, tile
    if best is None:
        return refuse(
            NAME, 5, "shared", f"{ask.title}: the rows that stay and two blocks of what streams past take {least} "
            f"bytes of shared memory; a block has {ask.device.shared}", ask, needed=least, limit=ask.device.shared,
            unit="bytes", span=span_of(link.loop), lift="fewer columns of the operand that stays",
        )  # fmt: skip
    return _plan(ask, trunk, link, how, best[1], best[0])


def _too_wide(ask: Ask, link: Link) -> Refusal:
    u = link.second[0]
    name = u.n[-1] if u.n else "?"
    text = ask.extent_text(u.term.level, name)
    return refuse(
        NAME, 4, "registers", f"{ask.title}: each row accumulates {link.width} values while the other side streams "
        f"past; registers hold {WIDEST}", ask, needed=link.width, limit=WIDEST, unit="values a row",
        lift=f"{text} <= {WIDEST}", span=u.term.store.span,
    )  # fmt: skip


# -- structure --------------------------------------------------------------------------------------------------------


def _link(ask: Ask, trunk: Level) -> Link | Refusal:
    """The linked products, or what is missing."""
    found = ask.sketch
    late = next((level for level in trunk.below() if level.kind in ("seq", "prefix")), None)
    if late is not None:
        return ordered(NAME, 0, ask, late)
    loops = [c for c in trunk.children if c.kind == "fold" and any(a.shape for a in c.accs)]
    if len(loops) != 1:
        return refuse(NAME, 0, "shape", f"{ask.title}: there is no sum of products that follows another one", ask)
    loop = loops[0]
    arrays = [t for t in found.terms if t.owner is loop and t.acc.shape]
    second = [p for t in arrays if (p := product(ask, t)) is not None and not _computed(t, p)]
    if len(second) != len(arrays):
        return refuse(NAME, 1, "product", f"{ask.title}: what is summed into an array is no product of a score and "
                      "an operand", ask, span=arrays[0].store.span)  # fmt: skip
    inner = [t for t in found.terms if t.owner is not loop and t.owner.within(loop)]
    first = [p for t in inner if (p := product(ask, t)) is not None]
    if len(first) != len(inner):
        return refuse(NAME, 1, "product", f"{ask.title}: a reduction inside the stream is no product of two operands",
                      ask, span=inner[0].store.span)  # fmt: skip
    repaired = any(a.repair is not None for a in loop.accs)
    if not first and not repaired:
        return refuse(NAME, 1, "shape", f"{ask.title}: nothing links two products", ask)
    for level in trunk.children:
        if level is not loop and level.times // trunk.times > MOST_AFTER:
            return refuse(
                NAME, 2, "pass", f"{ask.title}: a loop of {level.size} beside the stream", ask, span=span_of(level),
                needed=level.size, limit=MOST_AFTER, unit="trips",
            )  # fmt: skip
    if any(level is not loop and level.kind == "fold" and level.start < loop.start for level in trunk.children):
        return refuse(NAME, 2, "pass", f"{ask.title}: another pass over the operands comes before the stream", ask)
    u = second[0]
    unsure = repaired and any(p.n and ask.uncertain(p.term.level, *p.n) for p in second)
    return Link(
        loop, second, first, u.extent(u.m), u.extent(u.batch), loop.size,
        sum(prod(ask.sketch.value(n) for n in p.term.acc.shape) for p in second),
        max((p.extent(p.k) for p in first), default=0), unsure,
    )  # fmt: skip


def _computed(term: Term, found: Product) -> bool:
    """Whether the array is absorbed into where the rows say, as a histogram is."""
    return not found.n or bool(set(found.m) & set(found.n))


# -- cost -------------------------------------------------------------------------------------------------------------


def _path(ask: Ask, link: Link) -> Path:
    """The instruction family: of the first product, or of what streams past where scores are computed in f32."""
    streamed = link.second[0].b.dtype
    if ask.env.program.numerics == "strict":
        return path(ask.device, link.second[0].a.dtype, streamed, False, strict=True)
    if link.first:
        u = link.first[0]
        both = u.a.dtype if u.a.dtype == u.b.dtype == streamed else "f32"
        return path(ask.device, both, both, ask.env.program.numerics == "fast")
    return path(ask.device, streamed, streamed, False)


def _candidates(ask: Ask, link: Link, how: Path) -> list[Tile]:
    found = []
    width, depth = link.width, link.depth
    if link.uncertain:  # the guard keeps it so
        width, depth = min(width, WIDEST), min(depth, WIDEST)
    for consumers, budget in BUDGETS:
        for columns in BLOCKS:
            registers = columns // 2 + columns // 4 + -(-width // 2)
            if registers > budget or (columns > 2 * link.length and columns > 16):
                continue
            rows = 64 * consumers
            kept = rows * depth * how.item
            streamed = 2 * columns * (depth + width) * how.item
            found.append(Tile(consumers, columns, kept + streamed + 2048))
    return found


def _asked(ask: Ask, link: Link) -> float:
    """Bytes that stream past one tile of rows."""
    window = dict.fromkeys(link.second[0].batch, 1) | dict.fromkeys(link.second[0].m, 1)
    total = 0.0
    accesses = loads_in(ask.sketch, link.loop)
    for b in dict.fromkeys(a.buffer for a in accesses if a.buffer in ask.loads):
        total += union(ask.sketch, [a for a in accesses if a.buffer == b], window) * ask.size(b)
    return total


def _cost(ask: Ask, link: Link, how: Path, tile: Tile, part: float, once: float) -> Cost:
    found, device = ask.sketch, ask.device
    if part < 1.0:  # a boundary block is computed whole
        part = min(1.0, part + 0.5 * (tile.columns + tile.rows) / max(1, link.length))
    blocks = link.batch * -(-link.rows // tile.rows)
    padded = tile.rows * -(-link.rows // tile.rows) / link.rows
    padded *= tile.columns * -(-link.length // tile.columns) / link.length
    flops = link.flops * part
    narrow = min(1.0, 0.5 + min(link.width, 128) / 256 + (0.0 if link.width >= 128 else -0.03))
    even = blocks / (-(-blocks // device.units) * device.units) if part == 1.0 else min(1.0, blocks / device.units)
    turns = {1: 0.75, 2: 0.94, 3: 0.97, 4: 0.96}[tile.consumers]
    rate = how.peak / 1.1 * narrow * turns * (0.9 if tile.columns < 64 else 1.0)
    if how.name == "fma":
        rate = how.peak * turns
    seconds = flops * padded / (rate * max(even, 1e-6))
    reads = sum(ask.distinct(ask.loads).values())
    writes = sum(ask.distinct(ask.stores).values())
    asked = blocks * once * part
    work = found.total
    products = sum(p.flops for p in (*link.first, *link.second))
    rest = max(0, work.flops + work.doubles - products)
    work = type(work)(round(rest * part), 0, 0, round(work.special * part))
    return cost(device, Load(
        reads, writes, max(0.0, asked - reads) * CACHED, work, matrix=flops, matrix_seconds=seconds, blocks=blocks,
        threads=128 * (tile.consumers + 1), registers=128, shared=tile.shared, ahead=256.0,
    ))  # fmt: skip


def _plan(ask: Ask, trunk: Level, link: Link, how: Path, tile: Tile, result: Cost) -> Plan:
    roles: dict[str, Role] = {i: "register" for level in ask.sketch.levels[1:] for i in level.trips}
    roles.update(dict.fromkeys(trunk.extents, "grid"))
    for p in link.second:
        roles.update({**dict.fromkeys(p.m, "block"), **dict.fromkeys(p.k, "serial")})
    online = any(a.repair is not None for a in link.loop.accs)
    folds = {a.id: f"{'online' if a.repair is not None else 'exact'}({tile.columns}): register"
             for a in link.loop.accs}  # fmt: skip
    for p in link.first:
        folds[p.term.acc.id] = f"exact: tiles of {how.depth}"
    guards: tuple[Guard, ...] = ()
    for p in link.second:
        if p.n:
            guards += ask.guard(p.term.level, p.n[-1], "<=", WIDEST, "the scores through memory")
    rounding = ["online folds"] if online else []
    if how.name != "fma":
        rounding.append(f"scores rounded to {how.dtype} for the second product")
    launches = (Launch("main", min(result.matrix_flops, ask.device.units), 128 * (tile.consumers + 1)),)
    return Plan(
        NAME, roles, launches, result, tiles={"rows": tile.rows, "columns": tile.columns, "stages": 2},
        folds=folds, place={a.id: "register" for a in link.loop.accs if a.shape},
        path=f"{how.name} {how.dtype}", guards=tuple(dict.fromkeys(guards)), rounding=tuple(rounding),
        assumed=ask.assumed,
    )  # fmt: skip
