"""The structure table of fusion, on the kernels that are emitted: who wrote each, how often it is launched, what it reads.

The scripts of tests/fusion with what their `#!` lines demand (see test_fusion_table), as CUDA C for their sizes. What
another emitter than that of the plan's schedule still writes stands in `NOT_YET`: a script that leaves the table must be
taken out of it here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest
from test_fusion_table import FOLDER, cases, compiled, holds, plans, rules

from loopfuse.cuda.launch import Start, make_plan
from loopfuse.cuda.tiles import Tiles
from loopfuse.driver import Optimised
from loopfuse.emit.code import Code, Pointer
from loopfuse.emit.program import EMITTERS, emit
from loopfuse.schedule.plan import Plan
from loopfuse.walking import free_names

# By script: the kernels whose plan nothing writes yet as it is, and its schedule at one size of the table at least.
NOT_YET: dict[str, dict[str, str]] = {
    "attention_alibi": {"k1": "stream"},
    "attention_causal": {"k1": "stream"},
    "attention_library": {"k1": "stream"},
    "attention_plain": {"k1": "stream"},
    "attention_softcap": {"k1": "stream"},
    "attention_window": {"k1": "stream"},
    "blur": {"k1": "stencil"},
    "jacobi_3": {"k1": "stencil"},
    "multi_head_attention": {"k2": "stream"},
    "rmsnorm_linear": {"k1": "contraction"},
    "rmsnorm_linear_wide": {"k1": "contraction"},
}

# What a finish reads of an input once more: the row that the moments are taken about.
AGAIN: dict[str, set[str]] = {}


@dataclass(frozen=True)
class Case:
    """A script for some sizes: fused, with the plans of its kernels, and emitted."""

    path: Path
    sizes: dict[str, int]
    made: Optimised
    plans: dict[str, Plan]
    code: Code

    @property
    def reached(self) -> list[str]:
        """The kernels of the IR whose plan an emitter of its schedule has written."""
        return [id for id, plan in self.plans.items() if plan.schedule in EMITTERS and not self.declined(id)]

    def declined(self, kernel: str) -> list[str]:
        """Why the emitter of a kernel's plan did not take it."""
        return [why for why in self.code.refusals[kernel] if why.startswith(f"{self.plans[kernel].schedule}: ")]

    def launched(self, kernel: str) -> list[tuple[str, set[str]]]:
        """The functions that a call launches for a kernel of the IR, and the memory that each is given."""
        plan = make_plan(self.code, self.made.program.buffers, self.sizes)
        assert plan.actions is not None
        starts = [a for a in plan.actions if isinstance(a, Start) and self.code.kernels[a.kernel].kernel == kernel]
        return [(self.code.kernels[a.kernel].name, {p.memory for p in a.arguments if isinstance(p, Pointer | Tiles)})
                for a in starts]  # fmt: skip


def emitted(path: Path, dims: str) -> Case:
    made = compiled(path, dims)
    sizes = {name: int(value) for name, value in (pair.split("=") for pair in dims.split(","))}
    return Case(path, sizes, made, plans(made), emit(made.program, sizes))


SCRIPTS = sorted({p.values[0] for p in cases()})


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_pattern(path: Path) -> None:
    """All sizes of a script, so that what is not reached at any of them is known here."""
    dims = [words[1] for words in rules(path) if words[0] == "dims"]
    found = [emitted(path, text) for text in dims]
    for case in found:
        check_launches(case)
        check_memory(case)
        check_reads(case)
    missing = {id: case.plans[id].schedule for case in found for id in case.plans.keys() - set(case.reached)}
    assert missing == NOT_YET.get(path.stem, {}), "bring NOT_YET up to date"


def test_what_is_not_reached_are_scripts() -> None:
    assert NOT_YET.keys() <= {p.stem for p in FOLDER.glob("*.lf")}


def check_launches(case: Case) -> None:
    """As many launches as the plan has, and nothing else on the stream."""
    for kernel in case.reached:
        planned = sum(launch.times for launch in case.plans[kernel].launches)
        names = [name for name, _ in case.launched(kernel)]
        assert len(names) == planned, f"{kernel} of {case.sizes}: {names}, and {planned} planned"
    if len(case.reached) < len(case.plans):
        return
    plan = make_plan(case.code, case.made.program.buffers, case.sizes)
    assert plan.actions is not None
    assert all(isinstance(action, Start) for action in plan.actions), "memory is set between kernels"
    for words in rules(case.path):
        if words[0] in ("kernels", "launches"):
            functions = [name for kernel in case.plans for name, _ in case.launched(kernel)]
            count = len({k.kernel for k in case.code.kernels}) if words[0] == "kernels" else len(functions)
            assert holds(words[1:], count), f"{' '.join(words)}: {functions}"


def check_memory(case: Case) -> None:
    """Of the program's own arrays none is in memory that fusion took out; scratch is partial results, and small."""
    program = case.made.program
    temps = {b.id for b in program.buffers if b.role == "temp"}
    kept = {b.id for b in program.buffers if b.role == "temp" and b.scope == "device"}
    dropped = {b.id for b in program.buffers if b.role == "temp" and b.scope != "device"}
    held = [m.id for m in case.code.memory if m.id in temps]
    if len(case.reached) == len(case.plans):
        assert set(held) == kept, "what a call keeps in memory is what fusion left there"
        for words in rules(case.path):
            if words[0] == "materialized":
                assert holds(["0"] if words[1] == "none" else words[1:], len(held)), f"{' '.join(words)}: {held}"
    for kernel in case.reached:
        touched = {memory for _, memories in case.launched(kernel) for memory in memories}
        assert not touched & dropped, f"{kernel} of {case.sizes}"
    given = sum(b.dtype.itemsize * prod(int(p.value(case.sizes)) for p in b.shape) for b in program.buffers
                if b.role in ("in", "frozen"))  # fmt: skip
    scratch = sum(int(m.bytes.value(case.sizes)) for m in case.code.memory if m.id not in temps)
    assert scratch <= given // 8 + 4096, f"{scratch} bytes of scratch for {given} of inputs"


def check_reads(case: Case) -> None:
    """Each array that is given is handed to one launch for each kernel of the IR that reads it."""
    given = {b.id for b in case.made.program.buffers if b.role in ("in", "frozen")}
    for kernel in case.made.program.kernels:
        if kernel.id not in case.reached:
            continue
        launched = case.launched(kernel.id)
        taken = Counter(memory for _, memories in launched for memory in memories)
        again = AGAIN.get(case.path.stem, set()) if len(launched) > 1 else set()
        expected = {id: 1 + (id in again) for id in free_names(kernel.body).loads & given}
        assert {id: taken[id] for id in given if taken[id]} == expected, f"{kernel.id} of {case.sizes}"
    if ["reads", "once"] in rules(case.path):
        rows = [k.why for k in case.code.kernels if k.kernel in case.reached and k.schedule == "row"]
        assert all(re.search("in (registers|shared memory)", why) for why in rows), f"a row is read again: {rows}"
