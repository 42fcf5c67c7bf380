"""What stands around every command: errors become messages and exit codes, and no traceback reaches a user."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from loopfuse.bugs import dump
from loopfuse.cli.outlets import is_full
from loopfuse.cli.terminal import Terminal
from loopfuse.diag import CompilerError, MachineError, Source, UserError, error

OK, USER, USAGE, FAILED, MACHINE, REGRESSED, BUG = 0, 1, 2, 3, 4, 5, 70


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
        return USER
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
