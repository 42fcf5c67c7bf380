"""The page of operations is the table's."""

from __future__ import annotations

from pathlib import Path

from loopfuse import opdoc, ops

PAGE = Path(__file__).parent.parent / "docs" / "ops.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == opdoc.document(), "run: python -m loopfuse.opdoc > docs/ops.md"


def test_every_row_stands_on_the_page() -> None:
    page = opdoc.document()
    for row in ops.OPS.values():
        assert f"| {row.name} | {opdoc.written(row).replace('|', chr(92) + '|')} |" in page
        assert row.doc.replace("|", "\\|") in page
    assert all(f"| {name} |" in page for name in ops.MONOIDS)


def test_tables_are_rectangular() -> None:
    width = 0
    for line in opdoc.document().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert not (cells and width) or cells == width, line
        width = cells
