"""Plants faults and asks the checks of the suite, those near the fault first, until one finds it."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from loopfuse.cuda import engine

from . import examples, kernels, planting
from .planting import Mutant
from .table import Found

CHUNK = 6
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")
TESTS = __file__.rsplit("/", 2)[0]
# Tests of parts, which run as they are: what no program shows.
# Places whose faults show in tests of parts: memory, how wide an index is.
PARTS = ("cuda.", "emit.base:too_many", "emit.writer:Writer.parameters", "schedule.")
UNITS = {
    "front end": ("test_numerics.py", "test_ops.py", "test_bind.py", "test_prove.py"),
    "pass": ("test_constants.py", "test_simplify.py", "test_cse.py", "test_bodies.py", "test_distribute.py", "test_merge.py", "test_window.py",
             "test_contract.py", "test_peephole.py", "test_widen.py", "test_verify.py"),
    "schedule": ("test_schedule.py", "test_emit_wide.py", "test_emitted_structure.py", "test_cuda_runtime.py"),
    "emitter": ("test_barriers.py", "test_emit_wide.py", "test_cuda_tilemaps.py", "test_device_ops.py", "test_cuda_compile.py"),
    "dead code": ("passes/dce/test_dce.py",),
    "runtime": ("test_cuda_cache.py", "test_cuda_runtime.py", "test_cuda_bound.py", "test_cuda_arrays.py", "test_api.py", "test_bind.py",
                "test_lock.py", "test_cuda_tilemaps.py", "test_files.py", "test_files_lie.py"),
}  # fmt: skip


class Killer:
    """Examples of one kind in order; each is run without a fault before it is run with one."""

    def __init__(self, name: str, make: Callable[[], Iterable[examples.Example]]) -> None:
        self.name, self.make = name, make
        self.found: list[examples.Example] = []
        self.rest: Iterator[examples.Example] | None = None
        self.seconds = 0.0

    def chunk(self, start: int) -> list[examples.Example]:
        """The next few examples, prepared."""
        if self.rest is None:
            self.rest = iter(self.make())
        for example in itertools.islice(self.rest, max(0, start + CHUNK - len(self.found))):
            began = time.perf_counter()
            try:
                example.prepare()
            except Exception as why:
                raise AssertionError(f"{example.id} fails without a fault: {why!r}") from why
            self.seconds += time.perf_counter() - began
            self.found.append(example)
        return self.found[start : start + CHUNK]

    def kills(self, mutant: Mutant) -> tuple[str, int, str] | None:
        """The test that finds the fault, after how many examples, and what it says; None where none does."""
        start = 0
        while chunk := self.chunk(start):
            with mutant.planted() as reached:
                for number, example in enumerate(chunk, start + 1):
                    if said := failure(lambda e=example: e.check(mutant.where)):
                        assert reached, f"{mutant.name}: the check failed before the fault was reached: {said}"
                        return example.id, number, said
            start += len(chunk)
        return None


class Units(Killer):
    """Whole files of tests, by pytest."""

    def __init__(self, where: str) -> None:
        super().__init__("tests of parts", tuple)
        self.files = UNITS[where]
        self.broken: dict[str, list[str]] = {}  # by file: what fails without a fault too, as for want of a tool

    def kills(self, mutant: Mutant) -> tuple[str, int, str] | None:
        """The first test that fails, and passes without the fault."""
        passed = 0
        for file in sorted(self.files, key=lambda f: not near(f, mutant)):
            if file not in self.broken:  # what a module computes when it is imported stays: it must be without a fault
                self.broken[file] = []
                watched("--collect-only", f"{TESTS}/{file}")
            broken = self.broken[file]
            while True:
                with mutant.planted() as reached:
                    watch = watched(f"{TESTS}/{file}", *(f"--deselect={test}" for test in broken))
                if not watch.failed or not reached:
                    break
                if not watched(f"{TESTS}/{file}::{watch.failed.partition('::')[2]}").failed:
                    return watch.failed.removeprefix("tests/"), passed + watch.passed + 1, watch.said
                broken.append(watch.failed)
            passed += watch.passed
        return None


def near(file: str, mutant: Mutant) -> bool:
    """Whether a file of tests is named for a module of the fault."""
    name = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    places = [c.file if isinstance(c, planting.Rule) else c.place.partition(":")[0] for c in mutant.changes]
    return any(name in place.split(".") for place in places)


def watched(*words: str) -> Watch:
    """Tests by pytest, up to the first that fails; what it prints is dropped."""
    watch = Watch()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        pytest.main([*OPTIONS, *words], plugins=[watch])
    return watch


class Watch:
    """A plugin that counts, and keeps the first failure."""

    def __init__(self) -> None:
        self.passed, self.failed, self.said = 0, "", ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test."""
        if report.failed and not self.failed:
            self.failed = report.nodeid
            crash = getattr(report.longrepr, "reprcrash", None)
            self.said = str(crash.message if crash else report.longrepr).splitlines()[0]
        elif report.when == "call" and report.passed:
            self.passed += 1


