"""The session at a prompt: the stepper, and the fronts with and without a terminal."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import repl_talk
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from repl_talk import ROOT, Talk

from loopfuse.cli import main
from loopfuse.diag import Diagnostic
from loopfuse.passes.base import Remark
from loopfuse.repl import plain, shell
from loopfuse.repl.session import Session
from loopfuse.repl.shell import Shell
from loopfuse.repl.stepper import Stepper
from loopfuse.views.diff import Shown
from loopfuse.views.passes import Step, steps

here, talk, softmax = repl_talk.here, repl_talk.talk, repl_talk.softmax  # the fixtures


# -- the stepper ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stepper(softmax: Talk) -> Stepper:
    softmax(":step lower")
    found = softmax.reply.stepper
    assert found is not None
    lowered = found.steps[0].program
    fewer = lowered.__class__(lowered.name, lowered.sizes, lowered.requires, lowered.buffers, lowered.kernels[:3])
    counts = steps(lowered, [], {"B": 4, "N": 8})[0].counts
    found.steps = [
        found.steps[0],
        Step(1, "cse", lowered, counts, False, 1e-4),
        Step(2, "drop", fewer, counts, True, 1e-4, (Remark("one kernel less"), Remark("twice said", missed=True))),
        Step(3, "dce", fewer, counts, False, 1e-4),
    ]
    return found


def page(stepper: Stepper, width: int = 80, height: int = 24) -> str:
    lines = stepper.screen(width, height)
    assert len(lines) == height
    assert all(len(line.text) <= width for line in lines)
    return "\n".join(line.text for line in lines)


def test_walking(stepper: Stepper) -> None:
    assert page(stepper).startswith("0/3  lower   ops 3  loops 6  kernels 4")
    assert stepper.press("n")
    assert "1/3  cse" in page(stepper)
    assert "(no change)" in page(stepper)
    assert stepper.press("right")
    assert "2/3~ drop" in page(stepper)
    assert "- one kernel less\n- not done: twice said\n" in page(stepper)
    assert "k4: removed" in page(stepper)
    stepper.press("n")
    stepper.press("n")
    assert "this is the last pass" in page(stepper)
    stepper.press("c")
    stepper.press("p")
    assert "2/3~ drop" in page(stepper)
    stepper.press("p")
    assert "0/3  lower" in page(stepper)
    stepper.press("p")
    assert "this is the first" in page(stepper)
    stepper.press("n")
    assert "2/3~ drop" in page(stepper)
    stepper.press("c")
    assert "all passes" in page(stepper)
    assert not stepper.press("q")


def test_two_columns(stepper: Stepper) -> None:
    stepper.at = 2
    page(stepper)
    stepper.press("s")
    assert "need a width of 120; there are 80" in page(stepper)
    assert "- kernel k4" in page(stepper, 130)
    assert "|\n" in page(stepper, 130)


def test_scrolling_and_finding(stepper: Stepper) -> None:
    page(stepper, 80, 10)
    assert "1-7 of 25" in page(stepper, 80, 10)
    stepper.press("pagedown")
    assert "8-14 of 25" in page(stepper, 80, 10)
    stepper.press("end")
    stepper.press("down")
    assert "19-25 of 25" in page(stepper, 80, 10)
    stepper.press("home")
    for key in ("/", "F", "o", "x", "backspace", "l", "d", "enter"):
        stepper.press(key)
    assert "`Fold` in line" in page(stepper, 80, 10)
    first = stepper.top
    for key in ("/", "enter"):
        stepper.press(key)
    assert stepper.top > first
    for key in ("/", "z", "z", "z", "enter"):
        stepper.press(key)
    assert "`zzz` is not here" in page(stepper, 80, 10)
    for key in ("/", "z", "escape"):
        stepper.press(key)
    assert stepper.mode == ""
    stepper.press("x")
    assert "`x` does nothing" in page(stepper, 100, 10)
    assert stepper.press("f12")


def test_asking_why(stepper: Stepper) -> None:
    stepper.why = lambda a, b: [f"because of {a} and {b}"]
    page(stepper)
    for key in "wm, e":
        stepper.press(key)
    assert "why (two names): m, e" in page(stepper)
    stepper.press("enter")
    assert "because of m and e" in page(stepper)
    assert "q back to the pass" in page(stepper)
    assert stepper.press("q")
    assert "because" not in page(stepper)
    for key in ("w", "m", "enter"):
        stepper.press(key)
    assert "two definitions" in page(stepper)


def test_why_of_a_wrong_name(stepper: Stepper) -> None:
    page(stepper)
    for key in (*"wm ee", "enter"):
        stepper.press(key)
    assert "did you mean `e`?" in page(stepper)


@pytest.mark.parametrize(("width", "height"), [(20, 4), (80, 24), (200, 60), (1, 1)])
def test_every_screen_fits(stepper: Stepper, width: int, height: int) -> None:
    for at in range(len(stepper.steps)):
        stepper.at = at
        lines = stepper.screen(width, height)
        assert len(lines) == max(height, 4)
        assert all(len(line.text) <= max(width, 20) for line in lines)


# -- without a terminal -----------------------------------------------------------------------------------------------


class Paper:
    """An output that keeps what is written."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.asides: list[str] = []

    def show(self, lines: Iterable[Shown]) -> None:
        self.out += [line.text for line in lines]

    def note(self, line: str) -> None:
        self.asides.append(line)

    def diagnostics(self, found: Iterable[Diagnostic]) -> None:
        self.asides += [d.code for d in found]


