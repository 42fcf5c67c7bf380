"""What part of a range of indices a mask leaves, by sampling its conditions on indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loopfuse.analysis.sketch import Level, Sketch
from loopfuse.dtypes import BOOL
from loopfuse.ir import Affine, Const, Expr, Op, Ref, Select
from loopfuse.numerics import Array
from loopfuse.ops import OPS
from loopfuse.rewrite import exprs, subexprs
from loopfuse.schedule.base import Ask

SAMPLES = 16
FULL = 1.0


def share(ask: Ask, level: Level) -> float:
    """The part of the iterations of a loop (all loops round it included) that its masks leave, were masked blocks
    skipped: conditions that follow indices alone, in the loop's `where` and in selects whose other arm is infinite."""
    conditions = list(_conditions(ask.sketch, level))
    if not conditions:
        return FULL
    point = _points(ask.sketch, level)
    kept: Array = np.ones((SAMPLES, SAMPLES), dtype=bool)
    for cond in conditions:
        holds = _holds(ask.sketch, cond, point)
        if holds is not None:
            kept = kept & holds
    return max(1, int(kept.sum())) / SAMPLES**2


def _points(found: Sketch, level: Level) -> dict[str, Any]:
    """Values of the indices, evenly spread over the innermost two that move; others stand at their middle."""
    moving = [n for n in level.extents if level.extents[n] > 1][-2:]
    point: dict[str, Any] = dict(found.numbers)
    steps = 2 * np.arange(SAMPLES) + 1
    for k, name in enumerate(reversed(moving)):
        spread = level.lows[name] + steps * level.extents[name] // (2 * SAMPLES)
        point[name] = spread[None, :] if k == 0 else spread[:, None]
    return point


def _conditions(found: Sketch, level: Level) -> Iterator[Expr]:
    if level.loop is None:
        return
    if level.loop.where is not None:
        yield level.loop.where
    for stmt in level.loop.body:
        for expr in exprs(stmt):
            for node in subexprs(expr):
                if isinstance(node, Select) and _infinite(node.other):
                    yield node.cond
                elif isinstance(node, Op) and len(node.args) == 3 and _infinite(node.args[2]):
                    yield node.args[0]


def _infinite(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.dtype.is_float and _is_infinite(expr)


def _is_infinite(expr: Const) -> bool:
    exponent = expr.dtype.bits - expr.dtype.mantissa
    mask = ((1 << exponent) - 1) << (expr.dtype.mantissa - 1)
    return expr.bits & ((1 << (expr.dtype.bits - 1)) - 1) == mask


def _holds(found: Sketch, cond: Expr, point: Mapping[str, Any]) -> Array | None:
    """Where a condition holds; None where it does not follow indices alone."""
    while isinstance(cond, Ref) and cond.id in found.lets:
        cond = found.lets[cond.id][0]
    if not isinstance(cond, Op):
        return None
    if all(isinstance(a, Affine) for a in cond.args) and OPS[cond.op].gives == "bool":
        if any(n not in point for a in cond.args if isinstance(a, Affine) for n in a.poly.names):
            return None
        values = [np.asarray(a.poly.value(point, _divide)) for a in cond.args if isinstance(a, Affine)]
        return OPS[cond.op].evaluate(values, cond.dtype)
    if any(a.dtype != BOOL for a in cond.args):
        return None
    parts = [_holds(found, a, point) for a in cond.args]
    known = [p for p in parts if p is not None]
    if len(known) == len(parts):
        return OPS[cond.op].evaluate(known, cond.dtype)
    absorbing = OPS[cond.op].value("absorbing", BOOL)
    return known[0] if known and absorbing is not None and not absorbing else None


def _divide(num: Any, den: Any) -> Any:
    return np.floor_divide(num, np.where(np.asarray(den) == 0, 1, den))
