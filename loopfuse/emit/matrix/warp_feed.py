"""The feed of a kernel of warp products: which chunks of operands pass through registers, a stage ahead."""

from __future__ import annotations

from loopfuse.emit.matrix.chunks import Chunks
from loopfuse.emit.matrix.leaves import Leaves
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.matrix.warp_forms import Form, Operand, Piece
from loopfuse.emit.matrix.warp_results import Results


class Feed(Chunks, Results):
    """What a thread does to bring the operands of a stage."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, ring: list[Operand], kind: str) -> None:
        self.stage = sum(o.bytes for o in ring)
        Results.__init__(self, whole, leaves, form, self.stage * form.stages)
        Chunks.__init__(self, self.w, whole, ring, kind, form.threads)

    def hold(self, pieces: list[tuple[Operand, Piece]]) -> dict[int, str]:
        """What goes through registers is loaded a stage before it is put in its place: the names, by piece."""
        w = self.w
        held: dict[int, str] = {}
        if all(o.width for o in self.operands):
            return held
        names = self.ahead(str(self.form.stages - 1))
        for at, (operand, piece) in enumerate(pieces):
            if not operand.width:
                held[at] = w.names.fresh(f"{operand.side.buffer.id}.made")
                w.line(f"lf_vec<{self.cell(operand)}, {operand.each}> {held[at]};")
                self.fetch(operand, piece, held[at], names)
        return held
