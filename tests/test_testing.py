"""`loopfuse.testing` and `loopfuse fuzz`: programs are well typed, data keeps to domains, faults are found and made small."""

from __future__ import annotations

import builtins
import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from cli_shell import Shell
from emulated_engine import EmulatedEngine, emulated
from emulator import available
from hypothesis import HealthCheck, find, given, settings
from test_docs import ROOT, blocks

import loopfuse as lf
from loopfuse.passes import simplify
from loopfuse.passes.rulefile import read_rules
from loopfuse.testing import coverage, inputs_for, programs
from loopfuse.testing.campaign import Campaign, Limits, Source, load_figures
from loopfuse.testing.choices import Drawn, Steered
from loopfuse.testing.reduce import Reducer
from loopfuse.testing.scripts import forms, script
from loopfuse.testing.templates import Templates
from loopfuse.testing.trial import Setting, tried
from loopfuse.tolerance import Tolerance

__all__ = ["emulated"]
REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.lf"))
GENERATED = Setting(contracts=False)
DOMAINS = """\
input table: f32[V, D]
input ids: i32[N] where 0 <= ids < V
input p: f32[N] where 0 < p and p <= 1
param scale: f32 = 2
require N <= 2 * V
output rows[n, d] = table[ids[n], d] * p[n] * scale
"""


@pytest.fixture
def shell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("COLUMNS", "100")
    return shell


