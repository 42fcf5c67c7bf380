"""`loopfuse repl`: a session at a prompt, or lines from a stream."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from loopfuse import __version__
from loopfuse.cli import arguments, backends, screen
from loopfuse.cli.frame import OK, USER, Context
from loopfuse.cli.terminal import Terminal
from loopfuse.devices import DEFAULT, device
from loopfuse.diag import Diagnostic
from loopfuse.passes import selection
from loopfuse.repl import plain
from loopfuse.repl.shell import Shell
from loopfuse.views.diff import Shown

ABOUT = """Type definitions and expressions; expressions are evaluated at once. `:help` lists the commands, `:step` walks
through the passes. Without a terminal lines are read from stdin, and the exit code is 1 if one of them was refused."""


class _Output:
    """Replies on the streams of a command."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def show(self, lines: Iterable[Shown]) -> None:
        """Results to stdout."""
        kept = list(lines)
        if self.terminal.json and kept:
            self.terminal.record({"kind": "reply", "text": "".join(line.text + "\n" for line in kept)})
        elif kept:
            screen.show(self.terminal, kept)
        sys.stdout.flush()

    def note(self, line: str) -> None:
        """Asides to stderr."""
        self.terminal.note(line)

    def diagnostics(self, found: Iterable[Diagnostic]) -> None:
        """Errors and warnings to stderr."""
        self.terminal.diagnostics(found)


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("repl", ABOUT)
    parser.add_argument("script", nargs="?", help="a script to begin with")
    parser.add_argument("--plain", action="store_true", help="no editing, no completion, no full screen")
    parser.add_argument("--passes", metavar="LIST", default="default", help="which passes run")
    parser.add_argument("--device", metavar="NAME", default=DEFAULT, help="whose costs decide (default h200)")
    backends.add_backend(parser)
    options = parser.read(argv, context)
    if options.script == "-":
        parser.error("lines come from stdin already: name a file, or pipe the script itself")
    terminal = context.terminal
    output = _Output(terminal)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    shell = Shell(width=screen.width() or 80)
    shell.session.device = device(options.device)
    selection(options.passes)
    shell.session.passes = options.passes
    if options.backend != "auto":
        shell.session.backend = backends.settled(options.backend, context)
    if interactive and not terminal.json:
        terminal.note(
            f"loopfuse {__version__}   {shell.session.backend} backend, costs for {shell.session.device.name}   :help"
        )
    if options.script is not None:
        opened = shell.open(Path(options.script))
        plain.tell(opened, output)
        if opened.failed and not interactive:
            return USER
    if interactive and not options.plain and not terminal.json:
        front = import_module("loopfuse.repl.terminal").Front(shell, output, terminal.colored(sys.stdout))
        front.run()
        return OK
    if interactive:
        plain.talk(shell, input, output)
        return OK
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    good = plain.run(shell, sys.stdin, output)
    return OK if good else USER
