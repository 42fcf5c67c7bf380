"""The programs that a compiled back end must run as the reference does, with data: one collection for the GPU and for kernels
that are emulated on the CPU.

A `Suite` is a program and several sets of data, made when asked for. What the program means is its lowered form; what runs
is the same after passes. `verdict` says what is wrong with the results, by the bound that is derived from the lowered form.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from kernel_checks import inputs_for
from lower_cases import CASES as TYPED
from reference_programs import ODD, PROGRAMS
from report_cases import LIGHT, LONG, REPORTS, inputs_of
from schedule_programs import TEXTS, program
from test_lower_random import Maker
from test_programs import CASES as CORNERS
from test_random_sizes import SCRIPTS, SMALLER

from loopfuse import driver
from loopfuse.backends.reference import Bounded, agrees, run, run_bounded
from loopfuse.bind import Bound, Given
from loopfuse.diag import Source, UserError
from loopfuse.driver import Lowered, Optimised, compile_source, lower_program, plan_sizes
from loopfuse.frontend.typed import Output, TypedProgram
from loopfuse.generate import Array
from loopfuse.ir import Program
from loopfuse.passes import Options
from tests.bench.workloads import WORKLOADS
from tests.oracles.core import ROOT
from tests.oracles.core import Case as Oracle
from tests.oracles.expressions import batches, own_arrays, own_expressions, random_expressions
from tests.oracles.table import BUILTINS, EXAMPLES, LIBRARY, OUTSIDE, POLYBENCH
from tests.oracles.table import SCRIPTS as ORACLES

MEMORY = 1 << 26  # bytes of one set of data, whatever the extents drawn
MOST_STEPS = {"large": 1 << 19, "wide": 1 << 14, "medium": 1 << 13}  # the product of all sizes, by the kind of data
FEW_STEPS = 1 << 14  # the same of any other kind
# Extents that divide nothing; with them every dim is another one, in order. The large ones make several blocks a kernel.
ODD_EXTENTS, LARGE_EXTENTS = (7, 5, 3, 11, 2, 13, 17, 19, 23), (131, 67, 37, 11, 5, 3, 2, 7, 13)
MANY = ("elementwise",)  # 39 kernels that share their inputs: the search for groups takes minutes
WIDE_EXTENTS = (3, 1031, 517, 5, 2, 7, 11, 13, 17)
MEDIUM_EXTENTS = (37, 67, 33, 5, 3, 2, 7, 11, 13)  # for what takes the reference long


@dataclass(frozen=True, slots=True)
class Data:
    """A set of data, and what it is."""

    note: str
    bound: Bound


@dataclass(frozen=True)
class Suite:
    """A program with data.

    `program` and `data` make them, the second for `large` extents too if asked. `passes` as for `--passes`: "none" for
    kernels that are finished. Sets that the script's requirements refuse are left out.
    """

    id: str
    program: Callable[[], Lowered]
    data: Callable[[Lowered, bool], Iterator[Data]]
    passes: str = "default"

    @cached_property
    def lowered(self) -> Lowered:
        """The program as it was lowered."""
        return self.program()

    def sets(self, large: bool) -> list[Data]:
        """Every set of data."""
        return list(self.data(self.lowered, large))

    def optimised(self, bound: Bound) -> Optimised:
        """The program after passes that were told these sizes."""
        return driver.optimise(self.lowered, Options(sizes=bound.sizes), self.passes)


# -- scripts ----------------------------------------------------------------------------------------------------------


@cache
def _script(path: str, text: str, sizes: tuple[tuple[str, int], ...]) -> Lowered:
    folder = (ROOT / path).parent if (ROOT / path).exists() else None
    return lower_program(compile_source(Source(path, text), sizes=dict(sizes), search=folder).typed)


def _drawn(lowered: Lowered, notes: Sequence[tuple[str, Sequence[int]]], seed: int = 0) -> Iterator[Data]:
    """Made-up data at given extents, in the order of the sizes; where a script refuses them, or they would take too long,
    near ones are tried."""
    names = [s.id for s in lowered.typed.sizes if s.origin == "shape"]
    for note, extents in notes:
        rng = random.Random(note)
        near = [
            *extents,
            *(2 * n for n in extents),
            *(k * s.value for s in lowered.typed.sizes if s.value for k in (1, 3)),
        ]
        for attempt in range(60):
            dims = {name: extents[k % len(extents)] for k, name in enumerate(names)}
            if attempt:  # requirements often ask that a few be equal, or large enough, or divide
                pool = near if attempt < 30 else [*near[:4], 1, 2, 3, 4, 6, 8, 16]
                dims = {name: rng.choice(pool) for name in names}
            if prod(dims.values()) > MOST_STEPS.get(note, FEW_STEPS):
                continue
            with suppress(UserError):
                given = Given({}, dims=dims, seed=seed + attempt, fill=True, limit=MEMORY)
                bound = driver.bind_program(lowered.typed, given)
                told = " ".join(f"{name}={bound.sizes[name]}" for name in names)
                yield Data(f"{note}: {told}", bound)
                break
        if not names:
            return


def _extents(lowered: Lowered, large: bool) -> Iterator[Data]:
    notes = [("ones", (1,)), ("nothing", (0,)), ("odd", ODD_EXTENTS)]
    if large:
        notes += [("large", LARGE_EXTENTS), ("wide", WIDE_EXTENTS)]
    return _drawn(lowered, notes)


def _medium_extents(lowered: Lowered, large: bool) -> Iterator[Data]:
    notes = [("ones", (1,)), ("nothing", (0,)), ("odd", ODD_EXTENTS)]
    return _drawn(lowered, [*notes, ("medium", MEDIUM_EXTENTS)] if large else notes)


def _random_sizes() -> Iterator[Suite]:
    """Every sample script at extents of 0, of 1, and odd ones."""
    for path in SCRIPTS:
        sizes = tuple(SMALLER.get(path.stem, {}).items())
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        data = _extents if path.parent.name == "scripts" else _medium_extents
        yield Suite(f"{path.parent.name}/{path.stem}", lambda n=name, t=text, s=sizes: _script(n, t, s), data)


def _folder(folder: Path) -> Iterator[Suite]:
    for path in sorted(folder.glob("*.lf")):
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        yield Suite(f"{folder.name}/{path.stem}", lambda n=name, t=text: _script(n, t, ()), _extents)


def _oracle(cases: Sequence[Oracle], group: str) -> Iterator[Suite]:
    """The draws of the oracles, those of one script with the same `size` values together."""
    together: dict[tuple[str, str, tuple[tuple[str, int], ...]], list[Oracle]] = {}
    for case in cases:
        together.setdefault((case.script, case.text, tuple(case.draw.sizes.items())), []).append(case)
    for (path, text, sizes), drawn in together.items():

        def data(lowered: Lowered, large: bool, drawn: list[Oracle] = drawn) -> Iterator[Data]:
            for case in drawn:
                given = Given(case.inputs(), params=case.draw.params)
                yield Data(case.id, driver.bind_program(lowered.typed, given))

        passes = "-fuse" if Path(path).stem in MANY else "default"
        yield Suite(f"{group}/{drawn[0].id}", lambda p=path, t=text, s=sizes: _script(p, t, s), data, passes)


def _given(arrays: Mapping[str, Array]) -> Callable[[Lowered, bool], Iterator[Data]]:
    def data(lowered: Lowered, large: bool) -> Iterator[Data]:
        yield Data("as given", driver.bind_program(lowered.typed, Given(arrays)))

    return data


def _expressions() -> Iterator[Suite]:
    """Every operator and function at every pair of kinds, twelve expressions a script."""
    made, _ = batches("own", [*own_expressions(), *random_expressions(200)], own_arrays(), 12)
    for batch in made:
        yield Suite(f"expressions/{batch.id}", lambda b=batch: _script(b.id, b.text, ()), _given(batch.arrays))


def _reports() -> Iterator[Suite]:
    for name in LIGHT:
        if name in LONG - {"s41_deep_chain"}:
            continue
        for numerics in ("strict", "default"):
            source = f"numerics {numerics}\n{REPORTS[name].text}"
            made = _given(inputs_of(REPORTS[name].case))
            yield Suite(f"reports/{name}-{numerics}", lambda n=name, s=source: _script(n, s, ()), made)


def _corners() -> Iterator[Suite]:
    for name, (text, arrays, _) in CORNERS.items():
        yield Suite(f"programs/{name}".replace(" ", "-"), lambda n=name, t=text: _script(n, t, ()), _given(arrays))


# -- loop IR and typed programs ---------------------------------------------------------------------------------------


def wrapped(p: Program) -> Lowered:
    """Loop IR as if a script had been lowered to it."""
    outputs = tuple(b.id for b in p.buffers if b.role == "out")
    typed = TypedProgram(p.name, p.sizes, (), (), tuple(Output(o, o) for o in outputs), p.buffers, (), p.requires)
    return Lowered(typed, p, outputs)


def _counted(lowered: Lowered, large: bool) -> Iterator[Data]:
    """Small sizes for loop IR, and larger ones."""
    for first in (1, 2, 5, 37) if large else (1, 5):
        p = lowered.program
        sizes = {s.id: s.value if s.value is not None else first + k for k, s in enumerate(p.sizes)}
        sizes |= plan_sizes(p)
        yield Data(f"from {first}", Bound(sizes, inputs_for(p, sizes)))


def _typed() -> Iterator[Suite]:
    for name, make in TYPED.items():
        for passes in ("default", "none"):
            yield Suite(f"typed/{name}-{passes}", lambda m=make: lower_program(m()), _counted, passes)


def _finished() -> Iterator[Suite]:
    for name in TEXTS:
        yield Suite(f"finished/{name}".replace(" ", "-"), lambda n=name: wrapped(program(n)), _counted, "none")


def _reference() -> Iterator[Suite]:
    for case in (*ODD, *PROGRAMS):

        def data(lowered: Lowered, large: bool, case: Any = case) -> Iterator[Data]:
            yield Data("as given", Bound(plan_sizes(case.program) | case.sizes, case.inputs))

        name = f"reference/{case.name}".replace(" ", "-")
        yield Suite(name, lambda c=case: wrapped(c.program), data, "none")


def random_program(seed: int) -> Lowered:
    """A random typed program, lowered."""
    return lower_program(Maker(random.Random(seed)).program())


def random_data(lowered: Lowered, large: bool) -> Iterator[Data]:
    """Extents of 0 and 1, small ones, and some that make several blocks."""
    ways = [(0, 1, 2), (2, 0, 1), (1, 1, 1), (5, 3, 2), *([(67, 37, 5), (33, 258, 3)] if large else [])]
    p = lowered.program
    for extents in ways:
        sizes = dict(zip("NML", extents, strict=True))
        made = np.random.default_rng(3)
        inputs = {b.id: made.integers(-2, 3, tuple(int(e.value(sizes)) for e in b.shape)).astype(b.dtype.numpy)
                  for b in p.buffers if b.role == "in"}  # fmt: skip
        yield Data(" ".join(f"{k}={v}" for k, v in sizes.items()), Bound(sizes, inputs))


def random_suites(count: int) -> Iterator[Suite]:
    """Random typed programs, fused and as they were lowered in turn."""
    for seed in range(count):
        passes = "none" if seed % 4 == 3 else "default"
        yield Suite(f"random/{seed}-{passes}", lambda s=seed: random_program(s), random_data, passes)


# -- all of them ------------------------------------------------------------------------------------------------------


@cache
def suites() -> tuple[Suite, ...]:
    """Every program, each once under one name."""
    found = [
        *_random_sizes(), *_folder(ROOT / "tests" / "fusion"), *_folder(ROOT / "tests" / "bench" / "peers"),
        *_folder(ROOT / "tests" / "regressions"),
        *_oracle(ORACLES, "oracle"), *_oracle(EXAMPLES, "example"), *_oracle(LIBRARY, "library"),
        *_oracle(BUILTINS, "builtin"), *_oracle(POLYBENCH, "polybench"), *_oracle(OUTSIDE, "outside"), *_expressions(),
        *_reports(), *_corners(), *_typed(), *_finished(), *_reference(), *random_suites(120),
    ]  # fmt: skip
    assert len({s.id for s in found}) == len(found)
    assert {w.script for w in WORKLOADS.values()} <= {s.id.split("/")[1] for s in found if s.id.startswith("peers/")}
    return tuple(found)


# -- judging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judge:
    """What the lowered program says on one set of data."""

    lowered: Lowered
    bound: Bound

    def sizes(self) -> dict[str, int]:
        """All sizes, those of a plan too."""
        return plan_sizes(self.lowered.program) | self.bound.sizes

    def faults(self) -> bool:
        """Whether an access goes outside its array."""
        return bool(run(self.lowered.program, self.arrays(), self.sizes()).faults)

    def arrays(self) -> dict[str, Array]:
        """What the program starts from, by buffer."""
        wanted = ("in", "param", "frozen")
        return {b.id: self.bound.inputs[b.id] for b in self.lowered.program.buffers if b.role in wanted}

    def bounded(self) -> list[Bounded]:
        """The outputs with their bounds, in order."""
        return list(run_bounded(self.lowered.program, self.arrays(), self.sizes()).values())

    def verdict(self, outputs: Mapping[str, Array]) -> str:
        """What is wrong with the outputs (by buffer, in the order of the program), in a sentence; "" where nothing is."""
        bounds = self.bounded()
        if len(bounds) != len(outputs):
            return f"{len(outputs)} outputs, expected {len(bounds)}"
        for (name, array), bounded in zip(outputs.items(), bounds, strict=True):
            if array.dtype != bounded.value.dtype or array.shape != bounded.value.shape:
                want = f"{bounded.value.dtype}{list(bounded.value.shape)}"
                return f"`{name}` is {array.dtype}{list(array.shape)}, expected {want}"
            if (miss := agrees(bounded, array)) is not None:
                at = list(miss.index)
                return (f"`{name}`{at} is {miss.found!s}, expected {miss.value!s}, off by at most {miss.bound:.3g}; "
                        f"{miss.wrong} of {array.size} are wrong")  # fmt: skip
        return ""


def renamed(lowered: Lowered, name: str) -> Lowered:
    """The program under another name, so that nothing made for the first is found in a cache."""
    return replace(lowered, program=replace(lowered.program, name=name))
