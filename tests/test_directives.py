"""What a script asks of fusion, and what it expects: pragmas that are followed or refused, expectations with reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopfuse import driver
from loopfuse.cli import main
from loopfuse.diag import Diagnostic, Source, UserError
from loopfuse.ir import Directive, Program, Store
from loopfuse.passes import PIPELINE, Options, Stage, run_passes
from loopfuse.passes.contract import PASS as CONTRACT
from loopfuse.passes.fuse import PASS, expectations
from loopfuse.passes.fuse.directives import Request, groups, parsed, splits
from loopfuse.rewrite import walk

SOFTMAX = """input x: f32[M, N]
let m[i] = max(x[i, j] for j)
let e[i, j] = exp(x[i, j] - m[i])
let l[i] = sum(e[i, j] for j)
let y[i, j] = e[i, j] / l[i]
output y
"""
TOTAL = """input x: f32[N]
let s = sum(x[i] for i)
let y[i] = x[i] / s
output y
"""


def lowered(source: str) -> Program:
    """The lowered program of a script's text."""
    return driver.lower_program(driver.compile_source(Source("test", source)).typed).program


def fused(source: str) -> Stage:
    """What fusion makes of a script."""
    return run_passes(lowered(source), [PASS], Options())[0]


def unmet(source: str) -> list[Diagnostic]:
    """The expectations of a script that do not hold."""
    stages = run_passes(lowered(source), [PASS, CONTRACT], Options())
    return expectations(stages[-1].program, stages[0].notes["plans"], stages[0].decisions)


# -- how they get here ------------------------------------------------------------------------------------------------


def test_names_become_buffers() -> None:
    source = "input x: f32[N]\nlet t[i] = x[i] * 2.0\nlet t[i] = t[i] + 1.0\nlet s = sum(t)\noutput s\n"
    source += 'pragma materialize(t)\npragma split(t, rows)\nexpect fused(t, s), "one"\nexpect kernels < 3\n'
    program = lowered(source)
    assert [d.text for d in program.directives] == [
        "materialize(t.1)", "split(t.1, rows)", 'fused(t.1, s), "one"', "kernels < 3",
    ]  # fmt: skip
    assert {"t.1", "s"} <= {b.id for b in program.buffers}
    assert splits(program) == {"t.1": "rows"}


def test_directives_are_taken_apart() -> None:
    assert parsed(Directive("expect", 'kernels <= 4, "why (not)"')) == Request(
        "kernels", (), None, "kernels <= 4", "<=", 4
    )
    assert parsed(Directive("pragma", "fuse(a.1, b)")) == Request("fuse", ("a.1", "b"), None, "fuse(a.1, b)")
    assert parsed(Directive("pragma", "tf32")) is None


# -- pragmas ----------------------------------------------------------------------------------------------------------


def test_nofuse_keeps_two_apart_and_says_who_wanted_it() -> None:
    stage = fused(SOFTMAX + "pragma nofuse(l, y)\n")
    assert len(stage.program.kernels) == 2
    (apart,) = [d for d in stage.decisions if d.verdict == "forbidden"]
    assert "y" in (*apart.a, *apart.b)
    assert apart.cause is not None
    assert apart.cause.code == "nofuse"
    assert apart.cause.spans[0].text.startswith("pragma nofuse")


def test_nofuse_holds_for_chains_too() -> None:
    chain = "input x: f32[N]\nlet a[i] = x[i] * 2.0\nlet b[i] = tanh(a[i])\nlet c[i] = b[i] + 1.0\noutput c\n"
    assert len(fused(chain).program.kernels) == 1
    assert len(fused(chain + "pragma nofuse(a, b)\n").program.kernels) == 2
    assert len(fused(chain + "pragma nofuse(a, c)\n").program.kernels) == 2


def test_materialize_keeps_the_store() -> None:
    program = run_passes(lowered(SOFTMAX + "pragma materialize(e)\n"), [PASS, CONTRACT], Options())[-1].program
    (e,) = [b for b in program.buffers if b.id == "e"]
    assert (e.role, e.scope) == ("temp", "device")
    assert len(program.kernels) == 1
    without = run_passes(lowered(SOFTMAX), [PASS, CONTRACT], Options())[-1].program
    assert not any(b.id == "e" and b.scope == "device" for b in without.buffers)


