"""Walking the loop IR: statements, expressions, polynomials, and the names that a piece of a program mentions.

Every traversal keeps its own stack, so that neither the length nor the depth of a program is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loopfuse.ir import Affine, Const, Expr, Let, Load, Loop, Op, Program, Ref, Select, Stmt, Store
from loopfuse.ops import OPS
from loopfuse.sizes import Poly

# -- walking ----------------------------------------------------------------------------------------------------------


def walk(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, a loop before its body, in textual order."""
    stack = [*body][::-1]
    while stack:
        stmt = stack.pop()
        yield stmt
        if type(stmt) is Loop:
            stack += stmt.body[::-1]


def walk_program(program: Program) -> Iterator[Stmt]:
    """All statements of all kernels, in textual order."""
    for kernel in program.kernels:
        yield from walk(kernel.body)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands, in the order in which they print."""
    kind = type(expr)
    if kind is Op:
        return expr.args  # type: ignore[union-attr]
    if kind is Load:
        return expr.subs  # type: ignore[union-attr]
    if kind is Select:
        return (expr.cond, expr.then, expr.other)  # type: ignore[union-attr]
    return ()


def guarded(expr: Expr) -> Iterator[tuple[Expr, bool]]:
    """The direct operands, and whether the node evaluates each only under a condition."""
    lazy = isinstance(expr, Select) or (isinstance(expr, Op) and OPS[expr.op].lazy)
    for number, child in enumerate(children(expr)):
        yield child, lazy and number > 0


def exprs(stmt: Stmt) -> Iterator[Expr]:
    """The expressions that stand in the statement itself: subscripts, value, position, `where`, repairs."""
    if isinstance(stmt, Let):
        yield stmt.value
    elif isinstance(stmt, Store):
        yield from stmt.subs
        yield stmt.value
        if stmt.at is not None:
            yield stmt.at
    else:
        for acc in stmt.accs:
            if acc.repair is not None:
                yield acc.repair
        if stmt.where is not None:
            yield stmt.where


def polys(stmt: Stmt) -> Iterator[Poly]:
    """The polynomials of the statement's own dims and accumulator shapes; those in expressions are in `exprs`."""
    if isinstance(stmt, Loop):
        for dim in stmt.dims:
            yield from (*dim.lo, *dim.hi, dim.step)
        for acc in stmt.accs:
            yield from acc.shape


def subexprs(*roots: Expr) -> Iterator[Expr]:
    """All nodes below the roots and the roots, operands first, each object once."""
    seen: set[int] = set()
    stack: list[Expr | None] = list(reversed(roots))  # a None says: what lies below it is due
    while stack:
        node = stack.pop()
        if node is None:
            due = stack.pop()
            assert due is not None
            yield due
        elif id(node) not in seen:
            seen.add(id(node))
            below = children(node)
            if below:
                stack += (node, None)
                stack += below[::-1]
            else:
                yield node


def nodes(program: Program) -> Iterator[Expr]:
    """Every expression node of every statement, each object once a statement."""
    for stmt in walk_program(program):
        yield from own(stmt).nodes


@dataclass(frozen=True, slots=True)
class Names:
    """What a piece of a program mentions: values (lets, scalar accumulators, and the names in polynomials), the arrays
    that it loads from, and the arrays and accumulators that it stores or absorbs into."""

    values: frozenset[str] = frozenset()
    loads: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """All of them."""
        return self.values | self.loads | self.stores


@dataclass(frozen=True, slots=True)
class Own:
    """What stands in a statement itself: the nodes of its `exprs`, operands first, their names, and the loads."""

    nodes: tuple[Expr, ...]
    names: Names
    loads: tuple[Load, ...]


def _nodes(roots: list[Expr]) -> tuple[Expr, ...]:
    """What `subexprs` yields."""
    found: list[Expr] = []
    seen: set[int] = set()
    stack: list[Expr | None] = [*reversed(roots)]
    while stack:
        node = stack.pop()
        if node is None:
            due = stack.pop()
            assert due is not None
            found.append(due)
        elif id(node) not in seen:
            seen.add(id(node))
            below = children(node)
            if below:
                stack += (node, None, *below[::-1])
            else:
                found.append(node)
    return tuple(found)


def own(stmt: Stmt) -> Own:
    """What stands in a statement itself, found once: passes look at the same statements again and again."""
    try:
        found: Own = stmt.kept
    except AttributeError:
        nodes = _nodes(list(exprs(stmt)))
        found = Own(nodes, node_names(nodes), tuple([n for n in nodes if type(n) is Load]))
        object.__setattr__(stmt, "kept", found)
    return found


def is_const(expr: Expr) -> bool:
    """Whether the value is known: a constant, or a polynomial without names."""
    return isinstance(expr, Const) or (isinstance(expr, Affine) and expr.poly.is_const)


# -- names ------------------------------------------------------------------------------------------------------------


def expr_names(*roots: Expr) -> Names:
    """The names in expressions."""
    return node_names(subexprs(*roots))


def node_names(nodes: Iterable[Expr]) -> Names:
    """The names in nodes themselves, their operands left out."""
    values: set[str] = set()
    loads: set[str] = set()
    for node in nodes:
        kind = type(node)
        if kind is Affine:
            values |= node.poly.names  # type: ignore[union-attr]
        elif kind is Ref:
            values.add(node.id)  # type: ignore[union-attr]
        elif kind is Load:
            loads.add(node.buffer)  # type: ignore[union-attr]
    return Names(frozenset(values), frozenset(loads))


def binders(stmt: Stmt) -> Iterator[str]:
    """The ids that the statement itself defines: a let, or the indices and accumulators of a loop."""
    if isinstance(stmt, Let):
        yield stmt.id
    elif isinstance(stmt, Loop):
        yield from (d.id for d in stmt.dims)
        yield from (a.id for a in stmt.accs)


def free_names(body: Iterable[Stmt]) -> Names:
    """The names that a block uses and does not define; an index is defined only inside its own loop."""
    values: set[str] = set()
    loads: set[str] = set()
    stores: set[str] = set()
    bound: Counter[str] = Counter()
    lasting: set[str] = set()

    def use(names: Iterable[str], into: set[str]) -> None:
        into.update(n for n in names if n not in lasting and not bound[n])

    stack: list[tuple[Loop | None, Iterator[Stmt]]] = [(None, iter(body))]
    while stack:
        loop, rest = stack[-1]
        stmt = next(rest, None)
        if stmt is None:
            stack.pop()
            bound.subtract(d.id for d in (loop.dims if loop else ()))
            continue
        for poly in polys(stmt):
            use(poly.names, values)
        if isinstance(stmt, Loop):
            bound.update(d.id for d in stmt.dims)
            lasting.update(a.id for a in stmt.accs)
            stack.append((stmt, iter(stmt.body)))
        found = own(stmt).names
        repair = _repair_names(stmt) if isinstance(stmt, Loop) else frozenset()
        use(found.values - repair, values)
        use(found.loads, loads)
        if isinstance(stmt, Store):
            use((stmt.buffer,), stores)
        elif isinstance(stmt, Let):
            lasting.add(stmt.id)
    return Names(frozenset(values), frozenset(loads), frozenset(stores))


def _repair_names(loop: Loop) -> frozenset[str]:
    """The names that have a meaning only in the repairs of a loop."""
    return frozenset({"self", *(f"{a.id}.{when}" for a in loop.accs for when in ("old", "new"))})
