"""The Python API: scripts as objects that describe themselves and can be called on arrays.

prog = lf.parse("input x: f32[N]  output y = tanh(x) * 2")
prog.outputs                      # (f32[N] y,)
y = prog.compile()(x)             # or lf.run(source, x=x)
print(prog.lower().as_text())     # the loop IR
print(prog.lower().diff("lower", "fuse"))
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse import driver, implied
from loopfuse.accelerated import Accelerated, BoundCall, is_on_device, outputs_given, stand_ins
from loopfuse.accelerated import Given as DeviceGiven
from loopfuse.bench.measuring import Subject
from loopfuse.bench.tuning import Tuned, keep, sizes_text, tune
from loopfuse.bind import Bound, Given, show_type
from loopfuse.checking import CheckResult, check_options, compared, inputs_named
from loopfuse.decisions import Decision
from loopfuse.diag import Diagnostic, Source, UserError, error, render
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.ir import Program as IR
from loopfuse.keeping import keep_few
from loopfuse.lock import Lock, lock_path, read_lock
from loopfuse.passes import Options, Remark, selection
from loopfuse.printer import print_program
from loopfuse.requires import require_text
from loopfuse.results import Result, result
from loopfuse.tolerance import Tolerance
from loopfuse.views.diff import diff, text


@dataclass(frozen=True, slots=True)
class Signature:
    """A line of a program's signature: `name`, its `type` as the language writes it, and its default, if any."""

    name: str
    type: str
    default: object = None

    def __str__(self) -> str:
        shown = f" = {self.default}" if self.default is not None else ""
        return f"{self.name}: {self.type}{shown}"

    __repr__ = __str__


class Program:
    """A checked script. Printing it shows its signature; calling it runs it."""

    def __init__(self, checked: driver.Checked, base: Path, path: Path | None = None) -> None:
        self._checked, self._base, self._path = checked, base, path

    @property
    def name(self) -> str:
        """The name of the program."""
        return self._typed.name

    @property
    def _typed(self) -> TypedProgram:
        return self._checked.typed

    @property
    def source(self) -> str:
        """The text of the script."""
        return self._checked.source.text

    @property
    def inputs(self) -> tuple[Signature, ...]:
        """The inputs with their types; the default is the file named by `from`."""
        buffers = {b.id: b for b in self._typed.buffers}
        return tuple(Signature(i.name, show_type(buffers[i.buffer]), i.default) for i in self._typed.inputs)

    @property
    def outputs(self) -> tuple[Signature, ...]:
        """The outputs with their types, in order; the default is the file named by `to`."""
        buffers = {b.id: b for b in self._typed.buffers}
        return tuple(Signature(o.name, show_type(buffers[o.buffer]), o.to) for o in self._typed.outputs)

    @property
    def params(self) -> tuple[Signature, ...]:
        """The params with their types and defaults."""
        return tuple(Signature(p.name, str(p.dtype), p.default) for p in self._typed.params)

    @property
    def dims(self) -> tuple[str, ...]:
        """The sizes that the inputs settle."""
        return tuple(s.id for s in self._typed.sizes if s.origin == "shape")

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes fixed when the script was parsed."""
        return {s.id: s.value for s in self._typed.sizes if s.origin == "compile" and s.value is not None}

    @property
    def requires(self) -> tuple[str, ...]:
        """The requirements on sizes and params, written and implied."""
        return tuple(require_text(r) + (" (implied)" if r.implied else "") for r in self._typed.requires)

    @property
    def remarks(self) -> tuple[Diagnostic, ...]:
        """Warnings and remarks of the checker."""
        return self._checked.remarks

    def lower(self) -> Lowered:
        """The program as loop IR."""
        return Lowered(self, driver.lower_program(self._typed))

    def compile(self, *, passes: str = "default", freeze: Sequence[str] = (), dynamic: bool = False,
                lock: bool = True) -> Compiled:  # fmt: skip
        """The program as a function of arrays.

        `passes` as for `--passes`; `freeze` names inputs whose first arrays are taken to be constant; `dynamic`: one set
        of kernels for all extents; `lock`: whether the lock file of a script counts (see `Compiled.tune`).
        """
        return Compiled(self.lower(), passes, freeze, dynamic, lock)

    def __call__(self, *arrays: object, **named: object) -> Result:
        """Run on arrays; see `Compiled.__call__`."""
        return self.compile()(*arrays, **named)

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        for kind, entries in (("input", self.inputs), ("param", self.params), ("output", self.outputs)):
            lines += [f"  {kind} {entry}" for entry in entries]
        lines += [f"  size {name} = {value}" for name, value in self.sizes.items()]
        return "\n".join([*lines, *(f"  require {r}" for r in self.requires)])

    def __repr__(self) -> str:
        given = ", ".join(e.name for e in (*self.inputs, *self.params))
        return f"<loopfuse.Program {self.name}({given}) -> {', '.join(o.name for o in self.outputs)}>"


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What a pass did: the programs before and after it, what it said and decided, and the seconds that it took."""

    name: str
    changed: bool
    before: IR
    after: IR
    remarks: tuple[Remark, ...]
    decisions: tuple[Decision, ...]
    seconds: float


