"""Contractions by warpgroup products of f32 and i8: right for every layout that they take, at every extent, in any order of
threads; lean enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from emulator import EmulatorError, available, build
from gpu_cases import Judge
from test_cuda_arches import assert_compiles
from test_emit_rows import results

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.devices import H200, Device
from loopfuse.diag import Source
from loopfuse.driver import Lowered, Optimised
from loopfuse.emit import contractions
from loopfuse.emit.code import Code
from loopfuse.emit.contractions import Choice
from loopfuse.emit.program import emit
from loopfuse.passes import Options
from loopfuse.schedule.tiles import WARPGROUP

DEVICE = replace(H200, units=3)
emulated = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

AB = "pragma tf32\ninput a: f32[M, K]\ninput b: f32[K, N]\n"
TA = "pragma tf32\ninput a: f32[K, M]\ninput b: f32[N, K]\n"
PROGRAMS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "nn": (AB + "output o = a @ b\n", ((136, 264, 72), (64, 32, 33 * 4), (5, 8, 12), (257, 4, 36), (1031, 132, 68))),
    "tt": (TA + "output o = a.T @ b.T\n", ((136, 264, 72), (64, 32, 33 * 4), (8, 5, 12), (260, 131, 36))),
    "nt": ("pragma tf32\ninput a: f32[M, K]\ninput b: f32[N, K]\noutput o = a @ b.T\n", ((136, 264, 72), (5, 3, 12))),
    "transpose out": (AB + "output o = (a @ b).T\n", ((136, 264, 72), (65, 12, 36))),
    "both out": (AB + "let h = a @ b\noutput o = h\noutput p = h.T\n", ((136, 264, 72), (67, 36, 40))),
    "gelu": ("import nn\n" + AB + "input c: f32[N]\noutput o = nn.gelu_tanh(a @ b + c)\n", ((136, 264, 72), (67, 36, 40))),
    "residual": (AB + "input c: f32[N]\ninput r: f32[M, N]\noutput o = a @ b + c + r\n", ((136, 264, 72), (65, 36, 12))),
    "bf16 residual": (TA + "input r: bf16[M, N]\noutput o = bf16(a.T @ b.T) + r\n", ((136, 264, 72), (68, 40, 12))),
    "scaled rows": (AB + "input s: f32[M]\noutput o = (a @ b) * s[:, None]\n", ((136, 72, 80), (67, 36, 40))),
    "bf16 out": (AB + "output o = bf16(a @ b)\n", ((136, 72, 80),)),
    "column sums": (AB + "output o = sum(a @ b, axis=0)\n", ((136, 264, 80), (300, 36, 12))),
    "column sums kept": (AB + "let h = a @ b\noutput o = h\noutput s = sum(h, axis=0)\n", ((136, 264, 80), (131, 36, 12))),
    "row maxima": (AB + "let h = a @ b\noutput o = max(h, axis=1)\noutput p = argmax(h, axis=1)\n", ((136, 264, 80), (300, 36, 12))),
    "turned row maxima": (TA + "let h = a.T @ b.T\noutput o = max(h, axis=1)\noutput p = argmax(h, axis=1)\n", ((136, 264, 80), (300, 36, 12))),
    "batch": ("pragma tf32\ninput a: f32[B, M, K]\ninput b: f32[B, K, N]\noutput o = a @ b\n", ((3, 72, 136, 80), (2, 65, 36, 12))),
    "batches": ("pragma tf32\ninput a: f32[B, C, M, K]\ninput b: f32[C, K, N]\noutput o = a @ b\n", ((2, 3, 24, 40, 16),)),
    "dual": ("import nn\npragma tf32\ninput x: f32[M, K]\ninput v: f32[K, N]\ninput w: f32[K, N]\noutput y = nn.silu(x @ v) * (x @ w)\n",
             ((136, 72, 136), (33, 20, 24))),
    "slices": (AB + "output o = a[:, 4:] @ b[4:, :]\n", ((72, 136, 84),)),
    "i8": ("input a: i8[M, K]\ninput b: i8[N, K]\noutput o = i32(a) @ i32(b).T\n", ((136, 264, 144), (64, 33, 16), (5, 3, 400))),
    "i8 scaled": ("input a: i8[M, K]\ninput b: i8[N, K]\ninput s: f32[N]\noutput o = f32(i32(a) @ i32(b).T) * s\n",
                  ((136, 264, 144), (65, 36, 272))),
}  # fmt: skip


def compiled(text: str, sizes: Mapping[str, int]) -> tuple[Lowered, Optimised]:
    lowered = driver.lower_program(driver.compile_source(Source("fragments", text)).typed)
    return lowered, driver.optimise(lowered, Options(sizes=dict(sizes)))


def named(text: str, extents: tuple[int, ...]) -> dict[str, int]:
    lowered, _ = compiled(text, {})
    found = [s.id for s in lowered.typed.sizes if s.origin == "shape"]
    order = [s for s in "BCMN" if s in found] + ["K"]
    return dict(zip(order, extents, strict=True))


def judged(text: str, sizes: Mapping[str, int], dynamic: bool = False, device: Device = DEVICE) -> Code:
    """Within the derived bound, whatever the order of threads."""
    lowered, optimised = compiled(text, sizes)
    code = emit(optimised.program, sizes, device, dynamic=dynamic, only="contraction")
    assert any("wgmma" in k.why for k in code.kernels), code.refusals
    bound = driver.bind_program(lowered.typed, Given({}, dims=dict(sizes), seed=0, fill=True))
    found = results(code, optimised.program, driver.run_inputs(optimised, bound), sizes)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem
    return code


CASES = [(name, extents) for name, (_, sets) in PROGRAMS.items() for extents in sets]


@emulated
@pytest.mark.parametrize(("name", "extents"), CASES, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x)
def test_programs(name: str, extents: tuple[int, ...]) -> None:
    text, _ = PROGRAMS[name]
    code = judged(text, named(text, extents))
    kinds = {"i8": "_i8_00(", "nt": "_tf32_00("}
    assert any(kinds.get(name.split()[0], "_tf32_r0(") in k.text for k in code.kernels)


TILES = [Choice(t.rows, t.columns, False, 2) for t in WARPGROUP if not t.pingpong]
SHARED = [Choice(128, 256, False, 2, 2), Choice(128, 256, False, 2, 4), Choice(64, 128, False, 2, 2)]  # by blocks


@emulated
@pytest.mark.parametrize("tile", [*TILES, *SHARED], ids=lambda t: f"{t.rows}x{t.columns}x{t.split}")
@pytest.mark.parametrize("name", ["gelu", "tt"])
def test_tiles(name: str, tile: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile, whatever is best."""
    monkeypatch.setattr(contractions, "choices", lambda *_: [tile])
    code = judged(PROGRAMS[name][0], {"M": 132, "N": 260, "K": 232})
    assert f"tiles of {tile.rows} x {tile.columns}" in code.kernels[0].why
    assert code.kernels[0].cluster == tile.split


