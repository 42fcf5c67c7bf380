"""The text of a session as its statements: a script that grows, and whose statements can be replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loopfuse.diag import Diagnostic, Label, Source, Span
from loopfuse.frontend import ast
from loopfuse.frontend.parse import parse


@dataclass(frozen=True, slots=True)
class Part:
    """A statement: the blanks and comments before it, itself, the rest of its line; what it defines, and its keyword."""

    lead: str
    body: str
    tail: str
    names: tuple[str, ...]
    kind: str

    @property
    def text(self) -> str:
        """The part as it stands in the script."""
        return self.lead + self.body + self.tail


def join(parts: Iterable[Part]) -> str:
    """The script."""
    return "".join(part.text for part in parts)


def split(source: Source) -> list[Part]:
    """The statements of a text; their texts together are the text. Raises `UserError` where it does not parse."""
    text = source.text.removeprefix("\ufeff")
    script = parse(Source(source.name, text))
    found: list[Part] = []
    at = 0
    for number, statement in enumerate(script.body):
        start, end = statement.span.start, statement.span.end
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end + 1
        following = script.body[number + 1].span.start if number + 1 < len(script.body) else None
        if following is None:
            line_end = len(text)
        elif following < line_end:
            line_end = end  # another statement on this line
        found.append(Part(text[at:start], text[start:end], text[end:line_end], names(statement), keyword(statement)))
        at = line_end
    return found


def whole(part: Part) -> Part:
    """The part with the end of its line, so that another may follow."""
    return part if part.text.endswith("\n") else replace(part, tail=part.tail + "\n")


def names(statement: ast.Stmt) -> tuple[str, ...]:
    """The names that a statement defines."""
    if isinstance(statement, ast.LetDecl | ast.OutputDecl):
        return tuple(n for n, _ in statement.lhs.names) or (statement.lhs.name,)
    if isinstance(statement, ast.ScanDecl):
        emits = [s.name for s in statement.body if isinstance(s, ast.Emit)]
        return tuple(dict.fromkeys([*(c.name for c in statement.carries), *emits]))
    if isinstance(statement, ast.Import):
        return (statement.alias,)
    named = ast.SizeDecl | ast.ParamDecl | ast.InputDecl | ast.FnDecl | ast.AccumDecl
    return (statement.name,) if isinstance(statement, named) else ()


def keyword(statement: ast.Stmt) -> str:
    """The word that a statement begins with."""
    words = {ast.LetDecl: "let", ast.OutputDecl: "output", ast.ScanDecl: "scan", ast.Import: "import", ast.SizeDecl: "size",
             ast.ParamDecl: "param", ast.InputDecl: "input", ast.FnDecl: "fn", ast.AccumDecl: "accum",
             ast.Numerics: "numerics", ast.Pragma: "pragma"}  # fmt: skip
    return statement.kind if isinstance(statement, ast.Contract) else words.get(type(statement), "")


def same_place(parts: Sequence[Part], new: Part) -> int | None:
    """Which part a new statement could take the place of: the last of its kind that defines one of its names."""
    for number in range(len(parts) - 1, -1, -1):
        old = parts[number]
        if old.kind == new.kind and (set(old.names) & set(new.names) or new.kind == "numerics"):
            return number
    return None


def moved(
    found: Iterable[Diagnostic], whole_name: str, begin: int, typed: Source, end: int | None = None
) -> list[Diagnostic]:
    """Diagnostics about a script that holds what was typed, told about what was typed.

    Places from `begin` to `end` (None: to the end of the script) lie in `typed`; edits of fixes are left out, since no
    file holds them.
    """

    def label(old: Label) -> Label:
        span = old.span
        if span.source.name != whole_name or span.start < begin or (end is not None and span.end > end):
            return old
        last = len(typed.text)
        start, stop = min(span.start - begin, last), min(span.end - begin, last)
        return replace(old, span=Span(typed, start, max(start, stop)))

    return [
        replace(d, labels=tuple(map(label, d.labels)), fix=replace(d.fix, edits=()) if d.fix else None) for d in found
    ]
