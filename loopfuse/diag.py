"""Places in source text, diagnostics with carets, and the two classes of error: the user's mistake and our bug."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from loopfuse.outside import visible, write_json

Level = Literal["error", "warning", "remark"]
MOST_NOTES = 2
LONGEST_LINE = 160
LONGEST_TEXT = 4000


@dataclass(frozen=True, slots=True)
class Source:
    """A named text: a script, a module of the library, a REPL line."""

    name: str
    text: str

    def position(self, offset: int) -> tuple[int, int]:
        """`(line, column)` of a character offset, both from 1."""
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1

    def line(self, number: int) -> str:
        """The text of line `number`, from 1, without its end."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` up to `end` of a source."""

    source: Source
    start: int
    end: int

    @property
    def text(self) -> str:
        """The characters themselves."""
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        """The line of the first character, from 1."""
        return self.source.position(self.start)[0]

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of `other`, which must be in the same source."""
        if other.source is not self.source:
            return self
        return Span(self.source, min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Label:
    """A span and what is said of it; the primary one says what is wrong, the others why."""

    span: Span
    text: str = ""
    primary: bool = False


@dataclass(frozen=True, slots=True)
class Fix:
    """A way out. `edits` replace spans; `safe` when applying them is certain to be what was meant."""

    text: str
    edits: tuple[tuple[Span, str], ...] = ()
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message. It must make sense without the picture; at most two notes and one fix."""

    code: str
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    fix: Fix | None = None
    level: Level = "error"

    @property
    def primary(self) -> Span | None:
        """The span of the primary label."""
        for label in self.labels:
            if label.primary:
                return label.span
        return None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, one object a diagnostic."""
        fix: dict[str, Any] | None = None
        if self.fix:
            edits = [
                {"file": s.source.name, "byte_start": _bytes(s, s.start), "byte_end": _bytes(s, s.end), "text": t}
                for s, t in self.fix.edits
            ]
            fix = {"text": self.fix.text, "edits": edits, "applicability": "safe" if self.fix.safe else "maybe"}
        return {
            "schema": 1, "code": self.code, "level": self.level, "message": self.message,
            "spans": [_span_dict(label) for label in self.labels],
            "notes": [*self.notes, *(f"help: {h}" for h in self.helps)], "fix": fix, "rendered": render(self),
        }  # fmt: skip

    def as_json(self) -> str:
        """`as_dict` on one line."""
        return write_json(self.as_dict())


class LoopfuseError(Exception):
    """What every error of this package derives from."""


class UserError(LoopfuseError):
    """The user's mistake, in a script, in data or on the command line: one or more diagnostics."""

    def __init__(self, diagnostics: Iterable[Diagnostic] | Diagnostic) -> None:
        found = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__("\n\n".join(render(d) for d in found))
        self.diagnostics = found


class CompilerError(LoopfuseError):
    """Our bug. `stage` names the pass or layer; `artifact` is the IR text that shows it, where there is one."""

    def __init__(self, stage: str, message: str, artifact: str = "") -> None:
        super().__init__(f"internal error in {stage}: {message}")
        self.stage, self.message, self.artifact = stage, message, artifact


class MachineError(LoopfuseError):
    """The machine lacks something (a GPU, a compiler): nobody's mistake."""


def error(code: str, message: str, span: Span | None = None, label: str = "", *also: tuple[Span | None, str],
          notes: Iterable[str] = (), helps: Iterable[str] = (), fix: str | Fix | None = None,
          level: Level = "error") -> Diagnostic:  # fmt: skip
    """A diagnostic with a primary span and, in `also`, secondary spans with their labels."""
    labels = [Label(span, label, True)] if span else []
    labels += [Label(s, text) for s, text in also if s]
    return Diagnostic(
        code, message, tuple(labels), tuple(notes), tuple(helps), Fix(fix) if isinstance(fix, str) else fix, level
    )


