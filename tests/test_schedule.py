"""Schedules on finished kernels: which takes what, with which plan, at assumed and at stated sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from ir_strategies import ir_programs
from schedule_programs import TEXTS, program

from loopfuse.analysis.env import Env, environment
from loopfuse.devices import PRESETS, Device
from loopfuse.driver import compile_source, lower_program, read_source
from loopfuse.ir import Kernel, Let, Loop, Program
from loopfuse.reader import parse_program
from loopfuse.rewrite import free_names, walk
from loopfuse.schedule import accepts, answers, refusals
from loopfuse.schedule.plan import Plan, Refusal
from loopfuse.verify import violations

ROOT = Path(__file__).parent
SCRIPTS = sorted([*(ROOT / "scripts").glob("*.lf"), *(ROOT.parent / "examples").glob("*.lf")])


def outside(made: Program) -> frozenset[str]:
    """Buffers that must be in device memory: all but temps that one kernel alone touches."""
    users: dict[str, set[str]] = {}
    for kernel in made.kernels:
        names = free_names(kernel.body)
        for b in names.loads | names.stores:
            users.setdefault(b, set()).add(kernel.id)
    return frozenset(b.id for b in made.buffers if b.role != "temp" or len(users.get(b.id, ())) > 1)


def ask(made: Program, sizes: Mapping[str, int] | None = None, device: Device | None = None) -> Plan | Refusal:
    """The answer for a program of one kernel."""
    env: Env = environment(made, device or PRESETS["h200"], sizes)
    return accepts(made.kernels[0], env.buffers, env, outside(made))


def plan(name: str, sizes: Mapping[str, int] | None = None, device: str = "h200") -> Plan:
    """The plan of a program by its name."""
    found = ask(program(name), sizes, PRESETS[device])
    assert isinstance(found, Plan), found
    return found


# Program, sizes stated in the second run, and the schedule in both.
WHO = [
    ("chain", {"N": 1 << 26}, "map"),
    ("softmax", {"M": 65536, "N": 1024}, "row"),
    ("softmax online", {"M": 65536, "N": 1024}, "row"),
    ("layernorm", {"M": 16384, "D": 4096}, "row"),
    ("cross entropy", {"M": 8192, "V": 128256}, "row"),
    ("attention", {"B": 64, "S": 4096, "D": 128}, "stream"),
    ("linear gelu", {"M": 8192, "N": 8192, "K": 8192}, "contraction"),
    ("linear gelu colsum", {"M": 8192, "N": 8192, "K": 8192}, "contraction"),
    ("linear layernorm", {"M": 16384, "N": 1024, "K": 1024}, "contraction"),
    ("swiglu", {"M": 8192, "N": 11008, "K": 4096}, "contraction"),
    ("qkv", {"M": 8192, "N": 4096, "L": 1024, "K": 4096}, "contraction"),
    ("rmsnorm linear", {"M": 8192, "N": 4096, "K": 4096}, "contraction"),
    ("rmsnorm then linear", {"M": 8192, "N": 4096, "K": 4096}, "contraction"),
    ("conv", {"B": 128, "H": 28, "W": 28, "C": 128, "K": 128}, "contraction"),
    ("conv statistics", {"B": 128, "H": 28, "W": 28, "C": 128, "K": 128}, "contraction"),
    ("blur", {"H": 16384, "W": 16384}, "stencil"),
    ("lstm", {"T": 64, "B": 256, "U": 512}, "scan"),
    ("histogram", {"H": 4096, "W": 4096}, "scatter"),
    ("moments", {"N": 131072, "C": 1024}, "column"),
    ("sumsq", {"N": 1 << 28}, "column"),
    ("nearest", {"M": 32768, "N": 32768}, "map"),
]


@pytest.mark.parametrize("name", TEXTS)
def test_the_programs_by_hand_are_valid(name: str) -> None:
    assert [str(v) for v in violations(program(name))] == []


@pytest.mark.parametrize(("name", "sizes", "schedule"), WHO, ids=[w[0] for w in WHO])
def test_the_schedule_that_takes_it(name: str, sizes: dict[str, int], schedule: str) -> None:
    stated = plan(name, sizes)
    assert stated.schedule == schedule
    assert not stated.assumed and not stated.guards
    if name != "nearest":  # few rows at the assumed sizes: a block a row is better
        assert plan(name).schedule == schedule
    assert plan(name).assumed


@pytest.mark.parametrize("device", PRESETS)
@pytest.mark.parametrize("name", [w[0] for w in WHO])
def test_every_device_has_a_plan(name: str, device: str) -> None:
    if name == "linear layernorm" and device in ("a100", "rtx4090"):  # no clusters: the row is in no one's registers
        refused = ask(program(name), None, PRESETS[device])
        assert isinstance(refused, Refusal) and (refused.cause.code, refused.cause.limit) == ("row", 256)
        return
    found = plan(name, device=device)
    assert found.cost.seconds > 0
    assert found.cost.shared <= PRESETS[device].shared
    assert found.cost.registers <= PRESETS[device].most_registers


@pytest.mark.parametrize("path", SCRIPTS, ids=[f"{p.parent.name}/{p.stem}" for p in SCRIPTS])
def test_every_lowered_nest_is_accepted(path: Path) -> None:
    made = lower_program(compile_source(read_source(path), search=path.parent).typed).program
    for device in (PRESETS["h200"], PRESETS["cpu"]):
        env = environment(made, device)
        for kernel in made.kernels:
            found = accepts(kernel, env.buffers, env, outside(made))
            assert isinstance(found, Plan), (kernel.id, found)
            assert set(found.roles) >= {d.id for s in walk(kernel.body) if isinstance(s, Loop) for d in s.dims}


def renamed(text: str) -> str:
    """The text with every id replaced by one that sorts the other way round."""
    made = parse_program(text)
    ids = {b.id for b in made.buffers} | {s.id for s in made.sizes}
    for stmt in walk(made.kernels[0].body):
        if isinstance(stmt, Let):
            ids.add(stmt.id)
        elif isinstance(stmt, Loop):
            ids |= {d.id for d in stmt.dims} | {a.id for a in stmt.accs}
    order = sorted(ids)
    table = {name: f"v{len(order) - k:03}" for k, name in enumerate(order)}
    pattern = (
        r"(?<![\w.])(?:" + "|".join(map(re.escape, sorted(order, key=len, reverse=True))) + r")(?![\w.]*\()(?![\w])"
    )
    body = text.split("\n", 1)
    head = re.sub(pattern, lambda m: table[m.group()], body[0].split("(", 1)[1])
    return "program p(" + head + "\n" + re.sub(pattern, lambda m: table[m.group()], body[1])


@pytest.mark.parametrize("name", ["softmax", "layernorm", "attention", "linear gelu colsum", "swiglu", "qkv", "blur",
                                  "rmsnorm linear", "lstm", "histogram", "moments"])  # fmt: skip
def test_names_do_not_matter(name: str) -> None:
    before, after = program(name), parse_program(renamed(TEXTS[name].lstrip("\n")))
    sizes = environment(before).sizes
    numbers = dict(zip((s.id for s in after.sizes), (sizes[s.id] for s in before.sizes), strict=True))
    env = environment(before, sizes=sizes), environment(after, sizes=numbers)
    said = [answers(p.kernels[0], e.buffers, e, outside(p)) for p, e in zip((before, after), env, strict=True)]
    for a, b in zip(*said, strict=True):
        assert type(a) is type(b)
        if isinstance(a, Plan) and isinstance(b, Plan):
            assert a.cost == b.cost and a.launches == b.launches and a.path == b.path
            assert list(a.tiles.values()) == list(b.tiles.values())
        elif isinstance(a, Refusal) and isinstance(b, Refusal):
            assert (a.cause.code, a.passed, a.cause.needed) == (b.cause.code, b.passed, b.cause.needed)


def test_a_question_has_one_answer() -> None:
    for name in TEXTS:
        assert ask(program(name)) == ask(program(name))


# -- what the plans say -----------------------------------------------------------------------------------------------


def test_a_row_is_read_once() -> None:
    found = plan("softmax", {"M": 4096, "N": 1024})
    assert found.cost.reads == found.cost.writes == 4 * 4096 * 1024
    assert found.place == {"e": "register", "x": "register"}
    assert found.tiles["threads a row"] == 32
    longer = plan("softmax", {"M": 4096, "N": 8192})
    assert longer.cost.reads == 4 * 4096 * 8192
    assert longer.place == {"e": "shared", "x": "shared"}


def test_a_long_row_takes_a_cluster_and_a_longer_one_is_read_again() -> None:
    assert plan("softmax", {"M": 1024, "N": 131072}).tiles["cluster"] == 8
    online = plan("softmax online", {"M": 64, "N": 1 << 24})
    assert online.cost.reads == 2 * 4 * 64 * (1 << 24)
    refused = ask(program("softmax"), {"M": 64, "N": 1 << 24})
    assert isinstance(refused, Refusal)
    assert (refused.cause.code, refused.cause.needed) == ("shared", 4 << 24)
    assert refused.cause.limit == 16 * (227 << 10)


def test_column_sums_have_a_finish_and_a_workspace() -> None:
    found = plan("linear gelu colsum", {"M": 8192, "N": 8192, "K": 4096})
    assert [launch.what for launch in found.launches] == ["main", "finish"]
    assert found.workspace == 4 * 8192 * (8192 // found.tiles["rows"])
    assert found.path.startswith("wgmma f16")


def test_two_products_share_a_tile() -> None:
    found = plan("swiglu", {"M": 8192, "N": 11008, "K": 4096})
    assert found.tiles["accumulators"] == 2
    assert found.tiles["rows"] * found.tiles["columns"] * 2 <= 128 * 256
    assert found.cost.matrix_flops == 2 * 2 * 8192 * 11008 * 4096


NORMED = """
program p(M, N, K)
buf x: bf16[M, K] in
buf g: bf16[K] in
buf r: f32[M] in
buf w: bf16[K, N] in
buf y: bf16[M, N] out
kernel k1
  par i < M, n < N
    fold k < K
      acc a: f32 sum
      a <- {left} * f32(w[k, n])
    y[i, n] = bf16({right})
