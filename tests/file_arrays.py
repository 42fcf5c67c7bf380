"""Arrays in files, written and read as the tests of formats do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopfuse.diag import UserError
from loopfuse.dtypes import F32, DType
from loopfuse.files import Place, load, save_all
from loopfuse.generate import Array


def read(path: Path | str, dtype: DType = F32, rank: int = 1, name: str = "x") -> Any:
    return load(Place(str(path), Path()), dtype, rank, name)


def write(path: Path | str, array: Array, name: str = "y") -> None:
    save_all([(Place(str(path), Path()), name, array)])


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return caught.value.diagnostics[0].code


def message_of(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


def sample(dtype: DType, shape: tuple[int, ...] = (2, 3)) -> Array:
    count = int(np.prod(shape, dtype=int))
    if dtype.kind == "bool":
        return (np.arange(count) % 2 == 1).reshape(shape)
    values = np.arange(count, dtype=np.int64) - (2 if dtype.kind != "uint" else 0)
    return values.astype(dtype.numpy).reshape(shape)


def same(a: Array, b: Array) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


def npy_bytes(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
