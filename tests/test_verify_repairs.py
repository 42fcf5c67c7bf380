"""The verifier works repairs out again: what a repair gets wrong is found from the term alone."""

from __future__ import annotations

import pytest

from loopfuse.reader import parse_program
from loopfuse.verify import violations

SOFTMAX = """program softmax(M, N)
buf x: f32[M, N] in
buf w: f32[M, N] in
buf y: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      s = x[i, j] * 0.5f32 if {j} <= {i} else -inf:f32
      m <- s
      p = exp(s - (0.0f32 if m == -inf:f32 else m))
      l <- p * w[i, j]
    y[i] = l
"""
MOMENTS = """program moments(M, N)
buf x: f32[M, N] in
buf y: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc n: i64 sum
      acc s: f32 sum
      acc q: f32 sum repair self + f32(n.old) * (s.old / f32(n.old) - s.new / f32(n.new)) ** 2.0f32 if n.old != 0i64 else self
      n <- 1i64
      s <- x[i, j]
      d = x[i, j] - s / f32(n)
      q <- d * d
    y[i] = q
"""
THROUGH = """program through(M, N)
buf x: f32[M, N] in
buf y: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc m: f32 max
      acc l: f32 sum repair self
      m <- x[i, j]
      fold d < N
        acc a: f32 sum
        a <- x[i, d] - m
      l <- a
    y[i] = l
"""
BROKEN = [
    (SOFTMAX, " repair self * exp(m.old - m.new) if m.old != m.new else self", " repair self"),
    (SOFTMAX, "exp(m.old - m.new)", "exp(m.new - m.old)"),
    (SOFTMAX, "exp(m.old - m.new)", "exp2(m.old - m.new)"),
    (SOFTMAX, " if m.old != m.new else self", ""),
    (SOFTMAX, "(0.0f32 if m == -inf:f32 else m)", "m"),
    (SOFTMAX, "exp(s - (0.0f32 if m == -inf:f32 else m))", "sin(s - (0.0f32 if m == -inf:f32 else m))"),
    (SOFTMAX, "l <- p * w[i, j]", "l <- p * w[i, j] + m"),
    (MOMENTS, "f32(n.old) * (", "f32(n.new) * ("),
    (MOMENTS, " if n.old != 0i64 else self", ""),
    (MOMENTS, "self + f32(n.old)", "self - f32(n.old)"),
    (MOMENTS, "q <- d * d", "q <- d * d * d"),
    (MOMENTS, "q <- d * d", "q <- d * d * x[i, j]"),
    (MOMENTS, "d = x[i, j] - s / f32(n)", "d = x[i, j] - s / f32({N})"),
]


@pytest.mark.parametrize("text", [SOFTMAX, MOMENTS])
def test_a_true_repair_passes(text: str) -> None:
    assert not list(violations(parse_program(text)))


@pytest.mark.parametrize(("text", "right", "wrong"), BROKEN)
def test_a_wrong_repair_is_found(text: str, right: str, wrong: str) -> None:
    assert right in text
    found = list(violations(parse_program(text.replace(right, wrong))))
    assert [v.invariant for v in found] == ["separable"]
    assert "the repair of" in found[0].message


def test_a_term_behind_an_inner_fold_has_no_repair() -> None:
    found = list(violations(parse_program(THROUGH)))
    assert [v.message for v in found] == ["the term of `l` reads `m` through an inner fold, which no repair can follow"]
