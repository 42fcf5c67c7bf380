"""The decisions of fusion: one a line, and what is behind one of them."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from loopfuse.decisions import Cause, Decision
from loopfuse.diag import Diagnostic, Label, Span, render
from loopfuse.memory import show_bytes
from loopfuse.views.lines import Gutter, stem
from loopfuse.views.tables import amount, microseconds, names, signed_bytes, table

WIDE = 120
MARKS = {"fused": "+", "forced": "+", "refused": "-", "forbidden": "-", "costly": "-", "skipped": "~"}
WORDS = {
    "fused": "fused", "forced": "forced by a pragma or file", "refused": "not possible", "forbidden": "forbidden",
    "costly": "possible, but slower", "skipped": "left out (limit on decisions)",
}  # fmt: skip


def by_line(found: Iterable[Decision], marks: Gutter) -> list[Decision]:
    """Decisions in the order of the script's lines, then as they were taken."""

    def place(decision: Decision) -> tuple[bool, int, int]:
        lines = [s.line for s in decision.spans if s.source.name == marks.main]
        return not lines, min(lines, default=0), decision.number

    return sorted(found, key=place)


def decision_table(found: Sequence[Decision], marks: Gutter, width: int = 0) -> list[str]:
    """One line a decision: script line, number, verdict, the two groups, bytes saved, times, kind and reason.

    Below a `width` of 120 (0: no limit) the reason stands on a line of its own.
    """
    if not found:
        return ["no decision: nothing to fuse, or `fuse` did not run"]
    own_line = 0 < width < WIDE
    ordered = by_line(found, marks)
    rows = []
    for d in ordered:
        line = str(min((s.line for s in d.spans if s.source.name == marks.main), default=""))
        times = (
            f"{microseconds(d.before)} -> {microseconds(d.after)}" if d.after is not None else microseconds(d.before)
        )
        row = (line, f"#{d.number}", f"{MARKS[d.verdict]} {d.verdict}", f"{names(d.a, 3)} | {names(d.b, 3)}",
               signed_bytes(-d.saved) if d.saved else "0 B", times)  # fmt: skip
        rows.append(row if own_line else (*row, d.kind, d.reason))
    if not own_line:
        return table(("line", "#", "  verdict", "a | b", "bytes", "us", "kind", "reason"), rows, "rrllrrl", width)
    lines = table(("line", "#", "  verdict", "a | b", "bytes", "us"), rows, "rrllr")
    shown = lines[:1]
    for decision, line in zip(ordered, lines[1:], strict=True):
        why = f"{decision.kind}: {decision.reason}"
        shown += [line, *textwrap.wrap(why, width, initial_indent=" " * 8, subsequent_indent=" " * 8)]
    return shown


def about(found: Iterable[Decision], a: str, b: str) -> list[Decision]:
    """The decisions whose two sides hold `a` and `b` (or, where none does, ids that come from these); the last first."""
    last_first = [*found][::-1]
    for derived in (False, True):

        def holds(group: Sequence[str], name: str, derived: bool = derived) -> bool:
            return any(name == (stem(member) if derived else member) for member in group)

        kept = [d for d in last_first if (holds(d.a, a) and holds(d.b, b)) or (holds(d.a, b) and holds(d.b, a))]
        if kept:
            return kept
    return []


def detail(decision: Decision, a: str = "", b: str = "") -> list[str]:
    """Everything about one decision: the cause with its places in the script, what would lift it, what it costs."""
    left, right = a or names(decision.a), b or names(decision.b)
    picture = render(_diagnostic(decision, left, right))
    lines = picture.split("\n")
    rows = [("verdict", f"{MARKS[decision.verdict]} {WORDS[decision.verdict]} (decision #{decision.number})")]
    if a:
        rows.append(("groups", f"{names(decision.a)} | {names(decision.b)}"))
    rows.append(("kind", decision.kind))
    rows += _costs(decision)
    return [*lines, "", *table((), rows)]


