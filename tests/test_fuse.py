"""The pass that fuses: results keep every bit, programs stay valid, and neither names nor order matter."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs
from pass_checks import SCRIPTS, apply, assert_same, lowered_script, text

from loopfuse import driver
from loopfuse.analysis.env import environment
from loopfuse.backends.reference import run
from loopfuse.decisions import Decision
from loopfuse.diag import Source
from loopfuse.ir import Program, Store
from loopfuse.passes import Options, Stage
from loopfuse.passes.fuse import PASS
from loopfuse.passes.fuse.chains import MOST_VALUES, Chains
from loopfuse.passes.fuse.graph import Node, kernel_keys
from loopfuse.passes.manager import run_pass
from loopfuse.rewrite import Mapper, binders, free_names, rename, walk_program
from loopfuse.schedule.plan import Plan
from loopfuse.sizes import Poly
from loopfuse.verify import verify

ids = [f"{p.parent.name}/{p.stem}" for p in SCRIPTS]


def lowered(source: str) -> Program:
    """The lowered program of a script's text."""
    return driver.lower_program(driver.compile_source(Source("test", source)).typed).program


def fused(source: str | Program, **options: object) -> Stage:
    """What the pass makes of a script."""
    return run_pass(PASS, lowered(source) if isinstance(source, str) else source, Options(**options))  # type: ignore[arg-type]


def done(decisions: tuple[Decision, ...]) -> list[Decision]:
    """The fusions that were done."""
    return [d for d in decisions if d.verdict in ("fused", "forced")]


# -- meaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=ids)
def test_scripts_keep_every_bit(path: Path) -> None:
    program, bound = lowered_script(path)
    inputs = {b.id: bound.inputs[b.id] for b in program.program.buffers if b.role in ("in", "param")}
    stage = run_pass(PASS, program.program, Options(), ranges=True)
    assert_same(
        run(program.program, inputs, bound.sizes), run(stage.program, inputs, plan_sizes(stage.program, bound.sizes))
    )
    assert len(stage.program.kernels) <= len(program.program.kernels)
    assert [k.id for k in stage.program.kernels] == [f"k{n}" for n in range(1, len(stage.program.kernels) + 1)]
    assert [d.number for d in stage.decisions] == list(range(1, len(stage.decisions) + 1))


