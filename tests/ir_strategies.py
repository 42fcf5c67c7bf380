"""Random well-formed loop IR: `ir_programs()`, and `ir_inputs(program)` for sizes and arrays to run it on.

Programs are small, in range by construction, and mean one thing: what may depend on how a NaN was made (its sign and
payload) is not looked at by bits. They cover every node kind: par, seq and prefix loops, folds with several
accumulators, scalar and array ones, argmax, repairs, conditions, all modes, windows, integer lets in subscripts and
bounds, imperfect nests, every element type, axes of extent 0 and 1, and arrays without axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from ir_generator import ALL, INTS, SPECIALS, Gen, Index, Scope, affine, cast, const, op

from loopfuse.dtypes import BOOL, F32, F64, I64, DType
from loopfuse.ir import (
    Acc,
    Affine,
    Buffer,
    Const,
    Dim,
    Directive,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Mode,
    Op,
    Program,
    Ref,
    Require,
    Select,
    Size,
    Stmt,
    Store,
)
from loopfuse.ops import MONOIDS, OPS, from_bits, parse_const
from loopfuse.sizes import ZERO, Poly

MOST = 4  # the greatest extent that a size is given


class Programs(Gen):
    """Kernels of all the shapes that lowering and fusion make; each method adds statements and completes buffers."""

    def result(self, shape: tuple[Poly, ...], dtype: DType | None = None, **more: Any) -> Buffer:
        """A buffer that the kernel at hand will complete."""
        return self.buffer(dtype or self.choice(ALL), shape, **more)

    def elementwise(self) -> list[Stmt]:
        """`par` nests over whole buffers; a second statement may read what the first stored at the same place."""
        target = self.result(tuple(self.extent() for _ in range(self.number(0, 3))))
        dims, indices = self.dims(target.shape)
        scope = self.scope().under(*indices)
        body = self.put(target, self.all_indices(indices), scope)
        self.done.append(target)
        if self.chance():
            twin = self.result(target.shape)
            own = Load(target.id, tuple(self.all_indices(indices)), (None,) * len(indices), target.dtype)
            value = op("eq", own, self.expr(target.dtype, scope, 1))
            body.append(Store(twin.id, tuple(self.all_indices(indices)), cast(value, twin.dtype)))
            self.done.append(twin)
        return self.nest(dims, body)

    def imperfect(self) -> list[Stmt]:
        """An outer loop with lets, folds, and several inner loops."""
        outer = self.extent()
        dims, (i,) = self.dims([outer])
        scope = self.scope().under(i)
        body = self.lets(scope) + self.fold(scope)[0]
        for _ in range(self.number(1, 2)):
            target = self.result((outer, self.extent()))
            inner, (j,) = self.dims(target.shape[1:])
            stores = self.put(target, self.all_indices([i, j]), scope.under(j))
            body.append(Loop(tuple(inner), tuple(stores)))
            self.done.append(target)
        return [Loop(tuple(dims), tuple(body))]

    def top_fold(self) -> list[Stmt]:
        """A fold at the top of a kernel, its results stored in arrays without axes."""
        scope = self.scope()
        body, finals = self.fold(scope)
        for final in finals:
            target = self.result((), final.dtype)
            body.append(Store(target.id, (), final))
            self.done.append(target)
        return body

    def histogram(self) -> list[Stmt]:
        """A fold into an array accumulator at computed subscripts, then a loop that stores it."""
        extent = self.extent(1)
        monoid = MONOIDS[self.choice([m.name for m in MONOIDS.values() if not m.positional])]
        dtype = self.choice([d for d in ALL if d.kind in monoid.kinds and (d != BOOL or monoid.name != "sum")])
        acc = Acc(self.id("h"), monoid.name, dtype, (extent,))
        dims, indices = self.fold_dims(self.scope())
        inner = self.scope().under(*indices)
        found = self.subscript(Buffer("", dtype, ()), extent, Scope(indices=inner.indices, arrays=inner.arrays))
        assert found is not None
        at, mode = found
        if mode is not None:
            mode = Mode("checked")
        body = [*self.lets(inner), Store(acc.id, (at,), self.expr(dtype, inner), True, None, (mode,))]
        target = self.result((extent,), dtype)
        out, (b,) = self.dims([extent])
        outer = self.scope().under(b)
        outer.arrays.append(Buffer(acc.id, dtype, (extent,)))
        value: Expr = Load(acc.id, (affine(b.id),), (None,), dtype)
        either: Expr = Select(self.expr(BOOL, outer, 1), value, self.expr(dtype, outer, 1))
        self.done.append(target)
        store = Store(target.id, (affine(b.id),), self.choice([value, either]))
        return [Loop(tuple(dims), tuple(body), "par", (acc,)), Loop(tuple(out), (store,))]

    def running(self) -> list[Stmt]:
        """A prefix loop that stores its running value, here and there with a condition."""
        shape = (self.extent(), self.extent())
        monoid = MONOIDS[self.choice(["sum", "prod", "max", "min", "bitxor", "argmax"])]
        dtype = self.choice([d for d in ALL if d.kind in monoid.kinds and d != BOOL])
        dims, (i, j) = self.dims(shape)
        scope = self.scope().under(i, j)
        acc = Acc(self.id("a"), monoid.name, dtype)
        at = affine(j.id) if monoid.positional else None
        body: list[Stmt] = [*self.lets(scope), Store(acc.id, (), self.expr(dtype, scope), True, at)]
        target = self.result(shape)
        value = cast(Ref(acc.id, monoid.result(dtype)), target.dtype)
        if self.chance(3):
            body.append(Let(self.id("e"), value))
            value = Ref(body[-1].id, target.dtype)  # type: ignore[union-attr]
        body.append(Store(target.id, tuple(self.all_indices([i, j])), value))
        self.done.append(target)
        return [Loop((dims[0],), (Loop((dims[1],), tuple(body), "prefix", (acc,)),))]

    def recurrence(self) -> list[Stmt]:
        """A scan: a carry with a window of two, a temporary with a window of one, an emitted array, the final value."""
        trips, width = self.extent(), self.extent()
        dtype = self.choice(ALL)
        s, n = Index(self.id("s"), trips), self.id("n")
        window = ((Poly.of(s.id),), (Poly.of(s.id) + 2,)), ((ZERO,), (width,))
        carry = self.result((trips + 1, width), dtype, window=window)
        once = ((Poly.of(s.id),), (Poly.of(s.id) + 1,)), ((ZERO,), (width,))
        temp = self.result((trips, width), window=once)
        emitted, final = self.result((trips, width)), self.result((width,), dtype)
        i = Index(n, width)
        dim = Dim(n, (ZERO,), (width,))
        start = Store(carry.id, (affine(0), affine(n)), self.expr(dtype, self.scope().under(i)))
        scope = self.scope().under(s, i)
        old = Load(carry.id, (affine(s.id), affine(n)), (None, None), dtype)
        scope.values.append(Ref(self.id("c"), dtype))
        keep = Let(scope.values[-1].id, old)
        first = (keep, *self.put(temp, self.all_indices([s, i]), scope))
        m = Index(self.id("m"), width)
        inner = self.scope().under(s, m)
        reads = Select(
            self.expr(BOOL, inner, 1),
            Load(carry.id, (affine(s.id), Affine(width - 1 - Poly.of(m.id))), (None, None), dtype),
            cast(Load(temp.id, (affine(s.id), affine(m.id)), (None, None), temp.dtype), dtype),
        )
        subs = (affine(Poly.of(s.id) + 1), affine(m.id))
        second: list[Stmt] = [Store(carry.id, subs, reads)]
        emit = cast(Load(carry.id, subs, (None, None), dtype), emitted.dtype)
        second.append(Store(emitted.id, (affine(s.id), affine(m.id)), emit))
        over = (Loop((dim,), first), Loop((Dim(m.id, (ZERO,), (width,)),), tuple(second)))
        last = Load(carry.id, (Affine(trips), affine(n)), (None, None), dtype)
        self.done += [emitted, final]
        return [
            Loop((dim,), (start,)),
            Loop((Dim(s.id, (ZERO,), (trips,)),), over, "seq"),
            Loop((dim,), (Store(final.id, (affine(n),), last),)),
        ]

    def pieces(self) -> list[Stmt]:
        """Several stores that share a buffer: one after the other, or alternating."""
        parts = [self.extent() for _ in range(self.number(2, 3))]
        made: list[Stmt] = []
        if self.chance(3):
            target = self.result((parts[0] * 2,))
            dims, (i,) = self.dims([parts[0]])
            scope = self.scope().under(i)
            stores = [
                Store(target.id, (Affine(Poly.of(i.id) * 2 + k),), self.expr(target.dtype, scope)) for k in (0, 1)
            ]
            made.append(Loop(tuple(dims), tuple(stores)))
        else:
            target = self.result((sum(parts, ZERO),))
            start = ZERO
            for part in parts:
                dims, (i,) = self.dims([part])
                at = (Affine(Poly.of(i.id) + start),)
                made.append(Loop(tuple(dims), tuple(self.put(target, at, self.scope().under(i)))))
                start = start + part
        self.done.append(target)
        return made

    def reshaped(self) -> list[Stmt]:
        """A store at a flattened place, and loads at a quotient and a remainder."""
        high, low = self.extent(), self.extent(1)
        flat = self.result((high * low,))
        dims, (i, j) = self.dims((high, low))
        value = self.expr(flat.dtype, self.scope().under(i, j))
        into = Store(flat.id, (Affine(Poly.of(i.id) * low + Poly.of(j.id)),), value)
        back = self.result((high * low,))
        square = self.result((high, low))
        out, (n,) = self.dims((high * low,))
        at = Poly.of(n.id)
        read = Load(square.id, (Affine(at // low), Affine(at % low)), (None, None), square.dtype)
        second = Store(back.id, (affine(n.id),), cast(read, back.dtype))
        scope = self.scope().under(i, j)
        body = (into, Store(square.id, tuple(self.all_indices([i, j])), self.expr(square.dtype, scope)))
        self.done += [flat, square, back]
        return [Loop(tuple(dims), body), Loop(tuple(out), (second,))]

    def softmax(self) -> list[Stmt]:
        """A maximum and a sum in one fold, the sum repaired when the maximum moves."""
        shape = (self.extent(), self.extent())
        dtype = self.choice([F32, F64])
        dims, (i, j) = self.dims(shape)
        scope = self.scope().under(i, j)
        m, total = Ref(self.id("a"), dtype), Ref(self.id("a"), dtype)
        old, new, mine = Ref(f"{m.id}.old", dtype), Ref(f"{m.id}.new", dtype), Ref("self", dtype)
        repair = Select(op("ne", old, new), op("mul", mine, op("exp", op("sub", old, new))), mine)
        score = Let(self.id("e"), self.expr(dtype, scope, 1))
        x = Ref(score.id, dtype)
        pole = op("eq", m, Const(parse_const("-inf", dtype), dtype))
        term = op("exp", op("sub", x, Select(pole, const(0.0, dtype), m)))
        accs = (Acc(m.id, "max", dtype), Acc(total.id, "sum", dtype, (), repair))
        body: tuple[Stmt, ...] = (score, Store(m.id, (), x, True), Store(total.id, (), term, True))
        sums, peaks = self.result(shape[:1], dtype), self.result(shape[:1], dtype)
        self.done += [sums, peaks]
        ends = (Store(sums.id, (affine(i.id),), total), Store(peaks.id, (affine(i.id),), m))
        return [Loop((dims[0],), (Loop((dims[1],), body, "par", accs), *ends))]

    def tiled(self) -> list[Stmt]:
        """A producer recomputed in the halo of its consumer's tile; the tile is a size that a plan chooses."""
        extent = self.extent(1)
        if all(s.id != "T" for s in self.sizes):
            self.sizes.append(Size("T", "plan", 1))
        tile, y0 = Poly.of("T"), Poly.of(self.id("y"))
        low, high = (ZERO, y0 - 1), (extent, y0 + tile + 1)
        local = self.result((extent,), scope="local", window=((low, high),))
        target = self.result((extent,))
        y, z = self.id("y"), self.id("z")
        first = Store(local.id, (affine(y),), self.expr(local.dtype, self.scope().under(Index(y, extent))))
        taps = [
            Load(local.id, (Affine(Poly.of(z) + k),), (Mode("edge") if k else None,), local.dtype) for k in (-1, 0, 1)
        ]
        second = Store(target.id, (affine(z),), self.join(taps, target.dtype))
        self.done.append(target)
        body = (
            Loop((Dim(y, low, high),), (first,)),
            Loop((Dim(z, (y0,), (extent, y0 + tile)),), (second,)),
        )
        return [Loop((Dim(str(y0), (ZERO,), (extent,), tile),), body)]

    def join(self, parts: list[Any], dtype: DType) -> Expr:
        """Some values as one of a type."""
        total: Expr = cast(parts[0], dtype)
        for part in parts[1:]:
            name = "ne" if dtype == BOOL else self.choice(["add", "maximum", "mul"])
            total = op(name, total, cast(part, dtype))
        return total

    def ragged(self) -> list[Stmt]:
        """Rows whose bounds are data."""
        rows, columns = self.extent(), self.extent(1)
        starts = self.buffer(self.choice(INTS[:3]), (rows,), "in", range=((ZERO,), (columns, Poly.of(120))))
        dims, (i,) = self.dims([rows])
        scope = self.scope().under(i)
        low = Let(self.id("k"), cast(Load(starts.id, (affine(i.id),), (None,), starts.dtype), I64))
        j = Index(self.id("j"), columns)
        inner = scope.under(j)
        acc = Acc(self.id("a"), "sum", self.choice([d for d in ALL if d != BOOL]))
        take = Store(acc.id, (), self.expr(acc.dtype, inner), True)
        loop = Loop((Dim(j.id, (Poly.of(low.id),), (columns,)),), (take,), "par", (acc,))
        target = self.result((rows,), acc.dtype)
        self.done.append(target)
        return [Loop(tuple(dims), (low, loop, Store(target.id, (affine(i.id),), Ref(acc.id, acc.dtype))))]

    # -- whole programs -----------------------------------------------------------------------------------------------

    def requires(self) -> list[Require]:
        """Conditions that the sizes' declarations make true, or that inputs are drawn for."""
        made = []
        for s in self.sizes:
            if s.least is not None and self.chance(4):
                made.append(
                    Require(op("ge", affine(s.id), const(s.least, I64)), self.choice(["", 'a "b" # c\n']), True)
                )
        if self.chance(4):
            made.append(Require(op("le", affine(self.sizes[0].id), affine(self.sizes[-1].id))))
        return made

    def program(self) -> Program:
        """A whole program."""
        self.declare_sizes()
        self.declare_inputs()
        kinds: list[Callable[[], list[Stmt]]] = [
            self.elementwise, self.imperfect, self.top_fold, self.histogram, self.running, self.recurrence,
            self.pieces, self.reshaped, self.softmax, self.tiled, self.ragged,
        ]  # fmt: skip
        for number in range(self.number(1, 3)):
            body: list[Stmt] = []
            for _ in range(self.choice([1, 1, 2])):
                body += self.choice(kinds)()
            self.kernels.append(Kernel(f"k{number + 1}", tuple(body)))
        written = [b.id for b in self.buffers if b.role == "temp" and b.window is None]
        outputs = {written[-1], *(id for id in written if self.chance())}
        buffers = tuple(_as_output(b) if b.id in outputs else b for b in self.buffers)
        directives = tuple(
            Directive(self.choice(["pragma", "expect"]), text) for text in ("nofuse(a, b)", "# x") if self.chance(4)
        )
        return Program(
            self.choice(["p", "σ.1", "two words"]), tuple(self.sizes), tuple(self.requires()), buffers,
            tuple(self.kernels), directives, self.choice(["default", "strict", "fast"]),
        )  # fmt: skip


