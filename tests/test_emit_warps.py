"""Contractions by warp products: right for every layout and type, at every extent, in any order of threads; lean enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulator import available, build
from gpu_cases import Judge
from test_cuda_arches import DEVICES, assert_compiles
from test_emit_rows import results

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.devices import A100, H200, RTX_4090, Device
from loopfuse.diag import Source
from loopfuse.driver import Lowered, Optimised
from loopfuse.emit import contractions
from loopfuse.emit.base import Declined, Emitted
from loopfuse.emit.code import Code
from loopfuse.emit.matrix import warps
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.matrix.warp_forms import DOUBLES, FORMS, TYPES, Form
from loopfuse.emit.program import emit
from loopfuse.passes import Options

Array = np.ndarray[Any, Any]
DEVICE = replace(A100, units=3)
emulated = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

# Sizes that tell the layouts apart, for each type: full 16-byte rows; 8 and 4 bytes; odd; nothing, one, a prime.
EXTENTS = ((136, 272, 144), (68, 132, 100), (70, 134, 66), (67, 131, 71), (3, 5, 0), (1, 64, 1), (1, 9, 257))


KINDS = ("bf16", "f16", "tf32", "i8", "f64")
LAYOUTS = ("nn", "nt", "tn", "tt")


def layout(kind: str, left: str, right: str) -> str:
    """A product by its layouts: `n` as it lies, `t` transposed."""
    head = "pragma tf32\n" if kind == "tf32" else ""
    dtype = "f32" if kind == "tf32" else kind
    a, b = ("M, K", "a") if left == "n" else ("K, M", "a.T"), ("K, N", "b") if right == "n" else ("N, K", "b.T")
    text = f"{head}input a: {dtype}[{a[0]}]\ninput b: {dtype}[{b[0]}]\n"
    return text + (f"output o = i32({a[1]}) @ i32({b[1]})\n" if kind == "i8" else f"output o = {a[1]} @ {b[1]}\n")


AB = "input a: bf16[M, K]\ninput b: bf16[K, N]\n"
DOUBLE = "input a: f64[M, K]\ninput b: f64[K, N]\n"
PROGRAMS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "gelu": ("import nn\n" + AB + "input c: bf16[N]\noutput o = nn.gelu(a @ b + c)\n", ((136, 264, 80), (67, 131, 71))),
    "residual": (AB + "input c: bf16[N]\ninput r: bf16[M, N]\noutput o = a @ b + c + r\n", ((136, 264, 80), (65, 33, 9))),
    "two residuals": (AB + "input r: bf16[M, N]\ninput s: bf16[M, N]\noutput o = (a @ b + r) * s\noutput p = r - s\n", ((72, 72, 16),)),
    "outputs": (AB + "let h = a @ b\noutput o = h\noutput p = maximum(h, 0)\noutput q = f32(h) * 2.0\n", ((136, 72, 80), (3, 5, 9))),
    "f32 out": (AB + "output o = f32(a) @ f32(b)\n", ((136, 72, 80), (67, 31, 71))),
    "column sums": (AB + "output o = sum(f32(a @ b), axis=0)\n", ((136, 264, 80), (300, 31, 9), (7, 5, 0))),
    "column sums kept": (AB + "let h = a @ b\noutput o = h\noutput s = sum(f32(h), axis=0)\n", ((136, 264, 80), (131, 31, 9))),
    "row maxima": (AB + "let h = f32(a @ b)\noutput o = max(h, axis=1)\noutput p = argmax(h, axis=1)\n", ((136, 264, 80), (300, 31, 9))),
    "rows below zero": (AB + "output o = max(-1 - abs(f32(a @ b)), axis=1)\n", ((136, 264, 80), (67, 31, 9))),
    "batch": ("input a: f16[B, M, K]\ninput b: f16[B, K, N]\noutput o = a @ b\n", ((3, 72, 136, 80), (2, 65, 33, 9))),
    "batches": ("input a: f16[B, C, M, K]\ninput b: f16[C, K, N]\noutput o = a @ b\n", ((2, 3, 24, 40, 16),)),
    "dual": ("import nn\ninput x: bf16[M, K]\ninput w1: bf16[K, N]\ninput w3: bf16[K, N]\noutput y = nn.silu(x @ w1) * (x @ w3)\n",
             ((136, 72, 136), (33, 17, 19))),
    "scaled rows": (AB + "input s: f32[M]\noutput o = bf16(f32(a @ b) * s[:, None])\n", ((136, 72, 80),)),
    "bytes": ("input a: i8[M, K]\ninput b: i8[N, K]\noutput o[i, j] = sum(i32(a[i, k]) * i32(b[j, k]) for k)\n", ((72, 136, 80), (33, 17, 19))),
    "bytes as floats": ("input a: f16[M, K]\ninput q: i8[N, K]\ninput s: f32[N]\n"
                        "output o[i, j] = f16(sum(f32(a[i, k]) * f32(q[j, k]) for k) * s[j])\n", ((72, 136, 80), (33, 17, 19))),
    "bytes by a mask": ("input a: u8[M, K]\ninput m: bool[K, N]\noutput o[i, j] = sum(f32(a[i, k]) * f32(m[k, j]) for k)\n",
                        ((72, 136, 80), (33, 17, 19))),
    "cast": ("input a: bf16[M, K]\ninput q: i8[K, N]\noutput o = a @ bf16(q)\n", ((136, 72, 136), (33, 17, 19))),
    "cast turned": ("input a: bf16[M, K]\ninput q: i8[N, K]\ninput s: bf16[N]\noutput o = a @ (bf16(q) * s[:, None]).T\n", ((72, 136, 80), (33, 17, 19))),
    "activated": ("numerics fast\ninput x: f16[M, K]\ninput g: f32[K]\ninput w: f16[N, K]\noutput y = f16(exp(f32(x) * g) @ f32(w).T)\n", ((72, 40, 80), (9, 7, 11))),
    "two axes": ("input a: f16[M, R, K]\ninput b: f16[R, K, N]\noutput o = sum(a[:, :, :, None] * b[None, :, :, :], axis=(1, 2))\n", ((72, 3, 72, 40), (5, 3, 7, 9))),
    "slices": (AB + "output o = a[:, 2:] @ b[2:, :]\n", ((72, 136, 82), (9, 17, 19))),
    "f64 residual": (DOUBLE + "input c: f64[N]\ninput r: f64[M, N]\noutput o = maximum(a @ b + c, 0) + r\n", ((136, 72, 80), (65, 33, 9))),
    "f64 column sums": (DOUBLE + "let h = a @ b\noutput o = h\noutput s = sum(h, axis=0)\n", ((136, 72, 16), (131, 31, 9), (7, 5, 0))),
    "f64 row maxima": (DOUBLE + "let h = a @ b\noutput o = max(h, axis=1)\noutput p = argmax(h, axis=1)\n", ((72, 136, 80), (65, 31, 9))),
    "f64 batch": ("input a: f64[B, M, K]\ninput b: f64[B, K, N]\noutput o = a @ b\n", ((2, 72, 40, 16), (2, 65, 33, 9))),
    "f64 dual": ("import nn\ninput x: f64[M, K]\ninput w1: f64[K, N]\ninput w3: f64[K, N]\noutput y = nn.silu(x @ w1) * (x @ w3)\n",
                 ((72, 40, 33), (33, 17, 19))),
    "f64 activated": (DOUBLE + "output o = maximum(a, 0) @ (b * b)\n", ((72, 40, 80), (33, 17, 19))),
    "f64 slices": (DOUBLE + "output o = a[:, 1:] @ b[1:, :]\n", ((72, 136, 82), (9, 17, 19))),
    "f64 apart": ("input a: f64[M, K, 2]\ninput b: f64[N, 2, K]\noutput o = a[:, :, 1] @ b[:, 1, :].T\n", ((72, 40, 81), (9, 17, 19))),
}  # fmt: skip


def off(_: Contraction) -> Emitted | Declined:
    return Declined("not asked for")


@pytest.fixture(autouse=True)
def by_warps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else takes a contraction."""
    monkeypatch.setattr(contractions, "by_warpgroups", off)
    monkeypatch.setattr(contractions, "by_threads", off)


