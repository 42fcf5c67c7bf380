"""What the assembler reports of a kernel: figures from its log; constants, of which new ones say nothing, from the ELF file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from loopfuse.cuda.binary import Figures

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
# The assembler tells as information, not as a warning, that it makes wgmma wait: (C7510) and its neighbours.
_WARNING = re.compile(r": warning\b|^\w+ warning *:|\badvisory\b|\(C7\d\d\d\)|Potential Performance Loss")


def figures(log: str, cubin: bytes, name: str) -> Figures:
    """The figures of a kernel from the log of a verbose compilation and its cubin.

    Spills of functions that the kernel calls count as its own. What is not told is 0.
    """
    part = _part(log, name)
    frames = [tuple(map(int, m.groups())) for m in _FRAME.finditer(part)]
    constant = re.compile(rf"\.nv\.constant\d+(\.{re.escape(name)})?")
    return Figures(
        registers=_first(_REGISTERS, part),
        shared=_first(_SHARED, part),
        stack=_first(_STACK, part) or max((f[0] for f in frames), default=0),
        spill_stores=sum(f[1] for f in frames),
        spill_loads=sum(f[2] for f in frames),
        constant=sum(size for section, size in _sections(cubin) if constant.fullmatch(section)),
    )


def warnings(log: str) -> tuple[str, ...]:
    """The lines of a log that want attention: warnings, and what ptxas says of lost speed."""
    return tuple(line.strip() for line in log.splitlines() if _WARNING.search(line))


def _part(log: str, name: str) -> str:
    """What a log says of one kernel."""
    parts = _ENTRY.split(log)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(name, "")


def _first(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0


def _sections(cubin: bytes) -> Iterator[tuple[str, int]]:
    """Name and size of each section of a 64-bit ELF file; nothing for what is none."""
    if cubin[:5] != b"\x7fELF\x02":
        return
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", cubin, start + n * size) for n in range(count)]
    texts = headers[names][4]
    for header in headers:
        at = texts + header[0]
        yield cubin[at : cubin.index(b"\0", at)].decode(), header[5]
