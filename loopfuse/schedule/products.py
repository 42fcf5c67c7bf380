"""Sums of products of two operands, recognised from what the factors of a term depend on.

A term is taken apart at its multiplications, through lets and casts between floats. The factors that follow the folded
indices fall into two groups by the other indices that they follow: the operands. What a factor does to its one load
(a cast, a scale, an activation) is the operand's prologue. Constants and factors that do not follow the folded indices
move out of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from loopfuse.analysis.sketch import Access, Level, Sketch, Term
from loopfuse.analysis.summary import NONE, Work, summary
from loopfuse.dtypes import BF16, F16, F32, I64
from loopfuse.ir import Expr, Let, Loop, Op, Ref, Select, Stmt
from loopfuse.ops import MONOIDS, OPS
from loopfuse.rewrite import exprs
from loopfuse.schedule.base import Ask

# What multiplies: it distributes over the sum, at integers exactly.
MULTIPLIES = frozenset(n for n, row in OPS.items() if row.distributes_over(MONOIDS["sum"].op, I64))
SUM = "sum"
SMALL = 8  # trips of a sum that a matrix unit does not pay for


Group = tuple[frozenset[str], list[Expr]]


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """One side of a product: the indices it follows, its element type, the buffers it reads, whether it computes.

    `work` is what one element takes; an operand without prologue arrives as it lies in memory. `sources`: the arrays, in
    order.
    """

    indices: frozenset[str]
    dtype: str
    buffers: frozenset[str]
    names: frozenset[str]
    prologue: bool
    rounds: bool
    work: Work = NONE
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Product:
    """An accumulator that sums products over `k`; `m`, `n` and `batch` are the other indices that its operands follow.

    Those of `m` and `n` that are folded too (a sum over rows of a product) are in `riding`. A `pair` is no product but
    any function of two operands (a distance), which takes `each` operations on the ordinary units.
    """

    term: Term
    a: Operand
    b: Operand
    k: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    batch: tuple[str, ...]
    riding: frozenset[str] = frozenset()
    pair: bool = False
    each: int = 2

    @property
    def owner(self) -> Level:
        """The fold."""
        return self.term.owner

    def extent(self, names: tuple[str, ...]) -> int:
        """The product of the extents of some of its indices."""
        return prod(self.term.level.extents[n] for n in names)

    @property
    def flops(self) -> int:
        """Operations."""
        return self.each * prod(self.extent(names) for names in (self.batch, self.m, self.n, self.k))


def products(ask: Ask) -> list[Product]:
    """The products of a kernel, in textual order; pairs only where there is no product."""
    terms = [t for t in ask.sketch.terms if t.owner.kind == "fold"]
    found = [p for t in terms if (p := product(ask, t)) is not None and _worth(p)]
    return found or [p for t in terms if (p := pair(ask, t)) is not None and _worth(p)]


def _worth(found: Product) -> bool:
    return found.extent(found.k) >= SMALL and found.extent(found.m) > 1 and found.extent(found.n) > 1


def unworthy(ask: Ask) -> tuple[str, str] | None:
    """Why no tile takes the products that a kernel has, and what would lift it; None where it has none."""
    for term in (t for t in ask.sketch.terms if t.owner.kind == "fold"):
        found = product(ask, term)
        if found is None:
            if _single(ask, term):
                return _VECTOR
            continue
        level, terms = term.level, found.extent(found.k)
        if terms < SMALL:
            extents = " * ".join(ask.extent_text(level, k) for k in found.k)
            given = "" if extents.isdigit() else f" (`{extents}`)"
            return (f"its sum has {f'{terms} terms' if terms > 1 else 'one term or none'}{given}, and a tile of products pays from {SMALL} on",
                    f"sums of {SMALL} terms or more")  # fmt: skip
        if found.extent(found.m) == 1 or found.extent(found.n) == 1:
            return _VECTOR
    return None


# What reads a matrix once is bound by memory, whatever multiplies.
_VECTOR = (
    "it is a product of a matrix and a vector, each element of the matrix has part in one result, so memory bounds it and no "
    "matrix unit would be faster", "several vectors at once, as the columns of a matrix",
)  # fmt: skip


def _single(ask: Ask, term: Term) -> bool:
    """Whether a term multiplies an operand with one that follows what is summed over alone, as a vector does."""
    if term.acc.monoid != SUM:
        return False
    found, folded = ask.sketch, _folded(ask.sketch, term)
    leaves = factors(found, term.store.value, folded, term.level)
    needs = [n for leaf in leaves if (n := found.resolve(summary(leaf).names, term.level)) & folded]
    return len(needs) == 2 and needs[0] != needs[1] and (needs[0] <= needs[1] or needs[1] <= needs[0])


def product(ask: Ask, term: Term) -> Product | None:
    """The product that a term sums, if it is one."""
    if term.acc.monoid != SUM:
        return None
    found, folded = ask.sketch, _folded(ask.sketch, term)
    groups: list[Group] = []
    for leaf in factors(found, term.store.value, folded, term.level):
        needs = found.resolve(summary(leaf).names, term.level)
        if needs & folded:
            _join(groups, needs, leaf)
    if len(groups) != 2:
        return None
    made = _paired(ask, term, folded, *groups)
    return made if made is None or term.acc.dtype != F32 else _halved(found, made, groups)


def _halved(found: Sketch, made: Product, groups: list[Group]) -> Product:
    """A product with bytes in place of floats, where the matrix units have the type: that of the other operand, or bf16
    where both are bytes. Floats of 16 bits hold bytes exactly."""
    small = [needs for needs, leaves in groups if len(leaves) == 1 and counted(found, leaves[0]) is not None]
    sides = made.a, made.b
    types = {o.dtype for o in sides if o.indices not in small} or {BF16.name}
    if not small or not types <= {BF16.name, F16.name}:
        return made
    a, b = (replace(o, dtype=min(types)) if o.indices in small else o for o in sides)
    return replace(made, a=a, b=b)


def counted(found: Sketch, leaf: Expr) -> Expr | None:
    """The byte or bool that a factor is as a float; None for other factors."""
    at = _through(found, leaf)
    while isinstance(at, Op) and at.op == "cast" and at.dtype.is_float:
        at = _through(found, at.args[0])
    return None if at.dtype.is_float or at.dtype.bits > 8 else at


def pair(ask: Ask, term: Term) -> Product | None:
    """A function of two operands that a term absorbs, if its loads fall into two groups."""
    found, folded = ask.sketch, _folded(ask.sketch, term)
    groups: list[Group] = []
    seen: set[str] = set()
    stack: list[Expr] = [term.store.value]
    while stack:
        had = summary(stack.pop())
        for load in had.loads:
            needs = found.resolve(summary(load).names, term.level)
            if needs & folded:
                _join(groups, needs, load)
        for name in had.names - seen:
            seen.add(name)
            if name in found.lets:
                stack.append(found.lets[name][0])
    if len(groups) != 2 or term.acc.shape:
        return None
    groups.sort(key=lambda g: [n in g[0] for n in term.level.extents], reverse=True)
    made = _paired(ask, term, folded, *groups)
    if made is None or made.riding:
        return None
    inside = [work.all for needs, level, work in found.work if level is term.level and needs & folded]
    return replace(made, pair=True, each=max(2, sum(inside)))


def _folded(found: Sketch, term: Term) -> frozenset[str]:
    """The indices over which a term is absorbed."""
    out = _subscripts(found, term)
    folded = set(term.owner.trips)
    at = term.level
    while at is not term.owner and at.parent is not None:
        folded |= at.trips.keys() - out
        at = at.parent
    return frozenset(folded)


def _paired(ask: Ask, term: Term, folded: frozenset[str], one: Group, other: Group) -> Product | None:
    """Two groups of factors as the operands of a product."""
    found = ask.sketch
    (left, first), (right, second) = one, other
    out = _subscripts(found, term)
    common = left & right & folded
    batch = left & right - folded
    if not left - right or not right - left or not common:
        return None
    order = list(term.level.extents)
    a, b = operand(ask, first, left, term, folded), operand(ask, second, right, term, folded)
    if not all(o.buffers or o.names & found.accs.keys() for o in (a, b)):
        return None
    k, m, n, shared = (tuple(i for i in order if i in s) for s in (common, left - right, right - left, batch))
    riding = folded - common
    swapped = bool(out) and not out & right and bool(out & left)
    if not out and not swapped:
        swapped = order.index(m[0]) > order.index(n[0]) and not _outer(term, m)
        swapped = (swapped and not set(m) & riding) or bool(set(n) & riding)
    if swapped:
        a, b, m, n = b, a, n, m
    return Product(term, a, b, k, m, n, shared, riding)


def _outer(term: Term, names: tuple[str, ...]) -> bool:
    """Whether the indices belong to a fold outside, so that they are rows whatever the order."""
    return any(level.kind == "fold" and level is not term.owner and set(names) & level.trips.keys()
               for level in term.level.chain())  # fmt: skip


def _subscripts(found: Sketch, term: Term) -> frozenset[str]:
    """The indices by which an array accumulator is absorbed into."""
    needs: frozenset[str] = frozenset()
    for sub in term.store.subs:
        needs |= found.resolve(summary(sub).names, term.level)
    return needs


def _join(groups: list[Group], needs: frozenset[str], leaf: Expr) -> None:
    """Put a factor with those that follow the same indices, or more or fewer of them."""
    for k, (other, leaves) in enumerate(groups):
        if needs <= other or other <= needs:
            groups[k] = (needs | other, [*leaves, leaf])
            return
    groups.append((needs, [leaf]))


def factors(found: Sketch, root: Expr, folded: frozenset[str], level: Level) -> list[Expr]:
    """The factors of a term, through multiplications, casts that keep their values, and lets in the fold."""
    leaves: list[Expr] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Ref) and node.id in found.lets and found.deps.get(node.id, frozenset()) & folded:
            stack.append(found.lets[node.id][0])
        elif isinstance(node, Op) and node.op in MULTIPLIES:
            stack.extend(reversed(node.args))
        elif isinstance(node, Op) and node.op == "cast" and _widens(node):
            inner = _through(found, node.args[0])
            if isinstance(inner, Op) and inner.op in MULTIPLIES:
                if _fits(found, inner):
                    stack.append(inner)
                else:
                    leaves.append(node)
            else:
                stack.append(inner if isinstance(inner, Op) and inner.op == "cast" else node.args[0])
        else:
            leaves.append(node)
    return leaves


def _widens(node: Op) -> bool:
    """Whether a cast keeps every value: what is under it is the operand that the matrix units read."""
    source, result = node.args[0].dtype, node.dtype
    if source.is_float and result.is_float:
        return result.bits >= source.bits and (source.bits < 32 or source == result or result.bits == 64)
    return source.is_int and result.is_int and result.bits >= source.bits


def _fits(found: Sketch, node: Op) -> bool:
    """Whether a product of integers cannot wrap, so that it is the same in a wider type: that of two bytes in i32."""
    if not node.dtype.is_int or len(node.args) != 2:
        return False
    sources = []
    for arg in node.args:
        at = _through(found, arg)
        while isinstance(at, Op) and at.op == "cast" and at.args[0].dtype.kind == at.dtype.kind and _widens(at):
            at = _through(found, at.args[0])
        sources.append(at.dtype)
    return all(d.kind == node.dtype.kind for d in sources) and sum(d.bits for d in sources) <= node.dtype.bits


def _through(found: Sketch, node: Expr) -> Expr:
    while isinstance(node, Ref) and node.id in found.lets:
        node = found.lets[node.id][0]
    return node


def operand(ask: Ask, leaves: list[Expr], indices: frozenset[str], term: Term, folded: frozenset[str]) -> Operand:
    """What the leaves are together: the widest type, the buffers behind them, whether anything is computed."""
    found = ask.sketch
    work = Work(flops=len(leaves) - 1)
    names: set[str] = set()
    buffers: dict[str, None] = {}  # in the order met, so that ties do not hang on names
    computed = len(leaves) > 1
    stack = list(leaves)
    seen: set[str] = set()
    stored: list[int] = []
    while stack:
        node = stack.pop()
        computed = computed or isinstance(node, Op | Select)
        had = summary(node)
        work = sum((w for needs, w in had.groups if found.resolve(needs, term.level) & folded), work)
        for load in had.loads:
            buffers[load.buffer] = None
            computed = computed or any(load.modes)  # past the edges there is nothing to copy
            if load.buffer in ask.buffers:
                stored.append(ask.buffers[load.buffer].dtype.bits)
        for name in had.names - seen:
            seen.add(name)
            names.add(name)
            if name in found.lets:
                stack.append(found.lets[name][0])
    dtypes = [
        leaf.args[0].dtype if isinstance(leaf, Op) and leaf.op == "cast" and _widens(leaf) else leaf.dtype
        for leaf in leaves
    ]
    widest = max(dtypes, key=lambda d: d.bits)
    narrow = {d.name for d in dtypes if d.bits == 16}
    if widest.name == "f32" and stored and ask.env.program.numerics != "strict":
        halves = {ask.buffers[b].dtype.name for b in buffers if b in ask.buffers and ask.buffers[b].dtype.bits == 16}
        main = max((b for b in buffers if b in ask.buffers), key=lambda b: found.elements(b))
        if ask.buffers[main].dtype.bits == 16 and len(halves | narrow) == 1:
            return Operand(
                indices, next(iter(halves)), frozenset(buffers), frozenset(names), True, True, work, tuple(buffers)
            )
    return Operand(
        indices, widest.name, frozenset(buffers), frozenset(names), computed, False, work, _main(found, buffers)
    )


def _main(found: Sketch, buffers: Iterable[str]) -> tuple[str, ...]:
    """The arrays behind an operand, those with most elements first."""
    return tuple(sorted((b for b in buffers if b in found.buffers), key=lambda b: -found.elements(b)))


def loads_in(found: Sketch, level: Level) -> list[Access]:
    """The loads that happen in a loop."""
    return [a for a in found.loads if a.level.within(level)]


def waits(found: Sketch, owners: list[Level], results: list[set[str]]) -> Level | None:
    """A fold whose branch (the loop that holds it and not an earlier fold) reads what an earlier one gave, or None.

    A branch with several of the folds is one: what meets there meets element by element.
    """
    behind: dict[str, frozenset[int]] = {acc: frozenset((k,)) for k, accs in enumerate(results) for acc in accs}
    branches = [{j: _branch(owner, other) for j, other in enumerate(owners[:k])} for k, owner in enumerate(owners)]
    stack: list[tuple[Level, Iterator[Stmt]]] = [(found.root, iter(found.kernel.body))]
    while stack:
        level, rest = stack[-1]
        stmt = next(rest, None)
        if stmt is None:
            stack.pop()
            continue
        if isinstance(stmt, Loop):
            stack.append((found.places[id(stmt)], iter(stmt.body)))
        read = frozenset().union(*(behind.get(n, frozenset()) for e in exprs(stmt) for n in summary(e).names))
        if not read:
            continue
        for k, apart in enumerate(branches):
            if any(j in read and top is not None and level.within(top) for j, top in apart.items()):
                return owners[k]
        if not isinstance(stmt, Loop):
            name = stmt.id if isinstance(stmt, Let) else stmt.buffer
            behind[name] = behind.get(name, frozenset()) | read
    return None


def _branch(level: Level, other: Level) -> Level | None:
    """The outermost loop that holds a loop and not another one; None where they share all but themselves."""
    top = None
    at: Level | None = level.parent
    while at is not None and not other.within(at):
        top, at = at, at.parent
    return top
