"""The functions of the language that move, join and make arrays."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, F32, I64
from loopfuse.frontend import ast
from loopfuse.frontend.check.arguments import VIEWS, Calling, Opt, Rest
from loopfuse.frontend.check.convert import describe, number
from loopfuse.frontend.check.values import Array, Scalar, Text, Tuple, Value, WeakInt
from loopfuse.ir import Const
from loopfuse.sizes import Poly


class Builtins(Calling):
    """A method `call_x` is the function x of the language."""

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
        zero = Scalar(Const(0, BOOL, span=node.span)) if array.dtype == BOOL else number(0)
        return self.pad(array, pairs, VIEWS[kind], self.expr(value) if value is not None else zero, node.span)

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
