"""Walking, mapping, substituting and renaming the loop IR, and rules that run to a fixed point."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from ir_tracker import track

from loopfuse.diag import CompilerError
from loopfuse.dtypes import F32, I64
from loopfuse.ir import Affine, Const, Expr, Let, Load, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.printer import print_body, print_expr
from loopfuse.reader import parse_program
from loopfuse.rewrite import (
    Fresh,
    Mapper,
    Substitution,
    binders,
    children,
    expr_names,
    exprs,
    free_names,
    is_const,
    map_expr,
    nodes,
    rebuild,
    rename,
    subexprs,
    walk,
    walk_program,
)
from loopfuse.rules import Rewriter, Rule, Rules
from loopfuse.sizes import Poly

X, Y = Ref("x", F32), Ref("y", F32)
DEEP = 10_000


def add(a: Expr, b: Expr) -> Op:
    return Op("add", (a, b), F32)


def number(n: int) -> Const:
    return Const(n, I64)


def deep(leaf: Expr, depth: int = DEEP) -> Expr:
    for _ in range(depth):
        leaf = Op("neg", (leaf,), F32)
    return leaf


def body(text: str, arrays: str = "x, y, z") -> tuple[Stmt, ...]:
    """Statements over 1-d f32 arrays, an i64 array `p`, and a value `a` from above."""
    lines = [
        "program t(M, N)",
        *(f"buf {a}: f32[N]" for a in arrays.split(", ")),
        "buf p: i64[N] in",
        "kernel k",
        "  a = 1.0f32",
    ]
    return parse_program("\n".join([*lines, *("  " + line for line in text.splitlines())])).kernels[0].body[1:]


# -- walking ----------------------------------------------------------------------------------------------------------


def test_statements_come_in_textual_order() -> None:
    stmts = body("a = 1.0f32\npar i < N\n  b.1 = a\n  par j < N\n    y[j] = b.1\nc = a")
    assert [type(s).__name__ for s in walk(stmts)] == ["Let", "Loop", "Let", "Loop", "Store", "Let"]
    assert [list(binders(s)) for s in walk(stmts)] == [["a"], ["i"], ["b.1"], ["j"], [], ["c"]]


def test_subexpressions_come_once_and_operands_first() -> None:
    shared = add(X, Y)
    root = Select(Op("lt", (shared, X), F32), shared, Load("a", (Affine(Poly.of("i")),), (None,), F32))
    found = list(subexprs(root))
    assert len(found) == len({id(n) for n in found}) == 7
    for node in found:
        assert all(found.index(c) < found.index(node) for c in children(node))


def test_depth_is_not_limited() -> None:
    root = deep(X)
    assert sum(1 for _ in subexprs(root)) == DEEP + 1
    assert map_expr(root, lambda e: e) is root
    changed = map_expr(root, lambda e: Y if e is X else e)
    assert expr_names(changed).values == {"y"}
    assert print_expr(changed).endswith("y")
    nest: tuple[Stmt, ...] = (Let("a", X),)
    for _ in range(DEEP):
        nest = (Loop((), nest),)
    assert sum(1 for _ in walk(nest)) == DEEP + 1
    assert Mapper().on_body(nest) is nest
    assert free_names(nest).values == {"x"}


# -- maps -------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(ir_programs())
def test_a_map_that_changes_nothing_gives_the_same_object(program) -> None:
    assert Mapper().on_program(program) is program
    # Equal but new nodes are a change; equal polynomials are none.
    assert Mapper(poly=lambda p: Poly(p.terms)).on_program(program) is program


def test_sharing_is_kept() -> None:
    shared = add(X, Y)
    root = map_expr(add(shared, Op("neg", (shared,), F32)), lambda e: Y if e is X else e)
    assert isinstance(root, Op)
    left, right = root.args
    assert left == add(Y, Y)
    assert isinstance(right, Op)
    assert right.args[0] is left


def test_a_map_sees_mapped_operands() -> None:
    seen: list[Expr] = []

    def note(e: Expr) -> Expr:
        seen.append(e)
        return Y if e is X else e

    map_expr(add(X, X), note)
    assert seen == [X, add(Y, Y)]


def test_rebuild_keeps_all_fields() -> None:
    for stmt in walk_program(parse_program(EVERYTHING)):
        for node in subexprs(*exprs(stmt)):
            assert rebuild(node, children(node)) is node
            copies = tuple(replace(child) for child in children(node))
            assert rebuild(node, copies) == node


EVERYTHING = """program t(N)
buf x: f16[N] in
buf y: f32[N] out
par i < N
  a = f32'(x[i - 1 ~constant 1.0f16]) if {i} < {N} else 2.0f32
  y[i ~checked] = a
