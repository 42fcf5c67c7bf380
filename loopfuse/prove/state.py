"""The data of the prover: facts in normal form, declarations, and what relatives share.

Nothing here proves anything. A fact is a polynomial that is >= 0, with tags that say on what it rests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from loopfuse.ir import Expr
from loopfuse.prove.linear import CONSTANT, Monomial, Row
from loopfuse.sizes import ZERO, Atom, Poly

# What a fact rests on beside the language's rules: a buffer's value range, or a condition on sizes (a polynomial that
# must be >= 0) that nobody has promised.
Tag = str | Poly
Tags = frozenset[Tag]
NO_TAGS: Tags = frozenset()
Bounds = tuple[tuple[Poly, ...], tuple[Poly, ...]]


class Fact(NamedTuple):
    """`poly >= 0`."""

    poly: Poly
    tags: Tags = NO_TAGS


Alternative = tuple[Fact, ...]
Split = tuple[Alternative, ...]


class Derived(NamedTuple):
    """What holds of an atom by what it is: facts, and splits of which one alternative holds."""

    facts: tuple[Fact, ...] = ()
    splits: tuple[Split, ...] = ()


class Loop(NamedTuple):
    """The bounds of an index; `sharp` if its least and its last value are attained at the bounds."""

    lo: tuple[Poly, ...]
    hi: tuple[Poly, ...]
    sharp: bool


class Fresh(NamedTuple):
    """A name made for an exact quotient: `num == den * name + rest`."""

    num: Poly
    den: Poly
    rest: Poly

    @property
    def names(self) -> frozenset[str]:
        """The names that it is made of."""
        return self.num.names | self.den.names | self.rest.names


class Opaque(NamedTuple):
    """What an atom made for an expression stands for; `data` if it depends on values that are read."""

    expr: Expr
    names: frozenset[str]
    data: bool


@dataclass
class Context:
    """Shared by all relatives of one empty set of facts: atom numbers, rows, names of opaque expressions, counters."""

    derive: Callable[[State, str], Derived]
    atoms: dict[Atom, int] = field(default_factory=dict)
    by_number: list[Atom] = field(default_factory=list)
    rows: dict[Poly, Row] = field(default_factory=dict)
    opaque: dict[str, Opaque] = field(default_factory=dict)
    keys: dict[Any, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    rested: set[str] = field(default_factory=set)
    fuel: int | None = None
    depth: int = 0
    instances: dict[str, tuple[str, dict[str, Poly]]] = field(default_factory=dict)

    def number(self, atom: Atom) -> int:
        """The atom's number."""
        found = self.atoms.get(atom)
        if found is None:
            found = self.atoms[atom] = len(self.by_number)
            self.by_number.append(atom)
        return found

    def row(self, poly: Poly) -> Row:
        """The polynomial as a row."""
        found = self.rows.get(poly)
        if found is None:
            terms = {tuple(sorted(map(self.number, m))): c for m, c in poly.terms}
            constant = terms.pop(CONSTANT, 0)
            found = self.rows[poly] = Row(terms, constant)
        return found

    def free_names(self, poly: Poly) -> frozenset[str]:
        """The names in a polynomial, those inside opaque atoms too."""
        names = poly.names
        for name in poly.names:
            if name in self.opaque:
                names |= self.opaque[name].names
        return names


@dataclass(frozen=True)
class State:
    """Facts and declarations. All polynomials in `facts`, `unequal`, `splits` and `subst` are normal under `subst`."""

    ctx: Context
    sizes: frozenset[str] = frozenset()
    loops: dict[str, Loop] = field(default_factory=dict)
    subst: dict[str, Poly] = field(default_factory=dict)
    fresh: dict[str, Fresh] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    unequal: tuple[Fact, ...] = ()
    splits: tuple[Split, ...] = ()
    defs: dict[str, tuple[tuple[str, ...], Expr]] = field(default_factory=dict)
    lets: dict[str, Expr] = field(default_factory=dict)
    ranges: dict[str, Bounds] = field(default_factory=dict)
    refs: dict[str, Bounds] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def derive(self, **changes: Any) -> State:
        """A copy with changes, and nothing remembered."""
        return replace(self, memo={}, **changes)

    def normal(self, poly: Poly) -> Poly:
        """The polynomial under the known equalities."""
        return poly.subs(self.subst) if self.subst else poly

    def normal_fact(self, fact: Fact) -> Fact:
        """The fact under the known equalities."""
        poly = self.normal(fact.poly)
        return fact if poly is fact.poly else Fact(poly, fact.tags)

    def with_facts(self, facts: Iterable[Fact]) -> State:
        """More facts, normalised; known ones are left out."""
        known = set(self.facts)
        new = []
        for fact in map(self.normal_fact, facts):
            if fact not in known and not (fact.poly.is_const and fact.poly.constant >= 0):
                known.add(fact)
                new.append(fact)
        return self.derive(facts=(*self.facts, *new)) if new else self

    def with_equality(self, name: str, value: Poly) -> State:
        """`name == value` as a substitution; `value` is normal and free of `name`."""
        one = {name: value}
        step = self.derive(subst={**{n: p.subs(one) for n, p in self.subst.items()}, name: value})
        return step.derive(
            facts=tuple(f for f in map(step.normal_fact, self.facts) if not (f.poly.is_const and f.poly.constant >= 0)),
            unequal=tuple(map(step.normal_fact, self.unequal)),
            splits=tuple(tuple(tuple(map(step.normal_fact, a)) for a in s) for s in self.splits),
        )

    def index(self) -> dict[Monomial, list[Fact]]:
        """The facts by the monomials that occur in them."""
        found: dict[Monomial, list[Fact]] | None = self.memo.get("index")
        if found is None:
            found = {}
            for fact in self.facts:
                for monomial in self.ctx.row(fact.poly).terms:
                    found.setdefault(monomial, []).append(fact)
            self.memo["index"] = found
        return found

    def dependents(self, names: set[str] | frozenset[str]) -> frozenset[str]:
        """The names, and those that known equalities define by them."""
        found = set(names)
        while True:
            more = {n for n, p in self.subst.items() if n not in found and found & self.ctx.free_names(p)}
            if not more:
                return frozenset(found)
            found |= more

    # -- kinds of names -----------------------------------------------------------------------------------------------

    def is_size(self, name: str) -> bool:
        """A size, an integer param, or a quotient of such."""
        if name in self.sizes:
            return True
        fresh = self.fresh.get(name)
        return fresh is not None and all(map(self.is_size, fresh.names))

    def only_sizes(self, poly: Poly) -> bool:
        """Whether the polynomial mentions sizes and params alone."""
        return all(map(self.is_size, poly.names))

    def depends_on_data(self, poly: Poly) -> bool:
        """Whether a value that is read occurs, or a name that nobody declared."""
        return any(map(self._is_data, self.ctx.free_names(poly)))

    def _is_data(self, name: str) -> bool:
        opaque = self.ctx.opaque.get(name)
        if opaque is not None:
            return opaque.data
        if name in self.fresh:
            return any(map(self._is_data, self.fresh[name].names))
        return not (name in self.loops or name in self.sizes)

    def restore(self, poly: Poly) -> Poly:
        """The polynomial without the names made for exact quotients."""
        for name, (num, den, rest) in reversed(self.fresh.items()):
            if name not in poly.names:
                continue
            total = ZERO
            for monomial, coefficient in poly.terms:
                quotient, left = Poly(((monomial, coefficient),)).split(den * Poly.of(name))
                total = total + quotient * (num - rest) + left
            poly = total.subs({name: (num - rest) // den})
        return poly
