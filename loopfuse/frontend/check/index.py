"""Subscripts: elements, slices, gathers, boundary views, and the law that judges every read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from loopfuse import ops
from loopfuse.diag import Span
from loopfuse.dtypes import BOOL, I64
from loopfuse.frontend import ast
from loopfuse.frontend.check.convert import Convert, describe
from loopfuse.frontend.check.core import cast
from loopfuse.frontend.check.values import Array, Function, Modes, Poison, Scalar, Subs, Tuple, Value, View, WeakInt
from loopfuse.ir import Affine, Const, Expr, Load, Mode, Op, Select
from loopfuse.prove import Judgement, judge
from loopfuse.sizes import ONE, ZERO, Poly


def marked(e: Expr, span: Span) -> Expr:
    """A read with a mode knows its place, for the report of a fault."""
    return replace(e, span=span) if isinstance(e, Load) and any(e.modes) else e


@dataclass(frozen=True, slots=True)
class Fixed:
    """One element of an axis."""

    sub: Expr
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of an axis; `whole` if it is all of it."""

    start: Poly
    step: int
    extent: Poly
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Gathered:
    """An axis read at the elements of an integer array."""

    index: Array
    span: Span


Axis = Fixed | Part | Gathered | None
Sub = ast.Expr | ast.Slice | ast.NewAxis | Poly


def shifted(sub: Expr, step: int, start: Poly) -> Expr:
    """`step * sub + start`, exact."""
    if isinstance(sub, Affine):
        return Affine(sub.poly * step + start)
    scaled = sub if step == 1 else Op("mul", (sub, Affine(Poly.of(step))), I64)
    return scaled if start == ZERO else Op("add", (scaled, Affine(start)), I64)


