"""The streams of other libraries."""

from __future__ import annotations

from typing import Any

DEFAULT = 0
LEGACY, PER_THREAD = 1, 2  # the names of default streams in array protocols


def stream_handle(stream: Any) -> int:
    """The handle of a stream: None (the default), an int, or an object with `__cuda_stream__` (a method or a pair),
    `cuda_stream` (PyTorch), `ptr` (CuPy) or `handle` (PyCUDA, Numba). Raises `TypeError` for anything else."""
    if stream is None:
        return DEFAULT
    if isinstance(stream, int) and not isinstance(stream, bool):
        return _same(stream)
    told = getattr(stream, "__cuda_stream__", None)
    if told is not None:
        version, handle = told() if callable(told) else told
        if version != 0:
            raise TypeError(f"__cuda_stream__ has version {version}, and 0 is understood")
        return _same(int(handle))
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return _same(int(getattr(value, "value", value) or 0))
    raise TypeError(f"a stream is None, a handle, or an object that has one, not {type(stream).__name__}")


def _same(handle: int) -> int:
    """The default stream has two names."""
    if handle < 0:
        raise TypeError(f"{handle} is no stream")
    return DEFAULT if handle == LEGACY else handle
