"""loopfuse beside PyTorch, torch.compile and JAX: the same mathematics on the same arrays, timed in one run on one GPU.

    python tests/bench/peers.py                               all workloads, all peers that are installed
    python tests/bench/peers.py --only softmax,layernorm --peers compile,jax --json rows.json
    python tests/bench/peers.py --only matmul,linear --peers eager,compile,max,best,jax

Results are compared with f64 before anything is timed. A share is that of the floor: the least bytes, at the bandwidth of a
copy measured in the same run. A ratio is a peer's time over loopfuse's, both taken in the peer's way: events around single
calls with the L2 flushed, or for JAX the wall time of calls back to back.

Contractions are held against a product of large bf16 matrices of the same run (tf32: half of it; f32 and f64: the data sheet), and
are timed with their peers in turns. Peers `best` are the calls of the vendor's library that compute the same, and `max` is
torch.compile with max-autotune, which takes up to a minute a workload.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import contractions
import loopfuse_adapter
import torch
import torch_peers
from rows import Row, saved, tables, tell
from timing import Call, Clock, Timing, wall_ms
from workloads import WORKLOADS, Array, Workload

try:
    import jax_peers
except ImportError:
    jax_peers = None  # type: ignore[assignment]

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "i8": torch.int8,
}
CLOSE = {"bf16": 2.0**-6, "f16": 2.0**-8, "f32": 2.0**-15}
SLOW = {"compile": 4.0, "max": 60.0, "jax": 2.0}  # seconds that a workload may take there
PEERS = ("eager", "compile", "max", "best", "jax")
Tensors = dict[str, torch.Tensor]


# -- data -------------------------------------------------------------------------------------------------------------


def tensor(array: Array, generator: torch.Generator) -> torch.Tensor:
    """An input on the GPU."""
    if array.dtype == "i8":
        codes = torch.randint(-array.below, array.below, array.shape, device="cuda", generator=generator)
        return codes.to(torch.int8)
    if array.below:
        return torch.randint(0, array.below, array.shape, device="cuda", generator=generator)
    return (torch.randn(array.shape, device="cuda", generator=generator) * array.scale).to(DTYPES[array.dtype])


def make(workload: Workload) -> tuple[Tensors, Tensors]:
    """Inputs, and the arrays that the outputs go to."""
    generator = torch.Generator("cuda").manual_seed(1)
    outputs = {n: torch.empty(a.shape, dtype=DTYPES[a.dtype], device="cuda") for n, a in workload.outputs.items()}
    return {n: tensor(a, generator) for n, a in workload.inputs.items()}, outputs


def listed(result: Any) -> list[torch.Tensor]:
    """The results of a call of PyTorch."""
    return list(result) if isinstance(result, tuple) else [result]


def judge(workload: Workload, inputs: Tensors, outputs: list[torch.Tensor]) -> tuple[float, str]:
    """The greatest error, in units of what is allowed, and what is wrong ("" where nothing is).

    Allowed is a few units in the last place of the element type, of the element or of a typical one; or four times what
    eager PyTorch is off by, where that is more.
    """
    right = torch_peers.exact(workload.peer, inputs)
    eager = listed(torch_peers.PEERS[workload.peer](**inputs))
    worst = 0.0
    for (name, array), want, got, theirs in zip(workload.outputs.items(), right, outputs, eager, strict=True):
        if not torch.isfinite(got).all():
            return float("inf"), f"`{name}` is not finite everywhere"
        scale = want.abs() + want.square().mean().sqrt()
        off = ((got.double() - want).abs() / scale).max().item()
        allowed = max(CLOSE[array.dtype], 4 * ((theirs.double() - want).abs() / scale).max().item())
        worst = max(worst, off / allowed)
        if off > allowed:
            return worst, f"`{name}` is off by {off:.2g} of its size, allowed are {allowed:.2g}"
    return worst, ""


# -- one workload -----------------------------------------------------------------------------------------------------


def started(workload: Workload, inputs: Tensors, outputs: Tensors) -> tuple[Timing, Call]:
    """loopfuse's first calls, and a call to be timed whose results were compared."""
    timing = Timing()
    calls: list[Call] = []

    def first() -> None:
        calls.append(loopfuse_adapter.prepare(workload.path, inputs, outputs, workload.through))
        calls[-1]()

    with loopfuse_adapter.empty_cache():
        loopfuse_adapter.forget()
        timing.first_ms = wall_ms(first)
        loopfuse_adapter.forget()
        timing.cached_ms = wall_ms(first)
    call = calls[-1]
    for output in outputs.values():
        output.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    right = contractions.judge if workload.unit else judge
    timing.error, timing.problem = right(workload, inputs, list(outputs.values()))
    return timing, call


def loopfuse(workload: Workload, inputs: Tensors, outputs: Tensors, clock: Clock) -> tuple[Timing, Call]:
    """loopfuse's times, and its call to be timed again later."""
    timing, call = started(workload, inputs, outputs)
    timing.samples = clock.samples(call)
    timing.host_us = clock.host_us(call)
    timing.loop_ms = clock.loop_ms(call, lambda _: torch.cuda.synchronize())
    return timing, call


def peer(who: str, workload: Workload, inputs: Tensors, clock: Clock) -> Timing:
    """A peer's times."""
    timing = Timing()
    if who == "jax":
        call = jax_peers.prepare(workload.peer, inputs)
        timing.first_ms = wall_ms(lambda: jax_peers.wait(call()))
        timing.loop_ms = clock.loop_ms(call, jax_peers.wait)
        timing.host_us = timing.loop_ms * 1e3
        return timing
    function, tensors = torch_peers.PEERS[workload.peer], tuple(inputs.values())
    if who == "compile":
        torch._dynamo.reset()
        function = torch.compile(function)
    timing.first_ms = wall_ms(lambda: function(*tensors))
    timing.samples = clock.samples(lambda: function(*tensors))
    timing.host_us = clock.host_us(lambda: function(*tensors))
    return timing


