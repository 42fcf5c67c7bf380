"""`loopfuse fuzz`: a script on data that is drawn, or random programs, until something disagrees."""

from __future__ import annotations

import argparse
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopfuse import driver
from loopfuse.agreement import on_gpu
from loopfuse.bind import Bound, Given
from loopfuse.bisect import bisect
from loopfuse.cli import arguments, backends
from loopfuse.cli.frame import FAILED, OK, USER, Context
from loopfuse.cli.scripts import read_existing, read_script
from loopfuse.cuda import engine
from loopfuse.diag import LoopfuseError
from loopfuse.dtypes import of_numpy
from loopfuse.generate import Array
from loopfuse.passes import Options, selection
from loopfuse.testing.campaign import Campaign, Limits, Source, check_state, origin, resumed, save_figures
from loopfuse.testing.coverage import KINDS, coverage_table, missing, reached
from loopfuse.testing.data import SHAPES
from loopfuse.testing.reduce import Reducer
from loopfuse.testing.saved import check_folder, load_case, save
from loopfuse.testing.simpler import shown
from loopfuse.testing.trial import Case, Failure, Setting, again, subject
from loopfuse.views.tables import significant
from loopfuse.views.values import short_values

ABOUT = """Try a script on data that is drawn: extents that are equal, 0, 1, prime or just past a tile, values with ties,
infinities and NaN, all within the domains and requirements. Its checks must hold, and after every pass (and on the GPU,
where there is one) the results must be those of the script as it was lowered: bit for bit where nothing rounds, else
within the derived bound. With --gen the programs are random too, and favour what was seldom reached. What fails is made
small and shown; --save keeps it. Exit code 3 when something was found.

  loopfuse fuzz script.lf --time 30s    loopfuse fuzz --gen --examples 1000 --jobs 4    loopfuse fuzz --replay F.json"""
EXAMPLES = 100  # where neither a number nor a time is given
SHRINKING = 30.0  # seconds for a failure, which are no part of --time
SHRINKING_ALL = 60.0  # for all of them
SAVING = 5.0  # seconds between two writes of the state
MOST_REASONS = 3  # why data did not run
MOST_VALUES = 1000  # of an input in a record
WHOLE = "whole"  # the folder of failures as they were found


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.read(argv, context)
    _one_task(parser, options)
    selection(options.passes)
    backend = backends.settled(options.backend, context)
    setting = Setting(options.passes, options.shapes, {"cuda": on_gpu} if backend == "cuda" else {},
                      not options.gen, options.each)  # fmt: skip
    if options.replay is not None:
        return _replay(options.replay, setting, context)
    if options.save is not None:
        check_folder(options.save)
    if options.state is not None:
        check_state(options.state)
    source = _source(parser, options, context)
    figures, said = resumed(options.state, origin(source, options.state)) if options.state else (None, "")
    if said:
        context.terminal.say(said)
    examples = options.examples or (EXAMPLES if options.time is None else None)
    limits = Limits(examples, options.time, options.failures)
    campaign = Campaign(source, setting, options.seed, limits, options.jobs, figures, device=_device(backend))
    try:
        with context.terminal.progress("fuzz") as progress:
            campaign.watch = watch = _Watch(options, progress)
            campaign.run()
            end = time.monotonic() + SHRINKING_ALL
            found = [_smaller(f, setting, progress, end) for f in campaign.found.values()]
        for failure in found:
            _report(failure, setting, options.save, context)
    except KeyboardInterrupt:
        watch.keep(campaign)
        context.terminal.say(_interrupted(campaign, options))
        raise
    finally:
        if options.state:
            save_figures(options.state, campaign.figures)
    _summary(campaign, options, context)
    if found:
        return FAILED
    return USER if campaign.done == sum(campaign.idle.values()) else OK


