"""A session to talk to, on a script in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopfuse.diag import render
from loopfuse.repl.replies import Reply
from loopfuse.repl.shell import Shell

ROOT = Path(__file__).resolve().parents[1]
SOFTMAX = """\
# rows
input x: f32[B, N]
let m[b] = max(x[b, j] for j)   # the greatest
let e[b, j] = exp(x[b, j] - m[b])
let p[b, j] = e[b, j] / sum(e[b, k] for k)
output p
check close(sum(p, axis=-1), 1, rtol=1e-5)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "s.lf").write_text(SOFTMAX, encoding="utf-8")
    return tmp_path


class Talk:
    """A session to talk to: what a line shows, with its errors."""

    def __init__(self) -> None:
        self.shell = Shell()
        self.reply = Reply()

    def __call__(self, line: str) -> str:
        self.reply = self.shell.enter(line)
        return self.reply.text

    @property
    def errors(self) -> str:
        return "\n".join(render(d) for d in self.reply.diagnostics)


@pytest.fixture
def talk(here: Path) -> Talk:
    return Talk()


@pytest.fixture
def softmax(talk: Talk) -> Talk:
    assert "5 statements" not in talk(":load s.lf")
    assert not talk.reply.failed
    return talk
