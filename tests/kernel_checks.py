"""Helpers for tests of passes on kernels: cases as text files, and programs that must give the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse.backends.reference import run
from loopfuse.ir import Program
from loopfuse.printer import print_program

Array = np.ndarray[Any, Any]
LINE = "----\n"


def cases(folder: Path) -> list[Path]:
    """The cases of a folder: each a program, a line of dashes, and the program after the pass."""
    found = sorted(folder.glob("*.ir"))
    assert found, folder
    return found


def text_of(path: Path) -> tuple[str, str]:
    """The two parts of a case."""
    before, _, after = path.read_text().partition(LINE)
    return before, after


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the bit, all NaNs being one."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = (a != a) & (b != b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return bool(np.all((np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)) | nan))


def inputs_for(program: Program, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Arrays of small random values for everything that holds values from the start."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for b in program.buffers:
        if b.role in ("in", "param", "frozen"):
            shape = tuple(int(p.value(sizes)) for p in b.shape)
            low, high = (-3, 4) if b.dtype.kind == "int" else (0, 4)
            if b.range is not None:
                low = max(int(p.value(sizes)) for p in b.range[0])
                high = min(int(p.value(sizes)) for p in b.range[1]) + 1
            values = rng.normal(size=shape) if b.dtype.is_float else rng.integers(low, high, size=shape)
            arrays[b.id] = np.asarray(values).astype(b.dtype.numpy)
    return arrays


def check_same_results(
    before: Program,
    after: Program,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, Array] | None = None,
    more: Mapping[str, int] | None = None,
) -> None:
    """Both give the same bits; every access of the second is watched. `more` are sizes that only the second has."""
    ways = [sizes] if sizes is not None else [{s.id: n + k for k, s in enumerate(before.sizes)} for n in (1, 2, 5)]
    for known in ways:
        arrays = dict(inputs) if inputs is not None else inputs_for(before, known)
        expected = run(before, arrays, known)
        found = run(after, arrays, {**known, **(more or {})}, checked=True)
        assert list(found.outputs) == list(expected.outputs)
        for name, array in expected.outputs.items():
            assert same_bits(array, found.outputs[name]), f"{name} {known} {more}\n{print_program(after)}"
