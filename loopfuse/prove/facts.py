"""What is known at a point of a program, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from loopfuse.ir import Affine, Expr
from loopfuse.sizes import ONE, ZERO, Poly

Bounds = tuple[tuple[Poly, ...], tuple[Poly, ...]]


@dataclass(frozen=True)
class Facts:
    """An immutable set of facts; methods that learn return a new one, methods that ask never guess.

    Names in polynomials are sizes and integer params (`size`), loop indices (`index`) or integer lets (`let`). All
    answers hold for every value that satisfies the facts; False (or None, or an empty tuple) means "not proved".
    """

    @staticmethod
    def empty() -> Facts:
        """No facts."""
        return Facts()

    def define(self, buffer: str, indices: tuple[str, ...], value: Expr) -> Facts:
        """A definition that may be looked through: `buffer[indices] = value` (masks, integer lets)."""
        return self

    def let(self, id: str, value: Expr) -> Facts:
        """`Ref(id)`, or the name `id` in an affine expression, equals `value`."""
        return self

    def size(
        self,
        name: str,
        least: int | None = 0,
        multiple: int = 1,
        value: int | None = None,
        greatest: int | None = None,
    ) -> Facts:
        """A size or integer param: `least <= name <= greatest`, a multiple of `multiple`, or exactly `value`."""
        return self

    def index(self, name: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...], step: Poly = ONE) -> Facts:
        """A loop index of a non-empty loop: at least every `lo`, less than every `hi`."""
        return self

    def value_range(self, buffer: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...]) -> Facts:
        """Every element of an integer buffer lies between every `lo` and every `hi`, inclusive."""
        return self

    def ref_range(self, id: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...]) -> Facts:
        """An opaque integer `Ref` (an argmax, say) lies between every `lo` and every `hi`, inclusive."""
        return self

    def assume(self, cond: Expr, truth: bool = True) -> Facts:
        """A condition that holds here (or, with `truth` false, does not); parts that are not understood are skipped."""
        return self

    def normal(self, poly: Poly) -> Poly:
        """The polynomial with all known equalities substituted."""
        return poly

    def nonneg(self, poly: Poly) -> bool:
        """Proved `poly >= 0`."""
        return poly.is_const and poly.constant >= 0

    def negative(self, poly: Poly) -> bool:
        """Proved `poly < 0`."""
        return self.nonneg(-poly - 1)

    def zero(self, poly: Poly) -> bool:
        """Proved `poly == 0`."""
        return poly == ZERO

    def unequal(self, a: Poly, b: Poly) -> bool:
        """Proved `a != b`."""
        return self.nonneg(a - b - 1) or self.nonneg(b - a - 1)

    def poly(self, e: Expr) -> Poly | None:
        """The exact value of an integer expression, opaque parts as atoms; None for another type."""
        return e.poly if isinstance(e, Affine) else None

    def bounds(self, e: Expr, keep: frozenset[str]) -> Bounds:
        """Inclusive bounds (greatest of lows, least of highs) that mention only names in `keep`; empty if unknown."""
        return (), ()

    def divide(self, num: Poly, den: Poly) -> tuple[Poly, Poly] | None:
        """`(q, r)` with `num == q * den + r` and `0 <= r < den` proved, free of a new quotient; else None."""
        return None

    def used_domains(self) -> frozenset[str]:
        """Buffers whose `value_range` any successful proof so far has used (of this object and its relatives)."""
        return frozenset()
