"""Simplification: the rules of `simplify.rules`, the laws of the op table, trivial lets, and copies.

Needs: any valid program. Promises: no rule applies any more, no let names a constant, another name or an index
polynomial, and no load reads a temporary that is a copy of another array's elements. All bits stay (but for the payload
of a NaN); an expression is no deeper than before by more than one level for each level that it had. What is no longer
read is left to `dce`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from loopfuse.constants import to_number
from loopfuse.diag import CompilerError
from loopfuse.dtypes import I64
from loopfuse.ir import Affine, Const, Expr, Let, Loop, Op, Program, Ref, Stmt
from loopfuse.passes.base import Options, Outcome, Pass, Remark, Steps, steps
from loopfuse.passes.copies import look_through
from loopfuse.passes.laws import LAWS
from loopfuse.passes.rulefile import Spec, load_rules
from loopfuse.printer import print_expr, print_program
from loopfuse.prove import Facts
from loopfuse.rewrite import Mapper, children, exprs, polys, subexprs, walk_program
from loopfuse.rules import Fired, Rewriter, Rule, Rules
from loopfuse.sizes import Poly

SHOWN = 60  # characters of an expression in a description
MOST_ROUNDS = 100
LEAST_LIMIT, MOST_FOR_NODE = 400, 25  # applications of rules: more than that, for each node, never come to an end


@cache
def specs() -> tuple[Spec, ...]:
    """The rules of `simplify.rules`."""
    return load_rules("simplify.rules")


def simplify(program: Program, options: Options) -> Outcome:
    """Rewrite to a fixed point: copies, lets, expressions, and again what these make possible."""
    counter = steps(options, "simplify")
    rules = counted(LAWS + Rules(spec.rule() for spec in specs()) + Rules([affine_rule(program)]), counter)
    remarks: list[Remark] = []
    rewriter = Rewriter(rules, limit_for(program))  # remembers what is simple already
    lets = 0
    for _ in range(MOST_ROUNDS):
        before = program
        program, found = look_through(program, counter)
        remarks += found
        program, dropped = propagate(program, counter)
        lets += dropped
        program = on_kernels(program, rewriter)
        if program is before:
            break
    else:
        raise CompilerError("simplify", f"no fixed point after {MOST_ROUNDS} rounds", print_program(program))
    if lets:
        remarks.append(Remark(f"{lets} {'names' if lets > 1 else 'name'} of constants, indices or names replaced"))
    return Outcome(program, (*remarks, *remarks_of(rewriter.fired)))


PASS = Pass("simplify", "Algebra that keeps every bit, and no detours over copies.", simplify)


def limit_for(program: Program) -> int:
    """How many applications of rules are too many."""
    return LEAST_LIMIT + MOST_FOR_NODE * sum(len(list(subexprs(*exprs(s)))) for s in walk_program(program))


# -- rules in a pass --------------------------------------------------------------------------------------------------


def counted(rules: Rules, counter: Steps) -> Rules:
    """The rules, each application of which is a step that the caller may refuse."""

    def guard(rule: Rule) -> Rule:
        def apply(node: Expr) -> Expr | None:
            made = rule.apply(node)
            if made is None or made is node or not counter.take(f"{rule.name}: {shown(node)} => {shown(made)}"):
                return None
            return made

        return Rule(rule.name, apply, rule.heads)

    return Rules(guard(rule) for rule in rules)


def shown(expr: Expr) -> str:
    """An expression, shortened; a large one is not printed whole."""
    stack: list[Expr] = [expr]
    for _ in range(SHOWN):
        if not stack:
            break
        stack += children(stack.pop())
    else:
        return "..."
    text = print_expr(expr)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def remarks_of(fired: Iterable[Fired]) -> tuple[Remark, ...]:
    """A remark for each rule that was applied, with how often, at the place of its first application."""
    counts = Counter(f.rule for f in fired)
    first: dict[str, Fired] = {}
    for one in fired:
        first.setdefault(one.rule, one)
    return tuple(
        Remark(f"{name}, {n} {'times' if n > 1 else 'time'}: {shown(first[name].before)} => {shown(first[name].after)}",
               first[name].span)
        for name, n in counts.items()
    )  # fmt: skip


class _Kernels(Mapper):
    """A mapper of whole expressions, of the kernels alone."""

    def __init__(self, rewriter: Rewriter) -> None:
        super().__init__()
        self.rewriter = rewriter

    def on_expr(self, expr: Expr) -> Expr:
        return self.rewriter.expr(expr)


def on_kernels(program: Program, rewriter: Rewriter) -> Program:
    """Rewrite the expressions of the kernels; requirements stay as they were written."""
    mapper = _Kernels(rewriter)
    kernels = tuple(mapper.on_kernel(k) for k in program.kernels)
    if all(a is b for a, b in zip(kernels, program.kernels, strict=True)):
        return program
    return replace(program, kernels=kernels)


# -- index arithmetic -------------------------------------------------------------------------------------------------


def affine_rule(program: Program) -> Rule:
    """Integer operations on index polynomials, as one polynomial where it provably does not overflow."""
    names = {s.id for s in program.sizes}
    indices = [d for stmt in walk_program(program) if isinstance(stmt, Loop) for d in stmt.dims]
    held: list[Facts] = []

    def facts() -> Facts:
        if not held:
            known = Facts.empty()
            for s in program.sizes:
                known = known.size(s.id, s.least, s.multiple, s.value)
            for id in dict.fromkeys(d.id for d in indices):
                known = known.index(id, (), ())
            names.update(d.id for d in indices)
            held.append(known)
        return held[0]

    def apply(node: Expr) -> Expr | None:
        if not isinstance(node, Op) or node.dtype != I64 or not all(isinstance(a, Affine | Const) for a in node.args):
            return None
        if not any(isinstance(a, Affine) for a in node.args):
            return None
        poly = facts().poly(node)
        return Affine(poly, span=node.span) if poly is not None and poly.names <= names else None

    return Rule("index-arithmetic", apply, ("Op",))


# -- lets -------------------------------------------------------------------------------------------------------------


@dataclass
class _Propagation(Mapper):
    """Replaces the names of trivial lets by what they stand for, and drops the lets, in textual order."""

    counter: Steps = field(default_factory=Steps)
    kept: frozenset[str] = frozenset()
    values: dict[str, Expr] = field(default_factory=dict)
    indices: dict[str, Poly] = field(default_factory=dict)
    dropped: int = 0

    def __post_init__(self) -> None:
        self.expr, self.poly, self.stmt = self._ref, self._subs, self._let

    def _ref(self, node: Expr) -> Expr:
        found = self.values.get(node.id) if isinstance(node, Ref) else None
        return node if found is None else replace(found, span=node.span)

    def _subs(self, poly: Poly) -> Poly:
        return poly.subs(self.indices)

    def _let(self, stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if not isinstance(stmt, Let) or not isinstance(stmt.value, Const | Ref | Affine) or stmt.id in self.kept:
            return stmt
        value = stmt.value
        if not self.counter.take(f"{stmt.id} is {shown(value)}"):
            return stmt
        self.values[stmt.id] = value
        if isinstance(value, Affine):
            self.indices[stmt.id] = value.poly
        elif isinstance(value, Ref):
            self.indices[stmt.id] = Poly.of(value.id)
        elif value.dtype.is_int:
            self.indices[stmt.id] = Poly.of(int(to_number(value.bits, value.dtype)))
        self.dropped += 1
        return ()


def _places(program: Program) -> frozenset[str]:
    """The names for results of `argmax` and its like that polynomials hold: an accumulator may only stand alone."""
    stmts = list(walk_program(program))
    accs = {a.id for s in stmts if isinstance(s, Loop) for a in s.accs}
    lets = {s.id: s.value for s in stmts if isinstance(s, Let) and s.value.dtype == I64}
    named: set[str] = set()
    for id, value in lets.items():
        seen = {id}
        while isinstance(value, Ref) and value.id in lets and value.id not in seen:
            seen.add(value.id)
            value = lets[value.id]
        if isinstance(value, Ref) and value.id in accs:
            named.add(id)
    if not named:
        return frozenset()
    inside = {n for s in stmts for p in polys(s) for n in p.names}
    inside |= {n for s in stmts for e in subexprs(*exprs(s)) if isinstance(e, Affine) for n in e.poly.names}
    return frozenset(named & inside)


def propagate(program: Program, counter: Steps) -> tuple[Program, int]:
    """The program without lets that name a constant, an index polynomial or another name, and how many there were."""
    lets = (s for s in walk_program(program) if isinstance(s, Let))
    if not any(isinstance(s.value, Const | Ref | Affine) for s in lets):
        return program, 0
    work = _Propagation(counter=counter, kept=_places(program))
    kernels = tuple(work.on_kernel(k) for k in program.kernels)
    return (replace(program, kernels=kernels), work.dropped) if work.dropped else (program, 0)
