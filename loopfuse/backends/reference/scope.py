"""What names mean while a kernel is compiled to closures, and polynomials as closures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loopfuse.backends.reference.domain import Domain
from loopfuse.backends.reference.frame import Frame, Index
from loopfuse.backends.reference.places import Names, Range, interval
from loopfuse.diag import CompilerError
from loopfuse.dtypes import DType
from loopfuse.ir import Interval
from loopfuse.numerics import Array
from loopfuse.sizes import Poly, Quot

Number = Callable[[Frame], Any]
Spread = Callable[[list[int], list[int]], Range]


@dataclass(frozen=True, slots=True)
class Local:
    """A let or a scalar accumulator: the slot of its value."""

    slot: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A buffer or an accumulator with a shape: the slot of its storage, its extents and element type.

    `batch`: the axes around an accumulator's loop; its storage has them behind its own. `changes`: elements are
    overwritten later, so that a view may not be kept. `window`: its intervals, for watching.
    """

    slot: int
    shape: tuple[int, ...]
    dtype: DType
    batch: tuple[Index, ...] = ()
    changes: bool = False
    window: tuple[Interval, ...] | None = None


Entry = Index | Local | Stored


@dataclass
class Shared:
    """What all scopes of a run share: the domain, whether accesses are watched, how folds with repairs run (None: in
    exact passes), and the numbers of slots given out."""

    domain: Domain
    watch: bool = False
    online: Any = None
    indices: int = 0
    values: int = 0
    stores: int = 0

    def index_slot(self) -> int:
        """A new slot for an index."""
        self.indices += 1
        return self.indices - 1

    def value_slot(self) -> int:
        """A new slot for a value."""
        self.values += 1
        return self.values - 1

    def store_slot(self) -> int:
        """A new slot for a storage."""
        self.stores += 1
        return self.stores - 1


@dataclass(frozen=True)
class Scope:
    """The names at a point of a kernel. `depth` is the number of axes, `axes` the index that each one belongs to."""

    shared: Shared
    names: Names
    entries: Mapping[str, Entry] = field(default_factory=dict)
    axes: tuple[Index, ...] = ()

    @property
    def depth(self) -> int:
        """The number of axes."""
        return len(self.axes)

    def having(self, name: str, entry: Entry) -> Scope:
        """The scope with one more name."""
        return replace(self, entries={**self.entries, name: entry})

    def index(self, name: str) -> Index:
        """The index of a name."""
        found = self.entries.get(name)
        if not isinstance(found, Index):
            raise CompilerError("reference", f"`{name}` is not an index here")
        return found

    def local(self, name: str) -> Local:
        """The let or scalar accumulator of a name."""
        found = self.entries.get(name)
        if not isinstance(found, Local):
            raise CompilerError(
                "reference", f"`{name}` is neither a let nor a scalar accumulator that is complete here"
            )
        return found

    def array(self, name: str) -> Stored:
        """The buffer or array of a name."""
        found = self.entries.get(name)
        if not isinstance(found, Stored):
            raise CompilerError("reference", f"`{name}` is no array here")
        return found


# -- polynomials ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Linear:
    """`const + sum(c * i)` over indices that are not loose."""

    const: int
    terms: tuple[tuple[Index, int], ...]


def linear(poly: Poly, scope: Scope) -> Linear | None:
    """The polynomial as a linear form, or None where it is not one; sizes and affine lets must have been put in."""
    const, terms = 0, []
    for monomial, coefficient in poly.terms:
        if not monomial:
            const = coefficient
            continue
        entry = scope.entries.get(monomial[0]) if len(monomial) == 1 and isinstance(monomial[0], str) else None
        if not isinstance(entry, Index) or entry.loose:
            return None
        terms.append((entry, coefficient))
    return Linear(const, tuple(terms))


def number(poly: Poly, scope: Scope) -> Number:
    """A closure for the polynomial's value: a Python number, or an i64 array along the axes that it varies with."""
    poly = scope.names.fold(poly)
    if poly.is_const:
        constant = poly.constant
        return lambda f: constant
    form = linear(poly, scope)
    if form is not None:
        return _linear_number(form)
    parts = [(coefficient, [_atom(a, scope) for a in monomial]) for monomial, coefficient in poly.terms]

    def general(f: Frame) -> Any:
        total: Any = 0
        for coefficient, factors in parts:
            product: Any = coefficient
            for factor in factors:
                product = product * factor(f)
            total = total + product
        return total

    return general


def doubts(polys: Iterable[Poly], scope: Scope) -> Callable[[Frame], Array | None] | None:
    """A closure for where a let that the polynomials mention is undecided; None where no such thing can be."""
    domain = scope.shared.domain
    found = {scope.entries.get(name) for p in polys for name in scope.names.fold(p).names}
    slots = sorted(entry.slot for entry in found if isinstance(entry, Local))
    if not domain.tracks or not slots:
        return None

    def unsure(f: Frame) -> Array | None:
        total: Array | None = None
        for slot in slots:
            part = domain.doubt(f.values[slot])
            if part is not None:
                total = part if total is None else total | part
        return total

    return unsure


def _linear_number(form: Linear) -> Number:
    const = form.const
    if len(form.terms) == 1:
        index, factor = form.terms[0]
        if factor == 1:
            return lambda f: f.axis(index) + const if const else f.axis(index)
        return lambda f: f.axis(index) * factor + const
    terms = form.terms

    def total(f: Frame) -> Any:
        found: Any = const
        for index, factor in terms:
            found = found + factor * f.axis(index)
        return found

    return total


def _atom(atom: str | Quot, scope: Scope) -> Number:
    if isinstance(atom, Quot):
        num, den = number(atom.num, scope), number(atom.den, scope)
        return lambda f: _floor(num(f), den(f))
    entry = scope.entries.get(atom)
    if isinstance(entry, Index):
        return lambda f: f.axis(entry)
    slot, indices = scope.local(atom).slot, scope.shared.domain.indices
    return lambda f: indices(f.values[slot])


def _floor(num: Any, den: Any) -> Any:
    if isinstance(num, int) and isinstance(den, int):
        return num // den if den else 0
    return np.floor_divide(num, den, dtype=np.int64)


def spread(poly: Poly, scope: Scope) -> Spread:
    """A closure for inclusive bounds of a polynomial of indices, given the least and the greatest of each index."""
    form = linear(poly, scope)
    if form is not None:
        const, terms = form.const, [(index.slot, factor) for index, factor in form.terms]
        if not terms:
            return lambda low, high: (const, const)

        def quick(low: list[int], high: list[int]) -> Range:
            least = most = const
            for slot, factor in terms:
                a, b = factor * low[slot], factor * high[slot]
                least, most = (least + a, most + b) if factor > 0 else (least + b, most + a)
            return least, most

        return quick
    slots = {name: scope.index(name).slot for name in poly.names}
    return lambda low, high: interval(poly, {name: (low[s], high[s]) for name, s in slots.items()})
