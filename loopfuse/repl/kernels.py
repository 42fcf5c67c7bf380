"""The commands about kernels: their text, what runs the session's script, and how long that takes."""

from __future__ import annotations

from loopfuse import driver
from loopfuse.bench.measuring import How, Subject, measured
from loopfuse.bench.table import bench_table, foot
from loopfuse.cuda import engine
from loopfuse.cuda.cache import open_cache
from loopfuse.diag import MachineError, UserError, error
from loopfuse.repl.replies import Reply, reply
from loopfuse.repl.session import Compiled, Session
from loopfuse.views import emitted
from loopfuse.views.lines import defined
from loopfuse.views.tables import fill

BRIEF = 0.2  # seconds of calls


def show_cuda(session: Session, argument: str, width: int) -> Reply:
    """The CUDA C of all kernels or of one; with `!` the functions that they call too."""
    return _text(session, argument, "cuda")


def show_ptx(session: Session, argument: str, width: int) -> Reply:
    """The PTX of all kernels or of one."""
    return _text(session, argument, "ptx")


def show_sass(session: Session, argument: str, width: int) -> Reply:
    """The machine code of all kernels or of one."""
    return _text(session, argument, "sass")


def _text(session: Session, argument: str, kind: emitted.Kind) -> Reply:
    if session.device.kind != "gpu":
        raise UserError(error("LF0820", f"{session.device.name} runs no kernels", fix=":device h200"))
    found = session.compiled()
    whole, name = argument.startswith("!"), argument.lstrip("! ")
    kernel = _kernel(found, name) if name else None
    built = emitted.build(
        found.optimised.program, found.known, session.device, dynamic=not found.known, cache=open_cache()
    )
    if built.why is not None and kind != "cuda":
        raise built.why
    text = emitted.text(built, kind, kernel, whole, ":cuda!")
    return reply(text.rstrip("\n"), *([f"not compiled: {built.problem}"] if built.problem else []))


def _kernel(found: Compiled, name: str) -> str:
    """The kernel of a name, or the one that computes a definition. Raises `UserError` LF0502."""
    kernels = found.optimised.program.kernels
    chosen = next((k.id for k in kernels if name in (k.id, *defined(k))), None)
    if chosen is None:
        known = ", ".join(k.id for k in kernels) or "none"
        raise UserError(
            error("LF0502", f"no kernel is called `{name}`, and none computes it", notes=[f"there are {known}"])
        )
    return chosen


def set_backend(session: Session, argument: str, width: int) -> Reply:
    """What runs the script; with a name, what shall. Raises `MachineError` where that cannot be."""
    if argument:
        if argument not in driver.BACKENDS:
            known = ", ".join(driver.BACKENDS)
            raise UserError(error("LF0502", f"there is no back end `{argument}`", notes=[f"there are {known}"]))
        if argument == "cuda" and (problem := engine.usable()):
            raise MachineError(problem)
        session.backend = argument
    if session.backend != "auto":
        return reply(session.backend)
    problem = engine.usable()
    return reply(fill(f"auto: the reference interpreter ({problem})" if problem else "auto: cuda", width))


def show_bench(session: Session, argument: str, width: int) -> Reply:
    """How long the script takes, on the data that it has."""
    lowered, bound, made = session.prepared()
    backend = driver.chosen_backend(session.backend)
    row = measured(Subject(session.name, lowered, bound, session.passes), backend, How(BRIEF, energy=False))
    shown = ", ".join(f"{n} = {v}" for n, v in row.sizes.items())
    notes = [f"made-up data for {', '.join(made)}{f' with {shown}' if shown else ''}  (:set, :dims)"] if made else []
    return reply([*bench_table([row]), *(part for line in foot([row], "") for part in fill(line, width))], *notes)
