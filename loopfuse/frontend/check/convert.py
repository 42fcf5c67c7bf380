"""Conversions: weak values take a type, operands meet in one, shapes broadcast, rows of the op table are applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, F32, F64, I64, DType, promote
from loopfuse.frontend.check.core import Failed, cast, condition
from loopfuse.frontend.check.emit import Emit
from loopfuse.frontend.check.values import (
    Array,
    Element,
    Function,
    Modes,
    Module,
    Number,
    Poison,
    Scalar,
    Subs,
    Text,
    Tuple,
    Type,
    Value,
    View,
    WeakFloat,
    WeakInt,
)
from loopfuse.ir import Affine, Const, Expr, Op
from loopfuse.sizes import ONE, ZERO, Poly

Pull = Callable[[Subs], Expr]
Make = Callable[[Expr], Expr]


def number(value: int) -> WeakInt:
    """A weak integer constant."""
    return WeakInt(Affine(Poly.of(value)))


def describe(value: Value) -> str:
    """A value as a message names it."""
    match value:
        case WeakInt():
            return "an integer of no fixed type"
        case WeakFloat():
            return "a number of no fixed type"
        case Scalar():
            return str(value.dtype)
        case Array():
            return str(value)
        case View():
            return f"a boundary view ({value.kind})"
        case Function():
            return f"the function {value.name}"
        case Module():
            return f"the module {value.name}"
        case Type():
            return f"the type {value.dtype}"
        case Tuple():
            return f"a list of {len(value.items)}"
        case Text():
            return "a string"
        case Poison():
            return "a name whose definition failed"


class Convert(Emit):
    """Types and shapes of elementwise operations."""

    # -- weak values ----------------------------------------------------------------------------------------------------

    def literal(self, value: int | float, dtype: DType, span: Span | None) -> Const:
        """A constant of a type, which must be able to hold it."""
        if dtype.is_int:
            if not dtype.least <= value <= dtype.greatest:
                self.fail(
                    "LF0212",
                    f"{value} does not fit in {dtype}",
                    span,
                    f"{dtype} holds {dtype.least} to {dtype.greatest}",
                )
            return Const(ops.constant(value, dtype), dtype, span=span)
        with np.errstate(all="ignore"):
            bits = ops.constant(float(value) if abs(value) < 2**1000 else value, dtype)
            held = float(ops.from_bits(bits, dtype))
        if math.isinf(held) and not math.isinf(value):
            self.fail("LF0212", f"{value!r} does not fit in {dtype}", span, f"becomes infinite in {dtype}",
                      fix="use f32 or f64, or write inf if that is meant")  # fmt: skip
        if held == 0 and value != 0:
            self.fail("LF0212", f"{value!r} does not fit in {dtype}", span, f"becomes zero in {dtype}",
                      fix="use f32 or f64, or write 0 if that is meant")  # fmt: skip
        return Const(bits, dtype, span=span)

    def typed(self, value: Number, dtype: DType, span: Span | None) -> Expr:
        """A weak value at a type, or a typed one promoted to it."""
        match value:
            case Scalar():
                return cast(value.expr, dtype)
            case WeakFloat():
                if not dtype.is_float:
                    self.fail("LF0210", f"cannot use a fractional number as {dtype}", span, "no implicit conversion between integers and floats",
                              fix=f"convert the other side: f32(...), or this one: {dtype}(...)")  # fmt: skip
                if value.const is not None:
                    return self.literal(value.const, dtype, span)
                return value.build(dtype) if dtype in (F32, F64) else cast(value.build(F32), dtype)
            case WeakInt():
                return self.typed_int(value, dtype, span)

    def typed_int(self, value: WeakInt, dtype: DType, span: Span | None) -> Expr:
        """A weak integer at a type: constants must fit, what varies must be known to fit a type under 32 bits."""
        poly = value.poly
        if dtype == BOOL:
            self.fail(
                "LF0211", "an integer is not a bool", span, "no implicit conversion to bool", fix="compare it: ... != 0"
            )
        if poly is not None and poly.is_const:
            return self.literal(poly.constant, dtype, span)
        if dtype.is_int and dtype.bits < 32 and not self.dry:
            low = poly is not None and self.facts.nonneg(poly - dtype.least)
            if not (low and poly is not None and self.facts.nonneg(dtype.greatest - poly)):
                self.fail("LF0213", f"an index or size may not fit in {dtype}", span, f"{dtype} holds {dtype.least} to {dtype.greatest}",
                          fix=f"convert it: {dtype}(...), or widen the other side: i32(...)")  # fmt: skip
        return cast(value.expr, dtype)

    def settled(self, value: Number, span: Span | None) -> Scalar:
        """A weak value at its default type: i64, or f32."""
        match value:
            case Scalar():
                return value
            case WeakInt():
                return Scalar(self.typed(value, I64, span))
            case WeakFloat():
                return Scalar(self.typed(value, F32, span), value.depth)

    def as_float(self, value: WeakInt | WeakFloat, span: Span | None) -> WeakFloat:
        """A weak integer as a weak float."""
        if isinstance(value, WeakFloat):
            return value
        poly = value.poly
        if poly is not None and poly.is_const:
            const = poly.constant
            return WeakFloat(float(const), lambda dtype: self.literal(const, dtype, span))
        return WeakFloat(None, lambda dtype: cast(value.expr, dtype))

    # -- application ----------------------------------------------------------------------------------------------------

    def apply(self, row: ops.OpRow, args: Sequence[Value], spans: Sequence[Span], span: Span) -> Element:
        """A row of the op table on scalars and arrays: operands meet in one type, shapes broadcast."""
        items = [self.element(a, s) for a, s in zip(args, spans, strict=True)]
        if not any(isinstance(a, Scalar | Array) for a in items):
            return self.apply_weak(row, [a for a in items if isinstance(a, WeakInt | WeakFloat)], span)
        dtypes = self.meet(row, items, spans, span)
        result = row.result(tuple(dtypes))
        self.no_negative_power(row, items, dtypes, span)
        items = [self.cut(a, s) if isinstance(a, Scalar | Array) else a for a, s in zip(items, spans, strict=True)]
        depth = 1 + max(a.depth if not isinstance(a, WeakInt) else 0 for a in items)
        if not any(isinstance(a, Array) for a in items):
            exprs = tuple(
                self.typed(a, d, s) for a, d, s in zip(items, dtypes, spans, strict=True) if not isinstance(a, Array)
            )
            return Scalar(Op(row.name, exprs, result, span=span), depth)
        shape = self.broadcast(items, spans, span)
        pulls = [self.pull(a, d, s, len(shape)) for a, d, s in zip(items, dtypes, spans, strict=True)]

        def at(subs: Subs, modes: Modes) -> Expr:
            return Op(row.name, tuple(pull(subs) for pull in pulls), result, span=span)

        return Array(result, shape, at, (False,) * len(shape), depth=depth)

    def no_negative_power(self, row: ops.OpRow, items: list[Element], dtypes: list[DType], span: Span) -> None:
        """An integer to a power that is written negative."""
        if row.name != "pow" or not dtypes[0].is_int:
            return
        exponent = items[1]
        poly = exponent.poly if isinstance(exponent, WeakInt) else None
        if poly is not None and poly.is_const and poly.constant < 0:
            self.fail(
                "LF0216",
                "an integer to a negative power",
                span,
                "has no integer value",
                fix="use a float base: f32(...)",
            )

    def pull(self, value: Element, dtype: DType, span: Span | None, rank: int) -> Pull:
        """How an operand gives its element of the result at given subscripts."""
        if not isinstance(value, Array):
            fixed = self.typed(value, dtype, span)
            return lambda subs: fixed
        skip = rank - value.rank
        ones = tuple(extent == ONE for extent in value.shape)
        zero = Affine(ZERO)

        def pull(subs: Subs) -> Expr:
            own = tuple(zero if one else s for one, s in zip(ones, subs[skip:], strict=True))
            return cast(value.at(own, ()), dtype)

        return pull

    def element(self, value: Value, span: Span | None) -> Element:
        """An operand: a number or an array, nothing else."""
        if isinstance(value, WeakInt | WeakFloat | Scalar | Array):
            return value
        if isinstance(value, Poison):
            self.poisoned(value, span)
        if isinstance(value, View):
            self.fail("LF0324", "a boundary view can only be subscripted", span, f"{value.kind}(...) is a view, not an array",
                      fix=f"subscript it: {value.span.text}[i - 1], or apply the operation first: {value.kind}(x + 1)[...]")  # fmt: skip
        if isinstance(value, Function):
            self.fail("LF0219", f"`{value.name}` is a function", span, "not called here", fix=f"{value.name}(...)")
        self.fail("LF0214", f"{describe(value)} cannot be used as an operand", span, "needs a number or an array")

    def poisoned(self, value: Poison, span: Span | None) -> NoReturn:
        """Give up on a name without a value; reported only where using it is the mistake."""
        if value.code:
            self.fail(value.code, value.message, span, fix=value.fix or None)
        raise Failed

    def apply_weak(self, row: ops.OpRow, args: list[WeakInt | WeakFloat], span: Span) -> Element:
        """An operation on values without a type keeps them so, unless it yields a bool."""
        if all(isinstance(a, WeakInt) for a in args):
            ints = [a for a in args if isinstance(a, WeakInt)]
            exact = self.exact(row, ints, span)
            if exact is not None:
                return exact
            if "int" in row.kinds and row.name not in ("div",):
                result = row.result((I64,) * len(ints))
                op = Op(row.name, tuple(a.expr for a in ints), result, span=span)
                return WeakInt(op) if result == I64 else Scalar(op)
        if "float" not in row.kinds:
            self.fail(
                "LF0210", f"`{row.infix or row.surface}` needs integers", span, "a number with a fraction is not one"
            )
        floats = [self.as_float(a, span) for a in args]
        consts = [a.const for a in floats]
        result = row.result((F64,) * len(floats))
        known = [c for c in consts if c is not None]
        if len(known) == len(consts):
            value = row.evaluate([np.asarray(c, np.float64) for c in known], F64)
            if result == BOOL:
                return Scalar(Const(int(bool(value)), BOOL, span=span))
            const = float(value)
            return WeakFloat(const, lambda dtype: self.literal(const, dtype, span))

        def build(dtype: DType) -> Expr:
            out = BOOL if result == BOOL else dtype
            return Op(row.name, tuple(a.build(dtype) for a in floats), out, span=span)

        if result == BOOL:
            return Scalar(build(F32))
        return WeakFloat(None, build, 1 + max(a.depth for a in floats))

    def exact(self, row: ops.OpRow, args: list[WeakInt], span: Span) -> WeakInt | None:
        """Integer arithmetic done on polynomials, where they have it."""
        polys = [a.poly for a in args]
        if any(p is None for p in polys):
            return None
        a, *others = [p for p in polys if p is not None]
        b = others[0] if others else ZERO
        result: Poly | None = None
        if row.name in ("floordiv", "mod") and b == ZERO:
            self.fail("LF0216", "an integer divided by zero", span, "has no value among sizes and indices",
                      notes=("elements of arrays give 0",))  # fmt: skip
        match row.name:
            case "add":
                result = a + b
            case "sub":
                result = a - b
            case "mul":
                result = a * b
            case "neg":
                result = -a
            case "floordiv" | "mod" if b.is_const or self.divisor(b, span):
                result = a // b if row.name == "floordiv" else a % b
            case "pow" if b.is_const and 0 <= b.constant <= 16:
                result = ONE
                for _ in range(b.constant):
                    result = result * a
            case "pow" if (
                a.is_const and b.is_const and b.constant >= 0 and abs(a.constant) ** min(b.constant, 64) < 2**64
            ):
                result = Poly.of(a.constant**b.constant)
            case "shl" if b.is_const and 0 <= b.constant < 63:
                result = a * (1 << b.constant)
            case "pow" | "shl" if a.is_const and b.is_const and b.constant >= 0 and a.constant:
                self.fail("LF0212", f"`{span.text}` does not fit in any integer type", span, "u64 ends at 2**64 - 1",
                          fix="a float, as in 2.0 ** 100")  # fmt: skip
            case "minimum" | "maximum" if a.is_const and b.is_const:
                result = Poly.of((min if row.name == "minimum" else max)(a.constant, b.constant))
        if row.name == "pow" and b.is_const and b.constant < 0:
            self.fail(
                "LF0216",
                "an integer to a negative power",
                span,
                "has no integer value",
                fix="use a float base: f32(...)",
            )
        return None if result is None else WeakInt(Affine(result, span=span))

    def divisor(self, b: Poly, span: Span) -> bool:
        """Whether a symbolic divisor can be taken to be at least 1."""
        return self.require_nonneg(b - 1, f"`{b}` divides here and must be at least 1", span)

    # -- types ------------------------------------------------------------------------------------------------------------

    def meet(self, row: ops.OpRow, items: list[Element], spans: Sequence[Span], span: Span) -> list[DType]:
        """The type that each operand takes."""
        first = 1 if row.operands == "cond" else 0
        if first:
            cond = items[0]
            if isinstance(cond, WeakInt | WeakFloat) or cond.dtype != BOOL:
                self.fail("LF0211", f"the condition of `{row.surface}` must be bool", spans[0], f"this is {describe(cond)}",
                          fix="compare it: ... != 0")  # fmt: skip
        common: DType | None = None
        owner: Span | None = None
        for item, where in zip(items[first:], spans[first:], strict=True):
            if isinstance(item, WeakInt | WeakFloat):
                continue
            if common is None:
                common, owner = item.dtype, where
            elif item.dtype != common:
                met = promote(common, item.dtype)
                if row.operands == "shift":
                    met = common if item.dtype.is_int else None
                if met is None:
                    self.mismatch(row, common, item.dtype, owner, where, span)
                common = met
        if common is None:
            common = F32 if any(isinstance(a, WeakFloat) for a in items[first:]) else I64
        for item, where in zip(items[first:], spans[first:], strict=True):
            if isinstance(item, WeakFloat) and not common.is_float:
                self.mixed_literal(row, common, owner, where, span)
        if common.kind not in row.kinds:
            self.unfit(row, common, owner or span, span)
        return ([BOOL] if first else []) + [common] * (len(items) - first)

    def mismatch(self, row: ops.OpRow, a: DType, b: DType, first: Span | None, second: Span, span: Span) -> NoReturn:
        """Two types that do not meet."""
        name = row.infix or row.surface or row.name
        lo, hi = (first, second) if first else (span, second)
        kinds = {a.kind, b.kind}
        if "bool" in kinds:
            self.fail("LF0211", f"cannot mix {a} and {b} in `{name}`", span, "a bool is not a number",
                      *self.origins(lo, a), *self.origins(hi, b), fix="i32(...) or f32(...) turns a bool into 0 or 1")  # fmt: skip
        if "float" in kinds and kinds & {"int", "uint"}:
            _, place, target = (b, second, a) if a.is_float else (a, lo, b)
            text = span.text
            if place and place.source is span.source and span.start <= place.start and place.end <= span.end:
                cut, stop = place.start - span.start, place.end - span.start
                text = f"{text[:cut]}{target}({text[cut:stop]}){text[stop:]}"
            shown = self.whole_statement(span, text)
            self.fail("LF0210", f"cannot mix {a} and {b} in `{name}`", span, "no implicit conversion between integers and floats",
                      *self.origins(lo, a), *self.origins(hi, b),
                      notes=("NumPy would silently compute this in f64; see `loopfuse explain LF0210`",), fix=shown)  # fmt: skip
        reason = "neither type holds all values of the other"
        self.fail("LF0210", f"cannot mix {a} and {b} in `{name}`", span, reason, *self.origins(lo, a), *self.origins(hi, b),
                  fix=f"convert one side: {'f32' if a.is_float else a}(...)")  # fmt: skip

    def whole_statement(self, span: Span, text: str) -> str:
        """The source line with the span replaced, where the span lies in one line."""
        line, column = span.source.position(span.start)
        source = span.source.line(line)
        if "\n" in span.text:
            return text
        return (source[: column - 1] + text + source[column - 1 + span.end - span.start :]).split("#")[0].strip()

    def origins(self, span: Span | None, dtype: DType) -> tuple[tuple[Span | None, str], ...]:
        """Where a plain name got its type."""
        if span is None or not span.text.isidentifier():
            return ()
        entry = self.scope.find(span.text)
        if entry is None:
            return ()
        return ((entry.type.head_span if entry.type else entry.span, f"{span.text} is {dtype}"),)

    def mixed_literal(self, row: ops.OpRow, common: DType, owner: Span | None, where: Span, span: Span) -> NoReturn:
        """A fractional number beside an integer or a bool."""
        name = row.infix or row.surface or row.name
        text = owner.text if owner and "\n" not in owner.text else "..."
        self.fail("LF0210", f"cannot mix {common} and a fractional number in `{name}`", span,
                  "no implicit conversion between integers and floats", (owner if owner != span else None, f"this is {common}"),
                  notes=("NumPy would silently compute this in f64; see `loopfuse explain LF0210`",),
                  fix=f"f32({text})")  # fmt: skip

    def unfit(self, row: ops.OpRow, dtype: DType, owner: Span, span: Span) -> NoReturn:
        """A type that a row does not take."""
        name = row.infix or row.surface or row.name
        if dtype == BOOL:
            fix = "sum(mask) counts; i32(mask) gives 0 and 1" if row.infix else f"{name}(f32(...))"
            if row.name == "neg":
                name, fix = "-", "`not` gives the opposite"
            self.fail("LF0211", f"`{name}` does not take bool", span, "arithmetic on bool has no meaning here", fix=fix)
        if dtype.is_float:
            hint = {
                "bitxor": "use `**` for powers",
                "bitand": "use `and` for conditions",
                "bitor": "use `or` for conditions",
            }
            wants = "bool" if tuple(row.kinds) == ("bool",) else "integers"
            self.fail(
                "LF0215", f"`{name}` needs {wants}, not {dtype}", span, f"this is {dtype}", fix=hint.get(row.name)
            )
        if "float" in row.kinds:
            self.fail("LF0215", f"`{name}` needs floats, not {dtype}", span, f"this is {dtype}",
                      fix=f"{name}(f32({owner.text}))" if row.surface else f"f32({owner.text})")  # fmt: skip
        self.fail(
            "LF0215", f"`{name}` does not take {dtype}", span, f"this is {dtype}", fix="compare it first: ... != 0"
        )

    # -- shapes -----------------------------------------------------------------------------------------------------------

    def broadcast(self, items: Sequence[Element], spans: Sequence[Span], span: Span) -> tuple[Poly, ...]:
        """The common shape, axes aligned at the end; only an extent written 1 stretches."""
        shapes = [(a.shape, s) for a, s in zip(items, spans, strict=True) if isinstance(a, Array)]
        rank = max(len(shape) for shape, _ in shapes)
        result: list[Poly] = [ONE] * rank
        owner: list[Span | None] = [None] * rank
        for shape, where in shapes:
            for k, extent in enumerate(shape, rank - len(shape)):
                if extent == ONE:
                    continue
                if result[k] == ONE:
                    result[k], owner[k] = extent, where
                elif not self.require_equal(result[k], extent, "broadcast extents must be equal", where):
                    self.no_broadcast(shapes, k - rank, result[k], extent, span)
        return tuple(result)

    def no_broadcast(
        self, shapes: list[tuple[tuple[Poly, ...], Span]], axis: int, a: Poly, b: Poly, span: Span
    ) -> NoReturn:
        """Shapes that do not broadcast, with the fix that lines an axis up where there is one."""
        texts = [f"[{', '.join(map(str, shape))}]" for shape, _ in shapes]
        where = "trailing axes are" if axis == -1 else f"axes {axis} are"
        fix = None
        (big, first), (small, second) = max(shapes, key=lambda s: len(s[0])), min(shapes, key=lambda s: len(s[0]))
        if len(small) < len(big) and len(small) == 1:
            for k, extent in enumerate(big[:-1]):
                if extent == small[0]:
                    tail = ", ".join(["None"] * (len(big) - 1 - k))
                    fix = f"{second.text}[:, {tail}] lines {small[0]} up with axis {k} of {first.text}"
        elif len(small) == len(big) == 2 and small == big[::-1]:
            fix = f"transpose one: {second.text}.T"
        also = []
        for _, s in shapes:
            entry = self.scope.find(s.text) if s.text.isidentifier() else None
            if entry and entry.span:
                also.append((entry.type.span if entry.type else entry.span, s.text))
        self.fail("LF0402", f"cannot broadcast {' with '.join(dict.fromkeys(texts)) if len(set(texts)) > 1 else texts[0]}", span,
                  f"{where} {a} and {b}", *also, fix=fix)  # fmt: skip

    # -- other ways to combine -------------------------------------------------------------------------------------------

    def as_array(self, value: Value, span: Span | None) -> Array:
        """An array; anything else is an error."""
        if isinstance(value, Poison):
            self.poisoned(value, span)
        if isinstance(value, Array):
            return value
        if isinstance(value, View):
            self.element(value, span)
        self.fail("LF0403", "an array is needed here", span, f"this is {describe(value)}")

    def map(self, value: Element, span: Span, make: Make, result: DType) -> Element:
        """Apply an elementwise construction to one value."""
        if isinstance(value, Array):
            source = value

            def at(subs: Subs, modes: Modes) -> Expr:
                return make(source.at(subs, ()))

            return Array(result, source.shape, at, (False,) * source.rank, depth=source.depth + 1)
        settled = self.settled(value, span)
        return Scalar(make(settled.expr), settled.depth + 1)

    def fits(self, poly: Poly, what: str, span: Span | None) -> None:
        """An extent must not be negative."""
        if not self.require_nonneg(poly, f"{what} must not be negative", span):
            self.fail("LF0409", f"{what} is negative", span, f"needs {condition(poly)}")
