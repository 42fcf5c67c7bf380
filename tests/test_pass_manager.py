"""Which passes run, how they are verified, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pass_checks import lowered_script, text

import loopfuse.passes as lf_passes
from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.diag import CompilerError, Source, UserError
from loopfuse.ir import Program
from loopfuse.passes import PIPELINE, Options, Outcome, Pass, Remark, selection
from loopfuse.passes.manager import run_passes, select
from loopfuse.reader import parse_program

SCRIPT = Path(__file__).parent / "scripts" / "06_softmax.lf"
ORDER = [
    "constprop",
    "simplify",
    "dce",
    "cse",
    "distribute",
    "fuse",
    "cascade",
    "contract",
    "bodies",
    "peephole",
    "widen",
]
PROGRAM = """program p(N)
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par i < N
    y[i] = x[i] * 2.0f32
"""


def made(name: str, function: Callable[[Program], Program], **more: object) -> Pass:
    return Pass(name, "A pass of this test.", lambda program, _: Outcome(function(program)), **more)  # type: ignore[arg-type]


def same(program: Program) -> Program:
    return program


def renamed(program: Program) -> Program:
    return replace(program, name="q")


def headless(program: Program) -> Program:
    return replace(program, kernels=())


def failing(program: Program) -> Program:
    raise ZeroDivisionError("a bug")


ABC = (made("alpha", same), made("beta", same), made("gamma", same))


def test_the_pipeline_is_in_its_order() -> None:
    names = [p.name for p in PIPELINE]
    assert names == [name for name in ORDER if name in names]
    assert all(p.sentence.endswith(".") and p.function.__doc__ for p in PIPELINE)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("default", "alpha beta gamma"),
        ("none", ""),
        ("", ""),
        ("gamma,alpha", "alpha gamma"),
        ("-beta", "alpha gamma"),
        ("default,-beta,-alpha", "gamma"),
        ("none, beta", "beta"),
    ],
)
def test_selection(words: str, chosen: str) -> None:
    assert " ".join(p.name for p in select(words, ABC)) == chosen


@pytest.mark.parametrize("words", ["beto", "-beto", "alpha,beto"])
def test_an_unknown_pass(words: str) -> None:
    with pytest.raises(UserError) as caught:
        select(words, ABC)
    found = caught.value.diagnostics[0]
    assert found.code == "LF0821"
    assert found.fix is not None
    assert "`beta`" in str(found.fix)


def test_a_stage_says_what_happened() -> None:
    loud = Pass("loud", "Says much.", lambda p, _: Outcome(renamed(p), (Remark("said", rounds=True),), notes={"n": 1}))
    seen: list[str] = []
    stages = run_passes(text(PROGRAM), (ABC[0], loud), watch=lambda s: seen.append(s.name))
    assert seen == ["alpha", "loud"]
    quiet, last = stages
    assert (quiet.changed, quiet.rounds, quiet.verify_seconds) == (False, False, 0.0)
    assert (last.changed, last.rounds, last.remarks[0].text, last.notes) == (True, True, "said", {"n": 1})
    assert last.program.name == "q"
    assert last.seconds > 0 and last.verify_seconds > 0


def test_a_pass_that_breaks_the_program_is_blamed() -> None:
    with pytest.raises(CompilerError) as caught:
        run_passes(text(PROGRAM), (made("first", renamed), made("breaks", headless)))
    assert caught.value.stage == "breaks"
    assert "never written" in caught.value.message
    assert parse_program(caught.value.artifact) == replace(text(PROGRAM), name="q")  # what it was given


def test_without_verification_it_goes_on() -> None:
    assert not run_passes(text(PROGRAM), (made("breaks", headless),), verify=False)[0].program.kernels


def test_a_pass_that_raises_is_blamed() -> None:
    with pytest.raises(CompilerError) as caught:
        run_passes(text(PROGRAM), (made("raises", failing),))
    assert caught.value.stage == "raises"
    assert "ZeroDivisionError: a bug" in caught.value.message
    assert caught.value.artifact.startswith("program p(N)")


def test_a_users_error_passes_through() -> None:
    with pytest.raises(UserError):
        driver.optimise_ir(text(PROGRAM), Options(specialise={"M": 3}), "constprop")


def test_loop_ir_as_such() -> None:
    stages = driver.optimise_ir(parse_program(PROGRAM), Options(specialise={"N": 3}), "constprop")
    assert [s.name for s in stages] == ["constprop"]
    assert (
        "par i < 3" in str(stages[0].program.kernels)
        or stages[0].program.kernels[0].body[0].dims[0].hi[0].constant == 3
    )


@pytest.fixture
def registry() -> Iterator[None]:
    yield
    for name in ("mine", "other"):
        lf_passes.unregister(name)


@pytest.mark.usefixtures("registry")
def test_passes_of_ones_own() -> None:
    lf_passes.register(made("mine", renamed), after="constprop")
    names = [p.name for p in selection()]
    assert names[:2] == ["constprop", "mine"]
    assert "mine" not in [p.name for p in PIPELINE]
    lowered, _ = lowered_script(SCRIPT)
    assert driver.optimise(lowered).program.name == "q"
    with pytest.raises(UserError, match="there is a pass `mine` already"):
        lf_passes.register(made("mine", same))
    with pytest.raises(UserError, match="there is no pass"):
        lf_passes.register(made("other", same), after="nowhere")


def test_optimised_programs_run() -> None:
    lowered, bound = lowered_script(SCRIPT)
    plain = driver.execute(lowered, bound)
    optimised = driver.optimise(lowered, Options(sizes=bound.sizes))
    assert [s.name for s in optimised.stages] == [p.name for p in PIPELINE]
    found = driver.execute(optimised, bound)
    for name, array in plain.outputs.items():
        np.testing.assert_allclose(found.outputs[name], array, rtol=1e-5)


def test_runs_go_through_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = driver.compile_source(Source("s", "input x: f32[N]\noutput y = x * 2"))
    given = Given({"x": np.ones(3, dtype=np.float32)})
    clock = driver.Clock()
    assert driver.run_program(checked.typed, given, clock=clock).outputs["y"].tolist() == [2.0, 2.0, 2.0]
    assert "passes" in clock.stages
    with pytest.raises(UserError, match="there is no pass"):
        driver.run_program(checked.typed, given, passes="fussion")
