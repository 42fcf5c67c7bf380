"""`loopfuse bench`: how long a program takes, beside what its device allows and what it took before."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loopfuse import __version__, driver
from loopfuse.bench import rows as results
from loopfuse.bench import sweep
from loopfuse.bench.measuring import How, Subject, measured
from loopfuse.bench.rows import Change, Row
from loopfuse.bench.table import bench_table, foot
from loopfuse.bind import Bound, Given, unsettled
from loopfuse.cli import arguments, backends, locks
from loopfuse.cli.frame import OK, REGRESSED, Context
from loopfuse.cli.scripts import read_existing, read_script
from loopfuse.cuda import engine, measure
from loopfuse.diag import UserError, error
from loopfuse.lock import Lock
from loopfuse.outside import unwritable
from loopfuse.passes import selection
from loopfuse.views.counts import numbers

ABOUT = """Time a script. Inputs as for `loopfuse run`; those that are not given are made up, with the sizes of --dims and
--sweep, else of the cost model. On a GPU every call is timed by itself, with the caches cleared before it.

  --sweep N=2^10..2^24    --sweep N=1000..9000:2000    --sweep N=1000..1000000*10    --sweep N=1,7,64"""
UNFUSED = "-fuse,-cascade"


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.read(argv, context)
    if options.fail_over is not None and options.compare is None:
        parser.error("--fail-over is about --compare: give both")
    locks.settle(parser, options)
    choices = _choices(options)
    for _, passes in choices:
        selection(passes)
    before = results.load(Path(options.compare)) if options.compare else {}
    if options.save and (why := unwritable(Path(options.save), makes=False)):
        raise UserError(error("LF0515", f"`{options.save}` cannot be written: {why}"))
    request = _request(parser, options, context)
    if options.tune:
        subjects = [s for point in request.points for s in _subjects(request, request.bound(point), choices, options)]
        lock, bad = locks.tuned(options, context, subjects)
    else:
        lock, bad = locks.opened(options, context) if request.backend == "cuda" else None, OK
    found: list[Row] = []
    how = How(options.min_time, not options.no_flush, options.cold)
    with context.terminal.progress("bench") as progress:
        count = len(request.points) * len(choices)
        for row in _rows(request, choices, options, how, lock):
            found.append(row)
            progress(len(found) / count)
    tolerance = 0.05 if options.fail_over is None else options.fail_over
    changes = results.compare(found, before, tolerance) if options.compare else []
    _report(context, found, changes, _roof(request.backend))
    if options.save:
        about = {"loopfuse": __version__, "time": int(time.time()), "command": ["loopfuse", *argv]}
        results.save(Path(options.save), found, about)
        context.terminal.note(f"wrote {options.save}")
    slower = sum(change.slower for change in changes)
    if slower:
        context.terminal.say(
            f"{slower} of {len(found)} are more than {tolerance * 100:g}% slower than in {options.compare}"
        )
    return REGRESSED if slower and options.fail_over is not None else bad


def _parser() -> arguments.Parser:
    parser = arguments.Parser("bench", ABOUT)
    parser.add_argument("script", help="the script, or - for stdin")
    parser.add_argument("inputs", nargs="*", metavar="NAME=VALUE", help="a file, a generator or a number")
    arguments.add_data(parser)
    group = parser.add_argument_group("what is timed")
    group.add_argument("--sweep", type=_sweep, action="append", default=[], metavar="N=LO..HI", help="sizes in turn")
    group.add_argument(
        "--passes", action="append", default=[], metavar="LIST", help="which passes run; given again, another row"
    )
    group.add_argument("--unfused", action="store_true", help="also with one kernel a definition, nothing fused")
    group.add_argument("--freeze", action="append", default=[], metavar="NAME,...", help="inputs that are constants")
    backends.add_backend(group)
    group.add_argument("--dynamic", action="store_true", help="kernels for any sizes, not for these alone")
    locks.add_tune(group)
    arguments.add_lock(group)
    group.add_argument("--min-time", type=_seconds, default=0.3, metavar="S", help="seconds to measure for (0.3)")
    group.add_argument(
        "--no-flush", action="store_true", help="leave in the GPU's caches what the last call left there"
    )
    group.add_argument("--cold", action="store_true", help="compile anew too, and once more from the cache")
    kept = parser.add_argument_group("results")
    kept.add_argument("--save", metavar="FILE.json", help="write the results to a file")
    kept.add_argument("--compare", metavar="FILE.json", help="show them beside those of a file")
    kept.add_argument(
        "--fail-over", type=_share, metavar="SHARE", help="exit code 5 when something is slower by more, as 5%%"
    )
    return parser


def _sweep(text: str) -> tuple[str, tuple[int, ...]]:
    try:
        return sweep.parse(text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(str(why)) from None


def _seconds(text: str) -> float:
    value = _number(text.removesuffix("s"))
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"`{text}` is no time: write seconds, as 0.5")
    return value


def _share(text: str) -> float:
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` is no share: write 5% or 0.05")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _choices(options: argparse.Namespace) -> list[tuple[str, str]]:
    """What is asked for: a label and a selection of passes each."""
    chosen = [(text, text) for text in options.passes] or [("default", "default")]
    return list(dict.fromkeys([*chosen, *[("unfused", UNFUSED)] * options.unfused]))


# -- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """A script, its data but for the sizes, and the sets of sizes."""

    script: str
    lowered: driver.Lowered
    given: Given
    points: list[dict[str, int]]
    backend: str

    def bound(self, point: Mapping[str, int]) -> Bound:
        """The data at some sizes; what nothing settles is as the cost model assumes."""
        typed = self.lowered.typed
        given = replace(self.given, dims={**self.given.dims, **point})
        open_ = unsettled(typed, given)
        assumed, _ = numbers(self.lowered.program, given.dims)
        if open_:
            given = replace(given, dims={**given.dims, **{n: assumed[n] for n in open_ if n in assumed}})
        return driver.bind_program(typed, given)


def _request(parser: arguments.Parser, options: argparse.Namespace, context: Context) -> _Request:
    sizes = arguments.integers(parser, options.sizes, "-D")
    dims = arguments.integers(parser, options.dims, "--dims")
    assigned = arguments.split_pairs(parser, options.inputs, "inputs")
    twice = next((name for name, _ in options.sweep if name in dims), None)
    if twice:
        parser.error(f"--sweep and --dims both give `{twice}`")
    try:
        points = sweep.points(options.sweep)
    except ValueError as why:
        parser.error(f"--sweep: {why}")
    backend = backends.settled(options.backend, context)
    source = context.source = read_script(options.script)
    base = arguments.script_folder(source)
    checked = driver.compile_source(source, sizes=sizes, search=base)
    context.terminal.diagnostics(checked.remarks)
    inputs = read_existing(checked.typed, assigned, base, context, options.script)
    params = arguments.numbers(arguments.split_pairs(parser, options.param, "-p"))
    given = Given(inputs, params, dims, options.seed, options.limit, fill=True)
    return _Request(options.script, driver.lower_program(checked.typed), given, points, backend)


def _subjects(request: _Request, bound: Bound, choices: list[tuple[str, str]], options: argparse.Namespace,
              lock: Lock | None = None) -> list[Subject]:  # fmt: skip
    freeze = tuple(arguments.names(options.freeze))
    return [Subject(request.script, request.lowered, bound, passes, label, freeze, options.dynamic, options.limit, lock)
            for label, passes in choices]  # fmt: skip


def _rows(request: _Request, choices: list[tuple[str, str]], options: argparse.Namespace, how: How,
          lock: Lock | None) -> Iterator[Row]:  # fmt: skip
    """A row for each set of sizes and each choice of passes. What memory is too small for becomes a row that says so."""
    for point in request.points:
        try:
            bound = request.bound(point)
        except UserError as why:
            if len(request.points) == 1 or not _memory(why):
                raise
            yield from (Row(request.script, request.backend, label, point, problem=_said(why)) for label, _ in choices)
            continue
        for subject in _subjects(request, bound, choices, options, lock):
            try:
                yield measured(subject, request.backend, how)
            except UserError as why:
                if len(request.points) == 1 or not _memory(why):
                    raise
                yield replace(subject.row(request.backend), problem=_said(why))


def _memory(why: UserError) -> bool:
    return all(d.code == "LF0509" for d in why.diagnostics)


def _said(why: UserError) -> str:
    return why.diagnostics[0].message


# -- the report -------------------------------------------------------------------------------------------------------


def _roof(backend: str) -> str:
    """Where the roof comes from; nothing for the reference, which has none."""
    if backend != "cuda":
        return ""
    measured_before = measure.load_calibration(engine.open_engine().device)
    return "roof as measured" if measured_before else "roof of the preset (`loopfuse doctor --measure` measures it)"


def _report(context: Context, found: list[Row], changes: list[Change], roof: str) -> None:
    for line in (*bench_table(found, changes), *foot(found, roof)):
        context.terminal.result(line)
    for number, row in enumerate(found):
        change = changes[number] if changes else None
        told = {"ratio": change.ratio, "slower": change.slower} if change else {}
        context.terminal.record({"kind": "bench", **row.as_record(), **told})
