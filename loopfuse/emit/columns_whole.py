"""Columns that a block owns whole: folds that need one another's results, loops that go over the rows again, and arrays
that are kept in shared memory meanwhile."""

from __future__ import annotations

from math import prod

from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import KernelCode, Launch, ceil_div, grid
from loopfuse.emit.columns_across import Across
from loopfuse.emit.fetching import Accesses
from loopfuse.emit.merging import aliases
from loopfuse.emit.partials import States, unrolled
from loopfuse.emit.reductions import THREADS, Nest, extent_of
from loopfuse.emit.serial import Serial
from loopfuse.emit.strips import Names, constants
from loopfuse.emit.writer import Place, Writer, state_bytes, state_type, storage
from loopfuse.ir import Let, Loop, Stmt, Store
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import own, walk

LEAST_SIDE_BYTES = 64  # of adjacent columns that a block takes of each row
FIRST = "block.first"  # the first column of a block, as a name in polynomials


class Whole(Across):
    """The statements of a column's body in order, by a block for all of its columns."""

    def __init__(self, job: Job, nest: Nest) -> None:
        super().__init__(job, nest)
        size = max((r.buffer.dtype.itemsize for a in self.accesses for r in (*a.loads, *a.stores)), default=4)
        threads = -(-self.columns // self.lanes)
        while (
            self.side > 1
            and self.side * self.lanes * size > LEAST_SIDE_BYTES
            and (-(-threads // self.side) < 2 * self.device.units)
        ):
            self.side //= 2
        self.texts: dict[str, str] = {}  # values that differ by lane, as arrays
        self.same: dict[str, str] = {}  # values of folds that do not
        self.dirty: set[str] = set()  # buffers that other threads may have written since the last barrier

    def emit(self) -> Emitted | Declined:
        """The kernel and its launch."""
        if self.split:
            return Declined("the plan splits columns that a block must own")
        if self.job.ask.local and (why := self.keep()):
            return Declined(why)
        return super().emit()

    def keep(self) -> str:
        """Room for local arrays in shared memory; why there is none, or nothing."""
        self.kept: list[tuple[str, int, tuple[Poly, ...], tuple[Poly, ...]]] = []
        extent = self.target.number(extent_of(self.job, self.dim) or ONE)
        owned = self.side * self.lanes
        alone = all(extent_of(self.job, d) == ONE for d in self.nest.dims[:-1])
        if not alone and (extent is None or extent % owned):
            return "the columns of a block are not adjacent in a local array"
        band = {d.id for d in self.nest.dims}
        for id in sorted(self.job.ask.local):
            buffer = self.job.buffers[id]
            if buffer.window is None:
                return f"`{id}` has no window"
            base, shape = [], []
            for (lows, highs), whole in zip(buffer.window, buffer.shape, strict=True):
                names = {n for p in (*lows, *highs) for n in p.names}
                index = next((n for n in names & band), "")
                if not index:
                    base.append(ZERO)
                    shape.append(self.target.poly(whole))
                elif lows == (Poly.of(index),) and highs == (Poly.of(index) + 1,):
                    mine = index == self.dim.id
                    base.append(Poly.of(FIRST if mine else index))
                    shape.append(Poly.of(owned if mine else 1))
                else:
                    return f"the window of `{id}` is no column"
            count = self.target.number(prod(shape, start=ONE))
            if count is None:
                return f"the size of `{id}` is not known"
            self.kept.append((id, self.shared, tuple(base), tuple(shape)))
            self.shared += -(-count * buffer.dtype.itemsize // 16) * 16
        room = sum(state_bytes(a.monoid, a.dtype) for f in self.nest.folds for a in f.accs) * THREADS * self.lanes
        return "the local arrays do not fit in shared memory" if self.shared + room > self.device.shared else ""

    def main(self) -> tuple[KernelCode, Launch]:
        """The one kernel."""
        w = self.writer()
        w.comment(f"a thread takes {self.lanes} adjacent columns, and every {THREADS // self.side}th row")
        column, live = self.column(w, self.side, self.lanes)
        with self.settle(w, column, self.lanes) as first:
            self.places(w)
            for let in self.nest.around:
                self.statement(w, let, first, live)
            loops = iter(self.accesses)
            for stmt in self.nest.body:
                if any(self.dirty & own(s).names.loads for s in walk((stmt,))):
                    w.line("lf_sync();")
                    self.dirty.clear()
                if isinstance(stmt, Loop):
                    self.loop(w, stmt, next(loops), first, live)
                else:
                    self.statement(w, stmt, first, live)
        why = f"a block owns {self.side * self.lanes} columns, {self.lanes} a thread, {self.rows} rows at a time"
        made = self.function(w, "", THREADS, why)
        return made, Launch(made.name, grid(ceil_div(self.width, self.side * self.lanes)), w.arguments)

    def places(self, w: Writer) -> None:
        """Local arrays, in shared memory."""
        if not self.job.ask.local:
            return
        w.shared = self.shared
        name = w.names.fresh(FIRST)
        low = w.extent(self.dim.lo, self.dim.hi)[0]
        extent = extent_of(self.job, self.dim) or ONE
        text = f"(({w.index})blockIdx.x * {self.side * self.lanes})"
        text += f" % {w.poly(extent)}" if len(self.nest.dims) > 1 else ""
        w.line(f"const {w.index} {name} = {text if low == '0' else f'{low} + {text}'};")
        w.alias[FIRST] = name
        for id, at, base, shape in self.kept:
            dtype = self.job.buffers[id].dtype
            pointer = w.names.fresh(id)
            w.line(f"{storage(dtype)}* {pointer} = ({storage(dtype)}*)(lf_shared + {at});")
            w.places[id] = Place(pointer, shape, dtype, base=base)

    def values(self, v: str) -> Names:
        """What differs by lane, and the results of folds."""
        return {**self.same, **{id: text.replace("@", v) for id, text in self.texts.items()}}

    def statement(self, w: Writer, stmt: Stmt, first: str, live: str) -> None:
        """A let, or a store by the threads that own the columns."""
        if isinstance(stmt, Let):
            if self.lanes == 1:
                with aliases(w, self.values("0")):
                    Serial(w, self.job.name).let(stmt)
                return
            with aliases(w, self.same):
                found = self.before(w, [stmt], first, self.values)
            self.texts |= {id: f"{name}[@]" for id, name in found.items()}
            return
        assert isinstance(stmt, Store)
        index = [(w.names(self.dim.id), f"{first} + @")] if self.lanes > 1 else []
        with (
            w.block(self.owner(self.side, THREADS, live)),
            unrolled(w, "v", self.lanes) as v,
            constants(w, [(n, t.replace("@", v)) for n, t in index]),
            aliases(w, self.values(v)),
        ):
            Serial(w, self.job.name).store(stmt)
        self.dirty.add(stmt.buffer)

    def loop(self, w: Writer, loop: Loop, accesses: Accesses, first: str, live: str) -> None:
        """A loop over the rows; of a fold every thread has the results."""
        if loop.accs:
            states = self.fold(w, loop, accesses, first, live, self.values)
            self.spread(w, states)
            for acc in loop.accs:
                text = states.values("@")[acc.id]
                (self.same if "@" not in text else self.texts)[acc.id] = text
        else:
            w.comment(f"the loop over {', '.join(d.id for d in loop.dims)}")
            self.share(w, self.strip(w, loop, accesses, first, self.values), None, live)
        self.dirty |= {s.buffer for s in walk(loop.body) if isinstance(s, Store) and not s.absorb}

    def spread(self, w: Writer, states: States) -> None:
        """The results of the first row lane, to all of them."""
        if self.side == THREADS:
            return
        w.comment("the results, to all rows")
        at, slots = self.shared, {}
        for acc in states.accs:
            kind = state_type(acc.monoid, acc.dtype)
            slots[acc.id] = w.names.fresh(f"{acc.id}.result")
            w.line(f"{kind}* {slots[acc.id]} = ({kind}*)(lf_shared + {at});")
            at += -(-self.side * states.lanes_of(acc) * state_bytes(acc.monoid, acc.dtype) // 16) * 16
        w.shared = max(w.shared, at)
        w.line("lf_sync();")
        for what in ("out", "in"):
            with w.block(f"if (threadIdx.x < {self.side})" if what == "out" else ""):
                for acc in states.accs:
                    with unrolled(w, "v", states.lanes_of(acc)) as v:
                        slot = f"{slots[acc.id]}[{v} * {self.side} + threadIdx.x % {self.side}]"
                        mine = states.text(acc, v)
                        w.line(f"{slot} = {mine};" if what == "out" else f"{mine} = {slot};")
            if what == "out":
                w.line("lf_sync();")
        self.dirty.clear()


__all__ = ["Whole"]
