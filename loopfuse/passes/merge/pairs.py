"""Which loop indices of two loops can be one index.

Indices are paired through subscripts: where the first loop stores `b[.. p + c ..]` and the second loads
`b[.. q + c ..]`, an element that both touch has p = q. They may become one index if this holds for every such pair of
accesses, and the bounds are equal. Equal extents alone pair nothing. Without a dependence indices are paired through
subscripts of an array that both read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause
from loopfuse.ir import Dim, Kernel, Loop, Program
from loopfuse.passes.merge.accesses import Access, Scope
from loopfuse.rewrite import walk
from loopfuse.sizes import Poly
from loopfuse.verify.layout import layout
from loopfuse.verify.memory import Memory, fixed

Pairing = dict[str, str]  # an index of the second loop -> the index of the first that it becomes


def pairing(first: Loop, second: Loop, scope: Scope) -> Pairing:
    """The indices of the second loop that can become indices of the first; empty where none can."""
    mine = {d.id: d for d in first.dims}
    yours = {d.id: d for d in second.dims}
    joint: Pairing | None = None
    for store, load in dependences(first, second, scope):
        found = _determined(store, load, mine, yours, scope.env)
        joint = found if joint is None else {c: p for c, p in joint.items() if found.get(c) == p}
        if not joint:
            return {}
    if joint is not None:
        return joint
    found = _shared(first, second, mine, yours, scope)
    return found | _abreast(first, second, found, scope) if scope.abreast else found


def dependences(first: Loop, second: Loop, scope: Scope) -> Iterator[tuple[Access, Access]]:
    """The stores of the first loop with the loads of the second that may read what they wrote."""
    stores, loads = scope.accesses(first).stores, scope.accesses(second).loads
    for buffer in stores:
        for load in loads.get(buffer, ()):
            for store in stores[buffer]:
                if not _apart(store, load):
                    yield store, load


def _apart(store: Access, load: Access) -> bool:
    """Whether the two differ in a constant subscript, so that they touch different elements."""
    for axis in range(len(store.polys)):
        p, q = store.plain(axis), load.plain(axis)
        if p is not None and q is not None and (gap := p - q).is_const and gap.constant:
            return True
    return False


def _determined(store: Access, load: Access, mine: dict[str, Dim], yours: dict[str, Dim], env: Env) -> Pairing:
    """The pairs of indices that are equal whenever the two touch the same element."""
    candidates: Pairing = {}
    rows: list[tuple[Poly, Poly]] = []
    for axis in range(len(store.polys)):
        p, q = store.plain(axis), load.plain(axis)
        if p is None or q is None:
            continue
        match = _unify(p, q, mine, yours)
        if match and all(candidates.get(c, a) == a for c, a in match.items()):
            candidates |= match
            rows.append((p, q))
    candidates = _injective(candidates)
    candidates = {c: a for c, a in candidates.items() if same_bounds(mine[a], yours[c], candidates, env)}
    while candidates:
        renamed = {c: Poly.of(a) for c, a in candidates.items()}
        axes = [p for p, q in rows if q.subs(renamed) == p]
        known = determined(axes, {a: mine[a] for a in candidates.values()}, env)
        kept = {c: a for c, a in candidates.items() if a in known}
        if len(kept) == len(candidates):
            return kept
        candidates = kept
    return {}


def _injective(pairs: Pairing) -> Pairing:
    seen: set[str] = set()
    kept: Pairing = {}
    for c, a in pairs.items():
        if a not in seen:
            seen.add(a)
            kept[c] = a
    return kept


def _unify(p: Poly, q: Poly, mine: Mapping[str, Dim], yours: Mapping[str, Dim]) -> Pairing | None:
    """The renaming of indices under which the second subscript is the first, found by equal coefficients."""
    left = [n for n in sorted(p.names) if n in mine]
    right = [n for n in sorted(q.names) if n in yours]
    if not left or len(left) != len(right):
        return None
    match: Pairing = {}
    for c in right:
        factor = q.coefficient(c)
        found = [a for a in left if a not in match.values() and p.coefficient(a) == factor]
        if not found or not factor.terms:
            return None
        match[c] = found[0]
    return match if q.subs({c: Poly.of(a) for c, a in match.items()}) == p else None


def same_bounds(a: Dim, c: Dim, pairs: Mapping[str, str], env: Env) -> bool:
    """Whether two indices run over the same values, once the paired indices are one."""
    renamed = {old: Poly.of(new) for old, new in pairs.items()}

    def alike(left: tuple[Poly, ...], right: tuple[Poly, ...]) -> bool:
        right = tuple(p.subs(renamed) for p in right)
        if set(left) == set(right):
            return True
        return len(left) == len(right) == 1 and env.facts.zero(left[0] - right[0])

    return alike(a.lo, c.lo) and alike(a.hi, c.hi) and alike((a.step,), (c.step,))


def determined(axes: list[Poly], moving: Mapping[str, Dim], env: Env) -> set[str]:
    """The indices of `moving` whose values follow from the values of the axes."""
    known: set[str] = set()
    for row in axes:
        live = [n for n in row.names if n in moving]
        if len(live) == 1 and row.degree(live[0]) == 1:
            factor = row.coefficient(live[0])
            if factor.is_const and not any(live[0] in q.num.names | q.den.names for q in row.quotients()):
                known.add(live[0])
    if len(known) == len(moving):
        return known
    loop = Loop(tuple(moving.values()), ())
    program = env.program
    made = layout(Program(program.name, program.sizes, program.requires, (), (Kernel("k", (loop,)),)))
    return fixed(Memory(made, env.facts), made.sites[0].own, axes, dict(moving))


def _shared(first: Loop, second: Loop, mine: dict[str, Dim], yours: dict[str, Dim], scope: Scope) -> Pairing:
    """Pairs through subscripts of arrays that both loops load; the arrays with most axes say first."""
    ours, theirs = scope.accesses(first).loads, scope.accesses(second).loads
    common = [b for b in ours if b in theirs]
    order = {b: k for k, b in enumerate(scope.env.buffers)}
    pairs: Pairing = {}
    most = min(len(mine), len(yours))
    for buffer in sorted(common, key=lambda b: (-len(ours[b][0].polys), order.get(b, -1))):
        for mine_access in _different(ours[buffer]):
            for your_access in _different(theirs[buffer]):
                if len(pairs) == most:
                    break  # no index is left to be paired
                for axis in range(len(mine_access.polys)):
                    p, q = mine_access.polys[axis], your_access.polys[axis]
                    if p is None or q is None or mine_access.modes[axis] != your_access.modes[axis]:
                        continue
                    for c, a in (_unify(p, q, mine, yours) or {}).items():
                        if c not in pairs and a not in pairs.values():
                            pairs[c] = a
    return {c: a for c, a in pairs.items() if same_bounds(mine[a], yours[c], pairs, scope.env)}


def _different(found: list[Access]) -> list[Access]:
    """One access for each list of subscripts and modes, in order."""
    return list({(a.polys, a.modes): a for a in reversed(found)}.values())[::-1]


def _abreast(first: Loop, second: Loop, pairs: Pairing, scope: Scope) -> Pairing:
    """Pairs of the indices that are left, in their order, of two parallel loops that have nothing to do with one another
    but that both reduce over an array which follows none of these indices: one walk over it can serve both."""
    here, there = scope.accesses(first), scope.accesses(second)
    rest = [d for d in first.dims if d.id not in pairs.values()], [d for d in second.dims if d.id not in pairs]
    if first.accs or second.accs or first.order != "par" or second.order != "par" or len(rest[0]) != len(rest[1]):
        return {}
    if not here.stores.keys().isdisjoint(there.loads) or not there.stores.keys().isdisjoint(here.loads):
        return {}
    if not all(any(isinstance(s, Loop) and s.accs for s in walk(loop.body)) for loop in (first, second)):
        return {}
    own = {d.id for dims in rest for d in dims}
    names = {b: {n for a in (*here.loads[b], *there.loads[b]) for p in a.polys if p is not None for n in p.names}
             for b in here.loads.keys() & there.loads.keys()}  # fmt: skip
    if not any(found and found.isdisjoint(own) for found in names.values()):
        return {}
    made = {c.id: a.id for a, c in zip(*rest, strict=True)}
    return made if all(same_bounds(a, c, pairs | made, scope.env) for a, c in zip(*rest, strict=True)) else {}


# -- why not ----------------------------------------------------------------------------------------------------------


def obstacle(first: Loop, second: Loop, scope: Scope) -> Cause:
    """Why the two loops have no index in common, in a user's words."""
    mine = {d.id: d for d in first.dims}
    yours = {d.id: d for d in second.dims}
    for store, load in dependences(first, second, scope):
        if not _determined(store, load, mine, yours, scope.env):
            return _dependence(store, load, mine, yours, scope.env)
    if next(dependences(first, second, scope), None) is not None:
        b = next(dependences(first, second, scope))[0].buffer
        return Cause("subscripts", f"the uses of `{b}` and of the other arrays that pass between the loops ask for "
                     "different pairings of their indices", lift="read all of them in the same order of axes")  # fmt: skip
    return Cause("unrelated", "neither reads what the other computes, and no array is read by both at the same place",
                 spans=tuple(s for s in (first.span, second.span) if s))  # fmt: skip


