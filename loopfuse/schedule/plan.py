"""What a schedule answers: a plan for a kernel, or a refusal that says why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loopfuse.decisions import Cause

Role = Literal["grid", "block", "warp", "lane", "vector", "register", "serial", "split"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on sizes under which the plan holds (`D <= 256`); `otherwise` says what runs where it does not."""

    text: str
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that is really launched: `main`, or the `finish` of a split reduction; blocks and threads a block.

    `times`: how often, one after the other (the steps of a recurrence).
    """

    what: Literal["main", "finish"]
    blocks: int
    threads: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kernel is estimated to take, by the roofline model. Times in seconds.

    `reads` and `writes` are bytes of device memory, `rereads` bytes that come from the cache; `flops` without, and
    `matrix_flops` with the matrix units; `special` counts special functions. `memory` and `compute` are the two times
    of the model, `launch` the launches. `in_flight` is bytes in flight a multiprocessor, `occupancy` a fraction. `ordinary`
    is the part of `compute` that the matrix units do not do.
    """

    seconds: float
    reads: int
    writes: int
    rereads: int
    flops: int
    matrix_flops: int
    special: int
    memory: float
    compute: float
    launch: float
    registers: int
    shared: int
    occupancy: float
    in_flight: int
    ordinary: float = 0.0

    @property
    def bytes(self) -> int:
        """Traffic with device memory."""
        return self.reads + self.writes

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return (self.flops + self.matrix_flops) / max(1, self.bytes)

    @property
    def bound(self) -> Literal["memory", "compute", "launch"]:
        """What the time goes to."""
        if self.launch >= max(self.memory, self.compute):
            return "launch"
        return "memory" if self.memory >= self.compute else "compute"


@dataclass(frozen=True, slots=True)
class Plan:
    """How one kernel is to be run.

    `roles`: what each loop index becomes. `tiles`: tile extents by index, and values for `plan` sizes. `folds`: for
    each accumulator's loop `exact` or `online(block)`, and the levels of its tree. `place`: where each local buffer
    and array accumulator lives (register, shared, workspace). `path`: the instruction family of a contraction.
    `launches` are the kernels really launched. `rounding` says what differs from the exact tree. `assumed` names the
    sizes whose stand-ins have part in the numbers. `burden`: what makes the kernel slower than its parts would be, a
    sentence, and `burdened` of what: `prologue` or `nests`.
    """

    schedule: str
    roles: Mapping[str, Role]
    launches: tuple[Launch, ...]
    cost: Cost
    tiles: Mapping[str, int] = field(default_factory=dict)
    folds: Mapping[str, str] = field(default_factory=dict)
    place: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    workspace: int = 0
    guards: tuple[Guard, ...] = ()
    rounding: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()
    burden: str = ""
    burdened: str = "prologue"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a schedule does not take a kernel; `passed` counts the checks before the one that failed."""

    schedule: str
    cause: Cause
    passed: int = 0
