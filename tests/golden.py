"""Files of tests of one pass: a program, a line `----`, the program after the pass, and its remarks after `; `."""

from __future__ import annotations

from pathlib import Path

from pass_checks import apply

from loopfuse.passes.base import Pass
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.verify import violations

FOLDER = Path(__file__).parent / "passes"
SEPARATOR = "----\n"


def cases(name: str) -> list[Path]:
    """The files of a pass."""
    return sorted((FOLDER / name).glob("*.ir"))


def check_golden(p: Pass, path: Path, bless: bool) -> None:
    """The pass makes of the program of a file what stands under it. With `bless` that is rewritten."""
    given, _, expected = path.read_text().partition(SEPARATOR)
    wrong = [str(v) for v in violations(parse_program(given))]
    assert not wrong, f"the upper half of {path.name} is no valid program: {wrong[0]}"
    stage = apply(p, given)
    found = print_program(stage.program) + "".join(f"; {remark.text}\n" for remark in stage.remarks)
    if bless and found != expected:
        path.write_text(given + SEPARATOR + found)
        expected = found
    assert found == expected, f"if this is right: pytest tests/test_{p.name}.py --bless"
