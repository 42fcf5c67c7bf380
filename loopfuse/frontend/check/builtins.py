"""The functions of the language: which arguments each takes, and what it does with them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, DTYPES, F32, I64, DType
from loopfuse.frontend import ast
from loopfuse.frontend.check.convert import describe, number
from loopfuse.frontend.check.products import Products
from loopfuse.frontend.check.reduce import ARRAY_FORMS, CUMULATIVE
from loopfuse.frontend.check.values import Array, Element, Scalar, Text, Tuple, Value, View, WeakFloat, WeakInt
from loopfuse.ir import Const, Op
from loopfuse.sizes import Poly

VIEWS = ("edge", "constant", "wrap", "reflect", "symmetric")
LATER = {
    "sort": "ranks by counting, or rounds of argmin",
    "argsort": "ranks by counting, or rounds of argmin",
    "topk": "rounds of argmax with the taken ones masked",
    "unique": "a padded result and a count",
    "nonzero": "a padded result and a count: cumsum of the mask and a scatter",
    "random": "a counter hash in u32",
    "print": "output t, or `run --show t`",
    "solve": "cholesky, lu or substitution as scans",
    "inv": "lu and substitution as scans",
    "eig": "power iteration as a scan",
    "fft": "a gather over the whole array in each of log2(N) steps",
}

Opt = ast.Expr | None
Rest = tuple[ast.Expr, ...]


class Builtins(Products):
    """Calls of built-in functions. A method `call_x` is the function x; its parameters are x's own."""

    def builtin(self, name: str, node: ast.Call) -> Value:
        """Call a built-in function."""
        if name in DTYPES:
            return self.cast_call(DTYPES[name], node)
        if name in LATER:
            self.fail(
                "LF0900", f"not in version 1: `{name}`", node.fn.span, "has no form yet", fix=f"write {LATER[name]}"
            )
        if name in ops.FUNCTIONS:
            return self.elementwise(ops.FUNCTIONS[name], node)
        if name in CUMULATIVE:
            return self.cumulative(name, **self.matched(name, node, ("x",), ("axis", "dtype")))
        if name in ARRAY_FORMS:
            return self.reduction(name, **self.matched(name, node, ("x",), ("axis", "keepdims", "dtype", "ddof")))
        if name in VIEWS:
            return self.boundary(name, node)
        method = getattr(self, f"call_{name}")
        signature = inspect.signature(method)
        own = [p for p in signature.parameters.values() if p.name not in ("node", "rest")]
        required = tuple(p.name for p in own if p.default is p.empty)
        optional = tuple(p.name for p in own if p.default is not p.empty)
        variadic = "rest" in signature.parameters
        arguments = self.matched(name, node, required, optional, variadic)
        result: Value = method(node=node, **arguments)
        return result

    @classmethod
    def builtin_names(cls) -> tuple[str, ...]:
        """All functions of the language."""
        own = (n.removeprefix("call_") for n in dir(cls) if n.startswith("call_"))
        return (*own, *ops.FUNCTIONS, *CUMULATIVE, *ARRAY_FORMS, *VIEWS, *DTYPES)

    def matched(self, name: str, node: ast.Call, required: tuple[str, ...], optional: tuple[str, ...],
                variadic: bool = False) -> dict[str, Any]:  # fmt: skip
        """The arguments of a call by parameter."""
        order = (*required, *optional)
        usage = f"{name}({', '.join((*required, *(['...'] if variadic else []), *(f'{o}=' for o in optional)))})"
        given: dict[str, Any] = {}
        positional = node.args
        if variadic:
            given["rest"] = positional[len(required) :]
            positional = positional[: len(required)]
        if len(positional) > len(order):
            self.fail(
                "LF0217",
                f"`{name}` takes at most {len(order)} arguments",
                node.span,
                f"{len(positional)} given",
                fix=usage,
            )
        given |= dict(zip(order, positional, strict=False))
        for key, value, span in node.kwargs:
            if key not in order:
                near = self.suggest(key, order)
                self.fail(
                    "LF0217",
                    f"`{name}` has no parameter `{key}`",
                    span,
                    f"did you mean `{near}`?" if near else "unknown",
                    fix=usage,
                )
            if key in given:
                self.fail("LF0217", f"`{key}` is given twice", span, "given before", fix=usage)
            given[key] = value
        missing = [r for r in required if r not in given]
        if missing:
            self.fail("LF0217", f"`{name}` needs `{missing[0]}`", node.span, "an argument is missing", fix=usage)
        return given

    # -- elementwise ------------------------------------------------------------------------------------------------------

    def elementwise(self, row: ops.OpRow, node: ast.Call) -> Value:
        """A row of the op table called by name."""
        if node.kwargs or len(node.args) != row.arity:
            wanted = f"{row.arity} argument{'s' if row.arity != 1 else ''}"
            fix = "max only reduces" if row.name in ("minimum", "maximum") else None
            self.fail(
                "LF0217",
                f"`{row.surface}` takes {wanted}",
                node.span,
                f"{len(node.args) + len(node.kwargs)} given",
                fix=fix,
            )
        return self.apply(row, [self.expr(a) for a in node.args], [a.span for a in node.args], node.span)

    def cast_call(self, dtype: DType, node: ast.Call) -> Value:
        """`f16(e)`: a cast that the user wrote, kept even where it looks redundant only if it changes the type."""
        if len(node.args) != 1 or node.kwargs:
            self.fail(
                "LF0217",
                f"`{dtype}` takes one argument",
                node.span,
                f"{len(node.args)} given",
                fix=f"zeros({dtype}, N) makes an array",
            )
        return self.converted(self.expr(node.args[0]), dtype, node.args[0].span, node.span)

    def converted(self, value: Value, dtype: DType, inner: Span, span: Span) -> Element:
        """A value cast to a type on request."""
        element = self.element(value, inner)
        if (isinstance(element, WeakInt) and not (dtype.is_int or dtype.kind == "bool")) or isinstance(
            element, WeakFloat
        ):
            weak = self.as_float(element, span)
            if dtype.is_float:
                return Scalar(self.typed(weak, dtype, span), weak.depth)
            element = self.settled(weak, span)
        if isinstance(element, WeakInt):
            poly = element.poly
            if poly is not None and poly.is_const and dtype.is_int and dtype.least <= poly.constant <= dtype.greatest:
                return Scalar(self.literal(poly.constant, dtype, span))
            return Scalar(Op("cast", (element.expr,), dtype, span=span))
        if element.dtype == dtype:
            return element
        if isinstance(element, Array) and element.free:
            source = element
            mapped = self.map(source, span, lambda e: Op("cast", (e,), dtype, span=span), dtype)
            assert isinstance(mapped, Array)
            return mapped
        return self.map(element, span, lambda e: Op("cast", (e,), dtype, span=span), dtype)

    def call_bits(self, x: ast.Expr, dtype: ast.Expr, node: ast.Call) -> Value:
        """Reinterpret the bits as another type of the same width."""
        target = self.dtype_of(dtype)
        element = self.element(self.expr(x), x.span)
        assert target is not None
        settled = element if isinstance(element, Array) else self.settled(element, x.span)
        if settled.dtype.bits != target.bits or "bool" in (settled.dtype.kind, target.kind):
            self.fail(
                "LF0215",
                f"bits of {settled.dtype} as {target}",
                node.span,
                "the widths differ",
                fix="a type of the same width",
            )
        return self.map(settled, node.span, lambda e: Op("bits", (e,), target, span=node.span), target)

    def call_close(self, a: ast.Expr, b: ast.Expr, node: ast.Call, rtol: Opt = None, atol: Opt = None) -> Value:
        """`abs(a - b) <= atol + rtol * abs(b)`, or both equal (infinities)."""
        left, right = self.expr(a), self.expr(b)
        span, row = node.span, ops.OPS

        def two(name: str, x: Value, y: Value) -> Element:
            return self.apply(row[name], (x, y), (a.span, b.span), span)

        relative = self.expr(rtol) if rtol is not None else WeakFloat(1e-5, lambda d: self.literal(1e-5, d, span))
        absolute = self.expr(atol) if atol is not None else WeakFloat(1e-8, lambda d: self.literal(1e-8, d, span))
        size = self.apply(row["abs"], (right,), (b.span,), span)
        allowed = two("add", absolute, two("mul", relative, size))
        distance = self.apply(row["abs"], (two("sub", left, right),), (span,), span)
        finite = self.apply(row["isfinite"], (size,), (span,), span)
        return two("or", two("and", two("le", distance, allowed), finite), two("eq", left, right))

    # -- reductions -------------------------------------------------------------------------------------------------------

    def reduction(
        self, name: str, x: ast.Expr, axis: Opt = None, keepdims: Opt = None, dtype: Opt = None, ddof: Opt = None
    ) -> Value:
        """The array form of a reduction."""
        value = self.expr(x)
        if isinstance(value, WeakInt | WeakFloat | Scalar):
            forms = ", ".join("maximum, minimum" if name in ("max", "min") else [])
            self.fail("LF0403", f"`{name}` reduces an array", x.span, f"this is {describe(value)}",
                      fix="maximum(a, b) and minimum(a, b) compare two" if forms else f"{name}(... for k)")  # fmt: skip
        array = self.as_array(value, x.span)
        if ddof is not None and name not in ("var", "std"):
            self.fail("LF0217", f"`{name}` has no parameter `ddof`", ddof.span, "only var and std have")
        axes = self.axes_of(axis, array.rank)
        if name in ("argmax", "argmin") and axes is not None and len(axes) != 1:
            self.fail(
                "LF0407",
                f"`{name}` takes one axis",
                axis.span if axis else x.span,
                "or none: then the position is flat",
            )
        degrees = self.constant_int(ddof, "ddof") if ddof is not None else 0
        return self.reduce_array(name, array, axes, self.flag(keepdims, False), self.dtype_of(dtype), x.span, degrees)

    def cumulative(self, name: str, x: ast.Expr, axis: Opt = None, dtype: Opt = None) -> Value:
        """cumsum and its like."""
        array = self.array_arg(x)
        if axis is None and array.rank > 1:
            self.fail(
                "LF0407",
                f"`{name}` of {array.rank} axes needs `axis=`",
                x.span,
                "NumPy would flatten",
                fix=f"{name}({x.span.text}, axis=-1)",
            )
        k = self.axis_number(self.constant_int(axis, "axis"), array.rank, axis.span) if axis is not None else 0
        return self.cumulate(name, array, k, self.dtype_of(dtype), x.span)

    # -- views ------------------------------------------------------------------------------------------------------------

    def boundary(self, name: str, node: ast.Call) -> View:
        """`edge(x)`, `constant(x, fill)` and the other boundary views."""
        required = ("x", "fill") if name == "constant" else ("x",)
        given = self.matched(name, node, required, ())
        x, fill = given["x"], given.get("fill")
        assert isinstance(x, ast.Name | object)
        array = self.array_arg(node.args[0] if node.args else node.kwargs[0][1])
        value = None
        if fill is not None:
            element = self.element(self.expr(node.args[1] if len(node.args) > 1 else node.kwargs[-1][1]), node.span)
            if isinstance(element, Array):
                self.fail("LF0406", "the fill must be a number", node.span, f"this is {element}")
            value = element
        if not array.free:
            stored = self.materialise(array, "t", node.span)
            assert isinstance(stored, Array)
            array = stored
        return View(array, name, value, node.span)

    def call_reshape(self, x: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """reshape(x, dims...); one dim may be a literal -1."""
        array = self.array_arg(x)
        open_axis = [k for k, d in enumerate(rest) if self.from_end(d) == 1]
        if len(open_axis) > 1:
            self.fail("LF0404", "only one extent may be -1", node.span, "which one to infer is open")
        shape = [Poly.of(1) if k in open_axis else self.extent_arg(d) for k, d in enumerate(rest)]
        if open_axis:
            known, total = Poly.of(1), Poly.of(1)
            for e in shape:
                known = known * e
            for e in array.shape:
                total = total * e
            if self.divisor(known, node.span):
                shape[open_axis[0]] = total // known
        return self.reshape(self.reusable(array, node.span), tuple(shape), node.span)

    def reusable(self, array: Array, span: Span) -> Array:
        """An array that may be read at computed positions at no cost."""
        if array.free:
            return array
        stored = self.materialise(array, "t", span)
        assert isinstance(stored, Array)
        return stored

    def call_transpose(self, x: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """transpose(x) reverses the axes; transpose(x, 0, 2, 1) orders them."""
        array = self.array_arg(x)
        order = tuple(self.axis_number(self.constant_int(a, "an axis"), array.rank, a.span) for a in rest)
        if not rest:
            order = tuple(reversed(range(array.rank)))
        if sorted(order) != list(range(array.rank)):
            self.fail("LF0407", f"{list(order)} is not an order of the axes of {array}", node.span, "each axis once")
        return self.permute(array, order)

    def call_swapaxes(self, x: ast.Expr, a: ast.Expr, b: ast.Expr, node: ast.Call) -> Value:
        """Exchange two axes."""
        array = self.array_arg(x)
        order = list(range(array.rank))
        i, j = (self.axis_number(self.constant_int(n, "an axis"), array.rank, n.span) for n in (a, b))
        order[i], order[j] = order[j], order[i]
        return self.permute(array, tuple(order))

    def call_squeeze(self, x: ast.Expr, node: ast.Call, axis: Opt = None) -> Value:
        """Drop axes written as 1."""
        array = self.array_arg(x)
        axes = self.axes_of(axis, array.rank)
        if axes is None:
            axes = tuple(k for k, e in enumerate(array.shape) if e == Poly.of(1))
        return self.squeeze(array, axes, node.span)

    def call_expand_dims(self, x: ast.Expr, axis: ast.Expr, node: ast.Call) -> Value:
        """A new axis of extent 1."""
        array = self.array_arg(x)
        return self.newaxis(array, self.axis_number(self.constant_int(axis, "axis"), array.rank + 1, axis.span))

    def call_broadcast_to(self, x: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """broadcast_to(x, dims...)."""
        return self.broadcast_to(self.expr(x), self.extents(rest), node.span)

    def call_flip(self, x: ast.Expr, node: ast.Call, axis: Opt = None) -> Value:
        """Reverse axes (all without axis=)."""
        array = self.array_arg(x)
        axes = self.axes_of(axis, array.rank)
        for k in range(array.rank) if axes is None else axes:
            array = self.part(array, k, array.shape[k] - 1, -1, array.shape[k])
        return array

    def call_split(self, x: ast.Expr, sections: ast.Expr, node: ast.Call, axis: Opt = None) -> Value:
        """Equal parts along an axis (0 without axis=)."""
        array = self.array_arg(x)
        count = self.constant_int(sections, "the number of parts")
        k = self.axis_number(self.constant_int(axis, "axis"), array.rank, axis.span) if axis is not None else 0
        if count < 1 or not self.require_equal(
            array.shape[k] // count * count, array.shape[k], "split needs equal parts", node.span
        ):
            self.fail(
                "LF0404",
                f"cannot split {array.shape[k]} into {count} equal parts",
                node.span,
                "the extent is no multiple",
            )
        each = array.shape[k] // count
        array = self.reusable(array, node.span)
        return Tuple(tuple(self.part(array, k, each * n, 1, each) for n in range(count)))

    def call_diagonal(self, x: ast.Expr, node: ast.Call) -> Value:
        """The main diagonal of a square matrix."""
        return self.diagonal(self.array_arg(x), node.span)

    # -- joins and choices --------------------------------------------------------------------------------------------------

    def several(self, nodes: Sequence[ast.Expr], name: str, span: Span) -> list[Array]:
        """The arrays of a join."""
        if not nodes:
            self.fail("LF0217", f"`{name}` needs arrays", span, "none given")
        return [self.reusable(self.array_arg(n), n.span) for n in nodes]

    def call_concat(self, rest: Rest, node: ast.Call, axis: Opt = None) -> Value:
        """concat(a, b, ..., axis=0)."""
        arrays = self.several(rest, "concat", node.span)
        k = self.axis_number(self.constant_int(axis, "axis"), arrays[0].rank, axis.span) if axis is not None else 0
        return self.concat(arrays, k, node.span)

    def call_stack(self, rest: Rest, node: ast.Call, axis: Opt = None) -> Value:
        """stack(a, b, ..., axis=0): a new axis."""
        arrays = self.several(rest, "stack", node.span)
        k = self.axis_number(self.constant_int(axis, "axis"), arrays[0].rank + 1, axis.span) if axis is not None else 0
        return self.concat([self.newaxis(a, k) for a in arrays], k, node.span)

    def call_pad(self, x: ast.Expr, widths: ast.Expr, node: ast.Call, mode: Opt = None, value: Opt = None) -> Value:
        """pad(x, 1), pad(x, (1, 2)) or pad(x, ((1, 2), (0, 0)), mode="edge", value=0)."""
        array = self.array_arg(x)
        kind = "constant"
        if mode is not None:
            text = self.expr(mode)
            kind = text.text if isinstance(text, Text) else ""
            if kind not in VIEWS:
                self.fail("LF0406", "an unknown mode", mode.span, "of pad", fix=f"one of {', '.join(VIEWS)}")
        pairs = self.pad_widths(widths, array.rank)
        return self.pad(array, pairs, kind, self.expr(value) if value is not None else number(0), node.span)

    def pad_widths(self, node: ast.Expr, rank: int) -> list[tuple[Poly, Poly]]:
        """The widths of pad for each axis."""
        if not isinstance(node, ast.TupleExpr):
            width = self.extent_arg(node)
            return [(width, width)] * rank
        if all(isinstance(i, ast.TupleExpr) for i in node.items):
            pairs = [i.items for i in node.items if isinstance(i, ast.TupleExpr)]
            if len(pairs) != rank or any(len(p) != 2 for p in pairs):
                self.fail(
                    "LF0406", f"pad needs a pair of widths for each of {rank} axes", node.span, f"{len(pairs)} given"
                )
            return [(self.extent_arg(p[0]), self.extent_arg(p[1])) for p in pairs]
        if len(node.items) != 2:
            self.fail("LF0406", "the widths of pad are one number, (before, after), or a pair for each axis", node.span)
        both = (self.extent_arg(node.items[0]), self.extent_arg(node.items[1]))
        return [both] * rank

    def call_roll(self, x: ast.Expr, shift: ast.Expr, node: ast.Call, axis: Opt = None) -> Value:
        """roll(x, shift, axis=) (axis may be left out of a vector)."""
        array = self.array_arg(x)
        if axis is None and array.rank > 1:
            self.fail("LF0407", f"`roll` of {array.rank} axes needs `axis=`", node.span, "NumPy would flatten")
        k = self.axis_number(self.constant_int(axis, "axis"), array.rank, axis.span) if axis is not None else 0
        value = self.expr(shift)
        poly = value.poly if isinstance(value, WeakInt) else None
        if poly is None:
            self.fail(
                "LF0406",
                "the shift must be an integer known before the program runs",
                shift.span,
                f"this is {describe(value)}",
            )
        return self.roll(array, poly, k, node.span)

    def call_tile(self, x: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """tile(x, n...): copies along each axis, the last ones first as in NumPy."""
        array = self.reusable(self.array_arg(x), node.span)
        counts = self.extents(rest)
        while array.rank < len(counts):
            array = self.newaxis(array, 0)
        for k, count in enumerate(counts, array.rank - len(counts)):
            array = self.periodic(array, k, count, each=False)
        return array

    def call_repeat(self, x: ast.Expr, count: ast.Expr, node: ast.Call, axis: Opt = None) -> Value:
        """repeat(x, n, axis=): each element n times."""
        array = self.reusable(self.array_arg(x), node.span)
        if axis is None and array.rank > 1:
            self.fail("LF0407", f"`repeat` of {array.rank} axes needs `axis=`", node.span, "NumPy would flatten")
        k = self.axis_number(self.constant_int(axis, "axis"), array.rank, axis.span) if axis is not None else 0
        (n,) = self.extents((count,))
        return self.periodic(array, k, n, each=True)

    def triangular(self, x: ast.Expr, k: Opt, upper: bool, node: ast.Call) -> Value:
        """tril and triu."""
        diagonal = self.expr(k) if k is not None else number(0)
        poly = diagonal.poly if isinstance(diagonal, WeakInt) else None
        if poly is None:
            self.fail("LF0406", "the diagonal must be an integer known before the program runs", node.span)
        return self.triangle(self.array_arg(x), upper, poly, node.span)

    def call_tril(self, x: ast.Expr, node: ast.Call, k: Opt = None) -> Value:
        """The lower triangle."""
        return self.triangular(x, k, False, node)

    def call_triu(self, x: ast.Expr, node: ast.Call, k: Opt = None) -> Value:
        """The upper triangle."""
        return self.triangular(x, k, True, node)

    def call_take(self, x: ast.Expr, index: ast.Expr, node: ast.Call, axis: Opt = None) -> Value:
        """take(x, index, axis=) (axis may be left out of a vector)."""
        array = self.reusable(self.array_arg(x), node.span)
        if axis is None and array.rank > 1:
            self.fail("LF0407", f"`take` of {array.rank} axes needs `axis=`", node.span, "NumPy would flatten")
        k = self.axis_number(self.constant_int(axis, "axis"), array.rank, axis.span) if axis is not None else 0
        return self.take(array, self.expr(index), k, node)

    def call_one_hot(self, index: ast.Expr, extent: ast.Expr, node: ast.Call, dtype: Opt = None) -> Value:
        """one_hot(index, N, dtype=f32)."""
        element = self.element(self.expr(index), index.span)
        settled = element if isinstance(element, Array) else self.settled(element, index.span)
        (n,) = self.extents((extent,))
        return self.one_hot(settled, n, self.dtype_of(dtype) or F32, node.span)

    # -- makers ---------------------------------------------------------------------------------------------------------------

    def constant_fill(self, dtype: ast.Expr, value: int, rest: Rest, node: ast.Call) -> Value:
        """zeros and ones."""
        held = self.dtype_of(dtype)
        assert held is not None
        return self.filled(
            Const(ops.constant(bool(value) if held == BOOL else value, held), held, span=node.span), self.extents(rest)
        )

    def call_zeros(self, dtype: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """zeros(dtype, dims...)."""
        return self.constant_fill(dtype, 0, rest, node)

    def call_ones(self, dtype: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """ones(dtype, dims...)."""
        return self.constant_fill(dtype, 1, rest, node)

    def call_full(self, dtype: ast.Expr, value: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """full(dtype, value, dims...)."""
        held = self.dtype_of(dtype)
        element = self.element(self.expr(value), value.span)
        assert held is not None
        if isinstance(element, Array):
            self.fail("LF0406", "the value must be a number", value.span, f"this is {element}")
        if isinstance(element, Scalar) and element.dtype != held:
            self.fail(
                "LF0210",
                f"the value is {element.dtype}, the array {held}",
                value.span,
                "no implicit conversion",
                fix=f"{held}(...)",
            )
        return self.filled(self.typed(element, held, value.span), self.extents(rest))

    def call_iota(self, extent: ast.Expr, node: ast.Call, dtype: Opt = None) -> Value:
        """0 .. N-1 as i64 or dtype=."""
        (n,) = self.extents((extent,))
        return self.iota(n, self.dtype_of(dtype) or I64)

    def call_eye(self, dtype: ast.Expr, extent: ast.Expr, node: ast.Call) -> Value:
        """eye(dtype, N)."""
        held = self.dtype_of(dtype)
        assert held is not None
        (n,) = self.extents((extent,))
        return self.eye(n, held)

    # -- products -------------------------------------------------------------------------------------------------------------

    def call_dot(self, a: ast.Expr, b: ast.Expr, node: ast.Call) -> Value:
        """dot of vectors or matrices."""
        return self.matmul(self.expr(a), self.expr(b), (a.span, b.span), node.span)

    def call_outer(self, a: ast.Expr, b: ast.Expr, node: ast.Call) -> Value:
        """All products of two vectors."""
        return self.outer_product(self.expr(a), self.expr(b), (a.span, b.span), node.span)

    def call_einsum(self, subscripts: ast.Expr, rest: Rest, node: ast.Call) -> Value:
        """einsum("ij,jk->ik", a, b)."""
        text = self.expr(subscripts)
        if not isinstance(text, Text):
            self.fail(
                "LF0406", "einsum begins with its subscripts as a string", subscripts.span, f"this is {describe(text)}"
            )
        return self.einsum(text.text, [self.expr(r) for r in rest], [r.span for r in rest], node.span)
