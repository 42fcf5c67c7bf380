"""The command line: what each command prints where, which files it writes; how scripts run is test_cli_run, how commands
end test_cli_ends."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from cli_shell import Shell, chain_shell, python

import loopfuse
from loopfuse.cli import COMMANDS
from loopfuse.views.essays import normalize, read_essays

shell = chain_shell


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


def test_version_imports_nothing_slow() -> None:
    code = "import sys, loopfuse.cli; loopfuse.cli.main(['--version']); print(*sys.modules)"
    modules = python("-c", code).stdout.split()
    assert "loopfuse.cli" in modules
    assert not {"numpy", "lark", "rich", "argparse", "PIL"} & set(modules)


def test_rich_is_imported_for_colours_only(shell: Shell) -> None:
    code = "import sys; from loopfuse.cli import main; main(['run', 'chain.lf', 'x=x.npy']); print(*sys.modules)"
    modules = [python("-c", code, cwd=shell.folder).stdout.split() for _ in range(2)][
        1
    ]  # the first may make parse tables
    assert "numpy" in modules
    assert not {"rich", "lark"} & set(modules)


def test_as_a_module(shell: Shell) -> None:
    done = python("-m", "loopfuse", "run", "chain.lf", "x=x.npy", cwd=shell.folder)
    assert done.returncode == 0
    assert done.stdout.startswith("y  f32[3]")


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


TENTH = "input x: {0}[N]\nparam a: {0} = 0.1\nrequire N >= 1\noutput y = x * 0 + a\ncheck all(y > 0.25)\n"


@pytest.mark.parametrize(("dtype", "tenth"), [("f32", "0.1"), ("f64", "0.1"), ("f16", "0.1"), ("bf16", "0.100098")])
def test_a_number_is_written_in_one_way(shell: Shell, dtype: str, tenth: str) -> None:
    """By the fewest digits that its type tells it by, in messages, data and JSON."""
    shell.write("t.lf", TENTH.format(dtype))
    assert shell("check", "t.lf", "x=ones", "--dims", "N=2") == 3
    assert f"`y` is {tenth}, `0.25` is 0.25" in shell.err
    assert shell("fuzz", "t.lf", "x=ones", "--dims", "N=2", "-p", "a=0.1", "--examples", "3", "--json") == 3
    (found,) = shell.records("failure")
    assert f"`y` is {tenth}," in found["problem"]
    assert "000001" not in shell.out and "0.0999" not in shell.out


def test_a_failure_as_json_has_its_data(shell: Shell) -> None:
    """What the text shows; of much data how to get it."""
    text = "input x: f32[N]\nparam a: f32\nrequire N >= {}\ncheck all(x != 0.1)\noutput y = x * a\ncheck all(y == y or x != 0.1)\n"
    for count in (2, 3000):
        shell.write("t.lf", text.format(count))
        np.save(shell.folder / "t.npy", np.full(count, 0.1, np.float32))
        assert shell("fuzz", "t.lf", "x=t.npy", "--examples", "20", "--json") == 3
        (found,) = shell.records("failure")
        data = found["inputs"]["x"]
        assert (data["dtype"], data["shape"]) == ("f32", [count])
        if count < 1000:
            assert 0.1 in data["values"] and set(data["values"]) <= {0.0, 0.1} and "left_out" not in data
        else:
            assert data["values"] is None and data["left_out"] == f"{count} elements; --save DIR keeps them"
        assert found["saved"] is None and isinstance(found["params"], dict)


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
    assert shell("explain", "LF9999") == 2
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
