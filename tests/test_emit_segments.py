"""Products of one array whose results have different columns, taken in turn by one kernel of warpgroup products: right for every
tile and epilogue, at extents that divide nothing; and when they are kernels of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from emulator import available
from gpu_cases import Judge
from test_emit_contractions import FEW, only, optimised
from test_emit_rows import results
from test_schedule import ask

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.devices import A100, H200
from loopfuse.emit.contractions import Choice
from loopfuse.emit.program import emit
from loopfuse.schedule.plan import Plan
from loopfuse.views import tilings
from loopfuse.views.launches import launches

HEAD = "input x: bf16[M, K]\ninput wq: bf16[K, N]\ninput wk: bf16[K, G]\ninput wv: bf16[K, G]\n"
BIASES = "input bq: bf16[N]\ninput bk: bf16[G]\ninput bv: bf16[G]\n"
PLAIN = HEAD + "output q = x @ wq\noutput k = x @ wk\noutput v = x @ wv\n"
BIASED = HEAD + BIASES + "output q = x @ wq + bq\noutput k = x @ wk + bk\noutput v = x @ wv + bv\n"
SIZES = {"M": 140, "N": 136, "G": 40, "K": 72}

IN_TURN: dict[str, tuple[str, dict[str, int]]] = {
    "narrow": (BIASED, {"M": 70, "N": 136, "G": 8, "K": 72}),
    "plain": (PLAIN, SIZES),
    "biases": (BIASED, SIZES),
    "nt": ("input x: bf16[M, K]\ninput wq: bf16[N, K]\ninput wk: bf16[G, K]\n"
           "output q = x @ transpose(wq)\noutput k = maximum(x @ transpose(wk), 0)\n", SIZES),
    "activations": ("import nn\n" + HEAD + BIASES + "input r: f32[M]\noutput q = nn.gelu_tanh(x @ wq + bq)\n"
                    "output k = f32(x @ wk + bk) * 2\nlet h = f32(x @ wv)\noutput v[i, j] = bf16((h[i, j] + bv[j]) * r[i])\n",
                    SIZES),
    "two of one": (HEAD + "let h = x @ wk\noutput q = x @ wq\noutput k = h\noutput v = maximum(h, 0) + wv[0, 0]\n", SIZES),
    "layers": ("import nn\ninput x: f16[B, T, K]\ninput wq: f16[K, N]\ninput wk: f16[K, G]\ninput wv: f16[K, G]\n"
               "input bq: f16[N]\ninput bk: f16[G]\ninput bv: f16[G]\noutput q = nn.linear(x, wq, bq)\n"
               "output k = nn.linear(x, wk, bk)\noutput v = nn.linear(x, wv, bv)\n",
               {"B": 3, "T": 50, "N": 136, "G": 40, "K": 72}),
    "heads": ("input x: f16[B, T, K]\ninput wq: f16[K, H, D]\ninput wk: f16[K, G, D]\n"
              "output q[b, h, t, d] = f16(sum(f32(x[b, t, c]) * f32(wq[c, h, d]) for c))\n"
              "output k[b, h, t, d] = f16(sum(f32(x[b, t, c]) * f32(wk[c, h, d]) for c))\n",
              {"B": 2, "T": 40, "H": 4, "G": 1, "D": 32, "K": 72}),
    "odd rows of a result": ("input x: bf16[M, K]\ninput p: bf16[N, K]\ninput q: bf16[G, K]\n"
                             "output u = x @ transpose(p)\noutput v = x @ transpose(q)\n",
                             {"M": 67, "N": 131, "G": 64, "K": 64}),
    "left across": ("input x: f16[K, M]\ninput p: f16[K, N]\ninput q: f16[K, G]\noutput u = transpose(x) @ p\n"
                    "output v = transpose(x) @ q\n", {"M": 136, "N": 136, "G": 40, "K": 70}),
    "bytes": ("input x: i8[M, K]\ninput p: i8[N, K]\ninput q: i8[G, K]\noutput u = x @ transpose(p)\n"
              "output v = x @ transpose(q)\n", {"M": 70, "N": 136, "G": 40, "K": 144}),
    "tf32": ("pragma tf32\ninput x: f32[M, K]\ninput p: f32[N, K]\ninput q: f32[G, K]\ninput c: f32[G]\n"
             "output u = x @ transpose(p)\noutput v = x @ transpose(q) + c\n", {"M": 70, "N": 136, "G": 40, "K": 68}),
}  # fmt: skip

# What one launch does not take in turn, and why.
APART: dict[str, tuple[str, str]] = {
    "another left operand": ("input x: bf16[M, 2 * K]\ninput p: bf16[K, N]\ninput q: bf16[K, G]\noutput u = x[:, :K] @ p\n"
                             "output v = x[:, K:] @ q\n", "they have different left operands"),
    "one transposed": ("input x: bf16[M, K]\ninput p: bf16[K, N]\ninput q: bf16[G, K]\noutput u = x @ p\n"
                       "output v = x @ transpose(q)\n", "one right operand lies along the sum, another one along the result"),
    "residual": ("input x: bf16[M, K]\ninput p: bf16[K, N]\ninput q: bf16[K, G]\ninput r: bf16[M, G]\noutput u = x @ p\n"
                 "output v = x @ q + r\n", "`r` is read for every element of a result"),
    "fold": ("input x: bf16[M, K]\ninput p: bf16[K, N]\ninput q: bf16[K, G]\noutput u = x @ p\n"
             "output v = sum(f32(x @ q), axis=1)\n", "one kernel would take"),
    "rows of 6 bytes": ("input x: bf16[M, K]\ninput p: bf16[K, N]\ninput q: bf16[K, 3]\noutput u = x @ p\noutput v = x @ q\n",
                        "the rows of `q` are no multiple of 16 bytes, so that its tiles cannot be copied"),
    "full precision": ("input x: f32[M, K]\ninput p: f32[K, N]\ninput q: f32[K, G]\noutput u = x @ p\noutput v = x @ q\n",
                       "only products by warpgroups, of operands as they lie in memory, are taken in turn"),
}  # fmt: skip
# Sizes for which one launch pays, by which it is decided what is fused.
WIDE = {"M": 8192, "N": 4096, "G": 1024, "K": 4096, "B": 8, "T": 1024, "H": 32, "D": 128}


def wide(sizes: Iterable[str]) -> dict[str, int]:
    """Such sizes; `G` heads are fewer than as many columns."""
    return {name: WIDE[name] if name != "G" or "H" not in sizes else 8 for name in sizes}


def judged(text: str, sizes: dict[str, int], *, dynamic: bool = False) -> None:
    """One kernel, within the derived bound. `dynamic`: sizes are arguments."""
    lowered, found = optimised(text, wide(sizes))
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=1, fill=True))
    code = emit(found.program, wide(sizes) if dynamic else sizes, FEW, dynamic=dynamic, only="contraction")
    assert len(code.kernels) == 1 and "products in turn" in code.kernels[0].why, code.refusals
    problem = Judge(lowered, bound).verdict(results(code, found.program, driver.run_inputs(found, bound), sizes))
    assert not problem, problem


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", IN_TURN)
def test_scripts(name: str) -> None:
    judged(*IN_TURN[name])


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("choice", [
    Choice(128, 64, True, 4), Choice(128, 128, True, 3), Choice(128, 64, False, 2), Choice(64, 128, False, 2), Choice(64, 40, False, 2),
], ids=str)  # fmt: skip
def test_tiles(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that take turns may have tiles of different nests at the same time."""
    only(monkeypatch, choice)
    judged(IN_TURN["activations"][0], {"M": 140, "N": 200, "G": 72, "K": 136})


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
def test_sizes_of_the_call() -> None:
    """Where each nest begins depends on sizes that are arguments."""
    needs = "".join(f"require {n} % 8 == 0\n" for n in "NGK")
    text = BIASED.replace("output q", f"{needs}output q", 1)
    judged(text, {"M": 130, "N": 136, "G": 72, "K": 72}, dynamic=True)
    judged(text, {"M": 70, "N": 136, "G": 0, "K": 72}, dynamic=True)


