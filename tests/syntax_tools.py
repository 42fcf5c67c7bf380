"""What the syntax tests share: the scripts, comparison of trees without spans, random expressions and statements."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import loopfuse
from loopfuse.diag import Source
from loopfuse.frontend import ast
from loopfuse.frontend.parse import parse

ROOT = Path(loopfuse.__file__).parent
SCRIPTS = sorted([*(Path(__file__).parent / "scripts").rglob("*.lf"), *(ROOT / "lib").glob("*.lf")])


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def statements(text: str) -> tuple[ast.Stmt, ...]:
    return parse(Source("test.lf", text)).body


def same(left: Any, right: Any) -> bool:
    """Whether two trees are equal but for their spans; without recursion, since chains are deep."""
    stack = [(left, right)]
    while stack:
        a, b = stack.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, tuple):
            if len(a) != len(b):
                return False
            stack += zip(a, b, strict=True)
        elif is_dataclass(a):
            names = [f.name for f in fields(a) if f.name != "source" and not f.name.endswith(("span", "op_spans"))]
            stack += [(getattr(a, n), getattr(b, n)) for n in names if type(a).__name__ != "Span"]
        elif a != b and not (a != a and b != b):
            return False
    return True


OPERATORS = ["or", "and", "<", "<=", "==", "!=", "|", "^", "&", "<<", ">>", "+", "-", "*", "/", "//", "%", "@", "**"]
NAMES = st.sampled_from(["a", "b", "x", "count", "μ", "inf", "n_1"])
NUMBERS = st.sampled_from(["0", "1", "2.5", ".5", "3.", "1e-5", "0x1f", "0b101", "1_000", "2u8", "1.5f16", "3bf16"])
BINARY = st.sampled_from(OPERATORS)


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(inner, min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(inner, BINARY, inner).map(lambda t: f"{t[0]} {t[1]} {t[2]}"),
        st.tuples(st.sampled_from(["-", "+", "~", "not "]), inner).map(lambda t: f"({t[0]}{t[1]})"),
        inner.map("({})".format),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        listed.map("f({})".format),
        st.tuples(listed, NAMES, inner).map(lambda t: f"f({t[0]}, {t[1]}={t[2]})"),
        listed.map("[{}]".format),
        st.tuples(inner, inner).map(lambda t: f"sum({t[0]} for i, j in 0..(n) if {t[1]})"),
        inner.map("[{} for k in 0..4 by 2]".format),
        st.tuples(inner, inner).map(lambda t: f"x[{t[0]}, None, ..., :{t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"x.T[{t[0]}:{t[1]}:2]"),
    )


EXPRESSIONS = st.recursive(st.one_of(NAMES, NUMBERS), _extend, max_leaves=12)
STATEMENTS = st.one_of(
    EXPRESSIONS.map("let t = {}".format),
    EXPRESSIONS.map("let t[i, j in 0..n + 1, ...]: f16 = {}".format),
    EXPRESSIONS.map('output y: f32[n, 2 * n] = {} to "y.npy"'.format),
    EXPRESSIONS.map("param p: f32 = 1 where {}".format),
    EXPRESSIONS.map('check {}, "message"'.format),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(
        lambda t: f"fn f(z: float[..., D], w = {t[0]}) {{ let a = z return a, {t[1]} }}"
    ),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(
        lambda t: f"scan t in 0..n carry (h = {t[0]}) {{ next h = {t[1]} emit e = h }}"
    ),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(
        lambda t: f"accum h: i32[n] = 0 for i if {t[0]} {{ h[i] += {t[1]} h[0] max= 1 }}"
    ),
)
SCRIPT_TEXTS = st.lists(STATEMENTS, min_size=1, max_size=4).map("\n".join)
