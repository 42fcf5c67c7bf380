"""Producers with reductions that are read through disjoint windows: one instance for each, and when that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopfuse.analysis.env import environment
from loopfuse.decisions import Cause
from loopfuse.diag import Source
from loopfuse.driver import compile_source, lower_program
from loopfuse.ir import Kernel, Loop, Program
from loopfuse.passes.fuse import PASS as FUSE
from loopfuse.passes.merge import Merged, abreast, instance
from loopfuse.printer import print_kernel
from loopfuse.reader import parse_program
from loopfuse.rewrite import walk
from tests.ir_strategies import ir_inputs
from tests.pass_checks import apply
from tests.test_merge import check

HEAD = """program p(M, F, K)
buf a: bf16[M, K] in
buf b: bf16[K, 2*F] in
buf g: i64[M] in range 0 .. F
buf h: bf16[M, 2*F]
buf y: bf16[M, F] out
"""
PRODUCT = """kernel k1
  par i < M, j < 2*F
    fold k < K
      acc dot: f32 sum
      dot <- f32(a[i, k]) * f32(b[k, j])
    h[i, j] = bf16(dot)
"""


def program(reader: str, head: str = HEAD, first: str = PRODUCT) -> Program:
    return parse_program(f"{head}{first}kernel k2\n{reader}\n")


def made(found: Program, way: Any = instance) -> Any:
    return way(*found.kernels, environment(found), frozenset(b.id for b in found.buffers))


def folds(kernel: Kernel) -> list[int]:
    """The number of accumulators of each fold."""
    return [len(s.accs) for s in walk(kernel.body) if isinstance(s, Loop) and s.accs]


READERS = {
    "gate first": ("  par i < M, j < F\n    y[i, j] = h[i, j] * h[i, F + j]", [2]),
    "gate second": ("  par p < M, q < F\n    y[p, q] = h[p, F + q] * exp(h[p, q])", [2]),
    "in turns": ("  par i < M, j < F\n    y[i, j] = h[i, 2*j] * h[i, 2*j + 1]", [2]),
    "backwards": ("  par i < M, j < F\n    y[i, j] = h[i, -j + F - 1] * h[i, F + j]", [2]),
    "one half": ("  par i < M, j < F\n    y[i, j] = exp(h[i, F + j])", [1]),
    "one twice": ("  par i < M, j < F\n    y[i, j] = h[i, j] * h[i, j] + h[i, F + j]", [2]),
    "in two loops": ("  par i < M\n    par j < F\n      y[i, j] = h[i, j]\n    par q < F\n      z[i, q] = h[i, F + q]", [1, 1]),
    "in a sum": ("  par i < M\n    fold j < F\n      acc s: f32 sum\n      s <- f32(h[i, j]) * f32(h[i, F + j])\n    v[i] = s",
                 [1, 2]),
    "a name of the index": ("  par i < M, j < F\n    l = {F + j}\n    y[i, j] = h[i, j] * h[i, l]", [2]),
}  # fmt: skip
OUTPUTS = HEAD + "buf z: bf16[M, F] out\nbuf v: f32[M] out\n"


@pytest.mark.parametrize("name", READERS)
def test_every_window_has_an_accumulator(name: str) -> None:
    reader, counts = READERS[name]
    found = made(program(reader, OUTPUTS))
    assert isinstance(found, Merged), found
    assert folds(found.kernel) == counts
    assert "h[" not in print_kernel(found.kernel)
    assert found.kind == ("dual contraction" if 2 in counts and 1 not in counts else found.kind)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_instances_keep_every_bit(name: str, data: st.DataObject) -> None:
    before = program(READERS[name][0], OUTPUTS)
    found = made(before)
    sizes, inputs = data.draw(ir_inputs(before))
    wanted = {
        s.buffer for k in before.kernels[1:] for s in walk(k.body) if not isinstance(s, Loop) and hasattr(s, "buffer")
    }
    keep = tuple(b for b in before.buffers if b.role != "out" or b.id in wanted)
    old = Program(before.name, before.sizes, before.requires, keep, before.kernels)
    check(old, Program(before.name, before.sizes, before.requires, keep, (found.kernel,)), inputs, sizes)


@pytest.mark.parametrize(
    ("code", "reader"),
    [("recompute", "  par i < M, j < F\n    y[i, j] = h[i, j] * h[i, j + 1]"),
     ("recompute", "  par i < M, j < F\n    y[i, j] = h[i, 2*j] * h[i, F + j]"),
     ("recompute", "  par i < M, j < F, l < F\n    y[i, j] = h[i, l]"),
     ("recompute", "  par i < M\n    par j < F\n      y[i, j] = h[i, j]\n    par q < F\n      z[i, q] = h[i, q]"),
     ("instances", "  par i < M, j < F\n    y[i, j] = h[i, j] if {j} < {1} else h[i, F + j]"),
     ("instances", "  par i < M, j < F\n    l = g[i]\n    y[i, j] = h[i, l]"),
     ("instances", "  par i < M, j < F\n    y[i, j] = h[i, j % 8]"),
     ("instances", "  par i < M, j < F\n    y[i, j] = h[i, j ~edge] * h[i, F + j]"),
     ("instances", "  par i < M\n    seq j < F\n      y[i, j] = h[i, j]")],
)  # fmt: skip
def test_refusals(code: str, reader: str) -> None:
    found = made(program(reader, OUTPUTS))
    assert isinstance(found, Cause)
    assert found.code == code


def test_a_producer_that_is_elementwise_is_for_inlining() -> None:
    first = "kernel k1\n  par i < M, j < 2*F\n    h[i, j] = exp(b[0, j])\n"
    found = made(program(READERS["gate first"][0], first=first))
    assert isinstance(found, Cause)


def fused(source: str, **sizes: int) -> tuple[Program, list[int]]:
    stage = apply(FUSE, lower_program(compile_source(Source("s", source)).typed).program, sizes=sizes)
    return stage.program, [n for k in stage.program.kernels for n in folds(k)]


GATES = """input x: bf16[B, I]
input w: bf16[I, {n} * U]
let z = x @ w
output y = {terms}
"""


@pytest.mark.parametrize("n", [2, 3, 4])
def test_gates_of_one_product_are_one_kernel(n: int) -> None:
    terms = " * ".join(f"tanh(z[:, {k} * U : {k + 1} * U])" for k in range(n))
    program_, counts = fused(GATES.format(n=n, terms=terms), B=8192, I=1024, U=1024)
    assert (len(program_.kernels), counts) == (1, [n])


def test_windows_that_may_overlap_stay_two_kernels() -> None:
    program_, counts = fused(GATES.format(n=2, terms="tanh(z[:, :U + 1]) * z[:, U - 1:]"))
    assert (len(program_.kernels), counts) == (2, [1])


def test_an_output_is_not_computed_in_parts() -> None:
    program_, counts = fused(GATES.format(n=2, terms="tanh(z[:, :U]) * z[:, U:]") + "output z\n")
    assert (len(program_.kernels), counts) == (2, [1])


# -- abreast ----------------------------------------------------------------------------------------------------------

SIBLINGS = """input x: bf16[M, K]
input p: bf16[K, N]
input q: bf16[K, {columns}]
output u = x @ p
output v = x @ q
"""


def test_products_of_one_operand_walk_it_together() -> None:
    program_, counts = fused(SIBLINGS.format(columns="N"), M=8192, N=1024, K=1024)
    assert (len(program_.kernels), counts) == (1, [2])


def test_products_of_other_widths_do_not() -> None:
    program_, counts = fused(SIBLINGS.format(columns="L"), M=8192, N=1024, L=512, K=1024)
    assert (len(program_.kernels), counts) == (1, [1, 1])


@given(data=st.data())
def test_loops_abreast_keep_every_bit(data: st.DataObject) -> None:
    before = lower_program(compile_source(Source("s", SIBLINGS.format(columns="N"))).typed).program
    found = made(before, abreast)
    assert folds(found.kernel) == [2]
    sizes, inputs = data.draw(ir_inputs(before))
    check(before, Program(before.name, before.sizes, before.requires, before.buffers, (found.kernel,)), inputs, sizes)
