"""Lock files: what is written reads back, what is damaged is told with its line, and a tile that is asked for is another
kernel with the same results, under another key."""

from __future__ import annotations

import pickle
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_shell import Shell
from emulator import available
from gpu_cases import Judge
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli_passes import shell as shell_fixture
from test_emit_rows import results

import loopfuse as lf
from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.cuda.record import from_json, to_json
from loopfuse.devices import A100, H200, Device
from loopfuse.diag import Diagnostic, Source, UserError, render
from loopfuse.emit import digests
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit, offers
from loopfuse.ir import Program
from loopfuse.lock import Entry, Lock, lock_path, lock_text, read_lock, section_name, write_lock
from loopfuse.passes import Options

shell = shell_fixture
H200_HERE = "NVIDIA H200 (sm_90a)"
GEMM = "input a: bf16[M, K]\ninput b: bf16[K, N]\noutput y = a @ b\n"
SIZES = {"M": 200, "N": 136, "K": 72}
LARGE = {"M": 1024, "N": 1024, "K": 512}
FEW = replace(H200, units=3)
needs_emulator = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


def program(text: str, sizes: dict[str, int], name: str = "product") -> tuple[Any, Program]:
    lowered = driver.lower_program(driver.compile_source(Source(name, text)).typed)
    return lowered, driver.optimise(lowered, Options(sizes=sizes)).program


def digest(text: str, sizes: dict[str, int], dynamic: bool = False) -> str:
    return emit(program(text, sizes)[1], sizes, dynamic=dynamic).chosen[-1].digest


def read(folder: Path, text: str) -> tuple[Lock | None, list[Diagnostic]]:
    told: list[Diagnostic] = []
    path = folder / "s.lf.lock"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return read_lock(path, told.append), told


# -- the text ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
TIMES = st.floats(1e-3, 1e9).filter(lambda x: x > 0)
ENTRIES = st.builds(Entry, TEXTS, TIMES, TEXTS, TIMES, TEXTS, TEXTS)
DIGESTS = st.text(string.hexdigits.lower(), min_size=1, max_size=16)
NAMES = st.builds(section_name, TEXTS, st.sampled_from(["sm_90a", "sm_80"]))


@settings(max_examples=50)
@given(st.dictionaries(NAMES, st.dictionaries(DIGESTS, ENTRIES, min_size=1, max_size=3), max_size=3))
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, sections: dict[str, dict[str, Entry]]
) -> None:
    told: list[Diagnostic] = []
    path = tmp_path_factory.getbasetemp() / "s.lf.lock"
    path.write_bytes(lock_text(sections).encode())
    found = read_lock(path, told.append)
    assert found is not None and found.sections == sections and not told
    lines = {(name, key): span.text for (name, key), span in found.spans.items()}
    for name, section in sections.items():
        for key in section:
            assert lines[name, key].startswith(key)
    assert lock_text(found.sections) == lock_text(sections)


