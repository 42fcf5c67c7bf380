"""Error files: a script with mistakes, the codes on its first line, and the messages as they are shown.

    # errors: LF0101 LF0323
    the script
    #---
    #| error[LF0101]: ...

`pytest tests/test_errors.py --bless` rewrites what follows `#---`. Positions count the first line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import loopfuse
from loopfuse.diag import Collector, Diagnostic, Source, render
from loopfuse.frontend.check import check_source
from loopfuse.frontend.parse import parse_recovering

FOLDER = Path(__file__).parent / "files" / "errors"
FILES = sorted(FOLDER.glob("*.lf"))
HEAD = re.compile(r"# (?:error|errors|warning|warnings): ((?:LF\d{4} ?)+)")
MARK = "#---\n"


def diagnose(text: str, name: str) -> list[Diagnostic]:
    """All that the front end has to say of a script."""
    collector = Collector()
    check_source(Source(name, text), search=FOLDER, collector=collector)
    return [*collector.found, *collector.errors[sum(d.level == "error" for d in collector.found) :]]


def picture(found: list[Diagnostic]) -> str:
    """The messages as comment lines."""
    lines = "\n\n".join(render(d) for d in found).split("\n")
    return "".join(f"#| {line}".rstrip() + "\n" for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_error_file(path: Path, bless: bool) -> None:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    script, mark, expected = text.partition(MARK)
    head = HEAD.match(script)
    assert head, f"{path.name} must begin with a line `# error: LFnnnn`"
    codes = head[1].split()
    assert path.stem[:6] in codes, "a file is named after one of its codes"
    found = diagnose(script, path.name)
    assert [d.code for d in found if d.level != "remark" or d.code in codes] == codes, "\n\n".join(
        render(d) for d in found
    )
    if not mark:
        return
    shown = picture(found)
    if bless and shown != expected:
        path.write_bytes((script + MARK + shown).encode("utf-8", "surrogateescape"))
    else:
        assert shown == expected, (
            f"the messages differ; if they are right: pytest tests/test_errors.py --bless\n{shown}"
        )


def test_every_syntax_code_has_a_file_and_an_essay() -> None:
    frontend = Path(loopfuse.__file__).parent / "frontend"
    said = set(re.findall(r'"(LF01\d\d)"', "".join(p.read_text("utf-8") for p in frontend.glob("*.py"))))
    essays = set(re.findall(r"^## (LF\d{4})", (frontend.parent / "codes.md").read_text("utf-8"), re.MULTILINE))
    assert said
    assert said - {p.stem[:6] for p in FILES} == set()
    assert said - essays == set()


def syntax(text: str) -> list[Diagnostic]:
    collector = Collector()
    parse_recovering(Source("fixed.lf", text), collector)
    return collector.found


def test_safe_fixes_cure() -> None:
    """A fix that is marked safe, applied, leaves one message less."""
    cured = 0
    for path in FILES:
        script = path.read_bytes().decode("utf-8", "surrogateescape").partition(MARK)[0]
        found = syntax(script)
        for diagnostic in found:
            if diagnostic.fix and diagnostic.fix.safe and diagnostic.fix.edits:
                text = script
                for span, new in sorted(diagnostic.fix.edits, key=lambda e: -e[0].start):
                    text = text[: span.start] + new + text[span.end :]
                assert len(syntax(text)) < len(found), path.name
                cured += 1
    assert cured > 5
