"""Rebuilding the loop IR: maps, fresh names, substitution and renaming; and, re-exported, what walks it.

Every map keeps its own stack, so that neither the length nor the depth of a program is limited, and returns the same
object where nothing changed; a subexpression that occurs twice as one object is mapped once and stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TypeVar

from loopfuse.diag import CompilerError
from loopfuse.ir import (
    Acc,
    Affine,
    Buffer,
    Dim,
    Expr,
    Interval,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    Program,
    Ref,
    Select,
    Stmt,
    Store,
)
from loopfuse.sizes import Poly
from loopfuse.walking import (
    Names,
    Own,
    binders,
    children,
    expr_names,
    exprs,
    free_names,
    guarded,
    is_const,
    node_names,
    nodes,
    own,
    polys,
    subexprs,
    walk,
    walk_program,
)

__all__ = [
    "ExprMap",
    "Fresh",
    "Mapper",
    "Memo",
    "Names",
    "Own",
    "PolyMap",
    "StmtMap",
    "Substitution",
    "binders",
    "children",
    "expr_names",
    "exprs",
    "free_names",
    "guarded",
    "is_const",
    "map_expr",
    "node_names",
    "nodes",
    "own",
    "polys",
    "rebuild",
    "rename",
    "same",
    "subexprs",
    "walk",
    "walk_program",
]

ExprMap = Callable[[Expr], Expr]
PolyMap = Callable[[Poly], Poly]
StmtMap = Callable[[Stmt], "Stmt | tuple[Stmt, ...]"]
Memo = dict[int, tuple[Expr, Expr]]
T = TypeVar("T")

# -- mapping expressions ----------------------------------------------------------------------------------------------


def same(old: Sequence[object], new: Sequence[object]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(old) == len(new) and all(map(is_, old, new))


def rebuild(expr: Expr, operands: tuple[Expr, ...]) -> Expr:
    """The node with other operands (as `children` gives them); itself where they are the same objects."""
    if same(children(expr), operands):
        return expr
    if isinstance(expr, Op):
        return Op(expr.op, operands, expr.dtype, expr.implied, span=expr.span)
    if isinstance(expr, Load):
        return Load(expr.buffer, operands, expr.modes, expr.dtype, span=expr.span)
    cond, then, other = operands
    return Select(cond, then, other, span=expr.span)


def map_expr(expr: Expr, function: ExprMap, memo: Memo | None = None) -> Expr:
    """Apply `function` to every node, operands first; it sees a node whose operands are already mapped.

    `memo` lets several calls with one function share their results (it keeps the nodes that it knows alive).
    """
    known: Memo = {} if memo is None else memo
    stack = [expr]
    while stack:
        node = stack.pop()
        if id(node) in known:
            continue
        operands = children(node)
        made = node
        if operands:
            waiting = [child for child in operands if id(child) not in known]
            if waiting:
                stack.append(node)
                stack += waiting[::-1]
                continue
            made = rebuild(node, tuple([known[id(child)][1] for child in operands]))
        known[id(node)] = (node, function(made))
    return known[id(expr)][1]


# -- mapping statements and programs ----------------------------------------------------------------------------------


def _same(value: T) -> T:
    return value


def _tuple(items: tuple[T, ...], function: Callable[[T], T]) -> tuple[T, ...]:
    """The mapped items; the same tuple where nothing changed."""
    if not items:
        return items
    mapped = tuple(map(function, items))
    return items if all(map(is_, items, mapped)) else mapped


@dataclass
class Mapper:
    """Maps of expressions (a node's operands first), polynomials and statements (a loop's body first) as one.

    `expr` sees every node of every expression; `poly` every polynomial of bounds, shapes, windows and ranges, and
    those inside `Affine` nodes; `stmt` may give several statements for one, or none.
    """

    expr: ExprMap = _same
    poly: PolyMap = _same
    stmt: StmtMap = _same
    memo: Memo = field(default_factory=dict)
    known: dict[Poly, Poly] = field(default_factory=dict)

    def on_expr(self, expr: Expr) -> Expr:
        """An expression."""
        return map_expr(expr, self._node, self.memo)

    def on_poly(self, poly: Poly) -> Poly:
        """A polynomial."""
        found = self.known.get(poly)
        if found is None:
            found = self.known[poly] = self.poly(poly)
        return poly if found == poly else found

    def _node(self, node: Expr) -> Expr:
        if type(node) is Affine:
            poly = self.on_poly(node.poly)
            if poly is not node.poly:
                node = Affine(poly, span=node.span)
        return self.expr(node)

    def _maybe(self, expr: Expr | None) -> Expr | None:
        return None if expr is None else self.on_expr(expr)

    def on_dim(self, dim: Dim) -> Dim:
        """A dim's bounds and step."""
        lo, hi, step = _tuple(dim.lo, self.on_poly), _tuple(dim.hi, self.on_poly), self.on_poly(dim.step)
        if lo is dim.lo and hi is dim.hi and step is dim.step:
            return dim
        return Dim(dim.id, lo, hi, step, span=dim.span)

    def on_acc(self, acc: Acc) -> Acc:
        """An accumulator's shape and repair."""
        shape, repair = _tuple(acc.shape, self.on_poly), self._maybe(acc.repair)
        return acc if shape is acc.shape and repair is acc.repair else replace(acc, shape=shape, repair=repair)

    def _leaf(self, stmt: Let | Store) -> Stmt:
        value = self.on_expr(stmt.value)
        if isinstance(stmt, Let):
            return stmt if value is stmt.value else Let(stmt.id, value, span=stmt.span)
        subs, at = _tuple(stmt.subs, self.on_expr), self._maybe(stmt.at)
        if subs is stmt.subs and value is stmt.value and at is stmt.at:
            return stmt
        return Store(stmt.buffer, subs, value, stmt.absorb, at, stmt.modes, span=stmt.span)

    def _loop(self, loop: Loop, body: tuple[Stmt, ...]) -> Loop:
        dims, accs, where = _tuple(loop.dims, self.on_dim), _tuple(loop.accs, self.on_acc), self._maybe(loop.where)
        if dims is loop.dims and accs is loop.accs and where is loop.where and body is loop.body:
            return loop
        return replace(loop, dims=dims, accs=accs, where=where, body=body)

    def on_body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements of a block."""
        root: list[Stmt] = []
        stack: list[tuple[Loop | None, Iterator[Stmt], list[Stmt]]] = [(None, iter(body), root)]
        while True:
            loop, rest, made = stack[-1]
            stmt = next(rest, None)
            if isinstance(stmt, Loop):
                stack.append((stmt, iter(stmt.body), []))
                continue
            if stmt is not None:
                mapped = self._leaf(stmt)
            elif loop is not None:
                stack.pop()
                mapped, made = self._loop(loop, _block(loop.body, made)), stack[-1][2]
            else:
                return _block(body, root)
            result = self.stmt(mapped)
            made.extend(result if isinstance(result, tuple) else (result,))

    def on_kernel(self, kernel: Kernel) -> Kernel:
        """A kernel's statements."""
        body = self.on_body(kernel.body)
        return kernel if body is kernel.body else replace(kernel, body=body)

    def _interval(self, interval: Interval) -> Interval:
        lo, hi = _tuple(interval[0], self.on_poly), _tuple(interval[1], self.on_poly)
        return interval if lo is interval[0] and hi is interval[1] else (lo, hi)

    def on_buffer(self, buffer: Buffer) -> Buffer:
        """A buffer's shape, window and range."""
        shape = _tuple(buffer.shape, self.on_poly)
        window = None if buffer.window is None else _tuple(buffer.window, self._interval)
        bounds = None if buffer.range is None else self._interval(buffer.range)
        if shape is buffer.shape and window is buffer.window and bounds is buffer.range:
            return buffer
        return replace(buffer, shape=shape, window=window, range=bounds)

    def on_program(self, program: Program) -> Program:
        """Everything but the sizes themselves and the directives."""
        requires = _tuple(
            program.requires,
            lambda r: r if (cond := self.on_expr(r.cond)) is r.cond else replace(r, cond=cond),
        )
        buffers, kernels = _tuple(program.buffers, self.on_buffer), _tuple(program.kernels, self.on_kernel)
        if requires is program.requires and buffers is program.buffers and kernels is program.kernels:
            return program
        return replace(program, requires=requires, buffers=buffers, kernels=kernels)


