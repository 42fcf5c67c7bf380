"""`scan` and `accum`: recurrences and scatters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, DType
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.core import Trip, cast, conjunction
from loopfuse.frontend.check.definitions import Definitions
from loopfuse.frontend.check.infer import Use
from loopfuse.frontend.check.values import Array, Element, Entry, Poison, Scalar, Scope, WeakInt
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Load, Mode, Op
from loopfuse.sizes import ONE, ZERO, Poly

# The monoid that each operator of a scatter stands for.
COMBINE = {monoid.update: name for name, monoid in ops.MONOIDS.items() if monoid.update is not None}


@dataclass(slots=True)
class Carried:
    """A carry while its scan is checked."""

    name: str
    buffer: str
    dtype: DType
    shape: tuple[Poly, ...]
    span: Span
    advanced: Span | None = None


class Loops(Definitions):
    """Scans and scatters."""

    # -- scan -----------------------------------------------------------------------------------------------------------------

    def scan(self, node: ast.ScanDecl) -> None:
        """`scan t in lo..hi by s carry (...) { ... }`; afterwards the carries and emits are bound outside."""
        if self.equation:
            self.fail(
                "LF0336",
                "a scan cannot stand inside an equation",
                node.span,
                "called from one",
                fix="bind the result of the function by `let` first",
            )
        b = node.binder
        lo, hi, step = self.scan_range(node)
        size = abs(step)
        count = hi - lo if size == 1 else (hi - lo + size - 1) // size
        if step < 0 and not (hi - lo).is_const and self.facts.nonneg(lo - hi):
            self.fail("LF0335", "a range goes from its least to its end, whatever the step", b.span, "runs from high to low",
                      fix=f"{hi}..{lo} by -{size}")  # fmt: skip
        if not self.require_nonneg(hi - lo, "the number of trips must not be negative", b.span):
            self.fail(
                "LF0335", "the number of trips may be negative", b.span, f"{hi - lo} trips", fix="guard it: require ..."
            )
        self.check_index_name(b)
        outer_trips, lead = self.trips, self.trip_subs()
        trip_id = self.fresh(b.name)
        with self.context():
            carries = [self.start_carry(c, count, Poly.of(trip_id)) for c in node.carries]
        emits: dict[str, tuple[str, DType, tuple[Poly, ...]]] = {}
        scope = Scope(self.scope)
        outer_body, self.body = self.body, []
        try:
            with self.context(), self.inside(scope):
                trip = self.index(b.name, (ZERO,), (count,), b.span, trip_id)
                s = Poly.of(trip.id)
                t = lo + s * size if step > 0 else lo + (count - 1 - s) * size
                row = s if step > 0 else count - 1 - s
                scope.values[b.name] = Entry(WeakInt(Affine(t, span=b.span)), b.span, "index")
                self.trips = (*outer_trips, Trip(trip.id, count))
                for c in carries:
                    held = self.stored(c.buffer, c.dtype, c.shape, (*lead, Affine(s)))
                    scope.values[c.name] = Entry(held, c.span, "carry")
                for statement in node.body:
                    self.scan_statement(
                        statement, carries, emits, (*lead, Affine(s + 1)), (*lead, Affine(row)), count, scope
                    )
                self.finish_carries(node, carries, (*lead, Affine(s)), (*lead, Affine(s + 1)))
            if not self.dry:
                outer_body.append(typed.Scan(trip, tuple(self.body), node.span))
        finally:
            self.body, self.trips = outer_body, outer_trips
        for c in carries:
            self.bind_name(c.name, c.span, self.stored(c.buffer, c.dtype, c.shape, (*lead, Affine(count))))
        for statement in node.body:
            if isinstance(statement, ast.Emit) and statement.name in emits:
                buffer, dtype, shape = emits[statement.name]
                self.bind_name(statement.name, statement.name_span, self.stored(buffer, dtype, (count, *shape), lead))
            elif isinstance(statement, ast.Emit):
                self.scope.values[statement.name] = Entry(Poison(), None)

    def scan_range(self, node: ast.ScanDecl) -> tuple[Poly, Poly, int]:
        """The range of a scan, written or from bare uses of its index."""
        b = node.binder
        if b.range is not None:
            return self.written_range(b.range)
        roots = [s.value for s in node.body if isinstance(s, ast.LetDecl | ast.Next | ast.Emit)]
        probe = Scope(self.scope)
        probe.values[b.name] = Entry(WeakInt(Affine(Poly.of(f"{b.name}?"))), None, "index")
        with self.inside(probe):
            uses = self.uses(roots, {b.name}).get(b.name, [])
        return self.range_of(b, uses, roots, (b.name,), self.scope)

    def start_carry(self, c: ast.Carry, count: Poly, trip: Poly) -> Carried:
        """Store the start of a carry at trip 0 of its buffer."""
        value = self.element(self.expr(c.init), c.init.span)
        if c.type is not None:
            value = self.declared(value, c.type, c.init.span)
        settled = value if isinstance(value, Array) else self.settled(value, c.init.span)
        shape = settled.shape if isinstance(settled, Array) else ()
        lead = tuple((self.hull(t.count, c.span), ONE) for t in self.trips)
        buffer = self.declare_carry(c, settled.dtype, shape, lead, count, trip)
        own, subs = self.axes(shape)
        e = settled.at(subs, ()) if isinstance(settled, Array) else settled.expr
        self.define(buffer, own, (*self.trip_subs(), Affine(ZERO), *subs), e, c.span, whole=False)
        return Carried(c.name, buffer, settled.dtype, shape, c.span)

    def declare_carry(self, c: ast.Carry, dtype: DType, shape: tuple[Poly, ...], lead: tuple[tuple[Poly, Poly], ...],
                      count: Poly, index: Poly) -> str:  # fmt: skip
        """The buffer of a carry: a trip axis one longer than the trips, of which two exist at a time."""
        extent = self.hull(count, c.span) + 1
        intervals = [((Poly.of(t.index),), (Poly.of(t.index) + 1,)) for t in self.trips]
        name = self.fresh(c.name)
        intervals.append(((index,), (index + 2,)))
        window = (*intervals, *(((ZERO,), (e,)) for e in shape))
        buffer = Buffer(name, dtype, (*(e for e, _ in lead), extent, *shape), window=window, span=c.span)
        if not self.dry:
            self.buffers[name] = buffer
        return name

    def scan_statement(self, node: ast.Stmt, carries: list[Carried], emits: dict[str, tuple[str, DType, tuple[Poly, ...]]],
                       ahead: tuple[Expr, ...], row: tuple[Expr, ...], count: Poly, scope: Scope) -> None:  # fmt: skip
        """A statement in the body of a scan."""
        if isinstance(node, ast.Next):
            self.guarded_statement(lambda: self.next(node, carries, ahead))
        elif isinstance(node, ast.Emit):
            self.guarded_statement(lambda: self.emit(node, emits, row, count, carries))
        else:
            self.statement(node)

    def guarded_statement(self, run: Callable[[], None]) -> None:
        """Run a part of a scan; its errors are its own."""
        raise AssertionError("given by Statements")

    def next(self, node: ast.Next, carries: list[Carried], ahead: tuple[Expr, ...]) -> None:
        """`next h = e`."""
        carry = next((c for c in carries if c.name == node.name), None)
        if carry is None:
            near = self.suggest(node.name, [c.name for c in carries])
            self.fail("LF0331", f"`{node.name}` is not a carry of this scan", node.name_span, "carries are " + ", ".join(c.name for c in carries),
                      fix=f"did you mean `{near}`?" if near else f"let {node.name} = ...")  # fmt: skip
        if carry.advanced is not None:
            self.fail(
                "LF0332", f"`next {node.name}` stands twice", node.name_span, "here again", (carry.advanced, "and here")
            )
        carry.advanced = node.name_span
        value = self.element(self.expr(node.value), node.value.span)
        if not isinstance(value, Array | Scalar):
            value = Scalar(self.typed(value, carry.dtype, node.value.span))
        shape = value.shape if isinstance(value, Array) else ()
        if value.dtype != carry.dtype:
            start = carry.span.text
            self.fail("LF0330", f"`next {node.name}` is {value.dtype}, the carry {carry.dtype}", node.value.span, f"its type is {value.dtype}",
                      (carry.span, f"starts as {carry.dtype}"),
                      fix=f"carry ({node.name}: {value.dtype} = {start.split('=', 1)[-1].strip()})")  # fmt: skip
        if len(shape) != len(carry.shape) or not all(self.require_equal(a, b, "a carry keeps its shape", node.span)
                                                     for a, b in zip(carry.shape, shape, strict=True)):  # fmt: skip
            self.fail("LF0330", f"`next {node.name}` is {describe(value)}, the carry has shape [{', '.join(map(str, carry.shape))}]", node.value.span,
                      "shapes differ", (carry.span, "starts here"))  # fmt: skip
        self.store_at(carry.buffer, value, ahead, node.span)

    def store_at(
        self, buffer: str, value: Array | Scalar, lead: tuple[Expr, ...], span: Span, whole: bool = False
    ) -> None:
        """Store a value behind leading subscripts; `whole` if nothing else is stored in the buffer."""
        with self.context():
            own, subs = self.axes(value.shape if isinstance(value, Array) else ())
            e = value.at(subs, ()) if isinstance(value, Array) else value.expr
            self.define(buffer, own, (*lead, *subs), e, span, whole)

    def finish_carries(
        self, node: ast.ScanDecl, carries: list[Carried], now: tuple[Expr, ...], ahead: tuple[Expr, ...]
    ) -> None:
        """A carry that no `next` advances is kept, unless a `next` failed that may have been meant for it."""
        failed = sum(isinstance(n, ast.Next) for n in node.body) > sum(c.advanced is not None for c in carries)
        for c in carries:
            if c.advanced is None:
                if failed:
                    continue
                self.warn(
                    "LF0337",
                    f"carry `{c.name}` never changes",
                    c.span,
                    "no `next` for it",
                    fix=f"let {c.name} = ... before the scan",
                )
                held = self.stored(c.buffer, c.dtype, c.shape, now)
                assert isinstance(held, Array | Scalar)
                self.store_at(c.buffer, held, ahead, c.span)

    def emit(self, node: ast.Emit, emits: dict[str, tuple[str, DType, tuple[Poly, ...]]], row: tuple[Expr, ...],
             count: Poly, carries: list[Carried]) -> None:  # fmt: skip
        """`emit hs = e`: a row of an array with a leading trip axis."""
        carry = next((c for c in carries if c.name == node.name), None)
        if carry is not None:
            self.fail("LF0332", f"`{node.name}` is a carry of this scan", node.name_span, "would be two values after the scan",
                      (carry.span, "the carry"), fix=f"another name: emit all_{node.name} = ...")  # fmt: skip
        if node.name in emits:
            self.fail("LF0332", f"`emit {node.name}` stands twice", node.name_span, "here again")
        if not self.is_size(self.hull(count, node.span), params=False):
            self.fail("LF0333", "an emit needs a number of trips that is a size", node.span, f"{count} is known only at the call",
                      fix="size STEPS = ... in place of the param, or keep only the carry")  # fmt: skip
        value = self.element(self.expr(node.value), node.value.span)
        settled = value if isinstance(value, Array) else self.settled(value, node.value.span)
        shape = settled.shape if isinstance(settled, Array) else ()
        lead = (*((self.hull(t.count, node.span), ONE) for t in self.trips[:-1]), (self.hull(count, node.span), None))
        buffer = self.declare(node.name, settled.dtype, shape, node.name_span, lead)
        emits[node.name] = (buffer, settled.dtype, shape)
        self.store_at(buffer, settled, row, node.span, whole=True)

    # -- accum ----------------------------------------------------------------------------------------------------------------

    def accum(self, node: ast.AccumDecl) -> None:
        """`accum hist: i32[256] = 0 for y, x if c { hist[e] += 1 }`."""
        if self.equation:
            self.fail(
                "LF0336",
                "a scatter cannot stand inside an equation",
                node.span,
                "called from one",
                fix="bind the result of the function by `let` first",
            )
        dtype = self.dtype_named(node.type)
        if node.type.dims is None:
            self.fail(
                "LF0320",
                "a scatter needs an array to scatter into",
                node.type.span,
                "this is a scalar type",
                fix=f"{node.type.head}[N], or sum(...)",
            )
        shape = tuple(self.extent_arg(d) for d in node.type.dims if not isinstance(d, ast.Rest))
        for extent, d in zip(shape, node.type.dims, strict=True):
            self.fits(extent, "an extent", d.span)
        monoid = self.scatter_monoid(node, dtype)
        acc_dtype = dtype.accumulator if dtype.is_float and monoid in ("sum", "prod") else dtype
        acc = self.fresh(f"{node.name}.acc")
        scope = Scope(self.scope)
        with self.context(), self.watch(), self.inside(scope):
            dims, where, updates = self.scatter_body(node, scope, dtype, acc_dtype, shape)
        with self.context():
            self.scatter_result(node, monoid, dtype, acc_dtype, acc, shape, dims, where, updates)

    def scatter_monoid(self, node: ast.AccumDecl, dtype: DType) -> str:
        """The one combining operator of a block."""
        first = node.updates[0]
        for u in node.updates:
            if u.name != node.name:
                self.fail("LF0321", f"only `{node.name}` can be updated here", u.name_span, f"`{u.name}` is not the accumulator",
                          fix=f"{node.name}[...] {u.op} ...")  # fmt: skip
            if u.op != first.op:
                self.fail("LF0325", f"a scatter combines by one operator, not `{first.op}` and `{u.op}`", u.span, f"`{u.op}` here",
                          (first.span, f"`{first.op}` here"), fix="two accum blocks")  # fmt: skip
        if first.op not in COMBINE:
            self.fail("LF0323", "a scatter needs a combining operator", first.span, f"`{first.op}` would depend on the order of colliding writes",
                      fix="max= from -inf, or += over 0; or gather by the inverse")  # fmt: skip
        monoid = COMBINE[first.op]
        if dtype == BOOL and monoid in ("bitor", "bitand"):
            monoid = {"bitor": "any", "bitand": "all"}[monoid]
        if dtype.kind not in ops.MONOIDS[monoid].kinds or dtype.kind not in ops.OPS[ops.MONOIDS[monoid].op].kinds:
            fix = "an accumulator of i64, or |= for whether one holds" if dtype == BOOL and monoid == "sum" else None
            self.fail(
                "LF0215", f"`{first.op}` does not take {dtype}", first.span, f"the accumulator is {dtype}", fix=fix
            )
        return monoid

    def scatter_body(self, node: ast.AccumDecl, scope: Scope, dtype: DType, acc_dtype: DType,
                     shape: tuple[Poly, ...]) -> tuple[tuple[Dim, ...], Expr | None, list[typed.Update]]:  # fmt: skip
        """The loops, the filter and the updates of a scatter."""
        gen = node.gen
        scope.values[node.name] = Entry(
            Poison(
                "LF0322", f"`{node.name}` cannot be read in its own block", "read it after the block, or write a scan"
            ),
            node.name_span,
        )
        before = self.equation
        self.equation = True
        try:
            roots = [
                *(s for u in node.updates for s in u.subs),
                *(u.value for u in node.updates),
                *([gen.cond] if gen.cond else []),
            ]
            dims = self.bind(scope, gen.binders, roots, self.target_uses(node, shape))
            where = None if gen.cond is None else self.condition(gen.cond)
            with self.context():
                if where is not None:
                    self.facts = self.facts.assume(where, True)
                    self.guards = (*self.guards, where)
                updates = [self.scatter_update(u, dtype, acc_dtype, shape) for u in node.updates]
        finally:
            self.equation = before
        return dims, where, updates

    def target_uses(self, node: ast.AccumDecl, shape: tuple[Poly, ...]) -> dict[str, list[Use]]:
        """Bare subscripts of the target bound their indices too."""
        found: dict[str, list[Use]] = {}
        names = {b.name for b in node.gen.binders}
        for u in node.updates:
            for k, sub in enumerate(u.subs):
                if isinstance(sub, ast.Name) and sub.id in names and k < len(shape):
                    found.setdefault(sub.id, []).append(Use(shape[k], sub.span, k, node.name, node.name_span))
        return found

    def scatter_update(self, node: ast.Update, dtype: DType, acc_dtype: DType, shape: tuple[Poly, ...]) -> typed.Update:
        """One update: its subscripts judged, its value of the accumulator's type."""
        if len(node.subs) != len(shape):
            self.fail(
                "LF0312",
                f"{len(node.subs)} subscripts for an array of {len(shape)} axes",
                node.span,
                "every axis needs one",
            )
        subs: list[Expr] = []
        modes: list[Mode | None] = []
        target = ast.Subscript(ast.Name(node.name, node.name_span), node.subs, node.span)
        for k, (sub, extent) in enumerate(zip(node.subs, shape, strict=True)):
            if isinstance(sub, ast.Slice | ast.NewAxis | ast.Rest):
                self.fail("LF0311", "a scatter's subscripts are integers", sub.span, "this is a part of an axis")
            e = self.subscript_expr(self.expr(sub), sub.span)
            subs.append(e)
            modes.append(self.judged(e, extent, sub.span, target, k, write=True))
        value = self.element(self.expr(node.value), node.value.span)
        if isinstance(value, Array):
            self.fail("LF0313", "an update must be a scalar", node.value.span, f"this is {value}")
        if isinstance(value, Scalar) and value.dtype != dtype:
            self.fail("LF0210", f"cannot add {value.dtype} to an accumulator of {dtype}", node.value.span, "no implicit conversion",
                      fix=f"{dtype}({node.value.span.text})")  # fmt: skip
        return typed.Update(
            tuple(subs), tuple(modes), cast(self.typed(value, dtype, node.value.span), acc_dtype), node.span
        )

    def scatter_result(self, node: ast.AccumDecl, monoid: str, dtype: DType, acc_dtype: DType, acc: str, shape: tuple[Poly, ...],
                       dims: tuple[Dim, ...], where: Expr | None, updates: list[typed.Update]) -> None:  # fmt: skip
        """Combine the accumulator with its start and bind the result."""
        out, subs = self.axes(shape)
        total: Expr = Load(acc, subs, (None,) * len(subs), acc_dtype)
        init = self.element(self.expr(node.init), node.init.span)
        start = self.initial(init, subs, dtype, acc_dtype, shape, node)
        monoid_row = ops.MONOIDS[monoid]
        neutral = ops.to_bits(monoid_row.identity(acc_dtype), acc_dtype)
        if not (isinstance(start, Const) and start.bits == neutral):
            total = Op(monoid_row.op, (start, total), acc_dtype, span=node.span)
        result = cast(total, dtype)
        where = conjunction((*self.guards, where))
        buffer = self.declare(node.name, dtype, shape, node.name_span)
        if not self.dry:
            exprs = (where, *(u.value for u in updates), *(s for u in updates for s in u.subs))
            self.body.append(typed.Scatter(buffer, acc, monoid, acc_dtype, dims, where, tuple(updates), out, (*self.trip_subs(), *subs),
                                           result, self.needed(exprs), self.needed((result,)), node.span))  # fmt: skip
        self.bind_name(node.name, node.name_span, self.stored(buffer, dtype, shape, self.trip_subs()))

    def initial(self, init: Element, subs: tuple[Expr, ...], dtype: DType, acc_dtype: DType, shape: tuple[Poly, ...],
                node: ast.AccumDecl) -> Expr:  # fmt: skip
        """The start of an accumulator at one element."""
        if isinstance(init, Array):
            if len(init.shape) != len(shape) or not all(self.require_equal(a, b, "the start has the accumulator's shape", node.init.span)
                                                        for a, b in zip(shape, init.shape, strict=True)):  # fmt: skip
                self.fail(
                    "LF0226",
                    f"the start is {init}, the accumulator {node.type.span.text}",
                    node.init.span,
                    "shapes differ",
                )
            e = init.at(subs, ())
        elif isinstance(init, Scalar):
            e = init.expr
        else:
            e = self.typed(init, dtype, node.init.span)
        if e.dtype != dtype:
            self.fail(
                "LF0225",
                f"the start is {e.dtype}, the accumulator {dtype}",
                node.init.span,
                f"its type is {e.dtype}",
                fix=f"{dtype}(...)",
            )
        if isinstance(e, Const) and acc_dtype != dtype:
            return Const(ops.constant(float(ops.from_bits(e.bits, dtype)), acc_dtype), acc_dtype)
        return cast(e, acc_dtype)
