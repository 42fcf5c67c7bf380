"""What an expression of the language evaluates to at check time.

Arrays are *pulled*: an `Array` knows its element type and shape, and `at` makes the IR expression of one element from
subscripts that are known to be in range. Views are therefore index maps and cost nothing; a `let` stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loopfuse.diag import Span
from loopfuse.dtypes import DType
from loopfuse.frontend.ast import Expr as Ast
from loopfuse.frontend.ast import FnDecl, TypeExpr
from loopfuse.ir import Affine, Expr, Mode, ModeKind
from loopfuse.sizes import Poly

Subs = tuple[Expr, ...]
Modes = tuple[Mode | None, ...]


@dataclass(frozen=True, slots=True)
class WeakInt:
    """An exact integer without a type of its own: a literal, a size, an index, and what is made of these."""

    expr: Expr

    @property
    def poly(self) -> Poly | None:
        """The polynomial, unless the value came through an operation that polynomials lack (a shift, a minimum)."""
        return self.expr.poly if isinstance(self.expr, Affine) else None


@dataclass(frozen=True, slots=True)
class WeakFloat:
    """A real number without a type of its own. `const` is its value where nothing varies; `build` makes it at f32 or f64."""

    const: float | None
    build: Callable[[DType], Expr]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Scalar:
    """A typed element; `depth` is the height of its expression since the last cut."""

    expr: Expr
    depth: int = 0

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.expr.dtype


@dataclass(frozen=True, slots=True)
class Array:
    """A pulled array of rank at least 1.

    `moded[k]` tells whether a mode on axis k can be passed to `at`. `buffer` is the buffer of an array that is stored
    as it is. `free` arrays (stored ones and views of them) may be used any number of times at no cost.
    """

    dtype: DType
    shape: tuple[Poly, ...]
    at: Callable[[Subs, Modes], Expr]
    moded: tuple[bool, ...] = ()
    buffer: str | None = None
    free: bool = False
    depth: int = 0

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class View:
    """`edge(x)` and its like: a value that can only be bound, passed and subscripted."""

    array: Array
    kind: ModeKind
    fill: WeakInt | WeakFloat | Scalar | None
    span: Span


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the script with the scope that it captures, or with `builtin` a function of the language."""

    name: str
    decl: FnDecl | None = None
    scope: Scope | None = None
    builtin: str | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """An imported module: its functions."""

    name: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class Type:
    """A dtype as a value: `f32`, `x.dtype`."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class Tuple:
    """Several values: what a function returned, or `axis=(0, 1)`."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A string, for `einsum`."""

    text: str


@dataclass(frozen=True, slots=True)
class Poison:
    """What a name is bound to after an error in its definition, so that one mistake gives one message.

    With a `code`, using the name is an error of its own (an accumulator read in its block).
    """

    code: str = ""
    message: str = ""
    fix: str = ""


Number = WeakInt | WeakFloat | Scalar
Element = Number | Array
Value = Number | Array | View | Function | Module | Type | Tuple | Text | Poison


@dataclass(slots=True)
class Entry:
    """A value under a name, where it was defined, and how it is to be described."""

    value: Value
    span: Span | None
    what: str = "value"
    used: bool = False
    type: TypeExpr | None = None

    @property
    def described(self) -> str:
        """What the name is, with its article."""
        return f"an {self.what}" if self.what[0] in "aeiou" else f"a {self.what}"


@dataclass(slots=True)
class Scope:
    """Names of values and, apart from them, of functions. `rest` are the indices that `...` stands for here."""

    parent: Scope | None = None
    values: dict[str, Entry] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    rest: tuple[Poly, ...] | None = None
    isolated: bool = False

    def find(self, name: str) -> Entry | None:
        """The innermost entry of a value name."""
        scope: Scope | None = self
        while scope:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None

    def function(self, name: str) -> Function | None:
        """The function of that name: a parameter bound to one, or one of the script."""
        scope: Scope | None = self
        while scope:
            entry = scope.values.get(name)
            if entry and isinstance(entry.value, Function):
                return entry.value
            if name in scope.functions:
                return scope.functions[name]
            scope = scope.parent
        return None

    def module(self, name: str) -> Module | None:
        """The module imported under that name."""
        scope: Scope | None = self
        while scope:
            if name in scope.modules:
                return scope.modules[name]
            scope = scope.parent
        return None

    def the_rest(self) -> tuple[Poly, ...] | None:
        """The indices of the innermost `...`, not looking out of the body of a function."""
        scope: Scope | None = self
        while scope:
            if scope.rest is not None:
                return scope.rest
            if scope.isolated:
                return None
            scope = scope.parent
        return None

    def names(self) -> set[str]:
        """All value names in sight."""
        found: set[str] = set()
        scope: Scope | None = self
        while scope:
            found |= scope.values.keys()
            scope = scope.parent
        return found


__all__ = [
    "Array",
    "Ast",
    "Element",
    "Entry",
    "Function",
    "Modes",
    "Module",
    "Number",
    "Poison",
    "Scalar",
    "Scope",
    "Subs",
    "Text",
    "Tuple",
    "Type",
    "Value",
    "View",
    "WeakFloat",
    "WeakInt",
]  # fmt: skip
