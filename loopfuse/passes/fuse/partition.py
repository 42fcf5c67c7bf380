"""Sets of nodes of a graph as bits of integers: what is connected, what is convex, and quotients that change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, from the least."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Components:
    """A directed acyclic graph with undirected links beside its edges; `after[n]` is the mask of the successors."""

    def __init__(self, after: list[int], links: Iterable[tuple[int, int]]) -> None:
        count = len(after)
        self.after, self.all = after, (1 << count) - 1
        self.before = [0] * count
        for n, mask in enumerate(after):
            for m in bits(mask):
                self.before[m] |= 1 << n
        self.near = [a | b for a, b in zip(after, self.before, strict=True)]
        for a, b in links:
            if a != b:
                self.near[a] |= 1 << b
                self.near[b] |= 1 << a
        self._ancestors: list[int] | None = None

    def order(self) -> list[int]:
        """The nodes, each after what it needs; among those that are ready the least first."""
        waiting = [m.bit_count() for m in self.before]
        ready = sorted((n for n, count in enumerate(waiting) if not count), reverse=True)
        found = []
        while ready:
            n = ready.pop()
            found.append(n)
            for m in reversed(list(bits(self.after[n]))):
                waiting[m] -= 1
                if not waiting[m]:
                    ready.append(m)
        return found

    def components(self) -> list[int]:
        """The nodes in connected components."""
        return list(self.pieces(self.all))

    def pieces(self, mask: int) -> Iterator[int]:
        """The connected parts of a set."""
        while mask:
            piece = self.grow(mask & -mask, self.near, mask)
            yield piece
            mask &= ~piece

    @staticmethod
    def grow(start: int, along: list[int], within: int) -> int:
        """What is reached from `start` inside `within`."""
        found = edge = start
        while edge:
            new = 0
            for n in bits(edge):
                new |= along[n]
            edge = new & within & ~found
            found |= edge
        return found

    def needs(self, mask: int) -> int:
        """All ancestors of the members."""
        if self._ancestors is None:
            self._ancestors = [0] * len(self.after)
            for n in self.order():
                held = self._ancestors[n] | 1 << n
                for m in bits(self.after[n]):
                    self._ancestors[m] |= held
        found = 0
        for n in bits(mask):
            found |= self._ancestors[n]
        return found

    def closed(self, mask: int) -> int:
        """A set with all that lies on paths between its members."""
        return mask | sum(1 << n for n in bits(self.needs(mask) & ~mask) if self.needs(1 << n) & mask)

    def connected(self, nodes: int) -> Iterator[int]:
        """The sets of nodes that are connected and convex, of a small component."""
        members = list(bits(nodes))
        needs = [self.needs(1 << n) for n in members]
        for pick in range(1, 1 << len(members)):
            chosen = list(bits(pick))
            mask = reduce(or_, (1 << members[i] for i in chosen))
            outside = reduce(or_, (needs[i] for i in chosen)) & nodes & ~mask
            if any(needs[i] & mask for i in range(len(members)) if outside >> members[i] & 1):
                continue
            if self.grow(mask & -mask, self.near, mask) == mask:
                yield mask

    def touch(self, a: int, b: int) -> bool:
        """Whether an edge or a link joins two sets."""
        small, large = (a, b) if a.bit_count() < b.bit_count() else (b, a)
        return any(self.near[n] & large for n in bits(small))

    def ends(self, mask: int) -> Iterator[int]:
        """Connected parts that could be cut off a group: a member with all that needs it there, or that it needs; and
        single members."""
        seen = {mask}
        for n in bits(mask):
            for piece in (1 << n, self.grow(1 << n, self.after, mask), self.grow(1 << n, self.before, mask)):
                if piece not in seen:
                    seen.add(piece)
                    yield piece

    # -- partitions ---------------------------------------------------------------------------------------------------

    def schedule(self, part: list[int]) -> list[int]:
        """The groups in an order in which they can run, by their least members where several can; fewer groups than
        were given where they form a cycle."""
        part = sorted(part, key=lambda m: m & -m)
        owner = {n: g for g, mask in enumerate(part) for n in bits(mask)}
        after: list[set[int]] = [set() for _ in part]
        waiting = [0] * len(part)
        for g, mask in enumerate(part):
            for n in bits(mask):
                after[g] |= {owner[m] for m in bits(self.after[n] & ~mask) if m in owner}
        for targets in after:
            for g in targets:
                waiting[g] += 1
        ready = [g for g in reversed(range(len(part))) if not waiting[g]]
        found = []
        while ready:
            g = ready.pop()
            found.append(part[g])
            for h in sorted(after[g], reverse=True):
                waiting[h] -= 1
                if not waiting[h]:
                    ready.append(h)
        return found

    def acyclic(self, part: list[int]) -> bool:
        """Whether the groups can run one after the other."""
        return len(self.schedule(part)) == len(part)


class Quotient:
    """The groups of a component while they are merged. A group is named by one of its nodes.

    Ranks are a topological order of the groups, kept up as they merge: a path from `a` to `b` stays within their ranks,
    so that both the question for a cycle and the new order look only at what lies between.
    """

    def __init__(self, graph: Components, part: list[int]) -> None:
        order = graph.schedule(part)
        names = [(m & -m).bit_length() - 1 for m in order]
        owner = {n: name for name, mask in zip(names, order, strict=True) for n in bits(mask)}
        self.masks = dict(zip(names, order, strict=True))
        self.after, self.before, self.links = (
            {name: {owner[m] for n in bits(mask) for m in bits(along[n] & ~mask) if m in owner}
             for name, mask in self.masks.items()}
            for along in (graph.after, graph.before, graph.near)
        )  # fmt: skip
        self.at: list[int | None] = [*names]
        self.rank = {n: r for r, n in enumerate(names)}

    def near(self, group: int) -> set[int]:
        """The groups that share an edge or an input with this one."""
        return self.links[group]

    def below(self, a: int, most: int) -> set[int]:
        """What is reached from `a` with a rank less than `most`."""
        found: set[int] = set()
        stack = [a]
        while stack:
            for n in self.after[stack.pop()]:
                if n not in found and self.rank[n] < most:
                    found.add(n)
                    stack.append(n)
        return found

    def joinable(self, a: int, b: int) -> bool:
        """Whether no path leads from one to the other through a third group."""
        a, b = sorted((a, b), key=self.rank.__getitem__)
        return not any(b in self.after[n] for n in self.below(a, self.rank[b]))

    def join(self, a: int, b: int) -> int:
        """Make one group of two that are joinable; its name is the lesser of theirs."""
        first, second = sorted((a, b), key=self.rank.__getitem__)
        low, high = self.rank[first], self.rank[second]
        later = self.below(first, high)
        kept, gone = min(a, b), max(a, b)
        between = [n for n in self.at[low + 1 : high] if n is not None]
        order = [*(n for n in between if n not in later), kept, *(n for n in between if n in later)]
        self.at[low : high + 1] = [*order, *[None] * (high + 1 - low - len(order))]
        for r, n in enumerate(order, low):
            self.rank[n] = r
        del self.rank[gone]
        self.masks[kept] |= self.masks.pop(gone)
        for table, back in ((self.after, self.before), (self.before, self.after), (self.links, self.links)):
            for n in table.pop(gone):
                back[n].discard(gone)
                if n != kept:
                    table[kept].add(n)
                    back[n].add(kept)
            table[kept].discard(kept)
        return kept
