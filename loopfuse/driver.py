"""From source text to results: the stages in order, timed and guarded. Every face (command line, API) calls these.

A mistake of the user's leaves here as `UserError`. Anything else that goes wrong in a stage leaves as `CompilerError`
that names the stage and carries the intermediate form it failed on.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from loopfuse import contracts
from loopfuse.backends import reference
from loopfuse.bind import Bound, Given, bind, buffer_bytes, check_memory
from loopfuse.cuda import engine
from loopfuse.decisions import Decision
from loopfuse.diag import (
    Collector,
    CompilerError,
    Diagnostic,
    LoopfuseError,
    MachineError,
    Source,
    Span,
    UserError,
    error,
)
from loopfuse.draws import Draw, draws
from loopfuse.files import Place, load
from loopfuse.frontend.check import check_source
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import Check, Output, TypedProgram
from loopfuse.generate import Array, parse_spec
from loopfuse.ir import Program
from loopfuse.lock import Lock
from loopfuse.memory import default_limit, show_bytes
from loopfuse.outside import read_whole
from loopfuse.passes import Options, Pass, Stage, run_passes, selection
from loopfuse.passes.fuse import expectations
from loopfuse.printer import print_program
from loopfuse.verify import violations

T = TypeVar("T")
Progress = Callable[[float], None]  # told the fraction done
MOST_TEMPORARIES, LEAST_TEMPORARIES = 1 << 30, 1 << 24
BACKENDS = ("auto", "cuda", "reference")
TILE = 32  # where the reference runs a tiled program


@dataclass
class Clock:
    """Seconds spent in each stage, in the order in which they first ran."""

    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages[stage] = self.stages.get(stage, 0.0) + time.perf_counter() - start


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector: while a program is compiled its trees only grow, and walking them again and
    again takes more time than some of the stages. Reference counts still free what is let go."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # all that is alive counts as old at once, so that none of it is walked now
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def guard(stage: str, artifact: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn every unforeseen exception of the block into a `CompilerError` of this stage.

    `MemoryError` is the machine's limit and becomes LF0509; running out of stack is our bug like any other.
    """
    try:
        yield
    except LoopfuseError:
        raise
    except MemoryError as why:
        raise UserError(error("LF0509", "there is not enough memory", fix="smaller sizes")) from why
    except Exception as why:
        raise CompilerError(stage, f"{type(why).__name__}: {why}", _attempt(artifact)) from why


def _attempt(artifact: Callable[[], str] | None) -> str:
    """The artifact's text; a failure to print must not hide the failure that is being told."""
    try:
        return artifact() if artifact else ""
    except Exception as why:
        return f"# could not be printed: {type(why).__name__}: {why}\n"


