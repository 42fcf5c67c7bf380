"""What comes back from a line: text to show, diagnostics, and what the front of the session is to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loopfuse.diag import Diagnostic
from loopfuse.repl.stepper import Stepper
from loopfuse.views.diff import Shown


@dataclass
class Reply:
    """`lines` are results, `notes` asides for people. `failed`: the line was refused. `stepper` is to be run, `edit` to
    be opened in an editor, `done` ends the session."""

    lines: list[Shown] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    failed: bool = False
    done: bool = False
    stepper: Stepper | None = None
    edit: str | None = None

    @property
    def text(self) -> str:
        """The results as one text."""
        return "".join(line.text + "\n" for line in self.lines)


def reply(lines: Iterable[str] | str = (), *notes: str) -> Reply:
    """A reply of plain lines."""
    return Reply([Shown(line) for line in (lines.split("\n") if isinstance(lines, str) else lines)], list(notes))
