"""What the sizes leave out of a kernel. The cost model takes every loop to run once at least; here loops that do not run at
all count as nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from loopfuse.bind import buffer_bytes
from loopfuse.ir import Dim, Kernel, Let, Load, Loop, Op, Program, Stmt, Store
from loopfuse.ops import OPS
from loopfuse.schedule.plan import Cost
from loopfuse.walking import own


def cost(program: Program, kernel: Kernel, sizes: Mapping[str, int], found: Cost) -> Cost | None:
    """The cost of a kernel without the loops that do not run; `found` where all of them do, None where nothing is stored.
    `sizes`: a number for every size."""
    alive = [*_alive(kernel.body, sizes, 1)]
    if not any(times == 0 for _, times in alive):
        return found
    runs = [(stmt, times) for stmt, times in alive if times]
    held = {b.id: buffer_bytes(b, sizes) for b in program.buffers}
    written = {s.buffer for s, _ in runs if isinstance(s, Store) and s.buffer in held}
    if not any(held[b] for b in written):
        return None
    inputs = {n.buffer for s, _ in runs for n in own(s).nodes if isinstance(n, Load)} & held.keys() - written
    reads = min(found.reads, sum(held[b] for b in inputs))
    counts = [(OPS[n.op], times) for s, times in runs for n in own(s).nodes if isinstance(n, Op)]
    flops = min(found.flops, sum(op.flops * times for op, times in counts))
    special = min(found.special, sum(bool(op.special) * times for op, times in counts))
    matrix = found.matrix_flops if any(isinstance(s, Store) and s.absorb for s, _ in runs) else 0
    return replace(
        found, reads=reads, writes=min(found.writes, sum(held[b] for b in written)), flops=flops, matrix_flops=matrix,
        special=special, rereads=found.rereads if reads else 0,
    )  # fmt: skip


def _alive(body: Sequence[Stmt], sizes: Mapping[str, int], times: int) -> Iterator[tuple[Let | Store, int]]:
    """The statements with how often each runs; bounds that follow other indices count as one trip."""
    for stmt in body:
        if isinstance(stmt, Loop):
            yield from _alive(stmt.body, sizes, times * prod(_trips(d, sizes) for d in stmt.dims))
        else:
            yield stmt, times


def _trips(dim: Dim, sizes: Mapping[str, int]) -> int:
    polys = (*dim.lo, *dim.hi, dim.step)
    if any(p.names - sizes.keys() for p in polys):
        return 1
    low, high = max(p.value(sizes) for p in dim.lo), min(p.value(sizes) for p in dim.hi)
    return int(max(0, -(-(high - low) // max(1, dim.step.value(sizes)))))
