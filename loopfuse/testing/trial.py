"""One program on one set of data: whether it compiles, whether its checks hold, and whether every pass and back end gives
the same results."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopfuse import driver
from loopfuse.agreement import Jury, Runner, attempt
from loopfuse.bind import Bound, Given
from loopfuse.diag import CompilerError, Source, Span, UserError
from loopfuse.draws import Draw
from loopfuse.frontend import ast
from loopfuse.frontend.lint import walk
from loopfuse.frontend.parse import parse
from loopfuse.generate import Array, Scalar
from loopfuse.passes import Options, Steps, selection
from loopfuse.printer import print_program
from loopfuse.testing import data
from loopfuse.testing.alike import OFTEN, SELDOM
from loopfuse.testing.choices import Choices
from loopfuse.testing.coverage import RULE_PASSES, of_program, of_stages
from loopfuse.testing.limit import TooLong, limited
from loopfuse.views.values import short_values

MEMORY = 1 << 28
LARGE = (1024, 65536, 128)
VARIED = (64, 1024, 128, 4096, 65536)


@dataclass(frozen=True, slots=True)
class Setting:
    """How programs are run: the passes, the extents that are drawn, and back ends beside the reference interpreter, by
    name. `contracts`: a check that fails and an access that leaves its array are failures, as they are of a script that
    somebody wrote. `seconds`: how long the compiler, and then the runs of a program, may take."""

    passes: str = "default"
    shapes: str = "edge"
    runners: Mapping[str, Runner] = field(default_factory=dict)
    contracts: bool = True
    seconds: float = 60.0


@dataclass(frozen=True)
class Case:
    """A script and what it ran on: arrays and params by name, sizes, and what the cost model was told (`costed`; None:
    nothing)."""

    text: str
    name: str = "script.lf"
    folder: Path | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    compiled: Mapping[str, int] = field(default_factory=dict)
    costed: Mapping[str, int] | None = None
    kind: str = ""


@dataclass(frozen=True)
class Failure:
    """What was found. `what` is `refused` (the checker refuses a generated script), `crash` (our own error), `pass`
    (results differ after a pass, or on a back end named by `where`), `hang` (it does not end), `check` (a `check` does not
    hold) or `outside` (an access leaves its array). `where` is the stage, `about` the text of the check, or of the access and
    the statement around it: as text, since the line is another one when statements before it are taken out. `case` shows it."""

    what: str
    where: str
    problem: str
    case: Case
    about: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What makes two failures one kind."""
        return self.what, self.where or self.about

    @property
    def title(self) -> str:
        """In a sentence."""
        stage = {"pass": f"after {self.where}", "crash": f"in {self.where}", "hang": f"in {self.where}"}
        where = stage.get(self.what, self.where)
        return f"{where}: {self.problem}" if where else self.problem

    @property
    def taints(self) -> bool:
        """Whether what the process runs afterwards may be wrong for this reason alone."""
        return self.what == "hang" or (self.what == "pass" and self.where in driver.BACKENDS)


