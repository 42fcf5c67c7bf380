"""Lines of views on the terminal: marks in colour where there are colours, the text the same to the character."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable

from loopfuse.cli.terminal import Terminal
from loopfuse.outside import visible
from loopfuse.views.diff import Shown

_COLORS = {"-": "31", "+": "32", "~": "33", "!": "33", "@": "1"}


def width() -> int:
    """The columns of the terminal; 0, no limit, where stdout is none."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 0


def show(terminal: Terminal, lines: Iterable[Shown]) -> None:
    """Print lines of a view."""
    colored = terminal.colored(sys.stdout) and not terminal.json
    for line in lines:
        terminal.painted(paint(line) if colored else visible(line.text))


def paint(line: Shown) -> str:
    """The line with the colour of its mark."""
    code = _COLORS.get(line.mark)
    text = visible(line.text)
    return f"\x1b[{code}m{text}\x1b[0m" if code else text