def plan_sizes(program: Program, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes, with small ones for those of tiles."""
    return {**sizes, **{s.id: 3 for s in program.sizes if s.origin == "plan"}}


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_random_programs_keep_every_bit(data: st.DataObject) -> None:
    program = data.draw(ir_programs())
    stage = apply(PASS, program)
    sizes, inputs = data.draw(ir_inputs(program))
    assert_same(run(program, inputs, sizes), run(stage.program, inputs, plan_sizes(stage.program, dict(sizes))))


@pytest.mark.parametrize("path", [p for p in SCRIPTS if p.parent.name == "scripts"], ids=lambda p: p.stem)
def test_every_number_of_decisions_gives_a_valid_program(path: Path) -> None:
    program, bound = lowered_script(path)
    inputs = {b.id: bound.inputs[b.id] for b in program.program.buffers if b.role in ("in", "param")}
    want = run(program.program, inputs, bound.sizes)
    whole = run_pass(PASS, program.program, Options())
    accepted = len(done(whole.decisions))
    before = len(program.program.kernels) + 1
    for number in range(accepted + 1):
        stage = run_pass(PASS, program.program, Options(decide_max=number))
        assert len(done(stage.decisions)) == number
        assert Counter(d.verdict for d in stage.decisions)["skipped"] == accepted - number
        assert len(stage.program.kernels) == before - number - 1
        assert_same(want, run(stage.program, inputs, plan_sizes(stage.program, bound.sizes)))
    assert run_pass(PASS, program.program, Options(decide_max=accepted)).program == whole.program
    assert run_pass(PASS, program.program, Options(decide_max=0)).program is program.program


# -- structure --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "kernels"),
    [
        ("input x: f32[N]\nlet a[i] = x[i] * 2.0\nlet b[i] = tanh(a[i])\noutput b", 1),
        ("input x: f32[M, N]\nlet m[i] = max(x[i, j] for j)\nlet e[i, j] = exp(x[i, j] - m[i])\n"
         "let l[i] = sum(e[i, j] for j)\nlet y[i, j] = e[i, j] / l[i]\noutput y", 1),
        ("input x: f32[M, N]\nlet s[i] = sum(x[i, j] for j)\nlet q[i] = sum(x[i, j] * x[i, j] for j)\noutput s\noutput q", 1),
        ("input x: f32[M]\ninput y: f32[M]\nlet a[i] = x[i] * 2.0\nlet b[i] = y[i] * 2.0\noutput a\noutput b", 2),
        ("input x: f32[N, N]\nlet y[i, j] = x[i, j] + 1.0\nlet z[i, j] = y[j, i] * 2.0\noutput z", 1),
    ],
    ids=["chain", "softmax", "siblings", "strangers", "transposed"],
)  # fmt: skip
def test_number_of_kernels(source: str, kernels: int) -> None:
    stage = fused(source)
    assert len(stage.program.kernels) == kernels
    assert set(stage.notes["plans"]) == {k.id for k in stage.program.kernels}
    assert all(isinstance(p, Plan) for p in stage.notes["plans"].values())


def test_the_sum_of_all_is_not_joined_with_what_divides_by_it() -> None:
    stage = fused("input x: f32[N]\nlet s = sum(x[i] for i)\nlet y[i] = x[i] / s\noutput y")
    assert len(stage.program.kernels) == 2
    (apart,) = [d for d in stage.decisions if d.verdict == "refused"]
    assert {*apart.a, *apart.b} == {"s", "y"}
    assert apart.cause is not None
    assert apart.cause.spans


def test_an_axis_is_not_taken_for_another_of_the_same_extent() -> None:
    square = "input x: f32[N, N]\nlet m[i] = max(x[i, j] for j)\nlet y[i, j] = x[i, j] - m[{}]\noutput y"
    assert len(fused(square.format("i")).program.kernels) == 1
    assert len(fused(square.format("j")).program.kernels) == 2


def test_a_long_chain_is_one_nest() -> None:
    lines = ["input x: f32[N]", "let t0[i] = x[i] * 2.0"]
    lines += [f"let t{k}[i] = t{k - 1}[i] * 1.5 + x[i]" for k in range(1, 300)]
    stage = fused("\n".join([*lines, "output t299"]))
    assert len(stage.program.kernels) == 1
    assert len(done(stage.decisions)) == 299
    assert len(stage.decisions) == 299


def test_values_with_several_readers_move_in_with_all_of_them() -> None:
    """Each value of a recurrence is read by the next three."""
    lines = ["input x: f32[N]", "let t0 = x * 2", "let t1 = x + 1", "let t2 = t0 - t1"]
    lines += [f"let t{k} = t{k - 1} * 0.5 + t{k - 2} - t{k - 3}" for k in range(3, 40)]
    before = lowered("\n".join([*lines, "output y = t39", ""]))
    stage = fused(before)
    assert len(stage.program.kernels) == 1
    told = [d for d in done(stage.decisions) if "by readers that are one kernel" in d.reason]
    assert len(told) > 30
    data = {"x": np.array([0.0, -0.0, 1.5, np.inf, np.nan], np.float32)}
    whole = run(before, data, {"N": 5})
    for made in (stage, *(fused(before, decide_max=most) for most in (1, 20, 39))):
        verify(made.program)
        assert_same(whole, run(made.program, data, {"N": 5}))


def test_a_shared_value_that_is_read_at_two_places_is_no_part_of_a_chain() -> None:
    source = "input x: f32[N, N]\nlet a = exp(x)\nlet b = a * 2 + 1\noutput y[i, j] = b[i, j] - a[j, i]\n"
    stage = fused(source)
    assert all("by readers that are one kernel" not in d.reason for d in stage.decisions)
    data = {"x": np.arange(16, dtype=np.float32).reshape(4, 4)}
    assert_same(run(lowered(source), data, {"N": 4}), run(stage.program, data, {"N": 4}))


def test_values_that_stay_needed_for_long_are_not_all_held() -> None:
    """Every value is read at once and again at the end, so that all would be held."""
    count = MOST_VALUES + 20
    lines = ["input x: f32[N]", "let t0 = x * 2"] + [f"let t{k} = t{k - 1} * 0.5" for k in range(1, count)]
    ends = " + ".join(f"t{k}" for k in reversed(range(count)))
    before = lowered("\n".join([*lines, f"output y = {ends}", ""]))
    nests = [Node(k, (n,), b"") for n, k in enumerate(before.kernels)]
    chains = Chains(nests, environment(before), frozenset({"y"}))
    assert not any(s.shared for s in chains.steps)


def test_a_tree_that_would_hold_too_many_values_is_cut() -> None:
    # A balanced tree over many inputs needs few values at a time; one sum of many nests needs them all at once.
    count = MOST_VALUES + 40
    lines = [f"input x{k}: f32[N]" for k in range(count)]
    lines += [f"let a{k}[i] = tanh(x{k}[i])" for k in range(count)]
    lines += ["let s[i] = " + " + ".join(f"a{k}[i]" for k in range(count)), "output s"]
    stage = fused("\n".join(lines))
    moved = [d for d in done(stage.decisions) if d.kind == "vertical" and d.b == ("s",)]
    assert len(moved) <= MOST_VALUES


# -- names and order --------------------------------------------------------------------------------------------------


def shuffled(program: Program, seed: int) -> Program:
    """The kernels in another order in which they can run."""
    draw = random.Random(seed)
    writes = [{s.buffer for s in walk_program(replace(program, kernels=(k,))) if isinstance(s, Store)}
              for k in program.kernels]  # fmt: skip
    needs = [reads(program, n) for n in range(len(program.kernels))]
    left, order, made = list(range(len(program.kernels))), [], set[str]()
    all_written = set().union(*writes)
    while left:
        ready = [n for n in left if needs[n] & all_written - writes[n] <= made]
        n = draw.choice(ready)
        left.remove(n)
        order.append(n)
        made |= writes[n]
    kernels = tuple(replace(program.kernels[n], id=f"k{k}") for k, n in enumerate(order, 1))
    return replace(program, kernels=kernels)


def reads(program: Program, n: int) -> set[str]:
    """The buffers that a kernel loads from."""
    return set(free_names(program.kernels[n].body).loads)


def renamed(program: Program) -> Program:
    """Other names for everything but the sizes, in an alphabetical order that is turned round."""
    used = {n for s in walk_program(program) for n in binders_of(s)} | {b.id for b in program.buffers}
    table = {name: f"q{len(used) - k:04d}" for k, name in enumerate(sorted(used))}
    kernels = tuple(replace(k, body=rename(k.body, table)) for k in program.kernels)
    indices = {old: Poly.of(new) for old, new in table.items()}
    mapper = Mapper(poly=lambda p: p.subs(indices))
    buffers = tuple(replace(mapper.on_buffer(b), id=table[b.id]) for b in program.buffers)
    return replace(program, kernels=kernels, buffers=buffers)


def binders_of(stmt: object) -> list[str]:
    """The ids that a statement defines."""
    return list(binders(stmt))  # type: ignore[arg-type]


def shape(stage: Stage, back: dict[str, str] | None = None) -> tuple[Counter[bytes], Counter[object]]:
    """The kernels and decisions of a stage, without names of their own."""
    env = environment(stage.program)
    name = (lambda n: back.get(n, n)) if back else (lambda n: n)
    decisions: Counter[object] = Counter(
        (frozenset(map(name, d.a)), frozenset(map(name, d.b)), d.verdict, d.kind, round(d.before, 6), d.saved)
        for d in stage.decisions
    )
    return Counter(kernel_keys(stage.program.kernels, env)), decisions


BASIC = [p for p in SCRIPTS if p.parent.name == "scripts"]


@pytest.mark.parametrize("path", BASIC, ids=lambda p: p.stem)
def test_the_order_of_statements_does_not_matter(path: Path) -> None:
    program = lowered_script(path)[0].program
    plain = shape(run_pass(PASS, program, Options()))
    for seed in range(2):
        assert shape(run_pass(PASS, shuffled(program, seed), Options())) == plain


@pytest.mark.parametrize("path", BASIC, ids=lambda p: p.stem)
def test_names_do_not_matter(path: Path) -> None:
    program = lowered_script(path)[0].program
    other = renamed(program)
    verify(other)
    back = {b.id: a.id for a, b in zip(program.buffers, other.buffers, strict=True)}
    assert shape(run_pass(PASS, other, Options()), back) == shape(run_pass(PASS, program, Options()))


def test_the_pass_says_nothing_new_about_what_it_made() -> None:
    source = "input x: f32[M, N]\nlet m[i] = max(x[i, j] for j)\nlet y[i, j] = exp(x[i, j] - m[i])\noutput y"
    stage = fused(source)
    again = fused(stage.program)
    assert again.program is stage.program


def test_decisions_name_what_the_user_wrote() -> None:
    stage = fused("input x: f32[M, N]\nlet m[i] = max(x[i, j] for j)\nlet y[i, j] = exp(x[i, j] - m[i])\noutput y")
    (one,) = stage.decisions
    assert (one.a, one.b, one.verdict, one.kind) == (("m",), ("y",), "fused", "reduction")
    assert one.launches == 1
    assert one.saved > 0
    assert one.after is not None
    assert one.after < one.before
    assert re.search(r"`m` stays on chip", one.reason)
    assert [s.text.split("[")[0] for s in one.spans] == ["m", "y"]


WIDE = """input x: bf16[M, N]
input w: bf16[N, K]
let z = f32(x)
let r[i] = rsqrt(mean(z[i, j] * z[i, j] for j) + 1e-6)
output y[i, k] = bf16(sum(z[i, j] * r[i] * f32(w[j, k]) for j))
"""


def test_an_array_in_a_wider_type_is_read_as_it_lies() -> None:
    """The factor of the row moves out of the product, whose operands are those in memory; the statistics stay apart."""
    stage = fused(WIDE, sizes={"M": 8192, "N": 1024, "K": 4096})
    assert [(d.verdict, d.kind) for d in stage.decisions] == [("fused", "duplicate"), ("costly", "reduction")]
    assert "`z` is `x` in a wider type, so each of its 2 readers computes it again" in stage.decisions[0].reason
    assert "computes again sums" in stage.decisions[1].reason
    assert len(stage.program.kernels) == 2
    assert all(b.id != "z" for b in stage.program.buffers)
    plans = stage.notes["plans"]
    assert plans["k2"].path.startswith("wgmma bf16")


def test_a_program_of_one_kernel_is_left_alone() -> None:
    program = text(
        "program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n    y[i] = x[i] + 1.0f32\n"
    )
    assert fused(program).program is program
