"""Contractions on the ordinary units, for what matrix units do not take: exact f32, f64 where they are no faster, integers,
operands of any layout, operands that are computed on their way.

A block computes one tile of each product. Step by step of the sum its threads load what the next step needs into
registers, multiply what lies in shared memory, and put what came into the other of two buffers there. Where there are
few tiles and their sums are long, those are cut into parts.
"""

from __future__ import annotations

from math import prod

from loopfuse.emit.base import Declined, Emitted
from loopfuse.emit.code import KernelCode, Launch, Tiling, ceil_div, grid
from loopfuse.emit.matrix.epilogue import Epilogue, indices
from loopfuse.emit.matrix.leaves import Leaves, leaves
from loopfuse.emit.matrix.shape import Contraction, Side, Unit
from loopfuse.emit.matrix.split import Split
from loopfuse.emit.matrix.threads_feed import Feed
from loopfuse.emit.matrix.threads_form import MANY, THREADS, Form, forms, kept, summed
from loopfuse.emit.matrix.threads_results import Results
from loopfuse.emit.matrix.tiling import described, tiles_of, trips_of
from loopfuse.emit.rows_vectors import used
from loopfuse.emit.writer import HALVES
from loopfuse.ir import Store
from loopfuse.sizes import ONE, Poly

GROUP = 16  # rows of tiles that are gone through together, so that what they share stays in the second-level cache
MOST_COMING = 24  # registers of what is on its way up to which two blocks share a multiprocessor


def by_threads(whole: Contraction) -> Emitted | Declined:
    """By multiply-adds of threads: any types, any layout."""
    accs = [u.acc.dtype for u in whole.units]
    if any(a in HALVES or a.kind == "bool" for a in accs):
        return Declined("a sum is kept in 16 bits, or in one")
    if whole.job.target.numerics == "strict" and any(u.outside for u in whole.units if u.acc.dtype.is_float):
        return Declined("strict numerics keep every factor inside its sum")
    if not whole.depth or not whole.rows.indices or not whole.cols.indices:
        return Declined("a sum, or its results, have no extent")
    parts = leaves(whole)
    sizes = [kept(s.dtype, u.acc.dtype)[1] for u in whole.units for s in (u.a, u.b)]
    found = forms(whole, max(sizes), max(summed(a)[1] for a in accs))
    for form, cut, seconds in whole.job.tiles.among(found, lambda f: f[0].name(f[1])):
        kernel = Kernel(whole, parts, form, Split(whole, cut) if cut > 1 else None, seconds)
        code = kernel.write()
        if code.shared <= whole.job.target.device.shared - 1024:
            return kernel.emitted(code)
    return Declined("no tile fits the registers and the shared memory")


