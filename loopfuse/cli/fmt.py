"""`loopfuse fmt`: the canonical layout."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile

from loopfuse import driver
from loopfuse.cli import arguments
from loopfuse.cli.frame import OK, USER, Context
from loopfuse.cli.scripts import read_script
from loopfuse.diag import Source, UserError, error
from loopfuse.frontend.fmt import format_source

ABOUT = """Lay scripts out in the canonical way, in place; comments stay. With `-` from stdin to stdout."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns 1 when --check or --diff finds a script that would change."""
    parser = arguments.Parser("fmt", ABOUT)
    parser.add_argument("scripts", nargs="+", help="scripts, or - for stdin")
    parser.add_argument("--check", action="store_true", help="change nothing; name the scripts that would change")
    parser.add_argument("--diff", action="store_true", help="change nothing; show what would change")
    options = parser.read(argv, context)
    code = OK
    for name in options.scripts:
        source = context.source = read_script(name)
        try:
            with driver.guard("fmt"):
                text = format_source(source.text)
        except UserError as why:
            context.terminal.diagnostics(why.diagnostics)
            code = USER
            continue
        if options.check or options.diff:
            code = max(code, _compare(source, text, options.diff, context))
        elif name == "-":
            sys.stdout.write(text)
        elif text != source.text:
            _rewrite(name, text)
            context.terminal.note(f"laid out {name}")
            context.terminal.record({"kind": "fmt", "script": name, "changed": True})
    return code


def _compare(source: Source, text: str, diff: bool, context: Context) -> int:
    """Report a script that would change."""
    changed = text != source.text
    context.terminal.record({"kind": "fmt", "script": source.name, "changed": changed})
    if not changed:
        return OK
    if diff:
        before, after = source.text.splitlines(), text.splitlines()
        for line in difflib.unified_diff(before, after, source.name, f"{source.name} laid out", lineterm=""):
            context.terminal.result(line)
    else:
        context.terminal.result(f"would lay out {source.name}")
    return USER


def _rewrite(name: str, text: str) -> None:
    """Replace a script in one step, so that it is never half written."""
    path = os.path.realpath(name)
    temporary = ""
    try:
        mode = os.stat(path).st_mode
        handle, temporary = tempfile.mkstemp(prefix=".loopfuse-", dir=os.path.dirname(path))
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as why:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise UserError(error("LF0515", f"`{name}` cannot be written: {why.strerror}")) from why
