"""A producer with reductions as one instance for each window through which its reader reads it.

`h[i, j] = fold k ...` over j < 2F, read at `h[i, j]` and `h[i, F + j]` for j < F, shares no loop over j with its reader.
But every element is used once: the reader may hold two instances of the producer's body, one with j, one with F + j in
place of its index, and their folds are one fold with two accumulators. That adds no work as long as no element is
computed twice: the windows must be disjoint, and each must go through its elements once. Both are proved from the
subscripts, at every size. What an instance stores becomes a let, rounded as the array's elements are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from loopfuse.decisions import Cause
from loopfuse.dtypes import I64
from loopfuse.ir import Dim, Expr, Kernel, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.passes.merge.accesses import Scope
from loopfuse.passes.merge.blocks import join
from loopfuse.passes.merge.inlining import checked, faulty, reads_all, store_axes
from loopfuse.passes.moving import eager
from loopfuse.rewrite import Mapper, Substitution, free_names, own, rename, walk
from loopfuse.sizes import ONE, Poly

Block = tuple[Stmt, ...]
Indices = tuple[tuple[str, Poly], ...]
MOST = 8  # windows: each has its own accumulators


@dataclass(frozen=True)
class _Definition:
    """What a producer stores in one array: the loop index of each axis, and the statements that the value needs."""

    store: Store
    axes: tuple[str, ...]
    needs: Block


@dataclass(frozen=True, slots=True)
class _Window:
    """The elements that one instance computes: what each index of the producer is, and the loops around."""

    indices: Indices
    around: tuple[Dim, ...]


@dataclass
class _Refused(Exception):
    cause: Cause


def instances(a: Kernel, b: Kernel, scope: Scope) -> Kernel | Cause:
    """`b` with what `a` computes in place of its loads, one instance for each window; or why that is not free."""
    try:
        found = _definitions(a, scope)
        read = [name for name in found if name in free_names(b.body).loads]
        if len(read) != 1:
            raise _refuse("instances", "the second reads no array, or several, of what the first computes", b)
        for stmt in (*found[read[0]].needs, found[read[0]].store):
            told = next((n for n in _loads(stmt) if checked(n)), None)
            if told is not None and not reads_all(read[0], b.body, scope):
                return faulty(read[0], told)
        taken = {d.id for s in (*a.body[:1], *walk(b.body)) if isinstance(s, Loop) for d in s.dims}
        body = _Instances(read[0], found[read[0]], scope, taken).block(b.body, (), {})
    except _Refused as why:
        return why.cause
    return replace(b, body=body)


def _refuse(code: str, message: str, *nodes: Expr | Stmt | Kernel | None) -> _Refused:
    return _Refused(Cause(code, message, spans=tuple(n.span for n in nodes if n is not None and n.span is not None)))


def _definitions(a: Kernel, scope: Scope) -> dict[str, _Definition]:
    """What each array of the producer is, element by element."""
    loop = a.body[0]
    if len(a.body) != 1 or not isinstance(loop, Loop) or loop.order != "par" or loop.accs or loop.where is not None:
        raise _refuse("instances", "the producer is no single loop whose steps are independent", a)
    found: dict[str, _Definition] = {}
    folds = False
    for place, stmt in enumerate(loop.body):
        if isinstance(stmt, Loop):
            folds = True
            if not stmt.accs or any(name in scope.env.buffers for name in scope.names(stmt)[0].stores):
                raise _refuse("instances", "the producer has a loop inside that is no reduction", stmt)
        elif isinstance(stmt, Store):
            axes = None if any(stmt.modes) or stmt.buffer in found else store_axes(stmt, loop, scope)
            if axes is None:
                raise _refuse("instances", f"`{stmt.buffer}` is not written whole, at plain indices", stmt)
            found[stmt.buffer] = _Definition(stmt, axes, _needed(stmt, loop.body[:place], scope))
    if not folds:
        raise _refuse("instances", "the producer has no reduction", a)
    read = scope.accesses(loop).loads
    if any(name in scope.env.buffers and scope.env.buffers[name].window is not None for name in read):
        raise _refuse("instances", "the producer reads what is kept in part only", a)
    if not read.keys().isdisjoint(found):
        raise _refuse("instances", "the producer reads what it writes", a)
    return found


def _loads(stmt: Stmt) -> list[Load]:
    return [n for s in walk((stmt,)) for n in own(s).loads]


def _needed(store: Store, before: Sequence[Stmt], scope: Scope) -> Block:
    """The statements that a stored value is made of."""
    wanted = set(own(store).names.values)
    kept: list[Stmt] = []
    for stmt in reversed(before):
        used, made = scope.names(stmt)
        if not isinstance(stmt, Store) and not wanted.isdisjoint(made):
            kept.insert(0, stmt)
            wanted |= used.values
    return tuple(kept)


@dataclass
class _Instances:
    """The reader being rewritten, and the windows so far."""

    name: str
    define: _Definition
    scope: Scope
    taken: set[str]
    windows: list[_Window] = field(default_factory=list)

    def block(self, body: Block, around: tuple[Loop, ...], known: dict[Indices, Expr]) -> Block:
        """A block with instances before the statements that read; readings of one window share one."""
        made: Block = ()
        changed = False
        for stmt in body:
            current: Stmt = stmt
            loads = [load for load in own(stmt).loads if load.buffer == self.name]
            if isinstance(stmt, Loop):
                if loads:
                    raise _refuse("instances", f"`{self.name}` is read in the condition of a loop", stmt)
                inner = self.block(stmt.body, (*around, stmt), dict(known))
                current = stmt if inner is stmt.body else replace(stmt, body=inner)
            elif loads:
                sure = eager(stmt)
                for load in loads:
                    indices = self._indices(load)
                    if indices in known:
                        continue
                    if not any(id(n) in sure for n in own(stmt).nodes if n == load):
                        raise _refuse("instances", f"`{self.name}` is read under a condition", load)
                    self._add(_Window(indices, self._around(load, indices, around)), load)
                    instance, known[indices] = self._instance(load, indices)
                    made = join(made, instance, self.scope)
                current = self._replaced(stmt, known)
            changed = changed or current is not stmt
            made = (*made, current)
        return made if changed else body

    def _instance(self, load: Load, indices: Indices) -> tuple[Block, Expr]:
        """What one reading needs, and the value."""
        needs, store = self.define.needs, self.define.store
        names: dict[str, str] = {}
        for stmt in walk(needs):
            if isinstance(stmt, Let):
                names[stmt.id] = self.scope.env.fresh(stmt.id)
            elif isinstance(stmt, Loop):
                names |= {acc.id: self.scope.env.fresh(acc.id) for acc in stmt.accs}
                for dim in stmt.dims:
                    if dim.id in self.taken:
                        names[dim.id] = self.scope.env.index(dim.id, self.taken)
                    self.taken.add(names.get(dim.id, dim.id))
        let = Let(self.scope.env.fresh(self.name), store.value, span=load.span or store.span)
        body = Substitution(indices=dict(indices)).body(rename((*needs, let), names))
        for stmt in walk(body):
            if isinstance(stmt, Let) and stmt.value.dtype == I64 and (poly := self.scope.poly(stmt.value)) is not None:
                self.scope.affine[stmt.id] = poly
        return body, Ref(let.id, let.value.dtype, span=load.span)

    def _replaced(self, stmt: Stmt, known: dict[Indices, Expr]) -> Stmt:
        """A statement with the values of instances in place of its loads."""

        def on_expr(node: Expr) -> Expr:
            return known[self._indices(node)] if isinstance(node, Load) and node.buffer == self.name else node

        (made,) = Mapper(on_expr).on_body((stmt,))
        return made

    # -- windows ------------------------------------------------------------------------------------------------------

    def _indices(self, load: Load) -> Indices:
        """What each index of the producer is where an element is read."""
        found: list[tuple[str, Poly]] = []
        for axis, sub, mode in zip(self.define.axes, load.subs, load.modes, strict=True):
            poly = self.scope.poly(sub)
            if poly is None or mode is not None:
                raise _refuse(
                    "instances", f"`{self.name}` is read at a computed subscript, or through a boundary view", load
                )
            if axis:
                found.append((axis, poly))
        return tuple(found)

    def _around(self, load: Load, indices: Indices, around: tuple[Loop, ...]) -> tuple[Dim, ...]:
        """The indices round a reading, each of which must move it to other elements."""
        if any(loop.order != "par" for loop in around):
            raise _refuse("instances", f"`{self.name}` is read in a loop that runs in order", load)
        dims = {d.id: d for loop in around for d in loop.dims}
        named: list[str] = []
        for _, poly in indices:
            mine = [n for n in poly.names if n in dims]
            named += mine
            inside = {n for q in poly.quotients() for n in q.num.names | q.den.names}  # `j % 8` repeats its values
            plain = all(poly.degree(n) == 1 and _whole(poly.coefficient(n)) and n not in inside for n in mine)
            if len(mine) > 1 or not plain or not poly.names - set(mine) <= self.scope.env.sizes.keys():
                raise _refuse("instances", f"`{self.name}` is read at a mixture of indices", load)
        if sorted(named) != sorted(dims):
            raise _refuse("recompute", f"elements of `{self.name}` are read more than once, and what they are made of is too "
                          "much to compute again", load)  # fmt: skip
        return tuple(dims.values())

    def _add(self, window: _Window, load: Load) -> None:
        """Note a window, which must have no element in common with the others."""
        if len(self.windows) >= MOST:
            raise _refuse("instances", f"`{self.name}` is read through more than {MOST} windows", load)
        for other in self.windows:
            pairs = zip(window.indices, other.indices, strict=True)
            if not any(self._apart(p, window, q, other) for (_, p), (_, q) in pairs):
                raise _refuse("recompute", f"elements of `{self.name}` are read through two windows that may overlap, and what "
                              "they are made of is too much to compute again", load)  # fmt: skip
        self.windows.append(window)

    def _apart(self, p: Poly, mine: _Window, q: Poly, other: _Window) -> bool:
        """Whether two subscripts never have the same value."""
        (a, lows, highs), (b, least, most) = _ends(p, mine), _ends(q, other)
        gaps = [low - high - ONE for low, high in (*product(lows, most), *product(least, highs))]
        env = self.scope.env
        if any(gap.names <= env.sizes.keys() and env.facts.nonneg(gap) for gap in gaps):
            return True
        gap = p.subs({d.id: 0 for d in mine.around}) - q.subs({d.id: 0 for d in other.around})
        return abs(a) == abs(b) > 1 and gap.is_const and gap.constant % abs(a) != 0


def _whole(poly: Poly) -> bool:
    return poly.is_const and poly.constant != 0


def _ends(poly: Poly, window: _Window) -> tuple[int, list[Poly], list[Poly]]:
    """The factor of a subscript's index (0: there is none), and bounds from below and from above of its values."""
    dim = next((d for d in window.around if d.id in poly.names), None)
    if dim is None:
        return 0, [poly], [poly]
    factor = poly.coefficient(dim.id).constant
    first = [poly.subs({dim.id: lo}) for lo in dim.lo]
    last = [poly.subs({dim.id: hi - ONE}) for hi in dim.hi]
    return (factor, first, last) if factor > 0 else (factor, last, first)
