"""How contractions are compared: whether loopfuse is right, and all ways in turns.

What a matrix product takes depends on the power and the heat of the device, which what ran before has left: times of
different minutes say nothing. So all ways are made ready first, and then each is called once a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch_peers
from rows import Row, tell
from timing import Call, Clock, Timing, wall_ms
from workloads import Workload

try:
    import jax_peers
except ImportError:
    jax_peers = None  # type: ignore[assignment]

ROWS = 256  # of the output, that are compared
# What rounding once is off by at most, of a number.
ROUNDED = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}
ROUNDINGS = 4  # of the output and of what is stored on the way, as in eager PyTorch
ADDED = 2.0**-23  # what an addition is off by, of the sum: the accumulators of matrix units cut, they do not round
TF32 = 8 * 2.0**-10  # operands are cut to 11 bits; the errors of a sum's terms are independent: eight deviations
AUTOTUNE = "max-autotune-no-cudagraphs"  # with graphs PyTorch copies the inputs of each call, which is no kernel's time
Tensors = dict[str, torch.Tensor]


def allowed(workload: Workload) -> float:
    """What a result may be off by, of itself and of a typical one together."""
    operand = next(iter(workload.inputs.values())).dtype
    step = 2 * ROUNDED["f64"] if operand == "f64" else ADDED  # of f64, what it is held against is off as well
    added = workload.depth * step
    return ROUNDINGS * ROUNDED[operand] + added + (TF32 if workload.unit == "tf32" else 0.0)


def judge(workload: Workload, inputs: Tensors, outputs: list[torch.Tensor]) -> tuple[float, str]:
    """The greatest error, in units of what is allowed, and what is wrong ("" where nothing is).

    Random rows of the output, with the first and the last, are compared with the same in f64.
    """
    count = outputs[0].shape[0]
    picked = torch.randperm(count, device="cuda", generator=torch.Generator("cuda").manual_seed(2))[:ROWS]
    picked[0], picked[-1] = 0, count - 1
    some = {name: t[picked] if name in workload.rows else t for name, t in inputs.items()}
    right = torch_peers.exact(workload.peer, some)
    worst = 0.0
    for name, want, whole in zip(workload.outputs, right, outputs, strict=True):
        if not torch.isfinite(whole).all():
            return float("inf"), f"`{name}` is not finite everywhere"
        got = whole[picked] if workload.rows else whole
        off = ((got.double() - want).abs() / (want.abs() + want.square().mean().sqrt())).max().item()
        worst = max(worst, off / allowed(workload))
        if off > allowed(workload):
            return worst, f"`{name}` is off by {off:.2g} of its size, allowed are {allowed(workload):.2g}"
    return worst, ""


@contextmanager
def precision(workload: Workload) -> Iterator[None]:
    """PyTorch may round f32 operands to tf32 where the workload says so, and nowhere else."""
    was = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = workload.unit == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was


def ways(workload: Workload, inputs: Tensors, peers: list[str]) -> Iterator[tuple[str, Callable[[], Call]]]:
    """The peers by name, and what makes each ready: all of a library's calls are peers of their own."""
    function, tensors = torch_peers.PEERS[workload.peer], tuple(inputs.values())

    def compiled(**how: Any) -> Call:
        made = torch.compile(function, **how)
        return lambda: made(*tensors)

    known: dict[str, Callable[[], Call]] = {
        "eager": lambda: lambda: function(*tensors),
        "compile": compiled,
        "max": lambda: compiled(mode=AUTOTUNE),
        "jax": lambda: jax_peers.prepare(workload.peer, inputs),
    }
    for who in peers:
        if who == "best":
            for name, call in torch_peers.library(workload.peer, inputs).items():
                yield name, lambda call=call: call  # type: ignore[misc]
        elif who in known:
            yield who, known[who]


def measure(row: Row, inputs: Tensors, peers: list[str], ours: Call | None, clock: Clock) -> None:
    """Add the times of the peers, and of loopfuse's call beside them."""
    calls: dict[str, Call] = {"loopfuse": ours} if ours else {}
    with precision(row.workload):
        if "compile" in peers or "max" in peers:
            with suppress(Exception):  # the peers will say so
                torch._dynamo.reset()  # once: it forgets what was compiled
        for who, ready in ways(row.workload, inputs, peers):
            timing = row.times[who] = Timing()
            try:
                call = ready()
                timing.first_ms = wall_ms(partial(_waited, who, call))
                calls[who] = call
            except Exception as why:  # the others may do
                timing.problem = f"{type(why).__name__}: {str(why).strip()[:400]}"
        for who, samples in clock.rounds({w: c for w, c in calls.items() if w != "jax"}).items():
            row.times[who].samples = samples
            row.times[who].host_us = clock.host_us(calls[who])
        if "jax" in calls:  # it has streams of its own: the wall clock
            waits = {w: _wait(w) for w in ("loopfuse", "jax") if w in calls}
            for who, ms in clock.loops({w: (calls[w], wait) for w, wait in waits.items()}).items():
                row.times[who].loop_ms = ms
    for who in row.times:
        tell(row, who)


def _wait(who: str) -> Callable[[object], object]:
    return jax_peers.wait if who == "jax" else lambda _: torch.cuda.synchronize()


def _waited(who: str, call: Call) -> None:
    _wait(who)(call())
