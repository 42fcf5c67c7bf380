"""How far the index arithmetic of a kernel reaches: values, subscripts, bounds and counts may be larger than any array is.

None stands for "unknown": what depends on the contents of arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from loopfuse.emit.writer import Target
from loopfuse.ir import Affine, Dim, Expr, Let, Load, Loop, Mode, Stmt
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import children
from loopfuse.sizes import Poly, Quot

Interval = tuple[int, int]  # both ends are in it
Env = Mapping[str, Interval | None]  # what each index and let may be


@dataclass
class Reach:
    """Bounds of what a kernel computes with indices, partial sums and products too.

    `values`: the greatest magnitude, but of subscripts that are known to be inside their array. `points`: the most iterations of
    loops that may be counted as one: those of a loop, and of parallel loops in one another.
    """

    values: int | None = 0
    points: int | None = 1

    def value(self, size: int | None) -> None:
        """Take in a magnitude."""
        self.values = None if size is None or self.values is None else max(self.values, size)

    def counted(self, count: int | None) -> None:
        """Take in a number of iterations."""
        self.points = None if count is None or self.points is None else max(self.points, count)


def reach(target: Target, body: Iterable[Stmt]) -> Reach:
    """The bounds of a kernel's statements, for the sizes of the target."""
    walk = _Walk(target)
    walk.block(body, {}, 1)
    return walk.found


@dataclass
class _Walk:
    target: Target
    found: Reach = field(default_factory=Reach)

    def block(self, body: Iterable[Stmt], outer: Env, above: int | None) -> None:
        """Take in statements; `above`: the iterations that loops among them may be counted with."""
        env = dict(outer)
        for stmt in body:
            if isinstance(stmt, Loop):
                self.loop(stmt, env, above)
                continue
            self.expression(stmt.value, env)
            if isinstance(stmt, Let):
                env[stmt.id] = self.interval(stmt.value.poly, env) if isinstance(stmt.value, Affine) else None
            else:
                for sub in _computed(stmt.subs, stmt.modes):
                    self.expression(sub, env)

    def loop(self, loop: Loop, outer: Env, above: int | None) -> None:
        """Take in a loop's bounds, counts, positions and body."""
        env, counts = dict(outer), []
        for dim in loop.dims:
            env[dim.id], count = self.dim(dim, env)
            counts.append(count)
        own = _product([above, *counts])
        self.found.counted(own)
        if any(MONOIDS[a.monoid].positional for a in loop.accs) and len(counts) > 1:
            self.found.value(_product(counts))
        if loop.where is not None:
            self.expression(loop.where, env)
        self.block(loop.body, env, own if loop.order == "par" and not loop.accs else 1)

    def dim(self, dim: Dim, env: Env) -> tuple[Interval | None, int | None]:
        """What an index may be, and how many values it takes at most."""
        lows, highs = ([i for p in polys if (i := self.interval(p, env))] for polys in (dim.lo, dim.hi))
        if not lows or not highs:
            return None, None
        low, high = max(i[0] for i in lows), min(i[1] for i in highs) - 1
        for poly in (*dim.lo, *dim.hi):
            self.found.value(
                self.size(poly, env) or 0
            )  # what is unknown of bounds is read from memory, and inside an array
        gaps = [i[1] for h in dim.hi for b in dim.lo if (i := self.interval(h - b, env))]
        step = max(1, self.target.number(dim.step) or 1)
        return (low, max(low, high)), -(-max(0, min((high + 1 - low, *gaps))) // step)

    # -- expressions --------------------------------------------------------------------------------------------------

    def expression(self, expr: Expr, env: Env) -> None:
        """Take in what an expression computes with indices."""
        todo = [expr]
        while todo:
            node = todo.pop()
            if isinstance(node, Affine):
                self.found.value(self.size(node.poly, env))
            elif isinstance(node, Load):
                todo += _computed(node.subs, node.modes)
            else:
                todo += children(node)

    # -- polynomials --------------------------------------------------------------------------------------------------

    def size(self, poly: Poly, env: Env) -> int | None:
        """The greatest magnitude of a polynomial and of its parts."""
        total = 0
        for coefficient, part in self.parts(poly, env):
            if part is None:
                return None
            total += abs(coefficient) * max(abs(part[0]), abs(part[1]))
        return total

    def interval(self, poly: Poly, env: Env) -> Interval | None:
        """What a polynomial may be."""
        low = high = 0
        for coefficient, part in self.parts(poly, env):
            if part is None:
                return None
            ends = coefficient * part[0], coefficient * part[1]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def parts(self, poly: Poly, env: Env) -> Iterator[tuple[int, Interval | None]]:
        """The coefficient of each monomial, and what the rest of it may be."""
        for monomial, coefficient in self.target.poly(poly).terms:
            found: Interval | None = (1, 1)
            for atom in monomial:
                other = self.atom(atom, env)
                if found is None or other is None:
                    found = None
                    break
                ends = [a * b for a in found for b in other]
                found = min(ends), max(ends)
            yield coefficient, found

    def atom(self, atom: str | Quot, env: Env) -> Interval | None:
        """What a name or a quotient may be; a quotient by an unknown number is no greater than what is divided."""
        if not isinstance(atom, Quot):
            return env.get(atom)
        over, by = self.interval(atom.num, env), self.target.number(atom.den)
        if over is None:
            return None
        self.found.value(self.size(atom.num, env))
        if by is not None and by > 0:
            return over[0] // by, over[1] // by
        most = max(abs(over[0]), abs(over[1]))
        return -most, most


def _computed(subs: Sequence[Expr], modes: Sequence[Mode | None]) -> list[Expr]:
    """Subscripts that may be outside their array before a mode brings them in, and those that are computed."""
    plain = (axis >= len(modes) or modes[axis] is None for axis in range(len(subs)))
    return [sub for sub, inside in zip(subs, plain, strict=True) if not (inside and isinstance(sub, Affine))]


def _product(factors: Sequence[int | None]) -> int | None:
    known = [f for f in factors if f is not None]
    return None if len(known) < len(factors) else prod(known)
