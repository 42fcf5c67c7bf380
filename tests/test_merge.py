"""Joining of kernels: which loops pair, what the joint nest looks like, and that results keep every bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopfuse.analysis.env import environment
from loopfuse.backends.reference import run
from loopfuse.bind import Given
from loopfuse.decisions import Cause
from loopfuse.driver import bind_program
from loopfuse.ir import Loop, Program
from loopfuse.passes.merge import Merged, inline, instance, merge
from loopfuse.printer import print_kernel, print_program
from loopfuse.reader import parse_program
from loopfuse.rewrite import walk
from loopfuse.verify import violations
from tests.ir_strategies import ir_inputs, ir_programs
from tests.merging import inline_all, join_all
from tests.oracles.core import Case
from tests.oracles.table import CASES, EXAMPLES, SCRIPTS
from tests.test_reference import same_bits
from tests.test_scripts import _compiled

WAYS = {
    "join": join_all,
    "join siblings and sequences": lambda p: join_all(p, siblings=True, sequences=True),
    "inline": inline_all,
    "instance": partial(inline_all, way=instance),
}
FIRST = list({c.script: c for c in [*SCRIPTS, *EXAMPLES]}.values())
LARGEST = 200_000


def check(program: Program, joined: Program, inputs: dict[str, Any], sizes: dict[str, int]) -> None:
    assert not list(violations(joined)), print_program(joined)
    want, got = run(program, inputs, sizes).outputs, run(joined, inputs, sizes).outputs
    for name, array in want.items():
        assert same_bits(array, got[name]), f"{name}\n{print_program(joined)}"


def check_case(case: Case) -> None:
    checked, lowered = _compiled(case.script, case.text, tuple(case.draw.sizes.items()))
    bound = bind_program(checked.typed, Given(case.inputs(), params=case.draw.params))
    small = sum(np.asarray(a).size for a in bound.inputs.values()) <= LARGEST
    for way in WAYS.values():
        joined = way(lowered.program)
        if small:
            check(lowered.program, joined, dict(bound.inputs), dict(bound.sizes))
        else:
            assert not list(violations(joined))


@pytest.mark.parametrize("case", FIRST[::4], ids=lambda c: c.id)
def test_joined_scripts_keep_every_bit(case: Case) -> None:
    check_case(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_every_case_keeps_every_bit_when_joined(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_joined_random_programs_keep_every_bit(way: str, data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    joined = WAYS[way](program)
    sizes, inputs = data.draw(ir_inputs(program))
    check(program, joined, inputs, sizes)


# -- structure --------------------------------------------------------------------------------------------------------

HEAD = """program p(M, N)
buf x: f32[M, N] in
buf r: f32[N] in
buf a: f32[M, N]
buf m: f32[M]
buf y: f32[M, N] out
"""


def pair(first: str, second: str, head: str = HEAD) -> tuple[Any, Program]:
    program = parse_program(f"{head}kernel k1\n{first}\nkernel k2\n{second}\n")
    env = environment(program)
    return merge(*program.kernels, env, frozenset(b.id for b in program.buffers)), program


def loops(made: Any) -> list[str]:
    """The indices of the loops of a joint kernel, outermost first, folds with a star."""
    assert isinstance(made, Merged)
    return [",".join(d.id for d in s.dims) + "*" * bool(s.accs) for s in walk(made.kernel.body) if isinstance(s, Loop)]


def test_elementwise_chain_is_one_loop() -> None:
    made, _ = pair(
        "  par i < M, j < N\n    a[i, j] = exp(x[i, j])", "  par p < M, q < N\n    y[p, q] = a[p, q] + 1.0f32"
    )
    assert loops(made) == ["i,j"] and made.kind == "vertical"


def test_indices_pair_through_subscripts_and_not_by_extent() -> None:
    """A transpose on a square array: the loops must meet crosswise, whatever their order and extents."""
    head = HEAD.replace("M, N)", "N)").replace("f32[M, N]", "f32[N, N]").replace("f32[M]", "f32[N]")
    made, _ = pair("  par i < N, j < N\n    a[i, j] = exp(x[i, j])", "  par p < N, q < N\n    y[p, q] = a[q, p]", head)
    assert loops(made) == ["i,j"] or loops(made) == ["j,i"]
    assert "y[j, i]" in print_kernel(made.kernel)


def test_an_array_used_both_ways_round_pairs_nothing() -> None:
    head = HEAD.replace("M, N)", "N)").replace("f32[M, N]", "f32[N, N]").replace("f32[M]", "f32[N]")
    made, _ = pair("  par i < N, j < N\n    a[i, j] = exp(x[i, j])",
                   "  par p < N, q < N\n    y[p, q] = a[p, q] + a[q, p]", head)  # fmt: skip
    assert made.kind == "block" and made.cause.code == "subscripts"


def test_a_fold_and_its_consumer_share_only_the_rows() -> None:
    """The classical error is to join the reduced loop too, which hides where M = N."""
    fold = "  par i < M\n    fold j < N\n      acc s: f32 max\n      s <- x[i, j]\n    m[i] = s"
    made, _ = pair(fold, "  par i < M, j < N\n    y[i, j] = x[i, j] / m[i]")
    assert loops(made) == ["i", "j*", "j.1"] and made.kind == "reduction"


def test_a_producer_joins_the_fold_that_reads_it() -> None:
    fold = "  par i < M\n    fold j < N\n      acc s: f32 sum\n      s <- a[i, j]\n    m[i] = s"
    made, _ = pair("  par i < M, j < N\n    a[i, j] = exp(x[i, j])", fold, HEAD.replace("y: f32[M, N]", "y: f32[M]"))
    assert loops(made) == ["i", "j*"]


def test_other_extents_are_refused_with_both_ranges() -> None:
    made, _ = pair("  par i < M, j < N\n    a[i, j] = x[i, j]", "  par i < M - 1, j < N - 1\n    y[i, j] = a[i, j]")
    assert isinstance(made, Merged) and made.cause is not None and made.cause.code == "extent"
    assert "0..M" in made.cause.message and "0..M - 1" in made.cause.message


def test_a_gather_is_refused_by_name() -> None:
    head = HEAD.replace("buf r: f32[N] in", "buf r: i64[N] in").replace("a: f32[M, N]", "a: f32[N]")
    made, _ = pair("  par j < N\n    a[j] = 1.0f32", "  par i < M, j < N\n    y[i, j] = a[r[j] ~edge]", head)
    assert made.cause is not None and made.cause.code == "gather" and "`a`" in made.cause.message


def test_siblings_meet_at_what_both_read() -> None:
    head = HEAD + "buf z: f32[M] out\n"
    one = "  par i < M\n    fold j < N\n      acc s: f32 sum\n      s <- x[i, j]\n    z[i] = s"
    two = "  par p < M\n    fold q < N\n      acc t: f32 max\n      t <- x[p, q]\n    y[p, 0] = t"
    made, _ = pair(one, two, head.replace("y: f32[M, N]", "y: f32[M, 1]"))
    assert loops(made) == ["i", "j*"] and made.kind == "horizontal"


def test_a_recurrence_is_named() -> None:
    head = HEAD.replace("a: f32[M, N]", "a: f32[M + 1]")
    seq = "  seq t < M\n    a[t + 1] = a[t] + x[t, 0]"
    program = parse_program(f"{head}kernel k0\n  par i < 1\n    a[0] = 0.0f32\nkernel k1\n{seq}\n"
                            "kernel k2\n  par i < M, j < N\n    y[i, j] = a[M]\n")  # fmt: skip
    made = merge(*program.kernels[1:], environment(program), frozenset())
    assert isinstance(made, Merged) and made.kind == "block"
    assert made.cause is not None and made.cause.code in ("recurrence", "reduction", "subscripts")


@pytest.mark.parametrize("first", ["seq t < T\n    par i < N\n      h[t + 1, i] = h[t, i] * x[t, i]",
                                   "par t < T\n    par i < N\n      y[t, i] = x[t, i]"])  # fmt: skip
@pytest.mark.parametrize("index", ["t", "u"])
def test_windows_follow_the_index_that_they_slide_along(first: str, index: str) -> None:
    head = ("program p(N, T)\nbuf x: f32[T, N] in\nbuf h: f32[T + 1, N] window [t:t + 2, 0:N]\n"
            f"buf g: f32[T + 1, N] window [{index}:{index} + 2, 0:N]\nbuf y: f32[T, N] out\n")  # fmt: skip
    second = f"seq {index} < T\n    par i < N\n      g[{index} + 1, i] = g[{index}, i] + x[{index}, i]"
    made, _ = pair(f"  {first}", f"  {second}", head)
    assert loops(made) == ["t", "i"]
    assert [str(b.window[0][0][0]) for b in made.buffers] == ([] if index == "t" else ["t"])


TILED = """program p(M, H, D, N, T)
size T plan >= 1
buf x: f32[M, H*D, N] in
buf a: f32[M, H*D, N]
buf l: f32[M, H*D, N] local window [i:i + 1, j:j + 1, t:min(N, T + t)]
buf y: f32[M, H*D, N] out
kernel k1
{first}
kernel k2
  par i < M, j < H*D, t < N step T
    par u in t .. min(N, T + t)
      l[i, j, u] = a[i, j, u] * 2.0f32
    par v in t .. min(N, T + t)
      y[i, j, v] = l[i, j, v] + 1.0f32
