"""The CUDA spellings: complete, well-formed, and accepted by a CUDA compiler where there is one."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_samples import ALL_DTYPES, FLOAT_DTYPES

from loopfuse import ops
from loopfuse.diag import CompilerError
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, U16, U64, DType
from loopfuse.oprow import OpRow
from loopfuse.spelling import C_TYPES, HELPERS, Spelling, helpers

ROWS = tuple(ops.OPS.values())


def applications(row: OpRow) -> list[tuple[tuple[DType, ...], DType]]:
    """Every well-typed application of a row: operand types and result type."""
    found = []
    for dtype in ALL_DTYPES:
        types = tuple(BOOL if row.operands == "cond" and n == 0 else dtype for n in range(row.arity))
        found += [(types, r) for r in ALL_DTYPES if dtype.kind in row.kinds and row.problem(types, r) is None]
    return found


def spelled(row: OpRow) -> list[tuple[str, tuple[DType, ...], DType]]:
    texts = []
    for types, result in applications(row):
        choices = {row.spell(types[-1], mode, result) for mode in ("strict", "default", "fast")}
        choices |= set(row.approximations(types[-1]))
        args = tuple(f"a{n}[0]" for n in range(row.arity))
        texts += [(s.format(args, types[-1], result), types, result) for s in choices]
    return texts


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_every_application_has_a_spelling(row: OpRow) -> None:
    assert applications(row)
    for text, types, _ in spelled(row):
        assert all(f"a{n}[0]" in text for n in range(len(types)))
        assert "{" not in text and text.count("(") == text.count(")")
        assert not helpers(text) or "lf_" in text


def test_strict_and_default_never_approximate() -> None:
    for row in ROWS:
        for dtype in FLOAT_DTYPES:
            if "float" in row.kinds:
                assert not row.spell(dtype, "strict").approx and not row.spell(dtype).approx
                assert all(s.approx for s in row.approximations(dtype))


def test_fast_takes_an_approximation_only_if_it_serves_for_all_operands() -> None:
    assert ops.OPS["exp"].spell(F32, "fast").text == "__expf({0})"
    assert ops.OPS["sin"].spell(F32, "fast").text == "sinf({0})"
    assert [s.text for s in ops.OPS["sin"].approximations(F32)] == ["__sinf({0})"]
    assert ops.OPS["exp"].spell(F64, "fast").text == "exp({0})"
    assert ops.OPS["exp"].spell(BF16, "fast") == ops.OPS["exp"].spell(F32, "fast")


def test_the_best_fitting_spelling_is_taken() -> None:
    bits = ops.OPS["bits"]
    assert bits.spell(I32, result=F32).text == "lf_bits<{T}>({0})"
    assert bits.spell(F16, result=U16).text == "lf_bits<{T}>(lf_f16_bits({0}))"
    assert bits.spell(U16, result=F16).text == "lf_f16_value({0})"
    assert bits.spell(BF16, result=F16).text == "lf_f16_value(lf_bf16_bits({0}))"
    cast = ops.OPS["cast"]
    assert cast.spell(F64, result=F16).text == "lf_odd({0})"
    assert cast.spell(F64, result=F32).text == "lf_cast<{T}>({0})"
    assert cast.spell(U8, result=BF16).text == "(({T}){0})"
    with pytest.raises(CompilerError):
        ops.OPS["exp"].spell(I32)


def test_integers_are_computed_unsigned() -> None:
    add = ops.OPS["add"].spell(I8)
    assert add.format(("x", "y"), I8, I8) == "(signed char)((unsigned int)x + (unsigned int)y)"
    assert add.format(("x", "y"), I64, I64) == "(long long)((unsigned long long)x + (unsigned long long)y)"


def test_rank() -> None:
    plain, exact = Spelling("float", "f"), Spelling("f32", "g")
    assert plain.rank(F64) and not plain.rank(I32) and not exact.rank(F64)
    assert exact.rank(F32) > plain.rank(F32) > Spelling("any", "h").rank(F32) > 0
    assert exact.rank(F16) == Spelling("f32", "g").rank(BF16) > plain.rank(F16)
    only = Spelling("any", "k", result="f16")
    assert only.rank(U16, F16) > exact.rank(F32) and not only.rank(U16) and not only.rank(U16, BF16)
    assert not Spelling("f64", "k", result="f16").rank(F32, F16)


def test_helpers_come_after_those_they_call() -> None:
    definitions = helpers("lf_floordiv<int, unsigned int>(a, b) + lf_odd(x)")
    assert definitions == [
        *(HELPERS[f"lf_{name}"] for name in ("negative", "wrap16", "neg", "floordiv")),
        HELPERS["lf_odd"],
    ]
    assert helpers("a + b") == []
    used = {n for row in ROWS for text, _, _ in spelled(row) for n in re.findall(r"\blf_\w+", text)}
    assert {HELPERS[n] for n in used} <= {d for n in used for d in helpers(n)}
    called = {n for n in HELPERS for d in helpers(" ".join(used)) if d == HELPERS[n]}
    assert called == set(HELPERS), "a helper that no row needs"


def test_c_types_have_the_width_of_the_type() -> None:
    widths = {"bool": 1, "unsigned char": 1, "signed char": 1, "unsigned short": 2, "short": 2, "unsigned int": 4,
              "int": 4, "unsigned long long": 8, "long long": 8, "float": 4, "double": 8}  # fmt: skip
    for dtype in ALL_DTYPES:
        assert widths[C_TYPES[dtype.name]] == (4 if dtype in (F16, BF16) else np.dtype(dtype.numpy).itemsize)
    assert C_TYPES[U64.name].startswith("unsigned")


def unit() -> str:
    """A translation unit with a kernel for every application of every row."""
    kernels, texts = [], []
    for row in ROWS:
        for text, types, result in spelled(row):
            args = ", ".join(f"const {C_TYPES[d.name]}* a{n}" for n, d in enumerate(types))
            head = f'extern "C" __global__ void k{len(kernels)}({args}, {C_TYPES[result.name]}* out)'
            kernels.append(f"{head} {{ out[0] = {text}; }}")
            texts.append(text)
    return "\n".join([*helpers("\n".join(texts)), *kernels])


def test_the_unit_holds_every_row() -> None:
    source = unit()
    assert source.count("__global__") > 600 and "#include" not in source


NVCC = shutil.which("nvcc") or next((str(p) for p in [Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None)


@pytest.mark.skipif(NVCC is None, reason="no nvcc here")
def test_nvcc_accepts_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "unit.cu").write_text(unit(), encoding="utf-8")
    command = [str(NVCC), "-arch=sm_80", "-ptx", "-o", str(tmp_path / "unit.ptx"), str(tmp_path / "unit.cu")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0 and "warning #" not in result.stderr, result.stderr[:2000]


def load_nvrtc() -> Any:
    """NVRTC's bindings, or None where they or the library are missing."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return None
    return nvrtc


def test_nvrtc_accepts_every_spelling() -> None:
    nvrtc = load_nvrtc()
    if nvrtc is None:
        pytest.skip("no NVRTC here")
    _, program = nvrtc.nvrtcCreateProgram(unit().encode(), b"unit.cu", 0, [], [])
    options = [b"--gpu-architecture=compute_80", b"--std=c++17"]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b"\0" * max(size, 2)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(error) == 0, log.decode()[:2000]
