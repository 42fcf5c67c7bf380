"""Rewriting expressions by rules: named, composed with `+`, applied to a fixed point, every application recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from loopfuse.diag import CompilerError, Span
from loopfuse.ir import Expr, Op, Program
from loopfuse.rewrite import Mapper, Memo, children, rebuild


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rewriting: `apply` gives the new node, or None where the rule does not match.

    `heads` says at which nodes to try it: names of ops and of node classes; empty: at all.
    """

    name: str
    apply: Callable[[Expr], Expr | None]
    heads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fired:
    """A record of one application: the rule, the node before and after, and where it stands in the source."""

    rule: str
    before: Expr
    after: Expr
    span: Span | None


class Rules:
    """Rules in order of preference; `a + b` tries those of `a` first."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.table: dict[str, tuple[Rule, ...]] = {}

    def __add__(self, other: Rules) -> Rules:
        return Rules((*self.rules, *other.rules))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def first(self, node: Expr) -> tuple[Rule, Expr] | None:
        """The first rule that changes the node, and the new node."""
        head = node.op if isinstance(node, Op) else type(node).__name__
        found = self.table.get(head)
        if found is None:
            either = {head, type(node).__name__}
            found = tuple(r for r in self.rules if not r.heads or not either.isdisjoint(r.heads))
            self.table[head] = found
        for rule in found:
            new = rule.apply(node)
            if new is not None and new is not node:
                return rule, new
        return None


class Rewriter:
    """Brings expressions to the fixed point of a set of rules, operands first.

    `fired` records the applications in order. After `limit` of them `CompilerError` is raised: the rules do not
    terminate, and the last ones are named.
    """

    def __init__(self, rules: Rules, limit: int = 100_000) -> None:
        self.rules, self.limit = rules, limit
        self.fired: list[Fired] = []
        self.done: Memo = {}

    def expr(self, root: Expr) -> Expr:
        """The normal form: no rule matches it or a part of it. The same object where none matched."""
        done = self.done
        goals: dict[int, Expr] = {}
        begun: set[int] = set()
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in done:
                stack.pop()
                continue
            begun.add(id(node))
            goal = goals.get(id(node))
            if goal is None:
                waiting = [child for child in children(node) if id(child) not in done]
                if waiting:
                    self._refuse_cycle(waiting, begun)
                    stack.extend(reversed(waiting))
                    continue
                goal = self._step(rebuild(node, tuple(done[id(child)][1] for child in children(node))), node)
                if goal is node:
                    done[id(node)] = (node, node)
                    continue
                goals[id(node)] = goal
            if id(goal) in done:
                done[id(node)] = (node, done[id(goal)][1])
            else:
                self._refuse_cycle((goal,), begun)
                stack.append(goal)
        return done[id(root)][1]

    def _step(self, node: Expr, origin: Expr) -> Expr:
        """The node after one application at its head; the node itself where no rule matches."""
        found = self.rules.first(node)
        if found is None:
            if node is not origin:
                self.done[id(node)] = (node, node)
            return node
        rule, new = found
        self.fired.append(Fired(rule.name, node, new, node.span))
        if len(self.fired) > self.limit:
            last = ", ".join(dict.fromkeys(f.rule for f in self.fired[-8:]))
            raise CompilerError("rewrite", f"no fixed point after {self.limit} steps; the last rules were {last}")
        return new

    def _refuse_cycle(self, waiting: Iterable[Expr], begun: set[int]) -> None:
        """A node whose normal form needs the normal form of itself has none."""
        if any(id(node) in begun for node in waiting):
            last = ", ".join(dict.fromkeys(f.rule for f in self.fired[-8:]))
            raise CompilerError("rewrite", f"no fixed point: a rule gives back what it came from; the last were {last}")

    def program(self, program: Program) -> Program:
        """Every expression of a program; the same object where no rule matched."""
        return _RootMapper(self).on_program(program)


class _RootMapper(Mapper):
    """A mapper whose unit is a whole expression, not a node."""

    def __init__(self, rewriter: Rewriter) -> None:
        super().__init__()
        self.rewriter = rewriter

    def on_expr(self, expr: Expr) -> Expr:
        return self.rewriter.expr(expr)
