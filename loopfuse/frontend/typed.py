"""The typed program: what the checker makes of a script and the lowerer turns into the loop IR.

Everything is in scalar index notation: functions are inlined, array notation is gone, every conversion is a cast,
every subscript has been judged. Expressions are those of the IR; a reduction inside one is a `Ref` to a `Fold` of the
same statement, not yet placed in a loop nest. Buffers are those of the IR, so a scan's carry already is a buffer with
a leading trip axis and a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loopfuse.diag import Diagnostic, Span
from loopfuse.dtypes import DType
from loopfuse.ir import Buffer, Dim, Directive, Expr, Mode, Require, Size


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction, referred to as `Ref(id, dtype)`.

    `value` is already of the accumulator's type `dtype` (conversions to the result's type stand around the Ref).
    `guard` holds where the enclosing expression needs the value, when the reads of the fold are safe only there;
    `at` is the position for argmax and argmin. `value` and `where` may refer to folds that stand earlier in the list,
    to the dims here, and to the indices around. `lets` are integers read from data that bounds of the dims mention:
    they stand before the loop and may refer to the indices around.
    """

    id: str
    monoid: str
    dtype: DType
    dims: tuple[Dim, ...]
    value: Expr
    where: Expr | None = None
    guard: Expr | None = None
    at: Expr | None = None
    lets: tuple[tuple[str, Expr], ...] = ()
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Define:
    """`par dims: buffer[subs] = value`. The subs are the dims themselves, behind fixed ones for a carry or an emit."""

    buffer: str
    dims: tuple[Dim, ...]
    subs: tuple[Expr, ...]
    value: Expr
    folds: tuple[Fold, ...] = ()
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A cumulative reduction: `par dims: prefix axis: buffer[subs] = running value of monoid over value`.

    The running accumulator has type `dtype`; `result` is what is stored, an expression over `Ref(acc, dtype)`.
    """

    buffer: str
    acc: str
    monoid: str
    dtype: DType
    dims: tuple[Dim, ...]
    axis: Dim
    subs: tuple[Expr, ...]
    value: Expr
    result: Expr
    folds: tuple[Fold, ...] = ()
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Update:
    """`acc[subs] <- value`; a mode is None (proved) or `checked`."""

    subs: tuple[Expr, ...]
    modes: tuple[Mode | None, ...]
    value: Expr
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Scatter:
    """`fold dims where: acc[..] <- ..` into an array accumulator, then `par out: buffer[out_subs] = result`.

    `acc` has type `dtype` and the shape of the out dims' extents; `result` is over `Load(acc, out indices)` and the
    initial value.
    """

    buffer: str
    acc: str
    monoid: str
    dtype: DType
    dims: tuple[Dim, ...]
    where: Expr | None
    updates: tuple[Update, ...]
    out: tuple[Dim, ...]
    out_subs: tuple[Expr, ...]
    result: Expr
    folds: tuple[Fold, ...] = ()
    result_folds: tuple[Fold, ...] = ()
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """`seq dim: body`, the trips numbered from 0."""

    dim: Dim
    body: tuple[Stmt, ...]
    span: Span | None = field(default=None, compare=False)


Stmt = Define | Prefix | Scatter | Scan


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the program; `default` is the file named by `from`, as written (`path` or `path:key`)."""

    name: str
    buffer: str
    dtype: DType
    default: str | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Param:
    """A runtime scalar. An integer one (but u64) is a `Size` of origin `param`, any other a buffer of role `param`.

    `default` is a Python number that `dtype` holds exactly, or None where the caller must give one.
    """

    name: str
    dtype: DType
    default: int | float | bool | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Output:
    """A result: the buffer that holds it, and the file named by `to`."""

    name: str
    buffer: str
    to: str | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on values in the 0-d bool buffer `buffer`: a `check`, or the domain of an input or param.

    A domain with `used` set was needed by a proof and must be evaluated before the program runs.
    """

    buffer: str
    text: str
    message: str = ""
    domain_of: str | None = None
    used: bool = False
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TypedProgram:
    """A checked script. `body` holds every definition, those of checks and domains too, in dependence order.

    `names` maps what the user wrote (`t`, or `t.1` for a rebinding) to buffers, for `--show` and the directives.
    `remarks` are warnings and remarks.
    """

    name: str
    sizes: tuple[Size, ...]
    inputs: tuple[Input, ...]
    params: tuple[Param, ...]
    outputs: tuple[Output, ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    requires: tuple[Require, ...]
    checks: tuple[Check, ...] = ()
    directives: tuple[Directive, ...] = ()
    numerics: str = "default"
    names: tuple[tuple[str, str], ...] = ()
    remarks: tuple[Diagnostic, ...] = ()