"""


def test_a_statement_may_become_several_or_none() -> None:
    stmts = body("a = 1.0f32\npar i < N\n  y[i] = a\n  z[i] = a")
    twice = Mapper(stmt=lambda s: (s, s) if isinstance(s, Let) else s).on_body(stmts)
    assert [type(s).__name__ for s in twice] == ["Let", "Let", "Loop"]
    without = Mapper(stmt=lambda s: () if isinstance(s, Store) and s.buffer == "y" else s).on_body(stmts)
    assert print_body(without) == "a = 1.0f32\npar i < N\n  z[i] = a\n"


def test_every_polynomial_of_a_program_is_mapped() -> None:
    program = parse_program(
        "program t(N)\nrequire {N} > {1}\nbuf x: f32[N, N + 1] in\nbuf k: i32[N] in range N .. 2*N\n"
        "buf w: f32[N] local window [N:N + i]\nbuf y: f32[N] out\n"
        "fold i in max(N, 1) .. min(N, 7) step N where {N} < {i}\n  acc s: f32[N] sum\n  s[N] <- x[i, N]\n"
    )
    mapped = Mapper(poly=lambda p: p.subs({"N": Poly.of("M")})).on_program(program)
    assert "N" not in {n for s in walk_program(mapped) for e in exprs(s) for n in expr_names(e).values}
    assert mapped == parse_program(
        "program t(N)\nrequire {M} > {1}\nbuf x: f32[M, M + 1] in\nbuf k: i32[M] in range M .. 2*M\n"
        "buf w: f32[M] local window [M:M + i]\nbuf y: f32[M] out\n"
        "fold i in max(M, 1) .. min(M, 7) step M where {M} < {i}\n  acc s: f32[M] sum\n  s[M] <- x[i, M]\n"
    )


# -- names ------------------------------------------------------------------------------------------------------------


def test_free_names() -> None:
    stmts = body(
        "k = p[0]\nfold i < M where x[i] > 0.0f32\n  acc s: f32 sum\n  e.1 = x[i + k]\n  s <- e.1\n"
        "par i < N\n  y[i] = s + z[j]"
    )
    found = free_names(stmts)
    assert found.values == {"M", "N", "j"}
    assert found.loads == {"p", "x", "z"}
    assert found.stores == {"y"}
    assert free_names(stmts[2:]).values == {"N", "j", "s"}


def test_an_index_is_free_outside_its_loop() -> None:
    assert free_names(body("par i < N\n  y[i] = 1.0f32\npar j < i\n  z[j] = 1.0f32")).values == {"N", "i"}


def test_the_names_of_a_repair_are_not_free() -> None:
    stmts = body("fold i < N\n  acc m: f32 max\n  acc l: f32 sum repair self * exp(m.old - m.new)\n  m <- x[i]")
    assert free_names(stmts).values == {"N"}


def test_fresh_ids() -> None:
    fresh = Fresh(parse_program("program t(N)\nbuf e: f32[N] out\npar i < N\n  e.1 = 1.0f32\n  e[i] = e.1\n"))
    assert [fresh("e"), fresh("e.1"), fresh("x"), fresh("i"), fresh("k1")] == ["e.2", "e.3", "x.1", "i.1", "k1.1"]


@settings(max_examples=40, deadline=None)
@given(ir_programs())
def test_renaming_there_and_back(program) -> None:
    stmts = program.kernels[0].body
    ids = sorted({name for s in walk(stmts) for name in binders(s)} | free_names(stmts).all)
    there = {id: f"r.{n}" for n, id in enumerate(ids)}
    renamed = rename(stmts, there)
    assert not {name for s in walk(renamed) for name in binders(s)} & set(ids)
    assert free_names(renamed).all == {there[n] for n in free_names(stmts).all}
    assert rename(renamed, {new: old for old, new in there.items()}) == stmts


# -- substitution -----------------------------------------------------------------------------------------------------


def test_substitution_reaches_values_subscripts_and_bounds() -> None:
    stmts = body("par i < k\n  y[i + k] = a + f32({k})")
    found = Substitution({"a": X}, {"k": Poly.of("N") - 1}).body(stmts)
    assert print_body(found) == "par i < N - 1\n  y[N + i - 1] = x + f32({N - 1})\n"


def test_an_integer_let_becomes_a_polynomial_or_another_name() -> None:
    use = Op("mul", (Ref("k", I64), Affine(Poly.of("k") + 1)), I64)
    assert print_expr(Substitution({"k": Affine(Poly.of("i") * 2)}).expr(use)) == "{2*i} * {2*i + 1}"
    assert print_expr(Substitution({"k": Ref("h", I64)}).expr(use)) == "h * {h + 1}"
    with pytest.raises(CompilerError, match="`k` occurs in the polynomial `k \\+ 1`"):
        Substitution({"k": Op("neg", (Ref("h", I64),), I64)}).expr(use)


def test_substitution_captures_nothing() -> None:
    stmts = body("par i < N\n  y[i] = a")
    with pytest.raises(CompilerError, match="capture `i`"):
        Substitution({"a": Op("cast", (Affine(Poly.of("i")),), F32)}).body(stmts)
    with pytest.raises(CompilerError, match="capture `i`"):
        Substitution(indices={"i": Poly.of("M")}).body(stmts)


def test_substitution_that_meets_nothing_changes_nothing() -> None:
    stmts = body("par i < N\n  y[i] = a")
    assert Substitution({"b": X}, {"M": Poly.of(1)}).body(stmts) is stmts


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_fixing_the_sizes_keeps_the_program_running(data) -> None:
    program = data.draw(ir_programs())
    sizes, arrays = data.draw(ir_inputs(program))
    fixed = Substitution(indices={name: Poly.of(value) for name, value in sizes.items()}).program(program)
    mentioned = {n for s in walk_program(fixed) for e in exprs(s) for n in expr_names(e).values}
    assert mentioned.isdisjoint(sizes)
    assert track(fixed, {}, arrays, list) is None


# -- rules ------------------------------------------------------------------------------------------------------------

ONE, ZERO = number(1), number(0)


def _op(name: str, *args: Expr) -> Op:
    return Op(name, args, I64)


def _is(e: Expr, name: str) -> bool:
    return isinstance(e, Op) and e.op == name


NEUTRAL = Rules(
    [
        Rule("x * 1 => x", lambda e: e.args[0] if isinstance(e, Op) and e.args[1] == ONE else None, ("mul",)),
        Rule("x + 0 => x", lambda e: e.args[0] if isinstance(e, Op) and e.args[1] == ZERO else None, ("add",)),
    ]
)
DOUBLE = Rules([Rule("x + x => 2 * x", lambda e: _op("mul", e.args[0], number(2))
                     if isinstance(e, Op) and e.op == "add" and e.args[0] == e.args[1] else None)])  # fmt: skip
A, B = Ref("a", I64), Ref("b", I64)


def test_rules_run_to_a_fixed_point_and_are_recorded() -> None:
    rewriter = Rewriter(NEUTRAL + DOUBLE)
    root = _op("add", _op("mul", A, ONE), _op("add", A, ZERO))
    assert rewriter.expr(root) == _op("mul", A, number(2))
    assert [f.rule for f in rewriter.fired] == ["x * 1 => x", "x + 0 => x", "x + x => 2 * x"]
    assert rewriter.fired[0].before == _op("mul", A, ONE)
    assert rewriter.fired[0].after is A


def test_the_result_of_a_rule_is_rewritten_too() -> None:
    rules = Rules([Rule("f => (a + 0) * 1", lambda e: _op("mul", _op("add", A, ZERO), ONE), ("f",))]) + NEUTRAL
    assert Rewriter(rules).expr(_op("neg", _op("f", B))) == _op("neg", A)


def test_nothing_to_do_gives_the_same_object() -> None:
    root = _op("add", _op("mul", A, B), A)
    rewriter = Rewriter(NEUTRAL + DOUBLE)
    assert rewriter.expr(root) is root
    assert not rewriter.fired
    program = parse_program(EVERYTHING)
    assert rewriter.program(program) is program


def test_earlier_rules_come_first() -> None:
    to_a = Rules([Rule("to a", lambda e: A, ("f",))])
    to_b = Rules([Rule("to b", lambda e: B, ("f",))])
    assert Rewriter(to_a + to_b).expr(_op("f")) is A
    assert Rewriter(to_b + to_a).expr(_op("f")) is B
    assert [r.name for r in to_a + to_b] == ["to a", "to b"]


def test_heads_may_name_classes() -> None:
    rules = Rules([Rule("const to a", lambda e: A, ("Const",))])
    assert Rewriter(rules).expr(_op("add", ONE, B)) == _op("add", A, B)


def test_rules_that_do_not_end_are_named() -> None:
    grow = Rules([Rule("grow", lambda e: _op("f", e.args[0], ONE) if isinstance(e, Op) else None, ("f",))])
    with pytest.raises(CompilerError, match="after 50 steps; the last rules were grow"):
        Rewriter(grow, limit=50).expr(_op("f", A, A))
    f, g = _op("f", A), _op("g", A)
    swing = Rules([Rule("f to g", lambda e: g, ("f",)), Rule("g to f", lambda e: f, ("g",))])
    with pytest.raises(CompilerError, match="no fixed point"):
        Rewriter(swing).expr(f)
    wrap = Rules([Rule("wrap", lambda e: _op("g", e), ("f",))])
    with pytest.raises(CompilerError, match="no fixed point"):
        Rewriter(wrap).expr(f)


def test_a_shared_node_is_rewritten_once() -> None:
    shared = _op("mul", A, ONE)
    rewriter = Rewriter(NEUTRAL)
    found = rewriter.expr(_op("sub", shared, _op("neg", shared)))
    assert found == _op("sub", A, _op("neg", A))
    assert len(rewriter.fired) == 1


def test_rules_reach_any_depth() -> None:
    chain: Expr = A
    for _ in range(DEEP):
        chain = _op("add", chain, ZERO)
    rewriter = Rewriter(NEUTRAL)
    assert rewriter.expr(chain) is A
    assert len(rewriter.fired) == DEEP


@settings(max_examples=30, deadline=None)
@given(ir_programs())
def test_no_rule_matches_a_normal_form(program) -> None:
    def swap(e: Expr) -> Expr | None:
        if isinstance(e, Op) and is_const(e.args[0]) and not is_const(e.args[1]):
            return Op(e.op, e.args[::-1], e.dtype, e.implied)
        return None

    def away(e: Expr) -> Expr | None:
        return e.args[0] if isinstance(e, Op) and e.args[0].dtype == e.dtype else None

    rules = Rules([Rule("constants right", swap, ("add", "mul")), Rule("double negation", away, ("neg", "cast"))])
    rewriter = Rewriter(rules)
    result = rewriter.program(program)
    assert all(rules.first(node) is None for node in nodes(result))
    assert (result is program) == (not rewriter.fired)


def test_long_programs() -> None:
    lines = ["e.0 = x[0] * 1.0f32"] + [f"e.{n} = e.{n - 1} + x[{n % 7}] * 1.0f32" for n in range(1, DEEP)]
    stmts = body("\n".join(lines))
    assert len(free_names(stmts).values) == 0
    found = Substitution({"a": X}).body(stmts)
    assert found is stmts
    renamed = rename(stmts, {f"e.{n}": f"f.{n}" for n in range(DEEP)})
    assert isinstance(renamed[-1], Let)
    assert renamed[-1].id == f"f.{DEEP - 1}"