def attempt(timed: Callable[[], Timing]) -> Timing:
    """The times, or why there are none: one failure does not end a run."""
    try:
        return timed()
    except Exception as why:
        return Timing(problem=f"{type(why).__name__}: {str(why).strip()[:400]}")


def affordable(workload: Workload, peers: list[str], end: float, left: int) -> list[str]:
    """The peers, without the slow ones where `left` more workloads need what is left until `end`."""
    spare = end - time.monotonic() - 3.0 * left
    found = []
    for who in (p for p in peers if p != "loopfuse"):
        if (who == "jax" and not workload.jax) or (who in ("max", "best") and not workload.unit):
            continue
        if SLOW.get(who, 0.0) <= spare:
            spare -= SLOW.get(who, 0.0)
            found.append(who)
        elif who not in SLOW:
            found.append(who)
    return found


def measure(
    workload: Workload, peers: list[str], floors: tuple[float, float], clock: Clock, end: float, left: int
) -> Row:
    """All times of a workload, on a device of so many bytes and operations a second."""
    row = Row(workload, workload.floor(*floors) * 1e3, workload.peak(floors[1]))
    inputs, outputs = make(workload)
    again: list[Call] = []

    def ours() -> Timing:
        timing, call = (
            started(workload, inputs, outputs) if workload.unit else loopfuse(workload, inputs, outputs, clock)
        )
        again.append(call)
        return timing

    if "loopfuse" in peers:
        row.times["loopfuse"] = attempt(ours)
        if not workload.unit:
            tell(row, "loopfuse")
    others = affordable(workload, peers, end, left)
    if workload.unit:

        def rounds() -> Timing:
            contractions.measure(row, inputs, others, again[0] if again else None, clock)
            return Timing()

        if problem := attempt(rounds).problem:
            print(f"{workload.name}: {problem}", flush=True)
        return row
    for who in others:
        row.times[who] = attempt(lambda who=who: peer(who, workload, inputs, clock))
        tell(row, who)
    if again and len(row.times) > 1:  # before and after the peers, so that a drift of the clock favours none
        row.times["loopfuse"].samples += clock.samples(again[0])
    return row


# -- the command ------------------------------------------------------------------------------------------------------


def chosen(only: str, skip: str) -> list[Workload]:
    """The workloads whose names begin with a word of `only` (all, where it is empty) and with none of `skip`."""
    words, without = ([w for w in text.split(",") if w] for text in (only, skip))
    return [w for n, w in WORKLOADS.items() if (not words or n.startswith(tuple(words)))
            and not (without and n.startswith(tuple(without)))]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="workloads whose names begin so, with commas")
    parser.add_argument("--skip", default="", help="workloads to leave out")
    parser.add_argument(
        "--peers", default="eager,compile,best,jax", help="eager, compile, max, best, jax; `none` for loopfuse alone"
    )
    parser.add_argument("--without-loopfuse", action="store_true", help="peers alone")
    parser.add_argument("--json", metavar="FILE", help="write all times, after each workload")
    parser.add_argument("--table", metavar="FILE", nargs="?", const="-", help="write the table to a file too")
    parser.add_argument("--budget", type=float, default=540, help="seconds; the slow peers are left out first")
    parser.add_argument("--seconds", type=float, default=0.3, help="about what one measurement takes")
    given = parser.parse_args()
    start = time.monotonic()
    if not torch.cuda.is_available():
        print("there is no GPU", file=sys.stderr)
        return 4
    ours = [] if given.without_loopfuse else ["loopfuse"]
    peers = ours + [p for p in given.peers.split(",") if p in PEERS and (p != "jax" or jax_peers)]
    clock, todo = Clock(given.seconds), chosen(given.only, given.skip)
    gbps = clock.copy_bandwidth()
    matrix = clock.matrix_peak() if any(w.unit for w in todo) else 0.0
    torch.cuda.empty_cache()
    heading = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat(),
               "jax": jax_peers.jax.__version__ if jax_peers else None, "copy_gbps": round(gbps, 1),
               "matrix_tflops": round(matrix / 1e12, 1),
               "command": "python tests/bench/peers.py " + " ".join(sys.argv[1:])}  # fmt: skip
    print(", ".join(f"{k} {v}" for k, v in heading.items()), flush=True)
    if ours:
        problem = attempt(lambda: loopfuse_adapter.warm_up() or Timing()).problem
        print(f"loopfuse does not run: {problem}" if problem else "loopfuse is warm", flush=True)
    rows: list[Row] = []
    for k, workload in enumerate(todo):
        if time.monotonic() - start > given.budget:
            print(f"out of time before {workload.name}", flush=True)
            break
        rows.append(measure(workload, peers, (gbps * 1e9, matrix), clock, start + given.budget, len(todo) - k - 1))
        torch.cuda.empty_cache()
        if given.json:
            Path(given.json).write_text(json.dumps(saved(rows, heading), indent=1), encoding="utf-8")
    text = "\n".join(tables(rows))
    print(f"\n{text}")
    if given.table and given.table != "-":
        Path(given.table).write_text(f"{text}\n", encoding="utf-8")
    return int(any(row.missed() in (["wrong"], ["failed"]) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
