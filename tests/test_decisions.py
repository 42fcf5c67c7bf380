"""Files of decisions: what was decided can be written, edited, and read back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pass_checks import SCRIPTS, lowered_script

from loopfuse import driver
from loopfuse.diag import Source, UserError
from loopfuse.ir import Program
from loopfuse.passes import Options, Stage
from loopfuse.passes.fuse import PASS
from loopfuse.passes.fuse.graph import stored
from loopfuse.passes.manager import run_pass
from loopfuse.views import pins

SOFTMAX = """input x: f32[M, N]
let m[i] = max(x[i, j] for j)
let e[i, j] = exp(x[i, j] - m[i])
let l[i] = sum(e[i, j] for j)
let y[i, j] = e[i, j] / l[i]
output y
"""
BASIC = [p for p in SCRIPTS if p.parent.name == "scripts"]


def lowered(source: str) -> Program:
    """The lowered program of a script's text."""
    return driver.lower_program(driver.compile_source(Source("test", source)).typed).program


def fused(program: Program, decisions: pins.Verdicts | None = None) -> Stage:
    """What fusion makes of a program, by verdicts."""
    return run_pass(PASS, program, Options(decisions=decisions or {}))


def sets(stage: Stage) -> set[frozenset[str]]:
    """The groups, by the buffers that each kernel stores."""
    return {frozenset(stored(k)) for k in stage.program.kernels}


@pytest.mark.parametrize("path", BASIC, ids=lambda p: p.stem)
def test_decisions_read_back_lead_to_the_same_kernels(path: Path) -> None:
    program = lowered_script(path)[0].program
    plain = fused(program)
    again = fused(program, pins.read(pins.write(plain.decisions), "out.toml"))
    assert sets(again) == sets(plain)


def test_a_written_file_is_toml_with_the_reasons_as_comments() -> None:
    found = fused(lowered(SOFTMAX)).decisions
    text = pins.write(found)
    entries = tomllib.loads(text)["decision"]
    assert [(e["a"], e["b"], e["verdict"]) for e in entries] == [(list(d.a), list(d.b), "fuse") for d in found]
    assert all(d.reason in text for d in found)


def test_an_edited_verdict_keeps_two_groups_apart() -> None:
    program = lowered(SOFTMAX)
    last = fused(program).decisions[-1]
    stage = fused(program, {last.key: "nofuse"})
    assert len(stage.program.kernels) == 2
    (apart,) = [d for d in stage.decisions if d.verdict == "forbidden"]
    assert apart.cause is not None
    assert "the decision on" in apart.cause.message


def test_an_edited_verdict_joins_what_the_model_would_not() -> None:
    program = lowered("input x: f32[M, N]\nlet s[j] = sum(x[i, j] for i)\nlet z[i, j] = x[i, j] - s[j]\noutput z\n")
    plain = fused(program)
    costly = [d for d in plain.decisions if d.verdict == "costly"]
    assert costly
    stage = fused(program, {costly[0].key: "fuse"})
    assert len(stage.program.kernels) == len(plain.program.kernels) - 1
    assert "forced" in {d.verdict for d in stage.decisions}


def test_a_verdict_that_cannot_be_followed_is_an_error() -> None:
    program = lowered("input x: f32[N]\nlet s = sum(x[i] for i)\nlet y[i] = x[i] / s\noutput y\n")
    with pytest.raises(UserError) as caught:
        fused(program, {(frozenset({"s"}), frozenset({"y"})): "fuse"})
    (one,) = caught.value.diagnostics
    assert one.code == "LF0622"
    assert "asks for what cannot be" in one.message


def test_unknown_names_are_an_error_with_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        fused(lowered(SOFTMAX), {(frozenset({"mm"}), frozenset({"e"})): "nofuse"})
    (one,) = caught.value.diagnostics
    assert one.code == "LF0622"
    assert one.fix is not None
    assert "`m`" in one.fix.text


@pytest.mark.parametrize(("second", "wrong"), [
    ('a = ["m"]\nb = ["e"]\nverdict = "nofuse"', "contradicts an earlier one"),
    ('a = ["e"]\nb = ["m"]\nverdict = "nofuse"', "contradicts an earlier one"),
    ('a = ["m"]\nb = ["m"]\nverdict = "fuse"', "names one group twice"),
])  # fmt: skip
def test_entries_that_contradict_each_other(second: str, wrong: str) -> None:
    text = f'[[decision]]\na = ["m"]\nb = ["e"]\nverdict = "fuse"\n[[decision]]\n{second}\n'
    with pytest.raises(UserError, match=wrong):
        pins.read(text, "d.toml")
