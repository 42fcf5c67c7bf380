"""From the typed program to the loop IR: one kernel a definition, what no root depends on left out.

`nest` places the folds of a statement, `lets` shares what is used more than once; here are the whole program, scans,
outputs, and what of the declarations is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from loopfuse.diag import CompilerError, Span
from loopfuse.frontend import typed
from loopfuse.frontend.indices import shorten
from loopfuse.frontend.lifting import World
from loopfuse.frontend.nest import Leaf, Nest
from loopfuse.ir import Affine, Buffer, Dim, Interval, Kernel, Load, Loop, Program, Role, Stmt, Store
from loopfuse.rewrite import Fresh, expr_names
from loopfuse.sizes import ONE, ZERO, Poly

HELD = ("in", "param", "frozen")


def lower(program: typed.TypedProgram, roots: Iterable[str] | None = None) -> Program:
    """The loop IR that computes the outputs, or the buffers named in `roots`.

    The buffers with role `out` are, in order, those of the outputs (or the roots). Where a root cannot be handed out
    itself (an input, a carry, a buffer listed before) it is copied to a new one: of a carry, the final value. An input
    is kept where it is read, or where nothing else that is kept tells one of the sizes in use.

    Raises `CompilerError` for a root that is no buffer.
    """
    wanted = [(o.name, o.buffer) for o in program.outputs] if roots is None else [(b, b) for b in roots]
    return shorten(_Lowering(program).run(wanted))


class _Lowering:
    """One program on its way."""

    def __init__(self, program: typed.TypedProgram) -> None:
        self.typed = program
        buffers = {b.id: b for b in program.buffers}
        bare = Program(program.name, program.sizes, (), program.buffers, ())
        self.world = World({s.id: s for s in program.sizes}, program.requires, buffers, Fresh(bare))
        self.writers: dict[str, list[tuple[Leaf, tuple[Dim, ...]]]] = defaultdict(list)
        for leaf, trips in _leaves(program.body, ()):
            self.writers[leaf.buffer].append((leaf, trips))
            self.world.fresh.used.update(_ids(leaf))
            self.world.fresh.used.update(t.id for t in trips)
        self.nests: dict[int, Nest] = {}
        self.kernels: list[Kernel] = []
        self.written: dict[str, None] = {}
        self.read: set[str] = set()

    def run(self, wanted: list[tuple[str, str]]) -> Program:
        """Lower what the roots need."""
        for _, id in wanted:
            if id not in self.world.buffers:
                raise CompilerError("lower", f"the root `{id}` is no buffer")
        self._reach(id for _, id in wanted)
        for stmt in self.typed.body:
            if isinstance(stmt, typed.Scan):
                body = self._scan(stmt)
                if body is not None:
                    self._kernel((body,), stmt.span)
            else:
                for unit, span in self._units(stmt):
                    self._kernel(unit, span)
        outs = self._outputs(wanted)
        for r in self.typed.requires:
            self.world.mentioned |= expr_names(r.cond).values
        buffers = self._buffers(outs)
        sizes = tuple(s for s in self.typed.sizes if s.origin == "shape" or s.id in self.world.mentioned)
        return Program(self.typed.name, sizes, self.typed.requires, buffers, tuple(self.kernels),
                       self.typed.directives, self.typed.numerics)  # fmt: skip

    # -- statements ---------------------------------------------------------------------------------------------------

    def _reach(self, roots: Iterable[str]) -> None:
        """Prepare every statement that the roots depend on."""
        pending = list(dict.fromkeys(roots))
        seen = set(pending)
        while pending:
            for leaf, trips in self.writers[pending.pop()]:
                nest = self.nests[id(leaf)] = Nest(self.world, leaf, trips)
                self.read.update(nest.reads)
                new = [b for b in nest.reads if b not in seen]
                seen.update(new)
                pending.extend(new)

    def _units(self, leaf: Leaf) -> list[tuple[tuple[Stmt, ...], Span | None]]:
        """A statement's units; none where nothing needs it."""
        nest = self.nests.get(id(leaf))
        if nest is None:
            return []
        units = nest.lower()
        for buffer in nest.lifted.values():
            self.written[buffer.id] = None
        self.written[leaf.buffer] = None
        return units

    def _scan(self, scan: typed.Scan) -> Loop | None:
        """The loop of a scan; None where nothing in it is needed."""
        body: list[Stmt] = []
        for stmt in scan.body:
            if isinstance(stmt, typed.Scan):
                inner = self._scan(stmt)
                body += [] if inner is None else [inner]
            else:
                body += [s for unit, _ in self._units(stmt) for s in unit]
        if not body:
            return None
        for p in (*scan.dim.lo, *scan.dim.hi, scan.dim.step):
            self.world.mentioned |= p.names
        return Loop((scan.dim,), tuple(body), "seq", span=scan.span)

    def _kernel(self, body: tuple[Stmt, ...], span: Span | None) -> None:
        self.kernels.append(Kernel(f"k{len(self.kernels) + 1}", body, span=span))

    # -- declarations -------------------------------------------------------------------------------------------------

    def _outputs(self, wanted: list[tuple[str, str]]) -> list[Buffer]:
        """The buffers to be handed out, copies made where needed."""
        outs: dict[str, Buffer] = {}
        for name, id in wanted:
            held = self.world.buffers[id]
            if held.role in HELD or held.window is not None or id in outs:
                held = self._copy(name, held)
            outs[held.id] = replace(held, role="out")
        return list(outs.values())

    def _copy(self, name: str, source: Buffer) -> Buffer:
        """A kernel that copies a buffer, of a windowed one the last element along each axis that moves."""
        fresh = self.world.fresh
        moving = [_moves(axis, extent) for axis, extent in zip(source.window or (), source.shape, strict=False)]
        moving += [False] * (len(source.shape) - len(moving))
        dims = tuple(Dim(fresh("i"), (ZERO,), (extent,), span=source.span)
                     for extent, fixed in zip(source.shape, moving, strict=True) if not fixed)  # fmt: skip
        indices = iter(dims)
        subs = tuple(Affine(extent - ONE if fixed else Poly.of(next(indices).id))
                     for extent, fixed in zip(source.shape, moving, strict=True))  # fmt: skip
        id = f"{name}.out"
        if id in fresh.used:
            id = fresh(id)
        fresh.used.add(id)
        shape = tuple(d.hi[0] for d in dims)
        target = Buffer(id, source.dtype, shape, "out", range=source.range, span=source.span)
        load = Load(source.id, subs, (None,) * len(subs), source.dtype, span=source.span)
        store: Stmt = Store(id, tuple(Affine(Poly.of(d.id)) for d in dims), load, span=source.span)
        self._kernel((Loop(dims, (store,), span=source.span) if dims else store,), source.span)
        self.read.add(source.id)
        return target

    def _buffers(self, outs: list[Buffer]) -> tuple[Buffer, ...]:
        """The buffers that are kept: inputs and params as declared, temporaries as written, outputs last."""
        table, final = self.world.buffers, {b.id for b in outs}
        temps = [_as(table[id], "temp") for id in self.written if id not in final]
        for b in (*temps, *outs):
            self.world.mentioned |= _names(b)
        inputs = [b for b in self.typed.buffers if b.role in HELD]
        kept = {b.id for b in inputs if b.id in self.read}
        for b in inputs:
            if b.id in kept:
                self.world.mentioned |= _names(b)
        telling = self._telling([b for b in inputs if b.role == "in"], kept)
        # What no access needs is a range that nothing rests on, and it may mention sizes that are nowhere else.
        held = [replace(b, range=None) if b.id in telling else b for b in inputs if b.id in kept | telling]
        for b in held:
            self.world.mentioned |= _names(b)
        return (*held, *temps, *outs)

    def _telling(self, inputs: list[Buffer], kept: set[str]) -> set[str]:
        """Unread inputs that are needed to tell a size in use: by a bare axis, or else by any that mentions it."""
        sizes = self.world.sizes
        unknown = {n for n in self.world.mentioned if n in sizes and sizes[n].origin == "shape"}
        more: set[str] = set()
        for told in (_told, _names):
            unknown = unknown.difference(*(told(b) for b in inputs if b.id in kept | more))
            for b in inputs:
                if b.id not in kept and unknown & told(b):
                    more.add(b.id)
                    unknown -= told(b)
        return more


