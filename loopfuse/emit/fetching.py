"""Which loads of a loop are done ahead of their use, and which by vectors; and which stores are.

A load is done ahead where it certainly happens at every iteration, or cannot fail, and where the loop does not write what
it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Literal

from loopfuse.emit.base import Job
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.prove import Facts
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import exprs, guarded, own, walk

PIECES = (16, 8, 4, 2, 1)  # bytes of a memory instruction
MOST_AHEAD = 256  # bytes that a thread loads ahead


@dataclass(frozen=True, slots=True)
class Fetch:
    """A load done ahead, at subscripts `subs`. `vector`: by pieces of `piece` bytes; `lanes`: an element a lane;
    `row`: one element, the same in every lane. `fresh`: the kernel has written what it reads."""

    load: Load
    subs: tuple[Poly, ...]
    kind: Literal["vector", "lanes", "row"]
    piece: int = 0
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """A store by vectors."""

    store: Store
    subs: tuple[Poly, ...]
    piece: int


@dataclass(frozen=True, slots=True)
class Reach:
    """An access in the loop: its offset, a polynomial over sizes and indices."""

    node: Load | Store
    buffer: Buffer
    subs: tuple[Poly, ...]
    offset: Poly


class Accesses:
    """The accesses of a loop that may be done ahead. `around`: the dims of the loops around it, `dims`: its own ones
    that are strips; `lane`: the dim whose index lanes are values of."""

    def __init__(self, job: Job, loop: Loop, around: Sequence[Dim], dims: Sequence[Dim], lane: Dim) -> None:
        self.job, self.target, self.loop, self.lane = job, job.target, loop, lane
        self.around, self.moving = tuple(around), {d.id for d in dims}
        self.known = self.moving | {d.id for d in around} | job.ask.env.sizes.keys()
        self.facts: Facts = job.ask.env.facts
        for dim in (*around, *dims):
            lows, highs = (tuple(self.target.poly(p) for p in ps) for ps in (dim.lo, dim.hi))
            self.facts = self.facts.index(dim.id, lows, highs, self.target.poly(dim.step))
        self.multiples = {s.id: s.multiple for s in job.ask.env.program.sizes}
        self.written = {s.buffer for s in walk(loop.body) if isinstance(s, Store)}
        read = set[str]().union(*(own(s).names.loads for s in walk(loop.body)))
        self.loads: list[Reach] = []
        self.stores: list[Reach] = []
        lazy = loop.where is not None
        if loop.where is not None:
            self._gather(loop.where, False)
        for stmt in loop.body:
            if not isinstance(stmt, Loop):
                for root in exprs(stmt):
                    self._gather(root, lazy)
            # A store by vectors comes after all lanes: too late for what reads it in the same iteration.
            if isinstance(stmt, Store) and not stmt.absorb and not lazy and stmt.buffer not in read:
                found = self.reach(stmt, False)
                if found is not None:
                    self.stores.append(found)

    def _gather(self, root: Expr, lazy: bool) -> None:
        known = {r.node for r in self.loads}
        for load, guard in _loads(root):
            if load in known or load.buffer in self.written:
                continue
            found = self.reach(load, lazy or guard)
            if found is not None and self.depends(found):
                self.loads.append(found)
                known.add(load)

    def reach(self, node: Load | Store, lazy: bool) -> Reach | None:
        """An access whose subscripts are polynomials and certainly inside their axes."""
        buffer = self.job.buffers.get(node.buffer)
        if buffer is None or buffer.id in self.job.ask.local or buffer.role == "param":
            return None
        subs: list[Poly] = []
        modes = node.modes or (None,) * len(node.subs)
        for sub, mode, extent in zip(node.subs, modes, buffer.shape, strict=True):
            poly = self.poly(sub)
            if poly is None or ((lazy or mode is not None) and not self.inside(poly, self.target.poly(extent))):
                return None
            subs.append(poly)
        stride, offset = ONE, ZERO
        for poly, extent in zip(reversed(subs), reversed(buffer.shape), strict=True):
            offset, stride = offset + poly * stride, stride * self.target.poly(extent)
        return Reach(node, buffer, tuple(subs), offset)

    def inside(self, poly: Poly, extent: Poly) -> bool:
        """Whether a subscript is on its axis at every iteration."""
        return self.facts.nonneg(poly) and self.facts.nonneg(extent - poly - 1)

    def poly(self, sub: Expr) -> Poly | None:
        """A subscript as a polynomial over sizes and indices, if it is one."""
        affine = self.job.ask.sketch.affine
        if isinstance(sub, Affine):
            poly = sub.poly.subs(affine) if affine else sub.poly
        elif isinstance(sub, Ref) and sub.id in affine:
            poly = affine[sub.id]
        elif isinstance(sub, Const) and sub.dtype.is_int:
            value = sub.bits
            if sub.dtype.kind == "int" and value >> (sub.dtype.bits - 1):
                value -= 1 << sub.dtype.bits
            poly = Poly.of(value)
        else:
            return None
        poly = self.target.poly(poly)
        return poly if poly.names <= self.known else None

    def depends(self, reach: Reach) -> bool:
        """Whether an access moves with the strip."""
        return bool(reach.offset.names & (self.moving | {self.lane.id}))

    # -- vectors ------------------------------------------------------------------------------------------------------

    def adjacent(self, reach: Reach) -> bool:
        """Whether the next value of the lane's index is the next element."""
        offset, index = reach.offset, self.lane.id
        hidden = {n for q in offset.quotients() for n in q.num.names | q.den.names}
        return index not in hidden and offset.degree(index) == 1 and offset.coefficient(index) == ONE

    def aligned(self, reach: Reach, lanes: int) -> int:
        """The bytes of the largest piece that a vector of `lanes` can be moved by."""
        size = reach.buffer.dtype.itemsize
        low = self.target.poly(self.lane.lo[0]) if len(self.lane.lo) == 1 else None
        if not self.adjacent(reach) or low is None:
            return 0
        start = reach.offset - Poly.of(self.lane.id) + low
        common = gcd(self.divisor(start), lanes) * size
        return next(p for p in PIECES if common % p == 0) if common else PIECES[0]

    def divisor(self, poly: Poly) -> int:
        """A number that divides a polynomial, whatever its indices are; 0 for zero."""
        found = 0
        for monomial, coefficient in poly.terms:
            factors = (self.multiples.get(a, 1) if isinstance(a, str) else 1 for a in monomial)
            found = gcd(found, coefficient * prod(factors))
        return found

    def lanes(self, extent: Poly | None) -> int:
        """How many lanes serve best: 16 bytes of the smallest elements that can be moved so.

        `extent`, where given, must be a multiple of it.
        """
        if self.lane.step != ONE or len(self.lane.lo) != 1:
            return 1
        streams = [r for r in (*self.loads, *self.stores) if self.adjacent(r)]
        whole = self.divisor(self.target.poly(extent)) if extent is not None else 0
        for count in (16, 8, 4, 2):
            wide = [r for r in streams if r.buffer.dtype.itemsize * count <= 64]
            pieces = [self.aligned(r, count) for r in wide]
            full = [p for p, r in zip(pieces, wide, strict=True) if p >= min(16, count * r.buffer.dtype.itemsize)]
            exact = any(r.buffer.dtype.itemsize * count <= 16 for r in wide)
            if whole % count == 0 and exact and len(wide) == len(streams) and 2 * len(full) > len(streams):
                return count
        return 1

    def fetches(self, lanes: int) -> list[Fetch]:
        """The loads done ahead."""
        found = []
        for reach in self.loads:
            assert isinstance(reach.node, Load)
            piece = self.aligned(reach, lanes) if lanes > 1 else 0
            if self.lane.id not in reach.offset.names:
                found.append(Fetch(reach.node, reach.subs, "row"))
            elif piece >= 4:
                fresh = reach.buffer.id in self.job.ask.sketch.written
                found.append(Fetch(reach.node, reach.subs, "vector", piece, fresh))
            else:
                found.append(Fetch(reach.node, reach.subs, "lanes" if lanes > 1 else "row"))
        return found

    def writes(self, lanes: int) -> list[Write]:
        """The stores by vectors."""
        found = []
        for reach in self.stores if lanes > 1 else ():
            assert isinstance(reach.node, Store)
            piece = self.aligned(reach, lanes)
            if piece >= 4:
                found.append(Write(reach.node, reach.subs, piece))
        return found

    def rows(self, lanes: int, most: int, bytes_: int, nodes: int) -> int:
        """How many rows a thread takes at once: about `bytes_` of each of few streams in flight, and not too much code."""
        per = [r.buffer.dtype.itemsize * (lanes if self.lane.id in r.offset.names else 1) for r in self.loads]
        streams = sum(p * 2 > max(per, default=1) for p in per)
        rows = max(1, bytes_ // max(per, default=4)) if streams < 4 else max(1, bytes_ // 2 // max(per))
        rows, ahead = min(rows, most), MOST_AHEAD * self.job.budget // 255
        while rows > 1 and (rows * sum(per) > ahead or rows * lanes * nodes > 768):
            rows //= 2
        return rows

    def held(self, lanes: int, rows: int, wide: bool) -> int:
        """The registers that hold the elements of a strip, and subscripts where those are `wide`."""
        found = rows * 2 if wide else 0
        for reach in self.loads:
            many = lanes if self.lane.id in reach.offset.names else 1
            found += rows * max(1, many * reach.buffer.dtype.itemsize // 4)
        return found


def _loads(root: Expr) -> Iterator[tuple[Load, bool]]:
    """The loads of an expression, and whether each happens only under a condition; none inside a subscript."""
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, lazy = stack.pop()
        if isinstance(node, Load):
            yield node, lazy
        stack += [(child, lazy or condition) for child, condition in reversed(list(guarded(node)))]


def size_of(body: Sequence[Stmt]) -> int:
    """The number of expression nodes in a body, loops inside counted once."""
    total, pending = 0, list(body)
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, Loop):
            pending += stmt.body
        elif isinstance(stmt, Let | Store):
            stack = list(exprs(stmt))
            while stack:
                node = stack.pop()
                total += 1
                stack += [child for child, _ in guarded(node)]
    return total
