"""Groups of kernels as one kernel: how it is built, what it will look like when finished, and what it would cost.

A set of kernels is built by adding one kernel to the rest, each way of adding tried: `merge` joins the loops, `inline`
computes a cheap producer again where it is read, `window` in the halo of a tile, `instance` one with reductions for each
of the disjoint windows that are read, `abreast` joins reductions over one array. What the schedules are asked about is the *finished* kernel, with its folds in
cascade and its temporaries contracted; what is built here stays unfinished, so that later passes can show those steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel
from loopfuse.passes.fuse.finish import finish
from loopfuse.passes.fuse.graph import Node, rank, search_graph, windowed
from loopfuse.passes.fuse.groups import Barred, Group, Way, because
from loopfuse.passes.fuse.partition import Components, bits
from loopfuse.passes.fuse.search import INFINITE
from loopfuse.passes.fuse.trial import Made, Step, Trial, again, surroundings, with_ids
from loopfuse.passes.merge import Merged, abreast, inline, instance, merge
from loopfuse.passes.window import window
from loopfuse.schedule import accepts
from loopfuse.schedule.plan import Cost, Plan, Refusal

WORTH = 4.0  # how much longer than the traffic that it saves the computation of something again may take
EVEN = 1e-3  # times that differ less are the same
LARGE = 10  # groups of more nodes are made of two that were built before, where there are such
REACH = 32  # groups of more nodes are made in no other way: building one from its nodes would take too long
SEED = 3  # the size of the largest groups whose refusal is taken to hold for all larger ones
NO_PLAN = 1.0  # seconds that a kernel is taken to need where no schedule takes it


class Candidates:
    """The groups of some nodes, each built and judged once.

    `kept` are buffers that stay in device memory whoever reads them; `barred` the sets that may not be joined.
    """

    def __init__(self, nodes: Sequence[Node], env: Trial, kept: frozenset[str], barred: Sequence[Barred] = ()) -> None:
        self.nodes, self.env, self.kept, self.barred = nodes, env, kept, tuple(barred)
        self.graph = search_graph(nodes, env)
        self.masks = Components([sum(1 << m for m in after) for after in self.graph.after], self.graph.links)
        self.order = self._order()
        self.windowed = windowed(nodes, kept)
        self.users: dict[str, int] = defaultdict(int)
        self.writers: dict[str, int] = defaultdict(int)
        for n, node in enumerate(nodes):
            for name in node.reads:
                self.users[name] |= 1 << n
            for name in node.writes:
                self.users[name] |= 1 << n
                self.writers[name] |= 1 << n
        self.size_of: dict[str, int] = {}
        self.lives: dict[int, frozenset[str]] = {}
        self.borders: dict[int, int] = {}
        self.tied: tuple[int, ...] = ()
        self.flow = [a | b for a, b in zip(self.masks.after, self.masks.before, strict=True)]
        self.groups: dict[int, Group | Cause] = {}
        self.built: dict[int, list[int]] = defaultdict(list)  # the masks of groups by their size
        self.plans: dict[int, Plan | Refusal] = {}
        self.logs: dict[int, tuple[Made, ...]] = {}  # the ids that finishing a group made
        self.ids: dict[int, dict[str, str]] = {}  # of groups that were carried out, their ids by those of the trial
        self.asked: list[Group] = []  # those that `plans` and `logs` know by their ids, kept alive
        self.turned: set[int] = set()
        self.refused: list[int] = []
        self.probed: set[int] = set()
        self.slow: dict[int, float] = {}
        self.alone: dict[int, tuple[int, float] | None] = {}

    def _order(self) -> dict[int, int]:
        """A rank for each node: an order in which they can run, by structure where several can."""
        waiting = [m.bit_count() for m in self.masks.before]
        ready = [n for n, count in enumerate(waiting) if not count]
        rank: dict[int, int] = {}
        while ready:
            ready.sort(key=lambda n: (self.nodes[n].key, n), reverse=True)
            n = ready.pop()
            rank[n] = len(rank)
            for m in bits(self.masks.after[n]):
                waiting[m] -= 1
                if not waiting[m]:
                    ready.append(m)
        return rank

    def tie(self, masks: Sequence[int]) -> None:
        """Make groups that hold a part only of one of these sets so dear that the search avoids them."""
        self.tied = tuple(masks)

    def _torn(self, mask: int) -> int:
        """How many nodes of tied sets a group lacks."""
        return sum((tied & ~mask).bit_count() for tied in self.tied if tied & mask)

    # -- questions ----------------------------------------------------------------------------------------------------

    def cost(self, group: frozenset[int]) -> float | None:
        """The seconds that a group takes as one kernel; None where it cannot be one."""
        mask = sum(1 << n for n in group)
        if torn := self._torn(mask):
            return torn * NO_PLAN
        if self._hopeless(mask) or (len(group) > REACH and mask not in self.groups and self._known(mask) is None):
            return None
        plan = self.plan(mask)
        if isinstance(plan, Plan):
            if len(group) > 2 and plan.cost.seconds > sum(self.seconds(1 << n) for n in group):
                self._slow(mask)
            return plan.cost.seconds
        if len(group) > SEED:
            self._learn(mask)
        return None if len(group) > 1 else NO_PLAN

    def least(self, group: frozenset[int]) -> float:
        """Seconds that no kernel for the group should stay below: one launch, the arrays that cross its border once, and
        what its longest part takes beside its traffic."""
        mask = sum(1 << n for n in group)
        if torn := self._torn(mask):
            return torn * NO_PLAN
        if self._hopeless(mask):
            return INFINITE
        alone = [self._alone(n) for n in group]
        if None in alone:
            return 0.0
        known = [one for one in alone if one is not None]
        device = self.env.device
        memory = min(self.border(mask), sum(size for size, _ in known)) / device.bandwidth
        slow = [seconds for pair, seconds in self.slow.items() if pair & ~mask == 0]
        return max(device.graph_launch + max(memory, *(beside for _, beside in known)), *slow, 0.0)

    def _alone(self, n: int) -> tuple[int, float] | None:
        """The bytes that a kernel moves by itself, and what it takes whatever crosses its border; None without a plan."""
        if n not in self.alone:
            plan = self.plan(1 << n)
            self.alone[n] = (plan.cost.bytes, self._beside(n, plan.cost)) if isinstance(plan, Plan) else None
        return self.alone[n]

    def _beside(self, n: int, cost: Cost) -> float:
        """Seconds of a kernel that are there whatever crosses its border: all of a recurrence, else the latency of small
        kernels and the work."""
        rest = cost.seconds - cost.launch - cost.bytes / self.env.device.bandwidth
        return rest if self.nodes[n].ordered else max(cost.compute, min(rest, self.env.device.latency))

    def known(self, mask: int) -> Plan | Refusal | None:
        """What the schedules said of a group, if they were asked."""
        group = self.groups.get(mask)
        return self.plans.get(id(group)) if isinstance(group, Group) else None

    def reads(self, mask: int) -> set[str]:
        """The buffers that a group reads."""
        return {b for n in bits(mask) for b in self.nodes[n].reads}

    def between(self, first: int, second: int) -> list[str]:
        """The buffers that one group computes and the other reads, in order."""
        found = [name for a, b in ((first, second), (second, first)) for n in bits(a) for name in self.nodes[n].writes
                 if self.users[name] & b]  # fmt: skip
        return list(dict.fromkeys(found))

    def depends(self, first: int, second: int) -> bool:
        """Whether one of two groups reads what the other computes."""
        return bool(self.between(first, second))

    # Most refusals of a large group come from two kernels in it that no third can reconcile. Whether there are such is
    # asked when a large group is refused; groups that hold them are not asked about again.

    def _hopeless(self, mask: int) -> bool:
        """Whether a group holds a smaller one that was refused."""
        return any(seed & ~mask == 0 and seed != mask for seed in self.refused)

    def _slow(self, mask: int) -> None:
        """Look for what makes a group with a recurrence slow: a kernel in step with it that was faster by itself."""
        for pair in self._seeds(mask, 2):
            if pair not in self.probed and any(self.nodes[n].ordered for n in bits(pair)):
                self.probed.add(pair)
                plan = self.plan(pair)
                if isinstance(plan, Plan) and plan.cost.seconds > sum(self.seconds(1 << n) for n in bits(pair)):
                    self.slow[pair] = plan.cost.seconds - plan.cost.bytes / self.env.device.bandwidth

    def _learn(self, mask: int) -> None:
        """Look for pairs in a refused group that are refused, or triples around an elementwise nest."""
        if self._hopeless(mask):
            return
        for size in (2, SEED):
            for seed in self._seeds(mask, size):
                if seed not in self.probed:
                    self.probed.add(seed)
                    if not isinstance(self.plan(seed), Plan):
                        self.refused.append(seed)
            if self._hopeless(mask):
                return

    def _seeds(self, mask: int, size: int) -> list[int]:
        """Neighbours in the graph of a group: two, or three of which the one in the middle is elementwise."""
        after, members = self.masks.after, sorted(bits(mask), key=self.order.__getitem__)
        pairs = [(a, b) for a in members for b in sorted(bits(after[a] & mask), key=self.order.__getitem__)]
        if size == 2:
            found = [1 << a | 1 << b for a, b in pairs]
        else:
            found = [1 << a | 1 << b | 1 << c for a, b in pairs if self.nodes[b].pure for c in bits(after[b] & mask)]
        return [m for m in dict.fromkeys(found) if m != mask and self.masks.closed(m) == m and not self._open(m)]

    def _open(self, mask: int) -> bool:
        """Whether an elementwise nest of a group has readers outside: with those in the group it could be computed again
        where it is read."""
        live = self.live(mask) - self.kept
        inner = (n for n in bits(mask) if self.nodes[n].pure and self.masks.after[n] & mask)
        return any(name in live for n in inner for name in self.nodes[n].writes)

    def border(self, mask: int) -> int:
        """The bytes that cross the border of a group: each array from outside read once, each live one written once."""
        found = self.borders.get(mask)
        if found is None:
            found = sum(self.bytes(b) for b in self.reads(mask) if not self.writers[b] & mask)
            found += sum(self.bytes(b) for b in self.live(mask) if self.writers[b] & mask)
            self.borders[mask] = found
        return found

    def seconds(self, mask: int) -> float:
        """The time of a group: by its plan where that is known, else by what the group saves of its members' times."""
        plan = self.known(mask)
        if isinstance(plan, Plan):
            return plan.cost.seconds
        if mask & (mask - 1) == 0:
            return self.cost(frozenset(bits(mask))) or 0.0
        device, members = self.env.device, list(bits(mask))
        saved = sum(self.border(1 << n) for n in members) - self.border(mask)
        apart = sum(self.seconds(1 << n) for n in members)
        return max(device.graph_launch, apart - saved / device.bandwidth - device.graph_launch * (len(members) - 1))

    def bytes(self, name: str) -> int:
        """The bytes of a buffer."""
        found = self.size_of.get(name)
        if found is None:
            buffer = self.env.buffers[name]
            found = buffer.dtype.itemsize * prod(max(0, self.env.value(p)) for p in buffer.shape)
            self.size_of[name] = found
        return found

    def live(self, mask: int) -> frozenset[str]:
        """The buffers that must be in memory after the group has run."""
        found = self.lives.get(mask)
        if found is None:
            names = {name for n in bits(mask) for name in (*self.nodes[n].reads, *self.nodes[n].writes)}
            found = frozenset(name for name in names if name in self.kept or self.users[name] & ~mask)
            self.lives[mask] = found
        return found

    def plan(self, mask: int) -> Plan | Refusal | Cause:
        """The plan for a group, or what is in its way."""
        group = self.group(mask)
        if isinstance(group, Cause):
            return group
        found = self.judge(group)
        if isinstance(found, Refusal) and group.way is not None and mask not in self.turned:
            self.turned.add(mask)
            other = self._built(mask, [p for p in list(self.parts(mask))[1:] if self._copies(*p)])
            if isinstance(other, Group) and isinstance(plan := self.judge(other), Plan):
                self.groups[mask], found = other, plan
        return found

    def obstacle(self, a: int, b: int) -> Cause | None:
        """What keeps two groups from being one kernel; None where it would only be slower."""
        if any(bar.nodes & ~(a | b) == 0 for bar in self.barred):
            return next(bar.cause for bar in self.barred if bar.nodes & ~(a | b) == 0)
        first, second = (a, b) if self.masks.needs(b) & a else (b, a)
        direct = self.by(merge, first, second)
        cause = direct if isinstance(direct, Cause) else direct.made.cause
        if cause is not None and a | b not in self.groups:
            return cause
        plan = self.plan(a | b)
        if isinstance(plan, Plan):
            return None
        why = plan if isinstance(plan, Cause) else plan.cause
        inner = None if isinstance(direct, Cause) else direct.made.apart
        return cause or (why if inner is None else because(inner, why))

    def judge(self, group: Group) -> Plan | Refusal:
        """What the schedules say of a group, finished."""
        if id(group) not in self.plans:
            self.asked.append(group)
            live, env = self.live(group.mask), surroundings(self.env, group.extras)
            start = len(self.env.log)
            kernel, buffers = finish(group.made.kernel, env, live)
            self.logs[id(group)] = tuple(self.env.log[start:])
            self.plans[id(group)] = accepts(kernel, {**env.buffers, **buffers}, env, live)
        return self.plans[id(group)]

    def group(self, mask: int) -> Group | Cause:
        """A set of nodes as one kernel, or why it cannot be."""
        found = self.groups.get(mask)
        if found is None:
            waiting, first = [mask], self._first(mask)
            while first & (first - 1) and first not in self.groups:  # a large group is made from small ones upwards
                waiting.append(first)
                first = self._first(first)
            for some in reversed(waiting):
                self.groups[some] = self._group(some)
                if isinstance(self.groups[some], Group):
                    self.built[some.bit_count()].append(some)
            found = self.groups[mask]
        return found

    # -- building -----------------------------------------------------------------------------------------------------

    def _first(self, mask: int) -> int:
        """The first of the parts that a group is made of."""
        known = self._known(mask) if mask.bit_count() > LARGE else None
        return (known or next(self.parts(mask), (0, 0)))[0]

    def _group(self, mask: int) -> Group | Cause:
        if mask & (mask - 1) == 0:
            return Group(Merged(self.nodes[mask.bit_length() - 1].kernel, "vertical"), mask)
        for bar in self.barred:
            if bar.nodes & ~mask == 0:
                return bar.cause
        known = self._known(mask) if mask.bit_count() > LARGE else None
        found = None if known is None else self._built(mask, [known])
        return found if isinstance(found, Group) else self._built(mask, self.parts(mask))

    def _known(self, mask: int) -> tuple[int, int] | None:
        """Two groups that were built before and make a large one, the greater of them as large as there is."""
        size = mask.bit_count()
        for count in range(size - 1, (size - 1) // 2, -1):
            for some in self.built[count]:
                rest = mask & ~some
                if some & ~mask == 0 and isinstance(self.groups.get(rest), Group):
                    if not self.masks.needs(some) & rest:
                        return some, rest
                    if not self.masks.needs(rest) & some:
                        return rest, some
        return None

    def _built(self, mask: int, parts: Iterable[tuple[int, int]]) -> Group | Cause:
        """The group of one of the pairs of parts: the first whose loops join, or else the best."""
        groups: list[Group] = []
        why: Cause | None = None
        for first, second in parts:
            found = list(self.ways(first, second))
            here = [g for g in found if isinstance(g, Group)]
            groups += here
            why = why or next((c for c in found if isinstance(c, Cause)), None)
            if any(g.made.cause is None for g in here):
                break
        if not groups:
            return why or Cause("unrelated", "the kernels do not belong together")
        whole = [g for g in groups if g.made.cause is None]
        if len(groups) > len(whole) > 0 and any(isinstance(self.judge(g), Plan) for g in whole):
            groups = whole  # nothing that shares no loops is better
        return groups[0] if len(groups) == 1 else min(groups, key=self._rank)

    def _rank(self, group: Group) -> tuple[bool, bool, float]:
        """Of several ways that one is best which has a plan, shares loops, and takes the least time; of two that take the
        same, the one that leaves no loop around the reader's."""
        plan = self.judge(group)
        seconds = plan.cost.seconds if isinstance(plan, Plan) else 0.0
        if group.way is merge:
            seconds *= 1 + EVEN
        return isinstance(plan, Refusal), group.made.cause is not None, seconds

    def parts(self, mask: int) -> Iterator[tuple[int, int]]:
        """The ways to split a group in two connected parts: at an array that is read in windows; one a single node: the last
        that nothing in the group needs, then the first that needs nothing there; first those whose parts hang together
        by more than a shared input, since arrays that pass from one to the other pair more indices."""
        members = sorted(bits(mask), key=self.order.__getitem__)
        for n in (m for m in members if m in self.windowed):
            given = mask & (self.masks.needs(1 << n) | 1 << n)
            if given != mask and all(len(list(self.masks.pieces(part))) == 1 for part in (given, mask & ~given)):
                yield given, mask & ~given
                break
        ends = [(n, False) for n in reversed(members) if not self.masks.after[n] & mask]
        starts = [(n, True) for n in members if not self.masks.before[n] & mask] if len(members) > 2 else []
        found: list[tuple[int, bool]] = []
        for along in (self.flow, self.masks.near):
            for some in (ends, starts):
                rests = ((n, first, mask & ~(1 << n)) for n, first in some)
                one = next(((n, first) for n, first, rest in rests
                            if self.masks.grow(rest & -rest, along, rest) == rest), None)  # fmt: skip
                if one is not None and one not in found:
                    found.append(one)
        for n, first in found[:2] or [(members[-1], False)]:
            rest = mask & ~(1 << n)
            yield (1 << n, rest) if first else (rest, 1 << n)

    def ways(self, first: int, second: int) -> Iterator[Group | Cause]:
        """The group of two parts, in each way that there is."""
        for part in (first, second):
            found = self.group(part)
            if isinstance(found, Cause):
                yield found
                return
        made = self.by(merge, first, second)
        yield made
        if isinstance(made, Cause) or made.made.cause is not None or not self._aligned(made):
            if not self.depends(first, second):
                yield self.by(abreast, first, second)
            yield from self.again(first, second)

    def _aligned(self, made: Group) -> bool:
        """Whether the joint loop has all the indices that it could have: where it has fewer, and where a cheap producer
        has fewer than its reader, another way may serve better than sharing loops."""
        a, b = made.first, made.second
        assert a is not None and b is not None
        ranks = rank(a.made.kernel), rank(b.made.kernel)
        alone = a.way is None and self.nodes[a.mask.bit_length() - 1].pure
        return rank(made.made.kernel) >= min(ranks) and not (alone and ranks[0] < ranks[1])

    def _copies(self, first: int, second: int) -> bool:
        """Whether the first part is an elementwise nest that nothing but the second reads."""
        node, live = self.nodes[first.bit_length() - 1], self.live(first | second)
        return first & (first - 1) == 0 and node.pure and all(name not in live for name in node.writes)

    def again(self, first: int, second: int) -> Iterator[Group | Cause]:
        """The group with what the first part computes done again where it is read, or in the halo of a tile."""
        live = self.live(first | second)
        if any(name in live for n in bits(first) for name in self.nodes[n].writes):
            return
        if first & (first - 1) == 0 and self.nodes[first.bit_length() - 1].pure:
            yield self.by(inline, first, second)
        else:
            yield self.by(instance, first, second)
        yield self.by(window, first, second)

    def by(self, way: Way, first: int, second: int) -> Group | Cause:
        """The group of two parts, joined in one way."""
        a, b = self.group(first), self.group(second)
        assert isinstance(a, Group) and isinstance(b, Group)
        extras = (*a.extras, *b.extras)
        start = len(self.env.log)
        made = way(a.made.kernel, b.made.kernel, surroundings(self.env, extras), self.live(first | second))
        if isinstance(made, Cause):
            return made
        if made.recomputed and (cause := self._too_much(made, first)) is not None:
            return cause
        extras += (made,) if made.sizes or made.buffers else ()
        return Group(made, first | second, a, b, way, extras, tuple(self.env.log[start:]))

    def _too_much(self, made: Merged, first: int) -> Cause | None:
        """Why computing something again is not worth what it saves."""
        device = self.env.device
        saved = 2 * sum(self.bytes(name) for n in bits(first) for name in self.nodes[n].writes)
        limit = WORTH * device.fp32 * (saved / device.bandwidth + device.launch)
        if made.recomputed <= limit:
            return None
        return Cause("recompute", "computing it again where it is read costs more than the memory traffic it saves",
                     lift="fewer readers, or a cheaper definition", needed=made.recomputed, limit=int(limit),
                     unit="operations")  # fmt: skip

    # -- results ------------------------------------------------------------------------------------------------------

    def rebuild(self, group: Group, kernels: Sequence[Kernel], env: Env) -> tuple[Kernel, tuple[Merged, ...]]:
        """The group built again in the same steps, of other copies of the nodes' kernels and with ids from another
        environment: those of the trials are left out."""
        ids = self._again(group, kernels, env)
        if ids is not None:
            self.ids[group.mask] = ids
            return with_ids(group.made.kernel, ids), ()
        done: list[tuple[Kernel, tuple[Merged, ...]]] = []
        waiting: list[tuple[Group, bool]] = [(group, False)]
        while waiting:
            some, parts = waiting.pop()
            if some.way is None or some.first is None or some.second is None:
                done.append((kernels[some.mask.bit_length() - 1], ()))
            elif not parts:
                waiting += [(some, True), (some.second, False), (some.first, False)]
            else:
                (b, right), (a, left) = done.pop(), done.pop()
                made = some.way(a, b, surroundings(env, (*left, *right)), self.live(some.mask))
                assert isinstance(made, Merged)
                done.append((made.kernel, (*left, *right, *((made,) if made.sizes or made.buffers else ()))))
        return done[0]

    def _again(self, group: Group, kernels: Sequence[Kernel], env: Env) -> dict[str, str] | None:
        """The ids that building a group again would make, by those of the trial; None where it must be built again."""
        if group.extras or any(kernels[n] != self.nodes[n].kernel for n in bits(group.mask)):
            return None
        steps: list[Step] = []
        waiting: list[Group | None] = [group]
        while waiting:
            some = waiting.pop()
            if some is not None:
                steps.append((some.log, some.made.kernel))
                waiting += [some.first, some.second]
        return again(steps[::-1], env)

    def path(self, mask: int) -> list[Group]:
        """The groups that are made one after the other to make a group."""
        found: list[Group] = []
        waiting: list[Group | Cause | None] = [self.group(mask)]
        while waiting:
            group = waiting.pop()
            if isinstance(group, Group) and group.way is not None:
                found.append(group)
                waiting += [group.first, group.second]
        return found[::-1]
