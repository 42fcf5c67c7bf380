"""Finding the one pass that breaks a program, and in it the one step: a rule applied, a decision taken.

A pass that counts its steps can be stopped after any number of them, and must be right each time. So the number is
halved until two neighbours are left, of which one is right and the other wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from loopfuse.agreement import Data, Jury, Runner, attempt, unverified
from loopfuse.backends.reference import Result
from loopfuse.bind import Bound
from loopfuse.draws import Draw, sizes_of
from loopfuse.driver import Lowered
from loopfuse.ir import Program
from loopfuse.passes import Options, Pass, Steps, selection

Progress = Callable[[float], None]  # told the fraction done
Outside = Callable[
    [tuple[int, ...]], None
]  # told the sets, from 0, on which accesses of the lowered program go outside


@dataclass(frozen=True, slots=True)
class Culprit:
    """What breaks a program.

    `problem` says what is wrong with what `pass_name` gives; `invalid`, that the program is broken (or the pass
    raised), not only its results. `step` of `steps` (counted from 1) is what does it, `description` in words; None
    where the pass breaks the program without taking a step. `before` and `after` are the program without the step and
    with it (None where the pass raises). `data` says on which data the results differ.
    """

    pass_name: str
    problem: str
    invalid: bool
    step: int | None
    steps: int
    description: str
    before: Program
    after: Program | None
    data: str = ""


def bisect(lowered: Lowered, data: Data, pipeline: str | Iterable[Pass] = "default",
           options: Options | None = None, progress: Progress | None = None,
           runner: Runner | None = None, outside: Outside | None = None) -> Culprit | None:  # fmt: skip
    """The first pass, and in it a step, after which the program is not valid or gives other results; None: all agree.

    Results are judged on every set of `data`, as by `agreement.every_pass`. The passes run once for the sizes of each
    set, which the cost model is told. With a `runner` it is another back end's results that are judged, first of the
    lowered program. `outside` is told the numbers of the sets on which the program's own accesses go outside their
    arrays: these do not count, but for the first of all.
    """
    chosen = selection(pipeline) if isinstance(pipeline, str) else tuple(pipeline)
    jury = Jury(lowered.program, data, runner=runner, shown=lowered.shown)
    if outside:
        outside(jury.outside)
    verdict = jury.judge_lowered()
    if verdict.problem:
        return Culprit("lower", verdict.problem, False, None, 0, "", lowered.program, None, verdict.data)
    told = sizes_of((Draw(data),) if isinstance(data, Bound) else data)
    for turn, sizes in enumerate(told):
        program, results = lowered.program, jury.results
        chosen_options = replace(options or Options(), sizes=sizes)
        for number, p in enumerate(chosen):
            if progress:
                progress((turn + number / len(chosen)) / len(told))
            row, after = attempt(p, program, chosen_options, jury, results)
            if row.stage is None or not row.agrees:
                return _Search(p, program, chosen_options, jury, results).culprit()
            program, results = row.stage.program, after
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A pass stopped after some steps: what is wrong (""), on what data, whether with the program itself, and the steps
    taken."""

    problem: str
    data: str
    invalid: bool
    log: Sequence[str]


@dataclass
class _Search:
    """The search for a step of one pass on one program; `results` are that program's results.

    Where the whole pass breaks the program, the step that does so is looked for; results do not count then, and the
    program that a part of the pass leaves need not be one that can be run in reasonable time.
    """

    p: Pass
    program: Program
    options: Options
    jury: Jury
    results: tuple[Result, ...]
    judged: bool = True

    def culprit(self) -> Culprit:
        """The step that breaks the program, which the whole pass does."""
        whole = self._try(None)
        self.judged = not whole.invalid
        by_steps = bool(whole.log)
        total = len(whole.log) if by_steps else self._decisions()
        right, wrong = 0, total
        if total == 0 or self._try(0, by_steps).problem:
            return self._found(whole, None, total, by_steps)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self._try(middle, by_steps).problem:
                wrong = middle
            else:
                right = middle
        return self._found(self._try(wrong, by_steps), wrong, total, by_steps)

    def _limited(self, most: int | None, by_steps: bool) -> Options:
        """The options that stop the pass after a number of steps."""
        if most is not None and not by_steps:
            return replace(self.options, decide_max=most)
        return replace(self.options, steps={**self.options.steps, self.p.name: Steps(most)})

    def _try(self, most: int | None, by_steps: bool = True) -> _Trial:
        options = self._limited(most, by_steps)
        row, _ = attempt(self.p, self.program, options, self.jury, self.results, judged=self.judged)
        log = options.steps[self.p.name].log if self.p.name in options.steps else []
        return _Trial(row.verdict.problem, row.verdict.data, row.stage is None, log)

    def _decisions(self) -> int:
        """How many decisions the pass takes, where it does not count steps."""
        row, _ = attempt(self.p, self.program, self.options, self.jury, self.results, judged=False)
        taken = [d for d in (row.stage.decisions if row.stage else ()) if d.verdict in ("fused", "forced")]
        return len(taken)

    def _found(self, trial: _Trial, step: int | None, total: int, by_steps: bool) -> Culprit:
        before = self.program
        description = ""
        if step is not None:
            before = unverified(self.p, self.program, self._limited(step - 1, by_steps)) or self.program
            description = trial.log[-1] if trial.log else f"decision {step}"
        after = unverified(self.p, self.program, self._limited(step, by_steps))
        return Culprit(self.p.name, trial.problem, trial.invalid, step, total, description, before, after,
                       trial.data)  # fmt: skip
