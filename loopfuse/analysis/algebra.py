"""Separation of terms: which part of a term varies along a loop, and which depends on results of earlier folds.

A term is written as a sum of *parts*. A part is a product of an expression of the element, of *outer* factors that
depend on results only, of one *power* (an exponential, whose argument adds something of the element and something of
results), and of *centred* factors (an element minus a result). The laws are columns of the op table: `arithmetic` and
the homomorphisms; floats keep them but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loopfuse.constants import constant, from_bits, to_number
from loopfuse.dtypes import I64, DType
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.ops import OPS, Homomorphism
from loopfuse.printer import print_expr
from loopfuse.rewrite import children, rebuild, subexprs
from loopfuse.sizes import Poly

FREE, ELEMENT, RESULT, MIXED = 0, 1, 2, 3
DEPTH, PARTS, NODES = 60, 16, 400


class Inseparable(Exception):
    """A term is no sum of products; `node` is the part of it that is none, and `why` goes on from its text in words,
    where `{result}` stands for what the earlier fold computes."""

    def __init__(self, node: Expr, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


@dataclass(frozen=True, slots=True)
class Piece:
    """An addend of a power's argument: `sign * value`, times or (where `inverse`) divided by what varies with nothing."""

    sign: int
    value: Expr
    scale: tuple[tuple[Expr, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Power:
    """A factor f(element + result) with f a homomorphism from sums to products; `node` is how it is written."""

    node: Expr
    law: Homomorphism
    element: tuple[Piece, ...]
    result: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Centre:
    """A factor `sign * (element - result)`, written as `node`."""

    node: Expr
    element: Expr
    result: Expr
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A summand: `expr` (None: 1), which holds the powers and centres, times the outer factors (True: divided by).

    Several powers are alternatives: of a sum, or of the arms of a select; they agree in what depends on results.
    `conds`: where all of these hold the part counts, elsewhere it is zero. `wide`: outer factors multiply that zero,
    too; `open`: so do the powers. `lazy`: a power or centre stands in an arm.
    """

    expr: Expr | None
    outer: tuple[tuple[Expr, bool], ...] = ()
    powers: tuple[Power, ...] = ()
    centres: tuple[Centre, ...] = ()
    conds: tuple[Expr, ...] = ()
    lazy: bool = False
    wide: bool = False
    open: bool = False

    @property
    def key(self) -> Any:
        """What two parts must agree in to be one."""
        return self.outer, self.powers[0].result if self.powers else None, tuple(c.node for c in self.centres)


def number(value: float, dtype: DType) -> Const:
    """A constant."""
    return Const(constant(value, dtype), dtype)


def is_number(expr: Expr, value: float) -> bool:
    """Whether the expression is the constant of that value."""
    return isinstance(expr, Const) and expr.dtype.kind != "bool" and to_number(expr.bits, expr.dtype) == value


def arms(expr: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Condition and arms of a choice, lazy or not."""
    if isinstance(expr, Select):
        return expr.cond, expr.then, expr.other
    if isinstance(expr, Op) and OPS[expr.op].operands == "cond":
        return expr.args[0], expr.args[1], expr.args[2]
    return None


def either(like: Expr, cond: Expr, then: Expr, other: Expr) -> Expr:
    """A choice of the same sort as `like`."""
    if isinstance(like, Op):
        return Op(like.op, (cond, then, other), then.dtype, span=like.span)
    return Select(cond, then, other, span=like.span)


def power_law(expr: Expr) -> Homomorphism | None:
    """The law by which a function of one operand turns sums into products."""
    if not isinstance(expr, Op) or len(expr.args) != 1:
        return None
    for law in OPS[expr.op].homomorphisms:
        source, image = OPS[law.source].arithmetic, OPS[law.image].arithmetic
        if source == "sum" and image == "product" and law.undo_image and expr.dtype.kind in law.kinds:
            return law
    return None


def is_negation(expr: Expr) -> bool:
    """Whether f(a + b) = f(a) + f(b) and f undoes itself."""
    if not isinstance(expr, Op) or len(expr.args) != 1 or OPS[expr.op].inverse != expr.op:
        return False
    laws = OPS[expr.op].homomorphisms
    return any(OPS[h.source].arithmetic == "sum" == OPS[h.image].arithmetic for h in laws)


def arithmetic(expr: Expr) -> str | None:
    """What the operation at the root is among those of real numbers; integers wrap and are none."""
    return OPS[expr.op].arithmetic if isinstance(expr, Op) and expr.dtype.is_float else None


NEGATE = next(r.name for r in OPS.values() if r.prefix == "-")
SYMBOL = {row.arithmetic: name for name, row in OPS.items() if row.arithmetic}


def negated(expr: Expr) -> Expr:
    """The negative, without a double one."""
    if is_negation(expr) and isinstance(expr, Op):
        return expr.args[0]
    return Op(NEGATE, (expr,), expr.dtype, span=expr.span)


def times(a: Expr | None, b: Expr | None, like: Op | None = None) -> Expr | None:
    """The product, where None and 1 are 1."""
    if a is None or is_number(a, 1):
        return b
    if b is None or is_number(b, 1):
        return a
    return Op(SYMBOL["product"], (a, b), a.dtype, span=like.span if like else None)


def plus(a: Expr, b: Expr, difference: bool = False) -> Expr:
    """The sum or difference."""
    return Op(SYMBOL["difference" if difference else "sum"], (a, b), a.dtype)


def over(a: Expr, b: Expr) -> Expr:
    """The quotient."""
    return Op(SYMBOL["quotient"], (a, b), a.dtype)


@dataclass
class Terms:
    """The names that terms are made of: the definitions of lets, and the side of every name that is not free.

    A name is on the side of the element (it varies along the loop) or of results (it depends on earlier folds), or
    on both.
    """

    lets: Mapping[str, Expr]
    sides: Mapping[str, int]
    memo: dict[int, tuple[Expr, int]] = field(default_factory=dict)

    def side(self, expr: Expr) -> int:
        """What an expression depends on."""
        known = self.memo.get(id(expr))
        if known is not None:
            return known[1]
        for node in subexprs(expr):
            if id(node) in self.memo:
                continue
            found = FREE
            for child in children(node):
                found |= self.memo[id(child)][1]
            if isinstance(node, Ref):
                found = self.sides.get(node.id, FREE)
            elif isinstance(node, Load):
                found |= self.sides.get(node.buffer, FREE)
            elif isinstance(node, Affine):
                for name in node.poly.names:
                    found |= self.sides.get(name, FREE)
            self.memo[id(node)] = (node, found)
        return self.memo[id(expr)][1]

    # -- sums of products ---------------------------------------------------------------------------------------------

    def split(self, expr: Expr, depth: int = 0) -> list[Part]:
        """The parts whose sum is the expression.

        Raises:
            Inseparable: it is no such sum.
        """
        side = self.side(expr)
        if side == RESULT:
            return [Part(None, ((expr, False),))]
        if side != MIXED:
            return [Part(expr)]
        if depth > DEPTH:
            raise Inseparable(expr, "and the term is too long to take apart")
        if isinstance(expr, Ref):
            if expr.id not in self.lets:
                raise Inseparable(expr, "which an inner fold computes from both")
            return self.split(self.lets[expr.id], depth + 1)
        choice = arms(expr)
        if choice is not None:
            return self._choice(expr, choice, depth)
        if not isinstance(expr, Op):
            raise Inseparable(expr, "whose subscript depends on both")
        if is_negation(expr):
            inner = self.split(expr.args[0], depth + 1)
            return [replace(p, expr=number(-1, expr.dtype) if p.expr is None else negated(p.expr)) for p in inner]
        kind = arithmetic(expr)
        if kind in ("sum", "difference"):
            return self._sum(expr, kind == "difference", depth)
        if kind == "product":
            return self._product(expr, expr.args[0], expr.args[1], depth)
        if kind == "power" and is_number(expr.args[1], 2):
            return self._product(expr, expr.args[0], expr.args[0], depth)
        if kind == "quotient":
            return self._quotient(expr, depth)
        law = power_law(expr)
        if law is not None:
            return self._power(expr, law, depth)
        raise Inseparable(expr, "which is no product of a function of the element and one of the {result}")

    def _sum(self, expr: Op, difference: bool, depth: int) -> list[Part]:
        a, b = expr.args
        sides = self.side(a), self.side(b)
        if sides == (ELEMENT, RESULT):
            return [Part(expr, centres=(Centre(expr, a, b if difference else negated(b)),))]
        if sides == (RESULT, ELEMENT):
            if difference:
                return [Part(expr, centres=(Centre(expr, b, a, -1),))]
            return [Part(expr, centres=(Centre(expr, b, negated(a)),))]
        left = self.split(a, depth + 1)
        if sides[1] == RESULT and len(left) == 1 and _is_centred(left[0]):
            (centre,) = left[0].centres
            return [Part(expr, centres=(Centre(expr, centre.element, plus(centre.result, b, not difference)),))]
        right = self.split(b, depth + 1)
        if len(left) == len(right) == 1 and left[0].key == right[0].key and not left[0].centres:
            p, q = left[0], right[0]
            if p.expr is not None and q.expr is not None:
                conds = p.conds if p.conds == q.conds else ()
                joined = Op(expr.op, (p.expr, q.expr), expr.dtype, span=expr.span)
                return [
                    Part(
                        joined,
                        p.outer,
                        p.powers + q.powers,
                        (),
                        conds,
                        p.lazy or q.lazy,
                        p.wide or q.wide,
                        p.open or q.open,
                    )
                ]
        if difference:
            right = [replace(p, expr=number(-1, expr.dtype) if p.expr is None else negated(p.expr)) for p in right]
        return self._few(expr, left + right)

    def _few(self, expr: Expr, parts: list[Part]) -> list[Part]:
        if len(parts) > PARTS:
            raise Inseparable(expr, "which has too many summands")
        return parts

    def _product(self, expr: Op, a: Expr, b: Expr, depth: int) -> list[Part]:
        left = self.split(a, depth + 1)
        right = left if a is b else self.split(b, depth + 1)
        made = []
        for p in left:
            for q in right:
                if p.powers and q.powers:
                    raise Inseparable(expr, "where two factors are exponentials of results")
                if (p.powers or q.powers) and (p.centres or q.centres):
                    raise Inseparable(
                        expr, "which multiplies an exponential of one result and a difference from another"
                    )
                made.append(
                    Part(times(p.expr, q.expr, expr), p.outer + q.outer, p.powers + q.powers, p.centres + q.centres,
                         p.conds + q.conds, p.lazy or q.lazy,
                         p.wide or q.wide or bool(p.conds and q.outer) or bool(q.conds and p.outer),
                         p.open or q.open or bool(p.conds and q.powers) or bool(q.conds and p.powers))
                )  # fmt: skip
        return self._few(expr, made)

    def _quotient(self, expr: Op, depth: int) -> list[Part]:
        a, b = expr.args
        side = self.side(b)
        if side == MIXED:
            raise Inseparable(expr, "whose divisor mixes the element and the {result}")
        made = []
        for p in self.split(a, depth + 1):
            if side == RESULT:
                made.append(replace(p, outer=(*p.outer, (b, True)), wide=p.wide or bool(p.conds)))
            else:
                one = number(1, expr.dtype) if p.expr is None else p.expr
                made.append(replace(p, expr=Op(expr.op, (one, b), expr.dtype, span=expr.span)))
        return made

    def _choice(self, expr: Expr, choice: tuple[Expr, Expr, Expr], depth: int) -> list[Part]:
        cond, then, other = choice
        if self.side(cond) & RESULT:
            raise Inseparable(cond, "which decides between two values")
        zero = number(0, expr.dtype)
        yes = [] if is_number(then, 0) else self.split(then, depth + 1)
        no = [] if is_number(other, 0) else self.split(other, depth + 1)
        if len(yes) == len(no) == 1 and yes[0].key == no[0].key and not yes[0].centres:
            p, q = yes[0], no[0]
            if p.expr is not None and q.expr is not None:
                joined = either(expr, cond, p.expr, q.expr)
                return [Part(joined, p.outer, p.powers + q.powers, (), (), True)]
        if any(p.wide or p.open for p in (*yes, *no)):
            raise Inseparable(expr, "which nests conditions")
        one = number(1, expr.dtype)
        opposite = Op("not", (cond,), cond.dtype)
        made = [replace(p, expr=either(expr, cond, p.expr or one, zero), conds=(cond, *p.conds), lazy=True)
                for p in yes]  # fmt: skip
        made += [replace(p, expr=either(expr, cond, zero, p.expr or one), conds=(opposite, *p.conds), lazy=True)
                 for p in no]  # fmt: skip
        return self._few(expr, made)

    # -- exponentials -------------------------------------------------------------------------------------------------

    def _power(self, expr: Op, law: Homomorphism, depth: int) -> list[Part]:
        inner: Expr = expr.args[0]
        while isinstance(inner, Ref) and inner.id in self.lets and arms(self.lets[inner.id]) is not None:
            inner = self.lets[inner.id]
        choice = arms(inner)
        if choice is not None and self.side(inner) == MIXED:
            cond = choice[0]
            then: Expr = replace(expr, args=(choice[1],))
            other: Expr = replace(expr, args=(choice[2],))
            if law.pole is not None and is_number(choice[2], law.pole):
                other = number(0, expr.dtype)
            return self.split(either(inner, cond, then, other), depth + 1)
        pieces = self.addends(inner, depth)
        element = tuple(p for p in pieces if self.side(p.value) != RESULT)
        result = tuple(p for p in pieces if self.side(p.value) == RESULT)
        return [Part(expr, powers=(Power(expr, law, element, result),))]

    def addends(self, expr: Expr, depth: int = 0) -> list[Piece]:
        """The expression as a sum of pieces of which none mixes the two sides.

        Raises:
            Inseparable: it is none.
        """
        if self.side(expr) != MIXED:
            return [Piece(1, expr)]
        if depth > DEPTH:
            raise Inseparable(expr, "and the term is too long to take apart")
        if isinstance(expr, Ref) and expr.id in self.lets:
            return self.addends(self.lets[expr.id], depth + 1)
        kind = arithmetic(expr)
        if isinstance(expr, Op):
            if is_negation(expr):
                return [replace(p, sign=-p.sign) for p in self.addends(expr.args[0], depth + 1)]
            if kind in ("sum", "difference"):
                right = self.addends(expr.args[1], depth + 1)
                if kind == "difference":
                    right = [replace(p, sign=-p.sign) for p in right]
                return self.addends(expr.args[0], depth + 1) + right
            if kind in ("product", "quotient"):
                a, b = expr.args
                if kind == "product" and self.side(a) == FREE:
                    a, b = b, a
                if self.side(b) == FREE:
                    by = (b, kind == "quotient")
                    return [replace(p, scale=(*p.scale, by)) for p in self.addends(a, depth + 1)]
        raise Inseparable(expr, "which is no sum of a function of the element and one of the {result}")

    # -- equality of real expressions ---------------------------------------------------------------------------------

    def expand(self, expr: Expr, stop: Callable[[str], bool] = lambda _: False) -> Expr | None:
        """The expression with lets put in, but for those of names that `stop`; None where it becomes too large."""
        left = NODES
        known: dict[int, Expr] = {}
        stack: list[Expr] = [expr]
        while stack:
            node = stack[-1]
            if id(node) in known:
                stack.pop()
                continue
            below: tuple[Expr, ...] = children(node)
            if isinstance(node, Ref) and node.id in self.lets and not stop(node.id):
                below = (self.lets[node.id],)
            waiting = [c for c in below if id(c) not in known]
            if waiting:
                stack += waiting
                continue
            left -= 1
            if left < 0:
                return None
            stack.pop()
            is_let = isinstance(node, Ref) and below
            known[id(node)] = known[id(below[0])] if is_let else rebuild(node, tuple(known[id(c)] for c in below))
        return known[id(expr)]

    def open(self, expr: Expr) -> Expr:
        """The expression with those lets put in that mix the two sides."""
        free = self.expand(expr, lambda name: self.sides.get(name, FREE) != MIXED)
        if free is None:
            raise Inseparable(expr, "and the term is too long to take apart")
        return free

    def monomials(self, pieces: list[Piece]) -> dict[tuple[str, ...], int] | None:
        """The sum of pieces as a polynomial over printed factors, those that vary with nothing left out."""
        found: dict[tuple[str, ...], int] = {}
        for piece in pieces:
            whole = self.expand(piece.value)
            if whole is None:
                return None
            for coefficient, factors in _products(whole, 0):
                fixed = all(self.side(f) == FREE for f, _ in factors)
                if fixed and self.side(piece.value) == FREE:
                    continue
                key = tuple(sorted(f"{'/' if i else ''}{print_expr(f)}" for f, i in (*factors, *piece.scale)))
                found[key] = found.get(key, 0) + piece.sign * coefficient
        return {k: c for k, c in found.items() if c}


def _is_centred(part: Part) -> bool:
    """Whether the part is an element minus a result and nothing else."""
    if len(part.centres) != 1 or part.outer or part.conds:
        return False
    return part.centres[0].sign == 1 and part.expr == part.centres[0].node


def _products(expr: Expr, depth: int) -> Iterator[tuple[int, tuple[tuple[Expr, bool], ...]]]:
    """An expression as a sum of products with integer signs."""
    kind = arithmetic(expr)
    if depth > DEPTH or not isinstance(expr, Op):
        yield 1, ((expr, False),)
    elif is_negation(expr):
        yield from ((-c, f) for c, f in _products(expr.args[0], depth + 1))
    elif kind in ("sum", "difference"):
        yield from _products(expr.args[0], depth + 1)
        sign = -1 if kind == "difference" else 1
        yield from ((sign * c, f) for c, f in _products(expr.args[1], depth + 1))
    elif kind == "product":
        right = list(_products(expr.args[1], depth + 1))
        for c, f in _products(expr.args[0], depth + 1):
            yield from ((c * d, f + g) for d, g in right)
    elif kind == "quotient":
        yield from ((c, (*f, (expr.args[1], True))) for c, f in _products(expr.args[0], depth + 1))
    else:
        yield 1, ((expr, False),)


def evaluate(expr: Expr, values: Mapping[str, Any]) -> Any:
    """The value of an expression over numbers for its names; a load is named by its array. None where one lacks."""
    known: dict[int, Any] = {}
    for node in subexprs(expr):
        below = [known[id(c)] for c in children(node)]
        value: Any = None
        if isinstance(node, Const):
            value = from_bits(node.bits, node.dtype)
        elif isinstance(node, Affine):
            if all(values.get(n) is not None for n in node.poly.names):
                value = I64.numpy.type(node.poly.value(values))
        elif isinstance(node, Ref):
            value = values.get(node.id)
        elif isinstance(node, Load):
            value = values.get(node.buffer)
        elif isinstance(node, Select):
            value = below[1 if below[0] else 2] if below[0] is not None else None
        elif all(b is not None for b in below):
            value = OPS[node.op].evaluate(below, node.dtype)
        known[id(node)] = value
    return known[id(expr)]


def affine(name: str | int) -> Affine:
    """A name or a number as an index."""
    return Affine(Poly.of(name))
