"""Data for a script, drawn: extents that are equal, 0, 1, prime or just past a tile on purpose, and values that are not
only ordinary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from loopfuse import contracts, draws, requires
from loopfuse.bind import Bound, Given, bind, fitted, unsettled
from loopfuse.constants import greatest
from loopfuse.diag import UserError
from loopfuse.draws import Draw
from loopfuse.dtypes import of_numpy
from loopfuse.frontend.typed import Input, Param, TypedProgram
from loopfuse.generate import NO_BOUNDS, Array, Bounds, Request, Scalar, ends
from loopfuse.testing.alike import SELDOM, alike, holds
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
COUNTS = tuple(range(128)) + tuple(1 << k for k in range(7, 31))  # of integer params that may be none of these
UNITS = 30  # percent of the params that are drawn, those that are 0 or 1
PARAM_TRIES = 3
ENDS = 2  # of the kinds of values, what lies at the ends of domains


def draw(typed: TypedProgram, given: Given, choices: Choices, shapes: str = "edge",
         told: Sequence[float] = (), rows: int = SELDOM) -> Draw | str:  # fmt: skip
    """A set of data for what is not given, or why there is none: the extents that are drawn are changed as far as the
    requirements demand, and are others where no value keeps to a domain. `told`: numbers that the script names.
    `rows`: of a hundred sets, those of which rows are alike."""
    free = any(p.name not in given.params for p in typed.params)
    needed = any(p.default is None and p.name not in given.params for p in typed.params)
    why: Draw | str = ""
    for _ in range(PARAM_TRIES if free else 0):
        drawn = params(typed, given, choices, told)
        if drawn:
            why = _draw(typed, replace(given, params={**given.params, **drawn}), choices, shapes, told, rows)
        if isinstance(why, Draw) or not drawn:
            break
    return why if needed or isinstance(why, Draw) else _draw(typed, given, choices, shapes, told, rows)


def _draw(typed: TypedProgram, given: Given, choices: Choices, shapes: str, told: Sequence[float],
          rows: int) -> Draw | str:  # fmt: skip
    free = unsettled(typed, given)
    why = "no extents that its requirements allow were found"
    for turn in range(TRIES if free else 1):
        wished = extents(typed, free, choices, shapes)
        dims = fitted(typed, given, wished) if free and turn < TRIES - 1 else {}  # the last are those of `bind`
        if dims is None:
            continue
        seeded = replace(given, seed=choices.number(0, 999))
        try:
            base = bind(typed, replace(seeded, dims={**given.dims, **dims}, fill=True))
        except UserError as problem:
            why = problem.diagnostics[0].message
            continue
        return alike(typed, seeded, valued(typed, seeded, base, choices, told), choices, rows)
    return why


def params(typed: TypedProgram, given: Given, choices: Choices, told: Sequence[float]) -> dict[str, Scalar]:
    """Values for params that are not given: always for those without a default, else for every other one; plain ones,
    those that the script names, and the ends of a domain, as far as the domain, and requirements of a param alone, allow
    them."""
    found: dict[str, Scalar] = {}
    for p in typed.params:
        if p.name in given.params or (p.default is not None and choices.chance(50)):
            continue
        if p.dtype.kind == "bool":
            found[p.name] = choices.chance(50)
            continue
        pool: list[Scalar] = [v for v in (*PLAIN, *told, *(-v for v in told)) if p.dtype.is_float or v == int(v)]
        if not p.dtype.is_float:
            pool = [int(v) for v in pool if p.dtype.least <= v <= p.dtype.greatest]
        bounds = bounds_of_param(typed, p)
        inside = [v for v in pool if holds(np.asarray(v), bounds)] + [v.item() for v in ends(bounds, p.dtype)]
        inside = meeting(typed, p, inside) or meeting(
            typed, p, [n for n in COUNTS if p.dtype.is_int and n <= p.dtype.greatest]
        )
        # What a param is meant to keep from zero shows where it is 0 and rows are alike: that both meet is else too seldom.
        units = [v for v in inside if v in (0, 1)] if choices.chance(UNITS) else []
        found[p.name] = choices.pick(tuple(dict.fromkeys(units or inside or pool)))
    return found


def bounds_of_param(typed: TypedProgram, param: Param) -> Bounds:
    """What the domain of a param says in numbers; that of an integer, which sizes may be made of, is a requirement."""
    if all(b.id != param.name for b in typed.buffers):
        return NO_BOUNDS
    return contracts.bounds_of(typed, Input(param.name, param.name, param.dtype), {})


def meeting(typed: TypedProgram, param: Param, values: Iterable[Scalar]) -> list[Scalar]:
    """The values with which a param meets the requirements that are about it alone."""
    conds = [r.cond for r in typed.requires if requires.names_of(r.cond) == {param.name}]

    def meets(value: Scalar) -> bool:
        sizes, numbers = {param.name: int(value)}, {param.name: np.asarray(value).astype(param.dtype.numpy)}
        return all(bool(requires.evaluate(cond, sizes, numbers)) for cond in conds)

    return [value for value in values if meets(value)]


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
