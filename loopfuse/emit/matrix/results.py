"""What becomes of the results of a warpgroup kernel's tile: elements, tiles on their way in and out, folds that ride along."""

from __future__ import annotations

from collections.abc import Callable

from loopfuse.dtypes import F32
from loopfuse.emit.code import TileMap
from loopfuse.emit.matrix.epilogue import Block, Epilogue
from loopfuse.emit.matrix.finish import Parts
from loopfuse.emit.matrix.forms import ROW, SLOT, Form
from loopfuse.emit.matrix.leaves import Flat, Leaves
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.rows_vectors import used
from loopfuse.emit.writer import HALVES, Writer, state_bytes, state_type
from loopfuse.ir import Acc, Load, Store
from loopfuse.sizes import ZERO, Poly

PART = 64 * 64 * 4  # bytes of the sums of a part of the result
FIRST_GROUP = 1  # named barriers: of each consumer, then of their turns


def followed(batch: tuple[Poly, ...]) -> list[int]:
    """The batch axes that an access follows: no tile map has a step of zero."""
    return [k for k, step in enumerate(batch) if step != ZERO]


class Results:
    """Statements of a consumer for the results of its tile."""

    apart = 8  # rows between the two of a thread
    ringed = False  # whether the residual comes through the ring, after the operands of a tile
    tight = False  # whether registers are so few that an element is made from as little as possible at a time

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form) -> None:
        self.whole, self.leaves, self.form = whole, leaves, form
        self.w = Writer(whole.job.target, whole.job.buffers, whole.job.faults, whole.job.wide)
        self.staged: list[tuple[Store, Flat]] = []
        self.residual: tuple[Load, Flat] | None = None
        self.parts: Parts | None = None
        # names of the kernel, set as it is written
        self.row = self.col = self.mine = self.thread = self.slots = self.come = self.came = self.in_map = ""
        self.joining = self.rank = ""
        self.points: list[str] = []
        self.out_maps: list[str] = []
        self.acc: dict[str, str] = {}
        self.declared: list[str] = []  # the arrays of results
        self.epilogue: Epilogue

    # -- what goes through shared memory ------------------------------------------------------------------------------

    def choose(self) -> None:
        """Which outputs and loads go as tiles."""
        for store in self.leaves.stores:
            flat = self.leaves.flat(store)
            dtype = self.whole.job.buffers[store.buffer].dtype
            if flat is None or dtype not in (*HALVES, F32) or self.form.columns % 64:
                continue
            if flat.tiled(self.whole, dtype.itemsize, stored=True):
                self.staged.append((store, flat))
        for load in self.leaves.loads():
            flat = self.leaves.flat(load)
            if flat is None or load.dtype not in HALVES or self.residual is not None or self.form.columns % 64:
                continue
            if flat.tiled(self.whole, 2) and self.sends() < 2 and self.form.split == 1:
                self.residual = (load, flat)

    def map(self, buffer: str, start: Poly, extents: tuple[Poly, ...], apart: tuple[Poly, ...], box: tuple[int, ...],
            stem: str) -> str:  # fmt: skip
        """A tile map as an argument."""
        dtype = self.whole.job.buffers[buffer].dtype
        rank = len(extents)
        return self.w.tile_map(TileMap(buffer, dtype, start, extents, apart, box + (1,) * (rank - 2)), stem)

    def flat_map(self, buffer: str, flat: Flat, stem: str) -> str:
        """The map of an array of the result's shape."""
        whole = self.whole
        extents = (whole.cols.extent, whole.rows.extent, *(a.extent for a in whole.batch))
        box = (ROW // whole.job.buffers[buffer].dtype.itemsize, 64)
        return self.map(buffer, flat.start, extents, (flat.row, *flat.batch), box, stem)

    @property
    def inplace(self) -> bool:
        """Whether the result takes the place of the residual."""
        return self.residual is not None and not self.ringed

    def sides(self) -> tuple[str, ...]:
        """The sides of which a consumer keeps values for each of its tiles."""
        return tuple(side for side, kept in self.leaves.kept.items() if kept)

    def sync(self) -> str:
        """A barrier of the threads of a consumer."""
        return f"lf_group_sync({FIRST_GROUP} + {self.mine}, 128);"

    def fetch(self, k: int) -> None:
        """A tile of the residual into the slot where the result will take its place."""
        m, c = self.pieces()[k]
        at = k % self.form.slots
        bar = f"{self.come} + {self.mine} * {self.form.slots} + {at}"
        assert self.residual is not None
        batch = followed(self.residual[1].batch)
        points = "".join(f", {self.points[x]}" for x in batch)
        rank = 2 + len(batch)
        self.w.line(f"lf_bar_expect({bar}, {SLOT});")
        self.w.line(f"lf_tile_load{rank}({self.slots} + {at * SLOT}, &{self.in_map}, {bar}, {self.col} + {c}, "
                    f"{self.tile_row(m)}{points});")  # fmt: skip

    def tile_row(self, m: int) -> str:
        """The first row of a consumer's tile of 64 rows, in the result."""
        inside = self.inside_row(m)
        return f"{self.row} + {inside}" if inside else self.row

    def inside_row(self, m: int) -> str:
        """The same in the block's tile; empty where it is 0."""
        form = self.form
        if form.pingpong or form.consumers == 1:
            return str(m * 64) if m else ""
        text = f"{self.mine} * {form.blocks * 64}"
        return f"{text} + {m * 64}" if m else text

    # -- results ------------------------------------------------------------------------------------------------------

    def results_out(self) -> None:
        """The results of a tile, by tiles of 64 x 64 (or of all columns where those are fewer)."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        if not self.vacate_all() and self.sides():
            w.line(self.sync())
        warp_row, lane_col, own = n("warp.row"), n("lane.col"), n("own")
        start, depth = len(w.lines), w.depth
        sent = 0
        for k, (m, c) in enumerate(self.pieces()):
            width = min(64, form.columns - c)
            self.epilogue.sums = {
                u.acc.id: f"{self.acc[u.acc.id]}[{m}][({c // 8} + {{j}}) * 4 + {{e}}]" for u in whole.units
            }
            self.start(m, c)
            split = form.split
            with w.block(f"if ({self.rank} == {k % split})" if split > 1 else ""):
                if split > 1:
                    sent = k // split * self.sends()
                    self.gather(k, m, c)
                sent = self.piece(k, m, c, width, (warp_row, lane_col, own), sent)
            self.end(m, c, width, warp_row, lane_col)
        places = {warp_row: self.lane_row(), lane_col: f"{self.thread} % 4 * 2", own: self.matrix_row()}
        ahead = [f"const int {name} = {text};" for name, text in places.items() if used(name, w.lines[start:])]
        w.lines[start:start] = ["  " * depth + text for text in ahead]
        for name in (*places, *self.declared):
            w.names.free(name)

    def vacate_all(self) -> bool:
        """Before the first part of a result: what left through the slots before is over. Whether threads met for that."""
        if not self.staged or self.inplace:
            return False
        self.w.comment("the slots are free once what left through them is over")
        self.w.line(f"if ({self.thread} == 0) lf_tile_store_read<0>();")
        self.w.line(self.sync())
        return True

    def vacate(self, sent: int, count: int = 1) -> None:
        """Before `count` tiles are put into slots of which others of the same results left: those have been read. Those after
        them need not be, so that nobody waits for the one that left last."""
        slots = self.form.slots
        if not self.inplace and sent + count > slots:
            self.w.line(f"if ({self.thread} == 0) lf_tile_store_read<{slots - count}>();")
            self.w.line(self.sync())

    def element(self, sent: int) -> str:
        """Where an element of 32 bits goes by itself, over `{j}` and `{e}`; "" where all of a part are made first."""
        return ""

    def lane_row(self) -> str:
        """The first row of a thread, of the 64."""
        return f"{self.thread} / 32 * 16 + {self.thread} % 32 / 4"

    def matrix_row(self) -> str:
        """The row of a matrix whose address a thread gives."""
        return f"{self.thread} / 32 * 16 + {self.thread} % 16"

    # -- a sum that blocks of a cluster share -------------------------------------------------------------------------

    def share(self, k: int, of: str) -> str:
        """Where the sums of a part of the result from one of the blocks lie: in place of the ring, four a thread."""
        form = self.form
        count = form.split * PART * len(self.whole.units)  # bytes of a part from all blocks
        consumer = f"{self.mine} * {len(self.pieces()) // form.split * count} + " if form.consumers > 1 else ""
        text = f"(lf_shared + {consumer}{k // form.split * count} + {of} * {PART * len(self.whole.units)})"
        return f"((lf_pack<float, 4>*){text} + {self.thread})"

    def exchange(self) -> None:
        """The sums of each part to the block that finishes it, once no block reads its ring any more: the products have
        been waited for, so that the first meeting has nothing to publish."""
        w, form = self.w, self.form
        w.line("lf_cluster_meet();")
        for k, (m, c) in enumerate(self.pieces()):
            with w.block(f"if ({self.rank} != {k % form.split})"):
                to = w.names.fresh("to")
                w.line(f"lf_pack<float, 4>* const {to} = lf_cluster_at({self.share(k, self.rank)}, {k % form.split});")
                for number, unit in enumerate(self.whole.units):
                    sums = f"{self.acc[unit.acc.id]}[{m}]"
                    w.line("#pragma unroll")
                    with w.block("for (int q = 0; q < 8; ++q)"):
                        four = ", ".join(f"{sums}[{c // 2} + 4 * q + {x}]" for x in range(4))
                        w.line(f"const lf_pack<float, 4> sums = {{{{{four}}}}};")
                        w.line(f"{to}[q * 128 + {number * 1024}] = sums;")
                w.names.free(to)
        w.line("lf_cluster_sync();")

    def gather(self, k: int, m: int, c: int) -> None:
        """The sums of a part from all blocks, in the order of the blocks."""
        w, form = self.w, self.form
        for number, unit in enumerate(self.whole.units):
            sums = f"{self.acc[unit.acc.id]}[{m}][{c // 2} + q]"
            total = w.names.fresh("total")
            w.line("#pragma unroll")
            with w.block("for (int q = 0; q < 32; ++q)"):
                for of in range(form.split):
                    value = f"{self.share(k, str(of))}[q / 4 * 128 + {number * 1024}].v[q % 4]"
                    value = f"({self.rank} == {of} ? {sums} : {value})"
                    w.line(f"float {total} = {value};" if of == 0 else f"{total} += {value};")
                w.line(f"{sums} = {total};")
            w.names.free(total)

    # -- parts --------------------------------------------------------------------------------------------------------

    def pieces(self) -> list[tuple[int, int]]:
        """The parts of a consumer's tile in their order: block of 64 rows, first column. What rides along rows has all of
        those of its columns one after another."""
        rows, columns = range(self.form.blocks), range(0, self.form.columns, 64)
        if self.whole.ride is not None and self.whole.ride.along == "rows":
            return [(m, c) for c in columns for m in rows]
        return [(m, c) for m in rows for c in columns]

    def piece(self, k: int, m: int, c: int, width: int, names: tuple[str, str, str], sent: int) -> int:
        """One part: what comes, the elements, what goes; how many tiles have gone by then."""
        w, form, epilogue = self.w, self.form, self.epilogue
        n = w.names.fresh
        warp_row, lane_col, own = names
        inside = self.inside_row(m)
        row = f"{inside} + {warp_row}" if inside else warp_row
        col = f"{c} + {lane_col}" if c else lane_col
        epilogue.tiles, epilogue.before, epilogue.after = {}, [], []
        at = k % form.slots
        if self.residual:
            load, _ = self.residual
            pairs, there = n(f"{load.buffer}.pairs"), self.arrived(k)
            w.line(f"unsigned int {pairs}[{4 if self.tight else 16}];")
            if self.tight:
                epilogue.before = [f"if ({{j}} % 2 == 0) {self.move('load', there, '{j}', own, pairs, 0)}"]
            for q in range(0 if self.tight else 4):
                w.line(self.move("load", there, str(2 * q), own, pairs, 4 * q))
            epilogue.tiles[load] = self.pair(pairs, self.tight)
        made, early = self.targets(own, at if self.inplace else sent % form.slots, sent)
        if early:
            self.vacate(sent, early)
        epilogue.block(Block(row, col, width))
        if self.residual:
            self.taken(k)
        for (store, flat), out in zip(self.staged, self.out_maps, strict=True):
            batch = followed(flat.batch)
            halves = 1 if store.buffer in epilogue.packed else 2
            for half in range(halves):
                place = at if self.inplace else sent % form.slots
                placed = early > 0 and store is self.staged[0][0]
                if not placed:
                    self.vacate(sent)
                    self.stage_out(made[store.buffer], place, half if halves == 2 else -1, (warp_row, own), flat)
                if not placed or half == 0:
                    w.line("lf_async_fence();")
                    w.line(self.sync())
                points = "".join(f", {self.points[x]}" for x in batch)
                with w.block(f"if ({self.thread} == 0)"):
                    w.line(f"lf_tile_store{2 + len(batch)}(&{out}, {self.slots} + {place * SLOT}, "
                           f"{self.corner(flat, m, c, half)}{points});")  # fmt: skip
                    w.line("lf_tile_store_end();")
                    if self.inplace:
                        self.refill(k)
                sent += 1
        for name in (*made.values(), *([epilogue.tiles[self.residual[0]].split("[")[0]] if self.residual else [])):
            w.names.free(name)
        return sent

    def targets(self, own: str, at: int, sent: int) -> tuple[dict[str, str], int]:
        """Where the elements of a part go: by output the array of them, or to the slot `at` as they are made, which is for the
        first output where registers are few; and how many tiles of that there are."""
        w, n, epilogue = self.w, self.w.names.fresh, self.epilogue
        made: dict[str, str] = {}
        epilogue.packed, epilogue.plain = {}, {}
        early = 0  # tiles of the first output to which its elements go as they are made
        for number, (store, _) in enumerate(self.staged):
            if self.whole.job.buffers[store.buffer].dtype in HALVES:
                name = made[store.buffer] = n(f"{store.buffer}.pairs")
                few = self.tight and number == 0
                w.line(f"unsigned int {name}[{4 if few else 16}];")
                epilogue.packed[store.buffer] = self.pair(name, few)
                if few:
                    early, to = 1, self.slot_at(at)
                    epilogue.after = [f"if ({{j}} % 2 == 1) {self.move('store', to, '{j} - 1', own, name, 0)}"]
            elif number == 0 and (to := self.element(sent)):
                early, epilogue.plain[store.buffer] = 2, to
            else:
                name = made[store.buffer] = n(f"{store.buffer}.made")
                w.line(f"float {name}[32];")
                epilogue.plain[store.buffer] = f"{name}[4 * {{j}} + {{e}}]"
        return made, early

    def sends(self) -> int:
        """Tiles that go out for a part of the result."""
        return sum(1 if self.whole.job.buffers[s.buffer].dtype in HALVES else 2 for s, _ in self.staged)

    def corner(self, flat: Flat, m: int, c: int, half: int) -> str:
        """Where a tile of the result goes: coordinates in its map."""
        return f"{self.col} + {c + half * 32}, {self.tile_row(m)}"

    def stage_out(self, made: str, place: int, half: int, rows: tuple[str, str], flat: Flat) -> None:
        """Results of a thread to a slot: pairs of 16 bits as matrices, wider ones (a half of the columns) by twos.

        `rows`: the names of the thread's row, and of the row of a matrix whose address it gives.
        """
        w, own = self.w, rows[1]
        if half < 0:
            for q in range(4):
                w.line(self.move("store", self.slot_at(place), str(2 * q), own, made, 4 * q))
            return
        j, h, lane = w.names.fresh("j"), w.names.fresh("h"), f"{self.thread} % 32"
        w.line("#pragma unroll")
        with w.block(f"for (int {j} = 0; {j} < 4; ++{j})"):
            w.line("#pragma unroll")
            with w.block(f"for (int {h} = 0; {h} < 2; ++{h})"):
                line = f"({self.thread} / 32 * 16 + {lane} / 4 + {h} * 8)"
                chunk = f"((2 * {j} + {self.thread} % 4 / 2 ^ {lane} / 4) << 4)"
                w.line(f"float* const at = (float*)({self.slots} + {place * SLOT} + {line} * {ROW} + {chunk}) + "
                       f"{self.thread} % 2 * 2;")  # fmt: skip
                w.line(f"at[0] = {made}[4 * ({half * 4} + {j}) + 2 * {h}];")
                w.line(f"at[1] = {made}[4 * ({half * 4} + {j}) + 2 * {h} + 1];")
        w.names.free(j)
        w.names.free(h)

    def refill(self, k: int) -> None:
        """The next tile of the residual into a slot whose result has gone."""
        after = k + self.form.slots
        if after < len(self.pieces()):
            if self.staged:
                self.w.line("lf_tile_store_read<0>();")
                self.fetch(after)
            else:
                self.w.line(self.sync())
                with self.w.block(f"if ({self.thread} == 0)"):
                    self.fetch(after)

    def slot_at(self, slot: int) -> str:
        """The address of a slot."""
        return f"{self.slots} + {slot * SLOT}"

    def move(self, way: str, place: str, eight: str, own: str, words: str, first: int) -> str:
        """16 columns of a tile of 64 x 64 from shared memory (`load`) or to it (`store`), by four words of a thread from
        `first` on. `eight`: the first of their two groups of eight columns, of which there are eight."""
        at = f"{place} + {own} * {ROW} + (({eight} + {self.thread} % 32 / 16 ^ {own} & 7) << 4)"
        return f"lf_{way}_matrix4({at}, {', '.join(f'{words}[{first + x}]' for x in range(4))});"

    @staticmethod
    def pair(words: str, few: bool) -> str:
        """The word of a pair of columns, of 64 or (`few`) of the 16 in hand."""
        return f"{words}[2 * ({{j}} % 2) + {{h}}]" if few else f"{words}[2 * {{j}} + {{h}}]"

    def arrived(self, k: int) -> str:
        """Wait for a part of the residual; where it is."""
        at = k % self.form.slots
        self.w.line(f"lf_bar_wait({self.come} + {self.mine} * {self.form.slots} + {at}, {self.came} >> {at} & 1);")
        self.w.line(f"{self.came} ^= {1 << at};")
        return self.slot_at(at)

    def taken(self, k: int) -> None:
        """A part of the residual has been read: where no result takes its place, the next one may come."""
        if not self.staged:
            self.refill(k)

    # -- folds that ride along ----------------------------------------------------------------------------------------

    def start(self, m: int, c: int) -> None:
        """States at the first part of a row or a column of parts."""
        ride, w = self.whole.ride, self.w
        if ride is None or (m if ride.along == "rows" else c):
            return
        self.riding: dict[str, str] = {}
        for acc in ride.loop.accs:
            name = self.riding[acc.id] = w.names.fresh(acc.id)
            kind, first = state_type(acc.monoid, acc.dtype), w.identity(acc.monoid, acc.dtype)
            count = 16 if ride.along == "rows" else 2
            w.line(f"{kind} {name}[{count}];")
            w.line("#pragma unroll")
            w.line(f"for (int q = 0; q < {count}; ++q) {name}[q] = {first};")
            at = "2 * {j} + {e} % 2" if ride.along == "rows" else "{e} / 2"
            self.epilogue.states[acc.id] = f"{name}[{at}]"

    def end(self, m: int, c: int, width: int, warp_row: str, lane_col: str) -> None:
        """States of the last part, joined over the threads that share them, to memory."""
        ride, form = self.whole.ride, self.form
        if ride is None or self.parts is None:
            return
        if ride.along == "rows" and m == form.blocks - 1:
            self._columns(c, width, lane_col)
        elif ride.along == "cols" and c + 64 >= form.columns:
            self._rows(m, warp_row)

    def fold_parts(self) -> None:
        """How many parts a fold over rows or columns has."""
        form, whole = self.form, self.whole
        if whole.ride is not None:
            tile = form.columns if whole.ride.along == "cols" else form.blocks * 64
            folded = whole.cols if whole.ride.along == "cols" else whole.rows
            count = (folded.extent + (tile - 1)) // tile
            if whole.ride.along == "rows" and not form.pingpong:  # a whole tile each, the last one too
                count = (folded.extent + (form.rows - 1)) // form.rows * form.consumers
            self.parts = Parts(whole, count)

    def part(self) -> str:
        """Which part of the folded axis a consumer's tile is."""
        ride, form = self.whole.ride, self.form
        assert ride is not None
        if ride.along == "cols":
            return f"{self.col} / {form.columns}"
        rows = form.blocks * 64
        shared = not form.pingpong and form.consumers > 1
        return f"({self.row} / {rows} + {self.mine})" if shared else f"{self.row} / {rows}"

    def _place(self, at: str) -> str:
        """Where the state of a remaining index is in memory."""
        assert self.parts is not None
        w = self.w
        count, parts = w.poly(self.parts.axis.extent), w.poly(self.parts.parts)
        batch = ""
        for axis, point in zip(self.whole.batch, self.points, strict=True):
            batch = f"({batch} * {w.poly(axis.extent)} + {point})" if batch else point
        part = f"({batch} * {parts} + {self.part()})" if batch else self.part()
        return f"({w.index})({part}) * {count} + {at}"

    def _join(self, name: str, count: int, lanes: tuple[int, ...], combine: Callable[[str, str], str]) -> None:
        w = self.w
        q = w.names.fresh("q")
        w.line("#pragma unroll")
        with w.block(f"for (int {q} = 0; {q} < {count}; ++{q})"):
            for lane in lanes:
                w.line(f"{name}[{q}] = {combine(f'{name}[{q}]', f'lf_shfl_xor({name}[{q}], {lane})')};")
        w.names.free(q)

    def _columns(self, c: int, width: int, lane_col: str) -> None:
        """Columns of a part: over the lanes and the warps of the consumer."""
        ride, w = self.whole.ride, self.w
        assert ride is not None and self.parts is not None
        for acc in ride.loop.accs:
            name, kind = self.riding[acc.id], state_type(acc.monoid, acc.dtype)

            def combine(a: str, b: str, acc: Acc = acc) -> str:
                return w.combine(acc.monoid, acc.dtype, a, b)

            self._join(name, width // 4, (4, 8, 16), combine)
            places, q, k = w.names.fresh("places"), w.names.fresh("q"), w.names.fresh("k")
            with w.block(""):
                w.line(f"{kind}* const {places} = ({kind}*)({self.joining});")
                w.line(self.sync())
                with w.block(f"if ({self.thread} % 32 < 4)"):
                    w.line("#pragma unroll")
                    w.line(f"for (int {q} = 0; {q} < {width // 4}; ++{q}) {places}[{self.thread} / 32 * 64 + "
                           f"{q} / 2 * 8 + {lane_col} + {q} % 2] = {name}[{q}];")  # fmt: skip
                w.line(self.sync())
                col = f"{self.col} + {c} + {self.thread}" if c else f"{self.col} + {self.thread}"
                with w.block(f"if ({self.thread} < {width} && {col} < {w.poly(self.whole.cols.extent)})"):
                    w.line(f"{kind} {k} = {places}[{self.thread}];")
                    for warp in range(1, 4):
                        w.line(f"{k} = {combine(k, f'{places}[{warp * 64} + {self.thread}]')};")
                    memory = w.pointer(self.parts.memory(acc).id, kind, write=True)
                    w.line(f"{memory}[{self._place(f'({col})')}] = {k};")
            for text in (places, q, k):
                w.names.free(text)

    def _rows(self, m: int, warp_row: str) -> None:
        """Rows of a part: over the lanes that share them."""
        ride, w = self.whole.ride, self.w
        assert ride is not None and self.parts is not None
        for acc in ride.loop.accs:
            name, kind = self.riding[acc.id], state_type(acc.monoid, acc.dtype)

            def combine(a: str, b: str, acc: Acc = acc) -> str:
                return w.combine(acc.monoid, acc.dtype, a, b)

            self._join(name, 2, (1, 2), combine)
            memory = w.pointer(self.parts.memory(acc).id, kind, write=True)
            inside = self.inside_row(m)
            for h in range(2):
                row = " + ".join(x for x in (self.row, inside, warp_row, str(self.apart) if h else "") if x)
                test = f"{self.thread} % 4 == 0 && {row} < {w.poly(self.whole.rows.extent)}"
                w.line(f"if ({test}) {memory}[{self._place(f'({row})')}] = {name}[{h}];")

    def joining_bytes(self) -> int:
        """Shared memory of a consumer to join states in."""
        ride = self.whole.ride
        if ride is None or ride.along != "rows":
            return 0
        return 256 * max(state_bytes(a.monoid, a.dtype) for a in ride.loop.accs)
