"""Plants faults in the compiler, one at a time, and tells which check of the suite finds each.

python -m tests.mutants [names] [--where PART] [--rest] [--table]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    """Print what found each fault; 1 where one was not found."""
    from .catalogue import MUTANTS
    from .running import kill
    from .table import keep, kept, row, written

    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant faults; tell what finds each.")
    parser.add_argument("names", nargs="*", help="of faults; all without any")
    parser.add_argument("--where", help="only those of a part: front end, pass, schedule, emitter, runtime")
    parser.add_argument("--rest", action="store_true", help="only those of which out/mutants.json has no result")
    parser.add_argument("--table", action="store_true", help="then write docs/trust.md from out/mutants.json")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    known = kept() if asked.rest else {}
    chosen = [m for m in MUTANTS if (not asked.names or m.name in asked.names) and asked.where in (None, m.where)]
    chosen = [m for m in chosen if m.name not in known]
    alive = 0
    for mutant in chosen:
        found = kill(mutant)
        keep(mutant.name, found)
        alive += found is None
        print(row(mutant, found) if found else f"{mutant.where:9} {mutant.name:34} NOT FOUND", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} planted faults were found")
    if asked.table and not alive:
        written(MUTANTS)
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
