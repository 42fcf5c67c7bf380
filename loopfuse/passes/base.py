"""What a pass is, what it is told, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from loopfuse.decisions import Decision
from loopfuse.devices import H200, Device
from loopfuse.diag import Span
from loopfuse.ir import Program

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Remark:
    """What a pass did, or could not do, in one plain sentence: shown by `ir --passes`, `explain` and the REPL.

    `rounds`: the results may differ from before in rounding. `missed`: the sentence says what was not done, and why.
    """

    text: str
    span: Span | None = None
    missed: bool = False
    rounds: bool = False


class Steps:
    """Counts what a pass does, and stops it after `most` steps: the handle of `bisect`.

    A pass asks `take` before each rewriting that it could as well leave out, and leaves it out when the answer is
    no. `log` describes the steps taken.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.log: list[str] = []

    def take(self, what: str) -> bool:
        """Whether the step may be done."""
        if self.most is not None and len(self.log) >= self.most:
            return False
        self.log.append(what)
        return True


@dataclass
class Options:
    """What the caller wants of the passes.

    `sizes`: values of sizes that the cost model is told, the others are assumed (they are not substituted: that is
    `specialise`, values of sizes to substitute). `frozen`: arrays of inputs that are constant. `decide_max`: take only
    the first so many fusions. `decisions`: verdicts by `Decision.key`, which override those of the cost model.
    `restarts`: of the search; `exhaustive`: search small components completely. `seed`: of the restarts.
    `steps`: a limit for one pass, by its name.
    """

    device: Device = H200
    sizes: Mapping[str, int] = field(default_factory=dict)
    specialise: Mapping[str, int] = field(default_factory=dict)
    frozen: Mapping[str, Array] = field(default_factory=dict)
    decide_max: int | None = None
    decisions: Mapping[tuple[frozenset[str], frozenset[str]], Literal["fuse", "nofuse"]] = field(default_factory=dict)
    restarts: int = 12
    exhaustive: bool = True
    seed: int = 0
    steps: Mapping[str, Steps] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass gives back: the program (the same object where nothing changed), and what it has to say.

    `notes` hold what else a face may show, by name (the plans of the kernels, the assumed sizes).
    """

    program: Program
    remarks: tuple[Remark, ...] = ()
    decisions: tuple[Decision, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass: its name (the flag), a sentence (the help), and a pure function.

    `rounds`: its results may differ in rounding from what went in; every other pass keeps all bits. A function returns
    the same program object where it changes nothing.
    """

    name: str
    sentence: str
    function: Callable[[Program, Options], Outcome]
    rounds: bool = False


def steps(options: Options, name: str) -> Steps:
    """The step counter of a pass; one without a limit where the caller gave none."""
    return options.steps.get(name) or Steps()
