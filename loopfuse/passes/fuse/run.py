"""The pass: which kernels become one, decided by cost; and the records of what was decided.

First elementwise chains move in with their readers, then what the user asks for is joined, then the search partitions
what is left. All of that is planned on trial copies; the decisions, in order, are then carried out one by one, as many
as are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from loopfuse.analysis.cost import Memory, memory
from loopfuse.analysis.env import Env, environment
from loopfuse.decisions import Cause, Decision
from loopfuse.diag import UserError
from loopfuse.ir import Kernel, Program
from loopfuse.passes.base import Options, Outcome, Remark, Steps, steps
from loopfuse.passes.contract import pinned
from loopfuse.passes.fuse import records
from loopfuse.passes.fuse.candidates import Candidates
from loopfuse.passes.fuse.chains import Chains
from loopfuse.passes.fuse.directives import splits
from loopfuse.passes.fuse.duplicate import Spread, copied, free, spread
from loopfuse.passes.fuse.finish import finish
from loopfuse.passes.fuse.graph import Node, kernel_keys
from loopfuse.passes.fuse.groups import Barred, Group
from loopfuse.passes.fuse.search import Effort, search
from loopfuse.passes.fuse.trial import again, plan_with_ids, trial, with_ids
from loopfuse.passes.fuse.wishes import Wish, Wishes, wishes
from loopfuse.passes.merge import Merged
from loopfuse.rewrite import free_names
from loopfuse.schedule import accepts
from loopfuse.schedule.plan import Plan, Refusal

LEAST_BUDGET, BUDGET = 96, 4  # groups that may be costed in one component, and that many for each kernel
CUT = "the search among {} kernels ended at its limit: the best groups that it had found by then were taken"


def fuse(program: Program, options: Options) -> Outcome:
    """Join kernels where that is legal and gains by the cost model.

    Needs the normal form (each nest a kernel); promises the same bits, kernels `k1`, `k2`, ... in an order in which they
    can run, and every decision as a record. Arrays between joined kernels stay until they are contracted.
    Raises `UserError` LF0621 for a pragma that cannot be followed, LF0622 for such a decision of a file.
    """
    return _Fusion(program, options).outcome()


@dataclass(frozen=True, slots=True)
class _Planned:
    """What shall be done: the groups of the search, and the accepted decisions of each stage in order.

    First `free` definitions go into their readers, then nests move in along `chains`, then the `pairs` of groups are
    joined, then what stayed alone is `spread`. `apart` are the decisions about groups that stay two, `remarks` what the
    search has to say.
    """

    found: Candidates
    groups: tuple[int, ...]
    pairs: list[Group]
    spread: list[Spread]
    free: list[Decision]
    chained: list[Decision]
    joined: list[Decision]
    copied: list[Decision]
    apart: list[Decision]
    remarks: list[Remark]

    @property
    def accepted(self) -> list[Decision]:
        """All that shall be done, in order."""
        return [*self.free, *self.chained, *self.joined, *self.copied]


class _Fusion:
    """One run of the pass."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program, self.options = program, options
        self.env = environment(program, options.device, options.sizes)
        self.nests = keyed([Node(k, (n,), b"") for n, k in enumerate(program.kernels)], self.env)
        self.wishes: Wishes = wishes(program, self.nests, options)
        self.kept = frozenset(self.wishes.pinned | {b.id for b in program.buffers if b.role != "temp"})
        self.held = frozenset(k for w in (*self.wishes.apart, *self.wishes.together) for k in w.kernels)

    def outcome(self) -> Outcome:
        """Plan, then do as much as is allowed."""
        planned = self.plan()
        done, decisions = self.allowed(planned)
        kernels, extras = self.build(planned, done)
        program = self.assemble(list(kernels.values()), extras)
        numbered = tuple(replace(d, number=k) for k, d in enumerate((*decisions, *planned.apart), 1))
        remarks = (*self.wishes.remarks, *planned.remarks)
        return Outcome(program, remarks, numbered, self.notes(program, planned, list(kernels)))

    # -- planning -----------------------------------------------------------------------------------------------------

    def chains(self, nests: Sequence[Node]) -> Chains:
        """The chains of elementwise nests."""
        barred = [frozenset(n for n, nest in enumerate(nests) if not w.kernels.isdisjoint(nest.members))
                  for w in self.wishes.apart]  # fmt: skip
        return Chains(nests, self.env, self.kept, barred)

    def plan(self) -> _Planned:
        """What shall be done, found out on trial copies."""
        env = trial(self.env)
        nests, frees = free(self.nests, env, self.kept, self.held)
        chains = self.chains(nests)
        nodes = keyed(chains.build(chains.steps, env), self.env)
        found = Candidates(nodes, env, self.kept, self._barred(nodes))
        forced = self._forced(found)
        found.tie(forced)
        budget = max(LEAST_BUDGET, BUDGET * len(nodes))
        effort = Effort(self.options.restarts, self.options.seed, self.options.exhaustive, budget)
        part = search(found.graph, found.cost, effort, found.least)
        groups = tuple(found.masks.schedule([sum(1 << n for n in g) for g in part.groups]))
        pairs = [pair for mask in groups for pair in found.path(mask)]
        copies = spread(found, groups)
        return _Planned(
            found, groups, pairs, copies,
            [records.freed(one, self.env, self._bytes(one.node.writes[0])) for one in frees],
            [records.chained(s, nests, self.env, self._bytes(s.buffer)) for s in chains.steps],
            [records.joined(found, g, any(all(m & part for part in g.pair) for m in forced)) for g in pairs],
            [records.copied(found, one) for one in copies],
            self._apart(found, [g for g in groups if all(g != one.group for one in copies)]),
            [Remark(CUT.format(len(nests)), missed=True) for nests in part.cut],
        )  # fmt: skip

    def _bytes(self, name: str) -> int:
        buffer = self.env.buffers[name]
        total = buffer.dtype.itemsize
        for p in buffer.shape:
            total *= max(0, self.env.value(p))
        return total

    def _barred(self, nodes: Sequence[Node]) -> list[Barred]:
        return [Barred(self._mask(nodes, wish), wish.cause) for wish in self.wishes.apart]

    @staticmethod
    def _mask(nodes: Sequence[Node], wish: Wish) -> int:
        """The nodes that hold the kernels of a wish."""
        return sum(1 << n for n, node in enumerate(nodes) if not wish.kernels.isdisjoint(node.members))

    def _forced(self, found: Candidates) -> list[int]:
        """The groups that the user wants, with what lies between their members."""
        made: list[int] = []
        for wish in self.wishes.together:
            mask = found.masks.closed(self._mask(found.nodes, wish))
            if mask & (mask - 1) == 0:
                continue
            plan = found.plan(mask)
            if not isinstance(plan, Plan):
                raise UserError(wish.refused(self._in_the_way(found, mask, plan)))
            made.append(mask)
        return made

    @staticmethod
    def _in_the_way(found: Candidates, mask: int, plan: Refusal | Cause) -> Cause:
        """Why a wanted group cannot be: the dependence between its parts, where there is one."""
        members = sorted(
            (1 << n for n in range(len(found.nodes)) if mask >> n & 1), key=lambda m: found.order[m.bit_length() - 1]
        )
        for a, b in ((a, b) for k, a in enumerate(members) for b in members[k + 1 :] if found.masks.touch(a, b)):
            cause = found.obstacle(a, b)
            if cause is not None:
                return cause
        return plan.cause if isinstance(plan, Refusal) else plan

    def _apart(self, found: Candidates, groups: Sequence[int]) -> list[Decision]:
        """Why final groups that share a buffer are not one."""
        made: list[Decision] = []
        for k, a in enumerate(groups):
            for b in groups[k + 1 :]:
                if not found.masks.touch(a, b):
                    continue
                if not found.masks.acyclic([*(g for g in groups if g not in (a, b)), a | b]):
                    why: Cause | None = Cause("cycle", "something between them needs the one and is needed by the other, "
                                              "and is a kernel of its own", spans=records.spans(found, a, b))  # fmt: skip
                else:
                    why = found.obstacle(a, b)
                made.append(records.apart(found, a, b, why))
        return made

    # -- doing --------------------------------------------------------------------------------------------------------

    def allowed(self, planned: _Planned) -> tuple[int, list[Decision]]:
        """How many of the fusions are done, in order, and their records."""
        counter: Steps = steps(self.options, "fuse")
        most = self.options.decide_max
        done = 0
        made: list[Decision] = []
        for d in planned.accepted:
            text = f"fuse {records.listed(d.a)} with {records.listed(d.b)}"
            if (most is None or done < most) and done == len(made) and counter.take(text):
                done += 1
                made.append(d)
            else:
                made.append(replace(d, verdict="skipped", reason="the limit on the number of decisions was reached"))
        return done, made

    def build(self, planned: _Planned, done: int) -> tuple[dict[int, Kernel], list[Merged]]:
        """The kernels after the first decisions, by their groups (by negative numbers where there are none yet)."""
        left = iter(range(done))
        nests, _ = free(self.nests, self.env, self.kept, self.held, lambda: next(left, None) is not None)
        chains = self.chains(nests)
        steps = chains.steps[: max(0, done - len(planned.free))]
        nodes = chains.build(steps, self.env)
        done -= len(planned.free) + len(planned.chained)
        if done < 0 or len(steps) < len(chains.steps):
            return {-k: n.kernel for k, n in enumerate(nodes, 1)}, []
        found = planned.found
        originals = [n.kernel for n in nodes]
        extras: list[Merged] = []
        kernels: dict[int, Kernel] = {}
        groups = {g.mask: g for g in self._cut(planned, {id(g) for g in planned.pairs[:done]})}
        for mask in found.masks.schedule(list(groups)):
            kernels[mask], new = found.rebuild(groups[mask], originals, self.env)
            extras += new
        copied(kernels, planned.spread[: max(0, done - len(planned.pairs))], found, self.env)
        return kernels, extras

    @staticmethod
    def _cut(planned: _Planned, joined: set[int]) -> list[Group]:
        """The groups as far as they are joined; `joined` holds the ids of groups."""
        done: list[Group] = []
        waiting: list[Group | Cause | None] = [planned.found.group(mask) for mask in planned.groups]
        while waiting:
            group = waiting.pop()
            assert isinstance(group, Group)
            if group.way is None or id(group) in joined:
                done.append(group)
            else:
                waiting += [group.first, group.second]
        return done

    def assemble(self, kernels: Sequence[Kernel], extras: Sequence[Merged]) -> Program:
        """The program with these kernels, numbered; temporaries that none accesses are gone."""
        program = self.program
        named = tuple(k if k.id == f"k{n}" else replace(k, id=f"k{n}") for n, k in enumerate(kernels, 1))
        if len(named) == len(program.kernels) and all(a is b for a, b in zip(named, program.kernels, strict=True)):
            return program
        used: set[str] = set()
        for kernel in named:
            names = free_names(kernel.body)
            used |= names.loads | names.stores
        table = {b.id: b for b in program.buffers} | {b.id: b for made in extras for b in made.buffers}
        buffers = tuple(b for b in table.values() if b.role != "temp" or b.id in used)
        sizes = tuple(s for made in extras for s in made.sizes)
        return replace(program, kernels=named, buffers=buffers, sizes=(*program.sizes, *sizes))

    def notes(self, program: Program, planned: _Planned, groups: Sequence[int]) -> dict[str, Any]:
        """What faces show: the plans by kernel, refusals of kernels that have none, the sizes, traffic and peak memory."""
        env = environment(program, self.options.device, self.options.sizes)
        plans: dict[str, Plan] = {}
        refusals: dict[str, Refusal] = {}
        for kernel, mask, live in zip(program.kernels, groups, lives(program, self.kept), strict=True):
            plan = self._known(planned.found, mask, kernel, live, env)
            if plan is None:
                done, buffers = finish(kernel, env, live)
                plan = accepts(done, {**env.buffers, **buffers}, env, live)
            if isinstance(plan, Plan):
                plans[kernel.id] = plan
            else:
                refusals[kernel.id] = plan
        return {"plans": plans, "refusals": refusals, "sizes": dict(env.sizes), "assumed": env.assumed,
                "moved": Moved(self.program, self.env, program, env), "splits": splits(program)}  # fmt: skip

    @staticmethod
    def _known(found: Candidates, mask: int, kernel: Kernel, live: frozenset[str], env: Env) -> Plan | Refusal | None:
        """The answer of the schedules about a group, where the kernel is the one that they were asked about, but for
        ids."""
        group = found.groups.get(mask) if mask > 0 else None
        if not isinstance(group, Group) or found.live(mask) != live:
            return None
        plan = found.plans.get(id(group))
        if replace(group.made.kernel, id=kernel.id) == kernel:
            return plan
        ids = found.ids.get(mask)
        if (
            ids is None
            or not isinstance(plan, Plan)
            or plan.guards
            or with_ids(group.made.kernel, ids).body != kernel.body
        ):
            return None
        more = again([(found.logs[id(group)], group.made.kernel)], env)
        return None if more is None else plan_with_ids(plan, ids | more)


