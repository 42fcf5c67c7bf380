"""From the rules of the grammar to syntax trees: one method a rule, called by the parser as it reduces."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

from loopfuse.diag import Diagnostic, Source, Span, error
from loopfuse.dtypes import DTYPES
from loopfuse.frontend import ast
from loopfuse.frontend.lalr import Token

_WORDS = """
import as size expect param input from output where to let fn return scan carry next emit accum require check pragma
numerics in by for if else and or not true false None inf nan pi
"""
RESERVED = frozenset(_WORDS.split()) | frozenset(DTYPES)

# Digits and suffix; of hexadecimal numbers only integer suffixes, as in the grammar.
_NUMBER = re.compile(r"(?P<hex>0x[0-9a-fA-F_]+)(?P<int>[iu]\d+)?|(?P<digits>.+?)(?P<suffix>bf16|f16|f32|f64|[iu]\d+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_MOST_DIGITS = 400  # more than any double has before its point; `int` of a longer text costs quadratic time

Children = list[Any]


class Builder:
    """Makes the nodes of one source. What the grammar cannot refuse (reserved names, numbers) goes to `problems`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Diagnostic] = []

    # -- helpers --

    def _span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    def _at(self, token: Token) -> Span:
        return Span(self.source, token.start, token.end)

    def _word(self, token: Token) -> str:
        """The text of a name in its canonical form."""
        text = token.text
        if text.isascii():
            return text
        name = unicodedata.normalize("NFC", text)
        if not name.isidentifier():
            bad = next((c for c in name if not f"a{c}".isidentifier()), name[0])
            self.problems.append(
                error("LF0104", f"`{bad}` cannot stand in a name", self._at(token), "not a letter, digit or underscore")
            )
        return name

    def _defined(self, token: Token) -> str:
        """The text of a name that is being defined: no reserved word."""
        name = self._word(token)
        if name in RESERVED:
            self.problems.append(reserved(name, self._at(token)))
        return name

    # -- statements --

    def start(self, c: Children, s: int, e: int) -> ast.Script:
        return ast.Script(self.source, tuple(c))

    def import_(self, c: Children, s: int, e: int) -> ast.Import:
        module = self._word(c[0])
        return ast.Import(module, self._defined(c[1] or c[0]), False, self._span(s, e))

    def import_file(self, c: Children, s: int, e: int) -> ast.Import:
        return ast.Import(self._text(c[0]), self._defined(c[1]), True, self._span(s, e))

    def size_(self, c: Children, s: int, e: int) -> ast.SizeDecl:
        return ast.SizeDecl(self._defined(c[0]), self._at(c[0]), c[1], self._span(s, e))

    def param_(self, c: Children, s: int, e: int) -> ast.ParamDecl:
        return ast.ParamDecl(self._defined(c[0]), self._at(c[0]), c[1], c[2], c[3], self._span(s, e))

    def input_(self, c: Children, s: int, e: int) -> ast.InputDecl:
        return ast.InputDecl(self._defined(c[0]), self._at(c[0]), c[1], self._literal(c[2]), c[3], self._span(s, e))

    def output_(self, c: Children, s: int, e: int) -> ast.OutputDecl:
        return ast.OutputDecl(c[0], c[1], c[2], self._literal(c[3]), self._span(s, e))

    def let_(self, c: Children, s: int, e: int) -> ast.LetDecl:
        return ast.LetDecl(c[0], c[1], c[2], self._span(s, e))

    def fn_(self, c: Children, s: int, e: int) -> ast.FnDecl:
        params = tuple(p for p in c[1:-2] if p)
        body, values = c[-1]
        return ast.FnDecl(self._defined(c[0]), self._at(c[0]), params, c[-2], body, values, self._span(s, e))

    def fn_expr(self, c: Children, s: int, e: int) -> tuple[tuple[ast.Stmt, ...], tuple[ast.Expr, ...]]:
        return (), (c[0],)

    def fn_block(self, c: Children, s: int, e: int) -> tuple[tuple[ast.Stmt, ...], tuple[ast.Expr, ...]]:
        return tuple(c[:-1]), c[-1]

    def return_(self, c: Children, s: int, e: int) -> tuple[ast.Expr, ...]:
        return tuple(c)

    def fparam(self, c: Children, s: int, e: int) -> ast.FnParam:
        return ast.FnParam(self._defined(c[0]), c[1], c[2], self._span(s, e))

    def one_type(self, c: Children, s: int, e: int) -> tuple[ast.TypeExpr, ...]:
        return (c[0],)

    def types(self, c: Children, s: int, e: int) -> tuple[ast.TypeExpr, ...]:
        return tuple(c)

    def scan_(self, c: Children, s: int, e: int) -> ast.ScanDecl:
        carries = tuple(x for x in c[1:] if isinstance(x, ast.Carry))
        return ast.ScanDecl(c[0], carries, tuple(c[1 + len(carries) :]), self._span(s, e))

    def carry(self, c: Children, s: int, e: int) -> ast.Carry:
        return ast.Carry(self._defined(c[0]), c[1], c[2], self._span(s, e))

    def next_(self, c: Children, s: int, e: int) -> ast.Next:
        return ast.Next(self._defined(c[0]), self._at(c[0]), c[1], self._span(s, e))

    def emit_(self, c: Children, s: int, e: int) -> ast.Emit:
        return ast.Emit(self._defined(c[0]), self._at(c[0]), c[1], self._span(s, e))

    def accum_(self, c: Children, s: int, e: int) -> ast.AccumDecl:
        name, kind, init, gen, *updates = c
        return ast.AccumDecl(self._defined(name), self._at(name), kind, init, gen, tuple(updates), self._span(s, e))

    def update(self, c: Children, s: int, e: int) -> ast.Update:
        return ast.Update(self._word(c[0]), self._at(c[0]), c[1], c[2].text, c[3], self._span(s, e))

    def updates(self, c: Children, s: int, e: int) -> Any:
        return tuple(c)

    def contract(self, c: Children, s: int, e: int) -> ast.Contract:
        return ast.Contract(c[0].text, c[1], self._text(c[2]) if c[2] else None, self._span(s, e))

    def numerics_(self, c: Children, s: int, e: int) -> ast.Numerics:
        return ast.Numerics(self._word(c[0]), self._span(s, e))

    def pragma_(self, c: Children, s: int, e: int) -> ast.Pragma:
        args, kwargs, gen = c[1] or ((), (), None)
        where = kwargs[0][2] if kwargs else gen.span if gen else None
        if where:
            self.problems.append(
                error(
                    "LF0101", "a pragma takes names, separated by commas", where, "not a name", fix="pragma fuse(a, b)"
                )
            )
        return ast.Pragma(self._word(c[0]), args, self._span(s, e))

    # -- left sides, ranges, types --

    def lhs_name(self, c: Children, s: int, e: int) -> ast.Lhs:
        return ast.Lhs(self._defined(c[0]), self._at(c[0]), None, self._span(s, e))

    def lhs_index(self, c: Children, s: int, e: int) -> ast.Lhs:
        return ast.Lhs(self._defined(c[0]), self._at(c[0]), tuple(c[1:]), self._span(s, e))

    def lhs_tuple(self, c: Children, s: int, e: int) -> ast.Lhs:
        names = tuple((self._defined(t), self._at(t)) for t in c)
        return ast.Lhs(names[0][0], names[0][1], None, self._span(s, e), names)

    def binder(self, c: Children, s: int, e: int) -> ast.Binder:
        return ast.Binder(self._defined(c[0]), c[1], self._span(s, e))

    def range(self, c: Children, s: int, e: int) -> ast.Range:
        return ast.Range(c[0], c[1], c[2], self._span(s, e))

    def rest(self, c: Children, s: int, e: int) -> ast.Rest:
        return ast.Rest(self._span(s, e))

    def type(self, c: Children, s: int, e: int) -> ast.TypeExpr:
        dims = None if c[1] is None else tuple(c[1:])
        return ast.TypeExpr(self._word(c[0]), dims, self._at(c[0]), self._span(s, e))

    # -- expressions --

    def ifelse(self, c: Children, s: int, e: int) -> ast.IfElse:
        return ast.IfElse(c[0], c[1], c[2], self._span(s, e))

    def binary(self, c: Children, s: int, e: int) -> ast.Binary:
        return ast.Binary(c[1].text, c[0], c[2], self._at(c[1]), self._span(s, e))

    def unary(self, c: Children, s: int, e: int) -> ast.Unary:
        return ast.Unary(c[0].text, c[1], self._span(s, e))

    def cmp(self, c: Children, s: int, e: int) -> ast.Compare:
        ops = c[1::2]
        spans = tuple(self._at(t) for t in ops)
        return ast.Compare(tuple(c[::2]), tuple(t.text for t in ops), spans, self._span(s, e))

    def paren(self, c: Children, s: int, e: int) -> ast.Expr:
        inner: ast.Expr = c[0]
        if isinstance(inner, ast.Binary):
            return ast.Binary(inner.op, inner.left, inner.right, inner.op_span, inner.span, True)
        if isinstance(inner, ast.Compare):
            return ast.Compare(inner.operands, inner.ops, inner.op_spans, inner.span, True)
        return inner

    def call(self, c: Children, s: int, e: int) -> ast.Call:
        args, kwargs, gen = c[1] or ((), (), None)
        return ast.Call(c[0], args, kwargs, gen, self._span(s, e))

    def index(self, c: Children, s: int, e: int) -> ast.Subscript:
        return ast.Subscript(c[0], c[1], self._span(s, e))

    def attr(self, c: Children, s: int, e: int) -> ast.Attr:
        return ast.Attr(c[0], self._word(c[1]), self._at(c[1]), self._span(s, e))

    def name(self, c: Children, s: int, e: int) -> ast.Name:
        return ast.Name(self._word(c[0]), self._span(s, e))

    def bool(self, c: Children, s: int, e: int) -> ast.Bool:
        return ast.Bool(c[0].text == "true", self._span(s, e))

    def string(self, c: Children, s: int, e: int) -> ast.String:
        return ast.String(self._text(c[0]), self._span(s, e))

    def number(self, c: Children, s: int, e: int) -> ast.Number:
        match = _NUMBER.fullmatch(c[0].text)
        text = (match["hex"] or match["digits"]) if match else c[0].text
        suffix = (match["int"] or match["suffix"]) if match else None
        span = self._span(s, e)
        return ast.Number(self._value(text, suffix, span), text, suffix, span)

    def array_lit(self, c: Children, s: int, e: int) -> ast.ArrayLit:
        return ast.ArrayLit(tuple(x for x in c if x is not None), self._span(s, e))

    def comprehension(self, c: Children, s: int, e: int) -> ast.Comprehension:
        return ast.Comprehension(c[0], c[1], self._span(s, e))

    def tuple(self, c: Children, s: int, e: int) -> ast.TupleExpr:
        return ast.TupleExpr(tuple(c), self._span(s, e))

    # `args` gives positional arguments, named ones, and the `for` of a reduction.

    def args(self, c: Children, s: int, e: int) -> Any:
        named = [x for x in c if type(x) is tuple]
        plain = [x for x in c if type(x) is not tuple]
        if named:
            first = next(n for n, x in enumerate(c) if type(x) is tuple)
            late = next((x for x in c[first:] if type(x) is not tuple), None)
            if late is not None:
                message = "an argument without a name stands after a named one"
                also = (named[0][2], "named here")
                self.problems.append(error("LF0101", message, late.span, "put it before the named arguments", also))
        seen: set[str] = set()
        for name, _, span in named:
            if name in seen:
                self.problems.append(error("LF0101", f"argument `{name}` is given twice", span, "again here"))
            seen.add(name)
        return tuple(plain), tuple(named), None

    def kwarg(self, c: Children, s: int, e: int) -> Any:
        return self._word(c[0]), c[1], self._at(c[0])

    def gen_arg(self, c: Children, s: int, e: int) -> Any:
        return (c[0],), (), c[1]

    def for_(self, c: Children, s: int, e: int) -> ast.For:
        return ast.For(tuple(c[:-1]), c[-1], self._span(s, e))

    def subs(self, c: Children, s: int, e: int) -> Any:
        return tuple(c)

    def slice(self, c: Children, s: int, e: int) -> ast.Slice:
        return ast.Slice(c[0], c[1], c[2], self._span(s, e))

    def newaxis(self, c: Children, s: int, e: int) -> ast.NewAxis:
        return ast.NewAxis(self._span(s, e))

    # -- literals --

    def _literal(self, token: Token | None) -> ast.String | None:
        return ast.String(self._text(token), self._at(token)) if token else None

    def _text(self, token: Token) -> str:
        """A string without its quotes and escapes; only the first fault in it is told."""
        out: list[str] = []
        raw, first = token.text[1:-1], token.start + 1
        faults: list[Diagnostic] = []
        at = 0
        while at < len(raw):
            c, width = raw[at], 1
            if c == "\\":
                c, width = _ESCAPES.get(raw[at + 1], ""), 2
            span = self._span(first + at, first + at + width)
            if not c:
                faults.append(
                    error("LF0105", f"unknown escape `{span.text}` in a string", span,
                          'a string knows \\n \\t \\r \\" and \\\\',
                          fix="write `\\\\` for a backslash, or `/` in a path")
                )  # fmt: skip
            elif width == 1 and unicodedata.category(c) in ("Cc", "Cs") and c != "\t":
                message = f"character U+{ord(c):04X} cannot stand in a string"
                faults.append(error("LF0104", message, span, "not printable"))
            out.append(c)
            at += width
        self.problems += faults[:1]
        return "".join(out)

    def _value(self, text: str, suffix: str | None, span: Span) -> int | float:
        digits = text.replace("_", "")
        floating = suffix is not None and suffix[-3:] in ("f16", "f32", "f64")
        if suffix and suffix.startswith("bf"):
            floating = True
        try:
            if digits[:2] in ("0x", "0b"):
                return int(digits, 0)
            if not any(x in digits for x in ".eE"):
                if len(digits) > _MOST_DIGITS:
                    raise OverflowError
                return float(int(digits)) if floating else int(digits)
            value = float(digits)
        except (ValueError, OverflowError):
            self.problems.append(error("LF0106", "this number cannot be read", span, "too many digits, or none"))
            return 0
        if math.isinf(value):
            self.problems.append(
                error("LF0106", "this number is too large for any float", span, "more than 1.8e308", fix="inf")
            )
        if suffix and not floating:
            self.problems.append(
                error(
                    "LF0106",
                    f"a number with a fraction or an exponent cannot be {suffix}",
                    span,
                    "not an integer",
                    fix=f"{suffix}({text})",
                )
            )
        return value


def reserved(name: str, span: Span) -> Diagnostic:
    """A reserved word where a name is defined."""
    what = "a dtype" if name in DTYPES else "a constant" if name in ("inf", "nan", "pi") else "a word of the language"
    return error("LF0103", f"`{name}` cannot be defined: it is {what}", span, "choose another name", fix=f"{name}_")
