"""`loopfuse ir` and `loopfuse explain` on scripts: stages, differences, decisions, costs, and how they fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cli_shell import Shell

from loopfuse import passes
from loopfuse.cli import screen
from loopfuse.decisions import Cause, Decision
from loopfuse.diag import UserError
from loopfuse.ir import Loop, Program
from loopfuse.passes import Options, Outcome, Pass, Remark
from loopfuse.reader import parse_program
from loopfuse.views import pins
from loopfuse.views.diff import Shown
from loopfuse.views.lines import defined

SOFTMAX = """\
input x: f32[B, N]
let m[b] = max(x[b, j] for j)
let e[b, j] = exp(x[b, j] - m[b])
let p[b, j] = e[b, j] / sum(e[b, k] for k)
output p
"""
NONE = ("--passes", "none")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    shell.write("s.lf", SOFTMAX)
    return shell


def join(program: Program, options: Options) -> Outcome:
    """A pass that puts e and p.1 into one kernel, and says why not more."""
    by_name = {n: k for k in program.kernels for n in defined(k)}
    if by_name["e"] is by_name["p.1"] or options.decide_max == 0:
        return Outcome(program)
    a, b = by_name["e"], by_name["p.1"]
    assert isinstance(b.body[0], Loop)
    spans = {x.id: x.span for x in program.buffers}
    m, e, p1 = (spans[n] for n in ("m", "e", "p.1"))
    assert m and e and p1
    joined = replace(a, body=(*a.body, *b.body))
    cause = Cause(
        "extent", "all of `m` is needed before one element of `e`", "writes m[b], reads m[b]", "nothing", (m, e)
    )
    decisions = (
        Decision(1, ("e",), ("p.1",), "fused", "reduction", "e stays on chip", 14.4, 9.3, 16 << 20, 1, spans=(e, p1)),
        Decision(
            2, ("m",), ("e", "p.1"), "refused", "vertical", cause.message, 14.0, cause=cause, saved=64, spans=(m, e)
        ),
    )
    kernels = tuple(joined if k is a else k for k in program.kernels if k is not b)
    return Outcome(replace(program, kernels=kernels), (Remark("2 kernels -> 1", e),), decisions)


@pytest.fixture
def joining(shell: Shell) -> Iterator[Shell]:
    """With a pass of our own at the end of the pipeline, which alone is asked for."""
    passes.register(Pass("join", "puts two kernels together", join))
    yield shell
    passes.unregister("join")


JOIN = ("--passes", "join")

# -- ir ---------------------------------------------------------------------------------------------------------------


def test_the_last_program_is_shown_unless_another_is_asked_for(joining: Shell) -> None:
    assert joining("ir", "s.lf", *JOIN) == 0
    assert joining.out.count("kernel ") == 3
    assert joining("ir", "s.lf", *JOIN, "--after", "lower") == 0
    assert joining.out.count("kernel ") == 4
    assert joining("ir", "s.lf", *JOIN, "--after", "0") == 0
    assert joining.out.count("kernel ") == 4
    assert joining("ir", "s.lf", *JOIN, "--after", "jion") == 2
    assert "LF0821" in joining.err
    assert "did you mean `join`?" in joining.err
    assert joining("ir", "s.lf", "--passes", "jion") == 2
    assert joining("ir", "s.lf", "--decide-max", "0", *JOIN) == 0
    assert joining.out.count("kernel ") == 4


def test_stages_one_after_the_other(joining: Shell) -> None:
    assert joining("ir", "s.lf", *JOIN, "--all") == 0
    assert re.findall(r"^== .*", joining.out, re.MULTILINE) == ["== 0 lower", "== 1 join"]
    assert joining("ir", "s.lf", "--passes", "dce,join", "--all") == 0
    assert "== 1 dce (no change)" in joining.out
    assert joining("ir", "s.lf", "--passes", "dce,join", "--changed") == 0
    assert "dce" not in joining.out
    assert joining("ir", "s.lf", *JOIN, "--all", "--json") == 0
    found = joining.records("stage")
    assert [(r["name"], r["changed"], r["counts"]["kernels"]) for r in found] == [("lower", True, 4), ("join", True, 3)]
    assert found[1]["remarks"] == ["2 kernels -> 1"]


def test_differences(joining: Shell) -> None:
    assert joining("ir", "s.lf", *JOIN, "--diff") == 0
    assert joining.out.startswith("== lower -> 1 join\n")
    assert re.search(r"^4 - kernel k3$", joining.out, re.MULTILINE) or re.search(
        r"^  - kernel k3$", joining.out, re.MULTILINE
    )
    whole = joining.out
    for which in ("join", "lower:join", "0:1", ":"):
        assert joining("ir", "s.lf", *JOIN, "--diff", which) == 0
        assert joining.out == whole
    assert joining("ir", "s.lf", *JOIN, "--diff", "join:lower") == 2
    assert joining("ir", "s.lf", *JOIN, "--diff", "x:lower") == 2
    assert joining("ir", "s.lf", *NONE, "--diff") == 0
    assert "no pass changed anything" in joining.out
    assert joining("ir", "s.lf", *JOIN, "--diff", "--side") == 0
    assert " | " in joining.out
    assert joining("ir", "s.lf", *JOIN, "--diff", "--only", "p") == 0
    assert "k1" not in joining.out
    assert joining("ir", "s.lf", *JOIN, "--diff", "--only", "q") == 2
    assert joining("ir", "s.lf", *JOIN, "--diff", "--json") == 0
    (record,) = joining.records("diff")
    assert {"-", "@"} <= {line["mark"] for line in record["lines"]}


def test_differences_in_colour_have_the_same_text(joining: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert joining("ir", "s.lf", *JOIN, "--diff", "--color", "never") == 0
    plain = joining.out
    assert "\x1b" not in plain
    assert joining("ir", "s.lf", *JOIN, "--diff", "--color", "always") == 0
    assert "\x1b[31m" in joining.out
    assert re.sub(r"\x1b\[\d*m", "", joining.out) == plain
    assert screen.paint(Shown("x")) == "x"


def test_only_a_kernel_or_definition(shell: Shell) -> None:
    assert shell("ir", "s.lf", *NONE, "--only", "e") == 0
    assert shell.out.splitlines()[0] == "kernel k2"
    assert shell("ir", "s.lf", *NONE, "--only", "k3") == 0
    assert "sum <- e[b, k]" in shell.out
    assert shell("ir", "s.lf", *NONE, "--only", "nope") == 2
    assert "there are k1, k2" in shell.err


def test_statistics(joining: Shell) -> None:
    assert joining("ir", "s.lf", *JOIN, "--stats", "--dims", "B=8") == 0
    assert re.search(r" 1~ +join .* 3 .*- 2 kernels -> 1", joining.out)
    assert re.search(r"kernels +4 +3 +-25%", joining.out)
    assert "sizes: B = 8, N = 1024 (assumed)" in joining.out
    assert joining("ir", "s.lf", *JOIN, "--stats", "--json") == 0
    (record,) = joining.records("stats")
    assert (record["before"]["kernels"], record["after"]["kernels"]) == (4, 3)


def test_a_file_a_pass(joining: Shell) -> None:
    assert joining("ir", "s.lf", "--passes", "dce,join", "--tree-dir", "t/u") == 0
    names = sorted(p.name for p in (joining.folder / "t" / "u").iterdir())
    assert names == ["00_lower.lfir", "01_dce.lfir", "02_join.changed.lfir"]
    for name in names:
        parse_program((joining.folder / "t" / "u" / name).read_text(encoding="utf-8"), name)
    assert joining("ir", "s.lf", *JOIN, "--tree-dir", "s.lf") == 1
    assert "LF0515" in joining.err


def test_a_pass_on_ir_text(joining: Shell) -> None:
    assert joining("ir", "s.lf", *NONE, "-o", "p.lfir") == 0
    text = (joining.folder / "p.lfir").read_text(encoding="utf-8")
    assert joining("ir", "--from", "p.lfir", "--no-gutter") == 0
    assert parse_program(joining.out, "a") == parse_program(text, "b")
    assert joining("ir", "--from", "p.lfir", *JOIN) == 0
    assert joining.out.count("kernel ") == 3
    assert joining("ir", "--from", "p.lfir", *JOIN, "--diff") == 0
    assert joining("ir", "--from", "p.lfir", "--freeze", "x") == 2
    assert joining("ir", "--from", "p.lfir", "-D", "N=1") == 2


def test_sizes_and_devices(shell: Shell) -> None:
    assert shell("ir", "s.lf", "--dims", "Q=4") == 2
    assert "no open size `Q`" in shell.err
    assert shell("ir", "s.lf", "--dims", "N=-4") == 2
    assert shell("ir", "s.lf", "--device", "abacus") == 2
    assert "LF0820" in shell.err
    assert shell("ir", "s.lf", "--passes", "constprop", "--specialise", "N=64,B=4") == 0
    assert "j < 64" in shell.out
    assert shell("ir", "s.lf", "--decide-max", "-3") == 2


def test_frozen_inputs(shell: Shell) -> None:
    shell.write("w.lf", 'input x: f32[N]\ninput w: f32[N] from "w.npy"\noutput y = x * w\n')
    np.save(shell.folder / "w.npy", np.arange(4, dtype=np.float32))
    np.save(shell.folder / "v.npy", np.arange(6, dtype=np.float32))
    assert shell("ir", "w.lf", "--passes", "constprop", "--freeze", "w") == 0
    assert "buf w: f32[4] frozen" in shell.out
    assert shell("ir", "w.lf", "--passes", "constprop", "--freeze", "w=v.npy") == 0
    assert "buf w: f32[6] frozen" in shell.out
    assert shell("ir", "w.lf", "--freeze", "x") == 1
    assert "--freeze x=FILE" in shell.err
    assert shell("ir", "w.lf", "--freeze", "q") == 2


# -- explain ----------------------------------------------------------------------------------------------------------


def test_one_line_a_decision(joining: Shell) -> None:
    assert joining("explain", "s.lf", *JOIN) == 0
    lines = joining.out.splitlines()
    assert lines[1].split()[:4] == ["2", "#2", "-", "refused"]
    assert lines[2].split()[:4] == ["3", "#1", "+", "fused"]
    assert "2 decisions: 1 fused, 1 refused" in joining.out
    assert re.search(r"4 -> 3 kernels, [\d.]+ -> (more than )?[\d.]+ us", joining.out)
    assert "for H200; sizes: B = 4096 (assumed), N = 1024 (assumed)" in joining.out
    assert joining("explain", "s.lf", *JOIN, "--json", "--dims", "B=4,N=8", "--device", "a100") == 0
    assert [r["verdict"] for r in joining.records("decision")] == ["refused", "fused"]
    (outcome,) = joining.records("outcome")
    assert (outcome["device"], outcome["sizes"], outcome["assumed"]) == ("A100", {"B": 4, "N": 8}, [])


def test_why_not(joining: Shell) -> None:
    assert joining("explain", "s.lf", *JOIN, "--why", "e", "m") == 0
    assert joining.out.startswith("remark[extent]: `e` and `m` are not one kernel: all of `m` is needed")
    assert "2 | let m[b] = max(x[b, j] for j)\n  |     ^" in joining.out
    assert "= note: writes m[b], reads m[b]" in joining.out
    assert "= help: nothing" in joining.out
    assert "64 B of memory traffic would be saved" in joining.out
    assert joining("explain", "s.lf", *JOIN, "--why", "e", "p.1") == 0
    assert "are one kernel: e stays on chip" in joining.out
    assert joining("explain", "s.lf", *JOIN, "--why", "e", "p", "--json") == 0
    (record,) = joining.records("why")
    assert record["decisions"] == []
    assert "two kernels" in record["text"] or "not one kernel" in record["text"]


def test_why_of_a_name_for_something_else(shell: Shell) -> None:
    shell.write("v.lf", "input x: f32[N, 2]\nlet a = x[:, 0]\noutput y = a + 1\n")
    assert shell("explain", "v.lf", *NONE, "--why", "a", "y") == 2
    assert "`a` is not computed by itself" in shell.err


def test_why_tells_what_was_not_done(shell: Shell) -> None:
    shell.write(
        "c.lf",
        "input x: f32[B, N]\nlet m[b] = max(x[b, j] for j)\nlet s[b] = sum(sin(x[b, j] * m[b]) for j)\noutput s\n",
    )
    assert shell("explain", "c.lf", "--why", "m", "s") == 0
    assert "[cascade]: the reductions stay passes of their own: the sum" in shell.out


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [("m", "ee", "did you mean `e`?"), ("x", "m", "`x` is an input"), ("m", "m", "are one definition"),
     ("zzz", "m", "there are m, e, p, p.1")],
)  # fmt: skip
def test_why_of_wrong_names(shell: Shell, a: str, b: str, said: str) -> None:
    assert shell("explain", "s.lf", *NONE, "--why", a, b) == 2
    assert "LF0502" in shell.err
    assert said in shell.err


def test_costs(shell: Shell) -> None:
    assert shell("explain", "s.lf", *NONE, "--cost") == 0
    assert len(re.findall(r"^k\d .* memory ", shell.out, re.MULTILINE)) == 4
    assert "memory-bound below" in shell.out
    assert shell("explain", "s.lf", *NONE, "--cost", "--json") == 0
    assert [r["kernel"] for r in shell.records("cost")] == ["k1", "k2", "k3", "k4"]
    assert shell("explain", "s.lf", *NONE, "--kernel", "k1") == 0
    assert re.search(r"^computes +m$", shell.out, re.MULTILINE)
    assert shell("explain", "s.lf", *NONE, "--kernel", "k1", "--json") == 0
    assert len(shell.records("cost")) == 1
    assert shell("explain", "s.lf", *NONE, "--kernel", "kk1") == 2
    assert "did you mean `k1`?" in shell.err


def test_remarks(joining: Shell) -> None:
    assert joining("explain", "s.lf", *JOIN, "--remarks") == 0
    assert re.search(r"^ +3  join +\+ 2 kernels -> 1$", joining.out, re.MULTILINE)
    assert joining("explain", "s.lf", *JOIN, "--remarks", "--json") == 0
    assert joining.records("remark")[0]["line"] == 3
    assert joining("explain", "s.lf", *NONE, "--remarks") == 0
    assert "no pass made a remark" in joining.out


def test_explain_of_what_is_no_script(shell: Shell) -> None:
    assert shell("explain", "nope.lf") == 1
    assert "LF0510" in shell.err
    assert shell("explain", "--cost") == 2
    assert shell("explain", "LF0304", "--cost") == 2
    assert shell("explain", "304") == 0
    shell.write("bad.lf", "output y = z")
    assert shell("explain", "bad.lf") == 1


# -- files of decisions -----------------------------------------------------------------------------------------------


def test_decisions_are_written_and_read_back(joining: Shell) -> None:
    assert joining("explain", "s.lf", *JOIN, "--write-decisions", "d.toml") == 0
    text = (joining.folder / "d.toml").read_text(encoding="utf-8")
    assert pins.read(text, "d.toml") == {(frozenset({"e"}), frozenset({"p.1"})): "fuse"}
    assert joining("explain", "s.lf", *JOIN, "--decisions", "d.toml") == 0
    joining.write("d.toml", "[[decision]]\na = 3\n")
    assert joining("explain", "s.lf", *JOIN, "--decisions", "d.toml") == 1
    assert "LF0622" in joining.err
    assert joining("explain", "s.lf", *JOIN, "--decisions", "none.toml") == 1
    assert joining("explain", "s.lf", *JOIN, "--write-decisions", "no/d.toml") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = [", "is not TOML"),
        ("a = 3", "holds `a`"),
        ("decision = 3", "no table"),
        ("decision = [3]", "entry 1 of `f` is no table"),
        ('[[decision]]\nb = ["x"]\nverdict = "fuse"', "`a` is not a list"),
        ('[[decision]]\na = ["x"]\nb = []\nverdict = "fuse"', "`b` is not a list"),
        ('[[decision]]\na = ["x"]\nb = ["y"]\nverdict = "maybe"', "the verdict 'maybe'"),
        ('[[decision]]\na = ["x"]\nb = ["y"]', "no verdict"),
    ],
)
def test_wrong_files_of_decisions(text: str, said: str) -> None:
    with pytest.raises(UserError) as refusal:
        pins.read(text, "f")
    assert refusal.value.diagnostics[0].code == "LF0622"
    assert said in refusal.value.diagnostics[0].message


def test_a_verdict_may_be_left_to_the_cost_model() -> None:
    text = (
        '[[decision]]\na = ["x"]\nb = ["y"]\nverdict = "cost"\n[[decision]]\na = ["x"]\nb = ["z"]\nverdict = "nofuse"'
    )
    assert pins.read(text, "f") == {(frozenset({"x"}), frozenset({"z"})): "nofuse"}


# -- the passes of the pipeline ---------------------------------------------------------------------------------------


def test_softmax_becomes_one_kernel_before_ones_eyes(shell: Shell) -> None:
    assert shell("ir", "s.lf") == 0
    assert shell.out.count("kernel ") == 1
    assert shell("ir", "s.lf", "--diff", "fuse") == 0
    assert "@ k1, k2, k3, k4 -> k1" in shell.out
    assert "3 - kernel k2" in shell.out or "- kernel k2" in shell.out
    assert shell("ir", "s.lf", "--stats") == 0
    assert re.search(r"kernels +4 +1 +-75%", shell.out)
    assert shell("explain", "s.lf") == 0
    assert re.search(r"4 -> 1 kernels, [\d.]+ -> [\d.]+ us", shell.out)
    assert shell("explain", "s.lf", "--why", "m", "e") == 0
    assert "`m` and `e` are one kernel" in shell.out
    assert shell("explain", "s.lf", "--cost") == 0
    assert re.search(r"^k1 .* memory ", shell.out, re.MULTILINE)


def test_decisions_can_be_turned_around(shell: Shell) -> None:
    assert shell("explain", "s.lf", "--write-decisions", "d.toml") == 0
    text = (shell.folder / "d.toml").read_text(encoding="utf-8")
    shell.write("d.toml", text.replace('"fuse"', '"nofuse"'))
    assert shell("ir", "s.lf", "--decisions", "d.toml") == 0
    assert shell.out.count("kernel ") > 1
    assert shell("ir", "s.lf", "--decide-max", "0") == 0
    assert shell.out.count("kernel ") == 4


@pytest.mark.parametrize("flags", [("--side",), ("--all", "--after", "fuse")])
def test_flags_that_do_not_go_together(joining: Shell, flags: tuple[str, ...]) -> None:
    assert joining("ir", "s.lf", *flags) == 2
