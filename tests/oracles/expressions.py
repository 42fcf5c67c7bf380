"""Expression strings of numexpr as .lf scripts: a translator, and a table of combinations of our own.

numexpr has five kinds of numbers that concern us and one order among them; the language converts nothing between
integers and floats by itself. So every conversion that numexpr makes in silence becomes a written cast. What a string
means to numexpr is what numexpr gives for it: it is the oracle, and these rules only say what must be written here.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracles.core import Array

KINDS = ("bool", "int", "long", "float", "double")  # in order: two kinds meet in the later one
DTYPES = {"bool": "bool", "int": "i32", "long": "i64", "float": "f32", "double": "f64"}
KIND_OF = {np.dtype(t): k for t, k in zip((bool, np.int32, np.int64, np.float32, np.float64), KINDS, strict=True)}
WHOLE = ("int", "long")

# The least kind of a function that takes floats; whole numbers always become double, but for those in KEPT.
LEAST = {
    **dict.fromkeys(("sqrt", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh",
                     "arccosh", "arctanh", "fmod", "arctan2", "log", "log1p", "log10", "log2", "exp", "expm1", "abs",
                     "ceil", "floor"), "float"),
    **dict.fromkeys(("hypot", "nextafter", "copysign", "maximum", "minimum", "round", "trunc", "sign", "isnan",
                     "isfinite", "isinf", "signbit"), "double"),
    **dict.fromkeys(("copy", "ones_like"), "bool"),
}  # fmt: skip
KEPT = ("copy", "ones_like", "round", "sign")
TESTS = ("isnan", "isfinite", "isinf", "signbit")
# What the language calls otherwise, or leaves to a few lines of the script.
NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2"}
WRITTEN_OUT = {
    "arcsinh": "fn arcsinh(x) {\n  let r = 1 / abs(x)\n  return copysign(log1p(abs(x) + abs(x) / (r + sqrt(1 + r * r))), x)\n}",
    "arccosh": "fn arccosh(x) = log1p((x - 1) + sqrt(x - 1) * sqrt(x + 1))",
    "arctanh": "fn arctanh(x) = 0.5 * log1p(2 * x / (1 - x))",
    "hypot": "fn hypot(x, y) = inf if isinf(x) or isinf(y) else sqrt(x * x + y * y)",
    "fmod": "fn fmod(x, y) = copysign(abs(x) % abs(y), x)",
    "signbit": "fn signbit(x) = copysign(x.dtype(1), x) < 0",
    "nextafter": "fn nextafter(x, y) = y if x == y else (x + y if isnan(x) or isnan(y) else (copysign(5e-324, y) if x == 0\n"
                 "  else bits(bits(x, i64) + (1 if (x < y) == (x > 0) else -1), f64)))",
}  # fmt: skip

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


class Untold(Exception):
    """The language has no such thing; the text says what."""


@dataclass(frozen=True, slots=True)
class Term:
    """A piece of .lf text of one kind; `value` where numexpr folds it to a constant."""

    kind: str
    text: str
    value: Any = None


def constant(value: Any) -> Term:
    """A constant, of the kind that numexpr gives it: a small integer is `int`, every other number `double`."""
    if isinstance(value, (bool, np.bool_)):
        return Term("bool", str(bool(value)).lower(), bool(value))
    if isinstance(value, (int, np.integer)):
        kind = "int" if -(2**31) <= value < 2**31 else "long"
        return Term(kind, _literal(value, kind), int(value))
    if isinstance(value, complex):
        raise Untold("complex numbers")
    return Term("double", _literal(value, "double"), value)


def _literal(value: Any, kind: str) -> str:
    if kind == "bool":
        return str(bool(value)).lower()
    if not np.isfinite(value):
        return f"{DTYPES[kind]}({float(value)!r})"
    text = repr(int(value)) if kind in WHOLE else repr(float(value))
    return f"({text}{DTYPES[kind]})" if value < 0 else f"{text}{DTYPES[kind]}"


def common(*kinds: str) -> str:
    """The kind in which values meet."""
    return max(kinds, key=KINDS.index)


def cast(term: Term, kind: str) -> str:
    """The text of a term as another kind: a constant is written in it, anything else is cast."""
    if term.kind == kind:
        return term.text
    return _literal(term.value, kind) if term.value is not None else f"{DTYPES[kind]}({term.text})"


class Translator(ast.NodeVisitor):
    """Translates one expression; `used` gathers the functions that must be written out, and the variables. `ops` are the
    operators and functions with the kinds in which they compute."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = kinds
        self.used: set[str] = set()
        self.ops: set[tuple[str, str]] = set()

    def translate(self, expression: str) -> Term:
        """The expression as .lf, in the kind of numexpr's result. Raises `Untold`."""
        term: Term = self.visit(ast.parse(expression, mode="eval").body)
        return term

    def generic_visit(self, node: ast.AST) -> Term:
        raise Untold(type(node).__name__)

    def visit_Constant(self, node: ast.Constant) -> Term:
        return constant(node.value)

    def visit_Name(self, node: ast.Name) -> Term:
        self.used.add(node.id)
        return Term(self.kinds[node.id], node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Term:
        if node.attr != "real":
            raise Untold(node.attr)
        return Term("double", cast(self.visit(node.value), "double"))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Term:
        inner: Term = self.visit(node.operand)
        if isinstance(node.op, ast.USub):
            return constant(-inner.value) if inner.value is not None else Term(inner.kind, f"(-{inner.text})")
        if isinstance(node.op, ast.Invert) and inner.kind in ("bool", *WHOLE):
            return Term(inner.kind, f"(~{inner.text})")
        raise Untold(type(node.op).__name__)

    def visit_BinOp(self, node: ast.BinOp) -> Term:
        op = BINARY.get(type(node.op), "")
        if not op:
            raise Untold(type(node.op).__name__)
        left: Term = self.visit(node.left)
        right: Term = self.visit(node.right)
        if left.value is not None and right.value is not None:
            return constant(_folded(node, left.value, right.value))
        kind = common(left.kind, right.kind)
        if op == "/" and kind in ("bool", *WHOLE):
            kind = "double"
        if op == "**" and kind in WHOLE and right.value is not None and right.value < 0:
            raise Untold("negative powers of integers")
        self.ops.add((op, kind))
        return Term(kind, f"({cast(left, kind)} {op} {cast(right, kind)})")

    def visit_Compare(self, node: ast.Compare) -> Term:
        if len(node.ops) != 1:
            raise Untold("a chain of comparisons")
        left: Term = self.visit(node.left)
        right: Term = self.visit(node.comparators[0])
        if left.value is not None and right.value is not None:
            return constant(bool(_folded(node, left.value, right.value)))
        kind = common(left.kind, right.kind)
        return Term("bool", f"({cast(left, kind)} {COMPARE[type(node.ops[0])]} {cast(right, kind)})")

    def visit_Call(self, node: ast.Call) -> Term:
        assert isinstance(node.func, ast.Name)
        name, terms = node.func.id, [self.visit(a) for a in node.args]
        if name == "where":
            kind = common(terms[1].kind, terms[2].kind)
            return Term(kind, f"where({terms[0].text}, {cast(terms[1], kind)}, {cast(terms[2], kind)})")
        if all(t.value is not None for t in terms):
            with np.errstate(all="ignore"):
                return constant(getattr(np, name)(*(t.value for t in terms)))
        if name not in LEAST:
            raise Untold("complex numbers" if name == "conj" else name)
        kind = common(*(t.kind for t in terms))
        floats = "double" if kind in WHOLE else common(kind, LEAST[name])
        kind = kind if kind in WHOLE and name in KEPT else floats
        return self._called(name, kind, terms)

    def _called(self, name: str, kind: str, terms: Sequence[Term]) -> Term:
        self.ops.add((name, kind))
        values = [cast(t, kind) for t in terms]
        if name == "copy" or (name == "round" and kind in WHOLE):
            return Term(kind, values[0])
        if name == "ones_like":
            return Term(kind, f"where(({values[0]}) == ({values[0]}), {_literal(1, kind)}, {_literal(1, kind)})")
        if name in WRITTEN_OUT:
            self.used.add(name)
        return Term("bool" if name in TESTS else kind, f"{NAMES.get(name, name)}({', '.join(values)})")


def _folded(node: ast.BinOp | ast.Compare, left: Any, right: Any) -> Any:
    """What Python makes of an operator between two constants."""
    names = {"x": left, "y": right}
    made: ast.expr
    if isinstance(node, ast.BinOp):
        made = ast.BinOp(ast.Name("x", ast.Load()), node.op, ast.Name("y", ast.Load()))
    else:
        made = ast.Compare(ast.Name("x", ast.Load()), node.ops, [ast.Name("y", ast.Load())])
    return eval(compile(ast.fix_missing_locations(ast.Expression(made)), "", "eval"), {}, names)


# -- scripts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One script with an output `e0`, `e1`, ... for each expression, and its inputs."""

    id: str
    expressions: tuple[str, ...]
    ops: tuple[frozenset[tuple[str, str]], ...]
    text: str
    arrays: Mapping[str, Array]


def batches(id: str, expressions: Sequence[str], arrays: Mapping[str, Array], size: int = 50,
            ) -> tuple[list[Batch], dict[str, str]]:  # fmt: skip
    """Scripts for all expressions, and for each that the language cannot say, what is missing."""
    kinds = {name: KIND_OF[a.dtype] for name, a in arrays.items()}
    told: list[tuple[str, Term, Translator]] = []
    untold: dict[str, str] = {}
    for expression in expressions:
        translator = Translator(kinds)
        try:
            told.append((expression, translator.translate(expression), translator))
        except Untold as why:
            untold[expression] = str(why)
    made = []
    for number, start in enumerate(range(0, len(told), size)):
        part = told[start : start + size]
        used = set().union(*(t.used for _, _, t in part))
        inputs = {name: a for name, a in arrays.items() if name in used}
        lines = [f"input {name}: {DTYPES[kinds[name]]}{_dims(a)}" for name, a in inputs.items()]
        lines += [line for name, line in WRITTEN_OUT.items() if name in used]
        lines += [f"output e{k} = {term.text}" for k, (_, term, _) in enumerate(part)]
        made.append(Batch(f"{id}-{number}", tuple(e for e, _, _ in part), tuple(frozenset(t.ops) for _, _, t in part),
                          "\n".join(lines) + "\n", inputs))  # fmt: skip
    return made, untold


def _dims(array: Array) -> str:
    return ["", "[N]", "[N, N]"][array.ndim]


# -- our own table ----------------------------------------------------------------------------------------------------

ODD = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 1e-30, -7e20, np.inf, -np.inf, np.nan]
ONE_ARGUMENT = [
    n for n in LEAST if n not in ("fmod", "arctan2", "hypot", "nextafter", "copysign", "maximum", "minimum")
]
TWO_ARGUMENTS = ["fmod", "arctan2", "hypot", "nextafter", "copysign", "maximum", "minimum"]
NUMBERS = KINDS[1:]


