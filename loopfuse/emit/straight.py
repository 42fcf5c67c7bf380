"""Short loops inside a band as straight lines: recurrences and folds of a few steps are written out, and what a thread
stores and reads again itself is a value.

A kernel that is a band of such statements is a map like any other: its loads can be moved ahead, and in vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loopfuse.analysis.sketch import sketch
from loopfuse.constants import to_bits
from loopfuse.emit.base import Job
from loopfuse.emit.serial import passes
from loopfuse.emit.slices import prune
from loopfuse.emit.writer import HALVES
from loopfuse.ir import Acc, Affine, Const, Dim, Expr, Let, Load, Loop, Op, Ref, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import Fresh, map_expr
from loopfuse.schedule.base import Ask, band, par_chain
from loopfuse.sizes import Poly

MOST_STEPS, MOST_LINES = 64, 256  # iterations of a loop, and statements in all, that are written out


class Crooked(Exception):
    """The statements cannot be written as straight lines."""


def straightened(job: Job) -> Job | None:
    """The job with straight statements in its band; None where they are not, or too many."""
    top = band(job.ask.sketch)
    chain = par_chain(top) if top is not None else []
    loops = [level.loop for level in chain if level.loop is not None]
    if not loops:
        return None
    maker = _Straight(job)
    try:
        maker.block(loops[-1].body)
    except Crooked:
        return None
    inner: Stmt = replace(loops[-1], body=prune(maker.made, ()))  # without the last steps of what nobody reads
    for outer, old in zip(reversed([None, *loops[:-1]]), reversed(loops), strict=True):
        if outer is not None:
            inner = replace(outer, body=tuple(inner if s is old else s for s in outer.body))
    kernel = replace(job.kernel, body=tuple(inner if s is loops[0] else s for s in job.kernel.body))
    ask = Ask(kernel, job.ask.buffers, job.ask.env, job.ask.live, sketch(kernel, job.ask.buffers, job.ask.env))
    return replace(job, kernel=kernel, ask=ask)


class _Straight:
    """The statements in the making: `indices` and `refs` stand for names of the loops around, `values` for elements."""

    def __init__(self, job: Job) -> None:
        self.job, self.target, self.live = job, job.target, job.ask.live
        self.kept = job.ask.local | job.ask.own  # arrays that a thread writes and reads
        self.fresh = Fresh(job.ask.env.program)
        self.made: list[Let | Store] = []
        self.indices: dict[str, Poly] = {}
        self.refs: dict[str, Expr] = {}
        self.values: dict[tuple[str, tuple[Poly, ...]], Expr] = {}

    # -- statements ---------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[Stmt], accs: Mapping[str, Acc] | None = None) -> None:
        """Statements in order; `accs` are the accumulators that they may absorb into."""
        for stmt in body:
            if len(self.made) > MOST_LINES:
                raise Crooked
            if isinstance(stmt, Let):
                self.define(stmt.id, self.expr(stmt.value), stmt)
            elif isinstance(stmt, Loop):
                self.loop(stmt)
            elif stmt.absorb:
                self.absorb(stmt, (accs or {}).get(stmt.buffer))
            else:
                self.store(stmt)

    def define(self, id: str, value: Expr, origin: Let | Store) -> Expr:
        """A name for a value, which `id` stands for from now on."""
        if not isinstance(value, Ref | Const):
            name = self.fresh(id)
            self.made.append(Let(name, value, span=origin.span))
            value = Ref(name, value.dtype)
        self.refs[id] = value
        if isinstance(value, Ref):
            self.indices[id] = Poly.of(value.id)
        return value

    def store(self, stmt: Store) -> None:
        """A store; of an array that is read again the value is remembered, and it is written only if others read it."""
        subs, value = tuple(self.expr(s) for s in stmt.subs), self.expr(stmt.value)
        if stmt.buffer in self.kept:
            if any(m is not None for m in stmt.modes):
                raise Crooked
            value = self.define(f"{stmt.buffer}.at", value, stmt)
            self.values[stmt.buffer, self.place(subs)] = value
            if stmt.buffer in self.job.ask.local:
                return
        self.made.append(Store(stmt.buffer, subs, value, modes=stmt.modes, span=stmt.span))

    def place(self, subs: Sequence[Expr]) -> tuple[Poly, ...]:
        """Subscripts as polynomials."""
        found = []
        for sub in subs:
            if not isinstance(sub, Affine):
                raise Crooked
            found.append(self.target.poly(sub.poly))
        return tuple(found)

    def absorb(self, stmt: Store, acc: Acc | None) -> None:
        """A value into an accumulator of the loop that is written out."""
        if acc is None or stmt.at is not None or acc.shape:
            raise Crooked
        value = Op(MONOIDS[acc.monoid].op, (self.refs[acc.id], self.expr(stmt.value)), acc.dtype, span=stmt.span)
        self.define(acc.id, value, stmt)

    def loop(self, loop: Loop) -> None:
        """The iterations one after another."""
        accs = {a.id: a for a in loop.accs}
        if loop.where is not None:
            raise Crooked
        for acc in loop.accs:
            if acc.shape or MONOIDS[acc.monoid].positional or acc.dtype in HALVES:
                raise Crooked
            identity = MONOIDS[acc.monoid].identity(acc.dtype)
            self.refs[acc.id] = Const(to_bits(identity, acc.dtype), acc.dtype)
        for body in passes(loop) if loop.order == "par" and accs else [loop.body]:
            self.iterate(loop.dims, body, accs)

    def iterate(self, dims: Sequence[Dim], body: Sequence[Stmt], accs: Mapping[str, Acc]) -> None:
        """The iterations over dims, the last one fastest."""
        if not dims:
            self.block(body, accs)
            return
        for number in self.numbers(dims[0]):
            self.indices[dims[0].id] = Poly.of(number)
            self.iterate(dims[1:], body, accs)

    def numbers(self, dim: Dim) -> range:
        """The values of an index, where they are known and few."""
        lows, highs = ([self.target.number(p.subs(self.indices)) for p in ps] for ps in (dim.lo, dim.hi))
        step = self.target.number(dim.step)
        low = [n for n in lows if n is not None]
        high = [n for n in highs if n is not None]
        if len(low) < len(lows) or len(high) < len(highs) or not step:
            raise Crooked
        found = range(max(low), min(high), step)
        if len(found) > MOST_STEPS:
            raise Crooked
        return found

    # -- expressions --------------------------------------------------------------------------------------------------

    def expr(self, expr: Expr) -> Expr:
        """An expression with what names stand for."""
        return map_expr(expr, self._node)

    def _node(self, node: Expr) -> Expr:
        if isinstance(node, Affine):
            if any(isinstance(self.refs.get(n), Const) for n in node.poly.names):
                raise Crooked
            return Affine(node.poly.subs(self.indices), span=node.span)
        if isinstance(node, Ref):
            return self.refs.get(node.id, node)
        if isinstance(node, Load) and node.buffer in self.kept:
            found = self.values.get((node.buffer, self.place(node.subs)))
            if found is None or any(m is not None for m in node.modes):
                raise Crooked
            return found
        return node
