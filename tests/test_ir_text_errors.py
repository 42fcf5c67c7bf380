"""Mistakes in IR text: the code, the marked word and the message of each; no text makes a traceback."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_programs_by_hand import PROGRAMS
from test_ir_text import DECLARED

from loopfuse.diag import UserError
from loopfuse.reader import parse_program

MISTAKES = [
    ("v = e +", "LF0801", "", "expected an expression"),
    ("v = e + * e", "LF0801", "*", "expected an expression, not `*`"),
    ("v = (e", "LF0801", "", "expected `)`"),
    ("v = e e", "LF0801", "e", "expected the end of the line, not `e`"),
    ("v = 1.5", "LF0801", ".", "a constant needs its type, as in `1.5f32`"),
    ("v = e ? e", "LF0801", "?", "unexpected character '?'"),
    ("v = e if e < e", "LF0801", "", "expected `else`"),
    (
        "v = x[i ~mirror]",
        "LF0801",
        "mirror",
        "expected one of edge, constant, wrap, reflect, symmetric, checked, not `mirror`",
    ),
    ("v = {i", "LF0801", "", "expected `}`"),
    ("v = {e < e}", "LF0801", "<", "expected `}`, not `<`"),
    ("par j <", "LF0801", "", "expected a polynomial"),
    ("par < N", "LF0801", "<", "expected an index, not `<`"),
    ("par if < N", "LF0801", "if", "expected an index, not `if`"),
    ("e", "LF0801", "", "expected `=`"),
    ("1.0f32 = e", "LF0801", "1.0f32", "expected a statement, not `1.0f32`"),
    ("v = e at {i}", "LF0801", "v", "a let has no position"),
    ("fold j < N", "LF0802", "fold", "a fold needs an accumulator"),
    ("acc q: f32 sum", "LF0802", "acc", "accumulators stand first in a fold or a prefix loop"),
    ("  v = e", "LF0802", "v", "the block is indented by 2, this line by 4"),
    ("\tv = e", "LF0802", "v", "indentation by a tab"),
    ("v = q", "LF0803", "q", "unknown name `q`"),
    ("v = q[i]", "LF0803", "q", "unknown array `q`"),
    ("v = gelu(e)", "LF0803", "gelu", "unknown operation `gelu`"),
    ("q[i] = e", "LF0803", "q", "unknown buffer `q`"),
    ("q <- e", "LF0803", "q", "unknown accumulator `q`"),
    ("v = e + k", "LF0804", "e", "the operands of `add` differ in type: f32, i64"),
    ("v = e if true else k", "LF0804", "e", "the arms are f32 and i64"),
    ("v = exp(k)", "LF0804", "exp", "`exp` is not defined for i64"),
    ("v = exp(e, e)", "LF0804", "exp", "`exp` takes 1 operands, not 2"),
    ("v = f32(e, e)", "LF0804", "f32", "`f32` takes one operand"),
    ("v = bits(e, u16)", "LF0804", "bits", "`bits` cannot read f32 as u16"),
    ("v = 300u8", "LF0804", "300u8", "300 does not fit u8"),
    ("v = 1.5i32", "LF0804", "1.5i32", None),
    ("v = 1e999999999f64", "LF0801", "1e999999999f64", "the number is too long"),
    ("v = " + "9" * 5000 + "f64", "LF0801", "9" * 5000 + "f64", "the number is too long"),
    ("par j < " + "9" * 5000, "LF0801", "9" * 5000, "the number is too long"),
    ("v = " + "(" * 200 + "e" + ")" * 200, "LF0801", "(", "nested too deeply"),
    ("v = " + "-" * 200 + "e", "LF0801", "-", "nested too deeply"),
    ("par j < " + "(" * 200 + "i" + ")" * 200, "LF0801", "(", "nested too deeply"),
]


@pytest.mark.parametrize(("line", "code", "marked", "message"), MISTAKES)
def test_mistakes_in_statements(line, code, marked, message) -> None:
    with pytest.raises(UserError) as caught:
        parse_program(f"{DECLARED}par i < M\n  k = h[i]\n  e = x[i]\n  {line}\n", "t.lfir")
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.primary is not None
    assert found.primary.source.name == "t.lfir"
    # An error at the end of the line marks the place behind it.
    assert found.primary.text.strip() == marked
    if message is not None:
        assert found.message == message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "LF0802"),
        ("# nothing\n", "LF0802"),
        ("par i < N\n", "LF0802"),
        ("buf x: f32\n", None),
        ("program p()\nprogram q()\n", "LF0802"),
        ("program p(N,\n", "LF0801"),
        ("program p()\n  a = 1.0f32\n", "LF0802"),
        ("program p()\nnumerics loose\n", "LF0801"),
        ("program p()\nsize N = x shape\n", "LF0801"),
        ("program p()\nsize N\n", "LF0801"),
        ("program p()\nbuf x: f33[N]\n", "LF0801"),
        ("program p()\nbuf x f32\n", "LF0801"),
        ("program p()\nbuf x: f32[N] window [0:N\n", "LF0801"),
        ("program p()\nbuf x: f32 both\n", "LF0801"),
        ('program p()\nrequire true "open\n', "LF0801"),
        ('program p()\nrequire true "\\q"\n', "LF0801"),
        ("program p()\nkernel\n", "LF0801"),
        ("program p()\nkernel k extra\n", "LF0801"),
        ("program p()\nfold i < N\n  acc a: f32 avg\n", "LF0803"),
        ("program p()\nfold i < N\n  acc a: f32 sum repair b.old\n", "LF0803"),
        ("program p()\nfold i < N\n  acc a: f32 sum\n  a <- 1.0f32\n  acc b: f32 sum\n", "LF0802"),
        ("program p()\nkernel k\n  par i < N\n      a = 1.0f32\n    b = 1.0f32\n", "LF0802"),
    ],
)
def test_mistakes_in_declarations(text, code) -> None:
    if code is None:
        assert parse_program("program p()\n" + text).buffers[0].shape == ()
        return
    with pytest.raises(UserError) as caught:
        parse_program(text)
    assert caught.value.diagnostics[0].code == code


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_gives_an_error_or_a_program(data) -> None:
    """Never a traceback: characters are dropped, doubled or exchanged."""
    text = PROGRAMS[data.draw(st.sampled_from(sorted(PROGRAMS)))]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", "(", "]", "~", "{", " ", "\n", "i", "1", "=", "é", "\0"]))
            + text[at + 1 :]
        )
    try:
        parse_program(text)
    except UserError as error:
        assert all(d.code.startswith("LF080") and d.primary is not None for d in error.diagnostics)
