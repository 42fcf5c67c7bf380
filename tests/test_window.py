"""The window form: tiles with the producer computed again in the halo, for every mode and every size of tile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from kernel_checks import cases, check_same_results, text_of

from loopfuse.analysis.env import environment
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel, Program
from loopfuse.passes.base import Options
from loopfuse.passes.contract import contract
from loopfuse.passes.merge import Merged
from loopfuse.passes.remat import rematerialise
from loopfuse.passes.window import around, window
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.rewrite import free_names
from loopfuse.verify import verify

CASES = Path(__file__).parent / "passes" / "window"
TILES = (1, 2, 3, 7, 64)


def refused(text: str) -> Cause:
    program = parse_program(text)
    verify(program, ranges=True)
    live = frozenset(b.id for b in program.buffers if b.role != "temp")
    found = window(*program.kernels, environment(program), live)
    assert isinstance(found, Cause)
    return found


def tiled(program: Program, from_the_end: bool = True) -> tuple[Program, list[Merged]]:
    """All kernels as one, joined two by two."""
    env = environment(program)
    live = frozenset(b.id for b in program.buffers if b.role != "temp")
    kernels, steps = list(program.kernels), []
    while len(kernels) > 1:
        at = len(kernels) - 2 if from_the_end else 0
        other = frozenset[str]().union(*(buffers_of(k) for k in (*kernels[:at], *kernels[at + 2 :])))
        found = window(kernels[at], kernels[at + 1], env, live | other)
        assert isinstance(found, Merged), found
        env = around(env, found)
        kernels[at : at + 2] = [found.kernel]
        steps.append(found)
    used = frozenset[str]().union(*(free_names(k.body).values for k in kernels))
    sizes = tuple(s for s in env.program.sizes if s.origin != "plan" or s.id in used)
    return replace(env.program, sizes=sizes, kernels=tuple(kernels)), steps


def buffers_of(kernel: Kernel) -> frozenset[str]:
    names = free_names(kernel.body)
    return names.loads | names.stores


def check_all_tiles(before: Program, after: Program) -> None:
    plan = [s.id for s in after.sizes if s.origin == "plan"]
    assert plan
    for n in (2, 4, 7):
        known = {s.id: max(n + k, s.least or 0) for k, s in enumerate(before.sizes)}
        known |= {"H": max(known.get("H", 0), 4)} if "H" in known else {}
        widths = list(product(TILES, repeat=len(plan))) if n == 4 or len(plan) == 1 else [(2, 3, 2)[: len(plan)]]
        for sizes in widths:
            check_same_results(before, after, known, None, dict(zip(plan, sizes, strict=True)))


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_cases(path: Path) -> None:
    before, after = text_of(path)
    made, _ = tiled(parse_program(before))
    assert print_program(made) == after
    verify(made, ranges=True)


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_all_sizes_of_tiles_give_the_same_bits(path: Path) -> None:
    before = parse_program(text_of(path)[0])
    made, steps = tiled(before)
    assert all(s.kind == "stencil" and s.recomputed >= 0 for s in steps)
    check_all_tiles(before, made)
