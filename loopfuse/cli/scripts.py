"""Reading scripts from files or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from loopfuse import driver
from loopfuse.diag import Source, UserError, error


def read_script(name: str) -> Source:
    """The script in a file, or with `-` on stdin. Raises `UserError` where there is none."""
    if name == "-":
        try:
            return Source("<stdin>", sys.stdin.buffer.read().decode("utf-8-sig"))
        except UnicodeDecodeError as why:
            raise UserError(error("LF0511", f"stdin is not a text in UTF-8 (byte {why.start})")) from why
    return driver.read_source(Path(name))
