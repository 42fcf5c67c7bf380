"""Maps: which form a band gets, that it moves vectors, and that it computes what the reference does, on the CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from emulator import available, build
from gpu_cases import Judge

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cuda.compile import compile_kernel, compile_program
from loopfuse.diag import Source
from loopfuse.driver import Lowered, compile_source, lower_program
from loopfuse.emit import base, maps
from loopfuse.emit.code import Code, KernelCode
from loopfuse.emit.maps_tile import SIDE, Turn
from loopfuse.emit.prelude import functions
from loopfuse.emit.program import emit
from loopfuse.passes import Options
from tests.bench.workloads import WORKLOADS

emulated = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

Sizes = Mapping[str, int]

# Scripts, and extents that divide nothing beside some that do.
PROGRAMS: dict[str, tuple[str, list[Sizes]]] = {
    "flat": ("input x: f32[N]\ninput y: f32[N]\noutput o = x * y + 1\n", [{"N": 4096}, {"N": 5003}, {"N": 3}, {"N": 1}]),
    "row": (
        "input x: bf16[M, N]\ninput b: bf16[N]\noutput o = x + b\n",
        [{"M": 67, "N": 4096}, {"M": 37, "N": 4160}, {"M": 131, "N": 521}, {"M": 1, "N": 8}, {"M": 3, "N": 20000}, {"M": 64, "N": 4080}],
    ),
    "column": ("input x: f32[M, N]\ninput c: f32[M]\noutput o[i, j] = x[i, j] * c[i]\n", [{"M": 9, "N": 33}, {"M": 33, "N": 64}]),
    "gates": (
        "input g: f32[B, 3 * U]\nlet (a, b, c) = split(g, 3, axis=1)\noutput o = a * b + c\noutput p = a\n",
        [{"B": 33, "U": 100}, {"B": 3, "U": 5}],
    ),
    "planes": (
        "input x: f32[B, C, H, W]\ninput s: f32[C]\noutput o[b, c, h, w] = x[b, c, h, w] * s[c]\n",
        [{"B": 3, "C": 5, "H": 8, "W": 8}, {"B": 2, "C": 3, "H": 5, "W": 7}],
    ),
    "transposed": (
        "input x: f32[M, N]\ninput y: f32[N, M]\noutput o = x + y.T\n",
        [{"M": 128, "N": 192}, {"M": 129, "N": 131}, {"M": 100, "N": 36}, {"M": 20, "N": 300}, {"M": 5, "N": 7}],
    ),
    "transposed bf16": ("input x: bf16[M, N]\ninput y: bf16[N, M]\noutput o = x + y.T\n", [{"M": 128, "N": 64}, {"M": 65, "N": 131}]),
    "transposed i8": ("input x: i8[M, N]\ninput y: i8[N, M]\noutput o = x + y.T\n", [{"M": 128, "N": 64}, {"M": 65, "N": 131}]),
    "both ways": (
        "input x: f32[M, N]\ninput y: f64[N, M]\ninput z: f16[N, M]\n"
        "output o = f64(x) * y.T + f64(z.T)\noutput p = f32(y) + x.T\n",
        [{"M": 128, "N": 64}, {"M": 65, "N": 131}],
    ),
    "permuted": ("input x: f32[A, B, C]\noutput o[c, a, b] = x[a, b, c] * 2\n", [{"A": 2, "B": 65, "C": 131}, {"A": 2, "B": 65, "C": 3}]),
    "heads": ("input x: f32[B, S, H, D]\noutput o[b, h, s, d] = x[b, s, h, d] * 2\n", [{"B": 2, "S": 5, "H": 3, "D": 64}, {"B": 2, "S": 5, "H": 3, "D": 7}]),
    "strided": ("input x: f32[2 * N]\noutput o = x[::2] + x[1::2]\n", [{"N": 1000}, {"N": 257}]),
    "reversed": ("input x: bf16[N]\noutput o = x[::-1] * 2\n", [{"N": 1000}, {"N": 257}]),
    "slices": ("input x: f32[M, N]\noutput o = x[1:, 1:] + x[:-1, :-1]\n", [{"M": 33, "N": 65}, {"M": 9, "N": 33}, {"M": 2, "N": 2}]),
    "edge": ("input x: f32[N]\noutput o[i] = edge(x)[i + 1] - x[i]\n", [{"N": 1000}, {"N": 1}]),
    "wrap": ("input x: f32[M, N]\noutput o[i, j] = wrap(x)[i + 1, j] - wrap(x)[i, j - 1]\n", [{"M": 20, "N": 64}, {"M": 7, "N": 33}]),
    "rows around": ("input x: f32[M, N]\noutput o[i, j] = edge(x)[i - 1, j] + x[i, j] + edge(x)[i + 1, j]\n", [{"M": 20, "N": 64}, {"M": 7, "N": 33}]),
    "fill": ("input x: f32[M, N]\noutput o[i, j] = constant(x, 3)[i - 1, j] + x[i, j]\n", [{"M": 20, "N": 64}]),
    "gather": ("input x: f32[V]\ninput t: i64[N] where 0 <= t < V\noutput o[n] = x[t[n]] * 2\n", [{"N": 1000, "V": 333}]),
    "embedding": (
        "input w: f32[V, D]\ninput t: i64[N] where 0 <= t < V\noutput o[n, d] = w[t[n], d]\n",
        [{"N": 100, "V": 33, "D": 64}, {"N": 57, "V": 5, "D": 33}],
    ),
    "table": ("input img: u8[H, W]\ninput lut: u8[256]\noutput o[y, x] = lut[i64(img[y, x])]\n", [{"H": 64, "W": 128}, {"H": 9, "W": 33}]),
    "types": (
        "input m: bool[N]\ninput x: f64[N]\ninput y: i8[N]\noutput o = where(m, x, 0)\noutput k = not m\noutput p = y * y\n",
        [{"N": 5000}, {"N": 257}],
    ),
    "guarded": ("input x: f32[N]\ninput t: i64[N]\noutput o[n] = x[t[n]] if t[n] >= 0 and t[n] < N else 0.0\n", [{"N": 1000}]),
    "triangle": ("input x: f32[N, N]\noutput o[i, j] = x[i, j] if j <= i else 0.0\n", [{"N": 64}, {"N": 33}]),
    "joined": ("input x: f32[M, N]\ninput y: f32[M, K]\noutput o = concat(x, y, axis=1)\n", [{"M": 10, "N": 64, "K": 32}, {"M": 7, "N": 33, "K": 5}]),
    "indices": ("input x: f32[M, N]\noutput o[i, j] = x[i, j] + f32(i * 10 + j)\n", [{"M": 33, "N": 64}, {"M": 9, "N": 33}]),
    "param": ("param a: f32\ninput x: f16[N]\noutput o[i] = x[i] * f16(a) + f16(i)\n", [{"N": 1000}]),
    "steps": (
        "input x: f32[N]\ninput c: f32[6]\nscan k in 0..6 carry (a = x * 0) {\n  next a = a * x + c[k]\n}\noutput o = a\n",
        [{"N": 1000}],
    ),
    "outer": ("input x: f32[M]\ninput y: f32[N]\noutput o[i, j] = x[i] * y[j]\n", [{"M": 9, "N": 33}, {"M": 3, "N": 20000}]),
}  # fmt: skip


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bands too take whole vectors, several a thread."""
    for name, number in (("SPREAD", 0), ("BLOCKS", 0), ("MOST_VECTORS", 4), ("STREAMS", 9)):
        monkeypatch.setattr(maps, name, number)


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bands too take whole vectors, one a thread."""
    monkeypatch.setattr(maps, "SPREAD", 0)


CASES = [(name, sizes) for name, (_, all_) in PROGRAMS.items() for sizes in all_]


def lowered(text: str) -> Lowered:
    return lower_program(compile_source(Source("map.lf", text)).typed)


def made(text: str, sizes: Sizes, dynamic: bool = False) -> Code:
    optimised = driver.optimise(lowered(text), Options(sizes=sizes))
    return emit(optimised.program, sizes, dynamic=dynamic)


def kernel(text: str, sizes: Sizes, dynamic: bool = False) -> KernelCode:
    (found,) = made(text, sizes, dynamic).kernels
    assert found.schedule == "map"
    return found


def verdict(text: str, sizes: Sizes, dynamic: bool = False, strict: bool = True, only: str | None = None) -> str:
    """What is wrong with the results of the emitted kernels on the CPU."""
    low = lowered(text)
    params: dict[str, Any] = {p.id: 1.5 for p in low.program.buffers if p.role == "param"}
    bound = driver.bind_program(low.typed, Given({}, dims=sizes, params=params, fill=True, seed=1))
    optimised = driver.optimise(low, Options(sizes=bound.sizes))
    code = emit(optimised.program, bound.sizes, dynamic=dynamic, only=only)
    assert not strict or {k.schedule for k in code.kernels} == {"map"}
    arrays = driver.run_inputs(optimised, bound)
    outputs = {b.id: (b.dtype, [int(p.value(bound.sizes)) for p in b.shape])
               for b in optimised.program.buffers if b.role == "out"}  # fmt: skip
    found = build(code).check({n: arrays[n] for n in code.inputs}, {n: arrays[n] for n in code.params},
                              {n: bound.sizes[n] for n in code.sizes}, outputs)  # fmt: skip
    return Judge(low, bound).verdict(found)


@emulated
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("name", "sizes"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)
def test_it_computes_what_the_reference_does(name: str, sizes: Sizes) -> None:
    assert not verdict(PROGRAMS[name][0], sizes)


@emulated
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_bands(name: str) -> None:
    text, sizes = PROGRAMS[name]
    assert not verdict(text, sizes[0])


@emulated
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_text_for_all_sizes(name: str) -> None:
    text, sizes = PROGRAMS[name]
    assert not verdict(text, sizes[-1], dynamic=True)


@emulated
@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("name", PROGRAMS)
def test_subscripts_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_NARROW", 2)
    text, sizes = PROGRAMS[name]
    assert all("long long" in k.text for k in made(text, sizes[0]).kernels)
    assert not verdict(text, sizes[0])


@emulated
@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_is_launched_for_an_empty_band(dynamic: bool) -> None:
    assert not verdict(PROGRAMS["flat"][0], {"N": 0}, dynamic, strict=False)
    assert not verdict(PROGRAMS["transposed"][0], {"M": 0, "N": 5}, dynamic, strict=False)
    assert not verdict(PROGRAMS["slices"][0], {"M": 1, "N": 1}, dynamic, strict=False)


FOLDS = {
    "gray": ("input x: u8[H, W, 3]\ninput w: f32[3]\noutput o[h, q] = sum(f32(x[h, q, c]) * w[c] for c)\n", {"H": 20, "W": 64}),
    "taps": ("input x: f32[N]\ninput w: f32[5]\noutput o[i in 0..N] = sum(edge(x)[i + k - 2] * w[k] for k)\n", {"N": 1000}),
    "box": (
        "input x: f32[H, W]\n"
        "output o[y in 0..H, q in 0..W] = max(edge(x)[y + a - 1, q + b - 1] for a in 0..3, b in 0..3)\n",
        {"H": 20, "W": 64},
    ),
    "some": ("input x: f32[N, 4]\noutput o[i] = any(x[i, k] > 0.5 for k)\noutput c[i] = sum(x[i, k] > 0 for k)\n", {"N": 1000}),
    "softmax": (
        "input x: f32[N, 4]\nlet m[i] = max(x[i, k] for k)\n"
        "output o[i, k] = exp(x[i, k] - m[i]) / sum(exp(x[i, j] - m[i]) for j)\n",
        {"N": 1000},
    ),
}  # fmt: skip


@emulated
@pytest.mark.parametrize("name", FOLDS)
def test_folds_of_a_few_elements_are_written_out(name: str) -> None:
    text, sizes = FOLDS[name]
    assert not verdict(text, sizes, only="map")


def test_a_recurrence_of_a_few_steps_stays_in_registers() -> None:
    found = peer("small_chain_f32")
    assert found.schedule == "map"
    assert found.text.count("tanhf") == 10
    assert len(re.findall(r"\bo\[", found.text)) == 1
    assert "for (" not in found.text


# -- forms ------------------------------------------------------------------------------------------------------------


def peer(name: str) -> KernelCode:
    workload = WORKLOADS[name]
    low = lower_program(compile_source(driver.read_source(workload.path)).typed)
    sizes: dict[str, int] = {}
    for buffer in low.program.buffers:
        for poly, extent in zip(buffer.shape, getattr(workload.inputs.get(buffer.id), "shape", ()), strict=False):
            if poly.name is not None:
                sizes[poly.name] = extent
    if name.startswith("lstm"):
        sizes = {"B": 8192, "U": 2048}
    (found,) = emit(driver.optimise(low, Options(sizes=sizes)).program, sizes).kernels
    return found


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("ew_chain_f32", ["lf_read<4, 16>"] * 3),
        ("sigmoid_mul_bf16", ["lf_read<8, 16>"] * 2),
        ("bias_gelu_bf16", ["lf_peek<8, 16>", "lf_read<8, 16>"]),
        ("lstm_gate_f32", ["lf_read<4, 16>"] * 5),
        ("transpose_add_f32", ["lf_read<4, 16>", "lf_read<4, 16>", "lf_peek<4, 16>"]),
    ],
)
def test_workloads_move_16_bytes_at_a_time(name: str, reads: list[str]) -> None:
    text = peer(name).text
    assert re.findall(r"lf_(?:read|peek)<\d+, \d+>", text) == reads
    assert set(re.findall(r"lf_(?:write|leave)<(\d+)>", text)) == {"16"}
    assert "else" not in text, "these extents divide"
    assert "long long" not in text


def test_the_bias_of_a_row_is_read_once_a_thread() -> None:
    text = peer("bias_gelu_bf16").text
    assert text.index("lf_peek<8, 16>(b") < text.index("#pragma unroll")


def test_small_bands_take_one_vector_a_thread_and_are_spread_over_the_device() -> None:
    code = made(PROGRAMS["flat"][0], {"N": 1 << 14})
    (launch,) = code.launches()
    assert int(launch.grid[0].constant) >= 64
    assert "[2]" not in code.kernels[0].text


def test_large_outputs_stream_and_small_ones_stay_in_the_cache() -> None:
    text = PROGRAMS["flat"][0]
    assert "lf_write<16>" in kernel(text, {"N": 1 << 26}).text
    assert "lf_leave<16>" in kernel(text, {"N": 1 << 20}).text


def test_elements_that_are_not_adjacent_are_taken_by_threads_side_by_side() -> None:
    text = kernel(PROGRAMS["strided"][0], {"N": 1 << 22}).text
    assert "lf_vec" not in text
    assert "u < 8" in text


def test_rows_of_odd_length_are_one_index_all_the_same() -> None:
    text = kernel(PROGRAMS["row"][0], {"M": 8191, "N": 8191}).text
    assert "lf_read<8, 16>(x + here)" in text
    assert "++j == 8191" in text


def test_rows_whose_length_is_required_to_divide_are_vectors_at_every_size() -> None:
    script = "input x: bf16[M, N]\ninput b: bf16[N]\nrequire N % 8 == 0\noutput o = x + b\n"
    text = kernel(script, {"M": 4096, "N": 4096}, dynamic=True).text
    assert "lf_peek<8, 16>(b + column)" in text


def test_a_load_under_a_condition_stays_there() -> None:
    text = kernel(PROGRAMS["guarded"][0], {"N": 1 << 20}).text
    assert re.search(r"\? x\[", text)
    assert not re.search(r"= x\[", text)


def test_rows_found_by_a_table_are_read_in_vectors() -> None:
    text = kernel(PROGRAMS["embedding"][0], {"N": 100000, "V": 50000, "D": 1024}).text
    assert re.search(r"lf_read<4, 16>\(w \+ \(int\)\(t_\[u\]\) \* 1024 \+ \w+\)", text)


@pytest.mark.parametrize("turn", [(64, 64), (32, 128), (128, 32), (256, 16)])
def test_tiles_have_no_bank_conflicts(turn: tuple[int, int]) -> None:
    """Threads of a warp that move vectors of 16 bytes do so in four phases of eight, 32 banks each."""
    down, across = turn
    units = Turn(None, down, across).units  # type: ignore[arg-type]

    def place(row: int, unit: int) -> int:
        return row * units + (unit ^ row // SIDE % units)

    for lanes in (range(start, start + 8) for start in range(0, 256, 8)):
        reads = {place(lane // units, lane % units) % 8 for lane in lanes}
        assert len(reads) == 8
        for e in range(SIDE):
            per = down // SIDE
            writes = {place(lane % per * SIDE + e, lane // per) % 8 for lane in lanes}
            assert len(writes) == min(8, units)


def test_every_place_of_a_tile_is_written_once() -> None:
    for down, across in ((64, 64), (16, 256), (256, 16)):
        units = across // SIDE
        places = {row * units + (unit ^ row // SIDE % units) for row in range(down) for unit in range(units)}
        assert places == set(range(down * units))


def test_loads_come_before_the_first_use() -> None:
    text = peer("sigmoid_mul_bf16").text
    last = max(m.start() for m in re.finditer("lf_read", text))
    assert last < text.index("lf_near_sigmoid")


def test_names_of_lines_rise() -> None:
    lines = [int(n) for n in re.findall(r"// line (\d+)", peer("lstm_gate_f32").text)]
    assert all(a <= b for a, b in pairwise(lines))


# -- machine code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arch"), [(name, "sm_90a") for name in PROGRAMS] + [(name, "sm_80") for name in ("row", "transposed bf16")]
)
def test_it_compiles_without_warning_or_spill(name: str, arch: str) -> None:
    pytest.importorskip("cuda.bindings")
    text, sizes = PROGRAMS[name]
    large = {n: v * 32 for n, v in sizes[0].items()}
    for code in (made(text, large), made(text, sizes[-1], dynamic=True)):
        for binary in compile_program(code, arch):
            assert not binary.warnings
            assert not binary.spills
            assert binary.registers <= 96


@pytest.mark.parametrize(
    "name", ["ew_chain_f32", "sigmoid_mul_bf16", "bias_gelu_bf16", "lstm_gate_f32", "transpose_add_f32"]
)
def test_workloads_keep_half_of_the_threads_resident(name: str) -> None:
    pytest.importorskip("cuda.bindings")
    found = peer(name)
    source = "\n".join(functions(found.text)) + "\n" + found.text
    binary = compile_kernel(source, found.name, "sm_90a", contract=True)
    assert binary.registers * found.threads * (1024 // found.threads) <= 65536
    assert not binary.spills
    assert not binary.warnings
