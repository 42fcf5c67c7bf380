"""The search for a partition of a graph of nests into kernels of the least total cost; it knows nothing of the IR.

A group is legal where it is connected (by dependences, or by inputs that are shared), where no path leaves it and comes
back, and where the caller gives it a cost. Small components are searched completely; the others by a priority queue of
merges, restarted with perturbed gains, each result improved by moving, splitting and joining until nothing gains.

Nodes are ordered by their structural keys, and by their numbers only between nodes of one key, so that a result depends
neither on the order in which nests are written nor on names.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from loopfuse.passes.fuse.partition import Components, Quotient, bits

GroupCost = Callable[[frozenset[int]], float | None]
Bound = Callable[[frozenset[int]], float]
T = TypeVar("T")
SMALL = 10  # nests in a component that is searched completely
INFINITE = float("inf")
WORD = (1 << 64) - 1
MANY, KICKS = 64, (0.3, 0.6, 0.9, 1.0)  # the largest component whose groups are taken apart again, and how often each
HUGE = 500  # the largest that is improved at all
EVEN = 0.01  # how much greater a gain must seem than one that is certain before another group is costed for it
HOPE = 1e-3  # the part of the gain under the bounds that a merge is taken to have at least before it is costed
TINY = 1e-12  # a relative gain below this is rounding


@dataclass(frozen=True, slots=True)
class Graph:
    """Nests `0 .. n-1` in the order of the source.

    `after[a]` are the nests that need `a`; `links` pairs of nests that share an input; `keys` one number a nest, equal
    only for nests that look alike, their surroundings included.
    """

    after: tuple[frozenset[int], ...]
    links: frozenset[tuple[int, int]]
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups in an order in which they can run, and the sum of their costs. `exact`: no partition costs less. `steps`: how
    many merges and changes were weighed. `cut`: the components whose search ended at a limit."""

    groups: tuple[frozenset[int], ...]
    cost: float
    exact: bool
    steps: int = 0
    cut: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to search: restarts, their seed, whether small components are searched completely, and limits for one
    component (None: none): `budget`, the most groups that are costed; for each of its nests `work`, the nests in all
    groups that are costed, and `steps`, the merges and changes that are weighed; `most`, the nests of one group."""

    restarts: int = 12
    seed: int = 0
    exhaustive: bool = True
    budget: int | None = 300
    work: int | None = 128
    steps: int | None = 1000
    most: int | None = 128


def search(graph: Graph, cost: GroupCost, effort: Effort = Effort(), least: Bound | None = None) -> Partition:
    """The best partition found; a nest without a cost of its own counts as free and stays alone.

    `cost` is asked at most once for a group of two or more. `least` is a cost that no group can stay below, cheap to
    ask for: groups that can have no part in the best partition are then never costed.
    """
    order = sorted(range(len(graph.keys)), key=lambda n: (graph.keys[n], n))
    place = {n: i for i, n in enumerate(order)}
    after = [sum(1 << place[m] for m in graph.after[n]) for n in order]
    links = [(place[a], place[b]) for a, b in graph.links]
    keys = [graph.keys[n] for n in order]
    whole = Components(after, links)
    found: list[int] = []
    total, exact, steps = 0.0, True, 0
    cut: list[int] = []

    def by_mask(function: Callable[[frozenset[int]], T]) -> Callable[[int], T]:
        return lambda mask: function(frozenset(order[i] for i in bits(mask)))

    for component in whole.components():
        problem = _Problem(whole, keys, by_mask(cost), by_mask(least) if least else None, effort, component)
        part, value, best = problem.solve()
        found += part
        total += value
        exact = exact and best
        steps += problem.steps
        cut += [component] if problem.cut else []
    ordered = whole.schedule(found)

    def named(masks: list[int]) -> tuple[frozenset[int], ...]:
        return tuple(frozenset(order[i] for i in bits(m)) for m in masks)

    return Partition(named(ordered), total, exact, steps, named(cut))


def mix(*numbers: int) -> int:
    """A number of 64 bits that depends on all of the numbers and their order."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & WORD)) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & WORD
        state ^= state >> 31
    return state


