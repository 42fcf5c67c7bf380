"""Definitions on the move: what they cost, and what they look like at another place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopfuse.dtypes import BOOL
from loopfuse.ir import Affine, Const, Expr, Let, Load, Mode, Op, Ref, Select, Stmt
from loopfuse.ops import OPS
from loopfuse.rewrite import Mapper, expr_names, exprs, guarded, map_expr, subexprs
from loopfuse.sizes import ZERO, Poly
from loopfuse.verify.layout import Access, Frame

# Operations on f32 that a value may cost to be computed again: `flops` of the rows, `SPECIAL` for each special slot, 1
# for each load. A load from the first-level cache takes some 30 cycles of latency and the bandwidth of as many flops.
CHEAP = 40
SPECIAL = 4


def cost(*roots: Expr) -> int:
    """What expressions cost to compute: operations on f32, special functions weighted, and loads."""
    total = 0
    for node in subexprs(*roots):
        if isinstance(node, Op):
            row = OPS[node.op]
            total += row.flops + SPECIAL * row.special
        elif isinstance(node, Load | Select):
            total += 1
    return total


def eager(stmt: Stmt) -> set[int]:
    """The ids of the nodes that a statement evaluates whatever its conditions say."""
    found: set[int] = set()
    stack = list(exprs(stmt))
    while stack:
        node = stack.pop()
        if id(node) in found:
            continue
        found.add(id(node))
        stack += [child for child, lazy in guarded(node) if not lazy]
    return found


@dataclass(slots=True)
class Taken:
    """How a definition is moved: indices of the store in terms of the reader, and modes that go with them."""

    source: Access
    indices: dict[str, Poly]
    modes: dict[str, tuple[Mode, Poly]]
    lets: tuple[Let, ...]


# -- moving a definition ----------------------------------------------------------------------------------------------


def moved(root: Expr, taken: Taken, names: dict[str, Expr]) -> Expr:
    """An expression of the definition at the reader; `names` are the lets of the definition there."""
    if taken.modes:
        root = map_expr(root, lambda n: _with_modes(n, taken) if isinstance(n, Load) else n)
    indices = dict(taken.indices)
    for name, value in names.items():
        if isinstance(value, Affine):
            indices[name] = value.poly
        elif isinstance(value, Ref):
            indices[name] = Poly.of(value.id)
    mapper = Mapper(lambda n: names.get(n.id, n) if isinstance(n, Ref) else n, lambda p: p.subs(indices))
    return mapper.on_expr(root)


def _with_modes(load: Load, taken: Taken) -> Load:
    """A load of the definition with the modes of the reading; behind a constant one any value serves."""
    modes = list(load.modes)
    for axis, sub in enumerate(load.subs):
        for name in names_in(sub) & taken.modes.keys():
            mode, _ = taken.modes[name]
            modes[axis] = Mode("constant", Const(0, load.dtype)) if mode.kind == "constant" else mode
    return load if tuple(modes) == load.modes else replace(load, modes=tuple(modes))


def with_fill(taken: Taken, value: Expr) -> Expr:
    """The value with the fill outside the axes that a constant mode is on."""
    fill: Const | None = None
    conds: list[Expr] = []
    for name, (mode, extent) in sorted(taken.modes.items()):
        if mode.fill is not None:
            at = taken.indices[name]
            fill = mode.fill
            conds.append(Op("ge", (Affine(at), Affine(ZERO)), BOOL))
            conds.append(Op("lt", (Affine(at), Affine(extent)), BOOL))
    if fill is None:
        return value
    cond = conds[0]
    for other in conds[1:]:
        cond = Op("and", (cond, other), BOOL)
    return Select(cond, value, fill, span=value.span)


def names_in(sub: Expr) -> frozenset[str]:
    """The names of lets, accumulators, indices and arrays that expressions mention."""
    return expr_names(sub).values


# -- places -----------------------------------------------------------------------------------------------------------


def chain(frame: Frame | None) -> list[Frame]:
    """The loops around a place, outermost first; none where it has no frame."""
    return frame.chain() if frame is not None else []


def common(a: list[Frame], b: list[Frame]) -> list[Frame]:
    """The loops around both, outermost first."""
    return [x for x, y in zip(a, b, strict=False) if x is y]


def same_place(store: Access, load: Access) -> bool:
    """Whether the load reads what the store, in a block around it or in its own, has just stored."""
    if store.site.position >= load.site.position or any(store.modes) or None in store.polys:
        return False
    if store.polys != load.polys:
        return False
    around, reader = chain(store.frame), chain(load.frame)
    if len(common(around, reader)) < len(around):
        return False
    return all(f.loop.order != "prefix" for f in around)


def load_of(access: Access) -> Load:
    """The load of an access."""
    return next(
        n for n in access.site.nodes
        if isinstance(n, Load) and n.buffer == access.buffer and n.subs is access.subs and n.modes is access.modes
    )  # fmt: skip
