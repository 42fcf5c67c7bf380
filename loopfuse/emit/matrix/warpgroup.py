"""Contractions by warpgroup products (sm_90a): one warpgroup copies tiles of the operands into a ring in shared memory, the
others multiply them and write the results.

The ring has `stages` places, each with two barriers: `full`, on which copies report their bytes, and `empty`, on which the
consumers report that they have read. Blocks are persistent: each takes every so-manieth tile. Cooperative consumers
share a tile; those that take turns each have tiles of their own, so that one writes its results while the other
multiplies. PTX ISA, wgmma and cp.async.bulk.tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loopfuse.emit.base import Emitted
from loopfuse.emit.code import KernelCode, Launch, Tiling, grid
from loopfuse.emit.matrix.epilogue import Epilogue, indices
from loopfuse.emit.matrix.forms import ROW, SLOT, Form, Operand
from loopfuse.emit.matrix.leaves import Leaves
from loopfuse.emit.matrix.products import Products
from loopfuse.emit.matrix.results import FIRST_GROUP, followed
from loopfuse.emit.matrix.shape import Contraction, Unit
from loopfuse.emit.matrix.tiling import warpgroups
from loopfuse.emit.rows_vectors import used
from loopfuse.ir import Store
from loopfuse.sizes import Poly

PRODUCER_REGISTERS = {True: 24, False: 40}  # by whether the consumers need the most there are
CONSUMER_REGISTERS = {True: 240, False: 232}
OF_THREE = 160  # registers of each of three consumers
BEGUN = FIRST_GROUP + 4  # the named barrier of the start
MANY_RESULTS = 160  # registers of results from which on they do
SPILL = 128  # bytes that a thread with so many may keep in memory: a smaller tile is slower all the same


class Kernel(Products):
    """The text of one kernel: the ring and the products; what becomes of results is the base's."""

    releases = 1  # arrivals of a consumer at `empty`
    reports = 1  # arrivals of the warpgroup that copies at `full`
    kept_rows = False  # whether results stay in registers for several loops
    through = ""  # how operands come, where not from shared memory
    of = ""  # whose tiles they are, where not of one nest

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, ring: list[Operand],
                 pairs: list[tuple[int, int]], name: str) -> None:  # fmt: skip
        super().__init__(whole, leaves, form, ring, pairs)
        self.name = name
        self.maps: list[str] = []
        self.cluster = form.split

    def operand_map(self, operand: Operand, left: bool) -> str:
        """The map of an operand."""
        whole, side = self.whole, operand.side
        across = (whole.rows if left else whole.cols).extent
        inner, outer = whole.depth[-1].extent, [a.extent for a in whole.depth[:-1]]
        follows = followed(side.batch)
        batch = [whole.batch[k].extent for k in follows]
        apart = [side.batch[k] for k in follows]
        stem = f"{side.buffer.id}.tiles"
        item = side.buffer.dtype.itemsize
        if operand.major == "k":
            return self.map(side.buffer.id, side.start, (inner, across, *outer, *batch),
                            (side.row, *side.depth[:-1], *apart), (ROW // item, operand.rows), stem)  # fmt: skip
        return self.map(side.buffer.id, side.start, (across, inner, *outer, *batch),
                        (side.depth[-1], *side.depth[:-1], *apart), (ROW // item, self.form.depth), stem)  # fmt: skip

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def write(self) -> KernelCode:
        """All of it."""
        w, form, whole = self.w, self.form, self.whole
        self.choose()
        self.fold_parts()
        n = w.names.fresh
        self.all_maps()
        self.full, self.empty = n("full"), n("empty")
        w.line("extern __shared__ __align__(1024) unsigned char lf_shared[];")
        w.comment("rows of 128 bytes are permuted in groups of eight, which start at multiples of 1024 bytes")
        self.base = "lf_shared"
        ring = form.stages * self.stage
        groups = form.consumers
        moving = bool(self.staged) or self.residual is not None
        self.slots = n("slots") if moving else ""
        room = ring + (groups * form.slots * SLOT if moving else 0)
        barriers = 2 * form.stages + (groups * form.slots if self.inplace else 0)
        w.line(f"unsigned long long* const {self.full} = (unsigned long long*)({self.base} + {room});")
        w.line(f"unsigned long long* const {self.empty} = {self.full} + {form.stages};")
        room += -(-barriers * 8 // 16) * 16
        if self.inplace:
            self.come = n("come")
            w.line(f"unsigned long long* const {self.come} = {self.empty} + {form.stages};")
        room = self.beside(room)
        self.group = n("group")
        w.line(f"const int {self.group} = threadIdx.x / 128;")
        self.tiling()
        with w.block("if (threadIdx.x == 0)"):
            for name in (*self.maps, *([self.in_map] if self.in_map else []), *self.out_maps):
                w.line(f"lf_tile_prefetch(&{name});")
            sharing = (1 if form.pingpong else groups) * self.releases
            w.line(f"for (int s = 0; s < {form.stages}; ++s) {{ lf_bar_init({self.full} + s, {self.reports}); "
                   f"lf_bar_init({self.empty} + s, {sharing}); }}")  # fmt: skip
            if self.inplace:
                w.line(f"for (int s = 0; s < {groups * form.slots}; ++s) lf_bar_init({self.come} + s, 1);")
            w.line("lf_bar_ready();")
        self.results = form.blocks * form.columns // 2 * len(whole.units)
        many = self.results >= MANY_RESULTS
        self.tight = many or form.consumers > 2
        few, more = self.registers(many)
        self.together()
        with w.block(f"if ({self.group} {'== 0' if form.makers == 1 else f'< {form.makers}'})"):
            self.begin("arrive")
            if form.consumers > 1:
                w.line(f"lf_registers_down<{few}>();")
            self.producer()
        with w.block("else"):
            self.begin("sync")
            if form.consumers > 1:
                w.line(f"lf_registers_up<{more}>();")
            room += self.consumer(room)
        w.shared = room
        why = self.described()
        spans = tuple(dict.fromkeys(s.span for s in self.stores() if s.span is not None))[:4]
        return w.function(
            self.name, form.threads, blocks=1, cluster=self.cluster, head=[f"{whole.job.kernel.id}: {why}"], kernel=whole.job.kernel.id,
            schedule="contraction", why=why, spans=spans, spills=SPILL if many or self.kept_rows else 0, tiling=self.record(),
        )  # fmt: skip

    def fed(self) -> frozenset[str]:
        """Buffers that threads read in vectors on their way to shared memory."""
        return frozenset()

    def described(self) -> str:
        """Its tiles, warpgroups, stages and instructions in words."""
        form = self.form
        shape = "taking turns" if form.pingpong else "together"
        who = f"{form.consumers} warpgroups {shape}" if form.consumers > 1 else "a warpgroup"
        who += f" of each of {self.cluster} blocks" if self.cluster > 1 else ""
        tile = f"tiles of {form.rows} x {form.columns}{self.of} by {who}"
        return f"{tile}, {form.stages} stages of {form.depth}, wgmma {form.kind}{self.through}"

    def all_maps(self) -> None:
        """The maps of operands, of results and of what comes as tiles."""
        lefts = {a for a, _ in self.pairs}
        self.maps = [self.operand_map(o, k in lefts) for k, o in enumerate(self.ring)]
        self.result_maps()

    def result_maps(self) -> None:
        """Those of results and of what comes with them."""
        self.out_maps = [self.flat_map(s.buffer, f, f"{s.buffer}.tiles") for s, f in self.staged]
        self.in_map = self.flat_map(self.residual[0].buffer, self.residual[1], f"{self.residual[0].buffer}.tiles") \
            if self.residual else ""  # fmt: skip

    def registers(self, many: bool) -> tuple[int, int]:
        """Those of a thread that copies, and of a consumer; `many`: that it has many results."""
        return PRODUCER_REGISTERS[self.tight], OF_THREE if self.form.consumers > 2 else CONSUMER_REGISTERS[many]

    def stores(self) -> list[Store]:
        """The outputs of elements."""
        return [s for s in self.whole.body if isinstance(s, Store)]

    def record(self) -> Tiling:
        """The record of its tiles."""
        comes = [self.residual[0].buffer] if self.residual else []
        return warpgroups(self.whole, self.leaves, self.form, self.through, self.results, comes,
                          [s.buffer for s, _ in self.staged])  # fmt: skip

    def beside(self, room: int) -> int:
        """What else shared memory holds from `room` on; where that ends."""
        return room

    def together(self) -> None:
        """What all threads do before they part."""

    def begin(self, how: str) -> None:
        """The consumers wait until the barriers are there (`sync`); the thread that copies made them, and does not (`arrive`)."""
        self.w.line(f"lf_group_{how}({BEGUN}, {self.form.threads});")

    def elements(self) -> Epilogue:
        """What writes the elements of the result."""
        return Epilogue(self.w, self.leaves, {"rows": self.form.rows, "cols": self.form.columns}, self.apart)

    def units(self) -> tuple[Unit, ...]:
        """All products."""
        return self.whole.units

    # -- the producer -------------------------------------------------------------------------------------------------

    def producer(self) -> None:
        """One thread copies the tiles of the operands, as far ahead as the ring goes."""
        w, form = self.w, self.form
        tile, slot, phase, step = (w.names.fresh(x) for x in ("tile", "slot", "phase", "step"))
        with w.block("if (threadIdx.x == 0)"):
            w.line(f"int {slot} = 0;")
            w.line(f"unsigned int {phase} = 1;")
            with self.each_tile(tile):
                self.place(tile)
                maps = self.sources()
                w.line("#pragma unroll 1")
                with w.block(f"for (int {step} = 0; {step} < {self.trips}; ++{step})"):
                    w.line(f"lf_bar_wait({self.empty} + {slot}, {phase});")
                    w.line(f"lf_bar_expect({self.full} + {slot}, {self.stage});")
                    place = w.names.fresh("place")
                    w.line(f"unsigned char* const {place} = {self.base} + {slot} * {self.stage};")
                    for operand, at in zip(self.ring, maps, strict=True):
                        self.copy(operand, at, place, f"{self.full} + {slot}", step)
                    w.names.free(place)
                    w.line(f"if (++{slot} == {form.stages}) {{ {slot} = 0; {phase} ^= 1; }}")
                self.more(slot, phase)
                self.free()
        self.leave()
        for name in (tile, slot, phase, step):
            w.names.free(name)

    def leave(self) -> None:
        """The end of the threads that copy."""
        w = self.w
        if self.form.split > 1:
            w.comment("all threads of a cluster come to its barriers")
            w.line("lf_syncwarp();")
            w.line("lf_cluster_meet();")
            w.line("lf_cluster_meet();")

    def more(self, slot: str, phase: str) -> None:
        """What comes through the ring after the operands of a tile."""

    def sources(self) -> list[str]:
        """Addresses of the maps by which the operands of a tile come."""
        return [f"&{name}" for name in self.maps]

    def copy(self, operand: Operand, tiles: str, place: str, bar: str, step: str) -> None:
        """The tile of an operand for one stage. `tiles`: the address of its map."""
        w, form, whole = self.w, self.form, self.whole
        left = any(self.ring[a] is operand for a, _ in self.pairs)
        first = self.row if left else self.col
        outer: list[str] = []
        step = f"({self.since} + {step})" if form.split > 1 else step
        inner = f"{step} * {form.depth}"
        if len(whole.depth) > 1:
            each = w.poly((whole.depth[-1].extent + (form.depth - 1)) // form.depth)
            inner = f"{step} % {each} * {form.depth}"
            for number, axis in enumerate(whole.depth[:-1]):
                below = " * ".join([each, *(w.poly(a.extent) for a in whole.depth[number + 1 : -1])])
                outer.append(f"{step} / ({below})" + (f" % {w.poly(axis.extent)}" if number else ""))
        points = [self.points[k] for k in followed(operand.side.batch)]
        rest = ", ".join(["", *outer, *points]) if outer or points else ""
        rank = 2 + len(outer) + len(points)
        panel, width = form.depth * ROW, ROW // operand.side.dtype.itemsize
        for k in range(1 if operand.major == "k" else operand.rows // width):
            offset = operand.offset + k * panel
            to = f"{place} + {offset}" if offset else place
            at = f"{inner}, {first}" if operand.major == "k" else f"{first} + {width * k}, {inner}"
            w.line(f"lf_tile_load{rank}({to}, {tiles}, {bar}, {at}{rest});")

    # -- the consumers ------------------------------------------------------------------------------------------------

    def consumer(self, room: int) -> int:
        """The warpgroups that multiply; the bytes that they need beside."""
        w, form = self.w, self.form
        n = w.names.fresh
        self.mine, self.thread, self.slot, self.phase = n("mine"), n("thread"), n("slot"), n("phase")
        top = len(w.lines)
        w.line(f"const int {self.mine} = {self.group} - {form.makers};")
        w.line(f"const int {self.thread} = threadIdx.x % 128;")
        more = self.reserve(f"{self.base} + {room}")
        if self.joining_bytes():
            self.joining = f"{self.base} + {room + more} + {self.mine} * {self.joining_bytes()}"
            more += self.joining_bytes() * form.consumers
        if self.slots:
            start = form.stages * self.stage
            w.line(f"unsigned char* const {self.slots} = {self.base} + {start} + {self.mine} * {form.slots * SLOT};")
        self.descriptors()
        w.line(f"int {self.slot} = 0;")
        w.line(f"unsigned int {self.phase} = 0;")
        self.turn = n("turn")
        if self.inplace:
            self.came = n("came")
            w.line(f"unsigned int {self.came} = 0;")
        if form.pingpong:
            w.comment("each waits for its turn before it multiplies; the first one has it")
            w.line(f"if ({self.mine} == 1) lf_group_arrive({FIRST_GROUP + 2}, 256);")
            w.line(f"int {self.turn} = 0;")
        self.before_tiles()
        tile = n("tile")
        with self.each_tile(tile):
            if form.pingpong:
                with w.block(f"if (({self.turn}++ & 1) != {self.mine})"):
                    w.line(f"{self.slot} += {self.trips};")
                    w.line(f"{self.phase} ^= {self.slot} / {form.stages} & 1;")
                    w.line(f"{self.slot} %= {form.stages};")
                    w.line("continue;")
            self.place(tile)
            self.one_tile()
            self.free()
        if self.staged:
            w.line(f"if ({self.thread} == 0) lf_tile_store_read<0>();")
        if not used(self.mine, w.lines[top + 1 :]):  # a single consumer
            del w.lines[top]
        return more

    def reserve(self, base: str) -> int:
        """Room from `base` on for values of one side; bytes."""
        self.epilogue = self.elements()
        return self.epilogue.reserve(base, self.form.consumers, self.mine)

    def one_tile(self) -> None:
        """A tile of a consumer: its products, and what becomes of them."""
        with self.within_batch():
            self.ahead()
            self.products()
            if self.form.split > 1:
                self.exchange()
            self.results_out()

    @contextmanager
    def within_batch(self) -> Iterator[None]:
        """Text of the elements of a tile, which may use the indices of the batch: they are told before it."""
        w = self.w
        start, depth = len(w.lines), w.depth
        for axis in self.whole.batch:
            for name in axis.names:
                w.names(name)
        self.epilogue.origin = (self.row, self.col)
        yield
        for axis, point in zip(self.whole.batch, self.points, strict=True):
            indices(w, axis, point, start, depth)

    def ahead(self) -> None:
        """What a tile needs beside its products is fetched before them."""
        w, form = self.w, self.form
        self.tops()
        if not self.late():
            self.one_sided()
        if self.inplace:
            if not self.staged:  # else each piece ends with the barrier after which it leaves
                w.line(self.sync())
            with w.block(f"if ({self.thread} == 0)"):
                w.line("lf_tile_store_read<0>();")
                for k in range(min(form.slots, len(self.pieces()))):
                    self.fetch(k)

    def before_tiles(self) -> None:
        """What consumers do before their first tile."""

    def tops(self) -> None:
        """Values that all elements of a tile share."""
        for top in self.whole.tops:
            self.epilogue.let(top)


def emitted(kernel: Kernel, code: KernelCode) -> Emitted:
    """The kernel with its launch: as many blocks as there are multiprocessors, or tiles."""
    form, target = kernel.form, kernel.whole.job.target
    tiles = target.number(kernel.count())
    blocks: Poly | int = target.device.units if tiles is None else min(tiles, target.device.units)
    if form.split > 1:
        blocks = target.poly(kernel.count()) * form.split
    aligned = {u.buffer.id for o in kernel.units() for u in (o.a, o.b)} | {s.buffer for s, _ in kernel.staged}
    if kernel.residual:
        aligned.add(kernel.residual[0].buffer)
    aligned |= kernel.fed()
    launch = Launch(code.name, grid(blocks), kernel.w.arguments)
    if kernel.parts is None:
        return Emitted((code,), (launch,), (), frozenset(aligned))
    finish, second = kernel.parts.finish(f"{code.name}_finish")
    memory = tuple(kernel.parts.memory(a) for a in kernel.parts.accs)
    return Emitted((code, finish), (launch, second), memory, frozenset(aligned))
