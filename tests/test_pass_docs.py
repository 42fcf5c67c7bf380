"""docs/passes.md, docs/fusion.md and docs/adding-a-pass.md: what they show is what the tool prints.

In the order of a page: a block of `lf` with its name in the first line, and any block with a file name after its language,
becomes a file, all in one folder; `python` without one is run; in `console` each `$ ` line is run and what follows it is what it printed
(`fails`: with another exit code than 0; `times`: measured times are not compared). Tables between `<!-- name -->` and
`<!-- end -->` are made from the code. `pytest tests/test_pass_docs.py --bless` writes the pages anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from golden import SEPARATOR
from pass_checks import apply

from loopfuse import passes
from loopfuse.cli import main
from loopfuse.devices import DEFAULT, PRESETS, Device
from loopfuse.passes import PIPELINE, Pass
from loopfuse.printer import print_program

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("passes.md", "fusion.md", "adding-a-pass.md")
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TIME = re.compile(r" *\d[\d.]* (?:us|ms|s)\b")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples, in which pages run; passes that they register go again."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for added in passes.pipeline():
        if added not in PIPELINE:
            passes.unregister(added.name)
    for name in set(sys.modules) - known:
        if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).parent == tmp_path:
            del sys.modules[name]


def printed(line: str) -> tuple[str, int]:
    """What a command prints, and its exit code."""
    program, *words = shlex.split(line)
    out = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if program == "loopfuse":
            code = main(words)
        elif program == "python":
            runpy.run_path(words[0], run_name="__main__")
        else:
            assert program == "cat", line
            out.write(Path(words[0]).read_text(encoding="utf-8"))
    return out.getvalue(), code


def rerun(block: re.Match[str]) -> str:
    """A block as it should be, its commands run and its files written."""
    language, rest, text = block["language"], block["rest"].strip(), block["text"]
    named = re.match(r"# (\w+\.lf)\n", text) if language == "lf" else None
    if language == "console":
        made = ""
        for line in text.splitlines():
            if line.startswith("$ "):
                out, code = printed(line[2:])
                assert (code == 0) != (rest == "fails"), f"{line}: exit code {code}\n{out}"
                made += f"{line}\n{out}{'' if out.endswith(chr(10)) or not out else chr(10)}"
        made = re.sub(r"[ \t]+$", "", made, flags=re.MULTILINE).rstrip("\n") + "\n"
        if rest == "times" and TIME.sub(" T", made) == TIME.sub(" T", text):
            made = text
        return f"```{language}{block['rest']}\n{made}```"
    if named or "." in rest:
        file = Path(named[1] if named else rest)
        Path(file.name).write_text(text, encoding="utf-8")
    elif language == "python":
        exec(compile(text, "page", "exec"), {})
    return block[0]


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_what_the_tool_prints(name: str, folder: Path, bless: bool) -> None:
    old = page(name)
    new = tabled(BLOCK.sub(rerun, old))
    if bless and new != old:
        (ROOT / "docs" / name).write_text(new, encoding="utf-8")
        return
    assert new == old, "if this is right: pytest tests/test_pass_docs.py --bless"


# -- tables -----------------------------------------------------------------------------------------------------------


def pass_rows() -> Iterator[str]:
    yield "| # | pass | what it does | results |"
    yield "|---|---|---|---|"
    for number, p in enumerate(PIPELINE, 1):
        yield f"| {number} | [{p.name}](#{p.name}) | {p.sentence} | {'may round' if p.rounds else 'to the bit'} |"


def device_rows() -> Iterator[str]:
    yield "| `--device` | | memory | cache | f32 | special | matrix units, f16 | units | launch |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, d in PRESETS.items():
        yield f"| `{key}`{' (default)' if key == DEFAULT else ''} | {' | '.join(cells(d))} |"


def cells(d: Device) -> Iterator[str]:
    yield d.name
    yield f"{d.bandwidth / 1e9:.0f} GB/s"
    yield f"{d.cache_bandwidth / 1e9:.0f} GB/s"
    yield f"{d.fp32 / 1e12:.3g} Tflop/s"
    yield f"{d.special / 1e12:.3g} T/s"
    yield f"{d.matrix['f16'] / 1e12:.0f} Tflop/s" if "f16" in d.matrix else "-"
    yield str(d.units)
    yield f"{d.graph_launch * 1e6:.3g} us"


TABLES: dict[str, Callable[[], Iterator[str]]] = {"passes": pass_rows, "devices": device_rows}


def tabled(text: str) -> str:
    """The page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n" + "".join(f"{row}\n" for row in TABLES[found[1]]()) + "<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL)


# -- what a page speaks of ---------------------------------------------------------------------------------------------


def test_every_pass_has_its_section_in_order() -> None:
    headings = re.findall(r"^### (\w+)$", page("passes.md"), re.MULTILINE)
    assert headings == [p.name for p in PIPELINE]


def test_every_pass_is_shown_at_work() -> None:
    sections = re.split(r"^### ", page("passes.md"), flags=re.MULTILINE)[1:]
    for p, section in zip(PIPELINE, sections, strict=True):
        shown = section.split("\n## ")[0]
        assert re.search(r"^ *\d* +[-+~] ", shown, re.MULTILINE), f"no difference is shown of {p.name}"


def test_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("ir", "explain", "check", "bisect", "repl", "run"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)) | {"--bless"}
    for name in PAGES:
        prose = BLOCK.sub("", page(name))
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", prose)) <= known, name


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    text = BLOCK.sub("", page(name))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        there = (ROOT / "docs" / file) if file else ROOT / "docs" / name
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_the_pass_of_the_guide_does_what_its_test_says(folder: Path) -> None:
    files = {b["rest"].strip(): b["text"] for b in BLOCK.finditer(page("adding-a-pass.md")) if "." in b["rest"]}
    (folder / "along.py").write_text(files["loopfuse/passes/along.py"], encoding="utf-8")
    made = runpy.run_path("along.py")["PASS"]
    assert isinstance(made, Pass)
    given, found, expected = files["tests/passes/along/turned.ir"].partition(SEPARATOR)
    assert found
    stage = apply(made, given)
    assert print_program(stage.program) + "".join(f"; {r.text}\n" for r in stage.remarks) == expected
    assert apply(made, stage.program).program is stage.program
