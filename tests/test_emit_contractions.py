"""Contractions by warpgroup products: right for every layout, tile and epilogue, at extents that divide nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from emulator import available
from gpu_cases import Judge
from test_emit_rows import results

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.devices import H200
from loopfuse.diag import Source
from loopfuse.emit import contractions
from loopfuse.emit.code import Code
from loopfuse.emit.contractions import Choice
from loopfuse.emit.program import emit
from loopfuse.passes import Options

FEW = replace(H200, units=3)  # so that a block takes several tiles, and passes
LINEAR = "input a: bf16[M, K]\ninput b: bf16[K, N]\n"
# Tiles of every kind: in turns, together, one consumer; with one part of 64 columns, with more than there are slots.
TILES = (
    Choice(128, 192, True, 3), Choice(128, 128, True, 2), Choice(128, 64, True, 4), Choice(128, 256, False, 2),
    Choice(128, 64, False, 2), Choice(256, 128, False, 2), Choice(64, 128, False, 2), Choice(64, 64, False, 3),
    Choice(64, 8, False, 2), Choice(64, 40, False, 2),
)  # fmt: skip
SHARED = (Choice(128, 256, False, 2, 2), Choice(128, 256, False, 2, 4), Choice(128, 128, False, 3, 2),
          Choice(64, 128, False, 2, 2))  # fmt: skip

SCRIPTS: dict[str, tuple[str, dict[str, int]]] = {
    "nn": (LINEAR + "output o = a @ b\n", {"M": 200, "N": 264, "K": 136}),
    "nt": ("input a: bf16[M, K]\ninput b: bf16[N, K]\noutput o = a @ transpose(b)\n", {"M": 130, "N": 200, "K": 72}),
    "tn": ("input a: f16[K, M]\ninput b: f16[K, N]\noutput o = transpose(a) @ b\n", {"M": 136, "N": 72, "K": 200}),
    "tt": ("input a: bf16[K, M]\ninput b: bf16[N, K]\noutput o = transpose(a) @ transpose(b)\n",
           {"M": 72, "N": 200, "K": 136}),
    "turned": ("input a: bf16[M, K]\ninput b: bf16[K, N]\noutput o = transpose(a @ b)\n", {"M": 200, "N": 136, "K": 64}),
    "one": (LINEAR + "output o = a @ b\n", {"M": 1, "N": 8, "K": 8}),
    "no depth": (LINEAR + "output o = a @ b + 1\n", {"M": 70, "N": 72, "K": 0}),
    "no rows": (LINEAR + "output o = a @ b\n", {"M": 0, "N": 72, "K": 64}),
    "odd rows of the result": ("input a: bf16[M, K]\ninput b: bf16[N, K]\noutput o = a @ transpose(b)\n",
                               {"M": 67, "N": 131, "K": 64}),
    "bias": (LINEAR + "input c: bf16[N]\noutput o = a @ b + c\n", {"M": 200, "N": 264, "K": 72}),
    "row and column": (LINEAR + "input c: bf16[N]\ninput r: f32[M]\nlet h = f32(a @ b)\n"
                       "output o[i, j] = bf16((h[i, j] + c[j]) * r[i])\n",
                       {"M": 200, "N": 264, "K": 72}),
    "residual": (LINEAR + "input c: bf16[N]\ninput r: bf16[M, N]\noutput o = maximum(a @ b + c, 0) + r\n",
                 {"M": 300, "N": 200, "K": 72}),
    "rounded residual": (LINEAR + "input r: bf16[M, N]\noutput o = i8(clip(round(f32(a @ b + r)), -100, 100))\n",
                         {"M": 460, "N": 200, "K": 136}),
    "two residuals": (LINEAR + "input r: bf16[M, N]\ninput s: f32[M, N]\noutput o = f32(a @ b + r) * s\n",
                      {"M": 130, "N": 136, "K": 64}),
    "two outputs": (LINEAR + "import nn\nlet h = a @ b\noutput h\noutput o = nn.gelu_tanh(h)\n",
                    {"M": 200, "N": 136, "K": 72}),
    "wide output": (LINEAR + "output o = f32(a @ b) * 2\n", {"M": 200, "N": 136, "K": 72}),
    "odd output": (LINEAR + "output o[i, j] = f64(sum(f32(a[i, k]) * f32(b[k, j]) for k))\n",
                   {"M": 70, "N": 72, "K": 64}),
    "dual": (LINEAR + "input c: bf16[K, N]\nimport nn\noutput o = nn.silu(a @ b) * (a @ c)\n",
             {"M": 200, "N": 136, "K": 136}),
    "halves": ("import nn\ninput a: bf16[M, K]\ninput b: bf16[K, 2 * N]\nlet h = a @ b\n"
               "output o = nn.silu(h[:, :N]) * h[:, N:]\n", {"M": 200, "N": 136, "K": 72}),
    "batch": ("input a: bf16[B, M, K]\ninput b: bf16[B, K, N]\noutput o = a @ b\n",
              {"B": 3, "M": 70, "N": 72, "K": 72}),
    "shared weight": ("input a: bf16[B, M, K]\ninput b: bf16[K, N]\noutput o = a @ b\n",
                      {"B": 3, "M": 70, "N": 72, "K": 72}),
    "two batches": ("input q: f16[B, H, S, D]\ninput k: f16[B, H, T, D]\n"
                    "output o[b, h, s, t] = f16(sum(f32(q[b, h, s, d]) * f32(k[b, h, t, d]) for d))\n",
                    {"B": 2, "H": 3, "S": 70, "T": 72, "D": 64}),
    "heads": ("input a: bf16[B, S, H, D]\ninput w: bf16[H, D, E]\n"
              "output o[b, s, e] = bf16(sum(f32(a[b, s, h, d]) * f32(w[h, d, e]) for h, d))\n",
              {"B": 2, "S": 70, "H": 3, "D": 64, "E": 72}),
    "two depths": ("input a: bf16[H, M, D]\ninput w: bf16[H, D, E]\n"
                   "output o[m, e] = bf16(sum(f32(a[h, m, d]) * f32(w[h, d, e]) for h, d))\n",
                   {"H": 3, "M": 70, "D": 72, "E": 136}),
    "window": ("input a: bf16[M, K]\ninput b: bf16[K, N]\noutput o = a[8:, 8:] @ b[8:, 16:]\n",
               {"M": 80, "N": 88, "K": 72}),
    "columns": (LINEAR + "output o = sum(f32(a @ b), axis=0)\n", {"M": 300, "N": 200, "K": 72}),
    "columns of a map": (LINEAR + "input c: bf16[N]\nlet y = f32(a @ b) + c\noutput s = sum(y * y, axis=0)\n"
                         "output t = max(y, axis=0)\n", {"M": 200, "N": 136, "K": 72}),
    "columns at once": ("input a: bf16[M, K]\ninput b: bf16[K, N]\n"
                        "output s[j] = sum(f32(a[i, k]) * f32(b[k, j]) for i, k)\n", {"M": 300, "N": 200, "K": 72}),
    "rows": (LINEAR + "let y = f32(a @ b)\noutput s = sum(y, axis=1)\noutput t = max(y, axis=1)\n",
             {"M": 200, "N": 264, "K": 72}),
    "rows below zero": (LINEAR + "output t = max(-1 - abs(f32(a @ b)), axis=1)\n", {"M": 200, "N": 264, "K": 72}),
    "columns below zero": (LINEAR + "output t = max(-1 - abs(f32(a @ b)), axis=0)\n", {"M": 200, "N": 136, "K": 72}),
    "best": (LINEAR + "output t = argmax(f32(a @ b), axis=1)\n", {"M": 200, "N": 264, "K": 72}),
    "tf32": ("pragma tf32\ninput a: f32[M, K]\ninput b: f32[N, K]\ninput c: f32[N]\noutput o = a @ transpose(b) + c\n",
             {"M": 200, "N": 136, "K": 68}),
    "bytes": ("input a: bf16[M, K]\ninput b: i8[K, N]\ninput s: f32[N]\n"
              "output o[i, j] = bf16(sum(f32(a[i, k]) * f32(b[k, j]) for k) * s[j])\n", {"M": 200, "N": 136, "K": 72}),
    "bytes along the sum": ("input a: f16[M, K]\ninput b: i8[N, K]\n"
                            "output o[i, j] = f16(sum(f32(a[i, k]) * f32(b[j, k]) for k))\n", {"M": 200, "N": 136, "K": 136}),
    "activated": (LINEAR + "output o = maximum(a, 0) @ b\n", {"M": 200, "N": 136, "K": 136}),
    "activated turned": ("input a: bf16[K, M]\ninput b: bf16[K, N]\noutput o = maximum(a.T, 0) @ b\n",
                         {"M": 200, "N": 136, "K": 136}),
    "both computed": (LINEAR + "output o = maximum(a, 0) @ abs(b)\n", {"M": 70, "N": 72, "K": 136}),
    "a bound along the sum": ("input a: f16[M, K]\ninput g: f16[K]\ninput b: f16[K, N]\noutput o = maximum(a, g) @ b\n",
                              {"M": 70, "N": 136, "K": 136}),
    "computed batch": ("input a: bf16[B, M, K]\ninput s: bf16[B, K]\ninput b: bf16[B, K, N]\n"
                       "output o[b_, i, j] = bf16(sum(f32(maximum(a[b_, i, k], s[b_, k])) * f32(b[b_, k, j]) for k))\n",
                       {"B": 3, "M": 70, "N": 72, "K": 72}),
    "factor": ("input a: bf16[M, K]\ninput b: bf16[K, N]\ninput s: f32[M]\n"
               "output o[i, j] = bf16(sum(s[i] * f32(a[i, k]) * f32(b[k, j]) for k))\n", {"M": 70, "N": 72, "K": 72}),
}  # fmt: skip

COMPUTED = ("bytes", "activated turned", "computed batch")
FOLDS = ("columns of a map", "rows", "best", "rows below zero", "columns below zero")


def optimised(text: str, sizes: dict[str, int]) -> tuple[Any, Any]:
    lowered = driver.lower_program(driver.compile_source(Source("product", text)).typed)
    return lowered, driver.optimise(lowered, Options(sizes=sizes))


def judged(text: str, sizes: dict[str, int], *, plan: dict[str, int] | None = None, must: str = "wgmma",
           fused: dict[str, int] | None = None) -> Code:  # fmt: skip
    """Within the derived bound. `plan`: the sizes that it is planned for, where those of the call are arguments; `fused`:
    those that decide what is one kernel."""
    lowered, found = optimised(text, fused or plan or sizes)
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=1, fill=True))
    code = emit(found.program, plan or sizes, FEW, dynamic=plan is not None, only="contraction")
    assert must in code.kernels[0].why, code.refusals
    arrays = driver.run_inputs(found, bound)
    problem = Judge(lowered, bound).verdict(results(code, found.program, arrays, sizes))
    assert not problem, problem
    return code


def only(monkeypatch: pytest.MonkeyPatch, *choice: Choice) -> None:
    """No tile but these."""

    def given(*_: object) -> Iterator[Choice]:
        return iter(choice)

    monkeypatch.setattr(contractions, "choices", given)


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    """With the tile that is chosen, the same bits in every order of threads."""
    judged(*SCRIPTS[name], must="" if name in ("one", "no depth", "no rows") else "wgmma")


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("choice", (*TILES, *SHARED), ids=str)
@pytest.mark.parametrize("name", ["bias", "residual"])
def test_tiles(name: str, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, choice)
    text, _ = SCRIPTS[name]
    judged(text, {"M": 300, "N": 520, "K": 648})


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize(
    "name", ["columns of a map", "rows", "two outputs", "heads", "wide output", "rounded residual"]
)
@pytest.mark.parametrize("choice", [TILES[1], TILES[3], TILES[6]], ids=str)
def test_tiles_of_folds(name: str, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, choice)
    judged(*SCRIPTS[name])


K_MAJOR = "input a: {0}[M, K]\ninput b: {0}[N, K]\ninput c: {0}[N, K]\ninput d: {0}[N, K]\n"
SEVERAL: dict[str, tuple[str, dict[Choice, str]]] = {  # of tiles, the instructions for 32 bytes of the sum
    "halves": (SCRIPTS["halves"][0], {Choice(128, 128, False, 2): "256", Choice(64, 64, False, 3): "128", Choice(64, 40, False, 2): "40 40",
                                      Choice(128, 64, True, 4): "64 64 64 64"}),
    "three": (K_MAJOR.format("bf16") + "output o = (a @ b.T) * (a @ c.T) - a @ d.T\n",
              {Choice(128, 128, False, 2): "256 128", Choice(64, 40, False, 2): "120"}),
    "three of i8": (K_MAJOR.format("i8") + "output o[i, j] = sum(i32(a[i, k]) * i32(b[j, k]) for k) * 2 - "
                    "sum(i32(a[i, k]) * i32(c[j, k]) for k) + sum(i32(a[i, k]) * i32(d[j, k]) for k) * 3\n",
                    {Choice(64, 40, False, 2): "80 40", Choice(64, 64, False, 3): "192"}),
}  # fmt: skip


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize(("name", "choice"), [(n, c) for n, (_, found) in SEVERAL.items() for c in found], ids=str)
def test_products_side_by_side(name: str, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of the same rows are one instruction where their right operands follow each other."""
    only(monkeypatch, choice)
    text, found = SEVERAL[name]
    code = judged(text, {"M": 130, "N": 136, "K": 176})
    per_stage = re.findall(r"lf_mma_64x(\d+)_", code.kernels[0].text)
    assert per_stage == found[choice].split() * 4


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", FOLDS)
def test_folds_that_ride(name: str) -> None:
    """Fused as for a large product, so that the tiles leave partial states."""
    text, sizes = SCRIPTS[name]
    code = judged(text, sizes, fused=dict.fromkeys(sizes, 4096))
    assert len(code.kernels) == 2 and code.kernels[1].name.endswith("_finish")


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_operands(name: str) -> None:
    """Made by the threads of two warpgroups: of stages that go round the ring more than once."""
    text, sizes = SCRIPTS[name]
    code = judged(text, {**sizes, "K": 392})
    assert "operand computed" in code.kernels[0].why


def test_all_that_is_read_by_chunks_is_aligned() -> None:
    text, sizes = SCRIPTS["a bound along the sum"]
    code = emit(optimised(text, sizes)[1].program, sizes, FEW, only="contraction")
    assert "operand computed" in code.kernels[0].why
    assert code.aligned >= {"a", "g", "b"}


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", ["nt", "residual", "columns"])
def test_sizes_of_the_call(name: str) -> None:
    """With sizes that are arguments, where pitches are known to be multiples of 16 bytes."""
    text, sizes = SCRIPTS[name]
    needs = "".join(f"require {n} % 8 == 0\n" for n in sizes if n in "NK")
    head, last = text.rsplit("input ", 1)
    line, rest = last.split("\n", 1)
    for depth in (sizes["K"], 0):
        judged(f"{head}input {line}\n{needs}{rest}", {**sizes, "K": depth}, plan=dict.fromkeys(sizes, 4096))
