"""Tiles by timing: the best few of the model's, each compiled and run on the data at hand, in turns.

Each kernel is timed by itself, as a program of one kernel that starts from what the others left. The model's tile stays
unless another is faster by more than the times scatter.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse import driver
from loopfuse.accelerated import fetched
from loopfuse.backends import reference
from loopfuse.backends.reference import Bounded, agrees
from loopfuse.bench.measuring import Subject
from loopfuse.cuda import bound as bound_calls
from loopfuse.cuda import engine, timing
from loopfuse.cuda.arrays import to_device
from loopfuse.cuda.compile import compile_program, complaints, in_threads
from loopfuse.cuda.program import Loaded
from loopfuse.diag import MachineError, UserError
from loopfuse.dtypes import of_numpy
from loopfuse.emit.code import Chosen, Code
from loopfuse.emit.program import emit, offers
from loopfuse.generate import Array
from loopfuse.ir import Kernel, Program
from loopfuse.lock import Entry, Hears, Section, lock_path, read_lock, section_name, write_lock
from loopfuse.printer import print_program
from loopfuse.views.lines import defined
from loopfuse.walking import free_names

TUNING = "tuning times kernels on a GPU"
MOST, MOST_OTHERS = 6, 2  # tiles that are timed: of the way that the model takes, and of the next one
BUDGET = 0.6  # seconds of calls for a kernel
LEAST_GAIN = 0.01  # of the model's time
CHEAP = 1 << 25  # operations of products up to which the reference computes the results as well
FEW, NEAR = 0.01, 0.02  # of elements, and of the root mean square, by which results of two tiles may differ otherwise
MATRIX = ("wgmma", "mma.sync")  # ways that may be compared; the ordinary units are far behind them


@dataclass(frozen=True, slots=True)
class Timed:
    """A tile and its seconds; `problem`: why it was left out, "" where it was not."""

    tile: str
    samples: tuple[float, ...] = ()
    problem: str = ""

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for a kernel: `timed` tiles, the model's first, and which of them is `best`; `left` were not timed.
    `of`: the arrays that it computes; `sizes`: those of the script. `problem`: why nothing was found."""

    kernel: str
    digest: str
    of: str
    sizes: str
    timed: tuple[Timed, ...] = ()
    best: int = 0
    left: tuple[Timed, ...] = ()
    problem: str = ""

    @property
    def entry(self) -> Entry:
        """The line of a lock file."""
        best, model = self.timed[self.best], self.timed[0]
        return Entry(best.tile, _us(best), model.tile, _us(model), f"{self.kernel}: {self.of}", self.sizes)


def _us(timed: Timed) -> float:
    return float(f"{timed.seconds * 1e6:.4g}")


def best_of(samples: Sequence[Sequence[float]]) -> int:
    """Which of several calls, timed in turns, is to be taken: the first, unless the least median beats it by more than one in
    a hundred and than the distance of the quartiles of either."""
    medians = [statistics.median(s) for s in samples]
    best = min(range(len(samples)), key=lambda k: (medians[k], k))
    scatter = max(timing.spread(samples[0]), timing.spread(samples[best]), LEAST_GAIN * medians[0])
    return best if medians[0] - medians[best] > scatter else 0


def sizes_text(subject: Subject) -> str:
    """The sizes of a script as entries have them."""
    return " ".join(f"{n}={v}" for n, v in sorted(subject.bound.sizes.items()))


# -- which are left of what was there ----------------------------------------------------------------------------------


def merged(old: Section, found: Sequence[Tuned], sizes: Collection[str]) -> tuple[Section, dict[str, Entry]]:
    """A section of a lock file with what was found for these sizes, and the entries that go: of kernels that the script does
    not have any more, as far as that can be told. An entry of other sizes stays while the script has sizes of these names."""
    tuned = {t.digest for t in found}
    names = {_names(text) for text in sizes}
    gone = {digest: entry for digest, entry in old.items()
            if digest not in tuned and (entry.sizes in sizes or _names(entry.sizes) not in names)}  # fmt: skip
    kept = {digest: entry for digest, entry in old.items() if digest not in gone}
    return kept | {t.digest: t.entry for t in found if not t.problem}, gone


def keep(script: Path, found: Sequence[Tuned], sizes: Collection[str], heard: Hears) -> dict[str, Entry]:
    """Write what was found for these sizes to the lock file of a script; the entries that went. `heard` is told of what was
    wrong with the file before. Raises `UserError` LF0515."""
    path, device = lock_path(script), engine.open_engine().device
    before = read_lock(path, heard)  # only now: another process may have written it meanwhile
    sections = dict(before.sections) if before is not None else {}
    name = section_name(device.name, device.arch)
    sections[name], gone = merged(sections.get(name, {}), found, sizes)
    if before is not None or sections[name]:
        write_lock(path, sections)
    return gone


def _names(sizes: str) -> tuple[str, ...]:
    return tuple(part.partition("=")[0] for part in sizes.split())


