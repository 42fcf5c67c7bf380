"""Bytes without a header: little-endian elements of the declared type in row order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO

import numpy as np

from loopfuse.diag import Span, UserError, error
from loopfuse.dtypes import DType
from loopfuse.formats.common import Array
from loopfuse.generate import Request


@dataclass(frozen=True, slots=True)
class RawFile:
    """A .raw or .bin file; its shape is that of the input, whose extents its length helps to find."""

    path: str
    size: int
    text: str
    span: Span | None = None

    def elements(self, dtype: DType) -> int | None:
        """The number of elements, or an error where the length does not divide."""
        if self.size % dtype.itemsize:
            raise UserError(error("LF0519", f"`{self.text}` has {self.size} bytes, which is no whole number of "
                                            f"{dtype} elements", self.span))  # fmt: skip
        return self.size // dtype.itemsize

    def make(self, request: Request) -> Array:
        """The elements, in the shape asked for."""
        wanted = request.count * request.dtype.itemsize
        try:
            with open(self.path, "rb") as file:
                data = file.read(wanted + 1)
        except OSError as why:
            raise UserError(error("LF0510", f"cannot read `{self.text}`: {why.strerror}", self.span)) from why
        if len(data) != wanted:
            extents = ", ".join(map(str, request.shape))
            raise UserError(error("LF0519", f"`{self.text}` has {os.path.getsize(self.path)} bytes, and "
                                            f"{request.dtype}[{extents}] has {wanted}", self.span))  # fmt: skip
        if request.dtype.kind == "bool":
            return np.asarray(np.frombuffer(data, np.uint8) != 0).reshape(request.shape)
        array: Array = np.frombuffer(data, request.dtype.numpy.newbyteorder("<"))
        return array.astype(request.dtype.numpy).reshape(request.shape)


def write_raw(file: IO[bytes], array: Array) -> None:
    """Write the elements, little-endian, in row order."""
    plain = np.ascontiguousarray(array)
    file.write(plain.astype(plain.dtype.newbyteorder("<")).tobytes())
