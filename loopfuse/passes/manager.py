"""Running passes: which ones, in which order, verified after each, timed, and what each left behind."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopfuse.decisions import Decision
from loopfuse.diag import CompilerError, LoopfuseError, UserError, error
from loopfuse.ir import Program
from loopfuse.passes.base import Options, Outcome, Pass, Remark
from loopfuse.printer import print_program
from loopfuse.verify import violations


@dataclass(frozen=True, slots=True)
class Stage:
    """A pass that ran: the program after it, and what it said.

    `rounds`: the results may differ from those of the stage before in rounding, since the pass does so or a remark
    of it says so. Times are seconds. `notes` are those of `Outcome`.
    """

    name: str
    program: Program
    changed: bool
    seconds: float
    verify_seconds: float = 0.0
    remarks: tuple[Remark, ...] = ()
    decisions: tuple[Decision, ...] = ()
    rounds: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)


# -- which ------------------------------------------------------------------------------------------------------------


def select(text: str, passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """The passes that a text names, in the order of `passes`.

    `default`: all; `none`; `cse,fuse`: these alone; `-fuse`: all but this, also `default,-fuse`. Raises `UserError`
    LF0821 for a name that no pass has.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    taken: set[str] = set()
    if not words or words[0].startswith("-"):
        taken = {p.name for p in passes} if words else set()
    for word in words:
        if word == "default":
            taken |= {p.name for p in passes}
        elif word == "none":
            taken.clear()
        elif word.startswith("-"):
            taken.discard(known(word[1:], passes).name)
        else:
            taken.add(known(word, passes).name)
    return tuple(p for p in passes if p.name in taken)


def known(name: str, passes: Iterable[Pass]) -> Pass:
    """The pass of a name. Raises `UserError` LF0821 where there is none."""
    table = {p.name: p for p in passes}
    if name not in table:
        near = difflib.get_close_matches(name, table, 1)
        fix = f"did you mean `{near[0]}`?" if near else None
        raise UserError(error("LF0821", f"there is no pass `{name}`", notes=[f"the passes are {', '.join(table)}"],
                              fix=fix))  # fmt: skip
    return table[name]


def insert(passes: tuple[Pass, ...], added: Pass, after: str | None) -> tuple[Pass, ...]:
    """The passes with one more, after the named one or at the end. Raises `UserError` LF0821."""
    if any(p.name == added.name for p in passes):
        raise UserError(error("LF0821", f"there is a pass `{added.name}` already"))
    at = len(passes) if after is None else passes.index(known(after, passes)) + 1
    return (*passes[:at], added, *passes[at:])


# -- running ----------------------------------------------------------------------------------------------------------


def run_passes(program: Program, passes: Iterable[Pass], options: Options | None = None, *, verify: bool = True,
               ranges: bool = False, watch: Callable[[Stage], None] | None = None) -> tuple[Stage, ...]:  # fmt: skip
    """Run passes on a valid program, each on what the one before gave.

    After each that changed something the program is verified (with `ranges`: every access again proved in range)
    unless `verify` is false; `watch` is told each stage. Raises `CompilerError` that names the pass to blame, its
    artifact the text of the program that the pass was given; `UserError` where a pass refuses what it was told.
    """
    options = options or Options()
    stages: list[Stage] = []
    for p in passes:
        stage = run_pass(p, program, options, verify=verify, ranges=ranges)
        stages.append(stage)
        program = stage.program
        if watch is not None:
            watch(stage)
    return tuple(stages)


def run_pass(p: Pass, program: Program, options: Options, *, verify: bool = True, ranges: bool = False) -> Stage:
    """Run one pass; see `run_passes`."""
    start = time.perf_counter()
    outcome = _apply(p, program, options)
    end = time.perf_counter()
    changed = outcome.program is not program
    checked = 0.0
    if changed and verify:
        _verify(p, program, outcome.program, ranges)
        checked = time.perf_counter() - end
    rounds = changed and (p.rounds or any(r.rounds for r in outcome.remarks))
    return Stage(p.name, outcome.program, changed, end - start, checked, outcome.remarks, outcome.decisions, rounds,
                 outcome.notes)  # fmt: skip


def _apply(p: Pass, program: Program, options: Options) -> Outcome:
    try:
        return p.function(program, options)
    except (UserError, MemoryError):
        raise
    except LoopfuseError as why:
        raise CompilerError(p.name, str(why), print_program(program)) from why
    except Exception as why:
        raise CompilerError(p.name, f"{type(why).__name__}: {why}", print_program(program)) from why


def _verify(p: Pass, before: Program, after: Program, ranges: bool) -> None:
    """Raise `CompilerError`, blaming the pass, unless the program keeps every invariant of the IR."""
    try:
        problems = [str(v) for v in violations(after, ranges)]
    except Exception as why:
        problems = [f"the verifier failed: {type(why).__name__}: {why}"]
    if problems:
        raise CompilerError(p.name, f"the pass broke the program: {'; '.join(problems[:5])}", print_program(before))
