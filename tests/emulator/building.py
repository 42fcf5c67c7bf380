"""Compiles the kernels of a `Code` for the CPU: one translation unit, one shared library, kept in a cache folder."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from emulator.host import alignment, to_host, waits
from loopfuse.emit.code import Code, KernelCode

HERE = Path(__file__).parent
COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-U_FORTIFY_SOURCE")
CHECKS = "alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero"
UNIT = ("-O1", "-w", "-fno-strict-aliasing", "-fno-math-errno", f"-fsanitize={CHECKS}")
POISON_LOCALS = "-ftrivial-auto-var-init=pattern"  # a local that is read before it is written is not zero by chance
LIBRARIES = ("-lm", "-lc", "-lgcc")
MACHINE = ("-O2", "-w")
KEPT = 7 * 86400  # seconds that an unused library stays in the cache


class EmulatorError(Exception):
    """A kernel, or its launch, does what it must not do; the message says what and where."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of g++, c++, clang++ that is installed; None without one."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def available() -> bool:
    """Whether there is a C++ compiler, on a system that the machine knows."""
    return sys.platform == "linux" and compiler() is not None


def _accepts(*flags: str) -> bool:
    command = [str(compiler()), *flags, "-x", "c++", "/dev/null", "-o", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@functools.cache
def _version() -> str:
    return subprocess.run([str(compiler()), "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _flags(contract: bool) -> tuple[str, ...]:
    """How kernels are compiled; with `contract` a product and a sum may become one operation, as on a GPU."""
    fused = ("-ffp-contract=fast", "-fexpensive-optimizations", *(["-mfma"] if platform.machine() == "x86_64" else []))
    locals_ = (POISON_LOCALS,) if _accepts(POISON_LOCALS, "-c") else ()
    return (*UNIT, *locals_, *(fused if contract else ("-ffp-contract=off",)))


@functools.cache
def _linking() -> tuple[str, ...]:
    """How a library is linked: neither start files nor C++'s library, and by a fast linker if there is one."""
    plain = ("-shared", "-nostartfiles", "-nodefaultlibs")
    return (*plain, "-fuse-ld=gold") if _accepts(*plain, "-fuse-ld=gold") else plain


@functools.cache
def _folder() -> Path:
    """The cache, ours alone; what was not used for long is removed from it."""
    folder = Path(tempfile.gettempdir()) / f"loopfuse-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        folder = Path(tempfile.mkdtemp())
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.is_file() and time.time() - file.stat().st_mtime > KEPT:
                file.unlink()
    return folder


def _make(target: Path, source: str, flags: tuple[str, ...], objects: tuple[str, ...] = ()) -> None:
    """Compile, and with `objects` link; the target appears only when it is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        (Path(work) / "unit.cpp").write_text(source, encoding="utf-8")
        commands = [[str(compiler()), *COMMON, *flags, f"-I{HERE}", "-c", "unit.cpp", "-o", "unit.o"]]
        if objects:
            commands.append([str(compiler()), *_linking(), "unit.o", *objects, "-o", "unit.so", *LIBRARIES])
        for command in commands:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            if done.returncode:
                kept = target.with_suffix(".failed.cpp")
                kept.write_text(source, encoding="utf-8")
                raise EmulatorError(f"the kernels do not compile ({kept}):\n{done.stderr[:6000]}")
        os.replace(Path(work) / ("unit.so" if objects else "unit.o"), target)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((_version(), *COMMON, *parts)).encode()).hexdigest()[:32]


@functools.cache
def _machine() -> Path:
    names = ("machine.cpp", "context.hpp", "reports.hpp", "stacks.hpp", "tiles.hpp", "products.hpp", "checks.hpp")
    source, *parts = ((HERE / n).read_text(encoding="utf-8") for n in names)
    target = _folder() / f"machine-{_key(source, *parts, *MACHINE)}.o"
    if not target.exists():
        _make(target, source, MACHINE)
    return target


def unit(code: Code) -> tuple[str, dict[str, bool]]:
    """The translation unit of all kernels, and of each whether its threads wait for each other."""
    prelude = to_host(code.prelude)
    parts, waiting = ['#include "shim.hpp"', prelude], {}
    for n, kernel in enumerate(code.kernels):
        text = to_host(kernel.text)
        waiting[kernel.name] = kernel.cluster > 1 or waits(text, prelude + text)
        parts += [f"namespace kernel_{n} {{", text, "}", f"EMU_KERNEL(kernel_{n}, {kernel.name})"]
    return "\n".join(parts) + "\n", waiting


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library, its source, which kernels hold barriers or shuffles, and how their shared memory is aligned."""

    handle: ctypes.CDLL
    source: str
    waiting: dict[str, bool]
    alignment: dict[str, int]

    def address(self, name: str) -> int:
        """Where a function is."""
        return ctypes.cast(getattr(self.handle, name), ctypes.c_void_p).value or 0

    def parameters(self, kernel: str) -> list[tuple[int, bool]]:
        """Of each parameter of a kernel the size in bytes and whether it is a pointer."""
        found = (ctypes.c_ushort * 32768)()  # a launch takes 32,764 bytes of parameters
        getattr(self.handle, f"emu_shape_{kernel}")(found)
        return [(b & 0x7FFF, bool(b & 0x8000)) for b in found[1 : 1 + found[0]]]


_loaded: dict[Path, ctypes.CDLL] = {}


def library(code: Code, contract: bool = False) -> Library:
    """The library of a `Code`, compiled unless it is known."""
    for kernel in code.kernels:
        _check(kernel)
    source, waiting = unit(code)
    shim = (HERE / "shim.hpp").read_text(encoding="utf-8")
    flags = _flags(contract)
    target = _folder() / f"{_key(source, shim, *flags, *_linking(), *LIBRARIES, _machine().name)}.so"
    if target not in _loaded:
        if target.exists():
            os.utime(target)
        else:
            _make(target, source, flags, (str(_machine()),))
        _loaded[target] = ctypes.CDLL(str(target))
    return Library(_loaded[target], source, waiting, {k.name: alignment(k.text) for k in code.kernels})


def _check(kernel: KernelCode) -> None:
    """What a launch on a GPU would refuse."""
    if not 1 <= kernel.threads <= 1024:
        raise EmulatorError(f"{kernel.name}: {kernel.threads} threads a block")
    if not 0 <= kernel.shared <= 227 << 10:
        raise EmulatorError(f"{kernel.name}: {kernel.shared} bytes of shared memory a block")
    stated = re.search(r"__cluster_dims__\s*\(\s*(\d+)", kernel.text)
    if kernel.cluster != (int(stated[1]) if stated else 1) or not 1 <= kernel.cluster <= 16:
        raise EmulatorError(f"{kernel.name}: a cluster of {kernel.cluster} blocks, and __cluster_dims__ differs")
    bound = re.search(r"__launch_bounds__\s*\(\s*(\d+)", kernel.text)
    if bound and int(bound[1]) < kernel.threads:
        raise EmulatorError(f"{kernel.name}: {kernel.threads} threads a block, and __launch_bounds__({bound[1]})")
