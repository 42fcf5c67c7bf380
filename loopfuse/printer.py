"""The loop IR as text: one statement a line, indentation is structure, every field is printed.

`reader.parse_program` gives back an equal program (spans aside). Expressions are written as in the language, with these
additions: a constant carries its type (`1.5f32`, `-7i64`, `true`, `inf:f16`, `nan:0x7fc00001:f32`); `f32(x)` is a cast
that the user wrote and `f32'(x)` one that was implied; `{2*i + 1}` is an `Affine` where a value stands. Bounds, shapes
and subscripts are polynomials as they stand; a subscript that is not one but would read like one starts with `$`.
Printing never fails, not even on a malformed program.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache

from loopfuse.diag import Source, Span
from loopfuse.dtypes import I64, DType
from loopfuse.ir import (
    Acc,
    Affine,
    Buffer,
    Const,
    Dim,
    Directive,
    Expr,
    Interval,
    Kernel,
    Let,
    Load,
    Loop,
    Mode,
    Op,
    Program,
    Ref,
    Require,
    Select,
    Size,
    Stmt,
    Store,
)
from loopfuse.ops import OPS, const_text
from loopfuse.outside import write_json
from loopfuse.rewrite import children
from loopfuse.sizes import ONE, ZERO, Poly

GUTTER = 56
SELECT, UNARY, POWER, ATOM = 1, 12, 13, 20
COMPARISON = 5
WORD = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
RESERVED = frozenset({"if", "else", "and", "or", "not", "true", "false", "inf", "nan"})
_WORDS = rf"{WORD.pattern}(?:[ ,()<>=]+(?:{WORD.pattern}|\d+(?!\w)))*\)*"
_PLAIN_DIRECTIVE = re.compile(_WORDS)
_LIKE_POLY = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg"})

Text = tuple[str, int]

# -- expressions ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def print_const(bits: int, dtype: DType) -> str:
    """A constant with its type."""
    try:
        text = const_text(bits, dtype)
    except ValueError:
        return f"bits:{bits:#x}:{dtype}"
    if dtype.kind == "bool":
        return text if bits in (0, 1) else f"bits:{bits:#x}:bool"
    return f"{text}{dtype}" if text[-1].isdigit() and "n" not in text else f"{text}:{dtype}"


def print_expr(expr: Expr) -> str:
    """An expression where a value stands."""
    return _text(expr)[0]


def _text(root: Expr) -> Text:
    """The text and the precedence of its outermost operation; no recursion, so that depth is not limited."""
    done: dict[int, Text] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = [child for child in children(node) if id(child) not in done] if id(node) not in done else []
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        if id(node) not in done:
            done[id(node)] = _node(node, [done[id(child)] for child in children(node)])
    return done[id(root)]


def _node(node: Expr, parts: list[Text]) -> Text:
    """The text of a node from those of its operands."""
    if isinstance(node, Const):
        text = print_const(node.bits, node.dtype)
        return text, UNARY if text.startswith("-") else ATOM
    if isinstance(node, Affine):
        return f"{{{node.poly}}}", ATOM
    if isinstance(node, Ref):
        return node.id, ATOM
    if isinstance(node, Load):
        return f"{node.buffer}[{_subscripts(node.subs, [t for t, _ in parts], node.modes)}]", ATOM
    if isinstance(node, Select):
        cond, then, other = parts
        return f"{_paren(then, SELECT + 1)} if {_paren(cond, SELECT + 1)} else {_paren(other, SELECT)}", SELECT
    return _operation(node, parts)


def _operation(node: Op, parts: list[Text]) -> Text:
    """An operation: infix or prefix where its row says so, else as a call."""
    row = OPS.get(node.op)
    if row is not None and row.precedence is not None and not node.implied and len(parts) == row.arity:
        level = row.precedence
        if row.infix:
            left = level + (level in (COMPARISON, POWER))
            right = level + (level != POWER)
            return f"{_paren(parts[0], left)} {row.infix} {_paren(parts[1], right)}", level
        if row.prefix:
            operand = _paren(parts[0], level)
            if row.prefix == "-" and (operand[0].isdigit() or operand.startswith(("inf:", "nan:"))):
                operand = f"({operand})"
            return f"{row.prefix}{' ' * row.prefix.isalpha()}{operand}", level
    mark = "'" * node.implied
    inside = [text for text, _ in parts]
    if node.op == "cast":
        return f"{node.dtype}{mark}({', '.join(inside)})", ATOM
    if row is not None and row.gives == "explicit":
        inside.append(str(node.dtype))
    return f"{node.op}{mark}({', '.join(inside)})", ATOM


def _paren(part: Text, least: int) -> str:
    return part[0] if part[1] >= least else f"({part[0]})"


def _subscripts(subs: tuple[Expr, ...], texts: list[str], modes: tuple[Mode | None, ...]) -> str:
    """The inside of the brackets."""
    shown = [
        str(sub.poly) if isinstance(sub, Affine) else f"${text}" if _like_poly(sub) else text
        for sub, text in zip(subs, texts, strict=True)
    ]
    return ", ".join(text + _mode(mode) for text, mode in zip(shown, [*modes, *[None] * len(subs)], strict=False))


def _mode(mode: Mode | None) -> str:
    if mode is None:
        return ""
    return f" ~{mode.kind}" + (f" {print_const(mode.fill.bits, mode.fill.dtype)}" if mode.fill else "")


def _like_poly(expr: Expr) -> bool:
    """Whether the text of a value would read as a polynomial: names and integer arithmetic alone."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Op) and node.op in _LIKE_POLY and not node.implied:
            stack.extend(node.args)
        elif not isinstance(node, Ref):
            return False
    return True


