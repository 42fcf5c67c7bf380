"""How an operation acts on tracked values.

A smooth result is wrong by the errors of its operands times the slopes, to first order, or by what it changes at the
corners of the box that the operands may lie in, whichever is more; and by its own rounding. An operation that jumps is
undecided where such a corner, or the place in the box where two operands come closest, or a zero in it, gives another
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from loopfuse.backends.reference.tracked import WIDE, Tracked, any_of, either, half_step, settle, wide_type
from loopfuse.dtypes import BOOL, F64, DType
from loopfuse.ir import Op
from loopfuse.numerics import Array
from loopfuse.oprow import Numerics, OpRow, spacing
from loopfuse.ops import OPS

Apply = Callable[[tuple[Tracked, ...]], Tracked]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a row's own functions and laws show. `mild`: every slope is 1, so that errors at most add up. `picks`: the
    result is one of two operands. `extended`: it can be evaluated in extended precision."""

    mild: bool
    picks: bool
    extended: bool


@cache
def traits(name: str) -> Traits:
    """Find a row's traits by trying it on its domain."""
    row = OPS[name]
    grid = [np.linspace(low, high, 7) for low, high in row.domain[: row.arity]]
    args = [np.asarray(g) for g in np.meshgrid(*grid)]
    with np.errstate(all="ignore"):
        near = row.function(tuple(args), F64)
        mild = row.slope is not None and all(bool(np.all(s == 1.0)) for s in row.slopes(args, near))
        extended = _try_extended(row, args, near)
    picks = mild and row.arity == 2 and row.law("idempotent", F64) and row.law("associative", F64)
    return Traits(mild, picks, extended)


def _try_extended(row: OpRow, args: list[Array], near: Array) -> bool:
    try:
        far = row.function(tuple(a.astype(WIDE) for a in args), BOOL if row.gives == "bool" else F64)
    except (TypeError, ValueError):
        return False
    kept = row.gives == "bool" or far.dtype == WIDE
    return kept and bool(np.allclose(far.astype(np.float64), near, rtol=1e-13, equal_nan=True))


def operation(node: Op, mode: Numerics, ordered: bool = True) -> Apply:
    """An operation on tracked values, ready to be applied. `ordered`: on these operands in every program, and not on
    parts of a reduction."""
    row, dtype = OPS[node.op], node.dtype
    sources = tuple(a.dtype for a in node.args)
    if row.operands == "cond":
        return lambda args: choose(args[0], args[1], args[2])
    if row.gives == "explicit" and row.slope is None:
        return lambda args: _reread(row, args[0], dtype)
    final = ordered and (mode == "strict" or _rounds(node, row))
    if not any(d.is_float for d in sources):
        return lambda args: _exact(row, args, dtype, final)
    if row.gives == "explicit" and dtype.is_float:
        return lambda args: _convert(row, args[0], dtype, final)
    if not dtype.is_float or row.slope is None:
        return lambda args: _jump(row, args, dtype, mode)
    return lambda args: _smooth(row, args, dtype, mode, final)


def _rounds(node: Op, row: OpRow) -> bool:
    """Whether the result has its declared type in every program: what is kept wider is a 16-bit type that nobody
    declared, and a product that is added."""
    if row.gives == "explicit":
        return not node.implied
    return node.dtype.bits > 16 and row.arithmetic != "product"


# -- exact operands ---------------------------------------------------------------------------------------------------


def _exact(row: OpRow, args: tuple[Tracked, ...], dtype: DType, final: bool) -> Tracked:
    """Integers and bools: a result is in doubt where it would change with an operand in doubt."""
    value = row.function(tuple(a.value for a in args), dtype)
    doubt: Array | None = None
    unsure = [k for k, a in enumerate(args) if a.doubt is not None]
    if unsure and all(a.dtype == BOOL for a in args):
        for flips in product((False, True), repeat=len(unsure)):
            chosen = {k for k, flip in zip(unsure, flips, strict=True) if flip}
            other = row.function(
                tuple(a.value ^ a.unsure if k in chosen else a.value for k, a in enumerate(args)), dtype
            )
            doubt = either(doubt, other != value)
    else:
        for k in unsure:
            doubt = either(doubt, args[k].doubt)
    if dtype.is_float:
        return _rounded_integer(value, args[0].value, dtype, doubt, final)
    return Tracked(dtype, value, None, None, any_of(doubt))


