"""Loop nests of one typed statement: every fold finds its place.

A fold that depends on all indices of its statement stands in the statement's nest, in front of the store, and in the
loop of another fold only where it depends on that one's indices. A fold that depends on some of them only is *lifted*:
it becomes an array of its own over those, in a nest of its own before. Inside scans such an array has the leading trip
axes, with windows of one trip, that every temporary there has.

A fold that leaves loops is also evaluated where those are empty. If its reads may rest on them not being so, it gets
that as a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from loopfuse.diag import Span
from loopfuse.frontend import typed
from loopfuse.frontend.lets import TALLEST, emit
from loopfuse.frontend.lifting import World, axes, declare, nonempty, reads_of
from loopfuse.frontend.regions import Block, Write
from loopfuse.frontend.terms import Env, Node, Part, Terms
from loopfuse.ir import Acc, Affine, Buffer, Dim, Expr, Load, Order, Ref, Stmt
from loopfuse.sizes import ONE, ZERO, Poly

# A filter with more nodes than this is stored as an array.
LARGEST = 200

Leaf = typed.Define | typed.Prefix | typed.Scatter
Unit = tuple[tuple[Stmt, ...], Span | None]


class Nest:
    """One statement: what it reads, and the statements of the IR that it becomes."""

    def __init__(self, world: World, stmt: Leaf, trips: tuple[Dim, ...]) -> None:
        self.world, self.stmt, self.trips = world, stmt, trips
        if isinstance(stmt, typed.Scatter):
            folds = (*stmt.folds, *stmt.result_folds)
            self.terms = Terms(folds, None if stmt.out else stmt.acc)
        else:
            self.terms = Terms(stmt.folds)
        self.units: list[Unit] = []
        # The folds being lifted, innermost last, and the indices whose loops they have left.
        self.lifting: list[Node] = []
        self.left: tuple[Dim, ...] = ()
        self.lifted: dict[tuple[int, tuple[int, ...]], Buffer] = {}
        self.guarded: dict[tuple[int, int], Part] = {}
        mask = 0
        for e in _roots(stmt):
            mask |= self.terms.node(e).mask
        self.terms.use(mask)
        names = self.terms.names(self.terms.through(mask)[0])
        self.reads = [n for n in names if n in world.buffers]
        world.mentioned.update(names)

    # -- statements ---------------------------------------------------------------------------------------------------

    def lower(self) -> list[Unit]:
        """The statement and the nests before it that it needs, each as a unit."""
        stmt = self.stmt
        if isinstance(stmt, typed.Define):
            subs = tuple(self.terms.node(e) for e in stmt.subs)
            self.define(stmt.buffer, stmt.dims, subs, self.terms.node(stmt.value), stmt.span)
        elif isinstance(stmt, typed.Prefix):
            self._prefix(stmt)
        else:
            self._scatter(stmt)
        return self.units

    def define(
        self, buffer: str, dims: tuple[Dim, ...], subs: tuple[Node, ...], value: Node, span: Span | None
    ) -> None:
        """`par dims: buffer[subs] = value`."""
        root = self._root()
        _, block = self._loops(root, dims, span, own=True)
        self._store(block, buffer, subs, value, span)
        self._close(block, root)
        self._emit(root, span)

    def _prefix(self, stmt: typed.Prefix) -> None:
        """`par dims: prefix axis: acc <- value, buffer[subs] = result`."""
        root, node = self._root(), self.terms.node
        _, outer = self._loops(root, stmt.dims, stmt.span, own=True)
        block = self._open(outer, (stmt.axis,), stmt.span, own=True, order="prefix")
        block.accs = (Acc(stmt.acc, stmt.monoid, stmt.dtype, span=stmt.span),)
        block.running = self.terms.bit(stmt.acc)
        value = self._here(node(stmt.value), block)
        subs = tuple(self._here(node(e), block) for e in stmt.subs)
        result = self._here(node(stmt.result), block)
        block.items.append(Write(stmt.acc, (), value, absorb=True, span=stmt.span))
        block.items.append(Write(stmt.buffer, subs, result, span=stmt.span))
        self._close(block, root)
        self._emit(root, stmt.span)

    def _scatter(self, stmt: typed.Scatter) -> None:
        """`fold dims: acc[..] <- ..`, then `par out: buffer[out_subs] = result`."""
        root, node = self._root(), self.terms.node
        head, block = self._loops(root, stmt.dims, stmt.span, own=True, always=True)
        shape = tuple(d.hi[0] for d in stmt.out)
        head.accs = (Acc(stmt.acc, stmt.monoid, stmt.dtype, shape, span=stmt.span),)
        inner = self._filter(block, root, None, None if stmt.where is None else node(stmt.where))
        for u in stmt.updates:
            subs = tuple(self._here(node(e), inner) for e in u.subs)
            value = self._here(node(u.value), inner)
            inner.items.append(Write(stmt.acc, subs, value, absorb=True, modes=u.modes, span=u.span or stmt.span))
        self._close(inner, root)
        _, after = self._loops(root, stmt.out, stmt.span, own=True)
        out_subs = tuple(node(e) for e in stmt.out_subs)
        self._store(after, stmt.buffer, out_subs, node(stmt.result), stmt.span)
        self._close(after, root)
        self._emit(root, stmt.span)

    def _store(self, block: Block, buffer: str, subs: tuple[Node, ...], value: Node, span: Span | None) -> None:
        stored = self._here(value, block)
        block.items.append(Write(buffer, tuple(self._here(n, block) for n in subs), stored, span=span))

    def _emit(self, root: Block, span: Span | None) -> None:
        self.units.append((emit(root, lambda: self.world.fresh(self.stmt.buffer), self.world.buffers), span))

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _root(self) -> Block:
        return Block(None, {d.id for d in self.trips}, dims=self.trips)

    def _loops(self, parent: Block, dims: tuple[Dim, ...], span: Span | None, own: bool = False,
               always: bool = False) -> tuple[Block, Block]:  # fmt: skip
        """Loops over indices in a block, the outermost and the innermost: one, unless the bounds of some indices depend
        on others, which then have loops of their own around. Without indices the block itself, or with `always` a loop
        of one trip."""
        if always and not dims:
            block = self._open(parent, (), span, own)
            return block, block
        head = block = parent
        rest = dims
        while rest:
            inner = {d.id for d in rest}
            count = next((k for k, d in enumerate(rest) if k and not inner.isdisjoint(_bounds(d))), len(rest))
            block = self._open(block, rest[:count], span, own)
            head = block if head is parent else head
            rest = rest[count:]
        return head, block

    def _close(self, block: Block, outer: Block) -> None:
        """Put the loops from a finished block outward at the ends of the blocks around them, up to `outer`."""
        while block is not outer:
            assert block.parent is not None
            block.parent.items.append(block)
            block = block.parent

    def _open(self, parent: Block, dims: tuple[Dim, ...], span: Span | None, own: bool = False,
              order: Order = "par") -> Block:  # fmt: skip
        """A loop in a block; its indices get other names where theirs are in use in this unit."""
        block = Block(parent, parent.taken, raw=dims, order=order, own=own, span=span)
        names = dict(parent.env.names)
        emitted = []
        for d in dims or (Dim(self.world.fresh("u"), (ZERO,), (ONE,)),):
            names.pop(d.id, None)
            id = d.id
            if id in block.taken:
                id = self.world.fresh(id)
                names[d.id] = Poly.of(id)
            block.taken.add(id)
            block.mask |= self.terms.bit(id)
            emitted.append(_renamed(d, id, names) if names else d)
            self.world.mentioned |= _bounds(d)
        block.dims = tuple(emitted)
        block.env = Env(names)
        for name in names:
            block.env.mask |= self.terms.bit(name)
        for bit, n in parent.env.refs.items():
            if not any(self.terms.parts[bit].free & self.terms.bit(d.id) for d in dims):
                block.env.refs[bit] = n
                block.env.mask |= bit
        return block

    def _here(self, n: Node, block: Block) -> Node:
        """A term in a block, its folds placed."""
        found = self._try(n, block, False)
        assert found is not None
        return found

    def _try(self, n: Node, block: Block, header: bool) -> Node | None:
        """`_here`; in the header of the block's loop None where a fold cannot be had there."""
        env = block.env
        mask = n.mask & self.terms.fold_mask
        while mask:
            bit = mask & -mask
            mask ^= bit
            if bit not in env.refs:
                placed = self._place(self.terms.parts[bit], block, header)
                if placed is None:
                    return None
                env.refs[bit] = placed
                env.mask |= bit
        return self.terms.instance(n, env)

    def _filter(self, block: Block, around: Block, guard: Node | None, where: Node | None) -> Block:
        """Give a loop its conditions: `guard`, which holds of the block around, and `where`. Returns where its body
        goes: an inner loop of one trip, when `where` has to be computed in the body."""
        block.where = None if guard is None else self._here(guard, around)
        if where is None:
            return block
        if where.height > TALLEST // 2 or where.size > LARGEST:
            cond = self._stored_filter(block, guard, where)
        else:
            cond = self._try(where, block, True)
        if cond is not None:
            block.where = self.terms.both(block.where, cond)
            return block
        inner = self._open(block, (), block.span)
        inner.where = self._here(where, block)
        return inner

    def _stored_filter(self, block: Block, guard: Node | None, where: Node) -> Node | None:
        """A long condition as an array."""
        whole = self.terms.both(guard, where)
        assert whole is not None
        needed, _ = self._indices(whole.mask, block)
        kept = (*self.trips, *needed)
        left = [d for b in block.chain() for d in b.raw if not any(d is k for k in needed)]
        some = nonempty(self.world, self.terms, [([whole], kept)], (*self.left, *left), kept)
        whole = self.terms.both(some, whole)
        assert whole is not None
        with self._leaving(left):
            return self._lift(whole, needed, block)

    # -- placing folds ------------------------------------------------------------------------------------------------

    def _place(self, part: Part, block: Block, header: bool) -> Node | None:
        """The value of a fold in a block: a reference to its accumulator, or a load where it is lifted."""
        needed, home = self._indices(part.free, block)
        here = {id(d) for d in needed}
        trapped = header and home is block
        chain = list(block.chain())
        left = [d for b in chain for d in b.raw if id(d) not in here]
        if trapped or self._stored(part, home) or any(b.own and id(d) not in here and d.hi != (ONE,)
                                                      for b in chain for d in b.raw):  # fmt: skip
            safe = self._safe(part, left, needed)
            with self._leaving(left):
                found = self._lift(safe.ref, needed, block, safe)
            if found is not None or trapped:
                return found
        around = list(home.chain())
        left = [d for b in chain if b not in around for d in b.raw]
        part = self._safe(part, left, [d for b in around for d in b.raw])
        if part.bit not in home.placed:
            with self._leaving(left):
                home.placed[part.bit] = self._fold(part, home)
        return home.placed[part.bit]

    @contextmanager
    def _leaving(self, dims: list[Dim]) -> Iterator[None]:
        """While the nest of a fold is made that has left the loops over these indices: so have the folds in it."""
        before = self.left
        self.left = (*before, *dims)
        try:
            yield
        finally:
            self.left = before

    def _indices(self, mask: int, block: Block) -> tuple[list[Dim], Block]:
        """The indices around a block that names (through folds) stand for, outer ones first, and the block of the
        innermost; without any, the statement's outermost loop."""
        mask = self.terms.through(mask)[1]
        needed: list[Dim] = []
        home: Block | None = None
        outermost = block
        for b in block.chain():
            for d in reversed(b.raw):
                bit = self.terms.bit(d.id)
                if mask & bit:
                    mask = mask & ~bit | self.terms.bounds(d)
                    needed.append(d)
                    home = home or b
            outermost = b if b.own else outermost
        if home is None:
            home = outermost
            while home.parent is not None and not home.own:
                home = home.parent
        return needed[::-1], home

    def _fold(self, part: Part, home: Block) -> Node:
        """The loop of a fold at the end of a block."""
        fold = part.fold
        self._bind(part, home)
        head, block = self._loops(home, fold.dims, fold.span, always=True)
        inner = self._filter(block, home, part.guard, part.where)
        acc = self.world.claim(fold.id)
        head.accs = (Acc(acc, fold.monoid, fold.dtype, span=fold.span),)
        value = self._here(part.value, inner)
        at = None if part.at is None else self._here(part.at, inner)
        inner.items.append(Write(acc, (), value, absorb=True, at=at, span=fold.span))
        self._close(inner, home)
        return self.terms.make(Ref(acc, part.ref.expr.dtype, span=fold.span), ())

    def _bind(self, part: Part, home: Block) -> None:
        """Lets in a block for the bounds of a fold that are read from data; where its guard is false they are zero."""
        for name, n in part.lets:
            id = self.world.claim(name)
            if id != name:
                home.env.names[name] = Poly.of(id)
                home.env.mask |= self.terms.bit(name)
            value = self._here(n if part.guard is None else self.terms.under(part.guard, n), home)
            home.items.append(Write(id, (), value, let=True, span=part.fold.span))

    # -- lifting ------------------------------------------------------------------------------------------------------

    def _lift(self, value: Node, needed: list[Dim], block: Block, part: Part | None = None) -> Node | None:
        """Store a value over some indices as an array, and load it; None where that cannot be."""
        if part is not None and self._private(part):
            return None
        shape = axes(self.world, self.trips, needed, _dims(self.stmt))
        if shape is None:
            return None
        lead = tuple(Affine(Poly.of(t.id)) for t in self.trips)
        rest = shape[len(lead) :]
        subs = (*lead, *(Affine(Poly.of(d.id) - a.first) for d, a in zip(needed, rest, strict=True)))
        key = (value.id, tuple(id(d) for d in needed))
        buffer = self.lifted.get(key)
        if buffer is None:
            name = self.world.fresh(self.stmt.buffer)
            buffer = self.lifted[key] = declare(self.world, name, value, self.trips, shape, part)
            nodes = tuple(self.terms.node(e) for e in subs)
            self.lifting.append(value)
            self.define(name, tuple(needed), nodes, value, value.expr.span)
            self.lifting.pop()
        load = Load(buffer.id, subs, (None,) * len(subs), buffer.dtype, span=value.expr.span)
        return self._here(self.terms.node(load), block)

    def _stored(self, part: Part, home: Block) -> bool:
        """Whether the nest of a lifted fold needs a fold that others need too: that is lifted for itself."""
        inside = bool(self.lifting) and self.lifting[-1] is not part.ref and (home.own or home.parent is None)
        return inside and self.terms.users[part.bit] > 1

    def _private(self, part: Part) -> bool:
        """Whether a fold reads the accumulator of its own statement, which no other nest can."""
        return isinstance(self.stmt, typed.Scatter) and bool(part.reach & self.terms.bit(self.stmt.acc))

    def _safe(self, part: Part, left: list[Dim], around: list[Dim]) -> Part:
        """The fold with the condition that the loops that it leaves are not empty, if its reads may need that."""
        if self.lifting and self.lifting[-1] is part.ref:
            return part
        kept = (*self.trips, *around)
        cond = nonempty(self.world, self.terms, reads_of(part, kept), (*self.left, *left), kept)
        if cond is None:
            return part
        found = self.guarded.get((part.bit, cond.id))
        if found is None:
            ref = self.terms.node(Ref(f"{part.fold.id} if {cond.id}", part.ref.expr.dtype, span=part.ref.expr.span))
            found = replace(part, bit=ref.mask, ref=ref, guard=self.terms.both(cond, part.guard))
            self.guarded[part.bit, cond.id] = found
            self.terms.enter(found)
            self.terms.users[found.bit] = self.terms.users[part.bit]
        return found


