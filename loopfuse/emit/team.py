"""Statements that the threads of a block execute together.

What stands in the open is executed by all threads alike, but for stores, which the first one does. A loop is
*distributed* (its iterations over the threads, each by itself) or *uniform* (all threads go through it together, and
loops inside are distributed). Accumulators are partial in each thread until the loop is over; then the block joins
them, in a fixed order, and every thread has the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from loopfuse.emit.serial import Serial, passes
from loopfuse.emit.slices import levels
from loopfuse.emit.writer import Place, Writer, state_bytes, state_type
from loopfuse.ir import Acc, Affine, Dim, Let, Loop, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import own, walk

WARP = 32
UNKNOWN = 1024  # what an unknown extent counts as
NARROW = 16  # iterations under which a loop that holds wider ones is not distributed


@dataclass(frozen=True, slots=True)
class Flat:
    """Dims as one range: those that no other of them bounds, and the rest, which stay loops."""

    dims: tuple[Dim, ...]
    rest: tuple[Dim, ...]


def flat(dims: Sequence[Dim]) -> Flat:
    """The leading dims whose bounds mention no index of the same loop."""
    ids = {d.id for d in dims}
    count = 0
    for dim in dims:
        if any(p.names & ids for p in (*dim.lo, *dim.hi, dim.step)):
            break
        count += 1
    return Flat(tuple(dims[:count]), tuple(dims[count:]))


class Team(Serial):
    """Statements by a block of `threads`; `block`, an expression, tells the blocks of a launch of `blocks` apart."""

    def __init__(self, writer: Writer, prefix: str, threads: int, block: str = "blockIdx.x", blocks: int = 1) -> None:
        super().__init__(writer, prefix, f"({block} * {threads} + threadIdx.x)", blocks * threads)
        self.threads, self.block, self.blocks = threads, block, blocks
        self.shared = 0
        self.alone = True  # whether each thread is by itself here: in a distributed loop
        self.dirty: set[str] = set()
        self.placed: set[str] = set()  # arrays of accumulators that have a place, filled with identities, before
        self.sizes: dict[str, int] = {}  # what indices count as where they bound other loops
        self._partials: int | None = None

    # -- statements ---------------------------------------------------------------------------------------------------

    def team(self, body: Sequence[Stmt]) -> None:
        """The statements, by all threads together."""
        self.alone = False
        for stmt in body:
            self._settle(stmt)
            if isinstance(stmt, Let):
                self.let(stmt)
            elif isinstance(stmt, Store):
                with self.w.block("if (threadIdx.x == 0)"):
                    self.store(stmt)
                if not stmt.absorb or self.accs[stmt.buffer].shape:
                    self.dirty.add(stmt.buffer)
            elif stmt.order == "prefix":
                self.first(stmt)
            elif stmt.order == "seq":
                self.uniform(stmt, stmt.body)
            elif stmt.accs:
                self.team_fold(stmt)
            else:
                self.spread(stmt, stmt.body)

    def _settle(self, stmt: Stmt) -> None:
        """A barrier, where what follows reads what another thread may have written."""
        if self.dirty and any(self.dirty & (own(s).names.loads | own(s).names.values) for s in walk((stmt,))):
            self.sync()

    def sync(self) -> None:
        """A barrier of the block."""
        self.w.line("lf_sync();")
        self.dirty.clear()

    def first(self, stmt: Loop) -> None:
        """A loop by the first thread alone; every thread then has its accumulators."""
        outer = [a for a in stmt.accs if not a.shape]
        self.declare(stmt.accs)
        self.alone = True
        with self.w.block("if (threadIdx.x == 0)"):
            if stmt.order == "prefix":
                self.loop(stmt, stmt.body)
            else:
                for body in passes(stmt):
                    self.loop(stmt, body)
        self.alone = False
        self.dirty |= {s.buffer for s in walk(stmt.body) if isinstance(s, Store)}
        self.sync()
        self.join(outer)

    # -- loops --------------------------------------------------------------------------------------------------------

    def uniform(self, loop: Loop, body: Sequence[Stmt]) -> None:
        """All threads go through the iterations together."""
        with ExitStack() as stack:
            for dim in loop.dims:
                stack.enter_context(self.w.block(self.header(dim), loop.span))
                self.sizes[dim.id] = self.trips(dim) // 2
            if loop.where is not None:
                stack.enter_context(self.w.block(f"if ({self.w.expr(loop.where)})"))
            self.team(body)
            if self.dirty:
                self.sync()

    def spread(self, loop: Loop, body: Sequence[Stmt]) -> None:
        """The iterations over the threads where they are many enough and do not meet; else together, or by one."""
        meets = not self.apart(loop, body)
        inner = self.within(body)
        if not meets and not (self.count_of(loop) < NARROW <= inner):
            self.distribute(loop, body)
        elif inner > 1 or any(isinstance(s, Loop) for s in body):
            self.uniform(loop, body)
        else:
            with self.w.block("if (threadIdx.x == 0)"):
                self.alone = True
                self.loop(loop, body)
                self.alone = False
            self.dirty |= {s.buffer for s in walk(body) if isinstance(s, Store)}

    def distribute(self, loop: Loop, body: Sequence[Stmt]) -> None:
        """Iteration n by thread n, n + threads, …"""
        parts = flat(loop.dims)
        self.alone = True
        with self.over(parts.dims, "threadIdx.x", str(self.threads)), ExitStack() as stack:
            for dim in parts.rest:
                stack.enter_context(self.w.block(self.header(dim)))
            if loop.where is not None:
                stack.enter_context(self.w.block(f"if ({self.w.expr(loop.where)})"))
            self.serial(body)
        self.alone = False
        self.dirty |= {
            s.buffer for s in walk(body)
            if isinstance(s, Store) and (not s.absorb or (s.buffer in self.accs and self.accs[s.buffer].shape))
        }  # fmt: skip

    @contextmanager
    def over(self, dims: Sequence[Dim], start: str, step: str, end: str = "") -> Iterator[None]:
        """A loop over the points of dims, from point `start` by `step` (up to `end`); the last dim is the fastest."""
        w = self.w
        if not dims:
            with w.block(f"if ({start} == 0)"):
                yield
            return
        lows, counts = [], []
        for dim in dims:
            low, high = w.extent(dim.lo, dim.hi)
            lows.append(low)
            counts.append(self._count(dim, low, high))
        n = w.names.fresh("n")
        total = end or " * ".join(counts)
        with w.block(f"for ({w.index} {n} = {start}; {n} < {total}; {n} += {step})"):
            rest = n
            for k in reversed(range(len(dims))):
                value = f"{rest} % {counts[k]}" if k else rest
                if dims[k].step != ONE:
                    value = f"({value}) * {w.poly(dims[k].step)}"
                text = value if lows[k] == "0" else f"{lows[k]} + {value}"
                w.line(f"const {w.index} {w.names(dims[k].id)} = {text};")
                if k:
                    rest, before = w.names.fresh("n"), rest
                    w.line(f"const {w.index} {rest} = {before} / {counts[k]};")
            yield

    def _count(self, dim: Dim, low: str, high: str) -> str:
        """The number of iterations of a dim, as a constant or a variable."""
        w = self.w
        number = self.known(dim)
        if number is not None:
            return w.poly(Poly.of(number))  # of the index type: a product of several may not fit an int
        text = high if low == "0" else f"{high} - {low}"
        if dim.step != ONE:
            text = f"({text} + {w.poly(dim.step)} - 1) / {w.poly(dim.step)}"
        name = w.names.fresh(f"{dim.id}.count")
        w.line(f"const {w.index} {name} = lf_greatest<{w.index}>(0, {text});")
        return name

    # -- folds --------------------------------------------------------------------------------------------------------

    def team_fold(self, loop: Loop) -> None:
        """A fold, in as many passes as its accumulators need."""
        self.declare(loop.accs)
        level = levels(loop)
        for number, body in enumerate(passes(loop)):
            self.spread(loop, body)
            self.join([a for a in loop.accs if level[a.id] == number and not a.shape])
        if any(a.shape for a in loop.accs):
            self.sync()

    def join(self, accs: Sequence[Acc]) -> None:
        """Partial accumulators of the threads into one state, the same in each thread."""
        if not accs:
            return
        w = self.w
        at = self.partials()
        w.comment("the block's partial results, joined")
        for acc in accs:
            kind, name = state_type(acc.monoid, acc.dtype), w.names(acc.id)
            if self.threads > WARP:
                slots = w.names.fresh(f"{acc.id}.slots")
                w.line(f"{kind}* {slots} = ({kind}*)(lf_shared + {at});")
            k = w.names.fresh("k")
            joined = w.combine(acc.monoid, acc.dtype, name, f"lf_shfl_xor({name}, {k})")
            w.line(f"for (int {k} = 16; {k} > 0; {k} >>= 1) {name} = {joined};")
            if self.threads > WARP:
                warps = self.threads // WARP
                w.line("lf_sync();")
                w.line(f"if (threadIdx.x % 32 == 0) {slots}[threadIdx.x / 32] = {name};")
                w.line("lf_sync();")
                w.line(f"{name} = {slots}[0];")
                next_ = w.combine(acc.monoid, acc.dtype, name, f"{slots}[{k}]")
                w.line(f"for (int {k} = 1; {k} < {warps}; ++{k}) {name} = {next_};")
        self.dirty.clear()

    def partials(self) -> int:
        """The offset of the room in shared memory for the partial states of the warps."""
        if self._partials is None:
            self._partials = self.take(16 * (self.threads // WARP)) if self.threads > WARP else 0
        return self._partials

    def take(self, count: int) -> int:
        """Room in shared memory, aligned to 16 bytes; its offset."""
        offset = self.shared
        self.shared += -(-count // 16) * 16
        return offset

    # -- arrays -------------------------------------------------------------------------------------------------------

    def array(self, acc: Acc) -> Place:
        """An array accumulator of the block: in shared memory where it fits, else in scratch."""
        if acc.id in self.placed:
            return self.w.places[acc.id]
        if self.alone:
            return super().array(acc)
        w, kind, count = self.w, state_type(acc.monoid, acc.dtype), self.count(acc.shape)
        name, number = w.names.fresh(acc.id), w.target.number(count)
        size = (number or 0) * state_bytes(acc.monoid, acc.dtype)
        if number is not None and self.shared + size <= w.target.device.shared // 2:
            w.line(f"{kind}* {name} = ({kind}*)(lf_shared + {self.take(size)});")
        else:
            self.scratch(acc, kind, name, count, self.block, self.blocks)
        k = w.names.fresh("k")
        w.line("lf_sync();")
        start = w.identity(acc.monoid, acc.dtype)
        w.line(
            f"for ({w.index} {k} = threadIdx.x; {k} < {w.poly(count)}; {k} += {self.threads}) {name}[{k}] = {start};"
        )
        self.sync()
        return Place(name, acc.shape, acc.dtype, raw=True, positional=MONOIDS[acc.monoid].positional)

    # -- questions ----------------------------------------------------------------------------------------------------

    def known(self, dim: Dim) -> int | None:
        """The iterations of a dim, where its bounds are numbers."""
        lows, highs = [[self.w.target.number(p) for p in side] for side in (dim.lo, dim.hi)]
        step = self.w.target.number(dim.step)
        if None in lows or None in highs or step is None:
            return None
        gap = min(n for n in highs if n is not None) - max(n for n in lows if n is not None)
        return max(0, -(-gap // step))

    def trips(self, dim: Dim) -> int:
        """About how many iterations a dim has."""
        known = self.known(dim)
        if known is not None:
            return known

        def about(poly: Poly) -> int:
            poly = self.w.target.poly(poly)
            poly = poly.subs({n: self.sizes.get(n, UNKNOWN) for n in poly.names})
            return poly.constant if poly.is_const else UNKNOWN

        return max(0, min(map(about, dim.hi)) - max(map(about, dim.lo))) // max(1, about(dim.step))

    def count_of(self, loop: Loop) -> int:
        """About how many iterations a loop has."""
        found = 1
        for dim in loop.dims:
            found *= self.trips(dim)
        return found

    def within(self, body: Sequence[Stmt]) -> int:
        """About how many iterations the longest nest in a body takes."""
        return max((self.count_of(s) * max(1, self.within(s.body)) for s in body if isinstance(s, Loop)), default=1)

    def apart(self, loop: Loop, body: Sequence[Stmt]) -> bool:
        """Whether iterations by different threads never absorb into one element of an outer array."""
        parts = flat(loop.dims)
        spread = {d.id for d in parts.dims if self.known(d) != 1}
        inner = {a.id for s in walk(body) if isinstance(s, Loop) for a in s.accs}
        for stmt in walk(body):
            if not isinstance(stmt, Store) or not stmt.absorb or stmt.buffer in inner:
                continue
            if self.accs[stmt.buffer].shape and not all(_tells(stmt, d, spread) for d in spread):
                return False
        return True


def _tells(store: Store, index: str, spread: set[str]) -> bool:
    """Whether one subscript alone tells the value of an index among those that are spread: what else moves it inside
    the loop could make two values meet."""
    for sub in store.subs:
        poly = sub.poly if isinstance(sub, Affine) else None
        if poly is not None and poly.degree(index) == 1 and poly.coefficient(index).is_const:
            rest = poly - poly.coefficient(index) * Poly.of(index)
            if rest.is_const:
                return True
    return False