GOOD = 'tile = "wgmma 64x64 slots=2", us = 2.0, model = "wgmma 128x128 slots=2", model_us = 3'
DAMAGED = {
    "no toml": (f"version = 1\n\n[\"{H200_HERE}\"]\n<<<<<<< HEAD\n00 = {{ {GOOD} }}\n", 4, "damaged, and all of it"),
    "twice": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ {GOOD} }}\n00 = {{ {GOOD} }}\n", 4, "damaged, and all of it"),
    "cut off": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ tile = \"wg", 3, "damaged, and all of it"),
    "empty": ("", None, "has no version"),
    "version": ("# later\nversion = 2\n", 2, "has version 2, and this loopfuse reads version 1"),
    "no device": ("version = 1\nH200 = 3\n", 2, "`H200` in `s.lf.lock` is no device"),
    "no device's name": (f"version = 1\n[H200]\n00 = {{ {GOOD} }}\n", 2, "`H200` in `s.lf.lock` is no device"),
    "no table": (f"version = 1\n[\"{H200_HERE}\"]\n00 = \"wgmma\"\n", 3, "it is no table"),
    "missing": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ tile = \"w\", us = 1, model = \"w\" }}\n", 3, "it has no `model_us`"),
    "unknown": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ {GOOD}, tiles = 1 }}\n", 3, "it has `tiles`, which means"),
    "no text": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ {GOOD}, of = 1 }}\n", 3, "`of` is no text"),
    "no time": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ {GOOD.replace('2.0', '-1')} }}\n", 3, "`us` is no time"),
    "nan": (f"version = 1\n[\"{H200_HERE}\"]\n00 = {{ {GOOD.replace('2.0', 'nan')} }}\n", 3, "`us` is no time"),
    "no utf-8": ("version = 1\n# \udcff\n", None, "is not a text in UTF-8 (byte 14)"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    text, line, said = DAMAGED[name]
    found, told = read(tmp_path, text)
    (one,) = told
    assert one.code == "LF0521" and one.level == "warning" and said in one.message and one.fix is not None
    assert (one.primary.line if one.primary else None) == line
    assert f"s.lf.lock:{line}:1" in render(one) or line is None
    assert found is not None and not found.tiles("NVIDIA H200", "sm_90a")


def test_one_wrong_entry_leaves_the_others(tmp_path: Path) -> None:
    text = f'version = 1\n["{H200_HERE}"]\n00 = {{ {GOOD} }}\n01 = 3\n["NVIDIA A100 (sm_80)"]\n02 = {{ {GOOD} }}\n'
    found, told = read(tmp_path, text)
    assert found is not None and len(told) == 1 and told[0].primary is not None and told[0].primary.line == 4
    assert found.tiles("NVIDIA H200", "sm_90a") == {"00": "wgmma 64x64 slots=2"}
    assert found.tiles("NVIDIA A100", "sm_80") == {"02": "wgmma 64x64 slots=2"}


def test_a_file_is_for_its_devices(tmp_path: Path) -> None:
    """A preset stands for the device of its name; any other device has its own section alone."""
    found, _ = read(tmp_path, f'version = 1\n["{H200_HERE}"]\n00 = {{ {GOOD} }}\n')
    assert found is not None
    assert found.tiles(H200.name, H200.arch) == {"00": "wgmma 64x64 slots=2"}
    assert found.tiles("NVIDIA H200", "sm_80") == found.tiles("NVIDIA H200 NVL", "sm_90a") == {}
    assert found.tiles("H100", "sm_90a") == found.tiles(A100.name, A100.arch) == {}


def test_writing(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "s.lf")
    assert path.name == "s.lf.lock" and read_lock(path, lambda _: None) is None
    write_lock(path, {H200_HERE: {"00": Entry("t", 1.0, "m", 2.0)}})
    path.chmod(0o640)
    write_lock(path, {H200_HERE: {"01": Entry("t", 1.0, "m", 2.0)}, "empty (sm_80)": {}})
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(UserError, match="LF0515"):
        write_lock(tmp_path / "no" / "s.lf.lock", {})
    path.unlink()
    path.mkdir()
    told: list[Diagnostic] = []
    assert read_lock(path, told.append) is not None and told[0].code == "LF0521"
    with pytest.raises(UserError, match="LF0515"):
        write_lock(path, {})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


# -- digests ----------------------------------------------------------------------------------------------------------


def test_a_digest_is_of_what_a_kernel_computes() -> None:
    """Not of names, of what else the script has, or of the order; of types, sizes and layouts it is."""
    here = digest(GEMM, LARGE)
    other = (
        "# a comment\ninput v: f32[M]\ninput p: bf16[M, L]\ninput q: bf16[L, N]\noutput w = v * 2\noutput z = p @ q\n"
    )
    assert digest(other, {"M": 1024, "N": 1024, "L": 512}) == here
    others = [
        digest(GEMM, {**LARGE, "M": 1032}),
        digest(GEMM, LARGE, dynamic=True),
        digest(GEMM.replace("bf16", "f16"), LARGE),
        digest("input a: bf16[M, K]\ninput b: bf16[N, K]\noutput y = a @ transpose(b)\n", LARGE),
        digest(GEMM.replace("a @ b", "f32(a @ b)"), LARGE),
        digest(GEMM.replace("bf16", "f32"), LARGE),
        digest("pragma tf32\n" + GEMM.replace("bf16", "f32"), LARGE),
        digest("import nn\n" + GEMM.replace("a @ b", "nn.relu(a @ b)"), LARGE),
        digest("input a: bf16[M, 2 * K]\ninput b: bf16[K, N]\noutput y = a[:, :K] @ b\n", LARGE),
    ]
    assert len({here, *others}) == 1 + len(others)
    assert digest(GEMM, {**LARGE, "M": 1032}, dynamic=True) != digest(GEMM, LARGE, dynamic=True)


# -- kernels ----------------------------------------------------------------------------------------------------------

FORCED = [("wgmma 64x64 slots=2", FEW), ("mma.sync 64x64 warps=2x2", FEW), ("mma.sync 64x128 warps=2x2", replace(A100, units=3)),
          ("fma 32x64x16", FEW)]  # fmt: skip


def forced(text: str, sizes: dict[str, int], tile: str, device: Device) -> tuple[Any, Program, Code]:
    lowered, made = program(text, sizes)
    (key,) = offers(made, sizes, device)
    return lowered, made, emit(made, sizes, device, tiles={key: tile})


@needs_emulator
@pytest.mark.parametrize(("tile", "device"), FORCED, ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_tile_that_is_asked_for(tile: str, device: Device) -> None:
    """Of each way of products: another text, the same results within the bound."""
    lowered, made, code = forced(GEMM, SIZES, tile, device)
    plain = emit(made, SIZES, device)
    (one,) = code.chosen
    assert one.tile == one.wanted == tile and not one.why and one.model == plain.chosen[0].tile != tile
    assert code.kernels[0].text != plain.kernels[0].text
    assert from_json(to_json(code)).chosen == code.chosen
    bound = driver.bind_program(lowered.typed, Given({}, dims=SIZES, seed=1, fill=True))
    problem = Judge(lowered, bound).verdict(results(code, made, bound.inputs, SIZES))
    assert not problem, problem


@pytest.mark.parametrize(("tile", "why"), [
    ("wgmma 64x63 slots=2", "the kernel has no such tile"),
    ("fma 1x1x1", "the kernel has no such tile"),
    ("wgmma 64x64 slots=2 split=2", "have no room for that tile"),  # one stage of the sum for two blocks
])  # fmt: skip
def test_a_tile_that_does_not_fit(tile: str, why: str) -> None:
    _, made, code = forced(GEMM, {**SIZES, "K": 8}, tile, FEW)
    plain = emit(made, {**SIZES, "K": 8}, FEW)
    (one,) = code.chosen
    assert one.tile == one.model == plain.chosen[0].tile and one.wanted == tile and why in one.why
    assert code.kernels == plain.kernels


def test_a_tile_for_a_kernel_without_tiles() -> None:
    sizes = {"N": 64}
    _, made = program("input x: f32[N]\noutput y = x * 2\n", sizes)
    key = digests.digest(made, made.kernels[0], sizes)
    code = emit(made, sizes, tiles={key: "wgmma 64x64 slots=2"})
    assert [c.why for c in code.chosen] == ["the kernel is written in a way that has no tiles"]
    assert emit(made, sizes, tiles={"00": "x"}).chosen == ()


def test_equal_kernels_share_a_tile() -> None:
    text = "input a: bf16[M, M]\ninput b: bf16[M, M]\nlet t = a @ b\noutput z = t @ b\n"
    sizes = {"M": 512}
    _, made = program(text, sizes)
    (key,) = offers(made, sizes)
    code = emit(made, sizes, tiles={key: "wgmma 64x64 slots=2"})
    assert [(c.kernel, c.tile) for c in code.chosen] == [("k1", "wgmma 64x64 slots=2"), ("k2", "wgmma 64x64 slots=2")]


# -- the commands -----------------------------------------------------------------------------------------------------

DIMS = ("--dims", "M=4096,N=4096,K=4096")
BIG = {"M": 4096, "N": 4096, "K": 4096}


def locked(shell: Shell, tile: str, section: str = H200_HERE) -> None:
    shell.write("s.lf", GEMM)
    write_lock(shell.folder / "s.lf.lock", {section: {digest(GEMM, BIG): Entry(tile, 1.0, "m", 2.0)}})


def test_explain_says_where_the_tile_comes_from(shell: Shell) -> None:
    locked(shell, "wgmma 128x192 pingpong slots=3")
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS) == 0
    assert "  lock       wgmma 128x192 pingpong slots=3, the model would take wgmma 128x256 slots=2\n" in shell.out
    assert "128 x 192 for each of 2 warpgroups" in shell.out and not shell.err
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS, "--no-lock") == 0
    assert "  lock  " not in shell.out and "128 x 256 by 2 warpgroups" in shell.out
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS, "--json") == 0
    (told,) = shell.records("cost")
    assert told["chosen"]["wanted"] == "wgmma 128x192 pingpong slots=3"
    locked(shell, "wgmma 128x256 slots=2")
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS) == 0
    assert "  lock       wgmma 128x256 slots=2, as of the model\n" in shell.out


