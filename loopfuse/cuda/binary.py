"""A compiled kernel: its machine code, what it takes of a multiprocessor, and who made it how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How a kernel is compiled. Denormals are kept in every case.

    `contract`: multiply-add contraction. `fast`: division and square root may be approximate. `lineinfo`: profilers find
    the lines of the text. `most_registers`: a bound for a thread, at the price of spills (0: none).
    """

    contract: bool = True
    fast: bool = False
    lineinfo: bool = False
    most_registers: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """The options as NVRTC and nvcc both spell them."""
        found = ["--std=c++17", f"--fmad={'true' if self.contract else 'false'}"]
        if self.fast:
            found += ["--prec-div=false", "--prec-sqrt=false"]
        if self.lineinfo:
            found.append("--generate-line-info")
        if self.most_registers:
            found.append(f"--maxrregcount={self.most_registers}")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a kernel takes: registers a thread; bytes of static shared memory a block, of stack and of spills a thread,
    and of constant banks (arguments included)."""

    registers: int = 0
    shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    constant: int = 0

    @property
    def spills(self) -> int:
        """Bytes that go to memory because registers ran out, written and read."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Figures):
    """A kernel for one architecture.

    `cubin` is what the driver loads: machine code, or PTX with a zero byte at its end where `ptx` is set, because the
    compiler is older than the device; figures are then unknown. `compiler` is its name and version; `log` what it said,
    `warnings` the part of it that wants attention; `seconds` what compiling took; `key` its name in the cache;
    `cached` whether it was found there.
    """

    name: str
    arch: str
    cubin: bytes
    ptx: bool = False
    compiler: str = ""
    log: str = ""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    key: str = ""
    cached: bool = False
