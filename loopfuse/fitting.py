"""Sizes that meet every requirement: small ones, or those that are nearest to ones that are wished for.

Where few of the small sizes fit, they are searched for, one size after another. The sizes that are settled make conditions
on a single other one; an equation that is linear in it leaves one value, comparisons and divisors say where to look.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from math import lcm

import numpy as np

from loopfuse.dtypes import BOOL
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.ir import Affine, Const, Expr, Op, Require, Size
from loopfuse.ops import to_number
from loopfuse.requires import COMPARISONS, evaluate, names_of
from loopfuse.rewrite import subexprs
from loopfuse.sizes import ZERO, Poly
from loopfuse.solve import Equation, affine

# How many of the smallest candidates are tried, first with the small ones more often, then all alike.
TRIES = 20_000
NEAR = 8  # values of a size on each side of where to look, at least
MOST_NEAR = 4096
WIDTH = 16  # values of a size that are followed
MOST_VALUES = 3000  # that are followed in all
MOST_ORDERS = 6  # in which the sizes are settled
GREATEST = 1 << 31
EXACT: Mapping[str, Callable[[Poly, Poly], Poly]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """Sizes that are `known`, those that are `missing`, values of params, and what shall hold beside the requirements:
    extents that data has (`equations`), and extents that may not be negative."""

    typed: TypedProgram
    known: Mapping[str, int]
    missing: Sequence[str]
    params: Mapping[str, Array]
    equations: Sequence[Equation] = ()

    @property
    def conditions(self) -> list[Expr]:
        """All that shall hold, in parts that shall hold each."""
        found = [part for require in self.typed.requires for part in _parts(require.cond)]
        found += [_compared("eq", e.poly, Poly.of(e.value)) for e in self.equations]
        inputs = {i.buffer for i in self.typed.inputs}
        shapes = [p for b in self.typed.buffers if b.id in inputs for p in b.shape]
        return found + [_compared("ge", p, ZERO) for p in dict.fromkeys(shapes) if p.name is None and not p.is_const]


def choose_sizes(ask: Ask) -> dict[str, int] | None:
    """Small values for the missing sizes with which everything holds, different ones where possible; or None."""
    pools = _pools(ask)
    count = len(pools[0])
    conditions = ask.conditions
    for sizes, ranks in _samples(ask, pools):
        good = np.ones(TRIES, bool)
        for cond in conditions:
            good &= evaluate(cond, sizes, ask.params).astype(bool)
        if good.any():
            best = int(np.argmin(np.where(good, ranks.sum(axis=1), count * len(ask.missing))))
            return {name: int(value if isinstance(value, int) else value[best]) for name, value in sizes.items()}
    return nearest(ask, _first(ask))


def nearest(ask: Ask, wished: Mapping[str, int]) -> dict[str, int] | None:
    """Values for the missing sizes with which everything holds, those wished for where they do; None where none were
    found."""
    search = _Search(ask, wished)
    for order in islice(permutations(ask.missing), MOST_ORDERS):
        found = search.settle(dict(ask.known), order)
        if found is not None:
            return found
    return None


def unmet(ask: Ask) -> list[Require]:
    """A few requirements that keep sizes from being found, each of which has a part in it."""
    left = [r for r in ask.typed.requires if names_of(r.cond) & set(ask.missing)]
    for require in tuple(left):
        rest = [r for r in left if r is not require]
        if rest and nearest(replace(ask, typed=replace(ask.typed, requires=tuple(rest))), _first(ask)) is None:
            left = rest
    return left


def _first(ask: Ask) -> dict[str, int]:
    return {name: int(pool[0]) for name, pool in zip(ask.missing, _pools(ask), strict=True)}


def _pools(ask: Ask) -> list[Array]:
    table = {s.id: s for s in ask.typed.sizes}
    return [_candidates(table[name], at) for at, name in enumerate(ask.missing)]


def _candidates(size: Size, at: int) -> Array:
    """Values to try for a size, the likeliest first, none as the last; neighbours begin with different ones."""
    small, rest = [5, 4, 6, 3, 7], [8, 2, 1, 9, 12, 16, 24, 32, 48, 64, 128, 256, 0]
    steps = np.array(small[at % 5 :] + small[: at % 5] + rest)
    least = -(-max(0, size.least or 0) // size.multiple)
    return np.asarray((steps + least) * size.multiple)


def _samples(ask: Ask, pools: Sequence[Array]) -> Iterator[tuple[dict[str, int | Array], Array]]:
    """Sizes as arrays, a set at each place, and the ranks of the values among their candidates."""
    stream = np.random.Generator(np.random.Philox(0))
    count = len(pools[0])
    falling = 0.7 ** np.arange(count)
    for weights in (falling / falling.sum(), np.full(count, 1 / count)):
        ranks = stream.choice(count, (TRIES, len(ask.missing)), p=weights)
        ranks[0] = 0
        sizes: dict[str, int | Array] = dict(ask.known)
        sizes |= {name: pool[ranks[:, at]] for at, (name, pool) in enumerate(zip(ask.missing, pools, strict=True))}
        yield sizes, ranks


def _parts(cond: Expr) -> Iterator[Expr]:
    """The terms of a conjunction."""
    if isinstance(cond, Op) and cond.op == "and":
        for arg in cond.args:
            yield from _parts(arg)
    else:
        yield cond


def _compared(op: str, left: Poly, right: Poly) -> Expr:
    return Op(op, (Affine(left), Affine(right)), BOOL)


# -- one size after another -------------------------------------------------------------------------------------------


class _Search:
    """A search for sizes near to those that are wished for. It ends after so many values, for what is hard to solve."""

    def __init__(self, ask: Ask, wished: Mapping[str, int]) -> None:
        self.ask, self.wished, self.left = ask, wished, MOST_VALUES
        self.table = {s.id: s for s in ask.typed.sizes}
        self.conditions = [(c, names_of(c)) for c in ask.conditions]

    def settle(self, sizes: dict[str, int], names: tuple[str, ...]) -> dict[str, int] | None:
        """The sizes with values for the names, or None."""
        if not names:
            return sizes
        name, rest = names[0], names[1:]
        for value in self._values(name, sizes):
            self.left -= 1
            if self.left < 0:
                return None
            found = self.settle({**sizes, name: value}, rest)
            if found is not None:
                return found
        return None

    def _values(self, name: str, sizes: Mapping[str, int]) -> list[int]:
        """Values of a size that meet what is said of it alone, the nearest first."""
        alone = [c for c, names in self.conditions if name in names and names <= {name, *sizes, *self.ask.params}]
        size, wish = self.table[name], self.wished[name]
        forced = {v for c in alone if (v := _forced(c, name, sizes)) is not None}
        if forced:
            found = np.array(sorted(v for v in forced if 0 <= v < GREATEST), np.int64)
        else:
            found = self._near(name, sizes, wish)
        found = found[(found >= max(0, size.least or 0)) & (found % size.multiple == 0)]
        for cond in alone:
            found = found[
                np.broadcast_to(evaluate(cond, {**sizes, name: found}, self.ask.params), found.shape).astype(bool)
            ]
        order = np.argsort(np.abs(found - wish), kind="stable")
        return [int(v) for v in found[order][:WIDTH]]

    def _near(self, name: str, sizes: Mapping[str, int], wish: int) -> Array:
        """Values around the one that is wished for, and around those at which a condition changes; so many that there is
        a multiple of each divisor among them."""
        centres, divisor = {wish}, self.table[name].multiple
        for cond, names in self.conditions:
            if name not in names:
                continue
            for poly in _differences(cond):
                poly = poly.subs({n: v for n, v in sizes.items() if n in poly.names})
                for quotient in poly.quotients():
                    if quotient.den.is_const and (den := abs(quotient.den.constant)):
                        divisor = min(MOST_NEAR, lcm(divisor, den))
                        below = wish // den * den
                        centres |= {below, below + den, below + abs(poly.constant) % den}
                line = affine(poly) or {}
                if name in line:
                    others = sum(c * self.wished.get(n, 1) for n, c in line.items() if n != name)
                    centres.add(-(poly.constant + others) // line[name])
        reach = np.arange(-max(NEAR, divisor), max(NEAR, divisor) + 1)
        found = np.unique(np.concatenate([c + reach for c in sorted(centres) if abs(c) < GREATEST]))
        return found[found >= 0]


def _differences(cond: Expr) -> Iterable[Poly]:
    """For each comparison in a condition the polynomial that it compares with zero."""
    for node in subexprs(cond):
        if isinstance(node, Op) and node.op in COMPARISONS:
            left, right = map(_poly, node.args)
            if left is not None and right is not None:
                yield left - right


def _poly(expr: Expr) -> Poly | None:
    """What an expression is in exact integers, as it is where its type holds the values: params may be of any type."""
    if isinstance(expr, Affine):
        return expr.poly
    if isinstance(expr, Const):
        return Poly.of(int(to_number(expr.bits, expr.dtype))) if expr.dtype.is_int else None
    if isinstance(expr, Op) and expr.dtype.is_int:
        args = [p for p in map(_poly, expr.args) if p is not None]
        if expr.op == "cast" and args:
            return args[0]
        if expr.op in EXACT and len(args) == 2:
            return EXACT[expr.op](*args)
    return None


def _forced(cond: Expr, name: str, sizes: Mapping[str, int]) -> int | None:
    """The one value of a size that an equation leaves (-1: none); None where it is no equation that is linear in it."""
    if not (isinstance(cond, Op) and cond.op == "eq"):
        return None
    for poly in _differences(cond):
        settled = poly.subs({n: v for n, v in sizes.items() if n in poly.names})
        line = affine(settled)
        if line and set(line) == {name}:
            value, rest = divmod(-settled.constant, line[name])
            return value if rest == 0 and value >= 0 else -1
    return None
