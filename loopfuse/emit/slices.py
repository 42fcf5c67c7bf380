"""Which parts of a fold's body a pass over it needs, where accumulators wait for the final values of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from loopfuse.ir import Let, Loop, Stmt, Store
from loopfuse.walking import own, polys, walk


def levels(loop: Loop) -> dict[str, int]:
    """For each accumulator of a fold the pass in which it is complete: one more than those that its terms read."""
    needs = _needs(loop.body)
    mine = {a.id for a in loop.accs}
    found: dict[str, int] = {}
    for acc in loop.accs:  # terms read earlier accumulators only
        reached: set[str] = set()
        pending = list(needs[acc.id])
        while pending:
            name = pending.pop()
            if name not in reached:
                reached.add(name)
                if name not in mine:
                    pending += needs[name]
        below = [found[name] for name in reached & mine if name in found]
        found[acc.id] = 1 + max(below) if below else 0
    return found


def _needs(body: Iterable[Stmt]) -> dict[str, set[str]]:
    """What the value of each let, accumulator and array in a body is made from, directly."""
    found: dict[str, set[str]] = defaultdict(set)

    def visit(stmts: Iterable[Stmt], around: frozenset[str]) -> None:
        for stmt in stmts:
            here = _names(stmt) | around
            if isinstance(stmt, Let):
                found[stmt.id] |= here
            elif isinstance(stmt, Store):
                found[stmt.buffer] |= here
            else:
                visit(stmt.body, here)

    visit(body, frozenset())
    return found


def _names(stmt: Stmt) -> frozenset[str]:
    names = own(stmt).names
    return names.values | names.loads | frozenset(n for p in polys(stmt) for n in p.names)


def prune(body: Iterable[Stmt], wanted: Collection[str], *, stores: bool = True) -> tuple[Stmt, ...]:
    """What remains of a body where only the accumulators in `wanted` (and with `stores` plain stores) matter.

    Other accumulators of loops around the body are complete, or not wanted yet: nothing is absorbed into them.
    """
    body = tuple(body)
    inner = {a.id for s in walk(body) if isinstance(s, Loop) for a in s.accs}
    return _prune(body, {*wanted, *inner}, set(wanted), stores, set())


def _prune(body: tuple[Stmt, ...], open_: set[str], wanted: set[str], stores: bool, needed: set[str],
           ) -> tuple[Stmt, ...]:  # fmt: skip
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if isinstance(stmt, Let):
            if stmt.id not in needed:
                continue
        elif isinstance(stmt, Store):
            asked = stmt.buffer in wanted or stmt.buffer in needed
            if not (asked and stmt.buffer in open_ if stmt.absorb else asked or stores):
                continue
        else:
            inner = _prune(stmt.body, open_, wanted, stores, needed)
            if not inner:
                continue
            absorbed = {s.buffer for s in walk(inner) if isinstance(s, Store) and s.absorb}
            accs = tuple(a for a in stmt.accs if a.id in absorbed)
            stmt = replace(stmt, body=inner, accs=accs) if inner != stmt.body or accs != stmt.accs else stmt
        kept.append(stmt)
        needed |= _names(stmt)
    return tuple(reversed(kept))
