"""Rational infeasibility of linear inequalities, with a certificate: a small exact simplex over Python integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

Monomial = tuple[int, ...]
CONSTANT: Monomial = ()
_GREEDY = 40


class Row(NamedTuple):
    """The inequality `sum(coefficient * monomial) + constant >= 0`; a monomial is a sorted tuple of atom numbers."""

    terms: dict[Monomial, int]
    constant: int

    def times(self, rest: Monomial) -> Row:
        """The row multiplied by a monomial (which must be non-negative for the product to follow)."""
        terms = {tuple(sorted(m + rest)): c for m, c in self.terms.items()}
        if self.constant:
            terms[rest] = terms.get(rest, 0) + self.constant
        return Row({m: c for m, c in terms.items() if c}, 0)

    def product(self, other: Row) -> Row:
        """The product of two rows."""
        terms: dict[Monomial, int] = {}
        left = [*self.terms.items(), (CONSTANT, self.constant)]
        right = [*other.terms.items(), (CONSTANT, other.constant)]
        for m, c in left:
            for n, d in right:
                key = tuple(sorted(m + n))
                terms[key] = terms.get(key, 0) + c * d
        constant = terms.pop(CONSTANT, 0)
        return Row({m: c for m, c in terms.items() if c}, constant)

    def tight(self) -> Row:
        """The strongest integer form: divided by the common factor, the constant rounded down."""
        factor = gcd(*self.terms.values())
        if factor <= 1:
            return self
        return Row({m: c // factor for m, c in self.terms.items()}, self.constant // factor)


class _Tableau:
    """Slacks in terms of non-basic variables: `scale[i] * slack_i = sum(rows[i][v] * v)`, where v = -1 is one.

    Non-basic slacks stand at zero, their least value. Free variables that became basic can take any value, so their
    rows are dropped.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.free: dict[Monomial, int] = {}
        self.rows: dict[int, dict[int, int]] = {}
        self.scale: dict[int, int] = {}
        count = len(rows)
        for i, row in enumerate(rows):
            table = {self.free.setdefault(m, count + len(self.free)): c for m, c in row.terms.items()}
            if row.constant:
                table[-1] = row.constant
            self.rows[i] = table
            self.scale[i] = 1
        self.count = count
        self.work = 0

    def ways(self, i: int) -> list[int]:
        """The variables that can raise a basic slack: free ones, and slacks with a positive factor."""
        return [v for v, c in self.rows[i].items() if v >= self.count or (c > 0 and v >= 0)]

    def pivot(self, leaving: int, entering: int) -> None:
        """Exchange a basic slack with a non-basic variable."""
        row = self.rows.pop(leaving)
        scale = self.scale.pop(leaving)
        factor = row.pop(entering)
        sign = 1 if factor > 0 else -1
        base = {v: -sign * c for v, c in row.items()}
        base[leaving] = sign * scale
        size = abs(factor)
        for i, other in self.rows.items():
            share = other.pop(entering, 0)
            if not share:
                continue
            self.work += len(base) + len(other)
            common = gcd(share, size)
            up, add = size // common, share // common
            if up != 1:
                for v in other:
                    other[v] *= up
                self.scale[i] *= up
            for v, c in base.items():
                value = other.get(v, 0) + add * c
                if value:
                    other[v] = value
                else:
                    del other[v]
            if self.scale[i] > 1:
                self._reduce(i)
        if entering < self.count:
            self.rows[entering] = base
            self.scale[entering] = size
            self._reduce(entering)

    def _reduce(self, i: int) -> None:
        row = self.rows[i]
        factor = gcd(self.scale[i], *row.values())
        if factor > 1:
            self.scale[i] //= factor
            for v in row:
                row[v] //= factor


class Outcome(NamedTuple):
    """Rows that no rational point satisfies together, or None where some point does or the work was cut short."""

    conflict: tuple[int, ...] | None
    work: int


def infeasible(rows: Sequence[Row], limit: int) -> Outcome:
    """Look for a contradiction among rows; `limit` bounds the table entries that are touched.

    At first the violated slack with the fewest ways out leaves; later Bland's rule (least violated slack, least
    entering variable) excludes cycles.
    """
    table = _Tableau(rows)
    for step in range(limit):
        violated = [i for i, row in table.rows.items() if row.get(-1, 0) < 0]
        if not violated or table.work > limit:
            break
        if step < _GREEDY:
            leaving, ways = min(((i, table.ways(i)) for i in violated), key=lambda way: len(way[1]))
        else:
            leaving = min(violated)
            ways = table.ways(leaving)
        if not ways:
            return Outcome((leaving, *(v for v in table.rows[leaving] if v >= 0)), table.work)
        table.pivot(leaving, max(ways) if max(ways) >= table.count else min(ways))
    return Outcome(None, table.work)
