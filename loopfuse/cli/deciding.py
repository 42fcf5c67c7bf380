"""`loopfuse explain script.lf`: decisions, costs, remarks, and why two definitions are not one kernel."""

from __future__ import annotations

import argparse
import difflib

from loopfuse.cli import arguments, locks, passing, screen
from loopfuse.cli.frame import Context
from loopfuse.cuda.cache import open_cache
from loopfuse.diag import CompilerError, UserError, error
from loopfuse.ir import Program
from loopfuse.lock import Lock
from loopfuse.repl.parts import split
from loopfuse.views import costs, decisions, emitted
from loopfuse.views import passes as views
from loopfuse.views.estimates import Reckoned, reckon
from loopfuse.views.lines import gutter
from loopfuse.views.plans import Planned, plan
from loopfuse.views.tables import sizes_line
from loopfuse.views.why import History, guards, outcome, summary


def show(parser: arguments.Parser, options: argparse.Namespace, context: Context) -> int:
    """Show what the options ask of a script; returns the exit code."""
    done = passing.compile_script(parser, options, context)
    if options.why:
        _why(options, context, done)
    elif options.cost or options.kernel:
        _cost(options, context, done)
    elif options.remarks:
        _remarks(context, done)
    else:
        _decisions(options, context, done)
    return done.code


def _decisions(options: argparse.Namespace, context: Context, done: passing.Passed) -> None:
    """One line a decision, then the totals."""
    terminal = context.terminal
    marks = gutter(done.lowered)
    for decision in decisions.by_line(done.decisions, marks):
        terminal.record({"kind": "decision", **decisions.as_record(decision)})
    before, after = _reckoned(options, context, done)
    planned = after.planned
    terminal.record({"kind": "outcome", **summary(before, after), "sizes": planned.sizes,
                     "assumed": sorted(planned.assumed), "device": done.device.name,
                     "guards": guards([planned])})  # fmt: skip
    lines = decisions.decision_table(done.decisions, marks, screen.width())
    lines += ["", decisions.totals(done.decisions), *outcome(before, after), *_terms(planned)]
    for line in [*lines, *guards([planned])]:
        terminal.result(line)


def _reckoned(options: argparse.Namespace, context: Context, done: passing.Passed) -> tuple[Reckoned, Reckoned]:
    """The program before and after the passes, with the estimates of its kernels as they are written: those of all views."""
    built = _built(options, context, done, locks.opened(options, context))
    after = reckon(plan(done.program, done.device, done.known, done.stages), built.code if built is not None else None)
    if done.program is done.lowered:
        return after, after
    first = _built(options, context, done, None, done.lowered) if built is not None else None
    return reckon(plan(done.lowered, done.device, done.known), first.code if first is not None else None), after


def _terms(planned: Planned) -> list[str]:
    """The device and the sizes that the numbers are for."""
    shown = sizes_line(planned.sizes, planned.assumed)
    missing = [f"{kernel} has no plan: {refusal.cause.message}" for kernel, refusal in planned.refusals.items()]
    return [f"for {planned.device.name}{f'; {shown}' if shown else ''}", *missing]


def _why(options: argparse.Namespace, context: Context, done: passing.Passed) -> None:
    assert done.typed is not None and context.source is not None
    written = {name for part in split(context.source) for name in part.names}
    history = History(done.lowered, done.stages, dict(done.typed.names), written)
    lines, found = history.why(options.why[0], options.why[1], done.device, done.known)
    context.terminal.record({"kind": "why", "a": options.why[0], "b": options.why[1], "text": "\n".join(lines),
                             "decisions": [decisions.as_record(d) for d in found]})  # fmt: skip
    for line in lines:
        context.terminal.result(line)


def _cost(options: argparse.Namespace, context: Context, done: passing.Passed) -> None:
    planned = plan(done.program, done.device, done.known, done.stages)
    program: Program = done.program
    lock = locks.opened(options, context)
    built = _built(options, context, done, lock)
    code = built.code if built is not None else None
    measured = (
        lock.times(code.chosen, done.device.name, done.device.arch) if lock is not None and code is not None else {}
    )
    found = reckon(planned, code)
    for kernel, one in found.each.items():
        if options.kernel in (None, kernel) or done.home(options.kernel) == kernel:
            who = emitted.written(built, found, kernel, measured.get(kernel)) if built is not None else {}
            context.terminal.record({"kind": "cost", **costs.as_record(kernel, one), **who, "sizes": planned.sizes})
    if options.kernel is None:
        lines = costs.cost_table(program, found.each)
        lines += ["", *costs.foot(program, found.each, done.device, planned.sizes, planned.assumed)]
        lines += ["", *emitted.emitters(built, found)] if built is not None else []
    else:
        home = done.home(options.kernel)
        chosen = next((k for k in program.kernels if k.id == home), None)
        if chosen is None:
            known = [k.id for k in program.kernels]
            near = difflib.get_close_matches(options.kernel, known, 1)
            raise UserError(error("LF0502", f"no kernel is called `{options.kernel}`",
                                  notes=[f"there are {', '.join(known)}" if known else "there are none"],
                                  fix=f"did you mean `{near[0]}`?" if near else None))  # fmt: skip
        lines = costs.kernel_view(
            program, chosen, found.each.get(chosen.id), emitted.workspace(built, found, chosen.id)
        )
        lines += ["", *emitted.emitters(built, found, chosen.id, measured.get(chosen.id))] if built is not None else []
        lines += ["", *_terms(planned)]
    for line in lines:
        context.terminal.result(line)


def _built(options: argparse.Namespace, context: Context, done: passing.Passed, lock: Lock | None,
           program: Program | None = None) -> emitted.Built | None:  # fmt: skip
    """The CUDA C of the program after passes, or of an earlier one, which tells who writes each kernel, with what was compiled
    of it; None for a device that has none."""
    if done.device.kind != "gpu":
        return None
    try:
        if options.compile:
            return emitted.build(
                done.program, done.known, done.device, dynamic=not options.dims, cache=open_cache(), lock=lock
            )
        return emitted.kept(program or done.program, done.known, done.device, not options.dims, open_cache(), lock)
    except CompilerError as why:
        context.terminal.say(f"loopfuse: there is no CUDA C of this program: {why}")
        return None


def _remarks(context: Context, done: passing.Passed) -> None:
    sizes, _ = done.numbers
    steps = views.steps(done.lowered, done.stages, sizes)
    for step in steps:
        for remark in step.remarks:
            line = remark.span.line if remark.span else None
            context.terminal.record({"kind": "remark", "pass": step.name, "text": remark.text, "line": line,
                                     "missed": remark.missed, "rounds": remark.rounds})  # fmt: skip
    for text in views.remarks(steps):
        context.terminal.result(text)
