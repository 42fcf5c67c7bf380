"""How commands end, whichever they are: colours, readers that go away, interruption, our own bugs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_shell import CHAIN, Shell, chain_shell, environment, python

from loopfuse import driver
from loopfuse.cli import main, terminal
from loopfuse.diag import CompilerError
from loopfuse.testing.campaign import Campaign

shell = chain_shell


# -- colours, interruption, bugs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "environment", "coloured"),
    [
        ((), {}, False),
        (("--color", "always"), {}, True),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
    ],
)
def test_colours(shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], environment: dict[str, str],
                 coloured: bool) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert shell("run", "chain.lf", *words) == 1
    assert ("\x1b[" in shell.err) is coloured
    plain = re.sub(r"\x1b\[[\d;]*m", "", shell.err)
    assert "error[LF0501]: the input `x` was not given" in plain


class Terminal:
    """stderr on a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "coloured"), [("xterm", True), ("dumb", False)])
def test_colours_on_a_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch, term: str, coloured: bool) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["run", "chain.lf"]) == 1
    assert ("\x1b[" in screen.text) is coloured


def test_progress_appears_late_and_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for term, shown in (("xterm", True), ("dumb", False)):
        screen = Terminal()
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr(sys, "stderr", screen)
        with terminal.Terminal().progress("counting") as progress:
            progress(0.1)
            assert screen.text == ""
            progress.start -= 1.0
            progress(0.5)
            progress(0.6)
        assert ("counting" in screen.text) is shown


@pytest.mark.parametrize(("command", "code", "both"), [
    ("run long.lf x=randn --dims N=20000 --print full -o y=y.npy", 0, False), ("fuzz fails.lf --examples 9", 3, False),
    ("check fails.lf chain.lf --json", 3, True), ("run --help", 0, False),
    ("--version", 0, True), ("repl", 1, True),
    *(pytest.param(*rest, marks=pytest.mark.slow) for rest in (
        ("fmt --check fails.lf", 1, False), ("fuzz chain.lf --time 0", 1, True), ("bisect chain.lf", 0, True), ("bench no.lf", 1, True),
        ("doctor --json", 0, False), ("explain", 0, True), ("no-such-command", 2, True),
    )),
])  # fmt: skip
def test_a_reader_that_goes_away(shell: Shell, command: str, code: int, both: bool) -> None:
    """The command goes on, and ends as it does where all is read: with its exit code, its files, and no message."""
    shell.write("long.lf", "input x: f32[N]  output y = x")
    shell.write("fails.lf", "input x:f32[N]\noutput y = x\ncheck all(x != x)\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = python("-m", "loopfuse", *command.split(), cwd=shell.folder, input="nothing\n1 + 1\n", capture_output=False,
                      stdout=writer, stderr=writer if both else subprocess.PIPE)  # fmt: skip
    finally:
        os.close(writer)
    assert done.returncode == code
    assert both or not {"Traceback", "Broken", "ignored"} & set(re.findall(r"\w+", done.stderr))
    assert "-o" not in command or np.load(shell.folder / "y.npy").shape == (20000,)


@pytest.mark.parametrize(("words", "where", "code"), [
    ("run chain.lf x=x.npy", ">/dev/full", 1), ("run --help", ">/dev/full", 1), ("--version", ">/dev/full", 1),
    ("run chain.lf x=x.npy", ">&-", 0), ("--version", ">&-", 0),
])  # fmt: skip
def test_results_that_cannot_be_written(shell: Shell, words: str, where: str, code: int) -> None:
    command = f"{sys.executable} -m loopfuse {words} {where}"
    done = subprocess.run(["bash", "-c", command], cwd=shell.folder, capture_output=True, text=True,
                          env=environment(), check=False, timeout=60)  # fmt: skip
    assert done.returncode == code
    assert done.stderr == ("loopfuse: the results cannot be written: No space left on device\n" if code else "")


