"""Trial copies: surroundings whose new ids do not count, and what stands for those ids once a trial is carried out.

What a rewriting does never depends on names, so a kernel that was made in a trial is the one that would be made now but
for the ids that were new: made again in the same order, they are what the rewriting would have got.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import TypeVar

from loopfuse.analysis.env import Env
from loopfuse.ir import Kernel, Loop
from loopfuse.passes.merge import Merged
from loopfuse.passes.window import around
from loopfuse.rewrite import Fresh, rename, walk
from loopfuse.schedule.plan import Plan

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Made:
    """A new id: where it comes from; for an index (else None) the names that it had to differ from."""

    origin: str
    taken: frozenset[str] | None
    name: str


Step = tuple[Sequence[Made], Kernel]  # the ids that a rewriting made, and the kernel that it gave


class _Noted(Fresh):
    """Ids that are noted in the order in which they are made."""

    log: list[Made]

    def __call__(self, origin: str) -> str:
        """A new id that comes from `origin`."""
        name = super().__call__(origin)
        self.log.append(Made(origin, None, name))
        return name


@dataclass
class Trial(Env):
    """Surroundings of trials; `log` is all the ids that were made, in order."""

    log: list[Made] = field(default_factory=list)

    def index(self, origin: str, taken: Container[str]) -> str:
        """A name for a loop index, as in all surroundings."""
        name = super().index(origin, taken)
        self.log.append(Made(origin, frozenset(taken) if isinstance(taken, Iterable) else frozenset(), name))
        return name


def trial(env: Env) -> Trial:
    """A copy of the surroundings whose new ids do not count."""
    fresh = _Noted(replace(env.program, kernels=()))
    fresh.used, fresh.next, fresh.log = set(env.fresh.used), dict(env.fresh.next), []
    made = Trial(**{f.name: getattr(env, f.name) for f in fields(Env)})
    made.fresh, made.indices, made.log = fresh, set(env.indices), fresh.log
    return made


def again(steps: Sequence[Step], env: Env) -> dict[str, str] | None:
    """The ids that the same steps make in other surroundings, by those of the trial.

    None where an index that stays would get another name than in the trial: other steps might then follow; the
    surroundings are as they were.
    """
    used, count, indices = set(env.fresh.used), dict(env.fresh.next), set(env.indices)
    ids: dict[str, str] = {}
    for log, kernel in steps:
        gone: dict[str, str] = {}
        for one in log:
            if one.taken is None:
                ids[one.name] = env.fresh(one.origin)
                continue
            here = ids | gone
            name = env.index(one.origin, {here.get(n, n) for n in one.taken})
            if name != one.name:
                gone[one.name] = name
        if gone and any(d.id in gone for s in walk(kernel.body) if isinstance(s, Loop) for d in s.dims):
            env.fresh.used, env.fresh.next, env.indices = used, count, indices
            return None
    return ids


def with_ids(kernel: Kernel, ids: Mapping[str, str]) -> Kernel:
    """The kernel with other ids."""
    new = {old: name for old, name in ids.items() if old != name}
    return replace(kernel, body=rename(kernel.body, new)) if new else kernel


def plan_with_ids(plan: Plan, ids: Mapping[str, str]) -> Plan:
    """The plan of a kernel with other ids; it has no guards, which are text."""

    def named(table: Mapping[str, V]) -> dict[str, V]:
        return {ids.get(name, name): value for name, value in table.items()}

    return replace(
        plan, roles=named(plan.roles), tiles=named(plan.tiles), folds=named(plan.folds), place=named(plan.place)
    )


def surroundings(env: Env, extras: Sequence[Merged]) -> Env:
    """The surroundings of a kernel that some joins brought sizes and local buffers into."""
    return reduce(around, extras, env)
