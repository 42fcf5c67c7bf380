"""Compiling: what NVRTC and nvcc make of kernels, the figures read back, and what is said where they are missing."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cuda_code import TABLE, WIDE, twice

from loopfuse.cuda import compile as compiling
from loopfuse.cuda import ptxas, sass, toolchain
from loopfuse.cuda.binary import Binary, Figures, Options
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.compile import arch_for, compile_kernel, compile_program, compile_ptx, complaints, target_of
from loopfuse.diag import CompilerError, MachineError
from loopfuse.emit.code import KernelCode

MULTIPLY_ADD = """\
extern "C" __global__ void f(float* x, float a, float b) { x[0] = x[0] * a + b; x[1] = a / b; }
"""
NVCC = pytest.mark.skipif(toolchain.find_tool("nvcc") is None, reason="no nvcc here")


def program(folder: Path, name: str, text: str) -> str:
    """A program of a few lines of shell."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


# -- figures ----------------------------------------------------------------------------------------------------------

NVRTC_LOG = """\
ptxas info    : 272 bytes gmem
ptxas info    : Compiling entry function 'g' for 'sm_90a'
ptxas info    : Function properties for g
ptxas         .     40 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 28 registers, used 0 barriers, 40 bytes cumulative stack size
ptxas info    : Function properties for __internal_trig_reduction_slowpathd
ptxas         .     0 bytes stack frame, 16 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
ptxas         .     800 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 800 bytes cumulative stack size, 128 bytes smem
"""
OLD_LOG = """\
ptxas info    : Compiling entry function 'f' for 'sm_80'
ptxas info    : Function properties for f
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 2064 bytes smem, 376 bytes cmem[0], 8 bytes cmem[2]
"""


def test_figures_are_read_from_logs_of_old_and_new_compilers() -> None:
    g = ptxas.figures(NVRTC_LOG, b"", "g")
    assert g == Figures(registers=28, stack=40, spill_stores=20, spill_loads=8), "spills of called functions count"
    assert g.spills == 28
    assert ptxas.figures(NVRTC_LOG, b"", "f") == Figures(registers=40, stack=800, shared=128)
    assert ptxas.figures(OLD_LOG, b"", "f") == Figures(registers=12, stack=8, shared=2064)
    assert ptxas.figures(NVRTC_LOG, b"", "ff") == ptxas.figures("", b"not an ELF file", "f") == Figures()


def test_warnings_are_told_from_information() -> None:
    lines = [
        'k.cu(1): warning #177-D: variable "unused" was declared but never referenced',
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...",
        "ptxas warning : Value of threads per SM for entry f is out of range",
    ]
    for line in lines:
        assert ptxas.warnings(f"{NVRTC_LOG}{line}\n{OLD_LOG}") == (line,)
    assert not ptxas.warnings(NVRTC_LOG + OLD_LOG)
    assert not ptxas.warnings("ptxas info    : Function properties for warning"), "a kernel may have any name"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_figures_are_read_back(arch: str) -> None:
    found = compile_kernel(TABLE, "table", arch, contract=True)
    assert found.registers > 8
    assert found.shared == 128
    assert found.stack >= 64 * 4
    assert found.constant > 20
    assert not found.spills
    assert not found.warnings
    assert found.compiler.startswith("nvrtc ")
    assert "registers" in found.log
    assert found.seconds > 0
    assert found.cubin.startswith(b"\x7fELF")


def test_a_bound_on_registers_is_kept_and_its_spills_are_reported() -> None:
    free = compile_kernel(WIDE, "wide", "sm_90a", contract=True)
    assert free.registers > 64
    assert not free.spills
    bound = compile_kernel(WIDE, "wide", "sm_90a", contract=True, most_registers=32)
    assert bound.registers <= 32
    assert bound.spill_stores > 0
    assert bound.spill_loads > 0
    assert not bound.warnings
    assert free.key != bound.key


