"""Folds with repaired accumulators, run as a streaming or a splitting implementation would.

The exact meaning of such a fold takes several passes: terms read final values. An implementation makes one pass over
blocks and reads running values; whenever an accumulator that others depend on moves, their partial values are repaired.
Running a program this way tests the repairs, which exact passes never look at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loopfuse.backends.reference.boxes import boxes
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


def compile_online(ranges: list[Range], guard: Guard, turns: tuple[Turn, ...], scope: Scope, how: Online) -> Code:
    """A closure that runs a fold with repairs in one pass; `scope` is the one around the loop."""
    order = [fold for turn in turns for fold in turn.folds]
    repairs = {fold.acc.id: _repair(fold, order[:k], scope) for k, fold in enumerate(order)}

    def values(f: Frame, part: Partial, outer: Shape) -> dict[str, Value]:
        return {x.acc.id: x.show(f, part.get(x.acc.id), outer) for x in order}

    def merge(f: Frame, left: Partial, right: Partial, outer: Shape) -> Partial:
        """Two partials brought to their common reference and joined, accumulator after accumulator."""
        before, after = values(f, left, outer), values(f, right, outer)
        joint: dict[str, Value] = {}
        made: Partial = {}
        for x in order:
            a, b = left.get(x.acc.id), right.get(x.acc.id)
            repair = repairs[x.acc.id]
            if repair is not None:
                a = x.monoid.lift(repair.apply(f, before[x.acc.id], before, joint), None)
                b = x.monoid.lift(repair.apply(f, after[x.acc.id], after, joint), None)
            made[x.acc.id] = b if a is None else a if b is None else x.monoid.combine(a, b)
            joint[x.acc.id] = x.show(f, made[x.acc.id], outer)
        return made

    def block(f: Frame, before: Partial, box: Any, starts: list[Any], outer: Shape, around: int) -> Partial:
        """The partial after a block of iterations that came after `before`."""
        mask, doubt, quiet = f.mask, f.doubt, f.quiet
        old, made = values(f, before, outer), Partial()
        new: dict[str, Value] = {}
        for number, turn in enumerate(turns):
            turn.begin(f)
            f.quiet = quiet or number > 0
            set_box(f, ranges, starts, box, outer, around)
            if guard(f, ranges):
                turn.body(f)
            f.shape, f.elements, f.mask, f.doubt, f.quiet = outer, around, mask, doubt, quiet
            for x in turn.folds:
                part, a, repair = x.gathered(f, outer), before.get(x.acc.id), repairs[x.acc.id]
                if repair is not None:
                    a = x.monoid.lift(repair.apply(f, old[x.acc.id], old, new), None)
                made[x.acc.id] = part if a is None else a if part is None else x.monoid.combine(a, part)
                new[x.acc.id] = x.show(f, made[x.acc.id], outer)
                x.begin(f)
        return made

    def run(f: Frame) -> None:
        outer, around = f.shape, f.elements
        entered = [r.enter(f) for r in ranges]
        starts, counts = [s for s, _ in entered], tuple([n for _, n in entered])
        all_boxes = () if 0 in counts else boxes(counts, how.block)
        found: Partial = {}
        if how.split:
            tree = Tree(lambda a, b: merge(f, a, b, outer))
            for box in all_boxes:
                tree.add(block(f, {}, box, starts, outer, around))
                tree.add({})
            found = tree.result() or {}
        else:
            for box in all_boxes:
                found = block(f, found, box, starts, outer, around)
        values(f, found, outer)

    return run
