"""Carries out the steps of a `Code` on the CPU."""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from emulator.building import EmulatorError, Library, library
from emulator.memory import Region
from emulator.tilemaps import encoded
from loopfuse.dtypes import DType
from loopfuse.emit.code import FAULTS, Argument, Code, Fill, Launch, Number, Pointer, Repeat, Step, TileMap
from loopfuse.sizes import Poly

Array = np.ndarray[Any, Any]
Order = str | int
_ORDERS = {"ascending": 0, "descending": 1}
_POISON = (0xFF, 0x7F, 0xA5)  # an order each, so that what reads unwritten memory gives other results in another order
_lock = threading.Lock()


def build(code: Code, contract: bool = False) -> Emulated:
    """Compile the kernels of `code` for the CPU, or take them from the cache.

    With `contract` the compiler makes one operation of a product and a sum where it can, which needs a CPU with fma.

    Raises:
        EmulatorError: g++ refuses them, or a GPU would not launch them.
        ValueError: inline PTX without a definition in `HOST`, or static shared memory.
    """
    return Emulated(code, library(code, contract))


class Emulated:
    """A program whose kernels run on the CPU. `faults` are the counts of the last run, by `Fault.counter`."""

    def __init__(self, code: Code, compiled: Library) -> None:
        self.code, self.library = code, compiled
        self.kernels = {k.name: k for k in code.kernels}
        self.faults = np.zeros(0, np.uint32)

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Any] | None = None,
            sizes: Mapping[str, int] | None = None,
            outputs: Mapping[str, tuple[Any, Sequence[int]]] | None = None, order: Order = "ascending",
            seconds: float = 20.0) -> dict[str, Array]:  # fmt: skip
        """The outputs.

        `inputs` are arrays by buffer, `params` scalars, `sizes` the values of `Code.sizes`, `outputs` the type (NumPy's
        or a `DType`) and shape of each output. `order`: in which order threads and blocks go on between barriers,
        "ascending", "descending", or a number, from which a random order is made. A kernel may take `seconds`.

        Raises:
            EmulatorError: an access outside memory or misaligned, threads that wait in vain, a barrier that not all
                reach, an input or what surrounds memory written, zeroed memory left otherwise, overflowing indices.
        """
        with _lock, np.errstate(all="ignore"):
            run = _Run(self, inputs, params or {}, sizes or {}, outputs or {}, order, seconds)
            try:
                return run.outputs()
            finally:
                run.free()

    def check(self, inputs: Mapping[str, Array], params: Mapping[str, Any] | None = None,
              sizes: Mapping[str, int] | None = None,
              outputs: Mapping[str, tuple[Any, Sequence[int]]] | None = None,
              orders: Sequence[Order] = ("ascending", "descending", 1)) -> dict[str, Array]:  # fmt: skip
        """The outputs, the same bits in every order (else `EmulatorError`): no race, nothing unwritten is read."""
        results = [self.run(inputs, params, sizes, outputs, order) for order in orders]
        for order, other in zip(orders[1:], results[1:], strict=True):
            for name, first in results[0].items():
                differ = first.reshape(-1).view(np.uint8) != other[name].reshape(-1).view(np.uint8)
                if first.size and differ.any():
                    at = np.unravel_index(int(np.argmax(differ)) // first.dtype.itemsize, first.shape)
                    at = tuple(int(k) for k in at)
                    raise EmulatorError(
                        f"`{name}`{list(at)} depends on the order of threads, or on unwritten memory: "
                        f"{first[at]} {orders[0]}, {other[name][at]} {order}"
                    )
        return results[0]


class _Run:
    """One run: its memory, and the values of sizes."""

    def __init__(self, emulated: Emulated, inputs: Mapping[str, Array], params: Mapping[str, Any],
                 sizes: Mapping[str, int], outputs: Mapping[str, tuple[Any, Sequence[int]]], order: Order,
                 seconds: float) -> None:  # fmt: skip
        self.emulated, self.code, self.seconds = emulated, emulated.code, seconds
        self.params, self.env = params, dict(sizes)
        self.order, self.seed = (_ORDERS[order], 1) if isinstance(order, str) else (2, order * 2 + 1)
        self.poison = _POISON[self.order]
        self.memory: dict[str, Region] = {}
        self.wanted = {n: (_numpy(t), tuple(int(k) for k in shape)) for n, (t, shape) in outputs.items()}
        code = self.code
        for what, given, declared in (("inputs", inputs, code.inputs), ("params", params, code.params),
                                      ("outputs", outputs, code.outputs), ("sizes", sizes, code.sizes)):  # fmt: skip
            if not set(declared) <= given.keys():
                raise ValueError(f"no {what} {sorted(set(declared) - given.keys())}")
        self.inputs = {n: np.ascontiguousarray(inputs[n]) for n in code.inputs}
        try:
            self.allocate()
        except BaseException:
            self.free()
            raise

    def allocate(self) -> None:
        for name, array in self.inputs.items():
            region = self.region(name, array.nbytes, 16 if name in self.code.aligned else array.dtype.itemsize)
            region.bytes[:] = array.reshape(-1).view(np.uint8)
            region.protect(mmap.PROT_READ)
        for name, (dtype, shape) in self.wanted.items():
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.region(name, size, 16 if name in self.code.aligned else dtype.itemsize).bytes[:] = self.poison
        for m in self.code.memory:
            self.region(m.id, int(m.bytes.value(self.env)), 16).bytes[:] = 0 if m.zeroed else self.poison
        if FAULTS not in self.memory:
            count = max((f.counter + 1 for f in self.code.faults), default=1)
            self.region(FAULTS, 4 * count, 16).bytes[:] = 0

    def region(self, name: str, size: int, alignment: int) -> Region:
        if name in self.memory:
            raise ValueError(f"there are two memories `{name}`")
        self.memory[name] = Region(name, size, alignment, low=self.order == 1)
        return self.memory[name]

    def free(self) -> None:
        for region in self.memory.values():
            region.free()

    # -- steps --------------------------------------------------------------------------------------------------------

    def outputs(self) -> dict[str, Array]:
        """Run everything; the outputs, copied."""
        for step in self.code.steps:
            self.step(step)
        for m in self.code.memory:
            if m.zeroed and self.memory[m.id].bytes.any():
                at = int(np.argmax(self.memory[m.id].bytes != 0))
                raise EmulatorError(f"`{m.id}` must be left zero and is not, at byte {at}")
        self.emulated.faults = self.memory[FAULTS].bytes.view(np.uint32).copy()
        return {n: self.memory[n].bytes.copy().view(t).reshape(shape) for n, (t, shape) in self.wanted.items()}

    def step(self, step: Step) -> None:
        if isinstance(step, Launch):
            self.launch(step)
        elif isinstance(step, Fill):
            self.memory[step.memory].bytes[:] = step.byte
        else:
            self.repeat(step)

    def repeat(self, step: Repeat) -> None:
        lo, hi, by = (int(p.value(self.env)) for p in (step.lo, step.hi, step.step))
        if by <= 0:
            raise EmulatorError(f"a repetition with the step {by}")
        outer = self.env.get(step.index)
        for k in range(lo, hi, by):
            self.env[step.index] = k
            for inner in step.body:
                self.step(inner)
        if outer is None:
            self.env.pop(step.index, None)
        else:
            self.env[step.index] = outer

    # -- launches -----------------------------------------------------------------------------------------------------

    def packed(self, a: Argument) -> bytes:
        """An argument as the kernel takes it."""
        if isinstance(a, Pointer):
            return self.memory[a.memory].address.to_bytes(8, "little")
        if isinstance(a, Number):
            value = int(a.value.value(self.env))
            if not -(1 << (a.bits - 1)) <= value < 1 << (a.bits - 1):
                raise EmulatorError(f"the argument {a.value} is {value}, which {a.bits} bits do not hold")
            return value.to_bytes(a.bits // 8, "little", signed=True)
        if isinstance(a, TileMap):
            if a.memory in {*self.code.inputs, *self.code.outputs} - self.code.aligned:
                raise EmulatorError(f"a tile map of `{a.memory}`, whose address need not be a multiple of 16")
            return encoded(a, self.memory[a.memory].address, lambda p: int(p.value(self.env)))
        return np.asarray(self.params[a.buffer]).astype(a.dtype.numpy).tobytes()

    def launch(self, launch: Launch) -> None:
        kernel = self.emulated.kernels[launch.kernel]
        extents = [int(Poly.of(p).value(self.env)) for p in launch.grid]
        if min(extents) <= 0:
            return
        if extents[0] >= 1 << 31 or max(extents[1:]) > 65535 or extents[0] % kernel.cluster:
            raise EmulatorError(f"{kernel.name}: a grid of {extents}, in clusters of {kernel.cluster}")
        values = [self.packed(a) for a in launch.arguments]
        declared = self.emulated.library.parameters(kernel.name)
        passed = [(len(v), isinstance(a, Pointer)) for v, a in zip(values, launch.arguments, strict=True)]
        if passed != declared:
            raise EmulatorError(f"{kernel.name} takes (bytes, pointer) {declared}, and is passed {passed}")
        held = ctypes.create_string_buffer(128 * len(values) + 64)
        first = -(-ctypes.addressof(held) // 64) * 64
        addresses = (ctypes.c_void_p * (len(values) + 1))()
        for n, value in enumerate(values):
            ctypes.memmove(first + 128 * n, value, len(value))
            addresses[n] = first + 128 * n
        compiled = self.emulated.library
        one, all_ = (ctypes.c_void_p(compiled.address(f"emu_{which}_{kernel.name}")) for which in ("one", "all"))
        message, fault = ctypes.create_string_buffer(2000), (ctypes.c_ulonglong * 8)()
        failed = compiled.handle.emu_run(
            one, None if compiled.waiting[kernel.name] else all_, addresses, (ctypes.c_uint * 3)(*extents),
            ctypes.c_uint(kernel.threads), ctypes.c_uint(kernel.shared), ctypes.c_uint(compiled.alignment[kernel.name]),
            ctypes.c_uint(kernel.cluster), ctypes.c_int(self.order), ctypes.c_ulonglong(self.seed), ctypes.c_int(self.poison),
            ctypes.c_double(self.seconds), message, ctypes.c_size_t(len(message)), fault,
        )  # fmt: skip
        if failed:
            raise EmulatorError(self.report(kernel.name, message.value.decode(), list(fault)))
        spoiled = [r.name for r in self.memory.values() if not r.intact()]
        if spoiled:
            raise EmulatorError(f"{kernel.name}: something was written around {spoiled}")

    def report(self, kernel: str, text: str, fault: list[int]) -> str:
        """What went wrong, with the line of the source and the memory meant."""
        line = re.match(r"@(\d+) ", text)
        if line:
            source = self.emulated.library.source.splitlines()[int(line[1]) - 1].strip()
            text = f"{text[line.end() :]}, in `{source}`"
        address, written, bx, by, bz, thread, shared, _ = fault
        if address:
            kernel_shared = self.emulated.kernels[kernel].shared
            near = next((w for r in self.memory.values() if (w := r.where(address))), None)
            if -(1 << 18) < address - shared < (1 << 18):
                near = f"at byte {address - shared} of shared memory, which has {kernel_shared}"
            text += f" ({'write' if written else 'read'} {near or f'at {address:#x}'})"
        return f"{kernel}, block ({bx}, {by}, {bz}), thread {thread}: {text}"


def _numpy(dtype: Any) -> np.dtype[Any]:
    return dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