"""


def normed(left: str, right: str = "a", **sizes: int) -> Plan:
    """The plan of a product whose left operand is computed."""
    made = parse_program(NORMED.replace("{left}", left).replace("{right}", right).lstrip("\n"))
    found = ask(made, {"M": 8192, "N": 4096, "K": 1024} | sizes)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize("left", ["f32(x[i, k])", "f32(x[i, k]) * r[i]", "2.0f32 * f32(x[i, k])"])
def test_an_operand_as_it_lies_in_memory_is_free(left: str) -> None:
    """Factors that do not follow the sum move out of it."""
    found = normed(left)
    assert found.path.startswith("wgmma bf16")
    assert found.burden == ""


@pytest.mark.parametrize("left", ["f32(bf16(f32(x[i, k]) * r[i]))", "f32(x[i, k]) * f32(g[k])", "maximum(f32(x[i, k]), 0.0f32)",
                                  "(f32(x[i, k]) if {k} <= {i} else 0.0f32)"])  # fmt: skip
def test_a_computed_operand_takes_the_slower_path(left: str) -> None:
    free, found = normed("f32(x[i, k])"), normed(left)
    assert found.path.startswith("mma.sync bf16")
    assert 1.3 * free.cost.seconds < found.cost.seconds < 2.5 * free.cost.seconds
    tiles = 4096 // found.tiles["columns"]
    assert re.match(rf"each of {tiles} tiles of columns computes again the left operand \(of `x`.*\)", found.burden)
    assert "0.60 of their rate" in found.burden


def test_a_heavy_operand_costs_its_work_for_every_tile() -> None:
    light, heavy = normed("maximum(f32(x[i, k]), 0.0f32)"), normed("tanh(f32(x[i, k])) * exp(f32(x[i, k]))")
    again = 8192 * 1024 * (4096 // heavy.tiles["columns"]) / PRESETS["h200"].special
    assert heavy.cost.seconds > light.cost.seconds + again
    assert normed("tanh(f32(x[i, k]))", N=64).cost.seconds < heavy.cost.seconds / 10


def test_sums_before_a_product_are_done_for_every_tile() -> None:
    text = TEXTS["rmsnorm then linear"].lstrip("\n")
    sizes = {"M": 8192, "N": 4096, "K": 1024}
    found = ask(parse_program(text), sizes)
    apart = normed("f32(x[i, k])", "a * r[i]", **sizes)
    assert isinstance(found, Plan)
    assert "sums over whole rows that the product waits for" in found.burden
    assert found.cost.seconds > 1.5 * apart.cost.seconds


def test_ordinary_units_only_do_the_work_again() -> None:
    """What is staged by threads can be computed on the way."""
    text = NORMED.replace("bf16", "f32").replace("{right}", "a")
    plain, scaled = (ask(parse_program(text.replace("{left}", left).lstrip("\n")), {"M": 4096, "N": 4096, "K": 1024})
                     for left in ("x[i, k]", "x[i, k] * g[k]"))  # fmt: skip
    assert isinstance(plain, Plan)
    assert isinstance(scaled, Plan)
    assert plain.path == scaled.path == "fma f32"
    assert plain.cost.seconds < scaled.cost.seconds < 1.1 * plain.cost.seconds


SUMMED = """
program p(M, N, K, L)
buf x: bf16[M, K] in
buf v: bf16[K, N] in
buf h: bf16[M, L] in
buf w: bf16[L, N] in
buf y: bf16[M, N] out
kernel k1
  par i < M, n < N
    fold k < K
      acc a: f32 sum
      a <- f32(x[i, k]) * f32(v[k, n])
    fold l < L
      acc b: f32 sum
      b <- f32(h[i, l]) * f32(w[l, n])
    y[i, n] = bf16(a + b)