def _one_task(parser: arguments.Parser, options: argparse.Namespace) -> None:
    """Refuse what does not go together, with the commands that were meant."""
    script = options.script
    if script is not None and "=" in script and not Path(script).exists():
        parser.error(f"`{script}` is data, and data is for a script: give the script before it")
    if options.gen and script is not None:
        parser.error(f"--gen makes up programs of its own, and `{script}` is one: leave out --gen to try the script on "
                     f"drawn data (loopfuse fuzz {script}), or the script (loopfuse fuzz --gen)")  # fmt: skip
    if options.replay is not None and (options.gen or script is not None):
        parser.error(
            f"--replay runs the script that was saved: give it alone (loopfuse fuzz --replay {options.replay})"
        )
    if script is None and not options.gen and options.replay is None:
        parser.error("give a script (loopfuse fuzz script.lf), or --gen for random programs, or --replay FILE")


def _parser() -> arguments.Parser:
    parser = arguments.Parser("fuzz", ABOUT)
    parser.add_argument("script", nargs="?", help="the script, or - for stdin")
    parser.add_argument("inputs", nargs="*", metavar="NAME=VALUE", help="data that is not drawn")
    parser.add_argument("--gen", action="store_true", help="random programs in place of a script")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="a failure that was saved, once more")
    group = parser.add_argument_group("how much")
    group.add_argument("--examples", type=_count, metavar="N", help=f"so many trials (default {EXAMPLES})")
    group.add_argument("--time", type=_seconds, metavar="60s", help="for so long: 90, 60s, 10m, 2h")
    group.add_argument("--failures", type=_count, default=1, metavar="N", help="stop at so many kinds of failure")
    group.add_argument(
        "--each", type=_some_seconds, default=60.0, metavar="60s", help="what takes longer is a failure (60s)"
    )
    group.add_argument("--jobs", type=_count, default=1, metavar="N", help="processes")
    group = parser.add_argument_group("what")
    group.add_argument("--shapes", choices=SHAPES, default="edge", help="the extents that are drawn (default edge)")
    group.add_argument("--statements", type=_count, default=6, metavar="N", help="most definitions of a random program")
    arguments.add_data(parser)
    group.add_argument("--passes", default="default", metavar="LIST", help="which passes run, as for `run`")
    backends.add_backend(group)
    group = parser.add_argument_group("results")
    group.add_argument("--save", type=Path, metavar="DIR", help="keep what fails: script, data, how to replay")
    group.add_argument("--state", type=Path, metavar="FILE", help="go on from these figures, and add to them")
    group.add_argument("--uncovered", action="store_true", help="list all that no program reached")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of things: write an integer above 0")
    return int(text)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"`{text}` is no time: write 60s, 10m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _some_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"`{text}` leaves a program no time: write 60s, 10m or 2h")
    return seconds


def _device(backend: str) -> str:
    """What the figures are of."""
    cores = f"{os.cpu_count()} CPU cores"
    return cores if backend == "reference" else f"{cores}, {engine.open_engine().model.name}"


def _source(parser: arguments.Parser, options: argparse.Namespace, context: Context) -> Source:
    """What is tried. A script is checked here, so that its mistakes are told as they are by every command."""
    if options.gen:
        return Source(statements=options.statements)
    compiled = arguments.integers(parser, options.sizes, "-D")
    source = context.source = read_script(options.script)
    base = arguments.script_folder(source)
    checked = subject(source.text, source.name, base, compiled=compiled).checked
    context.terminal.diagnostics(checked.remarks)
    assigned = arguments.split_pairs(parser, options.inputs, "inputs")
    inputs = {n: a for n, a in read_existing(checked.typed, assigned, base, context, options.script).items()
              if n in assigned}  # fmt: skip
    params = arguments.numbers(arguments.split_pairs(parser, options.param, "-p"))
    dims = arguments.integers(parser, options.dims, "--dims")
    given = Given(inputs, params, dims, options.seed, options.limit)
    if all(p.default is not None or p.name in params for p in checked.typed.params):  # the others are drawn
        driver.bind_program(checked.typed, replace(given, fill=True))
    return Source(source.text, source.name, base, given, compiled)


