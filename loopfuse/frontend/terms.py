"""The terms of one statement, hash-consed: equal expressions are one node, whatever objects they were.

Nodes are numbered operands first, so that one pass over the numbers in either direction is a pass over the graph. What
a term mentions (indices, sizes, buffers, folds) is a set of bits. All walks keep their own stack.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from loopfuse.frontend.typed import Fold
from loopfuse.ir import Affine, Const, Dim, Expr, Load, Op, Ref, Select
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import children, rebuild
from loopfuse.sizes import Poly

_MOST = 1 << 30

# The operations whose right operand reads nothing unless the left one has this value.
LAZY_RIGHT = {"and": True, "or": False}


class Node:
    """A term: its expression (whose operands are those of `args`), and what follows from its structure.

    `size` counts the nodes of the expression written out as a tree, `height` its levels. `reads`: a load is inside,
    `checked`: one that may fault. `plain`: too small for a name of its own. `lazy`: the operands after the first are read only under the first.
    """

    __slots__ = ("args", "checked", "expr", "height", "id", "lazy", "mask", "plain", "reads", "size")

    def __init__(self, number: int, expr: Expr, args: tuple[Node, ...], mask: int) -> None:
        self.id, self.expr, self.args, self.mask = number, expr, args, mask
        self.height, self.size = 1, 1
        self.reads = isinstance(expr, Load)
        self.checked = isinstance(expr, Load) and any(m is not None and m.kind == "checked" for m in expr.modes)
        for a in args:
            self.mask |= a.mask
            self.size += a.size
            self.reads |= a.reads
            self.checked |= a.checked
            if a.height >= self.height:
                self.height = a.height + 1
        self.size = min(self.size, _MOST)
        self.lazy = isinstance(expr, Select) or (isinstance(expr, Op) and expr.op in LAZY_RIGHT)
        self.plain = isinstance(expr, Const | Affine | Ref) or (
            isinstance(expr, Op) and expr.op == "cast" and isinstance(args[0].expr, Const | Affine)
        )

    def sense(self, operand: int) -> bool:
        """The value of the first operand under which a lazy node reads that operand."""
        if isinstance(self.expr, Op):
            return LAZY_RIGHT[self.expr.op]
        return operand == 1


@dataclass(slots=True, eq=False)
class Env:
    """What names mean at a place: indices that have another name there, and what folds (by their bits) became."""

    names: dict[str, Poly] = field(default_factory=dict)
    refs: dict[int, Node] = field(default_factory=dict)
    mask: int = 0
    memo: dict[int, Node] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Part:
    """A fold as terms. `lets` are the bounds that are read from data, by their names. `free`: what it mentions, through other folds too, but for its own indices; `reach`: all that."""

    fold: Fold
    bit: int
    ref: Node
    value: Node
    where: Node | None
    guard: Node | None
    at: Node | None
    lets: tuple[tuple[str, Node], ...] = ()
    free: int = 0
    reach: int = 0

    @property
    def terms(self) -> tuple[Node, ...]:
        """Its expressions."""
        own = tuple(n for n in (self.value, self.where, self.guard, self.at) if n is not None)
        return (*own, *(n for _, n in self.lets))

    @property
    def mask(self) -> int:
        """What they mention by themselves."""
        mask = 0
        for n in self.terms:
            mask |= n.mask
        return mask


class Terms:
    """The nodes of one statement, and its folds."""

    def __init__(self, folds: tuple[Fold, ...] = (), scalar: str | None = None) -> None:
        """`scalar` names an array accumulator without axes: a load of it is a reference."""
        self.bits: dict[str, int] = {}
        self.order: list[str] = []
        self.table: dict[tuple[object, ...], Node] = {}
        self.memo: dict[int, tuple[Expr, Node]] = {}
        self.parts: dict[int, Part] = {}
        self.fold_mask = 0
        self.users: dict[int, int] = defaultdict(int)
        self.scalar = scalar
        self.equal: dict[str, str] = {}
        known: dict[tuple[object, ...], str] = {}
        for fold in folds:
            self._add(fold, known)

    # -- names --------------------------------------------------------------------------------------------------------

    def bit(self, name: str) -> int:
        """The bit that stands for a name."""
        found = self.bits.get(name)
        if found is None:
            found = self.bits[name] = 1 << len(self.order)
            self.order.append(name)
        return found

    def poly_mask(self, *polys: Poly) -> int:
        """The names in polynomials."""
        mask = 0
        for poly in polys:
            for name in poly.names:
                mask |= self.bits.get(name, 0) or self.bit(name)
        return mask

    def names(self, mask: int) -> list[str]:
        """The names that bits stand for."""
        found = []
        while mask:
            low = mask & -mask
            found.append(self.order[low.bit_length() - 1])
            mask ^= low
        return found

    # -- nodes --------------------------------------------------------------------------------------------------------

    def node(self, root: Expr) -> Node:
        """The node of an expression."""
        memo = self.memo
        stack = [root]
        while stack:
            e = stack[-1]
            if id(e) in memo:
                stack.pop()
                continue
            operands = children(e)
            waiting = [c for c in operands if id(c) not in memo]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            memo[id(e)] = (e, self.make(e, tuple([memo[id(c)][1] for c in operands])))
        return memo[id(root)][1]

    def make(self, e: Expr, args: tuple[Node, ...]) -> Node:
        """The node of an expression whose operands have the nodes `args`."""
        mask = 0
        key: tuple[object, ...]
        if isinstance(e, Op):
            key = (e.op, e.dtype.name, e.implied, *[a.id for a in args])
        elif isinstance(e, Affine):
            key = (Affine, e.poly)
        elif isinstance(e, Load):
            if e.buffer == self.scalar:
                return self.make(Ref(e.buffer, e.dtype, span=e.span), ())
            key = (Load, e.buffer, e.modes, *[a.id for a in args])
        elif isinstance(e, Const):
            key = (Const, e.bits, e.dtype.name)
        elif isinstance(e, Ref):
            name = self.equal.get(e.id)
            if name is not None:
                e = Ref(name, e.dtype, span=e.span)
            key = (Ref, e.id)
        else:
            key = (Select, *[a.id for a in args])
        found = self.table.get(key)
        if found is None:
            if isinstance(e, Affine):
                mask = self.poly_mask(e.poly)
            elif isinstance(e, Load):
                mask = self.bit(e.buffer)
            elif isinstance(e, Ref):
                mask = self.bit(e.id)
            for a, operand in zip(args, children(e), strict=True):
                if a.expr is not operand:
                    e = rebuild(e, tuple([a.expr for a in args]))
                    break
            found = self.table[key] = Node(len(self.table), e, args, mask)
        return found

    def instance(self, root: Node, env: Env) -> Node:
        """The term with the names and folds of an environment; every fold that it mentions must be there."""
        if not root.mask & env.mask:
            return root
        memo = env.memo
        stack = [root]
        while stack:
            n = stack[-1]
            if n.id in memo:
                stack.pop()
            elif not n.mask & env.mask:
                memo[n.id] = n
                stack.pop()
            elif waiting := [a for a in n.args if a.id not in memo]:
                stack.extend(reversed(waiting))
            else:
                stack.pop()
                memo[n.id] = self._replaced(n, env)
        return memo[root.id]

    def _replaced(self, n: Node, env: Env) -> Node:
        if isinstance(n.expr, Affine):
            return self.make(Affine(n.expr.poly.subs(env.names), span=n.expr.span), ())
        if isinstance(n.expr, Ref):
            return env.refs[self.bit(n.expr.id)]
        args = tuple(env.memo[a.id] for a in n.args)
        return self.make(rebuild(n.expr, tuple(a.expr for a in args)), args)

    def both(self, first: Node | None, second: Node | None) -> Node | None:
        """The first condition and, where it holds, the second."""
        if first is None or second is None or first is second:
            return second if first is None else first
        return self.under(first, second)

    def under(self, cond: Node, value: Node) -> Node:
        """The value where the condition holds, else zero."""
        zero = self.node(Const(0, value.expr.dtype))
        return self.make(Select(cond.expr, value.expr, zero.expr, span=value.expr.span), (cond, value, zero))

    # -- folds --------------------------------------------------------------------------------------------------------

    def _add(self, fold: Fold, known: dict[tuple[object, ...], str]) -> None:
        """Take a fold in; one that equals an earlier one becomes that one."""
        value = self.node(fold.value)
        where, guard, at = (None if e is None else self.node(e) for e in (fold.where, fold.guard, fold.at))
        numbers = tuple(-1 if n is None else n.id for n in (value, where, guard, at))
        lets = tuple((name, self.node(e)) for name, e in fold.lets)
        key = (fold.monoid, fold.dtype.name, fold.dims, *numbers)
        first = known.setdefault(key, fold.id)
        if first != fold.id:
            self.equal[fold.id] = first
            return
        ref = self.node(Ref(fold.id, MONOIDS[fold.monoid].result(fold.dtype), span=fold.span))
        part = Part(fold, ref.mask, ref, value, where, guard, at, lets)
        self.enter(part)
        self.use(part.mask)

    def enter(self, part: Part) -> None:
        """Register a fold; those that it mentions are registered already."""
        own = 0
        inside = self._through(part.value, part.where, part.at)
        around = self._through(part.guard, *(n for _, n in part.lets))
        bounds = 0
        for name, _ in part.lets:
            own |= self.bit(name)
        for d in part.fold.dims:
            own |= self.bit(d.id)
            bounds |= self.bounds(d)
        part.reach = inside[0] | around[0] | bounds
        part.free = ((inside[1] | bounds) & ~own) | around[1]
        self.parts[part.bit] = part
        self.fold_mask |= part.bit

    def use(self, mask: int) -> None:
        """Count a user of the folds in a mask."""
        mask &= self.fold_mask
        while mask:
            low = mask & -mask
            mask ^= low
            self.users[low] += 1

    def bounds(self, dim: Dim) -> int:
        """The names in the bounds of an index."""
        return self.poly_mask(*dim.lo, *dim.hi, dim.step)

    def _through(self, *nodes: Node | None) -> tuple[int, int]:
        reach = free = 0
        for n in nodes:
            if n is not None:
                more = self.through(n.mask)
                reach, free = reach | more[0], free | more[1]
        return reach, free

    def through(self, mask: int) -> tuple[int, int]:
        """What a mask mentions, through folds too: everything, and without the folds' own indices."""
        reach = free = mask & ~self.fold_mask
        mask &= self.fold_mask
        while mask:
            low = mask & -mask
            mask ^= low
            reach |= self.parts[low].reach
            free |= self.parts[low].free
        return reach, free
