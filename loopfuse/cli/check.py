"""`loopfuse check`: every error of a script, and whether its `check` statements hold."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loopfuse import driver
from loopfuse.agreement import Row, Runner, every_pass, on_gpu
from loopfuse.bind import Given
from loopfuse.cli import arguments, backends
from loopfuse.cli.frame import FAILED, OK, Context, exit_code
from loopfuse.cli.scripts import read_existing, read_script
from loopfuse.diag import UserError
from loopfuse.draws import Draw, told
from loopfuse.frontend.typed import TypedProgram
from loopfuse.passes import Options, selection
from loopfuse.views.compared import bounded, compare, compared_table, mismatches, vague_note
from loopfuse.views.tables import duration, table

ABOUT = """Report every error of the scripts. Unless --static, also run them and evaluate their `check` statements: on
the inputs given (as for `loopfuse run`), else on those named by `from`, else on made-up data and small sizes that
keep to the domains and requirements. Exit code 3 when a check fails. With --every-pass the loop IR is also run after
each pass, and the first pass whose results differ is named (code 3): bit for bit where nothing rounds, else within the
derived bound; what is decided by a rounding error is counted as undecided. Made-up data is then also tried with ties,
with infinities and NaN, at equal extents and at extents of 1. On a GPU (`--backend`) results are also held against those
of the reference interpreter, on the same sets of data."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("check", ABOUT)
    parser.add_argument("words", nargs="+", metavar="SCRIPT or NAME=VALUE", help="scripts, and data for their inputs")
    parser.add_argument("--static", action="store_true", help="run nothing")
    parser.add_argument("--every-pass", action="store_true", help="run the loop IR after every pass, and compare")
    arguments.add_data(parser)
    arguments.add_passes(parser)
    backends.add_backend(parser)
    options = parser.read(argv, context)
    scripts = [w for w in options.words if "=" not in w]
    if not scripts:
        parser.error("no script is named")
    assigned = arguments.split_pairs(parser, [w for w in options.words if "=" in w], "inputs")
    if assigned and options.static:
        parser.error("--static runs nothing, so it takes no data")
    selection(options.passes)
    if options.every_pass and options.static:
        parser.error("--static runs nothing, so --every-pass cannot compare")
    if not options.static:
        options.backend = backends.settled(options.backend, context)
    return max(_check(parser, options, script, assigned, context) for script in scripts)


def _check(parser: arguments.Parser, options: argparse.Namespace, script: str, assigned: dict[str, str],
           context: Context) -> int:  # fmt: skip
    """Check one script; its errors do not keep the next from being checked."""
    terminal = context.terminal
    sizes = arguments.integers(parser, options.sizes, "-D")
    try:
        source = context.source = read_script(script)
        checked = driver.compile_source(source, sizes=sizes, search=arguments.script_folder(source))
        terminal.diagnostics(checked.remarks)
        if options.static:
            terminal.result(f"{script}: ok")
            terminal.record({"kind": "check", "script": script, "ok": True, "static": True})
            return OK
        return _evaluate(parser, options, script, checked.typed, assigned, context)
    except UserError as why:
        terminal.diagnostics(why.diagnostics)
        terminal.record({"kind": "check", "script": script, "ok": False, "static": options.static})
        return exit_code(why.diagnostics)


def _evaluate(parser: arguments.Parser, options: argparse.Namespace, script: str, typed: TypedProgram,
              assigned: dict[str, str], context: Context) -> int:  # fmt: skip
    """Run a script and its checks."""
    terminal = context.terminal
    base = Path(script).parent if script != "-" else Path()
    inputs = read_existing(typed, assigned, base, context, script)
    made = [i.name for i in typed.inputs if i.name not in inputs]
    params = arguments.numbers(arguments.split_pairs(parser, options.param, "-p"))
    dims = arguments.integers(parser, options.dims, "--dims")
    given = Given(inputs, params, dims, options.seed, options.limit, fill=True)
    with terminal.progress("check") as progress:
        bound = driver.bind_program(typed, given)
        lowered = driver.lower_program(typed, roots=driver.check_buffers(typed))
        # The extents of made-up data are small; what is asked about kernels is asked about sizes that are not.
        sizes = dims if made else bound.sizes
        chosen = Options(sizes=sizes, frozen=driver.frozen_arrays(typed, bound, arguments.names(options.freeze)))
        optimised = driver.optimise(lowered, chosen, "none" if options.every_pass else options.passes)
        outcome = driver.execute(optimised, bound, backend=options.backend, limit=options.limit, progress=progress)
        failed = driver.failed_checks(typed, bound, outcome)
    if made:
        shown = ", ".join(f"{s.id} = {bound.sizes[s.id]}" for s in typed.sizes if s.origin == "shape")
        terminal.note(f"{script}: made-up data for {', '.join(made)}{f' with {shown}' if shown else ''}")
    terminal.diagnostics(failed)
    count = len(driver.check_buffers(typed))
    held = f"{count - len(failed)} of {count} checks hold" if count else "it ran, and has no checks"
    terminal.result(f"{script}: {'failed' if failed else 'ok'}, {held}")
    terminal.record({"kind": "check", "script": script, "ok": not failed, "static": False, "checks": count,
                     "failed": len(failed), "made_up": made})  # fmt: skip
    agreed = True
    if options.every_pass or options.backend == "cuda":
        data, _ = driver.trial_data(typed, given, arguments.names(options.freeze))
        if options.backend == "cuda":
            agreed = _against_reference(script, lowered, data, options, chosen, context)
        if options.every_pass:
            runner = on_gpu if options.backend == "cuda" else None
            agreed = _every_pass(script, lowered, data, options.passes, chosen, context, runner) and agreed
    return FAILED if failed or not agreed else OK


