"""Invariants of accumulators: where they are absorbed into, and who may read one before its loop is over."""

from __future__ import annotations

from collections.abc import Iterator

from loopfuse.ir import Acc, Affine, Let, Load, Loop, Ref, Store
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import polys, subexprs
from loopfuse.verify.layout import Definition, Frame, Layout, Site

Problem = tuple[str, Site | None]


def accumulators(v: Layout) -> Iterator[Problem]:
    """Folds and prefix loops have accumulators, `seq` loops none; a monoid is a row of its table."""
    for site in v.sites:
        loop = site.stmt
        if not isinstance(loop, Loop):
            continue
        if loop.order == "seq" and loop.accs:
            yield "a seq loop has accumulators", site
        if loop.order == "prefix" and not loop.accs:
            yield "a prefix loop has no accumulator", site
        for acc in loop.accs:
            if acc.monoid not in MONOIDS:
                yield f"`{acc.id}` has the unknown monoid `{acc.monoid}`", site
            if acc.repair is not None and loop.order != "par":
                yield f"`{acc.id}` has a repair in a {loop.order} loop", site


def absorbs(v: Layout) -> Iterator[Problem]:
    """`a <- e` stands in the loop of `a`; only argmax and argmin take a position, and they always do."""
    for site in v.sites:
        stmt = site.stmt
        if not isinstance(stmt, Store):
            continue
        target = v.visible(stmt.buffer, site.position)
        if not stmt.absorb:
            if stmt.at is not None:
                yield "a store has a position", site
            if target is not None and target.kind != "buffer":
                yield f"`{stmt.buffer}` is no buffer: only `<-` writes an accumulator", site
            continue
        if target is None or not isinstance(target.node, Acc) or site.position >= target.until:
            yield f"`{stmt.buffer}` is no accumulator of an enclosing loop", site
        elif target.node.monoid in MONOIDS and MONOIDS[target.node.monoid].positional != (stmt.at is not None):
            yield f"`{target.node.monoid}` {'takes no' if stmt.at is not None else 'needs a'} position", site


def partial_values(v: Layout) -> Iterator[Problem]:
    """In its loop an accumulator is read only by the terms of later, repaired ones of the same loop, or, in a prefix
    loop and after the last absorption, by stores."""
    taint: dict[str, frozenset[str]] = {}
    for site in v.sites:
        stmt = site.stmt
        if isinstance(stmt, Loop):
            control = _names(v, site, taint)
            if control:
                yield f"the loop depends on `{min(control)}`, which is not complete", site
            continue
        found = _names(v, site, taint)
        if not found:
            continue
        for name in sorted(found):
            acc = _open(v, name, site)
            if acc is not None:
                yield from _read(v, acc, site)
        if isinstance(stmt, Let):
            taint[stmt.id] = found
        elif stmt.absorb:
            taint[stmt.buffer] = taint.get(stmt.buffer, frozenset()) | found


def _open(v: Layout, name: str, site: Site) -> Definition | None:
    """The accumulator of that name if its loop is not over at the site."""
    found = v.visible(name, site.position)
    return found if found is not None and found.kind == "acc" and site.position < found.until else None


def _names(v: Layout, site: Site, taint: dict[str, frozenset[str]]) -> frozenset[str]:
    """The accumulators in progress on which a statement depends, through lets and inner accumulators."""
    mentioned: set[str] = set()
    for poly in polys(site.stmt):
        mentioned |= poly.names
    for node in site.nodes:
        if isinstance(node, Ref):
            mentioned.add(node.id)
        elif isinstance(node, Load):
            mentioned.add(node.buffer)
        elif isinstance(node, Affine):
            mentioned |= node.poly.names
    found: set[str] = set()
    for name in mentioned:
        if _open(v, name, site) is not None:
            found.add(name)
        for source in taint.get(name, ()):
            if _open(v, source, site) is not None:
                found.add(source)
    return frozenset(found)


def _read(v: Layout, acc: Definition, site: Site) -> Iterator[Problem]:
    """Whether the statement may depend on an accumulator in progress."""
    stmt, frame = site.stmt, acc.frame
    assert frame is not None
    if isinstance(stmt, Store) and stmt.absorb:
        target = v.visible(stmt.buffer, site.position)
        if target is None or target.frame is None or not isinstance(target.node, Acc):
            return
        if target.frame is frame:
            if target.node.repair is None or acc.order >= target.order:
                yield f"`{stmt.buffer}` absorbs a term of `{acc.id}`, but is not a later, repaired accumulator", site
        elif not _encloses(frame, target.frame):
            yield f"`{stmt.buffer}` of an outer loop absorbs a term of `{acc.id}`, which is not complete", site
    elif frame.loop.order == "prefix":
        yield from _running(v, acc, frame, site)
    elif isinstance(stmt, Store):
        yield f"a store in the loop of `{acc.id}` depends on it", site


def _running(v: Layout, acc: Definition, frame: Frame, site: Site) -> Iterator[Problem]:
    """A running value is read after the last absorption of the iteration."""
    reads = [n for n in site.nodes if isinstance(n, Load) and n.buffer == acc.id]
    for absorb in v.absorbs.get(acc.id, ()):
        if not frame.start < absorb.position < frame.end:
            continue
        if absorb.position > site.position:
            yield f"`{acc.id}` is read before it absorbs", site
        inner = absorb.frame
        if inner is frame or inner is None or site.position > inner.end:
            continue
        stmt = absorb.stmt
        if not (isinstance(stmt, Store) and reads and all(r.subs == stmt.subs for r in reads)):
            yield f"`{acc.id}` is read in the loop that absorbs into it", site


def _encloses(outer: Frame, inner: Frame) -> bool:
    return outer.start < inner.start and inner.end <= outer.end


def repairs(v: Layout) -> Iterator[Problem]:
    """A repair mentions `self`, and `x.old` and `x.new` of earlier accumulators; it loads and indexes nothing."""
    for site in v.sites:
        if not isinstance(site.stmt, Loop):
            continue
        earlier: dict[str, Acc] = {}
        for acc in site.stmt.accs:
            known = {"self": acc.dtype}
            for name, other in earlier.items():
                known |= {f"{name}.old": other.dtype, f"{name}.new": other.dtype}
            for node in subexprs(*(() if acc.repair is None else (acc.repair,))):
                if isinstance(node, Load):
                    yield f"the repair of `{acc.id}` loads from `{node.buffer}`", site
                elif isinstance(node, Ref) and known.get(node.id) != node.dtype:
                    yield f"the repair of `{acc.id}` mentions `{node.id}`: {node.dtype}", site
            if acc.repair is not None and acc.repair.dtype != acc.dtype:
                yield f"the repair of `{acc.id}` is {acc.repair.dtype}, not {acc.dtype}", site
            if not acc.shape:
                earlier[acc.id] = acc
