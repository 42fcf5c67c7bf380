"""Elimination: the least and the greatest value of a polynomial, in terms of chosen names.

A polynomial that rises with a variable is bounded by putting the variable's own bound in its place, through floor
quotients too. Bounds are sound for all values that satisfy the facts; where the bounds of the variables are attained,
they are sharp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loopfuse.prove.entail import derived, positive, proves_fast
from loopfuse.prove.state import NO_TAGS, Fact, State, Tags
from loopfuse.sizes import Poly, Quot

Bound = tuple[Poly, Tags]
_MOST = 4
_STEPS = 48


def extremes(state: State, poly: Poly, keep: Callable[[str], bool], upper: bool) -> list[Bound]:
    """Inclusive bounds of a polynomial, from above or from below, over the kept names; the first are the plainest."""
    return _Elimination(state, keep).run(state.normal(poly), upper, frozenset())


class _Elimination:
    """One question, with a limit on its steps."""

    def __init__(self, state: State, keep: Callable[[str], bool]) -> None:
        self.state, self.keep, self.steps = state, keep, _STEPS

    def run(self, poly: Poly, upper: bool, gone: frozenset[str]) -> list[Bound]:
        """Bounds of the polynomial that mention kept names only."""
        foreign = [n for n in poly.names if not self.keep(n)]
        if not foreign:
            return [(poly, NO_TAGS)]
        self.steps -= 1
        if self.steps < 0 or any(n in gone for n in foreign):
            return []
        found: list[Bound] = []
        for value, tags in self.candidates(poly, self.innermost(foreign), upper):
            for bound, more in self.run(value, upper, gone | {self.innermost(foreign)}):
                if all(bound != known for known, _ in found):
                    found.append((bound, tags | more))
            if len(found) >= _MOST:
                break
        return found[:_MOST]

    def innermost(self, names: list[str]) -> str:
        """The name to eliminate first: values before indices, inner indices before outer ones."""
        order = {n: k for k, n in enumerate(self.state.loops)}
        return max(names, key=lambda n: (order.get(n, len(order)), n))

    def candidates(self, poly: Poly, name: str, upper: bool) -> Iterator[Bound]:
        """The polynomial with a bound in place of the name."""
        way = direction(self.state, poly, name)
        if way is None:
            yield from self.quotients(poly, name, upper)
            return
        rises, why = way
        for bound, tags in limits(self.state, name, upper == rises):
            yield settled(self.state, poly.subs({name: bound})), tags | why

    def quotients(self, poly: Poly, name: str, upper: bool) -> Iterator[Bound]:
        """The polynomial with a bound in place of a quotient that holds the name, where it is not monotone in it."""
        for quot in {a for a in poly.atoms() if isinstance(a, Quot) and name in a.num.names}:
            factor = _factor(poly, quot)
            if factor is None or any(not self.keep(n) for n in quot.den.names):
                continue
            sign, why = _sign(self.state, factor), positive(self.state, quot.den)
            if sign is None or why is None:
                continue
            for bound, tags in self.run(quot.num, upper == sign[0], frozenset()):
                rest = poly - factor * Poly.of(quot)
                yield rest + factor * settled(self.state, bound // quot.den), tags | why | sign[1]


def settled(state: State, poly: Poly) -> Poly:
    """The polynomial in normal form, with quotients of small numbers replaced by 0 and -1."""
    poly = state.normal(poly)
    for quot in set(poly.atoms()):
        if isinstance(quot, Quot) and quot.num.is_const:
            size = quot.num.constant
            room = quot.den - 1 - size if size >= 0 else quot.den + size
            factor = _factor(poly, quot)
            if factor is not None and positive(state, quot.den) is not None and proves_fast(state, room) is not None:
                poly = poly - factor * Poly.of(quot) - (factor if size < 0 else 0)
    return poly


def direction(state: State, poly: Poly, name: str) -> tuple[bool, Tags] | None:
    """Whether the polynomial rises (or falls) with the name, or None where that is not known."""
    parts: list[tuple[bool, Tags]] = []
    atoms = {a for a in poly.atoms() if a == name or (isinstance(a, Quot) and name in Poly.of(a).names)}
    for atom in atoms:
        factor = _factor(poly, atom)
        if factor is None or name in factor.names:
            return None
        sign = _sign(state, factor)
        if sign is None:
            return None
        rises, why = sign
        if isinstance(atom, Quot):
            inner, den = direction(state, atom.num, name), positive(state, atom.den)
            if inner is None or den is None or name in atom.den.names:
                return None
            rises, why = rises == inner[0], why | inner[1] | den
        parts.append((rises, why))
    if not parts or any(rises != parts[0][0] for rises, _ in parts):
        return None
    return parts[0][0], NO_TAGS.union(*(why for _, why in parts))


def _factor(poly: Poly, atom: str | Quot) -> Poly | None:
    """The factor of an atom that occurs at most once in a monomial."""
    if any(m.count(atom) > 1 for m, _ in poly.terms):
        return None
    return Poly.collect((tuple(a for a in m if a != atom), c) for m, c in poly.terms if atom in m)


def _sign(state: State, poly: Poly) -> tuple[bool, Tags] | None:
    """(True, why) for a polynomial that is never negative, (False, why) for one that is never positive."""
    for sign, value in ((True, poly), (False, -poly)):
        why = proves_fast(state, value)
        if why is not None:
            return sign, why
    return None


def limits(state: State, name: str, upper: bool) -> list[Bound]:
    """Bounds of a single name: its loop's, what its expression says, and what is assumed."""
    found: list[Bound] = []

    def add(bound: Poly, tags: Tags) -> None:
        bound = state.normal(bound)
        if name not in bound.names and all(bound != known for known, _ in found):
            found.append((bound, tags))

    if name in state.loops:
        loop = state.loops[name]
        for bound in loop.hi if upper else loop.lo:
            add(bound - 1 if upper else bound, NO_TAGS)
    for fact in (*derived(state, name).facts, *state.index().get((state.ctx.number(name),), ())):
        solved = _solved(fact, name, upper)
        if solved is not None and not any(isinstance(t, Poly) for t in fact.tags):
            add(solved, fact.tags)
    return found


def _solved(fact: Fact, name: str, upper: bool) -> Poly | None:
    """The bound that a fact `a * name + rest >= 0` gives."""
    factor = dict(fact.poly.terms).get((name,), 0)
    if not factor or (factor < 0) != upper:
        return None
    rest = fact.poly - factor * Poly.of(name)
    if name in rest.names:
        return None
    return rest // -factor if upper else -(rest // factor)
