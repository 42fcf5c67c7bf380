"""Rematerialising: a value that a later loop of the same kernel reads back is computed again there instead.

`e[i, j] = exp(x[i, j] - m)` in one loop over j and a reading `e[i, j']` in a later one become one more computation of
`exp(x[i, j'] - m)`: the buffer goes, and the loops are free of one another but for their accumulators, which is what a
cascade needs to see. The same bits come out, because the same operations have the same operands.

A reading takes the definition where all of this holds:

- the buffer is a temporary of this kernel alone, not local, and one statement stores it, without conditions around;
- the indices of the store follow from the subscripts of the reading: each axis is an index with the coefficient 1
  or -1 and an offset, or is equal on both sides (a := p -> inverse(subscripts), law L7);
- the definition has no fold inside, is cheap (`CHEAP`) with what it takes from others, and what it mentions is visible and complete at the reader;
- a mode of the reading is moved: a constant one becomes a select, the others go to the loads of the definition where
  the index stands alone on an axis of the same extent;
- in an arm of a select nothing is read that was not proved to be in range.

All readings of a buffer take it, or none: else it would be both stored and computed again. The definition comes as lets
before the statement that reads, once a block. A reading in the block of its store, or inside, takes the stored value by
name: that is forwarding. Needs: nothing. Promises: the same bits, no deeper expressions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from loopfuse.analysis.env import Env
from loopfuse.diag import Span
from loopfuse.dtypes import I64
from loopfuse.ir import Affine, Buffer, Const, Expr, Kernel, Let, Load, Loop, Mode, Program, Ref, Stmt, Store
from loopfuse.passes.moving import (
    CHEAP,
    Taken,
    chain,
    common,
    cost,
    eager,
    load_of,
    moved,
    names_in,
    same_place,
    with_fill,
)
from loopfuse.passes.sweep import arrays, sweep
from loopfuse.prove import judge
from loopfuse.rewrite import Mapper, children, map_expr, subexprs
from loopfuse.sizes import ONE, Poly
from loopfuse.verify.layout import Access, Definition, Frame, Layout, Site, layout
from loopfuse.verify.memory import Memory

__all__ = ["cost", "forward", "laid", "rematerialise"]

Key = tuple[object, ...]


def rematerialise(kernel: Kernel, env: Env, live: frozenset[str]) -> Kernel:
    """The kernel with cheap values computed again where later loops read them; the same object if there are none.

    `live` are the buffers that stay in memory: they keep their stores and the loads from them.
    """
    stores, loads = arrays(kernel)
    if not stores & loads:
        return kernel
    made = _Remat(kernel, env, live).run()
    if made is kernel:
        return kernel
    return sweep(made, lambda b: b in live or env.buffers[b].role != "temp")


def forward(kernel: Kernel, env: Env, buffers: frozenset[str]) -> Kernel:
    """The kernel with values of some buffers taken by name where they are read in the block that stores them."""
    return _Remat(kernel, env, frozenset(), buffers).run()


def laid(kernel: Kernel, env: Env) -> Layout:
    """The layout of a kernel by itself; the last one is remembered."""
    last = env.laid
    if last is not None and last[0] is kernel and last[1] is env.buffers and last[2].program.sizes is env.program.sizes:
        return last[2]
    stores, loads = arrays(kernel)
    buffers = tuple(env.buffers[n] for n in sorted((stores | loads) & env.buffers.keys()))
    found = layout(Program(env.program.name, env.program.sizes, env.program.requires, buffers, (kernel,)))
    env.laid = (kernel, env.buffers, found)
    return found


@dataclass(slots=True)
class _Place:
    """Where a definition is wanted: the statement, what its subscripts are there, and whether it is sure to be read."""

    site: Site
    load: Load
    polys: tuple[Poly | None, ...]
    sure: bool


@dataclass
class _Remat:
    """One kernel being rewritten, in textual order."""

    kernel: Kernel
    env: Env
    live: frozenset[str]
    only: frozenset[str] | None = None  # forward the values of these, and do nothing else
    changed: bool = False
    sources: dict[str, Access] = field(default_factory=dict)
    # a load, by its statement's position and by itself -> the position of the store whose value it is
    direct: dict[tuple[int, Load], int] = field(default_factory=dict)
    values: dict[int, Expr] = field(default_factory=dict)
    closed: dict[tuple[str, int], tuple[Let, ...] | None] = field(default_factory=dict)
    price: dict[str, int] = field(default_factory=dict)
    memo: list[dict[Key, Expr]] = field(default_factory=lambda: [{}])

    def run(self) -> Kernel:
        self.v: Layout = laid(self.kernel, self.env)
        self.memory = Memory(self.v, self.env.facts)
        self._find()
        if not self.sources and not self.direct:
            return self.kernel
        self.wanted = set(self.direct.values())
        self.next = iter(self.v.sites)
        body = self._block(self.kernel.body)
        return replace(self.kernel, body=body) if self.changed else self.kernel

    # -- which loads --------------------------------------------------------------------------------------------------

    def _find(self) -> None:
        """The loads that take the stored value by name, and the buffers whose other loads are all to be replaced."""
        sure: dict[int, set[int]] = {}
        for name, stores in self.v.stores.items():  # in textual order: a definition after those that it reads
            loads = self.v.loads.get(name)
            if not loads or (self.only is not None and name not in self.only):
                continue
            rest = []
            for load in loads:
                store = next((s for s in stores if same_place(s, load)), None)
                if store is None:
                    rest.append(load)
                else:
                    self.direct[load.site.position, load_of(load)] = store.site.position
            if self.only is not None or not rest or not self._may_go(name, stores):
                continue
            source = stores[0]
            for load in rest:
                at = load.site.position
                if at not in sure:
                    sure[at] = eager(load.site.stmt)
                node = load_of(load)
                always = any(id(n) in sure[at] for n in load.site.nodes if n == node)
                if isinstance(load.site.stmt, Loop) or not self._fits(
                    source, _Place(load.site, node, load.polys, always)
                ):
                    break
            else:
                self._afford(name, source)

    def _afford(self, name: str, source: Access) -> None:
        """Take a buffer as a source if it is cheap with all that its definition takes from other sources."""
        stmt = source.site.stmt
        assert isinstance(stmt, Store)
        shared = next(n for b, n in self.closed if b == name)
        roots = (stmt.value, *(let.value for let in self.closed[name, shared] or ()))
        price = cost(*roots)
        for node in {n for n in subexprs(*roots) if isinstance(n, Load)}:
            price += self.price.get(node.buffer, 0)
        if price <= CHEAP:
            self.sources[name] = source
            self.price[name] = price

    def _may_go(self, name: str, stores: list[Access]) -> bool:
        """Whether a buffer is a temporary of this kernel that one store defines, by something cheap."""
        buffer = self.env.buffers.get(name)
        if buffer is None or buffer.role != "temp" or buffer.scope != "device" or name in self.live:
            return False
        if len(stores) != 1 or any(stores[0].modes):
            return False
        stmt = stores[0].site.stmt
        assert isinstance(stmt, Store)
        return cost(stmt.value) <= CHEAP

    def _fits(self, source: Access, place: _Place) -> bool:
        taken = self._take(source, place)
        if taken is None:
            return False
        stmt = source.site.stmt
        assert isinstance(stmt, Store)
        if cost(stmt.value, *(let.value for let in taken.lets)) > CHEAP:
            return False
        return place.sure or self._proved(taken, place) or self._as_tree(taken)

    # -- whether and how a definition moves ---------------------------------------------------------------------------

    def _take(self, source: Access, place: _Place) -> Taken | None:
        """How the definition moves to the place, or None where it may not."""
        outer, reader = chain(source.frame), chain(place.site.own or place.site.frame)
        shared = common(outer, reader)
        own = outer[len(shared) :]
        if not own or source.site.position > place.site.position:
            return None
        if any(f.loop.order == "seq" or f.loop.where is not None for f in own):
            return None
        mine = {d.id for f in own for d in f.loop.dims}
        found = self._solve(source, place, mine)
        if found is None:
            return None
        taken = Taken(source, found[0], found[1], ())
        key = source.buffer, len(shared)
        if key not in self.closed:
            self.closed[key] = self._closed(source, shared, own)
        lets = self.closed[key]
        if lets is None:
            return None
        taken.lets = lets
        return taken if self._modes_move(taken) else None

    def _solve(
        self, source: Access, place: _Place, mine: set[str]
    ) -> tuple[dict[str, Poly], dict[str, tuple[Mode, Poly]]] | None:
        """The store's own indices from the subscripts, and those that carry a mode, with the extent of their axis."""
        indices: dict[str, Poly] = {}
        modes: dict[str, tuple[Mode, Poly]] = {}
        shape = self.env.buffers[source.buffer].shape
        for a, f, mode, extent in zip(source.polys, place.polys, place.load.modes, shape, strict=True):
            if a is None or f is None:
                return None
            if a.name in mine and mode is None:
                if indices.setdefault(a.name, f) != f:
                    return None
                continue
            moving = [n for n in a.names if n in mine]
            if not moving:
                if a != f:
                    return None
                continue
            name = moving[0]
            if len(moving) > 1 or a.degree(name) != 1 or any(name in q.num.names | q.den.names for q in a.quotients()):
                return None
            factor = a.coefficient(name)
            if factor != ONE and factor != -ONE:
                return None
            value = (f - (a - factor * Poly.of(name))) * factor
            if indices.get(name, value) != value:
                return None
            indices[name] = value
            if mode is not None:
                if mode.kind == "checked" or a.name != name or name in modes:
                    return None
                modes[name] = (mode, extent)
        return (indices, modes) if indices.keys() == mine else None

    def _closed(self, source: Access, shared: list[Frame], own: list[Frame]) -> tuple[Let, ...] | None:
        """The lets in the store's own loops that it depends on, in order; None where it needs what cannot be had."""
        inside, outside = {id(f) for f in own}, {id(f) for f in shared}
        at = source.site.position
        stmt = source.site.stmt
        assert isinstance(stmt, Store)
        lets: dict[int, Let] = {}
        work: list[Expr] = [stmt.value]
        known: set[str] = set()
        while work:
            for node in subexprs(work.pop()):
                names: tuple[str, ...] = ()
                if isinstance(node, Ref):
                    names = (node.id,)
                elif isinstance(node, Affine):
                    names = tuple(node.poly.names)
                elif isinstance(node, Load):
                    if any(m is not None and m.kind == "checked" for m in node.modes):
                        return None
                    names = (node.buffer,)
                for name in names:
                    if name in known:
                        continue
                    known.add(name)
                    found = self.v.visible(name, at)
                    if found is None or not self._can_have(found, at, inside, outside):
                        return None
                    if found.kind == "let" and found.frame is not None and id(found.frame) in inside:
                        assert isinstance(found.node, Let)
                        lets[found.start] = found.node
                        work.append(found.node.value)
        return tuple(lets[k] for k in sorted(lets))

    def _can_have(self, found: Definition, at: int, inside: set[int], outside: set[int]) -> bool:
        """Whether what the definition mentions is known at the reader, or comes with it."""
        if found.kind == "acc":
            frame = found.frame
            assert frame is not None
            around = frame.parent
            return at >= found.until and (around is None or id(around) in outside)
        if isinstance(found.node, Buffer) and found.node.window is not None:
            names = {n for i in found.node.window for side in i for p in side for n in p.names}
            for name in names:
                index = self.v.visible(name, at)
                if index is None or (index.kind == "index" and id(index.frame) not in outside):
                    return False
        return True

    def _modes_move(self, taken: Taken) -> bool:
        """Whether the modes of the reading can go to the loads of the definition (or, constant ones, around it)."""
        if not taken.modes:
            return True
        stmt = taken.source.site.stmt
        assert isinstance(stmt, Store)
        roots = (stmt.value, *(let.value for let in taken.lets))
        strict = {n for n, (m, _) in taken.modes.items() if m.kind != "constant"}
        if len({m.fill for m, _ in taken.modes.values() if m.fill is not None}) > 1:
            return False
        for node in subexprs(*roots):
            if isinstance(node, Load):
                shape = self._shape(node.buffer)
                for sub, mode, extent in zip(node.subs, node.modes, shape, strict=True):
                    for name in names_in(sub) & taken.modes.keys():
                        wanted, length = taken.modes[name]
                        if mode is not None or not isinstance(sub, Affine):
                            return False
                        if wanted.kind != "constant" and (sub.poly.name != name or extent != length):
                            return False
            elif any(isinstance(c, Affine) and c.poly.names & strict for c in children(node)):
                return False
        return not any(isinstance(r, Affine) and r.poly.names & strict for r in roots)

    def _shape(self, name: str) -> tuple[Poly, ...]:
        return self.v.scopes[name][0].shape

    def _proved(self, taken: Taken, place: _Place) -> bool:
        """Whether the loads of the moved definition are in range at the place without the reader's conditions."""
        facts = self.memory.at(place.site.frame)
        stmt = taken.source.site.stmt
        assert isinstance(stmt, Store)
        for root in (*(let.value for let in taken.lets), stmt.value):
            for node in subexprs(root):
                if not isinstance(node, Load):
                    continue
                for sub, mode, extent in zip(node.subs, node.modes, self._shape(node.buffer), strict=True):
                    if mode is not None or names_in(sub) & taken.modes.keys():
                        continue
                    poly = self.v.expand(sub)
                    if poly is None:
                        return False
                    moved = Affine(poly.subs(taken.indices))
                    if judge(facts, moved, extent).verdict != "proved":
                        return False
        return True

    def _as_tree(self, taken: Taken) -> bool:
        return not taken.lets and not taken.modes

    # -- rewriting ----------------------------------------------------------------------------------------------------

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for stmt in body:
            site = next(self.next)
            if isinstance(stmt, Loop):
                where = self._direct(stmt.where, site) if stmt.where is not None else None
                self.memo.append({})
                inside = self._block(stmt.body)
                self.memo.pop()
                same = where is stmt.where and all(a is b for a, b in zip(inside, stmt.body, strict=False))
                same = same and len(inside) == len(stmt.body)
                made.append(stmt if same else replace(stmt, where=where, body=inside))
                continue
            lets: list[Let] = []
            new = self._leaf(stmt, site, lets)
            if isinstance(new, Store) and site.position in self.wanted:
                value = new.value
                if not isinstance(value, Ref | Const | Affine):
                    let = Let(self.env.fresh(new.buffer), value, span=new.span)
                    lets.append(let)
                    value = Ref(let.id, value.dtype, span=value.span)
                    new = replace(new, value=value)
                self.values[site.position] = value
            made += lets
            made.append(new)
        return tuple(made)

    def _leaf(self, stmt: Let | Store, site: Site, out: list[Let]) -> Let | Store:
        """The statement with its loads replaced; the lets that it needs go to `out`."""
        loads = [n for n in site.nodes if isinstance(n, Load) and self._concerns(n, site)]
        if not loads:
            return stmt
        always = eager(stmt)
        table: dict[Load, Expr] = {}
        for node in sorted(loads, key=lambda n: id(n) not in always):
            if node not in table:
                direct = self.direct.get((site.position, node))
                found = self.values.get(direct) if direct is not None else None
                if found is None and node.buffer in self.sources:
                    polys = tuple(self.v.expand(s) for s in node.subs)
                    found = self._inline(_Place(site, node, polys, id(node) in always), out)
                if found is not None:
                    table[node] = found
        if not table:
            return stmt
        self.changed = True
        mapper = Mapper(lambda n: table.get(n, n) if isinstance(n, Load) else n)
        (new,) = mapper.on_body((stmt,))
        assert isinstance(new, Let | Store)
        return new

    def _concerns(self, node: Load, site: Site) -> bool:
        return node.buffer in self.sources or (site.position, node) in self.direct

    def _direct(self, where: Expr, site: Site) -> Expr:
        def known(node: Expr) -> Expr:
            at = self.direct.get((site.position, node)) if isinstance(node, Load) else None
            if at is None or at not in self.values:
                return node
            self.changed = True
            return self.values[at]

        return map_expr(where, known)

    def _inline(self, place: _Place, out: list[Let]) -> Expr | None:
        """The value of a load by its definition: a name (or something as small), the lets for it in `out`."""
        load = place.load
        if any(p is None for p in place.polys):
            return None
        key: Key = (load.buffer, place.polys, load.modes)
        for known in reversed(self.memo):
            if key in known:
                return known[key]
        source = self.sources[load.buffer]
        taken = self._take(source, place)
        if taken is None:
            return None
        stmt = source.site.stmt
        assert isinstance(stmt, Store)
        guarded = not place.sure and not self._proved(taken, place)
        if guarded and not self._as_tree(taken):
            return None
        taken.indices = {k: self._polynomial(p, place.site, out) for k, p in taken.indices.items()}
        if guarded:
            return moved(stmt.value, taken, {})
        names: dict[str, Expr] = {}
        for let in taken.lets:
            tag: Key = ("let", let.id, frozenset(taken.indices.items()), frozenset(taken.modes.items()))
            found = next((known[tag] for known in reversed(self.memo) if tag in known), None)
            if found is None:
                value = self._nested(moved(let.value, taken, names), place, out)
                found = self._named(value, let, let.id, out)
                if isinstance(found, Ref) and found.dtype == I64 and self._is_acc(found.id, place.site):
                    found = self._settled(found, place.site, out)
                self.memo[-1][tag] = found
            names[let.id] = found
        value = self._nested(moved(stmt.value, taken, names), place, out)
        value = self._named(with_fill(taken, value), stmt, load.buffer, out)
        self.memo[-1][key] = value
        return value

    def _polynomial(self, poly: Poly, site: Site, out: list[Let]) -> Poly:
        """A subscript of the reader as one of the definition, results of `argmax` under names."""
        lets = {n: Poly.of(self._settled(Ref(n, I64), site, out).id) for n in poly.names if self._is_acc(n, site)}
        return poly.subs(lets) if lets else poly

    def _is_acc(self, name: str, site: Site) -> bool:
        found = self.v.visible(name, site.position)
        return found is not None and found.kind == "acc"

    def _settled(self, ref: Ref, site: Site, out: list[Let]) -> Ref:
        """A name that polynomials may hold: an accumulator only stands alone, and gets a let."""
        tag: Key = ("acc", ref.id)
        known = next((memo[tag] for memo in reversed(self.memo) if tag in memo), None)
        if known is None:
            known = self.memo[-1][tag] = self._let(ref, ref.id, site.stmt.span, out)
        assert isinstance(known, Ref)
        return known

    def _nested(self, value: Expr, place: _Place, out: list[Let]) -> Expr:
        """A moved definition with its own loads replaced in turn, as far as the budget goes."""
        table: dict[Load, Expr] = {}
        always = eager(Let("", value))
        for node in subexprs(value):
            if isinstance(node, Load) and node not in table and node.buffer in self.v.stores:
                polys = tuple(self.v.expand(s) for s in node.subs)
                found = self._stored(node, polys, place.site)
                if found is None and node.buffer in self.sources:
                    found = self._inline(_Place(place.site, node, polys, id(node) in always), out)
                if found is not None:
                    table[node] = found
        return map_expr(value, lambda n: table.get(n, n) if isinstance(n, Load) else n) if table else value

    def _stored(self, load: Load, polys: tuple[Poly | None, ...], site: Site) -> Expr | None:
        """The value that a store around has just stored where the load reads, if that value has a name."""
        here = Access(load.buffer, load.subs, load.modes, site, site.frame, polys)
        for store in self.v.stores[load.buffer]:
            if store.site.position in self.values and same_place(store, here):
                return self.values[store.site.position]
        return None

    def _named(self, value: Expr, origin: Stmt, name: str, out: list[Let]) -> Expr:
        if isinstance(value, Ref | Const | Affine):
            return value
        return self._let(value, name, origin.span, out)

    def _let(self, value: Expr, name: str, span: Span | None, out: list[Let]) -> Ref:
        """A name for a value, defined before the statement at hand."""
        let = Let(self.env.fresh(name), value, span=span)
        out.append(let)
        return Ref(let.id, value.dtype, span=span)
