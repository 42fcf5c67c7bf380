"""What stands around every command: errors become messages and exit codes, and no traceback reaches a user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from loopfuse.bugs import dump
from loopfuse.cli.outlets import is_full
from loopfuse.cli.terminal import Terminal
from loopfuse.diag import CompilerError, Diagnostic, MachineError, Source, UserError, error

OK, USER, USAGE, FAILED, MACHINE, REGRESSED, BUG = 0, 1, 2, 3, 4, 5, 70

# Mistakes that only the command line can make: a name or `size` that the script has not, a param's value that it cannot have, a
# generator with wrong arguments, a device or a pass that there is not.
_OF_USAGE = frozenset({"LF0502", "LF0505", "LF0508", "LF0516", "LF0820", "LF0821"})
_EXTENT = "LF0506"  # of a size that was given, where it has no place in a script; else of data


class Context:
    """What a command shares with the frame: the terminal, and the script in hand, for the report of a bug."""

    def __init__(self) -> None:
        self.terminal = Terminal()
        self.source: Source | None = None


def run_command(module: str, arguments: Sequence[str]) -> int:
    """Run a command's module on its arguments (its own name first) and return the exit code.

    Raises OSError where the disk is full that results go to.
    """
    context = Context()
    try:
        command = import_module(f"loopfuse.cli.{module}")
        code: int = command.main(list(arguments), context)
        return code
    except UserError as why:
        context.terminal.diagnostics(why.diagnostics)
        return exit_code(why.diagnostics)
    except MachineError as why:
        context.terminal.say(f"loopfuse: {why}")
        return MACHINE
    except MemoryError:
        context.terminal.diagnostics([error("LF0509", "there is not enough memory")])
        return USER
    except Exception as why:
        if is_full(why):
            raise
        return _bug(why, arguments, context)


def exit_code(found: Iterable[Diagnostic]) -> int:
    """What a user's mistakes exit with: 2 where one of them is in the words of the command line, else 1, for a script or data."""
    wrong = [d for d in found if d.level == "error"]
    return USAGE if any(d.code in _OF_USAGE or (d.code == _EXTENT and not d.labels) for d in wrong) else USER


def _bug(why: Exception, arguments: Sequence[str], context: Context) -> int:
    """Report our own error and write a reproducer."""
    text = str(why) if isinstance(why, CompilerError) else f"internal error: {type(why).__name__}: {why}"
    context.terminal.say(f"loopfuse: {text}")
    try:
        folder = dump(why, context.source, ["loopfuse", *arguments])
        context.terminal.say(f"this is a bug in loopfuse, not in your script; a reproducer is in {folder}")
    except Exception as again:
        context.terminal.say(f"this is a bug in loopfuse; its reproducer could not be written: {again}")
    return BUG