"""


def test_products_that_meet_hold_their_results_together() -> None:
    sizes = {"M": 8192, "N": 4096, "K": 1024, "L": 1024}
    found = ask(parse_program(SUMMED.lstrip("\n")), sizes)
    assert isinstance(found, Plan)
    assert found.tiles["rows"] * found.tiles["columns"] * 2 <= 128 * 256
    assert found.cost.seconds > 1.7 * normed("f32(x[i, k])").cost.seconds
    few = ask(parse_program(SUMMED.lstrip("\n")), sizes | {"M": 64, "N": 512})
    assert isinstance(few, Plan)
    assert few.launches[0].blocks == -(-64 // few.tiles["rows"]) * -(-512 // few.tiles["columns"])


def test_the_width_of_a_stream_is_guarded_where_it_is_assumed() -> None:
    assert [g.text for g in plan("attention").guards] == ["D <= 256"]
    assert plan("attention", {"D": 128}).guards == ()


def test_a_causal_mask_skips_half() -> None:
    sizes = {"B": 64, "S": 4096, "D": 128}
    masked, text = plan("attention", sizes), TEXTS["attention"].replace(" if {j} <= {i} else -inf:f32", "")
    full = ask(parse_program(text.lstrip("\n")), sizes)
    assert isinstance(full, Plan)
    assert 0.5 < masked.cost.matrix_flops / full.cost.matrix_flops < 0.6
    assert full.cost.matrix_flops == 4 * 64 * 4096 * 4096 * 128


def test_f32_products_use_no_matrix_unit_without_leave() -> None:
    text = TEXTS["linear gelu"].replace("A: f16", "A: f32").replace("B: f16", "B: f32")
    text = text.replace("f32(A[i, k]) * f32(B[k, j])", "A[i, k] * B[k, j]").lstrip("\n")
    slow, fast = ask(parse_program(text)), ask(parse_program(text.replace(")\n", ")\npragma tf32\n", 1)))
    assert isinstance(slow, Plan) and isinstance(fast, Plan)
    assert slow.path == "fma f32" and fast.path.startswith("wgmma tf32")
    assert fast.rounding == ("operands rounded to tf32",)
    assert fast.cost.seconds < slow.cost.seconds


def test_the_device_chooses_the_instructions() -> None:
    assert plan("linear gelu", device="a100").path.startswith("mma.sync f16")
    assert plan("linear gelu", device="cpu").path == "fma f32"


def test_tiles_of_a_stencil_fit() -> None:
    found = plan("blur", {"H": 16384, "W": 16384})
    rows, columns = found.tiles["TY"], found.tiles["TX"]
    assert (rows + 2) * columns * 4 <= found.cost.shared <= 227 << 10
    assert found.place == {"t": "shared"}


def test_a_small_group_is_one_block() -> None:
    text = TEXTS["sumsq"].replace(
        "  y[] = s", "  m = s / 2.0f32\n  fold i < N\n    acc q: f32 sum\n    q <- x[i] - m\n  y[] = q"
    )
    small = ask(parse_program(text.lstrip("\n")), {"N": 4096})
    assert isinstance(small, Plan) and small.schedule == "block"
    large = ask(parse_program(text.lstrip("\n")), {"N": 1 << 20})
    assert isinstance(large, Refusal) and large.cause.code == "barrier"


def test_a_recurrence_that_meets_over_a_plate_is_launched_step_by_step() -> None:
    path = ROOT.parent / "examples" / "20_heat.lf"
    made = lower_program(compile_source(read_source(path), search=path.parent).typed).program
    env = environment(made)
    kernel: Kernel = next(k for k in made.kernels if any(isinstance(s, Loop) and s.order == "seq" for s in k.body))
    found = accepts(kernel, env.buffers, env, outside(made))
    assert isinstance(found, Plan) and found.schedule == "steps"
    assert sum(launch.times for launch in found.launches) == 50 * found.tiles["launches a step"]
    why = next(r for r in refusals(kernel, env.buffers, env, outside(made)) if r.schedule == "scan")
    assert why.cause.code == "recurrence" and why.cause.limit == 8192


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_too_many_live_values() -> None:
    lets = "".join(f"    a{k} = x[i, {k}]\n" for k in range(300))
    total = " + ".join(f"a{k} * a{299 - k}" for k in range(300))
    text = (
        f"program many(N)\nbuf x: f32[N, 300] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n{lets}    y[i] = {total}\n"
    )
    made = parse_program(text)
    env = environment(made)
    first = next(r for r in refusals(made.kernels[0], env.buffers, env, outside(made)) if r.schedule == "map")
    assert first.cause.code == "registers"
    assert first.cause.needed is not None and 300 <= first.cause.needed <= 310
    assert first.cause.limit == 232
    assert f"{first.cause.needed} live values" in first.cause.message and "`y`" in first.cause.message


def test_a_head_too_wide_for_registers() -> None:
    refused = ask(program("attention"), {"B": 8, "S": 1024, "D": 512})
    assert isinstance(refused, Refusal)
    assert refused.schedule == "stream"
    assert (refused.cause.code, refused.cause.needed, refused.cause.limit) == ("registers", 512, 256)
    assert refused.cause.lift == "D <= 256"


def test_a_row_too_wide_for_a_cluster() -> None:
    refused = ask(program("linear layernorm"), {"M": 4096, "N": 8192, "K": 1024})
    assert isinstance(refused, Refusal)
    assert (refused.schedule, refused.cause.code) == ("contraction", "row")
    assert (refused.cause.needed, refused.cause.limit) == (8192, 256 * 16)


def test_two_products_in_a_row_are_refused() -> None:
    refused = ask(program("ffn"), {"M": 4096, "K": 1024, "F": 4096, "D": 1024})
    assert isinstance(refused, Refusal)
    assert (refused.schedule, refused.cause.needed, refused.cause.limit) == ("stream", 1024, 256)


def test_a_block_does_not_read_what_another_writes() -> None:
    text = """program shift(N)
