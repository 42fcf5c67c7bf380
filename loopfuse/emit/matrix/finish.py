"""The second step of folds over rows or columns of a result: partial states of tiles become the states, in a fixed order,
and what follows the fold is computed from them."""

from __future__ import annotations

from math import prod

from loopfuse.emit.code import KernelCode, Launch, Memory, ceil_div, grid
from loopfuse.emit.matrix.shape import Axis, Contraction
from loopfuse.emit.rows_vectors import digits
from loopfuse.emit.serial import Serial
from loopfuse.emit.writer import state_bytes, state_type
from loopfuse.ir import Acc
from loopfuse.ops import MONOIDS
from loopfuse.sizes import ONE, Poly

LANES = 32  # results side by side of a block
PARTS = 8  # threads that share the partial states of a result


class Parts:
    """Partial states in memory: one for each part of the folded axis, each remaining index and each batch."""

    def __init__(self, whole: Contraction, parts: Poly) -> None:
        assert whole.ride is not None
        self.whole, self.parts = whole, parts
        self.axis: Axis = whole.cols if whole.ride.along == "rows" else whole.rows
        self.accs: tuple[Acc, ...] = whole.ride.loop.accs

    def memory(self, acc: Acc) -> Memory:
        """Where the states of an accumulator are."""
        batch = prod((a.extent for a in self.whole.batch), start=ONE)
        count = self.parts * self.axis.extent * batch * state_bytes(acc.monoid, acc.dtype)
        return Memory(f"{self.whole.job.name}.{acc.id}.parts", self.whole.job.target.poly(count))

    def finish(self, name: str) -> tuple[KernelCode, Launch]:
        """The kernel that joins them."""
        whole = self.whole
        ride = whole.ride
        assert ride is not None
        w = whole.job.writer()
        serial = Serial(w)
        n = w.names.fresh
        count, parts = w.poly(self.axis.extent), w.poly(self.parts)
        axes = [*whole.batch, self.axis]
        total = prod((a.extent for a in axes), start=ONE)
        at, part, own = n("at"), n("part"), n("own")
        w.line(f"const {w.index} {at} = {'(long long)' if w.wide else ''}blockIdx.x * {LANES} + threadIdx.x % {LANES};")
        w.line(f"const int {part} = threadIdx.x / {LANES};")
        w.line(f"const bool {own} = {at} < {w.poly(total)};")
        slots: dict[str, str] = {}
        offset = 0
        for acc in self.accs:
            kind, state = state_type(acc.monoid, acc.dtype), w.names(acc.id)
            memory = w.pointer(self.memory(acc).id, kind)
            w.line(f"{kind} {state} = {w.identity(acc.monoid, acc.dtype)};")
            s = n("s")
            with w.block(f"if ({own})"), w.block(f"for (int {s} = {part}; {s} < {parts}; {s} += {PARTS})"):
                place = f"({at} / {count} * {parts} + {s}) * {count} + {at} % {count}" if whole.batch else \
                    f"({w.index}){s} * {count} + {at}"  # fmt: skip
                w.line(f"{state} = {w.combine(acc.monoid, acc.dtype, state, f'{memory}[{place}]')};")
            slots[acc.id] = n(f"{acc.id}.slots")
            w.line(f"{kind}* const {slots[acc.id]} = ({kind}*)(lf_shared + {offset});")
            w.line(f"{slots[acc.id]}[threadIdx.x] = {state};")
            offset += LANES * PARTS * state_bytes(acc.monoid, acc.dtype)
        w.shared = offset
        w.line("lf_sync();")
        w.line(f"if ({part} > 0 || !{own}) return;")
        for acc in self.accs:
            state, p = w.names(acc.id), n("p")
            with w.block(f"for (int {p} = 1; {p} < {PARTS}; ++{p})"):
                other = f"{slots[acc.id]}[{p} * {LANES} + threadIdx.x]"
                w.line(f"{state} = {w.combine(acc.monoid, acc.dtype, state, other)};")
        indices = [i for a in axes for i in a.indices]
        for (index, low, _), text in zip(indices, digits(at, [w.poly(c) for _, _, c in indices]), strict=True):
            low_ = w.poly(low)
            w.line(f"const {w.index} {w.names(index)} = {text if low_ == '0' else f'{low_} + {text}'};")
        for acc in self.accs:
            serial.accs[acc.id] = acc
            if MONOIDS[acc.monoid].positional:
                w.alias[acc.id] = f"{w.names(acc.id)}.at"
        for top in whole.tops:
            serial.let(top)
        serial.serial(ride.after)
        why = f"joins the states of {whole.ride.along if whole.ride else ''} by tiles"
        code = w.function(name, LANES * PARTS, head=[f"{whole.job.kernel.id}: {why}"], kernel=whole.job.kernel.id,
                          schedule="contraction", why=why)  # fmt: skip
        return code, Launch(name, grid(ceil_div(whole.job.target.poly(total), LANES)), w.arguments)