def compiled(text: str, sizes: Mapping[str, int]) -> tuple[Lowered, Optimised]:
    lowered = driver.lower_program(driver.compile_source(Source("warps", text)).typed)
    return lowered, driver.optimise(lowered, Options(sizes=dict(sizes)))


def named(text: str, extents: tuple[int, ...]) -> dict[str, int]:
    lowered, _ = compiled(text, {})
    return dict(zip([s.id for s in lowered.typed.sizes if s.origin == "shape"], extents, strict=True))


def judged(text: str, sizes: Mapping[str, int], dynamic: bool = False, seed: int = 0, device: Device = DEVICE) -> Code:
    """Within the derived bound, whatever the order of threads."""
    lowered, optimised = compiled(text, sizes)
    code = emit(optimised.program, sizes, device, dynamic=dynamic, only="contraction")
    if min(sizes.values()) > 1 and sizes.get("K", 8) >= 8:  # else it is no matrix product
        assert any("mma.sync" in k.why for k in code.kernels), code.refusals
    bound = driver.bind_program(lowered.typed, Given({}, dims=dict(sizes), seed=seed, fill=True))
    found = results(code, optimised.program, driver.run_inputs(optimised, bound), sizes)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem
    return code


@emulated
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", LAYOUTS)
def test_layouts(kind: str, how: str) -> None:
    """Every type and layout; two of the extents each, all of them together."""
    first = KINDS.index(kind) + 2 * LAYOUTS.index(how)
    for extents in (EXTENTS[first % len(EXTENTS)], EXTENTS[(first + 3) % len(EXTENTS)]):
        judged(layout(kind, *how), dict(zip("MNK", extents, strict=True)))