buf x: f32[N] in
buf t: f32[N] out
buf y: f32[N] out
kernel k1
  par i < N
    t[i] = x[i] * 2.0f32
    y[i] = t[0]
"""
    made = parse_program(text)
    env = environment(made)
    found = refusals(made.kernels[0], env.buffers, env, outside(made))
    first = next(r for r in found if r.schedule == "map")
    assert first.cause.code == "barrier"
    assert first.cause.detail == "written as t[i], read as t[0]"


def refused_by(text: str, schedule: str, sizes: dict[str, int] | None = None) -> Refusal:
    """The refusal of one schedule."""
    made = parse_program(text.lstrip("\n"))
    env = environment(made, sizes=sizes)
    return next(r for r in refusals(made.kernels[0], env.buffers, env, outside(made)) if r.schedule == schedule)


def test_a_normalisation_over_the_batch_waits_for_all_blocks() -> None:
    text = TEXTS["conv statistics"].replace(
        "buf mean: f32[K] out\nbuf var: f32[K] out\n", "buf z: f32[B, H, W, K] out\n"
    )
    text = text.replace(
        "    mean[o] = s\n    var[o] = q\n",
        "    par n < B, i < H, j < W\n      z[n, i, j, o] = f32(y[n, i, j, o]) - s\n",
    )
    why = refused_by(text, "contraction", {"B": 32, "H": 28, "W": 28, "C": 64, "K": 64})
    assert why.cause.code in ("barrier", "row")


def test_a_product_does_not_wait_for_the_row_of_another_one() -> None:
    text = """
