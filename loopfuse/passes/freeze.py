"""Frozen arrays: inputs that are constants, and what follows from them alone, computed once.

A result takes the place of its kernels only where reading it is no dearer than reading what it is made of: weights
that are widened or spread would cost more memory than they save work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from loopfuse.backends import reference
from loopfuse.diag import UserError, error
from loopfuse.ir import Buffer, Kernel, Program
from loopfuse.passes.base import Array, Remark, Steps
from loopfuse.rewrite import Names, free_names
from loopfuse.sizes import Poly

SMALL = 1 << 16  # bytes: results up to this size are kept whatever they are made of


@dataclass
class Frozen:
    """A program, the arrays of its frozen buffers by id, and what there is to say."""

    program: Program
    arrays: dict[str, Array]
    remarks: list[Remark] = field(default_factory=list)


# -- declaring --------------------------------------------------------------------------------------------------------


def freeze(program: Program, arrays: Mapping[str, Array]) -> tuple[Mapping[str, Array], Program]:
    """The program with inputs and params frozen to arrays, by buffer or param; their extents settle sizes.

    Raises `UserError`: LF0502 no such input, LF0503 element type, LF0504 axes, LF0517 extents that disagree.
    """
    if not arrays:
        return {}, program
    table = {b.id: b for b in program.buffers if b.role in ("in", "param", "frozen")}
    params = {s.id: s for s in program.sizes if s.origin == "param"}
    values = {s.id: s.value for s in program.sizes if s.value is not None}
    held: dict[str, Array] = {}
    for name, array in arrays.items():
        found = np.asarray(array)
        if name in params:
            _settle(values, name, int(found), name)
        elif name not in table:
            raise UserError(error("LF0502", f"the program has no input `{name}` to freeze",
                                  notes=[f"its inputs are {', '.join((*table, *params))}"]))  # fmt: skip
        else:
            _fits(table[name], found, values)
            held[name] = found
    buffers = tuple(replace(b, role="frozen") if b.id in held and b.role != "frozen" else b for b in program.buffers)
    sizes = tuple(replace(s, value=v) if (v := values.get(s.id)) != s.value else s for s in program.sizes)
    if buffers == program.buffers and sizes == program.sizes:
        return held, program
    return held, replace(program, buffers=buffers, sizes=sizes)


def _fits(buffer: Buffer, array: Array, values: dict[str, int]) -> None:
    """Check an array against its declaration, and learn the sizes that are its extents."""
    if array.dtype != buffer.dtype.numpy:
        raise UserError(
            error("LF0503", f"`{buffer.id}` is {buffer.dtype}, and is frozen to {array.dtype}", buffer.span)
        )
    if array.ndim != len(buffer.shape):
        raise UserError(error("LF0504", f"`{buffer.id}` has {len(buffer.shape)} axes, and is frozen to an array of "
                              f"{array.ndim}", buffer.span))  # fmt: skip
    for extent, found in zip(buffer.shape, array.shape, strict=True):
        if extent.name is not None:
            _settle(values, extent.name, found, buffer.id)
    for axis, (extent, found) in enumerate(zip(buffer.shape, array.shape, strict=True)):
        if extent.names <= values.keys() and extent.value(values) != found:
            raise UserError(error("LF0517", f"axis {axis} of `{buffer.id}` is {extent}, which is "
                                  f"{extent.value(values)}, and it is frozen to {found}", buffer.span))  # fmt: skip


def _settle(values: dict[str, int], name: str, value: int, by: str) -> None:
    if values.setdefault(name, value) != value:
        raise UserError(error("LF0517", f"`{name}` is {values[name]}, and by `{by}` it is {value}"))


# -- computing --------------------------------------------------------------------------------------------------------


def evaluated(state: Frozen, steps: Steps) -> Frozen:
    """What depends on frozen arrays alone, and is wanted by the rest, computed and frozen itself."""
    program = state.program
    names = [free_names(k.body) for k in program.kernels]
    alone = _alone(program, names, state.arrays)
    within = {b for k in alone for b in names[k].stores}
    made_of = _sources(names, alone, state.arrays)
    wanted: list[str] = []
    for b in program.buffers:
        read = any(b.id in n.loads for k, n in enumerate(names) if k not in alone)
        if b.id in within and read and made_of[b.id]:
            size = _bytes(b)
            if size > max(SMALL, sum(state.arrays[s].nbytes for s in made_of[b.id])):
                state.remarks.append(Remark(f"`{b.id}` depends on frozen arrays alone, and is larger than they are: "
                                            "it is not kept", b.span, missed=True))  # fmt: skip
            elif steps.take(f"`{b.id}` is computed from frozen arrays"):
                wanted.append(b.id)
    if not wanted:
        return state
    found = _run(program, [program.kernels[k] for k in sorted(alone)], set(wanted), state.arrays)
    if found is None:
        return state
    spans = {b.id: b.span for b in program.buffers}
    state.remarks += [Remark(f"`{id}` depends on frozen arrays alone: it is computed once", spans[id]) for id in wanted]
    state.arrays |= found
    kernels = tuple(
        k for k, n in zip(program.kernels, names, strict=True) if not n.stores or not n.stores <= set(wanted)
    )
    buffers = tuple(replace(b, role="frozen", range=None) if b.id in wanted else b for b in program.buffers)
    state.program = replace(program, kernels=kernels, buffers=buffers)
    return state


def _alone(program: Program, names: list[Names], arrays: Mapping[str, Array]) -> set[int]:
    """The kernels that depend on frozen arrays and constants alone, and make nothing but temporaries."""
    temps = {b.id for b in program.buffers if b.role == "temp" and b.scope == "device" and _fixed(b.shape)}
    good = {k for k, n in enumerate(names) if not n.values and n.stores <= temps}
    while True:
        spoilt = {b for k, n in enumerate(names) if k not in good for b in n.stores}
        made = {b for k in good for b in names[k].stores} - spoilt
        kept = {k for k in good if names[k].loads <= made | arrays.keys() and not names[k].stores & spoilt}
        if kept == good:
            return good
        good = kept


def _sources(names: list[Names], alone: set[int], arrays: Mapping[str, Array]) -> dict[str, frozenset[str]]:
    """The frozen arrays that each computed buffer is made of."""
    found: dict[str, frozenset[str]] = {a: frozenset({a}) for a in arrays}
    for k in sorted(alone):
        mine = frozenset[str]().union(*(found.get(b, frozenset()) for b in names[k].loads))
        for b in names[k].stores:
            found[b] = found.get(b, frozenset()) | mine
    return found


def _run(
    program: Program, kernels: list[Kernel], wanted: set[str], arrays: Mapping[str, Array]
) -> dict[str, Array] | None:
    """The wanted buffers; None where an access goes outside its array."""
    names = [free_names(k.body) for k in kernels]
    used = {b for n in names for b in n.loads | n.stores}
    buffers = tuple(replace(b, role="out") if b.id in wanted else b for b in program.buffers if b.id in used)
    inputs = {b.id: arrays[b.id] for b in buffers if b.role == "frozen"}
    part = Program(program.name, (), (), buffers, tuple(kernels), (), program.numerics)
    result = reference.run(part, inputs, {})
    return None if result.faults else {b: result.outputs[b] for b in wanted}


def _fixed(shape: tuple[Poly, ...]) -> bool:
    return all(p.is_const for p in shape)


def _bytes(buffer: Buffer) -> int:
    return prod(p.constant for p in buffer.shape) * buffer.dtype.itemsize
