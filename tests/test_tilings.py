"""`explain --kernel` on contractions: instructions, tile, waves, roof, what follows the products, and why not faster ones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from cli_shell import Shell
from test_cli_passes import shell

from loopfuse import driver
from loopfuse.bench.rows import Row
from loopfuse.bench.work import predicted
from loopfuse.cli import running
from loopfuse.cli.frame import Context
from loopfuse.cuda import binary as cuda
from loopfuse.cuda.binary import Binary
from loopfuse.cuda.cache import open_cache
from loopfuse.devices import A100, H200
from loopfuse.driver import Clock
from loopfuse.emit.code import Code, Tiling
from loopfuse.emit.program import NO_COST, emit
from loopfuse.passes import Options
from loopfuse.schedule.plan import Plan
from loopfuse.views import tilings
from loopfuse.views.estimates import estimates
from loopfuse.views.launches import launches
from loopfuse.views.plans import Planned, plan
from tests.bench.workloads import WORKLOADS
from tests.cuda_code import everything

__all__ = ["shell"]

TYPED = "input a: {0}[M, K]\ninput b: {0}[K, N]\n"
GELU = f"import nn\n{TYPED.format('bf16')}input c: bf16[N]\noutput o = nn.gelu_tanh(a @ b + c)\n"
SQUARE = "M=4096,N=4096,K=4096"


def kernel(shell: Shell, text: str, dims: str = SQUARE, *more: str) -> dict[str, list[str]]:
    """The rows of the table of the kernel `k1`, by their names."""
    shell.write("c.lf", text)
    assert shell("explain", "c.lf", "--kernel", "k1", *(("--dims", dims) if dims else ()), *more) == 0
    part = shell.out[shell.out.index("\nwritten by") :]
    found: dict[str, list[str]] = {}
    for name, words in re.findall(r"^  (\w+)  +(\S.*)$", part, re.MULTILINE):
        found.setdefault(name, []).append(words)
    return found


def record(shell: Shell, text: str, dims: str = SQUARE, *more: str) -> dict[str, Any]:
    """The same as JSON."""
    shell.write("c.lf", text)
    assert shell("explain", "c.lf", "--kernel", "k1", "--dims", dims, "--json", *more) == 0
    (found,) = shell.records("cost")
    return found


def told(code: Code, kernel: str, *more: Any) -> list[str]:
    """The lines about a kernel of code that is launched as it says, for some sizes."""
    return tilings.lines(code, kernel, H200, launches(code, {"N": 64, "T": 3})[kernel], *more)


def lower(name: str, shell: Shell) -> driver.Lowered:
    """A script of the shell's folder as it is before passes."""
    return driver.lower_program(driver.compile_source(driver.read_source(shell.folder / name)).typed)


def test_products_of_warpgroups(shell: Shell) -> None:
    rows = kernel(shell, GELU)
    assert rows["by"] == ["wgmma bf16"]
    assert re.match(r"128 x \d+ (by|for each of) 2 warpgroups", rows["tile"][0])
    assert re.match(r"\d stages of 64 of the sum, 64 of them a tile; \d slots", rows["ring"][0])
    assert re.match(r"\d+ registers a thread", rows["results"][0])
    assert re.match(r"not compiled here|\d+ a thread, ", rows["registers"][0])
    assert re.match(r"132 of 384 threads, \d+ KiB shared", rows["blocks"][0])
    assert re.match(r"\d+, the last one \d+% full \(\d+ tiles, 132 at once\)", rows["waves"][0])
    assert re.match(r"\d+ us, \d\d% of the bf16 peak of the matrix units", rows["predicted"][0])
    assert re.search(r"\d+ clocks of a tile, \d+% of its time", rows["epilogue"][0])
    assert (rows["in"], rows["out"]) == (["c once a tile"], ["o as tiles"])
    assert "not" not in rows
    assert "for" not in rows


