"""Every code has an essay, a place in the index, and a test; nothing else has one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ESSAYS = re.findall(r"(?m)^## (LF\d{4}) (.+)$", (ROOT / "loopfuse" / "codes.md").read_text("utf-8"))
HEAD = (
    "# Error index\n\n`loopfuse explain LFnnnn` prints what a code means, a wrong and a right example, and the way out. "
    "The texts stand in\n[codes.md](../loopfuse/codes.md).\n\n| code | meaning |\n|---|---|\n"
)


def used_codes() -> set[str]:
    """The codes that stand in the package's own text."""
    files = (ROOT / "loopfuse").rglob("*.py")
    return {code for f in files for code in re.findall(r"LF\d{4}", f.read_text("utf-8", "replace"))}


def codes_in_tests() -> set[str]:
    """The codes that some test or error file expects."""
    files = [*(ROOT / "tests").glob("*.py"), *(ROOT / "tests" / "files").rglob("*.lf"), *(ROOT / "docs").glob("*.md")]
    return {
        code
        for f in files
        if f.name not in ("test_error_index.py", "errors.md")
        for code in re.findall(r"LF\d{4}", f.read_text("utf-8", "replace"))
    }


def test_every_code_has_an_essay() -> None:
    known = {code for code, _ in ESSAYS}
    assert used_codes() - known == set()
    assert known - used_codes() == set()


def test_essays_stand_in_order_and_once() -> None:
    codes = [code for code, _ in ESSAYS]
    assert codes == sorted(set(codes))
    assert len(codes) >= 60


def test_every_code_is_expected_by_a_test() -> None:
    assert {code for code, _ in ESSAYS} - codes_in_tests() == set()


def test_the_index_lists_every_code(bless: bool) -> None:
    page = ROOT / "docs" / "errors.md"
    text = HEAD + "".join(f"| {code} | {title} |\n" for code, title in ESSAYS)
    if bless:
        page.write_text(text, "utf-8")
    assert page.read_text("utf-8") == text, "write it anew: python -m pytest tests/test_error_index.py --bless"
