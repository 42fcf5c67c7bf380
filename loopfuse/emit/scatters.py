"""Scatter: reductions into arrays at computed subscripts.

Where the arrays fit, every block has tables of its own in shared memory: one a warp, or a few that several warps share.
Updates whose order does not matter are atomic; of others (sums of floats) a warp's lanes take turns, so that the order is
fixed. The blocks' tables meet in scratch, and the last block to be done joins them and goes on with what follows. Larger
arrays are updated in device memory, sums of floats exactly; what follows are launches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.code import Fill, KernelCode, Launch, Memory, Step, ceil_div, grid
from loopfuse.emit.collapse import collapsed
from loopfuse.emit.columns_along import Along
from loopfuse.emit.general import General
from loopfuse.emit.merging import aliases
from loopfuse.emit.partials import States, scoped, tree, unrolled
from loopfuse.emit.reductions import THREADS, Nest
from loopfuse.emit.serial import Serial
from loopfuse.emit.slices import levels
from loopfuse.emit.strips import Element, Span
from loopfuse.emit.tables import Aiming, Table, Updating, table_of
from loopfuse.emit.team import Team
from loopfuse.emit.updates import WORDS
from loopfuse.emit.writer import Place, Writer, state_bytes, state_type, storage
from loopfuse.ir import Let, Load, Loop, Stmt, Store
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import free_names, walk

WARPS = THREADS // 32
COPIES_BYTES = 48 << 10  # of tables that warps need not share
TURN_ROWS = 4
MOST_JOINED = 1 << 17  # elements of the blocks' tables that the last block joins by itself


def emit(job: Job) -> Emitted | Declined:
    """The kernels of a `scatter` plan."""
    body = collapsed(job)
    lets: list[Let] = []
    folds: list[Loop] = []
    for stmt in body:
        if isinstance(stmt, Loop) and stmt.accs and stmt.order == "par":
            folds.append(stmt)
        elif isinstance(stmt, Let) and not folds:
            lets.append(stmt)
        else:
            break
    why = _refused(folds)
    return Declined(why) if why else Scatter(job, lets, folds, body[len(lets) + len(folds) :]).scatter()


def _refused(folds: Sequence[Loop]) -> str:
    """Why folds are not written here, or nothing."""
    if not any(a.shape for f in folds for a in f.accs):
        return "the loops with the arrays are inside others"
    done: set[str] = set()
    for fold in folds:
        if any(levels(fold).values()):
            return "an accumulator waits for another one"
        if (free_names((fold,)).values | free_names((fold,)).loads) & done:
            return "a reduction needs the result of another one"
        done |= {a.id for a in fold.accs} | {s.buffer for s in walk(fold.body) if isinstance(s, Store)}
    return ""


class Scatter(Along):
    """The kernels of one job in the making."""

    way = "scatter"

    def __init__(self, job: Job, lets: Sequence[Let], folds: Sequence[Loop], after: Sequence[Stmt]) -> None:
        super().__init__(job, Nest((), "", lets, folds))
        self.after = tuple(after)
        w = self.writer()
        accs = [a for f in folds for a in f.accs if a.shape]
        private = [table_of(w, a, True) for a in accs]
        size = sum((t.count or 0) * t.bytes for t in private if t)
        self.private = all(t and t.count is not None for t in private) and size <= self.device.shared // 2
        found = private if self.private else [table_of(w, a, False) for a in accs]
        self.tables = {t.acc.id: t for t in found if t is not None}
        self.missing = len(self.tables) < len(accs)
        self.turns = any(t.way == "turn" for t in self.tables.values())
        self.copies = WARPS
        limit = self.device.shared // 2 if self.turns else COPIES_BYTES
        while self.copies > 1 and self.copies * size > limit:
            self.copies //= 2
        resident = max(1, min(4, self.device.shared // max(1, self.copies * size + 2048)))
        most = job.plan.launches[0].blocks if job.plan.launches else 1
        self.parts = max(1, min(most, self.device.units * (resident if self.private else 4)))
        self.joined = sum((t.count or 0) * self.parts for t in self.tables.values() if not t.zero)
        self.general = General(job)
        self.general.lets = list(lets)
        self.whole: dict[str, str] = {}  # of each table the first copy in shared memory
        self.slots = 0  # where scalars are told to all threads
        self.finishes = False  # whether the last block of the main kernel goes on with what follows
        self.homes: dict[str, str] = {}  # buffers that arrays are written to in place

    def scatter(self) -> Emitted | Declined:
        """All kernels and their launches."""
        if self.missing:
            return Declined("an array too large for shared memory takes a reduction that is not done there")
        if self.turns and not self.level():
            return Declined("updates in an order stand in loops inside the reduction")
        if self.private and self.joined <= MOST_JOINED:
            kernel, launch = self.alone()
            return Emitted((kernel,), (launch,), tuple(self.memory), frozenset(self.aligned))
        self.homes = self.places_of_results()
        kernels, steps = self.spread()
        after = self.general.run(self.after)
        memory = {m.id: m for m in (*self.memory, *self.general.memory.values())}
        return Emitted((*kernels, *self.general.kernels), (*steps, *after), tuple(memory.values()),
                       frozenset(self.aligned))  # fmt: skip

    def places_of_results(self) -> dict[str, str]:
        """Buffers that are only copies of arrays; the loops that copy are left out of what follows."""
        found: dict[str, str] = {}
        rest = []
        for stmt in self.after:
            acc, buffer = _copied(stmt)
            table = self.tables.get(acc)
            if table is not None and acc not in found and isinstance(stmt, Loop) and self.alike(table, buffer, stmt):
                found[acc] = buffer
            else:
                rest.append(stmt)
        self.after = tuple(rest)
        return found

    def alike(self, table: Table, buffer: str, loop: Loop) -> bool:
        """Whether a buffer's memory can hold an array, element for element, and the loop goes over all of them."""
        b, acc = self.job.buffers[buffer], table.acc
        kept = storage(b.dtype) == state_type(acc.monoid, acc.dtype) and b.scope == "device"
        shapes = [[*map(self.target.poly, s)] for s in (b.shape, acc.shape, [d.hi[0] for d in loop.dims])]
        return kept and shapes[0] == shapes[1] == shapes[2]

    def home(self, table: Table) -> str:
        """The memory of an array when it is complete."""
        return self.homes.get(table.acc.id) or f"{self.job.name}.{table.acc.id}"

    def raw(self, table: Table) -> str:
        """The memory in which an array is updated."""
        apart = table.way == "exact" or table.narrow
        return f"{self.job.name}.{table.acc.id}.words" if apart else self.home(table)

    def level(self) -> bool:
        """Whether all updates stand directly in the bodies of the folds."""
        here = {id(s) for f in self.nest.folds for s in f.body}
        return all(id(s) in here for f in self.nest.folds for s in walk(f.body)
                   if isinstance(s, Store) and s.absorb and s.buffer in self.tables)  # fmt: skip

    def element(self, w: Writer) -> Element:
        """What writes the statements at one element."""
        return Updating(w, self.job.name, self.tables)

    # -- tables of blocks ---------------------------------------------------------------------------------------------

    def begin(self, w: Writer) -> None:
        """Tables in shared memory at their identities, or in device memory."""
        if not self.private:
            for id, table in self.tables.items():
                kind = "long long" if table.way == "exact" else table.word
                pointer = w.pointer(self.raw(table), kind, write=True, name=id)
                w.places[id] = Place(pointer, table.acc.shape, table.acc.dtype, raw=True)
            return
        w.comment("the block's tables")
        for id, table in self.tables.items():
            assert table.count is not None
            whole = w.names.fresh(f"{id}.tables")
            w.line(f"{table.word}* {whole} = ({table.word}*)(lf_shared + {self.shared});")
            mine = whole
            if self.copies > 1:
                mine = w.names.fresh(id)
                copy = "threadIdx.x / 32" if self.copies == WARPS else f"threadIdx.x / 32 % {self.copies}"
                w.line(f"{table.word}* {mine} = {whole} + {copy} * {table.count};")
            w.places[id] = Place(mine, table.acc.shape, table.acc.dtype, raw=True)
            self.whole[id] = whole
            self.shared += -(-self.copies * table.count * table.bytes // 16) * 16
            with self.elements(w, self.copies * table.count) as k:
                w.line(f"{whole}[{k}] = {table.identity(w)};")
        w.line("lf_sync();")
        self.slots = self.shared
        self.shared += 16 * (1 + sum(not a.shape for f in self.nest.folds for a in f.accs))
        w.shared = self.shared

    @contextmanager
    def elements(self, w: Writer, count: int) -> Iterator[str]:
        """A loop of the block's threads over elements; the index."""
        with scoped(w, "k") as k, w.block(f"for (int {k} = threadIdx.x; {k} < {count}; {k} += {THREADS})"):
            yield k

    def reduce(self, w: Writer) -> list[States]:
        """All folds; the states of their scalar accumulators, in the first thread."""
        self.begin(w)
        for let in self.needed([*self.nest.folds, *(self.after if self.finishes else ())]):
            Serial(w, self.job.name).let(let)
        done = []
        for fold in self.nest.folds:
            if any(a.id in self.tables and self.tables[a.id].way == "turn" for a in fold.accs):
                done.append(self.turned(w, fold))
            else:
                done.append(self.fold(w, fold, *self.shape(fold)))
        return done

    def turned(self, w: Writer, fold: Loop) -> States:
        """A fold in which every warp takes a stretch, in order, and its lanes take turns."""
        loop, dims = self.inner(fold)
        w.comment(f"the fold over {', '.join(d.id for d in fold.dims)}: a stretch a warp, its lanes in turn")
        span = Span(w, dims)
        states = States(w, [a for a in fold.accs if not a.shape])
        states.declare()
        element = Aiming(w, self.job.name, self.tables)
        element.accs.update({a.id: a for a in states.accs})
        element.at = states.at("0")
        warp, share, start, end = (w.names.fresh(n) for n in ("warp", "share", "start", "end"))
        warps = self.parts * self.copies
        with w.block(f"if (threadIdx.x / 32 < {self.copies})" if self.copies < WARPS else ""):
            w.line(f"const {w.index} {warp} = ({w.index})blockIdx.y * {self.copies} + ({w.index})threadIdx.x / 32;")
            w.line(f"const {w.index} {share} = ({span.total} + {32 * warps - 1}) / {32 * warps} * 32;")
            w.line(f"const {w.index} {end} = lf_least<{w.index}>({span.total}, ({warp} + 1) * {share});")
            head = f"for ({w.index} {start} = {warp} * {share}; {start} < {end}; {start} += {32 * TURN_ROWS})"
            with w.block(head):
                self.turns_of(w, loop, span, element, start, end)
        tree(states, THREADS, 1, self.shared)
        return states

    def turns_of(self, w: Writer, loop: Loop, span: Span, element: Aiming, start: str, end: str) -> None:
        """A few rows of 32 elements: first where everything goes, then the updates."""
        updates = [s for s in loop.body if isinstance(s, Store) and s.absorb and s.buffer in self.tables]
        names = []
        for store in updates:
            key, value = w.names.fresh(f"{store.buffer}.at"), w.names.fresh(f"{store.buffer}.value")
            names.append((store, key, value))
            w.line(f"int {key}[{TURN_ROWS}];")
            w.line(f"{self.tables[store.buffer].word} {value}[{TURN_ROWS}];")
        with unrolled(w, "r", TURN_ROWS) as r, scoped(w, "n") as n:
            for store, key, value in names:
                w.line(f"{key}[{r}] = -1;")
                w.line(f"{value}[{r}] = {self.tables[store.buffer].identity(w)};")
                element.aims[id(store)] = f"{key}[{r}]", f"{value}[{r}]"
            w.line(f"const {w.index} {n} = {start} + {r} * 32 + ({w.index})(threadIdx.x % 32);")
            with w.block(f"if ({n} < {end})"), span.settle(n), ExitStack() as stack:
                if loop.where is not None:
                    stack.enter_context(w.block(f"if ({w.expr(loop.where)})"))
                element.serial(loop.body)
        with unrolled(w, "r", TURN_ROWS) as r:
            for store, key, value in names:
                table = self.tables[store.buffer]
                join = f"[]({table.word} left, {table.word} right) {{ return {table.joined(w, 'left', 'right')}; }}"
                w.line(f"lf_in_turn({w.places[store.buffer].pointer}, {key}[{r}], {value}[{r}], {join});")
        for _, key, value in names:
            w.names.free(key)
            w.names.free(value)

    def blocks_table(self, w: Writer, table: Table, k: str) -> str:
        """An element of the block's tables joined."""
        whole = self.whole[table.acc.id]
        found = w.names.fresh("joined")
        w.line(f"{table.word} {found} = {whole}[{k}];")
        if self.copies > 1:
            with scoped(w, "copy") as copy:
                joined = table.joined(w, found, f"{whole}[{copy} * {table.count} + {k}]")
                w.line(f"for (int {copy} = 1; {copy} < {self.copies}; ++{copy}) {found} = {joined};")
        return found

    def leave_tables(self, w: Writer) -> None:
        """The block's tables, joined, into scratch."""
        w.line("lf_sync();")
        w.comment("the block's tables, joined")
        for id, table in self.tables.items():
            assert table.count is not None
            with self.elements(w, table.count) as k:
                found = self.blocks_table(w, table, k)
                if self.parts == 1 and self.finishes:
                    w.line(f"{self.whole[id]}[{k}] = ({table.word})({table.value(found)});")
                elif table.zero:
                    total = self.scratch(w, table, "total", 1)
                    w.line(f"if ({found}) {table.update(w, f'&{total}[{k}]', found)}")
                else:
                    w.line(
                        f"{self.scratch(w, table, 'copies', self.parts)}[blockIdx.y * {table.count} + {k}] = {found};"
                    )
                w.names.free(found)

    def scratch(self, w: Writer, table: Table, what: str, copies: int) -> str:
        """The pointer to tables in scratch; a total is zero between launches."""
        id = f"{self.job.name}.{table.acc.id}.{what}"
        if all(m.id != id for m in self.memory):
            self.memory.append(Memory(id, table.size * (copies * table.bytes), what == "total"))
        return w.pointer(id, table.word, write=True, name=f"{table.acc.id}.{what}")

    # -- in one launch ------------------------------------------------------------------------------------------------

    def alone(self) -> tuple[KernelCode, Launch]:
        """One kernel, whose last block goes on with what follows."""
        self.finishes = True
        w = self.writer()
        done = self.reduce(w)
        self.leave_tables(w)
        if self.parts > 1:
            if scalars := [states for states in done if states.accs]:
                with w.block("if (threadIdx.x == 0)"):
                    self.leave(w, scalars, "blockIdx.y", "0")
            w.comment("what follows is done by the last block that gets here")
            self.memory.append(Memory(f"{self.job.name}.done", ONE * 4, True))
            counter = w.pointer(f"{self.job.name}.done", "unsigned int", write=True, name="done")
            w.line(f"if (!lf_last_block({counter}, {self.parts}, (int*)(lf_shared + {self.slots}))) return;")
            for table in self.tables.values():
                self.gathered(w, table)
            done = [self.regained(w, states) for states in done]
        w.line("lf_sync();")
        values = self.told(w, done)
        for id, table in self.tables.items():
            w.places[id] = Place(self.whole[id], table.acc.shape, table.acc.dtype, raw=True,
                                 positional="lf_best" in table.word)  # fmt: skip
        team = Team(w, self.job.name, THREADS, "0", 1)
        team.shared = self.shared
        team.accs.update({id: t.acc for id, t in self.tables.items()})
        with aliases(w, values):
            team.team(self.after)
        w.shared = max(w.shared, team.shared)
        self.memory += team.memory
        why = f"tables of {self.parts} blocks, {self.copies} in each; the last one goes on with what follows"
        made = self.function(w, "", THREADS, why)
        return made, Launch(made.name, grid(1, self.parts), w.arguments)

    def gathered(self, w: Writer, table: Table) -> None:
        """The tables of all blocks, joined into the first one of this block."""
        assert table.count is not None
        target = self.whole[table.acc.id]
        with self.elements(w, table.count) as k:
            if table.zero:
                total = self.scratch(w, table, "total", 1)
                w.line(f"{target}[{k}] = ({table.word})({table.value(f'{total}[{k}]')});")
                w.line(f"{total}[{k}] = 0;")
                return
            copies = self.scratch(w, table, "copies", self.parts)
            with scoped(w, "joined") as found, scoped(w, "part") as part:
                w.line(f"{table.word} {found} = {copies}[{k}];")
                joined = table.joined(w, found, f"{copies}[{part} * {table.count} + {k}]")
                w.line("#pragma unroll 8")
                w.line(f"for (int {part} = 1; {part} < {self.parts}; ++{part}) {found} = {joined};")
                w.line(f"{target}[{k}] = {found};")

    def regained(self, w: Writer, states: States) -> States:
        """The states of all blocks, joined in the first thread."""
        if not states.accs:
            return states
        found = States(w, states.accs)
        found.declare()
        pointers = self.partial(w, states, True)
        with scoped(w, "part") as part:
            head = f"for (int {part} = threadIdx.x; {part} < {self.parts}; {part} += {THREADS})"
            with w.block(head):
                found.merge(lambda acc, _: f"{pointers[acc.id]}[{part}]")
        tree(found, THREADS, 1, self.shared)
        return found

    def told(self, w: Writer, done: Sequence[States]) -> dict[str, str]:
        """The states of the first thread made known to all; what the names of the accumulators stand for."""
        slots: dict[str, str] = {}
        at = self.slots
        for states in done:
            for acc in states.accs:
                at += 16
                slots[acc.id] = w.names.fresh(f"{acc.id}.slot")
                kind = state_type(acc.monoid, acc.dtype)
                w.line(f"{kind}* {slots[acc.id]} = ({kind}*)(lf_shared + {at});")
                w.line(f"if (threadIdx.x == 0) {slots[acc.id]}[0] = {states.text(acc, '0')};")
        if slots:
            w.line("lf_sync();")
        texts: dict[str, str] = {}
        for states in done:
            single = States(w, states.accs, names={a.id: f"{slots[a.id]}[0]" for a in states.accs})
            texts |= single.values("0")
        return texts

    # -- in several launches ------------------------------------------------------------------------------------------

    def spread(self) -> tuple[list[KernelCode], list[Step]]:
        """A main kernel, and kernels that make the arrays of what it leaves."""
        w = self.writer()
        done = self.reduce(w)
        if self.private:
            self.leave_tables(w)
        partial = [a for states in done for a in states.accs]
        if partial:
            with w.block("if (threadIdx.x == 0)"):
                self.leave(w, [s for s in done if s.accs], "blockIdx.y", "0")
        why = f"tables of {self.parts} blocks" if self.private else "updates of arrays in device memory"
        made = self.function(w, "", THREADS, why)
        kernels: list[KernelCode] = [made]
        steps: list[Step] = [Launch(made.name, grid(1, self.parts), w.arguments)]
        before: list[Step] = []
        for table in self.tables.values():
            if not self.private:
                before += self.started(table, kernels)
            settled = self.settled(table)
            if settled is not None:
                kernels.append(settled[0])
                steps.append(settled[1])
        if partial:
            held = [(a, f"{self.job.name}.{a.id}.partial") for a in partial]
            steps.append(self.general.finish(held, self.parts))
        return kernels, [*before, *steps]

    def started(self, table: Table, kernels: list[KernelCode]) -> list[Step]:
        """An array in device memory at its identity."""
        exact, id = table.way == "exact", self.raw(table)
        if id not in self.job.buffers:
            self.memory.append(Memory(id, table.size * (8 * WORDS if exact else table.bytes)))
        if exact or table.zero:
            return [Fill(id)]
        w = self.writer()
        pointer = w.pointer(id, table.word, write=True, name=table.acc.id)
        with self.every(w, table) as k:
            w.line(f"{pointer}[{k}] = {table.identity(w)};")
        made = self.function(w, f"_start{len(kernels)}", THREADS, f"`{table.acc.id}` at its start")
        kernels.append(made)
        return [Launch(made.name, self.enough(table), w.arguments)]

    def settled(self, table: Table) -> tuple[KernelCode, Launch] | None:
        """What the updates left, made the array that is read later; None where it is that already."""
        acc = table.acc
        if not self.private and table.way == "atomic" and not table.narrow:
            self.general.roots[acc.id] = acc, self.home(table)
            return None
        w = self.writer()
        kind = state_type(acc.monoid, acc.dtype)
        id = self.home(table)
        if id not in self.job.buffers:
            self.memory.append(Memory(id, table.size * state_bytes(acc.monoid, acc.dtype)))
        self.general.roots[acc.id] = acc, id
        result = w.pointer(id, kind, write=True, name=acc.id)
        with self.every(w, table) as k:
            if table.way == "exact":
                words = w.pointer(self.raw(table), "long long", name=f"{acc.id}.words")
                w.line(f"{result}[{k}] = lf_exact_value({words} + {k} * {WORDS});")
            elif not self.private:
                words = w.pointer(self.raw(table), table.word, name=f"{acc.id}.words")
                w.line(f"{result}[{k}] = {table.value(f'{words}[{k}]')};")
            elif table.zero:
                total = self.scratch(w, table, "total", 1)
                w.line(f"{result}[{k}] = {table.value(f'{total}[{k}]')};")
                w.line(f"{total}[{k}] = 0;")
            else:
                copies = self.scratch(w, table, "copies", self.parts)
                with scoped(w, "joined") as found, scoped(w, "part") as part:
                    w.line(f"{table.word} {found} = {copies}[{k}];")
                    joined = table.joined(w, found, f"{copies}[{part} * {table.count}ll + {k}]")
                    w.line("#pragma unroll 8")
                    w.line(f"for (int {part} = 1; {part} < {self.parts}; ++{part}) {found} = {joined};")
                    w.line(f"{result}[{k}] = {table.value(found)};")
        made = self.function(w, f"_{self.word(acc.id)}", THREADS, f"`{acc.id}` from what the updates left")
        return made, Launch(made.name, self.enough(table), w.arguments)

    def word(self, name: str) -> str:
        """A part of a function's name."""
        return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)

    @contextmanager
    def every(self, w: Writer, table: Table) -> Iterator[str]:
        """A loop of the threads of a grid over the elements of a table; the index, of 64 bits."""
        with scoped(w, "k") as k:
            head = f"for (long long {k} = blockIdx.x * {THREADS}ll + threadIdx.x; {k} < {w.poly(table.size)}; "
            with w.block(f"{head}{k} += gridDim.x * {THREADS}ll)"):
                yield k

    def enough(self, table: Table) -> tuple[Poly, Poly, Poly]:
        """A grid for it."""
        return grid(self.general.least(ceil_div(table.size, THREADS), 8 * self.device.units))


def _copied(stmt: Stmt) -> tuple[str, str]:
    """The array and the buffer, where a loop copies all of the one to the other; else two empty names."""
    if not isinstance(stmt, Loop) or stmt.accs or stmt.order != "par" or stmt.where is not None or len(stmt.body) != 1:
        return "", ""
    store, order = stmt.body[0], [Poly.of(d.id) for d in stmt.dims]
    if not isinstance(store, Store) or not isinstance(store.value, Load) or any(m is not None for m in store.modes):
        return "", ""
    same = all([getattr(s, "poly", None) for s in subs] == order for subs in (store.subs, store.value.subs))
    full = all(d.lo == (ZERO,) and len(d.hi) == 1 and d.step == ONE for d in stmt.dims)
    return (store.value.buffer, store.buffer) if same and full else ("", "")


__all__ = ["Scatter", "emit"]
