"""What a machine can do, as the cost model sees it: a table of presets, and values measured on the machine itself.

Peaks are those that kernels reach (a copy, a large matrix product), not those of data sheets, where both are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from loopfuse.diag import UserError, error


@dataclass(frozen=True, slots=True)
class Device:
    """A machine.

    `bandwidth` and `cache_bandwidth` in bytes a second; `latency` of memory in seconds; `cache` (the last level),
    `shared` (a block's most) and `registers` (of a multiprocessor, 32 bits each) in bytes, bytes and registers;
    `fp32`, `fp64`, `special` (exp, rsqrt, ...) and `integer` in operations a second over the whole device; `matrix`
    maps element types to the operations a second of the matrix units; `launch` and `graph_launch` in seconds.
    """

    name: str
    kind: str
    units: int
    bandwidth: float
    cache_bandwidth: float
    latency: float
    cache: int
    shared: int
    registers: int
    most_registers: int
    threads: int
    fp32: float
    fp64: float
    special: float
    integer: float
    matrix: Mapping[str, float]
    launch: float
    graph_launch: float
    cluster: int = 1
    arch: str = ""

    def matrix_peak(self, dtype: str) -> float | None:
        """Operations a second of the matrix units on operands of a type, or None where they do not take it."""
        return self.matrix.get(dtype)

    def ridge(self, peak: float) -> float:
        """The intensity (operations a byte) at which a kernel with this peak stops being bound by memory."""
        return peak / self.bandwidth


H200 = Device(
    name="H200", kind="gpu", units=132, bandwidth=4.28e12, cache_bandwidth=9.0e12, latency=7.0e-7, cache=50 << 20,
    shared=227 << 10, registers=65536, most_registers=255, threads=2048, fp32=6.0e13, fp64=3.0e13, special=3.8e12,
    integer=3.0e13, matrix={"f16": 7.9e14, "bf16": 7.9e14, "tf32": 3.9e14, "i8": 1.5e15, "f64": 6.0e13},
    launch=2.0e-6, graph_launch=1.3e-6, cluster=16, arch="sm_90a",
)  # fmt: skip
H100 = replace(H200, name="H100", bandwidth=3.0e12, cache_bandwidth=8.0e12)
A100 = Device(
    name="A100", kind="gpu", units=108, bandwidth=1.75e12, cache_bandwidth=4.5e12, latency=6.0e-7, cache=40 << 20,
    shared=163 << 10, registers=65536, most_registers=255, threads=2048, fp32=1.9e13, fp64=9.5e12, special=2.4e12,
    integer=1.9e13, matrix={"f16": 2.8e14, "bf16": 2.8e14, "tf32": 1.4e14, "i8": 5.5e14, "f64": 1.8e13},
    launch=2.5e-6, graph_launch=1.6e-6, arch="sm_80",
)  # fmt: skip
RTX_4090 = Device(
    name="RTX 4090", kind="gpu", units=128, bandwidth=9.2e11, cache_bandwidth=4.0e12, latency=5.5e-7, cache=72 << 20,
    shared=99 << 10, registers=65536, most_registers=255, threads=1536, fp32=7.5e13, fp64=1.2e12, special=5.1e12,
    integer=4.0e13, matrix={"f16": 1.6e14, "bf16": 1.6e14, "tf32": 8.0e13, "i8": 6.0e14},
    launch=2.2e-6, graph_launch=1.4e-6, arch="sm_89",
)  # fmt: skip
CPU = Device(
    name="CPU", kind="cpu", units=8, bandwidth=4.0e10, cache_bandwidth=2.0e11, latency=9.0e-8, cache=32 << 20,
    shared=256 << 10, registers=65536, most_registers=255, threads=2, fp32=5.0e11, fp64=2.5e11, special=2.0e10,
    integer=2.5e11, matrix={}, launch=1.0e-6, graph_launch=1.0e-6,
)  # fmt: skip

PRESETS: dict[str, Device] = {
    "h200": H200, "h100": H100, "a100": A100, "rtx4090": RTX_4090, "cpu": CPU,
}  # fmt: skip
DEFAULT = "h200"


def parse_device(text: str) -> Device:
    """A device as the command line names it: a preset, and measured values after a colon, `h200:bandwidth=4.1e12`.

    Raises `UserError` LF0820 where it is malformed.
    """
    name, _, rest = text.partition(":")
    measured: dict[str, float] = {}
    for part in (p for p in rest.split(",") if p.strip()):
        key, _, value = part.partition("=")
        try:
            measured[key.strip()] = float(value)
        except ValueError:
            measured[key.strip()] = 0.0
        if not 0.0 < measured[key.strip()] < float("inf"):
            raise UserError(error("LF0820", f"`{part.strip()}` is no measured value: write `bandwidth=4.1e12`"))
    return device(name.strip(), measured)


def device(name: str, measured: Mapping[str, float] | None = None) -> Device:
    """A preset by its key, with measured values in place of its own.

    Raises `UserError` LF0820 for an unknown preset, or a measured value that no device has.
    """
    found = PRESETS.get(name.lower().replace(" ", "").replace("-", ""))
    if found is None:
        raise UserError(error("LF0820", f"there is no device `{name}`; the presets are {', '.join(PRESETS)}"))
    known = {f.name for f in fields(Device)} - {"name", "kind", "matrix", "arch"}
    for key in measured or {}:
        if key not in known:
            raise UserError(error("LF0820", f"a device has no `{key}`; it has {', '.join(sorted(known))}"))
    changed: dict[str, Any] = dict(measured or {})  # counts among them, which are integers
    return replace(found, **changed) if changed else found