# -- tuning -----------------------------------------------------------------------------------------------------------


def tune(subject: Subject, optimised: driver.Optimised | None = None, *, arrays: Mapping[str, Any] | None = None,
         known: Container[str] = ()) -> list[Tuned]:  # fmt: skip
    """Time the tiles of every kernel of a program that has a choice, on its data; `arrays` by buffer, where they are on the
    device. Those whose digests are `known` are left out.

    Raises `MachineError` where there is no GPU or no compiler, and whatever running the program raises.
    """
    try:
        gpu = engine.open_engine()
    except MachineError as why:
        raise engine.needed(TUNING, str(why)) from why
    optimised = optimised or subject.optimised(gpu.model)
    if unmet := optimised.unmet:
        raise UserError(unmet)
    program, sizes = optimised.program, subject.bound.sizes
    with driver.guard("cuda", lambda: print_program(program)):
        code = emit(program, sizes, gpu.model, dynamic=subject.dynamic)
        wanted = {c.digest: c for c in reversed(code.chosen) if c.digest not in known}  # of equal kernels the first
        singles = {d: single(program, c.kernel) for d, c in wanted.items()}
        values = _values(gpu, subject, optimised, {**subject.bound.inputs, **(arrays or {})}, singles.values())
        return [
            _Trial(gpu, subject, singles[c.digest], c, values).tuned() for c in code.chosen if wanted.get(c.digest) is c
        ]


def single(program: Program, id: str) -> Program:
    """The program of one kernel: what it reads of the others are inputs, what they read of it are outputs; of other arrays it
    knows nothing."""
    kernel = next(k for k in program.kernels if k.id == id)
    others = frozenset[str]().union(*(free_names(k.body).loads for k in program.kernels if k is not kernel))
    names = free_names(kernel.body)
    buffers = []
    for buffer in program.buffers:
        if buffer.id in names.stores:
            goes = buffer.role == "out" or buffer.id in others
            buffers.append(replace(buffer, role="out") if goes else buffer)
        elif buffer.id in names.loads:
            buffers.append(replace(buffer, role="in") if buffer.role in ("temp", "out") else buffer)
    return replace(program, kernels=(kernel,), buffers=tuple(buffers))


def _values(gpu: engine.Engine, subject: Subject, optimised: driver.Optimised, arrays: Mapping[str, Any],
            singles: Iterable[Program]) -> dict[str, Any]:  # fmt: skip
    """What the kernels read, by buffer: on the device, but for params. What other kernels compute is computed."""
    program = optimised.program
    read = {b.id for p in singles for b in p.buffers if b.role in ("in", "frozen", "param")}
    roles = {b.id: b.role for b in program.buffers}
    made = {id for id in read if roles[id] in ("temp", "out")}
    given = {id: arrays[id] for id in roles if id in arrays} | optimised.frozen
    given = {id: to_device(gpu.device, a) if isinstance(a, np.ndarray) and roles[id] != "param" else a
             for id, a in given.items() if id in read or made}  # fmt: skip
    if made:
        shown = tuple(replace(b, role="out") if b.id in made else b for b in program.buffers)
        loaded = gpu.load(replace(program, buffers=shown), subject.bound.sizes, dynamic=subject.dynamic)
        try:
            inputs, params = engine.split(program, given)
            given |= {id: a for id, a in loaded.call(inputs, params, subject.bound.sizes).items() if id in made}
        finally:
            loaded.close()
    return given


