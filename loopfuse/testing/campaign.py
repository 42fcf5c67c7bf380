"""Many trials: until a number of programs or a time is reached, in one process or several, with figures that add up."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from loopfuse.bind import Given
from loopfuse.diag import CompilerError, UserError, error
from loopfuse.outside import read_json, read_whole, unwritable
from loopfuse.testing.choices import Steered
from loopfuse.testing.coverage import KINDS
from loopfuse.testing.limit import TimeUp, until
from loopfuse.testing.scripts import script
from loopfuse.testing.trial import Case, Failure, Outcome, Setting, Subject, drawn, subject, tried
from loopfuse.testing.workers import Workers

SCHEMA = 2
MOST_COUNT = 1e18  # of anything in a state file
BATCH_SECONDS = 2.0  # of a process, between two looks at what the others have reached
MOST_BATCH = 64
STDIN = "<stdin>"  # the name of a script that was not read from a file
WAITING = 4  # seconds of the clock for one of the processor, on a busy machine, before a process is given up


@dataclass(frozen=True, slots=True)
class Run:
    """Runs of a day on one machine, with so many processes."""

    date: str
    device: str
    jobs: int
    programs: int
    seconds: float

    @property
    def pace(self) -> float:
        """Programs a second, of each process."""
        return self.programs / max(1e-9, self.seconds * self.jobs)


@dataclass(frozen=True, slots=True)
class Origin:
    """What figures are of: a script, by its path from the folder of the state file and by the digest of its text; random
    programs where there is no script."""

    script: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"`{self.script}`" if self.script else "random programs (--gen)"


def origin(source: Source, state: Path) -> Origin:
    """What the figures of a source are of, for a state file. A text from stdin has no path: its name is `<stdin>`."""
    if source.text is None:
        return Origin()
    path = Path(os.path.relpath(source.name, state.parent)).as_posix() if source.name != STDIN else STDIN
    return Origin(path, hashlib.sha256(source.text.encode("utf-8", "surrogatepass")).hexdigest())


@dataclass
class Figures:
    """What a campaign has seen so far. `reached` counts by the names of `coverage`, `ran` programs by the back ends that ran
    them beside the reference; `of` says of what all this is."""

    programs: int = 0
    skipped: int = 0
    seconds: float = 0.0
    elements: int = 0
    undecided: int = 0
    failures: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    ran: Counter[str] = field(default_factory=Counter)
    runs: tuple[Run, ...] = ()
    of: Origin = Origin()

    def add(self, outcome: Outcome) -> None:
        """Count one trial."""
        self.programs += 1
        self.skipped += bool(outcome.skipped)
        self.elements += outcome.elements
        self.undecided += outcome.undecided
        self.failures += outcome.failure is not None
        self.reached.update(outcome.reached)
        self.ran.update(outcome.ran)

    @property
    def share(self) -> float:
        """The part of all elements that could not be decided."""
        return self.undecided / max(1, self.elements)


@dataclass(frozen=True, slots=True)
class Source:
    """What is tried: random scripts, or the user's own, whose data is drawn."""

    text: str | None = None
    name: str = ""
    folder: Path | None = None
    given: Given = field(default_factory=lambda: Given({}))
    compiled: Mapping[str, int] = field(default_factory=dict)
    statements: int = 6


@dataclass(frozen=True, slots=True)
class Batch:
    """Trials of one process: the numbers of the programs, and what was reached before."""

    source: Source
    setting: Setting
    seed: int
    start: int
    count: int
    end: float  # by the wall clock, which processes share
    reached: Mapping[str, int]


@lru_cache(maxsize=4)
def _subject(text: str, name: str, folder: Path | None, compiled: tuple[tuple[str, int], ...]) -> Subject:
    return subject(text, name, folder, compiled=dict(compiled))