def test_explain_of_a_tile_that_does_not_fit(shell: Shell) -> None:
    locked(shell, "wgmma 128x193 slots=3")
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS) == 0
    assert "  lock       wgmma 128x193 slots=3 is left out: the kernel has no such tile\n" in shell.out
    assert shell.err.count("warning[LF0521]") == 1 and "s.lf.lock:6:1" in shell.err
    assert "it runs with `wgmma 128x256 slots=2`, which the model takes" in shell.err
    flat = " ".join(shell.err.replace("|", " ").split())
    assert "note: it has `wgmma 128x192 " in flat and " more; --tune times the most promising" in flat, flat


def test_another_device_has_no_lock(shell: Shell) -> None:
    locked(shell, "wgmma 128x192 pingpong slots=3", "NVIDIA H100 80GB HBM3 (sm_90a)")
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS) == 0
    assert "  lock  " not in shell.out and not shell.err
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS, "--device", "h100") == 0
    assert "lock       wgmma 128x192" in shell.out


def test_ir_has_the_kernel_of_the_lock(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPFUSE_COMPILER", "/nowhere")
    locked(shell, "wgmma 64x256 slots=2")
    assert shell("ir", "s.lf", "--emit", "cuda", *DIMS) == 0
    assert "tiles of 64 x 256" in shell.out
    assert shell("ir", "s.lf", "--emit", "cuda", *DIMS, "--no-lock") == 0
    assert "tiles of 128 x 256" in shell.out
    assert shell("ir", "s.lf", "--no-lock") == 2
    assert "--no-lock is for kernels" in shell.err


def test_a_damaged_file_does_not_stop_a_command(shell: Shell) -> None:
    shell.write("s.lf", GEMM)
    shell.write("s.lf.lock", "<<<<<<< HEAD\n")
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS) == 0
    assert "warning[LF0521]" in shell.err and "s.lf.lock:1:1" in shell.err
    assert shell("explain", "s.lf", "--kernel", "k1", *DIMS, "--no-lock") == 0
    assert not shell.err


def test_python_programs_of_files_have_locks(tmp_path: Path) -> None:
    path = tmp_path / "s.lf"
    path.write_text(GEMM)
    write_lock(lock_path(path), {H200_HERE: {"00": Entry("t", 1.0, "m", 2.0)}})
    made = lf.compile(path)
    again = pickle.loads(pickle.dumps(made))
    assert made._accelerated._chosen is not None and again._accelerated._chosen.sections.keys() == {H200_HERE}
    assert lf.compile(path, lock=False)._accelerated._chosen is None
    assert lf.compile(GEMM)._accelerated._chosen is None
    lock_path(path).write_text("version = 3\n")
    with pytest.warns(UserWarning, match="LF0521"):
        lf.compile(path)
    with pytest.raises(lf.Error, match="next to the script"):
        lf.compile(GEMM).tune()
