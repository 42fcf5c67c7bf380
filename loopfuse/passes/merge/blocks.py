"""Two blocks of statements as one: loops of the second are joined with loops of the first wherever that is legal.

The statements of both blocks keep their order but where a dependence allows a loop to move up to the one that it joins.
Loops are joined at the indices that pair; what is left of each stands inside, and is joined in turn.
"""

from __future__ import annotations

from dataclasses import replace

from loopfuse.ir import Affine, Const, Dim, Expr, Let, Load, Loop, Order, Ref, Stmt, Store
from loopfuse.passes.merge.accesses import Scope
from loopfuse.passes.merge.align import aligned
from loopfuse.passes.merge.pairs import Pairing, pairing
from loopfuse.rewrite import map_expr, rename, walk
from loopfuse.sizes import ONE, ZERO, Poly

Block = tuple[Stmt, ...]


def join(first: Block, second: Block, scope: Scope) -> Block:
    """The two blocks, the second after the first, with the loops of both joined where they can be."""
    made = list(first)
    candidates = [s for s in first if isinstance(s, Loop)]
    for stmt in second:
        made, candidates = _add(made, stmt, candidates, scope)
    return tuple(made)


def _add(made: list[Stmt], stmt: Stmt, candidates: list[Loop], scope: Scope) -> tuple[list[Stmt], list[Loop]]:
    """Add a statement to a block: into one of the candidate loops, or at the end."""
    if isinstance(stmt, Loop):
        for target in reversed(candidates):
            placed = _place(made, target, stmt, scope)
            if placed is not None:
                return placed[0], [placed[1] if c is target else c for c in candidates]
        turned = _turned(candidates, stmt, scope)
        if turned is not None:
            fold, rest = turned
            made, candidates = _add(made, fold, candidates, scope)
            return [*made, *rest], candidates
        scope.apart += [(target, stmt, _blocker(made, target, stmt, scope)) for target in candidates
                        if scope.needs(stmt, target)]  # fmt: skip
    return [*made, stmt], candidates


def _place(made: list[Stmt], target: Loop, stmt: Loop, scope: Scope) -> tuple[list[Stmt], Loop] | None:
    """The block with the loop joined to a target; None where they do not join, or what lies between forbids it."""
    place = next(k for k, s in enumerate(made) if s is target)
    after = made[place + 1 :]
    needed = _needed(after, stmt, scope)
    if any(scope.needs(s, target) for s in needed):
        return None
    joint = join_loops(target, stmt, scope)
    if joint is None:
        return None
    scope.joined += 1
    rest = [s for s in after if not any(s is n for n in needed)]
    return [*made[:place], *needed, joint, *rest], joint


def _blocker(made: list[Stmt], target: Loop, stmt: Stmt, scope: Scope) -> Stmt | None:
    """What must come after the one and before the other."""
    place = next((k for k, s in enumerate(made) if s is target), len(made))
    return next((s for s in _needed(made[place + 1 :], stmt, scope) if scope.needs(s, target)), None)


def _needed(after: list[Stmt], stmt: Stmt, scope: Scope) -> list[Stmt]:
    """The statements among `after` that must come before `stmt`, in order."""
    found: list[Stmt] = []
    for earlier in reversed(after):
        if any(scope.needs(later, earlier) for later in (stmt, *found)):
            found.insert(0, earlier)
    return found


def join_loops(first: Loop, second: Loop, scope: Scope) -> Loop | None:
    """One loop over the indices that the two can share, with the rest of both inside; None where there are none."""
    order = _order(first, second)
    if order is None:
        return None
    used, _ = scope.names(second)
    if any(a.id in used.all for a in first.accs):
        return None  # a fold's value is complete only after its loop
    whole = first, second
    first, second, parts = aligned(first, second, scope)
    ordered = _absorbs(first, scope), _absorbs(second, scope)
    pairs = _in_order(first, second, ordered, pairing(first, second, scope))
    if not pairs or not _orders_whole(first, second, pairs):
        return None
    shared = set(pairs.values())
    given, second = second, renamed(second, pairs)
    rest_first = tuple(d for d in first.dims if d.id not in shared)
    rest_second = tuple(d for d in second.dims if d.id not in shared)
    where = first.where if first.where == second.where else None
    conditions = [None if loop.where == where else loop.where for loop in (first, second)]
    if any(c is not None and not rest for c, rest in zip(conditions, (rest_first, rest_second), strict=True)):
        return None  # a condition of one loop alone needs a loop of its own
    for loop in whole:
        scope.slide(loop, parts)
    scope.slide(given, {c: Poly.of(a) for c, a in pairs.items()})
    body = join(_rest(first, rest_first, conditions[0]), _rest(second, rest_second, conditions[1]), scope)
    dims = tuple(d for d in (first if ordered[0] else second).dims if d.id in shared)
    return Loop(dims, body, order, (*first.accs, *second.accs), where, span=first.span)


