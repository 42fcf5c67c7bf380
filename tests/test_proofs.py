"""What the checker proves of the sample programs: which subscripts it leaves to run time, and what it requires.

That no proof is wrong is held elsewhere: the interpreter refuses an unproved access outside its array, and
test_scripts.py runs every program at several sizes; test_prove_sound.py searches for counterexamples.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loopfuse.diag import Collector, Source
from loopfuse.frontend.check import check_source

ROOT = Path(__file__).parent.parent
SCRIPTS = [*sorted((ROOT / "tests" / "scripts").rglob("*.lf")), *sorted((ROOT / "examples").glob("*.lf"))]

# Subscripts that depend on data which no domain bounds.
CHECKED = {
    "compaction": ["pos[i] - 1"],
    "18_cross_entropy": ["lab[n]"],
    "cross_entropy": ["lab[n]"],
    "embedding_bag": ["ids[b, j]"],
    "moe_dispatch": ["slot[n]", "slot[n]"],
    "rank_sort": ["rank[b, i]"],
}
REQUIRED = {
    "06_softmax": ["N >= 1"],
    "07_attention": ["T >= 1"],
    "12_kmeans": ["K >= 1"],
    "16_multi_head_attention": ["T >= 1"],
    "20_heat": ["H >= 1"],
    "conv_groupnorm_residual_lse": ["H >= 2", "W >= 2"],
    "convtranspose_clamp": ["H*ST + OP + R >= 2*PAD + ST", "ST*W + OP + S >= 2*PAD + ST"],
    "derived_size": ["H + 1 >= R", "W + 1 >= S"],
    "gemm_groupnorm_min_bias": ["G*K >= 1"],
    "rope_gqa_window": ["HK >= 1", "HQ // HK >= 1", "S >= 1"],
}


def found(path: Path, code: str) -> list[str]:
    collector = Collector()
    source = Source(path.name, path.read_text("utf-8"))
    check_source(source, search=path.parent, collector=collector)
    assert [d.code for d in collector.errors] == (["LF0209"] if path.stem == "nn" else [])
    remarks = [d for d in collector.found if d.code == code]
    if code == "LF0704":
        return sorted(d.primary.text for d in remarks if d.primary)
    return sorted(d.message.removeprefix("requires ") for d in remarks)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_every_affine_subscript_is_proved(path: Path) -> None:
    assert found(path, "LF0704") == CHECKED.get(path.stem, [])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_implied_requirements(path: Path) -> None:
    assert found(path, "LF0703") == REQUIRED.get(path.stem, [])
