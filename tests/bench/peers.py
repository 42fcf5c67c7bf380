"""loopfuse beside PyTorch, torch.compile and JAX: the same mathematics on the same arrays, timed in one run on one GPU.

    python tests/bench/peers.py                               all workloads, all peers that are installed
    python tests/bench/peers.py --only softmax,layernorm --peers compile,jax --json rows.json

Results are compared with f64 before anything is timed. A share is that of the floor: the least bytes, at the bandwidth of a
copy measured in the same run. A ratio is a peer's time over loopfuse's, both taken in the peer's way: events around single
calls with the L2 flushed, or for JAX the wall time of calls back to back.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import loopfuse_adapter
import torch
import torch_peers
from timing import Clock, Timing, wall_ms
from workloads import WORKLOADS, Array, Workload

try:
    import jax_peers
except ImportError:
    jax_peers = None  # type: ignore[assignment]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i64": torch.int64}
CLOSE = {"bf16": 2.0**-6, "f16": 2.0**-8, "f32": 2.0**-15}
ARITHMETIC = 66.9e12  # f32 operations a second of an H200, by its data sheet
SLOW = {"compile": 4.0, "jax": 2.0}  # seconds that a workload may take there
Tensors = dict[str, torch.Tensor]


@dataclass
class Row:
    """A workload's times by who computed it."""

    workload: Workload
    floor_ms: float
    times: dict[str, Timing] = field(default_factory=dict)

    def share(self, who: str) -> float | None:
        """The share of the floor."""
        taken = self.taken(who)[1 if who == "jax" else 0]
        return self.floor_ms / taken if taken else None

    def taken(self, who: str) -> tuple[float | None, float | None]:
        """Milliseconds of single calls, and of calls back to back."""
        timing = self.times.get(who, Timing())
        return timing.ms, timing.loop_ms

    def ratios(self) -> dict[str, float]:
        """Each peer's time over loopfuse's, both taken in the peer's way."""
        found = {}
        for who in self.times.keys() - {"loopfuse"}:
            way = 1 if who == "jax" else 0
            theirs, ours = self.taken(who)[way], self.taken("loopfuse")[way]
            if theirs and ours and not self.times[who].problem:
                found[who] = theirs / ours
        return found

    def best(self) -> tuple[str, float] | None:
        """The peer that comes out best, and its ratio."""
        return min(self.ratios().items(), key=lambda item: item[1], default=None)

    def missed(self) -> list[str]:
        """The goals that were not reached, in words."""
        w, ours, best = self.workload, self.times.get("loopfuse", Timing()), self.best()
        if ours.problem:
            return ["wrong" if ours.samples else "failed"]
        goals = [("share", self.share("loopfuse"), w.share, True), ("ratio", best and best[1], w.ratio, True),
                 ("host", ours.host_us, w.host_us, False), ("cold", ours.first_ms, w.cold_ms, False),
                 ("cached", ours.cached_ms, w.cached_ms, False)]  # fmt: skip
        return [name for name, got, goal, least in goals if goal and got and (got < goal if least else got > goal)]


# -- data -------------------------------------------------------------------------------------------------------------


def tensor(array: Array, generator: torch.Generator) -> torch.Tensor:
    """An input on the GPU."""
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


def loopfuse(workload: Workload, inputs: Tensors, outputs: Tensors, clock: Clock) -> tuple[Timing, Callable[[], Any]]:
    """loopfuse's times, and its call to be timed again later."""
    timing = Timing()
    calls: list[Callable[[], Any]] = []

    def first() -> None:
        calls.append(loopfuse_adapter.prepare(workload.path, inputs, outputs))
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
    timing.error, timing.problem = judge(workload, inputs, list(outputs.values()))
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


def measure(workload: Workload, peers: list[str], gbps: float, clock: Clock, end: float, left: int) -> Row:
    """All times of a workload. Slow peers are left out where `left` more workloads need what is left until `end`."""
    row = Row(workload, max(workload.bytes / gbps / 1e6, workload.flops / ARITHMETIC * 1e3))
    inputs, outputs = make(workload)
    again: list[Callable[[], Any]] = []

    def ours() -> Timing:
        timing, call = loopfuse(workload, inputs, outputs, clock)
        again.append(call)
        return timing

    if "loopfuse" in peers:
        row.times["loopfuse"] = attempt(ours)
        tell(row, "loopfuse")
    for who in (p for p in peers if p != "loopfuse"):
        late = time.monotonic() + SLOW.get(who, 0.0) + 3.0 * left > end
        if (who == "jax" and not workload.jax) or (who in SLOW and late):
            continue
        row.times[who] = attempt(lambda who=who: peer(who, workload, inputs, clock))
        tell(row, who)
    if again and len(row.times) > 1:  # before and after the peers, so that a drift of the clock favours none
        row.times["loopfuse"].samples += clock.samples(again[0])
    return row


