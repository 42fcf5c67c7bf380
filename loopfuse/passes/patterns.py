"""Patterns of expressions with typed metavariables: what a line of a rule file is made of, matched and built.

A lower-case name stands for any expression, the same one wherever it occurs. Operands of an operation have one type, as
the op table says, so that most types follow; a call of one capital letter, `T(x)`, is a cast to a type that may be any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from loopfuse.constants import parse_const, to_bits
from loopfuse.dtypes import BOOL, DType
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.oprow import named_value
from loopfuse.ops import OPS
from loopfuse.rewrite import children, subexprs


@dataclass(frozen=True, slots=True)
class Var:
    """Any expression; the same name is the same expression."""

    name: str


@dataclass(frozen=True, slots=True)
class Num:
    """A constant, by its bits at the type that it has there: `1` is the one of that type, `-0.0` is not `0.0`."""

    text: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation of the table, by name."""

    op: str
    args: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast to an element type, or to the type that a capital letter stands for."""

    target: DType | str
    arg: Pattern


@dataclass(frozen=True, slots=True)
class Choice:
    """`then if cond else other`."""

    cond: Pattern
    then: Pattern
    other: Pattern


@dataclass(frozen=True, slots=True)
class Made:
    """A constant computed from a constant, on the right of a rule only."""

    function: str
    arg: Var


Pattern = Var | Num | Apply | Cast | Choice | Made
Binding = Mapping[str, Expr]
Types = dict[object, DType]  # by the slot of a pattern's type
MOST_EQUAL = 4096  # nodes compared before two expressions count as different


def parts(pattern: Pattern) -> tuple[Pattern, ...]:
    """The direct operands."""
    if isinstance(pattern, Apply):
        return pattern.args
    if isinstance(pattern, Cast | Made):
        return (pattern.arg,)
    if isinstance(pattern, Choice):
        return (pattern.cond, pattern.then, pattern.other)
    return ()


def variables(pattern: Pattern) -> Iterator[str]:
    """The names of the metavariables, with repetitions."""
    if isinstance(pattern, Var):
        yield pattern.name
    for part in parts(pattern):
        yield from variables(part)


@lru_cache(maxsize=4096)
def number_bits(text: str, dtype: DType) -> int | None:
    """The bits of a number of a rule at a type, or None where the type has no such number."""
    if dtype == BOOL or text in ("true", "false"):
        return int(text == "true") if dtype == BOOL and text in ("true", "false") else None
    if text == "ones":
        return to_bits(named_value("ones", dtype), dtype) if dtype.is_int else None
    try:
        return parse_const(text, dtype)
    except ValueError:
        return None


def same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are equal, spans aside; without recursion, and no for very large ones."""
    stack = [(a, b)]
    known: set[tuple[int, int]] = set()
    while stack:
        x, y = stack.pop()
        if x is y or (id(x), id(y)) in known:
            continue
        if type(x) is not type(y) or len(known) > MOST_EQUAL:
            return False
        known.add((id(x), id(y)))
        if isinstance(x, Const | Affine | Ref):
            if x != y:
                return False
            continue
        if not _same_head(x, y):
            return False
        stack.extend(zip(children(x), children(y), strict=True))
    return True


def _same_head(x: Expr, y: Expr) -> bool:
    """Whether two nodes are equal but for their operands."""
    if isinstance(x, Op) and isinstance(y, Op):
        return (x.op, x.dtype, x.implied, len(x.args)) == (y.op, y.dtype, y.implied, len(y.args))
    if isinstance(x, Load) and isinstance(y, Load):
        return (x.buffer, x.modes, x.dtype, len(x.subs)) == (y.buffer, y.modes, y.dtype, len(y.subs))
    return isinstance(x, Select) and isinstance(y, Select)


def faults(expr: Expr) -> bool:
    """Whether leaving the expression out may leave out the report of a read outside an array."""
    return any(
        isinstance(n, Load) and any(m is not None and m.kind == "checked" for m in n.modes) for n in subexprs(expr)
    )


def reads(expr: Expr) -> bool:
    """Whether the expression loads anything."""
    return any(isinstance(n, Load) for n in subexprs(expr))


# -- types ------------------------------------------------------------------------------------------------------------


class Slots:
    """The types of the patterns of one rule: equal ones share a slot, which may be known or restricted.

    A slot is an int, or the name of a metavariable or of a capital letter; `allowed` holds the types it may have.
    """

    def __init__(self, everything: frozenset[DType]) -> None:
        self.everything = everything
        self.parent: dict[object, object] = {}
        self.limits: dict[object, frozenset[DType]] = {}
        self.of: dict[int, object] = {}
        self.kept: list[Pattern] = []

    def root(self, slot: object) -> object:
        """The slot that stands for all that are equal to this one."""
        while slot in self.parent:
            slot = self.parent[slot]
        return slot

    def allowed(self, slot: object) -> frozenset[DType]:
        """The types that a slot may have."""
        return self.limits.get(self.root(slot), self.everything)

    def limit(self, slot: object, allowed: frozenset[DType]) -> None:
        """Restrict a slot."""
        root = self.root(slot)
        self.limits[root] = self.allowed(root) & allowed

    def unify(self, a: object, b: object) -> None:
        """Make two slots one."""
        a, b = self.root(a), self.root(b)
        if a != b:
            allowed = self.allowed(a) & self.allowed(b)
            self.parent[b] = a
            self.limits[a] = allowed

    def add(self, pattern: Pattern) -> object:
        """The slot of a pattern; its operands' are made on the way."""
        known = self.of.get(id(pattern))
        if known is not None:
            return known
        self.kept.append(pattern)
        slot = self._slot(pattern)
        self.of[id(pattern)] = slot
        return slot

    def _slot(self, pattern: Pattern) -> object:
        if isinstance(pattern, Var):
            return pattern.name
        if isinstance(pattern, Made):
            return self.add(pattern.arg)
        slot: object = len(self.kept)
        inner = [self.add(p) for p in parts(pattern)]
        if isinstance(pattern, Cast):
            if isinstance(pattern.target, str):
                return pattern.target
            self.limit(slot, frozenset({pattern.target}))
        elif isinstance(pattern, Choice):
            self.limit(inner[0], frozenset({BOOL}))
            self.unify(inner[1], inner[2])
            return inner[1]
        elif isinstance(pattern, Apply):
            row = OPS[pattern.op]
            first = 1 if row.operands == "cond" else 0
            if first:
                self.limit(inner[0], frozenset({BOOL}))
            for other in inner[first + 1 :]:
                self.unify(inner[first], other)
            self.limit(inner[first], frozenset(d for d in self.everything if d.kind in row.kinds))
            if row.gives == "bool":
                self.limit(slot, frozenset({BOOL}))
                return slot
            return inner[first]
        return slot


