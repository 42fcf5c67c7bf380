"""The canonical layout of a script: `format_source`.

Only blanks and new lines change: tokens and comments stay as they are and in their order. Statements are laid out one a
line, at most one empty line between them; a block of one statement that was written on one line stays there. What is
longer than the line breaks where it binds loosest: behind `=`, before operators, at commas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loopfuse.diag import CompilerError, Source
from loopfuse.frontend.layout import BREAK, Line, Node, Parts, Suffix, group, indent, join, lay_out, width_of
from loopfuse.frontend.lexemes import CLOSERS, OPENERS, STARTERS, Lexeme, Piece, divide, scan
from loopfuse.frontend.parse import parse

WIDTH = 100
# Binary operators, loosest first; those of one level form one chain, and a long chain breaks before each of them.
_LEVELS = (
    ("if", "else"), ("or",), ("and",), ("<", "<=", ">", ">=", "==", "!="), ("|",), ("^",), ("&",), ("<<", ">>"),
    ("+", "-"), ("*", "/", "//", "%", "@"), ("**",),
)  # fmt: skip
_LOOSENESS = {op: n for n, level in enumerate(_LEVELS) for op in level}
_NOT = 2  # `not` binds looser than every level behind this one
_OPERATORS = frozenset(op for level in _LEVELS for op in level) | {"not", "~"}
_UPDATES = frozenset(("+=", "*=", "|=", "&=", "^=", "max=", "min="))
_CLAUSES = frozenset(("from", "to", "where", "carry", "for", "=")) | _UPDATES
_WORDS = STARTERS | {"in", "by", "for", "if", "else", "from", "to", "carry", "as", "where"}
_DEEP = 16  # brackets nested deeper than this are not broken


def format_source(text: str) -> str:
    """A script in its canonical layout. Raises UserError where the text is no script."""
    text = text.removeprefix("\ufeff")
    parse(Source("<text>", text))
    for _ in range(4):
        formatter = _Formatter(text)
        done = formatter.run()
        _compare(text, done)
        if done == text or not formatter.moved:
            return done
        text = done
    return text


def _compare(before: str, after: str) -> None:
    """Our bug, if tokens changed or words of comments were lost."""
    old, new = (scan(text, comments=True) for text in (before, after))
    code = [[x.text for x in found if x.kind != "comment"] for found in (old, new)]
    words = [sorted(w for x in found if x.kind == "comment" for w in x.text.split()) for found in (old, new)]
    if code[0] != code[1] or words[0] != words[1]:
        raise CompilerError("fmt", "the layout would change the script", after)


@dataclass(slots=True)
class _Token:
    """A lexeme with the comments of its own lines before it, each with whether an empty line precedes, and behind it."""

    text: str
    kind: str
    start: int
    end: int
    before: list[tuple[bool, str]] = field(default_factory=list)
    behind: str = ""
    gap: bool = False  # an empty line stands right before it


class _Formatter:
    """Formats one valid text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(self.text))
        self.closer: dict[int, int] = {}  # from an opening bracket to its closing one
        self.around: list[tuple[int, int]] = []  # of each token: the innermost bracket before it, how many are open
        self.led: set[int] = set()  # tokens whose comments before them stand on their own lines
        self.last: set[int] = set()  # tokens that end a line in any case
        self.moved = False  # whether a comment stands where no line ends: it comes to rest in another round
        opened: list[int] = []
        for n, token in enumerate(self.tokens):
            if token.text in CLOSERS and opened:
                self.closer[opened.pop()] = n
            self.around.append((opened[-1] if opened else -1, len(opened)))
            if token.text in OPENERS:
                opened.append(n)

    def run(self) -> str:
        plain = [Lexeme(t.kind, t.text, t.start, t.end) for t in self.tokens]  # type: ignore[arg-type]
        lines = list(self._block(divide(self.text, plain), 0))
        tail = self._comments(len(self.tokens) - 1, bool(lines), 0)
        return "".join(line + "\n" for line in [*lines, *tail])

    # -- statements --

    def _block(self, pieces: list[Piece], shift: int) -> Iterator[str]:
        first = True
        for piece in self._updates(pieces):
            token = self.tokens[piece.first]
            yield from self._comments(piece.first, not first, shift)
            if token.gap and not (first and not token.before):
                yield ""
            first = False
            yield from self._statement(piece, shift)

    def _comments(self, at: int, gaps: bool, shift: int) -> Iterator[str]:
        """The comments before a statement or at the end of a block, on lines of their own."""
        for gap, comment in self.tokens[at].before:
            if gap and gaps:
                yield ""
            gaps = True
            yield " " * shift + comment

    def _updates(self, pieces: list[Piece]) -> Iterator[Piece]:
        """The pieces, those with several updates taken apart: these have no keyword."""
        for piece in pieces:
            starts = [piece.first]
            if self.tokens[piece.first + 1].text == "[" and self.tokens[piece.first].kind == "name":
                for n in self._level(piece.first, piece.last):
                    begins = self.tokens[n].kind == "name" and self.tokens[n + 1].text == "["
                    after = self.closer.get(n + 1, n) + 1
                    if begins and n > piece.first and self.tokens[after].text in _UPDATES:
                        starts.append(n)
            for first, last in zip(starts, [*starts[1:], piece.last], strict=True):
                yield Piece(first, last, piece.inner)

    def _statement(self, piece: Piece, shift: int) -> Iterator[str]:
        brace = next((n for n in self._level(piece.first, piece.last) if self.tokens[n].text == "{"), None)
        self.led.add(piece.first)
        if brace is None:
            self.last.add(piece.last - 1)
            yield " " * shift + lay_out(self._plain(piece.first, piece.last, shift), WIDTH, shift)
            return
        close = self.closer[brace]
        self.led.add(close)
        self.last |= {brace, close}
        head = join(self._plain(piece.first, brace, shift), " ", self._leaf(brace))
        line = self._on_one_line(head, piece, brace, close, shift)
        if line is not None:
            yield " " * shift + lay_out(line, WIDTH, shift)
            return
        yield " " * shift + lay_out(head, WIDTH, shift)
        yield from self._block(piece.inner, shift + 2)
        yield from self._comments(close, bool(piece.inner), shift + 2)
        yield " " * shift + lay_out(self._leaf(close), WIDTH, shift)

    def _on_one_line(self, head: Node, piece: Piece, brace: int, close: int, shift: int) -> Node | None:
        """A block of at most one plain statement that was written on one line, and fits there."""
        inner = list(self._updates(piece.inner))
        if len(inner) > 1 or self._breaks(brace, close):
            return None
        if not inner:
            return join(head, self._leaf(close))
        if any(self.tokens[n].text == "{" for n in range(inner[0].first, inner[0].last)):
            return None
        self.led.add(inner[0].first)
        line = join(head, " ", self._plain(inner[0].first, inner[0].last, shift), " ", self._leaf(close))
        return line if width_of(line) <= WIDTH - shift else None

    def _breaks(self, brace: int, close: int) -> bool:
        """Whether a block was written on several lines, or holds comments."""
        inside = self.text[self.tokens[brace].end : self.tokens[brace + 1].start]
        comments = any(t.behind for t in self.tokens[brace:close]) or any(
            t.before for t in self.tokens[brace : close + 1]
        )
        return "\n" in inside or comments

    def _plain(self, first: int, last: int, shift: int) -> Node:
        """A statement without its block: its parts behind `=` and before the words that begin clauses."""
        starts = [first]
        for n in self._level(first + 1, last):
            word = self.tokens[n].text
            repeated = word == "=" and any(self.tokens[s].text == "=" for s in starts)
            applied = word == "where" and self.tokens[n + 1].text == "(" and not self._ends_operand(n - 1)
            if word in _CLAUSES and not repeated and not applied:
                starts.append(n)
        ends = [*starts[1:], last]
        head = self._head(first, ends[0])
        value: tuple[int, int] | None = None
        tail: list[Node] = []
        for start, end in list(zip(starts, ends, strict=True))[1:]:
            sign = self.tokens[start].text
            if sign == "=" or sign in _UPDATES:
                head, value = join(head, " ", self._leaf(start)), (start + 1, end)
            else:
                tail.append(join(Line(), *self._lead(start), self._leaf(start), " ", self._clause(start, end)))
        if value is None:
            return group(head, indent(*tail))
        return self._definition(head, *value, tail, shift)

    def _definition(self, head: Node, first: int, last: int, tail: list[Node], shift: int) -> Node:
        """A left side and its value: on one line, or the value below, or broken inside its own brackets."""
        lead = self._lead(first)
        value = self._items(first, last)
        fits = width_of(join(head, " ", value, *tail)) <= WIDTH - shift
        below = width_of(value) <= WIDTH - shift - 2
        if not lead and (fits or (not below and self._hugs(first, last))):
            return join(group(head), " ", group(value, indent(*tail)))
        return join(group(head), indent(BREAK, *lead, group(value, *tail)))

    def _hugs(self, first: int, last: int) -> bool:
        """Whether a value is one call, array or subscript, which may break inside its last bracket."""
        level = list(self._level(first, last))
        plain = all(n in self.closer or self.tokens[n].text == "." or self._ends_operand(n) for n in level)
        return plain and level[-1] in self.closer and not any(self.tokens[n].text in _OPERATORS for n in level)

    def _head(self, first: int, last: int) -> Node:
        """What stands before the value: the keyword, and a name with its indices, type or parameters."""
        word = self.tokens[first].text
        if word in ("require", "check", "expect", "return"):
            return join(self._leaf(first), " ", indent(self._items(first + 1, last)))
        if word in ("import", "numerics", "pragma"):
            return self._words(first, last)
        if self.tokens[first + 1].text == "[" and self.tokens[first].kind == "name":
            return self._item(first, last, False)
        if word == "fn":
            arrow = next((n for n in self._level(first, last) if self.tokens[n].text == "->"), last)
            close = self.closer[first + 2]
            params = Parts(self._items(first + 3, close).parts, indent=4, fill=True)
            head = join(self._leaf(first), " ", self._leaf(first + 1), self._leaf(first + 2), params, self._leaf(close))
            return head if arrow == last else join(head, " ", *self._flat(arrow, last))
        return join(self._leaf(first), " ", self._item(first + 1, last, False))

    def _words(self, first: int, last: int) -> Node:
        parts: list[Node] = []
        for n in self._level(first, last):
            if self.tokens[n].text == "(":
                parts.append(self._bracket(n, True))
            else:
                parts += [" ", self._leaf(n)] if parts else [self._leaf(n)]
        return join(*parts)

    def _clause(self, start: int, end: int) -> Node:
        if self.tokens[start].text == "for":
            return self._binders(start + 1, end)
        if self.tokens[start].text == "carry":
            return self._bracket(start + 1, False)
        return group(indent(self._item(start + 1, end, False)))

    # -- expressions --

    def _level(self, first: int, last: int) -> Iterator[int]:
        """The tokens of a range, what stands inside brackets left out."""
        n = first
        while n < last:
            yield n
            n = self.closer.get(n, n)
            n += 1

    def _items(self, first: int, last: int, tight: bool = False) -> Parts:
        """Things with commas between them, and the `for` of a reduction behind them."""
        loop = next((n for n in self._level(first, last) if self.tokens[n].text == "for"), last)
        parts: list[Node] = []
        spans = list(self._commas(first, loop))
        for n, (start, end) in enumerate(spans):
            lead = self._lead(start)
            self.moved = self.moved or bool(lead and n == 0)  # it may not stand at the beginning of a line
            item = self._item(start, end, tight)
            hanging = len(spans) > 1 and self._chained(start, end)
            parts.append(join(*lead, group(indent(item) if hanging else item)))
            comma = end < loop
            if comma:
                parts[-1] = join(parts[-1], self._leaf(end))
            if n + 1 < len(spans):
                parts.append(Line())
        opener = self.around[first][0]
        fill = opener < 0 or self.tokens[opener].text == "["
        body = Parts(parts, fill=fill)
        if loop == last:
            return body
        return join(body, Line(), *self._lead(loop), self._leaf(loop), " ", self._binders(loop + 1, last))

    def _commas(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges between commas; nothing behind a last comma."""
        start = first
        for n in self._level(first, last):
            if self.tokens[n].text == ",":
                yield start, n
                start = n + 1
        if start < last:
            yield start, last

    def _binders(self, first: int, last: int) -> Node:
        condition = next((n for n in self._level(first, last) if self.tokens[n].text == "if"), last)
        inside = self._items(first, condition)
        binders = group(indent(Parts(inside.parts, fill=True)))
        if condition == last:
            return binders
        test = group(indent(self._item(condition + 1, last, False)))
        return join(binders, Line(), *self._lead(condition), self._leaf(condition), " ", test)

    def _item(self, first: int, last: int, tight: bool) -> Node:
        """An expression, a slice, a named argument, a typed name or an index with its range."""
        level = [n for n in self._level(first, last) if self.tokens[n].text in ("=", ":", "in", "..", "by")]
        for word in ("=", ":", "in", "by", ".."):
            found = [n for n in level if self.tokens[n].text == word]
            if not found:
                continue
            at = found[0]
            if word == ":" and self._in_subscript(first):
                return self._slice(first, last, found)
            left, right = self._item(first, at, tight), self._item(at + 1, last, tight)
            blank_before = "" if word in (":", "..") or (word == "=" and tight) else " "
            blank_after = "" if word == ".." or (word == "=" and tight) else " "
            return join(left, blank_before, self._leaf(at), blank_after, right)
        return self._operators(first, last)

    def _in_subscript(self, at: int) -> bool:
        """Whether the innermost bracket around a token is `[`."""
        opener = self.around[at][0]
        return opener >= 0 and self.tokens[opener].text == "["

    def _slice(self, first: int, last: int, colons: list[int]) -> Node:
        bounds = [(first, colons[0]), *((a + 1, b) for a, b in zip(colons, [*colons[1:], last], strict=True))]
        complex_ = any(
            end - start > 1 and not (end - start == 2 and self._unary(start, start)) for start, end in bounds
        )
        parts: list[Node] = []
        for n, (start, end) in enumerate(bounds):
            if n:
                parts += [" " if complex_ and bounds[n - 1][1] > bounds[n - 1][0] else "", self._leaf(colons[n - 1])]
                parts.append(" " if complex_ and end > start else "")
            if end > start:
                parts.append(self._operators(start, end))
        return join(*parts)

    def _operators(self, first: int, last: int) -> Node:
        """An expression, split at its loosest operators."""
        tokens = self.tokens
        found = [(_LOOSENESS[tokens[n].text], n) for n in self._level(first, last) if tokens[n].text in _LOOSENESS]
        found = [(level, n) for level, n in found if not self._unary(n, first)]
        loosest = min((level for level, _ in found), default=len(_LEVELS))
        if tokens[first].text == "not" and loosest > _NOT:
            return join(self._leaf(first), " ", self._operators(first + 1, last))
        if loosest >= len(_LEVELS) - 1:
            return self._power(first, last)
        split = [n for level, n in found if level == loosest]
        parts: list[Node] = [self._operand(first, split[0])]
        for at, end in zip(split, [*split[1:], last], strict=True):
            parts += [Line(), *self._lead(at), self._leaf(at), " ", self._operand(at + 1, end)]
        return join(*parts)

    def _operand(self, first: int, last: int) -> Node:
        inner = self._operators(first, last)
        return group(indent(inner) if self._chained(first, last) else inner)

    def _chained(self, first: int, last: int) -> bool:
        """Whether operators stand outside all brackets, before which lines may break."""
        return any(self.tokens[n].text in _OPERATORS and not self._unary(n, first) for n in self._level(first, last))

    def _power(self, first: int, last: int) -> Node:
        """Signs, powers and what binds tighter: no line breaks but in brackets."""
        parts: list[Node] = []
        for n in self._level(first, last):
            text = self.tokens[n].text
            if n in self.closer:
                parts.append(self._bracket(n, text == "("))
            elif text == "**":
                parts += [" ", self._leaf(n), " "]
            elif text == "not":
                parts += [self._leaf(n), " "]
            else:
                parts.append(self._leaf(n))
        return join(*parts)

    def _bracket(self, at: int, tight: bool) -> Node:
        """A bracket with what is in it; the closing one stays on the last line."""
        close = self.closer[at]
        if self.around[at][1] > _DEEP:
            return join(*self._flat(at, close + 1))
        if close == at + 1:
            return join(self._leaf(at), self._leaf(close))
        soft = [] if self._groups(at) and not self.tokens[at + 1].before else [Line("")]
        inside = self._items(at + 1, close, tight)
        return group(self._leaf(at), indent(*soft, inside), self._leaf(close))

    def _groups(self, at: int) -> bool:
        """Whether a parenthesis only groups one expression."""
        single = len(list(self._commas(at + 1, self.closer[at]))) == 1
        return self.tokens[at].text == "(" and not self._ends_operand(at - 1) and single

    def _flat(self, first: int, last: int) -> Iterator[Node]:
        """Tokens on one line, for what is nested too deeply to be laid out."""
        for n in range(first, last):
            token, before = self.tokens[n], self.tokens[n - 1]
            tight = token.text in ")],.:" or before.text in "([.:~" or token.text in ("..",) or before.text == ".."
            called = token.text in "([" and (self._ends_operand(n - 1) or before.text == "where")
            signed = before.text in ("+", "-") and self._unary(n - 1, first)
            if n > first and not (tight or called or signed):
                yield " "
            yield self._leaf(n)

    def _unary(self, at: int, first: int) -> bool:
        """Whether a sign at this place has no left operand."""
        return self.tokens[at].text in ("+", "-") and (at == first or not self._ends_operand(at - 1))

    def _ends_operand(self, at: int) -> bool:
        token = self.tokens[at]
        if token.kind in ("number", "string") or token.text in (")", "]", "..."):
            return True
        return token.kind == "name" and token.text not in _OPERATORS and token.text not in _WORDS

    # -- tokens --

    def _lead(self, at: int) -> list[Node]:
        """The comments before a token at which a line may begin, on lines of their own."""
        if at in self.led and self.tokens[at].before:
            return []
        self.led.add(at)
        return [part for _, comment in self.tokens[at].before for part in (comment, BREAK)]

    def _leaf(self, at: int) -> Node:
        """A token, with the comments that found no line of their own."""
        token = self.tokens[at]
        parts: list[Node] = [] if at in self.led else [Suffix(comment) for _, comment in token.before]
        self.moved = self.moved or bool(parts) or bool(token.behind and at not in self.last)
        parts.append(token.text)
        if token.behind:
            parts.append(Suffix(token.behind, at not in self.last))
        return join(*parts) if len(parts) > 1 else token.text


def _tokens(text: str) -> Iterator[_Token]:
    """The lexemes of a valid text with their comments; `max=` is one token."""
    pending: list[tuple[bool, str]] = []
    held: _Token | None = None
    closed = False  # whether a `]` stands before `held`
    place = 0  # the end of what was read last
    for lexeme in scan(text, comments=True):
        blanks = text[place : lexeme.start]
        gap = blanks.count("\n") > 1
        place = lexeme.end
        if lexeme.kind == "comment":
            comment = lexeme.text.rstrip()
            if held and not pending and "\n" not in blanks:
                held.behind = comment
            else:
                pending.append((gap, comment))
            continue
        if held and lexeme.text == "=" and held.text in ("max", "min") and held.end == lexeme.start and closed:
            held.text, held.kind, held.end = held.text + "=", "op", lexeme.end
            continue
        if held:
            yield held
        closed = held is not None and held.text == "]"
        held = _Token(lexeme.text, lexeme.kind, lexeme.start, lexeme.end, pending, "", gap)
        pending = []
    if held:
        yield held
