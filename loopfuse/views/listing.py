"""Texts about a program: its tree, its types, its index ranges, its counts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from loopfuse.bind import show_type
from loopfuse.diag import Span
from loopfuse.dtypes import DType
from loopfuse.frontend import typed as ty
from loopfuse.ir import Buffer, Dim, Loop, Program, Require, Size, Store
from loopfuse.requires import require_text
from loopfuse.rewrite import nodes, walk_program
from loopfuse.sizes import ONE, Poly


def tree(node: object) -> str:
    """A tree of dataclasses, a node a line; fields that are empty and places in the source are left out."""
    return "\n".join(_tree_lines(node))


def _tree_lines(root: object) -> Iterator[str]:
    # A stack of its own: a long chain of operators is a deep tree.
    stack: list[tuple[int, str, object]] = [(0, "", root)]
    while stack:
        depth, label, node = stack.pop()
        lead = "  " * depth + (f"{label}: " if label else "")
        if isinstance(node, tuple):
            yield f"{lead}({len(node)})"
            stack.extend((depth + 1, "", item) for item in reversed(node))
        elif dataclasses.is_dataclass(node) and not isinstance(node, Poly | DType | type):
            fields = [(f.name, getattr(node, f.name)) for f in dataclasses.fields(node)]
            fields = [(n, v) for n, v in fields if not _bare(v) and n != "source"]
            plain = [f"{n}={_leaf(v)}" for n, v in fields if not _inner(v)]
            yield f"{lead}{type(node).__name__} {' '.join(plain)}".rstrip()
            stack.extend((depth + 1, n, v) for n, v in reversed(fields) if _inner(v))
        else:
            yield lead + _leaf(node)


def _bare(value: object) -> bool:
    """Nothing, or only a place in the source."""
    if isinstance(value, tuple):
        return all(isinstance(v, Span) for v in value)
    return value is None or value is False or value == "" or isinstance(value, Span)


def _inner(value: object) -> bool:
    leaf = isinstance(value, Poly | DType | type)
    return isinstance(value, tuple) or (dataclasses.is_dataclass(value) and not leaf)


def _leaf(value: object) -> str:
    return str(value) if isinstance(value, Poly | DType) else repr(value)


def types(program: ty.TypedProgram) -> str:
    """What each name is: sizes, params, inputs, definitions, outputs."""
    buffers = {b.id: b for b in program.buffers}
    rows: list[tuple[str, ...]] = [("size", s.id, _size(s)) for s in program.sizes if s.origin != "param"]
    rows += [("param", p.name, f"{p.dtype}{'' if p.default is None else f' = {p.default}'}") for p in program.params]
    rows += [("input", i.name, show_type(buffers[i.buffer])) for i in program.inputs]
    ends = {i.buffer for i in program.inputs} | {o.buffer for o in program.outputs}
    rows += [("let", name, show_type(buffers[b])) for name, b in program.names if b in buffers and b not in ends]
    rows += [("output", o.name, show_type(buffers[o.buffer])) for o in program.outputs]
    return _table(rows)


def _size(size: Size) -> str:
    if size.value is not None:
        return f"= {size.value}"
    least = f">= {size.least}" if size.least is not None else "any"
    return least + (f", a multiple of {size.multiple}" if size.multiple != 1 else "")


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max((len(row[k]) for row in rows), default=0) for k in range(len(rows[0]) - 1)] if rows else []
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows)


def ranges(program: ty.TypedProgram) -> str:
    """Every index with its range and line, the known ranges of integer arrays, and the requirements."""
    rows = [(_line(span), name, _index(dim)) for name, dim, span in _dims(program.body)]
    parts = [_table([("line", "in", "index"), *rows])]
    values = [
        (b.id, "to".join((_ends("max", b.range[0]), _ends("min", b.range[1])))) for b in program.buffers if b.range
    ]
    if values:
        parts.append(_table([("array", "values"), *values]))
    required = [(_line(r.span), "implied" if r.implied else "written", _require(r)) for r in program.requires]
    if required:
        parts.append(_table([("line", "origin", "requirement"), *required]))
    return "\n\n".join(parts)


def _line(span: Span | None) -> str:
    return str(span.line) if span else "-"


def _ends(word: str, polys: tuple[Poly, ...]) -> str:
    return str(polys[0]) if len(polys) == 1 else f"{word}({', '.join(map(str, polys))})"


def _index(dim: Dim) -> str:
    """As the language writes a range: `k in 0..2*R + 1`."""
    step = f" by {dim.step}" if dim.step != ONE else ""
    return f"{dim.id} in {_ends('max', dim.lo)}..{_ends('min', dim.hi)}{step}"


def _require(require: Require) -> str:
    return require_text(require) + (f"   {require.message}" if require.message else "")


def _dims(body: tuple[ty.Stmt, ...]) -> Iterator[tuple[str, Dim, Span | None]]:
    """Every index of the statements, inner ones behind outer ones."""
    for stmt in body:
        if isinstance(stmt, ty.Scan):
            yield "scan", stmt.dim, stmt.span
            yield from _dims(stmt.body)
            continue
        own = [*stmt.dims, stmt.axis] if isinstance(stmt, ty.Prefix) else list(stmt.dims)
        own += stmt.out if isinstance(stmt, ty.Scatter) else ()
        for dim in own:
            yield stmt.buffer, dim, dim.span or stmt.span
        for fold in stmt.folds:
            for dim in fold.dims:
                yield f"{stmt.buffer}: {fold.monoid}", dim, dim.span or fold.span or stmt.span


def stats(program: Program) -> str:
    """Counts of what a program consists of."""
    counts: Counter[str] = Counter()
    for stmt in walk_program(program):
        if isinstance(stmt, Loop):
            counts["folds" if stmt.accs else f"{stmt.order} loops"] += 1
        elif isinstance(stmt, Store):
            counts["absorbs" if stmt.absorb else "stores"] += 1
        else:
            counts["lets"] += 1
    for node in nodes(program):
        counts[{"Load": "loads", "Op": "operations", "Select": "selects"}.get(type(node).__name__, "")] += 1
    rows: list[tuple[str, ...]] = [("kernels", str(len(program.kernels))), ("buffers", _buffers(program.buffers))]
    kinds = ("par loops", "seq loops", "prefix loops", "folds", "stores", "absorbs", "lets", "loads", "operations",
             "selects")  # fmt: skip
    return _table(rows + [(kind, str(counts[kind])) for kind in kinds if counts[kind]])


def _buffers(buffers: tuple[Buffer, ...]) -> str:
    roles = Counter(b.role for b in buffers)
    return f"{len(buffers)} ({', '.join(f'{n} {role}' for role, n in roles.items())})" if buffers else "0"
