"""Folds with repaired accumulators, run as a streaming or a splitting implementation would.

The exact meaning of such a fold takes several passes: terms read final values. An implementation makes one pass over
blocks and reads running values; whenever an accumulator that others depend on moves, their partial values are repaired.
Running a program this way tests the repairs, which exact passes never look at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from loopfuse.backends.reference.boxes import Box, boxes
from loopfuse.backends.reference.domain import Value
from loopfuse.backends.reference.expr import compile_expr
from loopfuse.backends.reference.frame import Frame
from loopfuse.backends.reference.nest import Code, Fold, Shape, Turn
from loopfuse.backends.reference.ranges import Range, set_box
from loopfuse.backends.reference.scope import Local, Scope
from loopfuse.backends.reference.tree import Node, Tree

Partial = dict[str, Node]
Guard = Callable[[Frame, list[Range]], bool]


@dataclass(frozen=True, slots=True)
class Online:
    """Blocks of `block` iterations, folded from the left; or with `split` reduced apart, empty blocks between them,
    and merged by a balanced tree."""

    block: int
    split: bool = False


@dataclass(frozen=True)
class _Repair:
    """A fold's repair: its code, the slots of `self` and of the old and new values of each earlier accumulator."""

    code: Callable[[Frame], Value]
    own: int
    old: dict[str, int]
    new: dict[str, int]

    def apply(self, f: Frame, value: Value, old: dict[str, Value], new: dict[str, Value]) -> Value:
        """A partial value, after the accumulators that it depends on have moved."""
        f.values[self.own] = value
        for name, slot in self.old.items():
            f.values[slot] = old[name]
        for name, slot in self.new.items():
            f.values[slot] = new[name]
        return self.code(f)


def _repair(fold: Fold, earlier: list[Fold], scope: Scope) -> _Repair | None:
    if fold.acc.repair is None:
        return None
    shared = scope.shared
    own = shared.value_slot()
    old = {e.acc.id: shared.value_slot() for e in earlier}
    new = {e.acc.id: shared.value_slot() for e in earlier}
    scope = scope.having("self", Local(own))
    for name in old:
        scope = scope.having(f"{name}.old", Local(old[name])).having(f"{name}.new", Local(new[name]))
    return _Repair(compile_expr(fold.acc.repair, scope), own, old, new)


class _Blocks:
    """A fold with repairs at run time: how a block extends a partial, and how two partials become one.

    A partial has a node for each accumulator, in the order in which they depend on each other.
    """

    def __init__(self, ranges: list[Range], guard: Guard, turns: tuple[Turn, ...], scope: Scope) -> None:
        self._ranges, self._guard, self._turns = ranges, guard, turns
        self._order = [fold for turn in turns for fold in turn.folds]
        self._repairs = {x.acc.id: _repair(x, self._order[:k], scope) for k, x in enumerate(self._order)}

    def values(self, f: Frame, part: Partial, outer: Shape) -> dict[str, Value]:
        """The values of a partial's accumulators, which their names get."""
        return {x.acc.id: x.show(f, part.get(x.acc.id), outer) for x in self._order}

    def _moved(self, f: Frame, x: Fold, part: Partial, old: dict[str, Value], new: dict[str, Value]) -> Node:
        """An accumulator's node in a partial, after the accumulators that it depends on have moved."""
        repair = self._repairs[x.acc.id]
        if repair is None:
            return part.get(x.acc.id)
        return x.monoid.lift(repair.apply(f, old[x.acc.id], old, new), None)

    def merge(self, f: Frame, left: Partial, right: Partial, outer: Shape) -> Partial:
        """Two partials brought to their common reference and joined, accumulator after accumulator."""
        before, after = self.values(f, left, outer), self.values(f, right, outer)
        joint: dict[str, Value] = {}
        made: Partial = {}
        for x in self._order:
            made[x.acc.id] = _join(x, self._moved(f, x, left, before, joint), self._moved(f, x, right, after, joint))
            joint[x.acc.id] = x.show(f, made[x.acc.id], outer)
        return made

    def extend(self, f: Frame, before: Partial, box: Box, starts: list[Any], outer: Shape, around: int) -> Partial:
        """The partial after a block of iterations that came after `before`."""
        mask, doubt, quiet = f.mask, f.doubt, f.quiet
        old, made = self.values(f, before, outer), Partial()
        new: dict[str, Value] = {}
        for number, turn in enumerate(self._turns):
            turn.begin(f)
            f.quiet = quiet or number > 0
            set_box(f, self._ranges, starts, box, outer, around)
            if self._guard(f, self._ranges):
                turn.body(f)
            f.shape, f.elements, f.mask, f.doubt, f.quiet = outer, around, mask, doubt, quiet
            for x in turn.folds:
                made[x.acc.id] = _join(x, self._moved(f, x, before, old, new), x.gathered(f, outer))
                new[x.acc.id] = x.show(f, made[x.acc.id], outer)
                x.begin(f)
        return made


def _join(fold: Fold, left: Node, right: Node) -> Node:
    return right if left is None else left if right is None else fold.monoid.combine(left, right)


def compile_online(ranges: list[Range], guard: Guard, turns: tuple[Turn, ...], scope: Scope, how: Online,
                   cut: bool = True) -> Code:  # fmt: skip
    """A closure that runs a fold with repairs in one pass; `scope` is the one around the loop.

    Without `cut` all iterations are one block: an accumulator of a loop around is absorbed into in its own order, which
    goes through this whole loop for each of its iterations.
    """
    blocks = _Blocks(ranges, guard, turns, scope)

    def run(f: Frame) -> None:
        outer, around = f.shape, f.elements
        entered = [r.enter(f) for r in ranges]
        starts, counts = [s for s, _ in entered], tuple([n for _, n in entered])
        found = Partial()
        tree = Tree(lambda a, b: blocks.merge(f, a, b, outer))
        for box in () if 0 in counts else boxes(counts, how.block if cut else prod(counts)):
            if how.split:
                tree.add(blocks.extend(f, {}, box, starts, outer, around))
                tree.add(Partial())
            else:
                found = blocks.extend(f, found, box, starts, outer, around)
        blocks.values(f, (tree.result() or Partial()) if how.split else found, outer)

    return run
