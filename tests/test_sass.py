"""Machine code of contractions: no products that wait for one another, no fence that the kernel does not need, and spills
only where they are listed. It needs NVRTC and nvdisasm, both from PyPI, and no GPU."""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import test_emit_contractions as by_warpgroups
import test_emit_fragments as by_fragments
import test_emit_row_products as by_rows
import test_emit_warps as by_warps
from sass_checks import FENCES, GROUP, beyond, counted, faults, functions, instructions, needed
from test_cuda_arches import CACHE, DEVICES, allowed

from loopfuse import driver
from loopfuse.cuda.binary import Binary
from loopfuse.cuda.compile import compile_kernel, compile_program
from loopfuse.cuda.engine import make
from loopfuse.cuda.sass import disassemble
from loopfuse.cuda.toolchain import find_tool
from loopfuse.devices import A100, H200
from loopfuse.diag import Source
from loopfuse.emit import contractions
from loopfuse.emit.code import Code
from loopfuse.emit.matrix import row_kernel
from loopfuse.emit.matrix.primitives import PRIMITIVES
from loopfuse.emit.program import emit
from loopfuse.passes import Options
from tests.bench.workloads import WORKLOADS

WHEELS = (("linux", "x86_64"), ("linux", "aarch64"))  # elsewhere PyPI has no nvdisasm; here its absence is a failure
needs_nvdisasm = pytest.mark.skipif(
    find_tool("nvdisasm") is None and (sys.platform, platform.machine()) not in WHEELS,
    reason="there is no nvdisasm, and PyPI has none for this platform",
)
SUITE = {name: w for name, w in WORKLOADS.items() if not w.through}  # those are of sm_80 here
# One of each form beside that of `product`: by turns, by registers, whole rows, mma.sync.
QUICK = {
    ("linear_residual_bf16_k768", "sm_90a"), ("linear_gelu_tf32_4096", "sm_90a"), ("matmul_residual_ln_bf16", "sm_90a"),
    ("matmul_bf16_1024", "sm_80"),
}  # fmt: skip


def told(code: Code, binaries: Sequence[Binary], spills: Mapping[tuple[str, str], int] | None = None) -> list[str]:
    """What is wrong with the kernels of a program, a line each. `spills`: a list of those that may, by kernel and architecture;
    by default as many bytes as a kernel says of itself."""
    found = []
    for kernel, binary in zip(code.kernels, binaries, strict=True):
        name, source = f"{code.name}/{kernel.name}", code.source(kernel)
        lines = [line for line in binary.warnings if "ptxas" in line]
        most = kernel.spills if spills is None else spills.get((name, binary.arch), 0)
        if binary.spills > most:
            lines.append(f"{binary.spills} bytes spill, {most} may: a smaller tile, or a line with its reason")
        elif spills is not None and most and not binary.spills:
            lines.append("nothing spills any more: take its line away")
        lines += faults(source, kernel.name, disassemble(binary.cubin))
        if kernel.schedule == "contraction":
            lines += beyond(source, kernel)
        found += [f"{name} for {binary.arch} ({kernel.why}): {line}" for line in lines]
    return found


def of_forms(code: Code) -> set[str]:
    """What a program's kernels multiply with."""
    names = ("wgmma", "mma.sync", "multiply-adds")
    return {name for kernel in code.kernels for name in names if name in kernel.why}


# -- the suite --------------------------------------------------------------------------------------------------------


@cache
def lowered(script: Path) -> driver.Lowered:
    return driver.lower_program(driver.compile_source(driver.read_source(script)).typed)


