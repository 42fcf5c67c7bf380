"""`loopfuse bisect`: the pass, and in it the step, after which a script gives other results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loopfuse import driver
from loopfuse.agreement import on_gpu
from loopfuse.bind import Given
from loopfuse.bisect import Culprit, bisect
from loopfuse.cli import arguments, backends
from loopfuse.cli.frame import FAILED, OK, Context
from loopfuse.cli.scripts import read_existing, read_script
from loopfuse.draws import Draw, told
from loopfuse.passes import Options, selection
from loopfuse.views.diff import diff, text

ABOUT = """Find the first pass after which the script gives other results than as it was lowered, or whose program is
not valid, and in this pass the one rule application or decision that does it, shown as a diff. Data as for `loopfuse
check`: given, named by `from`, or made up; what is made up is tried as ordinary numbers, as zeros and ties, with
infinities and NaN, and at equal extents and extents of 1. With `--backend cuda` every program runs on the GPU, and is
held against the lowered program on the reference interpreter. Exit code 3 when a pass is found."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("bisect", ABOUT)
    parser.add_argument("script", help="the script, or - for stdin")
    parser.add_argument("inputs", nargs="*", metavar="NAME=VALUE", help="a file, a generator or a number")
    arguments.add_data(parser)
    arguments.add_passes(parser)
    backends.add_backend(parser, "reference")
    options = parser.read(argv, context)
    sizes = arguments.integers(parser, options.sizes, "-D")
    params = arguments.numbers(arguments.split_pairs(parser, options.param, "-p"))
    source = context.source = read_script(options.script)
    base = arguments.script_folder(source)
    checked = driver.compile_source(source, sizes=sizes, search=base)
    context.terminal.diagnostics(checked.remarks)
    inputs = read_existing(
        checked.typed, arguments.split_pairs(parser, options.inputs, "inputs"), base, context, options.script
    )
    dims = arguments.integers(parser, options.dims, "--dims")
    selection(options.passes)
    runner = on_gpu if backends.settled(options.backend, context) == "cuda" else None
    given = Given(inputs, params, dims, options.seed, options.limit, fill=True)
    data, frozen = driver.trial_data(checked.typed, given, arguments.names(options.freeze))
    lowered = driver.lower_program(checked.typed)
    outside: list[tuple[int, ...]] = []
    with driver.guard("bisect"), context.terminal.progress("bisect") as progress:
        found = bisect(lowered, data, options.passes, Options(frozen=frozen), progress, runner, outside.append)
    _report(context, found, options.script, data, lowered.shown, outside[0])
    return FAILED if found else OK


def _report(context: Context, found: Culprit | None, script: str, data: Sequence[Draw],
            shown: Mapping[str, str], outside: tuple[int, ...]) -> None:  # fmt: skip
    terminal = context.terminal
    if found is None:
        tried = "the data given" if len(data) == 1 else f"{len(data)} sets of data"
        terminal.result(f"{script}: every pass keeps the results, on {tried}")
        for draw in data if len(data) > 1 else ():
            terminal.note(f"  {told(draw)}")
        if outside:
            terminal.result(_own(outside, len(data)))
        terminal.record({"kind": "bisect", "found": False, "data": [told(draw) for draw in data],
                         "outside": len(outside)})  # fmt: skip
        return
    difference = text(diff(found.before, found.after)) if found.after is not None else ""
    terminal.result(f"{script}: pass {found.pass_name}: {found.problem}")
    if found.data:
        terminal.result(f"on data of {found.data}")
    if found.step is not None:
        terminal.result(f"step {found.step} of {found.steps}: {found.description}")
    if difference:
        terminal.result(difference.rstrip("\n"))
    for buffer, name in shown.items():
        if buffer != name and re.search(rf"(?<![\w.]){re.escape(buffer)}(?![\w.])", difference):
            terminal.result(f"`{buffer}` is what the script calls `{name}`")
    if outside:
        terminal.result(_own(outside, len(data)))
    terminal.record({**_record(found, difference), "outside": len(outside)})


def _own(outside: tuple[int, ...], sets: int) -> str:
    """What is no pass's doing, and hides what a pass does on such data. `check` runs on the first set alone."""
    where = "" if sets == 1 else f" on {len(outside)} of the {sets} sets of data"
    first = 0 in outside
    if len(outside) > 1:
        where += ", of which only the first counts" if first else ", which do not count"
    elif not first:
        where += ", which does not count"
    return f"the script's own accesses go outside their arrays{where}: `loopfuse {'check' if first else 'fuzz'}` tells of them"


def _record(found: Culprit, difference: str) -> dict[str, Any]:
    return {"kind": "bisect", "found": True, "pass": found.pass_name, "problem": found.problem,
            "invalid": found.invalid, "step": found.step, "steps": found.steps, "description": found.description,
            "data": found.data, "diff": difference}  # fmt: skip
