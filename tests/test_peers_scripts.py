"""The scripts that are timed against peers: each is one kernel, or few, and means what its peer computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from loopfuse import driver
from loopfuse.backends.reference import agrees, run_bounded
from loopfuse.bind import Given
from loopfuse.passes import Options
from tests.bench.workloads import FOLDER, WORKLOADS, Workload
from tests.oracles.core import DTYPES, Array, Tol, sigmoid, softmax, widen
from tests.oracles.core import agrees as near

FEW = {1: 1, 16384: 37, 8192: 23, 4096: 13, 1024: 19, 65536: 5, 2048: 11, 64: 6, 256: 9, 131072: 41, 128256: 29,
       32768: 17, 3: 3, 1 << 26: 101, 1 << 28: 103, 3072: 15, 768: 25, 2 * 11008: 14}  # fmt: skip
KERNELS = {"ffn_block": 3}  # at full size, where computing again costs more than memory; the others are one
NEAR = {"f32": Tol(1e-5, 1e-5), "bf16": Tol(1.6e-2, 4e-3), "f16": Tol(2e-3, 2e-3), "f64": Tol(1e-13, 1e-13)}
STORED = {"ffn_block": Tol(1.6e-2, 1.6e-2)}  # two arrays on the way are rounded, and added up


def chain(x: Array, y: Array) -> Array:
    for _ in range(10):
        x = np.tanh(x * 0.5 + y)
        y = y - x * 0.1
    return np.asarray(x * y)


def gelu(x: Array, b: Array) -> Array:
    return activated(x + b)


def lstm(g: Array, c: Array) -> tuple[Array, Array]:
    i, f, z, o = np.split(g, 4, axis=1)
    new = sigmoid(f) * c + sigmoid(i) * np.tanh(z)
    return sigmoid(o) * np.tanh(new), new


def layernorm(x: Array, res: Array, w: Array, b: Array) -> Array:
    deviation = x - x.mean(1, keepdims=True)
    return np.asarray(res + deviation / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b)


def activated(z: Array) -> Array:
    return np.asarray(0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))))


def norm(x: Array, w: Array, b: Array) -> Array:
    return layernorm(x, np.zeros_like(x), w, b)


def gated(a: Array, b: Array) -> Array:
    gate, up = np.split(a @ b, 2, axis=1)
    return np.asarray(gate * sigmoid(gate) * up)


def box(x: Array) -> Array:
    h = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) / 3
    return np.asarray((h[:-2] + h[1:-1] + h[2:]) / 3)


ORACLES: dict[str, Callable[..., Any]] = {
    "small_chain": chain,
    "ew_chain": lambda x, y, z: np.tanh(x * 1.5 + y) * sigmoid(z) + np.exp(-x * x) * y,
    "sigmoid_mul": lambda x, y: sigmoid(x) * y,
    "bias_gelu": gelu,
    "lstm_gate": lstm,
    "transpose_add": lambda x, y: x + y.T,
    "sumsq": lambda x: (x * x).sum(),
    "softmax": softmax,
    "layernorm_residual": layernorm,
    "mean_var_rows": lambda x: (x.var(1, ddof=1), x.mean(1)),
    "mean_var_cols": lambda x: (x.var(0, ddof=1), x.mean(0)),
    "cross_entropy": lambda x, t: special.logsumexp(x, axis=1) - np.take_along_axis(x, t[:, None], 1)[:, 0],
    "gemv": lambda a, b, c: np.maximum(a @ b + c, 0),
    "blur": box,
    "nearest": lambda x, y: ((x[:, None] - y[None]) ** 2).sum(2).min(1),
    "matmul": lambda a, b: a @ b,
    "linear_gelu": lambda a, b, c: activated(a @ b + c),
    "linear_gelu_kmajor": lambda a, b, c: activated(a @ b.T + c),
    "linear_residual": lambda a, b, c, r: a @ b + c + r,
    "linear_i8": lambda a, b, c: (a @ b) * c,
    "swiglu": gated,
    "matmul_colsum": lambda a, b: (a @ b).sum(0),
    "matmul_residual_ln": lambda a, b, c, r, w, bb: norm(a @ b + c + r, w, bb),
    "ffn_block": lambda x, g, b, w1, b1, w2, b2: x + activated(norm(x, g, b) @ w1 + b1) @ w2 + b2,
    "qkv_gqa": lambda x, wq, wk, wv, bq, bk, bv: (x @ wq + bq, x @ wk + bk, x @ wv + bv),
}


def few(workload: Workload) -> dict[str, Array]:
    """Inputs of the workload with extents that divide nothing; equal extents stay equal, and so do multiples."""
    rng, made = np.random.default_rng(5), {}
    for name, array in workload.inputs.items():
        shape = tuple(4 * FEW[2048] if workload.peer == "lstm_gate" and name == "g" and k else FEW[n]
                      for k, n in enumerate(array.shape))  # fmt: skip
        if workload.peer == "lstm_gate":
            shape = (FEW[8192], shape[1])
        if array.dtype == "i8":
            numbers = rng.integers(-array.below, array.below, shape)
        else:
            numbers = rng.integers(0, FEW[array.below], shape) if array.below else rng.standard_normal(shape)
        # Weights are scaled in the table by the extent of the sum there.
        scaled = np.asarray(numbers) * (shape[0] ** -0.5 if array.scale != 1 else 1)
        made[name] = scaled.astype(DTYPES[array.dtype])
    return made


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_is_one_kernel_and_means_the_same(workload: Workload) -> None:
    checked = driver.compile_source(driver.read_source(workload.path))
    lowered = driver.lower_program(checked.typed)
    inputs = few(workload)
    bound = driver.bind_program(checked.typed, Given(inputs))
    optimised = driver.optimise(lowered, Options(sizes=bound.sizes))
    assert len(optimised.program.kernels) == 1
    got = driver.execute(optimised, bound, backend="reference").outputs
    with np.errstate(all="ignore"):
        answer = ORACLES[workload.peer](**{name: widen(a) for name, a in inputs.items()})
    want = dict(zip(got, answer if isinstance(answer, tuple) else (answer,), strict=True))
    bounds = run_bounded(lowered.program, bound.inputs, bound.sizes)
    assert list(got) == list(workload.outputs)
    for (name, array), bounded in zip(got.items(), bounds.values(), strict=True):
        declared = workload.outputs[name].dtype
        assert array.dtype == DTYPES[declared]
        assert near(array, np.asarray(want[name]), STORED.get(workload.peer, NEAR[declared])) is None
        assert agrees(bounded, array) is None


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_at_full_size_it_is_as_many_kernels(workload: Workload) -> None:
    """The cost model decides by the sizes, which are those of the table here."""
    checked = driver.compile_source(driver.read_source(workload.path))
    sizes = workload.sizes(checked.typed)
    assert sizes.keys() == {s.id for s in checked.typed.sizes}
    program = driver.optimise(driver.lower_program(checked.typed), Options(sizes=sizes)).program
    kernels = KERNELS.get(workload.peer, 1)
    assert len(program.kernels) == kernels
    assert len([b.id for b in program.buffers if b.role == "temp" and b.scope == "device"]) == kernels - 1
    outputs = {b.id: tuple(e.value(sizes) for e in b.shape) for b in program.buffers if b.role == "out"}
    assert outputs == {name: array.shape for name, array in workload.outputs.items()}


def test_every_script_is_timed() -> None:
    assert {p.stem for p in FOLDER.glob("*.lf")} == {w.script for w in WORKLOADS.values()}
    assert {w.peer for w in WORKLOADS.values()} == ORACLES.keys()
