"""A scanner that accepts every text: what error messages, recovery and the formatter look at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["name", "number", "string", "open", "quote", "op", "bad", "comment", "end"]

OPENERS = {"(": ")", "[": "]", "{": "}"}
CLOSERS = {")": "(", "]": "[", "}": "{"}
# The words that begin a statement, and of these the ones that begin it only inside a block.
_STARTERS = "import size param input output let fn scan accum require check expect numerics pragma next emit return"
STARTERS = frozenset(_STARTERS.split())
INNER_ONLY = frozenset(("next", "emit", "return"))

_SCAN = re.compile(
    r"""
    (?P<comment> \#[^\n]* )
  | (?P<name> [^\W\d][\w\u0300-\u036f]* )
  | (?P<number> 0x[0-9a-fA-F_]+ (?:[iu](?:8|16|32|64)\b)?
              | (?: 0b[01_]+ | (?: (?:\d[\d_]*)?\.(?!\.)\d[\d_]* | \d[\d_]*(?:\.(?!\.))? ) (?:[eE][+-]?\d+)? )
                (?: (?:f16|bf16|f32|f64|[iu](?:8|16|32|64))\b )? )
  | (?P<string> "(?:[^"\\\n]|\\.)*" )
  | (?P<open> "[^\n]* )
  | (?P<quote> '(?:[^'\\\n]|\\.)*' )
  | (?P<op> \.\.\.?=? | ===|!==|\*\*=|//=|<<=|>>= | ==|!=|<=|>=|<>|:=|->|=>|&&|\|\||\^\^|\*\*|//|<<|>>|/\*|\*/
          | [-+*/%@&|^]= | [-+*/%@&|^~<>=()\[\]{},:;.!?$\\`'] )
  | (?P<bad> [^ \t\f\r\n] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Lexeme(NamedTuple):
    """A word, sign or literal: `open` is a string without its end, `quote` one in single quotes, `end` no text."""

    kind: Kind
    text: str
    start: int
    end: int


@dataclass(slots=True)
class Piece:
    """The lexemes `first` to `last` of what seems to be one statement, and the statements of its block."""

    first: int
    last: int = 0
    inner: list[Piece] = field(default_factory=list)


def scan(text: str, comments: bool = False) -> list[Lexeme]:
    """The lexemes of a text, whatever it is; the last has the kind `end`."""
    found: list[Lexeme] = []
    for match in _SCAN.finditer(text):
        kind = match.lastgroup
        if kind != "comment" or comments:
            found.append(Lexeme(kind, match[0], match.start(), match.end()))  # type: ignore[arg-type]
    found.append(Lexeme("end", "", len(text), len(text)))
    return found


def column(text: str, offset: int) -> int:
    """The column of an offset, from 0."""
    return offset - (text.rfind("\n", 0, offset) + 1)


def begins_line(text: str, offset: int) -> bool:
    """Whether only blanks stand before an offset on its line."""
    return not text[text.rfind("\n", 0, offset) + 1 : offset].strip()


def divide(text: str, lexemes: Sequence[Lexeme]) -> list[Piece]:
    """The statements of a text, by their first words and by braces; blocks that are never closed end by indentation."""
    pieces, closed = _divide(text, lexemes, False)
    return pieces if closed else _divide(text, lexemes, True)[0]


def _divide(text: str, lexemes: Sequence[Lexeme], by_column: bool) -> tuple[list[Piece], bool]:
    top: list[Piece] = []
    level = top
    outer: list[list[Piece]] = []  # the lists around `level`; the last piece of each has the open block
    fresh = True
    for at, lexeme in enumerate(lexemes[:-1]):
        starts = lexeme.kind == "name" and lexeme.text in STARTERS
        if starts and by_column and begins_line(text, lexeme.start):
            here = column(text, lexeme.start)
            while outer and here <= column(text, lexemes[outer[-1][-1].first].start):
                level[-1:] = [_ended(piece, at) for piece in level[-1:]]
                level = outer.pop()
        if lexeme.text == "}" and outer:
            level[-1:] = [_ended(piece, at) for piece in level[-1:]]
            level, fresh = outer.pop(), False
            continue
        if fresh or starts:
            level[-1:] = [_ended(piece, at) for piece in level[-1:]]
            level.append(Piece(at))
        fresh = lexeme.text == "{" and bool(level)
        if fresh:
            outer.append(level)
            level = level[-1].inner
    closed = not outer
    for pieces in (*outer, level):
        pieces[-1:] = [_ended(piece, len(lexemes) - 1) for piece in pieces[-1:]]
    return top, closed


def _ended(piece: Piece, at: int) -> Piece:
    piece.last = piece.last or at
    return piece
