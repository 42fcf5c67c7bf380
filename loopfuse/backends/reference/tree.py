"""The fixed reduction tree.

The order in which a reduction combines its terms is given by the number of places alone: leaves of eight consecutive
places are folded from left to right; leaves are combined pairwise, neighbours first, level by level, an odd one being
carried up. An empty place holds the identity. Identities at the end change nothing, so the tree of a longer reduction
extends the tree of a shorter one, and a block of a reduction can be evaluated without knowing the whole.

A *node* is an array, or a tuple of arrays that belong together (the best value so far and its position). Blocks of
places are nodes with one more axis, in front. `None` stands for a node of identities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loopfuse.diag import CompilerError

LEAF = 8
Node = Any
Combine = Callable[[Node, Node], Node]


def cut(node: Node, key: Any) -> Node:
    """The part of a node that `key` selects on its first axis."""
    if isinstance(node, tuple):
        return tuple(part[key] for part in node)
    return node[key]


class Tree:
    """A reduction in progress: places are pushed in order, one or many at a time, with the same result.

    `combine` joins two nodes, the left one being earlier.
    """

    __slots__ = ("_combine", "_leaf", "_stack", "count")

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._leaf: Node = None
        self._stack: list[tuple[int, Node]] = []
        self.count = 0

    def push(self, block: Node, places: int) -> None:
        """Append `places` terms, along the first axis of `block`."""
        done = 0
        if self.count % LEAF:
            done = min(places, LEAF - self.count % LEAF)
            for place in range(done):
                self.add(cut(block, place))
        leaves = (places - done) // LEAF
        if leaves:
            self._leaves(block, done, leaves)
            done += LEAF * leaves
        for place in range(done, places):
            self.add(cut(block, place))

    def skip(self, places: int) -> None:
        """Append `places` identities. Raises `CompilerError` for a negative number: the places came out of order."""
        if places < 0:
            raise CompilerError("reference", "a reduction went through its elements out of order")
        inside = self.count % LEAF
        if inside:
            taken = min(places, LEAF - inside)
            self.count += taken
            places -= taken
            if self.count % LEAF == 0:
                self._close()
        leaves = places // LEAF
        while leaves:
            level = self._aligned(leaves)
            self._carry(level, None)
            self.count += LEAF << level
            leaves -= 1 << level
        self.count += places % LEAF

    def result(self) -> Node:
        """The node of all places so far, or None when all of them are empty. May be asked in between."""
        node = self._leaf
        for _, left in reversed(self._stack):
            node = self._join(left, node)
        return node

    def add(self, term: Node) -> None:
        """Append one term."""
        self._leaf = self._join(self._leaf, term)
        self.count += 1
        if self.count % LEAF == 0:
            self._close()

    def _close(self) -> None:
        leaf, self._leaf = self._leaf, None
        self._carry(0, leaf)

    def _leaves(self, block: Node, start: int, leaves: int) -> None:
        """Append whole leaves at once: eight strided folds, then levels of pairs as far as they are aligned."""
        stop = start + LEAF * leaves
        nodes = cut(block, slice(start, stop, LEAF))
        for place in range(1, LEAF):
            nodes = self._combine(nodes, cut(block, slice(start + place, stop, LEAF)))
        first = 0
        while first < leaves:
            level = self._aligned(leaves - first)
            part = cut(nodes, slice(first, first + (1 << level)))
            for _ in range(level):
                part = self._combine(cut(part, slice(0, None, 2)), cut(part, slice(1, None, 2)))
            self._carry(level, cut(part, 0))
            self.count += LEAF << level
            first += 1 << level

    def _aligned(self, most: int) -> int:
        """The level of the largest subtree that begins at the next leaf and has at most `most` leaves."""
        index = self.count // LEAF
        level = most.bit_length() - 1
        if index:
            level = min(level, (index & -index).bit_length() - 1)
        return level

    def _carry(self, level: int, node: Node) -> None:
        """Put a complete subtree in its place, joining it with its left neighbours of the same size."""
        while self._stack and self._stack[-1][0] == level:
            node = self._join(self._stack.pop()[1], node)
            level += 1
        self._stack.append((level, node))

    def _join(self, left: Node, right: Node) -> Node:
        if left is None:
            return right
        return left if right is None else self._combine(left, right)


def reduce(combine: Combine, block: Node, places: int) -> Node:
    """The tree over the first axis of `block`, which has `places` places; None when there are none."""
    tree = Tree(combine)
    tree.push(block, places)
    return tree.result()
