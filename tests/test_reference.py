"""The reference back end against independent NumPy, and its two interpreters against each other, to the bit."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from reference_programs import ODD, PROGRAMS, Case

from loopfuse.backends.reference import Online, Result, run, run_scalar
from loopfuse.diag import CompilerError
from loopfuse.ops import OPS
from loopfuse.printer import print_program
from loopfuse.reader import parse_program

Array = np.ndarray[Any, Any]
F = np.float32
SOME: list[dict[str, Any]] = [{}, {"limit": 1}, {"limit": 256 * 5}, {"limit": 256 * 100}, {"checked": True}]


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the bit, all NaNs being one."""
    if a.dtype != b.dtype or a.shape != b.shape or not b.flags.c_contiguous:
        return False
    nan = (a != a) & (b != b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return bool(np.all((a.view(bits) == b.view(bits)) | nan))


def faults(result: Result) -> set[tuple[Any, ...]]:
    return {(f.buffer, f.span, f.count) for f in result.faults}


def check_same(program: Any, inputs: dict[str, Array], sizes: dict[str, int], ways: list[dict[str, Any]]) -> Result:
    """Run a program on the scalar interpreter, and on the vectorised one in several ways."""
    expected = run_scalar(program, inputs, sizes)
    for way in ways:
        found = run(program, inputs, sizes, **way)
        assert list(found.outputs) == list(expected.outputs)
        for name, array in expected.outputs.items():
            assert same_bits(array, found.outputs[name]), f"{name} {way}\n{print_program(program)}"
        assert faults(found) == faults(expected), f"{way}\n{print_program(program)}"
    return expected


# -- the two interpreters ---------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    check_same(program, inputs, sizes, [{}, {"limit": 1}, {"limit": 256 * 7, "checked": True}])


@pytest.mark.parametrize("case", ODD, ids=lambda c: c.name)
def test_odd_programs(case: Case) -> None:
    check_same(case.program, case.inputs, case.sizes, SOME)


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
def test_known_programs(case: Case) -> None:
    expected = check_same(case.program, case.inputs, case.sizes, SOME)
    for name, array in case.expected.items():
        found = expected.outputs[name]
        assert found.dtype == array.dtype
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, array, rtol=case.rtol, atol=case.rtol)
        else:
            np.testing.assert_array_equal(found, array)


# -- boxes ------------------------------------------------------------------------------------------------------------


def test_boxes_of_a_large_contraction_change_no_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((70, 300)).astype(F), rng.standard_normal((300, 50)).astype(F)
    program = parse_program(
        "program mm(M, N, K)\nbuf a: f32[M, K] in\nbuf b: f32[K, N] in\nbuf c: f32[M, N] out\n"
        "par i < M, j < N\n  fold k < K\n    acc s: f32 sum\n    s <- a[i, k] * b[k, j]\n  c[i, j] = s\n"
    )
    sizes = {"M": 70, "N": 50, "K": 300}
    whole = run(program, {"a": a, "b": b}, sizes).outputs["c"]
    np.testing.assert_allclose(whole, a.astype(float) @ b, atol=1e-4)
    for limit in (256 * 333, 256 * 1000, 256 * 20000):
        assert same_bits(whole, run(program, {"a": a, "b": b}, sizes, limit=limit).outputs["c"])


def test_a_contraction_is_never_materialised() -> None:
    n = 128
    program = parse_program(
        "program mm(N)\nbuf a: f32[N, N] in\nbuf c: f32[N, N] out\n"
        "par i < N, j < N\n  fold k < N\n    acc s: f32 sum\n    s <- a[i, k] * a[k, j]\n  c[i, j] = s\n"
    )
    a = np.ones((n, n), dtype=F)
    assert peak(lambda: run(program, {"a": a}, {"N": n}, limit=1 << 24)) < 4 * n**3


def peak(action: Callable[[], Any]) -> int:
    """The most memory allocated at a time while something runs."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_bounded() -> None:
    lines = ["  t0 = x[i] * 2.0f32"]
    lines += [f"  t{k} = t{k - 1} + x[i]" for k in range(1, 200)]
    text = "program chain(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N\n" + "\n".join(lines) + "\n  y[i] = t199\n"
    n = 1 << 22
    x = np.ones(n, dtype=F)
    program = parse_program(text)
    output = 4 * n
    assert peak(lambda: run(program, {"x": x}, {"N": n}, limit=1 << 24)) < output + (8 << 20)
    small = peak(lambda: run(program, {"x": x[: 1 << 18]}, {"N": 1 << 18}, limit=1 << 20))
    assert small < 4 * (1 << 18) + (1 << 20)


def test_a_window_is_all_that_is_allocated() -> None:
    text = """program scan(T, N)
