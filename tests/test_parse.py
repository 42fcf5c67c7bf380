"""Text to syntax trees."""

from __future__ import annotations

import gc
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from syntax_tools import EXPRESSIONS, SCRIPT_TEXTS, SCRIPTS, read, same, statements

from loopfuse.diag import Collector, Source, Span, UserError
from loopfuse.frontend import ast
from loopfuse.frontend.lint import walk
from loopfuse.frontend.parse import is_incomplete, parse, parse_expr, parse_recovering
from loopfuse.frontend.parse import read as read_partial


def expression(text: str) -> Any:
    return parse_expr(Source("test.lf", text))


def let(text: str) -> ast.LetDecl:
    (node,) = statements(text)
    assert isinstance(node, ast.LetDecl)
    return node


def show(node: Any) -> str:
    """An expression with all its parentheses."""
    match node:
        case ast.Name(id):
            return id
        case ast.Number(_, text, suffix):
            return text + (suffix or "")
        case ast.Bool(value):
            return str(value).lower()
        case ast.Unary(op, operand):
            return f"({op} {show(operand)})"
        case ast.Binary(op, left, right):
            return f"({show(left)} {op} {show(right)})"
        case ast.Compare(operands, ops):
            rest = "".join(f" {op} {show(x)}" for op, x in zip(ops, operands[1:], strict=True))
            return f"({show(operands[0])}{rest})"
        case ast.IfElse(then, cond, other):
            return f"({show(then)} if {show(cond)} else {show(other)})"
        case ast.Call(fn, args):
            return f"{show(fn)}({', '.join(map(show, args))})"
        case ast.Subscript(base, subs):
            return f"{show(base)}[{', '.join(map(show, subs))}]"
        case ast.Attr(base, name):
            return f"{show(base)}.{name}"
    raise AssertionError(node)


PRECEDENCE = [
    ("a + b * c", "(a + (b * c))"),
    ("a * b @ c", "((a * b) @ c)"),
    ("-x ** 2", "(- (x ** 2))"),
    ("2 ** -x ** 3", "(2 ** (- (x ** 3)))"),
    ("a ** b ** c", "(a ** (b ** c))"),
    ("a - b - c", "((a - b) - c)"),
    ("a // b % c", "((a // b) % c)"),
    ("a << 1 + 2", "(a << (1 + 2))"),
    ("a | b ^ c & d << e", "(a | (b ^ (c & (d << e))))"),
    ("a & b == c", "((a & b) == c)"),
    ("0 <= i < n", "(0 <= i < n)"),
    ("not a == b and c or d", "(((not (a == b)) and c) or d)"),
    ("not not a", "(not (not a))"),
    ("a if b else c if d else e", "(a if b else (c if d else e))"),
    ("a or b if c and d else e", "((a or b) if (c and d) else e)"),
    ("-f(x)[0].T", "(- f(x)[0].T)"),
    ("~a + -b", "((~ a) + (- b))"),
    ("a <b", "(a < b)"),
    ("a<-b", "(a < (- b))"),
    ("x.dtype(e)", "x.dtype(e)"),
    ("where(a, b, c)", "where(a, b, c)"),
]


@pytest.mark.parametrize(("text", "shown"), PRECEDENCE)
def test_precedence(text: str, shown: str) -> None:
    assert show(expression(text)) == shown


def test_parentheses_are_noted() -> None:
    node = expression("(a + b) * (c < d)")
    assert node.left.parens
    assert node.right.parens
    assert not node.parens
    assert node.left.span.text == "a + b"
    assert node.span.text == "(a + b) * (c < d)"
    assert node.op_span.text == "*"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts_parse_and_spans_hold(path: Any) -> None:
    source = Source(path.name, read(path))
    script = parse(source)
    assert script.source is source
    ends = 0
    for statement in script.body:
        assert statement.span.start >= ends
        ends = statement.span.end
        for node, depth in walk(statement):
            assert node.span.source is source
            assert node.span.start < node.span.end
            assert depth == 0 or statement.span.start <= node.span.start <= node.span.end <= statement.span.end
            if isinstance(node, ast.Name | ast.Binder):
                assert node.span.text.startswith(str(getattr(node, "id", getattr(node, "name", ""))))
            if isinstance(node, ast.Binary):
                assert node.op_span.text == node.op
    assert len(script.body) >= 2


