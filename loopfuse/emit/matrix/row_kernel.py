"""Warpgroup kernels that hold whole rows of their results: of one block, or of a cluster of blocks side by side.

The results stay in the registers of the consumers. What follows them are sweeps over the elements that a thread has, two
rows of its tile; what a sweep folds is joined over the four lanes that share a row, then over the blocks of the cluster.
Each warp sends its partial states to all of these, and each adds them up in the order of the blocks, so that all have the
same bits. How the two barriers and the two sets of places for partial states are used in turn, and why that is enough, is
said in `rows_join`: here the four warps of a consumer are what shares the rows. Blocks of a cluster go through the same
tiles, so that they come to the same joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loopfuse.dtypes import F32
from loopfuse.emit.approx import approximations
from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import Launch, Tiling, grid
from loopfuse.emit.matrix.epilogue import Epilogue, indices
from loopfuse.emit.matrix.forms import ROW, SLOT, TYPES, Form, Operand, operands, untaken
from loopfuse.emit.matrix.leaves import Flat
from loopfuse.emit.matrix.results import FIRST_GROUP, followed
from loopfuse.emit.matrix.row_shape import RowForm, Section, parse_rows
from loopfuse.emit.matrix.row_tiles import ROWS, clusters, exchanged, layout, sent, shared, tiles
from loopfuse.emit.matrix.tiling import of_rows, warpgroups
from loopfuse.emit.matrix.warpgroup import Kernel
from loopfuse.emit.rows_join import LEAST_SENT
from loopfuse.emit.rows_vectors import used
from loopfuse.emit.writer import Writer, c_type, state_bytes, state_type
from loopfuse.ir import Acc, Let, Load, Store
from loopfuse.ops import MONOIDS
from loopfuse.schedule.tiles import followed_by
from loopfuse.walking import own

ALL = FIRST_GROUP + 3  # the barrier of all consumers


def by_rows(job: Job) -> Emitted | Declined:
    """A kernel that holds whole rows of its products on chip, or why there is none."""
    if not job.target.device.arch.startswith("sm_90"):
        return Declined("the device has no warpgroup products")
    form = parse_rows(job)
    if isinstance(form, Declined):
        return form
    dtypes = {s.dtype for u in form.whole.units for s in (u.a, u.b)}
    (dtype, *more) = dtypes
    if more or dtype not in TYPES:
        return untaken(form.whole)
    kind = TYPES[dtype]
    if kind == "tf32" and "tf32" not in job.plan.path:
        return untaken(form.whole)
    width = job.target.number(form.whole.cols.extent)
    if width is None:
        return Declined("what follows the products waits for rows of unknown length")
    why = Declined("no cluster of tiles holds a row")
    for rows, columns in tiles(form, width):
        found = operands(form.whole, rows, columns)
        if isinstance(found, Declined):
            return found
        if kind == "tf32" and any(o.major == "mn" for o in found[0]):
            return Declined("operands of 32 bits that lie along the result are for kernels without whole rows")
        cluster = -(-width // columns)
        made = layout(form, rows, columns, cluster, found[0], kind)
        if made is not None:
            return RowKernel(form, made, cluster, *found).emitted()
    return why


class RowElements(Epilogue):
    """Statements of a thread's elements and of its two rows.

    `values` has the texts of values of a row over `{h}`, which of the two it is; `places` what elements keep, over `{j}`
    and `{e}`; `states` the accumulators of the sweep, over `{e}`.
    """

    def __init__(self, writer: Writer, form: RowForm, extents: dict[str, int]) -> None:
        super().__init__(writer, form.parts, extents)
        self.form = form
        self.values: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.floats: set[str] = set()  # the values that are f32 variables of each row
        job = form.whole.job
        self.w.near = approximations(form.statements(), job.buffers, job.target.numerics, job.ask.local)

    def named(self) -> None:
        """Names for what elements read of their row, and of what they keep."""
        for name, text in self.values.items():
            self.w.alias[name] = text.format(h=f"{self.e} / 2")
        for name, text in self.places.items():
            self.w.alias[name] = text.format(j=self.j, e=self.e)

    def let(self, stmt: Let) -> None:
        """A name for a value, which may be kept."""
        super().let(stmt)
        if stmt.id in self.places:
            self.w.line(f"{self.places[stmt.id].format(j=self.j, e=self.e)} = {self.w.names(stmt.id)};")

    def riding(self, name: str) -> Acc:
        """An accumulator of the sweep."""
        return self.accs[name]

    def folded(self) -> str:
        """The condition that an element takes part in folds."""
        return self._inside("cols")

    def row_of(self, section: Section, row: str, lead: str) -> None:
        """Statements of the two rows of a thread, `row` (in the tile) the first; `lead`: that it is the one that stores."""
        w, whole = self.w, self.whole
        made: dict[str, str] = {}
        for stmt in section.stmts:
            if isinstance(stmt, Let):
                name = w.names.fresh(f"{stmt.id}.rows")
                w.line(f"{c_type(stmt.value.dtype)} {name}[2];")
                made[stmt.id] = f"{name}[{{h}}]"
                self.floats |= {stmt.id} if stmt.value.dtype == F32 else set()
        h = w.names.fresh("h")
        self._named(whole.rows)
        w.line("#pragma unroll")
        with w.block(f"for (int {h} = 0; {h} < 2; ++{h})"):
            start, depth = len(w.lines), w.depth
            at = f"{row} + {h} * 8"
            for leaf in self.leaves.kept["rows"]:
                w.alias[leaf.name] = f"{self.kept[leaf.name]}[{at}]"
            w.alias.update({name: text.format(h=h) for name, text in self.values.items()})
            for stmt in section.stmts:
                if isinstance(stmt, Let):
                    text = made[stmt.id].format(h=h)
                    w.line(f"{text} = {w.expr(stmt.value)};", stmt.span)
                    w.alias[stmt.id] = text
                    continue
                with w.block(f"if ({lead} && {self.origin[0]} + {at} < {w.poly(whole.rows.extent)})"):
                    self.store(stmt)
            indices(w, whole.rows, f"{self.origin[0]} + {at}", start, depth)
            for leaf in self.leaves.kept["rows"]:
                del w.alias[leaf.name]
        self.values |= made
        w.names.free(h)


class RowKernel(Kernel):
    """The text of one kernel."""

    epilogue: RowElements

    kept_rows = True

    def __init__(self, form: RowForm, made: Form, cluster: int, ring: list[Operand], pairs: list[tuple[int, int]],
                 ) -> None:  # fmt: skip
        super().__init__(form.whole, form.parts, made, ring, pairs, form.whole.job.name)
        self.rows, self.cluster = form, cluster
        self.bars = self.states = self.joined = ""
        self.out: list[tuple[int, Store, Flat]] = []  # by section
        self.incoming: tuple[int, Load, Flat] | None = None

    def emitted(self) -> Emitted:
        """The kernel with its launch."""
        code = self.write()
        whole = self.whole
        aligned = {u.buffer.id for o in whole.units for u in (o.a, o.b)} | {s.buffer for _, s, _ in self.out}
        if self.incoming:
            aligned.add(self.incoming[1].buffer)
        launch = Launch(code.name, grid(self.room() * self.cluster), self.w.arguments)
        return Emitted((code,), (launch,), (), frozenset(aligned))

    def room(self) -> int:
        """How many clusters there are."""
        return clusters(self.rows, self.form.rows, self.cluster, self.whole.job.target.number)

    def record(self) -> Tiling:
        """The record of its tiles."""
        body = [s for section in self.rows.sections if section.sweep for s in section.stmts]
        comes = [self.incoming[1].buffer] if self.incoming else []
        made = warpgroups(self.whole, of_rows(self.leaves, body), self.form, self.through, self.results, comes,
                          [s.buffer for _, s, _ in self.out], self.cluster, self.room() * self.cluster,
                          followed_by(self.form.consumers))  # fmt: skip
        return replace(made, folds=tuple(a.id for section in self.rows.sections for a in section.accs))

    # -- what is arranged otherwise -----------------------------------------------------------------------------------

    def choose(self) -> None:
        """Which outputs and loads go as tiles: outputs of any sweep, a load of one."""
        for number, section in enumerate(self.rows.sections):
            if not section.sweep:
                continue
            self.leaves.body = list(section.stmts)
            self.staged, self.residual = [], None if self.incoming is None else self.incoming[1:]
            super().choose()
            if self.incoming is None and self.residual is not None and not self.out:
                self.incoming = (number, *self.residual)
            self.out += [(number, *s) for s in self.staged]
        self.staged = [s for _, *s in self.out]  # type: ignore[misc]
        self.residual = self.incoming[1:] if self.incoming else None
        first = next(k for k, section in enumerate(self.rows.sections) if section.sweep)
        self.ringed = self.incoming is not None and self.incoming[0] == first

    # -- a residual through the ring ----------------------------------------------------------------------------------

    def together_in_ring(self) -> int:
        """Parts of the residual of each consumer that a place of the ring holds."""
        return self.stage // (self.form.consumers * SLOT)

    def more(self, slot: str, phase: str) -> None:
        """The residual follows the operands, so that it has come when the products are done."""
        if not self.ringed or self.residual is None:
            return
        w, form, pieces, each = self.w, self.form, self.pieces(), self.together_in_ring()
        batch = followed(self.residual[1].batch)
        points = "".join(f", {self.points[x]}" for x in batch)
        for start in range(0, len(pieces), each):
            part = pieces[start : start + each]
            w.line(f"lf_bar_wait({self.empty} + {slot}, {phase});")
            w.line(f"lf_bar_expect({self.full} + {slot}, {len(part) * form.consumers * SLOT});")
            for consumer in range(form.consumers):
                for k, (_, c) in enumerate(part):
                    to = f"{self.base} + {slot} * {self.stage} + {(consumer * each + k) * SLOT}"
                    w.line(f"lf_tile_load{2 + len(batch)}({to}, &{self.in_map}, {self.full} + {slot}, "
                           f"{self.col} + {c}, {self.row} + {consumer * ROWS}{points});")  # fmt: skip
            w.line(f"if (++{slot} == {form.stages}) {{ {slot} = 0; {phase} ^= 1; }}")

    def arrived(self, k: int) -> str:
        """Wait for a part of the residual; where it is."""
        if not self.ringed:
            return super().arrived(k)
        each = self.together_in_ring()
        if k % each == 0:
            self.w.line(f"lf_bar_wait({self.full} + {self.slot}, {self.phase});")
        first = f"{self.base} + {self.slot} * {self.stage} + {self.mine} * {each * SLOT}"
        return f"{first} + {k % each * SLOT}" if k % each else first

    def taken(self, k: int) -> None:
        """After the last part in a place of the ring the producer may have that."""
        if not self.ringed:
            super().taken(k)
            return
        each = self.together_in_ring()
        if k % each == each - 1 or k == len(self.pieces()) - 1:
            self.w.line(self.sync())
            self.release(self.slot)
            self.w.line(f"if (++{self.slot} == {self.form.stages}) {{ {self.slot} = 0; {self.phase} ^= 1; }}")

    def element(self, sent: int) -> str:
        """Elements of 32 bits go to their two slots as they are made: registers hold the results of the whole tile."""
        if not self.tight or self.inplace:
            return ""
        t, slots = self.thread, self.form.slots
        place = f"({{j}} / 4 ? {(sent + 1) % slots * SLOT} : {sent % slots * SLOT})"
        line = f"({t} / 32 * 16 + {t} % 32 / 4 + {{e}} / 2 * 8)"
        chunk = f"((2 * ({{j}} % 4) + {t} % 4 / 2 ^ {t} % 32 / 4) << 4)"
        return f"((float*)({self.slots} + {place} + {line} * {ROW} + {chunk}))[{t} % 2 * 2 + {{e}} % 2]"

    def beside(self, room: int) -> int:
        """Barriers and places for the joins of a cluster."""
        w, count = self.w, self.form.consumers
        if self.cluster == 1:
            return room
        self.rank, self.bars, self.states = (w.names.fresh(x) for x in ("rank", "bars", "states"))
        w.line(f"const int {self.rank} = lf_cluster_rank();")
        w.line(f"unsigned long long* const {self.bars} = (unsigned long long*)({self.base} + {room});")
        w.line(f"unsigned char* const {self.states} = {self.base} + {room + count * 16};")
        with w.block("if (threadIdx.x == 0)"):
            w.line(f"for (int s = 0; s < {count * 2}; ++s) lf_bar_init({self.bars} + s, 1);")
            w.line("lf_bar_ready();")
        return room + count * 16 + count * 2 * exchanged(self.rows, self.cluster)

    def together(self) -> None:
        """The threads of a cluster meet: none sends anything to another block before that one's barriers are there."""
        if self.cluster > 1:
            self.w.line("lf_cluster_meet();")

    def begin(self, how: str) -> None:
        """Those of a cluster have met."""
        if self.cluster == 1:
            super().begin(how)

    def elements(self) -> Epilogue:
        """What writes the elements."""
        if self.cluster > 1:
            self.joined = self.w.names.fresh("joined")
            self.w.line(f"unsigned int {self.joined} = 0;")
        found = RowElements(self.w, self.rows, {"rows": self.form.rows, "cols": self.form.columns})
        found.common = shared(self.rows)
        return found

    def sides(self) -> tuple[str, ...]:
        """Those of which every tile has values of its own."""
        return tuple(side for side in super().sides() if side not in shared(self.rows))

    def before_tiles(self) -> None:
        """What all tiles of the block share."""
        if not shared(self.rows):
            return
        w, count = self.w, self.form.consumers
        super().tops()
        if self.leaves.kept["cols"]:
            self.epilogue.origin = ("0", self.first_column("(int)blockIdx.x"))
            self.epilogue.one_sided("(int)threadIdx.x - 128", 128 * count, shared(self.rows))
            w.line(f"lf_group_sync({ALL}, {128 * count});")

    def tops(self) -> None:
        """They are there before the first tile, where there is no batch."""
        if not shared(self.rows):
            super().tops()

    def first_column(self, tile: str) -> str:
        """Of a tile."""
        return f"{tile} % {self.cluster} * {self.form.columns}" if self.cluster > 1 else "0"

    def place(self, tile: str) -> None:
        """The coordinates of a tile: blocks of a cluster, which are neighbours in the grid, lie side by side."""
        w, n = self.w, self.w.names.fresh
        self.row, self.col = n("row.0"), n("col.0")
        count, batch = self.cluster, self.whole.batch
        at = f"{tile} / {count}" if count > 1 else tile
        w.line(f"const int {self.row} = {at}{f' % {self.down}' if batch else ''} * {self.form.rows};")
        w.line(f"[[maybe_unused]] const int {self.col} = {self.first_column(tile)};")
        self.place_in_batch(tile)

    # -- results ------------------------------------------------------------------------------------------------------

    def results_out(self) -> None:
        """The sections, one after another."""
        w, n, epilogue = self.w, self.w.names.fresh, self.epilogue
        if self.sides():
            w.line(self.sync())
        names = warp_row, lane_col, matrix = n("warp.row"), n("lane.col"), n("own")
        start, depth = len(w.lines), w.depth
        epilogue.values = {}
        for acc, times in self.rows.counts.values():
            count = f"(({c_type(acc.dtype)}){w.poly(self.whole.cols.extent)})"
            epilogue.values[acc.id] = f"({count} * {times})" if times != 1 else count
        inside = self.inside_row(0)
        row = f"{inside} + {warp_row}" if inside else warp_row
        every, maps, residual = self.staged, self.out_maps, self.residual
        for number, section in enumerate(self.rows.sections):
            if not section.sweep:
                lead = f"{self.thread} % 4 == 0" + (f" && {self.rank} == 0" if self.cluster > 1 else "")
                epilogue.row_of(section, row, lead)
                continue
            mine = [k for k, (of, _, _) in enumerate(self.out) if of == number]
            self.staged, self.out_maps = [every[k] for k in mine], [maps[k] for k in mine]
            self.residual = residual if self.incoming and self.incoming[0] == number else None
            known = tuple(epilogue.values)
            self.sweep(section, names)
            self.renew(known, self.rows.sections[number + 1 :])
        self.staged, self.out_maps, self.residual = every, maps, residual
        texts = {warp_row: self.lane_row(), lane_col: f"{self.thread} % 4 * 2", matrix: self.matrix_row()}
        ahead = [f"const int {name} = {text};" for name, text in texts.items() if used(name, w.lines[start:])]
        w.lines[start:start] = ["  " * depth + text for text in ahead]
        for name in (*names, *self.declared):
            w.names.free(name)
        for name in (*epilogue.values, *self.rows.held):
            w.alias.pop(name, None)

    def sweep(self, section: Section, names: tuple[str, str, str]) -> None:
        """One sweep over the elements, and the join of what it folds."""
        w, epilogue = self.w, self.epilogue
        states: dict[str, str] = {}
        for acc in section.accs:
            name = states[acc.id] = w.names.fresh(acc.id)
            epilogue.accs[acc.id] = acc
            epilogue.states[acc.id] = f"{name}[{{e}} / 2]"
            first = w.identity(acc.monoid, acc.dtype)
            w.line(f"{state_type(acc.monoid, acc.dtype)} {name}[2] = {{{first}, {first}}};")
        self.vacate_all()
        self.leaves.body = list(section.stmts)
        read = {name for stmt in section.stmts for name in own(stmt).names.values}
        gone = 0
        for k, (m, c) in enumerate(self.pieces()):
            text = f"{{acc}}[{m}][({c // 8} + {{{{j}}}}) * 4 + {{{{e}}}}]"
            epilogue.sums = {name: text.format(acc=self.acc[name]) for name in self.acc if name in read}
            epilogue.places = {name: text.format(acc=self.acc[u]) for name, u in self.rows.held.items()}
            with w.block(""):
                gone = self.piece(k, m, c, min(64, self.form.columns - c), names, gone)
        self.join(section.accs, states, names[0])
        for acc in section.accs:
            at = ".at" if MONOIDS[acc.monoid].positional else ""
            epilogue.values[acc.id] = f"{states[acc.id]}[{{h}}]{at}"
            epilogue.floats |= {acc.id} if acc.dtype == F32 and not at else set()

    def renew(self, known: Sequence[str], sections: Sequence[Section]) -> None:
        """What elements were compared with before a sweep is not known after it: else their differences, say, are kept
        beside them, for which there are no registers."""
        later = {name for s in sections for stmt in s.stmts for name in own(stmt).names.values}
        for name in known:
            if name in later and name in self.epilogue.floats:
                self.w.line(f"lf_renew({self.epilogue.values[name].removesuffix('[{h}]')});")

    def join(self, accs: tuple[Acc, ...], states: dict[str, str], warp_row: str) -> None:
        """The same states of a row in all threads that share it."""
        if not accs:
            return
        w, h = self.w, self.w.names.fresh("h")

        def combine(acc: Acc, other: str) -> str:
            mine = f"{states[acc.id]}[{h}]"
            return f"{mine} = {w.combine(acc.monoid, acc.dtype, mine, other)};"

        w.line("#pragma unroll")
        with w.block(f"for (int {h} = 0; {h} < 2; ++{h})"):
            for acc in accs:
                for lane in (1, 2):
                    w.line(combine(acc, f"lf_shfl_xor({states[acc.id]}[{h}], {lane})"))
        if self.cluster == 1:
            w.names.free(h)
            return
        bar, to, r = (w.names.fresh(x) for x in ("bar", "to", "r"))
        size = exchanged(self.rows, self.cluster)
        with w.block(""):
            w.line(f"const int {to} = {self.mine} * 2 + ({self.joined} & 1);")
            w.line(f"unsigned long long* const {bar} = {self.bars} + {to};")
            places: dict[str, str] = {}
            total = 0
            for acc in accs:
                kind, item = sent(acc)
                places[acc.id] = w.names.fresh(f"{acc.id}.slots")
                at = f"{self.states} + {to} * {size}" + (f" + {total}" if total else "")
                w.line(f"{kind}* const {places[acc.id]} = ({kind}*)({at}) + {warp_row};")
                total += self.cluster * ROWS * item
            w.line(f"if ({self.thread} == 0) lf_bar_expect({bar}, {total});")
            with w.block(f"for (int {r} = {self.thread} % 4; {r} < {self.cluster}; {r} += 4)"):
                for acc in accs:
                    kind, _ = sent(acc)
                    for row in range(2):
                        value = f"{states[acc.id]}[{row}]"
                        value = f"(int){value}" if state_bytes(acc.monoid, acc.dtype) < LEAST_SENT else value
                        at = f"&{places[acc.id]}[{self.rank} * {ROWS}{' + 8' if row else ''}]"
                        w.line(f"lf_send({at}, {value}, {bar}, {r});")
            w.line(f"lf_bar_wait({bar}, {self.joined}++ >> 1 & 1);")
            w.line("#pragma unroll")
            with w.block(f"for (int {h} = 0; {h} < 2; ++{h})"):
                for acc in accs:
                    small = state_bytes(acc.monoid, acc.dtype) < LEAST_SENT
                    cast = f"({state_type(acc.monoid, acc.dtype)})" if small else ""
                    w.line(f"{states[acc.id]}[{h}] = {cast}{places[acc.id]}[{h} * 8];")
                    for rank in range(1, self.cluster):
                        w.line(combine(acc, f"{cast}{places[acc.id]}[{rank * ROWS} + {h} * 8]"))
        for name in (h, bar, to, r, *places.values()):
            w.names.free(name)
