"""Which lines of two programs are the same statement: by what they define and contain, not by how they are written."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeVar

from loopfuse.ir import Kernel, Program
from loopfuse.views.lines import Line, defined, stem

ALIKE = 0.6
LONG = 300  # characters of a line that are compared
_WORD = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Matched:
    """Pairs of line numbers (new to old). Those `in place` keep their order; the others moved. `same` are those that say
    the same, but for the names of indices."""

    pairs: dict[int, int]
    in_place: frozenset[int]
    same: frozenset[int]


def match(old: Sequence[Line], new: Sequence[Line]) -> Matched:
    """Pair the lines of two texts: statements by ids, then by the ids these came from, then loops by their content."""
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for exact in (True, False):
        _pair_leaves(old, new, pairs, taken, exact)
    leaves = dict(pairs)
    _pair_loops(old, new, leaves, pairs, taken)
    same = frozenset(n for n, o in pairs.items() if renamed(old, new, pairs, n) == old[o].text)
    close = {n for n, o in pairs.items() if n in same or new[n].kind != "leaf" or alike(old[o], new[n])}
    firm = increasing(sorted((n, o) for n, o in pairs.items() if n in close))
    kept = _fitting(firm, sorted((n, o) for n, o in pairs.items() if n not in close), pairs)
    # A loop is not moved: out of its order it is another loop; and so is a statement that says something else.
    stay = {n: o for n, o in pairs.items() if n in kept or (new[n].kind == "leaf" and n in close)}
    return Matched(stay, kept, same & stay.keys())


def _fitting(firm: list[int], others: Sequence[tuple[int, int]], pairs: dict[int, int]) -> frozenset[int]:
    """The firm numbers, and of the others those that keep the order with them and with each other."""
    kept = list(firm)
    for n, o in others:
        at = bisect_left(kept, n)
        if (at == 0 or pairs[kept[at - 1]] < o) and (at == len(kept) or o < pairs[kept[at]]):
            kept.insert(at, n)
    return frozenset(kept)


def alike(old: Line, new: Line) -> bool:
    """Whether two statements say nearly the same: their texts, without the counters of ids, mostly agree."""
    a, b = (_WORD.sub(lambda m: stem(m[0]), line.text[:LONG]) for line in (old, new))
    return SequenceMatcher(None, a, b, autojunk=False).ratio() >= ALIKE


def renamed(old: Sequence[Line], new: Sequence[Line], pairs: dict[int, int], number: int) -> str:
    """The text of a paired line with its indices called as in the old program."""
    partner = pairs[number]
    inside = [number, *_around(new, number)] if new[number].kind == "loop" else _around(new, number)
    known = {d for o in (partner, *_around(old, partner)) for d in old[o].dims}
    names: dict[str, str] = {}
    for loop in reversed(inside):
        dims, mate = new[loop].dims, pairs.get(loop)
        if mate is not None and len(old[mate].dims) == len(dims):
            theirs = old[mate].dims
            names.update(zip(dims, dims if {*dims} == {*theirs} else theirs, strict=True))
        else:
            names.update((d, stem(d)) for d in dims if stem(d) in known)
    changed = {n: o for n, o in names.items() if n != o}
    return _WORD.sub(lambda m: changed.get(m[0], m[0]), new[number].text) if changed else new[number].text


def _pair_leaves(old: Sequence[Line], new: Sequence[Line], pairs: dict[int, int], taken: set[int], exact: bool) -> None:
    """Pair what has one key, the same text first, then in order; with `exact` off those of one stem that are alike."""

    def key(line: Line) -> Hashable:
        return line.key if exact else (line.stem, line.kind)

    spare: dict[Hashable, list[int]] = defaultdict(list)
    for number, line in enumerate(old):
        if line.kind != "loop" and number not in taken:
            spare[key(line)].append(number)
    for same_text in (True, False):
        for number, line in enumerate(new):
            if line.kind == "loop" or number in pairs or (not exact and not line.stem):
                continue
            wanted = (o for o in spare[key(line)]
                      if (old[o].text == line.text if same_text else exact or alike(old[o], line)))  # fmt: skip
            found = next(wanted, None)
            if found is not None:
                spare[key(line)].remove(found)
                pairs[number] = found
                taken.add(found)


def _pair_loops(old: Sequence[Line], new: Sequence[Line], leaves: dict[int, int], pairs: dict[int, int],
                taken: set[int]) -> None:  # fmt: skip
    """Pair loops that contain the same statements: equal texts first, then those that share the most."""
    shared: dict[tuple[int, int], int] = defaultdict(int)
    for n, o in leaves.items():
        for above_new in _around(new, n):
            for above_old in _around(old, o):
                shared[above_new, above_old] += 1
    ranked = sorted(shared.items(), key=lambda item: (
        new[item[0][0]].text != old[item[0][1]].text, -item[1],
        abs(new[item[0][0]].depth - old[item[0][1]].depth), item[0]))  # fmt: skip
    for (n, o), _ in ranked:
        if n not in pairs and o not in taken:
            pairs[n] = o
            taken.add(o)


def _around(lines: Sequence[Line], number: int) -> list[int]:
    """The loops around a line, from the inside."""
    found = []
    number = lines[number].parent
    while number >= 0:
        if lines[number].kind == "loop":
            found.append(number)
        number = lines[number].parent
    return found


def increasing(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """The first parts of a longest run of pairs whose second parts increase; the pairs are sorted."""
    tails: list[int] = []  # the least end of a run of each length, as a place in `pairs`
    ends: list[int] = []
    before: list[int] = []
    for place, (_, value) in enumerate(pairs):
        length = bisect_left(ends, value)
        before.append(tails[length - 1] if length else -1)
        tails[length:] = [place, *tails[length + 1 :]]
        ends[length:] = [value, *ends[length + 1 :]]
    found = []
    place = tails[-1] if tails else -1
    while place >= 0:
        found.append(pairs[place][0])
        place = before[place]
    return found[::-1]


# -- kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels of both programs that hold the same definitions."""

    old: tuple[Kernel, ...]
    new: tuple[Kernel, ...]


