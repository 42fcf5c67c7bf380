"""The command line. This module only chooses a command: it imports nothing that takes time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from loopfuse import __version__
from loopfuse.cli.outlets import guarded

# The commands in the order in which help lists them: the module that holds each, and a line of help.
COMMANDS = {
    "run": ("run", "run a script on files or generated arrays"),
    "check": ("check", "report every error; run the script's `check` statements"),
    "fuzz": ("fuzz", "try a script on drawn data, or random programs, for what disagrees"),
    "ir": ("ir", "show what a script becomes: syntax tree, types, ranges, loops"),
    "bench": ("bench", "how long a script takes, beside what the device allows"),
    "bisect": ("bisect", "find the pass, and the step in it, that changes results"),
    "fmt": ("fmt", "lay scripts out in the canonical way"),
    "explain": ("explain", "how a script was fused, and why; what an error code means"),
    "repl": ("repl", "a session: define, evaluate, walk through the passes"),
    "new": ("new", "write a commented script to start from"),
    "cache": ("cache", "what was compiled before: list it, clear it"),
    "doctor": ("doctor", "what this installation has and lacks"),
}


UNWRITTEN = 1  # the exit code where what is printed cannot be written


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 ok, 1 script or data, 2 usage, 3 check, 4 machine, 5 slower, 70 bug."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _chosen(arguments), UNWRITTEN)


def _chosen(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("--version", "-V"):
        print(f"loopfuse {__version__}")
        return 0
    if first in ("--help", "-h", "help") and len(arguments) == 1:
        print(overview())
        return 0
    if first == "help":
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] not in COMMANDS:
        print(_unknown(arguments), file=sys.stderr)
        return 2
    try:
        frame = import_module("loopfuse.cli.frame")
        code: int = frame.run_command(COMMANDS[arguments[0]][0], arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


def overview() -> str:
    """The help text that lists the commands."""
    lines = ["usage: loopfuse COMMAND ...", "", "Array programs, fused.", ""]
    lines += [f"  {name:<9}{line}" for name, (_, line) in COMMANDS.items()]
    return "\n".join([*lines, "", "`loopfuse COMMAND --help` tells more; `loopfuse --version` the version."])


def _unknown(arguments: list[str]) -> str:
    if not arguments:
        return overview()
    near = import_module("difflib").get_close_matches(arguments[0], COMMANDS, 1)
    hint = f"did you mean `loopfuse {near[0]}`?" if near else f"the commands are {', '.join(COMMANDS)}"
    if not near and arguments[0].endswith(".lf") and arguments[0].isprintable():
        hint = f"did you mean `loopfuse run {arguments[0]}`?"
    shown = arguments[0].encode("unicode_escape").decode() if not arguments[0].isprintable() else arguments[0]
    return f"loopfuse: there is no command `{shown}`: {hint}"
