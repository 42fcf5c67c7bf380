"""Where buffers live: whole, or only the window of them that exists at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from loopfuse.backends.reference.domain import Domain, Storage
from loopfuse.backends.reference.frame import Frame, Index
from loopfuse.backends.reference.scope import Scope, spread
from loopfuse.diag import CompilerError
from loopfuse.ir import Buffer, Load, Loop, Program, Stmt, Store
from loopfuse.rewrite import own
from loopfuse.sizes import Poly

Site = tuple[int, ...]


@dataclass
class Home:
    """How a buffer is kept.

    `modulus`: for each axis the width of its window over a seq index, or 0. `host`: the kernel and the par index at
    whose loop the buffer is made anew for each box, or None. `kernels`: the first and last one that use it.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    modulus: tuple[int, ...]
    host: tuple[int, str] | None = None
    kernels: tuple[int, int] = (0, 0)


@dataclass
class Homes:
    """The homes of all buffers; `unit` are the loops (kernel and index) whose iterations have overlapping windows."""

    of: dict[str, Home] = field(default_factory=dict)
    unit: set[tuple[int, str]] = field(default_factory=set)

    @property
    def brief(self) -> frozenset[str]:
        """The buffers of which only a part exists at a time."""
        return frozenset(id for id, home in self.of.items() if home.host or any(home.modulus))


@dataclass(frozen=True)
class _Use:
    kernel: int
    site: Site
    loops: tuple[Loop, ...]


def homes(program: Program, sizes: Mapping[str, int], watch: bool) -> Homes:
    """Decide for every buffer of a program where it lives. Watched accesses need whole seq windows."""
    found = Homes()
    uses: dict[str, list[_Use]] = {b.id: [] for b in program.buffers}
    for number, kernel in enumerate(program.kernels):
        for name, use in _uses(kernel.body, number, (), ()):
            if name in uses:
                uses[name].append(use)
    for buffer in program.buffers:
        shape = tuple(int(p.value(sizes)) for p in buffer.shape)
        home = Home(buffer, shape, (0,) * len(shape))
        where = uses[buffer.id]
        if where:
            home.kernels = (min(u.kernel for u in where), max(u.kernel for u in where))
        if buffer.window is not None and buffer.role == "temp":
            _window(found, home, where, sizes, watch)
        found.of[buffer.id] = home
    return found


def _uses(body: tuple[Stmt, ...], kernel: int, site: Site, loops: tuple[Loop, ...]) -> Iterator[tuple[str, _Use]]:
    for place, stmt in enumerate(body):
        here = _Use(kernel, (*site, place), loops)
        for node in own(stmt).nodes:
            if isinstance(node, Load):
                yield node.buffer, here
        if isinstance(stmt, Store) and not stmt.absorb:
            yield stmt.buffer, here
        if isinstance(stmt, Loop):
            yield from _uses(stmt.body, kernel, (*site, place), (*loops, stmt))


def _window(found: Homes, home: Home, uses: list[_Use], sizes: Mapping[str, int], watch: bool) -> None:
    window = home.buffer.window or ()
    names = frozenset[str]().union(*(p.names for lows, highs in window for p in (*lows, *highs)))
    steps = {d.id: d.step.subs(sizes) for u in uses for loop in u.loops if loop.order != "seq" for d in loop.dims}
    serial = {d.id for u in uses for loop in u.loops if loop.order == "seq" for d in loop.dims}
    shared = _shared(uses)
    for loop in shared:
        for dim in loop.dims:
            if dim.id in names and loop.order != "seq":
                home.host = (uses[0].kernel, dim.id)
    around = {d.id for loop in shared if loop.order != "seq" for d in loop.dims}
    if home.host is None:
        around = set()
    if not watch:
        home.modulus = tuple(
            _width(lows, highs, sizes, names & serial, names & around, extent)
            for (lows, highs), extent in zip(window, home.shape, strict=True)
        )
    for name in names & around:
        if not any(_apart(name, lows, highs, steps[name], sizes) for lows, highs in window):
            found.unit.add((uses[0].kernel, name))


