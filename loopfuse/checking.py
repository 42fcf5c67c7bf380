"""`lf.check`: whether a program still gives the results that it had when it was lowered, on the back ends asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loopfuse.agreement import Row, Runner, every_pass, on_gpu, overall
from loopfuse.bind import Bound
from loopfuse.diag import CompilerError, MachineError
from loopfuse.driver import Lowered
from loopfuse.passes import Pass
from loopfuse.printer import print_program
from loopfuse.tolerance import Tolerance

RUNNERS: dict[str, Runner | None] = {"reference": None, "cuda": on_gpu}


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult:
    """What `check` found: a row for each pass that ran on each back end, the last of which may disagree."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether the results are the same, to the bit or within the bound, after every pass."""
        return all(row.agrees for row in self.rows)

    @property
    def undecided(self) -> int:
        """The most elements that could not be judged after a pass."""
        return max((row.verdict.undecided for row in self.rows), default=0)

    def raise_if_bad(self) -> None:
        """Raise `CompilerError` that names the first pass whose results differ."""
        for row in self.rows:
            if not row.agrees:
                raise CompilerError(
                    row.name, row.verdict.problem, print_program(row.stage.program) if row.stage else ""
                )

    def __repr__(self) -> str:
        bad = next((f"{row.name}: {row.verdict.problem}" for row in self.rows if not row.agrees), "")
        count = f"{len(self.rows)} row{'s' * (len(self.rows) != 1)}"
        return f"<CheckResult: {bad or 'agrees'}; {count}, {self.undecided} elements undecided>"

    def __str__(self) -> str:
        return "\n".join(f"{row.name}: {row.verdict.problem or 'agrees'}" for row in self.rows)


def compared(lowered: Lowered, bound: Bound, passes: Sequence[Pass], every: bool, tolerance: Tolerance,
             backends: Iterable[str]) -> CheckResult:  # fmt: skip
    """Compare after every pass or at the end; rows of a back end other than the reference carry its name.

    Raises `MachineError` for a back end that there is not, or not here.
    """
    rows: list[Row] = []
    for name in backends:
        if name not in RUNNERS:
            raise MachineError(f"there is no back end `{name}`; there are {', '.join(RUNNERS)}")
        runner = RUNNERS[name]
        allowed = tolerance if tolerance.given else None
        compare = every_pass if every else overall
        found = compare(lowered, bound, passes, runner=runner, tolerance=allowed)
        rows += found if runner is None else (replace(row, name=f"{row.name} on {name}") for row in found)
    return CheckResult(tuple(rows))
