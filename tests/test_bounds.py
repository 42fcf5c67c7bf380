"""The derived bounds are honest both ways: correct variants stay inside, planted errors do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from reference_odd import ODD
from reference_programs import PROGRAMS, Case

from loopfuse import ir
from loopfuse.backends.reference import Bounded, agrees, run, run_bounded
from loopfuse.constants import from_bits, to_bits
from loopfuse.dtypes import F64, DType
from loopfuse.ir import Op, Program
from loopfuse.numerics import cast
from loopfuse.reader import parse_program
from loopfuse.rewrite import nodes

Array = np.ndarray[Any, Any]
F = np.float32
RNG = np.random.default_rng(5)


def normal(*shape: int, dtype: Any = F) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def bounded(text: str, sizes: dict[str, int], **inputs: Array) -> dict[str, Bounded]:
    return run_bounded(parse_program(text), inputs, sizes)


def inside(found: Bounded, array: Array) -> bool:
    return agrees(found, array.astype(found.value.dtype)) is None


def widened(x: Any) -> Any:
    """A program with every float type replaced by f64. A cast that was declared still rounds to its type."""
    if isinstance(x, DType):
        return F64 if x.is_float else x
    if isinstance(x, ir.Const):
        return ir.Const(to_bits(np.float64(from_bits(x.bits, x.dtype)), F64), F64) if x.dtype.is_float else x
    if isinstance(x, tuple):
        return tuple(widened(part) for part in x)
    if isinstance(x, Op) and x.op == "cast" and not x.implied and x.dtype.is_float:
        return Op("cast", (Op("cast", widened(x.args), x.dtype),), F64)
    if dataclasses.is_dataclass(x) and type(x).__module__ == ir.__name__:
        parts = {f.name: widened(getattr(x, f.name)) for f in dataclasses.fields(x) if f.name != "span"}
        return dataclasses.replace(x, **parts)  # type: ignore[type-var]
    return x


def run_widened(program: Program, inputs: dict[str, Array], sizes: dict[str, int]) -> dict[str, Array]:
    """The outputs computed in f64 throughout, each rounded once at the end."""
    types = {b.id: b.dtype for b in program.buffers}
    wide = {k: v.astype(np.float64) if types[k].is_float else v for k, v in inputs.items()}
    found = run(widened(program), wide, sizes).outputs
    with np.errstate(all="ignore"):
        return {k: cast(v, types[k]) if types[k].is_float else v for k, v in found.items()}


# -- any program ------------------------------------------------------------------------------------------------------


def check_honest(program: Program, inputs: dict[str, Array], sizes: dict[str, int]) -> None:
    """The reference's own result, and the program computed in f64, must be admissible."""
    found = run_bounded(program, inputs, sizes)
    plain = run(program, inputs, sizes).outputs
    for name, b in found.items():
        bits = np.dtype(f"u{b.value.dtype.itemsize}")
        same = (b.value.view(bits) == plain[name].view(bits)) | ((b.value != b.value) & (plain[name] != plain[name]))
        assert np.all(same)
        assert agrees(b, plain[name]) is None
        assert np.all(b.bound >= 0) and np.all(np.isfinite(b.bound))
    for name, array in run_widened(program, inputs, sizes).items():
        assert agrees(found[name], array) is None, name


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    # What reads a float's bits, or a NaN's, has no wide counterpart.
    assume(not any(isinstance(n, Op) and n.op == "bits" for n in nodes(program)))
    sizes, inputs = data.draw(ir_inputs(program))
    check_honest(program, inputs, sizes)


@pytest.mark.parametrize("case", [*PROGRAMS, *ODD], ids=lambda c: c.name)
def test_known_programs(case: Case) -> None:
    check_honest(case.program, case.inputs, case.sizes)


@pytest.mark.parametrize("case", PROGRAMS[:6], ids=lambda c: c.name)
def test_a_wrong_scale_is_caught(case: Case) -> None:
    for b in run_bounded(case.program, case.inputs, case.sizes).values():
        if b.value.dtype.kind == "f" and np.any(b.value):
            assert agrees(b, b.value) is None
            wrong = (b.value * (1 + 1e-3)).astype(b.value.dtype)
            found = agrees(b, wrong)
            assert found is not None and found.wrong > np.count_nonzero(b.value) // 2


# -- sums -------------------------------------------------------------------------------------------------------------

DOT = """program dot(M, K)
buf a: f32[M, K] in
buf b: f32[K] in
buf y: f32[M] out
par i < M
  fold k < K
    acc s: f32 sum
    s <- a[i, k] * b[k]
  y[i] = s
"""