class Lowered:
    """A program as loop IR, as it was lowered, and after each pass."""

    def __init__(self, program: Program, lowered: driver.Lowered, passes: str = "default",
                 options: Options | None = None) -> None:  # fmt: skip
        self.program, self._lowered = program, lowered
        self._passes, self._options = passes, options

    @property
    def ir(self) -> IR:
        """The program as it was lowered, as a data structure."""
        return self._lowered.program

    def optimise(self, passes: str = "default", *, dims: Mapping[str, int] | None = None,
                 specialise: Mapping[str, int] | None = None, options: Options | None = None) -> Lowered:  # fmt: skip
        """The same program with other passes chosen.

        `dims` are sizes that decisions are made for, `specialise` sizes that are substituted. Raises `lf.Error` where
        there is no such pass or size.
        """
        chosen = options or Options(sizes=_integers("dims", dims), specialise=_integers("specialise", specialise))
        selection(passes)
        open_ = [s.id for s in self._lowered.program.sizes if s.value is None]
        for name in (*chosen.sizes, *chosen.specialise):
            if name not in open_ and options is None:
                raise UserError(
                    error(
                        "LF0502",
                        f"the program has no open size `{name}`",
                        notes=[f"there are {', '.join(open_) or 'none'}"],
                    )
                )
        return Lowered(self.program, self._lowered, passes, chosen)

    @cached_property
    def _optimised(self) -> driver.Optimised:
        return driver.optimise(self._lowered, self._options, self._passes)

    @property
    def passes(self) -> Sequence[PassRecord]:
        """What each pass did, in order."""
        found: list[PassRecord] = []
        before = self.ir
        for s in self._optimised.stages:
            found.append(PassRecord(s.name, s.changed, before, s.program, s.remarks, s.decisions, s.seconds))
            before = s.program
        return tuple(found)

    def after(self, stage: str | int | None = None) -> IR:
        """The program after a pass (by name or place); None or `lower`: as it was lowered; `last`: after all."""
        return self._until(stage).program

    def _until(self, stage: str | int | None) -> driver.Optimised:
        if stage is None or stage == "lower":
            return driver.Optimised(self._lowered, ())
        stages = self._optimised.stages
        if stage == "last":
            return self._optimised
        names = [s.name for s in stages]
        if isinstance(stage, str) and stage not in names:
            selection(stage)  # no pass at all, or one that did not run
            raise UserError(error("LF0821", f"the pass `{stage}` did not run",
                              notes=[f"those that did are {', '.join(names)}"]))  # fmt: skip
        return driver.Optimised(self._lowered, stages[: (names.index(stage) if isinstance(stage, str) else stage) + 1])

    def as_text(self, after: str | int | None = None, gutter: bool = False) -> str:
        """The IR as text that reads back, after a pass; with `gutter` each line ends with its line in the script."""
        return print_program(self.after(after), gutter=gutter)

    def diff(self, a: str | int | None = "lower", b: str | int | None = "last") -> str:
        """The difference between two stages."""
        return text(diff(self.after(a), self.after(b)))

    def explain(self) -> list[Remark | Decision]:
        """What the passes say and decided, in order."""
        found: list[Remark | Decision] = []
        for stage in self._optimised.stages:
            found += (*stage.remarks, *stage.decisions)
        return found

    def interpret(self, *arrays: object, at: str | int | None = None, **named: object) -> Result:
        """Run on the NumPy reference interpreter, after a pass; arguments as of `Compiled.__call__`."""
        program = self._until(at)
        call = _call(self._lowered.typed, self.program._base, arrays, {**named, "backend": "reference"})
        return result(driver.execute(program, call.bound, backend="reference", limit=call.limit).outputs)

    def __repr__(self) -> str:
        return f"<loopfuse.Lowered {self.program.name}: {len(self.ir.kernels)} kernels>"


