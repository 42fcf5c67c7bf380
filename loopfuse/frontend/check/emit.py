"""Emission: turning values into definitions, reductions into folds, and elements into loads."""

from __future__ import annotations

from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, I64, DType
from loopfuse.frontend import typed
from loopfuse.frontend.check.core import Core, conjunction, fold_exprs, index_names, refs
from loopfuse.frontend.check.values import Array, Modes, Scalar, Subs
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Load, Ref, Select
from loopfuse.sizes import ONE, ZERO, Poly

# Expressions taller than this are cut by a definition, so that no later stage meets a deep tree.
TALLEST = 48
LETTERS = "ijklmnopq"


class Emit(Core):
    """Definitions and folds."""

    # -- buffers ------------------------------------------------------------------------------------------------------

    def trip_subs(self) -> tuple[Expr, ...]:
        """The subscripts of the leading axes that a buffer has for the scans around."""
        return tuple(Affine(Poly.of(t.index)) for t in self.trips)

    def declare(self, name: str, dtype: DType, shape: tuple[Poly, ...], span: Span | None,
                lead: tuple[tuple[Poly, Poly | None], ...] | None = None) -> str:  # fmt: skip
        """A new buffer. It gets a leading axis a scan around, with a window of one trip.

        `lead` overrides that: pairs of the extent and the width of the window (None: the whole axis).
        """
        if lead is None:
            lead = tuple((self.hull(t.count, span), ONE) for t in self.trips)
        window = None
        if any(width is not None for _, width in lead):
            intervals = []
            for (extent, width), trip in zip(lead, self.trips, strict=False):
                start = Poly.of(trip.index)
                intervals.append((((start,), (start + width,))) if width is not None else ((ZERO,), (extent,)))
            window = tuple(intervals) + tuple(((ZERO,), (extent,)) for extent in shape)
        buffer = Buffer(self.fresh(name), dtype, (*(extent for extent, _ in lead), *shape), window=window, span=span)
        if not self.dry:
            self.buffers[buffer.id] = buffer
        return buffer.id

    def hull(self, count: Poly, span: Span | None) -> Poly:
        """The greatest number of trips, free of the indices around."""
        if self.is_size(count):
            return count
        highs = self.facts.bounds(Affine(count), frozenset(self.sizes))[1]
        if not highs:
            self.fail(
                "LF0334",
                f"the number of trips `{count}` has no bound in sizes",
                span,
                "depends on more than the scans around",
            )
        return highs[0]

    def stored(self, buffer: str, dtype: DType, shape: tuple[Poly, ...], lead: tuple[Expr, ...]) -> Array | Scalar:
        """The value that a buffer holds, behind fixed leading subscripts."""
        nones = (None,) * len(lead)
        if not shape:
            return Scalar(Load(buffer, lead, nones, dtype))

        def at(subs: Subs, modes: Modes) -> Expr:
            return Load(buffer, (*lead, *subs), (*nones, *(modes or (None,) * len(subs))), dtype)

        return Array(dtype, shape, at, (True,) * len(shape), None if lead else buffer, free=True)

    # -- definitions ----------------------------------------------------------------------------------------------------

    def needed(self, exprs: tuple[Expr | None, ...]) -> tuple[typed.Fold, ...]:
        """The folds that expressions refer to, and those that these refer to, the inner ones first."""
        if not self.folds:
            return ()
        found: dict[str, typed.Fold] = {}
        pending = refs(exprs)
        while pending:
            name = pending.pop()
            fold = self.folds.get(name)
            if fold and name not in found:
                found[name] = fold
                pending |= refs(fold_exprs(fold))
        return tuple(fold for name, fold in self.folds.items() if name in found)

    def define(self, buffer: str, dims: tuple[Dim, ...], subs: tuple[Expr, ...], value: Expr, span: Span | None,
               whole: bool = True) -> None:  # fmt: skip
        """`par dims: buffer[subs] = value`, and, where that is the whole definition, what is known of the values."""
        if self.dry:
            return
        self.body.append(typed.Define(buffer, dims, subs, value, self.needed((value,)), span))
        if whole and (value.dtype.is_int or value.dtype == BOOL):
            self.learn(buffer, subs, value)

    def learn(self, buffer: str, subs: tuple[Expr, ...], value: Expr) -> None:
        """Let the prover look through an integer or bool definition, and keep its range with the buffer."""
        if any(self.folds.get(name) for name in refs((value,))) and not value.dtype.is_int:
            return
        names = tuple(e.poly.name for e in subs if isinstance(e, Affine))
        if len(names) == len(subs) and all(n is not None and n not in self.sizes for n in names):
            ids = tuple(n for n in names if n is not None)
            self.know(lambda facts: facts.define(buffer, ids, value))
        if value.dtype.is_int:
            lo, hi = self.bare.bounds(value, frozenset(self.sizes))
            lo = tuple(p for p in lo if not (p.is_const and p.constant <= value.dtype.least))
            hi = tuple(p for p in hi if not (p.is_const and p.constant >= value.dtype.greatest))
            if lo or hi:
                held = self.buffers[buffer]
                self.buffers[buffer] = Buffer(held.id, held.dtype, held.shape, held.role, held.scope, held.window,
                                              (lo, hi), span=held.span)  # fmt: skip
                self.know(lambda facts: facts.value_range(buffer, lo, hi))

    def axes(self, shape: tuple[Poly, ...]) -> tuple[tuple[Dim, ...], tuple[Expr, ...]]:
        """Fresh indices over a shape and the subscripts that they make; an axis written 1 needs no loop."""
        dims: list[Dim] = []
        subs: list[Expr] = []
        for k, extent in enumerate(shape):
            if extent == ONE:
                subs.append(Affine(ZERO))
            else:
                dims.append(self.index(LETTERS[k % 9], (ZERO,), (extent,)))
                subs.append(Affine(Poly.of(dims[-1].id)))
        return tuple(dims), tuple(subs)

    def outer(self, exprs: tuple[Expr | None, ...], bound: set[str]) -> tuple[Dim, ...]:
        """The dims of the equation around (not of scans) on which expressions depend, through folds too."""
        trips = {t.index for t in self.trips}
        names: set[str] = set()
        folds = self.needed(exprs)
        names = index_names(exprs)
        for fold in folds:
            names |= index_names(fold_exprs(fold)) | {n for d in fold.dims for p in (*d.lo, *d.hi) for n in p.names}
            bound = bound | {d.id for d in fold.dims}
        return tuple(self.dims[n] for n in self.dims if n in names and n not in bound and n not in trips)

    def materialise(self, value: Array | Scalar, name: str, span: Span | None, force: bool = False) -> Array | Scalar:
        """Store an array or element, unless it is stored already; what depends on indices around keeps them as axes."""
        if isinstance(value, Array) and value.free and not force:
            return value
        shape = value.shape if isinstance(value, Array) else ()
        with self.context():
            own, subs = self.axes(shape)
            e = value.at(subs, ()) if isinstance(value, Array) else value.expr
            guard = conjunction(self.concerning(e, own))
            if guard is not None:
                e = Select(guard, e, Const(0, e.dtype), span=span)
            around, extents, lead = self.surroundings(e, own, span)
            buffer = self.declare(name, e.dtype, (*extents, *shape), span)
            self.define(buffer, (*around, *own), (*self.trip_subs(), *lead, *subs), e, span)
        return self.stored(buffer, e.dtype, shape, (*self.trip_subs(), *lead))

    def concerning(self, e: Expr, own: tuple[Dim, ...]) -> list[Expr]:
        """The conditions around that can matter to an element: those of no index, or of one that it depends on. What
        they name beside becomes an index of the element too."""
        had = {d.id for d in self.outer((e,), {d.id for d in own})}
        found = [(g, {d.id for d in self.outer((g,), set())}) for g in self.guards]
        return [g for g, names in found if not names or names & had]

    def surroundings(
        self, e: Expr, own: tuple[Dim, ...], span: Span | None
    ) -> tuple[tuple[Dim, ...], tuple[Poly, ...], Subs]:
        """The indices around on which an element depends: their dims, and the extents and subscripts of the leading
        axes that a buffer needs for them."""
        dims = self.outer((e,), {d.id for d in own})
        bases = tuple(self.base(d, span) for d in dims)
        extents = tuple(self.extent(d, base, span) for d, base in zip(dims, bases, strict=True))
        return dims, extents, tuple(Affine(Poly.of(d.id) - base) for d, base in zip(dims, bases, strict=True))

    def base(self, dim: Dim, span: Span | None) -> Poly:
        """The least value of an index, in sizes."""
        if len(dim.lo) == 1 and self.is_size(dim.lo[0]):
            return dim.lo[0]
        return self.bound_in_sizes(dim, 0, span)

    def extent(self, dim: Dim, base: Poly, span: Span | None) -> Poly:
        """How many values an index takes at the most, in sizes."""
        if len(dim.hi) == 1 and self.is_size(dim.hi[0]):
            return dim.hi[0] - base
        return self.bound_in_sizes(dim, 1, span) + 1 - base

    def bound_in_sizes(self, dim: Dim, side: int, span: Span | None) -> Poly:
        """The least (side 0) or greatest (side 1) value of an index in terms of sizes alone."""
        from_data = any(n in self.lets for p in (*dim.lo, *dim.hi) for n in p.names)
        found = self.facts.bounds(Affine(Poly.of(dim.id)), frozenset(self.sizes))[side]
        if not found or from_data:
            name = dim.span.text if dim.span else dim.id
            self.fail("LF0334", f"a value that depends on `{name}` must be stored, and `{name}` has no bounds in sizes", span,
                      "stored here", (dim.span, "the index"), fix="compute it in a `let` of its own, over a range of sizes")  # fmt: skip
        return found[0]

    def cut(self, value: Array | Scalar, span: Span | None) -> Array | Scalar:
        """The value itself, or a stored one where its expression has grown tall."""
        if value.depth <= TALLEST or (self.guards and self.guarded):
            return value
        return self.materialise(value, "t", span)

    # -- folds ------------------------------------------------------------------------------------------------------------

    def fold(self, name: str, monoid: str, dtype: DType, dims: tuple[Dim, ...], value: Expr, where: Expr | None,
             span: Span | None, at: Expr | None = None, unsafe: bool = False) -> Ref:  # fmt: skip
        """A reduction as a value. `unsafe` when its reads are safe only under the guards around."""
        guard = conjunction(self.guards) if (unsafe or self.inherited) and self.guards else None
        result = I64 if at is not None else dtype
        used = {n for d in dims for p in (*d.lo, *d.hi) for n in p.names}
        lets = tuple((n, e) for n, e in self.lets.items() if n in used)
        fold = typed.Fold(self.fresh(name), monoid, dtype, dims, value, where, guard, at, lets, span)
        ref = Ref(fold.id, result, span=span)
        if self.dry:
            return ref
        self.folds[fold.id] = fold
        if at is not None:
            lo, hi = self.facts.bounds(at, frozenset(self.sizes))
            self.know(lambda facts: facts.ref_range(fold.id, lo, hi))
        elif dtype.is_int and monoid in ("max", "min"):
            lo, hi = self.facts.bounds(value, frozenset(self.sizes))
            if lo or hi:
                self.know(lambda facts: facts.ref_range(fold.id, lo, hi))
        return ref
