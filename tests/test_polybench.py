"""PolyBench's thirty kernels: against their oracles, in order where they have one, and refused where that is hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_scripts import check_case

from loopfuse.bind import Given
from loopfuse.diag import Source, UserError
from loopfuse.driver import Options, bind_program, compile_source, execute, lower_program, optimise
from loopfuse.ir import Loop, Program
from loopfuse.rewrite import walk_program
from loopfuse.sizes import Poly
from tests.oracles.core import ROOT, Case, agrees
from tests.oracles.polybench import AMONG_TASKS, CASES, SEQUENTIAL

WRITTEN = {path.stem for path in (ROOT / "tests" / "polybench").glob("*.lf")}
KERNELS = [
    "2mm", "3mm", "adi", "atax", "bicg", "cholesky", "correlation", "covariance", "deriche", "doitgen", "durbin", "fdtd_2d",
    "floyd_warshall", "gemm", "gemver", "gesummv", "gramschmidt", "heat_3d", "jacobi_1d", "jacobi_2d", "lu", "ludcmp", "mvt",
    "nussinov", "seidel_2d", "symm", "syr2k", "syrk", "trisolv", "trmm",
]  # fmt: skip
LONG = ("deriche", "adi", "ludcmp")  # fusion searches for seconds among scans that share what they read


def quick_first(case: Case, long: tuple[str, ...] = ()) -> Any:
    """The first draw of a kernel as it is, the others and the long ones marked slow."""
    first = next(c for c in CASES if c.script == case.script)
    slow = case is not first or Path(case.script).stem in long
    return pytest.param(case, id=case.id, marks=pytest.mark.slow if slow else ())


def test_all_thirty_are_there() -> None:
    tasks = {path.stem for path in (ROOT / "tests" / "scripts" / "tasks").glob("*.lf")}
    assert sorted([*WRITTEN, *AMONG_TASKS]) == KERNELS
    assert len(KERNELS) == 30 and set(AMONG_TASKS) <= tasks


@pytest.mark.parametrize("case", [quick_first(c) for c in CASES])
def test_kernel(case: Case) -> None:
    """By the reference, against the oracle, and both within the bound that is derived from the script."""
    check_case(case)


@pytest.mark.parametrize("case", [quick_first(c, LONG) for c in CASES])
def test_kernel_after_all_passes(case: Case) -> None:
    checked = compile_source(Source(case.script, case.text), sizes=dict(case.draw.sizes))
    inputs = case.inputs()
    bound = bind_program(checked.typed, Given(inputs, params=case.draw.params))
    optimised = optimise(lower_program(checked.typed), Options(sizes=bound.sizes))
    want = case.answer(inputs)
    for name, array in execute(optimised, bound, backend="reference").outputs.items():
        assert not (problem := agrees(array, want[name], case.tolerance(name))), f"{name}: {problem}"


# -- order ------------------------------------------------------------------------------------------------------------


def _script(name: str) -> str:
    folder = "scripts/tasks" if name in AMONG_TASKS else "polybench"
    return (ROOT / "tests" / folder / f"{name}.lf").read_text(encoding="utf-8")


def _in_order(program: Program, sizes: Mapping[str, int]) -> set[tuple[int | str, ...]]:
    """The bounds of the loops that run in order; those that hang on outer indices as text."""

    def value(bound: Poly) -> int | str:
        try:
            return int(bound.value(sizes))
        except KeyError:
            return str(bound)

    dims = [d for s in walk_program(program) if isinstance(s, Loop) and s.order == "seq" for d in s.dims]
    return {tuple(value(p) for p in (*d.lo, *d.hi)) for d in dims}


def test_the_table_of_orders_names_the_kernels_with_scans() -> None:
    scans = {name for name in KERNELS if re.search(r"^\s*scan ", _script(name), re.MULTILINE)}
    assert set(SEQUENTIAL) == scans


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in SEQUENTIAL])
def test_what_is_sequential_stays_in_order(name: str) -> None:
    """Passes may split a loop that runs in order, but none may make it parallel or lose it."""
    lowered = lower_program(compile_source(Source(name, _script(name))).typed)
    sizes = {s.id: s.value or 9 for s in lowered.program.sizes}
    before = _in_order(lowered.program, sizes)
    assert before and _in_order(optimise(lowered).program, sizes) == before


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_recurrence_without_a_scan_is_refused(name: str) -> None:
    text = f"input a: f64[N, N]\n{SEQUENTIAL[name][1]}\noutput y\n"
    with pytest.raises(UserError) as caught:
        compile_source(Source(name, text))
    told = caught.value.diagnostics
    assert {d.code for d in told} == {"LF0203"}
    assert all("`y` is not defined yet" in d.message and "a recurrence is a scan" in str(d.fix) for d in told)