@emulated
@pytest.mark.parametrize("name", ["nn", "tt", "residual", "column sums kept", "row maxima", "dual", "i8"])
def test_many_stages_and_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring goes round within a tile and across the tiles of a block."""
    monkeypatch.setattr(contractions, "choices", lambda *_: [Choice(128, 128 // (1 + (name == "dual")), False, 2)])
    judged(PROGRAMS[name][0], {"M": 264, "N": 264, "K": 1200 if name == "i8" else 264}, device=replace(DEVICE, units=1))


@emulated
@pytest.mark.parametrize("name", ["nn", "gelu"])
def test_sizes_at_the_call(name: str) -> None:
    text = PROGRAMS[name][0].replace("K]", "4 * K]").replace("[K", "[4 * K").replace("N]", "4 * N]")
    judged(text, {"M": 70, "N": 10, "K": 18}, dynamic=True)


@emulated
def test_registers_are_left_alone_until_the_wait() -> None:
    """The emulator tells when the operands of the next stage take the place of those that are being multiplied."""
    sizes = {"M": 136, "N": 264, "K": 72}
    _, optimised = compiled(PROGRAMS["nn"][0], sizes)
    code = emit(optimised.program, sizes, DEVICE, only="contraction")
    (kernel,) = code.kernels
    assert kernel.text.count("lf_mma_wait<0>();") == 1
    move = "for (int q = 0; q < 16; ++q) (&b_now[0][0][0])[q] = (&b_next[0][0][0])[q];"
    text = kernel.text.replace("lf_mma_wait<0>();", f"{move}\n      lf_mma_wait<0>();")
    inputs = {"a": np.ones((136, 72), np.float32), "b": np.ones((72, 264), np.float32)}
    inputs["b"][32:] = 2
    outputs = {b.id: (b.dtype, [136, 264]) for b in optimised.program.buffers if b.role == "out"}
    build(code).check(inputs, {}, {}, outputs)
    with pytest.raises(EmulatorError, match="left operand was changed before lf_mma_wait"):
        build(replace(code, kernels=(replace(kernel, text=text),))).check(inputs, {}, {}, outputs)


PLAIN = ("nn", "tt", "residual", "column sums kept", "row maxima", "dual", "i8", "i8 scaled")
COMPILED = [*((name, None) for name in PLAIN), *(("gelu", tile) for tile in TILES if tile.columns >= 64)]


@pytest.mark.parametrize(("name", "tile"), COMPILED)
def test_compiles_without_spills(name: str, tile: Choice | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PROGRAMS[name][0]
    sizes = {"M": 8192, "N": 8192, "K": 4096}
    if tile is not None:
        monkeypatch.setattr(contractions, "choices", lambda *_: [tile])
    _, optimised = compiled(text, sizes)
    code = emit(optimised.program, sizes, H200, only="contraction")
    assert "wgmma" in code.kernels[0].why, code.refusals
    assert_compiles(code, "sm_90a")