@emulated
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    text, sets = PROGRAMS[name]
    for extents in sets:
        judged(text, named(text, extents))


@emulated
@pytest.mark.parametrize("name", ["nn", "tt", "f64 residual"])
def test_sixteen_rows_of_doubles(name: str) -> None:
    """The instruction of devices from sm_90 on."""
    text = PROGRAMS[name][0] if name in PROGRAMS else layout("f64", *name)
    code = judged(text, {"M": 136, "N": 72, "K": 80}, device=replace(H200, units=3))
    assert "lf_mma_16x8_f64(" in code.kernels[0].text


@pytest.mark.parametrize(
    ("head", "device", "why"),
    [
        ("numerics strict\n", H200, "strict numerics round products of f64 before they are added"),
        ("", RTX_4090, "the matrix units of the device are no faster in f64"),
    ],
)
def test_doubles_on_the_ordinary_units(head: str, device: Device, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those are as exact as the script asks, or faster; `explain` has the reason."""
    monkeypatch.undo()
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    _, optimised = compiled(head + layout("f64", "n", "n"), sizes)
    code = emit(optimised.program, sizes, device)
    assert "multiply-adds of double" in code.kernels[0].why
    assert any(f"mma.sync: {why}" in said for said in code.refusals["k1"])


CUT = ("f64", "residual", "dual", "i8", "f64 batch", "nn", "tf32", "scaled rows", "cast", "f64 activated", "two axes")


@emulated
@pytest.mark.parametrize("name", CUT)
def test_sums_cut_into_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks of their own, which a second kernel adds; also where not every part has something to add."""
    kind = name if name in KINDS else "f64" if "f64" in name else "bf16"
    text = PROGRAMS[name][0] if name in PROGRAMS else layout(kind, "n", "n")
    stage = 128 // TYPES[kind].itemsize
    for parts, depth in ((3, 4 * stage + 5), (2, stage)):
        form = replace((DOUBLES if kind == "f64" else FORMS)[-1], parts=parts)
        monkeypatch.setattr(warps, "choices", lambda *_, form=form: [form])
        lowered, _ = compiled(text, {})
        sizes = {s.id: {"M": 67, "N": 35, "K": depth}.get(s.id, 2) for s in lowered.typed.sizes if s.origin == "shape"}
        code = judged(text, sizes, dynamic=parts == 2 and kind != "i8")
        assert f"sums cut into {parts}" in code.kernels[0].why
        assert code.kernels[1].why.startswith(f"adds {parts} parts")


@pytest.mark.parametrize("device", [A100, H200], ids=lambda d: d.name)
def test_which_sums_are_cut(device: Device) -> None:
    """Those of few tiles, if they are long enough."""
    made = {}
    for name, sizes in (("few", (128, 128, 8192)), ("short", (128, 128, 128)), ("many", (4096, 4096, 4096))):
        _, optimised = compiled(layout("f64", "n", "n"), named := dict(zip("MNK", sizes, strict=True)))
        made[name] = emit(optimised.program, named, device, only="contraction")
    assert [name for name, code in made.items() if "sums cut into" in code.kernels[0].why] == ["few"]


TILES = [
    *((name, form) for form in FORMS for name in ("nt", "dual")),
    *(("odd", form) for form in FORMS[2::3]),
    *(("column sums kept", form) for form in FORMS[::3]),
    *(("row maxima", form) for form in FORMS[::4]),
    *(("tn", form) for form in FORMS[1::4]),
    *((name, form) for form in DOUBLES for name in ("f64 nt", "f64 tn")),
    *(("f64 dual", form) for form in DOUBLES[2::3]),
    *(("f64 column sums", form) for form in DOUBLES[1::3]),
]


@emulated
@pytest.mark.parametrize(
    ("name", "form"), TILES, ids=lambda x: x if isinstance(x, str) else f"{x.rows}x{x.columns}x{x.down}x{x.across}"
)
def test_tiles(name: str, form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile, whatever is best."""
    each = 2 if "dual" in name else 1
    if form.results(each) > 128:
        pytest.skip("more results than registers")
    monkeypatch.setattr(warps, "choices", lambda *_: [form])
    if name in ("f64 nt", "f64 tn"):
        judged(layout("f64", *name[4:]), {"M": 136, "N": 136, "K": 72})
        return
    if name.startswith("f64"):
        judged(PROGRAMS[name][0], {"M": 131, "N": 133, "K": 77})
        return
    if name in ("nt", "tn"):
        judged(layout("bf16" if name == "nt" else "tf32", *name), {"M": 136, "N": 264, "K": 328})
        return
    text = PROGRAMS["gelu" if name == "odd" else name][0]
    if name == "odd" and form.results(1) > 64:
        pytest.skip("no registers for operands on their way")
    judged(text, {"M": 131, "N": 263, "K": 77} if name == "odd" else {"M": 136, "N": 264, "K": 136})


@emulated
@pytest.mark.parametrize("name", ["residual", "column sums kept", "row maxima", "batch", "tf32", "f64"])
def test_sizes_at_the_call(name: str) -> None:
    text = layout(name, "n", "t") if name in KINDS else PROGRAMS[name][0]
    judged(text, named(text, (3, 70, 40, 33) if name == "batch" else (70, 40, 33)), dynamic=True)


@emulated
def test_values_that_are_no_numbers() -> None:
    """Infinities and NaNs stay in their rows and columns: what lies past the edges is zero on both sides."""
    sizes = {"M": 70, "N": 134, "K": 66}
    lowered, optimised = compiled(layout("bf16", "n", "n"), sizes)
    code = emit(optimised.program, sizes, DEVICE, only="contraction")
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=1, fill=True))
    bound.inputs["a"][69, 65], bound.inputs["b"][65, 133], bound.inputs["a"][0, 0] = np.nan, np.inf, -np.inf
    arrays = driver.run_inputs(optimised, bound)
    outputs = {b.id: (b.dtype, [70, 134]) for b in optimised.program.buffers if b.role == "out"}
    found = build(code).check({n: arrays[n] for n in code.inputs}, {}, {}, outputs)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        *(("gelu", arch) for arch in DEVICES),
        *((name, "sm_80") for name in ("odd", "tf32", "column sums kept")),
        *((name, "sm_90a") for name in ("dual", "odd", "pairs", "tf32", "i8", "cast")),
        *((name, arch) for name in ("f64", "f64 residual", "f64 activated") for arch in ("sm_80", "sm_90a")),
    ],
)
def test_compiles_without_spills(name: str, arch: str) -> None:
    text = layout(name, "n", "n") if name in KINDS else PROGRAMS["gelu" if name in ("odd", "pairs") else name][0]
    less = {"odd": 1, "pairs": 2}.get(name, 0)
    sizes = {"M": 8192, "N": 8192 - less, "K": 4096 - less}
    _, optimised = compiled(text, sizes)
    code = emit(optimised.program, sizes, DEVICES[arch], only="contraction")
    assert "mma.sync" in code.kernels[0].why, code.refusals
    assert_compiles(code, arch)


@pytest.mark.parametrize("term, taken", [
    ("i32(a[i, k]) * i32(b[j, k])", True),  # of bytes: no product of two needs more than 16 bits
    ("i16(a[i, k]) * i16(b[j, k])", True),
    ("a[i, k] * b[j, k]", False),  # wraps at eight bits
    ("i32(c[i, k]) * i32(b[j, k])", False),  # of a byte and 32 bits
], ids=str)  # fmt: skip
def test_products_that_cannot_wrap(term: str, taken: bool) -> None:
    """A product of integers is widened for its sum: the matrix units sum it where it is the same in a wider type."""
    text = f"input a: i8[M, K]\ninput b: i8[N, K]\ninput c: i32[M, K]\noutput o[i, j] = sum({term} for k)\n"
    sizes = {"M": 512, "N": 512, "K": 512}
    _, optimised = compiled(text, sizes)
    assert ("mma.sync i8" in emit(optimised.program, sizes, A100).kernels[0].why) == taken
