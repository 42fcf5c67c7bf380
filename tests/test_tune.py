"""Tuning: which tile wins, what becomes of the file, and the commands, on a GPU that is none and by a clock that is made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated_engine
import ml_dtypes
import numpy as np
import pytest
from cli_shell import Shell
from emulated_engine import EmulatedEngine
from emulator import available
from fake_gpu import FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli_backends import absent as absent_fixture
from test_cli_passes import shell as shell_fixture
from test_lock import GEMM, H200_HERE, SIZES, program

import loopfuse as lf
from loopfuse.backends.reference import Bounded
from loopfuse.bench import tuning
from loopfuse.bench.tuning import Timed, Tuned, best_of, differs, merged
from loopfuse.cuda import context, engine, timing
from loopfuse.cuda.binary import Binary
from loopfuse.devices import Device
from loopfuse.emit.code import Code
from loopfuse.emit.program import offers
from loopfuse.lock import Entry, read_lock, write_lock

shell, emulated, absent = shell_fixture, emulated_engine.emulated, absent_fixture
DATA = ("a=randn", "b=randn", "--dims", "M=200,N=136,K=72")
needs_emulator = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


# -- deciding ---------------------------------------------------------------------------------------------------------


def around(median: float, spread: float = 0.0, count: int = 11) -> tuple[float, ...]:
    """Times whose quartiles are so far apart."""
    return tuple(median + spread * (k - count // 2) / (count // 2) for k in range(count))


@pytest.mark.parametrize(("samples", "best"), [
    ([around(10.0)], 0),
    ([around(10.0), around(9.0)], 1),
    ([around(10.0), around(9.0), around(8.0)], 2),
    ([around(10.0), around(8.0), around(8.0)], 1),
    ([around(10.0), around(9.95)], 0),  # by half a percent
    ([around(10.0), around(9.85)], 1),
    ([around(10.0, 1.0), around(9.5)], 0),  # the model's times scatter by more
    ([around(10.0), around(9.5, 1.0)], 0),  # the other's do
    ([around(10.0, 1.0), around(8.0, 1.0)], 1),
    ([around(10.0), around(11.0)], 0),
    ([(10.0,), (8.0,)], 1),
])  # fmt: skip
def test_the_model_stays_unless_it_is_beaten(samples: list[tuple[float, ...]], best: int) -> None:
    assert best_of(samples) == best


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=9), min_size=1, max_size=6))
def test_what_wins_is_faster(samples: list[list[float]]) -> None:
    best = best_of(samples)
    if best:
        assert np.median(samples[best]) < 0.99 * np.median(samples[0])
        assert np.median(samples[best]) == min(np.median(s) for s in samples)


def tuned(digest: str, sizes: str = "K=8 M=8", problem: str = "") -> Tuned:
    times = (Timed("m", (2e-6,)), Timed("t", (1.23456e-6,)))
    return Tuned("k1", digest, "y", sizes, () if problem else times, 0 if problem else 1, problem=problem)


def test_merging() -> None:
    def old(sizes: str) -> Entry:
        return Entry("o", 1.0, "m", 1.0, "k9: x", sizes)

    before = {"kept": old("K=9 M=8"), "stale": old("K=8 M=8"), "renamed": old("K=8 L=8"), "again": old("K=8 M=8"),
              "failed": old("K=8 M=8")}  # fmt: skip
    found = [tuned("again"), tuned("new"), tuned("failed", problem="no registers")]
    after, gone = merged(before, found, ["K=8 M=8"])
    assert set(gone) == {"stale", "renamed"} and set(after) == {"kept", "again", "new", "failed"}
    assert after["again"] == after["new"] == Entry("t", 1.235, "m", 2.0, "k1: y", "K=8 M=8")
    assert after["failed"] == before["failed"] and after["kept"] == before["kept"]
    assert merged(before, [], ["K=8 M=8"])[0].keys() == {"kept"}


def test_results_that_differ() -> None:
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    assert not differs(x, x, None) and not differs(x + np.float32(1e-3), x, None)
    assert differs(np.where(np.arange(1000) < 20, 0.5, x).astype(np.float32), x, None)
    odd = x.copy()
    odd[3], odd[5] = np.nan, np.inf
    assert not differs(odd, odd, None)
    places = np.arange(1000)
    assert not differs(np.where(places == 7, 8, places), places, None)  # one tie that rounding decides
    assert differs(places + 1, places, None)
    bound = Bounded(x, x.astype(np.float64), np.full(1000, 1e-6), np.zeros(1000, bool))
    assert not differs(x, x, bound) and differs(x + np.float32(1e-3), x, bound)


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver({"lf_spin": lambda grid, cycles: None})
    monkeypatch.setattr(timing, "kernel", lambda *_: ("lf_spin", 0, 0))
    order: list[str] = []
    calls = [lambda n=name: order.append(n) for name in "abc"]
    found = timing.time_in_turns(context.Device(driver), calls, budget=0.0)
    assert found == [(1e-3,) * timing.LEAST] * 3
    warm, timed = order[: 3 * timing.WARM + 3], order[3 * timing.WARM + 3 :]
    assert "".join(warm) == "aaabbbccc" + "abc"
    assert "".join(timed) == ("abc" + "cba") * 3 + "abc"
    assert len(driver.names("fill")) == len(order) - 3 * timing.WARM


# -- tuning -----------------------------------------------------------------------------------------------------------

Clock = Callable[[Sequence[str]], list[tuple[float, ...]]]


class Trials:
    """Compilation that gives nothing to run, and a clock that is told what each tile takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Device) -> None:
        self.seconds: dict[str, float] = {}
        self.spills: dict[str, int] = {}
        self.tiles: list[list[str]] = []
        _, made = program(GEMM, SIZES)
        ((_, *others),) = offers(made, SIZES, model).values()
        self.other = others[0]  # the best but the model's
        monkeypatch.setattr(engine, "compile_program", self.compile)
        monkeypatch.setattr(tuning, "compile_program", self.compile)
        monkeypatch.setattr(tuning, "MOST", 3)
        monkeypatch.setattr(tuning, "MOST_OTHERS", 1)
        monkeypatch.setattr(tuning, "CHEAP", 0)  # nothing is computed that the reference could be asked about
        monkeypatch.setattr(tuning.timing, "time_in_turns", self.time)
        opened = tuning._Trial.open

        def open_(trial: Any) -> str:
            problem = opened(trial)
            self.tiles.append([tile for tile, _, _ in trial.opened])
            return problem

        monkeypatch.setattr(tuning._Trial, "open", open_)

    def compile(self, code: Code, arch: str, **_: object) -> list[Binary]:
        tiles = {c.kernel: c.tile for c in code.chosen}
        return [Binary(name=k.name, arch=arch, cubin=k.text.encode(), registers=32, spill_loads=self.spills.get(tiles.get(k.kernel, ""), 0))
                for k in code.kernels]  # fmt: skip

    def time(self, _: object, calls: Sequence[object], **__: object) -> list[tuple[float, ...]]:
        assert len(calls) == len(self.tiles[-1])
        return [(self.seconds.get(tile, 1e-5),) * 7 for tile in self.tiles[-1]]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, emulated: EmulatedEngine) -> Trials:
    emulated.model = replace(emulated.model, units=3)  # small products have tiles then
    return Trials(monkeypatch, emulated.model)


