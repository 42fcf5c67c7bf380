"""Simplification: every rule on nasty values at every type it claims, and what the pass makes of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import SEPARATOR, cases, check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import Programs, ir_inputs, ir_programs
from kernel_checks import check_same_results
from op_samples import ALL_DTYPES, few, same
from pass_checks import SCRIPTS, apply, assert_keeps_bits, lowered_script, shown
from rule_checks import evaluate, instances, wrong_claims

from loopfuse.diag import CompilerError
from loopfuse.dtypes import F16, F32, I8, I32, I64, DType
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.ops import OPS, to_bits
from loopfuse.passes.base import Steps
from loopfuse.passes.laws import LAWS
from loopfuse.passes.patterns import parts
from loopfuse.passes.patterns import same as equal
from loopfuse.passes.rulefile import Spec, exact, read_rules
from loopfuse.passes.simplify import PASS, affine_rule, specs
from loopfuse.passes.simplify import shown as shortened
from loopfuse.reader import parse_program
from loopfuse.rewrite import children, subexprs
from loopfuse.rules import Rewriter, Rules
from loopfuse.sizes import Poly

X, Y = Ref("x", F32), Ref("y", F32)
RULES = LAWS + Rules(s.rule() for s in specs())


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


# -- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", specs(), ids=lambda s: s.name)
def test_rule_holds_at_every_type_it_claims(spec: Spec) -> None:
    assert wrong_claims((spec,)) == []
    assert any(True for types in spec.claims() for _ in instances(spec, types)), "the rule never applies"


WRONG = [
    "w: x * 0 => 0",
    "w: x - x => 0",
    "w: x / x => 1",
    "w: x + 0 => x",
    "w: x + 0 => x where float(x)",
    "w: not (a < b) => a >= b where float(a)",
    "w: x == x => true",
    "w: log(exp(x)) => x where f64(x)",
    "w: sqrt(x * x) => abs(x)",
    "w: x ** 0.5 => sqrt(x)",
    "w: (x + y) + z => x + (y + z)",
    "w: x * (y + z) => x * y + x * z",
    "w: x / 3 => x * 0.3333333333333333",
    "w: T(U(x)) => x where float(x)",
    "w: T(U(x)) => T(x) where exact(x, U)",
    "w: 0 - x => -x",
    "w: -0.0 - x => x",
    "w: abs(-x) => abs(x)",
    "w: -(x - y) => y - x",
    "w: (x + y) - y => x",
    "w: x // 2 => x >> 2 where int(x)",
    "w: maximum(minimum(x, y), x) => y",
    "w: x < y => not (x >= y)",
    "w: fma(x, y, 0) => x * y",
    "w: copysign(x, y) => x",
    "w: x if c else y => y",
    "w: where(c, x, y) => where(not c, x, y)",
]


@pytest.mark.parametrize("text", WRONG)
def test_the_tester_finds_wrong_rules(text: str) -> None:
    assert wrong_claims(read_rules(text))


@pytest.mark.parametrize("name", ["zero-sub", "mod-one", "neg-sub", "sub-add", "sub-eq", "cast-back", "abs-neg"])
def test_rules_fail_at_types_that_they_do_not_claim(name: str) -> None:
    spec = next(s for s in specs() if s.name == name)
    where = spec.text.partition(" where ")[2]
    wider = read_rules(spec.text.replace(f" where {where}", ""))
    assert len(list(wider[0].claims())) > len(list(spec.claims()))
    assert wrong_claims(wider)


def test_rules_do_not_grow_expressions() -> None:
    def depth(pattern: Any) -> int:
        return 1 + max(map(depth, parts(pattern)), default=0)

    for spec in specs():
        assert depth(spec.rhs) <= depth(spec.lhs), spec.text


@pytest.mark.parametrize(
    "text",
    ["w: x * 1", "w: x => y", "w: f(x) => x", "w: x + 1 => x where odd(x)", "w: x[0] => x", "w: x => x where int x",
     "a: x - x => 0\na: x => x", "w: x * 1i32 => x"],
)  # fmt: skip
def test_bad_lines_are_named(text: str) -> None:
    with pytest.raises(CompilerError, match=r"rules:\d:"):
        read_rules(text)


@pytest.mark.parametrize("a", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("b", ALL_DTYPES, ids=str)
def test_exact_is_there_and_back(a: DType, b: DType) -> None:
    cast = OPS["cast"]
    values = few(a, 60)
    back = cast.evaluate([cast.evaluate([values], b)], a)
    if exact(a, b):
        assert same(values, back).all()
    elif a.is_float or not b.is_int:
        assert not same(values, back).all()


# -- the laws of the table --------------------------------------------------------------------------------------------


def law_terms(dtype: DType) -> list[Expr]:
    """Operations on refs, on equal refs, on constants, and on one another."""
    x, y = Ref("x", dtype), Ref("y", dtype)
    values = [Const(to_bits(v, dtype), dtype) for v in few(dtype, 14)]
    found: list[Expr] = []
    for row in OPS.values():
        if dtype.kind not in row.kinds or row.gives == "explicit" or row.operands == "cond":
            continue
        result = row.result([dtype] * row.arity)

        def op(*args: Expr, name: str = row.name, dtype: DType = result) -> Op:
            return Op(name, args, dtype)

        if row.arity == 1:
            found += [op(x), *(op(v) for v in values)]
            found += [op(op(x))] if result == dtype else []
            found += [Op("not", (op(x),), result)] if result.kind == "bool" else []
        elif row.arity == 2:
            found += [op(x, x), op(x, y), *(op(x, v) for v in values), *(op(v, x) for v in values)]
            found += [Op("not", (op(x, y),), result)] if result.kind == "bool" else []
            if result == dtype:
                found += [op(op(x, y), y), op(op(x, y), x), op(op(x, values[3 % len(values)]), values[-1])]
    return found


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_laws_keep_every_value(dtype: DType) -> None:
    values = {"x": few(dtype).reshape(-1, 1), "y": few(dtype)}
    names = set()
    for before in law_terms(dtype):
        rewriter = Rewriter(LAWS)
        after = rewriter.expr(before)
        names |= {f.rule for f in rewriter.fired}
        if after is not before:
            left, right = np.broadcast_arrays(evaluate(before, values), evaluate(after, values))
            assert same(left, right).all(), before
    assert {"fold", "identity"} <= names


def test_every_law_is_used() -> None:
    rewriter = Rewriter(LAWS)
    for dtype in ALL_DTYPES:
        for term in law_terms(dtype):
            rewriter.expr(term)
    assert {f.rule for f in rewriter.fired} == {rule.name for rule in LAWS}


# -- termination ------------------------------------------------------------------------------------------------------


def depth(root: Expr) -> int:
    levels: dict[int, int] = {}
    for node in subexprs(root):
        levels[id(node)] = 1 + max((levels[id(c)] for c in children(node)), default=0)
    return levels[id(root)]


@given(st.data())
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_expressions_reach_a_fixed_point(data: st.DataObject) -> None:
    maker = Programs(data.draw)
    maker.declare_sizes()
    maker.declare_inputs()
    scope = maker.scope()
    for dtype in (F32, I32, I64, F16):
        before = maker.expr(dtype, scope, 4)
        rewriter = Rewriter(RULES, limit=2000)
        after = rewriter.expr(before)
        assert depth(after) <= depth(before) + 1
        assert Rewriter(RULES).expr(after) is after


def test_a_long_chain_takes_linear_time() -> None:
    expr: Expr = X
    for _ in range(3000):
        expr = Op("mul", (Op("add", (Const(to_bits(np.float32(1), F32), F32), expr), F32),
                          Const(to_bits(np.float32(1), F32), F32)), F32)  # fmt: skip
    rewriter = Rewriter(RULES)
    assert depth(rewriter.expr(expr)) == 3001
    assert shortened(expr) == "..."


def test_equality_needs_no_stack() -> None:
    def deep(leaf: Expr) -> Expr:
        for _ in range(2000):
            leaf = Op("sqrt", (leaf,), F32)
        return leaf

    assert equal(deep(X), deep(X))
    assert not equal(deep(X), deep(Y))


# -- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", cases("simplify"), ids=lambda p: p.stem)
def test_files(path: Path, bless: bool) -> None:
    check_golden(PASS, path, bless)


@pytest.mark.parametrize("path", cases("simplify"), ids=lambda p: p.stem)
def test_files_keep_their_results(path: Path) -> None:
    before = parse_program(path.read_text().partition(SEPARATOR)[0])
    for start in (2, 5):
        check_same_results(before, apply(PASS, before).program, {s.id: start + k for k, s in enumerate(before.sizes)})


@given(st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_random_programs_keep_their_bits(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    assert_keeps_bits(PASS, program, sizes, inputs)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_scripts_keep_their_bits(path: Path) -> None:
    lowered, bound = lowered_script(path)
    inputs = {b.id: bound.inputs[b.id] for b in lowered.program.buffers if b.role in ("in", "param")}
    assert_keeps_bits(PASS, lowered.program, bound.sizes, inputs)


BODY = """program p(N)
buf x: f32[N] in
buf t: f32[N]
buf y: f32[N] out
kernel k
  par i < N
    t[i] = x[i] * 1.0f32