class Index(Convert):
    """Reading elements and parts of arrays."""

    def subscript(self, node: ast.Subscript) -> Value:
        """`base[subs]`."""
        if isinstance(node.base, ast.Name) and self.scope.find(node.base.id) is None:
            name = node.base.id
            if name in ops.MONOIDS or self.scope.function(name) or name in ("mean", "logsumexp", "argmin"):
                inner = node.span.source.text[node.base.span.end + 1 : node.span.end - 1]
                self.fail("LF0220", f"`{name}` is a function, not an array", node.base.span, "subscripted here",
                          notes=("a reduction is written like a Python generator",),
                          fix=f"{name}(x[{inner}] for {inner})")  # fmt: skip
        base = self.expr(node.base)
        if isinstance(base, View):
            return self.view_element(base, node)
        if isinstance(base, Function):
            self.fail("LF0220", f"`{base.name}` is a function, not an array", node.base.span, "subscripted here")
        if isinstance(base, Tuple):
            return self.member_of(base, node)
        if not isinstance(base, Array | Poison):
            self.fail("LF0310", "only an array can be subscripted", node.base.span, f"this is {describe(base)}")
        array = self.as_array(base, node.base.span)
        subs = self.expand(node, array.rank)
        axes: list[Axis] = []
        k = 0
        for sub in subs:
            if isinstance(sub, ast.NewAxis):
                axes.append(None)
                continue
            axes.append(self.axis(sub, array, k, node))
            k += 1
        if sum(isinstance(a, Gathered) for a in axes) > 1:
            self.fail("LF0405", "array subscripts on more than one axis", node.span, "which of the two should lead is not obvious",
                      fix="write an index equation: let y[i, j] = x[a[i], b[j]]")  # fmt: skip
        return self.take_axes(array, axes, node)

    def member_of(self, base: Tuple, node: ast.Subscript) -> Value:
        """One of several values by a constant position: `x.shape[0]`."""
        sub = node.subs[0] if len(node.subs) == 1 else None
        value = self.expr(sub) if sub is not None and not isinstance(sub, ast.Slice | ast.NewAxis | ast.Rest) else None
        poly = value.poly.subs(self.known_sizes()) if isinstance(value, WeakInt) and value.poly is not None else None
        count = len(base.items)
        if poly is None or not poly.is_const or not -count <= poly.constant < count:
            self.fail(
                "LF0406",
                f"the position must be a constant from {-count} to {count - 1}",
                node.span,
                f"one of {count} values",
            )
        return base.items[poly.constant]

    def expand(self, node: ast.Subscript, rank: int) -> list[Sub]:
        """The subscripts with `...` replaced and whole slices added at the end."""
        dots = [s for s in node.subs if isinstance(s, ast.Rest)]
        if len(dots) > 1:
            self.fail(
                "LF0312",
                "`...` stands twice among the subscripts",
                dots[1].span,
                "here again",
                (dots[0].span, "and here"),
            )
        used = sum(not isinstance(s, ast.NewAxis | ast.Rest) for s in node.subs)
        full = ast.Slice(None, None, None, node.span)
        rest = self.scope.the_rest()
        result: list[Sub] = []
        for sub in node.subs:
            if not isinstance(sub, ast.Rest):
                result.append(sub)
            elif rest is not None:
                result.extend(rest)
                used += len(rest)
            else:
                result.extend([full] * max(rank - used, 0))
                used = max(rank, used)
        if used > rank:
            self.fail("LF0312", f"{used} subscripts for an array of {rank} {'axis' if rank == 1 else 'axes'}", node.span,
                      "too many subscripts", *self.origin_of(node.base))  # fmt: skip
        return [*result, *([full] * (rank - used))]

    def origin_of(self, node: ast.Expr) -> tuple[tuple[Span | None, str], ...]:
        """Where a plain name was defined."""
        if not isinstance(node, ast.Name):
            return ()
        entry = self.scope.find(node.id)
        if entry is None or entry.span is None:
            return ()
        return ((entry.span, f"{node.id} is {describe(entry.value)}"),)

    # -- one axis -------------------------------------------------------------------------------------------------------

    def axis(self, sub: Sub, array: Array, k: int, node: ast.Subscript) -> Axis:
        """What a subscript does to axis k."""
        extent = array.shape[k]
        if isinstance(sub, Poly):
            return Fixed(Affine(sub), self.judged(Affine(sub), extent, node.span, node, k))
        if isinstance(sub, ast.Slice):
            return self.slice(sub, extent, node)
        assert not isinstance(sub, ast.NewAxis)
        back = self.from_end(sub)
        if back is not None:
            if not self.require_nonneg(extent - back, f"[-{back}] needs at least {back} elements", sub.span):
                self.fail(
                    "LF0305",
                    f"read is out of range: `-{back}` of {extent} elements",
                    sub.span,
                    "before the first element",
                )
            return Fixed(Affine(extent - back, span=sub.span), None)
        self.index_known(sub)
        value = self.expr(sub)
        if isinstance(value, Array):
            if value.dtype == BOOL:
                self.fail("LF0408", "a mask is not a subscript: its result would have a size that depends on values", sub.span,
                          "this is a bool array", fix="keep the shape: where(mask, x, 0), or compact into a padded result with cumsum and accum")  # fmt: skip
            if not value.dtype.is_int:
                self.fail(
                    "LF0311", "a subscript must be an integer", sub.span, f"this is {value}", fix="i32(floor(...))"
                )
            return Gathered(value, sub.span)
        e = self.subscript_expr(value, sub.span)
        return Fixed(e, self.judged(e, extent, sub.span, node, k))

    def index_known(self, sub: ast.Expr) -> None:
        """A name in a subscript that nothing binds is an index without a range."""
        if not isinstance(sub, ast.Name) or self.scope.find(sub.id) is not None or sub.id in ("inf", "nan", "pi"):
            return
        name = sub.id
        near = self.suggest(name, self.scope.names()) if len(name) > 2 else None
        if near is not None:
            self.fail("LF0203", f"unknown name `{name}`", sub.span, "not defined here", fix=f"did you mean `{near}`?")
        call = self.open_reductions[-1] if self.open_reductions else None
        if call is None:
            self.fail("LF0301", f"index `{name}` has no range", sub.span, f"`{name}` is not a size, an array or a bound index",
                      fix=f"bind it on the left side: let y[{name}] = ...")  # fmt: skip
        head = Span(call.span.source, call.span.start, call.fn.span.end + 1)
        inside = call.span.text[:-1] + f" for {name})"
        self.fail("LF0301", f"index `{name}` has no range", sub.span, f"`{name}` is not a size, an array or a bound index",
                  (head, "this reduction binds no index"), notes=("unlike einsum, .lf never sums an index silently",),
                  fix=self.whole_statement(call.span, inside))  # fmt: skip

    def subscript_expr(self, value: Value, span: Span) -> Expr:
        """An integer value as a subscript, a polynomial where it is one."""
        if isinstance(value, Poison):
            self.poisoned(value, span)
        if isinstance(value, WeakInt):
            return value.expr
        if not isinstance(value, Scalar) or not value.dtype.is_int:
            self.fail("LF0311", "a subscript must be an integer", span, f"this is {describe(value)}",
                      fix=f"i32(floor({span.text}))" if isinstance(value, Scalar) and value.dtype.is_float else None)  # fmt: skip
        poly = self.facts.poly(value.expr)
        if poly is not None and all(n in self.sizes or n in self.dims for n in poly.names):
            return Affine(poly, span=span)
        return cast(value.expr, I64)

    @staticmethod
    def from_end(sub: ast.Expr) -> int | None:
        """k for a literal `-k`, which counts from the end."""
        if isinstance(sub, ast.Unary) and sub.op == "-" and isinstance(sub.operand, ast.Number):
            value = sub.operand.value
            return value if isinstance(value, int) and value > 0 else None
        return None

    def slice(self, sub: ast.Slice, extent: Poly, node: ast.Subscript) -> Part:
        """`lo:hi:step`, never clamped."""
        if sub.lo is None and sub.hi is None and sub.step is None:
            return Part(ZERO, 1, extent, whole=True)
        step = 1 if sub.step is None else self.slice_step(sub.step)
        lo = self.slice_bound(sub.lo, extent, node) if sub.lo is not None else None
        hi = self.slice_bound(sub.hi, extent, node) if sub.hi is not None else None
        if step > 0:
            start, stop = lo if lo is not None else ZERO, hi if hi is not None else extent
            rules = [start, stop - start, extent - stop]
            length = stop - start
        else:
            start, stop = lo if lo is not None else extent - 1, hi if hi is not None else Poly.of(-1)
            rules = [stop + 1, start - stop, extent - 1 - start]
            length = start - stop
        for rule in rules:
            if not self.require_nonneg(
                rule, f"the slice [{sub.span.text}] must lie inside its axis of {extent}", sub.span
            ):
                self.fail("LF0410", f"slice [{sub.span.text}] is out of range", sub.span, f"the axis has {extent} elements",
                          notes=("slices are not clamped",))  # fmt: skip
        count = length if abs(step) == 1 else (length + abs(step) - 1) // abs(step)
        return Part(start, step, count)

    def slice_step(self, node: ast.Expr) -> int:
        """A constant step."""
        value = self.expr(node)
        poly = value.poly if isinstance(value, WeakInt) else None
        poly = poly.subs(self.known_sizes()) if poly is not None else None
        if poly is None or not poly.is_const or poly.constant == 0:
            self.fail("LF0411", "a slice's step must be a constant other than 0", node.span, "not known here")
        return poly.constant

    def known_sizes(self) -> dict[str, Poly | int]:
        """The sizes whose value is fixed."""
        return {s.id: s.value for s in self.sizes.values() if s.value is not None}

    def slice_bound(self, node: ast.Expr, extent: Poly, whole: ast.Subscript) -> Poly:
        """A bound of a slice: a size expression, or a literal `-k` from the end."""
        back = self.from_end(node)
        if back is not None:
            return extent - back
        value = self.expr(node)
        poly = value.poly if isinstance(value, WeakInt) else None
        if poly is None or not self.is_size(poly, params=False):
            self.fail("LF0411", "the bounds of a slice must be sizes", node.span, "known only while the program runs",
                      fix=f"shift the index in an equation: let y[i in 0..N] = {whole.base.span.text}[{node.span.text} + i]")  # fmt: skip
        return poly

    # -- the law --------------------------------------------------------------------------------------------------------

    def judged(
        self, e: Expr, extent: Poly, span: Span, node: ast.Subscript | None, k: int, write: bool = False
    ) -> Mode | None:
        """Judge a subscript: nothing where it is proved (or required), the mode `checked` where data decide."""
        if self.dry:
            return None
        verdict = judge(self.bare, e, extent)
        if self.guards and verdict.verdict != "proved":
            verdict = judge(self.facts, e, extent)
            if verdict.verdict in ("proved", "checked"):
                self.guarded = True
        self.used_domains |= verdict.domains | self.facts.used_domains()
        if verdict.verdict == "wrong":
            self.out_of_range(verdict, e, extent, span, node, k)
        if verdict.verdict == "requires" and all(self.is_size(p) for p in verdict.requires):
            for p in verdict.requires:
                what = span.text if span.text else str(e)
                if not self.require_nonneg(p, f"`{what}` must stay inside an axis of {extent}", span):
                    self.out_of_range(verdict, e, extent, span, node, k)
            return None
        if verdict.verdict == "proved":
            return None
        self.guarded = True
        kind = "write" if write else "read"
        self.warn("LF0704", f"{kind} is checked while the program runs: `{span.text}` depends on data", span,
                  f"must stay inside an axis of {extent}", level="remark",
                  fix="state the domain: input ... where 0 <= ... < ..., guard it with `if`, or use edge/constant/wrap")  # fmt: skip
        return Mode("checked")

    def out_of_range(
        self, verdict: Judgement, e: Expr, extent: Poly, span: Span, node: ast.Subscript | None, k: int
    ) -> NoReturn:
        """The error for a subscript that leaves its axis for every size."""
        name = node.base.span.text if node else "the array"
        text = span.text
        lo, hi = verdict.lo, verdict.hi
        if lo is not None and lo == hi:
            self.fail("LF0305", f"read is out of range: `{text}`", span, f"{name} has indices 0 .. {str(extent - 1).replace(' ', '')}",
                      notes=("negative subscripts count from the end only as literals",) if self.facts.negative(lo) else ())  # fmt: skip
        low = verdict.low_failed and lo is not None
        reaches = f" reaches {lo if low else hi}" if (lo if low else hi) is not None else " leaves the axis"
        rng = f"{lo} <= {text} <= {hi}, but " if lo is not None and hi is not None else ""
        last = str(extent - 1).replace(" ", "")
        notes: tuple[str, ...] = (
            ("negative subscripts do not wrap in index notation (they do in slices)",) if low else ()
        )
        helps: tuple[str, ...] = ()
        index = text.split("-" if low else "+")[0].strip()
        if node and index.isidentifier() and len(node.subs) == 1:
            guard = f"{index} > 0" if low and lo is not None and lo == Poly.of(-1) else f"0 <= {text} < {extent}"
            helps = (f"keep the border:     ... if {guard} else {name}[{index}]",)
        self.fail("LF0305", f"read may be out of range: `{text}`{reaches}", span,
                  f"{rng}{name}{'' if node is None or len(node.subs) == 1 else f' axis {k}'} has indices 0 .. {last}",
                  notes=notes, helps=helps,
                  fix=f"choose a boundary:   edge({name})[{text}]   constant({name}, 0)[{text}]   wrap({name})[{text}]")  # fmt: skip

    # -- results --------------------------------------------------------------------------------------------------------

    def take_axes(self, array: Array, axes: Sequence[Axis], node: ast.Subscript) -> Array | Scalar:
        """The element or the part of an array that subscripts name."""
        kept = [a for a in axes if a is not None]
        modes = tuple(a.mode if isinstance(a, Fixed) else None for a in kept)
        gather_modes: tuple[Mode | None, ...] = ()
        if any(m is not None for m in modes) or any(isinstance(a, Gathered) for a in kept):
            array = self.moded(array, tuple(m is not None or isinstance(a, Gathered) for m, a in zip(modes, kept, strict=True)),
                               node.base.span)  # fmt: skip
        for k, one in enumerate(kept):
            if isinstance(one, Gathered):
                gather_modes = (self.judge_gather(one, array.shape[k], node, k),)
        if all(isinstance(a, Fixed) for a in axes):
            e = marked(array.at(tuple(a.sub for a in kept if isinstance(a, Fixed)), modes), node.span)
            return Scalar(e, array.depth + 1 if not array.free else 0)
        shape: list[Poly] = []
        moded: list[bool] = []
        for position, a in enumerate(axes):
            if a is None:
                shape.append(ONE)
                moded.append(False)
            elif isinstance(a, Part):
                shape.append(a.extent)
                k = sum(x is not None for x in axes[:position])
                moded.append(a.whole and bool(array.moded) and array.moded[k])
            elif isinstance(a, Gathered):
                shape.extend(a.index.shape)
                moded.extend([False] * a.index.rank)

        def at(subs: Subs, outer: Modes) -> Expr:
            mine, theirs = iter(subs), iter(outer or (None,) * len(subs))
            inner: list[Expr] = []
            inner_modes: list[Mode | None] = []
            for a in axes:
                if a is None:
                    next(mine), next(theirs)
                elif isinstance(a, Fixed):
                    inner.append(a.sub)
                    inner_modes.append(a.mode)
                elif isinstance(a, Part):
                    inner.append(shifted(next(mine), a.step, a.start))
                    inner_modes.append(next(theirs))
                else:
                    index = tuple(next(mine) for _ in range(a.index.rank))
                    inner.append(cast(a.index.at(index, ()), I64))
                    inner_modes.append(gather_modes[0])
                    [next(theirs) for _ in range(a.index.rank)]
            return marked(array.at(tuple(inner), tuple(inner_modes)), node.span)

        free = array.free and not any(isinstance(a, Gathered) for a in axes)
        return Array(
            array.dtype, tuple(shape), at, tuple(moded), free=free, depth=array.depth if free else array.depth + 1
        )

    def judge_gather(self, gather: Gathered, extent: Poly, node: ast.Subscript | None, k: int) -> Mode | None:
        """Judge a gather by an element of its index array."""
        with self.context():
            _, subs = self.axes(gather.index.shape)
            e = cast(gather.index.at(subs, ()), I64)
            return self.judged(e, extent, gather.span, node, k)

    def moded(self, array: Array, needed: tuple[bool, ...], span: Span | None) -> Array:
        """An array whose axes take modes where needed: stored first where it does not."""
        accepts = array.moded or (False,) * array.rank
        if all(ok or not need for ok, need in zip(accepts, needed, strict=True)):
            return array
        stored = self.materialise(array, "t", span, force=True)
        assert isinstance(stored, Array)
        return stored

    def view_element(self, view: View, node: ast.Subscript) -> Scalar:
        """An element of a boundary view."""
        array = view.array
        subs = self.expand(node, array.rank)
        exprs: list[Expr] = []
        kinds: list[bool] = []
        for k, sub in enumerate(subs):
            if isinstance(sub, ast.Slice | ast.NewAxis):
                self.fail("LF0324", "a boundary view takes an integer subscript on every axis", node.span, "this is a part of it",
                          fix="write an index equation")  # fmt: skip
            span = node.span if isinstance(sub, Poly) else sub.span
            e: Expr = Affine(sub) if isinstance(sub, Poly) else self.subscript_expr(self.expr(sub), span)
            exprs.append(e)
            proved = judge(self.facts, e, array.shape[k]).verdict == "proved"
            if proved and self.guards and judge(self.bare, e, array.shape[k]).verdict != "proved":
                self.guarded = True
            kinds.append(not proved)
        if view.kind != "constant":
            for k, outside in enumerate(kinds):
                if outside:
                    self.fits(array.shape[k] - 1, f"the extent under {view.kind}(...) less 1", view.span)
        if not any(kinds):
            self.warn(
                "LF0705",
                f"the boundary of `{view.kind}` is never reached here",
                node.span,
                "in range for every index",
                level="remark",
            )
            return Scalar(array.at(tuple(exprs), ()))
        array = self.moded(array, tuple(kinds), view.span)
        fill = self.view_fill(view)
        if view.kind != "constant" or isinstance(fill, Const):
            mode = Mode(view.kind, fill if isinstance(fill, Const) else None)
            return Scalar(array.at(tuple(exprs), tuple(mode if k else None for k in kinds)))
        inside = self.inside_test(exprs, array.shape, kinds)
        edge = array.at(tuple(exprs), tuple(Mode("edge") if k else None for k in kinds))
        assert fill is not None
        return Scalar(Select(inside, edge, fill, span=view.span))

    def view_fill(self, view: View) -> Expr | None:
        """The value outside a `constant` view, of the array's type."""
        if view.fill is None:
            return None
        if isinstance(view.fill, Scalar) and view.fill.dtype != view.array.dtype:
            self.fail("LF0210", f"the fill is {view.fill.dtype}, the array {view.array.dtype}", view.span, "no implicit conversion",
                      fix=f"{view.array.dtype}(...)")  # fmt: skip
        e = self.typed(view.fill, view.array.dtype, view.span)
        if isinstance(e, Op) and e.op == "neg" and isinstance(e.args[0], Const):
            return Const(ops.constant(-float(ops.from_bits(e.args[0].bits, e.dtype)), e.dtype), e.dtype)
        return e

    def inside_test(self, exprs: list[Expr], shape: tuple[Poly, ...], kinds: list[bool]) -> Expr:
        """Whether all subscripts lie inside their axes."""
        tests: list[Expr] = []
        for e, extent, outside in zip(exprs, shape, kinds, strict=True):
            if outside:
                tests.append(Op("ge", (e, Affine(ZERO)), BOOL))
                tests.append(Op("lt", (e, Affine(extent)), BOOL))
        result = tests[0]
        for test in tests[1:]:
            result = Op("and", (result, test), BOOL)
        return result