class Compiled:
    """A program as a function of arrays. It is optimised, and for a GPU compiled, for each set of extents on their
    first use; with `dynamic` the kernels are compiled once, for all extents."""

    MOST = 32  # sets of extents that are kept

    def __init__(self, lowered: Lowered, passes: str = "default", freeze: Sequence[str] = (),
                 dynamic: bool = False, lock: bool = True) -> None:  # fmt: skip
        selection(passes)
        self.lowered, self._passes, self._freeze, self._dynamic = lowered, passes, tuple(freeze), dynamic
        self._known: dict[tuple[int, ...], driver.Optimised] = {}
        path = lowered.program._path
        self._open(read_lock(lock_path(path), _warn) if lock and path is not None else None)

    def _open(self, lock: Lock | None) -> None:
        self._accelerated = Accelerated(self.lowered._lowered, self._passes, self._freeze, self._dynamic, lock=lock)

    @property
    def program(self) -> Program:
        """The program that was compiled."""
        return self.lowered.program

    def __call__(self, *arrays: object, **named: object) -> Result:
        """Run on inputs in order or by name, params by name. One output gives an array, several a `Record`.

        Inputs named by `from` may be left out. Data must have the declared types: nothing is converted. Arrays may be
        NumPy's, or lie on the GPU in any library that speaks DLPack or the CUDA array interface; results are of the
        device where an input is, and come back before the device is done. These names are options, unless the script
        declares them: `dims` (a mapping, sizes that no input settles), `limit` (bytes that may be allocated),
        `backend` (`auto`, `cuda` or `reference`), `out` (an array, or a mapping by output, to write to) and `stream`.
        Raises `lf.Error` for what is wrong with data, `lf.MachineError` for a back end that is absent.
        """
        call = _call(self.lowered._lowered.typed, self.program._base, arrays, named)
        if call.backend == "cuda":
            return result(self._accelerated.call(call.bound, call.given, self._optimised))
        found = driver.execute(self._optimised(call.bound), call.bound, backend="reference", limit=call.limit).outputs
        return result(call.into(found))

    def bind(self, *arrays: object, **named: object) -> BoundCall:
        """Settle all of a call but its time: `f = p.bind(x, y, out=z)`, then `f()` as often as wanted.

        Arguments as of a call; NumPy inputs are copied to the device now. Every call writes the same outputs.
        """
        call = _call(self.lowered._lowered.typed, self.program._base, arrays, {"backend": "cuda", **named})
        return self._accelerated.bind(call.bound, replace(call.given, bound=True), self._optimised)

    def tune(self, *arrays: object, **named: object) -> Sequence[Tuned]:
        """Time tiles of the matrix products on these arrays, and use the best from now on: they are kept in `script.lf.lock`
        next to the script, where later programs find them. Gives what was found, a kernel each.

        Arguments as of a call. Raises `lf.Error` for a program that is no file's, `lf.MachineError` without a GPU.
        """
        path = self.program._path
        if path is None:
            raise UserError(error("LF0515", "the lock file stands next to the script, and this program is a text",
                                  fix='lf.compile(Path("s.lf"))'))  # fmt: skip
        call = _call(self.lowered._lowered.typed, self.program._base, arrays, {**named, "backend": "cuda"})
        subject = Subject(
            path.name, self.lowered._lowered, call.bound, self._passes, freeze=self._freeze, dynamic=self._dynamic
        )
        found = tune(subject, self._optimised(call.bound), arrays=call.given.arrays)
        keep(path, found, [sizes_text(subject)], _warn)
        self._open(read_lock(lock_path(path), _warn))
        return found

    @property
    def specialisations(self) -> tuple[str, ...]:
        """For what extents kernels were made so far, and why."""
        return tuple(map(str, self._accelerated.signatures))

    def _optimised(self, bound: Bound) -> driver.Optimised:
        """The program optimised for the extents of these inputs."""
        typed = self.lowered._lowered.typed
        key = tuple(bound.sizes[s.id] for s in typed.sizes if s.origin != "param")
        found = self._known.get(key)
        if found is None:
            options = Options(sizes=bound.sizes, frozen=driver.frozen_arrays(typed, bound, self._freeze))
            found = driver.optimise(self.lowered._lowered, options, self._passes)
            keep_few(self._known, key, found, self.MOST)
        return found

    def __repr__(self) -> str:
        return f"<loopfuse.Compiled {self.program.name}>"


