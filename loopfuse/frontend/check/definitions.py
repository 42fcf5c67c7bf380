"""`let` and `output`: definitions in both notations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loopfuse.diag import Span
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.exprs import Exprs
from loopfuse.frontend.check.values import (
    Array,
    Element,
    Entry,
    Function,
    Module,
    Poison,
    Scalar,
    Scope,
    Tuple,
    Type,
    Value,
    View,
    WeakFloat,
    WeakInt,
)
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Load
from loopfuse.sizes import ZERO, Poly


class Definitions(Exprs):
    """Definitions."""

    def let(self, node: ast.LetDecl) -> None:
        """A `let` of any form."""
        lhs = node.lhs
        if lhs.names:
            self.let_tuple(node)
            return
        self.defining = (lhs.name, node.value.span)
        if lhs.binders is not None:
            value: Value = self.equation_of(lhs, node.type, node.value)
        else:
            value = self.named(lhs.name, node.type, node.value)
        self.bind_name(lhs.name, lhs.name_span, value)

    def let_tuple(self, node: ast.LetDecl) -> None:
        """`let (a, b) = f(x)`."""
        names = node.lhs.names
        value = self.expr(node.value)
        if not isinstance(value, Tuple) or len(value.items) != len(names):
            count = len(value.items) if isinstance(value, Tuple) else 1
            self.fail(
                "LF0223",
                f"{len(names)} names for {count} value{'s' if count != 1 else ''}",
                node.lhs.span,
                f"this is {describe(value)}",
            )
        for (name, span), item in zip(names, value.items, strict=True):
            if name != "_":
                self.bind_name(name, span, self.settle_name(name, item, span))

    def bind_name(self, name: str, span: Span, value: Value) -> None:
        """Give a value a name in this scope."""
        self.check_new_name(name, span)
        self.scope.values[name] = Entry(value, span, "definition")
        if isinstance(value, Array) and value.buffer and not self.dry and not self.calling:
            self.names.append((name, value.buffer))

    def check_new_name(self, name: str, span: Span) -> None:
        """A size or param may not be defined again; hiding an input is worth a warning."""
        entry = self.scope.values.get(name)
        if entry is None:
            return
        if entry.what in ("size", "param", "dim", "index"):
            self.fail("LF0205", f"`{name}` is already {entry.described}", span, "defined again", (entry.span, "defined here"),
                      fix="choose another name")  # fmt: skip
        if entry.what == "input":
            self.warn(
                "LF0206",
                f"`{name}` hides an input",
                span,
                "from here on",
                (entry.span, "the input"),
                fix="choose another name",
            )

    # -- array notation -----------------------------------------------------------------------------------------------------

    def named(self, name: str, type_: ast.TypeExpr | None, node: ast.Expr) -> Value:
        """The value of `name: type = e`."""
        value = self.expr(node)
        if type_ is not None:
            value = self.declared(self.element(value, node.span), type_, node.span)
        return self.settle_name(name, value, node.span)

    def settle_name(self, name: str, value: Value, span: Span) -> Value:
        """What a name is bound to: numbers of no type and views stay as they are, all else is stored."""
        if isinstance(value, Poison):
            self.poisoned(value, span)
        if isinstance(value, Function | Module | Type | Tuple):
            several = isinstance(value, Tuple) and len(value.items) > 1
            self.fail("LF0224", f"{describe(value)} cannot be bound to one name", span, "not a value",
                      fix="let (a, b) = ... takes two values" if several else None)  # fmt: skip
        if isinstance(value, Array):
            adopted = self.adopt(name, value)
            return adopted if adopted is not None else self.materialise(value, name, span)
        if isinstance(value, Scalar) and not self.equation and not self.is_plain(value.expr):
            return self.materialise(value, name, span)
        return value

    def is_plain(self, e: Expr) -> bool:
        """Whether an expression is a constant or a polynomial, which costs nothing to write again."""
        return isinstance(e, Affine | Const)

    def adopt(self, name: str, value: Array) -> Array | None:
        """Give the buffer just stored for a temporary the name of its definition."""
        if self.dry or not self.body or not isinstance(self.body[-1], typed.Define | typed.Prefix):
            return None
        last = self.body[-1]
        held = self.buffers.get(last.buffer)
        base = last.buffer.split(".")[0]
        if held is None or value.buffer != last.buffer or any(b == last.buffer for _, b in self.names):
            return None
        if base == name or base not in ("arg", "t", "matmul", "einsum", "array", "sum", "prod", "max", "min", "mean", "any", "all", "argmax",
                                        "argmin", "logsumexp", "cumsum", "cumprod", "cummax", "cummin"):  # fmt: skip
            return None
        new = Buffer(
            self.fresh(name), held.dtype, held.shape, held.role, held.scope, held.window, held.range, span=held.span
        )
        del self.buffers[last.buffer]
        self.buffers[new.id] = new
        self.body[-1] = replace(last, buffer=new.id)
        if isinstance(last, typed.Define):
            self.learn(new.id, last.subs, last.value)
        result = self.stored(new.id, held.dtype, value.shape, ())
        assert isinstance(result, Array)
        return result

    def declared(self, value: Element, type_: ast.TypeExpr, span: Span) -> Element:
        """A value against a declared type: checked, never cast; a number of no type takes it."""
        dtype = self.dtype_named(type_)
        if isinstance(value, WeakInt | WeakFloat):
            if type_.dims:
                self.fail("LF0225", f"this is {describe(value)}, declared {type_.span.text}", span, "a number is not an array",
                          (type_.span, "declared here"), fix=f"full({dtype}, {span.text}, ...)")  # fmt: skip
            return Scalar(self.typed(value, dtype, span))
        if value.dtype != dtype:
            self.fail("LF0225", f"this is {describe(value)}, declared {type_.span.text}", span, f"its type is {value.dtype}",
                      (type_.span, "declared here"), fix=f"convert it: {dtype}({span.text})" if "\n" not in span.text else f"{dtype}(...)")  # fmt: skip
        shape = value.shape if isinstance(value, Array) else ()
        self.declared_shape(type_, shape, span, describe(value))
        return value

    def declared_shape(self, type_: ast.TypeExpr, shape: tuple[Poly, ...], span: Span, what: str) -> None:
        """A shape against the dims of a declared type."""
        dims = type_.dims or ()
        if any(isinstance(d, ast.Rest) for d in dims) or len(dims) != len(shape):
            self.fail(
                "LF0226",
                f"this is {what}, declared {type_.span.text}",
                span,
                f"{len(shape)} axes",
                (type_.span, "declared here"),
            )
        for dim, extent in zip(dims, shape, strict=True):
            assert not isinstance(dim, ast.Rest)
            wanted = self.extent_arg(dim)
            if not self.require_equal(wanted, extent, "the declared extent", dim.span):
                self.fail(
                    "LF0226",
                    f"this is {what}, declared {type_.span.text}",
                    span,
                    f"{extent} is not {wanted}",
                    (dim.span, "declared here"),
                )

    # -- index equations ------------------------------------------------------------------------------------------------------

    def equation_of(self, lhs: ast.Lhs, type_: ast.TypeExpr | None, node: ast.Expr) -> Array | Scalar:
        """`name[i, j in lo..hi] = e`: an array over the ranges of its indices."""
        assert lhs.binders is not None
        scope = Scope(self.scope)
        binders = [b for b in lhs.binders if isinstance(b, ast.Binder)]
        self.distinct(binders)
        before = self.equation
        with self.context(), self.watch(), self.inside(scope):
            try:
                rest = self.bind_rest(scope, lhs, node)
                self.equation = True
                bound = self.bind_left(scope, binders, node)
                dims, k = [], 0
                for b in lhs.binders:
                    if isinstance(b, ast.Rest):
                        dims.extend(rest)
                    else:
                        dims.append(bound[k])
                        k += 1
                value = self.scalar_element(node)
                if type_ is not None:
                    value = self.declared_element(node, type_, value, tuple(d.hi[0] for d in dims))
            finally:
                self.equation = before
            self.extents_are_sizes(dims)
            shape = tuple(d.hi[0] for d in dims)
            subs = tuple(Affine(Poly.of(d.id)) for d in dims)
            around, extents, lead = self.surroundings(value, tuple(dims), node.span)
            buffer = self.declare(lhs.name, value.dtype, (*extents, *shape), lhs.name_span)
            self.define(buffer, (*around, *dims), (*self.trip_subs(), *lead, *subs), value, lhs.span)
        for d in dims:
            self.fits(d.hi[0], f"the extent of `{d.id}`", d.span or lhs.span)
        return self.stored(buffer, value.dtype, shape, (*self.trip_subs(), *lead))

    def declared_element(self, node: ast.Expr, type_: ast.TypeExpr, value: Expr, shape: tuple[Poly, ...]) -> Expr:
        """The element against `let y[i, j]: f16 = e` (the element type) or `: f16[M, N]` (the whole)."""
        dtype = self.dtype_named(type_)
        if value.dtype != dtype:
            number = self.expr(node)
            if isinstance(number, WeakInt | WeakFloat):
                value = self.typed(number, dtype, node.span)
            else:
                self.fail("LF0225", f"the element is {value.dtype}, declared {dtype}", node.span, f"its type is {value.dtype}",
                          (type_.span, "declared here"), fix=f"convert it: {dtype}(...)")  # fmt: skip
        if type_.dims is not None:
            self.declared_shape(type_, shape, node.span, f"{dtype}[{', '.join(map(str, shape))}]")
        return value

    def distinct(self, binders: Sequence[ast.Binder]) -> None:
        """An index may stand on the left side once."""
        seen: dict[str, ast.Binder] = {}
        for b in binders:
            if b.name in seen:
                self.fail("LF0306", f"index `{b.name}` stands twice on the left side", b.span, "here again", (seen[b.name].span, "and here"),
                          fix="a diagonal is read, not written: let d[i] = x[i, i]")  # fmt: skip
            seen[b.name] = b

    def bind_left(self, scope: Scope, binders: list[ast.Binder], node: ast.Expr) -> list[Dim]:
        """The indices of a left side: they start at 0 and have no step."""
        for b in binders:
            if b.range is None:
                continue
            with self.inside(scope):
                lo, hi, step = self.written_range(b.range)
            if lo != ZERO or step != 1:
                length = hi - lo
                shift = f"{b.name} in 0..{length}, and {b.name} + {lo} on the right side"
                self.fail("LF0307", "the range of a left side starts at 0 and has no step", b.range.span,
                          f"would `{b.name} = {lo}` be the first element or the second?",
                          notes=("shift the index, or keep the border with `if`",), fix=shift)  # fmt: skip
        return list(self.bind(scope, binders, [node]))

    def bind_rest(self, scope: Scope, lhs: ast.Lhs, node: ast.Expr) -> list[Dim]:
        """The indices that `...` on the left side stands for, from its uses on the right."""
        assert lhs.binders is not None
        dots = [b for b in lhs.binders if isinstance(b, ast.Rest)]
        if not dots:
            return []
        if len(dots) > 1:
            self.fail(
                "LF0306", "`...` stands twice on the left side", dots[1].span, "here again", (dots[0].span, "and here")
            )
        shape = self.rest_shape(lhs, node)
        dims = [
            self.index("r" if len(shape) == 1 else f"r{k}", (ZERO,), (extent,), dots[0].span)
            for k, extent in enumerate(shape)
        ]
        scope.rest = tuple(Poly.of(d.id) for d in dims)
        return dims

    def rest_shape(self, lhs: ast.Lhs, node: ast.Expr) -> tuple[Poly, ...]:
        """The axes that `...` covers in the arrays subscripted with it; all must agree."""
        assert lhs.binders is not None
        names = {b.name for b in lhs.binders if isinstance(b, ast.Binder)}
        probe = Scope(self.scope)
        for name in names:
            probe.values[name] = Entry(WeakInt(Affine(Poly.of(f"{name}?"))), None, "index")
        found: list[tuple[tuple[Poly, ...], Span]] = []
        with self.inside(probe):
            for sub, _ in self.subscripts([node], names):
                place = next((k for k, s in enumerate(sub.subs) if isinstance(s, ast.Rest)), None)
                if place is None or any(isinstance(s, ast.NewAxis) for s in sub.subs):
                    continue
                shape = self.shape_of(sub.base)
                if shape is not None and len(shape) >= len(sub.subs) - 1:
                    found.append((shape[place : len(shape) - (len(sub.subs) - 1 - place)], sub.span))
        if not found:
            self.fail("LF0302", "nothing says how many axes `...` stands for", lhs.span, "no array on the right is subscripted with `...`",
                      fix="x[..., i]")  # fmt: skip
        first, span = found[0]
        for other, where in found[1:]:
            if len(other) != len(first) or not all(self.require_equal(a, b, "`...` covers equal axes", where)
                                                   for a, b in zip(first, other, strict=True)):  # fmt: skip
                self.fail("LF0304", "`...` covers different axes", where, f"[{', '.join(map(str, other))}] here",
                          (span, f"but [{', '.join(map(str, first))}] here"))  # fmt: skip
        return first

    # -- outputs ----------------------------------------------------------------------------------------------------------------

    def output(self, node: ast.OutputDecl) -> None:
        """`output` of a name, of an expression, or by an equation."""
        lhs = node.lhs
        to = node.to.value if node.to is not None else None
        if any(o.name == lhs.name for o in self.outputs):
            self.fail("LF0207", f"`{lhs.name}` is already an output", lhs.name_span, "declared twice")
        if node.value is None:
            if lhs.binders is not None:
                self.fail(
                    "LF0101",
                    "expected `=` after the left side",
                    lhs.span,
                    "an equation needs a right side",
                    fix=f"output {lhs.name}",
                )
            value = self.expr(ast.Name(lhs.name, lhs.name_span))
            if node.type is not None:
                value = self.declared(self.element(value, lhs.name_span), node.type, lhs.name_span)
        elif lhs.binders is not None:
            value = self.equation_of(lhs, node.type, node.value)
            self.bind_name(lhs.name, lhs.name_span, value)
        else:
            value = self.named(lhs.name, node.type, node.value)
            self.bind_name(lhs.name, lhs.name_span, value)
        self.add_output(lhs.name, value, to, lhs.name_span if node.value is None else node.value.span)

    def add_output(self, name: str, value: Value, to: str | None, span: Span) -> None:
        """Make a value a result, in a buffer of its own."""
        if isinstance(value, View | Function | Module | Type | Tuple):
            self.element(value, span)
        element = self.element(value, span)
        settled = element if isinstance(element, Array) else self.settled(element, span)
        buffer = self.own_buffer(settled)
        if buffer is None:
            if isinstance(settled, Array):
                stored = self.materialise(settled, name, span, force=True)
                buffer = stored.buffer if isinstance(stored, Array) else None
            else:
                buffer = self.declare(name, settled.dtype, (), span)
                self.define(buffer, (), (), settled.expr, span)
        assert buffer is not None
        self.outputs.append(typed.Output(name, buffer, to, span))

    def own_buffer(self, value: Array | Scalar) -> str | None:
        """The buffer of a value that can be handed out as it is: stored whole, no input, no window, not yet a result."""
        buffer = value.buffer if isinstance(value, Array) else None
        if isinstance(value, Scalar) and isinstance(value.expr, Load) and not value.expr.subs:
            buffer = value.expr.buffer
        held = self.buffers.get(buffer) if buffer else None
        if (
            held is None
            or held.role != "temp"
            or held.window is not None
            or any(o.buffer == buffer for o in self.outputs)
        ):
            return None
        return buffer

    def contract_element(self, node: ast.Contract) -> Expr:
        """The condition of a `check`; of all elements where it is an array."""
        value = self.truth(self.expr(node.cond), node.cond.span)
        if isinstance(value, Array):
            value = self.reduce_array("all", value, None, False, None, node.cond.span)
        assert isinstance(value, Scalar)
        return value.expr
