"""Array functions that move, join and make elements: reshape, transpose, concat, pad, one_hot, zeros and their like.

Views are index maps: a function here returns an `Array` whose `at` rewrites subscripts. Only what cannot be a map of
subscripts to one load is a choice between several.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, I64, DType
from loopfuse.frontend import ast
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.core import cast
from loopfuse.frontend.check.index import Fixed, Gathered, Part, shifted
from loopfuse.frontend.check.reduce import Reduce
from loopfuse.frontend.check.values import Array, Modes, Scalar, Subs, Value, WeakInt
from loopfuse.ir import Affine, Const, Expr, Mode, ModeKind, Op, Select
from loopfuse.sizes import ONE, ZERO, Poly


def product(extents: Sequence[Poly]) -> Poly:
    """The number of elements."""
    return reduce(mul, extents, ONE)


def combine(a: Expr, scale: Poly, b: Expr) -> Expr:
    """`a * scale + b`, exact."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        return Affine(a.poly * scale + b.poly)
    scaled = Op("mul", (a, Affine(scale)), I64)
    return Op("add", (scaled, b), I64)


def test(op: str, a: Expr, b: Expr) -> Expr:
    """A comparison."""
    return Op(op, (a, b), BOOL)


class Shapes(Reduce):
    """Shape functions."""

    # -- arguments ------------------------------------------------------------------------------------------------------

    def array_arg(self, node: ast.Expr | None) -> Array:
        """An argument that must be an array."""
        assert node is not None
        return self.as_array(self.expr(node), node.span)

    def extent_arg(self, node: ast.Expr) -> Poly:
        """An argument that must be a size expression."""
        value = self.expr(node)
        poly = value.poly if isinstance(value, WeakInt) else None
        if poly is None or not self.is_size(poly, params=False):
            self.fail(
                "LF0309",
                "an extent must be made of sizes",
                node.span,
                f"this is {describe(value)}",
                fix="leave the inner parentheses out"
                if isinstance(node, ast.TupleExpr)
                else "declare it: size K = ...",
            )
        return poly

    def extents(self, nodes: Sequence[ast.Expr]) -> tuple[Poly, ...]:
        """Extents as separate arguments, none negative."""
        result = []
        for node in nodes:
            result.append(self.extent_arg(node))
            self.fits(result[-1], "an extent", node.span)
        return tuple(result)

    # -- views ------------------------------------------------------------------------------------------------------------

    def permute(self, x: Array, order: tuple[int, ...]) -> Array:
        """Axis k of the result is axis order[k] of x."""
        back = [order.index(k) for k in range(x.rank)]

        def at(subs: Subs, modes: Modes) -> Expr:
            inner = modes or (None,) * len(subs)
            return x.at(tuple(subs[k] for k in back), tuple(inner[k] for k in back))

        moded = tuple(x.moded[k] for k in order) if x.moded else ()
        return Array(x.dtype, tuple(x.shape[k] for k in order), at, moded, free=x.free, depth=x.depth)

    def reshape(self, x: Array, shape: tuple[Poly, ...], span: Span) -> Array | Scalar:
        """The same elements in row-major order under another shape."""
        if not self.require_equal(product(x.shape), product(shape), "reshape keeps the number of elements", span):
            self.fail("LF0404", f"cannot reshape {x} to [{', '.join(map(str, shape))}]", span,
                      f"{product(x.shape)} elements against {product(shape)}")  # fmt: skip
        groups = self.segments(x.shape, shape)

        def at(subs: Subs, modes: Modes) -> Expr:
            inner: list[Expr] = []
            inner_modes: list[Mode | None] = []
            for old, new in groups:
                if len(old) == len(new) == 1:
                    inner.append(subs[new[0]])
                    inner_modes.append(modes[new[0]] if modes else None)
                    continue
                flat: Expr = Affine(ZERO)
                for k in new:
                    flat = combine(flat, shape[k], subs[k])
                inner.extend(self.unflatten(flat, [x.shape[k] for k in old]))
                inner_modes.extend([None] * len(old))
            return x.at(tuple(inner), tuple(inner_modes))

        if not shape:
            return Scalar(at((), ()))
        straight = {new[0]: old[0] for old, new in groups if len(old) == len(new) == 1}
        moded = tuple(k in straight and bool(x.moded) and x.moded[straight[k]] for k in range(len(shape)))
        return Array(x.dtype, shape, at, moded, free=x.free, depth=x.depth)

    def segments(self, old: tuple[Poly, ...], new: tuple[Poly, ...]) -> list[tuple[list[int], list[int]]]:
        """The finest runs of old and new axes with equal products."""
        groups: list[tuple[list[int], list[int]]] = []
        i = j = 0
        while i < len(old) or j < len(new):
            found = next(
                ((a, b) for total in range(1, len(old) - i + len(new) - j + 1) for a in range(min(total, len(old) - i) + 1)
                 for b in [total - a] if b <= len(new) - j and self.same(product(old[i : i + a]), product(new[j : j + b]))),
                (len(old) - i, len(new) - j),
            )  # fmt: skip
            groups.append((list(range(i, i + found[0])), list(range(j, j + found[1]))))
            i, j = i + found[0], j + found[1]
        return groups

    def same(self, a: Poly, b: Poly) -> bool:
        """Whether two extents are known to be equal."""
        return a == b or self.facts.zero(a - b)

    def unflatten(self, flat: Expr, shape: list[Poly]) -> list[Expr]:
        """The subscripts of an element from its flat position."""
        result: list[Expr] = []
        for extent in reversed(shape[1:]):
            flat, rest = self.divide(flat, extent)
            result.append(rest)
        return [flat, *reversed(result)] if shape else []

    def divide(self, e: Expr, den: Poly) -> tuple[Expr, Expr]:
        """Quotient and remainder of a position, simplified where the ranges allow it."""
        if isinstance(e, Affine):
            exact = self.facts.divide(e.poly, den)
            q, r = exact if exact is not None else (e.poly // den, e.poly % den)
            return Affine(q), Affine(r)
        by = Affine(den)
        return Op("floordiv", (e, by), I64), Op("mod", (e, by), I64)

    def broadcast_to(self, x: Value, shape: tuple[Poly, ...], span: Span) -> Array:
        """An array or a number stretched to a shape."""
        element = self.element(x, span)
        if not isinstance(element, Array):
            e = self.settled(element, span).expr
            return Array(e.dtype, shape, lambda subs, modes: e, (False,) * len(shape), depth=1)
        source = element
        skip = len(shape) - source.rank
        if skip < 0 or any(a != ONE and not self.require_equal(a, b, "broadcast_to keeps extents", span)
                           for a, b in zip(source.shape, shape[skip:], strict=True)):  # fmt: skip
            self.fail("LF0402", f"cannot broadcast {source} to [{', '.join(map(str, shape))}]", span, "extents differ")
        ones = [e == ONE for e in source.shape]

        def at(subs: Subs, modes: Modes) -> Expr:
            return source.at(tuple(Affine(ZERO) if one else s for one, s in zip(ones, subs[skip:], strict=True)), ())

        return Array(source.dtype, shape, at, (False,) * len(shape), free=source.free, depth=source.depth)

    def part(self, x: Array, k: int, start: Poly, step: int, extent: Poly) -> Array:
        """A slice of one axis."""

        def at(subs: Subs, modes: Modes) -> Expr:
            return x.at((*subs[:k], shifted(subs[k], step, start), *subs[k + 1 :]), modes)

        shape = (*x.shape[:k], extent, *x.shape[k + 1 :])
        moded = tuple(ok and axis != k for axis, ok in enumerate(x.moded)) if x.moded else ()
        return Array(x.dtype, shape, at, moded, free=x.free, depth=x.depth)

    def newaxis(self, x: Array, k: int) -> Array:
        """An axis of extent 1 before axis k."""

        def at(subs: Subs, modes: Modes) -> Expr:
            return x.at((*subs[:k], *subs[k + 1 :]), (*modes[:k], *modes[k + 1 :]) if modes else ())

        moded = (*x.moded[:k], False, *x.moded[k:]) if x.moded else ()
        return Array(x.dtype, (*x.shape[:k], ONE, *x.shape[k:]), at, moded, free=x.free, depth=x.depth)

    def squeeze(self, x: Array, axes: tuple[int, ...], span: Span) -> Array | Scalar:
        """Axes of extent 1 taken away."""
        for k in axes:
            if not self.same(x.shape[k], ONE):
                self.fail("LF0404", f"cannot squeeze axis {k} of {x}", span, f"its extent is {x.shape[k]}, not 1")
        left = [k for k in range(x.rank) if k not in axes]

        def at(subs: Subs, modes: Modes) -> Expr:
            where = dict(zip(left, subs, strict=True))
            how = dict(zip(left, modes, strict=True)) if modes else {}
            return x.at(
                tuple(where.get(k, Affine(ZERO)) for k in range(x.rank)), tuple(how.get(k) for k in range(x.rank))
            )

        if not left:
            return Scalar(at((), ()))
        moded = tuple(x.moded[k] for k in left) if x.moded else ()
        return Array(x.dtype, tuple(x.shape[k] for k in left), at, moded, free=x.free, depth=x.depth)

    # -- functions that choose ------------------------------------------------------------------------------------------------

    def concat(self, arrays: list[Array], axis: int, span: Span) -> Array:
        """Arrays one after another along an axis."""
        first = arrays[0]
        for other in arrays[1:]:
            if other.dtype != first.dtype:
                self.fail(
                    "LF0210",
                    f"cannot join {first.dtype} and {other.dtype}",
                    span,
                    "all arrays need one type",
                    fix=f"{first.dtype}(...)",
                )
            if other.rank != first.rank or any(k != axis and not self.require_equal(a, b, "joined arrays agree on other axes", span)
                                               for k, (a, b) in enumerate(zip(first.shape, other.shape, strict=False))):  # fmt: skip
                self.fail("LF0402", f"cannot join {first} and {other} along axis {axis}", span, "the other axes differ")
        ends: list[Poly] = []
        total = ZERO
        for a in arrays:
            total = total + a.shape[axis]
            ends.append(total)

        def at(subs: Subs, modes: Modes) -> Expr:
            def piece(n: int) -> Expr:
                start = ends[n - 1] if n else ZERO
                return arrays[n].at((*subs[:axis], shifted(subs[axis], 1, -start), *subs[axis + 1 :]), ())

            def pick(n: int) -> Expr:
                if n == len(arrays) - 1:
                    return piece(n)
                cond = test("lt", subs[axis], Affine(ends[n]))
                with self.under(cond):
                    then = piece(n)
                with self.under(cond, False):
                    other = pick(n + 1)
                return Select(cond, then, other, span=span)

            return pick(0)

        shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
        return Array(first.dtype, shape, at, (False,) * first.rank, depth=max(a.depth for a in arrays) + 1)

    def pad(self, x: Array, widths: list[tuple[Poly, Poly]], mode: ModeKind, fill: Value, span: Span) -> Array:
        """`pad(x, widths, mode, value)`: the elements outside as the boundary view of that name gives them."""
        for lo, hi in widths:
            self.fits(lo, "a padding width", span)
            self.fits(hi, "a padding width", span)
        if mode != "constant":
            for extent, (lo, hi) in zip(x.shape, widths, strict=True):
                if lo != ZERO or hi != ZERO:
                    self.fits(extent - 1, f"the extent padded by {mode} less 1", span)
        shape = tuple(lo + extent + hi for extent, (lo, hi) in zip(x.shape, widths, strict=True))
        padded = tuple(lo != ZERO or hi != ZERO for lo, hi in widths)
        source = self.moded(x, padded, span)
        element = self.element(fill, span)
        if isinstance(element, Array):
            self.fail("LF0406", "the fill must be a number", span, f"this is {element}")
        value = self.typed(element, x.dtype, span)
        if not isinstance(value, Const):
            self.fail("LF0406", "the fill must be a constant", span, "not known here")
        held = Mode(mode, value if mode == "constant" else None)

        def at(subs: Subs, modes: Modes) -> Expr:
            inner = tuple(shifted(s, 1, -lo) for s, (lo, _) in zip(subs, widths, strict=True))
            return source.at(inner, tuple(held if p else None for p in padded))

        return Array(x.dtype, shape, at, (False,) * x.rank, depth=x.depth + 1)

    def triangle(self, x: Array, upper: bool, k: Poly, span: Span) -> Array:
        """tril and triu: zero above (or below) diagonal k of the last two axes."""
        if x.rank < 2:
            self.fail("LF0403", "a matrix is needed here", span, f"this is {x}")
        zero = Const(0, x.dtype)

        def at(subs: Subs, modes: Modes) -> Expr:
            row, column = subs[-2], subs[-1]
            limit = shifted(row, 1, k)
            keep = test("ge" if upper else "le", column, limit)
            return Select(keep, x.at(subs, ()), zero, span=span)

        return Array(x.dtype, x.shape, at, (False,) * x.rank, depth=x.depth + 1)

    def roll(self, x: Array, shift: Poly, axis: int, span: Span) -> Array:
        """Elements moved along an axis, those that leave it coming back at the other end."""
        needed = tuple(k == axis for k in range(x.rank))
        source = self.moded(x, needed, span)

        def at(subs: Subs, modes: Modes) -> Expr:
            inner = (*subs[:axis], shifted(subs[axis], 1, -shift), *subs[axis + 1 :])
            return source.at(inner, tuple(Mode("wrap") if k else None for k in needed))

        return Array(x.dtype, x.shape, at, (False,) * x.rank, depth=x.depth + 1)

    def periodic(self, x: Array, axis: int, count: Poly, each: bool) -> Array:
        """tile (whole copies after one another) and repeat (each element `count` times)."""

        def at(subs: Subs, modes: Modes) -> Expr:
            q, r = self.divide(subs[axis], count if each else x.shape[axis])
            return x.at((*subs[:axis], q if each else r, *subs[axis + 1 :]), ())

        shape = (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :])
        return Array(x.dtype, shape, at, (False,) * x.rank, free=x.free, depth=x.depth)

    def diagonal(self, x: Array, span: Span) -> Array:
        """The main diagonal of a square matrix (of the last two axes)."""
        if x.rank < 2 or not self.require_equal(
            x.shape[-1], x.shape[-2], "a diagonal is taken of a square matrix", span
        ):
            self.fail("LF0404", f"diagonal of {x}", span, "needs a square matrix")

        def at(subs: Subs, modes: Modes) -> Expr:
            return x.at((*subs, subs[-1]), ())

        return Array(x.dtype, x.shape[:-1], at, (False,) * (x.rank - 1), free=x.free, depth=x.depth)

    # -- functions that make ----------------------------------------------------------------------------------------------------

    def filled(self, e: Expr, shape: tuple[Poly, ...]) -> Array | Scalar:
        """One element everywhere."""
        if not shape:
            return Scalar(e)
        return Array(e.dtype, shape, lambda subs, modes: e, (False,) * len(shape), depth=1)

    def iota(self, extent: Poly, dtype: DType) -> Array:
        """0, 1, 2, ..."""
        return Array(dtype, (extent,), lambda subs, modes: cast(subs[0], dtype), (False,), depth=1)

    def eye(self, extent: Poly, dtype: DType) -> Array:
        """The identity matrix."""

        def at(subs: Subs, modes: Modes) -> Expr:
            return cast(test("eq", subs[0], subs[1]), dtype)

        return Array(dtype, (extent, extent), at, (False, False), depth=1)

    def one_hot(self, index: Array | Scalar, extent: Poly, dtype: DType, span: Span) -> Array:
        """1 where the position equals the index, along a new last axis; 0 everywhere for an index outside."""
        if not index.dtype.is_int:
            self.fail("LF0311", "one_hot needs integers", span, f"these are {index.dtype}")
        shape = index.shape if isinstance(index, Array) else ()

        def at(subs: Subs, modes: Modes) -> Expr:
            e = index.at(subs[:-1], ()) if isinstance(index, Array) else index.expr
            return cast(test("eq", cast(e, I64), subs[-1]), dtype)

        return Array(dtype, (*shape, extent), at, (False,) * (len(shape) + 1), depth=index.depth + 1)

    def take(self, x: Array, index: Value, axis: int, node: ast.Call) -> Array | Scalar:
        """`take(x, index, axis)`: x at the elements of an index array along one axis."""
        fake = ast.Subscript(node.args[0], (), node.span)
        value = self.element(index, node.args[1].span)
        whole = [Part(ZERO, 1, e, whole=True) for e in x.shape]
        if not isinstance(value, Array):
            e = self.subscript_expr(value, node.args[1].span)
            mode = self.judged(e, x.shape[axis], node.args[1].span, fake, axis)
            return self.take_axes(x, [*whole[:axis], Fixed(e, mode), *whole[axis + 1 :]], fake)
        if not value.dtype.is_int:
            self.fail("LF0311", "take needs integers", node.args[1].span, f"these are {value.dtype}")
        return self.take_axes(x, [*whole[:axis], Gathered(value, node.args[1].span), *whole[axis + 1 :]], fake)
