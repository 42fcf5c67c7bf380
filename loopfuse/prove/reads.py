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
        if isinstance(node, Select):
            stack += [(node.cond, known), (node.then, known.assume(node.cond)),
                      (node.other, known.assume(node.cond, False))]  # fmt: skip
        elif isinstance(node, Op) and node.op in ("and", "or"):
            left, right = node.args
            stack += [(left, known), (right, known.assume(left, node.op == "and"))]
        else:
            stack += [(child, known) for child in children(node)]
