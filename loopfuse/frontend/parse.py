"""From text to a syntax tree."""

from __future__ import annotations

from loopfuse.diag import Collector, Source, UserError, error
from loopfuse.frontend import ast
from loopfuse.frontend.build import Builder
from loopfuse.frontend.lalr import END, Unexpected, tables


def parse(source: Source) -> ast.Script:
    """The statements of a text. Raises UserError with every syntax error."""
    collector = Collector()
    script = parse_recovering(source, collector)
    collector.raise_errors()
    return script


def parse_recovering(source: Source, collector: Collector) -> ast.Script:
    """The statements that can be read; what is wrong with the others is added to `collector`."""
    builder = Builder(source)
    try:
        script: ast.Script = tables().parse(source.text, "start", builder)
    except Unexpected as stop:
        span = builder._span(stop.start, stop.end)
        collector.add(error("LF0101", "this cannot stand here", span))
        return ast.Script(source)
    for problem in builder.problems:
        collector.add(problem)
    return script


def parse_expr(source: Source) -> ast.Expr:
    """A text that is one expression. Raises UserError."""
    builder = Builder(source)
    try:
        value: ast.Expr = tables().parse(source.text, "expr", builder)
    except Unexpected as stop:
        span = builder._span(stop.start, stop.end)
        raise UserError(error("LF0101", "this cannot stand here", span)) from None
    if builder.problems:
        raise UserError(builder.problems)
    return value


def is_incomplete(text: str) -> bool:
    """Whether the text is the beginning of statements or of an expression, and stops too early."""
    for start in ("start", "expr"):
        try:
            tables().parse(text, start, Builder(Source("<input>", text)))
            return False
        except Unexpected as stop:
            if stop.kind == END:
                return True
    return False