@dataclass
class Collector:
    """Gathers diagnostics of a run; errors past `limit` are counted, not kept."""

    limit: int = 10
    found: list[Diagnostic] = field(default_factory=list)
    seen: set[tuple[str, str, int]] = field(default_factory=set)
    dropped: int = 0

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep a diagnostic; of several errors at one place the first is the cause, so that only it is kept."""
        span = diagnostic.primary
        kind = "error" if diagnostic.level == "error" else diagnostic.code
        key = (kind, span.source.name if span else diagnostic.message, span.start if span else -1)
        if key in self.seen:
            return
        self.seen.add(key)
        if diagnostic.level == "error" and sum(d.level == "error" for d in self.found) >= self.limit:
            self.dropped += 1
        else:
            self.found.append(diagnostic)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The errors kept, in order, and a last one that counts the rest."""
        kept = [d for d in self.found if d.level == "error"]
        if self.dropped:
            kept.append(error("LF0001", f"and {self.dropped} more"))
        return tuple(kept)

    def raise_errors(self) -> None:
        """Raise `UserError` if there is any error."""
        if self.errors:
            raise UserError(self.errors)


# -- the renderer -----------------------------------------------------------------------------------------------------


def render(diagnostic: Diagnostic) -> str:
    """The caret picture: message, place, source lines with marks, notes, fix."""
    lines = [f"{diagnostic.level}[{diagnostic.code}]: {visible(_short(diagnostic.message), False)}"]
    primary = diagnostic.primary
    width = max((len(str(label.span.line)) for label in diagnostic.labels), default=1)
    pad = " " * width
    if primary:
        line, column = primary.source.position(primary.start)
        lines.append(f"{pad}--> {visible(primary.source.name, False)}:{line}:{column}")
        lines += _picture(diagnostic.labels, primary, width)
        if diagnostic.notes or diagnostic.helps or diagnostic.fix:
            lines.append(f"{pad} |")
    lines += [f"{pad} = note: {_indent(n, width + 9)}" for n in diagnostic.notes[:MOST_NOTES]]
    lines += [f"{pad} = help: {_indent(h, width + 9)}" for h in diagnostic.helps]
    if diagnostic.fix:
        lines.append(f"{pad} = fix: {_indent(diagnostic.fix.text, width + 8)}")
    return "\n".join(lines)


def _indent(text: str, columns: int) -> str:
    return visible(_short(text)).replace("\n", "\n" + " " * columns)


def _picture(labels: tuple[Label, ...], primary: Span, width: int) -> Iterator[str]:
    """The source lines with their marks: by line, the primary mark first, then from left to right."""
    yield f"{' ' * width} |"
    last: tuple[str, int] | None = None
    first = 0
    order = sorted(labels, key=lambda la: (la.span.source.name != primary.source.name, la.span.source.name,
                                           la.span.line, not la.primary, la.span.start))  # fmt: skip
    for label in order:
        source, (line, column) = label.span.source, label.span.source.position(label.span.start)
        text = source.line(line)
        shown = len(text) <= LONGEST_LINE or first <= column - 1 < first + LONGEST_LINE
        if last != (source.name, line) or not shown:
            if last and last[0] != source.name:
                yield f"{' ' * width}::: {visible(source.name, False)}:{line}:{column}"
            first = 0 if len(text) <= LONGEST_LINE else max(0, column - 1 - LONGEST_LINE // 3)
            yield f"{line:>{width}} | {_clipped(_printable(text), first)}"
            last = (source.name, line)
        length = max(
            1, min(label.span.end - label.span.start, len(text) - column + 1, first + LONGEST_LINE - column + 1)
        )
        lead = " " * bool(first) + "".join("\t" if c == "\t" else " " for c in text[first : column - 1])
        mark = ("^" if label.primary else "-") * length
        yield f"{' ' * width} | {lead}{mark} {visible(label.text, False)}".rstrip()


def _short(text: str) -> str:
    """A text of a message that may hold a name or a line of any length."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _clipped(text: str, first: int) -> str:
    """The part of a long line that a picture shows, with a sign where something is left out."""
    end = first + LONGEST_LINE
    return ("…" if first else "") + text[first:end] + ("…" if end < len(text) else "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "�" for c in text)


def _bytes(span: Span, offset: int) -> int:
    return len(span.source.text[:offset].encode("utf-8", "replace"))


def _span_dict(label: Label) -> dict[str, Any]:
    span = label.span
    line, column = span.source.position(span.start)
    end_line, end_column = span.source.position(span.end)
    return {
        "file": span.source.name, "byte_start": _bytes(span, span.start), "byte_end": _bytes(span, span.end),
        "line": line, "col": column, "end_line": end_line, "end_col": end_column,
        "primary": label.primary, "label": label.text,
    }  # fmt: skip