"""
TURNED = """program p(M, J, N, T)
size T plan >= 1
buf x: f32[J, M] in
buf w: f32[M, J] in
buf g: f32[M, N] in
buf a: f32[J]
buf l: f32[M, N] local window [i:i + 1, t:min(N, T + t)]
buf y: f32[M, N] out
kernel k1
  par {j} < J
    fold m < M
      acc q: f32 sum
      q <- x[{j}, m]
    a[{j}] = q
kernel k2
  par i < M
    fold k < J
      acc s: f32 sum
      s <- a[k] * w[i, k]
    par t < N step T
      par u in t .. min(N, T + t)
        l[i, u] = g[i, u] * s
      par v in t .. min(N, T + t)
        y[i, v] = l[i, v] + 1.0f32
"""
FOLLOWED = {
    "a pair of indices": (TILED.format(first="  par m < M, n < H*D, k < N\n    a[m, n, k] = exp(x[m, n, k])"),
                          "m:m + 1, n:n + 1, t:min(N, T + t)"),
    "names that both have": (TILED.format(first="  par t < M, i < H*D, k < N\n    a[t, i, k] = exp(x[t, i, k])"),
                             "t.2:t.2 + 1, i.2:i.2 + 1, t.1:min(N, T + t.1)"),
    "an index that is split": (TILED.format(first="  par m < M, h < H, d < D\n    par k < N\n"
                                            "      a[m, h*D + d, k] = exp(x[m, h*D + d, k])"),
                               "m:m + 1, D*h + d:D*h + d + 1, t:min(N, T + t)"),
    "a loop turned inside out": (TURNED.format(j="j"), "i.1:i.1 + 1, t:min(N, T + t)"),
    "a loop turned, of a shared name": (TURNED.format(j="i"), "i.2:i.2 + 1, t:min(N, T + t)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
@given(data=st.data())
def test_windows_of_local_arrays_follow_every_index(name: str, data: st.DataObject) -> None:
    """Each step of a tiled loop has its own part of an array, which the loop keeps when it joins another."""
    text, window = FOLLOWED[name]
    program = parse_program(text)
    found = merge(*program.kernels, environment(program), frozenset(b.id for b in program.buffers))
    assert isinstance(found, Merged)
    assert found.cause is None
    new = {b.id: b for b in found.buffers}
    buffers = tuple(new.get(b.id, b) for b in program.buffers)
    joined = Program(program.name, program.sizes, program.requires, buffers, (found.kernel,))
    assert f"local window [{window}]" in print_program(joined)
    assert not list(violations(joined, ranges=True)), print_program(joined)
    sizes, inputs = data.draw(ir_inputs(program))
    check(program, joined, inputs, sizes)


def test_a_fill_stays_outside_of_what_is_inlined() -> None:
    """f(pad(x)) is not pad(f(x)): the boundary mode applies to the value that the producer makes."""
    program = parse_program(HEAD.replace("f32[M, N]", "f32[N]").replace("f32[M]", "f32[N]").replace("(M, N)", "(N)") +
                            "kernel k1\n  par i < N\n    a[i] = exp(x[i])\n"
                            "kernel k2\n  par i < N\n    y[i] = a[i - 1 ~constant 0.0f32]\n")  # fmt: skip
    made = inline(*program.kernels, environment(program), frozenset())
    assert isinstance(made, Merged)
    text = print_kernel(made.kernel)
    assert "~constant" not in text and "exp(x[i - 1]) if" in text and "else 0.0f32" in text


@pytest.mark.parametrize(("mode", "made"), [("~constant 7.0f32", "else 7.0f32"), ("~edge", "= x[i]"), ("~checked", "")])
def test_an_axis_of_one_element_keeps_its_mode(mode: str, made: str) -> None:
    program = parse_program("program p(N)\nbuf x: f32[N] in\nbuf a: f32[N, 1]\nbuf y: f32[N] out\n"
                            "kernel k1\n  par i < N\n    a[i, 0] = x[i]\n"
                            f"kernel k2\n  par i < N\n    y[i] = a[i, i {mode}]\n")  # fmt: skip
    found = inline(*program.kernels, environment(program), frozenset())
    assert made in print_kernel(found.kernel) if isinstance(found, Merged) else not made


def test_reader_and_producer_may_swap_the_names_of_their_indices() -> None:
    """Under a fill the definition goes in as a tree, lets and all: each index is replaced once."""
    program = parse_program("program p(M, N)\nbuf x: f32[M, N] in\nbuf a: f32[M, N]\nbuf y: f32[N, M] out\n"
                            "kernel k1\n  par i < M, j < N\n    t = x[i, j] * x[i, j]\n    a[i, j] = t + 1.0f32\n"
                            "kernel k2\n  par j < M, i < N\n    y[i, j] = a[j - 1 ~constant 0.0f32, i]\n")  # fmt: skip
    made = inline(*program.kernels, environment(program), frozenset())
    assert isinstance(made, Merged)
    assert "x[j - 1, i] * x[j - 1, i] + 1.0f32 if" in print_kernel(made.kernel)


def test_a_clipped_read_of_a_shifted_producer_is_refused() -> None:
    """edge(f)[i - 1] with f[i] = x[i + 1]: the clip is of f's index, not of x's."""
    program = parse_program("program p(N)\nbuf x: f32[N + 1] in\nbuf a: f32[N]\nbuf y: f32[N] out\n"
                            "kernel k1\n  par i < N\n    a[i] = x[i + 1]\n"
                            "kernel k2\n  par i < N\n    y[i] = a[i - 1 ~edge]\n")  # fmt: skip
    assert isinstance(inline(*program.kernels, environment(program), frozenset()), Cause)


def test_an_axis_gone_over_in_parts_meets_the_whole() -> None:
    """A product of M columns whose reader sees heads of D: the column is split as the reader has it."""
    head = """program p(B, H, D)
