"""The stepper: pass by pass with the difference on screen. What it shows is text; who draws it is another's business."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from loopfuse.diag import LoopfuseError, UserError, render
from loopfuse.memory import show_bytes
from loopfuse.printer import print_program
from loopfuse.views.diff import SIDE, Shown, diff
from loopfuse.views.passes import Step
from loopfuse.views.tables import duration

KEYS = "n next  p prev  s side-by-side  c changed only  / find  w why  q quit"
Why = Callable[[str, str], list[str]]


class Stepper:
    """A place among the steps, and how it is looked at. `press` takes the name of a key, and is False at the end."""

    def __init__(self, steps: Sequence[Step], why: Why, at: int = 0) -> None:
        self.steps, self.why = steps, why
        self.at = at
        self.side = self.changed_only = False
        self.top = 0
        self.width, self.height = 80, 24
        self.mode = ""  # `/` or `w` while a line is typed
        self.typed = self.sought = self.message = ""
        self.answer: list[Shown] | None = None  # shown instead of the difference
        self.pages: dict[tuple[int, bool, int], list[Shown]] = {}

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        """Do what a key says: a character, or `enter`, `escape`, `backspace`, `up`, `down`, `pageup`, `pagedown`,
        `home`, `end`, `left`, `right`. False: the stepper is done."""
        self.message = ""
        if self.mode:
            self._type(key)
            return True
        if key in ("q", "escape", "c-c", "c-d"):
            if self.answer is None:
                return False
            self.answer = None
        elif key in ("n", "right", " ", "enter"):
            self._go(1)
        elif key in ("p", "left", "backspace"):
            self._go(-1)
        elif key == "s":
            self.side = not self.side
            if self.side and self.width < SIDE:
                self.message = f"two columns need a width of {SIDE}; there are {self.width}"
        elif key == "c":
            self.changed_only = not self.changed_only
            self.message = "changed passes only" if self.changed_only else "all passes"
        elif key in ("/", "w"):
            self.mode, self.typed = key, ""
        elif key in ("?", "h"):
            self.message = KEYS
        else:
            self._scroll(key)
        return True

    def _go(self, way: int) -> None:
        """To the next or previous step, which with `c` is one that changed something."""
        place = self.at + way
        while self.changed_only and 0 < place < len(self.steps) and not self.steps[place].changed:
            place += way
        if not 0 <= place < len(self.steps):
            self.message = "this is the last pass" if way > 0 else "this is the first"
            return
        self.at, self.top, self.answer = place, 0, None

    def _scroll(self, key: str) -> None:
        page = max(self.height - 3, 1)
        moves = {
            "down": 1,
            "j": 1,
            "up": -1,
            "k": -1,
            "pagedown": page,
            "pageup": -page,
            "home": -(10**9),
            "end": 10**9,
        }
        if key in moves:
            self.top = min(max(self.top + moves[key], 0), max(len(self.body()) - page, 0))
        elif len(key) == 1:
            self.message = f"`{key}` does nothing: {KEYS}"

    def _type(self, key: str) -> None:
        """A key while a line is typed."""
        if key == "enter":
            mode, self.mode = self.mode, ""
            (self._find if mode == "/" else self._why)(self.typed.strip())
        elif key in ("escape", "c-c", "c-d"):
            self.mode = ""
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1:
            self.typed += key

    def _find(self, word: str) -> None:
        """The next line that holds a word, from below the first on screen, then from the top."""
        self.sought = word or self.sought
        lines = self.body()
        order = [*range(self.top + 1, len(lines)), *range(min(self.top + 1, len(lines)))]
        for number in order if self.sought else []:
            if self.sought.lower() in lines[number].text.lower():
                self.top = number
                self.message = f"`{self.sought}` in line {number + 1} of {len(lines)}"
                return
        self.message = f"`{self.sought}` is not here" if self.sought else "nothing to find"

    def _why(self, words: str) -> None:
        names = words.replace(",", " ").split()
        if len(names) != 2:
            self.message = "why: two definitions, as in `m e`"
            return
        try:
            lines = self.why(names[0], names[1])
        except UserError as told:
            lines = [line for d in told.diagnostics for line in render(d).split("\n")]
        except LoopfuseError as told:
            lines = [str(told)]
        self.answer, self.top = [part for line in lines for part in wrapped(Shown(line), self.width)], 0

    # -- what is shown ------------------------------------------------------------------------------------------------

    def header(self) -> str:
        """The step: number, name, what there is after it, and why."""
        step = self.steps[self.at]
        c = step.counts
        time = f"  {duration(step.seconds)}" if step.seconds is not None else ""
        mark = "~" if step.changed else " "
        return (f"{step.number}/{len(self.steps) - 1}{mark} {step.name}   ops {c.operations}  loops {c.loops}  "
                f"kernels {c.kernels}  {show_bytes(c.bytes)}{time}")  # fmt: skip

    def body(self) -> list[Shown]:
        """All lines of the page: the difference that the pass made, or the program before all passes."""
        if self.answer is not None:
            return self.answer
        key = (self.at, self.side, self.width)
        if key not in self.pages:
            self.pages[key] = [part for line in self._page() for part in wrapped(line, self.width)]
        return self.pages[key]

    def _page(self) -> list[Shown]:
        step = self.steps[self.at]
        if not step.number:
            return [Shown(line) for line in print_program(step.program, gutter=True).splitlines()]
        lines = [Shown(f"{'- not done:' if r.missed else '-'} {r.text}{' [rounds]' * r.rounds}") for r in step.remarks]
        if not step.changed:
            return [Shown("(no change)"), *lines]
        if step.came:
            lines.insert(0, Shown(f"- {step.came}"))
        before = self.steps[self.at - 1].program
        return [*lines, *diff(before, step.program, width=self.width, side=self.side)]

    def footer(self) -> str:
        """The keys, a message, or the line being typed."""
        if self.mode:
            return ("find: " if self.mode == "/" else "why (two names): ") + self.typed
        if self.message:
            return self.message
        if self.answer is not None:
            return "q back to the pass"
        return KEYS

    def _rule(self, room: int) -> str:
        """The line under the header: which lines of the page are on screen, where these are not all."""
        total = len(self.body())
        place = f" {self.top + 1}-{min(self.top + room, total)} of {total}" if total > room or self.top else ""
        return "-" * (self.width - len(place)) + place

    def screen(self, width: int, height: int) -> list[Shown]:
        """The whole screen at a size: header, a rule, a part of the body, footer."""
        self.width, self.height = max(width, 20), max(height, 4)
        room = self.height - 3
        lines = self.body()
        self.top = min(self.top, max(len(lines) - 1, 0))
        shown = lines[self.top : self.top + room]
        blank = [Shown("")] * (room - len(shown))
        framed = [Shown(self.header(), "@"), Shown(self._rule(room)), *shown, *blank, Shown(self.footer(), "@")]
        return [Shown(_cut(line.text, self.width), line.mark) for line in framed]


def wrapped(line: Shown, width: int) -> list[Shown]:
    """A line in parts that fit; what goes on below stands a little further to the right than the line began."""
    if len(line.text) <= width:
        return [line]
    indent = min(len(line.text) - len(line.text.lstrip(" 0123456789-+~:|")) + 2, width // 2)
    parts = textwrap.wrap(
        line.text, width, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=False
    )
    return [Shown(part, line.mark) for part in parts]


def _cut(text: str, width: int) -> str:
    """A line that fits; `>` where it goes on."""
    return text if len(text) <= width else text[: width - 1] + ">"
