"""Statements as closures: blocks, lets, loops, folds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loopfuse.backends.reference.absorb import Absorption, Dense, Layout, Running, Scatter, Target, Term, target
from loopfuse.backends.reference.access import Positions, compile_store, subscripts
from loopfuse.backends.reference.boxes import AT_ONCE, Demands, boxes, demands, simple
from loopfuse.backends.reference.buffers import hosting
from loopfuse.backends.reference.expr import compile_expr
from loopfuse.backends.reference.frame import Frame, Index, Mask
from loopfuse.backends.reference.nest import Code, Fold, Nest, Turn
from loopfuse.backends.reference.online import compile_online
from loopfuse.backends.reference.places import Link, levels, only, plan, reads
from loopfuse.backends.reference.ranges import Range, masked, set_box
from loopfuse.backends.reference.scope import Entry, Local, Scope, Stored, doubts, linear
from loopfuse.constants import from_bits
from loopfuse.diag import CompilerError
from loopfuse.ir import Affine, Const, Expr, Let, Load, Loop, Op, Stmt, Store
from loopfuse.numerics import Array
from loopfuse.ops import MONOIDS, OPS
from loopfuse.rewrite import binders, exprs, polys, walk


def compile_block(body: tuple[Stmt, ...], scope: Scope, nest: Nest) -> Code:
    """A closure that runs statements in order, and lets go of values after their last use."""
    codes: list[Code] = []
    last = _last_uses(body)
    dead: list[list[Local | Stored]] = [[] for _ in body]
    # The names of this block are added to one dictionary as they come; what is inside has copied it by then.
    entries = dict(scope.entries)
    scope = replace(scope, entries=entries)
    for place, stmt in enumerate(body):
        if isinstance(stmt, Let):
            local = Local(scope.shared.value_slot())
            codes.append(_let(stmt, scope, local.slot))
            entries[stmt.id] = local
        elif isinstance(stmt, Store):
            codes.append(_absorb(stmt, scope, nest) if stmt.absorb else _store(stmt, scope))
        else:
            code, found = compile_loop(stmt, scope, nest)
            codes.append(code)
            entries.update(found)
        names = scope.names.after(stmt)
        scope = scope if names is scope.names else replace(scope, names=names)
        for name in binders(stmt):
            entry = entries.get(name)
            if isinstance(entry, Local | Stored):
                dead[max(place, last.get(name, place))].append(entry)
    steps = [_releasing(code, entries) for code, entries in zip(codes, dead, strict=True)]
    if len(steps) == 1:
        return steps[0]

    def block(f: Frame) -> None:
        for step in steps:
            step(f)

    return block


def _last_uses(body: tuple[Stmt, ...]) -> dict[str, int]:
    last: dict[str, int] = {}
    for place, stmt in enumerate(body):
        for inner in walk((stmt,)):
            for name in reads((*exprs(inner), *(Affine(p) for p in polys(inner)))):
                last[name] = place
    return last


def _releasing(code: Code, dead: list[Local | Stored]) -> Code:
    if not dead:
        return code
    slots = [e.slot for e in dead if isinstance(e, Local)]
    arrays = [e.slot for e in dead if isinstance(e, Stored)]

    def step(f: Frame) -> None:
        code(f)
        for slot in slots:
            f.values[slot] = None
        for slot in arrays:
            f.stores[slot] = None

    return step


def _let(stmt: Let, scope: Scope, slot: int) -> Code:
    value, copy = compile_expr(stmt.value, scope), scope.shared.domain.copy
    if isinstance(stmt.value, Load) and scope.array(stmt.value.buffer).changes:

        def kept(f: Frame) -> None:
            f.values[slot] = copy(value(f))

        return kept

    def let(f: Frame) -> None:
        f.values[slot] = value(f)

    return let


def _store(stmt: Store, scope: Scope) -> Code:
    return compile_store(stmt, compile_expr(stmt.value, scope), scope, compile_expr)


# -- absorptions ------------------------------------------------------------------------------------------------------


def _absorb(stmt: Store, scope: Scope, nest: Nest) -> Code:
    fold, domain = nest.fold(stmt.buffer), scope.shared.domain
    chain = nest.links[fold.home :]
    how = plan(stmt, scope.names, chain)
    reducer = domain.reducer(fold.acc.monoid, stmt.value.dtype, _is_product(stmt, fold), _is_square(stmt))
    fold.reducer = reducer
    at = compile_expr(stmt.at, scope) if stmt.at is not None else None
    term = Term(compile_expr(stmt.value, scope), at, reducer)
    slot = fold.state if fold.prefix else scope.shared.value_slot()
    own = tuple(scope.index(b.id) for link in chain for b in link.bounds if link.loop.order != "seq")
    made: Absorption
    if fold.prefix and fold.simple:
        made = Running(slot, term, Layout.of(scope, own, (), fold.outer), fold.slot)
    elif fold.prefix or how.kept is None:
        modes = stmt.modes or (None,) * len(stmt.subs)
        subs = subscripts(stmt.subs, modes, fold.shape, scope, compile_expr)
        stored = Stored(-1, fold.shape, reducer.dtype, scope.axes[scope.depth - fold.outer :])
        positions = Positions(subs, stored, scope, stmt.buffer, stmt.span)
        made = Scatter(slot, term, Layout.of(scope, own, (), fold.outer), positions, fold.shape)
    else:
        indices = tuple(scope.index(k) if k else None for k in how.kept)
        targets = tuple(_target(s, i, n, scope) for s, i, n in zip(stmt.subs, indices, fold.shape, strict=True))
        kept = tuple(i for i in indices if i is not None and i.axis is not None)
        reduced = tuple(scope.index(r) for r in how.reduced)
        layout = Layout.of(scope, reduced, kept, fold.outer)
        made = Dense(slot, term, layout, targets, reduced, how.compact, stmt.buffer)
    if fold.prefix and not fold.simple:
        fold.absorbs = [made]
        return _running(made, fold)
    fold.absorbs.append(made)
    return made.absorb


def _target(sub: Expr, index: Index | None, extent: int, scope: Scope) -> Target:
    form = linear(scope.names.fold(sub.poly), scope) if isinstance(sub, Affine) else None
    if form is None:
        raise CompilerError("reference", "a dense absorption has a subscript that is not linear")
    return target(form, index, extent)


def _is_product(stmt: Store, fold: Fold) -> bool:
    """Whether the terms are products that the reduction takes up, as in a contraction."""
    value, over = stmt.value, MONOIDS[fold.acc.monoid].op
    while isinstance(value, Op) and OPS[value.op].gives == "explicit" and value.implied:
        value = value.args[0]
    return isinstance(value, Op) and any(op == over for op, _ in OPS[value.op].laws.distributes)


def _is_square(stmt: Store) -> bool:
    """Whether the terms are squares: a product of two equal operands, or a second power."""
    value = stmt.value
    if not isinstance(value, Op):
        return False
    kind, right = OPS[value.op].arithmetic, value.args[-1]
    if kind == "power":
        return isinstance(right, Const) and bool(from_bits(right.bits, right.dtype) == 2)
    return kind == "product" and value.args[0] == right


def _running(made: Absorption, fold: Fold) -> Code:
    """Absorb in a prefix loop that goes step by step, and show the running value at once."""

    def absorb(f: Frame) -> None:
        made.absorb(f)
        outer = f.shape[len(f.shape) - fold.outer :]
        fold.show(f, fold.gathered(f, outer), outer)

    return absorb


# -- loops ------------------------------------------------------------------------------------------------------------


def compile_loop(loop: Loop, scope: Scope, nest: Nest) -> tuple[Code, dict[str, Entry]]:
    """A closure that runs a loop, and the accumulators whose values are known after it."""
    names, bounds = scope.names.inside(loop)
    place, depth = len(nest.links), scope.depth
    serial = loop.order == "seq"
    count = len(bounds)
    own: list[Index] = []
    for k, bound in enumerate(bounds):
        axis = None if serial else -(depth + count - k)
        own.append(Index(scope.shared.index_slot(), axis, bound.step, bound.loose))
    entries = {**scope.entries, **{b.id: i for b, i in zip(bounds, own, strict=True)}}
    inside = replace(scope, names=names, entries=entries, axes=scope.axes if serial else (*own, *scope.axes))
    folds, after = _folds(loop, scope, place, depth)
    inside = replace(inside, entries={**entries, **after})
    everyone = {**nest.folds, **{f.acc.id: f for f in folds}}
    inner = replace(nest, links=(*nest.links, Link(loop, bounds)), folds=everyone)
    outer_homes = {id: f.home for id, f in nest.folds.items()}
    asked = demands(loop, scope.names, nest.links, outer_homes)
    asked.unit |= any((nest.kernel, b.id) in nest.homes.unit for b in bounds)
    mine = {b.id for b in bounds}
    own_bounds = any((p.names & mine) for b in bounds for p in (*b.lo, *b.hi))
    ranges = []
    for k, (bound, index) in enumerate(zip(bounds, own, strict=True)):
        trim = not (asked.whole or own_bounds or (loop.accs and k > 0))
        ranges.append(Range(bound, index, inside, trim))
    hosts = [hosting(home, nest.stores[id], inside) for id, home in nest.homes.of.items()
             if home.host and home.host[0] == nest.kernel and home.host[1] in mine]  # fmt: skip
    where = compile_expr(loop.where, inside) if loop.where is not None else None
    unsure = doubts((p for d in loop.dims for p in (*d.lo, *d.hi)), scope)
    guard = _guarded(where, inside, hosts, unsure)
    if serial:
        body = compile_block(loop.body, inside, inner)
        return _serial(ranges, guard, body, not nest.links), after
    turns = _turns(loop, folds, inside, inner)
    if inside.shared.online is not None and any(a.repair is not None for a in loop.accs):
        return compile_online(ranges, guard, turns, scope, inside.shared.online, not _absorbs_outside(loop)), after
    above = tuple(scope.index(name).slot for name in asked.above)
    return _parallel(loop, ranges, guard, turns, asked, above, not nest.links), after


def _absorbs_outside(loop: Loop) -> bool:
    """Whether the body absorbs into an accumulator of a loop around."""
    own = {a.id for s in walk((loop,)) if isinstance(s, Loop) for a in s.accs}
    return any(isinstance(s, Store) and s.absorb and s.buffer not in own for s in walk(loop.body))


def _folds(loop: Loop, scope: Scope, place: int, depth: int) -> tuple[list[Fold], dict[str, Entry]]:
    """The accumulators of a loop, and what their names mean in it and after it."""
    folds: list[Fold] = []
    entries: dict[str, Entry] = {}
    prefix, shared = loop.order == "prefix", scope.shared
    for acc in loop.accs:
        shape = tuple(int(scope.names.fold(p).value({})) for p in acc.shape)
        slot = shared.store_slot() if shape else shared.value_slot()
        alone = prefix and simple(loop)
        folds.append(Fold(acc, place, depth, slot, shape, prefix, alone, shared.domain, shared.value_slot()))
        dtype = MONOIDS[acc.monoid].result(acc.dtype)
        entries[acc.id] = Stored(slot, shape, dtype, scope.axes, changes=True) if shape else Local(slot)
    return folds, entries


def _turns(loop: Loop, folds: list[Fold], inside: Scope, nest: Nest) -> tuple[Turn, ...]:
    if not folds or loop.order == "prefix":
        body = compile_block(loop.body, inside, nest)
        return (Turn(tuple(folds), body),)
    level = levels(loop)
    turns = []
    for turn in range(max(level.values()) + 1):
        part = only(loop.body, level, turn, nest.homes.brief) if any(level.values()) else loop.body
        body = compile_block(part, inside, nest)
        chosen = tuple(x for x in folds if level[x.acc.id] == turn)
        turns.append(Turn(chosen, body))
    return tuple(turns)


def _guarded(where: Any, scope: Scope, hosts: list[Code], bounds: Any) -> Callable[[Frame, list[Range]], bool]:
    """A closure that makes windows and masks for a box; false when no iteration of it is performed.

    `bounds` says where the loop's bounds are undecided.
    """
    domain = scope.shared.domain

    def guard(f: Frame, ranges: list[Range]) -> bool:
        if bounds is not None:
            f.doubt = _joined(f.doubt, bounds(f))
        part = masked(f, ranges)
        if part is not None:
            f.mask = Mask(f.mask, part)
            if not f.mask.array().any():
                return False
        for host in hosts:
            host(f)
        if where is not None:
            cond = where(f)
            f.mask = Mask(f.mask, domain.truth(cond))
            unsure = domain.doubt(cond)
            if unsure is not None:
                f.doubt = _joined(f.doubt, unsure)
            elif not f.mask.array().any():
                return False
        return True

    return guard


def _joined(doubt: Array | None, more: Array | None) -> Array | None:
    return more if doubt is None else doubt if more is None else doubt | more


def _serial(ranges: list[Range], guard: Callable[[Frame, list[Range]], bool], body: Code, top: bool) -> Code:
    """Iterations in order; with several dims the last one fastest."""

    def loop(f: Frame, depth: int) -> None:
        if depth == len(ranges):
            mask, doubt = f.mask, f.doubt
            if guard(f, ranges):
                body(f)
            f.mask, f.doubt = mask, doubt
            return
        r = ranges[depth]
        first, count = r.enter(f)
        slot, step = r.index.slot, r.index.step
        for trip in range(count):
            at = first + trip * step
            f.start[slot] = f.last[slot] = f.low[slot] = f.high[slot] = at
            f.count[slot] = 1
            loop(f, depth + 1)
            if top and depth == 0 and f.report:
                f.report((trip + 1) / count)

    return lambda f: loop(f, 0)


def _parallel(loop: Loop, ranges: list[Range], guard: Callable[[Frame, list[Range]], bool], turns: tuple[Turn, ...],
              asked: Demands, above: tuple[int, ...], top: bool) -> Code:  # fmt: skip
    whole, never, unit, width = asked.whole, asked.never, asked.unit, asked.width

    def most(f: Frame) -> int:
        if unit:
            return 1
        if whole and (never or any(f.count[s] != 1 for s in above)):
            return 1 << 62
        return max(1, min(AT_ONCE, f.limit) // (f.elements * width))

    def run(f: Frame) -> None:
        outer, around, mask, doubt, quiet = f.shape, f.elements, f.mask, f.doubt, f.quiet
        entered = [r.enter(f) for r in ranges]
        starts, counts = [s for s, _ in entered], tuple([n for _, n in entered])
        empty = 0 in counts
        for number, turn in enumerate(turns):
            turn.begin(f)
            f.quiet = quiet or number > 0
            done = 0
            for box in () if empty else boxes(counts, most(f)):
                set_box(f, ranges, starts, box, outer, around)
                if guard(f, ranges):
                    turn.body(f)
                if top and f.report:
                    done += f.elements
                    f.report((number + done / _total(counts)) / len(turns))
                f.shape, f.elements, f.mask, f.doubt = outer, around, mask, doubt
            turn.end(f, outer)
        f.quiet = quiet

    return run


def _total(counts: tuple[int, ...]) -> int:
    total = 1
    for count in counts:
        total *= count
    return total
