"""Products in nests of their own, side by side in the loops over their rows: which of them one launch takes in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loopfuse.analysis.nests import apart
from loopfuse.analysis.sketch import Access, Level, sketch
from loopfuse.schedule.base import Ask
from loopfuse.schedule.held import COPIED
from loopfuse.schedule.plan import Plan, Refusal
from loopfuse.schedule.products import Operand, Product, loads_in
from loopfuse.schedule.tiles import Path
from loopfuse.sizes import Poly

APART = 1.001  # of their time, what nests in one kernel are said to take one by one: kernels of their own are to be preferred
Subscripts = list[tuple[Poly | None, ...]]


def nests(ask: Ask) -> list[Ask]:
    """The question of each nest by itself."""
    made = apart(ask.kernel)
    return [Ask(k, ask.buffers, ask.env, ask.live, sketch(k, ask.buffers, ask.env)) for k in made]


def one_by_one(ask: Ask, plans: Sequence[Plan | Refusal], why: str) -> Plan | None:
    """A plan of a launch for each nest, which gains nothing over kernels of their own; None where one has no plan."""
    taken = [p for p in plans if isinstance(p, Plan)]
    if not taken or len(taken) < len(plans):
        return None
    costs = [p.cost for p in taken]
    sums = ("seconds", "reads", "writes", "rereads", "flops", "matrix_flops", "special", "memory", "compute", "launch")
    summed = {name: sum(getattr(c, name) for c in costs) for name in sums}
    cost = replace(
        costs[0], **{**summed, "seconds": summed["seconds"] * APART},
        registers=max(c.registers for c in costs), shared=max(c.shared for c in costs),
        occupancy=min(c.occupancy for c in costs), in_flight=min(c.in_flight for c in costs),
    )  # fmt: skip
    first = taken[0]
    return replace(
        first, cost=cost, launches=tuple(x for p in taken for x in p.launches),
        roles={k: v for p in taken for k, v in p.roles.items()}, folds={k: v for p in taken for k, v in p.folds.items()},
        place={k: v for p in taken for k, v in p.place.items()}, workspace=sum(p.workspace for p in taken),
        guards=tuple(dict.fromkeys(g for p in taken for g in p.guards)),
        rounding=tuple(dict.fromkeys(r for p in taken for r in p.rounding)), assumed=ask.assumed,
        burden=f"each nest of products is launched by itself, for {why}", burdened="nests",
    )  # fmt: skip


def untaken(ask: Ask, products: Sequence[Product], how: Path) -> str | None:
    """Why products of several nests are not taken in turn by one launch, tile after tile, or None.

    Its tiles are of one shape, and its main loop is one: the left operand and the length of the sums are the same, and
    right operands lie alike. What follows the sums is each nest's own.
    """
    if not how.name.startswith("wgmma"):
        return "only products by warpgroups, of operands as they lie in memory, are taken in turn"
    if len(apart(ask.kernel)) != len(products):
        return "their results meet, or wait for one another"
    first = products[0]
    if any(p.riding or _folded(p) for p in products):
        return "a fold goes over the results of one of them"
    if any([p.extent((k,)) for k in p.k] != [first.extent((k,)) for k in first.k] for p in products):
        return "their sums differ in length"
    if any((p.a.dtype, p.b.dtype) != (first.a.dtype, first.b.dtype) for p in products):
        return "their operands are of different types"
    lefts = [_subscripts(ask, p, p.a) for p in products]
    if any(p.a.buffers != first.a.buffers for p in products) or any(x != lefts[0] for x in lefts):
        return "they have different left operands"
    along = [_along(ask, p, p.b) for p in products]
    if any(x != along[0] for x in along):
        return "one right operand lies along the sum, another one along the result"
    for p in products:
        why = _uncopied(ask, p, how) or _residual(ask, p)
        if why:
            return why
    return None


def _folded(p: Product) -> bool:
    """Whether a fold round the sum goes over the results."""
    return any(level.kind == "fold" and level is not p.owner for level in p.owner.chain())


def _loads(ask: Ask, p: Product, side: Operand) -> list[Access]:
    return [a for a in loads_in(ask.sketch, p.owner) if a.buffer in side.buffers]


def _subscripts(ask: Ask, p: Product, side: Operand) -> Subscripts:
    """What is read of an operand, with the indices under names that all products have."""
    groups = (("k", p.k), ("m", p.m), ("batch", p.batch))
    names = {name: Poly.of(f"{group}.{at}") for group, found in groups for at, name in enumerate(found)}
    return [tuple(None if q is None else q.subs(names) for q in a.polys) for a in _loads(ask, p, side)]


def _along(ask: Ask, p: Product, side: Operand) -> list[bool]:
    """Whether neighbours in memory follow one another along the sum."""
    lasts = [a.polys[-1] for a in _loads(ask, p, side) if a.polys]
    return [last is not None and bool(last.names & set(p.k)) for last in lasts]


def _uncopied(ask: Ask, p: Product, how: Path) -> str | None:
    """Why tiles of an operand cannot be copied."""
    for side in (p.a, p.b):
        for access, along in zip(_loads(ask, p, side), _along(ask, p, side), strict=True):
            if ask.sketch.shape(access.buffer)[-1] * ask.size(access.buffer) % COPIED:
                return f"the rows of `{access.buffer}` are no multiple of {COPIED} bytes, so that its tiles cannot be copied"
            if not along and how.item != 2:
                return f"`{access.buffer}` does not lie along the sum, as products of {8 * how.item} bits need it"
    return None


def _residual(ask: Ask, p: Product) -> str | None:
    """What is read for every element of the result."""
    nest: Level = p.owner.parent or p.owner
    for access in loads_in(ask.sketch, nest):
        mine = access.indices
        if not access.level.within(p.owner) and mine & {*p.m} and mine & {*p.n} and access.buffer in ask.loads:
            return f"`{access.buffer}` is read for every element of a result"
    return None
