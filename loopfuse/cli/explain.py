"""`loopfuse explain`: the essay of an error code."""

from __future__ import annotations

import difflib
import re
from importlib import resources

from loopfuse.cli import arguments
from loopfuse.cli.frame import OK, USER, Context

ABOUT = """Tell what an error code means, why it is an error, and the way out. Without a code, list them all."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("explain", ABOUT)
    parser.add_argument("code", nargs="?", help="a code as LF0304")
    options = parser.read(argv, context)
    essays = read_essays()
    if options.code is None:
        for code, essay in essays.items():
            context.terminal.result(essay.split("\n", 1)[0].removeprefix("## "))
            context.terminal.record({"kind": "code", "code": code})
        return OK
    code = normalize(options.code)
    if code not in essays:
        near = difflib.get_close_matches(code, essays, 3, 0.5)
        hint = f"; near it are {', '.join(near)}" if near else "; `loopfuse explain` lists them"
        context.terminal.say(f"loopfuse: there is no error code `{options.code}`{hint}")
        return USER
    context.terminal.result(essays[code].removeprefix("## "))
    context.terminal.record({"kind": "explain", "code": code, "text": essays[code]})
    return OK


def normalize(text: str) -> str:
    """`lf304`, `304`, `error[LF0304]` as `LF0304`."""
    digits = re.search(r"\d{1,4}", text)
    return f"LF{int(digits[0]):04}" if digits else text


def read_essays() -> dict[str, str]:
    """The essays by their codes, in the order of the file."""
    text = resources.files("loopfuse").joinpath("codes.md").read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=## LF\d{4}\b)", text)[1:]
    return {section[3:9]: section.rstrip() for section in sections}
