"""A contraction whose results wait for their whole row: what is computed of it in which order.

The kernel is a nest over rows. In a row stand a loop over its elements with the products in it, then loops over the same
elements, and values of the row between them. It becomes a sequence of sections: sweeps over the elements, each followed by
the join of what it folds, and statements of the row. Folds are exact: an accumulator that waits for others takes a sweep of
its own. An array that keeps something of every element from one loop to a later one takes the place of the products.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopfuse.constants import to_number
from loopfuse.dtypes import BF16, F16, F32, I64
from loopfuse.emit.base import Declined, Job
from loopfuse.emit.matrix.leaves import Leaves, leaves
from loopfuse.emit.matrix.pivots import live, without_pivot
from loopfuse.emit.matrix.shape import Contraction, parts
from loopfuse.emit.slices import levels, prune
from loopfuse.ir import Acc, Affine, Const, Dim, Expr, Let, Load, Loop, Op, Ref, Stmt, Store
from loopfuse.rewrite import Mapper, Substitution, map_expr
from loopfuse.schedule.products import Product, products
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import own, walk

HELD = ".held"


@dataclass(eq=False, slots=True)
class Section:
    """Statements of every element (`sweep`), with what they fold, or of the row."""

    stmts: tuple[Let | Store, ...]
    sweep: bool
    accs: tuple[Acc, ...] = ()


@dataclass(eq=False, slots=True)
class RowForm:
    """The sections. `held`: for each value that elements keep, the product whose place it takes; `counts`: accumulators
    that come to a known number of times the row's length."""

    whole: Contraction
    parts: Leaves
    sections: list[Section]
    held: dict[str, str]
    counts: dict[str, tuple[Acc, int]]
    dims: tuple[Dim, ...]

    def statements(self) -> list[Stmt]:
        """The sections as statements of a kernel."""
        found: list[Stmt] = []
        for section in self.sections:
            found += [Loop(self.dims, section.stmts, accs=section.accs)] if section.sweep else section.stmts
        return found


def parse_rows(job: Job) -> RowForm | Declined:
    """The sections of a kernel that the contraction schedule accepted, or why it has no such form."""
    units = products(job.ask)
    nest = _nest(job, units)
    if isinstance(nest, Declined):
        return nest
    checked = (n.modes for s in walk(job.kernel.body) for n in (*own(s).loads, s) if isinstance(n, Load | Store))
    if any(m is not None and m.kind == "checked" for modes in checked for m in modes):
        return Declined("a subscript is checked at run time")
    extent = ONE
    for dim in nest.main.dims:
        if len(dim.lo) != 1 or len(dim.hi) != 1 or dim.step != ONE:
            return Declined(f"`{dim.id}` has several bounds, or a step")
        extent = extent * (dim.hi[0] - dim.lo[0])
    body = without_pivot(nest.body, nest.body.index(nest.main), extent, job.target)
    if isinstance(body, Declined):
        return body
    loops = [s for s in body if isinstance(s, Loop)]
    inside = {id(s) for s in nest.main.body}
    units = [u for u in units if id(u.owner.loop) in inside]
    first = units[0]
    names = {d.id for d in nest.main.dims}
    if names not in ({*first.m}, {*first.n}) or any(u.pair for u in units):
        return Declined("the loop over a row goes over more or less than the columns of the products")
    whole = parts(job, units, nest.tops, [*nest.dims, *nest.main.dims], (), None, names == {*first.m})
    if isinstance(whole, Declined):
        return whole
    if whole.cols.names != tuple(d.id for d in nest.main.dims):
        return Declined("the columns of the products are no single axis")
    if any(u.acc.dtype != F32 for u in whole.units):
        return Declined("the products are not summed in f32")
    folds = {d.id for u in units if u.owner.loop for d in u.owner.loop.dims}
    aligned: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            found = _aligned(stmt, nest.main.dims, folds if stmt is loops[0] else set())
            if isinstance(found, Declined):
                return found
            stmt = found
        aligned.append(stmt)
    return _Sections(whole, nest.main.dims).form(live((*nest.lead, *aligned)))


@dataclass(frozen=True, slots=True)
class _Nest:
    """What stands round the loop with the products: lets of the kernel, loops over rows, lets in them, a row's body."""

    tops: tuple[Let, ...]
    dims: tuple[Dim, ...]
    lead: tuple[Let, ...]
    body: tuple[Stmt, ...]
    main: Loop


