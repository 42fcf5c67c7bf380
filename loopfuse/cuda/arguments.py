"""What a caller gives becomes addresses on the device: used where it lies if it can be, copied and remarked on if not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse.cuda.arrays import DeviceArray, View, after, empty, hold, view
from loopfuse.cuda.calls import Array
from loopfuse.cuda.context import Device
from loopfuse.cuda.helpers import gather
from loopfuse.diag import UserError, error
from loopfuse.dtypes import DType, of_numpy
from loopfuse.memory import show_bytes

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Want:
    """What a buffer must be: its type, its extents and bytes, and whether its address is a multiple of 16."""

    id: str
    dtype: DType
    shape: tuple[int, ...]
    bytes: int
    aligned: bool

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Prepared:
    """Addresses by buffer, what must live as long as they are used, and what was remarked.

    `outputs` are the results, in the caller's own arrays where those were given; `late` are copies to make once the
    kernels were launched: where the result is and where it is to go. `ranges`: addresses and bytes that kernels use.
    """

    __slots__ = ("keep", "late", "outputs", "pointers", "ranges", "remarks")

    def __init__(self) -> None:
        self.pointers: dict[str, int] = {}
        self.keep: dict[str, object] = {}
        self.remarks: list[str] = []
        self.outputs: dict[str, Any] = {}
        self.late: list[tuple[DeviceArray, Array | View]] = []
        self.ranges: dict[str, tuple[int, int]] = {}


class Accept:
    """Takes arrays of any library for one call on a stream. Used inside `device.active`."""

    def __init__(self, device: Device, stream: int) -> None:
        self.device, self.stream = device, stream
        self.found = Prepared()
        self._apart = True  # as long as every output is a new array

    def input(self, want: Want, value: Any) -> None:
        """An input. Raises `UserError` LF0503, LF0504, LF0517, LF0520 or LF0509."""
        if type(value) is DeviceArray and self._own(want, value):
            return
        seen = self._seen(want, value, "input")
        if isinstance(seen, View):
            pointer, keep = self._in_place(want, seen)
            self.found.ranges[want.id] = (seen.pointer, want.bytes)
        else:
            keep = self.device.take(seen.nbytes, self.stream)
            pointer = keep.pointer
            self.device.driver.upload(pointer, np.ascontiguousarray(seen), self.stream)
        self.found.pointers[want.id], self.found.keep[want.id] = pointer, keep

    def output(self, want: Want, value: Any = None) -> None:
        """An output: a new array, or the caller's. Raises as `input` does."""
        if value is None:
            made = empty(self.device, want.shape, want.dtype, self.stream)
            self._result(want, made, made)
            return
        self._apart = False
        if type(value) is DeviceArray and self._own(want, value):
            self.found.outputs[want.id] = value
            return
        seen = self._seen(want, value, "output")
        if isinstance(seen, View):
            self._check_place(want, seen)
            if not want.aligned or seen.pointer % ALIGNMENT == 0:
                self.found.pointers[want.id], self.found.keep[want.id] = seen.pointer, seen
                self.found.outputs[want.id] = value
                self.found.ranges[want.id] = (seen.pointer, want.bytes)
                return
            self.found.remarks.append(f"the output `{want.id}` is not on a multiple of 16 bytes: it was written to "
                                      "another array and copied")  # fmt: skip
            self.found.ranges[want.id] = (seen.pointer, want.bytes)
        elif not isinstance(value, np.ndarray) or not value.flags.c_contiguous or not value.flags.writeable:
            raise _misplaced(f"the output `{want.id}` cannot be written to in place: it must be a writable array of "
                             "C-contiguous memory")  # fmt: skip
        made = empty(self.device, want.shape, want.dtype, self.stream)
        self._result(want, made, value)
        self.found.late.append((made, seen))

    def _result(self, want: Want, made: DeviceArray, value: Any) -> None:
        if value is made:
            self.found.ranges[want.id] = (made.pointer, made.nbytes)
        self.found.pointers[want.id], self.found.keep[want.id] = made.pointer, made
        self.found.outputs[want.id] = value

    def keep(self, old: Prepared) -> None:
        """What was not given stays as it was in an earlier call."""
        self._apart = False
        for id in old.pointers:
            if id not in self.found.pointers:
                self.found.pointers[id], self.found.keep[id] = old.pointers[id], old.keep[id]
                if id in old.ranges:
                    self.found.ranges[id] = old.ranges[id]
                if id in old.outputs:
                    self.found.outputs[id] = old.outputs[id]

    def done(self) -> Prepared:
        """All of it, once it is known that no output overlaps anything else."""
        ranges = self.found.ranges
        for id in self.found.outputs if not self._apart else ():
            start, count = ranges.get(id, (0, 0))
            for other, (begin, size) in ranges.items():
                if other != id and start < begin + size and begin < start + count:
                    raise _misplaced(f"the output `{id}` overlaps `{other}`: kernels read and write in any order")
        return self.found

    def finish(self) -> None:
        """Copy what was not written in place."""
        driver = self.device.driver
        for made, target in self.found.late:
            if isinstance(target, View):
                driver.copy(target.pointer, made.pointer, made.nbytes, self.stream)
            else:
                driver.download(target, made.pointer, self.stream)

    def _own(self, want: Want, value: DeviceArray) -> bool:
        """Take an array of this package that needs no further look; False where it does."""
        if (value.device is not self.device or value.stream != self.stream or value.dtype is not want.dtype
                or value.shape != want.shape):  # fmt: skip
            return False
        self.found.pointers[want.id], self.found.keep[want.id] = value.pointer, value
        self.found.ranges[want.id] = value.pointer, want.bytes
        return True

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _seen(self, want: Want, value: Any, role: str) -> View | Array:
        """The array, once its type and extents are right."""
        try:
            seen = view(value, self.stream)
        except UserError:
            raise
        except Exception as why:  # whatever a foreign library raises as it refuses is the caller's to know
            raise UserError(error("LF0503", f"the {role} `{want.id}` cannot be used: {why}")) from why
        found = of_numpy(seen.dtype) if isinstance(seen, np.ndarray) else seen.dtype
        if found != want.dtype or (isinstance(seen, np.ndarray) and not seen.dtype.isnative):
            raise UserError(error("LF0503", f"the {role} `{want.id}` is {found or seen.dtype} and must be {want.dtype}",
                                  notes=["data is never converted in silence"]))  # fmt: skip
        if len(seen.shape) != len(want.shape):
            raise UserError(error("LF0504", f"the {role} `{want.id}` has {len(seen.shape)} axes and must have "
                                            f"{len(want.shape)}: {want}"))  # fmt: skip
        if tuple(seen.shape) != want.shape:
            raise UserError(error("LF0517", f"the {role} `{want.id}` is {found}{list(seen.shape)} and must be {want}"))
        return seen

    def _in_place(self, want: Want, seen: View) -> tuple[int, object]:
        """The address of an input of another library, or of a copy that kernels can read."""
        self._ready(want, seen)
        if seen.strides is not None:
            why = "not contiguous"
        elif want.aligned and seen.pointer % ALIGNMENT:
            why = "not on a multiple of 16 bytes"
        else:
            return seen.pointer, seen
        block = self.device.take(seen.nbytes, self.stream)
        if seen.strides is None:
            self.device.driver.copy(block.pointer, seen.pointer, seen.nbytes, self.stream)
        else:
            gather(self.device, block.pointer, seen.pointer, seen.shape, seen.strides, want.dtype.itemsize, self.stream)
        self.found.remarks.append(f"the input `{want.id}` is {why}: {show_bytes(seen.nbytes)} were copied")
        return block.pointer, block

    def _ready(self, want: Want, seen: View) -> None:
        """Wait for what writes an array on another stream; refuse one of another device."""
        if seen.ordinal is not None and seen.ordinal != self.device.ordinal:
            raise _misplaced(
                f"`{want.id}` lies on GPU {seen.ordinal}, and the program runs on GPU {self.device.ordinal}"
            )
        if seen.stream is not None and seen.stream != self.stream:
            after(self.device.driver, self.stream, seen.stream)
            if isinstance(seen.owner, DeviceArray):
                seen.owner.block.shared = True  # its own stream does not know of this use
            else:
                hold(seen.owner, self.stream)

    def _check_place(self, want: Want, seen: View) -> None:
        """Whether an output may be written where the caller says."""
        self._ready(want, seen)
        if seen.strides is not None:
            raise _misplaced(f"the output `{want.id}` is not C-contiguous, and cannot be written to in place")
        if not seen.writable:
            raise _misplaced(f"the output `{want.id}` is read-only")


def _misplaced(message: str) -> UserError:
    return UserError(error("LF0520", message))