kernel l
  par i < N
    a = 2.0f32
    y[i] = (0.5f32 + t[i] * 1.0f32) * a
"""


def test_steps_may_be_refused_one_by_one() -> None:
    whole = Steps()
    apply(PASS, BODY, steps={"simplify": whole})
    assert len(whole.log) == 5
    texts = []
    for most in range(6):
        counter = Steps(most)
        stage = apply(PASS, BODY, steps={"simplify": counter})
        assert counter.log == whole.log[:most]
        texts.append(shown(stage.program))
    assert len(set(texts)) == 6
    assert apply(PASS, BODY, steps={"simplify": Steps(0)}).changed is False


def test_faults_are_not_lost() -> None:
    text = """program p(N)
buf x: i32[N] in
buf k: i64[N] in
buf y: i32[N] out
kernel k1
  par i < N
    y[i] = x[$k[i] ~checked] * 0i32
"""
    stage = apply(PASS, text)
    assert not stage.changed


@pytest.mark.parametrize("text", ["pragma materialize(z)", "expect z"])
def test_what_a_directive_names_is_kept(text: str) -> None:
    program = f"""program p(N)
buf x: f32[N] in
buf z: f32[N]
buf y: f32[N] out
{text}
kernel k
  par i < N
    z[i] = x[i]
