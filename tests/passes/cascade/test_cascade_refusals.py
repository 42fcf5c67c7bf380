"""Folds that stay apart, and what the user is told."""

from __future__ import annotations

import numpy as np
import pytest
from harness import cascaded, folds, rows, same

from loopfuse.analysis.env import environment
from loopfuse.passes.cascade import cascade_kernel
from loopfuse.reader import parse_program

TEMPLATE = """program t(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 {first}
      m <- {element}
    fold j.1 < N
      acc l: f64 {second}
      l <- {term}
    y[i] = l
"""
REFUSED = [
    ("max", "x[i, j]", "sum", "sin(x[i, j.1] - m)",
     "the sum `l` reads the maximum `m` inside `sin(x[i, j.1] - m)`, "
     "which is no product of a function of the element and one of the maximum"),
    ("max", "x[i, j]", "sum", "exp(x[i, j.1] * m)",
     "the sum `l` reads the maximum `m` inside `x[i, j.1] * m`, "
     "which is no sum of a function of the element and one of the maximum"),
    ("sum", "x[i, j]", "sum", "exp(x[i, j.1] - m)",
     "the sum `l` reads the sum `m` inside `exp(x[i, j.1] - m)`, which may overflow: the sum is no bound of its argument"),
    ("max", "w[i, j]", "sum", "exp(x[i, j.1] - m)",
     "the sum `l` reads the maximum `m` inside `exp(x[i, j.1] - m)`, "
     "which may overflow: the maximum is no bound of its argument"),
    ("max", "x[i, j]", "sum", "exp(m - x[i, j.1])",
     "the sum `l` reads the maximum `m` inside `exp(m - x[i, j.1])`, "
     "which may overflow: the maximum is no bound of its argument"),
    ("max", "x[i, j]", "sum", "exp(x[i, j.1] - m) * exp(w[i, j.1] - m)",
     "the sum `l` reads the maximum `m` inside `exp(x[i, j.1] - m) * exp(w[i, j.1] - m)`, "
     "where two factors are exponentials of results"),
    ("max", "x[i, j]", "sum", "exp(x[i, j.1] - m) * (w[i, j.1] - m)",
     "the sum `l` reads the maximum `m` inside `exp(x[i, j.1] - m) * (w[i, j.1] - m)`, "
     "which multiplies an exponential of one result and a difference from another"),
    ("max", "x[i, j]", "sum", "x[i, j.1] / (1.0f64 + x[i, j.1] * m)",
     "the sum `l` reads the maximum `m` inside `x[i, j.1] / (1.0f64 + x[i, j.1] * m)`, "
     "whose divisor mixes the element and the maximum"),
    ("max", "x[i, j]", "sum", "1.0f64 if x[i, j.1] == m else 0.0f64",
     "the sum `l` reads the maximum `m` inside `x[i, j.1] == m`, which decides between two values"),
    ("max", "x[i, j]", "sum", "(x[i, j.1] - m) ** 2.0f64",
     "the sum `l` reads the maximum `m` inside `x[i, j.1] - m`, which is no deviation from the mean of the same elements"),
    ("sum", "x[i, j]", "sum", "w[i, j.1] * (x[i, j.1] - m / f64({N})) ** 2.0f64",
     "the sum `l` reads the sum `m` inside `w[i, j.1] * (x[i, j.1] - m / f64({N})) ** 2.0f64`, "
     "and squares of deviations are merged only where all weigh the same"),
    ("max", "x[i, j]", "max", "x[i, j.1] * m",
     "the maximum `l` reads the maximum `m` inside `x[i, j.1] * m`, "
     "which is no sum of a function of the element and one of the maximum"),
    ("max", "x[i, j]", "prod", "x[i, j.1] * m",
     "the product `l` reads the maximum `m` inside `x[i, j.1] * m`, and a prod cannot be taken of its parts"),
    ("max", "x[i, j]", "sum", "x[i, i64(m) ~edge] * x[i, j.1]",
     "the sum `l` reads the maximum `m` inside `x[i, i64(m) ~edge] * x[i, j.1]`, factors"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "element", "second", "term", "message"), REFUSED[:-1], ids=lambda x: str(x)[:40])
