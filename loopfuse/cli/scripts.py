"""Reading scripts from files or stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from loopfuse import driver
from loopfuse.cli.frame import Context
from loopfuse.diag import Source, UserError, error
from loopfuse.files import Place
from loopfuse.frontend.typed import TypedProgram
from loopfuse.outside import MOST_TEXT


def read_script(name: str) -> Source:
    """The script in a file, or with `-` on stdin. Raises `UserError` where there is none."""
    if name == "-":
        try:
            data = sys.stdin.buffer.read(MOST_TEXT + 1)
            if len(data) > MOST_TEXT:
                raise UserError(error("LF0510", f"stdin holds more than {MOST_TEXT >> 20} MiB, which is no script"))
            return Source("<stdin>", data.decode("utf-8-sig"))
        except UnicodeDecodeError as why:
            raise UserError(error("LF0511", f"stdin is not a text in UTF-8 (byte {why.start})")) from why
    return driver.read_source(Path(name))


def read_existing(typed: TypedProgram, assigned: Mapping[str, str], base: Path, context: Context,
                  script: str) -> dict[str, object]:  # fmt: skip
    """The inputs of a script that are given or whose file exists; a note says which of the others are to be made up."""
    absent = {i.name: i.default for i in typed.inputs if i.default and i.name not in assigned
              and not os.path.exists(Place(i.default, base).path)}  # fmt: skip
    for name, file in absent.items():
        context.terminal.note(f"{script}: `{file}` does not exist, so `{name}` is made up")
    return driver.read_inputs(typed, assigned, base, skip=absent)