def fma(a: Array, b: Array, c: Array) -> Array:
    return (a.astype(float) * b + c).astype(F)


def test_any_order_and_contraction_are_admissible() -> None:
    a, b = normal(40, 500), normal(500)
    found = bounded(DOT, {"M": 40, "K": 500}, a=a, b=b)["y"]
    terms = a * b
    for order in (np.arange(500), np.arange(500)[::-1], RNG.permutation(500), np.argsort(-np.abs(b))):
        left, fused = np.zeros(40, dtype=F), np.zeros(40, dtype=F)
        for k in order:
            left, fused = left + terms[:, k], fma(a[:, k], np.broadcast_to(b[k], 40), fused)
        assert inside(found, left) and inside(found, fused)
    assert inside(found, a @ b)
    assert inside(found, (a.astype(float) @ b.astype(float)).astype(F))


def test_a_dropped_or_repeated_term_is_caught() -> None:
    a, b = normal(40, 500), normal(500)
    found = bounded(DOT, {"M": 40, "K": 500}, a=a, b=b)["y"]
    exact = a.astype(float) @ b
    k = int(np.argmax(np.abs(b)))
    for wrong in (exact - a[:, k] * b[k], exact + a[:, k] * b[k]):
        mismatch = agrees(found, wrong.astype(F))
        assert mismatch is not None and mismatch.wrong > 20
    worst = 500 * 2.0**-24 * (np.abs(a) @ np.abs(b))
    assert np.all(found.bound < 2 * worst)


def test_small_integers_add_up_exactly() -> None:
    a, b = RNG.integers(-50, 50, (5, 300)).astype(F), RNG.integers(-50, 50, 300).astype(F)
    found = bounded(DOT, {"M": 5, "K": 300}, a=a, b=b)["y"]
    assert not found.bound.any() and not found.undecided.any()
    assert agrees(found, found.value + F(1)) is not None


def test_sums_of_f64_have_an_extended_shadow() -> None:
    text = DOT.replace("f32", "f64")
    a, b = normal(10, 400, dtype=np.float64), normal(400, dtype=np.float64)
    found = bounded(text, {"M": 10, "K": 400}, a=a, b=b)["y"]
    assert found.shadow.dtype == np.longdouble
    assert inside(found, a @ b) and inside(found, (a[:, ::-1] @ b[::-1]))
    assert agrees(found, (a @ b) * (1 + 1e-11)) is not None


def test_a_product_of_many() -> None:
    text = "program p(N)\nbuf x: f32[N] in\nbuf y: f32 out\nkernel k\n  fold i < N\n    acc s: f32 prod\n    s <- x[i]\n  y[] = s\n"
    x = RNG.uniform(0.8, 1.25, 300).astype(F)
    found = bounded(text, {"N": 300}, x=x)["y"]
    left = F(1)
    for value in x[::-1]:
        left = left * value
    assert inside(found, np.asarray(left))
    assert not inside(found, np.asarray(left * F(1.001)))
    assert float(found.bound) < 300 * 2.0**-24 * 1.01 * float(found.shadow)


def test_the_least_of_many_errs_as_one() -> None:
    """Errors of a minimum do not add up, or they would double with every step of a recurrence."""
    (case,) = (c for c in ODD if c.name == "a seq loop in a seq loop")
    (found,) = run_bounded(case.program, case.inputs, case.sizes).values()
    assert not found.undecided.any() and found.bound.max() < 1e-5


# -- 16 bits ----------------------------------------------------------------------------------------------------------

HALF = """program half(N)
numerics default
buf x: f16[N] in
buf y: f16[N] out
par i < N
  t = x[i] * x[i] + x[i]
  y[i] = t * 3.0f16 - x[i]
"""


def test_f16_may_be_kept_wide_or_rounded() -> None:
    x = RNG.uniform(-3, 3, 1000).astype(np.float16)
    found = bounded(HALF, {"N": 1000}, x=x)["y"]
    w = x.astype(F)
    assert inside(found, (w * w + w) * F(3) - w)
    assert inside(found, (x * x + x) * np.float16(3) - x)
    assert not inside(found, ((w * w + w) * F(3.03) - w))


def test_an_overflow_of_the_declared_type_only_is_undecided() -> None:
    text = "program p(N)\nbuf x: f16[N] in\nbuf y: f16[N] out\npar i < N\n  y[i] = x[i] * 300.0f16 / 300.0f16\n"
    x = np.array([1, 100, 1000], dtype=np.float16)
    found = bounded(text, {"N": 3}, x=x)["y"]
    assert np.isinf(found.value[2])
    assert found.undecided.tolist() == [False, False, True]


