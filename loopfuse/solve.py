"""Solving the extents of the inputs for the sizes, over all inputs together and whatever their order.

Each axis gives an equation `extent polynomial == number`. Bare sizes are settled first, then whatever has become
affine in one size (`4*U`, `G*K` with K known), then linear systems in several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from loopfuse.diag import Diagnostic, Span, UserError, error
from loopfuse.sizes import Poly

Why = str


@dataclass(frozen=True, slots=True)
class Equation:
    """`poly == value`; `where` names the axis (`axis 1 of `w``), `span` the declaration."""

    poly: Poly
    value: int
    where: str
    span: Span | None = None


@dataclass
class Solution:
    """The sizes found, and for each the equation that settled it (None: the caller gave it)."""

    sizes: dict[str, int]
    reasons: dict[str, Equation | None] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)

    def settle(self, name: str, value: Fraction, equation: Equation) -> None:
        """Take `value` for `name`, or note that it is not a natural number."""
        if value.denominator != 1 or value < 0:
            self.problems.append(error(
                "LF0506", f"{equation.where} has {equation.value} elements, which is not `{equation.poly}` for any "
                          f"`{name}`{self.known_in(equation.poly)}", equation.span, f"`{equation.poly}` here",
            ))  # fmt: skip
            # A stand-in, so that one mistake gives one message.
            value = Fraction(max(0, int(value)))
        self.sizes[name] = int(value)
        self.reasons[name] = equation

    def known_in(self, poly: Poly) -> str:
        """The known sizes of a polynomial, as ` (U = 3)`."""
        known = [f"{n} = {self.sizes[n]}" for n in sorted(poly.names) if n in self.sizes]
        return f" ({', '.join(known)})" if known else ""

    def contradict(self, equation: Equation, found: int) -> None:
        """Note that an equation does not hold: the polynomial is `found` by what is known already."""
        name = equation.poly.name
        causes = [(n, self.reasons.get(n)) for n in sorted(equation.poly.names) if n in self.sizes]
        also = [(e.span, f"{n} = {self.sizes[n]} from {e.where}") for n, e in causes if e is not None]
        if name is not None:
            first = self.reasons.get(name)
            said = f"in {first.where}" if first else "as given"
            message = f"`{name}` is {found} {said} and {equation.value} in {equation.where}"
        elif equation.poly.is_const:
            message = f"{equation.where} must have {found} elements, and has {equation.value}"
        else:
            message = f"{equation.where} must have `{equation.poly}` = {found} elements, and has {equation.value}"
            sources = [f"{n} = {self.sizes[n]} from {e.where if e else 'what was given'}" for n, e in causes]
            message += f" ({', '.join(sources) or 'by the other axes'})"
        label = f"{equation.value} by {equation.where}"
        self.problems.append(error("LF0517", message, equation.span, label, *also))


def solve(equations: Iterable[Equation], given: Mapping[str, int]) -> Solution:
    """The sizes that satisfy the equations, starting from the `given` ones.

    Raises `UserError` with every contradiction (LF0517) and every extent that does not divide (LF0506). A size that
    no equation settles is absent from the answer.
    """
    solution = Solution(dict(given), dict.fromkeys(given))
    pending = list(equations)
    _settle_single(solution, pending, bare=True)
    while pending:
        before = len(pending)
        _settle_single(solution, pending, bare=False)
        if len(pending) == before and not _settle_linear(solution, pending):
            break
    if solution.problems:
        raise UserError(solution.problems)
    return solution


def _settle_single(solution: Solution, pending: list[Equation], bare: bool) -> None:
    """Check the equations whose sizes are known; settle those with one unknown. The rest stays pending."""
    rest: list[Equation] = []
    for equation in pending:
        poly = equation.poly.subs(solution.sizes)
        if poly.is_const:
            if poly.constant != equation.value:
                solution.contradict(equation, poly.constant)
        elif bare and poly.name is None:
            rest.append(equation)
        elif (line := affine(poly)) and len(line) == 1:
            ((name, factor),) = line.items()
            solution.settle(name, Fraction(equation.value - poly.constant, factor), equation)
        else:
            rest.append(equation)
    pending[:] = rest


def affine(poly: Poly) -> dict[str, int] | None:
    """The coefficients of a polynomial that is affine in its names, else None."""
    line: dict[str, int] = {}
    for monomial, coefficient in poly.terms:
        if not monomial:
            continue
        atom = monomial[0]
        if len(monomial) > 1 or not isinstance(atom, str):
            return None
        line[atom] = coefficient
    return line


def _settle_linear(solution: Solution, pending: list[Equation]) -> bool:
    """Gauss elimination over the affine equations; True where some size was settled."""
    rows: list[tuple[dict[str, Fraction], Fraction, Equation]] = []
    for equation in list(pending):
        poly = equation.poly.subs(solution.sizes)
        line = affine(poly)
        if line is None:
            continue
        row = {n: Fraction(c) for n, c in line.items()}
        right = Fraction(equation.value - poly.constant)
        for pivots, value, _ in rows:
            name = next(iter(pivots))
            if name in row:
                row, right = _eliminate(row, right, pivots, value, name)
        if not row:
            pending.remove(equation)
            if right:
                solution.contradict(equation, equation.value - int(right))
            continue
        name = min(row)
        scale = row.pop(name)
        row = {name: Fraction(1), **{n: c / scale for n, c in row.items()}}
        right /= scale
        rows = [(*_eliminate(p, v, row, right, name), e) if name in p else (p, v, e) for p, v, e in rows]
        rows.append((row, right, equation))
    settled = False
    for row, right, equation in rows:
        if len(row) == 1:
            solution.settle(next(iter(row)), right, equation)
            settled = True
    return settled


def _eliminate(row: dict[str, Fraction], right: Fraction, pivots: dict[str, Fraction], value: Fraction, name: str,
               ) -> tuple[dict[str, Fraction], Fraction]:  # fmt: skip
    """`row` less the multiple of `pivots` that removes `name`; the order of names, pivot first, is kept."""
    factor = row[name]
    names = [*row, *(n for n in pivots if n not in row)]
    left = {n: row.get(n, Fraction(0)) - factor * pivots.get(n, Fraction(0)) for n in names}
    return {n: c for n, c in left.items() if c}, right - factor * value