def test_what_is_printed_is_what_is_emitted(shell: Shell) -> None:
    """The tile of the text, the grid and the record are one."""
    found = record(shell, GELU)
    (tiling,) = found["tilings"]
    assert shell("ir", "c.lf", "--emit", "cuda", "--dims", SQUARE) == 0
    assert f"tiles of {tiling['rows']} x {tiling['columns']} by" in shell.out
    assert f"{tiling['stages']} stages of {tiling['depth']}, {tiling['path']}" in shell.out
    assert tiling["waves"] == -(-tiling["tiles"] // tiling["at_once"])
    assert 0 < tiling["last_wave"] <= 1
    assert 0.5 < tiling["share"] < 1
    assert 0 < tiling["exposed"] < 0.5
    assert tiling["operations"] == 2 * 4096**3
    assert (found["faster"], tiling["roof"]) == ([], "bf16 peak of the matrix units")


def test_a_pitch_that_no_tile_map_takes(shell: Shell) -> None:
    rows = kernel(shell, GELU, "M=4096,N=4095,K=4096")
    assert rows["by"] == ["mma.sync bf16"]
    assert rows["not"] == ["wgmma: the rows of `b` are not a multiple of 16 bytes apart; they have 4095 elements; rows padded to "
                           "4096 would lift it"]  # fmt: skip
    assert "not faster contraction" not in shell.out
    rows = kernel(shell, GELU, "")
    assert rows["for"] == ["any M, K, N; `--dims` shows the kernel for given ones"]
    assert [w for w in rows["not"] if "`require K % 8 == 0`" in w or "`require N % 8 == 0`" in w] == rows["not"]
    assert len(rows["not"]) == 2
    rows = kernel(shell, f"{GELU}require K % 8 == 0 and N % 8 == 0\n", "")
    assert rows["by"] == ["wgmma bf16"]


def test_other_layouts_and_types(shell: Shell) -> None:
    rows = kernel(shell, TYPED.format("f32") + "output o = a @ b\n", "M=512,N=512,K=512")
    assert rows["by"] == ["multiply-adds of f32"]
    assert rows["not"] == ["wgmma and mma.sync: products of f32 stay at f32; `pragma tf32`, or `numerics fast`, would round "
                           "their operands to tf32"]  # fmt: skip
    assert "of the f32 peak of the ordinary units" in rows["predicted"][0]
    rows = kernel(shell, "pragma tf32\n" + TYPED.format("f32") + "output o = a @ b\n")
    assert rows["by"] == ["wgmma tf32, the left operand through registers"]
    rows = kernel(shell, TYPED.format("f64") + "output o = a @ b\n", "M=512,N=512,K=512")
    assert rows["by"] == ["mma.sync f64"]
    assert "none for f64" in rows["not"][0]
    assert "of the f64 peak of the matrix units" in rows["predicted"][0]
    rows = kernel(shell, "numerics strict\n" + TYPED.format("f64") + "output o = a @ b\n", "M=512,N=512,K=512")
    assert rows["by"] == ["multiply-adds of f64"]
    assert "mma.sync: strict numerics round products of f64 before they are added" in rows["not"][1]
    rows = kernel(shell, TYPED.format("bf16") + "output o = exp(a) @ b\n", "M=512,N=512,K=512")
    assert "the operand over `a` is computed in f32" in rows["not"][0]
    rows = kernel(shell, TYPED.format("bf16") + "output o = a[::-1] @ b\n", "M=512,N=512,K=512")
    assert rows["not"] == ["wgmma: `a` is read backwards; a copy in order would lift it"]


def test_without_warpgroups(shell: Shell) -> None:
    rows = kernel(shell, GELU, SQUARE, "--device", "a100")
    assert rows["by"] == ["mma.sync bf16"]
    assert "108 at once" in rows["waves"][0]
    assert rows["not"] == ["wgmma: the device has no warpgroup products"]
    (tiling,) = record(shell, GELU, SQUARE, "--device", "a100")["tilings"]
    assert 0.5 < tiling["share"] < 1


def test_several_products_folds_and_cut_sums(shell: Shell) -> None:
    swiglu = "import nn\ninput a: bf16[M, K]\ninput b: bf16[K, 2 * N]\nlet h = a @ b\noutput o = nn.silu(h[:, :N]) * h[:, N:]\n"
    assert " of each of 2 products " in kernel(shell, swiglu)["tile"][0]
    rows = kernel(shell, TYPED.format("bf16") + "output s = sum(f32(a @ b), axis=0)\n")
    assert rows["folds"]
    for dtype in ("f32", "f64"):
        rows = kernel(shell, TYPED.format(dtype) + "output o = a @ b\n", "M=128,N=128,K=65536")
        assert re.search(r"each sum cut into \d+ parts, which a second kernel adds", rows["tile"][0])
        assert rows["epilogue"] == ["in the second kernel"]
        assert "parts, " in rows["waves"][0]
    row = "import nn\ninput a: bf16[M, K]\ninput b: bf16[K, N]\noutput o = nn.softmax(f32(a @ b))\n"
    rows = kernel(shell, row, "M=17280,N=1024,K=1024")
    assert re.search(r"clusters of \d blocks hold whole rows", rows["tile"][0])
    assert len(rows["folds"]) == 1


def test_the_costs_name_the_instructions(shell: Shell) -> None:
    shell.write("c.lf", GELU)
    assert shell("explain", "c.lf", "--cost", "--dims", SQUARE) == 0
    assert re.search(
        r"^k1 is written by contraction \(1 kernel\), by wgmma bf16; \d+ declined$", shell.out, re.MULTILINE
    )
    assert shell("explain", "s.lf", "--cost", "--json") == 0
    assert all("tilings" not in r for r in shell.records("cost"))


TURNS = Tiling("wgmma bf16", "bf16", True, 128, 192, "2 warpgroups", 4, 64, 192, 300, 132, 64, 2e-4, 10**11, 10**8, turns=True,
               main=50_000.0, epilogue=1000.0)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "hidden behind the other consumer's products, but for 1000 clocks of a tile, 2% of its time"),
     ({"tiles": 100}, "1000 clocks of a tile, 2% of its time, which no product hides"),
     ({"turns": False, "resident": 2, "at_once": 264}, "the rest is hidden behind the other block's products"),
     ({"turns": False, "resident": 2, "at_once": 264, "tiles": 100}, "which no product hides"),
     ({"split": 4}, "4 blocks of a cluster share each sum"), ({"tiles": 0}, "0: 0 of 132 multiprocessors have work, 0% (0 tiles)"),
     ({"tiles": 1}, "1: 1 of 132 multiprocessors have work, 1% (1 tile)"),
     ({"tiles": 88, "at_once": 88}, "1: 88 of 132 multiprocessors have work, 67% (88 tiles)"),
     ({"tiles": 33, "at_once": 33, "split": 4}, "1: 132 of 132 multiprocessors have work, 100% (33 tiles)"),
     ({"tiles": 66, "at_once": 264, "resident": 2}, "1: 66 of 132 multiprocessors have work, 50% (66 tiles, 25% of the places)"),
     ({"tiles": 264}, "2, the last one 100% full (264 tiles, 132 at once)"),
     ({"tiles": 150, "at_once": 88}, "2, the last one 70% full (150 tiles, 88 at once on 88 of 132 multiprocessors)"),
     ({"comes": ("r",), "reads": ("x", "y"), "once": ("c",)}, "r as tiles; x, y by elements; c once a tile"),
     ({"bytes": 10**12}, "of the bandwidth of memory"), ({"seconds": 0.0}, "0 us")],
)  # fmt: skip
def test_words(changes: dict[str, Any], words: str) -> None:
    code = everything()
    first, second = code.kernels
    code = replace(code, kernels=(first, replace(second, tiling=replace(TURNS, **changes))))
    assert words in "\n".join(told(code, second.kernel))
    assert not any(line.startswith(("tile", "ring", "waves")) for line in told(code, first.kernel))
    assert tilings.as_record(code, second.kernel, A100)["faster"] == []


