"""Soundness of the prover against brute force, of its simplex against another solver, and bounds on its work."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import prove_random
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prove_terms import Terms, known
from scipy.optimize import linprog

from loopfuse.constants import constant, from_bits
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16
from loopfuse.ir import Affine, Const, Expr, Load, Op
from loopfuse.ops import OPS
from loopfuse.prove import exprs, judge
from loopfuse.prove.floats import interval
from loopfuse.prove.linear import Row, infeasible
from loopfuse.sizes import Poly

FLOATS = (F16, BF16, F32, F64)
STEPS = ("floor", "ceil", "round", "trunc", "abs", "neg")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_sound(seed: int) -> None:
    """Random facts and goals: no claim has a counterexample among small sizes."""
    prove_random.check(seed, assignments=8, points=150)


@pytest.mark.parametrize("seed", [2628, 6000, 6526, 7126, 11686])
def test_seeds_that_failed_once(seed: int) -> None:
    """Divisors of values, data that do not move with an index, lets under moved indices, guards half understood."""
    prove_random.check(seed)


def test_generator_reaches_all_verdicts() -> None:
    """The random problems are not all of one kind."""
    total: dict[str, int] = {}
    for seed in range(30):
        for name, count in prove_random.check(seed, assignments=4, points=60).items():
            total[name] = total.get(name, 0) + count
    assert min(total.get(name, 0) for name in ("proved", "wrong", "requires", "checked")) >= 5, total


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_infeasible_agrees_with_linprog(seed: int) -> None:
    """The simplex finds a contradiction exactly where there is one, and its rows contradict each other."""
    rng = Random(seed)
    count, width = rng.randint(2, 9), rng.randint(1, 4)
    rows = [Row({(v,): c for v in range(width) if (c := rng.randint(-3, 3))}, rng.randint(-4, 4)) for _ in range(count)]

    def feasible(some: list[Row]) -> bool:
        matrix = np.array([[-r.terms.get((v,), 0) for v in range(width)] for r in some], dtype=float)
        limits = np.array([r.constant for r in some], dtype=float)
        return linprog(np.zeros(width), matrix, limits, bounds=[(None, None)] * width).status == 0

    found = infeasible(rows, 100_000).conflict
    assert (found is None) == feasible(rows)
    if found is not None:
        assert not feasible([rows[i] for i in found])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_float_ranges_hold(seed: int) -> None:
    """Casts, products and roundings of every value of a small integer: what is not NaN lies within the bounds."""
    rng = Random(seed)
    source = rng.choice([U8, I8, U16, I16])
    values = np.arange(source.least, source.greatest + 1, 1 if source.bits == 8 else 7).astype(source.numpy)
    values[-1] = source.greatest
    expr: Expr = Op("cast", (Load("v", (Affine(Poly.of("n")),), (None,), source),), rng.choice(FLOATS))
    for _ in range(rng.randint(0, 5)):
        kind = rng.choice(["cast", "cast", "mul", "add", "sub", "const", "const", "int", *STEPS])
        if kind == "cast":
            expr = Op("cast", (expr,), rng.choice(FLOATS))
        elif kind in ("mul", "add", "sub"):
            expr = Op(kind, (expr, expr), expr.dtype)
        elif kind == "const":
            number = rng.choice([-1.0, 0.5, 300.0, 65504.0, -70000.0, 1e30, 3.3e38, 1e300, float("inf")])
            factor = Const(constant(number, expr.dtype), expr.dtype)
            expr = Op(rng.choice(["mul", "add", "minimum", "maximum"]), (factor, expr), expr.dtype)
        elif kind == "int":
            middle = rng.choice([I16, U8, I32])
            expr = Op("cast", (Op("cast", (expr,), middle),), expr.dtype)
        else:
            expr = Op(kind, (expr,), expr.dtype)
    terms = Terms({"v": source.name})
    facts = known(terms, "N", "", "n in 0..N")
    box = interval(facts.state, expr)
    wide = _value(expr, values).astype(np.float64)
    wide = wide[~np.isnan(wide)]
    if wide.size:
        assert all(wide.min() >= b.value for b in box.lo if isinstance(b.value, Fraction))
        assert all(wide.max() <= b.value for b in box.hi if isinstance(b.value, Fraction))
    made = Op("cast", (expr,), rng.choice([I8, U8, I16, U16, I32, I64]))
    ends = _value(made, values)
    low, high = facts.bounds(made, frozenset())
    assert all(int(ends.min()) >= b.constant for b in low) and all(int(ends.max()) <= b.constant for b in high)


def _value(expr: Expr, values: np.ndarray) -> np.ndarray:
    """The expression at every value of the array."""
    if isinstance(expr, Load):
        return values
    if isinstance(expr, Const):
        return np.asarray(from_bits(expr.bits, expr.dtype))
    assert isinstance(expr, Op)
    args = tuple(_value(a, values) for a in expr.args)
    return np.asarray(OPS[expr.op].evaluate(args, expr.dtype))


def test_work_is_bounded() -> None:
    """A refutation that would take long is given up."""
    rng = Random(5)
    rows = [
        Row({(v,): rng.randint(1, 99) * rng.choice([1, -1]) for v in range(40)}, rng.randint(-9, 9)) for _ in range(90)
    ]
    outcome = infeasible(rows, 5_000)
    assert outcome.conflict is None and outcome.work < 40_000


def test_look_through_is_bounded() -> None:
    """A long chain of definitions ends in an atom, not in a deep recursion."""
    terms = Terms({f"d{k}": "i64" for k in range(40)})
    defs = {f"d{k}": ("i", f"d{k - 1}[i] + d{k - 1}[i + 1]") for k in range(1, 40)}
    facts = known(terms, "N", "", "n in 0..N", defs=defs)
    poly = facts.poly(terms.expr("d39[n]"))
    assert judge(facts, terms.expr("d39[n]"), terms.poly("N")).verdict == "checked"
    assert poly is not None and exprs._DEPTH < 39


def test_deep_expressions_are_left_alone() -> None:
    """Expressions too deep to be read say nothing, as values, conditions, definitions and lets."""
    terms = Terms({"v": "i64", "d": "i64"}, {"t": "i64"})
    deep, cond = terms.expr("v[0]"), terms.expr("v[0] < 3")
    for _ in range(3000):
        deep, cond = Op("add", (deep, terms.expr("v[1]")), I64), Op("or", (cond, terms.expr("v[1] > 5")), BOOL)
    facts = known(terms, "N", "", "n in 0..N").define("d", ("i",), deep).let("t", deep).assume(cond)
    facts = facts.assume(cond, False).assume(Op("and", (terms.expr("n > 0"), cond), BOOL))
    assert facts.poly(deep) is None and facts.bounds(deep, frozenset("N")) == ((), ())
    assert judge(facts, deep, Poly.of("N")).verdict == "checked"
    assert judge(facts, terms.expr("d[n] + t"), Poly.of("N")).verdict == "checked"
    assert judge(facts, terms.expr("n - 1"), Poly.of("N")).verdict == "proved"
