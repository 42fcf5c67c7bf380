"""DLPack capsules, made and read: how arrays go from library to library. They name bf16, which
`__cuda_array_interface__` cannot.

The structures are those of DLPack before version 1, which every library still takes and gives when it is not asked for
another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loopfuse.dtypes import DTYPES, DType

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_BFLOAT = 4
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
# Capsules are given as addresses: in a destructor the object may not be referenced any more.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _api))

_given: dict[int, tuple[Any, ...]] = {}  # what a consumer still holds, by the address of its structure


def _delete(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


def _unused(capsule: int) -> None:
    """A capsule that nobody took is dropped."""
    if _is_valid(capsule, _NAME):
        _given.pop(_pointer(capsule, _NAME), None)


_deleter, _destructor = _Deleter(_delete), _Destructor(_unused)
for _kept in (_deleter, _destructor):  # consumers may call them while the interpreter takes itself down
    _api.Py_IncRef(ctypes.py_object(_kept))


def give(pointer: int, shape: Sequence[int], dtype: DType, ordinal: int, owner: object) -> Any:
    """A capsule of a C-contiguous array on a GPU; `owner` is kept until its consumer lets it go."""
    extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    made = _Managed()
    made.tensor.data = pointer or None
    made.tensor.device.type, made.tensor.device.id = CUDA, ordinal
    made.tensor.ndim = len(shape)
    made.tensor.dtype.code = _BFLOAT if dtype.name == "bf16" else _CODES[dtype.kind]
    made.tensor.dtype.bits, made.tensor.dtype.lanes = 8 * dtype.itemsize, 1
    made.tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    made.deleter = _deleter
    address = ctypes.addressof(made)
    _given[address] = (made, extents, owner)
    return _new(address, _NAME, _destructor)


@dataclass(slots=True)
class Taken:
    """What a capsule holds: strides in bytes (None: contiguous), and on which kind of device. Its producer is told when
    it is dropped."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType
    kind: int
    ordinal: int
    done: Callable[[], None]

    def __del__(self) -> None:
        self.done()


def take(capsule: Any) -> Taken:
    """Read a capsule and own what it holds. Raises `TypeError` for an element type that the language does not have."""
    address = id(capsule)
    if not _is_valid(address, _NAME):
        raise TypeError("not a DLPack capsule, or one that was used before")
    managed = ctypes.cast(_pointer(address, _NAME), ctypes.POINTER(_Managed))
    tensor = managed.contents.tensor
    dtype = _dtype(tensor.dtype)
    count = tensor.ndim
    shape = tuple(tensor.shape[k] for k in range(count))
    strides = tuple(tensor.strides[k] * dtype.itemsize for k in range(count)) if tensor.strides and count else None
    _rename(address, _USED)

    def done() -> None:
        if managed.contents.deleter:
            managed.contents.deleter(managed)

    pointer = (tensor.data or 0) + tensor.byte_offset
    return Taken(pointer, shape, strides, dtype, tensor.device.type, tensor.device.id, done)


def _dtype(found: _Type) -> DType:
    kind = next((k for k, code in _CODES.items() if code == found.code), None)
    for dtype in DTYPES.values():
        bits = 8 * dtype.itemsize
        same = found.code == _BFLOAT if dtype.name == "bf16" else kind == dtype.kind
        if same and bits == found.bits and found.lanes == 1:
            return dtype
    raise TypeError(f"elements of DLPack type ({found.code}, {found.bits} bits, {found.lanes} lanes) have no name here")