def own_arrays(count: int = 61) -> dict[str, Array]:
    """Two variables of each kind: `int0`, `int1` and so on; negative numbers, zeros and special values among them."""
    rng = np.random.default_rng(20)
    found: dict[str, Array] = {}
    for k, kind in itertools.product(range(2), KINDS):
        if kind == "bool":
            found[f"bool{k}"] = rng.integers(0, 2, count).astype(bool)
        elif kind in WHOLE:
            found[f"{kind}{k}"] = rng.integers(-70, 71, count).astype(np.int32 if kind == "int" else np.int64)
            found[f"{kind}{k}"][:4] = [0, 1, -1, 2**31 - 1]
        else:
            values = rng.standard_normal(count) * 10.0 ** rng.integers(-2, 3, count)
            values[: len(ODD)] = rng.permutation(ODD) if k else ODD
            found[f"{kind}{k}"] = values.astype(np.float32 if kind == "float" else np.float64)
    return found


def own_expressions() -> Iterator[str]:
    """Every operator and function at every pair of kinds that numexpr has it for."""
    pairs = [(f"{x}0", f"{y}1") for x, y in itertools.product(NUMBERS, repeat=2)]
    for op, (x, y) in itertools.product(["+", "-", "*", "/", "//", "%"], pairs):
        yield f"{x} {op} {y}"
    for x, y in pairs:
        if not {x[:-1], y[:-1]} <= set(WHOLE):
            yield f"abs({x}) ** {y}"
            yield f"{x} ** {y}"
    for op, (x, y) in itertools.product(["<", "<=", ">", ">=", "==", "!="], pairs):
        yield f"{x} {op} {y}"
    for op, x, y in itertools.product(["&", "|", "^"], WHOLE, WHOLE):
        yield f"{x}0 {op} {y}1"
    for op, x, y in itertools.product(["<<", ">>"], WHOLE, WHOLE):
        yield f"{x}0 {op} {y}1"
    yield from (f"bool0 {op} bool1" for op in ["&", "|", "^", "==", "!="])
    yield from ("~bool0", "~int0", "~long0", "-int0", "-long0", "-float0", "-double0")
    for name, x in itertools.product(ONE_ARGUMENT, NUMBERS):
        yield f"{name}({x}0)"
    for name, (x, y) in itertools.product(TWO_ARGUMENTS, pairs):
        yield f"{name}({x}, {y})"
    for x, y in pairs:
        yield f"where(bool0, {x}, {y})"
        yield f"where({x} < {y}, {y}, bool0 * {x})"
    for x, n in itertools.product(NUMBERS, (0, 1, 2, 3, 5)):
        yield f"{x}0 ** {n}"