def _block(old: tuple[Stmt, ...], made: list[Stmt]) -> tuple[Stmt, ...]:
    return old if same(old, made) else tuple(made)


# -- names -------------------------------------------------------------------------------------------------------------


class Fresh:
    """Ids that a program does not use yet: `e` gives `e.1`, `e.1` gives `e.2`."""

    def __init__(self, program: Program) -> None:
        self.used = {s.id for s in program.sizes} | {b.id for b in program.buffers} | {k.id for k in program.kernels}
        for stmt in walk_program(program):
            self.used.update(binders(stmt))
        self.next: dict[str, int] = {}

    def __call__(self, origin: str) -> str:
        """A new id that comes from `origin`."""
        stem, _, count = origin.rpartition(".")
        base = stem if stem and count.isdecimal() else origin
        number = self.next.get(base, 1)
        while f"{base}.{number}" in self.used:
            number += 1
        self.next[base] = number + 1
        self.used.add(f"{base}.{number}")
        return f"{base}.{number}"


# -- substitution -----------------------------------------------------------------------------------------------------


class Substitution:
    """Replaces uses: refs by expressions, and names in polynomials by polynomials.

    An integer let that occurs in a polynomial can be replaced only by something that is one: a `Ref` or an `Affine`. A
    replaced name must not be defined in what is rewritten, nor a name that comes in: that would capture it, and raises
    `CompilerError`.
    """

    def __init__(self, refs: Mapping[str, Expr] | None = None, indices: Mapping[str, Poly] | None = None) -> None:
        self.refs = dict(refs or {})
        self.indices = dict(indices or {})
        self.opaque: set[str] = set()
        for name, value in self.refs.items():
            if name in self.indices:
                continue
            if isinstance(value, Affine):
                self.indices[name] = value.poly
            elif isinstance(value, Ref):
                self.indices[name] = Poly.of(value.id)
            else:
                self.opaque.add(name)
        incoming = expr_names(*self.refs.values()).all.union(*(p.names for p in self.indices.values()))
        self.closed = self.refs.keys() | self.indices.keys() | incoming
        self.mapper = Mapper(self._expr, self._poly, self._stmt)

    def _expr(self, node: Expr) -> Expr:
        return self.refs.get(node.id, node) if isinstance(node, Ref) else node

    def _poly(self, poly: Poly) -> Poly:
        if self.opaque and not self.opaque.isdisjoint(poly.names):
            name = min(self.opaque & poly.names)
            raise CompilerError("rewrite", f"`{name}` occurs in the polynomial `{poly}` and is not replaced by one")
        return poly.subs(self.indices)

    def _stmt(self, stmt: Stmt) -> Stmt:
        for name in binders(stmt):
            if name in self.closed:
                raise CompilerError("rewrite", f"a substitution would capture `{name}`")
        return stmt

    def expr(self, expr: Expr) -> Expr:
        """In an expression."""
        return self.mapper.on_expr(expr)

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """In the statements of a block."""
        return self.mapper.on_body(body)

    def program(self, program: Program) -> Program:
        """In a whole program, its declarations too; a size that is replaced must be dropped by the caller."""
        return self.mapper.on_program(program)


