"""What a trial has planned is carried out by renaming: the same as joining the kernels again, to the last id."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopfuse import driver
from loopfuse.passes import fuse
from loopfuse.passes.base import Options, Outcome
from loopfuse.passes.fuse.candidates import Candidates
from loopfuse.printer import print_program

ROOT = Path(__file__).parent
SCRIPTS = ["scripts/09_lstm.lf", "scripts/07_attention.lf", "fusion/lstm_gates.lf", "fusion/swiglu.lf"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_carrying_out_is_joining_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program and the plans are the same, whether ids are replaced or kernels are joined again."""
    path = ROOT / name
    checked = driver.compile_source(driver.read_source(path), search=path.parent)
    lowered = driver.lower_program(checked.typed)
    program = driver.optimise_ir(lowered.program, Options(), "constprop,simplify,dce,cse,distribute")[-1].program
    renamed: list[bool] = []
    again = Candidates._again

    def noted(self: Candidates, *rest: object) -> dict[str, str] | None:
        ids = again(self, *rest)  # type: ignore[arg-type]
        renamed.append(ids is not None)
        return ids

    monkeypatch.setattr(Candidates, "_again", noted)
    one: Outcome = fuse.PASS.function(program, Options())
    assert any(renamed)
    monkeypatch.setattr(Candidates, "_again", lambda *_: None)
    two: Outcome = fuse.PASS.function(program, Options())
    assert print_program(one.program) == print_program(two.program)
    assert one.notes["plans"] == two.notes["plans"]
    assert one.decisions == two.decisions