@needs_nvdisasm
@pytest.mark.parametrize(("name", "arch"), [
    pytest.param(name, arch, marks=() if (name, arch) in QUICK else pytest.mark.slow) for name in SUITE
    for arch in ("sm_90a", "sm_80")
])  # fmt: skip
def test_the_suite(name: str, arch: str) -> None:
    """Every script that is timed against peers, at its sizes."""
    workload, device = SUITE[name], DEVICES[arch]
    parsed = lowered(workload.path)
    sizes = workload.sizes(parsed.typed)
    program = driver.optimise(parsed, Options(sizes=sizes, device=device)).program
    made = make(program, sizes, device, arch, cache=CACHE)
    if workload.unit:
        fast = "wgmma" if arch == "sm_90a" and workload.unit != "f64" else "mma.sync"
        assert of_forms(made.code) == {"multiply-adds" if workload.unit == "f32" else fast}
    found = told(made.code, made.binaries, allowed())
    assert not found, "\n".join(found)


# -- every form of a contraction --------------------------------------------------------------------------------------


def emitted(text: str, sizes: Mapping[str, int], device: Any = H200, full: Mapping[str, int] | None = None) -> Code:
    program = driver.lower_program(driver.compile_source(Source("product", text)).typed)
    found = driver.optimise(program, Options(sizes=dict(full or sizes)))
    return emit(found.program, sizes, device, only="contraction")


def assert_lean(code: Code, arch: str = "sm_90a") -> None:
    found = told(code, compile_program(code, arch, cache=CACHE))
    assert not found, "\n".join(found)