def test_the_term_is_named(first: str, element: str, second: str, term: str, message: str) -> None:
    text = TEMPLATE.replace("{first}", first).replace("{element}", element)
    text = text.replace("{second}", second).replace("{term}", term)
    program = parse_program(text)
    kernel, remarks, causes = cascade_kernel(program.kernels[0], environment(program), frozenset("y"))
    assert kernel is program.kernels[0]
    assert not remarks
    assert [c.message for c in causes] == [message]
    assert causes[0].code == "cascade"
    assert "pass of its own" in causes[0].lift
    assert causes[0].spans


def test_a_weight_that_only_results_decide_is_deferred() -> None:
    first, element, second, term, _ = REFUSED[-1]
    text = TEMPLATE.replace("{first}", first).replace("{element}", element)
    program, outcome = cascaded(text.replace("{second}", second).replace("{term}", term))
    assert len(folds(outcome.program)) == 1
    x = np.abs(rows(np.random.default_rng(0), 9, 5))
    same(program, outcome.program, {"x": x, "w": x}, {"M": 9, "N": 5}, 1e-13, 1e-13)


OTHER_ELEMENTS = """program t(M, N)
buf x: f64[M, N] in
buf z: f64[M, N]
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      z.1 = x[i, j] * 2.0f64
      z[i, j] = z.1
      m <- z.1
    fold j.1 < N
      acc l: f64 sum
      l <- exp(z[i, N - 1 - j.1] - m)
    y[i] = l
"""
BETWEEN = """program t(M, N)
buf x: f64[M, N] in
buf e: f64[M, N]
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    par j.2 < N
      e[i, j.2] = exp(x[i, j.2] - m)
    fold j.1 < N
      acc l: f64 sum
      l <- e[i, j.1]
    y[i] = l
"""
OTHER_BOUNDS = """program t(M, N)
buf x: f64[M, N] in
buf y: f64[M] out
kernel k
  par i < M
    fold j < N
      acc m: f64 max
      m <- x[i, j]
    fold j.1 < N - 1
      acc l: f64 sum
      l <- exp(x[i, j.1] - m)
    y[i] = l
"""
MEMORY = [
    (
        OTHER_ELEMENTS,
        "the sum `l` cannot join the loop of the maximum `m`: it reads other elements of `z` than the one at hand",
    ),
    (
        BETWEEN,
        "the sum `l` cannot join the loop of the maximum `m`: it reads `e`, which a loop between the two computes",
    ),
]


@pytest.mark.parametrize(("text", "message"), MEMORY)
def test_memory_between_is_named(text: str, message: str) -> None:
    program = parse_program(text)
    kernel, _, causes = cascade_kernel(program.kernels[0], environment(program), frozenset("y"))
    assert kernel is program.kernels[0]
    assert [c.message for c in causes] == [message]


def test_the_pass_computes_again_what_stands_between() -> None:
    _, outcome = cascaded(BETWEEN)
    assert len(folds(outcome.program)) == 1
    _, outcome = cascaded(OTHER_ELEMENTS)  # the running maximum bounds only the elements met so far
    assert len(folds(outcome.program)) == 2
    assert ["which may overflow" in r.text for r in outcome.remarks] == [True]


def test_other_bounds_are_no_cascade_at_all() -> None:
    program, outcome = cascaded(OTHER_BOUNDS)
    assert outcome.program is program
    assert not outcome.remarks


def test_nothing_to_do_costs_nothing() -> None:
    program = parse_program("program t(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N\n  y[i] = x[i]\n")
    kernel, remarks, causes = cascade_kernel(program.kernels[0], environment(program), frozenset("y"))
    assert kernel is program.kernels[0]
    assert not remarks
    assert not causes