# -- statements -------------------------------------------------------------------------------------------------------


def print_stmt(stmt: Stmt) -> str:
    """The line of a statement; of a loop its header."""
    if isinstance(stmt, Let):
        return f"{stmt.id} = {print_expr(stmt.value)}"
    if isinstance(stmt, Store):
        at = f" at {print_expr(stmt.at)}" if stmt.at is not None else ""
        inside = _subscripts(stmt.subs, [print_expr(s) for s in stmt.subs], stmt.modes)
        if stmt.modes and not any(stmt.modes):
            inside = _subscripts(stmt.subs[:1], [print_expr(s) for s in stmt.subs[:1]], ()) + " ~none"
            if len(stmt.subs) > 1:
                inside += ", " + _subscripts(stmt.subs[1:], [print_expr(s) for s in stmt.subs[1:]], ())
        brackets = "" if stmt.absorb and not stmt.subs else f"[{inside}]"
        return f"{stmt.buffer}{brackets} {'<-' if stmt.absorb else '='} {print_expr(stmt.value)}{at}"
    word = "fold" if stmt.order == "par" and stmt.accs else stmt.order
    where = f" where {print_expr(stmt.where)}" if stmt.where is not None else ""
    return f"{word} {', '.join(print_dim(d) for d in stmt.dims)}{where}"


def print_dim(dim: Dim) -> str:
    """`i < M`, or `j in 1 .. N step 2`."""
    hi = _best("min", dim.hi)
    step = f" step {dim.step}" if dim.step != ONE else ""
    if dim.lo == (ZERO,):
        return f"{dim.id} < {hi}{step}"
    return f"{dim.id} in {_best('max', dim.lo)} .. {hi}{step}"


def _best(word: str, polys: tuple[Poly, ...]) -> str:
    return str(polys[0]) if len(polys) == 1 else f"{word}({', '.join(map(str, polys))})"


def print_acc(acc: Acc) -> str:
    """`acc m: f32[D] max repair self`."""
    repair = f" repair {print_expr(acc.repair)}" if acc.repair is not None else ""
    return f"acc {acc.id}: {_type(acc.dtype, acc.shape)} {acc.monoid}{repair}"


