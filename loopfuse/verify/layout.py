"""A program laid out for the invariants: every statement with its place, every id with its scope, every access.

A statement has a position in textual order. A loop has two more: inside its header (where its indices are known, for
`where`) and after its end. An id is visible from `start` up to, not including, `end`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from loopfuse.dtypes import I64, DType
from loopfuse.ir import Acc, Affine, Buffer, Const, Expr, Let, Load, Loop, Mode, Program, Ref, Stmt, Store
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import own, subexprs
from loopfuse.sizes import Poly

Kind = Literal["size", "buffer", "let", "index", "acc"]


@dataclass(slots=True)
class Frame:
    """A loop that encloses statements: its positions, and the loop around it."""

    loop: Loop
    parent: Frame | None
    start: int
    end: int = 0

    def chain(self) -> list[Frame]:
        """The loops from the outermost to this one."""
        found: list[Frame] = []
        frame: Frame | None = self
        while frame is not None:
            found.append(frame)
            frame = frame.parent
        return found[::-1]


@dataclass(slots=True)
class Site:
    """A statement: its position, the innermost loop around it, its kernel's number, and for a loop its own frame.

    `nodes` are all nodes of the expressions that it evaluates, operands first.
    """

    stmt: Stmt
    position: int
    frame: Frame | None
    kernel: int
    own: Frame | None = None
    nodes: tuple[Expr, ...] = ()

    @property
    def inside(self) -> int:
        """The position at which the statement's expressions are evaluated: for a loop, that of its `where`."""
        return self.position + (self.own is not None)


@dataclass(slots=True)
class Definition:
    """An id's meaning and scope. For an accumulator `until` is the end of its loop: before it the value is partial."""

    kind: Kind
    id: str
    dtype: DType
    start: int
    end: int
    node: object
    frame: Frame | None = None
    until: int = 0
    order: int = 0

    @property
    def shape(self) -> tuple[Poly, ...]:
        """The shape of a buffer or accumulator."""
        return self.node.shape if isinstance(self.node, Buffer | Acc) else ()

    @property
    def is_array(self) -> bool:
        """Whether it is read by a load: a buffer, or an accumulator with a shape."""
        return self.kind == "buffer" or bool(self.shape)


@dataclass(slots=True)
class Access:
    """A load or a store of an element.

    `frame` is the innermost loop in which it happens (for a load in a `where`, the loop of the `where`); `polys` are
    the subscripts with polynomial lets expanded, None where a subscript is no polynomial.
    """

    buffer: str
    subs: tuple[Expr, ...]
    modes: tuple[Mode | None, ...]
    site: Site
    frame: Frame | None
    polys: tuple[Poly | None, ...]


@dataclass(slots=True)
class Layout:
    """The whole program; `everywhere` is the end of the text."""

    program: Program
    sites: list[Site] = field(default_factory=list)
    scopes: dict[str, list[Definition]] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)
    loads: dict[str, list[Access]] = field(default_factory=dict)
    stores: dict[str, list[Access]] = field(default_factory=dict)
    absorbs: dict[str, list[Site]] = field(default_factory=dict)
    affine: dict[str, Poly] = field(default_factory=dict)
    everywhere: int = 0

    def visible(self, id: str, position: int) -> Definition | None:
        """What the id means at a position, or None."""
        found = self.scopes.get(id)
        if found is None:
            return None
        at = bisect_right(self.starts[id], position) - 1
        if at >= 0 and position < found[at].end:
            return found[at]
        return None

    def expand(self, expr: Expr) -> Poly | None:
        """The expression as a polynomial in sizes, indices and opaque integer lets; None where it is none."""
        if isinstance(expr, Affine):
            poly = expr.poly
            return poly.subs(self.affine) if self.affine else poly
        if isinstance(expr, Ref):
            return self.affine.get(expr.id, Poly.of(expr.id)) if expr.dtype == I64 else None
        if isinstance(expr, Const) and expr.dtype.is_int:
            bits, width = expr.bits, expr.dtype.bits
            return Poly.of(bits - (1 << width) if expr.dtype.kind == "int" and bits >> (width - 1) else bits)
        return None


