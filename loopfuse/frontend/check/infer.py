"""Ranges of indices: what a bare use says, and what is wrong where uses disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from loopfuse.diag import Span
from loopfuse.frontend import ast
from loopfuse.frontend.check.core import Failed
from loopfuse.frontend.check.index import Index
from loopfuse.frontend.check.values import Array, Entry, Scope, View, WeakInt
from loopfuse.ir import Affine, Dim
from loopfuse.sizes import ONE, ZERO, Poly


@dataclass(frozen=True, slots=True)
class Use:
    """A subscript that is the index alone: it ranges over that axis."""

    extent: Poly
    span: Span
    axis: int
    base: str
    origin: Span | None


Node = ast.Expr | ast.Slice | ast.NewAxis | ast.Rest


def children(node: Node) -> Iterable[Node]:
    """The expressions directly inside one, comprehensions apart."""
    match node:
        case ast.Unary(operand=operand):
            return (operand,)
        case ast.Binary(left=left, right=right):
            return (left, right)
        case ast.Compare(operands=operands):
            return operands
        case ast.IfElse(then=then, cond=cond, other=other):
            return (cond, then, other)
        case ast.Call(fn=fn, args=args, kwargs=kwargs):
            called = () if isinstance(fn, ast.Name) else (fn,)
            return (*called, *args, *(value for _, value, _ in kwargs))
        case ast.Subscript(base=base, subs=subs):
            return (base, *subs)
        case ast.Attr(base=base):
            return (base,)
        case ast.ArrayLit(items=items) | ast.TupleExpr(items=items):
            return items
        case ast.Slice(lo=lo, hi=hi, step=step):
            return tuple(e for e in (lo, hi, step) if e is not None)
        case ast.Comprehension(body=body):
            return (body,)
        case _:
            return ()


def dims_span(type_: ast.TypeExpr) -> Span:
    """The dims of a type, without the brackets."""
    dims = type_.dims or ()
    return dims[0].span.to(dims[-1].span) if dims else type_.span


def generator(node: Node) -> ast.For | None:
    """The `for` clause of a reduction or comprehension."""
    return node.gen if isinstance(node, ast.Call | ast.Comprehension) else None


class Infer(Index):
    """Index ranges."""

    def subscripts(self, roots: Sequence[Node], names: set[str]) -> Iterator[tuple[ast.Subscript, set[str]]]:
        """All subscripts in expressions, with those of the names that are not rebound there."""
        stack: list[tuple[Node, set[str]]] = [(r, names) for r in reversed(roots)]
        while stack:
            node, free = stack.pop()
            if isinstance(node, ast.Subscript):
                yield node, free
            gen = generator(node)
            inner = free
            if gen is not None:
                inner = free - {b.name for b in gen.binders}
                bounds = [e for b in gen.binders if b.range for e in (b.range.lo, b.range.hi)]
                stack.extend((e, free) for e in bounds)
                if gen.cond is not None:
                    stack.append((gen.cond, inner))
            stack.extend((child, inner) for child in reversed(list(children(node))))

    def uses(self, roots: Sequence[Node], names: set[str]) -> dict[str, list[Use]]:
        """The bare uses of index names in expressions."""
        found: dict[str, list[Use]] = {}
        for node, free in self.subscripts(roots, names):
            bare = [s for s in node.subs if isinstance(s, ast.Name) and s.id in free]
            if not bare:
                continue
            shape = self.shape_of(node.base)
            if shape is not None:
                entry = self.scope.find(node.base.id) if isinstance(node.base, ast.Name) else None
                self.note(found, node, shape, free, entry.span if entry else None)
        return found

    def note(self, found: dict[str, list[Use]], node: ast.Subscript, shape: tuple[Poly, ...], free: set[str],
             origin: Span | None) -> None:  # fmt: skip
        """Record the bare uses in one subscript."""
        counted = [s for s in node.subs if not isinstance(s, ast.NewAxis)]
        rest = next((k for k, s in enumerate(counted) if isinstance(s, ast.Rest)), None)
        for k, sub in enumerate(counted):
            if not (isinstance(sub, ast.Name) and sub.id in free):
                continue
            axis = k if rest is None or k < rest else len(shape) - (len(counted) - k)
            if 0 <= axis < len(shape):
                found.setdefault(sub.id, []).append(Use(shape[axis], sub.span, axis, node.base.span.text, origin))

    def shape_of(self, node: ast.Expr) -> tuple[Poly, ...] | None:
        """The shape of what is subscripted, found without reporting or emitting anything."""
        try:
            with self.attempt():
                value = self.expr(node)
        except Failed:
            return None
        if isinstance(value, View):
            return value.array.shape
        return value.shape if isinstance(value, Array) else None

    # -- binding ----------------------------------------------------------------------------------------------------------

    def bind(self, scope: Scope, binders: Sequence[ast.Binder], roots: Sequence[Node],
             extra: dict[str, list[Use]] | None = None) -> tuple[Dim, ...]:  # fmt: skip
        """Bind indices in `scope`, ranges written or inferred from their uses in `roots`, in the order written."""
        names = [b.name for b in binders]
        for b in binders:
            self.check_index_name(b)
        open_names = {b.name for b in binders if b.range is None}
        found: dict[str, list[Use]] = {}
        if open_names:
            probe = Scope(scope)
            for name in names:
                probe.values[name] = Entry(WeakInt(Affine(Poly.of(f"{name}?"))), None, "index")
            with self.inside(probe):
                found = self.uses(roots, open_names)
            for name, more in (extra or {}).items():
                found.setdefault(name, []).extend(more)
        dims: list[Dim] = []
        for b in binders:
            lo, hi, step = self.range_of(b, found.get(b.name, []), roots, names, scope)
            dims.append(self.bind_one(scope, b, lo, hi, step))
        return tuple(dims)

    def bind_one(self, scope: Scope, b: ast.Binder, lo: Poly, hi: Poly, step: int) -> Dim:
        """Bind one index to a range; a step other than 1 runs a dense index underneath."""
        if step == 1:
            dim = self.index(b.name, (lo,), (hi,), b.span)
            value = Poly.of(dim.id)
        else:
            size = abs(step)
            dim = self.index(b.name, (ZERO,), ((hi - lo + size - 1) // size,), b.span)
            value = lo + Poly.of(dim.id) * size
        scope.values[b.name] = Entry(WeakInt(Affine(value, span=b.span)), b.span, "index")
        return dim

    def check_index_name(self, b: ast.Binder) -> None:
        """An index may not have the name of an array, a size or a param."""
        entry = self.scope.find(b.name)
        if entry is not None and entry.what in ("input", "size", "param", "dim", "definition"):
            self.fail("LF0303", f"`{b.name}` is already {entry.described}", b.span, "an index needs a name of its own",
                      (entry.span, "defined here"), fix=f"rename the index, say {b.name}0")  # fmt: skip

    def range_of(self, b: ast.Binder, uses: list[Use], roots: Sequence[Node], peers: Sequence[str],
                 scope: Scope) -> tuple[Poly, Poly, int]:  # fmt: skip
        """The range of an index: `(lo, hi, step)`. `peers` are the names that are bound together with it."""
        if b.range is not None:
            with self.inside(scope):
                return self.written_range(b.range)
        if not uses:
            self.no_range(b, roots, peers, scope)
        first = uses[0]
        for other in uses[1:]:
            if other.extent == ONE and first.extent != ONE:
                self.stretched(b.name, other, first)
            if first.extent == ONE and other.extent != ONE:
                self.stretched(b.name, first, other)
            if not self.require_equal(first.extent, other.extent, f"`{b.name}` ranges over both", other.span):
                self.two_extents(b.name, first, other)
        return ZERO, first.extent, 1

    def written_range(self, node: ast.Range) -> tuple[Poly, Poly, int]:
        """`lo..hi by step`: sizes, params, outer indices."""
        step = 1
        if node.step is not None:
            value = self.expr(node.step)
            poly = value.poly if isinstance(value, WeakInt) else None
            poly = None if poly is None else poly.subs(self.known_sizes())
            if poly is None or not poly.is_const or poly.constant == 0:
                self.fail(
                    "LF0308", "the step of a range must be a constant other than 0", node.step.span, "not known here"
                )
            step = poly.constant
        return self.bound(node.lo), self.bound(node.hi), step

    def bound(self, node: ast.Expr) -> Poly:
        """A bound of a range. One that depends on data, in a reduction, is a let with a name of its own."""
        value = self.expr(node)
        e = self.subscript_expr(value, node.span)
        if isinstance(e, Affine):
            return e.poly
        if not self.data_bounds:
            self.fail("LF0309", "the bounds of this range must be sizes, params or outer indices", node.span, "depends on data",
                      fix="run over all and filter: for k in 0..N if lo <= k < hi")  # fmt: skip
        name = self.fresh("bound")
        self.lets[name] = e
        self.update(lambda facts: facts.let(name, e))
        return Poly.of(name)

    def no_range(self, b: ast.Binder, roots: Sequence[Node], peers: Sequence[str], scope: Scope) -> NoReturn:
        """An index that nothing bounds."""
        self.other_cause(roots, peers, scope)
        shifted = [s.span for node, free in self.subscripts(roots, {b.name}) for s in node.subs
                   if not isinstance(s, ast.Name | ast.Rest | ast.NewAxis) and b.name in s.span.text and b.name in free]  # fmt: skip
        if shifted:
            self.fail("LF0302", f"index `{b.name}` has no range: it is never used alone", b.span, f"needs `{b.name} in lo..hi`",
                      (shifted[0], "only used in an expression"), fix=f"{b.name} in 0..N")  # fmt: skip
        self.fail("LF0301", f"index `{b.name}` has no range", b.span, f"no array is subscripted by `{b.name}` alone",
                  fix=f"write the range: {b.name} in 0..N")  # fmt: skip

    def other_cause(self, roots: Sequence[Node], peers: Sequence[str], scope: Scope) -> None:
        """Report what else is wrong in the expressions: that may be why nothing bounds the index.

        All that are bound together are known there, those without a range yet too: none is a name that nobody gave.
        """
        probe = Scope(scope)
        for name in peers:
            if name not in scope.values:
                probe.values[name] = Entry(WeakInt(Affine(Poly.of(f"{name}?"))), None, "index")
        before = len(self.unreported)
        for root in roots:
            try:
                with self.attempt(), self.inside(probe):
                    if not isinstance(root, ast.Slice | ast.NewAxis | ast.Rest):
                        self.expr(root)
            except Failed:
                cause = self.unreported[-1] if len(self.unreported) > before else None
                if cause is not None and cause.code not in ("LF0301", "LF0302"):
                    self.report(cause)
                    raise

    def two_extents(self, name: str, first: Use, other: Use) -> NoReturn:
        """Bare uses that disagree."""
        also: list[tuple[Span | None, str]] = []
        also.append((first.span, f"but over {first.extent} here (axis {first.axis} of {first.base})"))
        entry = self.scope.find(other.base)
        if other.origin is not None and entry is not None and isinstance(entry.value, Array):
            place = dims_span(entry.type) if entry.type else other.origin
            also.append((place, f"{other.base} is declared {entry.value}"))
        span, label = other.span, f"`{name}` ranges over {other.extent} here (axis {other.axis} of {other.base})"
        a, b = first.extent, other.extent
        fix = f"did you mean `require {a} == {b}`?" if a.name and b.name else f"write the range: {name} in 0..{a}"
        swap = self.transposed(other, name)
        if swap and a.name and b.name:
            fix = f"did you mean {swap}, or `require {b} == {a}`?"
        self.fail("LF0304", f"`{name}` has two different extents", span, label, *also,
                  notes=(f"sizes {b} and {a} are not known to be equal",), fix=fix)  # fmt: skip

    def transposed(self, use: Use, name: str) -> str | None:
        """The subscript with its two indices exchanged."""
        text = use.span.source.text
        start = text.rfind(use.base + "[", 0, use.span.start)
        end = text.find("]", use.span.end)
        if start < 0 or end < 0:
            return None
        inner = [p.strip() for p in text[start + len(use.base) + 1 : end].split(",")]
        return f"{use.base}[{inner[1]}, {inner[0]}]" if len(inner) == 2 else None

    def stretched(self, name: str, one: Use, many: Use) -> NoReturn:
        """Index notation does not broadcast."""
        self.fail("LF0304", f"`{name}` has two different extents", one.span, f"`{name}` ranges over 1 here (axis {one.axis} of {one.base})",
                  (many.span, f"but over {many.extent} here (axis {many.axis} of {many.base})"),
                  notes=("index notation does not broadcast",), fix=f"read the single element: 0 in place of `{name}`")  # fmt: skip