# -- compiling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """A script that the checker accepted, with the warnings and remarks it made."""

    source: Source
    typed: TypedProgram
    remarks: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A checked script and its loop IR. `roots` are the buffers it computes: the outputs, and what else was asked."""

    typed: TypedProgram
    program: Program
    roots: tuple[str, ...]

    @property
    def shown(self) -> dict[str, str]:
        """What the script calls the outputs of the program, by their buffers: an output `k` beside an index `k` is a buffer
        `k.1`. A check is called by its condition."""
        names = {o.buffer: o.name for o in reversed(self.typed.outputs)}
        names |= {c.buffer: c.text for c in self.typed.checks if c.domain_of is None}
        ends = [b.id for b in self.program.buffers if b.role == "out"]
        return {end: names[root] for root, end in zip(self.roots, ends, strict=False) if root in names}


@dataclass(frozen=True, slots=True)
class Optimised:
    """A lowered script after passes. `frozen` holds the arrays of the program's frozen buffers by id."""

    lowered: Lowered
    stages: tuple[Stage, ...]

    @property
    def program(self) -> Program:
        """The program after the last pass."""
        return self.stages[-1].program if self.stages else self.lowered.program

    @property
    def typed(self) -> TypedProgram:
        """The checked script."""
        return self.lowered.typed

    @property
    def roots(self) -> tuple[str, ...]:
        """The buffers that the script computes; see `Lowered`."""
        return self.lowered.roots

    @property
    def frozen(self) -> dict[str, Array]:
        """The arrays of frozen buffers."""
        return {id: array for stage in self.stages for id, array in stage.notes.get("frozen", {}).items()}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What the passes decided, in order."""
        return tuple(d for stage in self.stages for d in stage.decisions)

    @property
    def unmet(self) -> list[Diagnostic]:
        """LF0620 for each `expect` that the passes did not meet; none where kernels were not joined at all."""
        plans = next((s.notes["plans"] for s in reversed(self.stages) if "plans" in s.notes), None)
        return [] if plans is None else expectations(self.program, plans, self.decisions)


def read_source(path: Path) -> Source:
    """The text of a script file. Raises `UserError` LF0510 where it cannot be read."""
    try:
        return Source(str(path), read_whole(path).decode("utf-8-sig"))
    except UnicodeDecodeError as why:
        raise UserError(error("LF0511", f"`{path}` is not a text in UTF-8 (byte {why.start})")) from why
    except (OSError, ValueError) as why:
        reason = getattr(why, "strerror", None) or str(why)
        raise UserError(error("LF0510", f"cannot read the script `{path}`: {reason}")) from why


def compile_source(source: Source, *, sizes: Mapping[str, int] | None = None, search: Path | None = None,
                   clock: Clock | None = None) -> Checked:  # fmt: skip
    """Parse and check a script. `sizes` replaces values of `size` statements; `search` is the folder of its imports.

    Raises `UserError` with every error found.
    """
    collector = Collector()
    with (clock or Clock()).time("check"), guard("check"), uncollected():
        typed = check_source(source, sizes=sizes, search=search, collector=collector)
    collector.raise_errors()
    if typed is None:
        raise CompilerError("check", "no program and no error")
    remarks = {id(d): d for d in (*collector.found, *typed.remarks)}
    return Checked(source, typed, tuple(remarks.values()))


def lower_program(typed: TypedProgram, *, roots: Iterable[str] | None = None, clock: Clock | None = None) -> Lowered:
    """Lower to the loop IR and verify it. `roots` are buffers to compute beside (None: only) the outputs."""
    clock = clock or Clock()
    wanted = tuple(dict.fromkeys((*(o.buffer for o in typed.outputs), *(roots or ()))))
    with clock.time("lower"), guard("lower"), uncollected():
        program = lower(typed, roots=wanted)
    verify_program(program, "lower", clock)
    return Lowered(typed, program, wanted)


def optimise(lowered: Lowered, options: Options | None = None, passes: str | Iterable[Pass] = "default",
             clock: Clock | None = None) -> Optimised:  # fmt: skip
    """Run passes, verified after each. `passes`: a selection as for `--passes`, or the passes themselves.

    Raises `UserError` LF0821 for a name that no pass has, and `CompilerError` that names the pass to blame.
    """
    options = options or Options()
    unused = {b.id for b in lowered.typed.buffers} - {b.id for b in lowered.program.buffers}
    if not unused.isdisjoint(options.frozen):
        options = replace(options, frozen={id: a for id, a in options.frozen.items() if id not in unused})
    return Optimised(lowered, optimise_ir(lowered.program, options, passes, clock))


def optimise_ir(program: Program, options: Options | None = None, passes: str | Iterable[Pass] = "default",
                clock: Clock | None = None) -> tuple[Stage, ...]:  # fmt: skip
    """`optimise` for loop IR as such: a valid program, such as one read from a file."""
    chosen = selection(passes) if isinstance(passes, str) else tuple(passes)
    with (clock or Clock()).time("passes"), guard("passes", lambda: print_program(program)), uncollected():
        return run_passes(program, chosen, options)


def verify_program(program: Program, stage: str, clock: Clock | None = None) -> None:
    """Raise `CompilerError`, blaming `stage`, unless the program keeps every invariant of the IR."""
    with (clock or Clock()).time("verify"), guard("verify", lambda: print_program(program)), uncollected():
        problems = list(violations(program))
    if problems:
        raise CompilerError(stage, "; ".join(map(str, problems[:5])), _attempt(lambda: print_program(program)))


def verify_text(program: Program) -> None:
    """Raise `UserError` LF0810 where IR text that a user wrote breaks an invariant."""
    with guard("verify"):
        problems = list(violations(program, ranges=True))
    if problems:
        raise UserError([error("LF0810", f"this program is not valid: {p}", p.span) for p in problems[:10]])


# -- data -------------------------------------------------------------------------------------------------------------


def read_inputs(typed: TypedProgram, written: Mapping[str, str], base: Path, skip: Container[str] = (),
                ) -> dict[str, object]:  # fmt: skip
    """The data of each input: a generator or a file that the caller names, or the file named by `from`.

    Names in `written` are relative to the working folder, those in the script to `base`, the folder of the script. An
    input without either, and those to `skip`, are absent; names that are no inputs are kept, for `bind` to refuse.
    """
    found: dict[str, object] = dict.fromkeys(written)
    buffers = {b.id: b for b in typed.buffers}
    for entry in typed.inputs:
        buffer = buffers[entry.buffer]
        if entry.name in written:
            text = written[entry.name]
            spec = parse_spec(text)
            place = Place(text, Path())
        elif entry.default is not None and entry.name not in skip:
            spec, place = None, Place(entry.default, base, _quoted(entry.span, entry.default))
        else:
            continue
        with guard("files"):
            found[entry.name] = spec or load(place, buffer.dtype, len(buffer.shape), entry.name)
    return found


def _quoted(span: Span | None, text: str) -> Span | None:
    """The string in a declaration, or the declaration where it is not found as written."""
    at = span.text.find(f'"{text}"') if span else -1
    return Span(span.source, span.start + at, span.start + at + len(text) + 2) if span and at >= 0 else span


def output_place(output: Output) -> Place | None:
    """The file named by `to`, relative to the working folder: a script may lie where nobody may write."""
    return Place(output.to, Path(), _quoted(output.span, output.to)) if output.to is not None else None


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run: outputs by name in order, and every root by its buffer's id."""

    outputs: dict[str, Array]
    buffers: dict[str, Array]


