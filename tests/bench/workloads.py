"""The workloads that are timed against peers: shapes, bytes and goals. Plain data, so that it is read without a GPU.

Each is a script of tests/bench/peers and the same mathematics under its name in `torch_peers` (and, where it is short, in
`jax_peers`). A share is of the time in which the least bytes (every input read once, every output written once) pass at the
bandwidth of a copy measured in the same run; where matrix units do the work, it is of what they reach in a large product of the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal

from loopfuse.frontend.typed import TypedProgram
from loopfuse.solve import Equation, solve

FOLDER = Path(__file__).resolve().parent / "peers"
WIDTH = {"i8": 1, "bf16": 2, "f16": 2, "f32": 4, "i64": 8, "f64": 8}
ARITHMETIC = 66.9e12  # f32 operations a second of an H200, and of f64 in its matrix units, by its data sheet
Unit = Literal["", "bf16", "tf32", "f32", "f64"]


@dataclass(frozen=True, slots=True)
class Array:
    """An input: normal numbers times `scale`; integers are labels from 0 up to, not including, `below`, and bytes from
    -`below` on."""

    dtype: str
    shape: tuple[int, ...]
    scale: float = 1.0
    below: int = 0

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return prod(self.shape) * WIDTH[self.dtype]


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the table.

    `inputs` and `outputs` are in the script's order. `peer` names the function of the peers. Goals (0: none): `share` of the
    floor, `ratio` to the speed of the best peer, microseconds of the host a call, milliseconds of a first call without and
    with the program in the cache. `flops` count where arithmetic, not memory, is the floor.

    A contraction names the `unit` that its operations are held against (bf16 for f16 too) and its `extents`, for the table;
    `goals` are ratios to the speed of a peer by its name, or of the best one: "library". Its inputs named in `rows` have the
    output's rows: a few of those tell whether it is right (none: all of it). `depth` terms are added up. `through` is a path that loopfuse is told to take:
    "mma" for that of devices without wgmma.
    """

    name: str
    script: str
    peer: str
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    share: float = 0.0
    ratio: float = 0.0
    host_us: float = 0.0
    cold_ms: float = 0.0
    cached_ms: float = 0.0
    jax: bool = True
    flops: float = 0.0
    unit: Unit = ""
    extents: str = ""
    goals: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    depth: int = 0
    through: str = ""

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / f"{self.script}.lf"

    @property
    def bytes(self) -> int:
        """The least bytes that can be moved."""
        return sum(a.bytes for a in (*self.inputs.values(), *self.outputs.values()))

    def peak(self, matrix: float) -> float:
        """The operations a second that it is held against, where matrix units reach `matrix` in bf16."""
        return {"bf16": matrix, "tf32": matrix / 2}.get(self.unit, ARITHMETIC)

    def floor(self, bandwidth: float, matrix: float) -> float:
        """The least seconds, at bytes and operations a second."""
        return max(self.bytes / bandwidth, self.flops / self.peak(matrix))

    def sizes(self, typed: TypedProgram) -> dict[str, int]:
        """The sizes of the script, by the extents of the inputs."""
        buffers = {b.id: b for b in typed.buffers}
        return solve((Equation(poly, extent, entry.name) for entry in typed.inputs for poly, extent in zip(
            buffers[entry.buffer].shape, self.inputs[entry.name].shape, strict=True)), {}).sizes  # fmt: skip


def _layernorm(rows: int, columns: int, share: float) -> Workload:
    wide, row = Array("bf16", (rows, columns)), Array("bf16", (columns,))
    return Workload(f"layernorm_residual_bf16_{columns}", "layernorm_residual", "layernorm_residual",
                    {"x": wide, "res": wide, "w": row, "b": row}, {"o": wide}, share)  # fmt: skip


def _softmax(dtype: str, rows: int, columns: int, share: float) -> Workload:
    wide = Array(dtype, (rows, columns))
    return Workload(f"softmax_{dtype}_{columns}", f"softmax_{dtype}", "softmax", {"x": wide}, {"o": wide}, share)


