"""The workloads that are timed against peers: shapes, bytes and goals. Plain data, so that it is read without a GPU.

Each is a script of tests/bench/peers and the same mathematics under its name in `torch_peers` (and, where it is short, in
`jax_peers`). A share is of the time in which the least bytes (every input read once, every output written once) pass at the
bandwidth of a copy measured in the same run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "peers"
WIDTH = {"bf16": 2, "f16": 2, "f32": 4, "i64": 8}


@dataclass(frozen=True, slots=True)
class Array:
    """An input: normal numbers times `scale`; integers are labels from 0 up to, not including, `below`."""

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

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / f"{self.script}.lf"

    @property
    def bytes(self) -> int:
        """The least bytes that can be moved."""
        return sum(a.bytes for a in (*self.inputs.values(), *self.outputs.values()))


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


WORKLOADS: dict[str, Workload] = {w.name: w for w in _table()}
