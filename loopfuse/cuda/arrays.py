"""Arrays on a GPU: this package's own, which other libraries take as they are, and those of other libraries."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from loopfuse.cuda import dlpack
from loopfuse.cuda.calls import Array
from loopfuse.cuda.context import Device
from loopfuse.cuda.pool import Block
from loopfuse.cuda.streams import DEFAULT, LEGACY, stream_handle
from loopfuse.dtypes import DTYPES, DType, of_numpy


class DeviceArray:
    """A C-contiguous array on a GPU.

    What it holds is ready once `stream` has done what it was given. PyTorch, CuPy, JAX, Numba and PyCUDA take it without
    a copy (`torch.from_dlpack(a)`, `cupy.asarray(a)`); `numpy()` brings it back, and waits.
    """

    __slots__ = ("__weakref__", "block", "device", "dtype", "pointer", "shape", "stream")

    def __init__(self, device: Device, block: Block, shape: Sequence[int], dtype: DType, stream: int) -> None:
        self.device, self.block, self.dtype, self.stream = device, block, dtype, stream
        self.pointer, self.shape = block.pointer, tuple(shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    def numpy(self) -> Array:
        """The array in host memory, once it is ready."""
        made = np.empty(self.shape, self.dtype.numpy)
        with self.device.active("a copy to the host") as driver:
            driver.download(made, self.pointer, self.stream)
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array on a GPU is copied to become one of NumPy")
        made = self.numpy()
        return made if dtype is None else made.astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.name == "bf16":
            raise AttributeError("__cuda_array_interface__ has no name for bf16: use DLPack")
        self.block.shared = True
        return {"shape": self.shape, "typestr": self.dtype.numpy.str, "data": (self.pointer, False), "version": 3,
                "strides": None, "stream": self.stream or LEGACY}  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.ordinal

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:  # fmt: skip
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if dl_device[0] != dlpack.CPU or copy is False:
                raise BufferError("the array is copied to the host or stays where it is")
            return self.numpy().__dlpack__()
        if copy:
            raise BufferError("the array is given without a copy")
        if stream != -1:
            other = stream_handle(stream)
            self.block.shared |= other != self.stream
            self.order(other)
        else:
            self.block.shared = True
        return dlpack.give(self.pointer, self.shape, self.dtype, self.device.ordinal, self)

    def order(self, stream: int) -> None:
        """Make a stream wait until the array is ready."""
        if stream != self.stream:
            with self.device.active() as driver:
                after(driver, stream, self.stream)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)} on GPU {self.device.ordinal})"


def after(driver: Any, stream: int, other: int) -> None:
    """Let a stream wait for what another was given until now."""
    event = driver.event()
    try:
        driver.record(event, other)
        driver.wait(stream, event)
    finally:
        driver.drop_event(event)


def to_device(device: Device, array: Array, stream: Any = None) -> DeviceArray:
    """A copy of a NumPy array on a GPU. Raises `TypeError` for elements that the language does not have, `UserError`
    LF0509 where there is no memory."""
    dtype = of_numpy(array.dtype)
    if dtype is None or not array.dtype.isnative:
        raise TypeError(f"elements of type {array.dtype} have no name here")
    handle = stream_handle(stream)
    with device.active("a copy to the GPU") as driver:
        made = empty(device, array.shape, dtype, handle)
        driver.upload(made.pointer, np.ascontiguousarray(array), handle)
    return made


def empty(device: Device, shape: Sequence[int], dtype: DType, stream: int = DEFAULT) -> DeviceArray:
    """A new array without content. Call it inside `device.active`."""
    return DeviceArray(device, device.take(math.prod(shape) * dtype.itemsize, stream), shape, dtype, stream)


@dataclass(slots=True)
class View:
    """An array of another library on a GPU: strides in bytes, None where it is C-contiguous; `stream` is what must be
    waited for, or None; `owner` keeps it alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None
    ordinal: int | None
    stream: int | None
    owner: object
    writable: bool = True

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def view(value: Any, stream: int) -> View | Array:
    """An array of any library, seen where it lies; arrays in host memory as NumPy's.

    `stream`: where it will be used; its producer makes that wait. Raises `TypeError` where it is no array or has
    elements of a type that the language does not have; what a library raises as it refuses passes through.
    """
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        return np.asarray(value)
    if isinstance(value, DeviceArray):
        return View(value.pointer, value.shape, value.dtype, None, value.device.ordinal, value.stream, value)
    if type(value).__module__ == "torch":
        found = _from_torch(value)
        if found is not None:
            return found
    if hasattr(value, "__dlpack_device__") and hasattr(value, "__dlpack__"):
        kind = int(value.__dlpack_device__()[0])
        if kind in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return _from_dlpack(value.__dlpack__(stream=stream or LEGACY))
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value)
    return np.asarray(value)


@cache
def _torch_types() -> dict[Any, DType]:
    """The element types by PyTorch's. Only called with a tensor in hand: PyTorch is there."""
    torch = sys.modules["torch"]
    spelled = {"bool": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
    spelled |= {f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    return {getattr(torch, name): DTYPES[ours] for ours, name in spelled.items() if hasattr(torch, name)}


def _from_torch(value: Any) -> View | None:
    """A tensor on a GPU without the toll of a capsule; None for what is better left to PyTorch itself to give or refuse.

    Its work is that of PyTorch's present stream.
    """
    torch = sys.modules["torch"]
    if (not isinstance(value, torch.Tensor) or not value.is_cuda or value.layout is not torch.strided
            or value.is_neg() or value.is_conj() or (value.requires_grad and torch.is_grad_enabled())):  # fmt: skip
        return None
    dtype = _torch_types().get(value.dtype)
    if dtype is None:
        return None
    ordinal = value.get_device()
    strides = None
    if not value.is_contiguous():
        strides = tuple(n * dtype.itemsize for n in value.stride())
    stream = stream_handle(torch.cuda.current_stream(ordinal).cuda_stream)
    return View(value.data_ptr(), tuple(value.shape), dtype, strides, ordinal, stream, value)


def hold(owner: Any, stream: int) -> None:
    """Tell a library that has a pool of its own that memory is in use on a stream that it does not know of."""
    if type(owner).__module__ == "torch":
        cuda = sys.modules["torch"].cuda
        owner.record_stream(cuda.ExternalStream(stream) if stream else cuda.default_stream())


def _from_dlpack(capsule: Any) -> View:
    taken = dlpack.take(capsule)
    strides = _dense(taken.shape, taken.strides, taken.dtype.itemsize)
    return View(taken.pointer, taken.shape, taken.dtype, strides, taken.ordinal, None, taken)


def _from_interface(value: Any) -> View:
    told = value.__cuda_array_interface__
    dtype = of_numpy(np.dtype(told["typestr"]))
    if dtype is None or told.get("mask") is not None:
        raise TypeError(f"an array with elements `{told['typestr']}`{' and a mask' if told.get('mask') else ''} "
                        "has no type here")  # fmt: skip
    pointer, readonly = told["data"]
    shape = tuple(int(n) for n in told["shape"])
    strides = _dense(shape, told.get("strides"), dtype.itemsize)
    stream = told.get("stream")
    return View(int(pointer or 0), shape, dtype, strides, None, None if stream is None else stream_handle(stream), value,
                not readonly)  # fmt: skip


def _dense(shape: tuple[int, ...], strides: Sequence[int] | None, itemsize: int) -> tuple[int, ...] | None:
    """None where strides are those of a C-contiguous array."""
    if strides is None or 0 in shape:
        return None
    step = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return tuple(int(s) for s in strides)
        step *= extent
    return None
