"""safetensors: a length, a JSON header, and bytes. The header is checked in full before any of it is believed."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy

from loopfuse.dtypes import DTYPES
from loopfuse.formats.common import Array, BadFile, check_size, choose_key

MOST_HEADER = 100 << 20
_NAMES = {"BOOL": "bool", "BF16": "bf16", **{f"{k}{b}": f"{k.lower()}{b}" for k in "UI" for b in (8, 16, 32, 64)},
          **{f"F{b}": f"f{b}" for b in (16, 32, 64)}}  # fmt: skip


def read_tensor(path: str, key: str | None, name: str) -> Array:
    """The tensor `key`; without a key the only one, or the one called `name`."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, start = _header(file, size)
    _check_layout(header, size - start)
    chosen = choose_key(header, key, name, "tensors")
    entry = header[chosen]
    if entry["dtype"] not in _NAMES:
        raise BadFile("LF0503", f"holds {entry['dtype']} there, which is not an element type of the language")
    dtype = DTYPES[_NAMES[entry["dtype"]]]
    begin, end = entry["data_offsets"]
    if math.prod(entry["shape"]) * dtype.itemsize != end - begin:
        raise BadFile("LF0511", f"is malformed: {entry['shape']} of {entry['dtype']} do not fill {end - begin} bytes")
    check_size(end - begin)
    try:
        with safetensors.safe_open(path, "np") as tensors:
            array: Array = tensors.get_tensor(chosen)
    except (safetensors.SafetensorError, ValueError) as why:
        raise BadFile("LF0511", f"is malformed: {why}") from why
    if dtype.kind == "bool" and array.view(np.uint8).max(initial=0) > 1:
        raise BadFile("LF0511", "is malformed: it holds bools that are neither 0 nor 1")
    return array


def _header(file: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    """The entries, and where the data starts."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > size - 8:
        raise BadFile("LF0511", "is not a safetensors file: its header is longer than the file")
    if length > MOST_HEADER:
        raise BadFile("LF0511", f"is not a safetensors file: a header of {length} bytes is absurd")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as why:
        raise BadFile("LF0511", "is not a safetensors file: its header is not JSON") from why
    if not isinstance(header, dict):
        raise BadFile("LF0511", "is not a safetensors file: its header is not an object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [k for k, _ in pairs]
        twice = next(k for k in keys if keys.count(k) > 1)
        raise BadFile("LF0511", f"is malformed: its header has `{twice}` twice")
    return found


def _check_layout(header: dict[str, Any], room: int) -> None:
    """Every tensor has a shape and bytes of its own inside the file."""
    taken: list[tuple[int, int, str]] = []
    for key, entry in header.items():
        if not (isinstance(entry, dict) and isinstance(entry.get("dtype"), str)
                and _naturals(entry.get("shape")) and _naturals(entry.get("data_offsets"))
                and len(entry["data_offsets"]) == 2):  # fmt: skip
            raise BadFile("LF0511", f"is malformed: the entry `{key}` lacks a dtype, a shape or offsets")
        begin, end = entry["data_offsets"]
        if not begin <= end <= room:
            raise BadFile("LF0511", f"is malformed: `{key}` lies outside the file (bytes {begin} to {end} of {room})")
        taken.append((begin, end, key))
    taken.sort()
    for (_, end, key), (begin, _, other) in itertools.pairwise(taken):
        if begin < end:
            raise BadFile("LF0511", f"is malformed: `{key}` and `{other}` overlap")


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def write_tensors(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write a safetensors file with these tensors."""
    file.write(safetensors.numpy.save({key: np.ascontiguousarray(array) for key, array in arrays.items()}))
