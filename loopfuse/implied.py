"""Declarations that a caller's arrays imply: `lf.run("output y = a @ b", a=a, b=b)`.

They are put before the script's text, and what is said of the text afterwards is moved back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from loopfuse.diag import Collector, Diagnostic, Label, Source, Span, UserError, error
from loopfuse.dtypes import of_numpy
from loopfuse.frontend.ast import InputDecl, ParamDecl
from loopfuse.frontend.parse import parse_recovering


def declarations(source: Source, arrays: Mapping[str, object]) -> str:
    """Input declarations, with fixed extents, for the arrays that the script does not declare but mentions. What it
    does not mention is left for `bind` to complain of."""
    collector = Collector()
    script = parse_recovering(source, collector)
    collector.raise_errors()
    declared = {s.name for s in script.body if isinstance(s, InputDecl | ParamDecl)}
    mentioned = set(re.findall(r"\w+", source.text))
    return "".join(_declare(n, value) for n, value in arrays.items() if n in mentioned and n not in declared)


def _declare(name: str, value: object) -> str:
    """The declaration of one array."""
    if isinstance(value, bool | int | float):
        return f"input {name}: {'bool' if isinstance(value, bool) else 'i64' if isinstance(value, int) else 'f32'} "
    try:
        array = np.asarray(value)
    except ValueError as why:
        raise UserError([error("LF0503", f"`{name}` cannot be made an array: {why}")]) from None
    dtype = of_numpy(array.dtype) if array.dtype.kind not in "OSUMm" else None
    if dtype is None:
        what = "None" if value is None else f"of the type {array.dtype}"
        raise UserError([error("LF0503", f"`{name}` is {what}, which no element type of the language stands for")])
    extents = f"[{', '.join(map(str, array.shape))}]" if array.ndim else ""
    return f"input {name}: {dtype}{extents} "


@contextmanager
def told_of(source: Source, prefix: str) -> Iterator[None]:
    """Errors in the block about `prefix + source.text` become errors about `source`."""
    try:
        yield
    except UserError as why:
        raise UserError([_moved(d, source, len(prefix)) for d in why.diagnostics]) from None


def _moved(diagnostic: Diagnostic, source: Source, by: int) -> Diagnostic:
    labels: list[Label] = []
    for label in diagnostic.labels:
        span = label.span
        if span.source.name != source.name:
            labels.append(label)
        elif span.start >= by:
            labels.append(replace(label, span=Span(source, span.start - by, span.end - by)))
    fix = diagnostic.fix
    return replace(diagnostic, labels=tuple(labels), fix=replace(fix, edits=()) if fix else None)
