"""Programs restated from public reports of wrong results in fusing and array compilers, with values derived by hand.

tests/reports/cases.json holds inputs, values, tolerance and source of each; here is each as a script. A name that the
table lacks is a case that the language cannot say, with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopfuse as lf
from loopfuse import driver
from loopfuse.agreement import every_pass
from loopfuse.bind import Given
from loopfuse.diag import Source

HELD = json.loads((Path(__file__).parent / "reports" / "cases.json").read_text("utf-8"))
CASES = {case["id"]: case for case in (HELD["cases"] if isinstance(HELD, dict) else HELD)}

SOFTMAX = "let m = max(x, axis=1, keepdims=true)\nlet e = exp(x - m)\n"
SCRIPTS = {
    "s01_maximum_nan": "output a = maximum(x, y)\noutput b = minimum(x, y)",
    "s02_reduce_max_nan": "output a = max(x, axis=1)",
    "s03_self_compare_nan": "output a = x == x\noutput b = x != x\noutput c = where(x == x, x, 0)",
    "s04_masked_attention_rows": "let z = where(mask, s, -inf)\nlet m0 = max(z, axis=1, keepdims=true)\nlet m = where(m0 == -inf, 0, m0)\n"
    "let e = where(mask, exp(s - m), 0)\nlet d = sum(e, axis=1, keepdims=true)\n"
    "let p = where(d > 0, e / where(d > 0, d, 1), 0)\noutput o = p @ v",
    "s05_plain_softmax_all_minus_inf": SOFTMAX + "output p = e / sum(e, axis=1, keepdims=true)",
    "s06_online_softmax_first_block_masked": "let e = exp(s - max(s))\noutput o = sum(e * v) / sum(e)",
    "s07_mul_zero": "output y = x * 0",
    "s08_sub_self": "let t = x * c\noutput a = t - t\noutput b = x - x",
    "s09_log_exp_overflow": "output y = log(exp(x))",
    "s10_fma_cancel": "output y = a * x + b * x",
    "s11_pow_half_is_not_sqrt": "output a = x ** h\noutput b = sqrt(x)",
    "s12_cse_constant_identity": "output a = 1 / (x * 0.0)\noutput b = 1 / (x * -0.0)",
    "s13_cse_int_float_constant": "output a = x + 1\noutput b = f64(x) + 1.0",
    "s14_floor_div_mod_signs": "output p = a // b\noutput q = a % b",
    "s15_pow2_strength_reduction": "output a = x * 8\noutput b = x // 8\noutput c = x % 8\noutput d = x // -2147483648",
    "s16_int_min_by_minus_one": "output p = a // b\noutput q = a % b",
    "s17_uint8_vs_negative": "output a = u <= s\noutput b = maximum(u, s)",
    "s18_int8_wraps_each_step": "output p = (a + b) // 2\noutput q = a * b + a",
    "s19_bool_add": "output p = a or b\noutput q = a and b\noutput r = sum(a)",
    "s20_f16_round_trip": "let y = f32(f16(x))\noutput y\noutput d = y - x",
    "s21_constant_digits": "output a = x * 0.3333333432674408\noutput b = x * 0.08838834764831845\noutput c = x + 16777217.0",
    "s22_inf_literals": "output a = where(x > 0, x, -inf)\noutput b = where(x > 0, x, nan)\noutput c = maximum(x, -3.4028234663852886e38)",
    "s23_constant_only_program": "let y = log(zeros(f64, 3))\noutput k = i32(where(isfinite(y), y, -1))\noutput y",
    "s24_layernorm_large_mean": "let d = x - mean(x, axis=1, keepdims=true)\nlet v = mean(d * d, axis=1, keepdims=true)\noutput y = d / sqrt(v)",
    "s25_f16_sum_accumulator": "output y = f16(sum(x, dtype=f32))",
    "s26_matmul_k0": "output y = maximum(a @ b + bias, -1)",
    "s27_mean_empty_axis": "output a = sum(x, axis=1)\noutput b = mean(x, axis=1)\noutput c = prod(x, axis=1)",
    "s28_gather_negative_rows": "output y[i, j] = x[idx[i] if idx[i] >= 0 else idx[i] + 3, j] * 2",
    "s29_pad_then_maxpool": "let p = pad(x, 1)\noutput y = maximum(maximum(p[:-2], p[1:-1]), p[2:])",
    "s30_argmin_of_transpose": "output a = argmin(x.T + 0.5)\noutput b = argmin(x + 0.5)\noutput c = argmax(x.T, axis=0)",
    "s31_reversed_view": "let r = y[::-1]\noutput a = r * 2\noutput b = where(r > 2, r, 0)\noutput c = sum(r * 2)",
    "s32_inplace_flip_add": "let t = x * 2\nlet t = t + t[::-1]\noutput t",
    "s33_war_across_fused_loops": "output y = concat(a[:1], a[1] * c[1:])",
    "s34_divide_by_own_max": "output p = a / max(a)\noutput q = a + sum(a)",
    "s35_sum_of_broadcast": "output a = sum(broadcast_to(x, 3, 4, 2))\noutput b = max(broadcast_to(x, 3, 4, 2), axis=(0, 2))",
    "s36_identical_outputs": "let a = x * 2\noutput a\noutput b = x * 2\noutput x\noutput c = a",
    "s37_outputs_of_different_shape": "output y = x + 1\noutput z = y * w[:, None]\noutput s = sum(z, axis=0)",
    "s38_two_zero_buffers": "output a = zeros(f64, 3) + sum(x, axis=0)\noutput b = zeros(f64, 3) + sum(x * x, axis=0)",
    "s39_c_and_cuda_names": "let int = double * register\noutput auto = int + threadIdx\noutput blockIdx = auto - signed",
    "s40_unicode_names": "let μ = σ * ρ_W\noutput y = μ + été",
    "s41_deep_chain": "scan k in 0..3000 carry (h = x) { next h = h * 0.999 + 0.002 }\noutput h",
    "s42_six_hundred_inputs": "output y = x0 * 1.0" + "".join(f" + x{k} * {k + 1}.0" for k in range(1, 600)),
    "s43_tanh_large": "output y = tanh(x)",
    "s44_round_half_even": "output y = round(x)",
    "s45_gelu_erf_not_tanh": "output y = 0.5 * x * (1 + erf(x / sqrt(2.0)))",
    "s47_bounds_of_slices": "output p = a[1:] - a[:-1]\noutput q = a[2:] - 2 * a[1:-1] + a[:-2]\noutput r = a[::2] * 10",
}
NOT_SAID = {"s46_index_over_2_31": "4.3 GB of memory: for machines with a GPU"}


def array(held: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The array of a JSON entry; special values are strings there."""
    flat = np.asarray(held["data"], dtype=object)
    values = [float(v) if isinstance(v, str) else v for v in flat.ravel().tolist()]
    return np.array(values, dtype=held["dtype"]).reshape(held["shape"])


