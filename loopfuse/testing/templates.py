"""The left sides of the rules of the passes as text: programs on which each rule has something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice

from loopfuse.dtypes import DTYPES, DType
from loopfuse.ops import OPS
from loopfuse.passes.patterns import Apply, Cast, Choice, Num, Pattern, Types, Var
from loopfuse.passes.peephole import specs as strength
from loopfuse.passes.rulefile import Spec
from loopfuse.passes.simplify import specs as simplifications
from loopfuse.testing.choices import Choices

Leaf = Callable[[str], str]
Template = Callable[[Choices, Leaf], tuple[str, str]]
MOST_CLAIMS = 700


class Templates:
    """Templates by the type of their result."""

    @staticmethod
    @cache
    def of(dtype: str) -> Mapping[str, Template]:
        """Rules whose left side can have the type, by the names that coverage counts."""
        return {f"rule {spec.name}": _template(spec, found) for spec, found in _fitting(dtype)}


@cache
def _fitting(dtype: str) -> tuple[tuple[Spec, tuple[Types, ...]], ...]:
    pairs = []
    for spec in (*simplifications(), *strength()):
        root = spec.slots.root(spec.slots.of[id(spec.lhs)])  # a left side is never a bare name
        claims = tuple(c for c in islice(spec.claims(), MOST_CLAIMS) if c[root] == DTYPES[dtype])
        if claims:
            pairs.append((spec, claims))
    return tuple(pairs)


def _template(spec: Spec, claims: tuple[Types, ...]) -> Template:
    def make(choices: Choices, leaf: Leaf) -> tuple[str, str]:
        return spec.name, _Writer(spec, choices.pick(claims), choices, leaf).text(spec.lhs)

    return make


class _Writer:
    """Writes one instance of a pattern; a name that stands twice is the same text."""

    def __init__(self, spec: Spec, types: Types, choices: Choices, leaf: Leaf) -> None:
        self.spec, self.types, self.choices, self.leaf = spec, types, choices, leaf
        self.known: dict[str, str] = {}

    def dtype(self, pattern: Pattern) -> DType:
        slots = self.spec.slots
        return self.types[slots.root(pattern.name if isinstance(pattern, Var) else slots.of[id(pattern)])]

    def text(self, pattern: Pattern) -> str:
        dtype = self.dtype(pattern)
        match pattern:
            case Var(name=name):
                return self.known.setdefault(name, self._value(name, dtype))
            case Num(text=text):
                return self._number(text, dtype)
            case Cast(arg=arg):
                return f"{dtype}({self.text(arg)})"
            case Choice(cond=cond, then=then, other=other):
                return f"({self.text(then)} if {self.text(cond)} else {self.text(other)})"
            case Apply(op=op, args=args):
                return self._applied(op, [self.text(a) for a in args])
        raise AssertionError(pattern)

    def _value(self, name: str, dtype: DType) -> str:
        if name in self.spec.constants:
            return self._number(self.choices.pick(("2", "8", "1") if dtype.is_int else ("2", "0.5")), dtype)
        return self.leaf(dtype.name)

    def _number(self, text: str, dtype: DType) -> str:
        if dtype.name == "bool":
            return {"0": "false", "1": "true", "ones": "true"}.get(text, text)
        if text == "ones":
            return f"{dtype}({-1 if dtype.kind == 'int' else dtype.greatest})"
        return f"{dtype}({text})" if dtype.kind != "uint" or not text.startswith("-") else f"{dtype}({dtype.greatest})"

    def _applied(self, op: str, args: list[str]) -> str:
        row = OPS[op]
        if row.prefix is not None:
            return f"({row.prefix}{' ' if row.prefix == 'not' else ''}{args[0]})"
        if row.infix is not None:
            return f"({args[0]} {row.infix} {args[1]})"
        return f"{row.surface}({', '.join(args)})"
