"""Requirements on sizes and params: whether they hold, and how they read."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from loopfuse.diag import Collector, Diagnostic, UserError, error
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.ir import Affine, Const, Expr, Load, Op, Require, Select
from loopfuse.ops import OPS, from_bits
from loopfuse.printer import print_expr
from loopfuse.rewrite import subexprs
from loopfuse.sizes import Poly

COMPARISONS = {row.name: row.infix for row in OPS.values() if row.gives == "bool" and row.infix and row.arity == 2}
INT64 = np.iinfo(np.int64)


def check_requires(typed: TypedProgram, sizes: Mapping[str, int], params: Mapping[str, Array]) -> None:
    """Raise `UserError` for the requirements that do not hold: LF0610 written ones, LF0611 implied ones."""
    collector = Collector()
    broken = [r for r in typed.requires if not evaluate(r.cond, sizes, params)]
    for require in sorted(broken, key=lambda r: r.implied):
        collector.add(_broken(require, sizes, params))
    collector.raise_errors()


def evaluate(cond: Expr, sizes: Mapping[str, int | Array], params: Mapping[str, Array]) -> Array:
    """The value of an expression over sizes and params; with arrays of sizes, for all of them at once."""
    values: dict[int, Array] = {}
    for node in subexprs(cond):
        if isinstance(node, Const):
            value = np.asarray(from_bits(node.bits, node.dtype))
        elif isinstance(node, Affine):
            value = _int64(node.poly.value(sizes, _floor))
        elif isinstance(node, Load):
            value = params[node.buffer]
        elif isinstance(node, Select):
            value = np.where(values[id(node.cond)], values[id(node.then)], values[id(node.other)])
        elif isinstance(node, Op):
            value = OPS[node.op].evaluate([values[id(a)] for a in node.args], node.dtype)
        else:
            raise TypeError(f"a requirement cannot hold a {type(node).__name__}")
        values[id(node)] = np.asarray(value)
    return values[id(cond)]


def _floor(num: int | Array, den: int | Array) -> int | Array:
    """Floor division, 0 for a divisor 0; exact for Python integers."""
    if isinstance(num, int) and isinstance(den, int):
        return num // den if den else 0
    zero = np.asarray(den) == 0
    return np.where(zero, 0, num // np.where(zero, 1, den))


def _int64(value: int | Array) -> Array:
    """An exact integer as i64; beyond its range the nearest, which compares alike with anything inside."""
    return np.asarray(min(max(value, INT64.min), INT64.max) if isinstance(value, int) else value, np.int64)


def _broken(require: Require, sizes: Mapping[str, int], params: Mapping[str, Array]) -> Diagnostic:
    values = {**sizes, **{name: str(value[()]) for name, value in params.items()}}
    names = sorted(names_of(require.cond) & values.keys())
    shown = ", ".join(f"{n} = {values[n]}" for n in names)
    with_values = f" ({shown})" if shown else ""
    text = require_text(require)
    if require.implied:
        message = f"{require.message}: " if require.message else ""
        return error("LF0611", f"{message}this needs `{text}`{with_values}", require.span, shown)
    message = require.message or f"`{text}` does not hold"
    return error("LF0610", f"requirement not met: {message}{with_values}", require.span, shown)


def names_of(cond: Expr) -> set[str]:
    """The sizes and params in a condition."""
    found: set[str] = set()
    for expr in subexprs(cond):
        if isinstance(expr, Affine):
            found |= expr.poly.names
        elif isinstance(expr, Load):
            found.add(expr.buffer)
    return found


def require_text(require: Require) -> str:
    """The condition of a requirement: as written, or where it is implied in a form made from its polynomials."""
    span = require.span
    written = span and re.match(r'require\b(.*?)(,\s*"(?:[^"\\]|\\.)*")?$', span.text.strip(), re.DOTALL)
    if require.implied or not written:
        return condition_text(require.cond)
    return " ".join(written[1].split())


def condition_text(cond: Expr) -> str:
    """A condition on sizes as the language writes it: `N >= R + 1 and R != 0`."""
    if isinstance(cond, Op) and cond.op in COMPARISONS:
        left, right = cond.args
        if isinstance(left, Affine) and isinstance(right, Affine):
            return _balanced(left.poly - right.poly, COMPARISONS[cond.op])
    if isinstance(cond, Op) and cond.op in ("and", "or"):
        return f" {cond.op} ".join(
            f"({text})" if isinstance(arg, Op) and arg.op == "or" != cond.op else text
            for arg, text in ((arg, condition_text(arg)) for arg in cond.args)
        )
    if isinstance(cond, Op) and cond.op == "not":
        return f"not ({condition_text(cond.args[0])})"
    return print_expr(cond)


def _balanced(difference: Poly, symbol: str) -> str:
    """`difference symbol 0` with every term on the side where it is positive."""
    left = Poly(tuple((m, c) for m, c in difference.terms if c > 0))
    right = left - difference
    if symbol in ("==", "!=") and left.is_const and not right.is_const:
        left, right = right, left
    return f"{left} {symbol} {right}"


def check_sizes(typed: TypedProgram, sizes: Mapping[str, int]) -> None:
    """Raise LF0611 where a size breaks what its declaration promises (a least value, a multiple)."""
    for size in typed.sizes:
        value = sizes[size.id]
        if size.least is not None and value < size.least:
            raise UserError(error("LF0611", f"`{size.id}` must be at least {size.least}, and is {value}", size.span))
        if value % size.multiple:
            raise UserError(error("LF0611", f"`{size.id}` must be a multiple of {size.multiple}, and is {value}",
                                  size.span))  # fmt: skip
