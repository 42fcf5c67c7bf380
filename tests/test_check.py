"""What `check`, `bisect` and `lf.check` say: totals over passes, names as the script has them, results that fit on a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cli_shell import Shell

import loopfuse as lf
from loopfuse.ir import Program
from loopfuse.passes import Options, Outcome, Pass
from loopfuse.passes.base import steps
from loopfuse.passes.rulefile import read_rules
from loopfuse.passes.simplify import counted, on_kernels
from loopfuse.rules import Rewriter, Rules

# `k` is an output, and an index elsewhere; the buffer of the output is `k.1`.
CLASH = "input x: f32[N]\nlet t = sum(x[k] for k)\noutput k = x * 0\noutput q = x * t\ncheck all(1 / (x * 0) <= 0)\n"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    shell.write("s.lf", CLASH)
    return shell


@pytest.fixture
def zeros() -> Iterator[None]:
    """A pass after which nothing times anything is nothing."""
    rules = Rules(spec.rule() for spec in read_rules("zero: x * 0 => 0 where float(x)"))

    def function(program: Program, options: Options) -> Outcome:
        return Outcome(on_kernels(program, Rewriter(counted(rules, steps(options, "zeros")))))

    lf.passes.register(Pass("zeros", "A wrong pass.", function), after="simplify")
    try:
        yield
    finally:
        lf.passes.unregister("zeros")


@pytest.mark.usefixtures("zeros")
def test_names_are_those_of_the_script(shell: Shell) -> None:
    """In every report, of an output and of a check."""
    assert shell("check", "s.lf", "x=const(-1)", "--dims", "N=3", "--every-pass") == 3
    assert "differ: `k`[0] is 0.0, and was -0.0 before" in shell.out and "k.1" not in shell.out
    assert shell("bisect", "s.lf", "x=const(-1)", "--dims", "N=3") == 3
    assert "pass zeros: `k`[0] is 0.0" in shell.out
    assert "k.1[i] = " in shell.out and "`k.1` is what the script calls `k`" in shell.out
    shell.write("s.lf", CLASH.replace("output k = x * 0", "output k = x + 1"))
    assert shell("check", "s.lf", "x=const(-1)", "--dims", "N=3", "--every-pass") == 3
    assert "differ: `all(1 / (x * 0) <= 0)` is False, and was True before" in shell.out
    with pytest.raises(lf.CompilerError, match=r"`k`\[0\] is 0\.0"):
        lf.check(CLASH, {"x": np.float32([-1])}, every_pass=True).raise_if_bad()


def test_undecided_elements_are_totalled(shell: Shell) -> None:
    half = "input x: f32[M, N]\nlet e = exp(x - max(x, axis=1, keepdims=true))\n" \
           "output y = e / sum(e, axis=1, keepdims=true) > 0.5\n"  # fmt: skip
    shell.write("half.lf", half)
    shell.write("plain.lf", "input x: f32[N]\noutput y = x + 1\noutput z = x * 2\n")
    for name, words in (("half.lf", ("x=zeros", "--dims", "M=3,N=2")), ("plain.lf", ())):
        assert shell("check", name, *words, "--every-pass", "--json") == 0, shell.out
        rows = shell.records("pass")
        (total,) = shell.records("passes")
        assert total["undecided"] == sum(row["undecided"] for row in rows) and total["agrees"]
        assert total["most"] == max(row["undecided"] for row in rows) and total["elements"] > 0
        assert bool(total["undecided"]) == (name == "half.lf")
        assert shell("check", name, *words, "--every-pass") == 0
        line = f"{name}: {total['undecided']} of {total['elements']} comparisons of elements undecided, over all passes"
        assert line + f"; at most {total['most']} after one" * bool(total["most"]) + "\n" in shell.out


@pytest.mark.usefixtures("zeros")
def test_results_fit_on_a_line() -> None:
    good = lf.check("input x: f32[N]\noutput y = x + 1\n", {"x": np.zeros(5000, np.float32)}, every_pass=True)
    assert repr(good) == f"<CheckResult: agrees; {len(good.rows)} rows, 0 elements undecided>"
    bad = lf.check(CLASH, {"x": np.full(5000, -1, np.float32)}, every_pass=True)
    assert repr(bad).startswith("<CheckResult: zeros: `k`[0] is 0.0, and was -0.0 before (5000 elements differ); ")
    assert repr(bad.rows[-1]).startswith("<Row zeros: `k`[0] is 0.0") and len(repr(bad.rows)) < 500


@pytest.mark.parametrize(("options", "said"), [
    ({"inputs": {3: 1}}, "the name `3` in `inputs` is of type int"), ({"inputs": [1]}, "`inputs` is of type list"),
    ({"inputs": np.zeros(2)}, "`inputs` is of type ndarray"), ({"backends": ()}, "`backends` is empty"),
    ({"backends": "reference"}, "`backends` is 'reference', and must be a list"), ({"backends": None}, "must be a list"),
    ({"passes": 3}, "`passes` is 3"), ({"seed": -1}, "`seed` is -1"), ({"seed": 1.5}, "`seed` is 1.5"),
])  # fmt: skip
def test_what_check_cannot_be_given(options: dict[str, Any], said: str) -> None:
    with pytest.raises(lf.Error) as caught:
        lf.check(CLASH, **options)
    (problem,) = caught.value.diagnostics
    assert problem.code == "LF0502" and said in problem.message and problem.fix


@pytest.mark.parametrize("name", ["metal", []])
def test_back_ends_that_there_are_not(name: object) -> None:
    with pytest.raises(lf.MachineError, match="there is no back end"):
        lf.check(CLASH, backends=["reference", name])  # type: ignore[list-item]


def test_bisect_tells_of_accesses_that_are_the_script_s_own(shell: Shell) -> None:
    """They are told by `check` where they are so on its data, the first set, else by `fuzz`."""
    shell.write("gath.lf", "input x: f32[N]\ninput i: i32[M]\noutput y = x[i]\n")
    for dims, counts, command, code in ((("--dims", "N=2"), "of which only the first counts", "check", 1),
                                        ((), "which do not count", "fuzz", 3)):  # fmt: skip
        assert shell("bisect", "gath.lf", "--json", *dims) == 0
        record = json.loads(shell.out.splitlines()[-1])
        count, sets = record["outside"], len(record["data"])
        assert 1 < count < sets
        assert (
            f"arrays on {count} of the {sets} sets of data, {counts}: `loopfuse {command}` tells of them" in shell.err
        )
        assert shell(command, "gath.lf", *dims) == code and "outside its array" in shell.out + shell.err
    np.save("i.npy", np.int32([7]))
    np.save("x.npy", np.float32([7]))
    assert shell("bisect", "gath.lf", "x=x.npy", "i=i.npy") == 0
    assert "own accesses go outside their arrays: `loopfuse check` tells of them" in shell.out
    shell.write("gath.lf", "input x: f32[N]\ninput i: i32[M] where 0 <= i < N\noutput y = x[i]\n")
    assert shell("bisect", "gath.lf") == 0 and "outside" not in shell.out