def _nest(job: Job, units: Sequence[Product]) -> _Nest | Declined:
    folds = {id(u.owner.loop) for u in units}
    tops: list[Let] = []
    lead: list[Let] = []
    dims: list[Dim] = []
    body: Sequence[Stmt] = job.kernel.body
    while True:
        loops = [s for s in body if isinstance(s, Loop)]
        mains = [s for s in loops if any(id(x) in folds for x in s.body)]
        if len(mains) == 1:
            break
        if len(loops) != 1 or mains:
            return Declined("what stands round the products is not one nest")
        (loop,) = loops
        if loop.accs or loop.where is not None or loop.order != "par" or any(isinstance(s, Store) for s in body):
            return Declined("a loop round the rows folds, has a condition or runs in order")
        if body[-1] is not loop:
            return Declined("something follows the loop over the rows")
        (lead if dims else tops).extend(s for s in body if isinstance(s, Let))
        dims += loop.dims
        body = loop.body
    if not dims:
        return Declined("there is one row of products alone")
    return _Nest(tuple(tops), tuple(dims), tuple(lead), tuple(body), mains[0])


def _aligned(loop: Loop, dims: tuple[Dim, ...], folds: set[str]) -> Loop | Declined:
    """A loop over the row with the indices of the one with the products, and without the products; or why it is none."""
    same = len(loop.dims) == len(dims) and all(
        (a.lo, a.hi, a.step) == (b.lo, b.hi, b.step) for a, b in zip(loop.dims, dims, strict=True)
    )
    if not same or loop.where is not None or loop.order != "par" or any(a.shape for a in loop.accs):
        return Declined("a loop that follows the products is not one over their whole row")
    body = tuple(s for s in loop.body if not (isinstance(s, Loop) and {d.id for d in s.dims} <= folds))
    if any(isinstance(s, Loop) for s in body):
        return Declined("an element of the result has loops of its own")
    names = {a.id: Poly.of(b.id) for a, b in zip(loop.dims, dims, strict=True) if a.id != b.id}
    return Loop(dims, Substitution(indices=names).body(body), "par", loop.accs, span=loop.span)


