"""Contractions whose results wait for their whole row: right at every extent, in any order of threads; one lean kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulator import available, build
from gpu_cases import Judge
from test_cuda_arches import assert_compiles
from test_emit_rows import results

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.devices import H200
from loopfuse.diag import Source
from loopfuse.driver import Lowered, Optimised
from loopfuse.emit.code import Code, Launch
from loopfuse.emit.matrix import row_kernel
from loopfuse.emit.program import emit
from loopfuse.passes import Options
from loopfuse.reader import parse_program

DEVICE = replace(H200, units=32)  # clusters take several tiles each
FULL = {"M": 16384, "N": 1024, "K": 1024}  # for which all of a program becomes one kernel
PEERS = Path(__file__).parent / "bench" / "peers"
emulated = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

AB = "import nn\ninput a: bf16[M, K]\ninput b: bf16[K, N]\n"
HALF = "import nn\ninput a: f16[M, K]\ninput b: f16[K, N]\n"
TF32 = "pragma tf32\nimport nn\ninput a: f32[M, K]\ninput b: f32[N, K]\n"
PROGRAMS: dict[str, str] = {
    "layernorm": AB + "input c: bf16[N]\ninput r: bf16[M, N]\ninput w: bf16[N]\ninput v: bf16[N]\n"
    "output o = nn.layernorm(a @ b + c + r, w, v)\n",
    "layernorm f16": HALF + "input w: f16[N]\ninput v: f16[N]\noutput o = nn.layernorm(a @ b, w, v)\n",
    "layernorm f32": AB + "input w: f32[N]\ninput v: f32[N]\noutput o = nn.layernorm(f32(a @ b), w, v)\n",
    "rmsnorm": AB + "input w: bf16[N]\noutput o = nn.rmsnorm(a @ b, w)\n",
    "softmax": AB + "input c: bf16[N]\noutput o = nn.softmax(a @ b + c)\n",
    "softmax tf32": TF32 + "output o = nn.softmax(a @ b.T)\n",
    "log softmax": TF32 + "output o = nn.log_softmax(a @ b.T)\n",
    "log-sum-exp": HALF + "let h = f32(a @ b)\nlet m = max(h, axis=1)\n"
    "output o = m + log(sum(exp(h - m[:, None]), axis=1))\n",
    "both": AB + "input r: bf16[M, N]\nlet h = a @ b + r\noutput p = h\noutput o = nn.softmax(h)\n",
    "weighted rows": AB + "input r: bf16[M, N]\nlet p = nn.softmax(f32(a @ b))\n"
    "output s[i] = sum(p[i, j] * f32(r[i, j]) for j)\n",
    "scaled rows": AB + "input s: f32[M]\nlet h = f32(a @ b) * s[:, None]\n"
    "output o = bf16(h / (1.0 + max(abs(h), axis=1)[:, None]))\noutput m = max(abs(h), axis=1)\n",
    "dual": AB + "input c: bf16[K, N]\ninput w: bf16[N]\noutput o = nn.rmsnorm(nn.silu(a @ b) * (a @ c), w)\n",
    "centred": AB + "let h = f32(a @ b)\noutput o = h - mean(h, axis=1)[:, None]\noutput k = argmax(h, axis=1)\n",
    "two shifts": AB + "let h = f32(a @ b)\nlet m = mean(h, axis=1)[:, None]\nlet v = mean((h - m) * (h - m), axis=1)[:, None]\n"
    "let d = h - 0.5 * max(h, axis=1)[:, None]\noutput o = bf16((d * d + d) * rsqrt(v + 1.0))\n",
    "shift and value": AB + "let h = f32(a @ b)\nlet m = mean(h, axis=1)[:, None]\nlet v = mean((h - m) * (h - m), axis=1)[:, None]\n"
    "output o = bf16((h - m) * rsqrt(v + 1.0) + h)\n",
}  # fmt: skip
EXTENTS = ((130, 256, 64), (70, 520, 40), (130, 200, 72), (65, 1024, 16), (5, 64, 8))
CASES = [(name, e) for k, name in enumerate(PROGRAMS) for e in (EXTENTS[k % 2], EXTENTS[2 + k % 3])]


def compiled(text: str, sizes: Mapping[str, int] = FULL) -> tuple[Lowered, Optimised]:
    lowered = driver.lower_program(driver.compile_source(Source("rows", text)).typed)
    return lowered, driver.optimise(lowered, Options(sizes=dict(sizes)))


def judged(text: str, extents: tuple[int, int, int], full: Mapping[str, int] = FULL) -> Code:
    """A program fused for sizes at which all of it becomes one kernel, at others."""
    lowered, optimised = compiled(text, full)
    return checked(lowered, optimised, dict(zip("MNK", extents, strict=True)))


def checked(lowered: Lowered, optimised: Optimised, sizes: Mapping[str, int]) -> Code:
    """Within the derived bound, whatever the order of threads."""
    code = emit(optimised.program, sizes, DEVICE, only="contraction")
    bound = driver.bind_program(lowered.typed, Given({}, dims=dict(sizes), seed=0, fill=True))
    found = results(code, optimised.program, driver.run_inputs(optimised, bound), sizes)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem
    return code


def by_rows(code: Code) -> bool:
    (kernel,) = code.kernels
    return "wgmma" in kernel.why


@emulated
@pytest.mark.parametrize(("name", "extents"), CASES, ids=str)
def test_programs(name: str, extents: tuple[int, int, int]) -> None:
    full = FULL | {"N": 256} if name == "dual" else FULL  # of longer rows two kernels are taken for faster
    assert by_rows(code := judged(PROGRAMS[name], extents, full)), code.refusals


@emulated
@pytest.mark.parametrize(
    "tile",
    [(64, 64), (128, 64), (64, 128), (128, 128), (64, 256), (128, 256), (192, 256), (192, 136), (64, 40), (128, 72)],
    ids=str,
)
@pytest.mark.parametrize("name", ["layernorm", "both"])
def test_tiles(name: str, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile, whatever is best: one block or several, of one to three consumers, results as tiles or by elements."""
    monkeypatch.setattr(row_kernel, "tiles", lambda *_: [tile])
    columns = tile[1] * 3 - 24
    assert judged(PROGRAMS[name], (300, columns, 72)).kernels[0].cluster == 3
    assert judged(PROGRAMS[name], (66, tile[1] - 8, 8)).kernels[0].cluster == 1


