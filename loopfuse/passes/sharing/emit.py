"""The statements of a kernel whose values have their places: a let where a value is used again or moved, else a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopfuse.ir import Acc, Affine, Dim, Expr, Kernel, Let, Loop, Ref, Stmt, Store
from loopfuse.passes.sharing.place import Leaf, Operand, Place, Sharing, Tree, Visit, poly_names, run
from loopfuse.passes.sharing.values import Block, Point
from loopfuse.rewrite import children, rebuild
from loopfuse.sizes import Poly


@dataclass
class Emit:
    """The statements; with `prune` without the lets that nothing uses, but for those with an effect."""

    sharing: Sharing
    prune: bool = False

    def kernel(self) -> Kernel:
        """The kernel, the same object where it came out as it was."""
        s = self.sharing
        self._count(s.values.root)
        body = self._block(s.values.root)
        kernel = s.values.kernel
        return kernel if body is kernel.body else replace(kernel, body=body)

    # -- uses ---------------------------------------------------------------------------------------------------------

    def _count(self, block: Block) -> None:
        s, pending = self.sharing, [block]
        while pending:
            block = pending.pop()
            pending.extend(block.inner.values())
            for at in range(len(block.body)):
                self._use(s.roots.get((id(block), at), []), Point(block, at))
        for place in s.lets.values():
            if not self.prune or place.infos[id(place.node)].effect:
                self._use([place], place.point, named=False)

    def _use(self, operands: list[Operand], point: Point, named: bool = True) -> None:
        stack = [(operand, point, named) for operand in operands]
        while stack:
            operand, at, counts = stack.pop()
            if isinstance(operand, Tree):
                stack += [(o, at, True) for o in operand.operands]
            elif isinstance(operand, Leaf):
                stack += [(place, at, True) for _, place in operand.lets]
            else:
                if not operand.uses:
                    stack += [(o, operand.point, True) for o in operand.operands]
                operand.uses += counts or not operand.uses
                operand.apart |= counts and operand.point != at

    def _kept(self, place: Place) -> bool:
        """Whether a place becomes a let."""
        if not place.uses:
            return False
        return place.let is not None or place.uses > 1 or place.moved is not None or place.apart or place.pinned

    # -- statements ---------------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> tuple[Stmt, ...]:
        s, made = self.sharing, list[Stmt]()
        for at, stmt in enumerate(block.body):
            for place in s.listed.get((id(block), at), ()):
                if self._kept(place):
                    made.append(self._let(place))
            if isinstance(stmt, Store):
                made.append(self._store(stmt, s.roots[id(block), at]))
            elif isinstance(stmt, Loop):
                made.append(self._loop(stmt, s.roots[id(block), at], block.inner[at]))
        same = len(made) == len(block.body) and all(a is b for a, b in zip(made, block.body, strict=True))
        return block.body if same else tuple(made)

    def _let(self, place: Place) -> Let:
        place.id = place.let.id if place.let is not None else self.sharing.env.fresh(place.origin)
        operands = [run(self._expr(o)) for o in place.operands]
        value = _fit(place.node, operands[0]) if place.fixed else _rebuild(place.node, operands)
        if place.let is not None and place.let.value is value:
            return place.let
        return Let(place.id, value, span=place.let.span if place.let is not None else place.span)

    def _store(self, stmt: Store, operands: list[Operand]) -> Store:
        parts = [run(self._expr(o)) for o in operands]
        rank = len(stmt.subs)
        subs = tuple(_fit(old, new) for old, new in zip(stmt.subs, parts[:rank], strict=True))
        value = _fit(stmt.value, parts[rank])
        at = None if stmt.at is None else _fit(stmt.at, parts[rank + 1])
        if value is stmt.value and at is stmt.at and all(a is b for a, b in zip(subs, stmt.subs, strict=True)):
            return stmt
        return replace(stmt, subs=subs, value=value, at=at)

    def _loop(self, loop: Loop, operands: list[Operand], inner: Block) -> Loop:
        where = loop.where
        if where is not None:
            where, operands = _fit(where, run(self._expr(operands[0]))), operands[1:]
        names = {n: Poly.of(p.id) for o in operands if isinstance(o, Leaf) for n, p in o.lets if p.id != n}
        dims, accs = loop.dims, loop.accs
        if names:
            dims, accs = tuple(_dim(d, names) for d in dims), tuple(_acc(a, names) for a in accs)
        body = self._block(inner)
        if body is loop.body and where is loop.where and dims is loop.dims and accs is loop.accs:
            return loop
        return replace(loop, dims=dims, accs=accs, where=where, body=body)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _expr(self, operand: Operand) -> Visit:
        """The expression of an operand."""
        if isinstance(operand, Leaf):
            names = {n: Poly.of(place.id) for n, place in operand.lets if place.id != n}
            if names and isinstance(operand.node, Affine):
                return Affine(poly_names(operand.node.poly, names), span=operand.node.span)
            return operand.node
        if isinstance(operand, Place) and self._kept(operand):
            return Ref(operand.id, operand.node.dtype, span=operand.node.span)
        parts: list[Expr] = []
        for part in operand.operands:
            parts.append((yield self._expr(part)))
        return _rebuild(operand.node, parts)


def _fit(old: Expr, new: Expr) -> Expr:
    """The old node where the new one says the same."""
    return old if isinstance(old, Ref) and isinstance(new, Ref) and old.id == new.id else new


def _rebuild(node: Expr, parts: list[Expr]) -> Expr:
    return rebuild(node, tuple(_fit(old, new) for old, new in zip(children(node), parts, strict=True)))


def _dim(dim: Dim, names: dict[str, Poly]) -> Dim:
    lo, hi = (tuple(poly_names(p, names) for p in side) for side in (dim.lo, dim.hi))
    return replace(dim, lo=lo, hi=hi, step=poly_names(dim.step, names))


def _acc(acc: Acc, names: dict[str, Poly]) -> Acc:
    return replace(acc, shape=tuple(poly_names(p, names) for p in acc.shape))
