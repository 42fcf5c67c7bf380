"""The command line: what each command prints where, which files it writes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopfuse
from loopfuse import driver
from loopfuse.cli import COMMANDS, main, terminal
from loopfuse.diag import CompilerError
from loopfuse.views.essays import normalize, read_essays
from loopfuse.views.values import describe, summarize

CHAIN = """\
input x: f32[N]
param a: f32 = 2
size R = 3
let t = a * x + R
output y = t * t
check all(y >= 0), "squares"
"""


class Shell:
    """Runs commands in a folder of their own and keeps what they print."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capture = folder, capture
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else -1
        self.out, self.err = self.capture.readouterr()
        assert "Traceback" not in self.err
        return code

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def records(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.out.splitlines()]
        assert all(record["schema"] == 1 for record in found)
        return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # reproducers of bugs go there
    found = Shell(tmp_path, capsys)
    found.write("chain.lf", CHAIN)
    np.save(tmp_path / "x.npy", np.array([0, 1, -2], np.float32))
    return found


# -- the frame --------------------------------------------------------------------------------------------------------


def test_version_help_and_unknown_commands(shell: Shell) -> None:
    assert shell("--version") == 0
    assert shell.out == f"loopfuse {loopfuse.__version__}\n"
    assert shell("--help") == 0
    assert all(name in shell.out for name in COMMANDS)
    assert shell("help", "run") == 0
    assert "--dims" in shell.out
    assert shell() == 2
    assert shell("rnu") == 2
    assert "did you mean `loopfuse run`?" in shell.err
    assert shell("chain.lf") == 2
    assert "loopfuse run chain.lf" in shell.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(shell: Shell, command: str) -> None:
    assert shell(command, "--help") == 0
    assert "--json" in shell.out
    assert shell(command, "--no-such-option") == 2


def test_the_package_says_the_version_that_pyproject_says() -> None:
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{loopfuse.__version__}"' in text


def python(*words: str, **rest: Any) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, "PYTHONPATH": root}, **rest)  # fmt: skip


def test_version_imports_nothing_slow() -> None:
    code = "import sys, loopfuse.cli; loopfuse.cli.main(['--version']); print(*sys.modules)"
    modules = python("-c", code).stdout.split()
    assert "loopfuse.cli" in modules
    assert not {"numpy", "lark", "rich", "argparse", "PIL"} & set(modules)


def test_rich_is_imported_for_colours_only(shell: Shell) -> None:
    code = "import sys; from loopfuse.cli import main; main(['run', 'chain.lf', 'x=x.npy']); print(*sys.modules)"
    modules = python("-c", code, cwd=shell.folder).stdout.split()
    assert "numpy" in modules
    assert not {"rich", "lark"} & set(modules)


