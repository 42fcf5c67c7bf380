"""Equalities as substitutions: `C == g * K`, and `X % d == 0` as `X = d * X'` with a fresh X'."""

from __future__ import annotations

from loopfuse.prove.entail import derived, positive, proves_fast
from loopfuse.prove.state import NO_TAGS, Fact, Fresh, State
from loopfuse.sizes import Poly, Quot


def with_zero(state: State, fact: Fact) -> State:
    """The state where `fact.poly == 0` holds: a substitution where it can be solved for a name, else two facts."""
    poly = state.normal(fact.poly)
    if poly.is_const:
        return state if poly.constant == 0 else state.with_facts([Fact(Poly.of(-1), fact.tags)])
    if not fact.tags:
        solved = _solve(state, poly) or _exact_quotient(state, poly)
        if solved is not None:
            return solved
    return state.with_facts([Fact(poly, fact.tags), Fact(-poly, fact.tags)])


def _solve(state: State, poly: Poly) -> State | None:
    """Eliminate a name that occurs once, with factor one: a value before an index, an index before a size."""
    choices = []
    for monomial, coefficient in poly.terms:
        if len(monomial) == 1 and isinstance(monomial[0], str) and abs(coefficient) == 1:
            name = monomial[0]
            rest = poly - coefficient * Poly.of(name)
            if name not in state.ctx.free_names(rest):
                choices.append((_rank(state, name), name, -coefficient * rest))
    for _, name, value in sorted(choices, key=lambda c: c[:2], reverse=True):
        if state.is_size(name) and not state.only_sizes(value):
            continue
        if name in state.loops and state.depends_on_data(value):
            continue
        return _with_value(state, name, value)
    return None


def _rank(state: State, name: str) -> int:
    """Which name to eliminate: the greatest first."""
    if state.is_size(name):
        return 0
    order = list(state.loops)
    return 1 + (order.index(name) if name in state.loops else len(order))


def _with_value(state: State, name: str, value: Poly) -> State:
    """Substitute, keeping what the name was known to be by its kind."""
    kept = [f for f in derived(state, name).facts if not any(isinstance(t, Poly) for t in f.tags)]
    return state.with_facts(kept).with_equality(name, value)


def _exact_quotient(state: State, poly: Poly) -> State | None:
    """`num == den * q + rest` for a quotient q = num // den that occurs: q becomes a fresh name."""
    for quot in {a for a in poly.atoms() if isinstance(a, Quot)}:
        if any(m.count(quot) > 1 for m, _ in poly.terms):
            continue
        factor = Poly.collect((tuple(a for a in m if a != quot), c) for m, c in poly.terms if quot in m)
        sign = 1 if factor == -quot.den else -1 if factor == quot.den else 0
        if not sign or quot in set(factor.atoms()):
            continue
        # sign * poly == num - den * q - rest == 0
        rest = quot.num - sign * (poly - factor * Poly.of(quot))
        if any(a == quot for a in rest.quotients()):
            continue
        found = with_quotient(state, quot, rest)
        if found is not None:
            return found
    return None


def with_quotient(state: State, quot: Quot, rest: Poly) -> State | None:
    """`num == den * q + rest` with a fresh q, solved for a name of `num`."""
    num, den = quot.num, quot.den
    name = f"{quot} exact"
    while name in state.fresh or name in state.ctx.opaque:
        name += "'"
    value = den * Poly.of(name) + rest
    base = state.derive(fresh={**state.fresh, name: Fresh(num, den, rest)})
    facts = []
    why = positive(state, den)
    if why is not None and not why:
        facts += [Fact(rest), Fact(den - 1 - rest)]
        if proves_fast(state, num) == NO_TAGS:
            facts.append(Fact(Poly.of(name)))
            if not rest.terms and proves_fast(state, num - 1) == NO_TAGS:
                facts.append(Fact(Poly.of(name) - 1))
    solved = _solve(base, num - value)
    return solved.with_facts(facts) if solved is not None else None