def test_spans_are_exact() -> None:
    text = 'input  x : f32[N, 2*R + 1]  from "a.npz:x"  where x > 0  # end\nlet (a, b) = f(x)'
    first, second = statements(text)
    assert isinstance(first, ast.InputDecl)
    assert isinstance(second, ast.LetDecl)
    assert first.span.text == 'input  x : f32[N, 2*R + 1]  from "a.npz:x"  where x > 0'
    assert first.name_span.text == "x"
    assert first.type.span.text == "f32[N, 2*R + 1]"
    assert first.type.head_span.text == "f32"
    assert first.source is not None
    assert first.source.value == "a.npz:x"
    assert first.source.span.text == '"a.npz:x"'
    assert isinstance(first.where, ast.Compare)
    assert first.where.op_spans[0].text == ">"
    assert second.lhs.names == (("a", Span(first.span.source, 75, 76)), ("b", Span(first.span.source, 78, 79))) or [
        (n, s.text) for n, s in second.lhs.names
    ] == [("a", "a"), ("b", "b")]
    assert second.lhs.span.text == "(a, b)"


NUMBERS: list[tuple[str, int | float, str, str | None]] = [
    ("0", 0, "0", None), ("1_000", 1000, "1_000", None), ("0x1f32", 0x1F32, "0x1f32", None),
    ("0xFFu8", 255, "0xFF", "u8"), ("0b101", 5, "0b101", None), ("1.5", 1.5, "1.5", None), (".5", 0.5, ".5", None),
    ("3.", 3.0, "3.", None), ("1e-5", 1e-5, "1e-5", None), ("2f16", 2.0, "2", "f16"), ("2bf16", 2.0, "2", "bf16"),
    ("7i64", 7, "7", "i64"), ("1.5E+3f64", 1500.0, "1.5E+3", "f64"), ("0b1u16", 1, "0b1", "u16"),
    ("9007199254740993", 9007199254740993, "9007199254740993", None), ("1e308", 1e308, "1e308", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "digits", "suffix"), NUMBERS)
def test_numbers(text: str, value: int | float, digits: str, suffix: str | None) -> None:
    node = expression(text)
    assert (node.value, node.text, node.suffix) == (value, digits, suffix)
    assert type(node.value) is type(value)


def test_a_range_is_no_decimal_point() -> None:
    node = expression("sum(x[k] for k in 0..3 by 2)")
    binder = node.gen.binders[0]
    assert (binder.range.lo.value, binder.range.hi.value, binder.range.step.value) == (0, 3, 2)
    assert type(binder.range.hi.value) is int


def test_strings() -> None:
    (node,) = statements(r'import "a\"b\\c\td.lf" as m')
    assert isinstance(node, ast.Import)
    assert (node.module, node.alias, node.path) == ('a"b\\c\td.lf', "m", True)


def test_names_are_normalised() -> None:
    decomposed = unicodedata.normalize("NFD", "é")
    assert let(f"let {decomposed} = μ").lhs.name == unicodedata.normalize("NFC", decomposed)


