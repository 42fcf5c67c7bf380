"""The vectorised interpreter: a program's kernels as closures over arrays, run in order.

What it computes is defined by the IR and the op table alone; how it is cut into boxes, by `limit`, never shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse.backends.reference.buffers import Homes, homes, make
from loopfuse.backends.reference.domain import Domain, Plain, Storage
from loopfuse.backends.reference.frame import Fault, Frame
from loopfuse.backends.reference.loops import compile_block
from loopfuse.backends.reference.nest import Code, Nest
from loopfuse.backends.reference.online import Online
from loopfuse.backends.reference.places import Names
from loopfuse.backends.reference.scope import Scope, Shared, Stored
from loopfuse.diag import CompilerError
from loopfuse.ir import Buffer, Program
from loopfuse.numerics import Array

# Bytes that an element of a box may take in temporaries: some dozen arrays of eight bytes.
BYTES_AN_ELEMENT = 256


@dataclass(frozen=True)
class Result:
    """What a run computed: the buffers of role `out` by id, C-contiguous, and the checked accesses that went outside."""

    outputs: dict[str, Array]
    faults: list[Fault]


def run(program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], *, limit: int = 1 << 30,
        progress: Callable[[float], None] | None = None, checked: bool = False,
        online: Online | None = None) -> Result:  # fmt: skip
    """Run a program.

    `inputs` holds the buffers of role in, frozen and param, `sizes` a value for every size. Temporaries take about
    `limit` bytes at most, beside the buffers themselves. `progress` is told the fraction done now and then. With
    `checked` every element's history is watched: reading what was not written or left its window, or writing twice,
    raises. With `online` folds that have repairs run in one pass, by blocks, instead of exactly.

    Raises:
        CompilerError: the program breaks a rule of the IR, or inputs do not fit it.
    """
    stores, frame = execute(program, inputs, sizes, Shared(Plain(), checked, online), limit, progress)
    outputs = {}
    for buffer in program.buffers:
        if buffer.role == "out":
            outputs[buffer.id] = stores[buffer.id].cells.flat.reshape(stores[buffer.id].shape)
    return Result(outputs, list(frame.faults.values()))


def execute(program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], shared: Shared, limit: int,
            progress: Callable[[float], None] | None) -> tuple[dict[str, Any], Frame]:  # fmt: skip
    """Run a program on a domain; the storages of inputs and outputs, and the frame with its faults."""
    missing = [s.id for s in program.sizes if s.id not in sizes]
    if missing:
        raise CompilerError("reference", f"no value for the sizes {', '.join(missing)}")
    values = {s.id: int(sizes[s.id]) for s in program.sizes}
    domain, watch = shared.domain, shared.watch
    kept = homes(program, values, watch)
    slots = {b.id: shared.store_slot() for b in program.buffers}
    entries = {
        b.id: Stored(slots[b.id], kept.of[b.id].shape, b.dtype, changes=b.id in kept.brief, window=b.window)
        for b in program.buffers
    }
    scope = Scope(shared, Names(values), entries)
    codes = [compile_block(k.body, scope, Nest(n, kept, slots)) for n, k in enumerate(program.kernels)]
    frame = Frame(shared.indices, shared.values, shared.stores, max(1, limit // BYTES_AN_ELEMENT))
    for buffer in program.buffers:
        if buffer.role in ("in", "frozen", "param"):
            frame.stores[slots[buffer.id]] = domain.given(
                buffer.dtype, _given(buffer, kept.of[buffer.id].shape, inputs)
            )
    with np.errstate(all="ignore"):
        _kernels(codes, kept, slots, frame, domain, watch, progress)
    return {b.id: _result(b, frame.stores[slots[b.id]], kept, domain) for b in program.buffers}, frame


def _kernels(codes: list[Code], kept: Homes, slots: dict[str, int], frame: Frame, domain: Domain, watch: bool,
             progress: Callable[[float], None] | None) -> None:  # fmt: skip
    for number, code in enumerate(codes):
        for id, home in kept.of.items():
            if home.kernels[0] == number and home.host is None and frame.stores[slots[id]] is None:
                frame.stores[slots[id]] = make(domain, home, watch)
        if progress:
            frame.report = lambda part, done=number: progress((done + part) / len(codes))
        code(frame)
        frame.values = [None] * len(frame.values)
        for id, home in kept.of.items():
            if home.kernels[1] == number and home.buffer.role == "temp":
                frame.stores[slots[id]] = None
    if progress:
        progress(1.0)


def _given(buffer: Buffer, shape: tuple[int, ...], inputs: Mapping[str, Array]) -> Array:
    if buffer.id not in inputs:
        raise CompilerError("reference", f"no array for the input `{buffer.id}`")
    array = np.asarray(inputs[buffer.id])
    if array.shape != shape or array.dtype != buffer.dtype.numpy:
        raise CompilerError(
            "reference", f"`{buffer.id}` is {buffer.dtype}{list(shape)}, not {array.dtype}{list(array.shape)}"
        )
    return np.ascontiguousarray(array).reshape(shape)


def _result(buffer: Buffer, st: Storage | None, kept: Homes, domain: Domain) -> Storage | None:
    if buffer.role == "out" and st is None:
        return make(domain, kept.of[buffer.id], False)
    return st
