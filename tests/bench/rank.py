"""Whether the cost model puts programs in the order of their measured times: Spearman's coefficient over the comparison.

    python tests/bench/peers.py --peers none --json rows.json             on a GPU
    python tests/bench/rank.py rows.json [more.json ...]                  anywhere
    python tests/bench/rank.py rows.json --keep tests/bench/h200.json     and keep the medians, for the tests

The estimate of a workload is the one that `loopfuse explain` shows of its kernels, at its sizes, on the preset that the file
names or on `--device` (a calibrated one: `h200:bandwidth=4.27e12,launch=2e-6`). A kernel that the general emitter writes
in the place of a plan that nothing writes yet has no estimate of its own: such rows are marked `*`, and a second
coefficient leaves them out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from loopfuse import driver
from loopfuse.devices import DEFAULT, PRESETS, Device, parse_device
from loopfuse.emit.program import emit
from loopfuse.passes import Options
from loopfuse.views.estimates import estimates
from loopfuse.views.plans import plan
from tests.bench.workloads import WORKLOADS, Workload

GOAL = 0.98


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a program is estimated to take, in seconds; the emitters of its kernels; `own`: they wrote these plans."""

    seconds: float
    emitters: tuple[str, ...]
    own: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A workload: its estimate, and the milliseconds that were measured."""

    name: str
    estimate: Estimate
    ms: float


def estimate(workload: Workload, device: Device) -> Estimate:
    """What `explain` says of the kernels that are emitted for a workload."""
    checked = driver.compile_source(driver.read_source(workload.path))
    sizes = workload.sizes(checked.typed)
    done = driver.optimise(driver.lower_program(checked.typed), Options(sizes=sizes, device=device))
    code = emit(done.program, sizes, device)
    found = estimates(plan(done.program, device, sizes, done.stages), code)
    emitters = {k.kernel: k.schedule for k in code.kernels}
    return Estimate(
        sum(e.seconds for e in found.values()), tuple(emitters.values()), all(e.own for e in found.values())
    )


def ranks(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """The place of each value in the order of all; equal values share the mean of their places."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the orders of two sequences; NaN where one has no order."""
    first, second = ranks(a), ranks(b)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def read(files: Iterable[Path]) -> tuple[dict[str, float], dict[str, Any]]:
    """loopfuse's median milliseconds by workload, of the last file that has it, and that file's heading."""
    found: dict[str, float] = {}
    heading: dict[str, Any] = {}
    for file in files:
        saved = json.loads(file.read_text(encoding="utf-8"))
        heading = saved["heading"]
        for row in saved["rows"]:
            timing = row["times"].get("loopfuse", {})
            known = WORKLOADS.get(row["workload"])
            if known and not known.through and timing.get("ms") and not timing.get("problem"):
                found[known.name] = timing["ms"]
    return found, heading


def kept(times: Mapping[str, float], heading: Mapping[str, Any]) -> str:
    """The medians alone, in a form that `read` reads."""
    rows = [{"workload": name, "times": {"loopfuse": {"ms": round(ms, 5)}}} for name, ms in times.items()]
    told = {key: heading[key] for key in ("device", "date", "copy_gbps") if key in heading}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f'{{"heading": {json.dumps(told)},\n "rows": [\n{lines}\n]}}\n'


def preset(name: str) -> str:
    """The preset of a device by the name that its driver gives."""
    compact = name.lower().replace(" ", "")
    return next((key for key in PRESETS if key in compact), DEFAULT)


def compared(measured: Mapping[str, float], device: Device) -> list[Row]:
    """A row for each workload that was measured, in milliseconds."""
    return [Row(name, estimate(WORKLOADS[name], device), ms) for name, ms in measured.items()]


def coefficient(rows: Sequence[Row]) -> float:
    """Spearman's, of estimates and measured times."""
    return spearman([r.estimate.seconds for r in rows], [r.ms for r in rows])


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows by measured time, with their places in both orders."""
    measured, estimated = ranks([r.ms for r in rows]), ranks([r.estimate.seconds for r in rows])
    yield "| workload | emitter | measured ms | estimated ms | measured / estimated | place | estimated place |"
    yield "|---|---|---|---|---|---|---|"
    for k in np.argsort(measured, kind="stable"):
        row = rows[int(k)]
        mark = "" if row.estimate.own else " *"
        ms = row.estimate.seconds * 1e3
        yield (f"| {row.name} | {', '.join(row.estimate.emitters)}{mark} | {row.ms:.4f} | {ms:.4f} | {row.ms / ms:.2f} "
               f"| {measured[k]:g} | {estimated[k]:g} |")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="what peers.py wrote with --json; later files win")
    parser.add_argument("--device", default="", help="as for `loopfuse ir --device`: a preset, with measured values")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the medians to a file")
    given = parser.parse_args()
    measured, heading = read(given.files)
    name = heading["device"]
    device = parse_device(given.device or preset(name))
    rows = compared(measured, device)
    own = [r for r in rows if r.estimate.own]
    print("\n".join(table(rows)))
    print(f"\nSpearman {coefficient(rows):.3f} over {len(rows)} workloads on {name}, estimated for {device.name}")
    if len(own) < len(rows):
        print(f"without those marked *, whose plans nothing writes yet: {coefficient(own):.3f} over {len(own)}")
    if given.keep:
        given.keep.write_text(kept(measured, heading), encoding="utf-8")
    return int(not coefficient(rows) >= GOAL)


if __name__ == "__main__":
    sys.exit(main())
