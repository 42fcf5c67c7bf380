"""Lowering: the structure of the loop IR for each shape of statement, and what it computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lower_cases import CASES
from scalar_runs import Fault, arrays, run_ir, run_typed
from typed_terms import CHECKED, A, T, buf, cast, define, dim, fn, fold, names, program, ref, term

from loopfuse.backends import reference
from loopfuse.diag import CompilerError, Source, Span
from loopfuse.dtypes import BOOL, F32, I64, DType
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import Output, Scan, Scatter, TypedProgram, Update
from loopfuse.ir import Directive, Let, Load, Loop, Program, Select, Size, Store
from loopfuse.printer import print_program
from loopfuse.rewrite import children, exprs, subexprs, walk_program
from loopfuse.sizes import ZERO
from loopfuse.verify import violations

TEXTS = Path(__file__).with_name("lower_cases.txt")
N, M, i, j, k, t = names("N M i j k t")
x, y, z = A("x"), A("y"), A("z")
SIZES = [dict(zip("MNKDTC", extents, strict=True)) for extents in ((2, 3, 2, 2, 2, 2), (1,) * 6, (3, 2, 3, 4, 3, 1))]
EMPTY = [
    dict(zip("MNKDTC", (*extents, 1), strict=True)) for extents in ((0, 2, 2, 2, 1), (2, 0, 2, 2, 0), (2, 2, 0, 2, 2))
]


def random_array(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + 7)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def check_results(p: TypedProgram, sizes: dict[str, int]) -> None:
    """The lowered program gives the bits that the typed one defines."""
    inputs = arrays(p.buffers, sizes, random_array)
    r = lower(p)
    wanted, found = run_typed(p, inputs, sizes), run_ir(r, inputs, sizes)
    assert len(wanted) == len(found)
    for name, array in reference.run(r, inputs, sizes, checked=True).outputs.items():
        np.testing.assert_allclose(array, found[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for (name, a), b in zip(wanted.items(), found.values(), strict=True):
        if a.shape == b.shape:
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_array_equal(a[-1], b, err_msg=name)  # a carry: its final value


def check_valid(r: Program) -> None:
    assert [str(v) for v in violations(r, ranges=True)] == []


# -- the cases --------------------------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    parts = text.split("## ")[1:]
    return {head: body.strip("\n") for head, _, body in (p.partition("\n") for p in parts)}


@pytest.mark.parametrize("case", CASES)
def test_text(case: str, bless: bool) -> None:
    known = sections(TEXTS.read_text())
    found = print_program(lower(CASES[case]())).strip("\n")
    if bless and found != known.get(case):
        known[case] = found
        TEXTS.write_text("\n\n".join(f"## {name}\n{known[name]}" for name in CASES if name in known) + "\n")
    assert found == known.get(case), "if this is right: pytest tests/test_lower.py --bless"


@pytest.mark.parametrize("case", CASES)
def test_valid(case: str) -> None:
    check_valid(lower(CASES[case]()))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, sizes: dict[str, int]) -> None:
    check_results(CASES[case](), sizes)


@pytest.mark.parametrize("sizes", EMPTY, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_results_of_nothing(case: str, sizes: dict[str, int]) -> None:
    p = CASES[case]()
    if all(sizes[s.id] >= (s.least or 0) for s in p.sizes):
        check_results(p, sizes)


@pytest.mark.parametrize("case", CASES)
def test_the_same_every_time(case: str) -> None:
    assert print_program(lower(CASES[case]())) == print_program(lower(CASES[case]()))


# -- roots, declarations ----------------------------------------------------------------------------------------------


def two_steps() -> TypedProgram:
    return program(
        "N M",
        [buf("x", N, role="in"), buf("z", M, role="in"), buf("a", N), buf("b", N), buf("y", N)],
        [
            define("a", [dim(i, N)], x[i] * 2.0),
            define("b", [dim(i, N)], A("a")[i] + 1.0),
            define("y", [dim(i, N)], A("a")[i] * 3.0),
        ],
        "y",
    )


def kinds(r: Program) -> dict[str, str]:
    return {b.id: b.role for b in r.buffers}


def test_what_no_root_needs_is_left_out() -> None:
    r = lower(two_steps())
    assert kinds(r) == {"x": "in", "a": "temp", "y": "out"}
    assert [k.id for k in r.kernels] == ["k1", "k2"]
    assert [s.id for s in r.sizes] == ["N", "M"]  # a size of an input is bound by the caller


def test_roots_become_outputs_in_their_order() -> None:
    r = lower(two_steps(), roots=["b", "a"])
    assert [b.id for b in r.buffers if b.role == "out"] == ["b", "a"]
    assert lower(two_steps(), roots=[]).kernels == ()


def test_a_root_that_is_no_buffer() -> None:
    with pytest.raises(CompilerError):
        lower(two_steps(), roots=["nobody"])


def test_outputs_that_need_a_copy() -> None:
    p = replace(two_steps(), outputs=(Output("x", "x"), Output("y", "y"), Output("twice", "y")))
    r = lower(p)
    assert [b.id for b in r.buffers if b.role == "out"] == ["x.out", "y", "twice.out"]
    data = np.arange(3, dtype=np.float32)
    found = run_ir(r, {"x": data}, {"N": 3, "M": 1})
    np.testing.assert_array_equal(found["x.out"], data)
    np.testing.assert_array_equal(found["twice.out"], found["y"])
    check_valid(r)


def test_a_scalar_output_that_needs_a_copy() -> None:
    p = program("N", [buf("c", role="param")], [], "")
    r = lower(replace(p, outputs=(Output("c", "c"),)))
    assert run_ir(r, {"c": np.asarray(np.float32(3))}, {"N": 1})["c.out"] == 3
    check_valid(r)


def test_dead_parts_of_scans() -> None:
    step = (
        define("h", [], A("h")[t] + x[t], lead=[t + 1]),
        define("g", [], A("g")[t] * A("h")[t], lead=[t + 1]),
    )
    p = program(
        "N",
        [buf("x", N, role="in"), buf("h", N + 1, trips=[(t, 2)]), buf("g", N + 1, trips=[(t, 2)]), buf("y")],
        [define("h", [], term(0.0), lead=[ZERO]), define("g", [], term(1.0), lead=[ZERO]), Scan(dim(t, N), step),
         define("y", [], A("h")[N])],
        "y",
    )  # fmt: skip
    r = lower(p)
    assert "g" not in kinds(r)
    assert len(lower(p, roots=["g"]).kernels) == 4  # both carries start, the loop, the copy of the final value
    check_results(p, {"N": 4})
    assert [k.body[0].order for k in lower(p, roots=["x"]).kernels if isinstance(k.body[0], Loop)] == ["par"]


def test_an_unread_input_that_tells_a_size() -> None:
    p = program("N M", [buf("x", N, role="in"), buf("z", M, N, role="in"), buf("w", M, N, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], term(1.0))], "y")  # fmt: skip
    assert kinds(lower(p)) == {"x": "in", "y": "out"}


def test_an_unread_input_that_tells_a_size_in_an_expression() -> None:
    p = program("N M", [buf("x", N * M, role="in"), buf("z", M, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], term(1.0))], "y")  # fmt: skip
    assert kinds(lower(p)) == {"x": "in", "y": "out"}


def test_declarations_pass_through() -> None:
    plan = Size("TILE", "compile", value=4)
    p = replace(
        two_steps(),
        sizes=(*two_steps().sizes, plan),
        directives=(Directive("expect", "kernels == 1"),),
        numerics="strict",
    )
    r = lower(p)
    assert [s.id for s in r.sizes] == ["N", "M"]  # nothing mentions TILE
    assert (r.directives, r.numerics, r.name) == (p.directives, "strict", "test")


def test_spans() -> None:
    source = Source("s.lf", "let y[i] = sum(x[i, k] for k)")
    whole, inner = Span(source, 0, 29), Span(source, 11, 29)
    p = program("N", [buf("x", N, N, role="in"), buf("y", N)], [
        replace(define("y", [dim(i, N)], ref("s"), replace(fold("s", "sum", dim(k, N), x[i, k]), span=inner)), span=whole)
    ], "y")  # fmt: skip
    r = lower(p)
    nest, reduction = [s for s in walk_program(r) if isinstance(s, Loop)]
    assert r.kernels[0].span == whole and nest.span == whole
    assert reduction.span == inner and reduction.accs[0].span == inner
    assert [s.span for s in walk_program(r) if isinstance(s, Store)] == [inner, whole]


# -- sharing ----------------------------------------------------------------------------------------------------------


def single(value: T) -> TypedProgram:
    """`y[i] = value` over x[N], c[N]."""
    buffers = [buf("x", N, role="in"), buf("c", N, role="in"), buf("g", N, role="in", dtype=I64), buf("y", N)]
    return program("N", buffers, [define("y", [dim(i, N)], value)], "y")


def depth(r: Program) -> int:
    levels: dict[int, int] = {}
    for s in walk_program(r):
        for e in subexprs(*exprs(s)):
            levels[id(e)] = 1 + max((levels[id(c)] for c in children(e)), default=0)
    return max(levels.values())


def written_size(r: Program) -> int:
    """Nodes of the program as text, every expression a tree."""
    total, sizes = 0, {}
    for s in walk_program(r):
        roots = list(exprs(s))
        for e in subexprs(*roots):
            sizes[id(e)] = 1 + sum(sizes[id(c)] for c in children(e))
        total += sum(sizes[id(e)] for e in roots)
    return total


def lets(r: Program) -> list[Let]:
    return [s for s in walk_program(r) if isinstance(s, Let)]


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


# -- names ------------------------------------------------------------------------------------------------------------


def test_equal_names_of_folds_and_indices() -> None:
    """Two folds over an index of one name, one of them needed in two places."""
    a = fold("a", "sum", dim(k, N), z[i, k])
    c = fold("c", "sum", dim(k, N), z[k, i] * ref("a"))
    d = fold("d", "max", dim(k, N), z[k, i] + ref("a"))
    p = program("N", [buf("z", N, N, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], ref("c") + ref("d"), a, c, d)], "y", least=1)  # fmt: skip
    r = lower(p)
    check_valid(r)
    check_results(p, {"N": 3})
    dims = [d.id for s in walk_program(r) if isinstance(s, Loop) for d in s.dims]
    assert dims == ["i", "k", "k", "k"]


def test_one_fold_in_two_loops() -> None:
    """An inner fold over the index of two outer ones is computed in each."""
    inner = fold("m", "sum", dim(j, N), z[k, j] * x[i])
    outer = [fold(name, "sum", dim(k, N), ref("m") * s) for name, s in (("a", 1.0), ("b", x[i]))]
    p = program("N", [buf("x", N, role="in"), buf("z", N, N, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], ref("a") + ref("b"), inner, *outer)], "y")  # fmt: skip
    r = lower(p)
    check_valid(r)
    check_results(p, {"N": 3})
    ids = [a.id for s in walk_program(r) if isinstance(s, Loop) for a in s.accs]
    assert sorted(ids) == ["a", "b", "m", "m.1"]


def test_equal_folds_are_one() -> None:
    folds = [fold(name, "sum", dim(k, N), z[i, k]) for name in "ab"]
    p = program("N", [buf("z", N, N, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], ref("a") * ref("b"), *folds)], "y")  # fmt: skip
    assert sum(isinstance(s, Loop) for s in walk_program(lower(p))) == 2
    check_results(p, {"N": 3})


def ids(r: Program) -> Iterator[str]:
    yield from (s.id for s in r.sizes)
    yield from (b.id for b in r.buffers)
    for s in walk_program(r):
        if isinstance(s, Let):
            yield s.id
        elif isinstance(s, Loop):
            yield from (a.id for a in s.accs)


@pytest.mark.parametrize("case", CASES)
def test_ids_are_never_reused(case: str) -> None:
    found = list(ids(lower(CASES[case]())))
    assert len(found) == len(set(found))


# -- the evaluators themselves ----------------------------------------------------------------------------------------


def test_the_evaluators_are_strict() -> None:
    p = single(x[i - 1])
    inputs = arrays(p.buffers, {"N": 2}, random_array)
    with pytest.raises(Fault):
        run_typed(p, inputs, {"N": 2})
    with pytest.raises(Fault):
        run_ir(lower(p), inputs, {"N": 2})


# -- speed ------------------------------------------------------------------------------------------------------------


def test_a_thousand_statements_take_little_time() -> None:
    """0.3 s on a free core; the limit leaves room for a busy machine."""
    count, previous, body = 1000, x, []
    for m in range(count):
        body.append(define(f"t{m}", [dim(i, N)], fn("tanh", previous[i] * 2.0 + x[i]) * previous[i]))
        previous = A(f"t{m}")
    p = program("N", [buf("x", N, role="in"), *(buf(f"t{m}", N) for m in range(count))], body, f"t{count - 1}")
    start = time.process_time()
    r = lower(p)
    assert time.process_time() - start < 2.0
    assert len(r.kernels) == count
