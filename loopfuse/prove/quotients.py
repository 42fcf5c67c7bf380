"""What a fact about floor quotients says of what they are quotients of: `(M + 1) // 2 >= 1` says `M + 1 >= 2`.

A search gathers the facts that share a monomial with its goal, and a goal about M shares none with a fact about
`(M + 1) // 2`. So what is told of quotients is told of their numerators too, once, where it is learned.
"""

from __future__ import annotations

from math import gcd

from loopfuse.prove.entail import positive, proves_fast
from loopfuse.prove.state import Fact, State
from loopfuse.sizes import Poly, Quot

_MOST = 8  # quotients that one fact is freed of, those inside each other included


def numerators(state: State, fact: Fact) -> list[Fact]:
    """The fact with one quotient after the other replaced by the bound that its numerator gives."""
    found: list[Fact] = []
    fact = state.normal_fact(fact)
    for _ in range(_MOST):
        freed = _freed(state, fact)
        if freed is None:
            break
        found.append(freed)
        fact = freed
    return found


def apart(state: State, fact: Fact) -> list[Fact]:
    """What `fact.poly != 0` says of quotients where the sign is known: a quotient of sizes is at least 1."""
    poly = state.normal(fact.poly)
    if not any(poly.quotients()):
        return []
    for side in (poly, -poly):
        why = proves_fast(state, side)
        if why is not None:
            return [Fact(side - 1, fact.tags | why)]
    return []


def _freed(state: State, fact: Fact) -> Fact | None:
    """The fact without one quotient: `den * q <= num` where it may be large, `den * q >= num - den + 1` else."""
    factor = gcd(*(c for m, c in fact.poly.terms if m))
    poly = Poly.collect((m, c // factor) for m, c in fact.poly.terms) if factor > 1 else fact.poly
    for monomial, times in poly.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Quot):
            continue
        quot = monomial[0]
        rest = poly - times * Poly.of(quot)
        if quot in rest.quotients() or not (quot.den.is_const or rest.is_const):
            continue
        why = positive(state, quot.den)
        if why is not None:
            bound = quot.num if times > 0 else quot.num - quot.den + 1
            return Fact(quot.den * rest + times * bound, fact.tags | why)
    return None