@dataclass
class Outcome:
    """What a trial gave: a failure or None, what was reached, elements compared and those undecided, seconds. `others` are
    checks and accesses that failed on the same data. `skipped` says why something did not run, `idle` that nothing did, `ran`
    which back ends beside the reference did, `stage` where it is."""

    failure: Failure | None = None
    reached: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    undecided: int = 0
    seconds: float = 0.0
    skipped: str = ""
    idle: bool = False
    ran: tuple[str, ...] = ()
    stage: str = ""
    others: tuple[Failure, ...] = ()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All that failed, the first in the text first."""
        return () if self.failure is None else (self.failure, *self.others)

    def like(self, failure: Failure) -> Failure | None:
        """What failed here as `failure` did, if anything."""
        return next((f for f in self.failures if f.key == failure.key), None)


@dataclass(frozen=True, slots=True)
class Subject:
    """A script that was checked and lowered; the roots of the lowered program hold its checks too."""

    checked: driver.Checked
    lowered: driver.Lowered
    given: Given = Given({})
    folder: Path | None = None
    compiled: Mapping[str, int] = field(default_factory=dict)


def subject(text: str, name: str = "script.lf", folder: Path | None = None, given: Given | None = None,
            compiled: Mapping[str, int] | None = None) -> Subject:  # fmt: skip
    """Check and lower a script. Raises `UserError` and `CompilerError` as the driver does."""
    checked = driver.compile_source(Source(name, text), search=folder, sizes=compiled)
    lowered = driver.lower_program(checked.typed, roots=driver.check_buffers(checked.typed))
    return Subject(checked, lowered, given or Given({}), folder, compiled or {})


def tried(text: str, choices: Choices, setting: Setting) -> Outcome:
    """A trial of a generated script: it must compile, and it runs on data that is drawn."""
    start = time.perf_counter()
    made = _compiled(Case(text), setting)
    outcome = Outcome(made) if isinstance(made, Failure) else drawn(made, choices, setting)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _compiled(case: Case, setting: Setting) -> Subject | Failure:
    """The script of a case, or why it is none."""
    try:
        with limited(setting.seconds):
            return subject(case.text, case.name, case.folder, compiled=case.compiled)
    except TooLong:
        return Failure("hang", "check", _late(setting), case)
    except UserError as why:
        diagnostic = why.diagnostics[0]
        return Failure("refused", "check", f"{diagnostic.code}: {diagnostic.message}", case)
    except CompilerError as why:
        return Failure("crash", why.stage, why.message, case)


def _late(setting: Setting) -> str:
    return f"it did not end within {setting.seconds:g} s"


def drawn(made: Subject, choices: Choices, setting: Setting) -> Outcome:
    """A trial on data that is drawn for what the subject does not have."""
    start = time.perf_counter()
    named, rows = (told(made), OFTEN) if setting.contracts else ((), SELDOM)
    draw = data.draw(made.checked.typed, made.given, choices, setting.shapes, named, rows)
    if isinstance(draw, str):
        return Outcome(skipped=draw, idle=True)
    costed = _costed(draw.bound, made, choices)
    outcome = run(made, draw, costed, setting)
    outcome.seconds = time.perf_counter() - start
    return outcome


NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
MOST_TOLD = 24


def told(made: Subject) -> tuple[float, ...]:
    """Numbers that a script names, which its conditions are likely to be about."""
    found = dict.fromkeys(float(n) for n in NUMBER.findall(made.checked.source.text))
    return tuple(n for n in found if n < 1e300)[:MOST_TOLD]


def _costed(bound: Bound, made: Subject, choices: Choices) -> Mapping[str, int] | None:
    """What the cost model is told of sizes: the truth, nothing, or that they are large, whose kernels are other ones."""
    how = choices.number(0, 9)
    if how < 4:
        return bound.sizes
    if how == 4:
        return None
    open_ = [s.id for s in made.checked.typed.sizes if s.origin == "shape"]
    if how < 8:
        return {**bound.sizes, **dict.fromkeys(open_, choices.pick(LARGE))}
    return {**bound.sizes, **{name: choices.pick(VARIED) for name in open_}}


def case_of(made: Subject, draw: Draw, costed: Mapping[str, int] | None) -> Case:
    """What a trial ran on."""
    typed, bound = made.checked.typed, draw.bound
    params: dict[str, Scalar] = {}
    for p in typed.params:
        params[p.name] = short_values(bound.inputs[p.name]) if p.name in bound.inputs else bound.sizes[p.name]
    shape = {s.id: bound.sizes[s.id] for s in typed.sizes if s.origin == "shape"}
    arrays = {i.name: bound.inputs[i.buffer] for i in typed.inputs}
    source = made.checked.source
    return Case(source.text, source.name, made.folder, arrays, params, shape, made.compiled, costed, draw.kind)


def run(made: Subject, draw: Draw, costed: Mapping[str, int] | None, setting: Setting) -> Outcome:
    """Every pass and back end on a set of data. The first stage that fails ends the trial; of checks, and of accesses, all
    that fail are told."""
    outcome = Outcome(reached=of_program(made.lowered.program), stage="reference")
    case = case_of(made, draw, costed)
    try:
        with limited(setting.seconds):
            found = _ran(made, draw, costed, setting, outcome)
    except TooLong:
        found = [("hang", outcome.stage, _late(setting))]
    except CompilerError as why:
        found = [("crash", why.stage, why.message)]
    failures = [Failure(what, where, problem, case, *about) for what, where, problem, *about in found]
    if failures:
        outcome.failure, outcome.others = failures[0], tuple(failures[1:])
    return outcome


Wrong = tuple[str, ...]  # what is wrong, where, how it shows, and perhaps what it is about


def _ran(made: Subject, draw: Draw, costed: Mapping[str, int] | None, setting: Setting,
         outcome: Outcome) -> list[Wrong]:  # fmt: skip
    """What is wrong; empty where nothing is."""
    try:
        with driver.guard("reference", lambda: print_program(made.lowered.program)):
            jury = Jury(made.lowered.program, (draw,), MEMORY, shown=made.lowered.shown)
    except UserError:
        outcome.skipped, outcome.idle = "it needs more memory than trials may use", True
        return []
    wrong = _by_the_script(made, draw, jury) if setting.contracts else []
    if wrong:
        return wrong
    where, message = _after_passes(made, jury, costed, setting, outcome)
    return [("pass", where, message)] if message else []


def _by_the_script(made: Subject, draw: Draw, jury: Jury) -> list[Wrong]:
    """What is wrong with what the script itself says of this data."""
    result = jury.results[0]
    if result.faults:
        return [("outside", "", driver.fault_message(f.buffer, f.span, f.count, f.first).message, _access(made, f.buffer, f.span))
                for f in result.faults]  # fmt: skip
    typed = made.checked.typed
    if not driver.check_buffers(typed):
        return []
    ends = [b.id for b in made.lowered.program.buffers if b.role == "out"]
    buffers = {root: result.outputs[end] for root, end in zip(made.lowered.roots, ends, strict=True)}
    failed = driver.failed_checks(typed, draw.bound, driver.Outcome({}, buffers))
    return [("check", "", "; ".join((d.message, *d.notes)), d.primary.text if d.primary else "") for d in failed]


def _access(made: Subject, buffer: str, span: Span | None) -> str:
    """The text of an access and of the statement that it stands in: the same subscripts elsewhere are another access."""
    if span is None:
        return buffer
    if span.source.text != made.checked.source.text:  # of a module: all that is known is the access
        return span.text
    around = [n.span for n, _ in walk(parse(span.source)) if isinstance(n, ast.Stmt)
              and n.span.start <= span.start and span.end <= n.span.end]  # fmt: skip
    return f"{span.text} in {around[-1].text}" if around else span.text


def _after_passes(made: Subject, jury: Jury, costed: Mapping[str, int] | None, setting: Setting,
                  outcome: Outcome) -> tuple[str, str]:  # fmt: skip
    """The first stage after which results differ, and how; empty where none does."""
    steps = {name: Steps() for name in RULE_PASSES}
    options = Options(sizes=costed or {}, steps=steps)
    program, results = made.lowered.program, jury.results
    stages = []
    for p in selection(setting.passes):
        outcome.stage = p.name
        row, results = attempt(p, program, options, jury, results)
        outcome.elements = max(outcome.elements, row.verdict.elements)
        outcome.undecided = max(outcome.undecided, row.verdict.undecided)
        if row.stage is None or not row.agrees:
            return row.name, row.verdict.problem
        stages.append(row.stage)
        program = row.stage.program
    outcome.reached += of_stages(stages, steps) + (of_program(program) - of_program(made.lowered.program))
    for name, runner in setting.runners.items():
        outcome.stage = name
        try:
            verdict, _ = jury.judges[0].judge_elsewhere(program, runner, results[0])
        except UserError as why:  # what the compiled program needs, this machine has not
            outcome.skipped = f"{name}: {why.diagnostics[0].message}"
            continue
        outcome.ran += (name,)
        outcome.undecided = max(outcome.undecided, verdict.undecided)
        if verdict.problem:
            return name, verdict.problem
    return "", ""


def again(case: Case, setting: Setting, made: Subject | Failure | None = None) -> Outcome:
    """The trial of a case, once more or of one that was changed: sizes as far as its arrays do not settle them. `made` is its
    script, where that was compiled before."""
    made = made or _compiled(case, setting)
    if isinstance(made, Failure):
        return Outcome(made)
    typed = made.checked.typed
    arrays = {i.name: case.arrays[i.name] for i in typed.inputs if i.name in case.arrays}
    params = {p.name: case.params[p.name] for p in typed.params if p.name in case.params}
    shape = {s.id for s in typed.sizes if s.origin == "shape"}
    dims = {n: v for n, v in case.sizes.items() if n in shape}
    try:
        bound = driver.bind_program(typed, Given(arrays, params, dims, limit=MEMORY, fill=not case.arrays))
    except UserError as why:
        diagnostic = why.diagnostics[0]
        return Outcome(Failure("refused", "check", f"{diagnostic.code}: {diagnostic.message}", case))
    costed = None if case.costed is None else {n: v for n, v in case.costed.items() if n in bound.sizes} | {
        n: v for n, v in bound.sizes.items() if n not in case.costed
    }  # fmt: skip
    outcome = run(made, Draw(bound, case.kind), costed, setting)
    if outcome.failure is not None:
        first, *others = (replace(f, case=replace(f.case, folder=case.folder)) for f in outcome.failures)
        outcome.failure, outcome.others = first, tuple(others)
    return outcome
