"""Dead code goes, and only dead code."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import apply, assert_keeps_bits, shown

from loopfuse.ir import Program
from loopfuse.passes.base import Steps
from loopfuse.passes.dce import PASS

CHAIN = """program p(N)
buf x: f32[N] in
buf unused: f32[N] in
buf a: f32[N]
buf b: f32[N]
buf c: f32[N]
buf y: f32[N] out
kernel k1
  par i < N
    a[i] = exp(x[i])
kernel k2
  par i < N
    b[i] = a[i] + 1.0f32
kernel k3
  par i < N
    c[i] = b[i] * a[i]
kernel k4
  par i < N
    y[i] = x[i] * 2.0f32
"""


def test_a_chain_that_nothing_needs() -> None:
    stage = apply(PASS, CHAIN)
    assert shown(stage.program) == "kernel k4\n  par i < N\n    y[i] = x[i] * 2.0f32\n"
    assert [b.id for b in stage.program.buffers] == ["x", "unused", "y"]
    assert [r.text for r in stage.remarks] == ["the input `unused` is not used"]


def test_steps_leave_out_a_name_and_what_it_needs() -> None:
    steps = Steps(2)
    stage = apply(PASS, CHAIN, steps={"dce": steps})
    assert steps.log == ["nothing needs `a`", "nothing needs `b`"]
    assert [k.id for k in stage.program.kernels] == ["k1", "k2", "k3", "k4"]  # c stays, so what it needs stays


def test_lets_and_accumulators() -> None:
    stage = apply(PASS, """program p(N)
buf x: f32[N, N] in
buf y: f32[N] out
kernel k1
  par i < N
    d = x[i, 0 ~edge] + 1.0f32
    e = d * d
    fold j < N
      acc s: f32 sum
      acc t: f32 max
      f = x[i, j] * d
      s <- x[i, j]
      t <- f
    y[i] = s
""")  # fmt: skip
    assert (
        shown(stage.program)
        == """kernel k1
  par i < N
    fold j < N
      acc s: f32 sum
      s <- x[i, j]
    y[i] = s
"""
    )


def test_a_repair_needs_what_it_looks_at() -> None:
    program = """program p(N)
buf x: f32[N] in
buf y: f32[] out
kernel k1
  fold j < N
    acc m: f32 max
    acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
    m <- x[j]
    l <- exp(x[j] - (0.0f32 if m == -inf:f32 else m))
  y[] = l
"""
    stage = apply(PASS, program)
    assert not stage.changed


SCAN = """program p(T, N)
buf x: f32[T, N] in
buf h: f32[T + 1, N] window [t:t + 2, 0:N]
buf c: f32[T + 1, N] window [t:t + 2, 0:N]
buf y: f32[N] out
kernel k1
  par i < N
    h[0, i] = 0.0f32
kernel k2
  par i < N
    c[0, i] = 0.0f32
kernel k3
  seq t < T
    par i < N
      h[t + 1, i] = h[t, i] + x[t, i]
    par i < N
      c[t + 1, i] = c[t, i] * x[t, i]
kernel k4
  par i < N
    y[i] = h[T, i]
"""


def test_a_recurrence_that_feeds_only_itself() -> None:
    stage = apply(PASS, SCAN)
    assert [b.id for b in stage.program.buffers] == ["x", "h", "y"]
    assert [k.id for k in stage.program.kernels] == ["k1", "k3", "k4"]


def test_accesses_that_may_report_a_fault_stay() -> None:
    stage = apply(PASS, """program p(N)
buf x: f32[N] in
buf k: i64[N] in
buf a: f32[N]
buf b: f32[N]
buf y: f32[N] out
kernel k1
  par i < N
    a[i] = x[k[i] ~checked]
kernel k2
  par i < N
    b[i] = a[i]
kernel k3
  par i < N
    y[i] = x[i]
""")  # fmt: skip
    assert [k.id for k in stage.program.kernels] == ["k1", "k3"]


def test_outputs_stay_though_nothing_reads_them() -> None:
    assert not apply(PASS, "program p(N)\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[i] = 1.0f32\n").changed


@settings(max_examples=25)
@given(ir_programs(), st.data())
def test_random_programs_keep_their_bits(program: Program, data: st.DataObject) -> None:
    sizes, inputs = data.draw(ir_inputs(program))
    assert_keeps_bits(PASS, program, sizes, inputs)
