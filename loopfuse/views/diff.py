"""The difference of two programs as statements: what went, what came, what moved; what stayed is folded.

Every line has its line in the script before it. Marks: `-` is no longer so, `+` is new, `~` is the same statement at
another place; no mark: as before (perhaps deeper or less deep in loops).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from loopfuse.ir import Program
from loopfuse.views.align import Group, groups, match
from loopfuse.views.lines import Gutter, Line, declaration_lines, defined, gutter, kernel_lines
from loopfuse.views.tables import names

SIDE = 120  # the least width for two columns
CONTEXT = 1
Mark = Literal["", "-", "+", "~", "!", "@"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A line on screen. `mark`: `-`, `+`, `~`; `!` of a change shown in two columns, `@` of a heading."""

    text: str
    mark: Mark = ""


@dataclass(slots=True)
class Row:
    """A line before and after. `equal`: they say the same; a statement that moved has a `note` that says from where."""

    old: Line | None
    new: Line | None
    equal: bool = False
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether there is nothing to tell."""
        return self.equal and not self.note

    @property
    def line(self) -> Line:
        """The line as it is now, or was."""
        line = self.new or self.old
        assert line is not None
        return line


def diff(old: Program, new: Program, *, width: int = 80, side: bool = False, only: str | None = None) -> list[Shown]:
    """The difference of two programs; one line where there is none.

    `side` asks for two columns, which need a width of 120. `only` keeps what concerns one kernel or definition.
    """
    marks = gutter(new, old)
    found: list[Shown] = []
    sections = [] if only else [("declarations", _rows(declaration_lines(old), declaration_lines(new)))]
    for group in groups(old, new):
        if only is None or _about(group, only):
            sections.append((_title(group), _rows(kernel_lines(group.old), kernel_lines(group.new))))
    numbers = [marks.number(line.span) for _, rows in sections for row in rows for line in (row.old, row.new) if line]
    pad = max(map(len, numbers), default=1)
    for title, rows in sections:
        if all(row.same for row in rows):
            if rows and title != "declarations":
                found.append(Shown(f"{'':{pad}}   {title}: {_folded([r.line for r in rows])}"))
            continue
        if title != "declarations":
            found.append(Shown(f"{'':{pad}} @ {title}", "@"))
        found += [Shown(f"{'':{pad}} ~ moved: {text}", "~") for text in _moves(rows)]
        page = _Page(marks, pad, width)
        found += page.columns(rows) if side and width >= SIDE else page.stacked(rows)
    if not any(line.mark for line in found):
        return [Shown("(no difference)")]
    return found


def text(lines: Sequence[Shown]) -> str:
    """The lines as one text."""
    return "".join(line.text + "\n" for line in lines)


def _about(group: Group, name: str) -> bool:
    return any(k.id == name or name in defined(k) for k in (*group.old, *group.new))


def _title(group: Group) -> str:
    """`k1, k2 -> k1: m, e`."""
    old, new = ([k.id for k in side] for side in (group.old, group.new))
    if not new:
        return f"{names(old)}: removed"
    if not old:
        return f"{names(new)}: new"
    held = list(dict.fromkeys(n for k in group.new for n in defined(k)))
    what = names(old) if old == new else f"{names(old)} -> {names(new)}"
    return f"{what} ({names(held)})" if held else what


# -- rows -------------------------------------------------------------------------------------------------------------


def _rows(old: Sequence[Line], new: Sequence[Line]) -> list[Row]:
    """The lines of both, merged: what went stands where it stood, what moved where it stands now."""
    matched = match(old, new)
    # A statement that moved and changed is told of at both places, one that only moved at the new one.
    gone = {o for n, o in matched.pairs.items() if n in matched.in_place or n in matched.same}
    rows: list[Row] = []
    place = 0
    for number, line in enumerate(new):
        partner = matched.pairs.get(number)
        if partner is None:
            rows.append(Row(None, line))
        elif number not in matched.in_place:
            equal = number in matched.same
            rows.append(Row(old[partner] if equal else None, line, equal, _came(old, partner, line)))
        else:
            rows += [Row(line, None) for at, line in enumerate(old[place:partner], place) if at not in gone]
            place = partner + 1
            rows.append(Row(old[partner], line, number in matched.same))
    rows += [Row(line, None) for at, line in enumerate(old[place:], place) if at not in gone]
    return _removed_first(rows)


def _came(old: Sequence[Line], partner: int, line: Line) -> str:
    before = old[partner]
    if before.kernel != line.kernel:
        return f"from {before.kernel}"
    loop = old[before.parent] if before.parent >= 0 else None
    return f"from `{loop.text}`" if loop is not None and loop.kind == "loop" else "from elsewhere"


def _removed_first(rows: list[Row]) -> list[Row]:
    """Within a run of changes, what went before what came."""
    found: list[Row] = []
    came: list[Row] = []
    for row in rows:
        if row.old is None or row.note:
            came.append(row)
        elif row.new is None:
            found.append(row)
        else:
            found += came
            came = []
            found.append(row)
    return found + came


def _moves(rows: Sequence[Row]) -> list[str]:
    """One text for each place that statements came from: `e, l from k2`."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.note and row.new is not None:
            found.setdefault(row.note, []).append(row.new.key[1])
    return [f"{names(list(dict.fromkeys(moved)))} {note}" for note, moved in found.items()]


