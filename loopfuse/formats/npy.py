"""NumPy's .npy and .npz."""

from __future__ import annotations

import ast
import io
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from loopfuse.dtypes import BF16, DType
from loopfuse.formats.common import Array, BadFile, check_size, choose_key, unheard

MOST_HEADER = 64 << 10
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError, KeyError, IndexError,
           OverflowError)  # fmt: skip


def read_npy(file: IO[bytes], size: int, declared: DType) -> Array:
    """The array in a .npy stream of `size` bytes: in native byte order, never unpickled.

    NumPy writes bf16 as two anonymous bytes; where bf16 is declared these are read as such.
    """
    shape, fortran, dtype, start = _header(file)
    count = math.prod(shape)
    check_size(count * dtype.itemsize)
    if count * dtype.itemsize > size - start:
        raise BadFile("LF0511", f"is truncated: its header promises {count * dtype.itemsize} bytes of data, "
                                f"and {max(size - start, 0)} follow")  # fmt: skip
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise BadFile("LF0511", "is truncated")
    flat: Array = np.frombuffer(data, dtype)
    try:
        array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    except ValueError as why:  # more axes than NumPy has, or a length past 64 bits beside one of 0
        raise BadFile("LF0511", f"is malformed: it has no sound shape ({why})") from why
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and declared == BF16:
        return array.view(BF16.numpy)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, element type, and where the data starts.

    Read here and not by NumPy, whose reader lets a damaged header raise almost anything.
    """
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or len(magic) < 8:
        raise BadFile("LF0511", "is not a .npy file")
    wide = {1: 2, 2: 4, 3: 4}.get(magic[6])
    if wide is None:
        raise BadFile("LF0511", f"has version {magic[6]} of the .npy format, which is not supported")
    length = int.from_bytes(file.read(wide), "little")
    if length > MOST_HEADER:
        raise BadFile("LF0511", f"is not a .npy file: a header of {length} bytes is absurd")
    text = file.read(length)
    if len(text) < length:
        raise BadFile("LF0511", "is truncated: it ends in its header")
    try:
        with unheard():
            header = ast.literal_eval(text.decode("utf-8" if magic[6] == 3 else "latin1").strip())
            shape, fortran, described = header["shape"], header["fortran_order"], header["descr"]
            dtype = np.dtype(described) if isinstance(described, str) else np.dtype(np.void)
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, OverflowError) as why:
        raise BadFile("LF0511", "is not a .npy file: its header cannot be read") from why
    if dtype.hasobject:
        raise BadFile("LF0512", "holds pickled Python objects, which are never loaded: they can run any code",
                      fix="save plain numbers: np.save(path, array.astype(np.float32))")  # fmt: skip
    if dtype.itemsize == 0 or dtype.subdtype is not None:
        raise BadFile("LF0503", f"holds elements of the kind {described}, not numbers")
    if not (isinstance(shape, tuple) and isinstance(fortran, bool) and all(type(n) is int and n >= 0 for n in shape)):
        raise BadFile("LF0511", "is not a .npy file: its header has no sound shape")
    return shape, fortran, dtype, file.tell()


def read_npz(path: str, key: str | None, name: str, declared: DType) -> Array:
    """The array `key` of a .npz archive; without a key the only one, or the one called `name`."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {i.filename.removesuffix(".npy"): i for i in archive.infolist() if i.filename.endswith(".npy")}
            member = members[choose_key(members, key, name, "arrays")]
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadFile(
                    "LF0513", "is packed in a way that NumPy never does", fix="np.savez or np.savez_compressed"
                )
            check_size(member.file_size)
            with archive.open(member) as file:
                return read_npy(file, member.file_size, declared)
    except RuntimeError as why:
        raise BadFile("LF0513", f"is packed in a way that is not supported: {why}") from why
    except _BROKEN as why:
        raise BadFile("LF0511", f"is not a sound .npz archive: {why}") from why


def write_npy(file: IO[bytes], array: Array) -> None:
    """Write one array, C-ordered."""
    np.lib.format.write_array(file, _plain(array), allow_pickle=False)


def write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write an uncompressed archive."""
    with zipfile.ZipFile(file, "w") as archive:
        for key, array in arrays.items():
            buffer = io.BytesIO()
            write_npy(buffer, array)
            archive.writestr(f"{key}.npy", buffer.getvalue())


def _plain(array: Array) -> Array:
    array = np.asarray(array, order="C")
    return array.view("V2") if array.dtype == BF16.numpy else array