class _Watch:
    """Draws the progress line, writes the state now and then, and keeps each kind of failure as it was found: what is killed
    loses seconds."""

    def __init__(self, options: argparse.Namespace, progress: Any) -> None:
        self.state, self.folder, self.passes, self.progress = options.state, options.save, options.passes, progress
        self.saved = 0.0
        self.kept: set[tuple[str, str]] = set()

    def __call__(self, campaign: Campaign) -> None:
        rate = campaign.done / max(campaign.elapsed, 1e-9)
        self.progress(campaign.fraction, f"fuzz: {campaign.done} programs, {significant(rate)}/s, seed {campaign.seed}")
        if self.state is not None and campaign.elapsed - self.saved > SAVING:
            self.saved = campaign.elapsed
            save_figures(self.state, campaign.so_far())
        self.keep(campaign)

    def keep(self, campaign: Campaign) -> None:
        """Write the failures that are not yet written, as they were found."""
        if self.folder is not None:
            for key in campaign.found.keys() - self.kept:
                save(campaign.found[key], self.folder / WHOLE, self.passes)
                self.kept.add(key)


def _smaller(failure: Failure, setting: Setting, progress: Any, end: float) -> Failure:
    """The failure, made small before the end."""
    return Reducer(failure, setting, min(SHRINKING, end - time.monotonic()),
                   progress=lambda length: progress(1.0, f"fuzz: shrinking, {length} characters")).run()  # fmt: skip


# -- what is told -----------------------------------------------------------------------------------------------------


def _report(failure: Failure, setting: Setting, folder: Path | None, context: Context) -> None:
    terminal, case = context.terminal, failure.case
    terminal.result(f"found: {failure.title}")
    terminal.result("\n".join(f"    {line}" for line in case.text.rstrip("\n").split("\n")))
    params = {n: v for n, v in case.params.items() if re.search(rf"\bparam {n}:", case.text)}
    sizes = ", ".join(f"{n} = {v}" for n, v in {**case.sizes, **params}.items())
    told = [part for part in (sizes, case.kind and f"with {case.kind}") if part]
    if told:
        terminal.result(f"on data of {', '.join(told)}")
    for name, array in case.arrays.items():
        if re.search(rf"\binput {name}:", case.text):
            terminal.result(f"    {name} = {shown(array)}")
    step = _step(failure, setting)
    if step:
        terminal.result(step)
    path = save(failure, folder, setting.passes) if folder is not None else None
    hint = f"loopfuse fuzz --replay {path}" if path else "--save DIR keeps the script and its data"
    terminal.result(f"replay: {hint}" if path else hint)
    terminal.record({"kind": "failure", "what": failure.what, "where": failure.where, "problem": failure.problem,
                     "script": case.text, "sizes": dict(case.sizes), "data": case.kind, "params": params,
                     "inputs": {n: _values(a) for n, a in case.arrays.items() if re.search(rf"\binput {n}:", case.text)},
                     "step": step, "saved": str(path) if path else None})  # fmt: skip


def _values(array: Array) -> dict[str, Any]:
    """The JSON form of the data of an input; without values where there are many, which --save keeps."""
    values = short_values(array) if array.size <= MOST_VALUES else None
    left = {"left_out": f"{array.size} elements; --save DIR keeps them"} if values is None else {}
    return {"dtype": str(of_numpy(array.dtype)), "shape": list(array.shape), "values": values, **left}


def _step(failure: Failure, setting: Setting) -> str:
    """The step of the pass that does it, as `loopfuse bisect` finds it; empty where it does not."""
    if failure.what != "pass" or failure.where in setting.runners:
        return ""
    try:
        case = failure.case
        made = subject(case.text, case.name, case.folder, compiled=case.compiled)
        found = bisect(made.lowered, _bound(case), setting.passes, Options())
    except LoopfuseError:
        return ""
    if found is None or found.step is None:
        return ""
    return f"step {found.step} of {found.steps} of {found.pass_name}: {found.description}"


