"""Reductions in both notations, and cumulative ones."""

from __future__ import annotations

from dataclasses import dataclass

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, I64, DType
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.core import cast, conjunction, index_names
from loopfuse.frontend.check.emit import LETTERS
from loopfuse.frontend.check.infer import Infer
from loopfuse.frontend.check.values import Array, Modes, Scalar, Scope, Subs, Tuple, Type, Value, WeakInt
from loopfuse.ir import Affine, Const, Dim, Expr, Op, Ref, Select
from loopfuse.sizes import ONE, ZERO, Poly

GENERATORS = ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin", "logsumexp")
CUMULATIVE = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
ARRAY_FORMS = (*GENERATORS, "count_nonzero", "norm", "var", "std")


@dataclass(frozen=True, slots=True)
class Body:
    """What a reduction runs over: its dims, element, filter, position, and whether its reads need the guards around."""

    dims: tuple[Dim, ...]
    value: Expr
    where: Expr | None
    at: Expr | None
    unsafe: bool
    span: Span


class Reduce(Infer):
    """Reductions."""

    # -- generator form ---------------------------------------------------------------------------------------------------

    def reduce_generator(self, name: str, node: ast.Call) -> Scalar:
        """`sum(e for k, j in lo..hi if cond)`."""
        assert node.gen is not None
        body, gen = node.args[0], node.gen
        if name not in GENERATORS:
            self.fail("LF0217", f"`{name}` does not take a `for` clause", node.span, "not a reduction that does",
                      fix=f"one of {', '.join(GENERATORS)}")  # fmt: skip
        if gen.cond is not None and name in ("argmax", "argmin"):
            worst = "-inf" if name == "argmax" else "inf"
            self.fail("LF0314", f"`{name}` does not take a filter", gen.cond.span, "no element may be left",
                      fix=f"{name}({body.span.text} if {gen.cond.span.text} else {worst} for ...)")  # fmt: skip
        scope = Scope(self.scope)
        with self.context(), self.watch() as guarded, self.inside(scope):
            roots = [body] if gen.cond is None else [body, gen.cond]
            dims = self.bind_reduction(scope, gen, roots, name)
            where = None if gen.cond is None else self.condition(gen.cond)
            if where is None:
                value = self.scalar_element(body)
            else:
                with self.under(where):
                    value = self.scalar_element(body)
            at = self.position(scope, gen, dims)
            unsafe = guarded()
            result = self.reduce(name, Body(dims, value, where, at, unsafe, node.span), None)
        # Asked outside: among the facts inside is that every index has a value, so that nothing is empty.
        if where is None and name in ("max", "min", "argmax", "argmin"):
            self.nonempty(dims, name, node.span)
        return Scalar(result)

    def bind_reduction(self, scope: Scope, gen: ast.For, roots: list[ast.Expr], name: str) -> tuple[Dim, ...]:
        """The indices of a reduction; their bounds may be read from data, but not through one another."""
        before = self.data_bounds
        self.data_bounds = True
        try:
            dims = self.bind(scope, gen.binders, roots)
        finally:
            self.data_bounds = before
        own = {d.id for d in dims}
        for b, dim in zip(gen.binders, dims, strict=True):
            used = {n for p in (*dim.lo, *dim.hi) for n in p.names}
            if any(index_names((self.lets.get(n),)) & own for n in used):
                self.fail("LF0309", f"the bounds of `{b.name}` are read at an index of the same reduction", b.span, "needs a reduction of its own",
                          fix=f"nest it: {name}({name}(... for {b.name} in ...) for ...)")  # fmt: skip
        return dims

    def scalar_element(self, node: ast.Expr) -> Expr:
        """The element of an equation: a scalar, weak values at their default type."""
        value = self.expr(node)
        element = self.element(value, node.span)
        if isinstance(element, Array):
            self.fail("LF0313", "the element must be a scalar", node.span, f"this is {element}",
                      fix=f"subscript it: {node.span.text}[...]" if isinstance(node, ast.Name) else None)  # fmt: skip
        return self.settled(element, node.span).expr

    def condition(self, node: ast.Expr) -> Expr:
        """A scalar condition."""
        value = self.element(self.expr(node), node.span)
        if isinstance(value, Array):
            self.fail("LF0313", "the condition must be a scalar", node.span, f"this is {value}")
        e = self.settled(value, node.span).expr
        if e.dtype != BOOL:
            self.fail(
                "LF0211", "a condition must be bool", node.span, f"this is {e.dtype}", fix=f"{node.span.text} != 0"
            )
        return e

    def position(self, scope: Scope, gen: ast.For, dims: tuple[Dim, ...]) -> Expr:
        """The position that argmax gives: the index itself, or for several the flat one."""
        if len(dims) == 1:
            entry = scope.values[gen.binders[0].name].value
            assert isinstance(entry, WeakInt)
            return entry.expr
        flat = ZERO
        for dim in dims:
            flat = flat * (dim.hi[0] - dim.lo[0]) + (Poly.of(dim.id) - dim.lo[0])
        return Affine(flat)

    def nonempty(self, dims: tuple[Dim, ...], name: str, span: Span) -> None:
        """The extrema have no value over nothing."""
        for dim in dims:
            extent = dim.hi[0] - dim.lo[0]
            empty = self.facts.negative(extent - 1) and not self.facts.nonneg(extent - 1)  # both: nothing runs here
            if empty and self.is_size(extent):
                self.fail("LF0315", f"`{name}` over an empty range", span, f"{dim.lo[0]}..{dim.hi[0]} holds nothing")
            if self.is_size(extent):
                self.require_nonneg(extent - 1, f"`{name}` needs at least one element", span)

    # -- the reductions themselves ------------------------------------------------------------------------------------------

    def reduce(self, name: str, body: Body, dtype: DType | None) -> Expr:
        """The value of a reduction; `dtype` overrides the type in which it is done."""
        value = body.value if dtype is None else cast(body.value, dtype)
        match name:
            case "mean" | "logsumexp":
                if not value.dtype.is_float:
                    self.fail("LF0215", f"`{name}` needs floats, not {value.dtype}", body.span, f"the elements are {value.dtype}",
                              fix=f"{name}(f32(...))", notes=("NumPy would compute this in f64",))  # fmt: skip
                return self.mean(body, value) if name == "mean" else self.logsumexp(body, value)
            case "argmax" | "argmin":
                self.suits(name, value.dtype, body.span)
                return self.fold(name, name, value.dtype, body.dims, value, body.where, body.span, body.at, body.unsafe)
            case _:
                self.suits(name, value.dtype, body.span)
                return self.plain(name, body, value, dtype)

    def suits(self, name: str, dtype: DType, span: Span) -> None:
        """Whether a reduction takes elements of a type."""
        if dtype == BOOL and name == "sum":
            return
        if dtype.kind not in ops.MONOIDS[name].kinds:
            fix = "compare first: any(x != 0)" if name in ("any", "all") else "count with sum(mask), or use any/all"
            self.fail("LF0215", f"`{name}` does not take {dtype}", span, f"the elements are {dtype}", fix=fix)

    def plain(self, name: str, body: Body, value: Expr, dtype: DType | None) -> Expr:
        """sum, prod, max, min, any, all: accumulate in the accumulator's type, round once."""
        acc = ops.MONOIDS[name].accumulator(value.dtype)
        ref = self.fold(name, name, acc, body.dims, self.widened(value, acc), body.where, body.span, unsafe=body.unsafe)
        if value.dtype.is_float or dtype is not None:
            return cast(ref, dtype or value.dtype)
        return ref

    def widened(self, value: Expr, acc: DType) -> Expr:
        """An element at the accumulator's type; a float product is formed in that type."""
        if value.dtype.is_float and value.dtype != acc and isinstance(value, Op) and value.op == "mul":
            return Op("mul", tuple(cast(a, acc) for a in value.args), acc, span=value.span)
        return cast(value, acc)

    def count(self, body: Body) -> Expr:
        """How many elements a reduction runs over, an i64."""
        if body.where is None:
            total = ONE
            for dim in body.dims:
                total = total * (dim.hi[0] - dim.lo[0])
            if self.is_size(total):
                return Affine(total)
        one = Affine(ONE)
        return self.fold("count", "sum", I64, body.dims, one, body.where, body.span, unsafe=body.unsafe)

    def mean(self, body: Body, value: Expr) -> Expr:
        """Sum over count, rounded once."""
        acc = value.dtype.accumulator
        total = self.fold(
            "sum", "sum", acc, body.dims, self.widened(value, acc), body.where, body.span, unsafe=body.unsafe
        )
        quotient = Op("div", (total, cast(self.count(body), acc)), acc, span=body.span)
        return cast(quotient, value.dtype)

    def logsumexp(self, body: Body, value: Expr) -> Expr:
        """m + log(sum(exp(x - m))) with m the maximum, or 0 where that is not finite."""
        acc = value.dtype.accumulator
        if self.needed((value,)):
            body, value = self.stored_element(body, value)
        e = cast(value, acc)
        top = self.fold("max", "max", acc, body.dims, e, body.where, body.span, unsafe=body.unsafe)
        finite = Op("isfinite", (top,), BOOL)
        shift = Op("where", (finite, top, Const(0, acc)), acc)
        term = Op("exp", (Op("sub", (e, shift), acc),), acc, span=body.span)
        total = self.fold("sum", "sum", acc, body.dims, term, body.where, body.span, unsafe=body.unsafe)
        return cast(Op("add", (shift, Op("log", (total,), acc)), acc, span=body.span), value.dtype)

    def stored_element(self, body: Body, value: Expr) -> tuple[Body, Expr]:
        """The element of a reduction as an array of its own, for a reduction that needs it twice."""
        with self.context():
            self.guards = tuple(g for g in (*self.guards, body.where) if g is not None)
            stored = self.materialise(Scalar(value), "e", body.span, force=True)
        assert isinstance(stored, Scalar)
        return Body(body.dims, stored.expr, body.where, body.at, False, body.span), stored.expr

    # -- array form -----------------------------------------------------------------------------------------------------------

    def reduce_array(self, name: str, array: Array, axes: tuple[int, ...] | None, keepdims: bool, dtype: DType | None,
                     span: Span, ddof: int = 0) -> Array | Scalar:  # fmt: skip
        """`sum(x, axis=, keepdims=, dtype=)` and its like."""
        chosen = tuple(range(array.rank)) if axes is None else axes
        if name in ("max", "min", "argmax", "argmin"):
            for k in chosen:
                if not self.require_nonneg(array.shape[k] - 1, f"`{name}` needs at least one element", span):
                    self.fail("LF0315", f"`{name}` over an empty axis", span, f"axis {k} is {array.shape[k]}")
        match name:
            case "count_nonzero":
                array = self.compare_zero(array, span)
                name = "sum"
            case "norm" | "var" | "std":
                return self.second_moment(name, array, chosen, keepdims, dtype, span, ddof)
        left = [k for k in range(array.rank) if k not in chosen]
        shape = (
            tuple(ONE if k in chosen else e for k, e in enumerate(array.shape))
            if keepdims
            else tuple(array.shape[k] for k in left)
        )

        def element(subs: Subs) -> Expr:
            kept = tuple(subs[k] for k in left) if keepdims else subs
            return self.reduce_at(name, array, chosen, kept, dtype, span)

        if not shape:
            return Scalar(element(()))
        with self.attempt():
            result = element(tuple(Affine(ZERO) for _ in shape)).dtype

        def at(subs: Subs, modes: Modes) -> Expr:
            return element(subs)

        return self.materialise(Array(result, shape, at, (False,) * len(shape), depth=1), name, span)

    def reduce_at(
        self, name: str, array: Array, axes: tuple[int, ...], kept: Subs, dtype: DType | None, span: Span
    ) -> Expr:
        """One element of a reduced array."""
        with self.context(), self.watch() as guarded:
            dims = {k: self.index(LETTERS[k % 9], (ZERO,), (array.shape[k],)) for k in axes}
            others = iter(kept)
            subs = tuple(Affine(Poly.of(dims[k].id)) if k in dims else next(others) for k in range(array.rank))
            value = array.at(subs, ())
            unsafe = guarded()
            flat = ZERO
            for k in axes:
                flat = flat * array.shape[k] + Poly.of(dims[k].id)
            return self.reduce(name, Body(tuple(dims[k] for k in axes), value, None, Affine(flat), unsafe, span), dtype)

    def compare_zero(self, array: Array, span: Span) -> Array:
        """`x != 0`."""
        if array.dtype == BOOL:
            return array
        zero = Const(0, array.dtype)
        result = self.map(array, span, lambda e: Op("ne", (e, zero), BOOL, span=span), BOOL)
        assert isinstance(result, Array)
        return result

    def second_moment(self, name: str, array: Array, axes: tuple[int, ...], keepdims: bool, dtype: DType | None, span: Span,
                      ddof: int) -> Array | Scalar:  # fmt: skip
        """norm, var, std: the deviations are squared, never the raw moments; f16 and bf16 are done in f32."""
        wide = dtype or array.dtype
        if not array.dtype.is_float:
            self.fail(
                "LF0215",
                f"`{name}` needs floats, not {array.dtype}",
                span,
                f"the elements are {array.dtype}",
                fix=f"{name}(f32(...))",
            )
        acc = wide.accumulator
        x = self.map(array, span, lambda e: cast(e, acc), acc)
        assert isinstance(x, Array)
        if name != "norm":
            x = self.centred(x, axes, span)
        square = self.map(x, span, lambda e: Op("mul", (e, e), acc, span=span), acc)
        assert isinstance(square, Array)
        total = self.reduce_array("sum", square, axes, keepdims, None, span)
        count = ONE
        for k in axes:
            count = count * array.shape[k]
        below = cast(Affine(count - ddof), acc)

        def finish(e: Expr) -> Expr:
            value = e if name == "norm" else Op("div", (e, below), acc, span=span)
            root = value if name == "var" else Op("sqrt", (value,), acc, span=span)
            return cast(root, wide)

        result = self.map(total, span, finish, wide)
        assert isinstance(result, Array | Scalar)
        return result

    def centred(self, x: Array, axes: tuple[int, ...], span: Span) -> Array:
        """The deviations from the mean along axes."""
        mean = self.reduce_array("mean", x, axes, True, None, span)
        assert isinstance(mean, Array)
        result = self.apply(ops.OPS["sub"], (x, mean), (span, span), span)
        assert isinstance(result, Array)
        return result

    # -- cumulative -----------------------------------------------------------------------------------------------------------

    def cumulate(self, name: str, array: Array, axis: int, dtype: DType | None, span: Span) -> Array:
        """`cumsum(x, axis=)`: stored at once, in order along the axis."""
        monoid = CUMULATIVE[name]
        held = dtype or array.dtype
        self.suits(monoid, held, span)
        acc = ops.MONOIDS[monoid].accumulator(held)
        result = dtype or (array.dtype if array.dtype.is_float else acc)
        with self.context():
            own = tuple(self.index(LETTERS[k % 9], (ZERO,), (extent,)) for k, extent in enumerate(array.shape))
            subs = tuple(Affine(Poly.of(d.id)) for d in own)
            value = cast(cast(array.at(subs, ()), held), acc)
            around, extents, lead = self.surroundings(value, own, span)
            guard = conjunction(self.guards)
            if guard is not None:
                value = Select(guard, value, Const(0, acc))
            buffer = self.declare(name, result, (*extents, *array.shape), span)
            running = self.fresh(f"{name}.acc")
            dims = (*around, *(d for k, d in enumerate(own) if k != axis))
            if not self.dry:
                stored = cast(Ref(running, acc), result)
                self.body.append(typed.Prefix(buffer, running, monoid, acc, dims, own[axis], (*self.trip_subs(), *lead, *subs),
                                              value, stored, self.needed((value,)), span))  # fmt: skip
        stored_array = self.stored(buffer, result, array.shape, (*self.trip_subs(), *lead))
        assert isinstance(stored_array, Array)
        return stored_array

    # -- arguments that these and the array functions share ---------------------------------------------------------------------

    def constant_int(self, node: ast.Expr, what: str) -> int:
        """A compile-time integer argument."""
        return self.constant_value(self.expr(node), node.span, what)

    def constant_value(self, value: Value, span: Span, what: str) -> int:
        """A value as a compile-time integer."""
        poly = value.poly if isinstance(value, WeakInt) else None
        poly = poly.subs(self.known_sizes()) if poly is not None else None
        if poly is None or not poly.is_const:
            self.fail("LF0406", f"{what} must be a constant integer", span, f"this is {describe(value)}",
                      fix="leave the inner parentheses out" if isinstance(value, Tuple) else None)  # fmt: skip
        return poly.constant

    def axis_number(self, axis: int, rank: int, span: Span) -> int:
        """An axis from 0, negative ones counted from the end."""
        if not -rank <= axis < rank:
            self.fail(
                "LF0407",
                f"axis {axis} of an array of {rank} {'axis' if rank == 1 else 'axes'}",
                span,
                f"axes are {-rank} .. {rank - 1}",
            )
        return axis % rank

    def axes_of(self, node: ast.Expr | None, rank: int) -> tuple[int, ...] | None:
        """`axis=` of a reduction: None, an integer, or a tuple of distinct ones."""
        if node is None:
            return None
        value = self.expr(node)
        items = value.items if isinstance(value, Tuple) else (value,)
        axes = tuple(self.axis_number(self.constant_value(v, node.span, "axis"), rank, node.span) for v in items)
        if len(set(axes)) != len(axes):
            self.fail("LF0407", "an axis is named twice", node.span, f"axes {', '.join(map(str, axes))}")
        return tuple(sorted(axes))

    def flag(self, node: ast.Expr | None, default: bool) -> bool:
        """A `true` or `false` argument."""
        if node is None:
            return default
        value = self.expr(node)
        if isinstance(value, Scalar) and value.dtype == BOOL and isinstance(value.expr, Const):
            return bool(value.expr.bits)
        self.fail("LF0406", "this must be `true` or `false`", node.span, f"this is {describe(value)}")

    def dtype_of(self, node: ast.Expr | None) -> DType | None:
        """A `dtype=` argument."""
        if node is None:
            return None
        value = self.expr(node)
        if not isinstance(value, Type):
            self.fail(
                "LF0406",
                "this must be a dtype",
                node.span,
                f"this is {describe(value)}",
                fix="f32, i32, ... or x.dtype",
            )
        return value.dtype
