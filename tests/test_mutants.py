"""Planted faults: each can be planted and taken back, and each is found by an ordinary check of the suite.

`make mutants` plants all of them; docs/trust.md has the table. Here all are planted without being run, and a handful of those
that are found soon are run; `make test-all` runs every one.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from emulator import available
from mutants.catalogue import MUTANTS
from mutants.parallel import planted
from mutants.planting import Edit, Mutant, NotPlanted, Value, function
from mutants.running import kill
from mutants.table import BEGIN, END, PAGE

from loopfuse.passes import PIPELINE

QUICK = {
    "buffers-of-one-turn",
    "overflow-of-a-literal",
    "missing-rescale",
    "dependence-ignored",
    "carried-dependence-ignored",
}
LEAST = {"front end": 20, "pass": 40, "schedule": 15, "emitter": 45, "runtime": 5}
# The modules and files of rules of each pass; of emitters, those that no other kind of kernel has.
PARTS = {
    "constprop": ("passes.fold",), "simplify": ("simplify",), "dce": ("passes.dce",), "cse": ("analysis.hashing",),
    "distribute": ("passes.distribute",), "fuse": ("passes.merge", "passes.window"), "cascade": ("passes.cascade",),
    "contract": ("passes.contract",), "bodies": ("passes.sharing",), "peephole": ("peephole", "passes.redundant"),
    "widen": ("passes.widen",), "strips": ("emit.strips",), "fetching": ("emit.fetching",), "team": ("emit.team",),
    "maps": ("emit.maps",), "rows": ("emit.rows",), "products": ("emit.matrix",),
}  # fmt: skip


def test_there_are_faults_of_every_kind() -> None:
    counts = Counter(m.where for m in MUTANTS)
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 130
    assert all(counts[where] >= least for where, least in LEAST.items()), counts


def test_every_pass_has_faults() -> None:
    places = [getattr(c, "place", "") or getattr(c, "file", "") for m in MUTANTS for c in m.changes]
    counts = {part: sum(p.startswith(at) for p in places) for part, at in PARTS.items()}
    assert all(count >= 2 for count in counts.values()), counts
    assert {p.name for p in PIPELINE} <= PARTS.keys()


def test_every_fault_is_planted_and_taken_back() -> None:
    places = {c.place for m in MUTANTS for c in m.changes if isinstance(c, Edit)}
    before = {place: function(place).__code__ for place in places}
    for mutant in MUTANTS:
        with mutant.planted():
            changed = {place for place in places if function(place).__code__ is not before[place]}
            assert changed == {c.place for c in mutant.changes if isinstance(c, Edit)}, mutant.name
    assert all(function(place).__code__ is before[place] for place in places)


def test_a_place_that_is_not_there_is_told() -> None:
    lost = Mutant("lost", "pass", "nothing", (Edit("passes.fold:evaluate", "no such words", ""),))
    with pytest.raises(NotPlanted, match="no such words"), lost.planted():
        pass


@pytest.mark.slow
def test_in_several_processes_one_that_ends_loses_its_fault_alone() -> None:
    missing = Mutant("missing", "pass", "no catalogue has it", (Value("passes.contract:PASS", None),))
    chosen = [m for m in MUTANTS if m.name in ("own-recurrence-ignored", "carried-dependence-ignored")]
    verdicts = {v.mutant.name: v for v in planted([missing, *chosen], jobs=2)}
    assert verdicts["missing"].lost.startswith("the process ended with") and verdicts["missing"].found is None
    assert all((found := verdicts[m.name].found) and found["after"] >= 1 for m in chosen)


@pytest.mark.parametrize("mutant", [
    pytest.param(m, id=m.name, marks=() if m.name in QUICK else pytest.mark.slow) for m in MUTANTS
])  # fmt: skip
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    if mutant.where in ("schedule", "emitter") and not available():
        pytest.skip("there is no C++ compiler")
    assert kill(mutant) is not None, f"the suite does not notice: {mutant.mistake}"


def test_the_page_lists_every_fault() -> None:
    table = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    listed = re.findall(r"^\| (.+?) \| (?:front end|pass|schedule|emitter|runtime) \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(m.mistake for m in MUTANTS)