def inputs_of(case: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs of a case."""
    if case.get("inputs"):
        return {k: array(v) for k, v in case["inputs"].items()}
    return {k: eval(v, {"np": np}) for k, v in (case.get("inputs_expr") or {}).items()}


def declarations(arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Inputs with literal extents, so that nothing has to be solved."""
    names = {"float": "f", "int": "i", "uint": "u"}
    lines = []
    for name, value in arrays.items():
        kind = str(value.dtype).rstrip("0123456789")
        dtype = "bool" if kind == "bool" else f"{names[kind]}{value.dtype.itemsize * 8}"
        extents = ", ".join(map(str, value.shape))
        lines.append(f"input {name}: {dtype}{f'[{extents}]' if value.shape else ''}\n")
    return "".join(lines)


def test_every_report_is_written_or_explained() -> None:
    assert CASES.keys() == SCRIPTS.keys() | NOT_SAID.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_report(name: str) -> None:
    case = CASES[name]
    arrays = inputs_of(case)
    result = lf.run(f"numerics strict\n{declarations(arrays)}{SCRIPTS[name]}\n", **arrays)
    want = [array(e) for e in case["expected"]]
    got = [result] if len(want) == 1 else [result[k] for k in range(len(want))]
    tolerance = case["tolerance"]
    for a, b in zip(map(np.asarray, got), want, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance["rtol"], atol=tolerance["atol"], equal_nan=True)
        else:
            np.testing.assert_array_equal(a, b)
        if tolerance.get("signed_zero"):
            np.testing.assert_array_equal(np.signbit(a[b == 0]), np.signbit(b[b == 0]))


# A long recurrence takes 7 s, and nothing of it depends on the numerics: it runs under one.
UNDER = [
    (name, how) for name in SCRIPTS for how in ("strict", "default") if (name, how) != ("s41_deep_chain", "strict")
]


@pytest.mark.parametrize(("name", "numerics"), UNDER)
def test_report_keeps_its_results_after_every_pass(name: str, numerics: str) -> None:
    """The same bits where a pass does not round, else within the bound that is derived from the lowered program."""
    arrays = inputs_of(CASES[name])
    checked = driver.compile_source(Source(name, f"numerics {numerics}\n{declarations(arrays)}{SCRIPTS[name]}\n"))
    bound = driver.bind_program(checked.typed, Given(arrays))
    for row in every_pass(driver.lower_program(checked.typed), bound):
        assert row.agrees, f"{row.name}: {row.verdict.problem}"
