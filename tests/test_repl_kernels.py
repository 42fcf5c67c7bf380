"""The session's commands about kernels: `:cuda`, `:ptx`, `:sass`, `:backend`, `:bench`."""

from __future__ import annotations

import re

import emulated_engine
import pytest
import repl_talk
from emulated_engine import EmulatedEngine
from emulator import available
from repl_talk import Talk

from loopfuse.cuda import engine, sass, toolchain
from loopfuse.repl.complete import complete

here, talk, softmax = repl_talk.here, repl_talk.talk, repl_talk.softmax  # the fixtures
emulated = emulated_engine.emulated
needs_nvrtc = pytest.mark.skipif(not toolchain.wheel_version(), reason="NVRTC is not installed")
needs_emulator = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
NO_GPU = "no NVIDIA driver was found: install one"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "usable", lambda ordinal=0: NO_GPU)


@needs_nvrtc
def test_kernels_as_text(softmax: Talk) -> None:
    assert "for any B, N" in softmax(":cuda")
    assert "shown by :cuda!" in softmax(":cuda")
    assert "__forceinline__" in softmax(":cuda!")
    softmax(":dims B=3 N=70")
    assert "for B = 3, N = 70" in softmax(":cuda")
    assert ".entry" in softmax(":ptx")
    softmax(":passes none")
    assert softmax(":cuda").count("// -- ") == 4
    assert softmax(":cuda m").count("// -- ") == 1
    assert softmax(":ptx k1").count("// -- ") == 1
    softmax(":cuda zz")
    assert "LF0502" in softmax.errors


@needs_nvrtc
def test_an_expression_is_enough(talk: Talk) -> None:
    talk("input x: f32[N]")
    assert talk(":cuda") == ""
    assert "LF0209" in talk.errors
    talk("let y = x * 2")
    assert "// of        k1: y" in talk(":cuda")


@needs_nvrtc
def test_machine_code_needs_a_program_that_reads_it(softmax: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_tool", lambda name: None)
    assert softmax(":sass") == ""
    assert softmax.reply.failed
    assert "nvdisasm" in softmax.reply.notes[0]
    assert "a bug" not in "".join(softmax.reply.notes)


def test_a_device_without_kernels(softmax: Talk) -> None:
    softmax(":device cpu")
    softmax(":cuda")
    assert "LF0820" in softmax.errors
    assert "written by" not in softmax(":cost")


def test_costs_tell_who_writes_a_kernel(softmax: Talk) -> None:
    assert re.search(r"^k1 is written by \w+ \(1 kernel\)", softmax(":cost"), re.MULTILINE)
    assert re.search(r"^  not \w+: ", softmax(":cost k1"), re.MULTILINE)
    assert all(
        len(line) <= 80
        for line in softmax(":cost k1").splitlines()
        if not line.startswith(("guards", "roles", "folds"))
    )


@pytest.mark.usefixtures("absent")
def test_the_back_end_without_a_gpu(softmax: Talk) -> None:
    assert "auto: the reference interpreter" in softmax(":backend")
    softmax(":backend cuda")
    assert softmax.reply.failed
    assert softmax.reply.notes == [f"loopfuse: {NO_GPU}"]
    assert softmax(":backend reference") == "reference\n"
    softmax(":backend nowhere")
    assert "LF0502" in softmax.errors
    assert softmax(":backend") == "reference\n"


@needs_emulator
def test_the_back_end_runs_what_is_evaluated(softmax: Talk, emulated: EmulatedEngine) -> None:
    assert softmax(":backend") == "auto: cuda\n"
    softmax(":dims B=2 N=5")
    softmax("sum(p, axis=-1)")
    assert emulated.runs == 1
    softmax(":run")
    assert emulated.runs == 2
    softmax(":backend reference")
    softmax(":run")
    assert emulated.runs == 2
    assert softmax(":backend cuda") == "cuda\n"
    softmax(":run")
    assert emulated.runs == 3
    assert not softmax.reply.failed


def test_times(softmax: Talk) -> None:
    softmax(":dims B=2 N=5")
    softmax(":backend reference")
    head, line, foot = softmax(":bench").splitlines()
    assert head.split()[:3] == ["sizes", "time", "spread"]
    assert line.startswith("B=2 N=5")
    assert foot.startswith("on reference")
    assert "made-up data for x" in softmax.reply.notes[0]
    assert softmax(":b").splitlines()[0].split() == head.split(), "short"


def test_times_need_an_output(talk: Talk) -> None:
    talk("input x: f32[N]")
    talk(":bench")
    assert "LF0209" in talk.errors


@needs_nvrtc
def test_times_on_an_engine(softmax: Talk, emulated: EmulatedEngine) -> None:
    softmax(":dims B=2 N=5")
    assert "NVIDIA H200" in softmax(":bench")


def test_completion(softmax: Talk) -> None:
    session = softmax.shell.session
    assert [c.text for c in complete(":cuda ", session)] == ["k1"]
    assert [c.text for c in complete(":backend c", session)] == ["cuda"]
    assert {c.text for c in complete(":c", session)} == {"check", "cost", "cuda"}


@pytest.mark.gpu
def test_on_a_gpu(softmax: Talk) -> None:
    assert softmax(":backend cuda") == "cuda\n"
    softmax(":dims B=33 N=1001")
    assert "checks hold" in softmax(":check")
    assert not softmax.reply.failed
    assert "roof" in softmax(":bench")
