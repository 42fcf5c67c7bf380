"""The launches of a program for known sizes, and their arguments in memory. Pure: nothing here needs a GPU.

A kernel's arguments are handed over as an array of addresses. What stands there are slots of eight bytes, one for each
memory, param and number of the whole program, and the tile maps: to call it on other arrays is to write a few slots, and
to encode the maps over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse.cuda.arena import Arena, arena
from loopfuse.cuda.calls import Driver, Grid
from loopfuse.cuda.tiles import Maps, Tiles, tiles
from loopfuse.diag import CompilerError
from loopfuse.dtypes import DType
from loopfuse.emit.code import (
    FAULTS,
    Argument,
    Code,
    Fill,
    KernelCode,
    Launch,
    Number,
    Param,
    Pointer,
    Repeat,
    Step,
    TileMap,
)
from loopfuse.ir import Buffer
from loopfuse.sizes import Poly

MOST_LAUNCHES = 20_000  # that are laid out in advance, and fit a graph
MOST_GRID = ((1 << 31) - 1, 65535, 65535)
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Start:
    """A launch with all sizes known: the kernel by its place in the code, and its arguments as values to put in slots."""

    kernel: int
    grid: Grid
    arguments: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Set:
    """`count` bytes of a memory are set to `byte`."""

    memory: str
    byte: int
    count: int


@dataclass(frozen=True, slots=True)
class Value:
    """A number as an argument, already wrapped to its width."""

    number: int


Slot = Pointer | Param | Value | Tiles
Action = Start | Set


@dataclass(frozen=True, slots=True)
class Plan:
    """A program for known sizes.

    `shapes` and `bytes` of inputs and outputs (and `bytes` of all other memory); `actions` in order, or None where there
    are more than `MOST_LAUNCHES`: `walk` gives them one by one. `faults`: how many counters there are.
    """

    code: Code
    sizes: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    bytes: dict[str, int]
    arena: Arena
    actions: tuple[Action, ...] | None
    faults: int

    def walk(self) -> Iterator[Action]:
        """The actions in order."""
        return iter(self.actions) if self.actions is not None else walk(self.code, self.sizes, self.bytes)


def make_plan(code: Code, buffers: Iterable[Buffer], sizes: Mapping[str, int]) -> Plan:
    """The launches of a program for these sizes. `buffers` are at least its inputs and outputs.

    Raises `CompilerError` for a launch that no GPU takes.
    """
    sizes = dict(sizes)
    faults = max((f.counter + 1 for f in code.faults), default=0)
    wanted = {*code.inputs, *code.outputs}
    types = {b.id: b for b in buffers if b.id in wanted}
    shapes = {id: tuple(max(0, _number(p, sizes)) for p in b.shape) for id, b in types.items()}
    bytes_of = {id: math.prod(shape) * types[id].dtype.itemsize for id, shape in shapes.items()}
    bytes_of |= {m.id: _number(m.bytes, sizes) for m in code.memory}
    if faults:
        bytes_of[FAULTS] = 4 * faults
    actions: tuple[Action, ...] | None = None
    if count(code.steps, sizes) <= MOST_LAUNCHES:
        actions = tuple(walk(code, sizes, bytes_of))
    return Plan(code, sizes, shapes, bytes_of, arena(code.steps, code.memory, sizes, 4 * faults), actions, faults)


def count(steps: Sequence[Step], env: Mapping[str, int], most: int = MOST_LAUNCHES) -> int:
    """The launches and fills of steps, counted to just beyond `most`."""
    total = 0
    for step in steps:
        if not isinstance(step, Repeat):
            total += 1
            continue
        indices = _indices(step, env)
        inner = dict(env)
        if not any(isinstance(s, Repeat) for s in step.body):
            total += len(indices) * len(step.body)
            continue
        for index in indices:
            inner[step.index] = index
            total += count(step.body, inner, most)
            if total > most:
                break
    return total


def walk(code: Code, sizes: Mapping[str, int], bytes_of: Mapping[str, int]) -> Iterator[Action]:
    """Every launch and fill in order, with its values; first the fault counters are cleared. Launches without blocks and
    fills without bytes are left out."""
    kernels = {k.name: (number, k) for number, k in enumerate(code.kernels)}
    if code.faults:
        yield Set(FAULTS, 0, bytes_of[FAULTS])

    def steps(body: Sequence[Step], env: dict[str, int]) -> Iterator[Action]:
        for step in body:
            if isinstance(step, Repeat):
                inner = dict(env)
                for index in _indices(step, env):
                    inner[step.index] = index
                    yield from steps(step.body, inner)
            elif isinstance(step, Fill):
                if (size := bytes_of[step.memory]) > 0:
                    yield Set(step.memory, step.byte, size)
            else:
                number, kernel = kernels[step.kernel]
                extents = _grid(kernel, step, env)
                if extents is not None:
                    yield Start(number, extents, tuple(_slot(a, env, kernel.name) for a in step.arguments))

    yield from steps(code.steps, dict(sizes))


def _indices(step: Repeat, env: Mapping[str, int]) -> range:
    return range(_number(step.lo, env), _number(step.hi, env), max(1, _number(step.step, env)))


def _number(poly: Poly, env: Mapping[str, int]) -> int:
    return int(poly.value(env))


def _grid(kernel: KernelCode, step: Launch, env: Mapping[str, int]) -> Grid | None:
    """The blocks of a launch; None where there are none."""
    x, y, z = (_number(p, env) for p in step.grid)
    if x <= 0 or y <= 0 or z <= 0:
        return None
    for extent, most in zip((x, y, z), MOST_GRID, strict=True):
        if extent > most:
            raise CompilerError(
                "cuda", f"`{kernel.name}` would be launched on {x} x {y} x {z} blocks, more than CUDA has"
            )
    if not 0 < kernel.threads <= MOST_THREADS or x % kernel.cluster:
        raise CompilerError("cuda", f"`{kernel.name}` cannot be launched: {kernel.threads} threads a block, {x} blocks in "
                                    f"clusters of {kernel.cluster}")  # fmt: skip
    return x, y, z


def _slot(argument: Argument, env: Mapping[str, int], kernel: str) -> Slot:
    if isinstance(argument, Number):
        return Value(wrapped(_number(argument.value, env), argument.bits))
    if isinstance(argument, TileMap):
        return tiles(argument, env, kernel)
    return argument


def wrapped(number: int, bits: int) -> int:
    """An integer as an unsigned slot. Raises `CompilerError` where its type does not hold it."""
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise CompilerError("cuda", f"the number {number} does not fit an argument of {bits} bits")
    return number & 0xFFFF_FFFF_FFFF_FFFF


def scalar_bits(value: Any, dtype: DType) -> int:
    """The bytes of a param in its C type, as an unsigned number (f16 and bf16: the bits)."""
    if type(value) is not dtype.numpy.type:
        value = np.asarray(value).astype(dtype.numpy)
    return int.from_bytes(value.tobytes(), "little")


class Slots:
    """The arguments of launches in memory, with nothing yet in the slots of memories and params.

    `addresses` gives for each launch the address to hand over.
    """

    def __init__(self, starts: Sequence[Start], driver: Driver) -> None:
        numbers: dict[Slot, int] = {}
        taken: list[int] = []  # the number of each argument's slot, launch after launch
        begins: list[int] = []
        for start in starts:
            begins.append(len(taken))
            taken += [numbers.setdefault(slot, len(numbers)) for slot in start.arguments]
        maps = [slot for slot in numbers if isinstance(slot, Tiles)]
        plain = {slot: place for place, slot in enumerate(s for s in numbers if not isinstance(s, Tiles))}
        self._maps = Maps(maps, driver)
        self.values = np.zeros(max(1, len(plain)), np.uint64)
        for slot, place in plain.items():
            if isinstance(slot, Value):
                self.values[place] = slot.number
        at = np.zeros(max(1, len(numbers)), np.uint64)
        first = int(self.values.ctypes.data)
        at[[numbers[slot] for slot in plain]] = [first + 8 * place for place in plain.values()]
        at[[numbers[slot] for slot in maps]] = self._maps.addresses
        self._pointers = at[taken or [0]]
        first = int(self._pointers.ctypes.data)
        self.addresses = [first + 8 * begin for begin in begins]
        self._memory = {slot.memory: place for slot, place in plain.items() if isinstance(slot, Pointer)}
        self._params = [(slot, place) for slot, place in plain.items() if isinstance(slot, Param)]

    def point(self, memory: str, address: int) -> bool:
        """Write the address of a memory; False where no launch takes it."""
        mapped = self._maps.point(memory, address)
        place = self._memory.get(memory)
        if place is None:
            return mapped
        self.values[place] = address
        return True

    def give(self, params: Mapping[str, Any]) -> None:
        """Write the params, by their buffers."""
        for slot, place in self._params:
            self.values[place] = scalar_bits(params[slot.buffer], slot.dtype)
