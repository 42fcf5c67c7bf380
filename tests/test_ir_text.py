"""The text form of the loop IR: what is printed reads back equal, and mistakes in the text are explained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_generator import ALL, Gen, Scope
from ir_programs_by_hand import PROGRAMS
from ir_strategies import ir_programs

from loopfuse.diag import Source, Span
from loopfuse.dtypes import BOOL, DTYPES, F16, F32, I64
from loopfuse.ir import (
    Acc,
    Affine,
    Buffer,
    Const,
    Dim,
    Directive,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Mode,
    Op,
    Program,
    Ref,
    Require,
    Select,
    Size,
    Store,
)
from loopfuse.ops import OPS
from loopfuse.printer import print_body, print_const, print_expr, print_kernel, print_program, print_stmt
from loopfuse.reader import parse_program
from loopfuse.sizes import ONE, ZERO, Poly

DECLARED = """program t(M, N)
buf x: f32[M] in
buf a: f32[M, N] in
buf h: i64[M] in
buf s: f32 param
buf y: f32[M] out
"""


def expr(text: str) -> Expr:
    """An expression over the buffers above, an i64 let `k`, an f32 let `e`, and an index `i`."""
    lines = f"{DECLARED}par i < M\n  k = h[i]\n  l = h[i]\n  e = x[i]\n  v = {text}\n"
    loop = parse_program(lines).kernels[0].body[0]
    assert isinstance(loop, Loop)
    last = loop.body[-1]
    assert isinstance(last, Let)
    return last.value


def through(program: Program) -> Program:
    return parse_program(print_program(program))


# -- there and back ---------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(ir_programs())
def test_programs_read_back_equal(program) -> None:
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert print_program(again) == text
    assert parse_program(print_program(again, gutter=True)) == program


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_written_by_hand_read_back(name) -> None:
    program = parse_program(PROGRAMS[name])
    assert through(program) == program
    assert print_program(program) == PROGRAMS[name]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, (1 << 64) - 1))
def test_constants_keep_their_bits(dtype, bits) -> None:
    bits &= (1 << dtype.bits) - 1
    found = expr(print_const(bits, dtype))
    assert found == Const(bits, dtype)


def test_constants_are_readable() -> None:
    shown = {
        "1.5f32": 0x3FC00000, "-0.0f32": 0x80000000, "inf:f32": 0x7F800000, "-inf:f32": 0xFF800000,
        "nan:f32": 0x7FC00000, "nan:0xffc00001:f32": 0xFFC00001, "0.1f32": 0x3DCCCCCD, "1e+20f32": 0x60AD78EC,
    }  # fmt: skip
    for text, bits in shown.items():
        assert print_const(bits, F32) == text
        assert expr(text) == Const(bits, F32)
    assert expr("nan:0xffe00001:f32") == Const(0xFFE00001, F32)
    assert print_const(255, DTYPES["i8"]) == "-1i8"
    assert [print_const(b, BOOL) for b in (0, 1)] == ["false", "true"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_expressions_read_back(data) -> None:
    gen = Gen(data.draw)
    gen.sizes = [Size("M"), Size("N")]
    arrays = [Buffer(id, d, (Poly.of("M"),)) for id, d in (("x", F32), ("h", I64))]
    scope = Scope([Ref("k", I64), Ref("l", I64), Ref("e", F32)], [], arrays)
    made = gen.expr(data.draw(st.sampled_from([F32, I64, BOOL, F16])), scope, 5)
    assert expr(print_expr(made)) == made


@st.composite
def polys(draw, depth: int = 3) -> Poly:
    if depth == 0 or draw(st.booleans()):
        return Poly.of(draw(st.sampled_from([0, 1, 2, 3, "i", "M", "N", "k"])))
    left, right = draw(polys(depth - 1)), draw(polys(depth - 1))
    kind = draw(st.sampled_from("+-*/%"))
    if kind in "/%" and right.is_const and right.constant == 0:
        return left
    table = {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__floordiv__, "%": left.__mod__}
    return table[kind](right)


@settings(max_examples=200, deadline=None)
@given(polys(), polys(), polys())
def test_polynomials_read_back(a, b, c) -> None:
    value = Load("a", (Affine(a), Affine(b)), (None, Mode("edge")), F32)
    assert expr(print_expr(Select(Op("lt", (Affine(b), Affine(c)), BOOL), value, value))).then == value
    program = parse_program(DECLARED + "fold i < M\n  acc t: f32[2] sum\n  t[0] <- 1.0f32\n")
    loop = program.kernels[0].body[0]
    assert isinstance(loop, Loop)
    dims = (Dim("i", (a, b), (c, a), b), Dim("j", (ZERO,), (c,)), Dim("k", (ZERO,), (a,), c), Dim("l", (c,), (b,)))
    made = replace(loop, dims=dims, accs=(replace(loop.accs[0], shape=(c, a)),))
    program = replace(program, kernels=(Kernel("k", (made,)),))
    assert through(program) == program


# -- all the fields ---------------------------------------------------------------------------------------------------

N = Poly.of("N")


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (Size("N"), None),
        (Size("N", "compile", value=-4), "size N = -4 compile"),
        (Size("N", least=1, multiple=4), "size N shape >= 1 multiple 4"),
        (Size("N", least=-3), "size N shape >= -3"),
        (Size("N", "param", None, dtype=DTYPES["i32"]), "size N param unbounded i32"),
        (Size("N", "plan", 1, 2, 8), "size N = 8 plan >= 1 multiple 2"),
    ],
)
def test_sizes(size, line) -> None:
    program = Program("p", (size, Size("M")), (), (), ())
    lines = print_program(program).splitlines()
    assert lines == ["program p(N, M)", *([line] if line else [])]
    assert through(program) == program


@pytest.mark.parametrize(
    ("buffer", "line"),
    [
        (Buffer("b", F32, ()), "buf b: f32"),
        (Buffer("b", F32, (N,), "out"), "buf b: f32[N] out"),
        (Buffer("b", F32, (N * 2,), "temp", "local"), "buf b: f32[2*N] local"),
        (
            Buffer("b", F32, (N, N), window=(((N, ONE), (N + 2,)), ((ZERO,), (N, N * N)))),
            "buf b: f32[N, N] window [max(N, 1):N + 2, 0:min(N, N*N)]",
        ),
        (Buffer("b", F32, (), window=()), "buf b: f32 window []"),
        (Buffer("b", I64, (N,), "in", range=((ZERO,), (N - 1, ONE))), "buf b: i64[N] in range 0 .. min(N - 1, 1)"),
        (Buffer("b", I64, (N,), range=((), ())), "buf b: i64[N] range max() .. min()"),
        (Buffer("window", I64, (N,), "frozen"), "buf window: i64[N] frozen"),
    ],
)
def test_buffers(buffer, line) -> None:
    program = Program("p", (Size("N"),), (), (buffer,), ())
    assert print_program(program).splitlines()[-1] == line
    assert through(program) == program


def test_a_single_place_is_a_window() -> None:
    buffer = parse_program("program p(N)\nbuf b: f32[N] window [i]\n").buffers[0]
    assert buffer.window == (((Poly.of("i"),), (Poly.of("i") + 1,)),)


@pytest.mark.parametrize("text", ["materialize(t)", "kernels <= 1", "[a] b", "", " x ", "a # b", '"q"', "a\nb", "é(ü)"])
def test_directives(text) -> None:
    program = Program("p", (), (), (), (), (Directive("pragma", text), Directive("expect", text)))
    assert through(program) == program


@pytest.mark.parametrize("message", ["", "plain", 'a "b" # c', "two\nlines\r\t\\", "\u2028 \x85 ∂"])
def test_requires(message) -> None:
    conds = (Op("ge", (Affine(N), Const(1, I64)), BOOL), Op("not", (Const(1, BOOL),), BOOL))
    made = tuple(Require(c, message, implied) for c in conds for implied in (False, True))
    program = Program("p", (Size("N"),), made, (), ())
    assert through(program) == program


@pytest.mark.parametrize("name", ["p", "σ.1", "two words", "", 'x"y', "program"])
def test_program_names(name) -> None:
    program = Program(name, (), (), (), (), numerics="fast")
    assert through(program) == program


WORDS = ["acc", "par", "fold", "seq", "prefix", "kernel", "buf", "size", "program", "where", "at", "in", "step", "repair",
         "self", "max", "min", "range", "window", "f32", "exp", "sum", "local", "none", "x.old", "_", "σ.1.2"]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_words_may_be_ids(word) -> None:
    """Only what the language reserves in expressions is reserved in IR text."""
    load = Load(word, (Affine(Poly.of("i")),), (None,), F32)
    body = (
        Loop(
            (Dim("i", (ZERO,), (N,)),),
            (
                Let("e", load),
                Store("b", (Affine(Poly.of("i")),), Ref("e", F32)),
                Store(word, (Affine(Poly.of("i")),), load),
            ),
            where=Op("lt", (load, load), BOOL),
        ),
        Let("t", Const(0, F32)),
    )
    program = Program("p", (Size("N"),), (), (Buffer(word, F32, (N,)), Buffer("b", F32, (N,))), (Kernel("k", body),))
    assert through(program) == program
    acc = Acc(word, "argmax", F32)
    absorb = Store(word, (), Const(0, F32), True, Affine(Poly.of(word)))
    loop = Loop((Dim(word + "2", (Poly.of(word),), (Poly.of(word),), Poly.of(word)),), (absorb,), "par", (acc,))
    lets = (Let("a", Const(1, I64)), Let(word, Ref("a", I64)), Let("c", Ref(word, I64)), loop)
    program = Program("p", (), (), (), (Kernel(word, lets),))
    assert through(program) == program


def test_modes_of_stores_are_kept_apart() -> None:
    subs = (Affine(Poly.of("i")), Ref("k", I64))
    texts = {
        (): "b[i, $k] = 1.0f32",
        (None, None): "b[i ~none, $k] = 1.0f32",
        (Mode("checked"), None): "b[i ~checked, $k] = 1.0f32",
        (None, Mode("checked")): "b[i, $k ~checked] = 1.0f32",
    }
    for modes, text in texts.items():
        store = Store("b", subs, Const(0x3F800000, F32), modes=modes)
        assert print_stmt(store) == text
        body = (Let("k", Const(0, I64)), store)
        program = Program("p", (), (), (Buffer("b", F32, (N, N)),), (Kernel("k", body),))
        assert through(program) == program


def test_a_value_that_looks_like_a_polynomial_is_marked() -> None:
    k, poly = Ref("k", I64), Affine(Poly.of("k"))
    texts = {
        k: "$k",
        poly: "k",
        Op("add", (k, Ref("l", I64)), I64): "$k + l",
        Op("neg", (k,), I64): "$-k",
        Op("add", (k, poly), I64): "k + {k}",
        Op("add", (k, Const(1, I64)), I64): "k + 1i64",
        Op("cast", (k,), I64): "i64(k)",
        Op("mul", (Op("sub", (k, k), I64), k), I64): "$(k - k) * k",
        Affine((Poly.of("k") - 1) * 2 // Poly.of("N")): "(2*k - 2) // N",
    }
    for sub, text in texts.items():
        load = Load("x", (sub,), (None,), F32)
        assert print_expr(load) == f"x[{text}]"
        assert expr(print_expr(load)) == load


# -- the look of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "e * e + e / e - e",
        "(e + e) * e",
        "e - (e - e)",
        "e ** e ** e",
        "(e ** e) ** e",
        "-e ** e",
        "(-e) ** e",
        "e * -e",
        "-(1.0f32)",
        "-(1.0f32 ** e)",
        "--1.0f32",
        "(-1.0f32) ** e",
        "1.0f32 - -1.0f32",
        "e if {i} < {M} and not (e > e or e == e) else -e if true else 0.0f32",
        "(e if true else e) + e",
        "e if (true if false else true) else e",
        "(e if true else e) if true else e",
        "f32(k) + f32'(k)",
        "f16'(f32(f16(e)))",
        "bits(e, u32) & 1u32 << 3u32 | 7u32 ^ ~1u32",
        "(k < l) == (l < k)",
        "maximum(e, minimum(e, s[])) % where(true, e, 2.5f32)",
        "x[i ~constant -1.0f32] + a[i - 1 ~edge, 2*i ~wrap]",
        "x[h[h[i] ~checked] ~reflect]",
        "x[i ~symmetric]",
        "{2*i + 1} + {-i} * {(M + 1) // 2}",
        "not (not true)",
    ],
)
def test_parentheses_only_where_needed(text) -> None:
    shown = text.replace("not (not true)", "not not true")
    assert print_expr(expr(text)) == shown


def test_loops() -> None:
    text = (
        "par i < M, j in 1 .. min(N, M) step 2, k in max(i, 1) .. N where {j} < {k}\n"
        "  seq t < M\n"
        "    prefix u < N step M\n"
        "      acc s: f32 sum\n"
        "      s <- x[t]\n"
        "  fold v < N\n"
        "    acc m: f32 max\n"
        "    acc l: f32[M, 3] sum repair self * exp(m.old - m.new)\n"
        "    acc b: f32 argmin\n"
        "    m <- x[v]\n"
        "    l[v, 0 ~checked] <- x[v]\n"
        "    b <- x[v] at {v}\n"
        "z = 1.0f32\n"
    )
    program = parse_program(DECLARED + "kernel k1\n" + "".join(f"  {line}\n" for line in text.splitlines()))
    assert print_body(program.kernels[0].body) == text
    assert print_kernel(program.kernels[0]).startswith("kernel k1\n  par i < M")


def test_the_gutter_shows_source_lines() -> None:
    source = Source("s.lf", "one\ntwo\nthree\n")
    let = Let("a", Const(0, F32), span=Span(source, 4, 7))
    program = Program("p", (), (), (), (Kernel("k", (let,)),))
    line = print_program(program, gutter=True).splitlines()[-1]
    assert line == "  a = 0.0f32".ljust(56) + " # @2"
    assert "#" not in print_program(program)


def test_statements_outside_kernels_make_one_each() -> None:
    program = parse_program(DECLARED + "par i < M\n  y[i] = x[i]\na = 1.0f32\nkernel z\n  b = 1.0f32\nc = 2.0f32\n")
    assert [(k.id, len(k.body)) for k in program.kernels] == [("k1", 1), ("k2", 1), ("z", 1), ("k4", 1)]


def test_comments_and_blank_lines_mean_nothing() -> None:
    bare = DECLARED + "par i < M\n  y[i] = x[i]\n"
    spaced = "\n# top\n" + bare.replace("\n", "   # note\n\n     # more\n")
    assert parse_program(spaced) == parse_program(bare)
    assert parse_program(bare.replace("\n", "\r\n")) == parse_program(bare)


def test_nodes_know_where_they_were_read() -> None:
    text = DECLARED + "par i < M\n  y[i] = x[i] + 1.0f32\n"
    loop = parse_program(text, "f.lfir").kernels[0].body[0]
    assert isinstance(loop, Loop)
    store = loop.body[0]
    assert isinstance(store, Store)
    assert loop.span is not None and loop.span.text == "par i < M"
    assert store.span is not None and store.span.text == "y[i] = x[i] + 1.0f32"
    assert store.value.span is not None and store.value.span.text == "x[i] + 1.0f32"
    assert store.span.source.name == "f.lfir"


def test_malformed_programs_print() -> None:
    odd = Op("no such op", (Const(1 << 70, F16), Const(7, BOOL), Ref("?", F32)), F32, True)
    body = (
        Loop((), (Store("q", (odd,), odd, True, odd, (Mode("edge", Const(0, F32)),)),), "seq", (Acc("a", "b", F32),)),
    )
    text = print_program(Program("p", (), (), (), (Kernel("k", body),)))
    assert "no such op'(bits:0x400000000000000000:f16, bits:0x7:bool, ?)" in text


# -- size -------------------------------------------------------------------------------------------------------------


def test_ten_thousand_statements() -> None:
    lines = [DECLARED + "kernel k1", "  e.0 = 1.0f32"]
    lines += [
        f"  e.{n} = e.{n - 1} * {n}.5f32 + x[{n} ~edge] if {{M}} < {{{n}}} else e.{n - 1}" for n in range(1, 10_000)
    ]
    text = "\n".join(lines) + "\n"
    assert print_program(parse_program(text)) == text


def test_deep_nests_and_long_chains() -> None:
    depth = 300
    text = DECLARED + "".join("  " * n + f"par i.{n} < M\n" for n in range(depth)) + "  " * depth + "y[i.0] = x[i.7]\n"
    assert print_program(parse_program(text)) == text.replace("par i.0", "kernel k1\n  par i.0", 1).replace(
        "\n  ", "\n    "
    ).replace("\n    par i.0", "\n  par i.0")
    chain = " + ".join(["e"] * 2000)
    assert print_expr(expr(chain)) == chain
    arms = "".join(f"e if {{i}} < {{{n}}} else " for n in range(2000)) + "e"
    assert print_expr(expr(arms)) == arms


def test_every_operation_has_a_text() -> None:
    for row in OPS.values():
        kind = "bool" if row.operands == "cond" else row.kinds[-1]
        dtype = {"float": F32, "int": I64, "uint": DTYPES["u32"], "bool": BOOL}[
            row.kinds[-1] if kind == "bool" else kind
        ]
        leaf = Const(1 if dtype == BOOL else 0, dtype)
        args: tuple[Expr, ...] = (leaf,) * row.arity
        if row.operands == "cond":
            args = (Const(1, BOOL), *args[1:])
        result = dtype if row.gives == "explicit" else row.result(tuple(a.dtype for a in args))
        for implied in (False, True):
            made = Op(row.name, args, result, implied)
            assert expr(print_expr(made)) == made
