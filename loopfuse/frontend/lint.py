"""What parses but does not mean what it seems to: lines that continue the one above, `&` beside `>`, deep nesting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from loopfuse.diag import Diagnostic, Fix, Source, Span, error
from loopfuse.frontend import ast
from loopfuse.frontend.lexemes import CLOSERS, OPENERS, Lexeme, Piece, begins_line, column, divide, scan

_CONTINUES = re.compile(r"^[ \t]*[-+(\[@]", re.MULTILINE)
_WORDS = {"&": "and", "|": "or"}


def lint(script: ast.Script, most_nested: int) -> tuple[list[Diagnostic], ast.Script]:
    """The lints of a script, in the order of the text, and the script without the statements nested too deeply."""
    found = list(continued_lines(script.source))
    good: list[ast.Stmt] = []
    for statement in script.body:
        faults = list(expression_faults(statement, most_nested))
        found += faults
        if not any(fault.code == "LF0109" for fault in faults):
            good.append(statement)
    if len(good) < len(script.body):
        script = ast.Script(script.source, tuple(good))
    return sorted(found, key=lambda d: d.primary.start if d.primary else 0), script


# -- LF0102 -----------------------------------------------------------------------------------------------------------


def continued_lines(source: Source) -> Iterator[Diagnostic]:
    """LF0102: lines that begin where statements begin, with a sign that continues the line above."""
    if not _CONTINUES.search(source.text):
        return
    lexemes = scan(source.text)
    pieces = divide(source.text, lexemes)
    while pieces:
        piece = pieces.pop(0)
        pieces = piece.inner + pieces
        yield from _continued(source, lexemes, piece)


def _continued(source: Source, lexemes: list[Lexeme], piece: Piece) -> Iterator[Diagnostic]:
    limit, depth = column(source.text, lexemes[piece.first].start), 0
    for at in range(piece.first, piece.inner[0].first if piece.inner else piece.last):
        lexeme = lexemes[at]
        begins = at > piece.first and depth == 0 and lexeme.text in ("-", "+", "(", "[", "@")
        if begins and begins_line(source.text, lexeme.start) and column(source.text, lexeme.start) <= limit:
            before = lexemes[at - 1]
            yield error(
                "LF0102", f"this line continues the one above: `{before.text} {lexeme.text} ...`",
                Span(source, lexeme.start, lexeme.end), "begins no statement",
                (Span(source, before.start, before.end), "goes on below"),
                notes=["newlines mean nothing; every statement begins with a keyword"],
                fix="indent the line if this is meant", level="warning",
            )  # fmt: skip
        depth += (lexeme.text in OPENERS) - (lexeme.text in CLOSERS)


# -- LF0107 -----------------------------------------------------------------------------------------------------------


def expression_faults(root: Any, most_nested: int) -> Iterator[Diagnostic]:
    """LF0107: `x > 0 & y > 0`, a chain of comparisons around `0 & y`. LF0109: nesting, then nothing more."""
    for node, depth in walk(root):
        if depth > most_nested:
            yield nested(Span(node.span.source, node.span.start, node.span.start + 1), most_nested)
            return
        if type(node) is ast.Compare and len(node.ops) > 1:
            for operand in node.operands[1:-1]:
                if isinstance(operand, ast.Binary) and operand.op in ("&", "|", "^") and not operand.parens:
                    yield _bitwise(node, operand)
                    break


def nested(span: Span, limit: int) -> Diagnostic:
    """LF0109, where the nesting passes its limit."""
    return error("LF0109", f"this is nested more than {limit} deep", span, "too deep here",
                 fix="name a part of it with `let`")  # fmt: skip


def _bitwise(node: ast.Compare, operand: ast.Binary) -> Diagnostic:
    at = node.operands.index(operand)
    left, right = node.operands[at - 1].span, node.operands[at + 1].span
    before, after = node.ops[at - 1], node.ops[at]
    shown = f"{left.text} {before} ({operand.span.text}) {after} {right.text}"
    edits = tuple((span, _WORDS[op]) for op, span in _signs(node) if op in _WORDS)
    fix = Fix(_edited(node.span, edits), edits) if edits else None
    return error(
        "LF0107", f"`{operand.op}` binds tighter than `{before}`", operand.span, f"this groups as {shown}",
        notes=["`and`, `or`, `not` work element by element in .lf"], fix=fix,
    )  # fmt: skip


def _signs(node: ast.Compare) -> Iterator[tuple[str, Span]]:
    """The bitwise operators between the comparisons of a chain."""
    for operand in node.operands[1:-1]:
        part: ast.Expr = operand
        while isinstance(part, ast.Binary) and not part.parens:
            yield part.op, part.op_span
            part = part.left


def _edited(span: Span, edits: Iterable[tuple[Span, str]]) -> str:
    """The lines of a span after some edits."""
    text = span.source.text
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.end)
    out, at = "", start
    for where, new in sorted(edits, key=lambda e: e[0].start):
        out += text[at : where.start] + new
        at = where.end
    return "\n".join(line.strip() for line in (out + text[at : end if end >= 0 else len(text)]).splitlines())


# -- the walk ---------------------------------------------------------------------------------------------------------


def _child_fields(kind: Any) -> tuple[str, ...]:
    """The fields of a node that may hold nodes."""
    names = tuple(f.name for f in fields(kind))
    return tuple(n for n in names if not n.endswith("span") and n not in ("source", "op", "id", "text", "parens"))


_CHILDREN = {kind: _child_fields(kind) for kind in vars(ast).values() if is_dataclass(kind)}


def walk(root: Any) -> Iterator[tuple[Any, int]]:
    """A node and all below it with their depths, in the order of the text; the left of an operator is no deeper."""
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        below: list[tuple[Any, int]] = []
        chain = type(node) is ast.Binary
        for name in _CHILDREN[type(node)]:
            value = getattr(node, name)
            inner = depth if chain and name == "left" else depth + 1
            if type(value) is tuple:
                below += [(x, inner) for x in _flat(value)]
            elif hasattr(value, "span"):
                below.append((value, inner))
        stack += below[::-1]


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    """The nodes of a tuple; named arguments are triples of a name, a node and a span."""
    for value in values:
        if type(value) is tuple:
            yield from (x for x in value if hasattr(x, "span"))
        elif hasattr(value, "span"):
            yield value
