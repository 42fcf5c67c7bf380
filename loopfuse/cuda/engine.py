"""From a program's finished kernels to a program that is loaded on a device: emission, compilation, and once more where
what came out does not hold, through both levels of the cache."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from loopfuse import devices
from loopfuse.cuda.binary import Binary
from loopfuse.cuda.cache import Cache, open_cache
from loopfuse.cuda.compile import compile_program, complaints
from loopfuse.cuda.context import Device, open_device
from loopfuse.cuda.measure import load_calibration
from loopfuse.cuda.nvidia import REFERENCE
from loopfuse.cuda.program import Loaded
from loopfuse.diag import MachineError, Span
from loopfuse.emit.code import Code
from loopfuse.emit.program import emit
from loopfuse.generate import Array
from loopfuse.ir import Program
from loopfuse.lock import Lock

Hit = tuple[str, Span | None, int]
TRIES = 4  # emissions of one program, each with fewer registers for the kernels that did not hold
LEAST_BUDGET = 48
GENERAL = 0  # a budget that says: write this kernel plainly


@dataclass(frozen=True, slots=True)
class Made:
    """A compiled program: code, a binary for each kernel in order, what was replanned and why, and the seconds."""

    code: Code
    binaries: tuple[Binary, ...]
    remarks: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


def make(program: Program, sizes: Mapping[str, int], device: devices.Device, arch: str, *, dynamic: bool = False,
         only: str | None = None, cache: Cache | None = None, lineinfo: bool = False,
         tiles: Mapping[str, str] | None = None) -> Made:  # fmt: skip
    """Emit and compile; a kernel that spills, or takes more registers than its plan has, is planned again with fewer,
    and at last written plainly. `tiles` as of `emit`. Needs a compiler and no device."""
    budgets: dict[str, int] = {}
    remarks: list[str] = []
    clock: dict[str, float] = {"emit": 0.0, "compile": 0.0}
    for attempt in range(TRIES):
        start = time.perf_counter()
        code = emit(program, sizes, device, dynamic=dynamic, only=only, budgets=budgets, tiles=tiles)
        middle = time.perf_counter()
        fast = program.numerics == "fast"
        binaries = tuple(compile_program(code, arch, cache=cache, fast=fast, lineinfo=lineinfo))
        clock["emit"] += middle - start
        clock["compile"] += time.perf_counter() - middle
        said = again(code, binaries, budgets, attempt)
        if not said:
            break
        remarks += said
    return Made(code, binaries, tuple(remarks), clock)


def again(code: Code, binaries: Sequence[Binary | None], budgets: dict[str, int], attempt: int) -> list[str]:
    """Which kernels do not hold as they were compiled, a remark each; none at the last attempt. Their `budgets` of registers
    are lowered for the next emission. A binary that is None is not known, and nothing is said of it."""
    compiled = [(k, b) for k, b in zip(code.kernels, binaries, strict=True) if b is not None]
    bad = complaints(replace(code, kernels=tuple(k for k, _ in compiled)), [b for _, b in compiled])
    kernels = {k.kernel: (k, b) for k, b in compiled if k.name in bad}
    kernels = {id: pair for id, pair in kernels.items() if pair[0].schedule != "general"}
    if attempt == TRIES - 1:
        return []
    for id, (_, binary) in kernels.items():
        before = budgets.get(id, binary.registers or 255)
        lower = before * 3 // 4
        budgets[id] = lower if lower >= LEAST_BUDGET and attempt < TRIES - 2 else GENERAL
    return [f"{kernel.name}: {bad[kernel.name]}; planned again" for kernel, _ in kernels.values()]


class Engine:
    """A device, what the cost model knows of it, and a cache."""

    def __init__(self, device: Device, cache: Cache, measured: Mapping[str, float] | None = None) -> None:
        self.device, self.cache = device, cache
        self.model = device.describe(measured)

    def load(self, program: Program, sizes: Mapping[str, int], *, dynamic: bool = False, key: str = "",
             only: str | None = None, lock: Lock | None = None) -> Loaded:  # fmt: skip
        """The program, ready to be called for these sizes (with `dynamic` for any). `key`, the program's in the cache,
        where the caller has not found it there. `lock`: which tiles to take, and who is told of those that do not fit."""
        made = make(program, sizes, self.model, self.device.arch, dynamic=dynamic, only=only, cache=self.cache,
                    tiles=self.tiles(lock))  # fmt: skip
        self.tell(lock, made.code)
        if key:
            self.cache.put_program(key, made.code, made.binaries, {"remarks": list(made.remarks)})
        return Loaded(self.device, made.code, made.binaries, program.buffers)

    def run(self, program: Program, inputs: Mapping[str, Any], sizes: Mapping[str, int],
            seconds: dict[str, float] | None = None, lock: Lock | None = None,
            ) -> tuple[dict[str, Array], list[Hit]]:  # fmt: skip
        """Run once on arrays (params among them) by buffer: NumPy arrays, and the checked accesses that went outside.

        `seconds` gets what emission and compilation took. `lock` as of `load`.
        """
        made = make(program, sizes, self.model, self.device.arch, cache=self.cache, tiles=self.tiles(lock))
        self.tell(lock, made.code)
        if seconds is not None:
            seconds |= made.seconds
        loaded = Loaded(self.device, made.code, made.binaries, program.buffers)
        try:
            arrays, params = split(program, inputs)
            results = loaded.call(arrays, params, sizes, to_host=True)
        finally:
            loaded.close()
        return dict(results), hits(made.code, results.faults)

    def tiles(self, lock: Lock | None) -> dict[str, str]:
        """The tiles that a lock file has for this device."""
        return lock.tiles(self.device.name, self.device.arch) if lock is not None else {}

    def tell(self, lock: Lock | None, code: Code) -> None:
        """Tell of those that a program could not use."""
        if lock is not None:
            lock.tell(code.chosen, self.device.name, self.device.arch)


def hits(code: Code, counts: Sequence[int]) -> list[Hit]:
    """The checked accesses that went outside: array, place in the source, how often; one entry a place."""
    found: dict[tuple[str, Span | None], int] = {}
    for fault, count in zip(code.faults, counts, strict=True) if counts else ():
        if count:
            key = fault.buffer, fault.span
            found[key] = found.get(key, 0) + count
    return [(buffer, span, count) for (buffer, span), count in found.items()]


def split(program: Program, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the scalar params among what a program starts from."""
    roles = {b.id: b.role for b in program.buffers}
    params = {id: np.asarray(v)[()] for id, v in values.items() if roles.get(id) == "param"}
    return {id: v for id, v in values.items() if roles.get(id) in ("in", "frozen")}, params


@cache
def _unusable(ordinal: int) -> str:
    try:
        open_engine(ordinal)
    except MachineError as why:
        return str(why)
    return ""


def open_engine(ordinal: int = 0) -> Engine:
    """The engine of a GPU, always the same one. Raises `MachineError` where it cannot be used."""
    return _opened(ordinal)


@cache
def _opened(ordinal: int) -> Engine:
    device = open_device(ordinal)
    return Engine(device, open_cache(), load_calibration(device))


def needed(what: str, problem: str) -> MachineError:
    """The error of what cannot be done without a GPU, for which the interpreter is no way out; `problem` as of `usable`."""
    return MachineError(f"{what}, and this machine has none to use: {problem.removesuffix(f', {REFERENCE}')}")


def usable(ordinal: int = 0) -> str:
    """Why a GPU cannot be used here, or "" where it can; found out once."""
    return _unusable(ordinal)
