"""The session on a terminal: editing, completion and history by prompt_toolkit; the stepper on the whole screen."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import ColorDepth, Output

from loopfuse.repl.complete import complete
from loopfuse.repl.plain import Output as Words
from loopfuse.repl.plain import tell
from loopfuse.repl.session import Session
from loopfuse.repl.shell import Shell, goes_on, state_folder
from loopfuse.repl.stepper import Stepper

_STYLES = {"-": "ansired", "+": "ansigreen", "~": "ansiyellow", "!": "ansiyellow", "@": "bold"}
MOST_HISTORY = 1 << 20  # bytes


class _Completer(Completer):
    def __init__(self, session: Session) -> None:
        self.session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for found in complete(document.text_before_cursor, self.session):
            yield Completion(found.text, start_position=-found.back, display_meta=found.what)


class Front:
    """The loop of a session on a terminal. `colored`: whether colours are wanted; `words` prints replies."""

    def __init__(self, shell: Shell, words: Words, colored: bool, source: Input | None = None,
                 screen: Output | None = None) -> None:  # fmt: skip
        self.shell, self.words, self.colored = shell, words, colored
        self.source, self.screen = source, screen
        self.dumb = os.environ.get("TERM", "") in ("dumb", "unknown", "")
        self.doing = False  # a line is being done, not typed
        self.draft: str | None = None  # a text that came back from the editor with errors
        self.prompt: PromptSession[str] = PromptSession(
            "lf> ", multiline=Condition(lambda: goes_on(get_app().current_buffer.text)), prompt_continuation=".. ",
            completer=_Completer(shell.session), complete_while_typing=False, history=_history(), input=source, output=screen,
            color_depth=self.depth, enable_suspend=True,
        )  # fmt: skip

    @property
    def depth(self) -> ColorDepth:
        """One bit where no colours are wanted."""
        return ColorDepth.DEPTH_4_BIT if self.colored else ColorDepth.DEPTH_1_BIT

    def run(self) -> None:
        """Read and do lines until the end. Ctrl-C drops the line, or stops what runs, and never ends the session."""
        going = True
        while going:
            try:
                going = not self.line(self.prompt.prompt())
            except KeyboardInterrupt:
                if self.doing:
                    self.words.note("interrupted")
            except EOFError:
                return
            self.doing = False

    def line(self, text: str) -> bool:
        """Do a line; whether it was the last."""
        self.doing = True
        self.shell.width = shutil.get_terminal_size((80, 24)).columns
        found = self.shell.enter(text)
        tell(found, self.words)
        if found.stepper is not None:
            self.step(found.stepper)
        if found.edit is not None:
            self._edit(found.edit)
        return found.done

    # -- the stepper --------------------------------------------------------------------------------------------------

    def step(self, stepper: Stepper) -> None:
        """Run a stepper: on the whole screen, or on a dumb terminal page by page."""
        if self.dumb:
            self._step_by_lines(stepper)
        else:
            stepper_application(stepper, self.depth, self.source, self.screen).run()

    def _step_by_lines(self, stepper: Stepper) -> None:
        asked: PromptSession[str] = PromptSession(input=self.source, output=self.screen)
        going = True
        while going:
            stepper.height = 10**6  # a page of its own length: the terminal keeps what went by
            self.words.show([*stepper.screen(self.shell.width, len(stepper.body()) + 3)])
            try:
                keys = asked.prompt(f"{stepper.footer()} " if stepper.mode else "step> ").strip()
            except (KeyboardInterrupt, EOFError):
                return
            going = press_line(stepper, keys)

    # -- the editor ---------------------------------------------------------------------------------------------------

    def _edit(self, text: str) -> None:
        """Open the script in the user's editor; what comes back with errors is opened again by the next `:edit`."""
        changed = edit_text(self.draft if self.draft is not None else text, self.words.note)
        if changed is None:
            return
        found = self.shell.edited(changed)
        self.draft = changed if found.failed else None
        tell(found, self.words)
        if found.failed:
            self.words.note("the session is as it was; :edit opens this text again")


def press_line(stepper: Stepper, line: str) -> bool:
    """Do the keys of a line: `n`, `nn`, `/word`, `w m e`; an empty one is `n`. False: the stepper is done."""
    if stepper.mode:
        return all(stepper.press(key) for key in (*line, "enter"))
    line = "w" + line.removeprefix("why") if line.startswith("why") else line or "n"
    if line[0] in "/w" and len(line) > 1:
        return all(stepper.press(key) for key in (line[0], *line[1:].strip(), "enter"))
    return all(stepper.press(key) for key in line)


def stepper_application(stepper: Stepper, depth: ColorDepth, source: Input | None = None,
                        screen: Output | None = None) -> Application[None]:  # fmt: skip
    """The stepper on the whole screen."""
    keys = KeyBindings()

    @keys.add("<any>")
    def _(event: KeyPressEvent) -> None:
        typed = event.key_sequence[0].data
        if len(typed) == 1 and typed.isprintable() and not stepper.press(typed):
            event.app.exit()

    for special in ("enter", "escape", "backspace", "up", "down", "left", "right", "pageup", "pagedown", "home", "end", "c-c",
                    "c-d"):  # fmt: skip

        def pressed(event: KeyPressEvent, name: str = special) -> None:
            if not stepper.press(name):
                event.app.exit()

        keys.add(special, eager=special != "escape")(pressed)

    def text() -> StyleAndTextTuples:
        size = get_app().output.get_size()
        found: StyleAndTextTuples = []
        for line in stepper.screen(size.columns, size.rows):
            found.append((_STYLES.get(line.mark, ""), line.text + "\n"))
        found[-1] = (found[-1][0], found[-1][1].rstrip("\n"))
        return found

    window = Window(FormattedTextControl(text, show_cursor=False), wrap_lines=False)
    return Application(Layout(window), key_bindings=keys, full_screen=True, color_depth=depth, input=source, output=screen,
                       enable_page_navigation_bindings=False)  # fmt: skip


def edit_text(text: str, note: Callable[[str], None]) -> str | None:
    """The text after the user's editor; None where there is no editor, or it failed."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not command:
        command = next((name for name in ("nano", "vi") if shutil.which(name)), "")
    if not command:
        note("there is no editor: set EDITOR")
        return None
    with tempfile.TemporaryDirectory(prefix="loopfuse-") as folder:
        path = Path(folder) / "session.lf"
        path.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(command), str(path)], check=False)
            if done.returncode:
                note(f"the editor ended with {done.returncode}: nothing changed")
                return None
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as why:
            note(f"`{command}` cannot be run, or left no text: {why}")
            return None


def _history() -> History:
    """The lines of former sessions, in a file that is the user's alone; in memory where that cannot be written."""
    path = state_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        with contextlib.suppress(OSError):
            path.chmod(0o600)
        if path.stat().st_size > MOST_HISTORY:
            kept = path.read_bytes()[-MOST_HISTORY // 2 :]
            path.write_bytes(kept[kept.find(b"\n\n") + 1 :])
        with path.open("ab"):
            pass
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
