"""A contraction kernel taken apart: its products as strided operands, and the statements round them.

What the products of one kernel have in common are `rows` and `cols` of their results, `depth` (what is summed over) and
`batch`. An axis may be several loop indices that run together as one, the last one fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm, prod

from loopfuse.analysis.summary import summary
from loopfuse.dtypes import DTYPES, DType
from loopfuse.emit.base import Declined, Job
from loopfuse.ir import Acc, Affine, Buffer, Dim, Expr, Let, Load, Loop, Op, Ref, Stmt, Store
from loopfuse.rewrite import map_expr
from loopfuse.schedule.products import Product, counted, factors, products
from loopfuse.sizes import ONE, ZERO, Poly, Quot
from loopfuse.walking import free_names, own, subexprs, walk

Index = tuple[str, Poly, Poly]  # its name, where it starts, how many values it has


@dataclass(frozen=True, slots=True)
class Axis:
    """Indices that run together, the last one fastest."""

    indices: tuple[Index, ...]

    @property
    def extent(self) -> Poly:
        """How many values there are."""
        return prod((count for _, _, count in self.indices), start=ONE)

    @property
    def names(self) -> tuple[str, ...]:
        """The indices."""
        return tuple(name for name, _, _ in self.indices)


@dataclass(frozen=True, slots=True)
class Side:
    """An operand: element (r, k.., b..) lies at `start + r row + Σ k depth + Σ b batch` of a buffer.

    `value` is what is multiplied where that is more than an element widened, over the loop indices; `buffer` is then the
    one of its first load, and the steps say nothing.
    """

    buffer: Buffer
    start: Poly
    row: Poly
    depth: tuple[Poly, ...]
    batch: tuple[Poly, ...]
    value: Expr | None = None

    @property
    def dtype(self) -> DType:
        """The type of what is multiplied, as it is kept: of the element, or of the value."""
        return self.buffer.dtype if self.value is None else self.value.dtype


@dataclass(frozen=True, slots=True)
class Unit:
    """An accumulator that sums products of `a` (along the rows) and `b` (along the columns), times `outside`."""

    acc: Acc
    a: Side
    b: Side
    outside: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Ride:
    """A fold over the rows (or the columns) of the result, and what follows it for each remaining index."""

    loop: Loop
    along: str  # `rows` or `cols`
    after: tuple[Stmt, ...]


@dataclass(eq=False)
class Contraction:
    """The parts. `tops`: lets that follow neither rows nor columns; `body`: statements of an element of the result."""

    job: Job
    units: tuple[Unit, ...]
    rows: Axis
    cols: Axis
    depth: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    tops: tuple[Let, ...]
    body: tuple[Stmt, ...]
    ride: Ride | None = None
    multiples: dict[str, int] = field(default_factory=dict)

    def divisor(self, poly: Poly) -> int:
        """A number that divides every value of a polynomial over sizes; 0 for zero."""
        found = 0
        for monomial, coefficient in self.job.target.poly(poly).terms:
            for atom in monomial:
                coefficient *= 1 if isinstance(atom, Quot) else self.multiples.get(atom, 1)
            found = gcd(found, coefficient)
        return found

    def number(self, poly: Poly) -> int:
        """The number of a polynomial, with stand-ins for sizes that are not known: for choices, not for legality."""
        return int(self.job.target.poly(poly).value(self.job.ask.sketch.numbers))


def parse(job: Job) -> Contraction | Declined:
    """The parts of a kernel that the contraction schedule accepted, or why they are not what these kernels do."""
    units = products(job.ask)
    if not units or any(u.pair for u in units):
        return Declined("it sums no products")
    folds = {id(u.owner.loop): u for u in units}
    tops: list[Let] = []
    dims: list[Dim] = []
    ride: Ride | None = None
    body: Sequence[Stmt] = job.kernel.body
    while not any(id(s) in folds for s in body):
        loops = [s for s in body if isinstance(s, Loop)]
        if len(loops) != 1 or any(isinstance(s, Store) for s in body[: body.index(loops[0])]):
            return Declined("what stands round the products is not one nest")
        (loop,) = loops
        at = body.index(loop)
        tops += [s for s in body[:at] if isinstance(s, Let)]
        after = tuple(body[at + 1 :])
        if loop.where is not None or loop.order not in ("par",):
            return Declined("a loop round the products has a condition, or runs in order")
        if loop.accs:
            if ride is not None or any(a.shape or a.repair is not None for a in loop.accs):
                return Declined("the folds round the products are more than one of plain states")
            ride = Ride(loop, "", after)
        elif after:
            return Declined("what follows the products waits for a whole row of them")
        dims += loop.dims
        body = loop.body
    own_sum = None
    whole_fold = _riding(units, body) if ride is None else None
    if whole_fold is not None:
        ride, own_sum, lets, body = whole_fold
        tops += lets
        dims += ride.loop.dims
    if any(isinstance(s, Loop) and id(s) not in folds for s in body):
        return Declined("an element of the result has loops of its own")
    checked = (n.modes for s in walk(job.kernel.body) for n in (*own(s).loads, s) if isinstance(n, Load | Store))
    if any(m is not None and m.kind == "checked" for modes in checked for m in modes):
        return Declined("a subscript is checked at run time")
    return parts(job, units, tuple(tops), dims, tuple(body), ride, own_sum=own_sum)


def _riding(units: list[Product], body: Sequence[Stmt]) -> tuple[Ride, Acc, list[Let], tuple[Stmt, ...]] | None:
    """A single fold over the depth and the rows (or the columns) at once as two: the sum of a product, under a name of its
    own, inside a fold of the sums. What stands before and in the inner one come with it."""
    (unit, *more) = units
    fold = unit.owner.loop
    if more or fold is None or not unit.riding or len(fold.accs) != 1 or fold.accs[0].shape:
        return None
    (acc,), at = fold.accs, next((n for n, s in enumerate(body) if s is fold), -1)
    dims = tuple(d for d in fold.dims if d.id in unit.riding)
    lets = [s for s in body[:at] if isinstance(s, Let)]
    if at < 0 or len(lets) != at or len(dims) + len(unit.k) != len(fold.dims):
        return None
    inner = Acc(f"{acc.id}.product", acc.monoid, acc.dtype)
    absorbed = Store(acc.id, (), Ref(inner.id, acc.dtype), absorb=True)
    return Ride(replace(fold, dims=dims), "", tuple(body[at + 1 :])), inner, lets, (fold, absorbed)


def parts(job: Job, units: list[Product], tops: tuple[Let, ...], dims: list[Dim], body: tuple[Stmt, ...],
          ride: Ride | None, swapped: bool | None = None, own_sum: Acc | None = None) -> Contraction | Declined:  # fmt: skip
    """The products of a nest by their axes. `swapped`: the right operand is along the rows; None: as the output lies.
    `own_sum`: the accumulator of a product whose fold goes over rows or columns too."""
    first = units[0]
    indices: dict[str, Index] = {}
    for dim in (*dims, *(d for u in units if u.owner.loop for d in u.owner.loop.dims)):
        index = _index(job, dim)
        if isinstance(index, Declined):
            return index
        indices[dim.id] = index
    for u in units:
        same = (set(u.m), set(u.n), set(u.batch)) == (set(first.m), set(first.n), set(first.batch))
        counts = [indices[k][2] for k in u.k] == [indices[k][2] for k in first.k]
        if not same or not counts or u.owner.loop is None or u.owner.loop.where is not None:
            return Declined("the products have different rows, columns or depths")
        if any(a.shape or a.monoid != "sum" for a in u.owner.accs) or (len(u.owner.trips) != len(u.k) and not own_sum):
            return Declined("the sums are kept in arrays")
    terms = [a.id for u in units for a in u.owner.accs]
    if set(terms) != {u.term.acc.id for u in units}:
        return Declined("a fold has sums that are not products")
    tops, body, ride = _settled(job, tops, body, ride, {*first.m, *first.n})
    multiples = {s.id: lcm(s.multiple, _power(job, s.id)) for s in job.ask.env.program.sizes}
    whole = Contraction(job, (), Axis(()), Axis(()), (), (), tops, body, ride, multiples)
    moved = {d.id for d in dims}
    made = [_unit(whole, u, indices, moved) for u in units]
    swapped = _swapped(whole, units[0]) if swapped is None else swapped
    rows, cols = (first.n, first.m) if swapped else (first.m, first.n)
    ones: list[tuple[Acc, _Access, _Access, tuple[Expr, ...]]] = []
    for got in made:
        if isinstance(got, Declined):
            return got
        acc = own_sum or got[0]
        ones.append((acc, got[2], got[1], got[3]) if swapped else (acc, *got[1:]))
    return _axes(whole, ones, indices, units, (rows, cols, first.batch))


def _settled(job: Job, tops: tuple[Let, ...], body: tuple[Stmt, ...], ride: Ride | None, moving: set[str],
             ) -> tuple[tuple[Let, ...], tuple[Stmt, ...], Ride | None]:  # fmt: skip
    """Lets round the products that follow rows or columns among the statements of an element, and, where they are used
    there, among those after a fold."""
    follows = job.ask.sketch.deps
    moved = tuple(t for t in tops if follows.get(t.id, frozenset()) & moving)
    if ride is not None:
        folded, after = {d.id for d in ride.loop.dims}, ride.after
        for let in reversed(moved):
            if not follows[let.id] & folded and let.id in free_names(after).values:
                after = (let, *after)
        ride = Ride(ride.loop, ride.along, after)
    return tuple(t for t in tops if t not in moved), (*moved, *body), ride


def _index(job: Job, dim: Dim) -> Index | Declined:
    """A loop index as an interval."""
    if len(dim.lo) != 1 or len(dim.hi) != 1 or dim.step != ONE:
        return Declined(f"`{dim.id}` has several bounds, or a step")
    low, high = job.target.poly(dim.lo[0]), job.target.poly(dim.hi[0])
    sizes = {s.id for s in job.ask.env.program.sizes}
    if not (low.names | high.names) <= sizes:
        return Declined(f"the bounds of `{dim.id}` depend on another index")
    gap = high - low
    return dim.id, low, Poly.of(max(0, gap.constant)) if gap.is_const else gap


def _power(job: Job, size: str) -> int:
    """A power of two that divides a size, as is required."""
    return next((n for n in (16, 8, 4, 2) if job.ask.env.facts.zero(Poly.of(size) % n)), 1)


@dataclass(slots=True)
class _Access:
    """A load by its offset in the buffer, and the coefficient of every index."""

    buffer: Buffer
    offset: Poly
    steps: dict[str, Poly]
    depth: tuple[str, ...]
    value: Expr | None


def _unit(whole: Contraction, unit: Product, indices: dict[str, Index], moved: set[str],
          ) -> tuple[Acc, _Access, _Access, tuple[Expr, ...]] | Declined:  # fmt: skip
    """The two operands of a product, and the factors that move out of its sum."""
    found = whole.job.ask.sketch
    folded = frozenset(unit.k)
    sides: list[list[Expr]] = [[], []]
    outside: list[Expr] = []
    either: list[Expr] = []  # factors that follow what is summed over alone
    for leaf in factors(found, unit.term.store.value, folded, unit.term.level):
        needs = found.resolve(summary(leaf).names, unit.term.level)
        if not needs & folded:
            outside.append(_inlined(whole, leaf))
        elif needs & {*unit.m}:
            sides[0].append(leaf)
        elif needs & {*unit.n}:
            sides[1].append(leaf)
        else:
            either.append(leaf)
    if not sides[0] or not sides[1]:
        return Declined("an operand is missing")
    if outside and unit.term.acc.dtype.is_float and whole.job.target.numerics == "strict":
        return Declined("strict numerics keep every factor inside its sum")
    computed = [len(side) > 1 or not isinstance(_stored(whole, side[0]), Load) for side in sides]
    sides[computed[1] and not computed[0]] += either
    made: list[_Access] = []
    for leaves, planned in zip(sides, (unit.a, unit.b), strict=True):
        access = _operand(whole, leaves, indices, moved | folded, unit, DTYPES[planned.dtype])
        if isinstance(access, Declined):
            return access
        made.append(access)
    return unit.term.acc, made[0], made[1], tuple(outside)


def _operand(whole: Contraction, leaves: list[Expr], indices: dict[str, Index], names: set[str], unit: Product,
             planned: DType) -> _Access | Declined:  # fmt: skip
    """The factors of one side: an array, or a value that is computed from arrays."""
    load, acc = _stored(whole, leaves[0]), unit.term.acc.dtype
    if len(leaves) == 1 and isinstance(load, Load):
        access = _access(whole, load, indices, names, unit.k)
        if isinstance(access, _Access):
            return access
    value = _inlined(whole, load if isinstance(load, Load) else leaves[0])  # anything else is a value
    if len(leaves) == 1 and (small := counted(whole.job.ask.sketch, leaves[0])) is not None and planned.is_float:
        value = _cast(_inlined(whole, small), planned)  # which holds bytes exactly
    for leaf in leaves[1:]:  # which are multiplied in the type of the sum, as the term says
        value = Op("mul", (_cast(value, acc), _cast(_inlined(whole, leaf), acc)), acc)
    loads = [e for e in subexprs(value) if isinstance(e, Load)]
    job = whole.job
    if not loads or any(e.buffer not in job.buffers or e.buffer in job.ask.local | job.ask.own for e in loads):
        return Declined("an operand is made in the same kernel")
    return _Access(job.buffers[loads[0].buffer], ZERO, {}, unit.k, value)


def _stored(whole: Contraction, expr: Expr) -> Expr:
    """What a factor is below its names and the casts that keep every value."""
    lets = whole.job.ask.sketch.lets
    while True:
        if isinstance(expr, Ref) and expr.id in lets:
            expr = lets[expr.id][0]
        elif isinstance(expr, Op) and expr.op == "cast" and _widens(expr):
            expr = expr.args[0]
        else:
            return expr


def _cast(expr: Expr, dtype: DType) -> Expr:
    return expr if expr.dtype == dtype else Op("cast", (expr,), dtype)


def _inlined(whole: Contraction, expr: Expr) -> Expr:
    """An expression without the lets of the fold."""
    lets = whole.job.ask.sketch.lets
    outer = {t.id for t in whole.tops}

    def step(node: Expr) -> Expr:
        if isinstance(node, Ref) and node.id in lets and node.id not in outer:
            return _inlined(whole, lets[node.id][0])
        return node

    return map_expr(expr, step)


def _widens(op: Op) -> bool:
    """Whether a cast keeps every value."""
    source, result = op.args[0].dtype, op.dtype
    return source == result or (source.kind == result.kind and result.bits > source.bits)


def _access(whole: Contraction, load: Load, indices: dict[str, Index], names: set[str], depth: tuple[str, ...],
            ) -> _Access | Declined:  # fmt: skip
    job = whole.job
    if load.buffer not in job.buffers or load.buffer in job.ask.local | job.ask.own:
        return Declined("an operand is made in the same kernel")
    if any(m is not None for m in load.modes):
        return Declined(f"`{load.buffer}` is read past its edges")
    buffer = job.buffers[load.buffer]
    offset, stride = ZERO, ONE
    for sub, extent in zip(reversed(load.subs), reversed(buffer.shape), strict=True):
        if not isinstance(sub, Affine):
            return Declined(f"a subscript of `{load.buffer}` is computed")
        offset = offset + job.target.poly(sub.poly) * stride
        stride = stride * job.target.poly(extent)
    steps: dict[str, Poly] = {}
    rest = offset
    for name in sorted(offset.names & names):
        step = offset.coefficient(name)
        if offset.degree(name) != 1 or step.names & names:
            return Declined(f"the subscripts of `{load.buffer}` are not affine")
        steps[name] = step
        rest = rest - Poly.of(name) * step + indices[name][1] * step
    sizes = {s.id for s in job.ask.env.program.sizes}
    if not rest.names <= sizes:
        return Declined(f"a subscript of `{load.buffer}` depends on more than the indices")
    return _Access(buffer, rest, steps, depth, None)


def _swapped(whole: Contraction, unit: Product) -> bool:
    """Whether what lies side by side in the output follows the left operand: that one is then along the columns."""
    for stmt in (*walk(whole.body), *(whole.ride.after if whole.ride else ())):
        if isinstance(stmt, Store) and not stmt.absorb and stmt.subs:
            last = stmt.subs[-1]
            names = last.poly.names if isinstance(last, Affine) else frozenset()
            if names & {*unit.m} and not names & {*unit.n}:
                return True
            if names & {*unit.n}:
                return False
    return False


def _axes(whole: Contraction, ones: list[tuple[Acc, _Access, _Access, tuple[Expr, ...]]], indices: dict[str, Index],
          units: list[Product], groups: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
          ) -> Contraction | Declined:  # fmt: skip
    """Indices put together to axes, where every operand lets them."""
    rows, cols, batch = groups
    lefts, rights = [a for _, a, _, _ in ones], [b for _, _, b, _ in ones]
    row_axes = _joined([indices[i] for i in rows], [a.steps for a in lefts])
    col_axes = _joined([indices[i] for i in cols], [b.steps for b in rights])
    batch_axes = _joined([indices[i] for i in batch], [x.steps for x in (*lefts, *rights)])
    more = [*row_axes[:-1], *col_axes[:-1], *batch_axes]
    first = units[0].k
    if any(side.value is not None and side.depth != first for side in (*lefts, *rights)):
        return Declined("an operand is computed in a loop of its own")
    depths = [
        {k: side.steps.get(own, ZERO) for k, own in zip(first, side.depth, strict=True)} for side in (*lefts, *rights)
    ]
    depth_axes = _joined([indices[k] for k in first], depths)
    sides: list[Side] = []
    for side, steps in zip((*lefts, *rights), depths, strict=True):
        axis = row_axes[-1] if len(sides) < len(lefts) else col_axes[-1]
        sides.append(Side(
            side.buffer, side.offset, side.steps.get(axis.names[-1], ZERO),
            tuple(steps[a.names[-1]] for a in depth_axes), tuple(side.steps.get(a.names[-1], ZERO) for a in more),
            side.value,
        ))  # fmt: skip
    whole.units = tuple(
        Unit(one[0], a, b, one[3]) for one, a, b in zip(ones, sides[: len(ones)], sides[len(ones) :], strict=True)
    )
    whole.rows, whole.cols, whole.depth, whole.batch = row_axes[-1], col_axes[-1], tuple(depth_axes), tuple(more)
    if whole.ride is not None:
        names = {d.id for d in whole.ride.loop.dims}
        along = "rows" if names == set(rows) else "cols" if names == set(cols) else ""
        if not along or len(row_axes) + len(col_axes) > 2:
            return Declined("a fold round the products goes over more or less than their rows or columns")
        whole.ride = Ride(whole.ride.loop, along, whole.ride.after)
    return whole


def _joined(indices: list[Index], steps: list[dict[str, Poly]]) -> list[Axis]:
    """The indices as few axes: neighbours are one where in each operand the outer one goes on where the inner one ends."""
    axes: list[Axis] = []
    for index in indices:
        if axes:
            outer = axes[-1].indices[-1][0]
            name, _, count = index
            if all(s.get(outer, ZERO) == s.get(name, ZERO) * count for s in steps):
                axes[-1] = Axis((*axes[-1].indices, index))
                continue
        axes.append(Axis((index,)))
    return axes