def test_as_a_module(shell: Shell) -> None:
    done = python("-m", "loopfuse", "run", "chain.lf", "x=x.npy", cwd=shell.folder)
    assert done.returncode == 0
    assert done.stdout.startswith("y  f32[3]")


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_prints_a_line_an_output(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy") == 0
    assert shell.out == "y  f32[3]  min 1  max 25  mean 11.6667  nan 0  count 3\n"
    assert shell.err == ""


def test_run_prints_values(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "--print", "full") == 0
    assert shell.out.splitlines()[1] == "[ 9., 25.,  1.]"
    assert shell("run", "chain.lf", "x=x.npy", "--print", "none", "--show", "t") == 0
    assert shell.out.splitlines() == ["t  f32[3]  min -1  max 5  mean 2.33333  nan 0  count 3", "[ 3.,  5., -1.]"]
    assert shell("run", "chain.lf", "x=x.npy", "--show", "x", "--show", "y") == 0
    assert shell("run", "chain.lf", "x=x.npy", "--show", "q") == 1
    assert "LF0502" in shell.err


def test_params_and_sizes(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "-p", "a=0", "-D", "R=7") == 0
    assert "min 49  max 49" in shell.out
    assert shell("run", "chain.lf", "x=x.npy", "-p", "b=0") == 1
    assert shell("run", "chain.lf", "x=x.npy", "-p", "a=big") == 1
    assert "LF0508" in shell.err
    assert shell("run", "chain.lf", "x=x.npy", "-D", "Q=7") == 1
    assert shell("run", "chain.lf", "x=x.npy", "-D", "R=x") == 2
    assert shell("run", "chain.lf", "x=x.npy", "-p", "a") == 2
    assert shell("run", "chain.lf", "x=x.npy", "x=x.npy") == 2


def test_generated_inputs(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=randn", "--dims", "N=2^4") == 0
    first = shell.out
    assert "f32[16]" in first
    assert shell("run", "chain.lf", "x=randn", "--dims", "N=16", "--seed", "1") == 0
    assert shell.out != first
    assert shell("run", "chain.lf", "x=randn", "--dims=N=16") == 0
    assert shell.out == first
    assert shell("run", "chain.lf", "x=randn") == 1
    assert "--dims N=.." in shell.err
    assert shell("run", "chain.lf", "x=uniform(0)", "--dims", "N=4") == 1
    assert shell("run", "chain.lf") == 1
    assert "LF0501" in shell.err


@pytest.mark.parametrize("seed", ["-1", "abc", "1.5"])
def test_seeds_are_not_negative(shell: Shell, seed: str) -> None:
    assert shell("run", "chain.lf", "x=randn", "--dims", "N=2", "--seed", seed) == 2
    assert "is no seed" in shell.err


def test_options_may_stand_between_inputs(shell: Shell) -> None:
    shell.write("two.lf", "input a: f32[N]  input b: f32[N]  output y = a + b")
    assert shell("run", "--seed", "3", "two.lf", "a=ones", "--dims", "N=4", "b=const(2)") == 0
    assert "min 3  max 3" in shell.out


def test_outputs_go_to_files(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "-o", "y=out/y.npy") == 0
    assert np.load(shell.folder / "out" / "y.npy").tolist() == [9, 25, 1]
    assert "wrote out/y.npy" in shell.err
    assert shell("run", "chain.lf", "x=x.npy", "-o", "only.npy", "-q") == 0
    assert (shell.folder / "only.npy").exists()
    assert shell.err == ""
    assert shell("run", "chain.lf", "x=x.npy", "--out-dir", "all") == 0
    assert (shell.folder / "all" / "y.npy").exists()
    assert shell("run", "chain.lf", "x=x.npy", "-o", "z=z.npy") == 1
    assert shell("run", "chain.lf", "x=x.npy", "-o", "y=y.png") == 1
    assert "LF0513" in shell.err
    assert not (shell.folder / "y.png").exists()


def test_from_is_relative_to_the_script_and_to_is_relative_to_here(shell: Shell) -> None:
    shell.write("sub/s.lf", 'input x: f32[N] from "data.npy"  output y = x * 2 to "result.npy"')
    np.save(shell.folder / "sub" / "data.npy", np.ones(2, np.float32))
    assert shell("run", "sub/s.lf") == 0
    assert (shell.folder / "result.npy").exists()
    assert shell("run", "sub/s.lf", "--out-dir", "d") == 0
    assert (shell.folder / "d" / "result.npy").exists()
    assert shell("run", "sub/s.lf", "x=x.npy") == 0
    assert "f32[3]" in shell.out


def test_errors_in_files_point_into_the_script(shell: Shell) -> None:
    shell.write("s.lf", 'input x: f32[N]\n  from "nothing.npy"\noutput y = x')
    assert shell("run", "s.lf") == 1
    assert "s.lf:2:8" in shell.err
    assert "^^^^^^^^^^^^^" in shell.err


def test_scripts_from_stdin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    done = python("-m", "loopfuse", "run", "-", "x=x.npy", cwd=shell.folder, input=CHAIN)
    assert done.returncode == 0
    assert "f32[3]" in done.stdout


def test_scripts_that_cannot_be_read(shell: Shell) -> None:
    assert shell("run", "no.lf") == 1
    assert "LF0510" in shell.err
    assert shell("run", ".") == 1
    (shell.folder / "latin.lf").write_bytes(b"# caf\xe9")
    assert shell("run", "latin.lf") == 1
    assert "UTF-8" in shell.err
    assert shell("run", "a\0b.lf") == 1


def test_a_byte_order_mark_is_no_text(shell: Shell) -> None:
    (shell.folder / "bom.lf").write_bytes(b"\xef\xbb\xbf" + CHAIN.encode())
    assert shell("run", "bom.lf", "x=x.npy") == 0


def test_names_that_the_terminal_cannot_show(shell: Shell) -> None:
    (shell.folder / "größe.lf").write_text("input x: f32[N]  output y = größe")
    root = str(Path(__file__).resolve().parents[1])
    for name in ("größe.lf".encode(), b"\xff.lf"):
        done = subprocess.run([sys.executable.encode(), b"-m", b"loopfuse", b"run", name], capture_output=True, check=False,
                              cwd=shell.folder, env={**os.environ, "PYTHONPATH": root, "PYTHONIOENCODING": "ascii"})  # fmt: skip
        assert done.returncode == 1
        assert b"error[LF" in done.stderr


def test_names_that_python_reserves(shell: Shell) -> None:
    shell.write("s.lf", "input class: f32[N]  output _y = class * 2")
    assert shell("run", "s.lf", "class=x.npy") == 0
    assert shell.out.startswith("_y")


def test_faults_are_errors_at_their_place(shell: Shell) -> None:
    shell.write("g.lf", "input x: f32[M]\ninput k: i32[N]\nlet y[n] = x[k[n]]\noutput y\n")
    np.save(shell.folder / "k.npy", np.array([0, 9], np.int32))
    assert shell("run", "g.lf", "x=x.npy", "k=k.npy", "-o", "y.npy") == 1
    assert "LF0704" in shell.err
    assert "g.lf:3:" in shell.err
    assert not (shell.folder / "y.npy").exists()


def test_memory_is_refused_before_it_is_taken(shell: Shell) -> None:
    shell.write("big.lf", "input x: f32[N]  let t[i, j in 0..N] = x[i] * x[j]  output t  output y = sum(t)")
    assert shell("run", "big.lf", "x=ones", "--dims", "N=2000000") == 1
    assert "LF0509" in shell.err
    assert "TiB" in shell.err
    assert shell("run", "big.lf", "x=ones", "--dims", "N=100", "--limit", "1k") == 1
    assert shell("run", "big.lf", "x=ones", "--dims", "N=100", "--limit", "much") == 2


def test_times(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "--time") == 0
    assert re.search(r"check +\d+\.\d+ ms", shell.err)
    assert "total" in shell.err


def test_json(shell: Shell) -> None:
    np.save(shell.folder / "n.npy", np.array([np.nan, np.inf], np.float32))
    assert shell("run", "chain.lf", "x=n.npy", "--json") == 0
    (record,) = shell.records()
    assert record["name"] == "y"
    assert record["dtype"] == "f32"
    assert record["shape"] == [2]
    assert (record["nan"], record["count"], record["max"]) == (1, 2, "inf")
    assert "f32[2]" in shell.err
    shell.write("big.lf", "input k: i64[N]  output y = k + 1  output b = k > 0")
    np.save(shell.folder / "k.npy", np.array([2**53, -1]))
    assert shell("run", "big.lf", "k=k.npy", "--json", "--print", "full") == 0
    assert [r["values"] for r in shell.records()] == [[2**53 + 1, 0], [True, False]]
    assert shell("run", "chain.lf", "x=no.npy", "--json") == 1
    (record,) = shell.records()
    assert record["code"] == "LF0510"
    assert "LF0510" in shell.err


def test_summaries() -> None:
    assert describe(summarize(np.zeros((0, 2), np.float32))) == "f32[0, 2]  min -  max -  mean -  nan 0  count 0"
    assert describe(summarize(np.full(2, np.nan))) == "f64[2]  min -  max -  mean -  nan 2  count 2"
    assert describe(summarize(np.array(7, np.uint8))).startswith("u8  min 7  max 7")
    assert "min false  max true  mean 0.5" in describe(summarize(np.array([True, False])))
    assert "max 18446744073709551615" in describe(summarize(np.array([2**64 - 1], np.uint64)))


# -- check ------------------------------------------------------------------------------------------------------------


def test_check_runs_checks(shell: Shell) -> None:
    assert shell("check", "chain.lf") == 0
    assert "1 of 1 checks hold" in shell.out
    assert "made-up data for x" in shell.err
    assert shell("check", "--static", "chain.lf") == 0
    assert shell("check", "--static", "chain.lf", "x=x.npy") == 2
    assert shell("check") == 2


def test_failed_checks_show_where(shell: Shell) -> None:
    shell.write("bad.lf", 'input x: f32[N]\nlet y = x * 2\noutput y\ncheck all(y <= 1), "small"\ncheck sum(y) == -1\n')
    assert shell("check", "bad.lf", "x=x.npy") == 3
    assert "LF0613" in shell.err
    assert "first at [1]: `y` is 2.0, `1` is 1.0" in shell.err
    assert "bad.lf:4:" in shell.err
    assert "0 of 2 checks hold" in shell.out
    assert shell("check", "bad.lf", "chain.lf", "x=x.npy") == 3


def test_check_reports_every_script(shell: Shell) -> None:
    shell.write("broken.lf", "let y = \noutput y")
    assert shell("check", "broken.lf", "chain.lf") == 1
    assert "LF01" in shell.err
    assert "chain.lf: ok" in shell.out
    assert shell("check", "--json", "broken.lf", "chain.lf") == 1
    assert [r["ok"] for r in shell.records() if r.get("kind") == "check"] == [False, True]


# -- ir, fmt, explain, new, doctor ------------------------------------------------------------------------------------


def test_ir(shell: Shell) -> None:
    assert shell("ir", "chain.lf", "--no-gutter") == 0
    text = shell.out
    assert "kernel" in text
    assert "# @4" not in text
    shell.write("p.lfir", text)
    assert shell("ir", "--from", "p.lfir") == 0
    assert shell.out == text
    assert shell("ir", "chain.lf") == 0
    assert "# @4" in shell.out
    assert shell("ir", "chain.lf", "-o", "q.lfir") == 0
    assert shell.out == ""
    assert (shell.folder / "q.lfir").read_text().startswith("program")


def test_ir_listings(shell: Shell) -> None:
    assert shell("ir", "chain.lf", "--types") == 0
    assert re.search(r"let +t +f32\[N\]", shell.out)
    shell.write(
        "s.lf", "input x: f32[N]\nlet y[i in 0..N-1] = x[i + 1] - x[i]\nlet z[i in 0..8] = x[i]\noutput y\noutput z\n"
    )
    assert shell("ir", "s.lf", "--ranges") == 0
    assert "i in 0..N - 1" in shell.out
    assert re.search(r"3 +implied +.*N.*8", shell.out)
    assert shell("ir", "chain.lf", "--stats") == 0
    assert re.search(r"stores +2", shell.out)
    assert shell("ir", "chain.lf", "--emit", "ast") == 0
    assert "ParamDecl name='a'" in shell.out
    assert shell("ir", "chain.lf", "--emit", "typed") == 0
    assert "Define buffer='t'" in shell.out
    assert shell("ir", "chain.lf", "--json") == 0
    assert shell.records()[0]["text"].startswith("program")


def test_ir_of_wrong_text(shell: Shell) -> None:
    shell.write("p.lfir", "program p()\nkernel k1\n  y[] = 1.0f32\n")
    assert shell("ir", "--from", "p.lfir") == 1
    assert "LF08" in shell.err
    assert shell("ir", "--from", "p.lfir", "chain.lf") == 2
    assert shell("ir") == 2
    assert shell("ir", "--from", "p.lfir", "--types") == 2
    shell.write(
        "q.lfir", "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[0] = x[i]\n"
    )
    assert shell("ir", "--from", "q.lfir") == 1
    assert "LF0810" in shell.err
    shell.write(
        "r.lfir", "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[i] = x[i + 1]\n"
    )
    assert shell("ir", "--from", "r.lfir") == 1
    assert "`i + 1` may be outside axis 0 of `x`" in shell.err


def test_fmt(shell: Shell) -> None:
    shell.write("f.lf", "input   x:f32[N]   # data\noutput y=x+1\n")
    assert shell("fmt", "--check", "f.lf") == 1
    assert "f.lf" in shell.out
    assert shell("fmt", "--diff", "f.lf") == 1
    assert "-input   x:f32[N]   # data" in shell.out
    os.chmod(shell.folder / "f.lf", 0o640)
    assert shell("fmt", "f.lf") == 0
    text = (shell.folder / "f.lf").read_text()
    assert "# data" in text
    assert "output y = x + 1" in text
    assert (shell.folder / "f.lf").stat().st_mode & 0o777 == 0o640
    assert shell("fmt", "--check", "f.lf") == 0
    assert shell("fmt", "f.lf", "no.lf") == 1
    shell.write("b.lf", "let = 3")
    assert shell("fmt", "b.lf", "f.lf") == 1
    assert (shell.folder / "b.lf").read_text() == "let = 3"


def test_fmt_from_stdin(shell: Shell) -> None:
    done = python("-m", "loopfuse", "fmt", "-", cwd=shell.folder, input="output y=1+2")
    assert done.returncode == 0
    assert done.stdout == "output y = 1 + 2\n"


def test_explain(shell: Shell) -> None:
    assert shell("explain", "LF0503") == 0
    assert shell.out.startswith("LF0503 data of another element type\n")
    assert shell("explain", "503") == 0
    assert shell("explain") == 0
    assert len(shell.out.splitlines()) == len(read_essays())
    assert shell("explain", "LF9999") == 1
    assert "no error code" in shell.err
    assert normalize("error[LF0304]") == "LF0304"


def used_codes() -> set[str]:
    root = Path(loopfuse.__file__).parent
    return {
        code for path in root.rglob("*.py") for code in re.findall(r'"(LF\d{4})"', path.read_text(encoding="utf-8"))
    }


def test_every_code_has_an_essay() -> None:
    essays = read_essays()
    missing = used_codes() - essays.keys() - {"LF0001"}
    assert not missing, f"codes.md lacks {', '.join(sorted(missing))}"
    assert list(essays) == sorted(essays)
    for code, essay in essays.items():
        assert len(essay.splitlines()) >= 3, code


def test_new(shell: Shell) -> None:
    assert shell("new", "first") == 0
    assert shell.out == "wrote first.lf\n"
    assert shell("new", "first.lf") == 1
    assert "LF0515" in shell.err
    assert shell("check", "first.lf") == 0
    assert shell("fmt", "--check", "first.lf") == 0, "what `new` writes is laid out"
    for line in (shell.folder / "first.lf").read_text().splitlines():
        if line.startswith("#   loopfuse ") and "data.npy" not in line:
            assert shell(*line.removeprefix("#   loopfuse ").split()) == 0, line
    assert shell("new", "no/such/folder/x") == 1


def test_doctor(shell: Shell) -> None:
    assert shell("doctor") == 0
    assert "numpy" in shell.out
    assert "library" in shell.out
    assert shell("doctor", "--json") == 0
    assert {"python", "cache", "error codes"} <= {r["subject"] for r in shell.records()}


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


def test_a_reader_that_goes_away(shell: Shell) -> None:
    shell.write("many.lf", "input x: f32[N]  output y = x")
    command = f"{sys.executable} -m loopfuse run many.lf x=randn --dims N=20000 --print full | head -n 1"
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=shell.folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": root}, check=False, timeout=60)  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(("where", "code"), [(">/dev/full", 1), (">&-", 0)], ids=["a full disk", "closed"])
def test_results_that_cannot_be_written(shell: Shell, where: str, code: int) -> None:
    command = f"{sys.executable} -m loopfuse run chain.lf x=x.npy {where}"
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(["bash", "-c", command], cwd=shell.folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": root}, check=False, timeout=60)  # fmt: skip
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
    root = str(Path(__file__).resolve().parents[1])
    child = subprocess.Popen([sys.executable, "-c", code], cwd=shell.folder, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})  # fmt: skip
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
