"""Strips: what a thread takes of a loop at a time, rows by lanes of it, with all loads issued before the first use.

The lanes are adjacent values of one index, and adjacent in memory where loads and stores are by vectors. The rows are
points of a range of other indices, a stride apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from loopfuse.dtypes import BF16
from loopfuse.emit.fetching import Fetch, Write
from loopfuse.emit.merging import aliases
from loopfuse.emit.partials import States, unrolled
from loopfuse.emit.serial import Serial, passes
from loopfuse.emit.slices import prune
from loopfuse.emit.writer import Writer, c_type, state_type, storage
from loopfuse.ir import Affine, Dim, Let, Load, Loop, Stmt, Store
from loopfuse.sizes import ONE
from loopfuse.walking import own

Names = Mapping[str, str]
Values = Callable[[str], Names]  # the texts of values that differ by lane, in a lane


class Span:
    """The points of dims as one range, the last dim the fastest. Counts are in C variables where they are not known."""

    def __init__(self, w: Writer, dims: Sequence[Dim]) -> None:
        self.w, self.dims = w, tuple(dims)
        self.lows: list[str] = []
        self.counts: list[str] = []
        self.known: int | None = 1
        for dim in dims:
            low, high = w.extent(dim.lo, dim.hi)
            self.lows.append(low)
            number = trips(w, dim)
            self.known = None if number is None or self.known is None else self.known * number
            self.counts.append(w._integer(number) if number is not None else self._count(dim, low, high))
        self.total = w._integer(self.known) if self.known is not None else " * ".join(self.counts)

    def _count(self, dim: Dim, low: str, high: str) -> str:
        w = self.w
        text = high if low == "0" else f"{high} - {low}"
        if dim.step != ONE:
            text = f"({text} + {w.poly(dim.step)} - 1) / {w.poly(dim.step)}"
        name = w.names.fresh(f"{dim.id}.count")
        w.line(f"const {w.index} {name} = lf_greatest<{w.index}>(0, {text});")
        return name

    def plain(self, names: Names) -> str:
        """The identifier of the one index where points are its values, else nothing."""
        if len(self.dims) != 1 or self.lows[0] != "0" or self.dims[0].step != ONE:
            return ""
        return names.get(self.dims[0].id) or self.w.names(self.dims[0].id)

    @contextmanager
    def settle(self, at: str, names: Names | None = None) -> Iterator[None]:
        """Inside, the indices of a point, those that are used; `names` has other identifiers for some."""
        w, rest = self.w, at
        used: list[str] = []
        made: list[tuple[str, str]] = []
        for k in reversed(range(len(self.dims))):
            dim = self.dims[k]
            value = f"{rest} % {self.counts[k]}" if k else rest
            if dim.step != ONE:
                value = f"({value}) * {w.poly(dim.step)}"
            text = value if self.lows[k] == "0" else f"{self.lows[k]} + {value}"
            made.append(((names or {}).get(dim.id) or w.names(dim.id), text))
            if k:
                used.append(w.names.fresh("q"))
                made.append((used[-1], f"{rest} / {self.counts[k]}"))
                rest = used[-1]
        with constants(w, made):
            yield
        for name in used:
            w.names.free(name)


@contextmanager
def constants(w: Writer, values: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Inside, constants of the index type by identifier; the text has those that are used."""
    start = len(w.lines)
    for name, text in values:
        w.line(f"const {w.index} {name} = {text};")
    yield
    for k in reversed(range(len(values))):
        if not any(re.search(rf"\b{values[k][0]}\b", line) for line in w.lines[start + k + 1 :]):
            del w.lines[start + k]