buf h: f64[T + 1, N] window [t:t + 2, 0:N]
buf y: f64[N] out
kernel k
  par n < N
    h[0, n] = 1.0f64
  seq t < T
    par n < N
      h[t + 1, n] = h[t, n] * 0.5f64 + 1.0f64
  par n < N
    y[n] = h[T, n]
"""
    program, sizes = parse_program(text), {"T": 500, "N": 1000}
    assert peak(lambda: run(program, {}, sizes)) < 500 * 1000 * 8 // 10
    value = 1.0
    for _ in range(500):
        value = value * 0.5 + 1.0
    assert np.all(run(program, {}, sizes).outputs["y"] == value)


# -- repairs ----------------------------------------------------------------------------------------------------------

ATTENTION = """program attention(S, D)
buf q: f64[S, D] in
buf k: f64[S, D] in
buf v: f64[S, D] in
buf out: f64[S, D] out
par i < S
  fold j < S
    acc m: f64 max
    acc l: f64 sum repair self * exp(m.old - m.new) if m.old != m.new else self
    acc o: f64[D] sum repair self * exp(m.old - m.new) if m.old != m.new else self
    fold d < D
      acc s: f64 sum
      s <- q[i, d] * k[j, d]
    z = s * 0.125f64 if {j} <= {i} else -inf:f64
    m <- z
    p = exp(z - (0.0f64 if m == -inf:f64 else m))
    l <- p
    par d < D
      o[d] <- p * v[j, d]
  l.1 = nan:f64 if m == -inf:f64 else l
  par d < D
    out[i, d] = o[d] / l.1
"""
WAYS = [Online(1), Online(7), Online(64), Online(1, True), Online(7, True), Online(64, True)]


def attention() -> tuple[dict[str, Array], dict[str, int]]:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((70, 4)) for _ in range(3))
    # Rows that begin with -inf, that are -inf throughout, that hold inf, that hold NaN.
    k[0, 0], q[:, 0], q[3], q[9] = -np.inf, np.abs(q[:, 0]), np.inf, np.nan
    return {"q": q, "k": k, "v": v}, {"S": 70, "D": 4}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_repaired_folds_agree_with_exact_ones(way: Online) -> None:
    inputs, sizes = attention()
    program = parse_program(ATTENTION)
    exact = run(program, inputs, sizes).outputs["out"]
    found = run(program, inputs, sizes, online=way).outputs["out"]
    assert 0 < np.isnan(exact).sum() < exact.size
    np.testing.assert_allclose(found, exact, rtol=1e-13, equal_nan=True)


@pytest.mark.parametrize("way", [Online(7), Online(7, True)], ids=str)
def test_a_lost_repair_shows(way: Online) -> None:
    inputs, sizes = attention()
    line = "acc o: f64[D] sum repair self * exp(m.old - m.new) if m.old != m.new else self"
    broken = parse_program(ATTENTION.replace(line, "acc o: f64[D] sum repair self"))
    exact = run(broken, inputs, sizes).outputs["out"]
    found = run(broken, inputs, sizes, online=way).outputs["out"]
    assert np.nanmax(np.abs(found - exact)) > 1e-3


# -- errors of the program --------------------------------------------------------------------------------------------


def fails(text: str, inputs: dict[str, Array], sizes: dict[str, int], match: str, checked: bool = True) -> None:
    program = parse_program(text)
    with pytest.raises(CompilerError, match=match):
        run(program, inputs, sizes, checked=checked)
    with pytest.raises(CompilerError):
        run_scalar(program, inputs, sizes)


X8 = {"x": np.arange(8, dtype=F)}


def test_a_load_out_of_range_is_our_bug() -> None:
    text = "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N\n  y[i] = x[i + 1]\n"
    fails(text, X8, {"N": 8}, r"`x` .*`x\[i \+ 1\]`.*subscript 8", checked=False)
    guarded = text.replace("x[i + 1]", "x[i + 1] if {i} < {N - 1} else 0.0f32")
    found = run(parse_program(guarded), X8, {"N": 8}).outputs["y"]
    assert np.array_equal(found, [1, 2, 3, 4, 5, 6, 7, 0])


def test_reading_what_was_not_written() -> None:
    text = """program p(N)
