"""The abstract syntax of a script: what was written, with a span on every node."""

from __future__ import annotations

from dataclasses import dataclass, field

from loopfuse.diag import Source, Span

# -- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """A name, `inf`, `nan` and `pi` included."""

    id: str
    span: Span


@dataclass(frozen=True, slots=True)
class Number:
    """A literal: `value` is an int, or a float (the nearest double); `text` without the suffix; `suffix` a dtype name."""

    value: int | float
    text: str
    suffix: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class Bool:
    """`true` or `false`."""

    value: bool
    span: Span


@dataclass(frozen=True, slots=True)
class String:
    """A string, unescaped."""

    value: str
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x`, `+x`, `~x`, `not x`."""

    op: str
    operand: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """`left op right`, `and` and `or` included; `op_span` is the operator alone; `parens` if written in parentheses."""

    op: str
    left: Expr
    right: Expr
    op_span: Span
    span: Span
    parens: bool = False


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain `a < b <= c`: one operand more than operators."""

    operands: tuple[Expr, ...]
    ops: tuple[str, ...]
    op_spans: tuple[Span, ...]
    span: Span
    parens: bool = False


@dataclass(frozen=True, slots=True)
class IfElse:
    """`then if cond else other`."""

    then: Expr
    cond: Expr
    other: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Range:
    """`lo..hi by step`."""

    lo: Expr
    hi: Expr
    step: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Binder:
    """An index, with its range where one is written."""

    name: str
    range: Range | None
    span: Span


@dataclass(frozen=True, slots=True)
class Rest:
    """`...` among binders, dims or subscripts."""

    span: Span


@dataclass(frozen=True, slots=True)
class For:
    """`for k, j in 0..N if cond`."""

    binders: tuple[Binder, ...]
    cond: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """`fn(args, name=value)`, or with `gen` a reduction `sum(e for k)` (then one argument and nothing else)."""

    fn: Expr
    args: tuple[Expr, ...]
    kwargs: tuple[tuple[str, Expr, Span], ...]
    gen: For | None
    span: Span


@dataclass(frozen=True, slots=True)
class Slice:
    """`lo:hi:step`, each optional."""

    lo: Expr | None
    hi: Expr | None
    step: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class NewAxis:
    """`None` as a subscript."""

    span: Span


@dataclass(frozen=True, slots=True)
class Subscript:
    """`base[subs]`."""

    base: Expr
    subs: tuple[Expr | Slice | NewAxis | Rest, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Attr:
    """`base.name`: `x.T`, `x.shape`, `x.dtype`, `nn.softmax`."""

    base: Expr
    name: str
    name_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class ArrayLit:
    """`[a, b, c]`."""

    items: tuple[Expr, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`[e for k in 0..N]`."""

    body: Expr
    gen: For
    span: Span


@dataclass(frozen=True, slots=True)
class TupleExpr:
    """`(a, b)`: only where a function takes one (`axis=(0, 1)`)."""

    items: tuple[Expr, ...]
    span: Span


Expr = (
    Name | Number | Bool | String | Unary | Binary | Compare | IfElse | Call | Subscript | Attr | ArrayLit
    | Comprehension | TupleExpr
)  # fmt: skip


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeExpr:
    """`f32[N, 2*R + 1]`; `dims` is None for a scalar type; the head may be a class in a function's parameter."""

    head: str
    dims: tuple[Expr | Rest, ...] | None
    head_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Lhs:
    """The left side of a definition: `t`, `t[i, j]` (binders), or `(a, b)` (names)."""

    name: str
    name_span: Span
    binders: tuple[Binder | Rest, ...] | None
    span: Span
    names: tuple[tuple[str, Span], ...] = ()


@dataclass(frozen=True, slots=True)
class Import:
    """`import nn as n`, or with `path` a file."""

    module: str
    alias: str
    path: bool
    span: Span


@dataclass(frozen=True, slots=True)
class SizeDecl:
    """`size R = 4`."""

    name: str
    name_span: Span
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class ParamDecl:
    """`param eps: f32 = 1e-5 where eps > 0`."""

    name: str
    name_span: Span
    type: TypeExpr
    default: Expr | None
    where: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class InputDecl:
    """`input x: f32[N] from "x.npy" where x > 0`."""

    name: str
    name_span: Span
    type: TypeExpr
    source: String | None
    where: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class OutputDecl:
    """`output y: f32[N] = e to "y.npy"`."""

    lhs: Lhs
    type: TypeExpr | None
    value: Expr | None
    to: String | None
    span: Span


@dataclass(frozen=True, slots=True)
class LetDecl:
    """`let t[i, j]: f16 = e`."""

    lhs: Lhs
    type: TypeExpr | None
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class FnParam:
    """A parameter of a function."""

    name: str
    type: TypeExpr | None
    default: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class FnDecl:
    """A function; an expression body has no statements and one returned value."""

    name: str
    name_span: Span
    params: tuple[FnParam, ...]
    returns: tuple[TypeExpr, ...] | None
    body: tuple[Stmt, ...]
    values: tuple[Expr, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Carry:
    """`h: f32[B] = h0` of a scan."""

    name: str
    type: TypeExpr | None
    init: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Next:
    """`next h = e`."""

    name: str
    name_span: Span
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Emit:
    """`emit hs = e`."""

    name: str
    name_span: Span
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class ScanDecl:
    """`scan t in 0..T carry (h = h0) { ... }`."""

    binder: Binder
    carries: tuple[Carry, ...]
    body: tuple[Stmt, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Update:
    """`hist[e] += v` of a scatter; `op` is the operator with its `=`."""

    name: str
    name_span: Span
    subs: tuple[Expr | Slice | NewAxis | Rest, ...]
    op: str
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class AccumDecl:
    """`accum hist: i32[256] = 0 for y, x if c { hist[e] += 1 }`."""

    name: str
    name_span: Span
    type: TypeExpr
    init: Expr
    gen: For
    updates: tuple[Update, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Contract:
    """`require`, `check` or `expect` (in `kind`) with a condition and a message."""

    kind: str
    cond: Expr
    message: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class Numerics:
    """`numerics strict`."""

    mode: str
    span: Span


@dataclass(frozen=True, slots=True)
class Pragma:
    """`pragma materialize(t)`."""

    name: str
    args: tuple[Expr, ...]
    span: Span


Stmt = (
    Import | SizeDecl | ParamDecl | InputDecl | OutputDecl | LetDecl | FnDecl | ScanDecl | Next | Emit | AccumDecl
    | Contract | Numerics | Pragma
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed text: its statements in order."""

    source: Source
    body: tuple[Stmt, ...] = field(default=())
