"""Contractions by warp products (`mma.sync`, sm_80 and later): a block of warps copies parts of the operands into a ring in
shared memory, reads them as fragments and multiplies.

While the products of 32 bytes of the sum run, the fragments of the next 32 are read and the copies of a later stage go
out. One barrier a stage says both that the next stage has come and that all have read the last one: it stands before the
last products of a stage, which then run while the first fragments of the next one are read. Operands that cannot be
copied as they lie (rows that are no multiple of 4 bytes apart, computed values, bytes across the sum) go through
registers: loaded a stage before they are put in their place. PTX ISA, mma, ldmatrix and cp.async.

Doubles take the same places in fragments, each in two registers: a lane reads them one by one. Before sm_90 the 16 rows of
a product are two instructions of 8 (m8n8k4); from then on there is one (m16n8k4).

Where there are few tiles and their sums are long, those are cut into parts.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from loopfuse.emit.base import Declined, Emitted
from loopfuse.emit.code import KernelCode, Launch, Tiling, ceil_div, grid
from loopfuse.emit.matrix.chunks import THREAD
from loopfuse.emit.matrix.leaves import Leaves, leaves
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.matrix.split import Split
from loopfuse.emit.matrix.tiling import described, tiles_of
from loopfuse.emit.matrix.warp_feed import Feed
from loopfuse.emit.matrix.warp_forms import (
    CHUNK,
    ENDING,
    MOST_STAGES,
    ROW,
    STEPS,
    Form,
    Operand,
    choices,
    clocks,
    hertz,
    kind,
    main_clocks,
    most_results,
    operands,
    tall,
    trips,
    turns,
)  # fmt: skip
from loopfuse.ir import Store
from loopfuse.sizes import ONE, Poly

GROUP = 8  # rows of tiles that are gone through together, so that what they share stays in the second-level cache
LEAST_STAGES = 2
RESERVED = 1024  # bytes of shared memory that the system takes of each block


def by_warps(whole: Contraction) -> Emitted | Declined:
    """By products of warps, where the device has them."""
    target = whole.job.target
    arch = target.device.arch.removeprefix("sm_").rstrip("af")
    if not arch.isdigit() or int(arch) < 80:
        return Declined("the device has no warp products")
    name = kind(whole)
    if isinstance(name, Declined):
        return name
    parts = leaves(whole)
    why = Declined("no tile fits the shared memory and the registers")
    for form in whole.job.tiles.among(choices(whole, name), lambda f: f.name):
        found = operands(whole, form, name)
        if isinstance(found, Declined):
            return found
        ring, pairs = found
        if form.results(len(whole.units)) > most_results(whole.job) // 2 and any(o.width == 0 for o in ring):
            continue  # no registers are left for operands on their way
        stage = sum(o.bytes for o in ring)
        one, several = (
            min(MOST_STAGES, ((target.device.shared + RESERVED) // n - RESERVED - _beside(parts, form)) // stage)
            for n in (1, form.blocks)
        )
        if one < LEAST_STAGES:
            continue
        blocks, stages = (form.blocks, several) if several > LEAST_STAGES else (1, one)
        kernel = Kernel(whole, parts, replace(form, stages=stages, blocks=blocks), ring, pairs, name)
        return kernel.emitted(kernel.write())
    return why


# Bytes that a thread may keep in memory: any other kernel for these operands is many times slower. Operands that pass through
# registers, element by element and with 64-bit offsets where sizes are open, need more of it or less by the compiler's version;
# their limit is reckoned, not measured.
SPILL, SPILL_BY_ELEMENTS = 64, 640


class Kernel(Feed):
    """The text of one kernel: its tile and its products; operands and results are the bases'."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, ring: list[Operand],
                 pairs: list[tuple[int, int]], kind: str) -> None:  # fmt: skip
        super().__init__(whole, leaves, form, ring, kind)
        self.pairs = pairs
        self.reads: list[tuple[str, str]] = []  # by operand: where a lane reads, and the order of chunks there
        self.fragments: list[str] = []
        self.opening = 0  # the line before which the indices of batches are told
        self.split = Split(whole, form.parts) if form.parts > 1 else None

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def spilled(self) -> int:
        """Bytes that a thread may keep in memory."""
        return SPILL if all(o.width for o in self.operands) else SPILL_BY_ELEMENTS

    def write(self) -> KernelCode:
        """All of it."""
        w, form, whole = self.w, self.form, self.whole
        if self.split is None:
            self.choose()
            self.fold_parts()
        n = w.names.fresh
        self.warp, self.lane, self.warp_row, self.warp_col = n("warp"), n("lane"), n("warp.row"), n("warp.col")
        w.line(f"const int {self.warp} = {THREAD} / 32, {self.lane} = {THREAD} % 32;")
        w.line(f"const int {self.warp_row} = {self.warp} / {form.across} * {form.high};")
        w.line(f"const int {self.warp_col} = {self.warp} % {form.across} * {form.wide};")
        self.place()
        more = 0 if self.split else self.epilogue.reserve(f"lf_shared + {self.ring}", 1, "")
        self.trips = n("trips")
        if self.split is None:
            w.line(f"const int {self.trips} = {w.poly(self.steps())};")
        else:
            self.part, each = n("part"), w.poly(ceil_div(self.steps(), form.parts))
            w.line(f"const int {self.part} = (int)blockIdx.y * {each};")
            w.line(f"const int {self.trips} = lf_least<int>({each}, {w.poly(self.steps())} - {self.part});")
        for operand in self.operands:
            self.source(operand)
        stage = n("stage")
        w.line("#pragma unroll")
        with w.block(f"for (int {stage} = 0; {stage} < {form.stages - 1}; ++{stage})"):
            to = n("to")
            w.line(f"unsigned char* const {to} = lf_shared + {stage} * {self.stage};")
            names = self.ahead(stage)
            for operand, piece in self.pieces():
                if operand.width:
                    self.copy(operand, piece, to, names)
                    continue
                made = n(f"{operand.side.buffer.id}.first")
                w.line(f"lf_vec<{self.cell(operand)}, {operand.each}> {made};")
                self.fetch(operand, piece, made, names)
                self.put(operand, piece, made, to)
            w.line("lf_stage_end();")
            w.names.free(to)
        w.names.free(stage)
        if self.split is None and any(self.leaves.kept.values()):
            self.epilogue.one_sided(THREAD, form.threads)
        self.products()
        if self.split is None:
            self.results_out("lf_shared")
        else:
            self.partial(self.split)
        self.tidy()
        for axis, point in zip(whole.batch, self.points, strict=True):
            self.bind(axis, point, self.opening)
        w.shared = self.ring + more
        how = " and ".join(dict.fromkeys(_said(o) for o in self.operands))
        why = (f"tiles of {form.rows} x {form.columns} by {form.down} x {form.across} warps, {form.stages} stages of "
               f"{self.depth}, mma.sync {self.kind}, operands {how}")  # fmt: skip
        why += f", sums cut into {form.parts}" if self.split else ""
        spans = tuple(dict.fromkeys(s.span for s in whole.body if isinstance(s, Store) and s.span is not None))[:4]
        return w.function(
            whole.job.name, form.threads, blocks=form.blocks, head=[f"{whole.job.kernel.id}: {why}"],
            kernel=whole.job.kernel.id, spills=self.spilled(), schedule="contraction", why=why, spans=spans, tiling=self.record(),
        )  # fmt: skip

    def record(self) -> Tiling:
        """The record of its tiles."""
        whole, form, kind = self.whole, self.form, self.kind
        each, device = len(whole.units), whole.job.target.device
        ending = ENDING / (form.blocks if turns(whole, form) >= form.blocks else 1)
        made = Tiling(
            f"mma.sync {kind}", kind, True, form.rows, form.columns, f"{form.down} x {form.across} warps", form.stages,
            self.depth, form.results(each), tiles_of(whole, form.rows, form.columns) * form.parts, device.units * form.blocks,
            trips(whole, form, kind), 0.0, 0, 0, resident=form.blocks, split=form.parts,
            main=main_clocks(whole, form, kind), epilogue=None if self.split else ending,
            comes=tuple(load.buffer for load, _ in self.coming), goes=tuple(s.buffer for s, _ in self.staged),
        )  # fmt: skip
        return described(whole, self.leaves, clocks(whole, form, kind) / hertz(whole, kind), made)

    def steps(self) -> Poly:
        """How many stages a tile takes."""
        whole = self.whole
        return prod((a.extent for a in whole.depth[:-1]), start=ceil_div(whole.depth[-1].extent, self.depth))

    def sides(self) -> tuple[Poly, Poly]:
        """How many tiles there are along the rows and along the columns."""
        return ceil_div(self.whole.rows.extent, self.form.rows), ceil_div(self.whole.cols.extent, self.form.columns)

    def place(self) -> None:
        """The coordinates of the block's tile: groups of tile rows, in each column by column."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        down, across = (w.poly(p) for p in self.sides())
        at, first, size = n("at"), n("first"), n("size")
        self.row, self.col = n("row.0"), n("col.0")
        w.line(f"const int {at} = blockIdx.x % ({down} * {across});")
        w.line(f"const int {first} = {at} / ({GROUP} * {across}) * {GROUP};")
        w.line(f"const int {size} = lf_least<int>({down} - {first}, {GROUP});")
        inner = f"({at} - {first} * {across})"
        w.line(f"const int {self.row} = ({first} + {inner} % {size}) * {form.rows};")
        w.line(f"const int {self.col} = {inner} / {size} * {form.columns};")
        self.epilogue.origin = (self.row, self.col)
        for number, axis in enumerate(whole.batch):
            below = " * ".join([down, across, *(w.poly(a.extent) for a in whole.batch[number + 1 :])])
            point = n("point")
            w.line(f"const int {point} = (int)blockIdx.x / ({below}){f' % {w.poly(axis.extent)}' if number else ''};")
            self.points.append(point)
        self.named()
        self.opening = len(w.lines)
        for top in whole.tops:
            self.epilogue.let(top)
            self.loose += [w.names(top.id)] if self.split else []

    # -- products -----------------------------------------------------------------------------------------------------

    def products(self) -> None:
        """The main loop."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        result = {"i8": "int", "f64": "double"}.get(self.kind, "float")
        high, wide = form.high // 16, form.wide // 8
        self.acc = {u.acc.id: n(f"{u.acc.id}.sums") for u in whole.units}
        for name in self.acc.values():
            w.line(f"{result} {name}[{high}][{wide}][4];")
            w.line("#pragma unroll")
            w.line(f"for (int q = 0; q < {high * wide * 4}; ++q) {name}[q / {wide * 4}][q / 4 % {wide}][q % 4] = 0;")
        for operand in self.operands:
            self.reader(operand)
        pieces = self.pieces()
        share = -(-len(pieces) // (STEPS - 1))
        held = self.hold(pieces)
        place, fill, slot, step = n("place"), n("fill"), n("slot"), n("step")
        w.line(f"lf_stage_wait<{form.stages - 2}>();")
        w.line("lf_sync();")
        w.line(f"int {slot} = 0, {fill} = {form.stages - 1};")
        w.line(f"const unsigned char* {place} = lf_shared;")
        for k in range(len(self.operands)):
            self.read(k, 0, place)
        w.line("#pragma unroll 1")
        with w.block(f"for (int {step} = 0; {step} < {self.trips}; ++{step})"):
            to, later = n("to"), n("later")
            w.line(f"unsigned char* const {to} = lf_shared + {fill} * {self.stage};")
            w.line(f"const int {later} = {step} + {form.stages - 1};")
            names = self.ahead(later)
            beyond = self.ahead(f"({later} + 1)") if held else ()
            for kk in range(STEPS):
                if kk == STEPS - 1:
                    w.line(f"lf_stage_wait<{form.stages - 2}>();")
                    w.line("lf_sync();")
                    w.line(f"{fill} = {slot};")
                    w.line(f"if (++{slot} == {form.stages}) {slot} = 0;")
                    w.line(f"{place} = lf_shared + {slot} * {self.stage};")
                for k in range(len(self.operands)):
                    self.read(k, (kk + 1) % STEPS, place)
                for at in range(kk * share, min((kk + 1) * share, len(pieces))):
                    operand, piece = pieces[at]
                    if at in held:
                        self.put(operand, piece, held[at], to)
                        self.fetch(operand, piece, held[at], beyond)
                    else:
                        self.copy(operand, piece, to, names)
                if kk == STEPS - 2:
                    w.line("lf_stage_end();")
                self.multiply(kk % 2, high, wide)
            for name in (to, later):
                w.names.free(name)
        for name in (place, fill, slot, step):
            w.names.free(name)

    def reader(self, operand: Operand) -> None:
        """Where a lane reads fragments of an operand: the address of a row of a matrix of 8 x 8, or of a double."""
        w, lane = self.w, self.lane
        at, turn = w.names.fresh(f"{operand.side.buffer.id}.at"), w.names.fresh(f"{operand.side.buffer.id}.order")
        self.reads.append((at, turn))
        name = w.names.fresh(f"{operand.side.buffer.id}.fragments")
        self.fragments.append(name)
        first = self.warp_row if operand.left else self.warp_col
        if self.kind == "f64":
            across = operand.lies == "mn"
            outer, inner = (f"{lane} % 4", f"{lane} / 4") if across else (f"{lane} / 4", f"{lane} % 4")
            row = f"{first} / {operand.depth} * {operand.depth} + {outer}" if across else f"{first} + {outer}"
            w.line(f"const int {at} = {f'{operand.offset} + ' if operand.offset else ''}({row}) * {ROW};")
            w.line(f"const int {turn} = (({inner} / 2) ^ {operand.order(f'({outer})')}) << 4 | {inner} % 2 << 3;")
            w.line(f"double {name}[2]{f'[{self.form.high // 16}][2]' if operand.left else f'[{self.form.wide // 8}]'};")
            return
        high, low = f"{lane} / 16", f"{lane} / 8 % 2"
        inner, outer = (high, low) if operand.left else (low, high)  # of four matrices: along the sum, along the result
        if operand.lies == "mn":
            row, chunk = f"({inner}) * 8 + {lane} % 8", f"({first} / 8 % 8) ^ ({outer})"
            panel = f"{first} / {self.depth} * {self.depth * ROW} + "
        else:
            row, chunk, panel = f"{first} + ({outer}) * 8 + {lane} % 8", inner, ""
        w.line(f"const int {at} = {f'{operand.offset} + ' if operand.offset else ''}{panel}({row}) * {ROW};")
        w.line(f"const int {turn} = (({chunk}) ^ {lane} % 8) << 4;")
        count, size = (self.form.high // 16, 4) if operand.left else (self.form.wide // 8, 2)
        w.line(f"unsigned int {name}[2][{count}][{size}];")

    def read(self, k: int, kk: int, place: str) -> None:
        """The fragments of an operand for the products of 32 bytes of the sum."""
        operand, (at, turn), name = self.operands[k], self.reads[k], f"{self.fragments[k]}[{kk % 2}]"
        across = operand.lies == "mn"
        if self.kind == "f64":
            for q in range((self.form.high if operand.left else self.form.wide) // 8):
                more, order = (kk * 4 * ROW + q // 2 * operand.depth * ROW, q % 2 * 4 ^ kk % 2) if across else \
                    (q * 8 * ROW, 2 * kk)  # fmt: skip
                to = f"{name}[{q // 2}][{q % 2}]" if operand.left else f"{name}[{q}]"
                self.w.line(f"{to} = *(const double*)({place} + {at} + ({turn} ^ {order * CHUNK}) + {more});")
            return
        load = "lf_load_matrix4_t" if across else "lf_load_matrix4"
        for q in range((self.form.high if operand.left else self.form.wide) // 16):
            more, order = (kk * 16 * ROW, q * 2 * CHUNK) if across else (q * 16 * ROW, kk * 2 * CHUNK)
            where = f"{place} + {at} + ({turn} ^ {order}) + {more}"
            out = [f"{name}[{q}][{r}]" for r in range(4)] if operand.left else \
                [f"{name}[{2 * q + r // 2}][{r % 2}]" for r in range(4)]  # fmt: skip
            self.w.line(f"{load}({where}, {', '.join(out)});")

    def multiply(self, half: int, high: int, wide: int) -> None:
        """Products of the fragments of one half: the right fragments pass two left ones, to and fro, so that neighbours share
        fragments. One left fragment at a time draws more power, and so do four."""
        order: list[tuple[int, int]] = []
        for first in range(0, high, 2):
            for c in range(wide) if first % 4 == 0 else reversed(range(wide)):
                rows = [r for r in (first, first + 1) if r < high]
                order += [(r, c) for r in (rows if c % 2 == 0 else rows[::-1])]
        for r, c in order:
            for (a, b), name in zip(self.pairs, self.acc.values(), strict=True):
                left, right = f"{self.fragments[a]}[{half}][{r}]", f"{self.fragments[b]}[{half}][{c}]"
                if self.kind == "f64" and not tall(self.whole.job.target.device.arch):
                    for h in range(2):
                        pair = f"{name}[{r}][{c}][{2 * h}], {name}[{r}][{c}][{2 * h + 1}]"
                        self.w.line(f"lf_mma_8x8_f64({pair}, {left}[{h}], {right});")
                    continue
                self.w.line(f"lf_mma_16x8_{self.kind}({name}[{r}][{c}], {left}, {right});")

    def partial(self, split: Split) -> None:
        """The sums of a part to memory."""
        w, form, whole = self.w, self.form, self.whole
        m, q, row, col = (w.names.fresh(x) for x in ("m", "q", "row", "col"))
        wide = form.wide // 8
        w.line("lf_stage_wait<0>();")
        w.line("#pragma unroll")
        with w.block(f"for (int {m} = 0; {m} < {form.high // 16}; ++{m})"):
            w.line("#pragma unroll")
            with w.block(f"for (int {q} = 0; {q} < {wide * 4}; ++{q})"):
                w.line(
                    f"const {w.index} {row} = {self.row} + {self.warp_row} + {m} * 16 + {q} / 2 % 2 * 8 + {self.lane} / 4;"
                )
                w.line(
                    f"const {w.index} {col} = {self.col} + {self.warp_col} + {q} / 4 * 8 + {self.lane} % 4 * 2 + {q} % 2;"
                )
                with w.block(f"if ({row} < {w.poly(whole.rows.extent)} && {col} < {w.poly(whole.cols.extent)})"):
                    for unit in whole.units:
                        place = split.place(w, f"({w.index})blockIdx.y", self.points, row, col)
                        result = f"{self.acc[unit.acc.id]}[{m}][{q} / 4][{q} % 4]"
                        w.line(f"{split.pointer(w, unit, True)}[{place}] = {result};")
        for name in (m, q, row, col):
            w.names.free(name)

    # -- launches -----------------------------------------------------------------------------------------------------

    def emitted(self, code: KernelCode) -> Emitted:
        """The kernel with its launch: a block for each tile, or for each part of one."""
        target, whole = self.whole.job.target, self.whole
        blocks = target.poly(prod((*self.sides(), *(a.extent for a in whole.batch)), start=ONE))
        aligned = self.aligned() | self.fed()
        launch = Launch(code.name, grid(blocks, self.form.parts), self.w.arguments)
        if self.split is not None:
            joined, last = self.split.finish(f"{code.name}_finish")
            return Emitted((code, joined), (launch, last), tuple(map(self.split.memory, whole.units)), aligned)
        if self.parts is None:
            return Emitted((code,), (launch,), (), aligned)
        finish, second = self.parts.finish(f"{code.name}_finish")
        memory = tuple(self.parts.memory(a) for a in self.parts.accs)
        return Emitted((code, finish), (launch, second), memory, aligned)


def _beside(parts: Leaves, form: Form) -> int:
    """Bytes of shared memory for the values of one side."""
    sides = {"rows": form.rows, "cols": form.columns}
    return sum(sides[side] * leaf.bytes for side, found in parts.kept.items() for leaf in found)


def _said(operand: Operand) -> str:
    """How an operand comes, in words."""
    if operand.width == 0:
        return "by element"
    turned = "" if operand.flat else ", turned"
    return f"by {operand.width} bytes{turned}"