def groups(old: Program, new: Program) -> list[Group]:
    """The kernels of two programs, together where a definition of one is held by the other; in the new order.

    A kernel that is only in the old program stands before the first new kernel that followed it.
    """
    link: dict[tuple[int, int], tuple[int, int]] = {}

    def find(node: tuple[int, int]) -> tuple[int, int]:
        while link.setdefault(node, node) != node:
            node = link[node] = link[link[node]]
        return node

    owners: dict[str, tuple[int, int]] = {}
    for number, kernel in enumerate(old.kernels):
        for name in defined(kernel):
            owners.setdefault(name, (0, number))
    ids = {kernel.id: (0, number) for number, kernel in enumerate(old.kernels)}
    for number, kernel in enumerate(new.kernels):
        names = defined(kernel)
        holders = [owners[n] for n in names if n in owners] or [owners[stem(n)] for n in names if stem(n) in owners]
        for holder in holders or [ids[i] for i in [kernel.id] if i in ids]:
            link[find(holder)] = find((1, number))
    _leftovers(old, new, link, find)
    members: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, program in enumerate((old, new)):
        for number in range(len(program.kernels)):
            members[find((side, number))][side].append(number)
    return [Group(tuple(old.kernels[n] for n in olds), tuple(new.kernels[n] for n in news))
            for olds, news in _ordered(members.values())]  # fmt: skip


def _leftovers(old: Program, new: Program, link: dict[tuple[int, int], tuple[int, int]], find: object) -> None:
    """Old kernels without a partner join the new kernel that kept their id."""
    assert callable(find)
    ids = {kernel.id: (1, number) for number, kernel in enumerate(new.kernels)}
    partners = {find((1, number)) for number in range(len(new.kernels))}
    for number, kernel in enumerate(old.kernels):
        if find((0, number)) not in partners and kernel.id in ids:
            link[find((0, number))] = find(ids[kernel.id])


def _ordered(members: Iterable[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """By the first new kernel; those without one before the first group that stood behind them in the old program."""
    with_new = sorted((m for m in members if m[1]), key=lambda m: m[1][0])
    without = sorted((m for m in members if not m[1]), key=lambda m: m[0][0])
    found: list[tuple[list[int], list[int]]] = []
    for member in with_new:
        while without and member[0] and without[0][0][0] < member[0][0]:
            found.append(without.pop(0))
        found.append(member)
    return found + without
