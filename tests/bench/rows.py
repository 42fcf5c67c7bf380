"""Rows of the comparison: a workload's times by who computed it, what they say, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from timing import Timing
from workloads import Workload


@dataclass
class Row:
    """A workload's times by who computed it. `peak`: operations a second that its arithmetic is held against."""

    workload: Workload
    floor_ms: float
    peak: float
    times: dict[str, Timing] = field(default_factory=dict)

    def share(self, who: str) -> float | None:
        """The share of the floor."""
        taken = self.shown(who)
        return self.floor_ms / taken if taken else None

    def taken(self, who: str) -> tuple[float | None, float | None]:
        """Milliseconds of single calls, and of calls back to back."""
        timing = self.times.get(who, Timing())
        return timing.ms, timing.loop_ms

    def shown(self, who: str) -> float | None:
        """Milliseconds in the way that a peer is timed: single calls, for JAX calls back to back."""
        return self.taken(who)[1 if who == "jax" else 0]

    def teraflops(self, who: str) -> float | None:
        """Useful operations a second, in units of 1e12."""
        taken = self.shown(who)
        return self.workload.flops / taken / 1e9 if taken else None

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

    def fastest(self) -> str:
        """The best peer, also where loopfuse was not timed ("" where no peer was)."""
        best = self.best()
        if best:
            return best[0]
        return min((w for w in self.times if w != "loopfuse"), default="", key=lambda w: self.shown(w) or 1e9)

    def against(self, name: str) -> float | None:
        """The ratio that a goal is about: to a peer, or to the best one where that is "library"."""
        best = self.best()
        return (best[1] if best else None) if name == "library" else self.ratios().get(name)

    def missed(self) -> list[str]:
        """The goals that were not reached, in words."""
        w, ours = self.workload, self.times.get("loopfuse", Timing())
        if ours.problem:
            return ["wrong" if ours.samples else "failed"]
        goals = [("share", self.share("loopfuse"), w.share, True), ("ratio", self.against("library"), w.ratio, True),
                 ("host", ours.host_us, w.host_us, False), ("cold", ours.first_ms, w.cold_ms, False),
                 ("cached", ours.cached_ms, w.cached_ms, False)]  # fmt: skip
        goals += [(name, self.against(name), goal, True) for name, goal in w.goals.items()]
        return [name for name, got, goal, least in goals if goal and got and (got < goal if least else got > goal)]


def tell(row: Row, who: str) -> None:
    """One line as soon as it is known."""
    timing, taken = row.times[who], row.shown(who)
    head = f"{row.workload.name:32s} {who:17s}"
    if taken is not None:
        host = f"{timing.host_us:8.1f}" if timing.host_us is not None else " " * 8
        first = f"{timing.first_ms:8.1f}" if timing.first_ms is not None else " " * 8
        rate = f"  {row.teraflops(who):7.1f} TFLOP/s" if row.workload.unit else ""
        head += f" {taken:9.4f} ms  {row.share(who):6.3f} of floor{rate}  host {host} us  first {first} ms"
        head += f"  spread {timing.spread:.1%}"
    print(f"{head}  {timing.problem}".rstrip(), flush=True)


# -- tables -----------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int) -> str:
    """A number in a cell, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def line(cells: list[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def tables(rows: list[Row]) -> Iterator[str]:
    """The tables, in Markdown: what memory bounds, and contractions."""
    bounded, products = ([r for r in rows if bool(r.workload.unit) == unit] for unit in (False, True))
    if bounded:
        yield from _bounded(bounded)
    if bounded and products:
        yield ""
    if products:
        yield from _products(products)


def _bounded(rows: list[Row]) -> Iterator[str]:
    yield ("| workload | goal | loopfuse ms | share | best peer | its ms | its share | ratio | host us | its host us "
           "| cold ms | cached ms | missed |")  # fmt: skip
    yield "|---|" + "---|" * 12
    for row in rows:
        ours, who = row.times.get("loopfuse", Timing()), row.fastest()
        theirs = row.times.get(who, Timing())
        yield line([row.workload.name, number(row.workload.share or None, 2), number(ours.ms, 4),
                    number(row.share("loopfuse"), 3), who, number(row.shown(who), 4), number(row.share(who), 3),
                    number(row.against("library"), 2), number(ours.host_us, 1), number(theirs.host_us, 1),
                    number(ours.first_ms, 0), number(ours.cached_ms, 1), ", ".join(row.missed())])  # fmt: skip


def _products(rows: list[Row]) -> Iterator[str]:
    yield ("| workload | M x N x K | loopfuse ms | TFLOP/s | share of peak | library | its ms | ratio | goal | error "
           "| missed |")  # fmt: skip
    yield "|---|" + "---|" * 10
    for row in rows:
        ours, who, rate = row.times.get("loopfuse", Timing()), row.fastest(), row.teraflops("loopfuse")
        yield line([row.workload.name, row.workload.extents, number(ours.ms, 4), number(rate, 1),
                    number(rate * 1e12 / row.peak if rate else None, 3), who, number(row.shown(who), 4),
                    number(row.against("library"), 3), ", ".join(_goals(row)), number(ours.error, 2),
                    ", ".join(row.missed())])  # fmt: skip


def _goals(row: Row) -> Iterator[str]:
    """The goals of a contraction; where one is about a peer by name, with the ratio to that peer."""
    for name, goal in row.workload.goals.items():
        got = row.against(name)
        yield f"{goal:.2f}" if name == "library" else f"{name} {goal:.2f}{f' (is {got:.2f})' if got else ''}"


def saved(rows: list[Row], heading: dict[str, Any]) -> dict[str, Any]:
    """Everything, for a file."""
    return {"heading": heading, "rows": [
        {"workload": row.workload.name, "floor_ms": row.floor_ms, "bytes": row.workload.bytes, "flops": row.workload.flops,
         "peak": row.peak, "missed": row.missed(), "ratios": row.ratios(),
         "times": {who: {**asdict(t), "ms": t.ms, "spread": t.spread, "share": row.share(who),
                         "tflops": row.teraflops(who)}
                   for who, t in row.times.items()}}
        for row in rows
    ]}  # fmt: skip
