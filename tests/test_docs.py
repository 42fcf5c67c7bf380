"""The pages of docs/: every script compiles, or is refused as they say; the tutorial runs from top to bottom."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopfuse.cli import main
from loopfuse.diag import Source, UserError
from loopfuse.driver import compile_source, lower_program

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("language.md", "tutorial.md", "testing.md")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what follows that, its text, and the line where it begins."""

    page: str
    line: int
    language: str
    rest: str
    text: str

    @property
    def id(self) -> str:
        """A name for a test."""
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, text[: m.start()].count("\n") + 1, m[1], m[2].strip(), m[3]) for m in found]


SCRIPTS = [b for page in PAGES for b in blocks(page) if b.language == "lf"]


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda b: b.id)
def test_script_compiles_or_is_refused_as_the_page_says(block: Block) -> None:
    wanted = re.fullmatch(r"(?:error=(LF\d{4}))?", block.rest)
    assert wanted, f"what is `{block.rest}`?"
    source = Source(block.id, block.text)
    if wanted[1] is None:
        lower_program(compile_source(source).typed)
        return
    with pytest.raises(UserError) as refusal:
        compile_source(source)
    assert [d.code for d in refusal.value.diagnostics] == [wanted[1]]


def test_the_pages_hold_scripts() -> None:
    assert len(SCRIPTS) > 25
    assert sum(b.rest.startswith("error=") for b in SCRIPTS) >= 6


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    page = blocks("tutorial.md")
    for block in (b for b in page if b.language == "lf"):
        name = re.match(r"# (\w+\.lf)\n", block.text)
        assert name, f"{block.id} has no file name"
        (tmp_path / name[1]).write_text(block.text, encoding="utf-8")
    said = ""
    for block in page:
        if block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith("$ loopfuse "), line
                code = main(shlex.split(line)[2:])
                told = capsys.readouterr()
                said = told.out + told.err
                assert (code == 0) != (block.rest == "fails"), f"{line}: exit code {code}\n{said}"
        elif block.language == "text":
            assert block.text.strip() in said, f"{block.id} shows what was not said"
        elif block.language == "python":
            exec(compile(block.text, block.id, "exec"), {})
    assert (tmp_path / "edges.png").exists()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        assert not file or (ROOT / "docs" / file).exists(), target
        assert file or anchor in headings, target