def layout(program: Program) -> Layout:
    """Lay a program out; malformed ones too."""
    made = Layout(program)
    defs: list[Definition] = [Definition("size", s.id, s.dtype, 0, 0, s) for s in program.sizes]
    defs += [Definition("buffer", b.id, b.dtype, 0, 0, b) for b in program.buffers]
    declared = len(defs)
    position = 1
    for number, kernel in enumerate(program.kernels):
        position = _block(made, defs, kernel.body, number, position)
    made.everywhere = position
    for d in defs[:declared]:
        d.end = position
    scopes: dict[str, list[Definition]] = defaultdict(list)
    for d in sorted(defs, key=lambda d: d.start):
        scopes[d.id].append(d)
    made.scopes = dict(scopes)
    made.starts = {id: [d.start for d in found] for id, found in scopes.items()}
    _accesses(made)
    return made


def _block(made: Layout, defs: list[Definition], body: tuple[Stmt, ...], kernel: int, position: int) -> int:
    """Number the statements of a kernel from `position`; the position after it."""
    stack: list[tuple[Frame | None, Iterator[Stmt], list[Definition]]] = [(None, iter(body), [])]
    while True:
        frame, rest, local = stack[-1]
        stmt = next(rest, None)
        if stmt is None:
            for d in local:
                d.end = position
            stack.pop()
            if frame is None:
                return position + 1
            frame.end = position
            position += 1
            accs = [Definition("acc", a.id, _result(a), frame.start + 1, 0, a, frame, frame.end, k)
                    for k, a in enumerate(frame.loop.accs)]  # fmt: skip
            indices = [Definition("index", d.id, I64, frame.start + 1, frame.end, d, frame) for d in frame.loop.dims]
            defs += accs + indices
            stack[-1][2].extend(accs)
            continue
        site = Site(stmt, position, frame, kernel)
        made.sites.append(site)
        if isinstance(stmt, Loop):
            site.own = inner = Frame(stmt, frame, position)
            stack.append((inner, iter(stmt.body), []))
            position += 2
            continue
        if isinstance(stmt, Let):
            definition = Definition("let", stmt.id, stmt.value.dtype, position + 1, 0, stmt, frame)
            defs.append(definition)
            local.append(definition)
            if stmt.id not in made.affine:
                poly = made.expand(stmt.value)
                if poly is not None and stmt.value.dtype == I64:
                    made.affine[stmt.id] = poly
        position += 1


def _result(acc: Acc) -> DType:
    """The type of the accumulator's final value."""
    return MONOIDS[acc.monoid].result(acc.dtype) if acc.monoid in MONOIDS else acc.dtype


def _accesses(made: Layout) -> None:
    """Collect the loads, stores and absorptions of every statement."""
    loads: dict[str, list[Access]] = defaultdict(list)
    stores: dict[str, list[Access]] = defaultdict(list)
    absorbs: dict[str, list[Site]] = defaultdict(list)
    for site in made.sites:
        stmt = site.stmt
        if isinstance(stmt, Loop):
            site.nodes = () if stmt.where is None else tuple(subexprs(stmt.where))
            found = tuple(n for n in site.nodes if isinstance(n, Load))
        else:
            site.nodes, found = own(stmt).nodes, own(stmt).loads
        for node in found:
            loads[node.buffer].append(_access(made, node.buffer, node.subs, node.modes, site))
        if isinstance(stmt, Store):
            if stmt.absorb:
                absorbs[stmt.buffer].append(site)
            else:
                modes = stmt.modes or (None,) * len(stmt.subs)
                stores[stmt.buffer].append(_access(made, stmt.buffer, stmt.subs, modes, site))
    made.loads, made.stores, made.absorbs = dict(loads), dict(stores), dict(absorbs)


def _access(made: Layout, buffer: str, subs: tuple[Expr, ...], modes: tuple[Mode | None, ...], site: Site) -> Access:
    return Access(buffer, subs, modes, site, site.own or site.frame, tuple(made.expand(sub) for sub in subs))


def site_exprs(site: Site) -> Iterator[Expr]:
    """The expressions that a statement evaluates (repairs are not evaluated where they stand)."""
    stmt = site.stmt
    if isinstance(stmt, Let):
        yield stmt.value
    elif isinstance(stmt, Store):
        yield from stmt.subs
        yield stmt.value
        if stmt.at is not None:
            yield stmt.at
    elif stmt.where is not None:
        yield stmt.where