def test_what_a_call_should_take_beside_what_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row("s.lf", "cuda", "default", median=2e-4, samples=9, roof=1e-4, bound="compute", predicted=1.25e-4)
    running.show_times(Context(), Clock(), row)
    assert "50% of the compute roof, 125 us predicted" in capsys.readouterr().err
    assert row.as_record()["expected"] == pytest.approx(0.8)
    assert replace(row, predicted=None).expected is None


def test_the_prediction_is_that_of_the_tiles() -> None:
    code = everything()
    program: Any = type("", (), {"kernels": (type("", (), {"id": code.kernels[1].kernel, "body": ()}),)})
    made = Plan("contraction", {}, (), NO_COST)
    planned = Planned(program, H200, {"k3": made}, {}, {"N": 64, "T": 3}, frozenset(), {"k3": (made,)}, {})
    assert predicted(code, planned) == 1.5e-4
    assert predicted(code, replace(planned, plans={})) is None


def test_one_number(shell: Shell) -> None:
    """What a kernel should take is the same wherever it is shown, and of the tiles that it has."""
    (tiling,) = (found := record(shell, GELU))["tilings"]
    assert found["of"] == "tiles"
    assert found["us"] == tiling["seconds"] * 1e6
    rows = kernel(shell, GELU)
    said = re.search(r"^estimate +(\S+ us), by its tiles, bound by compute$", shell.out, re.MULTILINE)
    assert said and rows["predicted"][0].startswith(f"{said[1]}, ")
    assert not re.search(r"^(tiles|path|shared|registers) ", shell.out, re.MULTILINE)
    assert shell("explain", "c.lf", "--cost", "--dims", SQUARE) == 0
    (line,) = [x for x in shell.out.splitlines() if x.startswith("k1 ") and "written" not in x]
    assert f"{line.split()[-1]} us" == said[1]