def _table() -> list[Workload]:
    vector, half, square = Array("f32", (1 << 26,)), Array("bf16", (16384, 8192)), Array("f32", (16384, 16384))
    small, gate = Array("f32", (64, 256)), Array("f32", (8192, 2048))
    points, rows, columns = Array("f32", (32768, 3)), Array("f32", (16384, 8192)), Array("f32", (131072, 1024))
    means, moments = Array("f32", (16384,)), Array("f32", (1024,))
    return [
        Workload("small_chain_f32", "small_chain", "small_chain", {"x": small, "y": small}, {"o": small}, host_us=10.0,
                 cold_ms=250.0, cached_ms=15.0),
        Workload("ew_chain_f32", "ew_chain", "ew_chain", dict.fromkeys("xyz", vector), {"o": vector}, 0.97, 0.98),
        Workload("sigmoid_mul_bf16", "sigmoid_mul", "sigmoid_mul", {"x": half, "y": half}, {"o": half}, 0.97, 0.98),
        Workload("bias_gelu_bf16", "bias_gelu", "bias_gelu", {"x": half, "b": Array("bf16", (8192,))}, {"o": half}, 0.90),
        Workload("lstm_gate_f32", "lstm_gate", "lstm_gate", {"g": Array("f32", (8192, 8192)), "c": gate},
                 {"h": gate, "c2": gate}, 0.97, 0.98, jax=False),
        Workload("transpose_add_f32", "transpose_add", "transpose_add", {"x": square, "y": square}, {"o": square}, 0.97,
                 0.98),
        Workload("sumsq_f32", "sumsq", "sumsq", {"x": Array("f32", (1 << 28,))}, {"s": Array("f32", ())}, 0.97, 0.98),
        _softmax("bf16", 65536, 1024, 0.93), _softmax("bf16", 16384, 4096, 0.92), _softmax("bf16", 1024, 131072, 0.85),
        _softmax("f32", 16384, 4096, 0.93),
        _layernorm(65536, 1024, 0.95), _layernorm(16384, 4096, 0.93), _layernorm(4096, 16384, 0.93),
        Workload("mean_var_rows_f32", "mean_var_rows", "mean_var_rows", {"x": rows}, {"v": means, "mu": means}, 0.95),
        Workload("mean_var_cols_f32", "mean_var_cols", "mean_var_cols", {"x": columns}, {"v": moments, "mu": moments},
                 0.93),
        Workload("cross_entropy_bf16", "cross_entropy", "cross_entropy",
                 {"x": Array("bf16", (8192, 128256)), "t": Array("i64", (8192,), below=128256)},
                 {"loss": Array("f32", (8192,))}, 0.85, jax=False),
        Workload("gemv_f16_b1", "gemv", "gemv",
                 {"a": Array("f16", (1, 16384)), "b": Array("f16", (16384, 16384), 1 / 128), "c": Array("f16", (16384,))},
                 {"o": Array("f16", (1, 16384))}, 0.93, jax=False),
        Workload("blur_f32", "blur", "blur", {"x": square}, {"o": Array("f32", (16382, 16382))}),
        # XLA takes minutes to compile this one.
        Workload("nearest_f32", "nearest", "nearest", {"x": points, "y": points}, {"d": Array("f32", (32768,))},
                 jax=False, flops=9.0 * 32768 * 32768),
    ]  # fmt: skip


# -- contractions -----------------------------------------------------------------------------------------------------