def entries(shell: Shell) -> dict[str, Entry]:
    found = read_lock(shell.folder / "s.lf.lock", pytest.fail)
    return found.sections[H200_HERE] if found is not None else {}


def test_the_fastest_is_kept_and_used(shell: Shell, trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MOST", 6)
    monkeypatch.setattr(tuning, "MOST_OTHERS", 2)
    shell.write("s.lf", GEMM)
    trials.seconds[trials.other] = 8e-6
    assert shell("bench", "s.lf", *DATA[2:], "--min-time", "0.01", "--tune") == 0
    (tiles,) = trials.tiles
    (entry,) = entries(shell).values()
    model = entry.model
    assert tiles[0] == model and len(tiles) == len(set(tiles)) == 8
    assert [t.split()[0] for t in tiles] == ["wgmma"] * 6 + ["mma.sync"] * 2
    assert entry == Entry(trials.other, 8.0, model, 10.0, "k1: y", "K=72 M=200 N=136")
    assert trials.other in shell.err and "25.0%" in shell.err and "wrote s.lf.lock" in shell.err
    assert shell("explain", "s.lf", "--kernel", "k1", *DATA[2:], "--device", "h200:units=3") == 0
    assert f"lock       {trials.other}, the model would take {model}" in shell.out


@pytest.mark.slow
@needs_emulator
def test_run_tunes_and_its_results_are_right(shell: Shell, trials: Trials) -> None:
    shell.write("s.lf", GEMM)
    trials.seconds[trials.other] = 8e-6
    assert shell("run", "s.lf", *DATA, "--tune", "--check") == 0
    assert "bf16[200, 136]" in shell.out and "  yes  " in shell.out
    (before,) = entries(shell).values()
    assert before.tile == trials.other
    assert shell("run", "s.lf", *DATA, "--check") == 0 and "LF0521" not in shell.err


def test_the_model_s_tile_is_kept_too(shell: Shell, trials: Trials) -> None:
    shell.write("s.lf", GEMM)
    assert (
        shell("bench", "s.lf", "--dims", "M=200,K=72", "--sweep", "N=136,144", "--tune", "--json", "--min-time", "0.01")
        == 0
    )
    found = shell.records("tuned")
    assert [t["sizes"] for t in found] == ["K=72 M=200 N=136", "K=72 M=200 N=144"]
    assert {e.tile == e.model for e in entries(shell).values()} == {True} and len(entries(shell)) == 2
    assert [r["problem"] for r in shell.records("bench")] == ["", ""]
    assert shell("bench", "s.lf", "--dims", "M=200,K=72", "--sweep", "N=152", "--tune", "--min-time", "0.01") == 0
    assert len(entries(shell)) == 3 and "taken away" not in shell.err  # other sizes of the same script


def test_stale_entries_go_and_are_told(shell: Shell, trials: Trials) -> None:
    shell.write("s.lf", GEMM)
    other = {"NVIDIA A100 (sm_80)": {"77": Entry("x", 1.0, "y", 1.0)}}
    stale = {"00": Entry("wgmma 64x64 slots=2", 1.0, "m", 1.0, "k3: z", "K=72 M=200 N=136")}
    write_lock(shell.folder / "s.lf.lock", {H200_HERE: stale, **other})
    assert shell("bench", "s.lf", "--dims", "M=200,N=136,K=72", "--min-time", "0.01", "--tune") == 0
    assert "s.lf.lock: the entry of k3: z is taken away: the script has no such kernel any more" in shell.err
    assert "00" not in entries(shell) and len(entries(shell)) == 1
    again = read_lock(shell.folder / "s.lf.lock", pytest.fail)
    assert again is not None and again.sections["NVIDIA A100 (sm_80)"] == other["NVIDIA A100 (sm_80)"]
    shell.write("s.lf", "input x: f32[N]\noutput y = x * 2\n")
    assert shell("bench", "s.lf", "--min-time", "0.01", "--tune") == 0
    assert "no kernel of the program has a choice of tiles" in shell.err and "taken away" in shell.err


def test_tiles_that_spill_or_are_wrong_are_left_out(
    shell: Shell, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.write("s.lf", GEMM)
    seen: list[int] = []
    monkeypatch.setattr(tuning, "differs", lambda *_: seen.append(1) or len(seen) == 2)
    trials.seconds[trials.other] = 1e-6
    trials.spills[trials.other] = 512
    assert shell("bench", "s.lf", "--dims", "M=200,N=136,K=72", "--min-time", "0.01", "--tune", "--json") == 0
    (found,) = shell.records("tuned")
    why = {t["problem"] for t in found["left"]}
    assert why == {"512 bytes of registers spill to memory", "its results differ: a bug in loopfuse"}
    assert len(found["tiles"]) == 2 and found["best"] == found["tiles"][0]["tile"]


def test_each_kernel_has_its_own_trial(shell: Shell, trials: Trials, emulated: EmulatedEngine) -> None:
    """The second reads what the first computes; equal kernels are tuned once."""
    head = "input a: bf16[M, M]\ninput b: bf16[M, M]\ninput c: bf16[M, N]\n"
    shell.write("s.lf", head + "let t = a @ b\nlet u = t @ b\noutput y = f32(u @ c)\n")
    assert shell("bench", "s.lf", "--dims", "M=512,N=512", "--min-time", "0.01", "--tune", "--json") == 0
    assert [t["kernel"] for t in shell.records("tuned")] == ["k1", "k3"] and len(entries(shell)) == 2
    fills = [entry for entry in emulated.device.driver.log if entry[0] == "fill" and entry[2] == 0xFF]
    assert len(fills) == sum(map(len, trials.tiles))  # what one tile wrote is gone before the next is judged


def test_results_outside_the_bound_are_no_tile_s_fault(
    shell: Shell, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "CHEAP", 1 << 40)
    shell.write("s.lf", GEMM)
    assert shell("bench", "s.lf", "--dims", "M=200,N=136,K=72", "--min-time", "0.01", "--tune") == 3
    assert "k1 was not tuned: its results are not those of the reference, whatever the tile" in shell.err
    assert not (shell.folder / "s.lf.lock").exists()


def test_a_lock_that_cannot_be_written(shell: Shell, trials: Trials) -> None:
    shell.write("s.lf", GEMM)
    (shell.folder / "s.lf.lock").mkdir()
    assert shell("bench", "s.lf", "--dims", "M=200,N=136,K=72", "--min-time", "0.01", "--tune") == 1
    assert "error[LF0515]" in shell.err


def test_python_tunes(tmp_path: Path, trials: Trials) -> None:
    """The program that was made before, and is in the cache, is not taken for the tuned one."""
    path = tmp_path / "s.lf"
    path.write_text(GEMM)
    made = lf.compile(path)
    a, b = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((200, 72), (72, 136)))
    assert tiles_of(made, a, b) != [trials.other]
    trials.seconds[trials.other] = 1e-6
    (found,) = made.tune(a, b)
    assert found.timed[found.best].tile == found.entry.tile == trials.other
    assert tiles_of(made, a, b) == tiles_of(lf.compile(path), a, b) == [trials.other]
    assert tiles_of(lf.compile(path, lock=False), a, b) == [found.entry.model]
    sections = {H200_HERE: {found.digest: replace(found.entry, tile=found.timed[2].tile)}}
    write_lock(path.with_name("s.lf.lock"), sections)
    assert tiles_of(lf.compile(path), a, b) == [found.timed[2].tile]
    write_lock(path.with_name("s.lf.lock"), {H200_HERE: {found.digest: replace(found.entry, tile="wgmma 1x1")}})
    again = lf.compile(path)
    for _ in range(2):  # compiled, and from the cache
        with pytest.warns(UserWarning, match="the kernel has no such tile"):
            assert tiles_of(again, a, b) == [found.entry.model]
        again = lf.compile(path)


def tiles_of(made: lf.Compiled, *arrays: Any) -> list[str]:
    """The tiles of the program that a call runs."""
    made(*arrays, backend="cuda")
    ((loaded, _),) = made._accelerated._known.values()
    return [c.tile for c in loaded.code.chosen]


def test_commands_tell_of_a_tile_that_does_not_fit(shell: Shell, trials: Trials) -> None:
    shell.write("s.lf", GEMM)
    words = ("bench", "s.lf", *DATA[2:], "--min-time", "0.01")
    assert shell(*words, "--tune") == 0
    ((digest, entry),) = entries(shell).items()
    write_lock(shell.folder / "s.lf.lock", {H200_HERE: {digest: replace(entry, tile="wgmma 1x1")}})
    assert shell(*words) == 0
    assert shell.err.count("warning[LF0521]") == 1 and "s.lf.lock:6:1" in shell.err
    assert f"it runs with `{entry.model}`, which the model takes" in shell.err
    assert shell(*words, "--no-lock") == 0 and "LF0521" not in shell.err
    assert shell(*words, "--tune") == 0 and entries(shell)[digest].tile == entry.tile


# -- what cannot be tuned ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("command", ["run", "bench"])
def test_tuning_needs_a_gpu(shell: Shell, command: str) -> None:
    assert shell(command, "s.lf", "--tune") == 4
    assert shell.err.startswith(
        "loopfuse: tuning times kernels on a GPU, and this machine has none to use: no NVIDIA driver"
    )
    assert not shell.out and "reference" not in shell.err
    assert [p.name for p in shell.folder.iterdir()] == ["s.lf"]


@pytest.mark.parametrize(("words", "said"), [
    (("-", "--tune"), "stdin has no place"),
    (("s.lf", "--tune", "--no-lock"), "give one of them"),
    (("s.lf", "--tune", "--backend", "reference"), "--backend reference has none"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["run", "bench"])
def test_options_that_do_not_go_together(shell: Shell, command: str, words: tuple[str, ...], said: str) -> None:
    assert shell(command, *words) == 2
    assert said in shell.err
