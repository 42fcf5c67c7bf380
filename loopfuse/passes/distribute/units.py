"""The statements of a `seq` loop as units, and the dependences between them, paired through subscripts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from loopfuse.analysis.env import Env, alone
from loopfuse.ir import Dim, Kernel, Loop, Stmt
from loopfuse.rewrite import binders, own, polys, walk
from loopfuse.sizes import Poly
from loopfuse.verify.layout import Access, Frame, Layout
from loopfuse.verify.memory import FOLLOWED


@dataclass(eq=False)
class Unit:
    """Statements of the body that stay together: they share lets or accumulators."""

    stmts: tuple[Stmt, ...]
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)

    @property
    def loop(self) -> Loop | None:
        """The `par` loop that the unit consists of, or None."""
        only = self.stmts[0] if len(self.stmts) == 1 else None
        return only if isinstance(only, Loop) and plain(only) else None

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The indices of that loop."""
        return self.loop.dims if self.loop is not None else ()

    @property
    def reads(self) -> set[str]:
        """The buffers that it loads from."""
        return {a.buffer for a in self.loads}

    @property
    def writes(self) -> set[str]:
        """The buffers that it stores to."""
        return {a.buffer for a in self.stores}

    @property
    def heavy(self) -> bool:
        """Whether it does more than a fixed number of operations an element: it folds, or runs in order."""
        return any(isinstance(s, Loop) and (s.accs or s.order != "par") for s in walk(self.stmts))


def plain(loop: Loop) -> bool:
    """Whether a loop is `par`, without accumulators and condition."""
    return loop.order == "par" and not loop.accs and loop.where is None


@dataclass(eq=False)
class Scan:
    """A kernel that is one `seq` loop, perhaps inside `par` loops, its units, and the names that all units share."""

    kernel: Kernel
    around: tuple[Loop, ...]
    loop: Loop
    units: list[Unit]
    shared: frozenset[str]

    @property
    def trip(self) -> Dim:
        """The index that runs in order."""
        return self.loop.dims[0]


@dataclass(frozen=True, slots=True)
class Dependence:
    """A load in the unit `reader` of what `writer` stores.

    `pairs`: indices of both that are equal whenever the two touch one element. `trip`: how many trips later the load
    is, None where that is not known.
    """

    writer: Unit
    reader: Unit
    pairs: tuple[tuple[str, str], ...]
    trip: int | None


def scan(kernel: Kernel, env: Env) -> Scan | None:
    """The kernel as a scan; None where it has another form."""
    around: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop) and plain(body[0]):
        around.append(body[0])
        body = body[0].body
    only = body[0] if len(body) == 1 else None
    if not isinstance(only, Loop) or only.order != "seq" or len(only.dims) != 1 or only.where is not None:
        return None
    found = Scan(kernel, tuple(around), only, [Unit(stmts) for stmts in _groups(only.body)], frozenset())
    _attach(found, alone(env, kernel), env)
    outer = {d.id for loop in around for d in loop.dims} | {only.dims[0].id}
    found.shared = frozenset(outer | {s.id for s in env.program.sizes})
    return found


def _groups(body: Sequence[Stmt]) -> Iterator[tuple[Stmt, ...]]:
    """The statements of a block in runs, each closed over the lets and accumulators that it defines."""
    last: dict[str, int] = {}
    for at, stmt in enumerate(body):
        for inner in walk((stmt,)):
            names = own(inner).names
            for name in (*names.values, *names.loads, *(n for p in polys(inner) for n in p.names)):
                last[name] = at
    start, end = 0, 0
    for at, stmt in enumerate(body):
        if at > end:
            yield tuple(body[start:at])
            start = end = at
        end = max(end, at, *(last.get(name, at) for name in binders(stmt) if not _index(stmt, name)))
    if body:
        yield tuple(body[start:])


def _index(stmt: Stmt, name: str) -> bool:
    return isinstance(stmt, Loop) and any(d.id == name for d in stmt.dims)