def execute(lowered: Lowered | Optimised, bound: Bound, *, backend: str = "auto", limit: int | None = None,
            progress: Progress | None = None, clock: Clock | None = None, lock: Lock | None = None) -> Outcome:  # fmt: skip
    """Run a lowered or optimised program on bound inputs; frozen arrays take the place of those that were bound.

    `backend`: `reference`, `cuda`, or `auto`, the best there is. `limit`: bytes of the host that may be allocated. `lock`:
    the tiles to take on a GPU.
    Raises `UserError` LF0509 for memory, LF0620 for an `expect` that the passes did not meet and LF0704 for reads and
    writes outside an array; `MachineError` for a back end that is absent.
    """
    if isinstance(lowered, Optimised) and (unmet := lowered.unmet):
        raise UserError(unmet)
    inputs = run_inputs(lowered, bound)
    clock = clock or Clock()
    if chosen_backend(backend) == "cuda":
        with clock.time("cuda"), guard("cuda", lambda: print_program(lowered.program)):
            outputs, faults = engine.open_engine().run(lowered.program, inputs, bound.sizes, clock.stages, lock)
        if faults:
            raise UserError([fault_message(*fault) for fault in faults])
    else:
        allowed = default_limit() if limit is None else limit
        sizes = plan_sizes(lowered.program) | bound.sizes
        room = allowed - _check_memory(lowered.program, sizes, allowed)
        limit = max(LEAST_TEMPORARIES, min(room, MOST_TEMPORARIES))
        with clock.time("run"), guard("reference", lambda: print_program(lowered.program)):
            result = reference.run(lowered.program, inputs, sizes, limit=limit, progress=progress)
        outputs = result.outputs
        if result.faults:
            raise UserError([fault_message(f.buffer, f.span, f.count, f.first) for f in result.faults])
    ends = [b.id for b in lowered.program.buffers if b.role == "out"]
    buffers = {root: outputs[end] for root, end in zip(lowered.roots, ends, strict=True)}
    return Outcome({o.name: buffers[o.buffer] for o in lowered.typed.outputs}, buffers)


def chosen_backend(name: str) -> str:
    """The back end that a name stands for here: `auto` is the GPU where one can be used. Raises `MachineError`."""
    if name not in BACKENDS:
        raise MachineError(f"there is no back end `{name}`; there are {', '.join(BACKENDS)}")
    if name != "auto":
        return name
    return "reference" if engine.usable() else "cuda"


def run_inputs(lowered: Lowered | Optimised, bound: Bound) -> dict[str, Array]:
    """The arrays that a program starts from, by buffer."""
    frozen = lowered.frozen if isinstance(lowered, Optimised) else {}
    wanted = [b.id for b in lowered.program.buffers if b.role in ("in", "param", "frozen")]
    return {id: frozen[id] if id in frozen else bound.inputs[id] for id in wanted}