def test_lines_belong_together() -> None:
    lines = [
        "fn f(a) {\n",
        "  let b = a\n",
        "\n",
        "  return b\n",
        "}\n",
        "f(1) +\n",
        "  2\n",
        "x +\n",
        "let y = 1\n",
        "z +\n",
        ":q\n",
    ]
    assert list(plain.statements(lines)) == [
        "fn f(a) {\n  let b = a\n\n  return b\n}", "f(1) +\n  2", "x +", "let y = 1", "z +", ":q",
    ]  # fmt: skip
    assert list(plain.statements(["let y = ("])) == ["let y = ("]


def test_a_script_of_lines(here: Path) -> None:
    paper = Paper()
    assert plain.run(Shell(), ["let y = 2\n", "y * 3\n", "let z = iota(y)\n", ":step\n", ":quit\n", "1/0\n"], paper)
    assert paper.out[:2] == ["y : i64", "6"] or paper.out[1] == "6"
    assert any(line.startswith("== 0/") for line in paper.out)
    assert not plain.run(Shell(), ["zz\n", "1\n", ":edit\n"], paper)
    assert "LF0203" in paper.asides
    assert "`:edit` needs a terminal" in paper.asides


def test_a_prompt_without_editing(here: Path) -> None:
    typed = iter(["let y = ", "  3", KeyboardInterrupt, "y", EOFError])
    asked: list[str] = []

    def prompt(text: str) -> str:
        asked.append(text)
        word = next(typed)
        if isinstance(word, str):
            return word
        raise word

    paper = Paper()
    plain.talk(Shell(), prompt, paper)
    assert asked == ["lf> ", ".. ", "lf> ", "lf> ", "lf> "]
    assert paper.out[-1] == "3"


def repl(text: str, *options: str, **rest: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "loopfuse", "repl", *options], input=text, capture_output=True, text=True,
                          check=False, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}, **rest)  # fmt: skip


def test_the_command_on_a_pipe(here: Path) -> None:
    done = repl(":dims B=1 N=2\np\n_ * 0\nzz\n", "s.lf", "-q")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("[[0., 0.]]\n")
    assert "unknown name `zz`" in done.stderr