def test_a_warning_is_kept() -> None:
    found = compile_kernel('extern "C" __global__ void f() { int unused; }', "f", "sm_80", contract=True)
    assert any("unused" in line for line in found.warnings)


# -- options ----------------------------------------------------------------------------------------------------------


def test_options_reach_the_compiler() -> None:
    def text(contract: bool, fast: bool = False, lineinfo: bool = False) -> str:
        return compile_ptx(MULTIPLY_ADD, "f", "sm_90a", contract=contract, fast=fast, lineinfo=lineinfo)

    assert "fma.rn.f32" in text(True)
    assert "fma.rn.f32" not in text(False)
    assert "div.rn.f32" in text(True)
    assert "div.rn.f32" not in text(True, fast=True)
    assert ".loc" in text(True, lineinfo=True)
    assert ".loc" not in text(True)
    assert not any("ftz" in text(True, fast) for fast in (False, True)), "denormals are kept"
    assert "sm_90a" in text(True)


def test_the_architecture_of_a_device() -> None:
    devices = {
        (8, 0): "sm_80",
        (8, 6): "sm_86",
        (8, 9): "sm_89",
        (9, 0): "sm_90a",
        (10, 0): "sm_100",
        (12, 1): "sm_121",
    }
    assert {device: arch_for(*device) for device in devices} == devices


def test_a_device_newer_than_the_compiler_gets_ptx() -> None:
    assert target_of("sm_90a", (80, 90, 100)) == "sm_90a"
    assert target_of("sm_130", (80, 90, 100)) == "compute_100"
    assert target_of("sm_89", (80, 90)) == "compute_80"
    with pytest.raises(MachineError, match="sm_75 and later"):
        target_of("sm_70", (75, 80))
    found = compile_kernel(MULTIPLY_ADD, "f", "sm_999", contract=True)
    assert found.ptx
    assert found.cubin.endswith(b"\0"), "as the driver wants it"
    assert b".entry f" in found.cubin


def test_a_text_that_is_wrong_is_our_bug() -> None:
    with pytest.raises(CompilerError, match="does not compile for sm_80") as caught:
        compile_kernel("int f( {", "f", "sm_80", contract=True)
    assert caught.value.stage == "cuda"
    assert caught.value.artifact == "int f( {"
    assert "f.cu(1): error" in caught.value.message


# -- which compiler ---------------------------------------------------------------------------------------------------


def test_a_compiler_is_told_apart_without_loading_it() -> None:
    assert toolchain.fingerprint() == toolchain.find_compiler().fingerprint
    assert toolchain.fingerprint("nvrtc") == toolchain.find_compiler("nvrtc").fingerprint


@NVCC
def test_nvcc_gives_what_nvrtc_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(toolchain.VARIABLE, "nvcc")
    found = compile_kernel(TABLE, "table", "sm_90a", contract=False)
    assert found.compiler.startswith("nvcc ")
    assert found.registers > 8
    assert found.shared == 128
    assert found.stack >= 64 * 4
    assert not found.warnings
    other = compile_kernel(TABLE, "table", "sm_90a", contract=False, compiler="nvrtc")
    assert found.key != other.key
    assert toolchain.fingerprint() == toolchain.find_compiler().fingerprint != other.compiler
    with pytest.raises(CompilerError, match=r"error: expected"):
        compile_kernel("int f( {", "f", "sm_80", contract=True)


