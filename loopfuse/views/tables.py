"""Columns of text, and numbers as people read them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from loopfuse.memory import show_bytes

GAP = "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "", width: int = 0,
          gap: str = GAP) -> list[str]:  # fmt: skip
    """Lines of a table. `right` holds an `r` for each column that is set to the right.

    With a `width` the last column is wrapped so that no line is longer, where 16 columns are left for it.
    """
    grid = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not grid:
        return []
    widths = [max(len(row[k]) for row in grid) for k in range(len(grid[0]) - 1)]
    indent = sum(widths) + len(gap) * len(widths)
    room = max(width - indent, 16) if width else 0
    lines: list[str] = []
    for row in grid:
        cells = [
            c.rjust(w) if right[k : k + 1] == "r" else c.ljust(w)
            for k, (c, w) in enumerate(zip(row, widths, strict=False))
        ]
        parts = textwrap.wrap(row[-1], room, break_on_hyphens=False) if room and len(row[-1]) > room else [row[-1]]
        lines.append(gap.join([*cells, parts[0]]).rstrip())
        lines += [" " * indent + part for part in parts[1:]]
    return lines


def duration(seconds: float) -> str:
    """`0.3 ms`, `12 us`, `1.2 s`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale * 0.9995:
            return f"{significant(seconds / scale)} {unit}"
    return f"{significant(seconds / 1e-6)} us" if seconds else "0 us"


def microseconds(us: float | None) -> str:
    """A time of the cost model, in microseconds; `-` for none."""
    return "-" if us is None else significant(us)


def significant(value: float) -> str:
    """A number in three significant digits, whole where it has more before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def amount(count: float) -> str:
    """A count in thousands: `950`, `12.6 k`, `3.2 M`, `1.7 G`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= scale * 0.9995:
            return f"{significant(count / scale)} {unit}"
    return significant(count)


def signed_bytes(count: int) -> str:
    """Bytes that are saved (`-`) or added (`+`)."""
    return ("+" if count > 0 else "-" if count < 0 else "") + show_bytes(abs(count))


def sizes_line(sizes: Mapping[str, int], assumed: frozenset[str], used: frozenset[str] | None = None) -> str:
    """`sizes: N = 1024 (assumed), B = 4`, in the order given; empty without any."""
    shown = [f"{n} = {v}{' (assumed)' * (n in assumed)}" for n, v in sizes.items() if used is None or n in used]
    return f"sizes: {', '.join(shown)}" if shown else ""


def fill(text: str, width: int) -> list[str]:
    """A sentence in lines of a width (0: one line), the further ones indented."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False) if width else [text]


def names(group: Sequence[str], most: int = 4) -> str:
    """`a, b, c`; of a long group the first and the count."""
    return ", ".join(group) if len(group) <= most else f"{', '.join(group[: most - 1])}, .. ({len(group)})"
