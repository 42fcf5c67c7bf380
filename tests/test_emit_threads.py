"""Contractions on the ordinary units: right for any types, layouts and sizes, in any order of threads; lean enough to
compile."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulator import available, build
from gpu_cases import Judge, wrapped
from kernel_checks import inputs_for
from threads_programs import TEXTS

from loopfuse.bind import Bound
from loopfuse.cuda.cache import open_cache
from loopfuse.devices import A100, H200
from loopfuse.emit import contractions
from loopfuse.emit.base import Declined
from loopfuse.emit.code import Code
from loopfuse.emit.matrix import threads_form
from loopfuse.emit.program import emit
from loopfuse.ir import Program
from loopfuse.reader import parse_program

Array = np.ndarray[Any, Any]
CACHE = open_cache(False)  # a text is compiled once
FEW = replace(H200, units=1)  # so that tiles are large where sizes are small
EXTENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "matmul": ((37, 41, 13), (136, 72, 32)),
    "turned": ((37, 41, 13), (72, 136, 48)),
    "linear gelu": ((19, 67, 11), (64, 128, 16)),
    "einsum": ((2, 19, 23, 3, 5), (3, 16, 24, 4, 8)),
    "batches": ((2, 3, 17, 19, 9), (2, 2, 32, 32, 16)),
    "views": ((29, 31, 11), (32, 64, 24)),
    "aligned views": ((29, 31, 11), (40, 64, 20)),
    "doubles": ((37, 41, 13), (72, 64, 24)),
    "integers": ((37, 41, 13), (64, 72, 32)),
    "bytes": ((37, 41, 13), (64, 72, 48)),
    "scaled bytes": ((37, 41, 13), (64, 64, 32)),
    "prologue": ((37, 41, 13), (64, 64, 32)),
    "masks": ((37, 41, 13), (64, 64, 32)),
    "halves": ((37, 41, 13), (64, 64, 32)),
    "dual": ((37, 41, 13), (64, 64, 32)),
    "column sums": ((37, 41, 13), (144, 72, 16)),
    "row best": ((2, 37, 41, 13), (2, 64, 144, 16)),
    "factors": ((37, 41, 13), (64, 64, 32)),
    "convolution": ((2, 9, 3, 5, 7), (1, 16, 4, 8, 8)),
    "heads": ((2, 5, 36), (1, 16, 64)),
    "gathered": ((37, 41, 13), (64, 64, 32)),
}
CASES = [(name, extents) for name, all_ in EXTENTS.items() for extents in all_]


def ident(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel by the matrix units."""
    for way in ("by_warpgroups", "by_warps"):
        monkeypatch.setattr(contractions, way, lambda whole: Declined("not here"))


def read(name: str, extents: tuple[int, ...]) -> tuple[Program, dict[str, int]]:
    program = parse_program(TEXTS[name].lstrip("\n"))
    return program, {s.id: n for s, n in zip(program.sizes, extents, strict=True)}


def assert_right(code: Code, program: Program, sizes: Mapping[str, int], seed: int = 0) -> None:
    """Contractions by threads, within the derived bound, the same bits in every order of threads."""
    assert {k.schedule for k in code.kernels} == {"contraction"}, code.refusals
    assert "by threads" in code.kernels[0].why
    bound = Bound(dict(sizes), inputs_for(program, sizes, seed))
    inputs, params = ({id: bound.inputs[id] for id in ids} for ids in (code.inputs, code.params))
    outputs = {b.id: (b.dtype, [int(p.value(sizes)) for p in b.shape]) for b in program.buffers if b.role == "out"}
    found = build(code).check(inputs, params, {n: sizes[n] for n in code.sizes}, outputs)
    assert not (problem := Judge(wrapped(program), bound).verdict(found)), problem


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize(("name", "extents"), CASES, ids=ident)
def test_programs(name: str, extents: tuple[int, ...]) -> None:
    program, sizes = read(name, extents)
    number = CASES.index((name, extents))
    assert_right(emit(program, sizes, FEW if number % 2 else H200, only="contraction"), program, sizes, number)