def _shared(uses: list[_Use]) -> tuple[Loop, ...]:
    """The loops that enclose all uses."""
    if len({u.kernel for u in uses}) != 1:
        return ()
    depth = 0
    while all(len(u.loops) > depth for u in uses) and len({u.site[: depth + 1] for u in uses}) == 1:
        depth += 1
    return uses[0].loops[:depth]


def _width(lows: tuple[Poly, ...], highs: tuple[Poly, ...], sizes: Mapping[str, int], serial: frozenset[str],
           around: frozenset[str], extent: int) -> int:  # fmt: skip
    if len(lows) != 1 or len(highs) != 1:
        return 0
    low, width = lows[0].subs(sizes), (highs[0] - lows[0]).subs(sizes)
    if not low.names & serial or low.names & around or not width.is_const:
        return 0
    return width.constant if 0 < width.constant < extent else 0


def _apart(name: str, lows: tuple[Poly, ...], highs: tuple[Poly, ...], step: Poly, sizes: Mapping[str, int]) -> bool:
    """Whether on this axis the windows of two values of an index never meet."""
    if len(lows) != 1 or lows[0].degree(name) != 1 or any(name in (q.num.names | q.den.names) for q in
                                                          lows[0].quotients()):  # fmt: skip
        return False
    reach = (lows[0].coefficient(name) * step).subs(sizes)
    widths = [(high - lows[0]).subs(sizes) for high in highs]
    return reach.is_const and any(w.is_const and w.constant <= abs(reach.constant) for w in widths)


def make(domain: Domain, home: Home, watch: bool) -> Storage:
    """The storage of a buffer that lives as long as the kernels that use it."""
    shape = tuple(m or n for m, n in zip(home.modulus, home.shape, strict=True))
    st = domain.storage(home.buffer.dtype, shape)
    _furnish(st, (0,) * len(shape), home.modulus, watch)
    return st


def _furnish(st: Storage, origin: tuple[int, ...], modulus: tuple[int, ...], watch: bool) -> None:
    st.origin, st.modulus = origin, modulus
    st.windowed = any(origin) or any(modulus)
    if watch:
        st.written = np.zeros(int(np.prod(st.shape, dtype=np.int64)), dtype=bool)


def hosting(home: Home, slot: int, scope: Scope) -> Callable[[Frame], None]:
    """A closure that makes the storage for one box of the host's loop, in whose scope it is compiled."""
    domain, watch = scope.shared.domain, scope.shared.watch
    known = {n for n, e in scope.entries.items() if isinstance(e, Index) and not e.loose}
    parts = []
    for lows, highs in home.buffer.window or ():
        lo, hi = [scope.names.fold(p) for p in lows], [scope.names.fold(p) for p in highs]
        fits = all(p.names <= known for p in (*lo, *hi))
        parts.append(([spread(p, scope) for p in lo], [spread(p, scope) for p in hi]) if fits else None)
    if len(parts) != len(home.shape):
        raise CompilerError("reference", f"the window of `{home.buffer.id}` has {len(parts)} axes")

    def furnish(f: Frame) -> None:
        origin, shape = [], []
        for part, modulus, extent in zip(parts, home.modulus, home.shape, strict=True):
            low, high = 0, modulus or extent
            if part and not modulus:
                low = max(0, *(s(f.start, f.last)[0] for s in part[0]))
                high = min(extent, *(s(f.start, f.last)[1] for s in part[1]))
            origin.append(low)
            shape.append(max(0, high - low))
        st = domain.storage(home.buffer.dtype, tuple(shape))
        _furnish(st, tuple(origin), home.modulus, watch)
        # A window is part of the array even when it is not all of it.
        st.windowed = True
        f.stores[slot] = st

    return furnish
