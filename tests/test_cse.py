"""Common subexpressions: golden files, random programs, doubled programs, and keys."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from golden import FOLDER, cases, check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import SCRIPTS, apply, assert_keeps_bits, lowered_script, same_bits, text

from loopfuse import driver
from loopfuse.analysis.hashing import kernel_key
from loopfuse.backends.reference import run
from loopfuse.dtypes import F32
from loopfuse.ir import Affine, Expr, Kernel, Let, Load, Loop, Op, Program, Store
from loopfuse.passes import Options
from loopfuse.passes.base import Steps
from loopfuse.passes.cse import PASS
from loopfuse.printer import print_program
from loopfuse.reader import parse_program
from loopfuse.rewrite import Fresh, rename, walk, walk_program
from loopfuse.sizes import Poly
from loopfuse.verify import violations

RANDOM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("path", cases("cse"), ids=lambda p: p.stem)
def test_golden(path: Path, bless: bool) -> None:
    check_golden(PASS, path, bless)


@given(st.data())
@RANDOM
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    stage = assert_keeps_bits(PASS, program, sizes, inputs)
    apply(PASS, stage.program)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts(path: Path) -> None:
    lowered, bound = lowered_script(path)
    assert_keeps_bits(PASS, lowered.program, bound.sizes, driver.run_inputs(lowered, bound))


# -- doubled programs -------------------------------------------------------------------------------------------------


def defined(kernel: Kernel) -> set[str]:
    """The lets and accumulators of a kernel, whose ids are unique in a program."""
    lets = {s.id for s in walk(kernel.body) if isinstance(s, Let)}
    return lets | {a.id for s in walk(kernel.body) if isinstance(s, Loop) for a in s.accs}


def doubled(program: Program) -> Program:
    """Everything twice: the second kernels compute the same into other buffers, which nothing reads but they."""
    fresh = Fresh(program)
    written = {s.buffer for s in walk_program(program) if isinstance(s, Store) and not s.absorb}
    names = {b.id: fresh(b.id) for b in program.buffers if b.id in written}
    copies = tuple(replace(b, id=names[b.id]) for b in program.buffers if b.id in written)
    kernels = tuple(
        Kernel(fresh(k.id), rename(k.body, {**names, **{n: fresh(n) for n in sorted(defined(k))}}))
        for k in program.kernels
    )
    return replace(program, buffers=(*program.buffers, *copies), kernels=(*program.kernels, *kernels))


@given(st.data())
@RANDOM
def test_doubled_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    twice = doubled(program)
    stage = assert_keeps_bits(PASS, twice, sizes, inputs)
    apply(PASS, stage.program)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_doubled_scripts(path: Path) -> None:
    """What folds twice folds once; not so where an access may report a fault, nor a whole recurrence."""
    lowered, bound = lowered_script(path)
    once = apply(PASS, lowered.program).program
    twice = apply(PASS, doubled(lowered.program)).program
    folds = [sum(isinstance(s, Loop) and bool(s.accs) for s in walk_program(p)) for p in (once, twice)]
    outputs = {b.id for b in lowered.program.buffers if b.role == "out"}
    scans = any(isinstance(s, Loop) and s.order != "par" for s in walk_program(once))
    checked = "checked" in print_program(once)
    assert scans or checked or folds[0] == folds[1], print_program(twice)
    before = run(lowered.program, driver.run_inputs(lowered, bound), bound.sizes)
    after = run(twice, driver.run_inputs(lowered, bound), bound.sizes)
    for name in outputs:
        assert same_bits(before.outputs[name], after.outputs[name])


# -- shape independent of order and names -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_names_do_not_matter(path: Path) -> None:
    lowered, _ = lowered_script(path)
    program = doubled(lowered.program)
    names = {b.id: f"q{(7 * n) % 101}.{n}" for n, b in enumerate(program.buffers)}
    other = replace(
        program,
        buffers=tuple(replace(b, id=names[b.id]) for b in program.buffers),
        kernels=tuple(replace(k, body=rename(k.body, names)) for k in program.kernels),
    )
    a, b = apply(PASS, program).program, apply(PASS, other).program
    assert [kernel_key(k, anonymous=True) for k in a.kernels] == [kernel_key(k, anonymous=True) for k in b.kernels]


def test_order_does_not_matter() -> None:
    program = text((FOLDER / "cse" / "nests.ir").read_text().partition("----")[0])
    k = program.kernels
    other = replace(program, kernels=(k[1], k[0], k[3], k[2], k[5], k[4], k[7], k[6]))
    a, b = apply(PASS, program).program, apply(PASS, other).program
    equal = {"b": "a", "d": "c", "t": "s"}  # whichever of the two is kept
    keys = [sorted(kernel_key(k, names=equal | {n: n for n in "acs"}) for k in p.kernels) for p in (a, b)]
    assert keys[0] == keys[1]


# -- steps, remarks, size ---------------------------------------------------------------------------------------------

NESTS = (FOLDER / "cse" / "nests.ir").read_text().partition("----")[0]


def test_steps() -> None:
    """Every number of steps gives a valid program, no step the program itself, and the last one all."""
    program = text(NESTS)
    whole = Steps()
    last = apply(PASS, program, steps={"cse": whole})
    assert len(whole.log) > 3
    assert apply(PASS, program, steps={"cse": Steps(0)}).program is program
    seen = [print_program(apply(PASS, program, steps={"cse": Steps(n)}).program) for n in range(len(whole.log) + 1)]
    assert seen[-1] == print_program(last.program)
    assert len(set(seen)) == len(seen)


def test_remarks_have_spans() -> None:
    program = text(NESTS)
    assert all(r.span is not None for r in apply(PASS, program).remarks)


def test_long_programs() -> None:
    """A long chain of kernels and a deep expression are walked without recursion."""
    count = 3 * sys.getrecursionlimit()
    value = Load("x", (Affine(Poly.of("i")),), (None,), F32)
    deep: Expr = value
    for _ in range(count):
        deep = Op("neg", (Op("neg", (deep,), F32),), F32)
    body = (Store("y", (Affine(Poly.of("i")),), Op("add", (deep, deep), F32)),)
    program = text("program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k\n  par i < N\n    y[i] = x[i]\n")
    loop = program.kernels[0].body[0]
    assert isinstance(loop, Loop)
    program = replace(program, kernels=(Kernel("k", (replace(loop, body=body),)),))
    stage = PASS.function(program, Options())
    made = stage.program.kernels[0].body[0]
    assert isinstance(made, Loop)
    assert [type(s) for s in made.body] == [Let, Store]


# -- keys -------------------------------------------------------------------------------------------------------------


def key(body: str, **options: bool) -> bytes:
    """The key of a kernel over some buffers."""
    head = "program p(M, N)\nbuf x: f32[M, N] in\nbuf w: f32[M, N] in\nbuf y: f32[M, N] out\nkernel k\n"
    return kernel_key(parse_program(head + body).kernels[0], **options)  # type: ignore[arg-type]


ONE = "  par i < M, j < N\n    a = x[i, j] + w[i, j]\n    y[i, j] = a * 2.0f32\n"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (ONE, True),
        (ONE.replace("i", "p").replace("j", "q").replace("p", "p"), True),
        (ONE.replace("a", "par".replace("par", "b")).replace("pbr", "par"), True),
        (ONE.replace("x[i, j] + w[i, j]", "w[i, j] + x[i, j]"), True),
        (ONE.replace("x[i, j] + w[i, j]", "x[i, j] - w[i, j]"), False),
        (ONE.replace("x[i, j] +", "x[j, i] +"), False),
        (ONE.replace("2.0", "-2.0"), False),
        (ONE.replace("i < M, j < N", "j < N, i < M"), False),
        (ONE.replace("    a = x[i, j] + w[i, j]\n", "").replace("a *", "(x[i, j] + w[i, j]) *"), False),
        (ONE.replace("par", "seq"), False),
        (ONE.replace("x", "z").replace("w", "x").replace("z", "w"), True),
        (ONE.replace("x[i, j] +", "x[i - 1 ~edge, j] +"), False),
    ],
)
def test_kernel_keys(other: str, same: bool) -> None:
    assert (key(ONE) == key(other)) is same


def test_anonymous_keys() -> None:
    other = ONE.replace("y[i, j] =", "w[i, j] =").replace("+ w", "+ y")
    assert key(ONE) != key(other)
    assert key(ONE, anonymous=True) == key(other, anonymous=True)
    assert key(ONE, anonymous=True) != key(ONE.replace("w", "x"), anonymous=True)
    kernel = parse_program("program p(M)\nbuf y: f32[M] out\nkernel k\n  par i < M\n    y[i] = 0.0f32\n").kernels[0]
    assert kernel_key(kernel) != kernel_key(kernel, {"M": "N"})


def test_signed_zeros_differ() -> None:
    assert key(ONE.replace("2.0", "0.0")) != key(ONE.replace("2.0", "-0.0"))


def test_an_output_that_equals_a_temporary_is_still_written() -> None:
    """The nest of the output goes, that of the temporary writes it; it does not count as unread when a reader goes."""
    program = parse_program("""program p(N)
buf x: f32[N] in
buf a: f32[N]
buf b: f32[N] out
buf c: f32[N]
buf d: f32[N] out
buf e: f32[N] out
kernel k1
  par i < N
    a[i] = exp(x[i])
kernel k2
  par i < N
    b[i] = exp(x[i])
kernel k3
  par i < N
    c[i] = exp(a[i])
kernel k4
  par i < N
    d[i] = exp(a[i])
kernel k5
  par i < N
    e[i] = exp(c[i])
""")
    made = PASS.function(program, Options()).program
    assert not list(violations(made))
    assert {s.buffer for s in walk_program(made) if isinstance(s, Store)} == {"b", "d", "e"}
