"""Values that a loop over a row computes and a later one would compute again: found by numbering values, kept in registers.

Two expressions of two loops along one run are the same value where they have the same number: lets are looked through, and
indices are told apart by their place only. The later one may also be the earlier one under a condition of the row, as in
`exp(x - (0 if m == -inf else m))` and `exp(x - m)`: then the kept value serves if, where the condition does not hold,
everything that is stored from it is NaN anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from loopfuse.constants import to_number
from loopfuse.emit.approx import Approximations
from loopfuse.emit.rows_shape import Line, Shape
from loopfuse.emit.slices import prune
from loopfuse.ir import Affine, Const, Expr, Let, Load, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.ops import OPS
from loopfuse.rewrite import rebuild
from loopfuse.sizes import Poly
from loopfuse.walking import children, guarded, walk

KEPT = "kept#"  # the array of a kept value, before the name of its let
COSTLY = ("div", "pow", "fmod", "mod", "floordiv")  # beside what the special-function unit does
# Operations that are NaN where an operand is.
SPREADS_NAN = (
    "add", "sub", "mul", "div", "neg", "abs", "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt",
    "tanh", "sigmoid", "sin", "cos", "maximum", "minimum", "fma", "erf",
)  # fmt: skip


@dataclass
class Keep:
    """A row's statements in which values are kept. `lets`: the ids of the lets whose values stay, by line."""

    body: tuple[Stmt, ...]
    lets: dict[str, Line] = field(default_factory=dict)


def keep(shape: Shape, near: Approximations) -> Keep:
    """The statements of a row with what is worth keeping kept."""
    return _Keeper(shape, near).run()