def test_statements() -> None:
    text = """
    import nn as n
    size R = 4
    param eps: f32 = 1e-5 where eps > 0
    let y[..., i in 0..N, j]: f16[N, M] = x
    fn f(x: any[..., D], k, stride = k) -> (f32, num[D]) { size K = D let a = x return a, k }
    fn g() = 3
    scan t in 0..T carry (h: f32[B] = h0, c = 1,) { next h = c emit hs = h scan s carry (q = 1) { next q = 2 } }
    accum h: i32[256] = 0 for y, x in 0..W if m[y] { h[x] += 1 h[0, y] max= 2 }
    require R > 1, "message"
    expect fused(a, b)
    numerics fast
    pragma split(s, rows)
    pragma tf32
    output z
    output z[i] = y[i, 0] to "z.npy"
    """
    (imp, size, param, y, f, g, scan, accum, require, expect, numerics, split, tf32, bare, indexed) = statements(text)
    assert isinstance(imp, ast.Import)
    assert (imp.module, imp.alias, imp.path) == ("nn", "n", False)
    assert isinstance(size, ast.SizeDecl)
    assert isinstance(param, ast.ParamDecl)
    assert param.where is not None
    assert isinstance(y, ast.LetDecl)
    assert y.lhs.binders is not None
    assert [type(b).__name__ for b in y.lhs.binders] == ["Rest", "Binder", "Binder"]
    assert y.type is not None
    assert y.type.dims is not None
    assert isinstance(f, ast.FnDecl)
    assert [p.name for p in f.params] == ["x", "k", "stride"]
    assert f.returns is not None
    assert [t.head for t in f.returns] == ["f32", "num"]
    assert f.returns[0].dims is None
    assert [type(s).__name__ for s in f.body] == ["SizeDecl", "LetDecl"]
    assert len(f.values) == 2
    assert isinstance(g, ast.FnDecl)
    assert (g.params, g.body, len(g.values), g.returns) == ((), (), 1, None)
    assert isinstance(scan, ast.ScanDecl)
    assert [c.name for c in scan.carries] == ["h", "c"]
    assert [type(s).__name__ for s in scan.body] == ["Next", "Emit", "ScanDecl"]
    assert isinstance(accum, ast.AccumDecl)
    assert [u.op for u in accum.updates] == ["+=", "max="]
    assert [b.name for b in accum.gen.binders] == ["y", "x"]
    assert accum.gen.cond is not None
    assert isinstance(require, ast.Contract)
    assert (require.kind, require.message) == ("require", "message")
    assert isinstance(expect, ast.Contract)
    assert (expect.kind, expect.message) == ("expect", None)
    assert isinstance(numerics, ast.Numerics)
    assert numerics.mode == "fast"
    assert isinstance(split, ast.Pragma)
    assert [a.id for a in split.args if isinstance(a, ast.Name)] == ["s", "rows"]
    assert isinstance(tf32, ast.Pragma)
    assert (tf32.name, tf32.args) == ("tf32", ())
    assert isinstance(bare, ast.OutputDecl)
    assert (bare.value, bare.type, bare.to) == (None, None, None)
    assert isinstance(indexed, ast.OutputDecl)
    assert indexed.to is not None
    assert indexed.to.value == "z.npy"


def test_subscripts_and_calls() -> None:
    node = expression("x[:, None, ..., 1:2, ::2, -1](a, axis=(0, 1), dtype=f64)")
    assert [type(s).__name__ for s in node.fn.subs] == ["Slice", "NewAxis", "Rest", "Slice", "Slice", "Unary"]
    assert (node.fn.subs[4].lo, node.fn.subs[4].hi, node.fn.subs[4].step.value) == (None, None, 2)
    assert [k for k, _, _ in node.kwargs] == ["axis", "dtype"]
    assert type(node.kwargs[0][1]) is ast.TupleExpr
    assert node.kwargs[1][2].text == "dtype"
    assert type(expression("[[1, 2,], [3]]")) is ast.ArrayLit
    assert expression("[]").items == ()
    assert type(expression("[k for k in 0..3]")) is ast.Comprehension


@pytest.mark.parametrize("text", ["letx = 1", "outputy", "inputx: f32", "let y = xif c else z", "importnn"])
def test_keywords_end_where_words_end(text: str) -> None:
    with pytest.raises(UserError):
        parse(Source("x", text))


@settings(max_examples=60, deadline=None)
@given(SCRIPT_TEXTS)
def test_newlines_mean_nothing(text: str) -> None:
    one_line = " ".join(text.split())
    spread = "\n".join(text.split())
    assert same(statements(text), statements(one_line))
    assert same(statements(text), statements(spread))


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_expressions_stand_alone_and_in_statements(text: str) -> None:
    assert same(expression(text), let(f"let y = {text}").value)


