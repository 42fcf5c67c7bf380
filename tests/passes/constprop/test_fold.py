"""Constants are folded as the program would compute them, and what they rule out goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from op_samples import ALL_DTYPES, nasty
from pass_checks import apply, assert_keeps_bits, assert_same, shown

from loopfuse.backends.reference import run
from loopfuse.constants import to_bits
from loopfuse.diag import UserError
from loopfuse.dtypes import BOOL, F32
from loopfuse.ir import Const, Op, Program
from loopfuse.oprow import OpRow
from loopfuse.ops import OPS
from loopfuse.passes import Options
from loopfuse.passes.base import Steps
from loopfuse.passes.constprop import PASS
from loopfuse.passes.fold import evaluate
from loopfuse.passes.manager import run_pass


def value_of(expr: str, dtype: str) -> str:
    """What `y[] = expr` becomes."""
    stage = apply(PASS, f"program p()\nbuf y: {dtype}[] out\nkernel k1\n  y[] = {expr}\n")
    return shown(stage.program).split(" = ")[1].strip()


@pytest.mark.parametrize(
    ("expr", "dtype", "folded"),
    [
        ("1.0f32 + 2.0f32", "f32", "3.0f32"),
        ("8388609.0f32 * 3.0f32", "f32", "25165828.0f32"),  # rounded at f32, not at f64
        ("16777216.0f32 + 1.0f32", "f32", "16777216.0f32"),
        ("120i8 + 10i8", "i8", "-126i8"),  # wraps at its width
        ("7i32 // -2i32", "i32", "-4i32"),
        ("7i32 % 0i32", "i32", "0i32"),
        ("-0.0f32 + -0.0f32", "f32", "-0.0f32"),
        ("0.0f32 == -0.0f32", "bool", "true"),
        ("i32(3000000000.0f32)", "i32", "2147483647i32"),  # saturates
        ("f16(65520.0f32)", "f16", "inf:f16"),
        ("0.0f32 / 0.0f32", "f32", "0.0f32 / 0.0f32"),  # the NaN that a machine makes is the machine's
        ("1.0f32 if 2i32 < 3i32 else 4.0f32", "f32", "1.0f32"),
    ],
)
def test_folding(expr: str, dtype: str, folded: str) -> None:
    assert value_of(expr, dtype) == folded


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_every_operation_folds_to_what_it_gives_in_an_array(row: OpRow) -> None:
    rng = np.random.default_rng(7)
    for dtype in ALL_DTYPES:
        given = [BOOL if row.operands == "cond" and k == 0 else dtype for k in range(row.arity)]
        result = row.result(given) if row.gives != "explicit" and dtype.kind in row.kinds else F32
        if row.problem(given, result) is not None:
            continue
        args = [rng.choice(nasty(d), 40) for d in given]
        wanted = row.evaluate(args, result)
        for k in range(40):
            consts = tuple(Const(to_bits(a[k], d), d) for a, d in zip(args, given, strict=True))
            found = evaluate(Op(row.name, consts, result))
            if found is None:
                assert result.is_float and np.isnan(wanted[k])
            else:
                assert found.bits == to_bits(wanted[k], result), (row.name, dtype, k)


def test_known_sizes() -> None:
    stage = apply(PASS, """program p(N, R)
size R = 3 compile
require {R % 2} == {1}
buf x: f32[N, R] in
buf y: f32[N] out
kernel k1
  par i < N
    fold r < R
      acc s: f32 sum
      s <- x[i, R - 1 - r] * f32({R})
    y[i] = s
""")  # fmt: skip
    assert stage.program.requires == ()
    assert stage.program.sizes[1].value == 3
    assert (
        shown(stage.program)
        == """kernel k1
  par i < N
    fold r < 3
      acc s: f32 sum
      s <- x[i, -r + 2] * 3.0f32
    y[i] = s
"""
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x[i] * 1.0f32", "x[i]"),
        ("1.0f32 * x[i]", "x[i]"),
        ("x[i] + -0.0f32", "x[i]"),
        ("x[i] + 0.0f32", "x[i] + 0.0f32"),  # -0 + 0 is 0
        ("x[i] * 0.0f32", "x[i] * 0.0f32"),  # of a NaN or an infinity
        ("1.0f32 / x[i]", "1.0f32 / x[i]"),
        ("x[i] if {N} == {N} else 0.0f32", "x[i]"),
        ("x[i] if {i + 1} > {i} else 0.0f32", "x[i]"),
        ("x[i] if {i} >= {i + 1} else 2.0f32", "2.0f32"),
        ("x[i] if x[i] > 0.0f32 and {N} != {N} else 2.0f32", "2.0f32"),
        ("x[i] if {i} < {N} else 0.0f32", "x[i] if {i} < {N} else 0.0f32"),  # what bounds say is for `peephole`
    ],
)
def test_operands_that_change_nothing_or_decide(before: str, after: str) -> None:
    program = "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[i] = {}\n"
    stage = apply(PASS, program.replace("{}", before))
    assert shown(stage.program).split(" = ")[1].strip() == after


def test_a_decided_condition_does_not_drop_a_fault() -> None:
    program = """program p(N)
buf x: f32[N] in
buf k: i64[N] in
buf y: bool[N] out
kernel k1
  par i < N
    y[i] = x[k[i] ~checked] > 0.0f32 and false
"""
    assert not apply(PASS, program).changed


def test_an_index_of_one_value_is_that_value() -> None:
    stage = apply(PASS, """program p(N)
buf x: f32[N, N] in
buf y: f32[N, N] out
kernel k1
  par i < N, j < N
    y[i, j] = x[j, i]
""", specialise={"N": 1})  # fmt: skip
    assert shown(stage.program) == "kernel k1\n  y[0, 0] = x[0, 0]\n"


def test_lets_of_integers_in_subscripts() -> None:
    stage = apply(PASS, """program p(N)
