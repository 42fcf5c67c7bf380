"""A producer computed again where it is read: its loop's body as lets, its indices replaced by the subscripts.

A boundary mode applies to the producer's value: a constant fill selects between the value and the fill. The modes that
mirror or clip move to the producer's own loads where the index lands there alone, on an axis of the same extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from loopfuse.decisions import Cause
from loopfuse.dtypes import BOOL
from loopfuse.ir import Affine, Dim, Expr, Kernel, Let, Load, Loop, Mode, Op, Ref, Select, Stmt, Store
from loopfuse.ops import OPS
from loopfuse.passes.merge.accesses import Scope
from loopfuse.rewrite import Substitution, children, exprs, guarded, map_expr, own, subexprs
from loopfuse.sizes import ONE, ZERO, Poly

MOST_NODES = 48  # of a value that is put into the arm of a condition as a tree


@dataclass(frozen=True)
class _Definition:
    """What a producer stores in one array: the loop index of each axis, the lets that the value needs, the value."""

    store: Store
    axes: tuple[str, ...]
    lets: tuple[Let, ...]


@dataclass
class _Inliner:
    definitions: dict[str, _Definition]
    scope: Scope
    recomputed: int = 0
    refused: Cause | None = None
    around: list[Loop] = field(default_factory=list)

    # -- statements ---------------------------------------------------------------------------------------------------

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """A block with its loads of the producer's arrays replaced; equal loads of one block share their lets."""
        made: list[Stmt] = []
        known: dict[tuple[object, ...], Expr] = {}
        for stmt in body:
            if isinstance(stmt, Loop):
                if stmt.where is not None and self._loads(stmt.where):
                    self._refuse(stmt.where, "in the condition of a loop")
                self.around.append(stmt)
                inner = self.block(stmt.body)
                self.around.pop()
                made.append(stmt if inner is stmt.body else replace(stmt, body=inner))
            elif any(load.buffer in self.definitions for load in own(stmt).loads):
                made += self._statement(stmt, known)
            else:
                made.append(stmt)
        return body if len(made) == len(body) and all(a is b for a, b in zip(made, body, strict=True)) else tuple(made)

    def _loads(self, expr: Expr) -> bool:
        return any(isinstance(n, Load) and n.buffer in self.definitions for n in subexprs(expr))

    def _statement(self, stmt: Let | Store, known: dict[tuple[object, ...], Expr]) -> list[Stmt]:
        lets: list[Stmt] = []

        def on(expr: Expr) -> Expr:
            return self._expr(expr, lets, known)

        if isinstance(stmt, Let):
            return [*lets, replace(stmt, value=value)] if (value := on(stmt.value)) is not stmt.value else [stmt]
        subs = tuple(on(s) for s in stmt.subs)
        value, at = on(stmt.value), None if stmt.at is None else on(stmt.at)
        return [*lets, replace(stmt, subs=subs, value=value, at=at)]

    # -- expressions --------------------------------------------------------------------------------------------------

    def _expr(self, root: Expr, lets: list[Stmt], known: dict[tuple[object, ...], Expr]) -> Expr:
        """An expression with its loads replaced: those that are always performed by lets, those of an arm by trees."""
        lazy: set[int] = set()
        stack: list[tuple[Expr, bool]] = [(root, False)]
        eager: set[int] = set()
        while stack:
            node, under = stack.pop()
            (lazy if under else eager).add(id(node))
            stack += [(child, under or arm) for child, arm in guarded(node)]
        made: dict[int, Expr] = {}

        def value_of(load: Load, subs: tuple[Expr, ...], always: bool) -> Expr:
            return self._value(replace(load, subs=subs), lets if always else None, known if always else {})

        def build(node: Expr) -> Expr:
            done: list[tuple[Expr, bool]] = [(node, False)]
            while done:
                current, ready = done.pop()
                if id(current) in made:
                    continue
                if not ready:
                    done.append((current, True))
                    done += [(c, False) for c in children(current)]
                    continue
                parts = tuple(made[id(c)] for c in children(current))
                if isinstance(current, Load) and current.buffer in self.definitions:
                    made[id(current)] = value_of(current, parts, id(current) in eager)
                else:
                    made[id(current)] = _with(current, parts)
            return made[id(node)]

        return build(root)

    def _value(self, load: Load, lets: list[Stmt] | None, known: dict[tuple[object, ...], Expr]) -> Expr:
        """What stands in place of a load; with `lets` its parts are named, else it is one tree."""
        key = (load.buffer, load.subs, load.modes)
        if key in known:
            return known[key]
        made = self.definitions[load.buffer]
        indices: dict[str, Poly] = {}
        moved: dict[str, Mode] = {}
        inside: list[Expr] = []
        for axis, name in enumerate(made.axes):
            poly = self.scope.poly(load.subs[axis])
            mode = load.modes[axis]
            if mode is not None and mode.kind == "checked":
                self._refuse(load, "through a check of its range, which must be reported")
                return load
            if not name and (mode is None or mode.kind != "constant"):
                continue
            if poly is None:
                poly = self._named(load, axis, lets)
            if poly is None:
                return load
            if name:
                indices[name] = poly
            if mode is not None and mode.kind == "constant":
                inside += _bounds(poly, self.scope.env.buffers[load.buffer].shape[axis])
            elif mode is not None:
                moved[name] = mode
        fill = next((m.fill for m in load.modes if m is not None and m.fill is not None), None)
        if moved and not self._movable(made, moved, load):
            return load
        value = self._body(made, indices, moved, None if inside else lets, load)
        if inside:
            assert fill is not None
            condition = inside[0]
            for part in inside[1:]:
                condition = Op("and", (condition, part), BOOL)
            value = Select(condition, value, fill, span=load.span)
            if lets is not None:
                let = Let(self.scope.env.fresh(load.buffer), value, span=load.span)
                lets.append(let)
                value = Ref(let.id, value.dtype, span=load.span)
        known[key] = value
        return value

    def _named(self, load: Load, axis: int, lets: list[Stmt] | None) -> Poly | None:
        """A name for a computed subscript."""
        if lets is None:
            self._refuse(load, "at a computed subscript under a condition")
            return None
        let = Let(self.scope.env.fresh(load.buffer), load.subs[axis], span=load.span)
        lets.append(let)
        return Poly.of(let.id)

    def _body(self, made: _Definition, indices: dict[str, Poly], moved: dict[str, Mode], lets: list[Stmt] | None,
              load: Load) -> Expr:  # fmt: skip
        """The definition at the subscripts."""
        refs: dict[str, Expr] = {}
        names = dict(indices)
        nodes = 0

        def on(expr: Expr) -> Expr:
            # The refs last: what they stand for has the reader's indices already.
            expr = Substitution(indices=names).expr(map_expr(expr, lambda n: _moved(n, moved)))
            return map_expr(expr, lambda n: refs.get(n.id, n) if isinstance(n, Ref) else n)

        for let in made.lets:
            value = on(let.value)
            nodes += sum(1 for _ in subexprs(let.value))
            poly = self.scope.poly(value)
            if lets is None:
                refs[let.id] = value
                if poly is not None:
                    names[let.id] = poly
                continue
            name = self.scope.env.fresh(let.id)
            names[let.id] = Poly.of(name)
            if poly is not None:
                self.scope.affine[name] = poly
            lets.append(Let(name, value, span=let.span))
            refs[let.id] = Ref(name, value.dtype, span=let.span)
        value = on(made.store.value)
        nodes += sum(1 for _ in subexprs(made.store.value))
        if lets is None:
            if nodes > MOST_NODES:
                self._refuse(load, "under a condition, and is too long to be computed there")
            return value
        if isinstance(value, Ref):
            return value
        let = Let(self.scope.env.fresh(load.buffer), value, span=load.span or made.store.span)
        lets.append(let)
        return Ref(let.id, value.dtype, span=load.span)

    def _movable(self, made: _Definition, moved: dict[str, Mode], load: Load) -> bool:
        """Whether modes can move to the definition's loads: each index stands alone in a subscript of equal extent."""
        buffers = self.scope.env.buffers
        shape = {n: buffers[load.buffer].shape[k] for k, n in enumerate(made.axes)}
        for root in (*(e for s in made.lets for e in exprs(s)), made.store.value):
            if _mentions(root, moved):
                return self._refuse(load, "through a boundary view, and depends on its own index")
            for node in subexprs(root):
                if not isinstance(node, Load):
                    if any(_mentions(part, moved) for part in children(node)):
                        return self._refuse(load, "through a boundary view, and depends on its own index")
                    continue
                target = buffers.get(node.buffer)
                for k, sub in enumerate(node.subs):
                    poly = self.scope.poly(sub)
                    for name in moved:
                        if poly is None or name not in poly.names:
                            continue
                        if (not isinstance(sub, Affine) or sub.poly.name != name or node.modes[k] is not None
                                or target is None or target.shape[k] != shape[name]):  # fmt: skip
                            return self._refuse(
                                load, "through a boundary view that does not pass to what it is made of"
                            )
        return True

    def _refuse(self, expr: Expr, why: str) -> bool:
        name = expr.buffer if isinstance(expr, Load) else "a value"
        spans = tuple(s for s in (expr.span,) if s)
        self.refused = self.refused or Cause("inline", f"`{name}` is read {why}", spans=spans)
        return False


