"""Domains and checks at run time: whether they hold, and where they fail first.

Every condition is run by the reference interpreter, so that none of its operations is written a second time here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loopfuse.backends import reference
from loopfuse.diag import Collector, Diagnostic, Source, Span, UserError, error
from loopfuse.dtypes import BOOL
from loopfuse.frontend.ast import Call, Compare, Name, NewAxis, Rest, Slice, Subscript
from loopfuse.frontend.lower import lower
from loopfuse.frontend.parse import parse_expr
from loopfuse.frontend.typed import Check, Define, Fold, Input, TypedProgram
from loopfuse.generate import NO_BOUNDS, Array, Bounds
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Load, Op, Ref, Select
from loopfuse.ops import OPS, to_number
from loopfuse.requires import COMPARISONS
from loopfuse.rewrite import subexprs
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import own, walk_program

TRUE = Const(1, BOOL)


@dataclass(frozen=True, slots=True)
class Witness:
    """Where a condition fails first: the index (empty for a scalar) and the values of what it compares, as short as their types
    tell them by."""

    index: tuple[int, ...]
    values: tuple[tuple[str, str], ...] = ()


def check_domains(typed: TypedProgram, sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> None:
    """Raise LF0612 for each input or param outside its domain, with the first offending element."""
    collector = Collector()
    for check, holds in domain_masks(typed, sizes, inputs):
        if not holds.all():
            collector.add(_outside(typed, check, holds, sizes, inputs))
    collector.raise_errors()


def domain_masks(typed: TypedProgram, sizes: Mapping[str, int], inputs: Mapping[str, Array],
                 ) -> list[tuple[Check, Array]]:  # fmt: skip
    """For each domain whether every element keeps to it, in the shape of its input."""
    domains = [c for c in typed.checks if c.domain_of]
    found = compute(typed, [c.buffer for c in domains], sizes, inputs) if domains else []
    return list(zip(domains, found, strict=True))


def compute(typed: TypedProgram, roots: list[str], sizes: Mapping[str, int], inputs: Mapping[str, Array],
            ) -> list[Array]:  # fmt: skip
    """The values of buffers, by the reference interpreter, and of nothing that they do not depend on."""
    program = lower(typed, roots=roots)
    read = frozenset().union(*(own(s).names.loads for s in walk_program(program)))
    kept = tuple(b for b in program.buffers if b.role != "in" or b.id in read)
    needed = {b.id: inputs[b.id] for b in kept if b.role in ("in", "param")}
    found = reference.run(replace(program, buffers=kept), needed, dict(sizes)).outputs
    return [np.asarray(found[b.id]) for b in program.buffers if b.role == "out"]


def _outside(typed: TypedProgram, check: Check, holds: Array, sizes: Mapping[str, int], inputs: Mapping[str, Array],
             ) -> Diagnostic:  # fmt: skip
    """The first element outside; `holds` has the shape of the input."""
    name = str(check.domain_of)
    buffer = next((i.buffer for i in typed.inputs if i.name == name), name)
    index = first_false(holds)
    if buffer in inputs and inputs[buffer].shape != holds.shape:
        return error("LF0612", f"`{name}` is outside its domain `{check.text}`", check.span)
    value = inputs[buffer][index] if buffer in inputs else sizes[buffer]
    place = f"{name}[{', '.join(map(str, index))}]" if index else name
    wrong = holds.size - int(np.count_nonzero(holds))
    notes = [f"the first of {wrong} such elements of {holds.size}"] if holds.ndim else []
    return error("LF0612", f"`{place}` = {value!s} is outside its domain `{check.text}`", check.span, notes=notes)


def without_data(typed: TypedProgram, entry: Input, sizes: Mapping[str, int], unless: Sequence[str] = (), *,
                 tries: int = 0) -> Diagnostic:  # fmt: skip
    """Nothing can be made up for an input: its domain leaves nothing, or so many `tries` found nothing. Of the sizes in
    `unless` each may be 0, and then the input has no elements."""
    texts = [c.text for c in typed.checks if c.domain_of == entry.name]
    span = next((c.span for c in typed.checks if c.domain_of == entry.name), entry.span)
    of = f"the domain `{' and '.join(texts)}`" if texts else "the range"
    if tries:
        return error("LF0612", f"no data was found that keeps to {of} of `{entry.name}`", span,
                     notes=[f"it was made up {tries} times"], fix=f"{entry.name}=FILE")  # fmt: skip
    known = ", ".join(f"{s.id} = {sizes[s.id]}" for s in typed.sizes if s.id in named(typed, entry))
    return error("LF0612", f"no data can exist for `{entry.name}`: no {entry.dtype} lies in {of}"
                 + f" with {known}" * bool(known)
                 + f", unless {' or '.join(f'{n} = 0' for n in unless)}" * bool(unless), span)  # fmt: skip


def named(typed: TypedProgram, entry: Input) -> frozenset[str]:
    """The sizes that the domain of an input names."""
    buffers = {c.buffer for c in typed.checks if c.domain_of == entry.name}
    found = [s for s in typed.body if isinstance(s, Define) and s.buffer in buffers]
    values = [v for s in found for v in (s.value, *(f.value for f in s.folds))]
    polys = [e.poly for v in values for e in subexprs(v) if isinstance(e, Affine)]
    return frozenset(s.id for s in typed.sizes if any(s.id in p.names for p in polys))


def subscript_text(buffer: str, span: Span | None, axis: int) -> str:
    """A subscript of an access as the script writes it, "" where the text does not tell: an array that stands for another one
    may have its axes in another order."""
    try:
        expr = parse_expr(Source("access", span.text)) if span else None
    except UserError:
        return ""
    if not (isinstance(expr, Subscript) and isinstance(expr.base, Name) and expr.base.id == buffer):
        return ""
    plain = axis < len(expr.subs) and not any(isinstance(s, Slice | NewAxis | Rest) for s in expr.subs[: axis + 1])
    return expr.subs[axis].span.text if plain else ""


def first_false(holds: Array) -> tuple[int, ...]:
    """The index of the first false element in row order; there must be one."""
    return tuple(int(k) for k in np.unravel_index(int(np.argmin(holds)), holds.shape))


def witness(typed: TypedProgram, check: Check, sizes: Mapping[str, int], inputs: Mapping[str, Array],
            ) -> Witness | None:  # fmt: skip
    """The first element, in row order, at which a check fails; None where its form does not tell."""
    define = next((s for s in typed.body if isinstance(s, Define) and s.buffer == check.buffer), None)
    if define is None:
        return None
    fold = _conjunction(define)
    if fold is None:
        return _sides(typed, check, (), define.folds, define.value, (), sizes, inputs)
    if any(d.lo != (ZERO,) or d.step != ONE or len(d.hi) != 1 or not d.hi[0].names <= sizes.keys() for d in fold.dims):
        return None
    value = Select(fold.where, fold.value, TRUE) if fold.where is not None else fold.value
    folds = tuple(f for f in define.folds if f.id != fold.id)
    holds = _compute(typed, [value], fold.dims, folds, sizes, inputs)[0]
    if holds.all():
        return None
    index = first_false(holds)
    return _sides(typed, check, fold.dims, folds, fold.value, index, sizes, inputs)


def _conjunction(define: Define) -> Fold | None:
    """The `all` that a condition consists of."""
    value = define.value
    for fold in define.folds:
        if isinstance(value, Ref) and value.id == fold.id and fold.monoid == "all":
            return fold
    return None


def _sides(typed: TypedProgram, check: Check, dims: tuple[Dim, ...], folds: tuple[Fold, ...], value: Expr,
           index: tuple[int, ...], sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> Witness:  # fmt: skip
    """The witness at `index`, with the values of both sides where the condition is one comparison."""
    texts = _operands(check.text)
    if texts is None or not (isinstance(value, Op) and value.op in COMPARISONS):
        return Witness(index)
    computed = _compute(typed, list(value.args), dims, folds, sizes, inputs)
    return Witness(index, tuple((t, str(c[index])) for t, c in zip(texts, computed, strict=True)))


def _operands(text: str) -> tuple[str, str] | None:
    """The two sides of a comparison, alone or in `all(...)`, as they are written."""
    try:
        expr = parse_expr(Source("check", text))
    except UserError:
        return None
    if isinstance(expr, Call) and len(expr.args) == 1 and isinstance(expr.fn, Name) and expr.fn.id == "all":
        expr = expr.args[0]
    if isinstance(expr, Compare) and len(expr.operands) == 2:
        left, right = expr.operands
        return left.span.text, right.span.text
    return None


def _compute(typed: TypedProgram, values: list[Expr], dims: tuple[Dim, ...], folds: tuple[Fold, ...],
             sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> list[Array]:  # fmt: skip
    """Expressions in the place of a check, computed for every element of its dims."""
    shape = tuple(d.hi[0] for d in dims)
    subs = tuple(Affine(Poly.of(d.id)) for d in dims)
    buffers = tuple(Buffer(f"witness.{k}", v.dtype, shape) for k, v in enumerate(values))
    defines = tuple(Define(b.id, dims, subs, v, folds) for b, v in zip(buffers, values, strict=True))
    extended = replace(typed, buffers=(*typed.buffers, *buffers), body=(*typed.body, *defines))
    return compute(extended, [b.id for b in buffers], sizes, inputs)


# -- what a domain says of each element -------------------------------------------------------------------------------


def bounds_of(typed: TypedProgram, entry: Input, sizes: Mapping[str, int]) -> Bounds:
    """Bounds for generated data: from the range of an integer buffer, or from comparisons with constants."""
    buffer = next(b for b in typed.buffers if b.id == entry.buffer)
    found = NO_BOUNDS
    if buffer.range is not None:
        lows = [int(p.value(sizes)) for p in buffer.range[0] if p.names <= sizes.keys()]
        highs = [int(p.value(sizes)) for p in buffer.range[1] if p.names <= sizes.keys()]
        found = Bounds(max(lows, default=None), min(highs, default=None))
    for check in typed.checks:
        if check.domain_of != entry.name:
            continue
        define = next((s for s in typed.body if isinstance(s, Define) and s.buffer == check.buffer), None)
        if define is not None:
            fold = _conjunction(define)
            for part in _parts(fold.value if fold else define.value):
                found = _narrow(found, part, entry.buffer, sizes)
    return found


def _parts(cond: Expr) -> Iterator[Expr]:
    """The terms of a conjunction, also where it was made lazy."""
    if isinstance(cond, Op) and cond.op == "and":
        for arg in cond.args:
            yield from _parts(arg)
    elif isinstance(cond, Select) and isinstance(cond.other, Const) and not cond.other.bits:
        yield from _parts(cond.cond)
        yield from _parts(cond.then)
    else:
        yield cond


def _narrow(bounds: Bounds, part: Expr, buffer: str, sizes: Mapping[str, int]) -> Bounds:
    """The bounds with one comparison of an element against a number taken in."""
    if not (isinstance(part, Op) and part.op in COMPARISONS):
        return bounds
    left, right = part.args
    symbol = COMPARISONS[part.op]
    if not _is_element(left, buffer):
        left, right, symbol = right, left, COMPARISONS[str(OPS[part.op].swapped)]
    value = _number(right, sizes)
    if not _is_element(left, buffer) or value is None:
        return bounds
    if symbol in (">", ">=") and (bounds.lo is None or value >= bounds.lo):
        return replace(bounds, lo=value, open_lo=symbol == ">")
    if symbol in ("<", "<=") and (bounds.hi is None or value <= bounds.hi):
        return replace(bounds, hi=value, open_hi=symbol == "<")
    return bounds


def _is_element(expr: Expr, buffer: str) -> bool:
    while isinstance(expr, Op) and expr.op == "cast":
        expr = expr.args[0]
    return isinstance(expr, Load) and expr.buffer == buffer


def _number(expr: Expr, sizes: Mapping[str, int]) -> float | int | None:
    while isinstance(expr, Op) and expr.op == "cast":
        expr = expr.args[0]
    if isinstance(expr, Affine) and expr.poly.names <= sizes.keys():
        return int(expr.poly.value(sizes))
    if isinstance(expr, Const):
        value = to_number(expr.bits, expr.dtype)
        return value if math.isfinite(value) else None
    return None