# -- switches ---------------------------------------------------------------------------------------------------------


def elementwise(expr: str, x: Array, out: str = "f32", **more: Array) -> Bounded:
    buffers = "".join(f"buf {name}: f32[N] in\n" for name in ("x", *more))
    text = f"program p(N)\n{buffers}buf y: {out}[N] out\npar i < N\n  t = (x[i] * 1.1f32 + 7.0f32) - 8.1f32\n  y[i] = {expr}\n"
    return bounded(text, {"N": x.size}, x=x, **more)["y"]


NEAR = np.array([1.0, 1.0 + 2.0**-23, 1.0 - 2.0**-23, 1.5, 0.5, 3.7], dtype=F)


def test_comparisons_near_equality_are_undecided() -> None:
    for expr in ("t > 0.0f32", "t == 0.0f32", "t <= 0.0f32"):
        found = elementwise(expr, NEAR, "bool")
        assert found.undecided[:3].all() and not found.undecided[3:].any(), expr
    exact = elementwise("x[i] > 1.0f32", NEAR, "bool")
    assert not exact.undecided.any()


def test_jumps_are_undecided_near_them() -> None:
    x = np.array([1.0, 3.0, 2.0, 4.25], dtype=F)
    for expr, out in (
        ("floor(t)", "f32"),
        ("i32(t + 1.0f32)", "i32"),
        ("round(t + 0.5f32)", "f32"),
        ("sign(t)", "f32"),
    ):
        found = elementwise(expr, x, out)
        assert found.undecided[0], expr
        assert not found.undecided[3], expr
    assert elementwise("atan2(t, -1.0f32)", x).undecided.tolist() == [True, False, False, False]


def test_a_choice_that_is_continuous_is_decided() -> None:
    found = elementwise("t if t > 0.0f32 else 0.0f32", NEAR)
    assert not found.undecided.any()
    jump = elementwise("1.0f32 if t > 0.0f32 else 0.0f32", NEAR)
    assert jump.undecided.tolist() == [True] * 3 + [False] * 3
    assert not elementwise("maximum(t, 0.0f32)", NEAR).undecided.any()


def test_poles_and_edges_of_domains() -> None:
    assert elementwise("1.0f32 / t", NEAR).undecided.tolist() == [True] * 3 + [False] * 3
    assert elementwise("log(t)", NEAR).undecided[:3].all()
    assert elementwise("sqrt(t)", NEAR).undecided[:3].all()
    assert not elementwise("exp(t)", NEAR).undecided.any()


def test_logic_decides_what_it_can() -> None:
    assert not elementwise("t > 0.0f32 and x[i] > 9.0f32", NEAR, "bool").undecided.any()
    assert not elementwise("t > 0.0f32 or x[i] < 9.0f32", NEAR, "bool").undecided.any()
    assert elementwise("t > 0.0f32 and x[i] < 9.0f32", NEAR, "bool").undecided.sum() == 3


def test_positions_are_undecided_between_close_rivals() -> None:
    text = """program p(N, M)
buf x: f32[N, M] in
buf y: i64[N] out
buf z: i64[N] out
par i < N
  fold j < M
    acc a: f32 argmax
    acc b: f32 argmin
    a <- x[i, j] * 1.1f32 - 0.1f32 at {j}
    b <- x[i, j] at {j}
  y[i] = a
  z[i] = b
"""
    text = text.replace("par i < N\n", "kernel k\n  par i < N\n").replace("\n  fold", "\n    fold")
    text = (
        text.replace("\n    acc", "\n      acc")
        .replace("\n    a <-", "\n      a <-")
        .replace("\n    b <-", "\n      b <-")
    )
    text = text.replace("\n  y[i]", "\n    y[i]").replace("\n  z[i]", "\n    z[i]")
    x = np.array([[1, 2, 3], [3, 2, 3 + 2**-22], [5, 5, 5], [np.nan, 1, 2]], dtype=F)
    found = bounded(text, {"N": 4, "M": 3}, x=x)
    assert found["y"].value.tolist() == [2, 2, 0, 0]
    assert found["y"].undecided.tolist() == [False, True, True, False]
    assert not found["z"].undecided.any()  # exact operands: ties are decided by position


