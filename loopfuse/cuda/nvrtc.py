"""NVRTC, the compiler that is a library, through cuda-bindings. It lets go of Python's lock while it compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loopfuse.cuda.toolchain import Rejected
from loopfuse.diag import MachineError


class Nvrtc:
    """The library. `wheel` is the version of the wheel that should hold it; NVRTC itself tells only the first two numbers.

    Raises `MachineError` where cuda-bindings or the library is missing.
    """

    def __init__(self, wheel: str = "") -> None:
        try:
            from cuda.bindings import nvrtc

            self.nvrtc: Any = nvrtc
            _, major, minor = nvrtc.nvrtcVersion()
            _, archs = nvrtc.nvrtcGetSupportedArchs()
        except ImportError as why:
            raise MachineError("there is no cuda-bindings package") from why
        except (RuntimeError, OSError) as why:
            raise MachineError("the library NVRTC cannot be loaded") from why
        short = f"{major}.{minor}"
        self.version = f"nvrtc {wheel if wheel.startswith(short + '.') else short}"
        self.fingerprint = self.version
        self.archs: tuple[int, ...] = tuple(archs)

    def build(self, source: str, name: str, target: str, flags: Sequence[str]) -> tuple[bytes, str]:
        """Machine code for a target `sm_…`, or PTX for `compute_…`, and the log. Raises `Rejected`."""
        rtc, ptx = self.nvrtc, target.startswith("compute_")
        options = [f"--gpu-architecture={target}", *flags, *(() if ptx else ("--ptxas-options=-v",))]
        program = _checked(rtc.nvrtcCreateProgram, source.encode(), f"{name}.cu".encode(), 0, [], [])
        try:
            (result,) = rtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
            log = (
                _filled(rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog, program)
                .rstrip(b"\0")
                .decode(errors="replace")
            )
            if int(result):
                raise Rejected(log.strip() or str(result))
            if ptx:
                return _filled(rtc.nvrtcGetPTXSize, rtc.nvrtcGetPTX, program), log.strip()
            return _filled(rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN, program), log.strip()
        finally:
            rtc.nvrtcDestroyProgram(program)


def _checked(function: Callable[..., Any], *arguments: Any) -> Any:
    result, *rest = function(*arguments)
    if int(result):
        raise Rejected(f"{function.__name__}: {result}")
    return rest[0] if rest else None


def _filled(size: Callable[..., Any], fill: Callable[..., Any], program: Any) -> bytes:
    """What a pair of functions gives: one tells the size, the other writes into memory of that size."""
    memory = bytearray(_checked(size, program))
    _checked(fill, program, memory)
    return bytes(memory)
