"""Peepholes: the rules on nasty values, and what the pass makes of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import SEPARATOR, cases, check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from kernel_checks import check_same_results, inputs_for
from op_samples import anything, ulps
from pass_checks import SCRIPTS, apply, assert_keeps_bits, lowered_script, shown
from rule_checks import constants, evaluate, instances, wrong_claims

from loopfuse.backends.reference import agrees, run, run_bounded
from loopfuse.dtypes import BOOL, F16, F32, I8, I32, U8, U64, DType
from loopfuse.ir import Affine, Const, Op, Program, Ref
from loopfuse.ops import constant, to_bits
from loopfuse.passes.base import Steps
from loopfuse.passes.peephole import PASS, specs
from loopfuse.passes.redundant import truth
from loopfuse.passes.rulefile import Spec, read_rules
from loopfuse.prove import Facts
from loopfuse.reader import parse_program
from loopfuse.sizes import ZERO, Poly

FILES = cases("peephole")
SIZES = {"N": 6, "M": 12, "T": 5}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


# -- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", specs(), ids=lambda s: s.name)
def test_rule_holds_at_every_type_it_claims(spec: Spec) -> None:
    assert wrong_claims((spec,)) == []
    assert all(any(True for _ in instances(spec, types)) for types in spec.claims())


@pytest.mark.parametrize(
    "text",
    ["w: x * c => x << exponent(c) where int(x), const(c)", "w: x // c => x >> exponent(c) where int(x), const(c)",
     "w: x % c => x & c where int(x), power(c)", "w: x / c => x * (1 / c) where float(x), const(c)",
     "w: x // c => x * (1 / c) where float(x), power(c)", "w: x ** 3 => x * x where int(x)"],
)  # fmt: skip
def test_the_tester_finds_wrong_rules(text: str) -> None:
    assert wrong_claims(read_rules(text))


@pytest.mark.parametrize("dtype", [I8, U8, I32, U64], ids=str)
@pytest.mark.parametrize("name", ["mul-power", "div-power", "mod-power"])
def test_integer_rules_on_many_values(name: str, dtype: DType) -> None:
    spec = next(s for s in specs() if s.name == name)
    values = {"x": anything(dtype, 300, 1)}
    tried = 0
    for assignment in spec.claims():
        if assignment[spec.slots.root("x")] != dtype:
            continue
        for before, after in instances(spec, assignment):
            assert (evaluate(before, values) == evaluate(after, values)).all()
            tried += 1
    assert tried >= 6


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_powers_of_two_divide_as_they_multiply(dtype: DType) -> None:
    spec = next(s for s in specs() if s.name == "div-float")
    (types,) = (t for t in spec.claims() if dtype in t.values())
    values = {"x": anything(dtype, 4000, 2)}
    powers = [2.0**k for k in (-14, -13, -3, 1, 7, 14)]
    for power in powers:
        before = spec.example(types, {"c": Const(constant(power, dtype), dtype)})
        assert before is not None
        after = spec.rule().apply(before)
        assert after is not None
        left, right = evaluate(before, values), evaluate(after, values)
        assert ((left == right) | (left != left)).all()
    assert len(list(constants(spec, {"c": dtype}))) > len(powers)


def test_squares_err_less_than_powers() -> None:
    spec = next(s for s in specs() if s.name == "square-float")
    assert spec.rounds
    (types,) = (t for t in spec.claims() if F32 in t.values())
    values = {"x": np.random.default_rng(0).standard_normal(5000).astype(np.float32)}
    before, after = next(instances(spec, types))
    exact = values["x"].astype(np.float64) ** 2
    assert ulps(evaluate(after, values), exact, F32).max() <= 0.5
    assert ulps(evaluate(before, values), exact, F32).max() < 2


# -- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files(path: Path, bless: bool) -> None:
    check_golden(PASS, path, bless)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_keep_their_results(path: Path) -> None:
    before = parse_program(path.read_text().partition(SEPARATOR)[0])
    stage = apply(PASS, before)
    sizes = {s.id: SIZES[s.id] for s in before.sizes}
    if not stage.rounds:
        check_same_results(before, stage.program, sizes)
    check_agrees(before, stage.program, sizes, inputs_for(before, sizes))
    assert apply(PASS, stage.program).changed is False


def check_agrees(before: Program, after: Program, sizes: Any, inputs: Any) -> None:
    bounded, found = run_bounded(before, inputs, sizes), run(after, inputs, sizes)
    for name, array in found.outputs.items():
        assert agrees(bounded[name], array) is None, name


@given(st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_random_programs_keep_their_bits(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    stage = apply(PASS, program)
    if stage.rounds:
        check_agrees(program, stage.program, sizes, inputs)
    else:
        assert_keeps_bits(PASS, program, sizes, inputs)


@pytest.mark.parametrize("path", SCRIPTS[::3], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_scripts(path: Path) -> None:
    lowered, bound = lowered_script(path)
    stage = apply(PASS, lowered.program)
    inputs = {b.id: bound.inputs[b.id] for b in lowered.program.buffers if b.role in ("in", "param")}
    check_agrees(lowered.program, stage.program, bound.sizes, inputs)


def test_steps_may_be_refused_one_by_one() -> None:
    text = next(p for p in FILES if p.stem == "loops").read_text().partition(SEPARATOR)[0]
    whole = Steps()
    apply(PASS, text, steps={"peephole": whole})
    assert len(whole.log) == 5
    for most in range(len(whole.log)):
        counter = Steps(most)
        apply(PASS, text, steps={"peephole": counter})
        assert counter.log == whole.log[:most]
    assert not apply(PASS, text, steps={"peephole": Steps(0)}).changed


def test_subscripts_are_left_alone() -> None:
    text = """program p(N)
buf k: i64[N] in
buf x: i64[8] in
buf y: i64[N] out
kernel k1
  par i < N
    a = k[i] % 8i64
    y[i] = x[a] + x[$k[i] % 4i64] * 1i64 + k[i] % 4i64
"""
    after = apply(PASS, text).program
    assert shown(after).count("%") == 2
    assert shown(after).count("&") == 1


# -- conditions -------------------------------------------------------------------------------------------------------


def compare(op: str, a: Poly | int, b: Poly | int) -> Op:
    return Op(op, (Affine(Poly.of(a)), Affine(Poly.of(b))), BOOL)


def test_conditions_are_decided_by_facts() -> None:
    i, n = Poly.of("i"), Poly.of("N")
    facts = Facts.empty().size("N").index("i", (ZERO,), (n,))
    assert truth(compare("lt", i, n), facts) is True
    assert truth(compare("ge", i, n), facts) is False
    assert truth(compare("le", i + 1, n), facts) is True
    assert truth(compare("lt", i + 1, n), facts) is None
    assert truth(compare("ne", i, n), facts) is True
    assert truth(compare("eq", i + 1, 0), facts) is False
    assert truth(compare("eq", i, 0), facts) is None
    both = Op("and", (compare("lt", i, n), compare("ge", i, 0)), compare("lt", i, n).dtype)
    assert truth(both, facts) is True
    assert truth(Const(to_bits(np.bool_(True), both.dtype), both.dtype), facts) is True
    assert truth(Ref("unknown", both.dtype), facts) is None
