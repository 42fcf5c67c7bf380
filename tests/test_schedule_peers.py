"""The cost model against what fused peers were measured to take on an H200, and how it moves."""

from __future__ import annotations

import itertools

import pytest
from schedule_peers import PEERS
from schedule_programs import TEXTS
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from loopfuse.analysis.env import environment
from loopfuse.reader import parse_program
from loopfuse.schedule import accepts
from loopfuse.schedule.plan import Plan


def seconds(text: str, sizes: dict[str, int]) -> float:
    """The estimate of a kernel."""
    made = parse_program(text.lstrip("\n"))
    env = environment(made, sizes=sizes)
    live = frozenset(b.id for b in made.buffers if b.role != "temp")
    found = accepts(made.kernels[0], env.buffers, env, live)
    assert isinstance(found, Plan), found
    return found.cost.seconds


def test_estimates_rank_as_measured_times() -> None:
    measured = [ms for ms, _ in PEERS.values()]
    estimated = [sum(seconds(text, sizes) for text, sizes in kernels) for _, kernels in PEERS.values()]
    assert spearmanr(measured, estimated).statistic >= 0.95


@pytest.mark.parametrize("name", PEERS)
def test_no_estimate_is_far_from_the_measured_time(name: str) -> None:
    """A peer may be slower than it could be (softmax over long rows, convolutions), hardly faster than the model."""
    measured, kernels = PEERS[name]
    ratio = sum(seconds(text, sizes) for text, sizes in kernels) * 1e3 / measured
    assert 0.4 <= ratio <= 1.35


@pytest.mark.parametrize(
    ("name", "size", "values"),
    [("chain", "N", [1 << k for k in range(8, 28)]), ("softmax", "M", [1 << k for k in range(4, 18)]),
     ("linear gelu", "M", [128 * k for k in range(1, 80, 7)]), ("sumsq", "N", [1 << k for k in range(10, 29)]),
     ("attention", "B", [1, 2, 3, 8, 33, 64, 200]), ("blur", "H", [1 << k for k in range(6, 15)]),
     ("moments", "N", [1 << k for k in range(8, 20)])],
)  # fmt: skip
def test_more_is_never_faster(name: str, size: str, values: list[int]) -> None:
    other = {s.id: 1024 for s in parse_program(TEXTS[name].lstrip("\n")).sizes if s.id != "D" and s.origin != "plan"}
    times = [seconds(TEXTS[name], {**other, "D": 64, size: value}) for value in values]
    for before, after in itertools.pairwise(times):
        assert after >= before * 0.999


CONSUMER = """
program after(M, N)
buf t: {dtype}[M, N] in
buf y: {dtype}[M, N] out
kernel k1
  par i < M, j < N
    y[i, j] = maximum(t[i, j], {zero})
"""


@pytest.mark.parametrize(
    ("name", "dtype", "old", "new"),
    [("softmax", "f32", "e[i, j] / l", "maximum(e[i, j] / l, 0.0f32)"),
     ("linear gelu", "f16", "f16(0.5f32 * z", "f16(maximum(0.5f32, 0.0f32) * z"),
     ("blur", "f32", "/ 3.0f32\n    par", "/ 3.0f32\n    par")],
)  # fmt: skip
def test_fusing_an_elementwise_consumer_is_never_slower(name: str, dtype: str, old: str, new: str) -> None:
    sizes = {"M": 4096, "N": 4096, "K": 4096, "H": 4096, "W": 4096}
    zero = f"0.0{dtype}"
    fused = seconds(TEXTS[name].replace(old, new), sizes)
    apart = seconds(TEXTS[name], sizes) + seconds(CONSUMER.format(dtype=dtype, zero=zero), sizes)
    assert fused <= apart