def _type(dtype: DType, shape: tuple[Poly, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]" if shape else str(dtype)


def body_lines(body: Iterable[Stmt], indent: int = 0) -> Iterator[tuple[str, Span | None]]:
    """The lines of a block, each with the span of what it shows."""
    stack = [iter(body)]
    while stack:
        stmt = next(stack[-1], None)
        if stmt is None:
            stack.pop()
            continue
        pad = " " * (indent + 2 * len(stack) - 2)
        yield pad + print_stmt(stmt), stmt.span
        if isinstance(stmt, Loop):
            for acc in stmt.accs:
                yield f"{pad}  {print_acc(acc)}", acc.span
            stack.append(iter(stmt.body))


def print_body(body: Iterable[Stmt]) -> str:
    """The statements of a block."""
    return "".join(line + "\n" for line, _ in body_lines(body))


# -- declarations -----------------------------------------------------------------------------------------------------


def print_buffer(buffer: Buffer) -> str:
    """`buf h: f32[T + 1, U] local window [t:t + 2, 0:U]`; the role `temp` and the scope `device` are not written."""
    parts = [f"buf {buffer.id}: {_type(buffer.dtype, buffer.shape)}"]
    parts += [buffer.role] * (buffer.role != "temp") + [buffer.scope] * (buffer.scope != "device")
    if buffer.window is not None:
        parts.append(f"window [{', '.join(_interval(i, ':') for i in buffer.window)}]")
    if buffer.range is not None:
        parts.append(f"range {_interval(buffer.range, ' .. ')}")
    return " ".join(parts)


def _interval(interval: Interval, between: str) -> str:
    return f"{_best('max', interval[0])}{between}{_best('min', interval[1])}"


def print_size(size: Size) -> str:
    """`size N shape >= 1 multiple 4`, `size R = 4 compile`, `size start param unbounded i32`."""
    parts = [f"size {size.id}", *([f"= {size.value}"] if size.value is not None else []), size.origin]
    if size.least != 0:
        parts.append("unbounded" if size.least is None else f">= {size.least}")
    parts += [f"multiple {size.multiple}"] * (size.multiple != 1) + [str(size.dtype)] * (size.dtype != I64)
    return " ".join(parts)


def print_require(require: Require) -> str:
    """`require {N} >= {1} "message" implied`."""
    message = f" {_quote(require.message)}" if require.message else ""
    return f"require {print_expr(require.cond)}{message}{' implied' * require.implied}"


def print_directive(directive: Directive) -> str:
    """`pragma materialize(t)`; text that would not read back is quoted."""
    plain = _PLAIN_DIRECTIVE.fullmatch(directive.text)
    return f"{directive.kind} {directive.text if plain else _quote(directive.text)}"


def _quote(text: str) -> str:
    return write_json(text)


def _name(name: str) -> str:
    return name if WORD.fullmatch(name) else _quote(name)


def print_kernel(kernel: Kernel) -> str:
    """A kernel alone."""
    return "".join(line + "\n" for line, _ in _kernel_lines(kernel))


def _kernel_lines(kernel: Kernel) -> Iterator[tuple[str, Span | None]]:
    yield f"kernel {kernel.id}", None
    yield from body_lines(kernel.body, 2)


def print_program(program: Program, gutter: bool = False) -> str:
    """The whole text; with `gutter` a line ends in `# @n`, n being its line in the source."""
    found: list[tuple[str, Span | None]] = [
        (f"program {_name(program.name)}({', '.join(s.id for s in program.sizes)})", None)
    ]
    if program.numerics != "default":
        found.append((f"numerics {program.numerics}", None))
    found += [(print_size(s), s.span) for s in program.sizes if s != Size(s.id)]
    found += [(print_require(r), r.span) for r in program.requires]
    found += [(print_directive(d), d.span) for d in program.directives]
    found += [(print_buffer(b), b.span) for b in program.buffers]
    for kernel in program.kernels:
        found += _kernel_lines(kernel)
    if gutter:
        return "".join(_with_gutter(found))
    return "".join(line + "\n" for line, _ in found)


def _with_gutter(lines: list[tuple[str, Span | None]]) -> Iterator[str]:
    """Lines with the numbers of their source lines; line starts are found once a source."""
    starts: dict[int, list[int]] = {}
    for line, span in lines:
        if span is None:
            yield line + "\n"
            continue
        known = starts.get(id(span.source))
        if known is None:
            known = starts[id(span.source)] = _line_starts(span.source)
        yield f"{line:<{GUTTER}} # @{bisect_right(known, span.start)}\n"


def _line_starts(source: Source) -> list[int]:
    return [0, *(m.end() for m in re.finditer("\n", source.text))]
