"""Accumulators: how terms find their trees, and how trees become values.

An absorption has a *state* while its loop runs. A dense one holds a tree for each block of elements; a scatter holds
the array itself; a prefix one holds the running value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from loopfuse.backends.reference.access import Code, Positions
from loopfuse.backends.reference.domain import Reducer, strides_of
from loopfuse.backends.reference.frame import Frame, Index
from loopfuse.backends.reference.scatter import fold_at, running
from loopfuse.backends.reference.scope import Linear, Scope
from loopfuse.backends.reference.tree import Node, Tree, cut
from loopfuse.diag import CompilerError
from loopfuse.numerics import Array

Absorb = Callable[[Frame], None]


def each(function: Callable[[Any], Any], node: Node) -> Node:
    """The function applied to every part of a node."""
    return tuple(function(part) for part in node) if isinstance(node, tuple) else function(node)


def both(function: Callable[[Any, Any], Any], node: Node, other: Node) -> Node:
    """The function applied to the parts of two nodes of one kind."""
    if isinstance(node, tuple):
        return tuple(function(a, b) for a, b in zip(node, other, strict=True))
    return function(node, other)


@dataclass(frozen=True, slots=True)
class Term:
    """What an absorption absorbs: its value, and for argmax and argmin its position."""

    value: Code
    at: Code | None
    reducer: Reducer

    def node(self, f: Frame) -> Node:
        """The terms of all iterations of the frame, identities where masked out; along every axis."""
        node = self.reducer.lift(self.value(f), self.at(f) if self.at else None)
        shape = f.shape
        if f.mask is not None:
            mask = f.mask.array()
            node = both(lambda part, start: np.where(mask, part, start), node, self.reducer.identity)
        if f.doubt is not None:
            node = self.reducer.doubted(node, f.doubt)
        return each(lambda part: part if part.shape == shape else np.broadcast_to(part, shape), node)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the axes of a term go: places first, then those that subscripts follow, then the outer ones."""

    order: tuple[int, ...] | None
    reduced: tuple[int, ...]
    kept: tuple[int, ...]
    outer: tuple[int, ...]

    @staticmethod
    def of(scope: Scope, reduced: tuple[Index, ...], kept: tuple[Index, ...], outer: int) -> Layout:
        """The layout of a term in a scope, of whose axes the last `outer` are those around the fold."""
        depth = scope.depth
        axes = [depth + i.axis for i in (*reduced, *kept) if i.axis is not None]
        order = (*axes, *range(depth - outer, depth))
        slots = tuple(i.slot for i in scope.axes[depth - outer :])
        return Layout(None if order == tuple(range(depth)) else order, tuple(i.slot for i in reduced),
                      tuple(i.slot for i in kept), slots)  # fmt: skip

    def arrange(self, f: Frame, node: Node) -> tuple[Node, int]:
        """The node with its places along the first axis, and their number."""
        count, places = f.count, 1
        for slot in self.reduced:
            places *= count[slot]
        if self.order is not None:
            order = self.order
            node = each(lambda part: part.transpose(order), node)
        if len(self.reduced) != 1:
            shape = (places, *(count[s] for s in self.kept), *(count[s] for s in self.outer))
            node = each(lambda part: part.reshape(shape), node)
        return node, places


# -- trees ------------------------------------------------------------------------------------------------------------


class Absorption(Protocol):
    """An absorption, ready to run."""

    def begin(self, f: Frame) -> None:
        """Start with no terms."""

    def absorb(self, f: Frame) -> None:
        """Absorb the terms of the frame."""

    def result(self, f: Frame, outer: tuple[int, ...]) -> Node:
        """All terms so far, reduced: a node of the accumulator's shape and that of the axes around, or None."""


