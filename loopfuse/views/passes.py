"""The passes that ran, one a line: what each left of the program, how long it took, and its reason."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopfuse.ir import Program
from loopfuse.memory import show_bytes
from loopfuse.passes.base import Remark
from loopfuse.passes.manager import Stage
from loopfuse.views.counts import Counts, count, numbers
from loopfuse.views.decisions import totals
from loopfuse.views.lines import gutter
from loopfuse.views.tables import duration, sizes_line, table

HEADER = (" #", "pass", "ops", "loops", "kernels", "bytes", "time", "reason")


@dataclass(frozen=True, slots=True)
class Step:
    """A program on its way, with what made it: number 0 is the lowered program. `came` says in numbers what became of the
    kernels, for a pass that says nothing itself."""

    number: int
    name: str
    program: Program
    counts: Counts
    changed: bool = False
    seconds: float | None = None
    remarks: tuple[Remark, ...] = ()
    rounds: bool = False
    came: str = ""


def steps(lowered: Program, stages: Sequence[Stage], sizes: Mapping[str, int]) -> list[Step]:
    """The lowered program and every stage, counted with the same numbers for the sizes."""
    counts = count(lowered, sizes)
    found = [Step(0, "lower", lowered, counts)]
    for number, stage in enumerate(stages, 1):
        before = counts.kernels
        if stage.changed:
            known, _ = numbers(stage.program, sizes)
            counts = count(stage.program, known)
        found.append(Step(number, stage.name, stage.program, counts, stage.changed, stage.seconds, stage.remarks,
                          stage.rounds, _came(before, counts.kernels, stage)))  # fmt: skip
    return found


def _came(before: int, after: int, stage: Stage) -> str:
    """`10 kernels -> 1 (9 decisions: 9 fused)`."""
    if before == after:
        return ""
    told = f" ({totals(stage.decisions)})" if stage.decisions else ""
    return f"{before} kernel{'s' * (before != 1)} -> {after}{told}"


def pass_table(found: Sequence[Step], *, changed_only: bool = False, width: int = 0) -> list[str]:
    """The table: `~` marks the passes that changed something, and their reason is their first remark.

    A reason that does not fit into the `width` (0: no limit) stands below its line.
    """
    rows, reasons = [], []
    for step in found:
        if changed_only and step.number and not step.changed:
            continue
        c = step.counts
        time = "" if step.seconds is None else duration(step.seconds)
        rows.append((f"{step.number:2}{'~' if step.changed else ' '}", step.name, str(c.operations), str(c.loops),
                     str(c.kernels), show_bytes(c.bytes), time))  # fmt: skip
        reasons.append(reason(step))
    plain = table((*HEADER[:-1], ""), [(*row, "") for row in rows], "llrrrrr")
    start = max(map(len, plain)) + 2
    shown = [f"{plain[0]:<{start}}{HEADER[-1]}"]
    for line, why in zip(plain[1:], reasons, strict=True):
        if not width or start + len(why) <= width:
            shown.append(f"{line:<{start}}{why}".rstrip())
        else:
            shown += [line, *textwrap.wrap(why, width, initial_indent=" " * 5, subsequent_indent=" " * 7)]
    return shown


def reason(step: Step) -> str:
    """Why, in the pass's own words: `- exp(x) twice (+2 more)`."""
    if not step.number:
        return ""
    told = [r for r in step.remarks if not r.missed] if step.changed else []
    if not told:
        return ("" if not step.came else f"- {step.came}") if step.changed else "(no change)"
    more = f" (+{len(told) - 1} more)" if len(told) > 1 else ""
    rounds = " [rounds]" if step.rounds else ""
    return f"- {told[0].text}{more}{rounds}"


def remarks(found: Sequence[Step]) -> list[str]:
    """Every remark: its line in the script, its pass, and the sentence; `-` before what was not done."""
    marks = gutter(*(step.program for step in found))
    rows = [
        (marks.number(r.span) or ".", step.name, ("- " if r.missed else "+ ") + r.text + " [rounds]" * r.rounds)
        for step in found for r in step.remarks
    ]  # fmt: skip
    return table(("line", "pass", "  remark"), rows, "rl") if rows else ["no pass made a remark"]


def assumed_line(program: Program, known: Mapping[str, int]) -> str:
    """Which numbers the bytes are for: `sizes: B = 4096 (assumed), N = 8`."""
    sizes, assumed = numbers(program, known)
    return sizes_line(sizes, assumed)
