"""Definitions computed again by each of their readers: those that cost nothing, before the search, and those that stayed
alone, after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel, Load, Loop, Op, Store
from loopfuse.passes.fuse.candidates import NO_PLAN, Candidates
from loopfuse.passes.fuse.finish import finish
from loopfuse.passes.fuse.graph import Node
from loopfuse.passes.merge import Merged, inline
from loopfuse.passes.remat import cost
from loopfuse.rewrite import exprs, subexprs, walk
from loopfuse.schedule import accepts
from loopfuse.schedule.plan import Plan

FREE = 8  # operations that a definition without arrays may take to be computed again wherever it is read


@dataclass(frozen=True, slots=True)
class Free:
    """A definition that goes into its readers: its node, and theirs."""

    node: Node
    readers: tuple[Node, ...]


def free(nodes: Sequence[Node], env: Env, kept: frozenset[str], held: frozenset[int],
         may: Callable[[], bool] = lambda: True) -> tuple[list[Node], list[Free]]:  # fmt: skip
    """The nodes once definitions that read no array and take a few operations (a mask, a ramp), and arrays in a wider type,
    stand in their readers.

    Nests at positions in `held` stay. `may` is asked before each.
    """
    found: list[Free] = []
    current = dict(enumerate(nodes))
    for at in range(len(nodes)):
        node = current[at]
        if not _free(node, env, kept) or held & set(node.members):
            continue
        readers = [k for k, n in current.items() if n is not node and not n.reads.isdisjoint(node.writes)]
        if len(readers) < 2 and _widened(node):
            continue  # it moves in with its reader
        made = [inline(node.kernel, current[k].kernel, env, frozenset()) for k in readers]
        if not made or any(isinstance(m, Cause) for m in made) or not may():
            continue
        found.append(Free(node, tuple(current[k] for k in readers)))
        for k, m in zip(readers, made, strict=True):
            assert isinstance(m, Merged)
            current[k] = Node(m.kernel, current[k].members, current[k].key)
        del current[at]
    return list(current.values()), found


def _free(node: Node, env: Env, kept: frozenset[str]) -> bool:
    if not node.pure or any(name in kept for name in node.writes) or len(node.writes) != 1:
        return False
    parts = [e for s in walk(node.kernel.body) for e in exprs(s)]
    arrays = any(isinstance(n, Load) and env.buffers[n.buffer].shape for n in subexprs(*parts))
    return (not arrays and cost(*parts) <= FREE) or _widened(node)


def _widened(node: Node) -> bool:
    """Whether a definition is an array's elements as they are, in a wider type: reading them costs no more."""
    loop = node.kernel.body[0]
    assert isinstance(loop, Loop)
    store = loop.body[-1]
    if (
        len(loop.body) != 1
        or not isinstance(store, Store)
        or not isinstance(store.value, Op)
        or store.value.op != "cast"
    ):
        return False
    load = store.value.args[0]
    wider = store.value.dtype.is_float == load.dtype.is_float and store.value.dtype.bits >= load.dtype.bits
    return wider and isinstance(load, Load) and not any(load.modes) and load.subs == store.subs


# -- after the search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """A group of one definition that goes into the groups that read it; seconds before and after, operations added."""

    group: int
    readers: tuple[int, ...]
    before: float
    after: float
    recomputed: int


def spread(found: Candidates, groups: Sequence[int]) -> list[Spread]:
    """Definitions that stayed alone and are cheaper computed again by all their readers than written and read."""
    made: list[Spread] = []
    touched: set[int] = set()
    for group in groups:
        node = found.nodes[group.bit_length() - 1]
        if group & (group - 1) or not node.pure or group in touched or any(name in found.kept for name in node.writes):
            continue
        readers = [g for g in groups if g != group and not found.reads(g).isdisjoint(node.writes)]
        if not readers or touched.intersection(readers) or any(bar.nodes & group for bar in found.barred):
            continue
        one = _spread(found, group, readers)
        if one is not None:
            made.append(one)
            touched.update((group, *readers))
    return made


def _spread(found: Candidates, group: int, readers: Sequence[int]) -> Spread | None:
    node = found.nodes[group.bit_length() - 1]
    before = found.seconds(group) + sum(found.seconds(r) for r in readers)
    after, recomputed = 0.0, 0
    for reader in readers:
        target = found.group(reader)
        if isinstance(target, Cause):
            return None
        made = inline(node.kernel, target.made.kernel, found.env, found.live(reader))
        if isinstance(made, Cause):
            return None
        live = found.live(reader)
        kernel, buffers = finish(made.kernel, found.env, live)
        plan = accepts(kernel, {**found.env.buffers, **buffers}, found.env, live)
        if not isinstance(plan, Plan):
            return None
        after += plan.cost.seconds
        recomputed += made.recomputed
        if after >= min(before, NO_PLAN):
            return None
    return Spread(group, tuple(readers), before, after, recomputed)


def copied(kernels: dict[int, Kernel], done: Sequence[Spread], found: Candidates, env: Env) -> None:
    """Carry out some of the spreads on the final kernels, which are listed by group."""
    for one in done:
        source = kernels.pop(one.group)
        for reader in one.readers:
            made = inline(source, kernels[reader], env, found.live(reader))
            assert isinstance(made, Merged)
            kernels[reader] = replace(made.kernel, id=kernels[reader].id)
