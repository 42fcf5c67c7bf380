"""Which parts of a fold's body a pass over it needs, where accumulators wait for the final values of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

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


def prune(body: Iterable[Stmt], wanted: Collection[str], *, stores: bool = True, mine: Collection[str] | None = None,
          ) -> tuple[Stmt, ...]:  # fmt: skip
    """What remains of a body where only the accumulators in `wanted` (and with `stores` plain stores) matter.

    `mine`: those of the loop whose body it is; what is absorbed into accumulators of loops around that one counts as a
    plain store. Without it nothing is absorbed into accumulators outside the body that are not wanted.
    """
    body = tuple(body)
    inner = {a.id for s in walk(body) if isinstance(s, Loop) for a in s.accs}
    return _Pruning(set(wanted), inner, None if mine is None else set(mine), stores).prune(body)


@dataclass
class _Pruning:
    wanted: set[str]
    inner: set[str]
    mine: set[str] | None
    stores: bool
    needed: set[str] = field(default_factory=set)

    def prune(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        kept: list[Stmt] = []
        for stmt in reversed(body):
            if isinstance(stmt, Loop):
                rest = self.prune(stmt.body)
                absorbed = {s.buffer for s in walk(rest) if isinstance(s, Store) and s.absorb}
                accs = tuple(a for a in stmt.accs if a.id in absorbed)
                if rest != stmt.body or accs != stmt.accs:
                    stmt = replace(stmt, body=rest, accs=accs)
                keep = bool(rest)
            else:
                keep = stmt.id in self.needed if isinstance(stmt, Let) else self._keeps(stmt)
            if keep:
                kept.append(stmt)
                self.needed |= _names(stmt)
        return tuple(reversed(kept))

    def _keeps(self, store: Store) -> bool:
        if not store.absorb:
            return self.stores or store.buffer in self.needed
        if store.buffer in self.inner:
            return store.buffer in self.needed or store.buffer in self.wanted
        outside = self.mine is not None and store.buffer not in self.mine
        return self.stores if outside else store.buffer in self.wanted
