"""From the text of kernels to machine code, in threads and through the cache."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from threading import Thread
from typing import Any, TypeVar

from loopfuse.cuda.binary import Binary, Figures, Options
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.ptxas import figures, warnings
from loopfuse.cuda.toolchain import Compiler, Rejected, find_compiler
from loopfuse.cuda.version import kernel_key
from loopfuse.diag import CompilerError, MachineError
from loopfuse.emit.code import Code, KernelCode

_T = TypeVar("_T")
_R = TypeVar("_R")
MOST_JOBS = 8


def arch_for(major: int, minor: int) -> str:
    """The architecture to compile for on a device of this compute capability: with wgmma and TMA on 9.0."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def compile_kernel(source: str, name: str, arch: str, *, contract: bool, fast: bool = False, lineinfo: bool = False,
                   compiler: str | None = None, most_registers: int = 0) -> Binary:  # fmt: skip
    """The machine code of the kernel `name` of a translation unit.

    PTX instead, which the driver compiles, where the compiler does not know the architecture yet. `compiler` is nvrtc,
    nvcc or a path; by default `LOOPFUSE_COMPILER` decides, else what there is. Raises `MachineError` where there is no
    compiler or it is too new for the device, `CompilerError` where the text is wrong.
    """
    options = Options(contract, fast, lineinfo, most_registers)
    return _compile(source, name, arch, options, compiler)


def compile_ptx(source: str, name: str, arch: str, *, contract: bool, fast: bool = False, lineinfo: bool = False,
                compiler: str | None = None) -> str:  # fmt: skip
    """The PTX of the kernel `name` of a translation unit, for people. Raises as `compile_kernel` does."""
    tool = find_compiler(compiler)
    target = target_of(arch, tool.archs).replace("sm_", "compute_")
    ptx, _ = _build(tool, source, name, target, Options(contract, fast, lineinfo))
    return ptx.rstrip(b"\0").decode()


def compile_program(code: Code, arch: str, *, jobs: int | None = None, cache: Cache | None = None, fast: bool = False,
                    lineinfo: bool = False, compiler: str | None = None) -> list[Binary]:  # fmt: skip
    """A binary for each kernel of a program, in order. What the cache has is not compiled, nor is a text twice.

    Of figures that do not hold `complaints` tells. Raises as `compile_kernel` does, for the first kernel that fails.
    """
    options = Options(code.contract, fast, lineinfo)
    texts = {kernel.name: code.source(kernel) for kernel in code.kernels}
    first: dict[str, KernelCode] = {}
    for kernel in code.kernels:
        first.setdefault(texts[kernel.name], kernel)
    found: dict[str, Binary] = {}
    for text in first if cache else ():
        if cache and (hit := cache.kernel(text, arch, options, compiler)):
            found[text] = hit

    def make(text: str) -> Binary:
        return _compile(text, first[text].name, arch, options, compiler)

    missing = [text for text in first if text not in found]
    for text, binary in zip(missing, in_threads(make, missing, jobs), strict=True):
        found[text] = binary
        if cache:
            kernel = first[text]
            cache.put_kernel(text, arch, options, binary, {"schedule": kernel.schedule, "why": kernel.why})
    return [found[texts[kernel.name]] for kernel in code.kernels]


def complaints(code: Code, binaries: Sequence[Binary]) -> dict[str, str]:
    """By kernel, why its plan does not hold as it was compiled: it spills, or takes more registers than the plan has."""
    found: dict[str, str] = {}
    for kernel, binary in zip(code.kernels, binaries, strict=True):
        if binary.spills > kernel.spills:
            found[kernel.name] = f"{binary.spills} bytes of registers spill to memory"
        elif kernel.limit and binary.registers > kernel.limit:
            found[kernel.name] = f"{binary.registers} registers a thread, and the plan has {kernel.limit}"
    return found


def target_of(arch: str, known: Sequence[int]) -> str:
    """What to ask a compiler for that knows some architectures: the one meant, or the newest older one, as PTX.

    Raises `MachineError` where the device is older than all of them.
    """
    number = int(re.sub(r"\D", "", arch))
    if number in known or not known:
        return arch
    older = [n for n in known if n < number]
    if not older:
        raise MachineError(
            f"the CUDA compiler here knows no GPU as old as {arch}, only sm_{min(known)} and later; "
            "the interpreter runs the program too: `--backend reference`"
        )
    return f"compute_{max(older)}"


def in_threads(work: Callable[[_T], _R], items: Sequence[_T], jobs: int | None = None) -> list[_R]:
    """`work` on each item, `jobs` at a time (by default one a core); raises what the first failing item raised."""
    count = min(len(items), jobs or min(len(os.sched_getaffinity(0)), MOST_JOBS))
    if count <= 1:
        return [work(item) for item in items]
    results: dict[int, _R] = {}
    failures: dict[int, BaseException] = {}
    pending = list(range(len(items)))[::-1]

    def worker() -> None:
        while pending and not failures:
            try:
                number = pending.pop()
            except IndexError:  # another thread took the last
                return
            try:
                results[number] = work(items[number])
            except BaseException as why:
                failures[number] = why

    threads = [Thread(target=worker, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[min(failures)]
    return [results[number] for number in range(len(items))]


# -- one kernel -------------------------------------------------------------------------------------------------------


def _compile(source: str, name: str, arch: str, options: Options, which: str | None) -> Binary:
    start = time.perf_counter()
    tool = find_compiler(which)
    target = target_of(arch, tool.archs)
    image, log = _build(tool, source, name, target, options)
    ptx = target.startswith("compute_")
    return Binary(
        name=name, arch=arch, cubin=image, ptx=ptx, compiler=tool.version, log=log, warnings=warnings(log),
        seconds=time.perf_counter() - start, key=kernel_key(source, arch, options, tool.fingerprint),
        **_plain(figures(log, image, name)),
    )  # fmt: skip


def _build(tool: Compiler, source: str, name: str, target: str, options: Options) -> tuple[bytes, str]:
    try:
        return tool.build(source, name, target, options.flags)
    except Rejected as why:
        message = f"the kernel `{name}` does not compile for {target} ({tool.version}):\n{why}"
        raise CompilerError("cuda", message, source) from why


def _plain(found: Figures) -> Mapping[str, Any]:
    return {f.name: getattr(found, f.name) for f in fields(found)}