def plan_sizes(program: Program, tile: int = TILE) -> dict[str, int]:
    """Values for the sizes that a schedule would choose; any that their declarations allow are right."""
    return {s.id: -(-max(tile, s.least or 1) // s.multiple) * s.multiple for s in program.sizes if s.origin == "plan"}


def _check_memory(program: Program, sizes: Mapping[str, int], allowed: int) -> int:
    """The bytes of all buffers, which must not be more than is allowed."""
    bytes_of = {b.id: buffer_bytes(b, sizes) for b in program.buffers}
    note = ""
    if program.buffers:
        largest = max(program.buffers, key=lambda b: bytes_of[b.id])
        extents = ", ".join(str(p.value(sizes)) for p in largest.shape)
        note = f"the largest is `{largest.id}`, {largest.dtype}[{extents}], {show_bytes(bytes_of[largest.id])}"
    total = sum(bytes_of.values())
    check_memory(total, allowed, "the arrays of the program", note)
    return total


def fault_message(buffer: str, span: Span | None, count: int, first: reference.Stray | None = None) -> Diagnostic:
    """LF0704: a checked access that went outside its array so many times; `first`: the subscript that did so first."""
    what = f"`{span.text}`" if span else f"a subscript of `{buffer}`"
    times = "once" if count == 1 else f"{count} times"
    label = "outside for some element"
    if first is not None:
        text = contracts.subscript_text(buffer, span, first.axis)
        axis = f"axis {first.axis}" if text else f"axis {first.axis} of `{buffer}`"
        extent = f"has {first.extent} element{'s' * (first.extent != 1)}"
        label = (
            f"{'first ' * (count > 1)}{f'`{text}`' if text else 'its subscript'} is {first.value}, and {axis} {extent}"
        )
        times += f": {label}"
    return error("LF0704", f"{what} went outside its array, {times}", span, label,
                 notes=["the access was not performed, and the results were dropped"])  # fmt: skip


def run_program(typed: TypedProgram, given: Given, *, roots: Iterable[str] | None = None, backend: str = "auto",
                passes: str = "default", freeze: Iterable[str] = (), progress: Progress | None = None,
                clock: Clock | None = None) -> Outcome:  # fmt: skip
    """Bind, lower, optimise and execute: the whole way from data to results.

    `freeze` names the inputs and params that are constants; see `frozen_arrays`.
    """
    clock = clock or Clock()
    selection(passes)
    bound = bind_program(typed, given, clock)
    options = Options(sizes=bound.sizes, frozen=frozen_arrays(typed, bound, freeze))
    optimised = optimise(lower_program(typed, roots=roots, clock=clock), options, passes, clock)
    return execute(optimised, bound, backend=backend, limit=given.limit, progress=progress, clock=clock)


def frozen_arrays(typed: TypedProgram, bound: Bound, names: Iterable[str]) -> dict[str, Array]:
    """The arrays of inputs and params to freeze, by buffer (by size for an integer param), for `Options.frozen`.

    Raises `UserError` LF0502 for a name that is neither.
    """
    inputs = {i.name: i.buffer for i in typed.inputs}
    found: dict[str, Array] = {}
    for name in names:
        id = inputs.get(name, name)
        if id in bound.inputs:
            found[id] = bound.inputs[id]
        elif any(s.id == name and s.origin == "param" for s in typed.sizes):
            found[name] = np.asarray(bound.sizes[name])
        else:
            known = ", ".join((*inputs, *(p.name for p in typed.params)))
            raise UserError(error("LF0502", f"the program has no input `{name}` to freeze",
                                  notes=[f"its inputs are {known}"]))  # fmt: skip
    return found


def bind_program(typed: TypedProgram, given: Given, clock: Clock | None = None) -> Bound:
    """`bind`, timed and guarded."""
    with (clock or Clock()).time("bind"), guard("bind"):
        return bind(typed, given)


def trial_data(typed: TypedProgram, given: Given, freeze: Iterable[str] = ()
               ) -> tuple[tuple[Draw, ...], dict[str, Array]]:  # fmt: skip
    """Several sets of data to try a program on, the missing made up (see `draws`), and the frozen arrays, which are the
    same in all."""
    frozen = frozen_arrays(typed, bind_program(typed, given), freeze) if freeze else {}
    kept = {i.name: frozen[i.buffer] for i in typed.inputs if i.buffer in frozen}
    with guard("bind"):
        return draws(typed, replace(given, inputs={**given.inputs, **kept})), frozen


def failed_checks(typed: TypedProgram, bound: Bound, outcome: Outcome) -> list[Diagnostic]:
    """LF0613 for each `check` that came out false in a run whose roots held its buffer, with the first failure."""
    found: list[Diagnostic] = []
    for check in typed.checks:
        if check.domain_of is None and not bool(outcome.buffers[check.buffer]):
            with guard("check"):
                found.append(_failed(typed, check, bound))
    return found


def check_buffers(typed: TypedProgram) -> list[str]:
    """The buffers of the `check` statements, to be asked for as roots."""
    return [c.buffer for c in typed.checks if c.domain_of is None]


def _failed(typed: TypedProgram, check: Check, bound: Bound) -> Diagnostic:
    found = contracts.witness(typed, check, bound.sizes, bound.inputs)
    notes = [check.message] if check.message else []
    label = ""
    if found is not None:
        place = f"first at [{', '.join(map(str, found.index))}]" if found.index else ""
        values = ", ".join(f"`{text}` is {value}" for text, value in found.values)
        label = ": ".join(part for part in (place, values) if part)
    message = f"check failed: `{check.text}`" + (f" ({label})" if label else "")
    return error("LF0613", message, check.span, label, notes=notes)
