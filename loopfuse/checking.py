"""`lf.check`: whether a program still gives the results that it had when it was lowered, on the back ends asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index

from loopfuse.agreement import Row, Runner, every_pass, on_gpu, overall
from loopfuse.bind import Bound
from loopfuse.diag import CompilerError, MachineError, UserError, error
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


def inputs_named(inputs: object) -> dict[str, object]:
    """The arrays by name that `lf.check` was given. Raises `UserError` LF0502 for what has no names, or other ones than
    text."""
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping):
        raise UserError(error("LF0502", f"`inputs` is of type {type(inputs).__name__}, and must give each array by its name",
                              fix='{"x": array}'))  # fmt: skip
    for name in inputs:
        if not isinstance(name, str):
            raise UserError(error("LF0502", f"the name `{name!r}` in `inputs` is of type {type(name).__name__}, and must be text",
                                  fix='{"x": array}'))  # fmt: skip
    return dict(inputs)


def check_options(passes: object, backends: object, seed: object) -> None:
    """Raise `UserError` LF0502 for options of `lf.check` of another kind than they must have, and `MachineError` for a
    back end that there is not."""
    among = f"some of {', '.join(map(repr, RUNNERS))}"
    if isinstance(backends, str) or not isinstance(backends, Collection):
        name = backends if backends in RUNNERS else "reference"
        raise UserError(error("LF0502", f"`backends` is {backends!r}, and must be a list of names: {among}",
                              fix=f'backends=["{name}"]'))  # fmt: skip
    if len(backends) == 0:
        raise UserError(error("LF0502", f"`backends` is empty, and nothing would be compared: give {among}",
                              fix='backends=["reference"]'))  # fmt: skip
    for name in backends:
        if not isinstance(name, str) or name not in RUNNERS:
            raise MachineError(f"there is no back end `{name}`; there are {', '.join(RUNNERS)}")
    if not isinstance(passes, str):
        raise UserError(error("LF0502", f"`passes` is {passes!r}, and must be text", fix='passes="default"'))
    try:
        whole = index(seed)  # type: ignore[arg-type]
    except TypeError:
        whole = -1
    if whole < 0:
        raise UserError(error("LF0502", f"`seed` is {seed!r}, and must be an integer of at least 0", fix="seed=0"))


def compared(lowered: Lowered, bound: Bound, passes: Sequence[Pass], every: bool, tolerance: Tolerance,
             backends: Collection[str]) -> CheckResult:  # fmt: skip
    """Compare after every pass or at the end; rows of a back end other than the reference carry its name.

    The options are those that `check_options` lets pass. Raises `MachineError` for a back end that is not here.
    """
    rows: list[Row] = []
    for name in backends:
        runner = RUNNERS[name]
        allowed = tolerance if tolerance.given else None
        compare = every_pass if every else overall
        found = compare(lowered, bound, passes, runner=runner, tolerance=allowed)
        rows += found if runner is None else (replace(row, name=f"{row.name} on {name}") for row in found)
    return CheckResult(tuple(rows))
