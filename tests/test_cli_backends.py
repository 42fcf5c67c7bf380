"""What runs a program: `--backend`, `--check`, `--dynamic`, and `check` and `bisect` on an engine that stands for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import emulated_engine
import ml_dtypes
import numpy as np
import pytest
from cli_shell import Shell
from emulated_engine import EmulatedEngine
from emulator import available
from test_cli_passes import shell as shell_fixture

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cuda import engine, toolchain
from loopfuse.diag import MachineError, Source
from loopfuse.generate import Array
from loopfuse.ir import Program
from loopfuse.views.compared import bounded, compare, compared_table, mismatches, ulps_between

shell, emulated = shell_fixture, emulated_engine.emulated
DATA = ("x=randn", "--dims", "B=3,N=70")
needs_emulator = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
needs_nvrtc = pytest.mark.skipif(not toolchain.wheel_version(), reason="NVRTC is not installed")
NO_GPU = "no NVIDIA driver was found: install one, or run on the reference interpreter (--backend reference)"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""

    def refused(ordinal: int = 0) -> engine.Engine:
        raise MachineError(NO_GPU)

    monkeypatch.setattr(engine, "usable", lambda ordinal=0: NO_GPU)
    monkeypatch.setattr(engine, "open_engine", refused)


# -- without a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("words", [("run", "s.lf", *DATA), ("check", "s.lf"), ("bisect", "s.lf"), ("bench", "s.lf")])
def test_the_gpu_is_asked_for_and_absent(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell(*words, "--backend", "cuda") == 4
    assert shell.err.strip() == f"loopfuse: {NO_GPU}"
    assert not shell.out


@pytest.mark.usefixtures("absent")
def test_auto_falls_back_and_tells_why_only_when_asked(shell: Shell) -> None:
    assert shell("run", "s.lf", *DATA) == 0
    assert "NVIDIA" not in shell.err
    assert shell("run", "s.lf", *DATA, "-v") == 0
    assert f"on the reference interpreter: {NO_GPU}" in shell.err
    assert shell("run", "s.lf", *DATA, "--dynamic", "--time") == 0
    assert "a call takes" not in shell.err
    assert shell("check", "s.lf") == 0


def test_wrong_command_lines(shell: Shell) -> None:
    assert shell("run", "s.lf", "--backend", "tpu") == 2
    assert shell("run", "s.lf", "--backend", "reference", "--dynamic") == 2


# -- held against the reference ---------------------------------------------------------------------------------------


def test_the_interpreter_is_held_against_itself(shell: Shell) -> None:
    assert shell("run", "s.lf", *DATA, "--backend", "reference", "--check", "--json") == 0
    (found,) = shell.records("compared")
    assert found["name"] == "p"
    assert found["ok"]
    assert found["elements"] == 210
    assert found["part_of_bound"] <= 1
    assert found["ulps"] <= 8


@needs_emulator
def test_a_run_is_held_against_the_reference(shell: Shell, emulated: EmulatedEngine) -> None:
    assert shell("run", "s.lf", *DATA, "--check") == 0
    assert emulated.runs == 1
    lines = shell.out.splitlines()
    assert lines[1].split() == ["output", "agrees", "max", "abs", "max", "ulp", "of", "bound", "undecided", "elements"]
    assert lines[2].split()[:2] == ["p", "yes"]
    emulated.wrong = 1
    assert shell("run", "s.lf", *DATA, "--check", "-o", "p.npy") == 3
    assert "no " in shell.out
    assert "`p`[0, 0] is 1." in shell.out
    assert "(210 of 210 differ)" in shell.out
    assert (shell.folder / "p.npy").exists(), "the results are there to be looked at"
    assert shell("run", "s.lf", *DATA, "--check", "--json") == 3
    assert not shell.records("compared")[0]["ok"]


@needs_emulator
@needs_nvrtc
def test_times_of_a_call(shell: Shell, emulated: EmulatedEngine) -> None:
    assert shell("run", "s.lf", *DATA, "--time") == 0
    assert "a call takes 1 ms on NVIDIA H200" in shell.err
    assert shell("run", "s.lf", *DATA, "--time", "--json") == 0
    assert shell.records("gpu")[0]["backend"] == "cuda"
    assert {"emit", "compile", "cuda"} <= shell.records("times")[0]["seconds"].keys()


@needs_nvrtc
def test_kernels_for_any_size(shell: Shell, emulated: EmulatedEngine) -> None:
    shell.write("h.lf", "input x: f32[N]\nlet t = x * 2\noutput y = t + 1\n")
    words = ("run", "h.lf", "x=randn", "--dims", "N=7", "--dynamic", "--show", "t")
    assert shell(*words) == 0, "the driver that does nothing leaves what was there"
    assert emulated.runs == 0, "the kernels were loaded, and not those for these sizes"
    assert shell.out.startswith("y  f32[7]")
    assert "\nt  f32[7]" in shell.out


@needs_emulator
def test_faults_are_told(shell: Shell, emulated: EmulatedEngine) -> None:
    shell.write("g.lf", "input x: f32[N]\ninput k: i32[M]\noutput y[i] = x[k[i]]\n")
    np.save(shell.folder / "k.npy", np.array([0, 9], np.int32))
    assert shell("run", "g.lf", "x=randn", "k=k.npy", "--dims", "N=3") == 1
    assert "LF0704" in shell.err


# -- check and bisect -------------------------------------------------------------------------------------------------


@needs_emulator
def test_check_holds_the_gpu_against_the_reference(shell: Shell, emulated: EmulatedEngine) -> None:
    assert shell("check", "s.lf", "--json") == 0
    found = shell.records("compared")
    assert len(found) >= 5, "several sets of data"
    assert all(r["ok"] for r in found)
    emulated.wrong = 1
    assert shell("check", "s.lf") == 3
    assert "by the reference" in shell.out
    assert "on data of B = " in shell.out
    assert shell("check", "s.lf", "--backend", "reference") == 0


@needs_emulator
def test_check_after_every_pass(shell: Shell, emulated: EmulatedEngine) -> None:
    assert shell("check", "s.lf", "--every-pass", "--passes", "fuse") == 0
    assert "lower  yes      in bounds" in shell.out
    emulated.wrong = 1
    assert shell("check", "s.lf", "--every-pass", "--passes", "fuse") == 3
    assert "lower is the first pass whose results differ" in shell.out


@needs_emulator
def test_bisect_finds_the_decision_after_which_a_kernel_is_wrong(shell: Shell, emulated: EmulatedEngine,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    assert shell("bisect", "s.lf", "--backend", "cuda") == 0
    run = emulated.run

    def wrong_when_fused(program: Program, inputs: Mapping[str, Any], sizes: Mapping[str, int],
                         seconds: dict[str, float] | None = None) -> tuple[dict[str, Array], list[engine.Hit]]:  # fmt: skip
        emulated.wrong = int(len(program.kernels) < 3)
        return run(program, inputs, sizes, seconds)

    monkeypatch.setattr(emulated, "run", wrong_when_fused)
    assert shell("bisect", "s.lf", "--backend", "cuda", "--json") == 3
    (found,) = shell.records("bisect")
    assert found["pass"] == "fuse"
    assert found["step"] is not None
    assert found["diff"]
    assert shell("bisect", "s.lf") == 0, "on the interpreter nothing is wrong"


@needs_emulator
def test_bisect_blames_the_emission_of_the_lowered_program(shell: Shell, emulated: EmulatedEngine) -> None:
    emulated.wrong = 1
    assert shell("bisect", "s.lf", "--backend", "cuda") == 3
    assert "pass lower: `p`[" in shell.out


# -- distances --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_steps_between_numbers(dtype: Any) -> None:
    one = np.array([1.0, 0.0, -1.0], dtype)
    assert ulps_between(one, one) == 0
    assert ulps_between(np.array([0.0], dtype), np.array([-0.0], dtype)) == 0
    bits = np.dtype(f"i{one.dtype.itemsize}")
    above = (one[:1].view(bits) + 3).view(dtype)
    assert ulps_between(one[:1], above) == 3
    least = np.array([1], bits).view(dtype)
    assert ulps_between(least, -least) == 2
    assert ulps_between(one[:0], one[:0]) == 0


def test_steps_between_the_farthest_doubles() -> None:
    most = np.array([np.finfo(np.float64).max])
    assert ulps_between(most, -most) == 2 * int(most.view(np.int64)[0])


def test_outputs_beside_the_reference() -> None:
    text = "input x: f32[N]\ninput k: i32[N]\noutput y = exp(x)\noutput n = k + 1\noutput b = x > 0\n"
    lowered = driver.lower_program(driver.compile_source(Source("t.lf", text)).typed)
    x = np.array([0.5, np.inf, np.nan, -np.inf], np.float32)
    bound = driver.bind_program(lowered.typed, Given({"x": x, "k": np.arange(4, dtype=np.int32)}))
    outcome = driver.execute(lowered, bound, backend="reference")
    expected = bounded(lowered, bound)
    found = compare(lowered, expected, outcome.buffers)
    assert [c.name for c in found] == ["y", "n", "b"]
    assert all(c.miss is None and c.distance == 0 for c in found)
    assert [c.ulps is None for c in found] == [False, True, True]
    assert not mismatches(found)
    changed = {id: a.copy() for id, a in outcome.buffers.items()}
    ids = {o.name: o.buffer for o in lowered.typed.outputs}
    changed[ids["n"]][2] += 5
    changed[ids["b"]][0] = ~changed[ids["b"]][0]
    changed[ids["y"]][1] = 3.0  # where infinity should be: no distance, and wrong
    wrong = compare(lowered, expected, changed)
    assert [c.miss is not None for c in wrong] == [True, True, True]
    assert wrong[1].distance == 5
    assert wrong[0].distance == 0
    assert len(mismatches(wrong)) == 3
    assert "no" in compared_table(wrong)[1]


@pytest.mark.gpu
@pytest.mark.parametrize("words", [(), ("--dynamic",), ("--passes", "none")])
def test_on_a_gpu(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell("run", "s.lf", *DATA, "--backend", "cuda", "--check", "--time", *words) == 0, shell.out
    assert "a call takes" in shell.err
    assert shell("check", "s.lf", "--backend", "cuda", "--every-pass") == 0, shell.out
    assert shell("bisect", "s.lf", "--backend", "cuda") == 0, shell.out
