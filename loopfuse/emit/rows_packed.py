"""The greatest or least of 16-bit floats along a row, two elements an instruction: they need not be widened to be compared."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse.constants import to_bits
from loopfuse.dtypes import F32, DType
from loopfuse.emit.rows_shape import Line, Stream
from loopfuse.emit.rows_vectors import At, Vectors
from loopfuse.emit.writer import HALVES
from loopfuse.ir import Acc, Expr, Let, Load, Op, Ref, Stmt, Store
from loopfuse.ops import MONOIDS

PAIRED = ("max", "min")  # monoids that have an instruction for pairs


def packed(rows: Vectors, line: Line, accs: Sequence[Acc], body: Sequence[Stmt]) -> bool:
    """Write a pass over a row that only takes the greatest or least of an operand; False, and nothing, for any other."""
    found = _operand(rows, line, accs, body)
    if found is None:
        return False
    stream, acc, dtype = found
    w, width = rows.w, rows.fit.width[line.run]
    best, q = w.names.fresh(f"{acc.id}.pair"), w.names.fresh("q")
    start = to_bits(MONOIDS[acc.monoid].identity(dtype), dtype)
    w.line(f"unsigned int {best} = {start << 16 | start:#x}u;")
    with rows.vectors(line.run, "at") as (v, p):
        rows.at = At(line, v, "0", p, {}, {})
        text = f"{stream.name}[{v}]"
        if stream not in rows.fetched:
            text = w.names.fresh(f"{stream.buffer.id}.part")
            w.line(rows.peek(stream, text, p))
        rows.at = None
        w.line("#pragma unroll")
        w.line(
            f"for (int {q} = 0; {q} < {width // 2}; ++{q}) {best} = lf_{acc.monoid}_{dtype}x2({best}, {text}.w[{q}]);"
        )
    name = w.names(acc.id)
    for half in (f"(unsigned short){best}", f"(unsigned short)({best} >> 16)"):
        w.line(f"{name} = {w.combine(acc.monoid, acc.dtype, name, f'lf_{dtype}_value({half})')};")
    w.names.free(q)
    return True


def _operand(rows: Vectors, line: Line, accs: Sequence[Acc], body: Sequence[Stmt]) -> tuple[Stream, Acc, DType] | None:
    """The operand whose elements are compared as they are, with the accumulator and the operand's type."""
    if len(accs) != 1 or accs[0].monoid not in PAIRED or accs[0].shape or line.ragged or rows.part:
        return None
    acc = accs[0]
    lets = {s.id: s.value for s in body if isinstance(s, Let)}
    stores = [s for s in body if isinstance(s, Store)]
    if len(stores) != 1 or len(lets) + 1 != len(body) or stores[0].buffer != acc.id:
        return None
    value: Expr = stores[0].value
    while (isinstance(value, Ref) and value.id in lets) or (isinstance(value, Op) and _widens(value)):
        value = lets.pop(value.id) if isinstance(value, Ref) else value.args[0]
    if lets or not isinstance(value, Load) or value.dtype not in HALVES or acc.dtype not in (F32, value.dtype):
        return None
    stream = rows.shape.find(value, line)
    if stream is None or stream.stored >= 0 or rows.fit.width[line.run] % 2 or not rows.fit.vectors[line.run]:
        return None
    return stream, acc, value.dtype


def _widens(op: Op) -> bool:
    return op.op == "cast" and op.dtype == F32 and op.args[0].dtype in HALVES
