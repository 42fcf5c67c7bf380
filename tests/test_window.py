"""The window form: tiles with the producer computed again in the halo, for every mode and every size of tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_checks import cases, check_same_results, text_of

from loopfuse.analysis.env import environment
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel, Program
from loopfuse.passes.base import Options
from loopfuse.passes.contract import contract, live_buffers
from loopfuse.passes.merge import Merged, merge
from loopfuse.passes.remat import rematerialise
from loopfuse.passes.window import around, tile, window
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.rewrite import free_names, walk
from loopfuse.verify import verify

CASES = Path(__file__).parent / "passes" / "window"
TILES = (1, 2, 3, 7, 64)


class Unjoined(Exception):
    """Two kernels that the window form does not join."""


def refused(text: str) -> Cause:
    program = parse_program(text)
    verify(program, ranges=True)
    live = frozenset(b.id for b in program.buffers if b.role != "temp")
    first, second = program.kernels
    found = window(first, second, environment(program), live)
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
        if isinstance(found, Cause):
            raise Unjoined(str(found))
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


@pytest.mark.parametrize("name", ["jacobi", "jacobi2d", "onesided", "shift"])
def test_a_chain_joins_from_either_end(name: str) -> None:
    before = parse_program(text_of(CASES / f"{name}.ir")[0])
    last, _ = tiled(before)
    first, _ = tiled(before, from_the_end=False)
    verify(first, ranges=True)
    assert [s.origin for s in first.sizes] == [s.origin for s in last.sizes]
    assert _counts(first) == _counts(last)
    check_all_tiles(before, first)


def _counts(program: Program) -> list[int]:
    return [len(list(walk(k.body))) for k in program.kernels]


@pytest.mark.parametrize("path", cases(CASES), ids=lambda p: p.stem)
def test_later_passes_leave_the_windows_alone(path: Path) -> None:
    made, _ = tiled(parse_program(text_of(path)[0]))
    local = {b.id for b in made.buffers if b.scope == "local"}
    (kernel,) = made.kernels
    assert buffers_of(rematerialise(kernel, environment(made), live_buffers(made))) >= local
    again = contract(made, Options()).program
    assert {b.id: b.window for b in again.buffers} == {b.id: b.window for b in made.buffers if b.id in ids(again)}
    assert [b.role for b in made.buffers if b.id not in ids(again)] in ([], ["temp"])


def ids(program: Program) -> set[str]:
    return {b.id for b in program.buffers}


# -- random stencils --------------------------------------------------------------------------------------------------

MODES = ("edge", "reflect", "symmetric", "constant 2.0f32")


@st.composite
def stencils(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Chains of stencils in one or two axes with taps at any distance and modes of all kinds."""
    rank = draw(st.integers(1, 2))
    axes = ["i", "j"][:rank]
    shape = ", ".join(["N", "M"][:rank])
    loops = ", ".join(f"{i} < {n}" for i, n in zip(axes, ["N", "M"], strict=False))
    count = draw(st.integers(2, 4))
    names = ["x", *(f"t{k}" for k in range(1, count)), "out"]
    text = f"program p({shape})\nbuf x: f32[{shape}] in\n"
    text += "".join(f"buf {n}: f32[{shape}]{' out' * (n == 'out')}\n" for n in names[1:])
    for k in range(1, len(names)):
        taps = []
        sources = [names[k - 1], *(draw(st.sampled_from(names[:k])) for _ in range(draw(st.integers(0, 2))))]
        for source in sources:
            subs = []
            for axis in axes:
                by = draw(st.integers(-4, 4)) if draw(st.booleans()) or source == names[k - 1] else 0
                mode = draw(st.sampled_from(MODES))
                subs.append(f"{axis} + {by} ~{mode}" if by >= 0 else f"{axis} - {-by} ~{mode}")
            taps.append(f"{source}[{', '.join(subs)}] * {draw(st.integers(1, 3))}.0f32")
        value = " + ".join(taps)
        text += f"kernel k{k}\n  par {loops}\n    {names[k]}[{', '.join(axes)}] = {value}\n"
    return parse_program(text)


@given(stencils(), st.integers(1, 7), st.integers(1, 7), st.tuples(*[st.sampled_from(TILES)] * 2), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_random_stencils(before: Program, n: int, m: int, widths: tuple[int, int], from_the_end: bool) -> None:
    try:
        made, _ = tiled(before, from_the_end)
    except Unjoined:
        return
    plan = [s.id for s in made.sizes if s.origin == "plan"]
    known = {s.id: v for s, v in zip(before.sizes, (n, m), strict=False)}
    check_same_results(before, made, known, None, dict(zip(plan, widths, strict=False)))
    verify(made, ranges=True)


# -- refusals ---------------------------------------------------------------------------------------------------------

PAIR = """
program p(N, K)
require {{K}} >= {{1}} "" implied
buf x: f32[N] in
buf at: i64[N] in range 0 .. N - 1
buf w: f32[K, N] in
buf t: f32[N]{role}
buf y: f32[N] out
kernel a
  {first}
kernel b
  {second}
"""
PLAIN = "par i < N\n    t[i] = x[i] + 1.0f32"
READ = "par i < N\n    y[i] = t[i - 1 ~edge]"


@pytest.mark.parametrize(
    "code, first, second, role",
    [
        ("gather", PLAIN, "par i < N\n    y[i] = t[at[i]]", ""),
        ("wrap", PLAIN, "par i < N\n    y[i] = t[i - 1 ~wrap]", ""),
        ("aligned", PLAIN, "par i < N\n    y[i] = t[i]", ""),
        ("shape", PLAIN, "par i < N\n    y[i] = t[N - 1 - i] + t[i // 2]", ""),
        ("live", PLAIN, READ, " out"),
        ("recompute", "par i < N\n    fold k < K\n      acc s: f32 sum\n      s <- w[k, i]\n    t[i] = s", READ, ""),
        ("impure", "par i < N\n    t[i] = x[i - 1 ~checked]", READ, ""),
        ("shape", PLAIN, "seq s < N\n    y[s] = t[s - 1 ~edge]", ""),
        ("unrelated", PLAIN, "par i < N\n    y[i] = x[i - 1 ~edge]", ""),
    ],
)
def test_refusals(code: str, first: str, second: str, role: str) -> None:
    text = PAIR.format(first=first, second=second, role=role)
    if code == "unrelated":
        text = text.replace("y[i] = x", "y[i] = w[0, 0] + x")
    assert refused(text).code == code


def test_a_joint_kernel_whose_loops_stayed_apart() -> None:
    before = parse_program(text_of(CASES / "blur.ir")[0])
    env, live = environment(before), frozenset({"img", "out"})
    joint = merge(before.kernels[0], before.kernels[1], env, live)
    assert isinstance(joint, Merged)
    found = tile(joint.kernel, env, live)
    assert isinstance(found, Merged)
    assert len(found.sizes) == 2
    after = replace(around(env, found).program, kernels=(found.kernel,))
    verify(after, ranges=True)
    check_all_tiles(before, after)
    single = tile(before.kernels[0], env, live)
    assert isinstance(single, Cause) and single.code == "shape"