program two(M, N, K)
buf x: f16[M, K] in
buf w: f16[K, N] in
buf v: f16[K, N] in
buf y: f16[M, N] out
kernel k1
  par i < M
    fold j < N
      acc t: f32 sum
      fold k < K
        acc a: f32 sum
        a <- f32(x[i, k]) * f32(w[k, j])
      t <- a
    r = rsqrt(t)
    par n < N
      fold k < K
        acc b: f32 sum
        b <- f32(x[i, k]) * f32(v[k, n])
      y[i, n] = f16(b * r)
"""
    assert refused_by(text, "contraction").cause.code == "chain"
    free = text.replace("f16(b * r)", "f16(b)").replace("    r = rsqrt(t)\n", "    z[i] = rsqrt(t)\n")
    found = ask(parse_program(free.replace("buf y", "buf z: f32[M] out\nbuf y").lstrip("\n")))
    assert isinstance(found, Plan) and found.schedule == "contraction"


def test_a_product_summed_over_rows_too() -> None:
    text = """
program sums(M, N, K)
buf x: f16[M, K] in
buf w: f16[K, N] in
buf s: f32[N] out
kernel k1
  par j < N
    fold i < M, k < K
      acc a: f32 sum
      a <- f32(x[i, k]) * f32(w[k, j])
    s[j] = a
