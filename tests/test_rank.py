"""tests/bench/rank.py, and that the cost model puts the workloads in the order of the times that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loopfuse.devices import parse_device
from tests.bench import rank

MEASURED = Path(rank.__file__).parent / "h200.json"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_the_coefficient_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    first, second = ([float(p[k]) for p in pairs] for k in (0, 1))
    found = rank.spearman(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_later_files_win_and_failures_do_not_count(tmp_path: Path) -> None:
    def row(name: str, **timing: object) -> dict[str, object]:
        return {"workload": name, "times": {"loopfuse": timing, "eager": {"ms": 1.0, "problem": ""}}}

    older, newer = tmp_path / "older.json", tmp_path / "newer.json"
    older.write_text(json.dumps({"heading": {"device": "NVIDIA A100"}, "rows": [
        row("sumsq_f32", ms=3.0, problem=""), row("blur_f32", ms=9.0, problem="wrong"), row("gone", ms=1.0, problem=""),
    ]}))  # fmt: skip
    newer.write_text(json.dumps({"heading": {"device": "NVIDIA H200"}, "rows": [row("sumsq_f32", ms=2.0, problem="")]}))
    times, heading = rank.read([older, newer])
    assert times == {"sumsq_f32": 2.0}
    assert rank.preset(heading["device"]) == "h200"
    again = tmp_path / "kept.json"
    again.write_text(rank.kept(times, heading))
    assert rank.read([again]) == (times, heading)


def test_the_model_ranks_what_was_measured() -> None:
    """If the model has changed on purpose, measure anew and keep the medians: see rank.py."""
    measured, heading = rank.read([MEASURED])
    rows = rank.compared(measured, parse_device(rank.preset(heading["device"])))
    assert len(rows) >= 15
    assert rank.coefficient(rows) >= rank.GOAL, "\n".join(rank.table(rows))
