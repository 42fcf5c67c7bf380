"""What names a kernel wherever it stands: a digest of what it computes.

The names of arrays and of sizes, the order of kernels and whatever else the program does have no part in it; types,
shapes, layouts, the statements, and what the program allows of rounding have. Lock files find kernels by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopfuse.analysis.hashing import kernel_key, mix
from loopfuse.ir import Buffer, Kernel, Load, Program, Store
from loopfuse.sizes import Poly
from loopfuse.walking import exprs, subexprs, walk

DIGITS = 16  # hexadecimal


def digest(program: Program, kernel: Kernel, sizes: Mapping[str, int], open_: frozenset[str] = frozenset()) -> str:
    """The digest of a kernel of the program, for sizes of these extents; those in `open_` are arguments of the kernels,
    which are only planned for the extents."""
    buffers = {b.id: b for b in program.buffers}
    names = {n: f"{'any, as ' if n in open_ else 'size '}{value}" for n, value in sizes.items()}
    shapes = []
    for number, id in enumerate(dict.fromkeys(_buffers(kernel))):
        if id in buffers:
            names[id] = f"buffer {number}"
            shapes.append(_shape(buffers[id], sizes))
    allowed = f"{program.numerics}{' tf32' * _tf32(program)}"
    return mix("; ".join([allowed, *shapes]), kernel_key(kernel, names)).hex()[:DIGITS]


def _buffers(kernel: Kernel) -> Iterator[str]:
    """The buffers of a kernel in the order of their use."""
    for stmt in walk(kernel.body):
        yield from (e.buffer for e in subexprs(*exprs(stmt)) if isinstance(e, Load))
        if isinstance(stmt, Store):
            yield stmt.buffer


def _shape(buffer: Buffer, sizes: Mapping[str, int]) -> str:
    shape = ", ".join(str(_number(p, sizes)) for p in buffer.shape)
    return f"{buffer.dtype}[{shape}]" + " by value" * (buffer.role == "param")


def _number(poly: Poly, sizes: Mapping[str, int]) -> int | Poly:
    return poly.value(sizes) if poly.names <= sizes.keys() else poly


def _tf32(program: Program) -> bool:
    return any(d.kind == "pragma" and d.text.split("(")[0].strip() == "tf32" for d in program.directives)
