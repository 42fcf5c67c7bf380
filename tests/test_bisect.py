"""Bugs planted in passes, each found by its pass and step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pass_checks import text

from loopfuse import driver
from loopfuse.agreement import every_pass
from loopfuse.bind import Bound
from loopfuse.bisect import Culprit, bisect
from loopfuse.cli import main
from loopfuse.dtypes import F64
from loopfuse.frontend.typed import TypedProgram
from loopfuse.ir import Acc, Affine, Const, Expr, Load, Loop, Mode, Op, Program, Select, Stmt, Store
from loopfuse.ops import OPS, from_bits, to_bits
from loopfuse.passes import PIPELINE, Options, Outcome, Pass
from loopfuse.passes.base import Remark, steps
from loopfuse.rewrite import Mapper

RNG = np.random.default_rng(3)
Array = np.ndarray[Any, Any]


def lowered(program: str) -> driver.Lowered:
    """A program by itself, as if lowered from a script."""
    return driver.Lowered(TypedProgram("p", (), (), (), (), (), (), ()), text(program), ())


def randn(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def stepping(name: str, expr: Callable[[Expr], Expr | None] | None = None,
             stmt: Callable[[Stmt], Stmt | None] | None = None, rounds: bool = False) -> Pass:  # fmt: skip
    """A pass that rewrites nodes or statements one by one, each a step."""

    def function(program: Program, options: Options) -> Outcome:
        taken = steps(options, name)

        def on_expr(node: Expr) -> Expr:
            new = expr(node) if expr else None
            return new if new is not None and taken.take(f"rewrite {type(node).__name__}") else node

        def on_stmt(node: Stmt) -> Stmt:
            new = stmt(node) if stmt else None
            return new if new is not None and taken.take(f"rewrite {type(node).__name__}") else node

        after = Mapper(on_expr, stmt=on_stmt).on_program(program)
        return Outcome(after, (Remark("rounds", rounds=True),) if rounds and after is not program else ())

    return Pass(name, "A pass of this test.", function)


ROWS = """program p(M, N)
buf x: f32[M, N] in
buf w: f32[N] in
buf t: f32[M, N]
buf u: f32[M, N]
buf s: f32[M]
buf y: f32[M, N] out
kernel k1
  par i < M, j < N
    t[i, j] = x[i, j] * 2.0f32
kernel k2
  par i < M, j < N
    u[i, j] = t[i, j - 1 ~constant 0.0f32] + w[j]
kernel k3
  par i < M
    fold j < N
      acc a: f32 max
      a <- u[i, j]
    s[i] = a
kernel k4
  par i < M, j < N
    y[i, j] = u[i, j] / s[i]
"""


def rows(n: int = 4) -> Bound:
    return Bound({"M": n, "N": n}, {"x": randn(n, n), "w": randn(n)})


def found(program: str, bound: Bound, planted: Pass) -> Culprit:
    """What bisection finds in the pipeline with one pass more."""
    culprit = bisect(lowered(program), bound, (*PIPELINE[:1], planted, *PIPELINE[1:2]))
    assert culprit is not None
    assert culprit.pass_name == planted.name
    return culprit


def test_right_passes_are_not_blamed() -> None:
    assert bisect(lowered(ROWS), rows(), PIPELINE) is None
    assert bisect(lowered(ROWS), rows(), (stepping("nothing"), *PIPELINE)) is None


def test_a_wrong_rule_among_right_ones() -> None:
    """x * 2 -> x + x is right, x / y -> y / x is not."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.op == "mul":
            return replace(node, op="add", args=(node.args[0],) * 2)
        if isinstance(node, Op) and node.op == "div":
            return replace(node, args=node.args[::-1])
        return None

    culprit = found(ROWS, rows(), stepping("rules", rule))
    assert (culprit.step, culprit.steps, culprit.invalid) == (2, 2, False)
    assert culprit.description == "rewrite Op"
    assert culprit.after is not None
    assert "`y`[" in culprit.problem and "before" in culprit.problem
    assert culprit.before.kernels[0] == culprit.after.kernels[0]  # only the wrong step is in the difference
    assert culprit.before.kernels[3] != culprit.after.kernels[3]


