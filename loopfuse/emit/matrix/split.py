"""Sums cut into parts: blocks of their own leave partial sums in memory, and a second kernel adds those in their order and
computes the elements from them."""

from __future__ import annotations

from math import prod

from loopfuse.emit.code import KernelCode, Launch, Memory, ceil_div, grid
from loopfuse.emit.matrix.shape import Contraction, Unit
from loopfuse.emit.rows_vectors import digits, used
from loopfuse.emit.serial import Serial
from loopfuse.emit.writer import Writer, c_type, state_bytes
from loopfuse.ir import Let, Store
from loopfuse.sizes import ONE, Poly

THREADS = 256


class Split:
    """Partial sums in memory: `parts` arrays of the shape of the result, one after another, for each product."""

    def __init__(self, whole: Contraction, parts: int) -> None:
        self.whole, self.parts = whole, parts

    @property
    def total(self) -> Poly:
        """Elements of the result."""
        whole = self.whole
        return whole.job.target.poly(prod((a.extent for a in (*whole.batch, whole.rows, whole.cols)), start=ONE))

    def memory(self, unit: Unit) -> Memory:
        """Where the partial sums of a product are."""
        acc = unit.acc
        return Memory(
            f"{self.whole.job.name}.{acc.id}.parts", self.total * (self.parts * state_bytes("sum", acc.dtype))
        )

    def pointer(self, w: Writer, unit: Unit, write: bool) -> str:
        """The argument that points to them."""
        return w.pointer(self.memory(unit).id, c_type(unit.acc.dtype), write=write)

    def place(self, w: Writer, part: str, points: list[str], row: str, col: str) -> str:
        """Where the partial sum of an element is."""
        whole = self.whole
        at = part
        for axis, point in zip((*whole.batch, whole.rows, whole.cols), (*points, row, col), strict=True):
            at = f"({at} * {w.poly(axis.extent)} + {point})"
        return at

    def finish(self, name: str) -> tuple[KernelCode, Launch]:
        """The kernel that adds them."""
        whole = self.whole
        w = whole.job.writer()
        serial = Serial(w)
        n = w.names.fresh
        indices = [i for a in (*whole.batch, whole.rows, whole.cols) for i in a.indices]
        for index, _, _ in indices:
            w.names(index)
        at, p = n("at"), n("p")
        total = w.poly(self.total)
        w.line(f"const {w.index} {at} = ({w.index})blockIdx.x * {THREADS} + threadIdx.x;")
        w.line(f"if ({at} >= {total}) return;")
        start = len(w.lines)
        for unit in whole.units:
            kind, sum_ = c_type(unit.acc.dtype), n(f"{unit.acc.id}.sum")
            memory = self.pointer(w, unit, False)
            w.line(f"{kind} {sum_} = {memory}[{at}];")
            w.line("#pragma unroll 4")
            other = f"{memory}[{at} + {p} * {total}]"
            w.line(f"for (int {p} = 1; {p} < {self.parts}; ++{p}) "
                   f"{sum_} = {w.combine('sum', unit.acc.dtype, sum_, other)};")  # fmt: skip
            text = sum_
            for factor in unit.outside:
                text = f"({text} * {w.expr(factor)})"
            w.line(f"const {kind} {w.names(unit.acc.id)} = {text};")
        serial.serial([s for s in whole.body if isinstance(s, Let | Store)])
        for top in reversed(whole.tops):
            serial.let(top)
            line = w.lines.pop()
            if used(w.names(top.id), w.lines[start:]):
                w.lines.insert(start, line)
        found = []
        for (index, low, _), text in zip(indices, digits(at, [w.poly(c) for _, _, c in indices]), strict=True):
            low_ = w.poly(low)
            if used(w.names(index), w.lines[start:]):
                found.append(f"  const {w.index} {w.names(index)} = {text if low_ == '0' else f'{low_} + {text}'};")
        w.lines[start:start] = found
        why = f"adds {self.parts} parts of each sum"
        code = w.function(name, THREADS, head=[f"{whole.job.kernel.id}: {why}"], kernel=whole.job.kernel.id,
                          schedule="contraction", why=why)  # fmt: skip
        return code, Launch(name, grid(ceil_div(self.total, THREADS)), w.arguments)