def _rounded_integer(value: Array, number: Array, dtype: DType, doubt: Array | None, final: bool) -> Tracked:
    """An integer as a float: rounded alike everywhere, or kept wider and then off by its rounding."""
    if final:
        return Tracked(dtype, value, None, None, any_of(doubt))
    shadow = np.asarray(number.astype(wide_type(dtype)))
    inexact = value.astype(shadow.dtype) != shadow
    bound = np.where(inexact, half_step(shadow, dtype), 0.0) if inexact.any() else None
    return settle(dtype, value, shadow, bound, doubt)


def _reread(row: OpRow, arg: Tracked, dtype: DType) -> Tracked:
    """Bits read as another type: in doubt wherever the operand may differ at all, as all NaNs are one."""
    value = row.function((arg.value,), dtype)
    doubt = either(arg.doubt, None if arg.bound is None else arg.bound > 0)
    if arg.dtype.is_float:
        doubt = either(doubt, any_of(np.isnan(arg.value)))
    return Tracked(dtype, value, None, None, any_of(doubt))


# -- floats -----------------------------------------------------------------------------------------------------------


def _doubts(args: Sequence[Tracked]) -> Array | None:
    found: Array | None = None
    for a in args:
        found = either(found, a.doubt)
    return found


def _convert(row: OpRow, arg: Tracked, dtype: DType, final: bool) -> Tracked:
    """A float as another float type: widening is exact, narrowing rounds. What is exact is rounded alike everywhere, so
    that a program which leaves a declared cast out is outside the bound."""
    value = row.function((arg.value,), dtype)
    if final and arg.bound is None:
        return Tracked(dtype, value, None, None, arg.doubt)
    shadow = np.asarray(arg.shadow.astype(wide_type(dtype)))
    bound = arg.bound
    if dtype.mantissa < arg.dtype.mantissa or dtype.bits < arg.dtype.bits:
        size = np.abs(shadow) if bound is None else np.abs(shadow) + bound
        rounding = half_step(size, dtype)
        if bound is None:
            rounding = np.where(value.astype(shadow.dtype) == shadow, 0.0, rounding)
        elif final:
            exact = bound == 0
            shadow = np.where(exact, value.astype(shadow.dtype), shadow)
            rounding = np.where(exact, 0.0, rounding)
        bound = rounding if bound is None else bound + rounding
    return settle(dtype, value, shadow, bound, arg.doubt, final)


def _evaluate(row: OpRow, args: Sequence[Array], dtype: DType) -> Array:
    """The operation on wide operands: in extended precision where the row can, else in f64."""
    if any(a.dtype == WIDE for a in args) and not traits(row.name).extended:
        args = [a.astype(np.float64) for a in args]
    return np.asarray(row.function(tuple(args), F64 if dtype.is_float else dtype))


def _smooth(row: OpRow, args: tuple[Tracked, ...], dtype: DType, mode: Numerics, final: bool) -> Tracked:
    value = row.function(tuple(a.value for a in args), dtype)
    shadows = [a.shadow for a in args]
    shadow = _evaluate(row, shadows, dtype)
    bound, doubt = _propagated(row, args, shadows, shadow, dtype)
    bound = _with_own(row, args, shadows, shadow, value, bound, dtype, mode)
    if row.reads_sign is not None:  # which programs give a NaN as they like
        doubt = either(doubt, any_of(np.isnan(args[row.reads_sign].value) & ~np.isnan(value)))
    result = settle(dtype, value, shadow.astype(wide_type(dtype)), bound, either(doubt, _doubts(args)), final)
    if row.laws.distributes:
        result.dropped = _droppable(args, value)
    return result


def _droppable(args: tuple[Tracked, ...], value: Array) -> Array | None:
    broken = np.isnan(value.astype(np.float32))
    if not broken.any():
        return None
    zero = np.zeros((), dtype=bool)
    for a in args:
        zero = zero | ((a.value == 0) & (a.error == 0))
    return broken & zero


