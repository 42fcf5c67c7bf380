"""The law of repairs: bringing two partial values to their common reference and joining them gives the whole value.

The verifier does not trust whoever wrote a repair. It takes the term apart into what the element gives and the earlier
accumulators, computes the accumulators of two disjoint sets of random elements and of both together as the naive
program would, and compares. Elements at the pole of a maximum or minimum (-inf, +inf) are among them, and empty sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from loopfuse.constants import from_bits
from loopfuse.dtypes import BOOL, F64, I64, DType
from loopfuse.ir import Acc, Affine, Const, Expr, Let, Load, Loop, Ref, Select, Store
from loopfuse.ops import MONOIDS, OPS
from loopfuse.rewrite import binders, children, expr_names, subexprs, walk
from loopfuse.verify.layout import Layout, Site

Problem = tuple[str, Site | None]
Array = np.ndarray[Any, np.dtype[Any]]
TRIALS, ELEMENTS, PRECISION = 24, 6, 1e-7
SETS = {
    "left": np.array([1, 1, 1, 0, 0, 0], dtype=bool),
    "right": np.array([0, 0, 0, 1, 1, 1], dtype=bool),
    "whole": np.array([1, 1, 1, 1, 1, 1], dtype=bool),
    "one": np.array([1, 0, 0, 0, 0, 0], dtype=bool),
    "none": np.array([0, 0, 0, 0, 0, 0], dtype=bool),
}
MERGES = (("left", "right", "whole"), ("none", "one", "one"), ("right", "none", "right"), ("none", "none", "none"))


def separable(v: Layout) -> Iterator[Problem]:
    """A repair is what its accumulator's term implies: partial values that are repaired and joined are whole ones."""
    for site in v.sites:
        loop = site.stmt
        if isinstance(loop, Loop) and any(a.repair is not None for a in loop.accs):
            yield from ((problem, site) for problem in _problems(loop))


@lru_cache(maxsize=256)
def _problems(loop: Loop) -> tuple[str, ...]:
    """What is wrong with a fold's repairs; the same fold is asked about after every pass."""
    trial = _Trial(loop)
    found = []
    for acc in loop.accs:
        terms = trial.terms.get(acc.id, [])
        through = trial.opaque(terms)
        if through is not None:
            return (f"the term of `{acc.id}` reads `{through}` through an inner fold, which no repair can follow",)
    with np.errstate(all="ignore"):
        whole = {name: trial.accumulate(chosen) for name, chosen in SETS.items()}
        for acc in loop.accs:
            if acc.repair is not None and not all(trial.follows(acc, whole, *merge) for merge in MERGES):
                found.append(f"the repair of `{acc.id}` is not what its term implies")
    return tuple(found)


