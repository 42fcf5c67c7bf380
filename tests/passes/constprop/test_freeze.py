"""Frozen inputs: what follows from them is computed once, and factors of channels move into weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pass_checks import SCRIPTS, apply, lowered_script, shown, text

import loopfuse as lf
from loopfuse import driver
from loopfuse.agreement import every_pass
from loopfuse.bind import Given
from loopfuse.cli import main
from loopfuse.diag import Source, UserError
from loopfuse.passes import Options
from loopfuse.passes.base import Steps
from loopfuse.passes.constprop import PASS

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
CONV = next(p for p in SCRIPTS if p.stem == "04_conv_bn_relu")
WEIGHTS = ("w", "gamma", "beta", "mean", "var", "eps")


def randn(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


LINEAR = """program p(M, N, K)
buf x: f32[M, K] in
buf w: f32[N, K] in
buf g: f32[N] in
buf b: f32[N] in
buf s: f32[N]
buf d: f32[M, N]
buf y: f32[M, N] out
kernel k1
  par n < N
    s[n] = g[n] * 2.0f32
kernel k2
  par m < M, n < N
    fold k < K
      acc a: f32 sum
      a <- x[m, k] * w[n, k]
    d[m, n] = a
kernel k3
  par m < M, n < N
    y[m, n] = d[m, n] * s[n] + b[n]
"""


def arrays(n: int = 3, k: int = 4) -> dict[str, Array]:
    return {"w": randn(n, k), "g": randn(n), "b": randn(n)}


def test_what_depends_on_frozen_arrays_is_computed_and_moves_into_the_weights() -> None:
    frozen = arrays()
    stage = apply(PASS, LINEAR, frozen=frozen)
    assert (
        shown(stage.program)
        == """kernel k2
  par m < M, n < 3
    fold k < 4
      acc a: f32 sum
      a <- x[m, k] * w.1[n, k]
    d[m, n] = a
kernel k3
  par m < M, n < 3
    y[m, n] = d[m, n] + b[n]
"""
    )
    held = stage.notes["frozen"]
    np.testing.assert_array_equal(held["w.1"], frozen["w"] * (frozen["g"] * np.float32(2))[:, None])
    assert stage.rounds
    assert any("computed once" in r.text and not r.rounds for r in stage.remarks)
    assert any("multiplied into the frozen weights `w`" in r.text and r.rounds for r in stage.remarks)
    assert [s.value for s in stage.program.sizes] == [None, 3, 4]


def test_strict_computes_once_and_does_not_round() -> None:
    stage = apply(PASS, LINEAR.replace("(M, N, K)\n", "(M, N, K)\nnumerics strict\n"),
                  frozen=arrays())  # fmt: skip
    assert not stage.rounds
    assert "d[m, n] * s[n] + b[n]" in shown(stage.program)
    assert [k.id for k in stage.program.kernels] == ["k2", "k3"]


def test_again_there_is_nothing_to_do() -> None:
    frozen = arrays()
    once = apply(PASS, LINEAR, frozen=frozen)
    assert not apply(PASS, once.program, frozen=frozen).changed


@pytest.mark.parametrize(
    "other",
    [
        "y[m, n] = d[m, n] * s[n] + d[m, n]",  # read without the factor too
        "y[m, n] = d[m, n] * g[n] + d[m, n] * s[n]",  # two factors
        "y[m, n] = d[m, n - 1 ~edge] * s[n]",  # of another channel
        "y[m, n] = exp(d[m, n]) * s[n]",
        "y[m, n] = d[m, n] / s[n]",
    ],
)
def test_factors_that_stay(other: str) -> None:
    stage = apply(PASS, LINEAR.replace("y[m, n] = d[m, n] * s[n] + b[n]", other), frozen=arrays())
    assert not stage.rounds
    assert other in shown(stage.program)


def test_a_factor_along_the_rows_stays() -> None:
    """Not an axis of the weights, though the extents are equal."""
    program = LINEAR.replace("d[m, n] * s[n]", "d[m, n] * s[m]").replace("(M, N, K)", "(N, K)").replace("[M,", "[N,")
    stage = apply(PASS, program.replace("m < M", "m < N"), frozen=arrays())
    assert not stage.rounds


@pytest.mark.parametrize("factor", [1e38, 1e-30, np.inf, np.nan])
def test_factors_that_lose_digits_stay(factor: float) -> None:
    frozen = arrays()
    frozen["w"][0] = 1e-10 if factor < 1 else 1e10
    frozen["g"][0] = factor
    assert not apply(PASS, LINEAR, frozen=frozen).rounds


def test_a_channel_that_is_switched_off() -> None:
    frozen = arrays()
    frozen["g"][1] = 0.0
    assert apply(PASS, LINEAR, frozen=frozen).rounds


def test_weights_that_would_grow_are_not_kept() -> None:
    program = """program p(N)