def _with(node: Expr, parts: tuple[Expr, ...]) -> Expr:
    if all(a is b for a, b in zip(children(node), parts, strict=True)):
        return node
    if isinstance(node, Op):
        return replace(node, args=parts)
    if isinstance(node, Load):
        return replace(node, subs=parts)
    assert isinstance(node, Select)
    return replace(node, cond=parts[0], then=parts[1], other=parts[2])


def _bounds(poly: Poly, extent: Poly) -> list[Expr]:
    return [Op("ge", (Affine(poly), Affine(ZERO)), BOOL), Op("lt", (Affine(poly), Affine(extent)), BOOL)]


def _mentions(node: Expr, moved: dict[str, Mode]) -> bool:
    """Whether a node is a number that depends on an index with a mode. Equal nodes may be one object: what a subscript is
    elsewhere says nothing of it here."""
    return isinstance(node, Affine) and bool(moved.keys() & node.poly.names)


def _moved(node: Expr, moved: dict[str, Mode]) -> Expr:
    if not moved or not isinstance(node, Load):
        return node
    modes = list(node.modes)
    for k, sub in enumerate(node.subs):
        if isinstance(sub, Affine) and sub.poly.name in moved:
            modes[k] = moved[sub.poly.name]
    return replace(node, modes=tuple(modes)) if tuple(modes) != node.modes else node


