"""From the arguments of a command to a program after passes: what `ir`, `explain` and their like share."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopfuse import devices, driver, reader
from loopfuse.bind import Given
from loopfuse.cli import arguments
from loopfuse.cli.frame import OK, USER, Context
from loopfuse.cli.scripts import read_script
from loopfuse.decisions import Decision
from loopfuse.devices import Device
from loopfuse.diag import UserError, error
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.ir import Program
from loopfuse.passes import Options, Stage, selection
from loopfuse.views import pins
from loopfuse.views.counts import numbers
from loopfuse.views.lines import defined


@dataclass(frozen=True)
class Passed:
    """A program, the passes that ran on it, and what they were told. `typed` is None for IR text."""

    lowered: Program
    stages: tuple[Stage, ...]
    device: Device
    known: dict[str, int]
    typed: TypedProgram | None = None
    code: int = OK

    @property
    def program(self) -> Program:
        """The program after the last pass."""
        return self.stages[-1].program if self.stages else self.lowered

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision, in order."""
        return tuple(d for stage in self.stages for d in stage.decisions)

    @property
    def numbers(self) -> tuple[dict[str, int], frozenset[str]]:
        """A number for every size of the lowered program, and which of them are assumed."""
        return numbers(self.lowered, self.known)

    @property
    def names(self) -> list[str]:
        """`lower` and the names of the passes that ran."""
        return ["lower", *(stage.name for stage in self.stages)]

    def home(self, name: str) -> str | None:
        """The kernel of the last program that computes a definition, or holds what became of it."""
        for number in range(len(self.stages), -1, -1):
            found = next((k.id for k in self.at(number).kernels if name in (k.id, *defined(k))), None)
            if found is not None:
                return found if any(k.id == found for k in self.program.kernels) else None
        return None

    def after(self, name: str) -> int:
        """The number of the stage of a name (or number): 0 is the lowered program. Raises `UserError` LF0821."""
        known = self.names
        if name in known:
            return known.index(name)
        if name.isdecimal() and int(name) < len(known):
            return int(name)
        near = difflib.get_close_matches(name, known, 1)
        raise UserError(error("LF0821", f"no pass `{name}` ran", notes=[f"those that ran are {', '.join(known)}"],
                              fix=f"did you mean `{near[0]}`?" if near else None))  # fmt: skip

    def at(self, number: int) -> Program:
        """The program after a stage."""
        return self.stages[number - 1].program if number else self.lowered


def compile_script(parser: arguments.Parser, options: argparse.Namespace, context: Context) -> Passed:
    """Check, lower and optimise the script that the options name."""
    source = context.source = read_script(options.script)
    base = arguments.script_folder(source)
    sizes = arguments.integers(parser, options.sizes, "-D")
    checked = driver.compile_source(source, sizes=sizes, search=base)
    context.terminal.diagnostics(checked.remarks)
    lowered = driver.lower_program(checked.typed)
    told = _told(parser, options, lowered.program)
    told.frozen = _frozen(options.freeze, checked.typed, base, told.sizes)
    done = driver.optimise(lowered, told, options.passes if options.passes is not None else "default")
    context.terminal.diagnostics(done.unmet)
    code = USER if done.unmet else OK
    return _finished(options, Passed(lowered.program, done.stages, told.device, dict(told.sizes), checked.typed, code))


def compile_text(parser: arguments.Parser, options: argparse.Namespace, context: Context) -> Passed:
    """Read IR text, verify it, and run the passes that are named; none unless they are."""
    source = context.source = read_script(options.file)
    with driver.guard("reader"):
        program = reader.parse_program(source.text, source.name)
    driver.verify_text(program)
    if options.freeze:
        parser.error("--freeze needs a script")
    told = _told(parser, options, program)
    stages = driver.optimise_ir(program, told, options.passes if options.passes is not None else "none")
    return _finished(options, Passed(program, stages, told.device, dict(told.sizes)))


def _told(parser: arguments.Parser, options: argparse.Namespace, program: Program) -> Options:
    """The options of the passes."""
    selection(options.passes or "none")
    dims = _known(program, arguments.integers(parser, options.dims, "--dims"), "--dims")
    fixed = _known(program, arguments.integers(parser, options.specialise, "--specialise"), "--specialise")
    decisions = pins.read(read_script(options.decisions).text, options.decisions) if options.decisions else {}
    return Options(device=devices.parse_device(options.device), sizes={**dims, **fixed}, specialise=fixed,
                   decide_max=options.decide_max, decisions=decisions)  # fmt: skip


def _known(program: Program, given: Mapping[str, int], option: str) -> dict[str, int]:
    """The sizes that an option gives, all of them sizes of the program that the script leaves open."""
    open_ = [s.id for s in program.sizes if s.value is None and s.origin != "plan"]
    for name, value in given.items():
        if name not in open_:
            near = difflib.get_close_matches(name, open_, 1)
            has = f"its sizes are {', '.join(open_)}" if open_ else "all its sizes are fixed"
            raise UserError(error("LF0502", f"{option}: the program has no open size `{name}`", notes=[has],
                                  fix=f"did you mean `{near[0]}`?" if near else None))  # fmt: skip
        if value < 0:
            raise UserError(error("LF0506", f"{option}: the size `{name}` cannot be {value}"))
    return dict(given)


def _frozen(texts: Sequence[str], typed: TypedProgram, base: Path, dims: Mapping[str, int]) -> dict[str, Array]:
    """The arrays of frozen inputs: from the files given, or those that the script names by `from`."""
    if not texts:
        return {}
    pairs = [part.strip().partition("=") for text in texts for part in text.split(",") if part.strip()]
    names = [name for name, _, _ in pairs]
    defaults = {i.name for i in typed.inputs if i.default is not None}
    others = {i.name for i in typed.inputs} - set(names)
    inputs = driver.read_inputs(typed, {n: v for n, sign, v in pairs if sign}, base, skip=others)
    for name in names:
        if name not in inputs and any(i.name == name and name not in defaults for i in typed.inputs):
            raise UserError(error("LF0501", f"`{name}` cannot be frozen: it has no data", fix=f"--freeze {name}=FILE"))
    kept = {n: d for n, d in inputs.items() if n in names}
    bound = driver.bind_program(typed, Given(kept, dims=dims, fill=True))
    return driver.frozen_arrays(typed, bound, names)


def _finished(options: argparse.Namespace, done: Passed) -> Passed:
    if options.write_decisions:
        write_file(Path(options.write_decisions), pins.write(done.decisions))
    return done


def write_file(path: Path, text: str) -> None:
    """Write a text. Raises `UserError` LF0515 where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as why:
        raise UserError(error("LF0515", f"`{path}` cannot be written: {why.strerror}")) from why