"""
    found = ask(parse_program(text.lstrip("\n")), {"M": 8192, "N": 8192, "K": 8192})
    assert isinstance(found, Plan) and found.path.startswith("wgmma f16")
    assert [launch.what for launch in found.launches] == ["main", "finish"]


def test_distances_are_tiled_on_the_ordinary_units() -> None:
    text = TEXTS["nearest"].replace(", 3]", ", D]").replace("d < 3", "d < D").replace("(M, N)", "(M, N, D)")
    found = ask(parse_program(text.lstrip("\n")), {"M": 512, "N": 512, "D": 512})
    assert isinstance(found, Plan)
    assert (found.schedule, found.path) == ("contraction", "fma f32")
    assert found.cost.reads == 2 * 4 * 512 * 512


@given(ir_programs())
def test_every_question_is_answered(made: Program) -> None:
    """No program that is valid makes a schedule fail, and asking again gives the same."""
    env = environment(made)
    for kernel in made.kernels:
        found = answers(kernel, env.buffers, env, outside(made))
        assert found == answers(kernel, env.buffers, env, outside(made))
        for one in found:
            if isinstance(one, Plan):
                assert 0 < one.cost.seconds < float("inf")
                assert one.cost.reads >= 0 and one.cost.writes >= 0 and one.cost.rereads >= 0
            else:
                assert one.cause.message and one.cause.code
