"""The figures of `loopfuse fuzz --gen --state FILE` as a section of docs/trust.md.

    python tests/bench/fuzz_table.py out/fuzz/state.json [--page docs/trust.md] [--smaller]

What stands between the markers of the page is replaced, unless it is of more programs (`--smaller`: even then).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from loopfuse.testing.campaign import Figures, load_figures
from loopfuse.testing.coverage import KINDS, TITLES, missing, reached, unreachable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trust.md"
SECTION = re.compile(r"<!-- random programs: (\d+) -->\n.*?<!-- end of random programs -->", re.DOTALL)


def rows(*cells: tuple[str, ...]) -> list[str]:
    """A table whose first row is its head."""
    head, *rest = cells
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rest)]


def section(figures: Figures) -> str:
    """The section, with its markers."""
    elsewhere = ", ".join(f"{n:,} of them on {name} too" for name, n in sorted(figures.ran.items()))
    lines = rows(
        ("figure", ""),
        ("programs, each after every pass", f"{figures.programs:,}{elsewhere and f'; {elsewhere}'}"),
        ("programs that failed", f"{figures.failures:,}"),
        ("elements compared", f"{figures.elements:,}"),
        ("undecided", f"{figures.share:.2%}"),
        ("no data drawn that the requirements allow, or too much memory", f"{figures.skipped:,}"),
    )
    lines += ["", *rows(
        ("date", "machine", "processes", "programs", "a second and process"),
        *((r.date, r.device, str(r.jobs), f"{r.programs:,}", f"{r.pace:.2f}") for r in figures.runs),
    )]  # fmt: skip
    covered = [(kind, *reached(figures.reached, kind), missing(figures.reached, kind)) for kind in KINDS]
    lines += ["", *rows(
        ("coverage", "reached", "not reached", "unreachable"),
        *((TITLES[kind], f"{some} of {every}", ", ".join(f"`{m}`" for m in left) or "nothing", str(len(unreachable(kind))))
          for kind, some, every, left in covered),
    )]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for kind in KINDS:
        for name, why in unreachable(kind).items():
            reasons.setdefault(why, []).append(f"{kind} `{name}`")
    lines += ["", *rows(("unreachable", "why"), *((", ".join(names), why) for why, names in reasons.items()))]
    body = "\n".join(lines)
    return f"<!-- random programs: {figures.programs} -->\n{body}\n<!-- end of random programs -->"


def main(argv: list[str] | None = None) -> int:
    """Write the section; 1 where the page has a fuller one or no place for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--smaller", action="store_true", help="also where the page has the figures of more programs")
    options = parser.parse_args(argv)
    figures = load_figures(options.state)
    if figures.of.script:
        print(f"{options.state} has the figures of {figures.of}, not of random programs", file=sys.stderr)
        return 1
    text = options.page.read_text(encoding="utf-8")
    found = SECTION.search(text)
    if found is None:
        print(f"{options.page} has no place for the figures", file=sys.stderr)
        return 1
    if int(found[1]) > figures.programs and not options.smaller:
        print(
            f"{options.page} has the figures of {found[1]} programs; these are of {figures.programs}", file=sys.stderr
        )
        return 1
    made = text[: found.start()] + section(figures) + text[found.end() :]
    options.page.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
