"""Reductions in several parts: what their main kernels share, and the finish that joins the parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from loopfuse.emit.base import MOST_NARROW, Declined, Emitted, Job
from loopfuse.emit.code import KernelCode, Launch, Memory, Step, ceil_div, grid
from loopfuse.emit.collapse import collapsed
from loopfuse.emit.merging import aliases
from loopfuse.emit.partials import States, scoped, tree
from loopfuse.emit.serial import Serial
from loopfuse.emit.slices import levels, prune
from loopfuse.emit.strips import Span, Strip, trips
from loopfuse.emit.team import flat
from loopfuse.emit.writer import Writer, state_bytes, state_type
from loopfuse.ir import Dim, Let, Loop, Ref, Stmt, Store
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import expr_names, free_names, own, walk

THREADS = 256
BLOCKS = 4  # a multiprocessor
COLUMN_LANES = 64  # threads side by side along the columns
LEAST_SIDE = 8  # columns side by side in a finish
RESIDENT = ((52, 4), (4096, 2))  # blocks that must fit on a multiprocessor, by the registers that a thread holds
MOST_ROWS = 16  # that a thread takes at a time


class Nest:
    """A kernel as a band of columns with loops in it: its dims (that of the vector last), the lets around, the body.

    `whole`: the loops need one another's results, or are not all folds, so that a block owns its columns.
    """

    def __init__(self, dims: Sequence[Dim], vector: str, lets: Sequence[Let], body: Sequence[Stmt],
                 whole: bool = False) -> None:  # fmt: skip
        self.dims, self.vector, self.body, self.whole = tuple(dims), vector, tuple(body), whole
        self.around = tuple(lets)
        self.folds = [s for s in body if isinstance(s, Loop)]

    @property
    def lets(self) -> list[Let]:
        """The lets that folds may use, in order."""
        return [*self.around, *(s for s in self.body if isinstance(s, Let))]

    @property
    def after(self) -> tuple[Stmt, ...]:
        """What is done once a column when the folds are."""
        return prune([*self.around, *(s for s in self.body if not isinstance(s, Loop))], ())


def nest_of(job: Job) -> Nest | Declined:
    """The nest of a job's kernel, or why it is none that is written here."""
    body = collapsed(job)
    dims: list[Dim] = []
    lets: list[Let] = []
    while len(loops := [s for s in body if isinstance(s, Loop)]) == 1 and _band(loops[0]):
        if any(isinstance(s, Store) for s in body):
            return Declined("a store stands beside the loop over the columns")
        lets += [s for s in body if isinstance(s, Let)]
        dims += loops[0].dims
        body = loops[0].body
    ids = {d.id for d in dims}
    if any(p.names & ids for d in dims for p in (*d.lo, *d.hi, d.step)):
        return Declined("bounds of the band depend on its indices")
    if any(trips(job.writer(), d) is None and extent_of(job, d) is None for d in dims):
        return Declined("the number of columns is no polynomial in the sizes")
    if any(s.order != "par" for s in body if isinstance(s, Loop)):
        return Declined("something follows in order")
    vector = next((n for n, role in job.plan.roles.items() if role == "vector" and n in ids), "")
    dims.sort(key=lambda d: d.id == vector)
    body = tuple(_live(s, body) if isinstance(s, Loop) else s for s in body)
    if not all(_repairs(s) for s in body if isinstance(s, Loop) and s.accs):
        return Declined("an accumulator reads another one and says not how it changes with it")
    whole = bool(job.ask.local) or _waits(body)
    if whole and not vector:
        return Declined("loops that wait for one another, and no columns that a block could own")
    return Nest(dims, vector, lets, body, whole)


