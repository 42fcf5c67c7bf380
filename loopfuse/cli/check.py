"""`loopfuse check`: every error of a script, and whether its `check` statements hold."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cli import arguments
from loopfuse.cli.frame import FAILED, OK, USER, Context
from loopfuse.cli.scripts import read_script
from loopfuse.diag import UserError
from loopfuse.files import Place
from loopfuse.frontend.typed import TypedProgram

ABOUT = """Report every error of the scripts. Unless --static, also run them and evaluate their `check` statements: on
the inputs given (as for `loopfuse run`), else on those named by `from`, else on made-up data and small sizes that
keep to the domains and requirements. Exit code 3 when a check fails."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("check", ABOUT)
    parser.add_argument("words", nargs="+", metavar="SCRIPT or NAME=VALUE", help="scripts, and data for their inputs")
    parser.add_argument("--static", action="store_true", help="run nothing")
    arguments.add_data(parser)
    options = parser.read(argv, context)
    scripts = [w for w in options.words if "=" not in w]
    if not scripts:
        parser.error("no script is named")
    assigned = arguments.split_pairs(parser, [w for w in options.words if "=" in w], "inputs")
    if assigned and options.static:
        parser.error("--static runs nothing, so it takes no data")
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
        return USER


def _evaluate(parser: arguments.Parser, options: argparse.Namespace, script: str, typed: TypedProgram,
              assigned: dict[str, str], context: Context) -> int:  # fmt: skip
    """Run a script and its checks."""
    terminal = context.terminal
    base = Path(script).parent if script != "-" else Path()
    absent = {i.name: i.default for i in typed.inputs if i.default and i.name not in assigned
              and not os.path.exists(Place(i.default, base).path)}  # fmt: skip
    for name, file in absent.items():
        terminal.note(f"{script}: `{file}` does not exist, so `{name}` is made up")
    inputs = driver.read_inputs(typed, assigned, base, skip=absent)
    made = [i.name for i in typed.inputs if i.name not in inputs]
    params = arguments.numbers(arguments.split_pairs(parser, options.param, "-p"))
    dims = arguments.integers(parser, options.dims, "--dims")
    given = Given(inputs, params, dims, options.seed, options.limit, fill=True)
    with terminal.progress("check") as progress:
        bound = driver.bind_program(typed, given)
        lowered = driver.lower_program(typed, roots=driver.check_buffers(typed))
        outcome = driver.execute(lowered, bound, limit=options.limit, progress=progress)
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
    return FAILED if failed else OK
