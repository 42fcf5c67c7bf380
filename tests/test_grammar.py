"""The grammar itself: strict LALR(1), and the tables that are driven without lark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lark import Lark, Token, Tree
from syntax_tools import SCRIPTS, read

from loopfuse.diag import Source
from loopfuse.frontend import lalr
from loopfuse.frontend.build import Builder
from loopfuse.frontend.lexemes import STARTERS, scan

PACKAGE = Path(lalr.__file__).parents[2]


@pytest.fixture(scope="module")
def strict() -> Lark:
    return Lark(lalr.grammar_text(), parser="lalr", strict=True, start=list(lalr.STARTS), propagate_positions=False)


def test_strict_lalr_parses_every_script(strict: Lark) -> None:
    assert len(SCRIPTS) > 50
    for path in SCRIPTS:
        strict.parse(read(path), start="start")


def test_no_collisions_behind_the_lookaheads() -> None:
    """A lookahead switches off lark's collision check for its terminal, so it is made once more without any."""
    text = lalr.grammar_text()
    plain = re.sub(r"NAME:      /.*/", r"NAME: /[^\\W\\d]\\w*/", text)
    plain = re.sub(r"NUMBER:    /.*/", r"NUMBER: /[0-9][0-9a-z_]*/", plain)
    assert "(?!" not in plain
    Lark(plain, parser="lalr", strict=True, start=list(lalr.STARTS))


def test_a_conflict_would_be_seen() -> None:
    broken = lalr.grammar_text().replace("range:     arith _DOTS arith", "range:     expr _DOTS expr")
    with pytest.raises(Exception, match=r"Reduce/Reduce|Shift/Reduce|conflict"):
        Lark(broken, parser="lalr", strict=True, start=list(lalr.STARTS))


class _Shape:
    """A builder that records which rules reduce, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> object:
        def note(children: list[object], start: int, end: int) -> str:
            self.seen.append(name)
            return name

        return note


def _rules(tree: Tree[Token]) -> list[str]:
    names: list[str] = []
    for node in tree.iter_subtrees():
        names.append(str(node.data))
    return names


def test_the_driver_reduces_what_lark_reduces(strict: Lark) -> None:
    for path in SCRIPTS[::3]:
        shape = _Shape()
        lalr.tables().parse(read(path), "start", shape)
        # lark makes no node for a wrapper of one child, and neither does the driver.
        theirs = _rules(strict.parse(read(path), start="start"))
        ours = [name for name in shape.seen if name not in ("type", "args", "updates")]
        assert sorted(ours) == sorted(n for n in theirs if n not in ("type", "args", "updates")), path.name


def test_every_rule_has_a_method() -> None:
    builder = Builder(Source("x", ""))
    names = {rule.name for rule in lalr.tables().rules if rule.name}
    assert len(names) > 50
    assert {name for name in names if not callable(getattr(builder, name, None))} == set()


def test_words_of_the_grammar_are_the_words_of_the_scanner() -> None:
    keywords = re.search(r"NAME: +/\(\?!\(([^)]*)\)", lalr.grammar_text())
    assert keywords
    assert set(keywords[1].split("|")) >= STARTERS


def test_the_scanner_sees_the_tokens_of_the_grammar() -> None:
    lark = Lark(lalr.grammar_text(), parser="lalr", start=list(lalr.STARTS), keep_all_tokens=True)
    for path in SCRIPTS:
        tree = lark.parse(read(path), start="start")
        theirs = [str(t) for t in tree.scan_values(lambda v: isinstance(v, Token))]
        ours = [lexeme.text for lexeme in scan(read(path))[:-1]]
        assert "".join(ours) == "".join(theirs), path.name


# -- the cache --------------------------------------------------------------------------------------------------------


def _fresh(monkeypatch: pytest.MonkeyPatch, folder: Path) -> lalr.Tables:
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(folder))
    lalr.tables.cache_clear()
    try:
        return lalr.tables()
    finally:
        lalr.tables.cache_clear()


def test_tables_are_cached_and_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = _fresh(monkeypatch, tmp_path / "new")
    files = list((tmp_path / "new").iterdir())
    assert [f.suffix for f in files] == [".json"]
    monkeypatch.setattr(lalr, "build", lambda text: pytest.fail("the cache was not used"))
    again = _fresh(monkeypatch, tmp_path / "new")
    assert (again.actions, again.gotos, again.rules) == (built.actions, built.gotos, built.rules)
    assert (again.starts, again.words, again.terminals) == (built.starts, built.words, built.terminals)


@pytest.mark.parametrize("damage", [b"", b"x", b"half", b"\x00" * 400])
def test_a_damaged_cache_is_rebuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: bytes) -> None:
    _fresh(monkeypatch, tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[: len(good) // 2] if damage == b"half" else damage)
    _fresh(monkeypatch, tmp_path).parse("let x = 1", "start", Builder(Source("x", "")))
    assert lalr._load(file) is not None


def test_a_valid_checksum_over_a_changed_table_does_not_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fresh(monkeypatch, tmp_path)
    (file,) = tmp_path.iterdir()
    digest, body = file.read_bytes().split(b"\n", 1)
    table = json.loads(body)
    table["rules"][0][1] += 1
    file.write_bytes(digest + b"\n" + json.dumps(table).encode())
    _fresh(monkeypatch, tmp_path).parse("let x = 1", "start", Builder(Source("x", "")))


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    made = _fresh(monkeypatch, tmp_path / "file" / "inside")
    assert made.parse("let x = 1", "start", Builder(Source("x", ""))).body


def test_start_up_imports_no_lark(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import loopfuse.frontend.parse as p\n"
        "from loopfuse.diag import Source\n"
        "assert 'lark' not in sys.modules, 'import'\n"
        "p.parse(Source('x', 'input x: f32[N]\\noutput y = x * 2 + 1\\n'))\n"
        "assert 'lark' not in sys.modules, 'parse'\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "LOOPFUSE_CACHE_DIR": str(tmp_path)}
    build = "from loopfuse.frontend.lalr import tables; tables()"
    subprocess.run([sys.executable, "-c", build], env=env, check=True)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
