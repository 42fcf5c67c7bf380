"""Lowering: what is shared, what is cut, and what is not evaluated where it is not needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from lower_checks import check_results, check_valid, depth, lets, single, written_size
from typed_terms import CHECKED, A, T, buf, cast, define, dim, fn, fold, names, program, ref, term

from loopfuse.dtypes import BOOL, F32, I64
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import Scatter, TypedProgram, Update
from loopfuse.ir import Let, Load, Loop, Select
from loopfuse.rewrite import exprs, subexprs, walk_program

N, M, i, j, k = names("N M i j k")
x, z = A("x"), A("z")


def test_a_long_chain_is_cut() -> None:
    e = x[i]
    for _ in range(10_000):
        e = e * 0.5 + x[i]
    r = lower(single(e))
    assert depth(r) <= 64
    assert 300 < len(lets(r)) < 400


def test_repeated_squares_do_not_grow() -> None:
    e = x[i]
    for _ in range(200):
        e = e * e
    assert written_size(lower(single(e))) < 1000


def nested_choices(count: int, step: Callable[[T, float], T]) -> TypedProgram:
    e = x[i]
    for m in range(count):
        e = step(e, float(m))
    return single(e)


CHOICES: dict[str, Callable[[T, float], T]] = {
    "both arms": lambda e, m: (e * m).if_(A("c")[i] > m, e + 1.0),
    "different selects": lambda e, m: (e * 2.0).if_(A("c")[i] > m, 0.0) + (e + 1.0).if_(x[i] > m, 0.0),
    "under itself": lambda e, m: (e * 2.0).if_((A("c")[i] > m).both(e > 0.0), e),
    "ladder": lambda e, m: (x[i] * m).if_(x[i] > m, e),
    "one arm": lambda e, m: (fn("sin", e) * e).if_(A("c")[i] > m, 0.0),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_do_not_grow(name: str) -> None:
    sizes = [written_size(lower(nested_choices(count, CHOICES[name]))) for count in (20, 40)]
    assert sizes[1] < 2.5 * sizes[0] < 8000
    assert depth(lower(nested_choices(400, CHOICES[name]))) <= 64
    check_results(nested_choices(9, CHOICES[name]), {"N": 4})


def guarded(levels: int) -> TypedProgram:
    e = x[i - 1]
    for _ in range(levels):
        e = fn("sin", e * 0.5) + e
    return single((e * e).if_(term(i) >= 1, 0.0))


def test_a_large_term_under_a_condition() -> None:
    """It is named outside, with loads that cannot fail."""
    r = lower(guarded(20))
    check_valid(r)
    assert written_size(r) < 300
    for n in (0, 1, 3):
        check_results(guarded(5), {"N": n})


def test_faults_are_kept() -> None:
    """A checked load is not hoisted out of its arm, nor does it lose its mode."""
    e = x[((A("g", I64)[i], CHECKED),)]
    big = e
    for _ in range(3):
        big = fn("sin", big * 0.5) + e
    r = lower(single((big * big).if_(A("c")[i] > 0.0, 0.0)))
    for s in walk_program(r):
        for e in exprs(s):
            for node in subexprs(e):
                if isinstance(node, Load) and node.buffer == "x":
                    assert node.modes == (CHECKED,) and not isinstance(s, Let)


def test_an_eager_use_serves_the_lazy_ones() -> None:
    r = lower(single((x[i] * 2.0).if_(x[i] > 0.0, x[i])))
    assert [s.value for s in lets(r)] == [x[i].e]


def test_lazy_uses_alone_share_no_load() -> None:
    """But what every evaluation needs in one of two arms is shared."""
    c = A("c")[i] > 0.0
    r = lower(single(x[i].if_(c, 0.0) + (x[i] * 2.0).if_(A("c")[i] < 1.0, 0.0)))
    assert [s.value for s in lets(r)] == [A("c")[i].e]
    r = lower(single(x[i].if_(c, x[i] * 2.0)))
    assert [s.value for s in lets(r)] == [x[i].e]


def test_lets_in_the_loops_that_need_them() -> None:
    """A load that only two folds use is not made where both are empty."""
    c = A("c")[i]
    folds = [fold("a", "sum", dim(k, N), x[k] * c * c), fold("b", "sum", dim(j, N), x[j] + c * c)]
    p = single(ref("a") * ref("b"))
    r = lower(replace(p, body=(replace(p.body[0], folds=tuple(folds)),)))
    nest = r.kernels[0].body[0]
    assert isinstance(nest, Loop) and not any(isinstance(s, Let) for s in nest.body)
    assert [s.value for s in lets(r)] == [c.e, c.e]


def test_both_arms_need_it() -> None:
    big = x[i]
    for _ in range(6):
        big = fn("sin", big) + 1.0
    r = lower(single((big * 2.0).if_(A("c")[i] > 0.0, big * 3.0)))
    assert len(lets(r)) == 1 and all(
        not any(n.modes) for s in lets(r) for n in subexprs(s.value) if isinstance(n, Load)
    )


def test_small_things_are_repeated() -> None:
    """Casts of exact integers, and constants."""
    r = lower(single(fn("exp", cast(term(i), F32) * 2.0) * cast(term(i), F32) * 2.0))
    assert lets(r) == []


def test_a_long_filter_is_stored() -> None:
    cond = x[k] > 0.0
    for m in range(100):
        cond = cond.both(x[k] < float(m + 1))
    p = program("N", [buf("x", N, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], ref("s"), fold("s", "sum", dim(k, N), x[k] * x[i], where=cond))], "y")  # fmt: skip
    r = lower(p)
    (filtered,) = [s for s in walk_program(r) if isinstance(s, Loop) and s.where is not None]
    assert isinstance(filtered.where, Load) and filtered.where.dtype == BOOL
    assert depth(r) <= 64
    check_valid(r)
    check_results(p, {"N": 5})


def test_a_long_filter_that_leaves_a_loop() -> None:
    """It does not depend on `i`, without which `x[0]` may not exist."""
    cond = A("w")[k] > x[0]
    for m in range(40):
        cond = cond.both(A("w")[k] < float(m + 1))
    p = program("N M", [buf("x", N, role="in"), buf("w", M, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], ref("s"), fold("s", "sum", dim(k, M), A("w")[k] * x[i], where=cond))], "y")  # fmt: skip
    check_valid(lower(p))
    for n in (0, 2):
        check_results(p, {"N": n, "M": 3})


def test_a_filter_that_cannot_be_stored() -> None:
    """Its fold has no shape in sizes (the step leaves gaps), so it is computed in the body, around an inner loop."""
    inner = fold("m", "max", dim(j, N), z[i, k, j])
    outer = fold("s", "sum", replace(dim(k, N), step=N // N + 1), x[k], where=ref("m") > 0.0)
    p = program("N", [buf("x", N, role="in"), buf("z", N, N, N, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], ref("s"), inner, outer)], "y", least=1)  # fmt: skip
    check_results(p, {"N": 5})
    (conditional,) = [s for s in walk_program(lower(p)) if isinstance(s, Loop) and s.where is not None]
    assert isinstance(conditional.where, Select) or len(conditional.dims) == 1


def test_a_scatter_without_axes() -> None:
    """Its accumulator is a scalar, read by name."""
    update = Update((), (), x[i].e)
    scatter = Scatter("y", "acc", "sum", F32, (dim(i, N),), None, (update,), (), (), (A("acc")[()] * 2.0).e)
    p = program("N", [buf("x", N, role="in"), buf("y")], [scatter], "y")
    check_valid(lower(p))
    check_results(p, {"N": 3})


def test_a_fold_without_indices() -> None:
    p = single(ref("s") + 1.0)
    p = replace(p, body=(replace(p.body[0], folds=(fold("s", "sum", (), x[i] * 2.0),)),))
    check_valid(lower(p))
    check_results(p, {"N": 3})
