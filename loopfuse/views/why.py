"""Why two definitions are, or are not, one kernel; and what all decisions came to."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from loopfuse.analysis.env import environment
from loopfuse.decisions import Cause, Decision
from loopfuse.devices import Device
from loopfuse.diag import UserError, error
from loopfuse.ir import Kernel, Program
from loopfuse.memory import show_bytes
from loopfuse.passes.contract import live_buffers
from loopfuse.passes.manager import Stage
from loopfuse.passes.merge import merge
from loopfuse.views.costs import UNWRITTEN, UNWRITTEN_MEANS
from loopfuse.views.counts import count
from loopfuse.views.decisions import about, decision_table, detail, refusal
from loopfuse.views.estimates import Reckoned
from loopfuse.views.lines import defined, gutter, stem
from loopfuse.views.plans import Planned
from loopfuse.views.tables import microseconds

NEAR = 0.05  # of a time, by which another one is told apart


class History:
    """A program and its stages, asked about definitions by the names of the script.

    `names` maps names of the script to buffers; the ids of buffers are understood too. `written` are the names that the
    script defines, those included that are put where they are used.
    """

    def __init__(self, lowered: Program, stages: Sequence[Stage], names: Mapping[str, str],
                 written: Collection[str] = ()) -> None:  # fmt: skip
        self.lowered, self.stages, self.names, self.written = lowered, stages, names, written
        self.programs = [lowered, *(stage.program for stage in stages)]
        self.decisions = tuple(d for stage in stages for d in stage.decisions)

    @property
    def program(self) -> Program:
        """The program after the last pass."""
        return self.programs[-1]

    def buffer(self, name: str) -> str:
        """The buffer that a name stands for. Raises `UserError` LF0502 where nothing computes it."""
        made = [n for k in self.lowered.kernels for n in defined(k)]
        found = self.names.get(name, name)
        if found in made:
            return found
        inputs = [b.id for b in self.lowered.buffers if b.role in ("in", "param", "frozen")]
        if found in inputs:
            raise UserError(error("LF0502", f"`{name}` is an input: nothing computes it",
                                  notes=["only definitions can share a kernel"]))  # fmt: skip
        if name in self.written:
            raise UserError(error("LF0502", f"`{name}` is not computed by itself: it is put where it is used",
                                  notes=["a definition that only names, slices or rearranges another one costs nothing"]))  # fmt: skip
        known = list(dict.fromkeys([*(n for n, b in self.names.items() if b in made), *made]))
        near = difflib.get_close_matches(name, known, 1)
        raise UserError(error("LF0502", f"no definition is called `{name}`",
                              notes=[f"there are {', '.join(known[:12])}{' ..' * (len(known) > 12)}"],
                              fix=f"did you mean `{near[0]}`?" if near else None))  # fmt: skip

    def kernel(self, buffer: str) -> Kernel | None:
        """The kernel of the last program that computes a definition, or holds what became of it."""
        final = {k.id: k for k in self.program.kernels}
        for program in reversed(self.programs):
            for k in program.kernels:
                if buffer in defined(k) and k.id in final:
                    return final[k.id]
        return None

    def why(self, a: str, b: str, device: Device,
            known: Mapping[str, int]) -> tuple[list[str], list[Decision]]:  # fmt: skip
        """The answer as text, and the decisions that it rests on, the most telling one first."""
        left, right = self.buffer(a), self.buffer(b)
        if left == right:
            raise UserError(error("LF0502", f"`{a}` and `{b}` are one definition"))
        first, second = self.kernel(left), self.kernel(right)
        together = first is not None and second is not None and first.id == second.id
        found = about(self.decisions, left, right)
        good = ("fused", "forced")
        telling = [d for d in found if (d.verdict in good) == together]
        if telling:
            lines = detail(telling[0], a, b)
            if len(telling) > 1:
                lines += ["", "asked before:", *decision_table(telling[1:], gutter(self.lowered), 80)]
            return [*lines, *self._two_passes(telling[0])], telling
        return self._unasked(a, b, first, second, device, known), []

    def _two_passes(self, decision: Decision) -> list[str]:
        """What keeps reductions that are one kernel from being one pass, where the decision is about these."""
        places = {(s.source.name, s.line) for s in decision.spans}
        lines: list[str] = []
        for stage in self.stages:
            for cause in stage.notes.get("causes", ()):
                if cause.spans and {(s.source.name, s.line) for s in cause.spans} <= places:
                    lines += ["", *refusal(cause, "the reductions stay passes of their own")]
        return lines

    def _unasked(self, a: str, b: str, first: Kernel | None, second: Kernel | None, device: Device,
                 known: Mapping[str, int]) -> list[str]:  # fmt: skip
        """No decision holds both: they came to be together, or were never asked about."""
        if first is None or second is None:
            gone = a if first is None else b
            return [f"nothing is left of `{gone}` in the last program: it is not needed, or stands in another's place"]
        if first.id == second.id:
            joined = [d for d in self.decisions if d.verdict in ("fused", "forced")
                      and {*map(stem, (*d.a, *d.b))} & {*map(stem, defined(first))}]  # fmt: skip
            lines = [f"`{a}` and `{b}` are one kernel ({first.id}), though no decision joined these two"]
            return [*lines, "", *decision_table(joined, gutter(self.lowered), 80)] if joined else lines
        cause = self._ask(first, second, device, known)
        if cause is None:
            ran = ", ".join(stage.name for stage in self.stages) or "none"
            return [f"`{a}` ({first.id}) and `{b}` ({second.id}) are two kernels, and could be joined: nothing in them forbids "
                    f"it, and no decision about them was taken (passes that ran: {ran})"]  # fmt: skip
        asked = Decision(0, (a,), (b,), "refused", "vertical", cause.message, cause=cause)
        return [line for line in detail(asked, a, b) if not line.startswith(("verdict", "kind", "groups"))]

    def _ask(self, first: Kernel, second: Kernel, device: Device, known: Mapping[str, int]) -> Cause | None:
        env = environment(self.program, device, known)
        at = {k.id: n for n, k in enumerate(self.program.kernels)}
        a, b = sorted((first, second), key=lambda k: at[k.id])
        answer = merge(a, b, env, live_buffers(self.program))
        return answer if isinstance(answer, Cause) else None


# -- what it came to --------------------------------------------------------------------------------------------------


def outcome(before: Reckoned, after: Reckoned) -> list[str]:
    """Before and after: kernels, bytes, microseconds, peak memory; what fusion went by, where that was something else."""
    facts = summary(before, after)
    old, new = facts["before"], facts["after"]
    us = " -> ".join(
        f"{'' if f['complete'] else 'more than '}{microseconds(f['us'])}{UNWRITTEN * (not f['own'])}"
        for f in (old, new)
    )
    moved = " -> ".join(f"{show_bytes(f['bytes'])}{UNWRITTEN * (not f['own'])}" for f in (old, new))
    lines = [
        f"{old['kernels']} -> {new['kernels']} kernels, {us} us",
        f"{moved} moved, peak memory {show_bytes(old['peak'])} -> {show_bytes(new['peak'])}",
    ]
    if any(abs(f["us_planned"] - f["us"]) > NEAR * f["us"] for f in (old, new)):
        by = " -> ".join(microseconds(f["us_planned"]) for f in (old, new))
        lines.append(f"decided by plans of {by} us; {_why_other(before, after)}")
    return [*lines, *unwritten(before, after)]


def _why_other(*found: Reckoned) -> str:
    """Why what is written takes another time than the plans."""
    if any(r.planned.sizes[n] == 0 for r in found for n in r.planned.sizes):
        return "they take every loop to run once at least, and for these sizes some do not run"
    return "the kernels as they are written have other tiles or schedules"


def unwritten(*found: Reckoned) -> list[str]:
    """What a `*` means, where there is one."""
    return [UNWRITTEN_MEANS] if not all(r.own for r in found) else []


def summary(before: Reckoned, after: Reckoned) -> dict[str, Any]:
    """The same as numbers. `complete` tells whether every kernel has a plan, and so a time; `own`: whether each number is of
    the kernel as it is written."""

    def facts(found: Reckoned) -> dict[str, Any]:
        counts = count(found.planned.program, found.planned.numbers)
        return {"kernels": counts.kernels, "bytes": found.bytes, "peak": counts.peak, "us": found.seconds * 1e6,
                "complete": not found.planned.refusals, "own": found.own, "us_planned": found.planned.us}  # fmt: skip

    return {"before": facts(before), "after": facts(after)}


def guards(found: Iterable[Planned]) -> list[str]:
    """The conditions under which the plans hold."""
    return [f"{kernel} holds where {guard.text}" + (f"; else {guard.otherwise}" * bool(guard.otherwise))
            for planned in found for kernel, plan in planned.plans.items() for guard in plan.guards]  # fmt: skip