require {N} > {3}
buf x: f32[N] in
buf y: f32[] out
kernel k1
  k = i64(1i32) + 1i64
  y[] = x[k + 1]
""")  # fmt: skip
    assert "y[] = x[3]" in shown(stage.program)


def test_arrays_of_one_constant() -> None:
    stage = apply(PASS, """program p(N)
buf z: f32[N]
buf h: f32[N + 1]
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par i < N
    z[i] = 1.0f32 + 1.0f32
kernel k2
  h[0] = 2.0f32
  par i < N
    h[i + 1] = z[i]
kernel k3
  par i < N
    y[i] = x[i] * z[i - 1 ~edge] + h[i + 1]
""")  # fmt: skip
    assert "y[i] = x[i] * 2.0f32 + 2.0f32" in shown(stage.program)


def test_a_fill_of_another_value_is_seen() -> None:
    stage = apply(PASS, """program p(N)
buf z: f32[N]
buf y: f32[N] out
kernel k1
  par i < N
    z[i] = 0.0f32
kernel k2
  par i < N
    y[i] = z[i - 1 ~constant -0.0f32]
""")  # fmt: skip
    assert not stage.changed


def test_a_fold_over_nothing_is_the_identity() -> None:
    stage = apply(PASS, """program p(N)
buf x: f32[N, 0] in
buf y: f32[N] out
buf m: f32[N] out
kernel k1
  par i < N
    fold j < 0
      acc s: f32 sum
      acc t: f32 max
      s <- x[i, j]
      t <- x[i, j]
    y[i] = s + 1.0f32
    m[i] = t
""")  # fmt: skip
    assert shown(stage.program) == "kernel k1\n  par i < N\n    y[i] = 1.0f32\n    m[i] = -inf:f32\n"


def test_a_loop_that_alone_writes_an_output_stays() -> None:
    stage = apply(PASS, "program p()\nbuf y: f32[0] out\nkernel k1\n  par i < 0\n    y[i] = 1.0f32\n")
    assert not stage.changed


def test_a_piece_of_no_elements_goes() -> None:
    stage = apply(PASS, """program p(A, B)
buf x: f32[A] in
buf z: f32[B] in
buf y: f32[A + B] out
kernel k1
  par i < A
    y[i] = x[i]
  par i < B
    y[i + A] = z[i]
""", specialise={"A": 0})  # fmt: skip
    assert shown(stage.program) == "kernel k1\n  par i < B\n    y[i] = z[i]\n"


def test_steps() -> None:
    steps = Steps(1)
    program = (
        "program p()\nbuf y: f32[] out\nbuf z: f32[] out\nkernel k1\n  y[] = 1.0f32 + 1.0f32\n  z[] = exp(0.0f32)\n"
    )
    stage = apply(PASS, program, steps={"constprop": steps})
    assert steps.log == ["1.0f32 + 1.0f32 is 2.0f32"]
    assert "y[] = 2.0f32\n  z[] = exp(0.0f32)" in shown(stage.program)


@pytest.mark.parametrize(
    ("specialise", "code"), [({"M": 1}, "LF0502"), ({"N": -1}, "LF0506"), ({"R": 4}, "LF0517"), ({"E": 3}, "LF0506")]
)
def test_sizes_that_cannot_be(specialise: dict[str, int], code: str) -> None:
    program = "program p(N, R, E)\nsize R = 3 compile\nsize E shape multiple 2\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[i] = 1.0f32\n"
    with pytest.raises(UserError) as caught:
        apply(PASS, program, specialise=specialise)
    assert caught.value.diagnostics[0].code == code


@settings(max_examples=25)
@given(ir_programs(), st.data())
def test_random_programs_keep_their_bits(program: Program, data: st.DataObject) -> None:
    sizes, inputs = data.draw(ir_inputs(program))
    assert_keeps_bits(PASS, program, sizes, inputs)


@settings(max_examples=25)
@given(ir_programs(), st.data())
def test_specialised_programs_keep_their_bits(program: Program, data: st.DataObject) -> None:
    sizes, inputs = data.draw(ir_inputs(program))
    stage = run_pass(PASS, program, Options(specialise=sizes))
    assert_same(run(program, inputs, sizes), run(stage.program, inputs, sizes))


def test_what_slid_along_a_loop_that_never_runs_is_held_whole() -> None:
    stage = apply(
        PASS,
        "program p()\nbuf x: f32[4] in\nbuf a: f32[1, 4] window [t:t + 2, 0:4]\nbuf y: f32[4] out\nkernel k1\n"
        "  par i < 4\n    a[0, i] = x[i]\n  seq t < 0\n    par i < 4\n      a[t + 1, i] = a[t, i] * 2.0f32\n"
        "  par i < 4\n    y[i] = a[0, i]\n",
    )
    assert "seq" not in shown(stage.program)
    assert next(b for b in stage.program.buffers if b.id == "a").window is None


def test_an_index_of_a_window_stays() -> None:
    program = ("program p()\nbuf x: f32[1, 4] in\nbuf a: f32[1, 4] local window [i:i + 1, 0:4]\nbuf y: f32[1, 4] out\n"
               "kernel k1\n  par i < 1\n    par j < 4\n      a[i, j] = x[i, j] + 1.0f32\n"
               "    par j < 4\n      y[i, j] = a[i, j] * a[i, 0]\n")  # fmt: skip
    assert "par i < 1" in shown(apply(PASS, program).program)


def test_a_size_of_zero_leaves_valid_loops_that_never_run() -> None:
    program = "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[i] = x[0] + x[i]\n"
    assert "x[0]" in shown(apply(PASS, program, specialise={"N": 0}).program)
