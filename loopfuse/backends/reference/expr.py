"""Expressions as closures.

Operands are compiled before what uses them, without recursion but for the arms of a `Select`, so that a deep tree costs
no stack at compile time. A node that is used twice, and every node at a multiple of `DEEP` levels, is computed first
and kept in a slot, so that nothing is computed twice and the closures nest at most `DEEP` deep.
"""

from __future__ import annotations

from collections import Counter

from loopfuse.backends.reference.access import Code, compile_load
from loopfuse.backends.reference.domain import Value
from loopfuse.backends.reference.frame import Frame, Mask
from loopfuse.backends.reference.scope import Scope, doubts, number
from loopfuse.diag import CompilerError
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.ops import OPS
from loopfuse.rewrite import subexprs

DEEP = 64


def compile_expr(root: Expr, scope: Scope) -> Code:
    """A closure for the value of an expression."""
    if not isinstance(root, Op):
        return _node(root, scope, {})
    order = _region(root)
    uses = Counter(id(arg) for node in order if isinstance(node, Op) for arg in node.args)
    made: dict[int, Code] = {}
    depth: dict[int, int] = {}
    steps: list[tuple[int, Code]] = []
    for node in order:
        code = _node(node, scope, made)
        level = 1 + max((depth[id(a)] for a in node.args), default=0) if isinstance(node, Op) else 0
        if node is not root and (level >= DEEP or (uses[id(node)] > 1 and not isinstance(node, Const | Ref))):
            slot = scope.shared.value_slot()
            steps.append((slot, code))
            code, level = _kept(slot), 0
        made[id(node)], depth[id(node)] = code, level
    return _sequence(steps, made[id(root)])


def _region(root: Expr) -> list[Expr]:
    """The nodes that are evaluated whenever the root is, operands first: not the arms of a Select, nor subscripts."""
    seen: set[int] = set()
    order: list[Expr] = []
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if isinstance(node, Op):
                stack.extend((arg, False) for arg in reversed(node.args))
    return order


def _kept(slot: int) -> Code:
    return lambda f: f.values[slot]


def _sequence(steps: list[tuple[int, Code]], last: Code) -> Code:
    if not steps:
        return last

    def run(f: Frame) -> Value:
        values = f.values
        for slot, code in steps:
            values[slot] = code(f)
        found = last(f)
        for slot, _ in steps:
            values[slot] = None
        return found

    return run


def _node(node: Expr, scope: Scope, made: dict[int, Code]) -> Code:
    domain = scope.shared.domain
    if isinstance(node, Const):
        constant = domain.constant(node.bits, node.dtype)
        return lambda f: constant
    if isinstance(node, Affine):
        count, integers = number(node.poly, scope), domain.integers
        unsure = doubts((node.poly,), scope)
        if unsure is not None:
            return lambda f: domain.tainted(integers(count(f)), unsure(f))
        return lambda f: integers(count(f))
    if isinstance(node, Ref):
        return _kept(scope.local(node.id).slot)
    if isinstance(node, Load):
        return compile_load(node, scope, compile_expr)
    if isinstance(node, Select):
        return _select(node, scope)
    return _operation(node, [made[id(a)] for a in node.args], scope)


def _operation(node: Op, args: list[Code], scope: Scope) -> Code:
    if node.op not in OPS:
        raise CompilerError("reference", f"there is no operation `{node.op}`")
    apply = scope.shared.domain.operation(node)
    if len(args) == 1:
        (only,) = args
        return lambda f: apply((only(f),))
    if len(args) == 2:
        left, right = args
        return lambda f: apply((left(f), right(f)))
    return lambda f: apply(tuple([a(f) for a in args]))


def _select(node: Select, scope: Scope) -> Code:
    domain, dtype = scope.shared.domain, node.dtype
    cond, then, other = (compile_expr(e, scope) for e in (node.cond, node.then, node.other))
    choose = domain.choose
    reads_then, reads_other = _reads(node.then), _reads(node.other)
    if not (reads_then or reads_other):
        return lambda f: choose(cond(f), then(f), other(f), dtype)
    truth, doubt = domain.truth, domain.doubt

    def select(f: Frame) -> Value:
        c = cond(f)
        holds, unsure = truth(c), doubt(c)
        if unsure is None or not unsure.any():
            if holds.all():
                return then(f)
            if not holds.any():
                return other(f)
            first, second = Mask(f.mask, holds), Mask(f.mask, holds, invert=True)
        else:
            first, second = Mask(f.mask, holds | unsure), Mask(f.mask, ~holds | unsure)
        before = f.mask
        f.mask = first
        a = then(f)
        f.mask = second
        b = other(f)
        f.mask = before
        return choose(c, a, b, dtype)

    return select


def _reads(expr: Expr) -> bool:
    return any(isinstance(node, Load) for node in subexprs(expr))