# -- short forms ------------------------------------------------------------------------------------------------------


def parse(source: str | Path, *, name: str | None = None, sizes: Mapping[str, int] | None = None) -> Program:
    """Check a script: text, or a `Path` to a file. `sizes` replaces values of its `size` statements.

    Raises `lf.Error` with every error of the script.
    """
    if isinstance(source, Path):
        text = driver.read_source(source)
        text, base, path = Source(name or text.name, text.text), source.parent, source
    elif isinstance(source, str):
        _refuse_file_name(source)
        text, base, path = Source(name or "<string>", source), Path(), None
    else:
        raise TypeError(f"a script is a str or a Path, not {type(source).__name__}")
    return Program(driver.compile_source(text, sizes=_integers("sizes", sizes), search=base), base, path)


def _warn(found: Diagnostic) -> None:
    """What is wrong with a lock file, to whoever hears Python's warnings: the program runs without it."""
    warnings.warn(render(found), stacklevel=4)


def _integers(what: str, given: object) -> dict[str, int]:
    """An option that gives integers by name."""
    try:
        if isinstance(given, Mapping):
            return {str(name): index(value) for name, value in given.items()}
    except TypeError:
        pass
    if given is None:
        return {}
    raise TypeError(f"{what} is a mapping from names to integers, as in {what}={{'N': 4}}, not {given!r}")


def _refuse_file_name(text: str) -> None:
    if re.fullmatch(r"\S+\.lf", text):
        raise UserError(error("LF0510", f"`{text}` is a file name, not a script", fix=f'Path("{text}")'))


def compile(source: str | Path, *, name: str | None = None, sizes: Mapping[str, int] | None = None,
            passes: str = "default", freeze: Sequence[str] = (), dynamic: bool = False,
            lock: bool = True) -> Compiled:  # fmt: skip
    """Check a script and lower it, ready to be called on arrays. The other options are those of `Program.compile`."""
    return parse(source, name=name, sizes=sizes).compile(passes=passes, freeze=freeze, dynamic=dynamic, lock=lock)


def check(program: Program | str | Path, inputs: Mapping[str, object] | None = None, *, rtol: float | None = None,
          atol: float | None = None, ulp: float | None = None, every_pass: bool = False,
          backends: Sequence[str] = ("reference",), passes: str = "default", dims: Mapping[str, int] | None = None,
          seed: int = 0) -> CheckResult:  # fmt: skip
    """Compare the results of the optimised program with those of the program as it was lowered.

    `inputs` are arrays by name, params among them; the others are made up. With `every_pass` the program is run after
    each pass. `backends` run it: `reference`, `cuda`. Results must be the same bits where nothing rounds, else within
    the derived bound; `rtol`, `atol` and `ulp` take the place of both (see `Tolerance`). The script's own `check`
    statements are not evaluated: `loopfuse check` does that. Raises `lf.Error` for what is wrong with the script or the data, `lf.MachineError` for a back end that is absent.
    """
    for name, value in (("rtol", rtol), ("atol", atol), ("ulp", ulp)):
        if value is not None and not (isinstance(value, int | float) and value >= 0):
            raise UserError(
                error("LF0502", f"`{name}` is {value!r}", fix="a number of at least 0, or None: the derived bound")
            )
    given = inputs_named(inputs)
    check_options(passes, backends, seed)
    prog = program if isinstance(program, Program) else parse(program)
    typed = prog._typed
    names = {p.name for p in typed.params}
    values = {n: v for n, v in given.items() if n in names}
    data = {**driver.read_inputs(typed, {}, prog._base, skip=given), **given}
    data = {n: v for n, v in data.items() if n not in names}
    bound = driver.bind_program(typed, Given(data, values, _integers("dims", dims), seed, fill=True))
    lowered = driver.lower_program(typed)
    with driver.guard("check"):
        return compared(lowered, bound, selection(passes), every_pass, Tolerance(rtol, atol, ulp), backends)


