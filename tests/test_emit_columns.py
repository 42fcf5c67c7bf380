"""Column plans as kernels: right in every form, at every kind of extent, in any order of threads; lean enough to compile."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from column_programs import TEXTS
from emulator import available, build
from gpu_cases import Judge, wrapped
from kernel_checks import inputs_for
from schedule_programs import TEXTS as FINISHED

from loopfuse import driver
from loopfuse.bind import Bound
from loopfuse.devices import H200
from loopfuse.diag import Source
from loopfuse.emit.code import Code, Launch
from loopfuse.emit.program import emit
from loopfuse.passes import Options
from loopfuse.reader import parse_program

SMALL = replace(H200, units=2)  # few blocks, so that each takes several turns
PEERS = Path(__file__).parent / "bench" / "peers"

# Extents, in the order of the sizes: nothing, one, odd ones, whole tiles, and what is left after tiles.
EXTENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "sumsq": ((0,), (1,), (1000,), (4096,), (70001,)),
    "moments": ((0, 3), (1, 1), (5, 3), (300, 4), (1024, 64), (777, 33)),
    "many": ((0,), (3,), (9000,), (16384,)),
    "read back": ((1,), (8192,), (9001,)),
    "from one": ((1,), (8193,), (20001,)),
    "two dims": ((0, 3), (1, 1), (7, 5), (64, 64), (37, 100)),
    "where": ((0, 3), (1, 1), (7, 5), (90, 70)),
    "variance all": ((0,), (1,), (8192,), (20001,)),
    "variance rows": ((1, 0), (3, 2000), (2, 20001)),
    "variance cols": ((0, 3), (1, 1), (300, 4), (777, 33), (4096, 64)),
    "logsumexp cols": ((1, 0, 3), (2, 1, 1), (2, 500, 16), (3, 777, 5)),
    "gemv": ((0, 3), (1, 1), (777, 51), (1000, 512)),
    "rank3": ((0, 3, 2), (50, 3, 16), (7, 70, 5)),
    "triangle": ((1, 1), (30, 20), (700, 100)),
    "edges": ((1, 1), (30, 20), (700, 12)),
    "nested": ((1, 1), (30, 20), (700, 12)),
    "two folds": ((1, 0, 1), (30, 5, 20), (700, 300, 12)),
    "flat": ((0, 3), (1, 1), (33, 1001), (100, 33)),
    "cols": ((0, 3, 2), (1, 1, 1), (500, 6, 6), (1000, 10, 2)),
    "triangles": ((0, 3), (7, 5), (90, 700), (64, 1024)),
    "softmax cols": ((300, 64), (77, 33)),
    "online softmax cols": ((2, 300, 64), (3, 77, 33)),
    "kept": ((2, 100, 64), (2, 50, 48), (1, 77, 33)),
    "dependent": ((300, 40, 64), (77, 33, 37)),
    "extremes": ((1, 1), (300, 64), (77, 33)),
    "filter of two axes": ((1, 1), (7, 5), (300, 64)),
    "mid": ((2, 0, 3, 2), (2, 1, 1, 1), (2, 500, 6, 4), (2, 1000, 3, 16)),
}
CASES = [(name, extents, dynamic) for name, all_ in EXTENTS.items() for k, extents in enumerate(all_)
         for dynamic in ((False, True) if k == len(all_) - 1 and name != "kept" else (False,))]  # fmt: skip


def told(name: str, extents: tuple[int, ...], dynamic: bool) -> str:
    return f"{name} {'x'.join(map(str, extents))}{' dynamic' if dynamic else ''}"


def emulated(code: Code, outputs: Mapping[str, object], arrays: Mapping[str, object],
             sizes: Mapping[str, int]) -> Mapping[str, np.ndarray]:  # fmt: skip
    inputs, params = ({id: arrays[id] for id in ids} for ids in (code.inputs, code.params))
    return build(code).check(inputs, params, {n: sizes[n] for n in code.sizes}, outputs)


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize(("name", "extents", "dynamic"), CASES, ids=[told(*c) for c in CASES])
def test_values(name: str, extents: tuple[int, ...], dynamic: bool) -> None:
    """Within the derived bound, the same bits in every order of threads and blocks."""
    program = parse_program(TEXTS.get(name) or FINISHED[name])
    sizes = {s.id: n for s, n in zip(program.sizes, extents, strict=True)}
    code = emit(program, sizes, SMALL, only="column", dynamic=dynamic)
    assert {k.schedule for k in code.kernels} == {"column"}, code.refusals
    bound = Bound(sizes, inputs_for(program, sizes))
    outputs = {b.id: (b.dtype, [int(p.value(sizes)) for p in b.shape]) for b in program.buffers if b.role == "out"}
    found = emulated(code, outputs, bound.inputs, sizes)
    assert not (problem := Judge(wrapped(program), bound).verdict(found)), problem


def peer(script: str, **sizes: int) -> Code:
    """The code of a workload that is timed against peers."""
    text = (PEERS / f"{script}.lf").read_text("utf-8")
    lowered = driver.lower_program(driver.compile_source(Source(script, text)).typed)
    program = driver.optimise(lowered, Options(sizes=sizes), "default").program
    return emit(program, sizes, only="column")


WORKLOADS = {
    "sumsq": {"N": 1 << 28},
    "mean_var_cols": {"M": 131072, "N": 1024},
    "gemv": {"M": 1, "K": 16384, "N": 16384},
}
REGISTERS = {"sumsq": 64, "mean_var_cols": 96, "gemv": 64}  # with which enough loads are in flight


@pytest.mark.parametrize("script", WORKLOADS)
def test_launches(script: str) -> None:
    """A main kernel that fills the machine a few times, and a finish."""
    code = peer(script, **WORKLOADS[script])
    main, finish = code.steps
    assert isinstance(main, Launch) and isinstance(finish, Launch)
    blocks = main.grid[0] * main.grid[1]
    assert H200.units * 2 <= blocks.constant <= H200.units * 8
    assert finish.kernel == f"{main.kernel}_finish"
    if script != "mean_var_cols":  # where a thread has fewer columns, so as to hold more rows
        assert re.search(r"lf_read<\d+, 16>\(", code.kernels[0].text)


@pytest.mark.skipif(importlib.util.find_spec("cuda.bindings") is None, reason="there is no NVRTC")
@pytest.mark.parametrize("script", WORKLOADS)
def test_compiles(script: str) -> None:
    """No spills, no warnings, few registers."""
    from loopfuse.cuda.compile import compile_kernel

    code = peer(script, **WORKLOADS[script])
    for kernel in code.kernels:
        binary = compile_kernel(code.source(kernel), kernel.name, "sm_90a", contract=True)
        assert not binary.spills and not binary.warnings
        assert binary.registers <= REGISTERS[script]


def test_positions_survive_a_merge() -> None:
    """The first of equal values, wherever its block is: the finish looks at positions, not at the order of blocks."""
    code = emit(parse_program(TEXTS["many"]), {"N": 1 << 24}, H200, only="column")
    assert "lf_argmax" in code.kernels[1].text


def test_memory_of_the_parts() -> None:
    """Scratch is a state a column and part."""
    code = emit(parse_program(TEXTS["gemv"]), {"K": 16384, "N": 16384}, H200, only="column")
    main = code.steps[0]
    assert isinstance(main, Launch)
    assert [m.bytes for m in code.memory] == [main.grid[1] * 16384 * 4]