def _propagated(row: OpRow, args: tuple[Tracked, ...], shadows: list[Array], shadow: Array,
                dtype: DType) -> tuple[Array | None, Array | None]:  # fmt: skip
    """The operands' errors in the result; and where they may make it jump or leave the domain."""
    moving = [k for k, a in enumerate(args) if a.bound is not None]
    if not moving:
        return None, None
    if traits(row.name).picks:
        return picked(row, shadows, [a.error for a in args]), None
    if traits(row.name).mild:
        total: Any = 0.0
        for k in moving:
            total = total + args[k].error
        return np.asarray(total), None
    linear: Any = 0.0
    wide = [s.astype(np.float64) for s in shadows]
    slopes = row.slopes(wide, np.asarray(shadow.astype(np.float64)))
    for k in moving:
        error = args[k].error
        linear = linear + np.where(error == 0, 0.0, slopes[k] * error)
    linear = np.where(np.isnan(linear), np.inf, linear)
    change, broken = np.zeros(()), np.zeros((), dtype=bool)
    for at in _samples(args, shadows, moving):
        there = _evaluate(row, at, dtype)
        change = np.maximum(change, np.where(np.isfinite(there), np.abs(there - shadow), 0.0).astype(np.float64))
        same = (there == shadow) | (np.isnan(there) & np.isnan(shadow))
        broken = broken | (~same & ~(np.isfinite(there) & np.isfinite(shadow)))
        if row.piece is not None:
            broken = broken | (row.piece(*at) != row.piece(*shadows))
    if row.steady is not None:
        broken = broken | ((shadows[0] < args[0].error) & (args[row.steady].error > 0))
    if row.switches:
        broken = broken | (change > 4.0 * linear + 8.0 * spacing(np.abs(shadow), dtype))
    return np.maximum(linear, change), broken


def picked(row: OpRow, shadows: Sequence[Array], errors: Sequence[Array]) -> Array:
    """The error of one of two operands: the greater of those that can be picked, given how far both may be off."""
    found: Any = 0.0
    for mine, other in ((0, 1), (1, 0)):
        can: Any = False
        for way in (1.0, -1.0):
            rival = shadows[other] - way * errors[other]
            can = can | (row.function((shadows[mine] + way * errors[mine], rival), F64) != rival)
        found = np.maximum(found, np.where(can, errors[mine], 0.0))
    return np.asarray(found)


def _samples(args: tuple[Tracked, ...], shadows: list[Array], moving: list[int]) -> list[list[Array]]:
    """Operands at the corners of the box that they may lie in, and at zeros in it."""
    found = []
    for signs in product((-1.0, 1.0), repeat=len(moving)):
        at = list(shadows)
        for k, sign in zip(moving, signs, strict=True):
            at[k] = shadows[k] + sign * args[k].error
        found.append(at)
    for k in moving:
        around = np.abs(shadows[k]) < args[k].error
        if around.any():
            at = list(shadows)
            at[k] = np.where(around, 0.0, shadows[k]).astype(shadows[k].dtype)
            found.append(at)
    return found


def _with_own(row: OpRow, args: tuple[Tracked, ...], shadows: list[Array], shadow: Array, value: Array,
              bound: Array | None, dtype: DType, mode: Numerics) -> Array | None:  # fmt: skip
    """The bound with the operation's own rounding, and that of a shadow which is no wider than the value."""
    ulps = row.ulp(dtype, mode)
    extra = _shadow_error(row, shadows, shadow, dtype)
    if ulps == 0.0:
        return extra if bound is None else bound if extra is None else bound + extra
    size = np.asarray(shadow.astype(np.float64))
    if bound is not None:
        size = np.abs(size) + bound
    if ulps == 0.5 and row.scale is None and mode != "fast":
        own = np.abs(size) * dtype.unit_roundoff + half_step(np.zeros(()), dtype)
    else:
        own = row.rounding([s.astype(np.float64) for s in shadows], size, dtype, mode)
    if bound is None and ulps <= 0.5:
        own = np.where(value.astype(shadow.dtype) == shadow, 0.0, own)
    total = own if bound is None else own + bound
    return total if extra is None else total + extra


