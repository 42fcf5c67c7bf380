"""`loopfuse doctor`: a machine without a GPU, one whose GPU side is broken somewhere, and one where all is well."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulated_engine
import pytest
from cli_shell import Shell
from emulated_engine import EmulatedEngine
from test_cli_passes import shell as shell_fixture

from loopfuse.cli import examining
from loopfuse.cuda import measure, presence, toolchain
from loopfuse.cuda.presence import Presence
from loopfuse.diag import CompilerError, MachineError

shell, emulated = shell_fixture, emulated_engine.emulated
needs_nvrtc = pytest.mark.skipif(not toolchain.wheel_version(), reason="NVRTC is not installed")
GPU = Presence(True, 13000, 0, 1)


def said(shell: Shell, *words: str) -> dict[str, tuple[bool | None, str]]:
    """The findings by subject."""
    shell("doctor", "--json", *words)
    return {r["subject"]: (r["ok"], r["value"]) for r in shell.records("doctor")}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Sets what the driver's library says; the cache is a folder of its own."""
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path / "cache"))

    def set_to(found: Presence) -> None:
        monkeypatch.setattr(examining, "presence", lambda: found)

    return set_to


@pytest.fixture
def gpu(there: Any, emulated: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> EmulatedEngine:
    there(GPU)
    monkeypatch.setattr(examining, "open_device", lambda: emulated.device)
    return emulated


# -- no GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [Presence(False), Presence(True, 13000, 100), Presence(True, 13000, 0, 0)])
def test_without_a_gpu_nothing_is_wrong(shell: Shell, there: Any, found: Presence) -> None:
    there(found)
    assert shell("doctor") == 0
    assert "WRONG" not in shell.out
    findings = said(shell)
    assert findings["GPU driver"][0] is None
    assert findings["compiled"][0] is True
    assert "GPU context" not in findings
    assert "test kernel" not in findings


@pytest.mark.parametrize("found", [Presence(False), Presence(True, 13000, 100)])
def test_without_a_gpu_there_is_nothing_to_measure(shell: Shell, there: Any, found: Presence) -> None:
    there(found)
    assert shell("doctor", "--measure") == 4
    assert "there is no GPU to measure" in shell.out


def test_without_a_compiler_and_without_a_gpu(shell: Shell, there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise MachineError("there is no CUDA compiler (no cuda-bindings, nor is there nvcc): install one")

    there(Presence(False))
    monkeypatch.setattr(examining, "find_compiler", none)
    monkeypatch.setattr(examining, "find_tool", lambda name: None)
    assert shell("doctor") == 0
    findings = said(shell)
    assert findings["CUDA compiler"] == (
        None,
        "there is no CUDA compiler (no cuda-bindings, nor is there nvcc): install one",
    )
    assert findings["nvcc"][0] is None
    assert findings["nvdisasm"][0] is None


# -- a GPU and something broken ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "words"), [
    (Presence(True, 13000, 999), "does not start (error 999)"),
    (Presence(True, 12040, 0, 1), "CUDA 12.4, and 13.0 is needed"),
])  # fmt: skip
def test_a_driver_that_will_not_do(shell: Shell, there: Any, monkeypatch: pytest.MonkeyPatch, found: Presence,
                                   words: str) -> None:  # fmt: skip
    def refused() -> None:
        raise MachineError("the NVIDIA driver is too old")

    there(found)
    monkeypatch.setattr(examining, "open_device", refused)
    assert shell("doctor") == 4
    assert words in shell.out
    assert said(shell)["GPU driver"][0] is False