def _live(fold: Loop, body: Sequence[Stmt]) -> Loop:
    """A fold without the accumulators that nothing reads."""
    outside = free_names([s for s in body if s is not fold])
    wanted = {a.id for a in fold.accs if a.id in outside.values | outside.loads}
    while True:
        kept = prune(fold.body, wanted)
        names = {n for s in walk(kept) for n in own(s).names.values}
        names |= {n.rpartition(".")[0] for a in fold.accs if a.id in wanted and a.repair is not None
                  for n in expr_names(a.repair).values}  # fmt: skip
        more = {a.id for a in fold.accs if a.id in names} - wanted
        if not more:
            break
        wanted |= more
    if len(wanted) == len(fold.accs) or not wanted:
        return fold
    return replace(fold, accs=tuple(a for a in fold.accs if a.id in wanted), body=kept)


def _repairs(fold: Loop) -> bool:
    """Whether every accumulator that waits for others has a repair that does something."""
    return all(a.repair is not None and not isinstance(a.repair, Ref)
               for a in fold.accs if levels(fold)[a.id])  # fmt: skip


def _waits(body: Sequence[Stmt]) -> bool:
    """Whether a loop needs what another statement of its body gives, or is no fold."""
    given: set[str] = set()
    for stmt in body:
        names = free_names((stmt,))
        needs = bool(given & (names.values | names.loads))
        if isinstance(stmt, Loop):
            if needs or not stmt.accs:
                return True
            given |= {a.id for a in stmt.accs} | {s.buffer for s in walk(stmt.body) if isinstance(s, Store)}
        elif isinstance(stmt, Store):
            given.add(stmt.buffer)
        elif needs:
            given.add(stmt.id)
    return False


def _band(loop: Loop) -> bool:
    return loop.order == "par" and not loop.accs and loop.where is None


def extent_of(job: Job, dim: Dim) -> Poly | None:
    """The number of iterations of a dim, where it is a polynomial."""
    number = trips(job.writer(), dim)
    if number is not None:
        return Poly.of(number)
    if len(dim.lo) == len(dim.hi) == 1 and job.target.poly(dim.step) == ONE:
        return job.target.poly(dim.hi[0] - dim.lo[0])
    return None


