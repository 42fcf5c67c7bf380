"""Cascades where more than a row is at stake: inner folds, stores, arrays of accumulators, what stands between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cases import ATTENTION, MASKS, SOFTMAX, VARIANCE
from harness import WAYS, cascaded, close, folds, repaired, same

from loopfuse.analysis.env import environment
from loopfuse.backends.reference import run
from loopfuse.ir import Let, Loop, Store
from loopfuse.passes.base import Options, Steps
from loopfuse.passes.cascade import PASS, cascade, cascade_kernel
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.rewrite import walk_program
from loopfuse.verify import violations

BATCH_NORM = """program batch_norm(B, H, W, C, O)
buf x: f32[B, H, W, C] in
buf w: f32[3, 3, C, O] in
buf c: f32[B, H, W, O] out
buf mu.1: f32[O] out
buf v: f32[O] out
kernel k
  par o < O
    fold n < B, y < H, z < W
      acc s: f32 sum
      fold r < 3, t < 3, i < C
        acc a: f32 sum
        a <- x[n, y + r - 1 ~constant 0.0f32, z + t - 1 ~constant 0.0f32, i] * w[r, t, i, o]
      c.1 = a + 100.0f32
      c[n, y, z, o] = c.1
      s <- c.1
    mu = s / f32'({B*H*W})
    mu.1[o] = mu
    fold n.1 < B, y.1 < H, z.1 < W
      acc q: f32 sum
      q <- (c[n.1, y.1, z.1, o] - mu) ** 2.0f32
    v[o] = q / f32'({B*H*W})
"""
LATE = """program late(M, N)
buf x: f32[M, N] in
buf e: f32[M, N] out
buf y: f32[M, N] out
buf r: f32[M] out
kernel k
  par i < M
    fold j < N
      acc m: f32 max
      m <- x[i, j]
    r[i] = 1.0f32
    fold j.1 < N
      acc l: f32 sum
      e.1 = exp(x[i, j.1] - m)
      e[i, j.1] = e.1
      l <- e.1
    par j.2 < N
      y[i, j.2] = e[i, j.2] / l
"""
RMS_LINEAR = """program rms_linear(M, K, O)
buf x: f64[M, K] in
buf g: f64[K] in
buf w: f64[K, O] in
buf y: f64[M, O] out
kernel k
  par i < M
    fold k < K
      acc s: f64 sum
      s <- x[i, k] * x[i, k]
    r = rsqrt(s / f64({K}) + 0.001f64)
    par o < O
      fold k.1 < K
        acc a: f64 sum
        h = x[i, k.1] * r * g[k.1]
        a <- h * w[k.1, o]
      y[i, o] = a
"""
LAYER_LINEAR = RMS_LINEAR.replace("x[i, k.1] * r * g[k.1]", "(x[i, k.1] - s) * r * g[k.1]")
INDEPENDENT = """program independent(M, N)
buf x: f32[M, N] in
buf a: f32[M] out
buf b: i64[M] out
buf c: f32[M] out
kernel k
  par i < M
    fold j < N
      acc m: f32 max
      m <- x[i, j]
    a[i] = m
    par j.2 < 1
      c[i] = 2.0f32
    fold j.1 < N
      acc p: f32 argmax
      p <- x[i, j.1] at {j.1}
    b[i] = p
