"""Reading files of rules: one rule a line, in the language's own syntax.

    name: lhs => rhs where float(x), exact(x, U)    # why, where it is not plain

`where` says at which types the rule holds (a class or an element type, of a metavariable or a capital letter) and what
else it asks; see `CLASSES_OF` and `QUESTIONS`. A number is that number of the type which stands there. A rule may be
tried at every type that it claims: `Spec.claims` lists them, `Spec.example` gives an instance of its left side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from loopfuse.constants import constant, to_number
from loopfuse.diag import CompilerError, Source
from loopfuse.dtypes import CLASSES, DTYPES, DType
from loopfuse.frontend import ast
from loopfuse.frontend.parse import parse_expr
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref
from loopfuse.ops import FUNCTIONS, INFIX, PREFIX
from loopfuse.passes.patterns import (
    Apply,
    Builder,
    Cast,
    Choice,
    Made,
    Matcher,
    Num,
    Pattern,
    Slots,
    Types,
    Var,
    faults,
    parts,
    reads,
    variables,
)
from loopfuse.rules import Rule

EVERYTHING = frozenset(DTYPES.values())
KINDS = {**CLASSES, "bool": ("bool",), "uint": ("uint",), "signed": ("int", "float")}
CLASSES_OF: dict[str, frozenset[DType]] = {
    **{name: frozenset(d for d in EVERYTHING if d.kind in kinds) for name, kinds in KINDS.items()},
    **{name: frozenset({d}) for name, d in DTYPES.items()},
}
NUMBERS = frozenset({"inf", "nan", "ones"})
_LINE = re.compile(r"\s*(?P<name>[a-z][\w-]*)\s*:\s*(?P<lhs>.*?)\s*=>\s*(?P<rhs>.*?)(?:\s+where\s+(?P<where>.*?))?\s*")
_ASKED = re.compile(r"(\w+)\(([\w, ]*)\)")


# -- what a rule may ask ----------------------------------------------------------------------------------------------


def exact(source: DType, target: DType) -> bool:
    """Whether every value of a type is one of another, so that a cast there and back changes nothing."""
    if source == target or source.kind == "bool":
        return True
    if target.kind == "bool" or (source.is_float and not target.is_float):
        return False
    if target.is_int:
        return target.least <= source.least and source.greatest <= target.greatest
    if source.is_int:
        return source.bits - (source.kind == "int") <= target.mantissa
    wide = target.bits - target.mantissa >= source.bits - source.mantissa
    return wide and target.mantissa >= source.mantissa


def no_wider(a: DType, b: DType) -> bool:
    """Whether the first type has no more bits than the second."""
    return a.bits <= b.bits


def kin(a: DType, b: DType) -> bool:
    """Whether both types are integers or both are floats; bool is kin to all."""
    return a.kind == "bool" or a.is_float == b.is_float


def is_constant(value: Expr, root: Expr) -> bool:
    """A constant."""
    return isinstance(value, Const)


def is_power(value: Expr, root: Expr) -> bool:
    """A constant power of two, positive, whose reciprocal its type holds too: for floats both are normal numbers."""
    if not isinstance(value, Const) or value.dtype.kind == "bool":
        return False
    number = to_number(value.bits, value.dtype)
    if value.dtype.is_int:
        return number > 0 and int(number) & (int(number) - 1) == 0
    if not 0 < number < float("inf"):
        return False
    fraction, exponent = float(number).hex().split("p")
    least = 2 - (1 << (value.dtype.bits - value.dtype.mantissa - 1))
    return fraction == "0x1.0000000000000" and least <= int(exponent) <= -least


def is_settled(value: Expr, root: Expr) -> bool:
    """A value that no dropped rounding makes wider than its type: taking away a declared cast of another would matter."""
    implied = isinstance(root, Op) and root.implied
    declared = isinstance(value, Op) and value.op == "cast" and not value.implied
    return implied or declared or isinstance(value, Const) or value.dtype.bits != 16 or not value.dtype.is_float


def is_atomic(value: Expr, root: Expr) -> bool:
    """Something that may stand twice at no cost."""
    return isinstance(value, Const | Ref | Affine) or (isinstance(value, Load) and not faults(value))


def is_data(value: Expr, root: Expr) -> bool:
    """Something else than index arithmetic."""
    return not isinstance(value, Affine)


Question = Callable[[Expr, Expr], bool]
TYPE_QUESTIONS: dict[str, Callable[[DType, DType], bool]] = {"exact": exact, "narrower": no_wider, "kin": kin}
QUESTIONS: dict[str, Question] = {
    "const": is_constant, "power": is_power, "settled": is_settled, "atomic": is_atomic, "data": is_data,
}  # fmt: skip


def exponent(value: Const) -> Const | None:
    """The k of a constant 2**k, in its own type."""
    number = to_number(value.bits, value.dtype)
    size = int(number).bit_length() - 1
    return Const(constant(size, value.dtype), value.dtype, span=value.span) if number > 0 else None


MAKERS: dict[str, Callable[[Const], Const | None]] = {"exponent": exponent}


# -- a rule -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A rule as written, with the types of its parts.

    `asks` are (question, names); `dropped` are metavariables of the left side that the right side lacks, `bared` those
    that stood in an arm of a choice and no longer do. `rounds`: the two sides may differ in the last place.
    """

    name: str
    text: str
    lhs: Pattern
    rhs: Pattern
    slots: Slots = field(compare=False)
    asks: tuple[tuple[str, tuple[str, ...]], ...]
    dropped: frozenset[str]
    bared: frozenset[str]
    rounds: bool = False

    def rule(self) -> Rule:
        """The rule as the rewriter takes it."""
        head = {Cast: "cast", Choice: "Select"}.get(type(self.lhs)) or getattr(self.lhs, "op", "")
        matcher, builder = Matcher(self.slots, self.lhs), Builder(self.slots, MAKERS)

        def apply(node: Expr) -> Expr | None:
            for bound, types in matcher(node):
                if self._holds(bound, types, node):
                    made = builder(self.rhs, bound, types, node)
                    if made is not None and made.dtype == node.dtype:
                        return made
            return None

        return Rule(self.name, apply, (head,) if head else ())

    def unnamed(self, node: Expr) -> list[Expr]:
        """What needs a name of its own before the rule applies to a node; nothing where it applies, or never will."""
        wanted = [n for question, names in self.asks if question == "atomic" for n in names]
        for bound, types in Matcher(self.slots, self.lhs)(node) if wanted else ():
            if self._holds(bound, types, node, "atomic"):
                return [bound[n] for n in wanted if not is_atomic(bound[n], node)]
        return []

    def _holds(self, bound: Mapping[str, Expr], types: Types, root: Expr, waived: str = "") -> bool:
        if not self.types_hold(types):
            return False
        for question, names in self.asks:
            if (
                question in QUESTIONS
                and question != waived
                and not all(QUESTIONS[question](bound[n], root) for n in names)
            ):
                return False
        if any(reads(bound[n]) for n in self.bared):
            return False
        return not any(faults(bound[n]) for n in self.dropped)

    def types_hold(self, types: Types) -> bool:
        """Whether the types of an instance are claimed."""
        for question, names in self.asks:
            if question in TYPE_QUESTIONS:
                a, b = (types[self.slots.root(n)] for n in names)
                if not TYPE_QUESTIONS[question](a, b):
                    return False
        return all(d in self.slots.allowed(slot) for slot, d in types.items())

    @property
    def constants(self) -> frozenset[str]:
        """The metavariables that stand for constants."""
        return frozenset(n for question, names in self.asks if question in ("const", "power") for n in names)

    def claims(self) -> Iterator[Types]:
        """Every assignment of element types that the rule claims."""
        roots = list(dict.fromkeys(self.slots.root(s) for s in self.slots.of.values()))
        for chosen in product(*(sorted(self.slots.allowed(r), key=str) for r in roots)):
            types: Types = dict(zip(roots, chosen, strict=True))
            if self.types_hold(types):
                yield types

    def example(self, types: Types, values: Mapping[str, Expr] | None = None, implied: bool = False) -> Expr | None:
        """The left side at some types; metavariables are given, or refs of their own names."""
        given = dict(values or {})
        for name in variables(self.lhs):
            given.setdefault(name, Ref(name, types[self.slots.root(name)]))
        like = Op("cast", (), types[self.slots.root(self.slots.of[id(self.lhs)])], implied)
        return Builder(self.slots, MAKERS)(self.lhs, given, types, like)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_rules(text: str, name: str = "rules") -> tuple[Spec, ...]:
    """The rules of a text.

    Raises:
        CompilerError: a line is no rule; the message names it.
    """
    found: dict[str, Spec] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].rstrip()
        if not content.strip():
            continue
        try:
            spec = _spec(content)
        except (ValueError, KeyError) as why:
            raise CompilerError("rules", f"{name}:{number}: {why}") from why
        if spec.name in found:
            raise CompilerError("rules", f"{name}:{number}: there are two rules `{spec.name}`")
        found[spec.name] = spec
    return tuple(found.values())


