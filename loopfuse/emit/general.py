"""General: kernels for everything that the language can say, right before fast.

The statements of a kernel become launches, one after another. A parallel band is a grid of threads, each an iteration,
or of blocks, where an iteration holds long loops. A fold is a grid that leaves partial results, and a finish that joins
them in order; with array accumulators each of a number of threads takes a stretch of iterations and a copy of the arrays
of its own. A recurrence is a block that keeps in step, or launches for every step. What one launch leaves for the next
lies in scratch: buffers as a whole, even those that a plan would keep on chip, and the states of accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from loopfuse.emit.base import MOST_NARROW, Declined, Emitted, Job
from loopfuse.emit.code import KernelCode, Launch, Memory, Repeat, Step, ceil_div, grid
from loopfuse.emit.serial import Serial, passes
from loopfuse.emit.slices import levels
from loopfuse.emit.team import Team, flat
from loopfuse.emit.writer import Place, Writer, state_bytes, state_type
from loopfuse.ir import Acc, Dim, Let, Loop, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import free_names, own, walk

THREADS, TEAM = 128, 256
MOST_BLOCKS = 16  # blocks a multiprocessor, which go through the iterations in turn
LONG = 128  # iterations inside an iteration from which on a block takes it
FEW = 4096  # iterations that one block folds by itself
PARTIALS = 4  # blocks a multiprocessor that leave partial results
COPIES, COPIED = 4096, 64 << 20  # copies of array accumulators, and their bytes in all
STEP = 1 << 16  # iterations of a step of a recurrence that one block does


class General:
    """The launches of one kernel in the making."""

    def __init__(self, job: Job) -> None:
        self.job, self.device = job, job.target.device
        self.kernels: list[KernelCode] = []
        self.memory: dict[str, Memory] = {}
        self.lets: list[Let] = []
        self.roots: dict[str, tuple[Acc, str]] = {}  # accumulators of finished folds, and their memory
        self.indices: list[str] = []  # of the recurrences around, which are arguments
        self.conditions: list[Stmt] = []
        self.wide = job.wide or job.reach.points is None or job.reach.points > MOST_NARROW

    # -- statements ---------------------------------------------------------------------------------------------------

    def run(self, body: Sequence[Stmt]) -> list[Step]:
        """The steps of statements that stand at the level of the kernel."""
        steps: list[Step] = []
        at = 0
        while at < len(body):
            stmt = body[at]
            at += 1
            if isinstance(stmt, Let):
                self.lets.append(stmt)
            elif isinstance(stmt, Store):
                stores = [stmt]
                while at < len(body) and not isinstance(body[at], Loop):
                    following = body[at]
                    if isinstance(following, Let):
                        self.lets.append(following)
                    elif isinstance(following, Store):
                        stores.append(following)
                    at += 1
                steps.append(self.tail(stores))
            elif stmt.order == "seq":
                steps += self.recurrence(stmt)
            elif stmt.order == "prefix":
                steps.append(self.alone((stmt,), stmt.accs))
            elif stmt.accs:
                steps += self.fold(stmt)
            else:
                steps += self.band(stmt)
        return steps

    def writer(self) -> Writer:
        """A writer for one function."""
        return Writer(self.job.target, self.job.buffers, self.job.faults, self.wide)

    @contextmanager
    def function(
        self, what: str, threads: int, needs: Sequence[Stmt], head: str
    ) -> Iterator[tuple[Writer, list[Launch]]]:
        """A kernel function; the launch, without its grid, is what the list holds at the end."""
        w = self.writer()
        for index in self.indices:
            w.size(index)
        self.prologue(w, needs)
        launches: list[Launch] = []
        yield w, launches
        name = f"{self.job.name}_{what}{len(self.kernels) or ''}"
        spans = tuple(dict.fromkeys(s.span for s in walk(needs) if s.span is not None))[:4]
        self.kernels.append(
            w.function(name, threads, blocks=1, head=[f"{self.job.kernel.id}: {head}"], kernel=self.job.kernel.id,
                       schedule="general", why=head, spans=spans)
        )  # fmt: skip
        launches[0] = replace(launches[0], kernel=name, arguments=w.arguments)

    def prologue(self, w: Writer, needs: Sequence[Stmt]) -> None:
        """Values from before that the statements use: lets are computed again, accumulators read."""
        wanted = set(free_names(needs).all)
        kept: list[Let] = []
        for let in reversed(self.lets):
            if let.id in wanted:
                kept.append(let)
                names = own(let).names
                wanted |= names.values | names.loads
        serial = Serial(w, self.job.name)
        for id, (acc, memory) in self.roots.items():
            if id not in wanted:
                continue
            kind, positional = state_type(acc.monoid, acc.dtype), MONOIDS[acc.monoid].positional
            pointer = w.pointer(memory, kind, write=True, name=f"{id}.state")
            if acc.shape:
                w.places[id] = Place(pointer, acc.shape, acc.dtype, raw=True, positional=positional)
            else:
                w.alias[id] = f"{pointer}[0].at" if positional else f"{pointer}[0]"
        for let in reversed(kept):
            serial.let(let)
        for stmt in self.conditions:
            assert isinstance(stmt, Loop) and stmt.where is not None
            w.line(f"if (!({w.expr(stmt.where)})) return;")

    def state(self, acc: Acc, copies: int = 1, suffix: str = "") -> str:
        """The memory of an accumulator's state, or of copies of it."""
        id = f"{self.job.name}.{acc.id}{suffix}"
        size = prod(acc.shape, start=ONE) * (state_bytes(acc.monoid, acc.dtype) * copies)
        self.memory[id] = Memory(id, self.job.target.poly(size))
        return id

    # -- bands --------------------------------------------------------------------------------------------------------

    def band(self, loop: Loop) -> list[Step]:
        """A parallel band as a grid of threads or of blocks."""
        dims, lets, inner = self.chain(loop)
        total = self.job.target.poly(prod((self.trips(d) for d in dims), start=ONE))
        scout = Team(self.writer(), self.job.name, TEAM)
        long = scout.within(inner) >= LONG and not any(isinstance(s, Loop) and s.order != "par" for s in inner)
        width = max((scout.within(s.body) for s in inner if isinstance(s, Loop) and s.order == "seq"), default=0)
        few = not total.is_const or total.constant <= MOST_BLOCKS * self.device.units * TEAM
        if (long or width >= LONG) and few:
            return [self.blocks(loop, dims, lets, inner, total)]
        found = self.threads(loop, dims, lets, inner, total, MOST_BLOCKS * 4)
        return [found if found is not None else self.threads(loop, dims, lets, inner, total, 1, private=True)]  # type: ignore[list-item]

    def chain(self, loop: Loop) -> tuple[list[Dim], list[Let], tuple[Stmt, ...]]:
        """The dims of a band that go on the grid, the lets that stand between its loops, and what is inside."""
        dims: list[Dim] = []
        lets: list[Let] = []
        at = loop
        while True:
            parts = flat(at.dims)
            ids = {d.id for d in dims} | {let.id for let in lets}
            free = all(not p.names & ids for d in parts.dims for p in (*d.lo, *d.hi, d.step))
            if not free:
                return dims, lets, (at,)
            dims += parts.dims
            if parts.rest or at.where is not None:
                return dims, lets, (replace(at, dims=parts.rest),)
            inner = [s for s in at.body if not isinstance(s, Let)]
            below = inner[0] if len(inner) == 1 and at.body[-1] is inner[0] else None
            if not isinstance(below, Loop) or below.order != "par" or below.accs:
                return dims, lets, at.body
            lets += [s for s in at.body if isinstance(s, Let)]
            at = below

    def trips(self, dim: Dim) -> Poly:
        """No fewer iterations than a dim has, as a polynomial."""
        target = self.job.target
        lows, highs = [target.number(p) for p in dim.lo], [target.number(p) for p in dim.hi]
        known = [n for n in highs if n is not None], [n for n in lows if n is not None]
        high = Poly.of(min(known[0])) if known[0] else target.poly(dim.hi[0])
        low = Poly.of(max(known[1])) if known[1] else target.poly(dim.lo[0])
        step = target.number(dim.step)
        gap = high - low
        if gap.is_const and gap.constant < 0:
            return Poly.of(0)
        return ceil_div(gap, step) if step else gap

    def threads(self, loop: Loop, dims: list[Dim], lets: list[Let], inner: tuple[Stmt, ...], total: Poly, most: int,
                private: bool = False) -> Launch | None:  # fmt: skip
        """A thread an iteration; None where the threads need scratch of their own and are too many for it."""
        blocks = most * self.device.units
        with self.function("map", THREADS, (loop,), "a thread an element") as (w, launches):
            team = Team(w, self.job.name, THREADS, "blockIdx.x", blocks)
            start = f"blockIdx.x * {THREADS} + threadIdx.x"
            start = f"blockIdx.x * {THREADS}ll + threadIdx.x" if w.wide else f"(int)({start})"
            with team.over(dims, start, f"(int)gridDim.x * {THREADS}"):
                team.alone = True
                team.serial([*lets, *inner])
            count = ceil_div(total, THREADS)
            launches.append(Launch("", grid(self.least(count, blocks)), ()))
            scratch = team.memory
        if scratch and not private:
            self.kernels.pop()
            return None
        self.memory |= {m.id: m for m in scratch}
        return launches[0]

    def blocks(self, loop: Loop, dims: list[Dim], lets: list[Let], inner: tuple[Stmt, ...], total: Poly) -> Launch:
        """A block an iteration."""
        most = MOST_BLOCKS * self.device.units
        with self.function("rows", TEAM, (loop,), "a block an iteration of the outer loops") as (w, launches):
            team = Team(w, self.job.name, TEAM, "blockIdx.x", most)
            with team.over(dims, "(int)blockIdx.x", "(int)gridDim.x"):
                team.team([*lets, *inner])
                team.sync()
            w.shared = team.shared
            self.memory |= {m.id: m for m in team.memory}
            launches.append(Launch("", grid(self.least(total, most)), ()))
        return launches[0]

    def least(self, count: Poly, most: int) -> Poly:
        """So many blocks, but not more than `most`; an unknown number of them is `most`."""
        count = self.job.target.poly(count)
        return Poly.of(min(count.constant, most) if count.is_const else most)

    # -- one block ----------------------------------------------------------------------------------------------------

    def alone(self, body: Sequence[Stmt], accs: Sequence[Acc] = ()) -> Step:
        """Statements by one block; accumulators of theirs that are needed later are written to memory."""
        with self.function("block", TEAM, body, "one block") as (w, launches):
            team = Team(w, self.job.name, TEAM, "0", 1)
            for acc in accs:
                if acc.shape:
                    self.in_memory(w, acc)
            team.placed |= {a.id for a in accs if a.shape}
            team.team(body)
            self.leave(w, accs)
            w.shared = team.shared
            self.memory |= {m.id: m for m in team.memory}
            launches.append(Launch("", grid(1), ()))
        return launches[0]

    def in_memory(self, w: Writer, acc: Acc) -> None:
        """An array accumulator in memory, at its identity."""
        self.roots[acc.id] = (acc, self.state(acc))
        kind, positional = state_type(acc.monoid, acc.dtype), MONOIDS[acc.monoid].positional
        pointer = w.pointer(self.roots[acc.id][1], kind, write=True, name=f"{acc.id}.state")
        w.places[acc.id] = Place(pointer, acc.shape, acc.dtype, raw=True, positional=positional)
        count, start = w.poly(prod(acc.shape, start=ONE)), w.identity(acc.monoid, acc.dtype)
        k = w.names.fresh("k")
        w.line(f"for ({w.index} {k} = threadIdx.x; {k} < {count}; {k} += blockDim.x) {pointer}[{k}] = {start};")
        w.line("lf_sync();")

    def leave(self, w: Writer, accs: Sequence[Acc]) -> None:
        """Scalar accumulators into memory, by the first thread."""
        scalars = [a for a in accs if not a.shape]
        if not scalars:
            return
        with w.block("if (threadIdx.x == 0)"):
            for acc in scalars:
                self.roots[acc.id] = (acc, self.state(acc))
                pointer = w.pointer(
                    self.roots[acc.id][1], state_type(acc.monoid, acc.dtype), write=True, name=f"{acc.id}.state"
                )
                w.line(f"{pointer}[0] = {w.names(acc.id)};")

    def tail(self, stores: Sequence[Store]) -> Step:
        """Stores outside loops, by one thread."""
        with self.function("tail", 32, stores, "what follows") as (w, launches):
            with w.block("if (threadIdx.x == 0)"):
                Serial(w, self.job.name).serial(stores)
            launches.append(Launch("", grid(1), ()))
        return launches[0]

    # -- folds --------------------------------------------------------------------------------------------------------

    def fold(self, loop: Loop) -> list[Step]:
        """A fold: by one block where it is small, else by a grid and a finish for each pass."""
        total = self.job.target.number(prod((self.trips(d) for d in flat(loop.dims).dims), start=ONE))
        if total is not None and total <= FEW:
            return [self.alone((loop,), loop.accs)]
        if any(a.shape for a in loop.accs):
            return self.copies(loop, total)
        steps: list[Step] = []
        level = levels(loop)
        for number, body in enumerate(passes(loop)):
            accs = [a for a in loop.accs if level[a.id] == number]
            steps += self.partial(replace(loop, body=body, accs=tuple(accs)), accs, total)
        return steps

    def partial(self, loop: Loop, accs: Sequence[Acc], total: int | None) -> list[Step]:
        """One pass of a fold over a grid: partial states of the blocks, joined by a finish."""
        blocks = PARTIALS * self.device.units
        if total is not None:
            blocks = min(blocks, -(-total // TEAM))
        held = [(a, self.state(a, blocks, ".partial")) for a in accs]
        with self.function("fold", TEAM, (loop,), "partial results of a fold") as (w, launches):
            team = Team(w, self.job.name, TEAM, "blockIdx.x", blocks)
            team.declare(accs)
            self._spread(team, loop, TEAM)
            team.join(accs)
            with w.block("if (threadIdx.x == 0)"):
                for acc, memory in held:
                    pointer = w.pointer(memory, state_type(acc.monoid, acc.dtype), write=True, name=f"{acc.id}.partial")
                    w.line(f"{pointer}[blockIdx.x] = {w.names(acc.id)};")
            w.shared = team.shared
            self.memory |= {m.id: m for m in team.memory}
            launches.append(Launch("", grid(blocks), ()))
        return [launches[0], self.finish(held, blocks)]

    def _spread(self, team: Team, loop: Loop, threads: int) -> None:
        """The iterations over all threads of the grid."""
        w, parts = team.w, flat(loop.dims)
        start = f"(int)(blockIdx.x * {threads} + threadIdx.x)"
        start = f"blockIdx.x * {threads}ll + threadIdx.x" if w.wide else start
        with team.over(parts.dims, start, f"(int)gridDim.x * {threads}"):
            team.loop(replace(loop, dims=parts.rest, accs=()), loop.body)

    def finish(self, held: Sequence[tuple[Acc, str]], count: int) -> Step:
        """The partial states of blocks joined in order, by one block."""
        with self.function("finish", TEAM, (), "partial results joined") as (w, launches):
            team = Team(w, self.job.name, TEAM, "0", 1)
            accs = [a for a, _ in held]
            team.declare(accs)
            n = w.names.fresh("n")
            with w.block(f"for (int {n} = threadIdx.x; {n} < {count}; {n} += {TEAM})"):
                for acc, memory in held:
                    pointer = w.pointer(memory, state_type(acc.monoid, acc.dtype), name=f"{acc.id}.partial")
                    name = w.names(acc.id)
                    w.line(f"{name} = {w.combine(acc.monoid, acc.dtype, name, f'{pointer}[{n}]')};")
            team.join(accs)
            self.leave(w, accs)
            w.shared = team.shared
            launches.append(Launch("", grid(1), ()))
        return launches[0]

    def copies(self, loop: Loop, total: int | None) -> list[Step]:
        """A fold with array accumulators: each thread a stretch of iterations, in order, and a copy of the arrays."""
        bytes_ = 0
        for acc in loop.accs:
            number = self.job.target.number(prod(acc.shape, start=ONE))
            bytes_ += (1 << 20 if number is None else number) * state_bytes(acc.monoid, acc.dtype)
        count = max(1, min(COPIES, COPIED // max(1, bytes_), total or COPIES))
        held = [(a, self.state(a, count, ".copies")) for a in loop.accs]
        steps: list[Step] = []
        level = levels(loop)
        for number, body in enumerate(passes(loop)):
            now = [(a, m) for a, m in held if level[a.id] == number]
            steps.append(self.stretch(replace(loop, body=body, accs=tuple(a for a, _ in now)), now, count))
            steps += self.gather(now, count)
        return steps

    def stretch(self, loop: Loop, held: Sequence[tuple[Acc, str]], count: int) -> Step:
        """A thread a stretch of the iterations."""
        with self.function("copies", 32, (loop,), "a copy of the accumulators a thread") as (w, launches):
            team = Team(w, self.job.name, 32, "blockIdx.x", -(-count // 32))
            copy, each, end = (w.names.fresh(n) for n in ("copy", "each", "end"))
            w.line(f"const int {copy} = blockIdx.x * 32 + threadIdx.x;")
            w.line(f"if ({copy} >= {count}) return;")
            for acc, memory in held:
                self._copy(team, acc, memory, copy)
            parts = flat(loop.dims)
            n = _points(team, parts.dims)
            w.line(f"const {w.index} {each} = ({n} + {count - 1}) / {count};")
            w.line(f"const {w.index} {end} = lf_least<{w.index}>({n}, ({copy} + 1) * {each});")
            team.alone = True
            with team.over(parts.dims, f"{copy} * {each}", "1", end):
                team.loop(replace(loop, dims=parts.rest, accs=()), loop.body)
            for acc, memory in held:
                if not acc.shape:
                    pointer = w.pointer(memory, state_type(acc.monoid, acc.dtype), write=True, name=f"{acc.id}.copies")
                    w.line(f"{pointer}[{copy}] = {w.names(acc.id)};")
            self.memory |= {m.id: m for m in team.memory}
            launches.append(Launch("", grid(-(-count // 32)), ()))
        return launches[0]

    def _copy(self, team: Team, acc: Acc, memory: str, copy: str) -> None:
        """This thread's copy of an accumulator, at its identity."""
        w = team.w
        if not acc.shape:
            team.declare([acc])
            return
        team.accs[acc.id] = acc
        kind, start = state_type(acc.monoid, acc.dtype), w.identity(acc.monoid, acc.dtype)
        base = w.pointer(memory, kind, write=True, name=f"{acc.id}.copies")
        size = w.poly(prod(acc.shape, start=ONE))
        pointer = w.names.fresh(acc.id)
        k = w.names.fresh("k")
        w.line(f"{kind}* {pointer} = {base} + (long long){copy} * {size};")
        w.line(f"for ({w.index} {k} = 0; {k} < {size}; ++{k}) {pointer}[{k}] = {start};")
        w.places[acc.id] = Place(pointer, acc.shape, acc.dtype, raw=True, positional=MONOIDS[acc.monoid].positional)

    def gather(self, held: Sequence[tuple[Acc, str]], count: int) -> list[Step]:
        """The copies of arrays joined, a thread an element, and of scalars by a finish."""
        steps: list[Step] = []
        for acc, memory in held:
            if not acc.shape:
                continue
            self.roots[acc.id] = (acc, self.state(acc))
            size = self.job.target.poly(prod(acc.shape, start=ONE))
            with self.function("gather", TEAM, (), "copies joined") as (w, launches):
                kind = state_type(acc.monoid, acc.dtype)
                made = w.pointer(self.roots[acc.id][1], kind, write=True, name=f"{acc.id}.state")
                copies = w.pointer(memory, kind, name=f"{acc.id}.copies")
                n, copy, joined = (w.names.fresh(x) for x in ("n", "copy", "joined"))
                elements = w.poly(size)
                start, step = f"blockIdx.x * {TEAM}ll + threadIdx.x", f"gridDim.x * {TEAM}ll"
                with w.block(f"for (long long {n} = {start}; {n} < {elements}; {n} += {step})"):
                    w.line(f"{kind} {joined} = {w.identity(acc.monoid, acc.dtype)};")
                    one = w.combine(acc.monoid, acc.dtype, joined, f"{copies}[(long long){copy} * {elements} + {n}]")
                    w.line(f"for (int {copy} = 0; {copy} < {count}; ++{copy}) {joined} = {one};")
                    w.line(f"{made}[{n}] = {joined};")
                launches.append(Launch("", grid(self.least(ceil_div(size, TEAM), MOST_BLOCKS * self.device.units)), ()))
            steps.append(launches[0])
        scalars = [(a, m) for a, m in held if not a.shape]
        return [*steps, self.finish(scalars, count)] if scalars else steps

    # -- recurrences --------------------------------------------------------------------------------------------------

    def recurrence(self, loop: Loop) -> list[Step]:
        """Steps in order: in one block where each is small, else as launches."""
        scout = Team(self.writer(), self.job.name, TEAM)
        work = sum(scout.count_of(s) * max(1, scout.within(s.body)) for s in loop.body if isinstance(s, Loop))
        settled = {s.id for s in self.job.ask.env.program.sizes} | set(self.indices)
        for dim in loop.dims:
            bounds = (*dim.lo, *dim.hi, dim.step)
            if len(dim.lo) > 1 or len(dim.hi) > 1 or any(p.names - settled for p in bounds):
                return [self.alone((loop,))]
            settled.add(dim.id)
        if work <= STEP:
            return [self.alone((loop,))]
        self.indices += [d.id for d in loop.dims]
        lets = len(self.lets)
        if loop.where is not None:
            self.conditions.append(loop)
        steps = self.run(loop.body)
        if loop.where is not None:
            self.conditions.pop()
        del self.lets[lets:]
        for dim in reversed(loop.dims):
            self.indices.pop()
            low, high, step = (self.job.target.poly(p) for p in (dim.lo[0], dim.hi[0], dim.step))
            steps = [Repeat(dim.id, low, high, step, tuple(steps))]
        return steps


def _points(team: Team, dims: Sequence[Dim]) -> str:
    """The number of points of dims, as a variable."""
    w = team.w
    counts = [team._count(d, *w.extent(d.lo, d.hi)) for d in dims]
    name = w.names.fresh("points")
    w.line(f"const {w.index} {name} = {' * '.join(counts) or '1'};")
    return name


def emit(job: Job) -> Emitted | Declined:
    """The launches of a kernel, whatever it holds."""
    made = General(job)
    steps = made.run(job.kernel.body)
    return Emitted(tuple(made.kernels), tuple(steps), tuple(made.memory.values()))
