"""The loads of an expression, and what holds where each is performed."""

from __future__ import annotations

from collections.abc import Iterator

from loopfuse.ir import Expr, Load, Op, Select
from loopfuse.prove.facts import Facts
from loopfuse.walking import children, subexprs


def guarded_loads(root: Expr, facts: Facts) -> Iterator[tuple[Load, Facts]]:
    """Each load with `facts` and what the conditions around it say."""
    if not any(isinstance(node, Load) for node in subexprs(root)):
        return
    stack = [(root, facts)]
    while stack:
        node, known = stack.pop()
        if isinstance(node, Load):
            yield node, known
        stack += guarded_children(node, known)


def guarded_children(node: Expr, facts: Facts) -> Iterator[tuple[Expr, Facts]]:
    """What is directly under a node, with `facts` and what holds where it is evaluated: an arm knows the condition."""
    if isinstance(node, Select):
        yield node.cond, facts
        yield node.then, facts.assume(node.cond)
        yield node.other, facts.assume(node.cond, False)
    elif isinstance(node, Op) and node.op in ("and", "or"):
        left, right = node.args
        yield left, facts
        yield right, facts.assume(left, node.op == "and")
    else:
        yield from ((child, facts) for child in children(node))
