"""Programs restated from public reports of wrong results in fusing and array compilers, with values derived by hand.

tests/reports/cases.json holds inputs, values, tolerance and source of each; <id>.lf is the case in the language, and
<id>.<variant>.lf says the same in another way. restated.json is the list of every place where the language and a report
differ, with the reason: cases that it cannot say, literal forms that it refuses, and tolerances that are not the
report's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loopfuse import driver
from loopfuse.backends.reference import Bounded, run_bounded
from loopfuse.bind import Bound, Given
from loopfuse.diag import Source
from loopfuse.driver import Lowered, compile_source, lower_program, plan_sizes
from loopfuse.generate import Array
from loopfuse.ir import Program

T = TypeVar("T")
FOLDER = Path(__file__).parent / "reports"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((FOLDER / "cases.json").read_text("utf-8"))["cases"]
}
RESTATED: dict[str, dict[str, Any]] = json.loads((FOLDER / "restated.json").read_text("utf-8"))
MODES = ("strict", "default", "fast")
# The report's program is 3000 statements, which a parser or a pass that calls itself does not survive.
_TEXT = "input x: f64[2]\nlet t = x\n" + "let t = t * 0.999 + 0.002\n" * 3000 + "output h = t\n"
HEAVY = frozenset(id for id, case in CASES.items() if case.get("heavy"))
HEAVY_BYTES = 12 << 30  # what the reference needs for those: input, result, and room for temporaries
STATEMENTS = "s41_deep_chain.statements"  # a kernel a statement where nothing is fused
LONG = frozenset({"s41_deep_chain", STATEMENTS, "s42_six_hundred_inputs"})  # seconds each


@dataclass(frozen=True, slots=True)
class Report:
    """A script of a case. `id` is the case's, with the variant behind it."""

    id: str
    text: str

    @property
    def case(self) -> dict[str, Any]:
        """The entry of cases.json."""
        return CASES[self.id.split(".")[0]]

    @property
    def heavy(self) -> bool:
        """Whether it needs gigabytes."""
        return bool(self.case.get("heavy"))


def _reports() -> dict[str, Report]:
    found = {path.stem: Report(path.stem, path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.lf"))}
    return found | {STATEMENTS: Report(STATEMENTS, _TEXT)}


REPORTS = _reports()
LIGHT = tuple(id for id, report in REPORTS.items() if not report.heavy)


def array(held: Mapping[str, Any]) -> Array:
    """The array of a JSON entry; special values are strings there."""
    flat = np.asarray(held["data"], dtype=object)
    values = [float(v) if isinstance(v, str) else v for v in flat.ravel().tolist()]
    return np.array(values, dtype=held["dtype"]).reshape(held["shape"])


def inputs_of(case: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs of a case."""
    if case.get("inputs"):
        return {k: array(v) for k, v in case["inputs"].items()}
    return {k: eval(v, {"np": np}) for k, v in (case.get("inputs_expr") or {}).items()}


@dataclass(frozen=True)
class Ready:
    """A report under one numerics mode: the lowered program and its data."""

    report: Report
    mode: str
    lowered: Lowered
    bound: Bound

    def arrays(self) -> dict[str, Array]:
        """What the program starts from, by buffer."""
        wanted = ("in", "param", "frozen")
        return {b.id: self.bound.inputs[b.id] for b in self.lowered.program.buffers if b.role in wanted}

    def sizes(self) -> dict[str, int]:
        """All sizes, those of a plan too."""
        return plan_sizes(self.lowered.program) | self.bound.sizes

    def bounds(self) -> list[Bounded]:
        """The outputs in order with what a correct program may be off, under this mode."""
        return in_order(self, self.lowered.program, run_bounded(self.lowered.program, self.arrays(), self.sizes()))


@cache
def lowered(id: str, mode: str) -> Lowered:
    """A report under a mode, lowered."""
    text = f"numerics {mode}\n{REPORTS[id].text}"
    return lower_program(compile_source(Source(id, text), search=FOLDER).typed)


def ready(id: str, mode: str) -> Ready:
    """A report with its data."""
    made = lowered(id, mode)
    report = REPORTS[id]
    return Ready(report, mode, made, driver.bind_program(made.typed, Given(inputs_of(report.case))))


def in_order(made: Ready, program: Program, found: Mapping[str, T]) -> list[T]:
    """The script's outputs in order, of the output buffers of a program."""
    ends = [b.id for b in program.buffers if b.role == "out"]
    by_root = {root: found[end] for root, end in zip(made.lowered.roots, ends, strict=True)}
    return [by_root[o.buffer] for o in made.lowered.typed.outputs]


def allowed_by_bound(id: str, mode: str) -> bool:
    """Whether the derived bound counts where it is wider than the case's own tolerance: always in `fast`, which promises
    no more, and elsewhere for the cases that restated.json lists."""
    entry = RESTATED["tolerance"].get(id.split(".")[0])
    return mode == "fast" or (entry is not None and mode in entry["modes"])


def stated(made: Ready, outputs: list[Array]) -> str:
    """What is wrong with the script's outputs beside the values that the case states, in a sentence; "" for nothing.

    Where the bound counts, an element that it leaves undecided must still keep to the case's own tolerance.
    """
    case = made.report.case
    want = [array(e) for e in case["expected"]]
    if len(outputs) != len(want):
        return f"{len(outputs)} outputs, the report has {len(want)}"
    bounds = made.bounds() if allowed_by_bound(made.report.id, made.mode) else None
    for number, (found, right) in enumerate(zip(outputs, want, strict=True)):
        if found.shape != right.shape or found.dtype != right.dtype:
            return f"output {number} is {found.dtype}{list(found.shape)}, stated {right.dtype}{list(right.shape)}"
        wrong = _differs(found, right, case["tolerance"], bounds[number] if bounds else None)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"output {number} at {list(at)} is {found[at]!s}, stated {right[at]!s}"
    return ""


def _differs(found: Array, right: Array, tolerance: Mapping[str, Any], bounded: Bounded | None) -> Array:
    if right.dtype.kind != "f":
        return np.asarray(found != right)
    with np.errstate(all="ignore"):
        a, b = found.astype(np.longdouble), right.astype(np.longdouble)
        off = np.abs(a - b)
        # The stated value may be off from the exact one by the bound, and so may the found one.
        most = tolerance["atol"] + tolerance["rtol"] * np.abs(b)
        if bounded is not None:
            most = np.where(bounded.undecided, most, np.maximum(most, 2 * bounded.bound))
        near = off <= most
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    wrong = ~np.where(np.isfinite(a) & np.isfinite(b), near, same)
    if tolerance.get("signed_zero"):
        wrong |= (b == 0) & (a == 0) & (np.signbit(found) != np.signbit(right))
    return np.asarray(wrong)