class Kernel(Results):
    """The text of one kernel: operands and products; what becomes of results is the base's."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, split: Split | None, seconds: float) -> None:
        super().__init__(whole, leaves, form)
        self.split, self.seconds = split, seconds
        self.feeds: list[Feed] = []
        self.pairs: list[tuple[Feed, Feed]] = []
        found: dict[tuple[Side, bool, str], Feed] = {}
        offset = 0
        for unit in whole.units:
            pair: list[Feed] = []
            for side, left in ((unit.a, True), (unit.b, False)):
                key = (side, left, kept(side.dtype, unit.acc.dtype)[0])
                if key not in found:
                    found[key] = feed = Feed(whole, self.w, form, side, left, offset, unit.acc.dtype)
                    offset += -(-feed.bytes // 16) * 16
                    self.feeds.append(feed)
                pair.append(found[key])
            self.pairs.append((pair[0], pair[1]))
        self.stage = offset

    @property
    def steps(self) -> Poly:
        """How many steps a sum takes."""
        whole = self.whole
        return prod((a.extent for a in whole.depth[:-1]), start=ceil_div(whole.depth[-1].extent, self.form.depth))

    def write(self) -> KernelCode:
        """All of it."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        self._place_tile()
        self.warp_down, self.warp_across = n("warp.row"), n("warp.col")
        self.lane_row, self.lane_pair = n("lane.row"), n("lane.col")
        w.line(f"const int {self.warp_down} = (int)threadIdx.x / 32 / {form.across};")
        w.line(f"const int {self.warp_across} = (int)threadIdx.x / 32 % {form.across};")
        w.comment("lanes that differ by one share their rows, lanes that differ by two share their columns")
        w.line(f"const int {self.lane_row} = (int)threadIdx.x / 2 % 8;")
        w.line(f"const int {self.lane_pair} = ((int)threadIdx.x % 2 + (int)threadIdx.x % 32 / 16 * 2) * 2;")
        self.epilogue = Epilogue(w, self.leaves, {"rows": form.rows, "cols": form.columns})
        self.epilogue.origin = (self.row, self.col)
        room = max(2 * self.stage, -(-self.joining_bytes() // 16) * 16)
        if self.split is None:
            room += self.epilogue.reserve(f"lf_shared + {room}", 1, "")
        for axis in (*whole.batch, whole.rows, whole.cols, *whole.depth):
            for name in axis.names:
                w.names(name)
        start = len(w.lines)
        if self.split is None:
            self.epilogue.one_sided("(int)threadIdx.x", THREADS)
            self._products()
            self.results_out()
        else:
            self._products()
            self._partial(self.split)
        self._tops(start)
        w.shared = room
        kinds = dict.fromkeys(summed(u.acc.dtype)[0] for u in whole.units)
        why = f"tiles of {form.rows} x {form.columns} by threads of {form.groups} x {form.pairs * 2}, steps of {form.depth}, " \
              f"multiply-adds of {' and '.join(kinds)}"  # fmt: skip
        why += f", sums cut into {self.split.parts}" if self.split else ""
        spans = tuple(dict.fromkeys(s.span for s in whole.body if isinstance(s, Store) and s.span is not None))[:4]
        return w.function(
            whole.job.name, THREADS, blocks=2 if self._few() else 1, head=[f"{whole.job.kernel.id}: {why}"],
            kernel=whole.job.kernel.id, schedule="contraction", why=why, spans=spans, tiling=self.record(),
        )  # fmt: skip

    def record(self) -> Tiling:
        """The record of its tiles."""
        whole, form, parts = self.whole, self.form, self.split.parts if self.split else 1
        sums = [u.acc.dtype for u in whole.units]
        wide, resident = max(summed(a)[1] for a in sums), 2 if self._few() else 1
        dtype = "f64" if any(a.is_float and a.bits == 64 for a in sums) else "f32" if sums[0].is_float else "i32"
        made = Tiling(
            f"multiply-adds of {dtype if wide < 8 or dtype != 'i32' else 'i64'}", dtype, False, form.rows, form.columns,
            f"{THREADS} threads", 2, form.depth, form.results * len(whole.units) * wide // 4,
            tiles_of(whole, form.rows, form.columns) * parts, whole.job.target.device.units * resident,
            -(-trips_of(whole, form.depth) // parts), 0.0, 0, 0, split=parts, resident=resident,
        )  # fmt: skip
        return described(whole, self.leaves, self.seconds, made)

    def _tops(self, start: int) -> None:
        """Values of the whole tile and the indices of its batch, where the lines from `start` on use them."""
        w = self.w
        for top in reversed(self.whole.tops):
            self.epilogue.let(top)
            line = w.lines.pop()
            if used(w.names(top.id), w.lines[start:]):
                w.lines.insert(start, line)
        for axis, point in zip(self.whole.batch, self.points, strict=True):
            indices(w, axis, point, start, w.depth)

    def _few(self) -> bool:
        """Whether the registers of two blocks fit a multiprocessor: a spill says that they do not."""
        units = self.whole.units
        wide = max(summed(u.acc.dtype)[1] for u in units)
        held = self.form.held(len(units), max(f.lay.size for f in self.feeds), wide)
        coming = sum(f.registers for f in self.feeds) + (8 if self.split else 0)
        return held <= MANY and coming <= MOST_COMING and self.whole.job.budget == 255

    def _place_tile(self) -> None:
        """The coordinates of the block's tile: groups of tile rows, in each column by column."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        down, across, at, first, size = n("down"), n("across"), n("at"), n("first"), n("size")
        self.row, self.col = n("row.0"), n("col.0")
        w.line(f"const int {down} = {w.poly(ceil_div(whole.rows.extent, form.rows))};")
        w.line(f"const int {across} = {w.poly(ceil_div(whole.cols.extent, form.columns))};")
        w.line(f"const int {at} = (int)blockIdx.x % ({down} * {across});")
        w.line(f"const int {first} = {at} / ({GROUP} * {across}) * {GROUP};")
        w.line(f"const int {size} = lf_least<int>({down} - {first}, {GROUP});")
        inner = f"({at} - {first} * {across})"
        w.line(f"const {w.index} {self.row} = ({first} + {inner} % {size}) * {form.rows};")
        w.line(f"const {w.index} {self.col} = {inner} / {size} * {form.columns};")
        rest = f"(int)blockIdx.x / ({down} * {across})"
        for number, axis in enumerate(whole.batch):
            below = " * ".join(w.poly(a.extent) for a in whole.batch[number + 1 :])
            text = f"{rest} / ({below})" if below else rest
            self.points.append(n("point"))
            w.line(f"const {w.index} {self.points[-1]} = {text}{f' % {w.poly(axis.extent)}' if number else ''};")

    # -- the main loop ------------------------------------------------------------------------------------------------

    def _products(self) -> None:
        """The sums: loads for a step go ahead of the products of the one before."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        for feed in self.feeds:
            feed.declare(self.row if feed.left else self.col, self.points)
        reads: dict[Feed, str] = {}
        for feed in self.feeds:
            reads[feed] = n(f"{feed.side.buffer.id}.mine")
            text = feed.lay.place(self._mine(feed))
            w.line(
                f"const {feed.kind}* const {reads[feed]} = (const {feed.kind}*)(lf_shared + {feed.offset}) + {text};"
            )
        for unit in whole.units:
            name = self.acc[unit.acc.id] = n(f"{unit.acc.id}.sums")
            w.line(f"{summed(unit.acc.dtype)[0]} {name}[{form.groups}][{2 * form.pairs}];")
            w.line("#pragma unroll")
            w.line(f"for (int q = 0; q < {form.results}; ++q) {name}[q / {2 * form.pairs}][q % {2 * form.pairs}] = 0;")
        trips, step, inner, first = n("trips"), n("step"), n("inner"), "0"
        if self.split is None:
            w.line(f"const int {trips} = {w.poly(self.steps)};")
        else:
            first = n("first")
            each = ceil_div(self.steps, self.split.parts)
            w.line(f"const int {first} = (int)blockIdx.y * {w.poly(each)};")
            w.line(f"const int {trips} = lf_least<int>({w.poly(self.steps)}, {first} + {w.poly(each)});")
        w.line("#pragma unroll 1")
        with w.block(f"for (int {step} = {first}; {step} <= {trips}; ++{step})"):
            outer = self._step(step, inner)
            with w.block(f"if ({step} < {trips})"):
                for feed in self.feeds:
                    feed.fetch(inner, outer)
            with w.block(f"if ({step} > {first})"):
                self._multiply(f"({step} - 1 & 1) * {self.stage}", reads)
            with w.block(f"if ({step} < {trips})"):
                for feed in self.feeds:
                    place = f"(({feed.kind}*)(lf_shared + ({step} & 1) * {self.stage} + {feed.offset}))"
                    to = n(f"{feed.side.buffer.id}.place")
                    with w.block(""):
                        w.line(f"{feed.kind}* const {to} = {place};")
                        feed.put(to, inner, outer)
                    w.names.free(to)
            w.line("lf_sync();")
            for name in outer:
                w.names.free(name)
        for name in (step, inner):
            w.names.free(name)

    def _step(self, step: str, inner: str) -> list[str]:
        """Where a step starts along the last depth, and where it is along the others."""
        w, whole, form = self.w, self.whole, self.form
        if len(whole.depth) == 1:
            w.line(f"const {w.index} {inner} = ({w.index}){step} * {form.depth};")
            return []
        each = self._counted(ceil_div(whole.depth[-1].extent, form.depth))
        w.line(f"const {w.index} {inner} = ({w.index}){step} % {each} * {form.depth};")
        outer = []
        for number, axis in enumerate(whole.depth[:-1]):
            below = " * ".join([each, *(self._counted(a.extent) for a in whole.depth[number + 1 : -1])])
            outer.append(w.names.fresh("outer"))
            text = f"{step} / ({below})" + (f" % {self._counted(axis.extent)}" if number else "")
            w.line(f"const {w.index} {outer[-1]} = {text};")
        return outer

    def _counted(self, extent: Poly) -> str:
        """An extent to divide by: where it is 0 there is nothing to do, but the steps are gone through once."""
        text = self.w.poly(extent)
        return text if self.whole.job.target.number(extent) else f"lf_greatest<{self.w.index}>({text}, 1)"

    def _mine(self, feed: Feed) -> str:
        """Where in the order of an operand the first vector of a thread is."""
        form, vector = self.form, feed.lay.vector
        if feed.left:
            return f"({self.warp_down} * {8 * form.groups} + {self.lane_row} * {vector})"
        return f"({self.warp_across} * {8 * form.pairs} + {self.lane_pair} * {vector} / 2)"

    def _multiply(self, away: str, reads: dict[Feed, str]) -> None:
        """The products of a step that lies `away` bytes from the first buffer."""
        w, form = self.w, self.form
        k = w.names.fresh("k")
        sets: dict[Feed, str] = {}
        w.line("#pragma unroll")
        with w.block(f"for (int {k} = 0; {k} < {form.depth}; ++{k})"):
            for feed in self.feeds:
                lay = feed.lay
                count = (form.groups if feed.left else 2 * form.pairs) // lay.vector
                pack = f"lf_pack<{feed.kind}, {lay.vector}>"
                sets[feed] = w.names.fresh(f"{feed.side.buffer.id}.set")
                w.line(f"{pack} {sets[feed]}[{count}];")
                for v in range(count):
                    shift = lay.number(v * lay.block)
                    place = f"{reads[feed]} + {away} / {lay.size} + {k} * {lay.pitch}{f' + {shift}' if shift else ''}"
                    w.line(f"{sets[feed]}[{v}] = *(const {pack}*)({place});")
            h, c = w.names.fresh("h"), w.names.fresh("c")
            for (a, b), unit in zip(self.pairs, self.whole.units, strict=True):
                w.line("#pragma unroll")
                with w.block(f"for (int {h} = 0; {h} < {form.groups}; ++{h})"):
                    w.line("#pragma unroll")
                    w.line(f"for (int {c} = 0; {c} < {2 * form.pairs}; ++{c})")
                    left = f"{sets[a]}[{h} / {a.lay.vector}].v[{h} % {a.lay.vector}]"
                    right = f"{sets[b]}[{c} / {b.lay.vector}].v[{c} % {b.lay.vector}]"
                    result = f"{self.acc[unit.acc.id]}[{h}][{c}]"
                    w.line(f"  {result} = {_added(unit, result, left, right)};")
            for name in (h, c, *sets.values()):
                w.names.free(name)
        w.names.free(k)

    def _partial(self, split: Split) -> None:
        """The sums of a part to memory."""
        w, form, whole = self.w, self.form, self.whole
        h, c, row, col = (w.names.fresh(x) for x in ("h", "c", "row", "col"))
        w.line("#pragma unroll")
        with w.block(f"for (int {h} = 0; {h} < {form.groups}; ++{h})"):
            w.line("#pragma unroll")
            with w.block(f"for (int {c} = 0; {c} < {2 * form.pairs}; ++{c})"):
                w.line(
                    f"const {w.index} {row} = {self.row} + {self.warp_down} * {8 * form.groups} + {self.lane_row} + {h} * 8;"
                )
                w.line(f"const {w.index} {col} = {self.col} + {self.warp_across} * {8 * form.pairs} + {self.lane_pair} + "
                       f"{c} / 2 * 8 + {c} % 2;")  # fmt: skip
                with w.block(f"if ({row} < {w.poly(whole.rows.extent)} && {col} < {w.poly(whole.cols.extent)})"):
                    for unit in whole.units:
                        memory = split.pointer(w, unit, True)
                        place = split.place(w, f"({w.index})blockIdx.y", self.points, row, col)
                        w.line(f"{memory}[{place}] = {self.acc[unit.acc.id]}[{h}][{c}];")
        for name in (h, c, row, col):
            w.names.free(name)

    # -- the launch ---------------------------------------------------------------------------------------------------

    def emitted(self, code: KernelCode) -> Emitted:
        """The kernel with its launch: a block a tile."""
        whole, form = self.whole, self.form
        target = whole.job.target
        extents = (ceil_div(whole.rows.extent, form.rows), ceil_div(whole.cols.extent, form.columns),
                   *(a.extent for a in whole.batch))  # fmt: skip
        blocks = grid(target.poly(prod(extents, start=ONE)), self.split.parts if self.split else 1)
        launch = Launch(code.name, blocks, self.w.arguments)
        aligned: frozenset[str] = frozenset().union(*(f.vectors for f in self.feeds))
        if self.split is not None:
            joined, last = self.split.finish(f"{code.name}_finish")
            return Emitted((code, joined), (launch, last), tuple(map(self.split.memory, whole.units)), aligned)
        if self.parts is None:
            return Emitted((code,), (launch,), (), aligned)
        finish, second = self.parts.finish(f"{code.name}_finish")
        memory = tuple(self.parts.memory(a) for a in self.parts.accs)
        return Emitted((code, finish), (launch, second), memory, aligned)


def _added(unit: Unit, result: str, left: str, right: str) -> str:
    """A sum with one product more; integers wrap."""
    if unit.acc.dtype.is_float:
        return f"{result} + {left} * {right}"
    kind, bytes_ = summed(unit.acc.dtype)
    wrap = "unsigned long long" if bytes_ == 8 else "unsigned int"
    return f"({kind})(({wrap}){result} + ({wrap}){left} * ({wrap}){right})"
