"""Interchange of a par loop with the fold in it: one accumulator for each iteration becomes an array of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopfuse.ir import Affine, Expr, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.passes.cascade.join import aligned
from loopfuse.rewrite import Mapper, binders, expr_names, free_names, polys, rename, walk
from loopfuse.sizes import ONE, ZERO, Poly


def _absorbs_outside(loop: Loop) -> bool:
    """Whether the loop absorbs into an accumulator of a loop around, in an order that an interchange would change."""
    own = {x.id for s in walk((loop,)) if isinstance(s, Loop) for x in s.accs}
    return any(isinstance(s, Store) and s.absorb and s.buffer not in own for s in walk(loop.body))


def expanded(a: Loop, b: Loop, between: tuple[Stmt, ...], fresh: Callable[[str], str]) -> tuple[Stmt, ...] | None:
    """`par e { fold j {s}; out }` as `fold j { par e {s[e]} }; par e { out }`, where the fold then aligns with `a`,
    on whose results it depends; else None. `fresh` names the lets that both loops need."""
    if b.order != "par" or b.accs or b.where is not None:
        return None
    if any(d.lo != (ZERO,) or len(d.hi) != 1 or d.step != ONE for d in b.dims):
        return None
    place = next((k for k, s in enumerate(b.body) if isinstance(s, Loop)), None)
    if place is None:
        return None
    fold = b.body[place]
    assert isinstance(fold, Loop)
    mine = {d.id for d in b.dims}
    if not fold.accs or any(x.shape or x.repair is not None for x in fold.accs) or aligned(a, fold) is None:
        return None
    before, after = b.body[:place], b.body[place + 1 :]
    if not all(isinstance(s, Let) for s in before) or _mentions(fold, mine | {n for s in before for n in binders(s)}):
        return None
    if any(d.hi[0].names & mine for d in b.dims) or not _depends(a, b, between) or _absorbs_outside(b):
        return None
    shape = tuple(d.hi[0] for d in b.dims)
    subs: tuple[Expr, ...] = tuple(Affine(Poly.of(d.id)) for d in b.dims)
    names = {x.id for x in fold.accs}
    outside, inside = _lifted(fold.body, mine | {n for s in before for n in binders(s)})
    inner = tuple(_absorbing(s, names, subs) for s in inside)
    body = (*outside, replace(b, body=(*before, *inner)))
    accs = tuple(replace(x, shape=shape) for x in fold.accs)

    def on_expr(node: Expr) -> Expr:
        if isinstance(node, Ref) and node.id in names:
            dtype = next(MONOIDS[x.monoid].result(x.dtype) for x in accs if x.id == node.id)
            return Load(node.id, subs, (None,) * len(subs), dtype, span=node.span)
        return node

    rest = Mapper(on_expr).on_body(after)
    used = free_names(rest).all
    tail = tuple(s for s in before if isinstance(s, Let) and s.id in used)
    again = rename((*tail, *rest), {s.id: fresh(s.id) for s in tail})
    return replace(fold, accs=accs, body=body), replace(b, body=again)


def _mentions(fold: Loop, names: set[str]) -> bool:
    """Whether the fold's own bounds or condition mention the names."""
    found = set().union(*(p.names for p in polys(fold)))
    if fold.where is not None:
        found |= expr_names(fold.where).all
    return bool(found & names)


def _depends(a: Loop, b: Loop, between: tuple[Stmt, ...]) -> bool:
    """Whether the later loop reads what the earlier one computes, directly or through what stands between."""
    tainted = {x.id for x in a.accs}
    for stmt in (*between, b):
        names = free_names((stmt,))
        if names.all & tainted:
            if stmt is b:
                return True
            tainted |= names.stores | set(binders(stmt))
    return False


def _lifted(body: tuple[Stmt, ...], mine: set[str]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The statements that vary with none of the names, and the others."""
    outside: list[Stmt] = []
    inside: list[Stmt] = []
    varying = set(mine)
    for stmt in body:
        fixed = isinstance(stmt, Let) or (isinstance(stmt, Loop) and bool(stmt.accs))
        if fixed and not free_names((stmt,)).all & varying and not free_names((stmt,)).stores:
            outside.append(stmt)
        else:
            inside.append(stmt)
            varying.update(binders(stmt))
    return tuple(outside), tuple(inside)


def _absorbing(stmt: Stmt, names: set[str], subs: tuple[Expr, ...]) -> Stmt:
    """The statement with absorptions into the accumulators made absorptions into arrays."""

    def on_stmt(s: Stmt) -> Stmt:
        return replace(s, subs=subs) if isinstance(s, Store) and s.absorb and s.buffer in names else s

    return Mapper(stmt=on_stmt).on_body((stmt,))[0]
