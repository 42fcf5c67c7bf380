"""A compiled program on a device, which is called on arrays. `bound` settles the arrays in advance."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from loopfuse.cuda.arguments import Accept, Want
from loopfuse.cuda.arrays import DeviceArray
from loopfuse.cuda.calls import Driver, Handle
from loopfuse.cuda.commands import Commands, Target, commands
from loopfuse.cuda.context import Device, Owned
from loopfuse.cuda.launch import Plan, make_plan
from loopfuse.cuda.streams import stream_handle
from loopfuse.diag import CompilerError, MachineError
from loopfuse.emit.code import FAULTS, Code
from loopfuse.ir import Buffer

MOST_LANES = 16  # sets of sizes and streams whose temporaries are kept


class Binary(Protocol):
    """What compiling gives: machine code."""

    @property
    def cubin(self) -> bytes:
        """What the driver loads."""


class Results(dict[str, Any]):
    """The outputs of a call by buffer: `DeviceArray`s, the caller's own arrays, or NumPy's.

    `faults`: how often each fault counter was hit, where the program has any; `remarks`: what was copied and why.
    """

    def __init__(self, outputs: Mapping[str, Any], faults: Sequence[int] = (), remarks: Iterable[str] = ()) -> None:
        super().__init__(outputs)
        self.faults, self.remarks = tuple(faults), tuple(remarks)


class Lane:
    """What calls for the same sizes on the same stream share: temporaries, whose use the stream keeps in order.

    `lock` is held while a call puts its launches on the stream. `dirty`: memory that must be zero may not be.
    """

    def __init__(self, device: Device, plan: Plan, wants: Mapping[str, Want], functions: Sequence[Handle],
                 stream: int) -> None:  # fmt: skip
        self.plan, self.wants, self.stream = plan, wants, stream
        self.lock = threading.Lock()
        self.dirty = plan.arena.zeroed > 0
        self._block = device.take(plan.arena.bytes, stream)
        self.places = {id: self._block.pointer + offset for id, offset in plan.arena.offsets.items()}
        self.target = Target(device.driver, plan.code.kernels, functions, stream, self.places)
        self.commands: Commands = commands(self.target, plan)

    def clean(self, driver: Driver) -> None:
        """Set to zero what kernels expect to be zero, and leave zero."""
        driver.fill(self._block.pointer, 0, self.plan.arena.zeroed, self.stream)
        self.dirty = False

    def faults(self, driver: Driver) -> tuple[int, ...]:
        """The counters, once the stream is done."""
        if not self.plan.faults:
            return ()
        counts = np.zeros(self.plan.faults, np.uint32)
        driver.download(counts, self.places[FAULTS], self.stream)
        return tuple(int(n) for n in counts)


class Loaded:
    """A program for one signature on one device.

    `buffers` are the IR's buffers, inputs and outputs at least. `binaries` are in the order of the code's kernels. Any
    thread may call it; calls on different streams run at the same time, each with its own temporaries.
    """

    def __init__(self, device: Device, code: Code, binaries: Sequence[Binary], buffers: Iterable[Buffer]) -> None:
        self.device, self.code = device, code
        self._title = f"`{code.name}`"
        wanted = {*code.inputs, *code.outputs}
        self._buffers = {b.id: b for b in buffers if b.id in wanted}
        missing = wanted - self._buffers.keys()
        if missing or len(binaries) != len(code.kernels):
            raise CompilerError("cuda", f"`{code.name}` comes without {', '.join(sorted(missing)) or 'its binaries'}")
        self._names = sorted({*code.sizes, *(n for b in self._buffers.values() for p in b.shape for n in p.names)})
        self._lock = threading.Lock()
        self._lanes: OrderedDict[tuple[tuple[int, ...], int], Lane] = OrderedDict()
        self._modules: list[Handle] = []
        self._functions: list[Handle] = []
        self.dependents: WeakSet[Owned] = WeakSet()  # bound calls, whose graphs hold these kernels
        self.closed = False
        with device.active(f"loading `{code.name}`") as driver:
            try:
                self._load(driver, binaries)
            except BaseException:
                self.closed = True
                self._unload(driver)
                raise
        device.owned.add(self)

    def _load(self, driver: Driver, binaries: Sequence[Binary]) -> None:
        modules: dict[bytes, Handle] = {}
        for kernel, binary in zip(self.code.kernels, binaries, strict=True):
            module = modules.get(binary.cubin)
            if module is None:
                module = modules[binary.cubin] = driver.load(binary.cubin)
                self._modules.append(module)
            self._functions.append(driver.function(module, kernel.name, kernel.shared, kernel.cluster))

    def _unload(self, driver: Driver) -> None:
        self._functions.clear()
        while self._modules:
            driver.unload(self._modules.pop())

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, inputs: Mapping[str, Any], params: Mapping[str, Any] | None = None,
             sizes: Mapping[str, int] | None = None, out: Mapping[str, Any] | None = None, stream: Any = None,
             to_host: bool = False) -> Results:  # fmt: skip
        """Run once; arrays and params by buffer, sizes by name.

        Inputs are NumPy arrays, which are copied, or arrays of any library on this device, used where they lie. `out`:
        arrays to write to instead of new ones. It returns before the device is done, unless results go to the host
        (`to_host`, a NumPy array in `out`) or the program counts faults. Inputs must stay as they are until the stream
        is done. Raises `UserError` for arrays that do not fit and for memory (LF0509).
        """
        handle = stream_handle(stream)
        with self.device.active(self._title) as driver:
            lane = self.lane(sizes or {}, handle)
            accept = self.accept(lane, inputs, out or {})
            found = accept.done()
            with lane.lock:
                try:
                    if lane.dirty:
                        lane.clean(driver)
                    lane.commands.use(found.pointers, params or {})
                    lane.commands.run()
                except BaseException:  # an interrupt, too, may leave a kernel without the one that sets memory back
                    lane.dirty = True
                    raise
                faults = lane.faults(driver) if self.code.faults else ()
            accept.finish()
            outputs = found.outputs
            if to_host:
                outputs = {id: a.numpy() if isinstance(a, DeviceArray) else a for id, a in outputs.items()}
        return Results(outputs, faults, found.remarks)

    def lane(self, sizes: Mapping[str, int], stream: int) -> Lane:
        """The plan and the temporaries of these sizes on a stream. Call it inside `device.active`."""
        if self.closed:
            raise MachineError(f"`{self.code.name}` was closed")
        key = tuple(sizes[name] for name in self._names), stream
        with self._lock:
            found = self._lanes.get(key)
            if found is None:
                plan = next((lane.plan for (s, _), lane in self._lanes.items() if s == key[0]), None)
                plan = plan or make_plan(self.code, self._buffers.values(), sizes)
                wants = {id: self._want(id, plan) for id in self._buffers}
                found = self._lanes[key] = Lane(self.device, plan, wants, self._functions, stream)
                while len(self._lanes) > MOST_LANES:
                    self._lanes.popitem(last=False)
            self._lanes.move_to_end(key)
            return found

    def accept(self, lane: Lane, inputs: Mapping[str, Any], out: Mapping[str, Any], rest: bool = True) -> Accept:
        """The arrays of a call on their way to the device; without `rest` only those that are given. Call it inside
        `device.active`."""
        accept = Accept(self.device, lane.stream)
        for id in self.code.inputs:
            if rest or id in inputs:
                accept.input(lane.wants[id], inputs[id])
        for id in self.code.outputs:
            if rest or id in out:
                accept.output(lane.wants[id], out.get(id))
        return accept

    def _want(self, id: str, plan: Plan) -> Want:
        return Want(id, self._buffers[id].dtype, plan.shapes[id], plan.bytes[id], id in self.code.aligned)

    # -- memory ------------------------------------------------------------------------------------------------------

    def memory(self, sizes: Mapping[str, int] | None = None) -> int:
        """The bytes of temporaries that a call for these sizes needs, beside inputs and outputs."""
        return make_plan(self.code, self._buffers.values(), sizes or {}).arena.bytes

    def close(self) -> None:
        """Unload the kernels and let the memory go. What was bound cannot be called any more."""
        if self.closed:
            return
        self.closed = True
        self._lanes.clear()
        if self.device.state is not None:
            return
        with self.device.active() as driver:
            for bound in list(self.dependents):
                bound.close()
            if self._modules:
                driver.synchronize()  # a kernel may be running
            self._unload(driver)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):  # nobody can be told
                self.close()
