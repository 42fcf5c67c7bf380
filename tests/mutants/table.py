"""The table of planted faults, as lines and in docs/trust.md; what was found is kept in a file, out/mutants.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .planting import Mutant

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "trust.md", ROOT / "out" / "mutants.json"
BEGIN, END = "<!-- planted faults -->\n", "<!-- end of planted faults -->\n"
Found = Mapping[str, Any]  # `by`, `after`, `seconds`, `said` of a fault


@dataclass(frozen=True, slots=True)
class Results:
    """A file of what was found, by name of the fault."""

    path: Path = KEPT

    def read(self) -> dict[str, Found]:
        """What was found before."""
        found: dict[str, Found] = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        return found

    def keep(self, name: str, found: Found | None) -> None:
        """Add a result; None takes an earlier one away."""
        after = {k: v for k, v in self.read().items() if k != name}
        if found is not None:
            after[name] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(after, indent=1) + "\n", "utf-8")

    def clear(self) -> None:
        """Forget all."""
        self.path.unlink(missing_ok=True)


def row(mutant: Mutant, found: Found) -> str:
    """A line for a terminal."""
    return (f"{mutant.where:9} {mutant.name:34} {found['seconds']:5.1f} s  after {found['after']:3}  {found['by']}: "
            f"{found['said'][:150]}")  # fmt: skip


def table(mutants: Sequence[Mutant], found: Mapping[str, Found]) -> str:
    """The table as Markdown."""
    counts = Counter(m.where for m in mutants)
    told = ", ".join(f"{n} {where}" for where, n in counts.items())
    files = Counter(found[m.name]["by"].split("::")[0].split(",")[0] for m in mutants)
    by = ", ".join(f"`{file}` {n}" for file, n in files.most_common(6))
    lines = [f"{len(mutants)} planted, {len(found)} found ({told}). Found most often by {by}.", "",
             "| fault | where | found by | after |", "|---|---|---|---|"]  # fmt: skip
    for m in mutants:
        test = found[m.name]["by"].replace("|", "\\|")
        lines.append(f"| {m.mistake} | {m.where} | `{test}` | {found[m.name]['after']} |")
    return "\n".join(lines) + "\n"


def written(mutants: Sequence[Mutant], results: Mapping[str, Found]) -> None:
    """Put the table between its marks in docs/trust.md. Raises `KeyError` where a fault has no result."""
    found = {m.name: results[m.name] for m in mutants}
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(mutants, found)}\n{END}{rest.partition(END)[2]}", "utf-8")
