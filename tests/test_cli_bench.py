"""`loopfuse bench`: rows, sweeps, files and comparisons, on the interpreter and on an engine that stands for a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import emulated_engine
import pytest
from cli_shell import Shell
from emulated_engine import EmulatedEngine
from test_cli_passes import shell as shell_fixture

from loopfuse import driver
from loopfuse.bench import measuring, rows, sweep
from loopfuse.bench.measuring import How, Subject
from loopfuse.bench.rows import Row
from loopfuse.bench.table import bench_table
from loopfuse.bench.work import work
from loopfuse.bind import Given
from loopfuse.cuda import nvml, toolchain
from loopfuse.devices import H200
from loopfuse.diag import Source, UserError, error
from loopfuse.views.plans import plan

shell, emulated = shell_fixture, emulated_engine.emulated
QUICK = ("--min-time", "0.01", "--backend", "reference")
needs_nvrtc = pytest.mark.skipif(not toolchain.wheel_version(), reason="NVRTC is not installed")


def row(median: float | None = 1.0, **rest: object) -> Row:
    low = None if median is None else median * 0.9
    high = None if median is None else median * 1.1
    return replace(Row("s.lf", "cuda", "default", {"N": 8}, "H200", median, low, high, 9), **rest)  # type: ignore[arg-type]


# -- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "values"), [
    ("N=2^10..2^13", (1024, 2048, 4096, 8192)),
    ("N=2**3..20", (8, 16)),
    ("N=100..500:200", (100, 300, 500)),
    ("N=10..10000*10", (10, 100, 1000, 10000)),
    ("N=0..2:1", (0, 1, 2)),
    ("N=1,7, 64", (1, 7, 64)),
    ("N=5", (5,)),
    ("größe=1_000..1_000", (1000,)),
])  # fmt: skip
def test_sweeps(text: str, values: tuple[int, ...]) -> None:
    assert sweep.parse(text) == (text.split("=")[0], values)


@pytest.mark.parametrize("text", [
    "N", "=3", "N=", "N=a..b", "N=8..2", "N=0..8", "N=1..8:0", "N=1..8*1", "N=1..2^60:1", "N=1..4..8", "N=-1", "N=2^99",
    "N=1.5", "N M=3", "N=1..8:", "N=1,,2",
])  # fmt: skip
def test_malformed_sweeps(shell: Shell, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sweep.parse(text)
    assert shell("bench", "s.lf", "--sweep", text) == 2
    assert "loopfuse bench: error:" in shell.err


def test_several_sweeps_make_every_combination() -> None:
    found = sweep.points([("N", (1, 2)), ("M", (3,))])
    assert found == [{"N": 1, "M": 3}, {"N": 2, "M": 3}]
    assert sweep.points([]) == [{}]
    with pytest.raises(ValueError, match="swept twice"):
        sweep.points([("N", (1,)), ("N", (2,))])
    with pytest.raises(ValueError, match="more than"):
        sweep.points([("N", range(100)), ("M", range(100))])


# -- the command on the interpreter -----------------------------------------------------------------------------------


def test_a_line_for_each_set_of_sizes_and_choice_of_passes(shell: Shell) -> None:
    assert shell("bench", "s.lf", *QUICK, "--dims", "B=3", "--sweep", "N=4..8", "--unfused", "--json") == 0
    found = shell.records("bench")
    assert [(r["sizes"]["N"], r["passes"]) for r in found] == [
        (4, "default"), (4, "unfused"), (8, "default"), (8, "unfused"),
    ]  # fmt: skip
    assert all(
        r["backend"] == "reference" and r["samples"] >= 5 and 0 < r["low"] <= r["median"] <= r["high"] for r in found
    )
    assert found[0]["kernels"] == 1
    assert found[1]["kernels"] == 4
    assert found[0]["bytes"] == 2 * 3 * 4 * 4
    assert found[0]["share"] is None, "the interpreter has no roof"


def test_the_table(shell: Shell) -> None:
    assert shell("bench", "s.lf", *QUICK, "--dims", "B=3,N=4", "--passes", "none", "--passes", "default") == 0
    head, first, second, foot = shell.out.splitlines()
    assert head.split()[:4] == ["sizes", "passes", "time", "spread"]
    assert head.split()[-1] == "x"
    assert "roof" not in head
    assert first.startswith("B=3 N=4  none")
    assert re.search(r" \d[\d.e+-]*$", second)
    assert foot == "on reference"


def test_sizes_that_nothing_gives_are_those_of_the_cost_model(shell: Shell) -> None:
    shell.write("t.lf", "input x: f32[N, 3]\noutput y = x + 1\n")
    assert shell("bench", "t.lf", *QUICK, "--json") == 0
    assert shell.records("bench")[0]["sizes"] == {"N": 4096}


def test_data_from_files_settles_sizes(shell: Shell) -> None:
    import numpy as np

    np.save(shell.folder / "x.npy", np.zeros((3, 5), np.float32))
    assert shell("bench", "s.lf", "x=x.npy", *QUICK, "--json") == 0
    assert shell.records("bench")[0]["sizes"] == {"B": 3, "N": 5}
    assert shell("bench", "s.lf", "x=x.npy", *QUICK, "--dims", "N=6") == 1


@pytest.mark.parametrize("words", [
    "--fail-over 5%", "--fail-over x --compare b.json", "--min-time 0", "--min-time x", "--min-time nan",
    "--dims N=3 --sweep N=4", "--sweep N=1 --sweep N=2", "--backend gpu", "--fail-over -1% --compare b.json",
])  # fmt: skip
def test_wrong_command_lines(shell: Shell, words: str) -> None:
    assert shell("bench", "s.lf", *words.split()) == 2


def test_errors_are_messages(shell: Shell) -> None:
    assert shell("bench", "none.lf") == 1
    assert "LF0510" in shell.err
    assert shell("bench", "s.lf", *QUICK, "--sweep", "Q=1..4") == 2
    assert "LF0502" in shell.err
    assert shell("bench", "s.lf", *QUICK, "--passes", "fsue") == 2
    assert "did you mean `fuse`?" in shell.err
    assert shell("bench", "s.lf", *QUICK, "--dims", "B=2,N=2", "--save", "no/such/folder.json") == 1
    assert "LF0515" in shell.err


def test_what_memory_is_too_small_for_is_a_row_that_says_so(shell: Shell) -> None:
    words = ("--limit", "64k", "--dims", "B=2", "--sweep", "N=4,65536", "--json")
    assert shell("bench", "s.lf", *QUICK, *words) == 0
    small, large = shell.records("bench")
    assert small["median"]
    assert large["median"] is None
    assert "memory" in large["problem"]
    assert shell("bench", "s.lf", *QUICK, *words[:-1]) == 0
    assert "memory" in shell.out
    assert shell("bench", "s.lf", *QUICK, "--limit", "64k", "--dims", "B=2,N=65536") == 1
    assert "LF0509" in shell.err


# -- files ------------------------------------------------------------------------------------------------------------


def test_kept_and_compared(shell: Shell) -> None:
    words = ("bench", "s.lf", *QUICK, "--dims", "B=3,N=4")
    assert shell(*words, "--save", "b.json") == 0
    assert "wrote b.json" in shell.err
    document = json.loads((shell.folder / "b.json").read_text("utf-8"))
    assert document["kind"] == "bench"
    assert document["command"][1] == "bench"
    assert shell(*words, "--compare", "b.json", "--fail-over", "10000%") == 0
    assert shell.out.splitlines()[0].split()[-2:] == ["was", "change"]
    for entry in document["rows"]:
        entry["median"] /= 1000
    (shell.folder / "fast.json").write_text(json.dumps(document), "utf-8")
    assert shell(*words, "--compare", "fast.json", "--fail-over", "5%") == 5
    assert "slower" in shell.out
    assert "1 of 1 are more than 5% slower than in fast.json" in shell.err
    assert shell(*words, "--compare", "fast.json") == 0, "without --fail-over slower rows are only marked"
    assert shell(*words[:-1], "B=3,N=5", "--compare", "fast.json", "--fail-over", "5%") == 0
    assert shell.out.splitlines()[1].split()[-1] == "new"


@pytest.mark.parametrize("text", [
    "", "{", "[]", "{}", '{"schema": 1, "kind": "bench"}', '{"schema": 2, "kind": "bench", "rows": []}',
    '{"schema": 1, "kind": "bench", "rows": [3]}', '{"schema": 1, "kind": "bench", "rows": [{"script": 1}]}',
    '{"schema": 1, "kind": "bench", "rows": [{"script": "s", "backend": "b", "passes": "p", "median": "x"}]}',
    '{"schema": 1, "kind": "bench", "rows": [{"script": "s", "backend": "b", "passes": "p", "median": NaN}]}',
    '{"schema": 1, "kind": "bench", "rows": [{"script": "s", "backend": "b", "passes": "p", "sizes": [1]}]}',
    "[" * 100000,
])  # fmt: skip
def test_files_that_hold_something_else(shell: Shell, text: str) -> None:
    shell.write("b.json", text)
    assert shell("bench", "s.lf", *QUICK, "--compare", "b.json") == 1
    assert "LF0511" in shell.err


def test_files_that_cannot_be_read(shell: Shell) -> None:
    assert shell("bench", "s.lf", *QUICK, "--compare", "none.json") == 1
    assert "LF0510" in shell.err
    (shell.folder / "b.json").write_bytes(b"\xff\xfe")
    assert shell("bench", "s.lf", *QUICK, "--compare", "b.json") == 1
    assert "LF0511" in shell.err


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    kept = [row(joules=0.5, operations=7), row(None, problem="no memory", passes="none")]
    rows.save(tmp_path / "b.json", kept, {"loopfuse": "x"})
    assert list(rows.load(tmp_path / "b.json").values()) == kept


def test_what_counts_as_slower() -> None:
    before = {row().key: row()}
    for median, slower in ((1.04, False), (1.06, True), (0.5, False), (None, True)):
        (change,) = rows.compare([row(median)], before, 0.05)
        assert change.slower == slower
    assert not rows.compare([row(9.0)], {}, 0.05)[0].slower
    assert not rows.compare([row(9.0, passes="none")], before, 0.05)[0].slower


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_what_follows_from_a_row() -> None:
    found = row(2.0, bytes=8, operations=6, roof=1.0, bound="memory", joules=3.0)
    assert (found.rate, found.speed, found.share, found.efficiency) == (4.0, 3.0, 0.5, 2.0)
    empty = row(None, bytes=8, roof=1.0)
    assert (empty.rate, empty.share, empty.efficiency) == (None, None, None)


def test_columns_without_anything_are_left_out() -> None:
    (head, line) = bench_table([row(1e-5, bytes=100, roof=5e-6, bound="memory", cached=True, compile=0.003)])
    assert head.split() == ["sizes", "time", "spread", "GB/s", "roof", "bound", "compile"]
    assert line.split() == ["N=8", "10", "us", "20.0%", "0.01", "50%", "memory", "3", "ms", "(cached)"]
    assert bench_table([]) == []


def lowered(text: str) -> driver.Lowered:
    return driver.lower_program(driver.compile_source(Source("t.lf", text)).typed)


def test_the_roof_counts_inputs_and_outputs_once() -> None:
    found = lowered("input x: f32[N]\nlet t = exp(x)\noutput y = t * sum(t)\n")
    bound = driver.bind_program(found.typed, Given({}, dims={"N": 1 << 20}, fill=True))
    for passes in ("none", "default"):
        program = driver.optimise(found, driver.Options(sizes=bound.sizes), passes)
        sizes = driver.plan_sizes(program.program) | bound.sizes
        done = work(program.program, plan(program.program, H200, bound.sizes, program.stages), H200, sizes)
        assert done.bytes == 8 << 20, passes
        assert done.bound == "memory"
        assert done.seconds == pytest.approx((8 << 20) / H200.bandwidth)


def test_a_program_without_work_is_bound_by_its_launch() -> None:
    found = lowered("input x: f32[N]\noutput y = x + 1\n")
    program = found.program
    done = work(program, plan(program, H200, {"N": 3}), H200, {"N": 3})
    assert done.bound == "launch"
    assert done.seconds == H200.graph_launch


def test_slow_calls_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now[0])

    def call(seconds: float) -> Callable[[], None]:
        def run() -> None:
            now[0] += seconds

        return run

    assert measuring.repeat(call(2.0), 0.3) == [2.0]
    assert len(measuring.repeat(call(0.1), 0.3)) == measuring.LEAST
    assert len(measuring.repeat(call(0.01), 0.3)) == pytest.approx(30, abs=2)


# -- on an engine that stands for a GPU -------------------------------------------------------------------------------


@needs_nvrtc
def test_on_an_engine(shell: Shell, emulated: EmulatedEngine) -> None:
    words = ("bench", "s.lf", "--min-time", "0.05", "--dims", "B=3,N=4", "--cold", "--json")
    assert shell(*words) == 0
    (found,) = shell.records("bench")
    assert found["backend"] == "cuda"
    assert found["device"] == "NVIDIA H200"
    assert found["median"] == 1e-3, "what the driver that does nothing says"
    assert found["host"] > 0
    assert found["compile"] > 0
    assert found["cold"] > 0
    assert found["bound"] == "launch"
    assert found["joules"] is None
    assert shell(*words[:-2]) == 0
    assert "(cached)" in shell.out
    assert "roof of the preset" in shell.out
    assert not emulated.device.owned or all(getattr(o, "closed", True) for o in emulated.device.owned)


@needs_nvrtc
def test_energy_where_a_meter_answers(shell: Shell, emulated: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    joules = [0.0]

    def energy(self: nvml.Meter) -> float:
        joules[0] += 100.0
        return joules[0]

    monkeypatch.setattr(nvml.Meter, "energy", energy)
    monkeypatch.setattr(measuring, "METERED", 0.01)
    assert shell("bench", "s.lf", "--min-time", "0.05", "--dims", "B=3,N=4") == 0
    head = shell.out.splitlines()[0].split()
    assert "J" in head
    assert "FLOP/J" in head


@needs_nvrtc
def test_the_gpu_runs_out_of_memory(shell: Shell, emulated: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> None:
        raise UserError(error("LF0509", "another 4 GiB of GPU memory are needed, and 1 GiB of 2 GiB are free"))

    monkeypatch.setattr(emulated.device, "take", none)
    assert shell("bench", "s.lf", "--dims", "B=3", "--sweep", "N=4,5") == 0
    assert shell.out.count("GPU memory") == 2


def test_without_a_gpu(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopfuse.cuda.engine.usable", lambda ordinal=0: "no NVIDIA driver was found: install one")
    assert shell("bench", "s.lf", "--backend", "cuda") == 4
    assert "no NVIDIA driver was found" in shell.err
    assert shell("bench", "s.lf", "--dims", "B=2,N=2", "--min-time", "0.01") == 0
    assert "on reference" in shell.out
    assert "no NVIDIA driver" not in shell.err
    assert shell("bench", "s.lf", "--dims", "B=2,N=2", "--min-time", "0.01", "-v") == 0
    assert "on the reference interpreter: no NVIDIA driver" in shell.err


@pytest.mark.gpu
def test_on_a_gpu(shell: Shell) -> None:
    shell.write("big.lf", "input x: f32[N]\ninput z: f32[N]\noutput y = tanh(x * 2 + z)\n")
    words = ("bench", "big.lf", "--backend", "cuda", "--sweep", "N=2^20..2^26*64", "--unfused", "--cold", "--json")
    assert shell(*words) == 0
    found = shell.records("bench")
    assert [r["passes"] for r in found] == ["default", "unfused"] * 2
    for r in found:
        assert 0 < r["median"] < 0.1
        assert 0 < r["host"] < 1e-3
        assert r["cold"] > 0
        assert r["kernels"] >= 1
    large = found[2]
    assert large["bound"] == "memory"
    assert 0.5 < large["share"] < 1.1
    assert large["median"] <= found[3]["median"] * 1.05
    assert large["joules"] is None or large["joules"] > 0


def test_a_subject_has_the_sizes_that_tell_it_apart() -> None:
    found = lowered("size R = 3\ninput x: f32[N]\noutput y = x + R\n")
    bound = driver.bind_program(found.typed, Given({}, dims={"N": 5}, fill=True))
    assert Subject("t.lf", found, bound).sizes == {"N": 5}
    timed = measuring.measured(Subject("t.lf", found, bound, "none", "plain"), "reference", How(0.01))
    assert timed.key == ("t.lf", "reference", "plain", (("N", 5),))
