"""A kernel as several: its nests that share no more than the loops round them, and of a nest the sums that do not meet.

Fusion puts what reads one array under common loops, and folds over one index into one. Where every element of every output is
then computed from one of the sums alone, the kernel is as many kernels as there are sums, whatever order they run in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from loopfuse.ir import Kernel, Let, Loop, Stmt, Store
from loopfuse.walking import free_names


def apart(kernel: Kernel) -> list[Kernel]:
    """The kernels that it is, in their order, under its own name; none where it is one, or its parts read one another."""
    round_: list[tuple[Sequence[Stmt], Loop]] = []
    body: Sequence[Stmt] = kernel.body
    while len(loops := [s for s in body if isinstance(s, Loop)]) == 1 and _plain(loops[0]):
        if any(isinstance(s, Store) for s in body) or body[-1] is not loops[0]:
            return []
        round_.append((body[:-1], loops[0]))
        body = loops[0].body
    nests = _nests(body) if any(_plain(s) for s in loops) else _sums(body)
    if len(nests) < 2:
        return []
    names = [free_names(nest) for nest in nests]
    for number, one in enumerate(names):
        if any(one.stores & (other.loads | other.stores) for k, other in enumerate(names) if k != number):
            return []
    return [Kernel(kernel.id, _wrapped(round_, nest), span=kernel.span) for nest in nests]


def _plain(loop: Loop) -> bool:
    return not loop.accs and loop.order == "par" and loop.where is None


def _nests(body: Sequence[Stmt]) -> list[tuple[Stmt, ...]]:
    """Loops side by side, each with the lets that it uses and the stores of what it folds, and taken apart by its sums."""
    nests = {number: s for number, s in enumerate(body) if isinstance(s, Loop)}
    stores = _stores(body, {acc.id: number for number, nest in nests.items() for acc in nest.accs}, nests)
    found: list[tuple[Stmt, ...]] = []
    for number, mine in stores.items():
        first = nests[number]
        inner = _sums(first.body) if _plain(first) else []
        parts: list[list[Stmt]] = [[replace(first, body=part)] for part in inner] or [[first, *mine]]
        found += [tuple(_used([*_lets(body[:number]), part[0], *_lets(body[number:]), *part[1:]])) for part in parts]
    return found


def _stores(body: Sequence[Stmt], results: Mapping[str, int], owners: Iterable[int]) -> dict[int, list[Store]]:
    """The stores of a body by whose result they store: `results` are the names that each owner gives, a nest or a sum. None at
    all where one stores results of several or of none, or a loop reads them or runs in order."""
    behind = {name: frozenset((owner,)) for name, owner in results.items()}
    found: dict[int, list[Store]] = {owner: [] for owner in owners}
    for stmt in body:
        used = free_names([stmt])
        mine = frozenset().union(*(behind.get(n, frozenset()) for n in used.values | used.loads))
        if isinstance(stmt, Let):
            behind[stmt.id] = mine
        elif isinstance(stmt, Store):
            if len(mine) != 1 or stmt.absorb:
                return {}
            found[next(iter(mine))].append(stmt)
        elif mine or stmt.order != "par":
            return {}
    return found


def _lets(body: Sequence[Stmt]) -> list[Stmt]:
    return [s for s in body if isinstance(s, Let)]


def _sums(body: Sequence[Stmt]) -> list[tuple[Stmt, ...]]:
    """The statements of an element once for each of its sums; none where two of them meet, or there is one."""
    folds = [s for s in body if isinstance(s, Loop)]
    if any(not s.accs or s.order != "par" or _joined(s) for s in folds):
        return []
    accs = [acc.id for fold in folds for acc in fold.accs]
    stores = _stores(body, {acc: number for number, acc in enumerate(accs)}, range(len(accs)))
    if len(stores) < 2 or not all(stores.values()):
        return []
    return [_one(body, acc, stores[number]) for number, acc in enumerate(accs)]


def _joined(fold: Loop) -> bool:
    """Whether a sum of a fold follows another one as they grow."""
    return any(a.repair is not None for a in fold.accs) or bool(
        free_names(fold.body).values & {a.id for a in fold.accs}
    )


def _one(body: Sequence[Stmt], acc: str, stores: Sequence[Store]) -> tuple[Stmt, ...]:
    """The statements of one sum."""
    kept: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            accs = tuple(a for a in stmt.accs if a.id == acc)
            if accs:
                kept.append(replace(stmt, accs=accs, body=_absorbing(stmt.body, acc)))
        elif isinstance(stmt, Let) or stmt in stores:
            kept.append(stmt)
    return tuple(_used(kept))


def _absorbing(body: Sequence[Stmt], acc: str) -> tuple[Stmt, ...]:
    """The body of a fold without what other accumulators absorb."""
    return tuple(_used([s for s in body if not (isinstance(s, Store) and s.absorb and s.buffer != acc)]))


def _used(body: Sequence[Stmt]) -> list[Stmt]:
    """Statements without lets that nothing after them uses."""
    used: set[str] = set()
    found: list[Stmt] = []
    for stmt in reversed(body):
        if not isinstance(stmt, Let) or stmt.id in used:
            used |= free_names([stmt]).values
            found.insert(0, stmt)
    return found


def _wrapped(round_: Iterable[tuple[Sequence[Stmt], Loop]], inner: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements in the loops round them."""
    for lets, loop in reversed(list(round_)):
        inner = tuple(_used([*_lets(lets), replace(loop, body=inner)]))
    return inner
