"""The README: its commands print what it shows, and its Python runs."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from loopfuse.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def refreshed(text: str) -> str:
    """The text with what its console blocks show replaced by what their commands print now."""

    def rerun(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT):
            assert main(shlex.split(block[1])) == 0
        return f"```console\n$ loopfuse {block[1]}\n{printed.getvalue()}```"

    return re.sub(r"```console\n\$ loopfuse (.*?)\n.*?```", rerun, text, flags=re.DOTALL)


def test_console_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path))
    assert refreshed(README) == README, "`python -m tests.test_readme` writes the README anew"


def test_the_script_is_that_of_the_example() -> None:
    (script,) = re.findall(r"```lf\n(.*?)```", README, re.DOTALL)
    text = (ROOT / "examples" / "06_softmax.lf").read_text(encoding="utf-8")
    assert script == "".join(line + "\n" for line in text.splitlines() if line and not line.startswith("#"))


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    square = np.ones((2, 2), np.float32)
    names = {"a": square, "b": square, "c": square, "x": square}
    exec(code, names)
    assert names["y"].tolist() == [[3, 3], [3, 3]]
    assert names["p"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert "kernel" in capsys.readouterr().out


def test_the_first_commands_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = re.findall(r"^    make ([a-z-]+)", README, re.MULTILINE)
    assert commands == ["demo", "test"]
    assert set(commands) <= targets


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


if __name__ == "__main__":
    (ROOT / "README.md").write_text(refreshed(README), encoding="utf-8")