def _as_output(buffer: Buffer) -> Buffer:
    return replace(buffer, role="out")


@st.composite
def ir_programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """A well-formed program, which `ir_inputs` can run."""
    return Programs(draw).program()


def holds(cond: Expr, sizes: Mapping[str, int]) -> Any:
    """The value of a requirement over sizes."""
    if isinstance(cond, Affine):
        return np.int64(cond.poly.value(sizes))
    if isinstance(cond, Const):
        return from_bits(cond.bits, cond.dtype)
    assert isinstance(cond, Op)
    return OPS[cond.op].evaluate([holds(a, sizes) for a in cond.args], cond.dtype)[()]


def sizes_of(program: Program) -> st.SearchStrategy[dict[str, int]]:
    """Values for all sizes, params and plan sizes that the declarations and requirements allow."""
    allowed = {}
    for s in program.sizes:
        low = max(-3 if s.least is None else s.least, s.dtype.least)
        values = [n for n in range(low, MOST + 1) if n % s.multiple == 0]
        allowed[s.id] = st.just(s.value) if s.value is not None else st.sampled_from(values)
    return st.fixed_dictionaries(allowed).filter(lambda found: all(holds(r.cond, found) for r in program.requires))


def elements(dtype: DType, low: int | None = None, high: int | None = None) -> st.SearchStrategy[Any]:
    """Values of an element type: small ones, extremes, and every special float."""
    if dtype == BOOL:
        return st.booleans()
    if dtype.is_float:
        return st.sampled_from([from_bits(parse_const(text, dtype), dtype) for text in SPECIALS])
    if low is not None and high is not None:
        return st.integers(low, high)
    return st.sampled_from([n for n in (0, 1, 2, 3, 5, -1, -4, dtype.least, dtype.greatest) if n >= dtype.least])


@st.composite
def ir_inputs(
    draw: Callable[[st.SearchStrategy[Any]], Any], program: Program
) -> tuple[dict[str, int], dict[str, np.ndarray[Any, Any]]]:
    """Concrete sizes (all of them), and an array for every buffer that holds values from the start, params included."""
    sizes: dict[str, int] = draw(sizes_of(program))
    arrays = {}
    for b in program.buffers:
        if b.role not in ("in", "param", "frozen"):
            continue
        shape = tuple(int(p.value(sizes)) for p in b.shape)
        low = high = None
        if b.range is not None:
            low, high = max(int(p.value(sizes)) for p in b.range[0]), min(int(p.value(sizes)) for p in b.range[1])
        count = int(np.prod(shape, dtype=np.int64))
        values = draw(st.lists(elements(b.dtype, low, high), min_size=count, max_size=count))
        arrays[b.id] = np.array(values, dtype=b.dtype.numpy).reshape(shape)
    return sizes, arrays