def _order(first: Loop, second: Loop) -> Order | None:
    """The order of the joint loop, or None where the two kinds of loop cannot be one."""
    orders = {first.order, second.order}
    if orders == {"par"}:
        return "par"
    if "seq" in orders and not first.accs and not second.accs and "prefix" not in orders:
        return "seq"
    if first.order == "par" and not first.accs and second.order == "prefix":
        return "prefix"
    return None


def _absorbs(loop: Loop, scope: Scope) -> bool:
    """Whether the loop absorbs: into accumulators of its own, or of a loop around, in the order of its indices."""
    return bool(loop.accs) or any(name not in scope.env.buffers for name in scope.names(loop)[0].stores)


def _in_order(first: Loop, second: Loop, ordered: tuple[bool, bool], pairs: Pairing) -> Pairing:
    """The pairs that keep the order in which each loop absorbs: its outermost indices, in their own order."""
    for loop, mine, absorbs in ((first, list(pairs.values()), ordered[0]), (second, list(pairs), ordered[1])):
        if absorbs:
            kept = []
            for dim in loop.dims:
                if dim.id not in mine:
                    break
                kept.append(dim.id)
            pairs = {c: a for c, a in pairs.items() if (a if loop is first else c) in kept}
    if all(ordered):
        back = {a: c for c, a in pairs.items()}
        ours = [back[d.id] for d in first.dims if d.id in back]
        theirs = [d.id for d in second.dims if d.id in pairs]
        same = 0
        while same < len(ours) and ours[same] == theirs[same]:
            same += 1
        pairs = {c: pairs[c] for c in ours[:same]}
    return pairs


def _orders_whole(first: Loop, second: Loop, pairs: Pairing) -> bool:
    """Whether ordered loops are shared as a whole: a part of their indices would change the order of the steps."""
    whole = all(d.id in pairs.values() for d in first.dims) if first.order != "par" else True
    return whole and (second.order == "par" or all(d.id in pairs for d in second.dims))


def _rest(loop: Loop, dims: tuple[Dim, ...], where: Expr | None) -> Block:
    """What stands inside the joint loop: the body, in a loop over the indices that are not shared."""
    return (Loop(dims, loop.body, where=where, span=loop.span),) if dims else loop.body


def renamed(loop: Loop, names: dict[str, str]) -> Loop:
    """The loop with other names for some of its indices."""
    if all(a == c for c, a in names.items()):
        return loop
    (made,) = rename((loop,), {c: a for c, a in names.items() if a != c})
    assert isinstance(made, Loop)
    return made


# -- interchange ------------------------------------------------------------------------------------------------------


def _turned(candidates: list[Loop], stmt: Loop, scope: Scope) -> tuple[Loop, Block] | None:
    """A par loop around a fold, as the fold around the par loop, where that lets the fold join a candidate.

    `par e { fold j { acc s }; rest }` is `fold j { acc s[E]; par e { .. } }; par e { rest }`. It is done where a candidate
    computes what the fold reads by a loop of its own: anything cheaper is computed again where it is read.
    """
    if stmt.order != "par" or _absorbs(stmt, scope) or stmt.where is not None:
        return None
    folds = [s for s in stmt.body if isinstance(s, Loop)]
    if not folds or not all(isinstance(s, Let) for s in stmt.body[: _index(stmt.body, folds[0])]):
        return None
    fold = folds[0]
    if not fold.accs or fold.order != "par" or any(a.shape for a in fold.accs):
        return None
    own = {d.id for d in stmt.dims}
    if any(p.names & own for d in fold.dims for p in (*d.lo, *d.hi, d.step)) or not _from_zero(stmt.dims):
        return None
    for target in candidates:
        stores = scope.accesses(target).stores
        if not target.accs and not any(isinstance(s, Loop) for s in target.body):
            continue
        if stores.keys() & scope.accesses(fold).loads.keys() and pairing(target, fold, scope):
            return interchange(stmt, fold, scope)
    return None


def _index(body: Block, stmt: Stmt) -> int:
    return next(k for k, s in enumerate(body) if s is stmt)


def _from_zero(dims: tuple[Dim, ...]) -> bool:
    """Whether the indices can be subscripts of an array of their extents, which mention sizes only."""
    return all(d.lo == (ZERO,) and d.step == ONE and len(d.hi) == 1 for d in dims)


