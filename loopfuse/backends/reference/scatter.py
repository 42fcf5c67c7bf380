"""Folds in order: terms that meet at computed positions, and running values. Left folds, whatever the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopfuse.backends.reference.domain import Reducer
from loopfuse.backends.reference.tree import Node, cut
from loopfuse.numerics import Array

_SHORT = 64


def fold_at(reducer: Reducer, whole: Node, at: Array, terms: Node) -> None:
    """Combine into the flat arrays `whole`, in place, the terms at positions `at`, each position's in their order."""
    if at.size == 0:
        return
    order = np.argsort(_narrow(at), kind="stable")
    targets = at[order]
    terms = _each(terms, order)
    first = np.flatnonzero(np.concatenate(([True], targets[1:] != targets[:-1])))
    counts = np.diff(np.append(first, targets.size))
    if not reducer.rounds:
        _put(
            whole,
            targets[first],
            reducer.combine(_each(whole, targets[first]), _segments(reducer, terms, first, counts)),
        )
        return
    # Round r combines the r-th term of every position that has one: positions with many terms stand first.
    many = np.argsort(-counts, kind="stable")
    first, counts, places = first[many], counts[many], targets[first[many]]
    sums = _each(whole, places)
    for r in range(int(counts[0])):
        active = int(np.searchsorted(-counts, -r, side="left"))
        now = slice(0, active)
        _put(sums, now, reducer.combine(cut(sums, now), _each(terms, first[now] + r)))
    _put(whole, places, sums)


def _segments(reducer: Reducer, terms: Node, first: Array, counts: Array) -> Node:
    """One node for each run of terms, by pairs; the order of combination is free."""
    while int(counts.max()) > 1:
        size = int(counts.sum())
        run = np.repeat(np.arange(first.size), counts)
        rank = np.arange(size) - first[run]
        left = np.flatnonzero(rank % 2 == 0)
        paired = rank[left] + 1 < counts[run[left]]
        joined = _each(terms, left)
        both = left[paired]
        _put(joined, paired, reducer.combine(_each(terms, both), _each(terms, both + 1)))
        terms, counts = joined, (counts + 1) // 2
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return terms


def _narrow(at: Array) -> Array:
    """Positions in the smallest type, which sorts faster."""
    return at.astype(np.uint16) if int(at.max()) < 1 << 16 else at


def _each(node: Node, key: Any) -> Node:
    """The selected elements, copied."""
    if isinstance(node, tuple):
        return tuple(part[key].copy() if isinstance(key, slice) else part[key] for part in node)
    return node[key].copy() if isinstance(key, slice) else node[key]


def _put(node: Node, key: Any, value: Node) -> None:
    if isinstance(node, tuple):
        for part, new in zip(node, value, strict=True):
            part[key] = new
    else:
        node[key] = value


def running(reducer: Reducer, carry: Node, block: Node, places: int) -> Node:
    """The running values along the first axis, each term included, after `carry` (None: nothing so far)."""
    begin = reducer.combine(reducer.identity if carry is None else carry, cut(block, 0))
    if places > _SHORT:
        quick = (
            _associative(reducer, begin, block, places) if not reducer.rounds else _accumulated(reducer, begin, block)
        )
        if quick is not None:
            return quick
    found = [begin]
    for place in range(1, places):
        found.append(reducer.combine(found[-1], cut(block, place)))
    if isinstance(begin, tuple):
        return tuple(np.stack(parts) for parts in zip(*found, strict=True))
    return np.stack(found)


def _with_first(begin: Node, block: Node) -> Node:
    def join(first: Array, part: Array) -> Array:
        made = np.array(part)
        made[0] = first
        return made

    if isinstance(block, tuple):
        return tuple(join(a, b) for a, b in zip(begin, block, strict=True))
    return join(begin, block)


def _associative(reducer: Reducer, begin: Node, block: Node, places: int) -> Node:
    """By doubling, which is exact where the order is free."""
    found, reach = _with_first(begin, block), 1
    while reach < places:
        joined = reducer.combine(cut(found, slice(None, -reach)), cut(found, slice(reach, None)))
        _put(found, slice(reach, None), joined)
        reach *= 2
    return found


def _accumulated(reducer: Reducer, begin: Node, block: Node) -> Node | None:
    """By NumPy's accumulation where one seems to fit, which is then checked step by step; else None."""
    ufunc = reducer.ufunc
    if ufunc is None or isinstance(block, tuple):
        return None
    found = ufunc.accumulate(_with_first(begin, block), axis=0, dtype=block.dtype)
    steps = reducer.combine(found[:-1], block[1:])
    same = (steps == found[1:]) | ((steps != steps) & (found[1:] != found[1:]))
    return found if bool(np.all(same)) else None