def refusal(cause: Cause, what: str) -> list[str]:
    """A cause by itself, drawn with its places."""
    labels = tuple(Label(span, "", number == 0) for number, span in enumerate(dict.fromkeys(cause.spans)))
    notes, helps = (cause.detail,) * bool(cause.detail), (cause.lift,) * bool(cause.lift)
    return render(Diagnostic(cause.code, f"{what}: {cause.message}", labels, notes, helps, level="remark")).split("\n")


def _diagnostic(decision: Decision, left: str, right: str) -> Diagnostic:
    """The decision as a remark that the renderer of errors can draw."""
    cause = decision.cause
    together = decision.verdict in ("fused", "forced")
    verb = "are one kernel" if together else "are not one kernel"
    message = f"`{left}` and `{right}` {verb}: {cause.message if cause else decision.reason}"
    spans = list(dict.fromkeys([*(cause.spans if cause else ()), *decision.spans]))
    labels = tuple(Label(span, "", number == 0) for number, span in enumerate(spans))
    notes = [cause.detail] if cause and cause.detail else []
    if cause and cause.needed is not None:
        limit = f", and {_quantity(cause.limit, cause.unit)} is the limit" if cause.limit is not None else ""
        notes.append(f"{_quantity(cause.needed, cause.unit)} would be needed{limit}")
    helps = (cause.lift,) if cause and cause.lift else ()
    return Diagnostic(cause.code if cause else decision.verdict, message, labels, tuple(notes), helps, level="remark")


def _quantity(value: float | None, unit: str) -> str:
    if unit in ("bytes", "byte", "B"):
        return show_bytes(int(value or 0))
    return f"{amount(value or 0)} {unit}".strip()


def _costs(d: Decision) -> list[tuple[str, str]]:
    """What it gives, or what the miss costs."""
    together = d.verdict in ("fused", "forced")
    rows = []
    if d.saved:
        word = "saved" if together else "would be saved" if d.saved > 0 else "would be added"
        rows.append(("bytes", f"{show_bytes(abs(d.saved))} of memory traffic {word}"))
    if d.launches:
        rows.append(("launches", f"{d.launches} {'saved' if together else 'would be saved'}"))
    if d.after is not None:
        gain = d.before - d.after
        verdict = "saved" if gain >= 0 else "lost"
        tense = verdict if together else f"would be {verdict}"
        rows.append(("time", f"{microseconds(d.before)} us apart, {microseconds(d.after)} us as one: "
                             f"{microseconds(abs(gain))} us {tense}"))  # fmt: skip
    elif d.before:
        rows.append(("time", f"{microseconds(d.before)} us apart"))
    if d.recomputed:
        rows.append(("recompute", f"{amount(d.recomputed)} operations {'are' if together else 'would be'} done again"))
    if d.registers is not None:
        rows.append(("registers", f"{d.registers} a thread"))
    return rows


def totals(found: Iterable[Decision]) -> str:
    """`12 decisions: 8 fused, 3 refused, 1 costly`."""
    counts: dict[str, int] = defaultdict(int)
    for decision in found:
        counts[decision.verdict] += 1
    total = sum(counts.values())
    parts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return f"{total} decision{'s' * (total != 1)}" + (f": {parts}" if parts else "")


def as_record(decision: Decision) -> dict[str, Any]:
    """The JSON form of a decision."""
    cause = decision.cause
    return {
        "number": decision.number, "a": list(decision.a), "b": list(decision.b), "verdict": decision.verdict,
        "how": decision.kind, "reason": decision.reason, "us_before": decision.before, "us_after": decision.after,
        "bytes_saved": decision.saved, "launches_saved": decision.launches, "recomputed": decision.recomputed,
        "registers": decision.registers, "spans": [_place(s) for s in decision.spans],
        "cause": None if cause is None else _cause(cause),
    }  # fmt: skip


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "code": cause.code, "message": cause.message, "detail": cause.detail, "lift": cause.lift,
        "needed": cause.needed, "limit": cause.limit, "unit": cause.unit, "spans": [_place(s) for s in cause.spans],
    }  # fmt: skip


def _place(span: Span) -> dict[str, Any]:
    line, column = span.source.position(span.start)
    return {"file": span.source.name, "line": line, "col": column, "text": span.text}