def random_expressions(count: int, seed: int = 5) -> list[str]:
    """Expressions of three levels from a fixed seed, over all kinds."""
    rng = np.random.default_rng(seed)

    def pick(choices: Sequence[str]) -> str:
        return str(choices[int(rng.integers(len(choices)))])

    def number(depth: int) -> str:
        if depth == 0:
            return pick([*(f"{k}{n}" for k in NUMBERS for n in (0, 1)), "3", "0.25", "7"])
        forms: list[Callable[[], str]] = [
            lambda: f"({number(depth - 1)} {pick(['+', '-', '*', '/'])} {number(depth - 1)})",
            lambda: f"{pick(['abs', 'sqrt', 'sin', 'exp', 'floor', 'tanh', 'log1p', 'sign'])}({number(depth - 1)})",
            lambda: f"where({truth(depth - 1)}, {number(depth - 1)}, {number(depth - 1)})",
            lambda: f"{pick(['maximum', 'minimum', 'arctan2'])}({number(depth - 1)}, {number(depth - 1)})",
        ]
        return forms[int(rng.integers(len(forms)))]()

    def truth(depth: int) -> str:
        if depth == 0:
            return pick(["bool0", "bool1", "~bool1"])
        return f"({number(depth - 1)} {pick(['<', '>=', '=='])} {number(depth - 1)})"

    return [number(3) for _ in range(count)]
