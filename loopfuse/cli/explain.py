"""`loopfuse explain`: the decisions of a script, or the essay of an error code."""

from __future__ import annotations

import argparse
import difflib
from importlib import import_module
from pathlib import Path

from loopfuse.cli import arguments, passargs
from loopfuse.cli.frame import OK, USAGE, Context
from loopfuse.views.essays import normalize, read_essays

ABOUT = """Tell how a script was fused: one line a decision, and what it came to. Or what an error code means, why it is
an error, and the way out; without an argument, list the codes."""
VIEWS = {
    "why": "two definitions", "cost": "all kernels, in a table", "kernel": "one kernel, its cost included",
    "remarks": "what the passes said",
}  # fmt: skip


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("explain", ABOUT)
    parser.add_argument("script", nargs="?", metavar="SCRIPT or CODE", help="a script, or a code as LF0304")
    parser.add_argument("--why", nargs=2, metavar=("A", "B"), help="why two definitions are (not) one kernel")
    parser.add_argument("--cost", action="store_true", help="what each kernel is estimated to take, and its bound")
    parser.add_argument("--kernel", metavar="K", help="one kernel and its plan")
    parser.add_argument(
        "--compile", action="store_true", help="with --kernel: compile it too, for the registers that it takes"
    )
    parser.add_argument("--remarks", action="store_true", help="everything that the passes said")
    passargs.add_passes(parser)
    arguments.add_lock(parser)
    options = parser.read(argv, context)
    views_asked = options.why or options.cost or options.kernel or options.remarks
    _one_view(parser, options)
    if options.compile and not options.kernel:
        parser.error("--compile is for one kernel: give --kernel too")
    if options.script is None and views_asked:
        parser.error("no script is named")
    if options.script is None or _is_code(options.script):
        if views_asked:
            parser.error(f"`{options.script}` is a code; --why, --cost, --kernel and --remarks need a script")
        return _explain_code(options.script, context)
    # The compiler is imported for scripts only: an essay is there at once.
    code: int = import_module("loopfuse.cli.deciding").show(parser, options, context)
    return code


def _one_view(parser: arguments.Parser, options: argparse.Namespace) -> None:
    """Refuse two views at once, with what each would tell: none of them is dropped in silence."""
    asked = {name: getattr(options, name) for name in VIEWS}
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        ways = ", ".join(f"--{name} is about {VIEWS[name]}" for name in given)
        parser.error(
            f"{' and '.join(f'--{name}' for name in given)} are views of their own, so give one at a time: {ways}"
        )


def _is_code(text: str) -> bool:
    """A code, or what was meant for one: anything that cannot be a script."""
    return text != "-" and not text.endswith(".lf") and not Path(text).exists()


def _explain_code(code: str | None, context: Context) -> int:
    essays = read_essays()
    if code is None:
        for known, essay in essays.items():
            context.terminal.result(essay.split("\n", 1)[0].removeprefix("## "))
            context.terminal.record({"kind": "code", "code": known})
        return OK
    wanted = normalize(code)
    if wanted not in essays:
        near = difflib.get_close_matches(wanted, essays, 3, 0.5)
        hint = f"; near it are {', '.join(near)}" if near else "; `loopfuse explain` lists them"
        context.terminal.say(f"loopfuse: there is no error code `{code}`{hint}")
        return USAGE
    context.terminal.result(essays[wanted].removeprefix("## "))
    context.terminal.record({"kind": "explain", "code": wanted, "text": essays[wanted]})
    return OK
