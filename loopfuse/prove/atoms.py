"""What an opaque value is known to be by its expression: ranges of types, buffers, `minimum`, `&`, casts and so on."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import ceil, floor

from loopfuse.constants import to_number
from loopfuse.dtypes import DType
from loopfuse.ir import Expr, Load, Op, Ref, Select
from loopfuse.prove.conditions import formula
from loopfuse.prove.entail import positive, proves_fast
from loopfuse.prove.exprs import deeper, integer, looked_through
from loopfuse.prove.floats import Limit, interval, promised
from loopfuse.prove.state import NO_TAGS, Alternative, Bounds, Derived, Fact, Split, State, Tags
from loopfuse.sizes import ZERO, Poly

_DOUBLINGS = 63


def derive(state: State, name: str) -> Derived:
    """The facts of a named atom; empty for sizes and indices, whose facts are told."""
    facts: list[Fact] = []
    splits: list[Split] = []
    value = Poly.of(name)
    bounds = _ref_bounds(state, name)
    if bounds is not None:
        facts += between(value, bounds, NO_TAGS)
    opaque = state.ctx.opaque.get(name)
    if opaque is not None:
        e = opaque.expr
        rule: Rule | None = None
        if isinstance(e, Load):
            rule = _load
        elif isinstance(e, Select):
            rule = _select
        elif isinstance(e, Op):
            rule = _RULES.get(e.op)
        if rule is not None and not isinstance(e, Ref):
            found = rule(state, e, value)
            facts += found.facts
            splits += found.splits
        facts += _dtype_range(value, e.dtype)
    return Derived(tuple(facts), tuple(splits))


def between(value: Poly, bounds: Bounds, tags: Tags) -> list[Fact]:
    """The facts that a value lies between bounds, inclusive."""
    lo, hi = bounds
    return [*(Fact(value - b, tags) for b in lo), *(Fact(b - value, tags) for b in hi)]


def _ref_bounds(state: State, name: str) -> Bounds | None:
    if name in state.refs:
        return state.refs[name]
    origin, mapping = state.ctx.instances.get(name, (None, {}))
    if origin is None or origin not in state.refs:
        return None
    lo, hi = state.refs[origin]
    return tuple(b.subs(mapping) for b in lo), tuple(b.subs(mapping) for b in hi)


def _dtype_range(value: Poly, dtype: DType) -> list[Fact]:
    if not dtype.is_int or dtype.bits == 64:
        return [Fact(value)] if dtype.kind == "uint" else []
    return [Fact(value - dtype.least), Fact(dtype.greatest - value)]


Rule = Callable[[State, Expr, Poly], Derived]


def equal(a: Poly, b: Poly, tags: Tags = NO_TAGS) -> list[Fact]:
    """`a == b` as facts."""
    return [Fact(a - b, tags), Fact(b - a, tags)]


# -- reads ------------------------------------------------------------------------------------------------------------


def _load(state: State, e: Expr, value: Poly) -> Derived:
    assert isinstance(e, Load)
    facts: list[Fact] = []
    kinds = {mode.kind for mode in e.modes if mode is not None}
    if e.buffer in state.ranges:
        tags: Tags = frozenset((e.buffer,))
        lo, hi = state.ranges[e.buffer]
        outside = [0] if "checked" in kinds else []
        outside += [int(to_number(m.fill.bits, m.fill.dtype)) for m in e.modes if m and m.fill]
        if "constant" not in kinds or any(m and m.fill for m in e.modes):
            # what is read outside need not keep the buffer's range
            facts += [Fact(value - b, tags) for b in lo if _all_nonneg(state, [Poly.of(v) - b for v in outside])]
            facts += [Fact(b - value, tags) for b in hi if _all_nonneg(state, [b - v for v in outside])]
    inside = looked_through(state, e)
    if inside is not None and inside.dtype.is_int:
        with deeper(state):
            found = integer(state, inside)
        if found is not None and found[0] != value:
            facts += equal(value, found[0], found[1])
    return Derived(tuple(facts))


def _all_nonneg(state: State, polys: list[Poly]) -> bool:
    return all(proves_fast(state, p) is not None for p in polys)


# -- choices ----------------------------------------------------------------------------------------------------------


def _chosen(state: State, value: Poly, cond: Expr, arms: tuple[Expr, Expr]) -> Derived:
    split: list[Alternative] = []
    for truth, arm in zip((True, False), arms, strict=True):
        found = integer(state, arm)
        if found is None:
            return Derived()
        said = formula(state, cond, truth).alternative()
        split.append((*said, *equal(value, *found)))
    return Derived((), (tuple(split),))


def _select(state: State, e: Expr, value: Poly) -> Derived:
    assert isinstance(e, Select)
    return _chosen(state, value, e.cond, (e.then, e.other))


def _where(state: State, e: Expr, value: Poly) -> Derived:
    cond, then, other = _args(e)
    return _chosen(state, value, cond, (then, other))


def _args(e: Expr) -> tuple[Expr, ...]:
    assert isinstance(e, Op)
    return e.args


def _integers(state: State, e: Expr) -> tuple[list[Poly], Tags]:
    polys, tags = [], NO_TAGS
    for arg in _args(e):
        found = integer(state, arg)
        assert found is not None
        polys.append(found[0])
        tags |= found[1]
    return polys, tags


def _extremum(sign: int) -> Rule:
    """`minimum` (sign 1) and `maximum` (sign -1)."""

    def rule(state: State, e: Expr, value: Poly) -> Derived:
        (a, b), tags = _integers(state, e)
        facts = (Fact(sign * (a - value), tags), Fact(sign * (b - value), tags))
        return Derived(facts, (((Fact(sign * (value - a), tags),), (Fact(sign * (value - b), tags),)),))

    return rule


def _clip(state: State, e: Expr, value: Poly) -> Derived:
    """`minimum(maximum(x, low), high)`."""
    (x, low, high), tags = _integers(state, e)
    facts = [Fact(high - value, tags)]
    ordered = promised(state, high - low)
    if ordered is not None:
        facts.append(Fact(value - low, tags | ordered))
    cases = (
        tuple(equal(value, high, tags)),
        (*equal(value, x, tags), Fact(x - low, tags), Fact(high - x, tags)),
        (*equal(value, low, tags), Fact(low - x, tags), Fact(high - low, tags)),
    )
    return Derived(tuple(facts), (cases,))


def _abs(state: State, e: Expr, value: Poly) -> Derived:
    (x,), tags = _integers(state, e)
    fits = proves_fast(state, x - e.dtype.least - 1)
    if fits is None:
        if state.depends_on_data(state.normal(x)) or e.dtype.bits < 32:
            return Derived()
        fits = NO_TAGS  # the magnitude of an index does not wrap
    tags |= fits
    facts = (Fact(value, tags), Fact(value - x, tags), Fact(value + x, tags))
    return Derived(facts, (((Fact(x - value, tags),), (Fact(-x - value, tags),)),))


# -- bits -------------------------------------------------------------------------------------------------------------


def _nonneg_each(state: State, polys: list[Poly]) -> list[Tags | None]:
    return [proves_fast(state, p) for p in polys]


def _least_power(state: State, polys: list[Poly]) -> tuple[int, Tags] | None:
    """The least k with every value below 2**k, and why; the values are non-negative."""
    most, tags = 0, NO_TAGS
    for poly in polys:
        found = _least_of(_DOUBLINGS, partial(_below, state, poly))
        if found is None:
            return None
        most, tags = max(most, found[0]), tags | found[1]
    return most, tags


def _below(state: State, poly: Poly, k: int) -> Tags | None:
    return proves_fast(state, (1 << k) - 1 - poly)


def _least_of(most: int, proof: Callable[[int], Tags | None]) -> tuple[int, Tags] | None:
    """The least number up to `most` that has a proof, where greater ones have one too."""
    why = proof(most)
    if why is None:
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        found = proof(middle)
        if found is None:
            low = middle + 1
        else:
            high, why = middle, found
    return high, why


def _bits(state: State, e: Expr, value: Poly) -> Derived:
    """`&`, `|` and `^` of non-negative values stay below the power of two that bounds them."""
    if not e.dtype.is_int:
        return Derived()
    polys, tags = _integers(state, e)
    signs = _nonneg_each(state, polys)
    op = e.op if isinstance(e, Op) else ""
    facts: list[Fact] = []
    if op == "bitand":
        for poly, why in zip(polys, signs, strict=True):
            if why is not None:
                facts += [Fact(value, tags | why), Fact(poly - value, tags | why)]
        return Derived(tuple(facts))
    if signs[0] is None or signs[1] is None:
        return Derived()
    tags |= signs[0] | signs[1]
    facts += [Fact(value, tags), Fact(polys[0] + polys[1] - value, tags)]
    if op == "bitor":
        facts += [Fact(value - p, tags) for p in polys]
    below = _least_power(state, polys)
    if below is not None:
        facts.append(Fact((1 << below[0]) - 1 - value, tags | below[1]))
    return Derived(tuple(facts))


def _shl(state: State, e: Expr, value: Poly) -> Derived:
    """A left shift whose greatest value fits the type."""
    (x, count), tags = _integers(state, e)
    signs = _nonneg_each(state, [x])
    if signs[0] is None:
        return Derived()
    size, steps = _least_power(state, [x]), _least_of(e.dtype.bits - 1, lambda k: proves_fast(state, k - count))
    if size is None or steps is None:
        return Derived()
    top = ((1 << size[0]) - 1) << steps[0]
    if top > e.dtype.greatest:
        return Derived()
    tags |= signs[0] | size[1] | steps[1]
    return Derived((Fact(value, tags), Fact(top - value, tags)))


def _shr(state: State, e: Expr, value: Poly) -> Derived:
    (x, _), tags = _integers(state, e)
    why = proves_fast(state, x)
    return Derived((Fact(value, tags | why), Fact(x - value, tags | why))) if why is not None else Derived()


# -- division ---------------------------------------------------------------------------------------------------------


def _division(state: State, e: Expr, value: Poly) -> Derived:
    """`//` and `%` by what may be zero (then zero)."""
    (num, den), tags = _integers(state, e)
    why = proves_fast(state, den)
    if why is None:
        return Derived()
    tags |= why
    exact = num // den if isinstance(e, Op) and e.op == "floordiv" else num % den
    zero = (*equal(den, ZERO, tags), *equal(value, ZERO, tags))
    facts = [Fact(value, tags), Fact(den - value, tags)] if isinstance(e, Op) and e.op == "mod" else []
    sign = proves_fast(state, num)
    if sign is not None:
        facts += [Fact(value, tags | sign), Fact(num - value, tags | sign)]
    if positive(state, state.normal(den)) is None:
        # without its sign the quotient has no facts: the alternative would say nothing
        return Derived(tuple(facts))
    return Derived(tuple(facts), ((zero, (Fact(den - 1, tags), *equal(value, exact, tags))),))


# -- conversions ------------------------------------------------------------------------------------------------------


def _cast(state: State, e: Expr, value: Poly) -> Derived:
    (arg,) = _args(e)
    if not e.dtype.is_int or arg.dtype.is_int:
        return Derived()
    if not arg.dtype.is_float:
        cases = [(*formula(state, arg, t).alternative(), *equal(value, Poly.of(int(t)))) for t in (True, False)]
        return Derived((Fact(value), Fact(1 - value)), (tuple(cases),))
    box = interval(state, arg)
    facts: list[Fact] = []
    for limit in box.lo:
        facts += _least(state, value, limit)
    for limit in box.hi:
        facts += _greatest(state, value, limit)
    return Derived(tuple(facts))


def _least(state: State, value: Poly, limit: Limit) -> list[Fact]:
    """The cast truncates, and gives 0 for a NaN: a bound above zero does not hold of it."""
    if isinstance(limit.value, Fraction):
        return [Fact(value - min(ceil(limit.value), 0), limit.tags)]
    why = promised(state, -limit.value)
    return [Fact(value - limit.value, limit.tags | why)] if why is not None else []


def _greatest(state: State, value: Poly, limit: Limit) -> list[Fact]:
    if isinstance(limit.value, Fraction):
        return [Fact(max(floor(limit.value), 0) - value, limit.tags)]
    why = promised(state, limit.value)
    return [Fact(limit.value - value, limit.tags | why)] if why is not None else []


def _sign(state: State, e: Expr, value: Poly) -> Derived:
    return Derived((Fact(value + 1), Fact(1 - value)))


def _popcount(state: State, e: Expr, value: Poly) -> Derived:
    return Derived((Fact(value), Fact(e.dtype.bits - value)))


_RULES: dict[str, Rule] = {
    "minimum": _extremum(1),
    "maximum": _extremum(-1),
    "clip": _clip,
    "abs": _abs,
    "bitand": _bits,
    "bitor": _bits,
    "bitxor": _bits,
    "shl": _shl,
    "shr": _shr,
    "floordiv": _division,
    "mod": _division,
    "cast": _cast,
    "sign": _sign,
    "popcount": _popcount,
    "where": _where,
}