@pytest.mark.parametrize(
    ("text", "incomplete"),
    [
        ("let y = x +", True), ("let", True), ("x + ", True), ("f(x,", True), ("fn f(x) {", True), ("x[", True),
        ("fn f(x) { let a = 1", True), ("input x: f32[N", True), ("a if b", True), ("sum(x for", True),
        ("let y = x", False), ("x", False), ("", False), ("# note", False), ("let y = )", False), ("x +* y", False),
        ("let y = x + $", False), ('"abc', False), ("f(x)", False), ("x y", False), ("fn f(x) = x", False),
    ],
)  # fmt: skip
def test_incomplete(text: str, incomplete: bool) -> None:
    assert is_incomplete(text) is incomplete


# -- size and depth ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["+", "*", "and", "|", "@"])
def test_long_chains(op: str) -> None:
    count = 10_500
    node = let("let y = x" + f" {op} x" * count).value
    depth = 0
    while isinstance(node, ast.Binary):
        node, depth = node.left, depth + 1
    assert depth == count
    gc.collect()


def test_long_comparison_and_list() -> None:
    assert len(expression("a" + " < b" * 10_000).ops) == 10_000
    assert len(expression("[" + "1, " * 20_000 + "]").items) == 20_000


def test_many_statements() -> None:
    assert len(statements("".join(f"let y{n} = x + {n}\n" for n in range(10_000)))) == 10_000


DEEP = [
    ("(" * 200, "x", ")" * 200, True), ("(" * 201, "x", ")" * 201, False), ("f(" * 150, "x", ")" * 150, True),
    ("f(" * 300, "x", ")" * 300, False), ("x[" * 300, "0", "]" * 300, False), ("-" * 150, "x", "", True),
    ("-" * 300, "x", "", False), ("not " * 300, "x", "", False), ("a ** " * 300, "x", "", False),
    ("a if b else " * 300, "x", "", False), ("", "x", "[0]" * 300, False), ("[" * 20_000, "x", "]" * 20_000, False),
    ("-" * 20_000, "x", "", False), ("a ** " * 20_000, "x", "", False), ("(" * 5000, "x", "", False),
]  # fmt: skip


@pytest.mark.parametrize(("before", "middle", "after", "fits"), DEEP)
def test_nesting(before: str, middle: str, after: str, fits: bool) -> None:
    text = f"let a = 1\nlet y = {before}{middle}{after}\n"
    collector = Collector()
    script = parse_recovering(Source("x", text), collector)
    codes = [d.code for d in collector.found]
    assert codes == ([] if fits else ["LF0109"])
    assert len(script.body) == 2 or not fits
    assert is_incomplete(before + middle + after) in (True, False)
    if fits:
        expression(before + middle + after)
    else:
        with pytest.raises(UserError, match="LF0109"):
            expression(before + middle + after)


# -- recovery ---------------------------------------------------------------------------------------------------------


def test_what_parses_is_returned() -> None:
    text = "input x: f32[N]\nlet y = x +\nlet z = x * 2\nfn f(a) { return a a }\noutput z\nlet w = (\n"
    collector = Collector()
    script, lost = read_partial(Source("x", text), collector)
    assert [type(s).__name__ for s in script.body] == ["InputDecl", "LetDecl", "OutputDecl"]
    assert [d.code for d in collector.found] == ["LF0101"] * 3
    assert {"y", "f", "w"} <= lost
    assert "z" not in lost


def test_ten_errors_then_the_rest() -> None:
    text = "\n".join("let a =" for _ in range(15))
    with pytest.raises(UserError) as failure:
        parse(Source("x", text))
    codes = [d.code for d in failure.value.diagnostics]
    assert codes == ["LF0101"] * 10 + ["LF0001"]
    assert failure.value.diagnostics[-1].message == "and 5 more"


def test_a_byte_order_mark_is_no_mistake() -> None:
    assert len(statements("\ufefflet x = 1")) == 1
    with pytest.raises(UserError, match=":1:8"):
        parse(Source("x", "\ufefflet x =\n"))
