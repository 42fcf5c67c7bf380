"""Views aligned: one index of a loop as several, where the other loop goes over the same axis in parts.

A producer stores `b[i, n]`, a reader loads `b[i, h*D + d]`: with n = h*D + d and n's extent H*D the two are the same
walk over the axis, in the same order, and the loops can meet.
"""

from __future__ import annotations

from dataclasses import replace

from loopfuse.ir import Dim, Loop
from loopfuse.passes.merge.accesses import Scope
from loopfuse.passes.merge.pairs import dependences
from loopfuse.rewrite import Substitution, walk
from loopfuse.sizes import ONE, ZERO, Poly


def aligned(first: Loop, second: Loop, scope: Scope) -> tuple[Loop, Loop, dict[str, Poly]]:
    """The two loops, an index of one split as the subscripts of the other ask, and what that index is now; the same
    objects, and nothing, where none is."""
    mine, yours = {d.id: d for d in first.dims}, {d.id: d for d in second.dims}
    for store, load in dependences(first, second, scope):
        for axis in range(len(store.polys)):
            p, q = store.plain(axis), load.plain(axis)
            if p is None or q is None:
                continue
            if (name := p.name) in mine and (parts := _digits(q, yours, mine[name or ""], scope)):
                made, value = split(first, name or "", parts, q, scope)
                return made, second, {name or "": value}
            if (name := q.name) in yours and (parts := _digits(p, mine, yours[name or ""], scope)):
                made, value = split(second, name or "", parts, p, scope)
                return first, made, {name or "": value}
    return first, second, {}


def _digits(poly: Poly, dims: dict[str, Dim], whole: Dim, scope: Scope) -> list[Dim]:
    """The indices of a mixed-radix subscript, outermost first, if together they are the whole index; else none."""
    names = [n for n in poly.names if n in dims]
    if len(names) < 2 or not _plain(whole) or not all(_plain(dims[n]) and poly.degree(n) == 1 for n in names):
        return []
    rest, left, factor, found = poly, list(names), ONE, list[Dim]()
    while left:
        name = next((n for n in left if _same(poly.coefficient(n), factor, scope)), None)
        if name is None:
            return []
        left.remove(name)
        rest = rest - poly.coefficient(name) * Poly.of(name)
        factor = factor * dims[name].hi[0]
        found.insert(0, dims[name])
    return found if rest == ZERO and _same(factor, whole.hi[0], scope) else []


def _plain(dim: Dim) -> bool:
    return dim.lo == (ZERO,) and dim.step == ONE and len(dim.hi) == 1


def _same(a: Poly, b: Poly, scope: Scope) -> bool:
    return a == b or (
        a.names <= scope.env.sizes.keys() and b.names <= scope.env.sizes.keys() and scope.env.facts.zero(a - b)
    )


def split(loop: Loop, index: str, parts: list[Dim], value: Poly, scope: Scope) -> tuple[Loop, Poly]:
    """The loop with an index replaced by others, of which `value` is made, and that in their new names."""
    taken = {d.id for s in walk((loop,)) if isinstance(s, Loop) for d in s.dims} | {d.id for d in parts}
    fresh: dict[str, str] = {}
    for part in parts:
        fresh[part.id] = scope.env.index(part.id, taken)
        taken.add(fresh[part.id])
    renamed = value.subs({old: Poly.of(new) for old, new in fresh.items()})
    dims: list[Dim] = []
    for dim in loop.dims:
        dims += [replace(p, id=fresh[p.id], span=dim.span) for p in parts] if dim.id == index else [dim]
    at = Substitution(indices={index: renamed})
    where = None if loop.where is None else at.expr(loop.where)
    return replace(loop, dims=tuple(dims), body=at.body(loop.body), where=where), renamed
