"""The views: diffs by statements, counts, tables of passes, decisions and costs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopfuse import driver
from loopfuse.analysis.cost import memory
from loopfuse.analysis.counts import buffer_bytes
from loopfuse.analysis.env import environment
from loopfuse.decisions import Cause, Decision
from loopfuse.devices import H200
from loopfuse.diag import Source, Span
from loopfuse.ir import Program
from loopfuse.passes.base import Remark
from loopfuse.passes.manager import Stage
from loopfuse.reader import parse_program
from loopfuse.schedule.plan import Cost, Guard, Launch, Plan
from loopfuse.views import costs, counts, decisions, passes, tables
from loopfuse.views.align import groups, increasing
from loopfuse.views.diff import Shown, diff, text
from loopfuse.views.estimates import Estimate
from loopfuse.views.lines import gutter, kernel_lines, stem
from tests.ir_strategies import ir_programs

FILES = sorted((Path(__file__).parent / "views").glob("*.txt"))
ROOT = Path(__file__).resolve().parents[1]


def lowered(name: str) -> Program:
    source = driver.read_source(ROOT / "examples" / name)
    return driver.lower_program(driver.compile_source(source).typed).program


def part(file: Path, name: str) -> str:
    found = re.search(rf"^--- {name}\n(.*?)(?=^--- |\Z)", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


# -- the diff ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_diff(file: Path, bless: bool) -> None:
    head = re.search(r"^width: (\d+)( side)?$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert head
    old, new = (parse_program(part(file, which), "p.lfir") for which in ("old", "new"))
    shown = text(diff(old, new, width=int(head[1]), side=bool(head[2])))
    if bless:
        whole = file.read_text(encoding="utf-8")
        file.write_text(whole[: whole.index("--- diff\n") + len("--- diff\n")] + shown, encoding="utf-8")
    assert part(file, "diff") == shown, "read it, then `pytest --bless`"
    assert all(len(line) <= int(head[1]) for line in shown.splitlines())


@settings(max_examples=25)
@given(ir_programs())
def test_a_program_does_not_differ_from_itself(program: Program) -> None:
    again = replace(program, kernels=tuple(replace(k) for k in program.kernels))
    assert diff(program, again) == [Shown("(no difference)")]


@settings(max_examples=25)
@given(ir_programs(), ir_programs(), st.booleans())
def test_every_line_of_both_is_told_of(old: Program, new: Program, side: bool) -> None:
    shown = diff(old, new, width=200, side=side)
    said = text(shown)
    if shown != [Shown("(no difference)")]:
        counted = sum(int(n) for n in re.findall(r"\.\.\. (\d+) line", said))
        wanted = len(kernel_lines(new.kernels))
        plain = [s for s in shown if s.mark in ("", "+", "~", "!") and "..." not in s.text]
        assert counted + len(plain) >= wanted
    assert diff(old, new, width=200, side=side) == shown


def test_source_lines_stand_before_statements() -> None:
    program = lowered("06_softmax.lf")
    kernels = tuple(k for k in program.kernels if k.id != "k2")
    said = text(diff(program, replace(program, kernels=kernels)))
    assert "7 -     e[b, j] = exp(x[b, j] - m[b])" in said
    assert re.search(r"k1 \(m\): \.\.\. 6 lines \(loop b; fold j\)", said)


def test_only_one_kernel_or_definition() -> None:
    old = lowered("06_softmax.lf")
    new = replace(old, kernels=())
    assert "k2: removed" in text(diff(old, new, only="e"))
    assert "k1" not in text(diff(old, new, only="k2"))
    assert diff(old, new, only="nothing") == [Shown("(no difference)")]


def test_declarations_have_their_difference() -> None:
    old = lowered("06_softmax.lf")
    said = text(diff(old, replace(old, buffers=old.buffers[:2], numerics="strict")))
    assert "- buf e: f32[B, N]" in said
    assert "+ numerics strict" in said
    assert "- numerics default" in said


def test_groups_hold_kernels_of_one_definition() -> None:
    old = lowered("06_softmax.lf")
    k1, k2, k3, k4 = old.kernels
    fused = replace(k1, body=(*k1.body, *k2.body))
    found = groups(old, replace(old, kernels=(fused, k4)))
    assert [([k.id for k in g.old], [k.id for k in g.new]) for g in found] == [
        (["k1", "k2"], ["k1"]), (["k3"], []), (["k4"], ["k4"]),
    ]  # fmt: skip
    other = replace(k3, id="k9")
    assert [k.id for g in groups(old, replace(old, kernels=(other,))) for k in g.new] == ["k9"]


@given(st.lists(st.integers(0, 20), unique=True, max_size=9))
def test_increasing_is_a_longest_run(values: list[int]) -> None:
    pairs = list(enumerate(values))
    found = [values[n] for n in increasing(pairs)]
    assert found == sorted(found)
    best = [1] * len(values)
    for n, value in enumerate(values):
        best[n] += max((best[m] for m in range(n) if values[m] < value), default=0)
    assert len(found) == max(best, default=0)


def test_stems() -> None:
    assert [stem(n) for n in ("e", "e.1", "e.1.12", "e2", "a.b.1")] == ["e", "e", "e", "e2", "a.b"]


# -- counts -----------------------------------------------------------------------------------------------------------


def test_bytes_and_memory_of_softmax() -> None:
    program = lowered("06_softmax.lf")
    found = counts.count(program, {"B": 8, "N": 100})
    row, column = 4 * 800, 4 * 8
    assert found.bytes == (row + column) + (2 * row + column) + (row + column) + (2 * row + column)
    assert found.peak == row + row + (row + column) + column - column  # m is gone when p.1 is made
    assert (found.kernels, found.loops, found.folds, found.stores) == (4, 6, 2, 4)


def test_bytes_are_those_of_what_is_read() -> None:
    program = parse_program(
        "program p(N)\nbuf x: f32[N] in\nbuf k: i32[N] in\nbuf y: f32[N] out\nbuf z: f32[N] out\n"
        "kernel k1\n  par i < 10\n    y[i] = x[2*i] + x[0]\n"
        "kernel k2\n  par i < N\n    z[i] = x[i64(k[i]) ~edge]\n", "p"
    )  # fmt: skip
    env = environment(program, sizes={"N": 1000})
    first, second = (memory(replace(program, kernels=(k,)), env) for k in program.kernels)
    assert (first.reads, first.writes) == (40, 40)
    assert (second.reads, second.writes) == (8000, 4000)


@settings(max_examples=25)
@given(ir_programs())
def test_counts_of_any_program(program: Program) -> None:
    sizes, assumed = counts.numbers(program, {})
    found = counts.count(program, sizes)
    assert found.bytes >= 0
    assert found.peak >= sum(
        buffer_bytes(b, environment(program, sizes=sizes)) for b in program.buffers if b.role == "out"
    )
    assert list(sizes) == [s.id for s in program.sizes]
    assert assumed <= sizes.keys()


def test_stats_tell_the_change() -> None:
    program = lowered("06_softmax.lf")
    before = counts.count(program, {"B": 8, "N": 100})
    lines = counts.stats(before, replace(before, kernels=1, lets=2))
    assert re.search(r"kernels +4 +1 +-75%", "\n".join(lines))
    assert re.search(r"lets +0 +2 +\+2", "\n".join(lines))
    assert re.search(r"loops +6 +6 +=", "\n".join(lines))


# -- passes, decisions, costs -----------------------------------------------------------------------------------------


def test_pass_table() -> None:
    program = lowered("06_softmax.lf")
    stages = [
        Stage("cse", program, False, 2e-4),
        Stage("fuse", replace(program, kernels=program.kernels[:1]), True, 3e-3, rounds=True,
              remarks=(Remark("not this", missed=True), Remark("4 loops -> 1 row kernel"), Remark("more"))),
    ]  # fmt: skip
    found = passes.steps(program, stages, {"B": 8, "N": 100})
    lines = passes.pass_table(found)
    assert lines[0].split() == ["#", "pass", "ops", "loops", "kernels", "bytes", "time", "reason"]
    assert lines[1].split()[:2] == ["0", "lower"]
    assert lines[2].endswith("200 us  (no change)")
    assert lines[3].startswith(" 2~")
    assert lines[3].endswith("- 4 loops -> 1 row kernel (+1 more) [rounds]")
    assert len(passes.pass_table(found, changed_only=True)) == 3
    assert all(len(line) <= 80 for line in passes.pass_table(found, width=80))
    assert "fuse  - not this" in "\n".join(passes.remarks(found))
    assert passes.assumed_line(program, {"N": 100}) == "sizes: B = 4096 (assumed), N = 100"


SOURCE = Source("s.lf", "let m[b] = max(x[b, j] for j)\nlet e[b, j] = exp(x[b, j] - m[b])\n")
M, E = Span(SOURCE, 4, 5), Span(SOURCE, 34, 35)
FUSED = Decision(1, ("m",), ("e",), "fused", "vertical", "a value a row", 12.3, 8.1, 16 << 20, 1, spans=(E, M))
CAUSE = Cause("extent", "all of `e` is needed first", "writes e[b, j], reads e[b, k]", "sum another axis", (E, M), 300, 255,
              "registers")  # fmt: skip
REFUSED = Decision(2, ("m", "e.1"), ("p",), "refused", "reduction", "all of `e` is needed first", 20.0, None, 4096, 1,
                   cause=CAUSE, spans=(M,))  # fmt: skip
SLOW = Decision(3, ("m",), ("p",), "costly", "vertical", "slower", 20.0, 24.0, -4096, recomputed=5000, registers=40)


def test_decision_table() -> None:
    marks = gutter(lowered("06_softmax.lf"))
    marks.main = "s.lf"
    lines = decisions.decision_table([SLOW, REFUSED, FUSED], marks)
    assert [line.split()[:2] for line in lines[1:]] == [["1", "#1"], ["1", "#2"], ["#3", "-"]]
    assert "+ fused" in lines[1]
    assert lines[1].endswith("m | e       -16 MiB  12.3 -> 8.1  vertical   a value a row")
    narrow = decisions.decision_table([SLOW, REFUSED, FUSED], marks, width=80)
    assert all(len(line) <= 80 for line in narrow)
    assert len(narrow) == 7
    assert narrow[2].strip() == "vertical: a value a row"
    assert "no decision" in decisions.decision_table([], marks)[0]
    assert decisions.totals([FUSED, FUSED, SLOW]) == "3 decisions: 2 fused, 1 costly"


def test_a_decision_in_full() -> None:
    said = "\n".join(decisions.detail(REFUSED, "e", "p"))
    assert "`e` and `p` are not one kernel: all of `e` is needed first" in said
    assert "2 | let e[b, j] = exp(x[b, j] - m[b])" in said
    assert "= note: writes e[b, j], reads e[b, k]" in said
    assert "300 registers would be needed, and 255 registers is the limit" in said
    assert "= help: sum another axis" in said
    assert "4 KiB of memory traffic would be saved" in said
    said = "\n".join(decisions.detail(SLOW))
    assert "20 us apart, 24 us as one: 4 us would be lost" in said
    assert "5 k operations would be done again" in said
    said = "\n".join(decisions.detail(FUSED))
    assert "are one kernel" in said
    assert "4.2 us saved" in said


def test_decisions_about_two_names() -> None:
    found = [FUSED, REFUSED, SLOW]
    assert decisions.about(found, "p", "m") == [SLOW, REFUSED]
    assert decisions.about(found, "e", "p") == [REFUSED]
    assert decisions.about(found, "e", "q") == []


COST = Cost(12.1e-6, 16 << 20, 16 << 20, 0, 120_000_000, 0, 4 << 20, 8e-6, 3e-6, 2e-6, 44, 0, 0.75, 24 << 10)
PLAN = Plan("row cascade", {"b": "grid", "j": "lane"}, (Launch("main", 4096, 256),), COST,
            guards=(Guard("N <= 8192", "the row is read twice"),), assumed=frozenset({"N"}))  # fmt: skip


def test_cost_table() -> None:
    program = lowered("06_softmax.lf")
    plans = dict.fromkeys(("k1", "k2", "k4"), Estimate(PLAN.cost.seconds, PLAN))
    lines = costs.cost_table(program, plans)
    assert lines[1].split() == ["k1", "row", "cascade", "120", "M", "32", "MiB", "3.58", "memory", "-", "-", "-", "17%",
                                "12.1"]  # fmt: skip
    assert lines[3].split() == ["k3", "(no", "plan)"]
    assert lines[-1].split() == ["total", "360", "M", "96", "MiB", "36.3"]
    assert all(len(line) <= 80 for line in lines)
    foot = "\n".join(costs.foot(program, plans, H200, {"B": 4, "N": 1024}, frozenset({"N"})))
    assert "H200 at its peaks: memory-bound below 14 (fp32)" in foot
    assert "sizes: B = 4, N = 1024 (assumed)" in foot
    assert "k1 holds where N <= 8192; else the row is read twice" in foot
    one = "\n".join(costs.kernel_view(program, program.kernels[0], plans["k1"]))
    assert "4096 blocks of 256" in one
    assert costs.as_record("k1", plans["k1"])["us"] == pytest.approx(12.1)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 us"), (3e-7, "0.3 us"), (2e-4, "200 us"), (9.9996e-4, "1 ms"), (1.25, "1.25 s")]
)
def test_durations(seconds: float, said: str) -> None:
    assert tables.duration(seconds) == said


def test_tables_wrap_their_last_column() -> None:
    lines = tables.table(("a", "b"), [("x", "one two three four five six seven")], width=20)
    assert lines == ["a  b", "x  one two three", "   four five six", "   seven"]
    assert tables.table((), []) == []