def test_a_fold_at_another_width() -> None:
    program = "program p()\nbuf y: f32[] out\nbuf z: f32[] out\nkernel k1\n  y[] = 16777216.0f32 + 1.0f32 + 1.0f32\n  z[] = 3.0f32 + 4.0f32\n"

    def wide(node: Expr) -> Expr | None:
        if isinstance(node, Op) and all(isinstance(a, Op | Const) for a in node.args):
            return Const(to_bits(np.float32(_wide(node)), node.dtype), node.dtype)
        return None

    def _wide(node: Expr) -> Any:
        if isinstance(node, Op):
            return OPS[node.op].function(tuple(np.float64(_wide(a)) for a in node.args), F64)
        assert isinstance(node, Const)
        return from_bits(node.bits, node.dtype)

    def lonely(node: Stmt) -> Stmt | None:
        new = wide(node.value) if isinstance(node, Store) else None
        return replace(node, value=new) if new is not None else None

    culprit = bisect(lowered(program), Bound({}, {}), (stepping("fold", stmt=lonely),))
    assert culprit is not None
    assert (culprit.step, culprit.steps) == (1, 2)


def test_zeros_that_are_equal_and_not_the_same() -> None:
    program = """program p(N)
buf x: f32[N] in
buf y: f32[N] out
buf z: f32[N] out
kernel k1
  par i < N
    y[i] = x[i] / 0.0f32
    z[i] = x[i] / -0.0f32
"""
    seen: dict[float, Const] = {}

    def merge(node: Expr) -> Expr | None:
        if isinstance(node, Const) and node.dtype.is_float:
            first = seen.setdefault(float(from_bits(node.bits, node.dtype)), node)
            return first if first.bits != node.bits else None
        return None

    culprit = found(program, Bound({"N": 2}, {"x": randn(2)}), stepping("merge", merge))
    assert culprit.step == 1
    assert "`z`[0]" in culprit.problem


