"""Plants faults in the compiler, one at a time, and tells which check of the suite finds each.

python -m tests.mutants [names] [--where PART] [--rest | --fresh] [--jobs N] [--quiet] [--results FILE] [--table]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from .parallel import Verdict
    from .planting import Mutant


def main() -> int:
    """Print what found each fault; 1 where one was not found."""
    from .catalogue import MUTANTS
    from .table import KEPT, Results, row, written

    asked = _asked(KEPT)
    warnings.simplefilter("ignore")
    results = Results(asked.results)
    if asked.fresh:
        results.clear()
    known = results.read() if asked.rest else {}
    chosen = [m for m in MUTANTS if (not asked.names or m.name in asked.names) and asked.where in (None, m.where)]
    unknown = set(asked.names) - {m.name for m in chosen}
    if unknown:
        print(f"there is no such fault: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [m for m in chosen if m.name not in known]
    alive, began = 0, time.monotonic()
    for verdict in _verdicts(chosen, asked.jobs):
        mutant, found = verdict.mutant, verdict.found
        results.keep(mutant.name, found)
        alive += found is None
        if found is None:
            print(f"{mutant.where:9} {mutant.name:34} NOT FOUND  {verdict.lost}".rstrip(), flush=True)
        elif not asked.quiet:
            print(row(mutant, found), flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} planted faults were found, in {time.monotonic() - began:.0f} s")
    if asked.table and not alive:
        written(MUTANTS, results.read())
    return int(alive > 0)


def _asked(kept: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant faults; tell what finds each.")
    parser.add_argument("names", nargs="*", help="of faults; all without any")
    parser.add_argument("--where", help="only those of a part: front end, pass, schedule, emitter, runtime")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--rest", action="store_true", help="only those of which there is no result")
    some.add_argument("--fresh", action="store_true", help="forget all results first")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at once (1)")
    parser.add_argument("--quiet", action="store_true", help="a line only for each fault that was not found")
    parser.add_argument("--results", type=Path, default=kept, help="the file of results (out/mutants.json)")
    parser.add_argument("--table", action="store_true", help="then write docs/trust.md from the results")
    return parser.parse_args()


def _verdicts(chosen: Sequence[Mutant], jobs: int) -> Iterator[Verdict]:
    from .parallel import Verdict, planted
    from .running import kill

    if jobs > 1:
        yield from planted(chosen, jobs)
        return
    for mutant in chosen:
        yield Verdict(mutant, kill(mutant))


if __name__ == "__main__":
    sys.exit(main())
