"""Data for a script, drawn: extents that are equal, 0, 1, prime or just past a tile on purpose, and values that are not
only ordinary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from loopfuse import contracts, draws
from loopfuse.bind import Bound, Given, bind, fitted, unsettled
from loopfuse.constants import greatest
from loopfuse.diag import UserError
from loopfuse.draws import Draw
from loopfuse.dtypes import of_numpy
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array, Request, Scalar, ends
from loopfuse.testing.choices import Choices

# Extents by what they are good for; `edge` and `big` also have one that is just past a tile.
EXTENTS: Mapping[str, tuple[int, ...]] = {
    "small": (2, 3, 1, 4, 5, 7),
    "edge": (2, 3, 1, 5, 7, 4, 0, 13, 8, 1, 0, 17),
    "big": (16, 31, 33, 64, 65, 7, 1, 127, 128, 129),
}
PAST = {"small": (), "edge": (33, 65, 129, 31), "big": (257, 1025, 513)}
MOST = {"small": 400, "edge": 4000, "big": 1 << 16}  # the product of all extents
SHAPES = tuple(EXTENTS)
TRIES = 8
PLAIN = (0, 1, 2, 3, 0.5, -1, 7, 1.5, -0.25, 10)  # of params
ENDS = 2  # of the kinds of values, what lies at the ends of domains


def draw(typed: TypedProgram, given: Given, choices: Choices, shapes: str = "edge",
         told: Sequence[float] = ()) -> Draw | str:  # fmt: skip
    """A set of data for what is not given, or why there is none: the extents that are drawn are changed as far as the
    requirements demand, and are others where no value keeps to a domain. `told`: numbers that the script names."""
    drawn = params(typed, given, choices, told)
    if drawn:
        found = _draw(typed, replace(given, params={**given.params, **drawn}), choices, shapes, told)
        if isinstance(found, Draw) or any(p.default is None and p.name in drawn for p in typed.params):
            return found
    return _draw(typed, given, choices, shapes, told)


def _draw(typed: TypedProgram, given: Given, choices: Choices, shapes: str, told: Sequence[float]) -> Draw | str:
    free = unsettled(typed, given)
    why = "no extents that its requirements allow were found"
    for turn in range(TRIES if free else 1):
        wished = extents(typed, free, choices, shapes)
        dims = fitted(typed, given, wished) if free and turn < TRIES - 1 else {}  # the last are those of `bind`
        if dims is None:
            continue
        try:
            base = bind(typed, replace(given, dims={**given.dims, **dims}, seed=choices.number(0, 999), fill=True))
        except UserError as problem:
            why = problem.diagnostics[0].message
            continue
        return valued(typed, given, base, choices, told)
    return why


def params(typed: TypedProgram, given: Given, choices: Choices, told: Sequence[float]) -> dict[str, Scalar]:
    """Values for params that are not given: always for those without a default, else for every other one; plain ones,
    and those that the script names. A domain may forbid them."""
    found: dict[str, Scalar] = {}
    for p in typed.params:
        if p.name in given.params or (p.default is not None and choices.chance(50)):
            continue
        if p.dtype.kind == "bool":
            found[p.name] = choices.chance(50)
            continue
        pool = [v for v in (*PLAIN, *told, *(-v for v in told)) if p.dtype.is_float or v == int(v)]
        if not p.dtype.is_float:
            pool = [int(v) for v in pool if p.dtype.least <= v <= p.dtype.greatest]
        found[p.name] = choices.pick(tuple(dict.fromkeys(pool)))
    return found


def extents(typed: TypedProgram, free: list[str], choices: Choices, shapes: str) -> dict[str, int]:
    """An extent for each size that is free; often all are equal, and sometimes one is just past a tile."""
    table = {s.id: s for s in typed.sizes}
    pool = EXTENTS[shapes]
    found = {name: choices.pick(pool) for name in free}
    how = choices.number(0, 9) if free else 0
    if how >= 8:
        found = dict.fromkeys(free, choices.pick(pool))
    elif how >= 6 and PAST[shapes]:
        found[choices.pick(free)] = choices.pick(PAST[shapes])
    while prod(max(1, e) for e in found.values()) > MOST[shapes]:
        largest = max(found, key=lambda name: found[name])
        found[largest] //= 2
    for name, extent in found.items():
        size = table[name]
        found[name] = -(-max(extent, size.least or 0) // size.multiple) * size.multiple
    return found


def valued(typed: TypedProgram, given: Given, base: Bound, choices: Choices, told: Sequence[float] = ()) -> Draw:
    """The data with values of some kind: ties and zeros, infinities and NaN, few of them, those that the script names, or
    ordinary ones."""
    makers: Mapping[int, tuple[draws.Maker, str]] = {
        3: (draws.mild, draws.KINDS[draws.mild]), 4: (draws.special, draws.KINDS[draws.special]),
        5: (sprinkled, "a few special values"), 6: (extreme, "very large and very small numbers"),
    }  # fmt: skip
    if told:
        makers = {**makers, 7: (naming(told), "numbers that the script names")}
    # Ordinary ones in half of the sets: special values decide less, and hide what is slightly off.
    how = choices.number(0, 9)
    if how == ENDS:
        return at_ends(typed, given, base)
    if how not in makers:
        return Draw(base)
    maker, kind = makers[how]
    found = draws.revalued(typed, given, base, choices.number(0, 6), (maker,))
    return replace(found[0], kind=kind) if found else Draw(base)


def at_ends(typed: TypedProgram, given: Given, base: Bound) -> Draw:
    """The data with elements at the ends of their domains, one of each input at least: what lies furthest inside is what an
    off-by-one, or a strict comparison, gets wrong."""
    arrays = dict(base.inputs)
    dtypes = {b.id: b.dtype for b in typed.buffers}
    for entry in typed.inputs:
        old = arrays[entry.buffer]
        pool = ends(contracts.bounds_of(typed, entry, base.sizes), dtypes[entry.buffer])
        if entry.name in given.inputs or not old.size or not pool.size:
            continue
        stream = Request(entry.name, old.shape, dtypes[entry.buffer], seed=given.seed + 2).stream()
        made = np.array(np.where(stream.random(old.shape) < 0.25, stream.choice(pool, old.shape), old))
        made.flat[stream.integers(made.size)] = stream.choice(pool)
        arrays[entry.buffer] = made
    arrays = draws.allowed(typed, base, arrays)
    same = all(arrays[i.buffer] is base.inputs[i.buffer] for i in typed.inputs)
    return Draw(base) if same else Draw(Bound(base.sizes, arrays), "elements at the ends of their domains")


def naming(told: Sequence[float]) -> draws.Maker:
    """Arrays of which some elements are numbers that the script names, their neighbours, and both with the other sign."""

    def make(old: Array, stream: np.random.Generator, turn: int) -> Array:
        dtype = of_numpy(old.dtype)
        if dtype is None or dtype.kind == "bool":
            return old
        if dtype.is_float:
            pool = np.asarray([*told, *(-v for v in told)]).astype(old.dtype)
        else:
            near = {int(v) + more for v in told if v == int(v) for more in (-1, 0, 1)}
            pool = np.asarray(sorted(v for n in near for v in {n, -n} if dtype.least <= v <= dtype.greatest), old.dtype)
        return np.where(stream.random(old.shape) < 0.25, stream.choice(pool, old.shape), old) if pool.size else old

    return make


def sprinkled(old: Array, stream: np.random.Generator, turn: int) -> Array:
    """An array of floats with one element in eight special: infinities, NaN, zeros of both signs."""
    if old.dtype.kind in "biu":
        return draws.mild(old, stream, turn)
    pool = np.asarray([np.inf, -np.inf, np.nan, 0.0, -0.0]).astype(old.dtype)
    return np.where(stream.random(old.shape) < 0.125, stream.choice(pool, old.shape), old)


def extreme(old: Array, stream: np.random.Generator, turn: int) -> Array:
    """An array of which some elements are near the limits of the type, or denormal; of integers the limits."""
    if old.dtype.kind == "b":
        return old
    pool = _limits(old, turn == 0)
    return np.where(stream.random(old.shape) < 0.25, stream.choice(pool, old.shape), old)


def _limits(old: Array, ends: bool) -> Array:
    """Large and small values; the greatest of a float type only where the `ends` are wanted, since what overflows decides
    little."""
    dtype = of_numpy(old.dtype)
    assert dtype is not None
    if dtype.is_int:
        return np.asarray([dtype.greatest, dtype.least, dtype.greatest - 1], old.dtype)
    most = float(greatest(dtype))
    root = 2.0 ** (np.log2(most) // 2)
    normal = 2.0 ** (2 - (1 << (dtype.bits - dtype.mantissa - 1)))  # the least one
    large = (most, -most, most / 2) if ends else (root, -root, 1 / root)
    return np.asarray([*large, normal, -normal, normal / 4]).astype(old.dtype)
