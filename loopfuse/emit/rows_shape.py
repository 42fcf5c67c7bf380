"""What a row kernel does, taken apart: the rows, the loops over a row, and how each access lies along them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from loopfuse.emit.base import Declined, Job
from loopfuse.emit.writer import Target
from loopfuse.ir import Affine, Buffer, Dim, Expr, Let, Load, Loop, Stmt, Store
from loopfuse.sizes import ONE, ZERO, Poly, Quot
from loopfuse.walking import exprs, guarded, own, walk

Key = tuple[str, tuple[Poly, ...], "Run"]


@dataclass(frozen=True)
class Run:
    """The positions of a loop over a row: `counts` values of each dim, the last dim being the fastest. Bounds that differ
    from row to row are replaced by those that hold for every row."""

    lows: tuple[Poly, ...]
    counts: tuple[Poly, ...]
    steps: tuple[int, ...]

    @property
    def length(self) -> Poly:
        """The number of positions."""
        return prod(self.counts, start=ONE)


@dataclass(eq=False)
class Line:
    """A loop over a row. `ragged`: some positions of the run are not iterations, by a condition or by bounds that depend
    on the row."""

    loop: Loop
    run: Run
    number: int
    tight: tuple[bool, ...]

    @property
    def ragged(self) -> bool:
        """Whether not every position is an iteration."""
        return self.loop.where is not None or not all(self.tight)


@dataclass(eq=False)
class Stream:
    """An operand whose elements lie side by side along a run: an input, an output, or what one loop leaves for another.

    `subs` are its subscripts over `#0`, `#1`, … for the dims; `offset` the same in row-major order; `span` elements side
    by side (a number), `align` the bytes that every multiple of a vector is aligned to. `row`: each row has its own.
    `readers`: the loops that read it, by number; `stored`: the loop that writes it, or -1.
    """

    buffer: Buffer
    subs: tuple[Poly, ...]
    run: Run
    offset: Poly
    span: Poly
    align: int
    row: bool
    readers: set[int] = field(default_factory=set)
    stored: int = -1
    name: str = ""
    order: int = 0  # in which the operands of a row occur

    @property
    def first(self) -> int:
        """The first loop that reads it, or -1."""
        return min(self.readers, default=-1)

    @property
    def last(self) -> int:
        """The last loop that reads it, or -1."""
        return max(self.readers, default=-1)

    @property
    def whole(self) -> bool:
        """Whether the whole run lies side by side."""
        return self.span == self.run.length


@dataclass(eq=False)
class Shape:
    """The parts of a row kernel. `bands`: the loops over rows, from the outermost; `dims` theirs; `body`: of a row."""

    job: Job
    tops: tuple[Let, ...]
    bands: tuple[Loop, ...]
    dims: tuple[Dim, ...]
    body: tuple[Stmt, ...]
    lines: dict[int, Line] = field(default_factory=dict)  # by the id of the loop
    streams: dict[Key, Stream] = field(default_factory=dict)
    uniform: set[int] = field(default_factory=set)  # loops that every thread goes through by itself
    arrays: set[str] = field(default_factory=set)  # array accumulators

    @property
    def rows(self) -> Poly:
        """The number of rows."""
        return prod((self.target.poly(d.hi[0] - d.lo[0]) for d in self.dims), start=ONE)

    @property
    def target(self) -> Target:
        """What the code is made for."""
        return self.job.target

    @property
    def runs(self) -> list[Run]:
        """The runs of the loops, each once."""
        return list(dict.fromkeys(line.run for line in self.lines.values()))

    def of(self, run: Run) -> list[Stream]:
        """The streams along a run."""
        return [s for s in self.streams.values() if s.run == run]

    def find(self, access: Load | Store, line: Line) -> Stream | None:
        """The stream that an access belongs to."""
        key = self.key(access, line)
        return self.streams.get(key) if key is not None else None

    def key(self, access: Load | Store, line: Line) -> Key | None:
        """What tells the elements of an access apart from others along the run, where its subscripts are polynomials."""
        if access.buffer not in self.job.buffers:
            return None
        names = {d.id: Poly.of(f"#{n}") for n, d in enumerate(line.loop.dims)}
        shape = self.job.buffers[access.buffer].shape
        found = []
        for axis, sub in enumerate(access.subs):
            mode = access.modes[axis] if axis < len(access.modes) else None
            if not isinstance(sub, Affine):
                return None
            poly = self.target.poly(sub.poly)
            if mode is not None and not self.inside(poly, shape[axis], line):
                return None
            found.append(poly.subs(names))
        return access.buffer, tuple(found), line.run

    # -- ranges -------------------------------------------------------------------------------------------------------

    def inside(self, sub: Poly, extent: Poly, line: Line) -> bool:
        """Whether a subscript lies within an axis wherever the indices lie within the run and the rows."""
        low, high = self.reach(sub, line, False), self.reach(sub, line, True)
        if low is None or high is None:
            return False
        gap = self.target.poly(extent) - high - 1
        return low.is_const and low.constant >= 0 and gap.is_const and gap.constant >= 0

    def reach(self, poly: Poly, line: Line | None, upper: bool) -> Poly | None:
        """The greatest or least value of a polynomial over the run and the rows, where its factors are numbers."""
        spans = {d.id: (d.lo[0], d.hi[0]) for d in self.dims}
        if line is not None:
            for dim, low, count, step in zip(
                line.loop.dims, line.run.lows, line.run.counts, line.run.steps, strict=True
            ):
                spans[dim.id] = (low, low + (count - 1) * step + 1)
        poly = self.target.poly(poly)
        for name in poly.names & spans.keys():
            factor = poly.coefficient(name)
            if poly.degree(name) != 1 or not factor.is_const or any(name in q.num.names for q in poly.quotients()):
                return None
            low, high = (self.target.poly(p) for p in spans[name])
            poly = poly.subs({name: high - 1 if (factor.constant > 0) == upper else low})
        return poly


# -- parsing ----------------------------------------------------------------------------------------------------------


def parse(job: Job) -> Shape | Declined:
    """The parts of a kernel that the row schedule accepted, or why they are not what these kernels do."""
    tops = tuple(s for s in job.kernel.body if isinstance(s, Let))
    loops = [s for s in job.kernel.body if not isinstance(s, Let)]
    bands: list[Loop] = []
    while len(loops) == 1 and isinstance(loops[0], Loop) and loops[0].order == "par" and not loops[0].accs:
        if loops[0].where is not None:
            break
        bands.append(loops[0])
        loops = [s for s in loops[0].body if not isinstance(s, Let)]
    if bands and not any(isinstance(s, Loop) for s in bands[-1].body):
        bands.pop()
    if not bands:
        return Declined("there is no loop over rows")
    shape = Shape(job, tops, tuple(bands), tuple(d for b in bands for d in b.dims), bands[-1].body)
    return _rows(shape) or settled(shape)


def settled(shape: Shape, body: Sequence[Stmt] | None = None) -> Shape | Declined:
    """The shape with its loops and streams, or with those of other statements that do the same."""
    if body is not None:
        shape = Shape(shape.job, shape.tops, shape.bands, shape.dims, tuple(body))
    return _loops(shape) or _accesses(shape) or shape


def _rows(shape: Shape) -> Declined | None:
    """Rows must be a box."""
    inner = {d.id for d in shape.dims} | {s.id for b in shape.bands for s in b.body if isinstance(s, Let)}
    inner |= {s.id for s in shape.tops}
    for dim in shape.dims:
        if len(dim.lo) != 1 or len(dim.hi) != 1 or dim.step != ONE:
            return Declined(f"the rows `{dim.id}` have several bounds")
        if (dim.lo[0].names | dim.hi[0].names) & inner:
            return Declined(f"the rows `{dim.id}` have bounds that depend on others")
    return None


def _loops(shape: Shape) -> Declined | None:
    shape.arrays = {a.id for s in shape.body if isinstance(s, Loop) for a in s.accs if a.shape}
    lets = {s.id for s in (*shape.tops, *walk(b for b in shape.bands)) if isinstance(s, Let)}
    for number, stmt in enumerate(shape.body):
        if not isinstance(stmt, Loop):
            continue
        if stmt.order != "par":
            return Declined("a loop over a row runs in order")
        if any(own(s).names.loads & shape.arrays for s in walk(stmt.body)):
            if stmt.accs:
                return Declined("a fold reads the array accumulators of another")
            shape.uniform.add(id(stmt))
            continue
        line = _line(shape, stmt, number, lets)
        if isinstance(line, Declined):
            return line
        shape.lines[id(stmt)] = line
    return None if shape.lines else Declined("there is no loop over a row")


def _line(shape: Shape, loop: Loop, number: int, lets: set[str]) -> Line | Declined:
    lows, counts, steps, tight = [], [], [], []
    mine = {d.id for d in loop.dims} | lets
    rows = {d.id for d in shape.dims}
    for dim in loop.dims:
        step = shape.target.number(dim.step)
        if step is None or step < 1:
            return Declined(f"the step of `{dim.id}` is not a known number")
        if any((p.names & mine) for p in (*dim.lo, *dim.hi)):
            return Declined(f"the bounds of `{dim.id}` depend on another index of the loop, or on a value")
        exact = len(dim.lo) == len(dim.hi) == 1 and not (dim.lo[0].names | dim.hi[0].names) & rows
        if not exact and step != 1:
            return Declined(f"`{dim.id}` has a step and bounds that differ from row to row")
        low, high = _widest(shape, dim.lo, False), _widest(shape, dim.hi, True)
        if low is None or high is None:
            return Declined(f"the bounds of `{dim.id}` over all rows are not known")
        gap = high - low
        if gap.is_const:
            gap = Poly.of(max(0, gap.constant))
        lows.append(low)
        counts.append((gap + (step - 1)) // step if step != 1 else gap)
        steps.append(step)
        tight.append(exact)
    return Line(loop, Run(tuple(lows), tuple(counts), tuple(steps)), number, tuple(tight))


def _widest(shape: Shape, bounds: Sequence[Poly], upper: bool) -> Poly | None:
    """A bound that holds for every row: the tightest that is a number, else any."""
    reached = [r for r in (shape.reach(p, None, upper) for p in bounds) if r is not None]
    numbers = [r.constant for r in reached if r.is_const]
    if numbers:
        return Poly.of(min(numbers) if upper else max(numbers))
    return reached[0] if reached else None


# -- accesses ---------------------------------------------------------------------------------------------------------


def _accesses(shape: Shape) -> Declined | None:
    made = shape.job.ask.local | shape.job.ask.own
    for stmt in shape.body:
        if not isinstance(stmt, Loop):
            if own(stmt).names.loads & made:
                return Declined("what the row stores is read again outside of its loops")
            if isinstance(stmt, Store) and stmt.buffer in shape.job.ask.local:
                return Declined("a value of the whole row is kept in an array")
            continue
        if id(stmt) in shape.uniform:
            if any(own(s).names.loads & made or (isinstance(s, Store) and s.buffer in made) for s in walk((stmt,))):
                return Declined("what the row stores is read again at other places")
            continue
        why = _along(shape, shape.lines[id(stmt)], made)
        if why is not None:
            return why
    return _strided(shape)


def _along(shape: Shape, line: Line, made: frozenset[str]) -> Declined | None:
    """Find the streams of one loop: those that its condition reads, then statement by statement."""
    filtering = _under(line.loop.where, not all(line.tight)) if line.loop.where is not None else ()
    if (why := _read(shape, line, filtering, made)) is not None:
        return why
    for stmt in line.loop.body:
        reading = ((load, lazy or line.ragged) for load, lazy in _loads((stmt,)))
        if (why := _read(shape, line, reading, made)) is not None:
            return why
        if isinstance(stmt, Store) and not stmt.absorb:
            key = shape.key(stmt, line) if not line.ragged and not any(stmt.modes) else None
            stream = _stream(shape, key) if key is not None and key not in shape.streams else None
            if stream is not None and key is not None:
                stream.stored = line.number
                shape.streams[key] = stream
            elif stmt.buffer in made:
                return Declined(f"`{stmt.buffer}` is stored in a way that cannot be kept in registers")
        elif isinstance(stmt, Loop) and any(isinstance(s, Store) and s.buffer in made for s in walk(stmt.body)):
            return Declined("what the row stores in a nested loop is read again")
    return None


def _read(shape: Shape, line: Line, loads: Iterable[tuple[Load, bool]], made: frozenset[str]) -> Declined | None:
    """Find the streams of loads in a loop."""
    for load, lazy in loads:
        stream = _operand(shape, line, load, lazy, made)
        if load.buffer in made and (stream is None or stream.stored < 0):
            return Declined(f"`{load.buffer}` is read again at other places than where it was stored")
        if stream is not None:
            stream.readers.add(line.number)
    return None


def _operand(shape: Shape, line: Line, load: Load, lazy: bool, made: frozenset[str]) -> Stream | None:
    """The stream of a load, a new one where it may be done ahead: it happens at every position, or cannot fail."""
    key = shape.key(load, line)
    if key is None or key in shape.streams or load.buffer in made:
        return shape.streams.get(key) if key is not None else None
    extents = shape.job.buffers[load.buffer].shape
    subs = [s.poly for s in load.subs if isinstance(s, Affine)]
    if lazy and not all(shape.inside(s, e, line) for s, e in zip(subs, extents, strict=True)):
        return None
    stream = _stream(shape, key)
    if stream is not None:
        stream.order = len(shape.streams)
        shape.streams[key] = stream
    return stream


def _loads(body: Sequence[Stmt]) -> Iterator[tuple[Load, bool]]:
    """The loads of statements, and whether each happens only under a condition."""
    for stmt in body:
        for expr in exprs(stmt):
            yield from _under(expr, False)
    for stmt in body:
        if isinstance(stmt, Loop):
            yield from ((load, True) for load, _ in _loads(stmt.body))


def _under(expr: Expr, lazy: bool) -> Iterator[tuple[Load, bool]]:
    """The loads of an expression, and whether each happens only under a condition."""
    stack = [(expr, lazy)]
    while stack:
        node, here = stack.pop()
        if isinstance(node, Load):
            yield node, here
        stack += [(child, here or under) for child, under in guarded(node)]


def _stream(shape: Shape, key: Key) -> Stream | None:
    """The stream of accesses with a key, where elements lie side by side."""
    id, subs, run = key
    job = shape.job
    buffer = job.buffers[id]
    rows = {d.id for d in shape.dims}
    sizes = {s.id for s in job.ask.env.program.sizes}
    places = {f"#{n}" for n in range(len(run.counts))}
    names = frozenset(n for s in subs for n in s.names)
    known = rows | sizes | places
    stride, offset = ONE, ZERO
    for sub, extent in zip(reversed(subs), reversed(buffer.shape), strict=True):
        offset = offset + sub * stride
        stride = stride * job.target.poly(extent)
    if not names <= known or not buffer.shape or any(q.num.names & places for q in offset.quotients()):
        return None
    span, rest = ONE, offset
    for n in reversed(range(len(run.counts))):
        if offset.degree(f"#{n}") != 1 or offset.coefficient(f"#{n}") != span or run.steps[n] != 1:
            break
        rest = rest - Poly.of(f"#{n}") * span + run.lows[n] * span
        span = span * run.counts[n]
    if span == ONE and run.length != ONE:
        return None
    align = min(16, _power(multiple(shape, rest) * buffer.dtype.itemsize))
    return Stream(buffer, subs, run, offset, span, align, bool(names & rows))


def multiple(shape: Shape, poly: Poly) -> int:
    """A number that divides every value of a polynomial, whatever its indices are."""
    multiples = {s.id: s.multiple for s in shape.job.ask.env.program.sizes}
    found = 0
    for monomial, coefficient in shape.target.poly(poly).terms:
        for atom in monomial:
            coefficient *= 1 if isinstance(atom, Quot) else multiples.get(atom, 1)
        found = gcd(found, coefficient)
    return found or 1 << 20


def _power(number: int) -> int:
    """The greatest power of two that divides a number."""
    return number & -number


def _strided(shape: Shape) -> Declined | None:
    """Where threads side by side would read far apart, though rows side by side lie side by side, another kernel fits."""
    rows = {d.id for d in shape.dims}
    for line in shape.lines.values():
        last = line.loop.dims[-1].id
        for load in (e for s in walk(line.loop.body) for e in own(s).loads):
            buffer = shape.job.buffers.get(load.buffer)
            if buffer is None or not load.subs or not isinstance(load.subs[-1], Affine):
                continue
            inner = load.subs[-1].poly
            moving = {n for s in load.subs[:-1] if isinstance(s, Affine) for n in s.poly.names}
            if inner.names & rows and last not in inner.names and last in moving and buffer.shape[-1] != ONE:
                return Declined(f"`{load.buffer}` lies along the rows, not along the loop over a row")
    return None