def _shadow_error(row: OpRow, shadows: list[Array], shadow: Array, dtype: DType) -> Array | None:
    """How far an f64 shadow of an f64 operation may be off the extended one that it stands for."""
    if dtype != F64 or shadow.dtype == WIDE:
        return None
    total: Any = row.reference_ulp * spacing(np.abs(shadow), F64) if row.reference_ulp else 0.0
    near = [s.astype(np.float64) for s in shadows]
    rounded = [s.astype(WIDE) != n for s, n in zip(shadows, near, strict=True)]
    if any(bool(r.any()) for r in rounded):
        for slope, off, n in zip(row.slopes(near, shadow), rounded, near, strict=True):
            total = total + np.where(off, slope * half_step(n, F64), 0.0)
    found = np.asarray(total)
    return found if found.any() else None


def _jump(row: OpRow, args: tuple[Tracked, ...], dtype: DType, mode: Numerics) -> Tracked:
    """A result that is constant between jumps: exact, or in doubt."""
    value = row.function(tuple(a.value for a in args), dtype)
    doubt = _doubts(args)
    shadows = [a.shadow for a in args]
    moving = [k for k, a in enumerate(args) if a.bound is not None]
    if moving:
        points = [shadows, *_samples(args, shadows, moving)]
        if len(args) == 2:
            points.append(_closest(args, shadows))
        for at in points:
            doubt = either(doubt, _differs(_evaluate(row, at, dtype), value, dtype))
    if not dtype.is_float:
        return Tracked(dtype, value, None, None, any_of(doubt))
    ulps, wide = row.ulp(dtype, mode), value.astype(wide_type(dtype))
    bound = None
    if ulps:
        own = ulps * spacing(np.abs(wide), dtype)
        bound = np.where(own < 0.5, 0.0, own)
    return settle(dtype, value, wide, bound if bound is not None and bound.any() else None, doubt)


def _closest(args: tuple[Tracked, ...], shadows: list[Array]) -> list[Array]:
    """Two operands as near to each other as their errors let them come."""
    a, b = shadows
    left = np.clip(b, a - args[0].error, a + args[0].error)
    return [left, np.clip(left, b - args[1].error, b + args[1].error)]


def _differs(there: Array, value: Array, dtype: DType) -> Array:
    if not dtype.is_float:
        return np.asarray(there != value)
    wide = value.astype(there.dtype)
    return np.asarray((there != wide) & ~(np.isnan(there) & np.isnan(wide)))


# -- choices ----------------------------------------------------------------------------------------------------------


def choose(cond: Tracked, then: Tracked, other: Tracked) -> Tracked:
    """One of two values. Where the condition is in doubt and the two differ by no more than their errors allow, the
    bound covers both; where they differ more, the result is in doubt."""
    dtype, c = then.dtype, cond.value
    value = np.asarray(np.where(c, then.value, other.value))
    doubt = None
    if then.doubt is not None or other.doubt is not None:
        doubt = np.where(c, then.unsure, other.unsure)
    if not dtype.is_float:
        if cond.doubt is not None:
            differs = (then.value != other.value) | then.unsure | other.unsure
            doubt = either(doubt, cond.doubt & differs)
        return Tracked(dtype, value, None, None, any_of(doubt))
    exact = then.bound is None and other.bound is None
    if exact and cond.doubt is None:
        return Tracked(dtype, value, None, None, any_of(doubt))
    shadow = np.asarray(np.where(c, then.shadow, other.shadow))
    bound = np.asarray(np.where(c, then.error, other.error))
    if cond.doubt is not None:
        gap = np.abs(then.shadow - other.shadow).astype(np.float64)
        least = half_step(np.maximum(np.abs(then.shadow), np.abs(other.shadow)), dtype)
        near = gap <= 2.0 * (then.error + other.error) + 4.0 * least
        same = (then.shadow == other.shadow) | (np.isnan(then.shadow) & np.isnan(other.shadow))
        fine = (near | same) & ~(then.unsure | other.unsure)
        wider = np.maximum(then.error, other.error) + np.where(same, 0.0, gap)
        bound = np.where(cond.doubt & fine, wider, bound)
        doubt = either(doubt, cond.doubt & ~fine)
    return settle(dtype, value, shadow, bound if bound.any() else None, any_of(doubt))
