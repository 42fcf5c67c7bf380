"""Whether a program still means what it meant: results before and after a pass, by the reference.

Where nothing rounds, and under `numerics strict`, all bits must be the same (all NaNs being one); elsewhere every element
must lie within the bound derived from the program as it was lowered. Folds that have repairs are also run as a streaming
and as a splitting implementation would, tiled programs with several tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from loopfuse.backends import reference
from loopfuse.backends.reference import Bounded, Fault, Online, Result, agrees, vague
from loopfuse.bind import Bound, buffer_bytes
from loopfuse.cuda.engine import open_engine
from loopfuse.diag import CompilerError, UserError
from loopfuse.draws import Draw, told
from loopfuse.driver import Lowered, optimise, plan_sizes, uncollected
from loopfuse.generate import Array
from loopfuse.ir import Loop, Program
from loopfuse.passes import Options, Pass, Stage, run_passes, selection
from loopfuse.passes.manager import run_pass
from loopfuse.rewrite import walk_program
from loopfuse.tolerance import Tolerance
from loopfuse.verify import violations

# How repaired folds are run, and the tiles that tiled programs are run with.
WAYS = (Online(1), Online(7), Online(64), Online(7, split=True))
FEW_WAYS = (Online(1), Online(3, split=True))  # on sets of data after the first
TILES = (3, 16)
# Up to so many elements in all buffers every element's history is watched too (on the first set), which takes long.
WATCHED = 1 << 13


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the results of a program compare.

    `problem` says in one sentence what is wrong, "" where nothing is; `worst` is the greatest distance of a decided
    element from the lowered program's result; `undecided` elements could not be judged, and of `vague` ones the bound says
    nothing. `data` says on which data the problem shows.
    """

    problem: str = ""
    worst: float = 0.0
    undecided: int = 0
    elements: int = 0
    data: str = ""
    vague: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """A pass of `every_pass`: the stage (None where the pass itself failed), and the verdict on its results."""

    name: str
    stage: Stage | None
    verdict: Verdict

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong."""
        return not self.verdict.problem

    def __repr__(self) -> str:
        return f"<Row {self.name}: {self.verdict.problem or 'agrees'}>"


Runner = Callable[[Program, Mapping[str, Array], Mapping[str, int]], Result]


def on_gpu(program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> Result:
    """Run a program on the GPU, for `Judge`. Raises `MachineError` where there is none."""
    outputs, hits = open_engine().run(program, inputs, sizes)
    return Result(outputs, [Fault(span, buffer, count) for buffer, span, count in hits])


class Judge:
    """Compares programs that shall mean the same as a lowered one, on one set of inputs.

    `runner` runs those programs in place of the reference; their results are then held against the bounds alone. A
    `tolerance` takes the place of all bounds, and of bits being the same. `shown` are the names that outputs have for the
    user, where they are not those of the program.
    """

    def __init__(self, program: Program, bound: Bound, limit: int = 1 << 28, ways: Sequence[Online] = WAYS,
                 watch: bool = True, runner: Runner | None = None, tolerance: Tolerance | None = None,
                 shown: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self.program, self.bound, self.limit, self.ways = program, bound, limit, ways
        self.watch, self.runner, self.tolerance, self.shown = watch, runner, tolerance, shown or {}
        self.arrays: dict[str, Array] = dict(bound.inputs)
        self.result = self._run(program, 0, None)
        self._bounded: dict[str, Bounded] | None = None

    def bounded(self) -> dict[str, Bounded]:
        """The lowered program's outputs with their bounds."""
        if self._bounded is None:
            sizes = plan_sizes(self.program) | self.bound.sizes
            self._bounded = reference.run_bounded(self.program, self._inputs(self.program), sizes, limit=self.limit)
        return self._bounded

    def judge(self, stage: Stage, before: Result) -> tuple[Verdict, Result]:
        """The verdict on a stage, and its results. `before` are the results of the stage before it."""
        self.arrays |= stage.notes.get("frozen", {})
        if not stage.changed:
            return Verdict(), before
        if self.runner is not None:
            return self.judge_elsewhere(stage.program, self.runner, before)
        tiled = any(s.origin == "plan" for s in stage.program.sizes)
        found, verdict = before, Verdict()
        # What rounds under strict is repairs alone, and only ways that go through the data once perform them.
        exact = stage.program.numerics == "strict"
        try:
            for tile in TILES if tiled else (0,):
                found = self._run(stage.program, tile, None)
                verdict = self._compare(found, before, stage.rounds and not exact)
                for way in self.ways if not verdict.problem and repaired(stage.program) else ():
                    online = self._within(self._run(stage.program, tile, way), f"one pass, {_way(way)}: ")
                    verdict = replace(online, worst=max(online.worst, verdict.worst))
                    if verdict.problem:
                        break
                if verdict.problem:
                    break
        except CompilerError as why:
            return Verdict(why.message), before
        return verdict, found

    def judge_elsewhere(self, program: Program, runner: Runner, before: Result) -> tuple[Verdict, Result]:
        """The verdict on what another back end makes of a program, and its results."""
        try:
            found = runner(program, self._inputs(program), self.bound.sizes)
        except CompilerError as why:
            return Verdict(why.message), before
        return self._compare(found, before, True), found

    def _compare(self, found: Result, before: Result, rounds: bool) -> Verdict:
        if bool(found.faults) != bool(before.faults):
            return Verdict("an access goes outside its array" if found.faults else "no access goes outside any more")
        return self._within(found, "") if rounds or self.tolerance else self._same(found, before)

    def _same(self, found: Result, before: Result) -> Verdict:
        """Bit for bit as before; a repeated rounding before may have left a distance from the lowered program."""
        count = sum(a.size for a in found.outputs.values())
        for name, old in before.outputs.items():
            new = found.outputs[name]
            wrong = differing(old, new)
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                message = f"{self._element(name, at)} is {new[at]!s}, and was {old[at]!s} before"
                return Verdict(message + _more(int(wrong.sum())), float(_distance(new, old)), 0, count)
        return Verdict(elements=count, worst=self._worst(found))

    def _within(self, found: Result, what: str) -> Verdict:
        """Within the bounds of the lowered program, or the tolerance."""
        if self.tolerance is not None:
            return self._tolerated(found, what, self.tolerance)
        undecided = count = loose = 0
        for name, bounded in self.bounded().items():
            undecided += int(np.count_nonzero(bounded.undecided))
            count += bounded.value.size
            loose += vague(bounded)
            miss = agrees(bounded, found.outputs[name])
            if miss is not None:
                message = (f"{what}{self._element(name, miss.index)} is {miss.found!s}, and by the lowered program "
                           f"{miss.value!s}, off by at most {miss.bound:.2g}")  # fmt: skip
                return Verdict(message + _more(miss.wrong), self._worst(found), undecided, count)
        return Verdict("", self._worst(found), undecided, count, vague=loose)

    def _tolerated(self, found: Result, what: str, tolerance: Tolerance) -> Verdict:
        """As near to the lowered program's results as the caller asks."""
        count = sum(a.size for a in found.outputs.values())
        for name, expected in self.result.outputs.items():
            new = found.outputs[name]
            wrong = tolerance.wrong(new, expected)
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                message = f"{what}{self._element(name, at)} is {new[at]!s}, and by the lowered program {expected[at]!s}"
                return Verdict(message + _more(int(wrong.sum())), self._worst(found), 0, count)
        return Verdict("", self._worst(found), 0, count)

    def _element(self, name: str, at: Sequence[int]) -> str:
        return f"`{self.shown.get(name, name)}`" + (f"[{', '.join(map(str, at))}]" if at else "")

    def _worst(self, found: Result) -> float:
        return max((float(_distance(a, self.result.outputs[n])) for n, a in found.outputs.items()), default=0.0)

    def _inputs(self, program: Program) -> dict[str, Array]:
        return {b.id: self.arrays[b.id] for b in program.buffers if b.role in ("in", "param", "frozen")}

    def _run(self, program: Program, tile: int, way: Online | None) -> Result:
        sizes = plan_sizes(program, tile) | self.bound.sizes
        watched = (
            self.watch
            and way is None
            and sum(buffer_bytes(b, sizes) // b.dtype.itemsize for b in program.buffers) <= WATCHED
        )
        return reference.run(program, self._inputs(program), sizes, limit=self.limit, online=way, checked=watched)


def repaired(program: Program) -> bool:
    """Whether an accumulator has a repair."""
    return any(a.repair is not None for s in walk_program(program) if isinstance(s, Loop) for a in s.accs)


Data = Bound | Sequence[Draw]


class Jury:
    """Compares programs that shall mean the same as a lowered one, on several sets of data.

    Sets after the first are left out where an access of the lowered program goes outside its array on them; `outside`
    are the numbers of these, from 0, and of the first where it is so there.
    """

    def __init__(self, program: Program, data: Data, limit: int = 1 << 28, runner: Runner | None = None,
                 tolerance: Tolerance | None = None, shown: Mapping[str, str] | None = None) -> None:  # fmt: skip
        draws = (Draw(data),) if isinstance(data, Bound) else tuple(data)
        judges = [Judge(program, d.bound, limit, FEW_WAYS if k else WAYS, not k, runner, tolerance, shown)
                  for k, d in enumerate(draws)]  # fmt: skip
        sat = [(j, d.kind) for k, (j, d) in enumerate(zip(judges, draws, strict=True)) if k == 0 or not j.result.faults]
        self.outside = tuple(k for k, j in enumerate(judges) if j.result.faults)
        self.judges = tuple(j for j, _ in sat)
        self.kinds = tuple(kind for _, kind in sat)
        self.results: tuple[Result, ...] = tuple(j.result for j in self.judges)

    @cached_property
    def proved(self) -> bool:
        """Whether every access of the lowered program can be proved in range from the program alone.

        Lowering may know more: a passed-on shape has conditions that are met by how it was made.
        """
        return next(violations(self.judges[0].program, ranges=True), None) is None

    def judge_lowered(self) -> Verdict:
        """The verdict on the lowered program itself, where another back end runs the programs."""
        program = self.judges[0].program
        stage = Stage("lower", program, True, 0.0)
        return self.judge(stage, self.results)[0] if self.judges[0].runner else Verdict()

    def judge(self, stage: Stage, before: Sequence[Result]) -> tuple[Verdict, tuple[Result, ...]]:
        """The verdict on a stage, with the first problem, and its results on each set; `before` are those of the stage
        before it."""
        found: list[Result] = []
        whole = Verdict()
        for judge, kind, old in zip(self.judges, self.kinds, before, strict=True):
            verdict, result = judge.judge(stage, old)
            found.append(result)
            if verdict.problem:
                return replace(verdict, data=told(Draw(judge.bound, kind))), (*found, *before[len(found) :])
            whole = Verdict("", max(whole.worst, verdict.worst), whole.undecided + verdict.undecided,
                            whole.elements + verdict.elements, vague=whole.vague + verdict.vague)  # fmt: skip
        return whole, tuple(found)


def differing(a: Array, b: Array) -> Array:
    """Where two arrays of one type differ in bits, all NaNs being one."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    nan = (a != a) & (b != b)
    return np.asarray((np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)) & ~nan).reshape(
        a.shape
    )


def _distance(a: Array, b: Array) -> Any:
    """The greatest distance of elements that are finite in both."""
    if a.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
        return np.max(np.where(np.isfinite(gap), gap, 0.0))


def _more(wrong: int) -> str:
    return f" ({wrong} elements differ)" if wrong > 1 else ""


def _way(way: Online) -> str:
    return f"split in blocks of {way.block}" if way.split else f"blocks of {way.block}"


# -- every pass -------------------------------------------------------------------------------------------------------


def first_sizes(data: Data) -> dict[str, int]:
    """The sizes of the first set."""
    return data.sizes if isinstance(data, Bound) else data[0].bound.sizes


def every_pass(lowered: Lowered, data: Data, passes: str | Iterable[Pass] = "default",
               options: Options | None = None, *, ranges: bool = True, runner: Runner | None = None,
               tolerance: Tolerance | None = None) -> Iterator[Row]:  # fmt: skip
    """Run passes one by one and judge each; the last row is the first that does not agree, if one does not.

    Programs are verified after each pass (with `ranges` every access is proved in range again). The sizes that the cost
    model is told are those of the first set of data. Raises `UserError` as `driver.optimise`.
    """
    chosen = selection(passes) if isinstance(passes, str) else tuple(passes)
    options = options or Options(sizes=first_sizes(data))
    jury = Jury(lowered.program, data, runner=runner, tolerance=tolerance, shown=lowered.shown)
    program, results = lowered.program, jury.results
    if runner is not None:
        row = Row("lower", Stage("lower", program, True, 0.0), jury.judge_lowered())
        yield row
        if not row.agrees:
            return
    for p in chosen:
        row, results = attempt(p, program, options, jury, results, ranges=ranges)
        yield row
        if row.stage is None or not row.agrees:
            return
        program = row.stage.program


def overall(lowered: Lowered, data: Data, passes: str | Iterable[Pass] = "default",
            options: Options | None = None, *, runner: Runner | None = None,
            tolerance: Tolerance | None = None) -> Iterator[Row]:  # fmt: skip
    """Run passes and judge the end alone; the row is named after the last pass, or the one that failed. With a `runner`
    the lowered program comes first, as in `every_pass`."""
    chosen = selection(passes) if isinstance(passes, str) else tuple(passes)
    jury = Jury(lowered.program, data, runner=runner, tolerance=tolerance, shown=lowered.shown)
    if runner is not None or not chosen:
        row = Row("lower", Stage("lower", lowered.program, True, 0.0), jury.judge_lowered())
        yield row
        if not row.agrees:
            return
    try:
        stages = optimise(lowered, options or Options(sizes=first_sizes(data)), chosen).stages
    except CompilerError as why:
        yield Row(why.stage, None, Verdict(why.message))
        return
    if not stages:
        return
    notes = {"frozen": {id: a for s in stages for id, a in s.notes.get("frozen", {}).items()}}
    changed, rounds = any(s.changed for s in stages), any(s.rounds for s in stages)
    whole = replace(stages[-1], changed=changed, rounds=rounds, notes=notes)
    yield Row(whole.name, whole, jury.judge(whole, jury.results)[0])


def attempt(p: Pass, program: Program, options: Options, jury: Jury, before: tuple[Result, ...], *,
            ranges: bool = True, judged: bool = True) -> tuple[Row, tuple[Result, ...]]:  # fmt: skip
    """Run one pass, verify it and (if `judged`) judge it; the row and the results."""
    try:
        with uncollected():
            stage = run_pass(p, program, options, ranges=ranges and jury.proved)
    except UserError:
        raise
    except CompilerError as why:
        return Row(p.name, None, Verdict(why.message)), before
    if not judged:
        return Row(p.name, stage, Verdict()), before
    verdict, results = jury.judge(stage, before)
    return Row(p.name, stage, verdict), results


def unverified(p: Pass, program: Program, options: Options) -> Program | None:
    """What a pass gives, whether valid or not; None where it raises."""
    try:
        return run_passes(program, (p,), options, verify=False)[0].program
    except CompilerError:
        return None
