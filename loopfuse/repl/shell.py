"""A line in, a reply out: what stands between a session and whatever front it has. No line can end the session but
`:quit`, and no error loses anything of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loopfuse.bugs import dump
from loopfuse.diag import CompilerError, LoopfuseError, Source, UserError, error
from loopfuse.frontend.lexemes import scan
from loopfuse.frontend.parse import is_incomplete
from loopfuse.repl import commands
from loopfuse.repl.replies import Reply, reply
from loopfuse.repl.session import Session, is_statement
from loopfuse.views.tables import duration
from loopfuse.views.values import describe, show_values, summarize

SMALL = 64  # elements that are printed as they are


class Shell:
    """A session and its lines. `width`: the columns of what is shown."""

    def __init__(self, session: Session | None = None, width: int = 80) -> None:
        self.session = session or Session()
        self.width = width

    def open(self, path: Path) -> Reply:
        """Load a script at the start."""
        return self._guarded(f":load {path}", lambda: commands.run(self.session, f":load {path}", self.width))

    def enter(self, text: str) -> Reply:
        """Do what a line, or several that belong together, asks for."""
        text = text.strip("\n")
        if not text.strip() or text.strip().startswith("#"):
            return Reply()
        self.session.lines.append(text.strip())
        return self._guarded(text, lambda: self._do(text))

    def _do(self, text: str) -> Reply:
        if text.lstrip().startswith(":"):
            return commands.run(self.session, text.strip(), self.width)
        text, quiet = without_semicolon(text)
        if not text.strip():
            return Reply()
        return self._define(text, quiet) if is_statement(text) else self._evaluate(text, quiet)

    def _define(self, text: str, quiet: bool) -> Reply:
        added = self.session.add(text)
        if quiet:
            return Reply()
        lines = [f"{name} : {kind}" for name, kind in added.names]
        found = reply(lines, *(["in place of the former one"] if added.replaced else []))
        found.diagnostics = [d for d in added.remarks if d.level == "warning"]
        return found

    def _evaluate(self, text: str, quiet: bool) -> Reply:
        value = self.session.evaluate(text)
        if quiet:
            return Reply()
        array = value.array
        if not array.ndim:
            item = array.item()
            lines = [str(item).lower() if isinstance(item, bool) else str(array[()])]
            return reply(lines, *commands.made_up(self.session, value.made, dict(value.sizes)))
        line, time = describe(summarize(array)), f"  ({duration(value.seconds)})"
        lines = [line + time if len(line + time) <= self.width else line]
        if array.size <= SMALL:
            lines += show_values(array, True, min(self.width, 100)).split("\n")
        return reply(lines, *commands.made_up(self.session, value.made, dict(value.sizes)))

    def edited(self, text: str) -> Reply:
        """Take the script as it came back from an editor."""
        return self._guarded(":edit", lambda: commands.edited(self.session, text))

    def _guarded(self, line: str, action: object) -> Reply:
        """Nothing that goes wrong in a line may reach the front, but the user's wish to stop it."""
        assert callable(action)
        try:
            found = action()
            assert isinstance(found, Reply)
            return found
        except UserError as why:
            return Reply(diagnostics=list(why.diagnostics), failed=True)
        except MemoryError:
            return Reply(diagnostics=[error("LF0509", "there is not enough memory", fix="smaller sizes")], failed=True)
        except Exception as why:
            return self._bug(line, why)

    def _bug(self, line: str, why: Exception) -> Reply:
        ours = isinstance(why, CompilerError) or not isinstance(why, LoopfuseError)
        said = str(why) if isinstance(why, LoopfuseError) else f"internal error: {type(why).__name__}: {why}"
        notes = [f"loopfuse: {said}"]
        if ours:
            script = Source(self.session.name, self.session.text)
            try:
                folder = dump(why, script, ["loopfuse", "repl", line])
                notes.append(f"this is a bug in loopfuse, not in your script; a reproducer is in {folder}")
            except OSError as again:
                notes.append(f"this is a bug in loopfuse; its reproducer could not be written: {again}")
        return Reply(notes=notes, failed=True)


def without_semicolon(text: str) -> tuple[str, bool]:
    """The text without a `;` at its end, and whether there was one."""
    words = scan(text)
    last = words[-2] if len(words) > 1 else None
    if last is not None and last.text == ";":
        return text[: last.start] + text[last.end :], True
    return text, False


def goes_on(text: str) -> bool:
    """Whether what was typed so far is the beginning of something longer. An empty line at the end says it is not."""
    if text.lstrip().startswith(":") or not text.strip() or text.endswith("\n\n") or text.rstrip(" ").endswith("\n"):
        return False
    return is_incomplete(text)


def state_folder() -> Path:
    """Where the history is kept: `loopfuse` in the user's state folder."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "loopfuse"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "loopfuse"