# -- on screen --------------------------------------------------------------------------------------------------------


def _visible(rows: Sequence[Row]) -> list[bool]:
    """Which rows are shown: changes, a row of context, and the loops around what is shown."""
    shown = [not row.same for row in rows]
    near = list(shown)
    for at, changed in enumerate(shown):
        if changed:
            for other in range(max(0, at - CONTEXT), min(len(rows), at + CONTEXT + 1)):
                near[other] = True
    depth = 0
    for at in range(len(rows) - 1, -1, -1):  # from below, so that a header knows what is shown in it
        line = rows[at].line
        if near[at]:
            depth = max(depth, line.depth) if at + 1 < len(rows) and not near[at] else line.depth
        elif line.kind in ("loop", "kernel") and line.depth < depth:
            near[at] = True
            depth = line.depth
    for at in range(1, len(rows) - 1):  # a fold of one line saves nothing
        near[at] = near[at] or (near[at - 1] and near[at + 1])
    return near


def _runs(rows: Sequence[Row]) -> Iterator[tuple[Row | None, list[Row]]]:
    """Rows to show, and between them runs to fold."""
    folded: list[Row] = []
    for row, seen in zip(rows, _visible(rows), strict=True):
        if not seen:
            folded.append(row)
            continue
        if folded:
            yield None, folded
            folded = []
        yield row, []
    if folded:
        yield None, folded


def _folded(lines: Sequence[Line]) -> str:
    """`... 12 lines (loop i, j)`."""
    count = f"... {len(lines)} line{'s' * (len(lines) > 1)}"
    loops = list(dict.fromkeys(line.loop for line in lines if line.loop))
    inside = "; ".join([*loops[:3], *[".."] * (len(loops) > 3)])
    return f"{count} ({inside})" if inside else count


class _Page:
    """Rows laid out at a width."""

    def __init__(self, marks: Gutter, pad: int, width: int) -> None:
        self.marks, self.pad, self.width = marks, pad, width

    def stacked(self, rows: Sequence[Row]) -> Iterator[Shown]:
        """One column: what was above what is."""
        for row, folded in _runs(rows):
            if row is None:
                yield self.fold(folded)
            elif row.same:
                yield self.line("", row.line)
            elif row.equal and row.new is not None:
                yield self.line("~", row.new, row.note)
            else:
                if row.old is not None:
                    yield self.line("-", row.old)
                if row.new is not None:
                    yield self.line("+", row.new, row.note)

    def fold(self, rows: Sequence[Row]) -> Shown:
        """The line that stands for lines left out."""
        depth = min(row.line.depth for row in rows)
        return Shown(f"{'':{self.pad}}   {'  ' * depth}{_folded([row.line for row in rows])}")

    def line(self, mark: Mark, line: Line, note: str = "") -> Shown:
        """A line of one column."""
        tail = f"   ({note})" if note else ""
        shown = f"{self.marks.number(line.span):>{self.pad}} {mark or ' '} {'  ' * line.depth}{line.text}{tail}"
        return Shown(shown, mark)

    def columns(self, rows: Sequence[Row]) -> Iterator[Shown]:
        """Two columns: what was, and what is; long lines go on below."""
        half = (self.width - 3) // 2
        for row, folded in _runs(rows):
            if row is None:
                yield self.fold(folded)
                continue
            mark: Mark = "" if row.same else "-" if row.new is None else "+" if row.old is None else "~"
            if row.old and row.new and not row.equal:
                mark = "!"
            left = self.cell(row.old, half, "-" if mark in ("-", "!") else mark.replace("+", ""))
            right = self.cell(row.new, half, "+" if mark in ("+", "!") else mark.replace("-", ""), row.note)
            for a, b in zip(
                left + [""] * (len(right) - len(left)), right + [""] * (len(left) - len(right)), strict=True
            ):
                yield Shown(f"{a:<{half}} | {b}".rstrip(), mark)

    def cell(self, line: Line | None, width: int, mark: str, note: str = "") -> list[str]:
        """A line within a column."""
        if line is None:
            return [""]
        lead = f"{self.marks.number(line.span):>{self.pad}} {mark or ' '} {'  ' * line.depth}"
        tail = f"   ({note})" if note else ""
        room = max(width - len(lead), 8)
        parts = textwrap.wrap(
            line.text + tail, room, break_on_hyphens=False, drop_whitespace=False, subsequent_indent="  "
        ) or [""]
        return [lead + parts[0], *(" " * len(lead) + part for part in parts[1:])]
