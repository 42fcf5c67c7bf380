"""Symbolic integers: polynomials with integer coefficients over sizes and loop indices.

A `Poly` is what the compiler knows of an extent, a loop bound or a subscript. Its atoms are names (sizes, integer
params, loop indices, integer lets) and floor quotients `Quot`. Two polynomials that print alike are equal and hash
alike, so a `Poly` is its own normal form: multiples of a divisor are pulled out of a quotient (`(2*i + 4) // 2` is
`i + 2`), and `a % b` is written `a - b * (a // b)`.

A divisor is taken to be non-zero: the front end turns every symbolic divisor into a requirement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class Quot:
    """The atom `num // den`, rounded toward minus infinity; `num` holds no multiple of `den`."""

    num: Poly
    den: Poly

    def __str__(self) -> str:
        num, den = (str(p) if p.is_atom else f"({p})" for p in (self.num, self.den))
        return f"{num} // {den}"


Atom = str | Quot
Monomial = tuple[Atom, ...]


def _key(atom: Atom) -> tuple[int, str]:
    return (0, atom) if isinstance(atom, str) else (1, str(atom))


def _order(monomial: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    return (-len(monomial), tuple(_key(a) for a in monomial))


@dataclass(frozen=True)
class Poly:
    """A polynomial: `terms` maps each monomial (atoms sorted, powers repeated) to a non-zero coefficient."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(value: int | str | Atom | Poly) -> Poly:
        """The polynomial of an int, a name, a quotient, or a polynomial itself."""
        if isinstance(value, Poly):
            return value
        if isinstance(value, int):
            return Poly((((), int(value)),)) if value else ZERO
        return Poly((((value,), 1),))

    @staticmethod
    def collect(terms: Iterable[tuple[Monomial, int]]) -> Poly:
        """The sum of the terms, in normal form."""
        table: dict[Monomial, int] = {}
        for monomial, coefficient in terms:
            table[monomial] = table.get(monomial, 0) + coefficient
        kept = [(m, c) for m, c in table.items() if c]
        if len(kept) > 1:
            kept.sort(key=lambda term: _order(term[0]))
        return Poly(tuple(kept))

    def __hash__(self) -> int:
        try:
            found: int = self.__dict__["hash"]
        except KeyError:
            found = self.__dict__["hash"] = hash(self.terms)
        return found

    # -- arithmetic ---------------------------------------------------------------------------------------------

    def __add__(self, other: Poly | int) -> Poly:
        right = Poly.of(other).terms
        if not right:
            return self
        if len(right) == 1 and not right[0][0]:
            return self._plus(right[0][1])
        return Poly.collect((*self.terms, *right)) if self.terms else Poly(right)

    def _plus(self, number: int) -> Poly:
        """The sum with a number that is not zero; the constant term is the last."""
        if not self.terms or self.terms[-1][0]:
            return Poly((*self.terms, ((), number)))
        number += self.terms[-1][1]
        return Poly((*self.terms[:-1], ((), number)) if number else self.terms[:-1])

    def __radd__(self, other: int) -> Poly:
        return self + other

    def __neg__(self) -> Poly:
        return Poly(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Poly | int) -> Poly:
        if isinstance(other, int):
            return self + -other
        right = other.terms
        if self.terms == right:
            return ZERO
        if not right:
            return self
        if len(right) == 1 and not right[0][0]:
            return self._plus(-right[0][1])
        return Poly.collect([*self.terms, *[(m, -c) for m, c in right]])

    def __rsub__(self, other: int) -> Poly:
        return -self + other

    def __mul__(self, other: Poly | int) -> Poly:
        right = Poly.of(other)
        if not self.terms or not right.terms:
            return ZERO
        for one, two in ((self, right), (right, self)):
            if len(two.terms) == 1 and not two.terms[0][0]:
                factor = two.terms[0][1]
                return one if factor == 1 else Poly(tuple((m, c * factor) for m, c in one.terms))
        return Poly.collect((tuple(sorted((*m, *n), key=_key)), c * d) for m, c in self.terms for n, d in right.terms)

    def __rmul__(self, other: int) -> Poly:
        return self * other

    def __floordiv__(self, other: Poly | int) -> Poly:
        """Floor division in normal form; a constant zero divisor gives zero, as the language says."""
        den = Poly.of(other)
        if den.is_const:
            return self._divide_by_const(den.constant)
        whole, rest = self.split(den)
        if not rest.terms:
            return whole
        return whole + Poly.of(Quot(rest, den))

    def _divide_by_const(self, den: int) -> Poly:
        if den == 0:
            return ZERO
        whole = Poly.collect((m, c // den) for m, c in self.terms)
        rest = Poly.collect((m, c - den * (c // den)) for m, c in self.terms)
        if rest.is_const:
            return whole + rest.constant // den
        return whole + Poly.of(Quot(rest, Poly.of(den)))

    def split(self, den: Poly) -> tuple[Poly, Poly]:
        """`(q, r)` with `self == q * den + r`, where q takes the terms that the leading monomial of `den` divides."""
        lead, factor = den.terms[0]
        whole, rest, done = ZERO, self, False
        for _ in range(64):
            done = True
            for monomial, coefficient in rest.terms:
                quotient = _divide_monomial(monomial, lead)
                if quotient is not None and coefficient % factor == 0:
                    step = Poly(((quotient, coefficient // factor),))
                    whole, rest, done = whole + step, rest - step * den, False
                    break
            if done:
                break
        return whole, rest

    def __mod__(self, other: Poly | int) -> Poly:
        """The floor remainder; zero for a constant zero divisor."""
        den = Poly.of(other)
        if den.is_const and den.constant == 0:
            return ZERO
        return self - den * (self // den)

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def is_const(self) -> bool:
        """Whether no atom occurs."""
        return not self.terms or self.terms == ((((), self.terms[0][1])),)

    @property
    def constant(self) -> int:
        """The constant term."""
        for monomial, coefficient in self.terms:
            if not monomial:
                return coefficient
        return 0

    @property
    def is_atom(self) -> bool:
        """Whether the polynomial prints as one token: a name or a non-negative number."""
        if self.is_const:
            return self.constant >= 0
        return len(self.terms) == 1 and self.terms[0][1] == 1 and self.name is not None

    @property
    def name(self) -> str | None:
        """The name, when the polynomial is a single name."""
        if len(self.terms) == 1:
            monomial, coefficient = self.terms[0]
            if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str):
                return monomial[0]
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that occur, inside quotients too."""
        found: set[str] = set()
        for atom in self.atoms():
            if isinstance(atom, str):
                found.add(atom)
            else:
                found |= atom.num.names | atom.den.names
        return frozenset(found)

    def atoms(self) -> Iterator[Atom]:
        """The atoms, with repetitions; names inside quotients are not listed."""
        for monomial, _ in self.terms:
            yield from monomial

    def quotients(self) -> Iterator[Quot]:
        """All quotients, those inside other quotients too."""
        for atom in self.atoms():
            if isinstance(atom, Quot):
                yield from atom.num.quotients()
                yield from atom.den.quotients()
                yield atom

    def coefficient(self, name: str) -> Poly:
        """The factor of `name`, a polynomial in the other atoms; `name` must occur at most once in a monomial."""
        return Poly.collect((tuple(a for a in m if a != name), c) for m, c in self.terms if name in m)

    def degree(self, name: str) -> int:
        """The highest power of `name` outside quotients."""
        return max((m.count(name) for m, _ in self.terms), default=0)

    # -- substitution and value ---------------------------------------------------------------------------------

    def subs(self, values: Mapping[str, Poly | int]) -> Poly:
        """Replace names by polynomials, inside quotients too."""
        if not self.names & values.keys():
            return self
        found: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms:
            if len(monomial) <= 1 and (not monomial or type(monomial[0]) is str):
                new = values.get(monomial[0]) if monomial else None  # type: ignore[arg-type]
                if new is None:
                    found.append((monomial, coefficient))
                else:
                    found += [(m, c * coefficient) for m, c in Poly.of(new).terms]
                continue
            product = ONE
            for atom in monomial:
                if isinstance(atom, str):
                    product = product * Poly.of(values.get(atom, atom))
                else:
                    product = product * (atom.num.subs(values) // atom.den.subs(values))
            found += [(m, c * coefficient) for m, c in product.terms]
        return Poly.collect(found)

    def value(self, env: Mapping[str, Any], divide: Callable[[Any, Any], Any] | None = None) -> Any:
        """The number under `env`, whose values are ints or integer arrays; `divide` is floor division for arrays."""
        total: Any = 0
        for monomial, coefficient in self.terms:
            product: Any = coefficient
            for atom in monomial:
                if isinstance(atom, str):
                    product = product * env[atom]
                else:
                    num, den = atom.num.value(env, divide), atom.den.value(env, divide)
                    product = product * (divide or _floor)(num, den)
            total = total + product
        return total

    # -- text -----------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """As the language writes it: `4*U + u`, `(H - R + 1) // P - 1`, `(i + 1) % K`."""
        rest, remainders = self._remainders()
        parts: list[str] = []
        for monomial, coefficient in rest.terms:
            alone = len(monomial) == 1 and coefficient in (1, -1) and (coefficient > 0 or bool(parts))
            factors = [str(a) if isinstance(a, str) or alone else f"({a})" for a in monomial]
            _append(parts, coefficient, factors)
        for quot, coefficient in remainders:
            num, den = (str(p) if p.is_atom else f"({p})" for p in (quot.num, quot.den))
            alone = coefficient == 1 or (coefficient == -1 and bool(parts))
            _append(parts, coefficient, [f"{num} % {den}" if alone else f"({num} % {den})"])
        return " ".join(parts) or "0"

    def _remainders(self) -> tuple[Poly, list[tuple[Quot, int]]]:
        """The polynomial with what is a remainder `num - den * (num // den)` taken out, and those remainders."""
        rest = self
        found: list[tuple[Quot, int]] = []
        for monomial, _ in self.terms:
            quot = next((a for a in monomial if isinstance(a, Quot)), None)
            if quot is None or any(q == quot for q, _ in found):
                continue
            lead, factor = quot.den.terms[0]
            held = dict(rest.terms).get(tuple(sorted((*lead, quot), key=_key)), 0)
            if held == 0 or held % factor:
                continue
            times = -held // factor
            without = rest - (quot.num - quot.den * Poly.of(quot)) * times
            if len(without.terms) < len(rest.terms) and not any(a == quot for a in without.atoms()):
                rest = without
                found.append((quot, times))
        return rest, found


def _append(parts: list[str], coefficient: int, factors: list[str]) -> None:
    """Add a term to the words of a sum."""
    size = abs(coefficient)
    text = "*".join(([str(size)] if size != 1 or not factors else []) + factors)
    if parts:
        parts.append(f"{'-' if coefficient < 0 else '+'} {text}")
    else:
        parts.append(f"-{text}" if coefficient < 0 else text)


def _floor(num: int, den: int) -> int:
    return num // den if den else 0


def _divide_monomial(monomial: Monomial, by: Monomial) -> Monomial | None:
    """`monomial / by`, or None where it does not divide."""
    rest = list(monomial)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


ZERO = Poly(())
ONE = Poly((((), 1),))
