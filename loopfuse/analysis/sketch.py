"""A kernel in numbers: its loops with their trips, its accesses with their maps, and what is live.

Sizes have numbers here (those of the caller, or stand-ins): a sketch serves costs and limits, never legality, but for
the structure (which loop is in which, what an access depends on), which holds for every size. Bounds that follow an
outer index are taken at that index's middle, so that the trips of a triangle are right on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod

from loopfuse.analysis.env import Env
from loopfuse.analysis.summary import NONE, Summary, Work, summary
from loopfuse.diag import Span
from loopfuse.dtypes import I64, DType
from loopfuse.ir import Acc, Affine, Buffer, Const, Dim, Expr, Kernel, Let, Loop, Mode, Ref, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import exprs
from loopfuse.sizes import Poly, Quot

TILE = 32  # a plan's size that nobody has chosen yet


class Numbers(dict[str, int]):
    """Numbers of sizes and of the middles of indices; what has none (a plan's size, a value read) counts as `TILE`."""

    def __missing__(self, key: str) -> int:
        return TILE


@dataclass(eq=False, slots=True)
class Level:
    """A loop in its place (`loop` None: the kernel itself), from position `start` to `end` in textual order.

    `trips`: of its own dims, `extents`: of all indices in scope, `lows`: where they start. `times`: how often the
    body runs. `follows`: the outer indices in an index's bounds; `spans`: how far it goes over all values of those.
    """

    loop: Loop | None
    parent: Level | None
    start: int
    trips: dict[str, int] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    lows: dict[str, int] = field(default_factory=dict)
    spans: dict[str, int] = field(default_factory=dict)
    follows: dict[str, frozenset[str]] = field(default_factory=dict)
    times: int = 1
    depth: int = 0
    end: int = 0
    children: list[Level] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """`par`, `fold`, `seq`, `prefix`, or `kernel`."""
        if self.loop is None:
            return "kernel"
        return "fold" if self.loop.order == "par" and self.loop.accs else self.loop.order

    @property
    def accs(self) -> tuple[Acc, ...]:
        """The loop's accumulators."""
        return self.loop.accs if self.loop else ()

    @property
    def body(self) -> tuple[Stmt, ...]:
        """The statements of the loop's body; of the kernel none."""
        return self.loop.body if self.loop else ()

    @property
    def size(self) -> int:
        """The trips of all its dims."""
        return prod(self.trips.values())

    def chain(self) -> list[Level]:
        """The loops from the outermost to this one, without the kernel."""
        found: list[Level] = []
        level: Level | None = self
        while level is not None and level.loop is not None:
            found.append(level)
            level = level.parent
        return found[::-1]

    def within(self, other: Level) -> bool:
        """Whether this is `other` or lies in it."""
        return other.start <= self.start and self.end <= other.end

    def below(self) -> Iterator[Level]:
        """All loops in this one."""
        for child in self.children:
            yield child
            yield from child.below()


@dataclass(frozen=True, slots=True)
class Axis:
    """One subscript in numbers: the factors of the indices, the constant, and whether it is exact.

    `loose`: a computed subscript or a quotient, of which only the indices that it depends on are known.
    """

    factors: tuple[tuple[str, float], ...]
    const: int
    loose: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """A load or a store. `polys`: subscripts with polynomial lets expanded (None: computed).

    `indices`: all indices that the subscripts depend on, `times` how often it happens.
    """

    buffer: str
    store: bool
    level: Level
    polys: tuple[Poly | None, ...]
    axes: tuple[Axis, ...]
    modes: tuple[Mode | None, ...]
    indices: frozenset[str]
    dtype: DType
    position: int
    span: Span | None

    @property
    def gathered(self) -> bool:
        """Whether a subscript is computed."""
        return any(p is None for p in self.polys)


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """An absorption: the accumulator, its loop, where it stands and what it absorbs."""

    store: Store
    acc: Acc
    owner: Level
    level: Level
    position: int
    indices: frozenset[str]


@dataclass
class Sketch:
    """A kernel in numbers. `deps`: the indices that each let and accumulator depends on; `lives`: intervals.

    A load that occurs several times in one loop's body stands once in `loads`. `unions` is what `footprint.union` found.
    """

    kernel: Kernel
    buffers: Mapping[str, Buffer]
    numbers: Numbers
    root: Level
    levels: list[Level] = field(default_factory=list)
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    accs: dict[str, Level] = field(default_factory=dict)
    lets: dict[str, tuple[Expr, Level]] = field(default_factory=dict)
    deps: dict[str, frozenset[str]] = field(default_factory=dict)
    affine: dict[str, Poly] = field(default_factory=dict)
    places: dict[int, Level] = field(default_factory=dict)
    work: list[tuple[frozenset[str], Level, Work]] = field(default_factory=list)
    lives: dict[str, list[int]] = field(default_factory=dict)
    widths: list[tuple[int, int]] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unions: dict[object, tuple[int, list[Access]]] = field(default_factory=dict)
    end: int = 0

    @cached_property
    def written(self) -> frozenset[str]:
        """Buffers that the kernel stores to."""
        return frozenset(a.buffer for a in self.stores)

    @cached_property
    def read(self) -> frozenset[str]:
        """Buffers that it loads from."""
        return frozenset(a.buffer for a in self.loads)

    @cached_property
    def total(self) -> Work:
        """All the work, an operation done once for each value of the indices that it depends on."""
        found = NONE
        for needs, level, work in self.work:
            every = needs.union(*(level.follows[i] for i in needs if i in level.follows)) if level.follows else needs
            found += work * prod(n for i, n in level.extents.items() if i in every)
        return found

    def value(self, poly: Poly) -> int:
        """The number that a polynomial stands for."""
        return int(poly.value(self.numbers))

    def elements(self, buffer: str) -> int:
        """The number of elements of a buffer."""
        return prod(self.shape(buffer))

    def shape(self, buffer: str) -> tuple[int, ...]:
        """A buffer's shape in numbers, each extent at least 1."""
        found = self.shapes.get(buffer)
        if found is None:
            found = self.shapes[buffer] = tuple(max(1, self.value(p)) for p in self.buffers[buffer].shape)
        return found

    def resolve(self, names: frozenset[str], level: Level) -> frozenset[str]:
        """The indices that the names depend on, seen from a level."""
        found: frozenset[str] = names.intersection(level.extents)
        for name in names:
            theirs = self.deps.get(name)
            if theirs and not theirs <= found:
                found |= theirs
        return found

    @cached_property
    def live(self) -> int:
        """The most 32-bit values that a thread holds at once, those that are equal for all threads left out."""
        events: dict[int, int] = {}
        for name, (first, last, weight) in ((n, v) for n, v in self.lives.items()):
            if last >= first and self.deps.get(name, True):
                events[first] = events.get(first, 0) + weight
                events[last] = events.get(last, 0) - weight
        widths = dict(self.widths)
        held = most = 0
        for at in sorted(events.keys() | widths.keys()):
            most = max(most, held + widths.get(at, 0))
            held += events.get(at, 0)
            most = max(most, held)
        return most


def sketch(kernel: Kernel, buffers: Mapping[str, Buffer], env: Env, tiles: Mapping[str, int] | None = None) -> Sketch:
    """The sketch of a kernel; `tiles` are values of the plan's sizes."""
    numbers = Numbers(env.sizes)
    numbers.update({s.id: TILE for s in env.program.sizes if s.origin == "plan"})
    numbers.update(tiles or {})
    root = Level(None, None, 0)
    made = Sketch(kernel, buffers, numbers, root, [root])
    _Walk(made).run(kernel.body)
    return made


class _Walk:
    """One pass over the statements in textual order."""

    def __init__(self, made: Sketch) -> None:
        self.made = made
        self.position = 0
        self.until: dict[str, Level] = {}
        self.lasts: dict[str, int] = {}  # the last value of each index
        self.seen: set[tuple[object, ...]] = set()
        self.counted: dict[tuple[frozenset[str], int], int] = {}

    def run(self, body: tuple[Stmt, ...]) -> None:
        stack: list[tuple[Level, Iterator[Stmt]]] = [(self.made.root, iter(body))]
        while stack:
            level, rest = stack[-1]
            stmt = next(rest, None)
            self.position += 1
            if stmt is None:
                level.end = self.position
                stack.pop()
                for acc in level.accs:
                    weight = 1 if not acc.shape else 0
                    self.made.lives[acc.id] = [level.start, self.position, weight * (1 + (acc.dtype.bits > 32))]
                continue
            if isinstance(stmt, Loop):
                stack.append((self._enter(stmt, level), iter(stmt.body)))
            elif isinstance(stmt, Let):
                self._let(stmt, level)
            else:
                self._store(stmt, level)
        self.made.end = self.position
        for name, level in self.until.items():
            life = self.made.lives[name]
            life[1] = max(life[1], level.end)

    def _enter(self, loop: Loop, parent: Level) -> Level:
        made = self.made
        level = Level(loop, parent, self.position, depth=parent.depth + 1)
        level.extents, level.lows = dict(parent.extents), dict(parent.lows)
        level.spans, level.follows = dict(parent.spans), dict(parent.follows)
        for dim in loop.dims:
            lo = max(made.value(p) for p in dim.lo)
            hi = min(made.value(p) for p in dim.hi)
            step = max(1, made.value(dim.step))
            trips = max(1, -(-(hi - lo) // step))
            level.trips[dim.id] = level.extents[dim.id] = trips
            level.lows[dim.id] = lo
            middle = trips // 2 if step == 1 else (trips - 1) // 2 * step  # of tiles one that is not cut
            made.numbers[dim.id] = lo + middle
            self.lasts[dim.id] = lo + (trips - 1) * step
            level.spans[dim.id] = self._span(dim, level, trips)
        level.times = parent.times * level.size
        parent.children.append(level)
        made.levels.append(level)
        made.places[id(loop)] = level
        for acc in loop.accs:
            made.accs[acc.id] = level
            made.deps[acc.id] = frozenset()
        if loop.where is not None:
            self._expr(loop.where, level)
        return level

    def _span(self, dim: Dim, level: Level, trips: int) -> int:
        """How many values an index takes over all iterations of the loops round."""
        outer = frozenset(n for p in (*dim.lo, *dim.hi) for n in p.names if n in level.extents)
        if not outer:
            return trips
        level.follows[dim.id] = outer.union(*(level.follows.get(n, frozenset()) for n in outer))
        numbers = self.made.numbers
        least, most = Numbers(numbers), Numbers(numbers)
        for n in outer:
            least[n] = level.lows[n]
            most[n] = self.lasts[n]
        lo = max(int(p.value(least)) for p in dim.lo)
        hi = min(int(p.value(most)) for p in dim.hi)
        return max(trips, hi - lo)

    def _let(self, stmt: Let, level: Level) -> None:
        made = self.made
        made.deps[stmt.id] = self._expr(stmt.value, level)
        made.lets[stmt.id] = (stmt.value, level)
        poly = self._poly(stmt.value)
        if poly is not None:
            made.affine[stmt.id] = poly
        else:
            made.lives[stmt.id] = [self.position, 0, 1 + (stmt.value.dtype.bits > 32)]

    def _store(self, stmt: Store, level: Level) -> None:
        made = self.made
        needs: frozenset[str] = frozenset()
        for expr in exprs(stmt):
            needs |= self._expr(expr, level)
        if not stmt.absorb:
            made.stores.append(
                self._access(stmt.buffer, stmt.subs, stmt.modes, level, stmt.value.dtype, stmt.span, True)
            )
            return
        owner = made.accs[stmt.buffer]
        acc = next(a for a in owner.accs if a.id == stmt.buffer)
        outside = owner.parent.extents if owner.parent else {}
        made.deps[acc.id] |= needs & outside.keys()
        made.terms.append(Term(stmt, acc, owner, level, self.position, needs))
        work = MONOIDS[acc.monoid]
        size = Work(flops=1) if acc.dtype.is_float and acc.dtype.bits <= 32 else Work(integers=1)
        if acc.dtype.is_float and acc.dtype.bits > 32:
            size = Work(doubles=1)
        self._count(frozenset(level.extents), level, size * (3 if work.positional else 1))

    def _expr(self, expr: Expr, level: Level) -> frozenset[str]:
        """Count an expression where it stands; the indices that it depends on."""
        made = self.made
        found = summary(expr)
        needs = made.resolve(found.names, level)
        for load in found.loads:
            key = (load.buffer, load.subs, load.modes, level.start)
            if load.buffer in made.buffers and key not in self.seen:
                self.seen.add(key)
                made.loads.append(self._access(load.buffer, load.subs, load.modes, level, load.dtype, load.span, False))
        for names, work in found.groups:
            self._count(needs if names == found.names else made.resolve(names, level), level, work)
        for name in found.names:
            life = made.lives.get(name)
            if life is not None:
                life[1] = self.position
                self._extend(name, level)
        made.widths.append((self.position, found.width))
        return needs

    def _count(self, needs: frozenset[str], level: Level, work: Work) -> None:
        """Work at a level, joined with what needs the same indices there."""
        key = (needs, level.start)
        known = self.counted.get(key)
        if known is None:
            self.counted[key] = len(self.made.work)
            self.made.work.append((needs, level, work))
        else:
            self.made.work[known] = (needs, level, self.made.work[known][2] + work)

    def _extend(self, name: str, level: Level) -> None:
        """A value that is read in a loop further in lives until that loop ends."""
        home = self.made.lets[name][1] if name in self.made.lets else self.made.accs[name].parent
        at = level
        while at.parent is not home and at.parent is not None and at is not home:
            at = at.parent
        if at is not home:
            self.until[name] = at

    def _needs(self, found: Summary, level: Level) -> frozenset[str]:
        return self.made.resolve(found.names, level)

    def _poly(self, expr: Expr) -> Poly | None:
        if isinstance(expr, Affine):
            return expr.poly.subs(self.made.affine) if self.made.affine else expr.poly
        if isinstance(expr, Ref):
            return self.made.affine.get(expr.id) if expr.dtype == I64 else None
        if isinstance(expr, Const) and expr.dtype.is_int:
            bits, width = expr.bits, expr.dtype.bits
            return Poly.of(bits - (1 << width) if expr.dtype.kind == "int" and bits >> (width - 1) else bits)
        return None

    def _access(self, buffer: str, subs: tuple[Expr, ...], modes: tuple[Mode | None, ...], level: Level, dtype: DType,
                span: Span | None, store: bool) -> Access:  # fmt: skip
        polys = tuple(self._poly(sub) for sub in subs)
        axes: list[Axis] = []
        indices: frozenset[str] = frozenset()
        for sub, poly in zip(subs, polys, strict=True):
            needs = self._needs(summary(sub), level) if poly is None else self.made.resolve(poly.names, level)
            indices |= needs
            axes.append(self._axis(poly, needs, level))
        declared = self.made.buffers[buffer].dtype if buffer in self.made.buffers else dtype
        return Access(buffer, store, level, polys, tuple(axes), modes or (None,) * len(subs), indices, declared,
                      self.position, span)  # fmt: skip

    def _axis(self, poly: Poly | None, needs: frozenset[str], level: Level) -> Axis:
        if poly is None:
            return Axis(tuple((n, 1.0) for n in sorted(needs)), 0, True)
        factors: dict[str, float] = {}
        const, loose = 0, False
        for monomial, coefficient in poly.terms:
            index, rest, inner = None, float(coefficient), None
            for atom in monomial:
                if isinstance(atom, Quot):
                    if atom.num.names & level.extents.keys():
                        inner = atom
                    else:
                        rest *= self.made.value(Poly.of(atom))
                elif index is None and atom in level.extents:
                    index = atom
                else:
                    rest *= self.made.numbers[atom]
            if inner is not None:
                loose = True
                share = rest / max(1, abs(self.made.value(inner.den)))
                for name in inner.num.names & level.extents.keys():
                    factors.setdefault(name, share)
            elif index is None:
                const += ceil(rest)
            else:
                factors[index] = rest if loose else factors.get(index, 0.0) + rest
        hidden = needs - factors.keys()
        if hidden:
            loose = True
            factors.update(dict.fromkeys(hidden, 1.0))
        return Axis(tuple(factors.items()), const, loose)