def test_a_boundary_applied_to_the_argument() -> None:
    """f(pad(t)) in place of pad(f(t)): the fill goes through the producer."""

    def inline(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer == "t":
            two = Const(to_bits(np.float32(2.0), node.dtype), node.dtype)
            one = Const(to_bits(np.float32(1.0), node.dtype), node.dtype)
            mode = Mode("constant", one)
            return Op("mul", (replace(node, buffer="x", modes=(None, mode)), two), node.dtype)
        return None

    program = ROWS.replace("~constant 0.0f32", "~constant 1.0f32")
    culprit = found(program, rows(), stepping("inline", inline))
    assert culprit.step == 1


def test_a_pairing_by_equal_extents() -> None:
    """s[j] in place of s[i]: square shapes hide it from the verifier, not from the results."""

    def pair(node: Stmt) -> Stmt | None:
        if isinstance(node, Store) and node.buffer == "y":
            turned = Mapper(
                lambda e: replace(e, subs=(node.subs[1],)) if isinstance(e, Load) and e.buffer == "s" else e
            )
            return replace(node, value=turned.on_expr(node.value))
        return None

    program = ROWS.replace("(M, N)", "(N)").replace("[M", "[N").replace("i < M", "i < N")
    bound = rows()
    culprit = found(program, Bound({"N": 4}, bound.inputs), stepping("pair", stmt=pair))
    assert (culprit.step, culprit.invalid) == (1, False)


SOFTMAX = """program p(N)
buf x: f32[N] in
buf y: f32[] out
kernel k1
  fold j < N
    acc m: f32 max
    acc l: f32 sum repair self * exp(m.old - m.new) if m.old != m.new else self
    s = x[j]
    m <- s
    l <- exp(s - (0.0f32 if m == -inf:f32 else m))
  y[] = l
"""


def cascade(change: Callable[[Loop], Loop]) -> Pass:
    """A pass that turns two folds into one with a repair, and gets something wrong."""
    good = text(SOFTMAX)

    def function(program: Program, options: Options) -> Outcome:
        if not steps(options, "cascade").take("one fold of m and l"):
            return Outcome(program)
        kernel = good.kernels[0]
        loop = kernel.body[0]
        assert isinstance(loop, Loop)
        body = (change(loop), *kernel.body[1:])
        return Outcome(replace(program, kernels=(replace(kernel, body=body),)))

    return Pass("cascade", "A pass of this test.", function, rounds=True)


TWO_FOLDS = """program p(N)
buf x: f32[N] in
buf y: f32[] out
kernel k1
  fold j < N
    acc m: f32 max
    m <- x[j]
  fold j < N
    acc l: f32 sum
    l <- exp(x[j] - (0.0f32 if m == -inf:f32 else m))
  y[] = l
"""


def test_a_right_cascade() -> None:
    bound = Bound({"N": 100}, {"x": randn(100) * 3})
    assert bisect(lowered(TWO_FOLDS), bound, (cascade(lambda loop: loop),)) is None


@pytest.mark.parametrize("how", ["dropped", "wrong"])
def test_a_repair(how: str) -> None:
    """Exact passes never look at repairs: the streaming runs do."""

    def change(loop: Loop) -> Loop:
        m, total = loop.accs
        repair = total.repair
        assert isinstance(repair, Select)
        wrong = replace(repair, then=repair.other)
        return replace(loop, accs=(m, replace(total, repair=wrong if how == "wrong" else None)))

    bound = Bound({"N": 100}, {"x": randn(100) * 3})
    culprit = bisect(lowered(TWO_FOLDS), bound, (cascade(change),))
    assert culprit is not None
    assert (culprit.pass_name, culprit.step, culprit.description) == ("cascade", 1, "one fold of m and l")


def test_an_unguarded_pole() -> None:
    def change(loop: Loop) -> Loop:
        def bare(e: Expr) -> Expr:
            return e.other if isinstance(e, Select) else e

        body = Mapper(bare).on_body(loop.body)
        m, total = loop.accs
        plain = total.repair.then if isinstance(total.repair, Select) else total.repair
        return replace(loop, body=body, accs=(m, Acc(total.id, total.monoid, total.dtype, (), plain)))

    x = randn(100)
    x[:70] = -np.inf
    culprit = bisect(lowered(TWO_FOLDS), Bound({"N": 100}, {"x": x}), (cascade(change),))
    assert culprit is not None
    assert culprit.pass_name == "cascade"


def test_a_window_one_short() -> None:
    """The verifier catches it: the culprit is an invalid program."""
    program = """program p(N)
buf x: f32[N] in
buf h: f32[N + 1] window [t:t + 2]
buf y: f32[] out
kernel k1
  h[0] = 0.0f32
  seq t < N
    h[t + 1] = h[t] + x[t]
  y[] = h[N]
"""

    def function(program: Program, options: Options) -> Outcome:
        if not steps(options, "contract").take("shrink h"):
            return Outcome(program)
        narrow = tuple(replace(b, window=tuple((lo, tuple(p - 1 for p in hi)) for lo, hi in b.window)) if b.window else b
                       for b in program.buffers)  # fmt: skip
        return Outcome(replace(program, buffers=narrow))

    planted = Pass("contract", "A pass of this test.", function)
    culprit = bisect(lowered(program), Bound({"N": 5}, {"x": randn(5)}), (planted,))
    assert culprit is not None
    assert (culprit.step, culprit.invalid) == (1, True)
    assert "window" in culprit.problem


def test_a_dependence_ignored() -> None:
    """The reader before the writer: reported as an invalid program."""

    def function(program: Program, options: Options) -> Outcome:
        if not steps(options, "order").take("k2 before k1"):
            return Outcome(program)
        a, b, *rest = program.kernels
        return Outcome(replace(program, kernels=(b, a, *rest)))

    culprit = bisect(lowered(ROWS), rows(), (Pass("order", "A pass of this test.", function),))
    assert culprit is not None
    assert culprit.invalid
    assert "before it is written" in culprit.problem or "never written" in culprit.problem


def test_a_pass_that_raises_in_a_step() -> None:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.op == "div":
            raise KeyError("div")
        return replace(node, span=None) if isinstance(node, Affine) else None

    culprit = bisect(lowered(ROWS), rows(), (stepping("raises", rule),))
    assert culprit is not None
    assert (culprit.invalid, culprit.after) == (True, None)
    assert "KeyError" in culprit.problem


def test_rounding_within_bounds_agrees_and_outside_does_not() -> None:
    def halved(node: Expr) -> Expr | None:
        """x / y -> x * (1 / y): rounds twice."""
        if isinstance(node, Op) and node.op == "div":
            one = Const(to_bits(np.float32(1.0), node.dtype), node.dtype)
            return Op("mul", (node.args[0], Op("div", (one, node.args[1]), node.dtype)), node.dtype)
        return None

    bound = rows(8)
    assert bisect(lowered(ROWS), bound, (stepping("quiet", halved),)) is not None  # it did not say that it rounds
    table = list(every_pass(lowered(ROWS), bound, (stepping("loud", halved, rounds=True),)))
    assert table[0].verdict.worst < 1e-5


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "s.lf"
    script.write_text("input x: f32[N]\nlet t = exp(x)\noutput y = t / sum(t)\n", encoding="utf-8")
    assert main(["bisect", str(script)]) == 0
    assert "every pass keeps the results" in capsys.readouterr().out

    def rule(node: Expr) -> Expr | None:
        return replace(node, args=node.args[::-1]) if isinstance(node, Op) and node.op == "div" else None

    monkeypatch.setattr("loopfuse.passes.PIPELINE", (*PIPELINE[:1], stepping("rules", rule)))
    assert main(["bisect", str(script)]) == 3
    out = capsys.readouterr().out
    assert "pass rules: `y`" in out
    assert "step 1 of 1: rewrite Op" in out
    assert "t[i] / " in out
    assert main(["check", "--every-pass", str(script)]) == 3
    assert "rules is the first pass whose results differ" in capsys.readouterr().out