def _attach(found: Scan, v: Layout, env: Env) -> None:
    """Give every access to its unit."""
    owner = {id(stmt): unit for unit in found.units for stmt in unit.stmts}
    frames: dict[int, Unit] = {}
    sites: dict[int, Unit] = {}
    for site in v.sites:
        unit = owner.get(id(site.stmt)) or _inherited(site.frame, frames)
        if unit is None:
            continue
        sites[site.position] = unit
        if site.own is not None:
            frames[id(site.own)] = unit
    for accesses, stores in ((v.loads, False), (v.stores, True)):
        for buffer, many in accesses.items():
            for access in many if buffer in env.buffers else ():
                unit = sites.get(access.site.position)
                if unit is not None:
                    (unit.stores if stores else unit.loads).append(access)


def _inherited(frame: Frame | None, frames: dict[int, Unit]) -> Unit | None:
    return frames.get(id(frame)) if frame is not None else None


def dependences(found: Scan) -> list[Dependence]:
    """Every load in the loop of something that the loop stores."""
    writers: dict[str, list[tuple[Unit, Access]]] = defaultdict(list)
    for unit in found.units:
        for access in unit.stores:
            writers[access.buffer].append((unit, access))
    return [
        Dependence(writer, reader, tuple(_pairs(found, writer, store, reader, load)), _distance(found, store, load))
        for reader in found.units
        for load in reader.loads
        for writer, store in writers.get(load.buffer, ())
    ]


def _axes(store: Access, load: Access) -> Iterator[tuple[Poly, Poly]]:
    """The subscripts of both on each axis where they are polynomials, and no mode changes which element is touched."""
    for p, q, mode in zip(store.polys, load.polys, load.modes, strict=True):
        if p is not None and q is not None and (mode is None or mode.kind in FOLLOWED):
            yield p, q


def _pairs(found: Scan, writer: Unit, store: Access, reader: Unit, load: Access) -> Iterator[tuple[str, str]]:
    """Indices that are equal where both touch one element: some axis has `c*p + k` and `c*q + k`, c a number."""
    mine, theirs = {d.id for d in writer.dims}, {d.id for d in reader.dims}
    for p, q in _axes(store, load):
        for a in p.names & mine:
            factor = p.coefficient(a) if p.degree(a) == 1 else None
            if factor is None or not factor.is_const or not p.names - {a} <= found.shared:
                continue
            for b in q.names & theirs:
                if q.names - {b} <= found.shared and p.subs({a: Poly.of(b)}) == q:
                    yield a, b


def _distance(found: Scan, store: Access, load: Access) -> int | None:
    """How many trips after the store the load of the same element is, where an axis says so."""
    trip, step = found.trip.id, found.trip.step
    for p, q in _axes(store, load):
        gap = p - q
        if (
            p.names <= found.shared
            and p.degree(trip) == 1
            and p.coefficient(trip) == step == Poly.of(1)
            and gap.is_const
        ):
            return gap.constant
    return None


def carried(units: Iterable[Unit], deps: Sequence[Dependence]) -> set[int]:
    """The units (by `id`) that a value from an earlier trip reaches."""
    sources: dict[int, set[int]] = {id(u): set() for u in units}
    for d in deps:
        if id(d.reader) in sources and id(d.writer) in sources and not (d.reader is d.writer and d.trip == 0):
            sources[id(d.reader)].add(id(d.writer))
    left = set(sources)
    free = {u for u in left if not sources[u]}
    users: dict[int, list[int]] = defaultdict(list)
    for u, many in sources.items():
        for w in many:
            users[w].append(u)
    waiting = {u: len(many) for u, many in sources.items()}
    stack = list(free)
    while stack:
        u = stack.pop()
        left.discard(u)
        for user in users[u]:
            waiting[user] -= 1
            if not waiting[user]:
                stack.append(user)
    return left
