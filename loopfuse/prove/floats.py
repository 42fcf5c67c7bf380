"""Bounds of float expressions, as far as a cast to an integer and a subscript need them.

A bound is an integer polynomial or a rational number; it holds wherever the value is not NaN. Rounding is monotone, so
a bound on the exact result, rounded outward, bounds the rounded one in every mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import NamedTuple

from loopfuse.constants import constant, greatest, to_number
from loopfuse.dtypes import DType
from loopfuse.ir import Const, Expr, Load, Op, Ref, Select
from loopfuse.prove.entail import proves_fast
from loopfuse.prove.exprs import deeper, integer, looked_through, may_look
from loopfuse.prove.state import NO_TAGS, State, Tags
from loopfuse.sizes import Poly


class Limit(NamedTuple):
    """A bound and what it rests on."""

    value: Poly | Fraction
    tags: Tags = NO_TAGS


class Interval(NamedTuple):
    """At least every one of `lo`, at most every one of `hi`."""

    lo: tuple[Limit, ...] = ()
    hi: tuple[Limit, ...] = ()


def interval(state: State, e: Expr) -> Interval:
    """Bounds of a float expression."""
    if isinstance(e, Const):
        value = to_number(e.bits, e.dtype)
        return _point(Fraction(value)) if isfinite(value) else Interval()
    if isinstance(e, Load):
        inside = looked_through(state, e)
        if inside is None:
            return Interval()
        with deeper(state):
            return interval(state, inside)
    if isinstance(e, Ref) and e.id in state.lets and may_look(state):
        with deeper(state):
            return interval(state, state.lets[e.id])
    if isinstance(e, Select):
        return _hull(interval(state, e.then), interval(state, e.other))
    if isinstance(e, Op):
        if e.op == "cast":
            return _cast(state, e)
        if e.op in _RULES:
            return _RULES[e.op](state, e, [interval(state, a) for a in e.args])
    return Interval()


def _point(value: Fraction) -> Interval:
    return Interval((Limit(value),), (Limit(value),))


def _cast(state: State, e: Op) -> Interval:
    (arg,) = e.args
    if arg.dtype.is_float:
        inner = interval(state, arg)
        if e.dtype.mantissa >= arg.dtype.mantissa and greatest(e.dtype) >= greatest(arg.dtype):
            return inner  # f16 holds neither the greatest nor the least numbers of bf16, for all its digits
        return _outward(_numbers(inner), e.dtype)
    value = integer(state, arg)
    if value is None:
        return Interval((Limit(Fraction(0)),), (Limit(Fraction(1)),))
    poly, tags = state.normal(value[0]), value[1]
    if poly.is_const:
        return _outward(_point(Fraction(poly.constant)), e.dtype)
    low, high = exact_in(state, poly, e.dtype)
    lo: tuple[Limit, ...] = (Limit(poly, tags | low),) if low is not None else ()
    hi: tuple[Limit, ...] = (Limit(poly, tags | high),) if high is not None else ()
    if arg.dtype.bits <= 16:
        all_values = Interval((Limit(Fraction(arg.dtype.least)),), (Limit(Fraction(arg.dtype.greatest)),))
        wide = _outward(all_values, e.dtype)
        lo, hi = lo + wide.lo, hi + wide.hi
    return Interval(lo, hi)


def exact_in(state: State, poly: Poly, dtype: DType) -> tuple[Tags | None, Tags | None]:
    """Why rounding an integer to a float type does not lower it, and why it does not raise it.

    Integers up to 2 ** mantissa are exact. In f64 sizes and params are granted; in a narrower type a size that may be
    greater leaves a condition.
    """
    most = 1 << dtype.mantissa
    sizes = state.only_sizes(poly)
    if dtype.mantissa >= 53 and sizes:
        return NO_TAGS, NO_TAGS

    def within(room: Poly) -> Tags | None:
        why = proves_fast(state, room)
        return why if why is not None or not sizes else frozenset((state.restore(room),))

    return within(poly + most), within(most - poly)


def _numbers(box: Interval) -> Interval:
    return Interval(*(tuple(b for b in side if isinstance(b.value, Fraction)) for side in box))


def _outward(box: Interval, dtype: DType) -> Interval:
    """The bounds widened to what rounding in the type, or no rounding, may give."""

    def rounded(limit: Limit, sign: int) -> Iterable[Limit]:
        value = _rational(limit.value)
        try:
            near = to_number(constant(value, dtype), dtype)
        except ValueError:
            return ()
        if not isfinite(near):
            # infinite, on the side where that is no bound or on the one where the number itself is one
            return () if sign * near > 0 else (limit,)
        return (Limit(sign * max(sign * value, sign * Fraction(near)), limit.tags),)

    return Interval(
        tuple(r for b in _numbers(box).lo for r in rounded(b, -1)),
        tuple(r for b in _numbers(box).hi for r in rounded(b, 1)),
    )


def _best(side: tuple[Limit, ...], pick: Callable[..., Limit]) -> Limit | None:
    numbers = [b for b in side if isinstance(b.value, Fraction)]
    return pick(numbers, key=lambda b: b.value) if numbers else None


def _hull(a: Interval, b: Interval) -> Interval:
    """What holds of either."""
    low = [_best(a.lo, max), _best(b.lo, max)]
    high = [_best(a.hi, min), _best(b.hi, min)]
    lo = tuple(x for x in a.lo if x in b.lo)
    hi = tuple(x for x in a.hi if x in b.hi)
    if low[0] and low[1]:
        lo += (Limit(min(low[0].value, low[1].value, key=_rational), low[0].tags | low[1].tags),)
    if high[0] and high[1]:
        hi += (Limit(max(high[0].value, high[1].value, key=_rational), high[0].tags | high[1].tags),)
    return Interval(lo, hi)


def _rational(value: Poly | Fraction) -> Fraction:
    assert isinstance(value, Fraction)
    return value


# -- operations -------------------------------------------------------------------------------------------------------

Rule = Callable[[State, Op, list[Interval]], Interval]


def _minimum(state: State, e: Op, args: list[Interval]) -> Interval:
    a, b = args
    return Interval(_hull(a, b).lo, a.hi + b.hi)


def _maximum(state: State, e: Op, args: list[Interval]) -> Interval:
    a, b = args
    return Interval(a.lo + b.lo, _hull(a, b).hi)


def _clip(state: State, e: Op, args: list[Interval]) -> Interval:
    """`minimum(maximum(x, low), high)`: above `low` only where low <= high."""
    x, low, high = args
    lo: list[Limit] = []
    for bound in x.lo + low.lo:
        for top in high.lo:
            why = _ordered(state, bound, top)
            if why is not None:
                lo.append(Limit(bound.value, bound.tags | top.tags | why))
                break
    return Interval(tuple(lo), high.hi + _hull(x, low).hi)


def _ordered(state: State, a: Limit, b: Limit) -> Tags | None:
    """Why a <= b; a condition on sizes may be left."""
    if isinstance(a.value, Fraction) and isinstance(b.value, Fraction):
        return NO_TAGS if a.value <= b.value else None
    low = Poly.of(ceil(a.value)) if isinstance(a.value, Fraction) else a.value
    high = Poly.of(floor(b.value)) if isinstance(b.value, Fraction) else b.value
    return promised(state, high - low)


def promised(state: State, room: Poly) -> Tags | None:
    """Why a polynomial is >= 0, or that it has to be where it speaks of sizes alone."""
    why = proves_fast(state, room)
    if why is not None or not state.only_sizes(room) or room.is_const:
        return why
    return frozenset((state.restore(room),))


def _stepped(step: Callable[[Fraction], int]) -> Rule:
    def rule(state: State, e: Op, args: list[Interval]) -> Interval:
        def side(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
            return tuple(
                Limit(Fraction(step(b.value)) if isinstance(b.value, Fraction) else b.value, b.tags) for b in limits
            )

        return Interval(side(args[0].lo), side(args[0].hi))

    return rule


def _combined(combine: Callable[[Fraction, Fraction], Fraction]) -> Rule:
    """Interval arithmetic over numbers: the result is extreme at a corner."""

    def rule(state: State, e: Op, args: list[Interval]) -> Interval:
        sides = [(_best(a.lo, max), _best(a.hi, min)) for a in args]
        if any(lo is None or hi is None for lo, hi in sides):
            return Interval()
        tags = NO_TAGS.union(*(b.tags for pair in sides for b in pair if b is not None))
        (a, b), (c, d) = ([_rational(x.value) for x in pair if x is not None] for pair in sides)
        corners = [combine(x, y) for x in (a, b) for y in (c, d)]
        return _outward(Interval((Limit(min(corners), tags),), (Limit(max(corners), tags),)), e.dtype)

    return rule


def _negated(state: State, e: Op, args: list[Interval]) -> Interval:
    def flip(side: tuple[Limit, ...]) -> tuple[Limit, ...]:
        return tuple(Limit(-b.value, b.tags) for b in side)

    return Interval(flip(args[0].hi), flip(args[0].lo))


def _magnitude(state: State, e: Op, args: list[Interval]) -> Interval:
    low, high = _best(args[0].lo, max), _best(args[0].hi, min)
    if low is None or high is None:
        return Interval((Limit(Fraction(0)),), ())
    most = max(abs(_rational(low.value)), abs(_rational(high.value)))
    return Interval((Limit(Fraction(0)),), (Limit(most, low.tags | high.tags),))


_RULES: dict[str, Rule] = {
    "minimum": _minimum,
    "maximum": _maximum,
    "clip": _clip,
    "floor": _stepped(floor),
    "ceil": _stepped(ceil),
    "round": _stepped(round),
    "trunc": _stepped(int),
    "add": _combined(lambda a, b: a + b),
    "sub": _combined(lambda a, b: a - b),
    "mul": _combined(lambda a, b: a * b),
    "neg": _negated,
    "abs": _magnitude,
    "where": lambda state, e, args: _hull(args[1], args[2]),
}
