"""The scalar interpreter: one element at a time, in plain loops. Slow, short, and the judge of the vectorised one.

It shares with that one only the hulls and the plans of absorptions (`places.py`). Names are looked up in dictionaries;
a name that a fold has not computed yet is `_UNKNOWN`, and a fold runs again until all its accumulators are known.
Every buffer is whole; reading what was not written, or what is outside the window, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loopfuse.backends.reference.frame import Fault, Stray
from loopfuse.backends.reference.places import Bound, Link, Names, Plan, hull, plan, steps
from loopfuse.backends.reference.vector import Result
from loopfuse.constants import from_bits
from loopfuse.diag import CompilerError
from loopfuse.dtypes import DType
from loopfuse.ir import Acc, Affine, Const, Expr, Let, Load, Loop, Op, Program, Ref, Select, Stmt, Store
from loopfuse.numerics import Array
from loopfuse.ops import MONOIDS, NOWHERE, OPS, Monoid
from loopfuse.rewrite import walk
from loopfuse.sizes import Poly

LEAF = 8
State = tuple[Any, ...]


class _Unknown(Exception):
    """A value that this pass over a fold cannot have yet."""


_UNKNOWN = object()


@dataclass
class _Position:
    """Where a loop stands in one dim: value, place in the hull, length of the hull."""

    value: int
    place: int
    count: int


@dataclass
class _Sum:
    """What one absorbing statement gathered: terms by element and place, or for a scatter the element's value."""

    terms: dict[tuple[int, ...], dict[int, State]] = field(default_factory=dict)
    values: dict[tuple[int, ...], State] = field(default_factory=dict)


@dataclass
class _Gather:
    """An accumulator while its loop runs. `sums` are keyed by the statement."""

    acc: Acc
    home: int
    monoid: Monoid
    prefix: bool
    dtype: DType
    shape: tuple[int, ...]
    open: bool = True
    blocked: bool = False
    sums: dict[int, _Sum] = field(default_factory=dict)
    running: dict[tuple[int, ...], State] = field(default_factory=dict)