def test_ctrl_c_while_modules_load(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loopfuse.cli.import_module", interrupt)
    assert shell("run", "chain.lf") == 130
    assert shell.err == "interrupted\n"


def test_ctrl_c(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "compile_source", interrupt)
    assert shell("run", "chain.lf") == 130
    assert shell.err == "interrupted\n"


def test_ctrl_c_in_a_process(shell: Shell) -> None:
    shell.write("slow.lf", "input x: f32[N]\nscan t in 0..100000000 carry (h = 0.0) { next h = h + x[0] }\noutput h\n")
    # A job in the background of a shell inherits an ignored interrupt; a user's terminal does not.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from loopfuse.cli import main; "
        "print('ready', flush=True); raise SystemExit(main(['run', 'slow.lf', 'x=x.npy']))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=shell.folder, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=environment())  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    try:
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert err == "interrupted\n"


@pytest.mark.parametrize("bug", [CompilerError("lower", "two stores", "program p()\n"), ZeroDivisionError("oops")])
def test_our_bugs_leave_a_reproducer(shell: Shell, monkeypatch: pytest.MonkeyPatch, bug: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise bug

    monkeypatch.setattr(driver, "lower", fail)
    assert shell("run", "chain.lf", "x=x.npy") == 70
    folder = Path(shell.err.split("a reproducer is in ")[1].strip())
    assert (folder / "script.lf").read_text() == CHAIN
    report = (folder / "report.txt").read_text()
    assert "stage: lower" in report
    assert "numpy:" in report
    assert "run chain.lf x=x.npy" in report
    assert (folder / "program.lfir").exists() is isinstance(bug, CompilerError)


def test_a_missing_back_end_is_the_machines_lack(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any, **__: Any) -> None:
        raise driver.MachineError("there is no GPU")

    monkeypatch.setattr(driver, "execute", lacking)
    assert shell("run", "chain.lf", "x=x.npy") == 4
    assert "no GPU" in shell.err


# -- whose mistake it is ----------------------------------------------------------------------------------------------

WRONG_WORDS = (
    "run --passes nope", "run -p q=1", "run -p a=big", "run -D Q=3", "run --dims Q=3", "run --dims N=-1", "run q=randn", "run x=uniform(0) --dims N=4",
    "run -o q=q.npy", "run --show q", "run x=randn --dims N=4 --freeze q", "check --passes nope", "check --dims Q=3", "check -p q=1", "check -D Q=3",
    "check --freeze q", "check q=randn", "fuzz --passes nope", "fuzz --dims Q=3", "fuzz -p q=1", "fuzz --each 0s", "fuzz --time -3s",
    "bisect --passes nope", "bisect --dims Q=3", "bench --passes nope", "bench --dims Q=3", "bench --sweep Q=1..4", "ir --passes nope",
    "ir --dims Q=3", "ir --specialise Q=3", "ir --device b200", "ir --device h200:speed=3", "ir --after nope", "ir --diff nope",
    "ir --only zz", "explain --passes nope", "explain --dims Q=3", "explain --dims N=-1", "explain --device b200", "explain --kernel zz",
    "explain --freeze q", "explain --why y q", "explain --why y y", "repl --passes nope", "repl --device b200",
)  # fmt: skip


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_words_that_a_command_cannot_take_exit_with_2(shell: Shell, words: str) -> None:
    """Whatever the script and the data are; and each says what there is, or what was meant."""
    command, *rest = words.split()
    assert shell(command, "chain.lf", *rest) == 2
    assert shell.err.strip() and shell.out == ""


def test_codes_that_there_are_not(shell: Shell) -> None:
    assert shell("explain", "LF9999") == 2


@pytest.mark.parametrize("words", [
    "run none.lf", "run chain.lf", "run chain.lf x=none.npy", "run chain.lf x=randn", "run chain.lf x=x.npy --dims N=7",
    "check none.lf", "bench chain.lf --compare none.json", "fuzz --replay none.json", "explain chain.lf --decisions none.toml",
    "explain none.lf", "ir --from none.lfir", "run chain.lf x=x.npy -o y=none/y.npy/z.npy/",
])  # fmt: skip
def test_files_and_data_that_are_wrong_exit_with_1(shell: Shell, words: str) -> None:
    (shell.folder / "none").write_text("a file")
    assert shell(*words.split()) == 1
    assert "error[LF" in shell.err


def test_a_script_that_is_wrong_as_the_words_are(shell: Shell) -> None:
    """Of several scripts the greatest code counts; a mistake in a script comes first, for nothing is known of its names."""
    shell.write("bad.lf", "output y = q\n")
    assert shell("check", "bad.lf", "--dims", "Q=3") == 1
    assert shell("check", "bad.lf", "chain.lf", "--dims", "Q=3") == 2


@pytest.mark.parametrize(("words", "said"), [
    ("--time -3s", "argument --time: `-3s` is no time"), ("--examples -3", "argument --examples: `-3` is no number of things"),
    ("--passes -fuse", "--passes=-fuse"), ("--time", "argument --time: expected one argument"),
    ("--time --gen", "argument --time: expected one argument"), ("--each 0s", "`0s` leaves a program no time"),
])  # fmt: skip
def test_values_that_begin_with_a_minus(shell: Shell, words: str, said: str) -> None:
    assert shell("fuzz", "chain.lf", *words.split()) == 2
    assert said in shell.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
@pytest.mark.parametrize("words", ["fuzz chain.lf --save /proc/x", "run chain.lf x=x.npy -o y=/proc/y.npy", "bench chain.lf --save /proc/b.json",
                                   "fuzz chain.lf --state /proc/s.json"])  # fmt: skip
def test_where_no_file_can_be_the_work_is_not_begun(shell: Shell, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for those who may write everywhere."""
    monkeypatch.setattr(driver, "execute", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr(Campaign, "run", lambda self: pytest.fail("it searched"))
    assert shell(*words.split()) == 1
    assert "LF0515" in shell.err and "`/proc` " in shell.err