kernel l
  par i < N
    y[i] = z[i] + 1.0f32
"""
    assert not apply(PASS, program).changed


def test_index_arithmetic_is_exact_or_left_alone() -> None:
    program = parse_program(BODY)
    rule = affine_rule(program)
    i, n = Affine(Poly.of("i")), Affine(Poly.of("N"))
    big = Const(1 << 62, I64)
    assert rule.apply(Op("add", (i, Const(3, I64)), I64)) == Affine(Poly.of("i") + 3)
    assert rule.apply(Op("mul", (i, n), I64)) == Affine(Poly.of("i") * Poly.of("N"))
    assert rule.apply(Op("mul", (i, big), I64)) is None
    assert rule.apply(Op("add", (i, Ref("k", I64)), I64)) is None
    assert rule.apply(Op("add", (Affine(Poly.of("k")), Const(3, I64)), I64)) is None


def test_declared_casts_of_halves_stay() -> None:
    x = Ref("x", F16)
    declared = Op("cast", (Op("cast", (x,), F32, True),), F16)
    implied = Op("cast", (Op("cast", (x,), F32, True),), F16, True)
    assert Rewriter(RULES).expr(declared) is declared
    assert Rewriter(RULES).expr(implied) is x
    byte = Ref("b", I8)
    assert Rewriter(RULES).expr(Op("cast", (Op("cast", (byte,), I32),), I8)) is byte


def test_arms_that_read_keep_their_guard() -> None:
    load = Load("a", (Affine(Poly.of("i")),), (None,), F32)
    cond = Ref("c", OPS["eq"].result([I32, I32]))
    choice = Select(cond, load, load)
    assert Rewriter(RULES).expr(choice) is choice
    assert Rewriter(RULES).expr(Select(cond, X, X)) is X
