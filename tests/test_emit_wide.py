"""Kernels for more elements than 31 bits count: what the compiler would warn of, an overflow of a constant above all."""

from __future__ import annotations

import re

import pytest

from loopfuse import driver
from loopfuse.cuda.compile import compile_program
from loopfuse.diag import Source
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit
from loopfuse.passes import Options

SCRIPTS = {
    "everything": ("input x: i8[N]\noutput s = sum(x)\noutput m = argmax(x)\n", {"N": 2**31 + 4099}),
    "map": ("input x: i8[N]\noutput y = x + 1i8\n", {"N": 2**31 + 513}),
    "rows": ("input x: f32[M, N]\noutput y = x / sum(x, axis=1, keepdims=true)\n", {"M": 70000, "N": 70001}),
    "columns": ("input x: f32[M, N]\noutput v = var(x, axis=0)\n", {"M": 70001, "N": 70000}),
    "turned": ("input x: f32[N, N]\ninput y: f32[N, N]\noutput z[i, j] = x[i, j] + y[j, i]\n", {"N": 70000}),
    "histogram": ("input k: i32[M, N] where 0 <= k < 5\naccum c: i64[5] = 0 for i in 0..M, j in 0..N { c[k[i, j]] += 1 }\n"
                  "output c\n", {"M": 70000, "N": 70000}),
    "pairs": ("input c: i32[M] where 0 <= c < 200000\ninput a: f64[M]\naccum h: f64[200000] = 0 for i in 0..M, j in 0..M {\n"
              "  h[c[i]] += a[i] * a[j]\n}\noutput h\n", {"M": 70000}),
    "cube": ("input a: f32[M, M]\noutput t = max(abs(a[i, k] - a[k, j]) for i, k, j)\n", {"M": 2048}),
    "scan": ("input x: f32[M, N]\noutput y = cumsum(x, axis=1)\n", {"M": 70000, "N": 70000}),
}  # fmt: skip


# An `int` that a block's number or a number past 31 bits goes into, or that counts up to one.
NARROW = re.compile(r"\bint \w+ = [^;?]*(?:\(int\)\(?blockIdx|\b\d{10,}ll)|\(int \w+ = [^;]*; \w+ < \d{10,}")


def made(name: str, only: str | None) -> Code:
    text, sizes = SCRIPTS[name]
    lowered = driver.lower_program(driver.compile_source(Source(name, text)).typed)
    return emit(driver.optimise(lowered, Options(sizes=sizes)).program, sizes, only=only)


@pytest.mark.parametrize("only", [None, "general"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_indices_have_room(name: str, only: str | None) -> None:
    for kernel in made(name, only).kernels:
        assert not NARROW.findall(kernel.text), kernel.name


@pytest.mark.parametrize("only", [None, "general"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_overflows(name: str, only: str | None) -> None:
    code = made(name, only)
    for kernel, binary in zip(code.kernels, compile_program(code, "sm_90a"), strict=True):
        assert not binary.warnings, (kernel.name, binary.warnings)
