"""Lowering: the structure of the loop IR for each shape of statement, and what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lower_cases import CASES
from lower_checks import check_results, check_valid, random_array, single
from scalar_runs import Fault, arrays, run_ir, run_typed
from typed_terms import A, buf, define, dim, fn, fold, names, program, ref, term

from loopfuse.diag import CompilerError, Source, Span
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import Output, Scan, TypedProgram
from loopfuse.ir import Directive, Let, Loop, Program, Size, Store
from loopfuse.printer import print_program
from loopfuse.rewrite import walk_program
from loopfuse.sizes import ZERO

TEXTS = Path(__file__).with_name("lower_cases.txt")
N, M, i, j, k, t = names("N M i j k t")
x, y, z = A("x"), A("y"), A("z")
SIZES = [dict(zip("MNKDTC", extents, strict=True)) for extents in ((2, 3, 2, 2, 2, 2), (1,) * 6, (3, 2, 3, 4, 3, 1))]
EMPTY = [
    dict(zip("MNKDTC", (*extents, 1), strict=True)) for extents in ((0, 2, 2, 2, 1), (2, 0, 2, 2, 0), (2, 2, 0, 2, 2))
]


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


def test_folds_in_a_fold_that_left_a_loop() -> None:
    """The inner one, too, is computed where the loop over N would be empty."""
    inner = fold("m", "max", dim(k, M), A("w")[k] * x[0])
    outer = fold("s", "sum", dim(j, M), ref("m") + A("w")[j])
    p = program("N M", [buf("x", N, role="in"), buf("w", M, role="in"), buf("y", N)],
                [define("y", [dim(i, N)], x[i] + ref("s"), inner, outer)], "y")  # fmt: skip
    check_valid(lower(p))
    for n in (0, 2):
        check_results(p, {"N": n, "M": 3})


def test_an_array_over_a_range_that_may_be_less_than_empty() -> None:
    """`k < j < M` has an extent of M - 1, which is no extent where M is 0: the inner fold stays where it is."""
    inner = fold("m", "sum", dim("n", k + 1), A("w")[j])
    outer = fold("s", "sum", dim(k, j), ref("m") * x[i])
    p = program("N M", [buf("x", N, role="in"), buf("w", M, role="in"), buf("y", N, M)],
                [define("y", [dim(i, N), dim(j, M)], ref("s"), inner, outer)], "y")  # fmt: skip
    check_valid(lower(p))
    for m in (0, 1, 4):
        check_results(p, {"N": 2, "M": m})


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


def test_an_index_that_hides_another() -> None:
    """A fold of an inner loop means that loop's index, not the equal one of the loop around."""
    each = fold("m", "sum", dim(j, N), z[k, j])
    cond = term(k) >= 1
    best = fold("b", "max", dim(k, N), ref("m") * 2.0, guard=cond)
    total = fold("s", "sum", dim(k, N), ref("m") + ref("b").if_(cond, 0.0))
    p = program("N", [buf("z", N, N, role="in"), buf("y")], [define("y", [], ref("s"), each, best, total)], "y")
    check_valid(lower(p))
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


# -- size -------------------------------------------------------------------------------------------------------------


def test_a_thousand_statements() -> None:
    count, previous, body = 1000, x, []
    for m in range(count):
        body.append(define(f"t{m}", [dim(i, N)], fn("tanh", previous[i] * 2.0 + x[i]) * previous[i]))
        previous = A(f"t{m}")
    p = program("N", [buf("x", N, role="in"), *(buf(f"t{m}", N) for m in range(count))], body, f"t{count - 1}")
    r = lower(p)
    assert len(r.kernels) == count