@emulated
@pytest.mark.parametrize("extents", [(70, 1, 40), (3, 7, 64), (1, 64, 0), (0, 64, 16), (200, 24, 8)], ids=str)
@pytest.mark.parametrize("name", ["layernorm", "softmax"])
def test_few(name: str, extents: tuple[int, int, int]) -> None:
    """Rows of one element, none, sums of nothing; rows that are no multiple of 16 bytes are left to other kernels."""
    judged(PROGRAMS[name], extents)


@emulated
@pytest.mark.parametrize("name", ["softmax", "layernorm", "log-sum-exp"])
@pytest.mark.parametrize("columns", [200, 520])
def test_values_that_are_no_numbers(name: str, columns: int) -> None:
    """Infinities and NaNs stay in their rows; where all of a row is minus infinity there is no greatest value."""
    sizes = {"M": 70, "N": columns, "K": 72}
    lowered, optimised = compiled(PROGRAMS[name])
    code = emit(optimised.program, sizes, DEVICE, only="contraction")
    assert by_rows(code), code.refusals
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=1, fill=True))
    a = bound.inputs["a"]
    a[3, 5], a[8, 71], a[9, 0], a[69, 1] = np.inf, -np.inf, np.nan, np.inf
    bound.inputs["b"][0, :] = 1.0
    a[4, 0] = -np.inf  # all of a row
    if name == "softmax":
        bound.inputs["c"][[0, columns - 1]] = -np.inf
    arrays = driver.run_inputs(optimised, bound)
    outputs = {
        b.id: (b.dtype, [int(p.value(sizes)) for p in b.shape]) for b in optimised.program.buffers if b.role == "out"
    }
    found = build(code).check({n: arrays[n] for n in code.inputs}, {}, {}, outputs)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem


@emulated
def test_columns() -> None:
    """What follows waits for a column: the right operand is along the rows."""
    text = "import nn\ninput a: bf16[M, K]\ninput b: bf16[K, N]\noutput o = nn.softmax((a @ b).T)\n"
    assert by_rows(code := judged(text, (256, 72, 40), FULL | {"M": 1024, "N": 16384})), code.refusals


