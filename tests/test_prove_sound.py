"""Soundness of the prover against brute force, of its simplex against another solver, and bounds on its work."""

from __future__ import annotations

from random import Random

import numpy as np
import prove_random
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prove_terms import Terms, known
from scipy.optimize import linprog

from loopfuse.dtypes import BOOL, I64
from loopfuse.ir import Op
from loopfuse.prove import exprs, judge
from loopfuse.prove.linear import Row, infeasible
from loopfuse.sizes import Poly


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
