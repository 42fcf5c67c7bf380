"""What an element of the result is made from beside its sums, by what each value follows.

Values that follow the columns alone (a bias, a scale computed from the statistics of a channel) are computed once a tile
and kept in shared memory, those that follow the rows alone likewise. A load that follows both (a residual) may come as a
tile. What is left is computed for every element.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from loopfuse.emit.matrix.shape import Axis, Contraction
from loopfuse.emit.writer import state_bytes
from loopfuse.ir import Affine, Const, Expr, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.rewrite import rebuild
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import children, expr_names, subexprs


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A value that follows one side only, under the name by which the elements refer to it."""

    name: str
    value: Expr

    @property
    def bytes(self) -> int:
        """Of a value in shared memory."""
        return state_bytes("sum", self.value.dtype)


@dataclass(frozen=True, eq=False, slots=True)
class Flat:
    """An access by its offset: `start`, and the steps along rows, columns and batch axes."""

    start: Poly
    row: Poly
    col: Poly
    batch: tuple[Poly, ...]

    def tiled(self, whole: Contraction, bytes_: int, *, stored: bool = False) -> bool:
        """Whether tiles of it can be copied: rows side by side along the columns, 16 bytes apart in everything else.

        Of the last 16 bytes of a row hardware stores all, so that rows that are `stored` must be a multiple of them long.
        """
        apart = 16 // bytes_
        exact = (whole.cols.extent,) if stored else ()
        return self.col == ONE and all(
            whole.divisor(p) % apart == 0 for p in (self.start, self.row, *self.batch, *exact)
        ) and not any(_negative(p) for p in (self.row, *self.batch))  # fmt: skip


@dataclass(eq=False)
class Leaves:
    """The parts of an element's statements.

    `side` has the lets of each side in order, `kept` the values that elements read; `body` what every element computes.
    """

    whole: Contraction
    side: dict[str, list[Let]] = field(default_factory=lambda: {"rows": [], "cols": []})
    kept: dict[str, list[Leaf]] = field(default_factory=lambda: {"rows": [], "cols": []})
    body: list[Let | Store] = field(default_factory=list)
    follows: dict[str, frozenset[str]] = field(default_factory=dict)  # by let: the sides

    @property
    def stores(self) -> list[Store]:
        """The outputs of an element."""
        return [s for s in self.body if isinstance(s, Store) and not s.absorb]

    def loads(self) -> list[Load]:
        """What elements load by themselves, each once."""
        found = [e for s in self.body for root in _roots(s) for e in subexprs(root) if isinstance(e, Load)]
        return list(dict.fromkeys(found))

    def flat(self, access: Load | Store) -> Flat | None:
        """An access without modes whose subscripts are affine, and go along with the axes; None for any other."""
        whole, job = self.whole, self.whole.job
        if access.buffer not in job.buffers or any(m is not None for m in access.modes):
            return None
        offset, stride = ZERO, ONE
        for sub, extent in zip(reversed(access.subs), reversed(job.buffers[access.buffer].shape), strict=True):
            if not isinstance(sub, Affine):
                return None
            offset = offset + job.target.poly(sub.poly) * stride
            stride = stride * job.target.poly(extent)
        steps: list[Poly] = []
        rest = offset
        axes = (whole.rows, whole.cols, *whole.batch)
        moving = frozenset(n for axis in axes for n in axis.names)
        for axis in axes:
            step = _step(axis, offset, moving)
            if step is None:
                return None
            steps.append(step)
            for name, low, _ in axis.indices:
                rest = rest - Poly.of(name) * offset.coefficient(name) + low * offset.coefficient(name)
        if not rest.names <= {s.id for s in job.ask.env.program.sizes}:
            return None
        return Flat(rest, steps[0], steps[1], tuple(steps[2:]))


def _step(axis: Axis, offset: Poly, moving: frozenset[str]) -> Poly | None:
    """The step of an offset along an axis, where its indices go on where the next ones end."""
    step, count = None, ONE
    for name, _, extent in reversed(axis.indices):
        mine = offset.coefficient(name)
        if offset.degree(name) > 1 or mine.names & moving or (step is not None and mine != step * count):
            return None
        step = mine if step is None else step
        count = count * extent
    return step if step is not None else ZERO


def _negative(poly: Poly) -> bool:
    return any(coefficient < 0 for _, coefficient in poly.terms)


def leaves(whole: Contraction, mixed: Iterable[str] = ()) -> Leaves:
    """The statements of an element of the result, apart. `mixed`: names beside the sums that stay among the elements."""
    found = Leaves(whole)
    sides = {**dict.fromkeys(whole.rows.names, "rows"), **dict.fromkeys(whole.cols.names, "cols")}
    moving = frozenset(("rows", "cols"))
    for name in (*(u.acc.id for u in whole.units), *mixed):
        found.follows[name] = moving
    memo: dict[Expr, Expr] = {}

    def follow(expr: Expr) -> frozenset[str]:
        names = expr_names(expr)
        return frozenset(s for n in names.values for s in ({sides[n]} if n in sides else found.follows.get(n, ())))

    def replaced(expr: Expr) -> Expr:
        if expr in memo:
            return memo[expr]
        needs = follow(expr)
        if len(needs) == 1 and not isinstance(expr, Affine | Const) and _worth(expr):
            (side,) = needs
            leaf = next((x for x in found.kept[side] if x.value == expr), None)
            if leaf is None:
                leaf = Leaf(f"{side}.{len(found.kept[side])}", expr)
                found.kept[side].append(leaf)
            result: Expr = Ref(leaf.name, expr.dtype)
        elif isinstance(expr, Load) or len(needs) < 2:
            result = expr
        else:
            result = rebuild(expr, tuple(replaced(e) for e in children(expr)))
        memo[expr] = result
        return result

    for stmt in whole.body:
        if isinstance(stmt, Loop):
            continue
        if isinstance(stmt, Let):
            needs = follow(stmt.value)
            found.follows[stmt.id] = needs
            if len(needs) == 1:
                found.side[next(iter(needs))].append(stmt)
                continue
            found.body.append(Let(stmt.id, replaced(stmt.value), span=stmt.span))
            continue
        at = replaced(stmt.at) if stmt.at is not None else None
        found.body.append(replace(stmt, value=replaced(stmt.value), at=at))
    return found


def _worth(expr: Expr) -> bool:
    """Whether a value is worth a place in shared memory: it is loaded, or named."""
    return any(isinstance(e, Load | Ref) for e in subexprs(expr))


def _roots(stmt: Stmt) -> Iterable[Expr]:
    if isinstance(stmt, Store):
        return (stmt.value, *stmt.subs, *((stmt.at,) if stmt.at is not None else ()))
    return (stmt.value,) if isinstance(stmt, Let) else ()