def failure(check: Callable[[], object]) -> str:
    """What a check raises, in a line; "" where it passes."""
    try:
        check()
    except Exception as why:
        text = str(why).strip() or type(why).__name__
        return f"{type(why).__name__}: {text.splitlines()[0]}"
    return ""


VALUES = Killer("values", examples.values)
MESSAGES = Killer("messages", examples.messages)
PASSES = Killer("every pass", examples.every_pass)
RANDOM = Killer("random programs", examples.random_programs)
UNIT: dict[str, Units] = {where: Units(where) for where in UNITS}
# Kernels by what writes them, and the modules near to which they are.
KERNELS: tuple[tuple[Killer, tuple[str, ...]], ...] = (
    (Killer("maps", kernels.by_maps), ("emit.maps",)),
    (Killer("rows", kernels.by_rows), ("emit.rows",)),
    (Killer("columns", kernels.by_columns), ("emit.columns", "emit.reductions", "emit.partials", "emit.strips", "emit.fetching", "emit.code")),
    (Killer("general kernels", kernels.by_general), ("emit.team", "emit.program", "emit.prelude", "ops")),
    (Killer("chosen kernels", kernels.as_chosen), ()),
    (Killer("products by threads", kernels.by_threads), ("emit.matrix.threads", "emit.matrix.finish")),
    (Killer("products by warps", kernels.by_warps), ("emit.matrix.warps", "emit.matrix.split")),
    (Killer("products by warpgroups", kernels.by_warpgroups),
     ("emit.matrix.warpgroup", "emit.matrix.results", "emit.matrix.finish")),
)  # fmt: skip
ORDER: dict[str, tuple[Killer, ...]] = {
    "front end": (MESSAGES, VALUES, PASSES, UNIT["front end"]),
    "pass": (PASSES, RANDOM, UNIT["pass"]),
    "runtime": (UNIT["runtime"],),
}


def order(mutant: Mutant) -> tuple[Killer, ...]:
    """The checks in the order in which they are asked: those of the fault's own module first."""
    place = next((c.place for c in mutant.changes if not isinstance(c, planting.Rule)), "")
    rest = ORDER.get(mutant.where)
    if place.startswith("passes.dce"):
        rest = (UNIT["dead code"], *ORDER["pass"])
    if rest is None:
        near = sorted(KERNELS, key=lambda k: not place.startswith(k[1]))
        rest = (*(k for k, _ in near), UNIT[mutant.where])
    first = place.startswith(PARTS)
    return tuple(sorted(rest, key=lambda k: not isinstance(k, Units))) if first else rest


def kill(mutant: Mutant) -> Found | None:
    """The first check that finds a planted fault, after how many examples (that one included) and seconds, and what it said;
    None where all pass."""
    asked = order(mutant)
    began, before = time.perf_counter(), sum(k.seconds for k in asked)
    passed = 0
    engine_usable = engine.usable
    engine.usable = lambda ordinal=0: "planted faults run on the CPU"
    try:
        for killer in asked:
            found = killer.kills(mutant)
            if found is not None:
                prepared = sum(k.seconds for k in asked) - before
                by, after, said = found
                seconds = round(time.perf_counter() - began - prepared, 2)
                return {"by": by, "after": passed + after, "seconds": seconds, "said": said}
            passed += len(killer.found)
    finally:
        engine.usable = engine_usable
        planting.forget()
    return None