def test_a_gpu_without_a_compiler(shell: Shell, gpu: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise MachineError("there is no CUDA compiler: install one")

    monkeypatch.setattr(examining, "find_compiler", none)
    assert shell("doctor") == 4
    findings = said(shell)
    assert findings["CUDA compiler"][0] is False
    assert findings["GPU context"][0] is True
    assert "test kernel" not in findings, "nothing can be compiled to try"


@needs_nvrtc
def test_a_compiler_that_compiles_nothing(shell: Shell, gpu: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **named: object) -> None:
        raise CompilerError("cuda", "builtins are missing\nand more")

    monkeypatch.setattr(examining, "compile_kernel", refused)
    assert shell("doctor") == 4
    assert "it compiles nothing: builtins are missing;" in shell.out.replace("internal error in cuda: ", "")


def test_a_gpu_without_pycuda(shell: Shell, there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MachineError("PyCUDA is missing or does not load: pip install 'loopfuse[cuda]'")

    there(GPU)
    monkeypatch.setattr(examining, "open_device", missing)
    assert shell("doctor") == 4
    assert said(shell)["GPU context"] == (False, "PyCUDA is missing or does not load: pip install 'loopfuse[cuda]'")


@needs_nvrtc
def test_kernels_that_compute_something_else(shell: Shell, gpu: EmulatedEngine) -> None:
    gpu.wrong = 1
    assert shell("doctor") == 4
    findings = said(shell)
    assert findings["test kernel"] == (False, "it runs on the GPU, and its results in f32 are wrong")
    assert findings["bf16"][0] is False


@needs_nvrtc
def test_kernels_that_do_not_run(shell: Shell, gpu: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*args: object, **named: object) -> None:
        raise CompilerError("cuda", "`s` stopped with CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(gpu, "run", lost)
    assert shell("doctor") == 4
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said(shell)["test kernel"][1]


# -- all is well ------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_a_gpu_that_works(shell: Shell, gpu: EmulatedEngine) -> None:
    assert shell("doctor") == 0
    findings = said(shell)
    for subject in ("GPU driver", "CUDA compiler", "GPU context", "test kernel", "bf16", "compiled"):
        assert findings[subject][0] is True, subject
    assert findings["GPU driver"][1] == "CUDA 13.0, GPUs: 1"
    assert "sm_90a" in findings["GPU context"][1]
    assert findings["energy meter"][0] is None
    assert findings["copy bandwidth"] == (None, "4.28 TB/s by the preset; `loopfuse doctor --measure` measures it")


@needs_nvrtc
def test_measured_figures_are_kept_and_shown_beside_the_preset(shell: Shell, gpu: EmulatedEngine,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(measure, "measure", lambda device, told: {"bandwidth": 4.0e12, "fp32": 5.5e13, "launch": 3e-6})
    assert shell("doctor", "--measure") == 0
    assert "kept in" in shell.out
    findings = said(shell)
    assert findings["copy bandwidth"] == (True, "4 TB/s measured, 4.28 TB/s by the preset")
    assert findings["a launch"] == (True, "3 us measured, 2 us by the preset")
    assert findings["f64 arithmetic"][0] is None


@needs_nvrtc
def test_a_cache_that_cannot_be_kept(shell: Shell, gpu: EmulatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.folder / "file").write_text("")
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(shell.folder / "file" / "below"))
    assert shell("doctor") == 0
    assert said(shell)["compiled"][0] in (None, True)


# -- the driver's library ---------------------------------------------------------------------------------------------


def library(version: int, status: int, count: int) -> SimpleNamespace:
    """A library that answers so."""

    def number(value: int) -> Any:
        def store(pointer: Any) -> int:
            pointer._obj.value = value
            return 0

        return store

    return SimpleNamespace(
        cuDriverGetVersion=number(version), cuInit=lambda flags: status, cuDeviceGetCount=number(count)
    )


@pytest.mark.parametrize(("answers", "absent"), [
    ((13000, 0, 2), False), ((13000, 0, 0), True), ((13000, 100, 0), True), ((12080, 803, 0), False),
])  # fmt: skip
def test_what_the_library_says(monkeypatch: pytest.MonkeyPatch, answers: tuple[int, int, int], absent: bool) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library(*answers))
    found = presence.presence()
    assert (found.version, found.status, found.devices) == answers
    assert found.library
    assert found.absent == absent


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", none)
    assert presence.presence().absent
    assert presence.release(13010) == "13.1"


@pytest.mark.gpu
def test_on_a_gpu(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path / "cache"))
    assert shell("doctor", "--measure") == 0, shell.out
    findings = said(shell)
    for subject in ("GPU driver", "CUDA compiler", "GPU context", "test kernel", "bf16", "compiled", "copy bandwidth"):
        assert findings[subject][0] is True, findings[subject]
