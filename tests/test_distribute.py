"""Distribution of loops that run in order: golden files, random scans, scripts, structure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden import FOLDER, cases, check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import SCRIPTS, apply, assert_keeps_bits, lowered_script, shown, text

from loopfuse import driver
from loopfuse.analysis.hashing import kernel_key
from loopfuse.ir import Loop, Program
from loopfuse.passes.base import Steps
from loopfuse.passes.distribute import PASS
from loopfuse.printer import print_program
from loopfuse.rewrite import rename, walk

RANDOM = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
ROOT = Path(__file__).parent


@pytest.mark.parametrize("path", cases("distribute"), ids=lambda p: p.stem)
def test_golden(path: Path, bless: bool) -> None:
    check_golden(PASS, path, bless)


@given(st.data())
@RANDOM
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    sizes, inputs = data.draw(ir_inputs(program))
    assert_keeps_bits(PASS, program, sizes, inputs)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts(path: Path) -> None:
    lowered, bound = lowered_script(path)
    assert_keeps_bits(PASS, lowered.program, bound.sizes, driver.run_inputs(lowered, bound))
    apply(PASS, lowered.program)


# -- random scans -----------------------------------------------------------------------------------------------------

# How a definition of a trip reads another one of the same trip, and a carried array: `{b}` is the array.
NOW = ("{b}[t, i, j]", "{b}[t, j, i]", "{b}[t, i, N - 1 - j]", "{b}[t, i - 1 ~edge, j]", "{b}[t, i, j + 1 ~constant 2.0f32]",
       "{b}[t, 0 ~edge, j]")  # fmt: skip
FOLD = ("{b}[t, i, k]", "{b}[t, k, j]", "{b}[t, k, k]")


@st.composite
def scans(draw: st.DrawFn) -> Program:
    """A scan over [N, N] arrays: one to three carries, definitions that read earlier ones, carries, and an input."""
    carries = [f"h{n}" for n in range(draw(st.integers(1, 3)))]
    count = draw(st.integers(1, 5))
    lines: list[str] = []
    known: list[str] = list(carries)
    outs = {n for n in range(count) if draw(st.integers(0, 3)) == 0}

    def one(forms: tuple[str, ...]) -> str:
        source = draw(st.sampled_from([*known, "x"]))
        return draw(st.sampled_from(forms)).format(b=source)

    def nest(target: str) -> None:
        dims = draw(st.sampled_from(["i < N, j < N", "j < N, i < N"]))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            lines.append(f"    par {dims}")
            acc = f"a.{len(lines)}"
            lines.extend(
                ["      fold k < N", f"        acc {acc}: f32 sum", f"        {acc} <- {one(FOLD)} * {one(FOLD)}"]
            )
            lines.append(f"      {target} = {acc} * 0.5f32")
        elif kind == 1 and target.startswith("d"):
            acc = f"m.{len(lines)}"
            lines.extend(["    fold k < N, l < N", f"      acc {acc}: f32 max"])
            lines.append(f"      {acc} <- {draw(st.sampled_from([*known, 'x']))}[t, k, l]")
            lines.extend([f"    par {dims}", f"      {target} = {acc} + {one(NOW)}"])
        else:
            lines.extend([f"    par {dims}", f"      {target} = {one(NOW)} - {one(NOW)} * 0.25f32"])

    for n in range(count):
        nest(f"d{n}[t, i, j]")
        known.append(f"d{n}")
    for h in carries:
        nest(f"{h}[t + 1, i, j]")
    head = ["program scan(N, T)", "buf x: f32[T, N, N] in"]
    head += [f"buf {h}: f32[T + 1, N, N] window [t:t + 2, 0:N, 0:N]" for h in carries]
    head += [f"buf d{n}: f32[T, N, N] " + ("out" if n in outs else "window [t:t + 1, 0:N, 0:N]") for n in range(count)]
    head += [f"buf y{n}: f32[N, N] out" for n in range(len(carries))]
    for n, h in enumerate(carries):
        head += [f"kernel s{n}", "  par i < N, j < N", f"    {h}[0, i, j] = {n}.5f32"]
    head += ["kernel body", "  seq t < T", *lines]
    for n, h in enumerate(carries):
        head += [f"kernel e{n}", "  par i < N, j < N", f"    y{n}[i, j] = {h}[T, i, j]"]
    return text("\n".join(head) + "\n")


@given(scans(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2**32 - 1))
@settings(RANDOM, max_examples=60)
def test_random_scans(program: Program, n: int, trips: int, seed: int) -> None:
    """Bits are kept whatever moves, is interchanged or joined; two sizes that are equal confuse nothing."""
    x = np.random.default_rng(seed).standard_normal((trips, n, n)).astype(np.float32)
    stage = assert_keeps_bits(PASS, program, {"N": n, "T": trips}, {"x": x})
    apply(PASS, stage.program)


@given(scans())
@RANDOM
def test_names_do_not_matter(program: Program) -> None:
    names = {b.id: f"q{(7 * n) % 101}.{n}" for n, b in enumerate(program.buffers)}
    other = replace(
        program,
        buffers=tuple(replace(b, id=names[b.id]) for b in program.buffers),
        kernels=tuple(replace(k, body=rename(k.body, names)) for k in program.kernels),
    )
    a, b = apply(PASS, program).program, apply(PASS, other).program
    assert [kernel_key(k, anonymous=True) for k in a.kernels] == [kernel_key(k, anonymous=True) for k in b.kernels]


@given(scans())
@RANDOM
def test_every_number_of_steps(program: Program) -> None:
    whole = Steps()
    last = apply(PASS, program, steps={"distribute": whole}).program
    assert apply(PASS, program, steps={"distribute": Steps(0)}).program is program
    for n in range(1, len(whole.log)):
        apply(PASS, program, steps={"distribute": Steps(n)})
    assert print_program(apply(PASS, program, steps={"distribute": Steps(len(whole.log))}).program) == print_program(
        last
    )


# -- structure --------------------------------------------------------------------------------------------------------


def loops(program: Program) -> list[list[str]]:
    """For each kernel the order of its loops, outermost first, a fold as `fold`."""
    kinds = []
    for kernel in program.kernels:
        found = [s for s in walk(kernel.body) if isinstance(s, Loop)]
        kinds.append(["fold" if s.accs else s.order for s in found])
    return kinds


def test_lstm() -> None:
    """The product of the inputs leaves the loop, rows run apart, what remains is two loops a trip."""
    program = apply(PASS, lowered_script(ROOT / "scripts" / "09_lstm.lf")[0].program).program
    assert loops(program)[2:4] == [["par", "fold"], ["par", "seq", "par", "fold", "par"]]


def test_mandelbrot() -> None:
    """A state without neighbours is a recurrence for every element."""
    program = apply(PASS, lowered_script(ROOT.parent / "examples" / "23_mandelbrot.lf")[0].program).program
    assert ["par", "seq"] in loops(program)


def test_equal_extents_pair_nothing() -> None:
    program = text((FOLDER / "distribute" / "transposed.ir").read_text().partition("----")[0])
    assert loops(apply(PASS, program).program)[1] == ["seq", "par"]
    assert "seq t < T" in shown(apply(PASS, program).program)
