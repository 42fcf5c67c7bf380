"""Kernels as stages: plain `par` nests over whole arrays, each reading what earlier ones stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from loopfuse.ir import Affine, Buffer, Dim, Expr, Kernel, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.rewrite import own
from loopfuse.sizes import ONE, Poly

Axes = tuple[Poly | None, ...]


@dataclass(slots=True)
class Read:
    """A load in a stage: subscripts as polynomials (None where one is none), and the loops inside the stage around it."""

    load: Load
    polys: Axes
    inner: tuple[Dim, ...]


@dataclass
class Stage:
    """One nest: its dims over the whole array, its body, what it stores there, and what it loads.

    `tiles`: the indices and sizes of the tiles that a dim had, where the kernel was tiled before.
    """

    dims: tuple[Dim, ...]
    body: tuple[Stmt, ...]
    stores: dict[str, Axes] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    tiles: dict[str, tuple[str, Poly]] = field(default_factory=dict)
    plain: bool = True
    constant: bool = True
    loop: Loop | None = None

    @property
    def names(self) -> set[str]:
        """The indices of the dims."""
        return {d.id for d in self.dims}


def stages(kernel: Kernel, buffers: dict[str, Buffer], fixed: frozenset[str]) -> list[Stage] | None:
    """The stages of a kernel, or None where it is not made of such nests; `fixed` are the sizes with a value."""
    if len(kernel.body) != 1:
        return None
    (top,) = kernel.body
    if not isinstance(top, Loop) or not _is_par(top):
        return None
    if all(d.step == ONE for d in top.dims):
        return _plain(top, (), fixed)
    return _tiled(top, buffers, fixed)


def _is_par(loop: Loop) -> bool:
    return loop.order == "par" and not loop.accs and loop.where is None


def _plain(loop: Loop, outer: tuple[Dim, ...], fixed: frozenset[str]) -> list[Stage]:
    """The stages of a nest: where a loop holds `par` loops and nothing else, each of those is one, or several."""
    dims = (*outer, *loop.dims)
    inside = [s for s in loop.body if isinstance(s, Loop) and _is_par(s)]
    if inside and len(inside) == len(loop.body):
        return [part for inner in inside for part in _plain(inner, dims, fixed)]
    made = Stage(dims, loop.body, loop=loop)
    _look(made, fixed)
    return [made]


def _tiled(top: Loop, buffers: dict[str, Buffer], fixed: frozenset[str]) -> list[Stage] | None:
    """The stages of a kernel that is tiled already, over whole arrays again."""
    outer = {d.id: d for d in top.dims if d.step != ONE}
    common = tuple(d for d in top.dims if d.step == ONE)
    found: list[Stage] = []
    for stmt in top.body:
        if not isinstance(stmt, Loop) or not _is_par(stmt):
            return None
        parts = _plain(stmt, common, fixed)
        if len(parts) != 1:
            return None
        (part,) = parts
        whole: list[Dim] = []
        for dim in part.dims:
            bounds = _whole(dim, part, outer, buffers)
            if bounds is None:
                return None
            whole.append(bounds)
        found.append(replace(part, dims=tuple(whole)))
    return found


def _whole(dim: Dim, part: Stage, outer: dict[str, Dim], buffers: dict[str, Buffer]) -> Dim | None:
    """A dim of a tiled stage with the bounds of the array."""
    names = frozenset().union(*(p.names for p in (*dim.lo, *dim.hi)))
    if not names & outer.keys():
        return dim
    for id, tile in outer.items():
        if dim.lo == (Poly.of(id),) and set(dim.hi) == {*tile.hi, Poly.of(id) + tile.step}:
            part.tiles[dim.id] = (id, tile.step)
            return replace(dim, lo=tile.lo, hi=tile.hi)
    for name, axes in part.stores.items():
        for axis, poly in enumerate(axes):
            if poly is not None and poly.coefficient(dim.id) == ONE and poly.degree(dim.id) == 1:
                rest = poly - Poly.of(dim.id)
                return replace(dim, lo=(-rest,), hi=(buffers[name].shape[axis] - rest,))
    return None


def _look(stage: Stage, fixed: frozenset[str]) -> None:
    """Find what the stage stores and loads, and whether it is made of what can be computed twice."""
    affine: dict[str, Poly] = {}
    for stmt, inner in _walk(stage.body, ()):
        for node in own(stmt).nodes:
            if isinstance(node, Load):
                stage.reads.append(Read(node, tuple(_poly(s, affine) for s in node.subs), inner))
                if any(m is not None and m.kind == "checked" for m in node.modes):
                    stage.plain = False
        if isinstance(stmt, Let):
            poly = _poly(stmt.value, affine)
            if poly is not None:
                affine[stmt.id] = poly
        elif isinstance(stmt, Store) and not stmt.absorb:
            if inner or any(stmt.modes) or stmt.buffer in stage.stores:
                stage.plain = False
            stage.stores[stmt.buffer] = tuple(_poly(s, affine) for s in stmt.subs)
        elif isinstance(stmt, Loop):
            stage.plain = stage.plain and stmt.order == "par"
            small = all((p - q).names <= fixed for d in stmt.dims for p in d.hi for q in d.lo)
            stage.constant = stage.constant and small


def _walk(body: tuple[Stmt, ...], inner: tuple[Dim, ...]) -> Iterator[tuple[Stmt, tuple[Dim, ...]]]:
    for stmt in body:
        around = (*inner, *stmt.dims) if isinstance(stmt, Loop) else inner
        yield stmt, around
        if isinstance(stmt, Loop):
            yield from _walk(stmt.body, around)


def _poly(sub: Expr, affine: dict[str, Poly]) -> Poly | None:
    """A subscript over sizes and indices; None where a value is in it."""
    if isinstance(sub, Affine):
        return sub.poly.subs(affine)
    if isinstance(sub, Ref):
        return affine.get(sub.id)
    return None
