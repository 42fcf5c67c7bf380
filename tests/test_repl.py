"""The session: definitions and values, commands, what they are made of, completion."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import repl_talk
from hypothesis import given, settings
from hypothesis import strategies as st
from repl_talk import ROOT, SOFTMAX, Talk

from loopfuse.cli import main
from loopfuse.diag import Source, UserError
from loopfuse.repl import commands, docs, parts, words
from loopfuse.repl.complete import complete
from loopfuse.repl.session import Session
from loopfuse.repl.shell import Shell, goes_on

here, talk, softmax = repl_talk.here, repl_talk.talk, repl_talk.softmax  # the fixtures


# -- definitions and values -------------------------------------------------------------------------------------------


def test_definitions_and_expressions(talk: Talk) -> None:
    assert talk("input x: f32[N]") == "x : f32[N]\n"
    assert talk("let y = x * 2") == "y : f32[N]\n"
    assert talk("size R = 3") == "R : = 3\n"
    assert talk("fn f(a) = a + R") == "f : fn\n"
    talk(":set x=iota")
    talk(":dims N=4")
    assert talk("f(y)").splitlines()[1] == "[3., 5., 7., 9.]"
    assert talk("R + 1") == "4\n"
    assert talk("let z = y\n  + 1") == "z : f32[N]\n"
    assert talk("z[0];") == ""
    assert talk("_") == "1.0\n"


def test_the_last_value_has_a_name(talk: Talk) -> None:
    assert "unknown name `_`" in (talk("_ + 1") or talk.errors)
    talk("iota(3, dtype=f32)")
    assert "[0., 1., 2.]" in talk("_")
    assert "[0., 2., 4.]" in talk("_ * 2")
    assert talk("let t = _ + 1") == "t : f32[3]\n"
    talk("0")
    assert "[1., 3., 5.]" in talk("t")
    assert "[1., 3., 5.]" in talk("let _x = 0;") or "[1., 3., 5.]" in talk("_")
    assert talk("let u = _ + t") == "u : f32[3]\n"
    assert "input _2: f32[3]" in talk(":list")


def test_errors_point_into_the_line_and_change_nothing(talk: Talk) -> None:
    talk("input x: f32[N]")
    before = talk.shell.session.text
    for line, said in (
        ("let y = x +", "LF0101"), ("let y = zz", "LF0203"), ("x @", "LF0101"), ("let x", "LF01"), ("x[", "LF01"),
        ("output q = x + \n  zz", "LF0203"), (")", "LF01"), ("while true", "LF0"),
    ):  # fmt: skip
        talk(line)
        assert talk.reply.failed
        assert said in talk.errors
        assert "<input>:" in talk.errors
    talk("let y = x + zz")
    assert "1 | let y = x + zz\n  |             ^^" in talk.errors
    talk("  zz + 1")
    assert "1 |   zz + 1\n  |   ^^" in talk.errors
    assert talk.shell.session.text == before


def test_labels_elsewhere_point_into_the_script(talk: Talk) -> None:
    talk("input x: f32[M]")
    talk("input y: f32[N]")
    talk("x + y")
    assert "<input>:1:1" in talk.errors
    assert "::: <session>:1:10" in talk.errors
    talk("input x: f32[M, M]")
    assert not talk.reply.failed
    talk("let t[i] = x[i, i]")
    talk("input x: f32[M]")
    assert talk.reply.failed
    assert "<session>:3" in talk.errors
    assert "input x: f32[M, M]" in talk.shell.session.text


def test_what_may_not_be_there_twice_is_replaced(talk: Talk) -> None:
    talk("size R = 3")
    talk("let y = R * 2")
    assert talk("size R = 4") == "R : = 4\n"
    assert talk.reply.notes == ["in place of the former one"]
    assert talk("y") == "8\n"
    talk("fn f(a) = a")
    talk("fn f(a) = a * 3")
    assert talk("f(2)") == "6\n"
    talk("numerics strict")
    talk("numerics fast")
    assert talk.shell.session.text.count("numerics") == 1
    talk("let y = 5")  # a rebinding, as in a script
    assert talk("y") == "5\n"
    assert talk.shell.session.text.count("let y") == 2


def test_warnings_are_told_once(talk: Talk) -> None:
    talk("let y = 1")
    assert not talk.reply.diagnostics


def test_values_of_many_kinds(talk: Talk) -> None:
    assert talk("1 < 2") == "true\n"
    assert "count 1000" in talk("iota(1000)")
    assert "\n" not in talk("iota(1000)").rstrip("\n")
    assert re.search(r"f32\[0\]", talk("iota(3, dtype=f32)[0:0]"))


# -- commands ---------------------------------------------------------------------------------------------------------


def test_a_beginning_is_enough(talk: Talk) -> None:
    assert [commands.find(n) for n in ("pa", "ste", "q", "rel", "why", "d")] == [
        "passes",
        "step",
        "quit",
        "reload",
        "why",
        "diff",
    ]
    for name in ("x", "re z", "", "1"):
        talk(f":{name}")
        assert talk.reply.failed or name == "re z"
    talk(":se")
    assert ":set, :seed" in talk.errors
    assert all(commands.find(short) == full and full.startswith(short) for short, full in commands.SHORT.items())


def test_help_tells_of_every_command(talk: Talk) -> None:
    said = talk(":help")
    assert all(f":{name}" in said for name in commands.COMMANDS)
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "walk" in talk(":help step")
    page = (ROOT / "docs" / "repl.md").read_text(encoding="utf-8")
    assert all(f"`:{name}" in page for name in commands.COMMANDS)


def test_files(softmax: Talk, here: Path) -> None:
    assert softmax.shell.session.text == SOFTMAX
    assert softmax(":list").splitlines()[2] == "   3  let m[b] = max(x[b, j] for j)   # the greatest"
    softmax("let q = p + 1")
    softmax(":save t.lf")
    assert (here / "t.lf").read_text(encoding="utf-8") == SOFTMAX + "let q = p + 1\n"
    (here / "u.lf").write_text("kept", encoding="utf-8")
    softmax(":save u.lf")
    assert softmax.reply.failed
    assert (here / "u.lf").read_text(encoding="utf-8") == "kept"
    softmax(":save! u.lf")
    assert not softmax.reply.failed
    (here / "u.lf").write_text(SOFTMAX.replace("- m[b]", "- 2*m[b]"), encoding="utf-8")
    softmax(":reload")
    assert "2*m[b]" in softmax(":list")
    (here / "u.lf").write_text("output y = zz", encoding="utf-8")
    softmax(":reload")
    assert "u.lf:1:12" in softmax.errors
    assert "2*m[b]" in softmax(":list")
    for bad in (":load", ":load no.lf", ":save /no/such/folder/x.lf"):
        softmax(bad)
        assert softmax.reply.failed


def test_a_session_is_a_script(talk: Talk, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("input x: f32[N]", "let y = x * 2", "output z = y + 1"):
        talk(line)
    talk(":save made.lf")
    assert main(["run", "made.lf", "x=ones", "--dims", "N=3"]) == 0
    assert "z  f32[3]  min 3  max 3" in capsys.readouterr().out


def test_nothing_to_reload_or_compile(talk: Talk) -> None:
    for line in (":reload", ":passes", ":ir", ":step", ":run", ":why a b", ":why a", ":explain 9999", ":explain", ":doc nope",
                 ":seed x", ":device abacus", ":history x y", ":dims N", ":dims N=x", ":set q=1", ":size q=1"):  # fmt: skip
        talk(line)
        assert talk.reply.failed or line == ":history x y", line
    talk(":type")
    assert not talk.reply.failed


def test_data(softmax: Talk, here: Path) -> None:
    np.save(here / "x.npy", np.zeros((2, 4), np.float32))
    assert "made up" in softmax(":set")
    softmax(":dims B=3 N=2^2")
    assert softmax(":dims").split() == ["B", "3", "given", "N", "4", "given"]
    assert "f32[3, 4]" in softmax("x")
    assert softmax.reply.notes == ["made-up data for x with B = 3, N = 4  (:set, :dims)"]
    softmax("x")
    assert softmax.reply.notes == []
    softmax(":dims N=4 Q=4")
    assert "there is no dim `Q`" in softmax.errors
    softmax(":set x=x.npy")
    softmax("x")
    assert "LF0517" in softmax.errors or "LF05" in softmax.errors
    softmax.shell.session.dims.clear()
    assert "f32[2, 4]  min 0  max 0" in softmax("x")
    assert re.search(r"B +2 +from data", softmax(":dims"))
    softmax(":set x=uniform(5, 6)")
    softmax(":dims B=2 N=3")
    assert "min 5." in softmax("x")
    softmax(":set x=")
    assert "made up" in softmax(":set")
    first = softmax("x")
    assert softmax(":seed 7") == "seed 7\n"
    assert softmax("x") != first


def test_params_and_sizes(talk: Talk) -> None:
    talk("param a: f32 = 2")
    talk("size R = 3")
    assert talk("a * R") == "6.0\n"
    talk(":set a=5")
    talk(":size R=7")
    assert talk("a * R") == "35.0\n"
    assert re.search(r"a +5", talk(":set"))
    assert talk(":size").split() == ["R", "=", "7"]
    talk(":set a=b")
    assert "LF0508" in talk.errors
    talk(":size R=x")
    assert "LF0506" in talk.errors


def test_running(softmax: Talk) -> None:
    softmax(":dims B=2 N=4")
    assert softmax(":run").startswith("p  f32[2, 4]  min ")
    assert softmax(":check") == "1 of 1 checks hold\n"
    assert re.search(r"^check .*s$", softmax(":time"), re.MULTILINE)
    assert re.search(r"^run .*s$", softmax(":time p + 1"), re.MULTILINE)
    softmax("check all(x > 9)")
    assert softmax(":check") == "1 of 2 checks hold\n"
    assert softmax.reply.failed
    assert "LF0613" in softmax.errors


def test_types_and_ranges(softmax: Talk) -> None:
    assert softmax(":type m") == "f32[B]\n"
    assert softmax(":type m[0] > 1") == "bool\n"
    assert re.search(r"let +m +f32\[B\]", softmax(":type"))
    assert "nothing__" not in softmax(":type")
    assert "j in 0..N" in softmax(":ranges")
    softmax(":type zz")
    assert "<input>:1:1" in softmax.errors


def test_looking_at_passes(softmax: Talk) -> None:
    softmax(":dims B=4 N=8")
    assert softmax(":passes none").splitlines()[1].split()[:2] == ["0", "lower"]
    assert "of p on H200; sizes: B = 4, N = 8" in softmax(":passes")
    softmax(":passes zap")
    assert softmax.reply.failed
    assert softmax.shell.session.passes == "none"
    assert softmax(":ir").startswith("program s(B, N)")
    assert softmax(":ir low") == softmax(":ir lower") == softmax(":ir 0")
    softmax(":ir zap")
    assert "LF0821" in softmax.errors
    assert "(no difference)" in softmax(":diff")
    softmax(":passes default")
    assert softmax(":diff lower lower").startswith("== lower -> lower\n")
    softmax(":diff a b c")
    assert softmax.reply.failed
    assert "pass" in softmax(":remarks")
    assert softmax(":device a100").startswith("A100")
    assert "on A100" in softmax(":passes")


def test_costs_and_reasons(softmax: Talk) -> None:
    softmax(":passes none")
    said = softmax(":cost")
    assert re.search(r"^k4 ", said, re.MULTILINE)
    assert all(len(line) <= 80 for line in said.splitlines()[:6])
    assert "computes   m" in softmax(":cost k1")
    softmax(":cost k9")
    assert "there are k1, k2" in softmax.errors
    assert "0 decisions" in softmax(":why")
    assert "`m` (k1) and `e` (k2) are two kernels" in softmax(":why m e")
    softmax(":why m ee")
    assert "did you mean `e`?" in softmax.errors


def test_what_is_asked_for_without_an_output(talk: Talk) -> None:
    talk("input x: f32[N]")
    talk("let a = x + 1")
    talk("let b = a * 2")
    assert "of b on" in talk(":passes none")
    assert "buf b: f32[N] out" in talk(":ir lower")
    talk("output a")
    assert "of a on" in talk(":passes")


def test_documentation(talk: Talk) -> None:
    assert talk(":doc exp").startswith("exp: ")
    assert "nn.softmax(x: float[...], axis = -1)" in talk(":doc nn.softmax")
    assert "nn.gelu" in talk(":doc nn")
    assert talk(":doc transpose").startswith("transpose: ")
    assert "reduction" in talk(":doc sum")
    talk("fn twice(a) = a * 2")
    assert talk(":doc twice") == "fn twice(a) = a * 2\n"
    talk(":doc expp")
    assert "did you mean `exp`" in talk.errors
    assert talk(":explain 304").startswith("LF0304")
    assert {"exp", "sum", "reshape", "where"} <= set(docs.functions())
    assert "exp" in talk(":doc").split()


def test_history_of_the_session(talk: Talk) -> None:
    talk("1")
    talk("2;")
    assert talk(":history").splitlines() == ["   1  1", "   2  2;", "   3  :history"]
    assert talk(":history 1").splitlines() == ["   4  :history 1"]


def test_editing(softmax: Talk) -> None:
    softmax(":edit")
    assert softmax.reply.edit == SOFTMAX
    found = softmax.shell.edited(SOFTMAX.replace("max(", "min("))
    assert not found.failed
    assert "min(" in softmax(":list")
    found = softmax.shell.edited("let y = ")
    assert found.failed
    assert "min(" in softmax(":list")
    assert softmax.shell.edited(softmax.shell.session.text).notes == ["nothing changed"]


def test_a_bug_of_ours_ends_nothing(talk: Talk, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Session, "evaluate", broken)
    talk("1")
    assert talk.reply.failed
    assert "ZeroDivisionError" in talk.reply.notes[0]
    assert "reproducer is in" in talk.reply.notes[1]
    monkeypatch.undo()
    monkeypatch.setattr(Session, "evaluate", lambda *_: (_ for _ in ()).throw(MemoryError()))
    talk("1")
    assert "LF0509" in talk.errors


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.lf")), ids=lambda f: f.stem)
def test_parts_are_the_text(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = parts.split(Source(file.name, text))
    assert parts.join(found) == text
    assert all(p.body in text and p.kind for p in found)


def test_parts_of_one_line() -> None:
    text = "input x: f32[N]  let (a, b) = split(x, 2)  output y = a # end"
    found = parts.split(Source("s", text))
    assert [p.kind for p in found] == ["input", "let", "output"]
    assert found[1].names == ("a", "b")
    assert parts.join(found) == text
    assert parts.split(Source("s", "# nothing\n")) == []


def test_pairs() -> None:
    assert words.pairs("x=uniform(0, 1) w=w.npy, b = 3") == {"x": "uniform(0, 1)", "w": "w.npy", "b": "3"}
    assert words.integers("N=2^10 M=3") == {"N": 1024, "M": 3}
    assert words.pairs("x=") == {"x": ""}
    for bad in ("x", "3=4", "a b=3"):
        with pytest.raises(UserError):
            words.pairs(bad)


def test_what_goes_on() -> None:
    for text in ("let y =", "f(1,", "fn f(a) {", "fn f(a) {\n  let b = a", "x +", "scan t in 0..4 carry (h = 0) {"):
        assert goes_on(text), text
    for text in ("let y = 1", "x", "", ":load (", "let y =\n", "x +\n\n", "let = 3", "x;", "# c", ")", "let y = = 3"):
        assert not goes_on(text), text


@settings(max_examples=10)
@given(st.text(alphabet="xyz_ab()[]{}+-*/=;:.,01 \n#\"'@<>~!", max_size=20))
def test_no_line_ends_the_session(line: str) -> None:
    made = Shell()
    made.enter("input x: f32[3]")
    found = made.enter(line)
    assert not (found.done and not line.strip().startswith(":q"))
    assert "x : f32[3]" in Shell(made.session).enter("input x: f32[3]").text or line


# -- completion -------------------------------------------------------------------------------------------------------


def said(text: str, session: Session) -> list[str]:
    return [c.text for c in complete(text, session)]


def test_completion(softmax: Talk, here: Path) -> None:
    session = softmax.shell.session
    assert said(":pa", session) == ["passes"]
    assert set(said(":", session)) == set(commands.COMMANDS)
    assert said(":step dc", session) == ["dce"]
    assert "-dce" in said(":passes -d", session)
    assert said(":why m ", session) == ["e", "m", "p"] or "e" in said(":why m ", session)
    assert said(":dims B=3 N", session) == ["N="]
    assert said(":set x=ra", session) == ["randint", "randn"]
    assert said(":load s", session) == ["s.lf", "state/"] or said(":load s", session) == ["s.lf"]
    assert said(":device h", session) == ["h100", "h200"]
    assert said(":doc nn.soft", session) == ["nn.softmax", "nn.softplus"]
    assert said(":explain LF030", session)[0] == "LF0301"
    assert "exp" in said("x + ex", session)
    assert said(":type ex", session)[0] == "exp"
    assert said("x + ", session) == []
    assert "softmax" not in said("so", session)
    assert said("import n", session)[:1] == ["nn"]
    softmax("import nn as k")
    assert "k.softmax" in said("k.so", session)
    assert "_" not in said("_", session)
    assert said(":load no/such/", session) == []
    assert said(":nothing x", session) == []
    candidate = complete("let y = ex", session)[0]
    assert candidate.back == 2


def test_completion_of_a_broken_session(talk: Talk) -> None:
    talk.shell.session.parts = [parts.Part("", "let y = zz", "\n", ("y",), "let")]
    assert "exp" in said("ex", talk.shell.session)
    assert said(":dims N", talk.shell.session) == []