def definitions(a: Kernel, scope: Scope) -> dict[str, _Definition] | Cause:
    """What each array of a producer is, element by element; a cause where the kernel is no such producer."""
    spans = (a.span,) if a.span else ()
    if len(a.body) != 1 or not isinstance(a.body[0], Loop):
        return Cause("inline", "the producer is no single loop nest", spans=spans)
    loop = a.body[0]
    if loop.order != "par" or loop.accs or loop.where is not None or any(isinstance(s, Loop) for s in loop.body):
        return Cause("inline", "the producer reduces, or runs in order: it is not computed again", spans=spans)
    found: dict[str, _Definition] = {}
    lets: list[Let] = []
    for stmt in loop.body:
        if isinstance(stmt, Let):
            lets.append(stmt)
        elif isinstance(stmt, Store):
            if any(stmt.modes) or stmt.buffer in found:
                return Cause("inline", f"`{stmt.buffer}` is written in parts", spans=spans)
            axes = store_axes(stmt, loop, scope)
            if axes is None:
                return Cause("inline", f"`{stmt.buffer}` is not written at plain indices", spans=spans)
            found[stmt.buffer] = _Definition(stmt, axes, _needed(stmt, lets))
    return found


def store_axes(store: Store, loop: Loop, scope: Scope) -> tuple[str, ...] | None:
    """The index of each axis (empty for an axis of one element), where the store covers the whole array."""
    dims = {d.id: d for d in loop.dims}
    axes = []
    for sub, extent in zip(store.subs, scope.env.buffers[store.buffer].shape, strict=True):
        poly = scope.poly(sub)
        name = poly.name if poly is not None else None
        if name in dims:
            axes.append(name or "")
            if dims[name].hi != (extent,) or dims[name].lo != (ZERO,) or dims[name].step != ONE:
                return None
        elif poly == ZERO and extent == ONE:
            axes.append("")
        else:
            return None
    named = [a for a in axes if a]
    return tuple(axes) if len(named) == len(set(named)) and set(named) == dims.keys() else None


def checked(load: Load) -> bool:
    """Whether a load tells where it goes outside its array."""
    return any(m is not None and m.kind == "checked" for m in load.modes)


def faulty(name: str, load: Load) -> Cause:
    """Why an array whose computation may tell a fault is not computed by a reader that may leave elements out."""
    return Cause("faults", f"`{name}` tells where its reads of `{load.buffer}` go outside, and the other does not read all of it: "
                 "some would not be told", lift="state the range of the subscript with `where`",
                 spans=(load.span,) if load.span else ())  # fmt: skip