buf w: f16[N] in
buf v: f32[N]
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par n < N
    v[n] = f32(w[n])
kernel k2
  par n < N
    y[n] = x[n] * v[n]
"""
    stage = apply(PASS, program, frozen={"w": np.ones(100_000, np.float16)})
    assert [k.id for k in stage.program.kernels] == ["k1", "k2"]
    assert [r.missed for r in stage.remarks] == [True]
    small = apply(PASS, program, frozen={"w": np.ones(100, np.float16)})
    assert [k.id for k in small.program.kernels] == ["k2"]


def test_accesses_that_go_outside_are_left_to_the_run() -> None:
    program = """program p(N)
buf w: f32[N] in
buf k: i64[N] in
buf v: f32[N]
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par n < N
    v[n] = w[k[n] ~checked]
kernel k2
  par n < N
    y[n] = x[n] * v[n]
"""
    given = {"w": randn(3), "k": np.array([0, 3, 1])}
    assert len(apply(PASS, program, frozen=given).program.kernels) == 2
    given["k"][1] = 2
    assert len(apply(PASS, program, frozen=given).program.kernels) == 1


def test_steps() -> None:
    steps = Steps()
    apply(PASS, LINEAR, frozen=arrays(), steps={"constprop": steps})
    assert steps.log[-2:] == ["`s` is computed from frozen arrays", "`s` moves into `w`"]
    for most in range(len(steps.log)):
        stage = apply(PASS, LINEAR, frozen=arrays(), steps={"constprop": Steps(most)})
        assert not stage.rounds


@pytest.mark.parametrize(
    ("frozen", "code"),
    [
        ({"v": randn(3)}, "LF0502"),
        ({"g": np.zeros(3)}, "LF0503"),
        ({"g": randn(3, 1)}, "LF0504"),
        ({"g": randn(3), "b": randn(4)}, "LF0517"),
    ],
)
def test_arrays_that_do_not_fit(frozen: dict[str, Array], code: str) -> None:
    with pytest.raises(UserError) as caught:
        apply(PASS, text(LINEAR), frozen=frozen)
    assert caught.value.diagnostics[0].code == code


def frozen_conv(source: Path = CONV) -> tuple[driver.Lowered, Any, Options]:
    lowered, bound = lowered_script(source)
    frozen = driver.frozen_arrays(lowered.typed, bound, WEIGHTS)
    return lowered, bound, Options(sizes=bound.sizes, frozen=frozen)


def test_batch_normalisation_goes_into_the_weights_of_a_convolution() -> None:
    lowered, bound, options = frozen_conv()
    optimised = driver.optimise(lowered, options, "constprop,dce")
    assert [k.id for k in optimised.program.kernels] == ["k3", "k4", "k5"]
    assert "scale" not in {b.id for b in optimised.program.buffers}
    assert "conv[n, o, i, j] + shift[o]" in shown(optimised.program)
    for row in every_pass(lowered, bound, "default", options):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"
    plain, found = driver.execute(lowered, bound), driver.execute(optimised, bound)
    np.testing.assert_allclose(found.outputs["y"], plain.outputs["y"], rtol=1e-4, atol=1e-5)


LIBRARY = """import nn
input x: f32[N, C, H, W]
input w: f32[K, C, 3, 3]
input b: f32[K]
input gamma: f32[K]
input beta: f32[K]
input mean: f32[K]
input var: f32[K] where var > 0
let c = nn.conv2d(x, w, pad=1) + BIAS
output y = nn.relu(nn.batchnorm(c, gamma, beta, mean, var))
"""


@pytest.mark.parametrize("bias", ["0", "b[None, :, None, None]"])
def test_the_librarys_batch_normalisation(bias: str) -> None:
    """With a bias of the convolution the factor goes through it, and scales it."""
    checked = driver.compile_source(Source("s", LIBRARY.replace(" + BIAS", f" + {bias}" if bias != "0" else "")))
    bound = driver.bind_program(checked.typed, Given({}, fill=True))
    lowered = driver.lower_program(checked.typed)
    names = [i.name for i in checked.typed.inputs if i.name != "x"]
    options = Options(sizes=bound.sizes, frozen=driver.frozen_arrays(checked.typed, bound, names))
    optimised = driver.optimise(lowered, options, "constprop,dce")
    assert "scale" not in shown(optimised.program)
    assert ("b.1[" in shown(optimised.program)) == (bias != "0")
    used = {b.id for b in lowered.program.buffers}
    options.frozen = {id: a for id, a in options.frozen.items() if id in used}
    for row in every_pass(lowered, bound, "constprop,dce", options):
        assert row.agrees, row.verdict.problem


def test_a_bias_without_a_contraction_stays() -> None:
    program = """program p(M, N)