class _Trial:
    """The tiles of one kernel, on trial."""

    def __init__(self, gpu: engine.Engine, subject: Subject, program: Program, chosen: Chosen,
                 values: Mapping[str, Any]) -> None:  # fmt: skip
        self.gpu, self.subject, self.program, self.chosen = gpu, subject, program, chosen
        self.sizes = subject.bound.sizes
        self.inputs, self.params = engine.split(program, values_as(program, values))
        self.left: list[Timed] = []
        self.opened: list[tuple[str, Loaded, bound_calls.Bound]] = []

    def tuned(self) -> Tuned:
        """What came out."""
        kernel: Kernel = self.program.kernels[0]
        made = Tuned(kernel.id, self.chosen.digest, ", ".join(defined(kernel)), sizes_text(self.subject))
        try:
            problem = self.open()
            if problem:
                return replace(made, problem=problem)
            samples = timing.time_in_turns(self.gpu.device, [call for _, _, call in self.opened], budget=BUDGET)
        finally:
            for _, loaded, call in self.opened:
                call.close()
                loaded.close()
        timed = tuple(Timed(tile, s) for (tile, _, _), s in zip(self.opened, samples, strict=True))
        return replace(made, timed=timed, best=best_of(samples), left=tuple(self.left))

    def open(self) -> str:
        """Compile the model's tile and the others, load them, and hold their results against one another; why the kernel
        cannot be tuned, if so."""
        base = engine.make(self.program, self.sizes, self.gpu.model, self.gpu.device.arch, dynamic=self.subject.dynamic,
                           cache=self.gpu.cache)  # fmt: skip
        if not base.code.chosen:
            return "the compiler has no registers for any tile"
        model = base.code.chosen[0].tile
        first = self.load(model, base.code, base.binaries)
        expected = self.results(first)
        bounds = self.bounds(base.code)
        if any(agrees(bounds[id], a) is not None for id, a in expected.items() if id in bounds):
            return "its results are not those of the reference, whatever the tile"
        for tile, code, binaries in self.compiled(model):
            call = self.load(tile, code, binaries, first)
            results = self.results(call)
            if any(differs(a, expected[id], bounds.get(id)) for id, a in results.items()):
                _, loaded, _ = self.opened.pop()
                call.close()
                loaded.close()
                self.left.append(Timed(tile, problem="its results differ: a bug in loopfuse"))
        return ""

    def compiled(self, model: str) -> list[tuple[str, Code, tuple[Any, ...]]]:
        """The other tiles that fit: code and machine code of each."""
        codes = self.candidates(model)
        fast = self.program.numerics == "fast"
        binaries = in_threads(
            lambda code: tuple(compile_program(code, self.gpu.device.arch, cache=self.gpu.cache, fast=fast)),
            list(codes.values()),
        )
        found = []
        for (tile, code), made in zip(codes.items(), binaries, strict=True):
            if bad := complaints(code, made):
                self.left.append(Timed(tile, problem=next(iter(bad.values()))))
            else:
                found.append((tile, code, made))
        return found

    def candidates(self, model: str) -> dict[str, Code]:
        """The code of the best few tiles by the model, and of the best of the next way."""
        names = offers(self.program, self.sizes, self.gpu.model, dynamic=self.subject.dynamic)[self.chosen.digest]
        way = model.split()[0]
        room = {way: MOST - 1} | ({"mma.sync": MOST_OTHERS} if way == "wgmma" else {})
        found: dict[str, Code] = {}
        for name in names:
            kind = name.split()[0]
            if name == model or room.get(kind, 0) <= 0:
                continue
            code = emit(self.program, self.sizes, self.gpu.model, dynamic=self.subject.dynamic,
                        tiles={self.chosen.digest: name})  # fmt: skip
            if code.chosen and code.chosen[0].tile == name:
                found[name] = code
                room[kind] -= 1
        return found

    def load(self, tile: str, code: Code, binaries: Sequence[Any], first: bound_calls.Bound | None = None,
             ) -> bound_calls.Bound:  # fmt: skip
        """A bound call; all write the outputs of the first."""
        loaded = Loaded(self.gpu.device, code, binaries, self.program.buffers)
        inputs = {id: self.inputs[id] for id in code.inputs}
        call = bound_calls.bind(loaded, inputs, self.params, self.sizes, first.outputs if first is not None else None)
        self.opened.append((tile, loaded, call))
        return call

    def results(self, call: bound_calls.Bound) -> dict[str, Array]:
        """What a call computes, in host memory. Nothing of what the last one wrote is left, so that what this one leaves out
        is seen."""
        with self.gpu.device.active("tuning") as driver_:
            for array in call.outputs.values():
                driver_.fill(array.pointer, 0xFF, array.nbytes, array.stream)
        return {id: _host(a) for id, a in call().items()}

    def bounds(self, code: Code) -> dict[str, Bounded]:
        """The results by the reference with their bounds, where that is cheap."""
        if sum(k.tiling.operations for k in code.kernels if k.tiling is not None) > CHEAP:
            return {}
        inputs = {id: _host(a) for id, a in self.inputs.items()} | self.params
        sizes = driver.plan_sizes(self.program) | self.sizes
        return reference.run_bounded(self.program, inputs, sizes)


def values_as(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a program starts from."""
    return {b.id: values[b.id] for b in program.buffers if b.role in ("in", "frozen", "param")}


def _host(array: Any) -> Array:
    return array if isinstance(array, np.ndarray) else fetched(array)


def differs(found: Array, expected: Array, bound: Bounded | None) -> bool:
    """Whether results by another tile are wrong: outside the bound of the reference; where there is none, in more than a few
    elements far from the model's tile's. Rounding alone may decide single elements, such as the place of a maximum."""
    if bound is not None:
        return agrees(bound, found) is not None
    same = found == expected
    dtype = of_numpy(found.dtype)
    if dtype is not None and dtype.is_float:
        with np.errstate(all="ignore"):
            a, b = found.astype(np.float64), expected.astype(np.float64)
            finite = np.isfinite(b)
            scale = float(np.sqrt(np.mean(np.square(b[finite])))) if finite.any() else 0.0
            same = same | (np.abs(a - b) <= NEAR * scale) | (np.isnan(a) & np.isnan(b))
    return bool(np.count_nonzero(~same) > FEW * same.size)