def _as(buffer: Buffer, role: Role) -> Buffer:
    return buffer if buffer.role == role else replace(buffer, role=role)


def _moves(axis: Interval, extent: Poly) -> bool:
    """Whether a window shows only a part of an axis."""
    return axis != ((ZERO,), (extent,))


def _told(buffer: Buffer) -> set[str]:
    """The sizes that the shape of an array tells by itself."""
    return {p.name for p in buffer.shape if p.name is not None}


def _names(buffer: Buffer) -> set[str]:
    """All names in the shape, window and range of a buffer."""
    polys = list(buffer.shape)
    for low, high in (*(buffer.window or ()), *(() if buffer.range is None else (buffer.range,))):
        polys += [*low, *high]
    return {n for p in polys for n in p.names}


def _leaves(body: Iterable[typed.Stmt], trips: tuple[Dim, ...]) -> Iterator[tuple[Leaf, tuple[Dim, ...]]]:
    """The statements that are no scans, with the trips around them."""
    for stmt in body:
        if isinstance(stmt, typed.Scan):
            yield from _leaves(stmt.body, (*trips, stmt.dim))
        else:
            yield stmt, trips


def _ids(leaf: Leaf) -> Iterator[str]:
    """The ids that a statement binds."""
    folds = leaf.folds
    yield from (d.id for d in leaf.dims)
    if isinstance(leaf, typed.Prefix):
        yield from (leaf.acc, leaf.axis.id)
    elif isinstance(leaf, typed.Scatter):
        folds = (*leaf.folds, *leaf.result_folds)
        yield leaf.acc
        yield from (d.id for d in leaf.out)
    for fold in folds:
        yield fold.id
        yield from (d.id for d in fold.dims)
        yield from (name for name, _ in fold.lets)