def test_one_launch_has_the_waves_of_all() -> None:
    _, found = optimised(BIASED, wide("MNGK"))
    (kernel,) = (code := emit(found.program, wide("MNGK"))).kernels
    (tiling,) = tilings.found(code, "k1")
    assert sorted(tiling.nests) == [256, 256, 1024] and (tiling.tiles, tiling.waves) == (1536, 12)
    text = "\n".join(tilings.lines(code, "k1", H200, launches(code, {})["k1"]))
    assert "12, the last one 64% full (1536 tiles, 132 at once, of 3 products in turn: " in text
    assert kernel.text.count("#pragma unroll 1") == 2, "the producer's loop and the main loop are there once"
    assert kernel.text.count("lf_mma_wait<1>") == 1


@pytest.mark.parametrize("name", APART)
def test_kernels_of_their_own(name: str) -> None:
    text, why = APART[name]
    _, found = optimised(text, wide(n for n in "MNGK" if n in text))
    assert len(found.program.kernels) == 2
    reasons = [d.reason for d in found.decisions if d.verdict != "fused"]
    assert any(why in r for r in reasons), reasons


def test_nests_that_do_not_go_together_are_emitted_one_by_one() -> None:
    """As where sizes of a call are not known to be multiples of 16 bytes, or the device has no products of warpgroups."""
    _, found = optimised(BIASED, wide("MNGK"))
    assert len(found.program.kernels) == 1
    for device, dynamic, why in ((A100, False, "the device has no warpgroup products"),
                                 (H200, True, "the rows of `x` are not a multiple of 16 bytes apart")):  # fmt: skip
        code = emit(found.program, wide("MNGK"), device, dynamic=dynamic)
        assert len(code.kernels) == 3 and all("mma.sync" in k.why and k.kernel == "k1" for k in code.kernels)
        assert len({k.name for k in code.kernels}) == 3
        said = "\n".join(tilings.declined(code, "k1"))
        assert f"one launch: {why}" in said
    plan = ask(found.program, wide("MNGK"), A100)
    assert isinstance(plan, Plan) and (plan.burdened, len(plan.launches)) == ("nests", 3)
    whole = ask(found.program, wide("MNGK"), H200)
    assert isinstance(whole, Plan) and not whole.burden and len(whole.launches) == 1


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
def test_nests_one_by_one_are_right() -> None:
    text, sizes = BIASED, {"M": 70, "N": 72, "G": 40, "K": 40}
    lowered, found = optimised(text, wide(sizes))
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=1, fill=True))
    code = emit(found.program, sizes, replace(A100, units=3), only="contraction")
    assert len(code.kernels) == 3
    problem = Judge(lowered, bound).verdict(results(code, found.program, driver.run_inputs(found, bound), sizes))
    assert not problem, problem