"""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(shape)


def test_statistics_of_a_convolution_compute_it_once() -> None:
    program, outcome = cascaded(BATCH_NORM)
    assert [f for f in folds(outcome.program) if len(f) > 1] == [["sum", "sum", "sum", "sum"]]
    assert len(folds(outcome.program)) == 3  # the convolution, once more for the first element
    inputs = {"x": normal(2, 4, 5, 3).astype(np.float32), "w": normal(3, 3, 3, 4).astype(np.float32)}
    for extent in (2, 0):
        some = {**inputs, "x": inputs["x"][:extent]}
        sizes = {"B": extent, "H": 4, "W": 5, "C": 3, "O": 4}
        want = run(program, some, sizes).outputs
        exact = want["c"].astype(np.float64).var((0, 1, 2)) if extent else want["v"].astype(np.float64)
        for way in (None, *WAYS):
            found = run(outcome.program, some, sizes, online=way, checked=True).outputs
            np.testing.assert_array_equal(found["c"], want["c"])
            close(found["mu.1"], want["mu.1"], 1e-6)
            close(found["v"].astype(np.float64), exact, 1e-6)


def test_a_store_of_what_depends_on_the_maximum_stays_apart() -> None:
    program, outcome = cascaded(LATE)
    assert folds(outcome.program) == [["max", "sum"]]
    loops = [s for s in walk_program(outcome.program) if isinstance(s, Loop) and not s.accs]
    assert len(loops) == 3  # rows, the stores of `e`, those of `y`
    x = normal(5, 9).astype(np.float32)
    x[1] = -np.inf
    same(program, outcome.program, {"x": x}, {"M": 5, "N": 9}, 1e-6, 1e-7)


def test_a_row_factor_leaves_a_contraction() -> None:
    program, outcome = cascaded(RMS_LINEAR)
    assert folds(outcome.program) == [["sum", "sum"]]
    assert not repaired(outcome.program)
    for extent in (0, 1, 11):
        inputs = {"x": normal(3, extent), "g": normal(extent), "w": normal(extent, 6)}
        same(program, outcome.program, inputs, {"M": 3, "K": extent, "O": 6}, 1e-12, 1e-14)
    strict = cascaded(RMS_LINEAR, "strict")
    assert strict[1].program is strict[0]


def test_one_contraction_never_becomes_several() -> None:
    program, outcome = cascaded(LAYER_LINEAR)
    assert outcome.program is program
    assert "several arrays" in outcome.remarks[0].text


def test_independent_folds_share_a_loop() -> None:
    program, outcome = cascaded(INDEPENDENT, "strict")
    assert folds(outcome.program) == [["max", "argmax"]]
    x = normal(5, 9).astype(np.float32)
    same(program, outcome.program, {"x": x}, {"M": 5, "N": 9}, 0.0)


def test_a_live_array_keeps_its_store() -> None:
    text = ATTENTION.replace("MASK", MASKS["causal"])
    program = parse_program(text)
    env = environment(program)
    for live in (frozenset({"out"}), frozenset({"out", "z"})):
        kernel, _, causes = cascade_kernel(program.kernels[0], env, live)
        stored = {s.buffer for s in walk_program(program.__class__("p", (), (), (), (kernel,))) if isinstance(s, Store)}
        assert ("z" in stored) == ("z" in live)
        assert not causes


def test_each_join_is_a_step() -> None:
    program = parse_program(ATTENTION.replace("MASK", MASKS["plain"]))
    counts = []
    for most in (0, 1, 2):
        steps = Steps(most)
        made = cascade(program, Options(steps={"cascade": steps}))
        counts.append(len(folds(made.program)))
        assert len(steps.log) == most
    assert counts == [4, 3, 2]


def test_rounding_is_announced() -> None:
    assert PASS.rounds
    assert all(r.rounds for r in cascaded(SOFTMAX)[1].remarks)
    assert not any(r.rounds for r in cascaded(INDEPENDENT)[1].remarks)


def test_names_do_not_matter() -> None:
    text = ATTENTION.replace("MASK", MASKS["causal"])
    other = text.replace("acc m:", "acc zz:").replace(" m <-", " zz <-").replace("- m)", "- zz)")
    one, two = (print_program(cascaded(t)[1].program) for t in (text, other))
    for old, new in (("acc zz:", "acc m:"), ("zz <-", "m <-"), ("zz.old", "m.old"), ("zz.new", "m.new"), ("zz ==", "m =="),
                     ("else zz)", "else m)")):  # fmt: skip
        two = two.replace(old, new)
    assert one == two


def test_the_pivot_is_the_first_element_once() -> None:
    text = print_program(cascaded(VARIANCE)[1].program)
    assert text.count("x[i, 0]") == 1
    assert "n.1 <- 1i64" in text


def test_what_an_outer_fold_absorbs_is_not_lost() -> None:
    """The least of all weights, inside the rows' kernel: it depends on the sum, and so waits for it in a loop of its own."""
    program = """program rows(B, N)
require {N} > {0}
buf x: f64[B, N] in
buf least: f64 out
buf most: f64 out
kernel k1
  fold b < B
    acc low: f64 min
    acc top: f64 max
    fold j < N
      acc m: f64 max
      m <- x[b, j]
    fold j.1 < N
      acc l: f64 sum
      l <- exp(x[b, j.1] - m)
    fold j.2 < N
      acc s: f64 sum
      p = exp(x[b, j.2] - m) / l
      low <- p
      top <- p
      s <- p
  least[] = low
  most[] = top
"""
    before, outcome = cascaded(program)
    assert repaired(outcome.program) == 2
    same(before, outcome.program, {"x": np.random.default_rng(0).standard_normal((3, 5))}, {"B": 3, "N": 5})


def test_streaming_runs_keep_the_order_of_an_outer_sum() -> None:
    """The total of all rows is absorbed inside the rows' own cascade: cutting a row into blocks must not reorder it."""
    program = """program rows(N, M)
buf x: f64[N, M] in
buf v: f64[N] out
buf n: f64 out
kernel k1
  fold i < N
    acc all: f64 sum
    fold j < M
      acc m: f64 max
      acc l: f64 sum repair self * exp(m.old - m.new) if m.old != m.new else self
      m <- x[i, j]
      all <- x[i, j]
      l <- exp(x[i, j] - (0.0f64 if m == -inf:f64 else m))
    v[i] = m + log(l)
  n[] = all
"""
    before = parse_program(program)
    for n, m in ((7, 5), (3, 70), (1, 1)):
        same(before, before, {"x": np.random.default_rng(0).standard_normal((n, m))}, {"N": n, "M": m})


LET_IN_BOTH = """program both(N, M)
buf x: f32[N] in
buf z: f32[M, N] in
buf y: f32[M] out
kernel k
  fold a < N
    acc s: f32 sum
    s <- x[a]
  par i < M
    f = z[i, 0 ~edge] + 1.0f32
    fold b < N
      acc q: f32 max
      q <- f * x[b]
    y[i] = q * s - f
"""


def test_a_let_that_an_interchange_needs_twice_gets_two_names() -> None:
    program = parse_program(LET_IN_BOTH)
    found, _, _ = cascade_kernel(program.kernels[0], environment(program), frozenset({"y"}))
    names = [s.id for s in walk_program(replace(program, kernels=(found,))) if isinstance(s, Let)]
    assert len(names) == len(set(names)), print_program(replace(program, kernels=(found,)))
    assert not list(violations(replace(program, kernels=(found,))))