buf x: f32[B, H*D] in
buf a: f32[B, H*D]
buf y: f32[H, B, D] out
"""
    made, _ = pair("  par i < B, n < H*D\n    a[i, n] = exp(x[i, n])",
                   "  par h < H, b < B, d < D\n    y[h, b, d] = a[b, h*D + d] * 2.0f32", head)  # fmt: skip
    assert len(loops(made)) == 1 and len(loops(made)[0].split(",")) == 3
    made, _ = pair("  par i < B, h < H, d < D\n    a[i, h*D + d] = exp(x[i, h*D + d])",
                   "  par b < B, n < H*D\n    y[0, b, n] = a[b, n] * 2.0f32",
                   head.replace("[H, B, D]", "[1, B, H*D]"))  # fmt: skip
    assert len(loops(made)) == 1 and len(loops(made)[0].split(",")) == 3


def test_a_total_keeps_its_order_beside_loops_in_another_order() -> None:
    """A sum over i, j, k next to rows of i, k: what is left of the sum is a parallel loop, and still has an order."""
    head = "program p(A, B, C)\nbuf x: f32[A, B, C] in\nbuf t: f32[] out\nbuf c: f32[A, C] out\n"
    total = "  fold i < A, j < B, k < C\n    acc s: f32 sum\n    s <- x[i, j, k]\n  t[] = s"
    rows = "  par i < A, k < C\n    fold j < B\n      acc p: f32 prod\n      p <- x[i, j, k]\n    c[i, k] = p"
    for first, second in ((total, rows), (rows, total)):
        made, program = pair(first, second, head)
        joined = Program(program.name, program.sizes, (), program.buffers, (made.kernel,))
        sizes = {"A": 3, "B": 7, "C": 5}
        check(program, joined, {"x": np.random.default_rng(0).standard_normal((3, 7, 5)).astype(np.float32)}, sizes)