def _product(name: str, peer: str, shape: tuple[int, int, int], goals: float | Mapping[str, float], dtype: str = "bf16",
             unit: Unit = "bf16", script: str = "", jax: bool = False, through: str = "") -> Workload:  # fmt: skip
    """A product [M, K] x [K, N] and what the peer does with it. Weights are scaled so that results are normal numbers."""
    m, n, k = shape
    wide, row = Array(dtype, (m, n)), Array(dtype, (n,))
    weight = (n, k) if peer == "linear_gelu_kmajor" else (k, n)
    inputs, outputs = {"a": Array(dtype, (m, k)), "b": Array(dtype, weight, k**-0.5)}, {"o": wide}
    if peer not in ("matmul", "matmul_colsum", "swiglu"):
        inputs["c"] = row
    if peer in ("linear_residual", "matmul_residual_ln"):
        inputs["r"] = wide
    if peer == "matmul_residual_ln":
        inputs |= {"w": row, "bb": row}
    if peer == "swiglu":
        outputs["o"] = Array(dtype, (m, n // 2))
    if peer == "matmul_colsum":
        outputs["o"] = Array("f32", (n,))
    rows = tuple(name for name in ("a", "r") if name in inputs and peer != "matmul_colsum")
    return Workload(name, script or peer, peer, inputs, outputs, jax=jax, flops=2.0 * m * n * k, unit=unit,
                    extents=f"{m} x {n} x {k}", goals=goals if isinstance(goals, Mapping) else {"library": goals}, rows=rows,
                    depth=k + m * (peer == "matmul_colsum"), through=through)  # fmt: skip


def _quantised(m: int, n: int, k: int) -> Workload:
    """Weights of bytes, with a scale for each column."""
    inputs = {"a": Array("bf16", (m, k)), "b": Array("i8", (k, n), below=128), "c": Array("bf16", (n,), k**-0.5 / 64)}
    return Workload("linear_i8_bf16_4096", "linear_i8", "linear_i8", inputs, {"o": Array("bf16", (m, n))}, jax=False,
                    flops=2.0 * m * n * k, unit="bf16", extents=f"{m} x {n} x {k}", rows=("a",), depth=k)  # fmt: skip


def _feed_forward(m: int, d: int, f: int, goal: float) -> Workload:
    x, row = Array("bf16", (m, d)), Array("bf16", (d,))
    inputs = {"x": x, "g": row, "b": row, "w1": Array("bf16", (d, f), d**-0.5), "b1": Array("bf16", (f,)),
              "w2": Array("bf16", (f, d), f**-0.5), "b2": row}  # fmt: skip
    return Workload("ffn_block_bf16", "ffn_block", "ffn_block", inputs, {"o": x}, jax=False, flops=4.0 * m * d * f, unit="bf16",
                    extents=f"{m} x {d} x {f}", goals={"library": goal}, rows=("x",), depth=d + f)  # fmt: skip


def _projections(m: int, k: int, n: int, g: int, goal: float) -> Workload:
    """Queries of `n` columns, keys and values of `g`, of one [M, K]."""
    widths = {"q": n, "k": g, "v": g}
    inputs = {"x": Array("bf16", (m, k))}
    inputs |= {f"w{name}": Array("bf16", (k, width), k**-0.5) for name, width in widths.items()}
    inputs |= {f"b{name}": Array("bf16", (width,)) for name, width in widths.items()}
    outputs = {name: Array("bf16", (m, width)) for name, width in (("queries", n), ("keys", g), ("values", g))}
    return Workload("qkv_gqa_bf16", "qkv_gqa", "qkv_gqa", inputs, outputs, jax=False, flops=2.0 * m * k * (n + 2 * g), unit="bf16",
                    extents=f"{m} x ({n} + 2 x {g}) x {k}", goals={"library": goal}, rows=("x",), depth=k)  # fmt: skip


def _contractions() -> list[Workload]:
    large, middle, shallow = (8192, 8192, 8192), (4096, 4096, 4096), (32768, 3072, 768)
    return [
        _product("matmul_bf16_8192", "matmul", large, 1.03, jax=True),
        _product("matmul_bf16_4096", "matmul", middle, 1.0, jax=True),
        _product("matmul_bf16_1024", "matmul", (1024, 1024, 1024), 1.0, jax=True),
        _product("matmul_bf16_256x8192x8192", "matmul", (256, 8192, 8192), 1.0, jax=True),
        _product("linear_gelu_bf16_4096", "linear_gelu", middle, 1.0, jax=True),
        _product("linear_gelu_bf16_8192", "linear_gelu", large, 1.02, jax=True),
        _product("linear_gelu_bf16_4096x16384x4096", "linear_gelu", (4096, 16384, 4096), 1.02, jax=True),
        _product("linear_gelu_bf16_k768", "linear_gelu", shallow, 1.10, jax=True),
        _product("linear_residual_bf16_k768", "linear_residual", shallow, {"addmm+add": 1.45, "eager": 2.5}),
        _product("linear_gelu_f16_8192", "linear_gelu", large, 1.0, "f16", script="linear_gelu_f16", jax=True),
        _product("linear_gelu_tf32_4096_kmajor", "linear_gelu_kmajor", middle, 0.95, "f32", "tf32", "linear_gelu_tf32_kmajor"),
        _product("linear_gelu_tf32_4096", "linear_gelu", middle, 0.85, "f32", "tf32", "linear_gelu_tf32"),
        _product("linear_gelu_f32_4096", "linear_gelu", middle, {}, "f32", "f32", "linear_gelu_f32"),
        _quantised(4096, 4096, 4096),
        _product("matmul_f64_4096", "matmul", middle, 0.9, "f64", "f64", "matmul_f64"),
        _product("swiglu_bf16", "swiglu", (8192, 2 * 11008, 4096), 1.1),
        _product("matmul_colsum_bf16_8192", "matmul_colsum", large, 1.0, jax=True),
        _product("matmul_residual_ln_bf16", "matmul_residual_ln", (16384, 1024, 1024), 1.1),
        _feed_forward(8192, 1024, 4096, 1.0),
        _projections(8192, 4096, 4096, 1024, 1.0),
        # The instructions of devices from sm_80 on, on one that has better.
        _product("linear_gelu_bf16_8192_sm80", "linear_gelu", large, 0.60, through="mma"),
    ]  # fmt: skip


WORKLOADS: dict[str, Workload] = {w.name: w for w in (*_table(), *_contractions())}
