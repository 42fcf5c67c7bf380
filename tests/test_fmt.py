"""The formatter: meaning and comments kept, a second run changes nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syntax_tools import SCRIPT_TEXTS, SCRIPTS, read, same, statements

from loopfuse.diag import UserError
from loopfuse.frontend.fmt import WIDTH, format_source
from loopfuse.frontend.lexemes import scan

TEXTS = [read(path) for path in SCRIPTS]


def comment_words(text: str) -> list[str]:
    return sorted(
        word for lexeme in scan(text, comments=True) if lexeme.kind == "comment" for word in lexeme.text.split()
    )


def checked(text: str) -> str:
    """The layout of a text, after the properties that every layout has."""
    done = format_source(text)
    assert same(statements(text), statements(done))
    assert comment_words(text) == comment_words(done)
    assert format_source(done) == done
    assert "\n\n\n" not in done
    assert not any(line != line.rstrip() for line in done.split("\n"))
    assert not done or done.endswith("\n")
    assert not done.startswith("\n")
    return done


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts(path: Any) -> None:
    done = checked(read(path))
    for line in done.splitlines():
        assert len(line) <= WIDTH or "#" in line, line


CASES = [
    ("let   y=x+1", "let y = x + 1\n"),
    ("let y[i,j in 0..2*n]:f16[n]=-x**-2", "let y[i, j in 0..2 * n]: f16[n] = -x ** -2\n"),
    ('input x:f32[N,2*R+1]from"a.npy"where x>0', 'input x: f32[N, 2 * R + 1] from "a.npy" where x > 0\n'),
    ("param a:f32=1 where where(a>0,true,false)", "param a: f32 = 1 where where(a > 0, true, false)\n"),
    ('output y=x to"y.npy"output z', 'output y = x to "y.npy"\noutput z\n'),
    ("let s=sum(x[k]for k in 0..n by 2if k<3)", "let s = sum(x[k] for k in 0..n by 2 if k < 3)\n"),
    ("let a=f( x , axis = -1,keep=true ,)", "let a = f(x, axis=-1, keep=true,)\n"),
    ("let a=x[ : , None,1:n+1, ::2,...,-1:]", "let a = x[:, None, 1 : n + 1, ::2, ..., -1:]\n"),
    ("let(a,b)=f(x)", "let (a, b) = f(x)\n"),
    ("fn f(x:any[...,D],eps=1e-5)->(f32,num[D]){return x,x}",
     "fn f(x: any[..., D], eps = 1e-5) -> (f32, num[D]) { return x, x }\n"),
    ("fn f(x){let a=x return a}", "fn f(x) {\n  let a = x\n  return a\n}\n"),
    ("scan t in 0..T carry(h=0,){next h=h}", "scan t in 0..T carry (h = 0,) { next h = h }\n"),
    ("scan t carry(h=0){\nnext h=h}", "scan t carry (h = 0) {\n  next h = h\n}\n"),
    ("scan t carry(h=0){}", "scan t carry (h = 0) {}\n"),
    ("accum h:i32[3]=0 for i,j if c{h[i]+=1 h[0,j]max=2}",
     "accum h: i32[3] = 0 for i, j if c {\n  h[i] += 1\n  h[0, j] max= 2\n}\n"),
    ("accum h:i32[3]=0 for i{h[i]min=1}", "accum h: i32[3] = 0 for i { h[i] min= 1 }\n"),
    ('require a==b and not(c),"no"', 'require a == b and not (c), "no"\n'),
    ('import"a.lf"as a import nn numerics fast', 'import "a.lf" as a\nimport nn\nnumerics fast\n'),
    ("pragma fuse(a,b)pragma tf32", "pragma fuse(a, b)\npragma tf32\n"),
    ("let a=x.T@y.mT+~z- -w", "let a = x.T @ y.mT + ~z - -w\n"),
    ("let a=(b if c else d)if e else not f", "let a = (b if c else d) if e else not f\n"),
    ("let a=[[1,2],[i for i in 0..3]]", "let a = [[1, 2], [i for i in 0..3]]\n"),
    ("let a = 0x1F + 1_0. + 2f16", "let a = 0x1F + 1_0. + 2f16\n"),
    ("", ""), ("# only\n\n\n\n# comments", "# only\n\n# comments\n"), ("\n\n\nlet a = b\n\n\n\nlet c = d\n\n", "let a = b\n\nlet c = d\n"),
    ("\ufefflet a = b", "let a = b\n"), ("let a = b\r\n# c\r\nlet d = e\r\n", "let a = b\n# c\nlet d = e\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_layout(text: str, wanted: str) -> None:
    assert checked(text) == wanted


def test_comments_stay_where_they_are() -> None:
    text = """\