class _Problem:
    """One connected component: masks of nodes, and their costs as far as they were asked."""

    def __init__(self, graph: Components, keys: list[int], cost: Callable[[int], float | None],
                 least: Callable[[int], float] | None, effort: Effort, nodes: int) -> None:  # fmt: skip
        self.graph, self.keys, self.nodes, self.effort = graph, keys, nodes, effort
        self.ask, self.least = cost, least
        self.bounds: dict[int, float] = {}
        self.costs: dict[int, float | None] = {}
        self.excesses: dict[int, float] = {}
        self.asked = self.work = self.steps = 0
        self.cut = False
        self.improved: dict[frozenset[int], list[int]] = {}
        self.size = nodes.bit_count()

    def cost(self, mask: int) -> float | None:
        """What a group costs; None where it cannot be one kernel, or the budget for questions is spent."""
        if mask in self.costs:
            return self.costs[mask]
        alone = mask & (mask - 1) == 0
        if not alone:
            nests = mask.bit_count()
            if (self.effort.most is not None and nests > self.effort.most) or not self._affords(nests):
                return None
            self.asked += 1
            self.work += nests
        found = self.ask(mask)
        self.costs[mask] = found = 0.0 if alone and found is None else found
        return found

    def _affords(self, work: int) -> bool:
        """Whether one more group may be costed, and groups of so many nests."""
        effort = self.effort
        rest = effort.budget is None or self.asked < effort.budget
        rest = rest and (effort.work is None or self.work + work <= effort.work * self.size)
        self.cut = self.cut or not rest
        return rest

    def step(self) -> bool:
        """Weigh one more merge or change: whether there was a step left for it."""
        self.steps += 1
        return not self.tired()

    def tired(self) -> bool:
        """Whether all steps are used up."""
        over = self.effort.steps is not None and self.steps > self.effort.steps * self.size
        self.cut = self.cut or over
        return over

    def bound(self, mask: int) -> float:
        """What a group costs at least: its cost as far as that is known, infinite where it cannot be one kernel."""
        if mask in self.costs or self.least is None or mask & (mask - 1) == 0:
            found = self.cost(mask)
            return INFINITE if found is None else found
        if mask not in self.bounds:
            self.bounds[mask] = self.least(mask)
        return self.bounds[mask]

    def excess(self, mask: int) -> float:
        """How much more than the bound a group costs that has been costed: what a larger one with it is likely to cost too."""
        found = self.excesses.get(mask)
        if found is None:
            cost = self.costs.get(mask)
            least = self.least(mask) if self.least is not None and cost is not None else INFINITE
            found = self.excesses[mask] = max(0.0, (cost or 0.0) - least)
        return found

    def total(self, part: Iterable[int]) -> float:
        """The cost of a partition of legal groups."""
        return sum(sorted(self.cost(m) or 0.0 for m in part))

    def solve(self) -> tuple[list[int], float, bool]:
        """The best partition, its cost, and whether it is certainly the best."""
        if self.size == 1:
            return [self.nodes], self.total([self.nodes]), True
        if self.effort.exhaustive and self.size <= SMALL:
            part = self.exact()
            if part is not None:
                return part, self.total(part), True
        restarts = max(1, min(self.effort.restarts, self.effort.restarts * 128 // self.size))
        best, least = self.start(self.singles(self.nodes), 0.0, 0)
        first = self.work
        for number in range(1, restarts):
            if self.tired() or not self._affords(first):
                break  # no other start can go as far as the first
            width = 0.3 + 0.6 * (number - 1) / max(1, restarts - 2)
            best, least = min((best, least), self.start(self.singles(self.nodes), width, number), key=itemgetter(1))
        return *self.kick(best, least), False

    def exact(self) -> list[int] | None:
        """The best partition; None where the budget does not suffice to be certain.

        The best partition under the bounds is the best of all once its groups have been costed: only such groups are.
        """
        groups = list(self.graph.connected(self.nodes))
        budget = self.effort.budget
        if self.least is None and budget is not None and len(groups) - self.size > budget:
            return None
        ways = Ways(self.graph, self.nodes, groups)
        while True:
            part = ways.cheapest({m: c for m in groups if (c := self.bound(m)) < INFINITE})
            waiting = [m for m in part if m not in self.costs]
            if not waiting:
                return part
            if budget is not None and self.asked + len(waiting) > budget:
                return None
            for mask in waiting:
                self.cost(mask)
            self.bounds.clear()  # an answer may have taught the caller a closer bound

    @staticmethod
    def singles(mask: int) -> list[int]:
        """Every node a group."""
        return [1 << n for n in bits(mask)]

    def start(self, part: list[int], width: float, number: int) -> tuple[list[int], float]:
        """What merging from a partition, and improving, leads to, gains multiplied by up to `1 +- width`."""
        seed = mix(self.effort.seed, number)
        part = self.descend(part, lambda a, b: 1.0 + width * (mix(seed, a + b, a * b) / 2.0**63 - 1.0))
        if frozenset(part) not in self.improved:
            self.improved[frozenset(part)] = self.improve(part)
        part = self.improved[frozenset(part)]
        return part, self.total(part)

    def kick(self, part: list[int], least: float) -> tuple[list[int], float]:
        """Take neighbouring groups apart and merge again, with other gains first, as long as that leads to better."""
        again = self.size <= MANY and self._affords(0)
        while again:
            again = False
            for some in self.neighbours(part):
                if self.tired():
                    break
                rest = [m for m in part if not m & some]
                start, seed = sorted(rest + self.singles(some)), self.key(some)
                tries = (self.start(start, width, mix(seed, n)) for n, width in enumerate(KICKS))
                made, value = min(tries, key=itemgetter(1))
                if value < least * (1 - TINY):
                    part, least, again = made, value, True
                    break
        return part, least

    def neighbours(self, part: list[int]) -> Iterator[int]:
        """The nodes of two groups that touch, then of three."""
        pairs = [a | b for a in part for b in part if a < b and self.graph.touch(a, b)]
        yield from pairs
        seen: set[int] = set()
        for ab, c in ((ab, c) for ab in pairs for c in part):
            if not ab & c and ab | c not in seen and self.step() and self.graph.touch(ab, c):
                seen.add(ab | c)
                yield ab | c

    # -- one start ----------------------------------------------------------------------------------------------------

    def key(self, mask: int) -> int:
        """A number for a group, made of the structural keys of its members."""
        return sum(self.keys[n] for n in bits(mask)) & WORD

    def descend(self, part: list[int], noise: Callable[[int, int], float]) -> list[int]:
        """Merge the pair of the greatest gain, its noise applied, until no merge gains."""
        quotient = Quotient(self.graph, part)
        masks = quotient.masks
        keys = {g: self.key(m) for g, m in masks.items()}
        version = dict.fromkeys(masks, 0)
        queue: list[tuple[float, int, int, int, int, int, int, bool]] = []

        def push(a: int, b: int) -> None:
            self.steps += 1
            if quotient.joinable(a, b):
                enter(a, b, self.bound(masks[a] | masks[b]))

        def enter(a: int, b: int, joined: float) -> None:
            apart = self.bound(masks[a]) + self.bound(masks[b])
            if joined < apart * (1 - TINY):
                low, high = sorted((keys[a], keys[b]))
                certain = masks[a] | masks[b] in self.costs
                gain = apart - joined
                if not certain:
                    gain = max(gain * HOPE, (gain - self.excess(masks[a]) - self.excess(masks[b])) * (1 - EVEN))
                gain *= noise(low, high)
                heapq.heappush(queue, (-gain, low, high, a, b, version[a], version[b], certain))

        for a in sorted(masks):
            for b in sorted(n for n in quotient.near(a) if n > a):
                push(a, b)
        while queue:
            *_, a, b, one, two, certain = heapq.heappop(queue)
            if version.get(a) != one or version.get(b) != two or not quotient.joinable(a, b):
                continue
            if not certain:
                joined = self.cost(masks[a] | masks[b])
                enter(a, b, INFINITE if joined is None else joined)
                continue
            group = quotient.join(a, b)
            keys[group] = (keys[a] + keys[b]) & WORD
            version[group] += 1
            del version[max(a, b)]
            for other in sorted(quotient.near(group)):
                push(min(group, other), max(group, other))
        return sorted(masks.values())

    # -- improvement --------------------------------------------------------------------------------------------------

    def improve(self, part: list[int]) -> list[int]:
        """Take changes that gain, group after group, until none does."""
        if self.size > HUGE:
            return part
        owner = {n: m for m in part for n in bits(m)}
        work = deque(sorted(part))
        while work and not self.tired():
            a = work.popleft()
            if owner[(a & -a).bit_length() - 1] != a:
                continue
            made = self.change(a, owner)
            for mask in made:
                for n in bits(mask):
                    owner[n] = mask
            for mask in made:
                work.extend(m for m in (mask, *self.beside(mask, owner)) if m not in work)
        return sorted(set(owner.values()))

    def change(self, a: int, owner: dict[int, int]) -> list[int]:
        """The groups to make of a group and others, where that gains: the first such change."""
        for taken, made in self.changes(a, owner):
            if not self.step():
                return []
            old = sum(self.cost(m) or 0.0 for m in taken) * (1 - TINY)
            if sum(map(self.bound, made)) >= old or not self.gains(made, old):
                continue
            rest = set(owner.values()).difference(taken)
            if self.graph.acyclic([*rest, *made]):
                return made
        return []

    def gains(self, made: list[int], old: float) -> bool:
        """Whether groups cost less than `old`; no more are costed than it takes to see that they do not."""
        return all(self.cost(mask) is not None and sum(map(self.bound, made)) < old for mask in made)

    def beside(self, a: int, owner: dict[int, int]) -> list[int]:
        """The groups that a set touches, in order."""
        return sorted({owner[m] for n in bits(a) for m in bits(self.graph.near[n] & ~a & self.nodes)})

    def changes(self, a: int, owner: dict[int, int]) -> Iterator[tuple[list[int], list[int]]]:
        """Groups to give up, `a` among them, and those to make of their nodes: two joined, a part of `a` moved to
        another or split off."""
        touching = self.beside(a, owner)
        for b in touching:
            yield [a, b], [a | b]
        for piece in self.graph.ends(a):
            rest = list(self.graph.pieces(a & ~piece))
            yield [a], [piece, *rest]
            for b in touching:
                if self.graph.touch(piece, b):
                    yield [a, b], [piece | b, *rest]
        if self.size <= MANY:
            yield from self.wide(a, touching, owner)

    def wide(self, a: int, touching: list[int], owner: dict[int, int]) -> Iterator[tuple[list[int], list[int]]]:
        """Three groups joined, two joined with a part of a third, and parts exchanged between two."""
        for b in touching:
            for c in self.beside(a | b, owner):
                yield [a, b, c], [a | b | c]
                for piece in self.graph.ends(c):
                    if self.graph.touch(piece, a | b):
                        yield [a, b, c], [a | b | piece, *self.graph.pieces(c & ~piece)]
        for b in touching:
            for piece in self.graph.ends(a):
                for other in self.graph.ends(b):
                    made = (a & ~piece | other, b & ~other | piece)
                    yield [a, b], [m for mask in made for m in self.graph.pieces(mask)]


# -- the optimum ------------------------------------------------------------------------------------------------------


class Ways:
    """The ways to take a component apart into given groups; the groups must include every single node."""

    def __init__(self, graph: Components, nodes: int, groups: list[int]) -> None:
        self.nodes = nodes
        self.needs = {m: graph.needs(m) & nodes & ~m for m in groups}
        self.first: dict[int, list[int]] = {}
        for mask in sorted(groups, key=lambda m: (-m.bit_count(), m)):
            self.first.setdefault(mask & -mask, []).append(mask)

    def cheapest(self, costs: dict[int, float]) -> list[int]:
        """The partition that is cheapest of all: the shortest way from the empty set to all nodes, through sets that
        hold what their members need. Groups without a cost are left out."""
        best: dict[int, tuple[float, int, int]] = {0: (0.0, 0, 0)}  # cost, the set before, the group added
        layers: list[list[int]] = [[] for _ in range(self.nodes.bit_count() + 1)]
        layers[0].append(0)
        for layer in layers:
            for held in layer:
                value = best[held][0]
                for mask in (m for low, found in self.first.items() if not held & low for m in found):
                    if mask & held or self.needs[mask] & ~held or mask not in costs:
                        continue
                    union, price = held | mask, value + costs[mask]
                    known = best.get(union)
                    if known is None:
                        layers[union.bit_count()].append(union)
                    if known is None or price < known[0] * (1 - TINY):
                        best[union] = (price, held, mask)
        part, at = [], self.nodes
        while at:
            _, before, mask = best[at]
            part.append(mask)
            at = before
        return sorted(part)