SMALL = {
    "matmul": ((64, 64, 64), [(0, 5, 3), (5, 5, 0), (1, 33, 17), (33, 1, 16), (1, 1, 1), (50, 40, 20)]),
    "einsum": ((2, 64, 64, 8, 8), [(1, 17, 1, 2, 3), (2, 3, 5, 0, 2), (0, 3, 5, 1, 1)]),
    "column sums": ((64, 64, 64), [(0, 5, 3), (33, 7, 0), (1, 1, 5)]),
    "row best": ((2, 64, 64, 64), [(1, 9, 1, 3), (2, 1, 40, 8), (1, 5, 3, 0)]),
    "scaled bytes": ((64, 64, 64), [(3, 1, 5), (1, 9, 17), (2, 2, 0)]),
    "doubles": ((64, 64, 64), [(1, 1, 9)]),
}


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", SMALL)
def test_sizes_told_at_the_call(name: str) -> None:
    """One text for any sizes: none, one, and more."""
    planned, met = SMALL[name]
    program, sizes = read(name, planned)
    code = emit(program, sizes, H200, dynamic=True, only="contraction")
    for number, extents in enumerate(met):
        assert_right(code, program, read(name, extents)[1], number)


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("number", range(len(threads_form.FORMS)))
def test_every_tile(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form, on sums of columns or of rows, with operands by vectors and without, of 4 bytes and of 8."""
    form, rate = threads_form.FORMS[number]
    monkeypatch.setattr(threads_form, "FORMS", ((form, rate),))
    sums = ("row best", (1, 72, 75, 20)) if number % 2 else ("column sums", (75, 72, 36))
    for name, extents in (sums, ("doubles", (70, 66, 14))):
        program, sizes = read(name, extents)
        code = emit(program, sizes, H200, only="contraction")
        if name == "doubles" and form.results == 64 and code.kernels[0].schedule == "general":
            continue  # more registers than there are
        assert f"{form.rows} x {form.columns}" in code.kernels[0].why
        assert_right(code, program, sizes, number)


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["linear gelu", "einsum", "batches", "integers", "dual", "factors", "doubles"])
def test_sums_in_parts(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tiles and long sums, more parts than steps among them."""
    for constant, value in (("LEAST_STEPS", 1), ("PARTS", (3,)), ("JOIN", 0.0)):
        monkeypatch.setattr(threads_form, constant, value)
    extents = {"einsum": (2, 19, 23, 5, 18), "batches": (2, 2, 17, 19, 70)}.get(name, (20, 23, 70))
    program, sizes = read(name, extents)
    code = emit(program, sizes, H200, dynamic=dynamic, only="contraction")
    assert "sums cut into 3" in code.kernels[0].why and code.kernels[1].why == "adds 3 parts of each sum"
    assert_right(code, program, sizes)
    if dynamic:
        for few in ((*extents[:-1], 0), (*extents[:-1], 17), (1,) * len(extents)):
            assert_right(code, program, read(name, few)[1], 1)


def test_sums_are_cut_where_tiles_are_few() -> None:
    program, sizes = read("matmul", (128, 256, 65536))
    code = emit(program, sizes, H200, only="contraction")
    assert "sums cut into" in code.kernels[0].why
    assert code.steps[0].grid[0].constant * code.steps[0].grid[1].constant > H200.units  # type: ignore[union-attr]


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
def test_wide_subscripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopfuse.emit.base.MOST_NARROW", 64)
    for name in ("einsum", "column sums", "masks"):
        program, sizes = read(name, EXTENTS[name][0])
        code = emit(program, sizes, H200, only="contraction")
        assert "const long long" in code.kernels[0].text
        assert_right(code, program, sizes)


def test_says_why_not_faster() -> None:
    program, sizes = read("matmul", (64, 64, 64))
    code = emit(program, sizes, H200, only="contraction")
    assert "faster contraction: wgmma and mma.sync: not here" in code.refusals["k1"]


def test_strict_keeps_factors_in_their_sum() -> None:
    program, sizes = read("factors", (64, 64, 64))
    code = emit(replace(program, numerics="strict"), sizes, H200, only="contraction")
    assert code.kernels[0].schedule == "general"


def test_vectors_where_they_lie_so() -> None:
    """Operands come by 16 bytes along whichever axis lies side by side, and element by element where none does."""
    for name, extents, count in (("matmul", (2048, 2048, 256), 2), ("turned", (2048, 2048, 256), 2),
                                 ("views", (2048, 2048, 256), 0), ("matmul", (2048, 2047, 256), 1)):  # fmt: skip
        program, sizes = read(name, extents)
        (kernel,) = emit(program, sizes, H200, only="contraction").kernels
        assert kernel.text.count("lf_peek<4, 16>") == count, (name, extents)


# -- the machine code -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("cuda.bindings") is None, reason="there is no NVRTC")
@pytest.mark.parametrize("name", TEXTS)
def test_compiles(name: str) -> None:
    """No spills and no warnings, at large sizes and at small ones; two blocks a multiprocessor where that is planned."""
    from loopfuse.cuda.compile import compile_program

    for size, device, arch in ((1024, A100, "sm_80"), (100, H200, "sm_90a")):
        program = parse_program(TEXTS[name].lstrip("\n"))
        sizes = {s.id: 3 if s.id in "BH" else size for s in program.sizes}
        code = emit(program, sizes, device, only="contraction")
        assert code.kernels[0].schedule == "contraction"
        for kernel, binary in zip(code.kernels, compile_program(code, arch, cache=CACHE), strict=True):
            assert not binary.spills and not binary.warnings, (kernel.why, binary.spills, binary.warnings)
            blocks = 2 if "__launch_bounds__(256, 2)" in kernel.text else 1
            assert binary.registers <= 65536 // 256 // blocks


def test_large_products_take_large_tiles() -> None:
    program, sizes = read("matmul", (4096, 4096, 4096))
    (kernel,) = emit(program, sizes, H200, only="contraction").kernels
    assert "128 x 128" in kernel.why and "__launch_bounds__(256, 2)" in kernel.text
    assert kernel.shared <= (H200.shared - 2048) // 2
