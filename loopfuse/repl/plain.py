"""The session without a terminal: lines from a stream, results to stdout. `loopfuse repl < lines` is a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from loopfuse.diag import Diagnostic
from loopfuse.frontend.lexemes import STARTERS
from loopfuse.repl.replies import Reply
from loopfuse.repl.shell import Shell, goes_on
from loopfuse.repl.stepper import Stepper
from loopfuse.views.diff import Shown


class Output(Protocol):
    """Where a front's words go."""

    def show(self, lines: Iterable[Shown]) -> None:
        """Results."""

    def note(self, line: str) -> None:
        """An aside."""

    def diagnostics(self, found: Iterable[Diagnostic]) -> None:
        """Errors and warnings."""


def tell(found: Reply, output: Output) -> None:
    """Print a reply."""
    output.diagnostics(found.diagnostics)
    for note in found.notes:
        output.note(note)
    output.show(found.lines)


def run(shell: Shell, lines: Iterable[str], output: Output) -> bool:
    """Do all lines of a stream; whether none was refused. Stops at `:quit` and at the end."""
    good = True
    for text in statements(lines):
        found = do(shell, text, output)
        good = good and not found.failed
        if found.done:
            break
    return good


def talk(shell: Shell, prompt: Callable[[str], str], output: Output) -> None:
    """The session at a prompt without any editing: Ctrl-C drops the line, or stops what runs."""
    for text in ask(prompt):
        try:
            if do(shell, text, output).done:
                return
        except KeyboardInterrupt:
            output.note("interrupted")


def do(shell: Shell, text: str, output: Output) -> Reply:
    """Do a line and print what comes back; a stepper shows all its pages."""
    found = shell.enter(text)
    tell(found, output)
    if found.stepper is not None:
        output.show(everything(found.stepper))
    if found.edit is not None:
        output.note("`:edit` needs a terminal")
    return found


def statements(lines: Iterable[str]) -> Iterator[str]:
    """Lines put together to what they are the lines of. A line that begins something new ends what is not complete."""
    held = ""
    for line in lines:
        line = line.rstrip("\r\n")
        word = line.split(maxsplit=1)[:1]
        fresh = line[:1] not in ("", " ", "\t", "}", ")", "]") and (line.startswith(":") or word[0] in STARTERS)
        if held and fresh:
            yield held
            held = ""
        text = f"{held}\n{line}" if held else line
        held = text if goes_on(text.rstrip()) else ""
        if not held:
            yield text
    if held:
        yield held


def everything(stepper: Stepper) -> list[Shown]:
    """All pages of a stepper from where it stands, those of passes that changed nothing left out."""
    found: list[Shown] = []
    for number in range(stepper.at, len(stepper.steps)):
        stepper.at = number
        if stepper.steps[number].changed or number == 0:
            found += [Shown(f"== {stepper.header()}", "@"), *stepper.body()]
    return found


def ask(prompt: Callable[[str], str]) -> Iterator[str]:
    """Lines typed at a prompt without any editing; ends at the end of the input."""
    held = ""
    while True:
        try:
            line = prompt(".. " if held else "lf> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            held = ""
            yield ""
            continue
        text = f"{held}\n{line}" if held else line
        held = text if goes_on(text) else ""
        if not held:
            yield text