def _bound(case: Case) -> Bound:
    typed = subject(case.text, case.name, case.folder, compiled=case.compiled).checked.typed
    arrays = {i.name: case.arrays[i.name] for i in typed.inputs}
    params = {p.name: case.params[p.name] for p in typed.params}
    return driver.bind_program(typed, Given(arrays, params))


def _summary(campaign: Campaign, options: argparse.Namespace, context: Context) -> None:
    """The figures of the run, and of the state where there is one."""
    terminal, figures = context.terminal, campaign.figures
    rate = campaign.done / max(campaign.elapsed, 1e-9)
    many = campaign.done != 1
    what = f"program{'s' * many}" if options.gen else f"set{'s' * many} of data"
    lines = [f"{campaign.done} {what} in {campaign.elapsed:.1f} s ({significant(rate)}/s), seed {options.seed}"]
    if campaign.before:
        lines.append(f"{figures.programs} with those before, in {figures.seconds:.0f} s")
    if figures.elements:
        lines.append(f"{figures.undecided} of {figures.elements} elements undecided ({figures.share:.2%})")
    idle = sum(campaign.idle.values())
    lines += [f"{count} of them did not run: {why}" for why, count in campaign.idle.most_common(MOST_REASONS)]
    kinds = len(campaign.found)
    if kinds:
        lines.append(f"{kinds} kind{'s' * (kinds != 1)} of failure")
    elif idle == campaign.done:
        lines.append("nothing was tried" if campaign.done else "not one was done in this time: give a longer --time")
    else:
        lines.append("everything agrees")
    lines += [f"{n} ran on {name} too" for name, n in sorted(figures.ran.items())]
    for line in (*coverage_table(figures.reached, options.uncovered), "", *lines) if options.gen else lines:
        terminal.result(line)
    terminal.record({
        "kind": "fuzz", "programs": figures.programs, "seconds": figures.seconds, "seed": options.seed,
        "elements": figures.elements, "undecided": figures.undecided, "skipped": figures.skipped,
        "failures": kinds, "idle": dict(campaign.idle), "ran": dict(figures.ran), "coverage": {k: reached(figures.reached, k) for k in KINDS},
        "uncovered": {k: missing(figures.reached, k) for k in KINDS} if options.gen else {},
    })  # fmt: skip


def _interrupted(campaign: Campaign, options: argparse.Namespace) -> str:
    """What was found until the user stopped it, and where it is kept, in one line."""
    done, found = campaign.done, list(campaign.found.values())
    what = "program" if options.gen else "set"
    line = f"{done} {what}{'s' * (done != 1)}{'' if options.gen else ' of data'} done, "
    line += f"{len(found)} kind{'s' * (len(found) != 1)} of failure" if found else "nothing found"
    line += f" ({'; '.join(f.title for f in found)})" if found else ""
    kept = [f"failures in {options.save / WHOLE}"] if found and options.save else []
    kept += [f"figures in {options.state}"] if options.state else []
    ways = ["--save DIR keeps failures"] if not options.save else []
    ways += ["--state FILE keeps the figures"] if not options.state else []
    return "; ".join([line, *([f"kept: {', '.join(kept)}"] if kept else []), *ways])


def _replay(path: Path, setting: Setting, context: Context) -> int:
    """Run a saved failure again."""
    before, passes = load_case(path)
    context.terminal.note(f"{path}: then {before.problem}")
    outcome = again(before.case, replace(setting, passes=passes))
    found = outcome.like(before) or outcome.failure
    if found is None:
        context.terminal.result(f"{path}: it does not fail any more")
    else:
        context.terminal.result(f"{path}: {found.title}")
    context.terminal.record({"kind": "replay", "file": str(path), "fails": found is not None,
                             "problem": found.problem if found else ""})  # fmt: skip
    return OK if found is None else FAILED