# -- matching ---------------------------------------------------------------------------------------------------------

Step = tuple[dict[str, Expr], Types]


class Matcher:
    """Matches one pattern: gives bindings of the metavariables, operands exchanged where an operation commutes."""

    def __init__(self, slots: Slots, pattern: Pattern) -> None:
        self.slots, self.pattern = slots, pattern

    def __call__(self, expr: Expr) -> Iterator[Step]:
        """All ways in which the expression is an instance of the pattern."""
        return self._match(self.pattern, expr, ({}, {}))

    def _match(self, pattern: Pattern, expr: Expr, step: Step) -> Iterator[Step]:
        if not _heads_agree(pattern, expr):
            return
        slot = self.slots.root(self.slots.of[id(pattern)])
        bound, types = step
        dtype = types.get(slot)
        if dtype is None:
            if expr.dtype not in self.slots.allowed(slot):
                return
            step = (bound, {**types, slot: expr.dtype})
        elif dtype != expr.dtype:
            return
        if isinstance(pattern, Var):
            yield from self._variable(pattern.name, expr, step)
        elif isinstance(pattern, Num):
            if is_number(pattern.text, expr):
                yield step
        elif isinstance(expr, Op):
            yield from self._operands(parts(pattern), expr.args, step)
            if len(expr.args) == 2 and OPS[expr.op].law("commutative", expr.args[0].dtype) and not lazy(expr.op):
                yield from self._operands(parts(pattern), expr.args[::-1], step)
        else:
            yield from self._operands(parts(pattern), children(expr), step)

    def _variable(self, name: str, expr: Expr, step: Step) -> Iterator[Step]:
        bound, types = step
        known = bound.get(name)
        if known is None:
            yield {**bound, name: expr}, types
        elif same(known, expr):
            yield step

    def _operands(self, patterns: tuple[Pattern, ...], exprs: tuple[Expr, ...], step: Step) -> Iterator[Step]:
        if not patterns:
            yield step
            return
        for found in self._match(patterns[0], exprs[0], step):
            yield from self._operands(patterns[1:], exprs[1:], found)


def lazy(op: str) -> bool:
    """Whether an operand of the operation is read only where another one says so (`and`, `or`)."""
    return OPS[op].kinds == ("bool",) and OPS[op].arity == 2


def is_number(text: str, expr: Expr) -> bool:
    """Whether an expression is a constant with the bits of a rule's number."""
    if isinstance(expr, Const):
        return number_bits(text, expr.dtype) == expr.bits
    if isinstance(expr, Affine) and expr.poly.is_const:
        bits = number_bits(text, expr.dtype)
        return bits is not None and bits == expr.poly.constant & ((1 << 64) - 1)
    return False


def _heads_agree(pattern: Pattern, expr: Expr) -> bool:
    if isinstance(pattern, Apply):
        return isinstance(expr, Op) and expr.op == pattern.op
    if isinstance(pattern, Cast):
        known = isinstance(pattern.target, str) or pattern.target == expr.dtype
        return isinstance(expr, Op) and expr.op == "cast" and known
    if isinstance(pattern, Choice):
        return isinstance(expr, Select)
    return True


# -- building ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds expressions from patterns; `makers` compute constants from constants."""

    slots: Slots
    makers: Mapping[str, Callable[[Const], Const | None]]

    def __call__(self, pattern: Pattern, bound: Binding, types: Types, like: Expr) -> Expr | None:
        """The instance of a pattern, or None where a constant of it does not exist; `like` lends span and `implied`."""
        if isinstance(pattern, Var):
            return bound[pattern.name]
        dtype = types[self.slots.root(self.slots.of[id(pattern)])]
        if isinstance(pattern, Num):
            bits = number_bits(pattern.text, dtype)
            return None if bits is None else Const(bits, dtype, span=like.span)
        if isinstance(pattern, Made):
            value = bound[pattern.arg.name]
            return self.makers[pattern.function](value) if isinstance(value, Const) else None
        built = [self(p, bound, types, like) for p in parts(pattern)]
        args = tuple(a for a in built if a is not None)
        if len(args) < len(built):
            return None
        if isinstance(pattern, Choice):
            return Select(args[0], args[1], args[2], span=like.span)
        if isinstance(pattern, Cast):
            implied = isinstance(like, Op) and like.op == "cast" and like.implied
            return Op("cast", args, dtype, implied, span=like.span)
        return Op(pattern.op, args, OPS[pattern.op].result([a.dtype for a in args]), span=like.span)
