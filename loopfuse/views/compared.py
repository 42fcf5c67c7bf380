"""Results beside those of the reference: how far each output is off, and whether that is more than it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse import driver
from loopfuse.backends import reference
from loopfuse.backends.reference import Bounded, Mismatch, agrees, vague
from loopfuse.bind import Bound
from loopfuse.dtypes import of_numpy
from loopfuse.generate import Array
from loopfuse.printer import print_program
from loopfuse.views.tables import amount, significant, table
from loopfuse.views.values import short_values


@dataclass(frozen=True, slots=True)
class Compared:
    """An output beside the reference: the greatest distance of elements that are finite in both, the same in units in the
    last place (None for integers and bools), the greatest part of its bound that an element takes, how many elements
    are undecided, the first that is outside its bound, and how many have a bound that says nothing."""

    name: str
    elements: int
    distance: float
    ulps: int | None
    part: float
    undecided: int
    miss: Mismatch | None
    vague: int = 0

    def as_record(self) -> dict[str, Any]:
        """The JSON form."""
        miss = self.miss
        wrong = {"index": list(miss.index), "found": short_values(np.asarray(miss.found)),
                 "expected": short_values(np.asarray(miss.value)), "bound": miss.bound, "wrong": miss.wrong} if miss else None  # fmt: skip
        return {"name": self.name, "elements": self.elements, "distance": self.distance, "ulps": self.ulps,
                "part_of_bound": self.part, "undecided": self.undecided, "vague": self.vague, "miss": wrong,
                "ok": miss is None}  # fmt: skip


def bounded(lowered: driver.Lowered, bound: Bound, limit: int | None = None) -> dict[str, Bounded]:
    """The roots of a lowered program by the reference, by buffer, with the bounds of what rounding may do to them.

    Raises `UserError` LF0509 where there is too little memory.
    """
    sizes = driver.plan_sizes(lowered.program) | bound.sizes
    inputs = driver.run_inputs(lowered, bound)
    with driver.guard("reference", lambda: print_program(lowered.program)):
        found = reference.run_bounded(lowered.program, inputs, sizes, limit=limit or 1 << 30)
    ends = [b.id for b in lowered.program.buffers if b.role == "out"]
    return {root: found[end] for root, end in zip(lowered.roots, ends, strict=True)}


def compare(lowered: driver.Lowered, expected: Mapping[str, Bounded], buffers: Mapping[str, Array]) -> list[Compared]:
    """Each output of the script beside the reference."""
    return [_compared(o.name, expected[o.buffer], buffers[o.buffer]) for o in lowered.typed.outputs]


def _compared(name: str, expected: Bounded, found: Array) -> Compared:
    value = expected.value
    dtype = of_numpy(value.dtype)
    decided = ~expected.undecided
    both = decided
    if dtype is not None and dtype.is_float:
        both = decided & np.isfinite(value.astype(np.float64)) & np.isfinite(found.astype(np.float64))
    distance = part = 0.0
    ulps: int | None = None
    if both.any():
        with np.errstate(all="ignore"):
            new, old = found[both].astype(np.longdouble), value[both].astype(np.longdouble)
            distance = float(np.max(np.abs(new - old)))
            off, most = np.abs(new - expected.shadow[both]), expected.bound[both]
            part = float(np.max(np.where(off == 0, 0.0, off / most)))
        ulps = ulps_between(found[both], value[both]) if dtype is not None and dtype.is_float else None
    undecided = int(np.count_nonzero(expected.undecided))
    return Compared(name, int(value.size), distance, ulps, part, undecided, agrees(expected, found),
                    vague(expected))  # fmt: skip


def ulps_between(a: Array, b: Array) -> int:
    """The greatest distance of elements of two arrays of finite numbers of a type, in steps from a number to the next."""
    if not a.size:
        return 0
    left, right = _ordinals(a).reshape(-1), _ordinals(b).reshape(-1)
    at = int(np.argmax(np.abs(left.astype(np.float64) - right.astype(np.float64))))
    return abs(int(left[at]) - int(right[at]))


def _ordinals(array: Array) -> Array:
    """Integers in the order of the floats, one a number; both zeros are 0."""
    kind = np.dtype(f"i{array.dtype.itemsize}")
    bits = np.ascontiguousarray(array).view(kind)
    magnitude = (bits & np.iinfo(kind).max).astype(np.int64)
    return np.where(bits < 0, -magnitude, magnitude)


# -- text -------------------------------------------------------------------------------------------------------------


def compared_table(found: Sequence[Compared]) -> list[str]:
    """A line an output."""
    rows = [(c.name, "no" if c.miss else "yes", significant(c.distance), "" if c.ulps is None else amount(c.ulps),
             f"{c.part:.0%}" if c.part < 10 else "> 1000%", str(c.undecided), str(c.elements)) for c in found]  # fmt: skip
    header = ("output", "agrees", "max abs", "max ulp", "of bound", "undecided", "elements")
    return table(header, rows, "llrrrrr")


def vague_note(count: int) -> str:
    """What to say of elements whose bound says nothing."""
    whose = "1 element are" if count == 1 else f"{count} elements are"
    return (f"the bounds of {whose} as wide as the results: they admit any number of that size and say nothing, since the "
            f"program is ill-conditioned on this data")  # fmt: skip


def mismatches(found: Sequence[Compared]) -> list[str]:
    """A sentence for each output that does not agree."""
    lines = []
    for c in found:
        if c.miss is not None:
            at = f"[{', '.join(map(str, c.miss.index))}]" if c.miss.index else ""
            more = f" ({c.miss.wrong} of {c.elements} differ)" if c.miss.wrong > 1 else ""
            lines.append(f"`{c.name}`{at} is {c.miss.found!s}, and by the reference {c.miss.value!s}, "
                         f"off by at most {c.miss.bound:.3g}{more}")  # fmt: skip
    return lines
