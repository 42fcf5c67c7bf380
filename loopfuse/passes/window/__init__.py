"""The window form (L8): tiles of a consumer, with its producers computed again in the halo that each tile reaches.

A producer `t[y, x] = ...` that is read at `t[y - 1], t[y], t[y + 1]` cannot share an iteration with its reader. It can
share a tile: for each tile of the consumer, of a symbolic size that the plan chooses, the producer runs over the part of
`t` that the tile reaches, modes applied, and `t` is local with that part as its window. Chains (three steps of Jacobi)
extend the region stage by stage, from the last to the first. Any size of tile from 1 gives the same bits.

Refused: gathers and `wrap`, which reach anywhere; producers with long folds or recurrences; arrays that are needed
elsewhere; consumers that read nothing at a distance (those merge, or inline).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause
from loopfuse.ir import Buffer, Dim, Interval, Kernel, Loop, Size, Stmt
from loopfuse.passes.merge import Merged
from loopfuse.passes.moving import cost
from loopfuse.passes.sweep import arrays
from loopfuse.passes.window.regions import Region, clipped, image, through_mode, union
from loopfuse.passes.window.stages import Axes, Read, Stage, stages
from loopfuse.rewrite import exprs, rename, walk
from loopfuse.sizes import ONE, Poly

__all__ = ["around", "tile", "window"]

# Sizes of tiles that costs are counted with, by the number of tiled dims: about what fits in shared memory.
TILES: dict[int, tuple[int, ...]] = {1: (256,), 2: (32, 64), 3: (8, 8, 32)}


def window(a: Kernel, b: Kernel, env: Env, live: frozenset[str]) -> Merged | Cause:
    """One kernel that computes `b` tile by tile, and for each tile what it reaches of `a`.

    Both are plain `par` nests, or kernels that this function made. `live` are the arrays that are needed elsewhere.
    """
    parts: list[Stage] = []
    fixed = _fixed(env)
    for kernel in (a, b):
        found = stages(kernel, env.buffers, fixed)
        if found is None:
            return _cause("shape", "only plain loops without recurrences or reductions around can be tiled", (a, b))
        parts += found
        if kernel is a and not arrays(b)[1] & {n for part in found for n in part.stores}:
            return _cause("unrelated", "the consumer reads nothing that the producer stores", (a, b))
    return _Tiling(a, b, env, live, parts).run()


def tile(kernel: Kernel, env: Env, live: frozenset[str]) -> Merged | Cause:
    """A joint kernel whose loops could not be joined further, because of readings at a distance, in the window form."""
    found = stages(kernel, env.buffers, _fixed(env))
    if found is None or len(found) < 2:
        return _cause("shape", "the kernel is not made of several plain loops", (kernel,))
    return _Tiling(kernel, kernel, env, live, found).run()


def _fixed(env: Env) -> frozenset[str]:
    return frozenset(s.id for s in env.program.sizes if s.value is not None)


def around(env: Env, merged: Merged) -> Env:
    """The surroundings with the sizes and the local buffers of a joint kernel."""
    if not merged.sizes and not merged.buffers:
        return env
    program = replace(env.program, sizes=(*env.program.sizes, *merged.sizes))
    facts, numbers = env.facts, dict(env.sizes)
    for k, size in enumerate(merged.sizes):
        facts = facts.size(size.id, size.least, size.multiple)
        numbers[size.id] = _stand_in(k, len(merged.sizes))
    buffers = {**env.buffers, **{b.id: b for b in merged.buffers}}
    program = replace(program, buffers=tuple(buffers[b.id] for b in program.buffers))
    assumed = env.assumed | {s.id for s in merged.sizes}
    return replace(env, program=program, facts=facts, sizes=numbers, assumed=assumed, buffers=buffers)


def _stand_in(k: int, count: int) -> int:
    row = TILES.get(count, ())
    return row[k] if k < len(row) else 8


def _cause(code: str, message: str, kernels: tuple[Kernel, ...], detail: str = "", lift: str = "") -> Cause:
    return Cause(code, message, detail, lift, tuple(k.span for k in kernels if k.span is not None))


class _Refused(Exception):
    """The two cannot be put in tiles."""

    def __init__(self, code: str, message: str, detail: str = "", lift: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.detail, self.lift = code, message, detail, lift


def _computed(name: str) -> _Refused:
    return _Refused(
        "gather", f"`{name}` is read at a computed place", lift="a subscript that is an index and an offset"
    )


def _mentioned(*polys: Poly) -> frozenset[str]:
    return frozenset[str]().union(*(p.names for p in polys))


@dataclass
class _Tiling:
    """Stages being put in tiles of the last one."""

    a: Kernel
    b: Kernel
    env: Env
    live: frozenset[str]
    parts: list[Stage]
    common: set[str] = field(default_factory=set)
    tiled: list[str] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    # the index and the size of the tile, by the dim of the last stage
    tiles: dict[str, tuple[str, Poly]] = field(default_factory=dict)

    def run(self) -> Merged | Cause:
        try:
            self._check()
            while not self._settle():
                pass
            self._name_tiles()
            return self._build()
        except _Refused as why:
            return _cause(why.code, why.message, (self.a, self.b), why.detail, why.lift)

    # -- what is tiled ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Whether the producers can be computed again, and where they are stored."""
        self.made: dict[str, int] = {}
        last = len(self.parts) - 1
        for k, part in enumerate(self.parts):
            if k < last:
                self._check_producer(part)
                self.made |= dict.fromkeys(part.stores, k)
            elif not part.stores:
                raise _Refused("shape", "the consumer stores nothing in its outer loops")
        final = self.parts[-1]
        sizes = {s.id for s in self.env.program.sizes}
        if any(d.step != ONE or not all(p.names <= sizes for p in (*d.lo, *d.hi)) for d in final.dims):
            raise _Refused("extent", "the bounds of the consumer's loops are not sizes")
        self.common = {d.id for d in final.dims}
        self.tiles = dict(final.tiles)

    def _check_producer(self, part: Stage) -> None:
        if not part.plain:
            raise _Refused(
                "impure", "what the producer does cannot be done twice: it has a recurrence or checked reads"
            )
        if not part.constant:
            raise _Refused("recompute", "the producer sums over an axis for every element; in the halo of each tile it "
                           "would do so again", lift="keep the product in memory, or shorten the sum")  # fmt: skip
        names = part.names
        for name, axes in part.stores.items():
            buffer = self.env.buffers[name]
            if buffer.role != "temp" or name in self.live:
                raise _Refused("live", f"`{name}` is needed elsewhere", lift=f"nothing else may read `{name}`")
            used: set[str] = set()
            for poly, extent in zip(axes, buffer.shape, strict=True):
                dim = _alone(poly, part)
                if poly is None or dim is None or dim.id in used:
                    raise _Refused("shape", f"`{name}` is not stored axis by axis")
                used.add(dim.id)
                offset = poly - Poly.of(dim.id)
                if dim.lo != (-offset,) or dim.hi != (extent - offset,) or dim.step != ONE:
                    raise _Refused("shape", f"the loops of `{name}` do not run over all of it")
            if used != names:
                raise _Refused("shape", f"`{name}` has not all axes of its loops")

    def _settle(self) -> bool:
        """Give each dim of each stage its meaning; False where a dim proved to be no common one and all starts again.

        `meaning[k][d]` is the dim of the last stage that d is, for a stage k and a dim d that is a common one.
        """
        self.meaning: list[dict[str, str]] = [{} for _ in self.parts]
        self.meaning[-1] = {n: n for n in self.common}
        for k in reversed(range(len(self.parts) - 1)):
            part = self.parts[k]
            for reader in range(k + 1, len(self.parts)):
                for read in self.parts[reader].reads:
                    if read.load.buffer in part.stores and not self._pair(k, reader, read):
                        return False
        lacking = {n for n in self.common for m in self.meaning[:-1] if n not in m.values()}
        self.common -= lacking
        self.meaning = [{d: n for d, n in m.items() if n not in lacking} for m in self.meaning]
        return True

    def _pair(self, k: int, reader: int, read: Read) -> bool:
        """Pair dims of a stage with the common dims that a read of it stands on."""
        part, meaning = self.parts[k], self.meaning[reader]
        for store, poly, mode in zip(part.stores[read.load.buffer], read.polys, read.load.modes, strict=True):
            if poly is None:
                raise _computed(read.load.buffer)
            if mode is not None and mode.kind == "wrap":
                raise _Refused("wrap", f"`{read.load.buffer}` wraps around: a tile at one end reaches the other end")
            here = {n for n in poly.names if n in meaning}
            if not here:
                continue
            dim = _alone(store, part)
            assert dim is not None and store is not None
            gone = {meaning[n] for n in here}
            name = poly.name
            if len(here) == 1 and name in meaning and store.name == dim.id:
                target = meaning[name]
                if self.meaning[k].setdefault(dim.id, target) == target:
                    continue
                gone.add(self.meaning[k][dim.id])
            self.common -= gone
            return False
        return True

    def _name_tiles(self) -> None:
        """The tiles: of the dims that are read at a distance, and of the one that runs along the memory."""
        final = self.parts[-1]
        mine = {n for r in final.reads if r.load.buffer in self.made for p in r.polys if p is not None for n in p.names}
        far = [d.id for d in final.dims if d.id in mine and d.id not in self.common]
        if not far:
            raise _Refused("aligned", "nothing is read at a distance, so no tiles are needed")
        last = next((d.id for axes in final.stores.values() if (d := _alone(axes[-1] if axes else None, final))), "")
        if last in self.common:
            self.common.discard(last)
            self.meaning = [{d: n for d, n in m.items() if n != last} for m in self.meaning]
            far = [d.id for d in final.dims if d.id in {*far, last}]
        self.tiled = far
        for dim in far:
            if dim not in self.tiles:
                size = Size(self.env.fresh("T"), "plan", 1)
                self.sizes.append(size)
                self.tiles[dim] = (self.env.fresh(dim), Poly.of(size.id))
        self.tiles = {d: self.tiles[d] for d in far}

    # -- regions and loops --------------------------------------------------------------------------------------------

    def _build(self) -> Merged:
        final = self.parts[-1]
        self.facts = self.env.facts
        for size in self.sizes:
            self.facts = self.facts.size(size.id, 1)
        for dim in final.dims:
            if dim.id in self.common:
                self.facts = self.facts.index(dim.id, dim.lo, dim.hi)
            elif dim.id in self.tiles:
                at, step = self.tiles[dim.id]
                self.facts = self.facts.index(at, dim.lo, dim.hi, step)
        # what a region may depend on: values that the reader computes are not there yet
        sizes = {s.id for s in (*self.env.program.sizes, *self.sizes)}
        self._known = (
            sizes | self.common | _mentioned(*(p for at, step in self.tiles.values() for p in (Poly.of(at), step)))
        )
        regions: list[dict[str, Region]] = [{} for _ in self.parts]
        regions[-1] = {d.id: self._tile(d) for d in final.dims}
        for k in reversed(range(len(self.parts) - 1)):
            regions[k] = self._reached(k, regions)
        self._carried(regions)
        outer = tuple(
            d if d.id in self.common else Dim(self.tiles[d.id][0], d.lo, d.hi, self.tiles[d.id][1], span=d.span)
            for d in final.dims
            if d.id in self.common or d.id in self.tiles
        )
        loops = tuple(self._loop(k, regions[k]) for k in range(len(self.parts)))
        kernel = Kernel(self.a.id, (Loop(outer, loops, span=self.b.span),), span=self.a.span)
        buffers = tuple(
            self._local(name, self.parts[k], regions[k], self.meaning[k]) for name, k in self.made.items()
        )  # fmt: skip
        return Merged(kernel, "stencil", self._recomputed(regions), tuple(self.sizes), buffers=buffers)

    def _carried(self, regions: list[dict[str, Region]]) -> None:
        """Each array of a producer has a part for each tile: else several tiles would store the same part."""
        for reached in regions[:-1]:
            names = _mentioned(*(p for r in reached.values() for p in (*r.lo, *r.hi)))
            if not names >= {at for at, _ in self.tiles.values()}:
                raise _Refused("shape", "an array of the producer lacks an axis along which the consumer is tiled")

    def _tile(self, dim: Dim) -> Region:
        """The part of a dim of the last stage in a tile."""
        if dim.id in self.common:
            return Region((Poly.of(dim.id),), (Poly.of(dim.id) + 1,))
        if dim.id not in self.tiles:
            return Region(dim.lo, dim.hi)
        at, step = self.tiles[dim.id]
        return Region((Poly.of(at),), (*dim.hi, Poly.of(at) + step))

    def _reached(self, k: int, regions: list[dict[str, Region]]) -> dict[str, Region]:
        """For each dim of a stage the region that later stages read."""
        part = self.parts[k]
        found: dict[str, Region] = {}
        for reader in range(k + 1, len(self.parts)):
            for read in self.parts[reader].reads:
                if read.load.buffer not in part.stores:
                    continue
                for axis, store in enumerate(part.stores[read.load.buffer]):
                    dim = _alone(store, part)
                    assert dim is not None and store is not None
                    reach = self._read(axis, read, self.parts[reader], regions[reader], part.stores)
                    reach = reach.moved(Poly.of(dim.id) - store)
                    found[dim.id] = union(found[dim.id], reach) if dim.id in found else reach
        made: dict[str, Region] = {}
        for dim in part.dims:
            if dim.id in self.meaning[k]:
                at = Poly.of(self.meaning[k][dim.id])
                made[dim.id] = Region((at,), (at + 1,))
                continue
            if dim.id not in found:
                raise _Refused("unrelated", "a step of the producer is not read")
            made[dim.id] = clipped(found[dim.id], dim, lambda p, q: self.facts.nonneg(q - p))
        return made

    def _read(
        self, axis: int, read: Read, reader: Stage, regions: dict[str, Region], stores: dict[str, Axes]
    ) -> Region:
        """The part of an axis that a read reaches."""
        poly, mode, name = read.polys[axis], read.load.modes[axis], read.load.buffer
        assert poly is not None
        extent = self.env.buffers[name].shape[axis]
        at = next((n for n in sorted(poly.names & reader.names) if poly.coefficient(n) == ONE), None)
        if at is not None and mode is not None and mode.kind != "constant":
            dim = next(d for d in reader.dims if d.id == at)
            low = any(self.env.facts.nonneg(p) for p in dim.lo)
            high = any(self.env.facts.nonneg(extent - p) for p in dim.hi)
            at = at if low and high else None
        ends = through_mode(poly, mode, at, read.inner, self.env.facts)
        least = image(ends[0], regions, read.inner) if ends else None
        most = image(ends[1], regions, read.inner) if ends else None
        if least is None or most is None:
            raise _Refused("shape", f"what `{name}[{poly}]` reaches is not an interval with a known offset")
        if _mentioned(*least.lo, *most.hi) - self._known:
            raise _computed(name)
        return Region(least.lo, most.hi)

    def _loop(self, k: int, regions: dict[str, Region]) -> Loop:
        """The loop of a stage over its region, in the tile."""
        part = self.parts[k]
        table = {d: n for d, n in self.meaning[k].items() if d != n}
        outside = self.common | {at for at, _ in self.tiles.values()}
        bound = {d.id for s in walk(part.body) if isinstance(s, Loop) for d in s.dims} | (part.names - table.keys())
        same = {d for d, n in self.meaning[k].items() if d == n}
        table |= {n: self.env.fresh(n) for n in sorted(outside & bound - same)}
        body = rename(part.body, table) if table else part.body
        dims = tuple(
            replace(d, id=table.get(d.id, d.id), lo=regions[d.id].lo, hi=regions[d.id].hi)
            for d in part.dims
            if d.id not in self.meaning[k]
        )
        assert part.loop is not None
        return Loop(dims, body, span=part.loop.span)

    def _local(self, name: str, part: Stage, regions: dict[str, Region], meaning: dict[str, str]) -> Buffer:
        """The buffer as a local one, whose window is the region."""
        intervals: list[Interval] = []
        for store in part.stores[name]:
            dim = _alone(store, part)
            assert dim is not None and store is not None
            reach = regions[dim.id].moved(store - Poly.of(dim.id))
            intervals.append((reach.lo, reach.hi))
        return replace(self.env.buffers[name], scope="local", window=tuple(intervals))

    # -- what it costs ------------------------------------------------------------------------------------------------

    def _recomputed(self, regions: list[dict[str, Region]]) -> int:
        """The operations that the halos of all tiles add, at the sizes that are assumed."""
        numbers = dict(self.env.sizes)
        many = 1
        for dim in self.parts[-1].dims:
            length = min(int(p.value(numbers)) for p in dim.hi) - max(int(p.value(numbers)) for p in dim.lo)
            if dim.id in self.common:
                many *= max(length, 0)
                numbers[dim.id] = 0
            elif dim.id in self.tiles:
                at, step = self.tiles[dim.id]
                rank = self.tiled.index(dim.id)
                size = next((s for s in self.sizes if Poly.of(s.id) == step), None)
                for name in step.names if size is None else (size.id,):
                    numbers.setdefault(name, _stand_in(rank, len(self.tiled)))
                width = int(step.value(numbers))
                many *= -(-length // width)
                numbers[at] = width if length > width else 0
        extra = 0
        for part, reached in zip(self.parts[:-1], regions[:-1], strict=True):
            volume = prod(_width(r, numbers) for r in reached.values())
            whole = prod(int(d.hi[0].value(numbers)) - int(d.lo[0].value(numbers)) for d in part.dims)
            extra += max(many * volume - whole, 0) * _operations(part, numbers)
        return extra


def _alone(poly: Poly | None, stage: Stage) -> Dim | None:
    """The dim that a subscript of a store is, but for an offset in sizes."""
    if poly is None:
        return None
    mine = [d for d in stage.dims if d.id in poly.names]
    if len(mine) != 1 or poly.degree(mine[0].id) != 1 or poly.coefficient(mine[0].id) != ONE:
        return None
    return mine[0] if mine[0].id not in (poly - Poly.of(mine[0].id)).names else None


def _width(region: Region, numbers: dict[str, int]) -> int:
    low, high = max(int(p.value(numbers)) for p in region.lo), min(int(p.value(numbers)) for p in region.hi)
    return max(high - low, 0)


def _operations(stage: Stage, numbers: dict[str, int]) -> int:
    """The operations for one element of a stage."""

    def block(body: tuple[Stmt, ...]) -> int:
        total = 0
        for stmt in body:
            if isinstance(stmt, Loop):
                trips = prod(int((d.hi[0] - d.lo[0]).value(numbers)) for d in stmt.dims)
                total += max(trips, 0) * (len(stmt.accs) + block(stmt.body))
            else:
                total += cost(*exprs(stmt))
        return total

    return block(stage.body)
