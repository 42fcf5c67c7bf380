"""What a fault is held against: examples of the ordinary checks, each a test by name that raises where something is wrong.

An example may keep what it found without a fault (`prepare`), so that only what a fault changes is run again: programs that
are lowered before passes are faulty, kernels whose text is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from emulator.running import Emulated
from report_cases import LIGHT, LONG, ready, stated
from test_errors import FILES, test_error_file
from test_planted import BUGS
from test_programs import CASES, test_program

from loopfuse import driver
from loopfuse.agreement import Jury, attempt
from loopfuse.bind import Given
from loopfuse.diag import Source
from loopfuse.draws import Draw, draws
from loopfuse.driver import Lowered
from loopfuse.passes import Options, selection
from loopfuse.printer import print_program
from loopfuse.testing import data
from loopfuse.testing.choices import Steered
from loopfuse.testing.scripts import script
from tests.oracles.core import ROOT
from tests.oracles.table import BUILTINS, LIBRARY


class Example:
    """A check. `id` is the test that has it."""

    id: str

    def prepare(self) -> None:
        """Run it without a fault. Raises where it does not pass."""
        self.check("")

    def check(self, where: str) -> None:
        """Run it with the fault that is planted in a part. Raises where the fault shows."""
        raise NotImplementedError


@dataclass
class Call(Example):
    """A test function with its arguments."""

    id: str
    call: Callable[[pytest.MonkeyPatch], object]

    def check(self, where: str) -> None:
        """Call it; what it patches is put back."""
        with pytest.MonkeyPatch.context() as patch, remembered(where):
            self.call(patch)


# -- memory of what a fault does not change -----------------------------------------------------------------------------


_RUNS: dict[Any, Any] = {}


def _key(emulated: Emulated, arrays: Sequence[Any]) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return tuple((k, of(v)) for k, v in value.items())
        if hasattr(value, "tobytes") and hasattr(value, "shape"):
            return (str(value.dtype), value.shape, hash(value.tobytes()))
        return str(value)

    code = emulated.code
    launched = (
        repr(code.steps),
        repr(code.memory),
        tuple((k.name, k.threads, k.shared, k.cluster) for k in code.kernels),
    )
    return (emulated.library.source, launched, code.aligned, code.faults, tuple(of(a) for a in arrays))


@contextmanager
def remembered(where: str) -> Iterator[None]:
    """Kernels of the same text on the same data give what they gave without a fault."""
    check = Emulated.check

    def known(emulated: Emulated, *arrays: Any, **more: Any) -> Any:
        key = _key(emulated, (*arrays, *more.values()))
        if key not in _RUNS:
            found = check(emulated, *arrays, **more)
            if where:
                return found
            _RUNS[key] = (found, emulated.faults.copy())
        emulated.faults = _RUNS[key][1].copy()
        return _RUNS[key][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Emulated, "check", known)
        yield


# -- stated values --------------------------------------------------------------------------------------------------------


def _stated(id: str, mode: str) -> None:
    import report_cases

    report_cases.lowered.cache_clear()
    made = ready(id, mode)
    outputs = driver.execute(made.lowered, made.bound, backend="reference").outputs
    problem = stated(made, list(outputs.values()))
    assert not problem, problem


def _oracle(case: Any) -> None:
    import test_scripts

    test_scripts._compiled.cache_clear()
    test_scripts.check_case(case)


def values() -> Iterator[Example]:
    """Scripts by the reference, against the values that are stated, or computed by nothing of ours."""
    for name in CASES:
        yield Call(f"test_programs.py::{name}", lambda _, n=name: test_program(n))
    for id in LIGHT:
        if id not in LONG:
            yield Call(f"test_reports.py::test_stated_value_without_passes[{id}]", lambda _, i=id: _stated(i, "strict"))
    for case in BUILTINS:
        yield Call(f"test_scripts.py::test_builtin[{case.id}]", lambda _, c=case: _oracle(c))
    for case in LIBRARY:
        if "_f32" in case.id:
            yield Call(f"test_scripts.py::test_library[{case.id}]", lambda _, c=case: _oracle(c))


def messages() -> Iterator[Example]:
    """What must be refused, with its message."""
    for path in FILES:
        yield Call(f"test_errors.py::test_error_file[{path.stem}]", lambda _, p=path: test_error_file(p, False))


# -- every pass -----------------------------------------------------------------------------------------------------------


@dataclass
class EveryPass(Example):
    """A lowered program after every pass, verified and run on each set of data."""

    id: str
    make: Callable[[], tuple[Lowered, Sequence[Draw]]]
    costed: Mapping[str, int] | None = None
    jury: Jury | None = None
    texts: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def check(self, where: str) -> None:
        """What a pass gives is run where it differs from what it gave without the fault."""
        if self.jury is None or where == "front end":
            lowered, sets = self.make()
            jury = Jury(lowered.program, sets)
        else:
            jury = self.jury
        first = not self.texts
        sizes = jury.judges[0].bound.sizes if self.costed is None else self.costed
        program, results = jury.judges[0].program, jury.results
        options = Options(sizes=sizes)
        for number, p in enumerate(selection("default")):
            row, _ = attempt(p, program, options, jury, results, judged=False)
            assert row.stage is not None, f"{p.name}: {row.verdict.problem}"
            text = print_program(row.stage.program)
            if first or text != self.texts[number]:
                verdict, results = jury.judge(row.stage, results)
                assert not verdict.problem, f"after {p.name}: {verdict.problem}"
            else:
                results = self.results[number]
            if first:
                self.texts.append(text)
                self.results.append(results)
            program = row.stage.program
        self.jury = self.jury or jury


def _drawn(text: str, name: str, folder: Any = None) -> tuple[Lowered, Sequence[Draw]]:
    typed = driver.compile_source(Source(name, text), search=folder).typed
    return driver.lower_program(typed), draws(typed, Given({}, fill=True))


def _given(text: str, arrays: Mapping[str, Any]) -> tuple[Lowered, Sequence[Draw]]:
    typed = driver.compile_source(Source("program", text)).typed
    named = {i.name for i in typed.inputs}
    given = Given({k: v for k, v in arrays.items() if k in named}, {k: v for k, v in arrays.items() if k not in named})
    return driver.lower_program(typed), [Draw(driver.bind_program(typed, given))]


def every_pass() -> Iterator[Example]:
    """Scripts of every kind of fusion, and small ones that each stand for a decision of a pass."""
    for name, (text, arrays, _) in CASES.items():
        yield EveryPass(f"test_programs.py::test_after_every_pass[{name}]", lambda t=text, a=arrays: _given(t, a))
    texts = {f"test_planted.py::{p.bug.__name__}": (p.script, None) for p in BUGS}
    for folder in ("regressions", "reports", "fusion", "scripts"):
        for path in sorted((ROOT / "tests" / folder).glob("*.lf")):
            if path.stem not in SLOW and path.stem.split(".")[0] not in LONG and not path.stem.startswith("s46"):
                texts[f"{folder}/{path.name}"] = (path.read_text("utf-8"), path.parent)
    for id, (text, folder) in texts.items():
        yield EveryPass(id, lambda t=text, i=id, f=folder: _drawn(t, i.split("::")[0], f))


SLOW = frozenset(("conv_bn_train", "ffn_block", "transformer_ffn", "multi_head_attention", "11_histeq", "12_kmeans", "resnet_block",
                  "histogram_equalisation", "07_attention", "s42_six_hundred_inputs", "attention_library"))  # fmt: skip


def random_programs(count: int = 80) -> Iterator[Example]:
    """Random scripts, as `loopfuse fuzz --gen` tries them."""
    for number in range(count):

        def make(number: int = number) -> tuple[Lowered, Sequence[Draw]]:
            choices = Steered(Random(f"mutants:{number}"), {})
            text = script(choices, 6)
            typed = driver.compile_source(Source(f"random {number}", text)).typed
            draw = data.draw(typed, Given({}), choices, "edge")
            assert not isinstance(draw, str) or number
            return driver.lower_program(typed), draws(typed, Given({}, fill=True)) if isinstance(draw, str) else [draw]

        yield EveryPass(f"loopfuse fuzz --gen, program {number}", make)
