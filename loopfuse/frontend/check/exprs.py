"""Expressions: each form of the syntax to its value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, DTYPES, F32, I64, DType, promote
from loopfuse.frontend import ast
from loopfuse.frontend.check.calls import Calls
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.core import Failed
from loopfuse.frontend.check.reduce import GENERATORS
from loopfuse.frontend.check.values import (
    Array,
    Element,
    Modes,
    Poison,
    Scalar,
    Scope,
    Subs,
    Text,
    Tuple,
    Type,
    Value,
    View,
    WeakFloat,
    WeakInt,
)
from loopfuse.ir import Affine, Const, Dim, Expr, Op, Select
from loopfuse.sizes import Poly

CONSTANTS = {"inf": math.inf, "nan": math.nan, "pi": math.pi}


class Exprs(Calls):
    """Evaluation of expressions."""

    def expr(self, node: ast.Expr) -> Value:
        """The value of an expression."""
        match node:
            case ast.Name():
                return self.name(node)
            case ast.Number():
                return self.number(node)
            case ast.Bool():
                return Scalar(Const(int(node.value), BOOL, span=node.span))
            case ast.String():
                return Text(node.value)
            case ast.Unary():
                return self.unary(node)
            case ast.Binary():
                return self.binary(node)
            case ast.Compare():
                return self.compare(node)
            case ast.IfElse():
                return self.if_else(node)
            case ast.Call():
                return self.call(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Attr():
                return self.attribute(node)
            case ast.ArrayLit():
                return self.array_literal(node)
            case ast.Comprehension():
                return self.comprehension(node)
            case ast.TupleExpr():
                return Tuple(tuple(self.expr(i) for i in node.items))

    # -- names and literals -----------------------------------------------------------------------------------------------

    def name(self, node: ast.Name) -> Value:
        """A name of a value."""
        if node.id in CONSTANTS:
            const = CONSTANTS[node.id]
            return WeakFloat(const, lambda dtype: self.literal(const, dtype, node.span))
        entry = self.scope.find(node.id)
        if entry is not None:
            entry.used = True
            if isinstance(entry.value, Poison):
                self.poisoned(entry.value, node.span)
            return entry.value
        if node.id in DTYPES:
            return Type(DTYPES[node.id])
        if self.scope.function(node.id) is not None or node.id in self.builtin_names():
            self.fail("LF0219", f"`{node.id}` is a function", node.span, "not called here", fix=f"{node.id}(...)")
        if self.scope.module(node.id) is not None:
            self.fail("LF0219", f"`{node.id}` is a module", node.span, "not a value", fix=f"{node.id}.function(...)")
        near = self.suggest(node.id, {*self.scope.names(), *CONSTANTS})
        python = {"True": "true", "False": "false", "np": "the functions without a prefix", "numpy": "the functions without a prefix",
                  "range": "k in 0..N", "float": "f32(...)", "int": "i32(...)", "len": "the size itself"}.get(node.id)  # fmt: skip
        hint = python or near
        fix = (f"write {python}" if python else f"did you mean `{near}`?") if hint else None
        name, span = self.defining or ("", node.span)
        if name == node.id and span.source is node.span.source and span.start <= node.span.start < span.end:
            self.fail("LF0203", f"`{node.id}` is not defined yet", node.span, "stands in its own definition",
                      fix="a recurrence is a scan; a running sum is cumsum(...)")  # fmt: skip
        self.fail("LF0203", f"unknown name `{node.id}`", node.span, "not defined here", fix=fix)

    def number(self, node: ast.Number) -> Value:
        """A literal, typed by its suffix or weak."""
        if node.suffix:
            dtype = DTYPES[node.suffix]
            value = node.value
            if dtype.is_float:
                return Scalar(self.literal(float(value), dtype, node.span))
            if isinstance(value, float):
                self.fail("LF0212", f"{node.text} does not fit in {dtype}", node.span, "has a fraction")
            return Scalar(self.literal(value, dtype, node.span))
        if isinstance(node.value, int):
            if not -(2**63) <= node.value < 2**64:
                self.fail(
                    "LF0212",
                    f"{node.text} does not fit in any integer type",
                    node.span,
                    "u64 ends at 2**64 - 1",
                    fix=f"{node.value}.0",
                )
            return WeakInt(Affine(Poly.of(node.value), span=node.span))
        const = node.value
        if math.isinf(const):
            self.fail(
                "LF0212",
                f"{node.text} does not fit in any type",
                node.span,
                "f64 ends near 1.8e308",
                fix="write inf if that is meant",
            )
        return WeakFloat(const, lambda dtype: self.literal(const, dtype, node.span))

    # -- operators ----------------------------------------------------------------------------------------------------------

    def unary(self, node: ast.Unary) -> Value:
        """`-x`, `+x`, `~x`, `not x`."""
        value = self.expr(node.operand)
        if node.op == "+":
            return self.element(value, node.operand.span)
        row = ops.PREFIX[node.op]
        return self.apply(row, (value,), (node.operand.span,), node.span)

    def binary(self, node: ast.Binary) -> Value:
        """A binary operator; chains lean to the left, so the left spine is walked in a loop."""
        spine: list[ast.Binary] = []
        left: ast.Expr = node
        while isinstance(left, ast.Binary) and left.op not in ("and", "or"):
            spine.append(left)
            left = left.left
        if not spine:
            return self.logical(node)
        value = self.expr(left)
        for step in reversed(spine):
            value = self.operate(step, value)
        return value

    def operate(self, node: ast.Binary, left: Value) -> Value:
        """One operator whose left side is evaluated."""
        right = self.expr(node.right)
        spans = (node.left.span, node.right.span)
        if node.op == "@":
            return self.matmul(left, right, spans, node.span)
        return self.apply(ops.INFIX[node.op], (left, right), spans, node.span)

    def logical(self, node: ast.Binary) -> Value:
        """`and`, `or`: the right side reads nothing where the left side decides."""
        is_and = node.op == "and"
        chain: list[ast.Binary] = []
        left: ast.Expr = node
        while isinstance(left, ast.Binary) and left.op == node.op:
            chain.append(left)
            left = left.left
        value = self.truth(self.expr(left), left.span)
        for step in reversed(chain):
            value = self.connect(value, step, is_and)
        return value

    def truth(self, value: Value, span: Span) -> Scalar | Array:
        """A bool scalar or array."""
        element = self.element(value, span)
        if isinstance(element, WeakInt | WeakFloat) or element.dtype != BOOL:
            self.fail(
                "LF0211", "a condition must be bool", span, f"this is {describe(element)}", fix=f"{span.text} != 0"
            )
        return element

    def connect(self, left: Scalar | Array, step: ast.Binary, is_and: bool) -> Scalar | Array:
        """One step of a chain of `and` or `or`."""
        row = ops.OPS["and" if is_and else "or"]
        spans = (step.left.span, step.right.span)
        if isinstance(left, Array):
            right = self.truth(self.expr(step.right), step.right.span)
            return self.truth(self.apply(row, (left, right), spans, step.span), step.span)
        with self.watch() as guarded, self.under(left.expr, is_and):
            right = self.truth(self.expr(step.right), step.right.span)
            lazy = guarded()
        if isinstance(right, Array) or not lazy:
            return self.truth(self.apply(row, (left, right), spans, step.span), step.span)
        decided = Const(0 if is_and else 1, BOOL)
        then, other = (right.expr, decided) if is_and else (decided, right.expr)
        return Scalar(Select(left.expr, then, other, span=step.span), max(left.depth, right.depth) + 1)

    def compare(self, node: ast.Compare) -> Value:
        """`a < b <= c`: all of the comparisons."""
        values = [self.expr(o) for o in node.operands]
        spans = [o.span for o in node.operands]
        result: Element | None = None
        for k, op in enumerate(node.ops):
            pair = self.apply(ops.INFIX[op], values[k : k + 2], spans[k : k + 2], node.span)
            result = (
                pair
                if result is None
                else self.apply(ops.OPS["and"], (result, pair), (node.span, node.span), node.span)
            )
        assert result is not None
        return result

    # -- the lazy choice ------------------------------------------------------------------------------------------------------

    def if_else(self, node: ast.IfElse) -> Value:
        """`a if c else b`, element by element."""
        cond = self.truth(self.expr(node.cond), node.cond.span)
        if isinstance(cond, Array):
            then, other = self.expr(node.then), self.expr(node.other)
        else:
            if isinstance(cond.expr, Const):
                return self.expr(node.then if cond.expr.bits else node.other)
            with self.under(cond.expr):
                then = self.expr(node.then)
            with self.under(cond.expr, False):
                other = self.expr(node.other)
        if isinstance(then, View) or isinstance(other, View):
            self.element(then if isinstance(then, View) else other, node.span)
        return self.choice(node, cond, self.element(then, node.then.span), self.element(other, node.other.span))

    def choice(self, node: ast.IfElse, cond: Scalar | Array, then: Element, other: Element) -> Value:
        """A choice between two values of one type."""
        if isinstance(cond, Scalar) and isinstance(then, WeakInt) and isinstance(other, WeakInt):
            return WeakInt(Select(cond.expr, then.expr, other.expr, span=node.span))
        if (
            isinstance(cond, Scalar)
            and isinstance(then, WeakInt | WeakFloat)
            and isinstance(other, WeakInt | WeakFloat)
        ):
            weak_then, weak_other = self.as_float(then, node.then.span), self.as_float(other, node.other.span)
            depth = max(weak_then.depth, weak_other.depth) + 1

            def build(dtype: DType) -> Expr:
                return Select(cond.expr, weak_then.build(dtype), weak_other.build(dtype), span=node.span)

            return WeakFloat(None, build, depth)
        dtype = self.arm_type(then, other, node)
        spans = (node.cond.span, node.then.span, node.other.span)
        items: tuple[Element, ...] = (cond, then, other)
        depth = 1 + max(i.depth for i in items if not isinstance(i, WeakInt))
        if not any(isinstance(i, Array) for i in items):
            assert isinstance(cond, Scalar) and not isinstance(then, Array) and not isinstance(other, Array)
            a, b = self.typed(then, dtype, spans[1]), self.typed(other, dtype, spans[2])
            return Scalar(Select(cond.expr, a, b, span=node.span), depth)
        shape = self.broadcast(items, spans, node.span)
        test = self.pull(cond, BOOL, spans[0], len(shape))
        yes, no = (self.pull(v, dtype, s, len(shape)) for v, s in ((then, spans[1]), (other, spans[2])))

        def at(subs: Subs, modes: Modes) -> Expr:
            c = test(subs)
            with self.under(c):
                a = yes(subs)
            with self.under(c, False):
                b = no(subs)
            return Select(c, a, b, span=node.span)

        return Array(dtype, shape, at, (False,) * len(shape), depth=depth)

    def arm_type(self, then: Element, other: Element, node: ast.IfElse) -> DType:
        """The type of both arms."""
        typed = [v.dtype for v in (then, other) if isinstance(v, Scalar | Array)]
        if not typed:
            return I64 if isinstance(then, WeakInt) and isinstance(other, WeakInt) else F32
        met = typed[0] if len(typed) == 1 else promote(typed[0], typed[1])
        if met is None:
            self.fail("LF0210", f"the arms are {typed[0]} and {typed[1]}", node.span, "no implicit conversion",
                      (node.then.span, f"{typed[0]}"), (node.other.span, f"{typed[1]}"), fix=f"convert one arm: {typed[0]}(...)")  # fmt: skip
        if any(isinstance(v, WeakFloat) for v in (then, other)) and not met.is_float:
            self.fail("LF0210", f"cannot mix {met} and a fractional number", node.span, "no implicit conversion between integers and floats",
                      fix=f"f32(...) in the arm that is {met}")  # fmt: skip
        return met

    # -- calls, attributes ------------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Value:
        """A call or a reduction."""
        function = self.callee(node.fn)
        if function.decl is None and function.builtin is None:
            raise Failed  # its definition did not parse
        if node.gen is not None:
            if function.decl is not None or function.builtin not in GENERATORS:
                self.fail("LF0217", f"`{function.name}` does not take a `for` clause", node.span, "not a reduction",
                          fix=f"[{node.args[0].span.text} for ...] makes an array")  # fmt: skip
            return self.reduce_generator(function.builtin, node)
        if function.builtin == "dtype":
            assert isinstance(node.fn, ast.Attr)
            value = self.attribute(node.fn)
            assert isinstance(value, Type)
            return self.cast_call(value.dtype, node)
        if function.builtin is not None:
            return self.builtin(function.builtin, node)
        return self.call_function(function, node)

    def attribute(self, node: ast.Attr) -> Value:
        """`.T`, `.mT`, `.shape`, `.dtype`, `.ndim`."""
        if (
            isinstance(node.base, ast.Name)
            and self.scope.find(node.base.id) is None
            and self.scope.module(node.base.id)
        ):
            self.callee(node)
            self.fail(
                "LF0219",
                f"`{node.span.text}` is a function",
                node.span,
                "not called here",
                fix=f"{node.span.text}(...)",
            )
        base = self.expr(node.base)
        if isinstance(base, View) and node.name in ("dtype", "shape", "ndim"):
            base = base.array
        value = self.element(base, node.base.span)
        if node.name == "dtype":
            return Type(self.settled(value, node.span).dtype if not isinstance(value, Array) else value.dtype)
        array = self.as_array(value, node.base.span) if node.name in ("T", "mT") else value
        shape = array.shape if isinstance(array, Array) else ()
        match node.name:
            case "T":
                if len(shape) != 2:
                    self.fail(
                        "LF0403",
                        "`.T` is for matrices",
                        node.span,
                        f"this is {describe(array)}",
                        fix="x.mT swaps the last two axes, transpose(x) reverses all",
                    )
                return self.permute(self.as_array(array, node.span), (1, 0))
            case "mT":
                if len(shape) < 2:
                    self.fail("LF0403", "`.mT` needs two axes", node.span, f"this is {describe(array)}")
                lead = tuple(range(len(shape) - 2))
                return self.permute(self.as_array(array, node.span), (*lead, len(shape) - 1, len(shape) - 2))
            case "shape":
                return Tuple(tuple(WeakInt(Affine(e)) for e in shape))
            case "ndim":
                return WeakInt(Affine(Poly.of(len(shape))))
        near = self.suggest(node.name, ("T", "mT", "shape", "dtype", "ndim"))
        known = node.name in self.builtin_names()
        fix = f"{node.name}({node.base.span.text}, ...)" if known else (f"did you mean `.{near}`?" if near else None)
        fix = f"a cast: f32({node.base.span.text})" if node.name == "astype" else fix
        self.fail(
            "LF0204", f"no attribute `{node.name}`", node.name_span, "values have T, mT, shape, dtype and ndim", fix=fix
        )

    # -- arrays written out -----------------------------------------------------------------------------------------------------

    def array_literal(self, node: ast.ArrayLit) -> Value:
        """`[1, 2, 1]`, nested for more axes: stored element by element."""
        items: list[tuple[Element, Span]] = []
        shape = self.literal_shape(node, items)
        typed = [v.dtype for v, _ in items if isinstance(v, Scalar)]
        dtype = F32 if any(isinstance(v, WeakFloat) for v, _ in items) else I64
        if typed:
            dtype = typed[0]
            for other, (_, span) in zip(typed, items, strict=False):
                met = promote(dtype, other)
                if met is None:
                    self.fail("LF0210", f"cannot mix {dtype} and {other} in one array", span, "no implicit conversion")
                dtype = met
        exprs = [self.typed(v, dtype, s) for v, s in items if not isinstance(v, Array)]
        if not exprs:
            self.fail(
                "LF0406", "an array literal needs elements", node.span, "its type is unknown", fix="zeros(f32, 0)"
            )

        def at(subs: Subs, modes: Modes) -> Expr:
            flat: Expr = subs[0]
            for sub, extent in zip(subs[1:], shape[1:], strict=True):
                a, b = flat, sub
                if isinstance(a, Affine) and isinstance(b, Affine):
                    flat = Affine(a.poly * extent + b.poly)
                else:
                    flat = Op("add", (Op("mul", (a, Affine(Poly.of(extent))), I64), b), I64)
            if isinstance(flat, Affine) and flat.poly.is_const:
                return exprs[flat.poly.constant]
            return choose_by(flat, exprs, 0, len(exprs))

        array = Array(dtype, tuple(Poly.of(n) for n in shape), at, (False,) * len(shape), depth=2)
        return self.materialise(array, "array", node.span)

    def literal_shape(self, node: ast.ArrayLit, items: list[tuple[Element, Span]]) -> tuple[int, ...]:
        """The shape of a nested literal; gathers the elements in order."""
        shapes = set()
        for item in node.items:
            if isinstance(item, ast.ArrayLit):
                shapes.add(self.literal_shape(item, items))
            else:
                element = self.element(self.expr(item), item.span)
                if isinstance(element, Array):
                    self.fail(
                        "LF0406",
                        "an element of an array literal must be a number",
                        item.span,
                        f"this is {element}",
                        fix="concat(a, b) and stack(a, b) take arrays one by one",
                    )
                items.append((element, item.span))
                shapes.add(())
        if len(shapes) > 1:
            self.fail("LF0404", "the rows of an array literal differ in length", node.span, "not a rectangle")
        return (len(node.items), *(shapes.pop() if shapes else ()))

    def extents_are_sizes(self, dims: Sequence[Dim]) -> None:
        """An index of an array may be bounded by sizes only: a param would make an extent known at the call."""
        for d in dims:
            for p in (*d.lo, *d.hi):
                if not self.is_size(p, params=False):
                    self.fail("LF0309", "an extent must be made of sizes", d.span, f"`{p}` is known only at the call or in a loop",
                              fix="declare it: size K = ..., or filter: ... if i < k else 0")  # fmt: skip

    def comprehension(self, node: ast.Comprehension) -> Value:
        """`[e for k in 0..N]`: an array with an axis an index."""
        if node.gen.cond is not None:
            self.fail("LF0408", "a filter gives an array whose size depends on values", node.gen.cond.span, "not allowed here",
                      fix=f"keep the size: [{node.body.span.text} if {node.gen.cond.span.text} else 0 for ...]")  # fmt: skip
        scope = Scope(self.scope)
        before = self.equation
        with self.context(), self.inside(scope):
            self.equation = True
            try:
                dims = self.bind(scope, node.gen.binders, [node.body])
                e = self.scalar_element(node.body)
            finally:
                self.equation = before
            self.extents_are_sizes(dims)
            bases = [self.base(d, node.span) for d in dims]
            shape = tuple(self.extent(d, b, node.span) for d, b in zip(dims, bases, strict=True))
            around, extents, lead = self.surroundings(e, tuple(dims), node.span)
            buffer = self.declare("array", e.dtype, (*extents, *shape), node.span)
            own = tuple(Affine(Poly.of(d.id) - b) for d, b in zip(dims, bases, strict=True))
            self.define(buffer, (*around, *dims), (*self.trip_subs(), *lead, *own), e, node.span)
        for extent in shape:
            self.fits(extent, "an extent", node.span)
        return self.stored(buffer, e.dtype, shape, (*self.trip_subs(), *lead))


def choose_by(position: Expr, exprs: list[Expr], lo: int, hi: int) -> Expr:
    """The element at a position between `lo` and `hi`, by halving."""
    if hi - lo == 1:
        return exprs[lo]
    middle = (lo + hi) // 2
    cond = Op("lt", (position, Affine(Poly.of(middle))), BOOL)
    return Select(cond, choose_by(position, exprs, lo, middle), choose_by(position, exprs, middle, hi))
