"""What a compiled program depends on, as keys: the compiler's own sources, the script, the device, the options."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import loopfuse
from loopfuse.cuda.binary import Options
from loopfuse.cuda.toolchain import fingerprint
from loopfuse.diag import CompilerError

FORMAT = 1  # of what is kept
_ELSEWHERE = {"__pycache__", "cli", "repl", "views"}  # folders that have no part in what is compiled


def kernel_key(source: str, arch: str, options: Options, compiler: str) -> str:
    """The name of a kernel: its whole text, the options, the architecture, the compiler's fingerprint."""
    return _digest([FORMAT, source, arch, *options.flags, compiler])


def program_key(texts: Mapping[str, str], *, signature: object, device: object, numerics: object = "default",
                options: object = (), compiler: str | None = None) -> str:  # fmt: skip
    """The name of a compiled program.

    `texts`: the script and its modules by name. `signature`: what is known of the arguments (types, sizes, alignment).
    `device`: what the plans were made for, measured values included. `options`: whatever else directs passes, decisions
    and emission. Each may hold dataclasses, mappings, sets, sequences, text and numbers.
    """
    parts = {
        "pipeline": pipeline_version(), "compiler": fingerprint(compiler), "texts": dict(texts), "signature": signature,
        "device": device, "numerics": numerics, "options": options,
    }  # fmt: skip
    return _digest(_plain(parts))


@cache
def pipeline_version() -> str:
    """What changes when this package does: its version, and size and time of each file that has part in compiling."""
    root = Path(loopfuse.__file__).parent
    found: list[tuple[str, int, int]] = []
    for folder in (root, root.parent / "grammar"):  # in an installation the grammar stands inside the package
        with suppress(OSError):  # no such folder, or an installation from an archive
            _stamp(str(folder), found)
    return _digest([FORMAT, loopfuse.__version__, np.__version__, *sorted(found)])


def _stamp(folder: str, found: list[tuple[str, int, int]]) -> None:
    """Path, size and time of the files in a folder; this is most of what a key costs."""
    below = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".lf", ".rules", ".lark")):
                told = entry.stat()
                found.append((entry.path, told.st_size, told.st_mtime_ns))
            elif "." not in entry.name and entry.name not in _ELSEWHERE and entry.is_dir():
                below.append(entry.path)
    for path in below:
        _stamp(path, found)


def _digest(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _plain(value: Any) -> Any:
    """JSON in which equal values, and no others, have equal texts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *(_plain(getattr(value, f.name)) for f in fields(value))]
    if isinstance(value, Mapping):
        return {"map": sorted([[_plain(k), _plain(v)] for k, v in value.items()], key=str)}
    if isinstance(value, Set):
        return {"set": sorted((_plain(v) for v in value), key=str)}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    raise CompilerError("cuda", f"a {type(value).__name__} cannot be part of a program's key")