buf x: f32[N] in
buf t: f32[N]
buf y: f32[N] out
kernel k
  par i < N - 1
    t[i] = x[i]
  par i < N
    y[i] = t[i]
"""
    fails(text, X8, {"N": 8}, "not written")


def test_writing_twice() -> None:
    text = "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N, j < 2\n  y[i] = x[i]\n"
    fails(text, X8, {"N": 8}, "written twice")


def test_leaving_a_window() -> None:
    text = """program p(T)
buf x: f32[T] in
buf h: f32[T + 1] window [t:t + 2]
buf y: f32[T] out
kernel k
  h[0] = 0.0f32
  seq t < T
    h[t + 1] = h[t] + x[t]
    y[t] = h[t - 1 ~edge]
"""
    fails(text, {"x": np.ones(5, dtype=F)}, {"T": 5}, "window")


def test_inputs_must_fit() -> None:
    program = parse_program("program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N\n  y[i] = x[i]\n")
    for inputs in ({}, {"x": np.ones(3, dtype=F)}, {"x": np.ones(4)}):
        with pytest.raises(CompilerError, match="`x`"):
            run(program, inputs, {"N": 4})
    with pytest.raises(CompilerError, match="sizes N"):
        run(program, {"x": np.ones(4, dtype=F)}, {})
    strided = np.arange(8, dtype=F)[::2]
    assert np.array_equal(run(program, {"x": strided}, {"N": 4}).outputs["y"], strided)


# -- faults and progress ----------------------------------------------------------------------------------------------


def test_faults_name_the_place() -> None:
    text = "program p(N)\nbuf x: f32[N] in\nbuf k: i32[N] in\nbuf y: f32[N] out\npar i < N\n  y[i] = x[i64(k[i]) ~checked]\n"
    k = np.array([0, 9, -1, 3, 2, 2, 100, 7], dtype=np.int32)
    result = check_same(parse_program(text), {**X8, "k": k}, {"N": 8}, SOME)
    assert np.array_equal(result.outputs["y"], [0, 0, 0, 3, 2, 2, 0, 7])
    (fault,) = result.faults
    assert (fault.buffer, fault.count) == ("x", 3)
    assert fault.span is not None and fault.span.text == "x[i64(k[i]) ~checked]"


def test_progress_rises_to_one() -> None:
    text = "program p(N)\nbuf x: f32[N] in\nbuf t: f32[N]\nbuf y: f32[N] out\n"
    text += "par i < N\n  t[i] = x[i]\npar i < N\n  y[i] = t[i] * t[i]\n"
    seen: list[float] = []
    x = np.ones(10000, dtype=F)
    run(parse_program(text), {"x": x}, {"N": 10000}, limit=1 << 18, progress=seen.append)
    assert len(seen) > 10 and seen[-1] == 1.0
    assert all(0.0 <= a <= b <= 1.0 for a, b in itertools.pairwise(seen))


# -- what NumPy must grant --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(n for n, r in OPS.items() if r.arity == 1 and "float" in r.kinds))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_layout_does_not_change_a_function(name: str, dtype: Any) -> None:
    """Boxes and strides differ between runs: a function must give the same bits in any layout and at any length."""
    row = OPS[name]
    if row.gives == "explicit":
        return
    low, high = (max(-6e4, min(6e4, end)) for end in row.domain[0])
    x = np.random.default_rng(0).uniform(low, high, 1001).astype(dtype)
    kind = parse_program("program p()\nbuf y: " + {2: "f16", 4: "f32", 8: "f64"}[x.itemsize] + " in\n").buffers[0].dtype
    whole = row.evaluate((x,), kind)
    apart = np.zeros((1001, 3), dtype=dtype)
    apart[:, 1] = x
    assert np.array_equal(row.evaluate((apart[:, 1],), kind), whole)
    assert np.array_equal(row.evaluate((x[::-1],), kind), whole[::-1])
    ones = [row.evaluate((x[k],), kind) for k in range(0, 1001, 50)]
    assert np.array_equal(ones, whole[::50])


def test_nothing_here_names_an_operation() -> None:
    """What an operation means stands in its row: the interpreters only read the table."""
    folder = Path(__file__).parents[1] / "loopfuse" / "backends" / "reference"
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in ("add", "mul", "maximum", "sum", "argmax", "where", "exp", "and"):
            assert f'== "{name}"' not in text, f"{path.name} asks for {name}"
