"""The accesses of a loop as a pair of loops sees them: subscripts as polynomials, integer lets looked through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from loopfuse.analysis.env import Env
from loopfuse.diag import Span
from loopfuse.dtypes import I64
from loopfuse.ir import Affine, Buffer, Const, Expr, Kernel, Let, Loop, Mode, Ref, Stmt, Store
from loopfuse.rewrite import Names, own, polys, walk
from loopfuse.sizes import Poly

FOLLOWED = ("constant", "checked")  # modes under which an element, if it is touched at all, is the subscript's own


@dataclass(frozen=True, slots=True)
class Access:
    """An element read or written: subscripts as polynomials (None: computed), modes, and the place in the source."""

    buffer: str
    polys: tuple[Poly | None, ...]
    modes: tuple[Mode | None, ...]
    span: Span | None

    def plain(self, axis: int) -> Poly | None:
        """The subscript of an axis, if the element that it names is the one that is touched."""
        mode = self.modes[axis]
        return self.polys[axis] if mode is None or mode.kind in FOLLOWED else None


@dataclass(frozen=True, slots=True)
class Accesses:
    """What a loop stores (absorptions left out) and loads, by buffer."""

    stores: dict[str, list[Access]]
    loads: dict[str, list[Access]]


@dataclass
class Scope:
    """What the joining of two kernels knows: the surroundings, and integer lets as polynomials.

    `joined` counts the pairs of loops that became one; `apart` are the pairs that stayed two though one
    feeds the other, with a statement that must stand between them. `windows`: the buffers whose windows
    slide along an index that has another name now. `abreast`: indices of loops that only share what they reduce over
    may be paired too.
    """

    env: Env
    affine: dict[str, Poly] = field(default_factory=dict)
    joined: int = 0
    apart: list[tuple[Loop, Loop, Stmt | None]] = field(default_factory=list)
    windows: dict[str, Buffer] = field(default_factory=dict)
    abreast: bool = False

    def learn(self, kernel: Kernel) -> None:
        """Note the integer lets of a kernel."""
        for stmt in walk(kernel.body):
            if isinstance(stmt, Let) and stmt.value.dtype == I64:
                poly = self.poly(stmt.value)
                if poly is not None:
                    self.affine[stmt.id] = poly

    def slide(self, loop: Loop, values: Mapping[str, Poly]) -> None:
        """Note that other indices stand in place of those of a loop, for the windows that mention them.

        A local buffer's window mentions any index of the loops around it: of a tile, or of a `par` loop whose every
        step has a part of its own. Windows in device memory slide along `seq` loops only, and a `par` loop that has
        such an index's name is another one.
        """
        moved = {d.id: values[d.id] for d in loop.dims if values.get(d.id, Poly.of(d.id)) != Poly.of(d.id)}
        if not moved:
            return
        found = self.accesses(loop)
        for name in dict.fromkeys((*found.stores, *found.loads)):
            old = self.windows.get(name) or self.env.buffers.get(name)
            if old is not None and old.window is not None and (old.scope == "local" or loop.order != "par"):
                sides = (tuple(tuple(p.subs(moved) for p in side) for side in axis) for axis in old.window)
                window = tuple((low, high) for low, high in sides)
                if window != old.window:
                    self.windows[name] = replace(old, window=window)

    def poly(self, expr: Expr) -> Poly | None:
        """An integer expression as a polynomial, or None."""
        if isinstance(expr, Affine):
            return expr.poly.subs(self.affine) if self.affine else expr.poly
        if isinstance(expr, Ref) and expr.dtype == I64:
            return self.affine.get(expr.id)
        if isinstance(expr, Const) and expr.dtype == I64:
            return Poly.of(expr.bits - (1 << 64) if expr.bits >> 63 else expr.bits)
        return None

    def accesses(self, loop: Loop) -> Accesses:
        """The accesses of a loop, all depths together."""
        known = self.env.accesses
        found = known.get(id(loop))
        if found is None:
            found = known[id(loop)] = (loop, self._collect(loop))
        made: Accesses = found[1]
        return made

    def _collect(self, loop: Loop) -> Accesses:
        made = Accesses({}, {})
        for stmt in (*loop.body, loop):
            part = self.accesses(stmt) if isinstance(stmt, Loop) and stmt is not loop else self._own(stmt)
            for whole, some in ((made.stores, part.stores), (made.loads, part.loads)):
                for buffer, found in some.items():
                    whole.setdefault(buffer, []).extend(found)
        return made

    def _own(self, stmt: Stmt) -> Accesses:
        """The accesses of a statement itself; statements stay what they are while the loops around them are joined."""
        known = self.env.accesses
        found = None if isinstance(stmt, Loop) else known.get(id(stmt))
        if found is not None:
            kept: Accesses = found[1]
            return kept
        made = Accesses({}, {})
        if isinstance(stmt, Store) and not stmt.absorb:
            modes = stmt.modes or (None,) * len(stmt.subs)
            self._add(made.stores, stmt.buffer, stmt.subs, modes, stmt.span)
        for node in own(stmt).loads:
            self._add(made.loads, node.buffer, node.subs, node.modes, node.span or stmt.span)
        if not isinstance(stmt, Loop):
            known[id(stmt)] = (stmt, made)
        return made

    def _add(self, into: dict[str, list[Access]], buffer: str, subs: Iterable[Expr], modes: tuple[Mode | None, ...],
             span: Span | None) -> None:  # fmt: skip
        access = Access(buffer, tuple(self.poly(s) for s in subs), modes, span)
        into.setdefault(buffer, []).append(access)

    def names(self, stmt: Stmt) -> tuple[Names, frozenset[str]]:
        """What a statement uses, and what it defines for the statements after it in its block."""
        known = self.env.named
        found = known.get(id(stmt))
        if found is None:
            found = known[id(stmt)] = (stmt, *self._names(stmt))
        return found[1], found[2]

    def _names(self, stmt: Stmt) -> tuple[Names, frozenset[str]]:
        here = own(stmt).names
        if isinstance(stmt, Let):
            return here, frozenset((stmt.id,))
        if isinstance(stmt, Store):
            target = frozenset((stmt.buffer,))
            return Names(here.values, here.loads, target), target
        values, loads, stores = set(here.values), set(here.loads), set[str]()
        inner = {d.id for d in stmt.dims} | {a.id for a in stmt.accs}
        for part in stmt.body:
            used, _ = self.names(part)
            values |= used.values
            loads |= used.loads
            stores |= used.stores
            if isinstance(part, Let):
                inner.add(part.id)
            elif isinstance(part, Loop):
                inner |= {a.id for a in part.accs}
        values -= inner
        loads -= inner
        stores -= inner
        for poly in polys(stmt):
            values |= poly.names
        values -= {d.id for d in stmt.dims}
        made = stores | {a.id for a in stmt.accs}
        return Names(frozenset(values), frozenset(loads), frozenset(stores)), frozenset(made)

    def needs(self, later: Stmt, earlier: Stmt) -> bool:
        """Whether a statement uses what an earlier one of its block defines (or both absorb into one accumulator)."""
        used, _ = self.names(later)
        _, made = self.names(earlier)
        return not made.isdisjoint(used.values | used.loads) or self._absorb_alike(used, earlier)

    def _absorb_alike(self, used: Names, earlier: Stmt) -> bool:
        shared = used.stores & self.names(earlier)[0].stores
        return any(name not in self.env.buffers for name in shared)
