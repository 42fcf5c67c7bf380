"""What a benchmark found: a row for each program, set of sizes and choice of passes; kept in files, and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from loopfuse.diag import UserError, error
from loopfuse.outside import read_json, read_whole, write_json

SCHEMA = 1
Key = tuple[str, str, str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """A program at some sizes, with some passes, on some device. Times in seconds; None is what was not measured.

    `median`, `low` and `high` (the quartiles) of `samples` calls. `kernels` are launched in a call. `bytes`: what must be
    moved at least; `operations`: what is computed. `roof`: the least time that bandwidth and arithmetic of the device
    allow, `bound` what sets it; `predicted`: what the kernels should take by the model of costs. `host`: of a call that does not wait. `compile`: passes and compiler, before the first
    call (`cached`: found in the cache); `cold` without the cache, `warm` with. `joules` of a call. `problem`: why there
    is nothing.
    """

    script: str
    backend: str
    passes: str
    sizes: dict[str, int] = field(default_factory=dict)
    device: str = ""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    kernels: int | None = None
    bytes: int = 0
    operations: int = 0
    roof: float | None = None
    bound: str = ""
    predicted: float | None = None
    host: float | None = None
    compile: float | None = None
    cached: bool = False
    cold: float | None = None
    warm: float | None = None
    joules: float | None = None
    problem: str = ""

    @property
    def key(self) -> Key:
        """What must be the same for two rows to be compared."""
        return self.script, self.backend, self.passes, tuple(sorted(self.sizes.items()))

    @property
    def share(self) -> float | None:
        """The part of the roof that is reached: 1 is as fast as the device allows."""
        return self.roof / self.median if self.roof and self.median else None

    @property
    def expected(self) -> float | None:
        """The part of the roof that the model of costs expects."""
        return self.roof / self.predicted if self.roof and self.predicted else None

    @property
    def rate(self) -> float | None:
        """Bytes a second, of those that must be moved."""
        return self.bytes / self.median if self.bytes and self.median else None

    @property
    def speed(self) -> float | None:
        """Operations a second."""
        return self.operations / self.median if self.operations and self.median else None

    @property
    def efficiency(self) -> float | None:
        """Operations a joule, which are operations a second for each watt."""
        return self.operations / self.joules if self.operations and self.joules else None

    def as_record(self) -> dict[str, Any]:
        """The JSON form, with what follows from the fields."""
        derived = {"share": self.share, "expected": self.expected, "bytes_per_second": self.rate, "operations_per_second": self.speed,
                   "operations_per_joule": self.efficiency}  # fmt: skip
        return {**asdict(self), **derived}


@dataclass(frozen=True, slots=True)
class Change:
    """A row beside the one of a former run: `ratio` of the medians, and whether it is too much."""

    row: Row
    before: Row | None
    ratio: float | None
    slower: bool


def compare(rows: Iterable[Row], before: Mapping[Key, Row], tolerance: float) -> list[Change]:
    """Each row beside the former one of the same key. Slower: by more than `tolerance`, a fraction, or no result where
    there was one."""
    found: list[Change] = []
    for row in rows:
        old = before.get(row.key)
        ratio = row.median / old.median if old is not None and old.median and row.median else None
        lost = old is not None and old.median is not None and row.median is None
        found.append(Change(row, old, ratio, lost or (ratio is not None and ratio > 1.0 + tolerance)))
    return found


# -- files ------------------------------------------------------------------------------------------------------------


def save(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Write rows to a file. Raises `UserError` LF0515 where it cannot be written."""
    document = {"schema": SCHEMA, "kind": "bench", **about, "rows": [row.as_record() for row in rows]}
    try:
        path.write_text(write_json(document, 1) + "\n", encoding="utf-8")
    except OSError as why:
        raise UserError(error("LF0515", f"`{path}` cannot be written: {why.strerror}")) from why


def load(path: Path) -> dict[Key, Row]:
    """The rows of a file that `save` wrote. Raises `UserError` LF0510 and LF0511."""
    try:
        text = read_whole(path).decode("utf-8")
    except OSError as why:
        raise UserError(error("LF0510", f"cannot read `{path}`: {why.strerror}")) from why
    except UnicodeDecodeError as why:
        raise UserError(error("LF0511", f"`{path}` is not a text in UTF-8 (byte {why.start})")) from why
    try:
        document = read_json(text)
        if not isinstance(document, dict) or document.get("kind") != "bench" or document.get("schema") != SCHEMA:
            raise ValueError("it is not one")
        rows = [_row(entry) for entry in document["rows"]]
    except (ValueError, KeyError, TypeError, OverflowError) as why:
        message = f"`{path}` does not hold the results of a benchmark: {why}"
        raise UserError(error("LF0511", message, fix="write one with --save")) from why
    return {row.key: row for row in rows}


def _row(entry: Any) -> Row:
    names = {f.name for f in fields(Row)}
    row = Row(**{k: v for k, v in dict(entry).items() if k in names})
    numbers = (row.median, row.low, row.high)
    if not all(v is None or (isinstance(v, int | float) and math.isfinite(v) and v >= 0) for v in numbers):
        raise ValueError(f"`{row.median}` is no time")
    if not all(isinstance(v, str) for v in (row.script, row.backend, row.passes)):
        raise ValueError("a row has no name")
    return Row(**{**{f.name: getattr(row, f.name) for f in fields(Row)},
                  "sizes": {str(k): int(v) for k, v in dict(row.sizes).items()}})  # fmt: skip
