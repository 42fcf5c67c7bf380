"""`loopfuse ir --emit cuda|ptx|sass`, and which emitter wrote what in `explain`: no GPU is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_shell import Shell
from test_cli_passes import shell

from loopfuse.cuda import sass, toolchain
from loopfuse.devices import H200, PRESETS
from loopfuse.diag import CompilerError, MachineError
from loopfuse.emit.code import Code, Fill, KernelCode, Launch, Pointer, Repeat, grid
from loopfuse.sizes import Poly
from loopfuse.views import emitted

__all__ = ["shell"]

NVRTC = bool(toolchain.wheel_version())
needs_nvrtc = pytest.mark.skipif(not NVRTC, reason="NVRTC is not installed")


def heads(text: str) -> list[str]:
    """The names of the functions that are shown."""
    return re.findall(r"^// -- (\S+) --$", text, re.MULTILINE)


# -- CUDA C -----------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_without_sizes_the_code_is_for_any(shell: Shell) -> None:
    assert shell("ir", "s.lf", "--emit", "cuda") == 0
    assert "for any B, N" in shell.out
    assert "__global__" in shell.out
    assert re.search(r"^// arguments .*\bB\b.*\bN\b", shell.out, re.MULTILINE)
    assert shell("ir", "s.lf", "--emit", "cuda", "--dims", "B=3,N=70") == 0
    assert "for B = 3, N = 70" in shell.out
    assert not re.search(r"^// arguments .*\bN\b", shell.out, re.MULTILINE)
    assert shell("ir", "s.lf", "--emit", "cuda", "--dims", "B=3,N=70", "--dynamic") == 0
    assert "for any B, N" in shell.out
    assert "planned for H200, B = 3, N = 70" in shell.out
    assert shell("ir", "s.lf", "--emit", "cuda", "--dims", "N=70") == 0
    assert "any B; N = 70" in shell.out


@needs_nvrtc
def test_a_kernel_is_introduced(shell: Shell) -> None:
    assert shell("ir", "s.lf", "--emit", "cuda", "--dims", "B=3,N=70", "--passes", "none") == 0
    assert len(heads(shell.out)) == 4
    for line in ("// by        ", "// of        ", "// launch    ", "// arguments ", "// takes     "):
        assert shell.out.count(f"\n{line}") == 4, line
    assert re.search(r"// takes     \d+ registers, no spills \(sm_90a, nvrtc ", shell.out)
    assert re.search(r"// of        \S+: m \(line 2\)", shell.out)
    assert "// steps\n//   s_" in shell.out, "several launches are listed"


@needs_nvrtc
def test_the_prelude_is_folded_unless_all_is_asked_for(shell: Shell) -> None:
    assert shell("ir", "s.lf", "--emit", "cuda") == 0
    assert "what the kernels call, shown by --all: lf_" in shell.out
    assert "__forceinline__" not in shell.out
    assert shell("ir", "s.lf", "--emit", "cuda", "--all") == 0
    assert "__forceinline__" in shell.out
    assert "shown by --all" not in shell.out


@needs_nvrtc
def test_one_kernel_by_its_name_or_what_it_computes(shell: Shell) -> None:
    assert shell("ir", "s.lf", "--emit", "cuda", "--passes", "none", "--only", "m") == 0
    (name,) = heads(shell.out)
    kernel = re.search(r"// of        (\S+): m", shell.out)
    assert kernel
    assert shell("ir", "s.lf", "--emit", "cuda", "--passes", "none", "--only", kernel[1]) == 0
    assert heads(shell.out) == [name]
    assert shell("ir", "s.lf", "--emit", "cuda", "--only", "zz") == 2
    assert "LF0502" in shell.err
    assert shell("ir", "s.lf", "--emit", "cuda", "--after", "lower", "--only", "m") == 0
    assert heads(shell.out) == [name]


@needs_nvrtc
def test_into_a_file_and_as_records(shell: Shell) -> None:
    assert shell("ir", "s.lf", "--emit", "cuda", "-o", "s.cu") == 0
    assert not shell.out
    assert "__global__" in (shell.folder / "s.cu").read_text("utf-8")
    assert shell("ir", "s.lf", "--emit", "ptx", "--json", "--dims", "B=3,N=70") == 0
    (record,) = shell.records("kernel")
    assert record["language"] == "ptx"
    assert record["registers"] > 0
    assert ".entry" in record["text"]
    assert record["sizes"] == []
    assert record["arguments"] == ["x", "p"]


@needs_nvrtc
def test_loop_ir_from_a_file_is_emitted_too(shell: Shell) -> None:
    assert shell("ir", "s.lf", "-o", "s.lfir") == 0
    assert shell("ir", "--from", "s.lfir", "--emit", "cuda") == 0
    assert "__global__" in shell.out


# -- PTX and machine code ---------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_ptx_of_an_architecture(shell: Shell, arch: str) -> None:
    assert shell("ir", "s.lf", "--emit", "ptx", "--arch", arch) == 0
    assert f".target {arch}" in shell.out
    assert f"for {arch}:" in shell.out


def test_an_architecture_has_a_device_to_plan_for() -> None:
    for arch, key in (
        ("sm_80", "a100"),
        ("sm_86", "rtx4090"),
        ("sm_89", "rtx4090"),
        ("sm_90", "h200"),
        ("sm_120", "rtx4090"),
    ):
        assert emitted.model_for(arch) == key
        assert key in PRESETS


@needs_nvrtc
def test_machine_code_needs_a_program_that_reads_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_tool", lambda name: None)
    assert shell("ir", "s.lf", "--emit", "sass") == 4
    assert "nvdisasm" in shell.err
    assert "--emit ptx" in shell.err
    assert not shell.out


@needs_nvrtc
def test_machine_code(shell: Shell) -> None:
    if toolchain.find_tool("nvdisasm") is None and toolchain.find_tool("cuobjdump") is None:
        pytest.skip("there is no nvdisasm")
    assert shell("ir", "s.lf", "--emit", "sass") == 0
    assert "EXIT" in shell.out


def test_a_compiler_older_than_the_device_gives_no_machine_code(shell: Shell) -> None:
    binary = type("Old", (), {"ptx": True, "compiler": "nvrtc 13.0", "cubin": b""})()
    code = Code("s", "", (), (), (), (), (), ())
    built = emitted.Built(None, code, H200, "sm_130", {})  # type: ignore[arg-type]
    with pytest.raises(MachineError, match="sm_130"):
        emitted.body(built, "sass", KernelCode("k", "", 32), binary)


def test_without_a_compiler_the_text_is_shown_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **named: object) -> None:
        raise MachineError("there is no CUDA compiler (none): install one")

    monkeypatch.setattr(emitted.engine, "make", none)
    assert shell("ir", "s.lf", "--emit", "cuda") == 0
    assert "__global__" in shell.out
    assert "registers" not in shell.out
    assert "not compiled: there is no CUDA compiler" in shell.err
    for kind in ("ptx", "sass"):
        assert shell("ir", "s.lf", "--emit", kind) == 4
        assert "there is no CUDA compiler" in shell.err


def test_a_text_that_does_not_compile_is_shown_and_is_our_bug(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **named: object) -> None:
        raise CompilerError("cuda", "the kernel does not compile")

    monkeypatch.setattr(emitted.engine, "make", refused)
    assert shell("ir", "s.lf", "--emit", "cuda") == 70
    assert "__global__" in shell.out
    assert "a bug in loopfuse" in shell.err


# -- what goes together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    "--emit cuda --diff", "--emit cuda --changed", "--emit ptx --all", "--emit cuda --stats", "--emit cuda --types",
    "--emit cuda --ranges", "--emit sass --tree-dir t", "--emit cuda --side", "--emit cuda --no-gutter", "--arch sm_80",
    "--dynamic", "--emit loops --arch sm_80", "--emit ast --dynamic", "--emit cuda --arch 80", "--emit cuda --arch sm_",
    "--emit cuda --device cpu", "--emit cuda --device h200 --arch sm_80", "--emit asm",
])  # fmt: skip
def test_options_that_do_not_go_together(shell: Shell, words: str) -> None:
    assert shell("ir", "s.lf", *words.split()) == 2
    assert "loopfuse ir: error:" in shell.err


def test_loops_are_the_default_as_before(shell: Shell) -> None:
    assert shell("ir", "s.lf") == 0
    loops = shell.out
    assert shell("ir", "s.lf", "--emit", "loops") == 0
    assert shell.out == loops


# -- names that C does not have ---------------------------------------------------------------------------------------

HOSTILE = ('a"; b', "a */ b // c", "back\\", "новый", "x\ny", "int", "1 2", "%s{}", "??/")


@needs_nvrtc
@pytest.mark.parametrize("name", HOSTILE)
def test_scripts_of_any_name(shell: Shell, name: str) -> None:
    path = Path(f"{name.replace('/', '_')}.lf")
    shell.write(str(path), "input größe: f32[N]\nlet int_ = größe * 2\noutput новый = int_ + 1\n")
    assert shell("ir", str(path), "--emit", "cuda", "--all") == 0, shell.err
    code = shell.out
    assert "takes " in code, "it was compiled"
    lines = code.splitlines()
    assert not any(line.endswith("\\") for line in lines if line.startswith("//"))
    outside = [line for line in lines if not line.startswith("//")]
    assert all(line.isascii() for line in outside)
    assert shell("ir", str(path), "--emit", "ptx", "--json") == 0
    assert all(json.loads(line)["schema"] == 1 for line in shell.out.splitlines())


def test_a_comment_ends_where_it_ends() -> None:
    assert emitted.safe("a\nb\r\x00\x1b[31m") == "a b   [31m"
    assert not emitted.safe("path\\").endswith("\\")
    assert "??/" not in emitted.safe("what??/")


# -- steps ------------------------------------------------------------------------------------------------------------


def test_steps_are_told_in_order() -> None:
    launch = Launch("k", grid(Poly.of("N"), 2), (Pointer("x"),))
    found = list(emitted.steps((Fill("t", 0), Repeat("i", Poly.of(0), Poly.of("T"), Poly.of(1), (launch,)), launch)))
    assert found == ["set the bytes of t to 0", "for i from 0 to below T", "  k (N) x 2", "k (N) x 2"]


# -- explain ----------------------------------------------------------------------------------------------------------


def test_costs_tell_who_writes_each_kernel(shell: Shell) -> None:
    assert shell("explain", "s.lf", "--cost", "--passes", "none") == 0
    assert len(re.findall(r"^k\d+ is written by \w+ \(\d+ kernels?\)", shell.out, re.MULTILINE)) == 4
    assert shell("explain", "s.lf", "--kernel", "p", "--passes", "none") == 0
    assert re.search(r"^written by \w+ \(1 kernel\)$", shell.out, re.MULTILINE)
    assert re.search(r"^  not \w+: ", shell.out, re.MULTILINE)
    assert shell("explain", "s.lf", "--cost", "--json") == 0
    (record,) = shell.records("cost")
    assert record["emitter"]
    assert record["functions"]
    assert isinstance(record["refused"], list)
    assert shell("explain", "s.lf", "--cost", "--device", "cpu") == 0
    assert "written by" not in shell.out


def test_costs_are_shown_although_nothing_can_be_emitted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **named: object) -> Code:
        raise CompilerError("emit", "no")

    monkeypatch.setattr(emitted, "emitted", broken)
    assert shell("explain", "s.lf", "--cost") == 0
    assert "flops" in shell.out
    assert "there is no CUDA C" in shell.err