def reads_all(name: str, body: Sequence[Stmt], scope: Scope, around: tuple[Loop, ...] = ()) -> bool:
    """Whether statements read every element of an array whatever the data and the sizes are."""
    for stmt in body:
        if isinstance(stmt, Loop):
            if stmt.where is None and reads_all(name, stmt.body, scope, (*around, stmt)):
                return True
        elif any(load.buffer == name and _whole(load, around, scope) for load in _performed(stmt)):
            return True
    return False


def _performed(stmt: Let | Store) -> Iterator[Load]:
    """The loads of a statement that no condition keeps from being performed."""
    stack = list(exprs(stmt))
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            yield node
        stack += [child for child, arm in guarded(node) if not arm]


def _whole(load: Load, around: tuple[Loop, ...], scope: Scope) -> bool:
    """Whether a load goes through a whole array: the loops around are its axes, or run at least once."""
    dims = {d.id: d for loop in around for d in loop.dims}
    left = dict(dims)
    for sub, mode, extent in zip(load.subs, load.modes, scope.env.buffers[load.buffer].shape, strict=True):
        poly = scope.poly(sub)
        dim = left.pop(poly.name, None) if poly is not None and poly.name is not None else None
        if mode is not None or (dim is None and not (poly == ZERO and extent == ONE)):
            return False
        if dim is not None and not (dim.lo == (ZERO,) and dim.hi == (extent,) and dim.step == ONE):
            return False
    return all(_runs(d) for d in left.values())


def _runs(dim: Dim) -> bool:
    """Whether a dim has at least one value."""
    gaps = [high - low for high in dim.hi for low in dim.lo]
    return all(gap.is_const and gap.constant > 0 for gap in gaps)


def _needed(store: Store, lets: list[Let]) -> tuple[Let, ...]:
    """The lets that a stored value is made of."""
    wanted = set(own(store).names.values)
    kept: list[Let] = []
    for let in reversed(lets):
        if let.id in wanted:
            kept.insert(0, let)
            wanted |= own(let).names.values
    return tuple(kept)


def inlined(a: Kernel, b: Kernel, scope: Scope) -> tuple[Kernel, int] | Cause:
    """`b` with the arrays of `a` computed where they are read, and the operations done again in all."""
    found = definitions(a, scope)
    if isinstance(found, Cause):
        return found
    for name, made in found.items():
        stmts: list[Let | Store] = [*made.lets, made.store]
        told = next((n for s in stmts for n in own(s).loads if checked(n)), None)
        if told is not None and not reads_all(name, b.body, scope):
            return faulty(name, told)
    inliner = _Inliner(found, scope)
    body = inliner.block(b.body)
    if inliner.refused is not None:
        return inliner.refused
    if body is b.body:
        return Cause("unrelated", "the second reads nothing of what the first computes")
    extra = max(0, work((Kernel(b.id, body)), scope) - work(b, scope) - work(a, scope))
    return replace(b, body=body), extra


def work(kernel: Kernel, scope: Scope) -> int:
    """The operations of a kernel at the sizes of the environment, special functions counted as eight."""
    total = 0
    stack: list[tuple[tuple[Stmt, ...], float]] = [(kernel.body, 1.0)]
    numbers = dict(scope.env.sizes)
    while stack:
        body, times = stack.pop()
        for stmt in body:
            if isinstance(stmt, Loop):
                trips = prod(_extent(stmt, k, numbers) for k in range(len(stmt.dims)))
                stack.append((stmt.body, times * trips))
            rows = [OPS[n.op] for n in own(stmt).nodes if isinstance(n, Op) and n.op in OPS]
            total += int(times * sum(row.flops + 8 * row.special for row in rows))
    return total


def _extent(loop: Loop, k: int, numbers: dict[str, int]) -> float:
    """About how many steps an index takes; inner bounds that depend on outer indices count as half."""
    dim = loop.dims[k]
    free = {n for p in (*dim.lo, *dim.hi, dim.step) for n in p.names} - numbers.keys()
    values = numbers | dict.fromkeys(free, 0)
    low, high = max(p.value(values) for p in dim.lo), min(p.value(values) for p in dim.hi)
    return float(max(1.0, (high - low) / max(1, dim.step.value(values))))
