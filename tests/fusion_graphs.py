"""Random graphs of nests with a roofline-like cost of groups, for the tests of the search.

Every nest writes one array of some rows, reads those of the nests before it and perhaps inputs, does some work and
holds some registers. A group pays its launch, the arrays that cross its border, and its work; too many registers, or
one of some hidden pairs of nests together without a third (so that legality is not monotone), make it illegal.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from loopfuse.passes.fuse.search import Graph, mix

LAUNCH = 2.0


class Model:
    """A random graph and its costs; `shuffled` gives the same one with other numbers for the nests."""

    def __init__(self, seed: int, count: int, density: float = 0.35) -> None:
        draw = random.Random(seed)
        self.count = count
        self.reads: list[set[int]] = []
        for n in range(count):
            near = [m for m in range(max(0, n - 4), n) if draw.random() < density]
            self.reads.append(set(near or ([n - 1] if n and draw.random() < 0.85 else [])))
        inputs = [draw.uniform(0.5, 12.0) for _ in range(1 + count // 4)]
        self.inputs = inputs
        self.fed = [{i for i in range(len(inputs)) if draw.random() < 0.3} for _ in range(count)]
        self.bytes = [draw.uniform(0.3, 12.0) for _ in range(count)]
        self.work = [draw.uniform(0.1, 6.0) for _ in range(count)]
        self.registers = [draw.randint(10, 60) for _ in range(count)]
        self.limit = draw.randint(90, 200)
        pairs = [(a, b) for b in range(count) for a in self.reads[b]]
        self.barred = {pair: draw.choice([None, draw.randrange(count)]) for pair in pairs if draw.random() < 0.2}
        self.outputs = {n for n in range(count) if draw.random() < 0.15} | {count - 1}
        self.names = list(range(count))

    def graph(self, names: Mapping[int, int] | None = None) -> Graph:
        """The graph; nest `n` is number `names[n]`."""
        name = names or {n: n for n in range(self.count)}
        after: list[set[int]] = [set() for _ in range(self.count)]
        for n in range(self.count):
            for m in self.reads[n]:
                after[name[m]].add(name[n])
        links = {(name[a], name[b]) for a in range(self.count) for b in range(self.count)
                 if a < b and self.fed[a] & self.fed[b]}  # fmt: skip
        keys = [0] * self.count
        for n in range(self.count):
            keys[name[n]] = mix(n)
        return Graph(tuple(map(frozenset, after)), frozenset(links), tuple(keys))

    def cost(self, group: frozenset[int]) -> float | None:
        """What a group of nests costs; None where it is illegal."""
        if len(group) > 1:
            if sum(self.registers[n] for n in group) > self.limit:
                return None
            for (a, b), third in self.barred.items():
                if a in group and b in group and (third is None or third not in group):
                    return None
        return self.seconds(group)

    def seconds(self, group: frozenset[int]) -> float:
        """What it would cost if it were legal."""
        read = sum(self.bytes[m] for m in {m for n in group for m in self.reads[n]} - group)
        read += sum(self.inputs[i] for i in {i for n in group for i in self.fed[n]})
        written = sum(self.bytes[n] for n in group if n in self.outputs or any(
            n in self.reads[m] for m in range(self.count) if m not in group))  # fmt: skip
        memory, compute = read + written, sum(self.work[n] for n in group)
        return LAUNCH + max(memory, compute) + 0.05 * min(memory, compute)