def rename(body: tuple[Stmt, ...], names: Mapping[str, str]) -> tuple[Stmt, ...]:
    """Other names for ids, where they are defined and where they are used (buffers too, and `x.old` in repairs)."""
    table = dict(names)
    for old, new in names.items():
        table |= {f"{old}.old": f"{new}.old", f"{old}.new": f"{new}.new"}
    indices = {old: Poly.of(new) for old, new in names.items()}

    def on_expr(node: Expr) -> Expr:
        kind = type(node)
        if kind is Ref and node.id in table:  # type: ignore[union-attr]
            return Ref(table[node.id], node.dtype, span=node.span)  # type: ignore[union-attr]
        if kind is Load and node.buffer in names:  # type: ignore[union-attr]
            return Load(names[node.buffer], node.subs, node.modes, node.dtype, span=node.span)  # type: ignore[union-attr]
        return node

    def on_stmt(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Let):
            return Let(names[stmt.id], stmt.value, span=stmt.span) if stmt.id in names else stmt
        if isinstance(stmt, Store):
            return replace(stmt, buffer=names[stmt.buffer]) if stmt.buffer in names else stmt
        dims = _tuple(stmt.dims, lambda d: Dim(names[d.id], d.lo, d.hi, d.step, span=d.span) if d.id in names else d)
        accs = _tuple(stmt.accs, lambda a: replace(a, id=names[a.id]) if a.id in names else a)
        return stmt if dims is stmt.dims and accs is stmt.accs else replace(stmt, dims=dims, accs=accs)

    return Mapper(on_expr, lambda p: p.subs(indices), on_stmt).on_body(body)