class _Keeper:
    def __init__(self, shape: Shape, near: Approximations) -> None:
        self.shape, self.near = shape, near
        self.numbers: dict[tuple[object, ...], int] = {}
        self.outer: dict[str, Expr] = {}  # lets of the row
        self.offers: list[tuple[Line, Let]] = []
        self.found = Keep(shape.body)

    def run(self) -> Keep:
        body: list[Stmt] = []
        for stmt in self.shape.body:
            if isinstance(stmt, Let):
                self.outer[stmt.id] = stmt.value
            elif isinstance(stmt, Loop) and id(stmt) in self.shape.lines:
                line = self.shape.lines[id(stmt)]
                inner = tuple(self.served(line, s) for s in stmt.body) if self.offers else stmt.body
                changed = any(a is not b for a, b in zip(inner, stmt.body, strict=True))
                new = replace(stmt, body=prune(inner, {a.id for a in stmt.accs})) if changed else stmt
                if not line.ragged:
                    self.offers += [(line, s) for s in stmt.body if isinstance(s, Let) and self.costly(s.value, line)]
                stmt = new
            body.append(stmt)
        self.found.body = tuple(body)
        return self.found

    def served(self, line: Line, stmt: Stmt) -> Stmt:
        """A statement of a loop with kept values in place of the same ones."""
        if line.ragged or isinstance(stmt, Loop):
            return stmt
        value = self.replaced(stmt.value, line)
        return stmt if value is stmt.value else replace(stmt, value=value)

    def replaced(self, expr: Expr, line: Line) -> Expr:
        if self.costly(expr, line):
            for other, let in self.offers:
                if other.run == line.run and self.serves(let, other, expr, line):
                    self.found.lets[let.id] = other
                    return Load(KEPT + let.id, (), (), let.value.dtype)
        operands = tuple(child if lazy else self.replaced(child, line) for child, lazy in guarded(expr))
        if all(a is b for a, b in zip(operands, children(expr), strict=True)):
            return expr
        new = rebuild(expr, operands)
        spelled = self.near.chosen.get(id(expr))
        if isinstance(expr, Op) and isinstance(new, Op) and spelled is not None and spelled[1] == expr.args:
            self.near.chosen[id(new)] = spelled[0], new.args
        return new

    def costly(self, expr: Expr, line: Line) -> bool:
        """Whether the root of an expression is worth keeping, and moves along the run."""
        if not isinstance(expr, Op) or not (OPS[expr.op].special or expr.op in COSTLY) or expr.dtype.bits > 32:
            return False
        return self.moves(expr, line)

    def moves(self, expr: Expr, line: Line) -> bool:
        """Whether a value differs along the run."""
        dims = {d.id for d in line.loop.dims}
        inner = {s.id: s.value for s in line.loop.body if isinstance(s, Let)}
        stack, seen = [expr], set()
        while stack:
            node = stack.pop()
            if isinstance(node, Affine) and node.poly.names & (dims | inner.keys()):
                return True
            if isinstance(node, Ref) and node.id in inner and node.id not in seen:
                seen.add(node.id)
                stack.append(inner[node.id])
            stack += children(node)
        return False

    # -- the same value -----------------------------------------------------------------------------------------------

    def serves(self, let: Let, home: Line, expr: Expr, line: Line) -> bool:
        """Whether the value of a let is that of an expression of a later loop, as far as it matters."""
        if self.approximate(let.value, home) and not self.approximate(expr, line):
            return False
        wanted = self.number(expr, line)
        if self.number(let.value, home) == wanted:
            return True
        for cond in self.conditions(let.value, home):
            test = self.number(cond, home)
            without = self.number(let.value, home, {test: False}) == self.number(expr, line, {test: False})
            if without and self.lost(expr, line, test):
                return True
        return False

    def approximate(self, expr: Expr, line: Line) -> bool:
        """Whether some operation of a value is spelled approximately."""
        return any(id(node) in self.near.chosen for node in self.through(expr, line))

    def conditions(self, expr: Expr, line: Line) -> list[Expr]:
        """The conditions of selects that are the same for the whole row."""
        return [n.cond for n in self.through(expr, line) if isinstance(n, Select) and not self.moves(n.cond, line)]

    def lets(self, line: Line) -> Mapping[str, Expr]:
        return {**self.outer, **{s.id: s.value for s in line.loop.body if isinstance(s, Let)}}

    def through(self, expr: Expr, line: Line) -> Iterator[Expr]:
        """The nodes of a value, lets looked through."""
        lets, stack, seen = self.lets(line), [expr], set()
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            stack += children(node)
            if isinstance(node, Ref) and node.id in lets:
                stack.append(lets[node.id])

    def number(self, expr: Expr, line: Line, assume: Mapping[int, bool] | None = None) -> int:
        """The number of a value; where conditions are assumed, of what it then is."""
        lets = self.lets(line)
        indices = {d.id: Poly.of(f"#{n}") for n, d in enumerate(line.loop.dims)}
        known: dict[int, int] = {}

        def visit(node: Expr) -> int:
            if id(node) in known:
                return known[id(node)]
            key: tuple[object, ...]
            if isinstance(node, Ref) and node.id in lets:
                found = visit(lets[node.id])
            elif isinstance(node, Select) and assume and (test := visit(node.cond)) in assume:
                found = visit(node.then if assume[test] else node.other)
            else:
                if isinstance(node, Affine):
                    key = ("affine", node.poly.subs(indices))
                elif isinstance(node, Const):
                    key = ("const", node.bits, node.dtype)
                elif isinstance(node, Ref):
                    key = ("ref", node.id)
                elif isinstance(node, Load):
                    key = ("load", node.buffer, node.modes, *(visit(s) for s in node.subs))
                elif isinstance(node, Op):
                    key = (node.op, node.dtype, *(visit(a) for a in node.args))
                else:
                    key = ("select", visit(node.cond), visit(node.then), visit(node.other))
                found = self.numbers.setdefault(key, len(self.numbers))
            known[id(node)] = found
            return found

        return visit(expr)

    # -- where a condition does not hold ------------------------------------------------------------------------------

    def lost(self, expr: Expr, line: Line, test: int) -> bool:
        """Whether all that a loop stores from a value is NaN where the condition with this number holds."""
        tainted: set[str] = set()
        for stmt in line.loop.body:
            if isinstance(stmt, Loop):
                if any(isinstance(s, Store) for s in walk((stmt,))):
                    return False
                continue
            if not self.uses(stmt, expr, tainted):
                continue
            if isinstance(stmt, Let):
                tainted.add(stmt.id)
            elif stmt.absorb or not self.nan(stmt.value, line, test):
                return False
        return True

    def uses(self, stmt: Let | Store, expr: Expr, tainted: set[str]) -> bool:
        stack: list[Expr] = [stmt.value, *(stmt.subs if isinstance(stmt, Store) else ())]
        while stack:
            node = stack.pop()
            if node == expr or (isinstance(node, Ref) and node.id in tainted):
                return True
            if isinstance(node, Affine) and node.poly.names & tainted:
                return True
            stack += children(node)
        return False

    def nan(self, expr: Expr, line: Line, test: int) -> bool:
        """Whether a value is NaN where the condition with this number holds."""
        if isinstance(expr, Const):
            return expr.dtype.is_float and _is_nan(expr)
        if isinstance(expr, Ref):
            lets = self.lets(line)
            return expr.id in lets and self.nan(lets[expr.id], line, test)
        if isinstance(expr, Select):
            if self.number(expr.cond, line) == test:
                return self.nan(expr.then, line, test)
            return self.nan(expr.then, line, test) and self.nan(expr.other, line, test)
        if isinstance(expr, Op) and expr.dtype.is_float:
            if expr.op == "cast":
                return expr.args[0].dtype.is_float and self.nan(expr.args[0], line, test)
            return expr.op in SPREADS_NAN and any(self.nan(a, line, test) for a in expr.args)
        return False


def _is_nan(const: Const) -> bool:
    return math.isnan(float(to_number(const.bits, const.dtype)))