def test_the_command_on_a_stream(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(text: str, *options: str) -> tuple[int | str | None, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        try:
            code: int | str | None = main(["repl", *options])
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().out

    assert run("1 + 1\n", "--plain") == (0, "2\n")
    assert run("\udcff\u00e9 +\n1\n")[0] == 1
    assert run("", "no.lf") == (1, "")
    assert run("", "-")[0] == 2
    assert run("", "--passes", "zap")[0] == 2
    code, out = run("1\nzz\n", "--json")
    assert code == 1
    found = [json.loads(line) for line in out.splitlines()]
    assert [(r["schema"], r.get("kind"), r.get("code")) for r in found] == [(1, "reply", None), (1, None, "LF0203")]


def test_prompt_toolkit_is_imported_for_terminals_only(here: Path) -> None:
    code = "import sys; from loopfuse.cli import main; main(['repl']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], input="1\n", capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert "loopfuse.repl.plain" in done.stdout.split()
    assert "prompt_toolkit" not in done.stdout.split()


# -- with a terminal --------------------------------------------------------------------------------------------------


def typed(keys: str, session: Session | None = None) -> tuple[Paper, Any]:
    """A front that is typed at, and what it said."""
    from loopfuse.repl.terminal import Front

    paper = Paper()
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        front = Front(Shell(session), paper, False, pipe, DummyOutput())
        front.run()
    return paper, front


@pytest.fixture
def tall(monkeypatch: pytest.MonkeyPatch, here: Path) -> Iterator[Path]:
    monkeypatch.setenv("TERM", "xterm")
    yield here


def test_typing(tall: Path) -> None:
    paper, front = typed("let y = \r1 + 2\ry * 2\r\x04")
    assert paper.out[-1] == "6"
    assert front.shell.session.lines == ["let y = \n1 + 2", "y * 2"]
    history = tall / "state" / "loopfuse" / "history"
    assert "y * 2" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.parent.stat().st_mode & 0o777 == 0o700


def test_an_empty_line_ends_what_is_not_complete(tall: Path) -> None:
    paper, _ = typed("let y = (\r\r1\r\x04")
    assert "LF01" in paper.asides[0]
    assert paper.out[-1] == "1"


def test_control_c_drops_a_line_and_control_d_ends(tall: Path) -> None:
    paper, front = typed("let y = \x037\r:quit\r8\r")
    assert paper.out == ["7"]
    assert front.shell.session.lines == ["7", ":quit"]


def test_control_c_stops_what_runs(tall: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def slow(self: Session, text: str, clock: object = None) -> None:
        calls.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "evaluate", slow)
    paper, _ = typed("1\r:list\r\x04")
    assert calls == ["1"]
    assert paper.asides == ["interrupted"]


def test_a_history_that_cannot_be_written(tall: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tall / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tall / "file"))
    paper, _ = typed("1\r\x04")
    assert paper.out == ["1"]
    assert shell.state_folder() == tall / "file" / "loopfuse"


def test_stepping_on_the_whole_screen(tall: Path) -> None:
    session = Session()
    Shell(session).enter(":load s.lf")
    paper, _ = typed(":step lower\rnpsc/sum\rwm e\rqq1\r\x04", session)
    assert paper.out[-1] == "1"
    assert [line for line in paper.asides if "made-up" not in line] == []


def test_stepping_on_a_dumb_terminal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    session = Session()
    Shell(session).enter(":load s.lf")
    paper, _ = typed(":step lower\rn\r/sum\rw\rm e\rq\rq\r1\r\x04", session)
    assert paper.out[0].startswith("0/")
    assert any("1/" in line[:3] for line in paper.out)
    assert paper.out[-1] == "1"


def test_the_editor(tall: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tall / "editor.py"
    script.write_text(
        "import sys\np = sys.argv[1]\nt = open(p).read()\nopen(p, 'w').write(t.replace('1', '2').replace('bad', 'zz = '))\n"
    )
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    paper, front = typed("let y = 1\r:edit\ry\r\x04")
    assert paper.out[-1] == "2"
    paper, front = typed("let y = 1\rlet bad = 3\r:edit\ry\r\x04")
    assert "the session is as it was; :edit opens this text again" in paper.asides
    assert paper.out[-1] == "1"
    assert front.draft is not None
    assert "zz = " in front.draft
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    paper, _ = typed(":edit\r\x04")
    assert "cannot be run" in paper.asides[0]
    monkeypatch.setenv("VISUAL", f"{sys.executable} -c 'raise SystemExit(3)'")
    paper, _ = typed(":edit\r\x04")
    assert "ended with 3" in paper.asides[0]


def read_until(master: int, word: str, seconds: float = 60) -> str:
    """What a terminal shows until a word is there."""
    seen = ""
    end = time.monotonic() + seconds
    while word not in seen and time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            try:
                seen += os.read(master, 65536).decode("utf-8", "replace")
            except OSError:
                break
    return seen


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_on_a_pseudo_terminal(here: Path, term: str) -> None:
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": term, "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}
    child = subprocess.Popen([sys.executable, "-m", "loopfuse", "repl", "s.lf"], stdin=slave, stdout=slave, stderr=slave,
                             env=environment, start_new_session=True)  # fmt: skip
    os.close(slave)
    try:
        assert "lf>" in read_until(master, "lf>")
        os.write(master, b"40 + 2\r")
        said = read_until(master, "\n42")
        assert "\n42" in said
        for keys in (b"let z = \x03", b"\x04"):
            if "lf>" not in said.rpartition("\n")[2]:
                said = read_until(master, "lf>")
            time.sleep(0.5)  # between two prompts the terminal, not the session, reads what is typed
            os.write(master, keys)
            said = ""
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait(60)
        os.close(master)
