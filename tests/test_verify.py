"""The verifier: valid programs pass, and each invariant has programs that break it and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_mutations import mutated
from ir_programs_by_hand import PROGRAMS
from ir_strategies import ir_inputs, ir_programs
from ir_tracker import track

from loopfuse.diag import CompilerError
from loopfuse.dtypes import BOOL, DTYPES, F32, F64, I64
from loopfuse.ir import (
    Affine,
    Buffer,
    Const,
    Dim,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Mode,
    Op,
    Program,
    Ref,
    Require,
    Select,
    Size,
    Stmt,
    Store,
)
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.sizes import ZERO, Poly
from loopfuse.verify import verify, violations

DECLARED = """program t(M, N)
size M shape >= 1
buf x: f32[M, N] in
buf v: f32[M] in
buf k: i64[M] in
buf s: f32 param
buf y: f32[M, N] out
"""
FILL = "par i.9 < M, j.9 < N\n  y[i.9, j.9] = 0.0f32\n"


def broken(text: str, declared: str = DECLARED) -> list[tuple[str, str]]:
    """The invariants that a text breaks, with what is said."""
    return [(v.invariant, str(v)) for v in violations(parse_program(declared + text), ranges=True)]


# -- what is valid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_written_by_hand_are_valid(name) -> None:
    verify(parse_program(PROGRAMS[name]), ranges=True)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_programs_are_valid_and_run(data) -> None:
    program = data.draw(ir_programs())
    verify(program, ranges=True)
    sizes, arrays = data.draw(ir_inputs(program))
    assert track(program, sizes, arrays, lambda points: points[::-1]) is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_what_is_accepted_runs_in_every_order(data) -> None:
    """A program with a small mistake is refused, or the mistake does no harm in any order of the iterations."""
    program = data.draw(mutated(data.draw(ir_programs())))
    if list(violations(program, ranges=True)):
        return
    sizes, arrays = data.draw(ir_inputs(program))
    shuffle = random.Random(0)
    for order in (list, lambda points: points[::-1], lambda points: shuffle.sample(points, len(points))):
        noted = track(program, sizes, arrays, order)
        assert noted is None, f"{noted}, with {sizes}, in\n{print_program(program)}"


VALID = {
    "interleaved": "par i < M, j < N\n  z[2*i, j] = 0.0f32\n  z[2*i + 1, j] = 1.0f32\n",
    "rows from both ends": "par i < M, j < N\n  z[i, j] = 0.0f32\n  z[2*M - 1 - i, j] = 1.0f32\n",
    "triangle of loads": "par i < M, j < N\n  fold a in 0 .. min(i + 1, N)\n    acc t: f32 sum\n    t <- x[i, a]\n"
    "  y.0 = t\n",
    "guarded": "par i < M\n  a = v[i + 1] if {i} + {1} < {M} else 0.0f32\n",
    "guarded by and": "par i < M\n  a = {i} + {1} < {M} and v[i + 1] > 0.0f32\n",
    "guarded by or": "par i < M\n  a = {i} + {1} >= {M} or v[i + 1] > 0.0f32\n",
    "guarded by a condition of the loop": "fold i < M where {i} + {1} < {M}\n  acc t: f32 sum\n  t <- v[i + 1]\n",
    "a mask that is looked through": "par i < M\n  ok = {i} + {1} < {M}\n  a = v[i + 1] if ok else 0.0f32\n",
    "an integer let": "par i < M\n  k.1 = clip(k[i], {0}, {M - 1})\n  a = v[k.1] + v[$k.1]\n",
    "the position of a maximum": "fold i < M\n  acc b: f32 argmax\n  b <- v[i] at {i}\na = v[$b]\n",
    "own stores": "par i < M, j < N\n  z[i, j] = 0.0f32\n  a = z[i, j]\npar i < M, j < N\n  z[M + i, j] = z[i, j]\n",
    "an accumulator in a later loop": "par i < M\n  fold j < N\n    acc a: f32 sum\n    a <- x[i, j]\n"
    "  fold j < N where x[i, j] > a\n    acc b: f32 sum\n    b <- x[i, j] - a\n",
    "a running array": "prefix i < M\n  acc a: f32[N] sum\n  par j < N\n    a[j] <- x[i, j]\n    z[i, j] = a[j]\n"
    "par i < M, j < N\n  z[M + i, j] = 0.0f32\n",
    "a running value through a fold": "par j < N\n  prefix i < M\n    acc a: f32 sum\n    a <- x[i, j]\n"
    "    fold l < 3\n      acc b: f32 max\n      b <- a * f32({l})\n    z[i, j] = b\n"
    "    z[M + i, j] = a\n",
    "whole tiles": "par a < 2*M step 2, j < N\n  par i in a .. a + 2\n    z[i, j] = 1.0f32\n",
    "what never runs": "par i < M\n  fold j in 3 .. 3\n    acc t: f32 sum\n    t <- x[i, j + N]\n  y.0 = t\n",
    "the same index in turn": "par i < M\n  a = v[i]\npar i < M\n  b = v[i]\n",
}


@pytest.mark.parametrize("name", sorted(VALID))
def test_what_is_valid(name) -> None:
    declared = DECLARED + ("buf z: f32[2*M, N]\n" if "z[" in VALID[name] else "")
    assert broken("kernel k1\n" + "".join(f"  {line}\n" for line in (VALID[name] + FILL).splitlines()), declared) == []


# -- what is not ------------------------------------------------------------------------------------------------------

# Invariant, what is said, statements; `z: f32[M, N]` is declared too where they mention it.
INVALID = [
    ("identifiers", "`a` is defined twice, as let and as let", "a = 1.0f32\na = 2.0f32\n"),
    ("identifiers", "`i` is defined twice, as index and as index", "par i < M\n  par i < M\n    a = 1.0f32\n"),
    ("identifiers", "`i` is defined twice, as index and as index", "par i < M, i < N\n  a = 1.0f32\n"),
    ("identifiers", "`v` is defined twice, as buffer and as let", "v = 1.0f32\n"),
    ("identifiers", "`M` is defined twice, as size and as index", "par M < N\n  a = 1.0f32\n"),
    ("identifiers", "`a` is defined twice, as acc and as let", "fold i < M\n  acc a: f32 sum\n  a <- v[i]\na = 1.0f32\n"),
    ("names", "`a` is no value here in `b = a`", "par i < M\n  a = v[i]\nb = a\n"),
    ("names", "`i` in `i + 1` is not defined here", "par i < M\n  a = v[i]\nb = v[i + 1 ~edge]\n"),
    ("names", "`a` is no array here", "par i < M\n  fold j < N\n    acc a: f32[2] sum\n    a[0] <- v[i]\nb = a[0]\n"),
    ("names", "`i` in `i` is not defined here", "par i < M, j in i .. N, a in 0 .. j\n  b = 1.0f32\n"),
    ("names", "`a` in `a` is no size, index or integer let", "a = v[0]\npar i < a\n  b = 1.0f32\n"),
    ("names", "`v` in `v` is no size, index or integer let", "par i < v\n  b = 1.0f32\n"),
    ("names", "`b` in `b` is no size, index or integer let",
     "fold i < M\n  acc b: f32 argmax\n  b <- v[i] at {i}\na = v[b ~edge]\n"),
    ("names", "`a` in `a` is no size, index or integer let", "a = u64(k[0])\nb = v[a ~edge]\n"),
    ("types", "`y` holds f32, the value is f64", "par i < M, j < N\n  y[i, j] = f64(x[i, j])\n"),
    ("types", "the condition of the loop is i64", "fold i < M where k[i]\n  acc a: f32 sum\n  a <- v[i]\n"),
    ("types", "`a` holds f32, the value is i64", "fold i < M\n  acc a: f32 sum\n  a <- k[i]\n"),
    ("types", "the position is f32", "fold i < M\n  acc a: f32 argmax\n  a <- v[i] at v[i]\n"),
    ("types", "`a`: `sum` is not defined for bool", "fold i < M\n  acc a: bool sum\n  a <- true\n"),
    ("types", "`a`: `any` is not defined for f32", "fold i < M\n  acc a: f32 any\n  a <- v[i]\n"),
    ("types", "`constant` needs a fill", "a = v[0 ~constant]\n"),
    ("types", "`edge` takes no fill", "a = v[0 ~edge 1.0f32]\n"),
    ("types", "the fill is f64, the elements are f32", "a = v[0 ~constant 1.0f64]\n"),
    ("types", "the subscript `s[]` is f32", "a = v[s[]]\n"),
    ("ranks", "a store has the mode `edge`", "par i < M, j < N\n  y[i, j ~edge] = 1.0f32\n"),
    ("ranks", "`v` has 1 axes, not 2", "a = v[0, 0]\n"),
    ("ranks", "`y` has 2 axes, not 1", "par i < M\n  y[i] = 1.0f32\n"),
    ("loops", "the step `0` of `i` is not positive", "par i < M step 0\n  a = 1.0f32\n"),
    ("loops", "the step `N` of `i` is not positive", "par i < M step N\n  a = 1.0f32\n"),
    ("accumulators", "a seq loop has accumulators", "seq i < M\n  acc a: f32 sum\n  a <- v[i]\n"),
    ("accumulators", "a prefix loop has no accumulator", "prefix i < M\n  a = v[i]\n"),
    ("accumulators", "`b` has a repair in a prefix loop",
     "prefix i < M\n  acc a: f32 sum\n  acc b: f32 sum repair self\n  a <- v[i]\n  b <- v[i]\n"),
    ("absorbs", "`a` is no accumulator of an enclosing loop", "fold i < M\n  acc a: f32 sum\n  a <- v[i]\na <- v[0]\n"),
    ("absorbs", "`v` is no accumulator of an enclosing loop", "par i < M\n  v[i] <- 1.0f32\n"),
    ("absorbs", "`a` is no buffer: only `<-` writes an accumulator", "fold i < M\n  acc a: f32[M] sum\n  a[i] = v[i]\n"),
    ("absorbs", "`sum` takes no position", "fold i < M\n  acc a: f32 sum\n  a <- v[i] at {i}\n"),
    ("absorbs", "`argmax` needs a position", "fold i < M\n  acc a: f32 argmax\n  a <- v[i]\n"),
    ("absorbs", "a store has a position", "par i < M, j < N\n  y[i, j] = 1.0f32 at {i}\n"),
    ("repairs", "the repair of `b` is i64, not f32",
     "fold i < M\n  acc a: f32 max\n  acc b: f32 sum repair i64(a.old)\n  a <- v[i]\n  b <- v[i]\n"),
    ("partial_values", "`b` absorbs a term of `a`, but is not a later, repaired accumulator",
     "fold i < M\n  acc a: f32 max\n  acc b: f32 sum\n  a <- v[i]\n  b <- v[i] - a\n"),
    ("partial_values", "`a` absorbs a term of `b`, but is not a later, repaired accumulator",
     "fold i < M\n  acc a: f32 max repair self\n  acc b: f32 sum repair self\n  c = b\n  a <- v[i] - c\n  b <- v[i]\n"),
    ("partial_values", "a store in the loop of `a` depends on it",
     "par i < M\n  fold j < N\n    acc a: f32 max\n    a <- x[i, j]\n    y[i, j] = a\n"),
    ("partial_values", "the loop depends on `a`, which is not complete",
     "fold i < M\n  acc a: f32 max\n  a <- v[i]\n  par j < N where a > 0.0f32\n    b = 1.0f32\n"),
    ("partial_values", "the loop depends on `a`, which is not complete",
     "fold i < M\n  acc a: i64 max\n  a <- k[i]\n  b = a\n  par j < b\n    c = 1.0f32\n"),
    ("partial_values", "`a` of an outer loop absorbs a term of `b`, which is not complete",
     "fold i < M\n  acc a: f32 max\n  fold j < N\n    acc b: f32 sum\n    b <- x[i, j]\n    a <- b\n"),
    ("partial_values", "a store in the loop of `a` depends on it",
     "par i < M\n  fold j < N\n    acc a: f32 max\n    a <- x[i, j]\n    fold k.1 < 2\n      acc b: f32 sum\n      b <- a\n"
     "    y[i, j] = b\n"),
    ("partial_values", "`a` is read before it absorbs",
     "par i < M\n  prefix j < N\n    acc a: f32 sum\n    y[i, j] = a\n    a <- x[i, j]\n"),
    ("partial_values", "`b` absorbs a term of `a`",
     "prefix j < N\n  acc a: f32 sum\n  acc b: f32 sum\n  a <- x[0, j]\n  b <- a\n"),
    ("partial_values", "`a` is read in the loop that absorbs into it",
     "par j < N\n  prefix i < M\n    acc a: f32 sum\n    par l < 1\n      a <- x[i, j]\n      y[i, l + j] = a\n"),
    ("partial_values", "`a` is read in the loop that absorbs into it",
     "prefix i < M\n  acc a: f32[N] sum\n  par j < N\n    a[j] <- x[i, j]\n    y[i, j] = a[N - 1 - j]\n"),
    ("roles", "`v` is in and stored to", "par i < M\n  v[i] = 1.0f32\n"),
    ("roles", "the output `y` is never written", "a = 1.0f32\n"),
    ("written_once", "iterations of `a` may store to the same element of `y`",
     "par i < M, j < N, a < 2\n  y[i, j] = 1.0f32\n"),
    ("written_once", "iterations of `i` may store to the same element of `y`",
     "par i < M, j < N\n  y[i // 2, j] = 1.0f32\n"),
    ("written_once", "iterations of `i` may store to the same element of `y`",
     "par i < M, j < N\n  y[j + i ~checked, 0] = 1.0f32\n"),
    ("written_once", "iterations of `i` may store to the same element of `y`",
     "par i < M, j < N\n  y[$k[i] ~checked, j] = 1.0f32\n"),
    ("written_once", "another statement may have stored to the same element of `y`",
     "par i < M, j < N\n  y[i, j] = 1.0f32\n  y[M - 1 - i, j] = 1.0f32\n"),
    ("written_once", "iterations of `t` may store to the same element of `y`",
     "seq t < 2\n  par i < M, j < N\n    y[i, j] = 1.0f32\n"),
    ("covered", "`y` has N more elements than are stored", "par i in 1 .. M, j < N\n  y[i, j] = 1.0f32\n"),
    ("covered", "`y` has N more elements than are stored", "par i < M - 1, j < N\n  y[i, j] = 1.0f32\n"),
    ("covered", "the tiles of `a` do not end where its loop does",
     "par a < M - 1 step 2, j < N\n  par i in a .. min(M, a + 2)\n    y[i, j] = 1.0f32\n"),
    ("covered", "no store reaches the last element of axis 0",
     "par i < M, j < N where v[i] > 0.0f32\n  y[i - 1 ~checked, j] = 1.0f32\n"),
    ("covered", "no store reaches the first element of axis 1",
     "par i < M, j < N where v[i] > 0.0f32\n  y[i, j + 1 ~checked] = 1.0f32\n"),
    ("read_after_write", "`z` is read and never written", "par i < M, j < N\n  y[i, j] = z[i, j]\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "par i < M, j < N\n  y[i, j] = z[i, j]\npar i < M, j < N\n  z[i, j] = 1.0f32\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "par i < M, j < N\n  z[i, j] = 1.0f32\n  y[i, j] = z[M - 1 - i, j]\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "par i < M\n  par j < N\n    z[i, j] = 1.0f32\n  par j < N\n    y[i, j] = z[i - 1 ~edge, j]\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "par i < M, j < N\n  z[i, j] = 0.0f32 if {i} < {1} else z[i - 1, j]\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "seq i < M\n  par j < N\n    z[i, j] = 0.0f32 if {i} + {1} == {M} else z[i + 1, j]\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "seq i < M\n  par j < N\n    z[i, j] = z[$k[i] ~checked, j]\n"),
    ("read_after_write", "an element of `z` may be read before it is written",
     "prefix i < M\n  acc a: f32 sum\n  a <- v[i]\n  par j < N\n    z[i, j] = a if {i} < {1} else z[i - 1, j]\n"),
    ("in_range", "`i + 1` may be outside axis 0 of `v`", "par i < M\n  a = v[i + 1]\n"),
    ("in_range", "`k[i]` may be outside axis 0 of `v`", "par i < M\n  a = v[k[i]]\n"),
    ("in_range", "`0` may be outside axis 1 of `x`", "a = x[0, 0]\n"),
    ("in_range", "`i + 1` may be outside axis 0 of `v`", "par i < M\n  a = v[i + 1] if {i} < {M} else 0.0f32\n"),
    ("in_range", "`i + 1` may be outside axis 0 of `v`", "par i < M\n  a = 0.0f32 if {i} + {1} < {M} else v[i + 1]\n"),
    ("in_range", "`i + 1` may be outside axis 0 of `v`", "par i < M\n  a = v[i + 1] > 0.0f32 and {i} + {1} < {M}\n"),
    ("in_range", "`i + 1` may be outside axis 0 of `v`",
     "par i < M\n  a = where({i} + {1} < {M}, v[i + 1], 0.0f32)\n"),
    ("in_range", "`M` may be outside axis 0 of `a`", "fold i < M\n  acc a: f32[M] sum\n  a[M] <- v[i]\n"),
    ("in_range", "`j` may be outside axis 0 of `y`", "par i < M, j < N\n  y[j, i ~checked] = 1.0f32\n"),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "said", "text"), INVALID)
def test_what_is_not_valid(invariant, said, text) -> None:
    declared = DECLARED + ("buf z: f32[M, N]\n" if "z[" in text else "")
    filled = text if "y[" in text or "never written" in said else text + FILL
    if "z[" in text and "z[i, j] =" not in text and "never" not in said:
        filled += "par i.8 < M, j.8 < N\n  z[i.8, j.8] = 0.0f32\n"
    found = broken("kernel k1\n" + "".join(f"  {line}\n" for line in filled.splitlines()), declared)
    assert [name for name, _ in found][:1] == [invariant], found
    assert said in found[0][1]


DECLARATIONS = [
    ("sizes", "size `R` cannot be 3", "program t(R)\nsize R = 3 compile multiple 2\n"),
    ("sizes", "size `R` cannot be -1", "program t(R)\nsize R = -1 compile\n"),
    ("sizes", "size `R` is f32", "program t(R)\nsize R param f32\n"),
    ("sizes", "size `R` is u64", "program t(R)\nsize R param u64\n"),
    ("sizes", "size `R` is a multiple of 0", "program t(R)\nsize R shape multiple 0\n"),
    ("identifiers", "`N` is defined twice", "program t(N)\nbuf N: f32 in\n"),
    ("identifiers", "kernel `k` is defined twice", "program t()\nkernel k\n  a = 1.0f32\nkernel k\n  b = 1.0f32\n"),
    ("buffers", "the shape of `b` mentions `Q`, which is no size", "program t(N)\nbuf b: f32[N + Q] in\n"),
    ("buffers", "`b` is in and has a window or is local", "program t(N)\nbuf b: f32[N] in window [0:N]\n"),
    ("buffers", "`b` is out and has a window or is local", "program t(N)\nbuf b: f32[N] out local\n"),
    ("buffers", "the window of `b` has 1 axes, its shape 2", "program t(N)\nbuf b: f32[N, N] window [0:N]\n"),
    ("buffers", "the window of `b` mentions `q`", "program t(N)\nbuf b: f32[N] window [q:N]\n"),
    ("buffers", "an interval of the window of `b` has no bound", "program t(N)\nbuf b: f32[N] window [0:min()]\n"),
    ("buffers", "`b` is f32 and has a range", "program t(N)\nbuf b: f32[N] in range 0 .. N\n"),
    ("buffers", "the range of `b` mentions `q`, which is no size", "program t(N)\nbuf b: i64[N] in range 0 .. q\n"),
    ("requires", "the requirement `{N}` is i64", "program t(N)\nrequire {N}\n"),
    ("requires", "mentions `{q}`", "program t(N)\nrequire {q} > {N}\n"),
    ("requires", "mentions `b[]`", "program t(N)\nbuf b: f32 in\nrequire b[] > 0.0f32\n"),
    ("roles", "the local buffer `b` is used in several kernels",
     "program t(N)\nbuf b: f32[N] local\nkernel k\n  par i < N\n    b[i] = 1.0f32\nkernel l\n  a = b[0 ~edge]\n"),
    ("incarnations", "`b` is accessed outside the loop of `i`",
     "program t(N)\nbuf b: f32[N] local window [i:i + 1]\nkernel k\n  par i < N\n    b[i] = 1.0f32\n  a = b[0 ~edge]\n"),
    ("incarnations", "`b` is accessed outside the loop of `i`",
     "program t(N)\nbuf b: f32[N] local window [i:i + 1]\nkernel k\n  par i < N\n    b[i] = 1.0f32\n"
     "  par i < N\n    a = b[i]\n"),
    ("in_window", "`i + 1` may be outside the window of axis 0 of `b`",
     "program t(N)\nbuf b: f32[N + 1] local window [s:s + 1]\nkernel k\n  b[0] = 1.0f32\n  seq s < N\n    a = b[s]\n"
     "    b[s + 1] = 1.0f32\n".replace("s + 1] = ", "i + 1] = ").replace("seq s", "seq i").replace("b[s]", "b[i]")
     .replace("[s:s + 1]", "[i:i + 1]")),
    ("in_window", "`y - 2` may be outside the window of axis 0 of `b`",
     "program t(N, T)\nsize T plan >= 1\nbuf b: f32[N] local window [max(0, z - 1):min(N, z + T + 1)]\nkernel k\n"
     "  par z < N step T\n    par x in max(0, z - 1) .. min(N, z + T + 1)\n      b[x] = 1.0f32\n"
     "    par y in z .. min(N, z + T)\n      a = b[y - 2 ~edge]\n"),
    ("in_window", "`y - 1` may be outside the window of axis 0 of `b`",
     "program t(N, T)\nsize T plan >= 1\nbuf b: f32[N] local window [max(0, z - 1):min(N, z + T + 1)]\nkernel k\n"
     "  par z < N step T\n    par x in max(0, z - 1) .. min(N, z + T + 1)\n      b[x] = 1.0f32\n"
     "    par y in z .. min(N, z + T)\n      a = b[y - 1 ~wrap]\n"),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "said", "text"), DECLARATIONS)
def test_declarations_that_are_not_valid(invariant, said, text) -> None:
    found = broken(text, "")
    assert [name for name, _ in found][:1] == [invariant], found
    assert said in found[0][1]


@pytest.mark.parametrize(("width", "invariants"), [(2, []), (3, ["written_once", "read_after_write"])])
def test_a_row_kept_for_each_step_within_a_tile(width, invariants) -> None:
    """The step tells the tile, unless tiles have steps in common: then two of them store to one element."""
    text = (f"program t(N)\nbuf b: f32[N, N] local window [y:y + 1, 0:N]\nkernel k\n  par z < N step 2\n"
            f"    par y in z .. min(N, z + {width})\n      par x < N\n        b[y, x] = 1.0f32\n"
            "      a = b[y, 0 ~edge]\n")  # fmt: skip
    assert [name for name, _ in broken(text, "")] == invariants


# -- what text cannot say ---------------------------------------------------------------------------------------------

AT, N = Affine(Poly.of("i")), Poly.of("N")
ONE, TRUE = Const(0x3F800000, F32), Const(1, BOOL)


def with_value(value: Expr, *stmts: Stmt) -> Program:
    body = (*stmts, Let("v", value), Store("y", (AT,), ONE))
    buffers = (Buffer("x", F32, (N,), "in"), Buffer("y", F32, (N,), "out"))
    loop = Loop((Dim("i", (ZERO,), (N,)),), body)
    return Program("p", (Size("N"),), (), buffers, (Kernel("k", (loop,)),))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Load("x", (AT,), (None,), F64), "names: `x` holds f32, not f64"),
        (Load("x", (AT,), (), F32), "ranks: `x` has 1 axes, not 1"),
        (Ref("a", F64), "names: `a` is f32, not f64"),
        (Ref("i", I64), "names: `i` is no value here"),
        (Ref("N", I64), "names: `N` is no value here"),
        (Ref("x", F32), "names: `x` is no value here"),
        (Op("add", (ONE, Const(0, F64)), F32), "types: the operands of `add` differ in type"),
        (Op("add", (ONE, ONE), F64), "types: `add` of f32 gives f32, not f64"),
        (Op("add", (ONE,), F32), "types: `add` takes 2 operands, not 1"),
        (Op("nope", (ONE,), F32), "types: unknown operation `nope`"),
        (Op("exp", (ONE,), F32, True), "types: `exp` is marked as implied"),
        (Select(ONE, ONE, ONE), "types: the condition of a select is f32"),
        (Select(TRUE, ONE, Const(0, F64)), "types: the arms of a select are f32 and f64"),
        (Const(1 << 32, F32), "types: the bits 0x100000000 are not those of a f32"),
        (Const(2, BOOL), "types: the bits 0x2 are not those of a bool"),
        (Load("x", (AT,), (Mode("mirror"),), F32), "types: unknown mode `mirror`"),  # type: ignore[arg-type]
    ],
)
def test_nodes_that_contradict_themselves(value, said) -> None:
    first = next(violations(with_value(value, Let("a", ONE))))
    assert str(first).startswith(said)


def test_loops_and_declarations_that_text_cannot_say() -> None:
    program = with_value(ONE)
    (loop,) = program.kernels[0].body
    assert isinstance(loop, Loop)

    def first(loop: Loop) -> str:
        return next(violations(replace(program, kernels=(Kernel("k", (loop,)),)))).message

    assert first(replace(loop, dims=(*loop.dims, Dim("j", (), (N,))))) == "`j` has no bounds"
    assert first(replace(loop, order="down")) == "the loop has the unknown order `down`"  # type: ignore[arg-type]
    assert first(Loop((), ())) == "the loop has no index"
    assert next(violations(replace(program, numerics="loose"))).message == "unknown numerics `loose`"
    assert next(violations(replace(program, name="x", kernels=()))).message == "the output `y` is never written"
    bad = replace(program, sizes=(Size("N"), Size("if")))
    assert next(violations(bad)).message == "`if` is no id"
    bad = replace(program, buffers=(replace(program.buffers[0], scope="shared"), program.buffers[1]))  # type: ignore[arg-type]
    assert next(violations(bad)).message == "buffer `x` is in shared"
    bad = replace(program, requires=(Require(Op("not", (Ref("a", BOOL),), BOOL)),))
    assert next(violations(bad)).invariant == "requires"


# -- how it is said ---------------------------------------------------------------------------------------------------


def test_verify_raises_our_own_error() -> None:
    program = parse_program(DECLARED + FILL + "par i < M\n  a = v[i + 1]\n")
    verify(program)
    with pytest.raises(CompilerError) as caught:
        verify(program, ranges=True)
    assert caught.value.stage == "verify"
    assert caught.value.message == "in_range: `i + 1` may be outside axis 0 of `v` in `a = v[i + 1]`"
    assert caught.value.artifact == print_program(program)


def test_a_violation_knows_its_place() -> None:
    program = parse_program(DECLARED + FILL + "par i < M\n  a = v[i + 1]\n")
    (found,) = violations(program, ranges=True)
    assert found.statement == "a = v[i + 1]"
    assert found.span is not None
    assert found.span.text == "a = v[i + 1]"


def test_ten_thousand_statements() -> None:
    lines = ["program p(M, N)", "buf b0: f32[M, N] in"]
    count = 1250
    lines += [f"buf b{k}: f32[M, N]{' out' * (k == count)}" for k in range(1, count + 1)]
    for k in range(1, count + 1):
        lines += [
            f"kernel k{k}", "  par i < M", "    fold j < N", f"      acc m.{k}: f32 max", f"      m.{k} <- b{k - 1}[i, j]",
            "    par j < N", f"      e.{k} = exp(b{k - 1}[i, j] - m.{k})", f"      f.{k} = e.{k} if {{i}} < {{j}} else m.{k}",
            f"      b{k}[i, j] = f.{k} + b{k - 1}[i, j - 1 ~edge]",
        ]  # fmt: skip
    program = parse_program("\n".join(lines) + "\n")
    verify(program)


def test_many_stores_to_one_buffer() -> None:
    lines = ["program p(N)", "buf x: f32[N] in", "buf y: f32[300, N] out", "kernel k1"]
    for k in range(300):
        lines += ["  par i < N", f"    y[{k}, i] = x[i]"]
    verify(parse_program("\n".join(lines) + "\n"))
    lines[-1] = "    y[7, i] = x[i]"
    with pytest.raises(CompilerError, match="another statement"):
        verify(parse_program("\n".join(lines) + "\n"))


def test_dtypes_have_all_been_met() -> None:
    """Every element type can be declared, stored and reduced."""
    for dtype in DTYPES.values():
        monoid = "any" if dtype == BOOL else "sum"
        text = f"program p(N)\nbuf x: {dtype}[N] in\nbuf y: {dtype} out\nkernel k\n  fold i < N\n"
        verify(parse_program(text + f"    acc a: {dtype} {monoid}\n    a <- x[i]\n  y[] = a\n"), ranges=True)
