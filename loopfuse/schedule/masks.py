"""What part of a range of indices a mask leaves, by sampling its conditions on indices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loopfuse.analysis.sketch import Level, Numbers, Sketch
from loopfuse.ir import Affine, Const, Expr, Op, Ref, Select
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
    names = list(level.extents)
    kept = total = 0
    for point in _points(level, names):
        numbers = Numbers({**ask.sketch.numbers, **point})
        total += 1
        kept += all(_holds(ask.sketch, c, numbers) is not False for c in conditions)
    return max(kept, 1) / total


def _points(level: Level, names: list[str]) -> Iterator[dict[str, int]]:
    """Points of the two innermost indices of the loops round (others at their middle), evenly spread."""
    moving = [n for n in names if level.extents[n] > 1][-2:]
    base = {n: level.lows[n] + level.extents[n] // 2 for n in names}
    if not moving:
        yield base
        return
    for a in range(SAMPLES):
        for b in range(SAMPLES if len(moving) > 1 else 1):
            point = dict(base)
            point[moving[-1]] = level.lows[moving[-1]] + (2 * a + 1) * level.extents[moving[-1]] // (2 * SAMPLES)
            if len(moving) > 1:
                point[moving[0]] = level.lows[moving[0]] + (2 * b + 1) * level.extents[moving[0]] // (2 * SAMPLES)
            yield point


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


def _holds(found: Sketch, cond: Expr, numbers: Numbers) -> bool | None:
    """Whether a condition holds at a point; None where it does not follow indices alone."""
    while isinstance(cond, Ref) and cond.id in found.lets:
        cond = found.lets[cond.id][0]
    if not isinstance(cond, Op):
        return None
    if all(isinstance(a, Affine) for a in cond.args) and OPS[cond.op].gives == "bool":
        values = [np.asarray(int(a.poly.value(numbers))) for a in cond.args if isinstance(a, Affine)]
        return bool(OPS[cond.op].evaluate(values, cond.dtype))
    parts = [_holds(found, a, numbers) for a in cond.args]
    if cond.op == "and":
        return False if False in parts else None if None in parts else True
    if cond.op == "or":
        return True if True in parts else None if None in parts else False
    return None