def interchange(outer: Loop, fold: Loop, scope: Scope) -> tuple[Loop, Block] | None:
    """The fold outside its par loop, with array accumulators, and the loop over what comes after it."""
    sizes = scope.env.sizes.keys()
    if not all(d.hi[0].names <= sizes for d in outer.dims) or fold.where is not None:
        return None
    place = _index(outer.body, fold)
    before, after = outer.body[:place], outer.body[place + 1 :]
    shape = tuple(d.hi[0] for d in outer.dims)
    subs = tuple(Affine(Poly.of(d.id)) for d in outer.dims)
    accs = tuple(replace(a, shape=shape) for a in fold.accs)
    ids = {a.id for a in fold.accs}
    inside = _arrays((*before, *fold.body), ids, subs)
    turned = Loop(fold.dims, (Loop(outer.dims, inside, span=outer.span),), "par", accs, span=fold.span)
    fresh = {d.id: scope.env.fresh(d.id) for d in outer.dims}
    copies = {s.id: scope.env.fresh(s.id) for s in before if isinstance(s, Let)}
    rest = _arrays((*before, *after), ids, subs)
    tail = Loop(outer.dims, rest, span=outer.span)
    scope.slide(tail, {old: Poly.of(new) for old, new in fresh.items()})
    (tail_renamed,) = rename((tail,), fresh | copies)
    return turned, (tail_renamed,)


def _arrays(body: Block, ids: set[str], subs: tuple[Expr, ...]) -> Block:
    """A block in which scalar accumulators have become arrays."""

    def on_expr(node: Expr) -> Expr:
        if isinstance(node, Ref) and node.id in ids:
            return Load(node.id, subs, (None,) * len(subs), node.dtype, span=node.span)
        return node

    def on_body(stmts: Block) -> Block:
        made: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, Loop):
                where = None if stmt.where is None else map_expr(stmt.where, on_expr)
                made.append(replace(stmt, body=on_body(stmt.body), where=where))
            elif isinstance(stmt, Let):
                made.append(replace(stmt, value=map_expr(stmt.value, on_expr)))
            else:
                value = map_expr(stmt.value, on_expr)
                at = None if stmt.at is None else map_expr(stmt.at, on_expr)
                places = tuple(map_expr(s, on_expr) for s in stmt.subs)
                if stmt.absorb and stmt.buffer in ids:
                    places = subs
                made.append(replace(stmt, value=value, at=at, subs=places))
        return tuple(made)

    return on_body(body)


# -- forwarding -------------------------------------------------------------------------------------------------------


def forward(body: Block, scope: Scope) -> Block:
    """Loads of what an earlier statement of the same or an enclosing block has stored, as the value itself.

    The store stays; a later pass drops it where nobody else reads it. The value gets a name: a tree never grows.
    """
    return _forward(body, {}, scope)


Stored = dict[tuple[str, tuple[Poly, ...]], Expr]


def _forward(body: Block, known: Stored, scope: Scope) -> Block:
    loaded: set[str] = set()
    if any(isinstance(s, Store) and not s.absorb for s in body):
        loaded = {b for s in walk(body) if isinstance(s, Loop) for b in scope.names(s)[0].loads}
        for s in body:
            if not isinstance(s, Loop):
                loaded |= scope.names(s)[0].loads
    known = dict(known)
    buffers = {b for b, _ in known}
    made: list[Stmt] = []
    for stmt in body:
        current = _with(stmt, known, buffers, scope) if known else stmt
        if isinstance(current, Loop):
            inner = _forward(current.body, known, scope)
            made.append(current if inner is current.body else replace(current, body=inner))
            continue
        if isinstance(current, Store) and not current.absorb and current.buffer in loaded and not any(current.modes):
            polys = tuple(scope.poly(s) for s in current.subs)
            if all(p is not None for p in polys):
                if not isinstance(current.value, Ref | Const):
                    let = Let(scope.env.fresh(current.buffer), current.value, span=current.span)
                    made.append(let)
                    current = replace(current, value=Ref(let.id, let.value.dtype, span=current.value.span))
                known[current.buffer, tuple(p for p in polys if p is not None)] = current.value
                buffers.add(current.buffer)
        made.append(current)
    return body if len(made) == len(body) and all(a is b for a, b in zip(made, body, strict=True)) else tuple(made)


def _with(stmt: Stmt, known: Stored, buffers: set[str], scope: Scope) -> Stmt:
    """A statement's own expressions with loads of known elements, of these buffers, replaced."""

    def on_expr(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in buffers and not any(node.modes):
            polys = tuple(scope.poly(s) for s in node.subs)
            if all(p is not None for p in polys):
                return known.get((node.buffer, tuple(p for p in polys if p is not None)), node)
        return node

    if buffers.isdisjoint(scope.names(stmt)[0].loads):
        return stmt
    if isinstance(stmt, Let):
        value = map_expr(stmt.value, on_expr)
        return stmt if value is stmt.value else replace(stmt, value=value)
    if isinstance(stmt, Store):
        value, at = map_expr(stmt.value, on_expr), None if stmt.at is None else map_expr(stmt.at, on_expr)
        subs = tuple(map_expr(s, on_expr) for s in stmt.subs)
        same = value is stmt.value and at is stmt.at and all(a is b for a, b in zip(subs, stmt.subs, strict=True))
        return stmt if same else replace(stmt, value=value, at=at, subs=subs)
    where = None if stmt.where is None else map_expr(stmt.where, on_expr)
    return stmt if where is stmt.where else replace(stmt, where=where)