# head

# of x
input x: f32[N]   # behind x
fn f(a) {   # behind the brace

  # of b
  let b = a


  # of c

  let c = b   # behind c
  return c
  # at the end
}   # behind all
let y = f(
  # first
  x,   # behind the argument
  # second
  x
  # before the operator
  + 1)
# tail
"""
    assert (
        checked(text)
        == """\
# head

# of x
input x: f32[N]  # behind x
fn f(a) {  # behind the brace
  # of b
  let b = a

  # of c

  let c = b  # behind c
  return c
  # at the end
}  # behind all
let y = f(
  # first
  x,  # behind the argument
  # second
  x
    # before the operator
    + 1)
# tail
"""
    )


def test_long_values_break_where_they_bind_loosest() -> None:
    long = " + ".join(f"some_long_name_{n} * factor" for n in range(5))
    assert checked(f"let y = {long}") == "let y =\n  " + long.replace(" + ", "\n  + ") + "\n"


def test_a_value_goes_below_if_it_fits_there() -> None:
    value = "sum(" + "weights[o, c, r, s] * source[n, c, i + r, j + s]" + " for c, r in 0..R, s in 0..S)"
    done = checked(f"let convolution[n, o, i in 0..H, j in 0..W] = {value}")
    assert done == f"let convolution[n, o, i in 0..H, j in 0..W] =\n  {value}\n"


def test_calls_break_inside_their_last_bracket() -> None:
    arguments = [f"argument_number_{n} + something_else" for n in range(4)]
    done = checked(f"let y = function({', '.join(arguments)})")
    assert done == "let y = function(\n  " + ",\n  ".join(arguments) + ")\n"


def test_arrays_are_filled() -> None:
    lines = checked("let w = [" + ", ".join(str(n) for n in range(100)) + "]").splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= WIDTH
    assert min(map(len, lines[1:-1])) > WIDTH - 8


def test_long_signatures() -> None:
    params = ", ".join(f"parameter_{n}: float[N, C, H, W]" for n in range(5))
    lines = checked(f"fn f({params}) -> float[N] {{ return 1 }}").splitlines()
    assert lines[0].startswith("fn f(parameter_0: float[N, C, H, W], ")
    assert lines[1].startswith("    parameter_")
    assert max(map(len, lines)) <= WIDTH


def test_deep_nesting_and_long_chains() -> None:
    checked("let y = " + "f(1 + (" * 45 + "x" + "))" * 45)
    checked("let y = x" + " + 1" * 10_000)


def test_a_text_that_is_no_script() -> None:
    with pytest.raises(UserError, match="LF0101"):
        format_source("let y = ")


@settings(max_examples=80, deadline=None)
@given(SCRIPT_TEXTS)
def test_random_scripts(text: str) -> None:
    checked(text)


@st.composite
def respaced(draw: st.DrawFn) -> str:
    """A part of a script with blanks, new lines and comments between its tokens."""
    lexemes = scan(draw(st.sampled_from(TEXTS)))[:-1]
    blanks = st.sampled_from([" "] * 12 + ["\n", "\n\n\n", "\t ", " # note\n", "\n# own line\n", "\n\n  # apart\n\n"])
    out = lexemes[0].text
    for before, lexeme in pairwise(lexemes):
        update = before.text in ("max", "min") and lexeme.text == "="
        out += ("" if update else draw(blanks)) + lexeme.text
    return out


@settings(max_examples=40, deadline=None)
@given(respaced())
def test_respaced_scripts(text: str) -> None:
    checked(text)
