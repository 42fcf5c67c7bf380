"""What stands after the common loop of two folds: final values, and what they need of what stood in the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopfuse.analysis.algebra import ELEMENT
from loopfuse.ir import Acc, Buffer, Expr, Let, Load, Loop, Ref, Stmt
from loopfuse.ops import MONOIDS
from loopfuse.prove import Facts, guarded_loads, judge
from loopfuse.rewrite import Mapper, Substitution, expr_names, exprs, free_names, rename, walk


def carried(body: tuple[Stmt, ...], sides: Mapping[str, int], after: tuple[Stmt, ...],
            fresh: Callable[[str], str]) -> tuple[list[Let], dict[str, str] | None]:  # fmt: skip
    """The lets of the loop that final values mention, under new names, and these by the old ones; None for the names
    where a fold inside the loop is mentioned.

    They follow no element: names of results, which left the loop, and of what no index of the loop has part in, which
    may have stayed there.
    """
    needed = set(free_names(after).values)
    found: list[Let] = []
    for stmt in reversed(list(walk(body))):
        if isinstance(stmt, Let) and stmt.id in needed and not sides[stmt.id] & ELEMENT:
            found.append(stmt)
            needed |= expr_names(stmt.value).values
        elif isinstance(stmt, Loop) and not needed.isdisjoint(a.id for a in stmt.accs):
            return [], None
    names = {let.id: fresh(let.id) for let in found}
    copies = rename(tuple(found[::-1]), names) if names else ()
    return [c for c in copies if isinstance(c, Let)], names


def stuck(stmts: tuple[Stmt, ...], outside: Facts, inside: Facts, buffers: Mapping[str, Buffer]) -> Load | None:
    """A load that is proved in range by what holds in the loop, and not by what holds outside."""
    for stmt in stmts:
        for root in exprs(stmt):
            for load, known in guarded_loads(root, outside):
                if load.buffer not in buffers:
                    continue
                for sub, mode, extent in zip(load.subs, load.modes, buffers[load.buffer].shape, strict=True):
                    if mode is not None or judge(known, sub, extent).verdict == "proved":
                        continue
                    if judge(inside, sub, extent).verdict == "proved":
                        return load
    return None


def array_reader(value: Callable[[Callable[[Acc], Expr]], Expr], table: dict[str, Expr]) -> Callable[[Load], Expr]:
    """How a load of an accumulator with a shape gives its final value."""

    def reader(load: Load) -> Expr:
        def read(acc: Acc) -> Expr:
            dtype = MONOIDS[acc.monoid].result(acc.dtype)
            return Load(acc.id, load.subs, load.modes, dtype, span=load.span) if acc.shape else Ref(acc.id, dtype)

        expr = value(read)
        return Substitution(table).expr(expr) if table else expr

    return reader


def reading(stmts: tuple[Stmt, ...], readers: dict[str, Callable[[Load], Expr]]) -> tuple[Stmt, ...]:
    """The statements where loads of such accumulators are their final values."""
    if not readers:
        return stmts

    def on_expr(node: Expr) -> Expr:
        reader = readers.get(node.buffer) if isinstance(node, Load) else None
        return reader(node) if reader is not None and isinstance(node, Load) else node

    return Mapper(on_expr).on_body(stmts)
