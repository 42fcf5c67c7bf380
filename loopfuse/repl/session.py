"""A session: a script that grows by what is typed, data for its inputs, and the values of expressions.

Every line is checked as a part of the whole script, so that its errors are those of the compiler; what is refused
changes nothing. A definition computes nothing: values are computed when they are asked for.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopfuse import driver
from loopfuse.bind import Bound, Given, show_type
from loopfuse.devices import H200, Device
from loopfuse.diag import Diagnostic, Source, UserError, error
from loopfuse.dtypes import of_numpy
from loopfuse.files import Place
from loopfuse.frontend.lexemes import STARTERS, scan
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array, parse_number
from loopfuse.passes import Options
from loopfuse.repl.parts import Part, join, moved, same_place, split, whole

PROBE = "nothing__"  # an output for scripts that have none yet
VALUE = "value__"  # the output that an expression is the value of
NAME = "<session>"


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression came to. `made` are the inputs whose data was made up, with the sizes they had."""

    array: Array
    seconds: float
    made: tuple[str, ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Added:
    """What a statement defined: each name with its type, and what the checker remarked. `replaced`: in another's place."""

    names: tuple[tuple[str, str], ...]
    remarks: tuple[Diagnostic, ...]
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """The session's script after passes; `asked` names what it computes."""

    optimised: driver.Optimised
    asked: tuple[str, ...]
    known: Mapping[str, int]

    @property
    def typed(self) -> TypedProgram:
        """The checked script."""
        return self.optimised.typed


@dataclass
class Session:
    """The state. `data` and `params` are as written after `:set`; `arrays` hold values of `_` that statements use."""

    parts: list[Part] = field(default_factory=list)
    path: Path | None = None
    dims: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    last: Array | None = None
    passes: str = "default"
    device: Device = H200
    backend: str = "auto"
    seed: int = 0
    lines: list[str] = field(default_factory=list)
    told: tuple[object, ...] = ()  # the made-up data that was last told of
    _settled: dict[str, int] = field(default_factory=dict)
    _cache: tuple[object, Compiled] | None = None

    # -- the script ---------------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The script."""
        return join(self.parts)

    @property
    def name(self) -> str:
        """What the script is called in messages."""
        return str(self.path) if self.path is not None else NAME

    @property
    def base(self) -> Path:
        """The folder that file names in the script are relative to."""
        return self.path.parent if self.path is not None else Path()

    def load(self, source: Source, path: Path | None) -> driver.Checked:
        """Take a text in place of the session's script. Raises `UserError`, and changes nothing, where it has errors."""
        parts = split(source)
        trial = replace(self, parts=parts, path=path, _cache=None)
        checked = trial._check(trial.text)
        self.parts, self.path, self._cache = parts, path, None
        self.arrays = {n: a for n, a in self.arrays.items() if any(n in p.names for p in parts)}
        self._settled = {}
        return checked

    def add(self, text: str) -> Added:
        """Add statements. One that may not be there twice takes the place of the former one. Raises `UserError`, and
        changes nothing, where the script is not in order then."""
        text, arrays = self._with_last(text)
        source = Source("<input>", text)
        new = [whole(p) for p in split(source)]
        declared = "".join(f"input {n}: {_declared(a)}\n" for n, a in arrays.items())
        parts = [*self.parts[:-1], whole(self.parts[-1])] if self.parts else []
        parts += split(Source("<input>", declared)) if declared else []
        place = same_place(parts, new[0]) if len(new) == 1 and new[0].kind != "let" else None
        if place is None:
            begin, end = len(join(parts)), None
            parts += new
        else:
            begin = len(join(parts[:place]) + parts[place].lead) - len(new[0].lead)
            end = begin + len(text)
            parts[place] = replace(parts[place], body=new[0].body, names=new[0].names)
        with self._about(source, begin, end):
            checked = self._check(join(parts))
        self.parts, self._cache = parts, None
        self.arrays |= arrays
        remarks = [d for d in checked.remarks if d.primary and begin <= d.primary.start < (end or begin + len(text))]
        names = dict.fromkeys(n for p in new for n in p.names)
        return Added(tuple((n, self._type(checked.typed, n)) for n in names),
                     tuple(moved(remarks, self.name, begin, source, end)), place is not None)  # fmt: skip

    def _with_last(self, text: str) -> tuple[str, dict[str, Array]]:
        """The text with `_` named, where it stands for the last value, and the array of that name."""
        places = [w for w in scan(text) if w.kind == "name" and w.text == "_"]
        if self.last is None or not places:
            return text, {}
        name = next(f"_{n}" for n in range(1, len(self.arrays) + 2) if f"_{n}" not in self.arrays)
        for word in reversed(places):
            text = text[: word.start] + name + text[word.end :]
        return text, {name: self.last}

    def _check(self, text: str, clock: driver.Clock | None = None) -> driver.Checked:
        """Check a script that may lack an output."""
        if not any(word.text == "output" for word in scan(text)):
            text += f"\noutput {PROBE} = 0\n"
        checked = driver.compile_source(Source(self.name, text), sizes=self.sizes, search=self.base, clock=clock)
        typed = checked.typed
        outputs = tuple(o for o in typed.outputs if o.name != PROBE)
        names = tuple((n, b) for n, b in typed.names if n != PROBE)
        return replace(checked, typed=replace(typed, outputs=outputs, names=names))

    @contextmanager
    def _about(self, source: Source, begin: int, end: int | None = None) -> Iterator[None]:
        """Errors in the block about places from `begin` to `end` are about `source`."""
        try:
            yield
        except UserError as why:
            raise UserError(moved(why.diagnostics, self.name, begin, source, end)) from None

    def _type(self, typed: TypedProgram, name: str) -> str:
        """What a name is: its type, or the word for what it is."""
        buffers = {b.id: b for b in typed.buffers}
        ids = {o.name: o.buffer for o in typed.outputs} | {i.name: i.buffer for i in typed.inputs} | dict(typed.names)
        if name in ids and ids[name] in buffers:
            return show_type(buffers[ids[name]])
        for size in typed.sizes:
            if size.id == name:
                return f"= {size.value}" if size.value is not None else "size"
        param = next((str(p.dtype) for p in typed.params if p.name == name), None)
        kind = next((p.kind for p in reversed(self.parts) if name in p.names), "")
        return param or (self.type_of(name) if kind == "let" else kind)

    def typed(self) -> TypedProgram:
        """The checked script. Raises `UserError` where nothing is defined."""
        return self._check(self.text).typed

    # -- values -------------------------------------------------------------------------------------------------------

    def evaluate(self, text: str, clock: driver.Clock | None = None) -> Value:
        """The value of an expression. Raises `UserError`."""
        typed, arrays = self._expression(text, clock)
        bound, made = self._bind(typed, arrays, clock)
        start = time.perf_counter()
        outcome = self._run(typed, bound, clock)
        value = outcome.outputs[VALUE]
        self.last = value
        sizes = {s.id: bound.sizes[s.id] for s in typed.sizes if s.origin == "shape"}
        return Value(value, time.perf_counter() - start, made, sizes)

    def type_of(self, text: str) -> str:
        """The type of an expression. Raises `UserError`."""
        typed, _ = self._expression(text)
        return self._type(typed, VALUE)

    def _expression(self, text: str, clock: driver.Clock | None = None) -> tuple[TypedProgram, dict[str, Array]]:
        """The script with the expression as its only output."""
        text, arrays = self._with_last(text)
        head = join([*self.parts[:-1], whole(self.parts[-1])]) if self.parts else ""
        head += "".join(f"input {n}: {_declared(a)}\n" for n, a in arrays.items()) + f"output {VALUE} = "
        with self._about(Source("<input>", text), len(head)):
            typed = self._check(head + text + "\n", clock).typed
        return replace(typed, outputs=tuple(o for o in typed.outputs if o.name == VALUE)), arrays

    def run(self, clock: driver.Clock | None = None) -> tuple[dict[str, Array], list[Diagnostic], Value]:
        """Run the whole script: outputs by name, checks that failed, and (as a value) what data there was."""
        typed = self._check(self.text, clock).typed
        bound, made = self._bind(typed, {}, clock)
        start = time.perf_counter()
        outcome = self._run(typed, bound, clock, driver.check_buffers(typed))
        failed = driver.failed_checks(typed, bound, outcome)
        sizes = {s.id: bound.sizes[s.id] for s in typed.sizes if s.origin == "shape"}
        told = (
            Value(next(iter(outcome.buffers.values())), time.perf_counter() - start, made, sizes)
            if outcome.buffers
            else None
        )
        if told is None:
            raise UserError(error("LF0209", "the script has no output and no check", fix="output y = ..."))
        return outcome.outputs, failed, told

    def _run(self, typed: TypedProgram, bound: Bound, clock: driver.Clock | None,
             roots: list[str] | None = None) -> driver.Outcome:  # fmt: skip
        lowered = driver.lower_program(typed, roots=roots, clock=clock)
        options = Options(device=self.device, sizes=bound.sizes)
        optimised = driver.optimise(lowered, options, self.passes, clock)
        return driver.execute(optimised, bound, backend=self.backend, clock=clock)

    def prepared(self) -> tuple[driver.Lowered, Bound, tuple[str, ...]]:
        """The script as it was lowered, its data, and the inputs whose data was made up. Raises `UserError` LF0209 where
        it has no output."""
        typed = self.typed()
        if not typed.outputs:
            raise UserError(error("LF0209", "the script has no output", fix="output y = ..."))
        bound, made = self._bind(typed, {}, None)
        return driver.lower_program(typed), bound, made

    def _bind(self, typed: TypedProgram, arrays: Mapping[str, Array], clock: driver.Clock | None,
              ) -> tuple[Bound, tuple[str, ...]]:  # fmt: skip
        """Data for the inputs: what was set, files that exist, else made up."""
        names = {i.name for i in typed.inputs}
        written = {n: v for n, v in self.data.items() if n in names}
        absent = {i.name for i in typed.inputs if i.default and i.name not in written
                  and not os.path.exists(Place(i.default, self.base).path)}  # fmt: skip
        inputs = driver.read_inputs(typed, written, self.base, skip=absent)
        inputs |= {n: a for n, a in {**self.arrays, **arrays}.items() if n in names}
        made = tuple(i.name for i in typed.inputs if i.name not in inputs)
        open_ = {s.id for s in typed.sizes if s.origin == "shape"}
        params = {p.name: _number(p.name, self.params[p.name]) for p in typed.params if p.name in self.params}
        dims = {n: v for n, v in self.dims.items() if n in open_}
        bound = driver.bind_program(typed, Given(inputs, params, dims, self.seed, fill=True), clock)
        if not made:
            self._settled = {n: bound.sizes[n] for n in open_}
        return bound, made

    # -- the compiler's view ------------------------------------------------------------------------------------------

    def compiled(self) -> Compiled:
        """The script through all passes: its outputs, or the last definition where it has none. Raises `UserError`."""
        key = (self.text, self.passes, self.device.name, tuple(self.known.items()), tuple(self.sizes.items()))
        if self._cache is not None and self._cache[0] == key:
            return self._cache[1]
        typed = self.typed()
        asked = tuple(o.name for o in typed.outputs)
        roots: list[str] = []
        if not asked:
            ids = dict(typed.names)
            last = next((n for p in reversed(self.parts) for n in reversed(p.names) if n in ids), None)
            if last is None:
                raise UserError(error("LF0209", "nothing is computed yet: there are no arrays", fix="let y = x + 1"))
            asked, roots = (last,), [ids[last]]
        lowered = driver.lower_program(typed, roots=roots)
        open_ = {s.id for s in typed.sizes if s.value is None}
        known = {n: v for n, v in self.known.items() if n in open_}
        optimised = driver.optimise(lowered, Options(device=self.device, sizes=known), self.passes)
        self._cache = key, Compiled(optimised, asked, known)
        return self._cache[1]

    @property
    def known(self) -> dict[str, int]:
        """Sizes that are given, or that the data settled when something was last run."""
        return {**self._settled, **self.dims}

    def set_dims(self, given: Mapping[str, int]) -> None:
        """Fix sizes of made-up data. Raises `UserError` LF0502, LF0506."""
        open_ = [s.id for s in self.typed().sizes if s.origin == "shape"]
        for name, value in given.items():
            if name not in open_:
                raise UserError(unknown(name, "dim", open_))
            if value < 0:
                raise UserError(error("LF0506", f"the dim `{name}` cannot be {value}"))
        self.dims |= given

    def set_sizes(self, given: Mapping[str, int]) -> None:
        """Replace values of `size` statements. Raises `UserError`, and changes nothing, where the script refuses them."""
        replace(self, sizes={**self.sizes, **given}, _cache=None)._check(self.text)
        self.sizes |= given

    def set_data(self, name: str, value: str) -> None:
        """Data for an input, or the value of a param; none where `value` is empty. Raises `UserError` LF0502, LF0508."""
        typed = self.typed()
        if any(p.name == name for p in typed.params):
            table = self.params
            if value:
                _number(name, value)
        elif any(i.name == name for i in typed.inputs):
            table = self.data
        else:
            known = [*(i.name for i in typed.inputs), *(p.name for p in typed.params)]
            raise UserError(unknown(name, "input or param", known))
        table.pop(name, None)
        if value:
            table[name] = value


def unknown(name: str, what: str, known: list[str]) -> Diagnostic:
    """LF0502 with what there is, and what is near."""
    near = difflib.get_close_matches(name, known, 1)
    return error("LF0502", f"there is no {what} `{name}`", notes=[f"there are {', '.join(known)}" if known else "there are none"],
                 fix=f"did you mean `{near[0]}`?" if near else None)  # fmt: skip


def is_statement(text: str) -> bool:
    """Whether a text begins with the first word of a statement."""
    return scan(text)[0].text in STARTERS


def _number(name: str, text: str) -> int | float | bool:
    value = parse_number(text)
    if value is None:
        raise UserError(error("LF0508", f"the param `{name}` is given as `{text}`, which is not a number"))
    return value


def _declared(array: Array) -> str:
    """The type of an array as a declaration has it."""
    shape = f"[{', '.join(map(str, array.shape))}]" if array.ndim else ""
    return f"{of_numpy(array.dtype)}{shape}"
