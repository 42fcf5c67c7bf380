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
from mutants.planting import Edit, Mutant, NotPlanted, function
from mutants.running import kill
from mutants.table import BEGIN, END, PAGE

QUICK = {
    "buffers-of-one-turn",
    "overflow-of-a-literal",
    "missing-rescale",
    "dependence-ignored",
    "carried-dependence-ignored",
}
LEAST = {"front end": 10, "pass": 20, "schedule": 10, "emitter": 20, "runtime": 3}


def test_there_are_faults_of_every_kind() -> None:
    counts = Counter(m.where for m in MUTANTS)
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 60
    assert all(counts[where] >= least for where, least in LEAST.items()), counts


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
