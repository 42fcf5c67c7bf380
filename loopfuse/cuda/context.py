"""The GPUs of this machine: opened on first use, kept for the process, let go at its end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet

from loopfuse import devices
from loopfuse.cuda.calls import Driver, DriverError, Handle, OutOfMemory, no_context_after_fork
from loopfuse.cuda.compile import arch_for
from loopfuse.cuda.nvidia import connect
from loopfuse.cuda.pool import Block, Pool
from loopfuse.diag import CompilerError, LoopfuseError, MachineError, UserError, error
from loopfuse.memory import show_bytes

LOST = "the GPU's context was lost by an earlier failure: start the process anew"


class Owned(Protocol):
    """What holds modules or graphs of a device."""

    def close(self) -> None:
        """Release them."""


class Active:
    """See `Device.active`."""

    __slots__ = ("_device", "_doing", "_left")

    def __init__(self, device: Device, doing: str) -> None:
        self._device, self._doing = device, doing

    def __enter__(self) -> Driver:
        device = self._device
        if device.state is not None:
            raise device.state
        try:
            self._left = device.driver.enter()
        except DriverError as why:
            raise device.told(why, self._doing) from why
        return device.driver

    def __exit__(self, kind: object, why: BaseException | None, trace: object) -> None:
        device = self._device
        told = device.told(why, self._doing) if isinstance(why, DriverError) else None
        if self._left and device.state is None:
            device.driver.leave()
        if told is not None:
            raise told from why


class Device:
    """A GPU with its primary context, which PyTorch, CuPy and JAX use as well: arrays pass between them as they are.

    `name`, `uuid`, `arch` (`sm_90a`), `capability`, `units` (multiprocessors), `memory` and `cache` (the second level)
    in bytes, `shared` (a block's most, in bytes).
    """

    def __init__(self, driver: Driver) -> None:
        self.driver, self.pool = driver, Pool(driver)
        self.ordinal, self.name, self.uuid = driver.ordinal, driver.name, driver.uuid
        self.capability, self.memory = driver.capability, driver.memory
        self.arch = arch_for(*driver.capability)
        self.units = driver.attribute("MULTIPROCESSOR_COUNT")
        self.cache = driver.attribute("L2_CACHE_SIZE")
        self.shared = driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.state: MachineError | None = None  # why it cannot be used any more
        self.owned: WeakSet[Owned] = WeakSet()  # what must be released before the context is
        self.helpers: dict[str, Handle] = {}  # the runtime's own kernels, by name

    def __repr__(self) -> str:
        return f"<Device {self.ordinal}: {self.name}, {self.arch}, {show_bytes(self.memory)}>"

    def active(self, doing: str = "the GPU") -> Active:
        """For a `with`: the driver, with this device's context current. Its errors leave as errors of this package, which
        say what was being done."""
        return Active(self, doing)

    def told(self, why: DriverError, doing: str) -> Exception:
        """An error of the driver as one of this package. One that loses the context ends the use of the device."""
        if isinstance(why, OutOfMemory):
            return self.out_of_memory(0)
        if why.sticky:
            self.end(MachineError(LOST))
            return CompilerError("cuda", f"{doing} stopped with {why.name}; the process cannot use the GPU any longer")
        return CompilerError("cuda", f"{doing}: {why}")

    def end(self, state: MachineError) -> None:
        """Nothing reaches the device from now on; whoever tries is told why."""
        self.state = state
        self.pool.abandon()
        self.driver.abandon()

    def take(self, count: int, stream: int) -> Block:
        """Device memory. Raises `UserError` LF0509 where there is too little. Call it inside `active`."""
        try:
            return self.pool.take(count, stream)
        except OutOfMemory as why:
            raise self.out_of_memory(count) from why

    def out_of_memory(self, needed: int) -> UserError:
        """LF0509 with what is there."""
        try:
            free = show_bytes(self.driver.memory_info()[0])
        except DriverError:
            free = "little"
        what = f"another {show_bytes(needed)} of GPU memory are needed" if needed else "the GPU is out of memory"
        notes = [f"loopfuse holds {show_bytes(self.pool.used)} on {self.name}"]
        if "torch" in sys.modules:
            notes.append("PyTorch may hold more than it uses: torch.cuda.empty_cache()")
        message = f"{what}, and {free} of {show_bytes(self.memory)} are free"
        return UserError(error("LF0509", message, notes=notes, fix="smaller sizes"))

    def trim(self) -> None:
        """Give memory that lies unused back to the system."""
        with self.active():
            self.pool.trim()

    def synchronize(self, stream: int | None = None) -> None:
        """Wait until the device has done what it was given, on all streams or on one."""
        with self.active() as driver:
            driver.synchronize(stream)

    def free_memory(self) -> int:
        """Bytes that nobody holds; what lies unused in this package's pool is held."""
        with self.active() as driver:
            return driver.memory_info()[0]

    def attribute(self, name: str) -> int:
        """An attribute by its name in the CUDA driver, such as `MAX_THREADS_PER_BLOCK`; -1 where there is none."""
        return self.driver.attribute(name)

    def describe(self, measured: Mapping[str, float] | None = None) -> devices.Device:
        """The device as the cost model sees it: the preset of its name (or of its kind), what the driver says of it, and
        measured values."""
        return _described(self, measured or {})

    def close(self) -> None:
        """Release everything."""
        if self.state is not None:
            return
        with self.active():
            for owned in list(self.owned):
                owned.close()
            self.pool.trim()
            self.driver.close()
            self.end(MachineError("the GPU was let go: the process is ending"))


# -- what the cost model knows ----------------------------------------------------------------------------------------


def _described(device: Device, measured: Mapping[str, float]) -> devices.Device:
    compact = device.name.lower().replace(" ", "").replace("-", "")
    exact = next((key for key in devices.PRESETS if key in compact and key != "cpu"), None)
    if exact is not None:
        found: dict[str, Any] = {"units": device.units, "cache": device.cache, "shared": device.shared}
        # A cache larger than the preset says is partly a second hop away: the model keeps the preset's.
        found["cache"] = min(device.cache, devices.PRESETS[exact].cache) if device.cache > 0 else None
        return devices.device(exact, {**{k: v for k, v in found.items() if v and v > 0}, **measured})
    return devices.device(_kin(device.capability), {**_scaled(device), **measured})


def _kin(capability: tuple[int, int]) -> str:
    """The preset whose ratios an unknown device is taken to share."""
    if capability >= (9, 0) and capability[0] not in (12,):
        return "h100"
    return "a100" if capability == (8, 0) else "rtx4090"


def _scaled(device: Device) -> dict[str, float]:
    """What the driver's attributes say of an unknown device, from the ratios of its kin."""
    kin = devices.PRESETS[_kin(device.capability)]
    width, clock = device.attribute("GLOBAL_MEMORY_BUS_WIDTH"), device.attribute("MEMORY_CLOCK_RATE")
    found: dict[str, float] = {"units": device.units, "cache": device.cache, "shared": device.shared}
    if width > 0 and clock > 0:
        found["bandwidth"] = 0.85 * 2.0 * clock * 1e3 * width / 8.0
    share = device.units / kin.units if device.units > 0 else 1.0
    found |= {name: getattr(kin, name) * share for name in ("fp32", "fp64", "special", "integer", "cache_bandwidth")}
    return {name: value for name, value in found.items() if value > 0}


# -- the devices of the process ---------------------------------------------------------------------------------------

_DEVICES: dict[int, Device] = {}
_LOCK = threading.Lock()
_FORKED = False


def open_device(ordinal: int = 0) -> Device:
    """The GPU of that number, opened on the first call of the process.

    Raises `MachineError`, which says the way out: no driver or one too old, no such GPU, one that is in exclusive use,
    a missing package, a process that was forked after its parent had opened a GPU.
    """
    if _FORKED:
        raise no_context_after_fork()
    with _LOCK:
        found = _DEVICES.get(ordinal)
        if found is None:
            found = _DEVICES[ordinal] = Device(connect(ordinal))
        return found


def _close_all() -> None:
    for device in list(_DEVICES.values()):
        try:
            device.close()
        except LoopfuseError:  # nobody is left to tell; what stays is the system's to clean up
            device.end(MachineError(LOST))
    _DEVICES.clear()


def _in_child() -> None:
    """After a fork: the parent's context is not the child's, and touching it crashes."""
    global _LOCK, _FORKED
    _LOCK = threading.Lock()
    _FORKED = _FORKED or bool(_DEVICES)
    for device in _DEVICES.values():
        device.end(no_context_after_fork())


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
