"""Contractions: `@`, dot, outer, einsum. Each is stored as a definition of its own, one fold an element."""

from __future__ import annotations

from collections.abc import Callable

from loopfuse.diag import Span
from loopfuse.dtypes import DType, promote
from loopfuse.frontend.check.core import cast
from loopfuse.frontend.check.shapes import Shapes
from loopfuse.frontend.check.values import Array, Modes, Scalar, Subs, Value
from loopfuse.ir import Affine, Dim, Expr, Op
from loopfuse.sizes import ONE, ZERO, Poly


class Products(Shapes):
    """Sums of products."""

    def operand(self, value: Value, span: Span) -> Array:
        """An operand of a product: free to be read many times over, or stored first where it costs."""
        array = self.as_array(value, span)
        if array.free or array.depth <= 3:
            return array
        stored = self.materialise(array, "t", span)
        assert isinstance(stored, Array)
        return stored

    def product_type(self, a: Array, b: Array, span: Span, name: str) -> DType:
        """The type of a contraction."""
        met = promote(a.dtype, b.dtype)
        if met is None:
            mixed = a.dtype.is_float != b.dtype.is_float
            self.fail("LF0210", f"cannot mix {a.dtype} and {b.dtype} in `{name}`", span,
                      "no implicit conversion between integers and floats" if mixed else "neither type holds all values of the other",
                      fix="convert one side: f32(...)")  # fmt: skip
        if met.kind == "bool":
            self.fail(
                "LF0211",
                f"`{name}` does not take bool",
                span,
                "arithmetic on bool has no meaning here",
                fix="i32(...) gives 0 and 1",
            )
        return met

    def contract(self, a: Expr, b: Expr, dims: tuple[Dim, ...], dtype: DType, name: str, span: Span) -> Expr:
        """The sum of a product over dims: formed and accumulated in the accumulator's type, rounded once."""
        acc = dtype.accumulator
        term = Op("mul", (cast(cast(a, dtype), acc), cast(cast(b, dtype), acc)), acc, span=span)
        return cast(
            self.fold(name, "sum", acc, dims, term, None, span, unsafe=bool(self.guards) and self.guarded), dtype
        )

    def matmul(self, left: Value, right: Value, spans: tuple[Span, Span], span: Span) -> Array | Scalar:
        """`a @ b` by NumPy's rules: vectors are rows and columns, leading axes are batches and broadcast."""
        a, b = self.operand(left, spans[0]), self.operand(right, spans[1])
        dtype = self.product_type(a, b, span, "@")
        row, column = a.rank == 1, b.rank == 1
        inner_a, inner_b = a.shape[-1], b.shape[0 if column else -2]
        if not self.require_equal(inner_a, inner_b, "the inner extents of `@` must be equal", span):
            fix = None
            if b.rank == 2 and self.same(inner_a, b.shape[-1]):
                fix = f"transpose the right side: {spans[1].text}.T"
            elif a.rank == 2 and self.same(a.shape[0], inner_b):
                fix = f"transpose the left side: {spans[0].text}.T"
            self.fail("LF0401", f"`@` of {a} and {b}: inner extents differ", span, f"{inner_a} against {inner_b}",
                      *self.named_origin(spans[0]), *self.named_origin(spans[1]), fix=fix)  # fmt: skip
        batch_a, batch_b = a.shape[:-2] if not row else (), b.shape[:-2] if not column else ()
        batch = self.batch_shape(a, b, batch_a, batch_b, spans, span)
        tail = ((a.shape[-2],) if not row else ()) + ((b.shape[-1],) if not column else ())
        shape = (*batch, *tail)

        def element(subs: Subs) -> Expr:
            with self.context():
                k = self.index("k", (ZERO,), (inner_a,))
                kk = Affine(Poly.of(k.id))
                lead, rest = subs[: len(batch)], list(subs[len(batch) :])
                left_subs = (*self.batch_subs(lead, batch_a), *((rest.pop(0),) if not row else ()), kk)
                right_subs = (*self.batch_subs(lead, batch_b), kk, *((rest.pop(0),) if not column else ()))
                return self.contract(a.at(left_subs, ()), b.at(right_subs, ()), (k,), dtype, "dot", span)

        return self.product(element, shape, dtype, "matmul", span)

    def product(
        self, element: Callable[[Subs], Expr], shape: tuple[Poly, ...], dtype: DType, name: str, span: Span
    ) -> Array | Scalar:
        """The stored result of a contraction, or its one element."""
        if not shape:
            return Scalar(element(()))

        def at(subs: Subs, modes: Modes) -> Expr:
            return element(subs)

        return self.materialise(Array(dtype, shape, at, (False,) * len(shape), depth=2), name, span)

    def batch_shape(self, a: Array, b: Array, left: tuple[Poly, ...], right: tuple[Poly, ...], spans: tuple[Span, Span],
                    span: Span) -> tuple[Poly, ...]:  # fmt: skip
        """The broadcast leading axes of `@`."""
        rank = max(len(left), len(right))
        result = []
        for k in range(rank):
            x = left[k - rank + len(left)] if k >= rank - len(left) else ONE
            y = right[k - rank + len(right)] if k >= rank - len(right) else ONE
            if x != ONE and y != ONE and not self.require_equal(x, y, "batch extents must be equal", span):
                self.fail("LF0402", f"cannot broadcast the batches of {a} and {b}", span, f"{x} against {y}")
            result.append(y if x == ONE else x)
        return tuple(result)

    @staticmethod
    def batch_subs(lead: Subs, batch: tuple[Poly, ...]) -> tuple[Expr, ...]:
        """The leading subscripts of one operand."""
        own = lead[len(lead) - len(batch) :] if batch else ()
        return tuple(Affine(ZERO) if e == ONE else s for e, s in zip(batch, own, strict=True))

    def named_origin(self, span: Span) -> tuple[tuple[Span | None, str], ...]:
        """Where a plain name was declared."""
        entry = self.scope.find(span.text) if span.text.isidentifier() else None
        if entry is None or entry.span is None or not isinstance(entry.value, Array):
            return ()
        return ((entry.span, f"{span.text} is {entry.value}"),)

    def outer_product(self, left: Value, right: Value, spans: tuple[Span, Span], span: Span) -> Array:
        """`outer(a, b)` of two vectors."""
        a, b = self.as_array(left, spans[0]), self.as_array(right, spans[1])
        if a.rank != 1 or b.rank != 1:
            self.fail("LF0403", "`outer` takes two vectors", span, f"these are {a} and {b}")
        dtype = self.product_type(a, b, span, "outer")

        def at(subs: Subs, modes: Modes) -> Expr:
            return Op("mul", (cast(a.at(subs[:1], ()), dtype), cast(b.at(subs[1:], ()), dtype)), dtype, span=span)

        return Array(dtype, (a.shape[0], b.shape[0]), at, (False, False), depth=max(a.depth, b.depth) + 1)

    # -- einsum ---------------------------------------------------------------------------------------------------------------

    def einsum(self, text: str, values: list[Value], spans: list[Span], span: Span) -> Array | Scalar:
        """`einsum("ij,jk->ik", a, b)`: letters are indices; without `->` those that occur once, in alphabetical order."""
        left, arrow, right = text.replace(" ", "").partition("->")
        terms = left.split(",")
        if not all(t.isalpha() or not t for t in terms) or not (right.isalpha() or not right):
            self.fail("LF0406", "the subscripts of einsum are letters, commas and one `->`", span, f"this is {text!r}",
                      fix="write an index equation: let c[i, j] = sum(a[i, k] * b[k, j] for k)")  # fmt: skip
        if len(terms) != len(values):
            self.fail("LF0406", f"einsum has {len(terms)} subscripts for {len(values)} operands", span, f"in {text!r}")
        arrays = [self.operand(v, s) for v, s in zip(values, spans, strict=True)]
        extents = self.letters(terms, arrays, spans, span)
        letters = "".join(terms)
        out = right if arrow else "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        if len(set(out)) != len(out) or any(c not in extents for c in out):
            self.fail("LF0406", f"the result `{out}` of einsum repeats or invents an index", span, f"in {text!r}")
        dtype = arrays[0].dtype
        for a in arrays[1:]:
            dtype = self.product_type(Array(dtype, a.shape, a.at), a, span, "einsum")
        shape = tuple(extents[c] for c in out)
        summed = [c for c in dict.fromkeys(letters) if c not in out]

        def element(subs: Subs) -> Expr:
            with self.context():
                place: dict[str, Expr] = dict(zip(out, subs, strict=True))
                dims = tuple(self.index(c, (ZERO,), (extents[c],)) for c in summed)
                place |= {c: Affine(Poly.of(d.id)) for c, d in zip(summed, dims, strict=True)}
                wide = dtype.accumulator if summed else dtype
                factors = [
                    cast(cast(a.at(tuple(place[c] for c in t), ()), dtype), wide)
                    for a, t in zip(arrays, terms, strict=True)
                ]
                term = factors[0]
                for f in factors[1:]:
                    term = Op("mul", (term, f), wide, span=span)
                if not summed:
                    return term
                return cast(self.fold("dot", "sum", wide, dims, term, None, span), dtype)

        return self.product(element, shape, dtype, "einsum", span)

    def letters(self, terms: list[str], arrays: list[Array], spans: list[Span], span: Span) -> dict[str, Poly]:
        """The extent of each index letter."""
        extents: dict[str, Poly] = {}
        for term, array, where in zip(terms, arrays, spans, strict=True):
            if len(term) != array.rank:
                self.fail("LF0406", f"`{term}` names {len(term)} axes of {array}", where, f"it has {array.rank}")
            for letter, extent in zip(term, array.shape, strict=True):
                known = extents.setdefault(letter, extent)
                if not self.require_equal(known, extent, f"index {letter} of einsum ranges over both", where):
                    self.fail(
                        "LF0304", f"`{letter}` has two different extents", where, f"{extent} here, {known} before"
                    )
        return extents