def trips(w: Writer, dim: Dim) -> int | None:
    """The number of iterations, where the bounds are numbers."""
    lows, highs = [w.target.number(p) for p in dim.lo], [w.target.number(p) for p in dim.hi]
    step = w.target.number(dim.step)
    if None in lows or None in highs or not step:
        return None
    gap = min(n for n in highs if n is not None) - max(n for n in lows if n is not None)
    return max(0, -(-gap // step))


@dataclass(frozen=True, slots=True)
class Lane:
    """The index that the lanes are values of: in lane v it is `first + v`. `settled`: `first` is known before the rows."""

    index: str
    first: str
    count: int
    settled: bool


class Element(Serial):
    """The statements at one element of a strip; `at` has the states of the outer accumulators there."""

    def __init__(self, w: Writer, prefix: str = "") -> None:
        super().__init__(w, prefix)
        self.at: Names = {}
        self.kept: dict[int, str] = {}  # stores by vectors, by identity: where the value of the lane goes
        self.later: set[int] = set()  # absorptions whose positions rise with the iterations of a thread, by identity

    def absorb(self, stmt: Store) -> None:
        """A value into a state."""
        text = self.at.get(stmt.buffer)
        if text is None:
            super().absorb(stmt)
            return
        acc = self.accs[stmt.buffer]
        value = self.w.expr(stmt.value)
        if stmt.at is not None and id(stmt) in self.later:
            self.w.line(f"{text} = lf_{acc.monoid}_later({text}, {value}, {self.position(stmt.at)});", stmt.span)
            return
        if stmt.at is not None:
            value = f"{state_type(acc.monoid, acc.dtype)}{{{value}, {self.position(stmt.at)}}}"
        self.w.line(f"{text} = {self.w.combine(acc.monoid, acc.dtype, text, value)};", stmt.span)

    def store(self, stmt: Store) -> None:
        """A write, or a lane of one."""
        text = self.kept.get(id(stmt))
        if text is None:
            super().store(stmt)
            return
        value = self.w.kept(self.w.expr(stmt.value), self.w.place(stmt.buffer, True))
        self.w.line(f"{text} = {value};", stmt.span)


@dataclass
class Strip:
    """The strips of one loop in one kernel.

    `rows` of them are `stride` apart (in C). `states` are what the loop's accumulators absorb into, chosen by lane or,
    with `by="row"`, by row. `values` are those from before the loop that differ by lane. `rising`: what a thread takes is
    in order, strip after strip.
    """

    w: Writer
    element: Element
    loop: Loop
    span: Span
    rows: int
    stride: str
    lane: Lane | None
    states: States | None
    by: Literal["lane", "row"] = "lane"
    fetches: Sequence[Fetch] = ()
    writes: Sequence[Write] = ()
    values: Values = field(default=lambda v: {})
    rising: bool = True

    @property
    def lanes(self) -> int:
        """How many elements of a row a thread takes."""
        return self.lane.count if self.lane else 1

    def emit(self, start: str, end: str | None = None) -> None:
        """The rows `start`, `start + stride`, …; with `end` those below it. Those of earlier calls came before."""
        self.element.later |= {id(s) for s in self.loop.body if isinstance(s, Store) and self._rises(s)}
        with ExitStack() as scope:
            arrays = {f.load: scope.enter_context(self._array(f)) for f in self.fetches}
            if arrays:
                with self._rows(start, end) as r:
                    for fetch in self.fetches:
                        self._fetch(fetch, arrays[fetch.load], r)
            for number, body in enumerate(passes(self.loop)):
                self._pass(number, body, arrays, start, end)

    def _rises(self, stmt: Store) -> bool:
        """Whether the position of an absorption rises from row to row and from lane to lane."""
        if (
            not self.rising
            or not isinstance(stmt.at, Affine)
            or len(self.span.dims) != 1
            or self.span.dims[0].step != ONE
        ):
            return False
        poly, index = self.w.target.poly(stmt.at.poly), self.span.dims[0].id
        if poly.degree(index) != 1 or any(index in q.num.names | q.den.names for q in poly.quotients()):
            return False
        factor = poly.coefficient(index)
        return factor.is_const and factor.constant > 0

    # -- loads --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _array(self, fetch: Fetch) -> Iterator[str]:
        """The registers of a load, declared."""
        name = self.w.names.fresh(f"{fetch.load.buffer}.v")
        kind = storage(self.w.place(fetch.load.buffer, False).dtype)
        if fetch.kind != "row":
            kind = f"lf_vec<{kind}, {self.lanes}>"
        self.w.line(f"{kind} {name}[{self.rows}];")
        yield name
        self.w.names.free(name)

    def _fetch(self, fetch: Fetch, name: str, r: str) -> None:
        """One load of a row."""
        w, place = self.w, self.w.place(fetch.load.buffer, False)
        target = f"{name}[{r}]"
        if fetch.kind == "lanes":
            with self._lanes() as v:
                w.line(f"{target}.v[{v}] = {place.pointer}[{w.flat(fetch.subs, place)}];", fetch.load.span)
            return
        first = {self.lane.index: self.lane.first} if self.lane else {}
        with aliases(w, first):
            offset = w.flat(fetch.subs, place)
        if fetch.kind == "row":
            w.line(f"{target} = {place.pointer}[{offset}];", fetch.load.span)
        else:
            read = "lf_peek" if fetch.fresh else "lf_read"
            w.line(f"{target} = {read}<{self.lanes}, {fetch.piece}>({place.pointer} + {offset});", fetch.load.span)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _pass(self, number: int, body: tuple[Stmt, ...], arrays: Mapping[Load, str], start: str,
              end: str | None) -> None:  # fmt: skip
        """One pass over the strip: the accumulators that are complete after it, and in the first one the stores."""
        states, wanted = self.states, {s.buffer for s in _absorbed(body)}
        uniform = (states.uniform if states and self.by == "lane" else frozenset()) & wanted
        alone = prune(body, uniform, stores=False) if uniform else ()
        each = prune(body, wanted - uniform, stores=number == 0)
        with ExitStack() as scope:
            before = self._before(each, scope) if number else {}
            each = tuple(s for s in each if not (isinstance(s, Let) and s.id in before))
            with self._rows(start, end) as r:
                if alone:
                    self._statements(alone, arrays, r, "0", {})
                if not each:
                    return
                with self._vectors(number) as packs, self._lanes() as v:
                    self.element.kept = {k: f"{name}.v[{v}]" for k, name in packs.items()}
                    more = {id: name if name.endswith("]") else f"{name}[{v}]" for id, name in before.items()}
                    self._statements(each, arrays, r, v, more)
                    self.element.kept = {}

    def _statements(self, body: tuple[Stmt, ...], arrays: Mapping[Load, str], r: str, v: str, more: Names) -> None:
        w, states = self.w, self.states

        def hook(load: Load) -> str | None:
            name = arrays.get(load)
            if name is None:
                return None
            place = w.place(load.buffer, False)
            vector = f"{name}[{r}]"
            if next(f.kind for f in self.fetches if f.load == load) == "row":
                return w.fetched(vector, place)
            if place.dtype == BF16:
                return f"lf_bf16_at({vector}, {v})"
            return w.fetched(f"{vector}.v[{v}]", place)

        by = v if self.by == "lane" else f"{r} % {states.lanes}" if states and states.lanes < self.rows else r
        self.element.at = states.at(by) if states else {}
        if states:
            self.element.accs.update({a.id: a for a in states.accs})
        texts = {**self.values(v), **(states.values(by) if states else {}), **more}
        outer, w.hook = w.hook, hook
        with aliases(w, texts), ExitStack() as stack:
            if self.loop.where is not None:
                stack.enter_context(w.block(f"if ({w.expr(self.loop.where)})"))
            self.element.serial(body)
        w.hook = outer

    def _before(self, body: tuple[Stmt, ...], scope: ExitStack) -> dict[str, str]:
        """Values that no row changes, once a lane: they often hold a division by a count. Arrays over the lanes."""
        w, found = self.w, dict[str, str]()
        varying = {d.id for d in self.span.dims}
        lets: list[Let] = []
        for stmt in body:
            if isinstance(stmt, Let):
                names = own(stmt).names
                if names.values & varying or names.loads:
                    varying.add(stmt.id)
                else:
                    lets.append(stmt)
            elif isinstance(stmt, Loop):
                break
        if not lets or self.loop.where is not None:
            return {}
        count = self.lane.count if self.lane and self.lane.settled else 1
        for let in lets:
            found[let.id] = w.names.fresh(f"{let.id}.v")
            scope.callback(w.names.free, found[let.id])
            w.line(f"{c_type(let.value.dtype)} {found[let.id]}[{count}];")
        with self._lanes() if count > 1 else w.block("") as v:
            v = v or "0"
            texts = {**self.values(v), **(self.states.values(v) if self.states else {})}
            with aliases(w, texts | {id: f"{name}[{v}]" for id, name in found.items()}):
                for let in lets:
                    w.line(f"{found[let.id]}[{v}] = {w.expr(let.value)};", let.span)
        return found if count > 1 else {id: f"{name}[0]" for id, name in found.items()}

    # -- loops --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _rows(self, start: str, end: str | None) -> Iterator[str]:
        """A loop over the rows, with their indices declared."""
        w = self.w
        n = w.names.fresh("n")
        with ExitStack() as stack:
            r = stack.enter_context(unrolled(w, "r", self.rows))
            if r == "0":
                stack.enter_context(w.block(""))
            own_lane = self.lane is not None and not self.lane.settled
            names = {self.lane.index: self.lane.first} if own_lane and self.lane else {}
            at = self.span.plain(names) or n
            stack.enter_context(constants(w, [(at, start if r == "0" else f"{start} + {r} * {self.stride}")]))
            if end is not None:
                stack.enter_context(w.block(f"if ({at} < {end})"))
            if at == n:
                stack.enter_context(self.span.settle(n, names))
            yield r
        w.names.free(n)

    @contextmanager
    def _lanes(self) -> Iterator[str]:
        """A loop over the lanes, with their index declared."""
        w, lane = self.w, self.lane
        if lane is None:
            with w.block(""):
                yield "0"
            return
        with unrolled(w, "v", lane.count) as v, constants(w, [(w.names(lane.index), f"{lane.first} + {v}")]):
            yield v

    @contextmanager
    def _vectors(self, number: int) -> Iterator[dict[int, str]]:
        """Around the lanes: stores by vectors, each after its lanes are known."""
        w = self.w
        packs: dict[int, str] = {}
        if number == 0:
            for write in self.writes:
                name = packs[id(write.store)] = w.names.fresh(f"{write.store.buffer}.w")
                place = w.place(write.store.buffer, True)
                w.line(f"lf_vec<{storage(place.dtype)}, {self.lanes}> {name};")
        yield packs
        for write in self.writes if number == 0 else ():
            place = w.place(write.store.buffer, True)
            assert self.lane is not None
            with aliases(w, {self.lane.index: self.lane.first}):
                offset = w.flat(write.subs, place)
            w.line(f"lf_write<{write.piece}>({place.pointer} + {offset}, {packs[id(write.store)]});", write.store.span)
            w.names.free(packs[id(write.store)])


def _absorbed(body: Sequence[Stmt]) -> Iterator[Store]:
    """The absorptions into accumulators of the loop that this is the body of, or of loops inside."""
    pending = list(body)
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, Loop):
            pending += stmt.body
        elif isinstance(stmt, Store) and stmt.absorb:
            yield stmt


__all__ = ["Element", "Lane", "Span", "Strip", "constants", "trips"]
