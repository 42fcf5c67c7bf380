"""What a map kernel touches: the band as axes that start at 0, and each access as a linear function of them, where it is one.

Offsets are counted in elements from the start of the array. Adjacent axes along which every access moves alike are one
group, so that a band over whole arrays is a single flat index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import Literal

from loopfuse.analysis.sketch import Level
from loopfuse.analysis.summary import summary
from loopfuse.emit.base import Job
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Let, Load, Mode, Ref, Size, Store
from loopfuse.prove import Facts
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import children, exprs, guarded

When = Literal["always", "value", "place"]  # a load happens: always, by the values of data, or by where in the band
Key = tuple[str, tuple[Expr, ...], tuple[Mode | None, ...]]
SMALL = 8  # an operand of so many times fewer elements than the band is read from the cache


@dataclass(frozen=True, slots=True)
class Axis:
    """An index of the band that counts from 0: `id` is `low + step * axis`."""

    id: str
    low: Poly
    step: Poly
    extent: Poly


@dataclass(frozen=True, slots=True)
class Group:
    """Axes that are one index, outermost first; `atom` stands for it in polynomials."""

    axes: tuple[Axis, ...]
    extent: Poly
    atom: str


@dataclass(frozen=True, slots=True)
class Access:
    """A load or a store.

    `guarded`: it happens only under a condition, and might fail otherwise. `factors` are the steps by axis and `rest`
    the offset at the start; None: a subscript is computed or has a mode. `unit` then is the axis along which elements
    are adjacent all the same, all other subscripts being free of it. `depends`: the axes that it depends on.
    """

    node: Load | Store
    buffer: Buffer
    guarded: bool
    factors: dict[str, Poly] | None
    rest: Poly
    depends: frozenset[str]
    unit: str | None = None

    @property
    def key(self) -> Key:
        """What tells accesses apart."""
        return self.node.buffer, self.node.subs, self.node.modes

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.buffer.dtype.itemsize

    def factor(self, axis: str) -> Poly:
        """The step along an axis."""
        return (self.factors or {}).get(axis, ZERO)


class Study:
    """The band of a job, its statements, and its accesses."""

    def __init__(self, job: Job, chain: Sequence[Level], body: Sequence[Let | Store]) -> None:
        self.job, self.target, self.body = job, job.target, tuple(body)
        self.level = chain[-1]
        self.affine = job.ask.sketch.affine
        dims = [d for level in chain if level.loop for d in level.loop.dims]
        self.facts: Facts = job.ask.env.facts
        for dim in dims:
            self.facts = self.facts.index(dim.id, dim.lo, dim.hi, dim.step)
        self.axes: list[Axis] = []
        self.sound = all(self._axis(d) for d in dims)
        self.ids = {a.id for a in self.axes}
        self.normal = {a.id: a.low + a.step * Poly.of(a.id) for a in self.axes if a.low != ZERO or a.step != ONE}
        self.multiples = {s.id: self._multiple(s) for s in job.ask.env.program.sizes if s.id not in job.target.sizes}

    def _axis(self, dim: Dim) -> bool:
        """Whether the dim is an interval that does not depend on other indices; its axis is noted."""
        lows, highs = ([self.target.poly(p) for p in ps] for ps in (dim.lo, dim.hi))
        step = self.target.number(dim.step)
        inner = self.level.extents.keys()
        if step is None or step < 1 or any(p.names & inner for p in (*lows, *highs)):
            return False
        low, high = _one(lows, max), _one(highs, min)
        if low is None or high is None:
            return False
        gap = high - low
        if gap.is_const:
            extent = Poly.of(max(0, -(-gap.constant // step)))
        else:
            extent = (gap + (step - 1)) // step if step > 1 else gap
        self.axes.append(Axis(dim.id, low, Poly.of(step), extent))
        return True

    def _multiple(self, size: Size) -> int:
        """A number that divides a size, as is declared or required."""
        powers = (n for n in (16, 8, 4, 2) if self.job.ask.env.facts.zero(Poly.of(size.id) % n))
        return lcm(size.multiple, next(powers, 1))

    # -- numbers ------------------------------------------------------------------------------------------------------

    def number(self, poly: Poly) -> int:
        """The number of a polynomial, with stand-ins for sizes that are not known: for choices, not for legality."""
        return int(self.target.poly(poly).value(self.job.ask.sketch.numbers))

    @property
    def elements(self) -> int:
        """How many elements the band has."""
        return prod(self.number(a.extent) for a in self.axes)

    def divisor(self, poly: Poly) -> int:
        """A number that divides a polynomial over sizes, axes taken to be any number; 0 for zero."""
        found = 0
        for monomial, coefficient in poly.terms:
            factors = (self.multiples.get(a, 1) if isinstance(a, str) else 1 for a in monomial)
            found = gcd(found, coefficient * prod(factors))
        return found

    def positive(self, polys: Sequence[Poly]) -> bool:
        """Whether a product is zero or less wherever one of its factors is: at most one may be negative."""
        return sum(not (p.constant >= 0 if p.is_const else self.facts.nonneg(p)) for p in polys) <= 1

    # -- accesses -----------------------------------------------------------------------------------------------------

    def accesses(self) -> list[Access]:
        """Every load and store once, loads of subscripts before what they are part of."""
        found: dict[tuple[Key, bool], Access] = {}
        for stmt in self.body:
            for root in exprs(stmt):
                for load, when in self._loads(root):
                    access = self.access(load, when)
                    known = found.get((access.key, False))
                    if known is None or known.guarded:
                        found[(access.key, False)] = access
            if isinstance(stmt, Store):
                access = self.access(stmt, "always")
                found[(access.key, True)] = access
        return list(found.values())

    def access(self, node: Load | Store, when: When) -> Access:
        """A load or a store as a function of the axes."""
        lazy = when != "always"
        buffer = self.job.buffers[node.buffer]
        modes = node.modes or (None,) * len(node.subs)
        polys = [self._poly(s) for s in node.subs]
        needs = [self._needs(s) for s in node.subs]
        depends: frozenset[str] = frozenset().union(*needs)
        inside = [mode is None for mode in modes]
        for axis, (poly, extent) in enumerate(zip(polys, buffer.shape, strict=True)):
            if poly is not None and (lazy or not inside[axis]):
                inside[axis] = self._inside(poly, extent)
        guarded = when == "place" or (lazy and not all(inside))
        stride, rest, factors = ONE, ZERO, dict[str, Poly]()
        linear = not guarded
        for poly, extent, fine in reversed(list(zip(polys, buffer.shape, inside, strict=True))):
            linear = linear and fine and poly is not None
            if poly is not None and linear:
                linear, rest = self._add(poly.subs(self.normal), stride, factors, rest)
            stride = stride * self.target.poly(extent)
        if linear:
            return Access(node, buffer, False, {n: f for n, f in factors.items() if f != ZERO}, rest, depends)
        unit, rest = None, ZERO
        if polys and polys[-1] is not None and inside[-1] and not guarded:
            last: dict[str, Poly] = {}
            fine, rest = self._add(polys[-1].subs(self.normal), ONE, last, ZERO)
            units = [n for n, f in last.items() if f == ONE]
            if fine and len(units) == 1 and not any(units[0] in n for n in needs[:-1]):
                others = [m for m in modes[:-1] if m is not None]
                unit = units[0] if all(m.kind not in ("constant", "checked") for m in others) else None
        return Access(node, buffer, guarded, None, rest, depends, unit)

    def _poly(self, sub: Expr) -> Poly | None:
        """A subscript as a polynomial over sizes and indices of the band, if it is one."""
        if isinstance(sub, Affine):
            poly = sub.poly.subs(self.affine) if self.affine else sub.poly
        elif isinstance(sub, Ref) and sub.id in self.affine:
            poly = self.affine[sub.id]
        elif isinstance(sub, Const):
            value = sub.bits
            if sub.dtype.kind == "int" and value >> (sub.dtype.bits - 1):
                value -= 1 << sub.dtype.bits
            poly = Poly.of(value)
        else:
            return None
        poly = self.target.poly(poly)
        known = self.ids | self.job.ask.env.sizes.keys()
        return poly if poly.names <= known else None

    def _needs(self, sub: Expr) -> frozenset[str]:
        return self.job.ask.sketch.resolve(summary(sub).names, self.level) & self.ids

    def _inside(self, poly: Poly, extent: Poly) -> bool:
        """Whether a subscript is on its axis, wherever the band is."""
        return self.facts.nonneg(poly) and self.facts.nonneg(extent - poly - 1)

    def _add(self, poly: Poly, stride: Poly, factors: dict[str, Poly], rest: Poly) -> tuple[bool, Poly]:
        """A subscript times a stride, added to the factors; whether it is linear, and the new rest."""
        moving = poly.names & self.ids
        hidden: set[str] = set()
        for quot in poly.quotients():
            hidden |= quot.num.names | quot.den.names
        if moving & hidden or any(poly.degree(n) != 1 for n in moving):
            return False, rest
        for name in moving:
            factor = poly.coefficient(name)
            if factor.names & self.ids:
                return False, rest
            factors[name] = factors.get(name, ZERO) + factor * stride
            poly = poly - factor * Poly.of(name)
        return True, rest + poly * stride

    def _loads(self, root: Expr) -> Iterator[tuple[Load, When]]:
        """The loads of an expression, operands first, and when each happens."""
        stack: list[tuple[Expr, When, bool]] = [(root, "always", False)]
        while stack:
            node, when, due = stack.pop()
            if due:
                assert isinstance(node, Load)
                yield node, when
                continue
            if isinstance(node, Load):
                stack.append((node, when, True))
            for child, lazy in reversed(list(guarded(node))):
                under = when
                if lazy and when != "place":
                    under = "place" if self._placed(children(node)[0]) else "value"
                stack.append((child, under, False))

    def _placed(self, cond: Expr) -> bool:
        """Whether a condition is about where in the band it is asked alone, so that threads side by side mostly agree."""
        found = summary(cond)
        return not found.loads and found.names <= self.ids | self.job.ask.env.sizes.keys() | self.affine.keys()

    # -- groups -------------------------------------------------------------------------------------------------------

    def order(self, accesses: Collection[Access]) -> list[Axis]:
        """The axes, the one along which most bytes are adjacent last, the others as the first store has them."""
        weight = {a.id: 0 for a in self.axes}
        for access in accesses:
            size = prod(self.number(a.extent) for a in self.axes if a.id in access.depends) * access.size
            for axis in self.axes:
                if access.factor(axis.id) == ONE or access.unit == axis.id:
                    weight[axis.id] += size * (2 if isinstance(access.node, Store) else 1)
        main = next((a for a in accesses if isinstance(a.node, Store) and a.factors is not None), None)
        ordered = list(self.axes)
        if main is not None:
            ordered.sort(key=lambda a: -abs(self.number(main.factor(a.id))))
        best = max(weight.values(), default=0)
        if best:
            last = next(a for a in reversed(ordered) if weight[a.id] == best)
            ordered.remove(last)
            ordered.append(last)
        return ordered

    def groups(self, axes: Sequence[Axis], accesses: Collection[Access]) -> list[Group]:
        """The axes, joined where every one of the accesses lets them; those of a single value are left out."""
        found: list[list[Axis]] = []
        for axis in reversed([a for a in axes if a.extent != ONE]):
            if found and self._joins(axis, found[-1], accesses):
                found[-1].insert(0, axis)
            else:
                found.append([axis])
        found.reverse()
        return [Group(tuple(g), prod((a.extent for a in g), start=ONE), f"%{n}") for n, g in enumerate(found)]

    def _joins(self, axis: Axis, group: list[Axis], accesses: Collection[Access]) -> bool:
        extent = prod((a.extent for a in group), start=ONE)
        for access in accesses:
            if access.factors is not None:
                if access.factor(axis.id) != access.factor(group[-1].id) * extent:
                    return False
            elif access.unit is not None and access.unit in (axis.id, *(a.id for a in group)):
                return False
        return True

    def offset(self, access: Access, groups: Sequence[Group]) -> Poly | None:
        """The offset over the atoms of the groups, where the access moves along each as a whole."""
        if access.factors is None:
            return None
        total = access.rest
        for group in groups:
            factor, extent = access.factor(group.axes[-1].id), ONE
            for axis in reversed(group.axes):
                if access.factor(axis.id) != factor * extent:
                    return None
                extent = extent * axis.extent
            total = total + factor * Poly.of(group.atom)
        return total


def _one(polys: Sequence[Poly], choose: Callable[[Iterable[int]], int]) -> Poly | None:
    """The one bound that there is, of several known numbers the one chosen."""
    if len(polys) == 1:
        return polys[0]
    if all(p.is_const for p in polys):
        return Poly.of(choose(p.constant for p in polys))
    return None