def _against_reference(script: str, lowered: driver.Lowered, data: Sequence[Draw], options: argparse.Namespace,
                       chosen: Options, context: Context) -> bool:  # fmt: skip
    """Hold what the GPU computes against the reference, on each set of data; whether all agree."""
    for number, draw in enumerate(data):
        optimised = driver.optimise(lowered, replace(chosen, sizes=draw.bound.sizes), options.passes)
        try:
            outcome = driver.execute(optimised, draw.bound, backend="cuda")
        except UserError as why:
            if number and all(d.code == "LF0704" for d in why.diagnostics):
                continue  # data that the script is not made for
            raise
        found = compare(lowered, bounded(lowered, draw.bound, options.limit), outcome.buffers)
        for line in compared_table(found) if not number else ():
            context.terminal.result(line)
        if loose := sum(one.vague for one in found):
            context.terminal.note(f"{script}: {vague_note(loose)}")
        for one in found:
            context.terminal.record({"kind": "compared", "script": script, "data": told(draw), **one.as_record()})
        if wrong := mismatches(found):
            context.terminal.result(f"{script}: {wrong[0]}\non data of {told(draw)}")
            return False
    return True


def _every_pass(script: str, lowered: driver.Lowered, data: Sequence[Draw], passes: str, chosen: Options,
                context: Context, runner: Runner | None) -> bool:  # fmt: skip
    """Compare the results after every pass; whether all agree."""
    with driver.guard("every-pass"):
        rows = list(every_pass(lowered, data, passes, chosen, runner=runner))
    header = ("pass", "changed", "agrees", "worst error", "undecided", "time")
    for line in table(header, [_line(row, runner is None) for row in rows], right="   rrr"):
        context.terminal.result(line)
    for row in rows:
        context.terminal.record({
            "kind": "pass", "script": script, "pass": row.name, "agrees": row.agrees,
            "changed": row.stage is None or row.stage.changed, "rounds": row.stage is not None and row.stage.rounds,
            "worst": row.verdict.worst, "undecided": row.verdict.undecided, "vague": row.verdict.vague,
            "problem": row.verdict.problem, "data": row.verdict.data,
        })  # fmt: skip
    undecided, judged = sum(row.verdict.undecided for row in rows), sum(row.verdict.elements for row in rows)
    most = max((row.verdict.undecided for row in rows), default=0)
    context.terminal.result(f"{script}: {undecided} of {judged} comparisons of elements undecided, over all passes"
                            + f"; at most {most} after one" * bool(most))  # fmt: skip
    context.terminal.record({"kind": "passes", "script": script, "agrees": all(row.agrees for row in rows),
                             "elements": judged, "undecided": undecided, "most": most})  # fmt: skip
    if loose := max((row.verdict.vague for row in rows), default=0):
        context.terminal.note(f"{script}: {vague_note(loose)}")
    bad = next((row for row in rows if not row.agrees), None)
    if bad is not None:
        context.terminal.result(f"{script}: {bad.name} is the first pass whose results differ: {bad.verdict.problem}")
        if bad.verdict.data:
            context.terminal.result(f"on data of {bad.verdict.data}")
    return bad is None


def _line(row: Row, same: bool) -> tuple[str, ...]:
    if row.stage is not None and not row.stage.changed:
        return row.name, "no", "", "", "", duration(row.stage.seconds)
    how = "to the bit" if same and row.stage is not None and not row.stage.rounds else "in bounds"
    verdict = row.verdict
    return (row.name, "yes", how if row.agrees else "NO", f"{verdict.worst:.3g}", str(verdict.undecided),
            duration(row.stage.seconds) if row.stage is not None else "")  # fmt: skip
