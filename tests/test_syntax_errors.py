"""Syntax messages that no error file shows: the rules they all keep, and texts that are broken at random."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from syntax_tools import SCRIPTS, read

from loopfuse.diag import Collector, Diagnostic, Source, UserError, render
from loopfuse.frontend.lexemes import STARTERS, divide, scan
from loopfuse.frontend.parse import is_incomplete, parse, parse_expr, parse_recovering

TEXTS = [read(path) for path in SCRIPTS]
WORDS = sorted({lexeme.text for text in TEXTS for lexeme in scan(text)[:-1]})
ODD = [
    "&&", "||", "!", "?", ";", "'", '"', "\\", "/*", "*/", "//", "==", "=", ":=", "->", "=>", "...", "..", "+=", "-=",
    "{", "}", "(", ")", "[", "]", "def", "lambda", "while", "print", "elif", "None", "max=", "\0", "\ud800", "\u00a0",
    "“", "²", "×", "0x", "1e999", "2x", '"a\\q"', "f32", "@", "#", "\n", "\r", "\t", "\ufeff", "\u200b", "½",
]  # fmt: skip


def found(text: str) -> list[Diagnostic]:
    collector = Collector()
    parse_recovering(Source("a.lf", text), collector)
    return collector.found


def codes(text: str) -> list[str]:
    return [d.code for d in found(text)]


def only(text: str) -> Diagnostic:
    (diagnostic,) = found(text)
    return diagnostic


# -- what single messages say -----------------------------------------------------------------------------------------


def test_the_picture_of_a_missing_operand() -> None:
    assert render(only("let y = x +\noutput y")) == (
        "error[LF0101]: expected an expression after `+`\n"
        " --> a.lf:1:11\n"
        "  |\n"
        "1 | let y = x +\n"
        "  |           ^ nothing to add\n"
        "  |\n"
        "  = note: `output` on the next line starts a new statement"
    )


def test_the_picture_of_a_bitwise_comparison() -> None:
    assert render(only("let m = x > 0 & y > 0")) == (
        "error[LF0107]: `&` binds tighter than `>`\n"
        " --> a.lf:1:13\n"
        "  |\n"
        "1 | let m = x > 0 & y > 0\n"
        "  |             ^^^^^ this groups as x > (0 & y) > 0\n"
        "  |\n"
        "  = note: `and`, `or`, `not` work element by element in .lf\n"
        "  = fix: let m = x > 0 and y > 0"
    )


@pytest.mark.parametrize(
    "text",
    [
        "let m = x & 1 == 0",
        "let m = 0 < (x & 15) < 4",
        "let m = (x > 0) & (y > 0)",
        "let m = a == b & c",
        "let m = x & y",
    ],
)
def test_bits_that_are_meant(text: str) -> None:
    assert codes(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("let y = x\n  - z", []), ("let y = (x\n- z)", []), ("let y = f(x,\n(z))", []), ("let y = x -\nz", []),
        ("let y = x\n-z", ["LF0102"]), ("  let y = x\n-z", ["LF0102"]), ("let y = x\n[0]", ["LF0102"]),
        ("let y = x\n@ z", ["LF0102"]), ("fn f(a) {\n  let y = a\n  + a\n  return y\n}", ["LF0102"]),
        ("let y = x\n+z\nlet w = x\n-z", ["LF0102", "LF0102"]), ("# note\n(x)", ["LF0110"]),
    ],
)  # fmt: skip
def test_lines_that_continue(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


MESSAGES = [
    ("x y", "LF0110", "keyword"), ("let y = f(x,\n", "LF0101", "after `,`"), ("let (a, b = x", "LF0108", "never closed"),
    ("let y = x[1)", "LF0108", "cannot close"), ("fn f(x) = {", "LF0112", "braces"), ("emit h = 1", "LF0115", "scan"),
    ("scan t in 0..3 carry (h = 1) { h = 2 }", "LF0110", "`let`"), ("output y = x to z", "LF0105", "quotes"),
    ("let y = x.T.in", "LF0103", "word"), ("let y: f32[N = x", "LF0108", "never closed"), ("require", "LF0101", "require"),
    ("let y = 3 if x", "LF0101", "`else`"), ("let y = for", "LF0101", "after `=`"), ("let y = x\n}", "LF0108", "closes"),
    ("accum h = 0 for i { h[i] += 1 }", "LF0101", "`:`"), ("import", "LF0101", "module"), ("let y[i in] = x", "LF0101", "in"),
    ("pragma 3", "LF0101", "name"), ("let y = sum(x for 3)", "LF0101", "index"), ("let y = x[::2::]", "LF0101", "after"),
    ("let y = a ? b", "LF0111", "? :"), ("let y = ++", "LF0101", "after `+`"), ("output in = x", "LF0103", "`in`"),
    ("fn f(in) = 3", "LF0103", "`in`"), ("fn f(f32) = 3", "LF0103", "f32"), ("let y[nan] = 3", "LF0103", "nan"),
    ("import nn as to", "LF0103", "`to`"), ("import f64", "LF0103", "f64"), ("let (a, pi) = f(x)", "LF0103", "pi"),
    ("accum inf: f32 = 0 for i { inf[i] += 1 }", "LF0103", "inf"), ("let y = sum(x for i8)", "LF0103", "i8"),
    ("scan t in 0..3 carry (bool = 1) { next h = 1 }", "LF0103", "bool"), ("let True = 1\nlet false = 2", "LF0103", "false"),
    ("let y = 'a'", "LF0105", "double"), ('let y = "abc', "LF0105", "ends"), ("let y = x.", "LF0101", "after `.`"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "part"), MESSAGES)
def test_messages(text: str, code: str, part: str) -> None:
    diagnostic = only(text)
    assert diagnostic.code == code, render(diagnostic)
    assert part in diagnostic.message, diagnostic.message


def test_every_expectation_is_in_words() -> None:
    """No name of a terminal reaches the user."""
    for text in ("let", "let y", "let y =", "fn f", "fn f(", "fn f(x", "scan", "scan t", "accum", "accum h", "accum h: i32",
                 "input x:", "let y = x[", "let y = f(x", "let y[", "pragma", "output y to", "import", "emit", "let y = [x for",
                 "accum h: i32 = 0 for i {", "scan t in 0..3 carry (h = 1) {", "param p", "param p: f32 =", "let y: f32["):  # fmt: skip
        message = only(text + " ]").message if text.count("[") == 0 else only(text + " )").message
        for name in ("LPAR", "RSQB", "_DOTS", "__", "NAME", "CMP", "ANON", "$"):
            assert name not in message, message


def test_errors_in_a_block_do_not_hide_others() -> None:
    text = "fn f(x) {\n  let a = x +\n  let b = x\n  let c = (x\n  return b\n}\nlet z =\noutput q"
    assert [(d.code, d.primary.line if d.primary else 0) for d in found(text)] == [
        ("LF0101", 2),
        ("LF0108", 4),
        ("LF0101", 7),
    ]


@pytest.mark.parametrize("closing", ["}", ""])
def test_nested_blocks(closing: str) -> None:
    text = (
        "scan t in 0..3 carry (h = 1) {\n  scan s in 0..3 carry (g = 2) {\n    next g = g *\n    emit e = \n  }\n"
        f"  next h = h\n{closing}\nlet z = 1\n"
    )
    assert codes(text)[:2] == ["LF0101", "LF0101"]
    assert len(codes(text)) <= 3


# -- broken at random -------------------------------------------------------------------------------------------------


def sound(text: str) -> list[Diagnostic]:
    """What is said of any text: diagnostics that can be shown, and nothing but UserError."""
    result = found(text)
    for diagnostic in result:
        assert diagnostic.primary is not None
        assert 0 <= diagnostic.primary.start <= diagnostic.primary.end <= len(text)
        assert diagnostic.message.strip()
        assert len(diagnostic.notes) <= 2
        assert render(diagnostic)
        if all(not 0xD800 <= ord(c) < 0xE000 for c in text):
            assert json.loads(diagnostic.as_json())["code"] == diagnostic.code
        for span, _ in diagnostic.fix.edits if diagnostic.fix else ():
            assert 0 <= span.start <= span.end <= len(text)
    if any(d.level == "error" for d in result):
        with pytest.raises(UserError):
            parse(Source("a.lf", text))
    else:
        parse(Source("a.lf", text))
    assert is_incomplete(text) in (True, False)
    with suppress(UserError):
        parse_expr(Source("a.lf", text))
    return result


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
@example("\x00")
@example("let \ud800 = 1")
def test_any_text(text: str) -> None:
    sound(text)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    sound(data.decode("utf-8", "surrogateescape"))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(WORDS + ODD), max_size=30), st.sampled_from([" ", "\n", ""]))
def test_any_words(words: list[str], glue: str) -> None:
    sound(glue.join(words))


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A script with one token dropped, doubled, replaced, cut or exchanged with the next."""
    text = draw(st.sampled_from(TEXTS))
    lexemes = scan(text)[:-1]
    at = draw(st.integers(0, len(lexemes) - 1))
    one, then = lexemes[at], lexemes[min(at + 1, len(lexemes) - 1)]
    kind = draw(st.sampled_from(["drop", "double", "replace", "insert", "cut", "swap"]))
    if kind == "swap" and then is not one:
        return text[: one.start] + then.text + text[one.end : then.start] + one.text + text[then.end :]
    odd = draw(st.sampled_from(WORDS + ODD))
    new = {"drop": "", "double": f"{one.text} {one.text}", "replace": odd, "insert": f"{one.text} {odd} "}
    return text[: one.start] + new.get(kind, one.text[: len(one.text) // 2]) + text[one.end :]


@settings(max_examples=150, deadline=None)
@given(broken())
def test_one_fault_makes_few_messages(text: str) -> None:
    """A single wrong token is one message; a brace or a quote may cut a statement in two."""
    assert sum(d.level == "error" for d in sound(text)) <= 2


@settings(max_examples=60, deadline=None)
@given(broken())
def test_statements_before_a_fault_are_kept(text: str) -> None:
    collector = Collector()
    script = parse_recovering(Source("a.lf", text), collector)
    first = min((d.primary.start for d in collector.found if d.primary and d.level == "error"), default=len(text))
    lexemes = scan(text)
    pieces = [p for p in divide(text, lexemes) if lexemes[p.last - 1].end < first]
    whole = [p for p in pieces[:-1] if lexemes[p.first].text in STARTERS]
    assert len(script.body) >= len(whole)
