"""The results of a benchmark as columns; those with nothing in them are left out."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse.bench.rows import Change, Row
from loopfuse.memory import show_bytes
from loopfuse.views.tables import amount, duration, significant, table

# The columns: heading, whether numbers are set to the right.
_COLUMNS = ("sizes", "passes", "time", "spread", "GB/s", "FLOP/s", "roof", "bound", "kernels", "host", "compile", "cold",
            "warm", "J", "FLOP/J", "x", "was", "change")  # fmt: skip


def bench_table(rows: Sequence[Row], changes: Sequence[Change] = ()) -> list[str]:
    """A line a row. `x`: the time as a multiple of that of the first row of the same sizes; `was` and `change`: beside a
    former run."""
    if not rows:
        return []
    cells = [_cells(row) for row in rows]
    first: dict[tuple[tuple[str, int], ...], Row] = {}
    for row, line in zip(rows, cells, strict=True):
        base = first.setdefault(tuple(row.sizes.items()), row)
        several = base is not row and base.median and row.median
        line["x"] = significant(row.median / base.median) if several and row.median and base.median else ""
    for change, line in zip(changes, cells, strict=False):
        line["was"] = duration(change.before.median) if change.before and change.before.median else "-"
        line["change"] = _change(change)
    if len({row.passes for row in rows}) == 1:
        for line in cells:
            line["passes"] = ""
    shown = [c for c in _COLUMNS if any(line.get(c) for line in cells)]
    lines = table(shown, [[line.get(c, "") for c in shown] for line in cells],
                  "".join("l" if c in ("sizes", "passes", "bound") else "r" for c in shown))  # fmt: skip
    return [f"{line}  {row.problem}".rstrip() for line, row in zip(lines, (_EMPTY, *rows), strict=True)]


_EMPTY = Row("", "", "")


def _cells(row: Row) -> dict[str, str]:
    spread = (row.high - row.low) / row.median if row.median and row.high is not None and row.low is not None else None
    return {
        "sizes": " ".join(f"{n}={v}" for n, v in row.sizes.items()),
        "passes": row.passes,
        "time": _seconds(row.median),
        "spread": "" if spread is None else f"{spread:.1%}",
        "GB/s": "" if row.rate is None else significant(row.rate / 1e9),
        "FLOP/s": "" if row.speed is None else amount(row.speed),
        "roof": "" if row.share is None else f"{row.share:.0%}",
        "bound": row.bound,
        "kernels": "" if row.kernels is None else str(row.kernels),
        "host": _seconds(row.host),
        "compile": _seconds(row.compile) + " (cached)" * row.cached,
        "cold": _seconds(row.cold),
        "warm": _seconds(row.warm),
        "J": "" if row.joules is None else significant(row.joules),
        "FLOP/J": "" if row.efficiency is None else amount(row.efficiency),
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else duration(value)


def _change(change: Change) -> str:
    if change.ratio is None:
        return "lost" if change.slower else "new" if change.before is None else ""
    return f"{change.ratio - 1:+.1%}" + " slower" * change.slower


def foot(rows: Sequence[Row], roof: str) -> list[str]:
    """What the numbers are for: the device, and where its roof comes from."""
    devices = list(dict.fromkeys(row.device for row in rows if row.device))
    least = [f"moves at least {show_bytes(rows[0].bytes)}"] if len(rows) == 1 and rows[0].bytes else []
    return [", ".join([f"on {', '.join(devices)}"] * bool(devices) + least + [roof] * bool(roof))] if devices else []
