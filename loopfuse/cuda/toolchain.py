"""Which CUDA compiler there is: NVRTC first, then nvcc. `LOOPFUSE_COMPILER` names one: nvrtc, nvcc, or a path to nvcc.

Loading NVRTC costs a tenth of a second, so that a compiler is also told apart without loading it: by `fingerprint`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

from loopfuse.diag import LoopfuseError, MachineError

VARIABLE = "LOOPFUSE_COMPILER"
INSTALL = "`pip install 'loopfuse[nvrtc]'` brings one"


class Rejected(LoopfuseError):
    """A compiler refused a text; the message is its log."""


class Compiler(Protocol):
    """A compiler: its name with version, what tells it from every other, and the architectures that it knows."""

    version: str
    fingerprint: str
    archs: tuple[int, ...]

    def build(self, source: str, name: str, target: str, flags: Sequence[str]) -> tuple[bytes, str]:
        """Machine code for a target `sm_…`, or PTX for `compute_…`, and the log. Raises `Rejected`."""


def find_compiler(name: str | None = None) -> Compiler:
    """The compiler of this name, or that of `LOOPFUSE_COMPILER`, or the first that there is.

    Raises `MachineError` where there is none, with what to install.
    """
    return _load(name or os.environ.get(VARIABLE, ""), os.environ.get("PATH", ""))


def fingerprint(name: str | None = None) -> str:
    """What tells the compiler that `find_compiler` returns from every other, in most cases without loading it."""
    return _fingerprint(name or os.environ.get(VARIABLE, ""), os.environ.get("PATH", ""))


def find_tool(name: str) -> str | None:
    """The path of a program of the CUDA toolkit: on PATH, in CUDA_HOME, in its usual place, in a wheel."""
    found = shutil.which(name)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.path.join(home, "bin") for home in homes if home]
    wheels = (os.path.join(entry, "nvidia") for entry in sys.path)
    folders += [str(bin) for wheel in wheels if os.path.isdir(wheel) for bin in sorted(Path(wheel).glob("cu*/bin"))]
    return found or next((p for folder in folders if (p := shutil.which(name, path=folder))), None)


def wheel_version() -> str:
    """The version of the wheel that holds NVRTC, beside the bindings that load it; "" where they are not installed."""
    bindings = any(os.path.isdir(os.path.join(entry, "cuda", "bindings")) for entry in sys.path)
    prefix = "nvidia_cuda_nvrtc-"
    for entry in sys.path if bindings else ():
        if os.path.isdir(os.path.join(entry, "nvidia")):
            for name in os.listdir(entry):
                if name.startswith(prefix) and name.endswith(".dist-info"):
                    return name.removeprefix(prefix).removesuffix(".dist-info")
    return ""


@cache
def _load(name: str, path: str) -> Compiler:
    reason = ""
    if name in ("", "nvrtc"):
        try:
            found: Compiler = import_module("loopfuse.cuda.nvrtc").Nvrtc(wheel_version())
            return found
        except MachineError as why:
            reason = str(why)
            if name:
                raise MachineError(f"{VARIABLE} asks for NVRTC: {reason}") from why
    program = _nvcc(name)
    if program is None:
        wanted = f"{VARIABLE} is `{name}`, and there is no such program" if name else f"{reason}, nor is there nvcc"
        raise MachineError(f"there is no CUDA compiler ({wanted}): {INSTALL}")
    made: Compiler = import_module("loopfuse.cuda.nvcc").Nvcc(program, _stamp(program))
    return made


@cache
def _fingerprint(name: str, path: str) -> str:
    if name in ("", "nvrtc"):
        version = wheel_version()
        if version:
            return f"nvrtc {version}"
    elif program := _nvcc(name):
        return _stamp(program)
    return _load(name, path).fingerprint


def _nvcc(name: str) -> str | None:
    return find_tool("nvcc") if name in ("", "nvcc") else shutil.which(name)


def _stamp(program: str) -> str:
    """What changes when nvcc is replaced: it asks a subprocess to say its version."""
    real = os.path.realpath(program)
    told = os.stat(real)
    return f"nvcc {real} {told.st_size} {told.st_mtime_ns}"
