"""Looking through copies: a buffer that holds a copy, transposition, slice or padding of another is not loaded from.

`z[i, j] = a[j, i]` with z a temporary: where every load of z can be written as a load of a, all are. What stores z is
left to `dce`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from loopfuse.ir import Affine, Buffer, Expr, Load, Loop, Mode, Program, Stmt, Store
from loopfuse.passes.base import Remark, Steps
from loopfuse.passes.patterns import faults
from loopfuse.rewrite import Mapper, nodes
from loopfuse.sizes import Poly


@dataclass(frozen=True, slots=True)
class Copy:
    """A buffer whose element at `offsets[k] + index` is what `load` reads; `axes` maps an index to its axis there.

    `fixed` holds the axes that no index moves along, since their extent is one.
    """

    target: Buffer
    load: Load
    axes: dict[str, int]
    offsets: dict[str, Poly]

    def through(self, load: Load, extents: dict[str, tuple[Poly, ...]]) -> Load | None:
        """What a load of the target reads, as a load of the source; None where the two do not compose."""
        places: dict[str, Poly | None] = {}
        for index, axis in self.axes.items():
            sub = load.subs[axis]
            places[index] = sub.poly - self.offsets[index] if isinstance(sub, Affine) else None
        subs: list[Expr] = []
        modes: list[Mode | None] = []
        carried: set[int] = set()
        for axis, (sub, mode) in enumerate(zip(self.load.subs, self.load.modes, strict=True)):
            if not isinstance(sub, Affine):
                return None
            moved = sub.poly.names & self.axes.keys()
            alone = sub.poly.name
            if alone in self.axes and not self.offsets[alone].terms:
                place = self.axes[alone]
                given = load.modes[place]
                if given is not None:
                    same = extents[load.buffer][place] == extents[self.load.buffer][axis]
                    if mode is not None or not same or place in carried or given.kind == "checked":
                        return None
                    carried.add(place)
                    mode = given
                subs.append(load.subs[place])
            else:
                known = {name: p for name in moved if (p := places[name]) is not None}
                if len(known) < len(moved):
                    return None
                subs.append(Affine(sub.poly.subs(known), span=load.span))
            modes.append(mode)
        fills = {m.fill for m in modes if m is not None and m.kind == "constant"}
        lost = any(m is not None and k not in carried for k, m in enumerate(load.modes))
        unread = set(range(len(load.subs))) - {
            self.axes[n] for s in self.load.subs for n in _names(s) & self.axes.keys()
        }
        if len(fills) > 1 or lost or any(faults(load.subs[k]) for k in unread):
            return None
        return replace(load, buffer=self.load.buffer, subs=tuple(subs), modes=tuple(modes))


def _names(sub: Expr) -> frozenset[str]:
    return sub.poly.names if isinstance(sub, Affine) else frozenset()


def look_through(program: Program, steps: Steps) -> tuple[Program, tuple[Remark, ...]]:
    """The program with copies looked through, and a remark for each; the same object where there are none."""
    buffers = {b.id: b for b in program.buffers}
    extents = {b.id: b.shape for b in program.buffers}
    loads: dict[str, dict[int, Load]] = {}
    for node in nodes(program):
        if isinstance(node, Load):
            loads.setdefault(node.buffer, {})[id(node)] = node
    found: dict[str, Copy] = {}
    remarks: list[Remark] = []
    for copy in _copies(program, buffers):
        while copy is not None and copy.load.buffer in found:
            load = found[copy.load.buffer].through(copy.load, extents)
            copy = replace(copy, load=load) if load is not None else None
        readers = loads.get(copy.target.id, {}).values() if copy else ()
        if copy is None or not readers or any(copy.through(load, extents) is None for load in readers):
            continue
        text = f"`{copy.target.id}` is a copy of elements of `{copy.load.buffer}`, which is read in its place"
        if steps.take(text):
            found[copy.target.id] = copy
            remarks.append(Remark(text, copy.target.span))
    if not found:
        return program, ()

    def on_expr(node: Expr) -> Expr:
        copy = found.get(node.buffer) if isinstance(node, Load) else None
        if copy is None or not isinstance(node, Load):
            return node
        made = copy.through(node, extents)
        return node if made is None else made

    return Mapper(on_expr).on_program(program), tuple(remarks)


def _copies(program: Program, buffers: dict[str, Buffer]) -> Iterator[Copy | None]:
    """The stores that fill a temporary with elements of one other buffer, in textual order."""
    counts = Counter(s.buffer for s, _ in _stores(program) if not s.absorb)
    named = {w for d in program.directives for w in re.findall(r"[\w.]+", d.text)}
    for store, around in _stores(program):
        value, target = store.value, buffers.get(store.buffer)
        if target is None or store.absorb or counts[store.buffer] > 1 or any(store.modes) or target.id in named:
            continue
        source = buffers.get(value.buffer) if isinstance(value, Load) else None
        if not isinstance(value, Load) or source is None or source.id == target.id:
            continue
        plain = target.role == "temp" and target.scope == source.scope == "device"
        if not plain or target.window is not None or source.window is not None:
            continue
        if target.range is not None and target.range != source.range:
            continue
        if any(loop.order != "par" or loop.where is not None for loop in around):
            continue
        copy = _copy(program, target, store, value, around)
        if copy is not None:
            yield copy


def _copy(program: Program, target: Buffer, store: Store, value: Load, around: tuple[Loop, ...]) -> Copy | None:
    """The copy that a store makes, where each index moves along one axis of the target with step one."""
    indices = {d.id for loop in around for d in loop.dims}
    known = indices | {s.id for s in program.sizes}
    axes: dict[str, int] = {}
    offsets: dict[str, Poly] = {}
    for axis, sub in enumerate(store.subs):
        if not isinstance(sub, Affine):
            return None
        moving = sub.poly.names & indices
        if not moving:
            continue
        (name, *more) = sorted(moving)
        offset = sub.poly - Poly.of(name)
        if more or name in axes or name in offset.names:
            return None
        axes[name], offsets[name] = axis, offset
    if axes.keys() != indices or not all(isinstance(s, Affine) and s.poly.names <= known for s in value.subs):
        return None
    if any(m is not None and m.kind == "checked" for m in value.modes):
        return None
    return Copy(target, value, axes, offsets)


def _stores(program: Program) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
    """Every store, with the loops around it."""

    def inside(body: tuple[Stmt, ...], around: tuple[Loop, ...]) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
        for stmt in body:
            if isinstance(stmt, Loop):
                yield from inside(stmt.body, (*around, stmt))
            elif isinstance(stmt, Store):
                yield stmt, around

    for kernel in program.kernels:
        yield from inside(kernel.body, ())