def load_rules(file: str) -> tuple[Spec, ...]:
    """The rules of a file that lies beside this module."""
    return read_rules(Path(__file__).with_name(file).read_text(encoding="utf-8"), file)


def _spec(line: str) -> Spec:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("expected `name: lhs => rhs where ...`")
    lhs, rhs = _pattern(_parsed(match["lhs"])), _pattern(_parsed(match["rhs"]))
    slots = Slots(EVERYTHING)
    slots.unify(slots.add(lhs), slots.add(rhs))
    conditions, rounds = re.subn(r",?\s*\brounds\b", "", match["where"] or "")
    asks = _asks(conditions, slots)
    names, kept = set(variables(lhs)), set(variables(rhs))
    if kept - names:
        raise ValueError(f"the right side has {', '.join(sorted(kept - names))}, which the left side lacks")
    bared = {n for n in kept if n not in _performed(lhs)} & _performed(rhs)
    return Spec(match["name"], line.strip(), lhs, rhs, slots, asks, frozenset(names - kept), frozenset(bared),
                bool(rounds))  # fmt: skip


def _parsed(text: str) -> ast.Expr:
    return parse_expr(Source("<rule>", text))


def _asks(text: str, slots: Slots) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The conditions of a rule; those on one type restrict its slot at once."""
    found: list[tuple[str, tuple[str, ...]]] = []
    rest = text
    for match in _ASKED.finditer(text):
        rest = rest.replace(match.group(), "", 1)
        question, names = match[1], tuple(n.strip() for n in match[2].split(","))
        if question in CLASSES_OF:
            for n in names:
                slots.limit(n, CLASSES_OF[question])
        elif question in TYPE_QUESTIONS or question in QUESTIONS:
            found.append((question, names))
        else:
            raise ValueError(f"unknown condition `{question}`")
    if rest.strip(", "):
        raise ValueError(f"unexpected `{rest.strip(', ')}`")
    return tuple(found)


def _performed(pattern: Pattern) -> set[str]:
    """The metavariables that are evaluated whenever the pattern is; the arm of a constant condition counts."""
    if isinstance(pattern, Var):
        return {pattern.name}
    if isinstance(pattern, Choice):
        if isinstance(pattern.cond, Num):
            return _performed(pattern.then if pattern.cond.text == "true" else pattern.other)
        return _performed(pattern.cond)
    if isinstance(pattern, Apply) and pattern.op in ("and", "or"):
        return _performed(pattern.args[0])
    return set().union(*(_performed(p) for p in parts(pattern)))


def _pattern(node: ast.Expr) -> Pattern:
    """A pattern from the syntax tree of the language."""
    match node:
        case ast.Name(id=name):
            return Num(name) if name in NUMBERS else Var(name)
        case ast.Number(text=text, suffix=None):
            return Num(text)
        case ast.Bool(value=value):
            return Num("true" if value else "false")
        case ast.Unary(op="-", operand=ast.Number(text=text)):
            return Num(f"-{text}")
        case ast.Unary(op="-", operand=ast.Name(id="inf")):
            return Num("-inf")
        case ast.Unary(op=op, operand=operand):
            return Apply(PREFIX[op].name, (_pattern(operand),))
        case ast.Binary(op=op, left=left, right=right):
            return Apply(INFIX[op].name, (_pattern(left), _pattern(right)))
        case ast.Compare(operands=(left, right), ops=(op,)):
            return Apply(INFIX[op].name, (_pattern(left), _pattern(right)))
        case ast.IfElse(then=then, cond=cond, other=other):
            return Choice(_pattern(cond), _pattern(then), _pattern(other))
        case ast.Call(fn=ast.Name(id=name), args=args, kwargs=()):
            return _call(name, tuple(map(_pattern, args)))
    raise ValueError(f"a rule cannot hold `{node.span.text}`")


def _call(name: str, args: tuple[Pattern, ...]) -> Pattern:
    if name in FUNCTIONS:
        return Apply(FUNCTIONS[name].name, args)
    (arg,) = args
    if name in MAKERS and isinstance(arg, Var):
        return Made(name, arg)
    if name in DTYPES:
        return Cast(DTYPES[name], arg)
    if len(name) == 1 and name.isupper():
        return Cast(name, arg)
    raise ValueError(f"unknown function `{name}`")