def tree(terms: Mapping[int, State], join: Callable[[State, State], State]) -> State | None:
    """The fixed tree over the terms at their places, by its definition: leaves from the left, then pairs."""
    if not terms:
        return None
    level: list[State | None] = [None] * (max(terms) // LEAF + 1)
    for place in sorted(terms):
        before = level[place // LEAF]
        level[place // LEAF] = terms[place] if before is None else join(before, terms[place])
    while len(level) > 1:
        above: list[State | None] = []
        for left in range(0, len(level), 2):
            a, b = level[left], level[left + 1] if left + 1 < len(level) else None
            above.append(b if a is None else a if b is None else join(a, b))
        level = above
    return level[0]


class _Machine:
    """The state of a run."""

    def __init__(self, program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        self.sizes = {s.id: int(sizes[s.id]) for s in program.sizes}
        self.buffers = {b.id: b for b in program.buffers}
        self.arrays: dict[str, Array] = {}
        self.written: dict[str, Array] = {}
        self.faults: dict[tuple[int, str], Fault] = {}
        self.env: dict[str, Any] = dict(self.sizes)
        self.ranges: dict[str, tuple[int, int]] = {}
        self.positions: dict[str, _Position] = {}
        self.links: list[Link] = []
        self.gathers: dict[str, _Gather] = {}
        self.finals: dict[str, Any] = {}
        self.again = False
        for b in program.buffers:
            shape = tuple(int(p.value(self.sizes)) for p in b.shape)
            given = b.role in ("in", "frozen", "param")
            self.arrays[b.id] = np.array(inputs[b.id]) if given else np.zeros(shape, dtype=b.dtype.numpy)
            self.written[b.id] = np.full(shape, given)

    # -- statements -----------------------------------------------------------------------------------------------

    def block(self, body: tuple[Stmt, ...], names: Names) -> None:
        """Run statements in order, in a scope of their own."""
        before, finals = dict(self.env), dict(self.finals)
        for stmt in body:
            if isinstance(stmt, Let):
                try:
                    self.env[stmt.id] = self.value(stmt.value)
                except _Unknown:
                    self.env[stmt.id] = _UNKNOWN
            elif isinstance(stmt, Store):
                if stmt.absorb:
                    self.absorb(stmt, names)
                elif not self.again:
                    self.store(stmt)
            else:
                self.loop(stmt, names)
            names = names.after(stmt)
        # Running values of the accumulators around are no names of this block.
        for known, outer in ((self.env, before), (self.finals, finals)):
            outer.update({name: known[name] for name in self.gathers if name in known})
        self.env, self.finals = before, finals

    def store(self, stmt: Store) -> None:
        """Write one element, unless a checked subscript is outside."""
        name = stmt.buffer
        at, outside = self.subscripts(
            name, stmt.subs, stmt.modes or (None,) * len(stmt.subs), stmt, self.arrays[name].shape
        )
        if outside is not None:
            return
        if self.written[name][at] and self.buffers[name].window is None:
            raise CompilerError("reference", f"`{name}{list(at)}` is written twice")
        self.arrays[name][at] = self.value(stmt.value)
        self.written[name][at] = True

    def loop(self, loop: Loop, names: Names) -> None:
        """Run a loop; a fold as often as its accumulators wait for each other."""
        inside, bounds = names.inside(loop)
        outer, again = dict(self.gathers), self.again
        mine = [self.gather(acc, loop) for acc in loop.accs]
        for g in mine:
            self.gathers[g.acc.id] = g
            self.forget(g.acc.id)
        self.links.append(Link(loop, bounds))
        while True:
            for g in mine:
                g.blocked, g.running = False, {}
                if g.open:
                    g.sums = {}
            self.dims(loop, bounds, inside, 0)
            ready = [g for g in mine if g.open and not g.blocked]
            for g in ready:
                self.finish(g)
            self.again = True
            if not ready or not any(g.open for g in mine):
                break
        self.again = again
        self.links.pop()
        self.gathers = outer

    def gather(self, acc: Acc, loop: Loop) -> _Gather:
        """A new accumulator of a loop. Its terms' type is that of a value absorbed."""
        values = [s.value.dtype for s in walk(loop.body) if isinstance(s, Store) and s.absorb and s.buffer == acc.id]
        shape = tuple(int(p.value(self.sizes)) for p in acc.shape)
        monoid = MONOIDS[acc.monoid]
        return _Gather(acc, len(self.links), monoid, loop.order == "prefix", values[0] if values else acc.dtype, shape)

    def forget(self, name: str) -> None:
        """Make an accumulator's name unknown."""
        self.env[name] = _UNKNOWN
        self.finals.pop(name, None)

    def dims(self, loop: Loop, bounds: tuple[Bound, ...], names: Names, depth: int) -> None:
        """Run the iterations of a loop from dim `depth` on."""
        if depth == len(bounds):
            if loop.where is None or self.value(loop.where):
                self.block(loop.body, names)
            return
        bound = bounds[depth]
        start = max(self.number(p) for p in bound.lo)
        stop = min(self.number(p) for p in bound.hi)
        first, count = (start, steps(start, stop, bound.step)) if bound.loose else hull(bound, self.ranges)
        before = {k: d.get(bound.id) for k, d in enumerate((self.env, self.ranges, self.positions))}
        for value in range(start, stop, bound.step):
            self.env[bound.id] = value
            low, high = (value, value) if loop.order == "seq" else (first, first + (count - 1) * bound.step)
            self.ranges[bound.id] = (low, high)
            self.positions[bound.id] = _Position(value, (value - first) // bound.step, count)
            self.dims(loop, bounds, names, depth + 1)
        for k, d in enumerate((self.env, self.ranges, self.positions)):
            if before[k] is None:
                d.pop(bound.id, None)
            else:
                d[bound.id] = before[k]

    # -- accumulators ---------------------------------------------------------------------------------------------

    def absorb(self, stmt: Store, names: Names) -> None:
        """Absorb one term into an accumulator of a loop around."""
        g = self.gathers[stmt.buffer]
        if not g.open:
            return
        chain = self.links[g.home :]
        how = plan(stmt, names, chain)
        found = g.sums.setdefault(id(stmt), _Sum())
        try:
            at, outside = self.subscripts(stmt.buffer, stmt.subs, stmt.modes or (None,) * len(stmt.subs), stmt, g.shape)
            value = self.value(stmt.value)
            term: State = (value, self.value(stmt.at)) if stmt.at is not None else (value,)
        except _Unknown:
            g.blocked = True
            return
        if outside is not None:
            return
        if g.prefix:
            g.running[at] = self.join(g, g.running.get(at, self.identity(g)), term)
            self.show(g, g.running)
        elif how.kept is None:
            found.values[at] = self.join(g, found.values.get(at, self.identity(g)), term)
        else:
            terms = found.terms.setdefault(at, {})
            terms[self.place(how, len(terms))] = term

    def place(self, how: Plan, performed: int) -> int:
        """The place of the present iteration in the tree of its element."""
        if how.compact:
            return performed
        place = 0
        for name in how.reduced:
            place = place * self.positions[name].count + self.positions[name].place
        return place

    def identity(self, g: _Gather) -> State:
        """What an accumulator starts at."""
        start = np.asarray(g.monoid.identity(g.dtype))
        return (start, np.asarray(NOWHERE)) if g.monoid.positional else (start,)

    def join(self, g: _Gather, a: State, b: State) -> State:
        """Two states combined, `a` earlier."""
        return g.monoid.combine(a, b, g.dtype)

    def finish(self, g: _Gather) -> None:
        """Make an accumulator's final value known."""
        g.open = False
        if g.prefix:
            self.show(g, g.running)
            return
        totals: dict[tuple[int, ...], State] = {}
        for found in g.sums.values():
            parts = dict(found.values)
            for at, terms in found.terms.items():
                part = tree(terms, lambda a, b: self.join(g, a, b))
                if part is not None:
                    parts[at] = part
            for at, part in parts.items():
                totals[at] = self.join(g, totals[at], part) if at in totals else part
        self.show(g, {at: self.join(g, self.identity(g), part) for at, part in totals.items()})

    def show(self, g: _Gather, values: Mapping[tuple[int, ...], State]) -> None:
        """Set an accumulator's name to its values, the identity where there is none."""
        start = self.identity(g)
        if not g.shape:
            self.env[g.acc.id] = np.asarray(values.get((), start)[-1])
            return
        whole = np.full(g.shape, start[-1], dtype=g.monoid.result(g.dtype).numpy)
        for at, state in values.items():
            whole[at] = state[-1]
        self.finals[g.acc.id] = whole

    # -- expressions ----------------------------------------------------------------------------------------------

    def number(self, poly: Poly) -> int:
        """A polynomial's value."""
        found = {name: self.name(name) for name in poly.names}
        return int(poly.value({name: int(v) for name, v in found.items()}))

    def name(self, name: str) -> Any:
        """A name's value."""
        found = self.env[name]
        if found is _UNKNOWN:
            raise _Unknown(name)
        return found

    def value(self, expr: Expr) -> Any:
        """An expression's value, an array without axes."""
        if isinstance(expr, Const):
            return np.asarray(from_bits(expr.bits, expr.dtype))
        if isinstance(expr, Affine):
            return np.asarray((self.number(expr.poly) + (1 << 63)) % (1 << 64) - (1 << 63), dtype=np.int64)
        if isinstance(expr, Ref):
            return self.name(expr.id)
        if isinstance(expr, Select):
            return self.value(expr.then if self.value(expr.cond) else expr.other)
        if isinstance(expr, Op):
            return OPS[expr.op].evaluate([self.value(a) for a in expr.args], expr.dtype)
        return self.load(expr)

    def load(self, node: Load) -> Any:
        """One element."""
        name = node.buffer
        if name not in self.arrays:
            if name not in self.finals:
                raise _Unknown(name)
            array = self.finals[name]
        else:
            array = self.arrays[name]
        at, outside = self.subscripts(name, node.subs, node.modes, node, array.shape)
        if outside is not None:
            fill = outside.fill
            return np.asarray(from_bits(fill.bits, fill.dtype) if fill else np.zeros((), dtype=array.dtype))
        if name in self.written and not self.written[name][at]:
            raise CompilerError("reference", f"`{name}{list(at)}` is read before it is written")
        return np.asarray(array[at])

    def subscripts(self, name: str, subs: tuple[Expr, ...], modes: tuple[Any, ...], node: Load | Store,
                   shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:  # fmt: skip
        """The element meant, and the mode of the first axis that says that it is none."""
        at: list[int] = []
        outside: list[Any] = []
        strays: list[Stray] = []
        for axis, (sub, mode, extent) in enumerate(zip(subs, modes, shape, strict=True)):
            index = int(self.value(sub))
            found = _resolve(index, extent, mode.kind if mode else None)
            if found is None and (mode is None or mode.kind not in ("constant", "checked")):
                raise CompilerError("reference", f"`{name}`: subscript {index} of {extent}")
            if found is None:
                outside.append(mode)
                strays += [Stray(axis, index, extent)] * (mode.kind == "checked")
            at.append(0 if found is None else found)
        if strays and not self.again:
            key = (id(node.span), name)
            before = self.faults.get(key) or Fault(node.span, name, 0, strays[0])
            self.faults[key] = Fault(node.span, name, before.count + 1, before.first)
        if not outside and name in self.buffers:
            self.within(name, at)
        return tuple(at), outside[0] if outside else None

    def within(self, name: str, at: list[int]) -> None:
        """Check that an element is in the buffer's window, on the axes whose indices are in scope."""
        for index, (lows, highs) in zip(at, self.buffers[name].window or (), strict=False):
            if all(n in self.env and self.env[n] is not _UNKNOWN for p in (*lows, *highs) for n in p.names):
                low, high = max(self.number(p) for p in lows), min(self.number(p) for p in highs)
                if not low <= index < high:
                    raise CompilerError("reference", f"`{name}{at}` is outside its window")


def _resolve(index: int, extent: int, mode: str | None) -> int | None:
    """The subscript that a mode makes of one, or None for no element."""
    if 0 <= index < extent:
        return index
    if extent == 0 or mode in (None, "constant", "checked"):
        return None
    if mode == "edge":
        return 0 if index < 0 else extent - 1
    if mode == "wrap":
        return index % extent
    back = range(extent - 2, 0, -1) if mode == "reflect" else range(extent - 1, -1, -1)
    path: list[int] = [*range(extent), *back]
    return path[index % len(path)]


def _kernels(program: Program) -> Iterator[tuple[float, tuple[Stmt, ...]]]:
    for number, kernel in enumerate(program.kernels):
        yield (number + 1) / len(program.kernels), kernel.body


def run_scalar(program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], *, limit: int = 1 << 30,
               progress: Callable[[float], None] | None = None) -> Result:  # fmt: skip
    """Run a program one element at a time; everything else as in `run`, to the bit. `limit` plays no part.

    Raises:
        CompilerError: the program breaks a rule of the IR.
    """
    machine = _Machine(program, inputs, sizes)
    with np.errstate(all="ignore"):
        for done, body in _kernels(program):
            try:
                machine.block(body, Names(machine.sizes))
            except _Unknown as why:
                raise CompilerError("reference", f"`{why}` is read before it is known") from None
            if progress:
                progress(done)
    outputs = {b.id: machine.arrays[b.id] for b in program.buffers if b.role == "out"}
    return Result(outputs, list(machine.faults.values()))