def test_computed_subscripts_and_filters_pass_doubt_on() -> None:
    text = """program p(N)
buf x: f32[N] in
buf w: f32[5] in
buf y: f32[N] out
buf h: i32[5] out
buf s: f32 out
kernel a
  par i < N
    y[i] = w[i64(clip(x[i] * 1.1f32, 0.0f32, 4.0f32))]
kernel b
  fold i < N
    acc c: i32[5] sum
    c[i64(clip(x[i] * 1.1f32, 0.0f32, 4.0f32))] <- 1i32
  par j < 5
    h[j] = c[j]
kernel c
  fold i < N where x[i] * 1.1f32 > 1.0f32
    acc t: f32 sum
    t <- x[i]
  s[] = t
"""
    w = normal(5)
    near = np.array([0.2, 1 / 1.1, 3.0], dtype=F)
    found = bounded(text, {"N": 3}, x=near, w=w)
    assert found["y"].undecided.tolist() == [False, True, False]
    assert found["h"].undecided.any() and found["s"].undecided
    far = bounded(text, {"N": 3}, x=np.array([0.2, 1.2, 3.0], dtype=F), w=w)
    assert not any(b.undecided.any() for b in far.values())
    assert agrees(far["h"], far["h"].value + np.int32(1)) is not None


def test_an_undecided_target_affects_its_row_only() -> None:
    text = """program p(N)
buf x: f32[N] in
buf h: i32[N, 5] out
kernel b
  fold i < N
    acc c: i32[N, 5] sum
    c[i, i64(clip(x[i] * 1.1f32, 0.0f32, 4.0f32))] <- 1i32
  par i < N, j < 5
    h[i, j] = c[i, j]
"""
    found = bounded(text, {"N": 3}, x=np.array([0.2, 1 / 1.1, 3.0], dtype=F))["h"]
    assert found.undecided.tolist() == [[False] * 5, [True] * 5, [False] * 5]


# -- what is not finite -----------------------------------------------------------------------------------------------


def test_infinities_and_nans_must_match() -> None:
    text = "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N\n  y[i] = x[i] - 1.0f32\n"
    x = np.array([np.inf, -np.inf, np.nan, 2.0], dtype=F)
    found = bounded(text, {"N": 4}, x=x)["y"]
    assert not found.undecided.any()
    assert inside(found, x - F(1))
    for at, wrong in ((0, np.nan), (0, -np.inf), (1, 0.0), (2, 1.0), (3, np.nan), (3, np.inf)):
        other = x - F(1)
        other[at] = wrong
        mismatch = agrees(found, other)
        assert mismatch is not None and mismatch.index == (at,) and mismatch.wrong == 1


MASKED = """program masked(N, M)
NUMERICS
buf w: f32[N] in
buf v: f32[N] in
buf y: f32 out
kernel k
  fold i < N
    acc s: f32 sum
    s <- w[i] * v[i]
  y[] = s
"""


@pytest.mark.parametrize("mode", ["strict", "default", "fast"])
def test_a_zero_weight_may_be_skipped_outside_strict(mode: str) -> None:
    text = MASKED.replace("NUMERICS", f"numerics {mode}").replace("(N, M)", "(N)")
    w, v = np.array([1, 0, 2], dtype=F), np.array([3, np.inf, 4], dtype=F)
    found = bounded(text, {"N": 3}, w=w, v=v)["y"]
    assert np.isnan(found.value) and bool(found.undecided) == (mode != "strict")
    legitimate = bounded(text, {"N": 3}, w=w + F(1), v=np.array([3, np.nan, 4], dtype=F))["y"]
    assert np.isnan(legitimate.value) and not legitimate.undecided


def test_tf32_needs_leave() -> None:
    a, b = normal(20, 64), normal(64)

    def short(x: Array) -> Array:
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(F)

    result = (short(a).astype(float) @ short(b)).astype(F)
    sizes = {"M": 20, "K": 64}
    assert not inside(bounded(DOT, sizes, a=a, b=b)["y"], result)
    allowed = DOT.replace("buf a", "pragma tf32\nbuf a", 1)
    assert inside(bounded(allowed, sizes, a=a, b=b)["y"], result)
    a[:] = b[:] = F(1 + 2**-10 - 2**-23)  # the most that is dropped, all of one sign
    assert inside(bounded(allowed, sizes, a=a, b=b)["y"], np.full(20, 64, F))


def test_agrees_wants_the_outputs_own_type() -> None:
    found = bounded(DOT, {"M": 2, "K": 3}, a=normal(2, 3), b=normal(3))["y"]
    for wrong in (np.zeros(3, dtype=F), np.zeros(2)):
        with pytest.raises(ValueError, match="is not"):
            agrees(found, wrong)