@dataclass
class _Trial:
    """Random elements of a fold, and what its accumulators are over sets of them. Floats are computed in f64."""

    loop: Loop
    lets: dict[str, Expr] = field(default_factory=dict)
    terms: dict[str, list[Expr]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    tainted: dict[str, str] = field(default_factory=dict)
    leaves: dict[Expr, Array] = field(default_factory=dict)
    names: dict[str, Array] = field(default_factory=dict)
    poles: dict[Expr, float] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self) -> None:
        self.bound |= {d.id for d in self.loop.dims}
        own = {a.id for a in self.loop.accs}
        for stmt in walk(self.loop.body):
            self.bound.update(binders(stmt))
            if isinstance(stmt, Let):
                self.lets[stmt.id] = stmt.value
            elif isinstance(stmt, Store) and stmt.absorb:
                self.terms.setdefault(stmt.buffer, []).append(stmt.value)
            if isinstance(stmt, Let | Store):
                reads = expr_names(stmt.value).all
                source = next((n if n in own else self.tainted[n] for n in sorted(reads)
                               if n in own or n in self.tainted), None)  # fmt: skip
                if source is not None and (isinstance(stmt, Let) or (stmt.absorb and stmt.buffer not in own)):
                    self.tainted[stmt.id if isinstance(stmt, Let) else stmt.buffer] = source
            if isinstance(stmt, Store) and not stmt.absorb:
                self.bound.add(stmt.buffer)
        for acc in self.loop.accs:
            pole = _pole(acc)
            if pole is not None:
                for leaf in self._below(*self.terms.get(acc.id, [])):
                    self.poles[leaf] = pole

    def opaque(self, terms: Sequence[Expr]) -> str | None:
        """The accumulator that terms read through an inner fold, or None."""
        for leaf in self._below(*terms):
            name = leaf.buffer if isinstance(leaf, Load) else leaf.id if isinstance(leaf, Ref) else ""
            if name in self.tainted:
                return self.tainted[name]
        return None

    def _below(self, *terms: Expr) -> Iterator[Expr]:
        """The float leaves of terms, seen through lets."""
        todo, seen = list(terms), set[str]()
        while todo:
            for node in subexprs(todo.pop()):
                if isinstance(node, Ref) and node.id in self.lets:
                    if node.id not in seen:
                        seen.add(node.id)
                        todo.append(self.lets[node.id])
                elif isinstance(node, Ref | Load) and node.dtype.is_float:
                    yield node

    # -- values -------------------------------------------------------------------------------------------------------

    def _leaf(self, node: Ref | Load) -> Array:
        """Random values of a leaf: one for each trial, and each element where it varies with the loop."""
        if node not in self.leaves:
            varies = bool(expr_names(node).all & self.bound)
            shape = (TRIALS, ELEMENTS if varies else 1)
            if node.dtype == BOOL:
                found: Array = self.rng.random(shape) < 0.6
            elif node.dtype.is_float:
                found = self.rng.standard_normal(shape) * 2
                if node in self.poles and varies:
                    found[TRIALS // 2 :][self.rng.random((TRIALS - TRIALS // 2, ELEMENTS)) < 0.5] = self.poles[node]
            else:
                found = self.rng.integers(0, 4, shape)
            self.leaves[node] = found
        return self.leaves[node]

    def _name(self, name: str) -> Array:
        if name not in self.names:
            shape = (TRIALS, ELEMENTS if name in self.bound else 1)
            self.names[name] = self.rng.integers(0, 6, shape) if name in self.bound else self.rng.integers(1, 7, shape)
        return self.names[name]

    def evaluate(self, expr: Expr, accs: Mapping[str, Array]) -> Array:
        """An expression at every trial and element, given the values of accumulators."""
        known: dict[int, Array] = {}
        stack = [expr]
        while stack:
            node = stack[-1]
            below: tuple[Expr, ...] = () if isinstance(node, Load) else children(node)
            if isinstance(node, Ref) and node.id in self.lets and node.id not in accs:
                below = (self.lets[node.id],)
            waiting = [c for c in below if id(c) not in known]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            known[id(node)] = self._node(node, [known[id(c)] for c in below], accs)
        return known[id(expr)]

    def _node(self, node: Expr, below: list[Array], accs: Mapping[str, Array]) -> Array:
        if isinstance(node, Const):
            return _wide(np.asarray(from_bits(node.bits, node.dtype)), node.dtype)
        if isinstance(node, Affine):
            values = {n: self._name(n) for n in node.poly.names}
            return np.asarray(node.poly.value(values, _floor), dtype=np.int64)
        if isinstance(node, Ref | Load):
            name = node.buffer if isinstance(node, Load) else node.id
            return accs[name] if name in accs else below[0] if below else self._leaf(node)
        if isinstance(node, Select):
            return np.where(below[0], below[1], below[2])
        if node.op == "bits":  # of numbers of their own width, which f64 is not
            read = below[0].astype(node.args[0].dtype.numpy)
            return _wide(OPS["bits"].evaluate([read], node.dtype), node.dtype)
        return _wide(OPS[node.op].evaluate(below, F64 if node.dtype.is_float else node.dtype), node.dtype)

    # -- accumulators -------------------------------------------------------------------------------------------------

    def accumulate(self, chosen: Array) -> dict[str, Array]:
        """The final values over a set of elements, each (trials, 1), as the naive program has them."""
        found: dict[str, Array] = {}
        for acc in self.loop.accs:
            found[acc.id] = np.broadcast_to(_identity(acc), (TRIALS, 1))
            for term in self.terms.get(acc.id, []):
                values = np.broadcast_to(self.evaluate(term, found), (TRIALS, ELEMENTS))
                for k in np.flatnonzero(chosen):
                    found[acc.id] = _join(acc, found[acc.id], values[:, k : k + 1])
        return found

    def follows(self, acc: Acc, known: Mapping[str, dict[str, Array]], left: str, right: str, whole: str) -> bool:
        """Whether two partial values, repaired and joined, are the whole one."""
        assert acc.repair is not None
        parts = []
        for side in (left, right):
            values = {"self": known[side][acc.id]}
            for other in self.loop.accs:
                values |= {f"{other.id}.old": known[side][other.id], f"{other.id}.new": known[whole][other.id]}
            parts.append(np.broadcast_to(self.evaluate(acc.repair, values), (TRIALS, 1)))
        found, wanted = _join(acc, *parts), known[whole][acc.id]
        if not acc.dtype.is_float:
            return bool(np.array_equal(found, wanted))
        size = np.abs(wanted) + np.abs(known[left][acc.id]) + 1
        same = (found == wanted) | (np.abs(found - wanted) <= PRECISION * size) | (np.isnan(found) & np.isnan(wanted))
        return bool(same.all())


def _pole(acc: Acc) -> float | None:
    """The infinity at which a maximum or minimum starts; None for another accumulator."""
    monoid = MONOIDS[acc.monoid]
    if monoid.positional or not acc.dtype.is_float:
        return None
    start = float(monoid.identity(acc.dtype))
    return start if np.isinf(start) else None


def _wide(value: Array, dtype: DType) -> Array:
    return np.asarray(value, dtype=np.float64) if dtype.is_float else np.asarray(value)


def _identity(acc: Acc) -> Array:
    return _wide(np.asarray(MONOIDS[acc.monoid].identity(acc.dtype)), acc.dtype)


def _join(acc: Acc, left: Array, right: Array) -> Array:
    """Two values combined; of an argmax only the value is looked at."""
    monoid = MONOIDS[acc.monoid]
    if monoid.positional:
        return np.where(OPS[monoid.op].evaluate((right, left), BOOL), right, left)
    dtype = F64 if acc.dtype.is_float else acc.dtype
    return _wide(OPS[monoid.op].evaluate((left, right.astype(left.dtype)), dtype), acc.dtype)


def _floor(a: Any, b: Any) -> Any:
    return OPS["floordiv"].evaluate((np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64)), I64)
