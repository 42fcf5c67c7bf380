"""Numbers as text: .csv (commas) and .txt (spaces or commas), `#` starts a comment."""

from __future__ import annotations

from typing import IO

import numpy as np

from loopfuse.dtypes import DType
from loopfuse.formats.common import Array, BadFile
from loopfuse.generate import Scalar, fit, parse_number
from loopfuse.numerics import cast


def read_text(file: IO[bytes], declared: DType, rank: int) -> Array:
    """The numbers, in the declared type: one a line or all on one line for one axis, a line a row for two."""
    try:
        lines = file.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as why:
        raise BadFile("LF0511", "is not a text file") from why
    rows = [row for number, line in enumerate(lines, 1) if (row := _row(line, number))]
    if rank > 2:
        raise BadFile("LF0504", f"is text, which has at most two axes, and {rank} are declared", fix="use a .npy file")
    widths = {len(row) for row in rows}
    if rank == 2 and len(widths) > 1:
        raise BadFile("LF0511", f"has rows of different lengths: {min(widths)} and {max(widths)}")
    if rank < 2 and len(rows) > 1 and widths != {1}:
        raise BadFile("LF0504", f"holds {len(rows)} rows of numbers, and {rank} axes are declared")
    flat = _convert([value for row in rows for value in row], declared)
    if rank == 0 and flat.size != 1:
        raise BadFile("LF0504", f"holds {flat.size} numbers, and one is declared")
    if rank == 2:
        return flat.reshape(len(rows), widths.pop() if widths else 0)
    return flat.reshape(()) if rank == 0 else flat


def _row(line: str, number: int) -> list[Scalar]:
    """The numbers on a line, an empty list for an empty one."""
    line = line.split("#", 1)[0].strip()
    words = line.split(",") if "," in line else line.split()
    return [_value(word.strip(), number) for word in words]


def _value(word: str, number: int) -> Scalar:
    value = parse_number(word.lower())
    if value is None:
        raise BadFile("LF0511", f"has `{word[:40]}` in line {number}, which is not a number")
    return value


def _convert(values: list[Scalar], declared: DType) -> Array:
    """The numbers in the declared type, by the rules of a literal."""
    if declared.is_float:
        try:
            wide = np.array([float(v) for v in values], np.float64)
        except OverflowError as why:
            raise BadFile("LF0503", f"has a number that {declared} cannot hold") from why
        with np.errstate(all="ignore"):
            made = cast(wide, declared)
            bad = np.isfinite(wide) & (~np.isfinite(made) | ((wide != 0) & (made == 0)))
        if bad.any():
            raise BadFile("LF0503", f"has {wide[bad][0]}, which {declared} cannot hold")
        return made
    if declared.kind == "bool":
        values = [bool(v) if v in (0, 1) else v for v in values]
    wrong = next((v for v in values if fit(v, declared) is None), None)
    if wrong is not None:
        raise BadFile("LF0503", f"has {wrong}, which {declared} cannot hold")
    return np.array(values, declared.numpy)


def write_text(file: IO[bytes], array: Array, separator: str) -> None:
    """Write at most two axes, every number so that it reads back to the same bits."""
    if array.ndim > 2:
        raise BadFile("LF0513", f"cannot hold {array.ndim} axes: text has at most two", fix="write a .npy")
    rows = array.reshape(1, 1) if array.ndim == 0 else array.reshape(-1, 1) if array.ndim == 1 else array
    for row in rows:
        file.write((separator.join(_shown(value) for value in row) + "\n").encode())


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, np.bool_) else str(value)
