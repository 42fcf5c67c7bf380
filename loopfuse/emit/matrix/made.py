"""Warpgroup products of operands that are computed on their way, by two warpgroups that bring every other stage each.

Chunks of what such an operand reads are loaded into registers, and each is made into eight 16-bit elements where `wgmma`
reads them: rows of 128 bytes, or panels of them, whose chunks stand in the order of `chunk ^ row % 8`. That is how tile maps
leave what lies free, too, which one of the threads copies meanwhile. What threads write is told to the asynchronous proxy
before a stage is reported full (PTX ISA, fence.proxy.async). That fence waits for loads as well, so that a single warpgroup
would show their latency in every stage.
"""

from __future__ import annotations

from loopfuse.emit.base import Declined
from loopfuse.emit.matrix import warp_forms
from loopfuse.emit.matrix.chunks import THREAD, Chunks
from loopfuse.emit.matrix.forms import Form, Major, Operand
from loopfuse.emit.matrix.leaves import Leaves
from loopfuse.emit.matrix.results import FIRST_GROUP
from loopfuse.emit.matrix.shape import Contraction, Side
from loopfuse.emit.matrix.warpgroup import Kernel
from loopfuse.emit.writer import HALVES
from loopfuse.walking import node_names, subexprs

FED = FIRST_GROUP + 5  # the named barriers of the warpgroups that make operands
MAKERS = 2  # such warpgroups
THREADS = 128  # of each
WORDS = 32  # registers of what a thread has loaded
REGISTERS = (72, 184)  # of such a thread, and of one that multiplies
MOST_RESULTS = 128  # registers of results of a thread that leave so many to the threads that make operands
LIFT = "a definition of its own for it, kept by `pragma materialize`, would lift it"


def major(whole: Contraction, side: Side, left: bool) -> Major | Declined:
    """Along what a computed operand is made, or why the threads that copy do not make it."""
    name = f"the operand over `{side.buffer.id}`"
    assert side.value is not None
    if side.dtype not in HALVES:
        return Declined(f"{name} is computed on its way, and not in 16 bits", LIFT)
    if node_names(subexprs(side.value)).values & {t.id for t in whole.tops}:
        return Declined(f"{name} is computed from a value that all elements share", LIFT)
    how, _ = warp_forms.lies(whole, side, side.dtype, left)
    assert how != "turned"  # which those of 16 bits never are
    if not Chunks(whole.job.writer(), whole, [_made(side, left, how, 64, 0)], side.dtype.name, THREADS).vectors[0]:
        return Declined(f"{name} is computed from arrays whose elements do not come eight at a time",
                        "rows of whole eights, from a multiple of 16 bytes on, would lift it")  # fmt: skip
    return how


def _made(side: Side, left: bool, how: Major, rows: int, offset: int) -> warp_forms.Operand:
    return warp_forms.Operand(side, left, how, 0, rows, offset, side.dtype.itemsize)


