"""What stands around every command: errors become messages and exit codes, and no traceback reaches a user."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from loopfuse.bugs import dump
from loopfuse.cli.terminal import Terminal
from loopfuse.diag import CompilerError, MachineError, Source, UserError, error

OK, USER, USAGE, FAILED, MACHINE, REGRESSED, BUG = 0, 1, 2, 3, 4, 5, 70


class Context:
    """What a command shares with the frame: the terminal, and the script in hand, for the report of a bug.

    `code` is the exit code where printing what happened fails, because the reader went away.
    """

    def __init__(self) -> None:
        self.terminal = Terminal()
        self.code = OK
        self.source: Source | None = None


def run_command(module: str, arguments: Sequence[str]) -> int:
    """Run a command's module on its arguments (its own name first) and return the exit code."""
    context = Context()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    try:
        code = _guarded(module, arguments, context)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except OSError as why:
        # The reader went away (`| head`), or the disk is full. Python would complain once more when it flushes at exit.
        for stream in (sys.stdout, sys.stderr) if isinstance(why, BrokenPipeError) else (sys.stdout,):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(why, BrokenPipeError):
            return context.code
        context.terminal.say(f"loopfuse: the results cannot be written: {why.strerror}")
        return USER
    return code


def _unwritable(why: Exception) -> bool:
    """Whether a print failed: errors with files of a name are reported by who opens them."""
    return isinstance(why, OSError) and why.filename is None and why.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT)


def _guarded(module: str, arguments: Sequence[str], context: Context) -> int:
    try:
        command = import_module(f"loopfuse.cli.{module}")
        code: int = command.main(list(arguments), context)
        return code
    except UserError as why:
        context.code = USER
        context.terminal.diagnostics(why.diagnostics)
        return USER
    except MachineError as why:
        context.code = MACHINE
        context.terminal.say(f"loopfuse: {why}")
        return MACHINE
    except BrokenPipeError:
        raise
    except MemoryError:
        context.code = USER
        context.terminal.diagnostics([error("LF0509", "there is not enough memory")])
        return USER
    except Exception as why:
        if _unwritable(why):
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
