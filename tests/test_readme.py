"""The README: its commands print what it shows, and its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from loopfuse.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```console\n(.*?)```", README, re.DOTALL))
def test_console_blocks(block: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    command, shown = block.split("\n", 1)
    assert main(shlex.split(command.removeprefix("$ loopfuse "))) == 0
    assert capsys.readouterr().out == shown


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
