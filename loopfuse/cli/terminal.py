"""Where words go: results to stdout, everything else to stderr, colours only where they help."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO

from loopfuse.diag import Diagnostic, render
from loopfuse.outside import visible, write_json

SCHEMA = 1
PATIENCE = 0.3
_STYLES = {"error": "bold red", "warning": "bold yellow", "remark": "bold blue"}


class Terminal:
    """The two streams of a command. `color` is auto, always or never; `json` puts JSON lines on stdout."""

    def __init__(self) -> None:
        self.color = "auto"
        self.json = False
        self.quiet = False
        self.verbose = False

    # -- stdout -------------------------------------------------------------------------------------------------------

    def result(self, line: str) -> None:
        """Lines of the result, for people; with `json` they go to stderr."""
        self.painted(visible(line))

    def painted(self, line: str) -> None:
        """The same of a line that has colours, and holds nothing else that a terminal would obey."""
        print(line, file=sys.stderr if self.json else sys.stdout)

    def record(self, record: Mapping[str, Any]) -> None:
        """A JSON line of the result, only with `json`. Numbers that JSON lacks become the strings nan, inf, -inf."""
        if self.json:
            print(write_json({"schema": SCHEMA, **_plain(record)}))

    # -- stderr -------------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """A line for people."""
        print(visible(line), file=sys.stderr)

    def note(self, line: str) -> None:
        """A line for people who did not ask for quiet."""
        if not self.quiet:
            self.say(line)

    def diagnostics(self, found: Iterable[Diagnostic]) -> None:
        """Errors always, warnings unless quiet, remarks when verbose; with `json` as JSON lines too."""
        for diagnostic in found:
            if (diagnostic.level == "warning" and self.quiet) or (diagnostic.level == "remark" and not self.verbose):
                continue
            if self.json:
                print(diagnostic.as_json())
            text = render(diagnostic)
            if self.colored(sys.stderr):
                self._print_styled(text, _STYLES[diagnostic.level])
            else:
                self.say(text)
            self.say("")

    def colored(self, stream: TextIO) -> bool:
        """Whether to colour what goes to a stream."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def _print_styled(self, text: str, style: str) -> None:
        """A rendered diagnostic in colours; the text stays the same to the character."""
        console = import_module("rich.console").Console(
            stderr=True, force_terminal=True, color_system="standard", soft_wrap=True, highlight=False, emoji=False,
            markup=False, legacy_windows=False,
        )  # fmt: skip
        styled = import_module("rich.text").Text(text)
        first = text.split("\n", 1)[0]
        styled.stylize(style, 0, first.find(":") if ":" in first else len(first))
        styled.stylize("bold", first.find(":") + 1, len(first))
        for pattern, look in (
            (r"(?m)^ *(?:\d+ )?\|", "blue"), (r"(?m)^ *-->", "blue"), (r"(?m)^ *= \w+:", "bold blue"),
            (r"(?m)^ *\| *(\^+.*)$", style), (r"(?m)^ *\| *(-+ .*)$", "blue"),
        ):  # fmt: skip
            for match in re.finditer(pattern, text):
                styled.stylize(look, *match.span(match.lastindex or 0))
        console.print(styled)

    @contextmanager
    def progress(self, what: str) -> Iterator[Progress]:
        """A progress line on stderr, when it is a terminal and the work takes longer than 0.3 s."""
        shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not self.quiet and not self.json
        line = Progress(what, shown)
        try:
            yield line
        finally:
            line.stop()


class Progress:
    """Called with the fraction done; draws nothing before 0.3 s."""

    def __init__(self, what: str, shown: bool) -> None:
        self.what, self.shown = what, shown
        self.start = time.monotonic()
        self.bar: Any = None
        self.task: Any = None

    def __call__(self, done: float, what: str | None = None) -> None:
        """Tell how far the work is, and what is done now where that changes."""
        if not self.shown or time.monotonic() - self.start < PATIENCE:
            return
        if self.bar is None:
            console = import_module("rich.console").Console(stderr=True)
            self.bar = import_module("rich.progress").Progress(console=console, transient=True)
            self.task = self.bar.add_task(self.what, total=1.0)
            self.bar.start()
        self.bar.update(self.task, completed=done, **({"description": what} if what else {}))

    def stop(self) -> None:
        """Take the line away."""
        if self.bar is not None:
            self.bar.stop()


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