def _dependence(store: Access, load: Access, mine: dict[str, Dim], yours: dict[str, Dim], env: Env) -> Cause:
    spans = tuple(s for s in (store.span, load.span) if s is not None)
    name = store.buffer
    detail = f"`{name}` is written at {_shown(store)} and read at {_shown(load)}"
    if any(q is None for q in load.polys):
        return Cause("gather", f"`{name}` is read at a subscript that is computed from data, so all of it must be complete "
                     "before any of it is read", detail, "read it at a loop index, or keep it small", spans)  # fmt: skip
    if not any(p is not None and p.names & mine.keys() for p in store.polys):
        over = ", ".join(f"`{d}`" for d in mine)
        return Cause("reduction", f"`{name}` is complete only after the whole loop over {over}, and the other loop needs "
                     "it at its first step", detail, "a loop around both of them, along an axis that is not reduced", spans)  # fmt: skip
    for axis in range(len(store.polys)):
        p, q = store.plain(axis), load.plain(axis)
        match = _unify(p, q, mine, yours) if p is not None and q is not None else None
        for c, a in (match or {}).items():
            if not same_bounds(mine[a], yours[c], match or {}, env):
                return Cause("extent", f"`{name}` is computed for `{a}` in {_range(mine[a])}, and its reader runs over "
                             f"{_range(yours[c])}", detail, "give both the same range", spans)  # fmt: skip
    if any(m is not None for m in load.modes):
        return Cause("stencil", f"`{name}` is read through a boundary view, at the neighbours of the element",
                     detail, "compute it again at the rim of each tile", spans)  # fmt: skip
    inner = _inner(store, load, yours, env)
    if inner:
        every = ", ".join(f"`{n}`" for n in inner)
        return Cause("spread", f"each step of the loop that reads `{name}` needs it for every {every}, and one step of the "
                     "loop that computes it makes a part of that", detail, "a kernel of its own for either", spans)  # fmt: skip
    return Cause("subscripts", f"an element of `{name}` is written in one step of its loop and read in other steps of the "
                 "other loop", detail, "read it where it is written, or compute it again", spans)  # fmt: skip


def _inner(store: Access, load: Access, yours: dict[str, Dim], env: Env) -> list[str]:
    """The indices of a load that are not those of the loop: every step of the loop goes through all their values."""
    common = {n for p in store.polys if p is not None for n in p.names}
    names = dict.fromkeys(n for q in load.polys if q is not None for n in sorted(q.names))
    return [n for n in names if n not in yours and n not in common and n not in env.sizes]


def _shown(access: Access) -> str:
    parts = []
    for poly, mode in zip(access.polys, access.modes, strict=True):
        parts.append(("data" if poly is None else str(poly)) + (f" ~{mode.kind}" if mode else ""))
    return f"[{', '.join(parts)}]"


def _range(dim: Dim) -> str:
    low, high = ", ".join(map(str, dim.lo)), ", ".join(map(str, dim.hi))
    return f"{low}..{high}"
