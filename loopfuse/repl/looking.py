"""The commands that look at what the compiler does with the session's script."""

from __future__ import annotations

import difflib

from loopfuse.cuda.cache import open_cache
from loopfuse.diag import CompilerError, UserError, error
from loopfuse.ir import Program
from loopfuse.passes import selection
from loopfuse.printer import print_program
from loopfuse.repl.replies import Reply, reply
from loopfuse.repl.session import Compiled, Session
from loopfuse.repl.stepper import Stepper
from loopfuse.views import costs, decisions, emitted, listing, passes
from loopfuse.views.counts import numbers
from loopfuse.views.diff import Shown, diff
from loopfuse.views.estimates import reckon
from loopfuse.views.lines import gutter
from loopfuse.views.passes import Step
from loopfuse.views.plans import plan
from loopfuse.views.tables import fill, sizes_line
from loopfuse.views.why import History, outcome

WIDTH = 80


def steps(found: Compiled) -> list[Step]:
    """The lowered program and every stage, counted with the session's sizes."""
    lowered = found.optimised.lowered.program
    sizes, _ = numbers(lowered, found.known)
    return passes.steps(lowered, found.optimised.stages, sizes)


def stage(all_steps: list[Step], name: str) -> int:
    """The number of a step by name, unique beginning of a name, or number. Raises `UserError` LF0821."""
    known = [step.name for step in all_steps]
    if name in known:
        return known.index(name)
    starts = [n for n, other in enumerate(known) if other.startswith(name)]
    if len(starts) == 1:
        return starts[0]
    if name.isdecimal() and int(name) < len(known):
        return int(name)
    near = difflib.get_close_matches(name, known, 1)
    raise UserError(error("LF0821", f"no pass `{name}` ran", notes=[f"those that ran are {', '.join(known)}"],
                          fix=f"did you mean `{near[0]}`?" if near else None))  # fmt: skip


def show_passes(session: Session, argument: str, width: int) -> Reply:
    """The table of passes; with a list it sets which run."""
    if argument:
        selection(argument)
        session.passes = argument
    found = session.compiled()
    table = passes.pass_table(steps(found), width=width)
    return reply([*table, *_about(found, session, width)])


def _about(found: Compiled, session: Session, width: int) -> list[str]:
    """What the numbers are for: shown where some size is assumed."""
    sizes, assumed = numbers(found.optimised.lowered.program, found.known)
    shown = f"of {', '.join(found.asked)} on {session.device.name}"
    return fill(f"{shown}; {sizes_line(sizes, assumed)}" if sizes else shown, width)


def show_ir(session: Session, argument: str, width: int) -> Reply:
    """The loop IR after a pass; without one after all."""
    found = steps(session.compiled())
    number = stage(found, argument) if argument else len(found) - 1
    return reply(print_program(found[number].program, gutter=True).rstrip("\n"))


def show_diff(session: Session, argument: str, width: int) -> Reply:
    """From one pass to another; of one pass; or from the lowered program to the end."""
    found = steps(session.compiled())
    words = argument.replace(":", " ").split()
    if len(words) > 2:
        raise UserError(error("LF0821", f"`:diff {argument}` names more than two passes"))
    end = stage(found, words[-1]) if words else len(found) - 1
    start = stage(found, words[0]) if len(words) == 2 else max(end - 1, 0) if words else 0
    if start > end:
        raise UserError(error("LF0821", f"`{found[start].name}` ran after `{found[end].name}`"))
    title = Shown(f"== {found[start].name} -> {found[end].name}", "@")
    return Reply([title, *diff(found[start].program, found[end].program, width=width)])


def show_step(session: Session, argument: str, width: int) -> Reply:
    """Walk through the passes, from a named one on."""
    compiled = session.compiled()
    found = steps(compiled)
    first = next((s.number for s in found if s.changed), 0)
    stepper = Stepper(found, lambda a, b: _why(session, a, b), stage(found, argument) if argument else first)
    return Reply(stepper=stepper)


def show_why(session: Session, argument: str, width: int) -> Reply:
    """Why two definitions are, or are not, one kernel; without names every decision."""
    names = argument.replace(",", " ").split()
    if len(names) not in (0, 2):
        raise UserError(error("LF0502", "`:why` takes two definitions", fix=":why m e"))
    if names:
        return reply(_why(session, names[0], names[1]))
    found = session.compiled()
    lowered = found.optimised.lowered.program
    program = found.optimised.program
    codes = [_built(found, session, each)[0] for each in (lowered, program)]
    before, after = (
        reckon(plan(each, session.device, found.known, stages), built.code if built is not None else None)
        for each, stages, built in zip((lowered, program), ((), found.optimised.stages), codes, strict=True)
    )
    return reply([*decisions.decision_table(found.optimised.decisions, gutter(lowered), width), "",
                  decisions.totals(found.optimised.decisions), *outcome(before, after), *_about(found, session, width)])  # fmt: skip


def _why(session: Session, a: str, b: str) -> list[str]:
    found = session.compiled()
    written = {name for part in session.parts for name in part.names}
    history = History(found.optimised.lowered.program, found.optimised.stages, dict(found.typed.names), written)
    lines, _ = history.why(a, b, session.device, found.known)
    return lines


def show_cost(session: Session, argument: str, width: int) -> Reply:
    """The costs of all kernels, or one kernel and its plan."""
    found = session.compiled()
    program: Program = found.optimised.program
    planned = plan(program, session.device, found.known, found.optimised.stages)
    built, problem = _built(found, session, program)
    reckoned = reckon(planned, built.code if built is not None else None)
    each = reckoned.each
    if not argument:
        foot = costs.foot(program, each, session.device, planned.sizes, planned.assumed) + problem
        foot += emitted.emitters(built, reckoned) if built is not None else []
        return reply([*costs.cost_table(program, each), *(part for line in foot for part in fill(line, width))])
    kernel = next((k for k in program.kernels if k.id == argument), None)
    if kernel is None:
        known = ", ".join(k.id for k in program.kernels)
        raise UserError(error("LF0502", f"no kernel is called `{argument}`", notes=[f"there are {known}"]))
    said = problem + (emitted.emitters(built, reckoned, kernel.id) if built is not None else [])
    wrapped = [part for line in said for part in fill(line, width)]
    return reply(
        [
            *costs.kernel_view(program, kernel, each.get(kernel.id), emitted.workspace(built, reckoned, kernel.id)),
            *wrapped,
        ]
    )


def _built(found: Compiled, session: Session, program: Program) -> tuple[emitted.Built | None, list[str]]:
    """The CUDA C of one of the session's programs, with what was compiled of it before, which tells who writes each kernel; and
    why there is none. Neither for a device that has none."""
    if session.device.kind != "gpu":
        return None, []
    try:
        return emitted.kept(program, found.known, session.device, not found.known, open_cache()), []
    except CompilerError as why:
        return None, [f"there is no CUDA C of this program: {why}"]


def show_type(session: Session, argument: str, width: int) -> Reply:
    """The type of an expression, or of everything."""
    if argument:
        return reply(session.type_of(argument))
    return reply(listing.types(session.typed()))


def show_ranges(session: Session, argument: str, width: int) -> Reply:
    """Every index and its range, and what sizes must satisfy."""
    return reply(listing.ranges(session.typed()))


def show_remarks(session: Session, argument: str, width: int) -> Reply:
    """Everything that the passes said."""
    return reply(passes.remarks(steps(session.compiled())))