def test_the_number_of_another_plan(shell: Shell) -> None:
    """A kernel has the estimate of the plan by which it was written; where nothing writes the cheapest one, that is said."""
    shell.write("c.lf", "input u: f32[N]\nlet a[i in 0..N] = exp(edge(u)[i - 1]) + exp(edge(u)[i + 1])\n"
                "output b[i in 0..N] = exp(edge(a)[i - 1]) + exp(edge(a)[i + 1])\npragma fuse(a, b)\n")  # fmt: skip
    assert shell("explain", "c.lf", "--cost", "--dims", "N=2^20", "--json") == 0
    (found,) = shell.records("cost")
    assert (found["of"], found["schedule"], found["emitter"]) == ("another", "stencil", "general")
    assert shell("explain", "c.lf", "--kernel", "k1", "--dims", "N=2^20") == 0
    assert "us, bound by memory, if stencil wrote it; as written it has no estimate" in shell.out
    assert shell("explain", "c.lf", "--cost", "--dims", "N=2^20") == 0
    assert re.search(r"^k1 .*\d\*$", shell.out, re.MULTILINE)
    assert "* of a schedule that nothing writes yet" in shell.out


def test_registers_are_known_once_compiled(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(shell.folder / "cache"))
    assert kernel(shell, GELU)["registers"][0].startswith("not compiled here, so not known: `--compile` tells")
    program = driver.optimise(lower("c.lf", shell), Options(sizes={"M": 4096, "N": 4096, "K": 4096})).program
    (made,) = (code := emit(program, {"M": 4096, "N": 4096, "K": 4096})).kernels
    kept = Binary(cubin=b"", name=made.name, arch="sm_90a", compiler="nvrtc 13", registers=151)
    open_cache().put_kernel(code.source(made), "sm_90a", cuda.Options(), kept)
    assert kernel(shell, GELU)["registers"] == ["151 a thread, no spills (sm_90a, nvrtc 13)"]
    code = everything()
    had = {"k3": Binary(cubin=b"", name="k3", arch="sm_90a", compiler="nvrtc 13", registers=168)}
    first, second = code.kernels
    code = replace(code, kernels=(first, replace(second, tiling=TURNS)))
    assert "registers  168 a thread, no spills (sm_90a, nvrtc 13)" in told(code, "k3", had)
    spilled = {"k3": replace(had["k3"], spill_loads=8)}
    assert "registers  168 a thread, 8 bytes of spills (sm_90a, nvrtc 13)" in told(code, "k3", spilled)
    (facts,) = tilings.as_record(code, "k3", H200, had, 4e-4)["tilings"]
    assert (facts["registers"], facts["spills"], facts["measured"]) == (168, 0, 4e-4)
    assert facts["measured_share"] == pytest.approx(facts["share"] / 2)
    assert "measured   400 us, 32% of it" in told(code, "k3", had, 4e-4)
    assert shell("explain", "c.lf", "--compile") == 2
    assert "--compile is for one kernel: give --kernel too" in shell.err


@pytest.mark.parametrize(
    ("name", "within"),
    [("matmul_bf16_4096", 1e-9), ("matmul_bf16_1024", 1e-9), ("matmul_bf16_256x8192x8192", 1e-9),
     ("swiglu_bf16", 1e-9), ("qkv_gqa_bf16", 1e-9), ("matmul_residual_ln_bf16", 1e-9),
     ("linear_residual_bf16_k768", 1e-9), ("linear_gelu_f32_4096", 0.03), ("matmul_f64_4096", 0.06)],
)  # fmt: skip
def test_fusion_decides_by_the_same_model(name: str, within: float) -> None:
    """Of products of warpgroups the plan that decided has the estimate of the tiles that were then chosen."""
    workload = WORKLOADS[name]
    typed = driver.compile_source(driver.read_source(workload.path)).typed
    sizes = workload.sizes(typed)
    done = driver.optimise(driver.lower_program(typed), Options(sizes=sizes))
    planned = plan(done.program, H200, sizes, done.stages)
    code = emit(done.program, sizes)
    for id, found in estimates(planned, code).items():
        assert found.of == "tiles"
        assert found.seconds == pytest.approx(planned.plans[id].cost.seconds, rel=within)


def test_past_its_edges_an_operand_is_computed(shell: Shell) -> None:
    """The plan and the kernel say so alike, and what one computed operand costs, a second one costs once more."""
    text = (
        "input x: f16[N, H, W, C]\ninput w: f16[3, 3, C, K]\noutput y[n, i in 0..H, j in 0..W, k] = "
        "sum(f32(constant(x, 0)[n, i + r - 1, j + s - 1, c]) * f32({}) for r, s, c)\n"
    )
    burden = r"^prologue .*the left operand \(of `x`\).*, and the products run at (0\.\d\d) of their rate"
    for right, rate in (("w[r, s, c, k]", "0.60"), ("maximum(w[r, s, c, k], 0)", "0.51")):
        rows = kernel(shell, text.format(right), "N=32,H=56,W=56,C=64,K=64")
        assert rows["by"] == ["mma.sync f16"]
        found = re.search(burden, shell.out, re.MULTILINE)
        assert found and found[1] == rate