def trials(batch: Batch, begun: Callable[[str], None] = lambda text: None) -> Iterator[Outcome]:
    """The trials of a batch; at its end the one that runs is given up. `begun` is told the text of each before it runs."""
    source = batch.source
    reached = Counter(batch.reached)
    for number in range(batch.start, batch.start + batch.count):
        choices = Steered(Random(f"{batch.seed}:{number}"), reached)
        text = script(choices, source.statements) if source.text is None else source.text
        if time.time() >= batch.end:
            return
        begun(text)
        try:
            with until(batch.end):
                outcome = _trial(text, source, choices, batch.setting)
        except TimeUp:
            return
        except Exception as why:  # whatever it is, the campaign goes on
            stage = why.stage if isinstance(why, CompilerError) else "trial"
            outcome = Outcome(Failure("crash", stage, f"{type(why).__name__}: {why}", Case(text)))
        reached.update(outcome.reached)
        yield outcome


def _trial(text: str, source: Source, choices: Steered, setting: Setting) -> Outcome:
    if source.text is None:
        written = Counter({name: 1 for name in choices.chosen if name.partition(" ")[0] not in KINDS})
        outcome = tried(text, choices, setting)
        outcome.reached += written  # forms of the text are reached by being written, the rest by what ran
        return outcome
    made = _subject(text, source.name, source.folder, tuple(source.compiled.items()))
    return drawn(replace(made, given=source.given), choices, setting)


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: programs and seconds (None: no limit), and failures of different kinds."""

    examples: int | None = None
    seconds: float | None = None
    failures: int = 1


class Campaign:
    """Runs trials and adds up their figures. `watch` is told after each. `device` is what the figures are said to be of."""

    def __init__(self, source: Source, setting: Setting, seed: int, limits: Limits, jobs: int = 1,
                 figures: Figures | None = None, watch: Callable[[Campaign], None] | None = None,
                 device: str = "") -> None:  # fmt: skip
        self.source, self.setting, self.seed, self.limits, self.jobs = source, setting, seed, limits, jobs
        self.figures = figures or Figures()
        self.before = self.figures.programs
        self.device = device
        self.watch = watch
        self.found: dict[tuple[str, str], Failure] = {}
        self.idle: Counter[str] = Counter()  # trials in which nothing ran, by the reason
        self.end: float | None = None
        self.start = time.monotonic()
        self.pace = 0.3  # seconds a program, as far as known

    @property
    def done(self) -> int:
        """Programs of this run."""
        return self.figures.programs - self.before

    @property
    def elapsed(self) -> float:
        """Seconds of this run."""
        return (self.end or time.monotonic()) - self.start

    @property
    def fraction(self) -> float:
        """How far the run is, by the limit that is nearer."""
        parts = [self.done / self.limits.examples] if self.limits.examples else []
        parts += [self.elapsed / self.limits.seconds] if self.limits.seconds else []
        return min(1.0, max(parts, default=0.0))

    def run(self) -> Figures:
        """Run until a limit is reached; the figures are right also where it is interrupted."""
        try:
            if self.jobs == 1:
                self._alone()
            else:
                self._together()
        finally:
            self.end = time.monotonic()
            self.figures = self.so_far()
        return self.figures

    def so_far(self) -> Figures:
        """The figures with the time and the machine of this run, as they stand."""
        elapsed = self.elapsed
        row = Run(datetime.now(UTC).date().isoformat(), self.device, self.jobs, self.done, elapsed)
        *earlier, last = self.figures.runs or (None,)
        if last is not None and (last.date, last.device, last.jobs) == (row.date, row.device, row.jobs):
            row = replace(row, programs=last.programs + row.programs, seconds=last.seconds + row.seconds)
            runs = (*earlier, row)
        else:
            runs = (*self.figures.runs, row)
        return replace(self.figures, seconds=self.figures.seconds + elapsed, runs=runs)

    def _take(self, outcome: Outcome) -> None:
        self.figures.add(outcome)
        self.pace = 0.9 * self.pace + 0.1 * max(outcome.seconds, 1e-3)
        for failure in outcome.failures:
            if not self._enough:
                self.found.setdefault(failure.key, failure)
        if outcome.idle:
            self.idle[outcome.skipped] += 1
        if self.watch is not None:
            self.watch(self)

    @property
    def _enough(self) -> bool:
        return len(self.found) >= self.limits.failures

    def _left(self, given: int) -> int:
        """How many programs may be begun, when so many of this run are begun already."""
        if self._enough or (self.limits.seconds is not None and self.elapsed >= self.limits.seconds):
            return 0
        return MOST_BATCH if self.limits.examples is None else max(0, self.limits.examples - given)

    def _batch(self, given: int, most: int) -> Batch:
        count = max(1, min(most, MOST_BATCH, int(BATCH_SECONDS / self.pace)))
        left = 1e9 if self.limits.seconds is None else self.limits.seconds - self.elapsed
        reached = dict(self.figures.reached)
        return Batch(self.source, self.setting, self.seed, self.before + given, count, time.time() + left, reached)

    def _alone(self) -> None:
        while most := self._left(self.done):
            for outcome in trials(self._batch(self.done, most)):
                self._take(outcome)
                if self._enough:
                    return

    def _together(self) -> None:
        given = 0

        def batches() -> Batch | None:
            nonlocal given
            if not (most := self._left(given)):
                return None
            batch = self._batch(given, most)
            given += batch.count
            return batch

        end = None if self.limits.seconds is None else self.start + self.limits.seconds
        for outcome in Workers(self.jobs, trials, WAITING * self.setting.seconds, end).run(batches):
            self._take(outcome)


# -- figures as a file ------------------------------------------------------------------------------------------------

ANEW = "name another file (--state FILE), or delete this one to begin anew"


def load_figures(path: Path) -> Figures:
    """The figures of a state file; none where there is no file. Raises `UserError` LF0511 for a file of another kind."""
    try:
        record = read_json(read_whole(path))
        if record["schema"] != SCHEMA:
            raise ValueError("schema")
        numbers = {
            name: record[name] for name in ("programs", "skipped", "seconds", "elements", "undecided", "failures")
        }
        if not all(isinstance(n, int | float) and 0 <= n < MOST_COUNT for n in numbers.values()):
            raise ValueError("counts")
        return Figures(**numbers, reached=_counts(record["reached"]), ran=_counts(record["ran"]),
                       runs=tuple(_run(r) for r in record["runs"]),
                       of=Origin(str(record["of"]["script"]), str(record["of"]["digest"])))  # fmt: skip
    except FileNotFoundError:
        return Figures()
    except OSError as why:
        raise UserError(error("LF0510", f"cannot read the state `{path}`: {why.strerror}")) from why
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as why:
        message = f"`{path}` is not a state of this version of `loopfuse fuzz`"
        raise UserError(error("LF0511", message, fix=ANEW)) from why


def resumed(path: Path, of: Origin) -> tuple[Figures, str]:
    """The figures of a state file to go on from, and what is to be said of them. Those of a text that the script does not
    have any more are left out.

    Raises `UserError` LF0522 where they are of something else, and as `load_figures` does.
    """
    found = load_figures(path)
    if not found.runs or found.of.digest == of.digest:  # the same text elsewhere is the same script
        return replace(found, of=of), ""
    if found.of.script == of.script != STDIN:
        return Figures(of=of), f"{of} has changed since `{path}` was written: its figures begin anew"
    this = of if found.of.script != of.script else "this text, which is another one"
    raise UserError(error("LF0522", f"the state `{path}` holds the figures of {found.of}, not of {this}", fix=ANEW))


def _counts(found: Mapping[str, Any]) -> Counter[str]:
    return Counter({str(k): int(v) for k, v in found.items()})


def _run(found: Mapping[str, Any]) -> Run:
    run = Run(
        str(found["date"]), str(found["device"]), int(found["jobs"]), int(found["programs"]), float(found["seconds"])
    )
    if not all(0 <= n < MOST_COUNT for n in (run.jobs, run.programs, run.seconds)):
        raise ValueError("counts of a run")
    return run


def check_state(path: Path) -> None:
    """Raise `UserError` LF0515 where `save_figures` could not write a file."""
    if why := unwritable(path, makes=False):
        raise UserError(error("LF0515", f"cannot write the state `{path}`: {why}"))


def save_figures(path: Path, figures: Figures) -> None:
    """Write a state file, whole or not at all. Raises `UserError` LF0515."""
    record: dict[str, Any] = {"schema": SCHEMA, **vars(figures), "reached": dict(sorted(figures.reached.items())),
                              "ran": dict(figures.ran), "runs": [asdict(r) for r in figures.runs],
                              "of": asdict(figures.of)}  # fmt: skip
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as why:
        raise UserError(error("LF0515", f"cannot write the state `{path}`: {why.strerror}")) from why
