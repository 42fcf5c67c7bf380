"""What a program consists of, and what it moves: counts from the IR alone, with numbers for its sizes.

The bytes are those of the loop IR as it stands: each kernel reads each element that it needs once and writes what it
stores to device memory. What a schedule reads twice, or a cache spares, is the cost model's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from loopfuse.analysis.env import assume
from loopfuse.ir import Affine, Buffer, Expr, Kernel, Load, Loop, Op, Program, Ref, Stmt, Store
from loopfuse.memory import show_bytes
from loopfuse.rewrite import nodes, own, subexprs, walk, walk_program
from loopfuse.sizes import Poly
from loopfuse.views.tables import amount, table


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of each there is. `bytes` go between the kernels and device memory; `peak` are allocated at once."""

    kernels: int
    loops: int
    folds: int
    operations: int
    loads: int
    stores: int
    lets: int
    buffers: int
    bytes: int
    peak: int


def count(program: Program, sizes: Mapping[str, int]) -> Counts:
    """The counts of a program, with a number for every size."""
    loops = folds = stores = lets = 0
    for stmt in walk_program(program):
        if isinstance(stmt, Loop):
            loops += 1
            folds += bool(stmt.accs)
        elif isinstance(stmt, Store):
            stores += not stmt.absorb
        else:
            lets += 1
    operations = loads = 0
    for node in nodes(program):
        operations += isinstance(node, Op)
        loads += isinstance(node, Load)
    moved = [traffic(kernel, program, sizes) for kernel in program.kernels]
    return Counts(len(program.kernels), loops, folds, operations, loads, stores, lets, len(program.buffers),
                  sum(read + written for read, written in moved), peak_memory(program, sizes))  # fmt: skip


def numbers(program: Program, known: Mapping[str, int]) -> tuple[dict[str, int], frozenset[str]]:
    """A number for every size, in the order of their declaration, and the names of those that are stand-ins."""
    found, assumed = assume(program, known)
    return {s.id: found[s.id] for s in program.sizes if s.id in found}, assumed


# -- memory -----------------------------------------------------------------------------------------------------------


def buffer_bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    """The bytes of a whole buffer."""
    return _elements(buffer, sizes) * buffer.dtype.itemsize


def _elements(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    total = 1
    for extent in buffer.shape:
        total *= max(0, int(extent.value(sizes)))
    return total


def peak_memory(program: Program, sizes: Mapping[str, int]) -> int:
    """The most bytes of device buffers that exist at once; a temp exists from its first kernel to its last."""
    steady = sum(buffer_bytes(b, sizes) for b in program.buffers if b.role != "temp" and b.scope == "device")
    temps = {b.id: b for b in program.buffers if b.role == "temp" and b.scope == "device"}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, kernel in enumerate(program.kernels):
        for name in _touched(kernel) & temps.keys():
            first.setdefault(name, number)
            last[name] = number
    changes = [0] * (len(program.kernels) + 1)
    for name, number in first.items():
        size = buffer_bytes(temps[name], sizes)
        changes[number] += size
        changes[last[name] + 1] -= size
    most = held = 0
    for change in changes:
        held += change
        most = max(most, held)
    return steady + most


def _touched(kernel: Kernel) -> set[str]:
    found: set[str] = set()
    for stmt in walk(kernel.body):
        if isinstance(stmt, Store) and not stmt.absorb:
            found.add(stmt.buffer)
        found.update(node.buffer for node in own(stmt).nodes if isinstance(node, Load))
    return found


def traffic(kernel: Kernel, program: Program, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The bytes that a kernel reads from device memory, and those it writes there."""
    device = {b.id: b for b in program.buffers if b.scope == "device"}
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for stmt, extents in _placed(kernel.body, sizes):
        for node in own(stmt).nodes:
            if isinstance(node, Load) and node.buffer in device:
                reach = _reach(node.subs, device[node.buffer], extents, sizes)
                read[node.buffer] = max(read.get(node.buffer, 0), reach)
        if isinstance(stmt, Store) and stmt.buffer in device:
            reach = _reach(stmt.subs, device[stmt.buffer], extents, sizes)
            written[stmt.buffer] = written.get(stmt.buffer, 0) + reach
    totals = (sum(device[n].dtype.itemsize * min(r, _elements(device[n], sizes)) for n, r in found.items())
              for found in (read, written))  # fmt: skip
    return next(totals), next(totals)


Extents = dict[str, int | None]


def _placed(body: Iterable[Stmt], sizes: Mapping[str, int]) -> Iterator[tuple[Stmt, Extents]]:
    """Every statement with the greatest number of values of each index around it; None for what is not known."""
    stack: list[tuple[Iterator[Stmt], Extents, dict[str, int]]] = [(iter(body), {}, dict(sizes))]
    while stack:
        statements, extents, tops = stack[-1]
        stmt = next(statements, None)
        if stmt is None:
            stack.pop()
            continue
        if not isinstance(stmt, Loop):
            yield stmt, extents
            continue
        extents, tops = dict(extents), dict(tops)
        for dim in stmt.dims:
            high = [v for p in dim.hi if (v := _value(p, tops)) is not None]
            low = [v for p in dim.lo if (v := _value(p, sizes)) is not None]
            step = _value(dim.step, sizes) or 1
            if high:
                tops[dim.id] = max(min(high) - 1, 0)
                extents[dim.id] = max(0, -(-(min(high) - max(low, default=0)) // step))
            else:
                extents[dim.id] = None
        yield stmt, extents
        stack.append((iter(stmt.body), extents, tops))


def _value(poly: Poly, values: Mapping[str, int]) -> int | None:
    return int(poly.value(values)) if poly.names <= values.keys() else None


def _reach(subs: tuple[Expr, ...], buffer: Buffer, extents: Extents, sizes: Mapping[str, int]) -> int:
    """The most elements that an access can mean in all iterations."""
    whole = _elements(buffer, sizes)
    total = 1
    for name in sorted({n for sub in subs for n in _indices(sub)} - sizes.keys()):
        extent = extents.get(name)
        if extent is None:
            return whole
        total *= extent
    return min(total, whole)


def _indices(sub: Expr) -> Iterator[str]:
    for node in subexprs(sub):
        if isinstance(node, Affine):
            yield from node.poly.names
        elif isinstance(node, Ref):
            yield node.id
        elif isinstance(node, Load):
            yield f"{node.buffer}[]"  # data: anything


# -- text -------------------------------------------------------------------------------------------------------------

_ROWS = (
    ("kernels", "kernels"), ("loops", "loops"), ("folds", "folds"), ("operations", "operations"), ("loads", "loads"),
    ("stores", "stores"), ("lets", "lets"), ("buffers", "buffers"), ("bytes", "bytes moved"), ("peak", "peak memory"),
)  # fmt: skip


def stats(before: Counts, after: Counts) -> list[str]:
    """A table of two counts and their difference."""
    rows = []
    for key, label in _ROWS:
        old, new = getattr(before, key), getattr(after, key)
        show: Callable[[int], str] = show_bytes if key in ("bytes", "peak") else amount
        rows.append((label, show(old), show(new), _change(old, new, show)))
    return table(("", "before", "after", "change"), rows, "lrr")


def _change(old: int, new: int, show: Callable[[int], str]) -> str:
    """`-75%`; where the share says little, the amount."""
    if old == new:
        return "="
    share = abs(new - old) / old if old else 0
    return ("+" if new > old else "-") + (f"{share:.0%}" if share >= 0.005 else show(abs(new - old)))
