"""What a random script holds so far: its inputs, definitions and functions, and names for new ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loopfuse.dtypes import DTYPES
from loopfuse.testing.choices import Choices

FLOATS = ("f32", "f64", "f16", "bf16")
INTS = ("i32", "i64", "u8", "i8", "u32", "i16", "u16", "u64")
DIMS = ("N", "M", "K")
INDICES = ("i", "j", "k", "l", "m", "n")
LETTERS = "abcdeoqrsuvwxyz"  # indices, functions and params have letters of their own
MOST_INPUTS = 5
NUMBERS = {
    "bool": ("true", "false"),
    "uint": ("1", "2", "0", "3", "7", "8"),
    "int": ("1", "2", "0", "-1", "3", "-7", "8"),
    "float": ("1", "2", "0.5", "0", "-1", "3", "-0.0", "0.1", "-7", "8", "1e-3", "inf", "-inf", "nan"),
}
Shape = tuple[str, ...]
Scope = dict[str, str]  # an index, and the extent of its range


@dataclass(frozen=True, slots=True)
class Array:
    """A value of the script: its name, element type and extents as written. `given`: an input. `below`: each element is
    an integer from 0 to one less than this extent."""

    name: str
    dtype: str
    shape: Shape
    given: bool = False
    below: str = ""


class Page:
    """The script so far. `budget` is how many more operations it may hold."""

    def __init__(self, choices: Choices, budget: int) -> None:
        self.choices, self.budget = choices, budget
        self.main = self.some_dtype()
        self.arrays: list[Array] = []
        self.inputs: list[str] = []
        self.lines: list[str] = []
        self.functions: dict[str, str] = {}  # the class of the parameter, by name
        self.params: dict[str, str] = {}
        self.dims = 1
        self._names = self._letters()

    def _letters(self) -> Iterator[str]:
        yield from LETTERS
        number = 1
        while True:
            yield from (f"{letter}{number}" for letter in LETTERS)
            number += 1

    def name(self) -> str:
        """A name that nothing has."""
        return next(self._names)

    # -- types and extents --------------------------------------------------------------------------------------------

    def some_dtype(self, among: Sequence[str] = (*FLOATS[:2], *INTS[:2], *FLOATS[2:], *INTS[2:], "bool")) -> str:
        """An element type."""
        return self.choices.favour({f"dtype {d}": d for d in among})

    def float_dtype(self) -> str:
        """A float type: the script's main type where it is one."""
        return self.main if self.main in FLOATS and self.choices.chance(70) else self.some_dtype(FLOATS)

    def num_dtype(self) -> str:
        """A type with numbers."""
        return self.main if self.main != "bool" and self.choices.chance(70) else self.some_dtype((*FLOATS, *INTS))

    def dtype(self) -> str:
        """Any type, most often the script's main one."""
        return self.main if self.choices.chance(60) else self.some_dtype()

    def dim(self) -> str:
        """An extent: a dim that is there, or one more."""
        at = self.choices.number(0, min(self.dims, len(DIMS) - 1))
        self.dims = max(self.dims, at + 1)
        return DIMS[at]

    def shape(self, least: int = 0, most: int = 3) -> Shape:
        """Extents for a new array."""
        rank = self.choices.pick([r for r in (1, 2, 0, 3) if least <= r <= most])
        return tuple(self.dim() for _ in range(rank))

    # -- declarations -------------------------------------------------------------------------------------------------

    def declare(self, dtype: str, shape: Shape, where: str = "", below: str = "") -> Array:
        """A new input; `where` is its domain, `{}` standing for its name."""
        name = self.name()
        extents = f"[{', '.join(shape)}]" if shape else ""
        domain = f" where {where.replace('{}', name)}" if where else ""
        self.inputs.append(f"input {name}: {dtype}{extents}{domain}")
        array = Array(name, dtype, shape, True, below)
        self.arrays.append(array)
        return array

    def subscripts_below(self, extent: str, shape: Shape, dtype: str = "") -> Array:
        """An input of subscripts for an axis."""
        dtype = dtype or self.choices.pick(("i32", "i64", "u8", "i16"))
        narrow = dtype in ("u8", "i16") and not extent.isdecimal()
        return self.declare(dtype, shape, f"0 <= {'i64({})' if narrow else '{}'} < {extent}", extent)

    def some_array(self, dtype: str, rank: int, fresh: int = 30, given: bool = False) -> Array:
        """An array of a type and rank: one that is there, or a new input."""
        found = [a for a in self.arrays if a.dtype == dtype and len(a.shape) == rank and (a.given or not given)]
        if found and not (self.room and self.choices.chance(fresh)):
            return self.choices.pick(found[::-1])
        return self.declare(dtype, tuple(self.dim() for _ in range(rank)))

    @property
    def room(self) -> bool:
        """Whether the script may have another input."""
        return len(self.inputs) < MOST_INPUTS

    def param(self, dtype: str) -> str:
        """A scalar that is chosen for each run."""
        found = [name for name, d in self.params.items() if d == dtype]
        if found:
            return found[0]
        name = f"p{len(self.params) or ''}"
        self.params[name] = dtype
        kind = DTYPES[dtype].kind
        default = {"bool": "true", "float": self.choices.pick(("0.5", "2", "-1.5"))}.get(kind, self.choices.pick("231"))
        self.inputs.append(f"param {name}: {dtype} = {default}")
        return name

    def number(self, dtype: str, plain: bool = True) -> str:
        """A literal that the type holds; `plain`: neither an infinity nor NaN."""
        kind = DTYPES[dtype].kind
        texts = NUMBERS[kind][:-3] if plain and kind == "float" else NUMBERS[kind]
        return self.choices.pick(texts)

    # -- statements ---------------------------------------------------------------------------------------------------

    def let(self, text: str, dtype: str, shape: Shape, binders: str = "", below: str = "") -> Array:
        """A definition; `binders` are the indices of an equation."""
        name = self.name()
        left = f"{name}[{binders}]" if binders else name
        self.lines.append(f"let {left} = {bare(text)}")
        return self.defined(name, dtype, shape, below)

    def defined(self, name: str, dtype: str, shape: Shape, below: str = "") -> Array:
        """Note that a statement defines a name."""
        array = Array(name, dtype, shape, below=below)
        self.arrays.append(array)
        return array

    def spend(self) -> bool:
        """Whether another operation may be written."""
        self.budget -= 1
        return self.budget > 0

    def binders(self, scope: Scope, text: str) -> str:
        """The left side's indices: with a range where the right side does not give it, and sometimes where it does."""
        return ", ".join(
            k if stands_alone(k, text) and not self.choices.chance(15) else f"{k} in 0..{e}" for k, e in scope.items()
        )


def stands_alone(index: str, text: str) -> bool:
    """Whether an index is a subscript by itself, which gives its range."""
    return re.search(rf"[\w\])]\[(?:[^\[\]]*, )?{index}(?:, [^\[\]]*)?\]", text) is not None


def product(*extents: str) -> str:
    """A product of extents; sums among them are in parentheses."""
    return " * ".join(f"({e})" if "+" in e or "-" in e else e for e in extents)


def bare(text: str) -> str:
    """An expression without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]
