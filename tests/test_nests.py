"""Kernels taken apart into nests that share no more than loops: which are, and that the parts mean what the whole does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from kernel_checks import inputs_for
from pass_checks import same_bits, text

from loopfuse.analysis.nests import apart
from loopfuse.backends.reference import run
from loopfuse.ir import Program

HEAD = """program p(M, N, G, K)
buf x: f32[M, K] in
buf p: f32[K, N] in
buf q: f32[K, G] in
buf u: f32[M, N] out
buf v: f32[M, G] out
buf w: f32[M, G] out
kernel k1
  par i < M
    r = x[i, 0]
    par j < N
      fold k < K
        acc a: f32 sum
        a <- x[i, k] * p[k, j]
      u[i, j] = a + r
"""
SIDE = """    par g < G
      fold c < K
        acc b: f32 sum
        acc d: f32 max
        t = x[i, c]
        b <- t * q[c, g]
        d <- t
      e = b * 2.0f32
      {stores}
"""
ROW = """    fold c < K
      acc b: f32 sum
      b <- x[i, c]
    par g < G
      v[i, g] = {value}
      w[i, g] = 1.0f32
"""

# The statements of the second part, and of how many nests the kernel is.
CASES = {
    "two sums": (SIDE.format(stores="v[i, g] = e\n      w[i, g] = d"), 3),
    "sums that meet": (SIDE.format(stores="v[i, g] = e + d\n      w[i, g] = d"), 2),
    "one sum": (SIDE.format(stores="v[i, g] = e\n      w[i, g] = e"), 2),
    "a value of none": (SIDE.format(stores="v[i, g] = e\n      w[i, g] = r"), 2),
    "a fold beside": (ROW.format(value="r").replace("    par g", "    s = b\n    par g"), 3),
    "a fold that is read": (ROW.format(value="b"), 0),
    "another one's result": ("    par g < G\n      v[i, g] = u[i, 0]\n      w[i, g] = 1.0f32\n", 0),
}


def parted(program: Program) -> Program | None:
    """The program with its kernels taken apart; None where none is."""
    kernels = []
    for kernel in program.kernels:
        found = apart(kernel)
        kernels += [replace(part, id=f"{kernel.id}.{n}") for n, part in enumerate(found)] or [kernel]
    return replace(program, kernels=tuple(kernels)) if len(kernels) > len(program.kernels) else None


@pytest.mark.parametrize("name", CASES)
def test_nests(name: str) -> None:
    body, count = CASES[name]
    program = text(HEAD + body)
    made = parted(program)
    assert (len(made.kernels) if made else 0) == count
    if made is not None:
        sizes = {"M": 3, "N": 5, "G": 2, "K": 4}
        inputs = inputs_for(program, sizes)
        before, after = run(program, inputs, sizes).outputs, run(made, inputs, sizes).outputs
        assert all(same_bits(before[b], after[b]) for b in before)


@settings(max_examples=16)
@given(data=st.data())
def test_any_kernel(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    made = parted(program)
    if made is None:
        return
    sizes, inputs = data.draw(ir_inputs(program))
    before, after = run(program, inputs, sizes).outputs, run(made, inputs, sizes).outputs
    assert all(same_bits(before[b], after[b]) for b in before)