def _renamed(dim: Dim, id: str, names: dict[str, Poly]) -> Dim:
    """An index under another id, the names in its bounds replaced."""
    lo, hi = (tuple(p.subs(names) for p in bounds) for bounds in (dim.lo, dim.hi))
    return Dim(id, lo, hi, dim.step.subs(names), span=dim.span)


def _bounds(dim: Dim) -> frozenset[str]:
    """The names in the bounds of an index."""
    return frozenset[str]().union(*(p.names for p in (*dim.lo, *dim.hi, dim.step)))


def _dims(stmt: Leaf) -> tuple[Dim, ...]:
    """The indices of a statement."""
    if isinstance(stmt, typed.Define):
        return stmt.dims
    return (*stmt.dims, stmt.axis) if isinstance(stmt, typed.Prefix) else (*stmt.dims, *stmt.out)


def _roots(stmt: Leaf) -> Iterator[Expr]:
    """The expressions of a statement, those of its folds aside."""
    if isinstance(stmt, typed.Define):
        yield from (*stmt.subs, stmt.value)
    elif isinstance(stmt, typed.Prefix):
        yield from (*stmt.subs, stmt.value, stmt.result)
    else:
        if stmt.where is not None:
            yield stmt.where
        for u in stmt.updates:
            yield from (*u.subs, u.value)
        yield from (*stmt.out_subs, stmt.result)