def test_materialized_arrays_stay_through_all_passes() -> None:
    """A cascade looks through arrays of its kernel, and must not take this one away."""
    program = run_passes(lowered(SOFTMAX + "pragma materialize(e)\n"), PIPELINE, Options())[-1].program
    (kernel,) = program.kernels
    assert [(b.role, b.scope) for b in program.buffers if b.id == "e"] == [("temp", "device")]
    assert "e" in {s.buffer for s in walk(kernel.body) if isinstance(s, Store)}


def test_fuse_joins_what_shares_an_input_whatever_it_costs() -> None:
    source = "input x: f32[N]\ninput w: f32[N]\nlet a[i] = x[i] * 2.0\nlet b[i] = x[i] + w[i]\noutput a\noutput b\n"
    stage = fused(source + "pragma fuse(a, b)\n")
    assert len(stage.program.kernels) == 1
    assert [d.verdict for d in stage.decisions] == ["forced"]


def test_a_fusion_that_a_dependence_forbids_is_an_error() -> None:
    with pytest.raises(UserError) as caught:
        fused(TOTAL + "pragma fuse(s, y)\n")
    (one,) = caught.value.diagnostics
    assert one.code == "LF0621"
    assert "`pragma fuse(s, y)`" in one.message
    assert one.primary is not None
    assert one.primary.text == "pragma fuse(s, y)"
    assert len(one.labels) >= 2


def test_pragmas_that_contradict_are_an_error() -> None:
    with pytest.raises(UserError) as caught:
        fused(SOFTMAX + "pragma fuse(m, e)\npragma nofuse(m, e)\n")
    assert [d.code for d in caught.value.diagnostics] == ["LF0621"]


def test_a_pragma_about_an_input_is_an_error() -> None:
    with pytest.raises(UserError) as caught:
        fused(SOFTMAX + "pragma fuse(x, m)\n")
    assert [d.code for d in caught.value.diagnostics] == ["LF0604"]


# -- expectations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected",
    ["kernels <= 1", "kernels == 1", "kernels < 2", "fused(m, y)", "fused(m, e, l, y)", "unmaterialized(m)",
     "unmaterialized(e, l)"],
)  # fmt: skip
def test_what_is_achieved_is_silent(expected: str) -> None:
    assert unmet(SOFTMAX + f"expect {expected}\n") == []


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("kernels <= 1", "the program takes"),
        ("kernels == 1", "the program takes"),
        ("fused(s, y)", "`s` and `y` are in different kernels"),
        ("unmaterialized(s)", "`s` is kept in memory"),
        ("unmaterialized(y)", "`y` is an output"),
    ],
)
def test_what_is_not_achieved_is_explained(expected: str, said: str) -> None:
    (one,) = unmet(TOTAL + f"expect {expected}\n")
    assert one.code == "LF0620"
    assert said in one.message
    assert one.primary is not None
    assert one.primary.text.startswith("expect")
    if "y)" not in expected or "fused" in expected:
        assert any("stay apart" in note for note in one.notes)


def test_more_kernels_than_expected_exactly_and_fewer() -> None:
    (one,) = unmet(SOFTMAX + "expect kernels == 2\n")
    assert "1 kernel" in one.message
    assert one.notes == ()


def test_groups_follow_the_fusions() -> None:
    home = groups(fused(TOTAL + "let z[i] = y[i] * 2.0\noutput z\n").decisions)
    assert home["y"] == home["z"] != home["s"]


UNMET = """input x: f32[M, N]
let s[i] = sum(x[i, j] for j)
output t[k in 0..M-1] = s[k] + s[k + 1]
expect kernels <= 1
"""


@pytest.mark.parametrize("command", ["explain", "ir", "run", "check"])
def test_an_expectation_that_is_not_met_fails_every_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "unmet.lf"
    script.write_text(UNMET, encoding="utf-8")
    data = ["x=randn"] if command == "run" else []
    assert main([command, str(script), *data, "--dims", "M=3000,N=100"]) == 1
    said = "\n".join(capsys.readouterr())
    assert "error[LF0620]: `expect kernels <= 1` does not hold" in said
    assert "its reader runs over 0..M - 1" in said


def test_an_expectation_that_is_met_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "met.lf"
    script.write_text(UNMET.replace("<= 1", "<= 2"), encoding="utf-8")
    assert main(["explain", str(script)]) == 0
    assert "LF0620" not in "\n".join(capsys.readouterr())