@pytest.fixture
def wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greater of two becomes the lesser."""
    rules = (*read_rules("planted: maximum(x, y) => minimum(x, y)"), *simplify.specs())
    monkeypatch.setattr(simplify, "specs", lambda: rules)


# -- programs ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(programs())
def test_programs_are_well_typed(text: str) -> None:
    lf.parse(text).lower()


def test_steered_programs_are_well_typed() -> None:
    reached: Counter[str] = Counter()
    for number in range(25):
        text = script(Steered(Random(f"typed {number}"), reached))
        reached.update(coverage.of_program(lf.parse(text).lower().ir))


def test_all_of_the_language_is_written() -> None:
    chosen: Counter[str] = Counter()
    texts = ""
    for number in range(500):
        choices = Steered(Random(number), chosen)
        texts += script(choices)
        chosen.update(choices.chosen)
    for part in ("scan t in", "accum ", "import nn", "fn ", "param ", "numerics ", "pragma ", "size ", "for k", "where ",
                 "einsum(", " @ ", ".T", "edge(", "wrap(", "constant(", "[::2]", "keepdims=true", "argmax(", "cumsum",
                 "concat(", "reshape(", "split(", "pad(", "one_hot(", "bits(", " by -1", "emit ", "max= ", " if ",
                 "numerics strict", "* N", "N + 1", "bf16", "u64", "bool["):  # fmt: skip
        assert part in texts, part
    assert len(forms()) >= 17


def test_choices_favour_what_was_not_reached() -> None:
    choices = Steered(Random(1), {"a": 1000, "b": 0})
    picked = Counter(choices.favour({"a": "a", "b": "b"}) for _ in range(200))
    assert picked["b"] > 150


def test_every_rule_has_a_template() -> None:
    named = {name for d in ("f32", "i32", "u8", "bool") for name in Templates.of(d)}
    laws = {f"rule {rule.name}" for rule in simplify.LAWS}
    assert coverage.universe()["rule"] - laws <= named


def test_the_simplest_program() -> None:
    """What hypothesis shrinks to: every choice the least."""
    text = script(Drawn(lambda least, greatest: least))
    assert len(text.splitlines()) <= 3, text
    lf.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["scan t", " @ ", "argmax(", "edge("])
def test_programs_shrink(part: str) -> None:
    smallest = find(
        programs(max_stmts=3), lambda text: part in text, settings=settings(max_examples=3000, database=None)
    )
    assert len(smallest.splitlines()) <= 7, smallest


# -- data -------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(inputs_for(DOMAINS))
def test_inputs_keep_to_domains_and_requirements(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    rows = arrays["table"].shape[0]
    assert arrays["ids"].dtype == np.int32
    assert ((arrays["ids"] >= 0) & (arrays["ids"] < rows)).all()
    assert ((arrays["p"] > 0) & (arrays["p"] <= 1)).all()
    assert len(arrays["ids"]) <= 2 * rows
    assert lf.check(DOMAINS, arrays).ok


@pytest.mark.parametrize(("shapes", "wanted"), [("edge", {0, 1, 33}), ("small", {1, 2}), ("big", {129})])
def test_extents_are_drawn_on_purpose(shapes: str, wanted: set[int]) -> None:
    program = lf.parse("input a: f32[N, M] output b = a + 1")
    for extent in wanted:
        found = find(inputs_for(program, shapes), lambda arrays, extent=extent: extent in arrays["a"].shape)
        assert extent in found["a"].shape


def test_special_values_are_drawn() -> None:
    find(inputs_for("input a: f32[N] output b = a + 1"), lambda arrays: bool(np.isnan(arrays["a"]).any()))


def test_the_ends_of_domains_are_drawn() -> None:
    text = "input x: f32[N] where 0 < x < 1\ninput i: i32[N] where 0 <= i < 1000\noutput y = x + 1\noutput j = i + 1\n"
    assert find(inputs_for(text), lambda a: bool((a["i"] == 999).any()))
    assert find(inputs_for(text), lambda a: bool((a["x"] == np.nextafter(np.float32(1), np.float32(0))).any()))


def test_the_page_of_the_documentation(shell: Shell) -> None:
    """The story of the script, and the Python."""
    page = blocks("testing.md")
    story, repaired, _ = (b.text for b in page if b.language == "lf")
    shell.write("zscore.lf", story)
    (command,) = (b.text for b in page if b.language == "console")
    assert shell(*command.split()[2:]) == 3
    said = next(b.text for b in page if b.language == "text")
    assert said.strip() in shell.out, shell.out
    (data,) = Path("found").glob("*.safetensors")
    assert f"x={data}" in (ROOT / "docs" / "testing.md").read_text("utf-8")
    for text, code in ((story, 3), (repaired, 0)):
        shell.write("zscore.lf", text)
        assert shell("check", "zscore.lf", f"x={data}") == code
    names: dict[str, Any] = {}
    for block in page:
        if block.language == "python" and not block.rest:
            exec(compile(block.text, block.id, "exec"), names)
    names["test_logarithms"]()
    names["test_every_pass"]()


def test_the_planted_fault_of_the_documentation(shell: Shell) -> None:
    """The story of the compiler: `fuzz` and `bisect` name the pass and the step, in far less than two minutes."""
    page = blocks("testing.md")
    _, _, blend = (b.text for b in page if b.language == "lf")
    shell.write("blend.lf", blend)
    (planted,) = (b for b in page if b.language == "python" and b.rest)
    shell.write(planted.rest, planted.text)
    try:
        runpy.run_path(planted.rest)
    finally:
        lf.passes.unregister("zeros")
    said = shell.capture.readouterr().out
    _, found, blamed = (b.text.strip() for b in page if b.language == "text")
    assert found in said and blamed in said, said


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("wrong_rule")
def test_a_planted_fault_is_found_and_made_small() -> None:
    campaign = Campaign(Source(statements=3), GENERATED, 3, Limits(examples=150))
    campaign.run()
    assert campaign.found, f"nothing in {campaign.done} programs"
    (failure,) = campaign.found.values()
    assert failure.key == ("pass", "simplify")
    small = Reducer(failure, GENERATED, seconds=60.0, tries=150).run()
    assert len(small.case.text.splitlines()) <= 7, small.case.text
    assert all(extent <= 2 for extent in small.case.sizes.values())
    assert tried_again(small.case.text) == ("pass", "simplify")


def tried_again(text: str) -> tuple[str, str] | None:
    """What fails in a script on other data, if something does in a few sets."""
    for number in range(8):
        failure = tried(text, Steered(Random(number)), GENERATED).failure
        if failure is not None:
            return failure.key
    return None


def test_a_generator_that_is_wrong_is_told() -> None:
    failure = tried("input a: f32[N]\noutput b = a + c\n", Steered(Random(0)), GENERATED).failure
    assert failure is not None and failure.what == "refused" and "LF0203" in failure.problem


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda p: p.stem)
def test_faults_that_were_found_stay_repaired(path: Path) -> None:
    """On a few sets of data, for small and large sizes told to the cost model."""
    for number in range(4):
        outcome = tried(path.read_text("utf-8"), Steered(Random(f"{path.stem} {number}")), GENERATED)
        assert outcome.failure is None, outcome.failure.title


def test_tolerances() -> None:
    one = np.asarray([1.0, np.nan, np.inf, 0.0, -2.0], np.float32)
    near = one + np.asarray([1e-3, 0, 0, 1e-3, 0], np.float32)
    assert not Tolerance(ulp=0).wrong(one, one).any()
    assert Tolerance(rtol=1e-2).wrong(near, one).tolist() == [False, False, False, True, False]
    assert not Tolerance(atol=2e-3).wrong(near, one).any()
    assert Tolerance(ulp=4).wrong(near, one).tolist() == [True, False, False, True, False]
    assert Tolerance(atol=10).wrong(np.asarray([1, 2]), np.asarray([1, 3])).tolist() == [False, True]
    assert Tolerance(atol=10).wrong(np.asarray([np.inf]), np.asarray([1.0])).all()


@pytest.mark.usefixtures("wrong_rule")
def test_a_tolerance_takes_the_place_of_the_bound() -> None:
    text = "input a: f32[N]\nlet b = maximum(a, 0.5)\noutput c = exp(b)\n"
    x = {"a": np.asarray([0.25, 0.75], np.float32)}
    assert not lf.check(text, x).ok
    assert lf.check(text, x, atol=10).ok
    assert lf.check(text, x, rtol=2, every_pass=True).ok
    assert not lf.check(text, x, ulp=4, every_pass=True).ok
    with pytest.raises(lf.MachineError, match="no back end `metal`"):
        lf.check(text, x, backends=("metal",))


# -- the command ------------------------------------------------------------------------------------------------------

FAULT = """\
input x: f32[N]
let r = sqrt(x - min(x))
let unused = x * 2
check all(r >= 0), "roots are not negative"
output r
output unused
"""


def test_a_script_with_a_fault_of_its_own(shell: Shell) -> None:
    shell.write("roots.lf", FAULT)
    assert shell("fuzz", "roots.lf", "--examples", "200", "--save", "found") == 3
    assert "check failed: `all(r >= 0)`" in shell.out and "roots are not negative" in shell.out
    assert "unused" not in shell.out
    (path,) = Path("found").glob("*.json")
    assert f"loopfuse fuzz --replay {path}" in shell.out
    assert shell("fuzz", "--replay", str(path)) == 3
    assert shell("check", str(path.with_suffix(".lf")), f"x={path.with_suffix('.safetensors')}:x") == 3
    text = path.with_suffix(".lf").read_text()
    path.with_suffix(".lf").write_text(re.sub(r"check .*\n", "", text))
    assert shell("fuzz", "--replay", str(path)) == 0
    assert "does not fail any more" in shell.out


def test_a_script_without_fault(shell: Shell) -> None:
    shell.write("plain.lf", "input x: f32[N]\ncheck all(x * x >= 0 or isnan(x))\noutput y = x + 1\n")
    assert shell("fuzz", "plain.lf", "--examples", "8", "--json") == 0
    (record,) = shell.records("fuzz")
    assert record["programs"] == 8 and record["failures"] == 0
    assert shell("fuzz", "plain.lf", "x=randn", "--dims", "N=3", "--examples", "2") == 0
    assert "2 sets of data" in shell.out


def test_an_access_outside_is_a_fault_of_a_script(shell: Shell) -> None:
    shell.write("gather.lf", "input t: f32[V]\ninput i: i32[N]\noutput y = t[i]\n")
    assert shell("fuzz", "gather.lf", "--examples", "200") == 3
    assert "went outside its array" in shell.out and "--save DIR" in shell.out


@pytest.mark.usefixtures("wrong_rule")
def test_a_fault_of_the_compiler_names_the_step(shell: Shell) -> None:
    shell.write("relu.lf", "input x: f32[N]\nlet y = x * 2 + 1\noutput z = maximum(y, 0)\n")
    assert shell("fuzz", "relu.lf", "--examples", "50", "--json") == 3
    (record,) = shell.records("failure")
    assert (record["what"], record["where"]) == ("pass", "simplify")
    assert "planted" in record["step"] and "maximum" in record["script"]
    assert shell("fuzz", "relu.lf", "--examples", "5", "--passes=-simplify,-peephole") == 0


def test_random_programs_and_their_figures(shell: Shell) -> None:
    for turn in (1, 2):
        assert shell("fuzz", "--gen", "--examples", "3", "--state", "state.json", "--statements", "2") == 0, shell.out
        assert load_figures(Path("state.json")).programs == 3 * turn
    assert "passes that changed something" in shell.out and "6 with those before" in shell.out
    record = json.loads(Path("state.json").read_text())
    assert record["reached"] and record["elements"] > 0 and record["seconds"] > 0
    Path("state.json").write_text("[]")
    assert shell("fuzz", "--gen", "--examples", "1", "--state", "state.json") == 1
    assert "LF0511" in shell.err


@pytest.mark.slow
def test_time_and_processes(shell: Shell) -> None:
    assert shell("fuzz", "--gen", "--time", "1s", "--jobs", "2", "--statements", "1", "--json") == 0, shell.out
    (record,) = shell.records("fuzz")
    assert record["programs"] >= 0 and set(record["coverage"]) == set(coverage.KINDS)


@pytest.mark.parametrize("words", [(), ("--gen", "a.lf"), ("--gen", "--time", "soon"), ("--gen", "--examples", "0"),
                                   ("--gen", "--replay", "x.json"), ("--gen", "--shapes", "round")])  # fmt: skip
def test_bad_command_lines(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell("fuzz", *words) == 2


def test_bad_files(shell: Shell) -> None:
    assert shell("fuzz", "--replay", "absent.json") == 1 and "LF0510" in shell.err
    shell.write("bad.json", '{"schema": 1}')
    assert shell("fuzz", "--replay", "bad.json") == 1 and "LF0511" in shell.err
    shell.write("bad.lf", "output y = z\n")
    assert shell("fuzz", "bad.lf") == 1 and "LF0203" in shell.err
    shell.write("a.lf", "input x: f32[N]\noutput y = x\n")
    assert shell("fuzz", "a.lf", "q=randn") == 2 and "LF0502" in shell.err
    assert shell("fuzz", "a.lf", "--passes", "fussion") == 2 and "LF0821" in shell.err


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
def test_another_back_end_is_held_against_the_reference(shell: Shell, emulated: EmulatedEngine) -> None:
    shell.write("a.lf", "input x: f32[N]\noutput y = x + 1\n")
    assert shell("fuzz", "a.lf", "--backend", "cuda", "--examples", "1") == 0
    assert emulated.runs > 0
    emulated.wrong = 1
    assert shell("fuzz", "a.lf", "--backend", "cuda", "--examples", "8", "--shapes", "small", "--json") == 3
    (record,) = shell.records("failure")
    assert (record["what"], record["where"]) == ("pass", "cuda")


def test_without_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "hypothesis":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "loopfuse.testing.strategies")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"pip install 'loopfuse\[fuzz\]'"):
        _ = lf_testing().programs


def lf_testing() -> Any:
    """The package, whose strategies load on first use."""
    return sys.modules["loopfuse.testing"]
