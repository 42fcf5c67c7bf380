"""Cascades of one kernel: in every block, folds over one axis become one loop where the algebra allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause
from loopfuse.diag import Span
from loopfuse.ir import Acc, Expr, Kernel, Loop, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.passes.base import Remark
from loopfuse.passes.cascade.expand import expanded
from loopfuse.passes.cascade.join import Joiner, Obstacle, aligned
from loopfuse.printer import print_expr
from loopfuse.rewrite import free_names, own, walk

Take = Callable[[str], bool]
Refused = dict[tuple[int, int], tuple[Stmt, Stmt]]  # by identity; the statements are kept alive


def cascade_kernel(kernel: Kernel, env: Env, live: frozenset[str], take: Take | None = None
                   ) -> tuple[Kernel, tuple[Remark, ...], tuple[Cause, ...]]:  # fmt: skip
    """The kernel with dependent folds over one axis made one; remarks on what was done, causes of what was not.

    Needs: a valid kernel; folds are seen through lets, and through buffers that the block itself stores at the same
    subscripts. Promises: a valid kernel; folds whose accumulators depend on earlier ones have repairs. Under `numerics
    strict` only what keeps all bits when it runs in exact passes. Stores to temporaries that nothing reads any more
    are left out. The same object where nothing changed.
    """
    if sum(bool(s.accs) for s in walk(kernel.body) if isinstance(s, Loop)) < 2:
        return kernel, (), ()
    worker = _Worker(env, live, take)
    body = worker.block(kernel.body, ())
    if body is kernel.body:
        return kernel, (), tuple(worker.causes)
    body = _dead_stores(body, env, live)
    return replace(kernel, body=body), tuple(worker.remarks), tuple(worker.causes)


class _Worker:
    def __init__(self, env: Env, live: frozenset[str], take: Take | None) -> None:
        self.env, self.live, self.take = env, live, take
        self.remarks: list[Remark] = []
        self.causes: list[Cause] = []
        self.strict = env.program.numerics == "strict"

    def block(self, body: tuple[Stmt, ...], around: tuple[Loop, ...]) -> tuple[Stmt, ...]:
        """A block with its folds joined, inner blocks first."""
        made: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Loop):
                inner = self.block(stmt.body, (*around, stmt))
                stmt = stmt if inner is stmt.body else replace(stmt, body=inner)
            made.append(stmt)
        stmts = body if all(a is b for a, b in zip(body, made, strict=True)) else tuple(made)
        refused: Refused = {}
        second = 1
        while second < len(stmts):
            for first in range(second) if isinstance(stmts[second], Loop) else ():
                joined = self._try(stmts, first, second, around, refused)
                if joined is not None:
                    stmts, second = joined, 0
                    break
            second += 1
        return stmts

    def _try(self, stmts: tuple[Stmt, ...], first: int, second: int, around: tuple[Loop, ...],
             refused: Refused) -> tuple[Stmt, ...] | None:  # fmt: skip
        """The block after its statements at two places became one loop, or None."""
        a, b = stmts[first], stmts[second]
        if not (isinstance(a, Loop) and isinstance(b, Loop) and a.accs and a.order == "par"):
            return None
        if (id(a), id(b)) in refused:
            return None
        tried = stmts
        if not b.accs:
            other = expanded(a, b, stmts[first + 1 : second], self.env.fresh)
            if other is None:
                return None
            tried = (*stmts[:second], *other, *stmts[second + 1 :])
            b = other[0]
            assert isinstance(b, Loop)
        if aligned(a, b) is None or any(_ordered(x) for x in (a, b)):
            return None
        found = Joiner(self.env, around, self.strict).join(tried, first, second)
        refused[id(a), id(stmts[second])] = a, stmts[second]
        if isinstance(found, Obstacle):
            cause = explain(found)
            if cause not in self.causes:
                self.causes.append(cause)
            return None
        said = found.how
        text = "; ".join(f"{_called(acc)} joins the loop of {_called(a.accs[0])}{': ' + how if how else ''}"
                         for acc, how in said)  # fmt: skip
        if self.take is not None and not self.take(text):
            return None
        self.remarks.append(Remark(text, said[0][0].span if said else None, rounds=found.rounds))
        return found.stmts


def _ordered(loop: Loop) -> bool:
    return any(MONOIDS[a.monoid].positional and a.shape for a in loop.accs)


WORDS = {"maximum": "maximum", "minimum": "minimum", "mul": "product"}


def _word(acc: Acc) -> str:
    """What an accumulator computes, as a noun."""
    monoid = MONOIDS[acc.monoid]
    return WORDS.get(monoid.op, monoid.name)


def _called(acc: Acc) -> str:
    """An accumulator in the user's words: the reduction as written, the operand that it is over, or its name."""
    text = acc.span.text if acc.span is not None else ""
    from_ir = text.startswith(f"acc {acc.id}:") or "\n" in text or not 0 < len(text) <= 60
    if from_ir:
        return f"the {_word(acc)} `{acc.id}`"
    return f"the {_word(acc)} `{text}`" if " for " in text else f"the {_word(acc)} at `{text}`"


def _text(expr: Expr) -> str:
    """An expression as the user wrote it, or as the IR prints it."""
    if expr.span is not None and "\n" not in expr.span.text and len(expr.span.text) <= 80:
        return expr.span.text
    return print_expr(expr)


def explain(found: Obstacle) -> Cause:
    """Why two folds stay apart, in words."""
    spans: list[Span] = []
    for item in (found.node, found.acc, found.earlier):
        if item is not None and item.span is not None and item.span not in spans:
            spans.append(item.span)
    called, earlier = _called(found.acc), _called(found.earlier)
    if found.node is not None:
        why = found.why.replace("{result}", _word(found.earlier))
        message = f"{called} reads {earlier} inside `{_text(found.node)}`, {why}"
    else:
        message = f"{called} cannot join the loop of {earlier}: {found.why}"
    word = _word(found.earlier)
    return Cause("cascade", message, detail=f"`{found.acc.id}` after `{found.earlier.id}`",
                 lift=f"compute the {word} in a pass of its own: the row is read twice", spans=tuple(spans))  # fmt: skip


def _dead_stores(body: tuple[Stmt, ...], env: Env, live: frozenset[str]) -> tuple[Stmt, ...]:
    """The statements without stores to temporaries that nothing loads."""
    loads = free_names(body).loads
    mentioned = frozenset().union(*(own(s).names.loads for s in walk(body)))
    dead = {s.buffer for s in walk(body) if isinstance(s, Store) and not s.absorb}
    dead = {n for n in dead if n in env.buffers and env.buffers[n].role == "temp"} - loads - mentioned - live
    return _without(body, dead) if dead else body


def _without(body: tuple[Stmt, ...], dead: set[str]) -> tuple[Stmt, ...]:
    made: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            inner = _without(stmt.body, dead)
            if not stmt.accs and inner is not stmt.body and not any(isinstance(s, Store | Loop) for s in inner):
                continue
            made.append(stmt if inner is stmt.body else replace(stmt, body=inner))
        elif not (isinstance(stmt, Store) and not stmt.absorb and stmt.buffer in dead):
            made.append(stmt)
    return body if len(made) == len(body) and all(a is b for a, b in zip(body, made, strict=True)) else tuple(made)
