"""Damaged bytes, in a process that may have little memory and little time: `python -m malformed.worker`, from tests/.

A line of JSON a target: how many cases, how many were refused and with what, the slowest, and what went wrong. A case that
never ends, or that kills the process, leaves its bytes in the folder of --save and its number on stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from malformed.targets import Target

ROOM = 2 << 30  # bytes of address space that cases may take beside what the process has at first
GROWTH = 256 << 20  # bytes of memory by which a case may raise the most that the process ever had
PATIENCE = 60  # seconds after which a case counts as one that never ends
SLOW = 5.0  # seconds of processor time in which every case must be done
MOST_KEPT = 5  # failures of a target that are told


def main() -> int:
    """Run what the command line says; the exit code is 1 where something was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", default="", help="names with commas; all of them by default")
    parser.add_argument("--cases", type=int, default=100, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--save", type=Path, help="where cases that fail are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="malformed-") as place:
        os.environ["LOOPFUSE_CACHE_DIR"] = f"{place}/kept"
        tempfile.tempdir = place  # where reports of bugs go
        failed = run(options, Path(place))
    return int(failed)


def run(options: argparse.Namespace, place: Path) -> bool:
    """Every target in turn."""
    from malformed.damage import damaged
    from malformed.targets import targets

    made = targets(place)
    wanted = options.targets.split(",") if options.targets else list(made)
    size = room()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failed = False
    for name in wanted:
        target = made[name]
        results: Counter[str] = Counter()
        problems: list[str] = []
        slowest = 0.0
        for number in range(options.first, options.first + options.cases):
            rng = random.Random(f"{name}:{options.seed}:{number}")
            data = damaged(target.seeds, rng, target.ways) if target.ways else b""
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"{name}.running").write_bytes(data)
            start = time.process_time()
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            problem = problem_of(target, data, rng, SLOW, results)
            faulthandler.cancel_dump_traceback_later()
            slowest = max(slowest, time.process_time() - start)
            if problem:
                problems.append(f"case {number} of seed {options.seed}: {problem}")
                if options.save:
                    (options.save / f"{name}-{options.seed}-{number}").write_bytes(data)
        if options.save:
            (options.save / f"{name}.running").unlink(missing_ok=True)
        failed = failed or bool(problems)
        print(json.dumps({"target": name, "cases": options.cases, "results": dict(results.most_common()),
                          "accepts": target.accepts, "slowest": round(slowest, 3), "problems": problems[:MOST_KEPT],
                          "failed": len(problems)}), flush=True)  # fmt: skip
    return failed


def problem_of(
    target: Target, data: bytes, rng: random.Random, slow: float, results: Counter[str] | None = None
) -> str:
    """What is wrong with how a target read some bytes, in at most `slow` seconds, or ""; what came of them is counted."""
    before, start = peak(), time.process_time()
    try:
        result = target.read(data, rng)
    except BaseException:
        return traceback.format_exc(limit=-8)
    if results is not None:
        results[result or "accepted"] += 1
    if (took := time.process_time() - start) > slow:
        return f"{took:.1f} s of processor time"
    if peak() - before > GROWTH:
        return f"memory grew by {(peak() - before) >> 20} MiB"
    return ""


def room() -> int:
    """The address space that the process has, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def peak() -> int:
    """The most memory that the process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