class Reduction(ABC):
    """The kernels of one nest in the making; subclasses write the main one."""

    way = "column"

    def __init__(self, job: Job, nest: Nest) -> None:
        self.job, self.nest, self.target, self.device = job, nest, job.target, job.target.device
        self.split = len(job.plan.launches) > 1
        self.width = prod((extent_of(job, d) or ONE for d in nest.dims), start=ONE)
        self.columns = max(1, job.ask.sketch.value(self.width))
        self.points = max((self.count(f) for f in nest.folds), default=1)
        self.wide = job.wide or self.columns > MOST_NARROW or self.points > MOST_NARROW
        self.parts = 1
        self.held = 0  # about how many registers of a thread hold elements and states
        self.aligned: set[str] = set()
        self.memory: list[Memory] = []
        self.deps = job.ask.sketch.deps

    def count(self, loop: Loop) -> int:
        """About how many points the leading dims of a loop have."""
        value = self.job.ask.sketch.value
        found = 1
        for dim in flat(loop.dims).dims:
            gap = min(map(value, dim.hi)) - max(map(value, dim.lo))
            found *= max(0, -(-gap // max(1, value(dim.step))))
        return found

    def writer(self) -> Writer:
        """A writer for one of the functions."""
        return Writer(self.target, self.job.buffers, self.job.faults, self.wide)

    def emit(self) -> Emitted | Declined:
        """All kernels and their launches."""
        main, step = self.main()
        kernels, steps = [main], [step]
        if self.split:
            last, step = self.finish()
            kernels.append(last)
            steps.append(step)
        return Emitted(tuple(kernels), tuple[Step, ...](steps), tuple(self.memory), frozenset(self.aligned))

    @abstractmethod
    def main(self) -> tuple[KernelCode, Launch]:
        """The kernel that reads everything."""

    def function(self, w: Writer, what: str, threads: int, why: str) -> KernelCode:
        """A finished function.

        The main one says how many blocks must fit on a multiprocessor, few as they are: unless told, the assembler saves
        registers by issuing loads one after another.
        """
        blocks = 0 if what else self.resident() if self.job.budget >= 128 else 1
        spans = tuple(dict.fromkeys(s.span for s in walk(self.nest.body) if s.span is not None))[:4]
        kernel = self.job.kernel.id
        return w.function(f"{self.job.name}{what}", threads, blocks=blocks, head=[f"{kernel}: {why}"], kernel=kernel,
                          schedule=self.way, why=why, spans=spans)  # fmt: skip

    def registers(self, fold: Loop, lanes: int) -> int:
        """About how many registers the states of a fold take: of repaired ones a batch has its own."""
        size = sum(state_bytes(a.monoid, a.dtype) for a in fold.accs if not a.shape) // 4 * lanes
        return size * 2 if any(a.repair is not None for a in fold.accs) else size

    def resident(self) -> int:
        """How many blocks of the main kernel must fit on a multiprocessor."""
        found = next(n for held, n in RESIDENT if self.held <= held)
        return min(found, 2) if self.wide else found

    # -- folds --------------------------------------------------------------------------------------------------------

    def needed(self, folds: Sequence[Stmt]) -> list[Let]:
        """The lets before the folds that these need."""
        wanted = set(free_names(folds).all)
        found: list[Let] = []
        for let in reversed(self.nest.lets):
            if let.id in wanted:
                found.append(let)
                wanted |= own(let).names.values | own(let).names.loads
        return found[::-1]

    def inner(self, loop: Loop) -> tuple[Loop, tuple[Dim, ...]]:
        """A fold over its leading dims alone, the others being loops in its body."""
        parts = flat(loop.dims)
        if not parts.rest:
            return loop, parts.dims
        body = replace(loop, dims=parts.rest, accs=())
        return replace(loop, dims=parts.dims, where=None, body=(body,)), parts.dims

    def absorb(self, strip: Strip, states: States | None, start: str, end: str | None = None) -> None:
        """A strip into the running states: directly, or as a batch of its own that is then joined to them."""
        if states is None or not states.repaired:
            strip.states = states
            strip.emit(start, end)
            return
        w = strip.w
        w.comment("a batch by itself, then joined")
        batch = States(w, states.accs, states.lanes, states.uniform, ".batch")
        batch.declare()
        strip.states = batch
        strip.emit(start, end)
        states.merge(batch.text)
        for name in batch.names.values():
            w.names.free(name)

    # -- results ------------------------------------------------------------------------------------------------------

    def follow(self, w: Writer, states: Sequence[States], lane: str) -> None:
        """What follows the folds, for one column."""
        texts = {id: text for s in states for id, text in s.values(lane).items()}
        with aliases(w, texts):
            Serial(w, self.job.name).serial(self.nest.after)

    def partial(self, w: Writer, state: States, write: bool) -> dict[str, str]:
        """The pointers to the partial states of a fold in scratch, [split][column]."""
        found = {}
        for acc in state.accs:
            id = f"{self.job.name}.{acc.id}.partial"
            size = self.width * (self.parts * state_bytes(acc.monoid, acc.dtype))
            if all(m.id != id for m in self.memory):
                self.memory.append(Memory(id, self.target.poly(size)))
            kind = state_type(acc.monoid, acc.dtype)
            found[acc.id] = w.pointer(id, kind, write=write, name=f"{acc.id}.partial")
        return found

    def leave(self, w: Writer, states: Sequence[States], at: str, lane: str) -> None:
        """The block's states, into scratch."""
        w.comment("the block's results, for the finish")
        for each in states:
            pointers = self.partial(w, each, True)
            for acc in each.accs:
                w.line(f"{pointers[acc.id]}[{at}] = {each.text(acc, lane)};")

    def finish(self) -> tuple[KernelCode, Launch]:
        """The kernel that joins the partial states of each column, in order, and goes on."""
        w = self.writer()
        side = min(COLUMN_LANES, power(self.columns))
        while side > LEAST_SIDE and THREADS // side < self.parts and self.columns < 2 * side * self.device.units:
            side //= 2  # more parts at a time
        rows = max(min(THREADS // side, power(self.parts)), 32 // side)
        threads = side * rows
        column, live = self.column(w, side, 1)
        all_states: list[States] = []
        for fold in self.nest.folds:
            states = States(w, fold.accs)
            states.declare()
            pointers = self.partial(w, states, False)
            start = thread("/", side, threads)
            with scoped(w, "part") as part:
                w.line(f"#pragma unroll {2 if states.repaired else 4}")
                first = f"{live} ? {start} : {self.parts}" if live else start
                at = part if self.width == ONE else f"{part} * {w.poly(self.width)} + {column}"
                texts = {a.id: f"{pointers[a.id]}[{at}]" for a in fold.accs}
                with w.block(f"for ({w.index} {part} = {first}; {part} < {self.parts}; {part} += {rows})"):
                    states.merge(lambda acc, _, texts=texts: texts[acc.id])  # type: ignore[misc]
            tree(states, threads, side)
            all_states.append(states)
        with w.block(self.owner(side, threads, live)), self.settle(w, column, 1):
            self.follow(w, all_states, "0")
        why = f"the {self.parts} partial results of each column joined in order"
        made = self.function(w, "_finish", threads, why)
        return made, Launch(made.name, grid(ceil_div(self.width, side)), w.arguments)

    def owner(self, side: int, threads: int, live: str) -> str:
        """The condition of the threads that have the block's results."""
        tests = [f"threadIdx.x < {side}"] if side < threads else []
        return f"if ({' && '.join(tests + [live] * bool(live))})" if tests or live else ""

    def column(self, w: Writer, side: int, lanes: int) -> tuple[str, str]:
        """Declares the first column of a thread; its name, and that of the condition that there is one, if not certain."""
        if self.width == ONE:
            return "0", "threadIdx.x == 0" if side > 1 else ""
        thread = "threadIdx.x" if side >= THREADS else f"threadIdx.x % {side}"
        per = f" * {lanes}" if lanes > 1 else ""
        text = f"(({w.index})blockIdx.x * {side} + ({w.index})({thread})){per}"
        column = w.names.fresh("column")
        number = self.target.number(self.width)
        if number is not None and number % (side * lanes) == 0:
            w.line(f"const {w.index} {column} = {text};")
            return column, ""
        live = w.names.fresh("live")
        w.line(f"{w.index} {column} = {text};")
        w.line(f"const bool {live} = {column} < {w.poly(self.width)};")
        w.line(f"if (!{live}) {column} = ({w.index})blockIdx.x * {side * lanes};")
        return column, live

    @contextmanager
    def settle(self, w: Writer, column: str, lanes: int) -> Iterator[str]:
        """Inside, the indices of a column; of several, all but the last index, which starts at what is given."""
        if not self.nest.dims:
            yield ""
            return
        span = Span(w, self.nest.dims)
        first = w.names.fresh(f"{self.nest.vector}.first") if lanes > 1 else ""
        with span.settle(column, {self.nest.vector: first} if first else {}):
            yield first


def power(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def thread(operation: str, by: int, threads: int) -> str:
    """The thread's number divided by a power of two."""
    if by == threads:
        return "0"
    return "(int)threadIdx.x" if by == 1 else f"(int)threadIdx.x {operation} {by}"


def factor(text: str) -> str:
    """A text that can be a factor."""
    return f"({text})" if " " in text else text


def told(parts: int) -> str:
    """So many parts, in words."""
    return f"{parts} parts" if parts > 1 else "one part"


__all__ = [
    "BLOCKS",
    "COLUMN_LANES",
    "MOST_ROWS",
    "THREADS",
    "Nest",
    "Reduction",
    "extent_of",
    "factor",
    "nest_of",
    "power",
    "thread",
    "told",
]