CHOICES = [
    *((name, choice) for name in ("bias", "residual") for choice in (*by_warpgroups.TILES, *by_warpgroups.SHARED)),
    *(
        (name, choice)
        for name in ("columns of a map", "rows", "two outputs", "heads")
        for choice in by_warpgroups.TILES[1::3]
    ),
]


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize("name", by_warpgroups.SCRIPTS)
def test_scripts(name: str) -> None:
    assert_lean(emitted(*by_warpgroups.SCRIPTS[name]))


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize(("name", "choice"), CHOICES, ids=str)
def test_tiles(name: str, choice: contractions.Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    by_warpgroups.only(monkeypatch, choice)
    text, sizes = by_warpgroups.SCRIPTS[name]
    assert_lean(emitted(text, {"M": 300, "N": 520, "K": 648} if name in ("bias", "residual") else sizes))


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize(("name", "extents"), [(n, sets[0]) for n, (_, sets) in by_fragments.PROGRAMS.items()], ids=str)
def test_fragments(name: str, extents: tuple[int, ...]) -> None:
    text, _ = by_fragments.PROGRAMS[name]
    assert_lean(emitted(text, by_fragments.named(text, extents)))


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize("choice", (*by_fragments.TILES, *by_fragments.SHARED), ids=str)
@pytest.mark.parametrize("name", ["gelu", "tt"])
def test_tiles_of_fragments(name: str, choice: contractions.Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    by_warpgroups.only(monkeypatch, choice)
    assert_lean(emitted(by_fragments.PROGRAMS[name][0], {"M": 132, "N": 260, "K": 232}))


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize(("name", "extents"), by_rows.CASES, ids=str)
def test_rows(name: str, extents: tuple[int, int, int]) -> None:
    sizes = dict(zip("MNK", extents, strict=True))
    assert_lean(emitted(by_rows.PROGRAMS[name], sizes, by_rows.DEVICE, by_rows.FULL))


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize(
    "tile", [(64, 64), (128, 64), (64, 128), (128, 128), (64, 256), (128, 256), (64, 40), (128, 72)]
)
@pytest.mark.parametrize("name", ["layernorm", "both"])
def test_tiles_of_rows(name: str, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_kernel, "tiles", lambda *_: [tile])
    sizes = {"M": 300, "N": tile[1] * 3 - 24, "K": 72}
    assert_lean(emitted(by_rows.PROGRAMS[name], sizes, by_rows.DEVICE, by_rows.FULL))


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize("name", by_warps.PROGRAMS)
def test_warps(name: str) -> None:
    text, sets = by_warps.PROGRAMS[name]
    assert_lean(emitted(text, by_warps.named(text, sets[0]), A100), "sm_80")


@needs_nvdisasm
@pytest.mark.slow
@pytest.mark.parametrize("kind", by_warps.KINDS)
@pytest.mark.parametrize("how", by_warps.LAYOUTS)
def test_layouts_of_warps(kind: str, how: str) -> None:
    code = emitted(by_warps.layout(kind, *how), {"M": 136, "N": 272, "K": 144}, A100)
    assert of_forms(code) == {"mma.sync"}
    assert_lean(code, "sm_80")


# -- the checks can fail ----------------------------------------------------------------------------------------------

RELEASE, RELAXED, ACQUIRE = (
    f'asm volatile("barrier.cluster.{how}.aligned;" ::: "memory");'
    for how in ("arrive.release", "arrive.relaxed", "wait.acquire")
)
ALONE = {
    r"fence\.proxy\.async": "lf_async_fence();", r"fence\.mbarrier_init\.release\.cluster": "lf_bar_ready();",
    r"barrier\.cluster\.arrive\.release": RELEASE, r"barrier\.cluster\.arrive\.relaxed": RELAXED,
    r"barrier\.cluster\.wait\.acquire": ACQUIRE, r"__threadfence\(\)": "__threadfence();",
}  # fmt: skip


@needs_nvdisasm
def test_what_a_fence_becomes() -> None:
    """The table is what the assembler does in a kernel that has barriers in shared memory: with less, a fence too many would be
    allowed."""
    assert {*ALONE, r"wgmma\.fence", r"wgmma\.commit_group", r"wgmma\.wait_group"} == FENCES.keys()
    text = "\n".join(PRIMITIVES[n] for n in ("lf_shared_at", "lf_bar_arrive", "lf_bar_ready", "lf_async_fence"))
    for k, fence in enumerate(ALONE.values()):
        body = f"__shared__ unsigned long long bar; lf_bar_arrive(&bar); x[threadIdx.x] += 1; {fence} x[threadIdx.x + 64] += 1;"
        text += f'\nextern "C" __global__ void k{k}(volatile int* x) {{ {body} }}'
    sass = disassemble(compile_kernel(text, "k0", "sm_90a", contract=True).cubin)
    _, *parts = re.split(r"^\.text\.(k\d):$", sass, flags=re.MULTILINE)
    codes = dict(zip(parts[::2], parts[1::2], strict=True))
    for k, fence in enumerate(ALONE):
        assert counted(instructions(codes[f"k{k}"])) == needed(text, f"k{k}") == Counter(FENCES[fence]), fence


@cache
def product() -> tuple[Code, str]:
    """A kernel of a product of 1024, and its text."""
    text = "input a: bf16[M, K]\ninput b: bf16[K, N]\noutput o = a @ b\n"
    code = emitted(text, {"M": 1024, "N": 1024, "K": 1024})
    return code, code.kernels[0].text


def planted(before: str, after: str) -> list[str]:
    """What is said of the kernel of `product` once a line of it is another one."""
    code, text = product()
    start, end = text.rsplit(before, 1)
    code = replace(code, kernels=(replace(code.kernels[0], text=start + after + end),))
    return told(code, compile_program(code, "sm_90a", cache=CACHE))


@needs_nvdisasm
@pytest.mark.parametrize(("before", "after", "said"), [
    # Sums are read while the products run: the assembler waits for each of them.
    ("lf_mma_end();", "dot_sums[0][3] *= 2.0f; lf_mma_end();",
     ("(C75", "serialized", "4 WARPGROUP.ARRIVE", "4 WARPGROUP.DEPBAR", f"4 {GROUP}")),
    ("lf_mma_wait<1>();", "dot_sums[0][0] += 1.0f; lf_mma_wait<1>();", ("(C75", "WARPGROUP.DEPBAR, and the text asks for 2")),
    ("lf_mma_end();", "lf_mma_end(); __threadfence();", ("1 MEMBAR.SC.GPU in the text", "1 ERRBAR in the text")),
    ("lf_tile_store2(", "lf_async_fence(); lf_tile_store2(", ("2 MEMBAR.ALL.CTA in the text, and its skeleton needs 1",)),
], ids=["serialised", "an early read", "a fence of all memory", "a fence twice"])  # fmt: skip
def test_what_is_planted_is_found(before: str, after: str, said: tuple[str, ...]) -> None:
    found = "\n".join(planted(before, after))
    assert all(words in found for words in said), found


@needs_nvdisasm
def test_nothing_is_said_of_it_as_it_is() -> None:
    code, _ = product()
    binaries = compile_program(code, "sm_90a", cache=CACHE)
    assert told(code, binaries) == []
    has = counted(instructions(disassemble(binaries[0].cubin)))
    assert has == needed(code.source(code.kernels[0]), code.kernels[0].name), (
        "each fence of the text is found, and no other"
    )
    name = f"{code.name}/{code.kernels[0].name}"
    assert "take its line away" in str(told(code, binaries, {(name, "sm_90a"): 8}))
    spilling = [replace(binaries[0], spill_stores=4, spill_loads=8)]
    assert "12 bytes spill, 8 may" in str(told(code, spilling, {(name, "sm_90a"): 8}))


CODE = "".join(f"        /*{16 * k:04x}*/                   {op} ;\n" for k, op in enumerate((
    "WARPGROUP.ARRIVE", "HGMMA.64x64x16.F32 R24, gdesc[UR4], !UPT", "@P0 LDL R3, [R1]", "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24, gsb0",
    "WARPGROUP.DEPBAR.LE gsb0, 0x0", "STL [R1], R3", "EXIT")))  # fmt: skip
TEXT = ('__device__ void begin() { asm("wgmma.fence;"); }\n__device__ void end() { asm("wgmma.commit_group;"); }\n'
        'extern "C" __global__ void k() { begin(); end(); asm("wgmma.wait_group 0;"); }\n')  # fmt: skip


def test_spills_within_a_stage_are_found() -> None:
    """Those around it are not: they are the compiler's to tell."""
    assert faults(TEXT, "k", CODE) == ["LDL R3, [R1] between the products of a stage"]
    assert faults(TEXT, "k", CODE.replace("@P0 LDL R3, [R1]", "NOP")) == []
    assert faults(TEXT, "k", CODE.replace("WARPGROUP.ARRIVE", "NOP"))[0] == "2 products outside of a stage"
    assert "without an end" in str(faults(TEXT, "k", CODE.replace(", gsb0 ;", " ;")))
    assert "the machine code none" in str(
        faults(TEXT, "k", CODE.replace("HGMMA", "HMMA").replace("WARPGROUP.ARRIVE", "NOP"))
    )
    assert "MEMBAR.SC.GPU" in str(faults(TEXT, "k", CODE.replace("@P0 LDL R3, [R1]", "MEMBAR.SC.GPU")))
    with pytest.raises(AssertionError, match="not read as a disassembly"):
        faults(TEXT, "k", "EXIT")


def test_a_fence_without_a_row_is_found() -> None:
    """A text that orders memory in a new way must say what that becomes."""
    assert needed(TEXT, "k") == {"WARPGROUP.ARRIVE": 1, GROUP: 1, "WARPGROUP.DEPBAR": 1}
    for order in ("fence.acq_rel.gpu", "mbarrier.arrive.release.cluster", "membar.sys", "ld.acquire.gpu"):
        with pytest.raises(AssertionError, match="does not stand in FENCES"):
            needed(TEXT.replace("wgmma.wait_group 0", order), "k")
    twice = TEXT.replace("k() { begin();", "k() { begin(); begin(); // begin();\n")
    assert needed(twice, "k")["WARPGROUP.ARRIVE"] == 2
    assert functions(twice).keys() == {"begin", "end", "k"}


def test_every_spill_that_is_listed_is_of_a_kernel() -> None:
    """Of an example or of the suite."""
    examples = {p.stem for p in (Path(__file__).parents[1] / "examples").glob("*.lf")}
    scripts = {w.path.stem for w in SUITE.values()} | examples
    assert {name.split("/")[0].removeprefix("p_") for name, _ in allowed()} <= scripts
