"""From text to a syntax tree, with recovery at the next statement."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loopfuse.diag import Collector, Diagnostic, Source, Span, UserError, error
from loopfuse.frontend import ast, mistakes, statements
from loopfuse.frontend.build import Builder
from loopfuse.frontend.lalr import END, Unexpected, tables
from loopfuse.frontend.lexemes import (
    CLOSERS,
    INNER_ONLY,
    OPENERS,
    STARTERS,
    Lexeme,
    Piece,
    begins_line,
    column,
    divide,
    scan,
)
from loopfuse.frontend.lint import expression_faults, lint, nested
from loopfuse.frontend.syntax import Stop, explain, looks_new
from loopfuse.keeping import keep_few

MOST_NESTED = 200
MOST_MODULES = 32  # that are kept as they were read
_MODULES: dict[tuple[str, str], ast.Script] = {}
_KNOWN = (*mistakes.KNOWN, *statements.FIRST, *mistakes.LATE)


def parse(source: Source) -> ast.Script:
    """The statements of a text. Raises UserError with its syntax errors: at most ten, then how many more."""
    collector = Collector()
    script = parse_recovering(source, collector)
    collector.raise_errors()
    return script


def parse_recovering(source: Source, collector: Collector) -> ast.Script:
    """The statements that can be read; what is wrong with the others, and the lints, are added to `collector`."""
    return read(source, collector)[0]


def parse_module(source: Source, collector: Collector) -> ast.Script:
    """`parse_recovering` for a text that many scripts import: one without a message is read once a process."""
    key = source.name, source.text
    found = _MODULES.get(key)
    if found is None:
        before = len(collector.found)
        found = parse_recovering(source, collector)
        if len(collector.found) == before:
            keep_few(_MODULES, key, found, MOST_MODULES)
    return found


def read(source: Source, collector: Collector) -> tuple[ast.Script, frozenset[str]]:
    """As `parse_recovering`, and beside the script the names that stand in what could not be read.

    A checker that goes on must not call these names unknown.
    """
    reader = _Reader(source, collector)
    found, script = lint(reader.script(), MOST_NESTED)
    for one in found:
        collector.add(one)
    return script, frozenset(reader.lost)


def parse_expr(source: Source) -> ast.Expr:
    """A text that is one expression. Raises UserError."""
    collector = Collector()
    reader = _Reader(source, collector)
    value = reader.expression()
    collector.raise_errors()
    if value is None:
        raise UserError(error("LF0101", "expected an expression"))
    return value


def is_incomplete(text: str) -> bool:
    """Whether a text is the beginning of statements, or of an expression, that goes on."""
    words = scan(text)
    start = "start" if words[0].text in STARTERS else "expr"
    if words[0].kind == "end":
        return False
    try:
        tables().parse(text, start, Builder(Source("<input>", text)))
    except Unexpected as stop:
        return stop.kind == END
    return False


@dataclass
class _Reader:
    """Reads one text: as a whole while all is well, statement by statement once something is wrong."""

    source: Source
    collector: Collector
    lost: set[str] = field(default_factory=set)
    lexemes: list[Lexeme] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    skip_deeper: int = -1  # the column of a statement with a Python block: what is indented deeper belongs to it
    skip_next: bool = False  # the next statement is a part of this one: it begins with a word meant as a name

    def script(self) -> ast.Script:
        text = self.source.text
        begin = 1 if text.startswith("\ufeff") else 0
        if (deep := self._deep()) is not None:
            self.collector.add(deep)
            return ast.Script(self.source)
        builder = Builder(self.source)
        try:
            script: ast.Script = tables().parse(text, "start", builder, begin)
        except Unexpected:
            script = ast.Script(self.source, tuple(self._statements(begin)))
        else:
            self._keep(builder.problems)
        return script

    def expression(self) -> ast.Expr | None:
        """The text as one expression, or None after an error."""
        if (deep := self._deep()) is not None:
            self.collector.add(deep)
            return None
        builder = Builder(self.source)
        try:
            value: ast.Expr = tables().parse(self.source.text, "expr", builder)
        except Unexpected as stop:
            self._scan(0)
            self._report(Piece(0, len(self.lexemes) - 1), stop, "")
            return None
        self._keep([*builder.problems, *expression_faults(value, MOST_NESTED)])
        return value

    def _keep(self, problems: Iterable[Diagnostic]) -> None:
        for problem in problems:
            self.collector.add(problem)

    # -- nesting --

    def _deep(self) -> Diagnostic | None:
        """Brackets nested too deeply; found before the parser builds anything."""
        text = self.source.text
        if sum(text.count(c) for c in OPENERS) <= MOST_NESTED:
            return None
        depth = 0
        for lexeme in scan(text):
            if lexeme.text in STARTERS and lexeme.kind == "name" and begins_line(text, lexeme.start):
                depth = min(depth, MOST_NESTED // 2)  # brackets that were never closed are another mistake
            depth = max(depth + (lexeme.text in OPENERS) - (lexeme.text in CLOSERS), 0)
            if depth > MOST_NESTED:
                return nested(Span(self.source, lexeme.start, lexeme.end), MOST_NESTED)
        return None

    # -- statement by statement --

    def _scan(self, begin: int) -> None:
        self.lexemes = [lexeme for lexeme in scan(self.source.text) if lexeme.start >= begin]
        self.starts = [lexeme.start for lexeme in self.lexemes]

    def _statements(self, begin: int) -> Iterator[ast.Stmt]:
        self._scan(begin)
        text = self.source.text
        failed, block = False, -1  # whether the statement before failed; the column of a block that did
        for piece in divide(text, self.lexemes):
            start = self.lexemes[piece.first].start
            follows = failed and not begins_line(text, start) and self._fails(piece, "start")
            block = block if column(text, start) > block else -1
            if follows or (block >= 0 and self.lexemes[piece.first].text in INNER_ONLY):
                self.skip_next = False
                self._lose(piece)  # the rest of a line that failed, or of a block that was not understood
                continue
            before = len(self.collector.found) + self.collector.dropped
            if not self._skipped(piece):
                yield from self._piece(piece, "start", "")
            elif (following := self._resume(piece, piece.first, self.skip_deeper)) is not None:
                yield from self._piece(Piece(following, piece.last), "start", "")
            failed = len(self.collector.found) + self.collector.dropped > before
            if failed and self.lexemes[piece.first].text in ("fn", "scan"):
                block = column(text, start)

    def _skipped(self, piece: Piece) -> bool:
        """Whether a statement belongs to one that was already reported."""
        start = self.lexemes[piece.first].start
        deeper = self.skip_deeper >= 0 and column(self.source.text, start) > self.skip_deeper
        if self.skip_next or deeper:
            self.skip_next = False
            self._lose(piece)
            return True
        self.skip_deeper = -1
        return False

    def _lose(self, piece: Piece) -> None:
        self.lost.update(x.text for x in self.lexemes[piece.first : piece.last] if x.kind == "name")

    def _parse(self, piece: Piece, start: str) -> tuple[tuple[ast.Stmt, ...], Unexpected | None]:
        builder = Builder(self.source)
        begin, end = self.lexemes[piece.first].start, self.lexemes[piece.last - 1].end
        try:
            made = tables().parse(self.source.text, start, builder, begin, end)
        except Unexpected as stop:
            return (), stop
        self._keep(builder.problems)
        return (made.body if isinstance(made, ast.Script) else ()), None

    def _piece(self, piece: Piece, start: str, block: str) -> Iterator[ast.Stmt]:
        """The statements of a piece; reports what is wrong in it, and goes on behind that."""
        while piece.first < piece.last:
            made, stop = self._parse(piece, start)
            if stop is None:
                yield from made
                return
            inside = self._inside(piece, stop)
            at = self._at(piece, stop)
            if inside is None:
                at, whole = self._report(piece, stop, block)
                if whole and start == "start" and piece.first < at:
                    yield from self._parse(Piece(piece.first, at), start)[0]
            keyword = self.lexemes[piece.first].text
            for inner in piece.inner if keyword in ("fn", "scan", "accum") else ():
                ahead = inner.first > at or (inside is not None and inner.first == at)
                if (inner is inside or ahead) and not self._skipped(inner):
                    for _ in self._piece(inner, "inner", keyword):
                        pass
            limit = column(self.source.text, self.lexemes[piece.first].start)
            following = self._resume(piece, max(at, piece.inner[-1].last if piece.inner else at), limit)
            self._lose(Piece(piece.first, piece.last if following is None else following))
            if following is None:
                return
            piece = Piece(following, piece.last)

    def _inside(self, piece: Piece, stop: Unexpected) -> Piece | None:
        """The statement of the block that is wrong in itself, where that is what is wrong."""
        at = self._at(piece, stop)
        for inner in piece.inner:
            if inner.first < at <= inner.last and self._fails(inner, "inner"):
                return inner
        return None

    def _fails(self, piece: Piece, start: str) -> bool:
        begin, end = self.lexemes[piece.first].start, self.lexemes[piece.last - 1].end
        try:
            tables().parse(self.source.text, start, Builder(self.source), begin, end)
        except Unexpected:
            return True
        return False

    def _at(self, piece: Piece, stop: Unexpected) -> int:
        """The lexeme that holds the token at which the parser stopped."""
        if stop.kind == END:
            return piece.last
        return max(bisect.bisect_right(self.starts, stop.start) - 1, piece.first)

    def _report(self, piece: Piece, unexpected: Unexpected, block: str) -> tuple[int, bool]:
        """Add the message for a failed piece; gives the lexeme where it failed, and whether a statement ends there."""
        at = self._at(piece, unexpected)
        kinds = tables().expected(unexpected.states)
        stop = Stop(self.source, self.lexemes, piece.first, piece.last, at, unexpected.start, kinds, block)
        found = explain(stop, _KNOWN)
        self.collector.add(found)
        here = self.lexemes[at]
        if here.text in statements.BLOCKS and stop.fresh:
            self.skip_deeper = column(self.source.text, here.start)
        reserved = found.code == "LF0103" and at == piece.last and here.text in STARTERS
        self.skip_next = reserved or (here.text == "from" and stop.fresh)
        if found.code == "LF0108" and looks_new(stop):
            at -= 1  # what cannot follow here is itself the next statement
        return at, stop.fresh or here.text == ";"

    def _resume(self, piece: Piece, at: int, limit: int) -> int | None:
        """The next line of a failed piece, indented no deeper than `limit`, that seems to begin a statement."""
        text = self.source.text
        comment = at < piece.last and self.lexemes[at].text == "/*"
        for n in range(at + 1, piece.last):
            lexeme = self.lexemes[n]
            if comment:
                comment = lexeme.text != "*/"
                continue
            if (lexeme.kind != "name" and lexeme.text != "@") or not begins_line(text, lexeme.start):
                continue
            if column(text, lexeme.start) <= limit and self._statement_like(n):
                self.skip_deeper = -1
                return n
        return None

    def _statement_like(self, at: int) -> bool:
        word, after = self.lexemes[at].text, self.lexemes[at + 1].text
        if self.lexemes[at + 1].kind == "name" and statements.meant(word):
            return True
        if word in ("else", "elif", "except", "finally"):
            return False
        return word in statements.FOREIGN or after in ("=", ":=", ":", "(", "[") or after in statements.UPDATES