def run(source: str | Path, /, *arrays: object, **named: object) -> Result:
    """Run a script once: `lf.run("output y = a @ b + c", a=a, b=b, c=c)`.

    Arrays whose names the script does not declare are declared for it, with their own types and extents.
    """
    if not isinstance(source, str) or arrays:
        return parse(source).compile()(*arrays, **named)
    _refuse_file_name(source)
    script = Source("<string>", source)
    prefix = implied.declarations(script, named)
    with implied.told_of(script, prefix):
        return parse(prefix + source).compile()(**named)


OPTIONS: dict[str, Any] = {"dims": None, "limit": None, "backend": "auto", "out": None, "stream": None}


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call: bound, and what of them is for the device."""

    bound: Bound
    given: DeviceGiven
    backend: str
    limit: int | None

    def into(self, found: dict[str, Array]) -> dict[str, Array]:
        """The results, written to the arrays of `out` where there are any."""
        for name, array in self.given.out.items():
            if (
                not isinstance(array, np.ndarray)
                or array.shape != found[name].shape
                or array.dtype != found[name].dtype
            ):
                raise UserError(error("LF0502", f"`out` for `{name}` must be an array of NumPy's, "
                                      f"{found[name].dtype}{list(found[name].shape)}"))  # fmt: skip
            if any(np.shares_memory(array, given) for given in self.bound.inputs.values()):
                raise UserError(error("LF0520", f"`out` for `{name}` lies where an input does"))
            array[...] = found[name]
            found[name] = array
        return found


def _call(typed: TypedProgram, base: Path, arrays: tuple[object, ...], named: Mapping[str, object]) -> _Call:
    """Bind the arguments of a call and take the options from among them."""
    names = [i.name for i in typed.inputs]
    params = {p.name for p in typed.params}
    free = OPTIONS.keys() - params - set(names)
    options = OPTIONS | {n: v for n, v in named.items() if n in free}
    if len(arrays) > len(names):
        raise UserError(error("LF0502", f"{len(arrays)} arrays were given, and the inputs are: {', '.join(names)}"))
    given = dict(zip(names, arrays, strict=False))
    twice = given.keys() & named.keys()
    if twice:
        raise UserError(error("LF0502", f"the input `{min(twice)}` is given twice, in order and by name"))
    given |= {n: v for n, v in named.items() if n not in params | free}
    data = {**driver.read_inputs(typed, {}, base, skip=given), **given}
    values = {n: v for n, v in named.items() if n in params}
    dims, limit = _integers("dims", options["dims"]), options["limit"]
    if not isinstance(limit, int | None):
        raise TypeError(f"limit is a number of bytes, not {limit!r}")
    out = outputs_given(typed, options["out"])
    held = any(map(is_on_device, (*data.values(), *out.values())))
    backend = options["backend"] if not held or options["backend"] != "auto" else "cuda"
    backend = driver.chosen_backend(backend)
    kept: dict[str, Any] = {}
    if backend == "cuda":
        data, kept = stand_ins(typed, data)
    bound = driver.bind_program(typed, Given(data, values, dims, limit=limit))
    return _Call(bound, DeviceGiven(kept, out, options["stream"]), backend, limit)