class Made(Kernel):
    """A kernel of which some operands are computed by the threads that copy the others."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, ring: list[Operand],
                 pairs: list[tuple[int, int]], name: str) -> None:  # fmt: skip
        super().__init__(whole, leaves, form, ring, pairs, name)
        lefts = {a for a, _ in pairs}
        self.made = [_made(o.side, k in lefts, o.major, o.rows, o.offset)
                     for k, o in enumerate(ring) if o.side.value is not None]  # fmt: skip
        self.maker = self.w.names.fresh("maker")
        self.chunks = Chunks(self.w, whole, self.made, form.kind, THREADS, self.maker)
        self.free_bytes = sum(o.bytes for o in ring if o.side.value is None)
        self.reports = 2 if self.free_bytes else 1
        self.through = (
            f", {' and '.join(dict.fromkeys('left' if o.left else 'right' for o in self.made))} operand computed"
        )

    def fits(self) -> bool:
        """Whether registers hold what is loaded ahead."""
        words = 0
        for operand, loads in zip(self.made, self.chunks.vectors, strict=True):
            each = sum(self.whole.job.buffers[x.buffer].dtype.itemsize * operand.each for x in loads)
            words += len(list(operand.pieces(THREADS))) * -(-each // 4)
        results = self.form.blocks * self.form.columns // 2 * len(self.whole.units)
        return words <= WORDS and results <= MOST_RESULTS

    def all_maps(self) -> None:
        """Maps of what is copied; a computed operand has none."""
        lefts = {a for a, _ in self.pairs}
        free = [(k, o) for k, o in enumerate(self.ring) if o.side.value is None]
        self.maps = [self.operand_map(o, k in lefts) for k, o in free]
        self.result_maps()

    def registers(self, many: bool) -> tuple[int, int]:
        """Of a thread that makes operands, and of one that multiplies."""
        return REGISTERS

    def fed(self) -> frozenset[str]:
        """What computed operands read by chunks."""
        return self.chunks.fed()

    def begin(self, how: str) -> None:
        """All threads wait until the barriers are there."""
        super().begin("sync")

    def producer(self) -> None:
        """The first warpgroups bring every other stage each, as far ahead as the ring goes: what a thread loads comes while
        the other one's stage is multiplied. One thread copies what lies free."""
        w, form, chunks = self.w, self.form, self.chunks
        tile, slot, phase, step = (w.names.fresh(x) for x in ("tile", "slot", "phase", "step"))
        w.line(f"const int {self.maker} = {THREAD} % {THREADS};")
        w.line(f"int {slot} = {self.group}, {step} = {self.group};")
        w.line(f"unsigned int {phase} = 1;")
        with self.each_tile(tile):
            self.place(tile)
            opening = len(w.lines)
            chunks.row, chunks.col, chunks.points = self.row, self.col, self.points
            chunks.trips, chunks.part = self.trips, self.since if form.split > 1 else ""
            chunks.named()
            for operand in self.made:
                chunks.source(operand)
            pieces = chunks.pieces()
            raws = [chunks.raw(operand) for operand, _ in pieces]
            first = chunks.ahead(step)
            for (operand, piece), raw in zip(pieces, raws, strict=True):
                chunks.load(operand, piece, raw, first)
            w.line("#pragma unroll 1")
            with w.block(f"for (; {step} < {self.trips}; {step} += {MAKERS})"):
                place = w.names.fresh("place")
                w.line(f"unsigned char* const {place} = {self.base} + {slot} * {self.stage};")
                now, then = chunks.ahead(step), chunks.ahead(f"({step} + {MAKERS})")
                w.line(f"lf_bar_wait({self.empty} + {slot}, {phase});")
                self.copies(place, slot, step)
                for (operand, piece), raw in zip(pieces, raws, strict=True):
                    chunk = w.names.fresh(f"{operand.side.buffer.id}.made")
                    w.line(f"lf_vec<{chunks.cell(operand)}, {operand.each}> {chunk};")
                    chunks.make(operand, piece, chunk, raw, now)
                    chunks.put(operand, piece, chunk, place)
                w.line("lf_async_fence();")
                w.line(f"lf_group_sync({FED} + {self.group}, {THREADS});")
                w.line(f"if ({self.maker} == 0) lf_bar_arrive({self.full} + {slot});")
                w.names.free(place)
                w.comment("the fence waits for what is loaded, so that loads come behind it")
                for (operand, piece), raw in zip(pieces, raws, strict=True):
                    chunks.again(operand, piece, raw, then)
                w.line(f"{slot} += {MAKERS};")
                w.line(f"if ({slot} >= {form.stages}) {{ {slot} -= {form.stages}; {phase} ^= 1; }}")
            w.line(f"{step} -= {self.trips};")
            for axis, point in zip(self.whole.batch, self.points, strict=True):
                chunks.bind(axis, point, opening)
            chunks.tidy()
            self.free()
        self.leave()
        for name in (tile, slot, phase, step, self.maker):
            w.names.free(name)

    def copies(self, place: str, slot: str, step: str) -> None:
        """What lies free, by its maps."""
        if not self.free_bytes:
            return
        with self.w.block(f"if ({self.maker} == 0)"):
            self.w.line(f"lf_bar_expect({self.full} + {slot}, {self.free_bytes});")
            free = [o for o in self.ring if o.side.value is None]
            for operand, tiles in zip(free, self.maps, strict=True):
                self.copy(operand, f"&{tiles}", place, f"{self.full} + {slot}", step)