# -- printing ---------------------------------------------------------------------------------------------------------


def tell(row: Row, who: str) -> None:
    """One line as soon as it is known."""
    timing, share = row.times[who], row.share(who)
    taken = row.taken(who)[1 if who == "jax" else 0]
    head = f"{row.workload.name:32s} {who:9s}"
    if taken is not None:
        host = f"{timing.host_us:8.1f}" if timing.host_us is not None else " " * 8
        head += f" {taken:9.4f} ms  {share:6.3f} of floor  host {host} us  first {timing.first_ms:8.1f} ms"
        head += f"  spread {timing.spread:.1%}"
    print(f"{head}  {timing.problem}".rstrip(), flush=True)


def number(value: float | None, digits: int) -> str:
    """A number in a cell, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def table(rows: list[Row]) -> Iterator[str]:
    """The table, in Markdown."""
    yield ("| workload | goal | loopfuse ms | share | best peer | its ms | its share | ratio | host us | its host us "
           "| cold ms | cached ms | missed |")  # fmt: skip
    yield "|---|" + "---|" * 12
    for row in rows:
        ours, best = row.times.get("loopfuse", Timing()), row.best()
        who = best[0] if best else min((w for w in row.times if w != "loopfuse"), default="",
                                       key=lambda w: row.taken(w)[1 if w == "jax" else 0] or 1e9)  # fmt: skip
        theirs = row.times.get(who, Timing())
        cells = [row.workload.name, number(row.workload.share or None, 2), number(ours.ms, 4),
                 number(row.share("loopfuse"), 3), who, number(row.taken(who)[1 if who == "jax" else 0], 4),
                 number(row.share(who), 3), number(best[1] if best else None, 2), number(ours.host_us, 1),
                 number(theirs.host_us, 1), number(ours.first_ms, 0), number(ours.cached_ms, 1),
                 ", ".join(row.missed())]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def saved(rows: list[Row], heading: dict[str, Any]) -> dict[str, Any]:
    """Everything, for a file."""
    return {"heading": heading, "rows": [
        {"workload": row.workload.name, "floor_ms": row.floor_ms, "bytes": row.workload.bytes, "missed": row.missed(),
         "ratios": row.ratios(),
         "times": {who: {**asdict(t), "ms": t.ms, "spread": t.spread, "share": row.share(who)}
                   for who, t in row.times.items()}}
        for row in rows
    ]}  # fmt: skip


def chosen(only: str, skip: str) -> list[Workload]:
    """The workloads whose names begin with a word of `only` (all, where it is empty) and with none of `skip`."""
    words, without = ([w for w in text.split(",") if w] for text in (only, skip))
    return [w for n, w in WORKLOADS.items() if (not words or n.startswith(tuple(words)))
            and not (without and n.startswith(tuple(without)))]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="workloads whose names begin so, with commas")
    parser.add_argument("--skip", default="", help="workloads to leave out")
    parser.add_argument("--peers", default="eager,compile,jax", help="eager, compile, jax; `none` for loopfuse alone")
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
    peers = ours + [p for p in given.peers.split(",") if p in ("eager", "compile") or (p == "jax" and jax_peers)]
    clock = Clock(given.seconds)
    gbps = clock.copy_bandwidth()
    heading = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat(),
               "jax": jax_peers.jax.__version__ if jax_peers else None, "copy_gbps": round(gbps, 1),
               "command": "python tests/bench/peers.py " + " ".join(sys.argv[1:])}  # fmt: skip
    print(", ".join(f"{k} {v}" for k, v in heading.items()), flush=True)
    if ours:
        problem = attempt(lambda: loopfuse_adapter.warm_up() or Timing()).problem
        print(f"loopfuse does not run: {problem}" if problem else "loopfuse is warm", flush=True)
    rows: list[Row] = []
    todo = chosen(given.only, given.skip)
    for k, workload in enumerate(todo):
        if time.monotonic() - start > given.budget:
            print(f"out of time before {workload.name}", flush=True)
            break
        rows.append(measure(workload, peers, gbps, clock, start + given.budget, len(todo) - k - 1))
        torch.cuda.empty_cache()
        if given.json:
            Path(given.json).write_text(json.dumps(saved(rows, heading), indent=1), encoding="utf-8")
    text = "\n".join(table(rows))
    print(f"\n{text}")
    if given.table and given.table != "-":
        Path(given.table).write_text(f"{text}\n", encoding="utf-8")
    return int(any(row.missed() in (["wrong"], ["failed"]) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
