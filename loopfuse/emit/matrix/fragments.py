"""Warpgroup products whose left operand comes from registers: for tf32 operands that lie along the result.

The matrix units take 32-bit operands from shared memory K-major only. A left operand that lies along its rows is therefore
read from its tile by the consumers themselves, element by element where the product wants it (PTX ISA, fragments of
wgmma.m64nNk8), and rounded to nearest on the way. That moves no more bytes through shared memory than a product that reads
both operands there, where a tile that is transposed in shared memory would be read and written once more. A right operand
that lies along its columns becomes the left one: rows and columns of the whole are exchanged, and the tile of the result
is transposed as it is staged.

Of the 64 rows of a product a thread has two neighbours in place of two that are 8 apart. Which ones it has is chosen so
that both are read at once, and that the rows of a half-warp, permuted by the swizzle, fall on all banks: a warp has the
16-byte chunks c, c + 1, c + 4 and c + 5 of each 128 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from loopfuse.dtypes import F32
from loopfuse.emit.matrix.forms import ROW, SLOT, Form
from loopfuse.emit.matrix.leaves import Flat
from loopfuse.emit.matrix.shape import Contraction, Ride, Unit
from loopfuse.emit.matrix.warpgroup import Kernel
from loopfuse.sizes import ONE

MOST_REGISTERS = 200  # of results and of the left operands of two stages


def turned(whole: Contraction) -> Contraction:
    """The same with rows and columns exchanged."""
    ride = whole.ride
    if ride is not None:
        ride = Ride(ride.loop, "cols" if ride.along == "rows" else "rows", ride.after)
    units = tuple(Unit(u.acc, u.b, u.a, u.outside) for u in whole.units)
    return replace(whole, units=units, rows=whole.cols, cols=whole.rows, ride=ride)


def turns(whole: Contraction) -> bool:
    """Whether a right operand of 32 bits lies along its columns."""
    return any(u.b.dtype == F32 and u.b.depth[-1] != ONE and u.b.row == ONE for u in whole.units)


def registers(form: Form, units: int, lefts: int) -> int:
    """Registers of a thread for results and operands."""
    return form.blocks * (form.columns // 2 * units + 2 * 16 * lefts)


class Fragments(Kernel):
    """A kernel whose left operands come from registers."""

    apart = 1
    releases = 4  # every warp reads the tile itself
    through = ", the left operand through registers"

    # -- where results are --------------------------------------------------------------------------------------------

    def lane_row(self) -> str:
        """The first row of a thread, of the 64: the second is the next one."""
        t = self.thread
        return f"{t} / 64 * 32 + ({t} / 32 % 2 * 2 + {t} / 16 % 2 + {t} / 8 % 2 * 4) * 4 + {t} / 4 % 2 * 2"

    def matrix_row(self) -> str:
        """The row of a matrix whose address a thread gives."""
        t = self.thread
        return f"{t} / 64 * 32 + ({t} / 32 % 2 * 2 + {t} / 4 % 2 + {t} / 2 % 2 * 4) * 4 + {t} % 2 * 2 + {t} / 8 % 2"

    def choose(self) -> None:
        """Outputs that lie along the rows of the product go as tiles too."""
        super().choose()
        if self.form.columns % 64:
            return
        whole = turned(self.whole)
        for store in self.leaves.stores:
            flat = self.leaves.flat(store)
            if flat is None or flat.col == ONE or self.whole.job.buffers[store.buffer].dtype != F32:
                continue
            if _across(flat).tiled(whole, 4, stored=True):
                self.staged.append((store, flat))

    def flat_map(self, buffer: str, flat: Flat, stem: str) -> str:
        """The map of an array of the result's shape, or of its transpose."""
        if flat.col == ONE:
            return super().flat_map(buffer, flat, stem)
        whole = self.whole
        extents = (whole.rows.extent, whole.cols.extent, *(a.extent for a in whole.batch))
        return self.map(buffer, flat.start, extents, (flat.col, *flat.batch), (ROW // 4, 64), stem)

    def corner(self, flat: Flat, m: int, c: int, half: int) -> str:
        """Where a tile of the result goes: coordinates in its map."""
        if flat.col == ONE:
            return super().corner(flat, m, c, half)
        return f"{self.tile_row(m)} + {32 * half}, {self.col} + {c}"

    def stage_out(self, made: str, place: int, half: int, rows: tuple[str, str], flat: Flat) -> None:
        """Results of a thread to a slot; of the transpose a half has the rows of two warps."""
        w, own, t = self.w, rows[0], self.thread
        if half < 0:
            super().stage_out(made, place, half, rows, flat)
            return
        j, h = w.names.fresh("j"), w.names.fresh("h")
        slot, across = f"{self.slots} + {place * SLOT}", flat.col != ONE
        with w.block(f"if ({t} / 64 == {half})" if across else ""):
            w.line("#pragma unroll")
            with w.block(f"for (int {j} = 0; {j} < {8 if across else 4}; ++{j})"):
                w.line("#pragma unroll")
                with w.block(f"for (int {h} = 0; {h} < 2; ++{h})"):
                    if across:
                        line, chunk = f"({j} * 8 + {t} % 4 * 2 + {h})", f"{own} % 32 / 4"
                        offset, values = f"{own} % 4", [f"4 * {j} + {h}", f"4 * {j} + 2 + {h}"]
                    else:
                        line, chunk = f"({own} + {h})", f"2 * {j} + {t} % 4 / 2"
                        offset, first = f"{t} % 2 * 2", f"4 * ({half * 4} + {j}) + 2 * {h}"
                        values = [first, f"{first} + 1"]
                    w.line(f"const lf_pack<float, 2> two = {{{{{made}[{values[0]}], {made}[{values[1]}]}}}};")
                    w.line(f"*(lf_pack<float, 2>*)({slot} + {line} * {ROW} + (({chunk} ^ {line} & 7) << 4) + "
                           f"({offset}) * 4) = two;")  # fmt: skip
        w.names.free(j)
        w.names.free(h)

    # -- the products -------------------------------------------------------------------------------------------------

    def descriptors(self) -> None:
        """Of each right operand the descriptor, of each left one where a thread reads, in the first stage."""
        w = self.w
        self.first = {}
        lefts = {a for a, _ in self.pairs}
        lane = w.names.fresh("lane")
        w.line(f"const int {lane} = {self.thread} % 4;")
        t = self.thread
        chunk = f"({t} / 32 % 2 * 2 + {t} / 16 % 2 + {t} / 8 % 2 * 4 ^ {lane})"
        for number in self.named():
            operand = self.ring[number]
            at = f"{self.base} + {operand.offset}" if operand.offset else self.base
            name = w.names.fresh("desc" if number not in lefts else "from")
            if number in lefts:
                rows = self.inside_row(0)
                at += f" + ({rows}) * {ROW}" if rows else ""
                at += f" + {t} / 64 * {self.form.depth * ROW} + {lane} * {ROW} + {t} / 4 % 2 * 8"
                w.line(f"const unsigned char* const {name} = {at} + {chunk} * 16;")
                # four rows of the sum further on the chunk is another one
                w.line(f"const unsigned char* const {name}_4 = {at} + 4 * {ROW} + ({chunk} ^ 4) * 16;")
            else:
                w.line(f"const unsigned long long {name} = lf_mma_desc({at}, 16, 1024);")
            self.first[number] = name
        w.names.free(lane)

    def load(self, slot: str, to: dict[int, str]) -> None:
        """The left operands of a stage into registers."""
        w, form = self.w, self.form
        kk, two = w.names.fresh("kk"), w.names.fresh("two")
        w.line("#pragma unroll")
        with w.block(f"for (int {kk} = 0; {kk} < 4; ++{kk})"):
            for number, name in to.items():
                for m, more in product(range(form.blocks), range(2)):
                    at = f"{self.first[number]}{'_4' if more else ''} + {slot} * {self.stage} + {kk} * {8 * ROW}"
                    at += f" + {m * 64 * ROW}" if m else ""
                    with w.block(""):
                        w.line(f"const lf_pack<float, 2> {two} = *(const lf_pack<float, 2>*)({at});")
                        for h in range(2):
                            w.line(f"{name}[{m}][{kk}][{2 * more + h}] = lf_tf32({two}.v[{h}]);")
        for name in (kk, two):
            w.names.free(name)

    def late(self) -> bool:
        """Values of one side are there before the first products."""
        return False

    def loop(self, lag: int) -> None:
        """The loop over the stages of a tile: while the products of one go on, the left operands of the next are read."""
        w, form = self.w, self.form
        n = w.names.fresh
        step, at, wait = n("step"), n("next"), n("parity")
        lefts = sorted({a for a, _ in self.pairs})
        now = {k: n(f"{self.ring[k].side.buffer.id}.now") for k in lefts}
        then = {k: n(f"{self.ring[k].side.buffer.id}.next") for k in lefts}
        for name in (*now.values(), *then.values()):
            w.line(f"unsigned int {name}[{form.blocks}][4][4] = {{}};")
        with w.block(f"if ({self.trips} > 0)"):
            w.line(f"lf_bar_wait({self.full} + {self.slot}, {self.phase});")
            self.load(self.slot, now)
        w.line("#pragma unroll 1")
        with w.block(f"for (int {step} = 0; {step} < {self.trips}; ++{step})"):
            w.line("lf_mma_fence();")
            for kk in range(4):
                for run in self.runs:
                    a, b = self.pairs[run[0]]
                    for m in range(form.blocks):
                        results, columns = self.results_of(run, m)
                        right = f"{self.first[b]} + {self.slot} * {self.stage >> 4} + {kk * 2}"
                        keep = "true" if kk else f"{step} > 0"
                        w.line(f"lf_mma_64x{columns}_{form.kind}_r0({results}, {now[a]}[{m}][{kk}], {right}, {keep});")
            w.line("lf_mma_end();")
            self.lead(lag, step)
            w.line(f"const int {at} = {self.slot} + 1 == {form.stages} ? 0 : {self.slot} + 1;")
            w.line(f"const unsigned int {wait} = {at} ? {self.phase} : {self.phase} ^ 1;")
            with w.block(f"if ({step} + 1 < {self.trips})"):
                w.line(f"lf_bar_wait({self.full} + {at}, {wait});")
                self.load(at, then)
            w.line("lf_mma_wait<0>();")
            w.line(f"if ({self.thread} % 32 == 0) lf_bar_arrive({self.empty} + {self.slot});")
            w.line("#pragma unroll")
            with w.block(f"for (int q = 0; q < {16 * form.blocks}; ++q)"):
                for k in lefts:
                    w.line(f"(&{now[k]}[0][0][0])[q] = (&{then[k]}[0][0][0])[q];")
            w.line(f"{self.slot} = {at};")
            w.line(f"{self.phase} = {wait};")
        for name in (step, at, wait, *now.values(), *then.values()):
            w.names.free(name)


def _across(flat: Flat) -> Flat:
    return replace(flat, row=flat.col, col=flat.row)