@dataclass(frozen=True)
class Moved:
    """What the program moves through memory and holds there, before and after, worked out when it is asked for."""

    old: Program
    old_env: Env
    new: Program
    new_env: Env

    @cached_property
    def before(self) -> Memory:
        """Of the program that came in."""
        return memory(self.old, self.old_env)

    @cached_property
    def after(self) -> Memory:
        """Of the program with its kernels joined and their temporaries contracted."""
        env, done = self.new_env, []
        table = dict(env.buffers)
        kept = frozenset(b.id for b in self.new.buffers if b.role != "temp") | pinned(self.new)
        for kernel, live in zip(self.new.kernels, lives(self.new, kept), strict=True):
            made, buffers = finish(kernel, env, live)
            table |= buffers
            done.append(made)
        return memory(replace(self.new, kernels=tuple(done), buffers=tuple(table.values())), env)


def lives(program: Program, kept: frozenset[str]) -> list[frozenset[str]]:
    """For each kernel the buffers that must be in memory after it."""
    used: list[frozenset[str]] = []
    for kernel in program.kernels:
        names = free_names(kernel.body)
        used.append(names.loads | names.stores)
    count: dict[str, int] = {}
    for found in used:
        for name in found:
            count[name] = count.get(name, 0) + 1
    return [frozenset(n for n in found if n in kept or count[n] > 1) for found in used]


def keyed(nodes: Sequence[Node], env: Env) -> list[Node]:
    """The nodes with keys."""
    keys = kernel_keys([n.kernel for n in nodes], env)
    return [replace(node, key=key) for node, key in zip(nodes, keys, strict=True)]