@dataclass(eq=False)
class _Sections:
    """The sections of a row, from its statements."""

    whole: Contraction
    dims: tuple[Dim, ...]
    sections: list[Section] = field(default_factory=list)
    counts: dict[str, tuple[Acc, int]] = field(default_factory=dict)
    stored: dict[str, Store] = field(default_factory=dict)  # by buffer: what is read again

    def form(self, body: tuple[Stmt, ...]) -> RowForm | Declined:
        """The whole form."""
        wrong = self._kept(body)
        if wrong is not None:
            return wrong
        body = Mapper(expr=self._reading).on_body(body)
        pending: list[Let | Store] = []
        for stmt in body:
            if isinstance(stmt, Loop):
                self._loop(stmt, pending)
                pending = []
            else:
                pending.append(stmt)
        self._add(pending, False)
        for section in self.sections:
            section.stmts = tuple(x for s in section.stmts for x in self._writing(s))
        held = self._differences() or self._places()
        if isinstance(held, Declined):
            return held
        found = self._leaves(held)
        return RowForm(self.whole, found, self.sections, held, self.counts, self.dims)

    # -- arrays that are read again -----------------------------------------------------------------------------------

    def _kept(self, body: tuple[Stmt, ...]) -> Declined | None:
        read = {e.buffer for s in walk(body) for e in own(s).loads}
        for stmt in walk(body):
            if not isinstance(stmt, Store) or stmt.absorb or stmt.buffer not in read:
                continue
            if stmt.buffer in self.stored or any(m is not None for m in stmt.modes):
                return Declined(f"`{stmt.buffer}` is written in several places and read again")
            if stmt.value.dtype not in (F32, F16, BF16):
                return Declined(f"`{stmt.buffer}` is kept in another type than the products")
            self.stored[stmt.buffer] = stmt
        for load in (e for s in walk(body) for e in own(s).loads):
            made = self.stored.get(load.buffer)
            if made is not None and (load.subs != made.subs or any(m is not None for m in load.modes)):
                return Declined(f"`{load.buffer}` is read at other elements than the one it was computed for")
        local = self.whole.job.ask.local
        if any(
            s.buffer in local and s.buffer not in self.stored
            for s in walk(body)
            if isinstance(s, Store) and not s.absorb
        ):
            return Declined("an array on chip is written and not read")
        return None

    def _reading(self, expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in self.stored:
            stored = self.stored[expr.buffer]
            base = _base(stored.value)
            held = Ref(expr.buffer + HELD, base.dtype, span=expr.span)
            return map_expr(stored.value, lambda e: held if e == base else e)
        return expr

    def _writing(self, stmt: Let | Store) -> tuple[Let | Store, ...]:
        """A store of what is read again as a name for it, and as a store only where that leaves the kernel."""
        if isinstance(stmt, Let) or stmt.absorb or stmt.buffer not in self.stored:
            return (stmt,)
        let = Let(stmt.buffer + HELD, _base(stmt.value), span=stmt.span)
        job = self.whole.job
        return (let,) if stmt.buffer in job.ask.local else (let, stmt)

    # -- sections -----------------------------------------------------------------------------------------------------

    def _add(self, stmts: Iterable[Stmt], sweep: bool, accs: tuple[Acc, ...] = ()) -> None:
        found = tuple(s for s in stmts if isinstance(s, Let | Store))
        if found:
            self.sections.append(Section(found, sweep, accs))

    def _loop(self, loop: Loop, before: list[Let | Store]) -> None:
        """A loop over the row as sweeps; what does not follow the elements is computed before each."""
        level = levels(loop)
        self._counted(loop)
        kept: dict[str, Expr] = {}
        for store in loop.body:
            if isinstance(store, Store) and not store.absorb and store.buffer in self.stored:
                base = _base(store.value)
                if isinstance(base, Ref):
                    kept[base.id] = Ref(store.buffer + HELD, base.dtype)
        for number in range(1 + max(level.values(), default=0)):
            body = loop.body
            mine = tuple(a for a in loop.accs if level[a.id] == number and a.id not in self.counts)
            if number:  # from what elements keep, not from what that was made of
                body = Mapper(expr=lambda e: kept.get(e.id, e) if isinstance(e, Ref) else e).on_body(body)
            if loop.accs:
                body = prune(body, {a.id for a in mine}, stores=number == 0)
            ahead, moving = self._hoisted(body)
            self._add((*before, *ahead), False)
            before = []
            self._add(moving, True, tuple(replace(a, repair=None) for a in mine))

    def _hoisted(self, body: tuple[Stmt, ...]) -> tuple[list[Stmt], list[Stmt]]:
        """The lets that are the same for the whole row, and the rest."""
        moving = {d.id for d in self.dims} | {u.acc.id for u in self.whole.units}
        moving |= {b + HELD for b, s in self.stored.items() if _follows(s, self.dims)}
        ahead: list[Stmt] = []
        rest: list[Stmt] = []
        for stmt in body:
            names = own(stmt).names
            if isinstance(stmt, Let) and not names.loads and not names.values & moving:
                if not any(stmt in s.stmts for s in self.sections):
                    ahead.append(stmt)
                continue
            rest.append(stmt)
            if isinstance(stmt, Let):
                moving.add(stmt.id)
        return ahead, rest

    def _counted(self, loop: Loop) -> None:
        """Accumulators that absorb a constant at every element."""
        for acc in loop.accs:
            terms = [s for s in loop.body if isinstance(s, Store) and s.absorb and s.buffer == acc.id]
            if acc.monoid != "sum" or not acc.dtype.is_int or len(terms) != 1:
                continue
            value = terms[0].value
            if isinstance(value, Const) and 0 <= value.bits < 1 << 31:
                self.counts[acc.id] = acc, int(to_number(value.bits, value.dtype))

    # -- what is kept where -------------------------------------------------------------------------------------------

    def _places(self) -> dict[str, str] | Declined:
        """For every value that elements keep the product whose results nothing needs from then on."""
        order = [(n, s) for n, section in enumerate(self.sections) for s in section.stmts]
        last: dict[str, int] = {}
        within: dict[str, int] = {}  # the section of a product's last use: each reads its own copy
        for at, (number, stmt) in enumerate(order):
            for name in own(stmt).names.values:
                last[name], within[name] = at, number
        there = {u.acc.id: u.acc.id for u in self.whole.units}
        found: dict[str, str] = {}
        for at, (number, stmt) in enumerate(order):
            if not isinstance(stmt, Let) or not self.sections[number].sweep or not stmt.id.endswith(HELD):
                continue
            for unit, name in there.items():
                free = within.get(name, 0) <= number if name == unit else last.get(name, 0) <= at
                if free:
                    there[unit], found[stmt.id] = stmt.id, unit
                    break
            else:
                return Declined("more is kept of an element than its products leave room for")
        return found

    def _differences(self) -> dict[str, str] | None:
        """Where a sweep makes the difference of a value that is kept and one of the row, and a later sweep makes it again, as a
        variance and what it scales do: elements keep the difference from then on. What is kept where; None where that
        leaves no room, and all is as it was."""
        before = [s.stmts for s in self.sections]
        made: dict[tuple[str, Expr], str] = {}
        again: set[str] = set()
        rows: dict[str, Expr] = {}
        for section in self.sections:
            if not section.sweep:
                for stmt in section.stmts:
                    if isinstance(stmt, Let):
                        rows[stmt.id] = self._alike(stmt.value, rows)
                continue
            copies: dict[str, Ref] = {}  # of what is kept
            stmts: list[Let | Store] = []
            for stmt in section.stmts:
                stmts.append(stmt)
                if not isinstance(stmt, Let):
                    continue
                if isinstance(stmt.value, Ref):
                    copies[stmt.id] = copies.get(stmt.value.id, stmt.value)
                key = _difference(stmt.value, copies, rows)
                if key is None:
                    continue
                if key in made:
                    stmts[-1] = replace(stmt, value=Ref(made[key] + HELD, F32, span=stmt.value.span))
                    again.add(made[key])
                elif section.accs:
                    made[key] = stmt.id
                    stmts.append(Let(stmt.id + HELD, Ref(stmt.id, F32), span=stmt.span))
            section.stmts = tuple(stmts)
        self._drop({name + HELD for name in made.values() if name not in again})
        found = self._places() if again else None
        if found is None or isinstance(found, Declined):
            for section, old in zip(self.sections, before, strict=True):
                section.stmts = old
            return None
        return found

    def _drop(self, names: set[str]) -> None:
        """Leave out lets, and then every other that nothing reads."""
        while True:
            for section in self.sections:
                section.stmts = tuple(s for s in section.stmts if not isinstance(s, Let) or s.id not in names)
            left = [s for section in self.sections for s in section.stmts]
            read = {n for s in left for n in own(s).names.values}
            names = {s.id for s in left if isinstance(s, Let) and s.id not in read}
            if not names:
                return

    def _alike(self, value: Expr, rows: Mapping[str, Expr]) -> Expr:
        """A value of the row made of what no name stands for, and counts as numbers: to be compared."""

        def plain(e: Expr) -> Expr:
            if isinstance(e, Ref) and e.id in self.counts and e.dtype == I64:
                e = Affine(self.whole.cols.extent * self.counts[e.id][1])
            if isinstance(e, Affine):
                number = self.whole.job.target.number(e.poly)
                return e if number is None else Affine(Poly.of(number))
            if isinstance(e, Ref):
                return rows.get(e.id, e)
            return replace(e, implied=False) if isinstance(e, Op) else e

        return map_expr(value, plain)

    def _leaves(self, held: dict[str, str]) -> Leaves:
        """What the statements are made from, with values of one side apart; the sections then have what remains."""
        stmts = [s for section in self.sections for s in section.stmts]
        self.whole.body = tuple(stmts)
        accs = {a.id for s in self.sections for a in s.accs} | self.counts.keys()
        found = leaves(self.whole, (*accs, *held))
        rest = iter(found.body)
        for section in self.sections:
            kept = [s for s in section.stmts if not (isinstance(s, Let) and len(found.follows[s.id]) == 1)]
            section.stmts = tuple(next(rest) for _ in kept)
        self.sections = [s for s in self.sections if s.stmts]
        for side, lets in found.side.items():
            found.side[side] = list({s.id: s for s in lets}.values())
        return found


def _base(value: Expr) -> Expr:
    """What is kept of a value that is stored: what it is made of by casts alone, so that others may read it too."""
    base = value
    while isinstance(base, Op) and base.op == "cast" and base.args[0].dtype in (F32, F16, BF16):
        base = base.args[0]
    return base if isinstance(base, Ref) else value


def _difference(value: Expr, copies: Mapping[str, Ref], rows: Mapping[str, Expr]) -> tuple[str, Expr] | None:
    """Of a difference of what elements keep and a value of the row, what it is the difference of."""
    if not isinstance(value, Op) or value.op != "sub" or value.dtype != F32:
        return None
    left, right = value.args
    if not isinstance(left, Ref) or not isinstance(right, Ref) or right.id not in rows:
        return None
    base = copies.get(left.id, left).id
    return (base, rows[right.id]) if base.endswith(HELD) else None


def _follows(store: Store, dims: tuple[Dim, ...]) -> bool:
    names = {n for e in store.subs for n in own(Let("", e)).names.values}
    return bool(names & {d.id for d in dims})
