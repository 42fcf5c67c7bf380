"""The functions of the language: which arguments each takes, and what it does with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import DTYPES, DType
from loopfuse.frontend import ast
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.products import Products
from loopfuse.frontend.check.reduce import ARRAY_FORMS, CUMULATIVE
from loopfuse.frontend.check.values import Array, Element, Scalar, Value, View, WeakFloat, WeakInt
from loopfuse.ir import ModeKind, Op

VIEWS: dict[str, ModeKind] = {
    "edge": "edge",
    "constant": "constant",
    "wrap": "wrap",
    "reflect": "reflect",
    "symmetric": "symmetric",
}
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

# Functions of Python and NumPy that have another name or form here.
ELSEWHERE = {
    "int": "a cast: i32(...)",
    "float": "a cast: f32(...)",
    "len": "x.shape[0]",
    "pow": "a ** b",
    "power": "a ** b",
    "arange": "iota(N)",
    "matmul": "a @ b",
    "concatenate": "concat(a, b, axis=0)",
    "vstack": "concat(a, b, axis=0)",
    "hstack": "concat(a, b, axis=1)",
    "zeros_like": "zeros(x.dtype, N)",
    "ones_like": "ones(x.dtype, N)",
    "amax": "max(x)",
    "amin": "min(x)",
    "fmax": "maximum(a, b)",
    "fmin": "minimum(a, b)",
    "fabs": "abs(x)",
}

Opt = ast.Expr | None
Rest = tuple[ast.Expr, ...]


class Calling(Products):
    """Arguments of built-in functions. A method `call_x` is the function x; its parameters are x's own."""

    def builtin(self, name: str, node: ast.Call) -> Value:
        """Call a built-in function."""
        if name in DTYPES:
            return self.cast_call(DTYPES[name], node)
        if name in LATER:
            self.fail(
                "LF0900", f"not in version 1: `{name}`", node.fn.span, "has no form yet", fix=f"write {LATER[name]}"
            )
        if name in ops.FUNCTIONS and not hasattr(self, f"call_{name}"):
            return self.elementwise(ops.FUNCTIONS[name], node)
        if name in CUMULATIVE:
            return self.cumulative(name, **self.matched(name, node, ("x",), ("axis", "dtype"), by_name=True))
        if name in ARRAY_FORMS:
            self.open_reductions.append(node)
            try:
                return self.reduction(
                    name, **self.matched(name, node, ("x",), ("axis", "keepdims", "dtype", "ddof"), by_name=True)
                )
            finally:
                self.open_reductions.pop()
        if name in VIEWS:
            return self.boundary(name, node)
        method: Callable[..., Value] = getattr(self, f"call_{name}")
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
                variadic: bool = False, by_name: bool = False) -> dict[str, Any]:  # fmt: skip
        """The arguments of a call by parameter; `by_name` if the optional ones must be named."""
        order = (*required, *optional)
        usage = f"{name}({', '.join((*required, *(['...'] if variadic else []), *(f'{o}=' for o in optional)))})"
        given: dict[str, Any] = {}
        positional = node.args
        if variadic:
            given["rest"] = positional[len(required) :]
            positional = positional[: len(required)]
        if by_name and len(positional) > len(required):
            two = {"max": "maximum", "min": "minimum"}.get(name)
            a, b = (p.span.text for p in positional[:2])
            self.fail("LF0217", f"`{name}` reduces one array", positional[1].span, "a second argument has no meaning here",
                      fix=f"{two}({a}, {b}) compares two" if two else usage)  # fmt: skip
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
            if node.kwargs and len(node.args) + len(node.kwargs) == row.arity:
                wanted, fix = f"{wanted} by position", "leave the names out"
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
        given = self.matched(name, node, ("x", "fill") if name == "constant" else ("x",), ())
        array = self.array_arg(given["x"])
        fill: WeakInt | WeakFloat | Scalar | None = None
        if "fill" in given:
            element = self.element(self.expr(given["fill"]), node.span)
            if isinstance(element, Array):
                self.fail("LF0406", "the fill must be a number", node.span, f"this is {element}")
            fill = element
        return View(self.reusable(array, node.span), VIEWS[name], fill, node.span)

    def reusable(self, array: Array, span: Span) -> Array:
        """An array that may be read at computed positions at no cost."""
        if array.free:
            return array
        stored = self.materialise(array, "t", span)
        assert isinstance(stored, Array)
        return stored
