"""Command lines in a test: run in this process or in one of their own, in a folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopfuse.cli import main

ROOT = Path(__file__).resolve().parents[1]
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

    def records(self, kind: str = "") -> list[dict[str, Any]]:
        """The JSON lines that were printed, or those of a kind."""
        found = [json.loads(line) for line in self.out.splitlines()]
        assert all(record["schema"] == 1 for record in found)
        return [record for record in found if not kind or record["kind"] == kind]


@pytest.fixture
def chain_shell(shell: Shell) -> Shell:
    """With a script and data for it."""
    shell.write("chain.lf", CHAIN)
    np.save(shell.folder / "x.npy", np.array([0, 1, -2], np.float32))
    return shell


def environment(**more: str) -> dict[str, str]:
    """Of a process that imports this package."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def python(*words: str, **rest: Any) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, to its end."""
    rest = {"capture_output": True, **rest}
    return subprocess.run([sys.executable, *words], text=True, check=False, timeout=60, env=environment(), **rest)
