"""Reading the expressions and polynomials of IR text: tokens, a cursor over a line, and precedence climbing.

The types that the text leaves out are rebuilt from the op table, from declarations, and from the lets above.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, NoReturn, TypeVar, cast

from loopfuse.diag import CompilerError, Source, Span, UserError, error
from loopfuse.dtypes import BOOL, DTYPES, DType
from loopfuse.ir import Affine, Const, Expr, Load, Mode, ModeKind, Op, Ref, Select
from loopfuse.ops import INFIX, OPS, PREFIX, parse_const
from loopfuse.outside import read_json
from loopfuse.printer import POWER, RESERVED, SELECT
from loopfuse.sizes import Poly

T = TypeVar("T")
MOST_NESTING = 80
MOST_DIGITS, MOST_EXPONENT = 400, 4
MODES = ("edge", "constant", "wrap", "reflect", "symmetric", "checked")
_DTYPE = "|".join(sorted(DTYPES, key=len, reverse=True))
_TOKEN = re.compile(
    rf"""[ \t\r]+
  | (?P<comment>\#.*)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<const>(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|(?:inf|nan(?::0x[0-9a-fA-F]+)?):|bits:0x[0-9a-f]+:)(?:{_DTYPE})(?!\w))
  | (?P<int>\d+(?![\w]))
  | (?P<id>[^\W\d]\w*(?:\.\w+)*)
  | (?P<sym><-|\.\.|\*\*|//|<<|>>|<=|>=|==|!=|[-\[\](){{}},:=<>+*/%&|^~'$])
  | (?P<bad>.)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A word of a line; offsets are those of the whole text."""

    kind: str
    text: str
    start: int
    end: int


@dataclass
class Env:
    """What names mean so far: the types of lets and complete or running accumulators, and of arrays' elements."""

    values: dict[str, DType] = field(default_factory=dict)
    arrays: dict[str, DType] = field(default_factory=dict)


def tokenize(source: Source, start: int, end: int) -> list[Token]:
    """The words of a line, comments dropped, and an `end`."""
    found: list[Token] = []
    for m in _TOKEN.finditer(source.text, start, end):
        kind = m.lastgroup
        if kind == "bad":
            number = m.group().isdigit() or m.group() == "."
            what = "a constant needs its type, as in `1.5f32`" if number else f"unexpected character {m.group()!r}"
            raise UserError(error("LF0801", what, Span(source, m.start(), m.end())))
        if kind is not None and kind != "comment":
            found.append(Token(kind, m.group(), m.start(), m.end()))
    found.append(Token("end", "", found[-1].end if found else start, found[-1].end if found else start))
    return found


@lru_cache(maxsize=4096)
def _constant(text: str, dtype: DType) -> int:
    return parse_const(text, dtype)


class Cursor:
    """A place in a line, and the ways to read on from it."""

    def __init__(self, source: Source, tokens: list[Token], env: Env) -> None:
        self.source, self.tokens, self.env = source, tokens, env
        self.at = 0
        self.nesting = 0

    # -- tokens -------------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        """The word to be read."""
        return self.tokens[self.at]

    def peek(self, text: str, ahead: int = 0) -> bool:
        """Whether the word `ahead` of the next is `text`."""
        at = self.at + ahead
        return at < len(self.tokens) and self.tokens[at].text == text

    def take(self, text: str) -> bool:
        """Skip `text` if it is next."""
        if self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Skip `text`, which must be next."""
        token = self.token
        if not self.take(text):
            self.fail(f"expected `{text}`")
        return token

    def name(self, what: str = "a name") -> str:
        """Read an id."""
        token = self.token
        if token.kind != "id" or token.text in RESERVED:
            self.fail(f"expected {what}")
        self.at += 1
        return token.text

    def word(self, choices: tuple[str, ...]) -> str:
        """Read one of some words."""
        token = self.token
        if token.kind != "id" or token.text not in choices:
            self.fail(f"expected one of {', '.join(choices)}")
        self.at += 1
        return token.text

    def integer(self) -> int:
        """Read a whole number, perhaps negative."""
        negative = self.take("-")
        token = self.token
        if token.kind != "int":
            self.fail("expected a number")
        return -self._digits() if negative else self._digits()

    def _digits(self) -> int:
        """Read the number that is next."""
        token = self.token
        if len(token.text) > MOST_DIGITS:
            self.fail("the number is too long", token)
        self.at += 1
        return int(token.text)

    def string(self) -> str:
        """Read a quoted string."""
        token = self.token
        if token.kind != "string":
            self.fail("expected a string")
        self.at += 1
        try:
            return str(read_json(token.text))
        except ValueError:
            self.fail("malformed string", token)

    def dtype(self) -> DType:
        """Read the name of an element type."""
        token = self.token
        if token.kind != "id" or token.text not in DTYPES:
            self.fail("expected an element type")
        self.at += 1
        return DTYPES[token.text]

    def finish(self) -> None:
        """Nothing may follow."""
        if self.token.kind != "end":
            self.fail("expected the end of the line")

    def span(self, first: Token) -> Span:
        """From a word to the last one read."""
        return Span(self.source, first.start, max(first.end, self.tokens[self.at - 1].end if self.at else first.end))

    def fail(self, message: str, token: Token | None = None, code: str = "LF0801") -> NoReturn:
        """Raise the user's error at a word."""
        where = token or self.token
        found = f", not `{where.text}`" if where.text and message.startswith("expected") else ""
        end = max(where.end, where.start + 1)
        raise UserError(error(code, message + found, Span(self.source, where.start, end)))

    # -- polynomials --------------------------------------------------------------------------------------------------

    def poly(self) -> Poly:
        """Read a polynomial: `2*i + (H - 1) // P`."""
        if self.token.kind in ("id", "int") and self.tokens[self.at + 1].text not in ("*", "//", "+", "-", "%"):
            return self._factor()
        negative = self.take("-")
        total = -self._product() if negative else self._product()
        while self.peek("+") or self.peek("-"):
            minus = self.take("-") or not self.expect("+")
            term = self._product()
            total = total - term if minus else total + term
        return total

    def _product(self) -> Poly:
        total = self._factor()
        while True:
            if self.take("*"):
                total = total * self._factor()
            elif self.take("//"):
                total = total // self._factor()
            elif self.take("%"):
                total = total % self._factor()
            else:
                return total

    def _factor(self) -> Poly:
        token = self.token
        if token.kind == "int":
            return Poly.of(self._digits())
        if token.kind == "id":
            return Poly.of(self.name())
        if token.text == "-":
            negative = False
            while self.take("-"):
                negative = not negative
            return -self._factor() if negative else self._factor()
        if not self.take("("):
            self.fail("expected a polynomial")
        self._enter(token)
        inside = self.poly()
        self.expect(")")
        self.nesting -= 1
        return inside

    def best(self, word: str) -> tuple[Poly, ...]:
        """Read one polynomial, or several as `max(a, b)` or `min(a, b)`."""
        if not (self.peek(word) and self.peek("(", 1)):
            return (self.poly(),)
        self.at += 2
        return self.several(")", self.poly)

    def shape(self) -> tuple[Poly, ...]:
        """Read `[M, N]`, or nothing."""
        return self.several("]", self.poly) if self.take("[") else ()

    def several(self, close: str, item: Callable[[], T]) -> tuple[T, ...]:
        """Read items with commas between them, up to `close`."""
        found: list[T] = []
        while not self.take(close):
            if found:
                self.expect(",")
            found.append(item())
        return tuple(found)

    def _enter(self, token: Token) -> None:
        self.nesting += 1
        if self.nesting > MOST_NESTING:
            self.fail("nested too deeply", token)

    # -- expressions --------------------------------------------------------------------------------------------------

    def expr(self) -> Expr:
        """Read a value."""
        self._enter(self.token)
        arms: list[tuple[Token, Expr, Expr]] = []
        while True:
            first = self.token
            last = self._binary(SELECT + 1)
            if not self.take("if"):
                break
            arms.append((first, self._binary(SELECT + 1), last))
            self.expect("else")
        for first, cond, then in reversed(arms):
            if then.dtype != last.dtype:
                self.fail(f"the arms are {then.dtype} and {last.dtype}", first, "LF0804")
            last = Select(cond, then, last, span=self.span(first))
        self.nesting -= 1
        return last

    def _binary(self, least: int) -> Expr:
        """An expression of operators at least as tight as `least`."""
        first = self.token
        left = self._unary()
        while True:
            token = self.token
            row = INFIX.get(token.text)
            if row is None or row.precedence is None or row.precedence < least:
                return left
            self.at += 1
            self._enter(token)  # a power has another one on its right
            right = self._binary(row.precedence + (row.precedence != POWER))
            self.nesting -= 1
            left = self._op(row.name, (left, right), False, None, first)

    def _unary(self) -> Expr:
        token = self.token
        row = PREFIX.get(token.text)
        if row is None or row.precedence is None or self.peek("'", 1):
            return self._primary()
        self.at += 1
        if token.text == "-" and self.token.kind == "const":
            return self._const("-", token)
        self._enter(token)
        operand = self._binary(row.precedence)
        self.nesting -= 1
        return self._op(row.name, (operand,), False, None, token)

    def _const(self, sign: str, first: Token) -> Const:
        token = self.token
        text = token.text
        name = next(d for d in sorted(DTYPES, key=len, reverse=True) if text.endswith(d))
        dtype = DTYPES[name]
        self.at += 1
        body = text[: -len(name)].removesuffix(":")
        exponent = "" if ":" in body else body.lower().partition("e")[2].lstrip("+-")
        if len(body) > MOST_DIGITS or len(exponent) > MOST_EXPONENT:
            self.fail("the number is too long", token)
        if body.startswith("bits:"):
            return Const(int(body[5:], 16), dtype, span=self.span(first))
        try:
            return Const(_constant(sign + body, dtype), dtype, span=self.span(first))
        except ValueError as problem:
            self.fail(str(problem), token, "LF0804")

    def _primary(self) -> Expr:
        token = self.token
        if token.kind == "const":
            return self._const("", token)
        if self.take("("):
            inside = self.expr()
            self.expect(")")
            return inside
        if self.take("{"):
            poly = self.poly()
            self.expect("}")
            return Affine(poly, span=self.span(token))
        word = token.kind == "id" and (token.text not in RESERVED or (token.text in OPS and self.peek("'", 1)))
        if not word and token.text not in ("true", "false"):
            self.fail("expected an expression")
        self.at += 1
        if token.text in ("true", "false"):
            return Const(int(token.text == "true"), BOOL, span=self.span(token))
        if self.peek("(") or self.peek("'"):
            return self._call(token)
        if self.take("["):
            return self._load(token)
        dtype = self.env.values.get(token.text)
        if dtype is None:
            self.fail(f"unknown name `{token.text}`", token, "LF0803")
        return Ref(token.text, dtype, span=self.span(token))

    def _call(self, name: Token) -> Expr:
        implied = self.take("'")
        self.expect("(")
        target = DTYPES.get(name.text)
        if target is not None:
            args = self.several(")", self.expr)
            return self._op("cast", args, implied, target, name)
        row = OPS.get(name.text)
        if row is None:
            self.fail(f"unknown operation `{name.text}`", name, "LF0803")
        if row.gives != "explicit":
            return self._op(row.name, self.several(")", self.expr), implied, None, name)
        value = self.expr()
        self.expect(",")
        target = self.dtype()
        self.expect(")")
        return self._op(row.name, (value,), implied, target, name)

    def _op(self, op: str, args: tuple[Expr, ...], implied: bool, target: DType | None, first: Token) -> Op:
        """An operation with the type that its row gives."""
        row, dtypes = OPS[op], tuple(a.dtype for a in args)
        if target is None:
            try:
                target = row.result(dtypes)
            except CompilerError as problem:
                self.fail(problem.message, first, "LF0804")
        else:
            wrong = row.problem(dtypes, target) if len(dtypes) == row.arity else f"`{target}` takes one operand"
            if wrong:
                self.fail(wrong, first, "LF0804")
        return Op(op, args, target, implied, span=self.span(first))

    def _load(self, name: Token) -> Load:
        dtype = self.env.arrays.get(name.text)
        if dtype is None:
            self.fail(f"unknown array `{name.text}`", name, "LF0803")
        subs, modes, _ = self.subscripts()
        return Load(name.text, subs, modes, dtype, span=self.span(name))

    # -- subscripts ---------------------------------------------------------------------------------------------------

    def subscripts(self) -> tuple[tuple[Expr, ...], tuple[Mode | None, ...], bool]:
        """Read to the closing bracket: the subscripts, their modes, and whether a mode is written at all."""
        subs: list[Expr] = []
        modes: list[Mode | None] = []
        written = False
        while not self.take("]"):
            if subs:
                self.expect(",")
            subs.append(self._subscript())
            mode: Mode | None = None
            if self.take("~"):
                written = True
                mode = self._mode()
            modes.append(mode)
        return tuple(subs), tuple(modes), written

    def _mode(self) -> Mode | None:
        if self.take("none"):
            return None
        kind = cast(ModeKind, self.word(MODES))
        negative = self.peek("-")
        if self.tokens[self.at + negative].kind == "const" or self.peek("true") or self.peek("false"):
            fill = self._unary()
            assert isinstance(fill, Const)
            return Mode(kind, fill)
        return Mode(kind)

    def _subscript(self) -> Expr:
        first = self.token
        if not self.take("$") and self._is_poly():
            return Affine(self.poly(), span=self.span(first))
        return self.expr()

    def _is_poly(self) -> bool:
        """Whether the words up to the end of the subscript make a polynomial: names, numbers and arithmetic alone."""
        at, depth = self.at, 0
        while True:
            token = self.tokens[at]
            if token.text == "(" and token.kind == "sym":
                depth += 1
            elif token.text == ")" and token.kind == "sym":
                depth -= 1
            elif token.text in (",", "]", "~") and token.kind == "sym":
                return depth == 0 and at > self.at
            elif token.kind == "id":
                following = self.tokens[at + 1]
                if token.text in RESERVED or following.text in ("(", "[", "'"):
                    return False
            elif token.kind != "int" and token.text not in ("+", "-", "*", "//", "%"):
                return False
            at += 1