@dataclass(slots=True)
class _Block:
    """A tree for the elements from `first` on, `counts` of them along the axes that have a step."""

    tree: Tree
    first: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A subscript of a dense absorption: its linear rest, and the index that it follows with its factor."""

    const: int
    terms: tuple[tuple[int, int], ...]
    index: Index | None
    by: int
    extent: int

    def first(self, f: Frame) -> int:
        """The coordinate of the box's first iteration."""
        at = self.const
        for slot, factor in self.terms:
            at += factor * f.start[slot]
        return at


def target(form: Linear, index: Index | None, extent: int) -> Target:
    """The target of a subscript's linear form."""
    by = next((c * i.step for i, c in form.terms if i is index), 0)
    return Target(form.const, tuple((i.slot, c) for i, c in form.terms), index, by, extent)


class Dense:
    """A dense absorption. `targets` is empty for a scalar accumulator, `reduced` are the indices that make places."""

    def __init__(self, slot: int, term: Term, layout: Layout, targets: tuple[Target, ...], reduced: tuple[Index, ...],
                 compact: bool, name: str) -> None:  # fmt: skip
        self._reduced = tuple((i.slot, i.step) for i in reduced)
        self._slot, self._term, self._layout, self._name = slot, term, layout, name
        self._targets, self._compact = targets, compact
        self._following = tuple(t for t in targets if t.index is not None and t.index.axis is not None)

    def begin(self, f: Frame) -> None:
        """Start with no terms."""
        f.states[self._slot] = {}

    def absorb(self, f: Frame) -> None:
        """Push the terms of the frame."""
        blocks: dict[tuple[int, ...], _Block] = f.states[self._slot]
        first = tuple([t.first(f) for t in self._targets])
        block = blocks.get(first)
        if block is None:
            counts = tuple([f.count[t.index.slot] for t in self._following if t.index is not None])
            block = blocks[first] = _Block(Tree(self._term.reducer.combine), first, counts)
            self._in_range(first, counts)
        node, places = self._layout.arrange(f, self._term.node(f))
        if not self._compact:
            missing = self._place(f) - block.tree.count
            if missing:
                block.tree.skip(missing)
        elif f.mask is not None:
            performed = np.broadcast_to(f.mask.array(), f.shape).reshape(-1)
            node, places = each(lambda part: part[performed], node), int(np.count_nonzero(performed))
        block.tree.push(node, places)

    def _place(self, f: Frame) -> int:
        """The place of the frame's first iteration; those before it that were not pushed are empty."""
        place = 0
        for slot, step in self._reduced:
            place = place * ((f.high[slot] - f.low[slot]) // step + 1) + f.place[slot] if place else f.place[slot]
        return place

    def _in_range(self, first: tuple[int, ...], counts: tuple[int, ...]) -> None:
        lengths = iter(counts)
        for target, start in zip(self._targets, first, strict=True):
            last = start + (target.by * (next(lengths) - 1) if target in self._following else 0)
            if min(start, last) < 0 or max(start, last) >= target.extent:
                raise CompilerError(
                    "reference", f"absorption into `{self._name}` at {start} to {last} of {target.extent}"
                )

    def result(self, f: Frame, outer: tuple[int, ...]) -> Node:
        """All terms reduced: None for none, else a node of the accumulator's shape and the axes around."""
        blocks: dict[tuple[int, ...], _Block] = f.states[self._slot]
        shape = tuple([t.extent for t in self._targets])
        if not shape:
            block = next(iter(blocks.values()), None)
            return block.tree.result() if block else None
        if len(blocks) == 1:
            (block,) = blocks.values()
            if block.counts == shape and all(t.by == 1 for t in self._targets) and not any(block.first):
                return block.tree.result()
        whole = each(lambda start: np.full(shape + outer, start, dtype=start.dtype), self._term.reducer.identity)
        for block in blocks.values():
            self._fill(whole, block)
        return whole

    def _fill(self, whole: Node, block: _Block) -> None:
        found = block.tree.result()
        if found is None:
            return
        lengths = iter(block.counts)
        places: list[Any] = []
        for target, start in zip(self._targets, block.first, strict=True):
            if target in self._following:
                count = next(lengths)
                places.append(_run(start, target.by, count))
            else:
                places.append(start)
        key = tuple(places)

        def put(part: Any, value: Any) -> None:
            part[key] = value

        both(put, whole, found)


def _run(start: int, by: int, count: int) -> slice:
    stop = start + by * count
    return slice(start, stop if stop >= 0 else None, by)


# -- scatters ---------------------------------------------------------------------------------------------------------


class _Shape:
    """The strides of an accumulator's array, as far as finding positions needs a storage."""

    windowed = False
    origin = modulus = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.strides = shape, strides_of(shape)
        self.written = None


class Scatter:
    """An absorption at any subscripts, one term after another; `shape` is the accumulator's."""

    def __init__(self, slot: int, term: Term, layout: Layout, positions: Positions, shape: tuple[int, ...]) -> None:
        self._slot, self._term, self._layout, self._positions = slot, term, layout, positions
        self._shape = shape

    def begin(self, f: Frame) -> None:
        """Start with no terms."""
        f.states[self._slot] = None

    def absorb(self, f: Frame) -> None:
        """Absorb the terms of the frame."""
        full = self._shape + tuple([f.count[s] for s in self._layout.outer])
        whole = f.states[self._slot]
        if whole is None:
            size = int(np.prod(full, dtype=np.int64))
            whole = each(lambda start: np.full(size, start, dtype=start.dtype), self._term.reducer.identity)
            f.states[self._slot] = whole
        at, inside = self._positions.find(f, _Shape(full))  # type: ignore[arg-type]
        node, keep = self._term.node(f), None if f.mask is None else f.mask.array()
        for _, part in inside:
            keep = part if keep is None else keep & part
        affected = self._positions.affected(f, full)
        if affected is not None:
            whole = f.states[self._slot] = self._term.reducer.doubted(whole, affected.reshape(-1))
        # An empty array takes nothing: every subscript was outside and has been reported, or nothing is performed.
        if 0 in full:
            return
        flat = each(lambda part: self._flat(part, f), node)
        targets = self._flat(np.broadcast_to(at, f.shape), f)
        if keep is not None:
            chosen = self._flat(np.broadcast_to(keep, f.shape), f)
            flat, targets = each(lambda part: part[chosen], flat), targets[chosen]
        fold_at(self._term.reducer, whole, targets, flat)

    def _flat(self, part: Array, f: Frame) -> Array:
        if self._layout.order is not None:
            part = part.transpose(self._layout.order)
        return part.reshape(-1)

    def result(self, f: Frame, outer: tuple[int, ...]) -> Node:
        """All terms so far, a node of the accumulator's shape and the axes around, or None."""
        whole = f.states[self._slot]
        full = self._shape + outer
        return None if whole is None else each(lambda part: part.reshape(full), whole)


# -- running values ---------------------------------------------------------------------------------------------------


class Running:
    """An absorption into a scalar accumulator of the prefix loop that it stands in."""

    def __init__(self, slot: int, term: Term, layout: Layout, value: int) -> None:
        self._slot, self._term, self._layout, self._value = slot, term, layout, value

    def begin(self, f: Frame) -> None:
        """Start with no terms."""
        f.states[self._slot] = None

    def absorb(self, f: Frame) -> None:
        """Absorb the terms of the frame in order; the accumulator's value runs along the loop's axes."""
        node, places = self._layout.arrange(f, self._term.node(f))
        reducer = self._term.reducer
        block = running(reducer, f.states[self._slot], node, places)
        f.states[self._slot] = cut(block, places - 1)
        f.values[self._value] = reducer.along(block, f.shape)

    def result(self, f: Frame, outer: tuple[int, ...]) -> Node:
        """The last running value, or None."""
        return f.states[self._slot]
