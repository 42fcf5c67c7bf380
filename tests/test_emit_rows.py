"""Row plans as kernels: right in every form, at every length, in any order of threads; lean enough to compile."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulator import EmulatorError, available, build
from gpu_cases import Judge, wrapped
from kernel_checks import inputs_for
from row_programs import TEXTS

from loopfuse import driver
from loopfuse.bind import Bound, Given
from loopfuse.devices import H200
from loopfuse.diag import MachineError, Source
from loopfuse.driver import Lowered, Optimised
from loopfuse.emit import rows, rows_staged
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit
from loopfuse.emit.rows_fit import WARP, Fit, widths
from loopfuse.emit.rows_shape import Run, Shape
from loopfuse.passes import Options
from loopfuse.reader import parse_program

Array = np.ndarray[Any, Any]
SMALL = replace(H200, units=2, cluster=4)  # few multiprocessors: rows are not split over blocks
FOLDER = Path(__file__).parent
EXTENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "argmax": ((0, 3), (3, 1), (5, 100), (2, 1000)),
    "triangle": ((1,), (33,), (100,)),
    "where": ((1, 1), (5, 257)),
    "local row": ((2, 1), (5, 1000)),
    "own": ((1, 7), (5, 129)),
    "array": ((3, 0), (3, 100)),
    "nested": ((3, 1), (5, 257)),
    "two dims": ((2, 0, 3), (3, 5, 7), (2, 3, 64)),
    "two operands": ((2, 1, 1), (3, 5, 64), (2, 2, 257)),
    "channels": ((2, 3, 5), (5, 3, 16)),
    "types": ((1, 1), (5, 64), (2, 257)),
    "shifted": ((2, 2), (3, 100)),
    "offset": ((3, 1), (3, 64)),
    "reversed": ((3, 1), (3, 257)),
    "gather": ((3, 1), (3, 257)),
    "any and bits": ((3, 0), (3, 257)),
    "tall": ((2, 3, 8), (3, 5, 1000)),
    "dot": ((3, 0), (40, 1024)),
    "lengths": ((3, 64, 7), (3, 7, 512)),
    "other order": ((3, 64),),
    "two softmaxes": ((3, 1), (5, 96), (3, 1000)),
    "extremes": ((3, 1), (3, 257), (3, 1000)),
}
PROGRAMS = [(name, extents) for name, all_ in EXTENTS.items() for extents in all_]
LENGTHS = (1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 1000, 1024, 1025, 3000)
SCRIPTS = (
    "bench/peers/softmax_bf16", "bench/peers/softmax_f32", "bench/peers/layernorm_residual", "bench/peers/mean_var_rows",
    "bench/peers/cross_entropy", "fusion/rmsnorm", "fusion/log_softmax", "fusion/layernorm_residual_sum", "fusion/nbody",
)  # fmt: skip
# Threads that share a row, and blocks of them; each script meets all of these.
SHARING = ((1, 1), (4, 1), (16, 1), (32, 1), (128, 1), (512, 1), (64, 2), (64, 4))


def ident(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def results(code: Code, program: Any, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> Mapping[str, Array]:
    inputs, params = ({id: arrays[id] for id in ids} for ids in (code.inputs, code.params))
    outputs = {b.id: (b.dtype, [int(p.value(sizes)) for p in b.shape]) for b in program.buffers if b.role == "out"}
    return build(code).check(inputs, params, {n: sizes[n] for n in code.sizes}, outputs)


def shared_by(monkeypatch: pytest.MonkeyPatch, threads: int, blocks: int, memory: bool) -> None:
    """Every row by so many threads of so many blocks; with `memory` through memory, else in registers if they suffice."""

    def fit(shape: Shape) -> Fit:
        size = threads if threads > WARP else max(threads, 64)
        return Fit(threads, blocks, size, size // threads, widths(shape))

    def choose(shape: Shape, lengths: dict[Run, int], kept: object = ()) -> Fit | None:
        found = fit(shape)
        for run, length in lengths.items():
            found.vectors[run] = -(-length // (found.sharing * found.width[run]))
        few = max(found.vectors[run] * found.width[run] for run in lengths) <= 64
        return found if few and not memory else None

    monkeypatch.setattr(rows, "choose", choose)
    monkeypatch.setattr(rows, "streaming", fit)


def script(name: str, sizes: Mapping[str, int]) -> tuple[Lowered, Optimised]:
    path = FOLDER / f"{name}.lf"
    typed = driver.compile_source(Source(name, path.read_text("utf-8")), search=path.parent).typed
    lowered = driver.lower_program(typed)
    return lowered, driver.optimise(lowered, Options(sizes=dict(sizes)))


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("form", ["registers", "memory", "staged", "dynamic"])
@pytest.mark.parametrize(("name", "extents"), PROGRAMS, ids=ident)
def test_programs(name: str, extents: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the derived bound, the same bits in every order of threads."""
    program = parse_program(TEXTS[name].lstrip("\n"))
    sizes = {s.id: n for s, n in zip(program.sizes, extents, strict=True)}
    if form == "memory":
        monkeypatch.setattr(rows, "choose", lambda *_: None)
    if form == "staged":
        monkeypatch.setattr(rows_staged, "LEAST_BYTES", 1)
        monkeypatch.setattr(rows_staged, "CACHED", 256)
    code = emit(program, sizes, SMALL, only="row", dynamic=form == "dynamic")
    kept = form in ("memory", "dynamic") and name == "local row"  # what a row keeps needs registers
    assert kept or {k.schedule for k in code.kernels} == {"row"}, code.refusals
    bound = Bound(sizes, inputs_for(program, sizes))
    found = results(code, program, bound.inputs, sizes)
    assert not (problem := Judge(wrapped(program), bound).verdict(found)), problem


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("sharing", SHARING, ids=ident)
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, sharing: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of scripts, shared by many threads or few, at lengths that divide nothing."""
    number = SCRIPTS.index(name) + len(SCRIPTS) * SHARING.index(sharing)
    length, memory = LENGTHS[number * 5 % len(LENGTHS)], number % 2 == 1
    if not memory and length > 64 * sharing[0] * sharing[1]:
        length = 33
    shared_by(monkeypatch, *sharing, memory)
    lowered, _ = script(name, {})
    names = [s.id for s in lowered.typed.sizes if s.origin == "shape"]
    sizes = {n: length if n == names[-1] else 5 for n in names}
    lowered, optimised = script(name, sizes)
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=number, fill=True))
    code = emit(optimised.program, sizes, only="row")
    assert "row" in {k.schedule for k in code.kernels}, code.refusals
    found = results(code, optimised.program, driver.run_inputs(optimised, bound), sizes)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("form", ["registers", "memory", "staged"])
@pytest.mark.parametrize(
    "name", [s for s in SCRIPTS if s.count("softmax") or s.count("entropy") or s.count("norm_res")]
)
def test_special_values(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of infinities, with a NaN, of one value, of values that overflow or vanish."""
    lowered, _ = script(name, {})
    names = [s.id for s in lowered.typed.sizes if s.origin == "shape"]
    sizes = {names[0]: 9, names[-1]: 320}
    lowered, optimised = script(name, sizes)
    if form == "memory":
        monkeypatch.setattr(rows, "choose", lambda *_: None)
    monkeypatch.setattr(rows_staged, "LEAST_BYTES", 1 if form == "staged" else 1 << 40)
    code = emit(optimised.program, sizes, SMALL, only="row")
    assert form != "staged" or "lf_stage16" in code.kernels[0].text or "softmax" not in name
    bound = driver.bind_program(lowered.typed, Given({}, dims=sizes, seed=1, fill=True))
    first = next(b for b in optimised.program.buffers if b.role == "in" and len(b.shape) == 2)
    x = np.random.default_rng(0).normal(size=(9, 320)) * 5
    x[0], x[1, 100], x[2, ::2], x[3, 50], x[4], x[5, :160], x[6] = -np.inf, np.nan, -np.inf, np.inf, 0, -np.inf, -300
    x[7:] *= np.array([[1e30], [60]])
    bound.inputs[first.id][...] = x.astype(bound.inputs[first.id].dtype)
    found = results(code, optimised.program, driver.run_inputs(optimised, bound), sizes)
    assert not (problem := Judge(lowered, bound).verdict(found)), problem


