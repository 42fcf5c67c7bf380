"""Passes in the Python API: records, differences, programs at any stage, checks, passes of one's own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import loopfuse as lf
from loopfuse.ir import Op, Program
from loopfuse.passes import PIPELINE, Options, Outcome, Pass
from loopfuse.rewrite import Mapper

SOURCE = "input x: f32[N]\nsize R = 3\nlet t = exp(x) * (R + 1)\noutput y = t / sum(t)"
X = np.arange(5, dtype=np.float32)


@pytest.fixture
def swapped() -> Iterator[None]:
    """A pass that exchanges the operands of divisions, registered after constprop."""

    def function(program: Program, options: Options) -> Outcome:
        turn = Mapper(lambda e: replace(e, args=e.args[::-1]) if isinstance(e, Op) and e.op == "div" else e)
        return Outcome(turn.on_program(program))

    lf.passes.register(Pass("swapped", "A wrong pass.", function), after="constprop")
    yield
    lf.passes.unregister("swapped")


def test_records() -> None:
    low = lf.parse(SOURCE).lower()
    assert [r.name for r in low.passes] == [p.name for p in PIPELINE]
    first = low.passes[0]
    assert (first.name, first.changed, first.before) == ("constprop", True, low.ir)
    assert all(a.after == b.before for a, b in zip(low.passes, low.passes[1:], strict=False))
    assert low.passes[-1].after == low.after("last")
    assert all(r.seconds > 0 for r in low.passes)


def test_stages() -> None:
    low = lf.parse(SOURCE).lower()
    assert low.as_text() == low.as_text("lower")
    assert low.as_text("constprop") == low.as_text(0) != low.as_text()
    assert "{R + 1}" in low.as_text() or "R" in low.as_text()
    assert low.diff("lower", "constprop").count("\n") > 1
    with pytest.raises(lf.Error, match="LF0821"):
        low.as_text("fussion")
    with pytest.raises(lf.Error, match="did not run"):
        low.optimise("constprop").as_text("dce")


def test_running_at_a_stage() -> None:
    low = lf.parse(SOURCE).lower()
    plain = low.interpret(X)
    for record in low.passes:
        np.testing.assert_allclose(low.interpret(X, at=record.name), plain, rtol=1e-6)


def test_other_passes() -> None:
    low = lf.parse(SOURCE).lower()
    assert low.optimise("none").passes == ()
    assert [r.name for r in low.optimise("dce,constprop").passes] == ["constprop", "dce"]
    special = low.optimise("constprop", specialise={"N": 5})
    assert "i < 5" in special.as_text("last")
    np.testing.assert_array_equal(special.interpret(X, at="last"), low.interpret(X))
    with pytest.raises(lf.Error, match="LF0502"):
        _ = low.optimise("constprop", specialise={"Q": 5}).passes
    with pytest.raises(lf.Error, match="LF0821"):
        low.optimise("fussion")


def test_compiled_programs_are_optimised_for_their_extents() -> None:
    f = lf.compile(SOURCE)
    assert f(X).shape == (5,)
    assert f(X[:3]).shape == (3,)
    assert f(X).shape == (5,)
    assert len(f._known) == 2
    np.testing.assert_allclose(pickle.loads(pickle.dumps(f))(X), f(X))


def test_checks() -> None:
    every = lf.check(SOURCE, every_pass=True)
    assert every.ok
    assert [r.name for r in every.rows] == [p.name for p in PIPELINE]
    every.raise_if_bad()
    assert lf.check(lf.parse(SOURCE), {"x": X}).ok
    assert "constprop: agrees" in str(every)


@pytest.mark.usefixtures("swapped")
def test_checks_name_the_pass() -> None:
    for every in (False, True):
        found = lf.check(SOURCE, {"x": X}, every_pass=every)
        assert not found.ok
        with pytest.raises(lf.CompilerError, match="`y`"):
            found.raise_if_bad()
    assert found.rows[-1].name == "swapped"
    assert lf.check(SOURCE, {"x": X}, every_pass=True, passes="-swapped").ok
