"""The lines of a program as a tree: each with its depth, its place in the script, and what it is about.

A line is known again in another program by its key: what a statement defines, not how it is written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from loopfuse.diag import Source, Span
from loopfuse.ir import Kernel, Let, Loop, Program, Stmt, Store
from loopfuse.printer import (
    print_acc,
    print_buffer,
    print_directive,
    print_require,
    print_size,
    print_stmt,
)
from loopfuse.rewrite import walk

Kind = Literal["kernel", "loop", "acc", "leaf", "declaration"]


@dataclass(slots=True)
class Line:
    """A line: its text without indentation, depth, span, kernel, and the loop or kernel line around it (-1: none).

    `key` says what it is about, `stem` the same without the counters that new ids carry (`e` for `e.1`); both are
    empty for loops, which are known by what they contain. `loop` names the indices of a loop for a fold's label, and
    `dims` lists them.
    """

    text: str
    depth: int
    kind: Kind
    parent: int
    kernel: str
    span: Span | None = None
    key: tuple[str, str] = ("", "")
    stem: str = ""
    loop: str = ""
    dims: tuple[str, ...] = ()


def stem(id: str) -> str:
    """The id that an id came from: `e` for `e.1` and `e.1.2`."""
    return re.sub(r"(?:\.\d+)+$", "", id)


def defined(kernel: Kernel) -> list[str]:
    """The buffers that a kernel writes, in the order of its text."""
    return list(dict.fromkeys(s.buffer for s in walk(kernel.body) if isinstance(s, Store) and not s.absorb))


def kernel_lines(kernels: Iterable[Kernel]) -> list[Line]:
    """The lines of kernels, one behind the other."""
    found: list[Line] = []
    for kernel in kernels:
        found.append(Line(f"kernel {kernel.id}", 0, "kernel", -1, kernel.id, kernel.span, ("kernel", kernel.id)))
        stack: list[tuple[Iterator[Stmt], int]] = [(iter(kernel.body), len(found) - 1)]
        while stack:
            body, parent = stack[-1]
            stmt = next(body, None)
            if stmt is None:
                stack.pop()
                continue
            found.append(_statement(stmt, len(stack), parent, kernel.id))
            if isinstance(stmt, Loop):
                here = len(found) - 1
                found += [Line(print_acc(a), len(stack) + 1, "acc", here, kernel.id, a.span, ("acc", a.id), stem(a.id))
                          for a in stmt.accs]  # fmt: skip
                stack.append((iter(stmt.body), here))
    return found


def _statement(stmt: Stmt, depth: int, parent: int, kernel: str) -> Line:
    text = print_stmt(stmt)
    if isinstance(stmt, Loop):
        word = "fold" if stmt.accs and stmt.order == "par" else {"par": "loop"}.get(stmt.order, stmt.order)
        return Line(text, depth, "loop", parent, kernel, stmt.span,
                    loop=f"{word} {', '.join(d.id for d in stmt.dims)}", dims=tuple(d.id for d in stmt.dims))  # fmt: skip
    if isinstance(stmt, Let):
        return Line(text, depth, "leaf", parent, kernel, stmt.span, ("let", stmt.id), stem(stmt.id))
    key = ("absorb" if stmt.absorb else "store", stmt.buffer)
    return Line(text, depth, "leaf", parent, kernel, stmt.span, key, stem(stmt.buffer))


def declaration_lines(program: Program) -> list[Line]:
    """Sizes, requirements, directives and buffers."""

    def line(text: str, kind: str, id: str, span: Span | None) -> Line:
        return Line(text, 0, "declaration", -1, "", span, (kind, id), id)

    found = [line(f"numerics {program.numerics}", "numerics", "", None)]
    found += [line(print_size(s), "size", s.id, s.span) for s in program.sizes]
    found += [line(t, "require", t, r.span) for r in program.requires for t in [print_require(r)]]
    found += [line(t, d.kind, t, d.span) for d in program.directives for t in [print_directive(d)]]
    return [*found, *(line(print_buffer(b), "buf", b.id, b.span) for b in program.buffers)]


@dataclass
class Gutter:
    """Numbers of source lines, as they stand before each line: `12`, or `math:12` in another source than the main one.

    `width` is that of the widest number asked for.
    """

    main: str
    starts: dict[int, tuple[Source, list[int]]] = field(default_factory=dict)

    def number(self, span: Span | None) -> str:
        """What to write before a line."""
        if span is None:
            return ""
        known = self.starts.get(id(span.source))
        if known is None:
            ends = [0, *(m.end() for m in re.finditer("\n", span.source.text))]
            known = self.starts[id(span.source)] = (span.source, ends)
        line = str(bisect_right(known[1], span.start))
        return line if span.source.name == self.main else f"{PurePath(span.source.name).stem}:{line}"


def gutter(*programs: Program) -> Gutter:
    """The gutter of programs that come from one script: that of its inputs."""
    for program in programs:
        spans = [b.span for b in program.buffers if b.role in ("in", "out") and b.span]
        for span in spans or [b.span for b in program.buffers if b.span]:
            return Gutter(span.source.name)
    return Gutter("")