# -- clusters ---------------------------------------------------------------------------------------------------------

# States of one byte and of sixteen, several at once, whole arrays of them.
STATES = ("argmax", "types", "any and bits", "array", "own", "offset", "two operands", "two softmaxes")


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("memory", [False, True], ids=["registers", "memory"])
@pytest.mark.parametrize("blocks", [2, 8])
@pytest.mark.parametrize("name", [*STATES, "bytes"])
def test_states_of_all_kinds(name: str, blocks: int, memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What blocks send each other, of every size."""
    shared_by(monkeypatch, 64, blocks, memory)
    program = parse_program((BYTES if name == "bytes" else TEXTS[name]).lstrip("\n"))
    sizes = dict(zip((s.id for s in program.sizes), (3, 2, 700) if len(program.sizes) > 2 else (3, 700), strict=True))
    code = emit(program, sizes, only="row")
    assert {k.cluster for k in code.kernels} == {blocks} and "lf_send(" in code.kernels[0].text
    bound = Bound(sizes, inputs_for(program, sizes))
    found = results(code, program, bound.inputs, sizes)
    assert not (problem := Judge(wrapped(program), bound).verdict(found)), problem


BYTES = """
program bytes(M, N)
buf x: i8[M, N] in
buf z: u16[M, N] in
buf d: f64[M, N] in
buf o: i8[M] out
buf q: u16[M] out
buf r: i64[M] out
kernel k1
  par i < M
    fold j < N
      acc a: i8 sum
      acc b: u16 max
      acc p: f64 argmin
      a <- x[i, j]
      b <- z[i, j]
      p <- d[i, j] at {j}
    o[i] = a
    q[i] = b
    r[i] = p
"""
# Three joins of two warps in each of four blocks: at barriers 0 and 1, and at 0 again.
JOINED = """
input x: f16[M, 16000]
let z = f32(x)
let d = z - mean(z, axis=-1, keepdims=true)
let e = d * rsqrt(mean(d * d, axis=-1, keepdims=true))
output y = f16(e / max(abs(e), axis=-1, keepdims=true))
"""
ARMED, AWAITED = "  if (threadIdx.x == 0) lf_bar_expect(bars + 1, 32);\n", "  lf_bar_wait(bars + 1, 0);\n"
AGAIN = "lf_bar_wait(bars + 0, 1)"
STUCK = "wait at the barrier at byte"
WRONG: dict[str, tuple[dict[str, str], str]] = {
    "armed too late": ({ARMED: "", AWAITED: AWAITED + ARMED}, STUCK),
    "too few bytes": ({ARMED: ARMED.replace("32", "28")}, "-4 bytes that did not come"),
    "too many bytes": ({ARMED: ARMED.replace("32", "36")}, STUCK),
    "armed twice": ({ARMED: ARMED.replace("== 0", "< 2")}, "more than 1 arrivals"),
    "slots of the join before": ({"lf_shared + 8272": "lf_shared + 8208"}, "depends"),
    "one barrier": ({AGAIN: "lf_bar_wait(bars + 0, 0)", AWAITED: "  lf_bar_wait(bars + 0, 1);\n",
                     "(bars + 1, 32": "(bars + 0, 32", ", bars + 1, t": ", bars + 0, t"}, "depends"),
    "not waited for": ({AWAITED: ""}, "has left|depends"),
    "the phase before": ({AGAIN: "lf_bar_wait(bars + 0, 0)"}, "has left|depends"),
    "no start": ({"  lf_cluster_meet();\n": ""}, "before lf_bar_init"),
    "barriers not ready": ({"    lf_bar_ready();\n": ""}, "lf_bar_ready was not called"),
    "a block left out": ({"% 32 < 4)": "% 32 < 3)"}, STUCK),
}  # fmt: skip


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("what", ["", *WRONG])
def test_wrong_joins_are_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a join over a cluster is needed: without it, or with another one, some order of threads shows it."""
    for constant, value in (("LEAST_BYTES", 1), ("RESIDENT", 1), ("THREADS", 64)):
        monkeypatch.setattr(rows_staged, constant, value)
    lowered = driver.lower_program(driver.compile_source(Source("rows", JOINED)).typed)
    optimised = driver.optimise(lowered, Options(sizes={"M": 4}))
    code = emit(optimised.program, {"M": 4}, replace(H200, units=4, cluster=4, shared=12096), only="row")
    bound = driver.bind_program(lowered.typed, Given({}, dims={"M": 4}, seed=1, fill=True))
    arrays = driver.run_inputs(optimised, bound)
    if not what:
        found = results(code, optimised.program, arrays, {"M": 4})
        assert not (problem := Judge(lowered, bound).verdict(found)), problem
        return
    (kernel,) = code.kernels
    text = kernel.text
    changes, match = WRONG[what]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(EmulatorError, match=match):
        results(replace(code, kernels=(replace(kernel, text=text),)), optimised.program, arrays, {"M": 4})


# -- the form ---------------------------------------------------------------------------------------------------------

WORKLOADS: dict[str, tuple[str, dict[str, int]]] = {
    "softmax 1024": ("softmax_bf16", {"M": 65536, "N": 1024}),
    "softmax 4096": ("softmax_bf16", {"M": 16384, "N": 4096}),
    "softmax 131072": ("softmax_bf16", {"M": 1024, "N": 131072}),
    "softmax f32": ("softmax_f32", {"M": 16384, "N": 4096}),
    "layernorm 1024": ("layernorm_residual", {"M": 65536, "D": 1024}),
    "layernorm 4096": ("layernorm_residual", {"M": 16384, "D": 4096}),
    "layernorm 16384": ("layernorm_residual", {"M": 4096, "D": 16384}),
    "mean_var": ("mean_var_rows", {"M": 16384, "N": 8192}),
    "cross_entropy": ("cross_entropy", {"N": 8192, "V": 128256}),
}
LEAST_IN_FLIGHT = 48 << 10  # bytes that the blocks of a multiprocessor have asked for at once


def workload(name: str) -> Code:
    peer, sizes = WORKLOADS[name]
    return emit(script(f"bench/peers/{peer}", sizes)[1].program, sizes, only="row")


@pytest.mark.parametrize("name", WORKLOADS)
def test_reads_once(name: str) -> None:
    """One kernel; every element of the long operands is asked for once, by vectors of 16 bytes."""
    (kernel,) = workload(name).kernels
    assert kernel.schedule == "row"
    streams = 2 if name.startswith("layernorm") else 1
    parts = 2 if "through memory" in kernel.why else 1  # the whole batches, and what is left of a row
    vectors = [f"lf_read<{n}, 16>" for n in (4, 8)]
    staged = kernel.text.count("lf_stage16(")
    assert sum(kernel.text.count(v) for v in vectors) + staged == streams * parts
    assert kernel.text.count("lf_read<") + staged == streams * parts


def test_exponential_is_computed_once() -> None:
    for name in ("softmax 1024", "softmax f32"):
        (kernel,) = workload(name).kernels
        assert kernel.text.count("exp(") + kernel.text.count("expf(") == 1


def test_long_rows_are_shared_by_a_cluster() -> None:
    (kernel,) = workload("softmax 131072").kernels
    assert kernel.cluster > 1 and kernel.text.count("lf_send(") == kernel.text.count("lf_bar_wait(") == 2
    assert "lf_cluster_sync" not in kernel.text
    old = replace(H200, cluster=1, shared=163 << 10)
    peer, sizes = WORKLOADS["softmax 131072"]
    (kernel,) = emit(script(f"bench/peers/{peer}", sizes)[1].program, sizes, old, only="row").kernels
    assert kernel.cluster == 1 and "through memory" in kernel.why


def test_a_warp_needs_no_barrier() -> None:
    peer, _ = WORKLOADS["softmax 1024"]
    sizes = {"M": 65536, "N": 256}
    (kernel,) = emit(script(f"bench/peers/{peer}", sizes)[1].program, sizes, only="row").kernels
    assert "lf_sync" not in kernel.text and not kernel.shared


@pytest.mark.skipif(importlib.util.find_spec("cuda.bindings") is None, reason="there is no NVRTC")
@pytest.mark.parametrize("name", WORKLOADS)
def test_compiles(name: str) -> None:
    """No spills, no warnings, and enough threads on a multiprocessor that enough loads are in flight."""
    from loopfuse.cuda.compile import compile_kernel

    code = workload(name)
    (kernel,) = code.kernels
    (launch,) = code.launches()
    streams = 2 if name.startswith("layernorm") else 1
    size = 4 if name in ("softmax f32", "mean_var") else 2
    row = prod(WORKLOADS[name][1].values()) * size * streams // launch.grid[0].constant  # bytes of a block
    block = kernel.threads * 64 if "through memory" in kernel.why else row
    for arch in ("sm_80", "sm_90a")[kernel.cluster > 1 :]:
        binary = compile_kernel(code.source(kernel), kernel.name, arch, contract=True)
        assert not binary.spills and not binary.warnings
        blocks = 65536 // (-(-binary.registers // 8) * 8 * kernel.threads)
        assert min(blocks, H200.shared // (kernel.shared + 1024), 2048 // kernel.threads) * block >= LEAST_IN_FLIGHT


@pytest.mark.skipif(importlib.util.find_spec("cuda.bindings") is None, reason="there is no NVRTC")
def test_blocks_of_a_row_do_not_wait_for_memory() -> None:
    """What was stored need not be visible to the whole device before partial states are joined."""
    from loopfuse.cuda.compile import compile_kernel
    from loopfuse.cuda.sass import disassemble

    code = workload("softmax 131072")
    (kernel,) = code.kernels
    binary = compile_kernel(code.source(kernel), kernel.name, "sm_90a", contract=True)
    try:
        text = disassemble(binary.cubin)
    except MachineError as why:
        pytest.skip(str(why))
    assert text.count("STAS") == 2
    assert not any(slow in text for slow in ("MEMBAR", "ERRBAR"))
    assert text.count("CCTL.IVALL") <= 1  # the first-level cache is emptied at the start at most
