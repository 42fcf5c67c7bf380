"""Rules that follow from the laws on the rows of the op table, for every operation at once, and constant folding.

Nothing here names an operation: a row that states a new law is simplified by it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from loopfuse.dtypes import DType
from loopfuse.ir import Const, Expr, Op
from loopfuse.oprow import OpRow
from loopfuse.ops import OPS, PREFIX, to_bits
from loopfuse.passes.fold import evaluate
from loopfuse.passes.patterns import faults, lazy, same
from loopfuse.rewrite import is_const
from loopfuse.rules import Rule, Rules

OPPOSITE = PREFIX["not"].name
Named = Literal["identity", "absorbing", "cancels"]
Law = Callable[[Op, OpRow], Expr | None]


@lru_cache(maxsize=1024)
def _named_bits(op: str, law: Named, operand: DType, result: DType) -> int | None:
    """The bits of the constant that a law of a row names at a type of operands."""
    value = OPS[op].value(law, operand)
    return None if value is None else to_bits(value, result)


def _named_const(row: OpRow, law: Named, node: Op) -> Const | None:
    """The constant that a law of the row names at the operands of a node."""
    dtype = node.dtype if law == "cancels" else node.args[-1].dtype
    bits = _named_bits(row.name, law, node.args[-1].dtype, dtype)
    return None if bits is None else Const(bits, dtype, span=node.span)


def _constant_right(node: Op, row: OpRow) -> Expr | None:
    """`1 + x => x + 1`, `1 < x => x > 1`"""
    if row.arity != 2 or not is_const(node.args[0]) or is_const(node.args[1]):
        return None
    if row.law("commutative", node.args[0].dtype):
        return Op(node.op, node.args[::-1], node.dtype, span=node.span)
    return Op(row.swapped, node.args[::-1], node.dtype, span=node.span) if row.swapped else None


def _identity(node: Op, row: OpRow) -> Expr | None:
    """`x * 1 => x`"""
    if row.arity != 2 or node.dtype != node.args[0].dtype or not any(isinstance(a, Const) for a in node.args):
        return None
    unit = _named_const(row, "identity", node)
    if unit is None:
        return None
    if _equals(node.args[1], unit):
        return node.args[0]
    both = row.law("commutative", node.args[0].dtype)
    return node.args[1] if both and _equals(node.args[0], unit) else None


def _equals(expr: Expr, const: Const) -> bool:
    return isinstance(expr, Const) and (expr.bits, expr.dtype) == (const.bits, const.dtype)


def _absorbing(node: Op, row: OpRow) -> Expr | None:
    """`x * 0 => 0`"""
    possible = row.arity == 2 and any(isinstance(a, Const) for a in node.args)
    zero = _named_const(row, "absorbing", node) if possible else None
    if zero is None:
        return None
    if _equals(node.args[1], zero) and not faults(node.args[0]):
        return zero
    both = row.law("commutative", node.args[0].dtype)
    return zero if both and _equals(node.args[0], zero) and not faults(node.args[1]) else None


def _cancels(node: Op, row: OpRow) -> Expr | None:
    """`x - x => 0`, `x < x => false`"""
    if row.arity != 2 or not same(*node.args):
        return None
    value = _named_const(row, "cancels", node)
    return None if value is None or faults(node.args[0]) else value


def _idempotent(node: Op, row: OpRow) -> Expr | None:
    """`maximum(x, x) => x`, `floor(floor(x)) => floor(x)`, `maximum(maximum(x, y), y) => maximum(x, y)`"""
    if not row.law("idempotent", node.dtype):
        return None
    if row.arity == 1:
        return node.args[0] if _is(node.args[0], node.op) else None
    first, second = node.args
    if same(first, second):
        return first
    if row.law("associative", node.dtype) and row.law("commutative", node.dtype) and isinstance(first, Op):
        held = _is(first, node.op) and any(same(a, second) for a in first.args)
        return first if held and not (lazy(node.op) and faults(second)) else None
    return None


def _is(expr: Expr, op: str) -> bool:
    return isinstance(expr, Op) and expr.op == op


def _involution(node: Op, row: OpRow) -> Expr | None:
    """`-(-x) => x`"""
    inner = node.args[0]
    if isinstance(inner, Op) and inner.op == node.op and row.arity == 1 and row.law("involution", node.dtype):
        return inner.args[0]
    return None


def _complement(node: Op, row: OpRow) -> Expr | None:
    """`not (a < b) => a >= b` where the types have no NaN"""
    inner = node.args[0]
    if node.op != OPPOSITE or not isinstance(inner, Op):
        return None
    other = OPS[inner.op].complement
    if other is None or inner.args[0].dtype.kind not in other[1]:
        return None
    return Op(other[0], inner.args, node.dtype, span=node.span)


def _gathered(node: Op, row: OpRow) -> Expr | None:
    """`(x + 1) + 2 => x + 3` where the operation is associative"""
    if row.arity != 2 or not isinstance(node.args[1], Const) or not row.law("associative", node.args[1].dtype):
        return None
    inner = node.args[0]
    if not isinstance(inner, Op) or inner.op != node.op or not isinstance(inner.args[1], Const):
        return None
    if inner.args[1].dtype != node.args[1].dtype:  # `(i != 1) != true`: what is compared inside is no bool
        return None
    value = evaluate(Op(node.op, (inner.args[1], node.args[1]), node.dtype, span=node.span))
    return None if value is None else Op(node.op, (inner.args[0], value), node.dtype, span=node.span)


def _folded(node: Op, row: OpRow) -> Expr | None:
    """The value of an operation on constants, at its declared type."""
    return evaluate(node)


def _rule(name: str, law: Law) -> Rule:
    def apply(node: Expr) -> Expr | None:
        return law(node, OPS[node.op]) if isinstance(node, Op) else None

    return Rule(name, apply, ("Op",))


LAWS = Rules(
    (
        _rule("fold", _folded),
        _rule("constant-right", _constant_right),
        _rule("identity", _identity),
        _rule("absorbing", _absorbing),
        _rule("cancels", _cancels),
        _rule("idempotent", _idempotent),
        _rule("involution", _involution),
        _rule("complement", _complement),
        _rule("gather-constants", _gathered),
    )
)
