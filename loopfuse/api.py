"""The Python API: scripts as objects that describe themselves and can be called on arrays.

prog = lf.parse("input x: f32[N]  output y = tanh(x) * 2")
prog.outputs                      # (f32[N] y,)
y = prog.compile()(x)             # or lf.run(source, x=x)
print(prog.lower().as_text())     # the loop IR
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse import driver, implied
from loopfuse.bind import Given, show_type
from loopfuse.diag import Diagnostic, Source, UserError, error
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.ir import Program as IR
from loopfuse.printer import print_program
from loopfuse.requires import require_text

Result = Any  # an array where a program has one output, else a Record


class Record:
    """The results of a program with several outputs, in order.

    `r.name`, `r["name"]` and `r[0]` all give an array; `len`, iteration (over the arrays) and unpacking work as for a
    tuple. The class has no public method, so an output may have any name (`out`, `class`, `_y`).
    """

    __slots__ = ("__arrays",)

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.__arrays = dict(arrays)

    def __getattr__(self, name: str) -> Array:
        arrays: dict[str, Array] = object.__getattribute__(self, "_Record__arrays")
        if name not in arrays:
            raise AttributeError(f"there is no output {name!r}; the outputs are {', '.join(arrays)}")
        return arrays[name]

    def __getitem__(self, key: str | int) -> Array:
        return self.__arrays[key] if isinstance(key, str) else list(self.__arrays.values())[key]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.__arrays.values())

    def __len__(self) -> int:
        return len(self.__arrays)

    def __contains__(self, name: object) -> bool:
        return name in self.__arrays

    def __dir__(self) -> list[str]:
        return list(self.__arrays)

    def __reduce__(self) -> tuple[type[Record], tuple[dict[str, Array]]]:
        return Record, (self.__arrays,)

    def __repr__(self) -> str:
        fields = ", ".join(f"{n}={a.dtype}{list(a.shape)}" for n, a in self.__arrays.items())
        return f"Record({fields})"


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

    def __init__(self, checked: driver.Checked, base: Path) -> None:
        self._checked, self._base = checked, base

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

    def compile(self) -> Compiled:
        """The program as a function of arrays."""
        return Compiled(self.lower())

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


class Lowered:
    """A program as loop IR."""

    def __init__(self, program: Program, lowered: driver.Lowered) -> None:
        self.program, self._lowered = program, lowered

    @property
    def ir(self) -> IR:
        """The program's data structure."""
        return self._lowered.program

    def as_text(self, gutter: bool = False) -> str:
        """The IR as text that reads back; with `gutter` each line ends with its line in the script."""
        return print_program(self._lowered.program, gutter=gutter)

    def interpret(self, *arrays: object, **named: object) -> Result:
        """Run on the NumPy reference interpreter; arguments as of `Compiled.__call__`."""
        return _result(_execute(self._lowered, self.program._base, arrays, {"backend": "reference", **named}))

    def __repr__(self) -> str:
        return f"<loopfuse.Lowered {self.program.name}: {len(self.ir.kernels)} kernels>"


class Compiled:
    """A program as a function of arrays."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered

    @property
    def program(self) -> Program:
        """The program that was compiled."""
        return self.lowered.program

    def __call__(self, *arrays: object, **named: object) -> Result:
        """Run on inputs in order or by name, params by name. One output gives an array, several a `Record`.

        Inputs named by `from` may be left out. Data must have the declared types: nothing is converted. Three names
        are options, unless the script declares them: `dims` (a mapping, sizes that no input settles), `limit` (bytes
        that may be allocated) and `backend` (`auto` or `reference`). Raises `lf.Error` for what is wrong with data.
        """
        return _result(_execute(self.lowered._lowered, self.program._base, arrays, named))

    def __repr__(self) -> str:
        return f"<loopfuse.Compiled {self.program.name}>"


# -- short forms ------------------------------------------------------------------------------------------------------


def parse(source: str | Path, *, name: str | None = None, sizes: Mapping[str, int] | None = None) -> Program:
    """Check a script: text, or a `Path` to a file. `sizes` replaces values of its `size` statements.

    Raises `lf.Error` with every error of the script.
    """
    if isinstance(source, Path):
        text = driver.read_source(source)
        text, base = Source(name or text.name, text.text), source.parent
    elif isinstance(source, str):
        _refuse_file_name(source)
        text, base = Source(name or "<string>", source), Path()
    else:
        raise TypeError(f"a script is a str or a Path, not {type(source).__name__}")
    return Program(driver.compile_source(text, sizes=_integers("sizes", sizes), search=base), base)


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


def compile(source: str | Path, *, name: str | None = None, sizes: Mapping[str, int] | None = None) -> Compiled:
    """Check a script and lower it, ready to be called on arrays."""
    return parse(source, name=name, sizes=sizes).compile()


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


OPTIONS: dict[str, Any] = {"dims": None, "limit": None, "backend": "auto"}


def _execute(lowered: driver.Lowered, base: Path, arrays: tuple[object, ...], named: Mapping[str, object],
             ) -> dict[str, Array]:  # fmt: skip
    """Bind the arguments of a call and run."""
    typed = lowered.typed
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
    bound = driver.bind_program(typed, Given(data, values, dims, limit=limit))
    return driver.execute(lowered, bound, backend=options["backend"], limit=limit).outputs


def _result(outputs: dict[str, Array]) -> Result:
    if len(outputs) == 1:
        return np.asarray(next(iter(outputs.values())))
    return Record(outputs)