PIVOTS: dict[str, tuple[str, bool]] = {
    "variance": ("o[i] = q / {f}(n)", True), "shifted mean": ("o[i] = s / {f}(n) + c", True),
    "shifted sum": ("o[i] = s", False), "sum of squares": ("o[i] = q + s * s", False),
    "moved twice": ("o[i] = s / {f}(n) + c + c", False),
}  # fmt: skip


@pytest.mark.parametrize("name", PIVOTS)
def test_pivots(name: str) -> None:
    """A pivot goes only where nothing that is stored moves with it."""
    value, gone = PIVOTS[name]
    text = f"""
program pivots(M, K, N)
buf a: bf16[M, K] in
buf b: bf16[K, N] in
buf o: f32[M] out
kernel k1
  par i < M
    fold k.1 < K
      acc e: f32 sum
      e <- f32'(a[i, k.1]) * f32'(b[k.1, 0])
    c = e if isfinite(e) else 0.0f32
    fold j < N
      acc s: f32 sum
      acc n: i64 sum
      acc q: f32 sum repair self + f32(n.old) * ((s.old / f32(n.old) - s.new / f32(n.new)) * (s.old / f32(n.old) - s.new / f32(n.new))) if n.old != 0i64 else self
      fold k < K
        acc dot: f32 sum
        dot <- f32'(a[i, k]) * f32'(b[k, j])
      d = dot - c
      s <- d
      n <- 1i64
      m = s / f32(n)
      g = d - m
      q <- g * g
    {value.format(f="f32")}
"""
    program = parse_program(text.lstrip("\n"))
    code = emit(program, FULL, only="contraction")
    assert by_rows(code) == gone, code.refusals
    assert gone or "depends on `c`" in str(code.refusals)


@pytest.mark.parametrize("name", ["layernorm", "softmax", "softmax tf32", "both", "layernorm f32", "log-sum-exp"])
def test_compiles_without_spills(name: str) -> None:
    _, optimised = compiled(PROGRAMS[name])
    code = emit(optimised.program, FULL)
    assert by_rows(code), code.refusals
    assert_compiles(code, "sm_90a")


def test_structure() -> None:
    """A linear layer, its residual and the norm of the sum: one kernel, of four blocks a row, the residual as tiles."""
    _, optimised = compiled((PEERS / "matmul_residual_ln.lf").read_text("utf-8"))
    code = emit(optimised.program, FULL)
    (kernel,) = code.kernels
    assert kernel.cluster == 4 and "tiles of 192 x 256" in kernel.why
    assert kernel.text.count("lf_bar_wait(bar") == 2  # the sum, then the squares; no product for a pivot
    assert "d_2_held" in kernel.text and "mean_1" not in kernel.text  # the norm takes what the variance made
    assert "r_tiles" in kernel.text and "o_tiles" in kernel.text and not code.memory
    (launch,) = code.steps
    assert isinstance(launch, Launch) and launch.grid[0].constant == 116  # three tiles a cluster


@emulated
def test_batches() -> None:
    """Rows of several products."""
    text = (
        "import nn\ninput a: bf16[B, M, K]\ninput b: bf16[B, K, N]\ninput c: bf16[N]\ninput r: bf16[B, M, N]\n"
        "output o = nn.rmsnorm(a @ b + r, c)\n"
    )
    lowered, optimised = compiled(text, {"B": 15, "M": 1152, "N": 1024, "K": 1024})
    sizes = {"B": 3, "M": 70, "N": 520, "K": 40}
    assert by_rows(code := checked(lowered, optimised, sizes)), code.refusals


@pytest.mark.parametrize(("text", "full"), [
    ("input a: f32[M, K]\ninput b: f32[K, N]\n", FULL),  # f32 stays f32: no matrix units
    ("pragma tf32\ninput a: f32[M, K]\ninput b: f32[K, N]\n", FULL),  # the right operand lies along the result
    ("input a: bf16[M, K]\ninput b: bf16[K, N]\n", FULL | {"N": 1023}),  # rows of no multiple of 16 bytes
    ("input a: bf16[M, K]\ninput b: bf16[K, N]\n", FULL | {"N": 8192}),  # more than a cluster holds
], ids=["f32", "tf32", "odd", "wide"])  # fmt: skip
def test_rows_that_no_kernel_holds(text: str, full: Mapping[str, int]) -> None:
    """What no cluster can hold is not made one kernel."""
    _, optimised = compiled("import nn\n" + text + "output o = nn.softmax(a @ b)\n", full)
    assert len(optimised.program.kernels) == 2
