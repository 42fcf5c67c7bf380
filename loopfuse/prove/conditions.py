"""Conditions as facts: comparisons of integers, their negations, `and`, `or`, `not`, named masks looked through."""

from __future__ import annotations

from dataclasses import dataclass, field

from loopfuse.dtypes import BOOL
from loopfuse.ir import Const, Expr, Load, Op, Ref, Select
from loopfuse.prove.exprs import deeper, expr_names, integer, looked_through, may_look
from loopfuse.prove.state import Alternative, Fact, State
from loopfuse.sizes import Poly

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


@dataclass
class Formula:
    """What a condition says: facts, equalities (== 0), inequalities (!= 0), and alternatives of which one holds.

    `unsure` are names in parts that were not understood; the formula follows from the condition all the same.
    """

    facts: list[Fact] = field(default_factory=list)
    equal: list[Fact] = field(default_factory=list)
    unequal: list[Fact] = field(default_factory=list)
    splits: list[tuple[Alternative, ...]] = field(default_factory=list)
    unsure: frozenset[str] = frozenset()
    opaque: bool = False

    def join(self, other: Formula) -> Formula:
        """Both."""
        return Formula(
            self.facts + other.facts,
            self.equal + other.equal,
            self.unequal + other.unequal,
            self.splits + other.splits,
            self.unsure | other.unsure,
            self.opaque or other.opaque,
        )

    def alternative(self) -> Alternative:
        """The formula as plain facts, without what plain facts cannot say."""
        both = [Fact(sign * f.poly, f.tags) for f in self.equal for sign in (1, -1)]
        return (*self.facts, *both)

    def names(self, state: State) -> frozenset[str]:
        """All names in the formula."""
        every = [*self.facts, *self.equal, *self.unequal, *(f for s in self.splits for a in s for f in a)]
        return self.unsure.union(*(state.ctx.free_names(f.poly) for f in every))

    @property
    def plain(self) -> bool:
        """Whether `alternative` says all of it."""
        return not (self.unequal or self.splits or self.opaque)


def formula(state: State, cond: Expr, truth: bool) -> Formula:
    """What follows where the condition holds (or, with `truth` false, where it does not)."""
    if isinstance(cond, Const):
        return Formula() if bool(cond.bits) == truth else Formula(facts=[Fact(Poly.of(-1))])
    if isinstance(cond, Load):
        inside = looked_through(state, cond)
        if inside is not None:
            with deeper(state):
                return formula(state, inside, truth)
    if isinstance(cond, Ref) and cond.id in state.lets and may_look(state):
        with deeper(state):
            return formula(state, state.lets[cond.id], truth)
    if isinstance(cond, Select):
        return _select(state, cond.cond, cond.then, cond.other, truth)
    if isinstance(cond, Op):
        if cond.op in ("not", "invert"):
            return formula(state, cond.args[0], not truth)
        if cond.op in ("and", "or", "bitand", "bitor"):
            arms = [formula(state, arg, truth) for arg in cond.args]
            return _both(arms) if (cond.op in ("and", "bitand")) == truth else _either(state, arms)
        if cond.op == "where":
            which, then, other = cond.args
            return _select(state, which, then, other, truth)
        if cond.op in _COMPARISONS:
            return _comparison(state, cond, truth)
    return _not_understood(state, cond)


def _not_understood(state: State, cond: Expr) -> Formula:
    return Formula(unsure=expr_names(state, cond)[0], opaque=True)


def _both(arms: list[Formula]) -> Formula:
    total = Formula()
    for arm in arms:
        total = total.join(arm)
    return total


def _either(state: State, arms: list[Formula]) -> Formula:
    """One of the arms. An arm that says nothing makes the whole say nothing."""
    possible = [arm for arm in arms if not _impossible(arm)]
    if len(possible) <= 1:
        return possible[0] if possible else arms[0]
    opaque = not all(arm.plain for arm in possible)
    unsure = frozenset[str]().union(*(arm.names(state) for arm in possible)) if opaque else frozenset[str]()
    result = Formula(unsure=unsure, opaque=opaque)
    alternatives: list[Alternative] = []
    for arm in possible:
        # a disequality in an alternative is itself two alternatives
        plain, tails = arm.alternative(), [()] if not arm.unequal else _apart(arm.unequal[0])
        alternatives += [(*plain, *tail) for tail in tails]
    if all(alternatives):
        result.splits.append(tuple(alternatives))
    elif not opaque:
        return Formula()  # an arm that always holds
    return result


def _apart(fact: Fact) -> list[Alternative]:
    return [(Fact(fact.poly - 1, fact.tags),), (Fact(-fact.poly - 1, fact.tags),)]


def _impossible(arm: Formula) -> bool:
    return any(f.poly.is_const and f.poly.constant < 0 for f in arm.facts) or any(
        f.poly.is_const and f.poly.constant != 0 for f in arm.equal
    )


def _select(state: State, cond: Expr, then: Expr, other: Expr, truth: bool) -> Formula:
    """`(cond and then) or (not cond and other)`."""
    return _either(
        state,
        [
            _both([formula(state, cond, True), formula(state, then, truth)]),
            _both([formula(state, cond, False), formula(state, other, truth)]),
        ],
    )


def _comparison(state: State, cond: Op, truth: bool) -> Formula:
    left, right = cond.args
    op = cond.op if truth else _OPPOSITE[cond.op]
    if left.dtype == BOOL:
        return _of_bools(state, left, right, op == "eq")
    a, b = integer(state, left), integer(state, right)
    if a is None or b is None:
        return _not_understood(state, cond)
    gap, tags = b[0] - a[0], a[1] | b[1]
    result = Formula()
    if op == "eq":
        result.equal.append(Fact(gap, tags))
    elif op == "ne":
        result.unequal.append(Fact(gap, tags))
    else:
        result.facts.append(Fact({"lt": gap - 1, "le": gap, "gt": -gap - 1, "ge": -gap}[op], tags))
    return result


def _of_bools(state: State, left: Expr, right: Expr, same: bool) -> Formula:
    """`mask == true` and the like."""
    for cond, constant in ((left, right), (right, left)):
        if isinstance(constant, Const):
            return formula(state, cond, bool(constant.bits) == same)
    return _not_understood(state, Op("eq", (left, right), BOOL))
