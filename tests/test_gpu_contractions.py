"""Contractions on a GPU against the reference: every layout, epilogue and type, by warpgroups and as for older devices, at
extents that divide nothing; the same bits in every call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import Judge
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from test_emit_contractions import SCRIPTS, TILES, only
from test_emit_segments import IN_TURN, wide

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cuda import engine
from loopfuse.diag import Source
from loopfuse.emit.contractions import Choice
from loopfuse.passes import Options

pytestmark = pytest.mark.gpu
ARCHES = ("", "sm_80")  # as the device is, and as if it had no products of warpgroups
EXTENTS = (1, 2, 7, 8, 16, 63, 64, 65, 127, 128, 136, 200, 257, 264)


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


@contextmanager
def written_for(arch: str) -> Iterator[None]:
    """Kernels are written as for an architecture, for the block."""
    opened = engine.open_engine()
    was = opened.model
    if arch:
        opened.model = replace(was, arch=arch)
    try:
        yield
    finally:
        opened.model = was


def judged(text: str, sizes: dict[str, int], seed: int = 0, fused: dict[str, int] | None = None) -> None:
    """Right, and the same in every call. `fused`: the sizes by which it is decided what is one kernel, where others."""
    lowered = driver.lower_program(driver.compile_source(Source("product", text)).typed)
    optimised = driver.optimise(lowered, Options(sizes=fused or sizes))
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=seed, fill=True))
    first = driver.execute(optimised, bound, backend="cuda").buffers
    again = driver.execute(optimised, bound, backend="cuda").buffers
    for name, found in first.items():
        assert np.array_equal(found.view(np.uint8), again[name].view(np.uint8)), f"`{name}` differs from call to call"
    problem = Judge(lowered, bound).verdict(first)
    assert not problem, problem


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, arch: str) -> None:
    text, sizes = SCRIPTS[name]
    with written_for(arch):
        judged(text, sizes)
        judged(text, {n: 3 * size + 8 if n in "MNK" and size > 8 else size for n, size in sizes.items()}, 1)


@pytest.mark.parametrize("name", IN_TURN)
def test_products_in_turn(name: str) -> None:
    """One launch for products of one array, planned for sizes for which that pays and called with small ones; and, as for
    older devices, a launch for each."""
    text, sizes = IN_TURN[name]
    for arch in ARCHES:
        with written_for(arch):
            judged(text, sizes, fused=wide(sizes))
            judged(text, {n: 3 * size + 8 if n in "MN" else size for n, size in sizes.items()}, 1, fused=wide(sizes))


@pytest.mark.parametrize("choice", TILES, ids=str)
@pytest.mark.parametrize("name", ["residual", "rounded residual", "columns of a map", "dual"])
def test_tiles(name: str, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tile is not what would be chosen."""
    only(monkeypatch, choice)
    judged(SCRIPTS[name][0], {"M": 1000, "N": 520, "K": 328})


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("sizes", [(520, 264, 328), (300, 130, 4100), (67, 33, 2050)], ids=str)
@pytest.mark.parametrize(
    ("text", "layout"),
    [("a @ b + r", "nn"), ("maximum(a.T @ b, 0)", "tn"), ("(a @ b.T) * 0.5", "nt"), ("maximum(a.T, 0) @ b.T", "tt")],
)
def test_doubles(text: str, layout: str, sizes: tuple[int, int, int], arch: str) -> None:
    """In tiles of either instruction, whole and cut."""
    a, b = "M, K" if layout[0] == "n" else "K, M", "K, N" if layout[1] == "n" else "N, K"
    with written_for(arch):
        judged(f"input a: f64[{a}]\ninput b: f64[{b}]\ninput r: f64[M, N]\noutput o = {text}\n",
               dict(zip("MNK", sizes, strict=True)))  # fmt: skip


@pytest.mark.parametrize("arch", ARCHES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_product(arch: str, data: st.DataObject) -> None:
    """Layouts, types, batches, epilogues and extents as they come."""
    dtype = data.draw(st.sampled_from(["bf16", "f16", "f32", "f64", "i8", "i32"]))
    batch = data.draw(st.sampled_from(["", "B, "]))
    left, right = data.draw(st.sampled_from(["M, K", "K, M"])), data.draw(st.sampled_from(["K, N", "N, K"]))
    sizes = {n: data.draw(st.sampled_from(EXTENTS)) for n in "MNK"} | (
        {"B": data.draw(st.integers(1, 3))} if batch else {}
    )
    exact = dtype[0] == "i"
    wide = {"i8": "i32", "i32": "i32", "f64": "f64"}.get(dtype, "f32")
    b = "b, " if batch else ""
    term = f"{wide}(a[{b}{left.lower().replace('m', 'i')}]) * {wide}(w[{b}{right.lower().replace('n', 'j')}])"
    pragma = "pragma tf32\n" if dtype == "f32" and data.draw(st.booleans()) else ""
    text = f"{pragma}input a: {dtype}[{batch}{left}]\ninput w: {dtype}[{batch}{right}]\ninput c: {dtype}[N]\n"
    text += f"input r: {dtype}[{batch}M, N]\nlet h[{b}i, j] = sum({term} for k)\n"
    epilogue = data.draw(st.sampled_from(["plain", "bias", "residual", "columns", "rows"]))
    if epilogue == "plain" or exact:
        text += "output h\n"
    elif epilogue in ("bias", "residual"):
        more = f" + {wide}(r[{b}i, j])" if epilogue == "residual" else ""
        text += f"output o[{b}i, j] = {dtype}(maximum(h[{b}i, j] + {wide}(c[j]), 0){more})\n"
    else:
        text += f"output s = {'max' if epilogue == 'rows' else 'sum'}(h, axis={-1 if epilogue == 'rows' else -2})\n"
    with written_for(arch):
        judged(text, sizes, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("sizes", [(46400, 24, 46408), (1050000, 2056, 64)], ids=["results", "operand"])
def test_more_than_two_to_the_31_elements(sizes: tuple[int, int, int], arch: str) -> None:
    """Of the results, or of an operand. All are small whole numbers, so that no order of additions rounds."""
    m, k, n = sizes
    text = "input a: bf16[M, K]\ninput b: bf16[K, N]\noutput o[i, j] = sum(f32(a[i, k]) * f32(b[k, j]) for k)\n"
    checked = driver.compile_source(Source("large", text))
    a = np.resize(np.arange(-3, 4, dtype=np.int8).astype(bfloat16), (m, k))  # seven values: no period of a power of two
    b = np.resize(np.arange(-2, 3, dtype=np.int8).astype(bfloat16), (k, n))
    bound = driver.bind_program(checked.typed, Given({"a": a, "b": b}, limit=1 << 35))
    optimised = driver.optimise(driver.lower_program(checked.typed), Options(sizes=bound.sizes))
    with written_for(arch):
        (found,) = driver.execute(optimised, bound, backend="cuda", limit=1 << 35).outputs.values()
    for start in (0, m // 3, m - 300):
        rows = slice(start, start + 300)
        assert np.array_equal(found[rows], a[rows].astype(np.float32) @ b.astype(np.float32)), f"rows from {start}"