def test_a_path_names_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = """case "$1" in
--version) echo "Cuda compilation tools, release 12.4, V12.4.99";;
--list-gpu-arch) echo compute_80; echo compute_90; echo compute_90a;;
*) echo "nvcc fatal   : Failed to preprocess host compiler properties." >&2; exit 1;;
esac"""
    path = program(tmp_path, "my-nvcc", answers)
    monkeypatch.setenv(toolchain.VARIABLE, path)
    found = toolchain.find_compiler()
    assert (found.version, found.archs) == ("nvcc 12.4.99", (80, 90))
    before = toolchain.fingerprint()
    with pytest.raises(MachineError, match="host compiler"):
        compile_kernel(MULTIPLY_ADD, "f", "sm_80", contract=True)
    os.utime(path, (1, 1))
    toolchain._fingerprint.cache_clear()
    assert toolchain.fingerprint() != before, "a compiler that was replaced is another"
    monkeypatch.setenv(toolchain.VARIABLE, program(tmp_path, "other", "exit 1"))
    with pytest.raises(MachineError, match="is it nvcc"):
        toolchain.find_compiler()
    monkeypatch.setenv(toolchain.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(MachineError, match="no such program"):
        toolchain.find_compiler()


def test_without_any_compiler_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(toolchain, "find_tool", lambda name: None)
    monkeypatch.setattr(toolchain, "wheel_version", lambda: "")
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (toolchain.find_compiler, toolchain.fingerprint):
        with pytest.raises(MachineError, match=r"pip install 'loopfuse\[nvrtc\]'"):
            ask()
    with pytest.raises(MachineError, match="LOOPFUSE_COMPILER asks for NVRTC"):
        toolchain.find_compiler("nvrtc")


def test_machine_code_is_shown_by_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_tool", lambda name: None)
    with pytest.raises(MachineError, match="pip install nvidia-cuda-nvdisasm"):
        sass.disassemble(b"")
    shows = program(tmp_path, "cuobjdump", 'echo "$1: $(cat "$2")"')
    monkeypatch.setattr(sass, "find_tool", lambda name: shows if name == "cuobjdump" else None)
    assert sass.disassemble(b"code") == "-sass: code\n"
    fails = program(tmp_path, "nvdisasm", "echo 'no idea' >&2; exit 1")
    monkeypatch.setattr(sass, "find_tool", lambda name: fails)
    with pytest.raises(CompilerError, match="no idea"):
        sass.disassemble(b"code")


def test_a_program_of_the_toolkit_is_found_in_its_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert toolchain.find_tool("lf-no-such-tool") is None
    (tmp_path / "home" / "bin").mkdir(parents=True)
    in_home = program(tmp_path / "home" / "bin", "lf-tool", "")
    (tmp_path / "site" / "nvidia" / "cu13" / "bin").mkdir(parents=True)
    in_wheel = program(tmp_path / "site" / "nvidia" / "cu13" / "bin", "lf-tool", "")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    assert toolchain.find_tool("lf-tool") == in_wheel
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert toolchain.find_tool("lf-tool") == in_home


# -- programs ---------------------------------------------------------------------------------------------------------


class Counting:
    """Compiles nothing, and remembers what it was asked for."""

    version = fingerprint = "counting 1"
    archs = (80, 90)

    def __init__(self) -> None:
        self.built: list[str] = []
        self.threads: set[int] = set()

    def build(self, source: str, name: str, target: str, flags: Sequence[str]) -> tuple[bytes, str]:
        """The name, as machine code."""
        self.built.append(name)
        self.threads.add(threading.get_ident())
        return name.encode(), ""


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setattr(compiling, "find_compiler", lambda name=None: found)
    monkeypatch.setattr("loopfuse.cuda.cache.fingerprint", lambda name=None: found.fingerprint)
    return found


def test_the_kernels_of_a_program_come_in_order() -> None:
    code = twice((2, 3, 4))
    found = compile_program(code, "sm_90a", jobs=2)
    assert [b.name for b in found] == ["k2", "k3", "k4"]
    assert len({b.key for b in found}) == 3
    assert not any(b.cached or b.warnings for b in found)
    assert complaints(code, found) == {}


def test_a_text_is_compiled_once(counting: Counting) -> None:
    code = twice((2, 3))
    again = replace(code, kernels=(*code.kernels, replace(code.kernels[0], name="other")))
    assert [b.cubin for b in compile_program(again, "sm_80")] == [b"k2", b"k3", b"k2"]
    assert sorted(counting.built) == ["k2", "k3"]


def test_what_the_cache_has_is_not_compiled(counting: Counting) -> None:
    cache = Cache(None)
    compile_program(twice((2, 3)), "sm_80", cache=cache)
    found = compile_program(twice((3, 4, 2)), "sm_80", cache=cache)
    assert sorted(counting.built) == ["k2", "k3", "k4"]
    assert [(b.name, b.cached) for b in found] == [("k3", True), ("k4", False), ("k2", True)]
    compile_program(twice((2,)), "sm_90", cache=cache)
    compile_program(twice((2,)), "sm_80", cache=cache, fast=True)
    assert len(counting.built) == 5, "an architecture or an option makes another kernel"


def test_kernels_whose_plan_does_not_hold_are_named() -> None:
    code = twice((2, 3, 4))
    first, second, third = code.kernels
    limited = replace(code, kernels=(first, replace(second, limit=64), replace(third, limit=64)))
    figures = ((200, 12), (72, 0), (64, 0))
    binaries = [Binary(name="", arch="", cubin=b"", registers=r, spill_stores=s) for r, s in figures]
    said = complaints(limited, binaries)
    assert list(said) == ["k2", "k3"]
    assert "spill" in said["k2"]
    assert "72 registers a thread, and the plan has 64" in said["k3"]


def test_work_is_done_in_threads_in_order_and_its_errors_are_raised() -> None:
    meet = threading.Barrier(2, timeout=30)

    def work(n: int) -> int:
        meet.wait()  # nobody passes alone
        return n * n

    assert compiling.in_threads(work, range(8), 2) == [n * n for n in range(8)]
    assert compiling.in_threads(lambda n: n, [], 2) == []

    def fail(n: int) -> int:
        if n >= 3:
            raise ValueError(n)
        return n

    for jobs in (1, 2):
        with pytest.raises(ValueError, match="3"):
            compiling.in_threads(fail, range(5), jobs)


def test_a_wrong_kernel_among_others_is_the_one_that_is_named() -> None:
    code = twice((2, 3))
    wrong = replace(code, kernels=(*code.kernels, KernelCode("broken", "void broken( {", 32)))
    with pytest.raises(CompilerError, match="the kernel `broken`"):
        compile_program(wrong, "sm_80")


def test_flags_are_those_that_both_compilers_know() -> None:
    assert Options().flags == ("--std=c++17", "--fmad=true")
    assert Options(False, True, True, 64).flags == (
        "--std=c++17", "--fmad=false", "--prec-div=false", "--prec-sqrt=false", "--generate-line-info", "--maxrregcount=64",
    )  # fmt: skip


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_the_driver_loads_what_was_compiled_and_sees_the_same_figures() -> None:
    driver: Any = pytest.importorskip("cuda.bindings.driver")

    def call(function: Any, *arguments: Any) -> Any:
        result, *rest = function(*arguments)
        assert not int(result), f"{function.__name__}: {result}"
        return rest[0] if rest else None

    try:
        there = not int(driver.cuInit(0)[0])
    except RuntimeError:
        there = False
    if not there:
        pytest.skip("no GPU here")
    device = call(driver.cuDeviceGet, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
    version = driver.CUdevice_attribute
    major, minor = (
        call(driver.cuDeviceGetAttribute, attribute, device)
        for attribute in (
            version.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            version.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    told = driver.CUfunction_attribute
    for source, name in ((TABLE, "table"), (WIDE, "wide")):
        found = compile_kernel(source, name, arch_for(major, minor), contract=True)
        module = call(driver.cuModuleLoadData, found.cubin)
        function = call(driver.cuModuleGetFunction, module, name.encode())
        assert call(driver.cuFuncGetAttribute, told.CU_FUNC_ATTRIBUTE_NUM_REGS, function) == found.registers
        assert call(driver.cuFuncGetAttribute, told.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function) == found.shared
        assert call(driver.cuFuncGetAttribute, told.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) >= found.stack
        call(driver.cuModuleUnload, module)
