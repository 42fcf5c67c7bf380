"""The last touches to fused bodies: cheaper operations, loads of known elements, decided conditions.

Strength reduction by `peephole.rules` (with those of `simplify`, for what comes free), elements that were loaded or
stored before at subscripts proved equal, comparisons of indices that always come out one way, and `where` conditions
that always hold. An operand that a rule needs twice gets a name.

Needs: any valid program; best after `bodies`. Promises: subscripts and index polynomials are left alone; no load is
added, and none is moved out of what guards it; all bits stay, but for the rules marked `rounds`, which a remark
announces and which `numerics strict` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from loopfuse.dtypes import I64
from loopfuse.ir import Expr, Let, Load, Loop, Op, Program, Ref, Select, Stmt, Store
from loopfuse.passes.base import Options, Outcome, Pass, Remark, Steps, steps
from loopfuse.passes.laws import LAWS
from loopfuse.passes.patterns import lazy, reads, same
from loopfuse.passes.redundant import Redundant
from loopfuse.passes.rulefile import Spec, load_rules
from loopfuse.passes.simplify import counted, limit_for, remarks_of, shown
from loopfuse.passes.simplify import specs as simplifications
from loopfuse.rewrite import Fresh, Mapper, map_expr, subexprs
from loopfuse.rules import Rewriter, Rules
from loopfuse.verify.layout import layout
from loopfuse.verify.structure import size_facts


@cache
def specs() -> tuple[Spec, ...]:
    """The rules of `peephole.rules`."""
    return load_rules("peephole.rules")


def peephole(program: Program, options: Options) -> Outcome:
    """Redundant elements and conditions first, then names, then rules; each once."""
    counter = steps(options, "peephole")
    mine = tuple(s for s in specs() if not s.rounds or program.numerics != "strict")
    rules = counted(LAWS + Rules(s.rule() for s in (*simplifications(), *mine)), counter)
    facts = size_facts(layout(replace(program, buffers=program.buffers, kernels=())))
    remarks: list[Remark] = []
    mapper = _Values(Rewriter(rules, limit_for(program)))
    while True:
        before = program
        redundant = Redundant(program, facts, counter)
        program = redundant.run()
        remarks += redundant.remarks
        program = name_operands(program, mine, counter)
        kernels = tuple(mapper.on_kernel(k) for k in program.kernels)
        if any(a is not b for a, b in zip(kernels, program.kernels, strict=True)):
            program = replace(program, kernels=kernels)
        if program is before:
            break
    fired = mapper.rewriter.fired
    rounding = {s.name for s in mine if s.rounds}
    exact = [f for f in fired if f.rule not in rounding]
    announced = [replace(r, rounds=True) for r in remarks_of([f for f in fired if f.rule in rounding])]
    return Outcome(program, (*remarks, *remarks_of(exact), *announced))


PASS = Pass("peephole", "Cheaper operations, loads of known elements, decided conditions.", peephole)


class _Values(Mapper):
    """Rewrites values; subscripts, conditions of loops and integer lets, which may be subscripts, stay."""

    def __init__(self, rewriter: Rewriter) -> None:
        super().__init__()
        self.rewriter = rewriter

    def on_expr(self, expr: Expr) -> Expr:
        return expr

    def _leaf(self, stmt: Let | Store) -> Stmt:
        if isinstance(stmt, Let) and stmt.value.dtype == I64:
            return stmt
        for node in subexprs(stmt.value):
            if isinstance(node, Load):
                self.rewriter.done.update({id(sub): (sub, sub) for sub in node.subs})
        value = self.rewriter.expr(stmt.value)
        return stmt if value is stmt.value else replace(stmt, value=value)


# -- names for operands that a rule needs twice -----------------------------------------------------------------------


def name_operands(program: Program, rules: tuple[Spec, ...], counter: Steps) -> Program:
    """The program with lets for the operands that rules use twice, where they may be computed before the statement."""
    asking = tuple(s for s in rules if any(question == "atomic" for question, _ in s.asks))
    fresh: list[Fresh] = []

    def on_stmt(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(stmt, Loop) or (isinstance(stmt, Let) and stmt.value.dtype == I64):
            return stmt
        found = wanted(stmt.value, asking)
        if found is None or not counter.take(f"a name for {shown(found)}"):
            return stmt
        if not fresh:
            fresh.append(Fresh(program))
        let = Let(fresh[0](stmt.id if isinstance(stmt, Let) else stmt.buffer), found, span=found.span)
        ref = Ref(let.id, found.dtype, span=found.span)
        value = map_expr(stmt.value, lambda node: ref if same(node, found) else node)
        rest = on_stmt(replace(stmt, value=value))
        return (let, *rest) if isinstance(rest, tuple) else (let, rest)

    mapper = Mapper(stmt=on_stmt)
    kernels = tuple(mapper.on_kernel(k) for k in program.kernels)
    if all(a is b for a, b in zip(kernels, program.kernels, strict=True)):
        return program
    return replace(program, kernels=kernels)


def wanted(root: Expr, rules: tuple[Spec, ...]) -> Expr | None:
    """The first operand, innermost first, that a rule wants to use twice and that may be computed beforehand."""
    for node, guarded in evaluated(root):
        for spec in rules if isinstance(node, Op) else ():
            for operand in spec.unnamed(node):
                if not guarded or not reads(operand):
                    return operand
    return None


def evaluated(root: Expr) -> Iterator[tuple[Expr, bool]]:
    """The nodes outside subscripts, operands first, and whether something decides if each is evaluated."""
    order: list[tuple[Expr, bool]] = []
    seen: set[tuple[int, bool]] = set()
    stack = [(root, False)]
    while stack:
        node, guarded = stack.pop()
        if (id(node), guarded) in seen:
            continue
        seen.add((id(node), guarded))
        order.append((node, guarded))
        if isinstance(node, Select):
            stack += [(node.cond, guarded), (node.then, True), (node.other, True)]
        elif isinstance(node, Op):
            first = (node.args[0], guarded)
            stack += [first, *((a, guarded or lazy(node.op)) for a in node.args[1:])]
    return reversed(order)
