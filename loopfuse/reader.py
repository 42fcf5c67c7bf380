"""IR text back to a program: the inverse of `printer.print_program`.

Statements that stand outside a kernel make one kernel each. Mistakes in the text are `UserError`s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, cast

from loopfuse.diag import Source, Span, UserError, error
from loopfuse.dtypes import I64, DType
from loopfuse.ir import (
    Acc,
    Buffer,
    Dim,
    Directive,
    Expr,
    Interval,
    Kernel,
    Let,
    Loop,
    Mode,
    Order,
    Origin,
    Program,
    Require,
    Role,
    Scope,
    Size,
    Stmt,
    Store,
)
from loopfuse.ops import MONOIDS
from loopfuse.reader_expr import Cursor, Env, Token, tokenize
from loopfuse.sizes import ONE, ZERO, Poly

ORIGINS = ("shape", "compile", "param", "plan")
ROLES = ("in", "param", "out", "temp", "frozen")
LOOPS = ("par", "fold", "seq", "prefix")
NUMERICS = ("strict", "default", "fast")


@dataclass(slots=True)
class _Open:
    """A kernel or loop whose lines are being read; `indent` is that of its body, once known."""

    header: Loop | Kernel | None
    above: int
    indent: int | None = None
    body: list[Stmt] = field(default_factory=list)
    accs: list[Acc] = field(default_factory=list)
    start: Token | None = None
    folds: bool = False


def parse_program(text: str, name: str = "<ir>") -> Program:
    """The program that a text describes.

    Raises:
        UserError: the text is malformed (LF0801, LF0802), or mentions unknown (LF0803) or ill-typed (LF0804) things.
    """
    reader = _Reader(Source(name, text))
    offset = 0
    for line in text.split("\n"):
        reader.line(offset, offset + len(line))
        offset += len(line) + 1
    return reader.finish()


class _Reader:
    """The state between lines."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.env = Env()
        self.name: str | None = None
        self.numerics = "default"
        self.sizes: dict[str, Size] = {}
        self.requires: list[Require] = []
        self.buffers: list[Buffer] = []
        self.directives: list[Directive] = []
        self.kernels: list[Kernel] = []
        self.open: list[_Open] = []
        self.declarations: dict[str, Callable[[Cursor, Token], None]] = {
            "program": self._program, "numerics": self._numerics, "size": self._size, "require": self._require,
            "pragma": self._directive, "expect": self._directive, "buf": self._buffer,
        }  # fmt: skip

    # -- lines and blocks ---------------------------------------------------------------------------------------------

    def line(self, start: int, end: int) -> None:
        """Read a line."""
        tokens = tokenize(self.source, start, end)
        first = tokens[0]
        if first.kind == "end":
            return
        indent = first.start - start
        if "\t" in self.source.text[start : first.start]:
            self._fail("LF0802", "indentation by a tab", first)
        cursor = Cursor(self.source, tokens, self.env)
        is_statement = tokens[1].kind == "sym" and tokens[1].text in ("=", "<-", "[")
        if not indent and not is_statement and first.text in self.declarations:
            self._close(0)
            self.declarations[first.text](cursor, first)
            return
        if self.name is None:
            self._fail("LF0802", "expected `program name(sizes)` first", first)
        if not indent and not is_statement and first.text == "kernel":
            self._close(0)
            cursor.at += 1
            kernel = Kernel(cursor.name(), (), span=self._span(first, tokens))
            cursor.finish()
            self.open.append(_Open(kernel, 0, start=first))
            return
        self._place(indent, first)
        if not is_statement and first.text == "acc":
            self._acc(cursor, first)
        elif not is_statement and first.text in LOOPS:
            self._loop(cursor, first, indent)
        else:
            self._simple(cursor, first)

    def _place(self, indent: int, token: Token) -> None:
        """Close the blocks that a statement at this indentation ends, or begin one."""
        self._close(indent)
        if not self.open:
            if indent:
                self._fail("LF0802", "unexpected indentation", token)
            self.open.append(_Open(None, -1, 0, start=token))
        block = self.open[-1]
        if block.indent is None:
            block.indent = indent
        elif block.indent != indent:
            self._fail("LF0802", f"the block is indented by {block.indent}, this line by {indent}", token)

    def _close(self, indent: int) -> None:
        """Close the blocks whose header stands at this indentation or further right."""
        while self.open and (indent <= self.open[-1].above or self.open[-1].header is None):
            block = self.open.pop()
            self._end(block)

    def _end(self, block: _Open) -> None:
        body = tuple(block.body)
        if block.header is None:
            self.kernels.append(Kernel(f"k{len(self.kernels) + 1}", body, span=body[0].span if body else None))
        elif isinstance(block.header, Kernel):
            self.kernels.append(replace(block.header, body=body))
        else:
            if block.folds and not block.accs and block.start is not None:
                self._fail("LF0802", "a fold needs an accumulator", block.start)
            loop = replace(block.header, body=body, accs=tuple(block.accs))
            self.open[-1].body.append(loop)

    def finish(self) -> Program:
        """The program, after the last line."""
        self._close(0)
        if self.name is None:
            end = len(self.source.text)
            raise UserError(error("LF0802", "expected `program name(sizes)`", Span(self.source, end, end)))
        return Program(
            self.name, tuple(self.sizes.values()), tuple(self.requires), tuple(self.buffers), tuple(self.kernels),
            tuple(self.directives), self.numerics,
        )  # fmt: skip

    def _fail(self, code: str, message: str, token: Token) -> NoReturn:
        raise UserError(error(code, message, Span(self.source, token.start, token.end)))

    def _span(self, first: Token, tokens: list[Token]) -> Span:
        return Span(self.source, first.start, tokens[-1].end)

    # -- declarations -------------------------------------------------------------------------------------------------

    def _program(self, c: Cursor, first: Token) -> None:
        if self.name is not None:
            c.fail("a text describes one program", first, "LF0802")
        c.at += 1
        self.name = c.string() if c.token.kind == "string" else c.name()
        c.expect("(")
        for size in c.several(")", c.name):
            self.sizes[size] = Size(size, span=self._span(first, c.tokens))
        c.finish()

    def _numerics(self, c: Cursor, first: Token) -> None:
        c.at += 1
        self.numerics = c.word(NUMERICS)
        c.finish()

    def _size(self, c: Cursor, first: Token) -> None:
        c.at += 1
        id = c.name()
        value = c.integer() if c.take("=") else None
        origin = cast(Origin, c.word(ORIGINS))
        least: int | None = 0
        if c.take("unbounded"):
            least = None
        elif c.take(">="):
            least = c.integer()
        multiple = c.integer() if c.take("multiple") else 1
        dtype = I64 if c.token.kind == "end" else c.dtype()
        c.finish()
        self.sizes[id] = Size(id, origin, least, multiple, value, dtype, span=c.span(first))

    def _require(self, c: Cursor, first: Token) -> None:
        c.at += 1
        cond = c.expr()
        message = c.string() if c.token.kind == "string" else ""
        implied = c.take("implied")
        c.finish()
        self.requires.append(Require(cond, message, implied, span=c.span(first)))

    def _directive(self, c: Cursor, first: Token) -> None:
        kind = cast('Literal["pragma", "expect"]', first.text)
        span = self._span(first, c.tokens)
        if len(c.tokens) == 3 and c.tokens[1].kind == "string":
            c.at += 1
            text = c.string()
        else:
            text = self.source.text[first.end : c.tokens[-1].end].strip()
        self.directives.append(Directive(kind, text, span=span))

    def _buffer(self, c: Cursor, first: Token) -> None:
        c.at += 1
        id = c.name()
        c.expect(":")
        dtype = c.dtype()
        shape = c.shape()
        role = cast(Role, c.word(ROLES)) if c.token.text in ROLES else "temp"
        scope: Scope = "local" if c.take("local") else "device"
        window = None
        if c.take("window"):
            c.expect("[")
            window = c.several("]", lambda: self._interval(c, ":"))
        bounds = self._interval(c, "..") if c.take("range") else None
        c.finish()
        self.env.arrays[id] = dtype
        self.buffers.append(Buffer(id, dtype, shape, role, scope, window, bounds, span=c.span(first)))

    def _interval(self, c: Cursor, between: str) -> Interval:
        """`lo:hi`; a single place stands for the interval of length one."""
        lo = c.best("max")
        if between == ":" and not c.peek(":") and len(lo) == 1:
            return lo, (lo[0] + 1,)
        c.expect(between)
        return lo, c.best("min")

    # -- statements ---------------------------------------------------------------------------------------------------

    def _loop(self, c: Cursor, first: Token, indent: int) -> None:
        c.at += 1
        dims = [self._dim(c)]
        while c.take(","):
            dims.append(self._dim(c))
        where = c.expr() if c.take("where") else None
        c.finish()
        word = first.text
        order = cast(Order, "par" if word == "fold" else word)
        loop = Loop(tuple(dims), (), order, (), where, span=c.span(first))
        self.open.append(_Open(loop, indent, start=first, folds=word == "fold"))

    def _dim(self, c: Cursor) -> Dim:
        first = c.token
        id = c.name("an index")
        if c.take("<"):
            lo: tuple[Poly, ...] = (ZERO,)
        else:
            c.expect("in")
            lo = c.best("max")
            c.expect("..")
        hi = c.best("min")
        step = c.poly() if c.take("step") else ONE
        return Dim(id, lo, hi, step, span=c.span(first))

    def _acc(self, c: Cursor, first: Token) -> None:
        block = self.open[-1]
        if not isinstance(block.header, Loop) or block.body or (block.header.order == "par" and not block.folds):
            c.fail("accumulators stand first in a fold or a prefix loop", first, "LF0802")
        c.at += 1
        id = c.name()
        c.expect(":")
        dtype = c.dtype()
        shape = c.shape()
        monoid = c.name("a monoid")
        if monoid not in MONOIDS:
            c.fail(f"unknown monoid `{monoid}`", c.tokens[c.at - 1], "LF0803")
        result = MONOIDS[monoid].result(dtype)
        repair = self._repair(c, block, result) if c.take("repair") else None
        c.finish()
        block.accs.append(Acc(id, monoid, dtype, shape, repair, span=c.span(first)))
        (self.env.arrays if shape else self.env.values)[id] = result

    def _repair(self, c: Cursor, block: _Open, own: DType) -> Expr:
        """An expression over `self` and the old and new values of earlier accumulators."""
        outer = self.env
        values = {"self": own}
        for acc in block.accs:
            result = MONOIDS[acc.monoid].result(acc.dtype)
            values |= {f"{acc.id}.old": result, f"{acc.id}.new": result}
        c.env = Env(values, {})
        found = c.expr()
        c.env = outer
        return found

    def _simple(self, c: Cursor, first: Token) -> None:
        """A let, a store or an absorption."""
        id = c.name("a statement")
        subs: tuple[Expr, ...] = ()
        modes: tuple[Mode | None, ...] = ()
        indexed = c.take("[")
        if indexed:
            subs, modes, written = c.subscripts()
            modes = modes if written else ()
        absorb = c.take("<-")
        if not absorb:
            c.expect("=")
        value = c.expr()
        at = c.expr() if c.take("at") else None
        c.finish()
        span = c.span(first)
        if absorb or indexed:
            if id not in self.env.arrays and id not in self.env.values:
                c.fail(f"unknown {'accumulator' if absorb else 'buffer'} `{id}`", first, "LF0803")
            self.open[-1].body.append(Store(id, subs, value, absorb, at, modes, span=span))
            return
        if at is not None:
            c.fail("a let has no position", first)
        self.open[-1].body.append(Let(id, value, span=span))
        self.env.values[id] = value.dtype