buf x: f32[M, N] in
buf s: f32[N] in
buf b: f32[N] in
buf t: f32[M, N]
buf y: f32[M, N] out
kernel k1
  par m < M, n < N
    t[m, n] = x[m, n] + b[n]
kernel k2
  par m < M, n < N
    y[m, n] = t[m, n] * s[n]
"""
    stage = apply(PASS, program, frozen={"s": randn(3), "b": randn(3)})
    assert not stage.rounds
    assert "t[m, n] * s[n]" in shown(stage.program)


def test_integer_params() -> None:
    source = Source("s", "input x: f32[N]\nparam k: i32 = 3\noutput y = x * f32(k)")
    checked = driver.compile_source(source)
    bound = driver.bind_program(checked.typed, Given({"x": randn(4)}))
    frozen = driver.frozen_arrays(checked.typed, bound, ["k"])
    optimised = driver.optimise(driver.lower_program(checked.typed), Options(frozen=frozen))
    assert "3.0f32" in shown(optimised.program)
    with pytest.raises(UserError):
        driver.frozen_arrays(checked.typed, bound, ["z"])


def test_the_command_freezes_inputs_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "w.npy", randn(4, 3))
    np.save(tmp_path / "x.npy", randn(2, 4))
    script = tmp_path / "s.lf"
    script.write_text(
        'input x: f32[M, K]\ninput w: f32[K, N] from "w.npy"\ninput s: f32[N]\noutput y = (x @ w) * s\n',
        encoding="utf-8",
    )
    run = ["run", str(script), f"x={tmp_path / 'x.npy'}", "s=const(2)", "-o", f"y={tmp_path / 'y.npy'}"]
    assert main(run) == 0
    plain = np.load(tmp_path / "y.npy")
    assert main([*run, "--freeze", "w,s"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), plain, rtol=1e-5)
    assert main([*run, "--freeze", "q"]) == 2
    assert "to freeze" in capsys.readouterr().err
    assert main([*run, "--passes", "fussion"]) == 2
    assert "LF0821" in capsys.readouterr().err
    assert main(["check", str(script), "--every-pass", "--freeze", "w,s"]) == 0
    assert "in bounds" in capsys.readouterr().out


def test_frozen_inputs_of_the_api() -> None:
    prog = lf.parse("input x: f32[M, K]\ninput w: f32[K, N]\ninput s: f32[N]\noutput y = (x @ w) * s")
    x, w, s = randn(2, 3), randn(3, 4), randn(4)
    frozen = prog.compile(freeze=["w", "s"])
    np.testing.assert_allclose(frozen(x, w, s), (x @ w) * s, rtol=1e-5)
    np.testing.assert_allclose(frozen(x, w * 0, s), (x @ w) * s, rtol=1e-5)  # the first arrays hold
