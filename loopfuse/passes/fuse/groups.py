"""Sets of kernels as one: what they were made of, and what keeps kernels apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel
from loopfuse.passes.fuse.trial import Made
from loopfuse.passes.merge import Merged

Way = Callable[[Kernel, Kernel, Env, frozenset[str]], Merged | Cause]


@dataclass(frozen=True)
class Group:
    """A set of kernels as one: the mask of its nodes, of which two groups it was made, and in which way.

    `extras` are the joins in it that brought sizes of tiles and local buffers with them; `log` the ids that this join made.
    """

    made: Merged
    mask: int
    first: Group | None = None
    second: Group | None = None
    way: Way | None = None
    extras: tuple[Merged, ...] = ()
    log: tuple[Made, ...] = ()

    @property
    def pair(self) -> tuple[int, int]:
        """The masks of the two groups that it was made of."""
        return (self.first.mask, self.second.mask) if self.first and self.second else (0, 0)


@dataclass(frozen=True, slots=True)
class Barred:
    """A set of nodes that may not be in one group, and why."""

    nodes: int
    cause: Cause


def because(apart: Cause, limit: Cause) -> Cause:
    """Why loops that stay two inside one kernel keep it from being one: the dependence, and the limit that it meets."""
    detail = "; ".join(part for part in (apart.detail, f"as one kernel: {limit.message}") if part)
    return replace(apart, detail=detail, needed=limit.needed, limit=limit.limit, unit=limit.unit)
