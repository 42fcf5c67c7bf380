"""docs/cuda.md and docs/contractions.md: the kernels that they show are those that are emitted, and their Python runs.

In the order of a page: a block of `lf` or `toml` with its name in the first line becomes a file; `python` is run, on an engine that
stands for a GPU; in `console` each `$ ` line is run, through `| grep`, `| sed` and `| head` if it says so, and what follows it
is what it printed, without the lines of a kernel that say what it takes (those are the compiler's) and the list of what it calls.
`pytest tests/test_cuda_docs.py --bless` writes the pages anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_engine import EmulatedEngine, emulated
from emulator import available

from loopfuse import passes
from loopfuse.cli import main
from loopfuse.emit.program import EMITTERS
from loopfuse.schedule import SCHEDULES

__all__ = ["emulated"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cuda.md"
PAGES = (PAGE, ROOT / "docs" / "contractions.md")
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"^// takes {5}.*\n|^  registers  .*\n|^// what the kernels call, .*\n\n", re.MULTILINE)
OTHERS = {"--set", "--import-source", "--source-folders", "--tool", "--trace", "--bless"}  # of other programs, of tests


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples, in which the page runs."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path / "cache"))
    before = passes.pipeline()
    yield tmp_path
    assert passes.pipeline() == before


def printed(line: str) -> str:
    """What a command of the page prints."""
    command, *filters = (part.strip() for part in re.split(r" \| (?=grep|sed|head)", line))
    program, *words = shlex.split(command)
    assert program == "loopfuse", line
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as told:
        code = main(words)
    assert code == 0, f"{line}: exit code {code}\n{out.getvalue()}{told.getvalue()}"
    lines = LEFT_OUT.sub("", out.getvalue()).splitlines()
    for text in filters:
        lines = filtered(lines, *shlex.split(text))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def filtered(lines: list[str], program: str, *words: str) -> list[str]:
    """`grep PATTERN`, `sed -n '/FROM/,/TO/p'` and `head -n COUNT`."""
    if program == "grep":
        return [line for line in lines if re.search(words[-1], line)]
    if program == "sed":
        return list(ranges(lines, words[-1]))
    assert (program, words[0]) == ("head", "-n"), program
    return lines[: int(words[1])]


def ranges(lines: list[str], script: str) -> Iterator[str]:
    """The lines from each that matches a pattern to the next one that matches another."""
    between = re.fullmatch(r"/(.*)/,/(.*)/p", script)
    assert between, script
    inside = False
    for line in lines:
        if inside:
            yield line
            inside = not re.search(between[2], line)
        elif re.search(between[1], line):
            yield line
            inside = True


def rerun(block: re.Match[str]) -> str:
    """A block as it should be, its commands run and its files written."""
    language, rest, text = block["language"], block["rest"].strip(), block["text"]
    if language == "console":
        commands = [line for line in text.splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{line}\n{printed(line[2:])}" for line in commands) + "```"
    if language in ("lf", "toml") and (named := re.match(r"# (\w+\.lf(?:\.lock)?)\n", text)):
        Path(named[1]).write_text(text, encoding="utf-8")
    elif language == "python":
        program = compile(text, f"at `{text.splitlines()[0]}`", "exec")
        if rest != "torch" and (rest != "emulator" or available()):
            exec(program, {})
    return block[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pages_show_what_is_emitted(page: Path, folder: Path, emulated: EmulatedEngine, bless: bool) -> None:
    old = page.read_text(encoding="utf-8")
    new = BLOCK.sub(rerun, old)
    if bless and new != old:
        page.write_text(new, encoding="utf-8")
        return
    assert new == old, "if this is right: pytest tests/test_cuda_docs.py --bless"


def sections(level: str) -> list[str]:
    return re.findall(rf"^{level} (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_emitter_has_its_section() -> None:
    """And what nothing writes yet is listed as that."""
    told = {name for title in sections("###") for name in re.findall(r"\w+", title.lower())}
    assert set(EMITTERS) | {"general"} <= told
    text = PAGE.read_text(encoding="utf-8")
    (listed,) = re.findall(r"Nothing writes plans of ([^.]*?) yet", text.replace("\n", " "))
    assert set(re.findall(r"`(\w+)`", listed)) == set(SCHEDULES) - set(EMITTERS) - {"general"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_options_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("ir", "explain", "run", "bench", "cache", "doctor", "check"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    with pytest.raises(SystemExit):
        main(["cache", "clear", "--help"])
    known |= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)) | OTHERS
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", prose)) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_refusals_are_said_in_these_words() -> None:
    """What the page of contractions quotes in its tables stands in the code."""
    code = " ".join(
        path.read_text(encoding="utf-8")
        for name in ("emit", "schedule")
        for path in (ROOT / "loopfuse" / name).rglob("*.py")
    )
    code = re.sub(r"\"\s+f?\"", "", code)
    section = PAGES[1].read_text(encoding="utf-8").split("### What is refused")[1].split("\n## ")[0]
    said = [text for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for text in re.findall(r"`(.*?)`", row)]
    assert len(said) > 20
    for text in said:
        assert all(part in code for part in re.split(r" ?\.\. ?", text)), text
